"""The files of a journal: each has a stretch of its positions, and its name says where it begins.

Segments follow each other without a gap as they are written. Later on, whole segments are
deleted, so positions that nothing needs any more may be missing.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quorate.storage.errors import StorageError, explained
from quorate.storage.files import Files, sync_directory
from quorate.storage.frames import PREFIX_BYTES, frame_bytes, frames_in
from quorate.storage.heads import SEGMENTS, Head

# Where it begins, and its version, which those of before there were versions have not.
_NAME = re.compile(r"journal-(\d{20})(?:\.v(\d+))?\.log")
# A frame is read with one call if it is not longer than this.
_GUESS_BYTES = 16 * 1024


class Frame(NamedTuple):
    """A record in the journal: where it begins and ends, where its payloads begin, and its head."""

    position: int
    payloads_at: int
    end: int
    head: Head


class Segments:
    """Reading from, and looking after, the files of a journal."""

    def __init__(self, directory: Path, files: Files) -> None:
        self.directory = directory
        self._files = files
        self._sizes: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        for first, version, size in sorted(_found(directory)):
            self._sizes[first], self._versions[first] = size, version
            if size:
                SEGMENTS.reader(version, self.path(first))
        self._firsts = list(self._sizes)
        for first, following in zip(self._firsts, self._firsts[1:], strict=False):
            if first + self._sizes[first] > following:
                raise StorageError(
                    f"{self.path(first)} has {self._sizes[first]} bytes and reaches into the "
                    f"next segment, which begins at position {following}"
                )

    @property
    def firsts(self) -> list[int]:
        """Where each segment begins, in order."""
        return list(self._firsts)

    @property
    def last(self) -> int | None:
        return self._firsts[-1] if self._firsts else None

    def path(self, first: int, *, is_new: bool = False) -> str:
        """The file of the segment that begins here, or of a new one that is to."""
        version = SEGMENTS.version if is_new else self._versions.get(first, SEGMENTS.version)
        suffix = f".v{version}" if version else ""
        return f"{self.directory}/journal-{first:020d}{suffix}.log"

    def is_present(self, first: int) -> bool:
        """Whether this segment is of the version that is written."""
        return self._versions[first] == SEGMENTS.version

    def size(self, first: int) -> int:
        return self._sizes[first]

    def set_size(self, first: int, size: int) -> None:
        self._sizes[first] = size

    def add(self, first: int) -> None:
        """A new segment, behind all others."""
        if first not in self._sizes:
            self._firsts.append(first)
        self._sizes[first], self._versions[first] = 0, SEGMENTS.version

    def remove(self, first: int) -> None:
        self._files.remove(self.path(first))
        sync_directory(self.directory)
        del self._sizes[first], self._versions[first]
        self._firsts.remove(first)

    def containing(self, position: int) -> int:
        """The first position of the segment that has this position, or would have it."""
        number = bisect_right(self._firsts, position)
        return self._firsts[number - 1] if number else -1

    def end_of(self, position: int) -> int:
        """Where the segment that has this position ends."""
        first = self._inside(position, 0)
        return first + self._sizes[first]

    def read(self, position: int, length: int) -> bytes:
        first = self._inside(position, length)
        return self._files.read(self.path(first), length, position - first)

    def frame(self, position: int) -> Frame:
        """The record that was written at this position."""
        first = self._inside(position, PREFIX_BYTES)
        room = self._sizes[first] - (position - first)
        data = self.read(position, min(room, _GUESS_BYTES))
        length = frame_bytes(data)
        if length > len(data) and length <= room:
            data = self.read(position, length)
        view = memoryview(data)[:length]
        for bounds in frames_in(view):
            head = self.head(first, view[bounds.head : bounds.payloads])
            return Frame(position, position + bounds.payloads, position + bounds.end, head)
        raise self.damage(first, position - first)

    def head(self, first: int, data: memoryview) -> Head:
        """The head of a frame in this segment whose checksum is right."""
        return SEGMENTS.decode(data, self._versions[first], self.path(first))

    def frames(self, first: int, at: int = 0) -> Iterator[Frame]:
        """Every record of a segment from this byte on; an error where one does not check."""
        data = self.content(first)
        for start, head, payloads, end in frames_in(data, at):
            content = self.head(first, data[head:payloads])
            yield Frame(first + start, first + payloads, first + end, content)
            at = end
        if at < len(data):
            raise self.damage(first, at)

    def content(self, first: int) -> memoryview:
        return memoryview(self._files.read(self.path(first), self._sizes[first], 0))

    def damage(self, first: int, at: int) -> StorageError:
        return StorageError(
            f"{self.path(first)} is damaged at byte {at} (position {first + at} of the journal): "
            "what stands there is no record, though it was written and synced"
        )

    def _inside(self, position: int, length: int) -> int:
        first = self.containing(position)
        if first < 0 or position + length > first + self._sizes[first]:
            raise StorageError(
                f"the journal in {self.directory} has no {length} bytes at position {position}"
            )
        return first


def _found(directory: Path) -> Iterator[tuple[int, int, int]]:
    """Where each segment begins, its version and its size."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if match := _NAME.fullmatch(entry.name):
                    yield int(match[1]), int(match[2] or 0), entry.stat().st_size
    except OSError as error:
        raise explained(error, directory, "listed") from error
