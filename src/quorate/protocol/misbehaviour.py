"""Misbehaviour on purpose (B8, F13): wrappers that rewrite what a correct machine wants.

Source: Freeman 2016, section 6.7; FIT-Broker 2013, sections 5.2.3 and 5.3.

The machine underneath stays correct; the wrapper omits, alters, delays or repeats what leaves
it. The same wrapper runs in the simulator and in a live replica. What it cannot do is forge
the link: a message still comes from the node that sends it.

Each wrapper takes a `Ready` and returns parts of it, each with a delay in microseconds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol, TypeAlias, get_args

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
from quorate.crypto.digests import descriptor, digest
from quorate.protocol.machine import Ready
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.records import Held, Record
from quorate.protocol.ordering.value import Value, chained, leaves_of

Parts: TypeAlias = list[tuple[int, Ready]]
Rewrite: TypeAlias = Callable[[Ready, int], Parts]

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
        return change(message, how)
    names = {"publisher": "publisher", "topic": "topic"}
    name = names.get(field)
    if name is None or not isinstance(getattr(message, name, None), int):
        return message
    wrong = (getattr(message, name) + 1 + how) % 2**32
    return msgspec.structs.replace(message, **{name: wrong})


def _flip(data: bytes, how: int) -> bytes:
    if not data:
        return b"?"
    at = how % len(data)
    return data[:at] + bytes([data[at] ^ (1 + how % 255)]) + data[at + 1 :]


def _wrong_payload(message: Message, how: int) -> Message:
    assert isinstance(message, Publish | Forward | Link | Supply | Append | Entries | Retrieved)
    # The last bytes of a batch are values: changing one leaves a batch that still decodes.
    forged = [payload[:-1] + _flip(payload[-1:], how) for payload in message.payloads]
    # A lie that is true to itself: what a message says of its payloads fits them.
    if isinstance(message, Append) and message.digests:
        return msgspec.structs.replace(message, payloads=forged, digests=[*map(digest, forged)])
    if isinstance(message, Entries):
        line = Line(message.publisher, message.topic, message.partition)
        descriptors = [
            payload if at in message.bare else descriptor(payload)
            for at, payload in enumerate(forged)
        ]
        leaves = leaves_of(line, message.first, message.offset, message.time_us, descriptors)
        after = chained(message.before, leaves)[-1]
        return msgspec.structs.replace(message, payloads=forged, after=after)
    return msgspec.structs.replace(message, payloads=forged)


def _wrong_digest(message: Message, how: int) -> Message:
    assert isinstance(message, Vouch | Echo | ReadyVote)
    wrong = [_flip(known, how) for known in message.digests]
    return msgspec.structs.replace(message, digests=wrong)


def _wrong_descriptor(message: Message, how: int) -> Message:
    assert isinstance(message, Announce)
    wrong = [_flip(known, how) for known in message.descriptors]
    return msgspec.structs.replace(message, descriptors=wrong)


def _wrong_seal(message: Message, how: int) -> Message:
    assert isinstance(message, AnnounceSealed)
    return msgspec.structs.replace(message, seals=[_flip(seal, how) for seal in message.seals])


def _wrong_first(message: Message, _: int) -> Message:
    assert isinstance(message, _NUMBERED)
    return msgspec.structs.replace(message, first=message.first + 1)


def _wrong_frontier(message: Message, how: int) -> Message:
    assert isinstance(message, Frontier)
    lowest, highest = message.lowest + 1 + how, message.highest + 1 + how
    return msgspec.structs.replace(message, lowest=lowest, highest=highest)


def _wrong_ack(message: Message, how: int) -> Message:
    assert isinstance(message, Ack)
    return msgspec.structs.replace(message, through=message.through + 1 + how)


def _wrong_value(message: Message, how: int) -> Message:
    """Another value that is as acceptable: a moment later, and so another digest."""
    assert isinstance(message, Propose | Decision)
    value = Value.decode(message.value)
    later = value._replace(time_us=value.time_us + 1 + how)
    return msgspec.structs.replace(message, value=later.encode())


def _wrong_vote(message: Message, how: int) -> Message:
    assert isinstance(message, Write | Accept)
    return msgspec.structs.replace(message, digest=_flip(message.digest, how))


def _wrong_chain(message: Message, how: int) -> Message:
    assert isinstance(message, Received | Stored | Chained)
    return msgspec.structs.replace(message, chain=_flip(message.chain, how))


def _wrong_walk(message: Message, how: int) -> Message:
    """Other batches in the first slot than were decided."""
    assert isinstance(message, Walked)
    if not message.slots:
        return message
    first, *others = message.slots
    wrong = msgspec.structs.replace(first, descriptors=_flip(first.descriptors, how))
    return msgspec.structs.replace(message, slots=[wrong, *others])


def _wrong_slot(message: Message, _: int) -> Message:
    assert isinstance(message, Propose | Write | Accept | Decision)
    return msgspec.structs.replace(message, slot=message.slot + 1)


def _wrong_position(message: Message, how: int) -> Message:
    assert isinstance(message, Ordered | Located)
    return msgspec.structs.replace(message, offset=message.offset + 1 + how)


def _wrong_reply(message: Message, how: int) -> Message:
    """What was refused was done, and what was done was refused."""
    assert isinstance(message, Reply | Concluded)
    sentence = "" if message.sentence else f"{MADE_UP} {how}"
    return msgspec.structs.replace(message, sentence=sentence)


def _wrong_command(message: Message, _: int) -> Message:
    """The answer to a command that is yet to come."""
    assert isinstance(message, Concluded)
    return msgspec.structs.replace(message, sequence=message.sequence + 1)


def _wrong_group(message: Message, how: int) -> Message:
    assert isinstance(message, Assigned)
    return msgspec.structs.replace(message, group=f"{message.group}-{how}")


def _wrong_revision(message: Message, how: int) -> Message:
    assert isinstance(message, Assigned)
    return msgspec.structs.replace(message, revision=message.revision + 1 + how)


def _wrong_share(message: Message, how: int) -> Message:
    """One partition fewer, and the others from further on; one out of nothing."""
    assert isinstance(message, Assigned)
    wrong = [(topic, number, at + 1 + how) for topic, number, at in message.partitions[1:]]
    return msgspec.structs.replace(
        message, partitions=wrong if message.partitions else [("", 0, how)]
    )


def _wrong_topology(message: Message, how: int) -> Message:
    """A cluster without topics, with the digest of that; or the digest of nothing that there is."""
    assert isinstance(message, TopologyReport)
    if not message.text:
        return msgspec.structs.replace(message, digest=_flip(message.digest, how))
    text = replace(
        Cluster.parse(message.text), topics={}, placed_over={}, revision=message.revision + 1 + how
    ).render()
    return msgspec.structs.replace(message, text=text, digest=digest(text.encode()))


def _wrong_signature(message: Message, how: int) -> Message:
    assert isinstance(message, Cosign)
    return msgspec.structs.replace(message, signature=_flip(message.signature, how))


def _wrong_size(message: Message, how: int) -> Message:
    assert isinstance(message, Cosign)
    return msgspec.structs.replace(message, size=message.size + 1 + how)


def _wrong_path(message: Message, how: int) -> Message:
    assert isinstance(message, ProvenRange)
    path = [_flip(each, how) for each in message.path] or [bytes(32)]
    return msgspec.structs.replace(message, path=path)


def _wrong_leaves(message: Message, how: int) -> Message:
    assert isinstance(message, ProvenRange)
    runs = [msgspec.structs.replace(run, leaf=run.leaf ^ (1 + how % 7)) for run in message.runs]
    return msgspec.structs.replace(message, runs=runs)


def _no_authenticators(message: Message, _: int) -> Message:
    assert isinstance(message, Link)
    return msgspec.structs.replace(message, authenticators=[])


_NUMBERED = (
    Publish
    | Forward
    | Link
    | Vouch
    | Echo
    | ReadyVote
    | Append
    | Announce
    | AnnounceSealed
    | Entries
)
_CHANGES: dict[tuple[type, str], Callable[[Message, int], Message]] = {
    **{
        (kind, "content"): _wrong_payload
        for kind in (Publish, Forward, Link, Supply, Append, Entries, Retrieved)
    },
    **{(kind, "content"): _wrong_digest for kind in (Vouch, Echo, ReadyVote)},
    (Announce, "content"): _wrong_descriptor,
    (AnnounceSealed, "content"): _wrong_seal,
    **{(kind, "content"): _wrong_value for kind in (Propose, Decision)},
    **{(kind, "content"): _wrong_vote for kind in (Write, Accept)},
    **{(kind, "content"): _wrong_chain for kind in (Received, Stored, Chained)},
    **{(kind, "sequence"): _wrong_first for kind in get_args(_NUMBERED)},
    **{(kind, "sequence"): _wrong_slot for kind in (Propose, Write, Accept, Decision)},
    **{(kind, "sequence"): _wrong_position for kind in (Ordered, Located)},
    **{(kind, "reply"): _wrong_reply for kind in (Reply, Concluded)},
    (Concluded, "sequence"): _wrong_command,
    (Assigned, "sequence"): _wrong_revision,
    (Assigned, "topic"): _wrong_group,
    (Assigned, "content"): _wrong_share,
    (TopologyReport, "content"): _wrong_topology,
    (Walked, "content"): _wrong_walk,
    (Cosign, "sequence"): _wrong_size,
    (Cosign, "content"): _wrong_signature,
    (ProvenRange, "sequence"): _wrong_leaves,
    (ProvenRange, "content"): _wrong_path,
    (Frontier, "sequence"): _wrong_frontier,
    (Ack, "sequence"): _wrong_ack,
    (Link, "authenticators"): _no_authenticators,
}
