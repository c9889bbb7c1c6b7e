"""All that waits for its order at one replica, line by line.

`lines.py` says what is known of one line. Here is which lines there are, which of them have
something to be ordered, and whose turn it is with the leader. Publishers hand their batches in
here, as far as they have room (`room.py`). What others speak of makes a line as well, and there is
a bound on those.

In the group that orders commands, what waits of a session goes when its registration does. Every
replica comes to that in the same slot, and finds no value acceptable from the next slot on that
names one of its lines. So no slot is or will be bound to what is dropped, whoever counted on it.
In another group replicas hear of that in different slots, and keep what waits. There a correct
leader proposes all that anybody stores, unless the client left out what comes before that. A client
that does so for long has filled up its room there, and nobody else's.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as Seq

from quorate.core.ids import NodeId, Sequence, member_of
from quorate.core.ordering import Append, Line, Ordered, Stored, Unordered
from quorate.crypto.digests import cut, descriptor, digest_of
from quorate.protocol.ordering.commands import Commands
from quorate.protocol.ordering.lines import (
    COMMAND_BATCH_BYTES_MAX,
    INLINE_BYTES_MAX,
    Former,
    Waiting,
)
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.placement import Roster
from quorate.protocol.ordering.receipts import Receipting
from quorate.protocol.ordering.records import Deposit, Deposited, Dropped, Held, Voted
from quorate.protocol.ordering.room import BATCH_COST, LINE_COST, Room, Rooms
from quorate.protocol.ordering.value import Span
from quorate.protocol.outbox import Outbox

# Lines that others may speak of before their publishers do.
HEARSAY_MAX = 1024
# What an honest session has of commands: one at a time.
COMMAND_COST = LINE_COST + BATCH_COST + COMMAND_BATCH_BYTES_MAX

NEVER_US = -(1 << 62)
# What no value has named for so long, none does any more.
NAMED_US_MAX = 1_000_000

# Whether a line may exist: its publisher may write there.
MayAppend = Callable[[Line], bool]
# Whether its session is registered there, as of the last slot; without commands, all are.
IsOpen = Callable[[Line], bool]
# Whether a session has ended for good, as far as we know of commands.
HasEnded = Callable[[NodeId], bool]
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
        self.offer: tuple[list[bytes], list[bytes | None]] | None = None

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
        *,
        is_open: IsOpen,
        has_ended: HasEnded,
        named: Callable[[], Collection[Line]],
        receipts: Receipting,
        rooms: Rooms,
        gather_us: int,
    ) -> None:
        """`named` says which lines a value names that an open slot may be bound to.

        Under load, what is stored is said every `gather_us`.
        """
        self.lines: dict[Line, Waiting] = {}
        # Lines with undecided batches, in the order in which the leader serves them.
        self.active: dict[Line, Waiting] = {}
        # Lines that take room.
        self._charged: dict[Line, Waiting] = {}
        # Lines whose progress the leader has yet to hear of.
        self.unsaid: dict[Line, Waiting] = {}
        # Lines of which we lack something that others know (`retrieval.py`).
        self.wanted: dict[Line, Wanted] = {}
        # Whether something came that may make a value acceptable, or let it be carried out.
        self.has_news = False
        self.may_append = may_append
        self.is_open = is_open
        self.has_ended = has_ended
        self._named = named
        self.room = Room(rooms.session, rooms.member)
        self.commands_room = Room(rooms.session, rooms.commands)
        # Lines of which we know no more than that a replica spoke of them.
        self._hearsay: dict[Line, None] = {}
        self._members, self._others = roster.members, roster.others
        self._holders_needed = roster.one_correct
        self._voices_to_propose = roster.rules.voices_to_propose
        self._log = log
        self._commands = commands
        self._keep_displaced = keep_displaced
        self._receipts = receipts
        self._gather_us = gather_us
        # Lines of which we store something, and have yet to say so.
        self._unreceipted: dict[Line, Waiting] = {}
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
        waiting = self.lines.get(line)
        if waiting is not None:
            self._room_of(line).change(line.publisher, -waiting.charged_bytes)
        for known in (
            self._hearsay, self.lines, self.active, self.unsaid, self.wanted, self._charged,
        ):  # fmt: skip
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
        if not waiting.descriptors or waiting.line in self.active:
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

    def drop_ended(self) -> None:
        """Sessions may have ended: what waits of them will not be ordered."""
        for line in [line for line in self._charged if not self.is_open(line)]:
            self.drop(line)

    def drop(self, line: Line) -> None:
        """Give up what waits of a line, here and on disk."""
        waiting = self.lines.get(line)
        if waiting is not None and waiting.has_held:
            self._outbox.persist(Dropped(*line), sync=False)
        self.forget(line)

    # Room

    def charge(self, waiting: Waiting) -> None:
        """A line takes another amount of room than before."""
        line, cost_bytes = waiting.line, waiting.cost_bytes
        if cost_bytes != waiting.charged_bytes and self.lines.get(line) is waiting:
            self._room_of(line).change(line.publisher, cost_bytes - waiting.charged_bytes)
            waiting.charged_bytes = cost_bytes
            self._charged[line] = waiting
            if not cost_bytes:
                del self._charged[line]

    def _room_of(self, line: Line) -> Room:
        return self.commands_room if self._commands.are_on(line) else self.room

    def _room_for(self, line: Line) -> int:
        """How much more may wait of this line. Commands make room for others of their client."""
        room = self._room_of(line)
        while room is self.commands_room and room.is_short(line.publisher, COMMAND_COST):
            given_way = self._longest_unsaid(line)
            if given_way is None:
                break
            self.drop(given_way.line)
        return room.left(line.publisher)

    def _longest_unsaid(self, newcomer: Line) -> Waiting | None:
        """Commands of another session of this client: those that it has not said for longest."""
        member, kept = member_of(newcomer.publisher), {newcomer, *self._named()}
        others = [
            waiting
            for line, waiting in self._charged.items()
            if member_of(line.publisher) == member
            and self._commands.are_on(line)
            and line not in kept
        ]
        return min(others, key=lambda waiting: waiting.given_us, default=None)

    # What may be proposed

    def may_go_on(self, line: Line) -> bool:
        """Whether a value may name this line, which may be a new one."""
        if not self.is_open(line) or self.has_ended(line.publisher):
            return False
        return line in self._log.state.lines or not self._log.beyond([line], self._log.ending)

    def proposable(self, waiting: Waiting) -> Sequence:
        """Up to here, every correct replica can find the line authentic and available."""
        if not self.may_go_on(waiting.line):
            return waiting.next - 1
        last = waiting.received_through(self._voices_to_propose)
        return self._receipts.available_through(waiting, last, self.holders(waiting.line))

    def claimed(self, waiting: Waiting) -> Sequence:
        """The same, if all that stores say is so. Nothing may rest on that."""
        if not self.may_go_on(waiting.line):
            return waiting.next - 1
        last = waiting.received_through(self._voices_to_propose)
        return waiting.claimed_through(last, self.holders(waiting.line))

    def is_here(self, waiting: Waiting, span: Span) -> bool:
        """Whether we know what this span names, and find it available."""
        last, needed = span.end - 1, self.holders(waiting.line)
        if not waiting.matches(span) or waiting.claimed_through(last, needed) < last:
            return False
        return self._receipts.available_through(waiting, last, needed) >= last

    def first_lacking(self, waiting: Waiting, span: Span) -> Sequence:
        """Where to begin to ask for what a span names."""
        if not waiting.matches(span):
            return span.first
        last, needed = span.end - 1, self.holders(waiting.line)
        available = self._receipts.available_through(waiting, last, needed)
        return available + 1 if available < last else span.first

    def holders(self, line: Line) -> int:
        """How many others that hold a payload are as good as ourselves; of commands, none are."""
        return len(self._members) + 1 if self._commands.are_on(line) else self._holders_needed

    # What comes in

    def take(
        self,
        line: Line,
        first: Sequence,
        descriptors: list[bytes],
        payloads: Seq[bytes | None],
    ) -> Waiting | None:
        """Batches that a publisher gave us itself. None if it contradicts itself."""
        waiting = self.line(line)
        if first < waiting.next:
            self._tell_positions(line, first, min(first + len(descriptors), waiting.next))
        waiting.given_us = self._outbox.now_us
        contradicts = waiting.extend(first, descriptors, payloads, self._room_for(line))
        self.charge(waiting)
        if contradicts:
            self._outbox.report(line.publisher, "contradiction", f"in its line at {first}")
            return None
        if first <= waiting.direct + 1:
            waiting.direct = max(waiting.direct, min(first + len(descriptors), waiting.end) - 1)
            self.unsaid[line] = waiting
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

    def deposit(self, waiting: Waiting, append: Append, descriptors: list[bytes]) -> None:
        """Large payloads are with the store outside before they count, or are said to be stored.

        Those that are there already are said to be stored once more.
        """
        room_bytes = self._room_for(waiting.line)
        here = [False] * len(descriptors)
        for at, payload in enumerate(append.payloads):
            sequence = append.first + at
            place = sequence - waiting.next
            if len(payload) <= INLINE_BYTES_MAX or not 0 <= place < len(waiting.payloads):
                continue
            if waiting.payloads[place] is not None:
                here[at] = True
            elif sequence not in waiting.deposits and len(payload) <= room_bytes:
                room_bytes -= len(payload)
                waiting.deposit(sequence, descriptors[at], payload)
                content = digest_of(descriptors[at])
                deposit = Deposit(*waiting.line, sequence, content, payload)
                self._outbox.deposit(deposit)
        self.charge(waiting)
        self.keep_and_tell(waiting, append, here)

    def deposited(self, line: Line, results: Iterable[Deposited]) -> None:
        """What became of payloads of this line. Whatever was not taken, its publisher hands in
        again, here and elsewhere."""
        waiting = self.lines.get(line)
        if waiting is None:
            return
        held: list[Deposited] = []
        for result in sorted(results, key=lambda result: result.sequence):
            found = waiting.end_deposit(result.sequence)
            place = result.sequence - waiting.next
            if found is None or not result.pointer or not 0 <= place < len(waiting.payloads):
                continue
            content, payload = found
            # It may have come another way meanwhile, or something else may have taken its place.
            if waiting.payloads[place] is None and waiting.descriptors[place] == content:
                waiting.complete(result.sequence, [content], [payload])
                held.append(result)
        for run in _runs(held):
            self._hold_deposits(waiting, run)
        self.charge(waiting)
        self.has_news = True

    def _hold_deposits(self, waiting: Waiting, run: list[Deposited]) -> None:
        first, last = run[0].sequence, run[-1].sequence
        self._keep_former(waiting)
        self._outbox.persist(Held(*waiting.line, first, [each.pointer for each in run]))
        waiting.note_held(first, last)
        self._note_stored(waiting, first, last)

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
            descriptors = [*map(descriptor, held.payloads)]
            line = Line(held.publisher, held.topic, held.partition)
            self._restore_former(line, Former(held.first, descriptors, [*held.payloads]))
        for named in voted.named:
            descriptors = cut(named.descriptors)
            line = Line(named.publisher, named.topic, named.partition)
            self._restore_former(line, Former(named.first, descriptors, [None] * len(descriptors)))

    def _restore_former(self, line: Line, former: Former) -> None:
        waiting = self.line(line)
        if former.end > waiting.next:
            waiting.put_aside(former, is_kept=True)
            self.charge(waiting)

    def restore(self, held: Held) -> None:
        """What the disk had before we restarted waits again, if it is still undecided."""
        line = Line(held.publisher, held.topic, held.partition)
        if not self.may_append(line):
            return
        waiting = self.line(line)
        waiting.extend(held.first, [*map(descriptor, held.payloads)], held.payloads)
        for sequence, payload in enumerate(held.payloads, held.first):
            if sequence >= waiting.end:
                waiting.spare[sequence] = payload
        waiting.direct = waiting.end - 1
        if waiting.held == held.first - 1:
            waiting.held = min(waiting.end, held.first + len(held.payloads)) - 1
        self.charge(waiting)
        self.activate(waiting)

    def _tell_positions(self, line: Line, first: Sequence, end: Sequence) -> None:
        """A publisher asks again about what was decided: it missed its receipts."""
        recent = self._log.line(line).recent
        if not recent or first < recent[0].first:
            sentence = f"batch {first} was ordered, and its position is not remembered any more"
            unordered = Unordered(line.topic, line.partition, first, sentence)
            if self._outbox.may_answer(line.publisher):
                self._outbox.answer(line.publisher, unordered, len(sentence))
        for position in recent:
            if position.first < end and first < position.first + position.batches:
                self._outbox.send(line.publisher, Ordered(line.topic, line.partition, *position))

    def _store_run(self, waiting: Waiting, append: Append, start: int, end: int) -> None:
        first = append.first + start
        if first < waiting.next:
            return
        # What there was no room for is not stored either.
        has = [payload is not None for payload in waiting.payloads[first - waiting.next :]]
        count = min(end - start, [*has, False].index(False))
        last = first + count - 1
        if not count:
            return
        if not waiting.is_held(first, last):
            self._keep_former(waiting)
            payloads = append.payloads[start : start + count]
            self._outbox.persist(Held(*waiting.line, first, payloads))
            waiting.note_held(first, last)
        self._note_stored(waiting, first, last)

    def _note_stored(self, waiting: Waiting, first: Sequence, last: Sequence) -> None:
        waiting.note_stored(first, last)
        self._unreceipted[waiting.line] = waiting

    def tell_stored(self) -> None:
        """Say which payloads are on disk by now, or will be before this leaves."""
        for line, waiting in list(self._unreceipted.items()):
            if self.lines.get(line) is not waiting:
                del self._unreceipted[line]
            elif not self._is_gathering(waiting):
                del self._unreceipted[line]
                for stretch in waiting.take_unreceipted(self._outbox.now_us):
                    self._tell_stretch(waiting, stretch)

    def _is_gathering(self, waiting: Waiting) -> bool:
        """Whether what we store can wait to be said, since we just said so of what comes before.

        A signature costs the same whatever it is for. Whoever publishes one batch after the other
        never waits for this.
        """
        until_us = waiting.receipted_us + self._gather_us
        if self._outbox.now_us >= until_us or waiting.receipted.stop <= waiting.next:
            return False
        if len(waiting.unreceipted) != 1:
            return False
        (stretch,) = waiting.unreceipted
        if not self._receipts.is_due(waiting, stretch.start, stretch.stop):
            return False
        self._outbox.wake_at(until_us)
        return True

    def _tell_stretch(self, waiting: Waiting, stretch: range) -> None:
        chain, first, count = waiting.chain_at(stretch[-1]), stretch.start, len(stretch)
        if chain is not None:
            signature = self._receipts.signed(waiting, first, count, chain)
            stored = Stored(*waiting.line, first, count, chain, signature)
            self._outbox.send_all(self._others, stored)

    def on_stored(self, sender: NodeId, stored: Stored) -> None:
        """A replica says that it keeps payloads."""
        line = Line(stored.publisher, stored.topic, stored.partition)
        waiting = self.line_heard_of(sender, line)
        if waiting is None:
            return
        if self._receipts.hear(waiting, sender, stored):
            self.has_news = True

    # What was decided

    def advance(self, waiting: Waiting, count: int) -> None:
        """The next batches of a line were decided; the rest of it waits from now on."""
        waiting.advance(count)
        self.charge(waiting)
        waiting.since_us = waiting.told_us = self._outbox.now_us
        if not waiting.descriptors:
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


def _runs(results: list[Deposited]) -> Iterator[list[Deposited]]:
    """Those whose numbers follow on each other."""
    run: list[Deposited] = []
    for result in results:
        if run and result.sequence != run[-1].sequence + 1:
            yield run
            run = []
        run.append(result)
    if run:
        yield run
