"""Publishers that wait for nobody, and leave as soon as they have their receipts.

What has a receipt must arrive, though one replica fails in the middle of it and nobody is there
any more to send it again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from clusters import TestCluster, running_cluster
from flows import PATIENCE_S
from quorate.client import Admin, Consumer, Producer
from quorate.runtime.local import OPERATOR

pytestmark = pytest.mark.xdist_group("processes")

# More than a subscriber's window holds.
EVENTS = 10_000
TOPICS: dict[str, dict[str, object]] = {
    "first-answer": {"protection": "crash"},
    "vote": {"broadcast": "vote"},
    "authenticated": {"broadcast": "authenticated", "history_every": 100},
    "reliable": {"broadcast": "reliable"},
    "chain": {"broadcast": "chain", "history_every": 100},
}
# Together more than replicas retain for everybody.
LARGE_EVENTS, LARGE_BYTES = 300, 120_000
LARGE_TOPICS = {
    f"large-{name}-{number}": table
    for name, table in TOPICS.items()
    if name in ("first-answer", "authenticated", "chain")
    for number in range(4)
}


@pytest.fixture(scope="module")
def running() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS | LARGE_TOPICS) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: TestCluster) -> TestCluster:
    running.revive()
    return running


def first_of(cluster: TestCluster, topic: str) -> str:
    """The replica that a chain starts with, and that many subscribers take their payloads from."""
    file = cluster.launcher.cluster
    return file.member(file.placement(topic)[0]).name


async def publish_and_leave(
    cluster: TestCluster, topic: str, meanwhile: Callable[[], Awaitable[None]]
) -> Counter[bytes]:
    """What a subscriber gets of so many events."""
    async with Consumer(cluster.directory, "bob") as consumer:
        consumer.subscribe([topic])
        await consumer.subscribed()
        reading = asyncio.create_task(read(consumer))
        async with Producer(cluster.directory, "alice", batch_events=1) as producer:
            failing = asyncio.create_task(after_a_moment(meanwhile))
            receipts = [await producer.submit(topic, b"%d" % number) for number in range(EVENTS)]
            await asyncio.wait_for(asyncio.gather(*receipts), PATIENCE_S)
        await failing
        seen = await reading
        assert consumer.counters["skipped"] == 0
    return seen


async def read(consumer: Consumer) -> Counter[bytes]:
    """What comes, until everything has come or nothing more does."""
    seen: Counter[bytes] = Counter()
    while len(seen) < EVENTS and (records := await consumer.poll_many(1000, timeout_s=10.0)):
        seen.update(record.value for record in records)
    return seen


async def after_a_moment(meanwhile: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(0.05)
    await meanwhile()


ONCE_EACH = Counter(b"%d" % number for number in range(EVENTS))


@pytest.mark.parametrize("behaviour", ["silent", "lie"])
@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic != "first-answer"])
def test_what_has_a_receipt_arrives_though_a_replica_begins_to_misbehave(
    cluster: TestCluster, topic: str, behaviour: str
) -> None:
    victim = first_of(cluster, topic)

    async def story() -> Counter[bytes]:
        async with Admin(cluster.directory, OPERATOR) as admin:
            try:
                return await publish_and_leave(
                    cluster, topic, lambda: admin.misbehave(victim, behaviour)
                )
            finally:
                await admin.misbehave(victim, "behave")

    assert asyncio.run(story()) == ONCE_EACH


@pytest.mark.parametrize("topic", TOPICS)
def test_what_has_a_receipt_arrives_though_a_replica_is_killed(
    cluster: TestCluster, topic: str
) -> None:
    async def kill() -> None:
        victim = first_of(cluster, topic)
        await asyncio.to_thread(cluster.launcher.stop, victim, kill=True)

    assert asyncio.run(publish_and_leave(cluster, topic, kill)) == ONCE_EACH


async def publish_large(cluster: TestCluster, topics: list[str]) -> Counter[tuple[str, bytes]]:
    """What a subscriber gets of large events on several topics at once."""
    async with Consumer(cluster.directory, "bob") as consumer:
        consumer.subscribe(topics)
        await consumer.subscribed()
        reading = asyncio.create_task(read_large(consumer, LARGE_EVENTS * len(topics)))
        async with Producer(cluster.directory, "alice", batch_events=1) as producer:
            receipts = [
                await producer.submit(topic, large(number))
                for number in range(LARGE_EVENTS)
                for topic in topics
            ]
            await asyncio.wait_for(asyncio.gather(*receipts), PATIENCE_S)
        seen = await reading
        assert consumer.counters["skipped"] == 0
    return seen


async def read_large(consumer: Consumer, count: int) -> Counter[tuple[str, bytes]]:
    seen: Counter[tuple[str, bytes]] = Counter()
    while len(seen) < count and (records := await consumer.poll_many(100, timeout_s=10.0)):
        seen.update((record.topic, record.value.rstrip(b".")) for record in records)
    return seen


def large(number: int) -> bytes:
    return (b"%d" % number).ljust(LARGE_BYTES, b".")


@pytest.mark.parametrize("protocol", ["first-answer", "authenticated", "chain"])
def test_large_events_on_several_topics_arrive_though_a_replica_says_nothing(
    cluster: TestCluster, protocol: str
) -> None:
    topics = [topic for topic in LARGE_TOPICS if topic.startswith(f"large-{protocol}-")]
    victim = first_of(cluster, topics[0])

    async def story() -> Counter[tuple[str, bytes]]:
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.misbehave(victim, "silent")
            try:
                return await publish_large(cluster, topics)
            finally:
                await admin.misbehave(victim, "behave")

    expected = Counter(
        (topic, b"%d" % number) for topic in topics for number in range(LARGE_EVENTS)
    )
    assert asyncio.run(story()) == expected
