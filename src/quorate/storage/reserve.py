"""Room that is set aside for the day when the disk is full.

Deleting old segments takes a checkpoint first, and a checkpoint takes some room. Without a
reserve, a disk that is full could not be cleaned.
"""

import os
from pathlib import Path

from quorate.storage.errors import explained

RESERVE_BYTES = 4 * 1024 * 1024


class Reserve:
    """A file that is there only to be deleted."""

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
