"""Every file of a store has a version, and no encoding changes without a new one."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from quorate.core.ordering import Line
from quorate.protocol.ordering.records import (
    Certified,
    Decided,
    Disowned,
    Dropped,
    Held,
    Installed,
    Named,
    Placed,
    Receipted,
    Snapshot,
    Voted,
)
from quorate.storage.errors import StorageError
from quorate.storage.files import read_checked, replace_file
from quorate.storage.formats import Format
from quorate.storage.frames import encode_frame
from quorate.storage.heads import (
    SEGMENTS,
    Entry,
    Head,
    Moved,
    Synced,
    decode_head,
    encode_head,
    split,
)
from quorate.storage.pointers import Pointer, Pointers
from quorate.storage.store import FORMATS, DiskStore
from stores import LINES, Disk, batch, check, described

GOLDEN = Path(__file__).parents[1] / "golden" / "storage"
MARK = bytes(range(16))
LINE = Line(3, 7, 0)
VERSIONS = {each.kind: each.version for each in FORMATS}
# Index and tree files are in the format of the checkpoint.
COLUMNS = {
    "partition-7-0-places": "index-places",
    "partition-7-0-offsets": "index-offsets",
    "partition-7-0-chains": "index-chains",
    "partition-7-0-runs": "index-runs",
    "group-0-slots": "group-slots",
    "group-0-level-0": "group-leaves",
}

HELD = Held(*LINE, 1, [batch(b"one", 2), batch(b"two", 3)])
RECEIPT = Receipted(2, 3, 4, b"c" * 32, b"s" * 64, b"d" * 32)
PLACED = Placed(
    *LINE, 1, 0, 0, described(2, "one") + described(3, "two"), b"l" * 64, b"c" * 64, [1], b"b" * 32,
    [RECEIPT],
)  # fmt: skip
DECIDED = Decided(0, 1, 10**15, b"value", [PLACED])
VOTED = Voted(
    0, 3, 5, 2, b"d" * 32, {b"d" * 32: 2}, [b"value"], [HELD], [Named(*LINE, 1, described(2))]
)
RECORDS: list[Entry] = [
    HELD, Dropped(*LINE), Disowned(0, 7, 0), Moved(7, 0, 1, HELD.payloads), VOTED, DECIDED,
    Installed(0, 1, b"state", 2),
]  # fmt: skip


def framed(head: Head, payloads: Sequence[bytes]) -> bytes:
    return b"".join(encode_frame(encode_head(head), payloads)[0])


def written(directory: Path) -> dict[str, bytes]:
    """What a store writes of each kind, by the kind and its version."""
    store = DiskStore(directory, chunk_entries=8, reserve_bytes=0)
    store.append([HELD, VOTED])
    store.sync()
    store.append([DECIDED, Snapshot(0, 1, b"state"), Certified(0, 1, b"state", "signed")])
    store.append([Held(*LINE, 3, [batch(b"three", 1)])])
    store.close()
    pointers = Pointers(directory)
    pointers.name(7, "quorate.orders")
    found = {
        f"{name}.v{VERSIONS[name]}": (directory / file).read_bytes()
        for name, file in (
            ("checkpoint", "checkpoint"),
            ("snapshot", "snapshot-0"),
            ("certified", "certified-0"),
            ("witness", "witness"),
            ("outside", "outside"),
            ("journal", f"journal-{0:020d}.v{SEGMENTS.version}.log"),
        )
    }
    for file, name in COLUMNS.items():
        column = directory / "index" / f"{file}-{0:020d}"
        found[f"{name}.v{VERSIONS['checkpoint']}"] = column.read_bytes()
    heads: list[tuple[Head, Sequence[bytes]]] = [*map(split, RECORDS), (Synced(MARK, 5), ())]
    for head, payloads in heads:
        name = type(head).__name__.removesuffix("Head").lower()
        found[f"record-{name}.v{SEGMENTS.version}"] = framed(head, payloads)
    found[f"pointer.v{VERSIONS['outside']}"] = pointers.encode(Pointer(5, 8_000_000, b"d" * 32))
    return found


def lines_of(content: bytes) -> str:
    return "".join(content[at : at + 32].hex() + "\n" for at in range(0, len(content), 32))


@pytest.fixture(autouse=True)
def one_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda count: MARK[:count])


def test_no_encoding_changes_without_a_new_version(tmp_path: Path) -> None:
    """A golden file that is missing is written: look at it, and add it to the repository."""
    found = written(tmp_path / "data")
    changed, missing = [], []
    for name, content in found.items():
        golden = GOLDEN / f"{name}.hex"
        if not golden.exists():
            missing.append(golden.name)
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_text(lines_of(content))
        elif golden.read_text() != lines_of(content):
            changed.append(golden.name)
    assert changed == [], "give it a new version in its `Format`, and leave a reader of this one"
    assert missing == [], "written just now"


def test_what_is_written_in_each_version_that_can_be_read_is_in_a_golden_file(
    tmp_path: Path,
) -> None:
    for each in FORMATS:
        for version in each.readers:
            golden = bytes.fromhex((GOLDEN / f"{each.kind}.v{version}.hex").read_text())
            if each is not SEGMENTS:
                (tmp_path / each.kind).write_bytes(golden)
                assert each.load(tmp_path / each.kind) is not None


# Versions that are made up


class Old(msgspec.Struct):
    seconds: int


class New(msgspec.Struct):
    micros: int


def converted(data: bytes | memoryview) -> New:
    return New(msgspec.msgpack.decode(data, type=Old).seconds * 1_000_000)


def test_the_present_version_and_the_one_before_are_read_and_others_refused_in_a_sentence(
    tmp_path: Path,
) -> None:
    path, read = tmp_path / "times", msgspec.msgpack.Decoder(New).decode
    first = Format("times", {1: msgspec.msgpack.Decoder(Old).decode})
    second = Format("times", {1: converted, 2: read})
    third = Format("times", {2: read, 3: read})

    first.save(path, Old(5))
    assert second.load(path) == New(5_000_000)
    with pytest.raises(StorageError, match=r"earlier version.*quorate replica NAME restore"):
        third.load(path)
    second.save(path, New(5))
    assert third.load(path) == New(5)
    with pytest.raises(StorageError, match=r"later version.*start this replica with that one"):
        first.load(path)


def test_a_journal_of_the_version_before_is_read_and_goes_on_in_the_present_one(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.hold(LINES[0], 3)
    disk.decide({LINES[0]: 2})
    version = SEGMENTS.version
    monkeypatch.setattr(SEGMENTS, "readers", {version: decode_head, version + 1: decode_head})
    for _ in range(2):
        disk.crash()
        disk.hold(LINES[0], 1)
        disk.decide({LINES[0]: 1})
        disk.check()
    names = sorted(path.name.split(".")[1] for path in disk.directory.glob("journal-*"))
    assert set(names) == {f"v{version}", f"v{version + 1}"}
    disk.crash()
    check(disk.store, disk.oracle)

    monkeypatch.setattr(SEGMENTS, "readers", {version + 1: decode_head, version + 2: decode_head})
    with pytest.raises(StorageError, match=r"journal-.* earlier version of Quorate"):
        DiskStore(disk.image(), **disk.options)


# Files of before there were versions


@pytest.mark.parametrize("name", ["checkpoint", "snapshot-0", "witness", "certified-0"])
def test_a_file_of_before_there_were_versions_is_refused_in_a_sentence(
    tmp_path: Path, name: str
) -> None:
    written(tmp_path)
    path = tmp_path / name
    content = read_checked(path)
    assert content is not None
    replace_file(path, content[1:])

    with pytest.raises(StorageError, match=rf"{name} was written by an earlier version of Quorate"):
        DiskStore(tmp_path, chunk_entries=8).certified(0)


def test_a_journal_of_before_there_were_versions_is_refused_in_a_sentence(tmp_path: Path) -> None:
    written(tmp_path)
    (segment,) = tmp_path.glob("journal-*")
    segment.rename(tmp_path / f"journal-{0:020d}.log")

    with pytest.raises(StorageError, match=r"\.log was written by an earlier version of Quorate"):
        DiskStore(tmp_path, chunk_entries=8)
