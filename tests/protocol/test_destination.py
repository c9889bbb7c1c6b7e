"""The subscribing end: each batch once, whatever the replicas say and in whatever order."""

import itertools
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.core.errors import LocalProtocolError
from quorate.core.ids import Lane, node_of, topic_id
from quorate.core.limits import WINDOW_BATCHES, WINDOWS
from quorate.core.messages import (
    Ack,
    Fetch,
    Forward,
    Frontier,
    Message,
    Omitted,
    Publish,
    Request,
    Status,
    Supply,
    Taken,
    Vouch,
)
from quorate.core.ordering import BEGIN_US, END_US, Chained, Locate, Located
from quorate.crypto.digests import digest
from quorate.protocol.broadcast.history import History
from quorate.protocol.destination import PROGRESS_STEP, Destination
from quorate.protocol.incoming import (
    ASK_AFTER_US,
    HEARSAY_BATCHES_MAX,
    LEAD_GRACE_US,
    MARK_EVERY_US,
    PATIENCE_US,
    RUN_PATIENCE_US,
)
from quorate.protocol.listener import TICK_EVERY_US
from quorate.protocol.machine import Begun, Delivery, Skipped
from quorate.protocol.ordering.reading import LATE_AFTER_US, Reading
from quorate.protocol.subscription import (
    EARLY_BYTES_MAX,
    IDLE_STREAM_US,
    LATE_BATCHES_MAX,
    STREAMS_MAX,
    Subscription,
)
from stage import D1, R1, R2, R3, R4, S1, S2, Stage, event, pairwise_macs, topic

AUTHENTICATED: dict[str, object] = {"broadcast": "authenticated", "history_every": 0}
FIFO: dict[str, object] = {**AUTHENTICATED, "order": "fifo"}
T = topic_id("t")
VOICES = (Forward, Vouch)
REPLICAS = (R1, R2, R3, R4)
BATCHES = 6


def forward(first: int, *values: bytes, source: int = S1) -> Forward:
    return Forward(source, T, Lane.EVENTS, False, first, [event(value) for value in values])


def vouch(first: int, *values: bytes, source: int = S1) -> Vouch:
    return Vouch(source, T, Lane.EVENTS, first, [digest(event(value)) for value in values])


def begin(lowest: int = 1, highest: int = 0) -> Frontier:
    return Frontier(S1, T, Lane.EVENTS, lowest, highest)


class Alone:
    """A subscriber by itself; the test plays the replicas."""

    def __init__(self, table: dict[str, object] = AUTHENTICATED, *, begun: bool = True) -> None:
        self.machine = Destination(D1, [topic(table)], pairwise_macs(D1), [S1, S2])
        self.machine.tick(0)
        for replica in REPLICAS:
            self.machine.connected(replica)
        self.machine.subscribe("t")
        if begun:
            for replica in REPLICAS:
                self.machine.step(replica, begin())
        self.machine.take()

    def hear(self, replica: int, message: Message) -> list[int]:
        """Which numbers are delivered now."""
        self.machine.step(replica, message)
        return self.delivered()

    def asked_until(self, now_us: int) -> list[tuple[int, Fetch]]:
        """What is asked for while time passes."""
        asked: list[tuple[int, Fetch]] = []
        for at_us in range(0, now_us + 1, TICK_EVERY_US):
            self.machine.tick(at_us)
            ready = self.machine.take()
            asked += [(node, m) for node, m in ready.send if isinstance(m, Fetch)]
        return asked

    def delivered(self) -> list[int]:
        return [o.sequence for o in self.machine.take().deliver if isinstance(o, Delivery)]

    @property
    def subscription(self) -> Subscription:
        return self.machine._subscriptions[T]


def values_of(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


# Once, in whatever order


@st.composite
def truthful_voices(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Replica, first and last number: each replica cuts its runs as it likes, and repeats some."""
    voices: list[tuple[int, int, int]] = []
    for replica in REPLICAS:
        first = 1
        while first <= BATCHES:
            last = draw(st.integers(first, BATCHES))
            voices.append((replica, first, last))
            first = last + 1
    again = st.tuples(st.sampled_from(REPLICAS), st.integers(1, BATCHES))
    voices += [(replica, number, number) for replica, number in draw(st.lists(again, max_size=8))]
    return draw(st.permutations(voices))


@given(truthful_voices(), st.sampled_from(["none", "fifo"]))
@settings(max_examples=150)
def test_each_batch_is_delivered_once_whatever_the_runs_and_their_order(
    voices: list[tuple[int, int, int]], kept: str
) -> None:
    alone = Alone({**AUTHENTICATED, "order": kept})
    delivered: list[int] = []
    for replica, first, last in voices:
        values = [b"%d" % number for number in range(first, last + 1)]
        lead = replica == alone.machine.lead_of("t")
        said = forward(first, *values) if lead else vouch(first, *values)
        delivered += alone.hear(replica, said)
    alone.machine.tick(RUN_PATIENCE_US + 1)
    delivered += alone.delivered()

    assert sorted(delivered) == list(range(1, BATCHES + 1))
    if kept == "fifo":
        assert delivered == sorted(delivered)


def test_a_batch_that_was_counted_by_itself_is_not_delivered_again_with_its_run() -> None:
    alone = Alone()
    run = (b"1", b"2", b"3")
    for replica in (R2, R3):
        assert alone.hear(replica, vouch(1, *run)) == []
    alone.hear(R1, forward(2, b"2"))
    alone.hear(R2, vouch(2, b"2"))
    assert alone.hear(R3, vouch(2, b"2")) == [2]

    assert alone.hear(R1, forward(1, *run)) == [1, 3]
    assert alone.hear(R4, vouch(1, *run)) == []


def test_voices_that_repeat_themselves_are_no_quorum() -> None:
    alone = Alone()
    for _ in range(5):
        assert alone.hear(R1, forward(1, b"a")) == []
        assert alone.hear(R2, vouch(1, b"a")) == []

    assert alone.hear(R3, vouch(1, b"a")) == [1]


def test_fifo_waits_for_what_is_missing() -> None:
    stage = Stage(topic(FIFO))
    second = stage.hold(VOICES, receiver=D1)
    stage.publish(S1, b"1")
    stage.settle()
    second.lifted = True
    stage.publish(S1, b"2", b"3")
    stage.settle()
    assert stage.values() == []

    stage.release(second)
    stage.settle()
    assert stage.values() == [b"1", b"2", b"3"]


def test_fifo_goes_on_without_what_never_comes_and_says_so() -> None:
    alone = Alone(FIFO)
    for replica in REPLICAS:
        alone.hear(replica, forward(2, b"2"))

    skipped: list[Skipped] = []
    delivered: list[int] = []
    for step in range(1, 9):
        alone.machine.tick(step * MARK_EVERY_US)
        for outcome in alone.machine.take().deliver:
            if isinstance(outcome, Skipped):
                skipped.append(outcome)
            elif isinstance(outcome, Delivery):
                delivered.append(outcome.sequence)

    assert delivered == [2]
    assert [(s.first, s.count) for s in skipped] == [(1, 1)]


# The lead


def test_the_payload_comes_from_one_replica_and_digests_from_the_others() -> None:
    stage = Stage(topic(AUTHENTICATED))
    lead = stage.destinations[D1].lead_of("t")
    stage.publish(S1, b"a")
    stage.settle()

    assert {s for s, _, m in stage.sent if isinstance(m, Forward)} == {lead}
    assert {s for s, _, m in stage.sent if isinstance(m, Vouch)} == set(REPLICAS) - {lead}


def test_a_lead_that_forges_is_replaced_and_costs_nothing() -> None:
    stage = Stage(topic(AUTHENTICATED))
    lead = stage.destinations[D1].lead_of("t")
    stage.alter(
        lambda m: msgspec.structs.replace(m, payloads=[event(b"forged")] * len(m.payloads)),
        (Forward, Supply),
        sender=lead,
    )

    stage.publish(S1, b"a")
    stage.pass_time(1)
    stage.publish(S1, b"b")
    stage.pass_time(1)

    assert stage.values() == [b"a", b"b"]
    assert stage.destinations[D1].lead_of("t") != lead
    assert set(stage.reported("forgery", by=D1)) == {lead}


def test_a_lead_whose_link_breaks_is_replaced() -> None:
    stage = Stage(topic(AUTHENTICATED))
    lead = stage.destinations[D1].lead_of("t")
    assert lead is not None
    stage.disconnect(D1, lead)
    stage.settle()
    stage.publish(S1, b"a")
    stage.settle()

    assert stage.values() == [b"a"]
    assert stage.destinations[D1].lead_of("t") != lead


def test_a_lead_that_falls_behind_is_replaced() -> None:
    stage = Stage(topic(AUTHENTICATED))
    lead = stage.destinations[D1].lead_of("t")
    stage.drop(Forward, sender=lead)

    stage.publish(S1, *values_of(2 * LATE_BATCHES_MAX))
    stage.pass_time(2 * ASK_AFTER_US / 1e6)

    assert sorted(stage.values()) == values_of(2 * LATE_BATCHES_MAX)
    assert stage.reported("late", by=D1) == [lead]
    assert stage.destinations[D1].lead_of("t") != lead


def test_a_new_lead_is_not_blamed_for_what_the_former_owed() -> None:
    """It sends digests until it hears that it leads, and what it sent so, it sends no more."""
    values = values_of(20 * LATE_BATCHES_MAX)
    stage = Stage(topic({"protection": "crash"}))
    lead = stage.destinations[D1].lead_of("t")
    stage.drop(sender=lead)

    for start in range(0, len(values), LATE_BATCHES_MAX):
        stage.publish(S1, *values[start : start + LATE_BATCHES_MAX])
        stage.pass_time(TICK_EVERY_US / 1e6)
    stage.pass_time(1)

    assert sorted(stage.values()) == values
    assert stage.reported("late", by=D1) == [lead]


def test_a_lead_that_sends_digests_only_is_replaced_in_the_end() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.pass_time(LEAD_GRACE_US / 1e6 + 0.1)
    lead = stage.destinations[D1].lead_of("t")
    stage.alter(
        lambda m: Vouch(m.publisher, m.topic, m.lane, m.first, [digest(p) for p in m.payloads]),
        Forward,
        sender=lead,
    )

    stage.publish(S1, *values_of(2 * LATE_BATCHES_MAX))
    stage.settle()

    assert sorted(stage.values()) == values_of(2 * LATE_BATCHES_MAX)
    assert stage.reported("late", by=D1) == [lead]


def test_a_payload_that_the_lead_will_not_send_is_asked_for_at_once() -> None:
    alone = Alone()
    lead = alone.machine.lead_of("t")
    others = [replica for replica in REPLICAS if replica != lead]
    for replica in others[:2]:
        alone.hear(replica, vouch(1, b"a", b"b"))
    assert lead is not None
    alone.machine.step(lead, vouch(1, b"a", b"b"))

    asked = [m for _, m in alone.machine.take().send if isinstance(m, Fetch)]

    assert sorted(s for fetch in asked for s in fetch.sequences) == [1, 2]
    assert all(fetch.payload for fetch in asked)


def test_whoever_was_outvoted_is_heard_last_and_counts_all_the_same() -> None:
    alone = Alone()
    lead = alone.machine.lead_of("t")
    liar, *others = (replica for replica in REPLICAS if replica != lead)
    assert lead is not None
    alone.machine.step(liar, vouch(1, b"another"))
    alone.machine.step(lead, forward(1, b"a"))
    for replica in others:
        alone.machine.step(replica, vouch(1, b"a"))
    assert alone.delivered() == [1]

    alone.machine.step(liar, vouch(2, b"b"))
    alone.machine.step(lead, forward(2, b"b"))
    assert alone.hear(others[0], vouch(2, b"b")) == []
    alone.machine.tick(RUN_PATIENCE_US + TICK_EVERY_US)

    assert alone.delivered() == [2]


def test_a_replica_that_was_caught_is_the_last_to_lead_again() -> None:
    stage = Stage(topic(AUTHENTICATED))
    destination = stage.destinations[D1]
    liar = destination.lead_of("t")
    assert liar is not None
    stage.say(liar, D1, vouch(1, b"a"))
    stage.say(liar, D1, vouch(1, b"b"))
    stage.settle()

    leads = []
    for _ in range(3):
        lead = destination.lead_of("t")
        assert lead is not None
        leads.append(lead)
        stage.disconnect(D1, lead)
        stage.settle()

    assert liar not in leads
    assert destination.lead_of("t") == liar


def test_the_replicas_hear_who_leads_now() -> None:
    stage = Stage(topic(AUTHENTICATED))
    lead = stage.destinations[D1].lead_of("t")
    assert lead is not None
    stage.say(lead, D1, vouch(1, b"a"))
    stage.say(lead, D1, vouch(1, b"b"))
    stage.settle()

    new = stage.destinations[D1].lead_of("t")
    said = {r: m.lead for _, r, m in stage.sent if isinstance(m, Request)}
    assert said[lead] is False
    assert new is not None
    assert said[new] is True


# Who lies about what


def test_a_replica_that_vouches_for_two_contents_is_named_and_counts_once() -> None:
    alone = Alone()
    alone.hear(R1, vouch(1, b"a"))
    alone.machine.step(R1, vouch(1, b"b"))
    assert [(r.node, r.kind) for r in alone.machine.take().reports] == [(R1, "forgery")]

    alone.hear(R2, vouch(1, b"b"))
    assert alone.hear(R3, forward(1, b"b")) == []


@pytest.mark.parametrize("lowest", [0, 7, 10**6, 2**63])
def test_a_replica_that_lies_about_where_a_stream_begins_hides_nothing(lowest: int) -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.say(R4, D1, begin(lowest, lowest))
    stage.settle()

    stage.publish(S1, *values_of(10))
    stage.settle()

    assert stage.values() == values_of(10)


@pytest.mark.parametrize("lowest", [0, 7, 10**6, 2**63])
def test_where_a_stream_begins_is_not_for_one_replica_to_say(lowest: int) -> None:
    alone = Alone(begun=False)
    alone.hear(R4, begin(lowest, lowest))
    for replica in (R1, R2, R3):
        alone.hear(replica, begin())

    delivered = [n for r in (R1, R2, R3) for n in alone.hear(r, forward(1, b"a"))]

    assert delivered == [1]


def test_a_subscriber_that_came_late_begins_where_the_replicas_say() -> None:
    alone = Alone(begun=False)
    for replica in REPLICAS:
        alone.hear(replica, begin(50, 49))

    delivered = [n for r in REPLICAS for n in alone.hear(r, forward(49, b"old", b"new"))]

    assert delivered == [50]


@pytest.mark.parametrize("first", [1, 5, 10**6, 2**63])
def test_a_replica_that_claims_to_omit_hides_nothing(first: int) -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.say(R4, D1, Omitted(S1, T, Lane.EVENTS, first, 4000))
    stage.settle()

    stage.publish(S1, *values_of(10))
    stage.settle()

    assert stage.values() == values_of(10)


def test_a_replica_that_vouches_for_numbers_that_do_not_exist_stops_no_stream() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"first")
    stage.settle()
    for number in range(2, 3 * WINDOWS.credit, 500):
        stage.say(R4, D1, Vouch(S1, T, Lane.EVENTS, number + 10**5, [bytes(32)]))
        stage.say(R4, D1, Omitted(S1, T, Lane.EVENTS, number, 3))
    for start in range(0, 3 * WINDOWS.credit, 256):
        stage.publish(S1, *[b"%d" % number for number in range(start, start + 256)])
        stage.settle()
    stage.pass_time(1)

    assert len(stage.values()) == 1 + 3 * WINDOWS.credit


def test_a_stream_of_a_publisher_that_nobody_knows_is_a_forgery() -> None:
    alone = Alone()
    alone.machine.step(R1, forward(1, b"a", source=77))

    assert [(r.node, r.kind) for r in alone.machine.take().reports] == [(R1, "forgery")]


def test_a_voice_from_outside_the_topic_does_not_count() -> None:
    alone = Alone()
    alone.hear(R1, forward(1, b"a"))
    alone.hear(R2, vouch(1, b"a"))

    assert alone.hear(9, vouch(1, b"a")) == []
    assert alone.hear(R3, vouch(1, b"a")) == [1]


def test_topics_that_were_not_subscribed_to_are_not_heard() -> None:
    alone = Alone()
    for replica in REPLICAS:
        message = msgspec.structs.replace(forward(1, b"a"), topic=topic_id("u"))
        assert alone.hear(replica, message) == []


def test_what_is_not_for_a_destination_is_reported() -> None:
    alone = Alone()
    alone.machine.step(R1, Ack(T, Lane.EVENTS, Status.OK, 1))

    assert [(r.node, r.kind) for r in alone.machine.take().reports] == [(R1, "rejected")]


# Asking


def test_a_payload_that_stays_out_is_asked_for_and_from_another_when_it_is_wrong() -> None:
    alone = Alone()
    for replica in (R2, R3, R4):
        alone.hear(replica, vouch(1, b"a"))
    asked = [n for n, fetch in alone.asked_until(6 * ASK_AFTER_US) if fetch.payload]

    assert set(asked[:3]) == {R2, R3, R4}
    alone.machine.step(asked[-1], Supply(S1, T, Lane.EVENTS, [1], [event(b"forged")]))
    assert [(r.node, r.kind) for r in alone.machine.take().reports] == [(asked[-1], "forgery")]
    assert alone.hear(R2, Supply(S1, T, Lane.EVENTS, [1], [event(b"a")])) == [1]


def test_a_quorum_that_stays_out_is_asked_for_among_those_who_have_not_spoken() -> None:
    alone = Alone()
    alone.hear(R1, forward(1, b"a"))
    alone.hear(R2, vouch(1, b"a"))

    asked = alone.asked_until(2 * ASK_AFTER_US)

    assert {replica for replica, _ in asked} == {R3, R4}


def test_what_nobody_spoke_of_but_several_claim_is_asked_for() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, b"1")
    stage.settle()
    lost = stage.drop(VOICES, receiver=D1)
    stage.publish(S1, b"2")
    stage.settle()
    stage.release(lost)
    assert stage.values() == [b"1"]

    stage.pass_time(2)

    assert stage.values() == [b"1", b"2"]


def test_what_one_replica_alone_claims_is_not_asked_for() -> None:
    alone = Alone()
    alone.hear(R4, begin(1, 500))

    alone.machine.tick(ASK_AFTER_US + 50_000)

    assert not any(isinstance(m, Fetch) for _, m in alone.machine.take().send)


def test_a_payload_that_nobody_supplies_is_given_up_and_said() -> None:
    alone = Alone()
    for replica in (R2, R3, R4):
        alone.hear(replica, vouch(1, b"a"))

    alone.machine.tick(RUN_PATIENCE_US)
    alone.machine.tick(RUN_PATIENCE_US + PATIENCE_US + 2 * ASK_AFTER_US)

    (skipped,) = [o for o in alone.machine.take().deliver if isinstance(o, Skipped)]
    assert (skipped.first, skipped.count, skipped.why) == (1, 1, "nobody supplied its payload")


# Progress


def test_replicas_hear_of_progress_in_steps_and_at_ticks() -> None:
    stage = Stage(topic(AUTHENTICATED))
    stage.publish(S1, *values_of(PROGRESS_STEP))
    stage.settle()
    assert [t.through for t in stage.messages(Taken, receiver=R1)] == [PROGRESS_STEP]

    stage.publish(S1, b"x")
    stage.pass_time(0.1)
    assert [t.through for t in stage.messages(Taken, receiver=R1)][-1] == PROGRESS_STEP + 1


def test_a_replica_that_lags_far_behind_is_not_cut_off() -> None:
    stage = Stage(topic(AUTHENTICATED))
    late = stage.hold(Publish, receiver=R4)
    for number in range(1800):
        stage.publish(S1, b"%d" % number)
        if number % 10 == 9:
            stage.settle()
    stage.pass_time(0.3)
    stage.release(late)

    stage.pass_time(15)

    assert stage.reported("stalled") == []
    assert stage.brokers[R4].topics[T].scope.channel.depth_events == 0


def test_a_gap_that_nobody_can_fill_does_not_stop_a_stream() -> None:
    """One replica is down and another discarded and forgot: too few are left for a quorum."""
    stage = Stage(topic({**AUTHENTICATED, "queue_events_max": 10, "discard": "oldest"}))
    stage.crash(R4)
    stage.drop(Fetch, receiver=R1)
    stage.brokers[R1].writable(D1, False)
    stage.publish(S1, *values_of(8))
    stage.settle()
    stage.publish(S1, *values_of(8))
    stage.settle()
    stage.brokers[R1].writable(D1, True)
    stage.settle()
    for number in range(2 * WINDOWS.credit):
        stage.publish(S1, b"%d" % number)
        if number % 5 == 4:
            stage.settle()
    stage.pass_time(20)

    assert stage.reported("stalled") == []
    assert b"%d" % (2 * WINDOWS.credit - 1) in stage.values()


def test_what_enough_replicas_omit_is_left_out_and_waited_for_by_nobody() -> None:
    alone = Alone(FIFO)
    for replica in (R1, R2):
        alone.hear(replica, Omitted(S1, T, Lane.EVENTS, 1, 2))

    delivered = [n for replica in REPLICAS for n in alone.hear(replica, forward(3, b"c"))]

    assert delivered == [3]


def test_what_one_replica_claims_to_omit_of_a_chain_is_remembered_within_bounds() -> None:
    stage = Stage(topic({"broadcast": "chain", "history_every": 0}))
    incoming = stage.destinations[D1]._subscriptions[T].incoming(S1, Lane.EVENTS)
    incoming._span = 16
    for number in range(1, 200):
        stage.say(R4, D1, Omitted(*stage.stream(), number, 1))
        stage.round()
        stage.publish(S1, b"%d" % number)
        stage.settle()

    assert len(stage.values()) == 199
    assert len(incoming.omitted) <= 2 * incoming._span


def test_what_too_few_omit_is_delivered_by_the_others() -> None:
    alone = Alone()
    alone.hear(R1, Omitted(S1, T, Lane.EVENTS, 1, 1))

    delivered = [n for r in (R2, R3, R4) for n in alone.hear(r, forward(1, b"a"))]

    assert delivered == [1]


@pytest.mark.parametrize("start", [WINDOW_BATCHES * 3, 2**40, 2**63])
def test_a_publisher_that_leaps_ahead_harms_only_itself(start: int) -> None:
    stage = Stage(topic(AUTHENTICATED), sources=(S1, S2))
    for replica in REPLICAS:
        run = Publish(T, Lane.EVENTS, False, start, start, [event(b"far")])
        stage.say(S1, replica, run)
    stage.publish(S2, b"near")
    stage.settle()

    assert sorted(stage.values()) == [b"far", b"near"]


def test_a_stream_that_fell_silent_goes_on_and_repeats_nothing() -> None:
    for table in (AUTHENTICATED, FIFO, {"broadcast": "reliable"}, {"protection": "crash"}):
        stage = Stage(topic(table))
        stage.publish(S1, b"1", b"2")
        stage.settle()
        stage.pass_time(IDLE_STREAM_US / 1e6 + 5, turn_us=250_000)

        stage.publish(S1, b"3")
        stage.pass_time(2)

        assert stage.values() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("is_lead", [False, True])
def test_a_publisher_that_has_replicas_outvoted_slows_down_only_itself(is_lead: bool) -> None:
    alone = Alone()
    for number, victim in enumerate(REPLICAS, 1):
        said = forward if is_lead else vouch
        alone.hear(victim, said(number, b"to one", source=S2))
        for replica in REPLICAS:
            if replica != victim:
                alone.hear(replica, vouch(number, b"to the others", source=S2))
        alone.machine.tick(number * (RUN_PATIENCE_US + TICK_EVERY_US))

    alone.hear(R1, vouch(1, b"a"))
    alone.hear(R2, vouch(1, b"a"))
    lead = alone.machine.lead_of("t")
    assert lead is not None
    assert [*alone.hear(R3, forward(1, b"a")), *alone.hear(lead, forward(1, b"a"))] == [1]


def test_a_publisher_that_has_leads_outvoted_costs_each_its_lead_once_in_a_while() -> None:
    alone = Alone()
    leads: list[int | None] = []
    for number in range(1, 30):
        lead = alone.machine.lead_of("t")
        leads.append(lead)
        for replica in REPLICAS:
            said: Message = forward(number, b"to one", source=S2)
            if replica != lead:
                said = vouch(number, b"to the others", source=S2)
            alone.hear(replica, said)
        alone.machine.tick(number * (RUN_PATIENCE_US + TICK_EVERY_US))

    changes = sum(before != after for before, after in itertools.pairwise(leads))
    assert changes <= len(REPLICAS)


# Bounds


def test_a_replica_that_invents_streams_fills_its_share_and_nothing_else() -> None:
    alone = Alone(begun=False)
    for session in range(1, 3 * STREAMS_MAX):
        alone.hear(R4, vouch(1, b"x", source=node_of(S1, session)))
    assert len(alone.subscription.streams) == STREAMS_MAX

    for replica in (R1, R2, R3):
        alone.hear(replica, begin())
    delivered = [n for r in (R1, R2, R3) for n in alone.hear(r, forward(1, b"a"))]
    assert delivered == [1]


def test_a_stream_of_which_a_history_speaks_is_not_hearsay() -> None:
    alone = Alone({"broadcast": "authenticated"}, begun=False)
    for session in range(1, STREAMS_MAX + 1):
        alone.hear(R4, vouch(1, b"x", source=node_of(S1, session)))
    named = alone.subscription.incoming(node_of(S1, 1), Lane.EVENTS)
    named.on_history(History(1, (digest(event(b"x")),)), (R1, R2, R3))

    alone.hear(R4, vouch(1, b"y", source=S2))

    assert named.stream in alone.subscription.streams


def test_a_publisher_that_tells_each_session_to_one_replica_keeps_nobody_else_out() -> None:
    stage = Stage(topic(AUTHENTICATED), sources=(S1, S2))
    subscription = stage.destinations[D1]._subscriptions[T]
    for replica in REPLICAS:
        for session in range(1, STREAMS_MAX + 10):
            node = node_of(S2, session * len(REPLICAS) + replica)
            stage.say(replica, D1, Forward(node, T, Lane.EVENTS, False, 1, [event(b"x")]))
    stage.settle()
    held_bytes = subscription.early.held_bytes

    stage.publish(S1, b"a")
    stage.settle()

    assert stage.values() == [b"a"]
    assert len(subscription.streams) == len(REPLICAS) * STREAMS_MAX
    assert subscription.early.held_bytes == held_bytes - len(event(b"x"))


def test_streams_that_nobody_else_speaks_of_are_forgotten() -> None:
    alone = Alone(begun=False)
    for session in range(1, 100):
        alone.hear(R4, vouch(1, b"x", source=node_of(S1, session)))

    for step in range(1, 5):
        alone.machine.tick(step * PATIENCE_US)

    assert not alone.subscription.streams


def test_a_replica_that_invents_numbers_fills_its_share_and_nothing_else() -> None:
    alone = Alone()
    for first in range(10_000, 10_000 + 3 * WINDOW_BATCHES, 512):
        alone.hear(R4, Vouch(S1, T, Lane.EVENTS, first, [bytes(32)] * 512))
    alone.machine.tick(RUN_PATIENCE_US)
    (incoming,) = alone.subscription.streams.values()
    assert len(incoming.ballot.open) == WINDOW_BATCHES

    delivered = [n for r in (R1, R2, R3) for n in alone.hear(r, forward(1, b"a"))]
    assert delivered == [1]


def test_of_a_stream_that_one_replica_alone_speaks_of_few_voices_are_kept() -> None:
    alone = Alone(begun=False)
    for first in range(1, 2 * WINDOW_BATCHES, 512):
        alone.hear(R4, Vouch(S1, T, Lane.EVENTS, first, [bytes(32)] * 512))

    (incoming,) = alone.subscription.streams.values()
    assert len(incoming.ballot.open) == HEARSAY_BATCHES_MAX


def test_voices_are_counted_a_run_at_a_time_though_a_replica_says_nothing() -> None:
    alone = Alone({"broadcast": "vote"}, begun=False)
    for replica in (R1, R2):
        alone.hear(replica, begin(1, 3))
    lead = alone.machine.lead_of("t")
    other = R1 if lead == R2 else R2
    alone.hear(other, vouch(1, b"a", b"b", b"c"))
    (incoming,) = alone.subscription.streams.values()
    assert not incoming.ballot.open

    assert lead is not None
    assert alone.hear(lead, forward(1, b"a", b"b", b"c")) == [1, 2, 3]


def test_a_run_is_taken_apart_later_while_runs_take_long() -> None:
    alone = Alone()
    slow_us = 3 * RUN_PATIENCE_US // 4
    for replica in (R2, R3):
        alone.hear(replica, vouch(1, b"a", b"b"))
    alone.machine.tick(slow_us)
    assert alone.hear(R1, forward(1, b"a", b"b")) == [1, 2]

    alone.hear(R2, vouch(3, b"c", b"d"))
    (incoming,) = alone.subscription.streams.values()
    alone.machine.tick(slow_us + RUN_PATIENCE_US + TICK_EVERY_US // 2)
    assert not incoming.ballot.open
    alone.machine.tick(slow_us + 2 * slow_us + TICK_EVERY_US)
    assert set(incoming.ballot.open) == {3, 4}


@pytest.mark.parametrize("begun", [True, False])
def test_payloads_that_nobody_vouches_for_take_so_many_bytes(begun: bool) -> None:
    alone = Alone(begun=begun)
    large = event(bytes(EARLY_BYTES_MAX // 8))
    for number in range(1, 30):
        alone.hear(R1, Forward(S1, T, Lane.EVENTS, False, number, [large]))

    assert alone.subscription.early.held_bytes <= EARLY_BYTES_MAX


def test_payloads_that_nobody_ever_vouches_for_are_forgotten() -> None:
    alone = Alone()
    for number in range(1, 30):
        alone.hear(R1, forward(number, b"x"))

    alone.machine.tick(RUN_PATIENCE_US)
    alone.machine.tick(RUN_PATIENCE_US + PATIENCE_US)

    assert alone.subscription.early.held_bytes == 0


def test_an_unknown_topic_is_named_with_the_known_ones() -> None:
    with pytest.raises(LocalProtocolError, match="there is no topic 'x'; known topics: t"):
        Alone().machine.subscribe("x")


# Where to begin with a log


def test_an_answer_to_where_a_reader_wanted_to_begin_before_is_not_where_it_begins() -> None:
    # Given a reader that asked for the end, and then for the beginning
    log = topic({"protection": "byzantine", "order": "total"})
    reader = Destination(D1, [log], pairwise_macs(D1), [S1])
    for replica in log.members:
        reader.connected(replica)
    asked: list[tuple[int, Locate]] = []
    for time_us in (END_US, BEGIN_US):
        reader.read_from_time(log.name, 0, time_us)
        asked += [(node, m) for node, m in reader.take().send if isinstance(m, Locate)]

    # When all replicas answer both, one after the other
    begun: list[int] = []
    for replica, locate in asked:
        offset = 9 if locate.time_us == END_US else 2
        reader.step(replica, Located(T, 0, locate.number, offset))
        begun += [o.offset for o in reader.take().deliver if isinstance(o, Begun)]

    # Then it misses nothing.
    assert begun == [2]


def reader_with_more_to_read() -> tuple[Destination, Reading]:
    """Its replicas have more than it was sent."""
    log = topic({"protection": "byzantine", "order": "total"})
    reader = Destination(D1, [log], pairwise_macs(D1), [S1])
    for replica in log.members:
        reader.connected(replica)
    reader.tick(0)
    reading = reader.read(log.name, 0, 0)
    for replica in log.members:
        reader.step(replica, Chained(T, 0, 4, digest(b"4"), 0, 0, 4))
    return reader, reading


def blamed_in(reader: Destination, times_us: Iterable[int]) -> list[str]:
    """What is reported if its machine is woken at these times only."""
    blamed: list[str] = []
    for now_us in times_us:
        reader.tick(now_us)
        blamed += [report.kind for report in reader.take().reports]
    return blamed


def test_no_lead_is_late_with_what_came_while_a_reader_did_something_else() -> None:
    reader, reading = reader_with_more_to_read()
    lead = reading.lead
    # It is asked more widely when it is late for the first time, and is to blame the second time.
    assert blamed_in(reader, [50_000, 3_000_000, 6_000_000, 9_000_000]) == []
    assert reading.lead == lead


def test_a_silent_lead_is_replaced_though_a_reader_does_something_else_most_of_the_time() -> None:
    reader, _ = reader_with_more_to_read()
    assert blamed_in(reader, range(0, 20_000_000, 200_000))[0] == "bad-lead"


def test_no_lead_is_late_with_what_a_reader_does_not_take() -> None:
    # Given a reader whose replicas have more than it was sent
    log = topic({"protection": "byzantine", "order": "total"})
    reader = Destination(D1, [log], pairwise_macs(D1), [S1])
    for replica in log.members:
        reader.connected(replica)
    reading = reader.read(log.name, 0, 0)
    for replica in log.members:
        reader.step(replica, Chained(T, 0, 4, digest(b"4"), 0, 0, 4))
    lead = reading.lead

    def wait(from_us: int, until_us: int) -> list[str]:
        """Who is blamed meanwhile."""
        blamed: list[str] = []
        for now_us in range(from_us, until_us, TICK_EVERY_US):
            reader.tick(now_us)
            blamed += [report.kind for report in reader.take().reports]
        return blamed

    # When it takes nothing for a while, then nobody is blamed,
    reader.is_held_back = True
    assert wait(0, 10_000_000) == []
    assert reading.lead == lead
    # and when it does, a lead that is silent then is.
    reader.is_held_back = False
    assert wait(10_000_000, 10_000_000 + LATE_AFTER_US) == []
    assert wait(10_000_000 + LATE_AFTER_US, 15_000_000)[0] == "bad-lead"
