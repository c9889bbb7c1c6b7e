"""Replicas that get other keys or another address, and replicas that are added, by commands."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from clusters import TestCluster, quorate, running_cluster
from logs import LogTraffic, group_in, next_records
from net import free_ports
from quorate.client import Admin, Consumer, Producer
from quorate.core.errors import RefusedError
from quorate.runtime.files import FOUNDING_FILE
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import OPERATOR
from traffic import eventually

pytestmark = pytest.mark.xdist_group("processes")

TOPICS: dict[str, Mapping[str, object]] = {
    "log": {"order": "total", "partitions": 2},
    "live": {"broadcast": "authenticated"},
}
CLIENTS = ("alice", "bob", "carol", "dave")


@contextlib.contextmanager
def elsewhere(cluster: TestCluster, name: str) -> Iterator[tuple[Path, str]]:
    """A directory as on another machine, with new keys for this name, and where it listens.

    What is started there is stopped at the end.
    """
    directory = cluster.directory.parent / f"{name}-elsewhere"
    made = quorate("identity", "new", name, "--directory", directory / "keys")
    assert made.code == 0, made.err
    (port,) = free_ports(1)
    try:
        yield directory, f"{directory / 'keys' / name}.pub@127.0.0.1:{port}"
    finally:
        if (directory / "cluster.toml").exists():
            Launcher(directory).stop_all()


def is_gone(pid: int | None) -> bool:
    return pid is None


def start_there(cluster: TestCluster, directory: Path, name: str, *, founding: bool = True) -> None:
    """Without the founding file it cannot begin at the beginning."""
    written = quorate(
        "cluster", "current", "-d", cluster.directory, "-o", directory / "cluster.toml"
    )
    assert written.code == 0, written.err
    if not founding:
        (directory / FOUNDING_FILE).unlink()
    launcher = Launcher(directory)
    if not (directory / "data").exists():
        # What was added founds its disk; what was there before has lost it.
        launcher.found(name, restores=name == "r1")
    launcher.start(name)
    launcher.wait_until_up(name)


async def caught_up(directory: Path, replicas: int) -> None:
    """All replicas have the same log, and carried out the same commands."""

    async def look() -> list[tuple[Any, ...]]:
        async with Admin(directory, OPERATOR) as admin:
            await admin.learn_topology()
            reports: list[Any] = list((await admin.status(timeout_s=1.0)).values())
        groups = [(group_in(report, "byzantine"), report) for report in reports]
        return [
            (group["slot"], group["root"], report["log"]["control"]["digest"])
            for group, report in groups
            if group is not None
        ]

    await eventually(look, lambda seen: len(seen) == replicas and len(set(seen)) == 1)


@pytest.mark.parametrize("data", [True, False], ids=["with its disk", "with an empty disk"])
def test_a_replica_goes_on_with_other_keys_at_another_address(data: bool) -> None:
    async def story(cluster: TestCluster, directory: Path, place: str) -> None:
        async with LogTraffic(cluster.directory, "log") as traffic:
            traffic.flow()
            await traffic.passed(50)
            replaced = await asyncio.to_thread(
                quorate, "cluster", "replace", place, "-d", cluster.directory
            )
            assert replaced.out.startswith("r1 is at 127.0.0.1:"), replaced.err
            # Whoever has the old keys is out, and ends by itself.
            await eventually(lambda: asyncio.to_thread(cluster.launcher.pid, "r1"), is_gone)
            await traffic.passed(50)
            if data:
                shutil.copytree(cluster.directory / "data" / "r1", directory / "data" / "r1")
            await asyncio.to_thread(start_there, cluster, directory, "r1")
            await traffic.passed(50)
            await traffic.settled()
        traffic.check()
        await caught_up(cluster.directory, 4)
        audited = await asyncio.to_thread(quorate, "audit", cluster.directory, "--json")
        assert audited.code == 0, audited.out + audited.err
        # It counts again: with another one down, the log goes on.
        cluster.launcher.stop("r3", kill=True)
        async with Producer(cluster.directory, "alice") as producer:
            await producer.learn_topology()
            receipt = await producer.send("log", b"one more", partition=0)
            assert receipt.offset is not None

    with (
        running_cluster(topics=TOPICS, clients=CLIENTS) as cluster,
        elsewhere(cluster, "r1") as (directory, place),
    ):
        asyncio.run(story(cluster, directory, place))


@pytest.mark.parametrize("founding", [True, False], ids=["from the beginning", "from a snapshot"])
def test_a_replica_that_is_added_follows_the_logs_and_serves_new_topics(founding: bool) -> None:
    async def story(cluster: TestCluster, directory: Path, place: str) -> None:
        async with LogTraffic(cluster.directory, "log") as traffic:
            traffic.flow()
            await traffic.passed(50)
            added = await asyncio.to_thread(
                quorate, "cluster", "add", place, "-d", cluster.directory
            )
            assert added.out.startswith("r4 is a replica from now on"), added.err
            await asyncio.to_thread(start_there, cluster, directory, "r4", founding=founding)
            await traffic.passed(50)
            await traffic.settled()
        traffic.check()
        await caught_up(cluster.directory, 5)
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.learn_topology()
            report: Any = (await admin.status(timeout_s=1.0))["r4"]
        group = group_in(report, "byzantine")
        assert group is not None
        assert group["started_over"] == (0 if founding else 1)
        audited = await asyncio.to_thread(quorate, "audit", cluster.directory, "--json")
        assert audited.code == 0, audited.out + audited.err
        assert "r4" in json.loads(audited.out)["groups"][0]["agreeing"]
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.learn_topology()
            names = [f"t{number}" for number in range(12)]
            for name in names:
                await admin.create_topic(name, {"protection": "crash"})
            found = await admin.learn_topology()
        mine = [name for name in names if 4 in found.placement(name)]
        assert mine
        assert found.placement("log") == found.placement("live") == (0, 1, 2, 3)
        async with (
            Consumer(cluster.directory, "bob") as consumer,
            Producer(cluster.directory, "alice") as producer,
        ):
            consumer.subscribe(mine[:1])
            await consumer.subscribed()
            receipt = await producer.send(mine[0], b"hello")
            assert [each.value for each in await next_records(consumer, 1)] == [b"hello"]
            assert receipt.replicas

    with (
        running_cluster(topics=TOPICS, clients=CLIENTS) as cluster,
        elsewhere(cluster, "r4") as (directory, place),
    ):
        asyncio.run(story(cluster, directory, place))


def test_a_place_that_another_has_is_not_given_twice() -> None:
    async def story(cluster: TestCluster) -> None:
        taken = cluster.launcher.cluster.replicas[0]
        async with Admin(cluster.directory, OPERATOR) as admin:
            with pytest.raises(RefusedError, match="r0"):
                await admin.add_replica(taken)
        async with Admin(cluster.directory, "alice") as admin:
            with pytest.raises(RefusedError, match="alice is not an operator"):
                await admin.replace_replica(taken)

    with running_cluster(topics=TOPICS) as cluster:
        asyncio.run(story(cluster))
