"""Who attacks log topics, by name: Byzantine replicas and Byzantine publishers.

Some are those of live topics (`adversaries.py`). Most of the others tell a story that fits
together, whatever the kind of message and whoever asks: one lie here and there is found out soon.
"""

from collections.abc import Callable, Collection, Mapping
from random import Random

import msgspec

from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.header import HEADER_BYTES, SIGNED, header_of
from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.messages import Message
from quorate.core.ordering import (
    Absent,
    Accept,
    Announce,
    AnnounceSealed,
    Append,
    Chained,
    Decision,
    Entries,
    Line,
    Located,
    OfferSnapshot,
    Partition,
    Promised,
    Propose,
    Received,
    Retrieved,
    Signed,
    SnapshotPart,
    State,
    Stop,
    StopData,
    Stored,
    Sync,
    Write,
)
from quorate.crypto.digests import batch_digest, descriptor
from quorate.protocol import misbehaviour
from quorate.protocol.machine import Ready
from quorate.protocol.misbehaviour import Parts
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.value import Value, chained, leaves_of, value_digest
from quorate.sim.adversaries import (
    REPLICAS,
    SOURCES,
    TWIN_SOURCE,
    TWINS,
    Make,
    Retold,
    Withhold,
    some,
)
from quorate.sim.hosts import Rewrite


class Censor(Retold):
    """As the leader, never propose what one publisher wants."""

    def __init__(self, victim: NodeId) -> None:
        self._victim = victim

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        spans = Value.decode(message.value).spans if isinstance(message, Propose) else ()
        is_held = any(span.publisher == self._victim for span in spans)
        return [] if is_held else [(node, message)]


class Deny(Retold):
    """Sign, at a leader change, that nothing was said in any slot."""

    def __init__(self, sign: Callable[[bytes], bytes]) -> None:
        self._sign = sign

    def _told(self, node: NodeId, message: Message) -> Message:
        if not isinstance(message, StopData):
            return message
        state = msgspec.msgpack.decode(message.state, type=State)
        blank = [Promised(promised.slot, 0, b"", {}) for promised in state.promised]
        lie = msgspec.msgpack.encode(msgspec.structs.replace(state, promised=blank))
        return msgspec.structs.replace(message, state=lie, signature=self._sign(lie))


class TwoFaced(Retold):
    """Lead two halves of the group to two values, and stand by either towards its half.

    Both values are acceptable. Votes, decisions and what it signs at a leader change fit what a
    replica was told before.
    """

    def __init__(
        self, me: NodeId, half: Collection[NodeId], sign: Callable[[bytes], bytes]
    ) -> None:
        self._me = me
        self._half = frozenset(half)
        self._sign = sign
        # What the other half is told, by the digest of what this one is told.
        self._others: dict[Digest, bytes] = {}

    def _told(self, node: NodeId, message: Message) -> Message:
        if node not in self._half:
            return message
        replace = msgspec.structs.replace
        if isinstance(message, Propose):
            time_us, spans, _ = Value.decode(message.value)
            other = Value(time_us + 1, spans[::-1]).encode()
            self._others[value_digest(message.value)] = other
            return replace(message, value=other)
        if isinstance(message, Write | Accept):
            return replace(message, digest=self._digest(message.digest))
        if isinstance(message, Decision):
            return replace(message, value=self._value(message.value))
        if isinstance(message, StopData):
            state = self._state(message.state)
            values = [*map(self._value, message.values)]
            return replace(message, state=state, signature=self._sign(state), values=values)
        if isinstance(message, Sync):
            values = [*message.values, *map(self._value, message.values)]
            return replace(message, states=[*map(self._signed, message.states)], values=values)
        return message

    def _signed(self, signed: Signed) -> Signed:
        if signed.replica != self._me:
            return signed
        state = self._state(signed.state)
        return Signed(self._me, state, self._sign(state))

    def _state(self, encoded: bytes) -> bytes:
        state = msgspec.msgpack.decode(encoded, type=State)
        promised = [
            Promised(
                each.slot,
                each.accepted_in,
                self._digest(each.accepted),
                {self._digest(digest): regency for digest, regency in each.written.items()},
            )
            for each in state.promised
        ]
        return msgspec.msgpack.encode(msgspec.structs.replace(state, promised=promised))

    def _digest(self, digest: Digest) -> Digest:
        other = self._others.get(digest)
        return digest if other is None else value_digest(other)

    def _value(self, value: bytes) -> bytes:
        return self._others.get(value_digest(value), value)


class Boast(Retold):
    """Say to all that one received and stores what there is. Vote for nothing, and give nothing."""

    def __init__(self, members: Collection[NodeId]) -> None:
        self._members = tuple(members)

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if isinstance(message, Received):
            line = (message.publisher, message.topic, message.partition)
            stored = Stored(*line, 1, message.through, message.chain)
            return [(member, word) for member in self._members for word in (message, stored)]
        if isinstance(message, Entries):
            return [(node, absent(message))]
        is_help = isinstance(message, Propose | Write | Accept | Retrieved | Decision)
        return [] if is_help else [(node, message)]


class FalseLog(Retold):
    """Tell each reader a log of its own that fits together, and vouch for it.

    After every message it says that it has no more: whoever leads next is to be taken for
    somebody who agrees.
    """

    def __init__(self) -> None:
        self._chains: dict[tuple[NodeId, Partition, int], Digest] = {}

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if isinstance(message, Chained):
            place = (node, Partition(message.topic, message.partition), message.offset)
            chain = self._chains.get(place, message.chain)
            return [(node, msgspec.structs.replace(message, chain=chain))]
        if not isinstance(message, Entries):
            return [(node, message)]
        partition = Partition(message.topic, message.partition)
        before = self._chains.get((node, partition, message.offset), message.before)
        false = self._false(msgspec.structs.replace(message, before=before))
        end = false.offsets[-1]
        self._chains[node, partition, end] = false.after
        word = Chained(*partition, end, false.after, 0, 0, end)
        return [(node, false), (node, Absent(*partition, end, end + 1)), (node, word)]

    def _false(self, entries: Entries) -> Entries:
        """What is told in place of these."""
        false = misbehaviour.alter(entries, "content", how=1)
        assert isinstance(false, Entries)
        return false


class FalseCounts(FalseLog):
    """Say of batches that they have another number of events: what comes after is shifted."""

    def _false(self, entries: Entries) -> Entries:
        payloads = [
            payload[:4] + bytes([payload[4] ^ 1]) + payload[5:] for payload in entries.payloads
        ]
        return with_payloads(entries, payloads)


class Hollow(Retold):
    """Order as agreed, and tell readers a story that fits together: all of it is gone.

    Partitions begin where they end, no batch is here any more, and the same is said to whoever asks
    where to begin. With those who really started over it may seem that nobody has it.
    """

    def _told(self, node: NodeId, message: Message) -> Message:
        if isinstance(message, Entries):
            return absent(message)
        if isinstance(message, Chained):
            return msgspec.structs.replace(message, start=message.end, taken=message.end)
        if isinstance(message, Located):
            return msgspec.structs.replace(message, offset=message.offset + (1 << 20))
        return message


class Impatient:
    """Ask for the next regency all the time."""

    EVERY = 5

    def __init__(self, members: Collection[NodeId]) -> None:
        self._members = tuple(members)
        self._regency = 1
        self._turns = 0

    def __call__(self, ready: Ready, _: int) -> Parts:
        self._turns += 1
        if self._turns % self.EVERY == 0:
            self._regency += 1
            stops = [(node, Stop(GroupKind.BYZANTINE, self._regency)) for node in self._members]
            ready.send = [*ready.send, *stops]
        return [(0, ready)]


class FalseState(Retold):
    """Order as agreed, but hand those who start over a wrong state, a wrong proof, or nothing."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        false = self._falsified(message)
        return [] if false is None else [(node, false)]

    def _falsified(self, message: Message) -> Message | None:
        if isinstance(message, OfferSnapshot) and self._draw.random() < 0.3:
            later = message.slot + self._draw.randint(1, 1 << 20)
            text = message.checkpoint.replace(f"state {message.slot} ", f"state {later} ", 1)
            return msgspec.structs.replace(message, slot=later, checkpoint=text)
        if isinstance(message, SnapshotPart):
            at, data = self._draw.randrange(len(message.data)), bytearray(message.data)
            data[at] ^= 1 + self._draw.randrange(255)
            wrong = msgspec.structs.replace(message, data=bytes(data))
            short = msgspec.structs.replace(message, data=bytes(data[: at + 1]))
            long = msgspec.structs.replace(message, data=bytes(data) + b"?")
            return self._draw.choice((wrong, short, long, None))
        return message


class FalseHeader(Retold):
    """Publish batches with headers that are not true: a count, a kind, or a size.

    What is handed in and what is announced agree on that, or change whenever they are sent.
    """

    def __init__(self, draw: Random, share: float, *, is_stubborn: bool) -> None:
        self._draw, self._share, self._is_stubborn = draw, share, is_stubborn
        # By partition and number, what the header says.
        self._headers: dict[tuple[Partition, Sequence], bytes] = {}

    def _told(self, node: NodeId, message: Message) -> Message:
        if getattr(message, "topic", CONTROL_TOPIC_ID) == CONTROL_TOPIC_ID:
            return message
        if isinstance(message, Append):
            payloads = self._batches(message, message.payloads)
            digests = [*map(batch_digest, payloads)] if message.digests else []
            return msgspec.structs.replace(message, payloads=payloads, digests=digests)
        if isinstance(message, Announce):
            described = self._batches(message, message.descriptors)
            return msgspec.structs.replace(message, descriptors=described)
        if isinstance(message, AnnounceSealed):
            return msgspec.structs.replace(message, seals=self._batches(message, message.seals))
        return message

    def _batches(
        self, message: Append | Announce | AnnounceSealed, run: list[bytes]
    ) -> list[bytes]:
        partition = Partition(message.topic, message.partition)
        return [
            self._batch((partition, sequence), each)
            for sequence, each in enumerate(run, message.first)
        ]

    def _batch(self, place: tuple[Partition, Sequence], batch: bytes) -> bytes:
        header = self._headers.get(place)
        if header is None:
            is_false = self._draw.random() < self._share
            header = (false_header(self._draw, batch) if is_false else batch)[:HEADER_BYTES]
        if self._is_stubborn:
            self._headers[place] = header
        return header + batch[HEADER_BYTES:]


def false_header(draw: Random, batch: bytes) -> bytes:
    """The batch with another number of events, kind, or size than it has."""
    header = header_of(batch)
    how = draw.choice(("count", "count", "kind", "size"))
    if how == "kind":
        header = header._replace(kind=SIGNED - header.kind)
    elif how == "count":
        # Sometimes one that nothing has room for.
        header = header._replace(events=draw.choice((0, header.events + 1, header.events + 3)))
    if how == "size" or (header.events and draw.random() < 0.8):
        size = header.plain_bytes + draw.choice((-1, 4, 16, 1 << 10))
        header = header._replace(plain_bytes=max(0, size))
    return header.encode() + batch[HEADER_BYTES:]


def with_payloads(entries: Entries, payloads: list[bytes]) -> Entries:
    """Other batches in the same place, and the chain that fits them."""
    described = [
        payload if at in entries.bare else descriptor(payload)
        for at, payload in enumerate(payloads)
    ]
    line = Line(entries.publisher, *entries.partition_of)
    leaves = leaves_of(line, entries.first, entries.offset, entries.time_us, described)
    after = chained(entries.before, leaves)[-1]
    return msgspec.structs.replace(entries, payloads=payloads, after=after)


def absent(entries: Entries) -> Absent:
    """In place of these: they are not here."""
    return Absent(*entries.partition_of, entries.offset, entries.offsets[-1])


def _false_header(draw: Random, *_: object) -> Rewrite:
    share, is_stubborn = draw.choice((0.1, 0.3, 1.0)), draw.random() < 0.7
    return FalseHeader(draw, share, is_stubborn=is_stubborn)


def _forgetful_publisher(draw: Random, f: int, replicas: Collection[NodeId]) -> Rewrite:
    """Too few replicas hear of anything, or just enough of them for some to believe it."""
    return Withhold(some(draw, replicas, 1, len(replicas) - 1))


BOAST = "boast"
DENY = "deny"
FALSE_COUNTS = "false-counts"
FALSE_HEADER = "false-header"
FALSE_STATE = "false-state"
LIE_REPLY = "lie-reply"
HOLLOW = "hollow"
TWO_FACED = "two-faced"
_AS_ON_LIVE_TOPICS = (
    "slow", "drop", "mute", "silent", "lie", "lie-content", "lie-sequence", LIE_REPLY,
    "equivocate", "replay",
)  # fmt: skip
LOG_REPLICAS: Mapping[str, Make] = {
    **{name: REPLICAS[name] for name in _AS_ON_LIVE_TOPICS},
    "censor": lambda draw, _, nodes: Censor(draw.choice(sorted(nodes))),
    "impatient": lambda _, __, nodes: Impatient(nodes),
    FALSE_STATE: lambda draw, *_: FalseState(draw),
    "false-log": lambda *_: FalseLog(),
    FALSE_COUNTS: lambda *_: FalseCounts(),
    HOLLOW: lambda *_: Hollow(),
    BOAST: lambda _, __, nodes: Boast(nodes),
    TWINS: REPLICAS[TWINS],
}
# `Deny` and `TwoFaced` are made by the stage, which has the replica's key.
LOG_REPLICA_NAMES = (*(name for name in LOG_REPLICAS if name != TWINS), DENY, TWO_FACED, TWINS)
LOG_PUBLISHERS: Mapping[str, Make] = {
    "partial-source": _forgetful_publisher,
    "lying-source": SOURCES["lying-source"],
    FALSE_HEADER: _false_header,
    TWIN_SOURCE: SOURCES[TWIN_SOURCE],
}
