"""Where rows wait until they are published, so that each of them is published once.

Executors write what their tasks bring into files (`write`), and nobody sees any of it. When Spark
says that a batch of a query is complete (`commit`), the driver writes down which files it has, in a
*manifest*, and publishes them. A manifest that is there is never made again: whoever commits the
batch once more, after a crash, publishes just those files, and what other tasks wrote meanwhile is
thrown away. With the files, the session and the first number of each line, all that is published
follows from it to the byte (`client/resuming.py`), and replicas take each number once.

    STAGING/QUERY/state.json            the session, and what comes next after the last batch
    STAGING/QUERY/manifest-7.json       what batch 7 is, while it is being published
    STAGING/QUERY/progress-7.json       how much of it has its receipts
    STAGING/QUERY/batch-7/*.arrow       rows that wait

It may be any place that Arrow knows, if the driver and all executors share it.
"""

import secrets
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import pyarrow
from pyarrow import fs, ipc

from quorate.client.resuming import SECRET_BYTES
from quorate.core.errors import ConfigError, QuorateError
from quorate.core.ids import SESSION_MAX
from quorate.pipeline.places import file_system, is_there, remove_drafts, save, save_first, sync

# By topic and partition, the number of the next batch.
Numbers = dict[str, dict[int, int]]

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Who publishes, the last batch that is published, and which numbers come next."""

    cluster: str
    session: int
    secret: bytes
    batch: int = -1
    next: Numbers = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch of a query is."""

    batch: int
    time_us: int
    files: list[str]
    next: Numbers


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """So many record batches of a manifest have their receipts, and these numbers come next."""

    done: int = 0
    next: Numbers = {}


class Staging:
    """The files of one query."""

    def __init__(self, directory: str, query: str) -> None:
        self._files, root = file_system(directory)
        self._root = f"{root}/{query}"

    # On executors

    def write(self, batch: int, parts: Iterator[pyarrow.RecordBatch]) -> str:
        """Write these rows into a file of their own; says which. Without rows there is none."""
        first = next(parts, None)
        if first is None:
            return ""
        directory = f"batch-{batch}"
        name = f"{directory}/{secrets.token_hex(8)}.arrow"
        self._files.create_dir(f"{self._root}/{directory}", recursive=True)
        with (
            self._files.open_output_stream(f"{self._root}/{name}") as file,
            ipc.new_stream(file, first.schema) as stream,
        ):
            stream.write_batch(first)
            for part in parts:
                stream.write_batch(part)
        sync(self._files, f"{self._root}/{name}")
        return name

    # On the driver

    def state(self, cluster: str) -> State:
        """What is known of this query; of a new one, who it is from now on."""
        found = self._load("state.json", State)
        if found is None:
            new = State(
                cluster=cluster,
                session=1 + secrets.randbelow(SESSION_MAX),
                secret=secrets.token_bytes(SECRET_BYTES),
            )
            found = self._first("state.json", new)
        if found.cluster != cluster:
            raise ConfigError(
                f"{self._root} has what was published on cluster {found.cluster}, and this is "
                f"cluster {cluster}; a query stays with its cluster"
            )
        return found

    def manifest(self, batch: int) -> Manifest | None:
        return self._load(f"manifest-{batch}.json", Manifest)

    def begin(self, manifest: Manifest) -> Manifest:
        """From now on this is what the batch is, unless somebody else has just said so.

        What a driver has under way may go on for a moment after it was killed.
        """
        return self._first(f"manifest-{manifest.batch}.json", manifest)

    def progress(self, batch: int) -> Progress | None:
        return self._load(f"progress-{batch}.json", Progress)

    def note(self, batch: int, progress: Progress) -> None:
        self._save(f"progress-{batch}.json", progress)

    def end(self, state: State) -> None:
        """This is the last batch that is published, and nothing of it waits any more."""
        self._save("state.json", state)
        self.collect(state.batch)

    def collect(self, through: int) -> None:
        """Remove what is left of batches up to this one, also of tasks that were given up."""
        remove_drafts(self._files, self._root)
        for info in self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True)):
            kind, _, number = info.base_name.removesuffix(".json").rpartition("-")
            if not number.isdecimal() or int(number) > through:
                continue
            if kind == "batch":
                self._files.delete_dir(info.path)
            elif kind in ("manifest", "progress"):
                self._files.delete_file(info.path)

    def remove(self, names: list[str]) -> None:
        """These files are of no use any more; some may be gone already."""
        for name in names:
            path = f"{self._root}/{name}"
            if is_there(self._files, path):
                self._files.delete_file(path)

    def remove_all(self) -> None:
        if is_there(self._files, self._root):
            self._files.delete_dir(self._root)

    def parts(self, manifest: Manifest) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a batch, in one order whenever they are read."""
        for name in manifest.files:
            with self._files.open_input_stream(f"{self._root}/{name}") as file:
                yield from ipc.open_stream(file)

    def _load(self, name: str, kind: type[_Kind]) -> _Kind | None:
        path = f"{self._root}/{name}"
        if not is_there(self._files, path):
            return None
        with self._files.open_input_stream(path) as file:
            data = file.read()
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise QuorateError(f"{path} is not what was written there: {error}") from None

    def _save(self, name: str, content: msgspec.Struct) -> None:
        save(self._files, f"{self._root}/{name}", msgspec.json.encode(content))

    def _first(self, name: str, content: _Kind) -> _Kind:
        """Of all who save something under this name for the first time, what one of them saved."""
        if save_first(self._files, f"{self._root}/{name}", msgspec.json.encode(content)):
            return content
        found = self._load(name, type(content))
        assert found is not None
        return found
