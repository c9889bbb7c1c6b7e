"""How a batch is laid out: a header of fixed size, then Arrow's buffers.

A payload begins with the header of 16 bytes (`core/header.py`), which says how many events and
headers there are, and how many bytes the columns take before compression. In a signed batch the
signature block follows, and a salt if the batch has a tree of events (`crypto/sids.py`). Then come
24 bytes, little-endian like everything here:

    u8 flags   u8 compression   u16 zero   i64 oldest timestamp
    u32 key bytes   u32 header name bytes   u32 header value bytes

The columns, perhaps compressed as a whole, with nothing in between:

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
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeAlias

from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.header import (
    HEADER_BYTES,
    PLAIN_BYTES_MAX,
    Payload,
    basic_header,
    columns_at,
    count_of,
    words_of,
)
from quorate.core.limits import BATCH_BYTES_MAX, BATCH_EVENTS_MAX

COMPRESSIONS = ("none", "zstd", "lz4")

URGENT, KEYS, NULLS, HEADERS, TIMES, MIXED = (1 << bit for bit in range(6))
_FLAGS = 2**6 - 1

# Headers and plain bytes, in the header.
_BEGINNING = Struct("<BBHqIII")
BEGINNING_BYTES = _BEGINNING.size

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


class Head(NamedTuple):
    """What a payload says of itself before its columns."""

    events: int
    flags: int
    compression: int
    oldest_us: int
    key_bytes: int
    value_bytes: int
    headers: int
    name_bytes: int
    header_bytes: int
    plain_bytes: int
    # Where the columns, or what they were compressed to, begin.
    at: int


def _fixed_bytes(flags: int, count: int, headers: int) -> int:
    """What the columns take beside the data of keys, values and headers."""
    size = 4 * count + 4
    if flags & TIMES:
        size += 8 * count
    if flags & KEYS:
        size += 4 * count + 4
    if flags & HEADERS:
        size += 4 * count + 4 + 8 * headers + 8
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
    is_kept_ready = (
        _EVEN_EVENTS_MIN <= count <= _EVEN_EVENTS_MAX and count * size <= PLAIN_BYTES_MAX
    )
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
    flags = columns.flags
    plain_bytes = (
        _fixed_bytes(flags, count, headers.entries)
        + keys.size
        + columns.values.size
        + headers.names.size
        + headers.values.size
    )
    head_bytes = HEADER_BYTES + BEGINNING_BYTES
    if plain_bytes > (BATCH_BYTES_MAX if compression == "none" else PLAIN_BYTES_MAX):
        raise too_large(head_bytes + plain_bytes)
    header = basic_header(count, headers.entries, plain_bytes)
    sizes = keys.size, headers.names.size, headers.values.size
    beginning = _BEGINNING.pack(flags, 0, 0, columns.oldest_us, *sizes)
    plain = b"".join((header, beginning, *_pieces(columns)))
    if len(plain) != head_bytes + plain_bytes:
        raise TypeError("keys and values must be bytes")
    payload: bytes = plain if compression == "none" else _compressed(plain, compression)
    if len(payload) > BATCH_BYTES_MAX:
        raise too_large(len(payload))
    return payload


def _compressed(plain: bytes, compression: str) -> bytes:
    """The same batch with its columns compressed, or as it was where that saves nothing."""
    import pyarrow

    head_bytes = HEADER_BYTES + BEGINNING_BYTES
    stored: bytes = pyarrow.compress(
        memoryview(plain)[head_bytes:], codec=compression, asbytes=True
    )
    if head_bytes + len(stored) >= len(plain):
        return plain
    head = bytearray(plain[:head_bytes])
    head[HEADER_BYTES + 1] = COMPRESSIONS.index(compression)
    return bytes(head) + bytes(stored)


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


def checked_head(payload: Payload) -> Head:
    _, events, headers, plain_bytes = words_of(payload)
    start = columns_at(payload)
    at = start + BEGINNING_BYTES
    if not at <= len(payload) <= start - HEADER_BYTES + BATCH_BYTES_MAX:
        raise RemoteProtocolError(
            f"a batch of {len(payload)} bytes; allowed are {at} to "
            f"{start - HEADER_BYTES + BATCH_BYTES_MAX}"
        )
    flags, compression, zero, oldest_us, keys, names, values = _BEGINNING.unpack_from(
        payload, start
    )
    if flags > _FLAGS or compression >= len(COMPRESSIONS) or zero:
        raise RemoteProtocolError(
            f"a batch with unknown flags {flags}, compression {compression} "
            f"or reserved bytes {zero}"
        )
    stored_bytes = len(payload) - at
    if not compression and stored_bytes != plain_bytes:
        raise RemoteProtocolError(
            f"a batch of {stored_bytes} bytes where its header says {plain_bytes}"
        )
    value_bytes = plain_bytes - _fixed_bytes(flags, events, headers) - keys - names - values
    if value_bytes < 0:
        raise RemoteProtocolError(
            f"a batch whose columns take {-value_bytes} bytes more than the {plain_bytes} that "
            "its header says"
        )
    if not flags & KEYS and (keys or flags & NULLS):
        raise RemoteProtocolError("a batch with key data and no keys")
    if not flags & HEADERS and (headers or names or values):
        raise RemoteProtocolError("a batch with header data and no headers")
    return Head(
        events, flags, compression, oldest_us, keys, value_bytes, headers, names, values,
        plain_bytes, at,
    )  # fmt: skip


def compression_of(payload: Payload) -> str:
    """How the columns of a payload are compressed, as it says before them."""
    count_of(payload)
    start = columns_at(payload)
    if len(payload) < start + BEGINNING_BYTES:
        raise RemoteProtocolError(
            f"a batch of {len(payload)} bytes; allowed are {start + BEGINNING_BYTES} and more"
        )
    compression = payload[start + 1]
    if compression >= len(COMPRESSIONS):
        raise RemoteProtocolError(
            f"a batch with compression {compression}; allowed are 0 to {len(COMPRESSIONS) - 1}"
        )
    return COMPRESSIONS[compression]


def is_even(payload: Payload, head: Head) -> bool:
    """Whether a payload is values of one length and nothing else: then its columns are good."""
    size, rest = divmod(head.value_bytes, head.events)
    if rest or not _EVEN_EVENTS_MIN <= head.events <= _EVEN_EVENTS_MAX:
        return False
    if head.flags > URGENT or head.compression:
        return False
    offsets = _even_offsets(head.events, size)
    return bytes(payload[head.at : head.at + len(offsets)]) == offsets


def _even_offsets(count: int, size: int) -> bytes:
    """The offsets of so many values of one length, which are the first of more of that length."""
    return _ready_offsets(1 << (count - 1).bit_length(), size)[: 4 * count + 4]


@lru_cache(maxsize=64)
def _ready_offsets(count: int, size: int) -> bytes:
    return Struct(f"<{count + 1}i").pack(*(number * size for number in range(count + 1)))


def read(payload: Payload, head: Head) -> Parts:
    """The columns of a payload whose header has been checked."""
    if head.flags > URGENT or head.compression:
        body = _decompressed(payload, head) if head.compression else memoryview(payload)[head.at :]
        parts = _taken_apart(head, body)
        _check_parts(head, parts)
        return parts
    # Values and nothing else is what most batches are, and they are worth a short way.
    split = head.at + 4 * head.events + 4
    view = memoryview(payload)
    return Parts(_checked("value", view[head.at : split].cast("i"), view[split:]))


def _taken_apart(head: Head, body: memoryview) -> Parts:
    """The columns of a body, from front to back. Its length has been checked."""
    at = 0

    def take(size: int) -> memoryview:
        nonlocal at
        start, at = at, at + size
        return body[start:at]

    def take_offsets(count: int) -> memoryview:
        return take(4 * count + 4).cast("i")

    flags, count, entries = head.flags, head.events, head.headers
    times = take(8 * count).cast("q") if flags & TIMES else None
    key_offsets = take_offsets(count) if flags & KEYS else None
    value_offsets = take_offsets(count)
    header_offsets = [*map(take_offsets, (count, entries, entries))] if flags & HEADERS else []
    validity = take(count + 7 >> 3) if flags & NULLS else None
    mixed = take(count + 7 >> 3) if flags & MIXED else None
    keys = None if key_offsets is None else _checked("key", key_offsets, take(head.key_bytes))
    values = _checked("value", value_offsets, take(head.value_bytes))
    header_columns = [*header_offsets, take(head.name_bytes), take(head.header_bytes)]
    headers = _checked_headers(*header_columns) if header_offsets else None
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


def _decompressed(payload: Payload, head: Head) -> memoryview:
    import pyarrow

    compression, size = COMPRESSIONS[head.compression], head.plain_bytes
    stored = pyarrow.py_buffer(payload)[head.at :]
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


def _checked_headers(
    lists: memoryview,
    name_offsets: memoryview,
    value_offsets: memoryview,
    name_data: memoryview,
    value_data: memoryview,
) -> Headers:
    _check_offsets("headers", lists, len(name_offsets) - 1)
    names = _checked("header name", name_offsets, name_data)
    values = _checked("header value", value_offsets, value_data)
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
