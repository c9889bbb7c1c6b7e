"""Batches: events in Arrow's columnar layout, behind a small fixed header.

A batch is the unit of transport, signing, ordering and storage. It is written once by its
producer, and replicas read no more of it than its header.

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

`Batch` checks every count, length and offset against the bytes that are really there before
anything is wrapped or built; what is wrong raises `RemoteProtocolError`. What a caller of the
encoders got wrong raises `LocalProtocolError`. Arrow itself is imported only when a table or
compression is asked for, since it alone would double the memory of a replica.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain, pairwise, repeat
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.event import Event
from quorate.core.limits import BATCH_BYTES_MAX, BATCH_EVENTS_MAX

if TYPE_CHECKING:
    import pyarrow

VERSION = 1
COMPRESSIONS = ("none", "zstd", "lz4")

# What a compressed body may grow to. A header that promises more is refused unread.
BODY_BYTES_MAX = 4 * BATCH_BYTES_MAX

_URGENT, _KEYS, _NULLS, _HEADERS, _TIMES, _MIXED = (1 << bit for bit in range(6))
_FLAGS = 2**6 - 1

_HEADER = Struct("<BBBBIqIIIIII")
HEADER_BYTES = _HEADER.size
# The header and the offsets of a single event, without and with a key.
_ONE = Struct("<BBBBIqIIIIIIii")
_ONE_KEYED = Struct("<BBBBIqIIIIIIiiii")
_COUNT = Struct("<I")
_OLDEST = Struct("<q")
_COUNT_AT, _OLDEST_AT = 4, 8

# Offsets are checked in windows, so that a batch of a million events is not unfolded at once.
_WINDOW = 4096
# The eight bits of every byte, lowest first, as Arrow packs booleans.
_BITS = tuple(tuple(bool(byte >> bit & 1) for bit in range(8)) for byte in range(256))
_MISUSES = (TypeError, AttributeError, ValueError, OverflowError, StructError)

_Buffer: TypeAlias = "bytes | memoryview | array[int]"


def encode(events: Sequence[Event], *, compression: str = "none") -> bytes:
    """The payload that carries these events."""
    try:
        return _encode(events, compression)
    except _MISUSES as error:
        raise LocalProtocolError(_misuse(events, error)) from None


def encode_one(
    key: bytes | None,
    value: bytes,
    headers: tuple[tuple[str, bytes], ...],
    timestamp_us: int,
    urgent: bool,
) -> bytes:
    """The same bytes as `encode` of this one event, in one step where it has no headers."""
    if headers:
        return encode([Event(key, value, headers, timestamp_us, urgent)])
    try:
        payload = _pack_one(key, value, timestamp_us, _URGENT if urgent else 0)
    except _MISUSES as error:
        event = Event(key, value, headers, timestamp_us, urgent)
        raise LocalProtocolError(_misuse([event], error)) from None
    if len(payload) > BATCH_BYTES_MAX:
        raise _too_large(len(payload))
    return payload


def encode_values(
    values: Sequence[bytes], timestamp_us: int, *, compression: str = "none"
) -> bytes:
    """The payload of events that have a value and nothing else, all of the same time."""
    try:
        columns = _Columns(timestamp_us, False, _packed(values))
        return _seal(columns, _counted(len(values)), compression)
    except _MISUSES as error:
        events = [Event(None, value, (), timestamp_us) for value in values]
        raise LocalProtocolError(_misuse(events, error)) from None


def count_of(payload: bytes) -> int:
    """How many events a payload says it has, read from its header alone."""
    if len(payload) < HEADER_BYTES or payload[0] != VERSION:
        raise _no_header(payload)
    count: int = _COUNT.unpack_from(payload, _COUNT_AT)[0]
    if not 0 < count <= BATCH_EVENTS_MAX:
        raise _bad_count(count)
    return count


def urgent_of(payload: bytes) -> bool:
    """Whether any event of a payload is urgent, read from its header alone."""
    if len(payload) < HEADER_BYTES or payload[0] != VERSION:
        raise _no_header(payload)
    return payload[1] & _URGENT != 0


def oldest_us_of(payload: bytes) -> int:
    """The time of a payload's oldest event, read from its header alone."""
    if len(payload) < HEADER_BYTES or payload[0] != VERSION:
        raise _no_header(payload)
    oldest_us: int = _OLDEST.unpack_from(payload, _OLDEST_AT)[0]
    return oldest_us


def compression_of(payload: bytes) -> str:
    """How a payload's body is compressed, read from its header alone."""
    if len(payload) < HEADER_BYTES or payload[0] != VERSION:
        raise _no_header(payload)
    if payload[2] >= len(COMPRESSIONS):
        raise RemoteProtocolError(
            f"a batch with compression {payload[2]}; allowed are 0 to {len(COMPRESSIONS) - 1}"
        )
    return COMPRESSIONS[payload[2]]


class Batch:
    """A payload that has been checked, and whose events are built only when asked for."""

    __slots__ = (
        "_headers",
        "_keys",
        "_mixed",
        "_times",
        "_validity",
        "_values",
        "count",
        "oldest_us",
        "payload",
        "urgent",
    )
    count: int
    oldest_us: int
    payload: bytes
    urgent: bool
    _times: memoryview | None
    _keys: _Strings | None
    _validity: memoryview | None
    _values: _Strings
    _headers: _Headers | None
    _mixed: memoryview | None

    def __init__(self, payload: bytes) -> None:
        head = _checked_head(payload)
        self.payload = payload
        self.count = head.events
        self.oldest_us = head.oldest_us
        self.urgent = head.flags & _URGENT != 0
        self._times = self._keys = self._validity = self._headers = self._mixed = None
        if head.flags > _URGENT or head.compression:
            self._read_columns(head, _Reader(_body(payload, head)).take)
            self._check_columns()
        else:
            # Values and nothing else is what most batches are, and they are worth a short way.
            split = HEADER_BYTES + 4 * head.events + 4
            view = memoryview(payload)
            self._values = _checked("value", view[HEADER_BYTES:split].cast("i"), view[split:])

    def events(self) -> list[Event]:
        if self.count == 1 and self._headers is None and self._keys is None:
            return [Event(None, bytes(self._values.data), (), self.oldest_us, self.urgent)]
        return list(
            map(
                Event,
                self._key_list(),
                self.values(),
                self._header_list(),
                repeat(self.oldest_us) if self._times is None else self._times,
                repeat(self.urgent) if self._mixed is None else _booleans(self._mixed),
            )
        )

    def values(self) -> list[bytes]:
        return _slices(self._values)

    def record_batch(self) -> pyarrow.RecordBatch:
        """The same batch as Arrow knows it, on the same memory (see `schema`)."""
        import pyarrow

        kinds, count = _kinds(), self.count
        if self._keys is None:
            keys = pyarrow.nulls(count, kinds.bytes)
        else:
            keys = _string_array(kinds.bytes, self._keys, self._validity)
        # What the format leaves out because it is the same for all is written out here.
        times = self._times or _OLDEST.pack(self.oldest_us) * count
        urgent = self._mixed or (b"\xff" if self.urgent else b"\x00") * (count + 7 >> 3)
        columns = [
            keys,
            _string_array(kinds.bytes, self._values),
            _header_array(kinds, self._headers, count),
            kinds.wrap(kinds.time, count, [None, kinds.buffer(times)]),
            kinds.wrap(kinds.flag, count, [None, kinds.buffer(urgent)]),
        ]
        return pyarrow.RecordBatch.from_arrays(columns, schema=kinds.schema)

    def _read_columns(self, head: _Head, take: _Take) -> None:
        flags, count = head.flags, head.events
        if flags & _TIMES:
            self._times = take(8 * count).cast("q")
        key_offsets = take(4 * count + 4).cast("i") if flags & _KEYS else None
        value_offsets = take(4 * count + 4).cast("i")
        header_offsets = _header_offsets(take, head) if flags & _HEADERS else None
        if flags & _NULLS:
            self._validity = take(count + 7 >> 3)
        if flags & _MIXED:
            self._mixed = take(count + 7 >> 3)
        if key_offsets is not None:
            self._keys = _checked("key", key_offsets, take(head.key_bytes))
        self._values = _checked("value", value_offsets, take(head.value_bytes))
        if header_offsets is not None:
            self._headers = _checked_headers(header_offsets, take, head)

    def _check_columns(self) -> None:
        # Replicas go by the header: it may not say anything that the columns do not.
        if self._times is not None and min(self._times) != self.oldest_us:
            raise RemoteProtocolError("a batch whose oldest event is not the oldest")
        if self._mixed is not None and not (self.urgent and any(self._mixed)):
            raise RemoteProtocolError("a batch that is urgent without an urgent event")
        spare = self.count & 7
        for bits in (self._validity, self._mixed):
            if bits is not None and spare and bits[-1] >> spare:
                raise RemoteProtocolError("a batch with flags of events that it does not have")

    def _key_list(self) -> Iterable[bytes | None]:
        if self._keys is None:
            return repeat(None)
        keys = _slices(self._keys)
        if self._validity is None:
            return keys
        valid = _booleans(self._validity)
        return [key if known else None for key, known in zip(keys, valid, strict=False)]

    def _header_list(self) -> Iterable[tuple[tuple[str, bytes], ...]]:
        if self._headers is None:
            return repeat(())
        names = map(bytes.decode, _slices(self._headers.names))
        headers = tuple(zip(names, _slices(self._headers.values), strict=True))
        return [headers[start:end] for start, end in pairwise(self._headers.lists)]


@cache
def schema() -> pyarrow.Schema:
    """The one Arrow schema of all batches."""
    import pyarrow

    name = pyarrow.field("name", pyarrow.utf8(), nullable=False)
    value = pyarrow.field("value", pyarrow.binary(), nullable=False)
    headers = pyarrow.list_(pyarrow.struct([name, value]))
    return pyarrow.schema(
        [
            pyarrow.field("key", pyarrow.binary()),
            value,
            pyarrow.field("headers", headers, nullable=False),
            pyarrow.field("timestamp", pyarrow.timestamp("us", "UTC"), nullable=False),
            pyarrow.field("urgent", pyarrow.bool_(), nullable=False),
        ]
    )


def from_table(
    table: pyarrow.Table | pyarrow.RecordBatch, *, timestamp_us: int, compression: str = "none"
) -> bytes:
    """The payload of a table's rows, made column by column.

    Only the column `value` must be there. A missing key is none, missing headers are empty, a
    missing time is `timestamp_us`, and what is not said to be urgent is not; the same holds
    for a null.
    """
    import pyarrow

    count = _counted(table.num_rows)
    _check_names(table.column_names)
    if table.nbytes > 4 * BODY_BYTES_MAX:
        raise _too_large(table.nbytes)
    try:
        return _seal(_table_columns(table, timestamp_us), count, compression)
    except (pyarrow.ArrowException, *_MISUSES) as error:
        raise LocalProtocolError(f"the table cannot become a batch: {error}") from None


# Encoding


class _Packed(NamedTuple):
    """A column of byte strings on its way out: offsets from zero, and the bytes in pieces."""

    offsets: _Buffer
    size: int
    pieces: Sequence[_Buffer]


class _PackedHeaders(NamedTuple):
    lists: _Buffer
    entries: int
    names: _Packed
    values: _Packed


class _Columns(NamedTuple):
    """The columns of a batch; those left empty say the same of every event."""

    oldest_us: int
    urgent: bool
    values: _Packed
    times: _Buffer = b""
    keys: _Packed | None = None
    validity: bytes = b""
    headers: _PackedHeaders | None = None
    mixed: bytes = b""

    @property
    def flags(self) -> int:
        return (
            (_URGENT if self.urgent else 0)
            | (_KEYS if self.keys else 0)
            | (_NULLS if self.validity else 0)
            | (_HEADERS if self.headers else 0)
            | (_TIMES if self.times else 0)
            | (_MIXED if self.mixed else 0)
        )


_NO_STRINGS = _Packed(bytes(4), 0, ())
_NO_HEADERS = _PackedHeaders(bytes(4), 0, _NO_STRINGS, _NO_STRINGS)


def _pack_one(key: bytes | None, value: bytes, time: int, flags: int) -> bytes:
    size = len(value)
    # fmt: off
    if key is None:
        return _ONE.pack(
            VERSION, flags, 0, 0, 1, time, 0, size, 0, 0, 0, size + 8, 0, size
        ) + value
    flags |= _KEYS
    keyed = len(key)
    return _ONE_KEYED.pack(
        VERSION, flags, 0, 0, 1, time, keyed, size, 0, 0, 0, keyed + size + 16, 0, keyed, 0, size
    ) + key + value
    # fmt: on


def _encode(events: Sequence[Event], compression: str) -> bytes:
    count = _counted(len(events))
    times = [event.timestamp_us for event in events]
    keys = [event.key for event in events]
    urgent = [event.urgent for event in events]
    headers = [event.headers for event in events]
    oldest_us, some_urgent, some_keys = min(times), any(urgent), keys.count(None) < count
    columns = _Columns(
        oldest_us,
        some_urgent,
        _packed([event.value for event in events]),
        array("q", times) if max(times) != oldest_us else b"",
        _packed([b"" if key is None else key for key in keys]) if some_keys else None,
        _bitmap(key is not None for key in keys) if some_keys and None in keys else b"",
        _packed_headers(headers) if any(headers) else None,
        _bitmap(map(bool, urgent)) if some_urgent and not all(urgent) else b"",
    )
    return _seal(columns, count, compression)


def _packed(items: Sequence[bytes]) -> _Packed:
    offsets = tuple(accumulate(map(len, items), initial=0))
    return _Packed(_i32s(len(offsets)).pack(*offsets), offsets[-1], items)


def _packed_headers(headers: Sequence[tuple[tuple[str, bytes], ...]]) -> _PackedHeaders:
    lists = tuple(accumulate(map(len, headers), initial=0))
    pairs = list(chain.from_iterable(headers))
    names = _packed([name.encode() for name, _ in pairs])
    values = _packed([value for _, value in pairs])
    return _PackedHeaders(_i32s(len(lists)).pack(*lists), len(pairs), names, values)


@lru_cache(maxsize=1024)
def _i32s(count: int) -> Struct:
    return Struct(f"<{count}i")


def _bitmap(booleans: Iterable[bool]) -> bytes:
    digits = "".join(map("01".__getitem__, booleans))
    return int(digits[::-1], 2).to_bytes(len(digits) + 7 >> 3, "little")


def _seal(columns: _Columns, count: int, compression: str) -> bytes:
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
    head = _Head(VERSION, columns.flags, 0, 0, count, columns.oldest_us, *sizes, 0)
    body_bytes = _body_bytes(head)
    if body_bytes > (BATCH_BYTES_MAX if compression == "none" else BODY_BYTES_MAX):
        raise _too_large(HEADER_BYTES + body_bytes)
    plain = b"".join((_HEADER.pack(*head[:-1], body_bytes), *_pieces(columns)))
    if len(plain) != HEADER_BYTES + body_bytes:
        raise TypeError("keys and values must be bytes")
    payload = plain if compression == "none" else _compressed(head, plain, compression)
    if len(payload) > BATCH_BYTES_MAX:
        raise _too_large(len(payload))
    return payload


def _compressed(head: _Head, plain: bytes, compression: str) -> bytes:
    """The same batch with its body compressed, or as it was where that saves nothing."""
    import pyarrow

    body = pyarrow.compress(memoryview(plain)[HEADER_BYTES:], codec=compression, asbytes=True)
    if HEADER_BYTES + len(body) >= len(plain):
        return plain
    used = head._replace(compression=COMPRESSIONS.index(compression), stored_bytes=len(body))
    payload: bytes = _HEADER.pack(*used) + body
    return payload


def _pieces(columns: _Columns) -> list[_Buffer]:
    """The body's buffers in the order of the format."""
    keys, headers = columns.keys, columns.headers
    pieces: list[_Buffer] = [columns.times]
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


# From tables


def _check_names(names: Sequence[str]) -> None:
    allowed = schema().names
    for name in names:
        if name not in allowed:
            raise LocalProtocolError(
                f"a batch has no column {name!r}; allowed are {', '.join(allowed)}"
            )
        if names.count(name) > 1:
            raise LocalProtocolError(f"the column {name!r} is there more than once")
    if "value" not in names:
        raise LocalProtocolError("the table has no column 'value', and every event needs one")


def _table_columns(table: pyarrow.Table | pyarrow.RecordBatch, timestamp_us: int) -> _Columns:
    values = _column(table, "value")
    if values is None or values.null_count:
        raise LocalProtocolError("the column 'value' has nulls, and every event needs a value")
    oldest_us, times = _table_times(_column(table, "timestamp"), timestamp_us)
    keys, validity = _table_keys(_column(table, "key"))
    urgent, mixed = _table_urgent(_column(table, "urgent"))
    headers = _table_headers(_column(table, "headers"))
    return _Columns(
        oldest_us, urgent, _array_strings(values), times, keys, validity, headers, mixed
    )


def _column(table: pyarrow.Table | pyarrow.RecordBatch, name: str) -> pyarrow.Array | None:
    """A column as one array of the type that batches have, or None if it is not there."""
    import pyarrow

    if name not in table.column_names:
        return None
    column = table.column(name)
    is_allowed, sentence = _allowed_types()[name]
    if not is_allowed(column.type):
        raise LocalProtocolError(f"the column {name!r} is {column.type}; allowed is {sentence}")
    wanted = schema().field(name).type
    try:
        column = column if column.type == wanted else column.cast(wanted)
    except pyarrow.ArrowException as error:
        raise LocalProtocolError(f"the column {name!r} does not fit {wanted}: {error}") from None
    return column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column


@cache
def _allowed_types() -> dict[str, tuple[Callable[[pyarrow.DataType], bool], str]]:
    """Which types each column may have, as a check and as a user reads it."""
    from pyarrow import types

    def is_utf8(kind: pyarrow.DataType) -> bool:
        return any(
            check(kind) for check in (types.is_string, types.is_large_string, types.is_string_view)
        )

    def is_bytes(kind: pyarrow.DataType) -> bool:
        checks = (types.is_binary, types.is_large_binary, types.is_binary_view)
        return is_utf8(kind) or any(check(kind) for check in checks)

    def is_headers(kind: pyarrow.DataType) -> bool:
        if types.is_map(kind):
            return is_utf8(kind.key_type) and is_bytes(kind.item_type)
        if not (types.is_list(kind) or types.is_large_list(kind)):
            return False
        pair = kind.value_type
        return (
            types.is_struct(pair)
            and [field.name for field in pair] == ["name", "value"]
            and is_utf8(pair.field(0).type)
            and is_bytes(pair.field(1).type)
        )

    return {
        "key": (lambda kind: types.is_null(kind) or is_bytes(kind), "binary or string"),
        "value": (is_bytes, "binary or string"),
        "headers": (
            lambda kind: types.is_null(kind) or is_headers(kind),
            "list<struct<name: string, value: binary>> or map<string, binary>",
        ),
        "timestamp": (lambda kind: types.is_null(kind) or types.is_timestamp(kind), "timestamp"),
        "urgent": (lambda kind: types.is_null(kind) or types.is_boolean(kind), "bool"),
    }


def _table_times(times: pyarrow.Array | None, timestamp_us: int) -> tuple[int, _Buffer]:
    import pyarrow
    from pyarrow import compute

    if times is None:
        return timestamp_us, b""
    whole = _filled(times.view(pyarrow.int64()), timestamp_us)
    bounds = compute.min_max(whole)
    oldest_us: int = bounds["min"].as_py()
    if bounds["max"].as_py() == oldest_us:
        return oldest_us, b""
    return oldest_us, memoryview(whole.buffers()[1])[8 * whole.offset :][: 8 * len(whole)]


def _table_keys(keys: pyarrow.Array | None) -> tuple[_Packed | None, bytes]:
    if keys is None or keys.null_count == len(keys):
        return None, b""
    validity = _array_bitmap(keys.is_valid()) if keys.null_count else b""
    return _array_strings(_filled(keys, b"")), validity


def _table_urgent(urgent: pyarrow.Array | None) -> tuple[bool, bytes]:
    from pyarrow import compute

    if urgent is None:
        return False, b""
    whole = _filled(urgent, False)
    bounds = compute.min_max(whole)
    is_mixed = bounds["min"].as_py() != bounds["max"].as_py()
    return bounds["max"].as_py(), _array_bitmap(whole) if is_mixed else b""


def _table_headers(headers: pyarrow.Array | None) -> _PackedHeaders | None:
    from pyarrow import compute

    if headers is None:
        return None
    names, values = headers.flatten().flatten()
    if not len(names):
        return None
    if names.null_count or values.null_count:
        raise LocalProtocolError("the column 'headers' has a null for a name or a value")
    # Only a full check looks at the characters, and a name that is not UTF-8 would be refused
    # by everyone who receives it.
    names.validate(full=True)
    ends = compute.cumulative_sum(_filled(headers.value_lengths(), 0))
    lists = bytes(4) + memoryview(ends.buffers()[1])[4 * ends.offset :][: 4 * len(ends)]
    return _PackedHeaders(lists, len(names), _array_strings(names), _array_strings(values))


def _filled(column: pyarrow.Array, default: bytes | int) -> pyarrow.Array:
    return column.fill_null(default) if column.null_count else column


def _array_strings(strings: pyarrow.Array) -> _Packed:
    """The buffers of an array without nulls, which may be a slice of a longer one."""
    import pyarrow
    from pyarrow import compute

    _, offsets, data = strings.buffers()
    kind = pyarrow.int32()
    ends = pyarrow.Array.from_buffers(kind, len(strings) + 1, [None, offsets], 0, strings.offset)
    first, last = ends[0].as_py(), ends[-1].as_py()
    if first:
        ends = compute.subtract(ends, pyarrow.scalar(first, kind))
    packed = memoryview(ends.buffers()[1])[4 * ends.offset :][: 4 * len(ends)]
    return _Packed(packed, last - first, [memoryview(data or b"")[first:last]])


def _array_bitmap(booleans: pyarrow.Array) -> bytes:
    """The bits of an array without nulls, from bit zero on and with nothing behind the last."""
    count, offset = len(booleans), booleans.offset
    bits: memoryview = memoryview(booleans.buffers()[1])[offset >> 3 : offset + count + 7 >> 3]
    number: int = int.from_bytes(bits, "little") >> (offset & 7) & ((1 << count) - 1)
    return number.to_bytes(count + 7 >> 3, "little")


# Decoding


class _Head(NamedTuple):
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


class _Strings(NamedTuple):
    """A column of byte strings whose offsets are known to be good."""

    offsets: memoryview
    data: memoryview


class _Headers(NamedTuple):
    lists: memoryview
    names: _Strings
    values: _Strings


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


def _body_bytes(head: _Head) -> int:
    """How long the body is, by the header alone, before it is compressed."""
    flags, count = head.flags, head.events
    size = 4 * count + 4 + head.key_bytes + head.value_bytes + head.name_bytes + head.header_bytes
    if flags & _TIMES:
        size += 8 * count
    if flags & _KEYS:
        size += 4 * count + 4
    if flags & _HEADERS:
        size += 4 * count + 4 + 8 * head.headers + 8
    if flags & _NULLS:
        size += count + 7 >> 3
    if flags & _MIXED:
        size += count + 7 >> 3
    return size


def _checked_head(payload: bytes) -> _Head:
    if not HEADER_BYTES <= len(payload) <= BATCH_BYTES_MAX or payload[0] != VERSION:
        raise _no_header(payload)
    head = _Head._make(_HEADER.unpack_from(payload))
    if not 0 < head.events <= BATCH_EVENTS_MAX:
        raise _bad_count(head.events)
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
    if not head.flags & _KEYS and (head.key_bytes or head.flags & _NULLS):
        raise RemoteProtocolError("a batch with key data and no keys")
    if not head.flags & _HEADERS and (head.headers or head.name_bytes or head.header_bytes):
        raise RemoteProtocolError("a batch with header data and no headers")
    return head


def _body(payload: bytes, head: _Head) -> memoryview:
    if head.compression:
        return _decompressed(payload, COMPRESSIONS[head.compression], _body_bytes(head))
    return memoryview(payload)[HEADER_BYTES:]


def _decompressed(payload: bytes, compression: str, size: int) -> memoryview:
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


def _header_offsets(take: _Take, head: _Head) -> tuple[memoryview, memoryview, memoryview]:
    return (
        take(4 * head.events + 4).cast("i"),
        take(4 * head.headers + 4).cast("i"),
        take(4 * head.headers + 4).cast("i"),
    )


def _checked_headers(
    offsets: tuple[memoryview, memoryview, memoryview], take: _Take, head: _Head
) -> _Headers:
    lists, name_offsets, value_offsets = offsets
    _check_offsets("headers", lists, head.headers)
    names = _checked("header name", name_offsets, take(head.name_bytes))
    values = _checked("header value", value_offsets, take(head.header_bytes))
    try:
        # A name may not start or end inside a character, so each one is decoded by itself.
        if not bytes(names.data).isascii():
            for name in _slices(names):
                name.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a header name that is not UTF-8: {error}") from None
    return _Headers(lists, names, values)


def _checked(column: str, offsets: memoryview, data: memoryview) -> _Strings:
    _check_offsets(column, offsets, len(data))
    return _Strings(offsets, data)


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


def _slices(strings: _Strings) -> list[bytes]:
    data = bytes(strings.data)
    return [data[start:end] for start, end in pairwise(strings.offsets.tolist())]


def _booleans(bits: memoryview) -> Iterable[bool]:
    return chain.from_iterable(map(_BITS.__getitem__, bits))


class _Kinds(NamedTuple):
    """What wrapping needs of Arrow, looked up once: looking it up takes longer than wrapping."""

    schema: pyarrow.Schema
    bytes: pyarrow.DataType
    text: pyarrow.DataType
    pair: pyarrow.DataType
    pairs: pyarrow.DataType
    time: pyarrow.DataType
    flag: pyarrow.DataType
    no_pairs: pyarrow.Array
    wrap: Callable[..., pyarrow.Array]
    buffer: Callable[[bytes | memoryview], pyarrow.Buffer]


@cache
def _kinds() -> _Kinds:
    import pyarrow

    key, _, headers, timestamp, urgent = schema().types
    pair = headers.value_type
    return _Kinds(
        *(schema(), key, pair.field(0).type, pair, headers, timestamp, urgent),
        *(pyarrow.array([], pair), pyarrow.Array.from_buffers, pyarrow.py_buffer),
    )


def _string_array(
    kind: pyarrow.DataType, strings: _Strings, validity: memoryview | None = None
) -> pyarrow.Array:
    kinds = _kinds()
    known = None if validity is None else kinds.buffer(validity)
    buffers = [known, kinds.buffer(strings.offsets), kinds.buffer(strings.data)]
    return kinds.wrap(kind, len(strings.offsets) - 1, buffers)


def _header_array(kinds: _Kinds, headers: _Headers | None, count: int) -> pyarrow.Array:
    if headers is None:
        lists, pairs = memoryview(bytes(4 * count + 4)), kinds.no_pairs
    else:
        names = _string_array(kinds.text, headers.names)
        values = _string_array(kinds.bytes, headers.values)
        pairs = kinds.wrap(kinds.pair, len(names), [None], children=[names, values])
        lists = headers.lists
    return kinds.wrap(kinds.pairs, count, [None, kinds.buffer(lists)], children=[pairs])


# Sentences


def _counted(count: int) -> int:
    if not 0 < count <= BATCH_EVENTS_MAX:
        raise LocalProtocolError(
            f"a batch of {count} events; allowed are 1 to {BATCH_EVENTS_MAX} in one batch"
        )
    return count


def _too_large(size: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"a batch of {size} bytes; allowed are up to {BATCH_BYTES_MAX}: send it in parts"
    )


def _bad_count(count: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"a batch of {count} events; allowed are 1 to {BATCH_EVENTS_MAX}")


def _no_header(payload: bytes) -> RemoteProtocolError:
    if len(payload) < HEADER_BYTES:
        return RemoteProtocolError(
            f"a batch of {len(payload)} bytes, where its header alone takes {HEADER_BYTES}"
        )
    if len(payload) > BATCH_BYTES_MAX:
        return RemoteProtocolError(
            f"a batch of {len(payload)} bytes; allowed are up to {BATCH_BYTES_MAX}"
        )
    return RemoteProtocolError(f"a batch of version {payload[0]}; allowed is {VERSION}")


def _misuse(events: Iterable[object], error: Exception) -> str:
    """Which event cannot travel, and why. Only asked after encoding failed."""
    for number, event in enumerate(events):
        if not isinstance(event, Event):
            return f"event {number} is {type(event).__name__}; allowed is Event"
        why = _field_misuse(event.key, event.value, event.headers, event.timestamp_us)
        if why:
            return f"event {number}: {why}"
    return f"these events cannot become a batch: {error}"


def _field_misuse(key: object, value: object, headers: object, time: object) -> str:
    if not isinstance(value, bytes):
        return f"the value is {type(value).__name__}; allowed is bytes"
    if not isinstance(key, bytes | None):
        return f"the key is {type(key).__name__}; allowed is bytes or None"
    if not isinstance(time, int) or not -(2**63) <= time < 2**63:
        return f"the time {time!r} is not a 64-bit number of microseconds"
    if not _are_headers(headers):
        return "headers are a tuple of pairs of a name (UTF-8 text) and a value (bytes)"
    return ""


def _are_headers(headers: object) -> bool:
    try:
        return isinstance(headers, tuple) and all(
            isinstance(value, bytes) and isinstance(name.encode(), bytes) for name, value in headers
        )
    except (TypeError, ValueError, AttributeError):
        return False
