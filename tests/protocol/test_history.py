"""Histories: what a replica ECHOes, what it asks for, and what a destination makes of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import Lane, node_of, topic_id
from quorate.core.limits import WINDOW_BATCHES
from quorate.core.messages import Echo, Fetch, Forward, Link, Publish, Supply, Vouch
from quorate.crypto.digests import digest
from quorate.protocol.broadcast.chain import source_authenticators
from quorate.protocol.broadcast.history import History
from stage import D1, D2, R1, R2, R3, R4, S1, Stage, event, pairwise_macs, topic

ALPHA = 4
TABLE: dict[str, object] = {"broadcast": "authenticated", "history_every": ALPHA}
T = topic_id("t")
EVERYBODY = (R1, R2, R3, R4)


def batches(stage: Stage, replica: int, first: int, *values: bytes) -> None:
    payloads = [event(value) for value in values]
    stage.say(S1, replica, Publish(T, Lane.EVENTS, False, first, 1, payloads))


def history(stage: Stage, replica: int, first: int, *values: bytes, number: int = 1) -> None:
    named = History(first, tuple(digest(event(value)) for value in values))
    stage.say(S1, replica, Publish(T, Lane.HISTORIES, False, number, 1, [named.encode()]))


def echoes(stage: Stage, replica: int) -> int:
    return len({e.first for e in stage.messages(Echo, sender=replica)})


@given(
    st.integers(0, 2**64 - 21),
    st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=20),
)
def test_a_history_is_read_as_it_was_written(first: int, digests: list[bytes]) -> None:
    written = History(first, tuple(digests))

    assert History.decode(written.encode()) == written
    assert written.end == first + len(digests)


@given(st.binary(max_size=200))
def test_anything_else_is_refused_with_a_sentence(garbage: bytes) -> None:
    try:
        decoded = History.decode(garbage)
    except RemoteProtocolError as error:
        assert "a history" in str(error)
    else:
        assert decoded.encode() == garbage


def test_an_empty_or_an_endless_history_is_refused() -> None:
    for count in (0, WINDOW_BATCHES + 1):
        with pytest.raises(RemoteProtocolError, match=f"a history of {count} batches"):
            History.decode(History(1, (bytes(32),) * count).encode())


@pytest.mark.parametrize("first", [2**64 - 2, 2**64 - 1])
def test_a_history_that_names_more_numbers_than_there_are_is_refused(first: int) -> None:
    """Nobody could ask for what it names."""
    stage = Stage(topic(TABLE))
    for replica in EVERYBODY:
        history(stage, replica, first, b"a", b"b")
    stage.pass_time(1)

    assert set(stage.reported("malformed")) == {S1}
    assert stage.messages(Fetch, receiver=S1) == []


def test_a_replica_echoes_a_history_that_it_can_follow() -> None:
    stage = Stage(topic(TABLE))
    batches(stage, R1, 1, b"a", b"b")
    history(stage, R1, 1, b"a", b"b")
    stage.settle()

    assert echoes(stage, R1) == 1


def test_a_replica_does_not_echo_what_contradicts_what_it_accepted() -> None:
    stage = Stage(topic(TABLE))
    batches(stage, R1, 1, b"a", b"b")
    history(stage, R1, 1, b"a", b"forged")
    stage.settle()
    stage.pass_time(2)

    assert echoes(stage, R1) == 0
    assert stage.reported("equivocation", by=R1)[0] == S1


def test_a_history_never_overrules_what_a_destination_delivered() -> None:
    """What was delivered, f + 1 correct replicas accepted, and the rest is no ECHO quorum."""
    stage = Stage(topic(TABLE))
    for replica in (R1, R2, R3):
        batches(stage, replica, 1, b"a")
    stage.settle()
    assert stage.values(D1) == [b"a"]

    for replica in EVERYBODY:
        history(stage, replica, 1, b"forged")
    stage.pass_time(3)

    assert stage.values(D1) == [b"a"]
    assert stage.messages(Forward) == [m for m in stage.messages(Forward) if m.lane is Lane.EVENTS]


def test_a_replica_that_lacks_batches_waits_and_then_asks_their_source() -> None:
    stage = Stage(topic(TABLE))
    batches(stage, R1, 1, b"a")
    history(stage, R1, 1, b"a", b"b", b"c")
    stage.settle()
    assert stage.messages(Fetch, sender=R1, receiver=S1) == []

    stage.pass_time(0.3)

    fetches = stage.messages(Fetch, sender=R1, receiver=S1)
    assert fetches[0] == Fetch(*stage.stream(), payload=True, sequences=[2, 3])
    assert echoes(stage, R1) == 0


def test_it_echoes_as_soon_as_the_source_supplied_the_rest() -> None:
    stage = Stage(topic(TABLE))
    batches(stage, R1, 1, b"a")
    history(stage, R1, 1, b"a", b"b")
    stage.settle()

    stage.say(S1, R1, Supply(*stage.stream(), [2], [event(b"b")]))
    stage.settle()

    assert echoes(stage, R1) == 1
    assert 2 in [f.first for f in stage.messages(Forward, sender=R1, receiver=D1)]


@pytest.mark.parametrize(
    "payload",
    [b"", b"no header", event(b"b")[:4] + bytes(4) + event(b"b")[8:], b"\2\1" + event(b"b")[2:]],
    ids=["nothing", "no header", "no events", "signed"],
)
@pytest.mark.parametrize("broadcast", ["authenticated", "chain"])
def test_what_a_history_names_and_is_no_batch_is_not_taken(broadcast: str, payload: bytes) -> None:
    stage = Stage(topic({**TABLE, "broadcast": broadcast}))
    named = History(1, (digest(payload),)).encode()
    for replica in EVERYBODY:
        stage.say(S1, replica, Publish(T, Lane.HISTORIES, False, 1, 1, [named]))
    stage.pass_time(0.3)

    for replica in EVERYBODY:
        stage.say(S1, replica, Supply(*stage.stream(), [1], [payload]))
    stage.pass_time(1)

    assert stage.deliveries() == []
    assert stage.messages(Echo) == []
    assert set(stage.reported("bad-batch")) == {S1}


FAR = 2 * WINDOW_BATCHES


def supplied_far_ahead(table: dict[str, object]) -> Stage:
    """A history named a batch beyond the window, and the source supplied it."""
    stage = Stage(topic(table), destinations=(D1, D2))
    stage.destinations[D2].unsubscribe("t")
    for replica in EVERYBODY:
        history(stage, replica, FAR, b"one")
    stage.settle()
    for replica in EVERYBODY:
        stage.say(S1, replica, Supply(*stage.stream(), [FAR], [event(b"one")]))
    stage.pass_time(2)
    return stage


def test_what_a_history_named_far_ahead_nobody_delivers_with_another_content() -> None:
    stage = supplied_far_ahead(TABLE)
    assert stage.values(D1) == [b"one"]

    # When the source comes near with something else, and somebody else has subscribed
    stage.subscribe(D2)
    stage.settle()
    for replica in EVERYBODY:
        stage.say(S1, replica, Publish(T, Lane.EVENTS, False, FAR, FAR, [event(b"two")]))
    stage.pass_time(2)

    assert b"two" not in stage.values(D1) + stage.values(D2)


def test_what_a_history_named_far_ahead_no_chain_passes_on_with_another_content() -> None:
    stage = supplied_far_ahead({"broadcast": "chain", "history_every": ALPHA})
    second = event(b"two")

    for head in EVERYBODY:
        bare = Link(S1, T, False, FAR, FAR, head, [second], [])
        tags = source_authenticators(bare, [digest(second)], stage.topics[0], pairwise_macs(S1))
        stage.say(S1, head, structs.replace(bare, authenticators=tags))
    stage.pass_time(1)

    assert stage.messages(Link) == []


def test_payloads_that_nobody_asked_for_leave_nothing_behind() -> None:
    stage = Stage(topic(TABLE))
    for session in range(50):
        unasked = Supply(node_of(S1, session), T, Lane.EVENTS, [1], [event(b"x")])
        stage.say(D1, R1, unasked)
    stage.settle()

    histories = stage.brokers[R1].topics[T].histories
    assert histories is not None
    assert not histories._ledgers


@pytest.mark.parametrize(
    ("sender", "value"), [(S1, b"forged"), (R2, b"b"), (D1, b"b")], ids=["wrong", "replica", "sub"]
)
def test_it_takes_only_the_named_content_and_only_from_the_source(
    sender: int, value: bytes
) -> None:
    stage = Stage(topic(TABLE))
    history(stage, R1, 1, b"a", b"b")
    batches(stage, R1, 1, b"a")
    stage.settle()

    stage.say(sender, R1, Supply(*stage.stream(), [2], [event(value)]))
    stage.settle()

    assert echoes(stage, R1) == 0


def test_batches_that_come_by_themselves_complete_a_history_that_came_first() -> None:
    stage = Stage(topic(TABLE))
    history(stage, R1, 1, b"a", b"b")
    stage.settle()
    assert echoes(stage, R1) == 0

    batches(stage, R1, 1, b"a", b"b")
    stage.settle()

    assert echoes(stage, R1) == 1


def test_a_malformed_history_is_refused_and_its_publisher_named() -> None:
    stage = Stage(topic(TABLE))
    stage.say(S1, R1, Publish(T, Lane.HISTORIES, False, 1, 1, [b"garbage"]))
    stage.settle()

    assert stage.reported("malformed", by=R1) == [S1]
    assert echoes(stage, R1) == 0


def test_a_destination_delivers_again_nothing_that_a_history_names() -> None:
    stage = Stage(topic(TABLE))
    stage.publish(S1, *[b"%d" % number for number in range(3 * ALPHA)])
    stage.pass_time(2)

    assert stage.values(D1) == [b"%d" % number for number in range(3 * ALPHA)]
    assert not any(delivery.repaired for delivery in stage.deliveries())


def test_a_destination_that_heard_nothing_at_all_learns_everything_from_a_history() -> None:
    stage = Stage(topic(TABLE))
    stage.alter(lambda m: m if m.lane is Lane.HISTORIES else None, (Forward, Vouch))

    stage.publish(S1, *[b"%d" % number for number in range(ALPHA)])
    stage.pass_time(2)

    assert sorted(stage.values(D1)) == [b"%d" % number for number in range(ALPHA)]
    assert all(delivery.repaired for delivery in stage.deliveries())


def test_repair_costs_what_was_lost_and_nothing_otherwise() -> None:
    stage = Stage(topic(TABLE))
    stage.alter(lambda m: None if m.first == 2 else m, (Forward, Vouch), receiver=D1)
    for value in (b"a", b"b", b"c", b"d"):
        stage.publish(S1, value)
        stage.settle()
    stage.pass_time(2)

    assert sorted(stage.values(D1)) == [b"a", b"b", b"c", b"d"]
    supplied = [s for m in stage.messages(Supply, receiver=D1) for s in m.sequences]
    assert set(supplied) == {2}
