"""What a value names, and how we come to know what we lack of it.

A value names batches by count and chain. To vote for it we must find them authentic and available
(`lines.py`); to carry it out we must know their descriptors, and have the payloads of commands.
What stays out is on its way to us, or it is not: after a while we ask all others for it, and
whoever has it sends the descriptors, as many payloads as fit, and says how far its publisher gave
it to them.

What we were given for a span is an *offer*. It replaces what we have of the line only if enough
replicas vouch for it, or if that the span is right is beyond doubt already. That an offer is what
the span names, the chain proves.
"""

from quorate.core.header import are_possible
from quorate.core.ids import NodeId
from quorate.core.limits import RUN_BATCHES_MAX
from quorate.core.ordering import Line, Received, Retrieve, Retrieved
from quorate.crypto.digests import descriptor
from quorate.protocol.ordering.backlog import Backlog, Wanted
from quorate.protocol.ordering.commands import Commands
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX, Waiting
from quorate.protocol.ordering.log import OrderLog, Position
from quorate.protocol.ordering.pace import Pace
from quorate.protocol.ordering.placement import Roster
from quorate.protocol.ordering.readers import Readers
from quorate.protocol.ordering.records import Store
from quorate.protocol.ordering.value import Span
from quorate.protocol.outbox import Outbox

RETRIEVED_BYTES_MAX = 1024 * 1024
# Of all offers; what comes beyond is kept without its payloads, which are asked for again.
OFFERED_BYTES_MAX = 64 * 1024 * 1024


class Retrieval:
    """What one replica wants of the lines of its group, and gives to others that want it."""

    def __init__(
        self,
        roster: Roster,
        log: OrderLog,
        backlog: Backlog,
        commands: Commands,
        readers: Readers,
        store: Store,
        outbox: Outbox,
        pace: Pace,
    ) -> None:
        self._me, self._others = roster.me, roster.others
        # Whether leaders go by what we received.
        self._counts = roster.takes_part and roster.rules.voices_to_propose > 1
        self._voices_to_believe = roster.rules.voices_to_believe
        self._log = log
        self._backlog = backlog
        self._commands = commands
        self._readers, self._store = readers, store
        self._outbox = outbox
        self._pace = pace

    # What a span needs

    def is_acceptable(self, span: Span) -> bool:
        """Whether we find it authentic and available; if not, it is wanted."""
        waiting = self._backlog.line(span.line)
        if span.first != waiting.next:
            return False
        if self._is_authentic(waiting, span) and self._backlog.is_here(waiting, span):
            return True
        self.want(span)
        return False

    def is_available(self, span: Span) -> bool:
        """As acceptable, but that it is authentic is beyond doubt already."""
        waiting = self._backlog.line(span.line)
        self.use_offer(span, is_certain=True)
        if self._backlog.is_here(waiting, span):
            return True
        self.want(span)
        return False

    def is_applicable(self, span: Span) -> bool:
        """Whether we know what it names, and have it if we must carry it out."""
        waiting = self._backlog.line(span.line)
        if not waiting.matches(span):
            return False
        return not self._commands.are_on(span.line) or self._backlog.is_here(waiting, span)

    def _is_authentic(self, waiting: Waiting, span: Span) -> bool:
        if waiting.direct >= span.end - 1:
            return True
        return waiting.believed_by(span.end - 1, self._me) >= self._voices_to_believe

    # What we want

    def want(self, span: Span) -> None:
        """A value names this. As long as it is under way, this is said again and again."""
        self._want(span).named_us = self._outbox.now_us

    def on_received(self, sender: NodeId, waiting: Waiting, received: Received) -> None:
        """A replica received what we want, or more than we have."""
        wanted = self._backlog.wanted.get(waiting.line)
        if wanted is not None and _is_of(received, wanted.span):
            wanted.vouchers.add(sender)
        if received.through >= waiting.end:
            self._want_what_others_have(waiting, received, wanted)

    def _want_what_others_have(
        self, waiting: Waiting, received: Received, wanted: Wanted | None
    ) -> None:
        """So many say they received more than we have that one of them is correct.

        What a value names goes first: it would not come if others could change what we want.
        """
        if wanted is not None and wanted.is_named(self._outbox.now_us):
            return
        count = received.through + 1 - waiting.next
        span = Span(*waiting.line, waiting.next, count, received.chain)
        if len(_vouchers(waiting, span)) >= self._voices_to_believe:
            self._want(span)

    def _want(self, span: Span) -> Wanted:
        wanted = self._backlog.wanted.get(span.line)
        if wanted is None or wanted.span != span:
            vouchers = _vouchers(self._backlog.line(span.line), span)
            wanted = Wanted(span, self._outbox.now_us, vouchers)
            self._backlog.wanted[span.line] = wanted
        return wanted

    def tick(self) -> None:
        """Look at what we were given, and ask for what we still lack."""
        now_us = self._outbox.now_us
        for line, wanted in list(self._backlog.wanted.items()):
            span = wanted.span
            self.use_offer(span, is_certain=False)
            waiting = self._backlog.line(line)
            is_known = self._is_authentic(waiting, span) and self._backlog.is_here(waiting, span)
            if span.end <= waiting.next or is_known or self._is_made_up(wanted):
                del self._backlog.wanted[line]
            elif now_us - wanted.since_us >= self._pace.retrieve_us:
                wanted.since_us = now_us - self._pace.retrieve_us + self._pace.retrieve_again_us
                first = self._backlog.first_lacking(waiting, span)
                retrieve = Retrieve(*line, first, span.end - first)
                self._outbox.send_all(self._others, retrieve)
                if not waiting.matches(span):
                    self._say_what_we_have(waiting)

    def _is_made_up(self, wanted: Wanted) -> bool:
        """Whether nobody names it any more, and too few say that they received it."""
        is_believed = len(wanted.vouchers) >= self._voices_to_believe
        return not is_believed and not wanted.is_named(self._outbox.now_us)

    def _say_what_we_have(self, waiting: Waiting) -> None:
        """Somebody may go by what we said before we restarted, and propose it."""
        chain = waiting.chain_at(waiting.direct)
        if self._counts and chain is not None:
            self._outbox.send_all(self._others, Received(*waiting.line, waiting.direct, chain))

    def on_retrieved(self, sender: NodeId, retrieved: Retrieved) -> None:
        line = Line(retrieved.publisher, retrieved.topic, retrieved.partition)
        wanted = self._backlog.wanted.get(line)
        if wanted is None or not are_possible(retrieved.descriptors):
            return
        payloads: list[bytes | None] = [
            payload if descriptor(payload) == described else None
            for payload, described in zip(retrieved.payloads, retrieved.descriptors, strict=False)
        ]
        payloads += [None] * (len(retrieved.descriptors) - len(payloads))
        waiting, span = self._backlog.line(line), wanted.span
        if waiting.matches(span):
            waiting.complete(retrieved.first, retrieved.descriptors, payloads)
            self._backlog.charge(waiting)
        elif retrieved.first == span.first and waiting.is_named_by(span, retrieved.descriptors):
            wanted.offer = None
            if self._offered_bytes() + _bytes_of(payloads) > OFFERED_BYTES_MAX:
                payloads = [None] * len(payloads)
            wanted.offer = retrieved.descriptors, payloads
        self._backlog.has_news = True

    def use_offer(self, span: Span, *, is_certain: bool) -> None:
        """Replace what we have of a line by what we were given, if enough vouch for that.

        What we had before is as good, and we vouch for it ourselves.
        """
        waiting, wanted = self._backlog.line(span.line), self._backlog.wanted.get(span.line)
        if waiting.matches(span) and (wanted is None or wanted.offer is None):
            return
        offer, former = wanted.offer if wanted is not None else None, waiting.former_of(span)
        is_vouched_for = wanted is not None and len(wanted.vouchers) >= self._voices_to_believe
        if not (is_certain or is_vouched_for or former is not None):
            return
        for descriptors, payloads in filter(None, (offer, former)):
            if waiting.replace(span, descriptors, payloads):
                self._backlog.charge(waiting)
                waiting.direct = max(waiting.direct, span.end - 1)
                self._backlog.unsaid[span.line] = waiting
                self._backlog.activate(waiting)
                self._backlog.has_news = True

    def _offered_bytes(self) -> int:
        offers = (wanted.offer for wanted in self._backlog.wanted.values())
        return sum(_bytes_of(offer[1]) for offer in offers if offer is not None)

    # What others want

    def on_retrieve(self, sender: NodeId, retrieve: Retrieve) -> None:
        if retrieve.count > RUN_BATCHES_MAX or not self._outbox.may_answer(sender):
            return
        line = Line(retrieve.publisher, retrieve.topic, retrieve.partition)
        decided, last = self._log.line(line), retrieve.first + retrieve.count - 1
        if retrieve.first < decided.next:
            self._give_decided(sender, line, retrieve)
            if self._counts and last == decided.next - 1:
                # A quorum found it authentic. A peer that may not know that yet counts on us as one
                # who received it, though what we received is decided here.
                self._outbox.send(sender, Received(*line, last, decided.chain))
        waiting = self._backlog.lines.get(line)
        if waiting is None or not waiting.next <= retrieve.first <= last:
            return
        for descriptors, payloads, chain in waiting.given(retrieve.first, last):
            if not self._outbox.may_answer(sender):
                return
            fitting = _fitting(payloads)
            retrieved = Retrieved(*line, retrieve.first, descriptors, fitting)
            self._outbox.answer(sender, retrieved, _bytes_of([*fitting, *descriptors]))
            if chain is not None:
                self._outbox.send(sender, Received(*line, last, chain))

    def _give_decided(self, sender: NodeId, line: Line, retrieve: Retrieve) -> None:
        """A peer lacks what we have decided: if a power cut took it from all others, it is ours
        to give."""
        for position in self._log.line(line).recent:
            at = retrieve.first - position.first
            if not 0 <= at < position.batches:
                continue
            count = min(position.batches - at, retrieve.count)
            read = self._read(line, position, at, count)
            if read:
                payloads = read[:count]
                descriptors = [*map(descriptor, payloads)]
                retrieved = Retrieved(*line, retrieve.first, descriptors, payloads)
                # What was read counts, however little of it was asked for.
                self._outbox.answer(sender, retrieved, _bytes_of([*read, *descriptors]))

    def _read(self, line: Line, position: Position, at: int, count: int) -> list[bytes]:
        """So many payloads, or as many as a message takes; and not much more than that."""
        found: list[bytes] = []
        start, end = self._store.bounds(line.target)
        if not start <= position.offset < end:
            # The others are counted from the first of them: retention took it, or it is not on disk
            # yet.
            return found
        offset = self._store.behind(line.target, position.offset, at)
        while len(found) < count and (room := RETRIEVED_BYTES_MAX - _bytes_of([*found])) > 0:
            bytes_max = min(room, (count - len(found)) * INLINE_BYTES_MAX)
            stretches = self._readers.read(line.target, offset, bytes_max)
            if not stretches:
                break
            found += [payload for stretch in stretches for payload in stretch.payloads]
            offset = stretches[-1].end
        return found


def _bytes_of(payloads: list[bytes | None]) -> int:
    return sum(len(payload) for payload in payloads if payload)


def _vouchers(waiting: Waiting, span: Span) -> set[NodeId]:
    """Who said last that they received a line exactly as far as this span, and so."""
    return {replica for replica, received in waiting.heard.items() if _is_of(received, span)}


def _is_of(received: Received, span: Span) -> bool:
    return (received.through, received.chain) == (span.end - 1, span.chain)


def _fitting(payloads: list[bytes | None]) -> list[bytes]:
    """As many payloads as a message takes, nothing for the others; one goes, however large."""
    fitting: list[bytes] = []
    room = RETRIEVED_BYTES_MAX
    for payload in payloads:
        fits = payload is not None and (len(payload) <= room or room == RETRIEVED_BYTES_MAX)
        fitting.append(payload if payload is not None and fits else b"")
        room -= len(fitting[-1])
    return fitting
