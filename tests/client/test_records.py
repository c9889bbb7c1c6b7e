"""A consumer's records: whichever way a program asks for them, they are those of their batches."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quorate.client import Consumer, Record
from quorate.client.consumer import AT_ONCE_EVENTS_MIN
from quorate.core.batch import encode
from quorate.core.contract import Contract
from quorate.core.event import Event
from quorate.core.ids import node_of, topic_id
from quorate.core.ordering import Partition
from quorate.protocol.machine import Entry
from quorate.runtime.local import make_local_cluster

LOG = Contract.parse("orders", {"protection": "crash", "order": "total"})
# Nobody listens at the ports of its replicas; what arrives is put in by hand.
LOCAL = make_local_cluster(base_port=1, topics={"orders": LOG})
ALICE = node_of(LOCAL.cluster.named("alice").number, 7)

EVENTS = [
    Event(b"a", b"0", (), 10),
    Event(None, b"1", (("kind", b"x"),), 11),
    Event(b"b", b"2", (), 12),
    Event(b"a", b"3", (("kind", b"x"), ("kind", b"y")), 10),
    Event(b"a", b"4", (), 14, urgent=True),
]


def entry(offset: int, events: list[Event], seal: bytes = b"") -> Entry:
    payload = memoryview(encode(events))
    return Entry(
        Partition(topic_id("orders"), 0), offset, ALICE, offset + 1, 5, payload, (0, 2), seal
    )


def read(
    story: Callable[[Consumer], Awaitable[None]],
    arrivals: list[Entry],
    *,
    monkeypatch: pytest.MonkeyPatch,
    key_prefix: bytes = b"",
    headers: dict[str, bytes] | None = None,
) -> None:
    """What a consumer does to which so much has come."""

    async def agreed(consumer: Consumer) -> None:
        consumer._asked.clear()
        consumer._unbegun.clear()

    monkeypatch.setattr(Consumer, "subscribed", agreed)

    async def whole() -> None:
        async with Consumer(LOCAL.cluster, LOCAL.identities["bob"]) as consumer:
            consumer.subscribe(["orders"], key_prefix=key_prefix, headers=headers)
            consumer._on_outcomes(list(arrivals))
            await story(consumer)

    asyncio.run(whole())


@pytest.mark.parametrize("times", [1, AT_ONCE_EVENTS_MIN], ids=["few", "many"])
def test_a_record_says_all_of_its_event_and_where_it_comes_from(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = EVENTS * times

    async def story(consumer: Consumer) -> None:
        found = await consumer.poll_many(1000)

        assert found == [
            Record(
                "orders", "alice", 4, index, event.key, event.value, event.headers,
                event.timestamp_us, event.urgent, ("r0", "r2"), 0, 3, b"seal",
            )
            for index, event in enumerate(events)
        ]  # fmt: skip
        assert all(record.validated for record in found)

    read(story, [entry(3, events, b"seal")], monkeypatch=monkeypatch)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_many_records_are_cut_where_the_program_wants_and_not_where_batches_end(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(consumer: Consumer) -> None:
        found: list[Record] = []
        while len(found) < 15:
            some = await consumer.poll_many(size)
            assert len(some) == min(size, 15 - len(found))
            found += some

        assert [(record.offset, record.index) for record in found] == [
            (offset, index) for offset in range(3) for index in range(5)
        ]

    read(story, [entry(offset, EVENTS) for offset in range(3)], monkeypatch=monkeypatch)


def test_all_ways_to_read_go_on_where_the_last_one_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(consumer: Consumer) -> None:
        first, second = await consumer.poll(), await anext(consumer)
        rest = await consumer.poll_many(4)
        last = await anext(consumer)

        values = [record.value for record in (first, second, *rest, last) if record is not None]
        assert values == [b"0", b"1", b"2", b"3", b"4", b"0", b"1"]

    read(story, [entry(0, EVENTS), entry(1, EVENTS)], monkeypatch=monkeypatch)


def test_only_what_a_filter_wants_becomes_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(consumer: Consumer) -> None:
        found = await consumer.poll_many(10)

        assert [(record.offset, record.index) for record in found] == [(1, 3), (2, 3)]

    arrivals = [entry(0, EVENTS[:3]), entry(1, EVENTS), entry(2, EVENTS), entry(3, EVENTS[:1])]
    read(story, arrivals, monkeypatch=monkeypatch, key_prefix=b"a", headers={"kind": b"y"})


def test_a_batch_counts_as_read_when_the_program_comes_back_after_its_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        positions = []
        for _ in range(6):
            await anext(consumer)
            positions.append(consumer.position("orders", 0))
        await consumer.poll_many(4)
        positions.append(consumer.position("orders", 0))
        await consumer.poll()
        positions.append(consumer.position("orders", 0))

        # The sixth event is the first of the second batch.
        assert positions == [None, None, None, None, None, 1, 1, 2]

    read(story, [entry(offset, EVENTS) for offset in range(3)], monkeypatch=monkeypatch)
