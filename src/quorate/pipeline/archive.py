"""An archive: topics as Parquet files, in which each row is once, and can be proved offline.

    archive = Archive("archive")
    archive.table("payments", columns=["key", "value"])
    proof = prove_archived(archive, keys, "payments", 0, 4711)  # the event at this offset

Files lie where other tools look for them, and a *log* says which of them are the archive:

    DIRECTORY/topic=payments/date=2026-11-16/0-17-5b0c8e12.parquet    partition 0, from offset 17
    DIRECTORY/_archive/log/41.json    what became part of the archive then, and what it replaced
    DIRECTORY/_archive/staged/        files that are no part of it, or on their way to their place

Offsets are those of events, and all events of a batch are in one file. The date is that of the time
at which a batch was ordered. An entry of the log appears whole or not
at all, and whoever reads takes the files that the entries up to the last one name. So a batch of a
query is there with all of its rows or with none, and the same holds for what compaction puts in the
place of small files. One entry of so many has all files, and what is before it need not be read.

A file gets to its place after the entry that names it, and what it replaces goes before that. So
tools that look at the directory alone, and not at the log, never see a row twice; for the moment
that it takes to rename files they may not see some. Whoever reads through this module sees all.

Nothing here needs Spark, and nothing a cluster: `archiving.py` writes, this reads.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec
import pyarrow
from pyarrow import compute, fs, parquet
from pyarrow.dataset import Dataset
from pyarrow.dataset import dataset as over

from quorate.client.proving import shown
from quorate.core.errors import LocalProtocolError, QuorateError
from quorate.core.limits import BATCH_EVENTS_MAX
from quorate.crypto.merkle import HASH_BYTES, inclusion_in_runs
from quorate.crypto.proofs import Keys, Proof, verify
from quorate.crypto.sids import Place
from quorate.pipeline.places import file_system
from quorate.pipeline.proofs import payload_of

# Of entries and of what files have.
VERSION = 2
LOG = "_archive/log"
STAGED = "_archive/staged"
# One entry of so many has all files.
WHOLE_EVERY = 64
# Files that are renamed or replaced while somebody reads are looked for again so often.
ATTEMPTS = 20

# By topic and partition, the first offset that is not archived.
Next = dict[str, dict[int, int]]

_Found = TypeVar("_Found")


class ArchiveError(QuorateError):
    """What is archived is not what was ordered, or is not there any more."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of rows of one partition, and where it is until it is where it belongs."""

    path: str
    staged: str
    topic: str
    date: str
    partition: int
    # Offsets of events; both are in it.
    first: int
    last: int
    rows: int
    size_bytes: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """How an archive went on."""

    version: int
    added: list[File]
    removed: list[File]
    next: Next
    # All files, after that; in one entry of `WHOLE_EVERY`.
    whole: list[File] | None = None


class _Version(msgspec.Struct, frozen=True):
    version: int = 1


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive is after so many entries."""

    entries: int
    files: list[File]
    next: Next


class Archive:
    """The reading side."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.filesystem, root = file_system(directory)
        self.root = root.rstrip("/")

    def view(self) -> View:
        """What it is now; without a log it has nothing."""
        return self._again(self._view)

    def entry(self, number: int) -> Entry:
        with self.filesystem.open_input_stream(f"{self.root}/{LOG}/{number}.json") as file:
            text = file.read()
        # The first version did not say which one it is.
        if (version := msgspec.json.decode(text, type=_Version).version) != VERSION:
            raise ArchiveError(
                f"the archive {self.directory} is of version {version}, and this program reads "
                f"version {VERSION}: archive the topics again in another directory, or read this "
                "one with the version of Quorate that made it"
            )
        return msgspec.json.decode(text, type=Entry)

    def place(self, file: File) -> str:
        """Where a file is now."""
        for path in (file.path, file.staged):
            whole = f"{self.root}/{path}"
            if self.filesystem.get_file_info(whole).type is fs.FileType.File:
                return whole
        raise FileNotFoundError(file.path)

    def dataset(self, topic: str | None = None) -> Dataset:
        """All rows, or those of a topic, as Arrow reads many files.

        It is what the archive is now. Arrow opens files when it reads them, and where one was
        merged with others meanwhile, that fails with `FileNotFoundError`.
        """
        return self._again(lambda: self._dataset(topic))

    def table(
        self,
        topic: str | None = None,
        columns: list[str] | None = None,
        where: compute.Expression | None = None,
    ) -> pyarrow.Table:
        """The same rows in memory, or some columns of some of them; it may be read at any time."""
        return self._again(lambda: self._dataset(topic).to_table(columns=columns, filter=where))

    def batch(
        self, topic: str, partition: int, offset: int, columns: list[str] | None = None
    ) -> pyarrow.Table:
        """The rows of the batch that has the event at this offset, in their order."""
        place = compute.field("offset")

        def find() -> pyarrow.Table:
            files = [
                self.place(file)
                for file in self._files()
                if (file.topic, file.partition) == (topic, partition)
                and file.first <= offset <= file.last
            ]
            if not files:
                raise self._no_event(topic, partition, offset)
            found = over(files, filesystem=self.filesystem, format="parquet")
            event = found.to_table(columns=["offset", "index"], filter=place == offset)
            if not event.num_rows:
                raise self._no_event(topic, partition, offset)
            first = offset - event["index"][0].as_py()
            within = (place >= first) & (place < first + BATCH_EVENTS_MAX)
            return found.to_table(
                columns=columns, filter=within & (place - compute.field("index") == first)
            )

        return self._again(find).sort_by("index")

    def record_batches(self, file: File) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one file."""
        with parquet.ParquetFile(self.place(file), filesystem=self.filesystem) as opened:
            yield from opened.iter_batches()

    def _dataset(self, topic: str | None) -> Dataset:
        files = [file for file in self._files() if topic in (None, file.topic)]
        if not files:
            raise LocalProtocolError(f"the archive {self.directory} has no rows of '{topic}'")
        found = [self.place(file) for file in files]
        return over(found, filesystem=self.filesystem, format="parquet")

    def _files(self) -> list[File]:
        view = self._view()
        if not view.entries:
            raise LocalProtocolError(f"there is no archive in {self.directory}")
        return view.files

    def _view(self) -> View:
        last = max(self.numbers(), default=-1)
        if last < 0:
            return View(entries=0, files=[], next={})
        begin = last - last % WHOLE_EVERY
        entries = [self.entry(number) for number in range(begin, last + 1)]
        files = {file.path: file for file in entries[0].whole or []}
        for entry in entries[1:]:
            for file in entry.removed:
                del files[file.path]
            files |= {file.path: file for file in entry.added}
        return View(entries=last + 1, files=[*files.values()], next=entries[-1].next)

    def numbers(self) -> list[int]:
        """Of the entries that are there."""
        selector = fs.FileSelector(f"{self.root}/{LOG}", allow_not_found=True)
        names = [info.base_name for info in self.filesystem.get_file_info(selector)]
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _again(self, find: Callable[[], _Found]) -> _Found:
        """What is read while files get other names or are replaced is read again."""
        for _ in range(ATTEMPTS - 1):
            try:
                return find()
            except FileNotFoundError:
                continue
        try:
            return find()
        except FileNotFoundError as error:
            raise ArchiveError(
                f"the archive {self.directory} lacks a file that belongs to it: {error}"
            ) from None

    def _no_event(self, topic: str, partition: int, offset: int) -> LocalProtocolError:
        return LocalProtocolError(
            f"the archive {self.directory} has no event at offset {offset} of partition "
            f"{partition} of '{topic}'"
        )


def prove_archived(
    archive: Archive,
    keys: Keys,
    topic: str,
    partition: int,
    offset: int,
    *,
    whole: bool = False,
) -> Proof:
    """A proof of the event at this offset, as `quorate prove` makes it of what replicas have.

    `ArchiveError` says of which rows that does not hold any more. Nothing else is believed: what is
    handed out verifies with these keys.
    """
    rows = archive.batch(topic, partition, offset)
    where = f"offset {offset} of partition {partition} of '{topic}' in the archive"
    where = f"{where} {archive.directory}"
    kept = _first(rows, where)
    if kept["range"] is None:
        raise LocalProtocolError(
            f"nothing leads from {where} to a checkpoint: its topic was not ordered by replicas "
            "that bear liars, or it was archived without being verified"
        )
    try:
        anchor = archive.batch(topic, partition, kept["range"], ["index", "proof"])
        proof = _proof(keys, rows, kept, _first(anchor, where))
        verify(proof, keys)
    except (QuorateError, pyarrow.ArrowException, KeyError, TypeError, IndexError) as error:
        raise ArchiveError(f"what is at {where} is not what was ordered: {error}") from error
    return shown(proof, offset, keys, whole=whole)


def _first(rows: pyarrow.Table, where: str) -> dict[str, Any]:
    """What the first row of a batch has for all of them."""
    indices = rows["index"].to_pylist()
    if indices != [*range(len(indices))]:
        raise ArchiveError(f"of the rows at {where} some are missing, or there twice")
    kept: dict[str, Any] | None = rows["proof"][0].as_py()
    if kept is None:
        raise ArchiveError(f"what is at {where} was archived without what a proof takes")
    return kept


def _proof(keys: Keys, rows: pyarrow.Table, kept: dict[str, Any], anchor: dict[str, Any]) -> Proof:
    row = rows.select(["topic", "partition", "offset", "checkpoint"]).slice(0, 1).to_pylist()[0]
    runs = [range(run["leaf"], run["leaf"] + run["count"]) for run in anchor["runs"]]
    leaf = [*chain.from_iterable(runs)][kept["number"]]
    size = row["checkpoint"]
    path = inclusion_in_runs(
        leaf, hashes_in(anchor["leaves"]), runs, size, hashes_in(anchor["path"])
    )
    return Proof.of(
        Place(keys.cluster, row["topic"], row["partition"], kept["client"], kept["session"]),
        row["offset"],
        kept["sequence"],
        time_us_of(rows),
        payload_of(kept, rows),
        leaf=leaf,
        tree_size=size,
        path=path,
        checkpoint=anchor["note"],
    )


def time_us_of(rows: pyarrow.Table) -> int:
    """When the first of these batches was ordered."""
    ordered = compute.struct_field(rows["proof"].combine_chunks(), "ordered")
    found: int = ordered.cast(pyarrow.int64())[0].as_py()
    return found


def hashes_in(joined: bytes) -> list[bytes]:
    """Hashes that are laid end to end, one by one."""
    return [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
