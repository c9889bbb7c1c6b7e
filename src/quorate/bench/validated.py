"""Running trials of validated topics: a cluster or a broker, three producers, and a consumer.

The order is: pipe, cluster up, clients ready, warm-up, window, drain, cluster down, pipe, as in
`broadcast.py`. A broker of Kafka stays for the whole run, because a Java machine needs a while to
get fast; it has nothing to do while something else is measured. All topics are synced to disk
before they are acknowledged, but for Kafka's, which writes and lets the system sync.
"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Self

import msgspec

from quorate.bench import kafka_clients
from quorate.bench.broadcast import ANSWER_SECONDS_MAX, Timing, Yardstick
from quorate.bench.clients import Window, frame_bytes
from quorate.bench.clusters import free_port, look, made, running
from quorate.bench.kafka import running_brokers
from quorate.bench.pipe import PipeRate
from quorate.bench.processes import Worker, started
from quorate.bench.trial_clients import CONSUMER, Consumed, Produced, TrialTask
from quorate.bench.trial_rows import TrialRow, failed_row, merged, row_of
from quorate.bench.trials import KAFKA, PRODUCERS, REPLICAS, WHOLE, Trial
from quorate.client import Admin
from quorate.client.producer import BATCH_BYTES, BATCH_EVENTS
from quorate.core.errors import QuorateError
from quorate.runtime.local import OPERATOR

BROKER_HEAP_MB = 1024
# A broker that has just started is made warm by a trial that does not count.
BROKER_WARM_UP_S = 5.0
_QUORATE_CLIENTS, _KAFKA_CLIENTS = "quorate.bench.trial_clients", "quorate.bench.kafka_clients"


async def run_trials(
    plan: Sequence[Trial],
    timing: Timing,
    *,
    repeat: int = 1,
    tell: Callable[[Trial], None] = lambda _: None,
) -> list[TrialRow]:
    """Run every trial so many times, in rounds, so that all see the same weather."""
    yardstick = Yardstick(timing.pipe_s)
    rounds: list[list[TrialRow]] = []
    with Broker() as broker:
        for _ in range(repeat):
            rows = []
            for trial in plan:
                tell(trial)
                rows.append(await _attempt(trial, timing, yardstick, broker))
            rounds.append(rows)
    return [merged(runs) for runs in zip(*rounds, strict=True)]


def batch_events(event_bytes: int) -> int:
    """How many events fill a batch."""
    return min(BATCH_EVENTS, max(1, BATCH_BYTES // event_bytes))


class Broker:
    """One broker of Kafka, from when it is first asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bootstrap = ""
        self._pid: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def processor_s(self) -> float:
        import psutil

        spent = psutil.Process(self._pid).cpu_times()
        return float(spent.user + spent.system)

    async def bootstrap(self) -> tuple[str, bool]:
        """Where it is, and whether it has just been started."""
        is_new = not self._bootstrap
        if is_new:
            await asyncio.to_thread(self._start)
        return self._bootstrap, is_new

    def _start(self) -> None:
        directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="quorate-bench-"))
        (broker,) = self._stack.enter_context(
            running_brokers(Path(directory), [free_port(2)], heap_mb=BROKER_HEAP_MB)
        )
        self._bootstrap, self._pid = broker.bootstrap, broker.pid


class _Found(msgspec.Struct, frozen=True):
    """What the parts of one run said, and the processor time that each spent."""

    window: Window
    produced: list[Produced]
    consumed: Consumed
    processor_s: dict[str, float]


async def _attempt(trial: Trial, timing: Timing, yardstick: Yardstick, broker: Broker) -> TrialRow:
    """A benchmark of an hour does not end because one trial fails: its row says why."""
    frame = frame_bytes(batch_events(trial.event_bytes), trial.event_bytes)
    try:
        before = await yardstick.before(frame)
        if trial.system == KAFKA:
            found = await _with_kafka(trial, timing, broker)
        else:
            found = await _with_cluster(trial, timing)
        after = await yardstick.after(frame)
    except QuorateError as error:
        return failed_row(trial, str(error))
    pipe = PipeRate.median_of([before, after])
    return row_of(trial, found.window, found.produced, found.consumed, pipe, found.processor_s)


async def _with_cluster(trial: Trial, timing: Timing) -> _Found:
    names = [f"producer-{number}" for number in range(PRODUCERS)]
    local = made(
        replicas=REPLICAS,
        clients=[*names, CONSUMER],
        link_security="mac",
        topics=trial.contracts(),
    )
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(running(local))
        admin = await stack.enter_async_context(Admin(launcher.directory, OPERATOR))
        task = TrialTask(
            place=str(launcher.directory),
            run=secrets.token_hex(8),
            topics=trial.topics,
            validated=trial.validated_topics,
            event_bytes=trial.event_bytes,
            stores=REPLICAS if trial.system == WHOLE else None,
        )
        before = await _processor_s(admin)
        found = await _run(_QUORATE_CLIENTS, task, names, timing)
        after = await _processor_s(admin)
    servers = {name: after[name] - spent for name, spent in before.items() if name in after}
    return msgspec.structs.replace(found, processor_s={**found.processor_s, **servers})


async def _with_kafka(trial: Trial, timing: Timing, broker: Broker) -> _Found:
    bootstrap, is_new = await broker.bootstrap()
    if is_new:
        warm = Timing(warm_up_s=0, window_s=BROKER_WARM_UP_S, pipe_s=0)
        await _through_broker(trial, warm, bootstrap)
    before_s = broker.processor_s
    found = await _through_broker(trial, timing, bootstrap)
    spent = {**found.processor_s, "broker": broker.processor_s - before_s}
    return msgspec.structs.replace(found, processor_s=spent)


async def _through_broker(trial: Trial, timing: Timing, bootstrap: str) -> _Found:
    run = secrets.token_hex(8)
    topics = [f"{topic}-{run}" for topic in trial.topics]
    await asyncio.to_thread(kafka_clients.make_topics, bootstrap, topics)
    task = TrialTask(
        place=bootstrap, run=run, topics=topics, validated=[], event_bytes=trial.event_bytes
    )
    try:
        return await _run(_KAFKA_CLIENTS, task, [""] * PRODUCERS, timing)
    finally:
        await asyncio.to_thread(kafka_clients.remove_topics, bootstrap, topics)


async def _run(module: str, task: TrialTask, identities: list[str], timing: Timing) -> _Found:
    """Start the clients, warm up, let the window pass, and hear what they found."""
    async with AsyncExitStack() as stack:
        consumer = await started(stack, module, "subscribe", task)
        producers: list[Worker] = []
        for number, identity in enumerate(identities):
            own = msgspec.structs.replace(task, producer=number, identity=identity)
            producers.append(await started(stack, module, "publish", own))
        for worker in (consumer, *producers):
            await worker.hear(ANSWER_SECONDS_MAX)
        began_ns = time.monotonic_ns() + int(timing.warm_up_s * 1e9)
        window = Window(began_ns, began_ns + int(timing.window_s * 1e9))
        for worker in (consumer, *producers):
            worker.say(msgspec.to_builtins(window))
        await asyncio.sleep(timing.warm_up_s + timing.window_s)
        for producer in producers:
            producer.say("stop")
        produced = [
            msgspec.convert(await producer.hear(ANSWER_SECONDS_MAX), Produced)
            for producer in producers
        ]
        consumer.say(sum(each.acknowledged for each in produced))
        consumed = msgspec.convert(await consumer.hear(ANSWER_SECONDS_MAX), Consumed)
    spent = {f"producer {at}": each.processor_s for at, each in enumerate(produced)}
    return _Found(window, produced, consumed, {**spent, "consumer": consumed.processor_s})


async def _processor_s(admin: Admin) -> dict[str, float]:
    return {name: standing.processor_s for name, standing in (await look(admin)).items()}
