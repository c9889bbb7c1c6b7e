"""Batches: what goes in comes out, and nothing that a peer can send does any harm."""

import subprocess
import sys
import tracemalloc
from itertools import pairwise, repeat
from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core import batch
from quorate.core.batch import Batch
from quorate.core.columns import BEGINNING_BYTES, COMPRESSIONS, compression_of
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.event import Event
from quorate.core.header import (
    BASIC,
    HEADER_BYTES,
    PLAIN_BYTES_MAX,
    SIGNED,
    Header,
    count_of,
    events_in,
    header_of,
    is_signed,
)
from quorate.core.limits import BATCH_BYTES_MAX, BATCH_EVENTS_MAX

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=6)), max_size=3).map(tuple)
TIMES = st.integers(-(2**63), 2**63 - 1)
EVENTS = st.builds(
    Event,
    key=st.none() | st.binary(max_size=12),
    value=st.binary(max_size=40),
    headers=st.just(()) | HEADERS,
    timestamp_us=st.just(1_700_000_000_000_000) | TIMES,
    urgent=st.booleans(),
)
BATCHES = st.lists(EVENTS, min_size=1, max_size=20)
CODECS = st.sampled_from(COMPRESSIONS)

SAMPLE = [
    Event(b"host-1", b"first", (("kind", b"alert"), ("größe", b"7")), 20, True),
    Event(None, b"", (), 10, False),
    Event(b"", b"third", (), 30, False),
]

# Where the fields of the header stand, and those of the beginning of the columns.
KIND_AT, COUNT_AT, HEADERS_AT, PLAIN_BYTES_AT = 1, 4, 8, 12
FLAGS_AT, COMPRESSION_AT, OLDEST_AT = 16, 17, 20
KEY_BYTES_AT, NAME_BYTES_AT, VALUES_OF_HEADERS_AT = 28, 32, 36
COLUMNS_AT = HEADER_BYTES + BEGINNING_BYTES


def with_u32(payload: bytes, at: int, number: int) -> bytes:
    forged = bytearray(payload)
    pack_into("<I", forged, at, number)
    return bytes(forged)


def use_all_of(payload: bytes) -> None:
    """Everything that a consumer may do with a payload that some peer sent."""
    found = Batch(payload)
    assert len(found.events()) == len(found.values()) == found.count
    table = found.record_batch()
    table.validate(full=True)
    assert table.num_rows == found.count


@given(BATCHES, CODECS)
def test_a_batch_gives_back_the_events_it_was_made_of(events: list[Event], codec: str) -> None:
    found = Batch(batch.encode(events, compression=codec))

    assert found.events() == events
    assert found.values() == [event.value for event in events]


@given(BATCHES, CODECS)
def test_a_checked_batch_tells_count_urgency_and_oldest_time(
    events: list[Event], codec: str
) -> None:
    payload = batch.encode(events, compression=codec)
    found = Batch(payload)

    assert count_of(payload) == found.count == len(events)
    assert found.urgent == any(event.urgent for event in events)
    oldest_us = min(event.timestamp_us for event in events)
    assert found.oldest_us == oldest_us


@given(EVENTS)
def test_encoding_one_event_writes_the_same_bytes_as_encoding_a_list_of_one(event: Event) -> None:
    one = batch.encode_one(event.key, event.value, event.headers, event.timestamp_us, event.urgent)

    assert one == batch.encode([event])
    assert Batch(one).events() == [event]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), TIMES, CODECS)
def test_encoding_values_writes_the_same_bytes_as_encoding_events(
    values: list[bytes], timestamp_us: int, codec: str
) -> None:
    events = [Event(None, value, (), timestamp_us) for value in values]

    payload = batch.encode_values(values, timestamp_us, compression=codec)

    assert payload == batch.encode(events, compression=codec)
    assert Batch(payload).events() == events


def gathered(events: list[Event]) -> batch.Gathering:
    found = batch.Gathering()
    for event in events:
        found.add(event.value, event.timestamp_us, event.key, event.headers)
    return found


@given(BATCHES, CODECS)
def test_gathering_events_writes_the_same_bytes_as_encoding_them(
    events: list[Event], codec: str
) -> None:
    events = [Event(each.key, each.value, each.headers, each.timestamp_us) for each in events]

    payload = gathered(events).encode(codec)

    assert payload == batch.encode(events, compression=codec)
    assert Batch(payload).events() == events


def test_events_that_have_a_value_and_a_time_alone_may_be_put_among_others() -> None:
    events = [
        Event(b"key", b"1", (), 1),
        Event(None, b"2", (), 2),
        Event(None, b"3", (("h", b""),)),
    ]
    gathering = batch.Gathering()

    gathering.add(b"1", 1, b"key", ())
    gathering.values.append(b"2")
    gathering.times.append(2)
    gathering.add(b"3", 0, None, (("h", b""),))

    assert Batch(gathering.encode("none")).events() == events


def test_a_single_event_costs_48_bytes_more_than_its_value() -> None:
    assert len(batch.encode_one(None, b"x" * 200, (), 1, False)) == 248


def test_a_batch_larger_than_one_window_of_the_check_is_read_whole() -> None:
    values = [b"%d" % number for number in range(3 * 4096 + 5)]

    assert Batch(batch.encode_values(values, 1)).values() == values


@given(st.integers(1, 200), st.integers(0, 20), st.booleans(), st.booleans(), st.booleans())
def test_values_of_one_length_come_out_as_they_went_in(
    count: int, size: int, is_urgent: bool, are_times_equal: bool, is_view: bool
) -> None:
    values = [bytes([number]) * size for number in range(count)]
    times = [7] * count if are_times_equal else range(count)
    events = [Event(None, *each, is_urgent) for each in zip(values, repeat(()), times)]
    payload = batch.encode(events)
    found = Batch(memoryview(payload) if is_view else payload)
    assert found.events() == events
    assert found.record_batch().num_rows == count
    assert found.values() == values


@given(st.integers(0, 10), st.integers(0, 60))
@pytest.mark.parametrize("times", [[7] * 10, list(range(10))], ids=["one time", "times"])
def test_values_of_one_length_hide_no_offset_that_is_wrong(
    times: list[int], number: int, offset: int
) -> None:
    """Ten values of six bytes: whatever one of their offsets says, all is checked."""
    right = batch.encode([Event(None, b"sixsix", (), time, False) for time in times])
    at = len(right) - 60 - 44
    forged = with_u32(right, at + 4 * number, offset)
    offsets = [6 * at for at in range(11)]
    offsets[number] = offset
    if offsets == sorted(offsets) and (offsets[0], offsets[-1]) == (0, 60):
        assert [len(value) for value in Batch(forged).values()] == [
            end - start for start, end in pairwise(offsets)
        ]
    else:
        with pytest.raises(RemoteProtocolError, match="value offsets are not in order"):
            Batch(forged)


def test_offsets_that_go_back_are_found_in_every_window() -> None:
    payload = batch.encode_values([b"x"] * (2 * 4096 + 2), 1)
    for event in (1, 4095, 4096, 4097, 8192, 8193):
        forged = with_u32(payload, COLUMNS_AT + 4 * event, event + 2)
        with pytest.raises(RemoteProtocolError, match="value offsets are not in order"):
            Batch(forged)


@pytest.mark.parametrize(
    ("column", "at", "entries", "end"),
    [
        ("key", 64, 4, len(b"host-1")),
        ("value", 80, 4, len(b"firstthird")),
        ("headers", 96, 4, 2),
        ("header name", 112, 3, len("kindgröße".encode())),
        ("header value", 124, 3, len(b"alert7")),
    ],
)
def test_offsets_must_start_at_zero_and_end_where_the_data_ends(
    column: str, at: int, entries: int, end: int
) -> None:
    payload = batch.encode(SAMPLE)
    first, last = at, at + 4 * entries - 4

    assert payload[first : first + 4] == bytes(4)
    assert payload[last : last + 4] == end.to_bytes(4, "little")
    for forged in (with_u32(payload, first, 2**32 - 1), with_u32(payload, last, end + 1)):
        with pytest.raises(RemoteProtocolError, match=f"whose {column} offsets are not in order"):
            Batch(forged)


def test_compression_makes_a_batch_smaller_and_never_larger() -> None:
    plain = batch.encode_values([b"x" * 100] * 100, 1)
    for codec in ("zstd", "lz4"):
        assert len(batch.encode_values([b"x" * 100] * 100, 1, compression=codec)) < len(plain) / 5
        assert batch.encode_values([b"x"], 1, compression=codec) == batch.encode_values([b"x"], 1)


@pytest.mark.parametrize("codec", COMPRESSIONS)
def test_the_header_alone_tells_the_compression(codec: str) -> None:
    payload = batch.encode_values([b"x" * 1000], 1, compression=codec)

    assert compression_of(payload) == codec
    with pytest.raises(RemoteProtocolError, match="compression 3; allowed are 0 to 2"):
        compression_of(payload[:COMPRESSION_AT] + b"\x03" + payload[COMPRESSION_AT + 1 :])


def test_neither_events_nor_headers_need_arrow() -> None:
    program = (
        "import sys\n"
        "from quorate.core import batch, header\n"
        "payload = batch.encode_one(b'k', b'v', (('a', b'b'),), 1, True)\n"
        "assert batch.Batch(payload).events()[0].value == b'v'\n"
        "assert header.count_of(payload) == 1\n"
        "sys.exit('pyarrow' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": _source()})


def _source() -> str:
    return batch.__file__.removesuffix("/quorate/core/batch.py")


@given(BATCHES, CODECS)
def test_no_part_of_a_batch_passes_for_a_batch(events: list[Event], codec: str) -> None:
    payload = batch.encode(events, compression=codec)
    for length in range(len(payload)):
        with pytest.raises(RemoteProtocolError):
            Batch(payload[:length])
    with pytest.raises(RemoteProtocolError):
        Batch(payload + b"\x00")


@given(BATCHES, CODECS, st.data())
def test_altered_bytes_make_a_valid_batch_or_a_protocol_error(
    events: list[Event], codec: str, data: st.DataObject
) -> None:
    altered = bytearray(batch.encode(events, compression=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    try:
        use_all_of(bytes(altered))
    except RemoteProtocolError as error:
        assert str(error)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_makes_a_valid_batch_or_a_protocol_error(garbage: bytes, versioned: bool) -> None:
    payload = Header.of(1, 0, 4).encode() + garbage if versioned else garbage
    try:
        use_all_of(payload)
    except RemoteProtocolError as error:
        assert str(error)
    for read in (count_of, compression_of):
        try:
            read(payload)
        except RemoteProtocolError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("at", "number"),
    [
        (COUNT_AT, 0),
        (COUNT_AT, 4),
        (COUNT_AT, BATCH_EVENTS_MAX),
        (COUNT_AT, BATCH_EVENTS_MAX + 1),
        (COUNT_AT, 2**32 - 1),
        (KEY_BYTES_AT, 2**32 - 1),
        (PLAIN_BYTES_AT, 2**32 - 1),
        (PLAIN_BYTES_AT, PLAIN_BYTES_MAX),
        (HEADERS_AT, 2**32 - 1),
        (NAME_BYTES_AT, 2**32 - 1),
        (VALUES_OF_HEADERS_AT, 2**32 - 1),
    ],
)
@pytest.mark.parametrize("codec", COMPRESSIONS)
def test_forged_counts_and_lengths_are_refused_before_anything_is_allocated(
    at: int, number: int, codec: str
) -> None:
    forged = with_u32(batch.encode(SAMPLE * 20, compression=codec), at, number)
    with pytest.raises(RemoteProtocolError):
        # The first refusal imports what it needs; the second is measured.
        Batch(forged)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            Batch(forged)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_compressed_batch_may_not_grow_beyond_its_bound() -> None:
    payload = batch.encode_values([b"x" * 1000] * 10, 1, compression="zstd")
    forged = with_u32(payload, PLAIN_BYTES_AT, PLAIN_BYTES_MAX + 1)

    with pytest.raises(RemoteProtocolError, match=f"allowed are 40 to {PLAIN_BYTES_MAX}"):
        Batch(forged)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("difference", [-1, 1, 100_000])
def test_a_body_that_decompresses_to_another_length_is_refused(codec: str, difference: int) -> None:
    payload = batch.encode_values([b"x" * 1000] * 10, 1, compression=codec)
    forged = with_u32(payload, PLAIN_BYTES_AT, header_of(payload).plain_bytes + difference)

    with pytest.raises(RemoteProtocolError, match="decompress|columns take"):
        Batch(forged)


def test_a_batch_may_grow_when_it_is_decompressed() -> None:
    values = [b"x" * 1_000_000] * 12

    payload = batch.encode_values(values, 1, compression="zstd")

    assert len(payload) < 100_000
    assert Batch(payload).values() == values


def _flip(payload: bytes, at: int, bits: int) -> bytes:
    return payload[:at] + bytes([payload[at] ^ bits]) + payload[at + 1 :]


def test_a_header_that_says_other_than_the_columns_is_refused() -> None:
    payload = batch.encode(SAMPLE)
    older = _flip(payload, OLDEST_AT, 1)
    calm = _flip(payload, FLAGS_AT, 1)
    unknown = _flip(payload, FLAGS_AT, 0x40)
    squeezed = _flip(payload, COMPRESSION_AT, 3)
    for forged, why in (
        (older, "oldest"),
        (calm, "urgent"),
        (unknown, "unknown flags"),
        (squeezed, "compression 3"),
        (_flip(payload, FLAGS_AT + 2, 1), "reserved bytes 1"),
    ):
        with pytest.raises(RemoteProtocolError, match=why):
            Batch(forged)


# The header, with its payload or without


@given(st.integers(1, BATCH_EVENTS_MAX), st.integers(0, 2**32 - 1), st.sampled_from([0, 1]))
def test_a_header_is_read_as_it_was_written(events: int, headers: int, kind: int) -> None:
    header = Header.of(events, headers, 4 * events, kind)
    written = header.encode()

    assert len(written) == HEADER_BYTES
    for data in (written, memoryview(written), written + b"digest"):
        assert header_of(data) == header
        assert count_of(data) == events_in(data) == events
        assert is_signed(data) is header.is_signed is (kind == SIGNED)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (Header(1, BASIC, 0, 1, 0, 8), "version 1, .*allowed are version 2"),
        (Header(3, BASIC, 0, 1, 0, 8), "version 3, .*allowed are version 2"),
        (Header(2, 2, 0, 1, 0, 8), r"kind 2 .*allowed are .* kinds 0 \(basic\) and 1 \(signed\)"),
        (Header(2, BASIC, 1, 1, 0, 8), "reserved bytes 1; allowed are .* zero"),
        (Header.of(0, 0, 8), "a batch of 0 events; allowed are 1 to 1000000"),
        (
            Header.of(BATCH_EVENTS_MAX + 1, 0, PLAIN_BYTES_MAX),
            "of 1000001 events; allowed are 1 to",
        ),
        (Header.of(2**32 - 1, 0, 2**32 - 1, SIGNED), "of 4294967295 events; allowed are 1 to"),
        (Header.of(3, 0, 11), "3 events in 11 bytes; allowed are 12 to"),
        (Header.of(1, 0, PLAIN_BYTES_MAX + 1), f"bytes; allowed are 4 to {PLAIN_BYTES_MAX}"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused_with_a_payload_and_without(
    header: Header, why: str
) -> None:
    for read in (header_of, count_of, Batch, compression_of):
        with pytest.raises(RemoteProtocolError, match=why):
            read(header.encode() + bytes(400))


def test_what_is_shorter_than_a_header_is_refused() -> None:
    payload = batch.encode(SAMPLE)
    for length in range(HEADER_BYTES):
        assert not is_signed(payload[:length])
        for read in (header_of, count_of, Batch):
            with pytest.raises(RemoteProtocolError, match="where its header alone takes 16"):
                read(payload[:length])


def signed_form(payload: bytes, root: bytes = bytes(32)) -> bytes:
    """The same events behind a signature block, and a salt if there is a root; nobody signed it."""
    header = header_of(payload)._replace(kind=SIGNED).encode()
    salt = b"s" * 32 if any(root) else b""
    return header + bytes(40) + root + bytes(200) + salt + payload[HEADER_BYTES:]


@given(BATCHES, CODECS, st.sampled_from([bytes(32), b"r" * 32]))
def test_a_signed_batch_has_the_events_of_the_basic_one(
    events: list[Event], codec: str, root: bytes
) -> None:
    basic = batch.encode(events, compression=codec)
    payload = signed_form(basic, root)

    assert len(payload) == len(basic) + 272 + 32 * any(root)
    assert Batch(payload).events() == Batch(memoryview(payload)).events() == events
    assert Batch(payload).urgent == Batch(basic).urgent
    assert Batch(payload).oldest_us == Batch(basic).oldest_us
    assert compression_of(payload) == compression_of(basic)
    use_all_of(payload)
    for length in range(len(payload)):
        with pytest.raises(RemoteProtocolError):
            Batch(payload[:length])


@given(BATCHES, CODECS, st.booleans(), st.data())
def test_a_header_with_another_count_or_size_than_the_columns_is_malformed(
    events: list[Event], codec: str, is_signed: bool, data: st.DataObject
) -> None:
    payload = batch.encode(events, compression=codec)
    header = header_of(payload)
    counts = st.integers(1, 40).filter(lambda count: count != header.events)
    bytes_of = st.integers(160, 4000).filter(lambda size: size != header.plain_bytes)
    wrong = data.draw(
        st.builds(lambda count: header._replace(events=count), counts)
        | st.builds(lambda count: header._replace(headers=header.headers + count), counts)
        | st.builds(lambda size: header._replace(plain_bytes=size), bytes_of)
    )
    forged = wrong.encode() + payload[HEADER_BYTES:]

    with pytest.raises(RemoteProtocolError):
        Batch(signed_form(forged) if is_signed else forged)


@pytest.mark.parametrize("codec", COMPRESSIONS)
def test_values_of_one_length_hide_no_count_that_is_wrong(codec: str) -> None:
    payload = batch.encode_values([b"\0" * 40] * 40, 1, compression=codec)
    header = header_of(payload)
    for count in (*range(1, 40), *range(41, 300)):
        with pytest.raises(RemoteProtocolError):
            Batch(header._replace(events=count).encode() + payload[HEADER_BYTES:])


def test_data_of_columns_that_are_not_there_is_refused() -> None:
    payload = batch.encode_values([b"0123456789"], 1)
    with pytest.raises(RemoteProtocolError, match="key data and no keys"):
        Batch(with_u32(payload, KEY_BYTES_AT, 4))
    for at in (HEADERS_AT, NAME_BYTES_AT, VALUES_OF_HEADERS_AT):
        with pytest.raises(RemoteProtocolError, match="header data and no headers"):
            Batch(with_u32(payload, at, 4))


def test_flags_of_events_that_do_not_exist_are_refused() -> None:
    events = [Event(None, b"", (), 1, True), Event(None, b"", (), 1, False)]
    payload = batch.encode(events)

    assert payload[-1] == 0b01
    with pytest.raises(RemoteProtocolError, match="events that it does not have"):
        Batch(payload[:-1] + b"\x05")
    with pytest.raises(RemoteProtocolError, match="without an urgent event"):
        Batch(payload[:-1] + b"\x00")


def test_a_header_name_that_is_not_utf8_is_refused_even_if_all_names_together_are() -> None:
    split = batch.encode([Event(None, b"", (("aa", b""), ("aa", b"")), 1)])

    for names in (b"aa\xff\xfe", b"a\xc3\xb6a"):
        with pytest.raises(RemoteProtocolError, match="not UTF-8"):
            Batch(split.replace(b"aaaa", names))


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Event(None, "text", (), 1), "event 1: the value is str; allowed is bytes"),  # type: ignore[arg-type]
        (Event("text", b"", (), 1), "event 1: the key is str; allowed is bytes or None"),  # type: ignore[arg-type]
        (Event(None, b"", (), 2**63), "event 1: the time .* is not a 64-bit number"),
        (Event(None, b"", (), 1.5), "event 1: the time 1.5 is not"),  # type: ignore[arg-type]
        (Event(None, b"", (("a", "b"),), 1), "event 1: headers are"),  # type: ignore[arg-type]
        (Event(None, b"", ((b"a", b"b"),), 1), "event 1: headers are"),  # type: ignore[arg-type]
        (Event(None, b"", (("\ud800", b"b"),), 1), "event 1: headers are"),
        (Event(None, b"", ("ab",), 1), "event 1: headers are"),  # type: ignore[arg-type]
        (b"value", "event 1 is bytes; allowed is Event"),
    ],
)
def test_an_event_that_cannot_travel_is_named(event: Event, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        batch.encode([SAMPLE[0], event])
    if isinstance(event, Event):
        with pytest.raises(LocalProtocolError, match=why):
            gathered([SAMPLE[0], event]).encode("none")


def test_the_fast_encoders_refuse_what_the_slow_one_refuses() -> None:
    with pytest.raises(LocalProtocolError, match="event 0: the value is str"):
        batch.encode_one(None, "text", (), 1, False)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="event 0: the key is int"):
        batch.encode_one(7, b"", (), 1, False)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="event 0: the time"):
        batch.encode_one(None, b"", (), 2**63, False)
    with pytest.raises(LocalProtocolError, match="event 1: the value is NoneType"):
        batch.encode_values([b"", None], 1)  # type: ignore[list-item]


def test_a_value_whose_length_is_not_its_number_of_bytes_is_refused() -> None:
    wide = memoryview(bytes(8)).cast("i")
    with pytest.raises(LocalProtocolError, match="the value is memoryview"):
        batch.encode([Event(None, wide, (), 1)])  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="the value is memoryview"):
        batch.encode_values([wide], 1)  # type: ignore[list-item]


def test_batches_out_of_bounds_are_refused_where_they_are_made() -> None:
    with pytest.raises(LocalProtocolError, match="a batch of 0 events"):
        batch.encode([])
    with pytest.raises(LocalProtocolError, match="a batch of 0 events"):
        batch.encode_values([], 1)
    with pytest.raises(LocalProtocolError, match="a batch of 1000001 events"):
        batch.encode_values([b""] * (BATCH_EVENTS_MAX + 1), 1)
    with pytest.raises(LocalProtocolError, match="allowed are up to 8388608"):
        batch.encode_one(None, bytes(BATCH_BYTES_MAX), (), 1, False)
    with pytest.raises(LocalProtocolError, match="allowed are up to 8388608"):
        batch.encode_values([bytes(BATCH_BYTES_MAX)], 1)
    with pytest.raises(LocalProtocolError, match="compression 'gzip' is unknown"):
        batch.encode(SAMPLE, compression="gzip")


def test_the_largest_batch_is_accepted_and_one_byte_more_is_not() -> None:
    largest = batch.encode_one(None, bytes(BATCH_BYTES_MAX - 48), (), 1, False)

    assert len(largest) == BATCH_BYTES_MAX
    assert Batch(largest).count == 1
    with pytest.raises(RemoteProtocolError, match="allowed are 40 to 8388608"):
        Batch(with_u32(largest + b"x", PLAIN_BYTES_AT, BATCH_BYTES_MAX - 39))
    with pytest.raises(LocalProtocolError):
        batch.encode_one(None, bytes(BATCH_BYTES_MAX - 47), (), 1, False)
