"""What the simulator found, each as the smallest case that shows it.

Every test here failed once, and a campaign of seeds is what made it visible.
"""

import pytest

from quorate.core.ids import Lane, NodeId, Stream, topic_id
from quorate.core.messages import (
    Ack,
    Echo,
    Fetch,
    Forward,
    Frontier,
    Link,
    Omitted,
    Publish,
    ReadyVote,
    Reply,
    Status,
    Supply,
    Vouch,
)
from quorate.crypto.digests import digest
from quorate.protocol.broadcast.history import History
from quorate.protocol.broadcast.reliable import ABANDON_AFTER_US
from quorate.protocol.misbehaviour import Silence
from quorate.protocol.retention import Retention
from stage import D1, D2, R1, R2, R3, R4, S1, Stage, event, topic

CRASH = {"protection": "crash"}
VOTE = {"broadcast": "vote"}
RELIABLE = {"broadcast": "reliable"}
AUTHENTICATED = {"broadcast": "authenticated", "history_every": 0}
ALL_LIVE = [CRASH, VOTE, AUTHENTICATED, RELIABLE, {"broadcast": "chain"}]


def ids(table: object) -> str:
    assert isinstance(table, dict)
    return str(table.get("broadcast", "first-answer"))


def cut_off(stage: Stage, client: NodeId) -> None:
    for replica in stage.brokers:
        stage.disconnect(client, replica)


def bring_back(stage: Stage, client: NodeId) -> None:
    for replica in stage.brokers:
        stage.connect(client, replica)


def a_lie(echo: Echo) -> Echo:
    return Echo(echo.publisher, echo.topic, echo.lane, echo.first, [b"?" * 32])


# Where a stream begins, and where it has got to


@pytest.mark.parametrize("table", ALL_LIVE, ids=ids)
def test_an_urgent_batch_that_overtakes_the_first_ones_does_not_hide_them(
    table: dict[str, object],
) -> None:
    stage = Stage(topic(table))
    stage.publish(S1, b"first", b"second")
    stage.publish(S1, b"third", urgent=True)
    stage.pass_time(2)
    assert sorted(stage.values()) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("table", ALL_LIVE, ids=ids)
def test_a_subscriber_that_is_out_of_reach_when_a_stream_begins_gets_it_from_the_beginning(
    table: dict[str, object],
) -> None:
    stage = Stage(topic(table))
    cut_off(stage, D1)
    stage.publish(S1, b"first", b"second")
    stage.pass_time(1)
    bring_back(stage, D1)
    stage.pass_time(3)
    assert sorted(stage.values()) == [b"first", b"second"]


@pytest.mark.parametrize("table", ALL_LIVE, ids=ids)
def test_the_last_batches_before_a_silence_reach_a_subscriber_that_was_out_of_reach(
    table: dict[str, object],
) -> None:
    stage = Stage(topic(table))
    stage.publish(S1, b"before")
    stage.pass_time(1)
    cut_off(stage, D1)
    stage.publish(S1, b"last")
    stage.pass_time(1)
    bring_back(stage, D1)
    stage.pass_time(3)
    assert stage.values() == [b"before", b"last"]


def test_a_subscriber_that_comes_late_does_not_get_what_went_before() -> None:
    stage = Stage(topic(VOTE), opened=False)
    stage.sources[S1].register("t")
    stage.settle()
    stage.publish(S1, b"before")
    stage.pass_time(1)
    stage.subscribe(D1)
    stage.settle()
    stage.publish(S1, b"after")
    stage.pass_time(3)
    assert stage.values() == [b"after"]


def test_a_replica_that_lies_about_where_a_stream_begins_hides_nothing() -> None:
    stage = Stage(topic(VOTE), opened=False)
    stage.drop(Reply, sender=R1)
    stage.alter(lambda f: Frontier(f.publisher, f.topic, f.lane, 10**6, 10**6), Frontier, sender=R1)
    stage.open()
    stage.publish(S1, b"first", b"second")
    stage.pass_time(2)
    assert stage.values() == [b"first", b"second"]


def test_a_replica_that_says_it_omits_a_batch_does_not_keep_a_subscriber_from_asking() -> None:
    # Given: the honest voices about the only batch are lost.
    stage = Stage(topic(VOTE))
    lost = stage.drop((Forward, Vouch), receiver=D1)
    stage.publish(S1, b"only")
    stage.say(R1, D1, Omitted(*stage.stream(), 1, 1))
    stage.settle()
    # When
    lost.lifted = True
    stage.pass_time(3)
    # Then
    assert stage.values() == [b"only"]


def test_under_fifo_a_gap_that_nobody_fills_is_skipped_in_the_end() -> None:
    stage = Stage(topic({**VOTE, "order": "fifo"}))
    for replica in (R1, R2, R3):
        stage.say(replica, D1, Frontier(*stage.stream(), 1, 2))
        stage.say(replica, D1, Vouch(*stage.stream(), 2, [digest(event(b"second"))]))
    stage.say(R1, D1, Forward(*stage.stream(), False, 2, [event(b"second")]))
    stage.settle()
    assert stage.values() == []
    stage.pass_time(20)
    assert stage.values() == [b"second"]
    assert [(skipped.first, skipped.count) for skipped in stage.skipped()] == [(1, 1)]


# Who can be asked for a payload


def test_whoever_confirms_a_decided_batch_can_be_asked_for_its_payload() -> None:
    # Given: the first to vouch crashes before anybody got the payload.
    stage = Stage(topic(CRASH))
    lead = stage.destinations[D1].lead_of("t")
    assert lead is not None
    (other,) = {R1, R2} - {lead}
    stage.drop(Forward, receiver=D1)
    late = stage.hold(Publish, receiver=lead)
    stage.publish(S1, b"event")
    stage.settle()
    stage.crash(other)
    # When
    stage.release(late)
    stage.pass_time(3)
    # Then
    assert stage.values() == [b"event"]


# Bracha


def test_a_replica_that_is_ready_before_it_has_the_payload_still_echoes() -> None:
    # Given: R1 misses the batch, R4 echoes a lie to R2 and R3 and the truth to R1.
    stage = Stage(topic(RELIABLE))
    for misled in (R2, R3):
        stage.alter(a_lie, Echo, sender=R4, receiver=misled)
    stage.drop((ReadyVote, Vouch, Forward), sender=R4)
    missed = stage.drop(Publish, receiver=R1)
    stage.publish(S1, b"event")
    # When: R1 becomes ready by the echoes of the others, and takes the payload from R4.
    stage.pass_time(4)
    assert stage.messages(Supply, sender=R4, receiver=R1)
    missed.lifted = True
    stage.pass_time(5)
    # Then: without its echo, R2 and R3 would never be ready.
    assert stage.messages(Echo, sender=R1)
    assert stage.values() == [b"event"]


def test_a_source_that_waits_until_a_broadcast_is_abandoned_does_not_get_another_one() -> None:
    """Replica 1 lies, replica 4 is out of reach for more than a minute."""
    stage = Stage(topic(RELIABLE), destinations=(D1, D2))
    stage.destinations[D2].unsubscribe("t")
    stage.settle()
    stage.misbehave(R1, Silence())
    for node in (R1, R2, R3, S1, D1, D2):
        stage.disconnect(R4, node)
    stream, first = stage.stream(), event(b"first")

    # Given that one subscriber delivers with the liar's help, and no replica does
    for replica in (R2, R3):
        stage.say(S1, replica, Publish(stream.topic, Lane.EVENTS, False, 1, 1, [first]))
        stage.say(R1, replica, Echo(*stream, 1, [digest(first)]))
    stage.settle()
    stage.say(R1, D1, Vouch(*stream, 1, [digest(first)]))
    stage.pass_time(ABANDON_AFTER_US / 1_000_000 + 5, turn_us=250_000)
    assert stage.values(D1) == [b"first"]

    # When the fourth is back, and somebody else subscribes before the source says something else
    for node in (R1, R2, R3, S1, D1, D2):
        stage.connect(R4, node)
    stage.subscribe(D2)
    stage.settle()
    for replica in (R2, R3, R4):
        run = Publish(stream.topic, Lane.EVENTS, False, 1, 1, [event(b"second")])
        stage.say(S1, replica, run)
    stage.settle()

    # Then nobody delivers that.
    assert b"second" not in stage.values(D1) + stage.values(D2)


def test_a_replica_that_was_away_while_the_others_finished_asks_them_when_it_is_asked() -> None:
    # Given: R4 hears nothing of the batch, and its source is gone when it comes back.
    stage = Stage(topic(RELIABLE))
    stage.drop((Vouch, Forward), sender=R1)
    for peer in (R1, R2, R3, S1):
        stage.disconnect(R4, peer)
    stage.publish(S1, b"event")
    stage.pass_time(0.1)
    assert stage.receipted() == [1]
    # When
    for peer in (R1, R2, R3):
        stage.disconnect(S1, peer)
        stage.connect(R4, peer)
    stage.pass_time(5)
    # Then: R1 is silent towards the subscriber, so it needs the voice of R4.
    assert stage.values() == [b"event"]


# Chain and histories


def test_a_source_moves_to_the_next_chain_when_the_head_of_its_own_is_out_of_reach() -> None:
    stage = Stage(topic({"broadcast": "chain"}))
    stage.crash(R1)
    stage.publish(S1, b"event")
    stage.pass_time(5)
    assert stage.values() == [b"event"]
    assert stage.receipted() == [1]


def test_what_the_tail_of_a_chain_could_not_bring_a_subscriber_asks_the_others_for() -> None:
    stage = Stage(topic({"broadcast": "chain", "history_every": 0}))
    lost = stage.drop(Link, receiver=D1)
    stage.publish(S1, b"event")
    stage.settle()
    lost.lifted = True
    stage.pass_time(3)
    assert stage.values() == [b"event"]


def test_under_fifo_what_only_histories_brought_is_delivered_without_a_long_wait() -> None:
    """Replicas that never saw a run of the chain must say where its stream begins, too."""
    stage = Stage(topic({"broadcast": "chain", "history_every": 4, "order": "fifo"}))
    for replica in (R2, R3, R4):
        stage.drop(Link, receiver=replica)
    stage.publish(S1, b"first", b"second")
    stage.pass_time(5)
    assert stage.values() == [b"first", b"second"]


def test_a_source_keeps_what_no_delivered_history_names() -> None:
    """A chain's replica may acknowledge a batch that it started after, and ask for it later."""
    # Given: no history gets through, and every replica says that it has everything.
    stage = Stage(topic({"broadcast": "chain", "history_every": 8}))
    stage.drop(Publish, sender=S1)
    stage.publish(S1, b"event")
    stage.settle()
    for replica in stage.brokers:
        stage.say(replica, S1, Ack(topic_id("t"), Lane.EVENTS, Status.OK, 1))
    stage.pass_time(0.1)
    # When
    stage.say(R4, S1, Fetch(*stage.stream(), payload=True, sequences=[1]))
    stage.settle()
    # Then
    assert stage.receipted() == [1]
    assert stage.messages(Supply, sender=S1, receiver=R4)


def test_a_history_that_could_not_be_echoed_at_first_is_echoed_when_its_batches_have_come() -> None:
    # Given: R1 is ready for a history, by the echoes of others, before it has its only batch.
    stage = Stage(topic({"broadcast": "authenticated", "history_every": 4}))
    payload, lane = event(b"event"), Stream(S1, topic_id("t"), Lane.HISTORIES)
    history = History(1, (digest(payload),)).encode()
    for replica in (R2, R3, R4):
        stage.say(replica, R1, Echo(*lane, 1, [digest(history)]))
    stage.settle()
    stage.say(R2, R1, Supply(*lane, [1], [history]))
    stage.settle()
    assert stage.messages(ReadyVote, sender=R1)
    assert not stage.messages(Echo, sender=R1)
    # When
    stage.say(S1, R1, Publish(lane.topic, Lane.EVENTS, False, 1, 1, [payload]))
    stage.pass_time(2)
    # Then
    assert stage.messages(Echo, sender=R1)


def test_runs_that_overlap_are_retained_once() -> None:
    retention, stream = Retention(), Stream(S1, topic_id("t"))
    payloads = [b"%d" % number * 10 for number in range(4)]
    digests = [digest(payload) for payload in payloads]
    retention.keep(stream, 2, digests[2:], payloads[2:])
    retention.keep(stream, 0, digests, payloads)
    assert retention.held_bytes == sum(map(len, payloads))
    assert retention.highest(stream) == 3
