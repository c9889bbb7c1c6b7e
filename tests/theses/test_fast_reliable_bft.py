"""Freeman 2016, "Fast and reliable Byzantine fault tolerance", statement by statement (B1 to B8).

Each test names the section, algorithm or figure that it plays. The thesis counts replicas from
1; `R1` to `R4` are its replicas 1 to 4.
"""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from quorate.core.filter import Filter
from quorate.core.ids import Lane, NodeId, topic_id
from quorate.core.messages import (
    Ack,
    Authenticator,
    Echo,
    Forward,
    Link,
    Publish,
    ReadyVote,
    Status,
    Vouch,
)
from quorate.core.names import MAC_ALGORITHMS
from quorate.crypto.digests import digest
from quorate.crypto.identity import Identity
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast import chain
from quorate.protocol.broadcast.broken import CarelessDestination
from quorate.protocol.broadcast.history import History
from quorate.protocol.destination import Destination
from quorate.protocol.machine import Ready
from quorate.protocol.misbehaviour import FIELDS, Drop, Lie, Silence
from stage import D1, D2, R1, R2, R3, R4, S1, S2, Stage, event, pairwise_macs, topic

AUTHENTICATED: dict[str, object] = {"broadcast": "authenticated", "history_every": 0}
RELIABLE: dict[str, object] = {"broadcast": "reliable"}
CHAIN: dict[str, object] = {"broadcast": "chain", "history_every": 0}
ALPHA = 4
WITH_HISTORY: dict[str, object] = {"broadcast": "authenticated", "history_every": ALPHA}
CHAIN_WITH_HISTORY: dict[str, object] = {"broadcast": "chain", "history_every": ALPHA}

T = topic_id("t")
# What a replica tells a subscriber about batches, with payload or without.
VOICES = (Forward, Vouch)


def run(first: int, *values: bytes, lane: Lane = Lane.EVENTS, settled: int = 1) -> Publish:
    return Publish(T, lane, False, first, settled, [event(value) for value in values])


def names_of(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(1, count + 1)]


# B1: authenticated broadcast, section 3.1


def test_figure_3_1_a_destination_delivers_the_third_copy_and_discards_the_fourth() -> None:
    """Section 3.1, figure 3.1: 2f + 1 of 3f + 1 replicas are enough, and the rest is not needed."""
    stage = Stage(topic(AUTHENTICATED))
    third = stage.hold(VOICES, sender=R3, receiver=D1)
    fourth = stage.hold(VOICES, sender=R4, receiver=D1)

    stage.publish(S1, b"m1")
    stage.settle()
    assert stage.values(D1) == []

    stage.release(third)
    stage.settle()
    assert stage.values(D1) == [b"m1"]
    assert stage.deliveries(D1)[0].vouchers == (R1, R2, R3)

    stage.release(fourth)
    stage.settle()
    assert stage.values(D1) == [b"m1"]


def test_a_source_sends_to_every_replica() -> None:
    """Algorithm 1."""
    stage = Stage(topic(AUTHENTICATED))

    stage.publish(S1, b"m1")
    stage.settle()

    for replica in (R1, R2, R3, R4):
        assert stage.messages(Publish, sender=S1, receiver=replica) == [run(1, b"m1")]


def test_a_replica_forwards_a_publication_once_however_often_it_arrives() -> None:
    """Algorithm 2: `sent` is set with the first copy."""
    stage = Stage(topic(AUTHENTICATED))

    for _ in range(3):
        stage.say(S1, R1, run(1, b"m1"))
        stage.settle()

    assert len(stage.messages(Forward, sender=R1, receiver=D1)) == 1


def test_a_replica_never_forwards_a_second_content_under_one_number() -> None:
    """Algorithm 2: the first content counts, whatever the source says afterwards."""
    stage = Stage(topic(AUTHENTICATED))

    stage.say(S1, R1, run(1, b"m1"))
    stage.settle()
    stage.say(S1, R1, run(1, b"another"))
    stage.settle()

    (forward,) = stage.messages(Forward, sender=R1, receiver=D1)
    assert forward.payloads == [event(b"m1")]


def collude_as_in_figure_3_2(stage: Stage) -> None:
    """Source 1 leaves replica 4 out, and replica 1 leaves destination 2 out."""
    stage.drop((Publish, Link), sender=S1, receiver=R4)
    stage.drop(VOICES, sender=R1, receiver=D2)


def test_figure_3_2_a_source_and_a_replica_that_collude_reach_one_destination_of_two() -> None:
    """Section 3.1, figure 3.2: authenticated broadcast alone has no totality."""
    stage = Stage(topic(AUTHENTICATED), destinations=(D1, D2))
    collude_as_in_figure_3_2(stage)

    stage.publish(S1, b"m1")
    stage.settle()
    stage.pass_time(5)

    assert stage.values(D1) == [b"m1"]
    assert stage.values(D2) == []


@pytest.mark.parametrize("kind", [Destination, CarelessDestination])
def test_a_quorum_is_of_equal_contents_and_not_of_messages(kind: type[Destination]) -> None:
    """Algorithm 3, line 8, counts messages. By the letter, the last of 2f + 1 voices chooses
    what is delivered, so that one liar is enough; we count equal contents."""
    stage = Stage(topic(AUTHENTICATED), destination=kind)
    fourth = stage.hold(VOICES, sender=R4)
    stage.alter(
        lambda forward: msgspec.structs.replace(forward, payloads=[event(b"forged")]),
        Forward,
        sender=R1,
    )
    liar = stage.hold(Forward, sender=R1)

    stage.publish(S1, b"m1")
    stage.settle()
    stage.release(liar)
    stage.settle()
    assert stage.values(D1) == ([b"forged"] if kind is CarelessDestination else [])

    stage.release(fourth)
    stage.pass_time(1)
    assert stage.values(D1) == ([b"forged"] if kind is CarelessDestination else [b"m1"])


def test_two_replicas_that_agree_are_not_enough_with_one_that_differs() -> None:
    """Section 3.1: the destination needs 2f + 1 correct messages, and names who differs."""
    stage = Stage(topic(AUTHENTICATED))
    stage.drop(VOICES, sender=R4)
    stage.alter(lambda vouch: msgspec.structs.replace(vouch, digests=[bytes(32)]), Vouch, sender=R2)

    stage.publish(S1, b"m1")
    stage.settle()

    assert stage.values(D1) == []


# B2: Bracha's reliable broadcast, section 3.2


def test_figure_3_3_source_to_replicas_echo_to_all_ready_to_all_and_destinations() -> None:
    """Section 3.2, figure 3.3, without the messages that replicas send to themselves."""
    stage = Stage(topic(RELIABLE), destinations=(D1, D2))

    stage.publish(S1, b"m1")
    stage.settle()

    assert len(stage.messages(Publish)) == 4
    assert len(stage.messages(Echo)) == 4 * 3
    assert len(stage.messages(ReadyVote)) == 4 * 3
    assert len(stage.messages(Forward)) + len(stage.messages(Vouch)) == 4 * 2
    assert stage.values(D1) == stage.values(D2) == [b"m1"]


@pytest.mark.parametrize(("f", "quorum"), [(1, 3), (2, 5), (3, 7)])
def test_a_replica_gets_ready_on_a_quorum_of_echoes(f: int, quorum: int) -> None:
    """Section 3.2: ⌈(n + f + 1) / 2⌉ ECHOes, algorithm 5, line 16."""
    stage = Stage(topic(RELIABLE, f=f))
    content = digest(event(b"m1"))
    echo = Echo(S1, T, Lane.EVENTS, 1, [content])

    for replica in range(1, quorum):
        stage.say(replica, R1, echo)
        stage.settle()
    assert stage.messages(ReadyVote, sender=R1) == []

    stage.say(quorum, R1, echo)
    stage.settle()
    assert stage.messages(ReadyVote, sender=R1)[0].digests == [content]


@pytest.mark.parametrize("f", [1, 2])
def test_a_replica_gets_ready_on_f_plus_one_readies_without_any_echo(f: int) -> None:
    """Section 3.2, the safety net: algorithm 5, line 24."""
    stage = Stage(topic(RELIABLE, f=f))
    content = digest(event(b"m1"))
    ready = ReadyVote(S1, T, Lane.EVENTS, 1, [content])

    for replica in range(1, f + 1):
        stage.say(replica, R1, ready)
        stage.settle()
    assert stage.messages(ReadyVote, sender=R1) == []

    stage.say(f + 1, R1, ready)
    stage.settle()
    assert stage.messages(ReadyVote, sender=R1)[0].digests == [content]


def test_a_destination_processes_on_two_f_plus_one_readies() -> None:
    """Algorithm 6, line 8."""
    stage = Stage(topic(RELIABLE))
    third = stage.hold(VOICES, sender=R3)
    stage.drop(VOICES, sender=R4)

    stage.publish(S1, b"m1")
    stage.settle()
    assert stage.values(D1) == []

    stage.release(third)
    stage.settle()
    assert stage.values(D1) == [b"m1"]


def test_a_replica_echoes_only_the_first_content_of_its_source() -> None:
    """Algorithm 5, line 8: `echoSent`."""
    stage = Stage(topic(RELIABLE))

    stage.say(S1, R1, run(1, b"m1"))
    stage.settle()
    stage.say(S1, R1, run(1, b"another"))
    stage.settle()

    contents = {echo.digests[0] for echo in stage.messages(Echo, sender=R1)}
    assert contents == {digest(event(b"m1"))}


def test_figure_3_4_under_the_same_collusion_bracha_reaches_everybody() -> None:
    """Section 3.2, figure 3.4: replica 4 has no message and too few ECHOes, gets ready on two
    READYs, and completes the quorum of both destinations."""
    stage = Stage(topic(RELIABLE), destinations=(D1, D2))
    collude_as_in_figure_3_2(stage)
    stage.drop(VOICES, sender=R1)
    stage.drop((Echo, ReadyVote), sender=R1, receiver=R4)

    stage.publish(S1, b"m1")
    stage.settle()

    assert stage.messages(Echo, sender=R4) == []
    assert stage.messages(ReadyVote, sender=R4) != []
    stage.pass_time(1)
    assert stage.values(D1) == stage.values(D2) == [b"m1"]
    assert set(stage.deliveries(D2)[0].vouchers) == {R2, R3, R4}


def test_a_source_that_tells_replicas_two_contents_delivers_neither_or_one_to_all() -> None:
    """Section 3.2: two halves of the replicas with different contents reach no ECHO quorum."""
    stage = Stage(topic(RELIABLE), destinations=(D1, D2))
    for replica in (R1, R2):
        stage.say(S1, replica, run(1, b"left"))
    for replica in (R3, R4):
        stage.say(S1, replica, run(1, b"right"))

    stage.settle()
    stage.pass_time(5)

    assert stage.messages(ReadyVote) == []
    assert stage.values(D1) == stage.values(D2) == []


def test_a_replica_that_votes_for_two_contents_counts_once_and_is_named() -> None:
    """Section 3.2 counts (replica, message) pairs: a pair of contents would count twice."""
    stage = Stage(topic(RELIABLE))
    for replica, content in ((R2, b"x"), (R2, b"y"), (R3, b"y")):
        stage.say(replica, R1, Echo(S1, T, Lane.EVENTS, 1, [digest(content)]))
    stage.say(R4, R1, ReadyVote(S1, T, Lane.EVENTS, 1, [digest(b"x")]))
    stage.say(R4, R1, ReadyVote(S1, T, Lane.EVENTS, 1, [digest(b"y")]))

    stage.settle()

    assert stage.messages(ReadyVote, sender=R1) == []
    assert stage.reported("equivocation", by=R1) == [R2, R4]


# B3: chain, sections 3.3, 5.6 and 6.4.3


def hops(stage: Stage) -> list[tuple[NodeId, NodeId]]:
    return [(s, r) for s, r, message in stage.sent if isinstance(message, Link)]


def test_figure_3_5_a_message_goes_down_the_chain_and_replica_4_is_not_used() -> None:
    """Section 3.3, figure 3.5: 2f + 1 replicas form the chain."""
    stage = Stage(topic(CHAIN))

    stage.publish(S1, b"m1")
    stage.settle()

    assert hops(stage) == [(S1, R1), (R1, R2), (R2, R3), (R3, D1)]
    assert stage.values(D1) == [b"m1"]
    assert stage.receipted(S1) == [1]


def pairs(link: Link) -> set[tuple[NodeId, NodeId]]:
    return {(a.maker, a.reader) for a in link.authenticators}


def test_figure_5_5_each_hop_carries_just_the_authenticators_that_are_still_read() -> None:
    """Sections 5.6 and 6.4.3: f + 1 ahead, pruned once read, and to a subscriber its own only."""
    stage = Stage(topic(CHAIN), destinations=(D1, D2))

    stage.publish(S1, b"m1")
    stage.settle()

    links = {(s, r): pairs(m) for s, r, m in stage.sent if isinstance(m, Link)}
    assert links[S1, R1] == {(S1, R1), (S1, R2)}
    assert links[R1, R2] == {(S1, R2), (R1, R2), (R1, R3)}
    assert links[R2, R3] == {(R1, R3), (R2, R3), (R2, D1), (R2, D2)}
    assert links[R3, D1] == {(R2, D1), (R3, D1)}
    assert links[R3, D2] == {(R2, D2), (R3, D2)}


@pytest.mark.parametrize("f", [1, 2, 3])
def test_no_authenticator_travels_beyond_its_reader(f: int) -> None:
    """Section 6.4.3: what nobody further down reads is not sent on."""
    stage = Stage(topic(CHAIN, f=f), destinations=(D1, D2))

    stage.publish(S1, b"m1")
    stage.settle()

    path = [S1, *stage.topics[0].chain(0)]
    for sender, _, link in stage.sent:
        if isinstance(link, Link):
            ahead = {*path[path.index(sender) + 1 :], D1, D2}
            assert {reader for _, reader in pairs(link)} <= ahead
            assert len(pairs(link)) == len(link.authenticators)
    assert stage.values(D1) == stage.values(D2) == [b"m1"]


def test_authenticators_for_nobody_on_the_way_are_pruned() -> None:
    """Section 6.4.3: the slice of MACs must not grow, even if somebody pads it."""
    stage = Stage(topic(CHAIN))
    junk = [Authenticator(S1, reader, bytes(16)) for reader in (R1, S2, 77, 78)]
    stage.alter(
        lambda link: msgspec.structs.replace(link, authenticators=[*junk, *link.authenticators]),
        Link,
        sender=S1,
    )

    stage.publish(S1, b"m1")
    stage.settle()

    (onward,) = stage.messages(Link, sender=R1)
    assert pairs(onward) == {(S1, R2), (R1, R2), (R1, R3)}


@pytest.mark.parametrize("f", [1, 2])
def test_a_node_discards_what_any_of_the_f_plus_one_before_it_did_not_authenticate(f: int) -> None:
    """Section 3.3, algorithms 8 and 9."""
    stage = Stage(topic(CHAIN, f=f))
    path = [S1, *stage.topics[0].chain(0), D1]
    stage.publish(S1, b"m1")
    stage.settle()
    links = {r: (s, m) for s, r, m in stage.sent if isinstance(m, Link)}

    for position in range(1, len(path)):
        reader = path[position]
        sender, link = links[reader]
        for maker in path[max(0, position - f - 1) : position]:
            wrong = [spoil(a) if (a.maker, a.reader) == (maker, reader) else a
                     for a in link.authenticators]  # fmt: skip
            bad = msgspec.structs.replace(link, first=2, authenticators=wrong)
            before = len(stage.reported("bad-authenticator", by=reader))
            stage.say(sender, reader, bad)
            stage.settle()
            assert len(stage.reported("bad-authenticator", by=reader)) == before + 1
    assert stage.values(D1) == [b"m1"]


def spoil(authenticator: Authenticator) -> Authenticator:
    tag = bytes(byte ^ 1 for byte in authenticator.tag)
    return msgspec.structs.replace(authenticator, tag=tag)


def altering(macs: PairwiseMacs, me: NodeId) -> Callable[[Link], Link]:
    """Replica 2 of figure 3.6: another content, with its own MACs made anew."""

    def change(link: Link) -> Link:
        forged = msgspec.structs.replace(link, payloads=[event(b"m1'")] * len(link.payloads))
        covered = chain.authenticated_bytes(forged, [digest(p) for p in forged.payloads])
        mine = [
            Authenticator(me, a.reader, macs.tag(a.reader, covered)) if a.maker == me else a
            for a in link.authenticators
        ]
        return msgspec.structs.replace(forged, authenticators=mine)

    return change


def test_figure_3_6_an_altering_replica_stops_the_chain() -> None:
    """Section 3.3, figure 3.6: replica 2 makes m1 into m1', replica 3 finds that the MAC of
    replica 1 does not match, and destination 1 gets nothing by the chain."""
    stage = Stage(topic(CHAIN))
    stage.alter(altering(pairwise_macs(R2), R2), Link, sender=R2)

    stage.publish(S1, b"m1")
    stage.settle()

    assert hops(stage) == [(S1, R1), (R1, R2), (R2, R3)]
    assert stage.reported("bad-authenticator", by=R3) == [R2]
    assert stage.values(D1) == []


def test_an_altered_chain_is_repaired_by_the_history() -> None:
    """Figure 3.6 and section 5.8: the history by reliable broadcast names what was sent, and
    whoever misses it fetches it. The source is kept to its first chain."""
    stage = Stage(topic(CHAIN_WITH_HISTORY))
    stage.alter(altering(pairwise_macs(R2), R2), Link, sender=R2)
    stage.alter(lambda link: link if link.chain == 0 else None, Link)

    stage.publish(S1, *names_of(ALPHA))
    stage.settle()
    assert stage.values(D1) == []
    stage.pass_time(2)

    assert sorted(stage.values(D1)) == names_of(ALPHA)
    assert all(delivery.repaired for delivery in stage.deliveries(D1))
    assert stage.receipted(S1) == [1, 2, 3, 4]


def test_a_source_whose_chain_fails_takes_the_next_one() -> None:
    """Section 8.2 leaves the chain's failure open; ours moves on, with or without histories."""
    stage = Stage(topic(CHAIN))
    stage.misbehave(R2, Silence())

    stage.publish(S1, b"m1")
    stage.pass_time(2)

    assert stage.values(D1) == [b"m1"]
    assert stage.receipted(S1) == [1]


# B4: histories, sections 5.8 and 6.2


def test_figure_3_2_is_repaired_by_the_history() -> None:
    """Sections 4.1 and 5.8: after alpha publications the history reaches destination 2 too."""
    stage = Stage(topic(WITH_HISTORY), destinations=(D1, D2))
    collude_as_in_figure_3_2(stage)

    stage.publish(S1, *names_of(ALPHA))
    stage.settle()
    assert stage.values(D1) == names_of(ALPHA)
    stage.pass_time(2)

    assert sorted(stage.values(D2)) == names_of(ALPHA)


def statuses(stage: Stage, replica: NodeId, source: NodeId = S1, name: str = "t") -> list[Status]:
    acks = stage.messages(Ack, sender=replica, receiver=source)
    return [a.status for a in acks if a.topic == topic_id(name) and a.lane is Lane.EVENTS]


def test_a_history_is_asked_for_at_alpha_and_the_publisher_blocked_at_two_alpha() -> None:
    """Section 6.2, listing 6.3."""
    stage = Stage(topic(WITH_HISTORY))

    for number, value in enumerate(names_of(2 * ALPHA + 2), start=1):
        stage.say(S1, R1, run(number, value))
        stage.settle()

    assert statuses(stage, R1) == [
        *[Status.OK] * (ALPHA - 1),
        *[Status.HISTORY] * ALPHA,
        *[Status.BLOCKED] * 3,
    ]
    forwarded = [f.first for f in stage.messages(Forward, sender=R1)]
    assert forwarded == list(range(1, 2 * ALPHA + 1))


def test_a_run_that_crosses_two_alpha_is_taken_up_to_there() -> None:
    """Section 6.2: the limit holds within one message as well."""
    stage = Stage(topic(WITH_HISTORY))

    stage.say(S1, R1, run(1, *names_of(3 * ALPHA)))
    stage.settle()

    (forward,) = stage.messages(Forward, sender=R1)
    assert len(forward.payloads) == 2 * ALPHA
    assert statuses(stage, R1) == [Status.BLOCKED]


def test_a_delivered_history_unblocks_the_publisher() -> None:
    """Listing 6.3, line 19: the counter starts anew."""
    stage = Stage(topic(WITH_HISTORY))
    for replica in (R1, R2, R3, R4):
        stage.say(S1, replica, run(1, *names_of(2 * ALPHA)))
    stage.settle()
    assert statuses(stage, R1)[-1] is Status.BLOCKED

    history = History(1, tuple(digest(event(v)) for v in names_of(2 * ALPHA)))
    for replica in (R1, R2, R3, R4):
        stage.say(S1, replica, Publish(T, Lane.HISTORIES, False, 1, 1, [history.encode()]))
    stage.settle()

    assert statuses(stage, R1)[-1] is Status.OK


def test_counters_are_kept_for_each_publisher_and_topic() -> None:
    """Section 5.8, the second solution: being blocked on one topic says nothing of another, nor
    of another publisher."""
    stage = Stage(topic(WITH_HISTORY), topic(WITH_HISTORY, "u"), sources=(S1, S2))
    stage.say(S1, R1, run(1, *names_of(2 * ALPHA)))
    stage.settle()
    assert statuses(stage, R1) == [Status.BLOCKED]

    stage.say(S1, R1, msgspec.structs.replace(run(1, b"x"), topic=topic_id("u")))
    stage.say(S2, R1, run(1, b"x"))
    stage.settle()

    assert statuses(stage, R1, S1, "u") == [Status.OK]
    assert statuses(stage, R1, S2) == [Status.OK]


def test_a_source_sends_a_history_of_every_alpha_publications() -> None:
    """Section 5.8: one after each alpha, naming those."""
    stage = Stage(topic(WITH_HISTORY))

    stage.publish(S1, *names_of(3 * ALPHA))
    stage.settle()

    sent = [
        History.decode(payload)
        for publish in stage.messages(Publish, sender=S1, receiver=R1)
        if publish.lane is Lane.HISTORIES
        for payload in publish.payloads
    ]
    contents = [digest(event(value)) for value in names_of(3 * ALPHA)]
    assert [history.first for history in sent] == [1, 1 + ALPHA, 1 + 2 * ALPHA]
    assert [content for history in sent for content in history.digests] == contents


def test_a_source_that_falls_silent_sends_a_history_of_what_is_left() -> None:
    """Section 5.8 would leave the last alpha - 1 publications without one."""
    stage = Stage(topic(WITH_HISTORY), destinations=(D1, D2))
    collude_as_in_figure_3_2(stage)

    stage.publish(S1, b"m1")
    stage.pass_time(2)

    assert stage.values(D2) == [b"m1"]


def test_a_source_stops_by_itself_at_two_alpha_without_a_delivered_history() -> None:
    """Section 6.2: the replicas would refuse more."""
    stage = Stage(topic(WITH_HISTORY))
    histories = stage.hold((Echo,))

    stage.publish(S1, *names_of(5 * ALPHA))
    stage.settle()
    assert len(stage.values(D1)) == 2 * ALPHA

    stage.release(histories)
    stage.pass_time(2)
    assert stage.values(D1) == names_of(5 * ALPHA)


def test_histories_do_not_interfere_with_the_numbers_of_publications() -> None:
    """Section 6.1: they are numbered apart, by negative numbers there and in a lane here."""
    stage = Stage(topic(WITH_HISTORY))

    stage.publish(S1, *names_of(3 * ALPHA))
    stage.settle()

    assert [d.sequence for d in stage.deliveries(D1)] == list(range(1, 3 * ALPHA + 1))
    assert stage.receipted(S1) == list(range(1, 3 * ALPHA + 1))


# B5: message authentication codes, sections 2.4, 5.6 and 6.6


@pytest.mark.parametrize("algorithm", MAC_ALGORITHMS)
def test_authenticators_work_with_each_choice_of_hash(algorithm: str) -> None:
    """Section 6.6, listing 6.11."""
    stage = Stage(topic(CHAIN), mac=algorithm)

    stage.publish(S1, b"m1")
    stage.settle()

    assert stage.values(D1) == [b"m1"]


def test_an_authenticator_by_another_hash_is_discarded() -> None:
    """Section 2.4: both sides must compute the same code."""
    stage = Stage(topic(CHAIN), mac="hmac-sha256")
    foreign = pairwise_macs(S1, "hmac-sha512")

    def with_other_hash(link: Link) -> Link:
        covered = chain.authenticated_bytes(link, [digest(p) for p in link.payloads])
        tags = [Authenticator(S1, a.reader, foreign.tag(a.reader, covered))
                for a in link.authenticators]  # fmt: skip
        return msgspec.structs.replace(link, authenticators=tags)

    stage.alter(with_other_hash, Link, sender=S1)
    stage.publish(S1, b"m1")
    stage.settle()

    assert stage.reported("bad-authenticator", by=R1) == [S1]
    assert stage.values(D1) == []


@pytest.mark.parametrize(
    "field", ["publisher", "topic", "urgent", "first", "settled", "chain", "payloads"]
)
def test_an_authenticator_covers_every_field_but_the_sender(field: str) -> None:
    """Section 6.6, listing 6.12: the broker's number changes from hop to hop, the rest must not."""
    link = Link(S1, T, False, 5, 3, 0, [event(b"m1")], [])
    other = {
        "publisher": S2,
        "topic": topic_id("u"),
        "urgent": True,
        "first": 6,
        "settled": 4,
        "chain": 1,
        "payloads": [event(b"m2")],
    }[field]

    changed = msgspec.structs.replace(link, **{field: other})

    assert covered_bytes(changed) != covered_bytes(link)


def covered_bytes(link: Link) -> bytes:
    return chain.authenticated_bytes(link, [digest(payload) for payload in link.payloads])


def test_two_identities_share_a_key_that_a_third_does_not_know() -> None:
    """Section 5.6 keeps n(n - 1) / 2 keys in text files; ours follow from n public identities."""
    names = {0: "alpha", 1: "beta", 2: "gamma"}
    keys = {number: Identity.generate(name) for number, name in names.items()}
    public = {number: identity.public for number, identity in keys.items()}
    macs = {n: PairwiseMacs.between(keys[n], public, cluster="test") for n in keys}

    tag = macs[0].tag(1, b"m1")

    assert macs[1].verify(0, b"m1", tag)
    assert not macs[2].verify(0, b"m1", tag)
    assert not macs[0].verify(1, b"m1", tag), "a tag must not be reflected to its maker"


# B6: topics and filters, sections 5.4 and 5.8


def test_a_subscriber_gets_the_topics_that_it_asked_for_and_no_other() -> None:
    """Section 5.4."""
    stage = Stage(topic(AUTHENTICATED), topic(AUTHENTICATED, "u"), opened=False)
    stage.subscribe(D1, "u")
    for name in ("t", "u"):
        stage.sources[S1].register(name)
    stage.settle()

    stage.publish(S1, b"secret", to="t")
    stage.publish(S1, b"public", to="u")
    stage.settle()

    assert stage.values(D1) == [b"public"]
    to_d1 = [message for _, receiver, message in stage.sent if receiver == D1]
    assert not any(getattr(message, "topic", None) == T for message in to_d1)


def test_a_history_never_names_a_batch_of_another_topic() -> None:
    """Section 5.8: a subscriber must not learn of topics that it may not see."""
    stage = Stage(topic(WITH_HISTORY), topic(WITH_HISTORY, "u"))
    for number in range(2 * ALPHA):
        stage.publish(S1, b"t%d" % number, to="t")
        stage.publish(S1, b"u%d" % number, to="u")
    stage.settle()

    for name in ("t", "u"):
        known = {digest(event(b"%s%d" % (name.encode(), n))) for n in range(2 * ALPHA)}
        named = {
            content
            for publish in stage.messages(Publish)
            if publish.lane is Lane.HISTORIES and publish.topic == topic_id(name)
            for payload in publish.payloads
            for content in History.decode(payload).digests
        }
        assert named == known


def test_a_subscriber_may_change_its_filter_at_any_time() -> None:
    """Section 5.4: new subscribe requests carry updated filters."""
    stage = Stage(topic(AUTHENTICATED))
    stage.subscribe(D1, wanted=Filter(key_prefix=b"host-7"))
    stage.settle()
    stage.publish_batch(S1, event(b"one", key=b"host-7"))
    stage.publish_batch(S1, event(b"two", key=b"host-8"))
    stage.settle()
    assert stage.values(D1) == [b"one"]

    stage.subscribe(D1, wanted=Filter(key_prefix=b"host-8"))
    stage.settle()
    stage.publish_batch(S1, event(b"three", key=b"host-7"))
    stage.publish_batch(S1, event(b"four", key=b"host-8"))
    stage.settle()
    assert stage.values(D1) == [b"one", b"four"]


# B7: back-pressure, section 6.2


def test_a_busy_broker_tells_its_publisher_to_wait_and_loses_nothing() -> None:
    """Section 6.2: `isBusy`, WAIT, and try again."""
    stage = Stage(topic({**AUTHENTICATED, "queue_events_max": 8}))
    values = names_of(40)
    for broker in stage.brokers.values():
        broker.writable(D1, False)

    for value in values:
        stage.publish(S1, value)
        stage.settle()
    assert Status.WAIT in statuses(stage, R1)
    assert len(stage.receipted(S1)) < len(values)
    assert not stage.sources[S1].has_room("t")

    for broker in stage.brokers.values():
        broker.writable(D1, True)
    stage.pass_time(10)
    assert sorted(stage.values(D1)) == sorted(values)
    assert len(stage.receipted(S1)) == len(values)


def test_a_busy_broker_holds_no_more_than_its_bound() -> None:
    """Section 6.2: flooding must not overload a broker."""
    stage = Stage(topic({**AUTHENTICATED, "queue_events_max": 8}))
    stage.brokers[R1].writable(D1, False)

    for number in range(1, 200):
        stage.say(S1, R1, run(number, b"flood"))
        stage.settle()

    assert stage.brokers[R1].topics[T].scope.channel.depth_events <= 8 + 1


# B8: misbehaving brokers, sections 6.7 and 7.3.4


def mute(stage: Stage, replica: NodeId) -> None:
    """Nothing to subscribers, no BRB message to f brokers, nothing down the chain."""
    stage.drop((Forward, Vouch, Link), sender=replica)
    stage.drop((Echo, ReadyVote), sender=replica, receiver=R3)


@pytest.mark.parametrize(
    ("table", "reaches"),
    [
        (AUTHENTICATED, False),
        (CHAIN, False),
        (RELIABLE, True),
        (WITH_HISTORY, True),
        (CHAIN_WITH_HISTORY, True),
    ],
)
def test_a_mute_broker_with_a_publisher_that_ignores_another_stops_all_but_reliable_broadcast(
    table: dict[str, object], reaches: bool
) -> None:
    """Sections 6.7 and 7.3.4: publications by AB and Chain do not reach the subscribers, those
    by BRB and with a history do. The source is kept to its first chain."""
    stage = Stage(topic(table))
    mute(stage, R2)
    stage.drop(Publish, sender=S1, receiver=R4)
    stage.alter(lambda link: link if link.chain == 0 else None, Link)

    stage.publish(S1, *names_of(ALPHA))
    stage.pass_time(3)

    assert sorted(stage.values(D1)) == (names_of(ALPHA) if reaches else [])


PROTOCOLS: dict[str, dict[str, object]] = {
    "authenticated": AUTHENTICATED,
    "reliable": RELIABLE,
    "chain": CHAIN,
    "authenticated-history": WITH_HISTORY,
    "chain-history": CHAIN_WITH_HISTORY,
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_that_alters_a_field_of_everything_forges_nothing_and_stops_nothing(
    protocol: str, field: str
) -> None:
    """Section 6.7, listing 6.14, field by field."""
    stage = Stage(topic(PROTOCOLS[protocol]), destinations=(D1, D2))
    stage.misbehave(R1, Lie(Random(1), 100, [field]))

    stage.publish(S1, *names_of(10))
    stage.pass_time(3)

    assert sorted(stage.values(D1)) == sorted(names_of(10))
    assert sorted(stage.values(D2)) == sorted(names_of(10))
    assert stage.receipted(S1) == list(range(1, 11))


def test_a_broker_alters_the_percentage_that_it_was_told() -> None:
    """Section 6.7: a number between 1 and 100."""
    original = Ack(T, Lane.EVENTS, Status.OK, 7)
    lie = Lie(Random(1), 30, ["sequence"])

    ((_, ready),) = lie(Ready(send=[(S1, original)] * 400), 0)

    altered = sum(message != original for _, message in ready.send)
    assert altered == lie.altered
    assert 90 <= altered <= 150


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_that_drops_half_of_its_messages_loses_nobody_anything(protocol: str) -> None:
    """Section 7.3.4, selectively dropping."""
    stage = Stage(topic(PROTOCOLS[protocol]))
    stage.misbehave(R1, Drop(Random(1), 50))

    stage.publish(S1, *names_of(10))
    stage.pass_time(5)

    assert sorted(stage.values(D1)) == sorted(names_of(10))
