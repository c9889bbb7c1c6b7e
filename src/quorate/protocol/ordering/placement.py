"""Which replicas order, and which of them store the payload of a large batch."""

from dataclasses import dataclass
from enum import IntEnum

from quorate.core.contract import Contract
from quorate.core.ids import NodeId
from quorate.core.ordering import Partition
from quorate.core.quorum import Quorum
from quorate.protocol.ordering.rules import Byzantine, Crash, Rules


class GroupKind(IntEnum):
    """Log topics with the same protection are ordered by one group."""

    CRASH = 0
    BYZANTINE = 1
    NONE = 2


_KINDS = {"crash": GroupKind.CRASH, "byzantine": GroupKind.BYZANTINE, "none": GroupKind.NONE}


def group_of(contract: Contract) -> GroupKind:
    return _KINDS[contract.protection]


def rules_of(kind: GroupKind, quorum: Quorum) -> Rules:
    return Byzantine(quorum) if kind is GroupKind.BYZANTINE else Crash(quorum)


def stores_of(members: tuple[NodeId, ...], partition: Partition) -> tuple[NodeId, ...]:
    """The members in the order in which they are asked to store this partition's batches.

    Partitions begin with different members, so that all of them share the work.
    """
    start = (partition.topic + partition.number) % len(members)
    return members[start:] + members[:start]


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of one group, how many of them it takes for what, and who we are.

    Whoever is no member follows what the members order.
    """

    me: NodeId
    number: int
    members: tuple[NodeId, ...]
    rules: Rules
    # Of so many members, one is correct.
    one_correct: int

    @property
    def others(self) -> tuple[NodeId, ...]:
        return tuple(member for member in self.members if member != self.me)

    @property
    def takes_part(self) -> bool:
        return self.me in self.members

    def stores(self, partition: Partition) -> bool:
        """Whether large payloads belong here. Whoever follows keeps everything."""
        if not self.takes_part:
            return True
        return self.me in stores_of(self.members, partition)[: self.one_correct]
