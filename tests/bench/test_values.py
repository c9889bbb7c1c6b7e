"""What a subscriber of a benchmark accepts, and what it notices."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.bench.processes import BenchError
from quorate.bench.values import EVENT_BYTES_MIN, Values
from quorate.bench.workload import Progress, Received, Tally, Task, Window
from quorate.core import batch
from quorate.core.batch import Batch
from quorate.core.ids import Lane, Stream, topic_id
from quorate.protocol.machine import Delivery

WINDOW = Window(1_000, 2_000)
u64 = st.integers(0, 2**63 - 1)


@given(st.integers(EVENT_BYTES_MIN, 400), u64, u64)
def test_a_value_gives_back_its_counter_and_its_stamp(size: int, counter: int, stamp: int) -> None:
    values = Values(size, "run")

    made = values.make(counter, stamp)

    assert len(made) == size
    assert values.read(made, 1) == (counter, stamp)


@given(st.integers(0, 252), st.integers(1, 255))
def test_a_changed_byte_anywhere_but_in_the_counter_is_noticed(at: int, change: int) -> None:
    values = Values(253, "run")
    made = bytearray(values.make(7, 99))
    made[at] ^= change

    found = values.read(bytes(made), 1)

    # The counter is checked against the sequence number of its batch, further down.
    assert found is None or found[0] != 7


def test_a_value_of_another_run_is_noticed() -> None:
    assert Values(253, "this").read(Values(253, "that").make(1, 2), 1) is None


def test_values_too_short_for_their_marks_are_refused() -> None:
    with pytest.raises(BenchError, match=f"at least {EVENT_BYTES_MIN} are needed"):
        Values(EVENT_BYTES_MIN - 1, "run")


@given(st.lists(st.integers(0, 50)))
def test_a_counter_is_new_exactly_once(counters: list[int]) -> None:
    seen, known = Progress(), set[int]()

    for counter in counters:
        assert seen.is_new(counter) == (counter not in known)
        known.add(counter)


def task(events_per_batch: int = 1) -> Task:
    return Task(
        cluster="", run="run", topics=["t"], events_per_batch=events_per_batch,
        event_bytes=64, in_flight=1,
    )  # fmt: skip


def delivery(sequence: int, values: Iterable[bytes], topic: str = "t") -> Delivery:
    payload = batch.encode_values(list(values), 0)
    stream = Stream(1000, topic_id(topic), Lane.EVENTS)
    return Delivery(stream, sequence, b"", payload, ())


def tallied(deliveries: Iterable[tuple[int, Delivery]], events_per_batch: int = 1) -> Received:
    async def tally() -> Received:
        counted = Tally(task(events_per_batch))
        for now_ns, each in deliveries:
            counted.add(now_ns, [(each, Batch(each.payload))])
        return counted.found(WINDOW)

    return asyncio.run(tally())


def value(counter: int, stamp_ns: int = 500) -> bytes:
    return Values(64, "run").make(counter, stamp_ns)


def test_only_what_arrives_in_the_window_counts_for_throughput_and_latency() -> None:
    found = tallied(
        [
            (900, delivery(1, [value(0)])),
            (1_000, delivery(2, [value(1, stamp_ns=400)])),
            (1_999, delivery(3, [value(2, stamp_ns=999)])),
            (2_000, delivery(4, [value(3)])),
        ]
    )

    assert found.batches == 4
    assert found.events_in_window == 2
    assert found.latencies.quantiles_ms[0] == 600 / 1e6
    assert found.latencies.quantiles_ms[100] == 1000 / 1e6


def test_a_batch_counts_all_its_events() -> None:
    found = tallied([(1_500, delivery(1, [value(0)] * 3))], events_per_batch=3)

    assert (found.events_in_window, found.batches, found.forged) == (3, 1, 0)


def test_an_altered_event_in_the_middle_of_a_batch_is_forged() -> None:
    altered = value(0)[:-1] + b"?"

    found = tallied([(1_500, delivery(1, [value(0), altered, value(0)]))], events_per_batch=3)

    assert (found.forged, found.batches) == (1, 0)


def test_a_genuine_value_under_another_sequence_number_is_forged() -> None:
    found = tallied([(1_500, delivery(1, [value(0)])), (1_500, delivery(2, [value(5)]))])

    assert (found.forged, found.batches) == (1, 1)


def test_a_batch_with_too_many_events_is_forged() -> None:
    found = tallied([(1_500, delivery(1, [value(0)] * 2))])

    assert (found.forged, found.batches) == (1, 0)


def test_a_genuine_value_on_a_topic_nobody_published_on_is_forged() -> None:
    found = tallied([(1_500, delivery(1, [value(0)], topic="other"))])

    assert (found.forged, found.batches) == (1, 0)


def test_what_comes_twice_counts_once() -> None:
    twice = delivery(1, [value(0)])

    found = tallied([(1_500, twice), (1_600, twice)])

    assert (found.batches, found.duplicated, found.events_in_window) == (1, 1, 1)
