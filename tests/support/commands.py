"""A control plane to command: four replicas of two parties, operators, and clients."""

import base64
from typing import Any

import msgspec

from quorate.core.cluster import Client, Cluster, Replica
from quorate.core.contract import Contract
from quorate.core.control import AddReplica, Command, Commit, Join, encode_command
from quorate.core.ids import NodeId, node_of
from quorate.core.ordering import Assigned
from quorate.protocol.control.machine import Control
from quorate.protocol.control.state import ControlState

LOG: dict[str, Any] = {"protection": "byzantine", "order": "total"}
SECOND_US = 1_000_000

# Nodes: an operator each of the parties acme and bolt, and clients with a few sessions.
ACME, BOLT, ANNA, BEN, CARL = (node_of(1000 + index) for index in range(5))
PRODUCERS = {"anna": ANNA, "ben": BEN, "carl": CARL}


def pins(seed: int) -> dict[str, Any]:
    sign_key = bytes([1, seed] * 16)
    body = base64.b64encode(sign_key).decode()
    return {
        "sign_key": sign_key,
        "mac_key": bytes([2, seed] * 16),
        "certificate": f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n",
    }


def replica(number: int, **changes: Any) -> Replica:
    fields: dict[str, Any] = {
        "number": number,
        "name": f"r{number}",
        "party": "acme" if number % 2 == 0 else "bolt",
        "host": "127.0.0.1",
        "port": 7400 + number,
        **pins(number),
    }
    return Replica(**fields | changes)


def cluster(topics: dict[str, dict[str, Any]] | None = None, **changes: Any) -> Cluster:
    clients = (("acme-op", "acme"), ("bolt-op", "bolt"), *((name, "crew") for name in PRODUCERS))
    chosen = {"orders": {**LOG, "partitions": 4}, "news": {}} if topics is None else topics
    fields: dict[str, Any] = {
        "name": "test",
        "f": 1,
        "replicas": tuple(replica(number) for number in range(4)),
        "clients": tuple(
            Client(
                number=1000 + index,
                name=name,
                party=party,
                operator=name.endswith("-op"),
                **pins(100 + index),
            )
            for index, (name, party) in enumerate(clients)
        ),
        "topics": {name: Contract.parse(name, table) for name, table in chosen.items()},
    }
    return Cluster(**fields | changes)


class Commander:
    """A machine, and somebody that numbers commands and knows the time."""

    def __init__(self, made: Cluster | None = None) -> None:
        self.genesis = cluster() if made is None else made
        self.control = Control(self.genesis)
        self.now_us = 1_000 * SECOND_US
        self.sequence = 0

    @property
    def state(self) -> ControlState:
        return self.control.state

    def does(self, node: NodeId, command: Command) -> str:
        return self.sends(node, encode_command(command))

    def sends(self, node: NodeId, value: bytes) -> str:
        self.sequence += 1
        return self.control.apply(node, self.sequence, value, self.now_us)

    def ok(self, node: NodeId, command: Command) -> None:
        sentence = self.does(node, command)
        assert sentence == "", sentence

    def wait(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND_US)

    def join(self, node: NodeId, *topics: str, group: str = "crew/g") -> None:
        self.ok(node, Join(group, list(topics or ("orders",))))

    def commit(self, node: NodeId, *offsets: tuple[str, int, int], group: str = "crew/g") -> None:
        """A member that has heard of the present epoch, and does as it says."""
        self.ok(node, Commit(group, self.state.groups[group].epoch, list(offsets)))

    def assignment(self, group: str, node: NodeId) -> Assigned | None:
        return self.control.groups.assignments(group, [node]).get(node)

    def reads(self, node: NodeId, group: str = "crew/g") -> list[tuple[str, int]]:
        assignment = self.assignment(group, node)
        return [] if assignment is None else [part[:2] for part in assignment.partitions]


def add_replica(seed: int = 4, **changes: Any) -> AddReplica:
    fields: dict[str, Any] = {
        "name": f"r{seed}",
        "party": "acme",
        "host": "127.0.0.1",
        "port": 7400 + seed,
        **pins(seed),
    }
    return AddReplica(**fields | changes)


def encoded(control: Control) -> bytes:
    return msgspec.msgpack.encode(control.state)


def rebuilt(control: Control, genesis: Cluster) -> Control:
    return Control(genesis, msgspec.msgpack.decode(encoded(control), type=ControlState))
