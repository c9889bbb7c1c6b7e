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
from quorate.core.ids import SEQUENCE_MAX, Lane, NodeId, Sequence, Stream
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
from quorate.core.ordering import Announce, AnnounceSealed, Append
from quorate.crypto.digests import digest
from quorate.protocol import misbehaviour
from quorate.protocol.broadcast.history import History
from quorate.protocol.machine import Ready
from quorate.protocol.misbehaviour import Drop, Equivocate, Lie, Parts, Replay, Silence, Slow
from quorate.sim.hosts import Rewrite

# From the numbers of a seed, f, and all nodes of the world.
Make: TypeAlias = Callable[[Random, int, Collection[NodeId]], Rewrite]

TWINS = "twins"
TWIN_SOURCE = "twin-source"


class Retold:
    """An adversary that sends something else in place of each message."""

    def __call__(self, ready: Ready, _: int) -> Parts:
        ready.send = [pair for node, message in ready.send for pair in self._sent(node, message)]
        return [(0, ready)]

    def _sent(self, node: NodeId, message: Message) -> Iterable[tuple[NodeId, Message]]:
        """What is sent in place of one message."""
        return [(node, self._told(node, message))]

    def _told(self, node: NodeId, message: Message) -> Message:
        """What this node is told in place of one message."""
        return message


class Disown(Retold):
    """Say of everything that is due to a subscriber that it will not be sent."""

    def _told(self, node: NodeId, message: Message) -> Message:
        if isinstance(message, Forward):
            stream = (message.publisher, message.topic, message.lane)
            return Omitted(*stream, message.first, len(message.payloads))
        if isinstance(message, Vouch):
            stream = (message.publisher, message.topic, message.lane)
            return Omitted(*stream, message.first, len(message.digests))
        return message


class FalseStream(Retold):
    """Tell some nodes another stream that fits together, whatever the kind of message.

    All who do so tell the same one. To its source such a replica says that it has everything.
    """

    def __init__(self, lied_to: Iterable[NodeId]) -> None:
        self._lied_to = frozenset(lied_to)
        # The last batch that we spoke of on each stream.
        self._last: dict[Stream, Sequence] = {}

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


class FalseProgress(Retold):
    """Tell everybody that things are elsewhere: a stream begins later and has come far, its next
    batches are left out, and its source should begin again."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if isinstance(message, Frontier):
            stream = (message.publisher, message.topic, message.lane)
            begin = message.highest + self._draw.choice((1, 100, SEQUENCE_MAX // 2))
            frontier = Frontier(*stream, begin, begin + self._draw.choice((0, 10, 10_000)))
            return [(node, frontier), (node, Omitted(*stream, message.highest + 1, 64))]
        if isinstance(message, Ack):
            again = Ack(message.topic, message.lane, Status.RESUME, 0)
            return [(node, self._draw.choice((message, again)))]
        return [(node, message)]


class Withhold(Retold):
    """Publish nothing on some lanes towards some replicas; be polite to them otherwise."""

    def __init__(self, replicas: Iterable[NodeId], lanes: Iterable[Lane] = tuple(Lane)) -> None:
        self._replicas = frozenset(replicas)
        self._lanes = frozenset(lanes)

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        is_held = node in self._replicas and self._lane_of(message) in self._lanes
        return [] if is_held else [(node, message)]

    @staticmethod
    def _lane_of(message: object) -> Lane | None:
        if isinstance(message, Link | Append | Announce | AnnounceSealed):
            return Lane.EVENTS
        return message.lane if isinstance(message, Publish) else None


def some(
    draw: Random, nodes: Collection[NodeId], least: int, most: int | None = None
) -> list[NodeId]:
    """So many of these nodes, at most all of them."""
    return draw.sample(sorted(nodes), draw.randint(least, len(nodes) if most is None else most))


def _partial_source(draw: Random, f: int, replicas: Collection[NodeId]) -> Rewrite:
    """Enough replicas hear of it for some destination to deliver, and not enough for all."""
    deaf = some(draw, replicas, 1, min(2 * f, len(replicas)))
    return Withhold(deaf, draw.choice(((Lane.EVENTS,), Lane)))


def _unfinished_source(draw: Random, f: int, replicas: Collection[NodeId]) -> Rewrite:
    """At most f replicas hear of anything: no broadcast is ever completed."""
    return Withhold(draw.sample(sorted(replicas), len(replicas) - draw.randint(1, f)))


def _false_stream(draw: Random, _: int, nodes: Collection[NodeId]) -> Rewrite:
    """Everybody, or some, so that liars who differ in that tell one truth and one lie."""
    count = draw.choice((len(nodes), draw.randint(1, len(nodes))))
    return FalseStream(draw.sample(sorted(nodes), count))


def _lie(*fields: str) -> Make:
    return lambda draw, *_: Lie(draw, draw.choice((20, 100)), fields)


def _twin(*_: object) -> Rewrite:
    return misbehaviour.behave


REPLICAS: Mapping[str, Make] = {
    "slow": lambda draw, *_: Slow(draw.randrange(20_000, 1_500_000)),
    "drop": lambda draw, *_: Drop(draw, draw.choice((10, 50, 90))),
    "mute": lambda *_: Silence(),
    "silent": lambda draw, f, nodes: Silence(draw.sample(sorted(nodes), f)),
    "lie": _lie(),
    **{f"lie-{field}": _lie(field) for field in misbehaviour.FIELDS},
    "equivocate": lambda draw, _, nodes: Equivocate(some(draw, nodes, 1)),
    "replay": lambda draw, *_: Replay(draw, 50),
    "disown": lambda *_: Disown(),
    TWINS: _twin,
}
# They tell a story that fits together. Only a setting names them: what a seed draws is as it was.
PINNED: Mapping[str, Make] = {
    "false-stream": _false_stream,
    "false-progress": lambda draw, *_: FalseProgress(draw),
}
SOURCES: Mapping[str, Make] = {
    "partial-source": _partial_source,
    "unfinished-source": _unfinished_source,
    "historyless-source": lambda _, __, replicas: Withhold(replicas, (Lane.HISTORIES,)),
    # A different content for each replica, in some of the batches.
    "lying-source": lambda draw, *_: Lie(draw, draw.choice((5, 20, 50)), ["content"]),
    TWIN_SOURCE: _twin,
}
# What a protocol for crash faults has to bear.
HARMLESS = ("slow",)
