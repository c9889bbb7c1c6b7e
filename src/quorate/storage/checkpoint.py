"""The small files that a replica starts from.

`checkpoint` says what the index and tree files had at a position of the journal, and what was
pending there. `snapshot-N` has the state of group N's machine. Each is replaced in one step and
true on its own: applying the journal from the checkpoint's position gives the files, replaying a
group's records behind its snapshot gives its machine. `certified-N` has the last state that a
quorum signed, for those who need it; it proves itself, however old it is.
"""

import re
from pathlib import Path

import msgspec

from quorate.protocol.ordering.records import Certified, Snapshot
from quorate.storage.formats import Format
from quorate.storage.groups import GroupState
from quorate.storage.index import IndexState
from quorate.storage.pending import Gap, Run, Source
from quorate.storage.usage import SegmentUse

_SNAPSHOT = re.compile(r"snapshot-(\d+)")


class Checkpoint(msgspec.Struct, frozen=True):
    """Everything that is derived from the journal up to `position`."""

    position: int
    chunk_entries: int
    indexes: list[IndexState] = []
    groups: list[GroupState] = []
    pending: list[tuple[Source, Run]] = []
    absents: list[tuple[Source, Gap]] = []
    segments: list[SegmentUse] = []


class SavedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot, and from where on the journal has records behind it."""

    snapshot: Snapshot
    replay: int


# Of the index and tree files as well: since version 2 a run has its leaf, and since version 3 there
# are offsets of events.
CHECKPOINTS = Format("checkpoint", {3: msgspec.msgpack.Decoder(Checkpoint).decode})
SNAPSHOTS = Format("snapshot", {1: msgspec.msgpack.Decoder(SavedSnapshot).decode})
CERTIFIED = Format("certified", {1: msgspec.msgpack.Decoder(Certified).decode})


def load_snapshots(directory: Path) -> dict[int, SavedSnapshot]:
    """The newest snapshot of each group that has one."""
    found: dict[int, SavedSnapshot] = {}
    for path in sorted(directory.iterdir()):
        if _SNAPSHOT.fullmatch(path.name) and (saved := SNAPSHOTS.load(path)):
            found[saved.snapshot.group] = saved
    return found
