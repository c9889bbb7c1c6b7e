"""Replicas that stop in the middle of a word and go on later (SIGSTOP and SIGCONT).

A paused replica is worse than a dead one: its links stay up, so that nobody is told.
"""

import asyncio
from collections.abc import Iterator
from signal import Signals

import pytest

from clusters import TestCluster, running_cluster
from flows import PATIENCE_S
from quorate.client import Admin, Consumer, Producer
from quorate.core.limits import WINDOW_BATCHES
from quorate.runtime.local import OPERATOR
from traffic import EVERY_KIND, Traffic, eventually, lag_of, lead_of, serving

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def paused() -> Iterator[TestCluster]:
    with running_cluster(topics=EVERY_KIND) as running:
        yield running


@pytest.fixture
def cluster(paused: TestCluster) -> TestCluster:
    paused.revive()
    return paused


def test_nothing_is_lost_forged_or_doubled_while_one_replica_after_the_other_is_paused(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with Traffic(cluster.directory, EVERY_KIND) as traffic:
            traffic.flow()
            await traffic.passed(50)
            async with Admin(cluster.directory, OPERATOR) as admin:
                for sleeper in cluster.names:
                    cluster.launcher.signal(sleeper, Signals.SIGSTOP)
                    await traffic.passed(100)
                    cluster.launcher.signal(sleeper, Signals.SIGCONT)
                    await serving(traffic, admin, sleeper)
            await traffic.passed(50)
            await traffic.settled()
            traffic.check()

    asyncio.run(story())


@pytest.mark.parametrize("topic", ["first-answer", "vote", "reliable"])
def test_a_subscriber_goes_on_when_the_replica_that_sends_it_payloads_is_paused(
    cluster: TestCluster, topic: str
) -> None:
    async def story() -> None:
        async with Traffic(cluster.directory, [topic]) as traffic:
            traffic.flow()
            await traffic.passed(50)
            lead = lead_of(traffic.consumers[0], topic)
            cluster.launcher.signal(lead, Signals.SIGSTOP)
            await traffic.passed(500)
            assert lead_of(traffic.consumers[0], topic) != lead
            assert traffic.reports()[f"{lead}: late"] >= 1
            cluster.launcher.signal(lead, Signals.SIGCONT)
            await traffic.settled()
            traffic.check()

    asyncio.run(story())


def test_a_replica_that_slept_through_more_than_anybody_keeps_for_it_is_of_use_again(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with Traffic(cluster.directory, ["vote"], pace_s=0.0) as traffic:
            members = traffic.producer.cluster.placement("vote")
            first, second = (traffic.producer.cluster.member(each).name for each in members[:2])
            traffic.flow()
            cluster.launcher.signal(first, Signals.SIGSTOP)
            await traffic.passed(WINDOW_BATCHES + 1000)
            cluster.launcher.signal(first, Signals.SIGCONT)

            async def lag() -> int:
                return lag_of(traffic.producer, "vote", first)

            await eventually(lag, lambda batches: batches < 100)
            # Two of three replicas must agree, so that from here on the first one is needed.
            cluster.launcher.signal(second, Signals.SIGSTOP)
            await traffic.passed(200)
            cluster.launcher.signal(second, Signals.SIGCONT)
            await traffic.settled()
            traffic.check()

    asyncio.run(story())


@pytest.mark.parametrize("topic", ["authenticated", "chain", "vote"])
def test_what_has_a_receipt_arrives_though_its_publisher_leaves_while_one_replica_is_late(
    cluster: TestCluster, topic: str
) -> None:
    """And another one lies: whoever has not heard of the publisher is needed too."""
    values = [b"%d" % number for number in range(5)]

    async def story() -> list[bytes]:
        async with (
            Admin(cluster.directory, OPERATOR) as admin,
            Consumer(cluster.directory, "bob") as subscriber,
        ):
            subscriber.subscribe([topic])
            await subscriber.subscribed()
            members = subscriber.cluster.placement(topic)
            liar, sleeper = (subscriber.cluster.member(each).name for each in members[1:3])
            await admin.misbehave(liar, "lie", fields=["content"])
            cluster.launcher.signal(sleeper, Signals.SIGSTOP)
            async with Producer(cluster.directory, "alice") as producer:
                for value in values:
                    await producer.submit(topic, value)
                await producer.flush()
                cluster.launcher.signal(sleeper, Signals.SIGCONT)
            records = [await subscriber.poll(PATIENCE_S) for _ in values]
            await admin.misbehave(liar, "behave")
            return [record.value for record in records if record is not None]

    assert asyncio.run(story()) == values
