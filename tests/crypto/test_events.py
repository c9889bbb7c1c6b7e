"""Events as leaves: one way to write each, a salt of its own, and a root that covers them all."""

from hypothesis import assume, example, given
from hypothesis import strategies as st

from quorate.core.event import Event
from quorate.crypto.events import event_bytes, event_leaf, event_leaves, event_salt, events_root
from quorate.crypto.merkle import Tree

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
