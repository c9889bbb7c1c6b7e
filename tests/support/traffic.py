"""Traffic with its books kept: what was published, delivered, lost, forged, doubled.

Every value is unique and carries a digest of itself, so that an altered value is never taken
for another one that was published. A flow is paced by its slowest subscriber: it publishes
while fewer than `AHEAD` values are out, so that a test neither floods a machine nor waits.
"""

import asyncio
import secrets
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from blake3 import blake3

from flows import PATIENCE_S, Flows
from quorate.client import Admin, Consumer, Producer, Receipt
from quorate.core.cluster import Cluster
from quorate.protocol.destination import Destination
from quorate.protocol.source import Source
from quorate.runtime.local import OPERATOR

LOOK_EVERY_S = 0.02
AHEAD = 64
# A flow leaves the machine time for what it is meant to disturb.
PACE_S = 0.002

# One topic of each kind of live contract. Vote and first-answer topics have 3 and 2 replicas.
BYZANTINE_TOPICS: Mapping[str, Mapping[str, object]] = {
    "vote": {"broadcast": "vote"},
    "authenticated": {"broadcast": "authenticated", "history_every": 64},
    "reliable": {"broadcast": "reliable"},
    "chain": {"broadcast": "chain", "history_every": 64},
    "fifo": {"broadcast": "authenticated", "history_every": 64, "order": "fifo"},
}
EVERY_KIND: Mapping[str, Mapping[str, object]] = {
    "first-answer": {"protection": "crash"},
    **BYZANTINE_TOPICS,
}


def value_of(run: str, topic: str, number: int, size: int = 100) -> bytes:
    """The value with this number, which no other value can be altered into unseen."""
    head = f"{run} {topic} {number} ".encode()
    return (head + blake3(head).hexdigest().encode()).ljust(size, b".")


def is_of_another_run(value: bytes, run: str) -> bool:
    """Whether this was published by an earlier test, and is as good as on the first day."""
    other, topic, number, *_ = (*value.decode(errors="replace").split(), "", "", "")
    return (
        other != run
        and number.isdecimal()
        and (value_of(other, topic, int(number), len(value)) == value)
    )


@dataclass
class Books:
    """One topic as one subscriber sees it."""

    run: str
    expected: dict[bytes, int]
    seen: Counter[bytes] = field(default_factory=Counter)
    forged: int = 0
    disordered: int = 0
    last_number: int = -1

    def note(self, value: bytes) -> None:
        number = self.expected.get(value)
        if number is None:
            self.forged += not is_of_another_run(value, self.run)
            return
        self.seen[value] += 1
        self.disordered += number < self.last_number
        self.last_number = number

    @property
    def delivered(self) -> int:
        return len(self.seen)

    @property
    def doubled(self) -> int:
        return self.seen.total() - len(self.seen)

    @property
    def lost(self) -> list[int]:
        return [number for value, number in self.expected.items() if value not in self.seen]


class Traffic(Flows):
    """One publisher and some subscribers on some topics, all in this process."""

    def __init__(
        self,
        directory: Path,
        topics: Iterable[str],
        *,
        publisher: str = "alice",
        subscribers: Iterable[str] = ("bob",),
        value_bytes: int = 100,
        pace_s: float = PACE_S,
    ) -> None:
        super().__init__()
        self.run = secrets.token_hex(4)
        self.topics = tuple(topics)
        self.producer = Producer(directory, publisher, batch_events=1)
        self.consumers = [Consumer(directory, name) for name in subscribers]
        self.published: dict[str, dict[bytes, int]] = {topic: {} for topic in self.topics}
        self.books = [
            {topic: Books(self.run, self.published[topic]) for topic in self.topics}
            for _ in self.consumers
        ]
        self.receipts: list[Receipt] = []
        self._value_bytes = value_bytes
        self._pace_s = pace_s
        self._waiting: list[asyncio.Future[Receipt]] = []

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.producer)
        for consumer, books in zip(self.consumers, self.books, strict=True):
            await self._stack.enter_async_context(consumer)
            consumer.subscribe(self.topics)
            await consumer.subscribed()
            self._readings.append(asyncio.create_task(self._collect(consumer, books)))
        for topic in self.topics:
            await self.producer.register(topic)
        return self

    def _all_producers(self) -> list[Producer]:
        return [self.producer]

    def _all_consumers(self) -> list[Consumer]:
        return self.consumers

    # Publishing

    def flow(self) -> None:
        """Publish on every topic, one event per batch, until `settled`."""
        self._flows += [asyncio.create_task(self._flow(topic)) for topic in self.topics]

    async def publish(self, topic: str) -> None:
        number = len(self.published[topic])
        value = value_of(self.run, topic, number, self._value_bytes)
        self.published[topic][value] = number
        self._waiting.append(await self.producer.submit(topic, value))

    async def _flow(self, topic: str) -> None:
        while True:
            await self._until(lambda: self._out(topic) < AHEAD)
            await self.publish(topic)
            await asyncio.sleep(self._pace_s)

    def _out(self, topic: str) -> int:
        """How many values the slowest subscriber has not seen."""
        return len(self.published[topic]) - min(books[topic].delivered for books in self.books)

    # Waiting

    async def passed(self, count: int) -> None:
        """So many more values have reached every subscriber on every topic."""
        goals = [(books, books.delivered + count) for each in self.books for books in each.values()]
        await self._within(lambda: all(books.delivered >= goal for books, goal in goals))

    async def settled(self) -> None:
        """Publishing ends; everything has its receipt and has reached every subscriber."""
        await self._end_flows()
        async with asyncio.timeout(PATIENCE_S):
            self.receipts = list(await asyncio.gather(*self._waiting))
        await self._within(lambda: all(self._out(topic) == 0 for topic in self.topics))

    async def _collect(self, consumer: Consumer, books: dict[str, Books]) -> None:
        async for record in consumer:
            books[record.topic].note(record.value)
            self._changed.set()

    # The books

    def check(self, *, fifo: Iterable[str] = ("fifo",)) -> None:
        """Nothing lost, nothing forged, nothing twice, and in order where that is promised."""
        for consumer, books in zip(self.consumers, self.books, strict=True):
            assert consumer.counters["skipped"] == 0, self
            for topic, each in books.items():
                assert (each.lost, each.forged, each.doubled) == ([], 0, 0), self
                assert topic not in fifo or each.disordered == 0, self
        assert len(self.receipts) == sum(map(len, self.published.values()))

    def __str__(self) -> str:
        lines = [
            f"{topic} at subscriber {index}: {len(each.expected)} published, {each.delivered} "
            f"delivered, lost {each.lost[:20]}, {each.forged} forged, {each.doubled} doubled, "
            f"{each.disordered} out of order"
            for index, books in enumerate(self.books)
            for topic, each in books.items()
        ]
        counters = [dict(consumer.counters) for consumer in self.consumers]
        return "\n".join(["", *lines, f"counters {counters}", f"reports {dict(self.reports())}"])


# Looking at clients and replicas


def lead_of(consumer: Consumer, topic: str) -> str:
    """The replica from which this consumer takes the payloads of a topic."""
    lead = cast(Destination, consumer.driver.machine).lead_of(topic)
    assert lead is not None
    return consumer.cluster.member(lead).name


def lag_of(producer: Producer, topic: str, replica: str) -> int:
    """How many batches this replica has not acknowledged."""
    number = producer.cluster.named(replica).number
    return cast(Source, producer.driver.machine).progress(topic)[number][2]


async def until(is_so: Callable[[], object]) -> None:
    """Wait for something that is seen at once, wherever it happens in the same loop."""

    async def look() -> object:
        return is_so()

    await eventually(look)


async def eventually(
    look: Callable[[], Awaitable[Any]],
    is_right: Callable[[Any], object] = bool,
    *,
    patience_s: float = PATIENCE_S,
) -> Any:
    """Look again and again until what is seen is right; fail with the last sight."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + patience_s
    while not is_right(seen := await look()):
        assert loop.time() < deadline_s, f"not so within {patience_s:g} s: {seen}"
        await asyncio.sleep(LOOK_EVERY_S)
    return seen


async def status_of(directory: Path, replica: str) -> dict[str, Any]:
    """What this replica says of itself now."""
    async with Admin(directory, OPERATOR) as admin:
        return (await admin.status())[replica]


async def serving(traffic: Traffic, admin: Admin, replica: str) -> None:
    """Everybody of this traffic has registered with this replica, perhaps again (F10)."""
    number = admin.cluster.named(replica).number
    mine = [topic for topic in traffic.topics if number in admin.cluster.placement(topic)]

    async def look() -> dict[str, Any]:
        report: Any = (await admin.status())[replica]
        return dict(report.get("topics", {}))

    def is_served(topics: dict[str, Any]) -> bool:
        return all(
            topics.get(topic, {}).get("publishers") == 1
            and topics[topic]["subscribers"] == len(traffic.consumers)
            for topic in mine
        )

    await eventually(look, is_served)


async def scrape(cluster: Cluster, replica: str) -> str:
    """The metrics page of one replica."""
    found = next(each for each in cluster.replicas if each.name == replica)

    def get() -> str:
        url = f"http://{found.host}:{found.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


async def offences(cluster: Cluster, replica: str) -> Counter[tuple[str, str]]:
    """What one replica holds against others, by member and kind, from its metrics page."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in (await scrape(cluster, replica)).splitlines():
        if line.startswith("quorate_offences_total{"):
            labels, _, value = line.removeprefix("quorate_offences_total{").partition("} ")
            pairs = dict(pair.split("=", 1) for pair in labels.split(","))
            counts[pairs["member"].strip('"'), pairs["kind"].strip('"')] += int(float(value))
    return counts
