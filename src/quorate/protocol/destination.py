"""The subscribing end as one machine: voices in, each batch out once.

Source: FIT-Broker 2013, algorithms 1 to 3; Freeman 2016, algorithms 3, 6 and 9, section 5.8.

`incoming` decides what a stream's next batches are, `subscription` from which replica to take
payloads. Here is what a machine does: requests, messages to the stream that they are about, and
the choice of a lead among the replicas that are connected.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from quorate.core.errors import LocalProtocolError
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
from quorate.crypto.digests import digest
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast import chain
from quorate.protocol.incoming import Incoming
from quorate.protocol.machine import Ready
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import Requests
from quorate.protocol.subscription import Subscription
from quorate.protocol.topic import Topic, by_id

TICK_EVERY_US = 50_000
# Replicas hear of our progress in steps of so many batches, and at every tick.
PROGRESS_STEP = 128


class Destination:
    """One subscriber of any number of topics."""

    make_incoming = Incoming

    def __init__(
        self,
        me: NodeId,
        topics: Iterable[Topic],
        macs: PairwiseMacs,
        publishers: Iterable[MemberId],
    ) -> None:
        self.me = me
        self._topics = {topic.name: topic for topic in topics}
        self._by_id = by_id(self._topics.values())
        self._macs = macs
        self._publishers = frozenset(publishers)
        self._outbox = Outbox()
        self._requests = Requests(self._outbox)
        self._subscriptions: dict[TopicId, Subscription] = {}
        self._connected: set[NodeId] = set()
        self._touched: dict[Incoming, None] = {}
        self._hurried: dict[Incoming, None] = {}
        self._next_tick_us = 0

    # What the application does

    def subscribe(self, name: str, wanted: Filter | None = None) -> int:
        topic = self._topic(name)
        old = self._subscriptions.get(topic.id)
        if old is not None:
            self._requests.withdraw(old.standing)
        lead = self._first_lead(topic)
        standing = self._requests.ask(topic, Operation.SUBSCRIBE, wanted=wanted, lead=lead)
        if old is not None:
            old.standing = standing
        else:
            self._subscriptions[topic.id] = Subscription(topic, self._outbox, self, standing)
        return standing.number

    def unsubscribe(self, name: str) -> int:
        topic = self._topic(name)
        subscription = self._subscriptions.pop(topic.id, None)
        if subscription is not None:
            self._requests.withdraw(subscription.standing)
        return self._requests.ask(topic, Operation.UNSUBSCRIBE).number

    def replies(self, number: int) -> Mapping[NodeId, str]:
        """Who has answered a request so far, and what."""
        return self._requests.replies(number)

    def lead_of(self, name: str) -> NodeId | None:
        subscription = self._subscriptions.get(self._topic(name).id)
        return subscription.standing.lead if subscription else None

    # Machine

    def step(self, sender: NodeId, message: Message) -> None:
        handler = _HANDLERS.get(type(message))
        if handler is None:
            self._outbox.report(sender, "rejected", f"{type(message).__name__} to a destination")
            return
        handler(self, sender, message)

    def tick(self, now_us: int) -> None:
        self._outbox.now_us = now_us
        if now_us < self._next_tick_us:
            return
        self._next_tick_us = now_us + TICK_EVERY_US
        self._outbox.wake_at(self._next_tick_us)
        self._requests.tick()
        for subscription in self._subscriptions.values():
            for incoming in list(subscription.streams.values()):
                incoming.tick(now_us)
            subscription.forget_idle_streams(now_us)

    def connected(self, peer: NodeId) -> None:
        self._connected.add(peer)
        self._requests.connected(peer)
        for subscription in self._subscriptions.values():
            if subscription.standing.lead not in self._connected:
                self.choose_lead(subscription)

    def disconnected(self, peer: NodeId) -> None:
        self._connected.discard(peer)
        for subscription in self._subscriptions.values():
            if subscription.standing.lead == peer:
                self.choose_lead(subscription, avoid=peer)

    def writable(self, peer: NodeId, writable: bool) -> None:
        """What a destination sends is little and may be lost."""

    def hurry(self, incoming: Incoming) -> None:
        self._hurried[incoming] = None

    def take(self) -> Ready:
        while self._hurried:
            hurried, self._hurried = self._hurried, {}
            for incoming in hurried:
                incoming.ask_for_payloads(self._outbox.now_us)
        for incoming in self._touched:
            incoming.tell_progress(PROGRESS_STEP)
        self._touched.clear()
        return self._outbox.take()

    def choose_lead(self, subscription: Subscription, *, avoid: NodeId | None = None) -> None:
        """Take payloads from the connected replica that we have caught out least often."""
        topic, standing = subscription.topic, subscription.standing
        candidates = [r for r in topic.members if r in self._connected and r != avoid]
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
        subscription.lead_since_us = self._outbox.now_us
        for replica in (standing.lead, former):
            if replica is not None:
                self._outbox.send(replica, standing.request(replica))
        for incoming in list(subscription.streams.values()):
            incoming.on_new_lead(standing.lead)

    # Messages

    def _on_forward(self, sender: NodeId, forward: Forward) -> None:
        incoming = self._incoming(sender, forward.publisher, forward.topic, forward.lane)
        if incoming is not None:
            incoming.on_copies(sender, forward.first, forward.payloads)

    def _on_vouch(self, sender: NodeId, vouch: Vouch) -> None:
        incoming = self._incoming(sender, vouch.publisher, vouch.topic, vouch.lane)
        if incoming is not None:
            incoming.on_voices(sender, vouch.first, vouch.digests)

    def _on_frontier(self, sender: NodeId, frontier: Frontier) -> None:
        incoming = self._incoming(sender, frontier.publisher, frontier.topic, frontier.lane)
        if incoming is not None:
            incoming.on_frontier(sender, frontier)

    def _on_omitted(self, sender: NodeId, omitted: Omitted) -> None:
        incoming = self._incoming(sender, omitted.publisher, omitted.topic, omitted.lane)
        if incoming is not None:
            incoming.on_omitted(sender, omitted)

    def _on_supply(self, sender: NodeId, supply: Supply) -> None:
        incoming = self._incoming(sender, supply.publisher, supply.topic, supply.lane)
        if incoming is not None:
            for sequence, payload in zip(supply.sequences, supply.payloads, strict=True):
                incoming.on_supply(sender, sequence, payload)

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
            self._outbox.report(sender, "bad-authenticator", f"chain run at {link.first}")
            return
        incoming.on_link(link, contents)

    def _on_reply(self, sender: NodeId, reply: Reply) -> None:
        self._requests.on_reply(sender, reply)

    # Parts

    def _incoming(
        self, sender: NodeId, publisher: NodeId, topic: TopicId, lane: Lane
    ) -> Incoming | None:
        subscription = self._subscriptions.get(topic)
        if subscription is None:
            return None
        if sender not in subscription.topic.index or member_of(publisher) not in self._publishers:
            self._outbox.report(sender, "forgery", f"a stream of unknown publisher {publisher}")
            return None
        incoming = subscription.incoming_from(sender, publisher, lane)
        if incoming is not None:
            self._touched[incoming] = None
        return incoming

    def _first_lead(self, topic: Topic) -> NodeId:
        """Subscribers spread over the replicas by their numbers."""
        candidates = [r for r in topic.members if r in self._connected] or list(topic.members)
        return candidates[self.me % len(candidates)]

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            known = ", ".join(sorted(self._topics)) or "none"
            raise LocalProtocolError(f"there is no topic '{name}'; known topics: {known}")
        return topic


_HANDLERS: dict[type, Callable[[Destination, NodeId, Any], None]] = {
    Forward: Destination._on_forward,
    Vouch: Destination._on_vouch,
    Frontier: Destination._on_frontier,
    Omitted: Destination._on_omitted,
    Supply: Destination._on_supply,
    Link: Destination._on_link,
    Reply: Destination._on_reply,
}
