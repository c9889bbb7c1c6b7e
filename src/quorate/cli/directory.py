"""What a cluster directory offers to whoever works in it: its replicas, and who one can be.

A command acts as one member of the cluster, and can only be one whose private keys are in the
directory. Where nobody is named, it takes the first client that may do what is asked.
"""

import contextlib
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from quorate.client.admin import Admin
from quorate.client.session import ANSWER_TIMEOUT_S
from quorate.core.cluster import Client, Cluster
from quorate.core.contract import EVERYONE
from quorate.core.control import CONTROL_TOPIC
from quorate.core.errors import ConfigError, UnreachedError
from quorate.runtime.files import CLUSTER_FILE, key_file
from quorate.runtime.launcher import Launcher
from quorate.runtime.loop import run

DEFAULT = Path("cluster")
# How long nobody may be there at any address before a command gives up.
REFUSED_S_MAX = 1.0

# Commands that have no other argument take the directory as one, or as the option of the others.
Directory = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIRECTORY",
        help="Where `cluster.toml` and your keys are; `quorate init` makes such a directory.",
        show_default="cluster",
    ),
]
SameDirectoryOption = Annotated[
    Path,
    typer.Option(
        "--directory",
        "-d",
        help="The same, as with other commands; DIRECTORY counts if both are given.",
    ),
]
DirectoryOption = Annotated[
    Path,
    typer.Option(
        "--directory",
        "-d",
        help="Where `cluster.toml` and your keys are; `quorate init` makes such a directory.",
    ),
]


OperatorName = Annotated[
    str | None,
    typer.Option("--as", help="Which operator to be; if left out, one whose keys are here."),
]
ClientName = Annotated[
    str | None,
    typer.Option(
        "--as", help="Which client to be; if left out, one that may and whose keys are here."
    ),
]
_Value = TypeVar("_Value")


def opened(directory: Path) -> Launcher:
    """The cluster of a directory, or a sentence that says how to get one."""
    # Whoever names the cluster file itself means the directory it is in.
    inside = directory.parent if directory.name == CLUSTER_FILE else directory
    if not (inside / CLUSTER_FILE).is_file():
        raise ConfigError(
            f"there is no cluster in {inside} (no file {CLUSTER_FILE}): make one with "
            f"{on_shell('quorate', 'init', inside)}, or name the directory of yours (--directory)"
        )
    return Launcher(directory)


def on_shell(*words: object) -> str:
    """A command to be copied, in a sentence; a path with a space in it has quotes of its own."""
    command = shlex.join(map(str, words))
    return command if "'" in command else f"'{command}'"


def observer(launcher: Launcher) -> str:
    """Whom to ask replicas as: an operator if one is here, since they answer anybody."""
    here = _clients_here(launcher)
    if not here:
        raise ConfigError(
            f"replicas are asked by a client of the cluster, and {launcher.directory} holds "
            f"the keys of none; its clients are {_names(list(launcher.cluster.clients))} (it takes "
            f"none to run a replica: quorate replica NAME start)"
        )
    return next((client.name for client in here if client.operator), here[0].name)


def operator(launcher: Launcher, does: str = "makes replicas misbehave") -> str:
    """Whom to do as what only an operator does."""
    for client in _clients_here(launcher):
        if client.operator:
            return client.name
    operators = [client for client in launcher.cluster.clients if client.operator]
    if not operators:
        raise ConfigError(
            f"only an operator {does}, and cluster {launcher.cluster.name} has none; 'quorate "
            f"cluster assemble --client NAME.pub,operator,party=PARTY' makes a client one"
        )
    raise ConfigError(
        f"only an operator {does}, and {launcher.directory} holds the keys of none; the operators "
        f"of this cluster are {_names(operators)}"
    )


def publisher(launcher: Launcher, topic: str, name: str | None) -> str:
    """Whom to publish on this topic as."""
    contract = known(launcher, [topic]).contract(topic)
    return name or _first_of(launcher, contract.publish)


def subscriber(launcher: Launcher, topics: list[str], name: str | None) -> str:
    """Whom to subscribe to these topics as."""
    contract = known(launcher, topics).contract(topics[0])
    return name or _first_of(launcher, contract.subscribe)


def client_here(launcher: Launcher) -> str:
    """Whom to be where several topics are read and published: a client that is no operator."""
    return _first_of(launcher, EVERYONE)


def known(launcher: Launcher, topics: Iterable[str]) -> Cluster:
    """The cluster as it is now, if its file does not know one of these topics."""
    unknown = [topic for topic in topics if topic not in (*launcher.cluster.topics, CONTROL_TOPIC)]
    if unknown and launcher.cluster.control is not None:
        who = observer(launcher)
        launcher.cluster = run(asked(launcher, who, lambda admin: admin.learn_topology()))
    for topic in unknown:
        launcher.cluster.contract(topic)
    return launcher.cluster


async def asked(launcher: Launcher, who: str, work: Callable[[Admin], Awaitable[_Value]]) -> _Value:
    """What the cluster answers to this client."""
    with hint_if_unreached(launcher):
        async with Admin(launcher.directory, who) as admin:
            await admin.reach(patience_s(launcher))
            return await work(admin)


def as_observer(launcher: Launcher, work: Callable[[Admin], Awaitable[_Value]]) -> _Value:
    """What the cluster answers to a client that may ask."""
    return run(asked(launcher, observer(launcher), work))


def as_operator(
    directory: Path, name: str | None, does: str, work: Callable[[Admin], Awaitable[_Value]]
) -> _Value:
    """What the cluster answers to this operator, or to one whose keys are here."""
    launcher = opened(directory)
    return run(asked(launcher, name or operator(launcher, does), work))


def patience_s(launcher: Launcher) -> float:
    """How long to try while nobody is there: one that starts here right now needs some time."""
    starts = any(launcher.pid(name) is not None for name in launcher.held)
    return ANSWER_TIMEOUT_S if starts else REFUSED_S_MAX


@contextlib.contextmanager
def hint_if_unreached(launcher: Launcher) -> Iterator[None]:
    """Say what to do where no replica can be reached."""
    try:
        yield
    except UnreachedError as error:
        hint = "are they running?"
        if launcher.held:
            is_all = len(launcher.held) == len(launcher.cluster.replicas)
            started = "them" if is_all else ", ".join(launcher.held)
            hint += f" {on_shell('quorate', 'up', launcher.directory)} starts {started}"
        raise UnreachedError(f"{error}; {hint}", error.causes) from None


def _first_of(launcher: Launcher, allowed: tuple[str, ...]) -> str:
    here = _clients_here(launcher)
    may = [client for client in here if allowed == EVERYONE or client.name in allowed]
    if not may:
        who = "every client" if allowed == EVERYONE else ", ".join(allowed) or "nobody"
        raise ConfigError(
            f"this topic is open to {who}, and {launcher.directory} holds the keys of "
            f"{_names(here)}"
        )
    return min(may, key=lambda client: client.operator).name


def _clients_here(launcher: Launcher) -> list[Client]:
    return [
        client
        for client in launcher.cluster.clients
        if key_file(launcher.directory, client.name).exists()
    ]


def _names(clients: list[Client]) -> str:
    return ", ".join(client.name for client in clients) or "none"
