"""A consumer's records: whichever way a program asks for them, they are those of their batches."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from quorate.client import Consumer, Record
from quorate.client.consumer import AT_ONCE_EVENTS_MIN
from quorate.client.modes import Modes
from quorate.core.batch import encode
from quorate.core.contract import Contract
from quorate.core.event import Event
from quorate.core.ids import node_of, topic_id
from quorate.core.ordering import Partition
from quorate.protocol.machine import Begun, Entry, Outcome, Passed, Trimmed
from quorate.runtime.local import make_local_cluster

LOG = Contract.parse("orders", {"protection": "crash", "order": "total"})
VALIDATED = Contract.parse("votes", {"order": "total", "validated": True})
# Nobody listens at the ports of its replicas; what arrives is put in by hand.
LOCAL = make_local_cluster(base_port=1, topics={"orders": LOG, "votes": VALIDATED})
ALICE = node_of(LOCAL.cluster.named("alice").number, 7)

EVENTS = [
    Event(b"a", b"0", (), 10),
    Event(None, b"1", (("kind", b"x"),), 11),
    Event(b"b", b"2", (), 12),
    Event(b"a", b"3", (("kind", b"x"), ("kind", b"y")), 10),
    Event(b"a", b"4", (), 14, urgent=True),
]


def entry(offset: int, events: list[Event], skip: int = 0, *, topic: str = "orders") -> Entry:
    place = Partition(topic_id(topic), 0)
    end = offset + len(events)
    return Entry(place, offset, end, ALICE, offset + 1, 5, encode(events), (0, 2), skip)


def malformed(offset: int, events: list[Event]) -> Entry:
    """Its header has so many events, and its body does not."""
    return msgspec.structs.replace(entry(offset, events), payload=encode(events)[:-1])


def passed(offset: int) -> Passed:
    return Passed(Partition(topic_id("orders"), 0), offset)


def read(
    story: Callable[[Consumer], Awaitable[None]],
    arrivals: Sequence[Outcome],
    *,
    monkeypatch: pytest.MonkeyPatch,
    topic: str = "orders",
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
            consumer.subscribe([topic], key_prefix=key_prefix, headers=headers)
            consumer._on_outcomes(list(arrivals))
            await story(consumer)

    asyncio.run(whole())


@pytest.mark.parametrize("topic", ["orders", "votes"])
@pytest.mark.parametrize("times", [1, AT_ONCE_EVENTS_MIN], ids=["few", "many"])
def test_a_record_says_all_of_its_event_and_where_it_comes_from(
    times: int, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = EVENTS * times

    async def story(consumer: Consumer) -> None:
        found = await consumer.poll_many(1000)

        assert found == [
            Record(
                topic, "alice", 4, index, event.key, event.value, event.headers,
                event.timestamp_us, event.urgent, ("r0", "r2"), 0, 3 + index, topic == "votes",
            )
            for index, event in enumerate(events)
        ]  # fmt: skip

    read(story, [entry(3, events, topic=topic)], monkeypatch=monkeypatch, topic=topic)


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

        assert [record.offset for record in found] == list(range(15))

    read(story, [entry(offset, EVENTS) for offset in (0, 5, 10)], monkeypatch=monkeypatch)


def test_all_ways_to_read_go_on_where_the_last_one_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(consumer: Consumer) -> None:
        first, second = await consumer.poll(), await anext(consumer)
        rest = await consumer.poll_many(4)
        last = await anext(consumer)

        values = [record.value for record in (first, second, *rest, last) if record is not None]
        assert values == [b"0", b"1", b"2", b"3", b"4", b"0", b"1"]

    read(story, [entry(0, EVENTS), entry(5, EVENTS)], monkeypatch=monkeypatch)


def test_only_what_a_filter_wants_becomes_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(consumer: Consumer) -> None:
        found = await consumer.poll_many(10)

        assert [(record.offset, record.index) for record in found] == [(6, 3), (11, 3)]
        await consumer.poll(0)
        assert consumer.position("orders", 0) == 14

    arrivals = [entry(0, EVENTS[:3]), entry(3, EVENTS), entry(8, EVENTS), entry(13, EVENTS[:1])]
    read(story, arrivals, monkeypatch=monkeypatch, key_prefix=b"a", headers={"kind": b"y"})


def test_an_event_counts_as_read_when_the_program_comes_back_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        positions = []
        for _ in range(6):
            await anext(consumer)
            positions.append(consumer.position("orders", 0))
        await consumer.poll_many(4)
        positions.append(consumer.position("orders", 0))
        await consumer.poll_many(3)
        positions.append(consumer.position("orders", 0))
        await consumer.poll()
        positions.append(consumer.position("orders", 0))

        # What `poll_many` hands out at once is through at once.
        assert positions == [None, 1, 2, 3, 4, 5, 6, 10, 13]

    read(story, [entry(offset, EVENTS) for offset in (0, 5, 10)], monkeypatch=monkeypatch)


def test_reading_may_begin_inside_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(consumer: Consumer) -> None:
        found = await consumer.poll_many(100)
        assert [(record.offset, record.value) for record in found] == [
            (3, b"3"), (4, b"4"), (5, b"0"), (6, b"1"), (7, b"2"), (8, b"3"), (9, b"4"),
        ]  # fmt: skip

    read(story, [entry(0, EVENTS, skip=3), entry(5, EVENTS)], monkeypatch=monkeypatch)


def test_a_position_is_past_what_is_not_for_this_reader_once_it_comes_to_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = Partition(topic_id("orders"), 0)

    async def story(consumer: Consumer) -> None:
        assert (await consumer.poll_many(2))[-1].offset == 3
        assert consumer.position("orders", 0) == 2
        rest = await consumer.poll_many(3)
        assert [record.offset for record in rest] == [4, 5, 6]
        # The rest of these is still to be handed out, so the gap behind them is not reached.
        assert consumer.position("orders", 0) == 4
        assert [record.offset for record in await consumer.poll_many(100)] == [12]
        assert consumer.position("orders", 0) == 12
        assert await consumer.poll(0) is None
        assert consumer.position("orders", 0) == 40
        assert (consumer.counters["malformed"], consumer.counters["trimmed"]) == (2, 10)
        assert len([each for each in caplog.records if "malformed" in each.message]) == 1

    arrivals: list[Outcome] = [
        passed(2), entry(2, EVENTS), malformed(7, EVENTS), entry(12, EVENTS[:1]), passed(20),
        passed(25), malformed(25, EVENTS), Trimmed(place, 30, 10),
    ]  # fmt: skip
    read(story, arrivals, monkeypatch=monkeypatch)


def test_whoever_waits_for_so_long_is_told_though_much_comes_that_is_not_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        async def basic_batches() -> None:
            for offset in range(1, 10_000):
                consumer._on_outcomes([passed(offset)])
                await asyncio.sleep(0.001)

        others = asyncio.create_task(basic_batches())
        for waiting in (consumer.poll(0.05), consumer.poll_batches(0.05)):
            assert not await waiting
            assert not others.done()
        others.cancel()

    read(story, [], monkeypatch=monkeypatch)


def test_batches_and_tables_go_on_inside_a_batch_where_records_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def batches(consumer: Consumer) -> None:
        assert [record.offset for record in await consumer.poll_many(2)] == [0, 1]
        ((first, opened), (second, _)) = await consumer.poll_batches()
        assert isinstance(first, Entry)
        assert isinstance(second, Entry)
        assert (first.offset, first.skip, opened.count) == (0, 2, 5)
        assert (second.offset, second.skip) == (5, 0)
        assert consumer.position("orders", 0) == 2
        assert await consumer.poll(0) is None
        assert consumer.position("orders", 0) == 10

    async def table(consumer: Consumer) -> None:
        await consumer.poll_many(2)
        found = await consumer.poll_table()
        assert found is not None
        assert found.column("value").to_pylist() == [b"2", b"3", b"4", *(e.value for e in EVENTS)]

    for story in (batches, table):
        read(story, [entry(0, EVENTS), entry(5, EVENTS)], monkeypatch=monkeypatch)


@pytest.mark.parametrize("read_first", [0, 2, 5, 7])
def test_a_change_of_the_mode_reads_on_with_the_event_after_the_last_that_was_handed_out(
    read_first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(consumer: Consumer) -> None:
        await consumer.poll_many(read_first) if read_first else None
        consumer._destination.read("votes", 0, 0)
        await consumer.update_topology([])

        reading = consumer._destination.reading("votes", 0)
        assert reading is not None
        assert reading.validation is None
        assert reading.position == read_first
        assert not consumer._queue
        assert not consumer._records
        # What it had not been given comes again, now without validation.
        skip = read_first % 5
        consumer._on_outcomes([entry(read_first - skip, EVENTS, skip, topic="votes")])
        record = await consumer.poll()
        assert record is not None
        assert (record.offset, record.validated) == (read_first, False)

    async def known(*_: object) -> None:
        pass

    monkeypatch.setattr(Consumer, "_know", known)
    begun = Begun(Partition(topic_id("votes"), 0), 0)
    arrivals: list[Outcome] = [begun, *(entry(offset, EVENTS, topic="votes") for offset in (0, 5))]
    read(story, arrivals, monkeypatch=monkeypatch, topic="votes")


def test_a_record_says_how_it_was_read_while_a_group_is_asked_for_another_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        await consumer.poll()
        consumer._modes = Modes(frozenset())
        found = await consumer.poll_many(9)
        assert all(record.validated for record in found)

    arrivals = [entry(offset, EVENTS, topic="votes") for offset in (0, 5)]
    read(story, arrivals, monkeypatch=monkeypatch, topic="votes")
