"""A topic's channel on one replica: who takes part, and what waits for whom (F2, F3, F4).

Source: FIT-Broker 2013, section 3.3.2 and table 3.1; Freeman 2016, sections 5.4 and 6.2.

Every subscriber has an output queue of its own, with a bound and a discard order, so that a
slow one costs nobody else anything. With `discard = "never"` nothing is dropped for lack of
room: the channel is `busy` for the publisher that fills it, and the replica withholds that
publisher's acknowledgements until there is room again. A subscriber that takes nothing at all
for `STALLED_AFTER_US` is cut off rather than allowed to stop the topic for ever.
"""

from collections import Counter
from collections.abc import Mapping

from quorate.core.contract import not_listed
from quorate.core.filter import Filter
from quorate.core.ids import Digest, Lane, MemberId, NodeId, Sequence, Stream, member_of
from quorate.core.messages import Reply, Taken
from quorate.protocol.outbox import Outbox
from quorate.protocol.outlet import Outlet, Run
from quorate.protocol.topic import Topic

STALLED_AFTER_US = 10_000_000
# How many sessions one member may have on one topic at a time.
SESSIONS_PER_MEMBER_MAX = 64


class Channel:
    """Registrations and output queues of one topic."""

    def __init__(self, topic: Topic, names: Mapping[MemberId, str], outbox: Outbox) -> None:
        self.topic = topic
        self.publishers: dict[NodeId, None] = {}
        self.outlets: dict[NodeId, Outlet] = {}
        self.counters: Counter[str] = Counter()
        self._names = names
        self._outbox = outbox

    # Registration (F1). A refusal is a sentence; an empty one says yes.

    def register(self, client: NodeId) -> str:
        contract = self.topic.contract
        if client in self.publishers:
            return ""
        if not self._listed(client, contract.publish):
            return not_listed(self._name(client), "publish on", self.topic.name, contract.publish)
        if contract.publishers_max and len(self.publishers) >= contract.publishers_max:
            return f"topic '{self.topic.name}' already has its {contract.publishers_max} publishers"
        if self._sessions(client, self.publishers) >= SESSIONS_PER_MEMBER_MAX:
            return f"{self._name(client)} publishes in {SESSIONS_PER_MEMBER_MAX} sessions already"
        self.publishers[client] = None
        return ""

    def unregister(self, client: NodeId) -> None:
        self.publishers.pop(client, None)

    def subscribe(self, client: NodeId, lead: bool, wanted: Filter, *, number: int = 0) -> str:
        contract = self.topic.contract
        outlet = self.outlets.get(client)
        if outlet is not None:
            outlet.lead, outlet.filter, outlet.number = lead, wanted, number
            return ""
        if not self._listed(client, contract.subscribe):
            return not_listed(
                self._name(client), "subscribe to", self.topic.name, contract.subscribe
            )
        if contract.subscribers_max and len(self.outlets) >= contract.subscribers_max:
            return (
                f"topic '{self.topic.name}' already has its {contract.subscribers_max} subscribers"
            )
        if self._sessions(client, self.outlets) >= SESSIONS_PER_MEMBER_MAX:
            return f"{self._name(client)} subscribes in {SESSIONS_PER_MEMBER_MAX} sessions already"
        self.outlets[client] = Outlet(
            client, lead, wanted, self._outbox, number=number, windows=self.topic.windows
        )
        return ""

    def unsubscribe(self, client: NodeId) -> None:
        self.outlets.pop(client, None)

    def gone(self, client: NodeId) -> None:
        """The client's link is down: it registers again when it is back (F10)."""
        self.unregister(client)
        self.unsubscribe(client)

    def change_terms(self, topic: Topic) -> None:
        """The contract was altered: whoever may no longer take part is told, and goes."""
        self.topic = topic
        contract = topic.contract
        for client in [c for c in self.publishers if not self._listed(c, contract.publish)]:
            self.unregister(client)
        for client, outlet in list(self.outlets.items()):
            if not self._listed(client, contract.subscribe):
                sentence = (
                    f"{self._name(client)} was taken off the subscribe list of '{topic.name}'"
                )
                self._outbox.send(client, Reply(outlet.number, sentence))
                self.unsubscribe(client)

    def may_publish(self, client: NodeId) -> bool:
        return client in self.publishers

    # Output

    def is_busy(self, stream: Stream) -> bool:
        """A queue that may not overflow is more than half full of this stream (B7).

        Or a subscriber is too far behind, whoever sends to it. Its source then hears nothing of
        batches, nor of histories, which would let it go on.
        """
        events = stream._replace(lane=Lane.EVENTS)
        return self._holds_more(events, 0.5) or self._lags_behind(events)

    def is_full(self, stream: Stream) -> bool:
        """There is no room at all for this stream: its batches must come again."""
        return self._holds_more(stream, 1.0)

    @property
    def depth_events(self) -> int:
        return sum(outlet.events for outlet in self.outlets.values())

    def offer(self, run: Run) -> None:
        """Put a run into the queue of every subscriber."""
        contract = self.topic.contract
        # Without a history, its subscriber could not repair anything.
        discard = contract.discard if run.stream.lane is Lane.EVENTS else "never"
        for outlet in self.outlets.values():
            self.counters["offered"] += sum(run.events)
            if discard == "newest":
                refused = outlet.add_within(run, contract.queue_events_max)
                self.counters["discarded"] += refused
                continue
            outlet.add(run)
            if discard == "oldest":
                discarded = outlet.discard_oldest(contract.queue_events_max)
                self.counters["discarded"] += discarded

    def note(
        self, stream: Stream, first: Sequence, payloads: list[bytes], digests: list[Digest]
    ) -> None:
        """Another replica sends this to our subscribers."""
        run = Run(stream, False, first, payloads, digests, [], self._outbox.now_us)
        for outlet in self.outlets.values():
            outlet.note(run)

    def name(self, stream: Stream, first: Sequence, last: Sequence) -> None:
        """A history that our subscribers deliver names these."""
        for outlet in self.outlets.values():
            outlet.name(stream, first, last)

    def on_taken(self, subscriber: NodeId, taken: Taken) -> None:
        outlet = self.outlets.get(subscriber)
        if outlet is not None:
            stream = Stream(taken.publisher, taken.topic, taken.lane)
            outlet.on_taken(stream, taken.through)

    def drain(self) -> bool:
        """Hand to the driver what subscribers can take. True if there is more for next turn."""
        has_more = False
        for outlet in list(self.outlets.values()):
            if outlet.open:
                self.counters["expired"] += outlet.drain(self.topic.contract.expires_after_us)
                has_more = has_more or outlet.has_more
            self._check_stalled(outlet)
        return has_more

    def announce_frontiers(self) -> None:
        """Tell subscribers how far they should have heard, so that they can miss something."""
        for outlet in self.outlets.values():
            outlet.announce_frontiers()

    def holds(self, publisher: NodeId) -> bool:
        """Does anything of this publisher wait for a subscriber?"""
        streams = [Stream(publisher, self.topic.id, lane) for lane in Lane]
        return any(outlet.holds(stream) for outlet in self.outlets.values() for stream in streams)

    def forget(self, publisher: NodeId) -> None:
        for outlet in self.outlets.values():
            outlet.forget(publisher)

    def _holds_more(self, stream: Stream, part: float) -> bool:
        """Does some queue hold more of this stream than this part of what it may?"""
        contract = self.topic.contract
        events = int(part * contract.queue_events_max)
        return contract.discard == "never" and any(
            outlet.holds_more(stream, events, part) for outlet in self.outlets.values()
        )

    def _lags_behind(self, stream: Stream) -> bool:
        return self.topic.contract.discard == "never" and any(
            outlet.lags_behind(stream) for outlet in self.outlets.values()
        )

    def _check_stalled(self, outlet: Outlet) -> None:
        now_us = self._outbox.now_us
        if not outlet.is_waited_for:
            outlet.moved_at_us = now_us
        elif now_us - outlet.moved_at_us > STALLED_AFTER_US:
            sentence = (
                f"took nothing for {STALLED_AFTER_US // 1_000_000} s while events waited; "
                f"its subscription to '{self.topic.name}' is over"
            )
            self._outbox.report(outlet.subscriber, "stalled", sentence)
            # When it reads again, this is what it finds, and may subscribe anew.
            self._outbox.send(outlet.subscriber, Reply(outlet.number, sentence))
            self.unsubscribe(outlet.subscriber)

    def _listed(self, client: NodeId, names: tuple[str, ...]) -> bool:
        return "*" in names or self._names.get(member_of(client)) in names

    def _name(self, client: NodeId) -> str:
        return self._names.get(member_of(client), f"client {client}")

    def _sessions(self, client: NodeId, among: Mapping[NodeId, object]) -> int:
        return sum(member_of(other) == member_of(client) for other in among)
