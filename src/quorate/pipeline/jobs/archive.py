"""Topics to Parquet, by topic and day, each row once and each of them provable from then on.

`quorate.pipeline.archive` has what an archive is, and `quorate.pipeline.archiving` why a driver may
be killed at any point of what is done here.

A batch of the query becomes files on the executors and one entry of the archive's log on the
driver. After it, small files are merged: as soon as they fill a large one, and at the latest when
their day is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import pyarrow
from msgspec import Meta

from quorate.pipeline.archive import File, Next
from quorate.pipeline.archiving import Archiver, merge, small_files, stage, whole_path
from quorate.pipeline.jobs.job import Config, Job, Pipes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "archive"

_Topic = Annotated[str, Meta(min_length=1, max_length=256)]


class ArchiveConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is archived, and where."""

    topics: Annotated[tuple[_Topic, ...], Meta(min_length=1, max_length=1000)]
    # A directory that the driver and all executors share, or another place that Arrow can write to.
    directory: Annotated[str, Meta(min_length=1)]
    # Whether small files are merged, and how large a file is to become by that.
    compaction: bool = True
    file_bytes: Annotated[int, Meta(ge=1)] = 128 * 1024 * 1024
    # So many events are archived at a time; 0 stands for all that are there.
    rows_at_once: Annotated[int, Meta(ge=0)] = 1_000_000


def archive(frame: DataFrame, config: ArchiveConfig) -> None:
    """Add the rows of a frame that has proofs, but for those that are archived."""
    archiver = Archiver(config.directory)
    known = archiver.settle().next
    found = frame.mapInArrow(_staging(config.directory, known), "file string").collect()
    archiver.add([msgspec.json.decode(row.file, type=File) for row in found])
    if config.compaction:
        compact(frame.sparkSession, config)


def compact(spark: SparkSession, config: ArchiveConfig) -> None:
    """Merge small files; each task makes one large file."""
    archiver = Archiver(config.directory)
    groups = small_files(archiver.settle(), config.file_bytes)
    if not groups:
        return
    directory = config.directory
    tasks = spark.sparkContext.parallelize(groups, len(groups))
    archiver.replace(
        [file for group in groups for file in group],
        tasks.map(lambda group: merge(directory, group)).collect(),
    )


def _staging(
    directory: str, known: Next
) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for file in stage(directory, known, batches):
            yield pyarrow.RecordBatch.from_pydict({"file": [msgspec.json.encode(file).decode()]})

    return run


def _start(pipes: Pipes, config: ArchiveConfig) -> list[StreamingQuery]:
    # Executors may be in directories of their own.
    config = msgspec.structs.replace(config, directory=whole_path(config.directory))
    known = Archiver(config.directory).settle().next
    # A query that has no checkpoint any more goes on where the archive ends.
    begin = {"start": msgspec.json.encode(known).decode()} if known else {}
    options = {"proofs": "true", "validate": "false", "max_rows": str(config.rows_at_once)}
    events = pipes.events(*config.topics, **options, **begin)
    return [pipes.each(NAME, events, lambda frame, _: archive(frame, config))]


JOB: Final = Job(
    name=NAME,
    summary="Keep topics as Parquet files, each row once and provable offline.",
    config=ArchiveConfig,
    start=_start,
)
