"""Payloads that this replica should have, and missed while it was away or behind.

An order is worth little where payloads are few: a replica that decided without the payload gets
it later from a peer. Small batches belong everywhere; large ones with the first f + 1 stores of
their partition. What a peer sends must fit the partition's chain, which this replica has, so that
one peer is enough, whoever it is.

One request is under way at a time: repair must not slow down what goes on.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quorate.core.ids import NodeId
from quorate.core.ordering import Absent, Entries, Fill, Line, Partition
from quorate.crypto.digests import digest
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.records import Held, Store, Stretch
from quorate.protocol.ordering.value import chained, leaves_of
from quorate.protocol.outbox import Outbox

GAPS_MAX = 65_536
FILLED_MAX = 4096
ANSWER_US_MAX = 500_000
FILL_BYTES_MAX = 512 * 1024


class Gap(NamedTuple):
    """Offsets without payloads, how many peers could not help, and with how many of them.

    `silent` is how many of these peers did not answer, and `is_vain` says that before that all of
    them answered, and none could help.
    """

    partition: Partition
    offset: int
    batches: int
    refusals: int = 0
    refused: int = 0
    silent: int = 0
    is_vain: bool = False


class Filling:
    """The gaps of one group's partitions at one replica."""

    def __init__(
        self,
        others: tuple[NodeId, ...],
        is_store: Callable[[Partition], bool],
        store: Store,
        outbox: Outbox,
    ) -> None:
        self._others = others
        self._is_store = is_store
        self._store = store
        self._outbox = outbox
        self._gaps: deque[Gap] = deque()
        # Those that nobody filled, but somebody might have who did not answer. They are asked for
        # when there is nothing else.
        self._later: deque[Gap] = deque()
        # Those that were filled last: the disk may be behind us.
        self._filled: deque[Gap] = deque(maxlen=FILLED_MAX)
        self._peer = 0
        self._asked_us: int | None = None

    @property
    def count(self) -> int:
        """How many batches are missing."""
        return sum(gap.batches for gap in (*self._gaps, *self._later))

    def missing_from(self) -> dict[Partition, int]:
        """From where on payloads are missing and may yet come, by partition."""
        found: dict[Partition, int] = {}
        for partition, offset, batches, *_ in self._gaps:
            if offset + batches > self._store.bounds(partition)[0]:
                found[partition] = min(offset, found.get(partition, offset))
        return found

    def may_come(self, partition: Partition, offset: int) -> bool:
        """Whether somebody may yet give us this payload, or did and it is on its way to disk."""
        return any(
            gap.partition == partition and 0 <= offset - gap.offset < gap.batches
            for gap in (*self._gaps, *self._later, *self._filled)
            if not gap.is_vain
        )

    def miss(self, partition: Partition, offset: int, batches: int) -> None:
        """These were decided, and their payloads are not here."""
        last = self._gaps[-1] if self._gaps else None
        wanted = None if last is None else (partition, offset - last.batches, last.batches)
        if last is not None and last[:3] == wanted and not last.is_vain:
            self._gaps[-1] = last._replace(batches=last.batches + batches)
        elif len(self._gaps) + len(self._later) < GAPS_MAX:
            self._gaps.append(Gap(partition, offset, batches))

    def start_over(self) -> None:
        """None of what was missing has a place any more."""
        self._gaps.clear()
        self._later.clear()
        self._asked_us = None

    def tick(self) -> None:
        if self._asked_us is None:
            self._ask()
        elif self._outbox.now_us - self._asked_us >= ANSWER_US_MAX:
            self._refused(self._gaps[0].batches, silent=1)

    def on_entries(self, sender: NodeId, entries: Entries) -> None:
        gap = self._awaited(sender, entries.partition_of, entries.offset)
        if gap is None:
            return
        if gap.offset < self._store.bounds(gap.partition)[0]:
            # Retention took it while we asked.
            self._asked_us = None
            self._ask()
            return
        count = min(len(entries.payloads), gap.batches)
        payloads = entries.payloads[:count]
        if not self._fits(entries, payloads):
            self._outbox.report(sender, "forgery", f"payloads at offset {entries.offset}")
            self._refused()
            return
        held = Held(entries.publisher, *gap.partition, entries.first, payloads)
        self._outbox.persist(held, sync=False)
        self._filled.append(Gap(gap.partition, gap.offset, count))
        self._gaps.popleft()
        if count < gap.batches:
            rest = Gap(gap.partition, gap.offset + count, gap.batches - count)
            self._gaps.appendleft(rest._replace(is_vain=gap.is_vain))
        self._asked_us = None
        self._ask()

    def on_absent(self, sender: NodeId, absent: Absent) -> bool:
        """Whether we had asked this peer for just this, whatever its size."""
        partition = Partition(absent.topic, absent.partition)
        if not self._awaited(sender, partition, absent.offset):
            return False
        self._refused(max(1, absent.count))
        return self._is_store(partition)

    def _ask(self) -> None:
        self._pass_over_what_is_gone()
        if not self._gaps and self._later:
            self._gaps.append(self._later.popleft())
            self._pass_over_what_is_gone()
        if not self._gaps or not self._others:
            return
        gap = self._gaps[0]
        self._asked_us = self._outbox.now_us
        peer = self._others[self._peer % len(self._others)]
        fill = Fill(*gap.partition, gap.offset, gap.batches, self._is_store(gap.partition))
        self._outbox.send(peer, fill)

    def _pass_over_what_is_gone(self) -> None:
        """What retention has taken here is not missing any more."""
        while self._gaps:
            gap = self._gaps[0]
            gone = self._store.bounds(gap.partition)[0] - gap.offset
            if gone <= 0:
                return
            self._gaps.popleft()
            if gone < gap.batches:
                rest = Gap(gap.partition, gap.offset + gone, gap.batches - gone)
                self._gaps.appendleft(rest._replace(is_vain=gap.is_vain))

    def _refused(self, batches: int = 1, *, silent: int = 0) -> None:
        """This peer cannot help. Nobody can with large batches that are not ours to store."""
        gap = self._gaps.popleft()
        self._peer += 1
        self._asked_us = None
        refused = min(batches, gap.refused or batches, gap.batches)
        silent += gap.silent
        if gap.refusals + 1 < len(self._others):
            refusals = gap.refusals + 1
            self._gaps.appendleft(gap._replace(refusals=refusals, refused=refused, silent=silent))
            return
        rest = gap.batches - refused
        if rest:
            later = Gap(gap.partition, gap.offset + refused, rest)
            self._gaps.append(later._replace(is_vain=gap.is_vain))
        if self._is_store(gap.partition):
            again = Gap(gap.partition, gap.offset, refused)
            self._gaps.append(again._replace(is_vain=not silent))
        elif silent:
            self._later.append(Gap(gap.partition, gap.offset, refused))

    def _awaited(self, sender: NodeId, partition: Partition, offset: int) -> Gap | None:
        """The gap that we asked this peer to fill, if this is its beginning."""
        if self._asked_us is None or sender != self._others[self._peer % len(self._others)]:
            return None
        gap = self._gaps[0]
        return gap if (gap.partition, gap.offset) == (partition, offset) else None

    def _fits(self, entries: Entries, payloads: list[bytes]) -> bool:
        """Are these what the chain says stands there?"""
        partition = entries.partition_of
        before = self._store.chain(partition, entries.offset)
        after = self._store.chain(partition, entries.offset + len(payloads))
        if before is None or after is None:
            return False
        line = Line(entries.publisher, *partition)
        digests = map(digest, payloads)
        leaves = leaves_of(line, entries.first, entries.offset, entries.time_us, digests)
        return chained(before, leaves)[-1] == after


def answer(fill: Fill, stretches: list[Stretch]) -> Entries | Absent:
    """What a peer gets of what stands there: up to the first batch that is not for it."""
    partition = Partition(fill.topic, fill.partition)
    if not stretches or not fill.count:
        return Absent(*partition, fill.offset)
    stretch = stretches[0]
    batches = min(len(stretch.payloads), fill.count)
    some = stretch.payloads[:batches]
    sizes = [len(payload) > INLINE_BYTES_MAX and not fill.large for payload in some]
    if sizes[0]:
        return Absent(*partition, fill.offset, [*sizes, False].index(False))
    return stretch.entries(partition, sizes.index(True) if True in sizes else batches)
