"""Rows: their keys, several runs in one, what faults cost, and how they are shown."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from rich.console import Console

from bench_rows import KEYS
from quorate.bench import plots, report
from quorate.bench.experiments import Experiment, full_plan
from quorate.bench.rows import Row, merged, setting, with_costs


def failed_row(problem: str) -> Row:
    return row(events_per_s=0.0, problem=problem)


def row(experiment: Experiment | None = None, **figures: Any) -> Row:
    known = setting(experiment or Experiment(protocol="vote"))
    return Row(**{"events_per_s": 1000.0, "ratio_to_pipe": 0.1, **known, **figures})


def test_a_row_begins_with_the_keys_that_all_benchmarks_share() -> None:
    assert list(row().json())[: len(KEYS)] == KEYS


def test_a_row_without_a_fault_says_null() -> None:
    assert json.loads(json.dumps(row().json()))["fault"] is None


def test_several_runs_become_medians_with_their_spread() -> None:
    runs = [row(events_per_s=rate, p99_ms=rate / 10) for rate in (900.0, 100.0, 500.0)]

    found = merged(runs)

    assert (found.events_per_s, found.p99_ms) == (500.0, 50.0)
    assert (found.spread, found.runs) == ((100.0, 900.0), 3)


def test_a_median_does_not_hide_what_one_run_lost() -> None:
    found = merged([row(), row(lost=1, forged=2), row()])

    assert (found.lost, found.forged) == (1, 2)
    assert not found.is_sound


def test_a_run_that_failed_is_told_and_does_not_count() -> None:
    failed = failed_row("r1 did not start")

    found = merged([row(events_per_s=10.0), failed, row(events_per_s=30.0)])

    assert (found.events_per_s, found.runs) == (20.0, 2)
    assert found.problem == "r1 did not start"
    assert not found.is_sound


def test_runs_that_all_failed_have_no_figures() -> None:
    failed = failed_row("r1 did not start")

    assert merged([failed, failed]).events_per_s == 0


def test_the_cost_of_a_fault_is_the_share_of_the_throughput_that_it_took() -> None:
    plain, lying = Experiment(protocol="vote"), Experiment(protocol="vote", fault="altering")
    elsewhere = Experiment(protocol="vote", fault="altering", replicas=7)

    found = with_costs(
        [
            row(plain, events_per_s=50_000.0),
            row(lying, events_per_s=40_000.0),
            row(elsewhere, events_per_s=5_000.0),
        ]
    )

    assert found[0].cost_of_fault is None
    assert found[1].cost_of_fault == pytest.approx(0.2)
    assert found[2].cost_of_fault is None


def test_the_cost_of_a_fault_in_several_rounds_is_the_median_of_what_each_round_found() -> None:
    plain, lying = Experiment(protocol="vote"), Experiment(protocol="vote", fault="altering")
    # The machine was twice as fast in the second round, and slowed down in the third.
    rates = [(50_000.0, 45_000.0), (100_000.0, 90_000.0), (80_000.0, 40_000.0)]
    rounds = [
        with_costs([row(plain, events_per_s=fine), row(lying, events_per_s=hurt)])
        for fine, hurt in rates
    ]

    found = [merged(runs) for runs in zip(*rounds, strict=True)]

    assert found[0].cost_of_fault is None
    assert found[1].cost_of_fault == pytest.approx(0.1)


def shown(rows: list[Row]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(report.table_of(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_our_figure_the_pipe_the_ratio_and_the_thesis_in_one_line() -> None:
    text = shown([row(events_per_s=23_456.0, pipe_frames_per_s=345_678.0, ratio_to_pipe=0.068)])

    line = next(line for line in text.splitlines() if "vote" in line)
    assert all(figure in line for figure in ("23,456", "345,678", "0.068", "10,362"))


def test_a_peer_stands_in_the_line_and_its_source_below() -> None:
    text = shown([row(Experiment(protocol="ordering", fsync="always"))])

    line = next(line for line in text.splitlines() if "ordering" in line)
    assert "1,300..2,500" in line
    assert "4,201" in line
    assert "BFT-SMaRt 2.0, p50 54..74 ms" in text
    assert "not this run" in text


def test_a_peer_stands_only_beside_what_it_did() -> None:
    others = [
        Experiment(protocol="ordering", fsync="always", events_per_batch=100),
        Experiment(protocol="crash-ordering", replicas=3, fsync="always"),
        Experiment(protocol="ordering", fsync="always", fault="altering"),
        Experiment(protocol="vote"),
    ]

    assert all(row(each).peer is None for each in others)
    assert "peer" not in shown([row(each) for each in others])


def test_the_table_says_why_a_row_has_no_figures() -> None:
    assert "r1 did not start" in shown([failed_row("r1 did not start")])


def full_rows() -> list[Row]:
    quantiles = [float(number + 1) for number in range(101)]
    return with_costs(row(each, latency_quantiles_ms=quantiles) for each in full_plan())


def test_parquet_holds_every_row_and_the_machine(tmp_path: Path) -> None:
    rows = [replace(each, spread=(1.0, 2.0)) for each in full_rows()]

    path = report.write_parquet(tmp_path / "new", rows)

    table = pyarrow.parquet.read_table(path)
    assert table.column_names[: len(KEYS)] == KEYS
    assert table.num_rows == len(rows)
    assert table.to_pylist()[0]["latency_quantiles_ms"][100] == 101.0
    assert b"cores" in table.schema.metadata


def test_plots_show_throughput_latency_and_the_cost_of_faults(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    written = plots.write_plots(tmp_path, full_rows())

    assert [path.name for path in written] == ["throughput.png", "latency.png", "faults.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_a_plot_without_material_is_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    assert plots.write_plots(tmp_path, [failed_row("no")]) == []
