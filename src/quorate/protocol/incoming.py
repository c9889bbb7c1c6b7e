"""One publisher's batches as they arrive at one subscriber.

Source: FIT-Broker 2013, algorithms 1 to 3; Freeman 2016, algorithms 3, 6 and 9, section 5.8.

Replicas vouch for batches. A batch is *decided* when as many of them agree on its content as
its protocol asks for, when the authenticators of a chain verify, or when a history names it;
it is delivered when its payload is here too. If the payload does not match what was decided, or
stays out, the next replica that vouched is asked.

Replicas hand on a source's runs as they got them, so voices are counted a run at a time as long
as all agree, and a batch at a time where they differ or something stays out.

Invariants:
- at most one content per sequence number is delivered, once;
- what waits is bounded, per stream and replica.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from quorate.core.ids import SEQUENCE_MAX, Digest, Lane, NodeId, Sequence, Stream, member_of
from quorate.core.messages import Fetch, Forward, Frontier, Link, Omitted, Supply, Taken, Vouch
from quorate.crypto.digests import digest
from quorate.protocol.broadcast import chain
from quorate.protocol.broadcast.history import History
from quorate.protocol.broadcast.rules import rules_of
from quorate.protocol.machine import Delivery, Skipped
from quorate.protocol.voting import TWO_FACED, Ballot, WholeRun

if TYPE_CHECKING:
    from quorate.protocol.subscription import Subscription

# After this long without a quorum or a payload, ask; after PATIENCE, give up.
ASK_AFTER_US = 200_000
PATIENCE_US = 15_000_000
# A run that stays open for so long is gone on with batch by batch; or for twice as long as runs
# took lately, if that is more: under load voices take their time, and to count them one by one
# would only add to it.
RUN_PATIENCE_US = 100_000
RUN_PATIENCE_US_MAX = 1_000_000
ASK_BATCHES_MAX = 1024
# A replica may speak of many streams that nobody else knows (see `subscription`), so that of each
# no more of its voices are kept than this.
HEARSAY_BATCHES_MAX = 512
# A new lead may at first send digests that were on their way when it was chosen.
LEAD_GRACE_US = 1_000_000
# Where replicas differ on where a stream begins, and f that lie could be why, what nobody brings in
# this time was before our time.
DOUBT_US = 2_000_000
# What stays out while later batches arrive does not hold a stream up for longer than this: no gap
# may stop it.
MARK_EVERY_US = 3_000_000


@dataclass(slots=True)
class Decided:
    """A batch whose content is known and whose payload is still out."""

    content: Digest
    vouchers: tuple[NodeId, ...]
    repaired: bool
    since_us: int
    ask_at_us: int
    asked: int = 0
    # Whether our lead should have sent it by itself.
    owed: bool = False

    def confirm(self, replica: NodeId, content: Digest) -> None:
        """One more replica that can be asked for the payload."""
        if content == self.content and replica not in self.vouchers:
            self.vouchers = (*self.vouchers, replica)


class Incoming:
    """One stream as it arrives at one subscriber."""

    def __init__(self, stream: Stream, subscription: "Subscription") -> None:
        topic = subscription.topic
        self.stream = stream
        # The replica that spoke of it first.
        self.opened_by: NodeId | None = None
        self.ballot = Ballot(len(topic.members), min(topic.windows.span, HEARSAY_BATCHES_MAX))
        # Payloads that are here before their content is decided, from which replica.
        self.early: dict[Sequence, tuple[bytes, Digest, NodeId]] = {}
        self.decided: dict[Sequence, Decided] = {}
        # Everything below `low` was delivered, given up, or sent before our time; `done` is
        # what was delivered or given up above it.
        self.low: Sequence | None = None
        # Where each replica says that the stream begins for us, and whether we know by now.
        self.starts: dict[NodeId, Sequence] = {}
        self._is_start_known = False
        # Until when it is in doubt whether what comes before this number is for us.
        self._doubt: tuple[Sequence, int] | None = None
        self.done: set[Sequence] = set()
        self.highest: Sequence = 0
        self.moved_at_us = subscription.outbox.now_us
        self._asked_at_us = 0
        # Complete batches that wait for earlier ones, where the topic's order is fifo.
        self.held: dict[Sequence, Delivery] = {}
        # Runs on which all agree so far, by their first number, and where new ones may begin.
        self._runs: dict[Sequence, WholeRun] = {}
        self._unheard_from: Sequence = 0
        # The longest that runs stayed open lately before enough had agreed.
        self._open_us = 0
        # Voices of replicas that are heard last, with the time for each, and their batches.
        self._put_off: deque[tuple[int, NodeId, Sequence, list[Digest]]] = deque()
        self._put_off_batches = 0
        # Histories that are to be followed when what they name has had time to arrive.
        self._histories: deque[tuple[int, History, tuple[NodeId, ...]]] = deque()
        self._named_batches = 0
        self.frontiers: dict[NodeId, Sequence] = {}
        # Batches that some replicas leave out for us, by filter or for lack of room.
        self.omitted: dict[Sequence, int] = {}
        # How far we have told the replicas that we have come.
        self._told: Sequence = 0
        # The highest batch that was done, every `MARK_EVERY_US` from long ago until lately.
        self._marks = deque([0] * (PATIENCE_US // MARK_EVERY_US + 1))
        self._marked_at_us = subscription.outbox.now_us
        # Votes as bits, and the replicas that they stand for.
        self._groups: dict[int, tuple[NodeId, ...]] = {}
        self._span = topic.windows.span
        self._member = member_of(stream.publisher)
        self._index = topic.index
        self._members = topic.members
        self._subscription = subscription
        self._outbox = subscription.outbox
        self._needed = rules_of(topic, stream.lane).copies_to_deliver(topic.quorum)
        # So many replicas may say anything.
        self._liars = topic.f if topic.contract.protection == "byzantine" else 0
        self._fifo = topic.contract.order == "fifo" and stream.lane is Lane.EVENTS
        # Outside a stream's chain, replicas do not know where it is.
        all_accept = topic.contract.protocol != "chain" or stream.lane is Lane.HISTORIES
        self._is_grant_sure = all_accept and topic.quorum.reachable > 2 * self._liars

    @property
    def is_hearsay(self) -> bool:
        """Have so few replicas spoken of this stream that they may have made it up?"""
        return self.low is None and not (self.done or self.decided or self._histories)

    @property
    def is_idle(self) -> bool:
        waiting = self._runs or self._histories or self._put_off
        return not (self.ballot.open or self.decided or self.held or self.early or waiting)

    def resume(self, low: Sequence | None) -> None:
        """Go on with a stream that was forgotten after a long silence."""
        if low is not None:
            self._move_to(low)
            self._is_start_known = True
            self.highest = low - 1

    def drop_payloads(self) -> None:
        """Give back the room of what is here too early."""
        for sequence in list(self.early):
            self._drop_early(sequence)

    # Voices

    def on_forward(self, replica: NodeId, forward: Forward) -> None:
        """Copies from the lead: payload and voice in one."""
        first, payloads = forward.first, forward.payloads
        contents = [digest(payload) for payload in payloads]
        if not self._agrees(replica, first, contents, payloads):
            self._count_copies(replica, first, payloads, contents)

    def _count_copies(
        self, replica: NodeId, first: Sequence, payloads: list[bytes], contents: list[Digest]
    ) -> None:
        early, decided, in_time = self.early, self.decided, 0
        for offset, payload in enumerate(payloads):
            sequence = first + offset
            if self._is_done(sequence):
                continue
            waiting = decided.get(sequence)
            in_time += waiting is None or not waiting.asked
            if waiting is None:
                if sequence not in early:
                    self._keep_early(sequence, payload, contents[offset], replica)
            elif waiting.content == contents[offset]:
                self._supplied(sequence, waiting, payload)
            else:
                what = f"another content of batch {sequence} than the quorum's"
                self._subscription.blame(replica, what, self._member)
        self._subscription.note_in_time(replica, in_time)
        self._count_voices(replica, first, contents)

    def on_vouch(self, replica: NodeId, vouch: Vouch) -> None:
        first, contents = vouch.first, vouch.digests
        if self._subscription.is_distrusted(replica, self._member):
            # What does not fit we ask for again, if we need it.
            if self._put_off_batches + len(contents) <= self._span:
                due_us = self._outbox.now_us + RUN_PATIENCE_US
                self._put_off.append((due_us, replica, first, contents))
                self._put_off_batches += len(contents)
        elif not self._agrees(replica, first, contents, None):
            self._count_voices(replica, first, contents)

    def _hear_put_off(self, now_us: int) -> None:
        while self._put_off and self._put_off[0][0] <= now_us:
            _, replica, first, contents = self._put_off.popleft()
            self._put_off_batches -= len(contents)
            if self.low is None or first + len(contents) > self.low:
                self._count_voices(replica, first, contents)

    def _count_voices(self, replica: NodeId, first: Sequence, contents: list[Digest]) -> None:
        self._note_heard(first + len(contents))
        position, now_us = self._index[replica], self._outbox.now_us
        vote, decided = self.ballot.vote, self.decided
        sequence = first - 1
        for content in contents:
            sequence += 1
            if self._is_done(sequence):
                continue
            if sequence in decided:
                decided[sequence].confirm(replica, content)
                if replica == self._subscription.standing.lead:
                    self._ask_at_once(decided[sequence])
                continue
            equal = vote(sequence, position, content, now_us)
            if equal > 0 and self._is_enough(sequence, equal):
                tally = self.ballot.open[sequence]
                votes = tally.votes_for(content)
                # The others stood up for something else: they lied, or their publisher did.
                for other in self._who(tally.voters & ~votes) if votes != tally.voters else ():
                    what = f"vouched for another content of batch {sequence} than the quorum"
                    self._outbox.report(other, "outvoted", what)
                    self._subscription.distrust(other, self._member)
                self._decide(sequence, content, self._who(votes), repaired=False)
            elif equal == TWO_FACED:
                self._subscription.blame(replica, f"two contents for batch {sequence}")

    # Whole runs

    def _agrees(
        self,
        replica: NodeId,
        first: Sequence,
        contents: list[Digest],
        payloads: list[bytes] | None,
    ) -> bool:
        """Count a run as a whole, if it is new or equals what others said. False if it is not."""
        end = first + len(contents)
        if self.low is not None and end <= self.low:
            return True
        run = self._runs.get(first)
        if run is None:
            run = self._open_run(replica, first, contents)
            if run is None:
                return False
        elif run.contents != contents:
            self._take_apart()
            return False
        run.votes |= 1 << self._index[replica]
        if payloads is not None and run.payloads is None:
            self._attach(run, replica, payloads)
        if run.votes.bit_count() >= self._needed:
            if run.payloads is not None:
                self._close_run(first, run)
                open_us = self._outbox.now_us - run.since_us
                self._open_us = max(open_us, self._open_us - self._open_us // 16)
                self._deliver_run(first, contents, run.payloads, self._who(run.votes))
            else:
                # If our lead sent no payloads with its voice, it will not.
                lead = self._subscription.standing.lead
                if lead is not None and run.votes >> self._index[lead] & 1:
                    self._split(first, run)
        return True

    def _open_run(
        self, replica: NodeId, first: Sequence, contents: list[Digest]
    ) -> WholeRun | None:
        """A run of which nobody has spoken, not even of a part; None if it is not one."""
        position = self._index[replica]
        # A guess is enough: where it begins for sure we may never hear, since of 2f + 1 replicas f
        # may be silent.
        has_begun = self.low is not None
        is_new = has_begun and first >= self._unheard_from and self._is_near(first)
        if not is_new or not self.ballot.reserve(position, len(contents)):
            return None
        self._unheard_from = first + len(contents)
        run = self._runs[first] = WholeRun(position, contents, self._outbox.now_us)
        return run

    def _note_heard(self, end: Sequence) -> None:
        """Somebody spoke of batches before `end`; what is far away does not count."""
        if end > self._unheard_from and self._is_near(end):
            self._unheard_from = end

    def _is_near(self, sequence: Sequence) -> bool:
        return self.low is None or sequence <= self.low + 2 * self._span

    def _attach(self, run: WholeRun, replica: NodeId, payloads: list[bytes]) -> None:
        size = sum(map(len, payloads))
        if self._subscription.early.has_room(self.stream.publisher, size):
            run.payloads, run.copier = payloads, replica
            self._subscription.early.take(self.stream.publisher, size)
            self._subscription.note_in_time(replica, len(payloads))

    def _close_run(self, first: Sequence, run: WholeRun) -> None:
        del self._runs[first]
        self.ballot.release(run.opener, len(run.contents))
        if run.payloads is not None:
            size = sum(map(len, run.payloads))
            self._subscription.early.give_back(self.stream.publisher, size)

    def _take_apart(self, opened_before_us: int | None = None) -> None:
        """Go on batch by batch with runs on which replicas differ, or which stay open."""
        for first, run in list(self._runs.items()):
            if opened_before_us is None or run.since_us <= opened_before_us:
                self._split(first, run)

    def _split(self, first: Sequence, run: WholeRun) -> None:
        if self._runs.get(first) is not run:
            # To split another one made us change our lead, and that split this one.
            return
        self._close_run(first, run)
        if run.payloads is not None and run.copier is not None:
            self._count_copies(run.copier, first, run.payloads, run.contents)
        for replica in self._who(run.votes):
            if replica != run.copier:
                self._count_voices(replica, first, run.contents)

    def _deliver_run(
        self,
        first: Sequence,
        contents: list[Digest],
        payloads: list[bytes],
        vouchers: tuple[NodeId, ...],
    ) -> None:
        stream, end = self.stream, first + len(contents)
        batches = zip(range(first, end), contents, payloads, strict=True)
        if first != self.low or self.done or self.decided or self.ballot.open:
            # Some of it may have been counted batch by batch meanwhile.
            for sequence, content, payload in batches:
                if not self._is_done(sequence):
                    self.decided.pop(sequence, None)
                    self._drop_early(sequence)
                    self._complete(sequence, content, payload, vouchers, False)
            return
        deliveries = [
            Delivery(stream, sequence, content, payload, vouchers, False)
            for sequence, content, payload in batches
        ]
        self.highest = max(self.highest, end - 1)
        self._move_to(end)
        if self._fifo:
            self.held.update((delivery.sequence, delivery) for delivery in deliveries)
            self._release()
        else:
            self._subscription.deliver_all(deliveries)

    # What replicas say beside their voices

    def on_frontier(self, replica: NodeId, frontier: Frontier) -> None:
        """How far this replica has come. What we miss of it, `tick` asks for."""
        self.frontiers[replica] = frontier.highest
        if frontier.highest < self._told:
            # It lags behind us, and may have missed how far we have come.
            self._outbox.send(replica, Taken(*self.stream, self._told))
        start = frontier.lowest
        if replica not in self.starts and self._subscription.is_granted_by(replica):
            # With the answer came the streams that were known: this one began later, and we
            # were only out of reach.
            start = 1
        if start < self.starts.get(replica, SEQUENCE_MAX):
            self.starts[replica] = start
            self.find_start()

    def on_omitted(self, replica: NodeId, omitted: Omitted) -> None:
        """This replica will not send these. Without enough others, they will never be decided."""
        self._take_apart()
        self._note_heard(omitted.first + omitted.count)
        bit = 1 << self._index[replica]
        low = self.low or self.starts.get(replica, 0)
        for sequence in range(omitted.first, omitted.first + omitted.count):
            if self._is_done(sequence) or sequence >= low + 2 * self._span:
                continue
            voices = self.omitted[sequence] = self.omitted.get(sequence, 0) | bit
            if len(self._members) - voices.bit_count() < self._needed:
                self._omit(sequence)
        if len(self.omitted) > 2 * self._span:
            # Whole runs are delivered without a look at what one replica alone left out.
            self.omitted = {s: voices for s, voices in self.omitted.items() if s >= low}

    def on_link(self, link: Link, contents: list[Digest]) -> None:
        """A run from the tail of a chain, whose authenticators have been verified."""
        vouchers = chain.last_of(self._subscription.topic, link.chain)
        is_next = link.first == self.low and not (self.done or self.decided or self.ballot.open)
        if is_next and self._is_start_known:
            self._deliver_run(link.first, contents, link.payloads, vouchers)
            return
        self._unheard_from = max(self._unheard_from, link.first + len(link.payloads))
        for offset, payload in enumerate(link.payloads):
            sequence = link.first + offset
            if self._is_done(sequence):
                continue
            content = contents[offset]
            waiting = self.decided.get(sequence)
            if waiting is None:
                self._drop_early(sequence)
                self._complete(sequence, content, payload, vouchers, False)
            elif waiting.content == content:
                self._supplied(sequence, waiting, payload)

    def on_supply(self, replica: NodeId, supply: Supply) -> None:
        for sequence, payload in zip(supply.sequences, supply.payloads, strict=True):
            waiting = self.decided.get(sequence)
            if waiting is None or self._is_done(sequence):
                continue
            if digest(payload) == waiting.content:
                self._supplied(sequence, waiting, payload)
            else:
                what = f"supplied another content for batch {sequence}"
                self._subscription.blame(replica, what, self._member)

    def on_history(self, history: History, vouchers: tuple[NodeId, ...]) -> None:
        """A history names what was sent. What it names is probably on its way: wait a little."""
        if self.low is None or history.end > self.low:
            due_us = self._outbox.now_us + ASK_AFTER_US
            self._histories.append((due_us, history, vouchers))
            self._named_batches += len(history.digests)
            if self._named_batches > 2 * self._span:
                self._follow_next()

    def _follow_histories(self, now_us: int) -> None:
        """Not beyond our window: to fetch what is far ahead would cost us what is near."""
        while self._histories and self._histories[0][0] <= now_us:
            if self.low is not None and self._histories[0][1].end > self.low + self._span:
                return
            self._follow_next()

    def _follow_next(self) -> None:
        """Whatever is still open among what the next history names is decided now."""
        _, history, vouchers = self._histories.popleft()
        self._named_batches -= len(history.digests)
        if self.low is not None and history.end <= self.low:
            return
        self._take_apart()
        self._unheard_from = max(self._unheard_from, history.end)
        for offset, content in enumerate(history.digests):
            sequence = history.first + offset
            if not self._is_done(sequence) and sequence not in self.decided:
                self._decide(sequence, content, vouchers, repaired=True)

    # Progress

    def tick(self, now_us: int) -> None:
        if now_us - self._marked_at_us >= MARK_EVERY_US:
            self._marked_at_us = now_us
            self._marks.append(self.highest)
            self._marks.popleft()
        self.tell_progress(1)
        run_patience_us = min(max(RUN_PATIENCE_US, 2 * self._open_us), RUN_PATIENCE_US_MAX)
        self._take_apart(now_us - run_patience_us)
        self._hear_put_off(now_us)
        self._follow_histories(now_us)
        self._resolve_doubt(now_us)
        self.ask_for_payloads(now_us)
        self._ask_for_voices(now_us)
        self._give_up(now_us)

    def tell_progress(self, step: int) -> None:
        """Let the replicas send more, once we have taken so many batches."""
        through = 0 if self.low is None else max(self.low - 1, self._marks[-1])
        if self.decided:
            # What we may still have to fetch, the replicas must still retain.
            through = min(through, min(self.decided) - 1)
        if through >= self._told + step:
            self._told = through
            self._outbox.send_all(self._members, Taken(*self.stream, self._told))

    def _is_enough(self, sequence: Sequence, equal: int) -> bool:
        """Do enough replicas vouch for one content?"""
        return equal >= self._needed

    def _decide(
        self, sequence: Sequence, content: Digest, vouchers: tuple[NodeId, ...], *, repaired: bool
    ) -> None:
        here = self._drop_early(sequence)
        if here is not None:
            if here[1] == content:
                self._complete(sequence, content, here[0], vouchers, repaired)
                return
            what = f"batch {sequence} differs from the quorum's"
            self._subscription.blame(here[2], what, self._member)
        now_us, subscription = self._outbox.now_us, self._subscription
        decided = self.decided[sequence] = Decided(content, vouchers, repaired, now_us, now_us)
        if repaired or here is not None:
            subscription.hurry(self)
        elif subscription.standing.lead in vouchers:
            # It sent a digest instead of the payload, as it does until it knows that it leads.
            decided.owed = now_us - subscription.lead_since_us > LEAD_GRACE_US
            subscription.hurry(self)
        else:
            # Its copy is probably on its way.
            decided.owed = True
            decided.ask_at_us += ASK_AFTER_US

    def _ask_at_once(self, decided: Decided) -> None:
        if not decided.asked:
            decided.ask_at_us = self._outbox.now_us
            self._subscription.hurry(self)

    def on_new_lead(self, lead: NodeId) -> None:
        """What the former lead owes us, nobody will send; nor what this one has spoken of."""
        for decided in self.decided.values():
            decided.owed = False
            self._ask_at_once(decided)
        for first, run in list(self._runs.items()):
            if run.payloads is None and run.votes >> self._index[lead] & 1:
                self._split(first, run)

    def _omit(self, sequence: Sequence) -> None:
        """Too few replicas would send it: go on without it."""
        self.decided.pop(sequence, None)
        self.ballot.close(sequence)
        self._drop_early(sequence)
        self._mark_done(sequence)
        self._subscription.left_out += 1
        if self._fifo:
            self._release()

    def _complete(
        self,
        sequence: Sequence,
        content: Digest,
        payload: bytes,
        vouchers: tuple[NodeId, ...],
        repaired: bool,
    ) -> None:
        self.ballot.close(sequence)
        self._mark_done(sequence)
        delivery = Delivery(self.stream, sequence, content, payload, vouchers, repaired)
        if self._fifo:
            self.held[sequence] = delivery
            self._release()
        else:
            self._subscription.deliver(delivery)

    def _supplied(self, sequence: Sequence, waiting: Decided, payload: bytes) -> None:
        del self.decided[sequence]
        self._drop_early(sequence)
        self._complete(sequence, waiting.content, payload, waiting.vouchers, waiting.repaired)

    def find_start(self) -> None:
        """Begin where at least one correct replica says that we do, or before.

        What is published once we have our answer must not lie before that. The correct ones of
        those that granted it had not accepted any of it; the others may have, before they heard
        of us. So from then on those who granted it count: one of them that did not speak of the
        stream knew nothing of it. Of n - f of 3f + 1, f + 1 are correct, so that f that lie change
        nothing. Of fewer they may make us begin too early: see `_doubt_start`.
        """
        if self._is_start_known or len(self.starts) <= self._liars:
            return
        granted_by = self._subscription.standing.granted_by
        claims = [self.starts.get(replica, 1) for replica in granted_by]
        start = self._claim(claims or self.starts.values())
        if self.low is None:
            start = min([start, *self.done])
        self._begin_at(start)
        if granted_by and not self._is_grant_sure:
            self._doubt_start()
        else:
            self._is_start_known = len(claims or self.starts) > 2 * self._liars

    def _claim(self, claims: Iterable[Sequence]) -> Sequence:
        """The highest number such that at least one correct replica claims it, or a higher one."""
        return sorted(claims, reverse=True)[self._liars]

    def _begin_at(self, start: Sequence) -> None:
        start = min([start, *self.decided])
        if self.low is None or start > self.low:
            self._forget_below(start)
            self._move_to(start)
            self._release()

    def _doubt_start(self) -> None:
        """If all that spoke of it, taken together, say that the stream begins later for us, what
        comes before that must show up soon."""
        if self.low is None or len(self.starts) <= 2 * self._liars:
            return
        claim = self._claim(self.starts.values())
        if claim > self.low:
            until_us = self._doubt[1] if self._doubt else self._outbox.now_us + DOUBT_US
            self._doubt = claim, until_us
        else:
            self._is_start_known = True

    def _resolve_doubt(self, now_us: int) -> None:
        if self._doubt is None or self.low is None:
            return
        start, until_us = self._doubt
        if self.low < start and now_us < until_us:
            return
        self._doubt, self._is_start_known = None, True
        self._take_apart()
        for sequence in sorted(s for s in self.ballot.open if s < start):
            why = "some say that it was published before we subscribed"
            self._outbox.deliver(Skipped(self.stream, sequence, 1, why))
        self._begin_at(start)

    def _mark_done(self, sequence: Sequence) -> None:
        self.done.add(sequence)
        self.omitted.pop(sequence, None)
        self.highest = max(self.highest, sequence)
        low = self.low
        if low is None and len(self.done) > self._span:
            # Nobody says where the stream begins. We cannot wait for ever.
            low = min(self.done)
        if low is None:
            return
        if sequence >= low + self._span:
            # It lies beyond the window: we were left far behind.
            target = sequence - self._span // 2
            if self._is_start_known:
                self._skip(low, target, "it fell out of the window")
            self._forget_below(target)
            low = target
        self._move_to(low)

    def _move_to(self, low: Sequence) -> None:
        low = max(low, self.low or 0)
        while low in self.done:
            self.done.remove(low)
            low += 1
        if low != self.low:
            self.low, self.moved_at_us = low, self._outbox.now_us
            self.ballot.span = self._span

    def _skip(self, low: Sequence, target: Sequence, why: str) -> None:
        missing = target - low - sum(low <= s < target for s in self.done)
        if missing:
            self._outbox.deliver(Skipped(self.stream, low, missing, why))

    def _forget_below(self, target: Sequence) -> None:
        self._take_apart()
        for sequence in [s for s in self.ballot.open if s < target]:
            self.ballot.close(sequence)
        for sequence in [s for s in self.decided if s < target]:
            del self.decided[sequence]
        for sequence in [s for s in self.early if s < target]:
            self._drop_early(sequence)
        self.done = {s for s in self.done if s >= target}
        self.omitted = {s: voices for s, voices in self.omitted.items() if s >= target}

    def _release(self) -> None:
        """Hand on what no longer waits for anything earlier."""
        low = self.low or 0
        ready = sorted(s for s in self.held if s < low)
        for sequence in ready:
            self._subscription.deliver(self.held.pop(sequence))

    # Asking

    def ask_for_payloads(self, now_us: int) -> None:
        all_due = ((s, d) for s, d in self.decided.items() if d.ask_at_us <= now_us)
        due = list(islice(all_due, ASK_BATCHES_MAX))
        late = sum(d.owed and not d.asked for _, d in due)
        per_replica: dict[NodeId, list[Sequence]] = {}
        for sequence, decided in due:
            # Not always the same one first: it takes several that are asked for repairs to
            # convince a source that its chain is bad.
            replica = decided.vouchers[(sequence + decided.asked) % len(decided.vouchers)]
            decided.asked += 1
            decided.ask_at_us = now_us + ASK_AFTER_US
            per_replica.setdefault(replica, []).append(sequence)
        for replica, sequences in per_replica.items():
            self._outbox.send(replica, Fetch(*self.stream, payload=True, sequences=sequences))
        self._subscription.note_late(late)

    def _ask_for_voices(self, now_us: int) -> None:
        """Where a quorum stays out, or a number was left out, ask those who have not spoken."""
        per_replica: dict[NodeId, list[Sequence]] = {}
        late = [
            (s, t) for s, t in self.ballot.open.items() if t.asked_at_us + ASK_AFTER_US <= now_us
        ]
        for sequence, tally in late[:ASK_BATCHES_MAX]:
            tally.asked_at_us = now_us
            for replica, position in self._index.items():
                if not tally.voters >> position & 1:
                    per_replica.setdefault(replica, []).append(sequence)
        for sequence in self._unheard_of(now_us):
            for replica in self._members:
                per_replica.setdefault(replica, []).append(sequence)
        for replica, sequences in per_replica.items():
            self._outbox.send(replica, Fetch(*self.stream, payload=False, sequences=sequences))

    def _unheard_of(self, now_us: int) -> list[Sequence]:
        """Numbers between what is done and what replicas claim of which nobody has spoken."""
        quiet_since_us = max(self.moved_at_us, self._asked_at_us)
        if self.low is None or quiet_since_us + ASK_AFTER_US > now_us:
            return []
        # The highest frontier counts that at least one correct replica claims.
        claims = [0, *sorted(self.frontiers.values())]
        end = max(self.highest, claims[max(len(claims) - 1 - self._liars, 0)])
        if end < self.low:
            return []
        self._asked_at_us = now_us
        omitted = {s for s, voices in self.omitted.items() if voices.bit_count() > self._liars}
        known = self.done | self.decided.keys() | self.ballot.open.keys() | omitted
        for first, run in self._runs.items():
            known.update(range(first, first + len(run.contents)))
        # What is in doubt we ask for only if somebody speaks of it.
        low = max(self.low, self._doubt[0]) if self._doubt else self.low
        stretch = range(low, min(end + 1, low + ASK_BATCHES_MAX))
        return [sequence for sequence in stretch if sequence not in known]

    def _give_up(self, now_us: int) -> None:
        for sequence, tally in list(self.ballot.open.items()):
            if now_us - tally.since_us < PATIENCE_US:
                break
            self.ballot.close(sequence)
            self._drop_early(sequence)
        for sequence, decided in list(self.decided.items()):
            if now_us - decided.since_us < PATIENCE_US:
                break
            del self.decided[sequence]
            self._outbox.deliver(Skipped(self.stream, sequence, 1, "nobody supplied its payload"))
            self._mark_done(sequence)
        if self.low is None and self.done and self._marks[0]:
            # Nobody says where the stream begins. We cannot wait for ever.
            self._move_to(min(self.done))
            self._release()
        target = min([self._marks[0] + 1, *self.decided])
        if self.low is not None and target > self.low:
            # Later ones were done long ago: nobody will ever bring these.
            self._skip(self.low, target, "it stayed out while later ones arrived")
            self._forget_below(target)
            self._move_to(target)
            self._release()

    # Keeping

    def _is_done(self, sequence: Sequence) -> bool:
        return sequence in self.done or (self.low is not None and sequence < self.low)

    def _keep_early(
        self, sequence: Sequence, payload: bytes, content: Digest, replica: NodeId
    ) -> None:
        subscription = self._subscription
        if len(self.early) >= self._span:
            self._drop_early(next(iter(self.early)))
        if subscription.early.has_room(self.stream.publisher, len(payload)):
            self.early[sequence] = (payload, content, replica)
            subscription.early.take(self.stream.publisher, len(payload))

    def _drop_early(self, sequence: Sequence) -> tuple[bytes, Digest, NodeId] | None:
        here = self.early.pop(sequence, None)
        if here is not None:
            self._subscription.early.give_back(self.stream.publisher, len(here[0]))
        return here

    def _who(self, votes: int) -> tuple[NodeId, ...]:
        who = self._groups.get(votes)
        if who is None:
            members = enumerate(self._members)
            who = self._groups[votes] = tuple(r for at, r in members if votes >> at & 1)
        return who
