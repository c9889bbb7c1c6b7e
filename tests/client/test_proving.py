"""What a prover makes of the words of replicas: what verifies, whoever said which part of it."""

import msgspec
import pytest

from order_log import PLAIN, REPLICAS, SALTED, OrderLog, event
from quorate.client.proving import _Search, shown
from quorate.core.errors import RefusedError
from quorate.core.ids import topic_id
from quorate.core.ordering import Absent, Entries, Partition, Proven
from quorate.crypto.proofs import Proof, verify

PARTITION = Partition(topic_id(PLAIN), 0)
# Inside the second batch.
OFFSET = 3
D = bytes(32)


class Replicas:
    """A log of three batches with two events each, and a search for the one that has offset 3."""

    def __init__(self, *, signed: bool = True) -> None:
        self.log = OrderLog()
        for value in (b"zero", b"one", b"two"):
            self.log.publish(PLAIN, [event(value), event(value)], signed=signed)
        self.search = _Search(PLAIN, PARTITION, OFFSET)
        self.numbers = 0

    def position(self, of: int = 1) -> Proven:
        proof = self.log.proof(of, checkpoint=self.log.checkpoint(REPLICAS))
        return Proven(
            *PARTITION, self.numbers, OFFSET, proof.publisher, proof.sequence, proof.time_us,
            proof.leaf, proof.offset, proof.path, proof.checkpoint,
        )  # fmt: skip

    def batch(self, of: int = 1) -> Entries:
        found = self.log.published[of]
        return Entries(
            found.publisher, *PARTITION, found.offset, found.sequence, found.time_us, D, D,
            [found.payload],
        )  # fmt: skip

    def ask(self, replica: int) -> None:
        self.numbers += 1
        self.search.begin(replica, self.numbers)

    def fitting(self, replica: int) -> Proof | None:
        return self.search.fitting(replica, self.log.keys)


def forged(entries: Entries) -> Entries:
    (payload,) = entries.payloads
    return msgspec.structs.replace(entries, payloads=[payload[:-1] + b"!"])


@pytest.mark.parametrize("signed", [True, False])
def test_the_position_and_the_batch_of_one_replica_make_a_proof(signed: bool) -> None:
    replicas = Replicas(signed=signed)
    replicas.ask(0)
    replicas.search.on_proven(0, replicas.position())
    assert not replicas.search.answered.is_set()
    replicas.search.on_entries(0, replicas.batch())

    proof = replicas.fitting(0)

    assert replicas.search.answered.is_set()
    assert proof is not None
    verdict = verify(proof, replicas.log.keys)
    assert (verdict.offset, verdict.events, verdict.is_signed) == (2, 2, signed)
    assert replicas.search.others_than(proof, replicas.log.keys) == []


def test_parts_of_different_replicas_make_one_too_and_the_others_are_named() -> None:
    replicas = Replicas()
    replicas.ask(0)
    replicas.search.on_proven(0, replicas.position())
    replicas.search.on_entries(0, forged(replicas.batch()))
    assert replicas.fitting(0) is None
    replicas.ask(1)
    replicas.search.on_proven(1, msgspec.structs.replace(replicas.position(), path=[D, D]))
    replicas.search.on_entries(1, replicas.batch())

    proof = replicas.fitting(1)

    assert proof is not None
    assert verify(proof, replicas.log.keys).batch == replicas.log.published[1].payload
    named = replicas.search.others_than(proof, replicas.log.keys)
    assert [replica for replica, _ in named] == [0, 1]


@pytest.mark.parametrize("other", [0, 2])
def test_another_batch_with_its_own_true_position_is_not_the_one_at_this_offset(other: int) -> None:
    replicas = Replicas()
    replicas.ask(0)
    replicas.search.on_proven(0, replicas.position(other))
    replicas.search.on_entries(0, replicas.batch(other))
    assert not replicas.search.answered.is_set()

    moved = msgspec.structs.replace(replicas.position(other), start=2)
    replicas.search.on_proven(0, moved)
    replicas.search.on_entries(0, msgspec.structs.replace(replicas.batch(other), offset=2))

    assert replicas.fitting(0) is None
    assert "the batch does not stand there" in replicas.search.said[0]


@pytest.mark.parametrize("start", [1, 3])
def test_a_replica_that_shifts_where_the_batch_begins_proves_nothing(start: int) -> None:
    replicas = Replicas()
    replicas.ask(0)
    replicas.search.on_proven(0, msgspec.structs.replace(replicas.position(), start=start))
    replicas.search.on_entries(0, msgspec.structs.replace(replicas.batch(), offset=start))

    assert start == 1 or replicas.search.answered.is_set()
    assert replicas.fitting(0) is None


@pytest.mark.parametrize("payload", [b"", b"short", bytes(48)], ids=["none", "short", "zeros"])
def test_what_cannot_be_a_batch_is_passed_over(payload: bytes) -> None:
    replicas = Replicas()
    replicas.ask(0)
    replicas.search.on_proven(0, replicas.position())

    replicas.search.on_entries(0, msgspec.structs.replace(replicas.batch(), payloads=[payload]))

    assert not replicas.search.answered.is_set()


def test_only_who_is_asked_is_heard_and_only_about_what_is_asked() -> None:
    replicas = Replicas()
    replicas.ask(0)
    position, batch = replicas.position(), replicas.batch()
    replicas.search.on_proven(1, position)
    replicas.search.on_proven(0, msgspec.structs.replace(position, number=99))
    replicas.search.on_proven(0, msgspec.structs.replace(position, offset=2))
    replicas.search.on_entries(2, batch)
    replicas.search.on_entries(0, msgspec.structs.replace(batch, offset=0))
    replicas.search.on_absent(1, Absent(*PARTITION, OFFSET, OFFSET + 1))

    assert not replicas.search.answered.is_set()
    assert replicas.fitting(0) is None


def test_a_replica_that_refuses_for_good_is_not_waited_for_until_it_is_asked_again() -> None:
    replicas = Replicas()
    replicas.ask(0)
    refusal = Proven(*PARTITION, 1, OFFSET, 0, 0, 0, 0, 0, [], "", "it is gone", is_final=True)
    replicas.search.on_proven(0, refusal)

    assert replicas.search.answered.is_set()
    assert replicas.search.final == {0: "it is gone"}
    replicas.ask(0)
    assert replicas.search.final == {}
    assert not replicas.search.answered.is_set()


def test_a_replica_that_lacks_the_batch_still_says_where_it_stands() -> None:
    replicas = Replicas()
    replicas.ask(0)
    replicas.search.on_absent(0, Absent(*PARTITION, OFFSET, OFFSET + 1))
    replicas.search.on_proven(0, replicas.position())
    assert replicas.search.answered.is_set()
    assert replicas.fitting(0) is None
    replicas.ask(1)
    replicas.search.on_entries(1, replicas.batch())

    assert replicas.fitting(1) is not None


def test_batches_that_do_not_fit_are_not_hoarded() -> None:
    replicas = Replicas()
    for replica in range(4):
        replicas.ask(replica)
        replicas.search.on_entries(replica, forged(replicas.batch()))
        assert replicas.fitting(replica) is None

    assert len(replicas.search._batches) == 2, "as many as may lie, and one"


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
