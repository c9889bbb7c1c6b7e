"""The clients beside Spark: one fills a topic, one waits for alerts, sites look for scanners.

The values that fill a topic are random and all different, so that no format has an advantage by
what it compresses. Whoever waits for alerts publishes too, a few events each second, and half of
them become alerts: both ends are in one process, and one clock times them. So are all sites, each
a client of its own: one publishes the packets of handshakes that it sees
(`pipeline/data/sites.py`) on its topic when they are due, and follows the blacklist.

Parent and child talk in lines (`quorate.bench.processes`): the filler says how many batches have a
receipt, the second one what it `Heard`; the sites say "here" when every site has said something,
hear when to begin, and say what was `Listed`.
"""

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from quorate.bench.latencies import Latencies, summarise
from quorate.bench.processes import BenchError, Parent, play
from quorate.bench.spark_jobs import ALERT_KEY, ALERT_PREFIX, READER
from quorate.bench.values import Values
from quorate.bench.workload import PUBLISHER, meanwhile, until
from quorate.client import Consumer, Producer, Receipt
from quorate.core import batch
from quorate.pipeline.data.found import Found
from quorate.pipeline.data.sites import HARD, Traffic

IN_FLIGHT = 64
RECEIPT_SECONDS_MAX = 30.0
# Queries have many things to start when the first events come.
FIRST_ALERT_SECONDS_MAX = 60.0
LAST_ALERT_SECONDS_MAX = 15.0
LAST_SITE_SECONDS_MAX = 30.0
LINGER_MS = 20


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


class SitesTask(msgspec.Struct, frozen=True, kw_only=True):
    """How many scan the sites, and for how long."""

    cluster: str
    blacklist: str
    scanners: int
    seconds: float
    seed: int = 1


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Who was found, and how long it took from the moment on that makes a scanner of somebody
    until all sites knew."""

    packets: int
    scanners: int
    found: int
    wrong: int
    precision: float
    recall: float
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
        self.wrong = 0
        # By the number of an event.
        self.took_ns: dict[int, int] = {}
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
    await until(lambda: bool(alerts.took_ns), alerts.news, FIRST_ALERT_SECONDS_MAX)
    if not alerts.took_ns:
        raise BenchError(f"no alert came within {FIRST_ALERT_SECONDS_MAX:g} s")
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


async def look_for_scanners(parent: Parent, task: SitesTask) -> None:
    setting = replace(HARD, scanners=task.scanners)
    found, news = Found(setting.sites), asyncio.Event()
    async with AsyncExitStack() as stack:
        producers = {}
        for site in setting.sites:
            producers[site] = await stack.enter_async_context(
                Producer(task.cluster, site, linger_ms=LINGER_MS)
            )
            consumer = await stack.enter_async_context(Consumer(task.cluster, site))
            consumer.subscribe([task.blacklist])
            await consumer.subscribed()
            await stack.enter_async_context(meanwhile(_follow(site, consumer, found, news)))
            await producers[site].send(site, b"no packet, but something to begin with")
        parent.say("here")
        if await parent.hear() is None:
            return
        traffic = Traffic(setting, seed=task.seed, start_us=_now_us(), duration_s=task.seconds)
        found.truth = {name: at.published_us / 1e6 for name, at in traffic.crossings.items()}
        packets = 0
        for packet in traffic:
            await asyncio.sleep(max(0.0, (packet.published_us - _now_us()) / 1e6))
            await producers[packet.site].submit(
                packet.site, packet.value, key=packet.key, timestamp_us=packet.time_us
            )
            packets += 1
        await until(lambda: found.recall >= 1, news, LAST_SITE_SECONDS_MAX)
        listed = Listed(
            packets=packets,
            scanners=len(found.truth),
            found=len(found.known),
            wrong=len(found.told.keys() - found.truth.keys()),
            precision=found.precision,
            recall=found.recall,
            latencies=summarise([round(found.after_s(name) * 1e9) for name in found.known]),
        )
        parent.say(listed)
        await parent.hear()


async def _follow(site: str, consumer: Consumer, found: Found, news: asyncio.Event) -> None:
    async for record in consumer:
        found.on_told(site, str(msgspec.json.decode(record.value)["source"]))
        news.set()


def _now_us() -> int:
    return time.time_ns() // 1000


if __name__ == "__main__":
    tasks = {"fill": FillTask, "alert": AlertTask, "sites": SitesTask}
    play(tasks[sys.argv[1]], fill=fill, alert=watch_alerts, sites=look_for_scanners)
