"""What a prover makes of the words of replicas: what verifies, whoever said which part of it."""

import msgspec
import pytest

from order_log import PLAIN, REPLICAS, OrderLog, event
from quorate.client.proving import _Search
from quorate.core.ids import topic_id
from quorate.core.ordering import SEAL_BYTES, Absent, Entries, Partition, Proven
from quorate.crypto.proofs import Proof, verify

PARTITION = Partition(topic_id(PLAIN), 0)
D = bytes(32)


class Replicas:
    """A log of three batches, and a search for the one at offset 1."""

    def __init__(self) -> None:
        self.log = OrderLog()
        for value in (b"zero", b"one", b"two"):
            self.log.publish(PLAIN, [event(value)])
        self.search = _Search(PLAIN, PARTITION, 1)
        self.numbers = 0

    def position(self, of: int = 1) -> Proven:
        proof = self.log.proof(of, checkpoint=self.log.checkpoint(REPLICAS))
        return Proven(
            *PARTITION, self.numbers, 1, proof.publisher, proof.sequence, proof.time_us, proof.leaf,
            proof.path, proof.checkpoint,
        )  # fmt: skip

    def batch(self, of: int = 1) -> Entries:
        found = self.log.published[of]
        return Entries(
            found.publisher, *PARTITION, 1, found.sequence, found.time_us, D, D, [found.payload]
        )  # fmt: skip

    def ask(self, replica: int) -> None:
        self.numbers += 1
        self.search.begin(replica, self.numbers)

    def fitting(self, replica: int) -> Proof | None:
        return self.search.fitting(replica, self.log.keys)


def forged(entries: Entries) -> Entries:
    (payload,) = entries.payloads
    return msgspec.structs.replace(entries, payloads=[payload[:-1] + b"!"])


def test_the_position_and_the_batch_of_one_replica_make_a_proof() -> None:
    replicas = Replicas()
    replicas.ask(0)
    replicas.search.on_proven(0, replicas.position())
    assert not replicas.search.answered.is_set()
    replicas.search.on_entries(0, replicas.batch())

    proof = replicas.fitting(0)

    assert replicas.search.answered.is_set()
    assert proof is not None
    assert verify(proof, replicas.log.keys).offset == 1
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
    assert verify(proof, replicas.log.keys).batch == replicas.log.published[1].payload[SEAL_BYTES:]
    named = replicas.search.others_than(proof, replicas.log.keys)
    assert [replica for replica, _ in named] == [0, 1]


@pytest.mark.parametrize("other", [0, 2])
def test_another_batch_with_its_own_true_position_is_not_the_one_at_this_offset(other: int) -> None:
    replicas = Replicas()
    replicas.ask(0)
    replicas.search.on_proven(0, replicas.position(other))
    replicas.search.on_entries(0, replicas.batch(other))

    assert replicas.fitting(0) is None
    assert "the batch does not stand there" in replicas.search.said[0]


def test_only_who_is_asked_is_heard_and_only_about_what_is_asked() -> None:
    replicas = Replicas()
    replicas.ask(0)
    position, batch = replicas.position(), replicas.batch()
    replicas.search.on_proven(1, position)
    replicas.search.on_proven(0, msgspec.structs.replace(position, number=99))
    replicas.search.on_proven(0, msgspec.structs.replace(position, offset=2))
    replicas.search.on_entries(2, batch)
    replicas.search.on_entries(0, msgspec.structs.replace(batch, offset=0))
    replicas.search.on_absent(1, Absent(*PARTITION, 1))

    assert not replicas.search.answered.is_set()
    assert replicas.fitting(0) is None


def test_a_replica_that_refuses_for_good_is_not_waited_for_until_it_is_asked_again() -> None:
    replicas = Replicas()
    replicas.ask(0)
    refusal = Proven(*PARTITION, 1, 1, 0, 0, 0, 0, [], "", "it is gone", is_final=True)
    replicas.search.on_proven(0, refusal)

    assert replicas.search.answered.is_set()
    assert replicas.search.final == {0: "it is gone"}
    replicas.ask(0)
    assert replicas.search.final == {}
    assert not replicas.search.answered.is_set()


def test_a_replica_that_lacks_the_batch_still_says_where_it_stands() -> None:
    replicas = Replicas()
    replicas.ask(0)
    replicas.search.on_absent(0, Absent(*PARTITION, 1))
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
