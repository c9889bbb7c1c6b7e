"""Who attacks, by name: Byzantine replicas and Byzantine sources.

Most of them are the wrappers of `protocol/misbehaviour.py`, with numbers that a seed draws.
Twins need no wrapper, only a second machine (`twins.py`). A Byzantine source says different
things to different replicas, or the whole story to too few of them; its messages are as
authentic as those of a correct one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random
from typing import TypeAlias

import msgspec

from quorate.core import batch
from quorate.core.ids import SEQUENCE_MAX, Digest, Lane, NodeId, Sequence, Stream
from quorate.core.messages import (
    Ack,
    Echo,
    Forward,
    Frontier,
    Link,
    Message,
    Omitted,
    Publish,
    ReadyVote,
    Status,
    Supply,
    Vouch,
)
from quorate.core.ordering import (
    Absent,
    Accept,
    Announce,
    Append,
    Chained,
    Decision,
    Entries,
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
from quorate.crypto.digests import digest
from quorate.protocol import misbehaviour
from quorate.protocol.broadcast.history import History
from quorate.protocol.machine import Ready
from quorate.protocol.misbehaviour import Drop, Equivocate, Lie, Parts, Replay, Silence, Slow
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.value import Value, value_digest
from quorate.sim.hosts import Rewrite

# From the numbers of a seed, f, and all nodes of the world.
Make: TypeAlias = Callable[[Random, int, Collection[NodeId]], Rewrite]

TWINS = "twins"
TWIN_SOURCE = "twin-source"


def _slow(draw: Random, *_: object) -> Rewrite:
    return Slow(draw.randrange(20_000, 1_500_000))


def _drop(draw: Random, *_: object) -> Rewrite:
    return Drop(draw, draw.choice((10, 50, 90)))


def _mute(*_: object) -> Rewrite:
    return Silence()


def _silent(draw: Random, f: int, nodes: Collection[NodeId]) -> Rewrite:
    return Silence(draw.sample(sorted(nodes), f))


def _lie(draw: Random, *_: object) -> Rewrite:
    return Lie(draw, draw.choice((20, 100)))


def _equivocate(draw: Random, _: int, nodes: Collection[NodeId]) -> Rewrite:
    return Equivocate(draw.sample(sorted(nodes), draw.randint(1, len(nodes))))


def _replay(draw: Random, *_: object) -> Rewrite:
    return Replay(draw, 50)


def _disown(*_: object) -> Rewrite:
    return Disown()


def _false_stream(draw: Random, _: int, nodes: Collection[NodeId]) -> Rewrite:
    """Everybody, or some, so that liars who differ in that tell one truth and one lie."""
    count = draw.choice((len(nodes), draw.randint(1, len(nodes))))
    return FalseStream(draw.sample(sorted(nodes), count))


def _false_progress(draw: Random, *_: object) -> Rewrite:
    return FalseProgress(draw)


def _lie_about(field: str) -> Make:
    return lambda draw, *_: Lie(draw, draw.choice((20, 100)), [field])


class Disown:
    """Say of everything that is due to a subscriber that it will not be sent."""

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [(node, self._disowned(message)) for node, message in ready.send]
        return [(0, ready)]

    @staticmethod
    def _disowned(message: Message) -> Message:
        if isinstance(message, Forward):
            stream = (message.publisher, message.topic, message.lane)
            return Omitted(*stream, message.first, len(message.payloads))
        if isinstance(message, Vouch):
            stream = (message.publisher, message.topic, message.lane)
            return Omitted(*stream, message.first, len(message.digests))
        return message


class FalseStream:
    """Tell some nodes another stream that fits together, whatever the kind of message.

    All who do so tell the same one. To its source such a replica says that it has everything.
    """

    def __init__(self, lied_to: Iterable[NodeId]) -> None:
        self._lied_to = frozenset(lied_to)
        # The last batch that we spoke of on each stream.
        self._last: dict[Stream, Sequence] = {}

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [(node, self._told(node, message)) for node, message in ready.send]
        return [(0, ready)]

    def _told(self, node: NodeId, message: Message) -> Message:
        if isinstance(message, Ack):
            through = self._last.get(Stream(node, message.topic, message.lane), 0)
            return msgspec.structs.replace(message, through=max(through, message.through))
        if isinstance(message, Forward | Vouch | Echo | ReadyVote):
            stream = Stream(message.publisher, message.topic, message.lane)
            count = len(message.payloads if isinstance(message, Forward) else message.digests)
            numbers = [*range(message.first, message.first + count)]
            self._last[stream] = max(self._last.get(stream, 0), numbers[-1])
        elif isinstance(message, Supply):
            numbers = message.sequences
        else:
            return message
        if node not in self._lied_to:
            return message
        payloads = [self._made_up(message.lane, number) for number in numbers]
        if isinstance(message, Forward | Supply):
            return msgspec.structs.replace(message, payloads=payloads)
        return msgspec.structs.replace(message, digests=[*map(digest, payloads)])

    @classmethod
    def _made_up(cls, lane: Lane, number: Sequence) -> bytes:
        """A batch that nobody published, or a history of such."""
        if lane is Lane.EVENTS:
            return batch.encode_one(None, b"false %d" % number, (), 0, False)
        named = range(4 * number - 3, 4 * number + 1)
        digests = (digest(cls._made_up(Lane.EVENTS, each)) for each in named)
        return History(named[0], tuple(digests)).encode()


class FalseProgress:
    """Tell everybody that things are elsewhere: a stream begins later and has come far, its next
    batches are left out, and its source should begin again."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [pair for node, message in ready.send for pair in self._told(node, message)]
        return [(0, ready)]

    def _told(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if isinstance(message, Frontier):
            stream = (message.publisher, message.topic, message.lane)
            begin = message.highest + self._draw.choice((1, 100, SEQUENCE_MAX // 2))
            frontier = Frontier(*stream, begin, begin + self._draw.choice((0, 10, 10_000)))
            return [(node, frontier), (node, Omitted(*stream, message.highest + 1, 64))]
        if isinstance(message, Ack):
            again = Ack(message.topic, message.lane, Status.RESUME, 0)
            return [(node, self._draw.choice((message, again)))]
        return [(node, message)]


class Withhold:
    """Publish nothing on some lanes towards some replicas; be polite to them otherwise."""

    def __init__(self, replicas: Iterable[NodeId], lanes: Iterable[Lane] = tuple(Lane)) -> None:
        self._replicas = frozenset(replicas)
        self._lanes = frozenset(lanes)

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [
            (node, message)
            for node, message in ready.send
            if node not in self._replicas or self._lane_of(message) not in self._lanes
        ]
        return [(0, ready)]

    @staticmethod
    def _lane_of(message: object) -> Lane | None:
        if isinstance(message, Link | Append | Announce):
            return Lane.EVENTS
        return message.lane if isinstance(message, Publish) else None


def _partial_source(draw: Random, f: int, replicas: Collection[NodeId]) -> Rewrite:
    """Enough replicas hear of it for some destination to deliver, and not enough for all."""
    count = draw.randint(1, min(2 * f, len(replicas)))
    return Withhold(draw.sample(sorted(replicas), count), draw.choice(((Lane.EVENTS,), Lane)))


def _unfinished_source(draw: Random, f: int, replicas: Collection[NodeId]) -> Rewrite:
    """At most f replicas hear of anything: no broadcast is ever completed."""
    return Withhold(draw.sample(sorted(replicas), len(replicas) - draw.randint(1, f)))


def _historyless_source(_: Random, __: int, replicas: Collection[NodeId]) -> Rewrite:
    return Withhold(replicas, (Lane.HISTORIES,))


def _lying_source(draw: Random, *_: object) -> Rewrite:
    """A different content for each replica, in some of the batches."""
    return Lie(draw, draw.choice((5, 20, 50)), ["content"])


def _twin(*_: object) -> Rewrite:
    return misbehaviour.behave


REPLICAS: Mapping[str, Make] = {
    "slow": _slow,
    "drop": _drop,
    "mute": _mute,
    "silent": _silent,
    "lie": _lie,
    **{f"lie-{field}": _lie_about(field) for field in misbehaviour.FIELDS},
    "equivocate": _equivocate,
    "replay": _replay,
    "disown": _disown,
    TWINS: _twin,
}
# They tell a story that fits together. Only a setting names them: what a seed draws is as it was.
PINNED: Mapping[str, Make] = {
    "false-stream": _false_stream,
    "false-progress": _false_progress,
}
SOURCES: Mapping[str, Make] = {
    "partial-source": _partial_source,
    "unfinished-source": _unfinished_source,
    "historyless-source": _historyless_source,
    "lying-source": _lying_source,
    TWIN_SOURCE: _twin,
}
# What a protocol for crash faults has to bear.
HARMLESS = ("slow",)


# On log topics


class Censor:
    """As the leader, never propose what one publisher wants."""

    def __init__(self, victim: NodeId) -> None:
        self._victim = victim

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [
            pair for pair in ready.send if not isinstance(pair[1], Propose) or self._spares(pair[1])
        ]
        return [(0, ready)]

    def _spares(self, propose: Propose) -> bool:
        return all(span.publisher != self._victim for span in Value.decode(propose.value).spans)


class Deny:
    """Sign, at a leader change, that nothing was said in any slot."""

    def __init__(self, sign: Callable[[bytes], bytes]) -> None:
        self._sign = sign

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [(node, self._denied(message)) for node, message in ready.send]
        return [(0, ready)]

    def _denied(self, message: Message) -> Message:
        if not isinstance(message, StopData):
            return message
        state = msgspec.msgpack.decode(message.state, type=State)
        blank = [Promised(promised.slot, 0, b"", {}) for promised in state.promised]
        lie = msgspec.msgpack.encode(msgspec.structs.replace(state, promised=blank))
        return msgspec.structs.replace(message, state=lie, signature=self._sign(lie))


class TwoFaced:
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

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [
            (node, self._other(message) if node in self._half else message)
            for node, message in ready.send
        ]
        return [(0, ready)]

    def _other(self, message: Message) -> Message:
        replace = msgspec.structs.replace
        if isinstance(message, Propose):
            time_us, spans = Value.decode(message.value)
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


class Boast:
    """Say to all that one received and stores what there is. Vote for nothing, and give nothing."""

    def __init__(self, members: Collection[NodeId]) -> None:
        self._members = tuple(members)

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [pair for node, message in ready.send for pair in self._said(node, message)]
        return [(0, ready)]

    def _said(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if isinstance(message, Received):
            line = (message.publisher, message.topic, message.partition)
            stored = Stored(*line, 1, message.through, message.chain)
            return [(member, word) for member in self._members for word in (message, stored)]
        if isinstance(message, Entries):
            return [(node, Absent(message.topic, message.partition, message.offset))]
        is_help = isinstance(message, Propose | Write | Accept | Retrieved | Decision)
        return [] if is_help else [(node, message)]


class FalseLog:
    """Tell each reader a log of its own that fits together, and vouch for it.

    After every message it says that it has no more: whoever leads next is to be taken for
    somebody who agrees.
    """

    def __init__(self) -> None:
        self._chains: dict[tuple[NodeId, Partition, int], Digest] = {}

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [pair for node, message in ready.send for pair in self._told(node, message)]
        return [(0, ready)]

    def _told(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if isinstance(message, Chained):
            place = (node, Partition(message.topic, message.partition), message.offset)
            chain = self._chains.get(place, message.chain)
            return [(node, msgspec.structs.replace(message, chain=chain))]
        if not isinstance(message, Entries):
            return [(node, message)]
        partition = Partition(message.topic, message.partition)
        before = self._chains.get((node, partition, message.offset), message.before)
        false = misbehaviour.alter(
            msgspec.structs.replace(message, before=before), "content", how=1
        )
        assert isinstance(false, Entries)
        end = message.offset + len(message.payloads)
        self._chains[node, partition, end] = false.after
        word = Chained(*partition, end, false.after, 0, end)
        return [(node, false), (node, Absent(*partition, end)), (node, word)]


class Hollow:
    """Order as agreed, and tell readers a story that fits together: all of it is gone.

    Partitions begin where they end, no batch is here any more, and the same is said to whoever asks
    where to begin. With those who really started over it may seem that nobody has it.
    """

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [(node, self._told(message)) for node, message in ready.send]
        return [(0, ready)]

    @staticmethod
    def _told(message: Message) -> Message:
        if isinstance(message, Entries):
            return Absent(message.topic, message.partition, message.offset)
        if isinstance(message, Chained):
            return msgspec.structs.replace(message, start=message.end)
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


class FalseState:
    """Order as agreed, but hand those who start over a wrong state, a wrong proof, or nothing."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [
            (node, false)
            for node, message in ready.send
            if (false := self._falsified(message)) is not None
        ]
        return [(0, ready)]

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


def _false_state(draw: Random, *_: object) -> Rewrite:
    return FalseState(draw)


def _false_log(*_: object) -> Rewrite:
    return FalseLog()


def _hollow(*_: object) -> Rewrite:
    return Hollow()


def _censor(draw: Random, _: int, nodes: Collection[NodeId]) -> Rewrite:
    return Censor(draw.choice(sorted(nodes)))


def _boast(_: Random, __: int, nodes: Collection[NodeId]) -> Rewrite:
    return Boast(nodes)


def _impatient(_: Random, __: int, nodes: Collection[NodeId]) -> Rewrite:
    return Impatient(nodes)


def _forgetful_publisher(draw: Random, f: int, replicas: Collection[NodeId]) -> Rewrite:
    """Too few replicas hear of anything, or just enough of them for some to believe it."""
    count = draw.randint(1, len(replicas) - 1)
    return Withhold(draw.sample(sorted(replicas), count))


BOAST = "boast"
DENY = "deny"
FALSE_STATE = "false-state"
LIE_REPLY = "lie-reply"
HOLLOW = "hollow"
TWO_FACED = "two-faced"
LOG_REPLICAS: Mapping[str, Make] = {
    "slow": _slow,
    "drop": _drop,
    "mute": _mute,
    "silent": _silent,
    "lie": _lie,
    "lie-content": _lie_about("content"),
    "lie-sequence": _lie_about("sequence"),
    LIE_REPLY: _lie_about("reply"),
    "equivocate": _equivocate,
    "replay": _replay,
    "censor": _censor,
    "impatient": _impatient,
    FALSE_STATE: _false_state,
    "false-log": _false_log,
    HOLLOW: _hollow,
    BOAST: _boast,
    TWINS: _twin,
}
# `Deny` and `TwoFaced` are made by the stage, which has the replica's key.
LOG_REPLICA_NAMES = (*(name for name in LOG_REPLICAS if name != TWINS), DENY, TWO_FACED, TWINS)
LOG_PUBLISHERS: Mapping[str, Make] = {
    "partial-source": _forgetful_publisher,
    "lying-source": _lying_source,
    TWIN_SOURCE: _twin,
}
