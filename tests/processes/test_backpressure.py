"""A subscriber that stops reading: what waits for it is bounded, and the others go on (B7, F3)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clusters import TestCluster, running_cluster
from quorate.client import Admin, Consumer, Producer, Receipt
from quorate.core.errors import BusyError
from quorate.core.limits import WINDOWS
from quorate.protocol.channel import STALLED_AFTER_US
from quorate.runtime.local import OPERATOR
from traffic import AHEAD, Traffic, eventually, offences, value_of

pytestmark = pytest.mark.xdist_group("processes")

QUEUE_EVENTS = 1000
PUBLISHED = 6000
# Enough to overflow, and on a busy machine still over before a stalled one is cut off (10 s).
OVERFLOWING = WINDOWS.credit + 2 * QUEUE_EVENTS
GROWTH_MB_MAX = 30.0
TOPICS: Mapping[str, Mapping[str, object]] = {
    discard: {"broadcast": "vote", "queue_events_max": QUEUE_EVENTS, "discard": discard}
    for discard in ("oldest", "newest", "never")
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS, clients=("alice", "bob", "carol")) as running:
        yield running


@asynccontextmanager
async def stalled(cluster: TestCluster, topic: str) -> AsyncIterator[Consumer]:
    """A subscriber that stops reading from its links at the first event, until it is polled."""
    async with Consumer(cluster.directory, "carol", queue_events=1) as consumer:
        consumer.subscribe([topic])
        await consumer.subscribed()
        yield consumer


class Watch:
    """The highest memory of any replica, and the longest queues of a topic, while traffic runs."""

    def __init__(self, admin: Admin, topic: str) -> None:
        self.memory_mb: list[float] = []
        self.queued_events_max = 0
        # Of each subscriber, at any replica.
        self.longest_queues: Counter[str] = Counter()
        self.discarded = 0
        self._admin = admin
        self._topic = topic

    async def look(self) -> dict[str, Any]:
        status: dict[str, Any] = await self._admin.status()
        mine = [report["topics"].get(self._topic, {}) for report in status.values()]
        self.queued_events_max = max(
            self.queued_events_max, *(topic.get("queued_events", 0) for topic in mine)
        )
        for report in status.values():
            self.longest_queues |= Counter(report["queues"].get(self._topic, {}))
        self.discarded = max(topic.get("discarded", 0) for topic in mine)
        self.memory_mb.append(max(report["memory_mb"] for report in status.values()))
        return status

    @property
    def growth_mb(self) -> float:
        return max(self.memory_mb) - self.memory_mb[0]


@pytest.mark.parametrize("discard", ["oldest", "newest"])
def test_a_subscriber_that_never_reads_overflows_its_own_queue_and_nobody_else_s(
    cluster: TestCluster, discard: str
) -> None:
    async def story() -> None:
        async with (
            stalled(cluster, discard) as carol,
            Traffic(cluster.directory, [discard], pace_s=0.0, value_bytes=1000) as traffic,
            Admin(cluster.directory, OPERATOR) as admin,
        ):
            watch = Watch(admin, discard)
            await watch.look()
            traffic.flow()
            for _ in range(6):
                await traffic.passed(OVERFLOWING // 6)
                await watch.look()
            await traffic.settled()
            traffic.check()
            assert watch.discarded > OVERFLOWING - WINDOWS.credit - QUEUE_EVENTS - 10 * AHEAD
            # Bob's queue is his own: a replica that lags behind the others, and so behind what he
            # has, may have more for him at a time than is out.
            assert watch.longest_queues["carol"] == QUEUE_EVENTS
            assert watch.longest_queues["bob"] <= QUEUE_EVENTS
            assert watch.growth_mb < GROWTH_MB_MAX
            await check_what_is_left(traffic, carol, discard)

    asyncio.run(story())


async def check_what_is_left(traffic: Traffic, carol: Consumer, discard: str) -> None:
    """When it reads again, it finds what its queue kept, and what is published from then on."""
    count = len(traffic.published[discard])
    numbers: list[int] = []

    async def is_up_to_date() -> bool:
        await traffic.publish(discard)
        while record := await carol.poll(0.1):
            numbers.append(traffic.published[discard][record.value])
        return max(numbers) >= count

    await eventually(is_up_to_date)
    assert len(set(numbers)) == len(numbers)
    assert carol.counters["skipped"] == 0
    # What is published from now on still pushes out a few of the oldest.
    oldest_kept = range(count - QUEUE_EVENTS + AHEAD, count)
    kept = oldest_kept if discard == "oldest" else range(QUEUE_EVENTS)
    assert set(kept) <= set(numbers)


def test_where_nothing_may_be_discarded_producers_wait_until_the_stalled_one_is_cut_off(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            stalled(cluster, "never") as carol,
            Traffic(cluster.directory, ["never"], pace_s=0.0) as traffic,
            Admin(cluster.directory, OPERATOR) as admin,
        ):
            watch = Watch(admin, "never")
            await watch.look()
            traffic.flow()
            await until_pushed_back(watch)
            await refused_as_busy(cluster)
            await until_cut_off(cluster, watch)
            # Bob was never more than slowed, and now he is not even that.
            await traffic.passed(PUBLISHED)
            await watch.look()
            await traffic.settled()
            traffic.check()
            assert watch.queued_events_max <= 3 * QUEUE_EVENTS
            assert watch.growth_mb < GROWTH_MB_MAX
            await is_back(carol, traffic)

    asyncio.run(story())


async def until_pushed_back(watch: Watch) -> None:
    async def pushing_back() -> bool:
        status = await watch.look()
        return any(
            report["topics"].get("never", {}).get("pushing_back") for report in status.values()
        )

    await eventually(pushing_back)


async def refused_as_busy(cluster: TestCluster) -> None:
    """A producer with little patience is told that the topic is busy, and which replicas are."""
    async with Producer(cluster.directory, "alice", batch_events=1, timeout_s=1.0) as hasty:
        futures: list[asyncio.Future[Receipt]] = []

        async def submit_many() -> None:
            for number in range(10 * QUEUE_EVENTS):
                value = value_of("hasty", "never", number)
                futures.append(await hasty.submit("never", value))

        with pytest.raises(BusyError, match="busy") as refusal:
            await submit_many()
        assert refusal.value.retriable
        # What was taken before that may or may not have its receipt by now.
        await hasty.close(flush=False)
        await asyncio.gather(*futures, return_exceptions=True)


async def until_cut_off(cluster: TestCluster, watch: Watch) -> None:
    async def named() -> bool:
        await watch.look()
        counted = [await offences(cluster.launcher.cluster, name) for name in cluster.names]
        return sum(each["carol", "stalled"] for each in counted) == 3

    await eventually(named, patience_s=3 * STALLED_AFTER_US / 1e6)


async def is_back(carol: Consumer, traffic: Traffic) -> None:
    """The one that was cut off learns of it when it reads, subscribes anew, and goes on."""
    count = len(traffic.published["never"])

    async def is_up_to_date() -> bool:
        await traffic.publish("never")
        numbers = [0]
        while record := await carol.poll(0.1):
            numbers.append(traffic.published["never"].get(record.value, 0))
        return max(numbers) >= count

    await eventually(is_up_to_date)
    # What nobody keeps any more is lost to it, and it is told how much that is.
    assert carol.counters["skipped"] > 0
    assert any(report.endswith(": cut-off") for report in carol.reports)
