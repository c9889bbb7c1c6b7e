"""What a leader change rests on beside its rules: signatures, and a patience that adapts."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from council import BYZANTINE, CRASH, A, B, Council, Flight
from quorate.core import codec
from quorate.core.ids import NodeId
from quorate.core.ordering import (
    STATE_BYTES_MAX,
    VALUES_MAX,
    Accept,
    Decision,
    Ordered,
    Promised,
    Propose,
    Received,
    Signed,
    State,
    Stop,
    StopData,
    Sync,
    Write,
)
from quorate.protocol.ordering.pace import PACE
from quorate.protocol.ordering.value import value_digest
from quorate.sim.order_stage import SimSigner

BOTH = pytest.mark.parametrize("table", [CRASH, BYZANTINE], ids=["crash", "byzantine"])
# Who leads regency 2.
LIAR = 1


def state(council: Council) -> bytes:
    """What a replica that has said nothing so far carries into regency 2."""
    fresh = State(council.number, 2, 1, [Promised(1, 0, b"", {})])
    return msgspec.msgpack.encode(fresh)


def sync(council: Council, signers: Iterable[tuple[NodeId, NodeId]]) -> Sync:
    """States in the names of some replicas, each signed by whom the pair says."""
    fresh = state(council)
    states = [Signed(name, fresh, SimSigner(signer).sign(fresh)) for name, signer in signers]
    return Sync(council.number, 2, states, [])


def regencies(council: Council) -> set[int]:
    return {council.group(replica).consensus.regency for replica in council.seats}


def of_kind(*kinds: type) -> Callable[[Flight], bool]:
    return lambda flight: isinstance(flight.message, kinds)


def ask_for(council: Council, regency: int) -> None:
    for replica in council.seats:
        council.group(replica).change._ask(regency)
    council.collect()


# Signatures


def test_a_leader_that_makes_up_the_states_of_others_is_not_followed() -> None:
    council = Council(byzantine=(LIAR,))
    council.say(LIAR, (0, 2, 3), sync(council, [(0, LIAR), (LIAR, LIAR), (2, LIAR)]))
    assert regencies(council) == {1}
    kinds = {(report.node, report.kind) for report in council.reports()}
    assert kinds == {(LIAR, "bad-sync")}


def test_one_state_that_its_replica_did_not_sign_spoils_all() -> None:
    council = Council(byzantine=(LIAR,))
    council.say(LIAR, (0, 2, 3), sync(council, [(0, 0), (LIAR, LIAR), (2, 2), (3, LIAR)]))
    assert regencies(council) == {1}


def test_states_that_their_replicas_signed_are_followed() -> None:
    council = Council(byzantine=(LIAR,))
    council.say(LIAR, (0, 2, 3), sync(council, [(0, 0), (LIAR, LIAR), (2, 2)]))
    assert regencies(council) == {2}
    assert council.reports() == []


def test_a_state_that_its_sender_did_not_sign_is_reported_and_not_counted() -> None:
    council = Council(byzantine=(3,))
    false = state(council)
    council.say(3, [LIAR], StopData(council.number, 2, false, SimSigner(0).sign(false), []))
    assert [(report.node, report.kind) for report in council.reports()] == [(3, "bad-state")]


# Values


def test_values_that_nobody_asked_for_are_not_handed_on() -> None:
    """A SYNC that nobody can read would be the end of any leader."""
    # Given a value that is bound, since it was accepted,
    council = Council(byzantine=(3,))
    council.publish(A, 1)
    council.deliver(of_kind(Received))
    digest = value_digest(council.messages(Propose)[0].value)
    council.deliver(of_kind(Propose))
    council.say(3, (0, 1, 2), Write(council.number, 1, 1, digest))
    council.deliver(of_kind(Write))
    council.drop()

    # when the next leader hears of it, and of much else,
    ask_for(council, 2)
    council.deliver(of_kind(Stop))
    fresh, values = state(council), [b"%d" % number for number in range(VALUES_MAX)]
    council.say(3, [1], StopData(council.number, 2, fresh, SimSigner(3).sign(fresh), values))
    council.run(1)

    # then others get what they need, and can read it.
    for sync in council.messages(Sync, sender=1):
        frame = codec.encode(sync)
        assert codec.decode(memoryview(frame)[codec.LENGTH.size :]) == sync
        assert [value_digest(value) for value in sync.values] == [digest]
    assert {tuple(council.log(replica)) for replica in council.seats} == {(b"a1",)}


def test_a_sync_with_the_states_of_many_liars_can_be_read() -> None:
    """Each of them as long as a state may be: together they were more than fits into a message."""
    f = 17
    liars = range(2 * f + 1, 3 * f + 1)
    council = Council(f=f, byzantine=liars)
    written = {number.to_bytes(32, "big"): 1 for number in range(29_950)}
    long = msgspec.msgpack.encode(State(council.number, 2, 1, [Promised(1, 0, b"", written)]))
    assert STATE_BYTES_MAX * 0.99 < len(long) <= STATE_BYTES_MAX
    for liar in liars:
        council.say(liar, [1], StopData(council.number, 2, long, SimSigner(liar).sign(long), []))

    ask_for(council, 2)
    council.settle(of_kind(Stop, StopData))

    assert council.group(1).consensus.is_synced
    sync = council.messages(Sync, sender=1)[0]
    assert codec.decode(memoryview(codec.encode(sync))[codec.LENGTH.size :]) == sync


# Restarts


def without(replica: NodeId) -> Callable[[Flight], bool]:
    return lambda flight: replica not in (flight.sender, flight.receiver)


def is_vote_in(flight: Flight, regency: int) -> bool:
    return isinstance(flight.message, Accept) and flight.message.regency == regency


def test_a_leader_that_restarts_in_its_regency_proposes_nothing_else_than_before() -> None:
    # Given a leader that accepts a value, of which nobody else hears,
    council = Council(CRASH, f=2)
    council.publish(A, 1, to=[0])
    council.drop()
    # and a next one that is bound to that, and has no more of it than its digest.
    ask_for(council, 2)
    council.deliver(of_kind(Stop))
    council.deliver(lambda flight: of_kind(StopData)(flight) and flight.sender in (0, 2))
    council.deliver(lambda flight: of_kind(Sync, Propose)(flight) and flight.receiver == 0)
    council.drop()

    # When it restarts, binds itself by the states of others, and gets a batch ordered,
    council.reboot(1)
    council.publish(B, 1, to=[1, 2, 3, 4])
    council.run(
        0.3,
        lambda flight: (
            without(0)(flight) and (flight.receiver == 1 or not of_kind(Accept, Decision)(flight))
        ),
    )
    receipts = council.messages(Ordered, sender=1)
    # and is gone before anybody else hears of that,
    council.crash(1)
    council.drop()
    ask_for(council, 3)
    council.deliver(lambda flight: of_kind(Stop)(flight) and flight.receiver != 2)
    council.deliver(lambda flight: of_kind(StopData)(flight) and flight.sender == 0)
    council.run(1, lambda flight: not is_vote_in(flight, 2))

    # then the batch has the place that its publisher was told.
    assert [receipt.offset for receipt in receipts] == [0]
    assert {council.log(replica)[0] for replica in council.seats} == {b"b1"}


# Patience


def changes_at_us(council: Council, seconds: float, choose: Callable[[Flight], bool]) -> list[int]:
    """When the replicas that are there entered one regency after the other."""
    found: list[int] = []
    last = regency(council)
    end_us = council.now_us + round(seconds * 1_000_000)
    while council.now_us < end_us:
        council.run(council.pace.tick_us / 1_000_000, choose)
        if regency(council) > last:
            last = regency(council)
            found.append(council.now_us)
    return found


def no_leader_shows_anything(flight: Flight) -> bool:
    return not isinstance(flight.message, Sync)


@BOTH
def test_patience_doubles_with_every_change_that_does_not_help(table: dict[str, object]) -> None:
    council = Council(table, pace=replace(PACE, patience_us_max=4_000_000))
    council.crash(0)
    council.publish(A, 1)
    changes = changes_at_us(council, 20, no_leader_shows_anything)
    waits = [later - earlier for earlier, later in pairwise(changes)]
    # Replicas look at the time at every tick, so that each wait is one tick longer at most.
    assert [wait // 1_000_000 for wait in waits[:4]] == [1, 2, 4, 4]


@BOTH
def test_with_the_next_decision_patience_is_what_it_was(table: dict[str, object]) -> None:
    council = Council(table, f=2)
    council.crash(0)
    council.publish(A, 1)
    # Given replicas that have seen one leader after the other fail,
    changes_at_us(council, 10, no_leader_shows_anything)
    assert min(patience_us(council)) >= 4 * PACE.patience_us
    # when one of the next leaders does its work,
    council.run(20)
    assert {tuple(council.log(replica)) for replica in council.seats} == {(b"a1",)}
    # then the one after it is not given more time than the first one was.
    assert patience_us(council) == {PACE.patience_us}
    before = regency(council)
    council.crash(council.group(some_replica(council)).consensus.leader)
    council.publish(B, 1)
    council.run((PACE.slow_us + PACE.patience_us + 2 * PACE.tick_us) / 1_000_000)
    assert regency(council) > before


def some_replica(council: Council) -> NodeId:
    return max(council.seats)


def regency(council: Council) -> int:
    return council.group(some_replica(council)).consensus.regency


def patience_us(council: Council) -> set[int]:
    return {council.group(replica).change.patience_us for replica in council.seats}
