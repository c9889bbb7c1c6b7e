"""Chain: who may send what to whom, and how a source finds a chain that works."""

from itertools import combinations

import pytest

from quorate.core.filter import Filter
from quorate.core.ids import Lane, topic_id
from quorate.core.limits import WINDOW_BATCHES, WINDOWS
from quorate.core.messages import Ack, Fetch, Link, Status, Supply
from quorate.crypto.digests import digest
from quorate.protocol.broadcast import chain
from quorate.protocol.broadcast.history import ASK_SOURCE_AFTER_US
from quorate.protocol.machine import Receipt
from quorate.protocol.topic import Topic
from stage import D1, D2, R1, R2, R3, R4, S1, S2, Stage, event, pairwise_macs, topic

CHAIN: dict[str, object] = {"broadcast": "chain", "history_every": 0}
T = topic_id("t")


def a_link(
    each: Topic, first: int, *values: bytes, number: int = 0, settled: int = 1, source: int = S1
) -> Link:
    """A run as its source would send it."""
    payloads = [event(value) for value in values]
    return a_link_of(each, first, payloads, number=number, settled=settled, source=source)


def a_link_of(
    each: Topic,
    first: int,
    payloads: list[bytes],
    *,
    number: int = 0,
    settled: int = 1,
    source: int = S1,
) -> Link:
    bare = Link(source, each.id, False, first, settled, number, payloads, [])
    contents = [digest(payload) for payload in payloads]
    tags = chain.source_authenticators(bare, contents, each, pairwise_macs(source))
    return Link(source, each.id, False, first, settled, number, payloads, tags)


@pytest.mark.parametrize("f", [1, 2, 3])
def test_any_two_chains_share_a_correct_replica(f: int) -> None:
    each = topic(CHAIN, f=f)
    chains = [set(each.chain(number)) for number in range(len(each.members))]

    assert all(len(members) == 2 * f + 1 for members in chains)
    assert all(len(a & b) >= f + 1 for a, b in combinations(chains, 2))


def test_there_is_a_chain_that_starts_with_each_replica() -> None:
    each = topic(CHAIN)

    assert [each.chain(number)[0] for number in range(4)] == [R1, R2, R3, R4]
    assert each.chain(3) == (R4, R1, R2)
    assert each.chain(4) == each.chain(0)


def test_a_run_that_comes_from_the_wrong_side_is_refused() -> None:
    stage = Stage(topic(CHAIN), sources=(S1, S2))
    link = a_link(stage.topics[0], 1, b"m1")

    stage.say(R3, R2, link)
    stage.say(S2, R1, link)
    stage.say(R1, R4, link)
    stage.settle()

    assert stage.reported("misrouted") == [S2, R3, R1]
    assert stage.values(D1) == []


def test_a_run_for_a_publisher_that_is_not_registered_is_refused() -> None:
    stage = Stage(topic(CHAIN), sources=(S1, S2), opened=False)
    stage.say(S1, R1, a_link(stage.topics[0], 1, b"m1"))
    stage.settle()

    assert stage.reported("rejected", by=R1) == [S1]


@pytest.mark.parametrize("payload", [b"", b"no header", b"\2\1" + event(b"signed")[2:]])
def test_a_run_with_what_is_no_batch_is_not_passed_on(payload: bytes) -> None:
    stage = Stage(topic(CHAIN))
    stage.say(S1, R1, a_link_of(stage.topics[0], 1, [event(b"m1"), payload]))
    stage.settle()

    assert stage.values(D1) == []
    assert stage.reported("bad-batch") == [S1]


def test_a_replica_accepts_one_content_per_number_and_names_who_sends_two() -> None:
    stage = Stage(topic(CHAIN))
    stage.say(S1, R1, a_link(stage.topics[0], 1, b"m1"))
    stage.settle()

    stage.say(S1, R1, a_link(stage.topics[0], 1, b"another"))
    stage.settle()

    assert stage.values(D1) == [b"m1"]
    assert stage.reported("equivocation", by=R1) == [S1]


def test_a_second_content_by_another_chain_is_refused_by_the_replica_that_both_share() -> None:
    stage = Stage(topic(CHAIN), destinations=(D1, D2))
    stage.say(S1, R1, a_link(stage.topics[0], 1, b"m1"))
    stage.settle()

    stage.say(S1, R2, a_link(stage.topics[0], 1, b"another", number=1))
    stage.say(S1, R4, a_link(stage.topics[0], 1, b"another", number=3))
    stage.settle()

    assert stage.values(D1) == stage.values(D2) == [b"m1"]


def test_what_was_passed_on_once_is_passed_on_again_and_delivered_once() -> None:
    stage = Stage(topic(CHAIN))
    lost = stage.drop(Link, sender=R3)
    stage.say(S1, R1, a_link(stage.topics[0], 1, b"m1"))
    stage.settle()
    stage.release(lost)

    for _ in range(3):
        stage.say(S1, R1, a_link(stage.topics[0], 1, b"m1"))
        stage.settle()

    assert stage.values(D1) == [b"m1"]


def test_a_source_is_not_accused_for_an_old_run_that_its_replica_gave_up() -> None:
    stage = Stage(topic(CHAIN))
    stage.say(S1, R1, a_link(stage.topics[0], 9, b"m9", settled=9))
    stage.settle()

    stage.say(S1, R1, a_link(stage.topics[0], 3, b"m3"))
    stage.settle()

    assert stage.reported("equivocation") == []


def test_a_full_queue_stops_the_run_and_tells_the_source_to_wait() -> None:
    stage = Stage(topic({**CHAIN, "queue_events_max": 4}))
    stage.brokers[R3].writable(D1, False)
    for number in range(1, 20):
        stage.say(S1, R1, a_link(stage.topics[0], number, b"m%d" % number))
        stage.settle()

    last = [a.status for a in stage.messages(Ack, sender=R3, receiver=S1)][-1]
    assert last is Status.WAIT
    assert stage.brokers[R3].topics[T].scope.channel.depth_events <= 5


def test_a_source_has_its_receipt_when_the_last_f_plus_one_of_the_chain_have_it() -> None:
    stage = Stage(topic(CHAIN))
    tail = stage.hold(Ack, sender=R3)
    stage.publish(S1, b"m1")
    stage.settle()
    assert stage.receipted(S1) == []

    stage.release(tail)
    stage.settle()
    (receipt,) = stage.outcomes_of(S1, Receipt)
    assert receipt.replicas == (R2, R3)


@pytest.mark.parametrize("faulty", [R1, R2])
def test_a_source_leaves_a_chain_that_makes_no_progress(faulty: int) -> None:
    stage = Stage(topic(CHAIN))
    stage.drop(Link, sender=faulty)

    stage.publish(S1, b"m1", b"m2")
    stage.pass_time(3)

    assert sorted(stage.values(D1)) == [b"m1", b"m2"]
    assert stage.receipted(S1) == [1, 2]
    assert stage.reported("chain-abandoned", by=S1)[0] == R1


@pytest.mark.parametrize("faulty", [R1, R2])
def test_a_source_leaves_a_chain_whose_replica_passes_nothing_on_and_wants_it_again(
    faulty: int,
) -> None:
    stage = Stage(topic(CHAIN))
    stage.drop(Link, sender=faulty)

    stage.publish(S1, b"m1", b"m2")
    for _ in range(30):
        stage.say(faulty, S1, Ack(T, Lane.EVENTS, Status.RESUME, 0))
        stage.pass_time(0.1)

    assert sorted(stage.values(D1)) == [b"m1", b"m2"]
    assert stage.receipted(S1) == [1, 2]


@pytest.mark.parametrize("alpha", [0, 4])
def test_a_source_leaves_a_chain_whose_tail_acknowledges_and_keeps_everything(alpha: int) -> None:
    stage = Stage(topic({**CHAIN, "history_every": alpha}))
    stage.drop(Link, sender=R3, receiver=D1)

    for number in range(8):
        stage.publish(S1, b"%d" % number)
        stage.pass_time(0.5)

    assert sorted(stage.values(D1)) == [b"%d" % number for number in range(8)]
    assert stage.reported("chain-abandoned", by=S1)[0] == R1


def test_a_source_leaves_a_chain_whose_head_is_out_of_reach() -> None:
    stage = Stage(topic(CHAIN))
    stage.disconnect(S1, R1)

    stage.publish(S1, b"m1")
    stage.pass_time(2)

    assert stage.values(D1) == [b"m1"]


def test_a_source_leaves_a_chain_that_f_plus_one_replicas_complain_of_and_not_one() -> None:
    stage = Stage(topic(CHAIN))
    stage.publish(S1, b"m1")
    stage.settle()
    complaint = Ack(T, stage.stream().lane, Status.REPAIR, 1)

    for _ in range(3):
        stage.say(R4, S1, complaint)
        stage.settle()
    assert stage.reported("chain-abandoned") == []

    stage.say(R2, S1, complaint)
    stage.settle()
    assert stage.reported("chain-abandoned") == [R1]


def test_a_complaint_is_no_acknowledgement_of_a_history() -> None:
    """Chain, f = 1, seed 576: a replica that lacked a history had 'acknowledged' a later one."""
    stage = Stage(topic({**CHAIN, "history_every": 2}))
    stage.drop(Link)
    acks = stage.drop(Ack)
    stage.publish(S1, b"m1", b"m2")
    stage.settle()
    stage.release(acks)

    for replica in (R1, R2, R3, R4):
        stage.say(replica, S1, Ack(T, Lane.HISTORIES, Status.REPAIR, 1))
    stage.settle()

    assert stage.outcomes_of(S1, Receipt) == []


def test_a_replica_complains_of_batches_that_it_is_asked_for_and_not_of_histories() -> None:
    stage = Stage(topic({**CHAIN, "history_every": 2}))
    stage.publish(S1, b"m1", b"m2")
    stage.settle()

    stage.say(D1, R1, Fetch(S1, T, Lane.HISTORIES, payload=True, sequences=[1]))
    stage.settle()
    assert Status.REPAIR not in [ack.status for ack in stage.messages(Ack, sender=R1)]

    stage.say(D1, R1, Fetch(S1, T, Lane.EVENTS, payload=True, sequences=[2]))
    stage.settle()
    assert Ack(T, Lane.EVENTS, Status.REPAIR, 2) in stage.messages(Ack, sender=R1)


def test_a_source_leaves_a_chain_whose_replicas_had_to_come_to_it_for_batches() -> None:
    stage = Stage(topic({**CHAIN, "history_every": 4}))
    stage.drop(Link, sender=R1)

    stage.publish(S1, *[b"%d" % number for number in range(8)])
    stage.pass_time(2 * ASK_SOURCE_AFTER_US / 1e6)

    assert stage.reported("chain-abandoned") == [R1]
    assert sorted(stage.values(D1)) == [b"%d" % number for number in range(8)]


def test_a_replica_outside_a_chain_that_comes_for_batches_says_nothing_about_it() -> None:
    stage = Stage(topic({**CHAIN, "history_every": 4}))
    held = stage.hold(Ack)
    stage.publish(S1, b"m1")
    stage.settle()

    for replica in (R4, R1, R4):
        stage.say(replica, S1, Fetch(*stage.stream(), payload=True, sequences=[1]))
    stage.settle()
    assert stage.reported("chain-abandoned") == []

    stage.say(R2, S1, Fetch(*stage.stream(), payload=True, sequences=[1]))
    stage.settle()
    assert stage.reported("chain-abandoned") == [R1]
    stage.release(held)


def test_a_subscriber_that_cannot_repair_yet_is_not_overrun() -> None:
    """What the end of the chain kept to itself comes late. Nothing of it may be given up."""
    stage = Stage(topic({**CHAIN, "history_every": 64}))
    source, sent = stage.sources[S1], 0
    broken = stage.drop(Link, receiver=D1)
    slow = stage.hold(Supply, receiver=D1)
    for turn in range(40):
        if turn == 2:
            stage.release(broken)
        while source.has_room("t") and sent < 3 * WINDOW_BATCHES:
            sent = stage.publish(S1, b"%05d" % sent)
        stage.pass_time(0.05)
    assert WINDOWS.lag < sent < WINDOW_BATCHES

    stage.release(slow)
    stage.pass_time(2)

    assert sorted(stage.values(D1)) == [b"%05d" % number for number in range(sent)]
    assert stage.skipped(D1) == []
    assert source.has_room("t")


def test_a_subscriber_with_a_filter_neither_asks_for_the_rest_nor_complains_of_the_chain() -> None:
    stage = Stage(topic(CHAIN), opened=False)
    stage.sources[S1].register("t")
    stage.subscribe(D1, wanted=Filter(key_prefix=b"k"))
    stage.settle()
    for number in range(10):
        key = b"k" if number % 2 else b"z"
        stage.sources[S1].publish("t", event(b"%d" % number, key=key))
        stage.pass_time(0.3)

    assert stage.values() == [b"1", b"3", b"5", b"7", b"9"]
    assert stage.messages(Fetch) == []
    assert stage.reported("chain-abandoned") == []


def test_a_chain_without_traffic_is_not_left() -> None:
    stage = Stage(topic(CHAIN))
    stage.publish(S1, b"m1")
    stage.settle()

    stage.pass_time(10)

    assert stage.reported("chain-abandoned") == []
