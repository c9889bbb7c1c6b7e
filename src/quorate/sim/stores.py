"""A replica's store in the simulator: what its disk holds, answered from memory."""

from bisect import bisect_left

from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.ordering import Line, Partition
from quorate.crypto.merkle import node_hash
from quorate.protocol.ordering.records import (
    DIGEST_BYTES,
    Decided,
    Held,
    Placed,
    Record,
    Snapshot,
    Stretch,
)
from quorate.protocol.ordering.replica import Found
from quorate.sim.disks import SimDisk


class Slot:
    """One batch in a partition."""

    __slots__ = ("before", "payload", "placed", "sequence", "time_us")

    def __init__(
        self,
        placed: Placed,
        sequence: Sequence,
        time_us: int,
        before: Digest,
        payload: bytes | None,
    ) -> None:
        self.placed = placed
        self.sequence = sequence
        self.time_us = time_us
        self.before = before
        self.payload = payload


class SimStore:
    """Reads what was written to a simulated disk, as soon as it was."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._read_bytes = 0
        self._held: dict[tuple[Line, Sequence], bytes] = {}
        self._partitions: dict[Partition, list[Slot]] = {}
        self._chains: dict[Partition, Digest] = {}
        self._decided: dict[tuple[int, int], Decided] = {}
        self._leaves: dict[int, list[bytes]] = {}
        self._places: dict[tuple[NodeId, int, int, Sequence], Slot] = {}
        self._all: list[Record] = []

    def found(self) -> Found:
        """What a replica that starts with this disk begins with."""
        self._catch_up()
        snapshots = {r.group: r for r in self._all if isinstance(r, Snapshot)}
        records = [record for record in self._all if not self._is_covered(record, snapshots)]
        return Found(snapshots, records)

    @staticmethod
    def _is_covered(record: Record, snapshots: dict[int, Snapshot]) -> bool:
        """Whether a snapshot makes up for a record."""
        if isinstance(record, Snapshot):
            return True
        if isinstance(record, Held):
            return False
        snapshot = snapshots.get(record.group)
        return snapshot is not None and record.slot < snapshot.slot + isinstance(record, Decided)

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        self._catch_up()
        found: list[Stretch] = []
        for slot in self._partitions.get(partition, [])[offset:]:
            if slot.payload is None or bytes_max <= 0:
                break
            bytes_max -= len(slot.payload)
            at = offset + len(found)
            found.append(
                Stretch(
                    slot.placed.publisher, at, slot.sequence, slot.time_us, slot.before,
                    [slot.payload],
                )
            )  # fmt: skip
        return found

    def chain(self, partition: Partition, offset: int) -> Digest | None:
        self._catch_up()
        slots = self._partitions.get(partition, [])
        if offset < len(slots):
            return slots[offset].before
        return self._chains.get(partition) if offset == len(slots) else None

    def bounds(self, partition: Partition) -> tuple[int, int]:
        self._catch_up()
        return 0, len(self._partitions.get(partition, []))

    def offset_at(self, partition: Partition, time_us: int) -> int:
        self._catch_up()
        slots = self._partitions.get(partition, [])
        return bisect_left(slots, time_us, key=lambda slot: slot.time_us)

    def absent(self) -> list[tuple[Partition, int, int]]:
        self._catch_up()
        return [
            (partition, offset, 1)
            for partition, slots in self._partitions.items()
            for offset, slot in enumerate(slots)
            if slot.payload is None
        ]

    def decided(self, group: int, slot: int, bytes_max: int) -> list[Decided]:
        self._catch_up()
        found: list[Decided] = []
        while bytes_max > 0 and (record := self._decided.get((group, slot))) is not None:
            found.append(record)
            bytes_max -= len(record.value) + sum(len(p.digests) for p in record.placed)
            slot += 1
        return found

    def node(self, group: int, level: int, number: int) -> bytes:
        self._catch_up()
        if level == 0:
            return self._leaves[group][number]
        left = self.node(group, level - 1, 2 * number)
        return node_hash(left, self.node(group, level - 1, 2 * number + 1))

    def _catch_up(self) -> None:
        records, self._read_bytes = self._disk.read_from(self._read_bytes)
        for record in records:
            self._all.append(record)
            if isinstance(record, Held):
                self._hold(record)
            elif isinstance(record, Decided):
                self._place(record)

    def _hold(self, held: Held) -> None:
        line = Line(held.publisher, held.topic, held.partition)
        for sequence, payload in enumerate(held.payloads, held.first):
            self._held[line, sequence] = payload
            slot = self._places.get((*line, sequence))
            if slot is not None:
                slot.payload = payload

    def _place(self, decided: Decided) -> None:
        self._decided[decided.group, decided.slot] = decided
        for placed in decided.placed:
            partition = Partition(placed.topic, placed.partition)
            line = Line(placed.publisher, *partition)
            slots = self._partitions.setdefault(partition, [])
            before = self._chains.get(partition, bytes(DIGEST_BYTES))
            leaves = self._leaves.setdefault(decided.group, [])
            for at in range(placed.count):
                sequence, cut = placed.first + at, slice(at * DIGEST_BYTES, (at + 1) * DIGEST_BYTES)
                held = self._held.get((line, sequence))
                payload = None if at in placed.lacking else held
                slot = Slot(placed, sequence, decided.time_us, before, payload)
                slots.append(slot)
                self._places[*line, sequence] = slot
                before = placed.chains[cut]
                leaves.append(placed.leaves[cut])
            self._chains[partition] = before
