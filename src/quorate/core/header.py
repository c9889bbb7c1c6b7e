"""The header of a batch: what is known of it without its payload.

    u8 version   u8 kind   u16 zero   u32 events   u32 headers   u32 plain bytes

It has 16 bytes, little-endian, and every payload begins with it. The kind is *basic*, or *signed*:
then a signature block, and perhaps a salt, is between the header and the events
(`crypto/sids.py`). *Plain bytes* are those of the columns before compression (`core/columns.py`).
How long a header is follows from its version.

The digest of a batch covers the header and the digest of what follows it (`crypto/digests.py`).
Both together are its *descriptor*: whoever has that knows how many offsets the batch takes, whether
its producer signed it and what it costs, and needs no payload for it.

A header that cannot be true (no events, more than fit, fewer plain bytes than the events take) is
refused wherever it comes from, with its payload or without.
"""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from struct import Struct
from typing import NamedTuple, TypeAlias

from quorate.core.errors import RemoteProtocolError
from quorate.core.limits import BATCH_BYTES_MAX, BATCH_EVENTS_MAX

VERSION = 2
BASIC, SIGNED = 0, 1
KINDS = ("basic", "signed")
HEADER_BYTES = 16
DESCRIPTOR_BYTES = HEADER_BYTES + 32
# Every event takes four bytes at least: an offset of its value.
EVENT_BYTES_MIN = 4
# What compressed columns may grow to. A header that promises more is refused unread.
PLAIN_BYTES_MAX = 4 * BATCH_BYTES_MAX

# Header and signature block of a signed batch. A salt follows if the root that the block names is
# not zero.
SEAL_BYTES = HEADER_BYTES + 272
SALT_BYTES = 32
NO_ROOT = bytes(32)
_ROOT = slice(HEADER_BYTES + 40, HEADER_BYTES + 72)

_HEADER = Struct("<BBHIII")
# The same, with version, kind and zero in one number.
_WORDS = Struct("<IIII")
Words: TypeAlias = tuple[int, int, int, int]
_ALLOWED = tuple(VERSION | kind << 8 for kind in range(len(KINDS)))
_BASIC_WORD = _ALLOWED[BASIC]
_EVENTS = Struct("<I")
_EVENTS_AT = 4
_COUNTS = Struct(f"<4xI{DESCRIPTOR_BYTES - 8}x")
_FIRST = itemgetter(0)
_KIND = itemgetter(1)

Payload: TypeAlias = bytes | memoryview


class Header(NamedTuple):
    version: int
    kind: int
    zero: int
    events: int
    headers: int
    plain_bytes: int

    @staticmethod
    def of(events: int, headers: int, plain_bytes: int, kind: int = BASIC) -> "Header":
        return Header(VERSION, kind, 0, events, headers, plain_bytes)

    @property
    def is_signed(self) -> bool:
        return self.kind == SIGNED

    def encode(self) -> bytes:
        return _HEADER.pack(*self)


def basic_header(events: int, headers: int, plain_bytes: int) -> bytes:
    """The header of a basic batch, encoded."""
    return _HEADER.pack(VERSION, BASIC, 0, events, headers, plain_bytes)


def header_of(payload: Payload) -> Header:
    """The header that a payload or a descriptor begins with, or `RemoteProtocolError`."""
    count_of(payload)
    return Header._make(_HEADER.unpack_from(payload))


def count_of(payload: Payload) -> int:
    """How many events a payload or a descriptor says it has, or `RemoteProtocolError`."""
    return words_of(payload)[1]


def words_of(payload: Payload) -> Words:
    """Version and kind, events, headers and plain bytes, or `RemoteProtocolError`."""
    if len(payload) < HEADER_BYTES:
        raise RemoteProtocolError(
            f"a batch of {len(payload)} bytes, where its header alone takes {HEADER_BYTES}"
        )
    words: Words = _WORDS.unpack_from(payload)
    word, events, _, plain_bytes = words
    if word not in _ALLOWED:
        version, kind, zero, *_ = _HEADER.unpack_from(payload)
        raise RemoteProtocolError(
            f"a batch of version {version}, kind {kind} and reserved bytes {zero}; allowed are "
            f"version {VERSION}, kinds 0 ({KINDS[BASIC]}) and 1 ({KINDS[SIGNED]}), and zero"
        )
    if not 0 < events <= BATCH_EVENTS_MAX:
        raise RemoteProtocolError(
            f"a batch of {events} events; allowed are 1 to {BATCH_EVENTS_MAX}"
        )
    if not EVENT_BYTES_MIN * events <= plain_bytes <= PLAIN_BYTES_MAX:
        raise RemoteProtocolError(
            f"a batch of {events} events in {plain_bytes} bytes; allowed are "
            f"{EVENT_BYTES_MIN * events} to {PLAIN_BYTES_MAX}"
        )
    return words


def are_possible(batches: Iterable[Payload]) -> bool:
    """Whether all of these headers may be true, of payloads or descriptors."""
    try:
        return all(map(count_of, batches))
    except RemoteProtocolError:
        return False


def are_basic(payloads: Iterable[Payload]) -> bool:
    """Whether all of these headers may be true where nobody signs."""
    try:
        for payload in payloads:
            if words_of(payload)[0] != _BASIC_WORD:
                return False
    except RemoteProtocolError:
        return False
    return True


def columns_at(payload: Payload) -> int:
    """Where the part of a payload begins that `core/columns.py` lays out."""
    if payload[1] == BASIC:
        return HEADER_BYTES
    return SEAL_BYTES if payload[_ROOT] == NO_ROOT else SEAL_BYTES + SALT_BYTES


def is_signed(payload: Payload) -> bool:
    """Whether a payload, or a descriptor, says that its producer signed it."""
    return len(payload) >= HEADER_BYTES and payload[1] == SIGNED


def are_signed(descriptors: Iterable[Payload]) -> bool:
    """Whether some of these say that their producers signed them."""
    return any(map(_KIND, descriptors))


def events_in(descriptor: Payload) -> int:
    """The events of a batch whose header was checked when it came in."""
    count: int = _EVENTS.unpack_from(descriptor, _EVENTS_AT)[0]
    return count


def counts_of(batches: Iterable[Payload]) -> list[int]:
    """The events of each of these batches, whose headers were checked when they came in."""
    return [words[1] for words in map(_WORDS.unpack_from, batches)]


def plain_bytes_of(descriptors: Iterable[Payload]) -> list[int]:
    """What each of these batches takes before compression, by headers that were checked."""
    return [words[3] for words in map(_WORDS.unpack_from, descriptors)]


def counts_in(descriptors: bytes) -> Iterator[int]:
    """The events of each of these batches, whose descriptors are laid end to end."""
    return map(_FIRST, _COUNTS.iter_unpack(descriptors))
