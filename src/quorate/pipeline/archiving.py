"""Adding to an archive, so that each row is in it once.

Tasks write files to where nobody looks (`stage`). The driver then says with one entry of the log
that they are the archive (`Archiver.add`), and brings them to their places. It may be killed at any
point: before the entry nothing has happened, and after it the next one who comes brings to its end
what is left to do (`settle`), which may be done any number of times.

That a batch of a query is not added twice, the archive itself decides. It knows of each partition
up to where it has it, so tasks leave out what lies before. Spark's own numbers of batches are not
asked, and a query that lost its checkpoint goes on where the archive ends.

Compaction (`merge`, `Archiver.replace`) writes the rows of small files that follow on each other
into a larger one, and exchanges them with one entry.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy
import pyarrow
from pyarrow import compute, fs, parquet

from quorate.core.errors import ConfigError
from quorate.pipeline.archive import (
    LOG,
    STAGED,
    VERSION,
    WHOLE_EVERY,
    Archive,
    ArchiveError,
    Entry,
    File,
    Next,
    View,
)
from quorate.pipeline.places import file_system, is_there, remove_drafts, save_first, sync

# Rows are put together to groups of this size before they are written.
GROUP_BYTES = 16 * 1024 * 1024
GROUP_ROWS = 1 << 17


class Archiver:
    """The one that adds to an archive; there is one at a time."""

    def __init__(self, directory: str) -> None:
        self.archive = Archive(directory)
        self._files, self._root = self.archive.filesystem, self.archive.root

    def settle(self) -> View:
        """Bring to its end what a former one began; says what the archive is."""
        view = self.archive.view()
        if view.entries:
            self._bring(self.archive.entry(view.entries - 1))
        staged = f"{self._root}/{STAGED}"
        if is_there(self._files, staged):
            # What tasks wrote that were given up.
            self._files.delete_dir_contents(staged)
        remove_drafts(self._files, f"{self._root}/{LOG}")
        return view

    def add(self, files: list[File]) -> None:
        """From now on the archive has what these files have."""
        if not files:
            return
        view = self.archive.view()
        known: Next = {topic: dict(partitions) for topic, partitions in view.next.items()}
        for file in files:
            of_topic = known.setdefault(file.topic, {})
            of_topic[file.partition] = max(of_topic.get(file.partition, 0), file.last + 1)
        self._append(view, files, [], known)

    def replace(self, old: list[File], new: list[File]) -> None:
        """From now on these files stand for those others, which have the same rows."""
        if sum(file.rows for file in old) != sum(file.rows for file in new):
            raise ArchiveError(
                f"files of {sum(file.rows for file in old)} rows were merged into files of "
                f"{sum(file.rows for file in new)} rows; none was exchanged"
            )
        if new:
            view = self.archive.view()
            self._append(view, new, old, view.next)

    def _append(self, view: View, added: list[File], removed: list[File], known: Next) -> None:
        number = view.entries
        whole = None
        if number % WHOLE_EVERY == 0:
            gone = {file.path for file in removed}
            whole = [file for file in view.files if file.path not in gone] + added
        entry = Entry(version=VERSION, added=added, removed=removed, next=known, whole=whole)
        self._save(number, entry)
        self._bring(entry)
        for old in self.archive.numbers():
            # Somebody may be reading since the last one that has all files.
            if old < number - number % WHOLE_EVERY - WHOLE_EVERY:
                self._files.delete_file(f"{self._root}/{LOG}/{old}.json")

    def _bring(self, entry: Entry) -> None:
        """Old files go before new ones come: who looks at the directory sees no row twice."""
        for file in entry.removed:
            path = f"{self._root}/{file.path}"
            if is_there(self._files, path):
                self._files.delete_file(path)
        for file in entry.added:
            path, staged = f"{self._root}/{file.path}", f"{self._root}/{file.staged}"
            if not is_there(self._files, path):
                self._files.create_dir(path.rpartition("/")[0], recursive=True)
                try:
                    self._files.move(staged, path)
                except FileNotFoundError:
                    raise ArchiveError(
                        f"the archive {self.archive.directory} lacks {file.path}, which became "
                        "part of it last; somebody else moved or removed it"
                    ) from None
                sync(self._files, path.rpartition("/")[0])

    def _save(self, number: int, entry: Entry) -> None:
        """The whole of it or nothing, and nothing where there is one of this number."""
        path = f"{self._root}/{LOG}/{number}.json"
        if not save_first(self._files, path, msgspec.json.encode(entry)):
            raise ArchiveError(
                f"somebody else adds to the archive {self.archive.directory} at the same time; "
                "one query at a time may"
            )


def whole_path(directory: str) -> str:
    """The same directory for whoever is in another one."""
    files, _ = file_system(directory)
    return str(Path(directory).absolute()) if isinstance(files, fs.LocalFileSystem) else directory


# On executors


def stage(directory: str, known: Next, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[File]:
    """Write the rows of one stretch into files, one for each day, but for what is archived."""
    archive = Archive(directory)
    writers: dict[tuple[str, int, str], _Writer] = {}
    # Rows have the time of their batch in its first row, which may be in the part before.
    ordered: pyarrow.Scalar | None = None
    left_out: set[tuple[str, int]] = set()
    with contextlib.ExitStack() as opened:
        for part in batches:
            if not part.num_rows:
                continue
            times = compute.struct_field(part["proof"], "ordered")
            if not times[0].is_valid and ordered is not None:
                times = pyarrow.concat_arrays([pyarrow.array([ordered], times.type), times[1:]])
            times = compute.fill_null_forward(times)
            ordered = times[-1]
            for topic, partition, date, rows in _divided(part, times):
                first = known.get(topic, {}).get(partition, 0)
                new = rows.filter(compute.greater_equal(rows["offset"], first))
                if new.num_rows < rows.num_rows:
                    left_out.add((topic, partition))
                if not new.num_rows:
                    continue
                if (topic, partition) in left_out:
                    raise ConfigError(
                        f"the archive {directory} ends at offset {first} of partition {partition} "
                        f"of '{topic}', in the middle of what the query has planned: its "
                        "checkpoint is that of another archive; without that checkpoint it goes "
                        "on where this archive ends"
                    )
                key = topic, partition, date
                if key not in writers:
                    writers[key] = opened.enter_context(_Writer(archive, *key, new.schema))
                writers[key].write(new)
        for writer in writers.values():
            yield writer.finish()


def merge(directory: str, files: list[File]) -> File:
    """Write the rows of these files, which follow on each other, into one."""
    archive = Archive(directory)
    schema = parquet.read_schema(archive.place(files[0]), filesystem=archive.filesystem)
    key = files[0].topic, files[0].partition, files[0].date
    with _Writer(archive, *key, schema) as writer:
        for file in files:
            for part in archive.record_batches(file):
                writer.write(part)
        return writer.finish()


def small_files(view: View, target_bytes: int) -> list[list[File]]:
    """Which files are to be merged: those that fill a large one, and those of days that are over.

    A day of a partition is over when there are rows of a later one. Files follow on each other.
    """
    found: list[list[File]] = []
    days: dict[tuple[str, int], dict[str, list[File]]] = {}
    for file in sorted(view.files, key=lambda file: file.first):
        days.setdefault((file.topic, file.partition), {}).setdefault(file.date, []).append(file)
    for by_date in days.values():
        for date, files in by_date.items():
            run: list[File] = []
            for file in files:
                if 2 * file.size_bytes > target_bytes:
                    run = _ended(run, found, is_full=date < max(by_date))
                    continue
                run.append(file)
                if sum(each.size_bytes for each in run) >= target_bytes:
                    run = _ended(run, found, is_full=True)
            _ended(run, found, is_full=date < max(by_date))
    return found


def _ended(run: list[File], found: list[list[File]], *, is_full: bool) -> list[File]:
    if is_full and len(run) > 1:
        found.append(run)
    return []


class _Writer:
    """A file that is being written. Given up on, it is a file that nobody names."""

    def __init__(
        self, archive: Archive, topic: str, partition: int, date: str, schema: pyarrow.Schema
    ) -> None:
        self._files, self._root = archive.filesystem, archive.root
        self._key = topic, partition, date
        self._token = secrets.token_hex(4)
        self._staged = f"{STAGED}/{secrets.token_hex(16)}.parquet"
        self._files.create_dir(f"{self._root}/{STAGED}", recursive=True)
        self._writer = parquet.ParquetWriter(
            f"{self._root}/{self._staged}", schema, filesystem=self._files, compression="zstd"
        )
        self._schema = schema
        self._waiting: list[pyarrow.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = self._rows = 0
        self._first = self._last = -1

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, rows: pyarrow.RecordBatch) -> None:
        if not rows.num_rows:
            return
        offsets = rows["offset"]
        if self._first < 0:
            self._first = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def finish(self) -> File:
        self._flush()
        self._writer.close()
        path = f"{self._root}/{self._staged}"
        sync(self._files, path)
        topic, partition, date = self._key
        name = f"{partition}-{self._first}-{self._token}.parquet"
        return File(
            path=f"topic={quote(topic, safe='')}/date={date}/{name}",
            staged=self._staged,
            topic=topic,
            date=date,
            partition=partition,
            first=self._first,
            last=self._last,
            rows=self._rows,
            size_bytes=self._files.get_file_info(path).size,
        )

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pyarrow.Table.from_batches(self._waiting, self._schema))
            self._rows += self._waiting_rows
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0


def _divided(
    part: pyarrow.RecordBatch, times: pyarrow.Array
) -> Iterator[tuple[str, int, str, pyarrow.RecordBatch]]:
    """These rows by topic, partition and day. They mostly are of one of each, and never mixed."""
    days = times.cast(pyarrow.timestamp("us")).cast(pyarrow.date32())
    keys = [part["topic"], part["partition"], days]
    changes = numpy.zeros(part.num_rows - 1, dtype=bool)
    for key in keys:
        changes |= compute.not_equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False)
    bounds = [0, *(numpy.flatnonzero(changes) + 1).tolist(), part.num_rows]
    for start, end in pairwise(bounds):
        topic, partition, day = (key[start].as_py() for key in keys)
        yield topic, partition, day.isoformat(), part.slice(start, end - start)
