"""How events gather into batches: by size, by linger, and while others are under way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clusters import running_cluster
from quorate.client import Consumer, Producer, Receipt
from quorate.client.producer import BATCH_BYTES, OVERDUE_S_MAX, UNDER_WAY_BATCHES
from quorate.core.batch import Batch
from quorate.core.contract import Contract
from quorate.core.errors import LocalProtocolError, QuorumError
from quorate.core.event import Event
from quorate.runtime.local import make_local_cluster

LOG = Contract.parse("orders", {"protection": "crash", "order": "total"})
LIVE = Contract.parse("ticks", {"protection": "crash"})
# Nobody listens at the ports of its replicas, so that nothing gets a receipt.
LOCAL = make_local_cluster(base_port=1, topics={"orders": LOG, "ticks": LIVE})
SOON_S = 30.0


def publish(
    monkeypatch: pytest.MonkeyPatch,
    story: Callable[[Producer], Awaitable[None]],
    *,
    timeout_s: float = 30.0,
    batch_events: int = 1000,
) -> None:
    """What a producer does that may publish, and hears nothing more."""

    async def granted(*_: object, **__: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Producer, "command", granted)
    monkeypatch.setattr(Producer, "_answer", granted)

    async def whole() -> None:
        producer = Producer(
            LOCAL.cluster, LOCAL.identities["alice"], timeout_s=timeout_s, batch_events=batch_events
        )
        await producer.start()
        producer._is_current = True
        try:
            await story(producer)
        finally:
            await producer.close(flush=False)

    asyncio.run(whole())


async def submitted(producer: Producer, topic: str, events: int) -> "list[asyncio.Future[Receipt]]":
    """The batches of so many events, between which the program does something else."""
    batches: dict[asyncio.Future[Receipt], None] = {}
    for number in range(events):
        batches[await producer.submit(topic, b"%d" % number)] = None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return list(batches)


def test_while_batches_of_a_log_are_under_way_the_next_one_gathers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(producer: Producer) -> None:
        batches = await submitted(producer, "orders", UNDER_WAY_BATCHES + 100)
        # One goes after every second, and a slow machine may have a few of those.
        assert UNDER_WAY_BATCHES < len(batches) < UNDER_WAY_BATCHES + 20

    publish(monkeypatch, story)


def test_a_batch_that_waits_for_others_gathers_for_a_while_and_not_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(producer: Producer) -> None:
        gathering = (await submitted(producer, "orders", UNDER_WAY_BATCHES + 1))[-1]
        (outlet,) = producer._outlets["orders"]
        assert outlet.is_overdue

        producer._expire_late(outlet.overdue_since + OVERDUE_S_MAX - 0.001)
        assert await producer.submit("orders", b"in time") is gathering
        producer._expire_late(outlet.overdue_since + OVERDUE_S_MAX + 0.001)
        assert await producer.submit("orders", b"too late") is not gathering

    publish(monkeypatch, story)


def test_a_full_batch_goes_though_others_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(producer: Producer) -> None:
        batches = await submitted(producer, "orders", UNDER_WAY_BATCHES + 100)
        assert len(batches) >= UNDER_WAY_BATCHES + 10

    publish(monkeypatch, story, batch_events=10)


def test_batches_of_a_live_topic_wait_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(producer: Producer) -> None:
        batches = await submitted(producer, "ticks", 50)
        assert len(batches) == 50

    publish(monkeypatch, story)


def test_a_batch_that_never_has_its_turn_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(producer: Producer) -> None:
        batches = await submitted(producer, "orders", UNDER_WAY_BATCHES + 5)
        with pytest.raises(QuorumError, match="has no receipt after 0.5 s"):
            await asyncio.wait_for(batches[-1], SOON_S)

    publish(monkeypatch, story, timeout_s=0.5)


def gathered(producer: Producer, topic: str) -> list[Event]:
    """What was submitted on a topic and gathers there, as it would travel."""
    (outlet,) = producer._outlets[topic]
    return Batch(outlet.open.encode("none")).events()


def test_events_gather_with_all_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(producer: Producer) -> None:
        headers = [("kind", b"x")]
        await producer.submit("orders", b"1", timestamp_us=1)
        await producer.submit("orders", b"2", key=b"key", timestamp_us=2)
        await producer.submit("orders", b"3", headers=headers, timestamp_us=3)
        # What the program does with its list later is nothing to the event.
        headers.clear()
        await producer.submit("orders", b"4", headers=[], timestamp_us=4)
        await producer.submit("orders", b"5", key=b"", timestamp_us=5)

        assert gathered(producer, "orders") == [
            Event(None, b"1", (), 1),
            Event(b"key", b"2", (), 2),
            Event(None, b"3", (("kind", b"x"),), 3),
            Event(None, b"4", (), 4),
            Event(b"", b"5", (), 5),
        ]

    publish(monkeypatch, story)


def test_keys_count_for_the_size_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(producer: Producer) -> None:
        half = bytes(BATCH_BYTES // 2)
        first = await producer.submit("orders", b"", key=half)
        second = await producer.submit("orders", half)
        third = await producer.submit("orders", b"")

        assert first is second
        assert second is not third

    publish(monkeypatch, story)


@pytest.mark.parametrize(
    "refused", [{"value": None}, {"value": b"", "key": 7}, {"value": b"", "headers": None}], ids=str
)
def test_an_event_that_is_refused_leaves_those_that_gather_alone(
    refused: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(producer: Producer) -> None:
        await producer.submit("orders", b"before", timestamp_us=1)
        with pytest.raises(TypeError):
            await producer.submit("orders", **refused)
        await producer.submit("orders", b"after", timestamp_us=2)

        assert [event.value for event in gathered(producer, "orders")] == [b"before", b"after"]

    publish(monkeypatch, story)


def test_the_receipt_of_a_batch_that_cannot_be_made_says_which_event_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(producer: Producer) -> None:
        await producer.submit("orders", b"fine")
        receipt = await producer.submit("orders", "text")  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError, match="event 1: the value is str; allowed is bytes"):
            await asyncio.wait_for(receipt, SOON_S)

    publish(monkeypatch, story)


@pytest.mark.xdist_group("processes")
def test_events_that_gathered_keep_their_order_and_get_their_receipts() -> None:
    events = 3000

    async def story(directory: str) -> list[int]:
        async with Producer(directory, "alice") as producer, Consumer(directory, "bob") as consumer:
            consumer.subscribe(["orders"])
            await consumer.subscribed()
            waiting = []
            for number in range(events):
                future = await producer.submit("orders", b"%d" % number)
                waiting.append((future, producer.place))
            async with asyncio.timeout(SOON_S):
                receipts = [(await future).of_event(place) for future, place in waiting]
            # Each says where its event stands, and together they are in few batches.
            assert [(receipt.offset, receipt.events) for receipt in receipts] == [
                (offset, 1) for offset in range(events)
            ]
            assert len({receipt.sequence for receipt in receipts}) < events // 10
            three = await asyncio.gather(
                *(producer.send("orders", b"%d" % number) for number in range(events, events + 3))
            )
            assert [(receipt.offset, receipt.events) for receipt in three] == [
                (events, 1), (events + 1, 1), (events + 2, 1),
            ]  # fmt: skip
            assert len({receipt.sequence for receipt in three}) == 1
            whole = await producer.send_values("orders", [b"%d" % (events + 3)] * 2)
            assert (whole.offset, whole.events) == (events + 3, 2)
            return [int((await anext(consumer)).value) for _ in range(events)]

    with running_cluster(
        topics={"orders": {"protection": "crash", "order": "total"}}, replicas=3
    ) as cluster:
        assert asyncio.run(story(str(cluster.directory))) == list(range(events))
