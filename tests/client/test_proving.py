"""What a prover makes of the words of replicas: what verifies, and a sentence if nothing does."""

from itertools import count

import msgspec
import pytest

from order_log import PLAIN, REPLICAS, SALTED, OrderLog, event
from quorate.client import Prover
from quorate.client.proving import proof_of, shown
from quorate.core.contract import Contract
from quorate.core.errors import RefusedError
from quorate.core.header import HEADER_BYTES
from quorate.core.ids import NodeId, topic_id
from quorate.core.ordering import (
    Absent,
    Entries,
    Follow,
    Partition,
    ProvenRange,
    ProvenRun,
    ProveRange,
)
from quorate.crypto.proofs import Proof, verify
from quorate.crypto.sids import Place
from quorate.protocol.ordering.ranges import Checks, RangeReading, Settled, Unsettled
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.topic import topics_of
from quorate.runtime.local import make_local_cluster
from stage import Outlook

PARTITION = Partition(topic_id(PLAIN), 0)
# Inside the second batch.
OFFSET = 3
D = bytes(32)


class Replicas:
    """A log of three batches with two events each, and somebody who wants the one at offset 3."""

    def __init__(self, *, signed: bool = True) -> None:
        self.log = OrderLog()
        for value in (b"zero", b"one", b"two"):
            self.log.publish(PLAIN, [event(value), event(value)], signed=signed)
        topics = list(topics_of(self.log.cluster))
        (plain,) = [each for each in topics if each.name == PLAIN]
        checks = Checks(self.log.keys, Validation.of(self.log.cluster, topics))
        self.connected = set(plain.members)
        self.found: list[list[Settled] | Unsettled] = []
        self.look = Outlook()
        self.reading = RangeReading(
            plain, PARTITION, range(OFFSET, OFFSET + 1), self.look.outbox, self.connected,
            count(1), checks, self.found.append, validate=False,
        )  # fmt: skip
        self.reading.taken(OFFSET)
        self.asked: list[ProveRange] = []
        self.leads: list[NodeId] = []
        self.named: list[NodeId] = []
        self.hear()

    def hear(self) -> None:
        """Note who is asked for the batch, who for its place, and who is reported."""
        ready = self.look.take()
        self.leads += [to for to, each in ready.send if isinstance(each, Follow) and each.limit]
        self.asked += [each for _, each in ready.send if isinstance(each, ProveRange)]
        self.named += [report.node for report in ready.reports]

    def place(self, of: int = 1) -> ProvenRange:
        """What a correct replica answers to what was asked last."""
        proof = self.log.proof(of, checkpoint=self.log.checkpoint(REPLICAS))
        # Of four leaves at most, what lies to the left comes first.
        path = (
            sorted(proof.path, key=lambda node: node != proof.path[-1]) if of == 2 else proof.path
        )
        run = ProvenRun(1, proof.publisher, proof.sequence, proof.time_us, proof.leaf)
        number = self.asked[-1].number if self.asked else 0
        return ProvenRange(*PARTITION, number, OFFSET, [run], path, proof.checkpoint)

    def batch(self, of: int = 1) -> Entries:
        found = self.log.published[of]
        return Entries(
            found.publisher, *PARTITION, found.offset, found.sequence, found.time_us, D, D,
            [found.payload],
        )  # fmt: skip

    def send(self, batch: Entries, *, sender: NodeId | None = None) -> None:
        self.reading.on_entries(self.leads[-1] if sender is None else sender, batch)
        self.hear()

    def show(self, place: ProvenRange, *, sender: NodeId | None = None) -> None:
        self.reading.on_proven(self.leads[-1] if sender is None else sender, place)
        self.hear()

    def proof(self) -> Proof:
        (found,) = self.found
        assert isinstance(found, list)
        (batch,) = found
        place = Place.of(self.log.keys.cluster, PLAIN, 0, batch.publisher)
        return proof_of(batch, place)


def forged(entries: Entries) -> Entries:
    (payload,) = entries.payloads
    return msgspec.structs.replace(entries, payloads=[payload[:-1] + b"!"])


@pytest.mark.parametrize("signed", [True, False])
def test_the_place_and_the_batch_of_one_replica_make_the_proof(signed: bool) -> None:
    replicas = Replicas(signed=signed)

    replicas.send(replicas.batch())
    assert replicas.found == []
    replicas.show(replicas.place())

    proof = replicas.proof()
    assert proof.render() == replicas.log.proof(1).render(), "to the byte, whoever makes it"
    verdict = verify(proof, replicas.log.keys)
    assert (verdict.offset, verdict.events, verdict.is_signed) == (2, 2, signed)
    assert replicas.named == []


@pytest.mark.parametrize("is_batch", [True, False])
def test_who_sends_what_does_not_verify_is_named_and_the_next_one_is_asked(is_batch: bool) -> None:
    replicas = Replicas()
    replicas.send(forged(replicas.batch()) if is_batch else replicas.batch())
    true = replicas.place()
    replicas.show(true if is_batch else msgspec.structs.replace(true, path=[D, D]))
    liar, other = replicas.leads

    replicas.send(replicas.batch())
    replicas.show(replicas.place())

    assert liar != other
    assert replicas.named == [liar]
    batch = verify(replicas.proof(), replicas.log.keys).batch
    assert batch == replicas.log.published[1].payload


@pytest.mark.parametrize("other", [0, 2])
def test_another_batch_with_its_own_true_place_is_not_the_one_at_this_offset(other: int) -> None:
    replicas = Replicas()
    (lead,) = replicas.leads
    replicas.send(replicas.batch(other))
    assert replicas.asked == []

    replicas.send(msgspec.structs.replace(replicas.batch(other), offset=2))
    replicas.show(replicas.place(other))

    assert replicas.found == []
    assert replicas.named == [lead]


@pytest.mark.parametrize("start", [1, 3])
def test_a_replica_that_shifts_where_the_batch_begins_proves_nothing(start: int) -> None:
    replicas = Replicas()
    (lead,) = replicas.leads
    replicas.send(msgspec.structs.replace(replicas.batch(), offset=start))
    assert bool(replicas.asked) is (start == 3)

    if replicas.asked:
        replicas.show(replicas.place())

    assert replicas.found == []
    assert replicas.named == ([lead] if start == 3 else [])


@pytest.mark.parametrize("payload", [bytes(HEADER_BYTES), bytes(48), b"\xff" * 48])
def test_what_cannot_be_a_batch_is_passed_over(payload: bytes) -> None:
    replicas = Replicas()

    replicas.send(msgspec.structs.replace(replicas.batch(), payloads=[payload]))

    assert replicas.asked == []
    assert replicas.found == []


def test_only_who_is_asked_is_heard_and_only_about_what_is_asked() -> None:
    replicas = Replicas()
    (lead,) = replicas.leads
    others = replicas.connected - {lead}
    for other in others:
        replicas.send(replicas.batch(), sender=other)
        replicas.reading.on_absent(other, Absent(*PARTITION, OFFSET, 4))
    assert replicas.asked == []

    replicas.send(replicas.batch())
    for other in others:
        replicas.show(replicas.place(), sender=other)
    replicas.show(msgspec.structs.replace(replicas.place(), number=99))
    replicas.show(msgspec.structs.replace(replicas.place(), offset=2))

    assert replicas.found == []
    assert replicas.leads == [lead]


def test_a_replica_that_lacks_the_batch_is_passed_over_and_not_named() -> None:
    replicas = Replicas()
    lead = replicas.leads[-1]
    replicas.reading.on_absent(lead, Absent(*PARTITION, OFFSET, OFFSET + 1))
    replicas.hear()
    replicas.send(replicas.batch())
    replicas.show(replicas.place())

    assert replicas.named == []
    assert verify(replicas.proof(), replicas.log.keys).offset == 2


# Refusals


def refusal(number: int, sentence: str, *, is_final: bool = True) -> ProvenRange:
    return ProvenRange(*PARTITION, number, OFFSET, [], [], "", sentence, is_final)


def test_it_is_refused_once_all_say_so_for_good_who_are_there_and_these_are_enough() -> None:
    contract = Contract.parse(PLAIN, {"protection": "byzantine", "order": "total"})
    local = make_local_cluster(base_port=1, topics={PLAIN: contract})
    prover = Prover(local.cluster, local.identities["alice"])
    (topic,) = [each for each in topics_of(local.cluster) if each.name == PLAIN]
    prover._number = 7

    def say(*sentences: str, there: int, is_final: bool = True, number: int = 7) -> None:
        prover._said.clear()
        prover._listener.connected_peers = {*range(there)}
        for replica, sentence in enumerate(sentences):
            prover._hear(replica, refusal(number, sentence, is_final=is_final))
        prover._raise_if_refused(topic)

    say("gone", "gone", there=2)
    say("gone", "gone", "gone", there=4)
    say("gone", "gone", "gone", "gone", there=4, is_final=False)
    say("gone", "gone", "gone", "gone", there=4, number=6)
    with pytest.raises(RefusedError, match=f"'{PLAIN}': it is gone"):
        say("it is gone", "it is gone", "what", there=3)


# What of a batch is shown


def test_an_offset_in_a_batch_with_event_proofs_proves_that_very_event() -> None:
    log = OrderLog()
    for values in ((b"a", b"b"), (b"c", b"d", b"e")):
        log.publish(SALTED, [event(value) for value in values])

    for offset, value in ((2, b"c"), (3, b"d"), (4, b"e")):
        alone = shown(log.proof(1), offset, log.keys, whole=False)
        verdict = verify(alone, log.keys)
        assert alone.body is None
        assert verdict.event is not None
        assert (verdict.offset, verdict.event.value) == (offset, value)

    assert shown(log.proof(1), 3, log.keys, whole=True) == log.proof(1)


@pytest.mark.parametrize(("topic", "signed"), [(PLAIN, True), (PLAIN, False), (SALTED, False)])
def test_a_batch_without_a_tree_of_events_is_proved_as_a_whole(topic: str, signed: bool) -> None:
    log = OrderLog()
    log.publish(topic, [event(b"a"), event(b"b")], signed=signed)

    assert shown(log.proof(0), 1, log.keys, whole=False) == log.proof(0)


def test_an_event_is_not_proved_alone_under_a_tree_of_other_events() -> None:
    log = OrderLog()
    log.publish(SALTED, [event(b"a"), event(b"b")], root=bytes(31) + b"1")

    with pytest.raises(RefusedError, match="only the whole batch is proved"):
        shown(log.proof(0), 1, log.keys, whole=False)
