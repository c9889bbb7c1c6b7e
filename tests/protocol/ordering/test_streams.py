"""A stream is remembered while its session lives, and a batch is never ordered twice."""

import pytest

from council import A, B, Council, T
from quorate.core.ids import NodeId, node_of
from quorate.core.ordering import Append, Line, Unordered
from quorate.protocol.ordering import group as group_module
from quorate.protocol.ordering import log as log_module
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.value import Span, Value
from stage import event

SESSIONS = [node_of(A, session) for session in range(6)]


@pytest.fixture(autouse=True)
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "LINES_PER_MEMBER_MAX", 4)
    monkeypatch.setattr(group_module, "LINES_PER_MEMBER_MAX", 4)


def lines_of(log: OrderLog) -> list[NodeId]:
    return [line.publisher for line in log.state.lines]


def four_streams(council: Council) -> None:
    for number, session in enumerate(SESSIONS[:4]):
        council.publish(session, 1, b"first of %d" % number)
        council.settle()


def test_of_five_streams_the_fifth_is_refused_and_the_first_goes_on() -> None:
    council = Council()
    four_streams(council)
    council.publish(SESSIONS[4], 1, b"first of 4")
    council.settle()
    council.run(5)
    refused = council.messages(Unordered, receiver=SESSIONS[4])
    assert {each.sentence for each in refused} == {
        "client 1000 has 4 streams here already; one of its sessions has to end before another "
        "stream can begin"
    }
    assert len(refused) == 4
    assert {group.roster.me: group.consensus.regency for group in map(council.group, range(4))} == (
        dict.fromkeys(range(4), 1)
    )
    for publisher in (SESSIONS[0], B):
        council.publish(publisher, 2 if publisher != B else 1, b"next")
        council.settle()
    for replica in council.members:
        log = council.group(replica).log
        assert sorted(lines_of(log)) == sorted([*SESSIONS[:4], B])
        assert log.line(Line(SESSIONS[0], T, 0)).next == 3


def test_a_batch_is_never_ordered_twice_whatever_comes_after_it() -> None:
    council = Council()
    four_streams(council)
    for session in range(4, 40):
        council.publish(node_of(A, session), 1, b"another")
        council.settle()
    council.publish(SESSIONS[0], 1, b"first of 0")
    council.settle()
    council.run(1)
    log = council.group(0).log
    assert log.tree.size == 4
    assert log.line(Line(SESSIONS[0], T, 0)).next == 2


def test_a_batch_of_a_stream_that_nobody_knows_is_answered() -> None:
    council = Council()
    council.publish(SESSIONS[0], 7, b"late")
    council.settle()
    assert [each.first for each in council.messages(Unordered, receiver=SESSIONS[0])] == [7] * 4
    assert "has ended" in council.messages(Unordered)[0].sentence
    assert council.group(0).log.tree.size == 0


def test_two_new_streams_for_one_place_are_ordered_one_after_the_other() -> None:
    council = Council()
    for number, session in enumerate(SESSIONS):
        for replica in council.members:
            council.step(session, replica, Append(T, 0, 1, [event(b"first of %d" % number)]))
    council.collect()
    council.settle()
    council.run(2)
    logs = [council.group(replica).log for replica in council.members]
    assert all(len(log.state.lines) == 4 for log in logs)
    assert len({tuple(lines_of(log)) for log in logs}) == 1


def test_sessions_that_ended_are_named_by_the_next_value_and_leave_their_place() -> None:
    council = Council()
    four_streams(council)
    over = set(SESSIONS[:2])
    for replica in council.members:
        group = council.group(replica)
        group.backlog.has_ended = over.__contains__
        group.end_sessions(SESSIONS[:2])
    council.publish(SESSIONS[4], 1, b"first of 4")
    council.settle()
    for replica in council.members:
        group = council.group(replica)
        assert sorted(lines_of(group.log)) == sorted(SESSIONS[2:5])
        assert group.log.ending == {}
    # What comes late is answered, and not ordered again.
    council.publish(SESSIONS[0], 1, b"first of 0")
    council.settle()
    assert "has ended" in council.messages(Unordered, receiver=SESSIONS[0])[0].sentence
    assert council.group(0).log.tree.size == 5


def test_no_replica_lets_a_leader_end_a_session_that_lives() -> None:
    council = Council()
    four_streams(council)
    group = council.group(council.group(0).consensus.leader)
    group.log.ending[SESSIONS[1]] = None
    council.publish(SESSIONS[0], 2, b"second")
    council.settle()
    council.run(10)
    for replica in council.members:
        assert sorted(lines_of(council.group(replica).log)) == SESSIONS[:4]
    assert council.group(1).log.tree.size == 5


def test_a_value_says_which_sessions_ended() -> None:
    span = (A, T, 0, 1, 1, bytes(32))
    value = Value(7, (Span(*span),), (B, SESSIONS[3]))
    assert Value.decode(value.encode()) == value
