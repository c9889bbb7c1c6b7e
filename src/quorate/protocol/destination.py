"""The subscribing end as one machine: voices in, each batch out once.

Source: FIT-Broker 2013, algorithms 1 to 3; Freeman 2016, algorithms 3, 6 and 9, section 5.8.

`incoming` decides what a stream's next batches are, `subscription` from which replica to take
payloads; `ordering/reading` has the partitions of log topics. Here is what a machine does:
requests, messages to the stream that they are about, and the choice of a lead among the replicas
that are connected.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from quorate.core.cluster import Cluster
from quorate.core.filter import Filter
from quorate.core.ids import Lane, MemberId, NodeId, TopicId, member_of
from quorate.core.messages import (
    Forward,
    Frontier,
    Link,
    Message,
    Omitted,
    Operation,
    Reply,
    Supply,
    Vouch,
)
from quorate.core.ordering import BEGIN_US, END_US, Absent, Chained, Entries, Located, Partition
from quorate.crypto.digests import digest
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast import chain
from quorate.protocol.incoming import Incoming
from quorate.protocol.listener import ABOUT_THE_CLUSTER, ClientMachine
from quorate.protocol.machine import Begun, Clamped, Ready
from quorate.protocol.ordering.reading import Reading, Search
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.subscription import Subscription
from quorate.protocol.topic import Topic, topics_of

# A tick that is so late says that we were away: the program did something else for so long.
AWAY_US = 100_000
# Replicas hear of our progress in steps of so many batches, and at every tick.
PROGRESS_STEP = 128
# About publishers whom we do not know we ask so often. Whoever is still unknown after this time is
# none, and whoever sends us its events makes them up.
ASK_AGAIN_US = 500_000
STRANGE_US = 5_000_000
STRANGERS_MAX = 1024


class Destination(ClientMachine):
    """One subscriber of any number of topics."""

    make_incoming = Incoming

    def __init__(
        self,
        me: NodeId,
        topics: Iterable[Topic],
        macs: PairwiseMacs,
        publishers: Iterable[MemberId],
        validation: Validation | None = None,
    ) -> None:
        """Who reads validated topics needs a `validation`."""
        super().__init__(me, topics)
        self._validation = Validation("", (), {}) if validation is None else validation
        self._macs = macs
        self._publishers = frozenset(publishers)
        # Publishers whom we do not know, since when, and when we last asked about them.
        self._strangers: dict[MemberId, int] = {}
        self._asked_us = -ASK_AGAIN_US
        self._subscriptions: dict[TopicId, Subscription] = {}
        self._readings: dict[Partition, Reading] = {}
        # What is looked for, and whether it is read with validation.
        self._searches: dict[Partition, tuple[Search, bool]] = {}
        # What is asked about partitions is numbered, whatever becomes of who asked.
        self._numbers = count(1)
        # Whether we take nothing from replicas, for want of room. No lead is late then.
        self.is_held_back = False
        self._touched: dict[Incoming, None] = {}
        self._hurried: dict[Incoming, None] = {}

    # What the application does

    def subscribe(self, name: str, wanted: Filter | None = None) -> int:
        topic = self._topic(name)
        if topic.contract.is_log:
            # The replicas only say whether we may; `read` does the rest.
            return self.requests.ask(topic, Operation.SUBSCRIBE).number
        old = self._subscriptions.get(topic.id)
        if old is not None:
            self.requests.withdraw(old.standing)
        # Subscribers spread over the replicas by their numbers.
        candidates = list(filter(self._can_send, topic.members)) or topic.members
        lead = candidates[self.me % len(candidates)]
        standing = self.requests.ask(topic, Operation.SUBSCRIBE, wanted=wanted, lead=lead)
        if old is not None:
            old.standing = standing
        else:
            self._subscriptions[topic.id] = Subscription(topic, self.outbox, self, standing)
        return standing.number

    def unsubscribe(self, name: str) -> int:
        topic = self._topic(name)
        self.stop_reading(name)
        subscription = self._subscriptions.pop(topic.id, None)
        if subscription is not None:
            self.requests.withdraw(subscription.standing)
        return self.requests.ask(topic, Operation.UNSUBSCRIBE).number

    def read(self, name: str, partition: int, offset: int, *, validate: bool = True) -> Reading:
        """Read a partition of a log topic from this offset on; again, from another one.

        On a validated topic, `validate` asks for signed batches only. Without it, and elsewhere,
        all are delivered, and no signature is looked at.
        """
        topic, target = self._partition(name, partition)
        self._searches.pop(target, None)
        return self._read(topic, target, offset, validate)

    def read_from_commit(
        self, name: str, partition: int, offset: int, *, validate: bool = True
    ) -> None:
        """The same, or from the end if that is before this offset; then there is a `Clamped`."""
        self.read_from_time(name, partition, END_US, validate=validate, committed=offset)

    def read_from_time(
        self,
        name: str,
        partition: int,
        time_us: int,
        *,
        validate: bool = True,
        committed: int | None = None,
    ) -> None:
        """The same, from the first batch of this time on, or from `BEGIN_US` or `END_US`."""
        topic, target = self._partition(name, partition)
        self._stop(target)
        search = Search(topic, target, time_us, self.outbox, next(self._numbers), committed)
        self._searches[target] = search, validate
        search.ask(sorted(self.connected_peers))

    def adopt(self, cluster: Cluster) -> None:
        """These are the topics and clients now. What is under way goes on as it began."""
        self._publishers = frozenset(client.number for client in cluster.clients)
        self._strangers.clear()
        self._know(topics_of(cluster))
        self._validation.adopt(cluster, self._topics.values())

    def stop_reading_partition(self, name: str, partition: int) -> None:
        self._stop(self._partition(name, partition)[1])

    def stop_reading(self, name: str) -> None:
        topic = self._topic(name)
        for target in [t for t in (*self._readings, *self._searches) if t.topic == topic.id]:
            self._stop(target)

    def _stop(self, target: Partition) -> None:
        self._searches.pop(target, None)
        reading = self._readings.pop(target, None)
        if reading is not None:
            reading.stop()

    def reading(self, name: str, partition: int) -> Reading | None:
        """How far we have come with a partition, once its first offset is known."""
        return self._readings.get(Partition(self._topic(name).id, partition))

    def lead_of(self, name: str) -> NodeId | None:
        subscription = self._subscriptions.get(self._topic(name).id)
        return subscription.standing.lead if subscription else None

    # Machine

    def step(self, sender: NodeId, message: Message) -> None:
        said: Any = message
        if of_stream := _OF_STREAMS.get(type(message)):
            incoming = self._incoming(sender, said.publisher, said.topic, said.lane)
            if incoming is not None:
                of_stream(incoming, sender, said)
        elif of_partition := _OF_PARTITIONS.get(type(message)):
            reading = self._readings.get(Partition(said.topic, said.partition))
            if reading is not None:
                of_partition(reading, sender, said, self.connected_peers)
        elif handler := _HANDLERS.get(type(message)):
            handler(self, sender, said)
        else:
            self.outbox.report(sender, "rejected", f"{type(message).__name__} to a destination")

    def _tick(self, late_us: int) -> None:
        now_us = self.outbox.now_us
        if late_us >= AWAY_US:
            for reading in self._readings.values():
                reading.was_away(late_us)
        for subscription in self._subscriptions.values():
            for incoming in list(subscription.streams.values()):
                incoming.tick(now_us)
            subscription.forget_idle_streams(now_us)
        for reading in list(self._readings.values()):
            if self.is_held_back:
                reading.wait()
            else:
                reading.tick(self.connected_peers)
        for search, _ in self._searches.values():
            search.tick()

    def connected(self, peer: NodeId) -> None:
        super().connected(peer)
        for subscription in self._subscriptions.values():
            if subscription.standing.lead not in self.connected_peers:
                self.choose_lead(subscription)
        for reading in list(self._readings.values()):
            if peer in reading.topic.index:
                reading.connected(peer, self.connected_peers)
        for search, _ in self._searches.values():
            search.ask((peer,))

    def disconnected(self, peer: NodeId) -> None:
        super().disconnected(peer)
        for subscription in self._subscriptions.values():
            if subscription.standing.lead == peer:
                self.choose_lead(subscription, avoid=peer)
        for reading in list(self._readings.values()):
            reading.disconnected(peer, self.connected_peers)

    def hurry(self, incoming: Incoming) -> None:
        self._hurried[incoming] = None

    def take(self) -> Ready:
        while self._hurried:
            hurried, self._hurried = self._hurried, {}
            for incoming in hurried:
                incoming.ask_for_payloads(self.outbox.now_us)
        for incoming in self._touched:
            incoming.tell_progress(PROGRESS_STEP)
        self._touched.clear()
        return super().take()

    def choose_lead(self, subscription: Subscription, *, avoid: NodeId | None = None) -> None:
        """Take payloads from the connected replica that we have caught out least often."""
        topic, standing = subscription.topic, subscription.standing
        candidates = [r for r in topic.members if r in self.connected_peers and r != avoid]
        if not candidates or standing.lead in candidates:
            return
        start = self.me % len(topic.members)
        ranked = sorted(
            candidates,
            key=lambda r: (
                subscription.blames[r],
                subscription.late[r],
                (topic.index[r] - start) % len(topic.members),
            ),
        )
        former, standing.lead = standing.lead, ranked[0]
        subscription.lead_since_us = self.outbox.now_us
        for replica in (standing.lead, former):
            if replica is not None:
                self.outbox.send(replica, standing.request(replica))
        for incoming in list(subscription.streams.values()):
            incoming.on_new_lead(standing.lead)

    # Messages

    def _on_link(self, sender: NodeId, link: Link) -> None:
        incoming = self._incoming(sender, link.publisher, link.topic, Lane.EVENTS)
        if incoming is None:
            return
        topic = self._by_id[link.topic]
        makers = chain.last_of(topic, link.chain)
        contents = [digest(payload) for payload in link.payloads]
        covered = chain.authenticated_bytes(link, contents)
        authentic = chain.are_authentic(link, covered, makers, self.me, self._macs)
        if topic.contract.protocol != "chain" or sender != makers[-1] or not authentic:
            self.outbox.report(sender, "bad-authenticator", f"chain run at {link.first}")
            return
        incoming.on_link(link, contents)

    def _on_reply(self, sender: NodeId, reply: Reply) -> None:
        self.requests.on_reply(sender, reply)
        for subscription in self._subscriptions.values():
            if subscription.standing.number == reply.number:
                subscription.find_starts()

    def _on_located(self, sender: NodeId, located: Located) -> None:
        target = Partition(located.topic, located.partition)
        search, validate = self._searches.get(target, (None, False))
        offset = search.on_located(sender, located) if search is not None else None
        if search is not None and offset is not None:
            del self._searches[target]
            reading = self._read(search.topic, target, offset, validate)
            if search.committed is not None and offset < search.committed:
                self.outbox.deliver(Clamped(target, search.committed, offset))
            if search.time_us not in (BEGIN_US, END_US):
                reading.want_from(search.time_us, search.others)

    # Parts

    def _read(self, topic: Topic, target: Partition, offset: int, validate: bool) -> Reading:
        reading = self._readings.get(target)
        validation = self._validation if validate and topic.contract.validated else None
        if reading is not None and reading.validation is validation:
            reading.seek(offset, self.connected_peers)
        else:
            # Replicas go by the number of what is asked, and so by the new one.
            reading = Reading(topic, target, offset, self.outbox, self._numbers, validation)
            self._readings[target] = reading
            reading.begin(self.connected_peers)
        self.outbox.deliver(Begun(target, offset))
        return reading

    def _may_be_new(self, publisher: MemberId) -> bool:
        """Whether this may be a client that the cluster has and we have yet to hear of.

        We ask. What it published until we know it is lost to us, as what was published before we
        subscribed.
        """
        now_us = self.outbox.now_us
        if not self.commands.can_ask or len(self._strangers) >= STRANGERS_MAX:
            return False
        if now_us - self._asked_us >= ASK_AGAIN_US:
            self._asked_us = now_us
            self.commands.learn_topology()
        return now_us - self._strangers.setdefault(publisher, now_us) < STRANGE_US

    def _incoming(
        self, sender: NodeId, publisher: NodeId, topic: TopicId, lane: Lane
    ) -> Incoming | None:
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            return None
        is_stranger = member_of(publisher) not in self._publishers
        if sender not in subscription.topic.index or (
            is_stranger and not self._may_be_new(member_of(publisher))
        ):
            self.outbox.report(sender, "forgery", f"a stream of unknown publisher {publisher}")
            return None
        if is_stranger:
            return None
        incoming = subscription.incoming_from(sender, publisher, lane)
        if incoming is not None:
            self._touched[incoming] = None
        return incoming


_OF_STREAMS: dict[type, Callable[[Incoming, NodeId, Any], None]] = {
    Forward: Incoming.on_forward,
    Vouch: Incoming.on_vouch,
    Frontier: Incoming.on_frontier,
    Omitted: Incoming.on_omitted,
    Supply: Incoming.on_supply,
}
_OF_PARTITIONS: dict[type, Callable[[Reading, NodeId, Any, set[NodeId]], None]] = {
    Entries: Reading.on_entries,
    Chained: Reading.on_chained,
    Absent: Reading.on_absent,
}
_HANDLERS: dict[type, Callable[[Destination, NodeId, Any], None]] = {
    **ABOUT_THE_CLUSTER,
    Link: Destination._on_link,
    Reply: Destination._on_reply,
    Located: Destination._on_located,
}
