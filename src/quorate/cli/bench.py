"""`quorate bench`: experiments with real processes, and the raw pipe beside every figure."""

import asyncio
import json
import signal
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quorate.bench import endurance as endurance_run
from quorate.bench import ordering as ordering_plans
from quorate.bench import plots, report
from quorate.bench.broadcast import Timing, run_all
from quorate.bench.experiments import (
    ALTERING,
    CRASH,
    DROPPING,
    Experiment,
    chosen,
    full_plan,
    quick_plan,
)
from quorate.bench.pipe import measure_rate, measure_round_trip_ms
from quorate.bench.rows import Row
from quorate.core.errors import ConfigError
from quorate.runtime.loop import run

QUICK_SECONDS = 1.5
SECONDS = 3.0
SECONDS_MIN = 0.2
FILE_COLUMNS = 180

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)


class Protocol(StrEnum):
    first_answer = "first-answer"
    vote = "vote"
    authenticated = "authenticated"
    reliable = "reliable"
    chain = "chain"


class LogProtocol(StrEnum):
    ordering = "ordering"
    crash_ordering = "crash-ordering"


class Fault(StrEnum):
    dropping = "dropping"
    altering = "altering"
    crash = "crash"


_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)
_FAULT_NAMES = {Fault.dropping: DROPPING, Fault.altering: ALTERING, Fault.crash: CRASH}

_Result = TypeVar("_Result")


@app.callback()
def bench() -> None:
    """Measure, with the raw pipe of the same run beside it."""


@app.command()
def broadcast(
    quick: Annotated[bool, typer.Option(help="Only what matters most; ends in a minute.")] = False,
    only: Annotated[
        list[Protocol] | None, typer.Option(metavar="PROTOCOL", help="Only this; may be repeated.")
    ] = None,
    replicas: Annotated[list[int] | None, typer.Option(help="Only clusters of 4, or 7.")] = None,
    topics: Annotated[list[int] | None, typer.Option(help="Only with 1 topic, or 4.")] = None,
    fault: Annotated[
        list[Fault] | None, typer.Option(help="Only this fault, and none; may be repeated.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="How long each one measures.")] = None,
    repeat: Annotated[
        int, typer.Option(min=1, help="Run everything so often; print medians and spreads.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of rows.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write Parquet and PNG plots into this directory.")
    ] = None,
) -> None:
    """Protocols × replicas × topics × batches × faults, through local clusters.

    Every experiment starts a cluster of its own, with one publisher and one subscriber, each a
    process. Exit code 1 says that an experiment failed, or that events were lost or forged.
    """
    window_s = _window_s(seconds, quick)
    if output is not None:
        plots.require_matplotlib()
    plan = chosen(
        quick_plan() if quick else full_plan(),
        protocols=only or (),
        replicas=replicas or (),
        topics=topics or (),
        faults=[_FAULT_NAMES[each] for each in fault or ()],
    )
    if not plan:
        raise ConfigError("no experiment fits all these options; leave some of them out")
    rows = _measured(plan, Timing.of(window_s), repeat)
    _show(rows, as_json=as_json, output=output)
    if not all(row.is_sound for row in rows):
        raise typer.Exit(1)


@app.command()
def ordering(
    quick: Annotated[bool, typer.Option(help="Only what matters most; ends in a minute.")] = False,
    only: Annotated[
        list[LogProtocol] | None,
        typer.Option(metavar="PROTOCOL", help="Only ordering, or crash-ordering."),
    ] = None,
    topics: Annotated[list[int] | None, typer.Option(help="Only with 1 topic, or 10.")] = None,
    fault: Annotated[
        list[Fault] | None, typer.Option(help="Only this fault, and none; may be repeated.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="How long each one measures.")] = None,
    repeat: Annotated[
        int, typer.Option(min=1, help="Run everything so often; print medians and spreads.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of rows.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write Parquet and PNG plots into this directory.")
    ] = None,
) -> None:
    """Log topics: ordered under Byzantine or crash faults, in memory and synced to disk.

    FIT-Broker's tables of ordered channels stand beside it. Exit code 1 says that an experiment
    failed, or that events were lost, forged or doubled.
    """
    window_s = _window_s(seconds, quick)
    if output is not None:
        plots.require_matplotlib()
    plan = chosen(
        ordering_plans.quick_plan() if quick else ordering_plans.full_plan(),
        protocols=only or (),
        topics=topics or (),
        faults=[_FAULT_NAMES[each] for each in fault or ()],
    )
    if not plan:
        raise ConfigError("no experiment fits all these options; leave some of them out")
    rows = _measured(plan, Timing.of(window_s), repeat)
    _show(rows, as_json=as_json, output=output, subject="Ordering")
    if not all(row.is_sound for row in rows):
        raise typer.Exit(1)


@app.command()
def pipe(
    frame_bytes: Annotated[
        list[int] | None, typer.Option(min=1, help="Size of a frame; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=SECONDS_MIN, help="How long to measure.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of rows.")] = False,
) -> None:
    """The yardstick alone: one sender, one receiver, nothing between them."""
    rows = _until_done(_pipe_rows(frame_bytes or [253, 25_300, 253_000], seconds))
    if as_json:
        typer.echo(json.dumps(rows))
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
    quick: Annotated[bool, typer.Option(help="Far fewer events; ends in a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of rows.")] = False,
) -> None:
    """The memory of every replica while ten million events pass, and a client floods them.

    Exit code 1 says that a replica took too much, or that events were lost or forged.
    """
    wanted = endurance_run.EVENTS_QUICK if quick else events
    with Progress(*_COLUMNS, console=Console(stderr=True), refresh_per_second=1) as progress:
        bar = progress.add_task("publishing", total=wanted)

        def tell(sample: endurance_run.Sample, expected: int) -> None:
            words = f"publishing, {max(sample.memory_mb.values()):.0f} MB"
            progress.update(bar, description=words, total=expected, completed=sample.events)

        found = _until_done(endurance_run.endure(wanted, tell))
    if as_json:
        typer.echo(json.dumps(found.rows(), indent=1))
    else:
        Console().print(endurance_run.table_of(found))
    if not found.is_sound:
        raise typer.Exit(1)


def _window_s(seconds: float | None, quick: bool) -> float:
    window_s = seconds or (QUICK_SECONDS if quick else SECONDS)
    if window_s < SECONDS_MIN:
        raise ConfigError(f"--seconds is {window_s:g}, but it must be at least {SECONDS_MIN:g}")
    return window_s


def _measured(plan: list[Experiment], timing: Timing, repeat: int) -> list[Row]:
    # It is drawn rarely, because drawing takes time from what is measured.
    console, total = Console(stderr=True, soft_wrap=True), repeat * len(plan)
    with Progress(*_COLUMNS, console=console, refresh_per_second=1) as progress:
        bar = progress.add_task("starting", total=total)
        begun = 0

        def tell(experiment: Experiment) -> None:
            nonlocal begun
            progress.update(bar, description=experiment.title, completed=begun)
            begun += 1
            if not console.is_terminal:
                # A file or a pipe shows no bar before the end.
                console.print(f"{begun} of {total}: {experiment.title}", highlight=False)

        rows = _until_done(run_all(plan, timing, repeat=repeat, tell=tell))
        progress.update(bar, description="done", completed=begun)
    return rows


def _show(
    rows: list[Row], *, as_json: bool, output: Path | None, subject: str = "Broadcast"
) -> None:
    if output is not None:
        written = [report.write_parquet(output, rows, subject), *plots.write_plots(output, rows)]
        for path in written:
            typer.echo(f"wrote {path}", err=True)
    if as_json:
        typer.echo(report.json_of(rows))
    else:
        # A table that goes into a file is as wide as it needs to be.
        console = Console()
        if not console.is_terminal:
            console = Console(width=FILE_COLUMNS)
        console.print(report.table_of(rows, subject))


async def _pipe_rows(sizes: list[int], seconds: float) -> list[dict[str, float]]:
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


def _until_done(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run it; whoever ends us early with a signal leaves no processes behind."""

    async def watched() -> _Result:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return run(watched())
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
