"""A consumer that waits for what is not there yet says what it waits for."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from clusters import TestCluster, running_cluster
from quorate.client import Consumer, Producer
from quorate.client.consumer import TELL_AFTER_S

pytestmark = pytest.mark.xdist_group("processes")

TOPICS: dict[str, dict[str, object]] = {
    "ledger": {"order": "total", "partitions": 2},
    "till": {"order": "total"},
}
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as made:
        yield made


def test_an_offset_beyond_the_end_is_waited_for_and_a_warning_says_once_where_the_end_is(
    cluster: TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with (
            Consumer(cluster.directory, "bob") as consumer,
            Producer(cluster.directory, "alice") as producer,
        ):
            consumer.subscribe(["ledger"])
            await consumer.subscribed()
            consumer.seek("ledger", 1, 1)
            for _ in range(2):
                assert await consumer.poll(2 * TELL_AFTER_S) is None
            for value in (b"zero", b"one"):
                await producer.send("ledger", value, partition=1)
            record = await consumer.poll(PATIENCE_S)
            assert record is not None
            assert (record.partition, record.offset, record.value) == (1, 1, b"one")

    with caplog.at_level(logging.WARNING, "quorate.client"):
        asyncio.run(story())

    assert [each.getMessage() for each in caplog.records] == [
        "partition 1 of 'ledger' ends at offset 0; waiting for offset 1"
    ]


def test_nobody_is_warned_who_begins_at_the_end(
    cluster: TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with (
            Producer(cluster.directory, "alice") as producer,
            Consumer(cluster.directory, "bob") as consumer,
        ):
            await producer.send("till", b"last")
            consumer.subscribe(["till"], start="begin")
            record = await consumer.poll(PATIENCE_S)
            assert record is not None
            consumer.seek("till", 0, 1)
            assert await consumer.poll(2 * TELL_AFTER_S) is None

    with caplog.at_level(logging.WARNING, "quorate.client"):
        asyncio.run(story())

    assert caplog.records == []
