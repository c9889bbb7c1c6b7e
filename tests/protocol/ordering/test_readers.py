"""What readers are sent: as much as they allow, from memory or disk alike."""

from dataclasses import dataclass, field

import pytest

from quorate.core.ids import NodeId, topic_id
from quorate.core.messages import Message
from quorate.core.ordering import (
    Absent,
    Allow,
    Chained,
    Entries,
    Follow,
    Line,
    Locate,
    Partition,
    Wants,
)
from quorate.protocol.ordering import readers as module
from quorate.protocol.ordering.log import Content, OrderLog
from quorate.protocol.ordering.readers import SEARCH_BYTES, Readers
from quorate.protocol.ordering.records import Held
from quorate.protocol.ordering.value import CHAIN_START, Span, Value, chain_of, value_digest
from quorate.protocol.outbox import ANSWERS_BYTES_MAX
from quorate.sim.disks import SimDisk
from quorate.sim.stores import SimStore
from stage import Outlook, described, framed, opened

T = topic_id("t")
HERE = Partition(T, 0)
LINE = Line(1000, T, 0)
OTHER = Line(1001, T, 0)
READER, SECOND = 1500, 1501
FAR = 1 << 40


@dataclass
class Desk:
    """The readers of one replica, with a log and a disk behind them."""

    log: OrderLog = field(default_factory=lambda: OrderLog(1))
    disk: SimDisk = field(default_factory=SimDisk)
    look: Outlook = field(default_factory=Outlook)

    def __post_init__(self) -> None:
        self.store = SimStore(self.disk)
        self.readers = Readers(self.log, self.store, self.look.outbox)

    def decide(self, *payloads: bytes | None, line: Line = LINE) -> None:
        """One slot with these batches; None where the payload is elsewhere."""
        state = self.log.line(line)
        descriptors = [described(payload or b"elsewhere") for payload in payloads]
        batches = [None if payload is None else framed(payload) for payload in payloads]
        span = Span(*line, state.next, len(payloads), chain_of(state.chain, descriptors)[-1])
        value = Value(5, (span,))
        before = self.log.partition(line.target).chain
        for at, payload in enumerate(batches):
            if payload is not None:
                self.disk.append([Held(*line, state.next + at, [payload])])
        encoded = value.encode()
        slot = self.log.state.slot + 1
        lacking = [at for at, payload in enumerate(batches) if payload is None]
        contents = [Content(descriptors, lacking)]
        decided = self.log.apply(slot, value_digest(encoded), encoded, value, contents)
        self.disk.append([decided])
        self.readers.placed(decided.placed[0], 5, before, batches)

    def forget(self) -> None:
        """As after a restart: nothing of the past is in memory."""
        self.readers = Readers(self.log, self.store, self.look.outbox)

    def follow(
        self,
        offset: int = 0,
        limit: int = FAR,
        *,
        wants: Wants = Wants.ALL,
        number: int = 1,
        node: NodeId = READER,
        partition: int = 0,
    ) -> None:
        self.readers.on_follow(node, Follow(T, partition, number, offset, limit, wants))

    def sent(self, node: NodeId = READER) -> list[Message]:
        while self.readers.flush():
            pass
        return [message for to, message in self.look.take().send if to == node]

    def read(self, node: NodeId = READER) -> list[bytes]:
        sent = self.sent(node)
        return [
            opened(p) for message in sent if isinstance(message, Entries) for p in message.payloads
        ]


def chain_at(desk: Desk, offset: int) -> bytes:
    found = desk.store.chain(HERE, offset)
    assert found is not None
    return found[1]


def full_desk() -> Desk:
    desk = Desk()
    desk.decide(b"1", b"2")
    desk.decide(b"x", line=OTHER)
    desk.decide(b"3")
    return desk


def test_a_reader_is_sent_everything_in_order_and_then_the_chain() -> None:
    desk = full_desk()
    desk.follow()
    *entries, last = desk.sent()

    assert [[*map(opened, e.payloads)] for e in entries if isinstance(e, Entries)] == [
        [b"1", b"2"],
        [b"x"],
        [b"3"],
    ]
    assert [e.offset for e in entries if isinstance(e, Entries)] == [0, 2, 3]
    assert [e.first for e in entries if isinstance(e, Entries)] == [1, 1, 3]
    assert last == Chained(*HERE, 4, desk.log.partition(HERE).chain, 0, 0, 4)


def test_a_reader_without_payloads_hears_the_chain_only() -> None:
    desk = full_desk()
    desk.follow(wants=Wants.CHAIN)
    assert desk.sent() == [Chained(*HERE, 4, desk.log.partition(HERE).chain, 0, 0, 4)]
    assert desk.sent() == []


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_ONCE_BATCHES_MAX", 4)
    monkeypatch.setattr(module, "TELL_EVERY_BATCHES", 2)
    monkeypatch.setattr(module, "TURN_WORDS_MAX", 3)


def told(messages: list[Message]) -> list[int]:
    return [message.offset for message in messages if isinstance(message, Chained)]


@pytest.mark.usefixtures("short_steps")
def test_whoever_is_far_behind_hears_of_the_chain_in_steps_up_to_the_end() -> None:
    desk = Desk()
    desk.decide(*[b"%d" % number for number in range(13)])
    desk.follow(1, wants=Wants.CHAIN)
    words = desk.sent()

    assert told(words) == [3, 5, 7, 9, 13]
    assert all(
        isinstance(word, Chained) and word.chain == chain_at(desk, word.offset) for word in words
    )


@pytest.mark.usefixtures("short_steps")
def test_one_turn_brings_only_so_many_words() -> None:
    desk = Desk()
    desk.decide(*[b"%d" % number for number in range(13)])
    desk.follow(wants=Wants.CHAIN)

    assert desk.readers.flush()
    assert told([message for _, message in desk.look.take().send]) == [2, 4, 6]
    assert told(desk.sent()) == [8, 10, 13]


@pytest.mark.usefixtures("short_steps")
def test_whoever_is_sent_payloads_hears_of_the_chain_once() -> None:
    desk = Desk()
    desk.decide(*[b"%d" % number for number in range(13)])
    desk.follow()

    assert told(desk.sent()) == [13]


def flat(messages: list[Message]) -> list[tuple[int, int, int, bytes]]:
    """Batch by batch, however they were cut into messages."""
    return [
        (message.publisher, message.offset + at, message.first + at, payload)
        for message in messages
        if isinstance(message, Entries)
        for at, payload in enumerate(message.payloads)
    ]


@pytest.mark.parametrize("offset", range(5))
def test_memory_and_disk_agree(offset: int) -> None:
    desk = full_desk()
    desk.follow(offset)
    from_memory = desk.sent()
    desk.forget()
    desk.follow(offset)
    from_disk = desk.sent()

    assert flat(from_memory) == flat(from_disk)
    assert [opened(p) for *_, p in flat(from_disk)] == [b"1", b"2", b"x", b"3"][offset:]
    assert from_memory[-1] == from_disk[-1]
    befores = {
        message.offset: message.before
        for message in (*from_memory, *from_disk)
        if isinstance(message, Entries)
    }
    for at, before in befores.items():
        assert before == (chain_at(desk, at) if at else CHAIN_START)


def test_what_left_the_memory_is_read_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAIL_STRETCHES_MAX", 1)
    desk = full_desk()
    desk.follow()
    assert desk.read() == [b"1", b"2", b"x", b"3"]


def test_memory_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAIL_BYTES_MAX", 3)
    desk = full_desk()
    assert desk.readers._tail_bytes <= 3
    desk.follow()
    assert desk.read() == [b"1", b"2", b"x", b"3"]


def test_nobody_is_sent_more_than_it_allows() -> None:
    desk = full_desk()
    desk.follow(limit=1)
    assert desk.read() == [b"1"]
    desk.readers.on_allow(READER, Allow(*HERE, 3))
    assert desk.read() == [b"2", b"x"]
    desk.readers.on_allow(READER, Allow(*HERE, 2))
    assert desk.read() == []


def test_a_reader_at_its_limit_hears_the_chain_there() -> None:
    desk = full_desk()
    desk.follow(limit=1, wants=Wants.CHAIN)
    assert desk.sent() == [Chained(*HERE, 1, chain_at(desk, 1), 0, 0, 4)]


@pytest.mark.usefixtures("short_steps")
def test_a_reader_hears_the_chain_in_steps_up_to_its_limit_however_near_that_is() -> None:
    desk = Desk()
    desk.decide(*[b"%d" % number for number in range(13)])
    desk.follow(limit=3, wants=Wants.CHAIN)
    assert told(desk.sent()) == [2, 3]
    desk.readers.on_allow(READER, Allow(*HERE, 6))
    assert told(desk.sent()) == [5, 6]


def test_what_is_decided_later_follows_by_itself() -> None:
    desk = full_desk()
    desk.follow(4)
    assert desk.read() == []
    desk.decide(b"4")
    assert desk.read() == [b"4"]


def test_the_last_question_holds_and_an_older_one_changes_nothing() -> None:
    desk = full_desk()
    desk.follow(3, number=2)
    desk.follow(0, number=1)
    assert desk.read() == [b"3"]
    desk.follow(0, number=3)
    assert desk.read() == [b"1", b"2", b"x", b"3"]


def test_what_is_not_here_is_absent_and_sending_ends_there() -> None:
    desk = Desk()
    desk.decide(b"1", None, b"3")
    desk.follow()
    sent = desk.sent()
    assert [opened(p) for *_, p in flat(sent)] == [b"1"]
    assert Absent(*HERE, 1, 2) in sent
    assert desk.sent() == []

    desk.follow(2, number=2)
    assert desk.read() == [b"3"]


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_reader_is_told_how_many_batches_are_not_here(
    monkeypatch: pytest.MonkeyPatch, is_in_memory: bool
) -> None:
    monkeypatch.setattr(module, "ABSENT_BATCHES_MAX", 4)
    desk = Desk()
    desk.decide(None, None)
    desk.decide(None, b"4")
    desk.decide(None)
    desk.decide(*[None] * 9)
    if not is_in_memory:
        desk.forget()
    for number, (offset, count) in enumerate([(0, 3), (2, 1), (4, 4), (12, 2), (13, 1)], 1):
        desk.follow(offset, number=number)
        assert Absent(*HERE, offset, offset + count) in desk.sent()


def test_a_reader_whose_link_is_full_is_sent_nothing_until_it_takes_more() -> None:
    desk = full_desk()
    desk.follow()
    desk.readers.writable(READER, False)
    assert desk.sent() == []
    desk.readers.writable(READER, True)
    assert desk.read() == [b"1", b"2", b"x", b"3"]


def test_a_turn_carries_so_much_and_the_rest_comes_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TURN_BYTES_MAX", 1)
    desk = full_desk()
    desk.follow()
    assert desk.readers.flush()
    first = [m for _, m in desk.look.take().send if isinstance(m, Entries)]
    assert [[*map(opened, m.payloads)] for m in first] == [[b"1", b"2"]]
    assert desk.read() == [b"x", b"3"]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_turn_carries_no_more_to_whoever_reads_many_partitions_and_each_has_its_turn(
    monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """Also if its link is full after each of them."""
    monkeypatch.setattr(module, "TURN_BYTES_MAX", 1)
    desk = Desk()
    for number in range(3):
        for payload in (b"1", b"2"):
            desk.decide(payload, line=Line(1000, T, number))
    for number in range(3):
        desk.follow(partition=number)
    turns = []
    for _ in range(6):
        desk.readers.flush()
        sent = [m for _, m in desk.look.take().send if isinstance(m, Entries)]
        turns.append([(m.partition, [*map(opened, m.payloads)]) for m in sent])
        if is_full:
            desk.readers.writable(READER, False)
            desk.readers.writable(READER, True)
    assert turns == [[(number, [payload])] for payload in (b"1", b"2") for number in range(3)]


def test_whoever_reads_many_chains_is_not_told_all_of_them_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TURN_BYTES_MAX", 1)
    desk = Desk()
    for number in range(3):
        desk.decide(b"1", line=Line(1000, T, number))
        desk.follow(partition=number, wants=Wants.CHAIN)
    assert desk.readers.flush()
    assert len(desk.look.take().send) == 1
    assert len(desk.sent()) == 2


def test_whoever_is_gone_is_forgotten() -> None:
    desk = full_desk()
    desk.follow()
    desk.follow(node=SECOND)
    assert desk.readers.count == 2
    desk.readers.gone(READER)
    assert desk.readers.count == 1
    desk.decide(b"4")
    assert desk.sent(READER) == []


def test_whoever_asks_a_thousand_times_at_once_where_a_time_is_has_others_not_wait() -> None:
    desk = full_desk()
    for number in range(10_000):
        desk.readers.on_locate(READER, Locate(*HERE, number, 5))
    desk.readers.on_locate(SECOND, Locate(*HERE, 1, 5))
    answers = [node for node, _ in desk.look.take().send]
    assert answers.count(READER) <= ANSWERS_BYTES_MAX // SEARCH_BYTES
    assert answers.count(SECOND) == 1
    # In the next turn it is answered again.
    desk.readers.on_locate(READER, Locate(*HERE, 1, 5))
    assert len(desk.look.take().send) == 1


def test_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READERS_MAX", 1)
    desk = full_desk()
    desk.follow()
    desk.follow(node=SECOND)
    assert desk.readers.count == 1
    assert [report.node for report in desk.look.outbox.ready.reports] == [SECOND]
    desk.follow(3, number=2)
    assert desk.read() == [b"3"]


def test_what_is_absent_ends_where_what_retention_left_begins() -> None:
    """A reader would pass over the first batch that is kept."""
    desk = Desk()
    desk.decide(b"1", b"2", b"3", b"4")
    desk.forget()
    kept = desk.store._kept(HERE)
    kept.start = kept.slots[2].offset
    del kept.slots[:2]

    desk.follow()

    assert Absent(*HERE, 0, 2) in desk.sent()
