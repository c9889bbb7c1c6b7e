"""Payloads that a replica missed come from a peer, and fit the partition's chain."""

from typing import Any, cast

import msgspec
import pytest

from council import WALL_US, A, Council, T, payload_of
from quorate.core.ordering import (
    Absent,
    Entries,
    Fill,
    Partition,
    Retrieve,
    Retrieved,
    Standing,
)
from quorate.protocol.ordering.filling import ANSWER_US_MAX, Filling
from quorate.protocol.ordering.readers import Readers
from quorate.protocol.ordering.records import Held, Store, Stretch
from quorate.protocol.outbox import ANSWERS_BYTES_MAX
from stage import Outlook, event, opened

LARGE = bytes(range(250)) * 20


def missed(payload: bytes) -> Council:
    """Replica 3 was away while a batch was decided, and hears of it later."""
    council = Council()
    disk = council.seats[3].disk
    council.crash(3)
    council.publish(A, 1, payload)
    council.settle()
    council.restart(3, disk)
    return council


def held_by(council: Council, replica: int) -> list[bytes]:
    records = council.seats[replica].disk.read()
    return [each for record in records if isinstance(record, Held) for each in record.payloads]


def test_a_replica_that_was_away_gets_a_small_batch_from_its_peers() -> None:
    council = missed(payload_of(A, 1))
    council.run(3)
    assert held_by(council, 3) == [event(payload_of(A, 1))]
    assert council.group(3).filling.count == 0
    assert council.log(3) == [payload_of(A, 1)]


def test_large_batches_go_to_the_stores_of_their_partition_only() -> None:
    council = missed(LARGE)
    council.run(5)
    is_store = council.group(3).roster.stores(next(iter(council.group(3).log.state.partitions)))
    assert held_by(council, 3) == ([event(LARGE)] if is_store else [])
    assert council.group(3).filling.count == 0


def test_a_payload_that_does_not_fit_the_chain_is_refused_and_asked_of_another() -> None:
    council = missed(payload_of(A, 1))
    forged = 0
    for _ in range(100):
        council.now_us += council.pace.tick_us
        council.tick()
        for flight in council.flying:
            if isinstance(flight.message, Entries) and flight.receiver == 3 and not forged:
                forged += 1
                flight.message = msgspec.structs.replace(
                    flight.message, payloads=[event(b"forged")]
                )
        council.deliver()
    assert forged == 1
    assert held_by(council, 3) == [event(payload_of(A, 1))]
    assert "forgery" in {report.kind for report in council.reports(by=3)}


def test_a_peer_answers_with_what_stands_there_or_says_that_it_has_nothing() -> None:
    council = Council()
    council.publish(A, 1, b"one", b"two", LARGE, b"four")
    council.settle()
    for offset, end, large in ((0, 4, False), (2, 4, False), (2, 4, True), (9, 10, True)):
        council.say(3, [0], Fill(T, 0, offset, end, large))
    answers = [*council.messages(Entries, sender=0), *council.messages(Absent, sender=0)]
    payloads = [
        [*map(opened, answer.payloads)] for answer in answers if isinstance(answer, Entries)
    ]
    assert payloads == [[b"one", b"two"], [LARGE, b"four"]]
    absent = [(each.offset, each.end) for each in answers if isinstance(each, Absent)]
    assert absent == [(2, 3), (9, 10)]


@pytest.mark.parametrize(
    "ask", [Fill(T, 0, 0, 64, True), Retrieve(A, T, 0, 1, 64)], ids=["fill", "retrieve"]
)
def test_whoever_asks_a_thousand_times_at_once_is_answered_within_bounds(
    ask: Fill | Retrieve,
) -> None:
    """A request has a few bytes. One liar could else fill the memory of every other replica."""
    council = Council()
    council.publish(A, 1, *[bytes([number]) * 50_000 for number in range(8)])
    council.settle()
    before = len(council.sent)
    for _ in range(1000):
        council.seats[0].ordering.step(3, ask)
    council.collect()
    answers = [flight.message for flight in council.sent[before:] if flight.sender == 0]
    answered_bytes = sum(len(msgspec.msgpack.encode(answer)) for answer in answers)
    assert 0 < answered_bytes < 2 * ANSWERS_BYTES_MAX


@pytest.mark.parametrize(
    "ask", [Fill(T, 0, 0, 1, True), Retrieve(A, T, 0, 1, 1)], ids=["fill", "retrieve"]
)
def test_whoever_asks_for_little_a_thousand_times_has_no_more_than_that_read(
    ask: Fill | Retrieve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a liar keeps every other replica busy with its disk, for some kilobytes of requests."""
    council = Council()
    council.publish(A, 1, *[bytes([number]) * 1000 for number in range(200)])
    council.settle()
    read_bytes = 0

    def reading(self: Readers, *where: Any) -> list[Stretch]:
        nonlocal read_bytes
        found = read(self, *where)
        read_bytes += sum(len(payload) for stretch in found for payload in stretch.payloads)
        return found

    read = Readers.read
    monkeypatch.setattr(Readers, "read", reading)
    for _ in range(10_000):
        council.seats[0].ordering.step(3, ask)
    assert 0 < read_bytes < 2 * ANSWERS_BYTES_MAX


def test_a_replica_is_given_all_that_it_lacks_of_what_was_decided() -> None:
    council = Council()
    payloads = [bytes([number]) * 9000 for number in range(100)]
    council.publish(A, 1, *payloads)
    council.settle()
    before = len(council.sent)
    council.say(3, [0], Retrieve(A, T, 0, 1, 100))
    given = [each.message for each in council.sent[before:] if each.sender == 0]
    (retrieved,) = [message for message in given if isinstance(message, Retrieved)]
    assert [*map(opened, retrieved.payloads)] == payloads


def test_whoever_stands_there_a_thousand_times_at_once_is_helped_a_few_times() -> None:
    """What is said again has a proposal in it, or the states of all replicas."""
    council = Council()
    council.publish(A, 1, b"one")
    council.settle()
    before = len(council.sent)
    slot = council.group(0).consensus.slot - 1
    standing = Standing(council.group(0).roster.number, 1, slot, True, WALL_US)
    for _ in range(1000):
        council.seats[0].ordering.step(3, standing)
    council.collect()
    assert 0 < len([flight for flight in council.sent[before:] if flight.receiver == 3]) < 100


def test_nobody_is_asked_for_what_is_here() -> None:
    council = Council()
    council.publish(A, 1)
    council.settle()
    council.run(2)
    assert not council.messages(Fill)


def test_what_is_missing_is_counted_in_events() -> None:
    filling = Council().group(3).filling
    for offset, end in ((0, 3), (3, 4), (7, 9)):
        filling.miss(Partition(T, 0), offset, end)
    assert filling.count == 6


class Trimmed:
    """A store whose retention has taken what stands before some offset."""

    def __init__(self, start: int) -> None:
        self.start = start

    def bounds(self, partition: Partition) -> tuple[int, int]:
        return self.start, 100

    def chain(self, partition: Partition, offset: int) -> tuple[int, bytes] | None:
        return (offset, bytes(32)) if offset >= self.start else None

    def behind(self, partition: Partition, offset: int, batches: int) -> int:
        """Every batch has one event."""
        return offset + batches


def test_what_retention_took_is_not_asked_for() -> None:
    look, store = Outlook(), Trimmed(5)
    filling = Filling((1, 2, 3), lambda _: True, cast(Store, store), look.outbox)
    filling.miss(Partition(T, 0), 0, 3)
    filling.miss(Partition(T, 1), 3, 7)
    filling.tick()
    (fill,) = look.sent(Fill)
    assert (fill.partition, fill.offset, fill.end) == (1, 5, 7)
    assert filling.count == 2


def test_an_answer_about_what_retention_took_meanwhile_is_held_against_nobody() -> None:
    look, store = Outlook(), Trimmed(0)
    filling = Filling((1, 2, 3), lambda _: True, cast(Store, store), look.outbox)
    filling.miss(Partition(T, 0), 0, 3)
    filling.tick()
    store.start = 2
    filling.on_entries(1, Entries(A, T, 0, 0, 1, 0, bytes(32), bytes(32), [event(b"x")]))
    ready = look.take()
    assert ready.reports == []
    fills = [message for _, message in ready.send if isinstance(message, Fill)]
    assert [(fill.offset, fill.end) for fill in fills] == [(0, 3), (2, 3)]


def test_a_small_batch_is_not_given_up_since_nobody_answered_for_a_while() -> None:
    """Silence is no answer. Some of a gap was given up whenever all peers were out of reach for a
    second and a half."""
    look = Outlook()
    filling = Filling((1, 2, 3), lambda _: False, cast(Store, Trimmed(0)), look.outbox)
    filling.miss(Partition(T, 0), 0, 2)
    for _ in range(60):
        filling.tick()
        look.outbox.now_us += ANSWER_US_MAX
    assert filling.count == 2
    asked = [(fill.offset, fill.end) for fill in look.sent(Fill)]
    assert asked.count((0, 2)) > 3


def test_what_all_peers_say_is_not_for_us_is_given_up() -> None:
    look = Outlook()
    filling = Filling((1, 2, 3), lambda _: False, cast(Store, Trimmed(0)), look.outbox)
    filling.miss(Partition(T, 0), 0, 2)
    for peer in (1, 2, 3):
        filling.tick()
        filling.on_absent(peer, Absent(T, 0, 0, 2))
    assert filling.count == 0


def test_what_nobody_gives_may_yet_come_until_everybody_has_said_that_it_lacks_it() -> None:
    """A store must not say that it lacks what it is about to get."""
    look, partition = Outlook(), Partition(T, 0)
    filling = Filling((1, 2, 3), lambda _: True, cast(Store, Trimmed(0)), look.outbox)
    filling.miss(partition, 0, 1)
    for peer in (1, 2):
        filling.tick()
        assert filling.on_absent(peer, Absent(T, 0, 0, 1))
    filling.tick()
    look.outbox.now_us += ANSWER_US_MAX
    filling.tick()
    # The third one said nothing: it may have it.
    assert filling.may_come(partition, 0)

    for peer in (1, 2, 3):
        filling.tick()
        assert filling.may_come(partition, 0)
        filling.on_absent(peer, Absent(T, 0, 0, 1))

    assert not filling.may_come(partition, 0)
    # It is asked for all the same.
    assert filling.count == 1


def test_what_was_given_is_not_said_to_be_lacking_while_the_disk_is_behind() -> None:
    """A store that is asked in the same turn would sign that it does not have it."""
    council = missed(b"small")
    partition = Partition(T, 0)
    council.run(3.0)
    assert council.log(3) == [b"small"]

    filling = council.group(3).filling
    assert filling.count == 0
    assert filling.may_come(partition, 0)
    assert not filling.may_come(partition, 1)


def test_what_one_peer_did_not_answer_to_is_asked_for_when_there_is_nothing_else() -> None:
    """Large batches that are not for us would otherwise keep us from asking for small ones."""
    look = Outlook()
    filling = Filling((1, 2, 3), lambda _: False, cast(Store, Trimmed(0)), look.outbox)
    filling.miss(Partition(T, 0), 0, 1)
    filling.miss(Partition(T, 0), 7, 8)
    for peer in (1, 2):
        filling.tick()
        filling.on_absent(peer, Absent(T, 0, 0, 1))
    filling.tick()
    look.outbox.now_us += ANSWER_US_MAX
    filling.tick()
    for peer in (1, 2, 3):
        filling.tick()
        filling.on_absent(peer, Absent(T, 0, 7, 8))
    filling.tick()
    assert [fill.offset for fill in look.sent(Fill)] == [0, 0, 0, 7, 7, 7, 0]
