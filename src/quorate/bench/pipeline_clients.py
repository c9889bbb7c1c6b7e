"""The clients beside Spark, each a process of its own: one fills a topic, one waits for alerts.

The values that fill a topic are random and all different, so that no format has an advantage by
what it compresses. Whoever waits for alerts publishes too, a few events each second, and half of
them become alerts: both ends are in one process, and one clock times them.

Parent and child talk in lines (`quorate.bench.processes`): the filler says how many batches have a
receipt, and the other one what it `Heard`.
"""

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from quorate.bench.latencies import Latencies, summarise
from quorate.bench.processes import BenchError, Parent, play
from quorate.bench.spark_jobs import ALERT_KEY, ALERT_PREFIX, READER
from quorate.bench.values import Values
from quorate.bench.workload import PUBLISHER, meanwhile, until
from quorate.client import Consumer, Producer, Receipt
from quorate.core import batch

IN_FLIGHT = 64
RECEIPT_SECONDS_MAX = 30.0
# Queries have many things to start when the first events come.
FIRST_ALERT_SECONDS_MAX = 60.0
LAST_ALERT_SECONDS_MAX = 15.0


class FillTask(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be in a topic."""

    cluster: str
    topic: str
    partitions: int
    batches: int
    events_per_batch: int
    event_bytes: int


class AlertTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are published how often, and for how long they are timed."""

    cluster: str
    topic: str
    alerts: str
    event_bytes: int
    events_per_s: float
    warm_up_s: float
    seconds: float


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """The alerts of the time that was measured: how long each took since it was published."""

    published: int
    arrived: int
    wrong: int
    latencies: Latencies


async def fill(parent: Parent, task: FillTask) -> None:
    made = random.Random(task.topic)
    size, count = task.event_bytes, task.events_per_batch
    pending: deque[asyncio.Future[Receipt]] = deque()
    async with Producer(task.cluster, PUBLISHER, timeout_s=RECEIPT_SECONDS_MAX) as producer:
        for number in range(task.batches):
            if len(pending) >= IN_FLIGHT:
                await pending.popleft()
            body = made.randbytes(size * count)
            values = [body[at : at + size] for at in range(0, len(body), size)]
            payload = batch.encode_values(values, time.time_ns() // 1000)
            partition = number % task.partitions
            pending.append(
                await producer.submit_payload(task.topic, payload, count, partition=partition)
            )
        while pending:
            await pending.popleft()
    parent.say(task.batches)


class _Alerts:
    """Publishes and listens, and keeps what took how long."""

    def __init__(self, task: AlertTask) -> None:
        self.published = self.wrong = 0
        # By the number of an event.
        self.took_ns: dict[int, int] = {}
        self.first = asyncio.Event()
        self.news = asyncio.Event()
        self._task = task
        self._values = Values(task.event_bytes, task.topic)

    async def publish(self, producer: Producer, numbers: Iterator[int], seconds: float) -> int:
        """At a steady rate for so long; returns how many of these are alerts."""
        step_s = 1 / self._task.events_per_s
        began_s, alerts = time.monotonic(), 0
        for at in range(round(seconds * self._task.events_per_s)):
            await asyncio.sleep(began_s + at * step_s - time.monotonic())
            number = next(numbers)
            is_alert = number % 2 == 0
            value = self._values.make(number, time.monotonic_ns())
            key = ALERT_KEY if is_alert else b"calm"
            await producer.submit(self._task.topic, value, key=key, urgent=True)
            alerts += is_alert
        return alerts

    async def listen(self, consumer: Consumer) -> None:
        while True:
            record = await consumer.poll()
            now_ns = time.monotonic_ns()
            if record is None:
                continue
            value = record.value
            found = self._values.read(value[len(ALERT_PREFIX) :], 1)
            number, stamp_ns = found or (1, 0)
            is_known = value.startswith(ALERT_PREFIX) and number not in self.took_ns
            if number % 2 or not is_known:
                self.wrong += 1
                continue
            self.took_ns[number] = now_ns - stamp_ns
            self.first.set()
            self.news.set()


async def watch_alerts(parent: Parent, task: AlertTask) -> None:
    alerts = _Alerts(task)
    async with (
        Producer(task.cluster, PUBLISHER) as producer,
        Consumer(task.cluster, READER) as consumer,
    ):
        consumer.subscribe([task.alerts])
        await consumer.subscribed()
        async with meanwhile(alerts.listen(consumer)):
            parent.say(await _timed(task, alerts, producer))
        await parent.hear()


async def _timed(task: AlertTask, alerts: _Alerts, producer: Producer) -> Heard:
    """Until queries are warm nothing counts; what is under way then does not count either."""
    numbers = iter(range(1_000_000_000))
    await alerts.publish(producer, numbers, 2 / task.events_per_s)
    try:
        await asyncio.wait_for(alerts.first.wait(), FIRST_ALERT_SECONDS_MAX)
    except TimeoutError:
        raise BenchError(f"no alert came within {FIRST_ALERT_SECONDS_MAX:g} s") from None
    await alerts.publish(producer, numbers, task.warm_up_s)
    begin = next(numbers)
    published = await alerts.publish(producer, numbers, task.seconds)

    def took_ns() -> list[int]:
        return [ns for number, ns in alerts.took_ns.items() if number > begin]

    await until(lambda: len(took_ns()) >= published, alerts.news, LAST_ALERT_SECONDS_MAX)
    took = took_ns()
    return Heard(
        published=published, arrived=len(took), wrong=alerts.wrong, latencies=summarise(took)
    )


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        play(FillTask, fill=fill)
    else:
        play(AlertTask, alert=watch_alerts)
