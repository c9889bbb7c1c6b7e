"""What jobs have in common: where they read and publish, and how they are started.

A job is a module with a `JOB`. Its program is made of functions from frames to frames, which know
nothing of clusters and checkpoints; `start` connects them with topics through `Pipes`, and hands
back the queries that run from then on. So the same program runs over a file in a test, and over a
cluster of parties that do not trust each other.

A `BatchJob` ends by itself: `run` comes back when its work is done, with what there is to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


# What Spark says of a query that has yet to start what it reads from.
INITIALIZING: Final = "Initializing sources"
SOURCE_S_MAX: Final = 20.0
LOOK_EVERY_S: Final = 0.05


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a job; those of each job are fields with types, bounds and defaults."""


ConfigT = TypeVar("ConfigT", bound=Config)


@dataclass(frozen=True, kw_only=True)
class Pipes:
    """Topics of one cluster as frames, on behalf of one of its clients."""

    spark: SparkSession
    cluster: str
    identity: str
    # Each query has a directory of its own in it, by its name.
    checkpoint: str
    # Where a job begins that has no checkpoint yet.
    start: str = "begin"
    # How often a query looks for new events, as Spark writes it ("1 second"); None: at once.
    every: str | None = None
    # Whether queries end when they have read what is there.
    available_now: bool = False

    def events(self, *topics: str, **options: str) -> DataFrame:
        """What is published on these topics, as `schema.EVENTS` has it."""
        reader = self.spark.readStream.format("quorate").options(
            cluster=self.cluster, identity=self.identity, topics=",".join(topics), start=self.start
        )
        return reader.options(**options).load()

    def publish(self, name: str, frame: DataFrame, topic: str) -> StreamingQuery:
        """From now on, the rows of this frame (`schema.PUBLISHED`) are published on a topic."""
        writer = frame.writeStream.format("quorate")
        return self._started(
            name, writer.options(cluster=self.cluster, identity=self.identity, topic=topic)
        )

    def each(
        self, name: str, frame: DataFrame, do: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """From now on, this is done on the driver with each batch of a frame, in their order."""
        return self._started(name, frame.writeStream.foreachBatch(do))

    def _started(self, name: str, writer: DataStreamWriter) -> StreamingQuery:
        writer = writer.queryName(name).option("checkpointLocation", f"{self.checkpoint}/{name}")
        if self.available_now:
            writer = writer.trigger(availableNow=True)
        elif self.every is not None:
            writer = writer.trigger(processingTime=self.every)
        query = writer.start()
        _wait_for_its_source(query)
        return query


def _wait_for_its_source(query: StreamingQuery) -> None:
    """Spark starts a Python process for each query, and gives it ten seconds: one after the other,
    so that those of a job with many queries do not keep each other from starting."""
    deadline_s = time.monotonic() + SOURCE_S_MAX
    while query.isActive and query.status["message"] == INITIALIZING:
        if time.monotonic() > deadline_s:
            # It says itself what it lacks, if it ends for that.
            return
        time.sleep(LOOK_EVERY_S)


@dataclass(frozen=True)
class Program(Generic[ConfigT]):
    """What can be started by its name."""

    name: str
    # One sentence, for `quorate pipeline list`.
    summary: str
    config: type[ConfigT]


@dataclass(frozen=True)
class Job(Program[ConfigT]):
    """A program that goes on until somebody ends it."""

    start: Callable[[Pipes, ConfigT], list[StreamingQuery]]


@dataclass(frozen=True)
class Ended:
    """What a program that has ended says, and its exit code."""

    lines: tuple[str, ...]
    code: int = 0


@dataclass(frozen=True)
class BatchJob(Program[ConfigT]):
    """A program that ends by itself, and needs no checkpoint."""

    run: Callable[[Pipes, ConfigT], Ended]
    # Whether it does with these settings without a cluster, and without the keys of a client.
    is_offline: Callable[[ConfigT], bool] = lambda _: False
