"""One replica's half of Bracha's reliable broadcast, vote by vote, and what bounds it."""

from unittest.mock import patch

from quorate.core.filter import Filter
from quorate.core.ids import Lane, Stream, node_of, topic_id
from quorate.core.limits import WINDOW_BATCHES
from quorate.core.messages import (
    Ack,
    Echo,
    Fetch,
    Forward,
    Message,
    Publish,
    ReadyVote,
    Status,
    Supply,
    Vouch,
)
from quorate.crypto.digests import digest
from quorate.protocol.broadcast import reliable
from quorate.protocol.broadcast.reliable import (
    ABANDON_AFTER_US,
    PAYLOAD_PATIENCE_US,
    REPEAT_AFTER_US,
    STREAMS_MAX,
)
from quorate.protocol.broadcast.scope import Scope
from quorate.protocol.channel import Channel
from quorate.protocol.retention import Retention
from stage import D1, R1, R2, R3, R4, S1, S2, Outlook, event, name_of, pairwise_macs, topic

T = topic_id("t")
STREAM = Stream(S1, T)
M1 = event(b"m1")
OTHERS = (R2, R3, R4)


class Alone:
    """Replica 1 by itself; the test plays the others."""

    def __init__(self, **keys: object) -> None:
        self.outlook = Outlook()
        each = topic({"broadcast": "reliable", **keys})
        names = {client: name_of(client) for client in (S1, S2, D1)}
        channel = Channel(each, names, self.outlook.outbox)
        channel.subscribe(D1, True, Filter())
        self.scope = Scope(R1, each, channel, Retention(), self.outlook.outbox, pairwise_macs(R1))
        self.replica = reliable.Replica(self.scope)

    @property
    def open_instances(self) -> int:
        return sum(len(progress.open) for progress in self.replica._streams.values())

    def publish(self, *payloads: bytes, first: int = 1, source: int = S1, settled: int = 1) -> None:
        run = Publish(T, Lane.EVENTS, False, first, settled, list(payloads))
        self.replica.on_publish(source, run)

    def echo(self, replica: int, *payloads: bytes, first: int = 1, source: int = S1) -> None:
        digests = [digest(payload) for payload in payloads]
        self.replica.on_echo(replica, Echo(source, T, Lane.EVENTS, first, digests))

    def ready(self, replica: int, *payloads: bytes, first: int = 1) -> None:
        digests = [digest(payload) for payload in payloads]
        self.replica.on_ready(replica, ReadyVote(S1, T, Lane.EVENTS, first, digests))

    def supply(self, payload: bytes, sequence: int = 1) -> None:
        self.replica.on_supply(Supply(S1, T, Lane.EVENTS, [sequence], [payload]))

    def turn(self) -> list[tuple[int, Message]]:
        """What this turn sends."""
        self.replica.flush()
        self.scope.channel.drain()
        self.scope.flush_acks()
        return self.outlook.take().send

    def said(self, kind: type) -> list[tuple[int, Message]]:
        return [(node, message) for node, message in self.turn() if isinstance(message, kind)]

    def later(self, elapsed_us: int) -> None:
        self.outlook.at(self.outlook.outbox.now_us + elapsed_us)
        self.replica.tick()


def test_it_echoes_what_its_source_sent_in_runs() -> None:
    alone = Alone()
    alone.publish(M1, event(b"m2"))

    echo = Echo(*STREAM, 1, [digest(M1), digest(event(b"m2"))])
    assert alone.said(Echo) == [(replica, echo) for replica in OTHERS]


def test_it_closes_and_acknowledges_on_three_readies_and_not_on_two() -> None:
    alone = Alone()
    alone.publish(M1)
    alone.echo(R2, M1)
    alone.echo(R3, M1)
    alone.turn()
    alone.ready(R2, M1)
    assert alone.said(Ack) == []
    assert alone.open_instances == 1

    alone.ready(R3, M1)
    assert alone.said(Ack) == [(S1, Ack(T, Lane.EVENTS, Status.OK, 1))]
    assert alone.open_instances == 0


def test_it_stands_up_for_a_batch_only_with_its_payload() -> None:
    alone = Alone()
    for replica in OTHERS:
        alone.echo(replica, M1)
    assert not any(isinstance(m, Forward | Vouch) for _, m in alone.turn())

    alone.later(PAYLOAD_PATIENCE_US)
    assert (R2, Fetch(*STREAM, payload=True, sequences=[1])) in alone.turn()
    alone.supply(M1)
    assert [m for _, m in alone.said(Forward)] == [Forward(*STREAM, False, 1, [M1])]


def test_it_asks_another_voucher_for_a_payload_that_stays_out() -> None:
    alone = Alone()
    for replica in OTHERS:
        alone.echo(replica, M1)
    asked = []
    for _ in range(3):
        alone.later(reliable.REPEAT_AFTER_US_MAX)
        asked += [n for n, m in alone.said(Fetch) if isinstance(m, Fetch) and m.payload]

    assert asked == [R2, R3, R4]


def test_a_payload_with_another_digest_is_not_taken() -> None:
    alone = Alone()
    for replica in OTHERS:
        alone.echo(replica, M1)
    alone.turn()

    alone.supply(event(b"forged"))

    assert alone.said(Forward) == []


def test_a_payload_that_nobody_asked_for_is_not_taken() -> None:
    alone = Alone()

    alone.supply(M1)

    assert alone.turn() == []
    assert alone.open_instances == 0


def test_its_source_s_content_gives_way_to_that_of_the_quorum() -> None:
    alone = Alone()
    alone.publish(event(b"only for you"))
    for replica in OTHERS:
        alone.echo(replica, M1)

    sent = alone.turn()
    readies = [m for _, m in sent if isinstance(m, ReadyVote)]
    assert readies == [ReadyVote(*STREAM, 1, [digest(M1)])] * 3
    assert not any(isinstance(m, Forward) for _, m in sent)
    alone.supply(M1)
    assert [m for _, m in alone.said(Forward)] == [Forward(*STREAM, False, 1, [M1])]


def test_votes_for_different_contents_do_not_add_up() -> None:
    alone = Alone()
    alone.echo(R2, M1)
    alone.echo(R3, M1)
    alone.echo(R4, event(b"another"))
    alone.ready(R2, M1)
    alone.ready(R3, event(b"another"))

    assert alone.said(ReadyVote) == []


def test_it_repeats_what_stays_open_and_asks_the_silent_for_their_votes() -> None:
    alone = Alone()
    alone.publish(M1)
    alone.ready(R2, M1)
    alone.turn()

    alone.later(REPEAT_AFTER_US)

    sent = alone.turn()
    assert {n for n, m in sent if isinstance(m, Echo)} == set(OTHERS)
    assert {n for n, m in sent if isinstance(m, Fetch) and not m.payload} == {R3, R4}


def test_a_batch_that_is_closed_is_vouched_for_once_and_never_reopened() -> None:
    alone = Alone()
    alone.publish(M1)
    for replica in OTHERS:
        alone.echo(replica, M1)
        alone.ready(replica, M1)
    assert len(alone.said(Forward)) == 1

    alone.publish(M1)
    for replica in OTHERS:
        alone.echo(replica, event(b"late lie"))
        alone.ready(replica, event(b"late lie"))
    alone.later(REPEAT_AFTER_US)

    sent = alone.turn()
    assert [m for _, m in sent if not isinstance(m, Ack)] == []
    assert alone.open_instances == 0


def test_it_asks_the_others_about_what_a_subscriber_misses_and_it_never_heard_of() -> None:
    alone = Alone()
    alone.publish(M1)
    alone.turn()

    alone.replica.inquire(STREAM, [1, 2])

    assert alone.said(Fetch) == [
        (replica, Fetch(*STREAM, payload=False, sequences=[2])) for replica in OTHERS
    ]


# Bounds


def test_a_source_that_never_completes_opens_no_more_than_a_window() -> None:
    alone = Alone()
    for first in range(1, 3 * WINDOW_BATCHES, 512):
        alone.publish(*[b"x"] * 512, first=first)
        alone.publish(*[b"x"] * 512, first=10_000 + first, settled=10_000 + first)
        alone.outlook.take()

    assert alone.open_instances <= WINDOW_BATCHES


def test_a_source_that_never_completes_holds_no_more_than_its_bytes() -> None:
    alone = Alone()
    with patch.object(reliable, "OPEN_BYTES_MAX", 1000):
        for first in range(1, 40):
            alone.publish(bytes(100), first=first)
        assert len(alone.said(Echo)) == len(OTHERS)

    # Ten of them were taken in, and echoed as one run.
    assert len(alone.scope.intakes) == 1
    progress = alone.replica._streams[STREAM]
    assert sum(len(i.payload or b"") for i in progress.open.values()) == 1000


def test_the_sessions_of_a_member_share_its_bytes_and_leave_those_of_others_alone() -> None:
    alone = Alone()
    with patch.object(reliable, "OPEN_BYTES_MAX", 1000):
        for session in range(20):
            alone.publish(bytes(100), source=node_of(S1, session))
        alone.publish(M1, source=S2)
        echoed = {m.publisher for _, m in alone.said(Echo) if isinstance(m, Echo)}

    assert len(echoed) == 10 + 1
    assert S2 in echoed


def test_the_sessions_of_a_member_share_the_number_of_open_batches() -> None:
    alone = Alone()
    with patch.object(reliable, "OPEN_BATCHES_MAX", 10):
        for session in range(20):
            alone.publish(M1, M1, source=node_of(S1, session))
        assert alone.open_instances == 10

        alone.publish(M1, source=S2)
        assert alone.open_instances == 11


def test_a_publisher_that_is_forgotten_gives_its_share_back() -> None:
    alone = Alone()
    with patch.object(reliable, "OPEN_BYTES_MAX", 1000):
        alone.publish(*[bytes(100)] * 10, source=node_of(S1, 1))
        alone.turn()
        alone.replica.forget(node_of(S1, 1))
        alone.publish(*[bytes(100)] * 10, source=node_of(S1, 2))

        (echo, *_) = [m for _, m in alone.said(Echo)]

    assert isinstance(echo, Echo)
    assert len(echo.digests) == 10


def test_a_replica_that_invents_numbers_opens_its_share_and_blocks_nobody() -> None:
    alone = Alone()
    for first in range(1, 3 * WINDOW_BATCHES, 512):
        alone.echo(R4, *[b"x"] * 512, first=10_000 + first)
        alone.ready(R4, *[b"x"] * 512, first=10_000 + first)
    assert alone.open_instances == WINDOW_BATCHES

    alone.publish(M1)
    alone.echo(R2, M1)
    alone.echo(R3, M1)
    assert len(alone.said(ReadyVote)) == 3


def test_a_replica_that_invents_sessions_opens_its_share_and_blocks_nobody() -> None:
    alone = Alone()
    for session in range(1, 3 * STREAMS_MAX):
        alone.echo(R4, M1, source=node_of(S1, session))
    assert alone.open_instances == STREAMS_MAX

    alone.publish(M1)
    alone.echo(R2, M1)
    alone.echo(R3, M1)
    assert len(alone.said(ReadyVote)) == 3


def test_a_publisher_that_tells_each_session_to_one_replica_keeps_nobody_else_out() -> None:
    alone = Alone()
    for replica in OTHERS:
        for session in range(1, STREAMS_MAX + 10):
            alone.echo(replica, M1, source=node_of(S2, session * 4 + replica))

    for replica in (R3, R4):
        alone.ready(replica, M1)

    assert len(alone.replica._streams) == len(OTHERS) * STREAMS_MAX
    assert {m.publisher for _, m in alone.said(ReadyVote) if isinstance(m, ReadyVote)} == {S1}


def test_a_replica_opens_so_many_batches_on_all_the_sessions_that_it_invents() -> None:
    alone = Alone()
    with patch.object(reliable, "OPEN_BATCHES_MAX", 100):
        for session in range(1, 20):
            alone.echo(R4, *[M1] * 50, source=node_of(S1, session))
        assert alone.open_instances == 100

        alone.echo(R3, M1, source=S2)
        assert alone.open_instances == 101


def test_a_publisher_that_tells_all_its_batches_to_one_replica_keeps_nobody_else_s_out() -> None:
    alone = Alone()
    with patch.object(reliable, "OPEN_BATCHES_MAX", 100):
        for replica in OTHERS:
            for session in range(1, 20):
                alone.echo(replica, *[M1] * 50, source=node_of(S2, session * 4 + replica))
        for replica in (R3, R4):
            alone.ready(replica, M1)

    assert {m.publisher for _, m in alone.said(ReadyVote) if isinstance(m, ReadyVote)} == {S1}


def test_what_a_replica_opened_alone_makes_room_when_it_is_forgotten() -> None:
    alone = Alone()
    with patch.object(reliable, "OPEN_BATCHES_MAX", 100):
        alone.echo(R4, *[M1] * 100, source=node_of(S1, 1))
        alone.later(ABANDON_AFTER_US + REPEAT_AFTER_US)
        alone.echo(R4, *[M1] * 100, source=node_of(S1, 2))

    assert alone.open_instances == 100


def test_whoever_votes_for_something_else_is_named_once_a_turn() -> None:
    alone = Alone()
    other = event(b"other")
    alone.publish(M1, M1, M1)
    alone.echo(R4, other, other, other)
    for replica in (R2, R3):
        alone.echo(replica, M1, M1, M1)
        alone.ready(replica, M1, M1, M1)
    alone.replica.flush()

    (report,) = alone.outlook.take().reports
    assert (report.node, report.kind) == (R4, "outvoted")
    assert report.detail == f"voted for another content of batch 1 and 2 more of publisher {S1}"


def test_what_nobody_completes_is_forgotten_with_its_stream() -> None:
    alone = Alone()
    for session in range(1, 20):
        alone.echo(R4, M1, source=node_of(S1, session))
    alone.turn()

    alone.later(ABANDON_AFTER_US + REPEAT_AFTER_US)
    alone.later(1)

    assert alone.open_instances == 0
    assert not alone.replica._streams


def test_what_it_echoed_and_nobody_completed_it_never_echoes_with_another_content() -> None:
    """Or a source that waits for a minute would have two quorums of ECHOes."""
    alone = Alone()
    alone.publish(M1)
    alone.turn()
    alone.later(ABANDON_AFTER_US + REPEAT_AFTER_US)
    assert alone.open_instances == 0

    alone.publish(event(b"m2"))
    alone.later(REPEAT_AFTER_US)
    assert {m.digests[0] for _, m in alone.said(Echo) if isinstance(m, Echo)} == {digest(M1)}

    # What the others agree on, it joins in.
    for replica in OTHERS:
        alone.ready(replica, M1)
    alone.supply(M1)
    assert alone.said(Ack) == [(S1, Ack(T, Lane.EVENTS, Status.OK, 1))]


def test_what_it_echoed_and_nobody_completed_is_remembered_within_bounds() -> None:
    alone = Alone()
    for first in range(1, 4 * WINDOW_BATCHES, WINDOW_BATCHES):
        payloads = [b"%d" % (first + offset) for offset in range(WINDOW_BATCHES)]
        alone.publish(*payloads, first=first, settled=first)
        for _ in range(WINDOW_BATCHES // reliable.REPEAT_BATCHES_MAX):
            alone.later(ABANDON_AFTER_US + REPEAT_AFTER_US)
        alone.turn()
    progress = alone.replica._streams[STREAM]
    assert alone.open_instances == 0
    assert len(progress.abandoned) < 2 * WINDOW_BATCHES

    # Of what it no longer knows it ECHOes nothing.
    alone.scope.intakes.clear()
    alone.publish(M1)
    assert alone.said(Echo) == []


def test_closed_batches_are_remembered_within_bounds() -> None:
    alone = Alone()
    for first in range(1, 3 * WINDOW_BATCHES, 512):
        payloads = [b"%d" % (first + offset) for offset in range(512)]
        alone.publish(*payloads, first=first)
        for replica in OTHERS:
            alone.echo(replica, *payloads, first=first)
            alone.ready(replica, *payloads, first=first)
        alone.turn()

    assert alone.open_instances == 0
    assert len(alone.replica._streams[STREAM].closed) <= 2 * WINDOW_BATCHES
