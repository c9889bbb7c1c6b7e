"""What becomes of the findings with log topics: figures, rows, tables and pictures."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from bench_rows import KEYS
from quorate.bench import growth, history, leader_crash, plots
from quorate.bench.experiments import (
    CRASH_ORDERING,
    LEADER_KILLED,
    ORDERING,
    Experiment,
    full_log_plan,
    growth_plan,
    history_plan,
    leader_crash_plan,
    quick_log_plan,
)
from quorate.bench.growth import Growth, Start
from quorate.bench.history import History, Reading
from quorate.bench.latencies import summarise
from quorate.bench.leader_crash import Kill, LeaderCrashes
from quorate.bench.pipe import PipeRate
from quorate.bench.promises import Broken
from quorate.bench.report import Sample
from quorate.bench.rows import Row, setting
from quorate.bench.timeline import Gap
from quorate.bench.workload import Published, Window

SECOND = 1_000_000_000


def shown(table: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def as_read(found: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(json.dumps(found))
    assert list(known)[: len(KEYS)] == KEYS
    return known


# Plans


@pytest.mark.parametrize("plan", [leader_crash_plan(), history_plan(), growth_plan()])
def test_each_experiment_meets_both_fault_models_and_syncs(plan: list[Experiment]) -> None:
    assert [experiment.protocol for experiment in plan] == [ORDERING, CRASH_ORDERING]
    assert {experiment.fsync for experiment in plan} == {"always"}
    assert {experiment.f for experiment in plan} == {1}


def test_the_plans_of_the_tables_stay_as_they_are() -> None:
    others = {each.name for each in (*leader_crash_plan(), *history_plan(), *growth_plan())}

    assert not others & {each.name for each in (*quick_log_plan(), *full_log_plan())}
    assert len(quick_log_plan()) == 7


# Leaders


def crashes(**figures: Any) -> LeaderCrashes:
    experiment = leader_crash_plan()[0]
    kill = Kill(
        "r0",
        2 * SECOND,
        5 * SECOND,
        6 * SECOND,
        gap=Gap(2 * SECOND, 3 * SECOND),
        reader_gap=Gap(2 * SECOND, 3 * SECOND + SECOND // 2),
        return_gap=Gap(5 * SECOND, 5 * SECOND + SECOND // 4),
    )
    known: dict[str, Any] = {
        "experiment": experiment,
        "row": Row(**setting(experiment), published=100, delivered=100),
        "window": Window(SECOND, 9 * SECOND),
        "kills": [kill],
        "changes": 1,
        "acknowledged": [10] * 80,
        "read": [9] * 80,
        "broken": Broken(),
    }
    return LeaderCrashes(**{**known, **figures})


def test_a_kill_is_told_with_its_times_from_the_beginning() -> None:
    row = as_read(crashes().json())

    (kill,) = row["kills"]
    assert (kill["leader"], kill["at_s"], kill["started_at_s"]) == ("r0", 1.0, 4.0)
    assert (kill["gap_s"], kill["reader_gap_s"], kill["return_gap_s"]) == (1.0, 1.5, 0.25)
    assert row["gap_s_max"] == 1.0
    assert row["fault"] == LEADER_KILLED


def test_a_broken_promise_shows() -> None:
    found = crashes(broken=Broken(misplaced=3))

    assert crashes().is_sound
    assert not found.is_sound
    assert "3 misplaced" in shown(leader_crash.table_of([found]))
    assert as_read(found.json())["broken_promises"]["misplaced"] == 3


# History


def reading(seconds: float, pipe_mb_per_s: float = 1000.0, **figures: Any) -> Reading:
    frame = 25_000
    known: dict[str, Any] = {
        "batches": 4000,
        "megabytes": 100.0,
        "seconds": seconds,
        "pipe": PipeRate(frame, pipe_mb_per_s * 1e6 / frame, 0.8),
        "processor_s": {"consumer": seconds / 2, "r0": 0.1},
        "lost": 0,
        "wrong": 0,
    }
    return Reading(**{**known, **figures})


def test_the_ratio_is_the_median_of_what_each_reading_reached_beside_its_own_pipe() -> None:
    found = History(history_plan()[0], 4000, [reading(0.2), reading(0.4, 500.0), reading(1.0)])

    row = as_read(found.json())

    assert [each.ratio_to_pipe for each in found.readings] == pytest.approx([0.5, 0.5, 0.1])
    assert row["ratio_to_pipe"] == pytest.approx(0.5)
    assert (row["mb_per_s"], row["runs"]) == (pytest.approx(250.0), 3)
    assert row["spread"] == pytest.approx([400_000.0, 2_000_000.0])
    spent = {"consumer": 2.0, "r0": 1.0, "pipe's receiver": 0.8}
    assert row["processor_ms_per_mb"] == pytest.approx(spent)
    assert row["ratio_by_processor"] == pytest.approx(0.4)
    # Of 400,000 events in the middle reading, 0.2 s of the consumer and 0.1 s of r0.
    assert row["processor_us_per_event"] == pytest.approx(0.75)


def test_a_reading_that_misses_something_is_not_sound() -> None:
    assert not History(history_plan()[0], 4000, [reading(0.2), reading(0.2, lost=1)]).is_sound
    assert not History(history_plan()[0], 4000, [reading(0.2, wrong=1)]).is_sound
    whole = History(history_plan()[0], 4000, [reading(0.2)])
    assert whole.is_sound
    assert "500" in shown(history.table_of([whole]))


# Growth


def grown(**figures: Any) -> Growth:
    samples = [
        Sample(float(second), 1000 * second, {"r0": 50.0 + min(second, 40), "r3": 20.0})
        for second in range(101)
    ]
    known: dict[str, Any] = {
        "experiment": growth_plan()[0],
        "restarted": "r3",
        "seconds": 100.0,
        "samples": samples,
        "starts": [Start(0, 0.5, 0.6), Start(100_000, 0.7, 0.9)],
        "published": Published(100_000, 0, summarise([1000])),
        "pipe": PipeRate(300, 10_000.0),
    }
    return Growth(**{**known, **figures})


def test_memory_that_stops_growing_is_flat_over_the_second_half_of_the_log() -> None:
    found = grown()

    assert (found.memory_mb_at(0.2), found.memory_mb_at(0.5)) == (70.0, 90.0)
    assert found.mb_per_million_batches == 0
    assert as_read(found.json())["ratio_to_pipe"] == pytest.approx(0.1)


def test_memory_that_goes_on_growing_shows_in_the_second_half_of_the_log() -> None:
    samples = [Sample(0.0, 1000 * n, {"r0": float(n), "r3": 500.0}) for n in range(101)]

    # The last looks are up to two thousand batches before the end.
    assert grown(samples=samples).mb_per_million_batches == pytest.approx(1000, rel=0.05)


def test_a_log_that_has_less_than_was_acknowledged_is_not_sound() -> None:
    assert grown().is_sound
    assert not grown(published=Published(100_001, 0, summarise([]))).is_sound
    assert not grown(published=Published(1, 1, summarise([]))).is_sound
    assert "100,000" in shown(growth.table_of([grown()]))


# Pictures


def test_pictures_show_kills_and_growth_over_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    written = [
        *plots.write_leader_crashes(tmp_path / "new", [crashes(), crashes()]),
        *plots.write_growth(tmp_path, [grown()]),
    ]

    assert [path.name for path in written] == ["leader-crash.png", "growth.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
