"""The journal keeps what was synced, and never shows what was not wholly written."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.protocol.ordering.records import Decided, Held, Placed, Voted
from quorate.storage import journal as journal_module
from quorate.storage.errors import DiskFullError, StorageError
from quorate.storage.files import Files, uncache
from quorate.storage.frames import encode_frame
from quorate.storage.heads import Entry, Head, Moved, Synced, encode_head, split
from quorate.storage.journal import WITNESSES, Journal

RECORDS: list[Entry] = [
    Held(2**64 - 1, 7, 0, 1, [b"one!", b"two!"]),
    Voted(0, 3, 5, 2, b"d" * 32, {b"d" * 32: 2}, [b"value"]),
    Decided(1, 5, 10**15, b"value", [Placed(9, 7, 0, 1, 0, 0, b"d" * 32, b"l" * 32, b"c" * 32)]),
    Moved(7, 0, 17, [b"moved", b"too!"]),
    Held(8, 7, 0, 1, [b"last!"]),
]


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a disk are made here by copying files, so that nothing has to reach it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


in_use = ExitStack()


@pytest.fixture(autouse=True)
def closed_in_the_end() -> Iterator[None]:
    yield
    in_use.close()


def opened(directory: Path, *, segment_bytes: int = 10**6, synced: int = 0) -> Journal:
    directory.mkdir(exist_ok=True)
    files = Files()
    in_use.callback(files.close)
    journal = Journal(directory, files, segment_bytes=segment_bytes, synced=synced)
    in_use.callback(journal.close)
    return journal


def heads(records: Sequence[Entry]) -> list[Head]:
    return [split(record)[0] for record in records]


def found(journal: Journal, position: int = 0) -> list[Head]:
    return [frame.head for frame in journal.replay(position)]


def written(directory: Path, records: Sequence[Entry]) -> list[int]:
    """A journal with these records; says where each ends."""
    journal = opened(directory)
    ends = [journal.append([record])[0].end for record in records]
    journal.close()
    return ends


def segment(directory: Path) -> Path:
    return max(directory.glob("journal-*.log"))


def check_recovery(directory: Path, content: bytes, expected: Sequence[Entry]) -> None:
    """A journal whose last segment has this content has these records, and goes on from there."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    Path(f"{directory}/journal-{0:020d}.v1.log").write_bytes(content)
    journal = opened(directory)
    assert found(journal) == heads(expected)
    journal.append([RECORDS[1]])
    journal.close()
    assert found(opened(directory)) == heads([*expected, RECORDS[1]])
    in_use.close()


payloads = st.lists(st.binary(max_size=6000), max_size=6)


@given(st.lists(st.lists(payloads, max_size=4), max_size=4))
def test_what_is_written_is_read_back_and_each_payload_has_its_place(
    tmp_path_factory: pytest.TempPathFactory, calls: list[list[list[bytes]]]
) -> None:
    journal = opened(tmp_path_factory.mktemp("journal"), segment_bytes=5000)
    records = []
    for call in calls:
        helds: list[Entry] = [Held(1, 2, 3, 4, content) for content in call]
        for frame, record in zip(journal.append(helds), helds, strict=True):
            assert isinstance(record, Held)
            content = b"".join(record.payloads)
            assert journal.segments.read(frame.payloads_at, len(content)) == content
            assert journal.segments.frame(frame.position) == frame
        records += helds
    assert found(journal) == heads(records)
    in_use.close()


def test_every_kind_of_record_survives_closing(tmp_path: Path) -> None:
    written(tmp_path, RECORDS)
    assert found(opened(tmp_path)) == heads(RECORDS)


@pytest.mark.usefixtures("no_waiting")
def test_a_journal_that_was_cut_anywhere_has_the_records_before_the_cut(tmp_path: Path) -> None:
    ends = written(tmp_path / "whole", RECORDS)
    content = segment(tmp_path / "whole").read_bytes()
    for cut in range(len(content)):
        survivors = [record for record, end in zip(RECORDS, ends, strict=True) if end <= cut]
        check_recovery(tmp_path / "cut", content[:cut], survivors)


@pytest.mark.usefixtures("no_waiting")
def test_a_byte_that_was_altered_in_the_tail_ends_the_journal_before_its_record(
    tmp_path: Path,
) -> None:
    ends = written(tmp_path / "whole", RECORDS)
    content = segment(tmp_path / "whole").read_bytes()
    for at in range(ends[1], len(content)):
        survivors = [record for record, end in zip(RECORDS, ends, strict=True) if end <= at]
        for mask in (0x01, 0x80, 0xFF):
            altered = content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
            check_recovery(tmp_path / "altered", altered, survivors)


def test_what_stood_behind_a_damaged_record_does_not_come_back(tmp_path: Path) -> None:
    # Given a record that is damaged, and one behind it that is whole,
    first, damaged, *whole = RECORDS
    ends = written(tmp_path, RECORDS)
    content = bytearray(segment(tmp_path).read_bytes())
    content[ends[1] - 1] ^= 0xFF
    segment(tmp_path).write_bytes(content)
    # when a record of the same length is written in its place,
    journal = opened(tmp_path)
    assert found(journal) == heads([first])
    assert journal.append([damaged])[0].end == ends[1]
    journal.close()
    # then the journal ends with that.
    assert whole
    assert found(opened(tmp_path)) == heads([first, damaged])


@pytest.mark.usefixtures("no_waiting")
def test_a_tail_of_zeros_is_no_record(tmp_path: Path) -> None:
    ends = written(tmp_path / "whole", RECORDS)
    content = segment(tmp_path / "whole").read_bytes()
    for at in range(len(content) + 1):
        # All records end in something else than zero, so none is whole that lost its end.
        survivors = [record for record, end in zip(RECORDS, ends, strict=True) if end <= at]
        for zeros in (len(content) - at, len(content) - at + 4096):
            check_recovery(tmp_path / "zeros", content[:at] + bytes(zeros), survivors)


def rolled(directory: Path) -> list[Path]:
    """A journal with a record in each of several segments."""
    journal = opened(directory, segment_bytes=1)
    for record in RECORDS:
        journal.append([record])
    journal.close()
    return sorted(directory.glob("journal-*.log"))


def test_a_segment_begins_where_the_one_before_it_ends(tmp_path: Path) -> None:
    files = rolled(tmp_path)
    assert len(files) == len(RECORDS)
    at = 0
    for file in files:
        assert file.name == f"journal-{at:020d}.v1.log"
        at += file.stat().st_size
    assert found(opened(tmp_path)) == heads(RECORDS)


def test_full_segments_leave_the_page_cache_except_for_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncached: list[str] = []
    monkeypatch.setattr(journal_module, "uncache", uncached.append)
    files = rolled(tmp_path)
    # The journal still writes to the last one, and the one before it is read most.
    assert uncached == [str(file) for file in files[:-2]]


def test_a_file_that_was_deleted_meanwhile_need_not_leave_the_page_cache(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    uncache(str(gone))
    assert not gone.exists()


def test_what_left_the_page_cache_is_read_from_disk(tmp_path: Path) -> None:
    for file in rolled(tmp_path):
        uncache(str(file))
    assert found(opened(tmp_path)) == heads(RECORDS)


def test_damage_before_the_last_segment_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    files = rolled(tmp_path)
    content = bytearray(files[1].read_bytes())
    content[-1] ^= 1
    files[1].write_bytes(content)
    first = int(files[1].name[8:28])
    with pytest.raises(StorageError, match=f"{files[1].name}.* byte 0 .position {first} "):
        found(opened(tmp_path))


def test_a_segment_before_the_last_that_was_cut_is_an_error(tmp_path: Path) -> None:
    files = rolled(tmp_path)
    os.truncate(files[1], files[1].stat().st_size - 1)
    with pytest.raises(StorageError, match=files[1].name):
        found(opened(tmp_path))


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    files = rolled(tmp_path)
    files[2].unlink()
    with pytest.raises(StorageError, match="no segment for position"):
        found(opened(tmp_path))


def test_a_segment_that_reaches_into_the_next_is_an_error(tmp_path: Path) -> None:
    files = rolled(tmp_path)
    with files[1].open("ab") as file:
        file.write(b"more")
    with pytest.raises(StorageError, match=f"{files[1].name}.* reaches into the next"):
        opened(tmp_path)


def test_damage_in_what_is_known_to_be_synced_is_an_error(tmp_path: Path) -> None:
    ends = written(tmp_path, RECORDS)
    content = bytearray(segment(tmp_path).read_bytes())
    content[ends[1] + 20] ^= 1
    segment(tmp_path).write_bytes(content)
    with pytest.raises(StorageError, match=f"damaged at byte {ends[1]}"):
        opened(tmp_path, synced=ends[2])
    assert found(opened(tmp_path, synced=ends[1])) == heads(RECORDS[:2])


def test_damage_in_front_of_what_says_that_it_was_synced_is_an_error(tmp_path: Path) -> None:
    """Something was said that rests on it, and nobody may take it for a tail that was torn."""
    journal = opened(tmp_path)
    ends = [journal.append([record])[0].end for record in RECORDS[:2]]
    journal.sync()
    ends += [journal.append([record])[0].end for record in RECORDS[2:]]
    journal.close()
    assert found(opened(tmp_path)) == heads(RECORDS)
    in_use.close()
    content = segment(tmp_path).read_bytes()
    for at, is_damage in ((ends[0] + 13, True), (ends[1] - 1, True), (ends[2] - 1, False)):
        altered = content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]
        segment(tmp_path).write_bytes(altered)
        if is_damage:
            with pytest.raises(StorageError, match=f"damaged at byte {ends[0]}"):
                opened(tmp_path)
            assert segment(tmp_path).read_bytes() == altered
        else:
            assert found(opened(tmp_path)) == heads(RECORDS[:2])
        in_use.close()


@pytest.mark.parametrize("filling", [b"\x00", b"\xff"])
def test_damage_of_any_kind_in_front_of_what_says_so_is_an_error(
    tmp_path: Path, filling: bytes
) -> None:
    """A block of the disk that is gone takes lengths with it, and what says where frames begin."""
    journal = opened(tmp_path)
    ends = [journal.append([record])[0].end for record in RECORDS[:3]]
    journal.sync()
    journal.append(RECORDS[3:])
    journal.close()
    in_use.close()
    content = segment(tmp_path).read_bytes()
    for start, end in ((0, 20), (4, 8), (ends[0], ends[1]), (ends[0] - 5, ends[2] - 1)):
        altered = content[:start] + filling * (end - start) + content[end:]
        segment(tmp_path).write_bytes(altered)
        with pytest.raises(StorageError, match="is damaged at byte"):
            opened(tmp_path)
        assert segment(tmp_path).read_bytes() == altered
        in_use.close()


def test_no_payload_passes_for_what_says_that_the_journal_was_synced(tmp_path: Path) -> None:
    """Or a publisher could keep a replica from starting after a power cut."""
    forged, _ = encode_frame(encode_head(Synced(bytes(16), 60)), ())
    ends = written(tmp_path, [RECORDS[0], Held(8, 7, 0, 1, [b"".join(forged)]), RECORDS[1]])
    content = bytearray(segment(tmp_path).read_bytes())
    content[ends[0] : ends[0] + 12] = bytes(12)
    segment(tmp_path).write_bytes(content)
    assert found(opened(tmp_path)) == heads(RECORDS[:1])


def test_a_last_segment_that_vanished_is_an_error(tmp_path: Path) -> None:
    files = rolled(tmp_path)
    files[-1].unlink()
    with pytest.raises(StorageError, match=f"{files[-1].name} is missing"):
        opened(tmp_path)


def test_a_segment_of_which_nobody_could_be_told_is_none_that_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DiskFullError("there is no room in this test")

    journal = opened(tmp_path, segment_bytes=1)
    journal.append([RECORDS[0]])
    monkeypatch.setattr(WITNESSES, "save", fail)
    journal.append([RECORDS[1]])
    monkeypatch.undo()
    journal.close()
    assert found(opened(tmp_path)) == heads(RECORDS[:2])
    in_use.close()
    # With room, it is known from then on.
    segment(tmp_path).unlink()
    with pytest.raises(StorageError, match="is missing"):
        opened(tmp_path)


def test_a_journal_that_lost_what_was_synced_is_an_error(tmp_path: Path) -> None:
    ends = written(tmp_path, RECORDS)
    os.truncate(segment(tmp_path), ends[2])
    with pytest.raises(StorageError, match=f"ends at position {ends[2]}, .*up to {ends[3]}"):
        opened(tmp_path, synced=ends[3])


def test_a_segment_is_synced_before_the_next_one_begins(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=1)
    journal.append([RECORDS[0]])
    end = journal.end
    assert journal.synced == 0
    journal.append([RECORDS[1]])
    assert journal.synced == end
    journal.sync()
    assert journal.synced == journal.end


def test_a_sync_covers_what_was_written_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    began, go_on = Event(), Event()

    def slow_sync(_: int) -> None:
        began.set()
        assert go_on.wait(10)

    monkeypatch.setattr(journal_module, "sync_file", slow_sync)
    journal.append([RECORDS[0]])
    before = journal.end
    thread = Thread(target=journal.sync)
    thread.start()
    assert began.wait(10)
    journal.append([RECORDS[1]])
    go_on.set()
    thread.join()
    assert journal.synced == before < journal.end
    assert found(journal) == heads(RECORDS[:2])


def test_what_one_call_appends_is_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    really = os.writev

    def counted(descriptor: int, buffers: Sequence[bytes]) -> int:
        writes.append(len(buffers))
        return really(descriptor, buffers)

    monkeypatch.setattr(os, "writev", counted)
    journal = opened(tmp_path)
    journal.append([*RECORDS, Held(1, 2, 3, 4, [b"small"] * 5000)])
    assert len(writes) == 1

    # Large payloads are not copied, and there may be more of them than one write takes.
    most = os.sysconf("SC_IOV_MAX")
    large = Held(1, 2, 3, 4, [bytes(4096)] * most)
    journal.append([large])
    assert writes[1:] == [most, 1]
    assert found(journal)[-1] == split(large)[0]


def test_a_write_that_stops_early_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(descriptor: int, buffers: Sequence[bytes]) -> int:
        return os.write(descriptor, b"".join(buffers)[:7])

    monkeypatch.setattr(os, "writev", short)
    journal = opened(tmp_path)
    journal.append(RECORDS)
    assert found(journal) == heads(RECORDS)


def failing_writes(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[int]:
    """Writes that write more and more, and then fail, until they would succeed."""
    really = os.writev
    for room in range(0, 10**6, 13):
        done = False

        def write(descriptor: int, buffers: Sequence[bytes], room: int = room) -> int:
            nonlocal done
            content = b"".join(buffers)
            if len(content) <= room:
                done = True
                return really(descriptor, buffers)
            os.write(descriptor, content[:room])
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "writev", write)
        yield room
        if done:
            monkeypatch.setattr(os, "writev", really)
            return


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, StorageError)]
)
def test_of_a_write_that_fails_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError]
) -> None:
    journal = opened(tmp_path)
    journal.append(RECORDS[:1])
    failures = 0
    for _ in failing_writes(monkeypatch, number):
        end = journal.end
        try:
            journal.append(RECORDS[1:])
        except StorageError as error:
            assert type(error) is kind
            assert error.retriable == (kind is DiskFullError)
            assert segment(tmp_path).name in str(error)
            failures += 1
            assert journal.end == end == segment(tmp_path).stat().st_size
            assert found(journal) == heads(RECORDS[:1])
    assert failures > 10
    assert found(journal) == heads(RECORDS)
    journal.close()
    assert found(opened(tmp_path)) == heads(RECORDS)


def test_what_could_not_be_cut_off_at_once_is_cut_off_before_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    journal.append(RECORDS[:1])

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def half(descriptor: int, buffers: Sequence[bytes]) -> int:
        os.write(descriptor, b"".join(buffers)[:-1])
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "writev", half)
        broken.setattr(os, "ftruncate", fail)
        for _ in range(2):
            with pytest.raises(StorageError):
                journal.append(RECORDS[3:])
    journal.append(RECORDS[1:2])
    journal.close()
    assert found(opened(tmp_path)) == heads(RECORDS[:2])


def test_a_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    journal.append(RECORDS[:1])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(journal_module, "sync_file", fail)
        with pytest.raises(StorageError, match="could not be synced"):
            journal.sync()
    with pytest.raises(StorageError, match="takes nothing more"):
        journal.sync()
    with pytest.raises(StorageError, match="takes nothing more"):
        journal.append(RECORDS[1:])


def test_a_segment_that_cannot_be_made_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path, segment_bytes=1)
    journal.append(RECORDS[:1])
    really = os.open

    def refuse(path: str, flags: int, *more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(path, flags, *more)

    with monkeypatch.context() as full:
        full.setattr(os, "open", refuse)
        with pytest.raises(DiskFullError):
            journal.append(RECORDS[1:])
    journal.append(RECORDS[1:])
    assert found(journal) == heads(RECORDS)
