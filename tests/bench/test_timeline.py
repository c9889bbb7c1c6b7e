"""Progress over time, in bins and gaps."""

import pytest

from quorate.bench.timeline import Gap, binned, longest_gap


def test_the_longest_gap_is_between_two_neighbours() -> None:
    assert longest_gap([5, 12, 14, 30, 33], 10, 40) == Gap(14, 30)


def test_a_gap_begins_with_the_time_that_was_asked_for() -> None:
    assert longest_gap([5, 25, 30], 10, 40) == Gap(10, 25)


def test_a_gap_ends_when_something_happens_even_if_that_is_later() -> None:
    assert longest_gap([12, 60], 10, 40) == Gap(12, 60)


def test_a_gap_to_which_there_is_no_end_ends_with_the_time() -> None:
    assert longest_gap([12, 13], 10, 40) == Gap(13, 40)
    assert longest_gap([], 10, 40) == Gap(10, 40)


def test_a_gap_is_told_in_seconds() -> None:
    assert Gap(500_000_000, 2_000_000_000).seconds == pytest.approx(1.5)


def test_each_time_counts_in_its_bin() -> None:
    assert binned([9, 10, 11, 19, 20, 34, 35], 10, 35, 10) == [3, 1, 1]


def test_there_is_one_bin_at_least() -> None:
    assert binned([], 10, 10, 10) == [0]
