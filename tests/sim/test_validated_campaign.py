"""Validated topics keep their promises under hundreds of seeds, whoever signs and stores wrongly.

Up to f replicas and any number of producers are hostile together. Seeds come in chunks, so that the
workers of a parallel run have about the same to do. `quorate simulate` runs as many more as there
is time for.
"""

from collections import Counter

import pytest

from quorate.protocol.machine import Entry
from quorate.protocol.ordering.records import Installed
from quorate.sim.campaign import Summary, command, run_seed
from quorate.sim.order_checkers import events_of
from quorate.sim.order_scenarios import draw_order
from quorate.sim.order_stage import OrderStage
from quorate.sim.scenarios import Setting, adversaries_of
from quorate.sim.validated_adversaries import (
    FORGERIES,
    VALIDATED_PUBLISHERS,
    VALIDATED_REPLICAS,
    Forge,
)
from seeds import campaign, chunks

CHUNK = 20
SEEDS = {1: 80, 2: 20}
CHUNKS = [(f, seeds) for f, count in SEEDS.items() for seeds in chunks(count, CHUNK)]
ACCIDENTS = {"crash", "restart", "pause", "partition", "loss"}


@pytest.mark.parametrize(
    ("f", "seeds"),
    CHUNKS,
    ids=lambda value: f"{value.start}" if isinstance(value, range) else f"f{value}",
)
def test_a_validated_topic_keeps_its_promises(f: int, seeds: range) -> None:
    setting = Setting("validated", f)
    summary = campaign(setting, seeds)
    assert [command(setting, verdict.seed) for verdict in summary.guilty] == []
    # Faults were really injected, and hostile producers took part in most of the runs.
    assert summary.seeds == CHUNK
    assert summary.faults.keys() >= ACCIDENTS
    assert sum(summary.faults[name] for name in VALIDATED_PUBLISHERS) > CHUNK / 3
    assert summary.delivered > 20 * CHUNK


def test_seeds_bring_hostile_replicas_and_producers_together() -> None:
    together = Counter(
        (replica, part.adversary)
        for seed in range(500)
        for scenario in [draw_order(Setting("validated"), seed)]
        for replica in scenario.hostile.values()
        for part in scenario.publishers
    )
    for replica in VALIDATED_REPLICAS:
        for producer in VALIDATED_PUBLISHERS:
            assert together[replica, producer] > 0


NEW = (*VALIDATED_REPLICAS, *VALIDATED_PUBLISHERS)


@pytest.mark.parametrize("adversary", adversaries_of("validated"))
def test_a_validated_topic_bears_each_adversary(adversary: str) -> None:
    setting = Setting("validated", adversary=adversary)
    count = 8 if adversary in NEW else 2
    summary: Summary = campaign(setting, range(count))
    assert [command(setting, verdict.seed) for verdict in summary.guilty] == []
    assert adversary == "none" or summary.faults[adversary] >= count


@pytest.mark.parametrize("kind", FORGERIES)
def test_every_forgery_is_tried_and_none_of_them_is_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []
    forge: Forge = FORGERIES[kind]

    def noted(pen: object, partition: int, sequence: int, payload: bytes) -> bytes:
        forged = forge(pen, partition, sequence, payload)  # type: ignore[arg-type]
        if forged != payload:
            tried.append(forged)
        return forged

    monkeypatch.setattr("quorate.sim.validated_adversaries.FORGERIES", {kind: noted})
    read: list[bytes] = []

    def note(_: int, outcome: object, __: int) -> None:
        if isinstance(outcome, Entry) and events_of(outcome.payload):
            read.append(outcome.payload)

    scenario = draw_order(Setting("validated", adversary="forging-source"), 0)
    assert not scenario.topic.contract.event_proofs
    assert OrderStage(scenario, on_outcome=note).perform() == []
    assert tried
    assert read
    assert set(tried) & set(read) <= own_batches_again(kind, tried)


def own_batches_again(kind: str, tried: list[bytes]) -> set[bytes]:
    """What was sent under a wrong number, or by somebody else, is read where it belongs, and what
    says that it is a basic batch by who does not validate."""
    return set(tried) if kind in ("replayed", "stolen", "bare") else set()


def test_the_same_seed_is_the_same_run() -> None:
    digests = set()
    for _ in range(2):
        stage = OrderStage(draw_order(Setting("validated"), 8))
        assert stage.perform() == []
        digests.add(stage.world.trace.digest())
    assert len(digests) == 1


def test_the_last_replica_of_a_slot_is_vouched_to_by_those_who_decided_it() -> None:
    assert run_seed(Setting("validated"), 281).violations == ()


def test_a_slot_that_one_replica_decided_before_its_leader_died_is_decided_by_the_others() -> None:
    assert run_seed(Setting("validated"), 103074).violations == ()


def test_replicas_start_over_that_are_away_for_long_and_nobody_else() -> None:
    """Otherwise more may lack what is retained than among real replicas, as in seed 80735 once."""
    setting = Setting("validated")
    forgetting = [seed for seed in range(60) if draw_order(setting, seed).slots_kept < 100]
    started_over = Counter[bool]()
    for seed in (*forgetting[:6], 80735):
        stage = OrderStage(draw_order(setting, seed))
        assert stage.perform() == []
        for replica in stage.scenario.topic.members:
            found = [isinstance(each, Installed) for each in stage.world.disk(replica).read()]
            started_over[replica in stage.scenario.steady] += sum(found)
    assert started_over[True] == 0
    assert started_over[False] > 0
