"""A topic as the machines see it: its contract, and the replicas that serve it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from quorate.core.cluster import Cluster
from quorate.core.contract import Contract
from quorate.core.control import CONTROL_TOPIC
from quorate.core.ids import NodeId, TopicId, topic_id
from quorate.core.limits import WINDOWS, Windows
from quorate.core.quorum import Quorum


@dataclass(frozen=True)
class Topic:
    """One topic. `members` are its replicas, in the order in which a chain takes them; `fsync` is
    when they sync what they keep on disk."""

    name: str
    contract: Contract
    members: tuple[NodeId, ...]
    f: int
    windows: Windows = WINDOWS
    fsync: str = "always"

    @cached_property
    def id(self) -> TopicId:
        return topic_id(self.name)

    @cached_property
    def quorum(self) -> Quorum:
        return Quorum(len(self.members), self.f)

    @cached_property
    def index(self) -> Mapping[NodeId, int]:
        """The position of each member, for votes that are kept as bits."""
        return {member: position for position, member in enumerate(self.members)}

    def others(self, me: NodeId) -> tuple[NodeId, ...]:
        return tuple(member for member in self.members if member != me)

    def chain(self, number: int) -> tuple[NodeId, ...]:
        """The 2f + 1 members, in order, of the chain with this number.

        There is one chain for each member to start from, so that whichever f replicas are
        faulty, a source that moves on finds one in which they stand harmlessly or not at all.
        """
        start = number % len(self.members)
        rotated = self.members[start:] + self.members[:start]
        return rotated[: self.quorum.majority_correct]


def topics_of(cluster: Cluster) -> list[Topic]:
    """Every topic with the replicas that serve it and the faults that they tolerate; last, the one
    that its commands go through."""
    contracts = dict(cluster.topics)
    if cluster.control is not None:
        contracts[CONTROL_TOPIC] = cluster.control
    return [
        Topic(
            name,
            contract,
            cluster.placement(name),
            cluster.f if contract.protection != "none" else 0,
            fsync=cluster.fsync,
        )
        for name, contract in contracts.items()
    ]


def by_id(topics: Iterable[Topic]) -> dict[TopicId, Topic]:
    return {topic.id: topic for topic in topics}
