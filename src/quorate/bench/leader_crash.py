"""The leader is killed under load: for how long does nothing move, and is anything lost?

Two publishers append to a log topic as fast as receipts come in, and a reader follows. Again and
again the replica that leads is killed (SIGKILL) and started again a while later; the next kill
waits until it has caught up, since a cluster tolerates f faults at a time. Both ends write down
every batch (`quorate.bench.promises`). When all is over, a second reader reads the log from the
beginning, and both readings are held against the receipts.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from quorate.bench import report
from quorate.bench.broadcast import (
    ANSWER_SECONDS_MAX,
    WORKLOAD,
    Found,
    Yardstick,
    measured,
    task_of,
)
from quorate.bench.clusters import OrderStanding, look, memory_mb_max, running_cluster, until_at
from quorate.bench.experiments import Experiment
from quorate.bench.processes import BenchError, ready
from quorate.bench.processor import processor_s, spent_since
from quorate.bench.promises import FOLLOWED, RECEIPTS, REREAD, Broken, Notes, broken
from quorate.bench.rows import Row
from quorate.bench.timeline import Gap, binned, longest_gap
from quorate.bench.workload import SILENCE_SECONDS_MAX, Published, Read, Received, Task, Window
from quorate.client import Admin
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import OPERATOR

KILLS = 3
KILLS_QUICK = 1
BIN_SECONDS = 0.1
NO_GAP = Gap(0, 0)

PIPE_SECONDS = 1.0
# How long it goes well before the first kill, how long the killed one is away, and how long it
# goes well again after it has caught up.
BEFORE_SECONDS = 2.0
DOWN_SECONDS = 3.0
AFTER_SECONDS = 2.0
# A receipt may take as long as several changes of the leader.
RECEIPT_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Kill:
    """When a leader was killed, when it was started again, and when it knew what it had missed."""

    leader: str
    killed_ns: int
    started_ns: int
    caught_up_ns: int
    # What it cost: the longest times without a receipt, and without anything to read, that began
    # while the leader was gone, and without a receipt between its return and the next kill.
    gap: Gap = NO_GAP
    reader_gap: Gap = NO_GAP
    return_gap: Gap = NO_GAP

    @property
    def catching_up(self) -> Gap:
        return Gap(self.started_ns, self.caught_up_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderCrashes:
    """Everything that one experiment found. Bins are counted in events."""

    experiment: Experiment
    row: Row
    window: Window
    kills: list[Kill]
    # How often the leader changed; less often than it was killed, and something is wrong.
    changes: int
    acknowledged: list[int]
    read: list[int]
    broken: Broken

    @property
    def is_sound(self) -> bool:
        return self.row.is_sound and not any(self.broken)

    def seconds_at(self, at_ns: int) -> float:
        """A moment as seconds from the beginning."""
        return (at_ns - self.window.began_ns) / 1e9

    def json(self) -> dict[str, Any]:
        """The keys that all benchmarks have, and what only this one knows."""
        return {
            **self.row.json(),
            "broken_promises": self.broken._asdict(),
            "gap_s_max": max((each.gap.seconds for each in self.kills), default=0.0),
            "leader_changes": self.changes,
            "kills": [self._json_of(each) for each in self.kills],
            "bin_s": BIN_SECONDS,
            "acknowledged_by_bin": self.acknowledged,
            "read_by_bin": self.read,
        }

    def _json_of(self, kill: Kill) -> dict[str, Any]:
        return {
            "leader": kill.leader,
            "at_s": self.seconds_at(kill.killed_ns),
            "started_at_s": self.seconds_at(kill.started_ns),
            "caught_up_at_s": self.seconds_at(kill.caught_up_ns),
            "gap_s": kill.gap.seconds,
            "reader_gap_s": kill.reader_gap.seconds,
            "return_gap_s": kill.return_gap.seconds,
        }


async def crash_leaders(
    experiment: Experiment, kills: int, tell: Callable[[str], None] = lambda _: None
) -> LeaderCrashes:
    """Kill the leader of a cluster so often, and see what becomes of it."""
    seen: dict[str, Any] = {}

    async def run_once() -> Found:
        found, more = await _run(experiment, kills, tell)
        seen.update(more)
        return found

    row = await measured(experiment, Yardstick(PIPE_SECONDS), run_once)
    return LeaderCrashes(experiment=experiment, row=row, **seen)


def table_of(found: Sequence[LeaderCrashes]) -> Group:
    """One line for each kill."""
    title = "The leader is killed under load: the longest times without progress"
    kills = [(crashes, kill) for crashes in found for kill in crashes.kills]
    shown = report.table(title, _COLUMNS, kills, lambda each: each[0].is_sound)
    return report.on_this_machine(shown, *map(_verdict, found))


_COLUMNS: report.Columns[tuple[LeaderCrashes, Kill]] = (
    ("experiment", lambda each: each[0].experiment.title),
    ("killed", lambda each: each[1].leader),
    ("at s", lambda each: f"{each[0].seconds_at(each[1].killed_ns):.1f}"),
    ("no receipt\nfor s", lambda each: f"{each[1].gap.seconds:.2f}"),
    ("nothing to\nread for s", lambda each: f"{each[1].reader_gap.seconds:.2f}"),
    ("caught up\nin s", lambda each: f"{each[1].catching_up.seconds:.2f}"),
    ("no receipt\nthen, s", lambda each: f"{each[1].return_gap.seconds:.2f}"),
)


def _verdict(crashes: LeaderCrashes) -> Text:
    row = crashes.row
    kept = ", ".join(f"{count} {what}" for what, count in crashes.broken._asdict().items())
    return report.verdict(
        f"{crashes.experiment.title}: {row.events_per_s:,.0f} events/s over all of it, "
        f"{report.optional(row.ratio_to_pipe, '.3f')} of the raw pipe's "
        f"{row.pipe_frames_per_s:,.0f} frames/s; "
        f"of {row.published:,} events with a receipt {kept}; {row.forged} forged, "
        f"{row.unacknowledged} without a receipt; {len(crashes.kills)} kills, "
        f"{crashes.changes} changes of the leader",
        is_sound=crashes.is_sound,
    )


# The run


async def _run(
    experiment: Experiment, kills: int, tell: Callable[[str], None]
) -> tuple[Found, dict[str, Any]]:
    """What every experiment finds, and what `LeaderCrashes` has beyond that."""
    async with AsyncExitStack() as stack:
        notes = stack.enter_context(tempfile.TemporaryDirectory(prefix="quorate-bench-"))
        launcher = await stack.enter_async_context(running_cluster(experiment))
        admin = await stack.enter_async_context(Admin(launcher.directory, OPERATOR))
        task = task_of(experiment, launcher, receipt_s_max=RECEIPT_SECONDS_MAX, notes=notes)
        roles = ("subscribe", task), ("publish", task)
        subscriber, publisher = await ready(stack, WORKLOAD, *roles)
        began_ns, first, before_s = time.monotonic_ns(), await _orders(admin), processor_s()
        publisher.say("go")
        killed = await _kill_leaders(experiment, launcher, admin, kills, tell)
        window = Window(began_ns, time.monotonic_ns())
        spent_s = sum(spent_since(before_s).values())
        publisher.say("stop")
        subscriber.say(window)
        published: Published = await publisher.hear(
            RECEIPT_SECONDS_MAX + ANSWER_SECONDS_MAX, Published
        )
        subscriber.say(published.receipts)
        received: Received = await subscriber.hear(ANSWER_SECONDS_MAX, Received)
        # They write their notes when they end.
        for worker in (subscriber, publisher):
            await worker.stop(ANSWER_SECONDS_MAX)
        tell(f"{experiment.title}: reading the log from the beginning")
        await _reread(stack, task, admin)
        memory_mb, last = await memory_mb_max(launcher), await _orders(admin)
        readings = [Notes.read(Path(notes) / each) for each in (FOLLOWED, REREAD)]
        receipts = Notes.read(Path(notes) / RECEIPTS)
    receipts_ns = sorted(place.at_ns for place in receipts)
    read_ns = [place.at_ns for place in readings[0]]
    spans = window.began_ns, window.ended_ns, int(BIN_SECONDS * 1e9)
    events = task.events_per_batch
    return Found(window, published, received, memory_mb, spent_s), {
        "window": window,
        "kills": _with_gaps(killed, window.ended_ns, receipts_ns, read_ns),
        "changes": max(each.regency for each in last) - max(each.regency for each in first),
        "acknowledged": [events * count for count in binned(receipts_ns, *spans)],
        "read": [events * count for count in binned(read_ns, *spans)],
        "broken": broken(receipts, readings, events),
    }


async def _kill_leaders(
    experiment: Experiment,
    launcher: Launcher,
    admin: Admin,
    kills: int,
    tell: Callable[[str], None],
) -> list[Kill]:
    found = []
    await asyncio.sleep(BEFORE_SECONDS)
    for number in range(kills):
        said = Counter(each.leader for each in await _orders(admin))
        ((leader, _),) = said.most_common(1)
        tell(f"{experiment.title}: {leader}, kill {number + 1} of {kills}")
        killed_ns = time.monotonic_ns()
        await asyncio.to_thread(launcher.stop, leader, kill=True)
        await asyncio.sleep(DOWN_SECONDS)
        started_ns = time.monotonic_ns()
        launcher.start(leader)
        await asyncio.to_thread(launcher.wait_until_up, leader)
        # It is to know all that had been decided when it was back.
        decided = max(each.slot for each in await _orders(admin))
        await until_at(admin, leader, decided)
        found.append(Kill(leader, killed_ns, started_ns, time.monotonic_ns()))
        await asyncio.sleep(AFTER_SECONDS)
    return found


async def _orders(admin: Admin) -> list[OrderStanding]:
    """How far the replicas say that they are."""
    found = [each.order for each in (await look(admin)).values()]
    if not found:
        raise BenchError("no replica answers")
    return found


async def _reread(stack: AsyncExitStack, task: Task, admin: Admin) -> None:
    """Let somebody else read all of the log."""
    batches = max(each.batches for each in (await look(admin)).values())
    (reader,) = await ready(stack, WORKLOAD, ("read", task))
    reader.say(batches)
    found: Read = await reader.hear(ANSWER_SECONDS_MAX + SILENCE_SECONDS_MAX, Read)
    await reader.stop(ANSWER_SECONDS_MAX)
    if found.batches != batches:
        raise BenchError(f"of {batches} batches in the log only {found.batches} could be read")


def _with_gaps(
    kills: list[Kill], ended_ns: int, receipts_ns: list[int], read_ns: list[int]
) -> list[Kill]:
    ends_ns = [*(kill.killed_ns for kill in kills[1:]), ended_ns]
    return [
        replace(
            kill,
            gap=longest_gap(receipts_ns, kill.killed_ns, kill.started_ns),
            reader_gap=longest_gap(read_ns, kill.killed_ns, kill.started_ns),
            return_gap=longest_gap(
                [at for at in receipts_ns if at < end_ns], kill.started_ns, end_ns
            ),
        )
        for kill, end_ns in zip(kills, ends_ns, strict=True)
    ]
