"""Every checker finds what it is for, and nothing in a run without it."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from quorate.core.ids import Lane, NodeId, Sequence, Stream, topic_id
from quorate.crypto.digests import digest
from quorate.protocol.machine import Answered, Delivery, Receipt
from quorate.sim import checkers
from quorate.sim.checkers import (
    LIVENESS,
    SAFETY,
    BatchId,
    Checker,
    Conduct,
    Promises,
    Record,
    check,
)

TOPIC = topic_id("events")
CORRECT, CRASHED, BYZANTINE, STRANGER = 1000, 1001, 1002, 1009
FIRST, SECOND = 2000, 2001
EVERYTHING = Promises(
    agreement_for_byzantine_sources=True,
    totality_for_all=True,
    receipts_survive_their_source=True,
    fifo=True,
)
ALL = (*SAFETY, *LIVENESS)


def payload_of(source: NodeId, sequence: Sequence) -> bytes:
    return f"{source}:{sequence}".encode()


def delivery(
    source: NodeId, sequence: Sequence, payload: bytes | None = None, *, repaired: bool = False
) -> Delivery:
    content = payload_of(source, sequence) if payload is None else payload
    return Delivery(Stream(source, TOPIC), sequence, digest(content), content, (0, 1), repaired)


def receipt(source: NodeId, first: Sequence, last: Sequence, lane: Lane = Lane.EVENTS) -> Receipt:
    return Receipt(Stream(source, TOPIC, lane), first, last, (0, 1), "it will arrive")


def good_record() -> Record:
    """The correct source published 1 to 3, the crashed one 1 and 2, and had a receipt for 1."""
    conducts = {
        CORRECT: Conduct.CORRECT,
        CRASHED: Conduct.CRASHED,
        BYZANTINE: Conduct.BYZANTINE,
    }
    record = Record(conducts, (FIRST, SECOND))
    for source, sequence in [(CORRECT, 1), (CORRECT, 2), (CORRECT, 3), (CRASHED, 1), (CRASHED, 2)]:
        record.published[BatchId(source, TOPIC, sequence)] = payload_of(source, sequence)
    everything = [(CORRECT, 1), (CRASHED, 1), (CORRECT, 2), (BYZANTINE, 7), (CORRECT, 3)]
    for destination in (FIRST, SECOND):
        record.deliveries[destination] = [delivery(*each) for each in everything]
    record.receipts[CORRECT] = [receipt(CORRECT, 1, 2), receipt(CORRECT, 3, 3)]
    record.receipts[CRASHED] = [receipt(CRASHED, 1, 1)]
    return record


def names(record: Record, promises: Promises = EVERYTHING) -> set[str]:
    return {violation.checker for violation in check(record, promises, ALL)}


def remove(record: Record, destination: NodeId, source: NodeId, sequence: Sequence) -> None:
    record.deliveries[destination] = [
        each
        for each in record.deliveries[destination]
        if (each.stream.publisher, each.sequence) != (source, sequence)
    ]


def test_a_good_run_violates_nothing() -> None:
    assert check(good_record(), EVERYTHING, ALL) == []


@pytest.mark.parametrize("checker", ALL)
def test_every_checker_says_in_a_sentence_what_it_holds(checker: Checker) -> None:
    assert checker.__doc__ is not None
    assert checker.__doc__.endswith(".")


def test_integrity_finds_a_forged_content() -> None:
    record = good_record()
    for destination in record.destinations:
        remove(record, destination, CORRECT, 2)
        record.deliveries[destination].insert(2, delivery(CORRECT, 2, b"forged"))
    assert names(record) == {"integrity"}


@pytest.mark.parametrize(("source", "sequence"), [(CORRECT, 9), (CRASHED, 9), (STRANGER, 1)])
def test_integrity_finds_what_nobody_published(source: NodeId, sequence: Sequence) -> None:
    record = good_record()
    for destination in record.destinations:
        record.deliveries[destination].append(delivery(source, sequence))
    assert names(record) == {"integrity"}


def test_integrity_owes_nothing_to_a_byzantine_source() -> None:
    record = good_record()
    for destination in record.destinations:
        record.deliveries[destination].append(delivery(BYZANTINE, 9, b"whatever"))
    assert names(record) == set()


def test_no_duplication_finds_a_batch_that_is_delivered_twice() -> None:
    record = good_record()
    record.deliveries[FIRST].append(delivery(CORRECT, 3))
    violations = check(record, replace(EVERYTHING, fifo=False), ALL)
    assert [violation.checker for violation in violations] == ["no duplication"]
    assert violations[0].sentence == "2000 delivered batch 3 of 1000 twice"


def test_agreement_finds_two_contents_even_of_a_byzantine_source() -> None:
    record = good_record()
    remove(record, SECOND, BYZANTINE, 7)
    record.deliveries[SECOND].append(delivery(BYZANTINE, 7, b"something else"))
    assert names(record) == {"agreement"}
    assert names(record, replace(EVERYTHING, agreement_for_byzantine_sources=False)) == set()


def test_agreement_about_a_correct_source_is_promised_by_all() -> None:
    record = good_record()
    remove(record, SECOND, CORRECT, 3)
    record.deliveries[SECOND].append(delivery(CORRECT, 3, b"something else"))
    promises = replace(EVERYTHING, agreement_for_byzantine_sources=False)
    assert names(record, promises) == {"agreement", "integrity"}


def test_order_finds_a_number_that_falls_where_fifo_was_promised() -> None:
    record = good_record()
    record.deliveries[FIRST].reverse()
    assert names(record) == {"order"}
    assert names(record, replace(EVERYTHING, fifo=False)) == set()


def test_order_is_about_each_stream_by_itself() -> None:
    record = good_record()
    record.deliveries[SECOND].sort(key=lambda each: -each.stream.publisher)
    assert names(record) == set()


def test_validity_finds_a_batch_of_a_correct_source_that_reached_nobody() -> None:
    record = good_record()
    for destination in record.destinations:
        remove(record, destination, CORRECT, 2)
    violations = check(record, EVERYTHING, ALL)
    assert [violation.checker for violation in violations] == ["validity", "validity"]
    assert violations[0].batch == BatchId(CORRECT, TOPIC, 2)
    assert names(record, replace(EVERYTHING, liveness=False)) == set()


def test_validity_is_not_owed_to_a_source_that_crashed_or_lies() -> None:
    record = good_record()
    record.published[BatchId(BYZANTINE, TOPIC, 8)] = b"never arrives"
    record.published[BatchId(CRASHED, TOPIC, 3)] = b"neither does this"
    assert names(record) == set()


def test_totality_finds_a_batch_that_reached_one_and_not_the_other() -> None:
    record = good_record()
    remove(record, SECOND, BYZANTINE, 7)
    assert names(record) == {"totality"}
    assert names(record, replace(EVERYTHING, totality_for_all=False)) == set()


def test_totality_holds_for_whatever_a_history_repaired() -> None:
    record = good_record()
    remove(record, SECOND, BYZANTINE, 7)
    remove(record, FIRST, BYZANTINE, 7)
    record.deliveries[FIRST].append(delivery(BYZANTINE, 7, repaired=True))
    assert names(record, replace(EVERYTHING, totality_for_all=False)) == {"totality"}


def test_receipts_finds_a_receipted_batch_that_was_lost_with_its_source() -> None:
    record = good_record()
    for destination in record.destinations:
        remove(record, destination, CRASHED, 1)
    assert names(record) == {"receipts"}
    assert names(record, replace(EVERYTHING, receipts_survive_their_source=False)) == set()


@pytest.mark.parametrize(
    "receipts",
    [
        [],
        [receipt(CORRECT, 1, 2)],
        [receipt(CORRECT, 1, 2), receipt(CORRECT, 3, 3, Lane.HISTORIES)],
    ],
)
def test_progress_finds_a_batch_without_a_receipt(receipts: list[Receipt]) -> None:
    record = good_record()
    record.receipts[CORRECT] = receipts
    assert names(record) == {"progress"}
    assert names(record, replace(EVERYTHING, liveness=False)) == set()


def test_progress_finds_a_source_that_waits_for_room_until_the_end() -> None:
    record = good_record()
    record.unpublished = {CORRECT: 0, CRASHED: 3, BYZANTINE: 3}
    assert names(record) == set()
    record.unpublished[CORRECT] = 2
    assert names(record) == {"progress"}
    assert names(record, replace(EVERYTHING, liveness=False)) == set()


def test_a_record_takes_from_the_world_what_concerns_its_nodes() -> None:
    # Given
    record = Record({CORRECT: Conduct.CORRECT}, (FIRST,))
    # When
    outcomes: Iterable[tuple[NodeId, Delivery | Receipt | Answered]] = (
        (FIRST, delivery(CORRECT, 1)),
        (SECOND, delivery(CORRECT, 1)),
        (FIRST, Answered(1, "")),
        (CORRECT, receipt(CORRECT, 1, 1)),
        (CRASHED, receipt(CRASHED, 1, 1)),
    )
    for node, outcome in outcomes:
        record.on_outcome(node, outcome)
    # Then
    assert [batch for batch, _ in record.delivered(FIRST)] == [BatchId(CORRECT, TOPIC, 1)]
    assert record.receipted(CORRECT) == {BatchId(CORRECT, TOPIC, 1)}
    assert set(record.deliveries) == {FIRST}
    assert set(record.receipts) == {CORRECT}


def test_the_checkers_share_no_code_with_the_protocols() -> None:
    modules = {
        getattr(value, "__module__", "")
        for value in vars(checkers).values()
        if not isinstance(value, str)
    }
    used = {module for module in modules if str(module).startswith("quorate.protocol")}
    assert used <= {"quorate.protocol.machine"}
