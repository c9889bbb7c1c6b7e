"""A channel knows who takes part, and pushes back where nothing may be lost."""

from quorate.core.filter import Filter
from quorate.core.ids import Lane, Stream, node_of, topic_id
from quorate.core.limits import WINDOW_BATCHES, WINDOWS
from quorate.core.messages import Forward, Frontier, Taken
from quorate.crypto.digests import digest
from quorate.protocol.channel import SESSIONS_PER_MEMBER_MAX, STALLED_AFTER_US, Channel
from quorate.protocol.outlet import Run, run_of
from stage import D1, D2, S1, S2, Outlook, event, name_of, topic

STREAM = Stream(S1, topic_id("t"))
NAMES = {client: name_of(client) for client in (S1, S2, D1, D2)}


def channel(outlook: Outlook, **keys: object) -> Channel:
    return Channel(topic({"broadcast": "vote", **keys}), NAMES, outlook.outbox)


def a_run(first: int, count: int = 1, *, stream: Stream = STREAM, now_us: int = 0) -> Run:
    payloads = [event(b"%d" % (first + offset)) for offset in range(count)]
    return run_of(stream, False, first, payloads, [digest(p) for p in payloads], now_us)


def note(each: Channel, first: int, count: int) -> None:
    """Another replica of a chain sends this to the subscribers."""
    run = a_run(first, count)
    each.note(STREAM, first, run.payloads, run.digests)


def test_registering_twice_is_registering_once() -> None:
    each = channel(Outlook(), publishers_max=1)

    assert each.register(S1) == ""
    assert each.register(S1) == ""
    assert each.may_publish(S1)
    assert "already has its 1 publishers" in each.register(S2)


def test_the_limits_are_about_those_who_are_there_now() -> None:
    each = channel(Outlook(), publishers_max=1, subscribers_max=1)
    each.register(S1)
    each.subscribe(D1, True, Filter())

    each.gone(S1)
    each.gone(D1)

    assert each.register(S2) == ""
    assert each.subscribe(D2, True, Filter()) == ""


def test_access_lists_are_about_members_in_whatever_session() -> None:
    each = channel(Outlook(), publish=["s1"])

    assert each.register(node_of(S1, 5)) == ""
    assert each.register(node_of(S2, 5)) == "s2 may not publish on 't'; s1 may"
    assert each.register(77) == "client 77 may not publish on 't'; s1 may"


def test_a_member_has_so_many_sessions_and_leaves_room_for_others() -> None:
    each = channel(Outlook())
    for session in range(SESSIONS_PER_MEMBER_MAX):
        assert each.register(node_of(S1, session)) == ""
        assert each.subscribe(node_of(D1, session), False, Filter()) == ""

    assert "64 sessions already" in each.register(node_of(S1, 100))
    assert "64 sessions already" in each.subscribe(node_of(D1, 100), False, Filter())
    assert each.register(S2) == ""
    assert each.subscribe(D2, False, Filter()) == ""


def test_subscribing_again_changes_lead_and_filter_and_keeps_the_queue() -> None:
    outlook = Outlook()
    each = channel(outlook)
    each.subscribe(D1, False, Filter())
    each.outlets[D1].open = False
    each.offer(a_run(1))

    each.subscribe(D1, True, Filter(key_prefix=b"k"))

    outlet = each.outlets[D1]
    assert (outlet.lead, outlet.filter.key_prefix, outlet.events) == (True, b"k", 1)


def test_a_channel_is_busy_at_half_and_full_at_its_bound_for_the_stream_that_fills_it() -> None:
    each = channel(Outlook(), queue_events_max=10)
    each.subscribe(D1, True, Filter())
    other = Stream(S2, STREAM.topic)

    each.offer(a_run(1, 5))
    assert not each.is_busy(STREAM)
    each.offer(a_run(6))
    assert each.is_busy(STREAM)
    assert not each.is_full(STREAM)
    each.offer(a_run(7, 5))
    assert each.is_full(STREAM)
    assert not each.is_busy(other)


def test_a_channel_is_busy_while_a_subscriber_lags_behind_what_others_sent_it() -> None:
    each = channel(Outlook())
    each.subscribe(D1, False, Filter())
    histories = STREAM._replace(lane=Lane.HISTORIES)
    note(each, 5, WINDOWS.lag + 1)
    assert each.is_busy(STREAM)
    assert each.is_busy(histories)
    assert not each.is_full(STREAM)

    each.on_taken(D1, Taken(*STREAM, 5))

    assert not each.is_busy(STREAM)
    assert not each.is_busy(histories)


def test_a_replica_that_sends_nothing_sees_by_the_histories_how_far_a_subscriber_lags() -> None:
    each = channel(Outlook())
    each.subscribe(D1, False, Filter())
    half = WINDOWS.lag // 2
    for first in range(1, 3 * half, half):
        each.name(STREAM, first, first + half - 1)
        assert each.is_busy(STREAM) == (first > WINDOWS.lag)

    each.on_taken(D1, Taken(*STREAM, half))

    assert not each.is_busy(STREAM)


def test_a_channel_is_busy_before_a_subscriber_needs_what_is_retained_no_more() -> None:
    each = channel(Outlook())
    each.subscribe(D1, False, Filter())
    each.offer(a_run(1, WINDOWS.lag + 1))
    assert each.is_busy(STREAM)
    assert WINDOWS.lag + WINDOWS.in_flight < WINDOW_BATCHES

    each.on_taken(D1, Taken(*STREAM, 1))

    assert not each.is_busy(STREAM)


def test_a_subscriber_that_does_not_take_what_others_sent_it_is_cut_off_too() -> None:
    outlook = Outlook()
    each = channel(outlook)
    each.subscribe(D1, False, Filter())
    each.drain()
    note(each, 1, WINDOWS.lag + 1)

    outlook.at(STALLED_AFTER_US + 1)
    each.drain()

    assert not each.outlets
    assert not each.is_busy(STREAM)


def test_a_channel_that_may_discard_is_never_busy() -> None:
    each = channel(Outlook(), queue_events_max=10, discard="oldest")
    each.subscribe(D1, True, Filter())

    each.offer(a_run(1, 50))

    assert not each.is_busy(STREAM)
    assert each.depth_events == 10


def test_a_history_is_never_discarded() -> None:
    for discard in ("oldest", "newest"):
        outlook = Outlook()
        each = channel(outlook, queue_events_max=3, discard=discard)
        each.subscribe(D1, True, Filter())
        each.offer(a_run(1, 1, stream=STREAM._replace(lane=Lane.HISTORIES)))
        each.offer(a_run(1, 20))
        each.offer(a_run(2, 1, stream=STREAM._replace(lane=Lane.HISTORIES)))
        each.drain()

        lanes = [(f.lane, f.first) for f in outlook.sent(Forward)]
        assert (Lane.HISTORIES, 1) in lanes
        assert (Lane.HISTORIES, 2) in lanes


def test_what_a_filter_keeps_out_discards_nothing() -> None:
    outlook = Outlook()
    each = channel(outlook, queue_events_max=2, discard="oldest")
    each.subscribe(D1, True, Filter(key_prefix=b"wanted"))
    wanted = event(b"v", key=b"wanted")
    each.offer(run_of(STREAM, False, 1, [wanted], [digest(wanted)], 0))

    each.offer(a_run(2, 10))
    each.drain()

    assert [f.first for f in outlook.sent(Forward)] == [1]


def test_a_subscriber_that_takes_nothing_while_events_wait_is_cut_off_and_named() -> None:
    outlook = Outlook()
    each = channel(outlook)
    for subscriber in (D1, D2):
        each.subscribe(subscriber, True, Filter())
    each.offer(a_run(1))
    each.outlets[D1].open = False
    each.offer(a_run(2))
    each.drain()

    outlook.at(STALLED_AFTER_US + 1)
    each.drain()

    assert list(each.outlets) == [D2]
    assert [(r.node, r.kind) for r in outlook.take().reports] == [(D1, "stalled")]


def test_a_subscriber_that_is_slow_but_takes_something_stays() -> None:
    outlook = Outlook()
    each = channel(outlook)
    each.subscribe(D1, True, Filter())
    for first in range(1, WINDOWS.credit + 100):
        each.offer(a_run(first))
    each.drain()
    assert each.depth_events > 0

    for step in range(1, 10):
        outlook.at(step * STALLED_AFTER_US // 2)
        each.on_taken(D1, Taken(*STREAM, step))
        each.drain()

    assert list(each.outlets) == [D1]


def test_a_stranger_that_says_it_took_something_is_nobody() -> None:
    each = channel(Outlook())

    each.on_taken(D1, Taken(*STREAM, 5))

    assert not each.outlets


def test_frontiers_say_how_far_each_stream_has_come() -> None:
    outlook = Outlook()
    each = channel(outlook)
    each.subscribe(D1, False, Filter())
    each.offer(a_run(1, 7))
    each.drain()
    outlook.take()

    each.announce_frontiers()

    assert outlook.sent(Frontier) == [Frontier(*STREAM, 1, 7)]
