"""A replica's store: one journal, and what is derived from it for reading.

A record is written to the journal and takes effect (`derived.py`). A checkpoint saves what it
adds up to, once the journal is synced so far; starting means loading the checkpoint and applying
what came after.

What follows from a decision is known again after a crash, so index and tree files are synced at
checkpoints only. `trim`, `keep_slots_from` and `forget` leave no record: a crash before the next
checkpoint undoes them, and whoever asked for them asks again.

One thread uses the store. `sync` and `sync_now` may run in another thread meanwhile.
"""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from quorate.core.errors import LocalProtocolError
from quorate.core.ids import Digest
from quorate.core.ids import Sequence as SequenceNumber
from quorate.core.ordering import Line, Partition
from quorate.protocol.ordering.records import (
    Certified,
    Decided,
    Disowned,
    Held,
    Installed,
    Placed,
    Record,
    Snapshot,
    Spot,
    Stretch,
    Voted,
)
from quorate.storage.checkpoint import (
    CERTIFIED,
    CHECKPOINTS,
    SNAPSHOTS,
    Checkpoint,
    SavedSnapshot,
    load_snapshots,
)
from quorate.storage.cleaning import Cleaned, Cleaner
from quorate.storage.columns import CHUNK_ENTRIES
from quorate.storage.derived import Derived
from quorate.storage.errors import DiskFullError, RefusedRecordError, StorageError
from quorate.storage.files import RESERVE_BYTES, Files, Reserve, lock_directory, make_directory
from quorate.storage.formats import Format
from quorate.storage.heads import SEGMENTS, Entry
from quorate.storage.index import Index
from quorate.storage.journal import SEGMENT_BYTES, WITNESSES, Journal
from quorate.storage.pending import Run, Source
from quorate.storage.places import unpack
from quorate.storage.pointers import POINTERS
from quorate.storage.reading import gather, payloads_from, spots, stretches, surplus_end
from quorate.storage.segments import Frame

Replayed: TypeAlias = Held | Voted | Decided
FsyncPolicy: TypeAlias = Literal["always", "interval", "never"]

_GIVES_UP: Final[dict[FsyncPolicy, str]] = {
    "always": "",
    "interval": (
        "What was acknowledged since the last sync is lost if the machine loses power, "
        "though not if only the process crashes."
    ),
    "never": (
        "What was acknowledged and the operating system has not written of its own accord is "
        "lost if the machine loses power, though not if only the process crashes."
    ),
}
# Of all that a store has on disk.
FORMATS: Final[tuple[Format[Any], ...]] = (
    SEGMENTS, CHECKPOINTS, SNAPSHOTS, CERTIFIED, WITNESSES, POINTERS,
)  # fmt: skip
# Changed index entries wait in memory for a checkpoint; so many of them bring one about.
_PATCHES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Recovered:
    """The newest snapshot of each group that has one, and what came after.

    `records` has the payloads that are held and not decided, then what was voted and decided
    behind the snapshots, in the order of writing. It reads from the journal as it goes, so it
    must be used up before the store is cleaned. `replayed` says how many records of the journal
    were read again.
    """

    snapshots: dict[int, Snapshot]
    records: Iterator[Replayed]
    replayed: int
    # Why the first record that was skipped of a group does not fit, by group.
    skipped: dict[int, str]


class DiskStore:
    """The store of a replica in a directory: the `Store` of its machines, and their journal."""

    def __init__(
        self,
        directory: Path,
        *,
        fsync: FsyncPolicy = "always",
        segment_bytes: int = SEGMENT_BYTES,
        chunk_entries: int = CHUNK_ENTRIES,
        open_files_max: int = 64,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        if fsync not in _GIVES_UP:
            raise LocalProtocolError(f"fsync is one of {', '.join(_GIVES_UP)}, not {fsync!r}")
        self._fsync: FsyncPolicy = fsync
        self._directory = directory
        self._owed: dict[int, Snapshot] = {}
        self._owed_certified: dict[int, Certified] = {}
        self._wanted: list[int] = []
        self._replayed = 0
        self._skipped: dict[int, str] = {}
        index_directory = directory / "index"
        make_directory(index_directory)
        with ExitStack() as stack:
            stack.callback(os.close, lock_directory(directory))
            self._files = Files(open_files_max)
            stack.callback(self._files.close)
            checkpoint = _checkpoint(directory, chunk_entries)
            self._snapshots = load_snapshots(directory)
            self._journal = Journal(
                directory,
                self._files,
                segment_bytes=segment_bytes,
                synced=checkpoint.position,
                waits=self.syncs,
            )
            stack.callback(self._journal.close)
            slots = {group: saved.snapshot.slot for group, saved in self._snapshots.items()}
            self._derived = Derived(
                self._files, index_directory, self._journal.segments, checkpoint, slots
            )
            self._replay(checkpoint)
            self._resources = stack.pop_all()
        self._reserve = Reserve(directory / "reserve", reserve_bytes)
        with suppress(DiskFullError):
            self._reserve.fill()

    @property
    def syncs(self) -> bool:
        """Whether what is said may have to wait for `sync`."""
        return self._fsync == "always"

    @property
    def gives_up(self) -> str:
        """What the fsync policy risks, in a sentence; nothing if it syncs always."""
        return _GIVES_UP[self._fsync]

    # Writing

    def append(self, records: Iterable[Record]) -> None:
        """Write records, all or none, and let them take effect.

        A snapshot is saved behind the other records. If there is no room for it, it is owed: the
        next append saves it, and until then the one before it stays. One that is installed is a
        record too, since it says what becomes of everything before it.
        """
        entries: list[Entry] = []
        snapshots: dict[int, Snapshot] = {}
        for record in records:
            if isinstance(record, Snapshot):
                snapshots[record.group] = record
            elif isinstance(record, Certified):
                self._owed_certified[record.group] = record
            else:
                entries.append(record)
                if isinstance(record, Installed):
                    snapshots[record.group] = record.snapshot
        self._derived.refuse_gaps(entries)
        self._append(entries)
        self._owed |= snapshots
        if any(isinstance(entry, Disowned) for entry in entries):
            # Whoever writes there next writes into the same files, which no checkpoint may have.
            with suppress(DiskFullError):
                self.checkpoint()
        if self._owed or self._derived.patches > _PATCHES_MAX:
            with suppress(DiskFullError):
                self._save_owed()
        if self._owed_certified:
            with suppress(DiskFullError):
                for certified in list(self._owed_certified.values()):
                    CERTIFIED.save(self._directory / f"certified-{certified.group}", certified)
                    del self._owed_certified[certified.group]

    def sync(self) -> None:
        """What was appended is safe from now on, as far as the fsync policy promises."""
        if self._fsync == "always":
            self._journal.sync()

    def sync_now(self) -> None:
        """What was appended is safe from now on, whatever the policy."""
        self._journal.sync()

    def checkpoint(self) -> None:
        """Sync everything, so that starting begins here. Nothing needs it, but it saves time."""
        self._journal.sync()
        self._derived.sync()
        saved = self._derived.checkpoint(self._journal.end)
        CHECKPOINTS.save(self._directory / "checkpoint", saved)
        self._derived.saved()

    def close(self) -> None:
        """Leave a checkpoint, if there is room, and release the files."""
        with self._resources, suppress(DiskFullError):
            self.checkpoint()

    def recover(self) -> Recovered:
        """What the machines need to go on from where they were; to be asked for once."""
        wanted, self._wanted = self._wanted, []
        saved, self._snapshots = self._snapshots, {}
        records = self._replayed_records(list(self._derived.pending), wanted)
        snapshots = {group: each.snapshot for group, each in saved.items()}
        return Recovered(snapshots, records, self._replayed, self._skipped)

    # Reading

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        """What stands there, from the batch of this offset on: at least one batch if it is here, up
        to about so many bytes. It ends before the first batch whose payload this replica lacks.
        """
        index, number = self._found(partition, offset)
        if index is None:
            return []
        try:
            payloads = payloads_from(self._journal.segments, index, number, bytes_max)
        except StorageError as error:
            raise StorageError(
                f"partition {partition.number} of topic {partition.topic} cannot be read from "
                f"offset {offset} on: {error}"
            ) from error
        return stretches(index, number, payloads)

    def is_fetching(self, partition: Partition, offset: int) -> bool:
        """Whether the payload there is on its way from outside; here, nothing ever is."""
        return False

    def may_come(self, partition: Partition, offset: int) -> bool:
        """Whether the payload there is outside and may yet be had."""
        return False

    def chain(self, partition: Partition, offset: int) -> tuple[int, Digest] | None:
        """Where the batch of this offset begins, and the partition's chain before it, if that is
        still known. At the end there is a chain as well.
        """
        index = self._derived.index_of(partition)
        if not index.start_offset <= offset <= index.end_offset:
            return None
        number = index.number_of(offset)
        return index.offset_of(number), index.chains(number, 1)

    def behind(self, partition: Partition, offset: int, batches: int) -> int:
        """The offset after so many batches from that of this offset on, or so many before it if the
        number is negative; no further than what is kept.
        """
        index = self._derived.index_of(partition)
        number = index.number_of(min(max(offset, index.start_offset), index.end_offset))
        return index.offset_of(min(max(number + batches, index.start), index.end))

    def spot(self, partition: Partition, offset: int) -> Spot | None:
        """Whose batch stands there, if this offset is kept."""
        return next((spot for _, spot in self.runs(partition, offset, 1)), None)

    def runs(self, partition: Partition, offset: int, batches: int) -> list[tuple[int, Spot]]:
        """The same of so many batches, those that were decided together as one."""
        index, number = self._found(partition, offset)
        return [] if index is None else spots(index, number, min(number + batches, index.end))

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """The first offset that is kept, and the one after the last."""
        index = self._derived.index_of(partition)
        return index.start_offset, index.end_offset

    def taken(self, partition: Partition) -> int:
        """Before this offset retention took everything, for all that this replica knows."""
        return self._derived.index_of(partition).taken

    def offset_at(self, partition: Partition, time_us: int) -> int:
        """The first offset that was decided at this time or later; the end if there is none."""
        return self._derived.index_of(partition).offset_at(time_us)

    def absent(self) -> list[tuple[Partition, int, int]]:
        """Offsets, and how many batches from each on, whose payloads are not here: the latest."""
        return self._derived.absent()

    def placed_at(self, group: int, partition: Partition, offset: int) -> tuple[int, Placed] | None:
        """When this offset was decided, and what was put there together, if it is still known."""
        spot = self.spot(partition, offset)
        if spot is None:
            return None
        time_us = spot.time_us
        # Several slots may have one time.
        for slot in range(self.slot_at(group, time_us), self.slots(group)[1]):
            (decided,) = self.decided(group, slot, 0)
            if decided.time_us != time_us:
                break
            for placed in decided.placed:
                target = (placed.topic, placed.partition)
                if target == partition and placed.offset <= offset < placed.end:
                    return time_us, placed
        return None

    def decided(self, group: int, slot: int, bytes_max: int) -> list[Decided]:
        """Slots from this one on, up to about so many bytes of records."""
        found: list[Decided] = []
        known = self._derived.group(group)
        start, end = known.slots
        while start <= slot < end:
            frame = self._journal.segments.frame(known.decided_at(slot))
            bytes_max -= frame.end - frame.position
            if (found and bytes_max < 0) or not isinstance(frame.head, Decided):
                break
            found.append(frame.head)
            slot += 1
        return found

    def slots(self, group: int) -> tuple[int, int]:
        """The first slot that can still be told of, and the one after the last."""
        return self._derived.group(group).slots

    def certified(self, group: int) -> Certified | None:
        """The last snapshot that a quorum signed."""
        owed = self._owed_certified.get(group)
        return CERTIFIED.load(self._directory / f"certified-{group}") if owed is None else owed

    def node(self, group: int, level: int, number: int) -> bytes:
        """A perfect tree's hash in the order log of a group; level 0 has the leaves.

        Of the leaves before a snapshot that the group started over with, only those nodes are
        known that later leaves need for their proofs; asking for another one is an error.
        """
        return self._derived.group(group).tiles.node(level, number)

    # Retention

    def trim(self, partition: Partition, offset: int) -> None:
        """Drop every batch that ends at this offset or before it."""
        index = self._derived.index_of(partition)
        if offset > index.start_offset:
            self._derived.trim(index, index.number_of(min(offset, index.end_offset)))

    def first_time_us(self, partition: Partition) -> int | None:
        """When the first batch that is kept of a partition was decided, if there is one."""
        return self._derived.index_of(partition).first_time_us

    def slot_at(self, group: int, time_us: int) -> int:
        """The first slot that is kept and was decided then or later; the next one if none was."""
        slots = range(*self._derived.group(group).slots)
        at = bisect_left(slots, time_us, key=lambda slot: self.decided(group, slot, 0)[0].time_us)
        return slots.start + at

    def keep_slots_from(self, group: int, slot: int) -> None:
        """Decisions before this slot need not be served any more."""
        self._derived.group(group).keep_from(slot)

    def forget(self, line: Line, before: SequenceNumber) -> None:
        """Give up payloads that will not be decided: those before this sequence number."""
        self._derived.forget(line, before)

    def partitions(self) -> list[Partition]:
        return [index.partition for index in self._derived.indexes.values()]

    def bytes_held(self, partition: Partition) -> int:
        """Payload bytes of a partition that this replica has."""
        return self._derived.index_of(partition).bytes_held

    def surplus(self, partition: Partition, bytes_max: int, *, absent_bytes: int = 0) -> int:
        """The offset to trim to, if no more than so many bytes shall be held.

        A batch whose payload is not here counts for so many.
        """
        index = self._derived.index_of(partition)
        return index.offset_of(surplus_end(index, bytes_max, absent_bytes))

    def clean(self, *, segments_max: int = 4) -> Cleaned:
        """Delete segments that nothing needs, and empty up to so many that hold little."""
        try:
            self._save_owed()
        except DiskFullError:
            self._reserve.release()
            self._save_owed()
        derived, segments = self._derived, self._journal.segments
        floor = derived.replay_from(self._journal.end)
        cleaner = Cleaner(segments, derived.usage, floor, derived.kept_slots)
        deleted, copied = cleaner.delete_dead(), 0
        sparse = cleaner.sparse()[:segments_max]
        for entry in cleaner.copies(sparse, derived.pending, derived.indexes.values()):
            self._append([entry])
            copied += sum(map(len, entry.payloads))
        if sparse:
            # The copies, and that they are what counts, are on disk before the old ones go.
            self.checkpoint()
            deleted += cleaner.delete_dead()
        with suppress(DiskFullError):
            self._reserve.fill()
        return Cleaned(deleted, copied)

    def _found(self, partition: Partition, offset: int) -> tuple[Index, int] | tuple[None, int]:
        """The batch that has this offset, by its number in the index, if it is kept."""
        index = self._derived.index_of(partition)
        if not index.start_offset <= offset < index.end_offset:
            return None, 0
        return index, index.number_of(offset)

    def _append(self, entries: Sequence[Entry]) -> None:
        if entries:
            for frame in self._journal.append(entries):
                self._derived.note(frame)
                self._derived.apply(frame)

    def _save_owed(self) -> None:
        """A checkpoint, and the snapshots that wait for one."""
        # The checkpoint does not count on the new snapshots yet: a crash may come between.
        self.checkpoint()
        for snapshot in list(self._owed.values()):
            group = self._derived.group(snapshot.group)
            replay = group.replay_after(snapshot.slot, self._journal.end)
            path = self._directory / f"snapshot-{snapshot.group}"
            SNAPSHOTS.save(path, SavedSnapshot(snapshot, replay))
            group.snapshot_taken(snapshot.slot)
            del self._owed[snapshot.group]

    def _replay(self, checkpoint: Checkpoint) -> None:
        """Apply what came after the checkpoint, and note what the machines must hear again."""
        for frame in self._journal.replay(self._replay_start(checkpoint)):
            self._replayed += 1
            if frame.position >= checkpoint.position and self._skips(frame):
                continue
            if self._derived.note(frame):
                self._wanted.append(frame.position)
                if isinstance(frame.head, Installed):
                    self._begin_with(frame.head, frame.position)
            if frame.position >= checkpoint.position:
                self._derived.apply(frame)

    def _skips(self, frame: Frame) -> bool:
        """Whether a record would be refused if it were written today."""
        if not isinstance(frame.head, Decided | Installed):
            return False
        try:
            self._derived.refuse_gaps([frame.head])
        except RefusedRecordError as error:
            self._skipped.setdefault(error.group, str(error))
            return True
        return False

    def _replayed_records(
        self, pending: Sequence[tuple[Source, Run]], positions: Sequence[int]
    ) -> Iterator[Replayed]:
        segments = self._journal.segments
        for source, run in pending:
            yield Held(*source, run.first, gather(segments, *unpack(run.places)))
        for position in positions:
            head = segments.frame(position).head
            # A snapshot that was installed later may have made it void.
            if isinstance(head, Voted | Decided) and self._derived.is_needed(head):
                yield head

    def _begin_with(self, installed: Installed, position: int) -> None:
        """The crash came before the snapshot had its file."""
        saved = self._snapshots.get(installed.group)
        if saved is None or saved.snapshot.slot < installed.slot:
            self._snapshots[installed.group] = SavedSnapshot(installed.snapshot, position)
            self._owed[installed.group] = installed.snapshot

    def _replay_start(self, checkpoint: Checkpoint) -> int:
        """The lowest position that the files or any group's machine need."""
        starts = [checkpoint.position]
        for state in checkpoint.groups:
            # The later one is right: the snapshot may be newer than the checkpoint, or older.
            saved = self._snapshots.get(state.group)
            starts.append(state.replay if saved is None else max(state.replay, saved.replay))
        return min(starts)


def _checkpoint(directory: Path, chunk_entries: int) -> Checkpoint:
    checkpoint = CHECKPOINTS.load(directory / "checkpoint") or Checkpoint(0, chunk_entries)
    if checkpoint.chunk_entries != chunk_entries:
        raise StorageError(
            f"{directory} has index chunks of {checkpoint.chunk_entries} entries, "
            f"not {chunk_entries}"
        )
    return checkpoint
