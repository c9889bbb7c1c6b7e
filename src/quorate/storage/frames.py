"""The journal's frames: checksum, two lengths, head, payloads back to back.

The checksum (CRC32C) covers everything behind it, lengths included. Zeros are no frame, since the
CRC32C of zeros is not zero: a tail that a file system filled up with zeros ends the journal just
as a torn frame does.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from quorate.core.errors import LocalProtocolError

# checksum of what follows, bytes of the head, bytes of the payloads
_PREFIX = Struct("<III")
_LENGTHS = Struct("<II")
_CHECK = Struct("<I")
PREFIX_BYTES = _PREFIX.size

# Payloads smaller than this on average are joined: one copy is cheaper than a checksum call and a
# buffer for each of them.
_JOINED_BYTES = 4096
_PART_BYTES_MAX = 2**32 - 1


class Bounds(NamedTuple):
    """Where the parts of a frame begin, counted from the start of the data it was found in."""

    start: int
    head: int
    payloads: int
    end: int


def encode_frame(head: bytes, payloads: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Buffers to be written one after the other, and how many bytes they have in all."""
    if payloads:
        payload_bytes = sum(map(len, payloads))
        if payload_bytes < _JOINED_BYTES * len(payloads):
            payloads = (b"".join(payloads),)
    else:
        payload_bytes = 0
    if max(payload_bytes, len(head)) > _PART_BYTES_MAX:
        raise LocalProtocolError("a record of 4 GiB or more does not fit into a frame")
    checked = _LENGTHS.pack(len(head), payload_bytes) + head
    check = crc32c(checked)
    for payload in payloads:
        check = crc32c(payload, check)
    front = _CHECK.pack(check) + checked
    return [front, *payloads], len(front) + payload_bytes


def frame_bytes(prefix: bytes) -> int:
    """The length of the frame that begins so."""
    _, head_bytes, payload_bytes = _PREFIX.unpack_from(prefix)
    return PREFIX_BYTES + head_bytes + payload_bytes  # type: ignore[no-any-return]


def frames_in(data: memoryview, at: int = 0) -> Iterator[Bounds]:
    """The good frames from here on, up to the first that does not check."""
    size = len(data)
    while at + PREFIX_BYTES <= size:
        check, head_bytes, payload_bytes = _PREFIX.unpack_from(data, at)
        head = at + PREFIX_BYTES
        payloads = head + head_bytes
        end = payloads + payload_bytes
        if end > size or crc32c(data[at + _CHECK.size : end]) != check:
            return
        yield Bounds(at, head, payloads, end)
        at = end
