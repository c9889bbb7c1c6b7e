"""Batches as rows: what was read and checked becomes Arrow's record batches, as Spark wants them.

No step here is taken for each event. Events are wrapped where they lie, several batches are put
together into one record batch where they are small, and what a batch has once is repeated by Arrow.

Whoever reads a stretch gets whole batches. Of the first and the last one, the events that are
outside of the stretch are cut off here, so that a stretch has the same rows whatever was read with
it. With proofs, batches are not cut, and belong to the stretch that has their last event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
from pyarrow import compute

from quorate.core.batch import Batch
from quorate.core.errors import RemoteProtocolError
from quorate.core.header import is_signed
from quorate.core.ids import NodeId
from quorate.pipeline.proofs import SIGNED_DIGEST, Proofs
from quorate.pipeline.schema import events

if TYPE_CHECKING:
    from quorate.protocol.ordering.ranges import Settled

# Small batches are put together until they have so many rows.
ROWS_AT_ONCE = 10_000


def arrow_schema(*, proofs: bool = False) -> pyarrow.Schema:
    """The columns of `schema.EVENTS` as Spark expects them from Python."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(events(proofs=proofs), timezone="UTC")


class Rows:
    """Makes record batches of what is read of one stretch of a partition."""

    def __init__(
        self,
        topic: str,
        partition: int,
        stretch: range,
        name_of: Callable[[NodeId], str],
        *,
        proofs: bool = False,
    ) -> None:
        # What is the same in all rows, made once for the largest record batch so far.
        self._topics = pyarrow.array([topic])
        self._partitions = pyarrow.array([partition], pyarrow.int32())
        self._stretch = stretch
        self._name_of = name_of
        self._proofs = Proofs() if proofs else None
        self._schema = arrow_schema(proofs=proofs)
        # Batches whose bodies are not what their headers say.
        self.malformed = 0

    def of(self, batches: Iterable[Settled]) -> Iterator[pyarrow.RecordBatch]:
        """These batches as rows, in their order."""
        opened: list[tuple[Settled, Batch]] = []
        rows = 0
        for settled in batches:
            batch = self._opened(settled)
            if self._proofs is not None:
                self._proofs.note(settled, has_rows=batch is not None)
            if batch is None:
                continue
            opened.append((settled, batch))
            rows += len(self._inside(settled))
            if rows >= ROWS_AT_ONCE:
                yield self._together(opened)
                opened, rows = [], 0
        if opened:
            yield self._together(opened)

    def _opened(self, settled: Settled) -> Batch | None:
        if settled.payload is None or not self._inside(settled):
            return None
        try:
            return Batch(settled.payload)
        except RemoteProtocolError:
            self.malformed += 1
            return None

    def _inside(self, settled: Settled) -> range:
        """Which events of a batch become rows, by their places in it."""
        first, last = settled.offset, settled.end - 1
        if self._proofs is not None:
            return range(settled.end - first) if last in self._stretch else range(0)
        return range(max(self._stretch.start - first, 0), min(self._stretch.stop, last + 1) - first)

    def _together(self, opened: list[tuple[Settled, Batch]]) -> pyarrow.RecordBatch:
        inside = [self._inside(settled) for settled, _ in opened]
        each_batch = [
            batch.record_batch().slice(places.start, len(places))
            for (_, batch), places in zip(opened, inside, strict=True)
        ]
        columns = concatenated(each_batch)
        batches = [settled for settled, _ in opened]
        counts = numpy.array([len(places) for places in inside])
        total = int(counts.sum())
        if total > len(self._topics):
            self._topics = _repeated(self._topics, total)
            self._partitions = _repeated(self._partitions, total)
        starts = numpy.cumsum(counts) - counts - [places.start for places in inside]
        index = numpy.arange(total) - numpy.repeat(starts, counts)
        firsts = numpy.repeat([settled.offset for settled in batches], counts)
        of_batch = numpy.repeat(numpy.arange(len(batches)), counts)
        kind = {field.name: field.type for field in self._schema}

        def each(values: list[Any], name: str) -> pyarrow.Array:
            """What batches have once, in each of their rows."""
            array = pyarrow.array(values, kind[name])
            if len(values) == 1:
                return _repeated(array, total)
            return array.take(pyarrow.array(of_batch))

        by_name = {
            "key": columns["key"],
            "value": columns["value"],
            "headers": _headers(columns["headers"], kind["headers"]),
            "timestamp": columns["timestamp"],
            "urgent": columns["urgent"],
            "topic": self._topics[:total],
            "partition": self._partitions[:total],
            "offset": pyarrow.array(firsts + index),
            "index": pyarrow.array(index.astype(numpy.int32)),
            "producer": each([self._name_of(batch.publisher) for batch in batches], "producer"),
            "digest": each([_digest(batch) for batch in batches], "digest"),
            "position": each([batch.leaf for batch in batches], "position"),
            "checkpoint": each([batch.size for batch in batches], "checkpoint"),
        }
        if self._proofs is not None:
            found = [
                self._proofs.of(settled, batch, rows)
                for (settled, batch), rows in zip(opened, each_batch, strict=True)
            ]
            first_only = pyarrow.array(of_batch, mask=index > 0)
            by_name["proof"] = pyarrow.array(found, kind["proof"]).take(first_only)
        arrays = [by_name[name] for name in self._schema.names]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)


def _digest(settled: Settled) -> bytes | None:
    """What the producer of a signed batch signed for its content."""
    payload = settled.payload
    if payload is None or settled.leaf is None or not is_signed(payload):
        return None
    return payload[SIGNED_DIGEST]


def concatenated(batches: list[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    """These record batches as one."""
    if len(batches) == 1:
        return batches[0]
    (whole,) = pyarrow.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _repeated(array: pyarrow.Array, count: int) -> pyarrow.Array:
    """One value, so many times."""
    if not array[0].is_valid:
        return pyarrow.nulls(count, array.type)
    return pyarrow.repeat(array[0], count)


def _headers(headers: pyarrow.Array, kind: pyarrow.DataType) -> pyarrow.Array:
    """The same headers; Spark has other names and fewer promises for what is in them."""
    if len(headers.values) == 0:
        offsets = pyarrow.py_buffer(bytes(4 * len(headers) + 4))
        empty = pyarrow.array([], kind.value_type)
        return pyarrow.Array.from_buffers(kind, len(headers), [None, offsets], children=[empty])
    return compute.cast(headers, kind)
