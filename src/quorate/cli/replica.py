"""`quorate replica`: run one replica, end it, or make it misbehave on purpose (B8, F13).

A process is controlled on the machine that it runs on. Misbehaviour is ordered over the network,
by an operator, and only where the cluster file allows it.
"""

from difflib import get_close_matches
from pathlib import Path
from random import Random
from shlex import quote
from signal import Signals
from typing import Annotated

import typer

from quorate.cli.directory import DEFAULT, DirectoryOption, asked, opened, operator
from quorate.cli.tables import on_stderr
from quorate.client.admin import Admin
from quorate.core.errors import ConfigError, LocalProtocolError
from quorate.core.messages import Misbehave
from quorate.protocol.misbehaviour import FIELDS
from quorate.runtime.files import CLUSTER_FILE
from quorate.runtime.launcher import Launcher
from quorate.runtime.loop import run
from quorate.runtime.misbehaving import BEHAVIOURS, describe, wrapper_for

ALL = "all"
SLOW_BY_MS = 200.0
AHEAD_BY_S = 3600.0
DISK_ACTIONS = ("prepare", "restore")
PROCESS_ACTIONS = ("run", "start", "stop", "kill", "pause", "resume", *DISK_ACTIONS)

# Which options mean something to which misbehaviour.
_OPTIONS = {
    "slow": ("--delay-ms",),
    "lie": ("--percent", "--fields"),
    "drop": ("--percent",),
    "replay": ("--percent",),
    "silent": ("--towards",),
    "equivocate": ("--towards",),
    "clock": ("--ahead-s",),
}

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def replica(
    name: Annotated[str, typer.Argument(metavar="ID", help="Which one, such as r1, or all.")],
    action: Annotated[str, typer.Argument(metavar="ACTION", help="What to do; see above.")],
    percent: Annotated[
        float | None,
        typer.Option(help="For lie, drop, replay: how much of what it sends; 100 if left out."),
    ] = None,
    fields: Annotated[
        str | None,
        typer.Option(help=f"For lie: what to alter of {', '.join(FIELDS)}; any if left out."),
    ] = None,
    delay_ms: Annotated[
        float | None,
        typer.Option(help=f"For slow: by how much; {SLOW_BY_MS:g} if left out."),
    ] = None,
    towards: Annotated[
        str | None,
        typer.Option(help="For silent, equivocate: the victims, such as r1,alice."),
    ] = None,
    ahead_s: Annotated[
        float | None,
        typer.Option(
            help=f"For clock: by how much, or behind if below 0; {AHEAD_BY_S:g} if left out."
        ),
    ] = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Run one replica, end it, or make it misbehave on purpose.

    Its process: `start`, `stop`, `kill` (at once), `pause`, `resume`; `run` runs it in the
    foreground.

    Its disk: `prepare` makes it a new disk of this cluster, before the first start. `restore` makes
    it a new disk in place of a lost one, while f + 1 others run or have their disks here. **This
    may cost safety**: the replica does not know what it voted for, and may vote otherwise. Until it
    has caught up, it counts among the f that may fail or lie, so that no other one may.

    What it sends: `slow` holds it back, `drop` omits some of it, `lie` alters some of it,
    `replay` repeats some of it, `silent` keeps it from some members, `equivocate` tells some
    members something else than the others. Its time of day: `clock` moves it, for log topics.
    Its disk: `forget` signs for large batches and does not write them. `behave` ends all that.
    """
    launcher = opened(directory)
    given = {
        "--percent": percent,
        "--fields": fields,
        "--delay-ms": delay_ms,
        "--towards": towards,
        "--ahead-s": ahead_s,
    }
    _check_action(action, [option for option, value in given.items() if value is not None])
    names = _names(launcher, name)
    if action in PROCESS_ACTIONS:
        _control(launcher, names, action)
        return
    order = Misbehave(
        number=0,
        behaviour=action,
        percent=100.0 if percent is None else percent,
        fields=_listed(fields),
        delay_ms=SLOW_BY_MS if delay_ms is None else delay_ms,
        towards=_listed(towards),
        ahead_s=AHEAD_BY_S if ahead_s is None else ahead_s,
    )
    _check_order(launcher, names, order)
    run(_misbehave(launcher, names, order))
    _tell(names, order, directory)


def _check_action(action: str, options: list[str]) -> None:
    allowed = (*PROCESS_ACTIONS, *BEHAVIOURS)
    if action not in allowed:
        near = get_close_matches(action, allowed, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"a replica cannot {action!r}; {hint}it can {', '.join(allowed[:-1])} or {allowed[-1]}"
        )
    meant = _OPTIONS.get(action, ())
    for option in options:
        if option not in meant:
            instead = f"it takes {' and '.join(meant)}" if meant else "it takes no such option"
            raise ConfigError(f"{option} means nothing to {action}; {instead}")


def _names(launcher: Launcher, name: str) -> list[str]:
    if name == ALL:
        return [replica.name for replica in launcher.cluster.replicas]
    return [launcher.replica(name).name]


def _listed(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


# Processes


def _control(launcher: Launcher, names: list[str], action: str) -> None:
    if action == "run":
        if len(names) > 1:
            raise ConfigError("only one replica can run in the foreground; 'quorate up' runs all")
        launcher.become(names[0])
    if action in DISK_ACTIONS:
        for name in names if len(names) == 1 else launcher.held:
            launcher.found(name, restores=action == "restore")
            typer.echo(f"{name} has a new disk; start it with: quorate replica {name} start")
        return
    if len(names) > 1:
        names = _concerned(launcher, action)
    if action == "start":
        _start(launcher, names)
        return
    for name in names:
        _signal(launcher, name, action)


def _concerned(launcher: Launcher, action: str) -> list[str]:
    """Those of all replicas here that the action can be about."""
    running = [name for name in launcher.held if launcher.pid(name) is not None]
    names = [n for n in launcher.held if n not in running] if action == "start" else running
    if not names:
        state = "every replica runs already" if running else "no replica runs"
        raise ConfigError(f"there is nothing to {action}: {state} here")
    return names


def _start(launcher: Launcher, names: list[str]) -> None:
    with on_stderr().status(f"Starting {', '.join(names)} ..."):
        for name in names:
            launcher.start(name)
        for name in names:
            launcher.wait_until_up(name)
    for name in names:
        typer.echo(f"{name} is up, as process {launcher.pid(name)}")


def _signal(launcher: Launcher, name: str, action: str) -> None:
    if action == "pause":
        launcher.signal(name, Signals.SIGSTOP)
        typer.echo(f"{name} is paused: its links stay open, and it does nothing")
    elif action == "resume":
        launcher.signal(name, Signals.SIGCONT)
        typer.echo(f"{name} goes on")
    else:
        launcher.stop(name, kill=action == "kill")
        typer.echo(f"{name} was killed" if action == "kill" else f"{name} is stopped")


# Misbehaviour


def _check_order(launcher: Launcher, names: list[str], order: Misbehave) -> None:
    """Find out here what the replicas would refuse, for a shorter way to a sentence."""
    cluster = launcher.cluster
    if not cluster.allow_misbehaviour:
        raise ConfigError(
            f"replicas of cluster {cluster.name} may not misbehave on purpose: that takes "
            f"allow_misbehaviour = true in {CLUSTER_FILE}, and a start of the replicas after it"
        )
    for name in names:
        try:
            wrapper_for(order, cluster, launcher.replica(name).number, Random())
        except LocalProtocolError as error:
            raise ConfigError(f"{name} cannot do that: {error}") from None
        _refuse_deaf(launcher, name)


def _refuse_deaf(launcher: Launcher, name: str) -> None:
    if name in launcher.held and launcher.pid(name) is None:
        raise ConfigError(f"{name} is not running; start it with: quorate replica {name} start")
    if launcher.is_paused(name):
        raise ConfigError(f"{name} is paused; let it go on with: quorate replica {name} resume")


async def _misbehave(launcher: Launcher, names: list[str], order: Misbehave) -> None:
    async def misbehave(admin: Admin) -> None:
        for name in names:
            await admin.misbehave(
                name,
                order.behaviour,
                percent=order.percent,
                fields=order.fields,
                delay_ms=order.delay_ms,
                towards=order.towards,
                ahead_s=order.ahead_s,
            )

    await asked(launcher, operator(launcher), misbehave)


def _tell(names: list[str], order: Misbehave, directory: Path) -> None:
    words = describe(order)
    for name in names:
        typer.echo(f"{name} behaves again" if words == "none" else f"{name} from now on: {words}")
    if words != "none":
        where = "" if directory == DEFAULT else f" --directory {quote(str(directory))}"
        who = names[0] if len(names) == 1 else ALL
        on_stderr().print(f"To end it: quorate replica {who} behave{where}")
