"""The two clients of an experiment, each a process of its own: one publisher, one subscriber.

They use what any program uses, `Producer` and `Consumer`. Parent and child talk in lines
(`quorate.bench.processes`), in this order:

    publisher    says "ready" once it may publish on every topic; as often as it hears "go", it
                 publishes until it hears "stop", and says how much of all has a receipt
    subscriber   says "ready" once its subscriptions are in force; hears which window of time to
                 measure; hears how much there is to receive; says what arrived
"""

import asyncio
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import Any, TypeAlias

import msgspec

from quorate.bench.latencies import Latencies, summarise
from quorate.bench.processes import Parent
from quorate.bench.values import Values
from quorate.client import Consumer, Producer, Receipt
from quorate.client.queue import Arrival
from quorate.core import batch
from quorate.core.batch import Batch
from quorate.core.errors import QuorateError
from quorate.core.ids import NodeId, TopicId, topic_id
from quorate.protocol.machine import Entry
from quorate.runtime.loop import run

RECEIPT_SECONDS_MAX = 8.0
# What may be in flight is published in so many bursts, so that publisher, replicas and
# subscriber work at the same time rather than in turns.
BURSTS = 4
# After so long without anything new, what is missing is lost.
DRAIN_SECONDS_MAX = 4.0

# Who published, which of its batches, when the receipt came, and the receipt.
NoteReceipt: TypeAlias = Callable[[NodeId, int, int, Receipt], None]
# When batches arrived, and what they are.
NoteArrivals: TypeAlias = Callable[[int, Sequence[tuple[Arrival, Batch]]], None]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What both clients know of their experiment."""

    cluster: str
    run: str
    topics: list[str]
    events_per_batch: int
    event_bytes: int
    in_flight: int
    # How many publish on each topic; together they keep so many batches in flight.
    publishers: int = 1
    receipt_s_max: float = RECEIPT_SECONDS_MAX
    # A directory for those who write down every batch.
    notes: str = ""


class Published(msgspec.Struct, frozen=True):
    """How the publisher fared; receipts and failures are counted in batches."""

    receipts: int
    failures: int
    receipt: Latencies


class Window(msgspec.Struct, frozen=True):
    """When to measure, on the clock that all processes of a machine share."""

    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What the subscriber got: events of the window, and batches of the whole run."""

    events_in_window: int
    latencies: Latencies
    batches: int
    forged: int
    duplicated: int


def frame_bytes(events_per_batch: int, event_bytes: int) -> int:
    """The size of such a batch on the wire."""
    return len(_encode([bytes(event_bytes)] * events_per_batch))


# Publishing


class Publisher:
    """Publishes as fast as receipts come in, never with more than so many batches in flight."""

    def __init__(self, producer: Producer, task: Task, note: NoteReceipt | None = None) -> None:
        self.stopped = False
        self.receipts = 0
        self.failures = 0
        self.receipts_ns: list[int] = []
        self._producer = producer
        self._task = task
        self._note = note
        self._values = Values(task.event_bytes, task.run)
        self._next = enumerate(_round_robin(task.topics))
        self._pending: deque[tuple[int, int, asyncio.Future[Receipt]]] = deque()

    async def publish(self) -> None:
        """Until it is stopped. Called again, it goes on where it was."""
        task, pending = self._task, self._pending
        self.stopped = False
        in_flight = max(1, task.in_flight // task.publishers)
        burst = max(1, in_flight // BURSTS)
        while not self.stopped:
            number, (counter, topic) = next(self._next)
            if len(pending) >= in_flight:
                await self._oldest()
            stamp_ns = time.monotonic_ns()
            future = await self._submit(topic, self._values.make(counter, stamp_ns))
            pending.append((counter, stamp_ns, future))
            if number % burst == 0:
                await asyncio.sleep(0)
        while pending:
            await self._oldest()

    async def _submit(self, topic: str, value: bytes) -> "asyncio.Future[Receipt]":
        events = self._task.events_per_batch
        if events == 1:
            return await self._producer.submit(topic, value)
        return await self._producer.submit_payload(topic, _encode([value] * events), events)

    async def _oldest(self) -> None:
        """Wait for the oldest receipt, and take all others that are there too."""
        pending = self._pending
        with suppress(QuorateError):
            await pending[0][2]
        now_ns = time.monotonic_ns()
        while pending and pending[0][2].done():
            counter, stamp_ns, future = pending.popleft()
            if future.exception() is not None:
                self.failures += 1
                continue
            self.receipts += 1
            self.receipts_ns.append(now_ns - stamp_ns)
            if self._note is not None:
                self._note(self._producer.node, counter, now_ns, future.result())


async def publish(task: Task, note: NoteReceipt | None = None) -> None:
    parent = await Parent.connect()
    options: dict[str, Any] = {"batch_events": 1, "timeout_s": task.receipt_s_max}
    async with AsyncExitStack() as stack:
        publishers = []
        for _ in range(task.publishers):
            producer = await stack.enter_async_context(Producer(task.cluster, "alice", **options))
            for topic in task.topics:
                await producer.register(topic)
            publishers.append(Publisher(producer, task, note))
        parent.say("ready")
        while await parent.hear() is not None:
            parent.say(msgspec.to_builtins(await _publish_until_told(parent, publishers)))


async def _publish_until_told(parent: Parent, publishers: list[Publisher]) -> Published:
    publishing = [asyncio.create_task(publisher.publish()) for publisher in publishers]
    await parent.hear()
    for publisher in publishers:
        publisher.stopped = True
    await asyncio.gather(*publishing)
    return Published(
        sum(publisher.receipts for publisher in publishers),
        sum(publisher.failures for publisher in publishers),
        summarise([ns for publisher in publishers for ns in publisher.receipts_ns]),
    )


def _round_robin(topics: list[str]) -> Iterator[tuple[int, str]]:
    """The topics in turn, for ever, each with a counter that goes up by one."""
    return ((counter, topic) for counter in count() for topic in topics)


# Subscribing


class Progress:
    """Which batches of one topic have arrived: all below a counter, and a few beyond it."""

    __slots__ = ("_beyond", "_first_sequence", "_next")

    def __init__(self) -> None:
        self._next = 0
        self._beyond: set[int] = set()
        self._first_sequence: int | None = None

    def is_in_place(self, counter: int, sequence: int) -> bool:
        """Whether a counter belongs to this number: both go up by one with each batch."""
        if self._first_sequence is None:
            self._first_sequence = sequence - counter
        return sequence - counter == self._first_sequence

    def is_new(self, counter: int) -> bool:
        """Whether this counter is seen for the first time; from now on it has been."""
        if counter == self._next and not self._beyond:
            self._next += 1
            return True
        if counter < self._next or counter in self._beyond:
            return False
        self._beyond.add(counter)
        while self._next in self._beyond:
            self._beyond.remove(self._next)
            self._next += 1
        return True


class Tally:
    """Everything that reaches the subscriber, checked and timed."""

    def __init__(self, task: Task) -> None:
        self.batches = 0
        self.forged = 0
        self.duplicated = 0
        self.news = asyncio.Event()
        self._events = task.events_per_batch
        self._values = Values(task.event_bytes, task.run)
        self._topics = {topic_id(topic) for topic in task.topics}
        # Of each publisher on each topic.
        self._progress: defaultdict[tuple[NodeId, TopicId], Progress] = defaultdict(Progress)
        # When something arrived, and how old each batch of it was.
        self._arrivals: list[tuple[int, list[int]]] = []

    def add(self, now_ns: int, deliveries: Iterable[tuple[Arrival, Batch]]) -> None:
        """Look at everything that arrived at one moment."""
        ages_ns: list[int] = []
        events, read, progress_of = self._events, self._values.read, self._progress
        for delivery, opened in deliveries:
            found = read(delivery.payload, events) if opened.count == events else None
            if isinstance(delivery, Entry):
                source = delivery.publisher, delivery.partition.topic
            else:
                source = delivery.stream.publisher, delivery.stream.topic
            progress, is_known = progress_of[source], source[1] in self._topics
            sequence = delivery.sequence
            if not (found and is_known and progress.is_in_place(found[0], sequence)):
                self.forged += 1
            elif not progress.is_new(found[0]):
                self.duplicated += 1
            else:
                ages_ns.append(now_ns - found[1])
        self.batches += len(ages_ns)
        self._arrivals.append((now_ns, ages_ns))

    def received(self, window: Window) -> Received:
        latencies_ns = [
            age_ns
            for arrived_ns, ages_ns in self._arrivals
            if window.began_ns <= arrived_ns < window.ended_ns
            for age_ns in ages_ns
        ]
        return Received(
            events_in_window=len(latencies_ns) * self._events,
            latencies=summarise(latencies_ns),
            batches=self.batches,
            forged=self.forged,
            duplicated=self.duplicated,
        )


async def subscribe(task: Task, note: NoteArrivals | None = None) -> None:
    parent = await Parent.connect()
    async with Consumer(task.cluster, "bob") as consumer:
        consumer.subscribe(task.topics)
        await consumer.subscribed()
        tally = Tally(task)
        reading = asyncio.create_task(_read_into(tally, consumer, note))
        parent.say("ready")
        window = msgspec.convert(await parent.hear(), Window)
        expected: int = await parent.hear() or 0
        await _drain(tally, expected)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        parent.say(msgspec.to_builtins(tally.received(window)))


async def _read_into(tally: Tally, consumer: Consumer, note: NoteArrivals | None) -> None:
    while True:
        deliveries = await consumer.poll_batches()
        now_ns = time.monotonic_ns()
        tally.add(now_ns, deliveries)
        if note is not None:
            note(now_ns, deliveries)
        tally.news.set()


async def _drain(tally: Tally, expected: int) -> None:
    """Wait for what has a receipt, as long as there is still something coming."""
    while tally.batches < expected:
        tally.news.clear()
        try:
            await asyncio.wait_for(tally.news.wait(), DRAIN_SECONDS_MAX)
        except TimeoutError:
            return


def _encode(values: list[bytes]) -> bytes:
    now_us = time.time_ns() // 1000
    if len(values) == 1:
        return batch.encode_one(None, values[0], (), now_us, False)
    return batch.encode_values(values, now_us)


def main() -> None:
    role, task = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Task)
    run(publish(task) if role == "publish" else subscribe(task))


if __name__ == "__main__":
    main()
