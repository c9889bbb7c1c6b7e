"""FIT-Broker (Antunes 2013), the ordered part, statement by statement (F7 to F10).

Each test names the section, figure or algorithm that it plays. The thesis calls WEAK what is WRITE
here, STRONG what is ACCEPT, and an execution what is a slot. Where we do otherwise, and why, the
test says.
"""

from collections.abc import Callable
from itertools import combinations

import pytest

from council import BYZANTINE, CRASH, A, B, Council, Flight, T, payload_of, span_of, value_of
from quorate.core.contract import Contract
from quorate.core.ordering import (
    Accept,
    Decision,
    Line,
    Ordered,
    Promised,
    Propose,
    Received,
    Standing,
    State,
    Stop,
    StopData,
    Sync,
    Write,
)
from quorate.core.quorum import Quorum
from quorate.protocol.ordering.records import Snapshot
from quorate.protocol.ordering.rules import FREE, Byzantine, Crash, Unsynchronised, leader_of
from quorate.protocol.ordering.value import Value, value_digest
from stage import described, opened

BOTH = pytest.mark.parametrize("table", [CRASH, BYZANTINE], ids=["crash", "byzantine"])


def of_kind(*kinds: type) -> Callable[[Flight], bool]:
    return lambda flight: isinstance(flight.message, kinds)


def between(*replicas: int) -> Callable[[Flight], bool]:
    return lambda flight: {flight.sender, flight.receiver} <= {*replicas}


def slots(council: Council) -> list[int]:
    return [council.group(replica).consensus.slot for replica in council.seats]


def regencies(council: Council) -> set[int]:
    return {council.group(replica).consensus.regency for replica in council.seats}


def logs(council: Council) -> set[tuple[bytes, ...]]:
    return {tuple(council.log(replica)) for replica in council.seats}


# F7: Byzantine total order (4.4.2, figure 4.8)


@pytest.mark.parametrize("f", [1, 2, 3])
def test_byzantine_order_takes_3f_plus_1_replicas_and_crash_order_2f_plus_1(f: int) -> None:
    """4.4.2."""
    assert Contract.parse("t", BYZANTINE).replicas(f) == 3 * f + 1
    assert Contract.parse("t", CRASH).replicas(f) == 2 * f + 1


def test_the_leader_proposes_an_order_to_all_replicas() -> None:
    """4.4.2, Propose."""
    council = Council()
    council.publish(A, 1)
    council.deliver(of_kind(Received))
    proposals = [flight for flight in council.sent if isinstance(flight.message, Propose)]
    assert {flight.sender for flight in proposals} == {0}
    assert [flight.receiver for flight in proposals] == [1, 2, 3]


def test_each_replica_confirms_the_proposal_to_all() -> None:
    """4.4.2, Weak: each replica broadcasts WEAK when it has the PROPOSE."""
    council = Council()
    council.publish(A, 1)
    council.deliver(of_kind(Received))
    council.deliver(of_kind(Propose))
    for replica in range(4):
        receivers = [
            flight.receiver
            for flight in council.sent
            if isinstance(flight.message, Write) and flight.sender == replica
        ]
        assert receivers == [other for other in range(4) if other != replica]


@pytest.mark.parametrize(("f", "quorum"), [(1, 3), (2, 5)])
def test_a_replica_says_strong_after_more_than_half_of_n_plus_f_weaks(f: int, quorum: int) -> None:
    """4.4.2, Weak: after (n + f) / 2 of them. More than that, so that two quorums always have a
    correct replica in common."""
    council = Council(f=f)
    council.publish(A, 1)
    council.deliver(of_kind(Received))
    council.deliver(of_kind(Propose))
    last = council.members[-1]
    for heard in range(1, quorum):
        assert not council.messages(Accept, sender=last)
        council.deliver(
            lambda flight, sender=heard - 1: (
                isinstance(flight.message, Write)  # type: ignore[misc]
                and (flight.sender, flight.receiver) == (sender, last)
            )
        )
    assert council.messages(Accept, sender=last)
    assert 2 * quorum > len(council.members) + f


def test_an_order_is_accepted_after_a_quorum_of_strongs() -> None:
    """4.4.2, Strong, says f + 1 STRONG messages. One of these may be of a faulty replica, and f
    correct ones do not meet every quorum that a later leader asks: it could have another order
    decided. So we wait for a quorum here as well."""
    council = Council()
    council.publish(A, 1)
    council.deliver(of_kind(Received))
    council.deliver(of_kind(Propose))
    council.deliver(of_kind(Write))
    council.deliver(lambda f: isinstance(f.message, Accept) and (f.sender, f.receiver) == (0, 1))
    # Its own is the second: f + 1, and not yet decided.
    assert slots(council)[1] == 1
    council.deliver(lambda f: isinstance(f.message, Accept) and (f.sender, f.receiver) == (2, 1))
    assert slots(council)[1] == 2


def test_f_plus_1_strongs_could_be_followed_by_another_order() -> None:
    """The same in numbers: the f correct replicas among f + 1 may all be missing among n - f."""
    n, f = 4, 1
    group = range(n)
    byzantine = 3
    decided = {0, byzantine}
    heard = [set(states) for states in combinations(group, n - f)]
    assert any(not (decided - {byzantine}) & states for states in heard)
    quorum = Quorum(n, f).intersecting
    for decided in map(set, combinations(group, quorum)):
        assert all(decided & states - {byzantine} for states in heard)


def test_executions_follow_one_another() -> None:
    """4.4.2: each execution has its number, and orders what the leader proposes in it."""
    council = Council()
    for number in (1, 2, 3):
        council.publish(A, number)
        council.settle()
    assert {propose.slot for propose in council.messages(Propose)} == {1, 2, 3}
    assert logs(council) == {(b"a1", b"a2", b"a3")}


def test_a_lying_replica_changes_nothing() -> None:
    """5.2 measures a replica that lies about the outcome of operations."""
    council = Council(byzantine=(3,))
    council.publish(A, 1)
    false = value_digest(value_of(span_of(A, 1, b"something else")))
    council.say(3, (0, 1, 2), Write(council.number, 1, 1, false))
    council.say(3, (0, 1, 2), Accept(council.number, 1, 1, false))
    council.settle()
    assert logs(council) == {(b"a1",)}


# F8: crash total order (4.4.2, figure 4.9, appendix A)


def test_crash_order_has_two_phases() -> None:
    """Figure 4.9: PROPOSE, then STRONG from each replica that has it."""
    council = Council(CRASH)
    council.publish(A, 1)
    council.deliver(of_kind(Propose))
    assert council.messages(Write) == []
    assert {f.sender for f in council.sent if isinstance(f.message, Accept)} == {0, 1, 2}


@pytest.mark.parametrize("f", [1, 2])
def test_crash_order_accepts_after_f_plus_1_strongs(f: int) -> None:
    """4.4.2 and algorithm 6, line 17: of 2f + 1 replicas, f + 1 are a majority."""
    assert Crash(Quorum(2 * f + 1, f)).quorum == f + 1
    council = Council(CRASH, f)
    council.publish(A, 1)
    council.settle(between(*range(f + 1)))
    assert slots(council) == [2] * (f + 1) + [1] * f


def test_with_fewer_than_f_plus_1_nothing_is_accepted() -> None:
    """Algorithm 6, line 17."""
    council = Council(CRASH, 2)
    council.publish(A, 1)
    council.settle(between(0, 1))
    assert slots(council) == [1] * 5


@BOTH
def test_requests_are_numbered_and_taken_without_gaps(table: dict[str, object]) -> None:
    """Algorithm 6, line 26: lastSeq[c] + 1 = r.seq."""
    council = Council(table)
    council.publish(A, 2)
    council.settle()
    assert logs(council) == {()}
    council.publish(A, 1)
    council.publish(A, 2)
    council.settle()
    assert logs(council) == {(b"a1", b"a2")}
    council.publish(A, 1)
    council.settle()
    assert logs(council) == {(b"a1", b"a2")}


@BOTH
def test_a_batch_of_requests_is_fair(table: dict[str, object]) -> None:
    """Algorithm 6, line 5: fair(X)."""
    council = Council(table)
    council.publish(A, 1)
    council.deliver(of_kind(Received))
    council.publish(A, 2, *[b"x"] * 50)
    council.publish(B, 1)
    council.settle()
    _, second, *_ = council.seats[0].store.decided(council.number, 1, 1 << 30)
    assert {span.publisher for span in Value.decode(second.value).spans} == {A, B}


@BOTH
def test_every_replica_replies_to_the_client(table: dict[str, object]) -> None:
    """Algorithm 6, line 23: the reply is the position."""
    council = Council(table)
    council.publish(A, 1)
    council.settle()
    replies = [f for f in council.sent if isinstance(f.message, Ordered) and f.receiver == A]
    assert sorted(flight.sender for flight in replies) == list(council.members)
    assert len({flight.message for flight in replies}) == 1


# F9: leader election (4.4.3, figures 4.10 and 4.11, appendix B)


@BOTH
def test_a_leader_that_does_not_order_a_request_in_time_is_left(table: dict[str, object]) -> None:
    """4.4.3: the timeout of a request is triggered, and the replica broadcasts STOP."""
    council = Council(table)
    council.crash(0)
    council.publish(A, 1)
    council.run(3)
    assert council.messages(Stop)
    assert regencies(council) == {2}
    assert logs(council) == {(b"a1",)}


def test_the_next_leader_follows_from_the_regency() -> None:
    """Algorithm 7, line 9: leader = regency mod n. A deterministic operation: nobody votes."""
    assert [leader_of((0, 1, 2), regency) for regency in range(1, 7)] == [0, 1, 2, 0, 1, 2]


@BOTH
def test_a_leader_that_fails_in_its_turn_is_passed_over(table: dict[str, object]) -> None:
    """4.4.3: leaders may crash, one after the other."""
    council = Council(table, 2)
    for replica in (0, 1):
        council.crash(replica)
    council.publish(A, 1)
    council.run(10)
    assert logs(council) == {(b"a1",)}
    assert {council.group(r).consensus.leader for r in council.seats} == {2}


@BOTH
def test_replicas_are_synchronised_before_the_new_leader_proposes(
    table: dict[str, object],
) -> None:
    """4.4.3, figure 4.10: the synchronisation phase. Figure 4.11 has none for crashes; we do."""
    council = Council(table)
    council.crash(0)
    council.publish(A, 1)
    council.run(3)
    kinds = [
        type(flight.message)
        for flight in council.sent
        if isinstance(flight.message, Stop | StopData | Sync | Propose)
    ]
    order = [kinds.index(kind) for kind in (Stop, StopData, Sync, Propose)]
    assert order == sorted(order)


@BOTH
def test_an_order_that_one_replica_accepted_survives_its_leader(table: dict[str, object]) -> None:
    """4.4.3: some replicas may be in a previous execution."""
    council = Council(table)
    council.publish(A, 1)
    council.deliver(of_kind(Received))
    council.deliver(of_kind(Propose))
    council.deliver(of_kind(Write))
    council.deliver(lambda flight: isinstance(flight.message, Accept) and flight.receiver == 1)
    assert slots(council)[1] == 2
    council.drop()
    council.crash(0)

    council.publish(B, 1)
    council.run(5)

    assert logs(council) == {(b"a1", b"b1")}


def test_an_election_that_only_counts_loses_an_order() -> None:
    """Appendix B: the next leader proposes what it likes, whatever was accepted before. Here it is
    bound to that. `Unsynchronised` keeps the former, and the campaign of `tests/sim` catches it."""
    group = Quorum(3, 1)
    accepted = State(0, 2, 1, [Promised(1, 1, b"a", {})])
    fresh = State(0, 2, 1, [Promised(1, 0, b"", {})])
    assert Unsynchronised(group).resolve(1, [accepted, fresh]) is FREE
    assert Crash(group).resolve(1, [accepted, fresh]) == b"a"


def test_one_stop_is_not_enough() -> None:
    """Algorithm 7, line 4, changes the leader on a single STOP. A faulty replica could do that all
    day: f + 1 make others join, and n - f end a regency."""
    council = Council(byzantine=(3,))
    for regency in range(2, 20):
        council.say(3, (0, 1, 2), Stop(council.number, regency))
    council.publish(A, 1)
    council.settle()
    assert regencies(council) == {1}
    assert logs(council) == {(b"a1",)}
    assert Byzantine(Quorum(4, 1)).stops_to_join == 2
    assert Byzantine(Quorum(4, 1)).states_needed == 3


# F10: state transfer, ordered (4.4.4, figures 4.13 and 4.14, appendix C)


def order_without(council: Council, away: int, count: int) -> None:
    for number in range(1, count + 1):
        council.publish(A, number, to=[r for r in council.seats if r != away])
        council.settle(lambda flight: away not in (flight.sender, flight.receiver))


@BOTH
def test_a_replica_that_is_late_is_brought_up_to_date(table: dict[str, object]) -> None:
    """4.4.4, reason 1."""
    council = Council(table)
    last = council.members[-1]
    order_without(council, last, 5)
    assert slots(council)[-1] == 1
    council.run(3)
    assert len(set(slots(council))) == 1


@BOTH
def test_a_replica_sees_from_the_messages_of_others_that_it_is_late(
    table: dict[str, object],
) -> None:
    """Figure 4.13: it receives messages of the ordering protocol, and asks for the state."""
    council = Council(table)
    last = council.members[-1]
    council.now_us = 50_000
    council.tick()
    order_without(council, last, 3)
    council.sent.clear()
    council.say(0, [last], Accept(council.number, 1, 4, bytes(32)))
    asked = [f for f in council.sent if isinstance(f.message, Standing) and f.sender == last]
    assert [flight.receiver for flight in asked] == [0]


@BOTH
def test_a_replica_that_recovered_with_nothing_gets_everything(table: dict[str, object]) -> None:
    """4.4.4, reason 2: a new or recovered replica has joined the system."""
    council = Council(table)
    last = council.members[-1]
    for number in range(1, 4):
        council.publish(A, number)
        council.settle()
    disk = council.seats[last].disk
    council.crash(last)
    disk.wipe()
    council.restart(last, disk)
    assert slots(council)[-1] == 1
    council.run(5)
    assert len(set(slots(council))) == 1
    assert council.group(last).log.tree.root() == council.group(0).log.tree.root()


def test_where_replicas_lie_f_plus_1_must_say_the_same() -> None:
    """Figure 4.14: the state is compared with the hashes of f + 1 replies. Here every reply is a
    digest already: what is ordered, not what it contains."""
    council = Council(byzantine=(3,))
    false = value_of(span_of(A, 1, b"false"))
    for _ in range(3):
        council.say(3, [2], Decision(council.number, 1, false, described(b"false")))
    assert slots(council)[2] == 1
    true = value_of(span_of(A, 1, b"a1"))
    for honest in (0, 1):
        council.say(honest, [2], Decision(council.number, 1, true, described(b"a1")))
    assert slots(council)[2] == 2
    assert council.group(2).log.state.last == value_digest(true)


def test_where_they_only_crash_one_reply_is_enough() -> None:
    """Figure 4.13: the leader replies with the state."""
    council = Council(CRASH)
    value = value_of(span_of(A, 1, b"a1"))
    council.say(0, [2], Decision(council.number, 1, value, described(b"a1")))
    assert slots(council)[2] == 2


@BOTH
def test_requests_that_come_meanwhile_are_kept(table: dict[str, object]) -> None:
    """Figure 4.13: it stores the requests of clients, and processes them then."""
    council = Council(table)
    last = council.members[-1]
    order_without(council, last, 2)
    council.publish(A, 1, to=[last])
    council.publish(A, 2, to=[last])
    council.publish(A, 3)
    kept = council.group(last).backlog.lines[Line(A, T, 0)].payloads
    assert [opened(each or b"") for each in kept] == [b"a1", b"a2", b"a3"]
    council.run(3)
    assert logs(council) == {(b"a1", b"a2", b"a3")}


@BOTH
def test_the_state_is_a_checkpoint_and_the_log_since_then(table: dict[str, object]) -> None:
    """4.4.4: the last checkpoint, and the execution log since it was taken."""
    council = Council(table, snapshot_every=2)
    for number in range(1, 6):
        council.publish(A, number)
        council.settle()
    disk = council.seats[1].disk
    assert [r.slot for r in disk.read() if isinstance(r, Snapshot)] == [2, 4]
    disk.sync()
    found = council.seats[1].store.found()
    assert found.snapshots[council.number].slot == 4

    council.reboot(1)

    assert slots(council)[1] == 6
    assert council.log(1) == [payload_of(A, number) for number in range(1, 6)]
