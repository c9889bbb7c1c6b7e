"""A log grows: what becomes of the memory of the replicas, and of the time to start one?

Publishers append as fast as receipts come in, in small batches, since what a replica remembers and
replays is counted in batches rather than in bytes. Once a second all replicas say how much memory
they take. The time is cut into legs; after each one the publishers rest, one replica is killed
(SIGKILL, so that it leaves no last checkpoint) and started again, and we look how long it takes
until it listens and until it has caught up. That replica is the same each time: the memory of the
others shows the whole run. A start with an empty log comes first: it shows what every start takes.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from quorate.bench import report
from quorate.bench.broadcast import ANSWER_SECONDS_MAX, WORKLOAD, Yardstick, task_of
from quorate.bench.clusters import look, running_cluster, until_at
from quorate.bench.experiments import Experiment
from quorate.bench.latencies import summarise
from quorate.bench.pipe import PipeRate
from quorate.bench.processes import Worker, ready
from quorate.bench.report import Sample, memory_table, verdict
from quorate.bench.rows import Row, beside, setting
from quorate.bench.workload import Published, frame_bytes
from quorate.client import Admin
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import OPERATOR

SECONDS = 60.0
SECONDS_QUICK = 6.0
LEGS = 4
LEGS_QUICK = 2

PIPE_SECONDS = 1.0
SAMPLE_EVERY_S = 1.0
RECEIPT_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start after a kill: how long the log was, and how long it took."""

    batches: int
    listening_s: float
    caught_up_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Everything that one run found. `seconds` are those in which the log grew."""

    experiment: Experiment
    restarted: str
    seconds: float
    samples: list[Sample]
    starts: list[Start]
    published: Published
    pipe: PipeRate

    @property
    def batches(self) -> int:
        return self.samples[-1].count

    @property
    def is_sound(self) -> bool:
        return not self.published.failures and self.batches >= self.published.receipts

    def memory_mb_at(self, share: float) -> float:
        """The largest replica at about this share of the log, of those that ran all the time.

        The median of a few looks, since memory goes up and down with what is on its way.
        """
        near = sorted(self.samples, key=lambda each: abs(each.count - share * self.batches))[:5]
        witnesses = self.samples[0].memory_mb.keys() - {self.restarted}
        return median(max(each.memory_mb.get(name, 0.0) for name in witnesses) for each in near)

    @property
    def mb_per_million_batches(self) -> float:
        """How the memory grew over the second half of the log."""
        grown = self.memory_mb_at(1.0) - self.memory_mb_at(0.5)
        return grown / max(self.batches / 2, 1) * 1e6

    def json(self) -> dict[str, Any]:
        """The keys that all benchmarks have, and what only this one knows."""
        events = self.experiment.events_per_batch
        events_per_s = self.published.receipts * events / self.seconds
        row = Row(
            **setting(self.experiment),
            **beside(self.pipe, events_per_s, self.pipe.frame_bytes / events),
            seconds=self.seconds,
            receipt_p50_ms=self.published.receipt.p50_ms,
            memory_mb_max=max(max(each.memory_mb.values()) for each in self.samples),
            published=self.published.receipts * events,
            unacknowledged=self.published.failures * events,
        )
        return {
            **row.json(),
            "batches": self.batches,
            "restarted": self.restarted,
            "memory_mb_at_half": self.memory_mb_at(0.5),
            "memory_mb_at_end": self.memory_mb_at(1.0),
            "mb_per_million_batches": self.mb_per_million_batches,
            "starts": [asdict(start) for start in self.starts],
            "memory_mb": [each.json("batches") for each in self.samples],
        }


async def grow(
    experiment: Experiment, seconds: float, legs: int, tell: Callable[[str], None] = lambda _: None
) -> Growth:
    """Append for so long, in so many legs, with a start of one replica before and after each."""

    async def grown() -> _Watch:
        async with AsyncExitStack() as stack:
            launcher = await stack.enter_async_context(running_cluster(experiment))
            admin = await stack.enter_async_context(Admin(launcher.directory, OPERATOR))
            task = task_of(experiment, launcher, receipt_s_max=RECEIPT_SECONDS_MAX)
            (publisher,) = await ready(stack, WORKLOAD, ("publish", task))
            last = launcher.held[-1]  # It is not the first leader.
            watch = _Watch(experiment, launcher, admin, publisher, last, tell)
            await watch.start_again()
            for _ in range(legs):
                await watch.leg(seconds / legs)
                await watch.start_again()
        return watch

    frame = frame_bytes(experiment.events_per_batch, experiment.event_bytes)
    watch, pipe = await Yardstick(PIPE_SECONDS).around(frame, grown)
    return Growth(
        experiment=experiment,
        restarted=watch.restarted,
        seconds=watch.grown_s,
        samples=watch.samples,
        starts=watch.starts,
        published=watch.published,
        pipe=pipe,
    )


def table_of(found: Sequence[Growth]) -> Group:
    """For each run, the memory of each replica and the starts, over the length of the log."""
    parts: list[RenderableType] = []
    for growth in found:
        title = f"{growth.experiment.title}: memory, while the log grows"
        starts = report.table(
            f"{growth.restarted} is killed and started again", _COLUMNS, growth.starts
        )
        memory = memory_table(title, "batches", growth.samples)
        parts += [memory, starts, _verdict(growth), Text()]
    return report.on_this_machine(*parts)


_COLUMNS: report.Columns[Start] = (
    ("batches in the log", lambda start: f"{start.batches:,}"),
    ("listens after s", lambda start: f"{start.listening_s:.2f}"),
    ("caught up after s", lambda start: f"{start.caught_up_s:.2f}"),
)


def _verdict(growth: Growth) -> Text:
    batches_per_s, pipe = growth.published.receipts / growth.seconds, growth.pipe.frames_per_s
    return verdict(
        f"{batches_per_s:,.0f} batches/s, {batches_per_s / pipe:.3f} of the raw pipe's "
        f"{pipe:,.0f} frames/s; {growth.memory_mb_at(0.5):.0f} MB at half the log, "
        f"{growth.memory_mb_at(1.0):.0f} MB at its end ({growth.mb_per_million_batches:+.1f} MB "
        f"per million batches); {growth.published.failures} batches without a receipt",
        is_sound=growth.is_sound,
    )


@dataclass(slots=True)
class _Watch:
    """One run as it goes on."""

    experiment: Experiment
    launcher: Launcher
    admin: Admin
    publisher: Worker
    # Who is killed.
    restarted: str
    tell: Callable[[str], None]
    samples: list[Sample] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    grown_s: float = 0.0
    published: Published = field(default_factory=lambda: Published(0, 0, summarise([])))

    async def leg(self, seconds: float) -> None:
        """Let the log grow for so long, and look at the replicas meanwhile."""
        self.tell(f"{self.experiment.title}: appending for {seconds:g} s")
        self.publisher.say("go")
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < seconds:
            await self._note(self.grown_s + passed_s)
            await asyncio.sleep(min(SAMPLE_EVERY_S, seconds - passed_s))
        self.publisher.say("stop")
        self.published = await self.publisher.hear(
            RECEIPT_SECONDS_MAX + ANSWER_SECONDS_MAX, Published
        )
        self.grown_s += time.monotonic() - began_s
        await self._note(self.grown_s)

    async def start_again(self) -> None:
        """Kill the one replica, and take the time of its start."""
        name, standings = self.restarted, await look(self.admin)
        wanted = max(standing.order.slot for standing in standings.values())
        batches = max(standing.batches for standing in standings.values())
        self.tell(f"{self.experiment.title}: {name} starts with {batches:,} batches")
        await asyncio.to_thread(self.launcher.stop, name, kill=True)
        began_s = time.monotonic()
        self.launcher.start(name)
        await asyncio.to_thread(self.launcher.wait_until_up, name)
        listening_s = time.monotonic() - began_s
        await until_at(self.admin, name, wanted)
        self.starts.append(Start(batches, listening_s, time.monotonic() - began_s))

    async def _note(self, seconds: float) -> None:
        standings = await look(self.admin)
        batches = max(standing.batches for standing in standings.values())
        sizes = {name: standing.memory_mb for name, standing in standings.items()}
        self.samples.append(Sample(seconds, batches, sizes))
