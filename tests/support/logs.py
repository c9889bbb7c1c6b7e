"""Log topics with their books kept: what was handed in, what was acknowledged, what was read.

    async with LogTraffic(cluster.directory, "log") as traffic:
        traffic.flow()
        await traffic.passed(100)
        ...
        await traffic.settled()
        traffic.check()

`faults` is what all of it comes down to: an outsider's view of a log, that knows nothing of how it
is made. Nothing acknowledged is missing, nothing is there twice or was made up, every consumer
sees one order without gaps, and what a receipt says is where the event stands.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from flows import PATIENCE_S, Flows, raise_failures
from quorate.client import Admin, Consumer, Producer, Receipt, Record
from quorate.client.consumer import Start
from traffic import eventually, is_of_another_run, value_of

# A producer has so many events under way, and waits a moment after each.
AHEAD = 32
PACE_S = 0.01
KEYS = 5
# Every so often a value is too large to ride in a request, and goes to f + 1 stores only.
LARGE_EVERY = 8
LARGE_BYTES = 5000
SMALL_BYTES = 100


class Place(NamedTuple):
    """Where an event stands in a topic."""

    partition: int
    offset: int


class HandedIn(NamedTuple):
    """Who published a value, and as its how manyth."""

    publisher: str
    number: int
    key: bytes | None


@dataclass
class Books:
    """One topic: what producers were told and got back, and what each consumer read."""

    run: str
    handed_in: dict[bytes, HandedIn] = field(default_factory=dict)
    receipts: dict[bytes, Receipt] = field(default_factory=dict)
    read: dict[str, list[Record]] = field(default_factory=dict)
    # Where each partition begins for every consumer.
    first_offset: int = 0

    def has_read(self, reader: str) -> int:
        """How much of this run a consumer has seen."""
        return sum(record.value in self.handed_in for record in self.read[reader])


# Comparing


def faults(books: Books) -> list[str]:
    """Everything that is wrong, in sentences; nothing if the log is as it should be."""
    found: list[str] = []
    for reader, records in books.read.items():
        found += [f"{reader}: {sentence}" for sentence in _faults_of_reader(books, records)]
    return found + _disagreements(books.read)


def _faults_of_reader(books: Books, records: list[Record]) -> list[str]:
    found: list[str] = []
    partitions: dict[int, list[Record]] = {}
    for record in records:
        partitions.setdefault(record.partition, []).append(record)
    for part in partitions.values():
        found += _gaps(part, books.first_offset)
        found += _disorder(books.handed_in, part)
    seen = Counter(record.value for record in records)
    found += [f"{_show(value)} came {count} times" for value, count in seen.items() if count > 1]
    found += [
        f"{_show(value)} was never handed in"
        for value in seen
        if value not in books.handed_in and not is_of_another_run(value, books.run)
    ]
    return found + _wrong_receipts(books.receipts, records) + _split_keys(books.handed_in, records)


def _gaps(records: list[Record], first_offset: int) -> Iterator[str]:
    """The records of one partition follow on each other, from the first offset on."""
    last: Record | None = None
    for record in records:
        if last is None:
            follows = record.offset == first_offset
        else:
            follows = record.offset == _offset(last) + 1
        if not follows:
            yield f"{_place(record)} comes after {last and _place(last)}"
        last = record


def _disorder(handed_in: Mapping[bytes, HandedIn], records: list[Record]) -> Iterator[str]:
    """Of one publisher, a partition has events in the order in which it handed them in."""
    last: dict[str, int] = {}
    for record in records:
        known = handed_in.get(record.value)
        if known is None:
            continue
        if record.publisher != known.publisher:
            yield f"{_show(record.value)} is said to be of {record.publisher}"
        if known.number < last.get(known.publisher, -1):
            yield f"{_show(record.value)} came after number {last[known.publisher]}"
        last[known.publisher] = known.number


def _wrong_receipts(receipts: Mapping[bytes, Receipt], records: list[Record]) -> list[str]:
    """What was acknowledged is there, and it is where its receipt says."""
    places = {record.value: _place(record) for record in records}
    found: list[str] = []
    for value, receipt in receipts.items():
        place = places.get(value)
        if place is None:
            found.append(f"{_show(value)} was acknowledged at {receipt.offset} and is missing")
        elif place != (receipt.partition, receipt.offset):
            told = receipt.partition, receipt.offset
            found.append(f"{_show(value)} is at {place}, and its receipt says {told}")
    return found


def _split_keys(handed_in: Mapping[bytes, HandedIn], records: list[Record]) -> list[str]:
    """Events with the same key are in the same partition."""
    partitions: dict[bytes, set[int]] = {}
    for record in records:
        if record.value in handed_in and record.key is not None:
            partitions.setdefault(record.key, set()).add(record.partition)
    return [f"key {key!r} is in {found}" for key, found in partitions.items() if len(found) > 1]


def _disagreements(read: Mapping[str, list[Record]]) -> list[str]:
    """No two consumers see different events in one place."""
    found: list[str] = []
    first: dict[Place, tuple[str, Record]] = {}
    for reader, records in read.items():
        for record in records:
            other, theirs = first.setdefault(_place(record), (reader, record))
            if _content(theirs) != _content(record):
                found.append(f"{other} and {reader} read different events at {_place(record)}")
    return found


def _content(record: Record) -> tuple[object, ...]:
    return record.publisher, record.sequence, record.key, record.value, record.timestamp_us


def _place(record: Record) -> Place:
    return Place(record.partition, _offset(record))


def _offset(record: Record) -> int:
    assert record.offset is not None, "a record of a log topic has an offset"
    return record.offset


def _show(value: bytes) -> str:
    return value[:40].decode(errors="replace")


# Traffic


class LogTraffic(Flows):
    """Some producers and some consumers on one log topic, all in this process.

    Consumers read from the beginning, whatever is there from before.
    """

    def __init__(
        self,
        directory: Path,
        topic: str,
        *,
        publishers: Iterable[str] = ("alice", "bob"),
        readers: Iterable[str] = ("carol", "dave"),
        keyed: bool = True,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.books = Books(secrets.token_hex(4))
        self.producers = {
            name: Producer(directory, name, batch_events=1, timeout_s=2 * PATIENCE_S)
            for name in publishers
        }
        self.consumers = {name: Consumer(directory, name) for name in readers}
        self._directory = directory
        self._keyed = keyed
        self._numbers: Counter[str] = Counter()
        self._waiting: dict[bytes, asyncio.Future[Receipt]] = {}

    async def __aenter__(self) -> Self:
        for producer in self.producers.values():
            await self._stack.enter_async_context(producer)
            await producer.register(self.topic)
        for name, consumer in self.consumers.items():
            await self._stack.enter_async_context(consumer)
            consumer.subscribe([self.topic], start="begin")
            await consumer.subscribed()
            self._collect_from(name, consumer)
        return self

    def _all_producers(self) -> Iterable[Producer]:
        return self.producers.values()

    def _all_consumers(self) -> Iterable[Consumer]:
        return self.consumers.values()

    # Publishing

    def flow(self) -> None:
        """Every producer publishes until `settled`."""
        self._flows += [asyncio.create_task(self._flow(name)) for name in self.producers]

    async def publish(self, publisher: str) -> bytes:
        number = self._numbers[publisher]
        self._numbers[publisher] += 1
        size = LARGE_BYTES if number % LARGE_EVERY == LARGE_EVERY - 1 else SMALL_BYTES
        value = value_of(self.books.run, f"{self.topic}/{publisher}", number, size)
        key = b"key %d" % (number % KEYS) if self._keyed else None
        self.books.handed_in[value] = HandedIn(publisher, number, key)
        future = await self.producers[publisher].submit(self.topic, value, key=key)
        self._waiting[value] = future
        self._changed.set()
        future.add_done_callback(lambda done: self._on_receipt(value, done))
        return value

    async def _flow(self, publisher: str) -> None:
        while True:
            await self._until(lambda: self._out(publisher) < AHEAD)
            await self.publish(publisher)
            await asyncio.sleep(PACE_S)

    def _out(self, publisher: str) -> int:
        """What this producer has no receipt for."""
        return sum(self.books.handed_in[value].publisher == publisher for value in self._waiting)

    def _on_receipt(self, value: bytes, done: "asyncio.Future[Receipt]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._waiting.pop(value, None)
            self.books.receipts[value] = done.result()
        self._changed.set()

    # Waiting

    @property
    def acknowledged(self) -> int:
        return len(self.books.receipts)

    async def passed(self, count: int) -> None:
        """So many more events were acknowledged, and have reached every consumer."""
        goal = self.acknowledged + count
        await self._within(lambda: self.acknowledged >= goal)
        await self._read_all(dict(self.books.receipts))

    async def stalled(self) -> None:
        """Every producer waits for receipts, and hands in nothing more until one comes."""
        await self._within(lambda: all(self._out(name) >= AHEAD for name in self.producers))

    async def settled(self) -> None:
        """Publishing ends; everything has its receipt and has reached every consumer."""
        await self._end_flows()
        await self._within(lambda: not self._waiting)
        await self._read_all(self.books.handed_in)

    async def read_again(self, reader: str) -> None:
        """A consumer that was not there so far reads all of it from the beginning."""
        name = f"{reader}, later"
        consumer = await self._stack.enter_async_context(Consumer(self._directory, reader))
        consumer.subscribe([self.topic], start="begin")
        self._collect_from(name, consumer)
        await self._read_all(self.books.handed_in)

    async def _read_all(self, values: Iterable[bytes]) -> None:
        missing = {reader: set(values) for reader in self.books.read}
        seen = dict.fromkeys(missing, 0)

        def is_complete() -> bool:
            for reader, records in self.books.read.items():
                fresh = records[seen[reader] :]
                missing[reader].difference_update(record.value for record in fresh)
                seen[reader] += len(fresh)
            return not any(missing.values())

        await self._within(is_complete)

    def _collect_from(self, name: str, consumer: Consumer) -> None:
        records = self.books.read[name] = []
        self._readings.append(asyncio.create_task(self._collect(consumer, records)))

    async def _collect(self, consumer: Consumer, records: list[Record]) -> None:
        async for record in consumer:
            records.append(record)
            self._changed.set()

    def _fail_early(self) -> None:
        super()._fail_early()
        raise_failures(self._readings)
        for future in self._waiting.values():
            if future.done():
                future.result()

    # The books

    def check(self) -> None:
        assert self.acknowledged == len(self.books.handed_in), self
        found = faults(self.books)
        assert not found, "\n".join([str(self), *found[:20]])

    def __str__(self) -> str:
        read = {reader: self.books.has_read(reader) for reader in self.books.read}
        return (
            f"{self.topic}: {len(self.books.handed_in)} handed in, {self.acknowledged} "
            f"acknowledged, read {read}, reports {dict(self.reports())}"
        )


async def read_some(
    directory: Path, reader: str, topic: str, count: int, *, start: Start
) -> list[Record]:
    """The first so many records from there on."""
    async with Consumer(directory, reader) as consumer:
        consumer.subscribe([topic], start=start)
        return await next_records(consumer, count)


async def next_records(consumer: Consumer, count: int) -> list[Record]:
    """Exactly so many records, or a failure."""
    found: list[Record] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                found += await consumer.poll_many(count - len(found))
    except TimeoutError:
        raise AssertionError(f"only {len(found)} of {count} records came") from None
    return found


# Looking at replicas


def group_in(report: Mapping[str, Any], protection: str) -> dict[str, Any] | None:
    """What a replica says of one of its groups, if it is up and takes part in it."""
    log = report.get("log") or {}
    found: dict[str, Any] | None = log.get("groups", {}).get(protection)
    return found


async def groups(admin: Admin, protection: str) -> dict[str, dict[str, Any]]:
    """Of each replica that answers, how it sees the group."""
    reports = await admin.status(timeout_s=0.5)
    found = {name: group_in(report, protection) for name, report in reports.items()}
    return {name: group for name, group in found.items() if group is not None}


async def leader(admin: Admin, protection: str) -> str:
    """The leader, in the words of most replicas."""
    said = Counter(str(each["leader"]) for each in (await groups(admin, protection)).values())
    return said.most_common(1)[0][0]


async def follows(admin: Admin, protection: str, replica: str) -> None:
    """A replica that was away has decided what the others had by now."""
    goal = max((await batches(admin, protection)).values(), default=0)
    await eventually(lambda: batches(admin, protection), lambda seen: seen.get(replica, -1) >= goal)


async def caught_up(admin: Admin, replica: str, protections: Iterable[str]) -> None:
    """The same for each of these groups that it is in; their topics have the same names."""
    number = admin.cluster.named(replica).number
    for protection in protections:
        if number in admin.cluster.placement(protection):
            await follows(admin, protection, replica)


async def batches(admin: Admin, protection: str) -> dict[str, int]:
    """How many batches each replica has decided."""
    return {name: each["batches"] for name, each in (await groups(admin, protection)).items()}


async def agreed(admin: Admin, protection: str, topic: str) -> None:
    """When nothing moves any more, all replicas of a topic have the same log."""
    members = len(admin.cluster.placement(topic))

    async def states() -> dict[str, tuple[int, str]]:
        seen = await groups(admin, protection)
        return {name: (each["batches"], each["root"]) for name, each in seen.items()}

    await eventually(states, lambda seen: len(seen) == members and len(set(seen.values())) == 1)


async def until_signed(admin: Admin, protection: str, *, replicas: int = 1) -> None:
    """A quorum has signed all that was decided by now, and so many know it, and all who answer."""
    goal = max((await batches(admin, protection)).values())

    async def covered() -> list[int]:
        notes = [seen["checkpoint"] for seen in (await groups(admin, protection)).values()]
        return [int(note.split("\n")[1]) if note else 0 for note in notes]

    await eventually(
        covered, lambda sizes: len(sizes) >= replicas and min(sizes, default=0) >= goal
    )
