"""Validated or basic, for each client and topic, with real replicas (Kabis 2023, section 2.1)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import TestCluster, running_cluster
from logs import next_records
from quorate.client import Consumer, Producer, Record

pytestmark = pytest.mark.xdist_group("processes")

VALIDATED = {"order": "total", "validated": True}
# A topic for each test, so that none reads what another one wrote.
TOPICS = (
    "table", "late", "producer", "consumer", "half", "mixed", "refused", "tail", "groups",
    "basic-groups", "stalled", "blocking",
)  # fmt: skip
QUIET_S = 1.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    topics: dict[str, dict[str, object]] = {name: dict(VALIDATED) for name in TOPICS}
    topics["groups"]["partitions"] = topics["basic-groups"]["partitions"] = 4
    topics["plain"] = {"order": "total"}
    with running_cluster(topics=topics, clients=("alice", "bob", "carol", "dave")) as running:
        yield running


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


async def publish(directory: Path, topic: str, name: str, *published: bytes, basic: bool) -> None:
    async with Producer(directory, name, batch_events=1) as producer:
        if basic:
            await producer.update_topology([])
        for value in published:
            await producer.send(topic, value)


async def rest(consumer: Consumer) -> list[Record]:
    """What else comes; nothing more once it has been quiet for a while."""
    found: list[Record] = []
    while (record := await consumer.poll(QUIET_S)) is not None:
        found.append(record)
    return found


# The table


@pytest.mark.parametrize("start", ["end", "begin"])
def test_the_table_of_kabis_holds_in_all_four_cells(cluster: TestCluster, start: str) -> None:
    directory, topic = cluster.directory, "table" if start == "end" else "late"

    async def publish_both() -> None:
        await publish(directory, topic, "alice", b"basic 1", b"basic 2", basic=True)
        await publish(directory, topic, "bob", b"validated 1", b"validated 2", basic=False)

    async def story() -> None:
        async with Consumer(directory, "carol") as basic, Consumer(directory, "dave") as validated:
            await basic.update_topology([])
            await validated.update_topology([topic])
            if start == "begin":
                await publish_both()
            for consumer in (basic, validated):
                consumer.subscribe([topic], start="begin" if start == "begin" else "end")
                await consumer.subscribed()
            if start == "end":
                await publish_both()
            # Whoever does not validate gets the events of both, with basic guarantees.
            seen = await next_records(basic, 4)
            assert values(seen) == [b"basic 1", b"basic 2", b"validated 1", b"validated 2"]
            assert not any(record.validated for record in seen)
            assert [record.publisher for record in seen] == ["alice", "alice", "bob", "bob"]
            assert [record.offset for record in seen] == [0, 1, 2, 3]
            # Whoever validates gets those of the validated producer, with extended guarantees,
            # and of the other one nothing.
            checked = await next_records(validated, 2)
            assert values(checked) == [b"validated 1", b"validated 2"]
            assert all(record.validated for record in checked)
            assert [record.offset for record in checked] == [0, 1]
            assert await rest(validated) == []
            assert await rest(basic) == []

    asyncio.run(story())
