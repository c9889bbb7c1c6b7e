"""What waits in a consumer is bounded in events and in bytes, and may be dropped."""

import asyncio

import pytest

from quorate.client import Consumer
from quorate.client import queue as module
from quorate.client.queue import Queue
from quorate.core.batch import encode_values
from quorate.core.ids import Stream, topic_id
from quorate.core.ordering import Partition
from quorate.protocol.machine import Delivery, Entry, Passed
from quorate.runtime.local import make_local_cluster

HERE, THERE = (Partition(topic_id("t"), number) for number in range(2))


def entry(partition: Partition, events: int, offset: int = 0) -> Entry:
    payload = encode_values([b"x"] * events, timestamp_us=1)
    return Entry(partition, offset, offset + events, 1000, 1, 5, payload, ())


def test_a_queue_is_full_in_events_until_half_of_them_are_read() -> None:
    queue = Queue(events_max=10)
    states = []
    for _ in range(4):
        queue.put(entry(HERE, 3))
        states.append(queue.is_full)
    for _ in range(4):
        queue.take()
        states.append(queue.is_full)
    assert states == [False, False, False, True, True, True, False, False]


def test_a_queue_is_full_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", len(entry(HERE, 1).payload))
    queue = Queue(events_max=10)
    queue.put(entry(HERE, 1))
    assert not queue.is_full
    queue.put(entry(HERE, 1))
    assert queue.is_full


def test_what_is_not_a_batch_counts_as_one_event() -> None:
    queue = Queue(events_max=1)
    for _ in range(2):
        queue.put(Delivery(Stream(1000, 1), 1, bytes(32), b"?", ()))
    assert queue.is_full


def test_what_is_dropped_makes_room_and_the_rest_keeps_its_order() -> None:
    queue = Queue(events_max=10)
    for offset in range(4):
        queue.put(entry(HERE, 2, offset))
        queue.put(entry(THERE, 1, offset))
    assert queue.is_full

    queue.drop(HERE)

    assert not queue.is_full
    arrivals = [queue.take() for _ in range(len(queue))]
    assert arrivals == [entry(THERE, 1, offset) for offset in range(4)]
    assert queue.bytes == 0


def test_a_consumer_whose_queue_is_full_blames_nobody_for_being_late() -> None:
    async def story() -> list[bool]:
        local = make_local_cluster(base_port=1)
        async with Consumer(local.cluster, local.identities["bob"], queue_events=2) as consumer:
            states = []
            for events in (1, 2):
                consumer._on_outcomes([entry(HERE, events)])
                states.append(consumer._destination.is_held_back)
            consumer._take()
            consumer._take()
            return [*states, consumer._destination.is_held_back]

    assert asyncio.run(story()) == [False, True, False]


def test_what_is_passed_over_has_its_place_between_batches_and_counts_little() -> None:
    queue = Queue(events_max=10)
    queue.put(Passed(HERE, 3))
    queue.put(entry(HERE, 1, 3))
    queue.put(Passed(THERE, 9))
    assert queue.passed() == Passed(HERE, 3)
    assert queue.passed() is None
    assert queue.take() == entry(HERE, 1, 3)
    queue.drop(HERE)
    assert queue.passed() == Passed(THERE, 9)
    assert len(queue) == queue.bytes == 0
    # A log full of what is not for us fills no memory.
    for offset in range(11):
        queue.put(Passed(HERE, offset))
    assert queue.is_full
