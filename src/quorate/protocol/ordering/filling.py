"""Payloads that this replica should have, and missed while it was away or behind.

An order is worth little where payloads are few: a replica that decided without the payload gets
it later from a peer. Small batches belong everywhere; large ones with the first f + 1 stores of
their partition. What a peer sends must fit the partition's chain, which this replica has, so that
one peer is enough, whoever it is.

One request is under way at a time: repair must not slow down what goes on.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quorate.core.ids import NodeId
from quorate.core.ordering import Absent, Entries, Fill, Line, Partition
from quorate.crypto.digests import descriptor
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.records import Held, Store, Stretch
from quorate.protocol.ordering.value import chained, leaves_of
from quorate.protocol.outbox import Outbox

GAPS_MAX = 65_536
FILLED_MAX = 4096
ANSWER_US_MAX = 500_000
FILL_BYTES_MAX = 512 * 1024


class Gap(NamedTuple):
    """Offsets up to `end` without payloads, how many peers could not help, and up to where.

    `silent` is how many of these peers did not answer, and `is_vain` says that before that all of
    them answered, and none could help.
    """

    partition: Partition
    offset: int
    end: int
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
        """How many events are missing."""
        return sum(gap.end - gap.offset for gap in (*self._gaps, *self._later))

    def missing_from(self) -> dict[Partition, int]:
        """From where on payloads are missing and may yet come, by partition."""
        found: dict[Partition, int] = {}
        for partition, offset, end, *_ in self._gaps:
            if end > self._store.bounds(partition)[0]:
                found[partition] = min(offset, found.get(partition, offset))
        return found

    def may_come(self, partition: Partition, offset: int) -> bool:
        """Whether somebody may yet give us this payload, or did and it is on its way to disk."""
        return any(
            gap.partition == partition and gap.offset <= offset < gap.end
            for gap in (*self._gaps, *self._later, *self._filled)
            if not gap.is_vain
        )

    def miss(self, partition: Partition, offset: int, end: int) -> None:
        """These were decided, and their payloads are not here."""
        last = self._gaps[-1] if self._gaps else None
        if (
            last is not None
            and (last.partition, last.end) == (partition, offset)
            and not last.is_vain
        ):
            self._gaps[-1] = last._replace(end=end)
        elif len(self._gaps) + len(self._later) < GAPS_MAX:
            self._gaps.append(Gap(partition, offset, end))

    def start_over(self) -> None:
        """None of what was missing has a place any more."""
        self._gaps.clear()
        self._later.clear()
        self._asked_us = None

    def tick(self) -> None:
        if self._asked_us is None:
            self._ask()
        elif self._outbox.now_us - self._asked_us >= ANSWER_US_MAX:
            self._refused(self._gaps[0].end, silent=1)

    def on_entries(self, sender: NodeId, entries: Entries) -> None:
        gap = self._awaited(sender, entries.partition_of, entries.offset)
        if gap is None:
            return
        if gap.offset < self._store.bounds(gap.partition)[0]:
            # Retention took it while we asked.
            self._asked_us = None
            self._ask()
            return
        offsets = entries.offsets
        count = bisect_left(offsets, gap.end, hi=len(entries.payloads))
        payloads, end = entries.payloads[:count], offsets[count]
        if entries.bare or not self._fits(entries, payloads, end):
            self._outbox.report(sender, "forgery", f"payloads at offset {entries.offset}")
            self._refused(gap.offset + 1)
            return
        held = Held(entries.publisher, *gap.partition, entries.first, payloads)
        self._outbox.persist(held, sync=False)
        self._filled.append(Gap(gap.partition, gap.offset, end))
        self._gaps.popleft()
        if end < gap.end:
            self._gaps.appendleft(Gap(gap.partition, end, gap.end, is_vain=gap.is_vain))
        self._asked_us = None
        self._ask()

    def on_absent(self, sender: NodeId, absent: Absent) -> bool:
        """Whether we had asked this peer for just this, whatever its size."""
        partition = Partition(absent.topic, absent.partition)
        if not self._awaited(sender, partition, absent.offset):
            return False
        self._refused(max(absent.offset + 1, absent.end))
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
        fill = Fill(*gap.partition, gap.offset, gap.end, self._is_store(gap.partition))
        self._outbox.send(peer, fill)

    def _pass_over_what_is_gone(self) -> None:
        """What retention has taken here is not missing any more."""
        while self._gaps:
            gap = self._gaps[0]
            start = self._store.bounds(gap.partition)[0]
            if start <= gap.offset:
                return
            self._gaps.popleft()
            if start < gap.end:
                self._gaps.appendleft(Gap(gap.partition, start, gap.end, is_vain=gap.is_vain))

    def _refused(self, end: int, *, silent: int = 0) -> None:
        """This peer cannot help up to here. Nobody can with large batches that are not ours to
        store."""
        gap = self._gaps.popleft()
        self._peer += 1
        self._asked_us = None
        # Peers may end anywhere; what is asked for begins where a batch does.
        until = self._store.behind(gap.partition, min(end, gap.end) - 1, 1)
        refused = min(until, gap.refused or until, gap.end)
        silent += gap.silent
        if gap.refusals + 1 < len(self._others):
            refusals = gap.refusals + 1
            self._gaps.appendleft(gap._replace(refusals=refusals, refused=refused, silent=silent))
            return
        if refused < gap.end:
            self._gaps.append(Gap(gap.partition, refused, gap.end, is_vain=gap.is_vain))
        if self._is_store(gap.partition):
            self._gaps.append(Gap(gap.partition, gap.offset, refused, is_vain=not silent))
        elif silent:
            self._later.append(Gap(gap.partition, gap.offset, refused))

    def _awaited(self, sender: NodeId, partition: Partition, offset: int) -> Gap | None:
        """The gap that we asked this peer to fill, if this is its beginning."""
        if self._asked_us is None or sender != self._others[self._peer % len(self._others)]:
            return None
        gap = self._gaps[0]
        return gap if (gap.partition, gap.offset) == (partition, offset) else None

    def _fits(self, entries: Entries, payloads: list[bytes], end: int) -> bool:
        """Are these what the chain says stands there?"""
        partition, offset = entries.partition_of, entries.offset
        before = self._store.chain(partition, offset)
        after = self._store.chain(partition, end)
        if before is None or after is None or (before[0], after[0]) != (offset, end):
            return False
        line = Line(entries.publisher, *partition)
        descriptors = [*map(descriptor, payloads)]
        leaves = leaves_of(line, entries.first, offset, entries.time_us, descriptors)
        return chained(before[1], leaves)[-1] == after[1]


def answer(fill: Fill, stretches: list[Stretch]) -> Entries | Absent:
    """What a peer gets of what stands there: up to the first batch that is not for it."""
    partition = Partition(fill.topic, fill.partition)
    if not stretches or stretches[0].offset >= fill.end:
        return Absent(*partition, fill.offset, fill.offset + 1)
    stretch = stretches[0]
    offsets = stretch.offsets
    batches = bisect_left(offsets, fill.end, hi=len(stretch.payloads))
    some = stretch.payloads[:batches]
    sizes = [len(payload) > INLINE_BYTES_MAX and not fill.large for payload in some]
    if sizes[0]:
        return Absent(*partition, fill.offset, offsets[[*sizes, False].index(False)])
    return stretch.entries(partition, sizes.index(True) if True in sizes else batches)
