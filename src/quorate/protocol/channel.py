"""A topic's channel on one replica: who takes part, and what waits for whom (F2, F3, F4).

Source: FIT-Broker 2013, section 3.3.2 and table 3.1; Freeman 2016, sections 5.4 and 6.2.

Every subscriber has an output queue of its own, with a bound and a discard order, so that a
slow one costs nobody else anything. Urgent batches go first. What is older than the
contract's `expires_after` is dropped when its turn comes. With `discard = "never"` nothing is
dropped for lack of room: the channel is `busy` instead, and its replica withholds
acknowledgements until there is room again. A subscriber that takes nothing at all for
`STALLED_AFTER_US` is cut off rather than allowed to stop the topic for ever.

Batches wait as runs, the way they arrived: one append per subscriber and run.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from quorate.core import batch
from quorate.core.errors import RemoteProtocolError
from quorate.core.filter import Filter
from quorate.core.ids import Digest, Lane, MemberId, NodeId, Sequence, Stream, member_of
from quorate.core.messages import Authenticator, Forward, Frontier, Link, Vouch
from quorate.protocol.outbox import Outbox
from quorate.protocol.runs import by_size, consecutive
from quorate.protocol.topic import Topic

STALLED_AFTER_US = 10_000_000
# A batch never counts as less than one event, so that empty ones fill queues too.
DRAIN_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive batches of one stream on their way to a subscriber."""

    stream: Stream
    urgent: bool
    first: Sequence
    payloads: list[bytes]
    digests: list[Digest]
    events: list[int]
    arrived_us: int
    # For a chain's run, which is handed on as it came.
    settled: Sequence = 0
    chain: int = 0
    authenticators: Mapping[NodeId, list[Authenticator]] | None = None

    def part(self, start: int, end: int) -> "Run":
        """Some of it. A chain's run is authenticated as a whole and is never cut."""
        return Run(
            self.stream,
            self.urgent,
            self.first + start,
            self.payloads[start:end],
            self.digests[start:end],
            self.events[start:end],
            self.arrived_us,
        )


def run_of(
    stream: Stream,
    urgent: bool,
    first: Sequence,
    payloads: list[bytes],
    digests: list[Digest],
    now_us: int,
) -> Run:
    return Run(stream, urgent, first, payloads, digests, list(map(events_in, payloads)), now_us)


def events_in(payload: bytes) -> int:
    """How much room a batch takes in a queue; one that is not a batch at all takes a place."""
    try:
        return batch.count_of(payload) or 1
    except RemoteProtocolError:
        return 1


@dataclass(slots=True)
class Outlet:
    """The output queue of one subscriber."""

    subscriber: NodeId
    lead: bool
    filter: Filter
    open: bool = True
    queue: deque[Run] = field(default_factory=deque)
    urgent: deque[Run] = field(default_factory=deque)
    events: int = 0
    last_taken_us: int = 0
    # From where to where this replica has vouched towards this subscriber, per stream.
    spans: dict[Stream, tuple[Sequence, Sequence]] = field(default_factory=dict)

    def waiting(self) -> Iterator[deque[Run]]:
        if self.urgent:
            yield self.urgent
        if self.queue:
            yield self.queue


class Channel:
    """Registrations and output queues of one topic."""

    def __init__(self, topic: Topic, names: Mapping[MemberId, str], outbox: Outbox) -> None:
        self.topic = topic
        self.publishers: dict[NodeId, None] = {}
        self.outlets: dict[NodeId, Outlet] = {}
        self.counters: Counter[str] = Counter()
        self._names = names
        self._outbox = outbox
        self._busy_above = topic.contract.queue_events_max // 2

    # Registration (F1). A refusal is a sentence; an empty one says yes.

    def register(self, client: NodeId) -> str:
        contract = self.topic.contract
        if not self._listed(client, contract.publish):
            return f"{self._name(client)} is not on the publish list of topic '{self.topic.name}'"
        full = contract.publishers_max and len(self.publishers) >= contract.publishers_max
        if full and client not in self.publishers:
            return f"topic '{self.topic.name}' already has its {contract.publishers_max} publishers"
        self.publishers[client] = None
        return ""

    def unregister(self, client: NodeId) -> None:
        self.publishers.pop(client, None)

    def subscribe(self, client: NodeId, lead: bool, wanted: Filter) -> str:
        contract = self.topic.contract
        if not self._listed(client, contract.subscribe):
            return f"{self._name(client)} is not on the subscribe list of topic '{self.topic.name}'"
        outlet = self.outlets.get(client)
        if outlet is not None:
            outlet.lead, outlet.filter = lead, wanted
            return ""
        if contract.subscribers_max and len(self.outlets) >= contract.subscribers_max:
            return (
                f"topic '{self.topic.name}' already has its {contract.subscribers_max} subscribers"
            )
        self.outlets[client] = Outlet(client, lead, wanted, last_taken_us=self._outbox.now_us)
        return ""

    def unsubscribe(self, client: NodeId) -> None:
        self.outlets.pop(client, None)

    def gone(self, client: NodeId) -> None:
        """The client's link is down: it registers again when it is back (F10)."""
        self.unregister(client)
        self.unsubscribe(client)

    def may_publish(self, client: NodeId) -> bool:
        return client in self.publishers

    # Output

    @property
    def busy(self) -> bool:
        """A queue that may not overflow is more than half full (B7)."""
        return self.topic.contract.discard == "never" and any(
            outlet.events > self._busy_above for outlet in self.outlets.values()
        )

    @property
    def full(self) -> bool:
        """A queue that may not overflow has no room at all: new batches must come again."""
        return self.topic.contract.discard == "never" and any(
            outlet.events >= self.topic.contract.queue_events_max
            for outlet in self.outlets.values()
        )

    @property
    def depth_events(self) -> int:
        return sum(outlet.events for outlet in self.outlets.values())

    def offer(self, run: Run) -> None:
        """Put a run into the queue of every subscriber that wants it."""
        for outlet in self.outlets.values():
            parts = [run] if outlet.filter.is_empty else self._matching(outlet.filter, run)
            for part in parts:
                self._enqueue(outlet, part)

    def drain(self) -> None:
        """Hand to the driver what open subscribers can take, urgent batches first."""
        for outlet in list(self.outlets.values()):
            if outlet.events:
                self._drain(outlet) if outlet.open else self._check_stalled(outlet)

    def announce_frontiers(self) -> None:
        """Tell subscribers how far they should have heard, so that they can miss something."""
        for outlet in self.outlets.values():
            for stream, (lowest, highest) in outlet.spans.items():
                self._outbox.send(outlet.subscriber, Frontier(*stream, lowest, highest))

    def _enqueue(self, outlet: Outlet, run: Run) -> None:
        contract = self.topic.contract
        size = sum(run.events)
        excess = outlet.events + size - contract.queue_events_max
        if excess > 0 and contract.discard == "newest" and run.stream.lane is Lane.EVENTS:
            self._note_discarded(size)
            return
        if excess > 0 and contract.discard == "oldest":
            self._discard_oldest(outlet, excess)
        (outlet.urgent if run.urgent else outlet.queue).append(run)
        outlet.events += size
        self.counters["offered"] += size

    def _discard_oldest(self, outlet: Outlet, excess: int) -> None:
        for queue in (outlet.queue, outlet.urgent):
            while excess > 0 and queue:
                run = queue.popleft()
                taken, dropped = 0, 0
                while taken < len(run.events) and dropped < excess:
                    dropped += run.events[taken]
                    taken += 1
                if run.authenticators is not None:
                    taken, dropped = len(run.events), sum(run.events)
                if taken < len(run.events):
                    queue.appendleft(run.part(taken, len(run.events)))
                excess -= dropped
                outlet.events -= dropped
                self._note_discarded(dropped)

    def _drain(self, outlet: Outlet) -> None:
        room = DRAIN_BYTES_MAX
        outlet.last_taken_us = self._outbox.now_us
        for queue in outlet.waiting():
            while queue and room > 0:
                run = queue.popleft()
                outlet.events -= sum(run.events)
                if self._expired(run):
                    self.counters["expired"] += sum(run.events)
                    continue
                room -= self._send(outlet, run)
        if outlet.events:
            self._outbox.wake_at(self._outbox.now_us)

    def _send(self, outlet: Outlet, run: Run) -> int:
        lowest, _ = outlet.spans.get(run.stream, (run.first, 0))
        outlet.spans[run.stream] = (lowest, run.first + len(run.digests) - 1)
        to, stream = outlet.subscriber, run.stream
        if run.authenticators is not None:
            tags = run.authenticators.get(to, [])
            link = Link(
                stream.publisher, stream.topic, run.urgent, run.first, run.settled, run.chain,
                run.payloads, tags,
            )  # fmt: skip
            self._outbox.send(to, link)
        elif outlet.lead:
            for first, payloads in by_size(run.first, run.payloads):
                self._outbox.send(to, Forward(*stream, run.urgent, first, payloads))
        else:
            self._outbox.send(to, Vouch(*stream, run.first, run.digests))
            return 40 * len(run.digests)
        return sum(map(len, run.payloads))

    def _expired(self, run: Run) -> bool:
        limit_us = self.topic.contract.expires_after_us
        return bool(limit_us) and self._outbox.now_us - run.arrived_us > limit_us

    def _check_stalled(self, outlet: Outlet) -> None:
        waits = outlet.events > self._busy_above and self.topic.contract.discard == "never"
        if waits and self._outbox.now_us - outlet.last_taken_us > STALLED_AFTER_US:
            self._outbox.report(
                outlet.subscriber,
                "stalled",
                f"took nothing for {STALLED_AFTER_US // 1_000_000} s while "
                f"{outlet.events} events waited; its subscription to '{self.topic.name}' is over",
            )
            self.unsubscribe(outlet.subscriber)

    def _note_discarded(self, events: int) -> None:
        self.counters["discarded"] += events

    def _matching(self, wanted: Filter, run: Run) -> list[Run]:
        if run.stream.lane is Lane.HISTORIES:
            return [run]
        if run.authenticators is not None:
            return [run] if any(map(wanted.passes, run.payloads)) else []
        keep = [(i, None) for i, payload in enumerate(run.payloads) if wanted.passes(payload)]
        return [run.part(first, first + len(n)) for first, n in consecutive(keep)]

    def _listed(self, client: NodeId, names: tuple[str, ...]) -> bool:
        return "*" in names or self._names.get(member_of(client)) in names

    def _name(self, client: NodeId) -> str:
        return self._names.get(member_of(client), f"client {client}")
