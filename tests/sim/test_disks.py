"""A disk keeps what was synced and gambles with the rest."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from quorate.protocol.ordering.records import Record, Snapshot
from quorate.sim.disks import SimDisk

records = st.lists(
    st.builds(Snapshot, st.integers(0, 1), st.integers(1, 99), st.binary(max_size=40)), max_size=8
)


def disk_with(synced: list[Record], unsynced: list[Record]) -> SimDisk:
    disk = SimDisk()
    disk.append(synced)
    disk.sync()
    disk.append(unsynced)
    return disk


@given(records)
def test_what_was_written_is_read_back_in_order(written: list[Record]) -> None:
    assert disk_with([], written).read() == written


@given(records, records, st.integers())
def test_a_crash_keeps_what_was_synced_and_the_beginning_of_the_rest(
    synced: list[Record], unsynced: list[Record], seed: int
) -> None:
    disk = disk_with(synced, unsynced)
    fate = disk.crash(Random(seed))
    found = disk.read()
    assert found == (synced + unsynced)[: len(found)]
    assert len(found) >= len(synced)
    if fate in ("", "kept"):
        assert found == synced + unsynced
    elif fate == "lost":
        assert found == synced


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers())
def test_a_torn_record_is_never_seen(unsynced: list[bytes], seed: int) -> None:
    # A record that ends in zeros is whole again when zeros stand where its end was lost.
    disk = disk_with([], [Snapshot(0, 1, state + b"!") for state in unsynced])
    if disk.crash(Random(seed)) == "torn":
        assert len(disk.read()) < len(unsynced)


@given(records, records, records, st.integers())
def test_what_is_written_after_a_crash_can_be_read(
    synced: list[Record], unsynced: list[Record], later: list[Record], seed: int
) -> None:
    disk = disk_with(synced, unsynced)
    disk.crash(Random(seed))
    survivors = disk.read()
    disk.append(later)
    disk.sync()
    assert disk.crash(Random(seed)) == ""
    assert disk.read() == survivors + later


def test_unsynced_records_are_lost_torn_or_kept_by_the_seed() -> None:
    unsynced: list[Record] = [Snapshot(0, 1, bytes([number]) * 30) for number in range(5)]
    fates, survivors = set(), set()
    for seed in range(60):
        disk = disk_with([], unsynced)
        fates.add(disk.crash(Random(seed)))
        survivors.add(len(disk.read()))
    assert fates == {"kept", "torn", "lost"}
    assert survivors == {0, 1, 2, 3, 4, 5}


def test_a_sync_covers_what_was_written_when_it_began() -> None:
    first, second = Snapshot(0, 1, b"first"), Snapshot(0, 1, b"second")
    lost_the_second = False
    for seed in range(20):
        disk = disk_with([], [first])
        began = disk.written_bytes
        disk.append([second])
        disk.sync(began)
        disk.crash(Random(seed))
        assert disk.read()[0] == first
        lost_the_second |= disk.read() == [first]
    assert lost_the_second


def test_a_wiped_disk_is_empty_and_works_again() -> None:
    disk = disk_with([Snapshot(0, 1, b"old")], [])
    disk.wipe()
    assert disk.read() == []
    disk.append([Snapshot(0, 1, b"new")])
    disk.sync()
    assert disk.crash(Random(1)) == ""
    assert disk.read() == [Snapshot(0, 1, b"new")]
