"""How a batch is laid out: a small fixed header, then Arrow's buffers.

Header, 40 bytes, little-endian like everything here:

    u8 version   u8 flags   u8 compression   u8 zero   u32 count   i64 oldest timestamp
    u32 key bytes   u32 value bytes   u32 headers   u32 header name bytes
    u32 header value bytes   u32 bytes that follow

Body, perhaps compressed as a whole, with nothing in between:

    timestamps     i64 x count           if they are not all equal to the oldest
    key offsets    i32 x (count + 1)     if any event has a key
    value offsets  i32 x (count + 1)
    header lists   i32 x (count + 1)     if any event has headers, and with them
    header names   i32 x (headers + 1)   the offsets of their names
    header values  i32 x (headers + 1)   and of their values
    key validity   1 bit x count         if some events have a key and others do not
    urgent         1 bit x count         if some events are urgent and others are not
    key data, value data, header name data, header value data

A column that says the same of every event is left out: that is why a single event costs 48
bytes more than its value. The wide columns come first, so that each one is aligned as Arrow
needs it without padding, and a batch becomes a `RecordBatch` without a copy.

Everything is checked against the bytes that are really there before anything is wrapped or built.
What is wrong in a payload raises `RemoteProtocolError`, what a caller got wrong
`LocalProtocolError`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeAlias

from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.limits import BATCH_BYTES_MAX, BATCH_EVENTS_MAX

VERSION = 1
COMPRESSIONS = ("none", "zstd", "lz4")

# What a compressed body may grow to. A header that promises more is refused unread.
BODY_BYTES_MAX = 4 * BATCH_BYTES_MAX

URGENT, KEYS, NULLS, HEADERS, TIMES, MIXED = (1 << bit for bit in range(6))
_FLAGS = 2**6 - 1

_HEADER = Struct("<BBBBIqIIIIII")
HEADER_BYTES = _HEADER.size

# Offsets are checked in windows, so that a batch of a million events is not unfolded at once.
_WINDOW = 4096
# Offsets of so many values of one length are kept ready. Fewer are looked at faster than looked up.
_EVEN_EVENTS_MIN, _EVEN_EVENTS_MAX = 8, 4096
# So many values of one length are cut out with one step.
_CUT_VALUES = 64
# The eight bits of every byte, lowest first, as Arrow packs booleans.
_BITS = tuple(tuple(bool(byte >> bit & 1) for bit in range(8)) for byte in range(256))
MISUSES = (TypeError, AttributeError, ValueError, OverflowError, StructError)

Buffer: TypeAlias = "bytes | memoryview | array[int]"
# What is read; it may be a part of something larger.
Payload: TypeAlias = bytes | memoryview


class Head(NamedTuple):
    version: int
    flags: int
    compression: int
    zero: int
    events: int
    oldest_us: int
    key_bytes: int
    value_bytes: int
    headers: int
    name_bytes: int
    header_bytes: int
    stored_bytes: int


def _body_bytes(head: Head) -> int:
    """How long the body is, by the header alone, before it is compressed."""
    flags, count = head.flags, head.events
    size = 4 * count + 4 + head.key_bytes + head.value_bytes + head.name_bytes + head.header_bytes
    if flags & TIMES:
        size += 8 * count
    if flags & KEYS:
        size += 4 * count + 4
    if flags & HEADERS:
        size += 4 * count + 4 + 8 * head.headers + 8
    if flags & NULLS:
        size += count + 7 >> 3
    if flags & MIXED:
        size += count + 7 >> 3
    return size


# Writing


class Packed(NamedTuple):
    """A column of byte strings on its way out: offsets from zero, and the bytes in pieces."""

    offsets: Buffer
    size: int
    pieces: Sequence[Buffer]


class PackedHeaders(NamedTuple):
    lists: Buffer
    entries: int
    names: Packed
    values: Packed


class Columns(NamedTuple):
    """The columns of a batch; those left empty say the same of every event."""

    oldest_us: int
    urgent: bool
    values: Packed
    times: Buffer = b""
    keys: Packed | None = None
    validity: bytes = b""
    headers: PackedHeaders | None = None
    mixed: bytes = b""

    @property
    def flags(self) -> int:
        return (
            (URGENT if self.urgent else 0)
            | (KEYS if self.keys else 0)
            | (NULLS if self.validity else 0)
            | (HEADERS if self.headers else 0)
            | (TIMES if self.times else 0)
            | (MIXED if self.mixed else 0)
        )


_NO_STRINGS = Packed(bytes(4), 0, ())
_NO_HEADERS = PackedHeaders(bytes(4), 0, _NO_STRINGS, _NO_STRINGS)


def packed(items: Sequence[bytes]) -> Packed:
    sizes = list(map(len, items))
    count, size = len(sizes), sizes[0] if sizes else 0
    is_kept_ready = _EVEN_EVENTS_MIN <= count <= _EVEN_EVENTS_MAX and count * size <= BODY_BYTES_MAX
    if is_kept_ready and sizes.count(size) == count:
        return Packed(_even_offsets(count, size), count * size, items)
    offsets = tuple(accumulate(sizes, initial=0))
    return Packed(_i32s(len(offsets)).pack(*offsets), offsets[-1], items)


def packed_headers(headers: Sequence[tuple[tuple[str, bytes], ...]]) -> PackedHeaders:
    lists = tuple(accumulate(map(len, headers), initial=0))
    pairs = list(chain.from_iterable(headers))
    names = packed([name.encode() for name, _ in pairs])
    values = packed([value for _, value in pairs])
    return PackedHeaders(_i32s(len(lists)).pack(*lists), len(pairs), names, values)


@lru_cache(maxsize=1024)
def _i32s(count: int) -> Struct:
    return Struct(f"<{count}i")


def bitmap(booleans: Iterable[bool]) -> bytes:
    digits = "".join(map("01".__getitem__, booleans))
    return int(digits[::-1], 2).to_bytes(len(digits) + 7 >> 3, "little")


def seal(columns: Columns, count: int, compression: str) -> bytes:
    """Header and body in one piece."""
    if compression not in COMPRESSIONS:
        raise LocalProtocolError(
            f"compression {compression!r} is unknown; allowed are {', '.join(COMPRESSIONS)}"
        )
    keys, headers = columns.keys or _NO_STRINGS, columns.headers or _NO_HEADERS
    sizes = (
        keys.size,
        columns.values.size,
        headers.entries,
        headers.names.size,
        headers.values.size,
    )
    head = Head(VERSION, columns.flags, 0, 0, count, columns.oldest_us, *sizes, 0)
    body_bytes = _body_bytes(head)
    if body_bytes > (BATCH_BYTES_MAX if compression == "none" else BODY_BYTES_MAX):
        raise too_large(HEADER_BYTES + body_bytes)
    plain = b"".join((_HEADER.pack(*head[:-1], body_bytes), *_pieces(columns)))
    if len(plain) != HEADER_BYTES + body_bytes:
        raise TypeError("keys and values must be bytes")
    payload = plain if compression == "none" else _compressed(head, plain, compression)
    if len(payload) > BATCH_BYTES_MAX:
        raise too_large(len(payload))
    return payload


def _compressed(head: Head, plain: bytes, compression: str) -> bytes:
    """The same batch with its body compressed, or as it was where that saves nothing."""
    import pyarrow

    body = pyarrow.compress(memoryview(plain)[HEADER_BYTES:], codec=compression, asbytes=True)
    if HEADER_BYTES + len(body) >= len(plain):
        return plain
    used = head._replace(compression=COMPRESSIONS.index(compression), stored_bytes=len(body))
    payload: bytes = _HEADER.pack(*used) + body
    return payload


def _pieces(columns: Columns) -> list[Buffer]:
    """The body's buffers in the order of the format."""
    keys, headers = columns.keys, columns.headers
    pieces: list[Buffer] = [columns.times]
    if keys:
        pieces.append(keys.offsets)
    pieces.append(columns.values.offsets)
    if headers:
        pieces += (headers.lists, headers.names.offsets, headers.values.offsets)
    pieces += (columns.validity, columns.mixed)
    if keys:
        pieces += keys.pieces
    pieces += columns.values.pieces
    if headers:
        pieces += headers.names.pieces
        pieces += headers.values.pieces
    return pieces


# Reading


class Strings(NamedTuple):
    """A column of byte strings whose offsets are known to be good."""

    offsets: memoryview
    data: memoryview
    # How long each of them is, if that is known and the same of all, and not zero.
    size: int = 0


class Headers(NamedTuple):
    lists: memoryview
    names: Strings
    values: Strings


class Parts(NamedTuple):
    """The columns of a payload where they are; those left out say the same of every event."""

    values: Strings
    times: memoryview | None = None
    keys: Strings | None = None
    validity: memoryview | None = None
    headers: Headers | None = None
    mixed: memoryview | None = None


class _Reader:
    """Takes a body apart from front to back. Its length has been checked."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def take(self, size: int) -> memoryview:
        start = self._at
        self._at = end = start + size
        return self._body[start:end]


_Take: TypeAlias = Callable[[int], memoryview]


def checked_head(payload: Payload) -> Head:
    if not HEADER_BYTES <= len(payload) <= BATCH_BYTES_MAX or payload[0] != VERSION:
        raise no_header(payload)
    head = Head._make(_HEADER.unpack_from(payload))
    if not 0 < head.events <= BATCH_EVENTS_MAX:
        raise bad_count(head.events)
    if head.flags > _FLAGS or head.compression >= len(COMPRESSIONS) or head.zero:
        raise RemoteProtocolError(
            f"a batch with unknown flags {head.flags}, compression {head.compression} "
            f"or reserved byte {head.zero}"
        )
    body_bytes = len(payload) - HEADER_BYTES
    if head.stored_bytes != body_bytes or not (head.compression or _body_bytes(head) == body_bytes):
        raise RemoteProtocolError(
            f"a batch body of {body_bytes} bytes where its header says {head.stored_bytes} "
            f"and its columns take {_body_bytes(head)}"
        )
    if not head.flags & KEYS and (head.key_bytes or head.flags & NULLS):
        raise RemoteProtocolError("a batch with key data and no keys")
    if not head.flags & HEADERS and (head.headers or head.name_bytes or head.header_bytes):
        raise RemoteProtocolError("a batch with header data and no headers")
    return head


def is_even(payload: Payload, head: Head) -> bool:
    """Whether a payload is values of one length and nothing else: then its columns are good."""
    size, rest = divmod(head.value_bytes, head.events)
    if rest or not _EVEN_EVENTS_MIN <= head.events <= _EVEN_EVENTS_MAX:
        return False
    if head.flags > URGENT or head.compression:
        return False
    offsets = _even_offsets(head.events, size)
    return bytes(payload[HEADER_BYTES : HEADER_BYTES + len(offsets)]) == offsets


def _even_offsets(count: int, size: int) -> bytes:
    """The offsets of so many values of one length, which are the first of more of that length."""
    return _ready_offsets(1 << (count - 1).bit_length(), size)[: 4 * count + 4]


@lru_cache(maxsize=64)
def _ready_offsets(count: int, size: int) -> bytes:
    return Struct(f"<{count + 1}i").pack(*(number * size for number in range(count + 1)))


def read(payload: Payload, head: Head) -> Parts:
    """The columns of a payload whose header has been checked."""
    if head.flags > URGENT or head.compression:
        parts = _taken_apart(head, _Reader(_body(payload, head)).take)
        _check_parts(head, parts)
        return parts
    # Values and nothing else is what most batches are, and they are worth a short way.
    split = HEADER_BYTES + 4 * head.events + 4
    view = memoryview(payload)
    return Parts(_checked("value", view[HEADER_BYTES:split].cast("i"), view[split:]))


def _taken_apart(head: Head, take: _Take) -> Parts:
    flags, count = head.flags, head.events
    times = take(8 * count).cast("q") if flags & TIMES else None
    key_offsets = take(4 * count + 4).cast("i") if flags & KEYS else None
    value_offsets = take(4 * count + 4).cast("i")
    header_offsets = _header_offsets(take, head) if flags & HEADERS else None
    validity = take(count + 7 >> 3) if flags & NULLS else None
    mixed = take(count + 7 >> 3) if flags & MIXED else None
    keys = None if key_offsets is None else _checked("key", key_offsets, take(head.key_bytes))
    values = _checked("value", value_offsets, take(head.value_bytes))
    headers = None if header_offsets is None else _checked_headers(header_offsets, take, head)
    return Parts(values, times, keys, validity, headers, mixed)


def _check_parts(head: Head, parts: Parts) -> None:
    """Replicas go by the header: it may not say anything that the columns do not."""
    if parts.times is not None and min(parts.times) != head.oldest_us:
        raise RemoteProtocolError("a batch whose oldest event is not the oldest")
    if parts.mixed is not None and not (head.flags & URGENT and any(parts.mixed)):
        raise RemoteProtocolError("a batch that is urgent without an urgent event")
    spare = head.events & 7
    for bits in (parts.validity, parts.mixed):
        if bits is not None and spare and bits[-1] >> spare:
            raise RemoteProtocolError("a batch with flags of events that it does not have")


def _body(payload: Payload, head: Head) -> memoryview:
    if head.compression:
        return _decompressed(payload, COMPRESSIONS[head.compression], _body_bytes(head))
    return memoryview(payload)[HEADER_BYTES:]


def _decompressed(payload: Payload, compression: str, size: int) -> memoryview:
    import pyarrow

    if size > BODY_BYTES_MAX:
        raise RemoteProtocolError(
            f"a batch that grows to {size} bytes; allowed are up to {BODY_BYTES_MAX}"
        )
    stored = pyarrow.py_buffer(payload)[HEADER_BYTES:]
    try:
        if compression == "zstd":
            body = pyarrow.decompress(stored, decompressed_size=size, codec=compression)
        else:
            # Arrow's one-step lz4 does not say when it filled less than was asked for, and the
            # rest would be somebody's old memory. Reading as a stream tells.
            reader = pyarrow.CompressedInputStream(pyarrow.BufferReader(stored), compression)
            body = reader.read_buffer(size + 1)
    except (OSError, pyarrow.ArrowException) as error:
        raise RemoteProtocolError(f"a batch that does not decompress: {error}") from None
    if len(body) != size:
        raise RemoteProtocolError(f"a batch of {len(body)} bytes whose columns take {size}")
    return memoryview(body)


def _header_offsets(take: _Take, head: Head) -> tuple[memoryview, memoryview, memoryview]:
    return (
        take(4 * head.events + 4).cast("i"),
        take(4 * head.headers + 4).cast("i"),
        take(4 * head.headers + 4).cast("i"),
    )


def _checked_headers(
    offsets: tuple[memoryview, memoryview, memoryview], take: _Take, head: Head
) -> Headers:
    lists, name_offsets, value_offsets = offsets
    _check_offsets("headers", lists, head.headers)
    names = _checked("header name", name_offsets, take(head.name_bytes))
    values = _checked("header value", value_offsets, take(head.header_bytes))
    try:
        # A name may not start or end inside a character, so each one is decoded by itself.
        if not bytes(names.data).isascii():
            for name in slices(names):
                name.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a header name that is not UTF-8: {error}") from None
    return Headers(lists, names, values)


def _checked(column: str, offsets: memoryview, data: memoryview) -> Strings:
    is_one = len(offsets) == 2
    size = 0 if is_one else _even_size(offsets, len(data))
    if not size:
        _check_offsets(column, offsets, len(data))
    return Strings(offsets, data, size)


def _even_size(offsets: memoryview, end: int) -> int:
    """How long each value is, if these are the offsets of values of one length; otherwise zero."""
    count = len(offsets) - 1
    if not _EVEN_EVENTS_MIN <= count <= _EVEN_EVENTS_MAX:
        return 0
    size, rest = divmod(end, count)
    # The second one says it of nearly all others, which are looked up only if it is right.
    is_even = not rest and offsets[1] == size and bytes(offsets) == _even_offsets(count, size)
    return size if is_even else 0


def _check_offsets(column: str, offsets: memoryview, end: int) -> None:
    """Offsets start at zero, never go back, and end where the data ends."""
    good = offsets[0] == 0 and offsets[-1] == end
    if good and len(offsets) > 2:
        for start in range(0, len(offsets) - 1, _WINDOW):
            window = offsets[start : start + _WINDOW + 1].tolist()
            # Sorting what is sorted is one pass in C, several times faster than comparing
            # neighbours here.
            good = good and window == sorted(window)
    if not good:
        raise RemoteProtocolError(f"a batch whose {column} offsets are not in order")


def slices(strings: Strings) -> list[bytes]:
    if strings.size:
        return _cut(strings.data, strings.size)
    data = bytes(strings.data)
    return [data[start:end] for start, end in pairwise(strings.offsets.tolist())]


def _cut(data: memoryview, size: int) -> list[bytes]:
    """Values of one length, with no Python for each of them and no copy of them all."""
    whole, rest = divmod(len(data) // size, _CUT_VALUES)
    split = whole * _CUT_VALUES * size
    found = list(chain.from_iterable(_cutter(_CUT_VALUES, size).iter_unpack(data[:split])))
    found += _cutter(rest, size).unpack(data[split:])
    return found


@lru_cache(maxsize=256)
def _cutter(count: int, size: int) -> Struct:
    return Struct(f"{size}s" * count)


def booleans(bits: memoryview) -> Iterable[bool]:
    return chain.from_iterable(map(_BITS.__getitem__, bits))


# Sentences


def counted(count: int) -> int:
    if not 0 < count <= BATCH_EVENTS_MAX:
        raise LocalProtocolError(
            f"a batch of {count} events; allowed are 1 to {BATCH_EVENTS_MAX} in one batch"
        )
    return count


def too_large(size: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"a batch of {size} bytes; allowed are up to {BATCH_BYTES_MAX}: send it in parts"
    )


def bad_count(count: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"a batch of {count} events; allowed are 1 to {BATCH_EVENTS_MAX}")


def no_header(payload: Payload) -> RemoteProtocolError:
    if len(payload) < HEADER_BYTES:
        return RemoteProtocolError(
            f"a batch of {len(payload)} bytes, where its header alone takes {HEADER_BYTES}"
        )
    if len(payload) > BATCH_BYTES_MAX:
        return RemoteProtocolError(
            f"a batch of {len(payload)} bytes; allowed are up to {BATCH_BYTES_MAX}"
        )
    return RemoteProtocolError(f"a batch of version {payload[0]}; allowed is {VERSION}")
