"""Topics as a Spark sink: `df.writeStream.format("quorate")`, and `df.write`.

Every row is published once, whatever crashes (`staging.py`). A row goes to the topic that its
column `topic` or the option of that name says, and there to the partition that its column
`partition` names, or that of its key; rows without a key stay together with those of their task.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
import pyarrow
from pyarrow import compute
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quorate.client.producer import partition_of
from quorate.core.errors import LocalProtocolError
from quorate.core.limits import BATCH_BYTES_MAX
from quorate.pipeline.connections import connection
from quorate.pipeline.options import SinkOptions, sink_options
from quorate.pipeline.publishing import publish
from quorate.pipeline.rows import concatenated
from quorate.pipeline.schema import PUBLISHED
from quorate.pipeline.staging import Staging

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# How Spark tells a task which query and batch it is for.
QUERY_KEY, BATCH_KEY = "sql.streaming.queryId", "streaming.sql.batchId"

_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<name:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "urgent": ("boolean",),
    "topic": ("string",),
    "partition": ("int", "bigint"),
}


@dataclass
class Staged(WriterCommitMessage):
    """What one task wrote, and for which query; no file, if it had no rows."""

    query: str
    file: str


class _Writer:
    """What the writers of streams and of whole frames have in common."""

    def __init__(
        self, options: MutableMapping[str, str], schema: StructType, *, overwrite: bool
    ) -> None:
        self._options = sink_options(options)
        _check_columns(schema, self._options)
        if overwrite:
            raise LocalProtocolError(
                "a topic is not written over: use the mode 'append', or the output mode 'append'"
            )

    def _stage(self, query: str, batch: int, rows: Iterator[RecordBatch]) -> Staged:
        staging = Staging(self._options.staging, query)
        return Staged(query, staging.write(batch, _Sorting(self._options).parts(rows)))

    def _publish(self, batch: int, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        staging = Staging(self._options.staging, staged[0].query)
        files = [each.file for each in staged if each.file]
        publish(self._options, staging, batch, files)

    def _give_up(self, batch: int, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks wrote, unless that is what the batch is by now."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if staged:
            staging = Staging(self._options.staging, staged[0].query)
            if staging.manifest(batch) is None:
                staging.remove([each.file for each in staged if each.file])


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes what a query brings, batch by batch."""

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY_KEY), context.getLocalProperty(BATCH_KEY)
        assert query is not None
        assert batch is not None
        return self._stage(query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._publish(batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._give_up(batchId, messages)


class TopicWriter(_Writer, DataSourceArrowWriter):
    """Publishes a whole frame; under a `name`, once however often it is written."""

    def __init__(
        self, options: MutableMapping[str, str], schema: StructType, *, overwrite: bool
    ) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._query = self._options.name or f"write-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return self._stage(self._query, self._options.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publish(self._options.batch, messages)
        if not self._options.name:
            # Nobody can come back to it.
            Staging(self._options.staging, self._query).remove_all()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._give_up(self._options.batch, messages)


class _Sorting:
    """Rows of a task, sorted into parts that go to one partition of one topic each."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._partitions: dict[str, int] = {}
        self._waiting: dict[tuple[str, int], list[RecordBatch]] = {}
        self._rows: dict[tuple[str, int], int] = {}

    def parts(self, rows: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        """Each has a topic and a partition in its columns, the same in all of its rows."""
        for record_batch in rows:
            for target, part in self._sorted(record_batch):
                self._waiting.setdefault(target, []).append(part)
                self._rows[target] = self._rows.get(target, 0) + part.num_rows
                if self._rows[target] >= self._options.batch_rows:
                    yield from self._cut(target)
        for target in list(self._waiting):
            yield from self._cut(target, is_last=True)

    def _cut(self, target: tuple[str, int], *, is_last: bool = False) -> Iterator[RecordBatch]:
        whole = concatenated(self._waiting.pop(target))
        # Parts of average rows fill half of what a batch may hold, at most.
        fitting = BATCH_BYTES_MAX // 2 * whole.num_rows // (whole.nbytes + 1)
        size = max(1, min(self._options.batch_rows, fitting))
        rows = self._rows.pop(target)
        end = rows if is_last else rows - rows % size
        for start in range(0, end, size):
            yield whole.slice(start, min(size, end - start))
        if end < rows:
            self._waiting[target], self._rows[target] = [whole.slice(end)], rows - end

    def _sorted(self, rows: RecordBatch) -> Iterator[tuple[tuple[str, int], RecordBatch]]:
        if not rows.num_rows:
            return
        for topic, of_topic in self._by_topic(rows):
            numbers = self._numbers(topic, of_topic)
            for number in numpy.unique(numbers).tolist():
                part = of_topic.filter(pyarrow.array(numbers == number))
                yield (topic, number), _placed(part, topic, number)

    def _by_topic(self, rows: RecordBatch) -> Iterator[tuple[str, RecordBatch]]:
        if "topic" not in rows.schema.names:
            yield self._options.topic, rows
            return
        topics = rows.column("topic")
        for topic in topics.unique().to_pylist():
            name = topic or self._options.topic
            if not name:
                raise LocalProtocolError(
                    "a row has no topic, and there is no option 'topic' that says where it goes"
                )
            mask = compute.is_null(topics) if topic is None else compute.equal(topics, topic)
            yield name, rows.filter(compute.fill_null(mask, False))

    def _numbers(self, topic: str, rows: RecordBatch) -> numpy.ndarray:
        """The partition of each row."""
        count = self._count(topic)
        context = TaskContext.get()
        own = 0 if context is None else context.partitionId() % count
        numbers = numpy.full(rows.num_rows, own)
        if "key" in rows.schema.names:
            keys = rows.column("key").cast(pyarrow.binary()).dictionary_encode()
            places = [partition_of(key, count) for key in keys.dictionary.to_pylist()]
            if places:
                at = keys.indices.fill_null(len(places)).to_numpy(zero_copy_only=False)
                numbers = numpy.array([*places, own])[at]
        if "partition" in rows.schema.names:
            named = rows.column("partition").cast(pyarrow.int64())
            given = named.fill_null(-1).to_numpy(zero_copy_only=False)
            wrong = given[(given >= count) | ((given < 0) & named.is_valid().to_numpy(False))]
            if len(wrong):
                raise LocalProtocolError(
                    f"topic '{topic}' has no partition {wrong[0]}; it has 0 to {count - 1}"
                )
            numbers = numpy.where(given >= 0, given, numbers)
        return numbers

    def _count(self, topic: str) -> int:
        if topic not in self._partitions:
            at = connection(self._options.cluster, self._options.identity)
            self._partitions[topic] = at.call(at.reader.partitions(topic))
        return self._partitions[topic]


def _placed(rows: RecordBatch, topic: str, partition: int) -> RecordBatch:
    """The rows with what is the same in all of them, and in the types that batches have."""
    columns = {
        name: rows.column(name) for name in rows.schema.names if name not in ("topic", "partition")
    }
    columns["topic"] = pyarrow.repeat(pyarrow.scalar(topic), rows.num_rows)
    columns["partition"] = pyarrow.repeat(pyarrow.scalar(partition), rows.num_rows)
    return pyarrow.RecordBatch.from_pydict(columns)


def _check_columns(schema: StructType, options: SinkOptions) -> None:
    """What a frame has to have, said before anything runs."""
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        if allowed is None:
            raise LocalProtocolError(
                f"a row that is published has no column '{field.name}'; allowed are "
                f"{', '.join(PUBLISHED)}"
            )
        if field.dataType.simpleString() not in allowed:
            raise LocalProtocolError(
                f"the column '{field.name}' is {field.dataType.simpleString()}; allowed is "
                f"{' or '.join(allowed)}"
            )
    if "value" not in schema.names:
        raise LocalProtocolError("the frame has no column 'value', and every event needs one")
    if "topic" not in schema.names and not options.topic:
        raise LocalProtocolError(
            "option 'topic' is missing, and the frame has no column 'topic': one of them says "
            "where rows are published"
        )
