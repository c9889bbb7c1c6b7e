"""Large payloads that go to a store outside count when that has them, and not before.

The publisher hands large batches to replicas 0 and 1, which have a store outside each.
"""

from typing import Any

from council import READER, VALIDATED, A, Council, T, records, sealed_by
from quorate.core.header import SEAL_BYTES, basic_header
from quorate.core.ids import NodeId, Sequence
from quorate.core.ordering import (
    Absent,
    AnnounceSealed,
    Append,
    Challenge,
    Follow,
    Ordered,
    Partition,
    Refusal,
    Stored,
    Wants,
)
from quorate.crypto.digests import batch_digest, descriptor
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX, Waiting
from quorate.protocol.ordering.records import Decided, Deposit, Deposited, Held, Stretch
from quorate.protocol.ordering.room import BATCH_COST, LINE_COST, ROOMS, Rooms

TARGET = Partition(T, 0)
STORES = (0, 1)
OTHERS = (2, 3)


def pointer(number: int) -> bytes:
    """What is kept in place of a batch: nobody looks behind its header here."""
    return basic_header(1, 0, 4) + b"pointer %d" % number


def batch(sequence: Sequence, size: int = 2 * INLINE_BYTES_MAX) -> bytes:
    """A sealed batch, large unless told otherwise."""
    return sealed_by(A, sequence, bytes([sequence]) * size)


def council(rooms: Rooms = ROOMS) -> Council:
    return Council(VALIDATED, depositing=STORES, rooms=rooms)


def publish(council: Council, first: Sequence, *payloads: bytes) -> None:
    """As a publisher does it: whole to the stores, as seals to the others."""
    for replica in STORES:
        council.step(A, replica, Append(T, 0, first, list(payloads)))
    for replica in OTHERS:
        council.step(
            A, replica, AnnounceSealed(T, 0, first, [each[:SEAL_BYTES] for each in payloads])
        )
    council.collect()


def deposits(council: Council, replica: NodeId) -> list[Deposit]:
    return [
        deposit
        for turn in council.turns
        if turn.replica == replica
        for deposit in turn.ready.deposit
    ]


def settle(council: Council, replica: NodeId, *sequences: Sequence, taken: bool = True) -> None:
    """The store outside has these, or not; then everything else happens."""
    results = [Deposited(A, T, 0, each, pointer(each) if taken else b"") for each in sequences]
    council.seats[replica].ordering.deposited(results)
    council.collect()
    council.settle()


def held_by(council: Council, replica: NodeId) -> list[Held]:
    return records([turn for turn in council.turns if turn.replica == replica], Held)


def test_a_large_batch_is_ordered_when_enough_stores_outside_have_it() -> None:
    made = council()
    publish(made, 1, batch(1))
    made.settle()

    assert [each.payload for each in deposits(made, 0)] == [batch(1)]
    assert made.messages(Stored) == []
    settle(made, 0, 1)
    assert {each.count for each in made.messages(Stored, sender=0)} == {1}
    assert made.messages(Ordered) == []

    settle(made, 1, 1)

    made.run(0.1)
    assert {each.offset for each in made.messages(Ordered, receiver=A)} == {0}
    assert held_by(made, 0) == [Held(A, T, 0, 1, [pointer(1)])]


def test_what_the_store_outside_did_not_take_counts_for_nothing_and_is_tried_again() -> None:
    made = council()
    publish(made, 1, batch(1))
    settle(made, 0, 1, taken=False)
    settle(made, 1, 1)
    made.run(0.1)

    assert made.messages(Stored, sender=0) == []
    assert made.messages(Ordered) == []
    assert held_by(made, 0) == []

    publish(made, 1, batch(1))
    settle(made, 0, 1)
    made.run(0.1)

    assert len(deposits(made, 0)) == 2
    assert {each.offset for each in made.messages(Ordered, receiver=A)} == {0}


def test_what_is_on_its_way_outside_is_not_sent_there_twice_and_what_is_there_is_said_again() -> (
    None
):
    made = council()
    publish(made, 1, batch(1))
    publish(made, 1, batch(1))
    assert len(deposits(made, 0)) == 1

    settle(made, 0, 1)
    before = len(made.messages(Stored, sender=0, receiver=2))
    publish(made, 1, batch(1))
    made.now_us += made.pace.gather_us
    made.tick()

    assert len(deposits(made, 0)) == 1
    assert len(made.messages(Stored, sender=0, receiver=2)) == before + 1


def test_batches_that_come_back_in_any_order_are_held_as_runs() -> None:
    made = council()
    publish(made, 1, batch(1), batch(2), batch(3), batch(4))
    settle(made, 0, 4, 2, 1)

    assert held_by(made, 0) == [
        Held(A, T, 0, 1, [pointer(1), pointer(2)]),
        Held(A, T, 0, 4, [pointer(4)]),
    ]
    said = made.messages(Stored, sender=0, receiver=2)
    assert [(each.first, each.count) for each in said] == [(1, 2), (4, 1)]


def test_small_batches_stay_in_the_journal_as_with_everybody() -> None:
    made = council()
    small = batch(1, size=100)
    for replica in made.members:
        made.step(A, replica, Append(T, 0, 1, [small]))
    made.collect()
    made.settle()
    made.run(0.1)

    assert deposits(made, 0) == []
    assert held_by(made, 0) == [Held(A, T, 0, 1, [small])]
    assert {each.offset for each in made.messages(Ordered, receiver=A)} == {0}


def test_what_comes_back_when_it_was_decided_without_it_is_passed_over() -> None:
    """A third store was quicker than ours."""
    made = council()
    publish(made, 1, batch(1))
    for replica in OTHERS:
        made.step(A, replica, Append(T, 0, 1, [batch(1)], [batch_digest(batch(1))]))
    made.collect()
    # Nobody fills what we miss meanwhile.
    made.settle()
    made.run(0.1, lambda flight: type(flight.message).__name__ not in ("Fill", "Entries"))
    assert made.messages(Ordered, sender=0)

    settle(made, 0, 1)

    assert held_by(made, 0) == []
    assert records(made.turns, Decided)


def test_what_is_on_its_way_outside_takes_room_of_its_session() -> None:
    large = batch(1)
    room = LINE_COST + 4 * BATCH_COST + len(large)
    made = council(rooms=Rooms.of(room))
    publish(made, 1, large, batch(2))

    assert [each.sequence for each in deposits(made, 0)] == [1]


def test_a_line_costs_what_it_has_under_way_outside() -> None:
    waiting = Waiting((A, T, 0))  # type: ignore[arg-type]
    waiting.extend(1, [batch_digest(b"x")], [None])
    before = waiting.cost_bytes
    waiting.deposit(1, batch_digest(b"x"), b"x" * 5000)

    assert waiting.cost_bytes == before + 5000
    assert waiting.end_deposit(1) == (batch_digest(b"x"), b"x" * 5000)
    assert waiting.end_deposit(1) is None
    assert waiting.cost_bytes == before


# Reading


class Slow:
    """The store of a replica whose payloads come from outside after a while."""

    def __init__(self, made: Council, replica: NodeId) -> None:
        self.has_come = self.is_lost = False
        self._store = made.seats[replica].store

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        return self._store.read(partition, offset, bytes_max) if self.has_come else []

    def is_fetching(self, partition: Partition, offset: int) -> bool:
        return not self.has_come

    def may_come(self, partition: Partition, offset: int) -> bool:
        return not self.is_lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_reader_waits_for_what_is_on_its_way_and_is_not_told_that_it_is_absent() -> None:
    made = council()
    publish(made, 1, batch(1))
    settle(made, 0, 1)
    settle(made, 1, 1)
    made.run(0.1)
    readers, slow = made.group(0).readers, Slow(made, 0)
    # It is not in memory any more.
    readers.start_over()
    readers._store = slow
    made.step(READER, 0, Follow(T, 0, 1, 0, 100, Wants.ALL))
    made.collect()
    assert made.messages(Absent, receiver=READER) == []

    slow.has_come = True
    made.seats[0].ordering.fetched()
    made.collect()

    sent = [type(each.message).__name__ for each in made.sent if each.receiver == READER]
    assert sent.count("Entries") == 1


def test_who_waits_for_its_store_outside_signs_no_refusal_until_that_has_lost_the_batch() -> None:
    made = council()
    publish(made, 1, batch(1))
    settle(made, 0, 1)
    settle(made, 1, 1)
    made.run(0.1)
    group, slow = made.group(0), Slow(made, 0)
    group.readers.start_over()
    group.readers._store = group.challenges._store = slow
    (time_us,) = {each.time_us for each in made.messages(Ordered, receiver=A)}
    challenge = Challenge(A, T, 0, 0, 1, time_us, descriptor(batch(1)))

    made.step(1, 0, challenge)
    made.collect()
    assert made.messages(Refusal) == []

    slow.is_lost = True
    made.step(1, 0, challenge)
    made.collect()
    assert len(made.messages(Refusal, sender=0, receiver=1)) == 1
