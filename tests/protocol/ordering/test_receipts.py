"""Stores of validated topics sign what they keep: what counts as a receipt, and what is kept."""

from collections.abc import Callable

import msgspec
import pytest

from council import VALIDATED as TABLE
from council import A, B, Council, T, sealed_by, span_of, value_of
from quorate.core.batch import encode_values
from quorate.core.ids import NodeId
from quorate.core.ordering import Announce, Append, Line, Partition, Stored
from quorate.crypto.digests import batch_digest, descriptor
from quorate.crypto.receipts import Receipt
from quorate.crypto.sids import Place
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX, WORDS_MAX
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.records import Placed
from quorate.protocol.ordering.value import CHAIN_START, chained
from quorate.sim.order_stage import SimSigner
from quorate.sim.sealing import CLUSTER

PARTITION = Partition(T, 0)
FIRST, SECOND, THIRD, LAST = stores_of((0, 1, 2, 3), PARTITION)


def cut(digests: bytes) -> list[bytes]:
    """Digests that are laid end to end, one by one."""
    return [digests[at : at + 32] for at in range(0, len(digests), 32)]


def large(publisher: NodeId, sequence: int, signer: NodeId | None = None) -> bytes:
    """A batch that only its stores get."""
    return sealed_by(publisher, sequence, bytes([sequence]) * INLINE_BYTES_MAX, signer)


def stored_by(council: Council, store: NodeId) -> Stored:
    return council.messages(Stored, sender=store)[-1]


def is_ordered(council: Council, replica: NodeId) -> int:
    return council.group(replica).log.partition(PARTITION).end


def placed_at(council: Council, replica: NodeId, offset: int = 0) -> Placed:
    found = council.seats[replica].store.placed_at(council.number, PARTITION, offset)
    assert found is not None
    return found[1]


def holders(council: Council, replica: NodeId) -> list[list[NodeId]]:
    """Whose word counts, of each batch that waits."""
    waiting = council.group(replica).backlog.line(Line(A, T, 0))
    return [[*stores] for stores in waiting.holders]


def kinds(council: Council, by: NodeId | None = None) -> list[tuple[NodeId, str]]:
    return [(report.node, report.kind) for report in council.reports(by)]


def test_a_store_signs_once_for_as_many_batches_as_came_together() -> None:
    council = Council(TABLE)
    batches = [large(A, number) for number in (1, 2, 3)]

    council.hand_in(A, 1, *batches, stores=[FIRST])

    said = council.messages(Stored, sender=FIRST)
    assert said == [said[0]] * 3
    chain = chained(CHAIN_START, map(batch_digest, batches))[-1]
    receipt = Receipt(Place.of(CLUSTER, "t", 0, A), 1, 3, chain)
    signer = council.seats[LAST].signer
    assert signer.is_attested_by(FIRST, receipt.encode(), said[0].signature)
    assert not signer.is_attested_by(SECOND, receipt.encode(), said[0].signature)


def hand_in_basic(council: Council, number: int) -> None:
    """A batch that nobody signed, whole to two stores."""
    payload = encode_values([bytes(INLINE_BYTES_MAX + 1)], 0)
    council.say(A, [FIRST, SECOND], Append(T, 0, number, [payload], [batch_digest(payload)]))
    council.say(A, [THIRD, LAST], Announce(T, 0, number, [descriptor(payload)]))


def test_the_word_of_stores_is_enough_for_basic_batches_but_not_for_signed_ones() -> None:
    """Whoever did not sign its batches cannot hold a store to them either."""
    council = Council(TABLE)
    hand_in_basic(council, 1)
    council.settle()
    hand_in_basic(council, 2)
    council.hand_in(A, 3, large(A, 3), stores=[FIRST, SECOND])
    council.run(1.0)

    for store in (FIRST, SECOND):
        said = council.messages(Stored, sender=store, receiver=LAST)
        are_signed = [(each.first, each.count, bool(each.signature)) for each in said]
        assert are_signed == [(1, 1, False), (2, 1, False), (2, 2, True)]
    assert [is_ordered(council, replica) for replica in council.members] == [3, 3, 3, 3]
    assert placed_at(council, LAST, 0).receipts == []
    assert {each.store for each in placed_at(council, LAST, 2).receipts} == {FIRST, SECOND}
    assert kinds(council) == []


def test_what_comes_under_load_is_signed_together_after_a_while() -> None:
    council = Council(TABLE)
    for number in (1, 2, 3):
        council.hand_in(A, number, large(A, number), stores=[FIRST])
    said = council.messages(Stored, sender=FIRST, receiver=LAST)
    assert [(stored.first, stored.count) for stored in said] == [(1, 1)]

    council.now_us += council.pace.gather_us
    council.tick()

    said = council.messages(Stored, sender=FIRST, receiver=LAST)
    assert [(stored.first, stored.count) for stored in said] == [(1, 1), (1, 3)]


def test_whoever_publishes_one_batch_after_the_other_never_waits_for_a_signature() -> None:
    council = Council(TABLE)
    for number in (1, 2, 3):
        council.hand_in(A, number, large(A, number), stores=[FIRST, SECOND])
        council.settle()

        assert council.now_us == 0
        assert is_ordered(council, LAST) == number


def test_a_batch_with_f_receipts_is_never_ordered_and_with_one_more_it_is() -> None:
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST])
    council.run(3.0)
    assert [is_ordered(council, replica) for replica in council.members] == [0, 0, 0, 0]

    council.hand_in(A, 1, large(A, 1), stores=[FIRST, SECOND])
    council.settle()

    assert [is_ordered(council, replica) for replica in council.members] == [1, 1, 1, 1]
    assert kinds(council) == []


@pytest.mark.parametrize(
    "forge",
    [
        lambda stored: msgspec.structs.replace(stored, signature=b""),
        lambda stored: msgspec.structs.replace(stored, signature=bytes(64)),
        lambda stored: msgspec.structs.replace(stored, signature=stored.signature[:-1]),
        lambda stored: msgspec.structs.replace(stored, first=0, count=stored.count + 1),
    ],
    ids=["unsigned", "zeros", "cut", "of-more"],
)
def test_a_receipt_that_its_store_did_not_sign_is_reported_and_does_not_count(
    forge: Callable[[Stored], Stored],
) -> None:
    """Without the second store's signature there is one receipt, where two are needed."""
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST, SECOND])
    forged = forge(stored_by(council, SECOND))
    council.drop(lambda flight: isinstance(flight.message, Stored) and flight.sender == SECOND)

    council.say(SECOND, [THIRD, LAST], forged)
    council.settle(lambda flight: flight.sender != SECOND)

    assert (SECOND, "bad-receipt") in kinds(council, by=LAST)
    assert not council.group(LAST).retrieval.is_available(span_of(A, 1, large(A, 1)))


def test_a_receipt_that_another_store_signed_does_not_count() -> None:
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST])

    council.say(SECOND, [THIRD, LAST], stored_by(council, FIRST))
    council.settle()

    assert (SECOND, "bad-receipt") in kinds(council, by=LAST)
    assert is_ordered(council, LAST) == 0


def test_a_receipt_of_another_content_does_not_count_and_nobody_is_blamed() -> None:
    """A publisher that signs two batches for one number gets neither of them ordered by that."""
    council = Council(TABLE)
    other = sealed_by(A, 1, b"other" * INLINE_BYTES_MAX)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST])
    council.drop()
    twin = Council(TABLE)
    twin.hand_in(A, 1, other, stores=[SECOND])

    council.say(FIRST, [THIRD, LAST], stored_by(council, FIRST))
    council.say(SECOND, [THIRD, LAST], stored_by(twin, SECOND))
    council.settle()

    assert kinds(council, by=LAST) == []
    assert is_ordered(council, LAST) == 0


def test_a_receipt_of_another_line_does_not_count() -> None:
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST])
    council.hand_in(B, 1, large(B, 1), stores=[SECOND])
    moved = msgspec.structs.replace(stored_by(council, SECOND), publisher=A)
    council.drop(lambda flight: flight.sender == SECOND)

    council.say(SECOND, [LAST], moved)
    council.settle(lambda flight: flight.sender != SECOND)

    assert is_ordered(council, LAST) == 0


def test_receipts_that_come_before_the_batch_are_looked_at_when_it_is_there() -> None:
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST, SECOND])
    good, bad = stored_by(council, FIRST), stored_by(council, SECOND)
    twin = Council(TABLE)
    twin.say(FIRST, [LAST], good)
    twin.say(SECOND, [LAST], msgspec.structs.replace(bad, signature=bytes(64)))

    twin.hand_in(A, 1, large(A, 1), stores=[])
    assert kinds(twin) == []
    assert not twin.group(LAST).retrieval.is_available(span_of(A, 1, large(A, 1)))
    twin.collect()

    assert kinds(twin, by=LAST) == [(SECOND, "bad-receipt")]
    assert holders(twin, LAST) == [[FIRST]]


# When they are looked at


Look = tuple[SimSigner, NodeId]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    """Who looked at a signature of whom: that costs more than all else about a message."""
    looks: list[Look] = []
    check = SimSigner.is_attested_by

    def look(signer: SimSigner, store: NodeId, data: bytes, signature: bytes) -> bool:
        looks.append((signer, store))
        return check(signer, store, data, signature)

    monkeypatch.setattr(SimSigner, "is_attested_by", look)
    return looks


def hand_in_slowly(council: Council, numbers: range) -> None:
    """One batch after the other, and all receipts arrive, but nothing is ordered meanwhile."""
    for number in numbers:
        council.hand_in(A, number, large(A, number), stores=[FIRST, SECOND])
        council.now_us += council.pace.gather_us
        council.tick()
        council.deliver(lambda flight: isinstance(flight.message, Stored))


def test_whoever_has_the_payload_or_enough_receipts_looks_at_no_more_of_them(
    looks: list[Look],
) -> None:
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST, SECOND, THIRD])

    council.settle()

    assert [signer for signer, _ in looks] == [council.seats[LAST].signer] * 2
    assert [is_ordered(council, replica) for replica in council.members] == [1, 1, 1, 1]


def test_receipts_are_looked_at_once_for_each_store_when_what_they_are_for_is_ordered(
    looks: list[Look],
) -> None:
    council = Council(TABLE)
    hand_in_slowly(council, range(1, 6))
    assert len(council.messages(Stored, sender=FIRST, receiver=LAST)) == 5
    assert looks == []

    council.settle()

    assert [is_ordered(council, replica) for replica in council.members] == [5, 5, 5, 5]
    by_last = [store for signer, store in looks if signer is council.seats[LAST].signer]
    assert sorted(by_last) == sorted([FIRST, SECOND])
    assert {(receipt.first, receipt.count) for receipt in placed_at(council, LAST).receipts} == {
        (1, 5)
    }


def test_too_few_receipts_are_not_looked_at(looks: list[Look]) -> None:
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST])

    council.run(1.0)

    assert looks == []
    assert is_ordered(council, LAST) == 0


def test_false_receipts_do_not_displace_those_that_came_before_them() -> None:
    council = Council(TABLE)
    hand_in_slowly(council, range(1, 4))
    good = stored_by(council, SECOND)
    for _ in range(3 * WORDS_MAX):
        council.say(SECOND, [LAST], msgspec.structs.replace(good, signature=bytes(64)))
    waiting = council.group(LAST).backlog.line(Line(A, T, 0))
    assert len(waiting.words[SECOND]) <= WORDS_MAX
    assert good in waiting.words[SECOND]

    council.settle()

    assert is_ordered(council, LAST) == 3
    assert {receipt.store for receipt in placed_at(council, LAST).receipts} == {FIRST, SECOND}
    assert {receipt.signature for receipt in placed_at(council, LAST).receipts} >= {good.signature}
    assert set(kinds(council)) == {(SECOND, "bad-receipt")}


def test_receipts_that_wait_are_bounded_and_the_last_one_does_for_the_others(
    looks: list[Look],
) -> None:
    council = Council(TABLE)
    hand_in_slowly(council, range(1, 3))
    good = stored_by(council, SECOND)
    waiting = council.group(LAST).backlog.line(Line(A, T, 0))

    for _ in range(WORDS_MAX):
        council.say(SECOND, [LAST], good)

    assert looks == [(council.seats[LAST].signer, SECOND)]
    assert len(waiting.words.get(SECOND, [])) < WORDS_MAX
    assert holders(council, LAST) == [[SECOND], [SECOND]]


def test_receipts_of_what_is_yet_to_come_are_bounded(looks: list[Look]) -> None:
    council = Council(TABLE)
    for first in range(1, 3 * WORDS_MAX):
        council.say(SECOND, [LAST], Stored(A, T, 0, first, 1, bytes(32), bytes(64)))

    waiting = council.group(LAST).backlog.line(Line(A, T, 0))
    assert len(waiting.words[SECOND]) == WORDS_MAX
    assert looks == []


def test_a_receipt_with_a_former_key_does_not_count_and_nobody_is_blamed() -> None:
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), stores=[FIRST, SECOND])
    council.rekey(SECOND, knowing=[LAST])

    council.deliver(lambda flight: flight.receiver == LAST)
    assert not council.group(LAST).retrieval.is_available(span_of(A, 1, large(A, 1)))
    council.collect()

    assert holders(council, LAST) == [[FIRST]]
    assert kinds(council, by=LAST) == []


def test_other_topics_pay_nothing() -> None:
    council = Council()
    payload = bytes(INLINE_BYTES_MAX + 1)

    council.publish(A, 1, payload, to=[FIRST, SECOND])

    assert {stored.signature for stored in council.messages(Stored)} == {b""}


# What is kept


def test_whoever_lacks_a_payload_keeps_the_receipts_on_disk() -> None:
    council = Council(TABLE)
    council.hand_in(A, 1, large(A, 1), large(A, 2), stores=[FIRST, SECOND])
    council.settle()
    council.seats[LAST].disk.sync()
    council.reboot(LAST)
    council.settle()

    assert [placed_at(council, replica).receipts for replica in (FIRST, SECOND)] == [[], []]
    for placed in (placed_at(council, THIRD), placed_at(council, LAST)):
        assert {receipt.store for receipt in placed.receipts} == {FIRST, SECOND}
        assert {(receipt.first, receipt.count) for receipt in placed.receipts} == {(1, 2)}
        assert placed.before == CHAIN_START


def test_what_is_kept_holds_also_if_it_covers_more_than_was_decided() -> None:
    """A replica that did not vote for what it decides looks at what it was told of it then."""
    council = Council(TABLE)
    hand_in_slowly(council, range(1, 4))
    bad = msgspec.structs.replace(stored_by(council, SECOND), signature=bytes(64))
    council.say(THIRD, [LAST], bad)
    span = span_of(A, 1, large(A, 1), large(A, 2))

    council.group(LAST).apply(1, value_of(span))
    council.collect()

    placed = placed_at(council, LAST)
    assert [receipt.store for receipt in placed.receipts] == [FIRST, SECOND]
    for kept in placed.receipts:
        receipt = Receipt(Place.of(CLUSTER, "t", 0, A), kept.first, kept.count, kept.chain)
        signer = council.seats[LAST].signer
        assert signer.is_attested_by(kept.store, receipt.encode(), kept.signature)
        digests = [batch_digest(large(A, number)) for number in range(1, 1 + kept.count)]
        assert kept.behind == b"".join(digests[2:])
        assert kept.chain == chained(CHAIN_START, digests)[-1]


def test_a_batch_that_a_producer_did_not_sign_is_stored_and_receipted_by_nobody() -> None:
    council = Council(TABLE)

    council.hand_in(A, 1, large(A, 1, signer=B), stores=[FIRST, SECOND])
    council.settle()

    assert council.messages(Stored) == []
    assert (A, "bad-sid") in kinds(council, by=FIRST)
