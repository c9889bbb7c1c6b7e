"""`quorate init`: a local cluster to try things out with."""

from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from quorate.core.cluster import Cluster
from quorate.core.contract import Contract
from quorate.core.errors import ConfigError
from quorate.core.names import check_name
from quorate.core.stores import KafkaStore
from quorate.runtime.files import CLUSTER_FILE
from quorate.runtime.local import (
    BASE_PORT,
    OPERATOR,
    make_local_cluster,
    refuse_busy_ports,
    refuse_used_directory,
    starter_topics,
    write_local_cluster,
)

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


# Where a Kafka is looked for if nothing is said: one for each replica.
_KAFKA_HOST, _KAFKA_PORT, _KAFKA_PORT_STEP = "127.0.0.1", 9092, 100


class Store(StrEnum):
    embedded = "embedded"
    kafka = "kafka"


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
    store: Annotated[
        Store,
        typer.Option(
            help="Where payloads of validated topics are kept: by the replicas, or in Kafka."
        ),
    ] = Store.embedded,
    kafka: Annotated[
        str,
        typer.Option(
            help="HOST:PORT of one Kafka cluster for each replica, with commas between. If there "
            "are fewer, the other replicas keep payloads themselves."
        ),
    ] = "",
) -> None:
    """Write a local cluster: keys, certificates and one TOML file."""
    _refuse_too_few(replicas, f)
    kafkas = _kafkas(store, kafka, replicas)
    local = make_local_cluster(
        replicas=replicas,
        f=f,
        clients=_client_names(clients),
        link_security=link_security.value,
        base_port=base_port,
        topics=starter_topics() | (_validated_topics() if kafkas else {}),
        kafkas=kafkas,
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


def _kafkas(store: Store, listed: str, replicas: int) -> list[KafkaStore]:
    """The Kafka clusters of the first replicas, in their order."""
    addresses = [address.strip() for address in listed.split(",") if address.strip()]
    if store is Store.embedded:
        if addresses:
            raise ConfigError("--kafka names Kafka clusters, so --store must be kafka")
        return []
    if len(addresses) > replicas:
        raise ConfigError(
            f"--kafka names {len(addresses)} Kafka clusters, but there are {replicas} replicas, "
            "and each has one at most"
        )
    ports = range(_KAFKA_PORT, _KAFKA_PORT + replicas * _KAFKA_PORT_STEP, _KAFKA_PORT_STEP)
    usual = [f"{_KAFKA_HOST}:{port}" for port in ports]
    return [KafkaStore(bootstrap=address) for address in addresses or usual]


def _validated_topics() -> dict[str, Contract]:
    """What is kept in Kafka is that of validated topics, so there is one to begin with."""
    table = {"protection": "byzantine", "order": "total", "validated": True}
    return {"records": Contract.parse("records", table)}


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
        f"{_stores(cluster)}"
        f"Next       quorate up {quote(str(directory))}"
    )


def _stores(cluster: Cluster) -> str:
    if not cluster.stores:
        return ""
    named = ", ".join(f"{name} at {store.bootstrap}" for name, store in cluster.stores.items())
    return f"Kafka      {named}\n"


def _span(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"
