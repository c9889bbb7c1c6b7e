"""The order log: what the decided slots add up to.

Decisions are applied in the order of slots, alike on every replica. A decision gives each of its
batches the next offsets of its partition, a leaf in the group's Merkle tree (RFC 6962), and a link
in the partition's chain, by which readers know that they see what others see.

The state is small, whatever the length of the log: per line the next sequence number and chain,
which is how duplicates and replays are recognised; per partition its end; the right edge of the
tree; and the cluster's own state, where commands are ordered. A snapshot has all of it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.ids import Digest, MemberId, NodeId, Sequence, member_of
from quorate.core.limits import SNAPSHOT_EVERY
from quorate.core.ordering import Line, Partition
from quorate.crypto.merkle import Tree
from quorate.protocol.control.state import (
    SESSIONS_PER_MEMBER_MAX,
    STREAMS_PER_MEMBER_MAX,
    ControlState,
)
from quorate.protocol.ordering.records import Decided, Placed, Receipted, Snapshot
from quorate.protocol.ordering.value import (
    CHAIN_START,
    Span,
    Value,
    chained,
    leaves_at,
    offsets_of,
)

# Of the log's own time, and of its slots, between two checkpoints.
SEAL_EVERY_US = 50_000
SEAL_EVERY_SLOTS = 64
# Positions of a line's last batches are kept for publishers that missed their receipts.
RECENT_BATCHES_MIN = 1024
# A client has so many lines, and so many more for its commands. A line stays until its session has
# ended for good, and a new line beyond the bound is refused.
LINES_PER_MEMBER_MAX = STREAMS_PER_MEMBER_MAX
COMMAND_LINES_PER_MEMBER_MAX = 2 * SESSIONS_PER_MEMBER_MAX
# A client has so many of these. Beyond that, the line that was used longest ago loses some.
POSITIONS_PER_MEMBER_MAX = 2048


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


class LineState(msgspec.Struct, array_like=True):
    """Where a line goes on."""

    next: Sequence = 1
    chain: Digest = CHAIN_START
    recent: list[Position] = []


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
        # Sessions with lines here that have ended for good, and are named by the next value.
        self.ending: dict[NodeId, None] = {}
        self._snapshot_every = snapshot_every
        self.start_from(LogState() if state is None else state)

    def start_from(self, state: LogState) -> None:
        """Go on from this state, whatever we had."""
        self.state = state
        self.tree = Tree(state.size, state.edge)
        self.forgotten.clear()
        self.ending.clear()
        self.sessions: dict[NodeId, dict[Line, None]] = {}
        # By client: how many lines, and how many positions of them are kept.
        self._lines_of: Counter[tuple[MemberId, bool]] = Counter()
        self._positions_of: Counter[MemberId] = Counter()
        # Lines with such positions, and the one that was used longest ago first.
        self._placed: defaultdict[MemberId, dict[Line, None]] = defaultdict(dict)
        for line, known in state.lines.items():
            self._note_line(line)
            if known.recent:
                self._positions_of[member_of(line.publisher)] += len(known.recent)
                self._placed[member_of(line.publisher)][line] = None

    def line(self, line: Line) -> LineState:
        """Where this line goes on; one that was never heard of begins."""
        state = self.state.lines.get(line)
        return LineState() if state is None else state

    def partition(self, partition: Partition) -> PartitionState:
        state = self.state.partitions.get(partition)
        return PartitionState() if state is None else state

    def beyond(self, lines: Iterable[Line], ended: Collection[NodeId] = ()) -> list[Line]:
        """Those of these lines that have to wait, as there are as many of their clients as may be.

        `ended` are sessions whose lines are forgotten before.
        """
        begun: Counter[tuple[MemberId, bool]] = Counter()
        beyond: list[Line] = []
        for line in lines:
            if line in self.state.lines:
                continue
            account = _account(line)
            if not begun[account]:
                begun[account] = self._lines_of[account] - sum(
                    _account(other) == account
                    for node in ended
                    if member_of(node) == account[0]
                    for other in self.sessions.get(node, ())
                )
            if begun[account] >= (
                COMMAND_LINES_PER_MEMBER_MAX if account[1] else LINES_PER_MEMBER_MAX
            ):
                beyond.append(line)
            begun[account] += 1
        return beyond

    def fits(self, span: Span) -> bool:
        """Does this span take up its line where it was left?"""
        return span.first == self.line(span.line).next

    def apply(
        self, slot: int, digest: Digest, encoded: bytes, value: Value, contents: Iterable[Content]
    ) -> Decided:
        """Carry a decision out, given the contents of each of its spans."""
        state = self.state
        for node in value.ended:
            self._forget_session(node)
        placed = [
            self._place(span, value.time_us, content)
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

    def _place(self, span: Span, time_us: int, content: Content) -> Placed:
        descriptors = content.descriptors
        line, partition = self._line(span.line), self._partition(span.line.target)
        offset, leaf = partition.end, self.tree.size
        offsets = offsets_of(offset, descriptors)
        leaves = leaves_at(span.line, span.first, offsets, time_us, descriptors)
        for leaf_hash in leaves:
            self.tree.append(leaf_hash)
        chains = chained(partition.chain, leaves)
        partition.end = offsets[-1]
        partition.batches += span.batches
        partition.chain = chains[-1]
        line.next, line.chain = span.end, span.chain
        self._keep_position(span, line, Position(span.first, span.batches, offset, time_us))
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
        lines = self.state.lines
        state = lines.pop(line, None)
        if state is None:
            state = LineState()
            self._note_line(line)
        lines[line] = state
        return state

    def _note_line(self, line: Line) -> None:
        self.sessions.setdefault(line.publisher, {})[line] = None
        self._lines_of[_account(line)] += 1

    def _forget_session(self, node: NodeId) -> None:
        """Nothing more of this session is ordered: it has ended for good."""
        self.ending.pop(node, None)
        for line in self.sessions.pop(node, ()):
            self._lines_of[_account(line)] -= 1
            self._placed[member_of(node)].pop(line, None)
            self._positions_of[member_of(node)] -= len(self.state.lines.pop(line).recent)
            self.forgotten.append(line)

    def _keep_position(self, span: Span, line: LineState, position: Position) -> None:
        """Keep where this is, and forget what is too old, or too much for one client."""
        member = member_of(span.publisher)
        before = len(line.recent)
        line.recent.append(position)
        while line.recent and _end(line.recent[0]) + RECENT_BATCHES_MIN < line.next:
            del line.recent[0]
        self._positions_of[member] += len(line.recent) - before
        placed = self._placed[member]
        placed.pop(span.line, None)
        placed[span.line] = None
        if self._positions_of[member] > POSITIONS_PER_MEMBER_MAX:
            oldest = next(iter(placed))
            recent = self.state.lines[oldest].recent
            count = (len(recent) + 1) // 2
            del recent[:count]
            self._positions_of[member] -= count
            if not recent:
                del placed[oldest]

    def _partition(self, partition: Partition) -> PartitionState:
        state = self.state.partitions.get(partition)
        if state is None:
            state = self.state.partitions[partition] = PartitionState()
        return state


def _account(line: Line) -> tuple[MemberId, bool]:
    """Whose line this is, and whether it is one of commands."""
    return member_of(line.publisher), line.topic == CONTROL_TOPIC_ID


def _end(position: Position) -> Sequence:
    return position.first + position.batches
