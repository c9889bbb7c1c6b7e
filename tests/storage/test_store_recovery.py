"""What a store has after a power cut, and what it replays."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from quorate.protocol.ordering.records import (
    Snapshot,
)
from quorate.storage.checkpoint import SNAPSHOTS
from quorate.storage.errors import StorageError
from quorate.storage.store import DiskStore
from stores import LINES, Disk, Oracle, check, check_recovered, fill


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
        patch.setattr(SNAPSHOTS, "save", cut)
        with pytest.raises(PowerCutError):
            disk.store.append([Snapshot(0, 4, b"lost")])
    disk.saved = len(disk.history)
    check_recovered(disk.crash(), disk.oracle)
    disk.check()


@pytest.mark.parametrize("reason", [errno.EIO, errno.ENOSPC])
def test_an_index_file_that_could_not_be_synced_is_in_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    """The system reports a failed sync once, drops what it could not write, and goes on."""
    disk = Disk(tmp_path)
    fill(disk)
    disk.checkpoint()
    fill(disk)
    before = (disk.directory / "checkpoint").read_bytes()
    really, failed = os.fdatasync, list[str]()

    def fails_once(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not failed and "/index/" in path:
            failed.append(path)
            os.ftruncate(descriptor, 0)
            raise OSError(reason, os.strerror(reason))
        really(descriptor)

    monkeypatch.setattr(os, "fdatasync", fails_once)
    with pytest.raises(StorageError, match="be synced"):
        disk.store.checkpoint()
    assert failed
    with pytest.raises(StorageError, match="be synced"):
        disk.store.clean()
    with pytest.raises(StorageError, match="be synced"):
        disk.store.close()
    assert (disk.directory / "checkpoint").read_bytes() == before


def test_nothing_grows_with_the_log(disk: Disk) -> None:
    for _ in range(30):
        fill(disk, 1)
        disk.decide({LINES[0]: 1})
        disk.snapshot(0)
        disk.snapshot(1)
    derived = disk.store._derived
    assert list(derived.pending) == []
    assert derived.patches == 0
    assert not any(index._patches for index in derived.indexes.values())
    # The one line that is never held here is one gap, however long it is.
    assert len(list(derived._absents)) == 1
    assert all(len(derived.group(number)._marks) == 1 for number in (0, 1))
    assert all(len(column._buffer) == 0 for column in derived._columns())
