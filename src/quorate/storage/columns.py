"""Entries of one width by number, in chunk files: what indexes and trees are made of.

Appending goes to a buffer, and from there to the files when it is full. Only `sync` makes it last;
until then it can be had again from the journal. Chunks make trimming cheap: a chunk is
deleted when the last of its entries is no longer needed.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from crc32c import crc32c

from quorate.storage.errors import DiskFullError, StorageError
from quorate.storage.files import Files

CHUNK_ENTRIES = 65_536
_BUFFER_BYTES = 32 * 1024


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """What a column had when it was synced.

    `check` is the CRC32C of what its last chunk has from `origin` on, its very first entry.
    """

    origin: int
    start: int
    end: int
    check: int = 0


class Column:
    """Entries `start` to `end`, of which those before `start` may be gone from the disk."""

    def __init__(
        self,
        files: Files,
        stem: str,
        width: int,
        extent: Extent,
        chunk_entries: int = CHUNK_ENTRIES,
    ) -> None:
        self.start = extent.start
        self.end = extent.end
        self.origin = extent.origin
        self._files = files
        self._stem = stem
        self._width = width
        self._chunk_entries = chunk_entries
        self._buffer = bytearray()
        self._stored = extent.end
        self._check = extent.check
        self._unsynced: set[int] = set()
        self._lowest = self._chunk(extent.start)

    @property
    def extent(self) -> Extent:
        """To be asked for when everything is flushed."""
        return Extent(self.origin, self.start, self._stored, self._check)

    def path(self, number: int) -> str:
        """The chunk file that has this entry."""
        return f"{self._stem}-{self._chunk(number):020d}"

    def paths(self) -> Iterator[str]:
        """The chunk files that the stored entries are in."""
        for chunk in self._chunks():
            yield self.path(chunk)

    def files(self) -> Iterator[str]:
        """Every chunk file that may be there, those with nothing but trimmed entries too."""
        if self._stored > self.origin:
            for chunk in range(self._lowest, self._stored, self._chunk_entries):
                yield self.path(chunk)

    def append(self, entries: bytes) -> None:
        self._buffer += entries
        self.end += len(entries) // self._width
        if len(self._buffer) >= _BUFFER_BYTES:
            # Without room it waits in memory: the journal then takes nothing more, either.
            with suppress(DiskFullError):
                self.flush()

    def read(self, number: int, count: int = 1) -> bytes:
        """Entries end to end; they must all be there."""
        if number + count <= self._stored:
            return self._read_stored(number, count)
        stored = max(0, self._stored - number)
        at = (number + stored - self._stored) * self._width
        buffered = bytes(self._buffer[at : at + (count - stored) * self._width])
        return self._read_stored(number, stored) + buffered

    def overwrite(self, number: int, beginning: bytes) -> None:
        """Change the beginning of an entry that is stored."""
        chunk = self._chunk(number)
        self._unsynced.add(chunk)
        self._files.write(self.path(number), beginning, (number - chunk) * self._width)

    def flush(self) -> None:
        """Hand the buffer to the operating system."""
        at, check = self._stored, self._check
        with memoryview(self._buffer) as view:
            while at < self.end:
                chunk = self._chunk(at)
                start = (at - self._stored) * self._width
                end = (chunk + self._chunk_entries - self._stored) * self._width
                # Released even if there is no room: an error would hold on to it, and a buffer
                # that somebody looks at cannot grow.
                with view[start:end] as piece:
                    self._unsynced.add(chunk)
                    self._files.write(self.path(at), piece, (at - chunk) * self._width)
                    check = crc32c(piece, 0 if at == chunk else check)
                    at += len(piece) // self._width
        self._buffer.clear()
        self._stored, self._check = at, check

    def sync(self) -> None:
        for chunk in sorted(self._unsynced):
            if chunk >= self._lowest:
                self._files.sync(self.path(chunk))
        self._unsynced.clear()

    def trim(self, number: int) -> None:
        """Entries before this one are not needed any more; `drop` deletes them."""
        self.start = max(self.start, min(number, self.end))

    def drop(self) -> None:
        """Delete the chunks that have nothing but trimmed entries."""
        while self._lowest + self._chunk_entries <= min(self.start, self._stored):
            self._files.remove(self.path(self._lowest))
            self._lowest += self._chunk_entries

    def restore(self, *, checked: bool = True) -> None:
        """Cut the files to what they had when they were synced; an error if they have less.

        A column with entries that are overwritten has no checksum that a crash leaves right.
        """
        for chunk in self._chunks():
            path = self.path(chunk)
            entries = min(self._stored - chunk, self._chunk_entries)
            _refuse_shorter(path, entries * self._width)
            self._files.truncate(path, entries * self._width)
            if checked and chunk + entries == self._stored:
                first = max(chunk, self.origin)
                if crc32c(self._read_stored(first, self._stored - first)) != self._check:
                    raise StorageError(f"{path} is damaged: its checksum does not match")

    def _chunk(self, number: int) -> int:
        return number - number % self._chunk_entries

    def _chunks(self) -> range:
        if self._stored == self.origin:
            return range(0)
        return range(self._chunk(self.start), self._stored, self._chunk_entries)

    def _read_stored(self, number: int, count: int) -> bytes:
        pieces: list[bytes] = []
        while count > 0:
            chunk = self._chunk(number)
            here = min(count, chunk + self._chunk_entries - number)
            at = (number - chunk) * self._width
            pieces.append(self._files.read(self.path(number), here * self._width, at))
            number, count = number + here, count - here
        return b"".join(pieces)


def _refuse_shorter(path: str, length: int) -> None:
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise StorageError(f"{path} is missing") from None
    if found < length:
        raise StorageError(f"{path} has {found} bytes, but {length} of it were synced")
