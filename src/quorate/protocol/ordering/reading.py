"""One partition as one reader sees it: batches in the order that f + 1 replicas agree on.

Source: DESIGN section 3; FIT-Broker 2013, section 4.4.2 (delivery of ordered events).

Payloads come from one replica, the lead. The reader hashes them into the partition's chain
itself. The other replicas only say what the chain is at some offset; since a chain covers all
that came before it, f + 1 replicas agreeing on one offset settle everything below it. What a
lead sends is its word for it, and no more than that: whoever leads later has to say so itself.

Offsets are those of events. Reading may begin inside a batch: replicas send all of it, and the
events before the first one that is wanted are left out by whoever hands them out (`Entry.skip`). A
reader that validates gets of basic batches no more than their descriptors, which the chain covers
as well; it passes over them, and over what their producers did not sign.

A lead that is silent or slow while others are further, or sends what cannot be, is replaced. What
came from it before stays, and others confirm it before anything is put behind it; so a reader gets
on however little a lead sends before it fails. If f + 1 contradict what is here, it is read again.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import accumulate, count, repeat
from operator import attrgetter

import msgspec

from quorate.core.errors import RemoteProtocolError
from quorate.core.header import is_signed, words_of
from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.ordering import (
    END_US,
    Absent,
    Allow,
    AskReceipts,
    Chained,
    Entries,
    Follow,
    Line,
    Locate,
    Located,
    Partition,
    Wants,
)
from quorate.crypto.digests import descriptor
from quorate.protocol.machine import Entry, Passed, Trimmed
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.ordering.value import chained, leaves_at
from quorate.protocol.outbox import Outbox
from quorate.protocol.topic import Topic

# How far ahead of what it has read a reader lets replicas send: so much, as batches are now, and
# no more than so many of them. Where it does not know how large they are, it begins with few
# events.
CREDIT_BYTES = 16 * 1024 * 1024
CREDIT_BATCHES = 4096
FIRST_CREDIT_EVENTS = 64
# After a seek it has few as well, and with each delivery so many times as many.
CREDIT_GROWTH = 4
# What a lead sends beyond this is dropped until others have confirmed what is here. One batch is
# always taken.
HELD_BYTES_MAX = 2 * CREDIT_BYTES
# A lead that is so late with what others have is replaced.
LATE_AFTER_US = 400_000
# A replica that lags behind knows an earlier end: only after so long, a commit is beyond the end.
BEYOND_AFTER_US = 3_000_000
# So is one that does not bring in this time so much of our credit, if others have it: a batch now
# and then is not enough. Whoever reads over 1 Mbit/s can have that.
SLOW_AFTER_US = 20_000_000
SLOW_SHARE = 8
# What a replica may say of the chain before its lead has come so far.
WORDS_MAX = 256
LATE_AFTER_US_MAX = 3_000_000
COMPLAIN_EVERY_US = 1_000_000
# A replica that restarted has forgotten who reads: without a broken link, only asking tells.
ASK_AGAIN_US = 3_000_000


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A batch that the lead sent. There is no payload where only the descriptor was asked for."""

    offset: int
    end: int
    publisher: NodeId
    sequence: Sequence
    time_us: int
    size_bytes: int
    payload: bytes | None


class Search:
    """The offset at which a reader begins, if it names a time, the beginning or the end.

    Replicas differ by what they have decided so far and still keep. Of the answers of n - f, the
    (f + 1)th from above is the end, no later than what a correct replica says. Otherwise it is the
    lowest: one of n - f has what f + 1 correct ones have, though others started over. Who begins
    too early because one lied skips what is gone, and what is older than it asked for (`others`).

    With a `committed` offset, the search is for that, or for the end if the offset is beyond it.
    """

    def __init__(
        self,
        topic: Topic,
        partition: Partition,
        time_us: int,
        outbox: Outbox,
        number: int = 0,
        committed: int | None = None,
    ) -> None:
        self.topic, self.partition = topic, partition
        self.time_us = time_us
        self.committed = committed
        self._since_us = outbox.now_us
        # Replicas may still answer what was asked before: that is not what we want to know now.
        self._number = number
        self._outbox = outbox
        self._offsets: dict[NodeId, int] = {}
        self._asked_us = outbox.now_us

    def ask(self, replicas: "Iterable[NodeId]") -> None:
        silent = [r for r in replicas if r in self.topic.index and r not in self._offsets]
        self._outbox.send_all(silent, Locate(*self.partition, self._number, self.time_us))

    def tick(self) -> None:
        if self._outbox.now_us - self._asked_us >= LATE_AFTER_US:
            self._asked_us = self._outbox.now_us
            if self.committed is not None and len(self._offsets) >= self.topic.quorum.reachable:
                self._offsets.clear()
            self.ask(self.topic.members)

    def on_located(self, replica: NodeId, located: Located) -> int | None:
        """The offset, once enough replicas have answered."""
        if replica in self.topic.index and located.number == self._number:
            self._offsets[replica] = located.offset
        if len(self._offsets) < self.topic.quorum.reachable:
            return None
        offsets = sorted(self._offsets.values())
        if self.committed is not None:
            end, waited_us = offsets[-1 - self.topic.f], self._outbox.now_us - self._since_us
            is_beyond = end < self.committed
            return None if is_beyond and waited_us < BEYOND_AFTER_US else min(end, self.committed)
        return offsets[-1 - self.topic.f] if self.time_us == END_US else offsets[0]

    @property
    def others(self) -> list[int]:
        """Where the reader might have to begin instead, no later than a correct replica says."""
        byzantine = self.topic.contract.protection == "byzantine"
        credible = len(self._offsets) - self.topic.f if byzantine else len(self._offsets)
        return sorted(self._offsets.values())[1:credible]


class Reading:
    """The reader's end of one partition."""

    def __init__(
        self,
        topic: Topic,
        partition: Partition,
        offset: int,
        outbox: Outbox,
        numbers: "Iterator[int] | None" = None,
        validation: Validation | None = None,
    ) -> None:
        """A validated topic is read with a `validation`, where it is to be validated."""
        # What looks at signatures, if only signed batches are wanted.
        self.validation = validation
        self.topic, self.partition = topic, partition
        # Of what we ask, so that replicas know what holds.
        self._numbers = count(1) if numbers is None else numbers
        # The next event to deliver; it may be inside a batch.
        self.position = offset
        self.lead: NodeId | None = None
        self._outbox = outbox
        self._order = stores_of(topic.members, partition)
        # What the lead sent and nobody confirmed yet, with the chain after each.
        self._unsettled: list[Batch] = []
        self._chains: list[Digest] = []
        self._start: Digest | None = None
        # Who sent what is not settled.
        self._supplied_by: set[NodeId] = set()
        # Who does not have what we want next, and before which offset it has nothing.
        self._lacking: dict[NodeId, int] = {}
        # Where our lead has nothing more for us, and up to where.
        self._absent: int | None = None
        self._absent_until = 0
        # What the lead sent and we cannot place yet, by offset.
        self._early: dict[int, Entries] = {}
        # How much we hold of the lead's, in either way.
        self._held_bytes = 0
        # What replicas said of the chain further on than we are, and up to where they agree with
        # what we have. Whoever sent us that agrees with it.
        self._words: dict[NodeId, deque[Chained]] = {}
        self._agreed: dict[NodeId, int] = {}
        # Whose chain is not the one that we have. A chain covers all that came
        # before it, so it does not matter at which offset: of f + 1 one is correct.
        self.contradicted_by: set[NodeId] = set()
        self._ends: dict[NodeId, int] = {}
        self._starts: dict[NodeId, int] = {}
        self._takens: dict[NodeId, int] = {}
        self._blames: Counter[NodeId] = Counter()
        self._credit, self._credit_max = FIRST_CREDIT_EVENTS, CREDIT_BYTES
        self._limit = offset + self._credit
        self._moved_us = self._late_since_us = self._asked_us = outbox.now_us
        self._patience_us = LATE_AFTER_US
        # What is older is not delivered, up to an offset, and where else what is wanted may begin.
        self._wanted_us, self._wanted_from, self._beginnings = 0, offset, list[int]()
        # Up to where the lead is to bring us, and since when.
        self._due, self._due_since_us = offset, outbox.now_us
        byzantine = topic.contract.protection == "byzantine"
        # Beside the lead f replicas are asked, and all of them when that does not do. Where
        # replicas lie, so many have to agree.
        self._others_needed = topic.f if byzantine else 0
        self._complain_from_us = outbox.now_us
        self._is_wide = False

    @property
    def received(self) -> int:
        """The offset after the last batch that the lead sent."""
        return self._unsettled[-1].end if self._unsettled else self.position

    @property
    def _base(self) -> int:
        """Where what is here begins."""
        return self._unsettled[0].offset if self._unsettled else self.position

    @property
    def end(self) -> int:
        """The end of the partition, as far as enough replicas say."""
        ends = sorted(self._ends.values(), reverse=True)
        return ends[self._others_needed] if len(ends) > self._others_needed else self.position

    def begin(self, connected: "set[NodeId]") -> None:
        """Ask one replica for payloads, and a few how the chain goes on."""
        self._choose_lead(connected)
        self._ask_all(connected)

    def want_from(self, time_us: int, beginnings: list[int]) -> None:
        """Deliver nothing that is older, up to the last of these offsets at which it may begin.

        Whoever said that it begins here may have lied.
        """
        self._wanted_us, self._beginnings = time_us, beginnings
        self._wanted_from = max(beginnings, default=self.position)

    def connected(self, replica: NodeId, connected: "set[NodeId]") -> None:
        if self.lead is None:
            self._choose_lead(connected)
        if replica in self._partners(connected):
            self._ask(replica)

    def disconnected(self, replica: NodeId, connected: "set[NodeId]") -> None:
        self._words.pop(replica, None)
        self._ends.pop(replica, None)
        if replica == self.lead:
            self._change_lead(connected)
        else:
            self._ask_all(connected)

    def seek(self, offset: int, connected: "set[NodeId]") -> None:
        """Read on from another offset, whatever was wanted before."""
        self._wanted_from = offset
        self._beginnings.clear()
        # Whoever seeks may want no more than one event.
        self._credit = self._credit_max = FIRST_CREDIT_EVENTS
        self._go_on_at(offset, connected)

    def _go_on_at(self, offset: int, connected: "set[NodeId]") -> None:
        self.position = self._limit = self._due = offset
        self._lacking.clear()
        self._forget_unsettled()
        self.begin(connected)

    # Messages

    def on_entries(self, sender: NodeId, entries: Entries, connected: "set[NodeId]") -> None:
        if sender != self.lead:
            return
        try:
            counts = [words_of(payload)[1] for payload in entries.payloads]
        except RemoteProtocolError:
            self._blame("sent a batch whose header cannot be true", connected)
            return
        offsets = list(accumulate(counts, initial=entries.offset))
        if (
            not self._is_next_or_later(offsets)
            or entries.offset in self._early
            or not self._has_room_for(entries, connected)
        ):
            return
        if entries.offset > self.received:
            # It came before what precedes it.
            self._early[entries.offset] = entries
            self._held_bytes += _size(entries)
            return
        following: Entries | None = entries
        while following is not None:
            if self._start is None:
                self._start = following.before
            before = self._chains[-1] if self._chains else self._start
            if before != following.before:
                self._does_not_follow(sender, connected)
                return
            if not self._take(following, before, offsets):
                self._blame("sent batches that are not what it says they are", connected)
                return
            self._supplied_by.add(sender)
            self._agreed[sender] = self.received
            following = self._pop_early(self.received)
            offsets = [] if following is None else following.offsets
        self._drop_early(through=self.received)
        self._lacking.clear()
        self._settle(connected)
        self._pass_on(connected)

    def _is_next_or_later(self, offsets: list[int]) -> bool:
        """Whether batches at these offsets were asked for, and we have nothing of them yet."""
        offset, last = offsets[0], offsets[-2]
        if self._start is None and offset < self.position:
            # It begins with the batch that has the event which we want first.
            is_here = self.position < offsets[1]
            return is_here and last < max(self._limit, self.position + 1)
        return self.received <= offset and last < self._limit

    def on_chained(self, sender: NodeId, chain: Chained, connected: "set[NodeId]") -> None:
        if sender not in self.topic.index:
            return
        self._ends[sender] = chain.end
        self._starts[sender], self._takens[sender] = chain.start, chain.taken
        if self._skip_what_is_gone(connected):
            return
        self._hear(self._words.setdefault(sender, deque()), chain)
        self._settle(connected)

    @staticmethod
    def _hear(words: deque[Chained], word: Chained) -> None:
        """Keep a word in the order of offsets.

        One from further on may be older: what we asked before a seek is answered as well.
        """
        at = bisect_left(words, word.offset, key=_offset_of)
        if at < len(words) and words[at].offset == word.offset:
            return
        words.insert(at, word)
        if len(words) > WORDS_MAX:
            # Those that come later cover it.
            words.popleft()

    def _skip_what_is_gone(self, connected: "set[NodeId]", *, is_late: bool = False) -> bool:
        """Go on behind what retention took, once all say so whose word can be waited for.

        A replica that started over at a snapshot lacks what others still have. So its word, with
        those of f that lie, does not do: n - f replicas must lack it. Where nobody lies, whoever
        is there and has it is enough to read it; one that is there and silent is waited for until
        it is late.
        """
        starts = sorted(self._starts.values(), reverse=True)
        needed = len(self.topic.members) - self.topic.f
        kept = starts[needed - 1] if len(starts) >= needed else 0
        lacking = {} if self._unsettled else self._lacking
        if self._others_needed:
            if kept <= self.position:
                kept = self._kept_by_stores(lacking, connected, is_late=is_late)
        elif kept > self.position:
            there = [replica for replica in self._order if replica in connected]
            heard = [r for r in there if r in self._starts or r in lacking]
            lowest = min(
                (max(self._starts.get(r, 0), lacking.get(r, 0)) for r in heard), default=kept
            )
            kept = lowest if is_late or len(heard) == len(there) else 0
        if kept <= self.position:
            if len(starts) > self._others_needed and starts[self._others_needed] > self.position:
                self._hear_everybody(connected)
            return False
        self._outbox.deliver(Trimmed(self.partition, self.position, kept - self.position))
        self._go_on_at(kept, connected)
        return True

    def _kept_by_stores(
        self, lacking: dict[NodeId, int], connected: "set[NodeId]", *, is_late: bool
    ) -> int:
        """Where to go on if n - f lack what is next: some had it, and others never did.

        Large batches are with few replicas, and retention by size takes them from the others
        later. That retention took it is said by so many that one of them is correct (one that
        started over does not know that); and whoever is there and may have it is asked first. Of
        what comes after it nothing is left out that f + 1 may have: those who never had a large
        batch still have small ones behind it.
        """
        takens = sorted(self._takens.values(), reverse=True)
        until = {r: start for r, start in self._starts.items() if start > self.position}
        for replica, end in lacking.items():
            until[replica] = max(end, until.get(replica, 0))
        is_asked = is_late or until.keys() >= connected & self.topic.index.keys()
        silent, f = len(self.topic.members) - len(until), self.topic.f
        if silent > f or len(takens) <= f or not is_asked:
            return 0
        return min(takens[f], sorted(until.values())[f - silent])

    def stop(self) -> None:
        """Nobody need send us anything any more."""
        for replica in self.topic.members:
            number = next(self._numbers)
            follow = Follow(*self.partition, number, self.position, 0, Wants.CHAIN)
            self._outbox.send(replica, follow)

    def on_absent(self, sender: NodeId, absent: Absent, connected: "set[NodeId]") -> None:
        if sender == self.lead:
            self._absent, self._absent_until = absent.offset, max(absent.offset + 1, absent.end)
            self._pass_on(connected)

    def tick(self, connected: "set[NodeId]") -> None:
        """What is late is asked of everybody; a lead that is late then is replaced."""
        now_us = self._outbox.now_us
        if now_us - max(self._moved_us, self._asked_us) >= ASK_AGAIN_US:
            self._ask_all(connected)
        if self.position >= self._due:
            due = self.position + max(1, self._credit // SLOW_SHARE)
            self._due, self._due_since_us = min(due, self.end, self._limit), now_us
        elif now_us - self._due_since_us >= SLOW_AFTER_US:
            self._blame("is slow", connected)
            return
        ahead = max(self._ends.values(), default=0)
        if not self._unsettled and self.position >= min(ahead, self._limit):
            self._late_since_us = now_us
        elif now_us - max(self._late_since_us, self._moved_us) >= self._patience_us:
            self._patience_us = min(2 * self._patience_us, LATE_AFTER_US_MAX)
            self._late_since_us = now_us
            was_wide, self._is_wide = self._is_wide, True
            if was_wide and self._skip_what_is_gone(connected, is_late=True):
                return
            if was_wide and self._reach_for_the_chain(connected):
                return
            if was_wide and self._ends_inside_a_batch():
                # More than the lead that is late, or both would take turns for ever.
                self._blames.update([*self._supplied_by, *self._supplied_by])
                self._forget_unsettled()
                self._blame("is late", connected)
                return
            self._lacking.clear()
            if was_wide and self.end > self.position:
                self._blame("is late", connected)
            else:
                self._ask_all(connected)

    def wait(self) -> None:
        """In place of a tick, while nothing is taken in: nobody is late with it."""
        self._moved_us = self._late_since_us = self._due_since_us = self._outbox.now_us

    def was_away(self, for_us: int) -> None:
        """So long we heard nobody, whatever was sent: that counts against no lead."""
        now_us = self._outbox.now_us
        self._moved_us = min(now_us, self._moved_us + for_us)
        self._late_since_us = min(now_us, self._late_since_us + for_us)
        self._due_since_us = min(now_us, self._due_since_us + for_us)

    def _reach_for_the_chain(self, connected: "set[NodeId]") -> bool:
        """Those who could confirm what we have may know the chain from later on only.

        Retention took what came before from them. So we read on up to there, as far as we can hold
        that: one that lies would otherwise keep us here, if only one correct replica has it still.
        """
        starts = sorted(self._starts.values(), reverse=True)
        known_from = starts[self._others_needed] if len(starts) > self._others_needed else 0
        limit = min(known_from, self.position + max(self._credit, CREDIT_BATCHES))
        if not self._unsettled or limit <= self._limit:
            return False
        self._limit = limit
        self._ask_all(connected)
        return True

    def _ends_inside_a_batch(self) -> bool:
        """Whether others may have no word on the chain where it is to be confirmed.

        Who lies about how many events a batch has ends it where nobody else does. So many are
        further that one of them is correct, and do not confirm it; it is read again.
        """
        others = self._ends.keys() - self._supplied_by
        further = [replica for replica in others if self._ends[replica] > self.received]
        is_of_others = bool(self._unsettled) and self.lead not in self._supplied_by
        return is_of_others and len(further) > self._others_needed

    # Settling

    def _has_room_for(self, entries: Entries, connected: "set[NodeId]") -> bool:
        """If not, the lead is to wait, and others say how the chain goes on where we are."""
        room_bytes, is_next = HELD_BYTES_MAX - _size(entries), entries.offset <= self.received
        if self._held_bytes > room_bytes and is_next:
            self._drop_early(through=self._limit)
        if self._held_bytes == 0 or self._held_bytes <= room_bytes:
            return True
        if is_next:
            self._limit = self.received
            self._ask_all(connected)
        return False

    def _drop_early(self, through: int) -> None:
        for offset in [offset for offset in self._early if offset < through]:
            self._pop_early(offset)

    def _pop_early(self, offset: int) -> Entries | None:
        entries = self._early.pop(offset, None)
        if entries is not None:
            self._held_bytes -= _size(entries)
        return entries

    def _take(self, entries: Entries, before: Digest, offsets: list[int]) -> bool:
        """False if these are not the batches that the lead says they are."""
        payloads: list[bytes | None] = [*entries.payloads]
        if entries.bare:
            bare = frozenset(entries.bare)
            if self.validation is None or max(bare) >= len(payloads):
                return False
            payloads = [None if at in bare else each for at, each in enumerate(payloads)]
            if any(is_signed(entries.payloads[at]) for at in bare):
                return False
        descriptors = [
            given if payload is None else descriptor(payload)
            for payload, given in zip(payloads, entries.payloads, strict=True)
        ]
        line = Line(entries.publisher, *self.partition)
        leaves = leaves_at(line, entries.first, offsets, entries.time_us, descriptors)
        chains = chained(before, leaves)
        if chains[-1] != entries.after:
            return False
        self._chains += chains
        self._held_bytes += _size(entries)
        self._unsettled += map(
            Batch, offsets, offsets[1:], repeat(entries.publisher), count(entries.first),
            repeat(entries.time_us), map(len, entries.payloads), payloads,
        )  # fmt: skip
        return True

    def _settle(self, connected: "set[NodeId]") -> None:
        """Compare what replicas say of the chain with what we have."""
        for replica, words in self._words.items():
            while words and words[0].offset <= self.received:
                self._compare(replica, words.popleft())
        if len(self.contradicted_by) > self._others_needed:
            self._read_again(connected)
            return
        if self.contradicted_by:
            self._hear_everybody(connected)
        agreed = sorted(self._agreed.values(), reverse=True)
        if len(agreed) > self._others_needed:
            position = self.position
            self._deliver(agreed[self._others_needed])
            if self._beginnings and self.position > position:
                self._begin_later(connected)

    def _compare(self, replica: NodeId, word: Chained) -> None:
        if self._start is None or word.offset < self._base:
            return
        if self._chain_before(word.offset) == word.chain:
            self._agreed[replica] = max(word.offset, self._agreed.get(replica, 0))
        else:
            # Where no batch of ours ends, one of its ends.
            self.contradicted_by.add(replica)

    def _deliver(self, through: int) -> None:
        batches = bisect_right(self._unsettled, through, key=_end_of)
        if not batches:
            return
        settled, voices = self._unsettled[:batches], self._vouchers(through)
        size_bytes = sum(batch.size_bytes for batch in settled)
        early = 0
        if self.position < self._wanted_from:
            looked_at = bisect_left(settled, self._wanted_from, key=_offset_of)
            early = bisect_left(settled, self._wanted_us, hi=looked_at, key=_time_of)
            if early < batches:
                self._beginnings.clear()
        position, self.position = self.position, settled[-1].end
        self._start = self._chains[batches - 1]
        del self._unsettled[:batches], self._chains[:batches]
        if not self._unsettled:
            self._supplied_by.clear()
        self._held_bytes -= size_bytes
        self._moved_us, self._patience_us = self._outbox.now_us, LATE_AFTER_US
        events = settled[-1].end - settled[0].offset
        by_bytes = CREDIT_BYTES * events // size_bytes
        by_batches = CREDIT_BATCHES * events // batches
        self._credit_max = min(CREDIT_BYTES, CREDIT_GROWTH * self._credit_max)
        self._credit = max(1, min(by_bytes, by_batches, self._credit_max))
        is_basic = self.validation is None
        entries = [
            Entry(
                self.partition, batch.offset, batch.end, batch.publisher, batch.sequence,
                batch.time_us, batch.payload, voices,
                position - batch.offset if batch.offset < position else 0,
            )
            for batch in settled[early:]
            if batch.payload is not None and (is_basic or self._is_signed(batch, batch.payload))
        ]  # fmt: skip
        self._outbox.deliver_all(entries)
        if not entries or entries[-1].offset < settled[-1].offset:
            self._outbox.deliver(Passed(self.partition, self.position))
        self.allow_more()

    def allow_more(self) -> None:
        if 2 * (self._limit - self.position) < self._credit:
            # Replicas may send further ahead, in steps.
            self._limit = self.position + self._credit
            self._outbox.send_all(self.topic.members, Allow(*self.partition, self._limit))

    def _is_signed(self, batch: Batch, payload: bytes) -> bool:
        """Whether its producer signed it. More than f replicas lie if it says so and is not."""
        assert self.validation is not None
        line = Line(batch.publisher, *self.partition)
        try:
            self.validation.check_ordered(line, batch.sequence, payload)
        except RemoteProtocolError as error:
            self._outbox.report(batch.publisher, "bad-sid", str(error))
            return False
        return True

    def _begin_later(self, connected: "set[NodeId]") -> None:
        """All that we have read is older than what is wanted: take the next word on that."""
        later = [offset for offset in self._beginnings if offset > self.received]
        self._beginnings = later[1:]
        if later:
            self._go_on_at(later[0], connected)

    def _vouchers(self, through: int) -> tuple[NodeId, ...]:
        """Those who sent us so much, or say that it is so."""
        return tuple([replica for replica, at in self._agreed.items() if at >= through])

    def _chain_before(self, offset: int) -> Digest | None:
        """The chain before this offset, if a batch that is here begins or ends there."""
        if offset == self._base:
            return self._start
        at = bisect_left(self._unsettled, offset, key=_end_of)
        is_here = at < len(self._unsettled) and self._unsettled[at].end == offset
        return self._chains[at] if is_here else None

    # Who is asked

    def _partners(self, connected: "set[NodeId]") -> list[NodeId]:
        """The lead, and those who say how the chain goes on."""
        others = [r for r in self._order if r in connected and r != self.lead]
        others.sort(key=lambda replica: self._blames[replica])
        lead = [] if self.lead is None else [self.lead]
        return lead + (others if self._is_wide else others[: self.topic.f])

    def _hear_everybody(self, connected: "set[NodeId]") -> None:
        """From now on all replicas are asked, not only as many as are enough if all is well."""
        if not self._is_wide:
            self._is_wide = True
            self._ask_all(connected)

    def _ask_all(self, connected: "set[NodeId]") -> None:
        self._asked_us = self._outbox.now_us
        for replica in self._partners(connected):
            self._ask(replica)

    def _ask(self, replica: NodeId) -> None:
        self._words.pop(replica, None)
        offset = self.received if replica == self.lead else self.position
        wants = Wants.CHAIN
        if replica == self.lead:
            wants = Wants.ALL if self.validation is None else Wants.SIGNED
        follow = Follow(*self.partition, next(self._numbers), offset, self._limit, wants)
        self._outbox.send(replica, follow)

    def _pass_on(self, connected: "set[NodeId]") -> None:
        """Large batches are not everywhere: go on from here with the next replica."""
        if self.lead is None or self._absent != self.received:
            return
        former = self.lead
        self._absent = None
        self._lacking[former] = self._absent_until
        self._complain(former, connected)
        if self._skip_what_is_gone(connected):
            return
        there = [replica for replica in self._order if replica in connected]
        others = [replica for replica in there if replica not in self._lacking]
        if not others:
            # Nobody who is there has it. All are asked again when it has been late for a while.
            return
        # What came too early from one lead proves nothing about the next.
        self._drop_early(through=self._limit)
        self.lead = min(others, key=lambda replica: self._blames[replica])
        for replica in dict.fromkeys((*self._partners(connected), former)):
            self._ask(replica)

    def _complain(self, store: NodeId, connected: "set[NodeId]") -> None:
        """Tell the others that this replica does not give what is next: it may have signed for it.

        They see to it (`challenges.py`), and we read on. Of a validated topic only, and now and
        then: where a replica was never given large batches, it is right to say that it has none.
        """
        now_us = self._outbox.now_us
        if not self.topic.contract.validated or now_us < self._complain_from_us:
            return
        self._complain_from_us = now_us + COMPLAIN_EVERY_US
        others = [replica for replica in self._order if replica in connected and replica != store]
        self._outbox.send_all(others, AskReceipts(*self.partition, self.received, store))

    def _does_not_follow(self, sender: NodeId, connected: "set[NodeId]") -> None:
        """What this lead sends does not follow on what we have, from it or from the one before."""
        if self._supplied_by <= {sender}:
            self._blame("sent batches that do not follow on each other", connected)
            return
        # Either may be wrong. Others say which.
        self._have_confirmed()
        self._hear_everybody(connected)
        self._ask_all(connected)

    def _read_again(self, connected: "set[NodeId]") -> None:
        """One of those who contradict what we have is correct."""
        for replica in sorted(self._supplied_by):
            self._outbox.report(replica, "bad-lead", "sent other batches than the others have")
        self._blames.update(self._supplied_by)
        is_ours = self.lead in self._supplied_by
        self._forget_unsettled()
        if is_ours:
            self._change_lead(connected)
        else:
            self._ask_all(connected)

    def _blame(self, why: str, connected: "set[NodeId]") -> None:
        if self.lead is not None:
            self._outbox.report(self.lead, "bad-lead", why)
            self._blames[self.lead] += 1
        self._change_lead(connected)

    def _change_lead(self, connected: "set[NodeId]") -> None:
        former = self.lead
        self._have_confirmed()
        self._choose_lead(connected, avoid=former)
        self._ask_all(connected)
        if former is not None and former in connected and former not in self._partners(connected):
            # It goes on with digests, or it would go on to send payloads.
            self._ask(former)

    def _choose_lead(self, connected: "set[NodeId]", avoid: NodeId | None = None) -> None:
        there = [replica for replica in self._order if replica in connected]
        candidates = [replica for replica in there if replica != avoid] or there
        self.lead = min(candidates, key=lambda replica: self._blames[replica], default=None)
        self._moved_us = self._due_since_us = self._outbox.now_us

    def _have_confirmed(self) -> None:
        """Nothing is put behind what we have before others have said what they think of it."""
        if not self._unsettled:
            self._forget_unsettled()
            return
        self._drop_early(through=self._limit)
        self._absent = None
        self._limit = self.received

    def _forget_unsettled(self) -> None:
        self._unsettled.clear()
        self._early.clear()
        self._held_bytes = 0
        self._limit = max(self._limit, self.position + self._credit)
        self._supplied_by.clear()
        self._agreed.clear()
        self.contradicted_by.clear()
        self._absent = None
        self._chains.clear()
        self._start = None


_offset_of, _end_of, _time_of = attrgetter("offset"), attrgetter("end"), attrgetter("time_us")


def _size(entries: Entries) -> int:
    return sum(map(len, entries.payloads))
