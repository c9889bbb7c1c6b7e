"""The `quorate` command, and how a subcommand joins it.

A subcommand is a module `quorate.cli.NAME` with one public name, `app`:

    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

One `@app.command()` in it makes `quorate NAME` itself. An `@app.callback()`, or more than one
command, makes a group: `quorate NAME VERB`. To be seen, it needs a row in `SUBCOMMANDS`, which
is all that the help reads: a subcommand is imported when it is called and not before, so that
`quorate --version` is quick and an extra is needed only by those who use it. A row whose module
does not exist is left out.

A subcommand tells its user that something is wrong by raising a `QuorateError`: `main` prints
it as one sentence and exits with 2, as for a wrong option, or with 1 if trying again later may
help (`retriable`). Any other exit code is the subcommand's own (`raise typer.Exit(1)`). Results go
to stdout, everything else to stderr.
"""

import os
import re
import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from quorate import __version__
from quorate.core.errors import QuorateError

EXIT_TRY_AGAIN = 1
EXIT_MISUSE = 2
EXIT_INTERRUPTED = 130


class Subcommand(NamedTuple):
    name: str
    panel: str
    help: str

    @property
    def module(self) -> str:
        return f"quorate.cli.{self.name}"


_FIRST, _CLUSTER, _EVENTS, _CHECK = "Start here", "Clusters", "Events", "Check and measure"

SUBCOMMANDS = (
    Subcommand("demo", _FIRST, "Watch a cluster survive a liar and the loss of a leader."),
    Subcommand("doctor", _FIRST, "Tell whether this machine has what Quorate needs."),
    Subcommand("init", _CLUSTER, "Write a local cluster: keys, certificates and one TOML file."),
    Subcommand("identity", _CLUSTER, "Make a party's keys, on the machine where they stay."),
    Subcommand(
        "cluster", _CLUSTER, "Build a cluster file from its parties' public parts; change replicas."
    ),
    Subcommand("up", _CLUSTER, "Start a local cluster and show how it is doing."),
    Subcommand("status", _CLUSTER, "Tell the health, rates and queues of each replica."),
    Subcommand("replica", _CLUSTER, "Run one replica, or make it misbehave on purpose."),
    Subcommand("topic", _CLUSTER, "Create, alter, list and describe topics of a running cluster."),
    Subcommand("group", _CLUSTER, "List, share, reset and delete consumer groups."),
    Subcommand("publish", _EVENTS, "Publish events on a topic."),
    Subcommand("subscribe", _EVENTS, "Print the events of a topic as they are delivered."),
    Subcommand("prove", _EVENTS, "Print a proof of what was published on a Byzantine log topic."),
    Subcommand("verify", _EVENTS, "Say what a proof proves, offline, or why it does not hold."),
    Subcommand("pipeline", _EVENTS, "Run programs over event streams, on Spark."),
    Subcommand("audit", _CHECK, "Check the whole history of a cluster, at every replica."),
    Subcommand("simulate", _CHECK, "Run a protocol under many seeds, faults and adversaries."),
    Subcommand("bench", _CHECK, "Measure, with the raw pipe of the same run beside it."),
    Subcommand("test", _CHECK, "Run the project's own tests."),
)


class _Subcommands(TyperGroup):
    """Shows rows of the table in its help, and loads a module only to run it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for row in SUBCOMMANDS:
            if find_spec(row.module) is not None:
                self.add_command(TyperCommand(row.name, help=row.help, rich_help_panel=row.panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, shown, rest = super().resolve_command(ctx, args)
        if shown is None:
            return name, shown, rest
        return name, typer.main.get_command(import_module(f"quorate.cli.{name}").app), rest


app = typer.Typer(
    cls=_Subcommands, add_completion=False, rich_markup_mode="markdown", no_args_is_help=True
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"quorate {__version__}")
        raise typer.Exit


@app.callback()
def quorate(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Carry events between parties that do not trust each other."""


def main() -> None:
    """Run the command line of this process, and exit."""
    _open_standard_streams()
    try:
        typer.main.get_command(app)(prog_name="quorate")
    except QuorateError as error:
        _refuse(str(error), EXIT_TRY_AGAIN if error.retriable else EXIT_MISUSE)
    except ModuleNotFoundError as error:
        extra = _extra_with(error.name or "")
        if extra is None:
            raise
        _refuse(f"This needs the package {error.name}: pip install 'quorate[{extra}]' brings it.")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _open_standard_streams() -> None:
    """Whoever closed one gets nothing there; a socket in its place would get what we print."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free, which is this one.
            os.open(os.devnull, os.O_RDWR)


def _refuse(sentence: str, code: int = EXIT_MISUSE) -> NoReturn:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(sentence, style="red"), soft_wrap=True)
    sys.exit(code)


def _extra_with(module: str) -> str | None:
    """The extra of this distribution that would have brought a module that is missing."""
    package = module.partition(".")[0].replace("_", "-")
    try:
        requirements = metadata.requires("quorate") or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        found = re.match(r"([\w.-]+).*\bextra == ['\"]([\w-]+)['\"]", requirement)
        # What is in an extra is in `all` too, which is more than anybody asked for.
        if found and found[1].replace("_", "-").lower() == package and found[2] != "all":
            return found[2]
    return None
