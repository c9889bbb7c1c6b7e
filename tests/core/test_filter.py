"""Filters: what a subscription gets, event by event and batch by batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core import batch
from quorate.core.errors import LocalProtocolError
from quorate.core.event import Event
from quorate.core.filter import (
    FILTER_EVENTS_MAX,
    FILTER_HEADERS_MAX,
    KEY_PREFIX_BYTES_MAX,
    Filter,
)
from quorate.core.header import Header

# A small alphabet, so that filters and events meet.
NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([b"", b"1", b"2"])
KEYS = st.text("xy", max_size=3).map(str.encode)
EVENTS = st.builds(
    Event,
    key=st.none() | KEYS,
    value=st.binary(max_size=5),
    headers=st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple),
    timestamp_us=st.integers(0, 3),
    urgent=st.booleans(),
)
FILTERS = st.builds(Filter, KEYS, st.dictionaries(NAMES, VALUES, max_size=2))


def wants(wanted: Filter, event: Event) -> bool:
    """The definition, spelled out."""
    prefix = wanted.key_prefix
    if prefix and (event.key is None or event.key[: len(prefix)] != prefix):
        return False
    for name, value in wanted.headers.items():
        if not [1 for has in event.headers if has[0] == name and has[1] == value]:
            return False
    return True


@given(FILTERS, st.lists(EVENTS, min_size=1, max_size=6))
def test_events_and_batches_pass_as_the_definition_says(
    wanted: Filter, events: list[Event]
) -> None:
    payload = batch.encode(events)
    expected = [event for event in events if wants(wanted, event)]

    assert [event for event in events if wanted.matches(event)] == expected
    assert wanted.passes(payload) == bool(expected)


def test_the_empty_filter_wants_everything() -> None:
    events = [Event(None, b"x", (), 1), Event(b"k", b"y", (("a", b"1"),), 1)]

    assert Filter().is_empty
    assert all(map(Filter().matches, events))
    assert not Filter(b"k").is_empty
    assert not Filter(b"", {"a": b"1"}).is_empty


def test_an_event_without_a_key_has_no_prefix() -> None:
    assert not Filter(b"k").matches(Event(None, b"", (), 1))
    assert Filter(b"").matches(Event(None, b"", (), 1))


def test_a_repeated_header_matches_with_any_of_its_values() -> None:
    event = Event(None, b"", (("a", b"1"), ("a", b"2")), 1)

    assert Filter(b"", {"a": b"2"}).matches(event)
    assert not Filter(b"", {"a": b"3"}).matches(event)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage",
        batch.encode_values([b"x"], 1)[:-1],
        batch.encode_values([b"x" * 1000], 1, compression="zstd"),
        batch.encode_values([b""] * (FILTER_EVENTS_MAX + 1), 1),
    ],
    ids=["empty", "garbage", "truncated", "compressed", "long"],
)
def test_what_a_replica_cannot_read_at_little_cost_is_left_to_the_subscriber(
    payload: bytes,
) -> None:
    assert Filter(b"k").passes(payload)


@given(FILTERS, st.binary(max_size=80), st.booleans())
def test_no_payload_makes_a_filter_fail(wanted: Filter, garbage: bytes, versioned: bool) -> None:
    payload = Header.of(1, 0, 8).encode() + garbage if versioned else garbage

    assert wanted.passes(payload) in (True, False)


def test_the_longest_batch_that_is_read_can_be_filtered_out() -> None:
    assert not Filter(b"k").passes(batch.encode_values([b""] * FILTER_EVENTS_MAX, 1))


def test_a_filter_is_bounded() -> None:
    Filter(bytes(KEY_PREFIX_BYTES_MAX), {str(n): b"" for n in range(FILTER_HEADERS_MAX)})
    with pytest.raises(LocalProtocolError, match="allowed are up to 4096 bytes and 64 headers"):
        Filter(bytes(KEY_PREFIX_BYTES_MAX + 1))
    with pytest.raises(LocalProtocolError, match="allowed are up to 4096 bytes and 64 headers"):
        Filter(b"", {str(n): b"" for n in range(FILTER_HEADERS_MAX + 1)})
