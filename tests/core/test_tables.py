"""Batches and Arrow: tables in, record batches out, with no event touched in between."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core import batch
from quorate.core.batch import Batch
from quorate.core.columns import COMPRESSIONS
from quorate.core.errors import LocalProtocolError
from quorate.core.event import Event
from quorate.core.table import from_table, schema

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=6)), max_size=3).map(tuple)
TIMES = st.just(1_700_000_000_000_000) | st.integers(-(2**63), 2**63 - 1)
EVENTS = st.builds(
    Event,
    key=st.none() | st.binary(max_size=12),
    value=st.binary(max_size=40),
    headers=st.just(()) | HEADERS,
    timestamp_us=TIMES,
    urgent=st.booleans(),
)
BATCHES = st.lists(EVENTS, min_size=1, max_size=30)
CODECS = st.sampled_from(COMPRESSIONS)

NOW_US = 1_700_000_000_000_000
SAMPLE = [
    Event(b"host-1", b"first", (("kind", b"alert"), ("kind", b"again")), 20, True),
    Event(None, b"", (), 10, False),
    Event(b"", b"third", (), 30, False),
]


def events_of(table: pa.RecordBatch | pa.Table) -> list[Event]:
    """An independent reading of a table, event by event."""
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    rows = table.select(["key", "value", "headers", "urgent"]).to_pylist()
    return [
        Event(
            row["key"],
            row["value"],
            tuple((header["name"], header["value"]) for header in row["headers"]),
            time,
            row["urgent"],
        )
        for row, time in zip(rows, times, strict=True)
    ]


@given(BATCHES, CODECS)
def test_a_record_batch_holds_the_events_of_its_batch(events: list[Event], codec: str) -> None:
    table = Batch(batch.encode(events, compression=codec)).record_batch()

    table.validate(full=True)
    assert table.schema == schema()
    assert events_of(table) == events


@given(BATCHES, CODECS)
def test_a_table_becomes_the_bytes_that_its_events_become(events: list[Event], codec: str) -> None:
    payload = batch.encode(events, compression=codec)
    table = Batch(payload).record_batch()

    assert from_table(table, timestamp_us=0, compression=codec) == payload


@given(BATCHES, st.data())
def test_slices_and_chunks_of_tables_become_batches(
    events: list[Event], data: st.DataObject
) -> None:
    whole = Batch(batch.encode(events)).record_batch()
    start = data.draw(st.integers(0, len(events) - 1))
    length = data.draw(st.integers(1, len(events) - start))
    part = events[start : start + length]

    assert from_table(whole.slice(start, length), timestamp_us=0) == batch.encode(part)
    chunks = pa.Table.from_batches([whole.slice(start, length), whole])
    assert from_table(chunks, timestamp_us=0) == batch.encode(part + events)


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=20))
def test_a_table_of_values_alone_gets_the_defaults(values: list[bytes]) -> None:
    table = pa.table({"value": pa.array(values, pa.binary())})

    payload = from_table(table, timestamp_us=NOW_US)

    assert payload == batch.encode_values(values, NOW_US)


def test_nulls_mean_the_same_as_columns_that_are_missing() -> None:
    table = pa.table(
        {
            "value": [b"a", b"b"],
            "key": [None, b"k"],
            "headers": pa.array([None, []], schema().field("headers").type),
            "timestamp": pa.array([None, 7], pa.timestamp("us", "UTC")),
            "urgent": [None, True],
        }
    )

    found = Batch(from_table(table, timestamp_us=NOW_US)).events()

    assert found == [Event(None, b"a", (), NOW_US), Event(b"k", b"b", (), 7, True)]


def test_columns_of_nothing_but_nulls_are_as_good_as_missing() -> None:
    empty = [None, None]
    columns = {"key": empty, "headers": empty, "timestamp": empty, "urgent": empty}
    table = pa.table({"value": [b"a", b"b"], **columns})

    assert from_table(table, timestamp_us=1) == batch.encode_values([b"a", b"b"], 1)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
    ],
)
def test_every_kind_of_bytes_and_text_is_taken(kind: pa.DataType) -> None:
    table = pa.table(
        {
            "value": pa.array(["one", "two"], pa.string()).cast(kind),
            "key": pa.array(["k", None], pa.string()).cast(kind),
        }
    )

    found = Batch(from_table(table, timestamp_us=1)).events()

    assert found == [Event(b"k", b"one", (), 1), Event(None, b"two", (), 1)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.large_string(), pa.string()),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        pa.large_list(pa.struct([("name", pa.string()), ("value", pa.large_binary())])),
    ],
)
def test_headers_are_taken_as_lists_of_pairs_or_as_maps(kind: pa.DataType) -> None:
    headers: list[object] = [[("a", "1"), ("b", "2")], None, []]
    if not pa.types.is_map(kind):
        headers[0] = [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]
    table = pa.table({"value": [b"x", b"y", b"z"], "headers": pa.array(headers, kind)})

    found = Batch(from_table(table, timestamp_us=1)).events()

    assert [event.headers for event in found] == [(("a", b"1"), ("b", b"2")), (), ()]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ns", "Europe/Vienna")])
def test_times_of_other_units_and_zones_are_converted(kind: pa.DataType) -> None:
    times = pa.array([3_000_000, 5_000_000], pa.timestamp("us")).cast(kind)
    table = pa.table({"value": [b"x", b"y"], "timestamp": times})

    found = Batch(from_table(table, timestamp_us=1)).events()

    assert [event.timestamp_us for event in found] == [3_000_000, 5_000_000]


HEADER = pa.struct([("name", pa.string()), ("value", pa.binary())])


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"key": [b"k"]}), "no column 'value'"),
        (pa.table({"value": [b"v"], "colour": ["red"]}), "no column 'colour'; allowed are key,"),
        (pa.table([[b"a"], [b"b"]], ["value", "value"]), "'value' is there more than once"),
        (pa.table({"value": [1]}), "'value' is int64; allowed is binary or string"),
        (pa.table({"value": [None]}), "'value' is null; allowed is binary or string"),
        (pa.table({"value": [b"v", None]}), "'value' has nulls"),
        (pa.table({"value": [b"v"], "key": [1.5]}), "'key' is double; allowed is binary"),
        (pa.table({"value": [b"v"], "timestamp": [1]}), "'timestamp' is int64; allowed is time"),
        (pa.table({"value": [b"v"], "urgent": [1]}), "'urgent' is int64; allowed is bool"),
        (pa.table({"value": [b"v"], "headers": [["a"]]}), "'headers' is list<.*allowed is list"),
        (
            pa.table({"value": [b"v"], "headers": [[{"value": b"x", "key": "y"}]]}),
            "'headers' is list<",
        ),
        (
            pa.table(
                {"value": [b"v"], "headers": pa.array([[(1, b"")]], pa.map_("int8", "binary"))}
            ),
            "'headers' is map<int8, binary",
        ),
        (
            pa.table({"value": [b"v"], "headers": pa.array([[{"name": "a"}]], pa.list_(HEADER))}),
            "'headers' does not fit list<.* has nulls",
        ),
        (
            pa.table({"value": [b"v"], "headers": pa.array([[None]], pa.list_(HEADER))}),
            "a null for a name or a value",
        ),
        (
            pa.table({"value": [b"v"], "timestamp": pa.array([1], pa.timestamp("ns"))}),
            "'timestamp' does not fit timestamp",
        ),
        (pa.table({"value": pa.array([], pa.binary())}), "a batch of 0 events"),
        (pa.table({"value": [bytes(9_000_000)]}), "send it in parts"),
    ],
)
def test_a_table_that_cannot_become_a_batch_is_told_why(table: pa.Table, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        from_table(table, timestamp_us=1)


def test_a_time_beyond_64_bits_is_refused_for_tables_too() -> None:
    missing = pa.array([None], pa.timestamp("us"))
    for table in (pa.table({"value": [b"v"]}), pa.table({"value": [b"v"], "timestamp": missing})):
        with pytest.raises(LocalProtocolError, match="cannot become a batch"):
            from_table(table, timestamp_us=2**63)


def test_a_record_batch_stands_on_the_memory_of_its_payload() -> None:
    payload = batch.encode(SAMPLE)
    start = pa.py_buffer(payload).address
    table = Batch(payload).record_batch()

    for column in table.columns:
        for buffer in filter(None, column.buffers()):
            assert start <= buffer.address <= start + len(payload) - buffer.size


@given(BATCHES, CODECS)
def test_every_buffer_is_aligned_as_arrow_needs_it(events: list[Event], codec: str) -> None:
    table = Batch(batch.encode(events, compression=codec)).record_batch()

    assert table.column("timestamp").buffers()[1].address % 8 == 0
    for name in ("key", "value", "headers"):
        offsets = table.column(name).buffers()[1]
        assert offsets is None or offsets.address % 4 == 0


def test_a_record_batch_outlives_the_payload_it_was_made_of() -> None:
    table = Batch(batch.encode(SAMPLE)).record_batch()

    assert events_of(table) == SAMPLE
