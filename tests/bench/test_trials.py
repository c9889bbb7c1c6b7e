"""Trials of validated topics: which there are, their rows, targets, tables and pictures."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from rich.console import Console, RenderableType

from bench_rows import KEYS
from quorate.bench import plots, report, targets
from quorate.bench.experiments import chosen
from quorate.bench.latencies import summarise
from quorate.bench.pipe import PipeRate
from quorate.bench.rows import Row, TrialRow, merged, setting, setting_of_trial
from quorate.bench.targets import Target, targets_of
from quorate.bench.trials import (
    EMBEDDED,
    KAFKA,
    KAFKA_STORES,
    QUORATE,
    SIZES,
    VALIDATED,
    WHOLE,
    Trial,
    full_plan,
    headline_plan,
    quick_plan,
)
from quorate.bench.validated import Found, row_of
from quorate.bench.workload import Consumed, Produced, Window

SECOND = 1_000_000_000
WINDOW = Window(0, 2 * SECOND)
PIPE = PipeRate(100_000, 10_000.0)


def shown(table: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=250)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# Plans


def test_the_plan_has_every_curve_of_the_thesis_at_every_size() -> None:
    plan = full_plan()

    embedded = [each for each in plan if (each.system, each.store) == (QUORATE, EMBEDDED)]
    assert {(each.validated, each.event_bytes) for each in embedded} == {
        (count, size) for count in VALIDATED for size in SIZES
    }
    for system in (WHOLE, KAFKA):
        assert [each.event_bytes for each in plan if each.system == system] == list(SIZES)
    assert len(plan) == len(set(plan))
    assert set(quick_plan()) < set(plan)


def test_as_many_topics_are_validated_as_the_trial_says() -> None:
    trial = Trial(validated=7)

    assert len(trial.topics) == 10
    assert len(trial.validated_topics) == 7
    assert set(trial.contracts()) == set(trial.topics)


def test_whole_payloads_are_ordered_without_validation() -> None:
    contracts = Trial(system=WHOLE).contracts().values()

    assert {(each.protection, each.order, each.validated) for each in contracts} == {
        ("byzantine", "total", False)
    }


def test_a_person_picks_what_is_measured() -> None:
    plan = full_plan()

    assert {each.system for each in chosen(plan, part=["kafka"])} == {KAFKA}
    assert {each.event_bytes for each in chosen(plan, event_bytes=[16])} == {16}
    some = chosen(plan, part=["embedded"], of_ten=[2, 10], event_bytes=[1024])
    assert some == [Trial(validated=2), Trial(validated=10)]


def test_the_headline_is_of_validated_batches_of_a_thousand_on_disk() -> None:
    for experiment in headline_plan():
        assert (experiment.events_per_batch, experiment.event_bytes) == (1000, 253)
        assert (experiment.fsync, experiment.replicas) == ("always", 4)
        assert all(contract.validated for contract in experiment.contracts().values())
        assert "validated" in experiment.title


# Rows


def failed_trial(trial: Trial, problem: str) -> TrialRow:
    return TrialRow(**setting_of_trial(trial), problem=problem)


def produced(validated: int, basic: int, **figures: Any) -> Produced:
    count = validated + basic
    known: dict[str, Any] = {
        "validated": validated, "basic": basic,
        "submitted": count, "acknowledged": count, "batches": 10,
        "receipt": summarise([SECOND // 100]), "signed_receipt": summarise([]),
        "basic_receipt": summarise([SECOND // 200]),
    }  # fmt: skip
    return Produced(**{**known, **figures})


def consumed(validated: int, basic: int, **figures: Any) -> Consumed:
    known: dict[str, Any] = {
        "validated": validated, "basic": basic, "seconds": 2.0,
        "taken": validated + basic, "doubled": 0, "gaps": 0, "wrong": 0,
        "latencies": summarise([SECOND // 10]),
    }  # fmt: skip
    return Consumed(**{**known, **figures})


def found(trial: Trial | None = None, **figures: Any) -> TrialRow:
    """Three producers of 2000 events each, of which a quarter is validated, in two seconds."""
    got = consumed(1500, 4500, **figures)
    sent = [produced(500, 1500)] * 3
    return row_of(trial or Trial(validated=2), Found(WINDOW, sent, got, {"consumer": 0.6}), PIPE)


def test_a_row_has_both_sides_beside_the_pipe() -> None:
    row = found()

    assert (row.events_per_s, row.produced_per_s) == (3000.0, 3000.0)
    assert (row.basic_per_s, row.basic_produced_per_s) == (2250.0, 2250.0)
    assert row.mb_per_s == pytest.approx(3000 * 1024 / 1e6)
    assert row.ratio_to_pipe == pytest.approx(row.mb_per_s / 1000)
    assert row.events_per_batch == 200
    assert row.processor_us_by_process == {"consumer": pytest.approx(100.0)}
    assert row.processor_us_per_event == pytest.approx(100.0)
    assert (row.p50_ms, row.receipt_p50_ms) == (100.0, 10.0)
    assert (row.signed_receipt_p50_ms, row.basic_receipt_p50_ms) == (None, 5.0)
    assert row.is_sound


def test_what_a_consumer_is_behind_with_takes_it_longer() -> None:
    assert found(seconds=3.0).events_per_s == 2000.0


def test_a_row_begins_with_the_keys_that_all_benchmarks_share() -> None:
    known = json.loads(json.dumps(found().json()))

    assert list(known)[: len(KEYS)] == KEYS
    assert (known["protocol"], known["store"], known["validated"]) == (QUORATE, EMBEDDED, 2)


@pytest.mark.parametrize(
    ("figures", "column"),
    [
        ({"taken": 5999}, "lost"),
        ({"gaps": 1}, "lost"),
        ({"doubled": 1}, "duplicated"),
        ({"wrong": 1}, "forged"),
    ],
)
def test_what_must_not_be_shows_and_is_not_sound(figures: dict[str, Any], column: str) -> None:
    row = found(**figures)

    assert getattr(row, column) == 1
    assert not row.is_sound


def test_an_event_without_a_receipt_is_not_sound() -> None:
    sent = [produced(0, 2000), produced(0, 2000), produced(0, 2000, submitted=2001)]

    row = row_of(Trial(), Found(WINDOW, sent, consumed(0, 6000), {}), PIPE)

    assert row.unacknowledged == 1
    assert not row.is_sound


def test_several_runs_become_medians_with_both_spreads() -> None:
    runs = [
        replace(found(), events_per_s=rate, produced_per_s=2 * rate, lost=lost)
        for rate, lost in ((100.0, 0), (300.0, 1), (200.0, 0))
    ]

    row = merged([*runs, failed_trial(Trial(validated=2), "r1 did not start")])

    assert (row.events_per_s, row.spread) == (200.0, (100.0, 300.0))
    assert (row.produced_per_s, row.produced_spread) == (400.0, (200.0, 600.0))
    assert (row.runs, row.lost, row.problem) == (3, 1, "r1 did not start")
    assert row.processor_us_by_process == {"consumer": pytest.approx(100.0)}
    assert row.processor_us_per_event == pytest.approx(100.0)
    assert (row.signed_receipt_p50_ms, row.basic_receipt_p50_ms) == (None, 5.0)


# Targets


def rated(trial: Trial, events_per_s: float, basic_per_s: float = 0.0) -> TrialRow:
    return replace(
        found(trial),
        events_per_s=events_per_s,
        produced_per_s=2 * events_per_s,
        basic_per_s=basic_per_s,
        basic_produced_per_s=2 * basic_per_s,
    )


def target(rows: list[TrialRow], words: str) -> Target:
    (one,) = [each for each in targets_of(rows, []) if words in each.words]
    return one


def test_what_was_not_measured_is_no_target() -> None:
    assert targets_of([rated(Trial(validated=10), 1.0)], []) == []
    assert targets_of([failed_trial(Trial(validated=10), "no"), rated(Trial(), 1.0)], []) == []


@pytest.mark.parametrize(("rate", "is_reached"), [(500.0, True), (499.0, False)])
def test_all_validated_is_held_against_none(rate: float, is_reached: bool) -> None:
    rows = [rated(Trial(), 1000.0), rated(Trial(validated=10), rate)]

    for side in ("producers", "consumer"):
        assert target(rows, f"{side}: all validated over none").is_reached is is_reached


@pytest.mark.parametrize(("basic", "is_reached"), [(640.0, True), (639.0, False)])
def test_basic_topics_beside_validated_ones_are_held_against_the_same_eight(
    basic: float, is_reached: bool
) -> None:
    rows = [rated(Trial(), 1000.0, 1000.0), rated(Trial(validated=2), 900.0, basic)]

    assert target(rows, "consumer: 8 basic topics").is_reached is is_reached


def test_events_per_second_are_flat_and_megabytes_grow() -> None:
    rates = {16: 200.0, 1024: 100.0, 4096: 30.0, 16_384: 20.0}
    rows = [rated(Trial(validated=10, event_bytes=size), rate) for size, rate in rates.items()]

    assert target(rows, "consumer: events/s from 16 B to 1,024 B").is_reached
    assert target(rows, "consumer: MB/s at 1,024, 4,096, 16,384 B").is_reached

    uneven = [*rows, rated(Trial(validated=10, event_bytes=64), 99.0)]
    assert not target(uneven, "consumer: events/s from 16 B").is_reached
    shrinking = [*rows, rated(Trial(validated=10, event_bytes=65_536), 1.0)]
    assert not target(shrinking, "consumer: MB/s at").is_reached


def test_whole_payloads_count_from_a_quarter_of_a_kilobyte_on() -> None:
    rows = [
        row
        for size in (64, 256, 4096)
        for row in (
            rated(Trial(validated=10, event_bytes=size), 50.0),
            rated(Trial(system=WHOLE, event_bytes=size), 60.0 if size == 256 else 40.0),
        )
    ]

    ahead = [
        each for each in targets_of(rows, []) if "consumer: all validated over whole" in each[0]
    ]

    assert [(each.words.split()[-2], each.is_reached) for each in ahead] == [
        ("256", False), ("4,096", True),
    ]  # fmt: skip


def test_kafka_is_held_against_both_kinds_of_stores() -> None:
    rows = [
        rated(Trial(system=KAFKA), 100.0),
        rated(Trial(validated=10), 100.0),
        rated(Trial(validated=10, store=KAFKA_STORES), 39.0),
    ]

    assert target(rows, "consumer: all validated over plain Kafka").is_reached
    assert not target(rows, "consumer: all validated with Kafka stores").is_reached


def test_the_headline_is_a_ratio_to_the_pipe() -> None:
    experiment = headline_plan()[0]
    headlines = [Row(**setting(experiment), ratio_to_pipe=ratio) for ratio in (0.12, 0.11)]

    found = targets_of([], headlines)

    assert [each.is_reached for each in found] == [True, False]
    assert "0.11" in shown(targets.table_of(found))


# Tables and pictures


def all_rows() -> list[TrialRow]:
    return [rated(trial, 1000.0 + trial.event_bytes) for trial in full_plan()]


def test_the_table_has_both_sides_and_the_pipe_in_one_line() -> None:
    text = shown(report.table_of_trials([rated(Trial(validated=7), 1234.0)]))

    line = next(line for line in text.splitlines() if "7 of 10" in line)
    assert all(figure in line for figure in ("7 of 10 validated", "1,234", "2,468", "1,000"))
    again = merged([rated(Trial(validated=7), rate) for rate in (1234.0, 5678.0)])
    assert "1,234..5,678" in shown(report.table_of_trials([again]))
    assert "no jars" in shown(
        report.table_of_trials([failed_trial(Trial(system=KAFKA), "no jars")])
    )


def test_pictures_show_both_sides_over_the_size_of_an_event(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    written = plots.write_trials(tmp_path, all_rows())

    assert [path.name for path in written] == [
        "validated-producers.png", "validated-producers-details.png",
        "validated-consumer.png", "validated-consumer-details.png",
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert plots.write_trials(tmp_path, [failed_trial(Trial(), "no")]) == []


def test_parquet_holds_every_trial(tmp_path: Path) -> None:
    path = report.write_parquet(tmp_path, all_rows(), "Validated")

    table = pyarrow.parquet.read_table(path)
    assert table.column_names[: len(KEYS)] == KEYS
    assert table.num_rows == len(full_plan())
