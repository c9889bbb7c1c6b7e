"""Mean, deviation and percentiles against their definitions."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.bench.latencies import percentile, summarise

samples = st.lists(st.integers(0, 10**12), min_size=1, max_size=300)


def naive_percentile(values: list[int], percent: int) -> int:
    """The smallest value that enough of all values do not exceed, found by counting."""
    for candidate in sorted(values):
        if 100 * sum(value <= candidate for value in values) >= percent * len(values):
            return candidate
    raise AssertionError("the largest value always qualifies")


@given(samples, st.integers(0, 100))
def test_a_percentile_is_what_counting_finds(values: list[int], percent: int) -> None:
    assert percentile(sorted(values), percent) == naive_percentile(values, percent)


@given(samples)
def test_mean_and_deviation_are_those_of_the_standard_library(values: list[int]) -> None:
    found = summarise(values)

    assert found.mean_ms == pytest.approx(statistics.mean(values) / 1e6)
    assert found.deviation_ms == pytest.approx(statistics.pstdev(values) / 1e6, abs=1e-6)


@given(samples)
def test_quantiles_rise_from_the_fastest_to_the_slowest(values: list[int]) -> None:
    found = summarise(values)

    assert found.quantiles_ms == sorted(found.quantiles_ms)
    assert found.quantiles_ms[0] == min(values) / 1e6
    assert found.quantiles_ms[100] == max(values) / 1e6
    assert (found.p50_ms, found.p99_ms) == (found.quantiles_ms[50], found.quantiles_ms[99])


def test_nothing_measured_is_no_latency_at_all() -> None:
    found = summarise([])

    assert (found.mean_ms, found.deviation_ms, found.p50_ms, found.p99_ms) == (0, 0, 0, 0)
    assert found.quantiles_ms == []
