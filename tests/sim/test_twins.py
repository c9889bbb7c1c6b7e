"""Two machines with one identity, and a split that says who talks to which."""

from operator import methodcaller
from random import Random

import pytest

from quorate.core.errors import LocalProtocolError
from quorate.core.ids import NodeId
from quorate.core.messages import Message, StatusQuery
from quorate.sim.links import Constant, Mode, Network
from quorate.sim.throughput import Flooder
from quorate.sim.twins import EVERYBODY_HAS_BOTH, Side, Split
from quorate.sim.world import World

TWIN = 0


class Hearer(Flooder):
    """Says nothing by itself, and remembers from whom it heard what."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[NodeId, int]] = []

    def step(self, sender: NodeId, message: Message) -> None:
        assert isinstance(message, StatusQuery)
        self.heard.append((sender, message.number))


def twin_world(mode: Mode, split: Split) -> World:
    """Node 0 is a pair of twins; 1 to 4 are peers of it and of nobody else."""
    world = World(1, network=Network(latency=Constant(1_000), mode=mode))
    world.add(TWIN, Hearer)
    for peer in (1, 2, 3, 4):
        world.add(peer, Hearer, peers=[TWIN])
    world.add_twin(TWIN, Hearer, split=split)
    world.run(until_us=1_000_000)
    return world


def heard(world: World, node: int, side: Side = Side.A) -> list[tuple[NodeId, int]]:
    return sorted(world.machine(node, side).heard)


SPLIT = Split({1: Side.A, 2: Side.A, 3: Side.BOTH, 4: Side.B})


@pytest.mark.parametrize("mode", Mode)
def test_each_peer_reaches_the_twin_on_its_side_or_both(mode: Mode) -> None:
    world = twin_world(mode, SPLIT)
    for peer in (1, 2, 3, 4):
        world.call(world.now_us, peer, methodcaller("start", peer))
    world.run()
    assert heard(world, TWIN, Side.A) == [(1, 1), (2, 2), (3, 3)]
    assert heard(world, TWIN, Side.B) == [(3, 3), (4, 4)]


@pytest.mark.parametrize("mode", Mode)
def test_both_twins_speak_under_one_number_to_the_peers_on_their_side(mode: Mode) -> None:
    world = twin_world(mode, SPLIT)
    world.call(world.now_us, TWIN, lambda machine: machine.start(10), side=Side.A)
    world.call(world.now_us, TWIN, lambda machine: machine.start(20), side=Side.B)
    world.run()
    assert [heard(world, peer) for peer in (1, 2, 3, 4)] == [
        [(TWIN, 10)],
        [(TWIN, 10)],
        [(TWIN, 10), (TWIN, 20)],
        [(TWIN, 20)],
    ]


@pytest.mark.parametrize("mode", Mode)
def test_a_split_can_change_while_the_world_runs(mode: Mode) -> None:
    world = twin_world(mode, SPLIT)
    world.split(TWIN, Split({4: Side.A, 1: Side.B, 2: Side.B, 3: Side.B}))
    world.run(until_us=2_000_000)
    world.call(world.now_us, 1, lambda machine: machine.start(7))
    world.run()
    assert heard(world, TWIN, Side.A) == []
    assert heard(world, TWIN, Side.B) == [(1, 7)]


@pytest.mark.parametrize("mode", Mode)
def test_twins_crash_together_and_come_back_together(mode: Mode) -> None:
    world = twin_world(mode, EVERYBODY_HAS_BOTH)
    world.crash(TWIN)
    assert [world.machine(TWIN, side) for side in (Side.A, Side.B)] == [None, None]
    world.run(until_us=2_000_000)
    world.restart(TWIN)
    world.run(until_us=3_000_000)
    world.call(world.now_us, 2, lambda machine: machine.start(5))
    world.run()
    assert heard(world, TWIN, Side.A) == heard(world, TWIN, Side.B) == [(2, 5)]


def test_twins_have_disks_of_their_own() -> None:
    world = twin_world(Mode.DATAGRAM, SPLIT)
    assert world.disk(TWIN, Side.A) is not world.disk(TWIN, Side.B)


def test_there_are_no_triplets() -> None:
    world = twin_world(Mode.DATAGRAM, SPLIT)
    with pytest.raises(LocalProtocolError, match="node 0 has a twin already"):
        world.add_twin(TWIN, Hearer)


def test_a_split_by_lot_uses_every_side_and_follows_its_seed() -> None:
    split = Split.by_lot(Random(3), range(30))
    assert {*split.sides.values()} == {Side.A, Side.B, Side.BOTH}
    assert split == Split.by_lot(Random(3), range(30))
    assert all(split.joins(peer, Side.A) or split.joins(peer, Side.B) for peer in range(30))
