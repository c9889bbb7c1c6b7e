"""The world drives machines as their interface promises, and one seed is one run."""

import os
import subprocess
import sys
from collections import Counter
from functools import partial
from operator import methodcaller

import pytest

from quorate.core.errors import LocalProtocolError
from quorate.core.ids import Lane, NodeId, Stream
from quorate.core.messages import Message, StatusQuery
from quorate.protocol.machine import Outcome, Ready, Report, Skipped
from quorate.protocol.ordering.records import Snapshot
from quorate.sim.disks import SimDisk
from quorate.sim.faults import FaultPlan
from quorate.sim.links import BurstLoss, Constant, Mode, Network, Uniform
from quorate.sim.throughput import flooding_world, measure
from quorate.sim.world import Halt, World

ONE_MS = Network(latency=Constant(1_000))
OUTCOME = Skipped(Stream(1000, 7, Lane.EVENTS), 0, 1, "a test says so")

SMALL_RUN = """
from operator import methodcaller
from quorate.sim.faults import FaultPlan
from quorate.sim.links import Mode, Network
from quorate.sim.throughput import flooding_world
world = flooding_world(1, nodes=20, peers=6, network=Network(mode=Mode.STREAM, duplication=0.1))
FaultPlan(group=range(20), faulty_max=5, calm_after_us=500_000).apply(world)
for number in range(1, 20):
    world.call(number * 25_000, number, methodcaller("start", number))
world.run(until_us=600_000)
print(world.trace.digest())
"""


class Listener:
    """Writes down what it is told, and wants what a test puts into `ready`."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.records = [] if disk is None else disk.read()
        self.now_us = -1
        self.ticks: list[int] = []
        self.heard: list[tuple[int, NodeId, int]] = []
        self.links: list[tuple[str, NodeId]] = []
        self.takes = 0
        self.ready = Ready()

    def step(self, sender: NodeId, message: Message) -> None:
        assert self.now_us >= 0, "stepped before the first tick"
        assert isinstance(message, StatusQuery)
        self.heard.append((self.now_us, sender, message.number))

    def tick(self, now_us: int) -> None:
        self.now_us = now_us
        self.ticks.append(now_us)

    def connected(self, peer: NodeId) -> None:
        self.links.append(("up", peer))

    def disconnected(self, peer: NodeId) -> None:
        self.links.append(("down", peer))

    def take(self) -> Ready:
        self.takes += 1
        ready, self.ready = self.ready, Ready()
        return ready

    def want(self, target: NodeId, *numbers: int) -> None:
        self.ready.send += [(target, StatusQuery(number)) for number in numbers]

    @property
    def numbers(self) -> list[int]:
        return [number for _, _, number in self.heard]


class Recorder:
    """Keeps outcomes in the order in which they happened, and counts reports.

    Give `on_outcome` and `on_report` to the world.
    """

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, NodeId, Outcome]] = []
        # By who reports, about whom, and what kind.
        self.reports: Counter[tuple[NodeId, NodeId, str]] = Counter()

    def on_outcome(self, node: NodeId, outcome: Outcome, now_us: int) -> None:
        self.outcomes.append((now_us, node, outcome))

    def on_report(self, node: NodeId, report: Report, now_us: int) -> None:
        self.reports[node, report.node, report.kind] += 1

    def of(self, node: NodeId) -> list[tuple[int, Outcome]]:
        """One node's outcomes with their times."""
        return [(at_us, outcome) for at_us, who, outcome in self.outcomes if who == node]


def listeners(
    network: Network = ONE_MS, *, nodes: int = 2, seed: int = 1, sync_us: int = 500
) -> tuple[World, Recorder]:
    recorder = Recorder()
    world = World(
        seed,
        network=network,
        sync=Constant(sync_us),
        on_outcome=recorder.on_outcome,
        on_report=recorder.on_report,
        paused_messages_max=3,
    )
    for node in range(nodes):
        disk = SimDisk()
        world.add(node, partial(Listener, disk), disk=disk)
    world.run(until_us=0)
    return world, recorder


def troubled_run(seed: int, *, mode: Mode = Mode.DATAGRAM, look_every_us: int = 1_000_000) -> str:
    network = Network(
        latency=Uniform(100, 9_000), mode=mode, loss=BurstLoss(0.1, 2.0), duplication=0.05
    )
    world = flooding_world(seed, nodes=30, peers=6, network=network)
    FaultPlan(group=range(30), faulty_max=10, calm_after_us=900_000).apply(world)
    for number in range(1, 40):
        world.call(number * 25_000, number % 30, methodcaller("start", number))
    for until_us in range(0, 1_000_000, look_every_us):
        world.run(until_us=until_us)
        world.trace.digest()
    world.run(until_us=1_000_000)
    return world.trace.digest()


# One seed is one run


@pytest.mark.parametrize("mode", Mode)
def test_the_same_seed_gives_the_same_trace_and_another_seed_another_one(mode: Mode) -> None:
    digests = [troubled_run(seed, mode=mode) for seed in (1, 2, 3)]
    assert digests == [troubled_run(seed, mode=mode) for seed in (1, 2, 3)]
    assert len(set(digests)) == 3


def test_a_digest_does_not_depend_on_when_it_is_asked_for() -> None:
    assert troubled_run(4, look_every_us=10_000) == troubled_run(4)


def test_a_run_is_the_same_in_another_process() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", SMALL_RUN]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 32


def test_one_more_draw_for_one_purpose_changes_no_other() -> None:
    one, other = World(5, network=ONE_MS), World(5, network=ONE_MS)
    one.random("faults").random()
    assert one.random("loss").random() == other.random("loss").random()
    assert one.random("loss").random() != one.random("disk").random()


def test_ten_thousand_nodes_fit_into_one_world_and_all_hear_a_rumour() -> None:
    world = flooding_world(6, nodes=10_000, peers=8)
    world.call(0, 77, lambda flooder: flooder.start(1))
    assert world.run() is Halt.IDLE
    assert all(world.machine(node).newest == 1 for node in range(10_000))


def test_the_benchmark_counts_deliveries() -> None:
    assert measure(nodes=50, seconds=0.0) > 0


# Turns


def test_messages_of_one_instant_are_stepped_in_one_turn() -> None:
    world, _ = listeners(nodes=4)
    takes = world.machine(0).takes
    for sender in (1, 2, 3):
        world.call(100, sender, lambda machine: machine.want(0, 5, 6))
    world.run()
    assert world.machine(0).heard == [(1_100, s, n) for s in (1, 2, 3) for n in (5, 6)]
    assert world.machine(0).takes == takes + 1


def test_a_machine_is_ticked_before_its_first_step_and_once_per_instant() -> None:
    world, _ = listeners()
    for at_us in (100, 100, 350):
        world.call(at_us, 1, lambda machine: machine.want(0, 1, 2))
    world.run()
    assert world.machine(0).ticks == [0, 1_100, 1_350]


def test_a_timer_ticks_the_machine_at_its_time() -> None:
    world, _ = listeners()
    world.call(100, 0, lambda machine: machine.ready.timers.extend((700, 300, 300)))
    world.run()
    assert world.machine(0).ticks == [0, 100, 300, 700]


def test_a_timer_for_the_past_ticks_again_soon_and_does_not_stop_time() -> None:
    world, _ = listeners()
    world.call(100, 0, lambda machine: machine.ready.timers.append(50))
    assert world.run() is Halt.IDLE
    assert world.machine(0).ticks == [0, 100, 101]


def test_a_message_to_oneself_arrives_at_once_whatever_the_network_does() -> None:
    world, _ = listeners(Network(latency=Constant(1_000), loss=BurstLoss(0.9, 20.0)))
    world.call(100, 0, lambda machine: machine.want(0, 1))
    world.run()
    assert world.machine(0).heard == [(100, 0, 1)]
    assert world.machine(0).ticks == [0, 100]


def test_datagram_nodes_are_told_of_their_links_once() -> None:
    world, _ = listeners(nodes=3)
    assert world.machine(0).links == [("up", 1), ("up", 2)]
    assert world.machine(2).links == [("up", 0), ("up", 1)]


# Running


def test_a_run_ends_at_its_time_and_goes_on_from_there() -> None:
    world = World(1, network=ONE_MS)
    seen: list[int] = []
    world.inject(50_000, lambda: seen.append(world.now_us))
    world.inject(100_000, lambda: seen.append(world.now_us))
    assert world.run(until_us=50_000) is Halt.TIME
    assert (seen, world.now_us) == ([50_000], 50_000)
    world.inject(60_000, lambda: seen.append(world.now_us))
    assert world.run() is Halt.IDLE
    assert seen == [50_000, 60_000, 100_000]


def test_time_never_goes_back_however_short_the_latency() -> None:
    world, _ = listeners(Network(latency=Uniform(0, 30)))
    for at_us in (100, 120, 140, 400):
        world.call(at_us, 1, lambda machine: machine.want(0, 1))
        world.call(at_us, 0, lambda machine: machine.want(1, 2))
    world.run()
    for node in (0, 1):
        ticks = world.machine(node).ticks
        assert ticks == sorted(set(ticks))
        assert len(world.machine(node).heard) == 4


def test_outcomes_and_reports_reach_the_recorder() -> None:
    world, recorder = listeners()
    world.call(100, 1, lambda machine: machine.ready.deliver.append(OUTCOME))
    world.call(200, 1, lambda machine: machine.ready.report(0, "equivocation", "two digests"))
    world.run()
    assert recorder.outcomes == [(100, 1, OUTCOME)]
    assert recorder.of(1) == [(100, OUTCOME)]
    assert recorder.of(0) == []
    assert recorder.reports == {(1, 0, "equivocation"): 1}


def test_an_error_in_a_machine_names_the_seed_and_the_time() -> None:
    world, _ = listeners(seed=42)
    world.call(123, 0, lambda machine: machine.no_such_thing())
    with pytest.raises(AttributeError) as caught:
        world.run()
    assert caught.value.__notes__ == ["in the simulated world of seed 42 at 123 us"]


def test_a_message_to_a_node_that_does_not_exist_is_counted_and_dropped() -> None:
    world, _ = listeners()
    world.call(100, 0, lambda machine: machine.want(99, 1))
    assert world.run() is Halt.IDLE
    assert world.traffic == {"to nobody": 1}


def test_a_node_is_added_once_and_names_only_peers_that_are_there() -> None:
    world, _ = listeners()
    with pytest.raises(LocalProtocolError, match="node 1 is in the world already"):
        world.add(1, Listener)
    with pytest.raises(LocalProtocolError, match="names peer 8, which is not in the world yet"):
        world.add(7, Listener, peers=[0, 8])
    with pytest.raises(LocalProtocolError, match="node 9 is not in this world"):
        world.crash(9)


# Disks


def write_and_send(machine: Listener, value: bytes, number: int) -> None:
    machine.ready.persist.append(Snapshot(0, 1, value))
    machine.ready.sync = True
    machine.ready.deliver.append(OUTCOME)
    machine.want(1, number)


def test_nothing_leaves_before_its_records_are_synced() -> None:
    world, recorder = listeners(sync_us=500)
    world.call(100, 0, lambda machine: write_and_send(machine, b"a", 1))
    world.run(until_us=599)
    assert (world.disk(0).synced_bytes, recorder.outcomes, world.traffic.total()) == (0, [], 0)
    world.run()
    assert recorder.outcomes == [(600, 0, OUTCOME)]
    assert world.machine(1).heard == [(1_600, 0, 1)]
    assert world.disk(0).synced_bytes == world.disk(0).written_bytes > 0


def test_what_comes_later_does_not_overtake_a_sync() -> None:
    world, _ = listeners(sync_us=500)
    world.call(100, 0, lambda machine: write_and_send(machine, b"a", 1))
    world.call(200, 0, lambda machine: machine.want(1, 2))
    world.call(300, 0, lambda machine: write_and_send(machine, b"b", 3))
    world.call(400, 0, lambda machine: write_and_send(machine, b"c", 4))
    world.run()
    # Everything that waited shares the second sync.
    assert world.machine(1).heard == [(1_600, 0, 1), (2_100, 0, 2), (2_100, 0, 3), (2_100, 0, 4)]


def test_what_was_written_while_a_sync_ran_is_not_synced_by_it() -> None:
    world, _ = listeners(sync_us=500)
    world.call(100, 0, lambda machine: write_and_send(machine, b"a", 1))
    world.call(300, 0, lambda machine: write_and_send(machine, b"b", 2))
    world.run(until_us=700)
    assert 2 * world.disk(0).synced_bytes == world.disk(0).written_bytes


def test_a_node_that_crashes_before_its_sync_has_said_nothing() -> None:
    world, recorder = listeners(sync_us=500)
    world.call(100, 0, lambda machine: write_and_send(machine, b"a", 1))
    world.inject(599, lambda: world.crash(0))
    world.inject(5_000, lambda: world.restart(0))
    world.run()
    assert recorder.outcomes == []
    assert world.machine(1).heard == []


def test_a_restarted_node_is_a_fresh_machine_with_its_synced_records() -> None:
    fates = set()
    for seed in range(40):
        world, _ = listeners(seed=seed, sync_us=500)
        old = world.machine(0)
        world.call(100, 0, lambda machine: write_and_send(machine, b"synced", 1))
        world.call(5_000, 0, lambda machine: write_and_send(machine, b"unsynced", 2))
        world.inject(5_100, partial(world.crash, 0))
        world.inject(6_000, partial(world.restart, 0))
        world.run()
        assert world.machine(0) is not old
        assert world.machine(0).links == [("up", 1)]
        values = [record.state for record in world.machine(0).records]
        assert values in ([b"synced"], [b"synced", b"unsynced"])
        fates.add(len(values))
    assert fates == {1, 2}


def test_a_restart_with_amnesia_finds_an_empty_disk() -> None:
    world, _ = listeners()
    world.call(100, 0, lambda machine: write_and_send(machine, b"a", 1))
    world.inject(5_000, lambda: world.crash(0))
    world.inject(6_000, lambda: world.restart(0, amnesia=True))
    world.run()
    assert world.machine(0).records == []
    assert world.faults == {"crash": 1, "restart with amnesia": 1}


# Crashes and pauses


def test_messages_and_calls_to_a_crashed_node_vanish_and_its_timers_die() -> None:
    world, _ = listeners()
    world.call(100, 0, lambda machine: machine.ready.timers.append(9_000))
    world.inject(200, lambda: world.crash(0))
    world.call(300, 1, lambda machine: machine.want(0, 1))
    world.call(400, 0, lambda machine: machine.want(1, 2))
    world.inject(5_000, lambda: world.restart(0))
    world.call(6_000, 1, lambda machine: machine.want(0, 3))
    world.run()
    assert world.machine(0).heard == [(7_000, 1, 3)]
    assert world.machine(0).ticks == [5_000, 7_000]
    assert world.machine(1).heard == []
    assert world.traffic == {"to a crashed node": 1}


def test_a_node_that_crashes_in_the_instant_of_its_turn_sends_nothing() -> None:
    world, _ = listeners()
    world.call(100, 0, lambda machine: machine.want(1, 1))
    world.inject(100, lambda: world.crash(0))
    world.run()
    assert world.machine(0) is None
    assert world.machine(1).heard == []


def test_a_paused_node_does_nothing_and_hears_everything_when_it_resumes() -> None:
    world, _ = listeners()
    world.call(50, 0, lambda machine: machine.ready.timers.append(2_000))
    world.inject(100, lambda: world.pause(0))
    world.call(200, 1, lambda machine: machine.want(0, 1, 2))
    world.call(300, 0, lambda machine: machine.want(1, 7))
    world.run(until_us=4_999)
    assert world.machine(0).heard == []
    world.inject(5_000, lambda: world.resume(0))
    world.run()
    assert world.machine(0).heard == [(5_000, 1, 1), (5_000, 1, 2)]
    assert world.machine(0).ticks == [0, 50, 5_000]
    assert world.machine(1).heard == [(6_000, 0, 7)]


def test_the_queue_of_a_paused_node_is_bounded() -> None:
    world, _ = listeners()
    world.pause(0)
    world.call(100, 1, lambda machine: machine.want(0, 1, 2, 3, 4, 5))
    world.inject(5_000, lambda: world.resume(0))
    world.run()
    assert world.machine(0).numbers == [1, 2, 3]
    assert world.traffic == {"over the bound of a paused node": 2}


def test_a_sync_that_ends_during_a_pause_releases_its_messages_after_it() -> None:
    world, recorder = listeners(sync_us=500)
    world.call(100, 0, lambda machine: write_and_send(machine, b"a", 1))
    world.inject(200, lambda: world.pause(0))
    world.inject(5_000, lambda: world.resume(0))
    world.run()
    assert recorder.outcomes == [(5_000, 0, OUTCOME)]
    assert world.machine(1).heard == [(6_000, 0, 1)]


def test_faults_on_nodes_in_the_wrong_state_have_no_effect() -> None:
    world, _ = listeners()
    world.restart(0)
    world.resume(0)
    world.crash(1)
    world.crash(1)
    world.pause(1)
    world.resume(1)
    assert world.faults == {"crash": 1}


# Adversaries


def test_an_adversary_rewrites_each_ready_and_delays_parts_of_it() -> None:
    def slow_to_even(ready: Ready, now_us: int) -> list[tuple[int, Ready]]:
        now, late = Ready(), Ready()
        for target, message in ready.send:
            assert isinstance(message, StatusQuery)
            (now if message.number % 2 else late).send.append((target, message))
        return [(0, now), (2_000, late)]

    world, _ = listeners()
    world.add(2, Listener, rewrite=slow_to_even)
    world.call(100, 2, lambda machine: machine.want(0, 1, 2, 3))
    world.run()
    assert world.machine(0).heard == [(1_100, 2, 1), (1_100, 2, 3), (3_100, 2, 2)]


def test_what_an_adversary_delayed_dies_with_it() -> None:
    world, _ = listeners()
    world.add(2, Listener, rewrite=lambda ready, now_us: [(1_000, ready)])
    world.call(100, 2, lambda machine: machine.want(0, 1))
    world.inject(900, lambda: world.crash(2))
    world.inject(950, lambda: world.restart(2))
    world.run()
    assert world.machine(0).heard == []
