"""What the journal adds up to: indexes, trees, slots, and what is pending.

Every record takes effect through `apply`, whether it was just written or is read back when the
replica starts, so that both lead to the same state. Memory has what is pending and what waits for
a checkpoint; everything that grows with the log is in column files.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from quorate.core.ids import SEQUENCE_MAX
from quorate.core.ordering import Partition
from quorate.protocol.ordering.log import LogState
from quorate.protocol.ordering.records import (
    Decided,
    Disowned,
    Dropped,
    Installed,
    Placed,
    Voted,
)
from quorate.storage.absents import Absents
from quorate.storage.checkpoint import Checkpoint
from quorate.storage.columns import Column
from quorate.storage.errors import RefusedRecordError
from quorate.storage.files import Files, sync_directory
from quorate.storage.groups import Group, GroupState
from quorate.storage.heads import Entry, HeldHead, MovedHead
from quorate.storage.index import Index, IndexState
from quorate.storage.pending import Gap, Pending, Source
from quorate.storage.places import (
    ABSENT,
    PLACE_BYTES,
    absent_runs,
    events_of,
    is_absent,
    pack_run,
    present,
)
from quorate.storage.segments import Frame, Segments
from quorate.storage.usage import Usage


class Derived:
    """The state at the end of the journal, or wherever one has got in applying it."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        segments: Segments,
        checkpoint: Checkpoint,
        snapshot_slots: Mapping[int, int],
    ) -> None:
        self.indexes: dict[tuple[int, int], Index] = {}
        self.pending = Pending()
        self.usage = Usage(segments, checkpoint.segments)
        # Index entries that changed since the last checkpoint.
        self.patches = 0
        self._groups: dict[int, Group] = {}
        self._absents = Absents()
        # Chunk files of what was started over. The last checkpoint may still need them.
        self._void: set[str] = set()
        self._files = files
        self._directory = directory
        self._chunk_entries = checkpoint.chunk_entries
        # In place of the index of a partition in which nothing was ever put.
        nothing = IndexState(0, 0, 0, 0)
        self._nothing = Index(files, str(directory), nothing, checkpoint.chunk_entries)
        for source, run in checkpoint.pending:
            self.pending.hold(source, run.first, run.places)
        for source, gap in checkpoint.absents:
            self._absents.add(source, gap)
        for index_state in checkpoint.indexes:
            self._add_index(index_state).restore()
        for group_state in checkpoint.groups:
            for column in self._add_group(group_state).columns:
                column.restore()
        for number, slot in snapshot_slots.items():
            self.group(number).snapshot_taken(slot)
        self._sweep()

    def group(self, number: int) -> Group:
        group = self._groups.get(number)
        return self._add_group(GroupState(number, 0)) if group is None else group

    def index_of(self, partition: tuple[int, int]) -> Index:
        """What is kept of a partition; nothing may be appended to it."""
        return self.indexes.get(partition, self._nothing)

    @property
    def kept_slots(self) -> dict[int, int]:
        """The first slot that must be served, by group."""
        return {number: group.slots[0] for number, group in self._groups.items()}

    def replay_from(self, position: int) -> int:
        """Nothing before this is needed for starting, if a checkpoint stands at `position`."""
        return min(
            (group.replay_from(position) for group in self._groups.values()), default=position
        )

    def refuse_gaps(self, entries: Iterable[Entry]) -> None:
        """A decision that leaves out a slot, a leaf or an offset must not even be written, nor one
        that names a partition of another group."""
        owners: dict[tuple[int, int], int] = {}
        slots: dict[int, int] = {}
        leaves: dict[int, int] = {}
        ends: dict[tuple[int, int], int] = {}
        for entry in entries:
            if isinstance(entry, Installed):
                slot = slots.get(entry.group, self.group(entry.group).next_slot)
                if slot is not None and entry.slot < slot:
                    raise RefusedRecordError(
                        entry.group,
                        f"a snapshot of slot {entry.slot} is installed, but {slot} is next",
                    )
                state = _state_of(entry)
                for target in state.partitions:
                    self._refuse_others(entry, target, owners)
                slots[entry.group], leaves[entry.group] = entry.slot + 1, state.size
                ends |= {target: now.end for target, now in state.partitions.items()}
            if not isinstance(entry, Decided):
                continue
            group = self.group(entry.group)
            slot = slots.get(entry.group, group.next_slot)
            if slot is not None and entry.slot != slot:
                raise _gap(entry.group, "slot", entry.slot, slot)
            for placed in entry.placed:
                self._refuse_others(entry, (placed.topic, placed.partition), owners)
            slots[entry.group] = entry.slot + 1
            leaf = leaves.get(entry.group, group.tiles.leaves)
            leaves[entry.group] = self._refuse_placed(entry, leaf, ends)

    def note(self, frame: Frame) -> bool:
        """Remember from where on a group must be replayed; says whether this record must."""
        head = frame.head
        if isinstance(head, Installed):
            return self.group(head.group).mark_installed(head.slot, frame.position)
        if not isinstance(head, Voted | Decided) or not self.is_needed(head):
            return False
        self.group(head.group).mark(head.slot, frame.position)
        return True

    def is_needed(self, head: Voted | Decided) -> bool:
        """Whether the machine must hear of this record again.

        What was voted in the snapshot's own slot is still asked for when the leader changes.
        """
        taken = self.group(head.group).snapshot_slot
        return head.slot > taken or (head.slot == taken and isinstance(head, Voted))

    def apply(self, frame: Frame) -> None:
        head = frame.head
        if isinstance(head, HeldHead):
            self._apply_held(head, frame.payloads_at)
        elif isinstance(head, Dropped):
            self.forget((head.publisher, head.topic, head.partition), SEQUENCE_MAX)
        elif isinstance(head, Decided):
            self._apply_decided(head, frame.position)
        elif isinstance(head, MovedHead):
            self._apply_moved(head, frame.payloads_at)
        elif isinstance(head, Installed):
            self._apply_installed(head)
        elif isinstance(head, Disowned):
            self._apply_disowned(head)

    def trim(self, index: Index, number: int) -> None:
        """Give up what stands before this batch."""
        while index.start < number:
            count = min(number - index.start, self._chunk_entries)
            places = index.places(index.start, count)
            self.usage.remove(present(places))
            index.trim(index.start + count, places)

    def absent(self) -> list[tuple[Partition, int, int]]:
        """Offsets, and how many batches from each on, whose payloads are not here."""
        found: list[tuple[Partition, int, int]] = []
        for source, gap in self._absents:
            index = self.indexes[source[1:]]
            trimmed = max(0, index.start - gap.number)
            if (count := gap.end - gap.first - trimmed) > 0:
                found.append((index.partition, index.offset_of(gap.number + trimmed), count))
        return found

    def forget(self, source: Source, before: int) -> None:
        """Give up pending payloads before this sequence number."""
        self.usage.remove(present(self.pending.take_before(source, before)))

    def sync(self) -> None:
        """Sync all columns. What they say must be in the journal for good already."""
        columns = self._columns()
        for column in columns:
            column.flush()
        for column in columns:
            column.sync()
        sync_directory(self._directory)

    def checkpoint(self, position: int) -> Checkpoint:
        """The state to be saved, which was synced and is that of this position."""
        return Checkpoint(
            position,
            self._chunk_entries,
            [index.state for index in self.indexes.values()],
            [group.state(position) for group in self._groups.values()],
            list(self.pending),
            list(self._absents),
            self.usage.uses,
        )

    def saved(self) -> None:
        """A checkpoint with the present state is in place."""
        for index in self.indexes.values():
            index.settle()
        self.patches = 0
        for column in self._columns():
            column.drop()
        for path in sorted(self._void - self._paths()):
            self._files.remove(path)
        self._void.clear()

    def _apply_held(self, head: HeldHead, position: int) -> None:
        source = (head.publisher, head.topic, head.partition)
        places = pack_run(position, head.lengths)
        self.usage.add(position, sum(head.lengths))
        first, at = head.first, head.first
        for gap in self._absents.claim(source, first, first + len(head.lengths)):
            self._hold(source, at, _part(places, at - first, gap.first - first))
            late = _part(places, gap.first - first, gap.end - first)
            self._move(Partition(head.topic, head.partition), gap.number, late)
            at = gap.end
        self._hold(source, at, places[(at - first) * PLACE_BYTES :])

    def _apply_decided(self, head: Decided, position: int) -> None:
        take = self.pending.take
        # Appended together for each partition, since a decision may have many short runs.
        news: dict[tuple[int, int], list[tuple[Placed, bytes]]] = {}
        for placed in head.placed:
            target = (placed.topic, placed.partition)
            source = (placed.publisher, *target)
            places = take(source, placed.first, placed.count)
            if placed.lacking:
                places = self._without(places, placed.lacking)
            news.setdefault(target, []).append((placed, places))
        for target, batches in news.items():
            index = self.indexes.get(target) or self._add_index(
                IndexState(*target, head.group, head.slot)
            )
            number = index.end
            for placed, places in batches:
                for low, high in absent_runs(places):
                    gap = Gap(placed.first + low, placed.first + high, number + low)
                    self._absents.add((placed.publisher, *target), gap)
                number += len(places) // PLACE_BYTES
            index.append(head.time_us, batches)
        leaves = b"".join([placed.leaves for placed in head.placed])
        self.group(head.group).decide(head.slot, position, leaves)
        self.usage.add_slot(position, head.group, head.slot)

    def _apply_moved(self, head: MovedHead, position: int) -> None:
        self.usage.add(position, sum(head.lengths))
        places = pack_run(position, head.lengths)
        self._move(Partition(head.topic, head.partition), head.number, places)

    def _apply_installed(self, head: Installed) -> None:
        """Start over with this state: nothing that the group had leads there."""
        state = _state_of(head)
        self._retire(self.group(head.group).start_over(head.slot, state.size, state.edge))
        for line, goes_on in state.lines.items():
            self.forget(line, goes_on.next)
        for partition, now in state.partitions.items():
            index = self.indexes.get(partition) or self._add_index(
                IndexState(*partition, head.group, head.slot)
            )
            self._retire(index.columns)
            self.trim(index, index.end)
            self._absents.forget(*partition)
            index = self._add_index(index.state_behind(now.batches, now.end))
            if now.batches:
                index.begin_with(now.chain)

    def _apply_disowned(self, head: Disowned) -> None:
        """What a group wrote there was never its to write; whoever's it is begins anew."""
        index = self.indexes.get((head.topic, head.partition))
        if index is not None and index.group == head.group:
            self._retire(index.columns)
            self.trim(index, index.end)
            self._absents.forget(head.topic, head.partition)
            del self.indexes[index.partition]

    def _retire(self, columns: Iterable[Column]) -> None:
        self._void.update(path for column in columns for path in column.files())

    def _without(self, places: bytes, lacking: Iterable[int]) -> bytes:
        """What is held under these numbers is not what was decided: it is given up."""
        if is_absent(places):
            return places
        kept = bytearray(places)
        for at in lacking:
            cut = slice(at * PLACE_BYTES, (at + 1) * PLACE_BYTES)
            self.usage.remove(present(bytes(kept[cut])))
            kept[cut] = ABSENT
        return bytes(kept)

    def _hold(self, source: Source, first: int, places: bytes) -> None:
        if places and (replaced := self.pending.hold(source, first, places)):
            self.usage.remove(present(replaced))

    def _move(self, partition: Partition, number: int, places: bytes) -> None:
        """Payloads that have their place stand here now, unless they were trimmed meanwhile."""
        index = self.indexes[partition]
        trimmed = max(0, min(index.start - number, len(places) // PLACE_BYTES))
        self.usage.remove(present(_part(places, 0, trimmed)))
        kept = places[trimmed * PLACE_BYTES :]
        self.usage.remove(present(index.move(number + trimmed, kept)))
        self.patches += len(kept) // PLACE_BYTES

    def _refuse_others(
        self,
        entry: Decided | Installed,
        target: tuple[int, int],
        owners: dict[tuple[int, int], int],
    ) -> None:
        index = self.indexes.get(target)
        owner = owners.setdefault(target, entry.group if index is None else index.group)
        if owner != entry.group:
            since = "" if index is None else f" since its slot {index.since}"
            raise RefusedRecordError(
                entry.group,
                f"slot {entry.slot} of group {entry.group} has batches of partition {target[1]} of "
                f"topic {target[0]}, which group {owner} writes{since}",
            )

    def _refuse_placed(self, entry: Decided, leaf: int, ends: dict[tuple[int, int], int]) -> int:
        """Says which leaf is next."""
        for placed in entry.placed:
            target = (placed.topic, placed.partition)
            end = ends.get(target)
            if end is None:
                end = self.index_of(target).end_offset
            if placed.offset != end:
                raise _gap(entry.group, "offset", placed.offset, end)
            if placed.leaf != leaf:
                raise _gap(entry.group, "leaf", placed.leaf, leaf)
            ends[target] = end + sum(events_of(placed.descriptors))
            leaf += placed.count
        return leaf

    def _sweep(self) -> None:
        """Delete chunk files that began, or were trimmed, without the checkpoint saying so."""
        known = self._paths()
        for path in sorted(map(str, self._directory.iterdir())):
            if path not in known:
                self._files.remove(path)

    def _add_index(self, state: IndexState) -> Index:
        index = Index(self._files, str(self._directory), state, self._chunk_entries)
        self.indexes[index.partition] = index
        return index

    def _add_group(self, state: GroupState) -> Group:
        group = Group(self._files, str(self._directory), state, self._chunk_entries)
        self._groups[state.group] = group
        return group

    def _paths(self) -> set[str]:
        return {path for column in self._columns() for path in column.paths()}

    def _columns(self) -> list[Column]:
        holders: Iterator[Index | Group] = iter((*self.indexes.values(), *self._groups.values()))
        return [column for holder in holders for column in holder.columns]


def _state_of(head: Installed) -> LogState:
    return msgspec.msgpack.decode(head.state, type=LogState)


def _part(places: bytes, first: int, end: int) -> bytes:
    return places[first * PLACE_BYTES : end * PLACE_BYTES]


def _gap(group: int, what: str, found: int, expected: int) -> RefusedRecordError:
    return RefusedRecordError(group, f"{what} {found} is decided, but {expected} is next")
