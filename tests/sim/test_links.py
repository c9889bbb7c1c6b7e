"""What the network does to messages: delay, loss, order, partitions, and streams."""

from collections.abc import Iterator
from itertools import groupby, islice
from random import Random
from statistics import fmean, median

import msgspec
import pytest

from quorate.core.errors import ConfigError
from quorate.core.ids import NodeId
from quorate.core.messages import Message, StatusQuery
from quorate.core.ordering import Append
from quorate.crypto.digests import digest
from quorate.protocol.machine import Ready
from quorate.sim.links import (
    BurstLoss,
    Constant,
    Exponential,
    Fabric,
    IndependentLoss,
    Latency,
    LogNormal,
    Loss,
    Mode,
    Network,
    Uniform,
)
from quorate.sim.world import Halt, World


class Listener:
    """Writes down what it hears, with the time."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events: list[tuple[int, str | int, NodeId]] = []
        self.ready = Ready()

    def step(self, sender: NodeId, message: Message) -> None:
        assert isinstance(message, StatusQuery)
        self.events.append((self.now_us, message.number, sender))

    def tick(self, now_us: int) -> None:
        self.now_us = now_us

    def connected(self, peer: NodeId) -> None:
        self.events.append((self.now_us, "up", peer))

    def disconnected(self, peer: NodeId) -> None:
        self.events.append((self.now_us, "down", peer))

    def take(self) -> Ready:
        ready, self.ready = self.ready, Ready()
        return ready

    def send(self, target: NodeId, number: int) -> None:
        self.ready.send.append((target, StatusQuery(number)))


def world_of(network: Network, *, nodes: int = 2, seed: int = 1) -> World:
    """A world in which all links that come up have come up."""
    world = World(seed, network=network)
    for node in range(nodes):
        world.add(node, Listener)
    world.run(until_us=100_000)
    return world


def send(world: World, at_us: int, number: int, *, sender: NodeId = 1, target: NodeId = 0) -> None:
    world.call(at_us, sender, lambda machine: machine.send(target, number))


def numbers(world: World, node: NodeId = 0) -> list[int]:
    return [what for _, what, _ in world.machine(node).events if isinstance(what, int)]


def downs(world: World, node: NodeId) -> list[tuple[str, NodeId]]:
    """The changes of its links after the first one."""
    links = [(what, who) for _, what, who in world.machine(node).events if isinstance(what, str)]
    return links[1:]


# Latency


@pytest.mark.parametrize(
    ("latency", "mean_us", "median_us", "least_us"),
    [
        (Constant(700), 700, 700, 700),
        (Uniform(1_000, 3_000), 2_000, 2_000, 1_000),
        (Exponential(5_000, 2_000), 7_000, 5_000 + 2_000 * 0.6931, 5_000),
        (LogNormal(10_000, 0.5), 10_000 * 1.1331, 10_000, 1),
    ],
)
def test_latencies_have_the_distribution_they_name(
    latency: Latency, mean_us: float, median_us: float, least_us: int
) -> None:
    drawn = list(islice(latency.samples(Random(1)), 100_000))
    assert fmean(drawn) == pytest.approx(mean_us, rel=0.01)
    assert median(drawn) == pytest.approx(median_us, rel=0.01)
    assert min(drawn) >= least_us


# Loss


def losses_of(loss: Loss, *, messages: int, seed: int) -> Iterator[bool]:
    channel = loss.channel(Random(seed))
    return (channel.loses() for _ in range(messages))


def measured(losses: Iterator[bool]) -> tuple[float, float]:
    """The share of lost messages, and the mean length of a burst."""
    runs = [(lost, sum(1 for _ in run)) for lost, run in groupby(losses)]
    bursts = [length for lost, length in runs if lost]
    return sum(bursts) / sum(length for _, length in runs), fmean(bursts)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rate", "burst"), [(0.05, 2.0), (0.05, 10.0), (0.2, 3.0), (0.5, 1.0)])
def test_gilbert_elliott_loses_at_its_rate_in_bursts_of_its_mean_length(
    rate: float, burst: float, seed: int
) -> None:
    found_rate, found_burst = measured(
        losses_of(BurstLoss(rate, burst), messages=300_000, seed=seed)
    )
    assert found_rate == pytest.approx(rate, rel=0.05)
    assert found_burst == pytest.approx(burst, rel=0.05)


def test_the_chain_has_the_probabilities_of_the_thesis() -> None:
    # Section 5.1: Q = 1 / ABL and P = PLR * Q / (1 - PLR).
    loss = BurstLoss(rate=0.05, burst_mean=4.0)
    assert loss.bad_to_good == 0.25
    assert loss.good_to_bad == pytest.approx(0.05 * 0.25 / 0.95)


def test_a_chain_whose_bursts_are_those_of_chance_equals_independent_loss() -> None:
    rate = 0.3
    burst = 1 / (1 - rate)
    independent = measured(losses_of(IndependentLoss(rate), messages=300_000, seed=1))
    assert independent == pytest.approx((rate, burst), rel=0.02)
    assert BurstLoss(rate, burst).good_to_bad == pytest.approx(rate)


def test_a_channel_begins_in_equilibrium() -> None:
    random = Random(1)
    first = [BurstLoss(0.2, 10.0).channel(random).loses() for _ in range(20_000)]
    assert fmean(first) == pytest.approx(0.2, rel=0.05)


def test_a_rate_of_zero_loses_nothing() -> None:
    assert not any(losses_of(BurstLoss(0.0, 2.0), messages=1_000, seed=1))


def test_impossible_losses_are_refused() -> None:
    with pytest.raises(ConfigError, match="a loss rate of 1;"):
        IndependentLoss(1.0)
    with pytest.raises(ConfigError, match=r"loses 0\.9 of its messages in bursts of mean length 2"):
        BurstLoss(0.9, 2.0)
    with pytest.raises(ConfigError, match="a duplication of -1;"):
        Network(duplication=-1.0)


def test_each_link_has_bursts_of_its_own() -> None:
    world = world_of(Network(latency=Constant(100), loss=BurstLoss(0.3, 50.0)), nodes=3)
    for number in range(2_000):
        for sender in (1, 2):
            send(world, 100_000 + number * 10, number, sender=sender)
    world.run()
    arrived = {(who, what) for _, what, who in world.machine(0).events if isinstance(what, int)}
    only_one = sum(((1, n) in arrived) != ((2, n) in arrived) for n in range(2_000))
    # Independent links differ on 2 * 0.3 * 0.7 of the messages; one shared chain on none.
    assert only_one / 2_000 == pytest.approx(0.42, abs=0.15)
    assert world.traffic["lost"] == 4_000 - len(arrived)


def test_messages_are_doubled_at_the_rate_asked_for() -> None:
    world = world_of(Network(latency=Uniform(100, 200), duplication=0.25))
    for number in range(4_000):
        send(world, 100_000 + number, number)
    world.run()
    assert set(numbers(world)) == set(range(4_000))
    assert world.traffic["doubled"] == len(numbers(world)) - 4_000
    assert world.traffic["doubled"] / 4_000 == pytest.approx(0.25, rel=0.1)


def test_only_payloads_that_no_tag_covers_are_altered_and_at_the_rate_asked_for() -> None:
    fabric = Fabric(Network(alteration=0.25), Random)
    tagged = Append(7, 0, 1, [b"one", b"two"])
    proven = msgspec.structs.replace(tagged, digests=[digest(b"one"), digest(b"two")])
    assert all(fabric.carried(tagged) is tagged for _ in range(1_000))

    arrived = [fabric.carried(proven) for _ in range(4_000)]
    altered = [message for message in arrived if message is not proven]

    assert len(altered) / 4_000 == pytest.approx(0.25, rel=0.1)
    for message in altered:
        assert isinstance(message, Append)
        assert message.digests == proven.digests
        assert message.payloads != proven.payloads


def test_an_empty_payload_can_be_altered_too() -> None:
    fabric = Fabric(Network(alteration=0.25), Random)
    empty = Append(7, 0, 1, [b""], digests=[digest(b"")])
    altered = msgspec.structs.replace(empty, payloads=[b"\1"])
    arrived = [fabric.carried(empty) for _ in range(100)]
    assert altered in arrived
    assert all(message in (empty, altered) for message in arrived)


def test_a_spell_of_loss_ends() -> None:
    world = world_of(Network(latency=Constant(100)))
    world.disturb(IndependentLoss(0.999), from_us=150_000, until_us=160_000)
    for number, at_us in enumerate((149_999, 150_001, 155_000, 160_001)):
        send(world, at_us, number)
    world.run()
    assert numbers(world) == [0, 3]
    assert world.faults == {"loss": 1}


# Order


def test_datagrams_overtake_each_other() -> None:
    world = world_of(Network(latency=Uniform(100, 5_000)))
    for number in range(200):
        send(world, 100_000 + number * 10, number)
    world.run()
    arrived = numbers(world)
    assert arrived != list(range(200))
    assert sorted(arrived) == list(range(200))


# Obstacles


def test_a_partition_separates_its_groups_and_heals() -> None:
    world = world_of(Network(latency=Constant(100)), nodes=4)
    world.partition([[0, 1], [2]], from_us=150_000, until_us=200_000)
    for number, at_us in ((1, 149_000), (2, 151_000), (3, 201_000)):
        for sender in (1, 2, 3):
            send(world, at_us, 10 * sender + number, sender=sender)
    world.run()
    # Node 3 is not named: it is in a group of its own.
    assert numbers(world) == [11, 21, 31, 12, 13, 23, 33]
    assert world.faults == {"partition": 1}


def test_partitions_that_overlap_heal_one_by_one() -> None:
    world = world_of(Network(latency=Constant(100)), nodes=3)
    world.partition([[1]], from_us=150_000, until_us=170_000)
    world.partition([[2]], from_us=160_000, until_us=180_000)
    for at_us in (155_000, 165_000, 175_000, 185_000):
        for sender in (1, 2):
            send(world, at_us, at_us + sender, sender=sender)
    world.run()
    assert numbers(world) == [155_002, 175_001, 185_001, 185_002]


def test_a_cut_stops_one_direction_only() -> None:
    world = world_of(Network(latency=Constant(100)))
    world.cut(1, 0, until_us=200_000)
    send(world, 150_000, 1, sender=1, target=0)
    send(world, 150_000, 2, sender=0, target=1)
    send(world, 200_001, 3, sender=1, target=0)
    world.run()
    assert numbers(world, 0) == [3]
    assert numbers(world, 1) == [2]


def test_healing_ends_every_obstacle_at_once() -> None:
    world = world_of(Network(latency=Constant(100)))
    world.partition([[0], [1]])
    world.cut(1, 0)
    world.disturb(IndependentLoss(0.999))
    send(world, 150_000, 1)
    world.inject(160_000, world.heal)
    send(world, 170_000, 2)
    world.run()
    assert numbers(world) == [2]


def test_a_node_cannot_be_in_two_groups() -> None:
    world = world_of(Network())
    with pytest.raises(ConfigError, match="in two groups"):
        world.partition([[0, 1], [1]])


# Streams

STREAM = Network(latency=Uniform(100, 5_000), mode=Mode.STREAM, break_after_us=300_000)


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_keeps_order_and_a_loss_shows_as_delay(seed: int) -> None:
    lossy = Network(latency=Uniform(100, 5_000), mode=Mode.STREAM, loss=BurstLoss(0.2, 3.0))
    arrived_us = {}
    for network in (STREAM, lossy):
        world = world_of(network, seed=seed)
        for number in range(300):
            send(world, 100_000 + number * 50, number)
        world.run()
        assert numbers(world) == list(range(300))
        arrived_us[network] = world.machine(0).events[-1][0]
    assert arrived_us[lossy] >= arrived_us[STREAM] + lossy.retransmit_after_us


def test_a_short_partition_only_delays_a_stream() -> None:
    world = world_of(STREAM)
    world.partition([[0]], from_us=150_000, until_us=400_000)
    for number in range(200):
        send(world, 149_000 + number * 1_500, number)
    world.run()
    assert numbers(world) == list(range(200))
    assert downs(world, 0) == downs(world, 1) == []
    while_cut = [at for at, _, _ in world.machine(0).events if 150_000 < at < 400_000]
    assert while_cut == []


@pytest.mark.parametrize("obstacle", ["partition", "cut"])
def test_a_long_partition_breaks_a_stream_and_both_ends_are_told(obstacle: str) -> None:
    world = world_of(STREAM)
    if obstacle == "partition":
        world.partition([[0]], from_us=150_000, until_us=900_000)
    else:
        # Nothing gets from 0 to 1, so no acknowledgement does either.
        world.cut(0, 1, from_us=150_000, until_us=900_000)
    for number, at_us in enumerate((120_000, 149_999, 200_000, 500_000, 1_000_000)):
        send(world, at_us, number)
    assert world.run() is Halt.IDLE
    # What was in flight is gone, and so is what was sent without a connection.
    assert numbers(world) == [0, 4]
    assert world.traffic == {"without a connection": 1}
    assert downs(world, 0) == [("down", 1), ("up", 1)]
    assert downs(world, 1) == [("down", 0), ("up", 0)]
    told = [at_us for at_us, what, _ in world.machine(0).events if what == "down"]
    assert told == [450_000]


def test_the_peers_of_a_crashed_node_see_their_streams_break_and_come_back() -> None:
    world = world_of(STREAM, nodes=3)
    send(world, 199_999, 1)
    world.inject(200_000, lambda: world.crash(0))
    send(world, 300_000, 2)
    world.inject(400_000, lambda: world.restart(0))
    send(world, 500_000, 3)
    world.run()
    assert numbers(world) == [3]
    for peer in (1, 2):
        assert downs(world, peer)[-2:] == [("down", 0), ("up", 0)]
    fresh = [(what, who) for _, what, who in world.machine(0).events if what == "up"]
    assert sorted(fresh) == [("up", 1), ("up", 2)]


def test_a_stream_to_a_node_paused_for_too_long_breaks_rather_than_lose_a_message() -> None:
    world = World(1, network=STREAM, paused_messages_max=3)
    for node in (0, 1):
        world.add(node, Listener)
    world.run(until_us=100_000)
    world.inject(150_000, lambda: world.pause(0))
    for number in range(6):
        send(world, 200_000 + number * 10_000, number)
    world.inject(500_000, lambda: world.resume(0))
    send(world, 600_000, 9)
    world.run()
    assert numbers(world) == [0, 1, 2, 9]
    assert downs(world, 0) == [("down", 1), ("up", 1)]
    assert downs(world, 1) == [("down", 0), ("up", 0)]


def test_only_nodes_that_are_peers_have_a_stream() -> None:
    world = world_of(STREAM)
    world.add(2, Listener, peers=[1])
    world.run(until_us=200_000)
    send(world, 200_000, 1, sender=2, target=0)
    send(world, 200_000, 2, sender=2, target=1)
    world.run()
    assert numbers(world, 0) == []
    assert numbers(world, 1) == [2]
