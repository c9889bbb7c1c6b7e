"""What is not needed goes, and everything else stays as it was."""

import copy
import shutil
from pathlib import Path

import pytest

from quorate.core.ordering import Partition
from quorate.protocol.ordering.records import Dropped, Held
from quorate.storage.errors import StorageError
from quorate.storage.store import DiskStore
from stores import (
    LINES,
    PARTITIONS,
    Disk,
    check,
    check_recovered,
    fill,
    images_while,
    journal_files,
    sparse,
)


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
    at, later = (disk.oracle.offsets[PARTITIONS[0]][number] for number in (9, 17))
    disk.trim(PARTITIONS[0], at)
    disk.checkpoint()
    disk.trim(PARTITIONS[0], later)
    disk.keep_slots_from(0, 4)
    disk.crash()
    assert disk.store.bounds(PARTITIONS[0])[0] == at
    disk.check()


def test_trimmed_chunks_of_the_index_are_deleted(disk: Disk) -> None:
    fill(disk, 12)
    disk.checkpoint()
    name = "index/partition-7-0-places-*"
    before = len(list(disk.directory.glob(name)))
    disk.trim(PARTITIONS[0], disk.oracle.offsets[PARTITIONS[0]][33])
    disk.checkpoint()
    assert len(list(disk.directory.glob(name))) == before - 4
    disk.crash()
    disk.check()


def test_retention_by_time_and_by_size(disk: Disk) -> None:
    fill(disk)
    partition = PARTITIONS[0]
    time_us = disk.oracle.entries[partition][10][2]
    assert disk.store.offset_at(partition, time_us) == disk.oracle.offset_at(partition, time_us)
    assert disk.store.offset_at(Partition(99, 0), time_us) == 0
    for bytes_max in (0, 1, 333, 1000, 10**6):
        offset = disk.store.surplus(partition, bytes_max)
        fitting = [
            at
            for number, at in enumerate(disk.oracle.offsets[partition])
            if sum(len(entry[4]) for entry in disk.oracle.entries[partition][number:]) <= bytes_max
        ]
        assert offset == fitting[0]


def test_retention_never_cuts_a_batch(disk: Disk) -> None:
    fill(disk)
    partition, offsets = PARTITIONS[0], disk.oracle.offsets[PARTITIONS[0]]
    for offset in range(offsets[-1] + 1):
        disk.store.trim(partition, offset)
        assert disk.store.bounds(partition)[0] == max(at for at in offsets if at <= offset)


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
    copied: list[int] = []
    images = images_while(
        disk, lambda: copied.append(disk.store.clean(segments_max=100).bytes_copied)
    )
    assert copied[0] > 0
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


def test_what_was_copied_before_a_crash_keeps_its_segment(tmp_path: Path) -> None:
    """Replaying a copy must not take it for the one that it replaces."""
    disk = Disk(tmp_path)
    sparse(disk)
    disk.checkpoint()
    for image in images_while(disk, lambda: disk.store.clean(segments_max=100)):
        store, oracle = DiskStore(image, **disk.options), copy.deepcopy(disk.oracle)
        # Whatever else stands beside the copies goes, and their segment is not the last one.
        store.forget(LINES[2], 10**6)
        oracle.forget(LINES[2], 10**6)
        for first in (1, 2):
            store.append([held := Held(*LINES[1], first, [bytes(3000)])])
            oracle.apply(held)
        store.clean(segments_max=0)
        check(store, oracle)
        store.close()
        shutil.rmtree(image)
    disk.store.close()


def test_a_payload_that_came_late_before_a_crash_keeps_its_segment(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.decide({LINES[0]: 3})
    disk.snapshot(0)
    disk.keep_slots_from(0, 10**6)
    disk.checkpoint()
    disk.append(disk.held(LINES[0], 1, 3))
    for image in images_while(disk, disk.checkpoint):
        store, oracle = DiskStore(image, **disk.options), copy.deepcopy(disk.oracle)
        for first in (1, 2):
            store.append([held := Held(*LINES[1], first, [bytes(3000)])])
            oracle.apply(held)
        store.keep_slots_from(0, 10**6)
        store.clean(segments_max=0)
        check(store, oracle)
        assert store.bytes_held(LINES[0].target) == oracle.bytes_held(LINES[0].target)
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


def test_what_is_dropped_stays_dropped_after_a_crash_and_needs_no_room(disk: Disk) -> None:
    disk.hold(LINES[0], 5)
    disk.hold(LINES[1], 5)
    disk.append(Dropped(*LINES[0]))
    disk.hold(LINES[0], 2)
    check_recovered(disk.crash(), disk.oracle)
    disk.append(Dropped(*LINES[0]), Dropped(*LINES[1]))
    disk.checkpoint()
    check_recovered(disk.crash(), disk.oracle)
    assert list(disk.store._derived.pending) == []
    assert sum(use.live_bytes for use in disk.store._derived.usage.uses) == 0


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
    assert list(disk.store._derived.pending) == []
    assert sum(use.live_bytes for use in disk.store._derived.usage.uses) == 0
