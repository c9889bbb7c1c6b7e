"""Files as the store uses them: few open at a time, synced for real, replaced in one step."""

import fcntl
import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import crc32c

from quorate.storage.errors import StorageError, explained

# Room that is set aside for the day when the disk is full.
RESERVE_BYTES = 4 * 1024 * 1024
_CHECK_BYTES = 4
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class Files:
    """Descriptors by path, of which only the most recently used ones stay open."""

    def __init__(self, open_max: int = 64) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._open_max = open_max
        self._failed = ""

    def descriptor(self, path: str, *, create: bool = False) -> int:
        """The file, open for reading and writing. Use it at once: later calls may close it."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise explained(error, path, "opened") from error
        self._open[path] = descriptor
        if len(self._open) > self._open_max:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def read(self, path: str, length: int, at: int) -> bytes:
        """Exactly so many bytes, or an error that names the file."""
        try:
            data = os.pread(self.descriptor(path), length, at)
            while len(data) < length:
                more = os.pread(self.descriptor(path), length - len(data), at + len(data))
                if not more:
                    raise StorageError(
                        f"{path} ends at byte {at + len(data)}, before {at + length}"
                    )
                data += more
        except OSError as error:
            raise explained(error, path, "read") from error
        return data

    def write(self, path: str, data: bytes | memoryview, at: int) -> None:
        """Write all of it, in a file that is made if need be."""
        descriptor, done = self.descriptor(path, create=True), 0
        try:
            while done < len(data):
                # Released even if it fails: one may try again while the error is at hand.
                with memoryview(data)[done:] as rest:
                    done += os.pwrite(descriptor, rest, at + done)
        except OSError as error:
            raise explained(error, path, "written") from error

    def truncate(self, path: str, length: int) -> None:
        try:
            os.ftruncate(self.descriptor(path), length)
        except OSError as error:
            raise explained(error, path, "cut") from error

    def sync(self, path: str) -> None:
        """Make sure that the file outlives a power cut. If one cannot be synced, that is final.

        The operating system may have dropped what it could not write, for want of room too, and
        would report success the next time.
        """
        if self._failed:
            raise StorageError(self._failed)
        try:
            sync_file(self.descriptor(path))
        except OSError as error:
            self._failed = f"{path} could not be synced: {error.strerror}"
            raise StorageError(self._failed) from error

    def remove(self, path: str) -> None:
        """Delete the file; one that is not there is as good."""
        self.forget(path)
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise explained(error, path, "deleted") from error

    def forget(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


class Reserve:
    """A file that is there only to be deleted.

    Deleting old segments takes a checkpoint first, and a checkpoint takes some room. Without a
    reserve, a disk that is full could not be cleaned.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def fill(self) -> None:
        """Take the room, unless we have it."""
        if not self._size or (self._path.exists() and self._path.stat().st_size == self._size):
            return
        try:
            with self._path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._size)
                else:
                    file.write(bytes(self._size))
        except OSError as error:
            self.release()
            raise explained(error, self._path, "set aside") from error

    def release(self) -> None:
        """Give the room back."""
        self._path.unlink(missing_ok=True)


def sync_file(descriptor: int) -> None:
    # macOS has no fdatasync, and its fsync leaves data in the drive's own cache.
    if _FULL_SYNC is None:
        os.fdatasync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL_SYNC)


def uncache(path: str) -> None:
    """Let the system use the memory that holds a synced file's content for something else.

    Left alone it would be used last, long after memory that was never written to, and that is
    several times slower to write to for the first time.
    """
    # Not every system can be told.
    if not hasattr(os, "posix_fadvise"):
        return
    # It is a hint: the file may be gone meanwhile, and nothing depends on it.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make sure that files which were made, renamed or deleted here stay so."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # As with files, there is no second try, whatever the reason.
        raise StorageError(f"{path} could not be synced: {error.strerror}") from error


def make_directory(path: Path) -> None:
    """Make it with all that it is in, so that a power cut leaves them there.

    A file that is synced is lost all the same with a directory that was never written down.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explained(error, path, "made") from error
    for each in reversed(missing):
        sync_directory(each.parent)


def lock_directory(path: Path) -> int:
    """A descriptor that keeps every other process out of this directory while it is open."""
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StorageError(f"{path} is in use by another replica process") from None
    except OSError as error:
        raise explained(error, path, "locked") from error
    return descriptor


def replace_file(path: Path, data: bytes) -> None:
    """Put a checksummed file in place of the old one: after a crash there is one or the other."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.write(crc32c.crc32c(data).to_bytes(_CHECK_BYTES, "little"))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise explained(error, path, "written") from error
    sync_directory(path.parent)


def read_checked(path: Path) -> bytes | None:
    """What `replace_file` wrote, nothing if it never did, an error if that is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explained(error, path, "read") from error
    body = data[_CHECK_BYTES:]
    if len(data) < _CHECK_BYTES or crc32c.crc32c(body) != int.from_bytes(data[:4], "little"):
        raise StorageError(f"{path} is damaged: its checksum does not match")
    return body
