"""What a contract says about who may do what, and which events come first, late, or not at all."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from clusters import TestCluster, running_cluster
from quorate.client import Consumer, Producer, Record, session
from quorate.core.contract import Contract
from quorate.core.errors import QuorumError, RefusedError
from quorate.core.event import Event
from quorate.core.limits import WINDOWS
from quorate.runtime.files import cluster_file, key_file, read_cluster, read_identity
from traffic import eventually, status_of

pytestmark = pytest.mark.xdist_group("processes")

EXPIRES_AFTER_S = 0.5
TOPICS: Mapping[str, Mapping[str, object]] = {
    "closed": {"broadcast": "vote", "publish": ["alice"], "subscribe": ["bob"]},
    "narrow": {"broadcast": "reliable", "publishers_max": 1, "subscribers_max": 1},
    "urgent": {"broadcast": "vote"},
    "short-lived": {"broadcast": "vote", "expires_after": "500ms"},
    "filtered": {"broadcast": "authenticated", "history_every": 32},
    "chained": {"broadcast": "chain", "history_every": 32},
}
# More than is sent to a subscriber that takes nothing, and less than its publisher waits for.
LONG_QUEUE = WINDOWS.lag - 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS, clients=("alice", "bob", "mallory")) as running:
        yield running


@asynccontextmanager
async def subscriber(
    cluster: TestCluster, topic: str, **options: object
) -> AsyncIterator[Consumer]:
    async with Consumer(cluster.directory, "bob") as consumer:
        consumer.subscribe([topic], **options)  # type: ignore[arg-type]
        await consumer.subscribed()
        yield consumer


async def read_until(consumer: Consumer, value: bytes) -> list[Record]:
    """Everything up to the record with this value."""
    records: list[Record] = []
    async with asyncio.timeout(30):
        async for record in consumer:
            records.append(record)
            if record.value == value:
                break
    return records


# Who may do what


def test_whoever_is_not_on_the_access_lists_is_refused_with_a_sentence(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Producer(cluster.directory, "mallory") as producer,
            Consumer(cluster.directory, "mallory") as consumer,
        ):
            with pytest.raises(
                RefusedError, match="mallory may not publish on 'closed'; alice may"
            ):
                await producer.send("closed", b"let me in")
            consumer.subscribe(["closed"])
            with pytest.raises(
                RefusedError, match="mallory may not subscribe to 'closed'; bob may"
            ):
                await consumer.subscribed()

    asyncio.run(story())


def test_a_client_whose_file_has_another_contract_for_a_topic_is_refused_by_a_vote(
    cluster: TestCluster,
) -> None:
    file = read_cluster(cluster_file(cluster.directory))
    older = {**file.topics, "urgent": Contract.parse("urgent", {"broadcast": "reliable"})}
    identity = read_identity(key_file(cluster.directory, "alice"))

    async def story() -> None:
        async with Producer(replace(file, topics=older), identity) as producer:
            with pytest.raises(RefusedError, match="'urgent' is byzantine, vote, .* your cluster"):
                await producer.send("urgent", b"by other rules")

    asyncio.run(story())


def test_without_a_quorum_an_error_says_what_each_replica_answered(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 3.0)
    file = read_cluster(cluster_file(cluster.directory))
    up, *down = (file.member(number).name for number in file.placement("urgent"))
    for name in down:
        cluster.launcher.stop(name)

    async def story() -> dict[str, str]:
        async with Producer(cluster.directory, "alice") as producer:
            with pytest.raises(QuorumError, match="no quorum answered to register") as raised:
                await producer.send("urgent", b"to whom?")
            return raised.value.causes

    try:
        causes = asyncio.run(story())
    finally:
        cluster.revive()
    assert causes[up] == "agreed"
    assert all("cannot be reached" in causes[name] for name in down)


def test_a_topic_that_only_the_client_s_file_knows_is_refused_by_a_vote(
    cluster: TestCluster,
) -> None:
    file = read_cluster(cluster_file(cluster.directory))
    invented = {**file.topics, "invented": Contract.parse("invented", {"broadcast": "vote"})}
    identity = read_identity(key_file(cluster.directory, "alice"))

    async def story() -> None:
        async with Producer(replace(file, topics=invented), identity) as producer:
            with pytest.raises(RefusedError, match="there is no topic 'invented'"):
                await producer.send("invented", b"is anybody there?")

    asyncio.run(story())


def test_one_publisher_and_one_subscriber_too_many_are_refused_until_a_place_is_free(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Producer(cluster.directory, "alice") as first,
            Producer(cluster.directory, "mallory") as second,
        ):
            await first.register("narrow")
            with pytest.raises(RefusedError, match="'narrow' already has its 1 publishers"):
                await second.register("narrow")
            await first.unregister("narrow")
            await second.register("narrow")
            async with (
                subscriber(cluster, "narrow") as reader,
                Consumer(cluster.directory, "alice") as another,
            ):
                another.subscribe(["narrow"])
                with pytest.raises(RefusedError, match="'narrow' already has its 1 subscribers"):
                    await another.subscribed()
                await second.send("narrow", b"for one only")
                assert len(await read_until(reader, b"for one only")) == 1

    asyncio.run(story())


# Which events come first, late, or not at all


def test_an_urgent_event_overtakes_a_long_queue_and_nothing_of_it_is_lost(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Consumer(cluster.directory, "bob", queue_events=1) as slow,
            Producer(cluster.directory, "alice", batch_events=1) as producer,
        ):
            slow.subscribe(["urgent"])
            await slow.subscribed()
            for number in range(LONG_QUEUE):
                last = await producer.submit("urgent", str(number).encode())
            await last
            await producer.send("urgent", b"fire", urgent=True)
            values = [record.value for record in await read_until(slow, str(number).encode())]
            assert values.index(b"fire") < LONG_QUEUE - 400
            assert set(values) >= {str(number).encode() for number in range(LONG_QUEUE)}
            assert slow.counters["skipped"] == 0

    asyncio.run(story())


# Long enough that so many of them do not fit between a replica and who does not read.
NEWS = b"news" * 1024


def test_events_that_waited_too_long_are_left_out_and_not_counted_as_lost(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Consumer(cluster.directory, "bob", queue_events=1) as slow,
            Producer(cluster.directory, "alice", batch_events=1) as producer,
        ):
            slow.subscribe(["short-lived"])
            await slow.subscribed()
            for _ in range(LONG_QUEUE):
                last = await producer.submit("short-lived", NEWS)
            await last
            old_at_s = time.monotonic() + 2 * EXPIRES_AFTER_S

            async def is_old() -> bool:
                return time.monotonic() > old_at_s

            await eventually(is_old)
            assert await slow.poll(10) is not None

            async def fresh() -> bool:
                await producer.send("short-lived", b"fresh")
                while record := await slow.poll(0.05):
                    values.append(record.value)
                return b"fresh" in values

            values: list[bytes] = []
            await eventually(fresh)
            assert values.count(NEWS) < LONG_QUEUE - 400
            assert slow.counters["skipped"] == 0
            expired = [
                (await status_of(cluster.directory, name))["topics"].get("short-lived")
                for name in cluster.names
            ]
            assert max(topic["expired"] for topic in expired if topic) > 0

    asyncio.run(story())


@pytest.mark.parametrize("topic", ["filtered", "chained"])
def test_a_filter_by_key_and_header_lets_only_its_records_through_and_misses_none(
    cluster: TestCluster, topic: str
) -> None:
    async def story() -> None:
        options = {"key_prefix": b"host-1", "headers": {"site": b"north"}}
        async with (
            subscriber(cluster, topic, **options) as picky,
            subscriber(cluster, topic) as omnivore,
            Producer(cluster.directory, "alice", batch_events=1) as producer,
        ):
            for number in range(400):
                site = b"north" if number % 3 == 0 else b"south"
                await producer.submit(
                    topic, str(number).encode(), key=f"host-{number % 20}".encode(),
                    headers=[("site", site)],
                )  # fmt: skip
            # One batch of several events, of which one passes.
            mixed = [
                Event(key, key, (("site", b"north"),), 0, False) for key in (b"host-1", b"host-2")
            ]
            await producer.send_batch(topic, mixed)
            end = {"key": b"host-1-end", "headers": [("site", b"north")]}
            await producer.send(topic, b"end", **end)  # type: ignore[arg-type]
            wanted = [n for n in range(400) if n % 3 == 0 and f"host-{n % 20}".startswith("host-1")]
            chosen = await all_of(picky, len(wanted) + 2)
            numbers = sorted(int(r.value) for r in chosen if r.value.isdigit())
            assert numbers == wanted
            assert {r.value for r in chosen if not r.value.isdigit()} == {b"host-1", b"end"}
            assert len(await all_of(omnivore, 403)) == 403
            assert picky.counters["skipped"] == omnivore.counters["skipped"] == 0

    asyncio.run(story())


async def all_of(consumer: Consumer, count: int) -> list[Record]:
    """On an unordered topic a few may come after the last: what the end of a chain did not bring,
    because it heard of the subscription after the others, is repaired."""
    records: list[Record] = []
    while len(records) < count and (record := await consumer.poll(10)):
        records.append(record)
    return records
