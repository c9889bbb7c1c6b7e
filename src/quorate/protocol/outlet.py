"""What waits on one replica for one subscriber (F3, F4, B7).

Source: FIT-Broker 2013, section 3.3.2; Freeman 2016, section 6.2.

Batches wait as runs, the way they arrived, in one line per stream, so that a publisher whose
batches get stuck holds up nobody else's. Urgent runs go first. A line moves on as long as the
subscriber keeps up: it says how far it has come (`Taken`), and only its credit
beyond that is sent.

Before anything else of a stream, a subscriber hears where the stream begins for it
(`Frontier`): at 1 when it was here before the stream, and otherwise at what this replica had
not accepted when it came. Without that, it could take the first batch that it hears of for
the first one, although an urgent one may overtake others.

What was sent, by us or by another replica of a chain, stays here until the subscriber has taken
it: it may have to fetch the payload, and what replicas retain for everybody (`retention.py`) can
be too little for one that lags.

What will not be sent (because of the subscriber's filter, or because its queue was full, or
because it waited too long) is said to the subscriber as `Omitted`, so that it does not wait.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from quorate.core.errors import RemoteProtocolError
from quorate.core.filter import Filter
from quorate.core.header import count_of
from quorate.core.ids import Digest, Lane, NodeId, Sequence, Stream
from quorate.core.limits import RUN_BATCHES_MAX, WINDOWS, Windows
from quorate.core.messages import Authenticator, Forward, Frontier, Link, Omitted, Vouch
from quorate.protocol.budget import Budget
from quorate.protocol.outbox import Outbox
from quorate.protocol.retention import Held
from quorate.protocol.runs import by_size, consecutive

# How far ahead of the subscriber we send one stream, beside the credit in batches (`Windows`).
CREDIT_BYTES = 8 * 1024 * 1024
DRAIN_BYTES_MAX = 1024 * 1024
# Whatever a contract says about events, no more than this waits for one subscriber.
QUEUE_BYTES_MAX = 32 * 1024 * 1024
# Nor does more than this stay here of what it was sent and has not taken.
OUTSTANDING_BYTES_MAX = 32 * 1024 * 1024
OMISSIONS_MAX = 1024
_VOUCH_BYTES = 40


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive batches of one stream on their way to subscribers."""

    stream: Stream
    urgent: bool
    first: Sequence
    payloads: list[bytes]
    digests: list[Digest]
    events: list[int]
    arrived_us: int
    # For a chain's run, which is authenticated as a whole and handed on as it came.
    settled: Sequence = 0
    chain: int = 0
    authenticators: Mapping[NodeId, list[Authenticator]] | None = None

    @property
    def last(self) -> Sequence:
        return self.first + len(self.digests) - 1

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.payloads))

    @property
    def may_be_cut(self) -> bool:
        """Its authenticators cover a chain's run as a whole, and a batch is a whole anyway."""
        return self.authenticators is None and len(self.events) > 1

    def part(self, start: int, end: int) -> "Run":
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
        return count_of(payload) or 1
    except RemoteProtocolError:
        return 1


@dataclass(slots=True)
class Line:
    """One stream's batches that wait for one subscriber."""

    lowest: Sequence
    taken: Sequence
    highest: Sequence
    windows: Windows
    waiting: deque[Run] = field(default_factory=deque)
    urgent: deque[Run] = field(default_factory=deque)
    events: int = 0
    urgent_sent: list[Sequence] = field(default_factory=list)
    omitted: list[tuple[Sequence, int]] = field(default_factory=list)
    # What was sent and is not taken yet.
    outstanding: deque[Run] = field(default_factory=deque)
    outstanding_bytes: int = 0
    # The last batch that waits here, or that a delivered history names.
    named: Sequence = 0

    def may_send(self, run: Run) -> bool:
        """Is the subscriber near enough for this run to be worth sending?"""
        if run.urgent:
            # Beyond its window, the subscriber would give up what was overtaken.
            self.urgent_sent = [s for s in self.urgent_sent if s > self.taken]
            is_near = run.last < self.taken + self.windows.span
            return is_near and len(self.urgent_sent) < self.windows.urgent
        is_near = run.first <= self.taken + self.windows.credit
        return is_near and self.outstanding_bytes <= CREDIT_BYTES

    @property
    def is_behind(self) -> bool:
        is_far = max(self.highest, self.named) > self.taken + self.windows.lag
        return is_far or self.outstanding_bytes > OUTSTANDING_BYTES_MAX // 2

    def sent(self, run: Run) -> int:
        """Returns how many bytes more are outstanding."""
        if run.last <= self.taken:
            return 0
        size = run.size_bytes
        self.outstanding.append(run)
        self.outstanding_bytes += size
        return size

    def drop_oldest(self) -> int:
        """Returns how many bytes less are outstanding."""
        size = self.outstanding.popleft().size_bytes
        self.outstanding_bytes -= size
        return size

    def take(self, through: Sequence) -> int:
        """Returns how many bytes less are outstanding."""
        self.taken, before = through, self.outstanding_bytes
        while self.outstanding and self.outstanding[0].last <= through:
            self.drop_oldest()
        return before - self.outstanding_bytes

    def omit(self, first: Sequence, count: int) -> None:
        """Remember what to say about these; neighbours are said together."""
        if self.omitted and sum(self.omitted[-1]) == first:
            before, length = self.omitted.pop()
            first, count = before, length + count
        self.omitted = [*self.omitted[1 - OMISSIONS_MAX :], (first, count)]


class Outlet:
    """The output queue of one subscriber."""

    def __init__(
        self,
        subscriber: NodeId,
        lead: bool,
        wanted: Filter,
        outbox: Outbox,
        *,
        number: int = 0,
        windows: Windows = WINDOWS,
    ) -> None:
        self.subscriber = subscriber
        self.lead = lead
        self.filter = wanted
        # Of the request that made it.
        self.number = number
        # Whether the subscriber's link takes more.
        self.open = True
        self.has_more = False
        self.events = 0
        self.moved_at_us = outbox.now_us
        # The payloads of what waits; a publisher that floods must not keep others out.
        self._budget = Budget(QUEUE_BYTES_MAX)
        self._lines: dict[Stream, Line] = {}
        self._outstanding_bytes = 0
        self._windows = windows
        self._outbox = outbox

    def holds(self, stream: Stream) -> bool:
        line = self._lines.get(stream)
        return line is not None and line.events > 0

    def holds_more(self, stream: Stream, events: int, bytes_part: float) -> bool:
        """More events of this stream than this, or more of its publisher's part in bytes?"""
        line = self._lines.get(stream)
        if line is None or not line.events:
            return False
        held = self._budget.held_by(stream.publisher)
        return line.events > events or held > bytes_part * self._budget.part_bytes

    def introduce(self, stream: Stream, lowest: Sequence, highest: Sequence) -> None:
        """This stream was there before the subscriber, who may have been here before, too."""
        self._open(stream, lowest, max(highest, lowest - 1))

    def note(self, run: Run) -> None:
        """Somebody else sends this to the subscriber: it should hear of it all the same."""
        line = self._begun(run.stream, run.first)
        if not (self.filter.is_empty or any(map(self.filter.passes, run.payloads))):
            # Whoever sends to the subscriber leaves it out, and one alone is not believed.
            line.omit(run.first, len(run.digests))
            return
        line.highest = max(line.highest, run.last)
        self._outstanding_bytes += line.sent(run)
        while self._outstanding_bytes > OUTSTANDING_BYTES_MAX and len(line.outstanding) > 1:
            self._outstanding_bytes -= line.drop_oldest()

    def untaken(self, stream: Stream) -> dict[Sequence, Held]:
        """What is here of a stream, for a subscriber that misses some of it."""
        line = self._lines.get(stream)
        if line is None:
            return {}
        return {
            run.first + offset: Held(content, run.payloads[offset])
            for run in (*line.outstanding, *line.urgent, *line.waiting)
            for offset, content in enumerate(run.digests)
        }

    def name(self, stream: Stream, first: Sequence, last: Sequence) -> None:
        """A history names these: whoever has not sent them to the subscriber, it can have them."""
        line = self._begun(stream, first)
        line.named = max(line.named, last)

    def lags_behind(self, stream: Stream) -> bool:
        """Is the subscriber so far behind what it was sent that it could lose some of it?"""
        line = self._lines.get(stream)
        return line is not None and line.is_behind

    @property
    def is_waited_for(self) -> bool:
        """Is there anything that the subscriber should be taking?"""
        return self.events > 0 or any(line.is_behind for line in self._lines.values())

    def add(self, run: Run) -> None:
        line = self._begun(run.stream, run.first)
        for part in self._wanted(line, run):
            self._queue(line, part)

    def add_within(self, run: Run, events_max: int) -> int:
        """Take what there is room for and refuse the rest. Returns the events refused."""
        line, refused = self._begun(run.stream, run.first), 0
        for part in self._wanted(line, run):
            count = self._fitting(part, events_max)
            if count:
                self._queue(line, part if count == len(part.events) else part.part(0, count))
            if count < len(part.events):
                line.omit(part.first + count, len(part.events) - count)
                refused += sum(part.events[count:])
        return refused

    def discard_oldest(self, events_max: int) -> int:
        """Keep to this bound at the expense of what has waited longest, histories apart.

        The very last batch stays, or one that is larger than the bound would never arrive.
        """
        discarded = 0
        while self.events > events_max or self._budget.held_bytes > QUEUE_BYTES_MAX:
            queues = [
                queue
                for stream, line in self._lines.items()
                for queue in (line.waiting, line.urgent)
                if queue and stream.lane is Lane.EVENTS
            ]
            spare = int(len(queues) == 1 and len(queues[0]) == 1)
            if not queues or (spare and not queues[0][0].may_be_cut):
                break
            queue = min(queues, key=lambda q: (q[0].urgent, q[0].arrived_us))
            discarded += self._discard_from(queue, max(1, self.events - events_max), spare)
        return discarded

    def on_taken(self, stream: Stream, through: Sequence) -> None:
        line = self._lines.get(stream)
        if line is not None and through > line.taken:
            self._outstanding_bytes -= line.take(through)
            self.moved_at_us = self._outbox.now_us

    def drain(self, expires_after_us: int) -> int:
        """Send what the subscriber can take, urgent first. Returns how many events expired.

        What one turn may not send any more, `has_more` says to come back for.
        """
        room, expired = DRAIN_BYTES_MAX, 0
        for urgent in (True, False):
            for line in self._lines.values():
                queue = line.urgent if urgent else line.waiting
                while queue and room > 0 and self._may_send(line, queue[0]):
                    run = self._pop(line, queue)
                    if expires_after_us and self._outbox.now_us - run.arrived_us > expires_after_us:
                        line.omit(run.first, len(run.digests))
                        expired += sum(run.events)
                    else:
                        room -= self._send(line, run)
        self._send_omitted()
        self.has_more = room <= 0
        return expired

    def announce_frontiers(self) -> None:
        for stream, line in self._lines.items():
            if line.highest >= line.lowest:
                frontier = Frontier(*stream, line.lowest, line.highest)
                self._outbox.send(self.subscriber, frontier)

    def forget(self, publisher: NodeId) -> None:
        """This publisher is gone for good."""
        for stream in [s for s in self._lines if s.publisher == publisher]:
            line = self._lines.pop(stream)
            self._outstanding_bytes -= line.outstanding_bytes
            self.events -= line.events
            for run in (*line.waiting, *line.urgent):
                self._budget.give_back(publisher, run.size_bytes)

    def _may_send(self, line: Line, run: Run) -> bool:
        """One run of each stream always goes, so that none is kept out by the others."""
        has_room = self._outstanding_bytes <= OUTSTANDING_BYTES_MAX or not line.outstanding
        return has_room and line.may_send(run)

    def _begun(self, stream: Stream, first: Sequence) -> Line:
        line = self._lines.get(stream) or self._open(stream, 1, 0)
        if line.highest < line.lowest and not line.named:
            # The subscriber cannot take before this what it never gets from us.
            line.taken = max(line.taken, first - 1)
        return line

    def _open(self, stream: Stream, lowest: Sequence, highest: Sequence) -> Line:
        line = self._lines[stream] = Line(lowest, highest, highest, self._windows)
        self._outbox.send(self.subscriber, Frontier(*stream, lowest, highest))
        return line

    def _wanted(self, line: Line, run: Run) -> Iterator[Run]:
        """The parts of a run that pass the filter; the others are omitted."""
        if self.filter.is_empty or run.stream.lane is Lane.HISTORIES:
            yield run
            return
        passes = [self.filter.passes(payload) for payload in run.payloads]
        if run.authenticators is not None:
            passes = [any(passes)] * len(passes)
        if all(passes):
            yield run
            return
        for first, gone in consecutive((i, None) for i, keep in enumerate(passes) if not keep):
            line.omit(run.first + first, len(gone))
        for first, kept in consecutive((i, None) for i, keep in enumerate(passes) if keep):
            yield run.part(first, first + len(kept))

    def _fitting(self, run: Run, events_max: int) -> int:
        """How many batches of a run have room; a chain's run is taken whole or not at all.

        One always has room in an empty queue, or a larger one would never arrive.
        """
        room_bytes = QUEUE_BYTES_MAX - self._budget.held_bytes
        if run.authenticators is not None:
            fits = self.events + sum(run.events) <= events_max and run.size_bytes <= room_bytes
            return len(run.events) if fits or not self.events else 0
        room, count = events_max - self.events, 0
        for events, payload in zip(run.events, run.payloads, strict=True):
            room, room_bytes = room - events, room_bytes - len(payload)
            if room < 0 or room_bytes < 0:
                break
            count += 1
        return count or int(not self.events)

    def _queue(self, line: Line, run: Run) -> None:
        line.named = max(line.named, run.last)
        (line.urgent if run.urgent else line.waiting).append(run)
        self._budget.take(run.stream.publisher, run.size_bytes)
        size = sum(run.events)
        line.events += size
        self.events += size

    def _pop(self, line: Line, queue: deque[Run]) -> Run:
        run = queue.popleft()
        self._budget.give_back(run.stream.publisher, run.size_bytes)
        size = sum(run.events)
        line.events -= size
        self.events -= size
        return run

    def _discard_from(self, queue: deque[Run], excess: int, spare: int) -> int:
        run = queue[0]
        line = self._lines[run.stream]
        self._pop(line, queue)
        count, dropped = 0, 0
        while count < len(run.events) - spare and dropped < excess:
            dropped += run.events[count]
            count += 1
        if run.authenticators is not None:
            count, dropped = len(run.events), sum(run.events)
        line.omit(run.first, count)
        if count < len(run.events):
            rest = run.part(count, len(run.events))
            queue.appendleft(rest)
            self._budget.take(rest.stream.publisher, rest.size_bytes)
            line.events += sum(rest.events)
            self.events += sum(rest.events)
        return dropped

    def _send(self, line: Line, run: Run) -> int:
        line.highest = max(line.highest, run.last)
        self._outstanding_bytes += line.sent(run)
        if run.urgent:
            line.urgent_sent.extend(range(run.first, run.last + 1))
        to, stream, send = self.subscriber, run.stream, self._outbox.send
        if run.authenticators is not None:
            tags = run.authenticators.get(to, [])
            link = Link(
                stream.publisher, stream.topic, run.urgent, run.first, run.settled, run.chain,
                run.payloads, tags,
            )  # fmt: skip
            send(to, link)
        elif self.lead:
            for first, payloads in by_size(run.first, run.payloads):
                send(to, Forward(*stream, run.urgent, first, payloads))
        else:
            send(to, Vouch(*stream, run.first, run.digests))
            return _VOUCH_BYTES * len(run.digests)
        return sum(map(len, run.payloads))

    def _send_omitted(self) -> None:
        """Say what is left out, as far as the subscriber has come near.

        Of what lies beyond its window it would conclude that it has lost what still waits.
        """
        for stream, line in self._lines.items():
            far = line.taken + self._windows.credit + 1
            for first, count in line.omitted:
                end = min(first + count, far)
                for start in range(first, end, RUN_BATCHES_MAX):
                    part = min(RUN_BATCHES_MAX, end - start)
                    line.highest = max(line.highest, start + part - 1)
                    self._outbox.send(self.subscriber, Omitted(*stream, start, part))
            if line.omitted:
                line.omitted = [
                    (max(first, far), first + count - max(first, far))
                    for first, count in line.omitted
                    if first + count > far
                ]
