"""Stretches of log topics are read with proof, whoever lies or dies."""

import asyncio
from collections.abc import Iterator

import pytest

from clusters import TestCluster, running_cluster
from quorate.client import Admin, Producer, ranges
from quorate.client.ranges import RangeReader, UnverifiedError
from quorate.core.batch import Batch
from quorate.core.errors import LocalProtocolError, RefusedError, UnreachedError
from quorate.core.ids import topic_id
from quorate.core.ordering import SEAL_BYTES, Partition
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.ranges import Settled
from quorate.runtime.local import OPERATOR

pytestmark = pytest.mark.xdist_group("processes")

VALIDATED, ORDERED, CRASH, CLOSED = "validated", "ordered", "crash", "closed"
TOPICS: dict[str, dict[str, object]] = {
    VALIDATED: {"order": "total", "validated": True},
    ORDERED: {"order": "total"},
    CRASH: {"order": "total", "protection": "crash"},
    CLOSED: {"order": "total", "subscribe": ["alice"]},
    "live": {"broadcast": "vote"},
}
BATCHES, EVENTS = 40, 25


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        asyncio.run(fill(running))
        yield running


async def fill(cluster: TestCluster) -> None:
    async with Producer(cluster.directory, "alice") as producer:
        for topic in (VALIDATED, ORDERED, CRASH):
            for number in range(BATCHES):
                await producer.send_values(topic, values_of(number))


def values_of(number: int) -> list[bytes]:
    """Some batches are large, and only with f + 1 stores."""
    size = 400 if number % 3 == 0 else 8
    return [b"%04d" % (number * EVENTS + event) * size for event in range(EVENTS)]


def lead_of(cluster: TestCluster, topic: str) -> str:
    """Whoever a stretch is read from first."""
    parties = cluster.launcher.cluster
    first, *_ = stores_of(parties.placement(topic), Partition(topic_id(topic), 0))
    return parties.replicas[first].name


async def read(reader: RangeReader, topic: str, start: int, end: int) -> list[Settled]:
    return [batch async for found in reader.read(topic, 0, start, end) for batch in found]


def values_in(batches: list[Settled], topic: str) -> list[list[bytes]]:
    front = SEAL_BYTES if topic == VALIDATED else 0
    return [Batch(batch.payload[front:]).values() for batch in batches]


@pytest.mark.parametrize("topic", [VALIDATED, ORDERED, CRASH])
def test_a_stretch_has_the_same_batches_whenever_it_is_read(
    cluster: TestCluster, topic: str
) -> None:
    async def story() -> None:
        async with RangeReader(cluster.directory, "bob") as reader:
            assert await reader.bounds(topic, 0) == (0, BATCHES)
            once, again = [await read(reader, topic, 7, 33) for _ in range(2)]
        assert values_in(once, topic) == [values_of(number) for number in range(7, 33)]
        assert [batch.offset for batch in once] == [*range(7, 33)]
        assert [batch.payload for batch in again] == [batch.payload for batch in once]

    asyncio.run(story())


def test_batches_of_topics_that_stand_liars_have_a_place_in_the_order_log(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with RangeReader(cluster.directory, "bob") as reader:
            for topic in (VALIDATED, ORDERED):
                batches = await read(reader, topic, 0, BATCHES)
                leaves = [batch.leaf for batch in batches]
                assert None not in leaves
                assert leaves == sorted(set(leaves), key=lambda leaf: leaf or 0)
                assert all((batch.leaf or 0) < (batch.size or 0) for batch in batches)
            assert {batch.leaf for batch in await read(reader, CRASH, 0, 3)} == {None}

    asyncio.run(story())


@pytest.mark.parametrize("field", ["content", "sequence", "publisher", "topic"])
@pytest.mark.parametrize("topic", [VALIDATED, ORDERED])
def test_a_replica_that_lies_is_passed_over(cluster: TestCluster, topic: str, field: str) -> None:
    liar = lead_of(cluster, topic)

    async def story() -> None:
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.misbehave(liar, "lie", percent=100.0, fields=[field])
            try:
                async with RangeReader(cluster.directory, "bob") as reader:
                    batches = await read(reader, topic, 0, BATCHES)
                    reports = dict(reader.reports)
            finally:
                await admin.misbehave(liar, "behave")
        assert values_in(batches, topic) == [values_of(number) for number in range(BATCHES)]
        if field == "content":
            assert f"{liar}: bad-lead" in reports

    asyncio.run(story())


def test_a_lead_that_dies_in_the_middle_is_replaced(cluster: TestCluster) -> None:
    lead = lead_of(cluster, VALIDATED)

    async def story() -> list[Settled]:
        async with RangeReader(cluster.directory, "bob") as reader:
            batches: list[Settled] = []
            # The first ones come before the reader lets the lead send more.
            async for found in reader.read(VALIDATED, 0, 0, BATCHES):
                if not batches:
                    cluster.launcher.stop(lead, kill=True)
                batches += found
            return batches

    try:
        batches = asyncio.run(story())
    finally:
        cluster.revive()
    assert values_in(batches, VALIDATED) == [values_of(number) for number in range(BATCHES)]


def test_what_nobody_gives_is_named_with_what_was_sent_and_may_be_left_out(
    cluster: TestCluster,
) -> None:
    """All replicas lie: no such cluster is promised to work, and nothing false is handed out."""

    async def story() -> None:
        left_out: list[UnverifiedError] = []
        async with (
            Admin(cluster.directory, OPERATOR) as admin,
            RangeReader(cluster.directory, "bob") as reader,
        ):
            await reader.contract(VALIDATED)
            for name in cluster.names:
                await admin.misbehave(name, "lie", percent=100.0, fields=["content"])
            try:
                with pytest.raises(UnverifiedError, match="offset 4 of partition 0") as raised:
                    await anext(reader.read(VALIDATED, 0, 4, 6, patience_s=0.1))
                skipping = reader.read(
                    VALIDATED, 0, 4, 6, patience_s=0.1, on_unverified=left_out.append
                )
                found = [batch async for batch in skipping]
            finally:
                for name in cluster.names:
                    await admin.misbehave(name, "behave")
        assert raised.value.sent
        assert found == []
        assert [error.offset for error in left_out] == [4, 5]

    asyncio.run(story())


def test_so_many_events_are_weighed_and_a_liar_makes_it_no_more(cluster: TestCluster) -> None:
    async def story() -> None:
        async with (
            Admin(cluster.directory, OPERATOR) as admin,
            RangeReader(cluster.directory, "bob") as reader,
        ):
            await admin.misbehave("r2", "lie", percent=100.0, fields=["sequence"])
            try:
                for events, batches in ((1, 1), (EVENTS, 1), (3 * EVENTS + 1, 3), (10**6, 35)):
                    end = await reader.weigh(VALIDATED, 0, 5, BATCHES, events)
                    assert end == 5 + batches
            finally:
                await admin.misbehave("r2", "behave")

    asyncio.run(story())


def test_what_cannot_be_read_is_refused_in_a_sentence(cluster: TestCluster) -> None:
    async def story() -> None:
        async with RangeReader(cluster.directory, "bob") as reader:
            with pytest.raises(RefusedError, match="bob may not subscribe to 'closed'"):
                await reader.bounds(CLOSED, 0)
            with pytest.raises(LocalProtocolError, match="'live' is live"):
                await reader.bounds("live", 0)
            with pytest.raises(LocalProtocolError, match="has no partition 3; it has partitions"):
                await reader.end(VALIDATED, 3)

    asyncio.run(story())


def test_whoever_may_read_no_more_is_told_so_and_leaves_nothing_out(cluster: TestCluster) -> None:
    """Also those who leave out what cannot be verified: this is something else."""

    async def story() -> None:
        left_out: list[UnverifiedError] = []
        told = pytest.raises(RefusedError, match="bob may not subscribe to 'ordered'; alice may")
        async with (
            Admin(cluster.directory, OPERATOR) as admin,
            RangeReader(cluster.directory, "bob") as reader,
        ):
            await reader.contract(ORDERED)
            await admin.alter_topic(ORDERED, {"subscribe": ["alice"]})
            try:
                with told:
                    await reader.end(ORDERED, 0)
                with told:
                    await reader.weigh(ORDERED, 0, 0, BATCHES, 10)
                with told:
                    stretch = reader.read(
                        ORDERED, 0, 0, BATCHES, patience_s=0.1, on_unverified=left_out.append
                    )
                    await anext(stretch)
            finally:
                await admin.alter_topic(ORDERED, {"subscribe": ["alice", "bob"]})
            assert left_out == []
            assert len(await read(reader, ORDERED, 0, BATCHES)) == BATCHES

    asyncio.run(story())


def test_a_cluster_that_is_gone_is_named_with_its_addresses(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "ANSWER_TIMEOUT_S", 1.0)

    async def story() -> None:
        async with RangeReader(cluster.directory, "bob") as reader:
            await reader.bounds(VALIDATED, 0)
            for name in cluster.names:
                cluster.launcher.stop(name, kill=True)
            gone = pytest.raises(UnreachedError, match="no replica that serves 'validated'")
            with gone:
                async for _ in reader.read(VALIDATED, 0, 0, BATCHES, patience_s=0.5):
                    pass
            with gone:
                await reader.end(VALIDATED, 0)
            with gone:
                await reader.weigh(VALIDATED, 0, 0, BATCHES, 10)

    try:
        asyncio.run(story())
    finally:
        cluster.revive()
