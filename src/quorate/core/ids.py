"""Names of things, as they travel.

A member (a replica or a client) has a number that the cluster file assigns and pins. A client
may be connected several times at once, as several processes, say; each time it is a node of
its own: its number in the low half, a session in the high half. A replica's session is 0, so
that its node is its number.

A topic's number follows from its name, so that two parties that agree on a name agree on its
number.
"""

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from blake3 import blake3

MemberId: TypeAlias = int
NodeId: TypeAlias = int
TopicId: TypeAlias = int
Sequence: TypeAlias = int
Digest: TypeAlias = bytes

MEMBER_ID_MAX = 2**32 - 1
SESSION_MAX = 2**32 - 1
SEQUENCE_MAX = 2**64 - 1
DIGEST_BYTES = 32


class Lane(IntEnum):
    """The two sequences that one publisher numbers on one topic."""

    EVENTS = 0
    HISTORIES = 1


class Stream(NamedTuple):
    """The batches of one publisher on one topic: the scope of a sequence number."""

    publisher: NodeId
    topic: TopicId
    lane: Lane = Lane.EVENTS


def node_of(member: MemberId, session: int = 0) -> NodeId:
    return session << 32 | member


def member_of(node: NodeId) -> MemberId:
    return node & MEMBER_ID_MAX


def session_of(node: NodeId) -> int:
    return node >> 32


def topic_id(name: str) -> TopicId:
    return int.from_bytes(blake3(name.encode()).digest(4), "little")
