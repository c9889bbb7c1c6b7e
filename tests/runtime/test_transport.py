"""Links between correct members: order, segmentation, back-pressure, reconnection."""

import asyncio
import random
from collections.abc import Iterable

import pytest

from net import (
    BROKER,
    CLIENT,
    LOOPBACK,
    LOOPS,
    SECURITIES,
    Pair,
    Proxy,
    Recorder,
    Security,
    cluster,
    free_ports,
    identity,
    publish,
    run,
)
from quorate.core.codec import encode
from quorate.core.errors import ConfigError, LocalProtocolError
from quorate.core.ids import member_of
from quorate.core.limits import BATCH_BYTES_MAX
from quorate.core.messages import Message, StatusQuery
from quorate.core.names import MAC_ALGORITHMS
from quorate.runtime.transport import Transport

on_both_loops = pytest.mark.parametrize("loop", LOOPS)
with_both_securities = pytest.mark.parametrize("security", SECURITIES)


def random_turns(dice: random.Random) -> list[list[Message]]:
    """What a sender hands over turn by turn: runs of random sizes, several messages at once."""
    turns: list[list[Message]] = []
    for _ in range(12):
        turn: list[Message] = [
            publish(dice.randrange(2**40), *(dice.randbytes(dice.randrange(600)) for _ in range(n)))
            for n in (dice.randint(1, 20) for _ in range(dice.randint(1, 6)))
        ]
        turns.append([*turn, StatusQuery(dice.randrange(1000))])
    return turns


@on_both_loops
@with_both_securities
def test_messages_arrive_in_order_in_both_directions(loop: str, security: Security) -> None:
    async def main() -> None:
        forth: list[Message] = [publish(n, b"x" * n) for n in range(1, 200)]
        back: list[Message] = [StatusQuery(n) for n in range(200)]
        async with Pair(security) as pair:
            assert pair.client.send(BROKER, [encode(message) for message in forth])
            assert pair.broker.send(CLIENT, [encode(message) for message in back])
            await pair.at_broker.until(lambda: len(pair.at_broker.messages) >= len(forth))
            await pair.at_client.until(lambda: len(pair.at_client.messages) >= len(back))
            assert pair.at_broker.messages == forth
            assert pair.at_client.messages == back
            assert pair.at_broker.offences == pair.at_client.offences == []

    run(loop, main())


@pytest.mark.parametrize("mac", MAC_ALGORITHMS)
def test_links_work_with_every_mac_algorithm(mac: str) -> None:
    async def main() -> None:
        async with Pair("mac", mac=mac) as pair:
            pair.client.send(BROKER, [encode(publish(1, b"hello"))])
            await pair.at_broker.until(lambda: pair.at_broker.messages)
            assert pair.at_broker.messages == [publish(1, b"hello")]
            assert pair.at_broker.offences == []

    run("uvloop", main())


@on_both_loops
@with_both_securities
@pytest.mark.parametrize("seed", range(3))
def test_messages_arrive_whole_however_tcp_cuts_them(
    loop: str, security: Security, seed: int
) -> None:
    dice = random.Random(seed)

    def cut(chunk: bytes) -> Iterable[bytes]:
        while chunk:
            size = dice.choice((1, 2, 3, 5, 17, 100, 1000, 5000))
            yield chunk[:size]
            chunk = chunk[size:]

    async def main() -> None:
        turns = random_turns(dice)
        expected = [message for turn in turns for message in turn]
        pair = Pair(security)
        async with Proxy(pair.port, meddle=cut, back=cut) as proxy:
            pair.client = pair.new_client(proxy.port)
            async with pair:
                for turn in turns:
                    pair.client.send(BROKER, [encode(message) for message in turn])
                await pair.at_broker.until(lambda: len(pair.at_broker.messages) >= len(expected))
        assert pair.at_broker.messages == expected
        assert pair.at_broker.offences == []

    run(loop, main())


@on_both_loops
@with_both_securities
def test_the_largest_batch_and_a_long_turn_arrive_whole(loop: str, security: Security) -> None:
    async def main() -> None:
        expected: list[Message] = [
            publish(1, bytes(BATCH_BYTES_MAX)),
            *(publish(n, bytes([n % 256]) * 5000) for n in range(2, 300)),
        ]
        async with Pair(security) as pair:
            pair.client.send(BROKER, [encode(message) for message in expected])
            await pair.at_broker.until(lambda: len(pair.at_broker.messages) >= len(expected))
            assert pair.at_broker.messages == expected

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_peer_that_never_reads_pushes_back_and_fills_no_memory(
    loop: str, security: Security
) -> None:
    limit, frame = 256 * 1024, encode(publish(1, bytes(20_000)))

    async def main() -> None:
        async with Pair(security, write_buffer_bytes=limit) as pair:
            # Given a broker that stops reading from its client,
            pair.broker.pause_reading(CLIENT)
            # when the client sends until it is told to stop,
            sent = 0
            while not pair.at_client.count("writable", BROKER, False):
                assert pair.client.send(BROKER, [frame])
                sent += 1
                assert pair.client.buffered_bytes(BROKER) < limit + 2 * len(frame)
                # One turn of the loop, in which it may be told.
                await asyncio.sleep(0)
            # then it is told to go on once the broker reads again, and nothing is lost.
            pair.broker.resume_reading(CLIENT)
            await pair.at_client.heard("writable", BROKER, True)
            await pair.at_broker.until(lambda: len(pair.at_broker.messages) >= sent)
            assert pair.at_broker.messages == [publish(1, bytes(20_000))] * sent

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_dialler_finds_a_replica_that_comes_back(loop: str, security: Security) -> None:
    async def main() -> None:
        async with Pair(security) as pair:
            await pair.broker.close()
            await pair.at_client.heard("disconnected", BROKER)
            assert not pair.client.send(BROKER, [encode(publish(1, b"into the void"))])
            pair.broker = pair.new_broker()
            await pair.broker.listen(LOOPBACK, pair.port)
            await pair.at_client.heard("connected", BROKER, times=2)
            assert pair.client.send(BROKER, [encode(publish(2, b"again"))])
            await pair.at_broker.until(lambda: pair.at_broker.messages == [publish(2, b"again")])

    run(loop, main())


class Dice(random.Random):
    """Draws the shortest delay, and remembers between which bounds it was asked to draw."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[tuple[float, float]] = []
        self.thrown = asyncio.Event()

    def uniform(self, a: float, b: float) -> float:
        self.asked.append((a, b))
        self.thrown.set()
        return a


def test_the_delay_between_attempts_is_drawn_from_a_range_that_doubles_up_to_its_bound() -> None:
    async def main() -> None:
        dice, owner = Dice(), Recorder()
        (port,) = ports = free_ports(1)
        file = cluster(ports)
        client = Transport(
            file, identity("client-0"), owner, back_off_s=(0.001, 0.006), random=dice
        )
        client.dial(BROKER)
        while len(dice.asked) < 4:
            dice.thrown.clear()
            await dice.thrown.wait()
        assert dice.asked[:4] == [(0.001, 0.002), (0.001, 0.004), (0.001, 0.006), (0.001, 0.006)]
        assert client.why_down(BROKER) == (
            f"cannot be reached at 127.0.0.1:{port}: connection refused"
        )
        assert client.why_unreached(BROKER) == "connection refused"
        await client.close()

    run("asyncio", main())


@on_both_loops
@with_both_securities
def test_a_second_link_of_the_same_peer_replaces_the_first(loop: str, security: Security) -> None:
    async def main() -> None:
        # Given a first link whose dialler will not fight for it,
        async with Pair(security, back_off_s=(60.0, 60.0)) as pair:
            # when the same member connects once more,
            later = Recorder()
            file = cluster([pair.port], security=security)
            twin = Transport(file, identity("client-0"), later, session=0)
            twin.dial(BROKER)
            await later.heard("connected", BROKER)
            # then the first link is closed and the second one serves.
            await pair.at_client.heard("disconnected", BROKER)
            await pair.at_broker.heard("connected", CLIENT, times=2)
            assert pair.at_broker.log == [
                ("connected", CLIENT),
                ("disconnected", CLIENT, "replaced by a newer link of the same peer"),
                ("connected", CLIENT),
            ]
            pair.broker.send(CLIENT, [encode(StatusQuery(5))])
            await later.until(lambda: later.messages == [StatusQuery(5)])
            assert pair.at_client.messages == []
            await twin.close()

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_client_may_be_connected_in_several_sessions_at_once(
    loop: str, security: Security
) -> None:
    async def main() -> None:
        async with Pair(security) as pair:
            other = Recorder()
            again = Transport(cluster([pair.port], security=security), identity("client-0"), other)
            again.dial(BROKER)
            await pair.at_broker.heard("connected", again.node)
            await other.heard("connected", BROKER)
            assert member_of(again.node) == CLIENT != again.node
            pair.broker.send(CLIENT, [encode(StatusQuery(1))])
            pair.broker.send(again.node, [encode(StatusQuery(2))])
            await pair.at_client.until(lambda: pair.at_client.messages == [StatusQuery(1)])
            await other.until(lambda: other.messages == [StatusQuery(2)])
            assert pair.at_broker.count("disconnected") == 0
            await again.close()

    run(loop, main())


@on_both_loops
@with_both_securities
def test_two_replicas_that_dial_each_other_agree_on_one_link(loop: str, security: Security) -> None:
    async def main() -> None:
        ports = free_ports(2)
        file = cluster(ports, security=security)
        owners = [Recorder(), Recorder()]
        brokers = [
            Transport(file, identity(f"broker-{n}"), owners[n], back_off_s=(0.001, 0.05))
            for n in range(2)
        ]
        for n, broker in enumerate(brokers):
            await broker.listen(LOOPBACK, ports[n])
        for n, broker in enumerate(brokers):
            broker.dial(1 - n)

        async def deliver(sender: int) -> None:
            """Send again whenever a link comes up, as the machines do, until it arrived."""
            other = 1 - sender
            links = 0
            while not owners[other].messages:
                links += 1
                await owners[sender].heard("connected", other, times=links)
                brokers[sender].send(other, [encode(StatusQuery(sender))])
                waiting = owners[other].until(lambda: owners[other].messages)
                lost = owners[sender].heard("disconnected", other, times=links)
                tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(lost)]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()

        await deliver(0)
        await deliver(1)
        assert [owner.offences for owner in owners] == [[], []]
        await asyncio.gather(*(broker.close() for broker in brokers))

    run(loop, main())


def test_closing_reports_every_link_and_refuses_further_dialling() -> None:
    async def main() -> None:
        async with Pair("mac") as pair:
            await pair.client.close()
            assert pair.at_client.count("disconnected", BROKER, "this node closed its links") == 1
            await pair.at_broker.heard("disconnected", CLIENT)
            with pytest.raises(LocalProtocolError, match="closed"):
                pair.client.dial(BROKER)

    run("uvloop", main())


@on_both_loops
@with_both_securities
def test_closing_flushes_what_was_sent_just_before(loop: str, security: Security) -> None:
    async def main() -> None:
        async with Pair(security) as pair:
            # More than sockets hold, so that some of it still waits here when the link is closed.
            sent = [publish(number, bytes(1_000_000)) for number in range(1, 13)]
            pair.client.send(BROKER, [encode(message) for message in sent])
            assert pair.client.buffered_bytes(BROKER) > 0
            await pair.client.close()
            await pair.at_broker.heard("disconnected", CLIENT)
            assert pair.at_broker.messages == sent

    run(loop, main())


def test_only_other_replicas_can_be_dialled() -> None:
    async def main() -> None:
        broker = Transport(cluster(free_ports(1)), identity("broker-0"), Recorder())
        for number, name in ((0, "broker-0"), (1000, "client-0")):
            with pytest.raises(ConfigError, match=f"{name} cannot be dialled"):
                broker.dial(number)

    run("asyncio", main())


def test_keys_that_the_cluster_file_does_not_pin_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="keys of client-0 are not those"):
        Transport(cluster(free_ports(1)), identity("client-0", forged=True), Recorder())
