"""A line on its way: to whom what goes, how often, and what makes a receipt."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from quorate.core.ids import NodeId, topic_id
from quorate.core.messages import Message
from quorate.core.ordering import Announce, Append, Line, Ordered, Partition, Unordered
from quorate.crypto.digests import batch_digest, descriptor
from quorate.crypto.sids import Seal
from quorate.protocol.machine import Recorded, Refused
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.publisher import (
    REFUSED_AFTER_US,
    RETRY_AFTER_US,
    LineOutgoing,
    UnderWay,
)
from quorate.protocol.ordering.room import BATCH_COST, EVENT_COST, LINE_COST
from quorate.protocol.ordering.store_choice import DOUBT_US, FIRST_WIDE_US, PASS_OVER_AFTER_US
from quorate.protocol.ordering.validation import Sealer
from quorate.sim.sealing import CLUSTER, public_key, signing_key
from quorate.storage.store import DiskStore
from seals import batch_of_values
from stage import Outlook, topic

T = topic_id("t")
LINE = Line(1000, T, 0)
LARGE = batch_of_values(bytes(INLINE_BYTES_MAX + 1))
TICK_US = 50_000
BYZANTINE: dict[str, object] = {"protection": "byzantine", "order": "total"}
CRASH: dict[str, object] = {"protection": "crash", "order": "total"}
ALONE: dict[str, object] = {"protection": "none", "order": "total"}


class Publisher:
    """A line with an outbox of its own."""

    def __init__(
        self, table: dict[str, object] = BYZANTINE, f: int = 1, fsync: str = "always"
    ) -> None:
        self.look = Outlook()
        self.topic = replace(topic(table, f=f), fsync=fsync)
        self.line = LineOutgoing(self.topic, LINE, self.look.outbox)
        self.reachable = set(self.topic.members)

    def add(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.line.add(payload, 1)

    def sent(self) -> list[tuple[NodeId, Message]]:
        """What goes out now."""
        self.line.flush(self.reachable.__contains__)
        return self.look.take().send

    def pass_time(self, us: int) -> None:
        self.look.at(self.look.outbox.now_us + us)
        self.line.tick()

    def ordered(
        self, replica: NodeId, first: int = 1, count: int = 1, offset: int = 0, time_us: int = 9
    ) -> None:
        self.line.on_ordered(replica, Ordered(T, 0, first, count, offset, time_us))

    def receipts(self) -> list[Recorded]:
        ready = self.look.take()
        self.reports = [report.kind for report in ready.reports]
        return [outcome for outcome in ready.deliver if isinstance(outcome, Recorded)]


# Sending


def test_small_batches_go_to_every_replica_in_one_run() -> None:
    publisher = Publisher()
    publisher.add(b"1", b"2")
    run = Append(T, 0, 1, [b"1", b"2"])
    assert publisher.sent() == [(replica, run) for replica in range(4)]


def test_nothing_is_sent_twice() -> None:
    publisher = Publisher()
    publisher.add(b"1")
    publisher.sent()
    assert publisher.sent() == []
    publisher.add(b"2")
    assert publisher.sent() == [(replica, Append(T, 0, 2, [b"2"])) for replica in range(4)]


def a_sealer() -> Sealer:
    return Sealer(
        CLUSTER,
        public_key(1000),
        signing_key(1000).sign,
        wall_us=lambda: 0,
        salt=lambda _, __: bytes(32),
    )


def seals_of(look: Outlook) -> list[Seal]:
    """What one replica is sent, of all lines."""
    sent = [message for replica, message in look.take().send if replica == 0]
    return [
        Seal.decode(payload)
        for message in sent
        if isinstance(message, Append)
        for payload in message.payloads
    ]


def test_what_several_lines_publish_in_one_turn_is_signed_together() -> None:
    """Eight batches at most share a signature, and those of a later turn have another one."""
    look, sealer = Outlook(), a_sealer()
    validated = topic({**BYZANTINE, "validated": True, "partitions": 3})
    lines = [
        LineOutgoing(validated, LINE._replace(partition=number), look.outbox, sealer=sealer)
        for number in range(3)
    ]
    for count in (9, 2):
        for number in range(count):
            lines[number % 3].add(batch_of_values(b"%d" % number), 1, sign=True)
        for line in lines:
            line.flush(lambda _: True)
        sheaves = Counter((seal.signature, seal.sheaf) for seal in seals_of(look))
        assert sorted(sheaves.values()) == sorted(size for _, size in sheaves)
        assert sorted(sheaves.values()) == ([1, 8] if count == 9 else [2])


def test_a_batch_takes_as_much_room_as_it_will_behind_its_seal() -> None:
    look, under_way = Outlook(), UnderWay()
    validated = topic({**BYZANTINE, "validated": True})
    line = LineOutgoing(validated, LINE, look.outbox, under_way, a_sealer())
    line.add(batch_of_values(b"value"), 1, sign=True)
    before = under_way.bytes
    line.flush(lambda _: True)
    (message,) = [message for replica, message in look.take().send if replica == 0]
    assert isinstance(message, Append)
    assert before == LINE_COST + BATCH_COST + EVENT_COST + len(message.payloads[0])
    for replica in (0, 1):
        line.on_ordered(replica, Ordered(T, 0, 1, 1, 0, 9))
    assert under_way.bytes == 0


def stores(publisher: Publisher, sent: list[tuple[NodeId, Message]]) -> list[NodeId]:
    return [replica for replica, message in sent if isinstance(message, Append)]


@pytest.mark.parametrize(
    ("table", "f", "count"), [(BYZANTINE, 1, 2), (BYZANTINE, 2, 3), (CRASH, 1, 2)]
)
def test_a_large_batch_goes_to_f_plus_1_stores_and_its_digest_to_the_others(
    table: dict[str, object], f: int, count: int
) -> None:
    publisher = Publisher(table, f)
    publisher.add(LARGE)
    sent = publisher.sent()

    assert len(sent) == len(publisher.topic.members)
    assert len(stores(publisher, sent)) == count
    assert all(
        message
        in (Append(T, 0, 1, [LARGE], [batch_digest(LARGE)]), Announce(T, 0, 1, [descriptor(LARGE)]))
        for _, message in sent
    )


def test_a_large_batch_goes_to_as_many_stores_as_were_asked_for() -> None:
    look = Outlook()
    line = LineOutgoing(topic(BYZANTINE), LINE, look.outbox, stores=4)
    line.add(LARGE, 1)
    line.flush(lambda _: True)

    whole = Append(T, 0, 1, [LARGE], [batch_digest(LARGE)])
    assert look.take().send == [(replica, whole) for replica in range(4)]


def test_partitions_begin_with_different_stores() -> None:
    firsts = set()
    for partition in range(4):
        look = Outlook()
        line = LineOutgoing(topic(BYZANTINE), Line(1000, T, partition), look.outbox)
        line.add(LARGE, 1)
        line.flush(lambda _: True)
        sent = look.take().send
        firsts.add(tuple(replica for replica, message in sent if isinstance(message, Append)))
    assert len(firsts) == 4


def test_runs_change_where_large_batches_begin_and_end() -> None:
    publisher = Publisher()
    publisher.add(b"1", LARGE, LARGE, b"4")
    sent = publisher.sent()
    (other, *_) = [replica for replica, message in sent if isinstance(message, Announce)]
    told = [message for replica, message in sent if replica == other]
    assert told == [
        Append(T, 0, 1, [b"1"]),
        Announce(T, 0, 2, [descriptor(LARGE)] * 2),
        Append(T, 0, 4, [b"4"]),
    ]  # fmt: skip
    announced = {replica for replica, message in sent if isinstance(message, Announce)}
    store = min({replica for replica, _ in sent} - announced)
    assert [message for replica, message in sent if replica == store] == [
        Append(T, 0, 1, [b"1"]),
        Append(T, 0, 2, [LARGE] * 2, [batch_digest(LARGE)] * 2),
        Append(T, 0, 4, [b"4"]),
    ]


def test_when_nothing_moves_all_of_it_is_said_again_and_stored_by_more() -> None:
    publisher = Publisher()
    publisher.add(LARGE)
    assert len(stores(publisher, publisher.sent())) == 2

    publisher.pass_time(RETRY_AFTER_US - 1)
    assert publisher.sent() == []
    publisher.pass_time(1)
    assert len(stores(publisher, publisher.sent())) == 3
    publisher.pass_time(2 * RETRY_AFTER_US)
    assert len(stores(publisher, publisher.sent())) == 4


def test_what_has_its_receipt_is_not_said_again() -> None:
    publisher = Publisher()
    publisher.add(b"1", b"2")
    publisher.sent()
    publisher.ordered(0)
    publisher.ordered(1)
    publisher.pass_time(RETRY_AFTER_US)
    assert publisher.sent() == [(replica, Append(T, 0, 2, [b"2"])) for replica in range(4)]


def test_where_receipts_take_long_it_is_said_again_later() -> None:
    publisher = Publisher()
    publisher.add(b"1", b"2")
    publisher.sent()
    publisher.pass_time(RETRY_AFTER_US - 1)
    publisher.ordered(0)
    publisher.ordered(1)
    publisher.pass_time(2 * RETRY_AFTER_US - 3)
    assert publisher.sent() == []
    publisher.pass_time(1)
    assert publisher.sent() == [(replica, Append(T, 0, 2, [b"2"])) for replica in range(4)]


def test_a_replica_that_comes_back_is_told_all_that_has_no_receipt() -> None:
    publisher = Publisher()
    publisher.add(b"1", b"2")
    publisher.sent()
    publisher.line.reconnected(2)
    assert publisher.sent() == [(2, Append(T, 0, 1, [b"1", b"2"]))]


def test_a_replica_that_takes_nothing_is_told_later() -> None:
    publisher = Publisher()
    publisher.reachable = {0, 1, 2}
    publisher.add(b"1")
    assert [replica for replica, _ in publisher.sent()] == [0, 1, 2]
    publisher.add(b"2")
    publisher.reachable.add(3)
    assert (3, Append(T, 0, 1, [b"1", b"2"])) in publisher.sent()


# Stores that do not help


class Line4(Publisher):
    """Large batches one after the other, with replicas that order what f + 1 of them store."""

    def __init__(self) -> None:
        super().__init__()
        self.order = stores_of(self.topic.members, Partition(T, 0))
        # Who stores nothing, and of those who says nothing either.
        self.refusing: set[NodeId] = set()
        self.silent: set[NodeId] = set()
        # Who says that batches are ordered as soon as it has heard of them.
        self.boasting: set[NodeId] = set()
        self.waited_us = 0
        self.copies: list[int] = []
        self._number = 0

    def publish(self) -> frozenset[NodeId]:
        """One batch, until it has its receipt; says by whom it was to be stored."""
        self._number += 1
        self.add(LARGE)
        stored_by: set[NodeId] = set()
        began_us, copies = self.look.outbox.now_us, 0
        for _ in range(200):
            asked = frozenset(stores(self, self.sent()))
            for replica in self.boasting:
                self.ordered(replica, self._number, offset=self._number - 1)
            copies += len(asked)
            stored_by |= asked - self.refusing - self.silent
            if len(stored_by) > self.topic.f:
                break
            self.pass_time(TICK_US)
        else:
            raise AssertionError(f"batch {self._number} is stored by {stored_by} only")
        self.waited_us += self.look.outbox.now_us - began_us
        self.copies.append(copies)
        for replica in self.order:
            if replica not in self.silent:
                self.ordered(replica, self._number, offset=self._number - 1)
        (receipt,) = self.receipts()
        assert receipt.first == self._number
        self.pass_time(TICK_US)
        return self.line._stores.chosen


def test_a_store_that_went_silent_costs_one_wait_and_is_not_used_for_what_follows() -> None:
    line = Line4()
    first, second, third, _ = line.order
    assert line.publish() == {first, second}
    line.silent = {first}

    for _ in range(30):
        chosen = line.publish()

    assert line.waited_us == RETRY_AFTER_US
    assert chosen == {second, third}
    # Once it was known, f + 1 copies were enough.
    assert line.copies[-1] == 2


def test_a_store_that_cannot_be_reached_is_passed_over_without_waiting_for_a_retry() -> None:
    line = Line4()
    first, second, third, _ = line.order
    line.reachable -= {first}
    line.silent = {first}

    line.publish()
    assert line.waited_us == PASS_OVER_AFTER_US
    chosen = [line.publish() for _ in range(30)]

    assert set(chosen) == {frozenset({second, third})}
    assert line.waited_us == PASS_OVER_AFTER_US
    line.reachable.add(first)
    line.silent = set()
    line.publish()
    assert line.publish() == {first, second}


def test_a_moment_of_back_pressure_changes_no_stores() -> None:
    line = Line4()
    first, second, *_ = line.order
    line.add(LARGE)
    line.reachable -= {first}
    assert stores(line, line.sent()) == [second]

    line.pass_time(PASS_OVER_AFTER_US - 1)
    line.reachable.add(first)

    assert stores(line, line.sent()) == [first]


def test_a_store_that_does_not_store_and_is_not_known_costs_one_wait_in_a_while() -> None:
    """It says that batches are ordered, like all others: so one more store is used instead."""
    line = Line4()
    first, second, third, _ = line.order
    line.publish()
    line.refusing = {first}

    for _ in range(100):
        chosen = line.publish()

    assert chosen == {first, second, third}
    assert line.waited_us == RETRY_AFTER_US


def test_a_beginning_that_takes_long_costs_more_copies_for_a_short_while_only() -> None:
    line = Line4()
    first, second, third, _ = line.order
    line.add(LARGE)
    assert stores(line, line.sent()) == sorted([first, second])

    line.pass_time(RETRY_AFTER_US)
    assert stores(line, line.sent()) == sorted([first, second, third])
    for replica in line.order:
        line.ordered(replica, 1, offset=0)
    line.pass_time(FIRST_WIDE_US)
    line.add(LARGE)

    assert stores(line, line.sent()) == sorted([first, second])


def test_a_store_that_is_doubted_is_tried_again_later() -> None:
    line = Line4()
    first, second, third, _ = line.order
    line.publish()
    line.silent = {first}
    for _ in range(30):
        line.publish()
    line.silent = set()

    line.pass_time(DOUBT_US)

    assert line.publish() == {first, second}
    waited_us = line.waited_us
    line.silent = {first}
    for _ in range(30):
        line.publish()
    # It is known to lag behind by the first receipt that it does not name.
    assert line.waited_us - waited_us == RETRY_AFTER_US
    assert line.publish() == {second, third}


def test_a_replica_that_boasts_gets_no_other_doubted() -> None:
    """It says that everything is ordered, and stores nothing. Nobody else is measured by that."""
    line = Line4()
    boaster, second, third, _ = line.order
    line.publish()
    line.refusing = line.boasting = {boaster}

    for _ in range(100):
        chosen = line.publish()

    assert chosen == {boaster, second, third}
    assert line.waited_us == RETRY_AFTER_US


# Receipts


def test_a_receipt_takes_f_plus_1_replicas_that_name_the_same_position() -> None:
    publisher = Publisher()
    publisher.add(b"1")
    publisher.ordered(0, offset=7)
    publisher.ordered(1, offset=8)
    publisher.ordered(2, offset=7, time_us=10)
    assert publisher.receipts() == []

    publisher.ordered(3, offset=7)

    (receipt,) = publisher.receipts()
    assert (receipt.line, receipt.first, receipt.count, receipt.offsets) == (LINE, 1, 1, [7, 8])
    assert receipt.replicas == (0, 3)
    assert "f replicas may do anything" in receipt.guarantee


def test_one_replica_that_repeats_itself_is_one_voice() -> None:
    publisher = Publisher()
    publisher.add(b"1")
    for _ in range(3):
        publisher.ordered(0)
    assert publisher.receipts() == []


def test_where_nobody_lies_one_word_is_enough() -> None:
    publisher = Publisher(CRASH)
    publisher.add(b"1")
    publisher.ordered(2)
    (receipt,) = publisher.receipts()
    assert receipt.replicas == (2,)
    assert "may crash" in receipt.guarantee


@pytest.mark.parametrize("table", [BYZANTINE, CRASH, ALONE], ids=["byzantine", "crash", "none"])
@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_receipt_promises_no_more_than_the_disks_do(
    table: dict[str, object], fsync: Literal["always", "interval", "never"], tmp_path: Path
) -> None:
    # Given replicas that sync when their policy says so
    store = DiskStore(tmp_path, fsync=fsync)
    gives_up = store.gives_up.rstrip(".").lower()
    store.close()

    # When they name a position
    publisher = Publisher(table, fsync=fsync)
    publisher.add(b"1")
    for replica in publisher.topic.members:
        publisher.ordered(replica)

    # Then the receipt says that it is on disk, or in the words of a status what it may lose.
    (receipt,) = publisher.receipts()
    assert ("on disk" in receipt.guarantee) == (fsync == "always")
    assert receipt.guarantee.endswith(gives_up)


def test_receipts_come_in_the_order_of_the_line() -> None:
    publisher = Publisher()
    publisher.add(b"1", b"2", b"3")
    for replica in (0, 1):
        publisher.ordered(replica, first=3, offset=9)
    assert publisher.receipts() == []
    for replica in (0, 1):
        publisher.ordered(replica, first=1, count=2, offset=4)

    assert [(r.first, r.count, r.offsets) for r in publisher.receipts()] == [
        (1, 2, [4, 5, 6]),
        (3, 1, [9, 10]),
    ]
    assert publisher.line.in_flight == 0
    assert publisher.line.under_way.bytes == 0


def test_a_batch_has_one_receipt() -> None:
    publisher = Publisher()
    publisher.add(b"1", b"2")
    for replica in range(4):
        publisher.ordered(replica)
    assert len(publisher.receipts()) == 1


def test_positions_of_what_was_never_published_are_reported() -> None:
    publisher = Publisher()
    publisher.add(b"1")
    publisher.ordered(0, first=1, count=2)
    publisher.ordered(77)
    assert publisher.receipts() == []
    assert publisher.reports == ["false-position"] * 2


def test_what_waits_for_receipts_is_bounded() -> None:
    publisher = Publisher()
    in_flight = publisher.topic.windows.in_flight
    publisher.add(*[b"x"] * in_flight)
    assert not publisher.line.has_room
    for replica in (0, 1):
        publisher.ordered(replica)
    assert publisher.line.has_room


def test_lines_share_what_may_be_under_way() -> None:
    look, under_way = Outlook(), UnderWay(LINE_COST + BATCH_COST + EVENT_COST + 10)
    first, second = (
        LineOutgoing(topic(BYZANTINE), Line(1000, T, partition), look.outbox, under_way)
        for partition in range(2)
    )
    first.add(bytes(9), 1)
    assert second.has_room
    assert not under_way.held_up
    first.add(b"x", 1)
    assert not second.has_room
    assert under_way.held_up

    for replica in (0, 1):
        first.on_ordered(replica, Ordered(T, 0, 1, 2, 0, 9))
    assert second.has_room
    assert under_way.bytes == 0


def test_positions_that_begin_with_what_has_its_receipt_take_no_room() -> None:
    publisher = Publisher()
    publisher.add(*[b"1"] * 100)
    for replica in (0, 1):
        publisher.ordered(replica, 1, 100)
    publisher.add(b"2")
    for first in range(1, 101):
        publisher.ordered(3, first, 102 - first)
    assert not publisher.line._voices


def test_what_replicas_refuse_for_good_is_given_up_with_their_sentence() -> None:
    publisher = Publisher()
    publisher.add(b"one", b"two")
    publisher.sent()
    refusal = Unordered(T, 0, 1, "it has ended")

    # Who got a later batch first, or lags behind, may say so; and fewer than n - f are not enough.
    for replica in range(4):
        publisher.line.on_unordered(replica, refusal)
    assert publisher.line.in_flight == 2
    publisher.pass_time(REFUSED_AFTER_US)
    for replica in range(4):
        publisher.line.on_unordered(replica, Unordered(T, 0, 2, "it has ended"))
    assert publisher.line.in_flight == 2
    for replica in (0, 1, 1):
        publisher.line.on_unordered(replica, refusal)
    assert publisher.look.take().deliver == []

    publisher.line.on_unordered(2, refusal)
    assert publisher.look.take().deliver == [Refused(LINE, 1, "it has ended")]
    assert (publisher.line.refusal, publisher.line.in_flight) == ("it has ended", 0)
    assert publisher.line.under_way.bytes == 0
