"""A cluster for one experiment: made, started, made to suffer, and taken away again."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from quorate.bench.experiments import ALTERING, CRASH, DROPPING, Experiment
from quorate.bench.processes import BenchError
from quorate.client import Admin
from quorate.core.control import CONTROL_TOPIC
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import OPERATOR, LocalCluster, make_local_cluster, write_local_cluster
from quorate.runtime.ports import free_base_port

_DOWN_SECONDS = 1.0
_UP_SECONDS = 2.0
LOOK_SECONDS_MAX = 3.0
LOOK_EVERY_S = 0.02
CATCH_UP_SECONDS_MAX = 60.0

_BEHAVIOURS = {DROPPING: "silent", ALTERING: "lie"}


def running_cluster(experiment: Experiment) -> AbstractAsyncContextManager[Launcher]:
    """A fresh local cluster with the topics of this experiment, each replica a process."""
    return running(
        make_local_cluster(
            base_port=free_base_port(),
            replicas=experiment.replicas,
            f=experiment.f,
            link_security=experiment.link_security,
            topics=experiment.contracts(),
            fsync=experiment.fsync or "always",
        )
    )


def made(**options: Any) -> LocalCluster:
    """A local cluster like that, on ports that nobody uses."""
    return make_local_cluster(base_port=free_base_port(), link_security="mac", **options)


@asynccontextmanager
async def running(local: LocalCluster) -> AsyncIterator[Launcher]:
    """A cluster in a directory of its own, as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as parent:
        directory = Path(parent) / "cluster"
        write_local_cluster(directory, local)
        launcher = Launcher(directory, tied=True)
        try:
            await asyncio.to_thread(launcher.start_all)
            yield launcher
        finally:
            await asyncio.to_thread(launcher.stop_all)


@asynccontextmanager
async def suffering(experiment: Experiment, launcher: Launcher) -> AsyncIterator[None]:
    """The fault of this experiment happens from here on, to f replicas of its topics."""
    if not experiment.fault:
        yield
    elif experiment.fault == CRASH:
        over = asyncio.Event()
        crashing = asyncio.create_task(_crash_and_recover(launcher, _victims(launcher), over))
        try:
            yield
        finally:
            over.set()
            await crashing
    else:
        async with Admin(launcher.directory, OPERATOR) as admin:
            for name in _victims(launcher):
                await admin.misbehave(name, _BEHAVIOURS[experiment.fault])
        # They go on like this until the cluster ends: what is on its way has to arrive all the
        # same.
        yield


def pids_of(launcher: Launcher) -> dict[str, int]:
    """The processes of the replicas that run, by name."""
    pids = {name: launcher.pid(name) for name in launcher.held}
    return {name: pid for name, pid in pids.items() if pid is not None}


async def memory_mb_max(launcher: Launcher) -> float:
    """What the largest replica takes."""
    async with Admin(launcher.directory, OPERATOR) as admin:
        standings = await look(admin)
    return max((standing.memory_mb for standing in standings.values()), default=0.0)


class OrderStanding(msgspec.Struct, frozen=True):
    """How far a replica is with the log topics of one protection."""

    leader: str
    regency: int
    slot: int


class TopicStanding(msgspec.Struct, frozen=True):
    batches: int


class LogStanding(msgspec.Struct, frozen=True):
    groups: dict[str, OrderStanding]
    topics: dict[str, TopicStanding]


class Standing(msgspec.Struct, frozen=True):
    """What a benchmark wants to know of a replica's own report."""

    memory_mb: float
    log: LogStanding | None = None

    @property
    def order(self) -> OrderStanding:
        """Of the only group that a benchmark's cluster has."""
        assert self.log is not None
        (group,) = self.log.groups.values()
        return group

    @property
    def batches(self) -> int:
        """What its log topics have had so far, without the cluster's own commands."""
        topics = self.log.topics if self.log is not None else {}
        return sum(each.batches for name, each in topics.items() if name != CONTROL_TOPIC)


async def look(admin: Admin) -> dict[str, Standing]:
    """How the replicas are that answer, by name."""
    reports = await admin.status(LOOK_SECONDS_MAX)
    return {
        name: msgspec.convert(report, Standing)
        for name, report in reports.items()
        if report.get("health") != "down"
    }


async def until_at(admin: Admin, name: str, slot: int) -> None:
    """Wait until a replica that was started again knows of this slot."""
    deadline_s = time.monotonic() + CATCH_UP_SECONDS_MAX
    while True:
        standing = (await look(admin)).get(name)
        if standing is not None and standing.order.slot >= slot:
            return
        if time.monotonic() > deadline_s:
            raise BenchError(f"{name} did not catch up within {CATCH_UP_SECONDS_MAX:g} s")
        await asyncio.sleep(LOOK_EVERY_S)


def _victims(launcher: Launcher) -> list[str]:
    """The first f replicas that serve the first topic: a fault elsewhere would cost nothing."""
    cluster = launcher.cluster
    placement = cluster.placement(next(iter(cluster.topics)))
    return [cluster.member(number).name for number in placement[: cluster.f]]


async def _crash_and_recover(launcher: Launcher, names: list[str], over: asyncio.Event) -> None:
    """Kill and start again, until it is over; whoever is down then is started once more."""

    async def wait(seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), seconds)

    await wait(_UP_SECONDS)
    while not over.is_set():
        for name in names:
            await asyncio.to_thread(launcher.stop, name, kill=True)
        await wait(_DOWN_SECONDS)
        for name in names:
            launcher.start(name)
        for name in names:
            await asyncio.to_thread(launcher.wait_until_up, name)
        await wait(_UP_SECONDS)
