"""What a subscriber or a replica may still have to fetch, somebody still has."""

import pytest

from quorate.core.limits import WINDOW_BATCHES, WINDOWS, Windows


@pytest.mark.parametrize("span", [32, 64, WINDOW_BATCHES])
def test_windows_fit_into_each_other(span: int) -> None:
    windows = Windows.of(span)
    assert windows.span == span
    # A source that hears nothing any more stops before its subscribers' span ends.
    assert windows.lag + windows.in_flight < windows.span
    assert windows.in_flight < windows.kept
    assert 0 < windows.urgent < windows.credit < windows.lag


def test_the_windows_of_a_cluster_are_as_documented() -> None:
    assert Windows(4096, kept=2048, lag=2048, credit=1024, urgent=256, in_flight=512) == WINDOWS
