"""Defects that writing these tests brought to light, each as small as it could be made."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import pytest

from council import BYZANTINE, A, B, C, Council, Flight, T, payload_of, span_of, value_of
from quorate.core import codec
from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import NodeId, node_of
from quorate.core.ordering import (
    Accept,
    Announce,
    Chained,
    Decision,
    Entries,
    Fill,
    Line,
    Partition,
    Promised,
    Propose,
    Received,
    Retrieve,
    Retrieved,
    Signed,
    Standing,
    State,
    Stop,
    StopData,
    Stored,
    Sync,
    Write,
)
from quorate.protocol.machine import Entry
from quorate.protocol.ordering import reading as reading_module
from quorate.protocol.ordering.reading import CREDIT_BATCHES, FIRST_CREDIT_EVENTS, Reading
from quorate.protocol.ordering.records import Held, Voted
from quorate.protocol.ordering.replica import Found
from quorate.protocol.ordering.value import (
    CHAIN_START,
    Span,
    chain_of,
    chained,
    leaves_of,
    value_digest,
)
from quorate.sim.order_stage import SimSigner
from quorate.sim.stores import SimStore
from quorate.storage.store import DiskStore
from stage import Outlook, described, event, opened, topic

EVERYBODY = {0, 1, 2, 3}


def of_kind(*kinds: type) -> Callable[[Flight], bool]:
    return lambda flight: isinstance(flight.message, kinds)


# Safety


def found_by_disk_store(store: SimStore, place: Path) -> Found:
    """What the real store hands back of the same records."""
    real = DiskStore(place, reserve_bytes=0)
    for record in store._disk.read():
        real.append([record])
    real.sync_now()
    real.close()
    again = DiskStore(place, reserve_bytes=0)
    recovered = again.recover()
    records = list(recovered.records)
    again.close()
    return Found(recovered.snapshots, records)


def recover_as_disk_store_does(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """What a replica finds when it restarts is what the real store hands back."""
    numbers = count()

    def found(store: SimStore) -> Found:
        return found_by_disk_store(store, directory / str(next(numbers)))

    monkeypatch.setattr(SimStore, "found", found)


def payloads_in(found: Found) -> dict[tuple[int, ...], list[bytes]]:
    """What is held under each number, in the order in which a replica hears of it."""
    held: dict[tuple[int, ...], list[bytes]] = {}
    for record in found.records:
        if isinstance(record, Held):
            for sequence, payload in enumerate(record.payloads, record.first):
                number = (record.publisher, record.topic, record.partition, sequence)
                held.setdefault(number, []).append(payload)
    return held


@pytest.mark.parametrize("snapshot_every", [1, 4096])
def test_the_simulated_disk_is_not_kinder_than_the_real_one(
    snapshot_every: int, tmp_path: Path
) -> None:
    """It handed back every payload that was ever held under a number, the first one first."""
    council = Council(snapshot_every=snapshot_every)
    council.publish(A, 1, b"decided")
    council.settle()
    records = [
        Held(B, T, 0, 1, [b"one", b"two", b"three"]),
        Held(B, T, 0, 2, [b"another"]),
        Held(B, T, 0, 5, [b"five"]),
    ]
    for replica, seat in council.seats.items():
        seat.disk.append(records)
        simulated = seat.store.found()
        real = found_by_disk_store(seat.store, tmp_path / str(replica))
        assert payloads_in(simulated) == payloads_in(real)
        kinds = [
            [type(r) for r in found.records if type(r) is not Held] for found in (simulated, real)
        ]
        assert kinds[0] == kinds[1]
        assert simulated.snapshots == real.snapshots


class Attack:
    """Replica 0 is Byzantine, and leads regencies 1 and 5; replicas write a snapshot each slot."""

    def __init__(self) -> None:
        self.council = Council(byzantine=(0,), snapshot_every=1)
        self.group = self.council.number
        self.publish()

    def publish(self) -> None:
        for publisher in (A, B, C):
            self.council.publish(publisher, 1)

    def enter_regency_5(self) -> Sync:
        """As after some leaders that did not help. The states show that nothing binds."""
        council = self.council
        for replica in council.seats:
            council.group(replica).change._ask(5)
        council.collect()
        council.deliver(of_kind(Stop))
        states = [
            Signed(flight.sender, flight.message.state, flight.message.signature)
            for flight in council.sent
            if isinstance(flight.message, StopData)
        ]
        sync = Sync(self.group, 5, states, [])
        council.say(0, council.seats, sync)
        return sync

    def order(self, regency: int, slot: int, publisher: NodeId, *, by: set[NodeId]) -> None:
        """As the leader, have one batch accepted by some replicas."""
        council = self.council
        value = value_of(span_of(publisher, 1, payload_of(publisher, 1)))
        council.say(0, by, Propose(self.group, regency, slot, value))
        council.say(0, by, Write(self.group, regency, slot, value_digest(value)))
        council.say(0, by, Accept(self.group, regency, slot, value_digest(value)))
        council.drop(lambda flight: not {flight.sender, flight.receiver} <= by)
        council.deliver(of_kind(Write))

    def power_cut(self) -> None:
        for replica in (1, 2, 3):
            self.council.seats[replica].disk.sync()
            self.council.reboot(replica)
        self.council.drop()
        self.publish()


def test_a_restart_behind_a_snapshot_does_not_take_a_replica_back_to_an_earlier_regency(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A snapshot does not say in which regency it was taken, and the store does not hand back the
    votes of its slot: `Group.mark` in storage/groups.py leaves out slot <= snapshot_slot. So a
    replica begins again in regency 1, synchronised."""
    recover_as_disk_store_does(monkeypatch, tmp_path)
    attack = Attack()
    attack.enter_regency_5()
    attack.order(5, 1, A, by={1, 2, 3})
    attack.council.settle()

    attack.power_cut()

    regencies = {attack.council.group(replica).consensus.regency for replica in (1, 2, 3)}
    assert regencies == {5}


def test_a_power_cut_behind_a_snapshot_lets_no_two_replicas_decide_differently(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same, to its end: a leader of regency 1 has one value decided, and with the SYNC that it
    kept from regency 5, which knows nothing of that, another one."""
    recover_as_disk_store_does(monkeypatch, tmp_path)
    attack = Attack()
    council, sync = attack.council, attack.enter_regency_5()
    attack.order(5, 1, A, by={1, 2, 3})
    council.settle()
    attack.power_cut()

    attack.order(1, 2, B, by={1, 2})
    council.settle(lambda flight: flight.receiver == 1)
    council.say(0, (2, 3), sync)
    attack.order(5, 2, C, by={2, 3})
    council.settle(lambda flight: flight.receiver == 3)

    second = [council.log(replica)[1:2] for replica in (1, 3)]
    assert [] in second or second[0] == second[1]


# Liveness


def test_a_replica_that_decided_without_a_vote_and_restarted_does_not_hold_up_every_leader() -> (
    None
):
    """Replica 2 decides slot 1 on the ACCEPTs of 0, 1 and the Byzantine 3, and has said nothing in
    it itself. After a restart its state leaves slot 1 out, since `Consensus.restore` makes a
    promise of the slot before only where it finds a vote; so `resolve(1)` counts two states, and
    no leader is ever synchronised. That it said nothing is what its state should say."""
    council = Council(byzantine=(3,))
    large = bytes(5000)
    council.publish(A, 1, large, to=(0, 1))
    council.say(A, [2], Announce(T, 0, 1, [described(large)]))
    # It does not hear that others store the batch, and so does not find it available.
    council.drop(lambda flight: isinstance(flight.message, Stored) and flight.receiver == 2)
    council.deliver(of_kind(Received))
    council.deliver(of_kind(Propose))
    content = value_digest(value_of(span_of(A, 1, large)))
    council.say(3, (0, 1), Write(council.number, 1, 1, content))
    council.drop(lambda flight: isinstance(flight.message, Write) and flight.receiver == 2)
    council.deliver(of_kind(Write))
    council.say(3, [2], Accept(council.number, 1, 1, content))
    council.drop(lambda flight: isinstance(flight.message, Accept) and flight.receiver != 2)
    council.deliver(of_kind(Accept))
    assert [council.group(replica).consensus.slot for replica in (0, 1, 2)] == [1, 1, 2]
    council.drop()
    council.seats[2].disk.sync()
    council.reboot(2)

    council.publish(B, 1)
    council.run(60)

    assert all(payload_of(B, 1) in council.log(replica) for replica in (0, 1, 2))


def enter(council: Council, regency: int) -> None:
    for replica in council.seats:
        council.group(replica).change._ask(regency)
    council.collect()
    council.deliver(of_kind(Stop))


@pytest.mark.parametrize("restarts", [False, True], ids=["", "after a restart"])
def test_what_was_voted_for_is_there_when_a_slot_is_bound_to_it(
    restarts: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A publisher gives one batch to two replicas and another one to the third. The liar has the
    first voted for in its regency, then the other one, and then is silent."""
    recover_as_disk_store_does(monkeypatch, tmp_path)
    liar, third = 0, 3
    first, other = span_of(A, 1, b"x"), span_of(A, 1, b"y")
    value = value_of(first)
    council = Council(byzantine=(liar,))
    number = council.number
    council.publish(A, 1, b"x", to=(1, 2))
    council.publish(A, 1, b"y", to=[third])
    # Given a batch that two wrote and one accepted,
    council.say(liar, (1, 2), Propose(number, 1, 1, value))
    council.say(liar, [1], Write(number, 1, 1, value_digest(value)))
    council.deliver(lambda flight: of_kind(Write)(flight) and flight.receiver == 1)
    assert len(council.messages(Accept, sender=1)) == 3
    council.drop()
    # and a later regency of the liar, to which that one's state did not come,
    enter(council, 5)
    states = [
        Signed(flight.sender, flight.message.state, flight.message.signature)
        for flight in council.sent
        if isinstance(flight.message, StopData) and flight.sender != 1
    ]
    blank = msgspec.msgpack.encode(State(number, 5, 1, [Promised(1, 0, b"", {})]))
    states.append(Signed(liar, blank, SimSigner(liar).sign(blank)))
    council.say(liar, council.seats, Sync(number, 5, states, []))
    # in which it has the two vote for the other one,
    council.say(liar, (1, 2), Received(*other.line, 1, other.chain))
    council.say(liar, (1, 2), Propose(number, 5, 1, value_of(other)))
    council.run(0.2, of_kind(Retrieve, Retrieved, Received))
    for replica in (1, 2):
        assert council.messages(Write, sender=replica)[-1].regency == 5
        if restarts:
            council.reboot(replica)

    # when the next leader is bound to the first one, for it may have been decided,
    council.drop()
    enter(council, 6)
    council.run(3)

    # then that can be ordered, and what comes after it.
    council.publish(B, 1)
    council.run(3)
    assert {tuple(council.log(replica)) for replica in council.seats} == {(b"x", b"b1")}


LARGE = event(bytes(5000)), event(bytes(5001))


def store(council: Council) -> None:
    """Replica 1 stores two large batches, as 2 and 3 know from it and from the liar. Before that,
    3 had something else, and told 1."""
    right = span_of(A, 1, *LARGE)
    council.publish(A, 1, b"y", to=[3])
    council.run(0.3, lambda flight: of_kind(Received)(flight) and flight.receiver == 1)
    council.publish(A, 1, *LARGE, to=[1])
    council.say(A, [2], Announce(T, 0, 1, [*map(described, LARGE)]))
    for replica in (0, 2):
        council.say(replica, [3], Received(*right.line, 2, right.chain))
    council.run(0.3, lambda flight: of_kind(Retrieve, Retrieved)(flight) and flight.receiver != 1)
    council.publish(A, 1, *LARGE, to=[1])
    council.deliver(lambda flight: of_kind(Stored)(flight) and flight.sender == 1)
    council.say(0, (2, 3), Stored(*right.line, 1, 2, right.chain))


def displace(council: Council, *others: Span) -> None:
    """The liar proposes to replica 1 what 3 had, and perhaps something else with it."""
    other = span_of(A, 1, b"y")
    council.say(0, [1], Received(*other.line, 1, other.chain))
    council.say(0, [1], Propose(council.number, 1, 1, value_of(other, *others)))
    council.say(0, [1], Retrieved(*other.line, 1, [described(b"y")], [event(b"y")]))
    council.run(0.1, lambda _: False)
    assert council.group(1).backlog.line(other.line).payloads == [event(b"y")]


def decide(council: Council, regency: int, slot: int, value: bytes) -> None:
    """As a liar that leads, and orders as agreed."""
    content = value_digest(value)
    council.say(0, council.seats, Propose(council.number, regency, slot, value))
    council.say(0, council.seats, Write(council.number, regency, slot, content))
    council.say(0, council.seats, Accept(council.number, regency, slot, content))
    council.run(0.2, of_kind(Propose, Write, Accept, Standing, Decision))


@pytest.mark.parametrize("snapshot_every", [1, 4096])
def test_what_a_replica_stores_is_there_when_it_is_decided_many_slots_later(
    snapshot_every: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What took its place was voted for in a slot that a snapshot covers: of such slots votes are
    not handed back after a restart, and with them went the last copy of the batch."""
    recover_as_disk_store_does(monkeypatch, tmp_path)
    council = Council(byzantine=(0,), snapshot_every=snapshot_every)
    store(council)
    displace(council)
    assert council.messages(Write, sender=1)
    # Given other decisions meanwhile, and a restart,
    before = b""
    for slot in (1, 2, 3):
        council.publish(B, slot)
        span = span_of(B, slot, payload_of(B, slot), before=before)
        decide(council, 1, slot, value_of(span))
        before = span.chain
    assert council.log(1) == [payload_of(B, slot) for slot in (1, 2, 3)]
    council.reboot(1)

    # when the batch is decided after all,
    decide(council, 1, 4, value_of(span_of(A, 1, *LARGE)))
    council.run(1)
    assert {council.group(replica).consensus.slot for replica in (1, 2, 3)} == {5}

    # then whoever said that it stores it does so.
    assert council.log(1)[3:] == [*map(opened, LARGE)]


def test_what_a_replica_stores_is_there_though_another_batch_was_stored_in_its_place() -> None:
    """Without any vote: what the publisher sends next is stored when it comes."""
    council = Council(byzantine=(0,))
    store(council)
    displace(council, span_of(B, 1, b"nobody has it"))
    assert not council.messages(Write, sender=1)
    council.publish(A, 2, bytes(6000), to=[1])
    council.reboot(1)

    decide(council, 1, 1, value_of(span_of(A, 1, *LARGE)))
    council.run(1)

    assert council.log(1) == [*map(opened, LARGE)]


def test_what_lost_its_place_is_written_down_once() -> None:
    """It was with every vote for the line: some seventy bytes of a proposal, 64 MiB on disk."""
    council = Council(byzantine=(0,))
    store(council)
    displace(council)
    enter(council, 5)
    states = [
        Signed(flight.sender, flight.message.state, flight.message.signature)
        for flight in council.sent
        if isinstance(flight.message, StopData)
    ]
    council.say(0, council.seats, Sync(council.number, 5, states, []))
    council.say(0, [1], Propose(council.number, 5, 1, value_of(span_of(A, 1, b"y"))))
    assert {write.regency for write in council.messages(Write, sender=1)} == {1, 5}

    votes = [record for record in council.seats[1].disk.read() if isinstance(record, Voted)]
    assert [held.payloads for voted in votes for held in voted.displaced] == [[*LARGE]]


def test_what_a_replica_said_it_received_it_stands_by_when_something_else_takes_its_place() -> None:
    """A publisher says two things. The leader proposes one on the words of a replica which then,
    for the liar and another one say so, has the other one: it neither voted for what it had said
    it received, nor told those who asked."""
    council = Council(byzantine=(3,))
    one, two = span_of(A, 1, b"x"), span_of(A, 1, b"y", b"z")
    council.publish(A, 1, b"x", to=(0, 1))
    council.deliver(of_kind(Received))
    council.publish(A, 1, b"y", b"z", to=[2])
    # Given a replica that has come to have the other one, which the leader has yet to hear,
    for replica in (2, 3):
        council.say(replica, [1], Received(*two.line, 2, two.chain))
    council.say(
        3,
        [1],
        Retrieved(*two.line, 1, [described(b"y"), described(b"z")], [event(b"y"), event(b"z")]),
    )
    council.run(0.05, lambda _: False)
    assert council.group(1).backlog.line(one.line).matches(two)

    # when the leader proposes the first one, and then has the other one as well,
    council.say(3, [0], Received(*one.line, 1, one.chain))
    assert council.messages(Propose, sender=0)
    for replica in (2, 3):
        council.say(replica, [0], Received(*two.line, 2, two.chain))
    council.say(
        3,
        [0],
        Retrieved(*two.line, 1, [described(b"y"), described(b"z")], [event(b"y"), event(b"z")]),
    )
    council.publish(B, 1)
    council.run(3)

    # then that holds up nobody.
    assert {council.group(replica).consensus.regency for replica in council.seats} == {1}
    assert {tuple(council.log(replica)) for replica in council.seats} == {(b"x", b"b1")}


def test_what_replicas_said_before_they_restarted_does_not_hold_up_a_leader_again() -> None:
    """They have forgotten a small batch, and its publisher is gone. The leader that has it took
    their words for true for ever: whenever it led, it proposed what nobody else could believe."""
    council = Council(byzantine=(3,))
    council.publish(A, 1, to=(0, 1, 2))
    council.deliver(of_kind(Received))
    council.drop()
    for replica in (1, 2):
        council.reboot(replica)
    council.publish(B, 1)
    council.run(3)
    assert council.log(1) == [payload_of(B, 1)]

    enter(council, 5)
    council.publish(B, 2)
    council.run(3)

    assert {council.group(replica).consensus.regency for replica in council.seats} == {5}
    assert council.log(1) == [payload_of(B, 1), payload_of(B, 2)]


def test_what_a_leader_made_up_is_not_asked_for_when_it_leads_no_more() -> None:
    """It was, ten times a second and of everybody, until the line had come so far."""
    council = Council(byzantine=(0,))
    made_up = Span(A, T, 0, 1, 4096, bytes(32))
    council.say(0, council.seats, Propose(council.number, 1, 1, value_of(made_up)))
    council.publish(A, 1)
    council.run(4)
    assert council.messages(Retrieve)
    assert council.log(1) == [payload_of(A, 1)]

    council.sent.clear()
    council.run(2)

    assert not council.messages(Retrieve)


def test_what_was_voted_for_by_its_descriptor_is_known_after_a_power_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two replicas accepted a small batch, and a large one that others store. Of that they had no
    more than the descriptor, in memory; the store had its payload, and nothing of the small one."""
    recover_as_disk_store_does(monkeypatch, tmp_path)
    council = Council()
    small, large = b"small", bytes(5000)
    council.publish(A, 1, small, large, to=(0, 1))
    council.publish(A, 1, small, to=(2, 3))
    council.say(A, (2, 3), Announce(T, 0, 2, [described(large)]))
    # Given a slot that all but one store have accepted,
    for kinds in ((Received, Stored), (Propose,), (Write,)):
        heard = of_kind(*kinds)
        council.deliver(lambda flight, heard=heard: heard(flight) and flight.receiver != 1)  # type: ignore[misc]
    assert {accept.slot for accept in council.messages(Accept, sender=2)} == {1}
    # when the power fails, and neither the leader nor the publisher comes back,
    council.drop()
    council.crash(0)
    for replica in (1, 2, 3):
        council.reboot(replica)
    council.run(10)

    # then the others can go on.
    council.publish(B, 1)
    council.run(10)
    assert council.log(1) == [small, large, payload_of(B, 1)]


def test_a_replica_that_answers_last_and_with_rubbish_does_not_keep_a_line_from_another() -> None:
    """`Retrieval.on_retrieved` keeps the last offer for a span and looks at it with the next tick:
    who answers last decides, and the offer of a correct replica is overwritten unseen."""
    council = Council(byzantine=(3,))
    council.publish(A, 1, to=(0, 1))
    chain = chain_of(CHAIN_START, [described(payload_of(A, 1))])[-1]
    council.say(3, [0], Received(A, T, 0, 1, chain))

    for _ in range(100):
        council.now_us += council.pace.tick_us
        council.tick()
        # One leader is as good as another here.
        council.settle(lambda flight: not isinstance(flight.message, Stop))
        council.say(3, [2], Retrieved(A, T, 0, 1, [described(b"other")], [event(b"rubbish")]))

    assert council.group(2).consensus.slot == 2


# What a peer sends raises nothing


def test_a_signed_state_that_is_nested_without_end_is_refused() -> None:
    """`LeaderChange._checked` catches MsgspecError alone; fields that a later version might add are
    skipped, and skipping what is nested raises RecursionError (as `codec._MALFORMED` knows)."""
    council = Council(byzantine=(3,))
    state = msgspec.msgpack.encode(State(council.number, 2, 1, [Promised(1, 0, b"", {})]))
    nested = b"\x95" + state[1:] + b"\x91" * 100_000 + b"\xc0"

    signature = SimSigner(3).sign(nested)
    council.say(3, [1], StopData(council.number, 2, nested, signature, []))

    assert [report.kind for report in council.reports(by=1)] == ["bad-state"]


def entries(number: int) -> list[Entries]:
    """So many messages of one batch each, from offset 0 on."""
    line, before, made = Line(A, T, 0), CHAIN_START, []
    for offset in range(number):
        leaves = leaves_of(line, offset + 1, offset, 0, [described(b"x")])
        (after,) = chained(before, leaves)
        made.append(Entries(*line, offset, offset + 1, 0, before, after, [event(b"x")]))
        before = after
    return made


def reading() -> Reading:
    made = Reading(topic(BYZANTINE), Partition(T, 0), 0, Outlook().outbox)
    made.begin(EVERYBODY)
    return made


def test_as_many_early_entries_as_are_kept_can_be_placed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`Reading.on_entries` calls itself for each: 1024 of them are deeper than Python goes."""
    monkeypatch.setattr(reading_module, "FIRST_CREDIT_EVENTS", CREDIT_BATCHES)
    first, *early = entries(CREDIT_BATCHES)
    reader = reading()
    assert reader.lead is not None
    for each in early:
        reader.on_entries(reader.lead, each, EVERYBODY)

    reader.on_entries(reader.lead, first, EVERYBODY)

    assert reader.received == CREDIT_BATCHES


def test_an_answer_to_retrieve_can_be_decoded_however_much_a_publisher_handed_in() -> None:
    """`Waiting.extend` looks at the room before it takes a run, so that nearly twice
    WAITING_BATCHES_MAX may wait; `Retrieval.on_retrieve` sends more digests than a message may
    have, and the receiver blames the correct replica that sent them."""
    council = Council()
    council.publish(A, 1, *[b"x"] * 4095, to=[0])
    council.publish(A, 4096, *[b"x"] * 4096, to=[0])

    council.say(1, [0], Retrieve(A, T, 0, 1, 8191))

    for answer in council.messages(Retrieved, sender=0):
        assert codec.decode(memoryview(codec.encode(answer))[codec.LENGTH.size :])


def test_a_peer_that_asks_for_no_payloads_gets_none() -> None:
    """`filling.answer` looks at the first of none: IndexError."""
    council = Council()
    council.publish(A, 1)
    council.settle()

    council.say(3, [0], Fill(T, 0, 0, 0, True))

    assert council.group(0).consensus.slot == 2


@pytest.mark.parametrize("field", ["time_us", "first"])
def test_entries_with_numbers_that_no_leaf_can_have_are_refused(field: str) -> None:
    """`time_us` of Entries is any integer of msgpack, up to 2^64 - 1, and `first` plus the place of
    a batch may leave 64 bits: `leaves_of` raises struct.error, in readers and in `Filling`."""
    reader = reading()
    assert reader.lead is not None
    (honest,) = entries(1)
    false = msgspec.structs.replace(
        honest, payloads=[event(b"x"), event(b"y")], **{field: 2**64 - 1}
    )

    try:
        received = codec.decode(memoryview(codec.encode(false))[codec.LENGTH.size :])
    except RemoteProtocolError:
        return
    assert isinstance(received, Entries)
    reader.on_entries(reader.lead, received, EVERYBODY)
    assert reader.received == 0


# Bounds


def test_a_reader_takes_no_more_than_it_allowed() -> None:
    """`Reading.on_entries` does not look at its limit: a lead that makes up batches beyond the end
    is contradicted by nobody, and fills the reader's memory."""
    reader = reading()
    assert reader.lead is not None

    for each in entries(FIRST_CREDIT_EVENTS + 100):
        reader.on_entries(reader.lead, each, EVERYBODY)

    assert reader.received == FIRST_CREDIT_EVENTS


def test_a_replica_that_makes_up_decisions_fills_no_memory() -> None:
    """`CatchingUp.on_decision` counts one word of each replica, but keeps the values of all."""
    council = Council(byzantine=(3,))
    for number in range(1000):
        council.say(3, [1], Decision(council.number, 5, b"%d" % number, b""))

    kept = council.group(1).catching_up.said
    assert sum(map(len, kept.values())) <= len(council.members)


def test_a_replica_that_makes_up_sessions_of_clients_fills_no_memory() -> None:
    """`Backlog.line_heard_of` makes a line of whatever a replica speaks of. Sessions of a client
    are without number, and `log.LINES_PER_MEMBER_MAX` is used nowhere."""
    council = Council(byzantine=(3,))
    for session in range(5000):
        made_up = node_of(A, session)
        council.say(3, [1], Received(made_up, T, 0, 1, bytes(32)))

    assert len(council.group(1).backlog.lines) <= 4096


# False accusations


def test_nobody_accuses_a_replica_that_restarted() -> None:
    """A replica that voted in regency 2 and restarted is not synchronised, and `repeat` sends its
    state of regency 2 with votes of regency 2, which its leader takes for a lie."""
    council = Council()
    council.crash(0)
    council.publish(A, 1)
    council.run(1.5)
    council.publish(A, 2)
    council.deliver(of_kind(Received))
    council.deliver(of_kind(Propose))
    council.drop()

    council.reboot(2)
    council.run(1.5)

    assert council.group(2).consensus.regency == 2
    assert council.reports() == []


def test_a_replica_reads_out_what_was_decided_and_not_what_else_the_publisher_gave_it() -> None:
    """A publisher gives one replica another batch than the others. What that replica has on disk
    under this number is not what was decided, but neither SimStore nor DiskStore compares digests:
    it reads out the wrong payload, and readers blame it. It should say that it has none."""
    council = Council(byzantine=(0,))
    right, wrong = bytes(5000), b"x" * 5000
    council.publish(A, 1, right, to=(1, 2))
    # It is no store of this partition, and will not be given the right one later.
    council.publish(A, 1, wrong, to=[3])
    value = value_of(span_of(A, 1, right))
    content = value_digest(value)
    council.say(0, (1, 2), Propose(council.number, 1, 1, value))
    council.say(0, (1, 2), Write(council.number, 1, 1, content))
    council.say(0, (1, 2), Accept(council.number, 1, 1, content))
    council.settle(lambda flight: flight.receiver != 3)

    council.run(3, lambda flight: not isinstance(flight.message, Retrieved))

    assert council.group(3).consensus.slot == 2
    assert council.log(1) == [right]
    assert council.log(3) in ([], [right])


def test_an_entry_names_those_who_vouched_for_it() -> None:
    """`Reading._take` writes down its vouchers before anybody has vouched: whoever said anything
    about the chain so far, be it something else, and nobody if nothing was said yet."""
    look = Outlook()
    reader = Reading(topic(BYZANTINE), Partition(T, 0), 0, look.outbox)
    reader.begin(EVERYBODY)
    assert reader.lead is not None
    denying, agreeing, _ = sorted(EVERYBODY - {reader.lead})
    first, second = entries(2)
    reader.on_chained(denying, Chained(T, 0, 1, bytes(32), 0, 0, 1), EVERYBODY)
    reader.on_entries(reader.lead, first, EVERYBODY)
    reader.on_chained(agreeing, Chained(T, 0, 1, second.before, 0, 0, 1), EVERYBODY)

    (entry,) = [outcome for outcome in look.take().deliver if isinstance(outcome, Entry)]

    assert entry.vouchers == (reader.lead, agreeing)


def test_a_payload_on_disk_is_kept_though_the_batch_before_it_was_not_on_disk() -> None:
    """Seed 497 of crash-ordering: a large batch is on disk at once, a small one only with a vote.
    After a restart in between, the large one had no place in its line; once decided it counted as
    lacking, and the last copy of it was given up."""
    council = Council()
    large = bytes(5000)
    council.publish(A, 1, b"small", large, to=[0])
    council.seats[0].disk.sync()
    council.reboot(0)

    council.say(A, [0], Announce(T, 0, 1, [described(b"small"), described(large)]))

    assert council.group(0).backlog.line(Line(A, T, 0)).payloads == [None, event(large)]


def test_a_replica_that_decided_a_batch_still_vouches_for_it() -> None:
    """Seed 281 of validated: 2f + 1 replicas received a batch, two of them decided it, and one of
    those died. The other one vouched no more, since for it the batch was done. So the last replica
    never found it authentic. With the leader, which had restarted and so forgotten who else
    received it, it stayed in that slot until something else came."""
    council, is_accept = Council(), of_kind(Accept)
    council.publish(A, 1, to=(0, 1, 3))
    council.settle(lambda f: f.receiver in (1, 3) or (f.receiver == 0 and not is_accept(f)))
    assert [council.group(replica).consensus.slot for replica in council.seats] == [1, 2, 1, 2]
    council.crash(1)
    council.reboot(0)

    council.run(60)

    assert [council.log(replica) for replica in council.seats] == 3 * [[payload_of(A, 1)]]
