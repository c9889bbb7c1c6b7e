"""What Spark does in a benchmark, in a process of its own, since a process has one session.

Rows are read into a sink that drops them: what is left is the time to bring them into Spark. The
same rows are read from Parquet, which Spark wrote when it read them from the topic. All columns
are wanted in both.

The processes talk in lines (`quorate.bench.processes`): the driver says "ready", hears one `Job`
after the other, and says of each what it `Did`, until there is none any more.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from quorate.bench.processes import BenchError, Parent, play
from quorate.pipeline.failures import cause_of
from quorate.pipeline.jobs.job import Pipes
from quorate.pipeline.running import has_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

READER = "bob"
DRIVER_MEMORY = "1g"
LOOK_EVERY_S = 0.02
FIRST_BATCH_SECONDS_MAX = 120.0
# Of what is relayed, only events of this key go on, and what goes on begins like this.
ALERT_KEY, ALERT_PREFIX = b"alert", b"alert: "

Kind: TypeAlias = Literal[
    "keep", "verified", "unverified", "parquet", "stream", "relay", "portscan", "rest"
]


class SparkTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver knows: its cores, the cluster, and a directory for what it writes."""

    master: str
    cluster: str
    directory: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next.

    keep         write the rows of a topic to Parquet, and say what both come to
    verified     read a topic, as a job does; unverified: without checks; parquet: what was kept
    stream       read it as a stream, up to where it ends now
    relay        begin to publish what is urgent enough on the topic `alerts`
    portscan     begin to look for scanners on several topics, and to publish them on `alerts`
    rest         end what was begun
    """

    kind: Kind
    topic: str
    start: str = "begin"
    alerts: str = ""
    # Whether the memory of Python's workers is looked at meanwhile.
    is_watched: bool = False


class Did(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took, and what it came to where somebody counted."""

    seconds: float
    # Of a stream, how long it took before its first batch and after its last.
    start_s: float = 0.0
    # How many rows, and the sum of their hashes: of the topic, and of what was kept.
    from_topic: tuple[int, int] | None = None
    from_parquet: tuple[int, int] | None = None
    # What the largest of Python's workers took.
    memory_mb_max: float = 0.0


class Jobs:
    """Does them, one after the other."""

    def __init__(self, spark: SparkSession, task: SparkTask) -> None:
        self._spark = spark
        self._task = task
        self._directory = Path(task.directory)
        self._begun: StreamingQuery | None = None

    def do(self, job: Job) -> Did:
        works: dict[str, Callable[[Job], dict[str, Any]]] = {
            "keep": self._keep,
            "stream": self._read_stream,
            "relay": self._relay,
            "portscan": self._look_for_scanners,
            "rest": self._rest,
        }
        began_s = time.perf_counter()
        with _watched() if job.is_watched else nullcontext([0.0]) as sizes_mb:
            found = works.get(job.kind, self._drop)(job)
        seconds = time.perf_counter() - began_s - found.get("start_s", 0.0)
        return Did(seconds=seconds, memory_mb_max=max(sizes_mb, default=0.0), **found)

    def _drop(self, job: Job) -> dict[str, Any]:
        self._frame(job).write.format("noop").mode("overwrite").save()
        return {}

    def _frame(self, job: Job) -> DataFrame:
        if job.kind == "parquet":
            return self._spark.read.parquet(self._kept(job))
        verification = "off" if job.kind == "unverified" else "on"
        reader: DataFrameReader = self._from_topic(self._spark.read, job)
        return reader.option("verification", verification).load()

    def _keep(self, job: Job) -> dict[str, Any]:
        frame = self._frame(job)
        frame.write.parquet(self._kept(job))
        kept = self._spark.read.parquet(self._kept(job))
        return {"from_topic": _counted(frame), "from_parquet": _counted(kept)}

    def _read_stream(self, job: Job) -> dict[str, Any]:
        """How long it took besides its batches: Spark starts a Python process for each query."""
        began_s = time.perf_counter()
        frame = self._from_topic(self._spark.readStream, job).load()
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", self._checkpoint())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        whole_s = time.perf_counter() - began_s
        batches_ms = [int(each["durationMs"]["triggerExecution"]) for each in query.recentProgress]
        return {"start_s": whole_s - sum(batches_ms) / 1000}

    def _relay(self, job: Job) -> dict[str, Any]:
        from pyspark.sql import functions

        frame = self._from_topic(self._spark.readStream, job).load()
        alerts = frame.where(functions.col("key") == functions.lit(ALERT_KEY)).select(
            functions.concat(functions.lit(ALERT_PREFIX), "value").alias("value"), "timestamp"
        )
        self._begun = (
            alerts.writeStream.format("quorate")
            .options(cluster=self._task.cluster, identity=READER, topic=job.alerts)
            .option("checkpointLocation", self._checkpoint())
            .queryName("relay")
            .trigger(processingTime="0 seconds")
            .start()
        )
        return {}

    def _look_for_scanners(self, job: Job) -> dict[str, Any]:
        """As `quorate pipeline run portscan` does; its first batch takes longer than any other."""
        from quorate.pipeline.jobs.portscan import JOB, PortscanConfig

        pipes = Pipes(
            spark=self._spark,
            cluster=self._task.cluster,
            identity=READER,
            checkpoint=self._checkpoint(),
        )
        config = PortscanConfig(topics=tuple(job.topic.split(",")), blacklist=job.alerts)
        (self._begun,) = JOB.start(pipes, config)
        deadline_s = time.monotonic() + FIRST_BATCH_SECONDS_MAX
        while not has_read(self._begun):
            if time.monotonic() > deadline_s:
                raise BenchError(f"Spark read nothing within {FIRST_BATCH_SECONDS_MAX:g} s")
            time.sleep(LOOK_EVERY_S)
        return {}

    def _rest(self, _: Job) -> dict[str, Any]:
        query = self._begun
        if query is None:
            raise BenchError("nothing was begun")
        if (error := query.exception()) is not None:
            raise BenchError(f"{query.name} ended early: {cause_of(error)}")
        query.stop()
        return {}

    def _from_topic(self, reader: DataFrameReader | DataStreamReader, job: Job) -> Any:
        return reader.format("quorate").options(
            cluster=self._task.cluster, identity=READER, topics=job.topic, start=job.start
        )

    def _kept(self, job: Job) -> str:
        return str(self._directory / f"{job.topic}.parquet")

    def _checkpoint(self) -> str:
        """A fresh one: a stream that found an old one would have nothing left to read."""
        return tempfile.mkdtemp(prefix="checkpoint-", dir=self._directory)


@contextmanager
def _watched() -> Iterator[list[float]]:
    """The memory of Python's workers in MB, looked at as long as it is open."""
    import psutil

    over, sizes_mb, this = threading.Event(), list[float](), psutil.Process()

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            for process in this.children(recursive=True):
                # It may have ended since it was listed.
                with suppress(psutil.NoSuchProcess):
                    if process.name().startswith("python"):
                        sizes_mb.append(process.memory_info().rss / 1e6)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield sizes_mb
    over.set()
    thread.join()


def _counted(frame: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions

    names = [name for name in frame.columns if name not in ("headers", "checkpoint")]
    # As decimals, since the sum of so many large numbers is larger than a bigint.
    each = functions.xxhash64(*names).cast("decimal(38,0)")
    row = frame.agg(functions.count("*").alias("rows"), functions.sum(each).alias("hash")).first()
    assert row is not None
    return row["rows"], int(row["hash"] or 0) % 2**53


async def drive(parent: Parent, task: SparkTask) -> None:
    from quorate.pipeline.session import session

    settings = {"spark.driver.memory": DRIVER_MEMORY}
    spark = await asyncio.to_thread(session, task.master, app_name="bench", settings=settings)
    parent.say("ready")
    jobs = Jobs(spark, task)
    while (job := await parent.hear(Job)) is not None:
        parent.say(await asyncio.to_thread(jobs.do, job))
    spark.stop()


if __name__ == "__main__":
    play(SparkTask, drive=drive)
