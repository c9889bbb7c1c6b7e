"""Records: the frames of one turn, as they stand on the wire.

A record is a u32 length, that many bytes of frames back to back, and in `mac` sessions a tag
over the frames and the record's counter. The counter is not sent: both sides count. A record
that was altered, replayed, dropped or reordered on the way therefore fails its tag, and the link
ends there. Inside TLS the session already does all this, and records are bare.

A record is written with one join and one tag whatever the number of its frames, and read out of
the receive buffer without a copy. A message with large payloads that prove themselves is a record
of its own, marked in its length, and its tag is over its head (`core/bulk.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from quorate.core.bulk import Bulk, head_of
from quorate.core.codec import LENGTH, Frame, frames
from quorate.core.errors import AuthenticationError, RemoteProtocolError
from quorate.core.limits import FRAME_BYTES_MAX
from quorate.crypto.macs import TAG_BYTES, NumberedMac

# A record may always hold one frame of any allowed size.
RECORD_BYTES_MAX = FRAME_BYTES_MAX + 64 * 1024
# In the length of a bulk record, and in the number under which its head is tagged: what one kind
# of record says is never taken for the other.
_BULK = 2**31
_BULK_NUMBER = 2**64
# A writer closes a record here, so that a reader can start before a long turn has all arrived.
# A longer one holds one frame: of small ones, each takes thirty times its size to look at.
RECORD_BYTES_USUAL = 128 * 1024
# All links of a node read into one buffer of this size.
DESK_BYTES = 1024 * 1024
# So many buffers that held long records are kept for the next ones, if they are no longer than the
# desk.
SPARE_BUFFERS_MAX = 4
# The rest of a record that is longer than this is read right where it belongs.
LONG_RECORD_BYTES = 64 * 1024


class Records(Protocol):
    """How frames become the bytes of a record, and how they are checked on the way back."""

    trailer_bytes: int

    def seal(self, frames: Sequence[bytes], frames_bytes: int) -> list[bytes]:
        """The buffers to write, in order."""
        ...

    def open(self, record: memoryview) -> memoryview:
        """The frames of a record that came with its trailer and without its length."""
        ...

    def seal_bulk(self, bulk: Bulk) -> list[bytes]: ...

    def open_bulk(self, record: memoryview) -> memoryview:
        """Both parts of a bulk message, whose payloads nobody has looked at yet."""
        ...


class BareRecords:
    """Records inside a TLS session."""

    trailer_bytes = 0

    def seal(self, frames: Sequence[bytes], frames_bytes: int) -> list[bytes]:
        return [LENGTH.pack(frames_bytes), *frames]

    def open(self, record: memoryview) -> memoryview:
        return record

    def seal_bulk(self, bulk: Bulk) -> list[bytes]:
        return [LENGTH.pack(_BULK + len(bulk)) + bulk.head, *bulk.payloads]

    def open_bulk(self, record: memoryview) -> memoryview:
        return record


class TaggedRecords:
    """Records of a `mac` session."""

    trailer_bytes = TAG_BYTES

    def __init__(self, *, outbound: NumberedMac, inbound: NumberedMac) -> None:
        self._outbound = outbound
        self._inbound = inbound
        self._sealed = 0
        self._opened = 0

    def seal(self, frames: Sequence[bytes], frames_bytes: int) -> list[bytes]:
        # One long input is tagged much faster than many short ones, hence the join.
        body = b"".join(frames)
        tag = self._outbound.tag(self._sealed, body)
        self._sealed += 1
        return [LENGTH.pack(frames_bytes), body, tag]

    def open(self, record: memoryview) -> memoryview:
        body, tag = record[:-TAG_BYTES], record[-TAG_BYTES:]
        self._check(self._opened, tag, body)
        return body

    def seal_bulk(self, bulk: Bulk) -> list[bytes]:
        tag = self._outbound.tag(_BULK_NUMBER + self._sealed, bulk.head)
        self._sealed += 1
        return [LENGTH.pack(_BULK + len(bulk)) + bulk.head, *bulk.payloads, tag]

    def open_bulk(self, record: memoryview) -> memoryview:
        body, tag = record[:-TAG_BYTES], record[-TAG_BYTES:]
        self._check(_BULK_NUMBER + self._opened, tag, head_of(body))
        return body

    def _check(self, number: int, tag: memoryview, content: memoryview) -> None:
        if not self._inbound.verify(number, tag, content):
            raise AuthenticationError(
                f"sent record {self._opened} with a wrong tag: altered, replayed, out of order, "
                "or made with another key"
            )
        self._opened += 1


class Desk:
    """Where the links of a node read: a buffer that all share, and some for long records.

    A buffer that has just been used is still in the processor's cache, and need not be zeroed:
    records of 1 MB took 740 to 800 µs of processor time so, and 950 to 1,060 with new ones.
    """

    __slots__ = ("_spare", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(DESK_BYTES))
        self._spare: list[bytearray] = []

    def lend(self, size: int) -> memoryview:
        """A buffer of this size, with anything in it."""
        for at in reversed(range(len(self._spare))):
            if len(self._spare[at]) >= size:
                return memoryview(self._spare.pop(at))[:size]
        return memoryview(bytearray(size))

    def take_back(self, buffer: memoryview) -> None:
        """Nobody looks at what is in this buffer any more."""
        whole = buffer.obj
        if isinstance(whole, bytearray) and len(whole) <= DESK_BYTES:
            self._spare.append(whole)
            del self._spare[:-SPARE_BUFFERS_MAX]


class Inbox:
    """What one link has received and not yet taken out.

    Every read goes to one desk that all links of a node share: the loop fills it, and the link
    takes whole records out in place before anything else is read. Only the start of a record that
    is not whole is kept: a short one is laid in front of the next read, a long one is lent a buffer
    for itself, of just its size. An idle link holds nothing.

    Each turn is `space`, `filled`, any number of looks, `clear`.
    """

    __slots__ = ("_desk", "_end", "_own", "_rest", "_start", "_wanted")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._own: memoryview | None = None
        self._rest = b""
        self._start = 0
        self._end = 0
        self._wanted = 0

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._own is not None:
            return self._own[self._end :]
        rest_bytes, view = len(self._rest), self._desk.view
        if rest_bytes:
            view[:rest_bytes] = self._rest
        return view[rest_bytes:]

    def filled(self, count: int) -> None:
        if self._own is not None:
            self._end += count
        else:
            self._end = len(self._rest) + count
            self._rest = b""

    @property
    def held_bytes(self) -> int:
        """What the link holds between two reads."""
        return len(self._rest) if self._own is None else len(self._own)

    def peek(self, count: int) -> memoryview | None:
        """The next bytes, left in place, or None when there are not that many yet."""
        at = self._start
        return self._view[at : at + count] if self._end - at >= count else None

    def skip(self, count: int) -> None:
        self._start += count

    def take(self, trailer_bytes: int) -> tuple[memoryview, bool] | None:
        """The next record and its trailer, and whether it is bulk; None when it is not whole."""
        start, have = self._start, self._end - self._start
        if have < LENGTH.size:
            return None
        view = self._view
        (length,) = LENGTH.unpack_from(view, start)
        is_bulk = length >= _BULK
        if is_bulk:
            length -= _BULK
        if not 0 < length <= RECORD_BYTES_MAX:
            raise RemoteProtocolError(
                f"sent a record of {length} bytes; allowed are 1 to {RECORD_BYTES_MAX}"
            )
        whole = LENGTH.size + length + trailer_bytes
        if have < whole:
            self._wanted = whole
            return None
        self._start = start + whole
        return view[start + LENGTH.size : start + whole], is_bulk

    def clear(self) -> None:
        """Leave the desk to others; keep what is not whole yet."""
        rest, wanted, self._wanted = self._view[self._start : self._end], self._wanted, 0
        if self._own is not None:
            if rest:
                return
            self._desk.take_back(self._own)
            self._own = None
        if wanted > LONG_RECORD_BYTES:
            self._own = self._desk.lend(wanted)
            self._own[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        else:
            self._rest = bytes(rest)
            self._start = self._end = 0

    @property
    def _view(self) -> memoryview:
        return self._desk.view if self._own is None else self._own


def frames_of(body: memoryview) -> list[memoryview]:
    """The frames of a record that was opened."""
    if len(body) <= RECORD_BYTES_USUAL:
        return frames(body)
    if LENGTH.unpack_from(body) != (len(body) - LENGTH.size,):
        raise RemoteProtocolError(
            f"sent a record of {len(body)} bytes that is not one frame; several frames have up to "
            f"{RECORD_BYTES_USUAL} bytes"
        )
    return [body[LENGTH.size :]]


def grouped(frames: Sequence[Frame]) -> Iterator[tuple[list[bytes], int] | Bulk]:
    """In order: frames in groups that each make a record, with their bytes, and what is bulk."""
    group: list[bytes] = []
    group_bytes = 0
    for frame in frames:
        if group and (isinstance(frame, Bulk) or group_bytes + len(frame) > RECORD_BYTES_USUAL):
            yield group, group_bytes
            group, group_bytes = [], 0
        if isinstance(frame, Bulk):
            yield frame
        else:
            group.append(frame)
            group_bytes += len(frame)
    if group:
        yield group, group_bytes
