"""The order log: what the decided slots add up to.

Decisions are applied in the order of slots, alike on every replica. A decision gives each of its
batches the next offsets of its partition, a leaf in the group's Merkle tree (RFC 6962), and a link
in the partition's chain, by which readers know that they see what others see.

The state is small, whatever the length of the log: per line the next sequence number and chain,
which is how duplicates and replays are recognised (a client that begins thousands of sessions later
is taken for a new one when an old one comes back); per partition its end; the right edge of the
tree; and the cluster's own state, where commands are ordered. A snapshot has all of it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from quorate.core.header import events_in
from quorate.core.ids import Digest, MemberId, Sequence, member_of
from quorate.core.limits import SNAPSHOT_EVERY
from quorate.core.ordering import Line, Partition
from quorate.crypto.merkle import Tree
from quorate.protocol.control.state import ControlState
from quorate.protocol.ordering.records import Decided, Placed, Receipted, Snapshot
from quorate.protocol.ordering.value import CHAIN_START, Span, Value, chained, leaves_of

# Of the log's own time, and of its slots, between two checkpoints.
SEAL_EVERY_US = 50_000
SEAL_EVERY_SLOTS = 64
# Positions of a line's last batches are kept for publishers that missed their receipts.
RECENT_BATCHES_MIN = 1024
# A client may have so many lines; of more, the one that was used longest ago is forgotten.
LINES_PER_MEMBER_MAX = 4096


class Position(NamedTuple):
    """Consecutive batches of a line, and the offset of their first event."""

    first: Sequence
    batches: int
    offset: int
    time_us: int


class Content(NamedTuple):
    """The batches of one span: their descriptors, and which of their payloads are not here.

    Of a validated topic also who signed that they have those, and the chain before the first.
    """

    descriptors: list[bytes]
    lacking: list[int]
    before: Digest = b""
    receipts: tuple[Receipted, ...] = ()


class LineState(msgspec.Struct):
    """Where a line goes on."""

    next: Sequence = 1
    chain: Digest = CHAIN_START
    recent: list[Position] = []
    used_in_slot: int = 0


class PartitionState(msgspec.Struct):
    """Where a partition goes on: after so many events, in so many batches."""

    end: int = 0
    batches: int = 0
    chain: Digest = CHAIN_START


class LogState(msgspec.Struct):
    """Everything that the decided slots determine."""

    slot: int = 0
    last: Digest = b""
    time_us: int = 0
    size: int = 0
    # When a checkpoint was last due.
    sealed_slot: int = 0
    sealed_us: int = 0
    edge: list[Digest] = []
    lines: dict[Line, LineState] = {}
    partitions: dict[Partition, PartitionState] = {}
    # The last slot after which a snapshot was wanted that was not due by its number.
    wanted_slot: int = 0
    # What the cluster's commands add up to, in the group that orders them.
    control: ControlState | None = None


class OrderLog:
    """The state of one group, and how a decision changes it."""

    def __init__(
        self, group: int, state: LogState | None = None, snapshot_every: int = SNAPSHOT_EVERY
    ) -> None:
        self.group = group
        # Lines that were forgotten, for whoever has more to forget of them.
        self.forgotten: list[Line] = []
        self._snapshot_every = snapshot_every
        self.start_from(LogState() if state is None else state)

    def start_from(self, state: LogState) -> None:
        """Go on from this state, whatever we had."""
        self.state = state
        self.tree = Tree(state.size, state.edge)
        self.forgotten.clear()
        self._lines_of = Counter(member_of(line.publisher) for line in state.lines)

    def line(self, line: Line) -> LineState:
        """Where this line goes on; one that was never heard of begins."""
        state = self.state.lines.get(line)
        return LineState() if state is None else state

    def partition(self, partition: Partition) -> PartitionState:
        state = self.state.partitions.get(partition)
        return PartitionState() if state is None else state

    def fits(self, span: Span) -> bool:
        """Does this span take up its line where it was left?"""
        return span.first == self.line(span.line).next

    def apply(
        self, slot: int, digest: Digest, encoded: bytes, value: Value, contents: Iterable[Content]
    ) -> Decided:
        """Carry a decision out, given the contents of each of its spans."""
        state = self.state
        placed = [
            self._place(slot, span, value.time_us, content)
            for span, content in zip(value.spans, contents, strict=True)
        ]
        state.slot, state.last, state.time_us = slot, digest, value.time_us
        state.size, state.edge = self.tree.size, self.tree.edge
        return Decided(self.group, slot, value.time_us, encoded, placed)

    def is_seal_due(self) -> bool:
        """Whether all replicas sign their heads after this slot; asked once after each."""
        state = self.state
        is_late = state.time_us - state.sealed_us >= SEAL_EVERY_US
        is_long = state.slot - state.sealed_slot >= SEAL_EVERY_SLOTS
        if not (is_late or is_long or self.is_snapshot_due):
            return False
        state.sealed_slot, state.sealed_us = state.slot, state.time_us
        return True

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the state after this slot is written down, and signed together with the head."""
        slot = self.state.slot
        return slot > 0 and (slot % self._snapshot_every == 0 or slot == self.state.wanted_slot)

    def want_snapshot(self) -> None:
        """The state after this slot is to be signed, whatever its number."""
        self.state.wanted_slot = self.state.slot

    def snapshot(self, regency: int = 1, signs_above: int = 0) -> Snapshot:
        """All of it, after the last slot that was applied: the same bytes at every replica."""
        state = msgspec.msgpack.encode(self.state)
        return Snapshot(self.group, self.state.slot, state, regency, signs_above)

    def _place(self, slot: int, span: Span, time_us: int, content: Content) -> Placed:
        descriptors = content.descriptors
        line, partition = self._line(span.line), self._partition(span.line.target)
        offset, leaf = partition.end, self.tree.size
        leaves = leaves_of(span.line, span.first, offset, time_us, descriptors)
        for leaf_hash in leaves:
            self.tree.append(leaf_hash)
        chains = chained(partition.chain, leaves)
        partition.end += sum(map(events_in, descriptors))
        partition.batches += span.batches
        partition.chain = chains[-1]
        line.next, line.chain, line.used_in_slot = span.end, span.chain, slot
        line.recent.append(Position(span.first, span.batches, offset, time_us))
        while line.recent and _end(line.recent[0]) + RECENT_BATCHES_MIN < line.next:
            del line.recent[0]
        return Placed(
            *span.line,
            span.first,
            offset,
            leaf,
            b"".join(descriptors),
            b"".join(leaves),
            b"".join(chains),
            content.lacking,
            content.before,
            [*content.receipts],
        )

    def _line(self, line: Line) -> LineState:
        """The line, which is the one that was used last from now on."""
        lines, member = self.state.lines, member_of(line.publisher)
        state = lines.pop(line, None)
        if state is None:
            state = LineState()
            self._lines_of[member] += 1
            if self._lines_of[member] > LINES_PER_MEMBER_MAX:
                self._forget_oldest(member)
        lines[line] = state
        return state

    def _forget_oldest(self, member: MemberId) -> None:
        oldest = next(line for line in self.state.lines if member_of(line.publisher) == member)
        del self.state.lines[oldest]
        self._lines_of[member] -= 1
        self.forgotten.append(oldest)

    def _partition(self, partition: Partition) -> PartitionState:
        state = self.state.partitions.get(partition)
        if state is None:
            state = self.state.partitions[partition] = PartitionState()
        return state


def _end(position: Position) -> Sequence:
    return position.first + position.batches
