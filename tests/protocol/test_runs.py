"""Runs: consecutive numbers in one message, and no message larger than a frame takes."""

from itertools import pairwise
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from quorate.core.limits import RUN_BATCHES_MAX
from quorate.protocol import runs
from quorate.protocol.runs import by_size, consecutive

FEW = 4


@given(st.lists(st.integers(0, 30)))
def test_runs_say_what_was_given_in_its_order(numbers: list[int]) -> None:
    items = [(number, f"value {position}") for position, number in enumerate(numbers)]

    said = [
        (first + offset, value)
        for first, values in consecutive(items)
        for offset, value in enumerate(values)
    ]

    assert said == items


@given(st.lists(st.integers(0, 30)))
def test_a_run_ends_only_where_the_numbers_do_or_where_it_is_full(numbers: list[int]) -> None:
    with patch.object(runs, "RUN_BATCHES_MAX", FEW):
        parts = [(first, len(v)) for first, v in consecutive((n, None) for n in numbers)]

    assert all(1 <= length <= FEW for _, length in parts)
    for (first, length), (next_first, _) in pairwise(parts):
        assert length == FEW or next_first != first + length


def test_nothing_makes_no_run() -> None:
    assert list(consecutive([])) == []


def test_a_run_is_cut_at_the_bound_of_a_message() -> None:
    parts = list(consecutive((number, None) for number in range(RUN_BATCHES_MAX + 1)))

    assert [(first, len(values)) for first, values in parts] == [
        (0, RUN_BATCHES_MAX),
        (RUN_BATCHES_MAX, 1),
    ]


@given(st.integers(0, 100), st.lists(st.binary(max_size=12), min_size=1), st.integers(1, 30))
def test_parts_by_size_are_the_whole_and_none_is_too_large(
    first: int, payloads: list[bytes], bytes_max: int
) -> None:
    with patch.object(runs, "RUN_BATCHES_MAX", FEW):
        parts = list(by_size(first, payloads, bytes_max))

    assert [payload for _, part in parts for payload in part] == payloads
    at = first
    for start, part in parts:
        assert start == at
        assert 1 <= len(part) <= FEW
        # A single payload may be larger: it cannot be cut.
        assert len(part) == 1 or sum(map(len, part)) <= bytes_max
        at += len(part)


@given(st.lists(st.binary(max_size=12), min_size=1), st.integers(1, 30))
def test_a_part_ends_only_where_the_next_payload_has_no_room(
    payloads: list[bytes], bytes_max: int
) -> None:
    parts = [part for _, part in by_size(1, payloads, bytes_max)]

    for part, following in pairwise(parts):
        assert sum(map(len, part)) + len(following[0]) > bytes_max
