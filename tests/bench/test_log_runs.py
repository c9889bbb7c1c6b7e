"""The three experiments with log topics, for a moment each, with real processes."""

import pytest

from quorate.bench import growth, history, leader_crash
from quorate.bench.experiments import growth_plan, history_plan, leader_crash_plan
from quorate.bench.promises import Broken
from quorate.runtime.loop import run

pytestmark = pytest.mark.xdist_group("benchmarks")

# The plans have a Byzantine group, and then one with three replicas, which is sooner up.
SMALL = 1


def test_nothing_is_lost_when_the_leader_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEFORE_SECONDS", "DOWN_SECONDS", "AFTER_SECONDS", "PIPE_SECONDS"):
        monkeypatch.setattr(leader_crash, name, 0.3)

    found = run(leader_crash.crash_leaders(leader_crash_plan()[SMALL], kills=1))

    assert found.is_sound
    assert found.broken == Broken()
    assert found.row.published == found.row.delivered >= sum(found.acknowledged) > 0
    (kill,) = found.kills
    assert kill.killed_ns < kill.started_ns < kill.caught_up_ns
    assert kill.gap.seconds > 0


def test_history_is_read_from_the_beginning_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PIPE_SECONDS", 0.3)

    found = run(history.read_history(history_plan()[SMALL], megabytes=2, readings=1))

    assert found.is_sound
    (reading,) = found.readings
    assert reading.megabytes >= 2
    assert (reading.lost, reading.wrong) == (0, 0)
    assert set(reading.processor_s) == {"consumer", "r0", "r1", "r2"}


def test_a_log_grows_and_a_replica_starts_with_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth, "PIPE_SECONDS", 0.3)

    found = run(growth.grow(growth_plan()[SMALL], seconds=0.5, legs=1))

    assert found.is_sound
    assert found.published.receipts > 0
    empty, grown = found.starts
    assert (empty.batches, grown.batches) == (0, found.batches)
    assert all(start.listening_s <= start.caught_up_s for start in found.starts)
