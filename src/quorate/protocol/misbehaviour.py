"""Misbehaviour on purpose (B8, F13): wrappers that rewrite what a correct machine wants.

Source: Freeman 2016, section 6.7; FIT-Broker 2013, sections 5.2.3 and 5.3.

The machine underneath stays correct; the wrapper omits, alters, delays or repeats what leaves
it. The same wrapper runs in the simulator and in a live replica. What it cannot do is forge
the link: a message still comes from the node that sends it.

Each wrapper takes a `Ready` and returns parts of it, each with a delay in microseconds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import msgspec

from quorate.core.cluster import Cluster
from quorate.core.errors import LocalProtocolError
from quorate.core.ids import NodeId
from quorate.core.messages import (
    Ack,
    Echo,
    Forward,
    Frontier,
    Link,
    Message,
    Publish,
    ReadyVote,
    Reply,
    Supply,
    Vouch,
)
from quorate.core.ordering import (
    Accept,
    Announce,
    AnnounceSealed,
    Append,
    Assigned,
    Chained,
    Concluded,
    Cosign,
    Decision,
    Entries,
    Line,
    Located,
    Ordered,
    Propose,
    ProvenRange,
    Received,
    Retrieved,
    Stored,
    TopologyReport,
    Walked,
    Write,
)
from quorate.crypto.digests import batch_digest, descriptor, digest
from quorate.protocol.machine import Ready
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.records import Held, Record
from quorate.protocol.ordering.value import Value, chained, leaves_of

Parts: TypeAlias = list[tuple[int, Ready]]
Rewrite: TypeAlias = Callable[[Ready, int], Parts]
Fields: TypeAlias = dict[str, object]
Change: TypeAlias = Callable[[Any, int], Fields]

FIELDS = ("sequence", "publisher", "topic", "content", "authenticators", "reply")
REPLAYED_MAX = 256
# How a refusal begins that nobody but a liar ever wrote.
MADE_UP = "no, because of"


class Chance(Protocol):
    """The part of `random.Random` that a wrapper needs; it is handed in from outside."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...


def behave(ready: Ready, _: int) -> Parts:
    """Do as the protocol says."""
    return [(0, ready)]


class Silence:
    """Omit everything towards some nodes, or towards all."""

    def __init__(self, towards: Iterable[NodeId] | None = None) -> None:
        self._towards = None if towards is None else frozenset(towards)

    def __call__(self, ready: Ready, _: int) -> Parts:
        towards = self._towards
        if towards is None:
            ready.send = []
        else:
            ready.send = [(node, m) for node, m in ready.send if node not in towards]
        return [(0, ready)]


class Drop:
    """Omit a percentage of the messages."""

    def __init__(self, chance: Chance, percent: float) -> None:
        self._chance, self._share = chance, percent / 100

    def __call__(self, ready: Ready, _: int) -> Parts:
        random, share = self._chance.random, self._share
        ready.send = [pair for pair in ready.send if random() >= share]
        return [(0, ready)]


class Slow:
    """Hold everything back for a while."""

    def __init__(self, delay_us: int) -> None:
        self._delay_us = delay_us

    def __call__(self, ready: Ready, _: int) -> Parts:
        late = Ready(send=ready.send)
        ready.send = []
        return [(0, ready), (self._delay_us, late)]


class Lie:
    """Alter one field in a percentage of the messages, each receiver's copy for itself."""

    def __init__(self, chance: Chance, percent: float, fields: Iterable[str] = ()) -> None:
        self._chance, self._share = chance, percent / 100
        self._fields = tuple(fields) or FIELDS
        unknown = sorted(set(self._fields) - set(FIELDS))
        if unknown:
            raise LocalProtocolError(
                f"cannot alter {', '.join(unknown)}; fields to alter: {', '.join(FIELDS)}"
            )
        self.altered = 0

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [(node, self._perhaps(message)) for node, message in ready.send]
        return [(0, ready)]

    def _perhaps(self, message: Message) -> Message:
        if self._chance.random() >= self._share:
            return message
        start, how = self._chance.randrange(len(self._fields)), self._chance.randrange(256)
        for field in (*self._fields[start:], *self._fields[:start]):
            lie = alter(message, field, how)
            if lie is not message:
                self.altered += 1
                return lie
        return message


class Equivocate:
    """Tell the truth to some nodes and one consistent lie to the others."""

    def __init__(self, lied_to: Iterable[NodeId]) -> None:
        self._lied_to = frozenset(lied_to)

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [
            (node, alter(message, "content", 1) if node in self._lied_to else message)
            for node, message in ready.send
        ]
        return [(0, ready)]


class Replay:
    """Send old messages again, now and then."""

    def __init__(self, chance: Chance, percent: float) -> None:
        self._chance, self._share = chance, percent / 100
        self._past: list[tuple[NodeId, Message]] = []

    def __call__(self, ready: Ready, _: int) -> Parts:
        fresh = ready.send
        if self._past and self._chance.random() < self._share:
            again = self._past[self._chance.randrange(len(self._past))]
            ready.send = [*fresh, again]
        self._past = (self._past + fresh)[-REPLAYED_MAX:]
        return [(0, ready)]


class Forget:
    """Say that large batches are on disk, and sign for it, and never write them."""

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.persist = [record for each in ready.persist for record in self._left_of(each)]
        return [(0, ready)]

    def _left_of(self, record: Record) -> Iterator[Record]:
        if not isinstance(record, Held):
            yield record
            return
        for sequence, payload in enumerate(record.payloads, record.first):
            if len(payload) <= INLINE_BYTES_MAX:
                yield msgspec.structs.replace(record, first=sequence, payloads=[payload])


def alter(message: Message, field: str, how: int) -> Message:
    """The message with one field changed, or the message itself if it has no such field."""
    change = _CHANGES.get((type(message), field))
    if change is not None:
        changed = change(message, how)
        return msgspec.structs.replace(message, **changed) if changed else message
    if field not in ("publisher", "topic") or not isinstance(getattr(message, field, None), int):
        return message
    wrong = (getattr(message, field) + 1 + how) % 2**32
    return msgspec.structs.replace(message, **{field: wrong})


def _flip(data: bytes, how: int) -> bytes:
    if not data:
        return b"?"
    at = how % len(data)
    return data[:at] + bytes([data[at] ^ (1 + how % 255)]) + data[at + 1 :]


# A change says which fields of a message are others, and what is in them then.


def _flipped(name: str) -> Change:
    return lambda message, how: {name: _flip(getattr(message, name), how)}


def _all_flipped(name: str) -> Change:
    return lambda message, how: {name: [_flip(each, how) for each in getattr(message, name)]}


def _next(name: str) -> Change:
    return lambda message, _: {name: getattr(message, name) + 1}


def _further(*names: str) -> Change:
    return lambda message, how: {name: getattr(message, name) + 1 + how for name in names}


def _wrong_payload(message: Any, how: int) -> Fields:
    # The last bytes of a batch are values: changing one leaves a batch that still decodes.
    forged = [payload[:-1] + _flip(payload[-1:], how) for payload in message.payloads]
    # A lie that is true to itself: what a message says of its payloads fits them.
    if isinstance(message, Append) and message.digests:
        return {"payloads": forged, "digests": [*map(batch_digest, forged)]}
    if isinstance(message, Entries):
        line = Line(message.publisher, message.topic, message.partition)
        descriptors = [
            payload if at in message.bare else descriptor(payload)
            for at, payload in enumerate(forged)
        ]
        leaves = leaves_of(line, message.first, message.offset, message.time_us, descriptors)
        return {"payloads": forged, "after": chained(message.before, leaves)[-1]}
    return {"payloads": forged}


def _wrong_value(message: Any, how: int) -> Fields:
    """Another value that is as acceptable: a moment later, and so another digest."""
    value = Value.decode(message.value)
    return {"value": value._replace(time_us=value.time_us + 1 + how).encode()}


def _wrong_walk(message: Any, how: int) -> Fields:
    """Other batches in the first slot than were decided."""
    if not message.slots:
        return {}
    first, *others = message.slots
    wrong = msgspec.structs.replace(first, descriptors=_flip(first.descriptors, how))
    return {"slots": [wrong, *others]}


def _wrong_reply(message: Any, how: int) -> Fields:
    """What was refused was done, and what was done was refused."""
    return {"sentence": "" if message.sentence else f"{MADE_UP} {how}"}


def _wrong_share(message: Any, how: int) -> Fields:
    """One partition fewer, and the others from further on; one out of nothing."""
    wrong = [(topic, number, at + 1 + how) for topic, number, at in message.partitions[1:]]
    return {"partitions": wrong if message.partitions else [("", 0, how)]}


def _wrong_topology(message: Any, how: int) -> Fields:
    """A cluster without topics, with the digest of that; or the digest of nothing that there is."""
    if not message.text:
        return {"digest": _flip(message.digest, how)}
    text = replace(
        Cluster.parse(message.text), topics={}, placed_over={}, revision=message.revision + 1 + how
    ).render()
    return {"text": text, "digest": digest(text.encode())}


def _wrong_path(message: Any, how: int) -> Fields:
    return {"path": [_flip(each, how) for each in message.path] or [bytes(32)]}


def _other_leaf(leaf: int, how: int) -> int:
    """Another leaf of the same tree, if it has one."""
    return leaf ^ (1 + how % 7)


def _wrong_range_leaves(message: Any, how: int) -> Fields:
    runs = [msgspec.structs.replace(run, leaf=_other_leaf(run.leaf, how)) for run in message.runs]
    return {"runs": runs}


_KINDS: tuple[tuple[str, Change, tuple[type, ...]], ...] = (
    ("content", _wrong_payload, (Publish, Forward, Link, Supply, Append, Entries, Retrieved)),
    ("content", _all_flipped("digests"), (Vouch, Echo, ReadyVote)),
    ("content", _all_flipped("descriptors"), (Announce,)),
    ("content", _all_flipped("seals"), (AnnounceSealed,)),
    ("content", _wrong_value, (Propose, Decision)),
    ("content", _flipped("digest"), (Write, Accept)),
    ("content", _flipped("chain"), (Received, Stored, Chained)),
    ("content", _flipped("signature"), (Cosign,)),
    ("content", _wrong_share, (Assigned,)),
    ("content", _wrong_topology, (TopologyReport,)),
    ("content", _wrong_walk, (Walked,)),
    ("content", _wrong_path, (ProvenRange,)),
    ("sequence", _next("first"), (Publish, Forward, Link, Vouch, Echo, ReadyVote)),
    ("sequence", _next("first"), (Append, Announce, AnnounceSealed, Entries)),
    ("sequence", _next("slot"), (Propose, Write, Accept, Decision)),
    ("sequence", _further("offset"), (Ordered, Located)),
    # The answer to a command that is yet to come.
    ("sequence", _next("sequence"), (Concluded,)),
    ("sequence", _further("revision"), (Assigned,)),
    ("sequence", _further("size"), (Cosign,)),
    ("sequence", _wrong_range_leaves, (ProvenRange,)),
    ("sequence", _further("lowest", "highest"), (Frontier,)),
    ("sequence", _further("through"), (Ack,)),
    ("topic", lambda message, how: {"group": f"{message.group}-{how}"}, (Assigned,)),
    ("reply", _wrong_reply, (Reply, Concluded)),
    ("authenticators", lambda *_: {"authenticators": []}, (Link,)),
)
_CHANGES = {(kind, field): change for field, change, kinds in _KINDS for kind in kinds}
