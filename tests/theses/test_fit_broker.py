"""FIT-Broker (Antunes 2013), the unordered part, statement by statement (F1 to F6, F10 to F13).

Each test names the section, table, algorithm or listing that it plays, as far as machines go:
what a user calls (poll, caching, gauges) is tested with the clients.
"""

from random import Random

import msgspec
import pytest

from quorate.core.batch import Batch, encode_one
from quorate.core.contract import Contract
from quorate.core.errors import ContractError, LocalProtocolError
from quorate.core.filter import Filter
from quorate.core.ids import Lane, topic_id
from quorate.core.messages import Forward, Omitted, Operation, Publish, Reply, Request, Vouch
from quorate.protocol.misbehaviour import Lie, Silence, Slow
from quorate.protocol.topic import Topic
from stage import D1, D2, D3, R1, R2, R3, S1, S2, Stage, event, events, topic

CRASH: dict[str, object] = {"protection": "crash"}
VOTE: dict[str, object] = {"broadcast": "vote"}
BOTH = pytest.mark.parametrize("table", [CRASH, VOTE], ids=["crash", "byzantine"])
VOICES = (Forward, Vouch)
T = topic_id("t")


def names_of(count: int) -> list[bytes]:
    return [b"e%d" % number for number in range(1, count + 1)]


def close_links_to(stage: Stage, destination: int) -> None:
    """The destination's links take nothing more, so that its queues fill."""
    for broker in stage.brokers.values():
        broker.writable(destination, False)


def reopen_links_to(stage: Stage, destination: int) -> None:
    for broker in stage.brokers.values():
        broker.writable(destination, True)


# F1: the interface (3.1.2, appendix D)


@BOTH
def test_a_client_registers_publishes_and_a_subscriber_gets_it(table: dict[str, object]) -> None:
    """Listing D.1: register, subscribe, publish."""
    stage = Stage(topic(table), opened=False)
    registered = stage.sources[S1].register("t")
    subscribed = stage.subscribe(D1)
    stage.settle()
    assert stage.answers(S1) == {registered: ""}
    assert stage.answers(D1) == {subscribed: ""}

    stage.publish(S1, b"e1")
    stage.settle()

    assert stage.values(D1) == [b"e1"]
    assert stage.receipted(S1) == [1]


@BOTH
def test_a_client_must_register_before_it_publishes(table: dict[str, object]) -> None:
    """Listing D.1: a client must issue `register` to be allowed to publish."""
    stage = Stage(topic(table), opened=False)
    stage.subscribe(D1)
    stage.settle()

    with pytest.raises(LocalProtocolError, match="register on topic 't'"):
        stage.publish(S1, b"e1")
    stage.say(S1, R1, Publish(T, Lane.EVENTS, False, 1, 1, [event(b"e1")]))
    stage.settle()

    assert stage.reported("rejected", by=R1) == [S1]
    assert stage.values(D1) == []


@BOTH
def test_a_client_that_unregisters_may_no_longer_publish(table: dict[str, object]) -> None:
    """Listing D.1: unregister."""
    stage = Stage(topic(table))
    number = stage.sources[S1].unregister("t")
    stage.settle()

    assert stage.answers(S1)[number] == ""
    with pytest.raises(LocalProtocolError, match="register"):
        stage.publish(S1, b"e1")


@BOTH
def test_a_client_that_registers_again_goes_on(table: dict[str, object]) -> None:
    """Listing D.1: register after unregister."""
    stage = Stage(topic(table))
    stage.publish(S1, b"e1", b"e2")
    stage.settle()
    stage.sources[S1].unregister("t")
    stage.settle()
    stage.sources[S1].register("t")
    stage.settle()

    stage.publish(S1, b"e3")
    stage.settle()

    assert stage.values(D1) == [b"e1", b"e2", b"e3"]
    assert stage.receipted(S1) == [1, 2, 3]


@BOTH
def test_a_client_that_unsubscribes_gets_nothing_more(table: dict[str, object]) -> None:
    """Listing D.1: unsubscribe."""
    stage = Stage(topic(table), destinations=(D1, D2))
    stage.destinations[D1].unsubscribe("t")
    stage.settle()

    stage.publish(S1, b"e1")
    stage.settle()

    assert stage.values(D1) == []
    assert stage.values(D2) == [b"e1"]


@BOTH
def test_events_that_were_cached_travel_and_arrive_as_one(table: dict[str, object]) -> None:
    """Listing D.1: publishWithCaching sends several events in one request."""
    stage = Stage(topic(table))

    stage.publish_batch(S1, events(*names_of(5)))
    stage.settle()

    assert len(stage.messages(Publish, receiver=R1)) == 1
    assert stage.values(D1) == names_of(5)


def test_a_request_about_an_unknown_channel_is_refused_with_the_known_ones() -> None:
    """Appendix G: hasChannel."""
    stage = Stage(topic(VOTE))
    stage.say(D1, R1, Request(99, Operation.SUBSCRIBE, "nowhere", ""))
    stage.settle()

    sentence = stage.messages(Reply, sender=R1, receiver=D1)[-1].sentence
    assert sentence == "there is no topic 'nowhere' here; the topics are t"


# F2: channels from configuration (3.3.2, table 3.1)


def test_every_property_of_a_channel_has_its_key() -> None:
    """Table 3.1: tag, type, totalOrder, maxPublishers, maxSubscribers, maxEventsPerQueue,
    eventsDischargingOrder."""
    contract = Contract.parse(
        "alerts",
        {
            "protection": "crash",
            "order": "none",
            "publishers_max": 3,
            "subscribers_max": 4,
            "queue_events_max": 50,
            "discard": "oldest",
        },
    )

    assert not contract.is_log
    assert (contract.publishers_max, contract.subscribers_max) == (3, 4)
    assert (contract.queue_events_max, contract.discard) == (50, "oldest")


@pytest.mark.parametrize(
    ("table", "f", "replicas"),
    [(CRASH, 1, 2), (CRASH, 2, 3), (VOTE, 1, 3), (VOTE, 2, 5)],
)
def test_a_channel_needs_as_many_replicas_as_its_protection_says(
    table: dict[str, object], f: int, replicas: int
) -> None:
    """Section 4.4.1: f + 1 for crashes and 2f + 1 for Byzantine faults, without order."""
    contract = Contract.parse("t", table)

    assert contract.replicas(f) == replicas
    with pytest.raises(ContractError, match=f"needs {replicas} replicas"):
        contract.check("t", replicas - 1, f)


@BOTH
def test_a_channel_takes_so_many_publishers_and_refuses_the_next(table: dict[str, object]) -> None:
    """Table 3.1: maxPublishers."""
    stage = Stage(topic({**table, "publishers_max": 1}), sources=(S1, S2), opened=False)
    stage.sources[S1].register("t")
    stage.settle()
    number = stage.sources[S2].register("t")
    stage.settle()

    assert stage.answers(S2)[number] == "topic 't' already has its 1 publishers"


@BOTH
def test_a_place_that_was_given_back_is_taken_by_the_next(table: dict[str, object]) -> None:
    """Table 3.1: maxPublishers is about those who are registered now."""
    stage = Stage(topic({**table, "publishers_max": 1}), sources=(S1, S2), opened=False)
    for source in (S1, S2):
        stage.sources[source].register("t")
        stage.settle()
    stage.sources[S1].unregister("t")
    stage.settle()

    number = stage.sources[S2].register("t")
    stage.settle()

    assert stage.answers(S2)[number] == ""


@BOTH
def test_a_channel_takes_so_many_subscribers_and_refuses_the_next(table: dict[str, object]) -> None:
    """Table 3.1: maxSubscribers."""
    stage = Stage(topic({**table, "subscribers_max": 1}), destinations=(D1, D2), opened=False)
    stage.subscribe(D1)
    stage.settle()
    number = stage.subscribe(D2)
    stage.settle()

    assert stage.answers(D2)[number] == "topic 't' already has its 1 subscribers"


@BOTH
def test_only_authorised_clients_publish_and_subscribe(table: dict[str, object]) -> None:
    """Section 3.3.2: the control table names authorised publishers and subscribers."""
    lists = {"publish": ["s1"], "subscribe": ["d1"]}
    stage = Stage(topic({**table, **lists}), sources=(S1, S2), destinations=(D1, D2))

    assert set(stage.answers(S1).values()) == {""}
    assert set(stage.answers(D1).values()) == {""}
    assert set(stage.answers(S2).values()) == {"s2 may not publish on 't'; s1 may"}
    assert set(stage.answers(D2).values()) == {"d2 may not subscribe to 't'; d1 may"}


# F3: one output queue per subscriber (3.3.2)


def test_a_subscriber_that_subscribes_twice_has_one_queue() -> None:
    """Section 3.3.2: multiple subscriptions to one channel are not allowed."""
    stage = Stage(topic(VOTE))
    stage.subscribe(D1)
    stage.settle()

    stage.publish(S1, b"e1")
    stage.settle()

    assert stage.values(D1) == [b"e1"]
    assert len(stage.brokers[R1].topics[T].scope.channel.outlets) == 1


@BOTH
def test_a_slow_subscriber_costs_the_others_nothing(table: dict[str, object]) -> None:
    """Section 3.3.2: each has an output queue of its own."""
    stage = Stage(
        topic({**table, "queue_events_max": 5, "discard": "oldest"}), destinations=(D1, D2)
    )
    close_links_to(stage, D1)

    for value in names_of(20):
        stage.publish(S1, value)
        stage.settle()

    assert stage.values(D2) == names_of(20)
    assert stage.receipted(S1) == list(range(1, 21))
    for broker in stage.brokers.values():
        assert broker.topics[T].scope.channel.depth_events == 5


@BOTH
@pytest.mark.parametrize(
    ("discard", "kept"), [("oldest", names_of(20)[-5:]), ("newest", names_of(20)[:5])]
)
def test_a_full_queue_discards_older_or_newer_events(
    table: dict[str, object], discard: str, kept: list[bytes]
) -> None:
    """Table 3.1: eventsDischargingOrder, OLDER or NEWER."""
    stage = Stage(topic({**table, "queue_events_max": 5, "discard": discard}))
    close_links_to(stage, D1)
    for value in names_of(20):
        stage.publish(S1, value)
        stage.settle()

    reopen_links_to(stage, D1)
    stage.settle()

    assert stage.values(D1) == kept
    stage.publish(S1, b"later")
    stage.settle()
    assert stage.values(D1) == [*kept, b"later"], "what was discarded must not be waited for"


@pytest.mark.parametrize("discard", ["oldest", "newest"])
def test_a_run_that_is_larger_than_the_queue_is_cut_and_not_lost_as_a_whole(discard: str) -> None:
    """Section 3.3.2: events are discarded, not whatever happened to travel with them."""
    stage = Stage(topic({**VOTE, "queue_events_max": 5, "discard": discard}))
    close_links_to(stage, D1)
    stage.publish(S1, *names_of(20))
    stage.settle()

    reopen_links_to(stage, D1)
    stage.settle()

    values = names_of(20)
    assert stage.values(D1) == (values[-5:] if discard == "oldest" else values[:5])


def test_a_subscriber_hears_what_will_not_come() -> None:
    """Section 3.3.2 discards silently; ours says so, or the subscriber would wait."""
    stage = Stage(topic({**VOTE, "queue_events_max": 5, "discard": "newest"}))
    close_links_to(stage, D1)
    stage.publish(S1, *names_of(8))
    stage.settle()
    reopen_links_to(stage, D1)
    stage.settle()

    (omitted,) = stage.messages(Omitted, sender=R1, receiver=D1)
    assert (omitted.first, omitted.count) == (6, 3)


@BOTH
def test_an_event_is_valid_for_so_long_and_then_expires(table: dict[str, object]) -> None:
    """Section 3.1.2: an upper bound dictates for how long an event is valid."""
    stage = Stage(topic({**table, "expires_after": "2s"}))
    close_links_to(stage, D1)
    stage.publish(S1, b"stale")
    stage.pass_time(3)
    stage.publish(S1, b"fresh")
    stage.settle()

    reopen_links_to(stage, D1)
    stage.settle()

    assert stage.values(D1) == [b"fresh"]


# F4: urgent events (3.1.2)


@BOTH
def test_urgent_events_are_delivered_first(table: dict[str, object]) -> None:
    """Section 3.1.2: events marked as urgent overtake those that wait."""
    stage = Stage(topic(table))
    close_links_to(stage, D1)
    stage.publish(S1, b"e1", b"e2")
    stage.publish(S1, b"fire", urgent=True)
    stage.publish(S1, b"e3")
    stage.settle()

    reopen_links_to(stage, D1)
    stage.settle()

    assert stage.values(D1) == [b"fire", b"e1", b"e2", b"e3"]


def test_urgent_events_are_discarded_last() -> None:
    """Section 3.1.2: when the oldest must go, those that are not urgent go first."""
    stage = Stage(topic({**VOTE, "queue_events_max": 3, "discard": "oldest"}))
    close_links_to(stage, D1)
    stage.publish(S1, b"fire", urgent=True)
    stage.settle()
    for value in names_of(5):
        stage.publish(S1, value)
        stage.settle()

    reopen_links_to(stage, D1)
    stage.settle()

    assert stage.values(D1) == [b"fire", b"e4", b"e5"]


# F5: crash faults, no order (4.4.1, algorithm 1)


def test_the_first_copy_is_delivered_and_all_others_are_discarded() -> None:
    """Algorithm 1, figure 4.6."""
    stage = Stage(topic(CRASH, f=2))
    late = [stage.hold(VOICES, sender=replica) for replica in (R2, R3)]

    stage.publish(S1, b"e1")
    stage.settle()
    assert stage.values(D1) == [b"e1"]

    for held in late:
        stage.release(held)
    stage.settle()
    assert stage.values(D1) == [b"e1"]


def test_the_first_answer_to_a_request_wins() -> None:
    """Algorithm 1: redundant responses are discarded."""
    stage = Stage(topic(CRASH, f=2), opened=False)
    late = [stage.hold(Reply, sender=replica) for replica in (R2, R3)]
    number = stage.sources[S1].register("t")
    stage.settle()
    assert stage.answers(S1) == {number: ""}

    for held in late:
        stage.release(held)
    stage.settle()
    assert len([o for n, o in stage.outcomes if n == S1]) == 1


@pytest.mark.parametrize("survivor", [R1, R2, R3])
def test_one_replica_of_f_plus_one_is_enough(survivor: int) -> None:
    """Section 3.3.2: the service is available if at least one replica is executing."""
    stage = Stage(topic(CRASH, f=2))
    for replica in (R1, R2, R3):
        if replica != survivor:
            stage.crash(replica)

    stage.publish(S1, *names_of(3))
    stage.settle()
    stage.pass_time(1)

    assert stage.values(D1) == names_of(3)
    assert stage.receipted(S1) == [1, 2, 3]


def test_what_only_the_crashed_lead_was_to_send_is_fetched_from_another() -> None:
    """Section 4.4.1: with one payload and else digests, a crash in between loses nothing."""
    stage = Stage(topic(CRASH))
    assert stage.destinations[D1].lead_of("t") == R1
    stage.hold(Forward, sender=R1)
    stage.publish(S1, b"e1")
    stage.settle()
    assert stage.values(D1) == []

    stage.crash(R1)
    stage.pass_time(1)

    assert stage.values(D1) == [b"e1"]


# F6: Byzantine faults, no order (4.4.1, algorithms 2 and 3)


def test_f_plus_one_equal_events_are_delivered() -> None:
    """Algorithm 3, reachEventQuorum."""
    stage = Stage(topic(VOTE))
    second = stage.hold(VOICES, sender=R2)
    third = stage.hold(VOICES, sender=R3)

    stage.publish(S1, b"e1")
    stage.settle()
    assert stage.values(D1) == []

    stage.release(second)
    stage.settle()
    assert stage.values(D1) == [b"e1"]
    assert stage.deliveries(D1)[0].vouchers == (R1, R2)

    stage.release(third)
    stage.settle()
    assert stage.values(D1) == [b"e1"]


@pytest.mark.parametrize("f", [1, 2])
def test_f_replicas_that_agree_on_a_forgery_are_too_few(f: int) -> None:
    """Algorithm 3: f + 1 equal ones contain a correct one."""
    stage = Stage(topic(VOTE, f=f))
    for liar in range(f):
        stage.alter(
            lambda forward: msgspec.structs.replace(forward, payloads=[event(b"forged")]),
            Forward,
            sender=liar,
        )
        stage.alter(
            lambda vouch: msgspec.structs.replace(vouch, digests=[bytes(32)]), Vouch, sender=liar
        )

    stage.publish(S1, b"e1")
    stage.settle()
    stage.pass_time(1)

    assert stage.values(D1) == [b"e1"]
    assert set(stage.reported("forgery")) <= set(range(f))


def test_f_plus_one_equal_replies_answer_a_request() -> None:
    """Algorithm 3, vote: a reply that differs does not count."""
    stage = Stage(topic(VOTE), opened=False)
    stage.alter(lambda reply: msgspec.structs.replace(reply, sentence="no"), Reply, sender=R1)
    third = stage.hold(Reply, sender=R3)
    number = stage.sources[S1].register("t")
    stage.settle()
    assert stage.answers(S1) == {}

    stage.release(third)
    stage.settle()
    assert stage.answers(S1) == {number: ""}


def test_replies_to_another_request_do_not_count() -> None:
    """Algorithm 3: the awaited sequence number."""
    stage = Stage(topic(VOTE), opened=False)
    stage.hold(Reply)
    number = stage.sources[S1].register("t")
    for replica in (R1, R2, R3):
        stage.say(replica, S1, Reply(number + 1, ""))
    stage.settle()

    assert stage.answers(S1) == {}


def test_f_plus_one_correct_replicas_of_two_f_plus_one_keep_the_service_available() -> None:
    """Section 3.3.2."""
    stage = Stage(topic(VOTE, f=2))
    stage.misbehave(R1, Silence())
    stage.misbehave(R2, Lie(Random(1), 100))

    stage.publish(S1, *names_of(5))
    stage.pass_time(2)

    assert sorted(stage.values(D1)) == names_of(5)


# F10: state transfer, unordered (4.4.4, algorithms 4 and 5)


@BOTH
def test_a_replica_that_comes_back_makes_its_channels_and_hears_the_registrations_again(
    table: dict[str, object],
) -> None:
    """Algorithms 4 and 5, figure 4.12."""
    stage = Stage(topic(table))
    stage.crash(R1)
    stage.restart(R1)
    channel = stage.brokers[R1].topics[T].scope.channel
    assert not channel.publishers
    assert not channel.outlets

    stage.settle()

    assert list(channel.publishers) == [S1]
    assert list(channel.outlets) == [D1]


@BOTH
def test_a_replica_that_came_back_serves_when_the_others_go(table: dict[str, object]) -> None:
    """Section 4.4.4: recovered replicas provide service again."""
    stage = Stage(topic(table))
    stage.publish(S1, b"e1")
    stage.settle()
    stage.crash(R1)
    stage.publish(S1, b"e2")
    stage.pass_time(1)
    stage.restart(R1)
    stage.pass_time(2)
    stage.crash(R2)

    stage.publish(S1, b"e3")
    stage.pass_time(2)

    assert stage.values(D1) == [b"e1", b"e2", b"e3"]
    assert stage.receipted(S1) == [1, 2, 3]


def test_what_was_given_back_is_not_registered_again() -> None:
    """Algorithm 5: `unregister` clears the recorded operation."""
    stage = Stage(topic(VOTE))
    stage.sources[S1].unregister("t")
    stage.destinations[D1].unsubscribe("t")
    stage.settle()
    stage.crash(R1)
    stage.restart(R1)
    stage.pass_time(2)

    channel = stage.brokers[R1].topics[T].scope.channel
    assert not channel.publishers
    assert not channel.outlets


# F11: data structures (3.3.3)


def test_an_event_carries_its_fields() -> None:
    """Figure 3.7: event ID, client ID, timestamp, ID in channel, urgent, payload."""
    stage = Stage(topic(VOTE))
    payload = encode_one(b"key", b"value", (("unit", b"C"),), 1_700_000_000_000_000, True)
    stage.sources[S1].publish("t", payload, urgent=True)
    stage.settle()

    (delivery,) = stage.deliveries(D1)
    (received,) = Batch(delivery.payload).events()
    assert (delivery.stream.publisher, delivery.sequence) == (S1, 1)
    assert received.timestamp_us == 1_700_000_000_000_000
    assert received.urgent
    assert (received.key, received.value) == (b"key", b"value")


def test_a_request_carries_its_fields_and_its_reply_the_same_number() -> None:
    """Figure 3.8: client and replica are known from the link; operation, tag, number, status."""
    stage = Stage(topic(VOTE), opened=False)
    number = stage.sources[S1].register("t")
    stage.settle()

    (request,) = stage.messages(Request, sender=S1, receiver=R1)
    (reply,) = stage.messages(Reply, sender=R1, receiver=S1)
    assert (request.operation, request.topic, request.number) == (Operation.REGISTER, "t", number)
    assert (reply.number, reply.sentence) == (number, "")


# F12: other ways to route (4.1.3, appendix H)


@BOTH
def test_a_channel_routes_by_content_for_those_who_ask(table: dict[str, object]) -> None:
    """Section 4.1.3: routing by analysing the content of the event and not just the tag."""
    stage = Stage(topic(table), destinations=(D1, D2, D3))
    stage.subscribe(D1, wanted=Filter(key_prefix=b"host-7"))
    stage.subscribe(D2, wanted=Filter(headers={"level": b"high"}))
    stage.settle()

    stage.publish_batch(S1, event(b"one", key=b"host-7", level=b"low"))
    stage.publish_batch(S1, event(b"two", key=b"host-8", level=b"high"))
    stage.publish_batch(S1, event(b"three", key=b"host-9"))
    stage.settle()

    assert stage.values(D1) == [b"one"]
    assert stage.values(D2) == [b"two"]
    assert stage.values(D3) == [b"one", b"two", b"three"]


def test_channels_of_different_contracts_live_on_the_same_replicas() -> None:
    """Section 4.4.4: a replica may offer several kinds of channels at once."""
    crash = topic(CRASH, "cheap")
    vote = topic(VOTE, "dear")
    authenticated = Contract.parse("dearest", {})
    stage = Stage(crash, vote, Topic("dearest", authenticated, (0, 1, 2, 3), 1))
    for name in ("cheap", "dear", "dearest"):
        stage.publish(S1, name.encode(), to=name)
    stage.settle()

    assert sorted(stage.values(D1)) == [b"cheap", b"dear", b"dearest"]
    assert len(stage.brokers[3].topics) == 1


# F13: what the controller does to a replica (5.3)


@pytest.mark.parametrize("state", ["stopped", "slow", "byzantine"])
def test_a_replica_that_is_stopped_slowed_or_corrupted_loses_nothing(state: str) -> None:
    """Section 5.3: red, yellow and black."""
    stage = Stage(topic(VOTE))
    if state == "stopped":
        stage.crash(R1)
    else:
        stage.misbehave(R1, Slow(300_000) if state == "slow" else Lie(Random(1), 100, ["content"]))

    stage.publish(S1, *names_of(10))
    stage.pass_time(3)

    assert sorted(stage.values(D1)) == sorted(names_of(10))
    assert stage.receipted(S1) == list(range(1, 11))


def test_a_corrupted_replica_is_named() -> None:
    """Section 5.3: random bits as responses are told from correct ones."""
    stage = Stage(topic(VOTE))
    stage.misbehave(R1, Lie(Random(1), 100, ["content"]))

    stage.publish(S1, *names_of(3))
    stage.pass_time(1)

    assert set(stage.reported("forgery", by=D1)) == {R1}
