"""The rules for topics, replicas and clients: from a cluster and a command to the cluster after it.

Source: DESIGN section 3; FIT-Broker 2013, section 4.4.4, where channels come from files that
every replica reads: here they come from the file and from the log.

A cluster that exists is consistent, so a change is checked by making the cluster that it would
lead to. What that cannot know is checked here:
- names that begin with `quorate.` are the cluster's own;
- what decides how a topic's events are ordered, protected or carried does not change: those that
  were published were promised something else, and a new topic is needed. Partitions only grow,
  since what stands in one must stay;
- a replica's keys and address are for its own party to change (where that has no operator, and
  only one party has, for that one), and another replica comes only if enough parties want the same
  one: one more than may lie, or all that have operators;
- a client comes, changes and goes by the word of its own party, likewise. Its name and number are
  its own for ever, because what it published stands in the logs. One operator stays.

A replica that is added follows the order logs, keeps them and carries out what they say, and serves
topics that are created later. Those who order stay the same: a quorum of them must meet any other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from quorate.core.cluster import CLIENT_NUMBER_MIN, Client, Cluster, Former, Replica
from quorate.core.contract import Contract
from quorate.core.control import (
    CONTROL_TOPIC_ID,
    RESERVED_PREFIX,
    AddReplica,
    AlterTopic,
    CreateTopic,
    PutClient,
    RemoveClient,
    ReplaceReplica,
)
from quorate.core.errors import RefusedError
from quorate.core.ids import topic_id
from quorate.protocol.control.state import CLIENTS_MAX, TOPICS_MAX

# In the order in which a refusal names them.
FIXED_KEYS = (
    "protection",
    "order",
    "broadcast",
    "history_every",
    "validated",
    "event_proofs",
    "order_group",
)

_Member = TypeVar("_Member", Replica, Client)


def create_topic(cluster: Cluster, command: CreateTopic) -> Cluster:
    """The cluster with one more topic."""
    name = command.topic
    if name.startswith(RESERVED_PREFIX) or topic_id(name) == CONTROL_TOPIC_ID:
        raise RefusedError(f"the topic name '{name}' is reserved for the cluster itself")
    if name in cluster.topics:
        raise RefusedError(f"there is a topic '{name}' already")
    if len(cluster.topics) >= TOPICS_MAX:
        raise RefusedError(f"there are {TOPICS_MAX} topics already, and no room for another")
    contract = Contract.parse(name, command.contract)
    contract.check_available(name)
    return replace(
        cluster,
        topics={**cluster.topics, name: contract},
        placed_over={**cluster.placed_over, name: len(cluster.replicas)},
    )


def alter_topic(cluster: Cluster, command: AlterTopic) -> Cluster:
    name, changes = command.topic, command.changes
    present = known_topic(cluster, name)
    if not changes:
        raise RefusedError(f"nothing to change on topic '{name}'")
    for key in FIXED_KEYS:
        if key in changes:
            raise RefusedError(
                f"the {key} of topic '{name}' cannot change, because its events were promised "
                f"otherwise; a new topic is needed"
            )
    table = {**present.table(), **changes}
    contract = Contract.parse(
        name, {key: value for key, value in table.items() if value is not None}
    )
    if contract.partitions < present.partitions:
        raise RefusedError(
            f"the partitions of topic '{name}' can only grow; there are {present.partitions}"
        )
    return replace(cluster, topics={**cluster.topics, name: contract})


def replace_replica(cluster: Cluster, command: ReplaceReplica, operator: Client) -> Cluster:
    present = _named("replica", cluster.replicas, command.name)
    if not may_speak_for(cluster, operator, present.party):
        raise RefusedError(
            f"{present.name} is run by {present.party}, and {operator.name} is of "
            f"{operator.party}; only operators of its own party replace a replica"
        )
    changed = _replica(command, number=present.number, party=present.party)
    replicas = [changed if each is present else each for each in cluster.replicas]
    return replace(cluster, replicas=tuple(replicas))


def add_replica(cluster: Cluster, command: AddReplica, placed_over: dict[str, int]) -> Cluster:
    """The cluster with one more replica, all of whose topics stay where they are."""
    added = _replica(command, number=len(cluster.replicas), party=command.party)
    return replace(cluster, replicas=(*cluster.replicas, added), placed_over=placed_over)


def put_client(cluster: Cluster, command: PutClient, operator: Client) -> Cluster:
    """The cluster with one more client, or with one that has other keys or is back."""
    ever: tuple[Client | Former, ...] = (*cluster.clients, *cluster.formers)
    known = next((each for each in ever if each.name == command.name), None)
    # In an order that is the same at every replica, as the sentence has to be.
    for party in (command.party if known is None else known.party, command.party):
        if not may_speak_for(cluster, operator, party):
            raise RefusedError(_foreign(command.name, party, operator))
    if known is None and len(ever) >= CLIENTS_MAX:
        raise RefusedError(f"there are, or were, {len(ever)} clients, and no room for another")
    numbers = [each.number for each in ever]
    number = 1 + max(numbers, default=CLIENT_NUMBER_MIN - 1) if known is None else known.number
    index, party = number - CLIENT_NUMBER_MIN, command.party
    put = Client.of(command, index=index, operator=command.operator, party=party)
    clients = {each.number: each for each in cluster.clients} | {put.number: put}
    formers = [each for each in cluster.formers if each is not known]
    return _with_clients(cluster, clients.values(), formers)


def remove_client(cluster: Cluster, command: RemoveClient, operator: Client) -> Cluster:
    present = _named("client", cluster.clients, command.name)
    if not may_speak_for(cluster, operator, present.party):
        raise RefusedError(_foreign(present.name, present.party, operator))
    for topic, contract in cluster.topics.items():
        if present.name in (*contract.publish, *contract.subscribe):
            raise RefusedError(
                f"{present.name} is on an access list of topic '{topic}'; "
                f"alter the topic first, and then remove the client"
            )
    clients = [each for each in cluster.clients if each is not present]
    former = Former(number=present.number, name=present.name, party=present.party)
    return _with_clients(cluster, clients, [*cluster.formers, former])


def _named(what: str, members: Sequence[_Member], name: str) -> _Member:
    found = next((each for each in members if each.name == name), None)
    if found is None:
        known = ", ".join(each.name for each in members)
        raise RefusedError(f"there is no {what} named '{name}'; there are {known}")
    return found


def _with_clients(
    cluster: Cluster, clients: Iterable[Client], formers: Iterable[Former]
) -> Cluster:
    made = replace(cluster, clients=tuple(clients), formers=tuple(formers))
    if not any(each.operator for each in made.clients):
        raise RefusedError("without an operator nobody could change the cluster any more")
    return made


def _foreign(name: str, party: str, operator: Client) -> str:
    return (
        f"{name} is of {party}, and {operator.name} is of {operator.party}; only operators of its "
        f"own party add, change or remove a client"
    )


def may_speak_for(cluster: Cluster, operator: Client, party: str) -> bool:
    """Each for its own; and where only one party has operators, for those that have none."""
    has_operator = any(each.operator and each.party == party for each in cluster.clients)
    is_for_anyone = not has_operator and parties_needed(cluster) == 1
    return party == operator.party or is_for_anyone


def parties_needed(cluster: Cluster) -> int:
    """How many parties must ask for a replica: so many that not all of them lie."""
    parties = {client.party for client in cluster.clients if client.operator}
    return min(cluster.f + 1, len(parties))


def known_topic(cluster: Cluster, name: str) -> Contract:
    contract = cluster.topics.get(name)
    if contract is None:
        raise RefusedError(f"there is no topic '{name}'")
    return contract


def known_log(cluster: Cluster, name: str) -> Contract:
    contract = known_topic(cluster, name)
    if not contract.is_log:
        raise RefusedError(
            f"topic '{name}' is not a log topic: its clients register and subscribe at each "
            f"replica, and there is nothing to share out"
        )
    return contract


def _replica(command: ReplaceReplica | AddReplica, *, number: int, party: str) -> Replica:
    return Replica.of(
        command,
        number=number,
        party=party,
        host=command.host,
        port=command.port,
        metrics_port=command.metrics_port,
    )
