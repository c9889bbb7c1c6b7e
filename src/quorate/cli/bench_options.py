"""What the commands of `quorate bench` have in common: options, progress, and how they end."""

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
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
from quorate.bench.experiments import ALTERING, CRASH, DROPPING
from quorate.core.errors import ConfigError
from quorate.runtime.loop import run

SECONDS_MIN = 0.2
FILE_COLUMNS = 180


class Fault(StrEnum):
    dropping = "dropping"
    altering = "altering"
    crash = "crash"


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

_FAULT_NAMES = {Fault.dropping: DROPPING, Fault.altering: ALTERING, Fault.crash: CRASH}
_Result = TypeVar("_Result")


def fault_names(chosen: list[Fault] | None) -> list[str]:
    return [_FAULT_NAMES[each] for each in chosen or ()]


def refuse_what_cannot_be_done(seconds: float | None, output: Path | None) -> None:
    """Before an hour of measuring rather than after it."""
    if seconds is not None and seconds < SECONDS_MIN:
        raise ConfigError(f"--seconds is {seconds:g}, but it must be at least {SECONDS_MIN:g}")
    if output is not None:
        require_matplotlib()


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
