"""Values with numbers: what a consumer of a trial accepts, and what it notices."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.bench.processes import BenchError
from quorate.bench.values import (
    VALUE_BYTES_MIN,
    Numbered,
    Order,
    first_number,
    pack_number,
    topic_of,
)
from quorate.bench.workload import Consumed, EventTally, Task, Window

SIZE = 16


def value(number: int, size: int = SIZE, run: str = "run") -> bytes:
    return pack_number(number) + Numbered(size, run).body


@given(st.integers(VALUE_BYTES_MIN, 300), st.lists(st.integers(0, 2**63), min_size=1))
def test_values_give_back_their_numbers(size: int, numbers: list[int]) -> None:
    values = [value(number, size) for number in numbers]

    assert {len(each) for each in values} == {size}
    assert tuple(Numbered(size, "run").numbers_of(values) or ()) == tuple(numbers)


@given(st.sampled_from([VALUE_BYTES_MIN, 16, 1024, 1025]), st.data())
def test_runs_of_values_give_back_their_numbers_one_after_the_other(
    size: int, data: st.DataObject
) -> None:
    numbered = Numbered(size, "run")
    for _ in range(3):
        first, count = data.draw(st.integers(0, 2**64 - 21)), data.draw(st.integers(1, 20))
        values = [value(number, size) for number in range(first, first + count)]

        assert tuple(numbered.numbers_of(values) or ()) == tuple(range(first, first + count))


def test_numbers_that_do_not_follow_each_other_are_given_back_as_they_are() -> None:
    numbered, last = Numbered(SIZE, "run"), 2**64 - 1

    assert tuple(numbered.numbers_of([value(1), value(1), value(3)]) or ()) == (1, 1, 3)
    assert tuple(numbered.numbers_of([value(last), value(0)]) or ()) == (last, 0)


@given(st.integers(VALUE_BYTES_MIN, 99), st.integers(1, 255))
def test_a_changed_byte_of_a_body_is_noticed(at: int, change: int) -> None:
    made = bytearray(value(7, 100))
    made[at] ^= change

    numbered = Numbered(100, "run")
    # Also by one that has put together as many genuine values before.
    assert numbered.numbers_of([value(6, 100), value(7, 100)]) is not None
    assert numbered.numbers_of([value(6, 100), bytes(made)]) is None


def test_a_value_of_another_run_or_size_is_noticed() -> None:
    assert Numbered(SIZE, "run").numbers_of([value(1, run="other")]) is None
    assert Numbered(SIZE, "run").numbers_of([value(1) + b"?", value(2)]) is None
    # Two wrong lengths that make up for each other.
    assert Numbered(SIZE, "run").numbers_of([value(1) + b"?", value(2)[:-1]]) is None


def test_values_too_short_for_their_number_are_refused() -> None:
    with pytest.raises(BenchError, match=f"at least {VALUE_BYTES_MIN} are needed"):
        Numbered(VALUE_BYTES_MIN - 1, "run")


@given(st.integers(0, 2), st.integers(0, 255), st.integers(0, 10**9))
def test_a_number_tells_its_topic(producer: int, topic: int, counter: int) -> None:
    assert topic_of(first_number(producer, topic) + counter) == topic


def test_lines_that_take_turns_are_in_order() -> None:
    order, one, other = Order(), first_number(0, 1), first_number(2, 1)

    order.take([one, one + 1])
    order.take([other])
    order.take([one + 2, other + 1, one + 3])

    assert (order.taken, order.doubled, order.gaps) == (6, 0, 0)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([0, 1, 1, 2], (3, 1, 0)),
        ([0, 1, 0, 1, 2], (3, 2, 0)),
        ([0, 2], (2, 0, 1)),
        ([1, 0], (1, 1, 1)),
        ([5, 6], (2, 0, 1)),
    ],
    ids=["doubled", "a run doubled", "missing", "swapped", "beginning missing"],
)
def test_what_is_doubled_missing_or_misplaced_shows(
    numbers: list[int], found: tuple[int, int, int]
) -> None:
    order = Order()

    order.take(numbers)

    assert (order.taken, order.doubled, order.gaps) == found


def test_a_run_that_overlaps_counts_its_new_part() -> None:
    order = Order()
    order.take([0, 1, 2])

    order.take([1, 2, 3, 4])

    assert (order.taken, order.doubled, order.gaps) == (5, 2, 0)


def tallied(*arrivals: tuple[int, str, list[bytes]]) -> Consumed:
    task = Task(cluster="", run="run", topics=["v", "b"], validated=["v"], event_bytes=SIZE)

    async def tally() -> Consumed:
        counted = EventTally(task)
        for now_ns, topic, values in arrivals:
            counted.add(now_ns, topic, values, 1_000_000)
        return counted.found(Window(1_000, 2_000))

    return asyncio.run(tally())


def test_what_comes_before_the_window_counts_only_for_loss() -> None:
    first, second = first_number(0, 0), first_number(0, 1)

    found = tallied(
        (999, "v", [value(first)]),
        (1_000, "v", [value(first + 1), value(first + 2)]),
        (1_999, "b", [value(second)]),
        (2_000, "b", [value(second + 1)]),
    )

    assert (found.validated, found.basic) == (2, 2)
    assert found.seconds == pytest.approx(1_001 / 1e9)
    assert (found.taken, found.doubled, found.gaps, found.wrong) == (5, 0, 0, 0)
    assert found.latencies.p50_ms == 1.0


def test_a_consumer_that_has_everything_early_is_measured_until_the_window_ends() -> None:
    found = tallied((1_500, "v", [value(first_number(0, 0))]))

    assert (found.validated, found.basic) == (1, 0)
    assert found.seconds == pytest.approx(1_000 / 1e9)


def test_a_genuine_value_on_another_topic_is_wrong() -> None:
    found = tallied((1_500, "b", [value(first_number(0, 0))]))

    assert (found.wrong, found.taken) == (1, 0)
