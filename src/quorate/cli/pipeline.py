"""`quorate pipeline`: programs over event streams, on Spark."""

import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quorate.cli.directory import (
    DEFAULT,
    ClientName,
    DirectoryOption,
    client_here,
    observer,
    opened,
)
from quorate.cli.tables import on_stderr
from quorate.cli.text import printable
from quorate.core.errors import ConfigError, QuorateError
from quorate.pipeline.failures import cause_of, spark_errors
from quorate.pipeline.filtering import Filter
from quorate.pipeline.jobs.job import BatchJob, Job, Pipes, Program
from quorate.pipeline.jobs.registry import known, load
from quorate.pipeline.jobs.settings import described, read_settings
from quorate.pipeline.running import Progress, QueryError, follow, stop
from quorate.pipeline.signatures import read_patterns
from quorate.runtime.launcher import Launcher

LINE_EVERY_S = 5.0

_INTERVAL = re.compile(r"\s*\d+(\.\d+)?\s*(millisecond|second|minute|hour)s?\s*")

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def pipeline() -> None:
    """Run programs over event streams, on Spark."""


@app.command("list")
def list_jobs(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Tell which jobs there are, and their settings with what they are if nobody sets them."""
    jobs = [load(name) for name in known()]
    if as_json:
        rows = [
            {"name": job.name, "summary": job.summary, "settings": described(job)} for job in jobs
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("job", "what it does", "settings (--set)", box=box.SIMPLE_HEAD)
    for job in jobs:
        settings = (f"{key}={default or '(needed)'}" for key, default in described(job).items())
        table.add_row(job.name, job.summary, Text("\n".join(settings)))
    Console().print(table)


Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="DIRECTORY",
        help="Where the job remembers how far it is; jobs that end by themselves need none. A job "
        "that is started again with the same directory goes on where it stopped. A path that "
        "driver and executors share, or a URL such as hdfs://...",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        metavar="MASTER",
        help="Where Spark runs: `local[2]`, `spark://HOST:PORT`, `yarn` or `k8s://...`.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The settings of the job, as TOML.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the job; may be repeated."),
]
Every = Annotated[
    str | None,
    typer.Option(metavar="'1 second'", help="How often to look for events; else at once."),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="End when what is there has been read.")
]
Begin = Annotated[
    str,
    typer.Option(
        metavar="begin|end|OFFSET|TIME", help="Where to begin if there is no checkpoint yet."
    ),
]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option("--spark", metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
]
Logs = Annotated[
    Path | None,
    typer.Option(help="Where Spark writes its own messages; if left out, they are not kept."),
]
ShipPackage = Annotated[
    bool,
    typer.Option("--ship-package", help="Send this package to executors that do not have it."),
]


@app.command()
def run(
    job_name: Annotated[str, typer.Argument(metavar="JOB", help="One of `quorate pipeline list`.")],
    checkpoint: Checkpoint = None,
    name: ClientName = None,
    directory: DirectoryOption = DEFAULT,
    master: Master = "local[*]",
    config: ConfigFile = None,
    assignments: Assignments = None,
    every: Every = None,
    available_now: AvailableNow = False,
    start: Begin = "begin",
    spark_settings: SparkSettings = None,
    logs: Logs = None,
    ship_package: ShipPackage = False,
) -> None:
    """Run a job until Ctrl-C, or until it is done.

    Ctrl-C and SIGTERM end all its queries, and the exit code is 0. If one of them fails, a sentence
    says why, the others are ended, and the exit code is 1; the checkpoint is as it was, so that
    the same command goes on from there. `audit` ends by itself, with the exit codes of
    `quorate audit`.
    """
    _check_trigger(every, available_now=available_now)
    from quorate.pipeline.session import session

    job = load(job_name)
    if isinstance(job, BatchJob):
        settings = read_settings(job, config, assignments or ())
        cluster, who = ("", "") if job.is_offline(settings) else _member(directory, name, observer)
    else:
        cluster, who = _member(directory, name, client_here)
        settings = read_settings(job, config, assignments or ())
        if checkpoint is None:
            raise ConfigError(
                f"the job {job.name} needs a directory where it remembers how far it is; name "
                "one with --checkpoint"
            )
    where = "" if checkpoint is None else _checkpoint(checkpoint)
    console = on_stderr()
    with console.status("Starting Spark ..."):
        spark = session(
            master,
            app_name=f"quorate {job.name}",
            settings=dict(map(_spark_setting, spark_settings or ())),
            log_directory=logs,
            ship_package=ship_package,
            tell=lambda words: console.print(words, markup=False),
        )
    try:
        pipes = Pipes(
            spark=spark, cluster=cluster, identity=who, checkpoint=where, start=start, every=every,
            available_now=available_now,
        )  # fmt: skip
        _run(job, pipes, settings)
    finally:
        with contextlib.suppress(Exception):
            spark.stop()


def _check_trigger(every: str | None, *, available_now: bool) -> None:
    if every is not None and available_now:
        raise ConfigError("--every and --available-now exclude each other; leave one of them out")
    if every is not None and not _INTERVAL.fullmatch(every):
        raise ConfigError(f"--every is {every!r}, but it must be such as '1 second' or '5 minutes'")


@app.command("filter")
def filter_lines(
    patterns: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A pattern library instead of the one that is built in."),
    ] = None,
) -> None:
    """Give syslog lines on the standard input their names, and leave out what is to be dropped.

    What remains is on the standard output, a JSON object in each line, for `quorate publish`. Needs
    neither Spark nor a cluster.
    """
    lines = (
        line.decode("utf-8", errors="replace").rstrip("\r\n")
        for line in typer.get_binary_stream("stdin")
    )
    for value in Filter(read_patterns(patterns)).values(lines):
        # Whoever waits for a line should have it now, and not when a buffer is full.
        typer.echo(value)


def _member(
    directory: Path, name: str | None, choose: Callable[[Launcher], str]
) -> tuple[str, str]:
    """The cluster that a job works with, and as whom."""
    launcher = opened(directory)
    return str(launcher.directory), name or choose(launcher)


def _run(job: Program[Any], pipes: Pipes, settings: Any) -> None:
    if isinstance(job, BatchJob):
        _run_to_its_end(job, pipes, settings)
    elif isinstance(job, Job):
        _run_until_stopped(job, pipes, settings)


def _run_to_its_end(job: BatchJob[Any], pipes: Pipes, settings: Any) -> None:
    try:
        ended = job.run(pipes, settings)
    except spark_errors() as error:
        raise QueryError(f"{job.name} failed: {cause_of(error).rstrip('.')}") from error
    for line in ended.lines:
        typer.echo(printable(line))
    if ended.code:
        raise typer.Exit(ended.code)


def _run_until_stopped(job: Job[Any], pipes: Pipes, settings: Any) -> None:
    with _asked_to_stop() as stopping:
        try:
            queries = job.start(pipes, settings)
        except spark_errors() as error:
            stop(pipes.spark.streams.active)
            raise _failed(job, pipes, cause_of(error)) from error
        on_stderr().print(f"{job.name} runs as {pipes.identity}; Ctrl-C ends it.", markup=False)
        try:
            with _shown(job.name) as show:
                done = follow(queries, stopping, show)
        except QueryError as error:
            raise _failed(job, pipes, str(error)) from error
    rows = sum(progress.rows for progress in done)
    counted = "1 row" if rows == 1 else f"{rows:,} rows"
    on_stderr().print(
        f"{job.name} {'stopped' if stopping.is_set() else 'is done'} after {counted}; the same "
        f"command goes on from {pipes.checkpoint}.",
        markup=False,
    )


def _failed(job: Job[Any], pipes: Pipes, cause: str) -> QuorateError:
    return QueryError(
        f"{job.name} failed: {cause.rstrip('.')}; the same command goes on from {pipes.checkpoint}"
    )


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Set when a signal asks us to end. Spark has handlers of its own, which come back after."""
    stopping = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopping.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _shown(job: str) -> Iterator[Callable[[list[Progress]], None]]:
    """A table that changes on a terminal, else a line for each query every few seconds."""
    console = on_stderr()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda progress: live.update(_table(job, progress), refresh=True)
        return
    said_s = time.monotonic()

    def say(progress: list[Progress]) -> None:
        nonlocal said_s
        if time.monotonic() - said_s < LINE_EVERY_S:
            return
        said_s = time.monotonic()
        for each in progress:
            console.print(_line(each), markup=False)

    yield say


def _table(job: str, progress: list[Progress]) -> Table:
    table = Table("query", "batch", "rows", "rows/s", "doing", title=job, box=box.SIMPLE_HEAD)
    for each in progress:
        batch = "-" if each.batch is None else f"{each.batch:,}"
        table.add_row(each.query, batch, f"{each.rows:,}", f"{each.rows_per_s:,.0f}", each.doing)
    return table


def _line(progress: Progress) -> str:
    batch = "no batch yet" if progress.batch is None else f"batch {progress.batch:,}"
    return (
        f"{progress.query}: {batch}, {progress.rows:,} rows, {progress.rows_per_s:,.0f} rows/s, "
        f"{progress.doing[:1].lower()}{progress.doing[1:]}"
    )


def _checkpoint(text: str) -> str:
    """Whole, since executors are in directories of their own."""
    if "://" in text:
        return text
    path = Path(text).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--checkpoint {text} is no directory and cannot become one: {error.strerror}"
        ) from None
    return str(path)


def _spark_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigError(f"--spark {text!r} is not of the form spark.KEY=VALUE")
    return key, value
