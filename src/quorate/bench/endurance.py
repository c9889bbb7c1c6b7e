"""Ten million events, and what they leave behind in the memory of the replicas.

Four replicas serve a vote topic and a reliable topic. One publisher sends batches of 1000 on
both, and between them single events, each a batch of its own; one subscriber takes everything.
Among the clients is a third one that never completes a broadcast: it sends large batches to one
replica at a time, in a number of sessions, past every limit that a correct publisher keeps.

Every replica must stay below `MEMORY_MB_MAX`, whatever the number of events. All clients are
processes of their own, which talk to their parent in lines (`quorate.bench.processes`):

    publisher    says "ready"; hears "go"; says how many batches have a receipt when all have
    subscriber   says "ready"; then every second, and at the end, what it has received
    tormentor    says "ready"; hears "go"; sends until its input ends
"""

import asyncio
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
from rich.console import Group

from quorate.bench import report
from quorate.bench.clients import Progress, frame_bytes
from quorate.bench.clusters import running
from quorate.bench.experiments import EVENT_BYTES
from quorate.bench.latencies import summarise
from quorate.bench.pipe import PipeRate, measure_rate
from quorate.bench.processes import BenchError, Parent, Worker, started
from quorate.bench.report import Sample, memory_table, verdict
from quorate.bench.rows import Row, beside
from quorate.bench.values import Values
from quorate.client import Admin, Consumer, Producer, Receipt
from quorate.core import batch
from quorate.core.contract import Contract
from quorate.core.errors import QuorateError
from quorate.core.ids import Lane, topic_id
from quorate.core.messages import Publish
from quorate.protocol.machine import Delivery
from quorate.runtime.local import OPERATOR, LocalCluster, make_local_cluster
from quorate.runtime.loop import run
from quorate.runtime.ports import free_base_port

EVENTS = 10_000_000
EVENTS_QUICK = 1_000_000
MEMORY_MB_MAX = 300.0
FAULT = "a publisher that completes nothing"

EVENTS_PER_BATCH = 1000
SINGLES_PER_BATCH = 20
EVENTS_PER_ROUND = EVENTS_PER_BATCH + SINGLES_PER_BATCH
TOPICS = {"vote": {"broadcast": "vote"}, "reliable": {"broadcast": "reliable"}}
REPLICAS = 4

PENDING_MAX = 1024
RECEIPT_SECONDS_MAX = 60.0
# A subscriber that hears nothing new for so long will not hear the rest either.
SILENCE_SECONDS_MAX = 60.0
SAY_EVERY_S = 1.0
PIPE_SECONDS = 0.5
# A latency of every batch of ten million events would be remembered for nothing.
LATENCIES_KEPT = 100_000

# What the tormentor sends per turn, and how many of its sessions there are.
TORMENT_SESSIONS = 8
TORMENT_BYTES = 20_000
TORMENT_RUN = 32
TORMENT_EVERY_S = 0.05


class Task(msgspec.Struct, frozen=True):
    """What all clients know."""

    cluster: str
    run: str
    rounds: int


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What the subscriber has so far, in events by topic."""

    delivered: dict[str, int]
    forged: int
    duplicated: int
    skipped: int
    p50_ms: float
    p99_ms: float
    is_last: bool

    @property
    def events(self) -> int:
        return sum(self.delivered.values())


@dataclass(frozen=True, slots=True)
class Endured:
    """Everything that one run found."""

    events: int
    seconds: float
    samples: list[Sample]
    received: Received
    unacknowledged: int
    pipe: PipeRate

    @property
    def memory_mb_max(self) -> float:
        return max((max(sample.memory_mb.values()) for sample in self.samples), default=0.0)

    @property
    def lost(self) -> int:
        return self.events - self.received.events

    @property
    def is_sound(self) -> bool:
        wrong = self.lost or self.received.forged or self.received.duplicated
        return not (wrong or self.unacknowledged) and self.memory_mb_max < MEMORY_MB_MAX

    def rows(self) -> list[dict[str, Any]]:
        """One row per topic, with the keys that all benchmarks have."""
        return [self._row(topic) for topic in TOPICS]

    def _row(self, topic: str) -> dict[str, Any]:
        row = Row(
            experiment="endurance",
            protocol=topic,
            replicas=REPLICAS,
            topics=len(TOPICS),
            events_per_batch=EVENTS_PER_BATCH,
            event_bytes=EVENT_BYTES,
            fault=FAULT,
            **beside(self.pipe, self.received.delivered[topic] / self.seconds, EVENTS_PER_BATCH),
            p50_ms=self.received.p50_ms,
            p99_ms=self.received.p99_ms,
            published=self.events // len(TOPICS),
            delivered=self.received.delivered[topic],
            lost=self.lost,
            forged=self.received.forged,
            duplicated=self.received.duplicated,
            unacknowledged=self.unacknowledged,
            seconds=self.seconds,
            memory_mb_max=self.memory_mb_max,
        )
        return {
            **row.json(),
            "single_events": self.events // EVENTS_PER_ROUND // len(TOPICS) * SINGLES_PER_BATCH,
            "memory_mb": [each.json("events") for each in self.samples],
        }


async def endure(events: int, tell: Callable[[Sample, int], None] = lambda *_: None) -> Endured:
    """Publish about so many events, and look at the replicas once a second."""
    rounds = max(1, round(events / EVENTS_PER_ROUND / len(TOPICS)))
    frame = frame_bytes(EVENTS_PER_BATCH, EVENT_BYTES)
    pipe = await measure_rate(frame, PIPE_SECONDS)
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(running(_local_cluster()))
        admin = await stack.enter_async_context(Admin(launcher.directory, OPERATOR))
        task = Task(str(launcher.directory), secrets.token_hex(8), rounds)
        workers = [
            await started(stack, __name__, role, task)
            for role in ("subscribe", "publish", "torment")
        ]
        for worker in workers:
            await worker.hear(RECEIPT_SECONDS_MAX)
        return await _observed(workers, admin, rounds, pipe, tell)


def table_of(found: Endured) -> Group:
    """The memory of each replica over time, and what came of the events."""
    title = f"{found.events:,} events, and {FAULT}"
    table = memory_table(title, "events", found.samples)
    received = found.received
    words = (
        f"{found.events / found.seconds:,.0f} events/s; at most {found.memory_mb_max:.0f} MB, "
        f"where {MEMORY_MB_MAX:.0f} are allowed; {found.lost} lost, {received.forged} forged, "
        f"{received.duplicated} twice, {found.unacknowledged} batches without a receipt"
    )
    return report.on_this_machine(table, verdict(words, is_sound=found.is_sound))


async def _observed(
    workers: list[Worker],
    admin: Admin,
    rounds: int,
    pipe: PipeRate,
    tell: Callable[[Sample, int], None],
) -> Endured:
    subscriber, publisher, tormentor = workers
    expected = rounds * EVENTS_PER_ROUND * len(TOPICS)
    publisher.say("go")
    tormentor.say("go")
    began_s, samples = time.monotonic(), list[Sample]()
    while True:
        received = msgspec.convert(await subscriber.hear(SILENCE_SECONDS_MAX), Received)
        seconds = time.monotonic() - began_s
        sample = Sample(seconds, received.events, await _memory_mb(admin))
        samples.append(sample)
        tell(sample, expected)
        if received.is_last:
            break
    receipts: int = await publisher.hear(RECEIPT_SECONDS_MAX)
    missing = rounds * (1 + SINGLES_PER_BATCH) * len(TOPICS) - receipts
    return Endured(expected, seconds, samples, received, missing, pipe)


async def _memory_mb(admin: Admin) -> dict[str, float]:
    reports = await admin.status()
    sizes = {name: report.get("memory_mb") for name, report in reports.items()}
    return {name: size for name, size in sizes.items() if isinstance(size, float)}


def _local_cluster() -> LocalCluster:
    return make_local_cluster(
        replicas=REPLICAS,
        clients=("alice", "bob", "mallory"),
        link_security="mac",
        base_port=free_base_port(),
        topics={name: Contract.parse(name, table) for name, table in TOPICS.items()},
    )


# Publishing


async def publish(task: Task) -> None:
    parent = await Parent.connect()
    options: dict[str, Any] = {"batch_events": 1, "timeout_s": RECEIPT_SECONDS_MAX}
    async with Producer(task.cluster, "alice", **options) as producer:
        for topic in TOPICS:
            await producer.register(topic)
        parent.say("ready")
        await parent.hear()
        parent.say(await _publish_rounds(producer, task))
        await parent.hear()


async def _publish_rounds(producer: Producer, task: Task) -> int:
    """All rounds: one large batch and some single events on each topic. Returns the receipts."""
    values, pending, receipts = Values(EVENT_BYTES, task.run), deque[asyncio.Future[Receipt]](), 0
    for number in range(task.rounds):
        counter = number * (1 + SINGLES_PER_BATCH)
        for topic in TOPICS:
            large = [values.make(counter, time.monotonic_ns())] * EVENTS_PER_BATCH
            payload = batch.encode_values(large, time.time_ns() // 1000)
            pending.append(await producer.submit_payload(topic, payload, EVENTS_PER_BATCH))
            for single in range(1, 1 + SINGLES_PER_BATCH):
                value = values.make(counter + single, time.monotonic_ns())
                pending.append(await producer.submit(topic, value))
        await asyncio.sleep(0)
        while len(pending) > PENDING_MAX:
            receipts += await _has_receipt(pending.popleft())
    while pending:
        receipts += await _has_receipt(pending.popleft())
    return receipts


async def _has_receipt(future: "asyncio.Future[Receipt]") -> bool:
    with suppress(QuorateError):
        await future
        return True
    return False


# Subscribing


class Tally:
    """Everything that reaches the subscriber."""

    def __init__(self, task: Task) -> None:
        self.delivered = dict.fromkeys(TOPICS, 0)
        self.forged = 0
        self.duplicated = 0
        self.expected = task.rounds * EVENTS_PER_ROUND * len(TOPICS)
        self._names = {topic_id(topic): topic for topic in TOPICS}
        self._values = Values(EVENT_BYTES, task.run)
        self._progress = {topic: Progress() for topic in TOPICS}
        self._latencies_ns: deque[int] = deque(maxlen=LATENCIES_KEPT)

    @property
    def is_complete(self) -> bool:
        return sum(self.delivered.values()) >= self.expected

    async def read_from(self, consumer: Consumer) -> None:
        while not self.is_complete:
            deliveries = await consumer.poll_batches()
            now_ns = time.monotonic_ns()
            for delivery, opened in deliveries:
                assert isinstance(delivery, Delivery)
                topic = self._names[delivery.stream.topic]
                found = self._values.read(delivery.payload, opened.count)
                if found is None or not self._progress[topic].is_in_place(
                    found[0], delivery.sequence
                ):
                    self.forged += 1
                elif not self._progress[topic].is_new(found[0]):
                    self.duplicated += 1
                else:
                    self.delivered[topic] += opened.count
                    self._latencies_ns.append(now_ns - found[1])

    def received(self, consumer: Consumer) -> Received:
        latencies = summarise(list(self._latencies_ns)) if self.is_complete else summarise([])
        return Received(
            delivered=self.delivered,
            forged=self.forged,
            duplicated=self.duplicated,
            skipped=consumer.counters["skipped"],
            p50_ms=latencies.p50_ms,
            p99_ms=latencies.p99_ms,
            is_last=self.is_complete,
        )


async def subscribe(task: Task) -> None:
    parent = await Parent.connect()
    async with Consumer(task.cluster, "bob") as consumer:
        consumer.subscribe(TOPICS)
        await consumer.subscribed()
        parent.say("ready")
        tally = Tally(task)
        reading = asyncio.create_task(tally.read_from(consumer))
        silent_s, before = 0.0, 0
        while not reading.done() and silent_s < SILENCE_SECONDS_MAX:
            await asyncio.wait([reading], timeout=SAY_EVERY_S)
            received = tally.received(consumer)
            parent.say(msgspec.to_builtins(received))
            silent_s = silent_s + SAY_EVERY_S if received.events == before else 0.0
            before = received.events
        if not reading.done():
            reading.cancel()
            raise BenchError(f"nothing new for {SILENCE_SECONDS_MAX:g} s: {tally.delivered}")


# Tormenting


async def torment(task: Task) -> None:
    """Publish to one replica at a time, so that no broadcast is ever complete."""
    parent = await Parent.connect()
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(Producer(task.cluster, "mallory"))
            for _ in range(TORMENT_SESSIONS)
        ]
        for session in sessions:
            for topic in TOPICS:
                await session.register(topic)
        parent.say("ready")
        await parent.hear()
        sending = asyncio.create_task(_send_for_ever(sessions))
        await parent.hear()
        sending.cancel()


async def _send_for_ever(sessions: list[Producer]) -> None:
    payloads = [batch.encode_values([bytes(TORMENT_BYTES)], 0)] * TORMENT_RUN
    for turn in count():
        # It claims that all before is settled, so that no window is ever full.
        first = 1 + turn * TORMENT_RUN
        session = sessions[turn % len(sessions)]
        for topic in TOPICS:
            message = Publish(topic_id(topic), Lane.EVENTS, False, first, first, payloads)
            members = session.cluster.placement(topic)
            session.driver.send(members[turn // len(sessions) % len(members)], message)
        await asyncio.sleep(TORMENT_EVERY_S)


def main() -> None:
    role, task = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Task)
    work = {"publish": publish, "subscribe": subscribe, "torment": torment}[role]
    run(work(task))


if __name__ == "__main__":
    main()
