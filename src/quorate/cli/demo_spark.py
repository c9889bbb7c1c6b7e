"""The Spark side of the demo: three jobs as `quorate pipeline run` has them, in one session.

`portscan` and `archive` read what sites publish, `monitor` (only who falls silent) and `archive`
the heartbeats of hosts. Nothing is known here of what is true.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from quorate.cli.demo_plot import Plan
from quorate.pipeline.jobs.archive import JOB as ARCHIVE
from quorate.pipeline.jobs.job import Config, Pipes
from quorate.pipeline.jobs.monitor import JOB as MONITOR
from quorate.pipeline.jobs.portscan import JOB as PORTSCAN
from quorate.pipeline.running import Progress, QueryError, follow, has_read, stop
from quorate.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_Done = TypeVar("_Done")

LOOK_EVERY_S = 0.1
ATTEMPTS = 3
# Starting Python processes and compiling queries takes a while on a small machine.
WARM_S_MAX = 180.0
# How often each job looks for events: the blacklist is in a hurry, and the archive is not.
PORTSCAN_EVERY, MONITOR_EVERY, ARCHIVE_EVERY = "1 second", "3 seconds", "10 seconds"
# Everything is small here, and over before it pays to compile it well.
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


# A thread that did not make a session does not find the formats that are registered with it.
_thread = ThreadPoolExecutor(1, "spark")


async def _in_its_thread(do: Callable[[], _Done]) -> _Done:
    return await asyncio.get_running_loop().run_in_executor(_thread, do)


@asynccontextmanager
async def running_session(directory: Path) -> AsyncIterator[SparkSession]:
    """Spark, with its own messages in this directory."""
    start = partial(
        session, "local[2]",
        app_name="quorate demo", settings=SETTINGS, log_directory=directory / "logs",
    )  # fmt: skip
    spark = await _in_its_thread(start)
    try:
        yield spark
    finally:
        await _in_its_thread(spark.stop)


@asynccontextmanager
async def running_jobs(
    spark: SparkSession,
    cluster: Path,
    plan: Plan,
    archive: Path,
    show: Callable[[list[Progress]], None],
) -> AsyncIterator[Jobs]:
    """The jobs over this cluster, each of which has done its first batch; in the end they stop."""
    pipes = Pipes(
        spark=spark,
        cluster=str(cluster),
        identity=plan.analyst,
        checkpoint=str(archive.parent / "checkpoint"),
    )
    jobs = Jobs(show)
    try:
        await _in_its_thread(partial(jobs.start, pipes, plan, archive))
        jobs.follow()
        yield jobs
    finally:
        await jobs.stop()


class Jobs:
    """Queries of several jobs, and whether they are alive."""

    def __init__(self, show: Callable[[list[Progress]], None]) -> None:
        self._show = show
        self._queries: list[StreamingQuery] = []
        self._stopping = threading.Event()
        self._following: asyncio.Task[list[Progress]] | None = None

    def start(self, pipes: Pipes, plan: Plan, archive: Path) -> None:
        """One after the other: all at once, they would keep each other from starting."""

        def started(every: str, start: Callable[..., list[StreamingQuery]], config: Config) -> None:
            self._queries += self._started(partial(start, replace(pipes, every=every), config))

        started(PORTSCAN_EVERY, PORTSCAN.start, plan.portscan())
        started(MONITOR_EVERY, MONITOR.start, plan.monitor())
        started(ARCHIVE_EVERY, ARCHIVE.start, plan.archive(str(archive)))

    def _started(self, start: Callable[[], list[StreamingQuery]]) -> list[StreamingQuery]:
        """Spark gives a Python process ten seconds to start, which a busy machine may not have;
        whoever tries again goes on from the checkpoint."""
        for attempt in count(1):
            queries = start()
            try:
                self._wait_for(queries)
                break
            except QueryError:
                stop(queries)
                if attempt == ATTEMPTS or self._stopping.is_set():
                    raise
        return queries

    def _wait_for(self, queries: list[StreamingQuery]) -> None:
        """Until the first batch of each is done, which takes longer than any other."""
        deadline_s = time.monotonic() + WARM_S_MAX
        while not all(map(has_read, queries)):
            if self._stopping.wait(LOOK_EVERY_S):
                raise QueryError("the jobs were stopped before they ran")
            if time.monotonic() > deadline_s:
                names = ", ".join(str(query.name) for query in queries)
                raise QueryError(f"{names} read nothing within {WARM_S_MAX:.0f} s")

    def follow(self) -> None:
        self._following = asyncio.create_task(
            asyncio.to_thread(follow, self._queries, self._stopping, self._show)
        )

    def require_alive(self) -> None:
        """Raise what ended them, if anything did."""
        if self._following is not None and self._following.done():
            self._following.result()
            raise QueryError("the jobs ended before the story did")

    async def stop(self) -> None:
        self._stopping.set()
        if self._following is None:
            await asyncio.to_thread(stop, self._queries)
        else:
            await self._following
