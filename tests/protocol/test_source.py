"""The publishing end: receipts, retransmission, bounds."""

import pytest

import commands
from quorate.core.errors import LocalProtocolError
from quorate.core.ids import Lane, topic_id
from quorate.core.limits import WINDOWS
from quorate.core.messages import Ack, Fetch, Forward, Publish, Request, Status, Supply
from quorate.core.ordering import Ordered
from quorate.protocol.broadcast.scope import SUPPLY_BYTES_MAX
from quorate.protocol.machine import Receipt, Recorded, Room
from quorate.protocol.outgoing import (
    IN_FLIGHT_BYTES,
    RETRY_AFTER_US,
    RETRY_AFTER_US_MAX,
    SILENT_AFTER_US,
    WAITING_AFTER_US,
)
from quorate.protocol.source import Source
from quorate.protocol.topic import topics_of
from stage import R1, R2, R3, R4, S1, Stage, event, pairwise_macs, topic

AUTHENTICATED: dict[str, object] = {"broadcast": "authenticated", "history_every": 0}
CONTRACTS: dict[str, dict[str, object]] = {
    "first-answer": {"protection": "crash"},
    "vote": {"broadcast": "vote"},
    "authenticated": AUTHENTICATED,
    "reliable": {"broadcast": "reliable"},
}
T = topic_id("t")


def ack(through: int, status: Status = Status.OK) -> Ack:
    return Ack(T, Lane.EVENTS, status, through)


def runs_to(stage: Stage, replica: int) -> list[tuple[int, int]]:
    """First number and length of each run that went to this replica."""
    sent = stage.messages(Publish, sender=S1, receiver=replica)
    return [(run.first, len(run.payloads)) for run in sent]


def quiet_stage(table: dict[str, object] = AUTHENTICATED, *, f: int = 2) -> Stage:
    """A stage on which the test alone acknowledges."""
    stage = Stage(topic(table, f=f))
    stage.drop(Ack)
    return stage


# Receipts


@pytest.mark.parametrize(
    ("protocol", "needed"),
    [("first-answer", 1), ("vote", 3), ("authenticated", 5), ("reliable", 3)],
)
def test_a_receipt_is_due_when_as_many_replicas_have_it_as_the_contract_says(
    protocol: str, needed: int
) -> None:
    stage = quiet_stage(CONTRACTS[protocol])
    stage.publish(S1, b"a", b"b")
    stage.settle()

    for replica in range(needed - 1):
        stage.say(replica, S1, ack(2))
    stage.settle()
    assert stage.receipted() == []

    stage.say(needed - 1, S1, ack(1))
    stage.settle()
    (receipt,) = stage.outcomes_of(S1, Receipt)
    assert (receipt.first, receipt.last) == (1, 1)
    assert receipt.replicas == tuple(range(needed))
    assert receipt.guarantee


def test_an_acknowledgement_counts_once_per_replica() -> None:
    stage = quiet_stage(f=1)
    stage.publish(S1, b"a")
    stage.settle()

    for _ in range(5):
        stage.say(R1, S1, ack(1))
    stage.settle()

    assert stage.receipted() == []


def test_an_acknowledgement_of_what_was_never_sent_is_reported_and_does_not_count() -> None:
    stage = quiet_stage(f=1)
    stage.publish(S1, b"a")
    stage.settle()

    for replica in (R1, R2, R3):
        stage.say(replica, S1, ack(7))
    stage.settle()

    assert stage.reported("false-ack") == [R1, R2, R3]
    assert stage.receipted() == []


def test_acknowledgements_of_outsiders_and_other_topics_do_nothing() -> None:
    stage = quiet_stage(f=1)
    stage.publish(S1, b"a")
    stage.settle()

    for sender in (77, 78, 79):
        stage.say(sender, S1, ack(1))
    for replica in (R1, R2, R3):
        stage.say(replica, S1, Ack(topic_id("nowhere"), Lane.EVENTS, Status.OK, 1))
        stage.say(replica, S1, Ack(T, Lane.HISTORIES, Status.OK, 1))
    stage.settle()

    assert stage.receipted() == []


def test_receipts_cover_each_batch_once_in_order() -> None:
    stage = Stage(topic(AUTHENTICATED))
    for number in range(50):
        stage.publish(S1, b"%d" % number)
        stage.round()
    stage.settle()

    assert stage.receipted() == list(range(1, 51))


# Sending again


def test_what_is_not_acknowledged_is_sent_again_with_growing_patience() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.drop(Publish, receiver=R4)
    stage.publish(S1, b"a")
    stage.settle()
    assert runs_to(stage, R4) == [(1, 1)]

    stage.pass_time(RETRY_AFTER_US / 1e6 + 0.1)
    assert runs_to(stage, R4) == [(1, 1)] * 2
    stage.pass_time(RETRY_AFTER_US / 1e6 + 0.1)
    assert runs_to(stage, R4) == [(1, 1)] * 2
    stage.pass_time(RETRY_AFTER_US / 1e6 + 0.1)
    assert runs_to(stage, R4) == [(1, 1)] * 3
    assert runs_to(stage, R1) == [(1, 1)]

    before = len(runs_to(stage, R4))
    stage.pass_time(10 * RETRY_AFTER_US_MAX / 1e6)
    assert 8 <= len(runs_to(stage, R4)) - before <= 14


def test_a_replica_that_lost_many_gets_all_from_the_first_that_it_lacks() -> None:
    stage = Stage(topic(AUTHENTICATED))
    lost = stage.drop(Publish, receiver=R4)
    for number in range(1000):
        stage.publish(S1, b"%d" % number)
        if number % 50 == 49:
            stage.settle()
    stage.release(lost)

    stage.pass_time(3)

    assert stage.sources[S1].progress("t")[R4] == (True, Status.OK, 0)


def test_a_replica_that_asked_to_wait_is_not_pressed() -> None:
    stage = quiet_stage(f=1)
    stage.publish(S1, b"a")
    stage.settle()
    stage.say(R1, S1, ack(0, Status.WAIT))
    stage.settle()

    stage.pass_time(2)

    assert runs_to(stage, R1) == [(1, 1)]
    assert len(runs_to(stage, R2)) > 1


def test_after_a_broken_link_the_rest_is_sent_again() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"a")
    stage.settle()
    stage.disconnect(S1, R1)
    stage.publish(S1, b"b", b"c")
    stage.settle()
    assert runs_to(stage, R1) == [(1, 1)]

    stage.connect(S1, R1)
    stage.settle()

    assert runs_to(stage, R1) == [(1, 1), (2, 2)]
    assert stage.sources[S1].progress("t")[R1] == (True, Status.OK, 0)


def test_a_replica_that_lost_its_memory_gets_what_is_still_kept() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.drop(Ack, sender=R4)
    stage.publish(S1, b"a", b"b", b"c")
    stage.settle()
    stage.crash(R1)
    stage.restart(R1)
    stage.publish(S1, b"d")
    stage.pass_time(2)

    retention = stage.brokers[R1].topics[T].scope.retention
    held = [retention.get(stage.stream(), number) is not None for number in (1, 2, 3, 4)]
    assert held == [True] * 4


def test_a_replica_whose_link_is_full_is_left_alone_and_catches_up() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.sources[S1].writable(R1, False)
    stage.publish(S1, b"a")
    stage.settle()
    stage.publish(S1, b"b")
    stage.settle()
    assert runs_to(stage, R1) == []
    assert runs_to(stage, R2) == [(1, 1), (2, 1)]

    stage.sources[S1].writable(R1, True)
    stage.settle()
    assert runs_to(stage, R1) == [(1, 2)]


# Runs


def test_one_turn_makes_one_run_and_urgency_cuts_it() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"a", b"b")
    stage.publish(S1, b"fire", urgent=True)
    stage.publish(S1, b"c")
    stage.settle()

    sent = stage.messages(Publish, receiver=R1)
    assert [(run.first, len(run.payloads), run.urgent) for run in sent] == [
        (1, 2, False),
        (3, 1, True),
        (4, 1, False),
    ]


def test_replicas_hear_below_which_nothing_will_come_again() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"a", b"b")
    stage.settle()
    stage.publish(S1, b"c")
    stage.settle()

    assert [run.settled for run in stage.messages(Publish, receiver=R1)] == [1, 3]


# Bounds


def test_there_is_room_for_so_many_batches_and_again_after_receipts() -> None:
    stage = quiet_stage(f=1)
    source = stage.sources[S1]
    for number in range(WINDOWS.in_flight):
        assert source.has_room("t")
        stage.publish(S1, b"%d" % number)
    assert not source.has_room("t")
    stage.settle()

    for replica in (R1, R2, R3):
        stage.say(replica, S1, ack(WINDOWS.in_flight))
    stage.settle()

    assert source.has_room("t")
    assert source.stream("t").in_flight == 0


def test_there_is_room_for_so_many_bytes() -> None:
    stage = quiet_stage(f=1)
    quarter = event(bytes(IN_FLIGHT_BYTES // 4))

    for _ in range(4):
        assert stage.sources[S1].has_room("t")
        stage.publish_batch(S1, quarter)

    assert not stage.sources[S1].has_room("t")


def test_there_is_room_for_a_quarter_of_the_queue_in_events() -> None:
    stage = quiet_stage({**AUTHENTICATED, "queue_events_max": 400}, f=1)
    source = stage.sources[S1]

    source.publish("t", event(b"a batch of many"), events=99)
    assert source.has_room("t")
    source.publish("t", event(b"one more"), events=1)
    assert not source.has_room("t")


def test_what_is_kept_for_a_replica_that_lags_is_bounded() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.disconnect(S1, R4)
    for number in range(WINDOWS.kept + 500):
        stage.publish(S1, b"%d" % number)
        if number % 100 == 99:
            stage.settle()
    stage.settle()
    assert len(stage.sources[S1].stream("t").kept) <= WINDOWS.kept

    stage.connect(S1, R4)
    stage.pass_time(1)
    assert stage.sources[S1].progress("t")[R4] == (True, Status.OK, 0)


# Replicas that lag, where nobody lies


def lagging(status: Status = Status.WAIT) -> Stage:
    """R1 has all that the source may send, and R2 none of it."""
    stage = quiet_stage({"protection": "crash"}, f=1)
    for _ in range(2 * WINDOWS.in_flight):
        if not stage.sources[S1].has_room("t"):
            break
        stage.publish(S1, b"x")
        stage.round()
        stage.say(R1, S1, ack(stage.sources[S1].last_sequence("t")))
        stage.say(R2, S1, ack(0, status))
        stage.round()
    return stage


def test_a_replica_that_lags_is_not_left_behind_where_one_copy_makes_a_receipt() -> None:
    stage = lagging()
    assert len(stage.receipted()) == WINDOWS.in_flight
    assert not stage.sources[S1].has_room("t")

    stage.say(R2, S1, ack(1))
    stage.settle()

    assert [room.stream for room in stage.outcomes_of(S1, Room)] == [stage.stream()]
    assert stage.sources[S1].has_room("t")


def test_what_only_a_crashed_replica_acknowledged_goes_to_the_one_that_lagged() -> None:
    stage = lagging()
    stage.crash(R1)
    before = len(runs_to(stage, R2))
    stage.say(R2, S1, ack(0, Status.RESUME))
    stage.settle()

    assert runs_to(stage, R2)[before:] == [(1, WINDOWS.in_flight)]


@pytest.mark.parametrize(
    ("status", "patience_us"), [(Status.OK, SILENT_AFTER_US), (Status.WAIT, WAITING_AFTER_US)]
)
def test_a_replica_that_says_nothing_is_waited_for_only_so_long(
    status: Status, patience_us: int
) -> None:
    stage = lagging(status)
    stage.pass_time(patience_us / 1e6 - 0.1)
    assert not stage.sources[S1].has_room("t")

    stage.pass_time(0.2)

    assert stage.sources[S1].has_room("t")


def test_a_replica_whose_link_is_down_is_not_waited_for() -> None:
    stage = lagging()
    stage.disconnect(S1, R2)
    assert stage.sources[S1].has_room("t")


def test_where_replicas_may_lie_none_can_hold_a_source_back() -> None:
    stage = quiet_stage(f=1)
    for _ in range(3):
        stage.publish(S1, *[b"x"] * WINDOWS.in_flight)
        stage.settle()
        stage.say(R4, S1, ack(0, Status.WAIT))
        for replica in (R1, R2, R3):
            stage.say(replica, S1, ack(stage.sources[S1].last_sequence("t")))
        stage.settle()
        assert stage.sources[S1].has_room("t")


# Replicas that refused something


def test_what_a_replica_refused_is_sent_again_as_soon_as_it_has_room() -> None:
    stage = quiet_stage(f=1)
    stage.publish(S1, b"a", b"b", b"c")
    stage.settle()

    stage.say(R1, S1, ack(1, Status.RESUME))
    stage.settle()

    assert runs_to(stage, R1) == [(1, 3), (2, 2)]


def test_a_replica_that_always_wants_everything_again_gets_it_only_so_often() -> None:
    stage = quiet_stage(f=1)
    stage.publish(S1, b"a", b"b", b"c")
    stage.settle()

    for _ in range(20):
        stage.say(R1, S1, ack(0, Status.RESUME))
        stage.settle()

    assert len(runs_to(stage, R1)) == 2


# Answering


def test_a_replica_gets_again_what_is_still_kept() -> None:
    stage = quiet_stage(f=1)
    stage.publish(S1, b"a", b"b")
    stage.settle()

    stage.say(R1, S1, Fetch(*stage.stream(), True, [2, 2, 9]))
    stage.settle()

    assert stage.messages(Supply, sender=S1) == [Supply(*stage.stream(), [2], [event(b"b")])]


def test_nobody_else_gets_anything() -> None:
    stage = quiet_stage(f=1)
    stage.publish(S1, b"a")
    stage.settle()

    stage.say(77, S1, Fetch(*stage.stream(), True, [1]))
    stage.say(R1, S1, Fetch(*stage.stream()._replace(publisher=1001), True, [1]))
    stage.say(R1, S1, Fetch(*stage.stream(name="nowhere"), True, [1]))
    stage.settle()

    assert stage.messages(Supply) == []


def test_a_replica_that_asks_for_everything_gets_so_much_in_one_turn() -> None:
    stage = quiet_stage(f=1)
    half = event(bytes(SUPPLY_BYTES_MAX // 2))
    for _ in range(4):
        stage.publish_batch(S1, half)
    stage.settle()

    for _ in range(5):
        stage.say(R1, S1, Fetch(*stage.stream(), True, [1, 2, 3, 4]))
    stage.round()
    assert len(stage.messages(Supply, sender=S1)) == 2


def test_what_is_not_for_a_source_is_reported() -> None:
    stage = Stage(topic(AUTHENTICATED))

    stage.say(R1, S1, Forward(S1, T, Lane.EVENTS, False, 1, [event(b"x")]))
    stage.settle()

    assert stage.reported("rejected", by=S1) == [R1]


# What the application asks for


def test_an_unknown_topic_is_named_with_the_known_ones() -> None:
    stage = Stage(topic(AUTHENTICATED))

    with pytest.raises(LocalProtocolError, match="there is no topic 'x'; known topics: t"):
        stage.sources[S1].register("x")


def test_registering_twice_asks_once() -> None:
    stage = Stage(topic(AUTHENTICATED), opened=False)
    first = stage.sources[S1].register("t")

    assert stage.sources[S1].register("t") == first
    stage.settle()
    assert len(stage.messages(Request, receiver=R1)) == 1


def test_a_source_that_was_refused_may_ask_again() -> None:
    stage = Stage(topic({**AUTHENTICATED, "publish": ["s2"]}), opened=False)
    first = stage.sources[S1].register("t")
    stage.settle()
    second = stage.sources[S1].register("t")
    stage.settle()

    assert first != second
    assert set(stage.answers(S1)) == {first, second}


def test_numbers_go_on_after_registering_again() -> None:
    stage = Stage(topic({"broadcast": "authenticated", "history_every": 4}))
    stage.publish(S1, *[b"%d" % number for number in range(6)])
    stage.settle()
    stage.sources[S1].unregister("t")
    stage.settle()
    stage.sources[S1].register("t")
    stage.settle()

    last = stage.publish(S1, *[b"%d" % number for number in range(6, 20)])
    stage.pass_time(2)

    assert last == 20
    assert sorted(map(int, stage.values())) == list(range(20))
    assert stage.reported("false-ack") == []


def test_receipts_on_logs_go_by_the_policy_of_the_file_that_a_source_began_with() -> None:
    # Given a cluster that began by syncing always, and does not any more
    now = topics_of(commands.cluster(fsync="never"))
    source = Source(S1, now, pairwise_macs(S1), session=1)

    # When commands change it, which know how it began
    source.adopt(commands.cluster(revision=1))

    # Then a receipt still tells what machines may lose.
    source.register("orders")
    line = source.line("orders", 0)
    line.add(b"1", 1)
    for replica in (R1, R2):
        line.on_ordered(replica, Ordered(topic_id("orders"), 0, 1, 1, 0, 0))
    (receipt,) = source.take().deliver
    assert isinstance(receipt, Recorded)
    assert "if the machine loses power" in receipt.guarantee
