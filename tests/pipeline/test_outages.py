"""Queries that may read or publish no more, or whose cluster is gone: one sentence, and no loss.

When what was lost is back, the same query goes on with the same checkpoint.
"""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from clusters import TestCluster, quorate, running_cluster
from quorate.client import Producer
from quorate.pipeline.jobs.job import Pipes
from quorate.pipeline.jobs.patterns import JOB
from quorate.pipeline.jobs.settings import read_settings
from quorate.pipeline.running import QueryError, follow
from reading import everything_on, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")

IN, OUT, OTHER, PAIRS, MATCHES = "in", "out", "other", "pairs", "matches"
LOG: dict[str, object] = {"order": "total", "validated": True}
TOPICS = dict.fromkeys((IN, OUT, OTHER, PAIRS, MATCHES), LOG)
ROWS = 30
PATIENCE_S = 120
SECOND_US = 1_000_000
BEGIN_US = 1_700_000_000 * SECOND_US
PAIR = '{name = "pair", steps = ["a", "b"]}'


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        yield running


def alter(at: TestCluster, topic: str, change: str) -> None:
    assert quorate("topic", "alter", topic, change, "-d", at.directory).code == 0


async def publish(at: TestCluster, numbers: range, *, topic: str = IN) -> None:
    async with Producer(at.directory, "alice", batch_events=10) as producer:
        for number in numbers:
            await producer.submit(topic, b"%d" % number)
        await producer.flush()


def pipes(
    spark: "SparkSession", at: TestCluster, checkpoint: Path, *, available_now: bool = False
) -> Pipes:
    return Pipes(
        spark=spark, cluster=str(at.directory), identity="bob", checkpoint=str(checkpoint),
        available_now=available_now,
    )  # fmt: skip


def copy(over: Pipes) -> "StreamingQuery":
    """A query that publishes what it reads."""
    return over.publish("copy", over.events(IN).select("key", "value"), OUT)


def copied(at: TestCluster) -> Counter[bytes]:
    return Counter(record.value for record in everything_on(at.directory, OUT))


def sentence_of(query: "StreamingQuery") -> str:
    with pytest.raises(QueryError) as failure:
        follow([query], threading.Event(), lambda _: None)
    return str(failure.value)


def test_a_query_that_loses_a_permission_says_so_and_goes_on_when_it_has_it_again(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    asyncio.run(publish(cluster, range(ROWS)))
    query = copy(pipes(spark, cluster, tmp_path))
    wait_for(cluster.directory, OUT, ROWS)
    alter(cluster, IN, "subscribe=alice")
    assert sentence_of(query) == "bob may not subscribe to 'in'; alice may"

    alter(cluster, IN, "subscribe=alice,bob")
    query = copy(pipes(spark, cluster, tmp_path))
    asyncio.run(publish(cluster, range(ROWS, 2 * ROWS)))
    wait_for(cluster.directory, OUT, 2 * ROWS)
    alter(cluster, OUT, "publish=alice")
    asyncio.run(publish(cluster, range(2 * ROWS, 3 * ROWS)))
    assert sentence_of(query) == "bob may not publish on 'out'; alice may"

    alter(cluster, OUT, "publish=alice,bob")
    query = copy(pipes(spark, cluster, tmp_path))
    try:
        wait_for(cluster.directory, OUT, 3 * ROWS)
        query.processAllAvailable()
    finally:
        query.stop()
    assert copied(cluster) == Counter(b"%d" % number for number in range(3 * ROWS))


@pytest.mark.parametrize(("source", "sink"), [("nowhere", OUT), (OTHER, "nowhere")])
def test_a_topic_that_is_not_there_is_named(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path, source: str, sink: str
) -> None:
    asyncio.run(publish(cluster, range(1), topic=OTHER))
    over = pipes(spark, cluster, tmp_path)

    query = over.publish("copy", over.events(source).select("value"), sink)

    assert sentence_of(query).startswith("cluster local has no topic 'nowhere'; it has")


def test_a_job_whose_cluster_is_gone_ends_with_a_sentence_and_goes_on_when_it_is_back(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    settings = read_settings(
        JOB, assignments=(f'topics=["{PAIRS}"]', f"matches={MATCHES}", f"patterns=[{PAIR}]")
    )
    asyncio.run(publish_pairs(cluster, range(10)))
    (query,) = JOB.start(pipes(spark, cluster, tmp_path), settings)
    # A pair is a match when there is a later one.
    wait_for(cluster.directory, MATCHES, 9)
    cluster.launcher.stop_all()
    sentence = sentence_of(query)
    cluster.launcher.start_all()

    assert sentence.startswith("no replica that serves 'pairs' can be reached (r0 at 127.0.0.1:")
    assert sentence.endswith("connection refused)")
    asyncio.run(publish_pairs(cluster, range(10, 20)))
    (query,) = JOB.start(pipes(spark, cluster, tmp_path, available_now=True), settings)
    assert query.awaitTermination(PATIENCE_S)
    assert matches(cluster) == Counter(b"%d" % number for number in range(19))


async def publish_pairs(at: TestCluster, numbers: range) -> None:
    """Each ten seconds after the one before, by their own time."""
    async with Producer(at.directory, "alice") as producer:
        for number in numbers:
            for step in ("a", "b"):
                value = json.dumps({"type": step}).encode()
                time_us = BEGIN_US + 10 * number * SECOND_US
                await producer.send(PAIRS, value, key=b"%d" % number, timestamp_us=time_us)


def matches(at: TestCluster) -> Counter[bytes | None]:
    """The keys of the pairs that were found."""
    return Counter(record.key for record in everything_on(at.directory, MATCHES))
