"""Those who read a partition, and what they are sent.

A reader takes payloads from one replica, and from the others only how the partition's chain goes
on: one hash, whatever came since. Payloads of the last decisions are still in memory (`Tail`);
whoever lags behind those is served from disk, at its own pace.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque

from quorate.core.ids import DIGEST_BYTES, Digest, NodeId
from quorate.core.ordering import (
    BEGIN_US,
    END_US,
    Absent,
    Allow,
    Chained,
    Follow,
    Locate,
    Located,
    Partition,
    Wants,
)
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.records import Placed, Store, Stretch
from quorate.protocol.outbox import Outbox

# The last decisions are kept in memory for those who are up to date.
TAIL_BYTES_MAX = 32 * 1024 * 1024
TAIL_STRETCHES_MAX = 4096
# One message, and one turn, carry so much to one node, however many partitions it reads. The rest
# of a message counts for so much.
ENTRIES_BYTES_MAX = 512 * 1024
TURN_BYTES_MAX = 2 * 1024 * 1024
_WORD_BYTES = 128
# Whoever is further behind than one decision or two hears of the chain every so many batches and
# where its limit is, and can settle what it has: otherwise it would hold all that it lets its lead
# send ahead. One turn brings only so many words.
TELL_ONCE_BATCHES_MAX = 512
TELL_EVERY_BATCHES = 64
TURN_WORDS_MAX = 64
# A reader is told of so many batches at once that are not here.
ABSENT_BATCHES_MAX = 64
READERS_MAX = 16_384
# A search on disk takes as long as handing out so much.
SEARCH_BYTES = 2 * 1024


class Kept:
    """What one decision put into one partition."""

    __slots__ = ("before", "offsets", "payloads", "placed", "size_bytes", "time_us")

    def __init__(
        self, placed: Placed, time_us: int, before: Digest, payloads: list[bytes | None]
    ) -> None:
        self.placed, self.offsets = placed, placed.offsets
        self.time_us = time_us
        self.before = before
        self.payloads = payloads
        self.size_bytes = sum(len(payload) for payload in payloads if payload)

    def chain(self, at: int) -> Digest:
        """The partition's chain before the batch with this place in the stretch."""
        if at == 0:
            return self.before
        return self.placed.chains[(at - 1) * DIGEST_BYTES : at * DIGEST_BYTES]


class Tail:
    """The last decisions of one partition."""

    def __init__(self) -> None:
        self.kept: deque[Kept] = deque()

    def find(self, offset: int) -> tuple[Kept, int] | None:
        """The decision that holds this offset, and the place in it of the batch that has it."""
        if not self.kept or offset < self.kept[0].placed.offset:
            return None
        at = bisect_right(self.kept, offset, key=lambda kept: kept.placed.offset) - 1
        kept = self.kept[at]
        place = bisect_right(kept.offsets, offset) - 1
        return (kept, place) if place < kept.placed.count else None

    def read(self, offset: int, bytes_max: int) -> list[Stretch]:
        found = self.find(offset)
        if found is None:
            return []
        kept, at = found
        payloads: list[bytes] = []
        for payload in kept.payloads[at:]:
            if payload is None or (payloads and bytes_max <= 0):
                break
            payloads.append(payload)
            bytes_max -= len(payload)
        if not payloads:
            return []
        placed = kept.placed
        chains = placed.chains[at * DIGEST_BYTES : (at + len(payloads)) * DIGEST_BYTES]
        return [
            Stretch(
                placed.publisher, kept.offsets[at], placed.first + at, kept.time_us,
                kept.chain(at), chains, payloads,
            )
        ]  # fmt: skip


class Reader:
    """One reader of one partition."""

    __slots__ = ("cursor", "limit", "number", "served", "told", "wants")

    def __init__(self, follow: Follow) -> None:
        self.number = follow.number
        self.cursor = follow.offset
        self.limit = follow.limit
        self.wants = follow.wants
        # Up to which offset it knows the chain.
        self.told = -1
        # In which turn it was sent something.
        self.served = 0


class Readers:
    """All readers of one group's partitions at one replica."""

    def __init__(self, log: OrderLog, store: Store, outbox: Outbox) -> None:
        self._log = log
        self._store = store
        self._outbox = outbox
        self._readers: dict[Partition, dict[NodeId, Reader]] = {}
        self._count = 0
        self._turns = 0
        self._tails: dict[Partition, Tail] = {}
        self._order: deque[Partition] = deque()
        self._tail_bytes = 0
        self._stuck: set[NodeId] = set()
        self._due: dict[Partition, None] = {}
        # Those whose next payload somebody waits for, and which is on its way from outside.
        self._fetching: dict[Partition, None] = {}

    @property
    def count(self) -> int:
        return self._count

    def are_on(self, partition: Partition) -> bool:
        """Whether somebody reads this partition and may be sent more of it."""
        return any(each.limit > each.cursor for each in self._readers.get(partition, {}).values())

    # What happens

    def on_locate(self, node: NodeId, locate: Locate) -> None:
        if not self._outbox.may_answer(node):
            return
        partition = Partition(locate.topic, locate.partition)
        offset, answer_bytes = self._log.partition(partition).end, 0
        if locate.time_us == BEGIN_US:
            offset, _ = self._store.bounds(partition)
        elif locate.time_us != END_US:
            offset, answer_bytes = self._store.offset_at(partition, locate.time_us), SEARCH_BYTES
        self._outbox.answer(node, Located(*partition, locate.number, offset), answer_bytes)

    def on_follow(self, node: NodeId, follow: Follow) -> None:
        partition = Partition(follow.topic, follow.partition)
        readers = self._readers.setdefault(partition, {})
        if node not in readers:
            if self._count >= READERS_MAX:
                self._outbox.report(node, "refused", f"there are {READERS_MAX} readers already")
                return
            self._count += 1
        elif follow.number <= readers[node].number:
            return
        readers[node] = Reader(follow)
        self._due[partition] = None

    def on_allow(self, node: NodeId, allow: Allow) -> None:
        partition = Partition(allow.topic, allow.partition)
        reader = self._readers.get(partition, {}).get(node)
        if reader is not None:
            reader.limit = max(reader.limit, allow.limit)
            self._due[partition] = None

    def gone(self, node: NodeId) -> None:
        self._stuck.discard(node)
        for readers in self._readers.values():
            if readers.pop(node, None) is not None:
                self._count -= 1

    def writable(self, node: NodeId, writable: bool) -> None:
        if not writable:
            self._stuck.add(node)
            return
        self._stuck.discard(node)
        for partition, readers in self._readers.items():
            if node in readers:
                self._due[partition] = None

    def placed(
        self, placed: Placed, time_us: int, before: Digest, payloads: list[bytes | None]
    ) -> None:
        """A decision put these into their partition."""
        partition = Partition(placed.topic, placed.partition)
        kept = Kept(placed, time_us, before, payloads)
        self._tails.setdefault(partition, Tail()).kept.append(kept)
        self._order.append(partition)
        self._tail_bytes += kept.size_bytes
        while len(self._order) > TAIL_STRETCHES_MAX or self._tail_bytes > TAIL_BYTES_MAX:
            oldest = self._tails[self._order.popleft()].kept.popleft()
            self._tail_bytes -= oldest.size_bytes
        self._due[partition] = None

    def fetched(self) -> None:
        """What was on its way from outside has come, or will not come."""
        self._due |= self._fetching
        self._fetching.clear()

    def start_over(self) -> None:
        """The log went on without us: what we had of it does not lead to where it is now."""
        self._tails.clear()
        self._order.clear()
        self._tail_bytes = 0
        self._due = dict.fromkeys(self._readers)

    def flush(self) -> bool:
        """Send what is due. True if some of it is left for the next turn."""
        due, self._due = self._due, {}
        waiting = [
            (partition, node, reader)
            for partition in due
            for node, reader in self._readers.get(partition, {}).items()
            if node not in self._stuck
        ]
        # Of all that a node reads, what it was sent least lately comes first.
        waiting.sort(key=lambda each: each[2].served)
        self._turns += 1
        sent_bytes: Counter[NodeId] = Counter()
        for partition, node, reader in waiting:
            room_bytes = TURN_BYTES_MAX - sent_bytes[node]
            if room_bytes <= 0:
                self._due[partition] = None
                continue
            reader.served = self._turns
            end = self._log.partition(partition).end
            if reader.wants is not Wants.CHAIN:
                sent_bytes[node] += self._send_entries(node, partition, reader, end, room_bytes)
            sent_bytes[node] += self._tell_chain(node, partition, reader, end)
        for node, count in sent_bytes.items():
            self._outbox.charge(node, count)
        return bool(self._due)

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        """What stands there, from the batch of this offset on; from memory or from disk."""
        tail = self._tails.get(partition)
        found = tail.read(offset, bytes_max) if tail is not None else []
        return found or self._store.read(partition, offset, bytes_max)

    def behind(self, partition: Partition, offset: int, batches: int) -> int | None:
        """The offset after so many batches of one decision, the first of which begins here.

        None if retention took it.
        """
        tail = self._tails.get(partition)
        found = tail.find(offset) if tail is not None else None
        if found is not None:
            kept, at = found
            return kept.offsets[at + batches]
        start, end = self._store.bounds(partition)
        if not start <= offset < end:
            return None
        return self._store.behind(partition, offset, batches)

    # Parts

    def _send_entries(
        self, node: NodeId, partition: Partition, reader: Reader, end: int, bytes_max: int
    ) -> int:
        """Says how many bytes that were."""
        end, sent = min(end, reader.limit), 0
        while reader.cursor < end:
            if sent >= bytes_max:
                self._due[partition] = None
                break
            stretches = self.read(partition, reader.cursor, ENTRIES_BYTES_MAX)
            if not stretches and self._store.is_fetching(partition, reader.cursor):
                self._fetching[partition] = None
                break
            if not stretches:
                absent_until = self._absent_until(partition, reader.cursor, end)
                self._outbox.send(node, Absent(*partition, reader.cursor, absent_until))
                # It asks another replica, and us again if it wants more.
                reader.limit = reader.cursor
                break
            for stretch in stretches:
                if stretch.offset < end:
                    batches = bisect_left(stretch.offsets, end, hi=len(stretch.payloads))
                    entries = stretch.entries(partition, batches, reader.wants)
                    self._outbox.send(node, entries)
                    sent += sum(map(len, entries.payloads)) + _WORD_BYTES
                    reader.cursor = stretch.offsets[batches]
        return sent

    def _absent_until(self, partition: Partition, offset: int, end: int) -> int:
        """The offset after the batches from this one on that are not here."""
        start, _ = self._store.bounds(partition)
        until = start if offset < start else self._store.behind(partition, offset, 1)
        for _ in range(ABSENT_BATCHES_MAX - 1):
            if not offset < until < end or self._is_here(partition, until):
                break
            until = self._store.behind(partition, until, 1)
        return max(until, offset + 1)

    def _is_here(self, partition: Partition, offset: int) -> bool:
        found = self.read(partition, offset, 1)
        return bool(found) or self._store.is_fetching(partition, offset)

    def _tell_chain(self, node: NodeId, partition: Partition, reader: Reader, end: int) -> int:
        """How the chain goes on, as far as this reader wants to know; says how many bytes."""
        (start, _), taken = self._store.bounds(partition), self._store.taken(partition)
        # Of what is not kept any more nobody knows the chain.
        through = max(min(end, max(reader.limit, reader.cursor)), start)
        sent = words = 0
        while reader.told < through and words < TURN_WORDS_MAX:
            known = self._chain_behind(partition, self._next_word(partition, reader, through, end))
            if known is None:
                return sent
            reader.told, chain = known
            told = Chained(*partition, reader.told, chain, start, taken, end)
            self._outbox.send(node, told)
            sent, words = sent + _WORD_BYTES, words + 1
        if reader.told < through:
            self._due[partition] = None
        return sent

    def _next_word(self, partition: Partition, reader: Reader, through: int, end: int) -> int:
        """Up to where a reader is told the chain next."""
        known = max(reader.told, reader.cursor, self._store.bounds(partition)[0])
        # Who gets payloads has the chain from them.
        if reader.wants is not Wants.CHAIN:
            return through
        if through == end:
            once = self._store.behind(partition, known, TELL_ONCE_BATCHES_MAX)
            if once >= min(through, self._store.bounds(partition)[1]):
                return through
        behind = self._store.behind(partition, known, TELL_EVERY_BATCHES)
        return min(behind, through) if behind > known else through

    def _chain_behind(self, partition: Partition, offset: int) -> tuple[int, Digest] | None:
        """The chain before this offset, or behind the batch that has it and begins earlier."""
        state = self._log.partition(partition)
        if offset == state.end:
            return offset, state.chain
        tail = self._tails.get(partition)
        found = tail.find(offset) if tail is not None else None
        if found is not None:
            kept, at = found
            at += kept.offsets[at] < offset
            return kept.offsets[at], kept.chain(at)
        known = self._store.chain(partition, offset)
        if known is None or known[0] == offset:
            return known
        behind = self._store.behind(partition, offset, 1)
        return (
            (behind, state.chain) if behind == state.end else self._store.chain(partition, behind)
        )
