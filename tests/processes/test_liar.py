"""Replicas and publishers that do what no correct one does, on purpose (B8)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clusters import TestCluster, running_cluster
from quorate.client import Admin, Producer
from quorate.core import batch
from quorate.core.errors import RefusedError
from quorate.core.ids import Lane, topic_id
from quorate.core.messages import Publish
from quorate.protocol.misbehaviour import FIELDS
from quorate.runtime.local import OPERATOR
from traffic import BYZANTINE_TOPICS, Traffic, eventually, lead_of, offences

pytestmark = pytest.mark.xdist_group("processes")

# The second of the first chain, so that every kind of message passes through its hands.
LIAR = "r1"
CLOSED = {"closed": {"broadcast": "authenticated", "publish": ["alice"]}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    clients = ("alice", "bob", "mallory")
    with running_cluster(topics={**BYZANTINE_TOPICS, **CLOSED}, clients=clients) as running:
        yield running


@asynccontextmanager
async def misbehaving(
    cluster: TestCluster, behaviour: str, offender: str = "", **details: Any
) -> AsyncIterator[tuple[Traffic, str]]:
    """Traffic while a replica behaves like this; its books are checked at the end.

    If none is named, it is one from which the subscriber takes payloads.
    """
    async with (
        Traffic(cluster.directory, BYZANTINE_TOPICS) as traffic,
        Admin(cluster.directory, OPERATOR) as admin,
    ):
        traffic.flow()
        await traffic.passed(30)
        offender = offender or lead_of(traffic.consumers[0], "vote")
        await admin.misbehave(offender, behaviour, **details)
        try:
            yield traffic, offender
        finally:
            await admin.misbehave(offender, "behave")
        await traffic.settled()
        traffic.check()


async def held_against(cluster: TestCluster, member: str) -> Counter[str]:
    """The offences of one member that the metrics of all replicas count, by kind."""
    kinds: Counter[str] = Counter()
    for replica in cluster.names:
        for (who, kind), count in (await offences(cluster.launcher.cluster, replica)).items():
            if who == member:
                kinds[kind] += count
    return kinds


@pytest.mark.parametrize("field", ["", *(field for field in FIELDS if field != "reply")])
def test_a_replica_that_lies_in_everything_it_sends_harms_nobody_and_is_named_by_the_others(
    cluster: TestCluster, field: str
) -> None:
    async def story() -> None:
        before = await held_against(cluster, LIAR)
        fields = [field] if field else []
        async with misbehaving(cluster, "lie", LIAR, percent=100, fields=fields) as (traffic, _):
            await traffic.passed(100)
            after = await held_against(cluster, LIAR)
        assert after.total() > before.total()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("behaviour", "details"),
    [
        ("silent", {}),
        ("drop", {"percent": 50.0}),
        ("slow", {"delay_ms": 1000.0}),
        ("equivocate", {}),
        ("equivocate", {"towards": ["bob"]}),
    ],
    ids=["silent", "drop", "slow", "equivocate to a replica", "equivocate to a subscriber"],
)
def test_a_replica_that_leaves_out_delays_or_equivocates_harms_nobody_and_is_named(
    cluster: TestCluster, behaviour: str, details: dict[str, Any]
) -> None:
    async def story() -> None:
        before = {name: await held_against(cluster, name) for name in cluster.names}
        async with misbehaving(cluster, behaviour, **details) as (traffic, offender):

            async def named() -> bool:
                await traffic.passed(50)
                by_clients = any(each.startswith(f"{offender}: ") for each in traffic.reports())
                by_replicas = await held_against(cluster, offender) - before[offender]
                return by_clients or bool(by_replicas)

            assert await eventually(named)

    asyncio.run(story())


def test_a_replica_that_replays_what_it_sent_makes_nobody_deliver_twice(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with misbehaving(cluster, "replay", percent=100) as (traffic, _):
            await traffic.passed(200)
        (books,) = traffic.books
        assert {topic: each.doubled for topic, each in books.items()} == dict.fromkeys(books, 0)

    asyncio.run(story())


def test_a_replica_that_lies_about_who_may_publish_is_outvoted(cluster: TestCluster) -> None:
    async def story() -> None:
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.misbehave(LIAR, "lie", percent=100, fields=["reply"])
            try:
                async with Producer(cluster.directory, "alice") as allowed:
                    await allowed.register("closed")
                async with Producer(cluster.directory, "mallory") as stranger:
                    with pytest.raises(
                        RefusedError, match="mallory may not publish on 'closed'; alice may"
                    ):
                        await stranger.register("closed")
            finally:
                await admin.misbehave(LIAR, "behave")

    asyncio.run(story())


async def flood(publishers: list[Producer], topic: str, bytes_sent: int) -> None:
    """Publish to one replica only, past the machine and every limit of it.

    Each run says that all before it is settled, so that no window is ever full.
    """
    replica = publishers[0].cluster.placement(topic)[0]
    payloads = [batch.encode_values([bytes(20_000)], 0)] * 50
    for turn in range(bytes_sent // 1_000_000):
        publisher, first = publishers[turn % len(publishers)], 1 + 50 * turn
        run = Publish(topic_id(topic), Lane.EVENTS, False, first, first, payloads)
        publisher.driver.send(replica, run)
        await until_sent(publisher, replica)


async def until_sent(publisher: Producer, replica: int) -> None:
    async def is_sent() -> bool:
        return publisher.transport.buffered_bytes(replica) < 1_000_000

    await eventually(is_sent)


@pytest.mark.parametrize("topic", ["vote", "reliable", "authenticated"])
def test_a_publisher_that_completes_no_broadcast_neither_fills_a_replica_nor_slows_the_others(
    cluster: TestCluster, topic: str
) -> None:
    async def story() -> None:
        async with (
            Traffic(cluster.directory, BYZANTINE_TOPICS) as traffic,
            Producer(cluster.directory, "mallory") as one,
            Producer(cluster.directory, "mallory") as another,
            Admin(cluster.directory, OPERATOR) as admin,
        ):

            async def memory_mb() -> dict[str, float]:
                status: dict[str, Any] = await admin.status()
                return {name: report["memory_mb"] for name, report in status.items()}

            traffic.flow()
            for session in (one, another):
                await session.register(topic)
            await traffic.passed(50)
            before = await memory_mb()
            await flood([one, another], topic, 200_000_000)
            await traffic.passed(100)
            after = await memory_mb()
            await traffic.settled()
            traffic.check()
        grown_mb = {name: after[name] - before[name] for name in after}
        assert max(grown_mb.values()) < 100, grown_mb

    asyncio.run(story())
