"""Validated or basic, for each client and topic, with real replicas (Kabis 2023, section 2.1)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import TestCluster, running_cluster
from logs import next_records
from quorate.client import Consumer, Producer, Record
from quorate.core.errors import ConfigError, LocalProtocolError

pytestmark = pytest.mark.xdist_group("processes")

VALIDATED = {"order": "total", "validated": True}
# A topic for each test, so that none reads what another one wrote.
TOPICS = (
    "table", "late", "producer", "consumer", "half", "mixed", "refused", "tail", "groups",
    "basic-groups", "stalled", "blocking",
)  # fmt: skip
QUIET_S = 1.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    topics: dict[str, dict[str, object]] = {name: dict(VALIDATED) for name in TOPICS}
    topics["groups"]["partitions"] = topics["basic-groups"]["partitions"] = 4
    topics["plain"] = {"order": "total"}
    with running_cluster(topics=topics, clients=("alice", "bob", "carol", "dave")) as running:
        yield running


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


async def publish(directory: Path, topic: str, name: str, *published: bytes, basic: bool) -> None:
    async with Producer(directory, name, batch_events=1) as producer:
        if basic:
            await producer.update_topology([])
        for value in published:
            await producer.send(topic, value)


async def rest(consumer: Consumer) -> list[Record]:
    """What else comes; nothing more once it has been quiet for a while."""
    found: list[Record] = []
    while (record := await consumer.poll(QUIET_S)) is not None:
        found.append(record)
    return found


# The table


@pytest.mark.parametrize("start", ["end", "begin"])
def test_the_table_of_kabis_holds_in_all_four_cells(cluster: TestCluster, start: str) -> None:
    directory, topic = cluster.directory, "table" if start == "end" else "late"

    async def publish_both() -> None:
        await publish(directory, topic, "alice", b"basic 1", b"basic 2", basic=True)
        await publish(directory, topic, "bob", b"validated 1", b"validated 2", basic=False)

    async def story() -> None:
        async with Consumer(directory, "carol") as basic, Consumer(directory, "dave") as validated:
            await basic.update_topology([])
            await validated.update_topology([topic])
            if start == "begin":
                await publish_both()
            for consumer in (basic, validated):
                consumer.subscribe([topic], start="begin" if start == "begin" else "end")
                await consumer.subscribed()
            if start == "end":
                await publish_both()
            # Whoever does not validate gets the events of both, with basic guarantees.
            seen = await next_records(basic, 4)
            assert values(seen) == [b"basic 1", b"basic 2", b"validated 1", b"validated 2"]
            assert not any(record.validated for record in seen)
            assert [record.publisher for record in seen] == ["alice", "alice", "bob", "bob"]
            assert [record.offset for record in seen] == [0, 1, 2, 3]
            # Whoever validates gets those of the validated producer, with extended guarantees,
            # and of the other one nothing.
            checked = await next_records(validated, 2)
            assert values(checked) == [b"validated 1", b"validated 2"]
            assert all(record.validated for record in checked)
            assert [record.offset for record in checked] == [0, 1]
            assert await rest(validated) == []
            assert await rest(basic) == []

    asyncio.run(story())


def test_only_topics_that_can_be_validated_are_taken(cluster: TestCluster) -> None:
    async def story() -> None:
        async with (
            Producer(cluster.directory, "alice") as producer,
            Consumer(cluster.directory, "bob") as consumer,
        ):
            for client in (producer, consumer):
                with pytest.raises(LocalProtocolError, match="its contract does not say so"):
                    await client.update_topology(["refused", "plain"])
                with pytest.raises(ConfigError, match="has no topic 'nowhere'"):
                    await client.update_topology(["nowhere"])
                with pytest.raises(ConfigError, match="has no topic 'refused~basic'"):
                    await client.update_topology(["refused~basic"])
                with pytest.raises(LocalProtocolError, match="takes a list of topics"):
                    await client.update_topology("refused")
            # Then nothing has changed, and what a topic has beside it is nobody's to name.
            await producer.send("refused", b"validated as before")
            with pytest.raises(ConfigError, match="has no topic 'refused~basic'"):
                await producer.send("refused~basic", b"nowhere")
            consumer.subscribe(["refused"], start="begin")
            (record,) = await next_records(consumer, 1)
            assert record.validated

    asyncio.run(story())


# Changing at run time


def test_a_producer_that_changes_to_and_fro_is_read_in_the_order_of_its_publishing(
    cluster: TestCluster,
) -> None:
    published = [b"%d" % number for number in range(40)]

    async def story() -> None:
        async with (
            Producer(cluster.directory, "alice", batch_events=1) as producer,
            Consumer(cluster.directory, "carol") as basic,
            Consumer(cluster.directory, "dave") as validated,
        ):
            await basic.update_topology([])
            for consumer in (basic, validated):
                consumer.subscribe(["producer"], start="begin")
            # When it changes every fourth event, and waits for no receipt itself
            for number, value in enumerate(published):
                if number % 4 == 0:
                    await producer.update_topology(["producer"] if number % 8 == 0 else [])
                await producer.submit("producer", value)
            # Then whoever does not validate sees the order in which all of them were published
            assert values(await next_records(basic, 40)) == published
            # and whoever does sees those that were validated.
            checked = await next_records(validated, 20)
            assert values(checked) == [v for n, v in enumerate(published) if n % 8 < 4]
            assert all(record.validated for record in checked)

    asyncio.run(story())


def test_a_consumer_that_changes_to_and_fro_goes_on_where_it_was(cluster: TestCluster) -> None:
    async def story() -> None:
        directory = cluster.directory
        async with (
            Producer(directory, "alice", batch_events=1) as checked,
            Producer(directory, "bob", batch_events=1) as plain,
            Consumer(directory, "carol") as consumer,
        ):
            await plain.update_topology([])
            consumer.subscribe(["consumer"], start="begin")
            read: list[Record] = []
            for turn in range(6):
                is_basic = turn % 2 == 1
                await consumer.update_topology([] if is_basic else ["consumer"])
                for number in range(5):
                    await checked.send("consumer", b"validated %d.%d" % (turn, number))
                    await plain.send("consumer", b"basic %d.%d" % (turn, number))
                # When it has read no more than some of it before it changes again
                read += await next_records(consumer, 7 if is_basic else 3)
            await consumer.update_topology(["consumer"])
            read += await rest(consumer)
        # Then no validated event was left out, none came twice, and they are in order
        seen = [value for value in values(read) if value.startswith(b"validated")]
        assert seen == [b"validated %d.%d" % (t, n) for t in range(6) for n in range(5)]
        # and of the others came, once each and in order, only such as were published while it
        # did not validate.
        others = [value for value in values(read) if value.startswith(b"basic")]
        assert others == sorted(set(others))
        assert {value[6:7] for value in others} == {b"1", b"3", b"5"}
        assert not any(r.validated for r in read if r.value.startswith(b"basic"))

    asyncio.run(story())


def test_a_batch_of_which_some_was_read_unvalidated_goes_on_validated(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Producer(cluster.directory, "alice") as producer,
            Consumer(cluster.directory, "carol") as consumer,
        ):
            await producer.send_values("half", [b"%d" % number for number in range(10)])
            await producer.send_values("half", [b"next"])
            await consumer.update_topology([])
            consumer.subscribe(["half"], start="begin")
            before = await next_records(consumer, 4)
            await consumer.update_topology(["half"])
            after = await next_records(consumer, 7)
            assert values(before + after) == [*(b"%d" % number for number in range(10)), b"next"]
            assert [r.validated for r in before + after] == [False] * 4 + [True] * 7
            assert [r.index for r in before + after] == [*range(10), 0]

    asyncio.run(story())


def test_a_consumer_that_has_read_nothing_yet_misses_nothing_when_it_changes(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        directory = cluster.directory
        await publish(directory, "tail", "alice", b"before", basic=False)
        async with Consumer(directory, "carol") as consumer:
            await consumer.update_topology([])
            consumer.subscribe(["tail"])
            await consumer.subscribed()
            await consumer.update_topology(["tail"])
            await publish(directory, "tail", "bob", b"not for us", basic=True)
            await publish(directory, "tail", "alice", b"after", basic=False)
            (record,) = await next_records(consumer, 1)
            assert (record.value, record.validated, record.offset) == (b"after", True, 1)
            # And back again, though nothing else came in between.
            await consumer.update_topology([])
            await publish(directory, "tail", "bob", b"for us", basic=True)
            (record,) = await next_records(consumer, 1)
            assert (record.value, record.validated) == (b"for us", False)

    asyncio.run(story())


# One order


def test_all_who_do_not_validate_read_one_order_of_both_kinds(cluster: TestCluster) -> None:
    async def flow(name: str, *, basic: bool) -> None:
        async with Producer(cluster.directory, name, batch_events=1) as producer:
            if basic:
                await producer.update_topology([])
            for number in range(150):
                # Some are too large to be everywhere.
                padding = bytes(6000 if number % 10 == 0 else 0)
                await producer.send("mixed", b"%s %d" % (name.encode(), number) + padding)

    async def read(name: str) -> list[Record]:
        async with Consumer(cluster.directory, name) as consumer:
            await consumer.update_topology([])
            consumer.subscribe(["mixed"], start="begin")
            return await next_records(consumer, 300)

    async def story() -> None:
        first, second, *_ = await asyncio.gather(
            read("carol"), read("dave"), flow("alice", basic=False), flow("bob", basic=True)
        )
        third = await read("carol")
        assert values(first) == values(second) == values(third)
        places = [record.offset for record in first]
        assert places == [record.offset for record in third] == list(range(300))
        for name in ("alice", "bob"):
            mine = [record for record in first if record.publisher == name]
            numbers = [int(record.value.rstrip(b"\0").split()[1]) for record in mine]
            assert numbers == list(range(150))
        # Whoever begins in the middle sees the rest of the same.
        async with Consumer(cluster.directory, "carol") as consumer:
            await consumer.update_topology([])
            consumer.subscribe(["mixed"], start=137)
            assert values(await next_records(consumer, 163)) == values(first)[137:]

    asyncio.run(story())
