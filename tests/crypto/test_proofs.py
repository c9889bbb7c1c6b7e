"""Proofs: what holds is told, and whatever is changed in one is noticed."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import independent
from order_log import (
    PLAIN,
    REPLICAS,
    SALTED,
    SESSION,
    TIME_S,
    TIME_US,
    OrderLog,
    cluster,
    event,
    identity,
    with_replica,
)
from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from quorate.core.header import SALT_BYTES
from quorate.crypto.events import event_salt
from quorate.crypto.proofs import (
    PROOF_BYTES_MAX,
    EventProof,
    Keys,
    Proof,
    ProofError,
    enough_of,
    verify,
    verify_bytes,
)

VECTORS = Path(__file__).parent.parent / "vectors"
GENERATOR = VECTORS / "generate_proofs.py"
PROOFS = VECTORS / "proofs"
EXPECTED: dict[str, dict[str, Any]] = json.loads((PROOFS / "expected.json").read_text())
KEYS = Keys.of(Cluster.parse((PROOFS / "cluster.toml").read_text()))
# Other code finds the identity in the file, too.
ORIGIN = independent.origin_of((PROOFS / "cluster.toml").read_text())


def vector(kind: str, name: str) -> bytes:
    return (PROOFS / f"{kind}-{name}.json").read_bytes()


def generated() -> dict[str, bytes]:
    spec = importlib.util.spec_from_file_location("generate_proofs", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, bytes] = module.made()
    return made


# Vectors


def test_the_generator_makes_the_vectors_that_are_checked_in_to_the_byte() -> None:
    found = {path.name: path.read_bytes() for path in PROOFS.iterdir()}

    assert generated() == found


@pytest.mark.parametrize("name", EXPECTED["good"])
def test_a_good_vector_proves_what_is_expected(name: str) -> None:
    verdict = verify_bytes(vector("good", name), KEYS)

    assert json.loads(msgspec.json.encode(verdict)) == EXPECTED["good"][name]


@pytest.mark.parametrize("name", EXPECTED["bad"])
def test_a_bad_vector_is_refused_with_its_sentence(name: str) -> None:
    with pytest.raises(ProofError) as refused:
        verify_bytes(vector("bad", name), KEYS)

    assert str(refused.value) == EXPECTED["bad"][name]


# Code that shares nothing with ours


COSIGNERS = {each.name: each.public_key for each in KEYS.cosigners}
# What is wrong with the others is only how they are written, or which lines a checkpoint has that
# prove nothing: only ours insists on that.
LOOSE = ("text-", "tree-size", "-beside-enough", "by-all", "in-another-order")
SIGNED_OTHERWISE = [
    name for name in EXPECTED["bad"] if not any(loose in name for loose in LOOSE)
]  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED["good"])
def test_other_code_comes_to_the_same_verdict(name: str) -> None:
    names = independent.check(vector("good", name), ORIGIN, COSIGNERS, KEYS.needed)

    assert sorted(names) == [each["name"] for each in EXPECTED["good"][name]["vouchers"]]


@pytest.mark.parametrize("name", SIGNED_OTHERWISE)
def test_other_code_refuses_what_was_not_signed_like_that(name: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        independent.check(vector("bad", name), ORIGIN, COSIGNERS, KEYS.needed)


# A changed byte


CHANGED = [
    "batch", "event", "batch-with-another-key", "event-alone-in-its-batch", "basic-batch",
    "basic-batch-that-is-malformed",
]  # fmt: skip


def is_refused(data: bytes) -> bool:
    try:
        verify_bytes(data, KEYS)
    except ProofError:
        return True
    return False


@pytest.mark.parametrize("name", CHANGED)
def test_no_byte_of_a_proof_can_be_changed(name: str) -> None:
    good = vector("good", name)
    assert not is_refused(good)

    for at, byte in enumerate(good):
        # The next letter or digit, the other case, something that is no text, and a space.
        others = {byte ^ 1, byte ^ 32, byte ^ 128, (byte + 1) % 256, ord(" ")} - {byte}
        for other in sorted(others):
            changed = good[:at] + bytes([other]) + good[at + 1 :]
            assert is_refused(changed), f"byte {at} is {other} instead of {byte}"


@pytest.mark.parametrize("name", CHANGED)
def test_no_byte_of_a_proof_can_be_left_out_or_said_twice(name: str) -> None:
    good = vector("good", name)

    for at in range(len(good)):
        assert is_refused(good[:at] + good[at + 1 :]), f"without byte {at}"
        assert is_refused(good[:at] + good[at : at + 1] + good[at:]), f"with byte {at} twice"
        assert is_refused(good[:at]), f"cut at {at}"


@given(st.data())
def test_nothing_that_is_put_in_or_taken_out_goes_unnoticed(data: st.DataObject) -> None:
    good = vector("good", data.draw(st.sampled_from(sorted(EXPECTED["good"]))))
    at = data.draw(st.integers(0, len(good)))
    until = data.draw(st.integers(at, min(len(good), at + 200)))
    changed = good[:at] + data.draw(st.binary(max_size=200)) + good[until:]

    assert changed == good or is_refused(changed)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert is_refused(data)


def test_what_is_far_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProofError, match=f"more than {PROOF_BYTES_MAX} bytes"):
        Proof.parse(b" " * (PROOF_BYTES_MAX + 1))


# What a proof proves


def test_a_verdict_says_who_published_what_when_where_and_who_vouches_for_it() -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"before"), event(b"that")], by="bob")
    log.publish(PLAIN, [event(b"one", b"k"), event(b"two")], by="alice")

    verdict = verify_bytes(log.proof(1).render(), log.keys)

    assert (verdict.cluster, verdict.topic, verdict.partition) == (cluster().full_name, PLAIN, 0)
    assert (verdict.offset, verdict.events) == (2, 2)
    assert (verdict.leaf, verdict.tree_size) == (1, 2)
    assert (verdict.producer, verdict.producer_name, verdict.session) == (1000, "alice", SESSION)
    assert (verdict.is_signed, verdict.is_key_pinned) == (True, True)
    assert verdict.public_key == identity("alice").public.sign_key
    assert (verdict.sequence, verdict.signed_us) == (1, TIME_US - 1000)
    assert verdict.ordered_us == TIME_US + 1000
    assert verdict.batch is not None
    assert Batch(verdict.batch).events() == [event(b"one", b"k"), event(b"two")]
    assert (verdict.event, verdict.event_index) == (None, None)
    assert [(each.name, each.time_s) for each in verdict.vouchers] == [
        ("r0", TIME_S), ("r1", TIME_S), ("r2", TIME_S),
    ]  # fmt: skip
    assert verdict.remarks == ()


def test_a_proof_of_one_event_has_nothing_of_the_others() -> None:
    log = OrderLog()
    events = [event(b"secret value %d" % at, b"secret key %d" % at) for at in range(5)]
    log.publish(SALTED, events)
    salt = (log.proof(0).body or b"")[:SALT_BYTES]

    proof = log.proof(0, event=2)

    verdict = verify_bytes(proof.render(), log.keys)
    assert (verdict.event, verdict.event_index) == (events[2], 2)
    assert (verdict.events, verdict.batch) == (5, None)
    content = msgspec.msgpack.encode(msgspec.to_builtins(proof, builtin_types=(bytes,)))
    assert b"secret value 2" in content
    for other in (0, 1, 3, 4):
        assert events[other].value not in content
        assert events[other].key not in content  # type: ignore[operator]
        assert event_salt(salt, other) not in content
    assert salt not in content
    assert event_salt(salt, 2) in content


def test_every_event_of_a_batch_can_be_proved_alone() -> None:
    log = OrderLog()
    events = [event(b"%d" % at) for at in range(11)]
    log.publish(SALTED, [event(b"before")] * 5)
    log.publish(SALTED, events)

    proved = [verify(log.proof(1, event=at), log.keys) for at in range(11)]

    assert [each.event for each in proved] == events
    assert [each.offset for each in proved] == [*range(5, 16)]
    with pytest.raises(LocalProtocolError, match="no event 11 in this batch; it has events 0 to"):
        EventProof.of(log.proof(1).payload, 11)


@pytest.mark.parametrize("batches", [1, 2, 3, 7, 8, 9, 33])
def test_every_batch_of_a_log_can_be_proved_and_other_code_agrees(batches: int) -> None:
    log = OrderLog()
    for at in range(batches):
        who = ("alice", "bob")[at % 2]
        log.publish(PLAIN, [event(b"%d" % at)], by=who, partition=at % 2, signed=at % 3 > 0)
    cosigners = {each.name: each.public_key for each in log.keys.cosigners}

    for at in range(batches):
        proof = log.proof(at).render()
        verdict = verify_bytes(proof, log.keys)
        assert (verdict.leaf, verdict.offset) == (at, at // 2)
        assert len(independent.check(proof, log.keys.origin, cosigners, log.keys.needed)) == 3


@given(st.data())
def test_what_is_rendered_is_read_back(data: st.DataObject) -> None:
    log = OrderLog()
    texts = st.text(st.characters(codec="utf-8"), max_size=8)
    made = st.builds(
        event, st.binary(max_size=20), st.none() | st.binary(max_size=9), urgent=st.booleans()
    )
    events = [
        msgspec.structs.replace(
            each,
            headers=tuple(data.draw(st.lists(st.tuples(texts, st.binary(max_size=5)), max_size=2))),
        )
        for each in data.draw(st.lists(made, min_size=1, max_size=5))
    ]
    log.publish(SALTED, events)
    proof = log.proof(0, event=data.draw(st.integers(0, len(events) - 1)))

    assert Proof.parse(proof.render()) == proof
    assert verify(proof, log.keys).event in events


# Batches that nobody signed


def test_a_proof_of_a_basic_batch_says_that_it_was_ordered_and_that_nobody_signed_it() -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"signed"), event(b"too")])
    log.publish(PLAIN, [event(b"one"), event(b"two", b"k")], signed=False)
    proof = log.proof(1)

    verdict = verify_bytes(proof.render(), log.keys)

    assert (proof.seal, proof.event) == (None, None)
    assert (verdict.producer_name, verdict.offset, verdict.sequence) == ("alice", 2, 2)
    assert (verdict.is_signed, verdict.is_key_pinned) == (False, False)
    assert (verdict.public_key, verdict.signed_us) == (None, None)
    assert Batch(verdict.batch or b"").events() == [event(b"one"), event(b"two", b"k")]
    assert [each.name for each in verdict.vouchers] == ["r0", "r1", "r2"]
    (remark,) = verdict.remarks
    assert remark.startswith("alice did not sign this batch")


def test_a_former_client_without_a_key_is_not_taken_for_one_whose_key_is_pinned() -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"x")], by="carol", signed=False)

    assert not verify(log.proof(0), log.keys).is_key_pinned


def test_a_signed_batch_passes_for_no_basic_one_nor_the_other_way_round() -> None:
    """With the same events of the same producer under the same number, both by all replicas."""
    signed, basic = OrderLog(), OrderLog()
    signed.publish(PLAIN, [event(b"x")])
    basic.publish(PLAIN, [event(b"x")], signed=False)
    of_signed, of_basic = signed.proof(0), basic.proof(0)
    assert of_signed.body == of_basic.body

    for log, other in ((signed, of_basic), (basic, of_signed)):
        mixed = msgspec.structs.replace(log.proof(0), seal=other.seal, header=other.header)
        with pytest.raises(ProofError, match="step 6"):
            verify(mixed, log.keys)


# Batches that are malformed


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_malformed_batch_is_proved_to_have_its_place_and_readers_deliver_nothing_of_it(
    signed: bool, count: int
) -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"one"), event(b"two")], count=count, signed=signed)
    log.publish(PLAIN, [event(b"behind")])

    verdict = verify(log.proof(0), log.keys)

    assert (verdict.offset, verdict.events, verdict.is_signed) == (0, count, signed)
    assert "the batch is malformed, so that readers deliver none" in verdict.remarks[-1]
    with pytest.raises(RemoteProtocolError):
        Batch(verdict.batch or b"")
    assert verify(log.proof(1), log.keys).offset == count


# Old ones


@pytest.mark.parametrize("version", [0, 1, 3, 20])
def test_a_proof_of_another_version_is_refused_with_a_sentence_that_says_what_to_do(
    version: int,
) -> None:
    other = vector("good", "batch").replace(b"proof v2", b"proof v%d" % version)

    with pytest.raises(ProofError, match=f"version {version}, .* version 2: have it made again"):
        Proof.parse(other)


# Whose key it was


def test_another_key_of_the_producer_counts_by_the_word_of_those_who_ordered() -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"x")], generation=1)

    verdict = verify(log.proof(0), log.keys)

    assert not verdict.is_key_pinned
    assert verdict.producer_name == "alice"
    assert verdict.public_key == identity("alice", 1).public.sign_key
    (remark,) = verdict.remarks
    assert "pins another key for alice" in remark
    assert "the vouchers say" in remark


@pytest.mark.parametrize(
    ("who", "name", "sentence"),
    [("carol", "carol", "a client no more"), ("dan", "", "has no client 1003")],
)
def test_the_same_is_said_of_clients_that_the_file_has_no_key_of(
    who: str, name: str, sentence: str
) -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"x")], by=who)

    verdict = verify(log.proof(0), log.keys)

    assert (verdict.is_key_pinned, verdict.producer_name) == (False, name)
    assert sentence in verdict.remarks[0]


def test_a_pinned_producer_cannot_be_spoken_for_by_those_who_order() -> None:
    """All replicas together can put a forged batch in order, and it does not pass for alice's."""
    log = OrderLog()
    log.publish(PLAIN, [event(b"forged")], by="alice", generation=66)

    assert not verify(log.proof(0), log.keys).is_key_pinned


# Keys


def test_with_the_keys_of_another_time_it_takes_the_file_of_that_time() -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"x")])
    proof = log.proof(0)

    with pytest.raises(ProofError, match="if replicas got other keys since, the cluster file of"):
        verify(proof, with_replica(log.keys, "r1", 1))
    assert verify(proof, with_replica(log.keys, "r3", 1)).offset == 0


def test_keys_are_those_of_the_replicas_that_order_and_it_takes_a_quorum_of_them() -> None:
    five = replace(cluster(replicas=(*REPLICAS, "r4")), orderers=4)

    assert [each.name for each in Keys.of(five).cosigners] == list(REPLICAS)
    assert Keys.of(five).needed == 3
    assert Keys.of(cluster(replicas=(*REPLICAS, "r4"))).needed == 4


def test_a_follower_does_not_vouch() -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"x")])
    five = cluster(replicas=(*REPLICAS, "r4"))
    keys = Keys.of(replace(five, orderers=4, founders=log.cluster.founders))
    proof = log.proof(0, checkpoint=log.checkpoint(["r0", "r1", "r4"]))

    with pytest.raises(ProofError, match="2 known cosigners"):
        verify(proof, keys)


def test_a_cluster_without_validated_topics_has_no_keys_for_proofs() -> None:
    few = replace(cluster(), topics={}, replicas=cluster().replicas[:3], orderers=0)

    with pytest.raises(ConfigError, match="no validated topics: with f = 1 these take 4"):
        Keys.of(few)


def test_a_prover_takes_as_many_cosignatures_as_are_needed() -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"x")])

    note, size = enough_of(log.checkpoint(REPLICAS), log.keys)

    assert size == 1
    assert verify(log.proof(0, checkpoint=note), log.keys).tree_size == 1


def test_a_prover_takes_no_checkpoint_of_too_few_or_of_another_log() -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"x")])

    with pytest.raises(RemoteProtocolError, match="where 3 are needed"):
        enough_of(log.checkpoint(REPLICAS[:2]), log.keys)
    with pytest.raises(RemoteProtocolError, match="not of 'quorate/bank/[0-9a-f]{64}/byzantine'"):
        enough_of(log.checkpoint(origin="quorate/bank/crash"), log.keys)
