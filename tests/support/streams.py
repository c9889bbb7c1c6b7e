"""Streams out of tables: files in a directory are the batches, and a sink that may fail."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.parquet
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from quorate.pipeline import schema


def as_events(table: pyarrow.Table, topic: str) -> pyarrow.Table:
    """A table of key, value and timestamp as one partition of a topic has it, ten to a batch."""
    rows = range(table.num_rows)
    return pyarrow.table(
        {
            "key": table["key"],
            "value": table["value"],
            "timestamp": table["timestamp"],
            "topic": pyarrow.array([topic] * len(rows)),
            "partition": pyarrow.array([0] * len(rows), pyarrow.int32()),
            "offset": pyarrow.array([row // 10 for row in rows], pyarrow.int64()),
            "index": pyarrow.array([row % 10 for row in rows], pyarrow.int32()),
        }
    )


@dataclass
class Directory:
    """Files that a stream reads one after the other, one in each micro-batch."""

    path: Path
    columns: str = schema.EVENTS
    files: int = 0

    def add(self, table: pyarrow.Table, batches: int) -> None:
        """Split a table into so many files."""
        self.path.mkdir(exist_ok=True)
        size = -(-table.num_rows // batches)
        for begin in range(0, table.num_rows, size):
            file = self.path / f"{self.files:05}.parquet"
            pyarrow.parquet.write_table(table.slice(begin, size), file)
            # Spark reads older files first.
            os.utime(file, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
            self.files += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(self.columns).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.path))


@dataclass
class Sink:
    """Keeps what each batch had; what comes again takes the place of what was there."""

    fails_at: int | None = None
    batches: dict[int, list[Row]] = field(default_factory=dict)
    # Batches that came again, as they were before.
    before: dict[int, list[Row]] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, number: int) -> None:
        if number in self.batches:
            self.before[number] = self.batches[number]
        self.batches[number] = sorted(frame.collect())
        if number == self.fails_at:
            self.fails_at = None
            raise OSError("the sink fails after it took the batch")

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def run(frame: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """All that is there goes through a frame into a sink."""
    query: StreamingQuery = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300), "the stream did not end"
    finally:
        query.stop()
