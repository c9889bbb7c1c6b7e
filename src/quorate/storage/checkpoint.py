"""The small files that a replica starts from.

`checkpoint` says what the index and tree files had at a position of the journal, and what was
pending there. `snapshot-N` has the state of group N's machine. Each is replaced in one step and
true on its own: applying the journal from the checkpoint's position gives the files, replaying a
group's records behind its snapshot gives its machine. `certified-N` has the last state that a
quorum signed, for those who need it; it proves itself, however old it is.
"""

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from quorate.protocol.ordering.records import Certified, Snapshot
from quorate.storage.absents import Gap
from quorate.storage.errors import StorageError
from quorate.storage.files import read_checked, replace_file
from quorate.storage.groups import GroupState
from quorate.storage.index import IndexState
from quorate.storage.pending import Run, Source
from quorate.storage.usage import SegmentUse

# Of the index files: since version 2 a run has its leaf.
FORMAT_VERSION = 2

_SNAPSHOT = re.compile(r"snapshot-(\d+)")
_CHECKPOINT = "checkpoint"

_Content = TypeVar("_Content", bound=msgspec.Struct)


class Checkpoint(msgspec.Struct, frozen=True):
    """Everything that is derived from the journal up to `position`."""

    position: int
    chunk_entries: int
    indexes: list[IndexState] = []
    groups: list[GroupState] = []
    pending: list[tuple[Source, Run]] = []
    absents: list[tuple[Source, Gap]] = []
    segments: list[SegmentUse] = []
    version: int = 1


class SavedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot, and from where on the journal has records behind it."""

    snapshot: Snapshot
    replay: int


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    replace_file(directory / _CHECKPOINT, msgspec.msgpack.encode(checkpoint))


def load_checkpoint(directory: Path) -> Checkpoint | None:
    return _load(directory / _CHECKPOINT, Checkpoint)


def save_snapshot(directory: Path, saved: SavedSnapshot) -> None:
    name = f"snapshot-{saved.snapshot.group}"
    replace_file(directory / name, msgspec.msgpack.encode(saved))


def load_snapshots(directory: Path) -> dict[int, SavedSnapshot]:
    """The newest snapshot of each group that has one."""
    found: dict[int, SavedSnapshot] = {}
    for path in sorted(directory.iterdir()):
        if _SNAPSHOT.fullmatch(path.name) and (saved := _load(path, SavedSnapshot)):
            found[saved.snapshot.group] = saved
    return found


def save_certified(directory: Path, certified: Certified) -> None:
    replace_file(directory / f"certified-{certified.group}", msgspec.msgpack.encode(certified))


def load_certified(directory: Path, group: int) -> Certified | None:
    return _load(directory / f"certified-{group}", Certified)


def _load(path: Path, kind: type[_Content]) -> _Content | None:
    data = read_checked(path)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(f"{path} is not one that this version can read: {error}") from error
