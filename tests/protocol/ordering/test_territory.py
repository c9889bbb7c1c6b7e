"""What a group decides takes effect in its own partitions only, whatever path a value arrives on.

Replicas 0 to 3 order topic `t`, which tolerates liars, and 0 to 2 order topic `c`, which tolerates
crashes. Replica 0 lies, and the group of `c` believes any single voice.
"""

from dataclasses import dataclass

import msgspec
import pytest

from council import WALL_US, A, B, Council, T, payload_of, records
from quorate.core.contract import Contract
from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.header import DESCRIPTOR_BYTES, plain_bytes_of
from quorate.core.ids import NodeId, topic_id
from quorate.core.messages import Message
from quorate.core.ordering import (
    Append,
    Cosign,
    Decision,
    Line,
    OfferSnapshot,
    Partition,
    Promised,
    Propose,
    Signed,
    SnapshotPart,
    State,
    Sync,
)
from quorate.crypto.checkpoint import Cosignature, Head, cosigned_bytes, render
from quorate.protocol.ordering import catching_up, group
from quorate.protocol.ordering.group import Group
from quorate.protocol.ordering.log import Content, LogState, PartitionState
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.records import Decided, Installed, Snapshot, Voted
from quorate.protocol.ordering.territory import SLOT_BATCHES_MAX, TOO_MUCH
from quorate.protocol.ordering.transfer import state_line
from quorate.protocol.ordering.value import (
    CHAIN_START,
    SPAN_BATCHES_MAX,
    Span,
    Value,
    chain_of,
    value_digest,
)
from quorate.protocol.topic import Topic
from quorate.sim.order_stage import SimNotary, SimSigner, cosigner_of
from stage import described, framed

C = topic_id("c")
LIAR = 0
OWN, FOREIGN = Partition(C, 0), Partition(T, 0)
ELSEWHERE = {
    "a Byzantine topic": FOREIGN,
    "the control log": Partition(CONTROL_TOPIC_ID, 0),
    "a topic that does not exist": Partition(12345, 7),
    "a partition that does not exist": Partition(C, 7),
}
CRASH_CONTRACT = Contract.parse("c", {"protection": "crash", "order": "total"})


@dataclass
class TwoGroups(Council):
    """The replicas of a Byzantine topic and of one that tolerates crashes only."""

    def _topics(self) -> list[Topic]:
        return [self.topic, Topic("c", CRASH_CONTRACT, self.members[:3], 1)]

    def crash_group(self, replica: NodeId) -> Group:
        return self.seats[replica].ordering.groups[GroupKind.CRASH]

    def publish_on(self, topic: int, publisher: NodeId, sequence: int) -> None:
        for replica in self.seats:
            append = Append(topic, 0, sequence, [framed(payload_of(publisher, sequence))])
            self.step(publisher, replica, append)
        self.collect()
        self.run(0.5)

    def bounds(self, replica: NodeId, partition: Partition) -> tuple[int, int]:
        return self.seats[replica].store.bounds(partition)

    def crash_records(self, replica: NodeId) -> list[Decided | Installed]:
        turns = [turn for turn in self.turns if turn.replica == replica]
        found: list[Decided | Installed] = [*records(turns, Decided)]
        found += records(turns, Installed)
        return [record for record in found if record.group == GroupKind.CRASH]


def span_on(partition: Partition, count: int = 1, publisher: NodeId = A) -> Span:
    chain = chain_of(CHAIN_START, [described(b"%d" % at) for at in range(count)])[-1]
    return Span(publisher, *partition, 1, count, chain)


def value_on(*spans: Span) -> bytes:
    return Value(WALL_US, spans).encode()


def decision_of(value: bytes, slot: int = 1) -> Decision:
    spans = Value.decode(value).spans
    contents = b"".join(described(b"%d" % at) for span in spans for at in range(span.batches))
    return Decision(int(GroupKind.CRASH), slot, value, contents)


def goes_on(council: TwoGroups) -> None:
    """Whatever was said, honest batches are decided in both groups, at every replica."""
    council.publish_on(T, A, 1)
    council.run(20)
    assert {council.bounds(each, FOREIGN) for each in (1, 2, 3)} == {(0, 1)}
    assert not any(
        group.stopped for seat in council.seats.values() for group in seat.ordering.groups.values()
    )


@pytest.mark.parametrize("partition", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_decision_that_names_a_partition_of_others_is_not_carried_out(
    partition: Partition,
) -> None:
    council = TwoGroups(byzantine=(LIAR,))

    council.say(LIAR, (1, 2), decision_of(value_on(span_on(partition))))

    assert council.crash_records(1) == []
    assert council.bounds(1, partition) == (0, 0)
    goes_on(council)


def test_who_says_that_a_group_decided_something_for_another_one_is_reported() -> None:
    council = TwoGroups(byzantine=(LIAR,))

    council.say(LIAR, (1,), decision_of(value_on(span_on(FOREIGN))))

    assert {(each.node, each.kind) for each in council.reports(1)} == {(LIAR, "bad-decision")}


@pytest.mark.parametrize("partition", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_slot_that_was_bound_to_partitions_of_others_is_not_voted_for(
    partition: Partition,
) -> None:
    """Where nobody lies, one signed state binds a slot."""
    council = TwoGroups(byzantine=(LIAR,))
    value = value_on(span_on(partition))
    said = Promised(1, 1, value_digest(value), {})
    states = []
    for replica, promised in (
        (0, said),
        (1, Promised(1, 0, b"", {})),
        (2, Promised(1, 0, b"", {})),
    ):
        state = msgspec.msgpack.encode(State(int(GroupKind.CRASH), 4, 1, [promised]))
        states.append(Signed(replica, state, SimSigner(replica).sign(state)))

    # Regency 4 is the liar's.
    council.say(LIAR, (1, 2), Sync(int(GroupKind.CRASH), 4, states, [value]))
    council.say(LIAR, (1, 2), Propose(int(GroupKind.CRASH), 4, 1, value))
    council.say(LIAR, (1, 2), decision_of(value))
    council.settle()

    assert council.crash_records(1) == []
    assert [
        v for v in records(council.turns, Voted) if v.group == GroupKind.CRASH and v.values
    ] == []
    goes_on(council)


def certified_state(council: TwoGroups, state: LogState) -> list[Message]:
    """What the liar offers: a state that it and another member signed."""
    encoded = msgspec.msgpack.encode(state)
    head = Head("simulated", 1, bytes(32), (state_line(state.slot, encoded),))
    members = (0, 1, 2)
    data = cosigned_bytes(head, 0)
    signed = [Cosignature(f"r{by}", 0, SimNotary(by, members).sign_note(data)) for by in (0, 2)]
    text = render(head, signed, [cosigner_of(each, 0) for each in members])
    group = int(GroupKind.CRASH)
    return [OfferSnapshot(group, state.slot, text), SnapshotPart(group, state.slot, 0, encoded)]


@pytest.mark.parametrize("partition", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_state_that_names_partitions_of_others_is_not_installed(partition: Partition) -> None:
    council = TwoGroups(byzantine=(LIAR,), signs=True)
    state = LogState(slot=9, size=1, edge=[bytes(32)], partitions={partition: PartitionState(1)})

    for message in certified_state(council, state):
        council.say(LIAR, (1,), message)

    assert council.crash_records(1) == []
    assert council.bounds(1, partition) == (0, 0)
    council.flying.clear()
    goes_on(council)


def test_a_state_of_its_own_partitions_is_installed() -> None:
    council = TwoGroups(byzantine=(LIAR,), signs=True)
    state = LogState(slot=9, size=1, edge=[bytes(32)], partitions={OWN: PartitionState(1)})

    for message in certified_state(council, state):
        council.say(LIAR, (1,), message)

    assert [type(each) for each in council.crash_records(1)] == [Installed]


def test_a_topic_that_is_not_known_yet_is_waited_for() -> None:
    council = TwoGroups(byzantine=(LIAR,))
    ordering, late = council.seats[1].ordering, topic_id("late")
    decision = decision_of(value_on(span_on(Partition(late, 0))))
    council.say(LIAR, (1,), decision)
    assert council.crash_records(1) == []

    ordering.topics[late] = Topic("late", CRASH_CONTRACT, council.members[:3], 1)
    council.say(LIAR, (1,), decision)

    assert len(council.crash_records(1)) == 1
    assert council.reports(1) == []


def test_a_word_that_cannot_be_applied_does_not_stand_in_the_way_of_another() -> None:
    council = TwoGroups(byzantine=(LIAR,))

    council.say(LIAR, (1,), decision_of(value_on(span_on(Partition(12345, 7)))))
    council.say(2, (1,), decision_of(value_on(span_on(OWN))))

    assert council.bounds(1, OWN) == (0, 1)


# Limits of a slot (A20)


def test_a_slot_beyond_its_limits_is_refused_on_a_decision_and_reported() -> None:
    council = TwoGroups(byzantine=(LIAR,))
    spans = [span_on(OWN, SPAN_BATCHES_MAX, A), span_on(OWN, 1, B)]

    council.say(LIAR, (1,), decision_of(value_on(*spans)))

    assert council.crash_records(1) == []
    assert [each.kind for each in council.reports(1)] == ["bad-decision"]


def test_a_decision_with_more_or_fewer_descriptors_than_batches_is_refused() -> None:
    council = TwoGroups(byzantine=(LIAR,))
    sound = decision_of(value_on(span_on(OWN)))

    council.say(LIAR, (1,), msgspec.structs.replace(sound, descriptors=sound.descriptors * 1000))

    assert council.crash_records(1) == []
    assert [each.kind for each in council.reports(1)] == ["bad-decision"]


def test_a_slot_of_more_bytes_than_one_orders_is_refused_on_a_decision_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    council = TwoGroups(byzantine=(LIAR,))
    decision = decision_of(value_on(span_on(OWN, 3)))
    size = plain_bytes_of([decision.descriptors[:DESCRIPTOR_BYTES]])[0]

    monkeypatch.setattr(catching_up, "SLOT_BYTES_MAX", 3 * size - 1)
    council.say(LIAR, (1,), decision)
    assert council.crash_records(1) == []
    assert [each.kind for each in council.reports(1)] == ["bad-decision"]

    monkeypatch.setattr(catching_up, "SLOT_BYTES_MAX", 3 * size)
    council.say(LIAR, (1,), decision)
    assert council.bounds(1, OWN) == (0, 3)


def test_what_was_decided_with_more_bytes_than_a_slot_orders_stops_that_group_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group, "SLOT_BYTES_MAX", 1)
    council = TwoGroups(byzantine=(LIAR,))

    council.say(LIAR, (1,), decision_of(value_on(span_on(OWN, 3))))

    assert council.crash_records(1) == []
    assert TOO_MUCH in council.crash_group(1).stopped
    assert not council.seats[1].ordering.groups[GroupKind.BYZANTINE].stopped


def test_the_largest_slot_that_may_be_is_taken_from_a_decision() -> None:
    council = TwoGroups(byzantine=(LIAR,))

    council.say(LIAR, (1,), decision_of(value_on(span_on(OWN, SLOT_BATCHES_MAX))))

    assert council.bounds(1, OWN) == (0, SLOT_BATCHES_MAX)


# What a quorum decided, and what goes wrong on the way


def test_what_a_correct_replica_decided_and_cannot_be_applied_stops_that_group_only() -> None:
    council = TwoGroups(byzantine=(LIAR,))
    decision = decision_of(value_on(span_on(FOREIGN)))

    council.say(LIAR, (1,), decision)
    council.say(2, (1,), decision)

    assert "topic" in council.crash_group(1).stopped
    assert council.crash_records(1) == []
    council.publish_on(T, A, 1)
    council.run(20)
    assert {council.bounds(each, FOREIGN) for each in (1, 2, 3)} == {(0, 1)}


def test_a_group_that_stopped_is_silent_and_tries_again_after_a_restart() -> None:
    council = TwoGroups()
    council.crash_group(1).stop("a test says so")
    council.publish_on(C, A, 1)

    assert council.bounds(1, OWN) == (0, 0)
    assert council.bounds(2, OWN) == (0, 1)
    council.reboot(1)
    council.run(5)
    assert council.bounds(1, OWN) == (0, 1)


def test_an_error_in_the_middle_of_a_decision_stops_the_group_and_no_slot_is_applied_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    council = TwoGroups(byzantine=(LIAR,))
    group = council.crash_group(1)
    decision = decision_of(value_on(span_on(OWN)))

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(group, "_carry_out", fail)
    with pytest.raises(RuntimeError):
        council.say(LIAR, (1,), decision)
    monkeypatch.undo()
    council.say(LIAR, (1,), decision)

    assert "a mistake of ours" in group.stopped
    assert len(council.crash_records(1)) == 1


def test_a_replica_starts_with_a_record_of_before_that_names_partitions_of_others() -> None:
    council = TwoGroups()
    log = Council(table={"protection": "crash", "order": "total"}).group(1).log
    value = value_on(span_on(FOREIGN))
    decided = log.apply(
        1, value_digest(value), value, Value.decode(value), [Content([described(b"0")], [])]
    )
    council.seats[1].disk.append([decided])
    council.seats[1].disk.sync()

    council.reboot(1)

    assert council.crash_group(1).log.state.slot == 0
    assert "topic" in council.crash_group(1).stopped
    assert [each.kind for each in council.reports(1)] == ["stopped"]
    council.publish_on(T, A, 1)
    assert {council.bounds(each, FOREIGN) for each in (1, 2, 3)} == {(0, 1)}


# One head of each size (N1)


def signed_by(council: TwoGroups, replica: NodeId) -> dict[int, set[bytes]]:
    """The signatures of one replica on heads of the log of `c`, by size."""
    found: dict[int, set[bytes]] = {}
    for flight in council.sent:
        cosign = flight.message
        if not isinstance(cosign, Cosign) or flight.sender != replica:
            continue
        if cosign.group == GroupKind.CRASH:
            found.setdefault(cosign.size, set()).add(cosign.signature)
    return found


def told(council: TwoGroups, replica: NodeId, publisher: NodeId, slots: range, each: int) -> None:
    """The liar tells one replica how these slots were decided: with so many batches each."""
    for slot in slots:
        ours = council.crash_group(replica).log.line(Line(publisher, *OWN))
        contents = [described(b"%d %d %d" % (publisher, slot, at)) for at in range(each)]
        span = Span(publisher, *OWN, ours.next, each, chain_of(ours.chain, contents)[-1])
        value = Value(WALL_US + slot * 60_000, (span,)).encode()
        decision = Decision(int(GroupKind.CRASH), slot, value, b"".join(contents))
        council.say(LIAR, (replica,), decision)
        council.flying.clear()


def start_over_with_what_two_was_told(council: TwoGroups) -> None:
    """Replica 1 is given the state of 2, which has fewer batches, and is behind what 1 signed."""
    told(council, 2, B, range(1, 9), 1)
    told(council, 1, A, range(1, 8), 2)
    (snapshot,) = [
        each
        for each in records(council.turns, Snapshot)
        if each.group == GroupKind.CRASH and each.slot == 8
    ]
    tree, members = council.crash_group(2).log.tree, (0, 1, 2)
    head = Head("simulated", tree.size, tree.root(), (state_line(8, snapshot.state),))
    data = cosigned_bytes(head, 0)
    signed = [Cosignature(f"r{by}", 0, SimNotary(by, members).sign_note(data)) for by in (0, 2)]
    text = render(head, signed, [cosigner_of(each, 0) for each in members])
    group = int(GroupKind.CRASH)
    council.say(LIAR, (1,), OfferSnapshot(group, 8, text))
    council.say(LIAR, (1,), SnapshotPart(group, 8, 0, snapshot.state))
    council.flying.clear()
    assert council.crash_group(1).log.tree.size == 8


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "restarts"])
def test_a_replica_that_started_over_signs_no_second_head_of_a_size(restarts: bool) -> None:
    council = TwoGroups(byzantine=(LIAR,), signs=True, snapshot_every=4)
    start_over_with_what_two_was_told(council)
    before = signed_by(council, 1)
    if restarts:
        told(council, 1, B, range(9, 13), 1)
        # A snapshot is on disk that is later than the state it started over with.
        council.seats[1].disk.sync()
        council.reboot(1)

    told(council, 1, B, range(13 if restarts else 9, 20), 1)

    after = signed_by(council, 1)
    assert (max(before), max(after)) == (14, 19)
    assert all(len(signatures) == 1 for size, signatures in after.items() if size <= 14)


@pytest.mark.parametrize("time_us", [-(2**63), 2**63 - 1])
def test_a_time_that_cannot_be_harms_no_other_group_also_not_after_a_restart(time_us: int) -> None:
    council = TwoGroups(byzantine=(LIAR,), signs=True, snapshot_every=1)
    value = Value(time_us, (span_on(OWN),)).encode()

    council.say(LIAR, (1,), decision_of(value))
    council.seats[1].disk.sync()
    council.reboot(1)

    goes_on(council)
