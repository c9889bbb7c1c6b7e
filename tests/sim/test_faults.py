"""A plan of faults keeps its budget and its promise of calm."""

from operator import methodcaller
from random import Random

import pytest

from quorate.core.errors import ConfigError
from quorate.sim.faults import Fault, FaultKind, FaultPlan
from quorate.sim.links import Mode, Network, Uniform
from quorate.sim.throughput import flooding_world

PLAN = FaultPlan(group=range(7), faulty_max=2, calm_after_us=10_000_000)


def faults_of(plan: FaultPlan, seeds: int = 50) -> list[list[Fault]]:
    return [list(plan.schedule(Random(seed))) for seed in range(seeds)]


def test_no_more_nodes_than_the_budget_fail_at_a_time_and_none_twice() -> None:
    most = 0
    for faults in faults_of(PLAN):
        for fault in faults:
            now_us = fault.from_us
            failing = [n for f in faults if f.from_us <= now_us <= f.until_us for n in f.nodes]
            assert len(failing) == len(set(failing)) <= 2
            most = max(most, len(failing))
    assert most == 2


def test_every_fault_ends_by_the_time_of_calm() -> None:
    for faults in faults_of(PLAN):
        assert all(f.from_us < f.until_us <= PLAN.calm_after_us for f in faults)
        assert len(faults) > 10


def test_every_kind_happens_to_every_node() -> None:
    happened = {(f.kind, node) for faults in faults_of(PLAN) for f in faults for node in f.nodes}
    kinds = (FaultKind.CRASH, FaultKind.PAUSE, FaultKind.PARTITION)
    assert happened == {(kind, node) for kind in kinds for node in range(7)}
    assert any(f.kind is FaultKind.LOSS for faults in faults_of(PLAN) for f in faults)


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert faults_of(PLAN, 3) == faults_of(PLAN, 3)
    assert len({tuple(faults) for faults in faults_of(PLAN, 10)}) == 10


def test_only_crashable_nodes_crash_and_only_amnesiacs_forget() -> None:
    plan = FaultPlan(
        group=range(7), faulty_max=3, calm_after_us=10_000_000, crashable=[1, 2], amnesiacs=[2]
    )
    crashes = [f for faults in faults_of(plan) for f in faults if f.kind is FaultKind.CRASH]
    assert {f.nodes for f in crashes} == {(1,), (2,)}
    assert {(f.nodes, f.amnesia) for f in crashes} == {((1,), False), ((2,), False), ((2,), True)}


def test_a_budget_of_none_leaves_only_the_loss() -> None:
    plan = FaultPlan(group=range(4), faulty_max=0, calm_after_us=10_000_000)
    assert {f.kind for faults in faults_of(plan) for f in faults} == {FaultKind.LOSS}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("seed", range(8))
def test_a_world_counts_its_faults_and_is_whole_when_calm(mode: Mode, seed: int) -> None:
    network = Network(latency=Uniform(100, 5_000), mode=mode)
    world = flooding_world(seed, nodes=10, peers=6, network=network)
    plan = FaultPlan(group=range(10), faulty_max=4, calm_after_us=5_000_000)
    faults = plan.apply(world)
    for number in range(1, 100):
        world.call(number * 50_000, number % 10, methodcaller("start", number))
    # The first second of calm is for connections to come back.
    world.call(6_000_000, 0, lambda machine: machine.start(1_000))
    world.run()
    for kind in FaultKind:
        assert world.faults[kind.value] == sum(fault.kind is kind for fault in faults)
    assert world.faults["restart"] == world.faults["crash"]
    assert [world.machine(node).newest for node in range(10)] == [1_000] * 10


def test_an_impossible_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="5 faulty nodes at a time in a group of 4"):
        FaultPlan(group=range(4), faulty_max=5, calm_after_us=1)
    with pytest.raises(ConfigError, match=r"nodes \[9\] are to fail but are not in the group"):
        FaultPlan(group=range(4), faulty_max=1, calm_after_us=1, amnesiacs=[9])
