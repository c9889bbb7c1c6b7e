"""What every protocol's replica has in common: answering those who miss something, pushing back."""

from quorate.core.filter import Filter
from quorate.core.ids import Lane, Stream, topic_id
from quorate.core.messages import Ack, Fetch, Status, Supply, Taken, Vouch
from quorate.crypto.digests import digest
from quorate.protocol.broadcast.scope import WAIT_AGAIN_US, Scope
from quorate.protocol.channel import Channel
from quorate.protocol.outgoing import SILENT_AFTER_US
from quorate.protocol.retention import Retention
from stage import D1, R1, R2, S1, Outlook, event, name_of, pairwise_macs, topic

STREAM = Stream(S1, topic_id("t"))


def a_scope(outlook: Outlook, *, retained_bytes: int = 1 << 20, **keys: object) -> Scope:
    each = topic({"broadcast": "vote", **keys})
    channel = Channel(each, {client: name_of(client) for client in (S1, D1)}, outlook.outbox)
    channel.subscribe(D1, False, Filter())
    retention = Retention(retained_bytes)
    return Scope(R1, each, channel, retention, outlook.outbox, pairwise_macs(R1))


def vouch(scope: Scope, *values: bytes) -> list[bytes]:
    payloads = [event(value) for value in values]
    for sequence, payload in enumerate(payloads, 1):
        scope.vouch(STREAM, False, sequence, [payload], [digest(payload)])
    return payloads


def test_a_subscriber_gets_what_it_has_not_taken_though_it_is_retained_no_more() -> None:
    # Given a replica that retains only the last of three batches,
    outlook = Outlook()
    scope = a_scope(outlook, retained_bytes=200)
    payloads = vouch(scope, b"1" * 60, b"2" * 60, b"3" * 60)
    scope.channel.drain()
    outlook.take()
    assert scope.retention.get(STREAM, 1) is None
    # when a subscriber that took the first misses the payload of the others,
    scope.channel.on_taken(D1, Taken(*STREAM, 1))
    ask = [1, 2, 3, 4]
    scope.answer(D1, Fetch(*STREAM, payload=True, sequences=ask))
    # then it gets those two,
    (supply,) = outlook.sent(Supply)
    assert (supply.sequences, supply.payloads) == ([2, 3], payloads[1:])
    # and their digests, if it asks for these.
    scope.answer(D1, Fetch(*STREAM, payload=False, sequences=ask))
    (voice,) = outlook.sent(Vouch)
    assert (voice.first, voice.digests) == (2, [digest(payload) for payload in payloads[1:]])


def test_another_replica_gets_what_is_retained_for_everybody() -> None:
    outlook = Outlook()
    scope = a_scope(outlook, retained_bytes=200)
    vouch(scope, b"1" * 60, b"2" * 60)
    outlook.take()
    scope.answer(R2, Fetch(*STREAM, payload=True, sequences=[1, 2]))
    assert [supply.sequences for supply in outlook.sent(Supply)] == [[2]]


def test_a_source_that_is_pushed_back_hears_it_again_before_it_takes_us_for_dead() -> None:
    outlook = Outlook()
    scope = a_scope(outlook, queue_events_max=2)
    vouch(scope, b"1", b"2", b"3")
    scope.intake(STREAM, 1)
    heard_us = []
    for now_us in range(0, 2_000_000, 50_000):
        outlook.at(now_us)
        scope.acknowledge(STREAM)
        scope.flush_acks()
        heard_us += [
            now_us
            for ack in outlook.sent(Ack)
            if ack == Ack(STREAM.topic, Lane.EVENTS, Status.WAIT, 0)
        ]
    assert heard_us == list(range(0, 2_000_000, WAIT_AGAIN_US))
    assert WAIT_AGAIN_US < SILENT_AFTER_US
