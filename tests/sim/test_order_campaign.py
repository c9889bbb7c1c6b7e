"""Log topics keep their promises under hundreds of seeds, and a broken election is caught.

Seeds come in chunks, so that the workers of a parallel run have about the same to do. `quorate
simulate` runs as many more as there is time for.
"""

from collections import Counter
from itertools import chain
from typing import Any

import pytest

from quorate.core.header import is_signed
from quorate.core.ids import session_of
from quorate.core.ordering import Line
from quorate.protocol.ordering.backlog import Backlog
from quorate.protocol.ordering.lines import Waiting
from quorate.sim.campaign import command, run_seed
from quorate.sim.checkers import Conduct
from quorate.sim.order_checkers import events_of
from quorate.sim.order_scenarios import draw_order
from quorate.sim.order_stage import OrderStage
from quorate.sim.scenarios import Setting, adversaries_of
from seeds import campaign, chunks

ORDERED = ("ordering", "crash-ordering")
CHUNK = 20
SEEDS = {(protocol, f): (80, 20)[f - 1] for protocol in ORDERED for f in (1, 2)}
CHUNKS = [
    (protocol, f, seeds) for (protocol, f), count in SEEDS.items() for seeds in chunks(count, CHUNK)
]
ACCIDENTS = {"crash", "restart", "pause", "partition", "loss"}


@pytest.mark.parametrize(
    ("protocol", "f", "seeds"),
    CHUNKS,
    ids=lambda value: f"{value.start}" if isinstance(value, range) else f"{value}",
)
def test_a_log_keeps_its_promises(protocol: str, f: int, seeds: range) -> None:
    setting = Setting(protocol, f)
    summary = campaign(setting, seeds)
    assert [command(setting, verdict.seed) for verdict in summary.guilty] == []
    # Faults were really injected, and the run was not an idle one.
    assert summary.seeds == CHUNK
    assert summary.faults.keys() >= ACCIDENTS
    assert summary.delivered > summary.published > 20 * CHUNK


@pytest.mark.parametrize("adversary", adversaries_of("ordering"))
def test_a_log_bears_each_adversary(adversary: str) -> None:
    setting = Setting("ordering", adversary=adversary)
    summary = campaign(setting, range(3))
    assert [command(setting, verdict.seed) for verdict in summary.guilty] == []
    assert adversary == "none" or summary.faults[adversary] >= 3


def test_a_reader_gets_on_however_little_a_lead_sends_before_a_message_is_altered() -> None:
    """One replica is silent, one has what is next, and a tenth of what it sends is altered."""
    assert run_seed(Setting("ordering"), 330_044).violations == ()


def test_a_payload_on_disk_is_kept_though_the_batch_before_it_was_not_on_disk() -> None:
    assert run_seed(Setting("crash-ordering"), 497).violations == ()


def test_runs_fill_the_room_for_what_is_undecided_and_drop_what_waits_of_ended_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: Counter[str] = Counter()
    take, drop = Waiting.extend, Backlog.drop

    def extend(waiting: Waiting, first: int, descriptors: list[bytes], *rest: Any) -> bool:
        contradicts = take(waiting, first, descriptors, *rest)
        is_whole = first > waiting.end or first + len(descriptors) <= waiting.end
        seen["left out"] += not (contradicts or is_whole)
        return contradicts

    def drop_and_tell(backlog: Backlog, line: Line) -> None:
        waiting = backlog.lines.get(line)
        seen["dropped"] += waiting is not None and bool(waiting.descriptors)
        drop(backlog, line)

    monkeypatch.setattr(Waiting, "extend", extend)
    monkeypatch.setattr(Backlog, "drop", drop_and_tell)
    for seed in range(903, 912):
        assert run_seed(Setting("ordering"), seed).violations == ()
    assert min(seen["left out"], seen["dropped"]) > 0


@pytest.mark.parametrize("protocol", ["ordering", "validated"])
def test_who_tells_false_counts_kinds_and_sizes_harms_its_own_batches_only_and_is_named(
    protocol: str,
) -> None:
    """Checkers see to the batches of all others. What it got ordered brings its events, or none."""
    malformed: Counter[Conduct] = Counter()
    named: set[Conduct] = set()
    for seed in range(6):
        stage = OrderStage(draw_order(Setting(protocol, adversary="false-header"), seed))
        assert stage.perform() == []
        conducts = stage.record.conducts
        named |= {conducts[about] for _, about, _ in stage.record.reports}
        for partitions in stage.record.read.values():
            for entry in chain(*partitions.values()):
                malformed[conducts[entry.publisher]] += not events_of(entry.payload)
    assert +malformed == {Conduct.BYZANTINE: malformed[Conduct.BYZANTINE]}
    assert named == {Conduct.BYZANTINE}


def test_seeds_bring_groups_topics_sessions_and_readers_that_begin_anywhere_together() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        stage = OrderStage(draw_order(Setting("validated"), seed))
        assert stage.perform() == []
        scenario, record = stage.scenario, stage.record
        seen["other topics"] += bool(scenario.others)
        seen["two groups"] += len({topic.contract.protection for topic in scenario.topics}) > 1
        seen["passed over"] += bool(record.passed)
        for partitions in record.read.values():
            for entry in chain(*partitions.values()):
                seen["inside a batch"] += entry.skip > 0
                seen["a second session"] += session_of(entry.publisher) > 0
                seen["signed" if is_signed(entry.payload) else "basic"] += 1
    kinds = {"other topics", "two groups", "passed over", "inside a batch", "a second session"}
    assert set(+seen) == {*kinds, "signed", "basic"}


def test_the_unsynchronised_election_is_caught() -> None:
    """FIT-Broker 2013, appendix B: a leader that asks nobody loses what was decided."""
    assert any(
        violation.checker in {"agreement", "no loss", "positions"}
        for seed in range(60)
        for violation in run_seed(Setting("broken-ordering"), seed).violations
    )


def test_the_same_seed_is_the_same_run() -> None:
    digests = set()
    for _ in range(2):
        stage = OrderStage(draw_order(Setting("ordering"), 7))
        assert stage.perform() == []
        digests.add(stage.world.trace.digest())
    assert len(digests) == 1
