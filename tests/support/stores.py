"""A store in memory that is obviously right, and a disk that fails, to compare it with."""

import copy
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from quorate.core.batch import Batch, encode_values
from quorate.core.errors import LocalProtocolError
from quorate.core.header import Header
from quorate.core.ordering import Line, Partition
from quorate.crypto.merkle import Tree, node_hash
from quorate.protocol.ordering.log import LineState, LogState, PartitionState
from quorate.protocol.ordering.records import (
    Decided,
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
from quorate.storage.store import DiskStore, Recovered

START = bytes(32)


LINES = [Line(3, 7, 0), Line(2**64 - 1, 7, 0), Line(3, 7, 1), Line(4, 8, 0)]


PARTITIONS = sorted({line.target for line in LINES})


ABSENT = None


def group_of(line: Line) -> int:
    """Each topic belongs to one group."""
    return line.topic - 7


def hashed(*what: object) -> bytes:
    return repr(what).encode().rjust(32, b".")[-32:]


def batch(text: bytes, events: int = 1, size: int = 0) -> bytes:
    """A payload with so many events and this text, of about so many bytes at least."""
    room = size - len(encode_values([b""] * events, 0))
    return encode_values([text.ljust(room, b"!"), *[b""] * (events - 1)], 0)


def text_of(payload: bytes) -> bytes:
    return Batch(payload).values()[0]


def described(events: int, *what: object) -> bytes:
    """The descriptor of a batch with so many events, of which no more matters."""
    return Header.of(events, 0, 8 * events).encode() + hashed(*what)


def events_of(line: Line, sequence: int) -> int:
    """How many events a batch has, whatever else is in it."""
    return 1 + (line.publisher + line.partition + sequence * sequence) % 4


class Oracle:
    """A store in memory, written to be obviously right. Also the author of what is stored."""

    def __init__(self) -> None:
        self.pending: dict[Line, dict[int, bytes]] = {line: {} for line in LINES}
        # publisher, sequence, time, chain after, payload, first of its run?
        self.entries: dict[Partition, list[list[Any]]] = {each: [] for each in PARTITIONS}
        # The first offset of each batch, and the one after the last.
        self.offsets: dict[Partition, list[int]] = {each: [0] for each in PARTITIONS}
        # Which batch is the first that is kept, by its number in the partition.
        self.starts = dict.fromkeys(PARTITIONS, 0)
        # Where each partition and each tree began, if its group started over with a snapshot.
        self.began = dict.fromkeys(PARTITIONS, 0)
        self.first_leaf: dict[int, int] = {0: 0, 1: 0}
        self.slots: dict[int, list[Decided]] = {0: [], 1: []}
        self.first_slot: dict[int, int] = {0: 1, 1: 1}
        self.leaves: dict[int, list[bytes]] = {0: [], 1: []}
        self.voted: list[Voted | Decided] = []
        self.snapshots: dict[int, Snapshot] = {}

    # What happens

    def apply(self, record: Record) -> None:
        if isinstance(record, Held):
            line = Line(record.publisher, record.topic, record.partition)
            for sequence, payload in enumerate(record.payloads, record.first):
                self.hold(line, sequence, payload)
        elif isinstance(record, Dropped):
            self.pending[Line(record.publisher, record.topic, record.partition)].clear()
        elif isinstance(record, Decided):
            self.decide(record)
            self.voted.append(record)
        elif isinstance(record, Voted):
            self.voted.append(record)
        elif isinstance(record, Snapshot):
            self.snapshots[record.group] = record

    def install(self, installed: Installed, missed: Sequence[Decided]) -> None:
        """A group starts over behind decisions that never came here."""
        group = installed.group
        for decided in missed:
            self.decide(decided)
        self.first_slot[group] = len(self.slots[group]) + 1
        self.first_leaf[group] = len(self.leaves[group])
        self.snapshots[group] = installed.snapshot
        for line in LINES:
            if group_of(line) == group:
                self.starts[line.target] = self.began[line.target] = len(self.entries[line.target])
                self.forget(line, self.next_of(line))

    def forget(self, line: Line, before: int) -> None:
        for sequence in [each for each in self.pending[line] if each < before]:
            del self.pending[line][sequence]

    def state(self, group: int) -> LogState:
        """All that was decided, as a snapshot has it."""
        mine = [line for line in LINES if group_of(line) == group]
        tree = Tree()
        for leaf in self.leaves[group]:
            tree.append(leaf)
        partitions = {}
        for target in sorted({line.target for line in mine}):
            entries = self.entries[target]
            if entries:
                partitions[target] = PartitionState(
                    self.offsets[target][-1], len(entries), entries[-1][3]
                )
        return LogState(
            slot=len(self.slots[group]),
            size=tree.size,
            edge=tree.edge,
            lines={line: LineState(self.next_of(line)) for line in mine},
            partitions=partitions,
        )

    def hold(self, line: Line, sequence: int, payload: bytes) -> None:
        for entry in self.entries[line.target][self.began[line.target] :]:
            if entry[:2] == [line.publisher, sequence]:
                assert entry[4] is ABSENT
                entry[4] = payload
                return
        self.pending[line][sequence] = payload

    def decide(self, record: Decided) -> None:
        self.slots[record.group].append(record)
        for placed in record.placed:
            line = Line(placed.publisher, placed.topic, placed.partition)
            for number in range(placed.count):
                sequence = placed.first + number
                payload = self.pending[line].pop(sequence, ABSENT)
                chain = placed.chains[32 * number : 32 * number + 32]
                entry = [line.publisher, sequence, record.time_us, chain, payload, number == 0]
                self.entries[line.target].append(entry)
                end = self.offsets[line.target][-1]
                self.offsets[line.target].append(end + events_of(line, sequence))
                self.leaves[record.group].append(placed.leaves[32 * number : 32 * number + 32])

    def next_of(self, line: Line) -> int:
        """The sequence number that must be decided next."""
        mine = [entry for entry in self.entries[line.target] if entry[0] == line.publisher]
        return 1 + len(mine)

    def decision(self, group: int, counts: dict[Line, int], time_us: int) -> Decided:
        placed: list[Placed] = []
        leaf = len(self.leaves[group])
        ends = {each: len(self.entries[each]) for each in PARTITIONS}
        offsets = {each: self.offsets[each][-1] for each in PARTITIONS}
        for line, count in counts.items():
            first, at = self.next_of(line), ends[line.target]
            leaves, chains = (
                b"".join(hashed(kind, line.target, at + number) for number in range(count))
                for kind in ("leaf", "chain")
            )
            descriptors = b"".join(
                described(events_of(line, sequence), line, sequence)
                for sequence in range(first, first + count)
            )
            run = Placed(*line, first, offsets[line.target], leaf, descriptors, leaves, chains)
            placed.append(run)
            leaf, ends[line.target], offsets[line.target] = leaf + count, at + count, run.end
        slot = len(self.slots[group]) + 1
        return Decided(group, slot, time_us, b"v" * slot, placed)

    # What is asked

    def number_of(self, partition: Partition, offset: int) -> int | None:
        """The batch that has this offset, if it is kept; the one behind the last, at the end."""
        start, end = self.bounds(partition)
        if not start <= offset <= end:
            return None
        return max(at for at, each in enumerate(self.offsets[partition]) if each <= offset)

    def kept(self, partition: Partition, offset: int) -> int | None:
        """The same without the end."""
        return None if offset == self.offsets[partition][-1] else self.number_of(partition, offset)

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        found: list[Stretch] = []
        entries, offsets = self.entries[partition], self.offsets[partition]
        taken = 0
        number = self.kept(partition, offset)
        if number is None:
            return []
        for at in range(number, len(entries)):
            publisher, sequence, time_us, after, payload, begins = entries[at]
            if payload is ABSENT or (found and taken + len(payload) > bytes_max):
                break
            taken += len(payload)
            if begins or not found:
                before = entries[at - 1][3] if at else START
                found.append(
                    Stretch(publisher, offsets[at], sequence, time_us, before, after, [payload])
                )
            else:
                last = found[-1]
                found[-1] = msgspec.structs.replace(
                    last, chains=last.chains + after, payloads=[*last.payloads, payload]
                )
        return found

    def chain(self, partition: Partition, offset: int) -> tuple[int, bytes] | None:
        number = self.number_of(partition, offset)
        if number is None:
            return None
        chain = self.entries[partition][number - 1][3] if number else START
        return self.offsets[partition][number], chain

    def behind(self, partition: Partition, offset: int, batches: int) -> int:
        start, end = self.bounds(partition)
        number = self.number_of(partition, min(max(offset, start), end))
        assert number is not None
        offsets = self.offsets[partition][self.starts[partition] :]
        return offsets[min(max(number - self.starts[partition] + batches, 0), len(offsets) - 1)]

    def spot(self, partition: Partition, offset: int) -> Spot | None:
        number = self.kept(partition, offset)
        return None if number is None else self.spot_of(partition, number)

    def spot_of(self, partition: Partition, number: int) -> Spot:
        publisher, sequence, time_us = self.entries[partition][number][:3]
        leaf = self.leaves[group_of(Line(publisher, *partition))].index(
            hashed("leaf", partition, number)
        )
        return Spot(
            publisher, sequence, time_us, leaf, *self.offsets[partition][number : number + 2]
        )

    def spots(self, partition: Partition, offset: int, batches: int) -> list[Spot]:
        number = self.kept(partition, offset)
        if number is None:
            return []
        end = min(number + batches, len(self.entries[partition]))
        return [self.spot_of(partition, at) for at in range(number, end)]

    def bounds(self, partition: Partition) -> tuple[int, int]:
        offsets = self.offsets[partition]
        return offsets[self.starts[partition]], offsets[-1]

    def offset_at(self, partition: Partition, time_us: int) -> int:
        entries, offsets = self.entries[partition], self.offsets[partition]
        for number in range(self.starts[partition], len(entries)):
            if entries[number][2] >= time_us:
                return offsets[number]
        return offsets[-1]

    def placed_at(self, partition: Partition, offset: int) -> tuple[int, Placed] | None:
        if self.kept(partition, offset) is None:
            return None
        group = group_of(Line(0, *partition))
        for decided in self.decided(group, self.first_slot[group]):
            for placed in decided.placed:
                if (placed.topic, placed.partition) == partition and (
                    placed.offset <= offset < placed.end
                ):
                    return decided.time_us, placed
        return None

    def decided(self, group: int, slot: int) -> list[Decided]:
        return self.slots[group][slot - 1 :] if slot >= self.first_slot[group] else []

    def node(self, group: int, level: int, number: int) -> bytes:
        if level == 0:
            return self.leaves[group][number]
        below = (self.node(group, level - 1, 2 * number + side) for side in (0, 1))
        return node_hash(*below)

    def bytes_held(self, partition: Partition) -> int:
        kept = self.entries[partition][self.starts[partition] :]
        return sum(len(entry[4]) for entry in kept if entry[4] is not ABSENT)

    def absent(self, partition: Partition) -> set[int]:
        """The offsets of batches whose payloads are not here."""
        entries, offsets = self.entries[partition], self.offsets[partition]
        kept = range(self.starts[partition], len(entries))
        return {offsets[number] for number in kept if entries[number][4] is ABSENT}

    def surplus(self, partition: Partition, bytes_max: int, absent_bytes: int) -> int:
        """The first offset from which on no more than so many bytes are kept."""
        entries, start = self.entries[partition], self.starts[partition]
        sizes = [absent_bytes if entry[4] is ABSENT else len(entry[4]) for entry in entries]
        numbers = range(start, len(entries) + 1)
        number = next(at for at in numbers if sum(sizes[at:]) <= bytes_max)
        return self.offsets[partition][number]


def check(store: DiskStore, oracle: Oracle) -> None:
    """Every question gets the same answer from both."""
    absent: dict[Partition, set[int]] = {each: set() for each in PARTITIONS}
    for partition, offset, count in store.absent():
        absent[partition].update(store.behind(partition, offset, more) for more in range(count))
    for partition in PARTITIONS:
        start, end = oracle.bounds(partition)
        assert store.bounds(partition) == (start, end)
        is_whole = oracle.starts[partition] == oracle.began[partition]
        assert store.taken(partition) == (0 if is_whole else start)
        assert absent[partition] == oracle.absent(partition)
        assert store.bytes_held(partition) == oracle.bytes_held(partition)
        for bytes_max in (0, 60, 333):
            surplus = store.surplus(partition, bytes_max, absent_bytes=30)
            assert surplus == oracle.surplus(partition, bytes_max, absent_bytes=30)
        for offset in range(-1, end + 2):
            assert store.chain(partition, offset) == oracle.chain(partition, offset)
            assert store.spot(partition, offset) == oracle.spot(partition, offset)
            for bytes_max in (0, 100, 10**6):
                expected = oracle.read(partition, offset, bytes_max)
                assert store.read(partition, offset, bytes_max) == expected
        for offset in (start - 1, start, start + 2, (start + end) // 2, end - 1, end):
            runs = store.runs(partition, offset, 9)
            check_runs(runs, oracle.spots(partition, offset, 9))
            for batches in (-(10**6), -3, -1, 0, 1, 4, 10**6):
                behind = store.behind(partition, offset, batches)
                assert behind == oracle.behind(partition, offset, batches)
            placed = store.placed_at(group_of(Line(0, *partition)), partition, offset)
            assert placed == oracle.placed_at(partition, offset)
        times = {entry[2] + late for entry in oracle.entries[partition] for late in (-1, 0, 1)}
        for time_us in sorted(times | {0}):
            assert store.offset_at(partition, time_us) == oracle.offset_at(partition, time_us)
    for group in (0, 1):
        check_group(store, oracle, group)


def check_runs(runs: list[tuple[int, Spot]], spots: list[Spot]) -> None:
    for count, spot in runs:
        run, spots = spots[:count], spots[count:]
        assert run[0] == spot
        assert [each[:4] for each in run] == [
            (spot.publisher, spot.sequence + at, spot.time_us, spot.leaf + at)
            for at in range(count)
        ]
    assert spots == []


def check_group(store: DiskStore, oracle: Oracle, group: int) -> None:
    for slot in range(1, len(oracle.slots[group]) + 2):
        expected = oracle.decided(group, slot)
        assert store.decided(group, slot, 10**9) == expected
        assert store.decided(group, slot, 0) == expected[:1]
    level, nodes = 0, len(oracle.leaves[group])
    start = oracle.first_leaf[group]
    while nodes:
        for number in range(nodes):
            # A node before the start is known if its neighbour to the right is needed for more.
            if (number + 1) << level <= start and not start < (number // 2 + 1) << (level + 1):
                with pytest.raises(LocalProtocolError, match=f"lies before leaf {start}"):
                    store.node(group, level, number)
                continue
            assert store.node(group, level, number) == oracle.node(group, level, number)
        with pytest.raises(LocalProtocolError, match="not complete"):
            store.node(group, level, nodes)
        level, nodes = level + 1, nodes // 2


def check_recovered(recovered: Recovered, oracle: Oracle) -> None:
    """The machines get their snapshots, what is pending, and what came after."""
    assert recovered.snapshots == oracle.snapshots
    slots = {group: snapshot.slot for group, snapshot in oracle.snapshots.items()}
    pending: dict[Line, dict[int, bytes]] = {line: {} for line in LINES}
    behind = []
    for record in recovered.records:
        if isinstance(record, Held):
            line = Line(record.publisher, record.topic, record.partition)
            pending[line] |= dict(enumerate(record.payloads, record.first))
        else:
            behind.append(record)
    assert pending == oracle.pending
    # What was voted in the snapshot's own slot is still asked for when the leader changes.
    assert behind == [
        each
        for each in oracle.voted
        if each.slot >= slots.get(each.group, 0) + isinstance(each, Decided)
    ]


class Disk:
    """A store and its oracle, on a directory of which images can be taken."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.root = directory
        self.options = {"segment_bytes": 2000, "chunk_entries": 8, "reserve_bytes": 0} | options
        self.images = 0
        self.directory = directory / "store"
        self.store = self.opened()
        self.oracle = Oracle()
        # What happened, with where its record ends in the journal (0 if it has none).
        self.history: list[tuple[int, Callable[[Oracle], object]]] = []
        # How much of it a checkpoint has.
        self.saved = 0
        self.time_us = 1000

    def opened(self) -> DiskStore:
        return DiskStore(self.directory, **self.options)

    @property
    def end(self) -> int:
        return self.store._journal.end

    # What happens

    def append(self, *records: Record) -> None:
        for record in records:
            self.store.append([record])
            self._happened(partial(_apply, record=record), self.end)
            if isinstance(record, Snapshot):
                self.saved = len(self.history)

    def hold(self, line: Line, count: int, size: int = 20, skip: int = 0) -> None:
        """The next payloads of a line, behind those that are pending."""
        first = max([self.oracle.next_of(line) - 1, *self.oracle.pending[line]]) + 1 + skip
        self.append(self.held(line, first, count, size))

    def held(self, line: Line, first: int, count: int, size: int = 20) -> Held:
        payloads = [
            batch(
                f"{line.publisher % 10}/{line.topic}/{sequence} at {self.end}".encode(),
                events_of(line, sequence),
                size,
            )
            for sequence in range(first, first + count)
        ]
        return Held(*line, first, payloads)

    def decide(self, counts: dict[Line, int]) -> None:
        self.time_us += len(self.oracle.slots[0]) % 3
        for group in (0, 1):
            mine = {line: count for line, count in counts.items() if group_of(line) == group}
            if mine:
                self.append(self.oracle.decision(group, mine, self.time_us))

    def snapshot(self, group: int, behind: int = 0) -> None:
        slot = len(self.oracle.slots[group]) - behind
        last = self.oracle.snapshots.get(group)
        if slot > (last.slot if last else 0):
            self.append(Snapshot(group, slot, b"state" * slot))

    def install(self, group: int, rounds: int) -> None:
        """Start over behind so many decisions that the others made meanwhile."""
        installed, missed = self.ahead(group, rounds)
        self.store.append([installed])
        self._happened(lambda oracle: oracle.install(installed, missed), self.end)
        self.saved = len(self.history)

    def ahead(self, group: int, rounds: int) -> tuple[Installed, list[Decided]]:
        others, missed = copy.deepcopy(self.oracle), []
        mine = [line for line in LINES if group_of(line) == group]
        for number in range(rounds):
            counts = {line: 1 + (number + at) % 3 for at, line in enumerate(mine)}
            missed.append(others.decision(group, counts, self.time_us))
            others.decide(missed[-1])
        state = others.state(group)
        return Installed(group, state.slot, msgspec.msgpack.encode(state), 1, 1), missed

    def vote(self, group: int, ahead: int = 1) -> None:
        slot = len(self.oracle.slots[group]) + ahead
        self.append(Voted(group, 1, slot, 0, b"", {b"d" * 32: 1}, [b"value"]))

    def trim(self, partition: Partition, offset: int) -> None:
        self.store.trim(partition, offset)
        start, end = self.oracle.bounds(partition)
        number = self.oracle.number_of(partition, min(max(offset, start), end))
        assert number is not None
        self._happened(lambda oracle: oracle.starts.update({partition: number}))

    def keep_slots_from(self, group: int, slot: int) -> None:
        slot = min(max(slot, self.oracle.first_slot[group]), len(self.oracle.slots[group]) + 1)
        self.store.keep_slots_from(group, slot)
        if self.oracle.slots[group]:
            self._happened(lambda oracle: oracle.first_slot.update({group: slot}))

    def forget(self, line: Line, before: int) -> None:
        self.store.forget(line, before)
        self._happened(lambda oracle: oracle.forget(line, before))

    def checkpoint(self) -> None:
        self.store.checkpoint()
        self.saved = len(self.history)

    def clean(self) -> None:
        self.store.clean()
        self.saved = len(self.history)

    def reopen(self) -> Recovered:
        self.store.close()
        self.saved = len(self.history)
        self.store = self.opened()
        return self.store.recover()

    # Crashes

    def image(self) -> Path:
        """What a process that dies now leaves behind."""
        self.images += 1
        image = self.root / f"image-{self.images}"
        shutil.copytree(self.directory, image)
        return image

    def crash(self, lost_bytes: int = 0, garbage: bytes = b"") -> Recovered:
        """Go on with an image that lost some of what was not synced."""
        cut = max(self.store._journal.synced, self.end - lost_bytes)
        last = self.store._journal.segments.last
        assert last is not None
        cut = max(cut, last)
        image = self.image()
        self.store.close()
        shutil.rmtree(self.directory)
        image.rename(self.directory)
        with max(self.directory.glob("journal-*")).open("r+b") as file:
            file.truncate(cut - last)
            file.seek(0, os.SEEK_END)
            file.write(garbage)
        self.history = [
            (end, apply)
            for number, (end, apply) in enumerate(self.history)
            if number < self.saved or 0 < end <= cut
        ]
        self.oracle = Oracle()
        for _, apply in self.history:
            apply(self.oracle)
        self.saved = min(self.saved, len(self.history))
        self.store = self.opened()
        return self.store.recover()

    def check(self) -> None:
        check(self.store, self.oracle)

    def _happened(self, apply: Callable[[Oracle], object], end: int = 0) -> None:
        apply(self.oracle)
        self.history.append((end, apply))


def _apply(oracle: Oracle, record: Record) -> None:
    oracle.apply(record)


def fill(disk: Disk, rounds: int = 6) -> None:
    """A bit of everything: several lines, absent payloads, both groups, several segments."""
    for number in range(rounds):
        disk.hold(LINES[0], 3)
        disk.hold(LINES[1], 2, size=300)
        disk.hold(LINES[3], 1)
        disk.vote(0)
        disk.decide({LINES[0]: 2, LINES[1]: 2, LINES[2]: 1 + number % 2, LINES[3]: 1})


def journal_files(disk: Disk) -> int:
    return len(list(disk.directory.glob("journal-*")))


def sparse(disk: Disk) -> None:
    """Segments in which only the small payloads of one partition are live."""
    for _ in range(20):
        disk.hold(LINES[0], 1, size=600)
        disk.hold(LINES[3], 2)
        disk.hold(LINES[2], 1, size=30)
        disk.decide({LINES[0]: 1, LINES[3]: 2})
    disk.trim(LINES[0].target, 10**6)
    for group in (0, 1):
        disk.keep_slots_from(group, 10**6)
        disk.snapshot(group)


def images_while(disk: Disk, happens: Callable[[], object]) -> list[Path]:
    """What a crash would leave, before each file operation of what happens."""
    images: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("writev", "fdatasync", "fsync", "pwrite"):
            really = getattr(os, name)

            def first_an_image(*args: Any, really: Any = really) -> Any:
                images.append(disk.image())
                return really(*args)

            patch.setattr(os, name, first_an_image)
        unlink = Path.unlink

        def unlink_after_an_image(path: Path, missing_ok: bool = False) -> None:
            images.append(disk.image())
            unlink(path, missing_ok=missing_ok)

        patch.setattr(Path, "unlink", unlink_after_an_image)
        happens()
    return images


def index_files(disk: Disk) -> list[Path]:
    """The last chunk of each column that has a checksum."""
    last: dict[str, Path] = {}
    for path in sorted((disk.directory / "index").iterdir()):
        last[path.name[:-20]] = path
    return [path for name, path in last.items() if "places" not in name]


counts = st.integers(1, 5)
