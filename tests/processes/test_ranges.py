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
from quorate.core.ordering import Partition
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.ranges import Settled
from quorate.runtime.local import OPERATOR

pytestmark = pytest.mark.xdist_group("processes")

VALIDATED, ORDERED, CRASH, CLOSED = "validated", "ordered", "crash", "closed"
MIXED = "mixed"
TOPICS: dict[str, dict[str, object]] = {
    VALIDATED: {"order": "total", "validated": True},
    ORDERED: {"order": "total"},
    CRASH: {"order": "total", "protection": "crash"},
    CLOSED: {"order": "total", "subscribe": ["alice"]},
    MIXED: {"order": "total", "validated": True},
    "live": {"broadcast": "vote"},
}
BATCHES, EVENTS = 40, 25
END = BATCHES * EVENTS


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


def first(number: int) -> int:
    """The offset of the first event of a batch."""
    return number * EVENTS


def lead_of(cluster: TestCluster, topic: str) -> str:
    """Whoever a stretch is read from first."""
    parties = cluster.launcher.cluster
    first, *_ = stores_of(parties.placement(topic), Partition(topic_id(topic), 0))
    return parties.replicas[first].name


async def read(reader: RangeReader, topic: str, start: int, end: int) -> list[Settled]:
    return [batch async for found in reader.read(topic, 0, start, end) for batch in found]


def values_in(batches: list[Settled]) -> list[list[bytes]]:
    return [Batch(batch.payload or b"").values() for batch in batches]


@pytest.mark.parametrize("topic", [VALIDATED, ORDERED, CRASH])
def test_a_stretch_has_the_same_batches_whenever_it_is_read(
    cluster: TestCluster, topic: str
) -> None:
    async def story() -> None:
        async with RangeReader(cluster.directory, "bob") as reader:
            assert await reader.bounds(topic, 0) == (0, END)
            # It begins and ends inside batches, which come whole.
            once, again = [await read(reader, topic, first(7) + 3, first(32) + 1) for _ in range(2)]
        assert values_in(once) == [values_of(number) for number in range(7, 33)]
        assert [batch.offset for batch in once] == [*map(first, range(7, 33))]
        assert [batch.end for batch in once] == [*map(first, range(8, 34))]
        assert [batch.payload for batch in again] == [batch.payload for batch in once]

    asyncio.run(story())


def test_batches_of_topics_that_stand_liars_have_a_place_in_the_order_log(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with RangeReader(cluster.directory, "bob") as reader:
            for topic in (VALIDATED, ORDERED):
                batches = await read(reader, topic, 0, END)
                leaves = [batch.leaf for batch in batches]
                assert None not in leaves
                assert leaves == sorted(set(leaves), key=lambda leaf: leaf or 0)
                assert all((batch.leaf or 0) < (batch.size or 0) for batch in batches)
            assert {batch.leaf for batch in await read(reader, CRASH, 0, first(3))} == {None}

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
                    batches = await read(reader, topic, 0, END)
                    reports = dict(reader.reports)
            finally:
                await admin.misbehave(liar, "behave")
        assert values_in(batches) == [values_of(number) for number in range(BATCHES)]
        if field == "content":
            assert f"{liar}: bad-lead" in reports

    asyncio.run(story())


def test_who_validates_gets_the_places_of_basic_batches_and_others_get_them_whole(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Producer(cluster.directory, "alice") as producer,
            RangeReader(cluster.directory, "bob") as reader,
        ):
            await producer.send_values(MIXED, [b"signed"] * 2)
            await producer.update_topology([])
            await producer.send_values(MIXED, [b"basic"] * 3)
            validated = await read(reader, MIXED, 1, 4)
            every = [
                b async for found in reader.read(MIXED, 0, 1, 4, validate=False) for b in found
            ]
        assert values_in(every) == [[b"signed"] * 2, [b"basic"] * 3]
        assert [each.payload for each in validated] == [every[0].payload, None]
        for batches in (validated, every):
            assert [(each.offset, each.end) for each in batches] == [(0, 2), (2, 5)]
            assert None not in [each.leaf for each in batches]

    asyncio.run(story())


def test_a_lead_that_dies_in_the_middle_is_replaced(cluster: TestCluster) -> None:
    lead = lead_of(cluster, VALIDATED)

    async def story() -> list[Settled]:
        async with RangeReader(cluster.directory, "bob") as reader:
            batches: list[Settled] = []
            # The first ones come before the reader lets the lead send more.
            async for found in reader.read(VALIDATED, 0, 0, END):
                if not batches:
                    cluster.launcher.stop(lead, kill=True)
                batches += found
            return batches

    try:
        batches = asyncio.run(story())
    finally:
        cluster.revive()
    assert values_in(batches) == [values_of(number) for number in range(BATCHES)]


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
                with pytest.raises(UnverifiedError, match="offset 107 of partition 0") as raised:
                    await anext(reader.read(VALIDATED, 0, first(4) + 7, first(6), patience_s=0.1))
                skipping = reader.read(
                    VALIDATED, 0, first(4) + 7, first(6), patience_s=0.1,
                    on_unverified=left_out.append,
                )  # fmt: skip
                found = [batch async for batch in skipping]
            finally:
                for name in cluster.names:
                    await admin.misbehave(name, "behave")
        assert raised.value.sent
        assert found == []
        places = [(error.offset, error.end) for error in left_out]
        assert places == [(first(4) + 7, first(5)), (first(5), first(6))]

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
                    stretch = reader.read(
                        ORDERED, 0, 0, END, patience_s=0.1, on_unverified=left_out.append
                    )
                    await anext(stretch)
            finally:
                await admin.alter_topic(ORDERED, {"subscribe": ["alice", "bob"]})
            assert left_out == []
            assert len(await read(reader, ORDERED, 0, END)) == BATCHES

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
                async for _ in reader.read(VALIDATED, 0, 0, END, patience_s=0.5):
                    pass
            with gone:
                await reader.end(VALIDATED, 0)

    try:
        asyncio.run(story())
    finally:
        cluster.revive()
