"""Events as leaves: one way to write each, a salt of its own, and a root that covers them all."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from quorate.core.batch import encode
from quorate.core.errors import RemoteProtocolError
from quorate.core.event import Event
from quorate.core.header import HEADER_BYTES, NO_ROOT, SALT_BYTES, header_of
from quorate.crypto.events import (
    check_events,
    event_bytes,
    event_leaf,
    event_leaves,
    event_salt,
    events_root,
)
from quorate.crypto.merkle import Tree
from quorate.crypto.sids import unsealed

SALT = bytes(range(32))
SALTS = st.binary(min_size=32, max_size=32)
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=4)), max_size=3).map(tuple)
EVENTS = st.builds(
    Event,
    key=st.none() | st.binary(max_size=6),
    value=st.binary(max_size=6),
    headers=HEADERS,
    timestamp_us=st.integers(-(2**63), 2**63 - 1),
    urgent=st.booleans(),
)
BATCHES = st.lists(EVENTS, min_size=1, max_size=9)


@given(EVENTS, EVENTS)
@example(Event(b"ab", b"c", (), 0), Event(b"a", b"bc", (), 0))
@example(Event(None, b"", (), 0), Event(b"", b"", (), 0))
@example(Event(None, b"", (("a", b"b"),), 0), Event(None, b"", (("ab", b""),), 0))
@example(Event(b"", b"k", (), 0), Event(None, b"k", (), 0))
def test_no_two_events_are_written_alike(event: Event, other: Event) -> None:
    assert (event_bytes(event) == event_bytes(other)) is (event == other)


@given(SALTS, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_every_event_of_a_batch_has_a_salt_of_its_own(salt: bytes, one: int, other: int) -> None:
    assert (event_salt(salt, one) == event_salt(salt, other)) is (one == other)
    assert event_salt(salt, one) != salt


@given(EVENTS, SALTS, SALTS)
def test_a_leaf_tells_an_event_only_to_who_has_its_salt(
    event: Event, salt: bytes, other: bytes
) -> None:
    assume(salt != other)
    assert event_leaf(salt, event) != event_leaf(other, event)


@given(BATCHES, BATCHES)
def test_a_root_is_that_of_one_batch(events: list[Event], others: list[Event]) -> None:
    assert (events_root(SALT, events) == events_root(SALT, others)) is (events == others)


@given(BATCHES, st.data())
def test_an_event_that_is_changed_moved_or_left_out_changes_the_root(
    events: list[Event], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(events) - 1))
    without = events[:at] + events[at + 1 :]
    if without:
        assert events_root(SALT, without) != events_root(SALT, events)
    assert events_root(SALT, [*events, events[at]]) != events_root(SALT, events)
    turned = events[::-1]
    assert (events_root(SALT, turned) == events_root(SALT, events)) is (turned == events)


@given(BATCHES)
def test_the_root_is_that_of_the_tree_over_the_leaves(events: list[Event]) -> None:
    tree = Tree()
    for leaf in event_leaves(SALT, events):
        tree.append(leaf)
    assert events_root(SALT, events) == tree.root()
    assert event_leaves(SALT, events)[0] == event_leaf(event_salt(SALT, 0), events[0])


def seal_unsigned(events: list[Event], root: bytes) -> bytes:
    """Who signed a seal does not matter here."""
    basic, salt = encode(events), SALT if any(root) else b""
    seal = unsealed(basic, salt, time_us=0, root=root, public_key=bytes(32))
    return seal._replace(signature=bytes(64)).encode() + salt + basic[HEADER_BYTES:]


@given(BATCHES)
def test_a_batch_with_its_own_tree_or_none_is_right(events: list[Event]) -> None:
    roots = NO_ROOT, events_root(SALT, events)
    for payload in (encode(events), *(seal_unsigned(events, root) for root in roots)):
        assert check_events(payload) == len(events)


@given(BATCHES, BATCHES)
def test_a_batch_with_the_tree_of_another_is_found(
    events: list[Event], others: list[Event]
) -> None:
    assume(events != others)
    with pytest.raises(RemoteProtocolError, match="tree of events is not the one in its seal"):
        check_events(seal_unsigned(events, events_root(SALT, others)))


@given(BATCHES, st.sampled_from([b"", NO_ROOT, b"r" * 32]), st.sampled_from([-1, 1, 7]))
def test_a_batch_that_is_malformed_is_found_whether_or_not_it_is_signed(
    events: list[Event], root: bytes, more: int
) -> None:
    payload = seal_unsigned(events, root) if root else encode(events)
    header = header_of(payload)
    assume(header.events + more > 0)
    forged = header._replace(events=header.events + more).encode() + payload[HEADER_BYTES:]
    for wrong in (forged, payload[:-1], payload + b"x", payload[: -SALT_BYTES - 1]):
        with pytest.raises(RemoteProtocolError):
            check_events(wrong)
