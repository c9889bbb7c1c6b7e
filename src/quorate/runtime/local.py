"""A whole cluster on one machine, made in one go: to try things out, to show, to measure.

Here, and only here, one hand holds everybody's private keys. Parties that do not trust each
other make their keys apart (`quorate identity new`) and share the public parts.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quorate.core.cluster import NONCE_BYTES, Client, Cluster, Replica
from quorate.core.contract import Contract
from quorate.core.errors import ConfigError
from quorate.core.stores import KafkaStore
from quorate.crypto.identity import Identity
from quorate.runtime.files import (
    CLUSTER_FILE,
    certificate_file,
    data_directory,
    key_file,
    write_certificate,
    write_cluster,
    write_identity,
)
from quorate.runtime.founding import write_mark
from quorate.runtime.ports import is_free

HOST = "127.0.0.1"
OPERATOR = "operator"
BASE_PORT = 7400
METRICS_PORT_OFFSET = 100
REPLICAS_MAX = METRICS_PORT_OFFSET

# One topic of each kind, from the cheapest contract to the strictest.
_STARTER_TOPICS: Mapping[str, Mapping[str, object]] = {
    "metrics": {"protection": "crash"},
    "alerts": {"protection": "byzantine", "broadcast": "vote"},
    "orders": {"protection": "byzantine", "broadcast": "authenticated"},
    "prices": {"protection": "byzantine", "broadcast": "chain"},
    "audit": {"protection": "byzantine", "broadcast": "reliable"},
    "ledger": {"protection": "byzantine", "order": "total"},
}


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A cluster together with the private keys of all its members, by name."""

    cluster: Cluster
    identities: Mapping[str, Identity]


def starter_topics() -> dict[str, Contract]:
    """Topics to begin with; they ask for 3f + 1 replicas."""
    return {name: Contract.parse(name, table) for name, table in _STARTER_TOPICS.items()}


def make_local_cluster(
    *,
    replicas: int = 4,
    f: int = 1,
    clients: Iterable[str] = ("alice", "bob"),
    link_security: Literal["tls", "mac"] = "tls",
    mac: str = "aes-gmac",
    base_port: int = BASE_PORT,
    topics: Mapping[str, Contract] | None = None,
    fsync: str = "always",
    kafkas: Sequence[KafkaStore] = (),
) -> LocalCluster:
    """Keys for everybody and the cluster that pins them, in memory only.

    The first replicas have `kafkas` as their stores, the others themselves.
    """
    if not 1 <= replicas <= REPLICAS_MAX:
        raise ConfigError(f"a local cluster has 1 to {REPLICAS_MAX} replicas, not {replicas}")
    servers = [Identity.generate(f"r{number}") for number in range(replicas)]
    users = [Identity.generate(name) for name in (*clients, OPERATOR)]
    cluster = Cluster(
        name="local",
        f=f,
        nonce=secrets.token_bytes(NONCE_BYTES),
        link_security=link_security,
        mac=mac,
        allow_misbehaviour=True,
        fsync=fsync,
        replicas=tuple(_replica(i, identity, base_port) for i, identity in enumerate(servers)),
        clients=tuple(
            Client.of(public, index=index, operator=public.name == OPERATOR)
            for index, public in enumerate(each.public for each in users)
        ),
        topics=starter_topics() if topics is None else topics,
        stores={f"r{number}": kafka for number, kafka in enumerate(kafkas)},
    )
    return LocalCluster(cluster, {each.public.name: each for each in (*servers, *users)})


def refuse_used_directory(directory: Path) -> None:
    """Keys that are there are never written over."""
    for path in (directory / CLUSTER_FILE, directory / "keys"):
        if path.exists():
            raise ConfigError(
                f"there is a cluster in {directory} already ({path.name} exists), and its keys "
                f"cannot be brought back once they are gone; choose another directory, or "
                f"remove this one yourself"
            )


def write_local_cluster(directory: Path, local: LocalCluster) -> None:
    """Write the directory that `quorate.runtime.files` describes; refuse one that is in use."""
    refuse_used_directory(directory)
    for name, identity in local.identities.items():
        write_identity(key_file(directory, name), identity)
        write_certificate(certificate_file(directory, name), identity.public)
    # Nobody can have run under an identity that was drawn just now.
    for replica in local.cluster.replicas:
        write_mark(data_directory(directory, replica.name), local.cluster)
    # The cluster file comes last: where it stands, everything else does.
    write_cluster(directory / CLUSTER_FILE, local.cluster)


def refuse_busy_ports(cluster: Cluster) -> None:
    """Say now that a port is taken, rather than when the replicas start."""
    for replica in cluster.replicas:
        for port in (replica.port, replica.metrics_port):
            if port is not None and not is_free(replica.host, port):
                raise ConfigError(
                    f"port {port}, which {replica.name} would use, is taken by another program; "
                    f"choose other ports with --base-port"
                )


def _replica(number: int, identity: Identity, base_port: int) -> Replica:
    return Replica.of(
        identity.public,
        number=number,
        host=HOST,
        port=base_port + number,
        metrics_port=base_port + METRICS_PORT_OFFSET + number,
    )
