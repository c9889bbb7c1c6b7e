"""Requests in, an order out: what a replica takes, proposes and accepts."""

from collections.abc import Callable
from itertools import count

import pytest

from council import (
    BYZANTINE,
    CRASH,
    NAMES,
    WALL_US,
    A,
    B,
    C,
    Council,
    Flight,
    T,
    payload_of,
    records,
    span_of,
    value_of,
)
from quorate.core.batch import encode_values
from quorate.core.header import plain_bytes_of
from quorate.core.ids import node_of
from quorate.core.ordering import (
    Accept,
    Announce,
    Append,
    Decision,
    Line,
    Ordered,
    Partition,
    Propose,
    Received,
    Retrieve,
    Retrieved,
    Standing,
    Stop,
    Stored,
    Write,
)
from quorate.crypto.digests import batch_digest
from quorate.protocol.ordering import backlog, snapshots, territory
from quorate.protocol.ordering import group as module
from quorate.protocol.ordering.clocks import CLOCK_AHEAD_US_MAX
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.records import Decided, Held, Snapshot, Voted
from quorate.protocol.ordering.value import CHAIN_START, Span, Value, chain_of, value_digest
from stage import described, event, opened

LIAR = 3
LARGE = event(bytes(INLINE_BYTES_MAX + 1))
BOTH = pytest.mark.parametrize("table", [BYZANTINE, CRASH], ids=["byzantine", "crash"])


def of_kind(*kinds: type) -> Callable[[Flight], bool]:
    return lambda flight: isinstance(flight.message, kinds)


def logs(council: Council) -> set[tuple[bytes, ...]]:
    return {tuple(council.log(replica)) for replica in council.seats}


def writes(council: Council, replica: int) -> int:
    return len({write.slot for write in council.messages(Write, sender=replica)})


# Requests


@BOTH
def test_what_publishers_hand_in_is_ordered_alike_everywhere(table: dict[str, object]) -> None:
    council = Council(table)
    council.publish(A, 1)
    council.publish(B, 1)
    council.publish(A, 2)
    council.settle()
    (log,) = logs(council)
    assert sorted(log) == [b"a1", b"a2", b"b1"]
    assert log.index(b"a1") < log.index(b"a2")


@BOTH
def test_every_replica_tells_the_publisher_the_position(table: dict[str, object]) -> None:
    council = Council(table)
    council.publish(A, 1, b"1", b"2")
    council.settle()
    told = council.messages(Ordered, receiver=A)
    assert told == [Ordered(T, 0, 1, 2, 0, WALL_US)] * len(council.members)


@BOTH
def test_a_request_that_comes_again_is_not_ordered_again(table: dict[str, object]) -> None:
    council = Council(table)
    council.publish(A, 1)
    council.publish(A, 1)
    council.settle()
    assert logs(council) == {(b"a1",)}

    council.sent.clear()
    council.publish(A, 1)
    council.settle()

    assert logs(council) == {(b"a1",)}
    # Whoever asks again has missed its receipts, and gets them.
    assert council.messages(Ordered, receiver=A) == [Ordered(T, 0, 1, 1, 0, WALL_US)] * len(
        council.members
    )


@BOTH
def test_a_replay_after_a_restart_is_recognised(table: dict[str, object]) -> None:
    council = Council(table)
    for number in (1, 2):
        council.publish(A, number)
        council.settle()
    for replica in council.members:
        council.seats[replica].disk.sync()
        council.reboot(replica)
    council.publish(A, 1)
    council.publish(A, 2)
    council.settle()
    assert logs(council) == {(b"a1", b"a2")}


@BOTH
def test_a_restart_behind_a_snapshot_goes_on_where_it_was(table: dict[str, object]) -> None:
    council = Council(table, snapshot_every=2)
    for number in range(1, 6):
        council.publish(A, number)
        council.settle()
    assert len(records(council.turns, Snapshot)) == 2 * len(council.members)
    for replica in council.members:
        council.seats[replica].disk.sync()
        council.reboot(replica)
    council.publish(A, 6)
    council.settle()
    assert logs(council) == {tuple(payload_of(A, number) for number in range(1, 7))}


@BOTH
def test_large_slots_bring_snapshots_sooner_and_not_everywhere_at_once(
    table: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_BATCHES", 8)
    council = Council(table)
    for first in (1, 4, 7):
        council.publish(A, first, b"x", b"y", b"z")
        council.settle()
    taken = records(council.turns, Snapshot)

    assert {snapshot.slot for snapshot in taken} == {2, 3}
    assert len(taken) == len(council.members)


@BOTH
def test_batches_that_were_replayed_count_towards_the_next_snapshot(
    table: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_BATCHES", 8)
    council = Council(table)
    council.publish(A, 1, b"1", b"2", b"3", b"4")
    council.settle()
    assert records(council.turns, Snapshot) == []
    for replica in council.members:
        council.seats[replica].disk.sync()
        council.reboot(replica)
    council.publish(A, 5, b"5", b"6", b"7", b"8")
    council.settle()

    assert [snapshot.slot for snapshot in records(council.turns, Snapshot)] == [2] * len(
        council.members
    )


def test_a_publisher_that_contradicts_itself_is_reported_and_its_first_word_stays() -> None:
    council = Council()
    council.publish(A, 1, b"one", to=[0])
    council.publish(A, 1, b"two", to=[0])
    assert [(r.node, r.kind) for r in council.reports(by=0)] == [(A, "contradiction")]
    assert council.group(0).backlog.lines[Line(A, T, 0)].payloads == [event(b"one")]


def test_a_publisher_that_says_two_things_to_two_halves_holds_up_nobody_but_itself() -> None:
    council = Council()
    council.publish(A, 1, b"one", to=(0, 1))
    council.publish(A, 1, b"two", to=(2, 3))
    council.publish(B, 1)
    council.run(5)
    assert all(b"b1" in council.log(replica) for replica in council.seats)
    assert len(logs(council)) == 1
    assert {council.group(replica).consensus.regency for replica in council.seats} == {1}


# Proposals


def test_a_slot_takes_from_every_publisher_what_waits() -> None:
    council = Council()
    council.publish(A, 1)
    council.deliver(of_kind(Received))
    for publisher, first in ((A, 2), (B, 1), (C, 1)):
        council.publish(publisher, first, b"1", b"2")
    council.settle()
    _, second = council.seats[0].store.decided(council.number, 1, 1 << 30)
    spans = Value.decode(second.value).spans
    assert [(span.publisher, span.batches) for span in spans] == [(A, 2), (B, 2), (C, 2)]


def test_a_publisher_with_much_does_not_keep_out_one_with_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLOT_BATCHES_MAX", 4)
    council = Council()
    # The first slot is under way when the rest comes.
    council.publish(C, 1)
    council.deliver(of_kind(Received))
    council.publish(A, 1, *[b"a"] * 20)
    council.publish(B, 1, b"b1", b"b2")
    council.settle()

    (log,) = logs(council)
    decided = council.seats[0].store.decided(council.number, 1, 1 << 30)
    second = Value.decode(decided[1].value)
    assert [(span.publisher, span.batches) for span in second.spans] == [(A, 2), (B, 2)]
    assert sorted(log) == sorted([b"c1", *[b"a"] * 20, b"b1", b"b2"])


def test_whoever_was_served_goes_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPANS_MAX", 1)
    council = Council()
    for publisher in (A, B):
        for number in (1, 2):
            council.publish(publisher, number)
    monkeypatch.setattr(module, "SLOT_BATCHES_MAX", 1)
    council.settle()
    assert logs(council) == {(b"a1", b"b1", b"a2", b"b2")}


def test_a_leader_proposes_what_2f_plus_1_replicas_received() -> None:
    council = Council()
    council.publish(A, 1, to=(0, 1))
    council.settle()
    assert council.messages(Propose) == []
    council.publish(A, 1, to=[2])
    council.settle()
    assert council.messages(Propose)
    assert council.group(0).consensus.slot == 2


def test_a_replica_does_not_write_what_it_cannot_believe() -> None:
    """The leader makes up a batch of a client."""
    council = Council(byzantine=(0,))
    value = value_of(span_of(A, 1, b"made up"))
    council.say(0, (1, 2, 3), Received(A, T, 0, 1, span_of(A, 1, b"made up").chain))
    council.say(0, (1, 2, 3), Propose(council.number, 1, 1, value))
    council.run(0.4)
    assert council.messages(Write) == []


def test_a_replica_that_missed_a_request_asks_the_others_and_believes_f_plus_1() -> None:
    council = Council()
    council.publish(A, 1, to=(0, 1, 2))
    # Otherwise it would accept what it sees that a quorum wrote.
    council.run(0.4, lambda f: not isinstance(f.message, Accept | Write) or f.sender == 3)
    assert council.messages(Retrieve, sender=3)
    assert writes(council, 3) == 1
    assert council.group(3).backlog.lines[Line(A, T, 0)].payloads == [event(b"a1")]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        value_of(span_of(A, 1, b"a1")) + b"x",
        value_of(span_of(A, 1, b"a1")._replace(publisher=77)),
        value_of(span_of(A, 1, b"a1"), time_us=WALL_US + CLOCK_AHEAD_US_MAX + 1),
        value_of(span_of(A, 1, b"a1"), time_us=-1),
    ],
    ids=[
        "no value", "more than a value", "an unknown publisher", "from the future",
        "before the beginning",
    ],
)  # fmt: skip
def test_a_proposal_that_may_not_be_is_not_written_and_its_leader_is_reported(
    value: bytes,
) -> None:
    council = Council(byzantine=(0,))
    council.publish(A, 1)
    council.say(0, (1, 2, 3), Propose(council.number, 1, 1, value))
    council.settle()
    assert council.messages(Write) == []
    assert {report.node for report in council.reports(by=1)} == {0}


@pytest.mark.parametrize(
    "span",
    [span_of(A, 1, b"a1")._replace(topic=77), span_of(A, 1, b"a1")._replace(partition=1)],
    ids=["topic", "partition"],
)
def test_a_proposal_for_what_is_not_known_yet_waits_and_nobody_is_reported(span: Span) -> None:
    council = Council(byzantine=(0,))
    council.publish(A, 1)
    council.say(0, (1, 2, 3), Propose(council.number, 1, 1, value_of(span)))
    council.settle()
    assert council.messages(Write) == []
    assert council.reports(by=1) == []


def test_a_proposal_of_more_than_a_slot_orders_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(territory, "SLOT_BATCHES_MAX", 2)
    council = Council(byzantine=(0,))
    for publisher in (A, B):
        council.publish(publisher, 1, b"1", b"2")
    value = value_of(span_of(A, 1, b"1", b"2"), span_of(B, 1, b"1"))
    council.say(0, (1, 2, 3), Propose(council.number, 1, 1, value))
    council.settle()
    assert council.messages(Write) == []
    assert {report.node for report in council.reports(by=1)} == {0}


def test_a_slot_orders_so_many_bytes_as_headers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes before compression: replicas that lack a payload know these as well."""
    monkeypatch.setattr(module, "SLOT_BYTES_MAX", 200)
    council = Council()
    zeros = encode_values([bytes(120)], 0, compression="zstd")
    council.publish(A, 1, *[zeros] * 3)
    council.publish(B, 1, zeros)
    council.settle()

    decided = council.seats[0].store.decided(council.number, 1, 1 << 30)
    spans = [Value.decode(each.value).spans for each in decided]
    assert len(zeros) < 100
    assert [sum(span.batches for span in each) for each in spans] == [1, 1, 1, 1]
    assert B in [span.publisher for each in spans[:2] for span in each]


def test_a_proposal_of_more_bytes_than_a_slot_orders_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    council = Council(byzantine=(0,))
    for publisher in (A, B):
        council.publish(publisher, 1, b"1", b"2")
    value = value_of(span_of(A, 1, b"1", b"2"), span_of(B, 1, b"1", b"2"))
    size = plain_bytes_of([described(b"1")])[0]
    monkeypatch.setattr(module, "SLOT_BYTES_MAX", 4 * size - 1)
    council.say(0, (1, 2, 3), Propose(council.number, 1, 1, value))
    council.settle()
    assert council.messages(Write) == []
    assert {report.node for report in council.reports(by=1)} == {0}


@pytest.mark.parametrize("first", [0, 2])
def test_a_proposal_that_leaves_something_out_is_not_written(first: int) -> None:
    council = Council(byzantine=(0,))
    council.publish(A, 1, b"1", b"2")
    value = value_of(span_of(A, first, b"2"))
    council.say(0, (1, 2, 3), Propose(council.number, 1, 1, value))
    council.settle()
    assert council.messages(Write) == []


def test_only_the_leader_proposes() -> None:
    council = Council(byzantine=(1,))
    council.publish(A, 1, to=(2, 3))
    council.say(1, (2, 3), Propose(council.number, 1, 1, value_of(span_of(A, 1, b"a1"))))
    council.settle()
    assert council.messages(Write) == []
    assert [(r.node, r.kind) for r in council.reports(by=2)] == [(1, "usurper")]


# Large batches


def large_batch(council: Council, stores: tuple[int, ...]) -> None:
    """The stores have the payload, the others its digest."""
    council.publish(A, 1, LARGE, to=stores)
    others = [replica for replica in council.seats if replica not in stores]
    council.say(A, others, Announce(T, 0, 1, [described(LARGE)]))


def test_a_large_batch_that_is_not_what_its_digest_says_is_not_taken() -> None:
    """Links do not prove large payloads: whoever takes one in does."""
    council = Council()
    council.say(A, council.seats, Append(T, 0, 1, [LARGE[:-1] + b"x"], [batch_digest(LARGE)]))
    assert {(report.node, report.kind) for report in council.reports()} == {(A, "altered")}
    assert council.flying == []

    council.say(A, council.seats, Append(T, 0, 1, [LARGE], [batch_digest(LARGE)]))
    council.settle()
    assert council.log(0) == [opened(LARGE)]


def test_a_large_batch_is_on_disk_before_its_store_says_so() -> None:
    council = Council()
    council.publish(A, 1, LARGE, to=[0])
    (turn,) = council.turns
    assert [type(record) for record in turn.ready.persist] == [Held]
    assert turn.ready.sync
    assert {type(message) for _, message in turn.ready.send} == {Stored}


def test_a_large_batch_is_ordered_once_f_plus_1_store_it() -> None:
    council = Council()
    large_batch(council, (0,))
    council.settle()
    # The leader has it itself, but nobody else can be sure of it.
    assert {council.group(replica).consensus.slot for replica in council.seats} == {1}
    council.publish(A, 1, LARGE, to=[1])
    council.settle()
    assert {council.group(replica).consensus.slot for replica in council.seats} == {2}
    assert [council.log(replica) for replica in council.seats] == [
        [opened(LARGE)],
        [opened(LARGE)],
        [],
        [],
    ]


def test_words_of_stores_that_come_before_the_line_count() -> None:
    council = Council()
    council.publish(A, 1, LARGE, to=(0, 1))
    council.settle()
    council.say(A, (2, 3), Announce(T, 0, 1, [described(LARGE)]))
    council.settle()
    assert {council.group(replica).consensus.slot for replica in council.seats} == {2}


# Writing down


def test_votes_and_payloads_are_synced_before_anything_leaves_that_rests_on_them() -> None:
    council = Council()
    council.publish(A, 1)
    council.settle()
    for turn in council.turns:
        kinds = {type(message) for _, message in turn.ready.send}
        if kinds & {Write, Accept}:
            assert turn.ready.sync
            assert records([turn], Voted)
    first = next(turn for turn in council.turns if records([turn], Voted))
    assert [type(record) for record in first.ready.persist] == [Held, Voted]


def test_a_decision_stands_behind_the_payloads_that_it_places() -> None:
    council = Council()
    council.publish(A, 1)
    council.settle()
    kinds = [type(record) for record in council.seats[2].disk.read()]
    assert kinds.index(Held) < kinds.index(Decided)


# Those who are behind


def test_one_replica_that_says_how_a_slot_was_decided_is_not_believed() -> None:
    council = Council(byzantine=(3,))
    council.publish(A, 1, to=[2])
    value = value_of(span_of(A, 1, b"a1"))
    decision = Decision(council.number, 1, value, described(b"a1"))
    council.say(3, [2], decision)
    council.say(3, [2], decision)
    assert council.group(2).consensus.slot == 1
    council.say(1, [2], decision)
    assert council.group(2).consensus.slot == 2


def test_where_nobody_lies_one_word_is_enough() -> None:
    council = Council(CRASH)
    value = value_of(span_of(A, 1, b"a1"))
    council.say(1, [2], Decision(council.number, 1, value, described(b"a1")))
    assert council.group(2).consensus.slot == 2


def test_decisions_that_overtake_each_other_are_applied_in_order() -> None:
    council = Council()
    first = span_of(A, 1, b"a1")
    second = span_of(A, 2, b"a2", before=first.chain)
    decisions = [
        Decision(council.number, slot, value_of(span), described(content))
        for slot, span, content in ((1, first, b"a1"), (2, second, b"a2"))
    ]
    for decision in reversed(decisions):
        council.say(0, [3], decision)
        council.say(1, [3], decision)
    assert council.group(3).consensus.slot == 3


def test_a_replica_that_is_behind_by_many_slots_catches_up() -> None:
    council = Council()
    for number in range(1, 20):
        council.publish(A, number)
        council.settle(lambda flight: 3 not in (flight.sender, flight.receiver))
    council.run(3)
    assert len(logs(council)) == 1
    assert len(council.log(3)) == 19


# The time of day


def clock_of(council: Council, replica: int = 0) -> int:
    return council.group(replica).clocks.time_of_day_us()


def hear_clocks(council: Council, *ahead_us: int) -> None:
    for replica, ahead in enumerate(ahead_us, 1):
        council.say(replica, [0], Standing(council.number, 1, 1, True, WALL_US + ahead))


def test_a_replica_alone_has_its_own_clock() -> None:
    assert clock_of(Council()) == WALL_US


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        ((0, 0, 0), 0),
        ((10**12, 0, 0), 0),
        ((-(10**12), 5, 0), 0),
        ((10**12, 7, 0), 7),
        ((3, 2, 1), 2),
        ((-3, -2, -1), -1),
    ],
)
def test_of_f_plus_1_clocks_that_are_furthest_ahead_the_last_is_believed(
    heard: tuple[int, ...], expected: int
) -> None:
    council = Council()
    hear_clocks(council, *heard)
    assert clock_of(council) == WALL_US + expected


def test_how_far_each_clock_is_from_the_one_that_is_believed() -> None:
    council = Council(ahead_us={0: -5})
    hear_clocks(council, 10**12, 7, 3)
    ahead_us = council.group(0).clocks.ahead_us()
    assert ahead_us == {0: -12, 1: 10**12 - 7, 2: 0, 3: -4}


def test_a_leader_that_has_just_restarted_does_not_go_by_its_own_clock_alone() -> None:
    """Seed 20151 of crash-ordering: an hour ahead, it ended all leases."""
    council = Council(CRASH)
    for number in (1, 2, 3):
        council.publish(A, number)
        council.settle()
    council.ahead_us[0] = 3_600_000_000
    council.reboot(0)
    leader = council.group(0)
    assert leader.log.state.time_us == WALL_US
    assert leader.consensus.is_leader
    assert not leader.clocks.is_sure
    council.publish(A, 4, to=(0,))
    proposed = leader.next_value()
    assert proposed is not None
    assert Value.decode(proposed).time_us == WALL_US


def test_a_clock_that_is_wrong_by_years_changes_nothing() -> None:
    council = Council(ahead_us={0: 10**14})
    council.run(1.5)
    council.publish(A, 1)
    council.settle()
    assert logs(council) == {(b"a1",)}
    assert all(0 <= each.time_us - WALL_US < 10**7 for each in council.messages(Ordered))


def test_the_time_of_the_log_never_goes_back() -> None:
    council = Council()
    council.publish(A, 1)
    council.settle()
    for replica in council.members:
        council.ahead_us[replica] = -(10**8)
    council.run(1.5)
    council.publish(A, 2)
    council.settle()
    times = [each.time_us for each in council.messages(Ordered, sender=0)]
    assert times == [WALL_US, WALL_US]
    assert logs(council) == {(b"a1", b"a2")}


def test_a_time_before_that_of_the_log_is_not_written() -> None:
    council = Council(byzantine=(0,))
    council.publish(A, 1, b"a1", b"a2")
    chain = span_of(A, 1, b"a1").chain
    values = [
        value_of(span_of(A, 1, b"a1")),
        value_of(span_of(A, 2, b"a2", before=chain), time_us=WALL_US - 1),
    ]
    for slot, value in enumerate(values, 1):
        council.say(0, (1, 2, 3), Propose(council.number, 1, slot, value))
        council.say(0, (1, 2, 3), Write(council.number, 1, slot, value_digest(value)))
        council.settle()
    assert {write.slot for write in council.messages(Write)} == {1}
    assert "bad-clock" in {report.kind for report in council.reports()}


# What a power cut took


def test_a_replica_gives_payloads_that_it_has_decided_to_those_who_lack_them() -> None:
    council = Council()
    council.publish(A, 1, b"a1", b"a2", b"a3")
    council.settle()
    council.sent.clear()
    council.say(3, [0], Retrieve(A, T, 0, 2, 5))
    (given,) = council.messages(Retrieved, receiver=3)
    assert (given.first, [*map(opened, given.payloads)]) == (2, [b"a2", b"a3"])
    council.say(3, [0], Retrieve(A, T, 0, 4, 1))
    assert len(council.messages(Retrieved, receiver=3)) == 1


def test_what_retention_took_is_not_given_as_what_stands_behind_it() -> None:
    """Where a batch stands is found from the first of those that were decided with it."""
    council = Council()
    council.publish(A, 1, b"a1", b"a2", b"a3", b"a4")
    council.settle()
    council.reboot(0)
    council.run(1)
    # It is not in memory any more.
    council.group(0).readers.start_over()
    kept = council.seats[0].store._kept(Partition(T, 0))
    kept.start = kept.slots[2].offset
    del kept.slots[:2]
    council.sent.clear()

    council.say(3, [0], Retrieve(A, T, 0, 2, 1))

    assert council.messages(Retrieved, receiver=3) == []


def test_what_is_not_on_disk_yet_is_given_from_memory() -> None:
    council = Council()
    council.publish(A, 1, b"a1", b"a2", to=[0])
    value = value_of(span_of(A, 1, b"a1", b"a2"))
    decision = Decision(council.number, 1, value, described(b"a1") + described(b"a2"))
    for sender in (1, 2):
        council.step(sender, 0, decision)

    council.step(3, 0, Retrieve(A, T, 0, 2, 1))

    assert council.group(0).consensus.slot == 2
    council.collect()
    (given,) = council.messages(Retrieved, receiver=3)
    assert (given.first, [*map(opened, given.payloads)]) == (2, [b"a2"])


def test_one_word_is_enough_for_the_digests_of_a_value_that_is_bound() -> None:
    council = Council()
    span = span_of(A, 1, b"a1", LARGE)
    value = value_of(span)
    decision = Decision(council.number, 1, value, described(b"a1") + described(LARGE))
    council.publish(A, 1, b"a1", to=[2])
    waiting = council.group(2).backlog.lines[span.line]
    council.say(0, [2], decision)
    assert not waiting.matches(span)
    council.group(2).consensus.bound = {1: value_digest(value)}
    council.say(0, [2], decision)
    assert waiting.matches(span)
    # What was known of it is still known.
    assert waiting.payloads == [event(b"a1"), None]


# Doubt


def test_a_leader_that_owes_nothing_is_left_in_peace() -> None:
    council = Council()
    council.run(20)
    assert {council.group(replica).consensus.regency for replica in council.seats} == {1}


def test_what_enough_replicas_have_is_ordered_though_each_has_more_of_the_line_than_another() -> (
    None
):
    """The chain of a longer line says nothing to whoever has a shorter one."""
    council = Council(byzantine=(2,))
    for replica, batches in ((0, 1), (1, 2), (3, 3)):
        council.publish(A, 1, *[payload_of(A, each + 1) for each in range(batches)], to=[replica])
    council.run(0.4)
    assert {council.group(replica).consensus.regency for replica in (0, 1, 3)} == {1}
    assert [council.log(replica) for replica in (0, 1, 3)] == [[payload_of(A, 1)]] * 3


def test_a_leader_that_leaves_a_slot_undecided_is_doubted_though_nothing_waits() -> None:
    """One of f + 1 that voted is correct; what one alone says may be a lie."""
    council = Council(byzantine=(3,))
    vote = Write(council.number, 1, 1, value_digest(b"?"))
    council.say(3, [2], vote)
    council.run(3)
    assert not council.messages(Stop, sender=2)

    council.say(1, [2], vote)
    council.run(3)
    assert council.messages(Stop, sender=2)


def test_a_leader_is_not_to_blame_for_what_is_decided_and_cannot_be_carried_out_yet() -> None:
    council = Council()
    for sender in (0, 1, 3):
        council.say(sender, [2], Accept(council.number, 1, 1, value_digest(b"?")))
    council.run(3)
    assert not council.messages(Stop, sender=2)


def test_an_append_beyond_a_gap_waits_for_nothing() -> None:
    council = Council()
    council.publish(A, 5)
    council.run(3)
    assert logs(council) == {()}
    assert {council.group(replica).consensus.regency for replica in council.seats} == {1}


def test_chains_cover_the_whole_line() -> None:
    """What is said of a line fits one history only, however long it is."""
    council = Council()
    council.publish(A, 1, b"1", b"2")
    council.settle()
    waiting = council.group(2).backlog.lines[Line(A, T, 0)]
    assert waiting.base == chain_of(CHAIN_START, map(described, (b"1", b"2")))[-1]


def test_what_comes_of_a_publisher_that_lost_its_access_holds_up_no_leader() -> None:
    # Given a leader that heard of a batch, and asked for it,
    council = Council()
    council.publish(A, 1, to=(1, 2, 3))
    council.run(0.1, of_kind(Received))
    assert council.messages(Retrieve, sender=0)
    # and access that was taken from its publisher before the answer came.
    for replica, seat in council.seats.items():
        seat.ordering._names = {number: name for number, name in NAMES.items() if number != A}
        council.group(replica).backlog.pass_over_what_may_not_be()
    waiting = council.group(1).backlog.lines[Line(A, T, 0)]
    council.say(1, [0], Retrieved(A, T, 0, 1, waiting.descriptors, [event(payload_of(A, 1))]))
    council.run(0.05)

    # When somebody else publishes, then that is ordered, by the same leader.
    council.publish(B, 1)
    council.run(0.3)
    assert logs(council) == {(b"b1",)}
    assert council.messages(Propose, sender=0)[0].value == value_of(span_of(B, 1, b"b1"))


# What a publisher and a replica that lie do together


def test_a_batch_without_a_byte_can_be_had_from_others() -> None:
    """It is written by two, and by the third only if it comes to have it."""
    council = Council(byzantine=(LIAR,))
    council.publish(A, 1, b"", to=(0, 1))
    council.say(LIAR, (0, 1, 2), Received(A, T, 0, 1, span_of(A, 1, b"").chain))
    council.publish(B, 1)
    council.run(1)
    assert logs(council) == {(b"", b"b1")}


def test_who_speaks_of_what_is_further_does_not_put_off_what_is_proposed() -> None:
    council = Council(byzantine=(LIAR,))
    council.publish(A, 1, to=(0, 1))
    council.say(LIAR, (0, 1, 2), Received(A, T, 0, 1, span_of(A, 1, b"a1").chain))
    council.settle()
    council.publish(A, 2, to=(0, 1))
    further = Received(A, T, 0, 2, span_of(A, 1, b"a1", b"a2").chain)
    council.say(1, [2], further)
    for _ in range(100):
        council.say(LIAR, [2], further)
        council.run(0.005)
    assert b"a1" in council.log(2)


def test_who_speaks_of_lines_without_end_does_not_make_us_forget_what_is_proposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "HEARSAY_MAX", 8)
    council, sessions = Council(byzantine=(LIAR,)), count(1)
    council.publish(A, 1, to=(0, 1))
    council.say(LIAR, (0, 1, 2), Received(A, T, 0, 1, span_of(A, 1, b"a1").chain))
    council.settle()
    for _ in range(100):
        for _ in range(9):
            council.say(LIAR, [2], Received(node_of(B, next(sessions)), T, 0, 1, CHAIN_START))
        council.run(0.005)
    assert b"a1" in council.log(2)
    assert len(council.group(2).backlog.lines) <= 8 + 1


def test_what_a_replica_said_it_stores_is_there_when_it_is_decided_after_all() -> None:
    """A publisher says two things, and so does a leader. One replica has the payload of what is
    decided, and was told of the other batch meanwhile."""
    liar, store, other, third = 0, 1, 2, 3
    mine, theirs = span_of(A, 1, LARGE), span_of(A, 1, b"y")
    council = Council(byzantine=(liar,))
    council.publish(A, 1, LARGE, to=[store])
    council.publish(A, 1, b"y", to=[other])
    council.say(A, [third], Announce(T, 0, 1, [described(LARGE)]))
    council.deliver(lambda flight: flight.receiver == third)
    late = council.messages(Stored, sender=store, receiver=other)[0]
    council.drop()

    # Given a store that comes to believe, and vote for, the other batch,
    council.say(liar, [store], Received(*theirs.line, 1, theirs.chain))
    council.say(liar, [store], Propose(council.number, 1, 1, value_of(theirs)))
    council.run(0.2, of_kind(Retrieve, Retrieved, Received))
    assert writes(council, store) == 1

    # when the batch that it stores is decided by the others, for it is known to be stored,
    value = value_of(mine)
    council.say(liar, [other, third], Received(*mine.line, 1, mine.chain))
    council.say(liar, [other, third], Propose(council.number, 1, 1, value))
    council.run(0.2, of_kind(Retrieve, Retrieved, Received))
    for word in (late, Stored(*mine.line, 1, 1, mine.chain)):
        council.say(store if word is late else liar, [other, third], word)
    council.say(liar, council.seats, Write(council.number, 1, 1, value_digest(value)))
    council.say(liar, council.seats, Accept(council.number, 1, 1, value_digest(value)))
    council.run(2)

    # then it has it.
    assert {council.group(replica).consensus.slot for replica in council.seats} == {2}
    assert council.log(store) == [opened(LARGE)]
