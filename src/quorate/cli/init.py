"""`quorate init`: a local cluster to try things out with."""

from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from quorate.core.cluster import Cluster
from quorate.core.errors import ConfigError
from quorate.core.names import check_name
from quorate.runtime.files import CLUSTER_FILE
from quorate.runtime.local import (
    BASE_PORT,
    OPERATOR,
    make_local_cluster,
    refuse_busy_ports,
    refuse_used_directory,
    write_local_cluster,
)

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


class LinkSecurity(StrEnum):
    tls = "tls"
    mac = "mac"


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("cluster"),
    replicas: Annotated[int, typer.Option(help="How many broker processes.")] = 4,
    f: Annotated[int, typer.Option("--f", help="How many of them may fail or lie.")] = 1,
    clients: Annotated[
        str, typer.Option(help="Names of publishers and subscribers, with commas between.")
    ] = "alice,bob",
    link_security: Annotated[
        LinkSecurity, typer.Option(help="tls: encrypted. mac: authenticated only.")
    ] = LinkSecurity.tls,
    base_port: Annotated[
        int,
        typer.Option(
            help="The port of the first replica; the next ones follow, and metrics 100 above."
        ),
    ] = BASE_PORT,
) -> None:
    """Write a local cluster: keys, certificates and one TOML file."""
    _refuse_too_few(replicas, f)
    local = make_local_cluster(
        replicas=replicas,
        f=f,
        clients=_client_names(clients),
        link_security=link_security.value,
        base_port=base_port,
    )
    # Where this cluster runs already, its ports are taken by nobody else.
    refuse_used_directory(directory)
    refuse_busy_ports(local.cluster)
    write_local_cluster(directory, local)
    _tell(directory, local.cluster)


def _refuse_too_few(replicas: int, f: int) -> None:
    if f < 0:
        raise ConfigError(f"--f is {f}, but it must be 0 or more")
    if replicas < 1:
        raise ConfigError(f"--replicas is {replicas}, but it must be 1 or more")
    if replicas < 3 * f + 1:
        raise ConfigError(
            f"to tolerate {f} lying replica(s) takes at least {3 * f + 1} of them (3f + 1), but "
            f"--replicas is {replicas}; choose --replicas {3 * f + 1}, or --f {(replicas - 1) // 3}"
        )


def _client_names(listed: str) -> list[str]:
    names = [name.strip() for name in listed.split(",") if name.strip()]
    for name in names:
        check_name("a name in --clients", name)
        if name == OPERATOR:
            raise ConfigError(f"--clients names {OPERATOR!r}, which every local cluster has anyway")
    return names


def _tell(directory: Path, cluster: Cluster) -> None:
    names = _span([replica.name for replica in cluster.replicas])
    ports = _span([str(replica.port) for replica in cluster.replicas])
    is_one = len(cluster.replicas) == 1
    made = {
        f"{directory / CLUSTER_FILE}": "who takes part, and what each topic promises",
        f"{directory / 'keys'}/": "private keys, readable by you alone",
        f"{directory / 'certificates'}/": "the pinned certificates",
    }
    width = max(map(len, made))
    count = "one replica" if is_one else f"{len(cluster.replicas)} replicas"
    typer.echo(f"A cluster of {count}; f = {cluster.f} may fail or lie:")
    for path, what in made.items():
        typer.echo(f"  {path:<{width}}   {what}")
    typer.echo(
        f"Replicas   {names}, on port{'' if is_one else 's'} {ports}\n"
        f"Clients    {', '.join(client.name for client in cluster.clients)}\n"
        f"Topics     {', '.join(cluster.topics)}\n"
        f"Next       quorate up {quote(str(directory))}"
    )


def _span(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"
