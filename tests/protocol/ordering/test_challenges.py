"""A store that signed a receipt and does not deliver is proved faulty, and nobody else is."""

import msgspec
import pytest

from council import READER, VALIDATED, A, Council, T, sealed_by
from quorate.core.header import SEAL_BYTES
from quorate.core.ids import NodeId
from quorate.core.ordering import (
    Absent,
    AskReceipts,
    Challenge,
    Entries,
    Fill,
    Follow,
    Line,
    Partition,
    Receipts,
    Refusal,
    Stored,
    Wants,
)
from quorate.crypto.evidence import FalseReceipt, Keys, parse, verify_evidence
from quorate.protocol.misbehaviour import Forget
from quorate.protocol.ordering.challenges import ANSWER_US_MAX, ASKED_MAX
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.placement import stores_of
from quorate.sim.disks import SimDisk
from quorate.sim.order_stage import SimNotary
from quorate.sim.sealing import CLUSTER, public_key

PARTITION = Partition(T, 0)
FIRST, SECOND, THIRD, LAST = stores_of((0, 1, 2, 3), PARTITION)


def large(sequence: int) -> bytes:
    return sealed_by(A, sequence, bytes([sequence]) * INLINE_BYTES_MAX)


def keys(council: Council) -> Keys:
    cosigners = SimNotary(0, council.members).cosigners
    return Keys(
        CLUSTER,
        {node: each.name for node, each in cosigners.items()},
        {node: (each.public_key,) for node, each in cosigners.items()},
    )


def council_with_forgetful(store: NodeId = FIRST, batches: int = 3) -> Council:
    """Batches are ordered that this store signed for, and does not have any more."""
    council = Council(VALIDATED, rewrites={store: Forget()})
    council.hand_in(A, 1, *map(large, range(1, batches + 1)), stores=[FIRST, SECOND])
    council.settle()
    # What was decided last is in memory as well.
    council.group(store).readers.start_over()
    return council


def evidence_of(council: Council, replica: NodeId) -> dict[NodeId, FalseReceipt]:
    return council.group(replica).challenges.evidence


def kinds(council: Council, by: NodeId | None = None) -> list[tuple[NodeId, str]]:
    return [(report.node, report.kind) for report in council.reports(by)]


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_store_that_does_not_have_what_it_signed_for_is_proved_faulty(offset: int) -> None:
    council = council_with_forgetful()

    council.say(READER, [LAST], AskReceipts(*PARTITION, offset, FIRST))
    council.settle()

    (evidence,) = evidence_of(council, LAST).values()
    proved = verify_evidence(evidence, keys(council))
    assert (proved.kind, proved.number, evidence.offset) == ("false-receipt", FIRST, offset)
    assert kinds(council, by=LAST) == [(FIRST, "false-receipt")]


def test_a_receipt_beyond_what_was_decided_with_the_batch_is_evidence_too() -> None:
    """A store signs for what it was given at once, and slots may take less of that."""
    council = Council(VALIDATED, rewrites={FIRST: Forget()})
    council.hand_in(A, 1, large(1), large(2), large(3), stores=[FIRST])
    # The second store signs for the first batch only, and so only that can be ordered.
    council.hand_in(A, 1, large(1), stores=[SECOND])
    council.settle()
    assert council.group(LAST).log.partition(PARTITION).end == 1
    council.group(FIRST).readers.start_over()

    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, FIRST))
    council.settle()

    (evidence,) = evidence_of(council, LAST).values()
    assert (evidence.batches, len(evidence.behind)) == (3, 2)
    assert verify_evidence(evidence, keys(council)).number == FIRST


def test_a_store_that_has_what_it_signed_for_gives_it_and_is_not_blamed() -> None:
    council = council_with_forgetful(FIRST)

    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, SECOND))
    council.settle()

    assert council.messages(Challenge, receiver=SECOND) != []
    assert council.messages(Entries, sender=SECOND, receiver=LAST) != []
    assert council.messages(Refusal) == []
    assert kinds(council) == []


def test_a_store_that_never_signed_for_a_batch_is_not_challenged() -> None:
    council = council_with_forgetful()

    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, THIRD))
    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, LAST))
    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, 17))
    council.say(READER, [LAST], AskReceipts(*PARTITION, 99, FIRST))
    council.settle()

    assert council.messages(Challenge) == []
    assert kinds(council) == []


def test_one_challenge_is_under_way_at_a_time_and_what_is_proved_is_not_proved_again() -> None:
    council = council_with_forgetful()
    for offset in (0, 1, 2, 0, 1):
        council.say(READER, [LAST], AskReceipts(*PARTITION, offset, FIRST))
    assert len(council.messages(Challenge)) == 1
    council.settle()

    council.run(3.0)
    council.say(READER, [LAST], AskReceipts(*PARTITION, 1, FIRST))
    council.settle()

    assert len(council.messages(Challenge)) == 1
    assert kinds(council, by=LAST) == [(FIRST, "false-receipt")]


def test_whoever_asks_gets_the_receipts_of_a_batch_and_the_evidence() -> None:
    council = council_with_forgetful()
    council.say(READER, [LAST], AskReceipts(*PARTITION, 1, FIRST))
    council.settle()

    council.say(READER, [LAST], AskReceipts(*PARTITION, 2))

    (answer,) = council.messages(Receipts, receiver=READER)
    assert (answer.offset, answer.sequence, answer.publisher) == (2, 3, A)
    assert {receipt.store for receipt in answer.receipts} == {FIRST, SECOND}
    (text,) = answer.evidence
    assert verify_evidence(parse(text), keys(council)).number == FIRST


def test_a_refusal_that_the_store_did_not_sign_proves_nothing() -> None:
    council = council_with_forgetful()
    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, FIRST))
    council.deliver()
    (refusal,) = council.messages(Refusal)
    council.drop()

    council.say(FIRST, [LAST], msgspec.structs.replace(refusal, signature=bytes(64)))
    council.say(FIRST, [LAST], msgspec.structs.replace(refusal, time_us=refusal.time_us + 1))
    council.say(SECOND, [LAST], refusal)

    assert evidence_of(council, LAST) == {}
    assert kinds(council, by=LAST) == [(FIRST, "bad-refusal")] * 2


def test_a_refusal_of_what_retention_took_is_no_fault() -> None:
    council = council_with_forgetful()
    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, FIRST))
    (challenge,) = council.messages(Challenge)
    store = council.seats[FIRST].store
    bounds = store.bounds
    store.bounds = lambda partition: (1, bounds(partition)[1])  # type: ignore[method-assign]

    council.settle()

    (refusal,) = council.messages(Refusal)
    assert (refusal.offset, refusal.start) == (challenge.offset, 1)
    assert evidence_of(council, LAST) == {}
    assert kinds(council) == []


def test_a_store_that_stays_silent_is_suspected_and_not_proved() -> None:
    council = council_with_forgetful()
    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, FIRST))

    council.run(
        ASKED_MAX * ANSWER_US_MAX / 1e6 + 1,
        lambda flight: not isinstance(flight.message, Challenge),
    )

    assert len(council.messages(Challenge)) == ASKED_MAX
    assert evidence_of(council, LAST) == {}
    assert kinds(council, by=LAST) == [(FIRST, "suspected-store")]
    (report,) = council.reports(by=LAST)
    assert "suspected, and not proved" in report.detail


def test_a_challenge_about_what_does_not_stand_there_is_not_answered() -> None:
    council = council_with_forgetful()
    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, FIRST))
    (challenge,) = council.messages(Challenge)
    council.drop()

    for wrong in (
        msgspec.structs.replace(challenge, descriptor=bytes(48)),
        msgspec.structs.replace(challenge, sequence=2),
        msgspec.structs.replace(challenge, offset=1),
        msgspec.structs.replace(challenge, offset=99),
    ):
        council.say(LAST, [FIRST], wrong)

    assert council.messages(Refusal) == []


def test_a_store_that_lost_its_disk_fills_up_before_it_says_what_it_lacks() -> None:
    """What it signed for before, it does not know any more; but others have it."""
    council = Council(VALIDATED)
    council.hand_in(A, 1, large(1), large(2), stores=[FIRST, SECOND])
    council.settle()
    council.crash(FIRST)
    council.restart(FIRST, SimDisk())
    council.run(2.0, lambda flight: not isinstance(flight.message, Fill))
    assert council.group(FIRST).log.partition(PARTITION).end == 2
    assert council.log(FIRST) == []

    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, FIRST))
    council.run(1.0, lambda flight: not isinstance(flight.message, Fill))
    assert council.messages(Refusal) == []
    council.run(ANSWER_US_MAX / 1e6 + 1)

    assert council.log(FIRST) == [large(1), large(2)]
    assert council.messages(Refusal) == []
    assert not any(kind == "false-receipt" for _, kind in kinds(council))


def test_a_store_that_lost_its_disk_and_is_given_nothing_says_what_is_so() -> None:
    """Everybody answers, and nobody has it: it does not have what it signed for."""
    council = Council(VALIDATED)
    council.hand_in(A, 1, large(1), stores=[FIRST, SECOND])
    council.settle()
    council.crash(FIRST)
    council.restart(FIRST, SimDisk())
    council.seats[SECOND].store.read = lambda *_: []  # type: ignore[method-assign]
    council.group(SECOND).readers.start_over()
    council.run(3.0)

    council.say(READER, [LAST], AskReceipts(*PARTITION, 0, FIRST))
    council.run(1.0)

    assert verify_evidence(evidence_of(council, LAST)[FIRST], keys(council)).number == FIRST


def test_a_replica_that_is_to_have_a_batch_itself_holds_its_store_to_its_word() -> None:
    """The second store missed the batch. It asks the one that signed for it."""
    council = Council(VALIDATED, rewrites={FIRST: Forget(), THIRD: Forget()})
    council.hand_in(A, 1, large(1), stores=[FIRST, THIRD])
    council.settle(lambda flight: not isinstance(flight.message, Fill))
    for replica in (FIRST, THIRD):
        council.group(replica).readers.start_over()

    council.run(5.0)

    assert council.messages(Absent, sender=FIRST, receiver=SECOND) != []
    proved = evidence_of(council, SECOND)
    assert {verify_evidence(each, keys(council)).number for each in proved.values()} == {
        FIRST,
        THIRD,
    }


def test_a_reader_that_may_not_read_may_not_challenge_either() -> None:
    council = Council({**VALIDATED, "subscribe": ["somebody-else"]})
    council.hand_in(A, 1, large(1), stores=[FIRST, SECOND])
    council.settle()

    council.say(READER, [LAST], AskReceipts(*PARTITION, 0))
    council.say(READER, [LAST], Follow(*PARTITION, 1, 0, 1, Wants.CHAIN))

    assert council.messages(Receipts) == []
    assert kinds(council, by=LAST) == [(READER, "rejected")] * 2


def test_what_was_never_ordered_has_no_receipts_to_ask_for() -> None:
    council = Council(VALIDATED)
    council.hand_in(A, 1, large(1), stores=[FIRST])
    council.settle()
    assert council.messages(Stored) != []

    council.say(READER, [LAST], AskReceipts(*PARTITION, 0))

    assert council.messages(Receipts) == []


# Producers


def producers_keys(council: Council) -> Keys:
    return Keys(CLUSTER, {A: "a"}, {A: (public_key(A),)})


@pytest.mark.parametrize("stores", [(FIRST, SECOND), (SECOND, THIRD)], ids=["whole", "seal"])
def test_a_producer_that_signs_two_batches_of_one_number_is_proved_to(
    stores: tuple[NodeId, ...],
) -> None:
    """Whoever has the first one whole knows both seals, however the second one comes."""
    council = Council(VALIDATED)
    council.hand_in(A, 1, large(1), stores=[FIRST])
    council.hand_in(A, 1, sealed_by(A, 1, b"other" * INLINE_BYTES_MAX), stores=stores)

    evidence = council.group(FIRST).challenges.contradictions[A]
    assert verify_evidence(evidence, producers_keys(council)).kind == "two-seals"
    assert (A, "two-seals") in kinds(council, by=FIRST)
    # The others know the digest of the first one only, and that proves nothing.
    assert council.group(LAST).challenges.contradictions == {}
    assert (A, "contradiction") in kinds(council, by=LAST)


def test_what_is_signed_where_nobody_signs_is_no_evidence() -> None:
    """A replica that looks at no signatures takes such batches, and failed at the second."""
    council = Council()
    seals = [sealed_by(A, 1, value)[:SEAL_BYTES] for value in (b"one", b"other")]

    council.group(FIRST).challenges.on_contradiction(Line(A, T, 0), 1, seals[0], seals[1])

    assert council.group(FIRST).challenges.contradictions == {}


def test_a_producer_that_says_the_same_again_contradicts_nothing() -> None:
    council = Council(VALIDATED)
    for _ in range(2):
        council.hand_in(A, 1, large(1), large(2), stores=[FIRST])

    assert council.group(FIRST).challenges.contradictions == {}
    assert kinds(council) == []
