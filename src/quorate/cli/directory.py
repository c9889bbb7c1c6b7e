"""What a cluster directory offers to whoever works in it: its replicas, and who one can be.

A command acts as one member of the cluster, and can only be one whose private keys are in the
directory. Where nobody is named, it takes the first client that may do what is asked.
"""

from pathlib import Path
from typing import Annotated

import typer

from quorate.core.cluster import Client
from quorate.core.contract import EVERYONE
from quorate.core.errors import ConfigError
from quorate.runtime.files import CLUSTER_FILE, cluster_file, key_file
from quorate.runtime.launcher import Launcher

DEFAULT = Path("cluster")

# Commands that have no other argument take the directory as one, or as the option of the others.
Directory = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIRECTORY", help="A directory that `quorate init` wrote.", show_default="cluster"
    ),
]
DirectoryOption = Annotated[
    Path, typer.Option("--directory", "-d", help="A directory that `quorate init` wrote.")
]


def opened(directory: Path) -> Launcher:
    """The cluster of a directory, or a sentence that says how to get one."""
    if not cluster_file(directory).is_file():
        raise ConfigError(
            f"there is no cluster in {directory} (no file {CLUSTER_FILE}): "
            f"make one with 'quorate init {directory}', or name another directory"
        )
    return Launcher(directory)


def observer(launcher: Launcher) -> str:
    """Whom to ask replicas as: an operator if one is here, since they answer anybody."""
    here = _clients_here(launcher)
    if not here:
        raise ConfigError(
            f"replicas are asked by a client of the cluster, and {launcher.directory}/keys holds "
            f"the keys of none; its clients are {_names(list(launcher.cluster.clients))} (it takes "
            f"none to run a replica: quorate replica NAME start)"
        )
    return next((client.name for client in here if client.operator), here[0].name)


def operator(launcher: Launcher) -> str:
    """Whom to make replicas misbehave as."""
    for client in _clients_here(launcher):
        if client.operator:
            return client.name
    known = _names([client for client in launcher.cluster.clients if client.operator])
    raise ConfigError(
        f"only an operator makes replicas misbehave, and {launcher.directory}/keys holds the "
        f"keys of none; the operators of this cluster are {known}"
    )


def publisher(launcher: Launcher, topic: str, name: str | None) -> str:
    """Whom to publish on this topic as."""
    launcher.cluster.placement(topic)
    return name or _first_of(launcher, launcher.cluster.topics[topic].publish)


def subscriber(launcher: Launcher, topics: list[str], name: str | None) -> str:
    """Whom to subscribe to these topics as."""
    for topic in topics:
        launcher.cluster.placement(topic)
    return name or _first_of(launcher, launcher.cluster.topics[topics[0]].subscribe)


def _first_of(launcher: Launcher, allowed: tuple[str, ...]) -> str:
    here = _clients_here(launcher)
    may = [client for client in here if allowed == EVERYONE or client.name in allowed]
    if not may:
        who = "every client" if allowed == EVERYONE else ", ".join(allowed) or "nobody"
        raise ConfigError(
            f"this topic is open to {who}, and {launcher.directory}/keys holds the keys of "
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
