"""A replica's store in the simulator: what its disk holds, answered from memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import attrgetter

import msgspec

from quorate.core.errors import LocalProtocolError
from quorate.core.ids import DIGEST_BYTES, Digest, NodeId, Sequence
from quorate.core.ordering import Line, Partition
from quorate.crypto.merkle import node_hash
from quorate.protocol.ordering.log import LogState
from quorate.protocol.ordering.records import (
    Certified,
    Decided,
    Disowned,
    Dropped,
    Held,
    Installed,
    Placed,
    Record,
    Snapshot,
    Spot,
    Stretch,
    Voted,
)
from quorate.protocol.ordering.replica import Found
from quorate.protocol.ordering.value import CHAIN_START
from quorate.sim.disks import SimDisk


class Slot:
    """One batch in a partition: its first offset, the one after its last, and the chain around."""

    __slots__ = ("after", "before", "end", "offset", "payload", "placed", "sequence", "time_us")

    def __init__(
        self, placed: Placed, at: int, offset: int, end: int, time_us: int, before: Digest
    ) -> None:
        """The batch with this number among those that were placed together; it is not here yet."""
        self.placed = placed
        self.sequence = placed.first + at
        self.offset, self.end = offset, end
        self.time_us = time_us
        self.before = before
        self.after = placed.chains[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]
        self.payload: bytes | None = None


class Kept:
    """What is kept of one partition: batches from `start` on, and the chain behind the last."""

    __slots__ = ("chain", "group", "slots", "start")

    def __init__(self, start: int = 0, chain: Digest = CHAIN_START) -> None:
        self.start = start
        self.slots: list[Slot] = []
        self.chain = chain
        # Who writes here; nobody did yet.
        self.group = -1

    @property
    def end(self) -> int:
        return self.slots[-1].end if self.slots else self.start

    def at(self, offset: int) -> int:
        """The place of the batch that has this offset, behind the last one at the end."""
        return bisect_right(self.slots, offset, key=attrgetter("end"))

    def from_on(self, offset: int) -> list[Slot]:
        """From the batch of this offset on, if that is kept."""
        return self.slots[self.at(offset) :] if self.start <= offset else []


class SimStore:
    """Reads what was written to a simulated disk, as soon as it was.

    With `slots_kept`, slots that are further back than that can no longer be told of, once there
    is a snapshot for whoever lacks them. What those need who must not start over (`steady`) is kept
    for them.
    """

    def __init__(
        self, disk: SimDisk, slots_kept: int = 1 << 62, steady: "Iterable[SimStore]" = ()
    ) -> None:
        self._disk = disk
        self._slots_kept = slots_kept
        self._steady = steady
        self._read_bytes = 0
        # Payloads whose batches have no place yet: the last one of each number.
        self._held: dict[Line, dict[Sequence, bytes]] = {}
        self._partitions: dict[Partition, Kept] = {}
        # By group: what was decided, slot by slot, and the last snapshot that was signed.
        self._decided: dict[int, dict[int, Decided]] = {}
        self._certified: dict[int, Certified] = {}
        self._trees: dict[int, Leaves] = {}
        self._places: dict[tuple[NodeId, int, int, Sequence], Slot] = {}
        self._all: list[Record] = []

    def found(self) -> Found:
        """What a replica that starts with this disk begins with, as `DiskStore` has it.

        That is payloads without a place first, and no others, then votes and decisions.
        """
        self._catch_up()
        snapshots: dict[int, Snapshot] = {}
        for record in self._all:
            if isinstance(record, Snapshot | Installed):
                snapshot = record.snapshot if isinstance(record, Installed) else record
                snapshots[record.group] = snapshot
        said = [record for record in self._all if not self._is_covered(record, snapshots)]
        return Found(snapshots, [*self._pending(), *said])

    def _pending(self) -> Iterator[Held]:
        for line, payloads in self._held.items():
            run: list[Sequence] = []
            for sequence in sorted(payloads):
                if run and sequence != run[-1] + 1:
                    yield Held(*line, run[0], [payloads[each] for each in run])
                    run = []
                run.append(sequence)
            if run:
                yield Held(*line, run[0], [payloads[each] for each in run])

    @staticmethod
    def _is_covered(record: Record, snapshots: dict[int, Snapshot]) -> bool:
        """Whether a snapshot makes up for a record, or what is pending does."""
        if not isinstance(record, Voted | Decided):
            return True
        snapshot = snapshots.get(record.group)
        return snapshot is not None and record.slot < snapshot.slot + isinstance(record, Decided)

    def is_fetching(self, partition: Partition, offset: int) -> bool:
        return False

    def may_come(self, partition: Partition, offset: int) -> bool:
        return False

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        found: list[Stretch] = []
        for slot in self._kept(partition).from_on(offset):
            if slot.payload is None or bytes_max <= 0:
                break
            bytes_max -= len(slot.payload)
            found.append(
                Stretch(
                    slot.placed.publisher, slot.offset, slot.sequence, slot.time_us, slot.before,
                    slot.after, [slot.payload],
                )
            )  # fmt: skip
        return found

    def chain(self, partition: Partition, offset: int) -> tuple[int, Digest] | None:
        kept = self._kept(partition)
        if offset == kept.end:
            return offset, kept.chain
        return next(((slot.offset, slot.before) for slot in kept.from_on(offset)), None)

    def behind(self, partition: Partition, offset: int, batches: int) -> int:
        kept = self._kept(partition)
        at = kept.at(offset) + batches
        return kept.slots[max(at, 0)].offset if at < len(kept.slots) else kept.end

    def runs(self, partition: Partition, offset: int, batches: int) -> list[tuple[int, Spot]]:
        return [
            (
                1,
                Spot(
                    slot.placed.publisher, slot.sequence, slot.time_us,
                    slot.placed.leaf + slot.sequence - slot.placed.first, slot.offset, slot.end,
                ),
            )
            for slot in self._kept(partition).from_on(offset)[:batches]
        ]  # fmt: skip

    def bounds(self, partition: Partition) -> tuple[int, int]:
        kept = self._kept(partition)
        return kept.start, kept.end

    def taken(self, partition: Partition) -> int:
        """Nothing is: whoever begins later started over."""
        return 0

    def offset_at(self, partition: Partition, time_us: int) -> int:
        kept = self._kept(partition)
        at = bisect_left(kept.slots, time_us, key=lambda slot: slot.time_us)
        return kept.slots[at].offset if at < len(kept.slots) else kept.end

    def absent(self) -> list[tuple[Partition, int, int]]:
        self._catch_up()
        return [
            (partition, slot.offset, 1)
            for partition, kept in self._partitions.items()
            for slot in kept.slots
            if slot.payload is None
        ]

    def placed_at(self, group: int, partition: Partition, offset: int) -> tuple[int, Placed] | None:
        found = self._kept(partition).from_on(offset)[:1]
        return next(((slot.time_us, slot.placed) for slot in found), None)

    def decided(self, group: int, slot: int, bytes_max: int) -> list[Decided]:
        found: list[Decided] = []
        first, end = self.slots(group)
        while bytes_max > 0 and first <= slot < end:
            record = self._decided[group][slot]
            found.append(record)
            bytes_max -= len(record.value) + sum(len(p.descriptors) for p in record.placed)
            slot += 1
        return found

    def slots(self, group: int) -> tuple[int, int]:
        self._catch_up()
        decided, certified = self._decided.get(group, {}), self._certified.get(group)
        if not decided:
            after = certified.slot + 1 if certified is not None else 0
            return after, after
        first, last = min(decided), max(decided)
        covered = 0 if certified is None else certified.slot
        needed = min((store.next_slot(group) for store in self._steady), default=last)
        return max(first, min(last - self._slots_kept, covered, needed - 1) + 1), last + 1

    def next_slot(self, group: int) -> int:
        self._catch_up()
        return max(self._decided.get(group, {}), default=0) + 1

    def certified(self, group: int) -> Certified | None:
        self._catch_up()
        return self._certified.get(group)

    def node(self, group: int, level: int, number: int) -> bytes:
        self._catch_up()
        return self._trees[group].node(level, number)

    def history(self) -> list[Record]:
        """Everything that was ever written and is still there."""
        self._catch_up()
        return self._all

    def _kept(self, partition: Partition) -> Kept:
        self._catch_up()
        kept = self._partitions.get(partition)
        return Kept() if kept is None else kept

    def _catch_up(self) -> None:
        records, self._read_bytes = self._disk.read_from(self._read_bytes)
        for record in records:
            self._all.append(record)
            if isinstance(record, Held):
                self._hold(record)
            elif isinstance(record, Dropped):
                self._held.pop(Line(record.publisher, record.topic, record.partition), None)
            elif isinstance(record, Decided):
                self._place(record)
            elif isinstance(record, Disowned):
                self._disown(record)
            elif isinstance(record, Certified):
                self._certified[record.group] = record
            elif isinstance(record, Installed):
                self._start_over(record)

    def _hold(self, held: Held) -> None:
        line = Line(held.publisher, held.topic, held.partition)
        for sequence, payload in enumerate(held.payloads, held.first):
            slot = self._places.get((*line, sequence))
            if slot is not None and slot.payload is None:
                slot.payload = payload
            else:
                self._held.setdefault(line, {})[sequence] = payload

    def _place(self, decided: Decided) -> None:
        self._decided.setdefault(decided.group, {})[decided.slot] = decided
        tree = self._trees.setdefault(decided.group, Leaves(0, []))
        for placed in decided.placed:
            partition = Partition(placed.topic, placed.partition)
            line = Line(placed.publisher, *partition)
            kept = self._partitions.setdefault(partition, Kept())
            if placed.offset != kept.end:
                raise LocalProtocolError(f"offset {placed.offset}, but {kept.end} is next")
            kept.group = decided.group
            for at, (offset, end) in enumerate(pairwise(placed.offsets)):
                held = self._held.get(line, {}).pop(placed.first + at, None)
                slot = Slot(placed, at, offset, end, decided.time_us, kept.chain)
                slot.payload = None if at in placed.lacking else held
                kept.slots.append(slot)
                kept.chain = slot.after
                self._places[*line, slot.sequence] = slot
                tree.leaves.append(placed.leaves[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES])

    def _disown(self, disowned: Disowned) -> None:
        partition = Partition(disowned.topic, disowned.partition)
        kept = self._partitions.get(partition)
        if kept is not None and kept.group == disowned.group:
            del self._partitions[partition]

    def _start_over(self, installed: Installed) -> None:
        """As `DiskStore` does: everything that this group had before is void."""
        state = msgspec.msgpack.decode(installed.state, type=LogState)
        self._decided[installed.group] = {}
        self._trees[installed.group] = Leaves(state.size, state.edge)
        for partition, now in state.partitions.items():
            self._partitions[partition] = Kept(now.end, now.chain)
        self._places = {
            place: slot
            for place, slot in self._places.items()
            if place[1:3] not in state.partitions
        }
        for line, goes_on in state.lines.items():
            held = self._held.get(line, {})
            for sequence in [each for each in held if each < goes_on.next]:
                del held[sequence]


class Leaves:
    """A tree that begins with the right edge of another."""

    def __init__(self, start: int, edge: list[Digest]) -> None:
        self.start = start
        self.leaves: list[Digest] = []
        self._edge = list(edge)

    def node(self, level: int, number: int) -> Digest:
        first, end = number << level, (number + 1) << level
        if end <= self.start:
            return self._known(level, number)
        if level == 0:
            return self.leaves[first - self.start]
        left = self.node(level - 1, 2 * number)
        return node_hash(left, self.node(level - 1, 2 * number + 1))

    def _known(self, level: int, number: int) -> Digest:
        at, size = 0, self.start
        heights = [bit for bit in reversed(range(size.bit_length())) if size >> bit & 1]
        for height, node in zip(heights, self._edge, strict=True):
            if (height, at) == (level, number << level):
                return node
            at += 1 << height
        raise LocalProtocolError(f"node {number} of level {level} lies before leaf {self.start}")
