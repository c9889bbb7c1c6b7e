"""Clusters that are founded twice, files that were edited, and disks that were lost."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import TestCluster, quorate, running_cluster
from quorate.client import Admin, Producer
from quorate.core.errors import QuorateError
from quorate.runtime.files import CLUSTER_FILE, cluster_file, data_directory
from quorate.runtime.launcher import LaunchError
from quorate.runtime.local import OPERATOR

pytestmark = pytest.mark.xdist_group("processes")

TOPICS = {"log": {"protection": "byzantine", "order": "total", "validated": True}}


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        yield running


def publish(cluster: TestCluster, value: bytes) -> int:
    async def story() -> int:
        async with Producer(cluster.directory, "alice") as producer:
            receipt = await producer.send("log", value)
            assert receipt.offset is not None
            return receipt.offset

    return asyncio.run(story())


def proof_of(cluster: TestCluster, offset: int) -> str:
    said = quorate("prove", "log", 0, offset, "-d", cluster.directory)
    assert said.code == 0, said.err
    return said.out


def verified(proof: str, keys: Path, folder: Path) -> tuple[int, str]:
    (folder / "proof.json").write_text(proof)
    said = quorate("verify", folder / "proof.json", "--cluster-key", keys)
    return said.code, said.out + said.err


def lose(cluster: TestCluster, *names: str) -> None:
    for name in names:
        cluster.launcher.stop(name)
        shutil.rmtree(data_directory(cluster.directory, name))


def edit(cluster: TestCluster, before: str, after: str) -> None:
    file = cluster_file(cluster.directory)
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after))


def test_a_cluster_whose_disks_are_all_gone_is_founded_anew_as_another_one(
    cluster: TestCluster, tmp_path: Path
) -> None:
    """A6: a proof of one life does not hold in the other."""
    first = proof_of(cluster, publish(cluster, b"one"))
    lose(cluster, *cluster.names)

    # Given four empty disks, nothing starts, and nothing is restored either.
    up = quorate("up", cluster.directory, "--detach")
    assert up.code == 2
    assert "'quorate cluster found'" in up.err
    restored = quorate("replica", "r0", "restore", "-d", cluster.directory)
    assert "and there are 0. Start those that have their disks" in restored.err
    # When it is founded anew with the same keys,
    founded = quorate("cluster", "found", "-d", cluster.directory)
    assert founded.code == 0, founded.err
    assert "r0, r1, r2, r3 here can start" in founded.out
    prepared = quorate("replica", "r0", "prepare", "-d", cluster.directory)
    assert "r0 has a disk already" in prepared.err
    assert quorate("up", cluster.directory, "--detach").code == 0
    second = proof_of(cluster, publish(cluster, b"a completely different vote"))

    # then each proof holds with the file of its own life only.
    now = cluster_file(cluster.directory)
    (before,) = cluster.directory.glob("cluster-*.toml")
    assert [verified(second, now, tmp_path)[0], verified(first, before, tmp_path)[0]] == [0, 0]
    for proof, keys in ((first, now), (second, before)):
        code, said = verified(proof, keys, tmp_path)
        assert code == 1
        assert "a cluster that is founded again is another one" in said


def test_a_cluster_that_runs_is_not_founded_anew(cluster: TestCluster) -> None:
    said = quorate("cluster", "found", "-d", cluster.directory)

    assert said.code == 2
    assert "is not empty, so that the cluster is not gone" in said.err


def test_an_edited_f_is_refused_by_replicas_and_by_clients_of_those_that_run(
    cluster: TestCluster, tmp_path: Path
) -> None:
    """B9."""
    publish(cluster, b"one")
    # A client that has another f in its file,
    shutil.copytree(cluster.directory / "keys", tmp_path / "keys")
    text = cluster_file(cluster.directory).read_text()
    (tmp_path / CLUSTER_FILE).write_text(text.replace("f = 1\n", "f = 0\n"))

    async def story() -> None:
        async with Admin(tmp_path, OPERATOR) as admin:
            found = await admin.status(timeout_s=1.0)
        assert {each["health"] for each in found.values()} == {"down"}

    asyncio.run(story())
    # and replicas that are started with it.
    cluster.launcher.stop_all()
    edit(cluster, "f = 1\n", "f = 0\n")
    for command in (("up", cluster.directory), ("replica", "r0", "run", "-d", cluster.directory)):
        said = quorate(*command)
        assert said.code == 2
        assert "has f = 0, and the cluster was founded with f = 1, which is for good" in said.err
    edit(cluster, "f = 0\n", "f = 1\n")
    assert quorate("up", cluster.directory, "--detach").code == 0
    assert publish(cluster, b"two") == 1


def test_a_lost_disk_does_not_start_until_it_is_restored(cluster: TestCluster) -> None:
    publish(cluster, b"one")
    lose(cluster, "r1")

    with pytest.raises(QuorateError, match="quorate replica r1 restore"):
        cluster.launcher.start("r1")
    prepared = quorate("replica", "r1", "prepare", "-d", cluster.directory)
    assert "r1 is not prepared, since r0, r2, r3 have run under the" in prepared.err
    restored = quorate("replica", "r1", "restore", "-d", cluster.directory)
    assert restored.code == 0, restored.err
    cluster.launcher.start("r1")
    cluster.launcher.wait_until_up("r1")
    cluster.launcher.stop("r3")

    # It counts again.
    assert publish(cluster, b"two") == 1


def test_up_starts_those_that_have_their_disks_and_names_the_one_that_has_not(
    cluster: TestCluster,
) -> None:
    publish(cluster, b"one")
    lose(cluster, "r2")
    cluster.launcher.stop_all()

    said = quorate("up", cluster.directory, "--detach")

    assert said.code == 0, said.err
    assert "quorate replica r2 restore" in said.err.replace("\n", " ")
    assert [name for name in cluster.names if cluster.launcher.pid(name)] == ["r0", "r1", "r3"]
    # Those whose disks are here have run, whether or not they run now.
    cluster.launcher.stop_all()
    assert quorate("replica", "r2", "restore", "-d", cluster.directory).code == 0
    assert quorate("up", cluster.directory, "--detach").code == 0
    assert publish(cluster, b"two") == 1


def test_the_disk_of_another_cluster_does_not_start(cluster: TestCluster) -> None:
    with running_cluster(topics=TOPICS, start=False) as other:
        cluster.launcher.stop("r0")
        data = data_directory(other.directory, "r0")
        shutil.rmtree(data)
        shutil.copytree(data_directory(cluster.directory, "r0"), data)

        with pytest.raises((LaunchError, QuorateError), match="belongs to the cluster local/"):
            other.launcher.start("r0")


def test_a_file_that_commands_changed_is_held_against_the_log(cluster: TestCluster) -> None:
    """B3: with a file of a later revision as well."""

    async def story() -> None:
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.create_topic("more", {})

    asyncio.run(story())
    now = cluster.directory / "now.toml"
    assert quorate("cluster", "current", "-d", cluster.directory, "-o", now).code == 0
    cluster.launcher.stop_all()
    port = cluster.launcher.cluster.replicas[0].port
    text = now.read_text()
    edited = text.replace(f"port = {port}\n", f"port = {port + 9}\n", 1)
    cluster_file(cluster.directory).write_text(edited)

    said = quorate("up", cluster.directory, "--detach")

    assert said.code == 2
    assert f"r0 at 127.0.0.1:{port + 9}, and the cluster knows it at" in said.err
    cluster_file(cluster.directory).write_text(text)
    assert quorate("up", cluster.directory, "--detach").code == 0


def test_what_is_edited_after_the_first_run_is_refused_or_reported(cluster: TestCluster) -> None:
    """B3, B10."""
    publish(cluster, b"one")
    cluster.launcher.stop_all()
    file = cluster_file(cluster.directory)
    text = file.read_text()
    file.write_text(text + '\n[topics.late]\nprotection = "crash"\n')
    said = quorate("up", cluster.directory, "--detach")
    assert said.code == 0, said.err
    assert "'quorate topic create late'" in said.err.replace("\n", " ")
    cluster.launcher.stop_all()
    port = cluster.launcher.cluster.replicas[0].port
    file.write_text(text.replace(f"port = {port}\n", f"port = {port + 9}\n", 1))

    said = quorate("up", cluster.directory, "--detach")

    assert said.code == 2
    assert f"r0 at 127.0.0.1:{port + 9}, and the cluster knows it at" in said.err
    assert "quorate cluster replace" in said.err
