"""The metrics page of a replica, as Prometheus reads it."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from clusters import TestCluster, running_cluster
from quorate.client import Consumer, Producer
from traffic import eventually, scrape

pytestmark = pytest.mark.xdist_group("processes")

EVENTS = 7


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    topics = {
        "news": {"broadcast": "authenticated"},
        "ledger": {"order": "total", "protection": "crash"},
    }
    with running_cluster(topics=topics, clients=("alice", "bob")) as running:
        yield running


def value(page: dict[str, Metric], name: str) -> float:
    (sample,) = page[f"quorate_{name}"].samples
    return float(sample.value)


async def pages_after_some_events(cluster: TestCluster) -> list[dict[str, Metric]]:
    async with (
        Consumer(cluster.directory, "bob") as consumer,
        Producer(cluster.directory, "alice") as producer,
    ):
        consumer.subscribe(["news"])
        await consumer.subscribed()
        for number in range(EVENTS):
            await producer.send("news", b"%d" % number)
        for _ in range(EVENTS):
            assert await consumer.poll(timeout_s=10) is not None
        texts = [await scrape(cluster.launcher.cluster, name) for name in cluster.names]
    return [{each.name: each for each in text_string_to_metric_families(text)} for text in texts]


def test_it_counts_what_passes_and_says_what_each_figure_means(cluster: TestCluster) -> None:
    pages = asyncio.run(pages_after_some_events(cluster))

    for page in pages:
        assert value(page, "internal_errors") == 0
        assert value(page, "memory_bytes") > 10_000_000
        assert all(family.documentation.endswith(".") for family in page.values())
    # Three of four are enough for everything: the slowest may not have come so far.
    for name, expected in {"publishers": 1, "subscribers": 1, "offered_events": EVENTS}.items():
        assert sum(value(page, name) == expected for page in pages) >= 3
    assert pages[0]["quorate_publishers"].samples[0].labels == {"topic": "news"}


def test_it_says_how_far_a_log_is(cluster: TestCluster) -> None:
    async def look() -> dict[str, dict[str, float]]:
        page = text_string_to_metric_families(await scrape(cluster.launcher.cluster, "r0"))
        return {
            family.name: {sample.labels["log"]: sample.value for sample in family.samples}
            for family in page
            if family.name.startswith("quorate_log_")
        }

    async def story() -> dict[str, dict[str, float]]:
        async with Producer(cluster.directory, "alice", batch_events=1) as producer:
            for number in range(EVENTS):
                await producer.send("ledger", b"%d" % number)
        # Two replicas make a receipt, and this one may be a moment behind them.
        seen: dict[str, dict[str, float]] = await eventually(
            look, lambda seen: seen["quorate_log_signed_batches"]["crash"] > 0
        )
        return seen

    seen = asyncio.run(story())

    assert seen["quorate_log_batches"]["crash"] >= seen["quorate_log_signed_batches"]["crash"]
    assert seen["quorate_log_missing_events"]["crash"] == 0
    assert seen["quorate_log_regency"]["crash"] == 1


def test_there_is_nothing_else_on_its_port(cluster: TestCluster) -> None:
    found = cluster.launcher.cluster.replicas[0]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{found.host}:{found.metrics_port}/keys", timeout=5)
