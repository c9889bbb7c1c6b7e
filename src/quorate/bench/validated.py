"""Running trials of validated topics: a cluster or a broker, three producers, and a consumer.

The order is: pipe, cluster up, clients ready, warm-up, window, drain, cluster down, pipe, as in
`broadcast.py`. Brokers of Kafka stay for the whole run, because a Java machine needs a while to get
fast: each of them first carries the trial of plain Kafka for a few seconds, alone, whether it is
going to be measured itself or to be a store, and then both have a trial of their own that does not
count. They have nothing to do while something else is measured. All topics are synced to disk
before they are acknowledged, but those of Kafka, which writes and lets the system sync.
"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median

import msgspec

from quorate.bench import kafka_clients
from quorate.bench.broadcast import ANSWER_SECONDS_MAX, Timing, Yardstick, in_rounds
from quorate.bench.clusters import made, pids_of, running
from quorate.bench.kafka import KafkaBroker
from quorate.bench.kafka import running as running_brokers
from quorate.bench.latencies import Latencies
from quorate.bench.pipe import PipeRate
from quorate.bench.processes import ready
from quorate.bench.processor import processor_s, spent_since
from quorate.bench.rows import TrialRow, beside, merged, setting_of_trial
from quorate.bench.trials import KAFKA, KAFKA_STORES, PRODUCERS, QUORATE, REPLICAS, WHOLE, Trial
from quorate.bench.workload import READER, Consumed, Produced, Task, Window, frame_bytes
from quorate.client.producer import BATCH_BYTES, BATCH_EVENTS
from quorate.core.errors import QuorateError
from quorate.core.stores import KafkaStore
from quorate.runtime.ports import free_base_port

BROKER_HEAP_MB = 1024
# How long trials are that make brokers warm and do not count.
BROKER_WARM_UP_S = 5.0
_QUORATE_CLIENTS, _KAFKA_CLIENTS = "quorate.bench.workload", "quorate.bench.kafka_clients"


async def run_trials(
    plan: Sequence[Trial],
    timing: Timing,
    *,
    repeat: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> list[TrialRow]:
    """Run every trial `repeat` times; the row of a failed one has the reason."""
    yardstick = Yardstick(timing.pipe_s)

    async def attempt(trial: Trial) -> TrialRow:
        events = min(BATCH_EVENTS, max(1, BATCH_BYTES // trial.event_bytes))
        frame = frame_bytes(events, trial.event_bytes)
        try:
            found, pipe = await yardstick.around(frame, lambda: brokers.carry(trial, timing))
        except QuorateError as error:
            return TrialRow(**setting_of_trial(trial), problem=str(error))
        return row_of(trial, found, pipe)

    with ExitStack() as stack:
        brokers = Brokers(stack)
        rounds = await in_rounds(plan, repeat, tell, attempt)
    return [merged(runs) for runs in zip(*rounds, strict=True)]


class Brokers:
    """Kafka clusters of one broker each, from when they are first asked for."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: list[KafkaBroker] = []
        # What they have carried already.
        self._carried: set[str] = set()

    async def carry(self, trial: Trial, timing: Timing) -> "Found":
        """Run a trial with as many of them as it needs, all of them warm."""
        warming = Timing(warm_up_s=0, window_s=BROKER_WARM_UP_S, pipe_s=0)
        needed = 1 if trial.system == KAFKA else REPLICAS if trial.store == KAFKA_STORES else 0
        if needed > len(self._running):
            started = await asyncio.to_thread(self._start, needed - len(self._running))
            for broker in started:
                await _once(Trial(system=KAFKA), warming, [broker])
            self._running += started
        used = self._running[:needed]
        if used and trial.part not in self._carried:
            self._carried.add(trial.part)
            await _once(trial, warming, used)
        return await _once(trial, timing, used)

    def _start(self, count: int) -> list[KafkaBroker]:
        prefix = "quorate-bench-"
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        first = free_base_port()
        brokers = [
            KafkaBroker(directory / str(port), port, port + 1, BROKER_HEAP_MB)
            for port in range(first, first + 2 * count, 2)
        ]
        self._stack.enter_context(running_brokers(brokers))
        return brokers


class Found(msgspec.Struct, frozen=True):
    """What the parts of one run said, and the processor time that each spent."""

    window: Window
    produced: list[Produced]
    consumed: Consumed
    processor_s: dict[str, float]


async def _once(trial: Trial, timing: Timing, brokers: Sequence[KafkaBroker]) -> Found:
    if trial.system == KAFKA:
        return await _through_broker(trial, timing, brokers[0])
    return await _through_cluster(trial, timing, brokers)


async def _through_cluster(trial: Trial, timing: Timing, stores: Sequence[KafkaBroker]) -> Found:
    names, run = [f"producer-{number}" for number in range(PRODUCERS)], secrets.token_hex(8)
    kafkas = [KafkaStore(bootstrap=broker.bootstrap, topic_prefix=f"{run}.") for broker in stores]
    local = made(
        replicas=REPLICAS, clients=[*names, READER], topics=trial.contracts(), kafkas=kafkas
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, _empty, kafkas)
        launcher = await stack.enter_async_context(running(local))
        task = Task(
            cluster=str(launcher.directory),
            run=run,
            topics=trial.topics,
            validated=trial.validated_topics,
            chooses=trial.system == QUORATE,
            event_bytes=trial.event_bytes,
            stores=REPLICAS if trial.system == WHOLE else None,
        )
        servers = {**pids_of(launcher), **_pids_of(stores)}
        return await _run(_QUORATE_CLIENTS, task, names, timing, servers)


def _empty(kafkas: Sequence[KafkaStore]) -> None:
    """What stores of this run have been given goes: the next trial is to find idle disks."""
    for kafka in kafkas:
        kafka_clients.remove_topics(kafka.bootstrap, kafka.topic_prefix)


async def _through_broker(trial: Trial, timing: Timing, broker: KafkaBroker) -> Found:
    bootstrap, run = broker.bootstrap, secrets.token_hex(8)
    topics = [f"{run}-{topic}" for topic in trial.topics]
    await asyncio.to_thread(kafka_clients.make_topics, bootstrap, topics)
    task = Task(cluster=bootstrap, run=run, topics=topics, event_bytes=trial.event_bytes)
    try:
        return await _run(_KAFKA_CLIENTS, task, [""] * PRODUCERS, timing, _pids_of([broker]))
    finally:
        await asyncio.to_thread(kafka_clients.remove_topics, bootstrap, run)


def _pids_of(brokers: Sequence[KafkaBroker]) -> dict[str, int]:
    return {f"broker {at}": each.pid for at, each in enumerate(brokers) if each.pid is not None}


async def _run(
    module: str, task: Task, identities: list[str], timing: Timing, servers: dict[str, int]
) -> Found:
    """Start the clients, warm up, let the window pass, and hear what they found."""
    async with AsyncExitStack() as stack:
        own = [
            msgspec.structs.replace(task, producer=number, identity=identity)
            for number, identity in enumerate(identities)
        ]
        roles = ("consume", task), *(("produce", each) for each in own)
        consumer, *producers = await ready(stack, module, *roles)
        before_s, began_ns = processor_s(), time.monotonic_ns() + int(timing.warm_up_s * 1e9)
        window = Window(began_ns, began_ns + int(timing.window_s * 1e9))
        for worker in (consumer, *producers):
            worker.say(window)
        await asyncio.sleep(timing.warm_up_s + timing.window_s)
        for producer in producers:
            producer.say("stop")
        produced: list[Produced] = [
            await producer.hear(ANSWER_SECONDS_MAX, Produced) for producer in producers
        ]
        consumer.say(sum(each.acknowledged for each in produced))
        consumed: Consumed = await consumer.hear(ANSWER_SECONDS_MAX, Consumed)
        spent_s = spent_since(before_s)
    pids = {f"producer {at}": each.pid for at, each in enumerate(producers)}
    pids |= {"consumer": consumer.pid, **servers}
    return Found(window, produced, consumed, {name: spent_s[pid] for name, pid in pids.items()})


def row_of(trial: Trial, found: Found, pipe: PipeRate) -> TrialRow:
    """What the clients of one run said, beside the pipe of the same run."""
    produced, consumed, seconds = found.produced, found.consumed, found.window.seconds
    acknowledged = sum(each.acknowledged for each in produced)
    batches = sum(each.batches for each in produced)
    produced_per_s = sum(each.validated + each.basic for each in produced) / seconds
    events_per_s = (consumed.validated + consumed.basic) / consumed.seconds
    theirs = beside(pipe, produced_per_s, trial.event_bytes)
    spent_us = {name: 1e6 * s / max(1, acknowledged) for name, s in found.processor_s.items()}
    return TrialRow(
        **setting_of_trial(trial),
        **beside(pipe, events_per_s, trial.event_bytes),
        **consumed.latencies.figures,
        events_per_batch=acknowledged / batches if batches else None,
        seconds=seconds,
        produced_per_s=produced_per_s,
        produced_mb_per_s=theirs["mb_per_s"],
        produced_ratio_to_pipe=theirs["ratio_to_pipe"],
        receipt_p50_ms=median(each.receipt.p50_ms for each in produced),
        signed_receipt_p50_ms=_p50_ms([each.signed_receipt for each in produced]),
        basic_receipt_p50_ms=_p50_ms([each.basic_receipt for each in produced]),
        basic_per_s=consumed.basic / consumed.seconds,
        basic_produced_per_s=sum(each.basic for each in produced) / seconds,
        processor_us_per_event=sum(spent_us.values()),
        processor_us_by_process=spent_us,
        published=acknowledged,
        unacknowledged=sum(each.submitted for each in produced) - acknowledged,
        delivered=consumed.taken,
        lost=max(0, acknowledged - consumed.taken) + consumed.gaps,
        forged=consumed.wrong,
        duplicated=consumed.doubled,
        spread=(events_per_s, events_per_s),
        produced_spread=(produced_per_s, produced_per_s),
    )


def _p50_ms(receipts: Sequence[Latencies]) -> float | None:
    """The median of the producers that have such receipts, if any has."""
    known = [each.p50_ms for each in receipts if each.quantiles_ms]
    return median(known) if known else None
