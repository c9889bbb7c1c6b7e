"""The versions of what a store has on disk, and how each of them is read.

A process writes the present version of each format, and reads that and the one before. What is
older, or newer, is refused with a sentence that says what to do. A small file begins with a byte
that has its version; a segment of the journal has it in its name. Index and tree files are in the
format of the checkpoint that tells of them.

Whoever changes an encoding gives it a new version, and leaves the reader of the one before.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from quorate.storage.errors import StorageError
from quorate.storage.files import read_checked, replace_file

# Files of before there were versions begin with a map of MessagePack, which is no version.
_UNVERSIONED = 0x80

_Content = TypeVar("_Content")


class Format(Generic[_Content]):
    """One kind of content: the reader of each version, of which the last one is written."""

    def __init__(
        self, kind: str, readers: Mapping[int, Callable[[bytes | memoryview], _Content]]
    ) -> None:
        self.kind = kind
        self.readers = dict(readers)

    @property
    def version(self) -> int:
        return max(self.readers)

    def reader(self, version: int, path: str | Path) -> Callable[[bytes | memoryview], _Content]:
        """What reads this version, in which a file is."""
        reader = self.readers.get(version)
        if reader is not None:
            return reader
        if version > self.version:
            raise StorageError(
                f"{path} was written by a later version of Quorate (format {version}, and this "
                f"one writes {self.version}): start this replica with that one"
            )
        raise StorageError(
            f"{path} was written by an earlier version of Quorate (format {version}, and this one "
            f"reads {min(self.readers)} to {self.version}): move the data directory of this "
            "replica away, and 'quorate replica NAME restore' makes one that takes what the others "
            "have"
        )

    def decode(self, data: bytes | memoryview, version: int, path: str | Path) -> _Content:
        try:
            return self.reader(version, path)(data)
        except msgspec.DecodeError as error:
            raise StorageError(f"{path} is not one that this version can read: {error}") from error

    def save(self, path: Path, content: _Content) -> None:
        """Put a file of the present version in place of the one before."""
        replace_file(path, bytes([self.version]) + msgspec.msgpack.encode(content))

    def load(self, path: Path) -> _Content | None:
        """What a file has, if there is one."""
        data = read_checked(path)
        if data is None:
            return None
        version = data[0] if data and data[0] < _UNVERSIONED else 0
        return self.decode(data[1:], version, path)
