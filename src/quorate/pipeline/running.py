"""Queries while they run: what they have done, and how they end.

Whoever runs a job waits in `follow`, which ends when it is asked to, when all queries are done, or
when one of them fails. Whichever it is, no query runs afterwards. A checkpoint is never touched: a
job that is started again with the same one goes on where this one stopped.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from quorate.core.errors import QuorateError
from quorate.pipeline.failures import cause_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY_S: Final = 0.5
# A signal that ends a whole group of processes may reach Spark before it reaches us.
SIGNAL_S_MAX: Final = 1.0

# Where Spark gets offsets from has a name that means nothing to anybody.
_JAVA_OBJECT: Final = re.compile(r" from [\w.$]+@[0-9a-f]+$")


class QueryError(QuorateError):
    """A query failed; its sentence is the cause. Trying again goes on from the checkpoint."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Progress:
    """What one query has done since it was started here."""

    query: str
    # The newest that Spark speaks of; None before the first.
    batch: int | None
    rows: int
    rows_per_s: float
    doing: str


def follow(
    queries: Sequence[StreamingQuery],
    stopping: threading.Event,
    show: Callable[[list[Progress]], None],
) -> list[Progress]:
    """Wait for the end of these queries, or end them; returns what they have done."""
    from py4j.protocol import Py4JError

    tallies = [_Tally(query) for query in queries]
    try:
        while not stopping.wait(LOOK_EVERY_S):
            show([tally.look() for tally in tallies])
            _raise_failure(queries)
            if not any(query.isActive for query in queries):
                # The last batch may have ended after we looked.
                show([tally.look() for tally in tallies])
                break
    except (QueryError, Py4JError, OSError) as error:
        if not stopping.wait(SIGNAL_S_MAX):
            raise error if isinstance(error, QueryError) else QueryError(cause_of(error)) from error
    finally:
        stop(queries)
    return [tally.last for tally in tallies]


def has_read(query: StreamingQuery) -> bool:
    """Whether a batch with rows is done; raises what ended the query, if anything did."""
    _raise_failure([query])
    return any(each["numInputRows"] for each in query.recentProgress)


def stop(queries: Sequence[StreamingQuery]) -> None:
    """End them all, also where one of them does not want to, or Java is gone already."""
    for query in queries:
        with contextlib.suppress(Exception):
            query.stop()


def _raise_failure(queries: Sequence[StreamingQuery]) -> None:
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise QueryError(cause_of(failure))


class _Tally:
    """Adds up the batches of one query; Spark remembers the last hundred of them."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        # When the last batch began that was added. Not its number: a query that has nothing to do
        # says so under the number of the batch to come.
        self._began = ""
        self.last = Progress(query.name or str(query.id), None, 0, 0.0, "starting")

    def look(self) -> Progress:
        last = self.last
        doing = _JAVA_OBJECT.sub("", str(self._query.status["message"]))
        new = [each for each in self._query.recentProgress if each["timestamp"] > self._began]
        if not new:
            self.last = Progress(last.query, last.batch, last.rows, last.rows_per_s, doing)
            return self.last
        newest = new[-1]
        self._began = newest["timestamp"]
        rows = last.rows + sum(int(each["numInputRows"]) for each in new)
        rows_per_s = float(newest["processedRowsPerSecond"] or 0.0)
        self.last = Progress(last.query, int(newest["batchId"]), rows, rows_per_s, doing)
        return self.last
