"""Archives: each row once whatever happens, and each of them provable when the cluster is gone."""

import asyncio
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, combinations, pairwise, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow
import pytest
from pyarrow import parquet
from pyarrow.compute import field

from clusters import TestCluster, quorate, running_cluster, until
from quorate.client import Producer
from quorate.core.batch import encode
from quorate.core.cluster import Cluster
from quorate.core.errors import ConfigError, LocalProtocolError
from quorate.core.event import Event
from quorate.core.header import Header
from quorate.crypto.merkle import leaf_hash
from quorate.crypto.proofs import Keys, verify
from quorate.pipeline.archive import (
    WHOLE_EVERY,
    Archive,
    ArchiveError,
    File,
    View,
    prove_archived,
)
from quorate.pipeline.archiving import Archiver, merge, small_files, stage
from quorate.pipeline.jobs.archive import JOB, ArchiveConfig, compact
from quorate.pipeline.jobs.job import Pipes
from quorate.pipeline.rows import Rows, arrow_schema
from quorate.protocol.ordering.ranges import RangeProof, Settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

VALIDATED, VOTES, CRASH = "validated", "votes", "crash"
TOPICS: dict[str, dict[str, object]] = {
    VALIDATED: {"order": "total", "validated": True, "partitions": 2},
    VOTES: {"order": "total", "validated": True, "event_proofs": True},
    CRASH: {"order": "total", "protection": "crash"},
}
BATCHES, EVENTS_EACH = 6, 5
# Its bytes do not follow from its rows.
COMPRESSED = 4
TIME_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000
PATIENCE_S = 120.0


def event_of(topic: str, partition: int, number: int, index: int) -> Event:
    headers = (("from", b"test"), ("number", b"%d" % number)) if index % 2 else ()
    key = None if index == 2 else b"key %d" % index
    value = f"{topic} {partition} {number} {index}".encode() * (50 if number == COMPRESSED else 1)
    return Event(key, value, headers, TIME_US + (index if number % 2 else 0), index == 3)


def expected() -> dict[tuple[str, int], list[Event]]:
    return {
        (topic, partition): [
            event_of(topic, partition, number, index)
            for number in range(BATCHES)
            for index in range(EVENTS_EACH)
        ]
        for topic, partition in ((VALIDATED, 0), (VALIDATED, 1), (VOTES, 0), (CRASH, 0))
    }


def first_of(number: int) -> int:
    """The offset of the first event of a batch."""
    return number * EVENTS_EACH


async def fill(cluster: TestCluster) -> None:
    async with (
        Producer(cluster.directory, "alice") as plain,
        Producer(cluster.directory, "alice", compression="zstd") as compressing,
    ):
        for topic, partition in expected():
            for number in range(BATCHES):
                producer = compressing if number == COMPRESSED else plain
                events = [event_of(topic, partition, number, each) for each in range(EVENTS_EACH)]
                await producer.send_batch(topic, events, partition=partition)


@dataclass(frozen=True)
class Archived:
    """What is left when the cluster is gone: an archive, and the file with the keys."""

    keys_file: Path
    directory: Path

    @property
    def keys(self) -> Keys:
        return Keys.of(Cluster.parse(self.keys_file.read_text()))


@pytest.fixture(scope="module")
def archived(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Archived:
    """The work of three jobs: one was stopped in the middle, and one has lost its checkpoint."""
    folder = tmp_path_factory.mktemp("archives")
    found = Archived(folder / "cluster.toml", folder / "archive")
    with running_cluster(topics=TOPICS) as cluster:
        shutil.copy(cluster.directory / "cluster.toml", found.keys_file)
        asyncio.run(fill(cluster))
        query = start(spark, cluster, found.directory, folder / "checkpoint", available_now=False)
        until(lambda: Archive(str(found.directory)).numbers(), seconds=PATIENCE_S)
        query.stop()
        for name in ("checkpoint", "another checkpoint"):
            start(spark, cluster, found.directory, folder / name).awaitTermination()
    return found


def start(
    spark: "SparkSession",
    cluster: TestCluster,
    directory: Path,
    checkpoint: Path,
    *,
    available_now: bool = True,
) -> "StreamingQuery":
    pipes = Pipes(
        spark=spark,
        cluster=str(cluster.directory),
        identity="bob",
        checkpoint=str(checkpoint),
        available_now=available_now,
    )
    config = ArchiveConfig(
        topics=tuple(TOPICS), directory=str(directory), rows_at_once=40, compaction=False
    )
    (query,) = JOB.start(pipes, config)
    return query


def rows_of(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Archive(str(directory)).table().to_pylist()
    return sorted(
        rows, key=lambda row: (row["topic"], row["partition"], row["offset"], row["index"])
    )


def events_of(directory: Path) -> dict[tuple[str, int], list[Event]]:
    found: dict[tuple[str, int], list[Event]] = {}
    for row in rows_of(directory):
        headers = tuple((each["name"], each["value"]) for each in row["headers"])
        time_us = round(row["timestamp"].timestamp() * 1e6)
        event = Event(row["key"], row["value"], headers, time_us, row["urgent"])
        found.setdefault((row["topic"], row["partition"]), []).append(event)
    return found


def test_each_row_is_archived_once_though_the_job_was_stopped_and_lost_its_checkpoint(
    archived: Archived,
) -> None:
    assert events_of(archived.directory) == expected()


def test_what_a_proof_takes_is_in_the_first_row_of_each_batch(archived: Archived) -> None:
    for row in rows_of(archived.directory):
        is_first = row["index"] == 0
        assert (row["proof"] is not None) is is_first
        if is_first:
            assert (row["proof"]["seal"] is not None) is (row["topic"] != CRASH)
            assert (row["proof"]["body"] is not None) is (row["offset"] == first_of(COMPRESSED))


def test_files_lie_by_topic_and_day_where_other_tools_find_each_row_once(
    archived: Archived,
) -> None:
    files = [*archived.directory.glob("topic=*/date=*/*.parquet")]
    assert {path.parent.parent.name for path in files} == {f"topic={name}" for name in TOPICS}
    places: Counter[tuple[Any, ...]] = Counter()
    for path in files:
        opened = parquet.ParquetFile(path)
        table = opened.read(["topic", "partition", "offset", "index", "proof"])
        for row in table.to_pylist():
            proof = row.pop("proof")
            places[(*row.values(),)] += 1
            if proof is not None:
                assert path.parent.name == f"date={proof['ordered'].date()}"
        assert opened.metadata.row_group(0).column(0).compression == "ZSTD"
    assert set(places.values()) == {1}
    assert places.total() == 4 * BATCHES * EVENTS_EACH


def test_an_archived_batch_is_proved_without_the_cluster(
    archived: Archived, tmp_path: Path
) -> None:
    """Each of them, also what was compressed."""
    archive = Archive(str(archived.directory))
    for partition in range(2):
        for offset in range(first_of(BATCHES)):
            proof = prove_archived(archive, archived.keys, VALIDATED, partition, offset)
            assert verify(proof, archived.keys).producer_name == "alice"
            assert offset in range(proof.offset, proof.offset + EVENTS_EACH)
    (tmp_path / "proof.json").write_bytes(proof.render())

    said = quorate("verify", tmp_path / "proof.json", "--cluster-key", archived.keys_file)

    assert said.code == 0, said.out
    assert f"alice published {EVENTS_EACH} events on topic {VALIDATED}" in said.out


def test_an_archived_event_is_proved_without_its_neighbours(
    archived: Archived, tmp_path: Path
) -> None:
    archive = Archive(str(archived.directory))

    for number in range(BATCHES):
        offset = first_of(number) + 3
        proof = prove_archived(archive, archived.keys, VOTES, 0, offset)
        verdict = verify(proof, archived.keys)
        assert (verdict.event, verdict.offset) == (event_of(VOTES, 0, number, 3), offset)
        assert proof.body is None
    assert prove_archived(archive, archived.keys, VOTES, 0, 0, whole=True).body is not None


def test_an_archive_proves_on_the_command_line(archived: Archived, tmp_path: Path) -> None:
    command = ("prove", VOTES, 0, first_of(1) + 2, "--archive", archived.directory)

    proved = quorate(*command, "--cluster-key", archived.keys_file)

    assert proved.code == 0, proved.err
    (tmp_path / "proof.json").write_text(proved.out)
    assert quorate("verify", tmp_path / "proof.json", "--cluster-key", archived.keys_file).code == 0


def test_what_cannot_be_proved_is_said_in_a_sentence(archived: Archived, tmp_path: Path) -> None:
    archive = Archive(str(archived.directory))
    with pytest.raises(LocalProtocolError, match=f"there is no archive in {tmp_path}"):
        prove_archived(Archive(str(tmp_path)), archived.keys, VALIDATED, 0, 0)
    with pytest.raises(LocalProtocolError, match="has no rows of 'nope'"):
        archive.dataset("nope")
    with pytest.raises(
        LocalProtocolError, match="nothing leads from offset 0 of partition 0 of 'crash'"
    ):
        prove_archived(archive, archived.keys, CRASH, 0, 0)
    with pytest.raises(LocalProtocolError, match="has no event at offset 99 of partition 1"):
        prove_archived(archive, archived.keys, VALIDATED, 1, 99)


def change(directory: Path, topic: str, offset: int, column: str, change: Any) -> None:
    """Somebody writes a file of the archive again, with another value in a column of one event."""
    for file in (directory / f"topic={topic}").rglob("0-*.parquet"):
        table = parquet.ParquetFile(file).read()
        at, field = table.schema.get_field_index(column), table.schema.field(column)
        values = [
            change(value) if which == offset and value is not None else value
            for value, which in zip(
                table[column].to_pylist(), table["offset"].to_pylist(), strict=True
            )
        ]
        parquet.write_table(table.set_column(at, field, pyarrow.array(values, field.type)), file)


@pytest.mark.parametrize(
    ("column", "other"),
    [
        ("value", lambda value: value + b"!"),
        ("urgent", lambda value: not value),
        ("checkpoint", lambda value: value + 1),
        ("proof", lambda proof: {**proof, "sequence": proof["sequence"] + 1}),
        ("proof", lambda proof: {**proof, "seal": bytes(len(proof["seal"]))}),
        ("proof", lambda proof: {**proof, "range": first_of(5)}),
        ("proof", lambda proof: {**proof, "number": proof["number"] + 1}),
        ("proof", lambda proof: {**proof, "range": 99}),
    ],
)
def test_a_row_that_was_changed_does_not_verify_and_is_named(
    archived: Archived, tmp_path: Path, column: str, other: Any
) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(archived.directory, copy)
    change(copy, VALIDATED, first_of(1), column, other)
    archive = Archive(str(copy))

    with pytest.raises(
        ArchiveError, match=r"at offset 7 of partition 0 of 'validated' in .* is not what was order"
    ):
        prove_archived(archive, archived.keys, VALIDATED, 0, 7)
    prove_archived(archive, archived.keys, VALIDATED, 0, first_of(3))


def test_a_row_that_is_missing_is_noticed(archived: Archived, tmp_path: Path) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(archived.directory, copy)
    for file in (copy / f"topic={VALIDATED}").rglob("0-*.parquet"):
        table = parquet.ParquetFile(file).read()
        keep = [index != 2 for index in table["index"].to_pylist()]
        parquet.write_table(table.filter(pyarrow.array(keep)), file)

    with pytest.raises(ArchiveError, match="some are missing, or there twice"):
        prove_archived(Archive(str(copy)), archived.keys, VALIDATED, 0, first_of(1))


def test_files_that_are_merged_have_the_rows_and_their_proofs(
    archived: Archived, tmp_path: Path, spark: "SparkSession"
) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(archived.directory, copy)
    archive = Archive(str(copy))
    before, known = archive.view(), rows_of(copy)
    large = max(file.size_bytes for file in before.files) * 2

    compact(spark, ArchiveConfig(topics=(VALIDATED,), directory=str(copy), file_bytes=large))

    after = archive.view()
    assert len(after.files) < len(before.files)
    assert rows_of(copy) == known
    assert {str(path.relative_to(copy)) for path in copy.glob("topic=*/*/*.parquet")} == {
        file.path for file in after.files
    }
    for number in range(BATCHES):
        prove_archived(archive, archived.keys, VALIDATED, 0, first_of(number))


# Without a cluster: where a driver may be killed, and what is left out


def rows(
    batches: range, *, days: int = 0, topic: str = "t", partition: int = 0
) -> pyarrow.RecordBatch:
    """Batches of two events each, ordered so many days after the first day."""
    schema = arrow_schema(proofs=True)
    listed: list[dict[str, Any]] = [
        {
            "key": None, "value": b"%d %d" % (batch, index), "headers": [], "timestamp": TIME_US,
            "urgent": False, "topic": topic, "partition": partition, "offset": 2 * batch + index,
            "index": index, "producer": "alice",
            "proof": None if index else {"ordered": TIME_US + days * DAY_US, "sequence": batch},
        }
        for batch in batches
        for index in range(2)
    ]  # fmt: skip
    return pyarrow.RecordBatch.from_pylist(listed, schema)


def added(directory: Path, *parts: pyarrow.RecordBatch) -> list[File]:
    archiver = Archiver(str(directory))
    files = [*stage(str(directory), archiver.settle().next, parts)]
    archiver.add(files)
    return files


def offsets_in(directory: Path) -> list[tuple[int, int]]:
    return [(row["offset"], row["index"]) for row in rows_of(directory)]


def both(batches: range) -> list[tuple[int, int]]:
    return [(2 * batch + index, index) for batch in batches for index in range(2)]


def settled(payloads: list[bytes], *, offset: int = 14) -> list[Settled]:
    """These batches under one checkpoint, from this offset on; all say that they have two events"""
    leaves = [leaf_hash(payload) for payload in payloads]
    runs = [range(3, 5), range(20, 18 + len(payloads))]
    proof = RangeProof(40, runs, leaves, [leaf_hash(b"")], "a checkpoint")
    return [
        Settled(
            offset + 2 * at, offset + 2 * at + 2, 1, at, TIME_US, payload, b"", leaf, 40,
            None if at else proof,
        )
        for at, (payload, leaf) in enumerate(zip(payloads, chain(*runs), strict=True))
    ]  # fmt: skip


PAIR = encode([Event(None, b"one", (), TIME_US), Event(None, b"two", (), TIME_US)])
MALFORMED = Header.of(2, 0, 8).encode() + b"no columns"


def test_what_leads_to_a_checkpoint_is_kept_by_the_first_batch_that_has_rows() -> None:
    batches = settled([MALFORMED, PAIR, MALFORMED, PAIR])

    (made,) = Rows("t", 0, range(14, 22), str, proofs=True).of(batches)

    second, _, fourth, _ = made["proof"].to_pylist()
    leaves = b"".join(leaf_hash(payload) for payload in (MALFORMED, PAIR, MALFORMED, PAIR))
    assert made["offset"].to_pylist() == [16, 17, 20, 21]
    assert made["index"].to_pylist() == [0, 1, 0, 1]
    assert (second["range"], second["number"], second["leaves"]) == (16, 1, leaves)
    assert second["runs"] == [{"leaf": 3, "count": 2}, {"leaf": 20, "count": 2}]
    assert (fourth["range"], fourth["number"]) == (16, 3)
    assert (fourth["runs"], fourth["note"]) == (None, None)


@pytest.mark.parametrize("proofs", [False, True])
def test_stretches_that_meet_anywhere_have_the_rows_of_the_whole_each_once(proofs: bool) -> None:
    """Readers are given whole batches; with proofs, a batch goes to who has its last event."""
    batches = settled([PAIR, MALFORMED, PAIR, PAIR, PAIR])

    def rows_of(*bounds: int) -> list[dict[str, Any]]:
        return [
            row
            for stretch in starmap(range, pairwise(bounds))
            for part in Rows("t", 0, stretch, str, proofs=proofs).of(
                [
                    each
                    for each in batches
                    if each.offset < stretch.stop and each.end > stretch.start
                ]
            )
            for row in part.drop_columns(["proof"] if proofs else []).to_pylist()
        ]

    whole = rows_of(14, 24)
    assert [row["offset"] for row in whole] == [14, 15, 18, 19, 20, 21, 22, 23]
    for at, also in combinations(range(15, 24), 2):
        assert rows_of(14, at, also, 24) == whole
    if not proofs:
        assert rows_of(15, 21) == whole[1:5]


def test_an_archive_of_the_first_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    added(tmp_path, rows(range(2)))
    (entry,) = tmp_path.glob("_archive/log/*.json")
    entry.write_bytes(entry.read_bytes().replace(b'"version":2,', b""))

    sentence = "is of version 1, and this program reads version 2: archive the topics again"
    with pytest.raises(ArchiveError, match=sentence):
        Archive(str(tmp_path)).table()


def test_a_batch_that_comes_again_is_left_out(tmp_path: Path) -> None:
    added(tmp_path, rows(range(3)))
    assert added(tmp_path, rows(range(3))) == []
    added(tmp_path, rows(range(3, 5)))

    assert offsets_in(tmp_path) == both(range(5))
    assert Archive(str(tmp_path)).view().next == {"t": {0: 10}}


def test_a_checkpoint_of_another_archive_is_refused(tmp_path: Path) -> None:
    added(tmp_path, rows(range(3)))

    with pytest.raises(ConfigError, match="ends at offset 6 of partition 0 of 't', in the middle"):
        added(tmp_path, rows(range(5)))
    assert offsets_in(tmp_path) == both(range(3))


def test_rows_go_by_the_day_of_their_batch_wherever_spark_divides_them(tmp_path: Path) -> None:
    whole = pyarrow.concat_batches([rows(range(2)), rows(range(2, 4), days=1)])

    files = added(tmp_path, whole.slice(0, 1), whole.slice(1, 4), whole.slice(5))

    assert [(file.date, file.first, file.last, file.rows) for file in files] == [
        ("2023-11-14", 0, 3, 4),
        ("2023-11-15", 4, 7, 4),
    ]
    assert offsets_in(tmp_path) == both(range(4))


def test_killed_before_the_entry_nothing_has_happened(tmp_path: Path) -> None:
    added(tmp_path, rows(range(2)))
    [*stage(str(tmp_path), {}, [rows(range(2, 4))])]
    (tmp_path / "_archive" / "log" / ".1.json.draft").write_text('{"added": [')

    assert offsets_in(tmp_path) == both(range(2))
    added(tmp_path, rows(range(2, 4)))
    assert offsets_in(tmp_path) == both(range(4))
    assert [*(tmp_path / "_archive" / "staged").iterdir()] == []
    assert {path.name for path in (tmp_path / "_archive" / "log").iterdir()} == {"0.json", "1.json"}


def test_killed_after_the_entry_all_has_happened(tmp_path: Path) -> None:
    files = added(tmp_path, rows(range(2)), rows(range(2, 4), days=1))
    # As it was when the entry was written: the last file had not been brought to its place.
    (tmp_path / files[-1].path).rename(tmp_path / files[-1].staged)

    assert offsets_in(tmp_path) == both(range(4))
    Archiver(str(tmp_path)).settle()
    assert offsets_in(tmp_path) == both(range(4))
    assert (tmp_path / files[-1].path).exists()


def test_a_file_that_somebody_removed_is_named(tmp_path: Path) -> None:
    (file,) = added(tmp_path, rows(range(2)))
    (tmp_path / file.path).unlink()

    with pytest.raises(ArchiveError, match=f"lacks a file that belongs to it: {file.path}"):
        Archive(str(tmp_path)).batch("t", 0, 1)
    with pytest.raises(ArchiveError, match=f"lacks {file.path}, which became part of it last"):
        Archiver(str(tmp_path)).settle()


def test_who_reads_while_files_are_exchanged_sees_each_row_once(tmp_path: Path) -> None:
    """One merges pairs of files and adds new ones all the time, and another one reads."""

    def exchange() -> None:
        for at in range(0, 60, 2):
            pair = [added(tmp_path, rows(range(one, one + 1)))[0] for one in (at, at + 1)]
            Archiver(str(tmp_path)).replace(pair, [merge(str(tmp_path), pair)])

    added(tmp_path, rows(range(1), partition=1))
    with ThreadPoolExecutor(1) as other:
        exchanging = other.submit(exchange)
        seen = [0]
        while not exchanging.done():
            found = Archive(str(tmp_path)).table(where=field("partition") == 0)
            places = [tuple(row.values()) for row in found.select(["offset", "index"]).to_pylist()]
            assert sorted(places) == both(range(len(places) // 2))
            seen.append(len(places))
        exchanging.result()

    assert seen == sorted(seen), "what was there once stays"
    assert len(set(seen)) > 2
    assert Archive(str(tmp_path)).table().num_rows == 122


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_killed_while_files_are_exchanged_each_row_is_there_once(
    tmp_path: Path, deleted: int
) -> None:
    first, second = (added(tmp_path, rows(range(at, at + 2)))[0] for at in (0, 2))
    kept = {file.path: (tmp_path / file.path).read_bytes() for file in (first, second)}
    large = merge(str(tmp_path), [first, second])
    assert offsets_in(tmp_path) == both(range(4))

    Archiver(str(tmp_path)).replace([first, second], [large])
    # As it was when so many old files were gone, and the new one was not in its place.
    (tmp_path / large.path).rename(tmp_path / large.staged)
    for path in [*kept][deleted:]:
        (tmp_path / path).write_bytes(kept[path])

    assert offsets_in(tmp_path) == both(range(4))
    Archiver(str(tmp_path)).settle()
    assert offsets_in(tmp_path) == both(range(4))
    assert [path.name for path in tmp_path.rglob("topic=*/*/*")] == [Path(large.path).name]


def test_files_that_lack_rows_are_not_exchanged(tmp_path: Path) -> None:
    first, second = (added(tmp_path, rows(range(at, at + 2)))[0] for at in (0, 2))
    short = merge(str(tmp_path), [first])

    with pytest.raises(ArchiveError, match="files of 8 rows were merged into files of 4 rows"):
        Archiver(str(tmp_path)).replace([first, second], [short])


def test_two_who_add_at_the_same_time_do_not_both_succeed(tmp_path: Path) -> None:
    one, other = Archiver(str(tmp_path)), Archiver(str(tmp_path))
    added(tmp_path, rows(range(2)))
    view = one.archive.view()
    one.add([*stage(str(tmp_path), view.next, [rows(range(2, 4))])])

    with pytest.raises(ArchiveError, match="somebody else adds to the archive"):
        other._append(view, [*stage(str(tmp_path), view.next, [rows(range(2, 4))])], [], {})
    assert offsets_in(tmp_path) == both(range(4))


def test_small_files_are_merged_when_they_fill_a_large_one_or_their_day_is_over() -> None:
    def file(number: int, date: str, size_bytes: int) -> File:
        return File(
            path=str(number), staged="", topic="t", date=date, partition=0, first=number,
            last=number, rows=1, size_bytes=size_bytes,
        )  # fmt: skip

    sizes = [("1", 10), ("1", 20), ("1", 90), ("1", 30), ("2", 60), ("2", 40), ("2", 50), ("2", 9)]
    files = [file(number, *each) for number, each in enumerate(sizes)]
    view = msgspec.convert({"entries": 1, "files": files, "next": {}}, type=View)

    merged = [[each.first for each in group] for group in small_files(view, 100)]

    # What is large stays; a single file is none to merge; the last day goes on.
    assert merged == [[0, 1]]
    filled = [[each.first for each in group] for group in small_files(view, 120)]
    assert filled == [[0, 1], [4, 5, 6]]


def test_the_log_does_not_grow_without_end(tmp_path: Path) -> None:
    count = 2 * WHOLE_EVERY + 3
    for at in range(count):
        added(tmp_path, rows(range(at, at + 1)))

    archive = Archive(str(tmp_path))
    assert archive.numbers() == [*range(WHOLE_EVERY, count)]
    assert [file.first for file in archive.view().files] == [*range(0, 2 * count, 2)]
