"""Topics are a source for Spark: what is there, what comes, and nothing that does not verify."""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from altering import alter_payloads
from clusters import TestCluster, running_cluster
from quorate.client import Admin, Producer
from quorate.client.ranges import RangeReader
from quorate.core.event import Event
from quorate.core.ids import topic_id
from quorate.core.ordering import Partition
from quorate.pipeline.schema import EVENTS, PROOF, events
from quorate.pipeline.source import bounds_of
from quorate.protocol.ordering.placement import stores_of
from quorate.runtime.local import OPERATOR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALIDATED, MIXED, CRASH, CLOSED = "validated", "mixed", "crash", "closed"
TOPICS: dict[str, dict[str, object]] = {
    VALIDATED: {"order": "total", "validated": True, "partitions": 2},
    MIXED: {"order": "total", "validated": True},
    CRASH: {"order": "total", "protection": "crash"},
    CLOSED: {"order": "total", "subscribe": ["alice"]},
    "live": {"broadcast": "vote"},
}
BATCHES, EVENTS_EACH = 12, 10
# Those go to f + 1 stores only.
LARGE = range(3, BATCHES, 4)
END = BATCHES * EVENTS_EACH
TIME_US = 1_700_000_000_000_000


def event_of(partition: int, number: int, index: int) -> Event:
    size = 1000 if number in LARGE else 1
    value = f"{partition} {number} {index} ".encode() * size
    headers = (("from", b"test"), ("number", b"%d" % number)) if index % 2 else ()
    return Event(b"key %d" % index, value, headers, TIME_US + number, index == 3)


async def fill(cluster: TestCluster) -> None:
    async with Producer(cluster.directory, "alice") as producer:
        for topic, partitions in ((VALIDATED, 2), (CRASH, 1)):
            for number in range(BATCHES):
                for partition in range(partitions):
                    whole = [event_of(partition, number, each) for each in range(EVENTS_EACH)]
                    await producer.send_batch(topic, whole, partition=partition)


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        asyncio.run(fill(running))
        yield running


class Patient(RangeReader):
    """Answers nothing before it was asked for every partition."""

    def __init__(self, cluster: Path, identity: str, partitions: int) -> None:
        super().__init__(cluster, identity)
        self._others = asyncio.Barrier(partitions)

    async def end(self, topic: str, partition: int) -> int:
        async with asyncio.timeout(30):
            await self._others.wait()
        return await super().end(topic, partition)


def test_where_partitions_end_is_asked_for_all_at_once_so_that_none_is_behind_the_others(
    cluster: TestCluster,
) -> None:
    async def ends() -> object:
        async with Patient(cluster.directory, "bob", 3) as reader:
            return await bounds_of(reader, (VALIDATED, CRASH), "end")

    assert asyncio.run(ends()) == {VALIDATED: {"0": END, "1": END}, CRASH: {"0": END}}


def reading(spark: "SparkSession", at: TestCluster, /, **options: str) -> "DataFrame":
    given = {"cluster": str(at.directory), "identity": "bob", "topics": VALIDATED, **options}
    return spark.read.format("quorate").options(**given).load()


def in_order(frame: "DataFrame") -> list[Any]:
    return frame.orderBy("partition", "offset").collect()


def expected(partition: int, numbers: range) -> list[Event]:
    return [event_of(partition, n, index) for n in numbers for index in range(EVENTS_EACH)]


def as_events(rows: list[Any]) -> list[Event]:
    return [
        Event(
            bytes(row.key), bytes(row.value),
            tuple((header.name, bytes(header.value)) for header in row.headers),
            round(row.timestamp.replace(tzinfo=UTC).timestamp() * 1e6), row.urgent,
        )
        for row in rows
    ]  # fmt: skip


def test_the_columns_are_those_that_the_documentation_has(spark: "SparkSession") -> None:
    assert spark.createDataFrame([], EVENTS).schema == events()
    assert spark.createDataFrame([], f"{EVENTS}, {PROOF}").schema == events(proofs=True)


def test_rows_are_the_events_in_their_places(spark: "SparkSession", cluster: TestCluster) -> None:
    rows = in_order(reading(spark, cluster))

    assert as_events(rows) == expected(0, range(BATCHES)) + expected(1, range(BATCHES))
    places = [(row.partition, row.offset, row["index"]) for row in rows]
    assert places == [(p, offset, offset % EVENTS_EACH) for p in range(2) for offset in range(END)]
    assert {(row.topic, row.producer) for row in rows} == {(VALIDATED, "alice")}
    # A batch has one digest and one place in the order log, and a checkpoint covers it.
    proofs = {
        (row.partition, row.offset // EVENTS_EACH, bytes(row.digest), row.position) for row in rows
    }
    assert len(proofs) == len({position for *_, position in proofs}) == 2 * BATCHES
    assert all(row.position < row.checkpoint for row in rows)


def test_a_log_that_nobody_signs_has_no_proofs(spark: "SparkSession", cluster: TestCluster) -> None:
    rows = in_order(reading(spark, cluster, topics=CRASH))

    assert as_events(rows) == expected(0, range(BATCHES))
    assert {(row.digest, row.position, row.checkpoint) for row in rows} == {(None, None, None)}


def test_a_frame_begins_and_ends_where_it_is_told(
    spark: "SparkSession", cluster: TestCluster
) -> None:
    whole = reading(
        spark, cluster, rows_per_task="17",
        start=json.dumps({VALIDATED: {0: 23, 1: END}}), until=json.dumps({VALIDATED: {0: 71}}),
    )  # fmt: skip

    # Also where that is inside of batches.
    assert as_events(in_order(whole)) == expected(0, range(BATCHES))[23:71]
    # Partition 1 ends at its beginning, and partition 0 is shared by three tasks.
    assert whole.rdd.getNumPartitions() == 3
    later = datetime.now(UTC).isoformat()
    assert reading(spark, cluster, start=later).count() == 0
    assert reading(spark, cluster, until=later).count() == 2 * END


def test_a_program_may_want_fewer_columns(spark: "SparkSession", cluster: TestCluster) -> None:
    given = {"cluster": str(cluster.directory), "identity": "bob", "topics": VALIDATED}
    reader = spark.read.format("quorate").options(**given)

    frame = reader.schema("value binary, offset bigint").load()

    assert frame.columns == ["value", "offset"]
    assert frame.where("offset < 7").count() == 2 * 7


def test_a_stream_reads_so_many_rows_at_a_time_and_each_once(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    batches: list[list[tuple[int, int]]] = []

    def keep(frame: "DataFrame", _: int) -> None:
        rows = frame.select("partition", "offset").collect()
        batches.append([tuple(row) for row in rows])

    given = {"cluster": str(cluster.directory), "identity": "bob", "topics": VALIDATED}
    stream = spark.readStream.format("quorate").options(max_rows="48", **given).load()
    query = (
        stream.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    # To the event, wherever batches end.
    assert [len(batch) for batch in batches] == [48] * (2 * END // 48)
    seen = [place for batch in batches for place in batch]
    assert len(seen) == len(set(seen)) == 2 * END


def test_of_a_validated_topic_those_events_are_read_that_were_signed_or_all(
    spark: "SparkSession", cluster: TestCluster
) -> None:
    values = [[b"signed"] * 2, [b"basic"] * 3, [b"signed again"]]

    async def publish() -> None:
        async with Producer(cluster.directory, "alice") as producer:
            for at, batch in enumerate(values):
                await producer.update_topology([] if at == 1 else [MIXED])
                await producer.send_values(MIXED, batch)

    asyncio.run(publish())
    signed = in_order(reading(spark, cluster, topics=MIXED))
    every = in_order(reading(spark, cluster, topics=MIXED, validate="false"))

    assert [(row.offset, bytes(row.value)) for row in every] == [*enumerate(chain(*values))]
    assert [row.offset for row in every if row.digest is None] == [2, 3, 4]
    assert all(row.position < row.checkpoint for row in every)
    assert [row[:-1] for row in signed] == [row[:-1] for row in every if row.digest is not None]


def test_a_lying_replica_changes_no_row(spark: "SparkSession", cluster: TestCluster) -> None:
    honest = in_order(reading(spark, cluster))
    liar = store_names(cluster)[0]
    with lying(cluster, [liar]):
        assert in_order(reading(spark, cluster)) == honest


def test_rows_that_do_not_verify_fail_are_left_out_or_kept_aside(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    """Whoever has large batches has something else in their place: more than the cluster stands."""
    impatient = {"patience_s": "0.1", "start": json.dumps({VALIDATED: {1: END}})}
    small = [number for number in range(BATCHES) if number not in LARGE]
    with corrupted(cluster, LARGE):
        with pytest.raises(Exception, match=r"no replica gives the batch at offset 30 of partiti"):
            reading(spark, cluster, **impatient).count()
        dropped = in_order(reading(spark, cluster, on_unverified="drop", **impatient))
        aside = str(tmp_path / "aside")
        kept = in_order(
            reading(spark, cluster, on_unverified="quarantine", quarantine=aside, **impatient)
        )

    assert sorted({row.offset // EVENTS_EACH for row in dropped}) == small
    assert as_events(dropped) == [e for n in small for e in expected(0, range(n, n + 1))]
    assert kept == dropped
    files = {path.name for path in (tmp_path / "aside").iterdir()}
    assert files == {f"{VALIDATED}-0-{number * EVENTS_EACH}.jsonl" for number in LARGE}
    first = (tmp_path / "aside" / f"{VALIDATED}-0-30.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["sent"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topics": "nope"}, "has no topic 'nope'; it has"),
        ({"topics": CLOSED}, "bob may not subscribe to 'closed'"),
        ({"start": '{"validated": {"0": 999}}'}, "offset 999 of partition 0 of 'validated'"),
        ({"verify": "no"}, "there is no option 'verify' for reading from a topic; allowed are"),
        ({"cluster": "elsewhere"}, "there is no cluster at elsewhere"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(
    spark: "SparkSession", cluster: TestCluster, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match=sentence):
        reading(spark, cluster, **options).count()


def store_names(cluster: TestCluster) -> list[str]:
    """Replicas in the order in which those of partition 0 are asked."""
    parties = cluster.launcher.cluster
    order = stores_of(parties.placement(VALIDATED), Partition(topic_id(VALIDATED), 0))
    return [parties.replicas[number].name for number in order]


@contextlib.contextmanager
def corrupted(cluster: TestCluster, numbers: Iterable[int]) -> Iterator[None]:
    """While it lasts, no store has these large batches of partition 0 as they were published.

    Which stores have them is theirs and the producer's to choose: on a slow machine, more have.
    """
    _alter_large(cluster, numbers)
    try:
        yield
    finally:
        _alter_large(cluster, numbers)


def _alter_large(cluster: TestCluster, numbers: Iterable[int]) -> None:
    """Done twice, it leaves them as they were."""
    for name in cluster.names:
        cluster.launcher.stop(name)
    for number in numbers:
        mark = event_of(0, number, 0).value
        stores = [cluster.directory / "data" / name for name in cluster.names]
        assert sum(alter_payloads(store, mark) for store in stores) > 1
    cluster.launcher.start_all()


class lying:  # noqa: N801
    """While it lasts, these replicas lie about content in all that they send."""

    def __init__(self, cluster: TestCluster, names: list[str]) -> None:
        self._cluster, self._names = cluster, names

    def __enter__(self) -> None:
        asyncio.run(self._have("lie", percent=100.0, fields=["content"]))

    def __exit__(self, *_: object) -> None:
        asyncio.run(self._have("behave"))

    async def _have(self, behaviour: str, **how: Any) -> None:
        async with Admin(self._cluster.directory, OPERATOR) as admin:
            for name in self._names:
                await admin.misbehave(name, behaviour, **how)
