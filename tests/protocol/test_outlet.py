"""The output queue of one subscriber."""

from collections import Counter
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from quorate.core.filter import Filter
from quorate.core.ids import Stream, topic_id
from quorate.core.limits import WINDOWS
from quorate.core.messages import Authenticator, Forward, Frontier, Link, Omitted, Vouch
from quorate.crypto.digests import digest
from quorate.protocol.channel import Channel
from quorate.protocol.outlet import (
    DRAIN_BYTES_MAX,
    OMISSIONS_MAX,
    OUTSTANDING_BYTES_MAX,
    Outlet,
    Run,
    events_in,
    run_of,
)
from stage import D1, S1, S2, Outlook, event, events, topic

STREAM = Stream(S1, topic_id("t"))
OTHER = Stream(S2, topic_id("t"))


def outlet(outlook: Outlook, *, lead: bool = True, wanted: Filter | None = None) -> Outlet:
    return Outlet(D1, lead, wanted or Filter(), outlook.outbox)


def a_run(
    first: int,
    *payloads: bytes,
    stream: Stream = STREAM,
    urgent: bool = False,
    now_us: int = 0,
) -> Run:
    given = list(payloads) or [event(b"%d" % first)]
    return run_of(stream, urgent, first, given, [digest(p) for p in given], now_us)


def firsts(outlook: Outlook) -> list[int]:
    return [forward.first for forward in outlook.sent(Forward)]


def test_the_lead_sends_payloads_and_the_others_digests() -> None:
    outlook = Outlook()
    for lead in (True, False):
        each = outlet(outlook, lead=lead)
        each.add(a_run(1, event(b"x")))
        each.drain(0)
    ready = outlook.take()

    sent = [message for _, message in ready.send if not isinstance(message, Frontier)]
    assert sent == [
        Forward(*STREAM, False, 1, [event(b"x")]),
        Vouch(*STREAM, 1, [digest(event(b"x"))]),
    ]


def test_a_subscriber_hears_where_a_stream_begins_before_anything_else_of_it() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    each.add(a_run(1))
    each.drain(0)

    kinds = [type(message) for _, message in outlook.take().send]
    assert kinds == [Frontier, Forward]


def test_urgent_runs_of_any_stream_go_before_all_others() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    each.add(a_run(1))
    each.add(a_run(1, stream=OTHER))
    each.add(a_run(2, stream=OTHER, urgent=True))
    each.add(a_run(2, urgent=True))

    each.drain(0)

    assert firsts(outlook) == [2, 2, 1, 1]


def test_a_line_is_sent_as_far_as_its_subscriber_has_credit() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    for first in range(1, 2 * WINDOWS.credit + 1):
        each.add(a_run(first))
    each.drain(0)
    assert firsts(outlook)[-1] == WINDOWS.credit

    each.on_taken(STREAM, 10)
    each.drain(0)
    assert firsts(outlook)[-1] == WINDOWS.credit + 10

    each.on_taken(STREAM, 5)
    each.drain(0)
    assert firsts(outlook) == []


def test_a_subscriber_that_was_ahead_of_this_replica_gets_all_that_it_lags_behind() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    each.add(a_run(1))
    each.drain(0)
    outlook.take()
    each.on_taken(STREAM, 2 * WINDOWS.credit)

    for first in range(2, 2 * WINDOWS.credit + 1):
        each.add(a_run(first))
    each.drain(0)

    assert firsts(outlook)[-1] == 2 * WINDOWS.credit
    assert each.events == 0


def test_what_is_sent_or_waits_can_be_had_from_here_until_it_is_taken() -> None:
    outlook = Outlook()
    each = outlet(outlook, lead=False)
    each.add(a_run(1, event(b"a"), event(b"b")))
    each.drain(0)
    each.note(a_run(3, event(b"c")))
    each.add(a_run(4, event(b"d"), urgent=True))
    found = each.untaken(STREAM)
    assert {sequence: held.payload for sequence, held in found.items()} == {
        1: event(b"a"), 2: event(b"b"), 3: event(b"c"), 4: event(b"d"),
    }  # fmt: skip
    assert all(held.digest == digest(held.payload) for held in found.values())

    each.drain(0)
    each.on_taken(STREAM, 3)
    assert list(each.untaken(STREAM)) == [4]
    each.on_taken(STREAM, 4)
    assert each.untaken(STREAM) == {}


def test_what_stays_until_it_is_taken_is_bounded_over_all_streams() -> None:
    # Given many publishers who together sent more than may stay here.
    outlook = Outlook()
    each = outlet(outlook)
    streams = [STREAM._replace(publisher=S1 + number) for number in range(40)]
    for first in (1, 2, 3):
        for stream in streams:
            each.add(a_run(first, bytes(DRAIN_BYTES_MAX), stream=stream))
    # When the subscriber takes nothing,
    sent: Counter[int] = Counter()
    for _ in range(4 * len(streams)):
        each.drain(0)
        sent.update(forward.publisher for forward in outlook.sent(Forward))
    # then some of each stream goes, and no more than that once the bound is reached.
    assert sent.keys() == {stream.publisher for stream in streams}
    assert sent.total() * DRAIN_BYTES_MAX <= OUTSTANDING_BYTES_MAX + DRAIN_BYTES_MAX * len(streams)
    # What it takes makes room.
    for stream in streams:
        each.on_taken(stream, 2)
    each.drain(0)
    assert len(outlook.sent(Forward)) == 1


def test_what_others_sent_is_remembered_within_the_same_bound() -> None:
    each = outlet(Outlook())
    count = 2 * OUTSTANDING_BYTES_MAX // DRAIN_BYTES_MAX
    for first in range(1, count + 1):
        each.note(a_run(first, bytes(DRAIN_BYTES_MAX)))
    assert max(each.untaken(STREAM)) == count
    assert len(each.untaken(STREAM)) * DRAIN_BYTES_MAX <= OUTSTANDING_BYTES_MAX
    assert each.lags_behind(STREAM)


def test_one_stream_that_is_stuck_holds_up_no_other() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    for first in range(1, WINDOWS.credit + 10):
        each.add(a_run(first))
    each.drain(0)
    outlook.take()

    each.add(a_run(1, stream=OTHER))
    each.drain(0)

    assert [(f.publisher, f.first) for f in outlook.sent(Forward)] == [(S2, 1)]
    assert each.holds_more(STREAM, 8, 1.0)
    assert not each.holds_more(STREAM, 9, 1.0)
    assert not each.holds_more(OTHER, 0, 1.0)


def test_urgent_runs_have_a_credit_of_their_own() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    for first in range(1, WINDOWS.urgent + 10):
        each.add(a_run(first, urgent=True))
    each.drain(0)
    assert firsts(outlook)[-1] == WINDOWS.urgent

    each.on_taken(STREAM, 5)
    each.drain(0)
    assert firsts(outlook)[-1] == WINDOWS.urgent + 5


def test_no_turn_sends_much_more_than_its_share_of_bytes() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    large = event(bytes(DRAIN_BYTES_MAX // 4))
    for first in range(1, 20):
        each.add(a_run(first, large))

    each.drain(0)

    assert len(firsts(outlook)) == 4
    assert each.events == 15


def test_what_waited_too_long_is_omitted_and_counted() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    each.add(a_run(1, event(b"a"), event(b"b"), now_us=0))
    each.add(a_run(3, now_us=5))
    outlook.at(12)

    assert each.drain(10) == 2

    ready = outlook.take()
    sent = [m for _, m in ready.send if isinstance(m, Forward | Omitted)]
    assert sent == [Forward(*STREAM, False, 3, [event(b"3")]), Omitted(*STREAM, 1, 2)]


def test_a_filter_lets_through_what_it_wants_and_says_what_it_leaves_out() -> None:
    outlook = Outlook()
    each = outlet(outlook, wanted=Filter(key_prefix=b"k"))
    yes, no = event(b"v", key=b"key"), event(b"v", key=b"other")
    each.add(a_run(1, yes, no, no, yes, no))

    each.drain(0)

    ready = outlook.take()
    sent = [m for _, m in ready.send if isinstance(m, Forward | Omitted)]
    assert [(type(m), m.first) for m in sent] == [
        (Forward, 1),
        (Forward, 4),
        (Omitted, 2),
        (Omitted, 5),
    ]


def test_what_is_not_a_batch_is_left_for_the_subscriber_to_see_and_does_no_harm() -> None:
    outlook = Outlook()
    each = outlet(outlook, wanted=Filter(key_prefix=b"k"))
    each.add(a_run(1, b"garbage", event(b"v", key=b"other")))

    each.drain(0)

    (forward,) = outlook.sent(Forward)
    assert forward.payloads == [b"garbage"]


def test_what_is_not_a_batch_takes_one_place() -> None:
    assert events_in(b"garbage") == 1
    assert events_in(events(b"a", b"b", b"c")) == 3


def test_a_chain_run_goes_whole_with_the_authenticators_of_its_reader() -> None:
    outlook = Outlook()
    each = outlet(outlook, wanted=Filter(key_prefix=b"k"))
    payloads = [event(b"v", key=b"k"), event(b"w")]
    mine = [Authenticator(0, D1, bytes(16))]
    chain_run = Run(
        STREAM, False, 1, payloads, [digest(p) for p in payloads], [1, 1], 0, 1, 2, {D1: mine}
    )
    each.add(chain_run)

    each.drain(0)

    assert outlook.sent(Link) == [Link(S1, STREAM.topic, False, 1, 1, 2, payloads, mine)]


def test_omissions_that_nobody_could_be_told_of_are_bounded() -> None:
    outlook = Outlook()
    each = outlet(outlook, wanted=Filter(key_prefix=b"k"))
    for first in range(1, 4 * OMISSIONS_MAX, 2):
        each.add(a_run(first, event(b"v")))

    each.drain(0)

    omitted = outlook.sent(Omitted)
    assert len(omitted) == OMISSIONS_MAX
    assert omitted[-1].first == 4 * OMISSIONS_MAX - 1


def test_a_batch_that_is_larger_than_the_bound_still_arrives() -> None:
    outlook = Outlook()
    for discard in ("oldest", "newest"):
        channel = Channel(
            topic({"broadcast": "vote", "queue_events_max": 2, "discard": discard}),
            {},
            outlook.outbox,
        )
        channel.subscribe(D1, True, Filter())
        channel.offer(a_run(1, events(b"a", b"b", b"c", b"d")))
        channel.drain()

        assert firsts(outlook) == [1]


def test_a_publisher_that_is_gone_leaves_no_line_behind() -> None:
    outlook = Outlook()
    each = outlet(outlook)
    each.add(a_run(1))
    each.add(a_run(1, stream=OTHER))

    each.forget(S1)

    assert each.events == 1
    each.drain(0)
    assert [f.publisher for f in outlook.sent(Forward)] == [S2]


# Conservation

Step: TypeAlias = tuple[str, int, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "offer", "drain", "wait", "shut", "open"]),
        st.integers(1, 6),
        st.booleans(),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from(["oldest", "newest", "never"]), st.booleans())
def test_every_event_is_sent_or_waits_or_expired_or_was_discarded_exactly_once(
    steps: list[Step], discard: str, expires: bool
) -> None:
    outlook = Outlook()
    table: dict[str, object] = {"broadcast": "vote", "queue_events_max": 12, "discard": discard}
    if expires:
        table["expires_after"] = "1s"
    channel = Channel(topic(table), {}, outlook.outbox)
    channel.subscribe(D1, True, Filter())
    offered, next_first = 0, {STREAM: 1, OTHER: 1}

    for what, number, flag in steps:
        stream = OTHER if number % 2 else STREAM
        if what == "offer":
            payloads = [events(*[b"x"] * (1 + (number + i) % 3)) for i in range(number)]
            run = a_run(next_first[stream], *payloads, stream=stream, urgent=flag,
                        now_us=outlook.outbox.now_us)  # fmt: skip
            next_first[stream] += number
            offered += sum(run.events)
            channel.offer(run)
        elif what == "wait":
            outlook.at(outlook.outbox.now_us + 300_000 * number)
        elif what == "drain":
            channel.drain()
        else:
            channel.outlets[D1].open = what == "open"
        if discard != "never":
            assert channel.depth_events <= 12

    waiting = channel.depth_events
    ready = outlook.take()
    sent = Counter[tuple[Stream, int]]()
    sent_events = 0
    for _, message in ready.send:
        if isinstance(message, Forward):
            stream = Stream(message.publisher, message.topic)
            sent.update((stream, message.first + i) for i in range(len(message.payloads)))
            sent_events += sum(map(events_in, message.payloads))
        elif isinstance(message, Omitted):
            stream = Stream(message.publisher, message.topic)
            sent.update((stream, message.first + i) for i in range(message.count))
    counters = channel.counters
    assert offered == counters["offered"]
    assert offered == sent_events + waiting + counters["expired"] + counters["discarded"]
    assert all(count == 1 for count in sent.values())
