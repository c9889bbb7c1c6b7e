"""Which replicas order, and which of them store the payload of a large batch."""

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
