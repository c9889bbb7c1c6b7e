"""What clients of a simulated log topic command, in the seeds that have a control plane.

Every publisher registers and says now and then that it is still there, or replicas take nothing
from it. Some give that up for a while. Beside that, clients create and alter topics, join groups,
leave them, and commit offsets that may be wrong: a refusal is an answer, too, and replicas must
refuse alike.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from quorate.core.cluster import Client, Cluster, Replica
from quorate.core.control import (
    LEASE_US_MAX,
    AlterTopic,
    Command,
    Commit,
    CreateTopic,
    Join,
    Leave,
    Register,
    Renew,
    Unregister,
)
from quorate.core.ids import MemberId, NodeId
from quorate.protocol.topic import Topic

RENEW_EVERY_US = 10_000_000
RENEWALS = 12
COMMANDS_MAX = 40
GROUPS = ("first", "second")


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """What a client is told to command."""

    at_us: int
    node: NodeId
    command: Command


def simulated_cluster(
    topics: tuple[Topic, ...], clients: tuple[MemberId, ...], keys: Mapping[MemberId, bytes]
) -> Cluster:
    """The cluster file of a world without secrets. Every client is an operator.

    Those who sign have these keys.
    """
    return Cluster(
        name="simulated",
        f=topics[0].f,
        replicas=tuple(
            Replica(
                number=node, name=f"r{node}", party="all", host="r", port=1 + node, **_pins(node)
            )
            for node in topics[0].members
        ),
        clients=tuple(
            Client(
                number=node,
                name=f"client-{node}",
                party="all",
                operator=True,
                **{**_pins(node), **({"sign_key": keys[node]} if node in keys else {})},
            )
            for node in clients
        ),
        topics={topic.name: topic.contract for topic in topics},
    )


def draw_commands(
    random: Random,
    topics: tuple[Topic, ...],
    publishers: tuple[NodeId, ...],
    readers: tuple[NodeId, ...],
    calm_us: int,
) -> Iterator[PlannedCommand]:
    topic = topics[0]
    for node in publishers:
        for each in topics:
            yield PlannedCommand(0, node, Register(each.name, LEASE_US_MAX))
            for number in range(1, RENEWALS):
                # As a producer does whose lease may have ended, when clocks jump.
                again = Register(each.name, LEASE_US_MAX)
                yield PlannedCommand(number * RENEW_EVERY_US, node, again)
    # Drawn apart, so that all other commands are as they would be without.
    apart = Random(f"{calm_us}:interruptions")
    yield from _draw_interruptions(apart, topic, publishers, calm_us)
    for number in range(random.randint(1, COMMANDS_MAX)):
        node = random.choice((*publishers, *readers))
        yield PlannedCommand(random.randint(1, calm_us), node, _draw(random, topic, number))


def _draw_interruptions(
    random: Random, topic: Topic, publishers: tuple[NodeId, ...], calm_us: int
) -> Iterator[PlannedCommand]:
    """Some are registered no more, in the middle of everything, and again after a while."""
    for node in publishers:
        for _ in range(random.choice((0, 0, 1, 3))):
            at_us = random.randint(1, calm_us)
            yield PlannedCommand(at_us, node, Unregister(topic.name))
            again = Register(topic.name, LEASE_US_MAX)
            yield PlannedCommand(at_us + random.randint(1, 500_000), node, again)


def _draw(random: Random, topic: Topic, number: int) -> Command:
    group, made = random.choice(GROUPS), f"made-{random.randrange(4)}"
    partition = random.randrange(topic.contract.partitions + 1)
    return random.choice(
        (
            CreateTopic(made, {"order": "total", "protection": topic.contract.protection}),
            AlterTopic(made, {"partitions": 1 + random.randrange(4)}),
            AlterTopic(topic.name, {"publishers_max": 100 + number}),
            Join(group, [topic.name], LEASE_US_MAX),
            Join(group, [topic.name, made], random.choice((1_000_000, LEASE_US_MAX))),
            Leave(group),
            Commit(group, random.randrange(6), [(topic.name, partition, random.randrange(50))]),
            Renew(),
        )
    )


def _pins(node: NodeId) -> dict[str, Any]:
    key = node.to_bytes(32, "big")
    body = base64.b64encode(key).decode()
    return {
        "sign_key": key,
        "mac_key": key[::-1],
        "certificate": f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n",
    }
