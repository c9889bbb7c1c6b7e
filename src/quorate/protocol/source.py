"""The publishing end as one machine: streams, receipts, retransmission, histories.

Source: FIT-Broker 2013, algorithm 1; Freeman 2016, algorithms 1, 4 and 7, sections 5.8, 6.2.

A batch goes to the replicas of its topic as its protocol says. Replicas acknowledge how far
they have come; when enough of them have a batch, its receipt is due. Batches are kept for
replicas that lag, within bounds, and sent again when a link breaks or an acknowledgement
stays out.

A client that restarts is another node (its session is new), so sequence numbers can start at 1
and none is ever given twice.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from quorate.core.errors import LocalProtocolError
from quorate.core.ids import SEQUENCE_MAX, Digest, Lane, NodeId, Sequence, Stream, TopicId
from quorate.core.messages import (
    Ack,
    Fetch,
    Link,
    Message,
    Operation,
    Publish,
    Reply,
    Status,
    Supply,
)
from quorate.crypto.digests import digest
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast import authenticated, chain, first_answer, reliable, vote
from quorate.protocol.broadcast.history import History
from quorate.protocol.broadcast.scope import SUPPLY_BYTES_MAX
from quorate.protocol.machine import Ready, Receipt, Room
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import Requests, Standing
from quorate.protocol.runs import by_size
from quorate.protocol.topic import Topic, by_id

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
# A chain has failed after this long without progress, or after four times the longest gap
# that it showed lately, if that is more.
CHAIN_PATIENCE_US = 250_000
CHAIN_PATIENCE_US_MAX = 2_000_000
# What subscribers or replicas still miss this soon after a change of chain, the one before lost.
COMPLAINT_GRACE_US = 500_000
FETCH_GRACE_US = 300_000
TICK_EVERY_US = 50_000
# A history goes out after this long even if fewer than alpha batches wait for one.
HISTORY_IDLE_US = 250_000

_RULES = {
    "first-answer": first_answer,
    "vote": vote,
    "authenticated": authenticated,
    "reliable": reliable,
    "chain": chain,
}


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


class Kept:
    """One batch that may have to be sent again."""

    __slots__ = ("events", "payload", "urgent")

    def __init__(self, payload: bytes, urgent: bool, events: int) -> None:
        self.payload = payload
        self.urgent = urgent
        self.events = events


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
        protocol = "reliable" if stream.lane is Lane.HISTORIES else topic.contract.protocol
        rules = _RULES[protocol]
        self._needed = rules.replicas_to_settle(topic.quorum)
        self._guarantee = rules.GUARANTEE

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

    def add(self, payload: bytes, urgent: bool, events: int) -> Sequence:
        sequence = self.next
        self.kept[sequence] = Kept(payload, urgent, events)
        self.kept_bytes += len(payload)
        self.in_flight_bytes += len(payload)
        self.in_flight_events += events
        self.next += 1
        return sequence

    def on_ack(self, replica: NodeId, ack: Ack) -> None:
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
            self._resume(replica, ack.through + 1)

    def _resume(self, replica: NodeId, start: Sequence) -> None:
        """This replica refused what came after this, and has room again."""
        peer = self.peers[replica]
        if self._outbox.now_us - peer.resumed_at_us >= RESUME_EVERY_US:
            peer.resumed_at_us = self._outbox.now_us
            self._go_back(replica, start)

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


class ChainOutgoing(Outgoing):
    """A stream that goes to the head of a chain, and to the next chain when one fails."""

    def __init__(
        self, topic: Topic, stream: Stream, first: Sequence, outbox: Outbox, macs: PairwiseMacs
    ) -> None:
        super().__init__(topic, stream, first, outbox)
        self.number = 0
        self._macs = macs
        # What went into this chain starts at `_from` and ends before `_sent`.
        self._from = self._sent = first
        self._acked = first - 1
        self._progress_at_us = 0
        self._gap_us = 0
        self._chosen_at_us = -COMPLAINT_GRACE_US
        # There is something to send, and the head of the chain is out of reach.
        self._is_barred = False
        self._complaints: set[NodeId] = set()
        # Before this, complaints are about what the chain before this one lost.
        self._answers_from = first
        # How often each chain has failed us; one that works is forgiven.
        self._failures = [0] * len(topic.members)

    @property
    def cares_from(self) -> Sequence:
        """A replica that a new chain takes in starts where the chain does."""
        return self.unreceipted

    @property
    def sent_before(self) -> Sequence:
        return self._sent

    def on_ack(self, replica: NodeId, ack: Ack) -> None:
        if ack.status is Status.REPAIR:
            self._on_complaint(replica, ack.through)
            return
        super().on_ack(replica, ack)

    def _go_back(self, replica: NodeId, start: Sequence) -> None:
        if replica in self.topic.chain(self.number):
            self._sent = max(min(self._sent, start), self._from, self.unreceipted)

    def _on_complaint(self, replica: NodeId, sequence: Sequence) -> None:
        """A subscriber had to fetch this batch. It counts if this chain should have brought it.

        What was lost before goes on being fetched for a while after a change of chain, and holds
        the subscriber up.
        """
        if self._answers_for(sequence, COMPLAINT_GRACE_US):
            self._complain(replica, "subscribers had to repair it")

    def on_fetch(self, replica: NodeId, sequences: list[Sequence]) -> None:
        """A replica misses batches that a history names. In the chain, it should have them."""
        is_in_chain = replica in self.topic.chain(self.number)
        if is_in_chain and self._answers_for(max(sequences), FETCH_GRACE_US):
            self._complain(replica, "its replicas had to repair it")

    def _answers_for(self, sequence: Sequence, grace_us: int) -> bool:
        """Should this chain have brought a batch that somebody misses?"""
        if self._outbox.now_us - self._chosen_at_us < grace_us:
            self._answers_from = self._sent
        return self._answers_from <= sequence < self._sent

    def _complain(self, replica: NodeId, why: str) -> None:
        self._complaints.add(replica)
        if len(self._complaints) >= self.topic.quorum.one_correct:
            self._next_chain(why)

    def flush(self, can_send: Callable[[NodeId], bool]) -> None:
        end = self.next if self.limit is None else min(self.next, self.limit)
        self._sent = max(self._sent, self.unreceipted)
        head = self.topic.chain(self.number)[0]
        if self._sent >= end:
            return
        if self._acked >= self._sent - 1 and not self._is_barred:
            self._progress_at_us = self._outbox.now_us
        self._is_barred = not can_send(head)
        if self._is_barred:
            return
        for publish in self._publishes(self._sent, end):
            self._outbox.send(head, self._link(publish))
        self._sent = end

    def tick(self) -> None:
        """A chain that does not bring what it was sent to its end has failed.

        Histories may settle the batches meanwhile, but that does not make the chain better.
        """
        waited_us = self._outbox.now_us - self._progress_at_us
        is_behind = self._sent > self._from and self._acked < self._sent - 1
        if (is_behind or self._is_barred) and waited_us > self._patience_us:
            self._next_chain("it made no progress")
        self._trim()

    @property
    def _patience_us(self) -> int:
        """A chain whose end waits for slow subscribers is not broken; or it says so and lies."""
        ends = chain.last_of(self.topic, self.number)
        if any(self.peers[replica].status is Status.WAIT for replica in ends):
            return CHAIN_PATIENCE_US_MAX
        return min(max(CHAIN_PATIENCE_US, 4 * self._gap_us), CHAIN_PATIENCE_US_MAX)

    def reconnected(self, replica: NodeId) -> None:
        if replica == self.topic.chain(self.number)[0]:
            self._sent = self.unreceipted

    def _settle(self) -> None:
        """The last f + 1 of the chain have it."""
        ends = chain.last_of(self.topic, self.number)
        last = min(self.peers[replica].acked for replica in ends)
        if last > self._acked:
            gap_us = self._outbox.now_us - self._progress_at_us
            self._gap_us = max(gap_us, self._gap_us - self._gap_us // 16)
            self._acked = last
            self._progress_at_us = self._outbox.now_us
            if last - self._from >= self._windows.in_flight // 2:
                # It works.
                self._failures[self.number] = 0
        if last >= self.unreceipted:
            self.receipt_through(last, ends, chain.GUARANTEE)

    def _next_chain(self, why: str) -> None:
        suspects = self.topic.chain(self.number)
        self._failures[self.number] += 1
        # The one that failed least, and of several the next: a liar's chains are soon avoided,
        # and a good one that was only slow is tried again.
        chains = len(self._failures)
        self.number = min(
            range(chains), key=lambda n: (self._failures[n], (n - self.number - 1) % chains)
        )
        self._complaints.clear()
        self._sent = self._from = self._answers_from = self.unreceipted
        self._acked = self._from - 1
        self._is_barred = False
        self._progress_at_us = self._chosen_at_us = self._outbox.now_us
        self._outbox.report(suspects[0], "chain-abandoned", f"{suspects} because {why}")

    def _link(self, publish: Publish) -> Link:
        bare = Link(
            self.stream.publisher, publish.topic, publish.urgent, publish.first,
            publish.settled, self.number, publish.payloads, [],
        )  # fmt: skip
        digests = [digest(payload) for payload in publish.payloads]
        tags = chain.source_authenticators(bare, digests, self.topic, self._macs)
        return Link(
            bare.publisher, bare.topic, bare.urgent, bare.first, bare.settled, bare.chain,
            bare.payloads, tags,
        )  # fmt: skip


class Histories:
    """The histories of one stream, every alpha batches (B4)."""

    def __init__(self, events: Outgoing, outgoing: Outgoing, alpha: int) -> None:
        self.outgoing = outgoing
        self._events = events
        self._alpha = alpha
        self._digests: list[Digest] = []
        self._first = events.next
        # Where each history that is on its way ends.
        self._ends: dict[Sequence, Sequence] = {}
        self._waiting_since_us = 0
        events.limit = self._first + 2 * alpha
        events.unnamed = self._first

    def note(self, payload: bytes, now_us: int) -> None:
        if not self._digests:
            self._waiting_since_us = now_us
        self._digests.append(digest(payload))
        if len(self._digests) >= self._alpha:
            self.close()

    def tick(self, now_us: int) -> None:
        """The last few batches get their history too, once the source falls silent."""
        if self._digests and now_us - self._waiting_since_us > HISTORY_IDLE_US:
            self.close()

    def close(self) -> None:
        if not self._digests:
            return
        history = History(self._first, tuple(self._digests))
        self._ends[self.outgoing.add(history.encode(), False, 0)] = history.end
        self._first, self._digests = history.end, []

    def flush(self, can_send: Callable[[NodeId], bool]) -> None:
        """A history follows its batches and never overtakes them."""
        sent = self._events.sent_before
        self.outgoing.limit = next(
            (sequence for sequence, end in self._ends.items() if end > sent), None
        )
        self.outgoing.flush(can_send)

    def on_receipt(self, receipt: Receipt) -> None:
        """Histories are delivered: the stream may go on, and what they name has arrived."""
        for sequence in range(receipt.first, receipt.last + 1):
            end = self._ends.pop(sequence)
            self._events.limit = end + 2 * self._alpha
            self._events.unnamed = end
            if end <= self._events.next:
                words = "a history that every correct subscriber delivers names it"
                self._events.receipt_through(end - 1, receipt.replicas, words)


class Source:
    """One publisher on any number of topics."""

    def __init__(
        self, me: NodeId, topics: Iterable[Topic], macs: PairwiseMacs, *, session: Sequence
    ) -> None:
        self.me = me
        self._topics = {topic.name: topic for topic in topics}
        self._by_id = by_id(self._topics.values())
        self._macs = macs
        self._session = max(session, 1)
        self._outbox = Outbox()
        self._requests = Requests(self._outbox)
        self._registered: dict[TopicId, Standing] = {}
        self._streams: dict[TopicId, Outgoing] = {}
        self._histories: dict[TopicId, Histories] = {}
        self._connected: set[NodeId] = set()
        self._stuck: set[NodeId] = set()
        # Where the streams of topics that were given back would go on.
        self._next: dict[Stream, Sequence] = {}
        # How many bytes each replica has had in this turn of what it asked for.
        self._supplied: Counter[NodeId] = Counter()
        self._next_tick_us = 0

    # What the application does

    def register(self, name: str) -> int:
        """Ask to publish on a topic; the number comes back in an `Answered`."""
        topic = self._topic(name)
        standing = self._registered.get(topic.id)
        if standing is None or standing.refused:
            standing = self._requests.ask(topic, Operation.REGISTER)
            self._registered[topic.id] = standing
            if topic.id not in self._streams:
                self._open(topic)
        return standing.number

    def unregister(self, name: str) -> int:
        topic = self._topic(name)
        standing = self._registered.pop(topic.id, None)
        if standing is not None:
            self._requests.withdraw(standing)
        for lane in Lane:
            outgoing = self._outgoing(topic.id, lane)
            if outgoing is not None:
                self._next[outgoing.stream] = outgoing.next
        self._streams.pop(topic.id, None)
        self._histories.pop(topic.id, None)
        return self._requests.ask(topic, Operation.UNREGISTER).number

    def publish(
        self, name: str, payload: bytes, *, urgent: bool = False, events: int = 1
    ) -> Stream:
        """Take one batch; `last_sequence` tells its number."""
        outgoing = self._stream(name)
        self.publish_on(outgoing, payload, urgent, events)
        return outgoing.stream

    def stream(self, name: str) -> "Outgoing":
        """The stream of a registered topic, for those who publish on it often."""
        return self._stream(name)

    def publish_on(
        self, outgoing: "Outgoing", payload: bytes, urgent: bool, events: int
    ) -> Sequence:
        """Take one batch and return its number."""
        sequence = outgoing.add(payload, urgent, events)
        if self._histories:
            histories = self._histories.get(outgoing.stream.topic)
            if histories is not None:
                histories.note(payload, self._outbox.now_us)
        return sequence

    def replies(self, number: int) -> Mapping[NodeId, str]:
        """Who has answered a request so far, and what."""
        return self._requests.replies(number)

    def last_sequence(self, name: str) -> Sequence:
        return self._stream(name).next - 1

    def has_room(self, name: str) -> bool:
        return self._stream(name).has_room

    def in_flight(self, name: str) -> int:
        return self._stream(name).in_flight

    def progress(self, name: str) -> dict[NodeId, tuple[bool, Status, int]]:
        """Per replica: is it connected, its last word, how many batches it lags behind."""
        outgoing = self._stream(name)
        return {
            replica: (
                replica in self._connected,
                peer.status,
                outgoing.next - 1 - peer.acked,
            )
            for replica, peer in outgoing.peers.items()
        }

    # Machine

    def step(self, sender: NodeId, message: Message) -> None:
        handler = _HANDLERS.get(type(message))
        if handler is None:
            self._outbox.report(sender, "rejected", f"{type(message).__name__} to a source")
            return
        handler(self, sender, message)

    def tick(self, now_us: int) -> None:
        self._outbox.now_us = now_us
        if now_us < self._next_tick_us:
            return
        self._next_tick_us = now_us + TICK_EVERY_US
        self._outbox.wake_at(self._next_tick_us)
        self._requests.tick()
        for outgoing in self._all_streams():
            outgoing.tick()
        for histories in self._histories.values():
            histories.tick(now_us)

    def connected(self, peer: NodeId) -> None:
        self._connected.add(peer)
        self._stuck.discard(peer)
        self._requests.connected(peer)
        for outgoing in self._all_streams():
            if peer in outgoing.peers:
                outgoing.reconnected(peer)

    def disconnected(self, peer: NodeId) -> None:
        self._connected.discard(peer)
        for outgoing in self._all_streams():
            if peer in outgoing.peers:
                outgoing.disconnected(peer)

    def writable(self, peer: NodeId, writable: bool) -> None:
        (self._stuck.discard if writable else self._stuck.add)(peer)

    def take(self) -> Ready:
        self._supplied.clear()
        for outgoing in self._streams.values():
            outgoing.flush(self._can_send)
        for histories in self._histories.values():
            histories.flush(self._can_send)
        return self._outbox.take()

    # Messages

    def _on_ack(self, sender: NodeId, ack: Ack) -> None:
        outgoing = self._outgoing(ack.topic, ack.lane)
        if outgoing is None or sender not in outgoing.peers:
            return
        before = len(self._outbox.ready.deliver)
        outgoing.on_ack(sender, ack)
        histories = self._histories.get(ack.topic)
        if histories is None:
            return
        if ack.lane is Lane.HISTORIES:
            self._hide_history_receipts(histories, before)
        elif ack.status in (Status.HISTORY, Status.BLOCKED):
            histories.tick(self._outbox.now_us)

    def _hide_history_receipts(self, histories: Histories, before: int) -> None:
        """The application hears of its own batches; receipts of histories are ours."""
        deliver = self._outbox.ready.deliver
        mine = [outcome for outcome in deliver[before:] if isinstance(outcome, Receipt)]
        del deliver[before:]
        for receipt in mine:
            histories.on_receipt(receipt)

    def _on_reply(self, sender: NodeId, reply: Reply) -> None:
        self._requests.on_reply(sender, reply)

    def _on_fetch(self, sender: NodeId, fetch: Fetch) -> None:
        """A replica misses what one of our histories names."""
        outgoing = self._outgoing(fetch.topic, fetch.lane)
        if outgoing is None or sender not in outgoing.peers or fetch.publisher != self.me:
            return
        outgoing.on_fetch(sender, fetch.sequences)
        for sequence in dict.fromkeys(fetch.sequences):
            kept = outgoing.kept.get(sequence)
            if kept is not None and self._supplied[sender] < SUPPLY_BYTES_MAX:
                self._supplied[sender] += len(kept.payload)
                self._outbox.send(sender, Supply(*outgoing.stream, [sequence], [kept.payload]))

    # Parts

    def _open(self, topic: Topic) -> None:
        stream = Stream(self.me, topic.id)
        first = self._next.get(stream, self._session)
        outgoing: Outgoing
        if topic.contract.protocol == "chain":
            outgoing = ChainOutgoing(topic, stream, first, self._outbox, self._macs)
        else:
            outgoing = Outgoing(topic, stream, first, self._outbox)
        self._streams[topic.id] = outgoing
        if topic.contract.history_every:
            lane = stream._replace(lane=Lane.HISTORIES)
            first = self._next.get(lane, self._session)
            own = Outgoing(topic, lane, first, self._outbox)
            self._histories[topic.id] = Histories(outgoing, own, topic.contract.history_every)

    def _all_streams(self) -> Iterator[Outgoing]:
        yield from self._streams.values()
        for histories in self._histories.values():
            yield histories.outgoing

    def _outgoing(self, topic: TopicId, lane: Lane) -> Outgoing | None:
        if lane is Lane.EVENTS:
            return self._streams.get(topic)
        histories = self._histories.get(topic)
        return histories.outgoing if histories else None

    def _can_send(self, replica: NodeId) -> bool:
        return replica in self._connected and replica not in self._stuck

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            known = ", ".join(sorted(self._topics)) or "none"
            raise LocalProtocolError(f"there is no topic '{name}'; known topics: {known}")
        return topic

    def _stream(self, name: str) -> Outgoing:
        outgoing = self._streams.get(self._topic(name).id)
        if outgoing is None:
            raise LocalProtocolError(f"register on topic '{name}' before publishing on it")
        return outgoing


_HANDLERS: dict[type, Callable[[Source, NodeId, Any], None]] = {
    Ack: Source._on_ack,
    Reply: Source._on_reply,
    Fetch: Source._on_fetch,
}
