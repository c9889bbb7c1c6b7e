"""Clients that come, get other keys and go, by commands, while the cluster runs."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters import TestCluster, quorate, running_cluster
from logs import next_records
from quorate.client import Admin, Consumer, Producer
from quorate.core.cluster import Client
from quorate.core.errors import QuorumError, RefusedError
from quorate.crypto.identity import Identity
from quorate.runtime.files import cluster_file, key_file, write_cluster, write_identity
from quorate.runtime.local import OPERATOR
from traffic import eventually

pytestmark = pytest.mark.xdist_group("processes")

TOPICS: dict[str, Mapping[str, object]] = {
    "log": {"order": "total"},
    "live": {"broadcast": "authenticated"},
}


def make_keys(directory: Path, name: str) -> str:
    made = quorate("identity", "new", name, "--directory", directory / "keys")
    assert made.code == 0, made.err
    return f"{directory / 'keys' / name}.pub"


def write_current(cluster: TestCluster, directory: Path) -> None:
    file = directory / "cluster.toml"
    written = quorate("cluster", "current", "-d", cluster.directory, "-o", file)
    assert written.code == 0, written.err


async def revisions(cluster: TestCluster) -> list[tuple[Any, ...]]:
    """What each replica that is up has carried out."""
    async with Admin(cluster.directory, OPERATOR) as admin:
        reports: list[Any] = list((await admin.status(timeout_s=2.0)).values())
    logs = [report["log"]["control"] for report in reports if report.get("log")]
    return [(log["revision"], log["digest"]) for log in logs]


async def alike(cluster: TestCluster, replicas: int = 4) -> int:
    found = await eventually(
        lambda: revisions(cluster), lambda seen: len(seen) == replicas and len(set(seen)) == 1
    )
    return int(found[0][0])


def test_a_client_that_is_added_publishes_to_those_who_are_there_and_is_out_when_removed(
    tmp_path: Path,
) -> None:
    async def story(cluster: TestCluster) -> None:
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe(["log", "live"])
            await consumer.subscribed()
            added = await asyncio.to_thread(
                quorate, "cluster", "add-client", make_keys(tmp_path, "dora"),
                "-d", cluster.directory,
            )  # fmt: skip
            assert added.out.startswith("dora is a client of"), added.err
            await asyncio.to_thread(write_current, cluster, tmp_path)
            async with Producer(tmp_path, "dora", timeout_s=3.0) as producer:
                await producer.send("log", b"first")
                (first,) = await next_records(consumer, 1)
                assert (first.publisher, first.value) == ("dora", b"first")
                await producer.send("live", b"second")
                (second,) = await next_records(consumer, 1)
                assert (second.publisher, second.value) == ("dora", b"second")

                removed = await asyncio.to_thread(
                    quorate, "cluster", "remove-client", "dora", "-d", cluster.directory
                )
                assert removed.out == "dora is no client any more\n", removed.err
                with pytest.raises(QuorumError):
                    await producer.send("log", b"too late")
        assert await alike(cluster) == 2
        # What it published is still its own.
        async with Consumer(cluster.directory, "alice") as consumer:
            consumer.subscribe(["log"], start="begin")
            assert [each.publisher for each in await next_records(consumer, 1)] == ["dora"]

    with running_cluster(topics=TOPICS) as cluster:
        asyncio.run(story(cluster))


async def is_out(producer: Producer) -> bool:
    """Whether every replica has ended its link."""
    return not producer.driver.connected_peers


def test_a_client_goes_on_with_other_keys_and_the_old_ones_are_out(tmp_path: Path) -> None:
    async def story(cluster: TestCluster) -> None:
        async with Producer(cluster.directory, "alice", timeout_s=3.0) as producer:
            await producer.send("log", b"with the old keys")
            put = await asyncio.to_thread(
                quorate, "cluster", "add-client", f"{make_keys(tmp_path, 'alice')},party=alice",
                "-d", cluster.directory,
            )  # fmt: skip
            assert put.out.startswith("alice is a client of alice"), put.err
            # A replica that lags behind may take what comes before it has heard of it.
            await eventually(lambda: is_out(producer))
            with pytest.raises(QuorumError):
                await producer.send("log", b"with the old keys again")
        await asyncio.to_thread(write_current, cluster, tmp_path)
        async with Producer(tmp_path, "alice") as producer:
            await producer.send("log", b"with the new keys")
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe(["log"], start="begin")
            found = [each.value for each in await next_records(consumer, 2)]
        assert found == [b"with the old keys", b"with the new keys"]

    with running_cluster(topics=TOPICS) as cluster:
        asyncio.run(story(cluster))


def test_a_file_with_other_clients_at_some_replicas_lets_none_of_them_disagree() -> None:
    """Whoever stands in files only commands nothing, at any replica, before or after a restart."""

    async def story(cluster: TestCluster) -> None:
        zoe = Identity.generate("zoe")
        present = cluster.launcher.cluster
        stranger = Client.of(zoe.public, index=len(present.clients), operator=True)
        edited = replace(present, clients=(*present.clients, stranger))
        write_identity(key_file(cluster.directory, "zoe"), zoe)
        cluster_file(cluster.directory).unlink()
        write_cluster(cluster_file(cluster.directory), edited)
        for name in ("r0", "r1", "r2"):
            cluster.launcher.stop(name)
            cluster.launcher.start(name)
            cluster.launcher.wait_until_up(name)
        with contextlib.suppress(QuorumError, RefusedError, TimeoutError):
            async with Admin(cluster.directory, "zoe") as admin, asyncio.timeout(5):
                await admin.create_topic("zoe-s", {})
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.create_topic("ours", {"order": "total"})
        assert await alike(cluster) == 1
        cluster.launcher.stop("r3")
        cluster.launcher.start("r3")
        cluster.launcher.wait_until_up("r3")
        assert await alike(cluster) == 1
        async with Admin(cluster.directory, OPERATOR) as admin:
            assert set((await admin.learn_topology()).topics) == {"log", "live", "ours"}

    with running_cluster(topics=TOPICS) as cluster:
        asyncio.run(story(cluster))
