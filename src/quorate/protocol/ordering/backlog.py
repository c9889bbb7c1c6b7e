"""All that waits for its order at one replica, line by line.

`lines.py` says what is known of one line. Here is which lines there are, which of them have
something to be ordered, and whose turn it is with the leader. Publishers hand their batches in
here. What others speak of makes a line as well, and there is a bound on those.
"""

from collections.abc import Callable, Iterable, Iterator

from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.ordering import Append, Line, Ordered, Stored
from quorate.crypto.digests import digest
from quorate.protocol.ordering.commands import Commands
from quorate.protocol.ordering.lines import Former, Waiting
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.placement import Roster
from quorate.protocol.ordering.records import Held, Voted, cut
from quorate.protocol.ordering.value import Span
from quorate.protocol.outbox import Outbox

# Lines that others may speak of before their publishers do.
HEARSAY_MAX = 1024

NEVER_US = -(1 << 62)
# What no value has named for so long, none does any more.
NAMED_US_MAX = 1_000_000

# Whether a line may exist: its publisher may write there.
MayAppend = Callable[[Line], bool]
# Have payloads on disk in whose place others are held from now on.
KeepDisplaced = Callable[[list[Held]], None]


class Wanted:
    """A span that we would need to know, since when, and what we were given for it."""

    __slots__ = ("named_us", "offer", "since_us", "span", "vouchers")

    def __init__(self, span: Span, since_us: int, vouchers: set[NodeId]) -> None:
        self.span = span
        self.since_us = since_us
        # Who said that they received exactly this. It stays true, whatever they say later.
        self.vouchers = vouchers
        # When a value named it last; never, if we only heard of it.
        self.named_us = NEVER_US
        self.offer: tuple[list[Digest], list[bytes | None]] | None = None

    def is_named(self, now_us: int) -> bool:
        """Whether a value that is under way names it: such a one is looked at with every tick."""
        return now_us - self.named_us <= NAMED_US_MAX


class Backlog:
    """The lines of one group at one replica."""

    def __init__(
        self,
        roster: Roster,
        log: OrderLog,
        commands: Commands,
        may_append: MayAppend,
        keep_displaced: KeepDisplaced,
        outbox: Outbox,
    ) -> None:
        self.lines: dict[Line, Waiting] = {}
        # Lines with undecided batches, in the order in which the leader serves them.
        self.active: dict[Line, Waiting] = {}
        # Lines whose progress the leader has yet to hear of.
        self.unsaid: dict[Line, Waiting] = {}
        # Lines of which we lack something that others know (`retrieval.py`).
        self.wanted: dict[Line, Wanted] = {}
        # Whether something came that may make a value acceptable, or let it be carried out.
        self.has_news = False
        self.may_append = may_append
        # Lines of which we know no more than that a replica spoke of them.
        self._hearsay: dict[Line, None] = {}
        self._members, self._others = roster.members, roster.others
        self._holders_needed = roster.one_correct
        self._voices_to_propose = roster.rules.voices_to_propose
        self._log = log
        self._commands = commands
        self._keep_displaced = keep_displaced
        self._outbox = outbox

    # Lines

    def line(self, line: Line) -> Waiting:
        waiting = self.lines.get(line)
        if waiting is None:
            state = self._log.line(line)
            waiting = self.lines[line] = Waiting(line, state.next, state.chain)
            if line not in self._log.state.lines:
                self._hearsay[line] = None
                if len(self._hearsay) > HEARSAY_MAX:
                    self._forget_hearsay()
        return waiting

    def line_heard_of(self, sender: NodeId, line: Line) -> Waiting | None:
        """The line that a replica speaks of, if it and the line may be."""
        if sender not in self._members or not self.may_append(line):
            self._outbox.report(sender, "rejected", f"spoke of a line of {line.publisher}")
            return None
        return self.line(line)

    def forget(self, line: Line) -> None:
        for known in (self._hearsay, self.lines, self.active, self.unsaid, self.wanted):
            known.pop(line, None)

    def _forget_hearsay(self) -> None:
        """Forget the line that we heard of first, of those that no value names."""
        for line in list(self._hearsay):
            wanted = self.wanted.get(line)
            if wanted is None or not wanted.is_named(self._outbox.now_us):
                self.forget(line)
                return
            self._hearsay[line] = self._hearsay.pop(line)

    def activate(self, waiting: Waiting) -> None:
        """Something of this line is to be ordered, if its publisher may still write there."""
        if not waiting.digests or waiting.line in self.active:
            return
        if self.may_append(waiting.line):
            self.active[waiting.line] = waiting
            self._hearsay.pop(waiting.line, None)
            waiting.since_us = waiting.told_us = self._outbox.now_us

    def pass_over_what_may_not_be(self) -> None:
        """Access was taken from somebody: what waits of them is not proposed any more.

        It is kept, since a slot may be bound to some of it already.
        """
        for line in [line for line in self.active if not self.may_append(line)]:
            del self.active[line]
            self.unsaid.pop(line, None)

    # What may be proposed

    def proposable(self, waiting: Waiting) -> Sequence:
        """Up to here, every correct replica can find the line authentic and available."""
        last = waiting.received_through(self._voices_to_propose)
        return waiting.available_through(last, self.holders(waiting.line))

    def holders(self, line: Line) -> int:
        """How many others that hold a payload are as good as ourselves; of commands, none are."""
        return len(self._members) + 1 if self._commands.are_on(line) else self._holders_needed

    # What comes in

    def take(
        self,
        line: Line,
        first: Sequence,
        digests: list[Digest],
        payloads: list[bytes] | list[None],
    ) -> Waiting | None:
        """Batches that a publisher gave us itself. None if it contradicts itself."""
        waiting = self.line(line)
        if first < waiting.next:
            self._tell_positions(line, first, min(first + len(digests), waiting.next))
        if waiting.extend(first, digests, payloads):
            self._outbox.report(line.publisher, "contradiction", f"in its line at {first}")
            return None
        if first <= waiting.direct + 1:
            waiting.direct = max(waiting.direct, min(first + len(digests), waiting.end) - 1)
            self.unsaid[line] = waiting
        if waiting.early:
            waiting.use_early()
        self.activate(waiting)
        self.has_news = True
        return waiting

    def keep_and_tell(self, waiting: Waiting, append: Append, large: list[bool]) -> None:
        """Large payloads are on disk before we say that we store them."""
        run_start: int | None = None
        for at, is_large in enumerate([*large, False]):
            if is_large and run_start is None:
                run_start = at
            elif not is_large and run_start is not None:
                self._store_run(waiting, append, run_start, at)
                run_start = None

    def hold(self, waiting: Waiting, count: int, *, sync: bool) -> None:
        """Have on disk what we have of the next batches, and what we had, if they are undecided."""
        if sync:
            self._keep_former(waiting)
        for first, payloads in waiting.unheld_runs(count):
            self._outbox.persist(Held(*waiting.line, first, payloads), sync=sync)

    def displaced(self) -> list[Held]:
        """All payloads in whose place others are, or may be, on disk."""
        return [
            held
            for waiting in self.lines.values()
            if waiting.former
            for held in _displaced(waiting.line, waiting.former)
        ]

    def _keep_former(self, waiting: Waiting) -> None:
        """We may have said that we store it, or voted for it. Once other payloads are held, what we
        write here is all there is of it."""
        if waiting.unkept:
            self._keep_displaced([*_displaced(waiting.line, waiting.unkept)])
            waiting.unkept = []

    def restore_voted(self, voted: Voted) -> None:
        """What something else had taken the place of before we restarted, and what we had voted for
        and others store."""
        for held in voted.displaced:
            digests = [*map(digest, held.payloads)]
            line = Line(held.publisher, held.topic, held.partition)
            self._restore_former(line, Former(held.first, digests, [*held.payloads]))
        for named in voted.named:
            digests = cut(named.digests)
            line = Line(named.publisher, named.topic, named.partition)
            self._restore_former(line, Former(named.first, digests, [None] * len(digests)))

    def _restore_former(self, line: Line, former: Former) -> None:
        waiting = self.line(line)
        if former.end > waiting.next:
            waiting.put_aside(former, is_kept=True)

    def restore(self, held: Held) -> None:
        """What the disk had before we restarted waits again, if it is still undecided."""
        line = Line(held.publisher, held.topic, held.partition)
        if not self.may_append(line):
            return
        waiting = self.line(line)
        waiting.extend(held.first, [*map(digest, held.payloads)], held.payloads)
        for sequence, payload in enumerate(held.payloads, held.first):
            if sequence >= waiting.end:
                waiting.spare[sequence] = payload
        waiting.direct = waiting.end - 1
        if waiting.held == held.first - 1:
            waiting.held = min(waiting.end, held.first + len(held.payloads)) - 1
        self.activate(waiting)

    def _tell_positions(self, line: Line, first: Sequence, end: Sequence) -> None:
        """A publisher asks again about what was decided: it missed its receipts."""
        for position in self._log.line(line).recent:
            if position.first < end and first < position.first + position.batches:
                self._outbox.send(line.publisher, Ordered(line.topic, line.partition, *position))

    def _store_run(self, waiting: Waiting, append: Append, start: int, end: int) -> None:
        first, last = append.first + start, append.first + end - 1
        chain = waiting.chain_at(last)
        if chain is None or first < waiting.next:
            return
        if waiting.held < last:
            self._keep_former(waiting)
            self._outbox.persist(Held(*waiting.line, first, append.payloads[start:end]))
            if waiting.held == first - 1:
                waiting.held = last
        self._outbox.send_all(self._others, Stored(*waiting.line, first, end - start, chain))

    # What was decided

    def advance(self, waiting: Waiting, count: int) -> None:
        """The next batches of a line were decided; the rest of it waits from now on."""
        waiting.advance(count)
        waiting.since_us = waiting.told_us = self._outbox.now_us
        if not waiting.digests:
            self.active.pop(waiting.line, None)
        wanted = self.wanted.get(waiting.line)
        if wanted is not None and wanted.span.end <= waiting.next:
            del self.wanted[waiting.line]

    def start_over(self) -> None:
        """The log is ahead of us at once: keep what fits on it, and forget the rest."""
        for line, waiting in list(self.lines.items()):
            now = self._log.line(line)
            if waiting.chain_at(now.next - 1) != now.chain:
                # What we have of it is not what was decided, or ends before that.
                self.forget(line)
            elif now.next > waiting.next:
                self.advance(waiting, now.next - waiting.next)
        self.has_news = True


def _displaced(line: Line, formers: Iterable[Former]) -> Iterator[Held]:
    for former in formers:
        for first, payloads in former.runs():
            yield Held(*line, first, payloads)
