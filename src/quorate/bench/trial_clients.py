"""The clients of a trial of validated topics: a producer of which there are three, and a consumer.

They use what any program uses: `submit`, one event at a time, with the default batching, on each
topic from a task of its own, so that no topic waits for another; and `poll_batches`, of which every
value is looked at. Parent and child talk in lines (`quorate.bench.processes`), in this order:

    producer    says "ready" once it may publish on every topic; hears which window of time to
                measure, publishes until it hears "stop", and says what has receipts
    consumer    says "ready" once its subscriptions are in force; hears which window to measure;
                hears how many events there are to receive; says what arrived
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import msgspec

from quorate.bench.clients import DRAIN_SECONDS_MAX, Window
from quorate.bench.latencies import Latencies, summarise
from quorate.bench.numbered import Numbered, Order, first_number, pack_number, topic_of
from quorate.bench.processes import Parent
from quorate.client import Consumer, Producer, Receipt
from quorate.client.queue import Arrival
from quorate.core.ids import TopicId, topic_id
from quorate.protocol.machine import Entry
from quorate.runtime.loop import run

# As long as librdkafka waits for a batch to fill, unless it is told otherwise.
LINGER_MS = 5.0
# A producer's tasks take turns after so many events.
TURN_EVENTS = 100
CONSUMER = "bob"


class TrialTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a client knows of its trial."""

    # The directory of a cluster, or the address of a broker.
    place: str
    run: str
    topics: list[str]
    validated: list[str]
    # Whether clients choose which topics they validate; otherwise it is as contracts say.
    chooses: bool = False
    event_bytes: int
    # Which of the producers this one is, and who.
    producer: int = 0
    identity: str = ""
    # How many replicas large batches go to, if it is not f + 1.
    stores: int | None = None


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Events of the window, by what their topic is."""

    validated: int = 0
    basic: int = 0

    @property
    def all(self) -> int:
        return self.validated + self.basic


class Produced(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer fared, in events; batches are those of the whole run."""

    in_window: Counted
    submitted: int
    acknowledged: int
    batches: int
    receipt: Latencies
    # The same by what their topic is.
    signed_receipt: Latencies
    basic_receipt: Latencies


class Consumed(msgspec.Struct, frozen=True, kw_only=True):
    """What the consumer got, in events. `wrong` counts batches with a value that is not genuine.

    As in the thesis, its throughput is what it got from the beginning of the window until it had
    everything, over the time that this took: what it is behind with when the window ends counts.
    """

    counted: Counted
    seconds: float
    taken: int
    doubled: int
    gaps: int
    wrong: int
    batches: int
    latencies: Latencies


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

    def counted(self, window: Window) -> Counted:
        within = [each for each in self._seen if window.began_ns <= each[0] < window.ended_ns]
        return Counted(
            validated=sum(events for _, is_validated, events in within if is_validated),
            basic=sum(events for _, is_validated, events in within if not is_validated),
        )


# Producing


class TopicProducer:
    """Publishes on one topic, event by event, as fast as the producer takes them."""

    def __init__(self, producer: Producer, task: TrialTask, topic: str, meter: Meter) -> None:
        self.submitted = 0
        self.receipts_ns: list[int] = []
        self._producer, self._topic, self._meter = producer, topic, meter
        self.is_validated = topic in task.validated
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


async def produce(task: TrialTask) -> None:
    parent, meter, stopped = await Parent.connect(), Meter(), asyncio.Event()
    async with Producer(
        task.place, task.identity, linger_ms=LINGER_MS, stores=task.stores
    ) as producer:
        if task.chooses:
            await producer.update_topology(task.validated)
        for topic in task.topics:
            await producer.register(topic)
        topics = [TopicProducer(producer, task, topic, meter) for topic in task.topics]
        parent.say("ready")
        window = msgspec.convert(await parent.hear(), Window)
        publishing = [asyncio.create_task(each.publish(stopped)) for each in topics]
        await parent.hear()
        stopped.set()
        await asyncio.gather(*publishing)
        await producer.flush()
        signed_ns = [ns for each in topics if each.is_validated for ns in each.receipts_ns]
        basic_ns = [ns for each in topics if not each.is_validated for ns in each.receipts_ns]
        found = Produced(
            in_window=meter.counted(window),
            submitted=sum(each.submitted for each in topics),
            acknowledged=meter.events,
            batches=meter.batches,
            receipt=summarise(signed_ns + basic_ns),
            signed_receipt=summarise(signed_ns),
            basic_receipt=summarise(basic_ns),
        )
        parent.say(msgspec.to_builtins(found))
        await parent.hear()


# Consuming


class Tally:
    """Everything that reaches the consumer, checked value by value."""

    def __init__(self, task: TrialTask) -> None:
        self.order = Order()
        self.meter = Meter()
        self.news = asyncio.Event()
        self.wrong = 0
        self.ages_ns: list[tuple[int, int]] = []
        self._values = Numbered(task.event_bytes, task.run)
        self._topics = task.topics
        self._is_validated = [topic in task.validated for topic in task.topics]

    def add(self, now_ns: int, topic: str, values: Sequence[bytes], age_ns: int) -> None:
        """A batch arrived, that was so old."""
        numbers = self._values.numbers_of(values)
        at = self._topics.index(topic)
        if numbers is None or any(topic_of(number) != at for number in (numbers[0], numbers[-1])):
            self.wrong += 1
            return
        self.order.take(numbers)
        self.meter.add(now_ns, self._is_validated[at], len(numbers))
        self.ages_ns.append((now_ns, age_ns))

    def consumed(self, window: Window) -> Consumed:
        ages_ns = [
            age_ns for at_ns, age_ns in self.ages_ns if window.began_ns <= at_ns < window.ended_ns
        ]
        whole = Window(window.began_ns, max(window.ended_ns, self.meter.last_ns + 1))
        return Consumed(
            counted=self.meter.counted(whole),
            seconds=whole.seconds,
            taken=self.order.taken,
            doubled=self.order.doubled,
            gaps=self.order.gaps,
            wrong=self.wrong,
            batches=self.meter.batches,
            latencies=summarise(ages_ns),
        )


async def consume(task: TrialTask) -> None:
    parent = await Parent.connect()
    async with Consumer(task.place, CONSUMER) as consumer:
        if task.chooses:
            await consumer.update_topology(task.validated)
        consumer.subscribe(task.topics)
        await consumer.subscribed()
        tally = Tally(task)
        reading = asyncio.create_task(_read_into(tally, consumer, task.topics))
        parent.say("ready")
        window = msgspec.convert(await parent.hear(), Window)
        await drain(tally, await parent.hear() or 0)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        parent.say(msgspec.to_builtins(tally.consumed(window)))


async def _read_into(tally: Tally, consumer: Consumer, topics: list[str]) -> None:
    names = {topic_id(topic): topic for topic in topics}
    while True:
        arrived = await consumer.poll_batches()
        now_ns, now_us = time.monotonic_ns(), time.time_ns() // 1000
        for arrival, opened in arrived:
            age_ns = 1000 * (now_us - opened.oldest_us)
            tally.add(now_ns, names[_topic(arrival)], opened.values(), age_ns)
        tally.news.set()


def _topic(arrival: Arrival) -> TopicId:
    return arrival.partition.topic if isinstance(arrival, Entry) else arrival.stream.topic


async def drain(tally: Tally, expected: int) -> None:
    """Wait for what has a receipt, as long as there is still something coming."""
    while tally.order.taken < expected:
        tally.news.clear()
        try:
            await asyncio.wait_for(tally.news.wait(), DRAIN_SECONDS_MAX)
        except TimeoutError:
            return


def main() -> None:
    role, task = sys.argv[1], msgspec.json.decode(sys.argv[2], type=TrialTask)
    run(produce(task) if role == "publish" else consume(task))


if __name__ == "__main__":
    main()
