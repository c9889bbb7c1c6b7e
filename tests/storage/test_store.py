"""A store answers as one that was never interrupted, whatever happened to its disk."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from quorate.core.errors import LocalProtocolError
from quorate.core.ordering import Line, Partition
from quorate.crypto.merkle import node_hash
from quorate.protocol.ordering.records import (
    Decided,
    Held,
    Placed,
    Record,
    Snapshot,
    Store,
    Stretch,
    Voted,
)
from quorate.storage.errors import StorageError
from quorate.storage.recovery import Recovered
from quorate.storage.store import DiskStore

START = bytes(32)
LINES = [Line(3, 7, 0), Line(2**64 - 1, 7, 0), Line(3, 7, 1), Line(4, 8, 0)]
PARTITIONS = sorted({line.target for line in LINES})
ABSENT = None


def group_of(line: Line) -> int:
    """Each topic belongs to one group."""
    return line.topic - 7


def hashed(*what: object) -> bytes:
    return repr(what).encode().rjust(32, b".")[-32:]


class Oracle:
    """A store in memory, written to be obviously right. Also the author of what is stored."""

    def __init__(self) -> None:
        self.pending: dict[Line, dict[int, bytes]] = {line: {} for line in LINES}
        # publisher, sequence, time, chain after, payload, first of its run?
        self.entries: dict[Partition, list[list[Any]]] = {each: [] for each in PARTITIONS}
        self.starts = dict.fromkeys(PARTITIONS, 0)
        self.slots: dict[int, list[Decided]] = {0: [], 1: []}
        self.kept: dict[int, int] = {0: 1, 1: 1}
        self.leaves: dict[int, list[bytes]] = {0: [], 1: []}
        self.voted: list[Voted | Decided] = []
        self.snapshots: dict[int, Snapshot] = {}

    # What happens

    def apply(self, record: Record) -> None:
        if isinstance(record, Held):
            line = Line(record.publisher, record.topic, record.partition)
            for sequence, payload in enumerate(record.payloads, record.first):
                self.hold(line, sequence, payload)
        elif isinstance(record, Decided):
            self.decide(record)
            self.voted.append(record)
        elif isinstance(record, Voted):
            self.voted.append(record)
        else:
            self.snapshots[record.group] = record

    def hold(self, line: Line, sequence: int, payload: bytes) -> None:
        for entry in self.entries[line.target]:
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
                self.leaves[record.group].append(placed.leaves[32 * number : 32 * number + 32])

    def next_of(self, line: Line) -> int:
        """The sequence number that must be decided next."""
        mine = [entry for entry in self.entries[line.target] if entry[0] == line.publisher]
        return 1 + len(mine)

    def decision(self, group: int, counts: dict[Line, int], time_us: int) -> Decided:
        placed: list[Placed] = []
        leaf = len(self.leaves[group])
        ends = {each: len(self.entries[each]) for each in PARTITIONS}
        for line, count in counts.items():
            first, offset = self.next_of(line), ends[line.target]
            digests, leaves, chains = (
                b"".join(hashed(kind, line.target, offset + number) for number in range(count))
                for kind in ("digest", "leaf", "chain")
            )
            placed.append(Placed(*line, first, offset, leaf, digests, leaves, chains))
            leaf, ends[line.target] = leaf + count, offset + count
        slot = len(self.slots[group]) + 1
        return Decided(group, slot, time_us, b"v" * slot, placed)

    # What is asked

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        found: list[Stretch] = []
        entries = self.entries[partition]
        taken = 0
        if offset < self.starts[partition]:
            return []
        for at in range(offset, len(entries)):
            publisher, sequence, time_us, _, payload, begins = entries[at]
            if payload is ABSENT or (found and taken + len(payload) > bytes_max):
                break
            taken += len(payload)
            if begins or not found:
                before = self.chain(partition, at)
                assert before is not None
                found.append(Stretch(publisher, at, sequence, time_us, before, []))
            found[-1].payloads.append(payload)
        return found

    def chain(self, partition: Partition, offset: int) -> bytes | None:
        if not self.starts[partition] <= offset <= len(self.entries[partition]):
            return None
        chain: bytes = self.entries[partition][offset - 1][3] if offset else START
        return chain

    def bounds(self, partition: Partition) -> tuple[int, int]:
        return self.starts[partition], len(self.entries[partition])

    def offset_at(self, partition: Partition, time_us: int) -> int:
        start, end = self.bounds(partition)
        for offset in range(start, end):
            if self.entries[partition][offset][2] >= time_us:
                return offset
        return end

    def decided(self, group: int, slot: int) -> list[Decided]:
        return self.slots[group][slot - 1 :] if slot >= self.kept[group] else []

    def node(self, group: int, level: int, number: int) -> bytes:
        if level == 0:
            return self.leaves[group][number]
        below = (self.node(group, level - 1, 2 * number + side) for side in (0, 1))
        return node_hash(*below)

    def bytes_held(self, partition: Partition) -> int:
        kept = self.entries[partition][self.starts[partition] :]
        return sum(len(entry[4]) for entry in kept if entry[4] is not ABSENT)


def check(store: DiskStore, oracle: Oracle) -> None:
    """Every question gets the same answer from both."""
    for partition in PARTITIONS:
        start, end = oracle.bounds(partition)
        assert store.bounds(partition) == (start, end)
        assert store.bytes_held(partition) == oracle.bytes_held(partition)
        for offset in range(-1, end + 2):
            assert store.chain(partition, offset) == oracle.chain(partition, offset)
            for bytes_max in (0, 40, 10**6):
                expected = oracle.read(partition, offset, bytes_max)
                assert store.read(partition, offset, bytes_max) == expected
        times = {entry[2] + late for entry in oracle.entries[partition] for late in (-1, 0, 1)}
        for time_us in sorted(times | {0}):
            assert store.offset_at(partition, time_us) == oracle.offset_at(partition, time_us)
    for group in (0, 1):
        check_group(store, oracle, group)


def check_group(store: DiskStore, oracle: Oracle, group: int) -> None:
    for slot in range(1, len(oracle.slots[group]) + 2):
        expected = oracle.decided(group, slot)
        assert store.decided(group, slot, 10**9) == expected
        assert store.decided(group, slot, 0) == expected[:1]
    level, nodes = 0, len(oracle.leaves[group])
    while nodes:
        for number in range(nodes):
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
            f"{line.publisher % 10}/{line.topic}/{sequence} at {self.end}".encode().ljust(
                size, b"!"
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

    def vote(self, group: int, ahead: int = 1) -> None:
        slot = len(self.oracle.slots[group]) + ahead
        self.append(Voted(group, 1, slot, 0, b"", {b"d" * 32: 1}, [b"value"]))

    def trim(self, partition: Partition, offset: int) -> None:
        start, end = self.oracle.bounds(partition)
        offset = min(max(offset, start), end)
        self.store.trim(partition, offset)
        self._happened(lambda oracle: oracle.starts.update({partition: offset}))

    def keep_slots_from(self, group: int, slot: int) -> None:
        slot = min(max(slot, self.oracle.kept[group]), len(self.oracle.slots[group]) + 1)
        self.store.keep_slots_from(group, slot)
        if self.oracle.slots[group]:
            self._happened(lambda oracle: oracle.kept.update({group: slot}))

    def forget(self, line: Line, before: int) -> None:
        def apply(oracle: Oracle) -> None:
            for sequence in [each for each in oracle.pending[line] if each < before]:
                del oracle.pending[line][sequence]

        self.store.forget(line, before)
        self._happened(apply)

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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.store.close()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a disk are made here by copying files, so that nothing has to reach it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


def fill(disk: Disk, rounds: int = 6) -> None:
    """A bit of everything: several lines, absent payloads, both groups, several segments."""
    for number in range(rounds):
        disk.hold(LINES[0], 3)
        disk.hold(LINES[1], 2, size=300)
        disk.hold(LINES[3], 1)
        disk.vote(0)
        disk.decide({LINES[0]: 2, LINES[1]: 2, LINES[2]: 1 + number % 2, LINES[3]: 1})


def test_a_disk_store_is_a_store(disk: Disk) -> None:
    store: Store = disk.store
    assert store.bounds(PARTITIONS[0]) == (0, 0)


def test_a_new_store_knows_nothing(disk: Disk) -> None:
    assert disk.store.read(PARTITIONS[0], 0, 100) == []
    assert disk.store.chain(PARTITIONS[0], 0) == START
    assert disk.store.chain(PARTITIONS[0], 1) is None
    assert disk.store.offset_at(PARTITIONS[0], 5) == 0
    assert disk.store.decided(0, 1, 100) == []
    assert disk.store.partitions() == []
    recovered = disk.store.recover()
    assert (recovered.snapshots, list(recovered.records), recovered.replayed) == ({}, [], 0)


def test_what_was_decided_can_be_read(disk: Disk) -> None:
    fill(disk)
    disk.check()
    assert disk.store.partitions() == PARTITIONS


def test_many_leaves_make_a_tree(tmp_path: Path) -> None:
    disk = Disk(tmp_path, chunk_entries=64)
    for _ in range(11):
        disk.append(disk.oracle.decision(0, {LINES[0]: 50}, 7))
    check_group(disk.store, disk.oracle, 0)
    disk.crash()
    check_group(disk.store, disk.oracle, 0)
    disk.store.close()


def test_a_store_that_was_closed_goes_on(disk: Disk) -> None:
    fill(disk)
    recovered = disk.reopen()
    check_recovered(recovered, disk.oracle)
    disk.check()
    fill(disk)
    disk.check()


def test_a_payload_that_comes_late_is_read_from_then_on(disk: Disk) -> None:
    disk.hold(LINES[0], 2)
    disk.decide({LINES[0]: 6})
    # One and two are here, three to six are not; four and five come late, with seven and eight.
    disk.append(disk.held(LINES[0], 4, 2))
    disk.check()
    disk.append(disk.held(LINES[0], 6, 3))
    disk.check()
    check_recovered(disk.crash(), disk.oracle)
    disk.check()
    disk.append(disk.held(LINES[0], 3, 1))
    disk.check()
    disk.checkpoint()
    disk.check()
    disk.crash()
    disk.check()


def test_a_payload_that_is_held_again_replaces_the_one_before(disk: Disk) -> None:
    disk.append(disk.held(LINES[0], 1, 5))
    disk.append(disk.held(LINES[0], 2, 2, size=50))
    disk.append(disk.held(LINES[0], 4, 4, size=60))
    disk.decide({LINES[0]: 3})
    disk.check()
    check_recovered(disk.crash(), disk.oracle)
    disk.decide({LINES[0]: 4})
    disk.check()


def test_a_decision_that_leaves_something_out_is_refused_and_not_written(disk: Disk) -> None:
    disk.decide({LINES[0]: 2})
    end = disk.end
    good = disk.oracle.decision(0, {LINES[0]: 2}, 5000)
    run = good.placed[0]
    other_offset = Placed(*LINES[0], 3, 5, 2, run.digests, run.leaves, run.chains)
    other_leaf = Placed(*LINES[0], 3, 2, 3, run.digests, run.leaves, run.chains)
    for bad, sentence in (
        (Decided(0, 3, 5000, b"", good.placed), "slot 3 is decided, but 2 is next"),
        (Decided(0, 2, 5000, b"", [other_offset]), "offset 5 is decided, but 2 is next"),
        (Decided(0, 2, 5000, b"", [other_leaf]), "leaf 3 is decided, but 2 is next"),
    ):
        with pytest.raises(LocalProtocolError, match=sentence):
            disk.store.append([disk.held(LINES[0], 3, 1), bad])
    with pytest.raises(LocalProtocolError, match="slot 2 is decided, but 3 is next"):
        disk.store.append([good, good])
    assert disk.end == end
    disk.check()


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros"])
def test_a_power_cut_anywhere_in_the_tail_loses_nothing_else(tmp_path: Path, damage: str) -> None:
    disk = Disk(tmp_path, segment_bytes=10**6)
    disk.hold(LINES[0], 3)
    disk.decide({LINES[0]: 2, LINES[2]: 1, LINES[3]: 1})
    disk.checkpoint()
    disk.hold(LINES[1], 2)
    disk.decide({LINES[0]: 2, LINES[1]: 1, LINES[3]: 1})
    ends = [end for end, _ in disk.history]
    content = max(disk.directory.glob("journal-*")).read_bytes()
    image = disk.image()
    for at in range(ends[-3], len(content)):
        damaged = {
            "cut": content[:at],
            "flipped": content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :],
            "zeros": content[:at] + bytes(len(content) - at),
        }[damage]
        oracle = Oracle()
        for end, apply in disk.history:
            if end <= at:
                apply(oracle)
        copy = shutil.copytree(image, tmp_path / "copy")
        max(copy.glob("journal-*")).write_bytes(damaged)
        store = DiskStore(copy, **disk.options)
        check_recovered(store.recover(), oracle)
        check(store, oracle)
        more = oracle.decision(0, {LINES[0]: 2}, 10**6)
        store.append([more])
        oracle.apply(more)
        check(store, oracle)
        store.close()
        shutil.rmtree(copy)
    assert at > ends[-3] + 500
    disk.store.close()


def test_only_what_is_behind_the_snapshots_is_replayed(disk: Disk) -> None:
    fill(disk)
    disk.snapshot(0)
    disk.snapshot(1)
    for line in LINES:
        disk.hold(line, 1)
    disk.vote(0)
    recovered = disk.crash()
    # Beside what came after, the records from the first of the snapshots' own slots on.
    assert recovered.replayed == len(LINES) + 1 + 3
    check_recovered(recovered, disk.oracle)
    disk.check()


def test_what_was_said_about_later_slots_before_the_snapshot_is_replayed(disk: Disk) -> None:
    fill(disk, 3)
    disk.vote(0, ahead=1)
    disk.vote(1, ahead=2)
    disk.snapshot(0, behind=1)
    disk.snapshot(1)
    recovered = disk.crash()
    check_recovered(recovered, disk.oracle)
    disk.check()


def test_each_group_has_its_own_snapshot(disk: Disk) -> None:
    fill(disk, 2)
    disk.snapshot(0)
    fill(disk, 2)
    recovered = disk.crash()
    assert set(recovered.snapshots) == {0}
    check_recovered(recovered, disk.oracle)
    disk.snapshot(1)
    fill(disk, 1)
    recovered = disk.crash()
    assert set(recovered.snapshots) == {0, 1}
    check_recovered(recovered, disk.oracle)
    disk.check()


def test_a_crash_between_checkpoint_and_snapshot_leaves_the_snapshot_before(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(disk, 2)
    disk.snapshot(0)
    fill(disk, 2)

    class PowerCutError(Exception):
        pass

    def cut(*_: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr("quorate.storage.store.save_snapshot", cut)
        with pytest.raises(PowerCutError):
            disk.store.append([Snapshot(0, 4, b"lost")])
    disk.saved = len(disk.history)
    check_recovered(disk.crash(), disk.oracle)
    disk.check()


def test_nothing_grows_with_the_log(disk: Disk) -> None:
    for _ in range(30):
        fill(disk, 1)
        disk.decide({LINES[0]: 1})
        disk.snapshot(0)
        disk.snapshot(1)
    derived = disk.store._derived
    assert len(derived.pending) == 0
    assert derived.patches == 0
    assert not any(index._patches for index in derived.indexes.values())
    # The one line that is never held here is one gap, however long it is.
    assert len(derived._absents) == 1
    assert all(len(derived.group(number)._marks) == 1 for number in (0, 1))
    assert all(len(column._buffer) == 0 for column in derived._columns())


def test_few_files_are_open(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open_files_max=5)
    before = len(os.listdir("/dev/fd"))
    fill(disk, 20)
    disk.check()
    disk.clean()
    disk.check()
    assert len(list(disk.directory.rglob("*"))) > 50
    assert len(disk.store._files) == 5
    assert len(os.listdir("/dev/fd")) <= before + 5
    disk.store.close()
    # The lock and the journal's last segment are closed as well.
    assert len(os.listdir("/dev/fd")) <= before - 2


def test_a_store_is_used_by_one_process(disk: Disk) -> None:
    with pytest.raises(StorageError, match="in use by another replica process"):
        disk.opened()


# Retention


def test_what_is_trimmed_is_gone_and_the_rest_is_as_before(disk: Disk) -> None:
    fill(disk)
    for offset in (0, 1, 5, 9, 17, 10**6):
        disk.trim(PARTITIONS[0], offset)
        disk.check()
    fill(disk, 1)
    disk.check()
    disk.checkpoint()
    disk.check()
    disk.crash()
    disk.check()


def test_a_crash_before_a_checkpoint_undoes_trimming(disk: Disk) -> None:
    fill(disk)
    disk.trim(PARTITIONS[0], 9)
    disk.checkpoint()
    disk.trim(PARTITIONS[0], 17)
    disk.keep_slots_from(0, 4)
    disk.crash()
    assert disk.store.bounds(PARTITIONS[0])[0] == 9
    disk.check()


def test_trimmed_chunks_of_the_index_are_deleted(disk: Disk) -> None:
    fill(disk, 12)
    disk.checkpoint()
    name = "index/partition-7-0-places-*"
    before = len(list(disk.directory.glob(name)))
    disk.trim(PARTITIONS[0], 33)
    disk.checkpoint()
    assert len(list(disk.directory.glob(name))) == before - 4
    disk.crash()
    disk.check()


def test_retention_by_time_and_by_size(disk: Disk) -> None:
    fill(disk)
    partition = PARTITIONS[0]
    start, end = disk.store.bounds(partition)
    time_us = disk.oracle.entries[partition][10][2]
    assert disk.store.expired(partition, time_us) == disk.oracle.offset_at(partition, time_us)
    assert disk.store.expired(Partition(99, 0), time_us) == 0
    for bytes_max in (0, 1, 333, 1000, 10**6):
        offset = disk.store.surplus(partition, bytes_max)
        fitting = [
            number
            for number in range(start, end + 1)
            if sum(len(entry[4]) for entry in disk.oracle.entries[partition][number:]) <= bytes_max
        ]
        assert offset == fitting[0]


def journal_files(disk: Disk) -> int:
    return len(list(disk.directory.glob("journal-*")))


def test_segments_in_which_nothing_is_needed_are_deleted(disk: Disk) -> None:
    fill(disk, 20)
    before = journal_files(disk)
    # Slots must still be served, payloads read, and groups replayed: nothing may go.
    disk.clean()
    assert journal_files(disk) == before
    for partition in PARTITIONS:
        disk.trim(partition, disk.store.bounds(partition)[1])
    disk.clean()
    assert journal_files(disk) == before
    for group in (0, 1):
        disk.keep_slots_from(group, len(disk.oracle.slots[group]))
    disk.clean()
    assert journal_files(disk) == before
    for group in (0, 1):
        disk.snapshot(group)
    disk.clean()
    # What is pending is a payload of line 0 in every segment, and keeps none of them alive.
    assert journal_files(disk) < before / 2
    disk.check()
    check_recovered(disk.crash(), disk.oracle)
    disk.check()


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


def test_cleaning_keeps_every_live_payload(disk: Disk) -> None:
    sparse(disk)
    disk.check()
    before = journal_files(disk)
    cleaned = disk.store.clean(segments_max=100)
    disk.saved = len(disk.history)
    assert cleaned.bytes_copied > 0
    assert cleaned.segments_deleted > before / 2
    disk.check()
    check_recovered(disk.crash(), disk.oracle)
    disk.check()
    # What was copied is trimmed and decided as everything else.
    disk.decide({LINES[2]: 15})
    disk.trim(LINES[3].target, 20)
    disk.clean()
    disk.check()
    check_recovered(disk.crash(), disk.oracle)
    disk.check()


def test_a_crash_while_cleaning_loses_nothing(tmp_path: Path) -> None:
    """An image of the disk before each file operation that cleaning does."""
    disk = Disk(tmp_path)
    sparse(disk)
    disk.checkpoint()
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
        assert disk.store.clean(segments_max=100).bytes_copied > 0
    disk.check()
    assert len(images) > 50
    for image in images:
        store = DiskStore(image, **disk.options)
        check_recovered(store.recover(), disk.oracle)
        check(store, disk.oracle)
        assert store.clean(segments_max=100).segments_deleted >= 0
        check(store, disk.oracle)
        store.close()
        shutil.rmtree(image)
    disk.store.close()


def test_a_damaged_payload_is_not_copied(disk: Disk) -> None:
    sparse(disk)
    file = sorted(disk.directory.glob("journal-*"))[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match=f"{file.name} is damaged at byte"):
        disk.store.clean(segments_max=100)
    assert file.exists()


def test_what_will_never_be_decided_can_be_given_up(disk: Disk) -> None:
    disk.hold(LINES[0], 5)
    disk.hold(LINES[0], 5, skip=2)
    disk.forget(LINES[0], 4)
    disk.decide({LINES[0]: 1})
    disk.check()
    disk.checkpoint()
    check_recovered(disk.crash(), disk.oracle)
    disk.forget(LINES[0], 10**6)
    disk.forget(LINES[1], 10**6)
    assert len(disk.store._derived.pending) == 0
    assert sum(use.live_bytes for use in disk.store._derived.usage.uses) == 0


# Damage


def index_files(disk: Disk) -> list[Path]:
    """The last chunk of each column that has a checksum."""
    last: dict[str, Path] = {}
    for path in sorted((disk.directory / "index").iterdir()):
        last[path.name[:-20]] = path
    return [path for name, path in last.items() if "places" not in name]


def test_an_index_or_tree_file_that_is_damaged_is_an_error_that_names_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk)
    disk.store.close()
    for path in index_files(disk):
        content = path.read_bytes()
        altered = content[:-1] + bytes([content[-1] ^ 1])
        for damaged in (content[:-1], b"", altered, None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(StorageError, match=path.name):
                disk.opened()
        path.write_bytes(content)
    disk.opened().close()


def test_a_chunk_before_the_last_that_is_missing_or_short_is_an_error(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk)
    disk.store.close()
    path = disk.directory / "index" / f"partition-7-0-places-{0:020d}"
    os.truncate(path, 17)
    with pytest.raises(StorageError, match=f"{path.name} has 17 bytes, but 128"):
        disk.opened()
    path.unlink()
    with pytest.raises(StorageError, match=f"{path.name} is missing"):
        disk.opened()


@pytest.mark.parametrize("name", ["checkpoint", "snapshot-0"])
def test_a_damaged_checkpoint_or_snapshot_is_an_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    disk = Disk(tmp_path)
    fill(disk)
    disk.snapshot(0)
    disk.store.close()
    path = disk.directory / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match=f"{name} is damaged"):
        disk.opened()


def test_chunks_of_another_size_are_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.store.close()
    with pytest.raises(StorageError, match="index chunks of 8 entries, not 16"):
        DiskStore(disk.directory, chunk_entries=16)


def test_a_payload_that_is_gone_is_an_error_that_names_its_offset(disk: Disk) -> None:
    fill(disk)
    disk.checkpoint()
    segments = disk.store._journal.segments
    segments.remove(segments.firsts[0])
    with pytest.raises(StorageError, match="partition 0 of topic 7 cannot be read from offset 0"):
        disk.store.read(PARTITIONS[0], 0, 100)


# The fsync policy


def test_each_policy_says_what_it_gives_up(tmp_path: Path) -> None:
    synced: dict[str, tuple[bool, bool]] = {}
    sentences: dict[str, str] = {}
    for policy in ("always", "interval", "never"):
        disk = Disk(tmp_path / policy, fsync=policy)
        disk.hold(LINES[0], 1)
        disk.store.sync()
        at_once = disk.store._journal.synced == disk.end
        disk.store.sync_now()
        synced[policy] = at_once, disk.store._journal.synced == disk.end
        sentences[policy] = disk.store.gives_up
        disk.store.close()
    assert synced == {"always": (True, True), "interval": (False, True), "never": (False, True)}
    assert sentences["always"] == ""
    assert "since the last sync is lost" in sentences["interval"]
    assert "lost if the machine loses power" in sentences["never"]


def test_another_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match="always, interval, never, not 'sometimes'"):
        DiskStore(tmp_path, fsync="sometimes")  # type: ignore[arg-type]


# Everything at once

lines = st.sampled_from(LINES)
counts = st.integers(1, 5)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens, in whatever order, the store agrees with its oracle."""

    directories: Iterator[Path]

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk(next(self.directories), segment_bytes=700)

    @rule(line=lines, count=counts, size=st.sampled_from([15, 40, 300]), skip=st.integers(0, 1))
    def hold(self, line: Line, count: int, size: int, skip: int) -> None:
        self.disk.hold(line, count, size, skip)

    @rule(line=lines, count=counts)
    def hold_again(self, line: Line, count: int) -> None:
        self.disk.append(self.disk.held(line, self.disk.oracle.next_of(line), count))

    @rule(line=lines, which=st.integers(0, 100))
    def hold_late(self, line: Line, which: int) -> None:
        missing = [
            entry[1]
            for entry in self.disk.oracle.entries[line.target]
            if entry[0] == line.publisher and entry[4] is ABSENT
        ]
        if missing:
            self.disk.append(self.disk.held(line, missing[which % len(missing)], 1))

    @rule(counts=st.dictionaries(lines, counts, min_size=1))
    def decide(self, counts: dict[Line, int]) -> None:
        self.disk.decide(counts)

    @rule(group=st.integers(0, 1), ahead=st.integers(1, 2))
    def vote(self, group: int, ahead: int) -> None:
        self.disk.vote(group, ahead)

    @rule(group=st.integers(0, 1), behind=st.integers(0, 2))
    def snapshot(self, group: int, behind: int) -> None:
        self.disk.snapshot(group, behind)

    @rule(partition=st.sampled_from(PARTITIONS), part=st.floats(0, 1))
    def trim(self, partition: Partition, part: float) -> None:
        self.disk.trim(partition, round(part * len(self.disk.oracle.entries[partition])))

    @rule(group=st.integers(0, 1), part=st.floats(0, 1))
    def keep_slots_from(self, group: int, part: float) -> None:
        self.disk.keep_slots_from(group, round(part * len(self.disk.oracle.slots[group])))

    @rule(line=lines, before=st.integers(1, 20))
    def forget(self, line: Line, before: int) -> None:
        self.disk.forget(line, before)

    @rule()
    def sync(self) -> None:
        self.disk.store.sync()

    @rule()
    def checkpoint(self) -> None:
        self.disk.checkpoint()

    @precondition(lambda self: len(self.disk.history) > 5)
    @rule()
    def clean(self) -> None:
        self.disk.clean()
        self.disk.check()

    @rule()
    def reopen(self) -> None:
        check_recovered(self.disk.reopen(), self.disk.oracle)
        self.disk.check()

    @rule(lost=st.integers(0, 600), garbage=st.sampled_from([b"", bytes(40), b"\xff" * 13]))
    def crash(self, lost: int, garbage: bytes) -> None:
        check_recovered(self.disk.crash(lost, garbage), self.disk.oracle)
        self.disk.check()

    def teardown(self) -> None:
        self.disk.check()
        live = sum(use.live_bytes for use in self.disk.store._derived.usage.uses)
        held = sum(map(self.disk.oracle.bytes_held, PARTITIONS))
        pending = sum(len(p) for runs in self.disk.oracle.pending.values() for p in runs.values())
        assert live == held + pending
        self.disk.store.close()
        shutil.rmtree(self.disk.root)


@pytest.mark.usefixtures("no_waiting")
def test_any_history_is_as_the_oracle_says(tmp_path: Path) -> None:
    AnyHistory.directories = (tmp_path / str(number) for number in range(10**6))
    run_state_machine_as_test(
        AnyHistory, settings=settings(max_examples=100, stateful_step_count=40)
    )
