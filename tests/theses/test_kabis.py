"""Kabis (Secco 2023), statement by statement (K1 to K3, K5 to K9, and K11 in part).

Each test names the section, table or algorithm that it plays. The thesis calls a SID what is a seal
together with its place here, a Kafka replica what is a store, a service replica what is a replica,
and a SID list what is a partition. Where we do otherwise, and why, the test says.

Independent Kafka clusters as stores (K4) are in `processes/test_kafka_stores.py`, since they are
real ones; so are the table of guarantees and consumer groups, with real clients, in
`processes/test_validated_modes.py`. The evaluation (K10) is `quorate bench validated`.
"""

from dataclasses import replace

import msgspec
import pytest

from chamber import OTHER, PARTITION, Chamber
from council import READER, VALIDATED, A, B, Council, T, span_of, value_of
from desk import EVERYBODY, Desk
from order_log import PLAIN, SALTED, OrderLog, event
from quorate.client.blocking import BlockingConsumer, BlockingProducer
from quorate.client.consumer import Consumer, Record
from quorate.client.modes import Modes
from quorate.client.producer import Producer
from quorate.core import batch
from quorate.core.contract import Contract
from quorate.core.event import Event
from quorate.core.header import (
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    NO_ROOT,
    SEAL_BYTES,
    Header,
    is_signed,
)
from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.core.ordering import (
    Absent,
    AnnounceSealed,
    Append,
    Entries,
    Line,
    Ordered,
    Partition,
    Propose,
    Received,
)
from quorate.crypto.digests import batch_digest, descriptor, seal_descriptor
from quorate.crypto.events import event_bytes
from quorate.crypto.proofs import ProofError, verify_bytes
from quorate.crypto.sids import Place, Seal, check_seal, sid
from quorate.protocol.machine import Passed
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.publisher import RETRY_AFTER_US, LineOutgoing
from quorate.protocol.ordering.records import Decided
from quorate.protocol.ordering.validation import Sealer
from quorate.protocol.ordering.value import CHAIN_START, chain_of, leaves_of
from quorate.runtime.local import make_local_cluster
from quorate.sim.checkers import Conduct
from quorate.sim.links import Mode, Network, Uniform
from quorate.sim.order_checkers import check_log
from quorate.sim.order_scenarios import Beginning, OrderScenario, PlannedAppend, draw_order
from quorate.sim.order_stage import OrderStage
from quorate.sim.scenarios import BEGIN_US, Setting, SourcePart
from quorate.sim.sealing import CLUSTER, public_key, signing_key
from quorate.sim.validated_adversaries import VALIDATED_PUBLISHERS, VALIDATED_REPLICAS
from quorate.sim.validated_checkers import VALIDATED_LIVENESS, VALIDATED_SAFETY
from seals import batch_of_values, sealed_batch
from stage import Outlook, opened, topic

LARGE = batch_of_values(bytes(INLINE_BYTES_MAX))


def logs(council: Council) -> set[tuple[bytes, ...]]:
    return {tuple(council.log(replica)) for replica in council.seats}


def in_peace(
    *,
    hostile: dict[NodeId, str] | None = None,
    producers: tuple[str | None, ...] = (None, None),
    batches: int = 24,
) -> OrderStage:
    """Replicas, producers and two consumers, all of them real machines, and a network that works.

    Nothing goes wrong but what these hostile ones do. Each producer publishes so many batches.
    """
    drawn = draw_order(Setting("validated", adversary="none"), 5)
    parts = tuple(
        SourcePart(1000 + at, Conduct.BYZANTINE if attack else Conduct.CORRECT, attack)
        for at, attack in enumerate(producers)
    )
    appends = tuple(
        PlannedAppend(
            BEGIN_US + 1000 * at, part.node, _payload(part.node, at), None, "events", 0, sign=True
        )
        for at in range(batches)
        for part in parts
    )
    contract = Contract.parse("events", VALIDATED)
    readers = (2000, 2001)
    scenario: OrderScenario = replace(
        drawn, topic=replace(drawn.topic, contract=contract), hostile=hostile or {}, dying={},
        network=Network(latency=Uniform(200, 1_000), mode=Mode.STREAM), storms=(), jumps_us={},
        others=(), publishers=parts, readers=readers, appends=appends, absences=(), commands=(),
        beginnings=tuple(Beginning(each, BEGIN_US, "events", 0, 0, True) for each in readers),
        cluster=None, blackouts_us=(), skews_us=dict.fromkeys(drawn.topic.members, 0),
    )  # fmt: skip
    return OrderStage(scenario)


def _payload(producer: NodeId, at: int) -> bytes:
    size = (10, 300, INLINE_BYTES_MAX)[at % 3]
    return batch.encode_one(b"key", b"%d" % producer + bytes(size), (), at, False)


# K1: what the producer's and the consumer's choice are worth together (2.1, table 2.1)

SIGNED, BASIC, LAST = (batch_of_values(each) for each in (b"signed", b"basic", b"last"))


def values_of(chamber: Chamber, node: NodeId = READER) -> list[tuple[int, bytes]]:
    """What somebody was delivered: offsets and values."""
    return [
        (entry.offset + at, value)
        for entry in chamber.read(node)
        for at, value in enumerate(batch.Batch(entry.payload).values())
    ]


def test_what_both_validate_is_delivered_with_the_extended_guarantees() -> None:
    """Table 2.1, validable and validate. The consumer's record says so."""
    stage = in_peace()
    assert stage.perform() == []
    for partitions in stage.record.read.values():
        (entries,) = partitions.values()
        assert len(entries) == 48
        assert all(is_signed(entry.payload) for entry in entries)
    assert "validated" in Record.__struct_fields__


@pytest.mark.parametrize("sign", [True, False], ids=["validable", "unvalidable"])
def test_who_does_not_validate_is_delivered_either_kind_with_the_basic_guarantees(
    sign: bool,
) -> None:
    """Table 2.1, don't validate: on the word of f + 1 replicas, and no signature is looked at."""
    chamber = Chamber()
    reader = chamber.reader(validate=False)
    chamber.publish_as(A, SIGNED, sign=sign)
    (entry,) = chamber.read()
    assert (entry.publisher, entry.sequence, entry.offset) == (A, 1, 0)
    assert is_signed(entry.payload) is sign
    assert len(entry.vouchers) >= 2
    reading = reader.reading("t", 0)
    assert reading is not None
    assert reading.validation is None


def test_what_is_basic_never_comes_to_who_validates() -> None:
    """Table 2.1, unvalidable and validate: "not delivered". It is sent where it stands, and what it
    hashes to; the position moves past it."""
    chamber = Chamber()
    reader = chamber.reader(validate=True)
    chamber.publish_as(A, BASIC, sign=False)
    chamber.publish_as(B, SIGNED, sign=True)
    chamber.publish_as(A, BASIC, sign=False)
    assert values_of(chamber) == [(1, b"signed")]
    reading = reader.reading("t", 0)
    assert reading is not None
    assert reading.position == 3
    assert chamber.delivered[READER][-1] == Passed(PARTITION, 3)
    sent = chamber.messages(Entries, receiver=READER)
    assert [len(each.payloads[0]) for each in sent if each.bare] == 2 * [DESCRIPTOR_BYTES]


def test_signed_and_basic_batches_have_one_order_and_one_sequence_of_offsets() -> None:
    """2.1: the guarantees differ, and not the order. Both modes see the same offsets."""
    chamber = Chamber()
    chamber.reader(READER, validate=True)
    chamber.reader(OTHER, validate=False)
    for number in range(12):
        several = batch_of_values(*(b"%d.%d" % (number, at) for at in range(1 + number % 3)))
        chamber.publish_as((A, B)[number % 2], several, sign=number % 4 in (0, 3))
    everything, validated = values_of(chamber, OTHER), values_of(chamber)
    assert [offset for offset, _ in everything] == [*range(24)]
    signed = {entry.offset for entry in chamber.read(OTHER) if is_signed(entry.payload)}
    assert {entry.offset for entry in chamber.read()} == signed
    assert validated == [each for each in everything if each in validated]
    assert 0 < len(validated) < len(everything)


def test_who_does_not_sign_pays_for_no_signature() -> None:
    """2.1: only who "paid the extra overhead" has the stronger set. What is basic is neither signed
    nor does anybody look for a signature; but the replicas that validate order it, too."""
    chamber = Chamber()
    chamber.publish_as(A, BASIC, sign=False)
    sent = [f.message for f in chamber.sent if f.sender == A and isinstance(f.message, Append)]
    assert {payload for append in sent for payload in append.payloads} == {BASIC}
    assert [chamber.group(each).log.state.slot for each in chamber.seats] == [1, 1, 1, 1]


def test_basic_events_are_ordered_by_those_who_validate_and_stop_with_them() -> None:
    """4.3 and 6.1: validation "as a separate process", so that basic events go on without it. Here
    there is one order for both. Its group takes n - f replicas, and basic events wait with them."""
    chamber = Chamber()
    chamber.reader(validate=False)
    disks = {replica: chamber.seats[replica].disk for replica in (2, 3)}
    for replica in disks:
        chamber.crash(replica)
    chamber.publish_as(A, SIGNED, sign=True)
    chamber.publish_as(B, BASIC, sign=False)
    assert chamber.read() == []
    for replica, disk in disks.items():
        chamber.restart(replica, disk)
    chamber.run(10)
    assert {value for _, value in values_of(chamber)} == {b"signed", b"basic"}


# K2: the topology changes at run time (2.1.3)


def test_a_topology_names_what_is_validated_and_replaces_the_one_before() -> None:
    """2.1.3: "calling it erases the previously configured topology"."""
    topics = {name: Contract.parse(name, VALIDATED) for name in ("trades", "votes")}
    cluster = make_local_cluster(topics=topics).cluster

    def validated(modes: Modes) -> list[str]:
        return [name for name in topics if modes.validates(cluster, name)]

    assert validated(Modes()) == ["trades", "votes"]
    assert validated(Modes.of(cluster, ["trades"])) == ["trades"]
    assert validated(Modes.of(cluster, ["votes"])) == ["votes"]
    assert validated(Modes.of(cluster, [])) == []


def test_a_producer_changes_its_mode_from_one_batch_to_the_next_and_tells_nobody() -> None:
    """2.1.3. A local choice: its batches are one line, in the order in which it published them."""
    chamber = Chamber()
    chamber.reader(READER, validate=True)
    chamber.reader(OTHER, validate=False)
    chamber.publish_as(A, SIGNED, sign=True)
    chamber.publish_as(A, BASIC, sign=False)
    chamber.publish_as(A, LAST, sign=True)
    assert values_of(chamber, OTHER) == [(0, b"signed"), (1, b"basic"), (2, b"last")]
    assert [entry.sequence for entry in chamber.read(OTHER)] == [1, 2, 3]
    assert values_of(chamber) == [(0, b"signed"), (2, b"last")]


@pytest.mark.parametrize("first", [True, False])
def test_a_consumer_changes_its_mode_anywhere_and_goes_on_where_it_was(first: bool) -> None:
    """2.1.3. A local choice as well: nobody else reads anything else for it."""
    chamber = Chamber()
    reader = chamber.reader(validate=first)
    chamber.publish_as(A, SIGNED, sign=True)
    chamber.publish_as(A, BASIC, sign=False)
    reading = reader.reading("t", 0)
    assert reading is not None
    assert reading.position == 2
    chamber.reader(offset=reading.position, validate=not first)
    chamber.publish_as(A, BASIC, sign=False)
    chamber.publish_as(A, LAST, sign=True)
    basic = 2 if first else 1
    assert values_of(chamber) == [(0, b"signed"), (basic, b"basic"), (3, b"last")]


def test_what_says_it_is_signed_and_is_not_is_never_ordered_as_a_basic_batch() -> None:
    """Table 2.1 has two kinds, and a header says which. There is no third."""
    council = Council(VALIDATED)
    council.publish(A, 1, sealed_batch(A, 1, signed_as=2))
    council.publish(B, 1, sealed_batch(B, 1))
    council.run(2)
    assert logs(council) == {(sealed_batch(B, 1),)}


# K3: the record and the API (2.2)


def test_a_record_has_a_topic_a_partition_a_key_a_value_and_what_was_signed() -> None:
    """2.2.1. There is one signature for a batch, and it covers more than the record: which number
    the batch has in its producer's line, and so which record comes before it."""
    assert {"topic", "partition", "key", "value"} <= set(Record.__struct_fields__)
    desk = Desk()
    payload = sealed_batch(A, 1, batch.encode_one(b"k", b"v", (), 0, False))
    desk.say(payload)
    ((entry,), _) = desk.take()
    check_seal(Place(CLUSTER, "t", 0, A, 0), 1, Seal.decode(entry.payload))
    (event,) = batch.Batch(entry.payload).events()
    assert (event.key, event.value) == (b"k", b"v")


@pytest.mark.parametrize(
    ("kabis", "here"),
    [("push", "send"), ("flush", "flush"), ("close", "close")],
)
def test_what_a_producer_can_do(kabis: str, here: str) -> None:
    """Table 2.2. `send` comes back with the receipt, as push does; `submit` and `send_batch` are
    for those who do not want to wait for each."""
    for producer in (Producer, BlockingProducer):
        assert callable(getattr(producer, here)), kabis


@pytest.mark.parametrize(
    ("kabis", "here"),
    [
        ("subscribe", "subscribe"), ("unsubscribe", "unsubscribe"), ("pull", "poll_many"),
        ("pull of one record", "poll"), ("close", "close"),
        # What Kabis leaves out by design.
        ("", "seek"), ("", "commit"),
    ],
)  # fmt: skip
def test_what_a_consumer_can_do(kabis: str, here: str) -> None:
    """Table 2.3. Moving about in a topic does not harm the order that a consumer reads in, since
    that does not rest on caches."""
    for consumer in (Consumer, BlockingConsumer):
        assert callable(getattr(consumer, here)), kabis


# K5: the validation channel (3.1.2)


@pytest.mark.parametrize("f", [1, 2, 3])
def test_it_takes_3f_plus_1_replicas(f: int) -> None:
    """3.1.2. One for each party."""
    assert Contract.parse("t", VALIDATED).replicas(f) == 3 * f + 1


@pytest.mark.parametrize("part", ["topic", "partition", "producer"])
def test_a_sid_is_for_one_topic_one_partition_and_one_sender(part: str) -> None:
    """3.1.2: signature, topic, partition, senderId."""
    elsewhere = {"topic": "other", "partition": 9, "producer": B}[part]
    council = Council(VALIDATED)
    council.publish(A, 1, sealed_batch(A, 1, place={part: elsewhere}))
    council.run(1)
    assert logs(council) == {()}


def test_replicas_order_sids_without_the_events_that_they_name() -> None:
    """3.1.2. Replicas that do not store a batch vote for its place in the order all the same."""
    council = Council(VALIDATED)
    payload = sealed_batch(A, 1, LARGE)
    council.say(A, (0, 1), Append(T, 0, 1, [payload], [batch_digest(payload)]))
    council.say(A, (2, 3), AnnounceSealed(T, 0, 1, [payload[:SEAL_BYTES]]))
    council.settle()
    assert [council.group(each).consensus.slot for each in council.seats] == [2, 2, 2, 2]
    assert council.log(2) == council.log(3) == []
    assert council.log(0) == [payload]


def test_a_sid_has_the_same_size_whatever_it_names() -> None:
    """3: "keeping the bandwidth on the validation channel constrained to a constant value"."""
    for events in (1, 1000):
        body = batch_of_values(*[bytes(1000)] * events)
        assert len(sealed_batch(A, 1, body)) - len(body) == SEAL_BYTES - HEADER_BYTES


def test_two_records_that_are_the_same_one_after_the_other_have_two_sids() -> None:
    """3.3.1 signs "the concatenation of the topic, partition, key, value": another topic and key,
    or another key and value, have the same bytes there, and so the same signature."""
    seal = Seal(Header.of(1, 0, 4), 0, bytes(32), NO_ROOT, public_key(A), bytes(64))
    one, other = Place("c", "ab", 0, A, 0), Place("ca", "b", 0, A, 0)
    assert one.cluster + one.topic == other.cluster + other.topic
    assert sid(one, 1, seal) != sid(other, 1, seal)
    assert event_bytes(Event(b"ab", b"c", (), 0)) != event_bytes(Event(b"a", b"bc", (), 0))


# K6: push (3.3.1)


class Push:
    """A producer's line of partition 0."""

    def __init__(self) -> None:
        self.look = Outlook()
        sealer = Sealer(
            CLUSTER, public_key(A), signing_key(A).sign, wall_us=lambda: 7, salt=lambda _, __: b""
        )
        self.line = LineOutgoing(topic(VALIDATED), Line(A, T, 0), self.look.outbox, sealer=sealer)

    def sent(self) -> dict[NodeId, list[Message]]:
        self.line.flush(lambda _: True)
        found: dict[NodeId, list[Message]] = {}
        for node, message in self.look.take().send:
            found.setdefault(node, []).append(message)
        return found

    def tick(self, now_us: int) -> None:
        self.look.outbox.now_us = now_us
        self.line.tick()


def test_a_batch_goes_to_f_plus_1_stores_and_its_sid_to_everybody() -> None:
    """3.3.1 sends every event to all of F + 1 Kafka replicas. Here there are 3f + 1 stores, of
    which f + 1 get it, so that each carries less."""
    push = Push()
    push.line.add(LARGE, 1, sign=True)
    sent = push.sent()
    kinds = [type(message) for messages in sent.values() for message in messages]
    assert kinds.count(Append) == 2
    assert kinds.count(AnnounceSealed) == 2
    (payload,) = {
        message.payloads[0]
        for messages in sent.values()
        for message in messages
        if isinstance(message, Append)
    }
    seals = {
        message.seals[0]
        for messages in sent.values()
        for message in messages
        if isinstance(message, AnnounceSealed)
    }
    assert seals == {payload[:SEAL_BYTES]}
    assert opened(payload) == opened(LARGE)


def test_when_a_store_is_slow_the_next_one_is_tried() -> None:
    """3.3.1 waits for "a sufficient number of Kafka replicas", of which there are F + 1 in all: one
    that is slow holds up every producer."""
    push = Push()
    push.line.add(LARGE, 1, sign=True)
    push.sent()
    push.tick(RETRY_AFTER_US)
    kinds = [type(message) for messages in push.sent().values() for message in messages]
    assert kinds.count(Append) == 3


def test_a_producer_need_not_wait_for_one_record_before_it_sends_the_next() -> None:
    """3.3.1: FIFO, since a producer "will only send a new record after the last one has been
    correctly stored". Here numbers are signed, and replicas take them in order."""
    push = Push()
    for number in range(1, 101):
        assert push.line.add(batch_of_values(b"%d" % number), 1, sign=True) == number
    messages = [each for each in push.sent()[0] if isinstance(each, Append)]
    numbers = [each.first + at for each in messages for at in range(len(each.payloads))]
    assert numbers == [*range(1, 101)]


def test_a_record_that_is_pushed_again_is_ordered_once() -> None:
    """A SID of 3.1.2 has no number: whoever sends one again, be it another, has its event delivered
    twice, and nobody can tell."""
    council = Council(VALIDATED)
    first = sealed_batch(A, 1)
    for sequence in (1, 1, 2, 3):
        council.publish(A, sequence, first)
        council.run(1)
    assert logs(council) == {(first,)}


# K7: pull (3.3.2)


def test_an_event_that_matches_its_sid_is_delivered() -> None:
    """3.3.2, the Validator's first case."""
    desk = Desk()
    desk.say(sealed_batch(A, 1))
    entries, reports = desk.take()
    assert [entry.payload for entry in entries] == [sealed_batch(A, 1)]
    assert reports == []


def test_a_store_whose_event_does_not_match_is_marked_and_another_one_is_tried() -> None:
    """3.3.2, the second case: "either the sender has failed, or the Kafka replica has". Here it is
    known which: the sender signed what was ordered, so it is the store."""
    desk = Desk()
    marked = desk.lead
    payload = sealed_batch(A, 1)
    swapped = payload[:SEAL_BYTES] + batch_of_values(b"2")[HEADER_BYTES:]
    entries_of_it = msgspec.structs.replace(desk.entries(payload), payloads=[swapped])
    desk.reader.on_entries(marked, entries_of_it, EVERYBODY)
    assert desk.take() == ([], ["bad-lead"])
    desk.say(sealed_batch(A, 1))
    entries, _ = desk.take()
    assert (len(entries), desk.lead != marked) == (1, True)


def test_a_producer_does_not_fail_with_a_store_that_lied_about_it() -> None:
    """Algorithm 3.2, line 17, drops all that this producer sends through that store from then on.
    Here a store that was wrong once is asked again when the others are worse."""
    stage = in_peace(hostile={0: "swap-body"}, batches=40)
    assert stage.perform() == []
    assert stage.record.entries_read == 2 * 2 * 40


def test_a_store_that_has_nothing_is_passed_over() -> None:
    """Algorithm 3.2 takes the first of an empty queue there, or waits for it without a bound."""
    desk = Desk()
    before = desk.lead
    desk.reader.on_absent(before, Absent(T, 0, 0, 1), EVERYBODY)
    assert desk.lead != before
    desk.say(sealed_batch(A, 1))
    assert len(desk.take()[0]) == 1


def test_a_sid_whose_event_nobody_has_blocks_nobody() -> None:
    """Algorithm 3.2 comes to such a SID and finds no event for it, in any cache, for ever: a
    producer that sends a SID and no event stops every consumer. Here a batch must be available
    before it is ordered: f + 1 stores say that they have it, so that one of them does."""
    council = Council(VALIDATED, byzantine=(3,))
    payload = sealed_batch(A, 1, LARGE)
    chain = chain_of(CHAIN_START, [descriptor(payload)])[-1]
    council.say(A, council.seats, AnnounceSealed(T, 0, 1, [payload[:SEAL_BYTES]]))
    # f stores say that they have it, and do not.
    council.say(3, council.seats, Received(A, T, 0, 1, chain))
    council.say(3, council.seats, council.receipt(3, A, chain))
    council.publish(B, 1, sealed_batch(B, 1))
    council.run(5)
    assert logs(council) == {(sealed_batch(B, 1),)}


@pytest.mark.parametrize("attack", VALIDATED_PUBLISHERS)
def test_a_producer_that_fails_holds_up_nobody_else(attack: str) -> None:
    """3.3.2, with any number of hostile producers."""
    stage = in_peace(producers=(attack, None, attack))
    assert stage.perform() == []
    (entries,) = stage.record.read[2000].values()
    assert sum(entry.publisher == 1001 for entry in entries) == 24


# K8: non-repudiation (1.4, 2.1.2)


def test_an_event_is_notified_only_after_its_content_and_place_are_agreed_on() -> None:
    """2.1.2. One replica that sends it is not enough."""
    desk = Desk()
    desk.reader.on_entries(desk.lead, desk.entries(sealed_batch(A, 1)), EVERYBODY)
    assert desk.take() == ([], [])


def test_what_replicas_sign_covers_what_the_producer_signed() -> None:
    """2.1.2: "the reached consensus and the agreement of each party can be verified". The leaf of
    the log's tree names the seal, and with it producer, number, content and time."""
    council = Council(VALIDATED)
    payload = sealed_batch(A, 1)
    council.publish(A, 1, payload)
    council.settle()
    (decided,) = [record for record in council.seats[0].disk.read() if isinstance(record, Decided)]
    (placed,) = decided.placed
    contents = [seal_descriptor(payload[:SEAL_BYTES])]
    assert placed.leaves == b"".join(leaves_of(Line(A, T, 0), 1, 0, decided.time_us, contents))


def test_it_can_be_verified_at_any_later_time_though_the_producer_has_another_key() -> None:
    """2.1.2: "at any future time". The key is in the seal, which the replicas agreed on."""
    desk = Desk(keys={A: public_key(A, 1)})
    desk.say(sealed_batch(A, 1))
    entries, reports = desk.take()
    assert (len(entries), reports) == (1, [])


def test_nobody_is_shown_to_have_signed_what_it_did_not() -> None:
    """1.4. A leader that proposes, and vouches for, what a producer never sent."""
    council = Council(VALIDATED, byzantine=(0,))
    made_up = sealed_batch(B, 1)[:SEAL_BYTES] + batch_of_values(b"made up")
    span = span_of(B, 1, made_up)
    council.say(0, council.seats, Propose(council.number, 1, 1, value_of(span)))
    council.say(0, council.seats, Received(B, T, 0, 1, span.chain))
    council.say(0, council.seats, council.receipt(0, B, span.chain))
    council.run(20)
    council.publish(B, 1, sealed_batch(B, 1))
    council.run(20)
    assert logs(council) == {(sealed_batch(B, 1),)}


def test_neither_sender_nor_recipient_can_deny_it_before_a_third_party() -> None:
    """1.4: "the sender of information is provided with proof of delivery and the recipient is
    provided with proof of the sender's identity". One file is both. Whoever has the public keys
    asks nobody: who published what, where it stands, and which parties agreed to that."""
    log = OrderLog()
    log.publish(PLAIN, [event(b"before")], by="bob")
    log.publish(PLAIN, [event(b"I owe you 10")], by="alice")
    verdict = verify_bytes(log.proof(1).render(), log.keys)
    assert (verdict.producer_name, verdict.is_key_pinned) == ("alice", True)
    assert verdict.batch is not None
    assert [each.value for each in batch.Batch(verdict.batch).events()] == [b"I owe you 10"]
    assert (verdict.topic, verdict.partition, verdict.offset) == (PLAIN, 0, 1)
    assert [each.name for each in verdict.vouchers] == ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("topic", "votes"), ("partition", 1), ("offset", 0), ("producer", 1001), ("session", 1),
        ("sequence", 3), ("time_us", 0), ("leaf", 0), ("tree_size", 2),
        ("body", batch_of_values(b"I owe you 1")),
    ],
)  # fmt: skip
def test_neither_content_nor_order_can_be_said_otherwise_later(field: str, other: object) -> None:
    """2.1.2: "making it impossible for anyone to repudiate it"."""
    log = OrderLog()
    for value in (b"before", b"I owe you 10", b"after"):
        log.publish(PLAIN, [event(value)])
    proof = log.proof(1)
    verify_bytes(proof.render(), log.keys)
    with pytest.raises(ProofError):
        verify_bytes(msgspec.structs.replace(proof, **{field: other}).render(), log.keys)


def test_which_of_two_events_came_first_is_provable_across_producers_and_topics() -> None:
    """1.6: "making not only the single message non-repudiable but also the order". All validated
    topics have one order, so that it holds for any two events, and not only in one SID list."""
    log = OrderLog()
    log.publish(PLAIN, [event(b"10")], by="bob")
    log.publish(SALTED, [event(b"11")], by="alice")
    verdicts = [verify_bytes(log.proof(at).render(), log.keys) for at in (0, 1)]
    assert [(each.offset, each.leaf) for each in verdicts] == [(0, 0), (0, 1)]
    later = msgspec.structs.replace(log.proof(0), leaf=1)
    with pytest.raises(ProofError):
        verify_bytes(later.render(), log.keys)


def test_a_proof_holds_at_any_future_time() -> None:
    """2.1.2: "can be verified cryptographically at any future time". One that was made at once
    holds when the log is longer, one can be made when the log is longer, and the producer may have
    left long ago."""
    log = OrderLog()
    log.publish(PLAIN, [event(b"first")], by="carol")
    at_once = log.proof(0).render()
    for number in range(100):
        log.publish(PLAIN, [event(b"%d" % number)])
    for proof in (at_once, log.proof(0).render()):
        verdict = verify_bytes(proof, log.keys)
        assert (verdict.producer_name, verdict.offset) == ("carol", 0)
        # Nobody pins the key of who is no longer there: the replicas vouch for that too.
        assert not verdict.is_key_pinned
        assert len(verdict.vouchers) == 3
    assert verify_bytes(log.proof(0).render(), log.keys).tree_size == 101


@pytest.mark.parametrize("signers", [("r0", "r1"), ("r0", "r1", "stranger")])
def test_the_agreement_of_too_few_parties_proves_nothing(signers: tuple[str, ...]) -> None:
    """2.1.2: "the agreement of each party can be verified". It takes 2f + 1 of the 3f + 1, so that
    f that lie and f + 1 that were shown something else cannot make a second truth."""
    log = OrderLog()
    log.publish(PLAIN, [event(b"value")])
    with pytest.raises(ProofError):
        verify_bytes(log.proof(0, checkpoint=log.checkpoint(signers)).render(), log.keys)


# K9: one order for all (3.3)


@pytest.mark.parametrize("attack", VALIDATED_REPLICAS)
def test_order_is_fifo_and_total_though_replicas_and_producers_lie_together(attack: str) -> None:
    """3.3.1 and 3.3.2, FIFO and total order, with f Byzantine replicas."""
    stage = in_peace(hostile={0: attack}, producers=(None, "forging-source", None))
    assert stage.perform() == []
    assert check_log(stage.record, (*VALIDATED_SAFETY, *VALIDATED_LIVENESS)) == []
    first, second = (
        [(entry.publisher, entry.sequence) for entry in entries]
        for partitions in stage.record.read.values()
        for entries in partitions.values()
    )
    assert first == second
    for producer in (1000, 1002):
        assert [number for who, number in first if who == producer] == [*range(1, 25)]


def test_a_receipt_names_the_position_in_that_order() -> None:
    """3.3.1: push comes back when both channels have it. The receipt says where it stands."""
    council = Council(VALIDATED)
    council.publish(A, 1, sealed_batch(A, 1))
    council.settle()
    said = council.messages(Ordered, receiver=A)
    assert {(each.first, each.offset) for each in said} == {(1, 0)}
    assert len(said) == 4
    partition = council.group(0).log.partition(Partition(T, 0))
    assert partition.end == 1
