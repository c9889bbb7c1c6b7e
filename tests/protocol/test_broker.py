"""A replica checks who may say what, names who should not have, and forgets who is gone."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from quorate.core.filter import FILTER_HEADERS_MAX, Filter
from quorate.core.ids import SEQUENCE_MAX, Lane, node_of, topic_id
from quorate.core.limits import Windows
from quorate.core.messages import (
    Ack,
    Echo,
    Fetch,
    Forward,
    Frontier,
    Message,
    Omitted,
    Operation,
    Publish,
    ReadyVote,
    Reply,
    Request,
    Status,
    StatusQuery,
    Supply,
    Taken,
    Vouch,
)
from quorate.crypto.digests import digest
from quorate.protocol.broadcast.scope import SUPPLY_BYTES_MAX
from quorate.protocol.broker import (
    DEPARTED_KEPT_US,
    DEPARTED_MAX,
    FRONTIER_EVERY_US,
    TICK_EVERY_US,
    WAITED_FOR_KEPT_US,
    WAITED_FOR_MAX,
    Broker,
)
from quorate.protocol.incoming import PATIENCE_US
from quorate.protocol.machine import Ready
from quorate.protocol.misbehaviour import Silence
from quorate.protocol.topic import Topic
from stage import D1, D2, R1, R2, R3, R4, S1, S2, SECOND_US, Stage, event, topic

AUTHENTICATED: dict[str, object] = {"broadcast": "authenticated", "history_every": 0}
RELIABLE: dict[str, object] = {"broadcast": "reliable"}
T = topic_id("t")
DIGEST = digest(b"x")

TERMS = topic(AUTHENTICATED).contract.terms


def publish(first: int = 1, *payloads: bytes, lane: Lane = Lane.EVENTS) -> Publish:
    return Publish(T, lane, False, first, 1, list(payloads) or [event(b"x")])


# Headers that cannot be true, and one that says it is signed: no live topic has signed batches.
NO_BATCHES = {
    "nothing": b"",
    "no header": b"no header",
    "no events": event(b"b")[:4] + bytes(4) + event(b"b")[8:],
    "fewer bytes than events take": event(b"b")[:4] + b"\xff" + event(b"b")[5:],
    "signed": b"\2\1" + event(b"b")[2:],
}


@pytest.mark.parametrize("payload", NO_BATCHES.values(), ids=NO_BATCHES)
@pytest.mark.parametrize("broadcast", [None, "vote", "authenticated", "reliable"])
def test_what_is_no_batch_is_taken_by_no_broadcast(broadcast: str | None, payload: bytes) -> None:
    stage = Stage(topic({"broadcast": broadcast} if broadcast else {}))
    for replica in stage.brokers:
        stage.say(S1, replica, publish(1, event(b"one"), payload))
    stage.pass_time(1)

    assert stage.deliveries() == []
    assert stage.reported("bad-batch") == [S1] * len(stage.brokers)


# Who may say what


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (S2, publish()),
        (D1, publish()),
        (S1, publish(lane=Lane.HISTORIES)),
        (S1, Echo(S1, T, Lane.EVENTS, 1, [DIGEST])),
        (D1, ReadyVote(S1, T, Lane.EVENTS, 1, [DIGEST])),
        (R2, Echo(77, T, Lane.EVENTS, 1, [DIGEST])),
        (R2, Echo(S1, T, Lane.HISTORIES, 1, [DIGEST])),
        (S1, Publish(topic_id("nowhere"), Lane.EVENTS, False, 1, 1, [event(b"x")])),
        (R2, Forward(S1, T, Lane.EVENTS, False, 1, [event(b"x")])),
        (R2, Ack(T, Lane.EVENTS, Status.OK, 1)),
        (R2, Reply(1)),
        (R2, Omitted(S1, T, Lane.EVENTS, 1, 1)),
        (S1, StatusQuery(1)),
    ],
)
def test_what_its_sender_may_not_say_is_dropped_and_reported(sender: int, message: Message) -> None:
    stage = Stage(topic(RELIABLE), sources=(S1, S2), opened=False)
    stage.sources[S1].register("t")
    stage.subscribe(D1)
    stage.settle()

    stage.say(sender, R1, message)
    stage.settle()

    assert stage.reported("rejected", by=R1) == [sender]
    assert stage.brokers[R1].counters["rejected"] == 1
    assert not stage.messages(Echo, sender=R1)
    assert not stage.messages(ReadyVote, sender=R1)


def test_a_replica_outside_a_topic_has_no_voice_in_it() -> None:
    inner = topic(RELIABLE)
    outer = Topic("u", inner.contract, (0, 1, 2, 3, 4), 1)
    stage = Stage(inner, outer)

    stage.say(4, R1, Echo(S1, T, Lane.EVENTS, 1, [DIGEST]))
    stage.settle()

    assert stage.reported("rejected", by=R1) == [4]


def test_a_stranger_gets_nothing_of_what_it_asks_for() -> None:
    stage = Stage(topic(AUTHENTICATED), destinations=(D1, D2), opened=False)
    stage.sources[S1].register("t")
    stage.subscribe(D1)
    stage.settle()
    stage.publish(S1, b"secret")
    stage.settle()

    for payload in (True, False):
        stage.say(D2, R1, Fetch(*stage.stream(), payload, [1]))
    stage.settle()

    assert stage.reported("trespass", by=R1) == [D2, D2]
    assert not stage.messages(Supply, receiver=D2)
    assert not stage.messages(Vouch, receiver=D2)


def test_a_subscriber_gets_payloads_or_votes_as_it_asks() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"a", b"b")
    stage.settle()

    stage.say(D1, R1, Fetch(*stage.stream(), True, [2, 99]))
    stage.say(D1, R1, Fetch(*stage.stream(), False, [1, 2]))
    stage.settle()

    assert stage.messages(Supply, sender=R1) == [Supply(*stage.stream(), [2], [event(b"b")])]
    votes = Vouch(*stage.stream(), 1, [digest(event(b"a")), digest(event(b"b"))])
    assert votes in stage.messages(Vouch, sender=R1)


def test_asking_for_one_batch_a_thousand_times_gets_it_once() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"a")
    stage.settle()

    stage.say(D1, R1, Fetch(*stage.stream(), True, [1] * 1000))
    stage.settle()

    assert [m.sequences for m in stage.messages(Supply, sender=R1)] == [[1]]


def test_no_asker_gets_more_than_its_bytes_in_one_turn() -> None:
    stage = Stage(topic(AUTHENTICATED))
    large = event(bytes(SUPPLY_BYTES_MAX // 2))
    for _ in range(4):
        stage.publish_batch(S1, large)
        stage.pass_time(0.1)
    assert len(stage.deliveries()) == 4

    for _ in range(10):
        stage.say(D1, R1, Fetch(*stage.stream(), True, [1, 2, 3, 4]))
    stage.settle()

    supplied = sum(len(p) for m in stage.messages(Supply, sender=R1) for p in m.payloads)
    assert supplied <= 2 * SUPPLY_BYTES_MAX


@pytest.mark.parametrize("table", [AUTHENTICATED, RELIABLE])
def test_a_payload_that_is_no_batch_harms_no_subscriber_with_a_filter(
    table: dict[str, object],
) -> None:
    stage = Stage(topic(table), sources=(S1, S2))
    stage.subscribe(D1, wanted=Filter(key_prefix=b"k"))
    stage.settle()

    stage.publish_batch(S1, b"garbage")
    stage.settle()
    stage.publish_batch(S2, event(b"fine", key=b"k"))
    stage.settle()

    assert event(b"fine", key=b"k") in [delivery.payload for delivery in stage.deliveries()]


def test_a_filter_that_is_too_large_is_refused_with_a_sentence() -> None:
    stage = Stage(topic(AUTHENTICATED), opened=False)
    headers = {str(number): b"" for number in range(FILTER_HEADERS_MAX + 1)}

    stage.say(D1, R1, Request(1, Operation.SUBSCRIBE, "t", TERMS, headers=headers))
    stage.settle()

    (reply,) = stage.messages(Reply, sender=R1, receiver=D1)
    assert "65 headers; allowed are up to" in reply.sentence
    assert stage.reported("refused", by=R1) == [D1]


@pytest.mark.parametrize("operation", [Operation.REGISTER, Operation.SUBSCRIBE])
def test_a_client_with_another_contract_for_a_topic_is_refused_with_a_sentence(
    operation: Operation,
) -> None:
    stage = Stage(topic(AUTHENTICATED), opened=False)
    elsewhere = topic({"broadcast": "vote"}).contract.terms

    stage.say(D1, R1, Request(1, operation, "t", elsewhere))
    stage.settle()

    (reply,) = stage.messages(Reply, sender=R1, receiver=D1)
    assert "'t' is byzantine, authenticated, order none here" in reply.sentence
    assert stage.reported("refused", by=R1) == [D1]


def test_a_topic_that_another_replica_serves_is_not_served_here() -> None:
    stage = Stage(topic({"protection": "crash"}), topic(AUTHENTICATED, "u"))

    assert T not in stage.brokers[R4].topics
    stage.say(S1, R4, publish())
    stage.settle()

    (report,) = [r for n, r in stage.reports if n == R4]
    assert "topic 't', which this replica does not serve" in report.detail


def test_an_unknown_topic_and_taken_of_strangers_do_no_harm() -> None:
    stage = Stage(topic(AUTHENTICATED))

    stage.say(D1, R1, Taken(S1, topic_id("nowhere"), Lane.EVENTS, 5))
    stage.say(S2, R1, Taken(S1, T, Lane.EVENTS, 5))
    stage.publish(S1, b"fine")
    stage.settle()

    assert stage.values() == [b"fine"]


@pytest.mark.parametrize("table", [AUTHENTICATED, RELIABLE])
def test_of_a_run_that_overlaps_only_the_new_part_is_handed_on(table: dict[str, object]) -> None:
    stage = Stage(topic(table))
    values = [event(b"1"), event(b"2"), event(b"3"), event(b"4")]
    for first, last in ((2, 3), (1, 4), (1, 4)):
        for replica in (R1, R2, R3, R4):
            stage.say(S1, replica, publish(first, *values[first - 1 : last]))
        stage.settle()

    handed_on = [
        forward.first + offset
        for forward in stage.messages(Forward, sender=R1)
        for offset in range(len(forward.payloads))
    ]
    assert sorted(handed_on) == [1, 2, 3, 4]


# Acknowledgements and frontiers


def test_a_source_hears_how_far_the_unbroken_row_goes() -> None:
    stage = Stage(topic(AUTHENTICATED))
    for first in (1, 3, 2):
        stage.say(S1, R1, publish(first))
        stage.settle()

    assert [a.through for a in stage.messages(Ack, sender=R1)] == [1, 1, 3]


def test_one_acknowledgement_answers_all_that_one_turn_brought() -> None:
    stage = Stage(topic(AUTHENTICATED))
    for first in (1, 2, 3):
        stage.say(S1, R1, publish(first))
    stage.settle()

    assert [a.through for a in stage.messages(Ack, sender=R1)] == [3]


def test_subscribers_hear_how_far_they_should_have_come_now_and_then() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"a", b"b")
    stage.settle()
    before = len(stage.messages(Frontier, sender=R1))

    stage.pass_time(2 * FRONTIER_EVERY_US / 1_000_000)

    later = stage.messages(Frontier, sender=R1)[before:]
    assert 1 <= len(later) <= 3
    assert {f.highest for f in later} == {2}


def test_a_publisher_at_the_last_number_costs_nobody_who_comes_later_anything() -> None:
    stage = Stage(topic(AUTHENTICATED), destinations=(D1, D2))
    stage.destinations[D2].unsubscribe("t")
    stage.settle()
    for replica in stage.brokers:
        run = Publish(T, Lane.EVENTS, False, SEQUENCE_MAX, SEQUENCE_MAX, [event(b"last")])
        stage.say(S1, replica, run)
    stage.settle()
    assert stage.values(D1) == [b"last"]

    stage.subscribe(D2)
    stage.pass_time(1)

    assert {f.lowest for f in stage.messages(Frontier, receiver=D2)} == {SEQUENCE_MAX}


def test_a_replica_asks_to_be_woken_for_its_next_tick() -> None:
    stage = Stage(topic(AUTHENTICATED))
    broker = stage.brokers[R1]
    broker.take()

    broker.tick(10_000_000)

    ready: Ready = broker.take()
    assert 10_000_000 + TICK_EVERY_US in ready.timers


# Coming and going


def test_a_client_whose_link_is_down_takes_part_in_nothing() -> None:
    stage = Stage(topic(AUTHENTICATED))
    channel = stage.brokers[R1].topics[T].scope.channel

    stage.disconnect(S1, R1)
    stage.disconnect(D1, R1)

    assert not channel.publishers
    assert not channel.outlets


def departed(stage: Stage) -> Callable[[], bool]:
    """Does replica 1 still know the stream of source 1?"""
    scope = stage.brokers[R1].topics[T].scope
    return lambda: scope.retention.get(stage.stream(), 1) is not None


def test_a_publisher_that_comes_back_in_time_is_still_known() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"a")
    stage.settle()
    is_known = departed(stage)
    stage.disconnect(S1, R1)
    stage.pass_time(DEPARTED_KEPT_US / 1_000_000 - 2, turn_us=250_000)
    stage.connect(S1, R1)
    stage.pass_time(5, turn_us=250_000)
    assert is_known()

    stage.publish(S1, b"b")
    stage.settle()
    assert stage.values() == [b"a", b"b"]


@pytest.mark.parametrize("table", [AUTHENTICATED, RELIABLE, {"broadcast": "chain"}, {}])
def test_a_publisher_that_stays_away_is_forgotten(table: dict[str, object]) -> None:
    stage = Stage(topic(table))
    stage.publish(S1, b"a")
    stage.pass_time(1)
    is_known = departed(stage)
    for replica in (R1, R2, R3, R4):
        stage.disconnect(S1, replica)
    stage.pass_time(DEPARTED_KEPT_US / 1_000_000 + 2, turn_us=250_000)

    assert not is_known()
    served = stage.brokers[R1].topics[T]
    assert not served.scope.intakes
    assert not served.scope.ack_due
    for broadcast in (served.broadcast(Lane.EVENTS), served.broadcast(Lane.HISTORIES)):
        assert broadcast is None or not broadcast._streams
    assert stage.brokers[R1].topics[T].scope.retention.held_bytes == 0


def come_and_go(
    broker: Broker, member: int, now_us: int, terms: str = TERMS, first: int = 1
) -> None:
    """More sessions of a member than are kept publish something and are gone."""
    for session in range(DEPARTED_MAX + 50):
        node = node_of(member, session + first)
        broker.connected(node)
        broker.step(node, Request(1, Operation.REGISTER, "t", terms))
        broker.step(node, publish())
        broker.disconnected(node)
    broker.take()
    broker.tick(now_us + FRONTIER_EVERY_US + 1)


@pytest.mark.parametrize("table", [{"protection": "crash"}, {"broadcast": "vote"}])
def test_what_many_sessions_published_reaches_a_subscriber_that_paused(
    table: dict[str, object],
) -> None:
    each = topic(table)
    stage = Stage(each)
    for replica in each.members:
        broker = stage.brokers[replica]
        broker.writable(D1, False)
        come_and_go(broker, S1, stage.now_us, each.contract.terms)
    stage.pass_time(1)
    for replica in each.members:
        stage.brokers[replica].writable(D1, True)
    stage.pass_time(1)

    assert len(stage.values()) == DEPARTED_MAX + 50


def test_what_a_publisher_left_behind_reaches_a_subscriber_that_takes_its_time() -> None:
    narrow = replace(topic({"protection": "crash"}), windows=Windows.of(32))
    stage = Stage(narrow)
    taken = stage.hold(Taken, sender=D1)
    for number in range(2 * narrow.windows.credit):
        stage.publish(S1, b"%d" % number)
        stage.settle()
    assert len(stage.receipted()) == 2 * narrow.windows.credit
    for replica in narrow.members:
        stage.disconnect(S1, replica)

    # It takes a batch every few seconds, and then all of them.
    for through in range(1, narrow.windows.credit):
        stage.pass_time(DEPARTED_KEPT_US / 6_000_000 - 1, turn_us=250_000)
        for replica in narrow.members:
            stage.brokers[replica].step(D1, Taken(*stage.stream(), through))
    stage.pass_time(DEPARTED_KEPT_US / 6_000_000 - 1, turn_us=250_000)
    stage.release(taken)
    stage.pass_time(1)

    assert len(stage.values()) == 2 * narrow.windows.credit


def test_what_waits_for_subscribers_keeps_so_many_sessions_and_no_more() -> None:
    stage = Stage(topic(AUTHENTICATED))
    broker = stage.brokers[R1]
    broker.writable(D1, False)
    for first in range(1, 2 * WAITED_FOR_MAX, DEPARTED_MAX + 50):
        come_and_go(broker, S1, stage.now_us, first=first)
    served = broker.topics[T]
    assert len(served.scope.intakes) <= WAITED_FOR_MAX

    broker.tick(stage.now_us + WAITED_FOR_KEPT_US + SECOND_US)
    assert not served.scope.intakes


def test_many_sessions_that_have_gone_push_out_nobody_elses_streams() -> None:
    stage = Stage(topic(AUTHENTICATED), sources=(S1, S2))
    stage.publish(S1, b"a")
    stage.settle()
    is_known = departed(stage)
    stage.disconnect(S1, R1)

    come_and_go(stage.brokers[R1], S2, stage.now_us)

    assert is_known()


def test_a_session_that_made_itself_forgotten_cannot_say_something_else() -> None:
    # Given a source and a liar, who have one subscriber deliver what the other one cannot
    stage = Stage(topic(AUTHENTICATED), destinations=(D1, D2))
    stage.misbehave(R1, Silence())
    for replica in (R2, R3):
        stage.say(S1, replica, publish(1, event(b"first")))
    stage.say(R1, D1, Vouch(S1, T, Lane.EVENTS, 1, [digest(event(b"first"))]))
    stage.pass_time(1)
    assert (stage.values(D1), stage.values(D2)) == ([b"first"], [])

    # When many other sessions of the source come and go after this one, and it comes back
    for replica in (R2, R3, R4):
        stage.disconnect(S1, replica)
        come_and_go(stage.brokers[replica], S1, stage.now_us)
    stage.pass_time(PATIENCE_US / 1_000_000 + 1)
    for replica in (R2, R3, R4):
        stage.connect(S1, replica)
    stage.settle()
    for replica in (R2, R3, R4):
        stage.say(S1, replica, publish(1, event(b"second")))
    stage.pass_time(1)

    # Then nobody listens, until its time is over.
    assert b"second" not in stage.values(D2)
    assert stage.reported("refused", by=R2)[-1] == S1
    stage.pass_time(DEPARTED_KEPT_US / 1_000_000, turn_us=250_000)
    stage.disconnect(S1, R2)
    stage.connect(S1, R2)
    stage.settle()
    assert S1 in stage.brokers[R2].topics[T].scope.channel.publishers


def test_when_too_many_sessions_have_gone_the_first_are_forgotten_at_once() -> None:
    stage = Stage(topic(AUTHENTICATED))
    broker = stage.brokers[R1]
    scope = broker.topics[T].scope
    for session in range(DEPARTED_MAX + 50):
        node = node_of(S1, session + 1)
        broker.connected(node)
        broker.step(node, Request(1, Operation.REGISTER, "t", TERMS))
        broker.step(node, publish())
        broker.disconnected(node)
    broker.take()
    assert len(scope.intakes) == DEPARTED_MAX + 50

    broker.tick(stage.now_us + FRONTIER_EVERY_US + 1)

    assert len(scope.intakes) == DEPARTED_MAX
