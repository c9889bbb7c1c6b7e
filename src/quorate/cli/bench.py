"""`quorate bench`: experiments with real processes, and the raw pipe beside every figure."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quorate.bench import endurance as endurance_run
from quorate.bench import experiments, pipeline_report, plots, report, targets, trials
from quorate.bench import growth as growth_run
from quorate.bench import history as history_run
from quorate.bench import leader_crash as leader_crash_run
from quorate.bench import pipeline as pipeline_run
from quorate.bench.broadcast import Timing, run_all
from quorate.bench.drawing import require_matplotlib
from quorate.bench.experiments import ALTERING, CRASH, DROPPING, Experiment, chosen
from quorate.bench.growth import Growth
from quorate.bench.history import History
from quorate.bench.kafka_clients import require_kafka
from quorate.bench.leader_crash import LeaderCrashes
from quorate.bench.pipe import measure_rate, measure_round_trip_ms
from quorate.bench.report import Sample
from quorate.bench.rows import Row, TrialRow
from quorate.bench.trials import Trial
from quorate.bench.validated import run_trials
from quorate.core.errors import ConfigError
from quorate.runtime.loop import run

QUICK_SECONDS = 1.5
SECONDS = 3.0
# Of trials; a producer has up to 16 MB under way before the first receipt comes.
TRIAL_QUICK_SECONDS = 2.0
TRIAL_WARM_UP_SECONDS = 2.0
SECONDS_MIN = 0.2
FILE_COLUMNS = 180

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)

# What may be said of an experiment, by what is said on the command line

LiveProtocol = StrEnum("LiveProtocol", "first-answer vote authenticated reliable chain")
LogProtocol = StrEnum("LogProtocol", "ordering crash-ordering")
Fault = StrEnum("Fault", "dropping altering crash")
LogFault = StrEnum("LogFault", "altering crash")
Sync = StrEnum("Sync", "never always")
Part = StrEnum("Part", "embedded kafka-stores whole kafka headline")
_FAULTS = {"dropping": DROPPING, "altering": ALTERING, "crash": CRASH}
# What an option that picks from a plan is about, where it has another name.
_ATTRIBUTES = {"batch": "events_per_batch", "size": "event_bytes", "validated": "of_ten"}

QUICK_TAKES = "one to three minutes, by how busy the machine is"
Quick: TypeAlias = Annotated[
    bool, typer.Option("--quick", help=f"Only what matters most: {QUICK_TAKES}.")
]
OnlyLog: TypeAlias = Annotated[
    list[LogProtocol] | None,
    typer.Option("--only", metavar="PROTOCOL", help="Only ordering, or crash-ordering."),
]
ONLY_FAULTS = typer.Option("--fault", help="Only this fault, and none; may be repeated.")
OnlySizes: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--size", help="Only events of this size in bytes; may be repeated."),
]
Seconds: TypeAlias = Annotated[float | None, typer.Option(help="How long each one measures.")]
Repeat: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Run everything so often; print medians and spreads.")
]
Readings: TypeAlias = Annotated[
    int | None,
    typer.Option("--repeat", min=1, help="How often it is read; print medians and spreads."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print a list of rows.")]
Output: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write PNG plots, and rows as Parquet, into this directory.")
]
Found: TypeAlias = Row | LeaderCrashes | History | Growth
_Planned = TypeVar("_Planned", Experiment, Trial)
_Result = TypeVar("_Result")
_Tell: TypeAlias = Callable[[str], None]


@app.callback()
def bench() -> None:
    """Measure, with the raw pipe of the same run beside it."""


@app.command()
def broadcast(
    quick: Quick = False,
    only: Annotated[
        list[LiveProtocol] | None,
        typer.Option(metavar="PROTOCOL", help="Only this; may be repeated."),
    ] = None,
    replicas: Annotated[list[int] | None, typer.Option(help="Only clusters of 4, or 7.")] = None,
    topics: Annotated[list[int] | None, typer.Option(help="Only with 1 topic, or 4.")] = None,
    fault: Annotated[list[Fault] | None, ONLY_FAULTS] = None,
    seconds: Seconds = None,
    repeat: Repeat = 1,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Protocols × replicas × topics × batches × faults, through local clusters.

    Every experiment starts a cluster of its own, with one publisher and one subscriber, each a
    process. Exit code 1 says that an experiment failed, or that events were lost or forged.
    """
    _refuse_what_cannot_be_done(seconds, output)
    plan = experiments.quick_plan() if quick else experiments.full_plan()
    plan = _picked(plan, quick, protocol=only, replicas=replicas, topics=topics, fault=fault)
    rows = _measured(plan, seconds or (QUICK_SECONDS if quick else SECONDS), repeat)
    _show("Broadcast", rows, as_json, output)


@app.command()
def ordering(
    quick: Quick = False,
    only: OnlyLog = None,
    topics: Annotated[list[int] | None, typer.Option(help="Only with 1 topic, or 10.")] = None,
    publishers: Annotated[
        list[int] | None, typer.Option(help="Only 1, 2, 5 or 10 on each topic; may be repeated.")
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Only batches of 1, 100 or 1000 events; may be repeated."),
    ] = None,
    fsync: Annotated[
        list[Sync] | None, typer.Option(help="Only in memory (never), or synced (always).")
    ] = None,
    f: Annotated[
        list[int] | None, typer.Option("--f", help="Only clusters that tolerate 1, or 2.")
    ] = None,
    fault: Annotated[list[LogFault] | None, ONLY_FAULTS] = None,
    seconds: Seconds = None,
    repeat: Repeat = 1,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Log topics: ordered under Byzantine or crash faults, in memory and synced to disk.

    FIT-Broker's tables of ordered channels stand beside it. Exit code 1 says that an experiment
    failed, or that events were lost, forged or doubled.
    """
    _refuse_what_cannot_be_done(seconds, output)
    plan = experiments.quick_log_plan() if quick else experiments.full_log_plan()
    plan = _picked(
        plan, quick, protocol=only, topics=topics, publishers=publishers, batch=batch,
        fsync=fsync, f=f, fault=fault,
    )  # fmt: skip
    rows = _measured(plan, seconds or (QUICK_SECONDS if quick else SECONDS), repeat)
    _show("Ordering", rows, as_json, output)


@app.command()
def leader_crash(
    quick: Quick = False,
    only: OnlyLog = None,
    kills: Annotated[
        int | None, typer.Option(min=1, help="How often the leader is killed.")
    ] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Kill the leader under load: how long nothing moves, and whether anything is lost.

    Exit code 1 says that something with a receipt was lost, doubled or misplaced, or that two
    readers found different orders.
    """
    _refuse_what_cannot_be_done(None, output)
    wanted = kills or (leader_crash_run.KILLS_QUICK if quick else leader_crash_run.KILLS)
    found = _each(
        chosen(experiments.leader_crash_plan(), protocol=only),
        lambda experiment, tell: leader_crash_run.crash_leaders(experiment, wanted, tell),
    )
    if output is not None:
        _say_written(plots.write_leader_crashes(output, found))
    _end(found, lambda: leader_crash_run.table_of(found), as_json)


@app.command()
def history(
    quick: Quick = False,
    only: OnlyLog = None,
    megabytes: Annotated[
        float | None, typer.Option(min=1, help="How long the log is that is read.")
    ] = None,
    repeat: Readings = None,
    as_json: AsJson = False,
) -> None:
    """Read a log from the beginning, while nothing else happens.

    Exit code 1 says that batches were missing, or were not those that were published.
    """
    wanted = megabytes or (history_run.MEGABYTES_QUICK if quick else history_run.MEGABYTES)
    readings = repeat or (history_run.READINGS_QUICK if quick else history_run.READINGS)
    found = _each(
        chosen(experiments.history_plan(), protocol=only),
        lambda experiment, tell: history_run.read_history(experiment, wanted, readings, tell),
    )
    _end(found, lambda: history_run.table_of(found), as_json)


@app.command()
def growth(
    quick: Quick = False,
    only: OnlyLog = None,
    seconds: Seconds = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Let a log grow: the memory of the replicas, and the time that one takes to start.

    Exit code 1 says that batches stayed without a receipt, or are not in the log.
    """
    _refuse_what_cannot_be_done(seconds, output)
    wanted = seconds or (growth_run.SECONDS_QUICK if quick else growth_run.SECONDS)
    legs = growth_run.LEGS_QUICK if quick else growth_run.LEGS
    found = _each(
        chosen(experiments.growth_plan(), protocol=only),
        lambda experiment, tell: growth_run.grow(experiment, wanted, legs, tell),
    )
    if output is not None:
        _say_written(plots.write_growth(output, found))
    _end(found, lambda: growth_run.table_of(found), as_json)


@app.command()
def validated(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what the targets need: about six minutes.")
    ] = False,
    only: Annotated[
        list[Part] | None, typer.Option(metavar="PART", help=f"Only one of {', '.join(Part)}.")
    ] = None,
    size: OnlySizes = None,
    topics: Annotated[
        list[int] | None,
        typer.Option(
            "--validated", help="Only with this number of topics validated; may be repeated."
        ),
    ] = None,
    seconds: Seconds = None,
    repeat: Repeat = 1,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Three producers and a consumer on ten topics, of which 0 to 10 are validated.

    Beside it, in the same run, whole payloads are ordered, and plain Kafka carries the same events.
    The headline is 253-byte events in batches of 1000, all validated. Exit code 1 says that a
    trial failed, or that events were lost, forged or doubled; whether targets are reached is in a
    table.
    """
    _refuse_what_cannot_be_done(seconds, output)
    plan = trials.quick_plan() if quick else trials.full_plan()
    plan = chosen(_picked(plan, size=size, validated=topics), part=only)
    is_all = not (only or size or topics)
    headlines = trials.headline_plan() if is_all or Part("headline") in (only or ()) else []
    if any("kafka" in trial.part for trial in plan):
        require_kafka()
    timing = Timing.of(seconds or (TRIAL_QUICK_SECONDS if quick else SECONDS))
    rows, headline_rows = _tried(plan, headlines, timing, repeat)
    if output is not None:
        written = [report.write_parquet(output, rows, "Validated")] if rows else []
        _say_written([*written, *plots.write_trials(output, rows)])

    def tables() -> Group:
        parts = [report.table_of_trials(rows)] if rows else []
        if headline_rows:
            parts.append(report.table_of(headline_rows, "Headline"))
        return Group(*parts, targets.table_of(targets.targets_of(rows, headline_rows)))

    _end([*rows, *headline_rows], tables, as_json)


@app.command()
def pipeline(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what matters most: about four minutes.")
    ] = False,
    size: OnlySizes = None,
    megabytes: Annotated[
        float | None, typer.Option(min=1, help="How much is read at a time.")
    ] = None,
    repeat: Readings = None,
    as_json: AsJson = False,
) -> None:
    """Spark reads a validated topic, verified and not, beside the same rows from Parquet.

    Then alerts are timed from publishing to arrival, the memory of Python's workers is looked at,
    and scanners are looked for at four sites. Exit code 1 says that rows were missing or not the
    same, or that alerts were; whether targets are reached is in a table.
    """
    _refuse_others("size", size, pipeline_run.SIZES)
    plan = pipeline_run.QUICK if quick else pipeline_run.Plan()
    plan = replace(
        plan,
        sizes=tuple(size or plan.sizes),
        megabytes=megabytes or plan.megabytes,
        rounds=repeat or plan.rounds,
    )
    with _told() as tell:
        found = _until_done(pipeline_run.measure(plan, tell))
    _print(pipeline_report.json_of(found), lambda: pipeline_report.table_of(found), as_json)
    if not found.is_sound:
        raise typer.Exit(1)


@app.command()
def pipe(
    frame_bytes: Annotated[
        list[int] | None, typer.Option(min=1, help="Size of a frame; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=SECONDS_MIN, help="How long to measure.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """The yardstick alone: one sender, one receiver, nothing between them."""
    rows = _until_done(_pipe_rows(frame_bytes or [253, 25_300, 253_000], seconds))
    lines = [
        f"{row['frame_bytes']:>8,} bytes: {row['frames_per_s']:>11,.0f} frames/s, "
        f"{row['mb_per_s']:>7,.0f} MB/s; coalesced by hand "
        f"{row['best_frames_per_s']:>9,.0f} frames/s; "
        f"round trip {row['round_trip_ms']:.3f} ms"
        for row in rows
    ]
    typer.echo(json.dumps(rows, indent=1) if as_json else "\n".join(lines))


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
    with _progress_bar(wanted) as progress:
        (bar,) = progress.task_ids

        def tell(sample: Sample, expected: int) -> None:
            words = f"publishing, {max(sample.memory_mb.values()):.0f} MB"
            progress.update(bar, description=words, total=expected, completed=sample.count)

        found = _until_done(endurance_run.endure(wanted, tell))
    rows = [found.row(topic) for topic in endurance_run.TOPICS]
    _print(rows, lambda: endurance_run.table_of(found), as_json)
    if not found.is_sound:
        raise typer.Exit(1)


# What is wanted


def fault_names(words: Iterable[str]) -> list[str]:
    return [_FAULTS[word] for word in words]


def _picked(
    plan: list[_Planned], quick: bool = False, **options: Sequence[object] | None
) -> list[_Planned]:
    """What was asked for; naming what nothing in the plan has is refused with what there is."""
    wanted: dict[str, Sequence[object] | None] = {}
    where = " with --quick" if quick else ""
    for option, values in options.items():
        attribute = _ATTRIBUTES.get(option, option)
        wanted[attribute] = values
        there = {getattr(each, attribute) for each in plan} - {None}
        if values and not there:
            raise ConfigError(f"--{option} is {values[0]}, but{where} there are no {option}s")
        if all(isinstance(value, int) for value in there):
            _refuse_others(option, values, sorted(there), where)
    if faults := options.get("fault"):
        wanted["fault"] = fault_names(map(str, faults))
    return chosen(plan, **wanted)


def _refuse_others(
    option: str, values: Sequence[object] | None, there: Sequence[int], where: str = ""
) -> None:
    for value in values or ():
        if value not in there:
            allowed = " or ".join(", ".join(map(str, there)).rsplit(", ", 1))
            raise ConfigError(f"--{option} is {value}, but{where} it must be {allowed}")


def _refuse_what_cannot_be_done(seconds: float | None, output: Path | None) -> None:
    """Before an hour of measuring rather than after it."""
    if seconds is not None and seconds < SECONDS_MIN:
        raise ConfigError(f"--seconds is {seconds:g}, but it must be at least {SECONDS_MIN:g}")
    if output is None:
        return
    require_matplotlib()
    try:
        output.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=output):
            return
    except OSError as error:
        raise ConfigError(
            f"--output {output} is no directory that can be written into: {error.strerror}"
        ) from error


# While it is measured


def _measured(plan: list[Experiment], window_s: float, repeat: int) -> list[Row]:
    timing = Timing.of(window_s)
    with _told(repeat * len(plan)) as tell:
        return _until_done(run_all(plan, timing, repeat=repeat, tell=tell))


def _tried(
    plan: list[Trial], headlines: list[Experiment], timing: Timing, repeat: int
) -> tuple[list[TrialRow], list[Row]]:
    with _told(repeat * (len(plan) + len(headlines))) as tell:

        async def both() -> tuple[list[TrialRow], list[Row]]:
            warm = replace(timing, warm_up_s=TRIAL_WARM_UP_SECONDS)
            rows = await run_trials(plan, warm, repeat=repeat, tell=tell)
            return rows, await run_all(headlines, timing, repeat=repeat, tell=tell)

        return _until_done(both())


def _each(
    plan: list[Experiment], measure: Callable[[Experiment, _Tell], Awaitable[_Result]]
) -> list[_Result]:
    """What each experiment of the plan found."""

    async def all_of_them(tell: _Tell) -> list[_Result]:
        return [await measure(experiment, tell) for experiment in plan]

    with _told() as tell:
        return _until_done(all_of_them(tell))


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


@contextmanager
def _progress_bar(total: int | None = None) -> Iterator[Progress]:
    """Drawn rarely, because drawing takes time from what is measured."""
    counted = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
    columns = (TextColumn("{task.description}"), *counted, TimeElapsedColumn())
    console = Console(stderr=True, soft_wrap=True)
    with Progress(*columns, console=console, refresh_per_second=1) as progress:
        progress.add_task("starting", total=total)
        yield progress


@contextmanager
def _told(total: int | None = None) -> Iterator[_Tell]:
    """Returns a function that shows each step as it begins, out of a total if that is known."""
    if total == 0:
        raise ConfigError("no experiment fits all these options; leave some of them out")
    begun = 0
    with _progress_bar(total) as progress:
        (bar,) = progress.task_ids

        def tell(words: str) -> None:
            nonlocal begun
            progress.update(bar, description=words, completed=begun if total else None)
            begun += 1
            # A file or a pipe shows no bar before the end.
            if not progress.console.is_terminal:
                count = f"{begun} of {total}: " if total else ""
                progress.console.print(f"{count}{words}", highlight=False)

        yield tell
        if total:
            progress.update(bar, description="done", completed=begun)


def _until_done(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run it; a signal that ends it early leaves no processes behind."""

    async def watched() -> _Result:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return run(watched())
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None


# What was found


def _show(subject: str, rows: list[Row], as_json: bool, output: Path | None) -> None:
    if output is not None:
        written = report.write_parquet(output, rows, subject)
        _say_written([written, *plots.write_plots(output, rows)])
    _end(rows, lambda: report.table_of(rows, subject), as_json)


def _end(found: Sequence[Found], table: Callable[[], RenderableType], as_json: bool) -> None:
    """Print it; the exit code says whether contracts were kept."""
    _print([each.json() for each in found], table, as_json)
    if not all(each.is_sound for each in found):
        raise typer.Exit(1)


def _print(rows: list[dict[str, Any]], table: Callable[[], RenderableType], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    console = Console()
    if not console.is_terminal:
        # A table that goes into a file is as wide as it needs to be.
        console = Console(width=FILE_COLUMNS)
    console.print(table())


def _say_written(paths: list[Path]) -> None:
    for path in paths:
        typer.echo(f"wrote {path}", err=True)
