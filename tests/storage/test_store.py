"""A store answers as one that was never interrupted, whatever happened to its disk."""

import copy
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from quorate.core.errors import LocalProtocolError
from quorate.core.ordering import Line, Partition
from quorate.crypto.merkle import Tree, check_inclusion, edge_of, inclusion_proof
from quorate.protocol.ordering.records import (
    Certified,
    Decided,
    Disowned,
    Dropped,
    Receipted,
    Snapshot,
    Store,
    Voted,
)
from quorate.storage.checkpoint import CERTIFIED
from quorate.storage.errors import DiskFullError, RefusedRecordError, StorageError
from quorate.storage.store import DiskStore
from stores import (
    ABSENT,
    LINES,
    PARTITIONS,
    START,
    Disk,
    Oracle,
    check,
    check_group,
    check_recovered,
    counts,
    fill,
    images_while,
    journal_files,
)


def test_a_disk_store_is_a_store(disk: Disk) -> None:
    store: Store = disk.store
    assert store.bounds(PARTITIONS[0]) == (0, 0)


def test_a_new_store_knows_nothing(disk: Disk) -> None:
    assert disk.store.read(PARTITIONS[0], 0, 100) == []
    assert disk.store.chain(PARTITIONS[0], 0) == (0, START)
    assert disk.store.chain(PARTITIONS[0], 1) is None
    assert disk.store.offset_at(PARTITIONS[0], 5) == 0
    assert disk.store.decided(0, 1, 100) == []
    assert disk.store.partitions() == []
    recovered = disk.store.recover()
    assert (recovered.snapshots, list(recovered.records), recovered.replayed) == ({}, [], 0)


def test_what_was_decided_can_be_read(disk: Disk) -> None:
    fill(disk)
    disk.check()
    assert disk.store.partitions() == PARTITIONS


def test_many_leaves_make_a_tree(tmp_path: Path) -> None:
    disk = Disk(tmp_path, chunk_entries=64)
    for _ in range(11):
        disk.append(disk.oracle.decision(0, {LINES[0]: 50}, 7))
    check_group(disk.store, disk.oracle, 0)
    disk.crash()
    check_group(disk.store, disk.oracle, 0)
    disk.store.close()


def test_a_store_that_was_closed_goes_on(disk: Disk) -> None:
    fill(disk)
    recovered = disk.reopen()
    check_recovered(recovered, disk.oracle)
    disk.check()
    fill(disk)
    disk.check()


def test_a_payload_that_comes_late_is_read_from_then_on(disk: Disk) -> None:
    disk.hold(LINES[0], 2)
    disk.decide({LINES[0]: 6})
    # One and two are here, three to six are not; four and five come late, with seven and eight.
    disk.append(disk.held(LINES[0], 4, 2))
    disk.check()
    disk.append(disk.held(LINES[0], 6, 3))
    disk.check()
    check_recovered(disk.crash(), disk.oracle)
    disk.check()
    disk.append(disk.held(LINES[0], 3, 1))
    disk.check()
    disk.checkpoint()
    disk.check()
    disk.crash()
    disk.check()


def test_receipts_are_found_by_offset_for_as_long_as_the_batch_is_kept(disk: Disk) -> None:
    receipts = [Receipted(2, 3, 4, b"c" * 32, b"s" * 64, b"d" * 32)]
    for _ in range(5):
        disk.decide({LINES[0]: 3, LINES[1]: 2})
    decided = disk.oracle.decision(0, {LINES[0]: 3}, disk.oracle.slots[0][-1].time_us)
    run = msgspec.structs.replace(decided.placed[0], before=b"b" * 32, receipts=receipts)
    disk.append(msgspec.structs.replace(decided, placed=[run]))
    disk.decide({LINES[0]: 1})
    target, (at, second, _, end) = LINES[0].target, run.offsets
    found = {each: disk.store.placed_at(0, target, each) for each in range(at - 1, end + 1)}
    assert end > at + 3
    for offset, each in found.items():
        assert (each is not None and each[1].receipts == receipts) == (at <= offset < end)

    disk.checkpoint()
    disk.crash()
    assert disk.store.placed_at(0, target, at) == found[at]
    disk.trim(target, second)

    assert disk.store.placed_at(0, target, second - 1) is None
    assert disk.store.placed_at(0, target, second) == found[second]


def test_a_payload_that_is_held_again_replaces_the_one_before(disk: Disk) -> None:
    disk.append(disk.held(LINES[0], 1, 5))
    disk.append(disk.held(LINES[0], 2, 2, size=50))
    disk.append(disk.held(LINES[0], 4, 4, size=60))
    disk.decide({LINES[0]: 3})
    disk.check()
    check_recovered(disk.crash(), disk.oracle)
    disk.decide({LINES[0]: 4})
    disk.check()


def test_a_decision_that_leaves_something_out_is_refused_and_not_written(disk: Disk) -> None:
    disk.decide({LINES[0]: 2})
    end = disk.end
    good = disk.oracle.decision(0, {LINES[0]: 2}, 5000)
    run = good.placed[0]
    end_offset = disk.store.bounds(LINES[0].target)[1]
    assert run.offset == end_offset > 2
    other_offset = msgspec.structs.replace(run, offset=2)
    other_leaf = msgspec.structs.replace(run, leaf=3)
    for bad, sentence in (
        (Decided(0, 3, 5000, b"", good.placed), "slot 3 is decided, but 2 is next"),
        (
            Decided(0, 2, 5000, b"", [other_offset]),
            f"offset 2 is decided, but {end_offset} is next",
        ),
        (Decided(0, 2, 5000, b"", [other_leaf]), "leaf 3 is decided, but 2 is next"),
    ):
        with pytest.raises(LocalProtocolError, match=sentence):
            disk.store.append([disk.held(LINES[0], 3, 1), bad])
    with pytest.raises(LocalProtocolError, match="slot 2 is decided, but 3 is next"):
        disk.store.append([good, good])
    assert disk.end == end
    disk.check()


def test_few_files_are_open(tmp_path: Path) -> None:
    disk = Disk(tmp_path, open_files_max=5)
    before = len(os.listdir("/dev/fd"))
    fill(disk, 20)
    disk.check()
    disk.clean()
    disk.check()
    assert len(list(disk.directory.rglob("*"))) > 50
    assert len(disk.store._files._open) == 5
    assert len(os.listdir("/dev/fd")) <= before + 5
    disk.store.close()
    # The lock and the journal's last segment are closed as well.
    assert len(os.listdir("/dev/fd")) <= before - 2


def test_the_directories_of_a_new_store_are_synced_where_they_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, synced = os.fsync, list[str]()

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    DiskStore(tmp_path / "data" / "r0", reserve_bytes=0).close()
    for made_in in (tmp_path, tmp_path / "data", tmp_path / "data" / "r0"):
        assert str(made_in) in synced


def test_a_store_is_used_by_one_process(disk: Disk) -> None:
    with pytest.raises(StorageError, match="in use by another replica process"):
        disk.opened()


# Starting over with a snapshot


def test_a_group_that_starts_over_begins_behind_the_snapshot_and_others_keep_everything(
    disk: Disk,
) -> None:
    fill(disk)
    others = disk.store.bounds(LINES[3].target)
    disk.install(0, 5)
    start, end = disk.store.bounds(LINES[0].target)
    assert start == end > 0
    assert disk.store.slots(0) == (12, 12)
    assert disk.store.bounds(LINES[3].target) == others
    disk.check()
    fill(disk)
    disk.check()
    check_recovered(disk.crash(), disk.oracle)
    disk.check()


def test_a_new_store_can_begin_with_a_snapshot(disk: Disk) -> None:
    disk.install(1, 3)
    disk.check()
    fill(disk, 2)
    disk.check()
    check_recovered(disk.reopen(), disk.oracle)
    disk.check()


def test_decisions_may_follow_a_snapshot_at_once_and_must_follow_on_it(disk: Disk) -> None:
    fill(disk, 2)
    installed, missed = disk.ahead(0, 3)
    oracle = disk.oracle
    oracle.install(installed, missed)
    following = oracle.decision(0, {LINES[0]: 2, LINES[2]: 1}, 10**6)
    with pytest.raises(LocalProtocolError, match="slot 6 is decided, but 3 is next"):
        disk.store.append([following])
    with pytest.raises(LocalProtocolError, match="slot 6 is decided, but 7 is next"):
        disk.store.append([installed, following, following])
    disk.store.append([installed, following])
    oracle.apply(following)
    disk.check()
    with pytest.raises(LocalProtocolError, match="of slot 5 is installed, but 7 is next"):
        disk.store.append([installed])


def test_payloads_of_what_was_decided_meanwhile_are_given_up_and_later_ones_stay(
    disk: Disk,
) -> None:
    disk.hold(LINES[0], 9)
    disk.hold(LINES[3], 2)
    # Three decisions have six batches of the line: three of its nine are still to come.
    disk.install(0, 3)
    assert sorted(disk.oracle.pending[LINES[0]]) == [7, 8, 9]
    check_recovered(disk.crash(), disk.oracle)
    disk.decide({LINES[0]: 3, LINES[3]: 1})
    disk.check()
    assert disk.store.bytes_held(LINES[0].target) > 0


def test_what_was_voted_before_a_snapshot_is_void_and_in_its_own_slot_it_is_not(
    disk: Disk,
) -> None:
    disk.vote(0, ahead=1)
    disk.vote(0, ahead=3)
    disk.install(0, 3)
    disk.vote(0)
    recovered = disk.crash()
    slots = [record.slot for record in recovered.records if isinstance(record, Voted)]
    assert slots == [3, 4]
    check_recovered(disk.reopen(), disk.oracle)


def test_what_is_started_over_leaves_no_files_behind(disk: Disk) -> None:
    fill(disk, 20)
    disk.checkpoint()
    disk.trim(PARTITIONS[0], 20)
    before = len(list((disk.directory / "index").iterdir()))
    segments_before = journal_files(disk)
    disk.install(0, 1)
    disk.checkpoint()
    files = list((disk.directory / "index").iterdir())
    assert len(files) < before / 2
    assert set(map(str, files)) == disk.store._derived._paths()
    disk.install(1, 1)
    disk.clean()
    # Nothing is live in what came before, and no slot need be served.
    assert journal_files(disk) < segments_before / 2
    disk.check()


def test_proofs_of_what_comes_after_a_snapshot_can_be_made(tmp_path: Path) -> None:
    """Those of earlier leaves cannot: ask a replica that has them."""
    disk = Disk(tmp_path, chunk_entries=64)
    for rounds in (3, 90, 1):
        disk.install(0, rounds)
        start = disk.oracle.first_leaf[0]
        for _ in range(7):
            disk.append(disk.oracle.decision(0, {LINES[0]: 45}, 7))
        nodes = partial(disk.store.node, 0)
        size, leaves = len(disk.oracle.leaves[0]), disk.oracle.leaves[0]
        root = Tree(size, edge_of(nodes, size)).root()
        for index in (start, start + 1, start + 200, size - 1):
            proof = inclusion_proof(nodes, index, size)
            check_inclusion(leaves[index], index, size, proof, root)
        assert root == Tree(size, edge_of(partial(disk.oracle.node, 0), size)).root()
        with pytest.raises(LocalProtocolError, match="where this log began with a snapshot"):
            inclusion_proof(nodes, 0, size)
        check_recovered(disk.crash(), disk.oracle)
    check_group(disk.store, disk.oracle, 0)
    disk.store.close()


def before_and_after(disk: Disk) -> tuple[Oracle, Oracle]:
    """What a store should be before and after the snapshot of a group is installed."""
    before, after = copy.deepcopy(disk.oracle), copy.deepcopy(disk.oracle)
    installed, missed = disk.ahead(0, 4)
    after.install(installed, missed)
    return before, after


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros"])
def test_a_power_cut_while_a_snapshot_is_written_leaves_the_group_as_before_or_as_after(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path, segment_bytes=10**6)
    fill(disk, 2)
    disk.snapshot(0)
    disk.hold(LINES[0], 9)
    disk.decide({LINES[0]: 1, LINES[1]: 1, LINES[3]: 1})
    before, after = before_and_after(disk)
    installed, _ = disk.ahead(0, 4)
    start = disk.end
    # Whatever is saved beside the journal comes later.
    monkeypatch.setattr(DiskStore, "_save_owed", no_room)
    disk.store.append([installed])
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", lambda _: None)
    content = max(disk.directory.glob("journal-*")).read_bytes()
    image, end = disk.image(), len(content)
    assert end > start + 300
    for at in range(start, end + 1):
        whole = content if at == end else b""
        damaged = (
            whole
            or {
                "cut": content[:at],
                "flipped": content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :],
                "zeros": content[:at] + bytes(end - at),
            }[damage]
        )
        copied = shutil.copytree(image, tmp_path / "copy")
        max(copied.glob("journal-*")).write_bytes(damaged)
        store = DiskStore(copied, **disk.options)
        oracle = copy.deepcopy(after if at == end else before)
        check_recovered(store.recover(), oracle)
        check(store, oracle)
        more = oracle.decision(0, {LINES[0]: 2, LINES[1]: 1}, 10**6)
        store.append([more])
        oracle.apply(more)
        check(store, oracle)
        store.close()
        shutil.rmtree(copied)
    disk.store.close()


def no_room(_: DiskStore) -> None:
    raise DiskFullError("there is no room in this test")


def test_a_crash_anywhere_while_a_snapshot_is_installed_leaves_before_or_after(
    tmp_path: Path,
) -> None:
    """An image of the disk before each file operation."""
    disk = Disk(tmp_path)
    fill(disk, 8)
    disk.snapshot(0)
    disk.hold(LINES[0], 9)
    disk.vote(0)
    disk.trim(PARTITIONS[0], 10)
    disk.checkpoint()
    before, after = before_and_after(disk)
    installed, _ = disk.ahead(0, 4)
    images = [*images_while(disk, lambda: disk.store.append([installed])), disk.image()]
    assert len(images) > 20
    found = []
    for image in images:
        store = DiskStore(image, **disk.options)
        is_after = store.slots(0)[1] == installed.slot + 1
        oracle = copy.deepcopy(after if is_after else before)
        found.append(is_after)
        check_recovered(store.recover(), oracle)
        check(store, oracle)
        more = oracle.decision(0, {LINES[0]: 1, LINES[2]: 3}, 10**6)
        store.append([more, Snapshot(0, more.slot, b"later")])
        oracle.apply(more)
        oracle.apply(Snapshot(0, more.slot, b"later"))
        store.clean(segments_max=100)
        check(store, oracle)
        store.close()
        store = DiskStore(image, **disk.options)
        check_recovered(store.recover(), oracle)
        check(store, oracle)
        store.close()
        shutil.rmtree(image)
    # Once it is there, it stays.
    assert found == sorted(found)
    assert (found[0], found[-1]) == (False, True)
    disk.store.close()


def test_the_last_snapshot_that_was_signed_is_there_after_a_restart(disk: Disk) -> None:
    assert disk.store.certified(0) is None
    first, last = Certified(0, 8, b"state", "signed"), Certified(0, 16, b"later", "signed too")
    disk.store.append([first, Certified(1, 8, b"another", "by others")])
    assert disk.store.certified(0) == first
    disk.store.append([last])
    disk.crash()
    assert disk.store.certified(0) == last
    assert disk.store.certified(1) == Certified(1, 8, b"another", "by others")


def test_a_signed_snapshot_that_finds_no_room_is_saved_later(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DiskFullError("there is no room in this test")

    certified = Certified(0, 8, b"state", "signed")
    with monkeypatch.context() as patch:
        patch.setattr(CERTIFIED, "save", full)
        disk.store.append([certified])
        assert disk.store.certified(0) == certified
    disk.hold(LINES[0], 1)
    disk.crash()
    assert disk.store.certified(0) == certified


# The fsync policy


def test_each_policy_says_what_it_gives_up(tmp_path: Path) -> None:
    synced: dict[str, tuple[bool, bool]] = {}
    sentences: dict[str, str] = {}
    for policy in ("always", "interval", "never"):
        disk = Disk(tmp_path / policy, fsync=policy)
        disk.hold(LINES[0], 1)
        disk.store.sync()
        at_once = disk.store._journal.synced == disk.end
        disk.store.sync_now()
        synced[policy] = at_once, disk.store._journal.synced == disk.end
        sentences[policy] = disk.store.gives_up
        disk.store.close()
    assert synced == {"always": (True, True), "interval": (False, True), "never": (False, True)}
    assert sentences["always"] == ""
    assert "since the last sync is lost" in sentences["interval"]
    assert "lost if the machine loses power" in sentences["never"]


def test_another_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match="always, interval, never, not 'sometimes'"):
        DiskStore(tmp_path, fsync="sometimes")  # type: ignore[arg-type]


# Everything at once

lines = st.sampled_from(LINES)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens, in whatever order, the store agrees with its oracle."""

    directories: Iterator[Path]
    held_against_the_oracle = 0

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk(next(self.directories), segment_bytes=700)

    @rule(line=lines, count=counts, size=st.sampled_from([15, 40, 300]), skip=st.integers(0, 1))
    def hold(self, line: Line, count: int, size: int, skip: int) -> None:
        self.disk.hold(line, count, size, skip)

    @rule(line=lines, count=counts)
    def hold_again(self, line: Line, count: int) -> None:
        self.disk.append(self.disk.held(line, self.disk.oracle.next_of(line), count))

    @rule(line=lines, which=st.integers(0, 100))
    def hold_late(self, line: Line, which: int) -> None:
        missing = [
            entry[1]
            for entry in self.disk.oracle.entries[line.target]
            if entry[0] == line.publisher and entry[4] is ABSENT
        ]
        if missing:
            self.disk.append(self.disk.held(line, missing[which % len(missing)], 1))

    @rule(counts=st.dictionaries(lines, counts, min_size=1))
    def decide(self, counts: dict[Line, int]) -> None:
        self.disk.decide(counts)

    @rule(group=st.integers(0, 1), ahead=st.integers(1, 2))
    def vote(self, group: int, ahead: int) -> None:
        self.disk.vote(group, ahead)

    @rule(group=st.integers(0, 1), behind=st.integers(0, 2))
    def snapshot(self, group: int, behind: int) -> None:
        self.disk.snapshot(group, behind)

    @rule(group=st.integers(0, 1), rounds=st.integers(1, 12))
    def install(self, group: int, rounds: int) -> None:
        self.disk.install(group, rounds)

    @rule(partition=st.sampled_from(PARTITIONS), part=st.floats(0, 1))
    def trim(self, partition: Partition, part: float) -> None:
        self.disk.trim(partition, round(part * len(self.disk.oracle.entries[partition])))

    @rule(group=st.integers(0, 1), part=st.floats(0, 1))
    def keep_slots_from(self, group: int, part: float) -> None:
        self.disk.keep_slots_from(group, round(part * len(self.disk.oracle.slots[group])))

    @rule(line=lines)
    def drop(self, line: Line) -> None:
        self.disk.append(Dropped(*line))

    @rule(line=lines, before=st.integers(1, 20))
    def forget(self, line: Line, before: int) -> None:
        self.disk.forget(line, before)

    @rule()
    def sync(self) -> None:
        self.disk.store.sync()

    @rule()
    def checkpoint(self) -> None:
        self.disk.checkpoint()

    @precondition(lambda self: len(self.disk.history) > 5)
    @rule()
    def clean(self) -> None:
        self.disk.clean()
        self.disk.check()

    @rule()
    def reopen(self) -> None:
        check_recovered(self.disk.reopen(), self.disk.oracle)
        self.disk.check()

    @rule(lost=st.integers(0, 600), garbage=st.sampled_from([b"", bytes(40), b"\xff" * 13]))
    def crash(self, lost: int, garbage: bytes) -> None:
        check_recovered(self.disk.crash(lost, garbage), self.disk.oracle)
        self.disk.check()

    def teardown(self) -> None:
        self.disk.check()
        live = sum(use.live_bytes for use in self.disk.store._derived.usage.uses)
        held = sum(map(self.disk.oracle.bytes_held, PARTITIONS))
        pending = sum(len(p) for runs in self.disk.oracle.pending.values() for p in runs.values())
        assert live == held + pending
        self.disk.store.close()
        shutil.rmtree(self.disk.root)
        type(self).held_against_the_oracle += 1


@pytest.mark.usefixtures("no_waiting")
def test_any_history_is_as_the_oracle_says(tmp_path: Path) -> None:
    AnyHistory.directories = (tmp_path / str(number) for number in range(10**6))
    AnyHistory.held_against_the_oracle = 0
    run_state_machine_as_test(
        AnyHistory, settings=settings(max_examples=100, stateful_step_count=40)
    )
    assert AnyHistory.held_against_the_oracle >= 100


# A partition belongs to the group that writes it


def foreign_decision(disk: Disk) -> Decided:
    """What group 0 would decide next, on a partition of group 1, where it fits by its offset."""
    good = disk.oracle.decision(0, {LINES[0]: 2}, 5000)
    _, end = disk.oracle.bounds(LINES[3].target)
    run = msgspec.structs.replace(good.placed[0], topic=8, partition=0, offset=end)
    return msgspec.structs.replace(good, placed=[run])


def test_a_decision_on_a_partition_of_another_group_is_refused_and_the_store_stays_usable(
    disk: Disk,
) -> None:
    fill(disk, 3)
    end = disk.end
    for _ in range(2):
        with pytest.raises(RefusedRecordError, match="which group 1 writes since its slot 1") as it:
            disk.store.append([foreign_decision(disk)])
        assert (it.value.group, it.value.retriable, disk.end) == (0, False, end)
        # A restart knows whose it is.
        disk.reopen()
        end = disk.end
    fill(disk, 2)
    disk.check()


def test_two_groups_cannot_take_one_partition_in_one_go(disk: Disk) -> None:
    ours = disk.oracle.decision(1, {LINES[3]: 1}, 5000)
    run = msgspec.structs.replace(ours.placed[0], offset=ours.placed[0].end)
    with pytest.raises(RefusedRecordError, match="which group 1 writes"):
        disk.store.append([ours, Decided(0, 1, 5000, b"", [run])])


def test_a_state_that_names_a_partition_of_another_group_is_not_installed(disk: Disk) -> None:
    fill(disk, 3)
    before = disk.store.bounds(LINES[3].target)
    installed, _ = disk.ahead(1, 2)

    with pytest.raises(RefusedRecordError, match="which group 1 writes"):
        disk.store.append([msgspec.structs.replace(installed, group=0)])

    assert disk.store.bounds(LINES[3].target) == before
    disk.check()


def test_a_journal_with_a_record_of_another_group_starts_without_it_and_says_so(
    disk: Disk,
) -> None:
    fill(disk, 3)
    disk.store._journal.append([foreign_decision(disk)])
    disk.history.append((disk.end, lambda _: None))

    recovered = disk.crash()

    assert list(recovered.skipped) == [0]
    check_recovered(recovered, disk.oracle)
    disk.check()
    fill(disk, 2)
    disk.check()


def test_a_partition_that_was_taken_from_a_group_is_free_for_whoever_it_belongs_to(
    disk: Disk,
) -> None:
    disk.store.append([foreign_decision(disk)])
    disk.store.checkpoint()
    disk.store.append([Disowned(0, 8, 0)])
    assert disk.store.bounds(LINES[3].target) == (0, 0)

    ours = disk.oracle.decision(1, {LINES[3]: 20}, 5000)
    disk.store.append([ours])
    # It is another group's now.
    disk.store.append([Disowned(0, 8, 0)])
    (placed,) = ours.placed
    assert placed.count == 20
    assert disk.store.bounds(LINES[3].target) == (0, placed.end)
    disk.crash()
    assert disk.store.bounds(LINES[3].target) == (0, placed.end)
