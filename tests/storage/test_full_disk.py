"""A full disk stops a store, damages nothing, and is over when there is room again."""

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from quorate.core.ordering import Partition
from quorate.protocol.ordering.records import Decided, Held, Placed, Record, Snapshot
from quorate.storage.errors import DiskFullError
from quorate.storage.store import DiskStore
from stores import batch, described, text_of

PARTITION = Partition(7, 0)
LARGE = 50_000


def records(number: int, size: int = LARGE) -> list[Record]:
    """A payload of two events, and the decision that gives them the next offsets."""
    each = number.to_bytes(32, "big")
    placed = Placed(
        3, *PARTITION, number + 1, 2 * number, number, described(2, number), each, each
    )  # fmt: skip
    return [
        Held(3, *PARTITION, number + 1, [batch(each, 2, size)]),
        Decided(0, number + 1, 1000 + number, b"value", [placed]),
    ]


def contents(store: DiskStore) -> list[bytes]:
    return [
        text_of(payload)[:32]
        for stretch in store.read(PARTITION, 0, 10**9)
        for payload in stretch.payloads
    ]


def expected(count: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in range(count)]


def fill(store: DiskStore) -> int:
    """Append until there is no room; says how many batches there are then."""
    for number in range(10_000):
        try:
            store.append(records(number))
        except DiskFullError as error:
            assert error.retriable
            return number
    raise AssertionError("the disk is not full")


def check_full(store: DiskStore, directory: Path, make_room: Callable[[], object]) -> None:
    """Nothing half-written stays, and it goes on when there is room."""
    count = fill(store)
    assert count > 3
    assert contents(store) == expected(count)
    end = store._journal.end
    assert sum(path.stat().st_size for path in directory.glob("journal-*")) == end
    with pytest.raises(DiskFullError):
        store.append(records(count))
    assert contents(store) == expected(count)
    make_room()
    store.append(records(count))
    store.sync()
    assert contents(store) == expected(count + 1)


def check_reopened(directory: Path) -> None:
    """What was there is there, and it goes on."""
    with closing(DiskStore(directory, reserve_bytes=0)) as store:
        count = store.bounds(PARTITION)[1] // 2
        assert contents(store) == expected(count)
        store.append(records(count))
        assert contents(store) == expected(count + 1)


@contextmanager
def largest_file(size: int) -> Iterator[Callable[[], None]]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield lift
    finally:
        lift()


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    # Python ignores the signal that comes with this limit, so that the write fails.
    with largest_file(10 * LARGE + 12_345) as lift, closing(DiskStore(tmp_path)) as store:
        check_full(store, tmp_path, lift)
    check_reopened(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a file system takes more rights than we have")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_small_file_system(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    with closing(DiskStore(small_disk, reserve_bytes=0)) as store:
        check_full(store, small_disk, ballast.unlink)
    check_reopened(small_disk)


@pytest.mark.parametrize("has_reserve", [True, False])
def test_a_full_file_system_is_cleaned_with_the_reserve(
    small_disk: Path, has_reserve: bool
) -> None:
    reserve = 100_000 if has_reserve else 0
    store = DiskStore(small_disk, segment_bytes=2 * LARGE, reserve_bytes=reserve)
    try:
        check_cleaning(store, has_reserve)
    finally:
        store.close()


def check_cleaning(store: DiskStore, has_reserve: bool) -> None:
    count = fill(store)
    # The decisions are known to the machine, and nobody has to be told of them any more.
    store.trim(PARTITION, 2 * (count - 3))
    store.keep_slots_from(0, count)
    store.append([Snapshot(0, count, b"state")])
    if not has_reserve:
        with pytest.raises(DiskFullError):
            store.clean()
        return
    assert store.clean().segments_deleted > 3
    store.append(records(count))
    found = [stretch.offset for stretch in store.read(PARTITION, 2 * (count - 3), 10**9)]
    assert found == [2 * (count - back) for back in (3, 2, 1, 0)]


def test_a_snapshot_for_which_there_is_no_room_is_saved_later(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.append([*records(0), Snapshot(0, 1, b"small")])
    with largest_file(2 * LARGE) as lift:
        store.append([*records(1, 100), Snapshot(0, 2, b"large" * LARGE)])
        assert not list(tmp_path.glob("*.new"))
        lift()
    store.append(records(2))
    store.close()
    store = DiskStore(tmp_path)
    assert store.recover().snapshots == {0: Snapshot(0, 2, b"large" * LARGE)}
    assert contents(store) == expected(3)
    store.close()


def test_index_files_without_room_wait_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the journal decides whether a record is written."""
    store = DiskStore(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as no_room:
        no_room.setattr(os, "pwrite", full)
        for number in range(2500):
            store.append(records(number, 33))
        assert len(contents(store)) == 2500
        with pytest.raises(DiskFullError, match="no room"):
            store.checkpoint()
    assert contents(store) == expected(2500)
    store.close()
    store = DiskStore(tmp_path)
    assert contents(store) == expected(2500)
    store.close()
