"""Validated batches among those that nobody validates, wired by hand (docs/decisions/0021)."""

from random import Random

import pytest

from chamber import BASIC_PARTITION, COMPANION, MARKS, OTHER, TOPIC, Chamber
from council import READER, A, B, Flight
from quorate.core.cluster import CLIENT_NUMBER_MIN
from quorate.core.ids import MARKER, NodeId, member_of, session_of
from quorate.core.ordering import (
    END_US,
    Append,
    Locate,
    Located,
    Mark,
    Marked,
    Partition,
    Propose,
    Received,
)
from quorate.protocol.machine import Entry
from quorate.protocol.ordering.backlog import MARK
from quorate.protocol.ordering.lines import WAITING_BATCHES_MAX
from quorate.protocol.ordering.log import LINES_PER_MEMBER_MAX, OrderLog, PartitionState
from quorate.protocol.ordering.placement import GroupKind
from quorate.sim.disks import SimDisk
from stage import events


def kinds(entries: list[Entry]) -> list[tuple[NodeId, int, int]]:
    """Who published what, and where it stands."""
    return [(entry.publisher, entry.sequence, entry.offset) for entry in entries]


def add(chamber: Chamber, node: NodeId, name: str, count: int = 1) -> None:
    line = chamber.publisher(node, name)
    for _ in range(count):
        line.add(events(b"%d of %d" % (line.next, node)), 1)
    chamber.collect()
    chamber.settle()
    # A leader gathers for a moment after a slot with many batches.
    chamber.run(0.1)


# Who reads sees one order


def test_a_reader_who_does_not_validate_gets_both_kinds_in_the_order_of_the_companion() -> None:
    chamber = Chamber()
    chamber.reader()
    # When a validated batch, one that is not, and another validated one are published in turn
    add(chamber, A, TOPIC)
    add(chamber, B, COMPANION)
    add(chamber, A, TOPIC)
    # Then it reads them in this order, and what a mark stands for is what was published
    entries = chamber.read()
    assert kinds(entries) == [(A, 1, 0), (B, 1, 1), (A, 2, 2)]
    assert [entry.payload for entry in entries] == [
        events(b"1 of %d" % A), events(b"1 of %d" % B), events(b"2 of %d" % A),
    ]  # fmt: skip
    # on the word of one replica, and without a seal.
    assert {len(entry.vouchers) for entry in entries} == {1}
    assert not any(entry.seal for entry in entries)
    assert [entry.origin for entry in entries] == [0, None, 1]


def test_two_readers_see_the_same_wherever_they_begin() -> None:
    chamber = Chamber()
    chamber.reader(READER)
    for turn in range(5):
        add(chamber, A, TOPIC, count=1 + turn % 2)
        add(chamber, B, COMPANION, count=1 + turn % 3)
    chamber.reader(OTHER, offset=4)
    chamber.settle()
    whole = chamber.read(READER)
    assert [entry.offset for entry in whole] == list(range(len(whole)))
    assert len(whole) == 7 + 9
    assert kinds(chamber.read(OTHER)) == kinds(whole)[4:]


def test_without_readers_marks_come_now_and_then_and_nothing_else_waits_for_them() -> None:
    chamber = Chamber()
    chamber.run(1.5)
    add(chamber, A, TOPIC, count=3)
    # Given that nobody reads, what is validated is not marked at once
    add(chamber, B, COMPANION)
    assert chamber.marked(0) == 0
    assert chamber.basic(0).log.partition(BASIC_PARTITION).end == 1
    # but before long.
    chamber.run(1.5)
    assert [chamber.marked(replica) for replica in (0, 1, 2)] == [3, 3, 3]
    # All members have what marks are made of, though nobody sent it.
    for replica in (0, 1, 2):
        (stretch,) = chamber.basic(replica).readers.read(BASIC_PARTITION, 1, 1 << 20)
        assert (stretch.publisher, stretch.payloads) == (MARKER, [MARK] * 3)
    assert not [m for m in chamber.messages(Append) if MARK in m.payloads]


def test_nothing_is_marked_that_is_not_decided_and_what_is_basic_goes_on() -> None:
    chamber = Chamber()
    chamber.reader()
    # Given a validated batch that two of four replicas never hear of
    line = chamber.publisher(A, TOPIC)
    line.add(events(b"late"), 1)
    chamber.settle(lambda flight: flight.sender != A or flight.receiver in (0, 1))
    add_only_basic = chamber.publisher(B, COMPANION)
    add_only_basic.add(events(b"soon"), 1)
    chamber.collect()
    chamber.settle(lambda flight: flight.sender != A)
    assert kinds(chamber.read()) == [(B, 1, 0)]
    # When they do, then it comes behind what was not validated.
    chamber.run(2)
    assert kinds(chamber.read()) == [(B, 1, 0), (A, 1, 1)]


# Leaders that change, replicas that restart


def test_whoever_leads_next_goes_on_with_the_marks() -> None:
    chamber = Chamber()
    chamber.reader()
    add(chamber, A, TOPIC, count=2)
    add(chamber, B, COMPANION)
    leader = chamber.basic(0).consensus.leader
    # When the leader of those who do not validate crashes, and more of both kinds comes
    chamber.crash(leader)
    chamber.run(3)
    add(chamber, B, COMPANION)
    add(chamber, A, TOPIC, count=2)
    chamber.run(6)
    # Then every validated batch has one place, in their order, among the others.
    entries = chamber.read()
    assert sorted(kinds(entries)) == sorted(
        [(A, n, e.offset) for n, e in zip((1, 2, 3, 4), _of(entries, A), strict=True)]
        + [(B, n, e.offset) for n, e in zip((1, 2), _of(entries, B), strict=True)]
    )
    assert [entry.offset for entry in entries] == list(range(6))
    left = [replica for replica in (0, 1, 2) if replica != leader]
    assert {chamber.basic(replica).consensus.leader for replica in left} != {leader}


def test_a_leader_that_lags_behind_with_what_is_validated_is_told_by_those_who_do_not() -> None:
    chamber = Chamber()
    leader = chamber.basic(0).consensus.leader
    # Given that the leader of the companion hears nothing of the validated topic
    deaf = GroupKind.BYZANTINE

    def reaches(flight: Flight) -> bool:
        message = flight.message
        is_validated = getattr(message, "group", None) == deaf or isinstance(message, Append)
        return flight.receiver != leader or not is_validated

    chamber.reader()
    chamber.publisher(A, TOPIC).add(events(b"one"), 1)
    chamber.collect()
    # (which it leads as well, so that the others need another leader there)
    chamber.run(6, reaches)
    assert chamber.validated(leader).log.state.slot == 0
    # Then others tell it how far they are, and it marks on their word.
    assert [m for m in chamber.messages(Received, receiver=leader) if m.publisher == MARKER]
    assert chamber.marked(leader) == 1
    assert kinds(chamber.read()) == [(A, 1, 0)]


@pytest.mark.parametrize("snapshot_every", [2, 4096])
def test_marks_outlive_a_restart_of_all_replicas(snapshot_every: int) -> None:
    chamber = Chamber(snapshot_every=snapshot_every)
    chamber.reader(READER)
    add(chamber, A, TOPIC, count=3)
    add(chamber, B, COMPANION)
    before = kinds(chamber.read(READER))
    for replica in range(4):
        chamber.reboot(replica)
    chamber.run(2)
    assert [chamber.marked(replica) for replica in (0, 1, 2)] == [3, 3, 3]
    # Then who reads it all again reads the same, and what comes later comes behind it.
    chamber.reader(OTHER)
    add(chamber, A, TOPIC)
    chamber.run(1)
    assert kinds(chamber.read(OTHER)) == [*before, (A, 4, 4)]


def test_a_replica_that_was_away_catches_up_with_marks() -> None:
    chamber = Chamber()
    chamber.reader()
    away = 2 if chamber.basic(0).consensus.leader != 2 else 1
    disk = chamber.seats[away].disk
    chamber.crash(away)
    add(chamber, A, TOPIC, count=3)
    add(chamber, B, COMPANION)
    chamber.restart(away, disk)
    chamber.run(4)
    assert chamber.marked(away) == 3
    ends = [chamber.basic(replica).log.partition(BASIC_PARTITION) for replica in (0, 1, 2)]
    assert ends[0] == ends[1] == ends[2]


# Those who ask


def test_who_changes_to_basic_hears_when_its_validated_batches_have_their_places() -> None:
    chamber = Chamber()
    chamber.run(1.5)
    add(chamber, A, TOPIC, count=2)
    assert chamber.marked(0) == 0
    source = chamber.clients[A]
    number = source.ask_for_marks(COMPANION, 0, 2)
    chamber.collect()
    chamber.settle()
    marked = source.marks.take(number)
    assert marked is not None
    assert (marked.marked, marked.end) == (2, 2)
    # What it publishes from then on comes behind them.
    add(chamber, A, COMPANION)
    chamber.reader()
    chamber.settle()
    assert kinds(chamber.read()) == [(A, 1, 0), (A, 2, 1), (A, 1, 2)]


def test_a_producer_that_asks_for_what_is_not_there_gets_no_answer_and_holds_up_nobody() -> None:
    chamber = Chamber()
    add(chamber, A, TOPIC)
    chamber.publisher(B, COMPANION)
    number = chamber.clients[B].ask_for_marks(COMPANION, 0, 99)
    chamber.run(1)
    assert chamber.clients[B].marks.take(number) is None
    assert chamber.marked(0) == 1
    add(chamber, B, COMPANION)
    assert chamber.basic(0).log.partition(BASIC_PARTITION).end == 2


def test_who_asks_where_a_companion_ends_wants_nothing_that_was_decided_before() -> None:
    chamber = Chamber()
    chamber.run(1.5)
    add(chamber, A, TOPIC, count=2)
    assert chamber.marked(1) == 0
    chamber.say(READER, (1,), Locate(*BASIC_PARTITION, 1, END_US))
    assert chamber.messages(Located, receiver=READER) == []
    chamber.settle()
    assert chamber.messages(Located, receiver=READER) == [Located(*BASIC_PARTITION, 1, 2)]


def test_so_many_questions_wait_for_marks_and_the_rest_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate.protocol.ordering.marking.WAITING_MAX", 0)
    chamber = Chamber()
    chamber.run(1.5)
    add(chamber, A, TOPIC, count=2)
    # Given no room for questions, who asks for the end is told of the one that is there
    chamber.say(READER, (1,), Locate(*BASIC_PARTITION, 1, END_US))
    assert chamber.messages(Located, receiver=READER) == [Located(*BASIC_PARTITION, 1, 0)]
    # and who asks for marks hears of them when it asks again.
    number = chamber.clients[A].ask_for_marks(COMPANION, 0, 2)
    chamber.collect()
    chamber.settle()
    assert chamber.messages(Marked) == []
    chamber.run(0.2)
    assert chamber.clients[A].marks.take(number) is not None


def test_nobody_hands_marks_in() -> None:
    chamber = Chamber()
    for sender in (A, 1, 3):
        chamber.say(sender, (0, 2), Append(MARKS.topic, 0, 1, [MARK]))
    chamber.run(1)
    assert chamber.marked(0) == 0
    # A replica is no publisher either, and only of companions are there marks.
    assert not chamber.seats[0].ordering.may_append(MARKS._replace(publisher=1))
    assert not chamber.seats[0].ordering.may_append(MARKS._replace(topic=chamber.topic.id))
    assert chamber.seats[0].ordering.may_append(MARKS)


def test_a_question_about_marks_from_a_stranger_or_about_no_companion_is_refused() -> None:
    chamber = Chamber()
    for sender, topic, partition in (
        (77, MARKS.topic, 0),
        (A, chamber.topic.id, 0),
        (A, MARKS.topic, 9),
    ):
        chamber.say(sender, (0,), Mark(topic, partition, 1, 0))
    assert chamber.messages(Marked) == []
    assert [report.kind for report in chamber.reports(by=0)] == ["rejected"] * 3


def test_lines_of_marks_are_never_forgotten() -> None:
    """A line that is forgotten would begin again with its first mark."""
    log = OrderLog(GroupKind.CRASH)
    for partition in range(LINES_PER_MEMBER_MAX + 2):
        log._line(MARKS._replace(partition=partition))
    assert len(log.state.lines) == LINES_PER_MEMBER_MAX + 2
    assert log.forgotten == []


def test_a_proposal_with_marks_that_a_replica_has_not_come_to_is_accepted() -> None:
    chamber = Chamber()
    chamber.reader()
    leader = chamber.basic(0).consensus.leader
    other = next(replica for replica in (0, 1, 2) if replica != leader)

    # Given that only the leader of the companion learns what was decided of the validated topic
    chamber.publisher(A, TOPIC).add(events(b"one"), 1)
    chamber.collect()
    chamber.settle(
        lambda flight: (
            flight.receiver != other or getattr(flight.message, "group", None) == GroupKind.CRASH
        )
    )
    assert chamber.validated(other).log.state.slot == 0
    assert [m for m in chamber.messages(Propose, sender=leader) if m.group == GroupKind.CRASH]
    assert chamber.marked(other) == 1


def _of(entries: list[Entry], node: NodeId) -> list[Entry]:
    return [entry for entry in entries if entry.publisher == node]


def test_nobody_is_the_node_that_marks_are_of() -> None:
    """Its number is a replica's, and links refuse a replica that comes in a session."""
    assert member_of(MARKER) < CLIENT_NUMBER_MIN
    assert session_of(MARKER) != 0


class Trouble:
    """Publishing, with one replica at a time that is away, and messages that get lost."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.chamber = Chamber(snapshot_every=self.chance.choice([3, 4096]))
        self.published = {A: 0, B: 0}
        self._away: tuple[NodeId, SimDisk] | None = None

    def happens(self) -> None:
        self.chance.choice([self._validated, self._basic, self._crash, self.recover])()
        self.chamber.run(self.chance.choice([0.05, 0.2, 1.0]), self._arrives)

    def recover(self) -> None:
        if self._away is not None:
            self.chamber.restart(*self._away)
            self._away = None

    def _validated(self) -> None:
        self._publish(A, TOPIC)

    def _basic(self) -> None:
        self._publish(B, COMPANION)

    def _publish(self, node: NodeId, name: str) -> None:
        line = self.chamber.publisher(node, name)
        for _ in range(self.chance.randint(1, 3)):
            line.add(events(b"%d of %d" % (line.next, node)), 1)
            self.published[node] += 1
        self.chamber.collect()

    def _crash(self) -> None:
        self.recover()
        replica = self.chance.randrange(4)
        self._away = replica, self.chamber.seats[replica].disk
        self.chamber.crash(replica)

    def _arrives(self, _: Flight) -> bool:
        return self.chance.random() > 0.05


@pytest.mark.parametrize("seed", range(6))
def test_under_crashes_and_loss_all_readers_see_one_order_with_everything_in_it(seed: int) -> None:
    trouble = Trouble(seed)
    chamber = trouble.chamber
    chamber.reader(READER)
    for _ in range(25):
        trouble.happens()
    # When all are there and nothing is lost any more
    trouble.recover()
    chamber.run(20)
    chamber.reader(OTHER)
    chamber.run(2)
    # Then whoever reads, from when on ever, has read the same,
    whole = chamber.read(READER)
    assert kinds(whole) == kinds(chamber.read(OTHER))
    assert [entry.offset for entry in whole] == list(range(len(whole)))
    # and all that either published, once and in its order.
    for node, count in trouble.published.items():
        assert [entry.sequence for entry in _of(whole, node)] == list(range(1, count + 1))


def test_who_begins_to_read_need_not_wait_for_the_next_time_that_marks_are_made() -> None:
    chamber = Chamber()
    chamber.run(1.5)
    add(chamber, A, TOPIC, count=2)
    assert chamber.marked(0) == 0
    chamber.reader()
    chamber.settle()
    assert kinds(chamber.read()) == [(A, 1, 0), (A, 2, 1)]


def test_what_there_is_no_room_for_is_marked_as_soon_as_there_is() -> None:
    chamber = Chamber()
    chamber.reader()
    count = WAITING_BATCHES_MAX + 5
    for replica in (0, 1, 2):
        # As if so much had been decided while nobody could mark it.
        state = PartitionState(end=count)
        chamber.validated(replica).log.state.partitions[Partition(chamber.topic.id, 0)] = state
    chamber.run(1.2)
    assert [chamber.marked(replica) for replica in (0, 1, 2)] == [count] * 3
