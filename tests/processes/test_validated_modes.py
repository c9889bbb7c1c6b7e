"""Validated or basic, for each client and topic, with real replicas (Kabis 2023, section 2.1)."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import TestCluster, quorate, running_cluster
from flows import PATIENCE_S
from logs import follows, leader, next_records
from quorate.client import Admin, BlockingConsumer, BlockingProducer, Consumer, Producer, Record
from quorate.core.errors import ConfigError, LocalProtocolError, RefusedError
from quorate.runtime.local import OPERATOR
from traffic import until

pytestmark = pytest.mark.xdist_group("processes")

VALIDATED = {"order": "total", "validated": True}
# A topic for each test, so that none reads what another one wrote.
TOPICS = (
    "table", "late", "producer", "consumer", "half", "mixed", "refused", "tail", "groups",
    "basic-groups", "blocking", "shell", "killed",
)  # fmt: skip
QUIET_S = 1.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    topics: dict[str, dict[str, object]] = {name: dict(VALIDATED) for name in TOPICS}
    for name in ("groups", "basic-groups"):
        topics[name]["partitions"] = 4
    topics["plain"] = {"order": "total"}
    topics["closed"] = {**VALIDATED, "publish": ["alice"], "subscribe": ["bob"]}
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


async def up_to(consumer: Consumer, last: bytes) -> list[Record]:
    found: list[Record] = []
    while not found or found[-1].value != last:
        found += await next_records(consumer, 1)
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
            assert [record.offset for record in checked] == [2, 3]
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
                with pytest.raises(LocalProtocolError, match="takes a list of topics"):
                    await client.update_topology("refused")
            # Then nothing has changed.
            await producer.send("refused", b"validated as before")
            consumer.subscribe(["refused"], start="begin")
            (record,) = await next_records(consumer, 1)
            assert record.validated

    asyncio.run(story())


def test_a_topic_that_is_created_later_and_grows_is_the_same_to_both(cluster: TestCluster) -> None:
    directory = cluster.directory

    async def story() -> None:
        async with (
            Admin(directory, OPERATOR) as admin,
            Producer(directory, "alice") as checked,
            Producer(directory, "bob") as plain,
            Consumer(directory, "carol") as basic,
            Consumer(directory, "dave") as validated,
        ):
            await admin.create_topic("created", {"order": "total", "validated": True})
            await plain.update_topology([])
            await basic.update_topology([])
            await validated.update_topology(["created"])
            for consumer in (basic, validated):
                consumer.subscribe(["created"], start="begin")
                await consumer.subscribed()
            # When it gets another partition, and both kinds of events come there
            await checked.send("created", b"validated 0")
            await admin.alter_topic("created", {"partitions": 2})
            for client in (checked, plain, basic, validated):
                await client.learn_topology()
            await checked.send("created", b"validated 1", partition=1)
            await plain.send("created", b"basic 1", partition=1)
            # Then each reads what is for it. Which of two producers comes first is open.
            seen = await next_records(basic, 3)
            assert sorted((r.partition, r.value) for r in seen) == [
                (0, b"validated 0"), (1, b"basic 1"), (1, b"validated 1"),
            ]  # fmt: skip
            assert sorted((r.partition, r.offset or 0) for r in seen) == [(0, 0), (1, 0), (1, 1)]
            checked_records = await next_records(validated, 2)
            assert sorted(values(checked_records)) == [b"validated 0", b"validated 1"]
            assert all(record.validated for record in checked_records)
            assert await rest(validated) == []

    asyncio.run(story())


def test_who_may_not_publish_or_read_may_not_without_validation_either(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Producer(cluster.directory, "bob") as producer,
            Consumer(cluster.directory, "alice") as consumer,
        ):
            await producer.update_topology([])
            await consumer.update_topology([])
            with pytest.raises(RefusedError, match="bob may not publish on 'closed'"):
                await producer.send("closed", b"refused")
            consumer.subscribe(["closed"])
            with pytest.raises(RefusedError, match="alice may not subscribe to 'closed'"):
                await consumer.subscribed()

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
                if is_basic:
                    read += await up_to(consumer, b"basic %d.1" % turn)
                else:
                    read += await next_records(consumer, 3)
            await consumer.update_topology(["consumer"])
            read += await rest(consumer)
        # Then no validated event was left out, none came twice, and all are in order
        seen = [value for value in values(read) if value.startswith(b"validated")]
        assert seen == [b"validated %d.%d" % (t, n) for t in range(6) for n in range(5)]
        places = [record.offset or 0 for record in read]
        assert places == sorted(set(places))
        # and of the others came all that it came to while it did not validate.
        others = [value.decode()[6:] for value in values(read) if value.startswith(b"basic")]
        came = "0.2 0.3 0.4 1.0 1.1", "1.4 2.0 2.1 2.2 2.3 2.4 3.0 3.1"
        assert others == " ".join((*came, "3.4 4.0 4.1 4.2 4.3 4.4 5.0 5.1")).split()
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
            assert [r.offset for r in before + after] == [*range(11)]

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
            assert (record.value, record.validated, record.offset) == (b"after", True, 2)
            # And back again, though nothing else came in between.
            assert await consumer.poll(0) is None
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


async def publish_until(
    directory: Path, topic: str, name: str, done: asyncio.Event, *, basic: bool
) -> int:
    """One event after the other; says how many that were."""
    number = 0
    async with Producer(directory, name, batch_events=1) as producer:
        if basic:
            await producer.update_topology([])
        while not done.is_set():
            await producer.send(topic, b"%s %d" % (name.encode(), number))
            number += 1
    return number


async def read_until(
    directory: Path, topic: str, name: str, seen: list[Record], done: asyncio.Event
) -> None:
    """Everything from the beginning, without validation."""
    async with Consumer(directory, name) as consumer:
        await consumer.update_topology([])
        consumer.subscribe([topic], start="begin")
        while not done.is_set():
            seen += await consumer.poll_many(100, 0.05)


def test_one_order_holds_while_those_who_order_it_are_killed_and_come_back(
    cluster: TestCluster,
) -> None:
    directory = cluster.directory

    async def story() -> None:
        read_by: dict[str, list[Record]] = {"carol": [], "dave": []}
        published, complete = asyncio.Event(), asyncio.Event()

        async def more(count: int) -> None:
            goal = len(read_by["carol"]) + count
            await until(lambda: len(read_by["carol"]) >= goal)

        async with Admin(directory, OPERATOR) as admin, asyncio.TaskGroup() as tasks:
            for name, seen in read_by.items():
                tasks.create_task(read_until(directory, "killed", name, seen, complete))
            flows = [
                tasks.create_task(publish_until(directory, "killed", name, published, basic=basic))
                for name, basic in (("alice", False), ("bob", True))
            ]
            # When whoever leads is killed in the middle of it, and starts again
            for _ in range(2):
                await more(60)
                name = await leader(admin, "byzantine")
                cluster.launcher.stop(name, kill=True)
                await more(60)
                cluster.revive()
                await follows(admin, "byzantine", name)
            published.set()
            counts = [await each for each in flows]
            await until(lambda: all(len(seen) >= sum(counts) for seen in read_by.values()))
            complete.set()
        # Then both read the same, with everything in it once, in the order of each producer.
        first, second = read_by.values()
        assert values(first) == values(second)
        assert [record.offset for record in first] == list(range(sum(counts)))
        for publisher, count in zip((b"alice", b"bob"), counts, strict=True):
            mine = [value for value in values(first) if value.startswith(publisher)]
            assert mine == [b"%s %d" % (publisher, number) for number in range(count)]

    try:
        asyncio.run(story())
    finally:
        cluster.revive()


# Groups


async def fill(directory: Path, topic: str, first: int, count: int, *, basic: bool) -> None:
    """So many events, over all partitions in turn."""
    name = "bob" if basic else "alice"
    async with Producer(directory, name, batch_events=1) as producer:
        if basic:
            await producer.update_topology([])
        for number in range(first, first + count):
            await producer.send(topic, b"%d" % number, partition=number % 4)


async def read_on(consumer: Consumer, read: list[Record], enough: asyncio.Event) -> None:
    while not enough.is_set():
        read += await consumer.poll_many(10, 0.05)


def numbers(records: list[Record]) -> list[int]:
    return sorted(int(record.value) for record in records)


@pytest.mark.parametrize("basic", [False, True], ids=["validated", "basic"])
def test_members_of_a_group_share_a_validated_topic_and_take_over_from_one_that_dies(
    cluster: TestCluster, basic: bool
) -> None:
    topic, group = ("basic-groups", "basic") if basic else ("groups", "validated")
    directory = cluster.directory

    async def story() -> None:
        survivor = Consumer(directory, "carol", group=group, lease_s=1.0)
        dead = Consumer(directory, "carol", group=group, lease_s=1.0)
        read: list[Record] = []
        taken: list[Record] = []
        enough, dies = asyncio.Event(), asyncio.Event()
        async with survivor, asyncio.TaskGroup() as tasks:
            await dead.start()
            for member in (survivor, dead):
                await member.update_topology([] if basic else [topic])
                member.subscribe([topic], start="begin")
            await asyncio.gather(survivor.subscribed(), dead.subscribed())
            await until(lambda: len(dead.assignment()) == len(survivor.assignment()) == 2)
            assert {name for name, _ in dead.assignment()} == {topic}
            tasks.create_task(read_on(survivor, read, enough))
            reading = tasks.create_task(read_on(dead, taken, dies))
            await fill(directory, topic, 0, 40, basic=False)
            await until(lambda: len(read) == len(taken) == 20)
            await dead.commit()
            # When it says no more, not even that it leaves
            dies.set()
            await reading
            dead._membership = None
            await dead.close()
            await fill(directory, topic, 40, 20, basic=basic)
            await fill(directory, topic, 60, 20, basic=False)
            await until(lambda: len(survivor.assignment()) == 4)
            # Then the other goes on where it committed, and nothing is left out or comes twice.
            await until(lambda: len(read) >= 60)
            enough.set()
        assert numbers(read + taken) == list(range(80))
        assert all(record.validated is not basic for record in read)
        # And whoever comes later goes on with what is new.
        await fill(directory, topic, 80, 4, basic=False)
        async with Consumer(directory, "carol", group=group) as late:
            await late.update_topology([] if basic else [topic])
            late.subscribe([topic], start="begin")
            assert numbers(await next_records(late, 4)) == [80, 81, 82, 83]

    asyncio.run(story())


# Programs without a loop, and the command line


def test_programs_without_a_loop_choose_as_well(cluster: TestCluster) -> None:
    with (
        BlockingProducer(cluster.directory, "alice") as producer,
        BlockingConsumer(cluster.directory, "carol") as consumer,
    ):
        producer.send("blocking", b"validated")
        producer.update_topology([])
        producer.send("blocking", b"basic")
        consumer.update_topology([])
        consumer.subscribe(["blocking"], start="begin")
        assert [consumer.poll(PATIENCE_S) for _ in range(2)] != [None, None]
        consumer.update_topology(["blocking"])
        consumer.seek("blocking", 0, "begin")
        record = consumer.poll(PATIENCE_S)
        assert record is not None
        assert (record.value, record.validated) == (b"validated", True)


def test_the_command_line_publishes_and_reads_without_validation(cluster: TestCluster) -> None:
    at = ("--directory", cluster.directory)
    published = quorate("publish", "shell", "unsigned", "--basic", "--json", *at)
    assert published.code == 0, published.err
    assert "f replicas may do anything" in json.loads(published.out)["guarantee"]
    quorate("publish", "shell", "signed", "--quiet", *at)
    reading = ("subscribe", "shell", "--from", "begin", "--seconds", "30", "--json", *at)
    both = quorate(*reading, "--count", "2", "--basic")
    rows = [json.loads(line) for line in both.out.splitlines()]
    assert [(row["value"], row["validated"]) for row in rows] == [
        ("unsigned", False), ("signed", False),
    ]  # fmt: skip
    checked = quorate(*reading, "--count", "1")
    assert [json.loads(checked.out)[key] for key in ("value", "validated")] == ["signed", True]
    refused = quorate("publish", "plain", "x", "--basic", *at)
    assert refused.code != 0
    assert "--basic is for validated topics" in refused.err
