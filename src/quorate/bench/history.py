"""Reading history: how fast a consumer gets through a log that is there already.

A topic is filled with batches, and then a consumer in a process of its own reads all of it from the
beginning, while nothing else happens. The raw pipe with frames of the same size runs before and
after each reading. The processor time that each process spent on a megabyte stands beside it, and
so does what the pipe's receiver spent.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group

from quorate.bench import report
from quorate.bench.broadcast import ANSWER_SECONDS_MAX, WORKLOAD, Yardstick, task_of
from quorate.bench.clusters import look, pids_of, running_cluster
from quorate.bench.experiments import Experiment
from quorate.bench.latencies import Spread
from quorate.bench.pipe import PipeRate
from quorate.bench.processes import BenchError, ready
from quorate.bench.processor import processor_s, spent_since
from quorate.bench.rows import Row, beside, setting
from quorate.bench.workload import Published, Read, Task, frame_bytes
from quorate.client import Admin
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import OPERATOR

MEGABYTES = 200
MEGABYTES_QUICK = 40
READINGS = 5
READINGS_QUICK = 2
# What reading history shall reach of the pipe's megabytes per second.
RATIO_MIN = 0.5
PIPE_SECONDS = 1.0
PIPE_RECEIVER = "pipe's receiver"

FILL_SECONDS_MAX = 300.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading, the pipe around it, and the processor time of all who took part."""

    batches: int
    megabytes: float
    seconds: float
    pipe: PipeRate
    processor_s: dict[str, float]
    lost: int
    wrong: int

    @property
    def mb_per_s(self) -> float:
        return self.megabytes / self.seconds

    @property
    def ratio_to_pipe(self) -> float:
        return self.mb_per_s / self.pipe.mb_per_s

    def json(self) -> dict[str, float]:
        pipe = {"pipe_mb_per_s": self.pipe.mb_per_s}
        return {"mb_per_s": self.mb_per_s, **pipe, "ratio_to_pipe": self.ratio_to_pipe}


@dataclass(frozen=True, slots=True)
class History:
    """All readings of one log."""

    experiment: Experiment
    batches: int
    readings: list[Reading]

    @property
    def is_sound(self) -> bool:
        return not any(reading.lost or reading.wrong for reading in self.readings)

    @property
    def mb_per_s(self) -> Spread:
        return Spread.of([reading.mb_per_s for reading in self.readings])

    @property
    def ratio_to_pipe(self) -> Spread:
        return Spread.of([reading.ratio_to_pipe for reading in self.readings])

    @property
    def pipe(self) -> PipeRate:
        return PipeRate.median_of([reading.pipe for reading in self.readings])

    @property
    def processor_ms_per_mb(self) -> dict[str, float]:
        """By process, the median of all readings; and the receiving end of the pipe."""
        spent = {
            name: 1e3 * median(each.processor_s[name] / each.megabytes for each in self.readings)
            for name in self.readings[0].processor_s
        }
        return spent | {PIPE_RECEIVER: self.pipe.processor_ms_per_mb}

    @property
    def processor_us_per_event(self) -> float:
        """Of all processes together, the median of all readings."""
        return 1e6 * median(
            sum(each.processor_s.values()) / max(1, each.batches * self.experiment.events_per_batch)
            for each in self.readings
        )

    @property
    def ratio_by_processor(self) -> float:
        """What the pipe's receiver spends on a megabyte over what the busiest of ours does.

        Where nothing else runs, the busiest process decides how fast it goes, and this is the
        ratio; where others take their share of the machine, it is less moved by them.
        """
        spent = self.processor_ms_per_mb
        return spent.pop(PIPE_RECEIVER) / max(spent.values())

    def json(self) -> dict[str, Any]:
        """The keys that all benchmarks have, and what only this one knows."""
        count, rates = self.experiment.events_per_batch, self.mb_per_s
        event_bytes = self.pipe.frame_bytes / count
        row = Row(
            **setting(self.experiment),
            **beside(self.pipe, rates.middle * 1e6 / event_bytes, event_bytes)
            | {"ratio_to_pipe": self.ratio_to_pipe.middle},
            seconds=median(reading.seconds for reading in self.readings),
            processor_us_per_event=self.processor_us_per_event,
            published=self.batches * count,
            lost=sum(reading.lost for reading in self.readings) * count,
            forged=sum(reading.wrong for reading in self.readings) * count,
            runs=len(self.readings),
            spread=(rates.lowest * 1e6 / event_bytes, rates.highest * 1e6 / event_bytes),
        )
        return {
            **row.json(),
            "megabytes": self.readings[0].megabytes,
            "processor_ms_per_mb": self.processor_ms_per_mb,
            "ratio_by_processor": self.ratio_by_processor,
            "readings": [reading.json() for reading in self.readings],
        }


async def read_history(
    experiment: Experiment,
    megabytes: float,
    readings: int,
    tell: Callable[[str], None] = lambda _: None,
) -> History:
    """Fill a topic with so much, and read it so often."""
    frame = frame_bytes(experiment.events_per_batch, experiment.event_bytes)
    wanted = max(1, round(megabytes * 1e6 / frame))
    yardstick, found = Yardstick(PIPE_SECONDS), list[Reading]()
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(running_cluster(experiment))
        admin = await stack.enter_async_context(Admin(launcher.directory, OPERATOR))
        tell(f"{experiment.title}: filling {megabytes:g} MB")
        task = task_of(experiment, launcher)
        batches = await _fill(task, admin, wanted)
        for number in range(readings):
            tell(f"{experiment.title}: reading {number + 1} of {readings}")
            found.append(await _one_reading(task, batches, launcher, yardstick))
    return History(experiment, batches, found)


def table_of(found: list[History]) -> Group:
    """Our megabytes per second, the pipe's, and what a megabyte costs each process."""
    title = "A consumer reads history, with the raw pipe of the same run"
    wanted = f"(at least {RATIO_MIN:g} of it is wanted)"
    shown = report.table(f"{title} {wanted}", _COLUMNS, found, lambda each: each.is_sound)
    return report.on_this_machine(shown)


_COLUMNS: report.Columns[History] = (
    ("experiment", lambda each: each.experiment.title),
    ("MB read", lambda each: f"{each.readings[0].megabytes:,.0f}"),
    ("MB/s", lambda each: f"{each.mb_per_s.middle:,.0f}"),
    ("lowest..highest", lambda each: each.mb_per_s.range(",.0f")),
    ("pipe\nMB/s", lambda each: f"{each.pipe.mb_per_s:,.0f}"),
    ("ratio", lambda each: f"{each.ratio_to_pipe.middle:.2f}"),
    ("lowest..highest", lambda each: each.ratio_to_pipe.range(".2f")),
    ("µs/event", lambda each: f"{each.processor_us_per_event:.2f}"),
    ("processor,\nms per MB", lambda each: "\n".join(
        f"{name} {ms:.2f}" for name, ms in each.processor_ms_per_mb.items())),
    ("ratio\nof that", lambda each: f"{each.ratio_by_processor:.2f}"),
    ("lost", lambda each: str(sum(one.lost for one in each.readings))),
    ("wrong", lambda each: str(sum(one.wrong for one in each.readings))),
)  # fmt: skip


async def _fill(task: Task, admin: Admin, wanted: int) -> int:
    """Publish until the log of every replica has `wanted` batches; returns how many it has."""
    async with AsyncExitStack() as stack:
        (publisher,) = await ready(stack, WORKLOAD, ("publish", task))
        publisher.say("go")
        deadline_s = time.monotonic() + FILL_SECONDS_MAX
        await _until_all_have(admin, wanted, deadline_s)
        publisher.say("stop")
        published: Published = await publisher.hear(ANSWER_SECONDS_MAX, Published)
        if published.failures:
            raise BenchError(f"{published.failures} batches of the log to be read have no receipt")
        await _until_all_have(admin, published.receipts, deadline_s)
    return published.receipts


async def _until_all_have(admin: Admin, batches: int, deadline_s: float) -> None:
    while min(each.batches for each in (await look(admin)).values()) < batches:
        if time.monotonic() > deadline_s:
            raise BenchError(f"{batches} batches were not in the log of every replica in time")
        await asyncio.sleep(LOOK_EVERY_S)


async def _one_reading(
    task: Task, batches: int, launcher: Launcher, yardstick: Yardstick
) -> Reading:
    async def reading() -> tuple[Read, dict[str, float]]:
        async with AsyncExitStack() as stack:
            (reader,) = await ready(stack, WORKLOAD, ("read", task))
            before_s = processor_s()
            reader.say(batches)
            read: Read = await reader.hear(FILL_SECONDS_MAX, Read)
            spent_s, pids = spent_since(before_s), {"consumer": reader.pid, **pids_of(launcher)}
        return read, {name: spent_s[pid] for name, pid in pids.items()}

    frame = frame_bytes(task.events_per_batch, task.event_bytes)
    (read, spent_s), pipe = await yardstick.around(frame, reading)
    return Reading(
        batches=read.batches,
        megabytes=read.batches * frame / 1e6,
        seconds=read.seconds,
        pipe=pipe,
        processor_s=spent_s,
        lost=batches - read.batches,
        wrong=read.wrong,
    )
