"""What the store keeps for one group of replicas: its slots, its tree, and where replay begins."""

from collections.abc import Sequence

import msgspec

from quorate.storage.columns import Column, Extent
from quorate.storage.files import Files
from quorate.storage.tiles import Tiles

_POSITION_BYTES = 8
NO_SLOT = -1


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint says about a group."""

    group: int
    replay: int
    slots: Extent | None = None
    levels: list[Extent] = []
    # Of the tree before the first leaf that is here.
    edge: list[bytes] = []


class Group:
    """One order log. Its slots begin wherever the first decision does."""

    def __init__(self, files: Files, directory: str, state: GroupState, chunk_entries: int) -> None:
        self.number = state.group
        self.snapshot_slot = NO_SLOT
        # Where the first record of each slot from the snapshot's on stands.
        self._marks: dict[int, int] = {}
        self._files = files
        self._stem = f"{directory}/group-{state.group}"
        self._chunk_entries = chunk_entries
        self._slots = None if state.slots is None else self._slot_column(state.slots)
        self.tiles = Tiles(files, self._stem, state.levels, chunk_entries, state.edge)

    @property
    def columns(self) -> Sequence[Column]:
        slots = () if self._slots is None else (self._slots,)
        return (*slots, *self.tiles.columns)

    @property
    def slots(self) -> tuple[int, int]:
        """The first slot that is kept, and the one after the last."""
        return (0, 0) if self._slots is None else (self._slots.start, self._slots.end)

    @property
    def next_slot(self) -> int | None:
        """Which slot must be decided next; any, if none was."""
        return None if self._slots is None else self._slots.end

    def state(self, position: int) -> GroupState:
        """The state at this position of the journal."""
        slots = None if self._slots is None else self._slots.extent
        levels = [column.extent for column in self.tiles.columns]
        replay = self.replay_from(position)
        return GroupState(self.number, replay, slots, levels, self.tiles.edge)

    def replay_from(self, position: int) -> int:
        """From where on the journal has records behind the snapshot; `position` if it has none."""
        return min(self._marks.values(), default=position)

    def mark(self, slot: int, position: int) -> None:
        """A record of this slot that the machine needs beside the snapshot stands here."""
        self._marks.setdefault(slot, position)

    def mark_installed(self, slot: int, position: int) -> bool:
        """The group starts over here, with a snapshot that may be in the journal only."""
        if slot < self.snapshot_slot:
            return False
        self.snapshot_taken(slot)
        self._marks[slot] = min(position, self._marks.get(slot, position))
        return True

    def start_over(self, slot: int, size: int, edge: Sequence[bytes]) -> Sequence[Column]:
        """Go on behind this slot, with a tree of so many leaves; says which columns are void."""
        void = self.columns
        self._slots = self._slot_column(Extent(slot + 1, slot + 1, slot + 1))
        extents = Tiles.extents_from(size)
        self.tiles = Tiles(self._files, self._stem, extents, self._chunk_entries, edge)
        return void

    def decide(self, slot: int, position: int, leaves: bytes) -> None:
        if self._slots is None:
            self._slots = self._slot_column(Extent(slot, slot, slot))
        self._slots.append(position.to_bytes(_POSITION_BYTES, "little"))
        self.tiles.append(leaves)

    def decided_at(self, slot: int) -> int:
        """The position of the decision of a slot that is kept."""
        assert self._slots is not None
        return int.from_bytes(self._slots.read(slot), "little")

    def keep_from(self, slot: int) -> None:
        if self._slots is not None:
            self._slots.trim(slot)

    def snapshot_taken(self, slot: int) -> None:
        """Of records up to this slot only its votes have to be replayed from now on."""
        self.snapshot_slot = slot
        self._marks = {later: at for later, at in self._marks.items() if later >= slot}

    def replay_after(self, slot: int, position: int) -> int:
        """What `replay_from` will be once a snapshot of this slot is taken."""
        behind = (at for later, at in self._marks.items() if later >= slot)
        return min(behind, default=position)

    def _slot_column(self, extent: Extent) -> Column:
        stem = f"{self._stem}-slots"
        return Column(self._files, stem, _POSITION_BYTES, extent, self._chunk_entries)
