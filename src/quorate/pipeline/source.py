"""Topics as a Spark source: `spark.readStream.format("quorate")`, and `spark.read`.

The driver plans: it knows where each partition of a topic begins and ends, and cuts what is
to be read into stretches. Executors read: each task fetches one stretch from the replicas and
verifies it, before a row of it exists (`client/ranges.py`). What verifies is wrapped as Arrow's
record batches where it lies (`rows.py`), and goes to Spark without a step in Python for any event.

A position is `{topic: {partition: offset}}`, in offsets of events. A stretch between two positions
has the same rows whenever and wherever it is read, also where it begins or ends inside of a batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorate.client.ranges import RangeReader, UnverifiedError
from quorate.core.errors import LocalProtocolError
from quorate.pipeline.connections import Connection, connection
from quorate.pipeline.options import (
    Offsets,
    SourceOptions,
    Start,
    Time,
    read_start,
    source_options,
)
from quorate.pipeline.quarantine import quarantine
from quorate.pipeline.rows import Rows
from quorate.pipeline.schema import EVENTS, PROOF, events

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

Positions: TypeAlias = dict[str, dict[str, int]]

_log = logging.getLogger("quorate.pipeline")


class QuorateSource(DataSource):
    """What Spark knows by the name "quorate"."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "quorate"

    def schema(self) -> str:
        return f"{EVENTS}, {PROOF}" if source_options(self.options).proofs else EVENTS

    def reader(self, schema: StructType) -> TopicReader:
        options = source_options(self.options)
        return TopicReader(options, _columns(schema, options))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        options = source_options(self.options)
        return TopicStreamReader(options, _columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from quorate.pipeline.sink import TopicWriter

        return TopicWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from quorate.pipeline.sink import TopicStreamWriter

        return TopicStreamWriter(self.options, schema, overwrite=overwrite)


@dataclass
class Stretch(InputPartition):
    """What one task reads: one partition of a topic, from one offset up to another."""

    topic: str
    partition: int
    start: int
    end: int


class _Reader:
    """What readers of streams and of what is there have in common."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one stretch. Runs on an executor."""
        if not isinstance(partition, Stretch):
            # Where there is nothing to read, Spark has a task without a stretch.
            return
        options = self._options
        at = connection(options.cluster, options.identity)
        rows = Rows(
            partition.topic,
            partition.partition,
            range(partition.start, partition.end),
            at.reader.cluster.name_of,
            proofs="proof" in self._columns,
        )
        left_out = None if options.on_unverified == "fail" else self._leave_out
        batches = at.reader.read(
            partition.topic,
            partition.partition,
            partition.start,
            partition.end,
            validate=options.validate,
            is_checked=options.verification == "on",
            patience_s=options.patience_s,
            on_unverified=left_out,
        )
        for settled in at.iterate(batches):
            for record_batch in rows.of(settled):
                yield record_batch.select(self._columns)

    def _leave_out(self, error: UnverifiedError) -> None:
        _log.warning("%s", error)
        if self._options.on_unverified == "quarantine":
            quarantine(self._options.quarantine, error)

    @property
    def _connection(self) -> Connection:
        return connection(self._options.cluster, self._options.identity)

    def _bounds(self, start: Start) -> Positions:
        """Where all partitions of all topics are that this stands for.

        All are asked for at once: one after the other, those that are asked for while replicas
        change their leader would be seconds behind the others, and what is in them too late.
        """
        at = self._connection
        return at.call(bounds_of(at.reader, self._options.topics, start))

    def _stretches(self, start: Positions, end: Positions) -> list[Stretch]:
        """What is between two positions, in parts that one task each reads."""
        found: list[Stretch] = []
        size = self._options.rows_per_task
        for topic, ends in end.items():
            for partition, last in ends.items():
                first = start.get(topic, {}).get(partition, 0)
                found += [
                    Stretch(topic, int(partition), at, min(at + size, last))
                    for at in range(first, last, size)
                ]
        return found


async def bounds_of(reader: RangeReader, topics: Sequence[str], start: Start) -> Positions:
    """The offset at which each partition of these topics begins, or ends."""
    contracts = await asyncio.gather(*map(reader.contract, topics))
    partitions = [
        (topic, partition)
        for topic, contract in zip(topics, contracts, strict=True)
        for partition in range(contract.partitions)
    ]
    offsets = await asyncio.gather(*(_offset(reader, *each, start) for each in partitions))
    found: Positions = {topic: {} for topic in topics}
    for (topic, partition), offset in zip(partitions, offsets, strict=True):
        found[topic][str(partition)] = offset
    return found


async def _offset(reader: RangeReader, topic: str, partition: int, start: Start) -> int:
    if isinstance(start, Time):
        return await reader.offset_at(topic, partition, start.time_us)
    if start == "end":
        return await reader.end(topic, partition)
    begin, end = await reader.bounds(topic, partition)
    if not isinstance(start, Offsets):
        return begin
    wanted = start.by_topic.get(topic, {}).get(partition, begin)
    if wanted > end:
        raise LocalProtocolError(
            f"offset {wanted} of partition {partition} of '{topic}' is not there yet; the "
            f"partition ends at {end}"
        )
    return max(begin, wanted)


class TopicReader(_Reader, DataSourceReader):
    """Reads what is there now, or was at a time."""

    def partitions(self) -> Sequence[InputPartition]:
        start = self._bounds(read_start("start", self._options.start))
        end = self._bounds(read_start("until", self._options.until))
        return self._stretches(start, end)


class TopicStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on, from the last position that Spark has in its checkpoint."""

    def __init__(self, options: SourceOptions, columns: list[str]) -> None:
        super().__init__(options, columns)
        # Where to stop, if nothing shall be read that comes later.
        self._last: Positions | None = None

    def initialOffset(self) -> Positions:
        return self._bounds(read_start("start", self._options.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: Positions, limit: ReadLimit) -> Positions:
        ends = self._bounds("end") if self._last is None else self._last
        # What was read once is there, though most replicas may have yet to hear of it.
        ends = {
            topic: {
                partition: max(end, start.get(topic, {}).get(partition, 0))
                for partition, end in partitions.items()
            }
            for topic, partitions in ends.items()
        }
        if isinstance(limit, ReadMaxRows):
            return self._within(start, ends, limit.max_rows)
        return ends

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._bounds("end")

    def reportLatestOffset(self) -> Positions:
        return self._bounds("end")

    def partitions(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        return self._stretches(start, end)

    def _within(self, start: Positions, ends: Positions, rows: int) -> Positions:
        """As far as so many rows go, shared evenly by the partitions that have any."""
        waiting = [
            (topic, partition)
            for topic, partitions in ends.items()
            for partition, end in partitions.items()
            if start.get(topic, {}).get(partition, 0) < end
        ]
        found = {topic: dict(partitions) for topic, partitions in ends.items()}
        share = max(1, rows // max(1, len(waiting)))
        for topic, partition in waiting:
            first = start.get(topic, {}).get(partition, 0)
            found[topic][partition] = min(found[topic][partition], first + share)
        return found


def _columns(schema: StructType, options: SourceOptions) -> list[str]:
    """The columns that are wanted; a person may name fewer than there are, and no others."""
    known = events(proofs=options.proofs)
    for field in schema.fields:
        if field.name not in known.names or known[field.name].dataType != field.dataType:
            raise LocalProtocolError(
                f"a column '{field.name}' of type {field.dataType.simpleString()}; a topic has "
                f"{EVENTS}"
            )
    return list(schema.names)
