"""One stream on its way from its source to the replicas.

Source: FIT-Broker 2013, algorithm 1; Freeman 2016, algorithms 1 and 4, section 6.2.

Replicas acknowledge how far they have come; when enough of them have a batch, its receipt is due.
Batches are kept for replicas that lag, within bounds, and sent again when a link breaks or an
acknowledgement stays out. A stream that goes through a chain is in `chain_outgoing`.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from quorate.core.ids import SEQUENCE_MAX, NodeId, Sequence, Stream
from quorate.core.messages import Ack, Publish, Status
from quorate.protocol.broadcast.rules import rules_of
from quorate.protocol.machine import Receipt, Room
from quorate.protocol.outbox import Outbox
from quorate.protocol.runs import by_size
from quorate.protocol.topic import Topic

IN_FLIGHT_BYTES = 16 * 1024 * 1024
KEPT_BYTES_MAX = 32 * 1024 * 1024
RETRY_AFTER_US = 400_000
RETRY_AFTER_US_MAX = 3_000_000
# What a replica refused is sent again when it asks for it, but not more often than this.
RESUME_EVERY_US = 100_000
# Where nobody lies, a source waits for every replica that is there (`Outgoing.slowest`). One that
# says nothing for so long is not. One whose subscribers are slow says so several times a second.
SILENT_AFTER_US = 500_000
WAITING_AFTER_US = 2_000_000


class Peer:
    """What this source knows of one replica, for one stream."""

    __slots__ = (
        "acked", "heard_at_us", "is_new", "next", "resumed_at_us", "retry_at_us", "retry_us",
        "status",
    )  # fmt: skip

    def __init__(self, first: Sequence) -> None:
        self.acked = first - 1
        # It has just connected, and may have forgotten what it acknowledged before.
        self.is_new = True
        self.next = first
        self.status = Status.OK
        self.retry_us = RETRY_AFTER_US
        self.retry_at_us = 0
        self.resumed_at_us = -RESUME_EVERY_US
        # When it last said something, or was first sent what it has not acknowledged yet.
        self.heard_at_us = -WAITING_AFTER_US

    def is_there(self, now_us: int) -> bool:
        """May we expect it to acknowledge what it was sent?"""
        patience_us = WAITING_AFTER_US if self.status is Status.WAIT else SILENT_AFTER_US
        return now_us - self.heard_at_us < patience_us


@dataclass(slots=True)
class Kept:
    """One batch that may have to be sent again."""

    payload: bytes
    urgent: bool
    events: int


class Outgoing:
    """One stream on its way to the replicas of its topic."""

    def __init__(self, topic: Topic, stream: Stream, first: Sequence, outbox: Outbox) -> None:
        self.topic = topic
        self.stream = stream
        self.peers = {replica: Peer(first) for replica in topic.members}
        self.kept: dict[Sequence, Kept] = {}
        self.kept_bytes = 0
        self.next = first
        # The first batch without a receipt; what is in flight starts here.
        self.unreceipted = first
        self.in_flight_events = 0
        self.in_flight_bytes = 0
        # Nothing at or beyond this goes out: the replicas would block it.
        self.limit: Sequence | None = None
        # From here on no delivered history names what we sent: replicas may still ask for it,
        # even those that acknowledged it (a chain's replica may have started later).
        self.unnamed: Sequence | None = None
        # The last batch that every replica has which is there, where we wait for all of them.
        self.slowest: Sequence = SEQUENCE_MAX
        self._waits_for_all = topic.contract.protection == "crash"
        self._windows = topic.windows
        self._outbox = outbox
        self._events_max = max(1, topic.contract.queue_events_max // 4)
        rules = rules_of(topic, stream.lane)
        self._needed = rules.replicas_to_settle(topic.quorum)
        self._guarantee = rules.guarantee

    @property
    def settled(self) -> Sequence:
        """The first batch that we can and will still send; what is kept has no gaps."""
        return self.next - len(self.kept)

    @property
    def cares_from(self) -> Sequence:
        """The first batch that a replica should still wait for."""
        return self.settled

    @property
    def in_flight(self) -> int:
        return self.next - self.unreceipted

    @property
    def has_room(self) -> bool:
        """May another batch be taken without growing what is in flight beyond its bound?"""
        return (
            self.next - self.unreceipted < self._windows.in_flight
            and self.in_flight_bytes < IN_FLIGHT_BYTES
            and self.in_flight_events < self._events_max
            and self._is_slowest_near
        )

    @property
    def _is_slowest_near(self) -> bool:
        """Do we keep whatever the slowest replica lacks, and still will with another batch?"""
        if self.slowest >= self.unreceipted - 1:
            return True
        is_near = self.next - self.slowest <= self._windows.in_flight
        return is_near and self.kept_bytes < KEPT_BYTES_MAX

    @property
    def sent_before(self) -> Sequence:
        """Everything below this has been sent to somebody."""
        return max(peer.next for peer in self.peers.values())

    def has_reached(self, replicas: Collection[NodeId]) -> bool:
        """Do all of these have everything that was published?"""
        acked = (peer.acked for replica, peer in self.peers.items() if replica in replicas)
        return min(acked, default=self.next) >= self.next - 1

    def add(self, payload: bytes, urgent: bool, events: int) -> Sequence:
        sequence = self.next
        self.kept[sequence] = Kept(payload, urgent, events)
        self.kept_bytes += len(payload)
        self.in_flight_bytes += len(payload)
        self.in_flight_events += events
        self.next += 1
        return sequence

    def on_ack(self, replica: NodeId, ack: Ack) -> None:
        if ack.status is Status.REPAIR:
            self._on_complaint(replica, ack.through)
            return
        peer = self.peers[replica]
        peer.status = ack.status
        peer.heard_at_us = self._outbox.now_us
        if ack.through >= self.next:
            self._outbox.report(replica, "false-ack", f"of batch {ack.through}, never sent")
            return
        if peer.is_new and ack.status is not Status.WAIT:
            peer.is_new = False
            if ack.through < peer.acked:
                peer.acked = max(ack.through, self.settled - 1)
                peer.next = peer.acked + 1
        if ack.through > peer.acked:
            peer.acked = ack.through
            peer.retry_us = RETRY_AFTER_US
            peer.retry_at_us = self._outbox.now_us + peer.retry_us
            self._settle()
        if ack.status is Status.RESUME:
            # It refused what came after this, and has room again.
            now_us = self._outbox.now_us
            if now_us - peer.resumed_at_us >= RESUME_EVERY_US:
                peer.resumed_at_us = now_us
                self._go_back(replica, ack.through + 1)

    def _on_complaint(self, replica: NodeId, sequence: Sequence) -> None:
        """A subscriber had to fetch this batch. Nobody but a chain has to answer for that."""

    def _go_back(self, replica: NodeId, start: Sequence) -> None:
        peer = self.peers[replica]
        peer.next = max(min(peer.next, start), self.settled)

    def flush(self, can_send: Callable[[NodeId], bool]) -> None:
        """Send to each replica what it has not been sent; usually the same to all."""
        end = self.next if self.limit is None else min(self.next, self.limit)
        cut: dict[Sequence, list[Publish]] = {}
        for replica, peer in self.peers.items():
            peer.next = max(peer.next, self.settled)
            if peer.next >= end or not can_send(replica):
                continue
            if peer.next not in cut:
                cut[peer.next] = list(self._publishes(peer.next, end))
            for publish in cut[peer.next]:
                self._outbox.send(replica, publish)
            if peer.acked == peer.next - 1:
                peer.retry_at_us = self._outbox.now_us + peer.retry_us
                if peer.retry_us == RETRY_AFTER_US:
                    peer.heard_at_us = self._outbox.now_us
            peer.next = end

    def tick(self) -> None:
        """Go back to what a replica has not acknowledged for too long."""
        now_us = self._outbox.now_us
        self._find_slowest()
        for peer in self.peers.values():
            if peer.acked >= peer.next - 1 or peer.retry_at_us > now_us:
                continue
            if peer.status is not Status.WAIT or now_us - peer.retry_at_us > RETRY_AFTER_US_MAX:
                peer.next = max(peer.acked + 1, self.settled)
                peer.retry_us = min(2 * peer.retry_us, RETRY_AFTER_US_MAX)
                peer.retry_at_us = now_us + peer.retry_us
        self._trim()

    def reconnected(self, replica: NodeId) -> None:
        peer = self.peers[replica]
        peer.is_new = True
        peer.next = max(peer.acked + 1, self.settled)
        peer.retry_us = RETRY_AFTER_US

    def disconnected(self, replica: NodeId) -> None:
        self.peers[replica].heard_at_us = -WAITING_AFTER_US
        self._find_slowest()

    def on_fetch(self, replica: NodeId, sequences: list[Sequence]) -> None:
        """A replica misses batches that a history names; it will be sent them."""

    def receipt_through(self, last: Sequence, replicas: tuple[NodeId, ...], words: str) -> None:
        if last < self.unreceipted:
            return
        for sequence in range(self.unreceipted, last + 1):
            kept = self.kept[sequence]
            self.in_flight_bytes -= len(kept.payload)
            self.in_flight_events -= kept.events
        self._outbox.deliver(Receipt(self.stream, self.unreceipted, last, replicas, words))
        self.unreceipted = last + 1
        self._trim()

    def _find_slowest(self) -> None:
        """How far the slowest replica is that is there.

        Where nobody lies, one acknowledgement is enough for a receipt. A replica that lags must
        not be left behind all the same: if the faster ones crash, it is the one that is left.
        """
        if self._waits_for_all:
            now_us = self._outbox.now_us
            there = (peer.acked for peer in self.peers.values() if peer.is_there(now_us))
            was_near = self._is_slowest_near
            self.slowest = min(there, default=SEQUENCE_MAX)
            if self._is_slowest_near and not was_near:
                self._outbox.deliver(Room(self.stream))

    def _settle(self) -> None:
        self._find_slowest()
        through = sorted((peer.acked for peer in self.peers.values()), reverse=True)
        last = through[self._needed - 1]
        if last >= self.unreceipted:
            replicas = tuple(r for r, peer in self.peers.items() if peer.acked >= last)
            self.receipt_through(last, replicas, self._guarantee)
        elif self.settled <= through[-1]:
            self._trim()

    def _trim(self) -> None:
        """Forget what every replica has, and of the rest the oldest beyond the bounds."""
        everyone = min(peer.acked for peer in self.peers.values())
        end = self.unreceipted if self.unnamed is None else min(self.unreceipted, self.unnamed)
        for sequence in range(self.settled, end):
            excess = len(self.kept) > self._windows.kept or self.kept_bytes > KEPT_BYTES_MAX
            if sequence > everyone and (not excess or sequence > self.slowest):
                break
            self.kept_bytes -= len(self.kept.pop(sequence).payload)

    def _publishes(self, first: Sequence, end: Sequence) -> Iterator[Publish]:
        """The batches from first to end as runs of equal urgency and bounded size."""
        at = first
        while at < end:
            urgent, payloads = self.kept[at].urgent, []
            while at < end and self.kept[at].urgent == urgent:
                payloads.append(self.kept[at].payload)
                at += 1
            start = at - len(payloads)
            for part, some in by_size(start, payloads):
                yield Publish(
                    self.stream.topic, self.stream.lane, urgent, part, self.cares_from, some
                )
