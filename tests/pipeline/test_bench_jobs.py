"""What Spark does in a benchmark, done once, with a cluster and clients that are processes."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from clusters import TestCluster, running_cluster
from quorate.bench.pipeline_clients import AlertTask, FillTask, Heard, Listed, SitesTask
from quorate.bench.processes import started
from quorate.bench.spark_jobs import Job, Jobs, SparkTask
from quorate.pipeline.data.sites import HARD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLIENTS = "quorate.bench.pipeline_clients"
LOG: dict[str, object] = {"order": "total", "validated": True}
TOPICS = {
    "events": {**LOG, "partitions": 2},
    **dict.fromkeys(("ticks", "alerts", "blacklist", *HARD.sites), LOG),
}
BATCHES, EVENTS_EACH = 4, 50
ANSWER_S_MAX = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS, clients=("alice", "bob", *HARD.sites)) as running:
        yield running


@pytest.fixture
def jobs(spark: "SparkSession", cluster: TestCluster, tmp_path: Path) -> Jobs:
    task = SparkTask(master="local[2]", cluster=str(cluster.directory), directory=str(tmp_path))
    return Jobs(spark, task)


async def answer_of(role: str, task: msgspec.Struct) -> Any:
    async with AsyncExitStack() as stack:
        client = await started(stack, CLIENTS, role, task)
        return await client.hear(ANSWER_S_MAX)


def test_parquet_has_the_rows_that_were_published(jobs: Jobs, cluster: TestCluster) -> None:
    filling = FillTask(
        cluster=str(cluster.directory), topic="events", partitions=2, batches=BATCHES,
        events_per_batch=EVENTS_EACH, event_bytes=100,
    )  # fmt: skip
    assert asyncio.run(answer_of("fill", filling)) == BATCHES

    kept = jobs.do(Job(kind="keep", topic="events"))

    assert kept.from_topic == kept.from_parquet
    assert kept.from_topic is not None
    assert kept.from_topic[0] == BATCHES * EVENTS_EACH
    assert jobs.do(Job(kind="unverified", topic="events")).seconds > 0
    assert jobs.do(Job(kind="parquet", topic="events")).seconds > 0
    assert jobs.do(Job(kind="stream", topic="events", is_watched=True)).memory_mb_max > 0


def test_every_second_event_becomes_an_alert_and_arrives(jobs: Jobs, cluster: TestCluster) -> None:
    alerting = AlertTask(
        cluster=str(cluster.directory), topic="ticks", alerts="alerts", event_bytes=100,
        events_per_s=20.0, warm_up_s=0.1, seconds=0.5,
    )  # fmt: skip
    jobs.do(Job(kind="relay", topic="ticks", alerts="alerts"))

    heard = msgspec.convert(asyncio.run(answer_of("alert", alerting)), Heard)
    jobs.do(Job(kind="rest", topic="ticks"))

    assert heard.arrived == heard.published == 5
    assert heard.wrong == 0
    assert 0 < heard.latencies.p50_ms <= heard.latencies.p99_ms


def test_sites_play_live_and_hear_of_every_scanner(jobs: Jobs, cluster: TestCluster) -> None:
    task = SitesTask(
        cluster=str(cluster.directory), blacklist="blacklist", scanners=2, seconds=16.5
    )

    async def play() -> Listed:
        async with AsyncExitStack() as stack:
            sites = await started(stack, CLIENTS, "sites", task)
            assert await sites.hear(ANSWER_S_MAX) == "here"
            job = Job(kind="portscan", topic=",".join(HARD.sites), alerts="blacklist")
            jobs.do(job)
            sites.say("go")
            listed = msgspec.convert(await sites.hear(ANSWER_S_MAX), Listed)
            jobs.do(Job(kind="rest", topic="blacklist"))
            return listed

    listed = asyncio.run(play())

    assert (listed.scanners, listed.found) == (2, 2)
    assert listed.latencies.p50_ms > 0
