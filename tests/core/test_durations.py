"""Durations: as people write them, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core import durations
from quorate.core.errors import ContractError


@pytest.mark.parametrize(
    ("text", "duration_us"),
    [
        ("7us", 7),
        ("500ms", 500_000),
        ("30s", 30_000_000),
        ("5m", 300_000_000),
        ("2h", 7_200_000_000),
        ("7d", 604_800_000_000),
        ("0s", 0),
        ("36525d", durations.DURATION_US_MAX),
    ],
)
def test_a_number_and_a_unit_make_a_duration(text: str, duration_us: int) -> None:
    assert durations.parse(text) == duration_us
    assert durations.render(duration_us) == text


@given(st.integers(0, durations.DURATION_US_MAX))
def test_every_duration_is_read_back_as_it_was_written(duration_us: int) -> None:
    assert durations.parse(durations.render(duration_us)) == duration_us


def test_a_duration_is_written_in_the_largest_unit_that_loses_nothing() -> None:
    assert durations.render(durations.parse("1000ms")) == "1s"
    assert durations.render(durations.parse("90m")) == "90m"
    assert durations.render(durations.parse("48h")) == "2d"


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "5 s", "-5s", "+5s", "1.5s", "5S", "5w", "5s ", "5s\n", "٥s", "1h30m", "9" * 99],
)
def test_anything_else_is_refused_with_the_units_that_are_allowed(text: str) -> None:
    with pytest.raises(ContractError, match="is not a duration; allowed are .*us, ms, s, m, h, d"):
        durations.parse(text)


def test_a_duration_beyond_a_century_is_refused() -> None:
    with pytest.raises(ContractError, match="'36526d' is too long; allowed is up to 36525d"):
        durations.parse("36526d")
    for duration_us in (-1, durations.DURATION_US_MAX + 1):
        with pytest.raises(ContractError, match="is not a duration"):
            durations.render(duration_us)


@given(st.text(max_size=8) | st.from_regex(r"[0-9]{1,20}(us|ms|s|m|h|d)"))
def test_any_text_is_a_duration_in_bounds_or_is_refused(text: str) -> None:
    try:
        duration_us = durations.parse(text)
    except ContractError as error:
        assert "allowed" in str(error)
    else:
        assert 0 <= duration_us <= durations.DURATION_US_MAX
