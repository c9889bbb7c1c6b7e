"""One stream on its way through a chain of replicas, and through the next when one fails.

Source: Freeman 2016, algorithm 7; what makes a source leave a chain is in decision 0005.
"""

from collections.abc import Callable

from msgspec import structs

from quorate.core.ids import NodeId, Sequence, Stream
from quorate.core.messages import Link, Publish, Status
from quorate.crypto.digests import digest
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast import chain
from quorate.protocol.outbox import Outbox
from quorate.protocol.outgoing import Outgoing
from quorate.protocol.topic import Topic

# A chain has failed after this long without progress, or after four times the longest gap
# that it showed lately, if that is more.
CHAIN_PATIENCE_US = 250_000
CHAIN_PATIENCE_US_MAX = 2_000_000
# What subscribers or replicas still miss this soon after a change of chain, the one before lost.
COMPLAINT_GRACE_US = 500_000
FETCH_GRACE_US = 300_000


class ChainOutgoing(Outgoing):
    """A stream that goes to the head of a chain, and to the next chain when one fails."""

    def __init__(
        self, topic: Topic, stream: Stream, first: Sequence, outbox: Outbox, macs: PairwiseMacs
    ) -> None:
        super().__init__(topic, stream, first, outbox)
        self.number = 0
        self._macs = macs
        # What went into this chain starts at `_from` and ends before `_reached`; from `_sent` on it
        # is to go again.
        self._from = self._sent = self._reached = first
        # Whom we gave time since the last progress, because it had refused something.
        self._indulged: set[NodeId] = set()
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

    def _go_back(self, replica: NodeId, start: Sequence) -> None:
        if replica in self.topic.chain(self.number):
            self._sent = max(min(self._sent, start), self._from, self.unreceipted)
            if replica not in self._indulged:
                self._indulged.add(replica)
                self._progress_at_us = self._outbox.now_us

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
        if self._acked >= self._reached - 1 and not self._is_barred:
            self._progress_at_us = self._outbox.now_us
        self._is_barred = not can_send(head)
        if self._is_barred:
            return
        for publish in self._publishes(self._sent, end):
            self._outbox.send(head, self._link(publish))
        self._sent = end
        self._reached = max(self._reached, end)

    def tick(self) -> None:
        """A chain that does not bring what it was sent to its end has failed.

        Histories may settle the batches meanwhile, but that does not make the chain better.
        """
        waited_us = self._outbox.now_us - self._progress_at_us
        is_behind = self._reached > self._from and self._acked < self._reached - 1
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
            self._indulged.clear()
            self._progress_at_us = self._outbox.now_us
            if last - self._from >= self._windows.in_flight // 2:
                # It works.
                self._failures[self.number] = 0
        if last >= self.unreceipted:
            self.receipt_through(last, ends, chain.RULES.guarantee)

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
        self._sent = self._reached = self._from = self._answers_from = self.unreceipted
        self._indulged.clear()
        self._acked = self._from - 1
        self._is_barred = False
        self._progress_at_us = self._chosen_at_us = self._outbox.now_us
        self._outbox.report(suspects[0], "chain-abandoned", f"{suspects} because {why}")

    def _link(self, publish: Publish) -> Link:
        link = Link(
            self.stream.publisher, publish.topic, publish.urgent, publish.first,
            publish.settled, self.number, publish.payloads, [],
        )  # fmt: skip
        digests = [digest(payload) for payload in publish.payloads]
        tags = chain.source_authenticators(link, digests, self.topic, self._macs)
        return structs.replace(link, authenticators=tags)
