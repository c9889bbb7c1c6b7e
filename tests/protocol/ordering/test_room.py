"""However much a client hands in that is never ordered, replicas keep so much of it and no more,
and honest clients go on."""

from collections.abc import Iterable
from typing import Any

import pytest

from commands import ANNA, BEN, LOG, SECOND_US, cluster
from council import Council, records
from quorate.core import batch
from quorate.core.control import (
    CONTROL_TOPIC_ID,
    LEASE_US_MAX,
    Command,
    Register,
    Renew,
    Unregister,
    encode_command,
)
from quorate.core.event import Event
from quorate.core.ids import NodeId, member_of, node_of, topic_id
from quorate.core.ordering import Announce, Append, Line, Ordered, Propose, Received, Unordered
from quorate.crypto.digests import descriptor
from quorate.protocol.control import machine
from quorate.protocol.control.state import PUBLISHERS_PER_MEMBER_MAX
from quorate.protocol.ordering.backlog import COMMAND_COST
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX, Former, Waiting
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.records import Dropped, Held
from quorate.protocol.ordering.room import BATCH_COST, EVENT_COST, LINE_COST, Room, Rooms
from stage import described, event, framed

ORDERS = topic_id("orders")
PARTITIONS = 4
ROOMS = Rooms.of(64 * 1024)
LARGE = INLINE_BYTES_MAX + 1
LINE = Line(ANNA, ORDERS, 0)


def session_of(node: NodeId, session: int) -> NodeId:
    return node_of(member_of(node), session)


def council(rooms: Rooms = ROOMS, **changes: Any) -> Council:
    topics = {"orders": {**LOG, "partitions": PARTITIONS, "publishers_max": 1000}}
    return Council(cluster=cluster(topics), rooms=rooms, **changes)


class Client:
    """One session, whose batches go where the test says."""

    def __init__(self, council: Council, node: NodeId) -> None:
        self.council, self.node = council, node
        self._commands = 0

    def commands(self, command: Command, to: Iterable[NodeId] | None = None) -> None:
        self._commands += 1
        payload = batch.encode([Event(None, encode_command(command))])
        append = Append(CONTROL_TOPIC_ID, 0, self._commands, [payload])
        self.council.say(self.node, self.council.members if to is None else to, append)
        self.council.settle()

    def hands_in(self, first: int, *payloads: bytes, to: Iterable[NodeId], partition: int) -> None:
        append = Append(ORDERS, partition, first, [*map(framed, payloads)])
        self.council.say(self.node, to, append)

    def is_told(self) -> list[Ordered]:
        sent = [f.message for f in self.council.sent if f.receiver == self.node]
        return [each for each in sent if isinstance(each, Ordered) and each.topic == ORDERS]


def kept_bytes(council: Council, replica: NodeId, member: NodeId) -> int:
    """What is in memory of a member's undecided payloads, whatever is said to be."""
    found = 0
    for line, waiting in council.group(replica).backlog.lines.items():
        if member_of(line.publisher) == member_of(member):
            lists = (waiting.payloads, *(former.payloads for former in waiting.former))
            found += sum(len(payload) for each in lists for payload in each if payload)
            found += sum(map(len, waiting.spare.values()))
    return found


def stored_bytes(council: Council, replica: NodeId, member: NodeId) -> int:
    """What a replica that starts with this disk gets back of undecided payloads."""
    disk = council.seats[replica].store.found().records
    held = [each for each in disk if isinstance(each, Held)]
    latest = {
        (each.publisher, each.topic, each.partition, at): len(payload)
        for each in held
        if member_of(each.publisher) == member_of(member)
        for at, payload in enumerate(each.payloads, each.first)
    }
    decided = council.group(replica).log
    return sum(
        size for (*line, number), size in latest.items() if number >= decided.line(Line(*line)).next
    )


def fill(council: Council, client: Client, size: int) -> None:
    """Tell every replica something else, on all partitions, until none takes more."""
    for partition in range(PARTITIONS):
        for replica in council.members:
            payloads = [bytes([replica, number]) * (size // 2) for number in range(4)]
            for first in range(1, 40, 4):
                client.hands_in(first, *payloads, to=[replica], partition=partition)


@pytest.mark.parametrize("size", [2, 200, LARGE + 1])
def test_a_client_fills_all_it_can_and_others_go_on(size: int) -> None:
    """It is Byzantine, and has many sessions, one after the other and at once."""
    chamber = council()
    honest = Client(chamber, BEN)
    honest.commands(Register("orders", LEASE_US_MAX))
    bound = PUBLISHERS_PER_MEMBER_MAX * ROOMS.session
    for round_ in range(2):
        for number in range(PUBLISHERS_PER_MEMBER_MAX + 8):
            attacker = Client(chamber, session_of(ANNA, 100 * round_ + number))
            attacker.commands(Register("orders", LEASE_US_MAX))
            fill(chamber, attacker, size)
        for replica in chamber.members:
            backlog = chamber.group(replica).backlog
            lines = [line for line in backlog.lines if member_of(line.publisher) == ANNA]
            assert kept_bytes(chamber, replica, ANNA) <= bound
            assert stored_bytes(chamber, replica, ANNA) <= bound
            assert BATCH_COST * sum(len(backlog.lines[line].descriptors) for line in lines) <= bound
            # There is nothing left that it did not take.
            assert backlog.room.left(session_of(ANNA, 100 * round_)) < 4 * (BATCH_COST + size)
        honest.hands_in(1 + round_, bytes(LARGE), to=chamber.members, partition=round_)
        for partition in range(PARTITIONS):
            honest.hands_in(1, b"b", to=chamber.members, partition=partition)
        chamber.settle()
        for number in range(PUBLISHERS_PER_MEMBER_MAX):
            attacker = Client(chamber, session_of(ANNA, 100 * round_ + number))
            attacker._commands = 1
            attacker.commands(Unregister("orders"))
        for replica in chamber.members:
            assert kept_bytes(chamber, replica, ANNA) == 0
            assert stored_bytes(chamber, replica, ANNA) == 0
    # Four replicas tell it of each.
    assert len(honest.is_told()) >= 4 * PARTITIONS


def test_what_waits_of_a_session_goes_when_its_lease_ends_and_is_ordered_when_it_is_back() -> None:
    chamber = council()
    anna, ben = Client(chamber, ANNA), Client(chamber, BEN)
    anna.commands(Register("orders", SECOND_US))
    # One replica is too few for others to believe it.
    anna.hands_in(1, b"1", bytes(LARGE), to=[0], partition=0)
    chamber.settle()
    assert kept_bytes(chamber, 0, ANNA) == len(event(b"1")) + len(event(bytes(LARGE)))

    chamber.ahead_us = dict.fromkeys(chamber.members, 2 * SECOND_US)
    chamber.run(2)
    ben.commands(Register("orders"))
    assert kept_bytes(chamber, 0, ANNA) == 0
    assert records(chamber.turns, Dropped) == [Dropped(*LINE)]

    # Nothing of it is taken until it has registered again.
    anna.hands_in(1, b"1", bytes(LARGE), to=chamber.members, partition=0)
    chamber.settle()
    assert anna.is_told() == []
    anna.commands(Register("orders"))
    anna.hands_in(1, b"1", bytes(LARGE), to=chamber.members, partition=0)
    chamber.settle()
    assert {each.count for each in anna.is_told()} == {2}


def test_what_was_dropped_is_not_there_again_after_a_crash() -> None:
    chamber = council()
    anna = Client(chamber, ANNA)
    anna.commands(Register("orders"))
    anna.hands_in(1, bytes(LARGE), to=[0], partition=0)
    anna.commands(Unregister("orders"))
    assert kept_bytes(chamber, 0, ANNA) == 0
    # It loses that it dropped it, and why, and comes to it again.
    chamber.reboot(0)
    chamber.run(2)
    assert kept_bytes(chamber, 0, ANNA) == stored_bytes(chamber, 0, ANNA) == 0
    anna.commands(Register("orders"))
    anna.hands_in(1, b"another", to=chamber.members, partition=0)
    chamber.settle()
    assert len(anna.is_told()) == 4


def test_a_leader_proposes_nothing_of_a_session_that_has_ended() -> None:
    chamber = council()
    anna = Client(chamber, ANNA)
    anna.commands(Register("orders"))
    anna.hands_in(1, b"1", to=[0, 1], partition=0)
    anna.commands(Unregister("orders"))
    slot = chamber.group(0).consensus.slot
    anna.hands_in(1, b"1", to=[2], partition=0)
    for replica in (1, 2, 3):
        chain = Waiting(LINE)
        chain.extend(1, [described(b"1")], [event(b"1")])
        chamber.say(replica, [0], Received(*LINE, 1, chain.chains[0]))
    chamber.run(2)
    assert chamber.group(0).consensus.slot == slot
    assert {chamber.group(replica).consensus.regency for replica in chamber.members} == {1}


def test_what_a_client_announced_and_hands_in_afterwards_needs_room_as_well() -> None:
    chamber = council()
    anna = Client(chamber, ANNA)
    anna.commands(Register("orders"))
    payloads = [event(bytes([number]) * LARGE) for number in range(30)]
    chamber.say(ANNA, [0], Announce(ORDERS, 0, 1, [*map(descriptor, payloads)]))
    for number, payload in enumerate(payloads, 1):
        anna.hands_in(number, payload, to=[0], partition=0)
    assert kept_bytes(chamber, 0, ANNA) <= ROOMS.session
    assert stored_bytes(chamber, 0, ANNA) == kept_bytes(chamber, 0, ANNA) > 0


def test_commands_that_are_never_ordered_give_way_to_others_of_their_client() -> None:
    chamber = council()
    for number in range(3 * ROOMS.commands // COMMAND_COST):
        for replica in chamber.members:
            command = event(bytes([replica]) * (INLINE_BYTES_MAX - len(event(b""))))
            append = Append(CONTROL_TOPIC_ID, 0, 1, [command])
            chamber.say(session_of(ANNA, number), [replica], append)
    for replica in chamber.members:
        assert 0 < kept_bytes(chamber, replica, ANNA) <= ROOMS.commands
    last = Client(chamber, session_of(ANNA, 9999))
    last.commands(Register("orders"))
    assert chamber.group(0).commands.are_on(Line(last.node, CONTROL_TOPIC_ID, 0))
    last.hands_in(1, b"1", to=chamber.members, partition=0)
    chamber.settle()
    assert len(last.is_told()) == 4


def test_a_command_that_an_open_slot_may_be_bound_to_does_not_give_way() -> None:
    chamber = council()
    anna = Client(chamber, ANNA)
    payload = batch.encode([Event(None, encode_command(Renew()))])
    for replica in chamber.members:
        chamber.say(ANNA, [replica], Append(CONTROL_TOPIC_ID, 0, 1, [payload]))
    # The leader proposes it, and a replica votes; the votes do not arrive.
    chamber.deliver()
    chamber.deliver()
    chamber.drop()
    for number in range(1, 3 * ROOMS.commands // COMMAND_COST):
        command = Append(CONTROL_TOPIC_ID, 0, 1, [event(bytes(INLINE_BYTES_MAX - len(event(b""))))])
        chamber.say(session_of(ANNA, number), [1], command)
    line = Line(anna.node, CONTROL_TOPIC_ID, 0)
    assert chamber.group(1).backlog.lines[line].payloads == [payload]


def test_commands_give_way_even_if_a_leader_proposed_what_is_no_value() -> None:
    chamber = council(byzantine=(0,))
    chamber.say(0, [1], Propose(chamber.number, 1, 1, b"?"))
    for number in range(1, 3 * ROOMS.commands // COMMAND_COST):
        command = Append(CONTROL_TOPIC_ID, 0, 1, [event(bytes(INLINE_BYTES_MAX - len(event(b""))))])
        chamber.say(session_of(ANNA, number), [1], command)
    assert 0 < kept_bytes(chamber, 1, ANNA) <= ROOMS.commands


def test_a_large_batch_that_is_handed_in_again_is_not_written_again() -> None:
    """Behind a small one, which is not on disk before it is voted for, it was: as often as its
    publisher liked."""
    chamber = council()
    anna = Client(chamber, ANNA)
    anna.commands(Register("orders"))
    for _ in range(10):
        anna.hands_in(1, b"small", bytes(LARGE), to=[0], partition=0)
    assert len(records(chamber.turns, Held)) == 1 + 4  # the others have the command
    anna.hands_in(1, b"small", bytes(LARGE), to=chamber.members, partition=0)
    chamber.settle()
    at_leader = [turn for turn in chamber.turns if turn.replica == 0]
    mine = [held for held in records(at_leader, Held) if held.topic == ORDERS]
    assert [(held.first, len(held.payloads)) for held in mine] == [(2, 1), (1, 1)]
    assert len(anna.is_told()) == 4


# Parts


def test_room_is_shared_by_the_sessions_of_a_member_and_bounded_for_each() -> None:
    room = Room(10, 15)
    first, second, other = session_of(ANNA, 1), session_of(ANNA, 2), BEN
    room.change(first, 9)
    assert (room.left(first), room.left(second), room.left(other)) == (1, 6, 10)
    assert room.is_short(second, 7)
    assert not room.is_short(second, 6)
    # What it lacks of its own room, others of its member do not keep from it.
    assert not room.is_short(first, 5)
    room.change(first, -9)
    assert (room.left(first), room.left(second)) == (10, 10)


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_line_takes_what_there_is_room_for_and_the_rest_when_there_is_more(batches: int) -> None:
    waiting, payloads = Waiting(LINE), [*map(event, (b"12", b"34", b"56"))]
    descriptors = [*map(descriptor, payloads)]
    room = LINE_COST + batches * (BATCH_COST + EVENT_COST + len(payloads[0]))
    assert not waiting.extend(1, descriptors, payloads, room)
    assert waiting.end == 1 + batches
    assert waiting.cost_bytes == room
    assert not waiting.extend(
        1, descriptors, payloads, 2 * (BATCH_COST + EVENT_COST + len(payloads[0]))
    )
    assert waiting.payloads == payloads


def test_a_line_without_room_takes_nothing_and_costs_nothing() -> None:
    waiting = Waiting(LINE)
    assert not waiting.extend(1, [described(b"")], [event(b"")], LINE_COST + BATCH_COST - 1)
    assert (waiting.end, waiting.cost_bytes) == (1, 0)


def test_of_what_lost_its_place_the_longest_is_kept() -> None:
    """A client and a replica that lie together could make a replica go back and forth."""
    waiting, descriptors = Waiting(LINE), [*map(described, (b"1", b"2"))]
    waiting.put_aside(Former(1, descriptors[:1], [event(b"1")]))
    waiting.put_aside(Former(1, descriptors, [event(b"1"), None]))
    waiting.put_aside(Former(1, descriptors[:1], [None]))
    assert waiting.former == [Former(1, descriptors, [event(b"1"), None])]
    # A payload that only the shorter one has is kept with that.
    waiting.put_aside(Former(1, descriptors[:1], [event(b"1")]))
    waiting.put_aside(Former(1, descriptors, [None, event(b"2")]))
    assert len(waiting.former) == 2


def test_what_an_honest_source_has_under_way_fits_into_the_room_of_a_session() -> None:
    for rooms, batch_bytes in ((Rooms(), 8 * 1024 * 1024), (Rooms.of(48 * 1024), 9_100)):
        assert rooms.in_flight + LINE_COST + BATCH_COST + batch_bytes <= rooms.session
        assert rooms.session * PUBLISHERS_PER_MEMBER_MAX <= rooms.member
        assert rooms.commands // 2 >= COMMAND_COST


def test_the_streams_of_a_session_go_in_one_slot_when_it_has_ended_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "REST_US", 60 * SECOND_US)
    chamber = council()
    anna, ben = Client(chamber, ANNA), Client(chamber, BEN)
    for client in (anna, ben):
        client.commands(Register("orders", SECOND_US))
        client.hands_in(1, b"first", to=chamber.members, partition=0)
        chamber.settle()
    logs = [chamber.group(replica).log for replica in chamber.members]
    line = Line(ANNA, ORDERS, 0)

    # Its lease has ended, and it goes on where it was.
    chamber.ahead_us = dict.fromkeys(chamber.members, 30 * SECOND_US)
    chamber.run(2)
    ben.commands(Register("orders", SECOND_US))
    anna.commands(Register("orders", SECOND_US))
    anna.hands_in(1, b"first", b"second", to=chamber.members, partition=0)
    chamber.settle()
    assert [log.line(line).next for log in logs] == [3] * 4

    # It stays away for good; what it hands in later is answered, whichever number it has.
    for ahead in (80, 120):
        chamber.ahead_us = dict.fromkeys(chamber.members, ahead * SECOND_US)
        chamber.run(2)
        ben.commands(Register("orders", SECOND_US))
    ben.hands_in(2, b"second", to=chamber.members, partition=0)
    chamber.settle()
    sessions = {node for log in logs for node in log.sessions}
    assert sessions == {BEN}
    before = len(chamber.messages(Unordered, receiver=ANNA))
    size = logs[0].tree.size
    anna.hands_in(1, b"first", to=chamber.members, partition=0)
    anna.commands(Register("orders", SECOND_US))
    chamber.settle()
    chamber.run(1)
    told = chamber.messages(Unordered, receiver=ANNA)[before:]
    assert {each.topic for each in told} == {ORDERS, CONTROL_TOPIC_ID}
    assert all("has ended" in each.sentence for each in told)
    assert [log.tree.size for log in logs] == [size] * 4
    assert len({bytes(log.snapshot().state) for log in logs}) == 1


def test_whoever_publishes_before_its_first_command_is_ordered_is_not_told_that_it_ended() -> None:
    """Under a leader that says nothing that takes a while."""
    chamber = council()
    anna = Client(chamber, ANNA)
    anna.hands_in(1, b"first", to=chamber.members, partition=0)
    chamber.settle()
    assert chamber.messages(Unordered, receiver=ANNA) == []

    anna.commands(Register("orders", SECOND_US))
    chamber.settle()
    anna.hands_in(1, b"first", to=chamber.members, partition=0)
    chamber.settle()
    assert chamber.group(0).log.line(Line(ANNA, ORDERS, 0)).next == 2


def test_a_group_that_orders_no_commands_forgets_streams_in_one_slot_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "REST_US", 60 * SECOND_US)
    ticks = topic_id("ticks")
    crash = {"protection": "crash", "order": "total", "partitions": 2}
    chamber = Council(cluster=cluster({"orders": LOG, "ticks": crash}))
    anna, ben = Client(chamber, ANNA), Client(chamber, BEN)

    def hands_in(client: Client, first: int, to: Iterable[NodeId]) -> None:
        for partition in range(2):
            chamber.say(client.node, to, Append(ticks, partition, first, [event(b"%d" % first)]))
        chamber.settle()

    for client in (anna, ben):
        client.commands(Register("ticks", SECOND_US))
        hands_in(client, 1, chamber.members)
    # Three of the four replicas order it.
    logs = [chamber.seats[each].ordering.groups[GroupKind.CRASH].log for each in range(3)]
    assert [len(log.state.lines) for log in logs] == [4] * 3
    for ahead in (50, 100):
        chamber.ahead_us = dict.fromkeys(chamber.members, ahead * SECOND_US)
        chamber.run(2)
        ben.commands(Register("ticks", SECOND_US))
    assert [len(log.state.lines) for log in logs] == [4] * 3
    hands_in(ben, 2, chamber.members)
    assert [{line.publisher for line in log.state.lines} for log in logs] == [{BEN}] * 3
    assert len({bytes(log.snapshot().state) for log in logs}) == 1

    # A replica that starts again comes to the same.
    chamber.reboot(0)
    chamber.run(5)
    log = chamber.seats[0].ordering.groups[GroupKind.CRASH].log
    assert bytes(log.snapshot().state) == bytes(logs[1].snapshot().state)
    hands_in(anna, 1, chamber.members)
    chamber.run(1)
    assert log.tree.size == logs[1].tree.size == 6
