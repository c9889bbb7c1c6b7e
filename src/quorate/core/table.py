"""Batches as tables: from a `pyarrow.Table` to a payload, and from a payload's columns to Arrow.

Both ways go column by column, with no Python per event. On the way out, the arrays stand on the
payload's own memory. Arrow is imported when a function here is called, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from quorate.core.columns import (
    MISUSES,
    Buffer,
    Columns,
    Headers,
    Packed,
    PackedHeaders,
    Parts,
    Strings,
    counted,
    seal,
    too_large,
)
from quorate.core.errors import LocalProtocolError
from quorate.core.header import PLAIN_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow

_TIME = Struct("<q")


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

    count = counted(table.num_rows)
    _check_names(table.column_names)
    if table.nbytes > 4 * PLAIN_BYTES_MAX:
        raise too_large(table.nbytes)
    try:
        return seal(_table_columns(table, timestamp_us), count, compression)
    except (pyarrow.ArrowException, *MISUSES) as error:
        raise LocalProtocolError(f"the table cannot become a batch: {error}") from None


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


def _table_columns(table: pyarrow.Table | pyarrow.RecordBatch, timestamp_us: int) -> Columns:
    values = _column(table, "value")
    if values is None or values.null_count:
        raise LocalProtocolError("the column 'value' has nulls, and every event needs a value")
    oldest_us, times = _table_times(_column(table, "timestamp"), timestamp_us)
    keys, validity = _table_keys(_column(table, "key"))
    urgent, mixed = _table_urgent(_column(table, "urgent"))
    headers = _table_headers(_column(table, "headers"))
    return Columns(oldest_us, urgent, _array_strings(values), times, keys, validity, headers, mixed)


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


def _table_times(times: pyarrow.Array | None, timestamp_us: int) -> tuple[int, Buffer]:
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


def _table_keys(keys: pyarrow.Array | None) -> tuple[Packed | None, bytes]:
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


def _table_headers(headers: pyarrow.Array | None) -> PackedHeaders | None:
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
    return PackedHeaders(lists, len(names), _array_strings(names), _array_strings(values))


def _filled(column: pyarrow.Array, default: bytes | int) -> pyarrow.Array:
    return column.fill_null(default) if column.null_count else column


def _array_strings(strings: pyarrow.Array) -> Packed:
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
    return Packed(packed, last - first, [memoryview(data or b"")[first:last]])


def _array_bitmap(booleans: pyarrow.Array) -> bytes:
    """The bits of an array without nulls, from bit zero on and with nothing behind the last."""
    count, offset = len(booleans), booleans.offset
    bits: memoryview = memoryview(booleans.buffers()[1])[offset >> 3 : offset + count + 7 >> 3]
    number: int = int.from_bytes(bits, "little") >> (offset & 7) & ((1 << count) - 1)
    return number.to_bytes(count + 7 >> 3, "little")


def record_batch(parts: Parts, count: int, oldest_us: int, urgent: bool) -> pyarrow.RecordBatch:
    """The columns of a payload as Arrow knows them, on the same memory.

    What the format leaves out because it is the same for all is written out here.
    """
    import pyarrow

    kinds = _kinds()
    if parts.keys is None:
        keys = pyarrow.nulls(count, kinds.bytes)
    else:
        keys = _string_array(kinds.bytes, parts.keys, parts.validity)
    times = parts.times or _TIME.pack(oldest_us) * count
    flags = parts.mixed or (b"\xff" if urgent else b"\x00") * (count + 7 >> 3)
    columns = [
        keys,
        _string_array(kinds.bytes, parts.values),
        _header_array(kinds, parts.headers, count),
        kinds.wrap(kinds.time, count, [None, kinds.buffer(times)]),
        kinds.wrap(kinds.flag, count, [None, kinds.buffer(flags)]),
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=kinds.schema)


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
    kind: pyarrow.DataType, strings: Strings, validity: memoryview | None = None
) -> pyarrow.Array:
    kinds = _kinds()
    known = None if validity is None else kinds.buffer(validity)
    buffers = [known, kinds.buffer(strings.offsets), kinds.buffer(strings.data)]
    return kinds.wrap(kind, len(strings.offsets) - 1, buffers)


def _header_array(kinds: _Kinds, headers: Headers | None, count: int) -> pyarrow.Array:
    if headers is None:
        lists, pairs = memoryview(bytes(4 * count + 4)), kinds.no_pairs
    else:
        names = _string_array(kinds.text, headers.names)
        values = _string_array(kinds.bytes, headers.values)
        pairs = kinds.wrap(kinds.pair, len(names), [None], children=[names, values])
        lists = headers.lists
    return kinds.wrap(kinds.pairs, count, [None, kinds.buffer(lists)], children=[pairs])
