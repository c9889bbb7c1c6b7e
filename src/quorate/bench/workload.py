"""The clients of experiments, each a process of its own.

They use what any program uses, `Producer` and `Consumer`. Parent and child talk in lines
(`quorate.bench.processes`); each says "ready" once it may publish, or is subscribed.

    publish      as often as it hears "go", it publishes batches made by hand until it hears
                 "stop", and says how much of all has a receipt
    produce      hears which window of time to measure, submits event by event until it hears
                 "stop", and says what has receipts
    subscribe    hears which window to measure, and how many batches there are to receive; says
                 what arrived
    consume      the same for what was submitted event by event, and is counted in events
    read         hears how many batches are in the log; reads them from the beginning, and says
                 what it found

Batches made by hand hold one value many times, which tells when it was published. Where events are
submitted one by one, with the default batching and on each topic from a task of its own, so that
no topic waits for another, every value has a number and is looked at (`values` makes both).
"""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from quorate.bench.latencies import Latencies, summarise
from quorate.bench.processes import Parent, play
from quorate.bench.promises import FOLLOWED, RECEIPTS, REREAD, Notes, Place
from quorate.bench.values import Numbered, Order, Values, first_number, pack_number, topic_of
from quorate.client import Consumer, Producer, Receipt
from quorate.client.queue import Arrival
from quorate.core import batch
from quorate.core.batch import Batch
from quorate.core.errors import QuorateError
from quorate.core.ids import NodeId, TopicId, topic_id
from quorate.protocol.machine import Entry

PUBLISHER, READER = "alice", "bob"
RECEIPT_SECONDS_MAX = 8.0
# A publisher fills its window in this many bursts, so that publisher, replicas and
# subscriber work at the same time rather than in turns.
BURSTS = 4
# After so long without anything new, what is missing is lost; who reads what is there already has
# to wait for nobody's receipts, but may have to wait for a replica.
DRAIN_SECONDS_MAX = 4.0
SILENCE_SECONDS_MAX = 30.0
# As long as librdkafka waits for a batch to fill, unless it is told otherwise.
LINGER_MS = 5.0
# A task that submits event by event lets the next one go on after this many events.
TURN_EVENTS = 100


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What clients know of their experiment."""

    # The directory of a cluster, or the address of a broker.
    cluster: str
    run: str
    topics: list[str]
    event_bytes: int
    # Of batches made by hand; 0 stands for any number.
    events_per_batch: int = 1
    in_flight: int = 1
    # The number of publishers on each topic, which share `in_flight`.
    publishers: int = 1
    receipt_s_max: float = RECEIPT_SECONDS_MAX
    # A directory for those who write down every batch.
    notes: str = ""
    # Which topics are validated; whether clients choose that, or it is as contracts say.
    validated: list[str] = []
    chooses: bool = False
    # Which of the producers this one is, and who.
    producer: int = 0
    identity: str = PUBLISHER
    # How many replicas large batches go to, if it is not f + 1.
    stores: int | None = None


class Window(msgspec.Struct, frozen=True):
    """When to measure, on the clock that all processes of a machine share."""

    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9

    def has(self, at_ns: int) -> bool:
        return self.began_ns <= at_ns < self.ended_ns


class Published(msgspec.Struct, frozen=True):
    """How the publisher fared; receipts and failures are counted in batches."""

    receipts: int
    failures: int
    receipt: Latencies


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What the subscriber got: events of the window, and batches of the whole run."""

    events_in_window: int
    latencies: Latencies
    batches: int
    forged: int
    duplicated: int


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading came to."""

    batches: int
    # Not where their only publisher put them.
    wrong: int
    seconds: float


class Produced(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer fared, in events; those of the window on validated topics and on others."""

    validated: int
    basic: int
    # Of the whole run.
    submitted: int
    acknowledged: int
    batches: int
    receipt: Latencies
    # The same by what their topic is.
    signed_receipt: Latencies
    basic_receipt: Latencies


class Consumed(msgspec.Struct, frozen=True, kw_only=True):
    """What the consumer got, in events. `wrong` counts batches with a value that is not genuine.

    As in Kabis' thesis, its throughput is what it got from the beginning of the window until it had
    everything, over the time that this took: what it is behind with when the window ends counts.
    """

    validated: int
    basic: int
    seconds: float
    taken: int
    doubled: int
    gaps: int
    wrong: int
    latencies: Latencies


def frame_bytes(events_per_batch: int, event_bytes: int) -> int:
    """The size of such a batch on the wire."""
    return len(_encode([bytes(event_bytes)] * events_per_batch))


async def until(
    is_done: Callable[[], bool], news: asyncio.Event, seconds_max: float | None = None
) -> None:
    """Wait for it, as long as there are news now and then."""
    while not is_done():
        news.clear()
        try:
            await asyncio.wait_for(news.wait(), seconds_max)
        except TimeoutError:
            return


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do this too, until what is inside is done."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# Publishing batches made by hand


class Publisher:
    """Publishes as fast as receipts come in, with at most `in_flight` batches without one."""

    def __init__(self, producer: Producer, task: Task, notes: Notes) -> None:
        self.stopped = False
        self.failures = 0
        self.receipts_ns: list[int] = []
        self._producer = producer
        self._task = task
        self._notes = notes
        self._values = Values(task.event_bytes, task.run)
        self._next = enumerate((counter, topic) for counter in count() for topic in task.topics)
        self._pending: deque[tuple[int, int, asyncio.Future[Receipt]]] = deque()

    async def publish(self) -> None:
        """Until it is stopped. Called again, it goes on where it was."""
        task = self._task
        self.stopped = False
        in_flight = max(1, task.in_flight // task.publishers)
        burst = max(1, in_flight // BURSTS)
        while not self.stopped:
            number, (counter, topic) = next(self._next)
            if len(self._pending) >= in_flight:
                await self.leave_pending(in_flight - 1)
            await self.submit(topic, counter, task.events_per_batch)
            if number % burst == 0:
                await asyncio.sleep(0)
        await self.leave_pending(0)

    async def submit(self, topic: str, counter: int, events: int) -> None:
        """Publish a batch."""
        stamp_ns = time.monotonic_ns()
        value = self._values.make(counter, stamp_ns)
        if events == 1:
            future = await self._producer.submit(topic, value)
        else:
            payload = _encode([value] * events)
            future = await self._producer.submit_payload(topic, payload, events)
        self._pending.append((counter, stamp_ns, future))

    async def leave_pending(self, most: int) -> None:
        """Wait for the oldest receipts, and take all others that are there too."""
        pending = self._pending
        while len(pending) > most:
            with suppress(QuorateError):
                await pending[0][2]
            now_ns = time.monotonic_ns()
            while pending and pending[0][2].done():
                counter, stamp_ns, future = pending.popleft()
                if future.exception() is not None:
                    self.failures += 1
                    continue
                self.receipts_ns.append(now_ns - stamp_ns)
                if self._task.notes:
                    offset = future.result().offset
                    assert offset is not None
                    self._notes.add(Place(offset, self._producer.node, counter, now_ns))


async def publish(parent: Parent, task: Task) -> None:
    notes = Notes()
    async with AsyncExitStack() as stack:
        publishers = [
            Publisher(await stack.enter_async_context(batch_producer(task)), task, notes)
            for _ in range(task.publishers)
        ]
        parent.say("ready")
        while await parent.hear() is not None:
            publishing = [asyncio.create_task(publisher.publish()) for publisher in publishers]
            await parent.hear()
            for publisher in publishers:
                publisher.stopped = True
            await asyncio.gather(*publishing)
            receipts_ns = [ns for publisher in publishers for ns in publisher.receipts_ns]
            failures = sum(publisher.failures for publisher in publishers)
            parent.say(Published(len(receipts_ns), failures, summarise(receipts_ns)))
    if task.notes:
        notes.write(Path(task.notes) / RECEIPTS)


@asynccontextmanager
async def batch_producer(task: Task) -> AsyncIterator[Producer]:
    """One that gathers no batches, and may publish on every topic."""
    options: dict[str, Any] = {"batch_events": 1, "timeout_s": task.receipt_s_max}
    async with Producer(task.cluster, task.identity, **options) as producer:
        for topic in task.topics:
            await producer.register(topic)
        yield producer


# Submitting event by event


class Meter:
    """How many events came when, on validated topics and on others."""

    def __init__(self) -> None:
        self.events = 0
        self.batches = 0
        self.last_ns = 0
        self._seen: list[tuple[int, bool, int]] = []

    def add(self, now_ns: int, is_validated: bool, events: int) -> None:
        self.events += events
        self.batches += 1
        self.last_ns = now_ns
        self._seen.append((now_ns, is_validated, events))

    def counted(self, window: Window) -> dict[str, int]:
        found = {"validated": 0, "basic": 0}
        for at_ns, is_validated, events in self._seen:
            if window.has(at_ns):
                found["validated" if is_validated else "basic"] += events
        return found


class TopicProducer:
    """Publishes on one topic, event by event, as fast as the producer takes them."""

    def __init__(self, producer: Producer, task: Task, topic: str, meter: Meter) -> None:
        self.submitted = 0
        self.receipts_ns: list[int] = []
        self.is_validated = topic in task.validated
        self._producer, self._topic, self._meter = producer, topic, meter
        self._first = first_number(task.producer, task.topics.index(topic))
        self._body = Numbered(task.event_bytes, task.run).body

    async def publish(self, stopped: asyncio.Event) -> None:
        submit, topic, body, known = self._producer.submit, self._topic, self._body, None
        for first in count(self._first, TURN_EVENTS):
            if stopped.is_set():
                return
            for number in range(first, first + TURN_EVENTS):
                future = await submit(topic, pack_number(number) + body)
                if future is not known:
                    known = future
                    self._await(future)
            self.submitted += TURN_EVENTS
            await asyncio.sleep(0)

    def _await(self, future: "asyncio.Future[Receipt]") -> None:
        """All events of a batch share their receipt."""
        began_ns = time.monotonic_ns()

        def note(done: "asyncio.Future[Receipt]") -> None:
            if done.cancelled() or done.exception() is not None:
                return
            now_ns = time.monotonic_ns()
            self.receipts_ns.append(now_ns - began_ns)
            self._meter.add(now_ns, self.is_validated, done.result().events)

        future.add_done_callback(note)


async def produce(parent: Parent, task: Task) -> None:
    meter, stopped = Meter(), asyncio.Event()
    async with Producer(
        task.cluster, task.identity, linger_ms=LINGER_MS, stores=task.stores
    ) as producer:
        if task.chooses:
            await producer.update_topology(task.validated)
        for topic in task.topics:
            await producer.register(topic)
        topics = [TopicProducer(producer, task, topic, meter) for topic in task.topics]
        parent.say("ready")
        window = await parent.hear(Window)
        publishing = [asyncio.create_task(each.publish(stopped)) for each in topics]
        await parent.hear()
        stopped.set()
        await asyncio.gather(*publishing)
        await producer.flush()
        signed_ns = [ns for each in topics if each.is_validated for ns in each.receipts_ns]
        basic_ns = [ns for each in topics if not each.is_validated for ns in each.receipts_ns]
        found = Produced(
            **meter.counted(window),
            submitted=sum(each.submitted for each in topics),
            acknowledged=meter.events,
            batches=meter.batches,
            receipt=summarise(signed_ns + basic_ns),
            signed_receipt=summarise(signed_ns),
            basic_receipt=summarise(basic_ns),
        )
        parent.say(found)
        await parent.hear()


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
    """Everything that reaches the subscriber of batches made by hand, checked and timed."""

    def __init__(self, task: Task) -> None:
        self.taken = 0
        self.forged = 0
        self.duplicated = 0
        self.news = asyncio.Event()
        self.notes = Notes()
        # How many events of each topic came.
        self.events = Counter[TopicId]()
        self._task = task
        self._values = Values(task.event_bytes, task.run)
        self._topics = {topic_id(topic) for topic in task.topics}
        # Of each publisher on each topic.
        self._progress: defaultdict[tuple[NodeId, TopicId], Progress] = defaultdict(Progress)
        # When something arrived, and how old each batch of it was.
        self._arrivals: list[tuple[int, list[int]]] = []

    async def read_from(self, consumer: Consumer) -> None:
        while True:
            deliveries = await consumer.poll_batches()
            now_ns = time.monotonic_ns()
            self.add(now_ns, deliveries)
            if self._task.notes:
                note_down(self.notes, self._values, now_ns, deliveries)
            self.news.set()

    def add(self, now_ns: int, deliveries: Iterable[tuple[Arrival, Batch]]) -> None:
        """Look at everything that arrived at one moment."""
        ages_ns: list[int] = []
        expected, read, progress_of = self._task.events_per_batch, self._values.read, self._progress
        for delivery, opened in deliveries:
            events = expected or opened.count
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
                self.events[source[1]] += events
        self.taken += len(ages_ns)
        self._arrivals.append((now_ns, ages_ns))

    def found(self, window: Window) -> Received:
        arrivals = [ages_ns for at_ns, ages_ns in self._arrivals if window.has(at_ns)]
        latencies_ns = [age_ns for ages_ns in arrivals for age_ns in ages_ns]
        return Received(
            events_in_window=len(latencies_ns) * self._task.events_per_batch,
            latencies=summarise(latencies_ns),
            batches=self.taken,
            forged=self.forged,
            duplicated=self.duplicated,
        )


class EventTally:
    """Everything that reaches the consumer of what was submitted event by event."""

    def __init__(self, task: Task) -> None:
        self.taken = 0
        self.order = Order()
        self.meter = Meter()
        self.news = asyncio.Event()
        self.wrong = 0
        self.ages_ns: list[tuple[int, int]] = []
        self._values = Numbered(task.event_bytes, task.run)
        self._topics = task.topics
        self._is_validated = [topic in task.validated for topic in task.topics]

    async def read_from(self, consumer: Consumer) -> None:
        names = {topic_id(topic): topic for topic in self._topics}
        while True:
            arrived = await consumer.poll_batches()
            now_ns, now_us = time.monotonic_ns(), time.time_ns() // 1000
            for entry, opened in arrived:
                assert isinstance(entry, Entry)
                age_ns = 1000 * (now_us - opened.oldest_us)
                self.add(now_ns, names[entry.partition.topic], opened.values(), age_ns)
            self.news.set()

    def add(self, now_ns: int, topic: str, values: Sequence[bytes], age_ns: int) -> None:
        """A batch arrived, that was so old."""
        numbers = self._values.numbers_of(values)
        at = self._topics.index(topic)
        if numbers is None or any(topic_of(number) != at for number in (numbers[0], numbers[-1])):
            self.wrong += 1
            return
        self.order.take(numbers)
        self.taken = self.order.taken
        self.meter.add(now_ns, self._is_validated[at], len(numbers))
        self.ages_ns.append((now_ns, age_ns))

    def found(self, window: Window) -> Consumed:
        whole = Window(window.began_ns, max(window.ended_ns, self.meter.last_ns + 1))
        return Consumed(
            **self.meter.counted(whole),
            seconds=whole.seconds,
            taken=self.order.taken,
            doubled=self.order.doubled,
            gaps=self.order.gaps,
            wrong=self.wrong,
            latencies=summarise([age_ns for at_ns, age_ns in self.ages_ns if window.has(at_ns)]),
        )


async def subscribe(parent: Parent, task: Task) -> None:
    tally = Tally(task)
    await _receive(parent, task, tally)
    if task.notes:
        tally.notes.write(Path(task.notes) / FOLLOWED)


async def consume(parent: Parent, task: Task) -> None:
    await _receive(parent, task, EventTally(task))


async def _receive(parent: Parent, task: Task, tally: Tally | EventTally) -> None:
    async with Consumer(task.cluster, READER) as consumer:
        if task.chooses:
            await consumer.update_topology(task.validated)
        consumer.subscribe(task.topics)
        await consumer.subscribed()
        async with meanwhile(tally.read_from(consumer)):
            parent.say("ready")
            await say_found(parent, tally)
        await parent.hear()


async def say_found(parent: Parent, tally: Tally | EventTally) -> None:
    """Wait for what has receipts, as long as there is still something coming."""
    window = await parent.hear(Window)
    expected: int = await parent.hear() or 0
    await until(lambda: tally.taken >= expected, tally.news, DRAIN_SECONDS_MAX)
    parent.say(tally.found(window))


# Reading what is there


async def read(parent: Parent, task: Task) -> None:
    values, events, notes = Values(task.event_bytes, task.run), task.events_per_batch, Notes()
    async with Consumer(task.cluster, READER) as consumer:
        parent.say("ready")
        expected: int = await parent.hear() or 0
        began_s, batches, wrong = time.perf_counter(), 0, 0
        consumer.subscribe(task.topics, start="begin")
        while batches < expected:
            arrived = await consumer.poll_batches(SILENCE_SECONDS_MAX)
            if not arrived:
                break
            for entry, opened in arrived:
                # The last value tells: the chain of hashes has covered every byte already.
                found = values.read(entry.payload, 1)
                if opened.count != events or found is None or found[0] != batches:
                    wrong += 1
                batches += 1
            if task.notes:
                note_down(notes, values, time.monotonic_ns(), arrived)
        seconds = time.perf_counter() - began_s
        if task.notes:
            notes.write(Path(task.notes) / REREAD)
        parent.say(Read(batches=batches, wrong=wrong, seconds=seconds))
        await parent.hear()


def note_down(
    notes: Notes, values: Values, now_ns: int, arrived: Iterable[tuple[Arrival, Batch]]
) -> None:
    """Write down where batches stand; what is none of ours is counted as forged elsewhere."""
    for entry, opened in arrived:
        assert isinstance(entry, Entry)
        found = values.read(entry.payload, opened.count)
        if found is not None:
            notes.add(Place(entry.offset, entry.publisher, found[0], now_ns))


def _encode(values: list[bytes]) -> bytes:
    now_us = time.time_ns() // 1000
    if len(values) == 1:
        return batch.encode_one(None, values[0], (), now_us, False)
    return batch.encode_values(values, now_us)


if __name__ == "__main__":
    play(Task, publish=publish, produce=produce, subscribe=subscribe, consume=consume, read=read)
