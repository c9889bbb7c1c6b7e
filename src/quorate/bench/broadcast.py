"""Running experiments: a cluster, two clients, a fault, and the raw pipe before and after.

The order is: pipe, cluster up, clients ready, fault, warm-up, window, drain, cluster down, pipe.
The pipe never runs while a cluster does, and a pipe between two experiments with frames of the
same size serves both.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from quorate.bench.clusters import memory_mb_max, running_cluster, suffering
from quorate.bench.experiments import CRASH, ONE_IN_FLIGHT, Experiment
from quorate.bench.pipe import PipeRate, measure_rate, measure_round_trip_ms
from quorate.bench.processes import ready
from quorate.bench.processor import processor_s, spent_since
from quorate.bench.rows import Row, beside, merged, setting, with_costs
from quorate.bench.trials import Trial
from quorate.bench.workload import Published, Received, Task, Window, frame_bytes
from quorate.core.errors import QuorateError
from quorate.runtime.launcher import Launcher

# Two crashes and recoveries.
CRASH_SECONDS_MIN = 6.0
ANSWER_SECONDS_MAX = 60.0
WORKLOAD = "quorate.bench.workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long each part of an experiment takes."""

    warm_up_s: float
    window_s: float
    pipe_s: float

    @staticmethod
    def of(window_s: float) -> "Timing":
        return Timing(
            warm_up_s=max(0.3, min(1.0, window_s / 3)),
            window_s=window_s,
            pipe_s=max(0.6, min(1.5, window_s / 3)),
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What the parts of one run said."""

    window: Window
    published: Published
    received: Received
    memory_mb_max: float
    # Of all replicas and clients together, within the window.
    processor_s: float


_Planned = TypeVar("_Planned", Experiment, Trial)
_Found = TypeVar("_Found")
_Row = TypeVar("_Row")


async def run_all(
    plan: Sequence[Experiment],
    timing: Timing,
    *,
    repeat: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Run every experiment `repeat` times; the row of a failed one has the reason."""
    yardstick = Yardstick(timing.pipe_s)

    async def attempt(experiment: Experiment) -> Row:
        try:
            return await measured(experiment, yardstick, lambda: _run(experiment, timing))
        except QuorateError as error:
            return Row(**setting(experiment), problem=str(error))

    rounds = await in_rounds(plan, repeat, tell, attempt)
    return [merged(runs) for runs in zip(*map(with_costs, rounds), strict=True)]


async def in_rounds(
    plan: Sequence[_Planned],
    repeat: int,
    tell: Callable[[str], None],
    attempt: Callable[[_Planned], Awaitable[_Row]],
) -> list[list[_Row]]:
    """Everything once, and everything again, so that all see the same weather."""
    rounds: list[list[_Row]] = [[] for _ in range(repeat)]
    for rows in rounds:
        for each in plan:
            tell(each.title)
            rows.append(await attempt(each))
    return rounds


PIPE_SAMPLES = 3
PIPE_SECONDS_MIN = 0.3


class Yardstick:
    """The raw pipe at the frame sizes of a run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last: PipeRate | None = None
        self._best: dict[int, float] = {}

    async def around(
        self, frame_bytes: int, run: Callable[[], Awaitable[_Found]]
    ) -> tuple[_Found, PipeRate]:
        """What a run found, and the pipe before and after it."""
        before = self._last
        # It serves as long as nothing but the end of an experiment came in between.
        if before is None or before.frame_bytes != frame_bytes:
            before = await self._measured(frame_bytes)
        found = await run()
        return found, PipeRate.median_of([before, await self._measured(frame_bytes)])

    async def _measured(self, frame_bytes: int) -> PipeRate:
        """The median of a few pipes, each of fresh processes: single ones differ by a factor."""
        part_s = max(PIPE_SECONDS_MIN, self.seconds / PIPE_SAMPLES)
        rates = [await measure_rate(frame_bytes, part_s) for _ in range(PIPE_SAMPLES)]
        self._last = PipeRate.median_of(rates)
        return self._last

    async def best_frames_per_s(self, frame_bytes: int) -> float:
        """The fastest pipe that we know how to write: once per frame size is enough."""
        if frame_bytes not in self._best:
            rate = await measure_rate(frame_bytes, self.seconds, "coalesced")
            self._best[frame_bytes] = rate.frames_per_s
        return self._best[frame_bytes]


async def measured(
    experiment: Experiment, yardstick: Yardstick, run: Callable[[], Awaitable[Found]]
) -> Row:
    """What a run found, and the raw pipe before and after it."""
    frame = frame_bytes(experiment.events_per_batch, experiment.event_bytes)
    best = await yardstick.best_frames_per_s(frame)
    round_trip_ms = None
    if experiment.name == ONE_IN_FLIGHT:
        round_trip_ms = await measure_round_trip_ms(frame, yardstick.seconds)
    found, pipe = await yardstick.around(frame, run)
    published, received, count = found.published, found.received, experiment.events_per_batch
    events_per_s, latencies = received.events_in_window / found.window.seconds, received.latencies
    rates = beside(pipe, events_per_s, pipe.frame_bytes / count)
    if round_trip_ms:
        rates["ratio_to_pipe"] = None
    return Row(
        **setting(experiment),
        **rates,
        best_pipe_frames_per_s=best,
        pipe_round_trip_ms=round_trip_ms,
        p50_round_trips=latencies.p50_ms / round_trip_ms if round_trip_ms else None,
        seconds=found.window.seconds,
        **latencies.figures,
        latency_quantiles_ms=latencies.quantiles_ms,
        receipt_p50_ms=published.receipt.p50_ms,
        memory_mb_max=found.memory_mb_max,
        processor_us_per_event=1e6 * found.processor_s / max(1, received.events_in_window),
        published=published.receipts * count,
        unacknowledged=published.failures * count,
        delivered=received.batches * count,
        lost=max(0, published.receipts - received.batches) * count,
        forged=received.forged * count,
        duplicated=received.duplicated * count,
        spread=(events_per_s, events_per_s),
    )


async def _run(experiment: Experiment, timing: Timing) -> Found:
    """Warm up, let the window pass, and hear what came of everything."""
    window_s = timing.window_s
    if experiment.fault == CRASH:
        window_s = max(window_s, CRASH_SECONDS_MIN)
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(running_cluster(experiment))
        task = task_of(experiment, launcher)
        roles = ("subscribe", task), ("publish", task)
        subscriber, publisher = await ready(stack, WORKLOAD, *roles)
        async with suffering(experiment, launcher):
            began_ns = time.monotonic_ns() + int(timing.warm_up_s * 1e9)
            window = Window(began_ns, began_ns + int(window_s * 1e9))
            subscriber.say(window)
            publisher.say("go")
            await asyncio.sleep(timing.warm_up_s)
            before_s = processor_s()
            await asyncio.sleep((window.ended_ns - time.monotonic_ns()) / 1e9)
            spent_s = sum(spent_since(before_s).values())
            publisher.say("stop")
        published: Published = await publisher.hear(ANSWER_SECONDS_MAX, Published)
        subscriber.say(published.receipts)
        received: Received = await subscriber.hear(ANSWER_SECONDS_MAX, Received)
        memory_mb = await memory_mb_max(launcher)
    return Found(window, published, received, memory_mb, spent_s)


def task_of(experiment: Experiment, launcher: Launcher, **options: Any) -> Task:
    """What the clients of an experiment are told."""
    return Task(
        cluster=str(launcher.directory),
        run=secrets.token_hex(8),
        topics=list(launcher.cluster.topics),
        events_per_batch=experiment.events_per_batch,
        event_bytes=experiment.event_bytes,
        in_flight=experiment.in_flight,
        publishers=experiment.publishers,
        **options,
    )
