"""Links under attack: whoever does what no correct member does is refused and named."""

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

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
    ended,
    free_ports,
    identity,
    publish,
    run,
)
from quorate.core.cluster import Cluster
from quorate.core.codec import LENGTH, encode
from quorate.core.errors import RemoteProtocolError
from quorate.core.messages import StatusQuery
from quorate.core.ordering import Recall
from quorate.crypto.identity import Identity
from quorate.runtime import handshake, links
from quorate.runtime.handshake import HELLO_BYTES, Credentials, cluster_digest
from quorate.runtime.links import STRANGERS_PER_HOST_MAX
from quorate.runtime.records import RECORD_BYTES_MAX, RECORD_BYTES_USUAL, TaggedRecords
from quorate.runtime.tls import Certificates, TlsSession
from quorate.runtime.transport import Transport
from traffic import until

on_both_loops = pytest.mark.parametrize("loop", LOOPS)
with_both_securities = pytest.mark.parametrize("security", SECURITIES)


class Broker:
    """A replica on its own, for strangers to come to."""

    def __init__(self, security: Security, *, handshake_s: float = 5.0) -> None:
        (self.port,) = free_ports(1)
        self.owner = Recorder()
        self.file = cluster([self.port], clients=("client-0", "client-1"), security=security)
        self.transport = Transport(
            self.file, identity("broker-0"), self.owner, handshake_s=handshake_s
        )

    async def __aenter__(self) -> "Broker":
        await self.transport.listen(LOOPBACK, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close()

    async def refusal(self) -> tuple[object, str]:
        """Whom the one offence names, and in what words. Nobody got in for it."""
        await self.owner.heard("offence")
        assert self.owner.count("connected") == 0
        assert self.owner.messages == []
        (offence,) = self.owner.offences
        return offence


async def attempt(broker: Broker, file: Cluster, who: Identity) -> None:
    """Dial the broker with these credentials until it objects, and see that nobody got in."""
    owner = Recorder()
    transport = Transport(file, who, owner, back_off_s=(60.0, 60.0))
    transport.dial(BROKER)
    await broker.owner.heard("offence")
    await transport.close()
    assert owner.count("connected") == 0


@on_both_loops
def test_an_impostor_with_the_right_number_and_another_key_is_refused(loop: str) -> None:
    async def main() -> None:
        async with Broker("mac") as broker:
            forged = cluster([broker.port], security="mac", forged="client-0")
            await attempt(broker, forged, identity("client-0", forged=True))
            named, sentence = await broker.refusal()
            assert named is None
            assert "claims to be client-0" in sentence
            assert "cannot prove it" in sentence

    run(loop, main())


@on_both_loops
def test_a_certificate_that_is_not_pinned_is_refused(loop: str) -> None:
    async def main() -> None:
        async with Broker("tls") as broker:
            forged = cluster([broker.port], security="tls", forged="client-0")
            await attempt(broker, forged, identity("client-0", forged=True))
            named, sentence = await broker.refusal()
            assert named is None
            assert "certificate that the cluster file does not pin" in sentence

    run(loop, main())


@on_both_loops
def test_a_member_that_claims_the_number_of_another_is_named_by_its_certificate(loop: str) -> None:
    async def main() -> None:
        async with Broker("tls") as broker:
            # In the forged file, client-0 and client-1 have changed numbers.
            forged = cluster([broker.port], clients=("client-1", "client-0"), security="tls")
            await attempt(broker, forged, identity("client-1"))
            named, sentence = await broker.refusal()
            assert named == 1001
            assert "claims to be client-0 with the certificate of client-1" in sentence

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_dialler_refuses_a_listener_with_another_key(loop: str, security: Security) -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        file = cluster([port], security=security)
        forged = cluster([port], security=security, forged="broker-0")
        impostor = Transport(forged, identity("broker-0", forged=True), Recorder())
        # An impostor that knows its trade names the cluster file that the others have.
        impostor._hub.credentials._digest = cluster_digest(file)
        await impostor.listen(LOOPBACK, port)
        owner = Recorder()
        client = Transport(file, identity("client-0"), owner, back_off_s=(60.0, 60.0))
        client.dial(BROKER)
        await owner.heard("offence")
        ((named, sentence),) = owner.offences
        assert named is None
        assert "dialled as broker-0" in sentence
        assert owner.count("connected") == 0
        await client.close()
        await impostor.close()

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_stranger_whom_the_cluster_file_does_not_know_is_refused(
    loop: str, security: Security
) -> None:
    async def main() -> None:
        async with Broker(security) as broker:
            wider = cluster(
                [broker.port], clients=("client-0", "client-1", "stranger"), security=security
            )
            await attempt(broker, wider, identity("stranger"))
            named, sentence = await broker.refusal()
            assert named is None
            assert ("number 1002" if security == "mac" else "does not pin") in sentence

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_member_of_another_cluster_is_told_apart(loop: str, security: Security) -> None:
    async def main() -> None:
        async with Broker(security) as broker:
            other = cluster([broker.port], security=security, name="elsewhere")
            await attempt(broker, other, identity("client-0"))
            who = CLIENT if security == "tls" else None
            named, sentence = await broker.refusal()
            assert named == who
            assert "client-0" in sentence
            assert "another cluster file" in sentence

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_record_replayed_within_its_session_is_refused(loop: str, security: Security) -> None:
    async def main() -> None:
        pair = Pair(security, back_off_s=(60.0, 60.0))
        async with Proxy(pair.port) as proxy:
            pair.client = pair.new_client(proxy.port)
            async with pair:
                before = len(proxy.sent)
                pair.client.send(BROKER, [encode(publish(1, b"once"))])
                await pair.at_broker.until(lambda: pair.at_broker.messages)
                proxy.inject(bytes(proxy.sent[before:]))
                await pair.at_broker.heard("disconnected", CLIENT)
                assert [named for named, _ in pair.at_broker.offences] == [CLIENT]
                assert pair.at_broker.messages == [publish(1, b"once")]

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_session_replayed_on_a_new_connection_is_refused(loop: str, security: Security) -> None:
    async def main() -> None:
        pair = Pair(security)
        async with Proxy(pair.port) as proxy:
            pair.client = pair.new_client(proxy.port)
            async with pair:
                pair.client.send(BROKER, [encode(publish(1, b"once"))])
                await pair.at_broker.until(lambda: pair.at_broker.messages)
                reader, writer = await asyncio.open_connection(LOOPBACK, pair.port)
                writer.write(bytes(proxy.sent))
                await ended(reader)
                writer.close()
                assert [named for named, _ in pair.at_broker.offences] == [None]
                assert pair.at_broker.log[0] == ("connected", CLIENT)
                assert pair.at_broker.count("connected") == 1
                assert pair.at_broker.count("disconnected") == 0
                assert pair.at_broker.messages == [publish(1, b"once")]

    run(loop, main())


@on_both_loops
@with_both_securities
@pytest.mark.parametrize("position", [-1, -40, 6])
def test_a_bit_flipped_on_the_way_is_refused(loop: str, security: Security, position: int) -> None:
    armed: list[bool] = []

    def flip(chunk: bytes) -> Iterable[bytes]:
        altered = bytearray(chunk)
        if armed:
            altered[position] ^= 4
        yield bytes(altered)

    async def main() -> None:
        pair = Pair(security, back_off_s=(60.0, 60.0))
        async with Proxy(pair.port, meddle=flip) as proxy:
            pair.client = pair.new_client(proxy.port)
            async with pair:
                armed.append(True)
                pair.client.send(BROKER, [encode(publish(1, bytes(500)))])
                await pair.at_broker.heard("disconnected", CLIENT)
                assert [named for named, _ in pair.at_broker.offences] == [CLIENT]
                assert pair.at_broker.messages == []

    run(loop, main())


@on_both_loops
@with_both_securities
def test_what_came_before_an_offence_still_counts(loop: str, security: Security) -> None:
    async def main() -> None:
        async with Pair(security) as pair:
            good, malformed = encode(publish(1, b"good")), LENGTH.pack(3) + b"\xffno"
            pair.client.send(BROKER, [good, malformed, encode(publish(2, b"never read"))])
            await pair.at_broker.heard("offence", CLIENT)
            assert pair.at_broker.messages == [publish(1, b"good")]
            assert "unknown message kind 255" in pair.at_broker.offences[0][1]

    run(loop, main())


@on_both_loops
@with_both_securities
@pytest.mark.parametrize("length", [0, RECORD_BYTES_MAX + 1, 2**32 - 1])
def test_a_record_of_forbidden_length_is_refused_before_it_arrives(
    loop: str, security: Security, length: int
) -> None:
    async def main() -> None:
        async with Pair(security) as pair:
            pair.client._hub.up[BROKER]._write([LENGTH.pack(length)])
            await pair.at_broker.heard("disconnected", CLIENT)
            ((named, sentence),) = pair.at_broker.offences
            assert named == CLIENT
            assert f"record of {length % 2**31} bytes" in sentence

    run(loop, main())


@on_both_loops
@with_both_securities
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(range(1, 256)) * 40, b"\x16\x03\x01\xff\xff" * 99]
)
def test_garbage_in_place_of_a_handshake_is_refused(
    loop: str, security: Security, garbage: bytes
) -> None:
    async def main() -> None:
        async with Broker(security) as broker:
            reader, writer = await asyncio.open_connection(LOOPBACK, broker.port)
            writer.write(garbage)
            await ended(reader)
            writer.close()
            words = "does not speak Quorate" if security == "mac" else "fails the TLS handshake"
            named, sentence = await broker.refusal()
            assert named is None
            assert words in sentence

    run(loop, main())


@on_both_loops
def test_a_tls_client_without_a_certificate_is_refused(loop: str) -> None:
    async def main() -> None:
        async with Broker("tls") as broker:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(
                LOOPBACK, broker.port, ssl=context, server_hostname="anything"
            )
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await reader.readexactly(1)
            writer.close()
            named, sentence = await broker.refusal()
            assert named is None
            assert "peer did not return a certificate" in sentence

    run(loop, main())


@on_both_loops
@with_both_securities
@pytest.mark.parametrize("beginning", [b"", b"QRT", b"\x16\x03"])
def test_a_handshake_that_is_never_finished_ends_by_itself(
    loop: str, security: Security, beginning: bytes
) -> None:
    async def main() -> None:
        async with Broker(security, handshake_s=0.05) as broker:
            reader, writer = await asyncio.open_connection(LOOPBACK, broker.port)
            writer.write(beginning)
            await ended(reader)
            writer.close()
            named, sentence = await broker.refusal()
            assert named is None
            assert "did not finish its handshake" in sentence

    run(loop, main())


@on_both_loops
def test_a_dialled_member_that_stays_silent_is_dialled_again_and_not_blamed(loop: str) -> None:
    async def main() -> None:
        again = asyncio.Event()
        calls: list[asyncio.StreamWriter] = []

        async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            calls.append(writer)
            if len(calls) == 2:
                again.set()

        server = await asyncio.start_server(silent, LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        owner = Recorder()
        client = Transport(
            cluster([port]),
            identity("client-0"),
            owner,
            back_off_s=(0.001, 0.001),
            handshake_s=0.05,
        )
        client.dial(BROKER)
        await again.wait()
        assert "broker-0 did not finish its handshake" in client.why_down(BROKER)
        assert owner.log == []
        await client.close()
        server.close()
        for writer in calls:
            writer.close()

    run(loop, main())


@on_both_loops
@with_both_securities
def test_strangers_hold_a_bounded_number_of_places(loop: str, security: Security) -> None:
    async def main() -> None:
        async with Broker(security) as broker:
            idle = [
                await asyncio.open_connection(LOOPBACK, broker.port)
                for _ in range(STRANGERS_PER_HOST_MAX)
            ]
            reader, writer = await asyncio.open_connection(LOOPBACK, broker.port)
            await ended(reader)
            named, sentence = await broker.refusal()
            assert named is None
            assert f"{STRANGERS_PER_HOST_MAX} per host" in sentence
            # When one of them gives up its place, a member gets in.
            idle.pop()[1].close()
            owner = Recorder()
            client = Transport(broker.file, identity("client-0"), owner, back_off_s=(0.001, 0.01))
            client.dial(BROKER)
            await owner.heard("connected", BROKER)
            await client.close()
            for _, each in (*idle, (reader, writer)):
                each.close()

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_client_cannot_open_sessions_without_end(
    loop: str, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "SESSIONS_PER_MEMBER_MAX", 1)

    async def main() -> None:
        async with Pair(security) as pair:
            file = cluster([pair.port], security=security)
            second = Transport(file, identity("client-0"), Recorder(), back_off_s=(60.0, 60.0))
            second.dial(BROKER)
            await pair.at_broker.heard("offence", second.node)
            assert "more than 1 sessions" in pair.at_broker.offences[0][1]
            assert pair.at_broker.log[0] == ("connected", CLIENT)
            assert pair.at_broker.count("connected") == 1
            await second.close()

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_client_cannot_fill_memory_with_records_that_it_does_not_finish(
    loop: str, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for_one = RECORD_BYTES_MAX + 64
    monkeypatch.setattr(links, "UNFINISHED_BYTES_PER_MEMBER_MAX", room_for_one)

    async def main() -> None:
        async with Pair(security, back_off_s=(60.0, 60.0)) as pair:
            file = cluster([pair.port], security=security)
            owner = Recorder()
            second = Transport(file, identity("client-0"), owner, back_off_s=(60.0, 60.0))
            second.dial(BROKER)
            await owner.heard("connected", BROKER)
            for transport in (pair.client, second):
                transport._hub.up[BROKER]._write([LENGTH.pack(RECORD_BYTES_MAX)])
            await pair.at_broker.heard("disconnected")
            ((named, sentence),) = pair.at_broker.offences
            assert named in {CLIENT, second.node}
            assert "in all sessions together" in sentence
            await second.close()

    run(loop, main())


@on_both_loops
@with_both_securities
def test_a_long_record_of_small_frames_is_refused_before_they_are_looked_at(
    loop: str, security: Security
) -> None:
    """Two million of them would fit into one, and take half a gigabyte."""

    async def main() -> None:
        async with Pair(security, back_off_s=(60.0, 60.0)) as pair:
            frame = encode(Recall(1))
            frames = [frame] * (RECORD_BYTES_USUAL // len(frame) + 1)
            link = pair.client._hub.up[BROKER]
            link._write(link._records.seal(frames, sum(map(len, frames))))
            await pair.at_broker.heard("disconnected", CLIENT)
            ((named, sentence),) = pair.at_broker.offences
            assert named == CLIENT
            assert "is not one frame" in sentence
            assert pair.at_broker.messages == []

    run(loop, main())


@on_both_loops
def test_a_member_that_asks_for_new_keys_and_reads_no_answer_is_refused(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS answers such a request at once, and nobody else sees it."""
    monkeypatch.setattr(links, "UNREAD_BYTES_MAX", 1 << 20)
    decrypt = TlsSession.read_into

    def answering(self: TlsSession, space: memoryview) -> int:
        count = decrypt(self, space)
        if count and is_answering:
            self.write(bytes(1 << 16))
        return count

    monkeypatch.setattr(TlsSession, "read_into", answering)
    is_answering = False

    async def main() -> None:
        nonlocal is_answering
        async with Pair("tls", back_off_s=(60.0, 60.0)) as pair:
            pair.client.pause_reading(BROKER)
            is_answering = True

            def asks_again() -> object:
                pair.client.send(BROKER, [encode(publish(1, b"x"))])
                return pair.at_broker.offences

            await until(asks_again)
            ((peer, sentence),) = pair.at_broker.offences
            assert peer == CLIENT
            assert sentence.startswith("asks for new keys and does not read the answers")

    run(loop, main())


def test_a_replica_has_no_sessions() -> None:
    file = cluster(free_ports(2))
    hello = Credentials(file, identity("broker-1"), session=7).hello()
    with pytest.raises(RemoteProtocolError, match="broker-1 in a session of its own"):
        Credentials(file, identity("broker-0")).check(memoryview(hello.pack()), dialled=None)


def test_programs_of_two_versions_in_a_row_meet_and_older_ones_are_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A made-up next version speaks this one as well."""
    file = cluster(free_ports(2))
    ours, theirs = Credentials(file, identity("broker-0")), Credentials(file, identity("broker-1"))
    before = theirs.hello()
    monkeypatch.setattr(handshake, "VERSION", handshake.VERSION + 1)
    after = ours.hello()
    monkeypatch.undo()
    assert theirs.check(memoryview(after.pack()), dialled=None).version == handshake.VERSION + 1
    monkeypatch.setattr(handshake, "OLDEST", before.version)
    assert ours.check(memoryview(before.pack()), dialled=None).version == before.version
    monkeypatch.setattr(handshake, "OLDEST", before.version + 1)
    with pytest.raises(RemoteProtocolError, match="allowed are 3 and later: update that program"):
        ours.check(memoryview(before.pack()), dialled=None)


async def shake_hands(
    file: Cluster, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, TaggedRecords]:
    """The dialler's part of the `mac` handshake by hand, up to its confirmation."""
    credentials = Credentials(file, identity("client-0"))
    ours = credentials.hello()
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(ours.pack())
    theirs = credentials.check(memoryview(await reader.readexactly(HELLO_BYTES)), dialled=BROKER)
    return reader, writer, credentials.session(ours, theirs, dialled=True)


@on_both_loops
def test_nothing_counts_before_the_peer_has_confirmed_its_key(loop: str) -> None:
    async def main() -> None:
        async with Broker("mac") as broker:
            reader, writer, records = await shake_hands(broker.file, broker.port)
            frame = encode(StatusQuery(1))
            writer.writelines(records.seal([frame], len(frame)))
            await ended(reader)
            writer.close()
            named, sentence = await broker.refusal()
            assert named is None
            assert "client-0" in sentence
            assert "does not confirm it first" in sentence

    run(loop, main())


async def half_way(
    broker: Broker, security: Security
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, list[bytes]]:
    """A handshake of client-0 before its last step, and what that is."""
    if security == "mac":
        reader, writer, records = await shake_hands(broker.file, broker.port)
        return reader, writer, records.seal((), 0)
    context = Certificates(broker.file, identity("client-0"))._dialling
    reader, writer = await asyncio.open_connection(
        LOOPBACK, broker.port, ssl=context, server_hostname="anything"
    )
    for _ in iter(lambda: any(link.peer for link in broker.transport._hub.all), True):
        await asyncio.sleep(0)
    return reader, writer, [Credentials(broker.file, identity("client-0")).hello().pack()]


@on_both_loops
@with_both_securities
@pytest.mark.parametrize("change", ["has other keys", "is gone"])
def test_a_handshake_begun_with_keys_that_are_withdrawn_meanwhile_ends(
    loop: str, security: Security, change: str
) -> None:
    """Whoever stole a key could else begin one now and then, and outlive its replacement."""

    async def main() -> None:
        async with Broker(security) as broker:
            reader, writer, last_step = await half_way(broker, security)
            later = (
                replace(broker.file, clients=broker.file.clients[1:])
                if change == "is gone"
                else cluster(
                    [broker.port],
                    clients=("client-0", "client-1"),
                    security=security,
                    forged="client-0",
                )
            )
            broker.transport.adopt(later)
            writer.writelines(last_step)
            with suppress(ssl.SSLError):
                await ended(reader)
            writer.close()
            assert broker.owner.log == []
            assert not broker.transport._hub.up

    run(loop, main())


@on_both_loops
def test_a_hello_reflected_to_its_maker_is_refused(loop: str) -> None:
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1000):
            writer.write(chunk)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(mirror, LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        owner = Recorder()
        client = Transport(cluster([port]), identity("client-0"), owner)
        client.dial(BROKER)
        await owner.heard("offence", None)
        assert "number 1000, which is no other member" in owner.offences[0][1]
        await client.close()
        server.close()

    run(loop, main())
