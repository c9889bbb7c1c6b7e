"""A reader believes f + 1 replicas, takes payloads from one, and is not held up by any."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import count as numbers
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chamber import PARTITION, Chamber
from council import READER, VALIDATED
from quorate.core.batch import Batch, encode_values
from quorate.core.header import is_signed
from quorate.core.ids import NodeId, topic_id
from quorate.core.ordering import (
    BEGIN_US,
    END_US,
    Absent,
    Allow,
    AskReceipts,
    Chained,
    Entries,
    Follow,
    Line,
    Located,
    Partition,
    Wants,
)
from quorate.crypto.digests import descriptor, digest
from quorate.protocol.machine import Entry, Ready, Trimmed
from quorate.protocol.ordering import reading as module
from quorate.protocol.ordering.ranges import RangeReading, Settled, Unsettled
from quorate.protocol.ordering.reading import (
    ASK_AGAIN_US,
    BEYOND_AFTER_US,
    COMPLAIN_EVERY_US,
    CREDIT_BATCHES,
    CREDIT_GROWTH,
    FIRST_CREDIT_EVENTS,
    LATE_AFTER_US,
    SLOW_AFTER_US,
    Reading,
    Search,
)
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.ordering.value import CHAIN_START, chained, leaves_of, offsets_of
from quorate.sim.sealing import CLUSTER
from seals import batch_of_values, sealed_batch
from stage import Outlook, event, framed, opened, topic

T = topic_id("t")
LINE = Line(1000, T, 0)
BYZANTINE: dict[str, object] = {"protection": "byzantine", "order": "total"}
CRASH: dict[str, object] = {"protection": "crash", "order": "total"}


class Book:
    """A partition as correct replicas have it: batches of one publisher, one after the other."""

    def __init__(self, *payloads: bytes, time_step_us: int = 0) -> None:
        self.payloads = [*map(framed, payloads)]
        self._time_step_us = time_step_us
        descriptors = [*map(descriptor, self.payloads)]
        # Where each batch begins, and the end.
        self.offsets = offsets_of(0, descriptors)
        leaves = [
            leaf
            for at, content in enumerate(descriptors)
            for leaf in leaves_of(LINE, at + 1, self.offsets[at], self._time_us(at), [content])
        ]
        self.chains = [CHAIN_START, *chained(CHAIN_START, leaves)]

    def entries(self, start: int, end: int, wants: Wants = Wants.ALL) -> Entries:
        """The batches from one number up to but without another, as this reader wants them."""
        payloads = [*self.payloads[start:end]]
        bare = [at for at, each in enumerate(payloads) if not is_signed(each)]
        if wants is Wants.ALL:
            bare = []
        for at in bare:
            payloads[at] = descriptor(payloads[at])
        before, after = self.chains[start], self.chains[start + len(payloads)]
        offset, time_us = self.offsets[start], self._time_us(start)
        return Entries(*LINE, offset, start + 1, time_us, before, after, payloads, bare)

    def _time_us(self, at: int) -> int:
        return 5 + at * self._time_step_us

    def chained(self, at: int, start: int = 0) -> Chained:
        """The chain before a batch; those before `start` are gone."""
        begin = self.offsets[start]
        return Chained(T, 0, self.offsets[at], self.chains[at], begin, begin, self.offsets[-1])


TRUE = Book(b"1", b"2", b"3", b"4")
FALSE = Book(b"1", b"x", b"y", b"z")


class Desk:
    """A reader, and the replicas that it can reach."""

    def __init__(
        self,
        table: dict[str, object] = BYZANTINE,
        offset: int = 0,
        f: int = 1,
        *,
        validates: bool = False,
    ) -> None:
        self.look = Outlook()
        self.topic = topic(table, f=f)
        self.connected = set(self.topic.members)
        validation = Validation(CLUSTER, [self.topic], {}) if validates else None
        self.reading = Reading(
            self.topic, Partition(T, 0), offset, self.look.outbox, validation=validation
        )
        self.reading.begin(self.connected)
        self.reports: list[tuple[NodeId, str]] = []

    @property
    def lead(self) -> NodeId:
        assert self.reading.lead is not None
        return self.reading.lead

    @property
    def others(self) -> list[NodeId]:
        return [replica for replica in self.topic.members if replica != self.lead]

    def entries(self, book: Book, start: int, end: int, sender: NodeId | None = None) -> None:
        by = self.lead if sender is None else sender
        self.reading.on_entries(by, book.entries(start, end), self.connected)

    def chain(self, sender: NodeId, book: Book, offset: int) -> None:
        self.reading.on_chained(sender, book.chained(offset), self.connected)

    def absent(self, sender: NodeId, offset: int, count: int = 1) -> None:
        self.reading.on_absent(sender, Absent(T, 0, offset, offset + count), self.connected)

    def pass_time(self, us: int) -> None:
        self.look.at(self.look.outbox.now_us + us)
        self.reading.tick(self.connected)

    def take(self) -> Ready:
        ready = self.look.take()
        self.reports += [(report.node, report.kind) for report in ready.reports]
        return ready

    def read(self) -> list[bytes]:
        return [opened(entry.payload) for entry in self.take().deliver if isinstance(entry, Entry)]

    def asked(self) -> dict[NodeId, Follow]:
        return {node: m for node, m in self.take().send if isinstance(m, Follow)}


# Agreement


def test_a_reader_asks_one_replica_for_payloads_and_f_others_for_the_chain() -> None:
    for f in (1, 2):
        desk = Desk(f=f)
        asked = desk.asked()
        assert len(asked) == f + 1
        assert [node for node, follow in asked.items() if follow.wants is Wants.ALL] == [desk.lead]
        assert {follow.limit for follow in asked.values()} == {FIRST_CREDIT_EVENTS}


def test_when_one_of_them_contradicts_the_lead_everybody_is_asked() -> None:
    desk = Desk()
    asked = desk.asked()
    (partner,) = asked.keys() - {desk.lead}
    desk.entries(TRUE, 0, 2)
    desk.chain(partner, FALSE, 2)
    assert set(desk.asked()) == {0, 1, 2, 3}


def test_the_lead_alone_is_not_believed() -> None:
    desk = Desk()
    desk.entries(TRUE, 0, 2)
    desk.chain(desk.lead, TRUE, 2)
    assert desk.read() == []


def test_the_lead_and_f_others_that_have_the_same_chain_are() -> None:
    desk = Desk()
    desk.entries(TRUE, 0, 3)
    other = desk.others[0]
    desk.chain(other, TRUE, 2)

    entries = [entry for entry in desk.take().deliver if isinstance(entry, Entry)]

    assert [opened(entry.payload) for entry in entries] == [b"1", b"2"]
    assert [entry.offset for entry in entries] == [0, 1]


def test_a_lead_whose_batches_are_not_what_it_says_they_are_is_replaced() -> None:
    for table in (BYZANTINE, CRASH):
        desk = Desk(table)
        lead = desk.lead
        forged = msgspec.structs.replace(TRUE.entries(0, 2), payloads=[event(b"1"), event(b"x")])
        desk.reading.on_entries(lead, forged, desk.connected)
        assert desk.read() == []
        assert desk.reports == [(lead, "bad-lead")]
        assert desk.lead != lead


def test_with_f_of_2_it_takes_two_others() -> None:
    desk = Desk(f=2)
    desk.entries(TRUE, 0, 2)
    first, second, *_ = desk.others
    desk.chain(first, TRUE, 2)
    assert desk.read() == []
    desk.chain(second, TRUE, 1)
    assert desk.read() == [b"1"]


def test_it_does_not_matter_who_speaks_first() -> None:
    desk = Desk()
    desk.chain(desk.others[0], TRUE, 2)
    desk.entries(TRUE, 0, 2)
    assert desk.read() == [b"1", b"2"]


def test_another_chain_is_no_agreement() -> None:
    desk = Desk()
    desk.entries(TRUE, 0, 2)
    desk.chain(desk.others[0], FALSE, 2)
    assert desk.read() == []


def test_where_nobody_lies_the_lead_is_enough() -> None:
    desk = Desk(CRASH)
    desk.entries(TRUE, 0, 2)
    assert desk.read() == [b"1", b"2"]


def test_a_reader_may_begin_anywhere() -> None:
    desk = Desk(offset=2)
    desk.entries(TRUE, 2, 4)
    desk.chain(desk.others[0], TRUE, 4)
    assert desk.read() == [b"3", b"4"]


# Order


def test_entries_of_anybody_but_the_lead_are_not_taken() -> None:
    desk = Desk()
    desk.entries(FALSE, 0, 2, sender=desk.others[0])
    desk.chain(desk.others[1], FALSE, 2)
    assert desk.read() == []


def test_entries_that_overtake_wait_for_those_before_them() -> None:
    desk = Desk()
    desk.chain(desk.others[0], TRUE, 4)
    desk.entries(TRUE, 3, 4)
    desk.entries(TRUE, 1, 3)
    assert desk.read() == []
    desk.entries(TRUE, 0, 1)
    assert desk.read() == [b"1", b"2", b"3", b"4"]


def test_entries_that_come_twice_are_delivered_once() -> None:
    desk = Desk()
    desk.chain(desk.others[0], TRUE, 2)
    desk.entries(TRUE, 0, 2)
    desk.entries(TRUE, 0, 2)
    assert desk.read() == [b"1", b"2"]


# Leads


def test_a_lead_that_lies_is_replaced_and_what_it_sent_is_read_again() -> None:
    desk = Desk()
    liar, (first, second, _) = desk.lead, desk.others
    desk.entries(FALSE, 0, 2)
    desk.chain(first, TRUE, 2)
    assert desk.lead == liar
    desk.chain(second, TRUE, 2)

    assert desk.lead != liar
    asked = desk.asked()
    assert desk.reports == [(liar, "bad-lead")]
    assert asked[desk.lead].wants is Wants.ALL
    assert asked[liar].wants is Wants.CHAIN
    assert asked[desk.lead].offset == 0

    desk.entries(TRUE, 0, 2)
    desk.chain(desk.others[-1], TRUE, 2)
    assert desk.read() == [b"1", b"2"]


def test_f_replicas_that_contradict_the_lead_do_not_replace_it() -> None:
    desk = Desk()
    lead = desk.lead
    desk.entries(TRUE, 0, 2)
    desk.chain(desk.others[0], FALSE, 2)
    desk.chain(desk.others[1], TRUE, 2)
    assert desk.read() == [b"1", b"2"]
    assert desk.lead == lead
    assert desk.reports == []


def test_one_that_contradicts_the_lead_in_many_ways_is_one_voice_and_takes_no_room() -> None:
    desk = Desk()
    lead, liar = desk.lead, desk.others[0]
    desk.entries(TRUE, 0, 2)
    for number in range(1000):
        word = Chained(T, 0, 2, digest(b"%d" % number), 0, 0, 2)
        desk.reading.on_chained(liar, word, desk.connected)
    assert len(desk.reading.contradicted_by) == 1
    desk.chain(desk.others[1], TRUE, 2)
    assert desk.read() == [b"1", b"2"]
    assert desk.lead == lead
    assert desk.reports == []


@pytest.mark.parametrize("f", [1, 2])
def test_f_plus_1_that_contradict_a_lead_replace_it_wherever_each_of_them_is(f: int) -> None:
    # Given a lead that lies from the second batch on
    desk = Desk(f=f)
    liar, voices = desk.lead, desk.others
    desk.entries(FALSE, 0, 4)

    # When f others are at one offset each, and go on
    for place, replica in enumerate(voices[:f]):
        desk.chain(replica, TRUE, 2 + place)
        desk.chain(replica, TRUE, 3 + place)
    assert desk.lead == liar

    # Then one more is enough: a chain covers all that came before, so one of them is correct and
    # none of it is what the others have.
    desk.chain(voices[f], TRUE, 2)
    assert desk.lead != liar
    desk.take()
    assert desk.reports == [(liar, "bad-lead")]


def test_words_against_a_former_lead_do_not_count_against_the_next() -> None:
    desk = Desk()
    liar, (first, second, _) = desk.lead, desk.others
    desk.entries(FALSE, 0, 2)
    desk.chain(first, TRUE, 2)
    desk.chain(second, TRUE, 2)
    lead = desk.lead
    assert lead != liar

    desk.entries(TRUE, 0, 2)
    desk.chain(liar, FALSE, 2)
    assert desk.lead == lead


def test_a_lead_whose_batches_do_not_follow_on_each_other_is_replaced() -> None:
    desk = Desk()
    liar = desk.lead
    desk.entries(TRUE, 0, 2)
    desk.entries(FALSE, 2, 4)
    assert desk.lead != liar


def altered(entries: Entries) -> Entries:
    """As a link that alters what it carries hands it over."""
    return msgspec.structs.replace(entries, payloads=[b"?" + each for each in entries.payloads])


def loses_its_link(desk: Desk) -> None:
    desk.connected.discard(desk.lead)
    desk.reading.disconnected(desk.lead, desk.connected)


def is_altered_on_its_way(desk: Desk) -> None:
    desk.reading.on_entries(desk.lead, altered(TRUE.entries(2, 3)), desk.connected)


def does_not_follow(desk: Desk) -> None:
    desk.entries(FALSE, 2, 3)


def is_late(desk: Desk) -> None:
    for replica in desk.others[1:]:
        desk.chain(replica, TRUE, 4)
    desk.pass_time(LATE_AFTER_US)
    desk.pass_time(2 * LATE_AFTER_US)


@pytest.mark.parametrize("fails", [loses_its_link, is_altered_on_its_way, does_not_follow, is_late])
def test_what_a_lead_sent_before_it_failed_is_kept_and_others_confirm_it(
    fails: Callable[[Desk], None],
) -> None:
    # Given a lead that sent two batches that nobody confirmed yet
    desk = Desk()
    former = desk.lead
    desk.entries(TRUE, 0, 2)
    desk.asked()

    # When it fails
    fails(desk)

    # Then others are to say what they think of these two, before anything follows on them.
    lead = desk.lead
    assert lead != former
    asked = desk.asked()
    assert (asked[lead].offset, asked[lead].limit, asked[lead].wants) == (2, 2, Wants.ALL)
    partner = next(replica for replica in asked if replica not in (lead, former))
    assert (asked[partner].offset, asked[partner].limit) == (0, 2)

    desk.chain(partner, TRUE, 2)
    ready = desk.take()
    assert [opened(e.payload) for e in ready.deliver if isinstance(e, Entry)] == [b"1", b"2"]
    assert {m.limit for _, m in ready.send if isinstance(m, Allow)} == {2 + CREDIT_BATCHES}
    desk.entries(TRUE, 2, 4)
    desk.chain(partner, TRUE, 4)
    assert desk.read() == [b"3", b"4"]


def test_what_was_kept_of_a_lead_that_lied_is_dropped_and_the_next_one_is_not_blamed() -> None:
    desk = Desk()
    liar = desk.lead
    desk.entries(FALSE, 0, 2)
    loses_its_link(desk)
    lead = desk.lead
    for replica in desk.connected:
        desk.chain(replica, TRUE, 2)

    asked = desk.asked()
    assert desk.lead == lead
    assert (asked[lead].offset, asked[lead].limit) == (0, FIRST_CREDIT_EVENTS)
    assert desk.reports == [(liar, "bad-lead")]
    desk.entries(TRUE, 0, 2)
    desk.chain(desk.others[-1], TRUE, 2)
    assert desk.read() == [b"1", b"2"]


def test_a_batch_that_a_lead_ended_where_nobody_else_does_is_read_again_from_another_one() -> None:
    """No correct replica has a word on the chain there, so none can say that it is wrong."""
    # Given a lead that says of a batch of two events that it has one
    desk, payload = Desk(), encode_values([b"1", b"2"], 0)
    false, liar = FALSE.entries(0, 1), desk.lead
    desk.reading.on_entries(liar, false, desk.connected)
    (leaf,) = leaves_of(LINE, 1, 0, 5, [descriptor(payload)])
    (after,) = chained(CHAIN_START, [leaf])
    true = Entries(*LINE, 0, 1, 5, CHAIN_START, after, [payload])

    # When others are further, and say so, and leads change
    def others_speak() -> None:
        for replica in desk.topic.members:
            word = Chained(T, 0, 2, after, 0, 0, 2)
            desk.reading.on_chained(replica, word, desk.connected)

    for late in range(4):
        others_speak()
        desk.pass_time(2**late * LATE_AFTER_US)

    # Then that batch is forgotten, and another lead sends it as it is.
    assert desk.lead != liar
    desk.reading.on_entries(desk.lead, true, desk.connected)
    others_speak()
    (entry,) = [each for each in desk.take().deliver if isinstance(each, Entry)]
    assert (entry.offset, entry.end, entry.payload) == (0, 2, payload)


def test_what_is_late_is_asked_of_everybody_and_a_lead_that_is_late_then_is_replaced() -> None:
    desk = Desk()
    late = desk.lead
    desk.asked()
    for other in desk.others[:2]:
        desk.chain(other, TRUE, 4)
    desk.pass_time(LATE_AFTER_US - 1)
    assert desk.asked() == {}
    desk.pass_time(1)
    assert set(desk.asked()) == {0, 1, 2, 3}
    assert desk.lead == late
    desk.pass_time(2 * LATE_AFTER_US)
    assert desk.lead != late


def reads_slowly(desk: Desk, book: Book, batches: int) -> None:
    """So many batches, one before each time that the lead would be late, confirmed by all."""
    for offset in range(batches):
        desk.pass_time(LATE_AFTER_US - 1)
        desk.entries(book, offset, offset + 1)
        for replica in desk.others:
            desk.chain(replica, book, offset + 1)


def test_a_lead_that_is_never_silent_and_brings_next_to_nothing_is_replaced() -> None:
    desk = Desk()
    book = Book(*[b"x"] * 2 * (SLOW_AFTER_US // LATE_AFTER_US))
    slow = desk.lead
    reads_slowly(desk, book, SLOW_AFTER_US // LATE_AFTER_US - 1)
    assert desk.lead == slow
    for _ in range(4):
        desk.pass_time(LATE_AFTER_US - 1)
    desk.take()
    assert desk.lead != slow
    assert desk.reports == [(slow, "bad-lead")]


def test_a_lead_that_brings_all_there_is_is_not_slow_however_little_that_is() -> None:
    desk = Desk()
    lead = desk.lead
    for batches in range(1, 2 * (SLOW_AFTER_US // LATE_AFTER_US)):
        book = Book(*[b"x"] * batches)
        desk.pass_time(LATE_AFTER_US - 1)
        for replica in desk.others:
            desk.chain(replica, book, batches)
        desk.entries(book, batches - 1, batches)
    assert desk.lead == lead


def test_one_replica_that_claims_there_is_more_does_not_make_a_lead_slow() -> None:
    desk = Desk()
    lead, liar = desk.lead, desk.others[0]
    desk.reading.on_chained(liar, Chained(T, 0, 1, digest(b"?"), 0, 0, 1 << 40), desk.connected)
    for _ in range(4 * SLOW_AFTER_US // LATE_AFTER_US):
        desk.pass_time(LATE_AFTER_US)
    assert desk.lead == lead


def test_one_replica_that_claims_there_is_more_does_not_make_the_lead_late() -> None:
    desk = Desk()
    lead = desk.lead
    desk.chain(desk.others[0], TRUE, 4)
    for _ in range(10):
        desk.pass_time(LATE_AFTER_US)
    assert desk.lead == lead


def test_a_lead_that_is_gone_is_replaced() -> None:
    desk = Desk()
    gone = desk.lead
    desk.connected.discard(gone)
    desk.reading.disconnected(gone, desk.connected)
    assert desk.lead != gone
    assert desk.asked()[desk.lead].wants is Wants.ALL


def test_without_anybody_a_reader_waits_for_the_first_that_comes() -> None:
    desk = Desk()
    for replica in range(4):
        desk.connected.discard(replica)
        desk.reading.disconnected(replica, desk.connected)
    assert desk.reading.lead is None
    desk.connected.add(2)
    desk.reading.connected(2, desk.connected)
    assert desk.lead == 2


def test_whoever_forgot_that_we_read_is_asked_again() -> None:
    desk = Desk()
    desk.asked()
    desk.pass_time(ASK_AGAIN_US)
    assert len(desk.asked()) == 2


# Payloads that are not everywhere


def test_a_lead_that_passed_on_does_not_confirm_what_it_sent_itself() -> None:
    desk = Desk()
    liar = desk.lead
    desk.entries(FALSE, 0, 2)
    desk.absent(liar, 2)
    assert desk.lead != liar
    desk.chain(liar, FALSE, 2)
    assert desk.read() == []

    for honest in desk.others:
        if honest != liar:
            desk.chain(honest, TRUE, 2)
    desk.take()
    assert desk.reports == [(liar, "bad-lead")]


def test_a_lead_without_the_payload_passes_on_to_the_next_and_is_not_blamed() -> None:
    desk = Desk()
    first = desk.lead
    desk.entries(TRUE, 0, 1)
    desk.asked()
    desk.absent(first, 1)

    assert desk.lead != first
    asked = desk.asked()
    assert asked[desk.lead].offset == 1
    assert asked[desk.lead].wants is Wants.ALL
    assert desk.reports == []

    desk.entries(TRUE, 1, 2)
    desk.chain(desk.others[0], TRUE, 2)
    assert desk.read() == [b"1", b"2"]


def test_absence_that_overtakes_the_entries_before_it_waits_for_them() -> None:
    desk = Desk()
    first = desk.lead
    desk.absent(first, 1)
    assert desk.lead == first
    desk.entries(TRUE, 0, 1)
    assert desk.lead != first


def test_nobody_passes_on_in_circles() -> None:
    desk = Desk()
    seen = []
    for _ in range(4):
        seen.append(desk.lead)
        desk.absent(desk.lead, 0)
    assert sorted(seen) == [0, 1, 2, 3]
    desk.asked()
    assert desk.lead == seen[-1]


def test_what_a_lead_sent_too_early_does_not_count_as_the_next_one_s() -> None:
    desk = Desk()
    liar = desk.lead
    # Wherever the next one's first message ends, something false follows on it.
    desk.entries(FALSE, 1, 2)
    desk.entries(FALSE, 2, 3)
    desk.absent(liar, 0)
    honest = desk.lead

    desk.entries(TRUE, 0, 2)
    desk.chain(next(each for each in desk.others if each != liar), TRUE, 2)

    assert desk.read() == [b"1", b"2"]
    assert desk.lead == honest
    assert desk.reports == []


def test_absence_from_anybody_but_the_lead_says_nothing() -> None:
    desk = Desk()
    lead = desk.lead
    desk.absent(desk.others[0], 0)
    assert desk.lead == lead


# Position


def test_after_a_seek_a_reader_reads_from_there() -> None:
    desk = Desk()
    desk.entries(TRUE, 0, 3)
    desk.take()
    desk.reading.seek(2, desk.connected)

    asked = desk.asked()
    assert {follow.offset for follow in asked.values()} == {2}
    numbers = [follow.number for follow in asked.values()]
    assert min(numbers) > 2

    desk.entries(TRUE, 2, 4)
    desk.chain(desk.others[0], TRUE, 4)
    assert desk.read() == [b"3", b"4"]


# How much is let in


def allowed(desk: Desk) -> list[int]:
    """Up to where whoever is sent more credit may send now."""
    return [message.limit for _, message in desk.take().send if isinstance(message, Allow)]


def test_credit_is_renewed_in_steps() -> None:
    first, half = FIRST_CREDIT_EVENTS, FIRST_CREDIT_EVENTS + CREDIT_BATCHES // 2
    book = Book(*[b"x"] * (half + 1))
    desk = Desk()
    desk.entries(book, 0, first)
    desk.chain(desk.others[0], book, first)
    assert allowed(desk) == [first + CREDIT_BATCHES] * 4
    desk.entries(book, first, half)
    desk.chain(desk.others[0], book, half)
    assert allowed(desk) == []

    desk.entries(book, half, half + 1)
    desk.chain(desk.others[0], book, half + 1)

    assert allowed(desk) == [half + 1 + CREDIT_BATCHES] * 4


def test_of_large_batches_fewer_are_let_in_ahead_and_at_least_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CREDIT_BYTES", 10_000)
    first = FIRST_CREDIT_EVENTS
    for size, credit in ((52, 100), (10_001, 1)):
        book = Book(*[bytes(size)] * first)
        desk = Desk()
        desk.entries(book, 0, first)
        desk.chain(desk.others[0], book, first)
        assert allowed(desk) == [first + credit] * 4


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 5 * len(event(b"xx")))


@pytest.mark.usefixtures("little_room")
def test_a_lead_cannot_make_a_reader_hold_more_than_so_much() -> None:
    book = Book(*[b"xx"] * 40)
    in_order, early = Desk(), Desk()

    for offset in range(40):
        in_order.entries(book, offset, offset + 1)
    for offset in reversed(range(40)):
        early.entries(book, offset, offset + 1)

    assert in_order.reading.received == 5
    # What is next is taken in any case, and what came too early makes room for it.
    assert early.reading.received == 1


@pytest.mark.usefixtures("little_room")
def test_a_reader_that_is_full_has_others_confirm_what_it_holds_and_goes_on() -> None:
    book = Book(*[b"xx"] * 40)
    desk = Desk()
    desk.asked()
    for offset in range(40):
        desk.entries(book, offset, offset + 1)
    asked = desk.asked()
    (partner,) = asked.keys() - {desk.lead}
    assert (asked[partner].offset, asked[partner].limit) == (0, 5)
    assert (asked[desk.lead].offset, asked[desk.lead].limit) == (5, 5)

    desk.chain(partner, book, 5)
    ready = desk.take()
    assert len(ready.deliver) == 5
    assert {m.limit for _, m in ready.send if isinstance(m, Allow)} == {5 + CREDIT_BATCHES}
    for offset in range(5, 10):
        desk.entries(book, offset, offset + 1)
    desk.chain(partner, book, 10)
    assert len(desk.read()) == 5


@pytest.mark.usefixtures("little_room")
def test_a_batch_larger_than_all_that_is_held_is_read() -> None:
    book = Book(b"x" * 300, b"y" * 301)
    desk = Desk()
    for offset in (0, 1):
        desk.entries(book, offset, offset + 1)
        desk.chain(desk.others[0], book, offset + 1)
    assert desk.read() == [b"x" * 300, b"y" * 301]


@pytest.mark.usefixtures("little_room")
def test_entries_cut_otherwise_the_second_time_leave_nothing_behind() -> None:
    book = Book(*[b"xx"] * 40)
    desk = Desk()
    for turn in range(8):
        at = 5 * turn
        desk.entries(book, at + 2, at + 4)
        desk.entries(book, at, at + 3)
        desk.entries(book, at + 3, at + 5)
        desk.chain(desk.others[0], book, at + 5)
    assert len(desk.read()) == 40


def sends_altered(desk: Desk, book: Book) -> None:
    desk.reading.on_entries(desk.lead, altered(book.entries(1, 3)), desk.connected)


def sends_altered_early(desk: Desk, book: Book) -> None:
    desk.reading.on_entries(desk.lead, altered(book.entries(2, 4)), desk.connected)
    desk.entries(book, 1, 2)


def sends_what_does_not_follow(desk: Desk, book: Book) -> None:
    desk.entries(Book(b"?", *book.payloads[1:]), 1, 4)


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("fails", [sends_altered, sends_altered_early, sends_what_does_not_follow])
def test_what_a_reader_did_not_take_from_a_lead_takes_no_room_from_the_next(
    fails: Callable[[Desk, Book], None],
) -> None:
    # Given a lead that sends something true, and then much that is not taken
    book = Book(*[b"xx"] * 12)
    desk = Desk()
    liar = desk.lead
    desk.entries(book, 0, 1)
    fails(desk, book)
    assert desk.lead != liar
    honest = next(each for each in desk.others if each != liar)

    # When others have confirmed what is true, then the next lead is read as any other is.
    desk.chain(honest, book, desk.reading.received)
    for offset in range(desk.reading.received, 12, 4):
        desk.entries(book, offset, offset + 4)
        desk.chain(honest, book, min(offset + 4, 12))
    assert len(desk.read()) == 12


@pytest.mark.usefixtures("little_room")
def test_after_a_lead_that_filled_a_reader_the_next_one_may_send_again() -> None:
    book = Book(*[b"xx"] * 40)
    desk = Desk()
    for offset in range(40):
        desk.entries(book, offset, offset + 1)
    desk.asked()

    desk.connected.discard(desk.lead)
    desk.reading.disconnected(desk.lead, desk.connected)

    asked = desk.asked()
    assert (asked[desk.lead].offset, asked[desk.lead].limit) == (5, 5)
    desk.chain(desk.others[-1], book, 5)
    assert 5 + CREDIT_BATCHES in allowed(desk)


# What is gone


def says_that_it_begins(
    desk: Desk, replica: NodeId, start: int, *, taken: int | None = None
) -> None:
    """Because retention took what came before, if nothing else is said."""
    taken = start if taken is None else taken
    word = Chained(T, 0, start, TRUE.chains[start], start, taken, 4)
    desk.reading.on_chained(replica, word, desk.connected)


def trimmed(desk: Desk) -> list[tuple[int, int]]:
    return [(gone.offset, gone.count) for gone in desk.take().deliver if isinstance(gone, Trimmed)]


def test_a_reader_goes_on_behind_what_n_minus_f_replicas_lack() -> None:
    for table, needed in ((BYZANTINE, 3), (CRASH, 2)):
        desk = Desk(table)
        desk.connected = set(desk.topic.members[:needed])
        for count, replica in enumerate(desk.topic.members[:needed], 1):
            assert trimmed(desk) == []
            says_that_it_begins(desk, replica, 1 + count % 2)
        # Of what they say, as much is gone as all of them lack.
        assert trimmed(desk) == [(0, 1)]
        assert desk.reading.position == 1


def test_where_nobody_lies_one_replica_that_is_there_and_has_it_is_enough_to_read_it() -> None:
    desk = Desk(CRASH)
    started_over, keeper = desk.topic.members[:2], desk.topic.members[2]
    for replica in started_over:
        says_that_it_begins(desk, replica, 4)
    # The third has not spoken yet: it is asked, and waited for.
    assert keeper in desk.asked()
    assert trimmed(desk) == []

    says_that_it_begins(desk, keeper, 0)
    for replica in started_over:
        desk.absent(replica, 0)
    assert desk.lead == keeper
    desk.entries(TRUE, 0, 4)
    assert desk.read() == [*map(opened, TRUE.payloads)]


def test_where_nobody_lies_a_replica_that_is_silent_is_waited_for_until_it_is_late() -> None:
    desk = Desk(CRASH)
    for replica in desk.topic.members[:2]:
        says_that_it_begins(desk, replica, 4)
    assert trimmed(desk) == []
    desk.pass_time(LATE_AFTER_US)
    desk.pass_time(2 * LATE_AFTER_US)
    assert trimmed(desk) == [(0, 4)]


def test_a_replica_that_started_over_and_one_that_lies_do_not_hide_what_others_have() -> None:
    desk = Desk()
    desk.take()
    lead, (second, *rest) = desk.lead, desk.others
    says_that_it_begins(desk, lead, 4)
    says_that_it_begins(desk, second, 4)
    # Everybody is asked from then on,
    assert desk.asked().keys() == set(desk.topic.members)
    # and two that have it are enough to read it.
    desk.absent(lead, 0)
    desk.absent(desk.lead, 0)
    assert desk.lead in rest
    desk.entries(TRUE, 0, 4)
    for replica in rest:
        desk.chain(replica, TRUE, 4)
    assert desk.read() == [b"1", b"2", b"3", b"4"]


def test_what_is_gone_where_it_was_stored_is_not_waited_for_from_those_who_never_had_it() -> None:
    """Retention by size takes nothing from whoever has only the digests of large batches."""
    for table in (BYZANTINE, CRASH):
        desk = Desk(table)
        stores, others = desk.reading._order[:2], desk.reading._order[2:]
        for _ in desk.topic.members:
            desk.absent(desk.lead, 0, count=2)
            assert trimmed(desk) == []
        for replica in others:
            says_that_it_begins(desk, replica, 0)
        for replica in stores:
            assert trimmed(desk) == []
            says_that_it_begins(desk, replica, 2)
        assert trimmed(desk) == [(0, 2)]


def test_one_that_started_over_and_one_that_lies_do_not_hide_what_a_single_store_has() -> None:
    """Of those who never had a large batch nobody says that it is gone."""
    desk = Desk()
    keeper, liar, started_over, without = desk.reading._order
    desk.connected.discard(keeper)
    desk.reading.disconnected(keeper, desk.connected)
    says_that_it_begins(desk, liar, 4)
    says_that_it_begins(desk, started_over, 4, taken=0)
    says_that_it_begins(desk, without, 0)
    for _ in desk.connected:
        desk.absent(desk.lead, 0, count=1)
    desk.pass_time(LATE_AFTER_US)
    desk.pass_time(2 * LATE_AFTER_US)
    assert trimmed(desk) == []

    desk.connected.add(keeper)
    desk.reading.connected(keeper, desk.connected)
    while desk.lead != keeper:
        desk.absent(desk.lead, 0, count=1)
    desk.entries(TRUE, 0, 4)
    for replica in (keeper, without):
        desk.chain(replica, TRUE, 4)
    assert desk.read() == [*map(opened, TRUE.payloads)]


def test_one_that_lies_and_says_nothing_does_not_keep_a_reader_at_what_is_gone() -> None:
    desk = Desk()
    stores = desk.reading._order[:2]
    for _ in range(3):
        desk.absent(desk.lead, 0, count=2)
    silent = desk.lead
    for replica in desk.topic.members:
        if replica != silent:
            says_that_it_begins(desk, replica, 2 if replica in stores else 0)
    assert trimmed(desk) == []
    desk.pass_time(LATE_AFTER_US)
    desk.pass_time(2 * LATE_AFTER_US)
    assert trimmed(desk) == [(0, 2)]


def test_what_others_have_behind_a_large_batch_that_is_gone_is_read() -> None:
    """Retention by size took small ones too, but only from those who stored the large one."""
    for table in (BYZANTINE, CRASH):
        desk = Desk(table)
        stores, others = desk.reading._order[:2], desk.reading._order[2:]
        for _ in desk.topic.members:
            desk.absent(desk.lead, 0, count=3 if desk.lead in stores else 1)
        for replica in others:
            says_that_it_begins(desk, replica, 0)
        for replica in stores:
            says_that_it_begins(desk, replica, 3)
        assert trimmed(desk) == [(0, 1)]

        while desk.lead in stores:
            desk.absent(desk.lead, 1, count=2)
        desk.entries(TRUE, 1, 4)
        for replica in others:
            desk.chain(replica, TRUE, 4)
        assert desk.read() == [b"2", b"3", b"4"]


def test_one_that_lies_does_not_keep_a_reader_at_what_one_correct_replica_has_and_two_lack() -> (
    None
):
    """Large batches are with two, from which retention by size takes small ones earlier."""
    # Given two that begin later than a reader lets its lead send, one that has all, and a liar
    start = 2 * FIRST_CREDIT_EVENTS
    book = Book(*[b"%d" % number for number in range(start + 10)])
    desk = Desk()
    *trimmers, keeper, _ = desk.reading._order
    read: list[bytes] = []

    def answer(replica: NodeId, follow: Follow | Allow) -> None:
        limit = min(follow.limit, len(book.payloads))
        if replica in trimmers:
            if isinstance(follow, Follow) and follow.wants is Wants.ALL:
                desk.absent(replica, follow.offset)
            at = max(start, limit)
            words = Chained(T, 0, at, book.chains[at], start, start, len(book.payloads))
            desk.reading.on_chained(replica, words, desk.connected)
        elif replica == keeper:
            if desk.lead == keeper and desk.reading.received < limit:
                desk.entries(book, desk.reading.received, limit)
            desk.chain(keeper, book, limit)
        else:
            desk.reading.on_chained(replica, FALSE.chained(4), desk.connected)

    # When they answer whatever they are asked for a while
    for _ in range(100):
        ready = desk.take()
        read += [opened(entry.payload) for entry in ready.deliver if isinstance(entry, Entry)]
        for replica, message in ready.send:
            if isinstance(message, Follow | Allow):
                answer(replica, message)
        desk.pass_time(LATE_AFTER_US // 4)

    # Then all is read.
    assert read == [*map(opened, book.payloads)]


def test_who_lacked_something_elsewhere_may_have_what_a_reader_seeks() -> None:
    desk = Desk(CRASH)
    first = desk.lead
    desk.absent(first, 0)
    for replica in desk.others:
        says_that_it_begins(desk, replica, 0)
    desk.reading.seek(1, desk.connected)
    for replica in desk.topic.members:
        if replica != first:
            says_that_it_begins(desk, replica, 4)
    assert trimmed(desk) == []


def test_where_a_partition_begins_is_what_the_one_says_that_has_most() -> None:
    for table, answers, expected in (
        (CRASH, (7, 0), 0),
        (BYZANTINE, (7, 0, 0), 0),
        # One started over and one lies: that two have it, of whom one has yet to say so, may be.
        (BYZANTINE, (7, 9, 0), 0),
    ):
        assert found(table, BEGIN_US, answers) == expected
    assert found(CRASH, END_US, (9, 5)) == 5


def test_one_that_lies_does_not_make_a_reader_begin_elsewhere_than_correct_ones_end() -> None:
    assert found(BYZANTINE, END_US, (7, 7, 0)) == 7
    assert found(BYZANTINE, END_US, (7, 7, 99)) == 7


def test_one_that_lies_and_one_that_started_over_hide_nothing_of_a_time() -> None:
    assert found(BYZANTINE, 5, (7, 99, 99)) == 7
    assert found(CRASH, 5, (7, 99)) == 7


def test_who_begins_too_early_for_a_time_takes_the_next_word_and_delivers_nothing_older() -> None:
    # Given batches of the times 5, 15, 25 and so on, and a replica that says that time 35 is at 0
    look, on = Outlook(), topic(BYZANTINE, f=1)
    search = Search(on, Partition(T, 0), 35, look.outbox)
    for replica, answer in enumerate((3, 0)):
        assert search.on_located(replica, Located(T, 0, 0, answer)) is None
    assert search.on_located(2, Located(T, 0, 0, 3)) == 0
    desk, book = Desk(), Book(*[b"%d" % number for number in range(6)], time_step_us=10)
    desk.reading.want_from(35, search.others)

    # When what is there has been read and others confirm it
    desk.entries(book, 0, 1)
    desk.chain(desk.others[0], book, 1)

    # Then none of it is delivered, and the reader goes on where others said.
    assert (desk.reading.position, desk.read()) == (3, [])
    desk.entries(book, 3, 4)
    desk.chain(desk.others[0], book, 4)
    assert desk.read() == [b"3"]


def test_of_what_comes_at_once_only_what_is_older_than_wanted_is_left_out() -> None:
    desk, book = Desk(), Book(*[b"%d" % number for number in range(6)], time_step_us=10)
    desk.reading.want_from(35, [5])
    for offset in range(6):
        desk.entries(book, offset, offset + 1)
    desk.chain(desk.others[0], book, 6)
    assert desk.read() == [b"3", b"4", b"5"]


def test_who_seeks_gets_what_is_there_whatever_time_it_wanted_before() -> None:
    desk, book = Desk(), Book(*[b"%d" % number for number in range(6)], time_step_us=10)
    desk.reading.want_from(35, [5])
    desk.reading.seek(1, desk.connected)
    desk.entries(book, 1, 2)
    desk.chain(desk.others[0], book, 2)
    assert desk.read() == [b"1"]


def test_of_a_time_to_come_what_follows_on_the_end_is_delivered() -> None:
    desk, book = Desk(), Book(*[b"%d" % number for number in range(6)], time_step_us=10)
    desk.reading.want_from(1000, [4])
    for offset in range(6):
        desk.entries(book, offset, offset + 1)
    desk.chain(desk.others[0], book, 6)
    assert desk.read() == [b"4", b"5"]


def test_one_that_lies_about_the_beginning_is_believed_by_nobody_else() -> None:
    """What it says is there, n - f replicas lack."""
    desk = Desk(offset=0)
    liar, honest = desk.lead, desk.others
    says_that_it_begins(desk, liar, 0)
    for replica in honest:
        assert trimmed(desk) == []
        says_that_it_begins(desk, replica, 2)
    assert trimmed(desk) == [(0, 2)]
    assert desk.reading.position == 2


def found(table: dict[str, object], time_us: int, answers: tuple[int, ...]) -> int | None:
    look, on = Outlook(), topic(table, f=1)
    search = Search(on, Partition(T, 0), time_us, look.outbox)
    offset = None
    for replica, answer in enumerate(answers):
        assert offset is None
        offset = search.on_located(replica, Located(T, 0, 0, answer))
    return offset


def test_a_commit_beyond_the_end_is_clamped_once_no_replica_lags_behind() -> None:
    look, on = Outlook(), topic(BYZANTINE, f=1)
    search = Search(on, Partition(T, 0), END_US, look.outbox, 0, 35)
    ends = [Located(T, 0, 0, end) for end in (30, 34, 20)]
    assert [search.on_located(*each) for each in enumerate(ends)] == [None] * 3
    look.at(BEYOND_AFTER_US)
    search.tick()
    # Another one has what the commit names, and so has a correct one.
    late = [Located(T, 0, 0, end) for end in (30, 36, 35)]
    assert [search.on_located(*each) for each in enumerate(late)] == [None, None, 35]
    assert [search.on_located(*each) for each in enumerate(ends)] == [35, 34, 30]


# Stores that do not deliver


def complaints(desk: Desk) -> dict[NodeId, AskReceipts]:
    return {node: m for node, m in desk.take().send if isinstance(m, AskReceipts)}


def test_of_a_validated_topic_the_others_are_told_who_does_not_give_what_is_next() -> None:
    desk = Desk({**BYZANTINE, "validated": True})
    first = desk.lead

    desk.absent(first, 0)

    assert complaints(desk) == dict.fromkeys(
        [replica for replica in range(4) if replica != first], AskReceipts(T, 0, 0, first)
    )
    assert desk.lead != first


def test_complaints_are_made_now_and_then_only() -> None:
    desk = Desk({**BYZANTINE, "validated": True})
    desk.absent(desk.lead, 0)
    assert len(complaints(desk)) == 3

    desk.absent(desk.lead, 0)
    assert complaints(desk) == {}

    desk.pass_time(COMPLAIN_EVERY_US)
    desk.absent(desk.lead, 0)
    assert len(complaints(desk)) == 3


def test_of_other_topics_nobody_is_told() -> None:
    desk = Desk()

    desk.absent(desk.lead, 0)

    assert complaints(desk) == {}


# Readers that begin inside a batch

# How many events, and whether they are signed.
BATCHES = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8)


def unsigned(batches: list[tuple[int, bool]]) -> list[bytes]:
    return [
        batch_of_values(*(b"%d.%d" % (number, at) for at in range(events)))
        for number, (events, _) in enumerate(batches)
    ]


def book_of(batches: list[tuple[int, bool]]) -> Book:
    return Book(
        *(
            sealed_batch(1000, number, payload) if is_to_be_signed else payload
            for number, ((_, is_to_be_signed), payload) in enumerate(
                zip(batches, unsigned(batches), strict=True), 1
            )
        )
    )


def events_from(book: Book, offset: int, *, validates: bool) -> list[tuple[int, bytes]]:
    """What a reader that begins there is to be given, with the offset of each event."""
    return [
        (at, value)
        for begin, payload in zip(book.offsets, book.payloads, strict=False)
        for at, value in enumerate(Batch(payload).values(), begin)
        if at >= offset and (is_signed(payload) or not validates)
    ]


def events_in(outcomes: Iterable[object]) -> list[tuple[int, bytes]]:
    return [
        (entry.offset + at, value)
        for entry in outcomes
        if isinstance(entry, Entry)
        for at, value in enumerate(Batch(entry.payload).values())
        if at >= entry.skip
    ]


@given(BATCHES, st.booleans(), st.data())
def test_wherever_a_reader_begins_it_reads_the_same_events_at_the_same_offsets(
    batches: list[tuple[int, bool]], validates: bool, data: st.DataObject
) -> None:
    """However a lead cuts up what it sends, and whatever retention took before."""
    # Given batches, of which retention took some, and a reader that begins anywhere
    book, count = book_of(batches), len(batches)
    kept = data.draw(st.integers(0, count), label="batches that are gone")
    offset = data.draw(st.integers(0, book.offsets[-1]), label="where it begins")
    cuts = data.draw(st.sets(st.integers(1, count)), label="where entries are cut")
    words = data.draw(st.sets(st.integers(0, count)), label="of which chains others tell")
    desk, outcomes = Desk(VALIDATED, offset, validates=validates), list[object]()

    def answer(replica: NodeId, follow: Follow) -> None:
        begin = max(book.offsets[kept], follow.offset)
        first = min(bisect_right(book.offsets, begin) - 1, count)
        if follow.wants is not Wants.CHAIN:
            assert (follow.wants is Wants.SIGNED) is validates
            if follow.offset < book.offsets[kept]:
                desk.absent(replica, follow.offset, book.offsets[kept] - follow.offset)
            else:
                pieces = [each for each in sorted({first, count, *cuts}) if each >= first]
                for start, end in data.draw(st.permutations([*pairwise(pieces)])):
                    entries = book.entries(start, end, follow.wants)
                    desk.reading.on_entries(replica, entries, desk.connected)
        for at in sorted({*words, count}):
            if at >= first:
                desk.reading.on_chained(replica, book.chained(at, kept), desk.connected)

    # When replicas answer all that it asks
    for _ in range(10):
        ready = desk.take()
        outcomes += ready.deliver
        for replica, message in ready.send:
            if isinstance(message, Follow):
                answer(replica, message)

    # Then it reads what everybody reads, from there on.
    begin = max(offset, book.offsets[kept])
    assert events_in(outcomes) == events_from(book, begin, validates=validates)
    assert desk.reading.position == book.offsets[-1]
    gone = [(each.offset, each.count) for each in outcomes if isinstance(each, Trimmed)]
    assert gone == ([(offset, begin - offset)] if offset < begin else [])
    assert desk.reports == []


@settings(max_examples=25)
@given(BATCHES, st.booleans(), st.booleans(), st.data())
def test_replicas_give_whoever_begins_anywhere_the_same_events_at_the_same_offsets(
    batches: list[tuple[int, bool]], validates: bool, has_restarted: bool, data: st.DataObject
) -> None:
    """From memory, or from disk after a restart, when retention took some of it; what is decided
    later follows."""
    book, chamber = book_of(batches), Chamber()
    now = data.draw(st.integers(0, len(batches)), label="batches that are there before")
    kept = data.draw(st.integers(0, now if has_restarted else 0), label="batches that are gone")
    offset = data.draw(st.integers(0, book.offsets[now]), label="where it begins")

    def publish(first: int, end: int) -> None:
        for (_, sign), payload in [*zip(batches, unsigned(batches), strict=True)][first:end]:
            chamber.publish_as(1000, payload, sign=sign)

    publish(0, now)
    for replica in list(chamber.seats) if has_restarted else ():
        chamber.seats[replica].disk.sync()
        chamber.reboot(replica)
        there = chamber.seats[replica].store._kept(PARTITION)
        there.start, there.slots = book.offsets[kept], there.slots[kept:]
    chamber.run(1)
    reader = chamber.reader(offset=offset, validate=validates)
    publish(now, len(batches))
    chamber.run(5)

    begin = max(offset, book.offsets[kept])
    assert events_in(chamber.read()) == events_from(book, begin, validates=validates)
    reading = reader.reading("t", 0)
    assert reading is not None
    assert reading.position == book.offsets[-1]
    gone = [each for each in chamber.delivered[READER] if isinstance(each, Trimmed)]
    assert gone == [Trimmed(PARTITION, offset, begin - offset)] * (offset < begin)
    assert chamber.reports() == []


@given(BATCHES, st.booleans(), st.data())
def test_a_stretch_has_the_batches_that_have_its_events_wherever_it_begins_and_ends(
    batches: list[tuple[int, bool]], validates: bool, data: st.DataObject
) -> None:
    book, look, topic_ = book_of(batches), Outlook(), topic(VALIDATED)
    begin = data.draw(st.integers(0, book.offsets[-1] - 1), label="where it begins")
    end = data.draw(st.integers(begin + 1, book.offsets[-1]), label="where it ends")
    cuts = data.draw(st.sets(st.integers(0, len(batches))), label="where entries are cut")
    settled: list[Settled] = []

    def take(said: list[Settled] | Unsettled) -> None:
        assert isinstance(said, list)
        settled.extend(said)
        reading.taken(said[-1].end)

    reading = RangeReading(
        topic_, Partition(T, 0), range(begin, end), look.outbox, set(topic_.members), numbers(1),
        None, take, validate=validates,
    )  # fmt: skip
    reading.taken(begin)
    for replica, message in look.take().send:
        assert isinstance(message, Follow)
        assert (message.wants is Wants.SIGNED) is validates
        first = bisect_right(book.offsets, message.offset) - 1
        last = bisect_left(book.offsets, end)
        pieces = sorted({first, last, *(each for each in cuts if first < each < last)})
        for piece in pairwise(pieces):
            reading.on_entries(replica, book.entries(*piece, message.wants))

    inside = [
        (at, until, payload if is_signed(payload) or not validates else None)
        for (at, until), payload in zip(pairwise(book.offsets), book.payloads, strict=True)
        if at < end and until > begin
    ]
    given = [(each.offset, each.end, each.payload) for each in settled]
    assert given == inside
    assert reading.is_done


def test_a_lead_that_says_of_what_it_did_not_send_that_it_is_a_descriptor_is_replaced() -> None:
    desk = Desk(validates=True)
    lead = desk.lead

    said = msgspec.structs.replace(TRUE.entries(0, 1, Wants.SIGNED), bare=[0, 7])
    desk.reading.on_entries(lead, said, desk.connected)

    desk.take()
    assert desk.reports == [(lead, "bad-lead")]
    assert desk.lead != lead


def test_a_batch_that_begins_before_what_is_wanted_takes_the_place_of_what_came_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 100)
    book = Book(batch_of_values(b"1", b"2", b"3"), event(bytes(50)))
    desk = Desk(offset=1)
    desk.entries(book, 1, 2)

    desk.entries(book, 0, 1)

    assert desk.reading.received == 3


def test_a_word_from_before_a_seek_keeps_none_out_that_comes_after_it() -> None:
    """Whoever sought back waited until it was late, and asked everybody once more."""
    desk = Desk(offset=3)
    desk.reading.seek(0, desk.connected)
    # What was asked before is answered only now.
    desk.chain(desk.others[0], TRUE, 4)
    desk.chain(desk.others[0], TRUE, 2)

    desk.entries(TRUE, 0, 2)

    assert desk.read() == [b"1", b"2"]


def test_whoever_seeks_is_sent_little_at_first_and_more_with_all_that_it_takes() -> None:
    """A random look at a long log cost as much as the 4,096 batches that came with it."""
    book, desk = Book(*[b"x"] * 700), Desk()
    desk.reading.seek(100, desk.connected)
    assert {follow.limit for follow in desk.asked().values()} == {100 + FIRST_CREDIT_EVENTS}

    limits = []
    for start, end in ((100, 164), (164, 420)):
        desk.entries(book, start, end)
        desk.chain(desk.others[0], book, end)
        limits += [max(allowed(desk)) - end]

    assert limits == [CREDIT_GROWTH * FIRST_CREDIT_EVENTS, CREDIT_GROWTH**2 * FIRST_CREDIT_EVENTS]
