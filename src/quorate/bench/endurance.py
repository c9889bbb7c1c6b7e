"""Ten million events, and what they leave behind in the memory of the replicas.

Four replicas serve a vote topic and a reliable topic. One publisher sends batches of 1000 on
both, and between them single events, each a batch of its own; one subscriber takes everything, and
says every second what it has. A third client never completes a broadcast: it sends large batches
to one replica at a time, in a number of sessions, past every limit that a correct publisher keeps,
until its input ends. Every replica must stay below `MEMORY_MB_MAX`, whatever the number of events.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
from rich.console import Group

from quorate.bench import report, workload
from quorate.bench.clusters import look, made, running
from quorate.bench.experiments import EVENT_BYTES
from quorate.bench.latencies import Latencies, summarise
from quorate.bench.pipe import PipeRate, measure_rate
from quorate.bench.processes import BenchError, Parent, play, ready
from quorate.bench.promises import Notes
from quorate.bench.report import Sample, memory_table, verdict
from quorate.bench.rows import Row, beside
from quorate.bench.workload import PUBLISHER, READER, Publisher, Tally, Task, Window
from quorate.client import Admin, Consumer, Producer
from quorate.core import batch
from quorate.core.contract import Contract
from quorate.core.ids import Lane, topic_id
from quorate.core.messages import Publish
from quorate.runtime.local import OPERATOR

EVENTS = 10_000_000
EVENTS_QUICK = 1_000_000
MEMORY_MB_MAX = 300.0
FAULT = "a publisher that completes nothing"

EVENTS_PER_BATCH = 1000
SINGLES_PER_BATCH = 20
EVENTS_PER_ROUND = EVENTS_PER_BATCH + SINGLES_PER_BATCH
BATCHES_PER_ROUND = 1 + SINGLES_PER_BATCH
TORMENTOR = "mallory"
CLIENTS = (PUBLISHER, READER, TORMENTOR)
TOPICS = {"vote": {"broadcast": "vote"}, "reliable": {"broadcast": "reliable"}}
REPLICAS = 4

PENDING_MAX = 1024
RECEIPT_SECONDS_MAX = 60.0
# A subscriber that hears nothing new for so long will not hear the rest either.
SILENCE_SECONDS_MAX = 60.0
SAY_EVERY_S = 1.0
PIPE_SECONDS = 0.5
ALWAYS = Window(0, 2**63)

# What the tormentor sends per turn, and how many of its sessions there are.
TORMENT_SESSIONS = 8
TORMENT_BYTES = 20_000
TORMENT_RUN = 32
TORMENT_EVERY_S = 0.05


class RoundsTask(Task, frozen=True, kw_only=True):
    """What all clients know."""

    rounds: int

    @property
    def events(self) -> int:
        return self.rounds * EVENTS_PER_ROUND * len(TOPICS)


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What the subscriber has so far, in events by topic; latencies when it has everything."""

    delivered: dict[str, int]
    forged: int
    duplicated: int
    latencies: Latencies
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

    def row(self, topic: str) -> dict[str, Any]:
        """One for each topic, with the keys that all benchmarks have."""
        events_per_s = self.received.delivered[topic] / self.seconds
        row = Row(
            experiment="endurance",
            protocol=topic,
            replicas=REPLICAS,
            topics=len(TOPICS),
            events_per_batch=EVENTS_PER_BATCH,
            event_bytes=EVENT_BYTES,
            fault=FAULT,
            **beside(self.pipe, events_per_s, self.pipe.frame_bytes / EVENTS_PER_BATCH),
            **self.received.latencies.figures,
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
    contracts = {name: Contract.parse(name, table) for name, table in TOPICS.items()}
    pipe = await measure_rate(workload.frame_bytes(EVENTS_PER_BATCH, EVENT_BYTES), PIPE_SECONDS)
    async with AsyncExitStack() as stack:
        local = made(replicas=REPLICAS, clients=CLIENTS, topics=contracts)
        launcher = await stack.enter_async_context(running(local))
        admin = await stack.enter_async_context(Admin(launcher.directory, OPERATOR))
        task = RoundsTask(
            cluster=str(launcher.directory),
            run=secrets.token_hex(8),
            topics=[*TOPICS],
            event_bytes=EVENT_BYTES,
            events_per_batch=0,
            receipt_s_max=RECEIPT_SECONDS_MAX,
            rounds=max(1, round(events / EVENTS_PER_ROUND / len(TOPICS))),
        )
        roles = ("subscribe", task), ("publish", task), ("torment", task)
        workers = await ready(stack, __name__, *roles)
        subscriber, publisher, tormentor = workers
        publisher.say("go")
        tormentor.say("go")
        began_s, samples = time.monotonic(), list[Sample]()
        while True:
            received: Received = await subscriber.hear(SILENCE_SECONDS_MAX, Received)
            seconds = time.monotonic() - began_s
            sizes = {name: each.memory_mb for name, each in (await look(admin)).items()}
            samples.append(Sample(seconds, received.events, sizes))
            tell(samples[-1], task.events)
            if received.is_last:
                break
        receipts: int = await publisher.hear(RECEIPT_SECONDS_MAX)
    missing = task.rounds * BATCHES_PER_ROUND * len(TOPICS) - receipts
    return Endured(task.events, seconds, samples, received, missing, pipe)


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


# The clients


class RoundPublisher(Publisher):
    """Publishes rounds: one large batch and some single events on each topic."""

    async def publish_rounds(self, rounds: int) -> None:
        for number in range(rounds):
            counter = number * BATCHES_PER_ROUND
            for topic in TOPICS:
                await self.submit(topic, counter, EVENTS_PER_BATCH)
                for single in range(1, BATCHES_PER_ROUND):
                    await self.submit(topic, counter + single, 1)
            await asyncio.sleep(0)
            await self.leave_pending(PENDING_MAX)
        await self.leave_pending(0)


async def publish(parent: Parent, task: RoundsTask) -> None:
    async with workload.batch_producer(task) as producer:
        publisher = RoundPublisher(producer, task, Notes())
        parent.say("ready")
        await parent.hear()
        await publisher.publish_rounds(task.rounds)
        parent.say(len(publisher.receipts_ns))
        await parent.hear()


async def subscribe(parent: Parent, task: RoundsTask) -> None:
    tally, silent_s, before = Tally(task), 0.0, 0

    def is_complete() -> bool:
        return tally.events.total() >= task.events

    async with Consumer(task.cluster, READER) as consumer:
        consumer.subscribe(TOPICS)
        await consumer.subscribed()
        parent.say("ready")
        async with workload.meanwhile(tally.read_from(consumer)):
            while silent_s < SILENCE_SECONDS_MAX:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SAY_EVERY_S):
                        await workload.until(is_complete, tally.news)
                received = Received(
                    delivered={topic: tally.events[topic_id(topic)] for topic in TOPICS},
                    forged=tally.forged,
                    duplicated=tally.duplicated,
                    latencies=tally.found(ALWAYS).latencies if is_complete() else summarise([]),
                    is_last=is_complete(),
                )
                parent.say(received)
                if received.is_last:
                    return
                silent_s = silent_s + SAY_EVERY_S if received.events == before else 0.0
                before = received.events
    raise BenchError(f"nothing new for {SILENCE_SECONDS_MAX:g} s: {received.delivered}")


async def torment(parent: Parent, task: RoundsTask) -> None:
    """Publish to one replica at a time, so that no broadcast is ever complete."""
    own = msgspec.structs.replace(task, identity=TORMENTOR)
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(workload.batch_producer(own))
            for _ in range(TORMENT_SESSIONS)
        ]
        parent.say("ready")
        await parent.hear()
        async with workload.meanwhile(_send_for_ever(sessions)):
            await parent.hear()


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


if __name__ == "__main__":
    play(RoundsTask, publish=publish, subscribe=subscribe, torment=torment)
