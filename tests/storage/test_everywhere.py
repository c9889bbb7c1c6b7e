"""Wherever a reader begins, it reads the same events at the same offsets.

Four replicas with their stores on real disks order signed and basic batches. Meanwhile some are
killed and come back, retention takes what is old, and snapshots take the place of the journal.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chamber import PARTITION, Chamber
from quorate.core.batch import Batch, encode_values
from quorate.core.ids import NodeId
from quorate.protocol.machine import Entry, Trimmed
from quorate.protocol.ordering.records import Record
from quorate.protocol.ordering.replica import Found
from quorate.sim.disks import SimDisk
from quorate.sim.stores import SimStore
from quorate.storage.store import DiskStore

PUBLISHER, LIVE = 1000, 1501


class Published(NamedTuple):
    events: int
    sign: bool


class Killed(NamedTuple):
    """A replica is killed, and started again."""

    replica: NodeId


class Trims(NamedTuple):
    """Retention takes this part of what there is."""

    part: float


STEPS = st.lists(
    st.one_of(
        st.builds(Published, st.integers(1, 5), st.booleans()),
        st.builds(Killed, st.integers(0, 3)),
        st.builds(Trims, st.floats(0, 1)),
    ),
    min_size=2,
    max_size=14,
)


class Directory(SimDisk):
    """A directory in the place of a simulated disk."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.store: DiskStore

    def open(self) -> DiskStore:
        self.store = DiskStore(self.path, chunk_entries=4, segment_bytes=2000, reserve_bytes=0)
        return self.store

    def append(self, records: Iterable[Record]) -> None:
        self.store.append(records)

    def sync(self, through: int | None = None) -> None:
        self.store.sync()

    def crash(self, random: Random) -> str:
        """As kill -9 leaves it: without a last checkpoint."""
        self.store._resources.close()
        return "kept"


@dataclass
class Building(Chamber):
    """A chamber whose replicas keep what they have in directories."""

    root: Path = field(kw_only=True)
    snapshot_every: int = 3
    # Where each batch begins, and the end.
    offsets: list[int] = field(default_factory=lambda: [0])
    payloads: list[tuple[list[bytes], bool]] = field(default_factory=list)
    start: int = 0

    def _seat(self, replica: NodeId, disk: SimDisk) -> None:
        if not isinstance(disk, Directory):
            disk = Directory(self.root / str(replica))
        super()._seat(replica, disk)

    def _opened(self, disk: SimDisk) -> tuple[SimStore, Found]:
        assert isinstance(disk, Directory)
        store = disk.open()
        found = store.recover()
        # It has the interface of a store, and no more than that is used here.
        return cast(SimStore, store), Found(found.snapshots, [*found.records])

    def stores(self) -> list[DiskStore]:
        return [cast(Directory, seat.disk).store for seat in self.seats.values()]

    def take_step(self, step: Published | Killed | Trims) -> None:
        if isinstance(step, Killed):
            self.reboot(step.replica)
            self.run(1)
        elif isinstance(step, Trims):
            at = bisect_right(self.offsets, round(step.part * self.offsets[-1])) - 1
            self.start = max(self.start, self.offsets[at])
            for store in self.stores():
                store.trim(PARTITION, self.start)
                store.clean()
        else:
            values = [b"%d.%d" % (len(self.payloads), at) for at in range(step.events)]
            self.payloads.append((values, step.sign))
            self.offsets.append(self.offsets[-1] + step.events)
            self.publish_as(PUBLISHER, encode_values(values, 0), sign=step.sign)

    def events_from(self, offset: int, *, validates: bool) -> list[tuple[int, bytes]]:
        """What a reader that begins there is to be given, with the offset of each event."""
        return [
            (at, value)
            for begin, (values, is_signed) in zip(self.offsets, self.payloads, strict=False)
            for at, value in enumerate(values, begin)
            if at >= offset and (is_signed or not validates)
        ]

    def events_read(self, reader: NodeId) -> list[tuple[int, bytes]]:
        return [
            (entry.offset + at, value)
            for entry in self.read(reader)
            for at, value in enumerate(Batch(entry.payload).values())
            if at >= entry.skip
        ]


@contextmanager
def building() -> Iterator[Building]:
    with TemporaryDirectory() as root:
        built = Building(root=Path(root))
        yield built
        for store in built.stores():
            store.close()


@pytest.mark.usefixtures("no_waiting")
@given(STEPS, st.integers(0, 14), st.floats(0, 1), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_wherever_readers_begin_they_read_the_same_events_at_the_same_offsets(
    steps: list[Published | Killed | Trims], joins_after: int, part: float, early: bool, late: bool
) -> None:
    """One of them joins in the middle and reads what is new; the other one reads it all later."""
    with building() as built:
        for step in steps[:joins_after]:
            built.take_step(step)
        joined_at = round(part * built.offsets[-1])
        live = built.reader(LIVE, joined_at, validate=early)
        joined_at = max(joined_at, built.start)
        for step in steps[joins_after:]:
            built.take_step(step)
        begun_at = round(part * built.offsets[-1])
        reader = built.reader(offset=begun_at, validate=late)
        built.run(3)

        begin = max(begun_at, built.start)
        assert built.events_read(LIVE) == built.events_from(joined_at, validates=early)
        assert built.events_read(1500) == built.events_from(begin, validates=late)
        # What a reader passed over is a gap: both come to the end.
        for destination in (live, reader):
            reading = destination.reading("t", 0)
            assert reading is not None
            assert reading.position == built.offsets[-1]
        gone = [each for each in built.delivered[1500] if isinstance(each, Trimmed)]
        assert gone == [Trimmed(PARTITION, begun_at, begin - begun_at)] * (begun_at < begin)
        assert all(isinstance(each, Entry) for each in built.read(LIVE))
        assert built.offsets == list(accumulate((len(v) for v, _ in built.payloads), initial=0))
        assert built.reports() == []
