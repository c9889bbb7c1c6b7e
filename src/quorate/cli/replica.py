"""`quorate replica`: run one replica, end it, or make it misbehave on purpose (B8, F13).

A process is controlled from the machine that it runs on; misbehaviour is ordered over the
network, by an operator, where the cluster file allows it.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from random import Random
from signal import Signals
from typing import Annotated

import typer

from quorate.cli.directory import DEFAULT, DirectoryOption, opened, operator
from quorate.client.admin import Admin
from quorate.core.errors import ConfigError, QuorateError
from quorate.core.messages import Misbehave
from quorate.protocol.misbehaviour import FIELDS
from quorate.runtime.files import CLUSTER_FILE
from quorate.runtime.launcher import LaunchError, Launcher
from quorate.runtime.loop import run
from quorate.runtime.misbehaving import BEHAVIOURS, describe, wrapper_for

ALL = "all"
SLOW_BY_MS = 200.0

# Which options mean something to which misbehaviour.
_OPTIONS = {
    "slow": {"--delay-ms"},
    "lie": {"--percent", "--fields"},
    "drop": {"--percent"},
    "replay": {"--percent"},
    "silent": {"--towards"},
    "equivocate": {"--towards"},
}

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def replica(
    name: Annotated[str, typer.Argument(metavar="ID", help="Which one, such as r1; or `all`.")],
    action: Annotated[str, typer.Argument(metavar="ACTION", help="What it shall do; see above.")],
    percent: Annotated[
        float | None, typer.Option(help="How much is altered, dropped or replayed; 100 if left out.")
    ] = None,
    fields: Annotated[
        str | None, typer.Option(help=f"What lies alter: {', '.join(FIELDS)}; all if left out.")
    ] = None,
    delay_ms: Annotated[
        float | None, typer.Option(help=f"How slow is slow; {SLOW_BY_MS:g} if left out.")
    ] = None,
    towards: Annotated[
        str | None, typer.Option(help="Members to be silent to, or to deceive, such as r1,alice.")
    ] = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Run one replica, end it, or make it misbehave on purpose.

    **Its process:** `start`, `stop` (politely), `kill` (at once), `pause` and `resume`; `run`
    becomes the replica, in the foreground.

    **What it sends:** `slow` delays it, `drop` omits a percentage, `lie` alters a percentage,
    field by field, `replay` repeats old messages, `silent` says nothing to some members,
    `equivocate` tells some members something else than the others. `behave` ends all that.
    """
    launcher = opened(directory)
    given = {
        "--percent": percent, "--fields": fields, "--delay-ms": delay_ms, "--towards": towards
    }  # fmt: skip
    _check_action(action, {option for option, value in given.items() if value is not None})
    names = _names(launcher, name)
    if action == "run":
        if len(names) > 1:
            raise ConfigError("one replica runs in the foreground; 'quorate up' runs them all")
        launcher.become(names[0])
    if action in _PROCESS_ACTIONS:
        for name in names:
            typer.echo(_PROCESS_ACTIONS[action](launcher, name))
        return
    order = Misbehave(
        number=0,
        behaviour=action,
        percent=100.0 if percent is None else percent,
        fields=_listed(fields),
        delay_ms=SLOW_BY_MS if delay_ms is None and action == "slow" else delay_ms or 0.0,
        towards=_listed(towards),
    )
    for told in _misbehave(launcher, directory, names, order):
        typer.echo(told)
