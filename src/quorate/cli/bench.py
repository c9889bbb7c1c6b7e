"""`quorate bench`: experiments with real processes, and the raw pipe beside every figure."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.bench import endurance as endurance_run
from quorate.bench import ordering as ordering_plans
from quorate.bench import plots, report
from quorate.bench.broadcast import Timing, run_all
from quorate.bench.experiments import Experiment, chosen, full_plan, quick_plan
from quorate.bench.memory import Sample
from quorate.bench.pipe import measure_rate, measure_round_trip_ms
from quorate.bench.rows import Row
from quorate.cli import bench_logs, bench_pipeline, bench_validated
from quorate.cli.bench_options import (
    QUICK_TAKES,
    SECONDS_MIN,
    AsJson,
    OnlyBatches,
    OnlyF,
    OnlyFaults,
    OnlyLog,
    OnlyLogFaults,
    OnlyPublishers,
    OnlySync,
    Output,
    Quick,
    Repeat,
    Seconds,
    fault_names,
    print_rows,
    print_table,
    print_unless_drawn,
    progress_bar,
    refuse_what_cannot_be_done,
    refuse_what_is_not_planned,
    say_written,
    until_done,
)
from quorate.core.errors import ConfigError

QUICK_SECONDS = 1.5
SECONDS = 3.0

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)


class Protocol(StrEnum):
    first_answer = "first-answer"
    vote = "vote"
    authenticated = "authenticated"
    reliable = "reliable"
    chain = "chain"


@app.callback()
def bench() -> None:
    """Measure, with the raw pipe of the same run beside it."""


@app.command()
def broadcast(
    quick: Quick = False,
    only: Annotated[
        list[Protocol] | None, typer.Option(metavar="PROTOCOL", help="Only this; may be repeated.")
    ] = None,
    replicas: Annotated[list[int] | None, typer.Option(help="Only clusters of 4, or 7.")] = None,
    topics: Annotated[list[int] | None, typer.Option(help="Only with 1 topic, or 4.")] = None,
    fault: OnlyFaults = None,
    seconds: Seconds = None,
    repeat: Repeat = 1,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Protocols × replicas × topics × batches × faults, through local clusters.

    Every experiment starts a cluster of its own, with one publisher and one subscriber, each a
    process. Exit code 1 says that an experiment failed, or that events were lost or forged.
    """
    refuse_what_cannot_be_done(seconds, output)
    there = quick_plan() if quick else full_plan()
    refuse_what_is_not_planned(there, quick=quick, faults=fault, replicas=replicas, topics=topics)
    plan = chosen(
        there,
        protocols=only or (),
        replicas=replicas or (),
        topics=topics or (),
        faults=fault_names(fault),
    )
    rows = _measured(plan, seconds or (QUICK_SECONDS if quick else SECONDS), repeat)
    _show("Broadcast", rows, as_json=as_json, output=output)


@app.command()
def ordering(
    quick: Quick = False,
    only: OnlyLog = None,
    topics: Annotated[list[int] | None, typer.Option(help="Only with 1 topic, or 10.")] = None,
    publishers: OnlyPublishers = None,
    batch: OnlyBatches = None,
    fsync: OnlySync = None,
    f: OnlyF = None,
    fault: OnlyLogFaults = None,
    seconds: Seconds = None,
    repeat: Repeat = 1,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Log topics: ordered under Byzantine or crash faults, in memory and synced to disk.

    FIT-Broker's tables of ordered channels stand beside it. Exit code 1 says that an experiment
    failed, or that events were lost, forged or doubled.
    """
    refuse_what_cannot_be_done(seconds, output)
    there = ordering_plans.quick_plan() if quick else ordering_plans.full_plan()
    refuse_what_is_not_planned(
        there, quick=quick, faults=fault, topics=topics, publishers=publishers, batch=batch, f=f
    )
    plan = chosen(
        there,
        protocols=only or (),
        topics=topics or (),
        publishers=publishers or (),
        batches=batch or (),
        fsyncs=fsync or (),
        fs=f or (),
        faults=fault_names(fault),
    )
    rows = _measured(plan, seconds or (QUICK_SECONDS if quick else SECONDS), repeat)
    _show("Ordering", rows, as_json=as_json, output=output)


app.command()(bench_logs.leader_crash)
app.command()(bench_logs.history)
app.command()(bench_logs.growth)
app.command()(bench_validated.validated)
app.command()(bench_pipeline.pipeline)


@app.command()
def pipe(
    frame_bytes: Annotated[
        list[int] | None, typer.Option(min=1, help="Size of a frame; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=SECONDS_MIN, help="How long to measure.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """The yardstick alone: one sender, one receiver, nothing between them."""
    rows = until_done(_pipe_rows(frame_bytes or [253, 25_300, 253_000], seconds))
    if as_json:
        print_rows(rows)
        return
    for row in rows:
        typer.echo(
            f"{row['frame_bytes']:>8,} bytes: {row['frames_per_s']:>11,.0f} frames/s, "
            f"{row['mb_per_s']:>7,.0f} MB/s; coalesced by hand "
            f"{row['best_frames_per_s']:>9,.0f} frames/s; "
            f"round trip {row['round_trip_ms']:.3f} ms"
        )


@app.command()
def simulator(
    nodes: Annotated[int, typer.Option(min=2, help="How many nodes in one process.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=SECONDS_MIN, help="How long to measure.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How many messages per second the simulator delivers."""
    from quorate.sim.throughput import measure

    deliveries_per_s = measure(nodes=nodes, seconds=seconds)
    if as_json:
        typer.echo(json.dumps({"nodes": nodes, "deliveries_per_s": deliveries_per_s}))
    else:
        typer.echo(f"{nodes:,} nodes: {deliveries_per_s:,.0f} deliveries per second")


@app.command()
def endurance(
    events: Annotated[int, typer.Option(min=1, help="How many events to publish.")] = (
        endurance_run.EVENTS
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Far fewer events: {QUICK_TAKES}.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The memory of every replica while ten million events pass, and a client floods them.

    Exit code 1 says that a replica took too much, or that events were lost or forged.
    """
    wanted = endurance_run.EVENTS_QUICK if quick else events
    with progress_bar(wanted) as progress:
        (bar,) = progress.task_ids

        def tell(sample: Sample, expected: int) -> None:
            words = f"publishing, {max(sample.memory_mb.values()):.0f} MB"
            progress.update(bar, description=words, total=expected, completed=sample.count)

        found = until_done(endurance_run.endure(wanted, tell))
    if as_json:
        print_rows(found.rows())
    else:
        print_table(endurance_run.table_of(found))
    if not found.is_sound:
        raise typer.Exit(1)


def _measured(plan: list[Experiment], window_s: float, repeat: int) -> list[Row]:
    if not plan:
        raise ConfigError("no experiment fits all these options; leave some of them out")
    total, begun = repeat * len(plan), 0
    with progress_bar(total) as progress:
        (bar,) = progress.task_ids

        def tell(experiment: Experiment) -> None:
            nonlocal begun
            progress.update(bar, description=experiment.title, completed=begun)
            begun += 1
            print_unless_drawn(progress, f"{begun} of {total}: {experiment.title}")

        rows = until_done(run_all(plan, Timing.of(window_s), repeat=repeat, tell=tell))
        progress.update(bar, description="done", completed=begun)
    return rows


def _show(subject: str, rows: list[Row], *, as_json: bool, output: Path | None) -> None:
    """Print and write what was found; the exit code says whether contracts were kept."""
    if output is not None:
        say_written([report.write_parquet(output, rows, subject), *plots.write_plots(output, rows)])
    if as_json:
        typer.echo(report.json_of(rows))
    else:
        print_table(report.table_of(rows, subject))
    if not all(row.is_sound for row in rows):
        raise typer.Exit(1)


async def _pipe_rows(sizes: list[int], seconds: float) -> list[dict[str, Any]]:
    rows = []
    for frame_bytes in sizes:
        rate = await measure_rate(frame_bytes, seconds)
        best = await measure_rate(frame_bytes, seconds, "coalesced")
        rows.append(
            {
                "frame_bytes": frame_bytes,
                "frames_per_s": rate.frames_per_s,
                "mb_per_s": rate.mb_per_s,
                "best_frames_per_s": best.frames_per_s,
                "round_trip_ms": await measure_round_trip_ms(frame_bytes, seconds / 2),
            }
        )
    return rows
