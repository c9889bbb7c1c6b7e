"""Records as they stand in the journal: a head, and payloads behind it.

Payloads are not part of the head, so that each has a position of its own and can be read without
anything around it. Two kinds of records are the journal's own: `Moved`, payloads of batches that
have their place already, copied out of an old segment that shall go; and `Synced`.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from quorate.core.ids import NodeId, TopicId
from quorate.core.ids import Sequence as SequenceNumber
from quorate.protocol.ordering.records import (
    Decided,
    Disowned,
    Dropped,
    Held,
    Installed,
    Voted,
)
from quorate.storage.formats import Format


class Moved(msgspec.Struct, frozen=True, gc=False):
    """Payloads of consecutive batches of a partition, which from now on are read from here.

    `number` says which batch of the partition the first one is.
    """

    topic: TopicId
    partition: int
    number: int
    payloads: list[bytes]


class Synced(msgspec.Struct, frozen=True, gc=False, tag="synced"):
    """Everything before this position was synced when this was written.

    Whoever looks for it looks for the mark, which is where it always is.
    """

    mark: bytes
    position: int


class HeldHead(msgspec.Struct, frozen=True, gc=False, tag="held"):
    publisher: NodeId
    topic: TopicId
    partition: int
    first: SequenceNumber
    lengths: list[int]


class MovedHead(msgspec.Struct, frozen=True, gc=False, tag="moved"):
    topic: TopicId
    partition: int
    number: int
    lengths: list[int]


Entry: TypeAlias = Held | Dropped | Disowned | Moved | Voted | Decided | Installed
Head: TypeAlias = HeldHead | Dropped | Disowned | MovedHead | Voted | Decided | Installed | Synced

_decoder: msgspec.msgpack.Decoder[Head] = msgspec.msgpack.Decoder(Head)
decode_head = _decoder.decode
# Of a segment of the journal: what reads the heads in it. The rest is the same in every version.
SEGMENTS: Format[Head] = Format("journal", {1: decode_head})
encode_head = msgspec.msgpack.Encoder().encode


def split(entry: Entry) -> tuple[Head, Sequence[bytes]]:
    """What of an entry goes into its head, and what behind it."""
    if isinstance(entry, Held):
        lengths = list(map(len, entry.payloads))
        head = HeldHead(entry.publisher, entry.topic, entry.partition, entry.first, lengths)
        return head, entry.payloads
    if isinstance(entry, Moved):
        lengths = list(map(len, entry.payloads))
        return MovedHead(entry.topic, entry.partition, entry.number, lengths), entry.payloads
    return entry, ()
