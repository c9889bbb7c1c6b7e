"""What a slot decides: the next batches of some lines, by their digests only.

A value is a time and a list of *spans*. A span takes the next batches of one line; the chain of
its last batch says which they are, and, since a chain covers the whole line, that nothing was
left out or done twice. So a slot orders hundreds of batches in some seventy bytes a publisher.

A value also names sessions that have ended for good: their lines are forgotten with this slot, so
that all replicas of a group forget them alike, whichever group orders commands.

Everything that follows from a decision is computed here, alike on every replica and by every
reader: the offsets of a batch, its leaf in the order log, and the chain of a partition. A batch
takes as many offsets as its descriptor says it has events (`core/header.py`).
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

from blake3 import blake3

from quorate.core.errors import RemoteProtocolError
from quorate.core.header import counts_of
from quorate.core.ids import DIGEST_BYTES, Digest, NodeId, Sequence, TopicId
from quorate.core.ordering import Line
from quorate.crypto.digests import digest_of, link
from quorate.crypto.leaves import LEAF, LEAF_VERSION

CHAIN_START = bytes(DIGEST_BYTES)
SPANS_MAX = 4096
ENDED_MAX = 1024
SPAN_BATCHES_MAX = 4096
# A value is looked into at every step of its slot.
_DECODED_MAX = 4

# time, number of spans
_HEAD = Struct("<qH")
# publisher, topic, partition, first, count, chain
_SPAN = Struct(f"<QIHQH{DIGEST_BYTES}s")
# Added to the number of spans, it says that sessions follow which have ended: how many, and which.
_WITH_ENDED = 1 << 15
_COUNT = Struct("<H")
_ENDED = Struct("<Q")


class Span(NamedTuple):
    """The next batches of a line, the last of which has this chain."""

    publisher: NodeId
    topic: TopicId
    partition: int
    first: Sequence
    batches: int
    chain: Digest

    @property
    def line(self) -> Line:
        return Line(self.publisher, self.topic, self.partition)

    @property
    def end(self) -> Sequence:
        return self.first + self.batches


class Value(NamedTuple):
    time_us: int
    spans: tuple[Span, ...]
    ended: tuple[NodeId, ...] = ()

    def encode(self) -> bytes:
        flag = _WITH_ENDED if self.ended else 0
        head = _HEAD.pack(self.time_us, len(self.spans) | flag)
        value = head + b"".join([_SPAN.pack(*span) for span in self.spans])
        if self.ended:
            value += _COUNT.pack(len(self.ended)) + b"".join(map(_ENDED.pack, self.ended))
        return value

    @staticmethod
    @lru_cache(maxsize=_DECODED_MAX)
    def decode(data: bytes) -> "Value":
        if len(data) < _HEAD.size:
            raise RemoteProtocolError(f"a value of {len(data)} bytes")
        time_us, flagged = _HEAD.unpack_from(data)
        count, tail = flagged & ~_WITH_ENDED, b""
        if flagged & _WITH_ENDED:
            end = _HEAD.size + count * _SPAN.size
            data, tail = data[:end], data[end:]
        if not 0 < count <= SPANS_MAX or len(data) != _HEAD.size + count * _SPAN.size:
            raise RemoteProtocolError(f"a value of {count} spans in {len(data)} bytes")
        spans = tuple(Span(*fields) for fields in _SPAN.iter_unpack(data[_HEAD.size :]))
        ended = _ended_in(tail) if flagged & _WITH_ENDED else ()
        if any(span.publisher in ended for span in spans):
            raise RemoteProtocolError("a value that orders batches of a session that it ends")
        if any(not 0 < span.batches <= SPAN_BATCHES_MAX for span in spans):
            raise RemoteProtocolError(f"a span of no or over {SPAN_BATCHES_MAX} batches")
        if len({span[:3] for span in spans}) < count:
            raise RemoteProtocolError("a value with two spans of one line")
        return Value(time_us, spans, ended)


def _ended_in(data: bytes) -> tuple[NodeId, ...]:
    count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else 0
    if not 0 < count <= ENDED_MAX or len(data) != _COUNT.size + count * _ENDED.size:
        raise RemoteProtocolError(f"{count} sessions that ended in {len(data)} bytes")
    ended = tuple(node for (node,) in _ENDED.iter_unpack(data[_COUNT.size :]))
    if len(set(ended)) < count:
        raise RemoteProtocolError("a value that ends a session twice")
    return ended


def value_digest(value: bytes) -> Digest:
    return blake3(value).digest()


def chained(before: Digest, digests: Iterable[Digest]) -> list[Digest]:
    """The chain after each of these; what was before is not in the list."""
    return list(accumulate(digests, link, initial=before))[1:]


def chain_of(before: Digest, descriptors: Iterable[bytes]) -> list[Digest]:
    """The chain of a line after each of the batches with these descriptors."""
    return chained(before, map(digest_of, descriptors))


def offsets_of(offset: int, descriptors: Iterable[bytes]) -> list[int]:
    """The first offset of each of these batches, and the one after the last."""
    return list(accumulate(counts_of(descriptors), initial=offset))


def leaves_of(
    line: Line, first: Sequence, offset: int, time_us: int, descriptors: Seq[bytes]
) -> list[bytes]:
    """The leaf hashes, in the order log's tree, of consecutive batches from this offset on."""
    return leaves_at(line, first, offsets_of(offset, descriptors), time_us, descriptors)


def leaves_at(
    line: Line, first: Sequence, offsets: Iterable[int], time_us: int, descriptors: Seq[bytes]
) -> list[bytes]:
    """The same of batches that begin at these offsets."""
    publisher, topic, partition = line
    pack, version = LEAF.pack, LEAF_VERSION
    return [
        sha256(
            b"\x00" + pack(version, topic, partition, at, publisher, sequence, time_us, content)
        ).digest()
        for sequence, (at, content) in enumerate(
            zip(offsets, map(digest_of, descriptors), strict=False), first
        )
    ]
