"""The publishing end as one machine: streams, receipts, retransmission, histories.

Source: FIT-Broker 2013, algorithm 1; Freeman 2016, algorithms 1, 4 and 7, sections 5.8, 6.2.

A batch goes to the replicas of its topic as its protocol says: `outgoing` sends it to all of them,
`chain_outgoing` through a chain, and `ordering/publisher` has those of a log topic ordered. Here
are the machine around them, and the histories that follow the batches of a stream.

A client that restarts is another node (its session is new), so sequence numbers can start at 1
and none is ever given twice.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from quorate.core.cluster import Cluster
from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.errors import LocalProtocolError
from quorate.core.ids import Digest, Lane, NodeId, Sequence, Stream, TopicId
from quorate.core.messages import Ack, Fetch, Message, Operation, Status, Supply
from quorate.core.ordering import Line, Ordered, Partition, Unordered
from quorate.crypto.digests import digest
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast.history import History
from quorate.protocol.broadcast.scope import SUPPLY_BYTES_MAX
from quorate.protocol.chain_outgoing import ChainOutgoing
from quorate.protocol.listener import ABOUT_THE_CLUSTER, ClientMachine
from quorate.protocol.machine import Ready, Receipt
from quorate.protocol.ordering.publisher import LineOutgoing, UnderWay
from quorate.protocol.ordering.room import ROOMS, Rooms
from quorate.protocol.ordering.validation import Sealer
from quorate.protocol.outgoing import Outgoing
from quorate.protocol.requests import Standing
from quorate.protocol.topic import Topic, topics_of

# A history goes out after this long even if fewer than alpha batches wait for one.
HISTORY_IDLE_US = 250_000


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

    @property
    def are_delivered(self) -> bool:
        """Does a delivered history name everything that was published so far?"""
        return not self._digests and not self._ends

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


class Source(ClientMachine):
    """One publisher on any number of topics."""

    def __init__(
        self,
        me: NodeId,
        topics: Iterable[Topic],
        macs: PairwiseMacs,
        *,
        session: Sequence,
        rooms: Rooms = ROOMS,
        sealer: Sealer | None = None,
        stores: int | None = None,
    ) -> None:
        """Who publishes signed batches needs a `sealer`; `stores` is as for each line."""
        super().__init__(me, topics)
        self._sealer, self._stores = sealer, stores
        self._fsync = next((topic.fsync for topic in self._topics.values()), "always")
        self._macs = macs
        self._session = max(session, 1)
        self._registered: dict[TopicId, Standing] = {}
        self._streams: dict[TopicId, Outgoing] = {}
        self._histories: dict[TopicId, Histories] = {}
        self._lines: dict[Partition, LineOutgoing] = {}
        # What all of them have no receipts for.
        self.under_way = UnderWay(rooms.in_flight)
        self._stuck: set[NodeId] = set()
        # Where the streams of topics that were given back would go on.
        self._next: dict[Stream, Sequence] = {}
        # How many bytes each replica has had in this turn of what it asked for.
        self._supplied: Counter[NodeId] = Counter()

    # What the application does

    def register(self, name: str) -> int:
        """Ask to publish on a topic; the number comes back in an `Answered`."""
        topic = self._topic(name)
        standing = self._registered.get(topic.id)
        if standing is None or standing.refused:
            standing = self.requests.ask(topic, Operation.REGISTER)
            self._registered[topic.id] = standing
            if topic.id not in self._streams and not topic.contract.is_log:
                self._open(topic)
        return standing.number

    def unregister(self, name: str) -> int:
        topic = self._topic(name)
        standing = self._registered.pop(topic.id, None)
        if standing is not None:
            self.requests.withdraw(standing)
        for lane in Lane:
            outgoing = self._outgoing(topic.id, lane)
            if outgoing is not None:
                self._next[outgoing.stream] = outgoing.next
        self._streams.pop(topic.id, None)
        self._histories.pop(topic.id, None)
        return self.requests.ask(topic, Operation.UNREGISTER).number

    def publish(
        self, name: str, payload: bytes, *, urgent: bool = False, events: int = 1
    ) -> Stream:
        """Take one batch; `last_sequence` tells its number."""
        outgoing = self.stream(name)
        self.publish_on(outgoing, payload, urgent, events)
        return outgoing.stream

    def stream(self, name: str) -> Outgoing:
        """The stream of a registered topic, for those who publish on it often."""
        outgoing = self._streams.get(self._topic(name).id)
        if outgoing is None:
            raise LocalProtocolError(f"register on topic '{name}' before publishing on it")
        return outgoing

    def publish_on(self, outgoing: Outgoing, payload: bytes, urgent: bool, events: int) -> Sequence:
        """Take one batch and return its number."""
        sequence = outgoing.add(payload, urgent, events)
        if self._histories:
            histories = self._histories.get(outgoing.stream.topic)
            if histories is not None:
                histories.note(payload, self.outbox.now_us)
        return sequence

    def line(self, name: str, partition: int) -> LineOutgoing:
        """Our batches for one partition of a log topic."""
        topic = self._topic(name)
        if topic.id not in self._registered:
            raise LocalProtocolError(f"register on topic '{name}' before publishing on it")
        _, target = self._partition(name, partition)
        outgoing = self._lines.get(target)
        if outgoing is None:
            line = Line(self.me, topic.id, partition)
            outgoing = self._lines[target] = LineOutgoing(
                topic, line, self.outbox, self.under_way, self._sealer, self._stores
            )
        return outgoing

    def adopt(self, cluster: Cluster) -> None:
        """These are the topics now. What is under way goes on as it began.

        No command changes when logs are synced: that is in the file that we began with.
        """
        self._know(replace(topic, fsync=self._fsync) for topic in topics_of(cluster))

    def conclude(self) -> None:
        """Nothing more will be published for now: the last batches get their history at once."""
        for histories in self._histories.values():
            histories.close()

    def is_done(self, there: Collection[NodeId]) -> bool:
        """May we leave, and everybody gets what was published on live topics all the same?

        With a receipt, reliable broadcast goes on without us. Elsewhere it says that f + 1 correct
        replicas have a batch. Where a subscriber needs more of them, those that are late have it
        from a history, or from us alone if there is none. What has no receipt is not waited for:
        whoever leaves then has given it up.
        """
        for topic, outgoing in self._streams.items():
            if outgoing.in_flight or outgoing.topic.contract.protocol == "reliable":
                continue
            histories = self._histories.get(topic)
            if not (histories.are_delivered if histories else outgoing.has_reached(there)):
                return False
        return True

    def last_sequence(self, name: str) -> Sequence:
        return self.stream(name).next - 1

    def has_room(self, name: str) -> bool:
        return self.stream(name).has_room

    def progress(self, name: str) -> dict[NodeId, tuple[bool, Status, int]]:
        """Per replica: is it connected, its last word, how many batches it lags behind."""
        outgoing = self.stream(name)
        return {
            replica: (
                replica in self.connected_peers,
                peer.status,
                outgoing.next - 1 - peer.acked,
            )
            for replica, peer in outgoing.peers.items()
        }

    # Machine

    def step(self, sender: NodeId, message: Message) -> None:
        handler = _HANDLERS.get(type(message))
        if handler is None:
            self.outbox.report(sender, "rejected", f"{type(message).__name__} to a source")
            return
        handler(self, sender, message)

    def _tick(self, late_us: int) -> None:
        for outgoing in self._all_streams():
            outgoing.tick()
        for line in self._lines.values():
            line.tick()
        for histories in self._histories.values():
            histories.tick(self.outbox.now_us)

    def connected(self, peer: NodeId) -> None:
        super().connected(peer)
        self._stuck.discard(peer)
        for outgoing in self._all_streams():
            if peer in outgoing.peers:
                outgoing.reconnected(peer)
        for line in self._lines.values():
            if peer in line.topic.index:
                line.reconnected(peer)

    def disconnected(self, peer: NodeId) -> None:
        super().disconnected(peer)
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
        for line in self._lines.values():
            line.flush(self._can_send)
        self.commands.flush(self._can_send)
        return self.outbox.take()

    # Messages

    def _on_ack(self, sender: NodeId, ack: Ack) -> None:
        outgoing = self._outgoing(ack.topic, ack.lane)
        if outgoing is None or sender not in outgoing.peers:
            return
        deliver = self.outbox.ready.deliver
        before = len(deliver)
        outgoing.on_ack(sender, ack)
        histories = self._histories.get(ack.topic)
        if histories is None:
            return
        if ack.lane is Lane.HISTORIES:
            # The application hears of its own batches; receipts of histories are ours.
            mine = [outcome for outcome in deliver[before:] if isinstance(outcome, Receipt)]
            del deliver[before:]
            for receipt in mine:
                histories.on_receipt(receipt)
        elif ack.status in (Status.HISTORY, Status.BLOCKED):
            histories.tick(self.outbox.now_us)

    def _on_line(self, sender: NodeId, said: Ordered | Unordered) -> None:
        """What became of batches of a log topic, or of commands."""
        is_command = said.topic == CONTROL_TOPIC_ID
        line = self._lines.get(Partition(said.topic, said.partition))
        whose = self.commands if is_command else line
        if whose is None:
            return
        if isinstance(said, Ordered):
            whose.on_ordered(sender, said)
        else:
            whose.on_unordered(sender, said)

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
                self.outbox.send(sender, Supply(*outgoing.stream, [sequence], [kept.payload]))

    # Parts

    def _open(self, topic: Topic) -> None:
        stream = Stream(self.me, topic.id)
        first = self._next.get(stream, self._session)
        outgoing: Outgoing
        if topic.contract.protocol == "chain":
            outgoing = ChainOutgoing(topic, stream, first, self.outbox, self._macs)
        else:
            outgoing = Outgoing(topic, stream, first, self.outbox)
        self._streams[topic.id] = outgoing
        if topic.contract.history_every:
            lane = stream._replace(lane=Lane.HISTORIES)
            first = self._next.get(lane, self._session)
            own = Outgoing(topic, lane, first, self.outbox)
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
        return replica in self.connected_peers and replica not in self._stuck


_HANDLERS: dict[type, Callable[[Source, NodeId, Any], None]] = {
    **ABOUT_THE_CLUSTER,
    Ack: Source._on_ack,
    Ordered: Source._on_line,
    Unordered: Source._on_line,
    Fetch: Source._on_fetch,
}
