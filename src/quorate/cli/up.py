"""`quorate up`: the replicas of a directory as processes, and a table that shows how they are.

On a terminal the table is live. Elsewhere each replica gets a line when it is up, and another
one whenever its health changes, so that a log tells the story.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, TypeAlias

import typer
from rich.console import Console, Group
from rich.live import Live

from quorate.cli.directory import DEFAULT, Directory, SameDirectoryOption, observer, opened
from quorate.cli.tables import Standing, line, on_stderr, remarks, replica_table, standings
from quorate.client.admin import Admin
from quorate.core.cluster import Cluster
from quorate.core.errors import ConfigError, QuorumError
from quorate.runtime.launcher import START_SECONDS_MAX, Launcher, LaunchError
from quorate.runtime.loop import run

REFRESH_EVERY_S = 1.0
# On a busy machine a healthy replica may take longer than one refresh.
ANSWER_WITHIN_S = 2.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_Show: TypeAlias = Callable[[Sequence[Standing]], None]


@app.command()
def up(
    named: Directory = None,
    directory: SameDirectoryOption = DEFAULT,
    seconds: Annotated[
        float | None, typer.Option(help="Stop everything after so many seconds.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave the replicas running, and return.")
    ] = False,
) -> None:
    """Start a local cluster and show how it is doing, until Ctrl-C stops it.

    Each replica is a process of its own, and keeps a log in DIRECTORY/run. From another
    terminal, `quorate publish` and `quorate subscribe` use the cluster, and `quorate replica`
    stops, slows or corrupts a replica while you watch.
    """
    if seconds is not None and (detach or not seconds > 0):
        raise ConfigError("--seconds takes a number above 0, and does not go with --detach")
    directory = named or directory
    launcher = opened(directory)
    name = observer(launcher)
    with _signals_raise():
        names = _to_start(launcher)
        lost = launcher.lost if names else {}
        if len(lost) == len(launcher.held):
            lost = {}
        for sentence in (*lost.values(), *(launcher.ignored if names else ())):
            on_stderr().print(sentence)
        found = _start(launcher, name, names)
        if detach:
            _tell_detached(found, directory)
            return
        if not names:
            on_stderr().print(
                "This only shows them. To end them: "
                f"quorate replica all stop --directory {quote(str(directory))}"
            )
        try:
            run(_watch(launcher, name, found, seconds, _caption(launcher, names)))
        finally:
            _stop(launcher, names)


def _to_start(launcher: Launcher) -> list[str]:
    """The replicas that do not run yet. Who starts them also stops them, and nobody else."""
    if not launcher.held:
        raise ConfigError(f"{launcher.directory} holds the keys of no replica to start")
    names = [replica for replica in launcher.held if launcher.pid(replica) is None]
    running = [replica for replica in launcher.held if replica not in names]
    if running:
        on_stderr().print(f"Running already: {', '.join(running)}")
    return names


def _caption(launcher: Launcher, names: Sequence[str]) -> str:
    if not names:
        return "Ctrl-C ends this view."
    all_of_them = len(names) == len(launcher.held)
    return f"Ctrl-C stops {'all of them' if all_of_them else ', '.join(names)}."


def _start(launcher: Launcher, name: str, names: Sequence[str]) -> list[Standing]:
    """Start these, until all of them answer; if that fails, end them again."""
    try:
        with on_stderr().status(f"Starting {', '.join(names)} ..."):
            launcher.start_all()
            return run(_until_all_answer(launcher, name))
    except BaseException:
        for replica in names:
            with contextlib.suppress(LaunchError):
                launcher.stop(replica)
        raise


async def _until_all_answer(launcher: Launcher, name: str) -> list[Standing]:
    deadline, lost = time.monotonic() + START_SECONDS_MAX, launcher.lost
    async with Admin(launcher.directory, name) as admin:
        while True:
            found = standings(launcher, await admin.status())
            here = [each for each in launcher.held if each not in lost]
            silent = [one for one in found if one.name in here and not one.is_up]
            if not silent:
                return found
            if time.monotonic() > deadline:
                causes = {one.name: one.health for one in silent}
                raise QuorumError("not every replica that was started answers", causes)


async def _watch(
    launcher: Launcher,
    name: str,
    found: Sequence[Standing],
    seconds: float | None,
    caption: str,
) -> None:
    """Show the replicas again and again, until a signal or the end of the time."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, ended.set)
    if seconds is not None:
        loop.call_later(seconds, ended.set)
    async with Admin(launcher.directory, name) as admin:
        with _display(launcher.cluster, caption) as show:
            while not ended.is_set():
                show(found)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), REFRESH_EVERY_S)
                found = standings(launcher, await admin.status(ANSWER_WITHIN_S))


@contextlib.contextmanager
def _display(cluster: Cluster, caption: str) -> Iterator[_Show]:
    console = Console()
    if not console.is_terminal:
        yield _Lines()
        return
    with Live(console=console, auto_refresh=False) as live:

        def show(found: Sequence[Standing]) -> None:
            table = replica_table(cluster, found, width=console.width)
            table.caption = caption
            live.update(Group(table, remarks(cluster, found)), refresh=True)

        yield show


class _Lines:
    """Prints a line about each replica whose health has changed."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def __call__(self, found: Sequence[Standing]) -> None:
        for standing in found:
            text = line(standing)
            if self._shown.get(standing.name) != text:
                self._shown[standing.name] = text
                typer.echo(text)


def _stop(launcher: Launcher, names: Sequence[str]) -> None:
    if not names:
        return
    # Whoever presses Ctrl-C once more would leave half of them running.
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with on_stderr().status("Stopping the replicas ..."):
        launcher.stop_all(names)
    on_stderr().print(f"Stopped: {', '.join(names)}")


def _tell_detached(found: Sequence[Standing], directory: Path) -> None:
    _Lines()(found)
    where = quote(str(directory))
    on_stderr().print(
        f"They go on running. See how they are: quorate status {where}\n"
        f"End them: quorate replica all stop --directory {where}"
    )


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Let a terminal that closes, or a polite kill, end us as Ctrl-C does."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
