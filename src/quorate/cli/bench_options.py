"""What the commands of `quorate bench` have in common: options, progress, and how they end."""

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from quorate.bench.drawing import require_matplotlib
from quorate.bench.experiments import ALTERING, CRASH, DROPPING, Experiment
from quorate.core.errors import ConfigError
from quorate.runtime.loop import run

SECONDS_MIN = 0.2
FILE_COLUMNS = 180


class Fault(StrEnum):
    dropping = "dropping"
    altering = "altering"
    crash = "crash"


class LogFault(StrEnum):
    altering = "altering"
    crash = "crash"


class Sync(StrEnum):
    never = "never"
    always = "always"


class LogProtocol(StrEnum):
    ordering = "ordering"
    crash_ordering = "crash-ordering"


QUICK_TAKES = "one to three minutes, by how busy the machine is"
Quick: TypeAlias = Annotated[
    bool, typer.Option("--quick", help=f"Only what matters most: {QUICK_TAKES}.")
]
OnlyLog: TypeAlias = Annotated[
    list[LogProtocol] | None,
    typer.Option("--only", metavar="PROTOCOL", help="Only ordering, or crash-ordering."),
]
OnlyFaults: TypeAlias = Annotated[
    list[Fault] | None,
    typer.Option("--fault", help="Only this fault, and none; may be repeated."),
]
OnlyLogFaults: TypeAlias = Annotated[
    list[LogFault] | None,
    typer.Option("--fault", help="Only this fault, and none; may be repeated."),
]
OnlyPublishers: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--publishers", help="Only 1, 2, 5 or 10 on each topic; may be repeated."),
]
OnlyBatches: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--batch", help="Only batches of 1, 100 or 1000 events; may be repeated."),
]
OnlySync: TypeAlias = Annotated[
    list[Sync] | None,
    typer.Option("--fsync", help="Only in memory (never), or synced (always)."),
]
OnlyF: TypeAlias = Annotated[
    list[int] | None, typer.Option("--f", help="Only clusters that tolerate 1, or 2.")
]
Seconds: TypeAlias = Annotated[float | None, typer.Option(help="How long each one measures.")]
Repeat: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Run everything so often; print medians and spreads.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print a list of rows.")]
Output: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write Parquet and PNG plots into this directory.")
]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option("--output", help="Write a PNG plot into this directory.")
]

_FAULT_NAMES = {"dropping": DROPPING, "altering": ALTERING, "crash": CRASH}
# What an option that filters a plan is about.
_ATTRIBUTES = {
    "replicas": "replicas",
    "topics": "topics",
    "publishers": "publishers",
    "batch": "events_per_batch",
    "f": "f",
}
_Result = TypeVar("_Result")


def fault_names(chosen: Sequence[Fault | LogFault] | None) -> list[str]:
    return [_FAULT_NAMES[each] for each in chosen or ()]


def refuse_what_is_not_planned(
    plan: Sequence[Experiment],
    *,
    quick: bool,
    faults: Sequence[Fault | LogFault] | None,
    **wanted: list[int] | None,
) -> None:
    """Whoever names what no experiment has is told what there is."""
    if faults and not any(each.fault for each in plan):
        raise ConfigError(f"--fault is {faults[0]}, but with --quick there are no faults")
    for option, values in wanted.items():
        there = sorted({getattr(each, _ATTRIBUTES[option]) for each in plan})
        for value in values or ():
            if value not in there:
                allowed = " or ".join(", ".join(map(str, there)).rsplit(", ", 1))
                where = " with --quick" if quick else ""
                raise ConfigError(f"--{option} is {value}, but{where} it must be {allowed}")


def refuse_what_cannot_be_done(seconds: float | None, output: Path | None) -> None:
    """Before an hour of measuring rather than after it."""
    if seconds is not None and seconds < SECONDS_MIN:
        raise ConfigError(f"--seconds is {seconds:g}, but it must be at least {SECONDS_MIN:g}")
    if output is not None:
        require_matplotlib()
        _refuse_what_cannot_be_written_into(output)


def _refuse_what_cannot_be_written_into(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=output):
            return
    except OSError as error:
        raise ConfigError(
            f"--output {output} is no directory that can be written into: {error.strerror}"
        ) from error


@contextmanager
def progress_bar(total: int | None = None) -> Iterator[Progress]:
    """Drawn rarely, because drawing takes time from what is measured."""
    counted = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
    columns = (TextColumn("{task.description}"), *counted, TimeElapsedColumn())
    console = Console(stderr=True, soft_wrap=True)
    with Progress(*columns, console=console, refresh_per_second=1) as progress:
        progress.add_task("starting", total=total)
        yield progress


@contextmanager
def told_steps() -> Iterator[Callable[[str], None]]:
    """A function to call with what is being done, for whoever waits."""
    with progress_bar() as progress:
        (bar,) = progress.task_ids

        def tell(words: str) -> None:
            progress.update(bar, description=words)
            print_unless_drawn(progress, words)

        yield tell


def print_unless_drawn(progress: Progress, words: str) -> None:
    """A file or a pipe shows no bar before the end."""
    if not progress.console.is_terminal:
        progress.console.print(words, highlight=False)


def print_rows(rows: list[dict[str, Any]]) -> None:
    typer.echo(json.dumps(rows, indent=1))


def print_table(table: RenderableType) -> None:
    console = Console()
    if not console.is_terminal:
        # A table that goes into a file is as wide as it needs to be.
        console = Console(width=FILE_COLUMNS)
    console.print(table)


def say_written(paths: list[Path]) -> None:
    for path in paths:
        typer.echo(f"wrote {path}", err=True)


def until_done(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run it; whoever ends us early with a signal leaves no processes behind."""

    async def watched() -> _Result:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return run(watched())
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
