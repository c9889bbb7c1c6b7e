"""Files that are damaged or missing are errors that name them."""

import os
from pathlib import Path

import pytest

from quorate.storage.errors import StorageError
from quorate.storage.store import DiskStore
from stores import PARTITIONS, Disk, fill, index_files


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
