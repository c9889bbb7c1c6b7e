"""A line on its way to its group, seen from its publisher.

Source: FIT-Broker 2013, section 4.4.2; DESIGN section 3.

Small batches go to every replica. Of a large one the payload goes to f + 1 stores and its
descriptor to the others; when nothing moves for a while, to other stores (`store_choice.py`). A
batch has its receipt when enough replicas name the same position: one where nobody lies, f + 1
otherwise. Until then it is kept and sent again, to whoever comes back and to all when nothing
moves. Replicas recognise what they have by its sequence number, so that nothing is ordered twice.

Batches of a validated topic that are to be signed are so as they get their numbers
(`validation.py`); basic ones have a place in the same line.

What all lines of a source have under way is bounded together, and replicas have room for that
(`room.py`).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TypeAlias

from quorate.core.errors import LocalProtocolError
from quorate.core.header import SEAL_BYTES, is_signed
from quorate.core.ids import NodeId, Sequence
from quorate.core.ordering import (
    Announce,
    AnnounceSealed,
    Append,
    Line,
    Ordered,
    Partition,
    Unordered,
)
from quorate.crypto.digests import descriptor, digest_of, seal_descriptor
from quorate.protocol.machine import Recorded, Refused
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX, inline_max
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.room import BATCH_COST, EVENT_COST, LINE_COST, ROOMS
from quorate.protocol.ordering.store_choice import StoreChoice
from quorate.protocol.ordering.validation import Sealer, Sealing
from quorate.protocol.outbox import Outbox
from quorate.protocol.runs import by_size
from quorate.protocol.topic import Topic

Requested: TypeAlias = Append | Announce | AnnounceSealed
_Kind: TypeAlias = type[Append | Announce | AnnounceSealed] | None

RETRY_AFTER_US = 400_000
RETRY_AFTER_US_MAX = 3_000_000
# A replica that lags behind refuses what it knows nothing of yet.
REFUSED_AFTER_US = 1_000_000

_DECIDED = {
    "byzantine": "a quorum decided this position and has",
    "crash": "a majority decided this position and has",
    "none": "the replica has",
}
_BEARS = {
    "byzantine": "; f replicas may do anything",
    "crash": "; f replicas may crash",
    "none": "",
}
# By fsync policy: where it is, and what that gives up in the words of a store's `gives_up`.
_KEPT = {
    "always": ("it on disk", ""),
    "interval": (
        "written it",
        "; what was acknowledged since the last sync is lost if the machine loses power, "
        "though not if only the process crashes",
    ),
    "never": (
        "written it",
        "; what was acknowledged and the operating system has not written of its own accord is "
        "lost if the machine loses power, though not if only the process crashes",
    ),
}


class UnderWay:
    """What a source has no receipts for, on all its lines, counted as replicas count it."""

    __slots__ = ("bytes", "bytes_max", "held_up")

    def __init__(self, bytes_max: int = ROOMS.in_flight) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        # Whether a line was kept from going on since this was last set to False.
        self.held_up = False

    @property
    def has_room(self) -> bool:
        has_room = self.bytes < self.bytes_max
        self.held_up |= not has_room
        return has_room


class Kept:
    """A batch without a receipt."""

    __slots__ = ("added_us", "descriptor", "events", "payload", "size")

    def __init__(
        self,
        payload: bytes,
        events: int,
        added_us: int,
        size: int,
        inline_bytes: int = INLINE_BYTES_MAX,
    ) -> None:
        """Of a batch that is signed later, `seal` says then what the payload is."""
        self.events = events
        self.added_us = added_us
        self.size = size
        self.payload = payload
        # Of large ones only.
        self.descriptor = descriptor(payload) if len(payload) > inline_bytes else None

    def seal(self, payload: bytes) -> None:
        self.payload = payload
        if len(payload) > INLINE_BYTES_MAX:
            # We sealed it ourselves, and need not look again whether its body is what it says.
            self.descriptor = seal_descriptor(payload[:SEAL_BYTES])

    @property
    def cost_bytes(self) -> int:
        """What it takes as replicas count it."""
        return BATCH_COST + EVENT_COST * self.events + self.size


class LineOutgoing:
    """The publisher's end of one line."""

    def __init__(
        self,
        topic: Topic,
        line: Line,
        outbox: Outbox,
        under_way: UnderWay | None = None,
        sealer: Sealer | None = None,
        stores: int | None = None,
    ) -> None:
        """`under_way` is shared by all lines of a source; a `sealer` signs what is to be signed.

        Large payloads go to so many `stores`; to f + 1, unless told.
        """
        self.topic, self.line = topic, line
        self._sealer = sealer
        self.under_way = UnderWay() if under_way is None else under_way
        self.next: Sequence = 1
        self.unreceipted: Sequence = 1
        self._kept: dict[Sequence, Kept] = {}
        # Those that are signed before the next ones are sent.
        self._unsealed: list[tuple[Kept, Sealing]] = []
        self._outbox = outbox
        order = stores_of(topic.members, Partition(line.topic, line.partition))
        self._stores = StoreChoice(order, min(stores or topic.f + 1, len(order)))
        # What each replica is sent next.
        self._next = dict.fromkeys(topic.members, 1)
        # Who said which position for the batches from a sequence number on.
        self._voices: dict[Sequence, dict[NodeId, Ordered]] = {}
        # Who says since we handed in last that it is not ordered, and why that is so for good.
        self._refusals: dict[NodeId, str] = {}
        self.refusal = ""
        byzantine = topic.contract.protection == "byzantine"
        self._needed = topic.quorum.one_correct if byzantine else 1
        self._guarantee = _guarantee(topic)
        self._retry_us = RETRY_AFTER_US
        self._moved_us = 0

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.topic.windows.in_flight and self.under_way.has_room

    @property
    def in_flight(self) -> int:
        return self.next - self.unreceipted

    def add(self, payload: bytes, events: int, *, sign: bool = False) -> Sequence:
        """Take a batch; on a validated topic it may be signed."""
        if sign and self._sealer is None:
            raise LocalProtocolError(f"a batch on '{self.topic.name}' that nobody here can sign")
        sequence, now_us = self.next, self._outbox.now_us
        if sequence == self.unreceipted:
            self._moved_us = now_us
            self.under_way.bytes += LINE_COST
        if sign and self._sealer is not None:
            me, _, partition = self.line
            sealing = self._sealer.hold(self.topic, me, partition, sequence, payload)
            kept = Kept(b"", events, now_us, SEAL_BYTES + len(sealing.body))
            self._unsealed.append((kept, sealing))
        else:
            kept = Kept(payload, events, now_us, len(payload), inline_max(self.topic.id))
        self._kept[sequence] = kept
        self.under_way.bytes += kept.cost_bytes
        self.next += 1
        return sequence

    def go_on_with(self, sequence: Sequence) -> None:
        """Batches before this number were published by whoever had this session before."""
        if self.next != 1:
            raise LocalProtocolError("a line goes on where it was before anything is published")
        self.next = self.unreceipted = sequence
        self._next = dict.fromkeys(self._next, sequence)

    def on_ordered(self, replica: NodeId, ordered: Ordered) -> None:
        if replica not in self._next or ordered.first + ordered.count > self.next:
            self._outbox.report(replica, "false-position", f"for batch {ordered.first}")
            return
        self._stores.on_ordered(replica, ordered.first + ordered.count - 1)
        if ordered.first < self.unreceipted or not ordered.count:
            # A correct one says of a batch always the same, and that has its receipt.
            return
        self._voices.setdefault(ordered.first, {})[replica] = ordered
        while self._settle_next():
            pass

    def on_unordered(self, replica: NodeId, unordered: Unordered) -> None:
        """So many replicas have to say so that one of them knows all that was ordered of it."""
        if replica not in self._next or not self.in_flight or unordered.first > self.unreceipted:
            # Of a later batch it may lack no more than what was lost on the way.
            return
        self._refusals[replica] = unordered.sentence
        kept, now_us = self._kept[self.unreceipted], self._outbox.now_us
        is_late = now_us - kept.added_us >= REFUSED_AFTER_US
        if is_late and len(self._refusals) >= self.topic.quorum.reachable:
            ((self.refusal, _),) = Counter(self._refusals.values()).most_common(1)
            self._give_up()

    def _give_up(self) -> None:
        self._seal()
        first = self.unreceipted
        self.under_way.bytes -= LINE_COST + sum(kept.cost_bytes for kept in self._kept.values())
        self._kept.clear()
        self._unsealed.clear()
        self._voices.clear()
        self.unreceipted = self.next
        self._outbox.deliver(Refused(self.line, first, self.refusal))

    def flush(self, can_send: Callable[[NodeId], bool]) -> None:
        """Send to each replica what it has not been sent; mostly the same to all."""
        cut: dict[tuple[Sequence, bool], list[Requested]] = {}
        if not self.in_flight:
            return
        self._seal()
        for replica in self._stores.choose(can_send, self._outbox.now_us):
            # It was sent seals and digests of what another one should have stored.
            self._next[replica] = self.unreceipted
        stores = self._stores.chosen
        for replica, start in self._next.items():
            start = max(start, self.unreceipted)
            if start >= self.next or not can_send(replica):
                continue
            kind = start, replica in stores
            if kind not in cut:
                cut[kind] = list(self._messages(*kind))
            for message in cut[kind]:
                self._outbox.send(replica, message)
            self._next[replica] = self.next

    def tick(self) -> None:
        """Nothing moved for too long: say all of it again, and have it stored by others."""
        now_us = self._outbox.now_us
        self._stores.tick(self.unreceipted - 1, now_us)
        if self.in_flight and now_us - self._moved_us >= self._retry_us:
            self._moved_us = now_us
            self._retry_us = min(2 * self._retry_us, RETRY_AFTER_US_MAX)
            self._stores.stuck(self.unreceipted - 1, now_us)
            self._refusals.clear()
            self._next = dict.fromkeys(self._next, self.unreceipted)

    def reconnected(self, replica: NodeId) -> None:
        self._next[replica] = self.unreceipted

    def _seal(self) -> None:
        """What was added since the last time is signed now, with what other lines have."""
        if self._sealer is None or not self._unsealed:
            return
        self._sealer.sign_held()
        unsealed, self._unsealed = self._unsealed, []
        for kept, sealing in unsealed:
            kept.seal(sealing.payload)

    def _settle_next(self) -> bool:
        """The first batches without a receipt get one, if enough replicas agree on it."""
        voices = self._voices.get(self.unreceipted, {})
        for ordered in voices.values():
            replicas = tuple(replica for replica, said in voices.items() if said == ordered)
            if len(replicas) >= self._needed:
                self._settle(ordered, replicas)
                return True
        return False

    def _settle(self, ordered: Ordered, replicas: tuple[NodeId, ...]) -> None:
        end, oldest_us = ordered.first + ordered.count, self._kept[self.unreceipted].added_us
        settled = [self._kept.pop(sequence) for sequence in range(self.unreceipted, end)]
        self.under_way.bytes -= sum(kept.cost_bytes for kept in settled)
        offsets = list(accumulate((kept.events for kept in settled), initial=ordered.offset))
        self.unreceipted = end
        self._refusals.clear()
        if not self.in_flight:
            self.under_way.bytes -= LINE_COST
        self._voices = {first: said for first, said in self._voices.items() if first >= end}
        self._moved_us = self._outbox.now_us
        # Where receipts take long, nothing is lost yet when they are late: to say it all again
        # would only keep replicas from what they have to do.
        took_us = self._moved_us - oldest_us
        self._retry_us = max(RETRY_AFTER_US, min(2 * took_us, RETRY_AFTER_US_MAX))
        self._outbox.deliver(
            Recorded(
                self.line, ordered.first, ordered.count, offsets, ordered.time_us,
                replicas, self._guarantee,
            )
        )  # fmt: skip

    def _messages(self, start: Sequence, is_store: bool) -> Iterator[Requested]:
        """What a replica is sent, from here on: runs of payloads, descriptors and seals."""
        at, target = start, self.line.target
        while at < self.next:
            first, kind = at, self._kind(at, is_store)
            while at < self.next and self._kind(at, is_store) is kind:
                at += 1
            kept = [self._kept[sequence] for sequence in range(first, at)]
            described = [k.descriptor for k in kept if k.descriptor is not None]
            if kind is Announce:
                yield Announce(*target, first, described)
            elif kind is AnnounceSealed:
                yield AnnounceSealed(*target, first, [k.payload[:SEAL_BYTES] for k in kept])
            else:
                digests = [*map(digest_of, described)] if len(described) == len(kept) else []
                for part, payloads in by_size(first, [k.payload for k in kept]):
                    start = part - first
                    yield Append(*target, part, payloads, digests[start : start + len(payloads)])

    def _kind(self, sequence: Sequence, is_store: bool) -> "_Kind":
        """How a large batch is sent. Others are no part of that: they do not prove themselves."""
        kept = self._kept[sequence]
        if kept.descriptor is None:
            return None
        if is_store:
            return Append
        return AnnounceSealed if is_signed(kept.descriptor) else Announce


def _guarantee(topic: Topic) -> str:
    """What a position is worth, given how its replicas keep what they write."""
    protection = topic.contract.protection
    where, gives_up = _KEPT[topic.fsync]
    return f"{_DECIDED[protection]} {where}{_BEARS[protection]}{gives_up}"
