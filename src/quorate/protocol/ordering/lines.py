"""What waits for its order: the undecided batches of each publisher and partition.

Source: FIT-Broker 2013, section 4.4.2 (requests of clients); DESIGN section 3 (availability).

A publisher hands its batches to every replica of the group, small ones whole, large ones whole to
f + 1 stores and as descriptors to the others. A replica takes a line in its order, without gaps,
and chains the digests. Two things have to be known of a batch before it may be ordered:

- It is *authentic*: this replica had it from the publisher itself, or f + 1 replicas say that they
  had (`Received`). There are no signatures of clients; replicas cannot make up a client's batch.
- It is *available*: this replica holds the payload, or f + 1 replicas say that they do (`Stored`),
  which they sign on validated topics (`receipts.py`). Until it matters, their *words* wait as they
  came: what was said of a batch counts when somebody looked at it, and is a claim before.

A leader proposes what 2f + 1 replicas received, itself among them. At least f + 1 of those are
correct and tell whoever asks, also when they have decided it meanwhile (`retrieval.py`), so that
every correct replica comes to find it authentic: a client that tells some replicas and not others
holds up only itself, and never the leader.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import NamedTuple

from quorate.core.control import COMMAND_BYTES_MAX, CONTROL_TOPIC_ID
from quorate.core.header import DESCRIPTOR_BYTES, counts_of, events_in
from quorate.core.ids import Digest, NodeId, Sequence, TopicId
from quorate.core.limits import RUN_BATCHES_MAX
from quorate.core.ordering import Line, Received, Stored
from quorate.crypto.digests import descriptor
from quorate.protocol.ordering.log import Content
from quorate.protocol.ordering.room import BATCH_COST, EVENT_COST, LINE_COST
from quorate.protocol.ordering.value import CHAIN_START, Span, chain_of

# A batch of up to so many bytes rides inside its request, to every replica.
INLINE_BYTES_MAX = 4096
# A batch of one command; every replica is sent it whole.
COMMAND_BATCH_BYTES_MAX = COMMAND_BYTES_MAX + 512


def inline_max(topic: TopicId) -> int:
    """Larger batches of this topic go to some replicas only."""
    return COMMAND_BATCH_BYTES_MAX if topic == CONTROL_TOPIC_ID else INLINE_BYTES_MAX


# So many batches of a line may wait at a replica; `room.py` says how many bytes of all lines.
WAITING_BATCHES_MAX = 4096
# So many words of one store about a line wait until they matter.
WORDS_MAX = 64
UNBOUNDED = 1 << 62


class Former(NamedTuple):
    """Consecutive batches, the first of which has this number, and their payloads if we have them.

    The publisher, or others, say that the line is something else.
    """

    first: Sequence
    descriptors: list[bytes]
    payloads: list[bytes | None]

    @property
    def end(self) -> Sequence:
        return self.first + len(self.descriptors)

    def runs(self) -> Iterator[tuple[Sequence, list[bytes]]]:
        """The payloads that we have."""
        absent = [at for at, payload in enumerate(self.payloads) if payload is None]
        for before, after in pairwise([-1, *absent, len(self.payloads)]):
            run = [payload for payload in self.payloads[before + 1 : after] if payload is not None]
            if run:
                yield self.first + before + 1, run

    def covers(self, other: "Former") -> bool:
        """Whether all of this is here as well."""
        at = other.first - self.first
        if at < 0 or self.descriptors[at : at + len(other.descriptors)] != other.descriptors:
            return False
        pairs = zip(self.payloads[at:], other.payloads, strict=False)
        return all(theirs is None or mine is not None for mine, theirs in pairs)

    def goes_on(self, first: Sequence, decided: list[bytes]) -> bool:
        """Whether some of it may still be decided after these batches."""
        start, end = max(first, self.first), first + len(decided)
        mine = self.descriptors[start - self.first : max(end - self.first, 0)]
        return self.end > end and mine == decided[start - first :]

    @property
    def size(self) -> int:
        size = DESCRIPTOR_BYTES * len(self.descriptors)
        size += EVENT_COST * sum(counts_of(self.descriptors))
        return size + sum(len(payload or b"") for payload in self.payloads)


class Waiting:
    """One line's undecided batches, as this replica knows them.

    Everything is a list that begins with the batch `next`, the first that is undecided.
    """

    __slots__ = (
        "base",
        "chains",
        "charged_bytes",
        "deposit_bytes",
        "deposits",
        "descriptors",
        "direct",
        "events",
        "former",
        "former_bytes",
        "given_us",
        "heard",
        "held",
        "held_beyond",
        "holders",
        "line",
        "next",
        "payloads",
        "receipted",
        "receipted_us",
        "since_us",
        "spare",
        "told_us",
        "unkept",
        "unreceipted",
        "waiting_bytes",
        "words",
    )  # fmt: skip

    def __init__(self, line: Line, start: Sequence = 1, base: Digest = CHAIN_START) -> None:
        self.line = line
        self.next = start
        # The chain of the batch before `next`.
        self.base = base
        self.descriptors: list[bytes] = []
        self.chains: list[Digest] = []
        # None where only the descriptor is known.
        self.payloads: list[bytes | None] = []
        # Which replicas hold a payload, by which word that counts.
        self.holders: list[dict[NodeId, Stored]] = []
        # Up to here the publisher itself gave it to us.
        self.direct: Sequence = start - 1
        # Up to here our payloads are on disk.
        self.held: Sequence = start - 1
        # And these, which come after some that are not.
        self.held_beyond: set[Sequence] = set()
        # The last word of each replica on how far it received this line.
        self.heard: dict[NodeId, Received] = {}
        # Payloads that the disk had after a crash, of batches whose predecessors it did not have.
        self.spare: dict[Sequence, bytes] = {}
        # What something else took the place of. We may have said that we store it, or voted for it,
        # and it may yet be decided.
        self.former: list[Former] = []
        self.former_bytes = 0
        # Those of them that the disk would lose with the next payload that is held in their place.
        self.unkept: list[Former] = []
        # Payloads that are on their way to the store outside, with their descriptors. They count
        # for nothing until they are there.
        self.deposits: dict[Sequence, tuple[bytes, bytes]] = {}
        self.deposit_bytes = 0
        # Words of stores that nobody looked at yet, in the order in which they came, also about
        # batches that we have yet to hear of ourselves.
        self.words: dict[NodeId, list[Stored]] = {}
        # The last stretch that we said we store, and when.
        self.receipted = range(0)
        self.receipted_us = 0
        # Stretches that we store, and have yet to say so.
        self.unreceipted: list[range] = []
        self.waiting_bytes = 0
        # The events of `descriptors`: payloads or not, they take offsets.
        self.events = 0
        # What this line was last said to take (`room.py`).
        self.charged_bytes = 0
        # When the publisher last gave us something, be it again.
        self.given_us = 0
        self.since_us = 0
        self.told_us = 0

    @property
    def end(self) -> Sequence:
        """The number of the batch that comes after all that we know."""
        return self.next + len(self.descriptors)

    @property
    def has_room(self) -> bool:
        return len(self.descriptors) < WAITING_BATCHES_MAX

    @property
    def cost_bytes(self) -> int:
        """What this line takes, with all that goes with it."""
        if not (self.descriptors or self.former or self.spare):
            return 0
        batches = len(self.descriptors) + sum(len(former.descriptors) for former in self.former)
        cost = LINE_COST + BATCH_COST * batches + EVENT_COST * self.events
        cost += self.waiting_bytes + self.former_bytes
        cost += self.deposit_bytes
        return cost + sum(map(len, self.spare.values())) if self.spare else cost

    def chain_at(self, sequence: Sequence) -> Digest | None:
        """The chain of a batch, if we know the line so far."""
        at = sequence - self.next
        if at == -1:
            return self.base
        return self.chains[at] if 0 <= at < len(self.chains) else None

    def known_of(self, first: Sequence, descriptors: Seq[bytes]) -> int:
        """How many of these batches, from the first on, are decided, or what we have already."""
        known = max(0, min(len(descriptors), self.next - first))
        for at, content in enumerate(descriptors[known:], first + known - self.next):
            if at >= len(self.descriptors) or at < 0 or self.descriptors[at] != content:
                break
            known += 1
        return known

    def extend(
        self,
        first: Sequence,
        descriptors: Seq[bytes],
        payloads: Seq[bytes | None],
        room_bytes: int = UNBOUNDED,
    ) -> bool:
        """Take what follows on what we know; True if the publisher contradicts itself.

        Payloads and batches for which there is no room are left out. They are handed in again.
        """
        before = self.cost_bytes
        contradicts = self.complete(first, descriptors, payloads, room_bytes)
        room_bytes -= self.cost_bytes - before
        skip = self.end - first
        if contradicts or skip < 0 or skip >= len(descriptors) or not self.has_room:
            return contradicts
        room_bytes -= 0 if self.cost_bytes else LINE_COST
        room = WAITING_BATCHES_MAX - len(self.descriptors)
        fresh, payloads = descriptors[skip : skip + room], payloads[skip : skip + room]
        room = _fitting(fresh, payloads, room_bytes)
        if not room:
            return False
        fresh, payloads = fresh[:room], payloads[:room]
        self.chains += chain_of(self.chains[-1] if self.chains else self.base, fresh)
        self.descriptors += fresh
        self.events += sum(counts_of(fresh))
        self.payloads += payloads
        self.holders += [{} for _ in fresh]
        self.waiting_bytes += sum(len(payload) for payload in payloads if payload)
        self._use_spare()
        return False

    def complete(
        self,
        first: Sequence,
        descriptors: Seq[bytes],
        payloads: Seq[bytes | None],
        room_bytes: int = UNBOUNDED,
    ) -> bool:
        """Payloads of batches of which we have the descriptor already, as far as there is room."""
        start, end = max(first, self.next), min(first + len(descriptors), self.end)
        for sequence in range(start, end):
            mine, theirs = sequence - self.next, sequence - first
            if self.descriptors[mine] != descriptors[theirs]:
                return True
            payload = payloads[theirs]
            if payload is not None and self.payloads[mine] is None and len(payload) <= room_bytes:
                self.payloads[mine] = payload
                self.waiting_bytes += len(payload)
                room_bytes -= len(payload)
                self._note_unheld(sequence)
        return False

    def _note_unheld(self, sequence: Sequence) -> None:
        """One of the batches that count as held came without its payload, which is here now."""
        if sequence <= self.held:
            after = range(sequence + 1, self.held + 1)
            present = (each for each in after if self.payloads[each - self.next] is not None)
            self.held_beyond.update(present)
            self.held = sequence - 1

    def replace(self, span: Span, descriptors: Seq[bytes], payloads: Seq[bytes | None]) -> bool:
        """Take what a span names in place of what we have. False if that is not what it names."""
        if not self.is_named_by(span, descriptors):
            return False
        descriptors = list(descriptors[: span.batches])
        chains = chain_of(self.base, descriptors)
        if self.descriptors[: span.batches] == descriptors:
            self.complete(span.first, descriptors, payloads)
            return True
        mine = Former(self.next, self.descriptors, self.payloads)
        known: dict[bytes, bytes | None] = {}
        for former in (*self.former, mine):
            pairs = zip(former.descriptors, former.payloads, strict=True)
            known |= {name: payload for name, payload in pairs if payload is not None}
        if descriptors[: len(self.descriptors)] != self.descriptors:
            self.put_aside(mine)
        self.descriptors, self.chains = descriptors, chains
        self.events = sum(counts_of(descriptors))
        self.payloads = [
            known.get(name) if payload is None else payload
            for name, payload in zip(descriptors, payloads, strict=False)
        ]
        self.holders = [{} for _ in descriptors]
        self.direct = self.held = self.next - 1
        self.held_beyond.clear()
        # What we store now is not what we said so of, or were about to.
        self.receipted, self.unreceipted = range(0), []
        self.waiting_bytes = sum(len(payload) for payload in self.payloads if payload)
        self._use_spare()
        return True

    def put_aside(self, former: Former, *, is_kept: bool = False) -> None:
        """Keep what has lost its place, until these numbers are decided."""
        if any(known.covers(former) for known in self.former):
            return
        self.former = [known for known in self.former if not former.covers(known)]
        self.former.append(former)
        self.former_bytes = sum(known.size for known in self.former)
        if not is_kept:
            self.unkept.append(former)

    def former_of(self, span: Span) -> tuple[list[bytes], list[bytes | None]] | None:
        """What this span names, if we had that before."""
        for first, descriptors, payloads in self.former:
            at = self.next - first
            if at >= 0 and self.is_named_by(span, descriptors[at:]):
                return descriptors[at : at + span.batches], payloads[at : at + span.batches]
        return None

    def given(
        self, first: Sequence, last: Sequence
    ) -> Iterator[tuple[list[bytes], list[bytes | None], Digest | None]]:
        """All that we were given under these undecided numbers, the line as we know it now as the
        last, and the chain of the last batch, if the publisher itself gave us that."""
        for former in self.former:
            if former.first <= self.next and last < former.end:
                cut = slice(first - former.first, last + 1 - former.first)
                start = self.next - former.first
                chain = chain_of(self.base, former.descriptors[start : cut.stop])[-1]
                yield former.descriptors[cut], former.payloads[cut], chain
        if last < self.end:
            cut = slice(first - self.next, last + 1 - self.next)
            received = self.chain_at(last) if self.direct >= last else None
            yield self.descriptors[cut], self.payloads[cut], received

    def _use_spare(self) -> None:
        """What the disk had of batches that we hear of only now is as good as if it came now."""
        for sequence in [each for each in self.spare if each < self.end]:
            payload, at = self.spare.pop(sequence), sequence - self.next
            if (
                at >= 0
                and self.payloads[at] is None
                and descriptor(payload) == self.descriptors[at]
            ):
                self.payloads[at] = payload
                self.waiting_bytes += len(payload)

    def is_named_by(self, span: Span, descriptors: Seq[bytes]) -> bool:
        """Whether these are the batches that a span names."""
        if span.first != self.next or len(descriptors) < span.batches:
            return False
        return chain_of(self.base, descriptors[: span.batches])[-1] == span.chain

    def content(self, count: int) -> Content:
        """The next batches, as far as the log is concerned."""
        payloads = self.payloads[:count]
        lacking = [at for at, payload in enumerate(payloads) if payload is None]
        return Content(self.descriptors[:count], lacking)

    def advance(self, count: int) -> None:
        """The next batches were decided."""
        self._forget_former(self.descriptors[:count])
        self.base = self.chains[count - 1]
        self.waiting_bytes -= sum(len(payload) for payload in self.payloads[:count] if payload)
        self.events -= sum(counts_of(self.descriptors[:count]))
        for column in (self.descriptors, self.chains, self.payloads, self.holders):
            del column[:count]
        self.next += count
        self.direct = max(self.direct, self.next - 1)
        self.held = max(self.held, self.next - 1)
        if self.held_beyond:
            self.held_beyond = {each for each in self.held_beyond if each > self.held}
        for sequence in [each for each in self.deposits if each < self.next]:
            self.end_deposit(sequence)
        for store in list(self.words):
            self._keep_words(
                store, [each for each in self.words[store] if end_of(each) > self.next]
            )

    def _forget_former(self, decided: list[bytes]) -> None:
        """What goes on from something else than was decided can not be decided any more."""
        if self.former:
            self.former = [each for each in self.former if each.goes_on(self.next, decided)]
            self.former_bytes = sum(former.size for former in self.former)
            self.unkept = [each for each in self.unkept if each.goes_on(self.next, decided)]

    # What goes to the store outside

    def deposit(self, sequence: Sequence, content: bytes, payload: bytes) -> None:
        """This payload is on its way there."""
        self.deposits[sequence] = content, payload
        self.deposit_bytes += len(payload)

    def end_deposit(self, sequence: Sequence) -> tuple[bytes, bytes] | None:
        """It is there, or will not be; None if nobody waits for it any more."""
        found = self.deposits.pop(sequence, None)
        if found is not None:
            self.deposit_bytes -= len(found[1])
        return found

    # Who has it

    def hear(self, store: NodeId, word: Stored) -> bool:
        """A replica says that it stores batches of this line. False if we have no use for that."""
        start, end = max(word.first, self.next), end_of(word)
        is_here = end <= self.end and None not in self.payloads[start - self.next : end - self.next]
        if end <= start or is_here:
            return False
        self.words.setdefault(store, []).append(word)
        return True

    def claims(self, sequence: Sequence) -> dict[NodeId, Stored]:
        """Who else says that it holds this batch as we know it: the last word of each."""
        known = self.holders[sequence - self.next]
        claims = {store: self._claim(store, sequence) for store in self.words if store not in known}
        return {store: word for store, word in claims.items() if word is not None}

    def _claim(self, store: NodeId, sequence: Sequence) -> Stored | None:
        for word in reversed(self.words[store]):
            if word.first <= sequence < end_of(word) and self.fits(word):
                return word
        return None

    def fits(self, word: Stored) -> bool:
        """Whether it is about the line as we know it."""
        return self.chain_at(end_of(word) - 1) == word.chain

    def is_news(self, store: NodeId, word: Stored, holders_needed: int) -> bool:
        """Whether a batch that we lack, and too few hold, is held by one more with this word."""
        start, end = max(word.first, self.next), min(end_of(word), self.end)
        return any(
            not self.is_available(at, holders_needed) and store not in self.holders[at]
            for at in range(start - self.next, end - self.next)
        )

    def count(self, store: NodeId, word: Stored) -> None:
        """Somebody looked at this word, and it counts. So nobody need look at what it covers."""
        start, end = max(word.first, self.next), end_of(word)
        for holders in self.holders[start - self.next : end - self.next]:
            holders[store] = word
        self.drop_covered(store, word)

    def drop_covered(self, store: NodeId, word: Stored) -> None:
        """Forget this word, and those of the same store that say no more than it does."""
        first, end = word.first, end_of(word)
        words = self.words[store]
        self._keep_words(store, [w for w in words if w.first < first or end_of(w) > end])

    def drop_word(self, store: NodeId, word: Stored) -> None:
        """Forget this word, and no other."""
        self._keep_words(store, [each for each in self.words[store] if each is not word])

    def _keep_words(self, store: NodeId, words: list[Stored]) -> None:
        self.words[store] = words
        if not words:
            del self.words[store]

    def claimed_through(self, last: Sequence, holders_needed: int) -> Sequence:
        """The end of what is available, up to this batch, if all words count that fit."""
        sequence = self.next
        while sequence <= last:
            at = sequence - self.next
            if self.payloads[at] is not None:
                sequence += 1
                continue
            words = [*self.holders[at].values(), *self.claims(sequence).values()]
            if len(words) < holders_needed:
                return sequence - 1
            # So many of them speak of what follows as well.
            sequence = sorted(map(end_of, words), reverse=True)[holders_needed - 1]
        return last

    def believed_by(self, sequence: Sequence, me: NodeId) -> int:
        """How many replicas received the line up to this batch, as we know it, from its source."""
        count = int(self.direct >= sequence)
        for replica, received in self.heard.items():
            if replica != me and received.through >= sequence:
                count += self.chain_at(received.through) == received.chain
        return count

    def received_through(self, count: int) -> Sequence:
        """Up to here, so many replicas received the line as we know it, we among them."""
        throughs = [self.direct]
        for received in self.heard.values():
            if received.through >= self.next and self.chain_at(received.through) == received.chain:
                throughs.append(received.through)
        if len(throughs) < count:
            return self.next - 1
        throughs.sort(reverse=True)
        return min(throughs[count - 1], self.direct)

    def is_available(self, at: int, holders_needed: int) -> bool:
        return self.payloads[at] is not None or len(self.holders[at]) >= holders_needed

    def available_through(self, last: Sequence, holders_needed: int) -> Sequence:
        """The end of what is available, up to this batch."""
        for at in range(last - self.next + 1):
            if not self.is_available(at, holders_needed):
                return self.next + at - 1
        return last

    def matches(self, span: Span) -> bool:
        """Do we know what this span names?"""
        return span.first == self.next and self.chain_at(span.end - 1) == span.chain

    @property
    def has_held(self) -> bool:
        """Whether anything undecided of this line may be on disk."""
        return self.held >= self.next or bool(self.held_beyond or self.spare or self.former)

    def is_held(self, first: Sequence, last: Sequence) -> bool:
        """Whether the payloads of these batches are on disk."""
        return all(each <= self.held or each in self.held_beyond for each in range(first, last + 1))

    def note_held(self, first: Sequence, last: Sequence) -> None:
        """These payloads are on disk from now on."""
        if self.held == first - 1:
            self.held = last
        else:
            self.held_beyond.update(range(first, last + 1))

    def note_stored(self, first: Sequence, last: Sequence) -> None:
        """We store these, and are to say so."""
        if self.unreceipted:
            before = self.unreceipted[-1]
            if before.start <= first <= before.stop:
                self.unreceipted.pop()
                first, last = before.start, max(before.stop - 1, last)
        self.unreceipted.append(range(first, last + 1))

    def take_unreceipted(self, now_us: int) -> list[range]:
        """The undecided stretches that we are to say we store.

        What we said so of before, and they follow on, is said again: so one word does for all of
        it, and nobody need look at the former one.
        """
        said: list[range] = []
        for stretch in self.unreceipted:
            before = self.receipted
            if not before.start <= stretch.start <= before.stop:
                before = range(stretch.start, stretch.start)
            start = max(before.start, self.next, stretch.stop - RUN_BATCHES_MAX)
            if start < stretch.stop:
                said.append(range(start, stretch.stop))
                self.receipted = range(start, max(before.stop, stretch.stop))
        self.unreceipted, self.receipted_us = [], now_us
        return said

    def unheld_runs(self, count: int) -> Iterator[tuple[Sequence, list[bytes]]]:
        """Runs of payloads among the next batches that are not on disk yet."""
        start = max(self.held + 1 - self.next, 0)
        absent = [
            at
            for at in range(start, count)
            if self.payloads[at] is None or self.next + at in self.held_beyond
        ]
        for before, after in pairwise([start - 1, *absent, count]):
            run = [payload for payload in self.payloads[before + 1 : after] if payload is not None]
            if run:
                yield self.next + before + 1, run
        self.held = max(self.held, self.next + count - 1)


def end_of(word: Stored) -> Sequence:
    """The number after the last batch that a store speaks of."""
    return word.first + word.count


def _fitting(descriptors: Seq[bytes], payloads: Seq[bytes | None], room_bytes: int) -> int:
    """How many of these batches there is room for."""
    cost_bytes = BATCH_COST * len(payloads) + EVENT_COST * sum(counts_of(descriptors))
    if cost_bytes + sum([len(payload) for payload in payloads if payload]) <= room_bytes:
        return len(payloads)
    for count, (described, payload) in enumerate(zip(descriptors, payloads, strict=True)):
        room_bytes -= BATCH_COST + EVENT_COST * events_in(described) + len(payload or b"")
        if room_bytes < 0:
            return count
    return len(payloads)
