"""Log topics as programs use them: publishing, and reading from anywhere."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from clusters import TestCluster, running_cluster
from flows import PATIENCE_S
from logs import Books, HandedIn, LogTraffic, agreed, faults, next_records, read_some
from quorate.client import Admin, Consumer, Producer, Receipt, Record
from quorate.core.errors import LocalProtocolError, RefusedError
from quorate.protocol.machine import Entry
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.runtime.local import OPERATOR

pytestmark = pytest.mark.xdist_group("processes")

PROTECTIONS = ("byzantine", "crash")
PARTITIONS = 3
# A topic for each test, so that none reads what another one wrote.
USES = {
    "shared": PARTITIONS,
    "keys": PARTITIONS,
    "large": 1,
    "starts": 1,
    "times": 1,
    "seeks": 1,
    "inside": 1,
    "handover": 1,
    "crowded": PARTITIONS,
}
EVENTS = 12


def topics() -> Iterator[tuple[str, Mapping[str, object]]]:
    for protection in PROTECTIONS:
        for use, partitions in USES.items():
            contract = {"order": "total", "protection": protection, "partitions": partitions}
            yield f"{use}-{protection}", contract
    yield "closed", {"order": "total", "publish": ["alice"], "subscribe": ["bob"]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    clients = ("alice", "bob", "carol", "dave")
    with running_cluster(topics=dict(topics()), clients=clients) as running:
        yield running


protections = pytest.mark.parametrize("protection", PROTECTIONS)


async def publish_some(directory: Path, topic: str, first: int, count: int) -> list[Receipt]:
    """Events 'first', 'first + 1' and so on, each in a batch and a slot of its own."""
    async with Producer(directory, "alice", batch_events=1) as producer:
        return [
            await producer.send(topic, b"%d" % number) for number in range(first, first + count)
        ]


def numbers(records: list[Record]) -> list[int]:
    return [int(record.value) for record in records]


# Publishing and reading


@protections
def test_all_consumers_read_what_all_producers_published_in_one_order(
    cluster: TestCluster, protection: str
) -> None:
    topic = f"shared-{protection}"

    async def story() -> None:
        async with (
            LogTraffic(cluster.directory, topic) as traffic,
            Admin(cluster.directory, OPERATOR) as admin,
        ):
            traffic.flow()
            await traffic.passed(150)
            await traffic.settled()
            await traffic.read_again("bob")
            await agreed(admin, protection, topic)
        traffic.check()
        # Then every partition was used, and whatever was read was read everywhere.
        for records in traffic.books.read.values():
            assert {record.partition for record in records} == set(range(PARTITIONS))

    asyncio.run(story())


@protections
def test_partitions_share_what_may_be_under_way_and_none_of_them_is_forgotten(
    cluster: TestCluster, protection: str
) -> None:
    """One batch at a time, as if it filled all the room that replicas have for a session."""
    topic = f"crowded-{protection}"

    async def story() -> None:
        async with Producer(cluster.directory, "alice", batch_events=1) as producer:
            producer._source.under_way.bytes_max = 1
            futures = [
                await producer.submit(topic, b"%d" % number, partition=partition)
                for partition in range(PARTITIONS)
                for number in range(EVENTS)
            ]
            receipts = await asyncio.gather(*futures)
            places = {(receipt.partition, receipt.offset) for receipt in receipts}
            assert len(places) == PARTITIONS * EVENTS
            assert producer._source.under_way.bytes == 0

    asyncio.run(story())


@protections
def test_a_receipt_says_where_the_event_stands_and_what_that_is_worth(
    cluster: TestCluster, protection: str
) -> None:
    async def story() -> list[Receipt]:
        async with Producer(cluster.directory, "alice") as producer:
            return [
                await producer.send(f"keys-{protection}", b"here", partition=1) for _ in range(3)
            ]

    first, *others = asyncio.run(story())
    assert [each.partition for each in (first, *others)] == [1, 1, 1]
    assert first.offset is not None
    assert [each.offset for each in others] == [first.offset + 1, first.offset + 2]
    # One word is enough where nobody lies, and f + 1 where some do.
    assert len(first.replicas) >= (2 if protection == "byzantine" else 1)
    assert "decided this position and has it on disk" in first.guarantee


@protections
def test_events_with_the_same_key_are_in_one_partition_in_the_order_of_publishing(
    cluster: TestCluster, protection: str
) -> None:
    keys = [b"key %d" % number for number in range(8)]
    topic = f"keys-{protection}"

    async def story() -> tuple[dict[bytes, set[int]], list[Record]]:
        partitions: dict[bytes, set[int]] = {key: set() for key in keys}
        async with (
            Producer(cluster.directory, "alice") as producer,
            Consumer(cluster.directory, "bob") as consumer,
        ):
            consumer.subscribe([topic], start="end")
            await consumer.subscribed()
            for number in range(5):
                for key in keys:
                    receipt = await producer.send(topic, b"%d" % number, key=key)
                    partitions[key].add(receipt.partition)
            return partitions, await next_records(consumer, 5 * len(keys))

    partitions, records = asyncio.run(story())
    for key in keys:
        mine = [record for record in records if record.key == key]
        assert numbers(mine) == [0, 1, 2, 3, 4]
        assert {record.partition for record in mine} == partitions[key]
        assert len(partitions[key]) == 1
    assert len(set.union(*partitions.values())) > 1


@protections
def test_a_large_batch_is_kept_by_f_plus_1_replicas_and_read_by_everybody(
    cluster: TestCluster, protection: str
) -> None:
    # Given batches whose payload only f + 1 replicas are sent, between small ones,
    topic = f"large-{protection}"
    values = [b"%03d" % number + b"." * 50 for number in range(100)]
    assert sum(map(len, values)) > INLINE_BYTES_MAX

    async def story() -> list[list[Record]]:
        async with Producer(cluster.directory, "alice") as producer:
            for _ in range(5):
                await producer.send(topic, b"small")
                receipt = await producer.send_values(topic, values)
                assert receipt.events == 100
            async with Admin(cluster.directory, OPERATOR) as admin:
                await agreed(admin, protection, topic)
        count = 5 * 101
        return [
            await read_some(cluster.directory, reader, topic, count, start="begin")
            for reader in ("bob", "carol")
        ]

    # then at least those have it on disk, and all consumers read all of them.
    before = _journal_bytes(cluster)
    one, another = asyncio.run(story())
    assert [record.value for record in one] == [b"small", *values] * 5
    assert [record.offset for record in one] == list(range(5 * 101))
    assert [r.value for r in another] == [r.value for r in one]
    grown = {name: size - before[name] for name, size in _journal_bytes(cluster).items()}
    stores = {name for name, size in grown.items() if size > 5 * sum(map(len, values))}
    assert len(stores) >= 2, grown


def _journal_bytes(cluster: TestCluster) -> dict[str, int]:
    """How much each replica has written to its journal."""
    return {
        name: sum(file.stat().st_size for file in (cluster.directory / "data" / name).glob("*.log"))
        for name in cluster.names
    }


# Where to begin


@protections
def test_a_consumer_begins_where_it_is_told(cluster: TestCluster, protection: str) -> None:
    topic = f"starts-{protection}"

    async def story() -> None:
        receipts = await publish_some(cluster.directory, topic, 0, EVENTS)
        assert [receipt.offset for receipt in receipts] == list(range(EVENTS))

        for start in (0, 5, EVENTS - 1):
            rest = EVENTS - start
            records = await read_some(cluster.directory, "bob", topic, rest, start=start)
            assert numbers(records) == list(range(start, EVENTS))
        records = await read_some(cluster.directory, "bob", topic, EVENTS, start="begin")
        assert numbers(records) == list(range(EVENTS))

        # One that begins at the end, or at an offset that is yet to come, hears what comes then.
        async with (
            Consumer(cluster.directory, "bob") as at_end,
            Consumer(cluster.directory, "carol") as ahead,
        ):
            at_end.subscribe([topic], start="end")
            ahead.subscribe([topic], start=EVENTS + 2)
            await at_end.subscribed()
            await ahead.subscribed()
            await publish_some(cluster.directory, topic, EVENTS, 4)
            assert numbers(await next_records(at_end, 4)) == [EVENTS + each for each in range(4)]
            assert numbers(await next_records(ahead, 2)) == [EVENTS + 2, EVENTS + 3]

    asyncio.run(story())


@protections
def test_a_consumer_begins_at_a_time(cluster: TestCluster, protection: str) -> None:
    topic = f"times-{protection}"

    async def story() -> None:
        await publish_some(cluster.directory, topic, 0, EVENTS)
        times_us = await decision_times(cluster, topic)
        assert times_us == sorted(times_us)

        for time_us in {times_us[0], times_us[5], times_us[-1]}:
            expected = [number for number, at in enumerate(times_us) if at >= time_us]
            start = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)
            records = await read_some(cluster.directory, "bob", topic, len(expected), start=start)
            assert numbers(records) == expected

        long_ago, to_come = datetime(1960, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
        records = await read_some(cluster.directory, "bob", topic, EVENTS, start=long_ago)
        assert numbers(records) == list(range(EVENTS))
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe([topic], start=to_come)
            await consumer.subscribed()
            await publish_some(cluster.directory, topic, EVENTS, 1)
            assert numbers(await next_records(consumer, 1)) == [EVENTS]

    asyncio.run(story())


async def decision_times(cluster: TestCluster, topic: str) -> list[int]:
    """When each batch of a topic of one partition was decided."""
    found: list[int] = []
    async with Consumer(cluster.directory, "bob") as consumer, asyncio.timeout(30):
        consumer.subscribe([topic], start="begin")
        while len(found) < EVENTS:
            for entry, _ in await consumer.poll_batches():
                assert isinstance(entry, Entry)
                found.append(entry.time_us)
    return found


@protections
def test_a_consumer_can_go_back_and_forth(cluster: TestCluster, protection: str) -> None:
    topic = f"seeks-{protection}"

    async def story() -> None:
        await publish_some(cluster.directory, topic, 0, EVENTS)
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe([topic], start="begin")
            assert numbers(await next_records(consumer, 4)) == [0, 1, 2, 3]
            consumer.seek(topic, 0, 2)
            assert numbers(await next_records(consumer, 3)) == [2, 3, 4]
            consumer.seek(topic, 0, 10)
            assert numbers(await next_records(consumer, 2)) == [10, 11]
            consumer.seek(topic, 0, "begin")
            assert numbers(await next_records(consumer, EVENTS)) == list(range(EVENTS))
            consumer.seek(topic, 0, datetime(1990, 1, 1, tzinfo=UTC))
            assert numbers(await next_records(consumer, 1)) == [0]
            consumer.seek(topic, 0, "end")
            await consumer.subscribed()
            await publish_some(cluster.directory, topic, EVENTS, 2)
            assert numbers(await next_records(consumer, 2)) == [EVENTS, EVENTS + 1]

    asyncio.run(story())


@protections
def test_a_consumer_begins_inside_a_batch(cluster: TestCluster, protection: str) -> None:
    topic = f"inside-{protection}"
    # The second of them is not everywhere.
    batches = [
        [b"%d" % (10 * at + n) + bytes(999 * (at == 1)) for n in range(10)] for at in (0, 1, 2)
    ]

    async def story() -> None:
        async with Producer(cluster.directory, "alice") as producer:
            receipts = [await producer.send_values(topic, values) for values in batches]
            assert [(receipt.offset, receipt.events) for receipt in receipts] == [
                (0, 10), (10, 10), (20, 10),
            ]  # fmt: skip
        for start in (3, 13, 29):
            records = await read_some(cluster.directory, "bob", topic, 30 - start, start=start)
            assert [record.offset for record in records] == list(range(start, 30))
            assert [int(record.value.rstrip(b"\0")) for record in records] == list(range(start, 30))
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe([topic], start="begin")
            assert [record.offset for record in await next_records(consumer, 15)] == list(range(15))
            for there in (27, 4):
                consumer.seek(topic, 0, there)
                assert consumer.position(topic, 0) == there
                (record,) = await next_records(consumer, 1)
                assert record.offset == there
            # What is left of that batch, and all that follows, as a table
            table = await consumer.poll_table(PATIENCE_S)
            assert table is not None
            assert int(table.column("value")[0].as_py()) == 5

    asyncio.run(story())


@protections
def test_what_was_read_can_be_read_on_by_another_consumer(
    cluster: TestCluster, protection: str
) -> None:
    topic = f"handover-{protection}"

    async def story() -> None:
        await publish_some(cluster.directory, topic, 0, EVENTS)
        first = await read_some(cluster.directory, "bob", topic, 5, start="begin")
        assert first[-1].offset is not None
        rest = EVENTS - 5
        second = await read_some(
            cluster.directory, "carol", topic, rest, start=first[-1].offset + 1
        )
        assert numbers(first + second) == list(range(EVENTS))

    asyncio.run(story())


# Refusals


def test_whoever_is_not_on_the_access_lists_of_a_log_is_refused_with_a_sentence(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Producer(cluster.directory, "carol") as producer,
            Consumer(cluster.directory, "carol") as consumer,
        ):
            with pytest.raises(RefusedError, match="carol may not publish on 'closed'"):
                await producer.send("closed", b"let me in")
            consumer.subscribe(["closed"], start="begin")
            with pytest.raises(RefusedError, match="carol may not subscribe to 'closed'"):
                await consumer.subscribed()
        async with Producer(cluster.directory, "alice") as producer:
            await producer.send("closed", b"come in")
        (record,) = await read_some(cluster.directory, "bob", "closed", 1, start="begin")
        assert record.value == b"come in"

    asyncio.run(story())


def test_a_partition_or_a_start_that_makes_no_sense_is_refused_with_a_sentence(
    cluster: TestCluster,
) -> None:
    topic = "keys-byzantine"

    async def story() -> None:
        async with (
            Producer(cluster.directory, "alice") as producer,
            Consumer(cluster.directory, "bob") as consumer,
        ):
            for partition in (-1, PARTITIONS):
                with pytest.raises(LocalProtocolError, match="has no partition .*; it has 0 to 2"):
                    await producer.send(topic, b"where?", partition=partition)
                with pytest.raises(LocalProtocolError, match="it has partitions 0 to 2"):
                    consumer.seek(topic, partition, 0)
            with pytest.raises(
                LocalProtocolError,
                match="start is 'now'; allowed are 'begin', 'end', an offset, or a datetime",
            ):
                consumer.subscribe([topic], start="now")  # type: ignore[arg-type]
            receipt = await producer.send(topic, b"here", partition=2)
            assert receipt.partition == 2
            with pytest.raises(LocalProtocolError, match="no partition 1; it has only 0"):
                await producer.send("closed", b"where?", partition=1)

    asyncio.run(story())


# The books themselves


def sound_books() -> Books:
    """Two consumers that read three events of two producers, in two partitions."""
    events = (("alice", 0, 0, 0), ("alice", 1, 0, 1), ("bob", 0, 1, 0))
    books = Books("run", read={"carol": [], "dave": []})
    for publisher, number, partition, offset in events:
        value, key = f"{publisher} {number}".encode(), b"key %d" % partition
        books.handed_in[value] = HandedIn(publisher, number, key)
        books.receipts[value] = Receipt("log", number, 1, (), "", partition, offset)
        record = Record(
            "log", publisher, number, 0, key, value, (), 0, False, (), partition, offset
        )
        for records in books.read.values():
            records.append(record)
    return books


def change(books: Books, at: int, **fields: object) -> None:
    """Let one consumer have read something else."""
    records = books.read["dave"]
    old = {name: getattr(records[at], name) for name in Record.__struct_fields__}
    records[at] = Record(**{**old, **fields})


def lose(books: Books) -> None:
    del books.read["dave"][1]


def lose_the_first(books: Books) -> None:
    del books.read["dave"][0]


def double(books: Books) -> None:
    records = books.read["dave"]
    records.insert(1, records[0])


def swap(books: Books) -> None:
    change(books, 0, offset=1)
    change(books, 1, offset=0)
    records = books.read["dave"]
    records[0], records[1] = records[1], records[0]


def forge(books: Books) -> None:
    change(books, 2, value=b"bob 1")


def move(books: Books) -> None:
    books.receipts[b"alice 1"] = Receipt("log", 1, 1, (), "", 0, 7)


def rename(books: Books) -> None:
    change(books, 2, publisher="alice")


def scatter(books: Books) -> None:
    change(books, 2, key=b"key 0")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lose, "alice 1 was acknowledged at 1 and is missing"),
        (lose_the_first, "comes after None"),
        (double, "alice 0 came 2 times"),
        (swap, "alice 0 came after number 1"),
        (swap, "carol and dave read different events at"),
        (forge, "bob 1 was never handed in"),
        (move, "and its receipt says"),
        (rename, "is said to be of alice"),
        (scatter, "key b'key 0' is in {0, 1}"),
    ],
)
def test_the_books_show_what_is_wrong(spoil: Callable[[Books], None], sentence: str) -> None:
    assert faults(sound_books()) == []
    books = sound_books()
    spoil(books)
    assert any(sentence in fault for fault in faults(books)), faults(books)
