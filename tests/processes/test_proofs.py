"""Proofs of what real clusters ordered, verified by whoever has the cluster file and no cluster."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import independent
from clusters import TestCluster, quorate, running_cluster
from quorate.client import Admin, BlockingProver, Producer, Prover, prove
from quorate.core.cluster import Cluster
from quorate.core.errors import LocalProtocolError
from quorate.core.event import Event
from quorate.crypto.identity import Identity
from quorate.crypto.proofs import Keys, Proof, verify, verify_bytes
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.runtime.files import cluster_file, write_cluster
from quorate.runtime.local import OPERATOR
from traffic import eventually, status_of

pytestmark = pytest.mark.xdist_group("processes")

VALIDATED: dict[str, object] = {"protection": "byzantine", "order": "total", "validated": True}
TOPICS: dict[str, dict[str, object]] = {
    "payments": {**VALIDATED, "partitions": 2},
    "votes": {**VALIDATED, "event_proofs": True},
    "closed": {**VALIDATED, "subscribe": ["bob"]},
    "ledger": {"protection": "byzantine", "order": "total"},
    "books": {"protection": "crash", "order": "total"},
}
SECRETS = [b"the first secret", b"the second secret", b"the third secret"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS, clients=("alice", "bob", "mallory")) as running:
        yield running


@pytest.fixture
def elsewhere(cluster: TestCluster, tmp_path: Path) -> Path:
    """A directory of somebody who has the cluster file and nothing else."""
    shutil.copy(cluster.directory / "cluster.toml", tmp_path)
    return tmp_path


def keys_of(cluster: TestCluster) -> Keys:
    return Keys.of(Cluster.parse((cluster.directory / "cluster.toml").read_text()))


async def published(
    cluster: TestCluster,
    topic: str,
    values: list[bytes],
    partition: int = 0,
    *,
    signed: bool = True,
) -> int:
    """The offset that a batch of these values got."""
    async with Producer(cluster.directory, "alice") as producer:
        if not signed:
            await producer.update_topology([])
        events = [Event(None, value, (), 1_000_000) for value in values]
        receipt = await producer.send_batch(topic, events, partition=partition)
        assert receipt.offset is not None
        return receipt.offset


def check_with_other_code(cluster: TestCluster, proof: bytes) -> None:
    keys = keys_of(cluster)
    cosigners = {each.name: each.public_key for each in keys.cosigners}
    file = cluster_file(cluster.directory).read_text()
    assert (
        len(independent.check(proof, independent.origin_of(file), cosigners, keys.needed))
        == keys.needed
    )


def verified_elsewhere(directory: Path, proof: str, *options: str) -> tuple[int, str]:
    """How `quorate verify` ends in a process of its own there, and what it says."""
    (directory / "proof.json").write_text(proof)
    arguments = ("verify", "proof.json", "--cluster-key", "cluster.toml", *options)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "quorate", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_batch_is_proved_on_the_command_line_and_verified_elsewhere(
    cluster: TestCluster, elsewhere: Path
) -> None:
    offset = asyncio.run(published(cluster, "payments", [b"10 to bob", b"20 to eve"], 1))

    proved = quorate("prove", "payments", 1, offset, "-d", cluster.directory, "--as", "bob")

    assert proved.code == 0, proved.err
    check_with_other_code(cluster, proved.out.encode())
    code, said = verified_elsewhere(elsewhere, proved.out)
    assert code == 0, said
    assert "alice published 2 events on topic payments of cluster" in said
    assert f"offsets {offset} to {offset + 1} of partition 1" in said
    assert "the key that is pinned for it" in said
    assert "10 to bob" in said
    assert "20 to eve" in said
    assert said.count(" at 20") == 3, "three replicas vouch, each at a time"


def test_one_event_is_proved_without_its_neighbours(cluster: TestCluster, elsewhere: Path) -> None:
    offset = asyncio.run(published(cluster, "votes", SECRETS))

    proved = quorate("prove", "votes", 0, offset + 1, "-d", cluster.directory)

    assert proved.code == 0, proved.err
    check_with_other_code(cluster, proved.out.encode())
    code, said = verified_elsewhere(elsewhere, proved.out, "--json")
    verdict: dict[str, Any] = json.loads(said)
    assert code == 0
    assert [(shown["offset"], shown["value"]) for shown in verdict["shown"]] == [
        (offset + 1, "the second secret")
    ]
    assert (verdict["holds"], verdict["producer_name"], verdict["events"]) == (True, "alice", 3)
    proof = Proof.parse(proved.out.encode())
    assert proof.body is None
    assert proof.event is not None
    whole = b"".join([proof.seal or b"", *proof.path, *proof.event.path, proof.event.value])
    for neighbour in (SECRETS[0], SECRETS[2]):
        assert neighbour not in whole
        assert neighbour.decode() not in proved.out


def test_the_whole_batch_of_a_topic_with_event_proofs_is_shown_only_to_who_asks_for_it(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        offset = await published(cluster, "votes", SECRETS)
        single = await published(cluster, "votes", [b"alone"])
        async with Prover(cluster.directory, "bob") as prover:
            first = await prover.prove("votes", 0, offset)
            whole = await prover.prove("votes", 0, offset + 2, whole=True)
            alone = await prover.prove("votes", 0, single)
        keys = keys_of(cluster)
        assert first.body is None
        assert verify(whole, keys).batch is not None
        assert verify(whole, keys).offset == offset
        assert verify(whole, keys).remarks == ()
        event = verify(alone, keys).event
        assert event is not None
        assert event.value == b"alone"

    asyncio.run(story())


def test_the_neighbours_of_a_basic_event_are_shown_only_to_who_asks_for_them(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        offset = await published(cluster, "votes", SECRETS, signed=False)
        async with Prover(cluster.directory, "bob") as prover:
            with pytest.raises(LocalProtocolError, match="its 3 events are proved together or not"):
                await prover.prove("votes", 0, offset + 1)
            whole = await prover.prove("votes", 0, offset + 1, whole=True)
        verdict = verify(whole, keys_of(cluster))
        assert (verdict.offset, verdict.events, verdict.is_signed) == (offset, 3, False)

    asyncio.run(story())


def test_a_large_batch_that_few_replicas_store_is_proved(cluster: TestCluster) -> None:
    async def story() -> None:
        value = b"x" * (4 * INLINE_BYTES_MAX)
        offset = await published(cluster, "payments", [value])
        proof = await prove(cluster.directory, "bob", "payments", 0, offset)
        batch = verify(proof, keys_of(cluster)).batch
        assert batch is not None
        assert value in batch

    asyncio.run(story())


def test_programs_without_an_event_loop_make_proofs_too(cluster: TestCluster) -> None:
    offset = asyncio.run(published(cluster, "payments", [b"blocking"]))

    with BlockingProver(cluster.directory, "bob") as prover:
        proof = prover.prove("payments", 0, offset)

    assert verify_bytes(proof.render(), keys_of(cluster)).offset == offset


def test_a_proof_that_was_changed_is_refused_with_a_reason(
    cluster: TestCluster, elsewhere: Path
) -> None:
    offset = asyncio.run(published(cluster, "payments", [b"100 to bob"]))
    proof = asyncio.run(prove(cluster.directory, "bob", "payments", 0, offset)).render().decode()

    moved = proof.replace(f'"offset": {offset}', f'"offset": {offset + 1}')
    code, said = verified_elsewhere(elsewhere, moved)
    coded, told = verified_elsewhere(elsewhere, moved, "--json")

    assert (code, coded) == (1, 1)
    assert said.startswith("This proves nothing: step 6 of 7 does not hold: the batch does not")
    assert json.loads(told)["step"] == 6


def test_wrong_use_is_told_from_a_proof_that_does_not_hold(
    cluster: TestCluster, elsewhere: Path
) -> None:
    (elsewhere / "empty").write_bytes(b"")

    missing = quorate("verify", elsewhere / "none", "--cluster-key", elsewhere / "cluster.toml")
    no_keys = quorate("verify", elsewhere / "empty", "--cluster-key", elsewhere / "none.toml")
    empty = quorate("verify", elsewhere / "empty", "--cluster-key", elsewhere / "cluster.toml")
    without = quorate("verify", elsewhere / "empty")

    assert (missing.code, no_keys.code, without.code) == (2, 2, 2)
    assert "cannot be read" in missing.err
    assert (empty.code, empty.out) == (
        1,
        "This proves nothing: step 1 of 7 does not hold: it is no proof: Input data was "
        "truncated.\n",
    )


def test_what_cannot_be_proved_is_refused_at_once_in_a_sentence(cluster: TestCluster) -> None:
    directory = cluster.directory
    offset = asyncio.run(published(cluster, "closed", [b"for bob"]))

    beyond = quorate("prove", "payments", 0, 1_000_000, "-d", directory)
    crashes_only = quorate("prove", "books", 0, 0, "-d", directory)
    unknown = quorate("prove", "payments", 9, 0, "-d", directory)
    forbidden = quorate("prove", "closed", 0, offset, "-d", directory, "--as", "mallory")
    allowed = quorate("prove", "closed", 0, offset, "-d", directory, "--as", "bob")

    assert {each.code for each in (beyond, crashes_only, unknown, forbidden)} == {2}
    assert "offset 1000000 is not there yet; the partition ends at" in beyond.err
    assert "topic 'books' is not ordered by replicas that bear liars" in crashes_only.err
    assert "it has partitions 0 to 1" in unknown.err
    assert "mallory may not subscribe to 'closed'; bob may" in forbidden.err
    assert allowed.code == 0
    assert {each.out for each in (beyond, crashes_only, unknown, forbidden)} == {""}


def test_a_basic_batch_is_proved_and_the_proof_says_that_nobody_signed_it(
    cluster: TestCluster, elsewhere: Path
) -> None:
    offset = asyncio.run(published(cluster, "ledger", [b"one", b"two"]))

    proved = quorate("prove", "ledger", 0, offset + 1, "-d", cluster.directory)

    assert proved.code == 0, proved.err
    check_with_other_code(cluster, proved.out.encode())
    verdict = verify_bytes(proved.out.encode(), keys_of(cluster))
    assert (verdict.offset, verdict.events, verdict.is_signed) == (offset, 2, False)
    code, said = verified_elsewhere(elsewhere, proved.out)
    assert code == 0
    assert "alice did not sign this batch" in said


def test_whoever_has_a_file_of_before_is_told_that_it_does_not_do_for_this_proof(
    cluster: TestCluster, tmp_path: Path
) -> None:
    offset = asyncio.run(published(cluster, "payments", [b"with new keys"]))
    shutil.copytree(cluster.directory / "keys", tmp_path / "keys")
    known = cluster.launcher.cluster
    before = [
        replace(each, **keys_of_before(each.name)) if each.number < 2 else each
        for each in known.replicas
    ]
    write_cluster(tmp_path / "cluster.toml", replace(known, replicas=tuple(before)))

    proved = quorate("prove", "payments", 0, offset, "-d", tmp_path, "--as", "bob")

    assert proved.code == 0, proved.err
    assert verify_bytes(proved.out.encode(), keys_of(cluster)).offset == offset
    assert "which is older than the cluster is now: step 5" in proved.err
    assert "quorate cluster current" in proved.err


def keys_of_before(name: str) -> dict[str, Any]:
    public = Identity.generate(name).public
    return {
        "sign_key": public.sign_key,
        "mac_key": public.mac_key,
        "certificate": public.certificate,
    }


LIES = [["content"], ["sequence"], ["publisher"], []]
ROUNDS_MAX = 5


@pytest.mark.parametrize("fields", LIES, ids=["content", "sequence", "publisher", "anything"])
def test_a_replica_that_lies_neither_prevents_nor_forges_a_proof_and_is_named(
    cluster: TestCluster, fields: list[str]
) -> None:
    async def story() -> None:
        offset = await published(cluster, "payments", [b"true"])
        async with Admin(cluster.directory, OPERATOR) as admin:
            for liar in cluster.names:
                await admin.misbehave(liar, "lie", percent=100, fields=fields)
                async with Prover(cluster.directory, "bob") as prover:
                    proof = await prover.prove("payments", 0, offset)
                    reports.update(prover.reports)
                await admin.misbehave(liar, "behave")
                batch = verify(proof, keys_of(cluster)).batch
                assert batch is not None
                assert batch.endswith(b"true")

    reports: dict[str, int] = {}
    for _ in range(ROUNDS_MAX):
        asyncio.run(story())
        # What is altered may be drawn, and be something that does no harm here.
        if any("bad-lead" in kind for kind in reports):
            break
    assert any("bad-lead" in kind for kind in reports), reports


def test_replicas_that_are_silent_are_passed_over(cluster: TestCluster) -> None:
    async def story() -> None:
        offset = await published(cluster, "payments", [b"heard"])
        async with Admin(cluster.directory, OPERATOR) as admin:
            for silent in cluster.names:
                await admin.misbehave(silent, "silent", towards=["bob"])
                proof = await prove(cluster.directory, "bob", "payments", 0, offset)
                await admin.misbehave(silent, "behave")
                assert verify(proof, keys_of(cluster)).offset == offset

    asyncio.run(story())


async def checkpoint_of(cluster: TestCluster, replica: str) -> str:
    report = await status_of(cluster.directory, replica)
    return str(report["log"]["groups"]["byzantine"]["checkpoint"]) if "log" in report else ""


def test_one_replica_is_enough_and_what_was_ordered_before_a_restart_is_proved_after_it(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        offset = await published(cluster, "payments", [b"kept"])
        cluster.launcher.stop_all()
        cluster.launcher.start_all()
        # Nothing is published that would bring a head to be signed, and yet it is.
        await eventually(lambda: checkpoint_of(cluster, "r0"))
        async with Prover(cluster.directory, "bob") as prover:
            await prover.learn_topology()
            for name in cluster.names[1:]:
                cluster.launcher.stop(name)
            # The one that is left cannot order anything any more.
            proof = await prover.prove("payments", 0, offset)
        assert verify(proof, keys_of(cluster)).offset == offset

    try:
        asyncio.run(story())
    finally:
        cluster.revive()
