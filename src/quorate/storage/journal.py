"""One append-only journal per replica, in segments.

Invariants:
- a segment is synced before the next one begins, so only the last one can have a torn tail, and
  a bad frame anywhere else is damage. So is one in the last segment if a record behind it says that
  it was synced: what rests on it has been said, and it must not pass for a torn tail. Where nothing
  waits for syncs, that happens in the background, and a power cut in between may leave what counts
  as damage too. That the last segment is the last one, a file beside it tells (`Witness`);
- what a failed write left behind is cut off before anything else is written;
- a failed sync is final, because the operating system may have dropped what it could not write
  and would report success the next time.

One thread appends. Another one may call `sync` meanwhile: it covers what was written when it
began.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

import msgspec

from quorate.storage.errors import DiskFullError, StorageError, explained
from quorate.storage.files import Files, sync_directory, sync_file, uncache
from quorate.storage.formats import Format
from quorate.storage.frames import PREFIX_BYTES, encode_frame, frames_in
from quorate.storage.heads import Entry, Synced, encode_head, split
from quorate.storage.segments import Frame, Segments

SEGMENT_BYTES = 64 * 1024 * 1024
_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")
_MARK_BYTES = 16


class Witness(msgspec.Struct, frozen=True):
    """What stands beside a journal, and tells of it what it could not say were it damaged.

    `mark` is in every record that says how far the journal was synced. Nobody else knows it, so
    that these records can be found behind damage of any kind, and no payload passes for one. `last`
    is a segment that was there: a journal that ends before it has lost one.
    """

    mark: bytes
    last: int


WITNESSES = Format("witness", {1: msgspec.msgpack.Decoder(Witness).decode})


class Journal:
    """Where every record of a replica goes first."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        synced: int = 0,
        waits: bool = True,
    ) -> None:
        """Open the journal and cut off a torn tail, unless it was `synced` to a later position."""
        self.segments = Segments(directory, files)
        self._segment_bytes = segment_bytes
        self._lock = Lock()
        self._waits = waits
        self._retiring: Thread | None = None
        self._failed: str = ""
        self._torn = False
        self._witness = directory / "witness"
        last, witness = self.segments.last, WITNESSES.load(self._witness)
        if witness is not None and (last is None or last < witness.last):
            raise StorageError(
                f"{self.segments.path(witness.last)} is missing, though it was written"
            )
        self._mark = os.urandom(_MARK_BYTES) if witness is None else witness.mark
        if last is None:
            self._first, self._size = 0, 0
            self._descriptor = self._create(0)
        else:
            self._first, self._size = last, self._good_bytes(last, synced)
            self._descriptor = self._reopen(last, self._size)
        if witness is None or witness.last < self._first:
            self._tell_witness()
        # Everything before this position outlives a power cut; and up to where records say so.
        self.synced = self._noted = self.end
        if self.end < synced:
            raise StorageError(
                f"the journal in {directory} ends at position {self.end}, "
                f"but it was synced up to {synced}: its last segment is missing or was cut"
            )

    @property
    def end(self) -> int:
        """The position after the last record."""
        return self._first + self._size

    def append(self, entries: Iterable[Entry]) -> list[Frame]:
        """Write the entries, all or none of them."""
        self._refuse_if_failed()
        if self._torn:
            self._cut_back()
        if self._size >= self._segment_bytes or not self.segments.is_present(self._first):
            self._roll()
        frames: list[Frame] = []
        noted, at = self.synced, self.end
        buffers: list[bytes] = []
        # That a segment before this one was synced goes without saying.
        if noted > max(self._noted, self._first):
            buffers, length = encode_frame(encode_head(Synced(self._mark, noted)), ())
            at += length
        for entry in entries:
            head, payloads = split(entry)
            encoded = encode_head(head)
            parts, length = encode_frame(encoded, payloads)
            buffers += parts
            frames.append(Frame(at, at + PREFIX_BYTES + len(encoded), at + length, head))
            at += length
        self._write(buffers)
        self._noted = noted
        self._size = at - self._first
        self.segments.set_size(self._first, self._size)
        return frames

    def sync(self) -> None:
        """Make sure that what has been written so far outlives a power cut."""
        with self._lock:
            self._refuse_if_failed()
            end = self.end
            if not self._waits:
                # The segment before this one may still be on its way to the disk.
                self._finish_retiring()
            if end > self.synced:
                self._sync_segment(self._first, self._descriptor)
                self.synced = end

    def replay(self, position: int) -> Iterator[Frame]:
        """Every record from this position on."""
        while position < self.end:
            first = self.segments.containing(position)
            if first < 0 or position >= first + self.segments.size(first):
                raise StorageError(
                    f"the journal in {self.segments.directory} has no segment for position "
                    f"{position}, though what stands there is needed"
                )
            for frame in self.segments.frames(first, position - first):
                if not isinstance(frame.head, Synced):
                    yield frame
            position = first + self.segments.size(first)

    def close(self) -> None:
        with self._lock:
            if self._retiring is not None:
                self._retiring.join()
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self._failed = -1, "it was closed"

    def _write(self, buffers: Sequence[bytes]) -> None:
        # Whatever ends this early, be it an interrupt, leaves a tail to be cut off.
        self._torn = True
        try:
            for at in range(0, len(buffers), _BUFFERS_MAX):
                _write_all(self._descriptor, buffers[at : at + _BUFFERS_MAX])
        except OSError as error:
            # If this fails too, the next append tries again before it writes.
            with suppress(StorageError):
                self._cut_back()
            raise explained(error, self.segments.path(self._first), "written") from error
        self._torn = False

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._size, os.SEEK_SET)
        except OSError as error:
            raise explained(error, self.segments.path(self._first), "cut") from error
        self._torn = False

    def _roll(self) -> None:
        """Begin the next segment, with everything before it on disk."""
        with self._lock:
            first = self.end
            if self._waits and first > self.synced:
                self._sync_segment(self._first, self._descriptor)
                self.synced = first
            descriptor = self._create(first)
            self._retire(self._first, self._descriptor)
            self._descriptor, self._first, self._size = descriptor, first, 0
        self._tell_witness()

    def _tell_witness(self) -> None:
        # Nothing rests on it. Where there is no room, it hears of the next segment.
        with suppress(DiskFullError):
            WITNESSES.save(self._witness, Witness(self._mark, self._first))

    def _retire(self, first: int, descriptor: int) -> None:
        """Look after a segment that is full while the next one is written.

        It is synced, if nobody waited for that, and the one before it is given out of memory.
        What was written lately stays there for those who read it.
        """
        self._finish_retiring()
        older = self.segments.containing(first - 1)

        def retire() -> None:
            if not self._waits:
                with suppress(StorageError):
                    self._sync_segment(first, descriptor)
            os.close(descriptor)
            if older >= 0:
                uncache(self.segments.path(older))

        self._retiring = Thread(target=retire, name="retire a segment")
        self._retiring.start()

    def _finish_retiring(self) -> None:
        if self._retiring is not None:
            self._retiring.join()
            self._retiring = None
            self._refuse_if_failed()

    def _sync_segment(self, first: int, descriptor: int) -> None:
        path = self.segments.path(first)
        try:
            sync_file(descriptor)
        except OSError as error:
            self._failed = f"{path} could not be synced: {error.strerror}"
            raise StorageError(self._failed) from error

    def _create(self, first: int) -> int:
        path = self.segments.path(first, is_new=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC, 0o600)
        except OSError as error:
            raise explained(error, path, "made") from error
        try:
            sync_directory(self.segments.directory)
        except StorageError:
            os.close(descriptor)
            raise
        self.segments.add(first)
        return descriptor

    def _good_bytes(self, last: int, synced: int) -> int:
        """Where the last good frame of the last segment ends."""
        data, end = self.segments.content(last), 0
        for bounds in frames_in(data):
            end = bounds.end
        if end < len(data) and last + end < max(synced, self._synced_behind(last, data[end:])):
            raise self.segments.damage(last, end)
        return end

    def _synced_behind(self, last: int, data: memoryview) -> int:
        """Up to where records say that the journal was synced, wherever they stand in this."""
        content, synced = data.tobytes(), 0
        before = PREFIX_BYTES + encode_head(Synced(self._mark, 0)).index(self._mark)
        at = content.find(self._mark)
        while at >= 0:
            bounds = next(frames_in(data, at - before), None) if at >= before else None
            head = None
            if bounds is not None:
                head = self.segments.head(last, data[bounds.head : bounds.payloads])
            if isinstance(head, Synced):
                synced = max(synced, head.position)
            at = content.find(self._mark, at + 1)
        return synced

    def _reopen(self, last: int, size: int) -> int:
        path = self.segments.path(last)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(descriptor, size)
                # What was read may be in memory only, and whoever reads it builds on it.
                os.fsync(descriptor)
                os.lseek(descriptor, size, os.SEEK_SET)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            raise explained(error, path, "opened") from error
        self.segments.set_size(last, size)
        return descriptor

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise StorageError(f"the journal takes nothing more: {self._failed}")


def _write_all(descriptor: int, buffers: Sequence[bytes]) -> None:
    written = os.writev(descriptor, buffers)
    left = sum(map(len, buffers)) - written
    if left:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
