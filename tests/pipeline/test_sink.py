"""Topics are a sink for Spark: every row is published once, in its partition."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusters import TestCluster, running_cluster
from quorate.client import Producer
from quorate.client.producer import partition_of
from quorate.pipeline.session import session
from reading import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IN, OUT, OTHER = "in", "out", "other"
TOPICS: dict[str, dict[str, object]] = {
    IN: {"order": "total", "validated": True},
    OUT: {"order": "total", "validated": True, "partitions": 3},
    OTHER: {"order": "total"},
    "live": {"broadcast": "vote"},
}
ROWS, ROWS_AT_ONCE = 2000, 500


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        asyncio.run(fill(running))
        yield running


async def fill(cluster: TestCluster) -> None:
    async with Producer(cluster.directory, "alice", batch_events=50) as producer:
        for number in range(ROWS):
            await producer.submit(IN, b"%d" % number, key=b"%d" % (number % 7))
        await producer.flush()


def published(spark: "SparkSession", at: TestCluster, topic: str) -> list[Any]:
    given = {"cluster": str(at.directory), "identity": "bob", "topics": topic}
    frame = spark.read.format("quorate").options(**given).load()
    return frame.orderBy("partition", "offset", "index").collect()


def write(frame: "DataFrame", at: TestCluster, staging: Path, /, **options: str) -> None:
    given = {"cluster": str(at.directory), "identity": "alice", "staging": str(staging)}
    frame.write.format("quorate").options(**{**given, **options}).mode("append").save()


def test_rows_go_to_their_topics_and_partitions(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    """By the partition that is named, else by the key, as any producer has it."""
    before = len(published(spark, cluster, OTHER))
    frame = spark.sql(
        "select cast(id as string) as key, concat('row ', id) as value, "
        "array(named_struct('name', 'h', 'value', cast('v' as binary))) as headers, "
        "timestamp_micros(1700000000000000 + id) as timestamp, id % 2 = 0 as urgent, "
        f"if(id < 90, '{OUT}', '{OTHER}') as topic, "
        "if(id < 10, 2, cast(null as int)) as partition from range(0, 100, 1, 3)"
    )

    write(frame, cluster, tmp_path)

    rows = published(spark, cluster, OUT)
    assert Counter(bytes(row.value).decode() for row in rows) == Counter(
        f"row {number}" for number in range(90)
    )
    for row in rows:
        number = int(row.key)
        assert row.partition == (2 if number < 10 else partition_of(bytes(row.key), 3))
        assert [(each.name, bytes(each.value)) for each in row.headers] == [("h", b"v")]
        assert row.timestamp.microsecond == number
        assert row.urgent is (number % 2 == 0)
    assert len(published(spark, cluster, OTHER)) - before == 10
    # Nobody can come back to a frame without a name, so nothing of it stays.
    assert list(tmp_path.iterdir()) == []


def test_a_frame_with_a_name_is_published_once_however_often_it_is_written(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    frame = spark.range(5).selectExpr("concat('once ', id) as value")
    for batch in ("0", "0", "1", "0", "1"):
        write(frame, cluster, tmp_path, topic=OTHER, name="report", batch=batch)

    values = [bytes(row.value) for row in published(spark, cluster, OTHER)]
    assert Counter(value for value in values if value.startswith(b"once")) == Counter(
        {b"once %d" % number: 2 for number in range(5)}
    )


def test_a_query_that_is_stopped_goes_on_in_another_thread_and_publishes_each_row_once(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    before = len(published(spark, cluster, OTHER))
    given = {"cluster": str(cluster.directory), "identity": "bob"}
    reader = spark.readStream.format("quorate").options(topics=IN, **given)
    rows = reader.option("max_rows", str(ROWS_AT_ONCE)).load()
    seen = rows.selectExpr("key", "concat('seen ', cast(value as string)) as value").writeStream
    seen = seen.format("quorate").options(topic=OTHER, checkpointLocation=str(tmp_path), **given)

    query = seen.start()
    wait_for(cluster.directory, OTHER, before + 1)
    query.stop()

    def go_on() -> None:
        session(str(spark.sparkContext.master))
        seen.trigger(availableNow=True).start().awaitTermination()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(go_on).result()

    found = published(spark, cluster, OTHER)
    values = Counter(bytes(row.value) for row in found if bytes(row.value).startswith(b"seen"))
    assert values == Counter(b"seen %d" % number for number in range(ROWS))
    assert len(found) == before + ROWS


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("id", {}, "has no column 'id'; allowed are key, value"),
        ("1 as value", {}, "the column 'value' is int; allowed is binary or string"),
        ("'x' as value", {"topic": ""}, "option 'topic' is missing"),
        ("'x' as value", {"topic": "live"}, "topic 'live' is live"),
        ("'x' as value, 9 as partition", {}, "topic 'other' has no partition 9; it has 0"),
        ("'x' as value", {"batches": "1"}, "there is no option 'batches' for publishing"),
    ],
)
def test_what_cannot_be_published_is_said_in_a_sentence(
    spark: "SparkSession",
    cluster: TestCluster,
    tmp_path: Path,
    columns: str,
    options: dict[str, str],
    sentence: str,
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))

    with pytest.raises(Exception, match=sentence):
        write(frame, cluster, tmp_path, **{"topic": OTHER, **options})


def test_a_topic_is_not_written_over(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    given = {"cluster": str(cluster.directory), "identity": "alice", "staging": str(tmp_path)}
    frame = spark.range(1).selectExpr("'x' as value")

    with pytest.raises(Exception, match="a topic is not written over"):
        frame.write.format("quorate").options(topic=OTHER, **given).mode("overwrite").save()
