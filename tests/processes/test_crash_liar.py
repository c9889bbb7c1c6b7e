"""One replica lies in the group of a topic that tolerates crashes only: no other log is harmed."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clusters import TestCluster, quorate, running_cluster
from crash_liar import LIAR, ORDERS, LyingLauncher
from quorate.client import Admin, Consumer, Producer
from quorate.core.control import CONTROL_TOPIC
from quorate.core.ids import topic_id
from quorate.protocol.ordering.log import Content, OrderLog
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.value import CHAIN_START, Span, Value, chain_of, value_digest
from quorate.runtime.files import data_directory
from quorate.runtime.local import OPERATOR
from quorate.storage.store import DiskStore
from stage import described
from traffic import eventually, offences

pytestmark = pytest.mark.xdist_group("processes")

TOPICS = {
    "used": {"order": "total", "protection": "byzantine"},
    "fresh": {"order": "total", "protection": "byzantine"},
    "crash": {"order": "total", "protection": "crash"},
}
VICTIMS = ("r1", "r2")


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS, launcher=LyingLauncher) as running:
        yield running


def order(cluster: TestCluster, *orders: str) -> None:
    """Have the liar say this to its victims."""
    path = data_directory(cluster.directory, LIAR) / ORDERS
    unfinished = Path(f"{path}.part")
    unfinished.write_text("\n".join(orders))
    unfinished.rename(path)


async def publish(cluster: TestCluster, *topics: str) -> None:
    async with Producer(cluster.directory, "alice") as producer:
        for topic in topics:
            await producer.send(topic, b"an event")


async def read(cluster: TestCluster, topic: str, count: int) -> None:
    async with Consumer(cluster.directory, "bob") as consumer:
        consumer.subscribe([topic], start="begin")
        found = 0
        async with asyncio.timeout(30):
            async for _ in consumer:
                found += 1
                if found == count:
                    return


async def slots(cluster: TestCluster) -> list[int]:
    """The slot of the crash group that the liar is in, and those of its victims."""
    async with Admin(cluster.directory, OPERATOR) as admin:
        reports: Any = await admin.status()
    return [reports[name]["log"]["groups"]["crash"]["slot"] for name in (LIAR, *VICTIMS)]


async def slot_of_all(cluster: TestCluster) -> int:
    """It may learn late what the others decided, and what it says of the past nobody hears."""
    seen: list[int] = await eventually(
        partial(slots, cluster), lambda seen: 1 < min(seen) == max(seen)
    )
    return seen[0]


async def stopped(cluster: TestCluster) -> set[str]:
    """Which groups stopped at any replica."""
    async with Admin(cluster.directory, OPERATOR) as admin:
        reports: Any = await admin.status()
    groups = [group for each in reports.values() for group in each["log"]["groups"].values()]
    return {group["stopped"] for group in groups} - {""}


def test_what_one_replica_says_in_a_crash_group_harms_no_byzantine_log(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        await publish(cluster, "used", "crash")
        running = {name: cluster.launcher.pid(name) for name in cluster.names}
        await slot_of_all(cluster)

        order(cluster, *(f"foreign {topic}" for topic in ("used", "fresh", CONTROL_TOPIC)))

        for victim in VICTIMS:
            await eventually(
                partial(offences, cluster.launcher.cluster, victim),
                lambda counts: counts[LIAR, "bad-decision"] == 3,
            )
        await publish(cluster, "used", "fresh", "crash")
        assert {name: cluster.launcher.pid(name) for name in cluster.names} == running
        assert await stopped(cluster) == set()
        for victim in VICTIMS:
            cluster.launcher.stop(victim, kill=True)
            cluster.launcher.start(victim)
            cluster.launcher.wait_until_up(victim)
        await publish(cluster, "used", "fresh", "crash")
        await read(cluster, "used", 3)
        await read(cluster, "fresh", 2)
        await read(cluster, "crash", 3)

    asyncio.run(story())


def test_an_audit_names_nobody_for_a_fork_of_a_crash_log(cluster: TestCluster) -> None:
    async def story() -> None:
        await publish(cluster, "used", "crash")
        before = await slot_of_all(cluster)
        order(cluster, "fork crash")
        await eventually(partial(slots, cluster), lambda seen: min(seen[1:]) > before)

    asyncio.run(story())
    said = quorate("audit", cluster.directory, "--json")

    report = json.loads(said.out)
    found = {
        (each["kind"], each["who"]) for pile in report["findings"] for each in pile["examples"]
    }
    assert said.code == 1
    assert report["named"] == []
    assert ("fork", None) in found or ("fork", "") in found


def forge(cluster: TestCluster, group: GroupKind) -> None:
    """Have on r1's disk that this group decided a batch of a Byzantine topic."""
    cluster.launcher.stop("r1")
    content = described(b"")
    (chain,) = chain_of(CHAIN_START, [content])
    span = Span(4000, topic_id("fresh"), 0, 1, 1, chain)
    value = Value(1, (span,))
    encoded = value.encode()
    contents = [Content([content], [])]
    decided = OrderLog(group).apply(1, value_digest(encoded), encoded, value, contents)
    store = DiskStore(data_directory(cluster.directory, "r1"))
    store.append([decided])
    store.close()
    cluster.launcher.start("r1")
    cluster.launcher.wait_until_up("r1")


async def batches_of(cluster: TestCluster, topic: str) -> int:
    """How many r1 has."""
    async with Admin(cluster.directory, OPERATOR) as admin:
        report: Any = (await admin.status())["r1"]
    batches: int = report["log"]["topics"].get(topic, {}).get("batches", 0)
    return batches


def test_a_replica_starts_with_a_record_of_before_that_names_a_topic_of_others(
    cluster: TestCluster,
) -> None:
    """The group that wrote it stops, says so, and does not stand in the way of the topic's own."""

    async def go_on(count: int) -> None:
        await publish(cluster, "fresh", "used")
        await eventually(partial(batches_of, cluster, "fresh"), lambda batches: batches == count)

    forge(cluster, GroupKind.CRASH)
    for count in (1, 2):
        asyncio.run(go_on(count))
        said = quorate("status", cluster.directory)
        assert "r1 is silent in a group that cannot go on: crash" in said.out
        assert "r1 stopped its crash log: slot 1 on disk has batches of topic 'fresh'" in said.out
        cluster.launcher.stop("r1")
        cluster.launcher.start("r1")
        cluster.launcher.wait_until_up("r1")


def test_a_record_that_the_disk_refuses_stops_its_group_and_neither_the_process_nor_the_others(
    cluster: TestCluster,
) -> None:
    """On r1's disk the topic belongs to a group that does not run there, and does not notice."""

    async def story() -> None:
        await publish(cluster, "fresh")
        await eventually(partial(stopped, cluster))
        await publish(cluster, "crash", "fresh")
        await eventually(partial(batches_of, cluster, "crash"))

    forge(cluster, GroupKind.NONE)
    pid = cluster.launcher.pid("r1")
    asyncio.run(story())

    assert cluster.launcher.pid("r1") == pid
    said = quorate("status", cluster.directory)
    assert "r1 is silent in a group that cannot go on: byzantine" in said.out
    assert "which group 2 writes since its slot 1" in " ".join(said.out.split())
