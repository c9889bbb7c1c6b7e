"""Records: the frames of one turn, as they stand on the wire.

A record is a u32 length, that many bytes of frames back to back, and in `mac` sessions a tag
over the frames and the record's counter. The counter is not sent: both sides count. A record
that was altered, replayed, dropped or reordered on the way therefore fails its tag, and the link
ends there. Inside TLS the session already does all this, and records are bare.

A record is written with one join and one tag whatever the number of its frames, and read out of
the receive buffer without a copy.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Protocol

from quorate.core.codec import LENGTH
from quorate.core.errors import AuthenticationError, RemoteProtocolError
from quorate.core.limits import FRAME_BYTES_MAX
from quorate.crypto.macs import TAG_BYTES, Mac

# A record may always hold one frame of any allowed size.
RECORD_BYTES_MAX = FRAME_BYTES_MAX + 64 * 1024
# A writer closes a record here, so that a reader can start before a long turn has all arrived.
RECORD_BYTES_USUAL = 128 * 1024
INBOX_BYTES_USUAL = 256 * 1024

_COUNTER = Struct("<Q")


class Records(Protocol):
    """How frames become the bytes of a record, and how they are checked on the way back."""

    trailer_bytes: int

    def seal(self, frames: Sequence[bytes], frames_bytes: int) -> list[bytes]:
        """The buffers to write, in order."""
        ...

    def open(self, record: memoryview) -> memoryview:
        """The frames of a record that came with its trailer and without its length."""
        ...


class BareRecords:
    """Records inside a TLS session."""

    trailer_bytes = 0

    def seal(self, frames: Sequence[bytes], frames_bytes: int) -> list[bytes]:
        return [LENGTH.pack(frames_bytes), *frames]

    def open(self, record: memoryview) -> memoryview:
        return record


class TaggedRecords:
    """Records of a `mac` session."""

    trailer_bytes = TAG_BYTES

    def __init__(self, *, outbound: Mac, inbound: Mac) -> None:
        self._outbound = outbound
        self._inbound = inbound
        self._sealed = 0
        self._opened = 0

    def seal(self, frames: Sequence[bytes], frames_bytes: int) -> list[bytes]:
        # One long input is hashed much faster than many short ones, hence the join; and a
        # counter in front of it would push it off the blocks that the hash takes in parallel.
        body = b"".join(frames)
        tag = self._outbound.tag(body, _COUNTER.pack(self._sealed))
        self._sealed += 1
        return [LENGTH.pack(frames_bytes), body, tag]

    def open(self, record: memoryview) -> memoryview:
        body, tag = record[:-TAG_BYTES], record[-TAG_BYTES:]
        if not self._inbound.verify(tag, body, _COUNTER.pack(self._opened)):
            raise AuthenticationError(
                f"sent record {self._opened} with a wrong tag: altered, replayed, out of order, "
                "or made with another key"
            )
        self._opened += 1
        return body


class Inbox:
    """The receive buffer of one link.

    The socket reads into `space`, whole records are taken out in place. It is larger than usual
    only while a record that needs it is arriving, and never beyond the bound of a record.
    """

    __slots__ = ("_end", "_start", "_view", "_wanted")

    def __init__(self) -> None:
        self._view = memoryview(bytearray(INBOX_BYTES_USUAL))
        self._start = 0
        self._end = 0
        self._wanted = 0

    def space(self) -> memoryview:
        """Where the next bytes go; never empty after `rewind`."""
        return self._view[self._end :]

    @property
    def size_bytes(self) -> int:
        return len(self._view)

    def filled(self, count: int) -> None:
        self._end += count

    def peek(self, count: int) -> memoryview | None:
        """The next bytes, left in place, or None when there are not that many yet."""
        at = self._start
        return self._view[at : at + count] if self._end - at >= count else None

    def skip(self, count: int) -> None:
        self._start += count

    def take(self, trailer_bytes: int) -> memoryview | None:
        """The next record and its trailer, or None when it is not there whole."""
        start, have = self._start, self._end - self._start
        if have < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._view, start)
        if not 0 < length <= RECORD_BYTES_MAX:
            raise RemoteProtocolError(
                f"sent a record of {length} bytes; allowed are 1 to {RECORD_BYTES_MAX}"
            )
        whole = LENGTH.size + length + trailer_bytes
        if have < whole:
            self._wanted = whole
            return None
        self._start = start + whole
        return self._view[start + LENGTH.size : start + whole]

    def rewind(self) -> None:
        """Move what is left to the front, and give the next record the room that it needs."""
        rest = self._end - self._start
        size = max(INBOX_BYTES_USUAL, self._wanted)
        self._wanted = 0
        if size != len(self._view):
            view = memoryview(bytearray(size))
            view[:rest] = self._view[self._start : self._end]
            self._view = view
        elif rest and self._start:
            self._view[:rest] = self._view[self._start : self._end]
        self._start, self._end = 0, rest


def grouped(frames: Sequence[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """Frames in order, in groups that each make a record, with the bytes of each group."""
    group: list[bytes] = []
    group_bytes = 0
    for frame in frames:
        if group and group_bytes + len(frame) > RECORD_BYTES_USUAL:
            yield group, group_bytes
            group, group_bytes = [], 0
        group.append(frame)
        group_bytes += len(frame)
    if group:
        yield group, group_bytes
