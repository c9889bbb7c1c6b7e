"""Who may say what to the ordered half of a replica."""

import msgspec
import pytest

from council import BYZANTINE, READER, A, B, Council, T
from quorate.core.ids import NodeId, node_of, topic_id
from quorate.core.messages import Message, Operation, Request
from quorate.core.ordering import (
    Absent,
    Accept,
    Allow,
    Announce,
    Append,
    Cosign,
    Decision,
    Entries,
    Fill,
    Follow,
    Line,
    Propose,
    Received,
    Retrieve,
    Retrieved,
    Standing,
    Stop,
    StopData,
    Stored,
    Sync,
    Wants,
    Write,
)
from quorate.crypto.digests import descriptor
from quorate.protocol.ordering.placement import GroupKind
from stage import event

STRANGER = 4711
D = bytes(32)
X = event(b"x")
GROUP = int(GroupKind.BYZANTINE)
# What replicas say to each other.
BETWEEN_REPLICAS: tuple[Message, ...] = (
    Received(A, T, 0, 1, D),
    Stored(A, T, 0, 1, 1, D),
    Retrieve(A, T, 0, 1, 1),
    Retrieved(A, T, 0, 1, [D + D[:16]], [X]),
    Propose(GROUP, 1, 1, b"x"),
    Write(GROUP, 1, 1, D),
    Accept(GROUP, 1, 1, D),
    Standing(GROUP, 1, 1, True, 0),
    Decision(GROUP, 1, b"x", b""),
    Cosign(GROUP, 1, 1, b""),
    Fill(T, 0, 0, 1, False),
    Entries(A, T, 0, 0, 1, 0, D, D, [X]),
    Absent(T, 0, 0, 1),
    Stop(GROUP, 2),
    StopData(GROUP, 2, b"", b"", []),
    Sync(GROUP, 2, [], []),
)
KINDS = [type(message).__name__ for message in BETWEEN_REPLICAS]


def rejected(council: Council, sender: NodeId, message: Message) -> bool:
    """Whether replica 0 refuses this, and does nothing else."""
    council.turns.clear()
    council.say(sender, [0], message)
    kinds = [report.kind for report in council.reports(by=0)]
    return kinds == ["rejected"] and not council.turns[0].ready.send


@pytest.mark.parametrize("message", BETWEEN_REPLICAS, ids=KINDS)
@pytest.mark.parametrize("sender", [A, READER, STRANGER, 7])
def test_only_replicas_speak_as_replicas(sender: NodeId, message: Message) -> None:
    assert rejected(Council(), sender, message)


@pytest.mark.parametrize("message", BETWEEN_REPLICAS, ids=KINDS)
def test_a_replica_is_heard(message: Message) -> None:
    council = Council()
    council.say(1, [0], message)
    assert "rejected" not in [report.kind for report in council.reports(by=0)]


@pytest.mark.parametrize(
    "message", [m for m in BETWEEN_REPLICAS if hasattr(m, "group")], ids=lambda m: type(m).__name__
)
def test_nobody_speaks_to_a_group_that_is_not_here(message: Message) -> None:
    elsewhere = msgspec.structs.replace(message, group=GROUP + 1)
    assert rejected(Council(), 1, elsewhere)


REQUESTS = (Append(T, 0, 1, [X]), Announce(T, 0, 1, [descriptor(X)]))


@pytest.mark.parametrize("request_", REQUESTS, ids=["append", "announce"])
def test_strangers_and_replicas_do_not_publish(request_: Message) -> None:
    for sender in (STRANGER, 1):
        assert rejected(Council(), sender, request_)


@pytest.mark.parametrize("number", [1, 4096])
def test_nobody_publishes_where_there_is_no_partition(number: int) -> None:
    assert rejected(Council(), A, Append(T, number, 1, [X]))
    assert rejected(Council(), A, Append(topic_id("unknown"), 0, 1, [X]))


def test_a_client_publishes_in_every_session_of_its_own() -> None:
    council = Council()
    for session in (0, 1, 2):
        council.say(node_of(A, session), council.seats, Append(T, 0, 1, [X]))
    council.settle()
    assert council.log(0) == [b"x"] * 3


LIMITED = {**BYZANTINE, "publish": ["a"], "subscribe": ["reader"]}


def test_an_access_list_says_who_publishes() -> None:
    council = Council(LIMITED)
    assert rejected(council, B, Append(T, 0, 1, [X]))
    council.publish(A, 1)
    council.settle()
    assert council.log(0) == [b"a1"]


def test_no_replica_speaks_for_a_client_that_may_not_publish() -> None:
    council = Council(LIMITED)
    assert not council.seats[0].ordering.may_append(Line(B, T, 0))
    council.say(1, [0], Received(B, T, 0, 1, D))
    council.say(1, [0], Stored(B, T, 0, 1, 1, D))
    assert [report.node for report in council.reports(by=0)] == [1, 1]
    assert Line(B, T, 0) not in council.group(0).backlog.lines


READINGS = (Follow(T, 0, 1, 0, 10, Wants.ALL), Allow(T, 0, 10))


@pytest.mark.parametrize("message", READINGS, ids=["follow", "allow"])
def test_an_access_list_says_who_reads(message: Message) -> None:
    council = Council(LIMITED)
    for sender in (A, STRANGER):
        assert rejected(council, sender, message)
    council.say(READER, [0], message)
    assert council.reports(by=0)[-1].node != READER


@pytest.mark.parametrize("message", [Follow(T, 1, 1, 0, 10, Wants.ALL), Allow(T, 1, 10)])
def test_nobody_reads_where_there_is_no_partition(message: Message) -> None:
    assert rejected(Council(), READER, message)


def test_a_replica_may_read() -> None:
    council = Council(LIMITED)
    council.say(2, [0], READINGS[0])
    assert council.reports(by=0) == []
    assert council.group(0).readers.count == 1


def test_a_reader_that_is_gone_is_forgotten() -> None:
    council = Council()
    council.say(READER, [0], READINGS[0])
    council.seats[0].ordering.disconnected(READER)
    assert council.group(0).readers.count == 0


# Requests of clients


def admitted(council: Council, sender: NodeId, operation: Operation, terms: str = "") -> str:
    request = Request(1, operation, "t", terms or council.topic.contract.terms)
    return council.seats[0].ordering.admit(sender, council.topic, request)


def test_whoever_may_is_admitted_and_whoever_may_not_hears_why() -> None:
    council = Council(LIMITED)
    assert admitted(council, A, Operation.REGISTER) == ""
    assert admitted(council, READER, Operation.SUBSCRIBE) == ""
    assert admitted(council, B, Operation.REGISTER) == "b may not publish on 't'; a may"
    assert admitted(council, A, Operation.SUBSCRIBE) == "a may not subscribe to 't'; reader may"
    assert admitted(council, 77, Operation.REGISTER) == "client 77 may not publish on 't'; a may"


def test_a_client_that_believes_in_other_terms_is_not_admitted() -> None:
    sentence = admitted(Council(), A, Operation.REGISTER, "none")
    assert "byzantine, ordering, order total" in sentence


def test_giving_back_is_always_admitted() -> None:
    assert admitted(Council(LIMITED), B, Operation.UNREGISTER, "whatever") == ""
