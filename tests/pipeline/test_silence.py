"""When a host counts as silent, whatever the order in which its times are heard."""

from hypothesis import given
from hypothesis import strategies as st

from quorate.pipeline.silence import Change, Limits, Watch

LIMITS = Limits(silent_ms=100, forget_ms=1000)
# By how much times may overtake each other.
DELAY_MS = 40


def watched(batches: list[list[int]], end_ms: int) -> list[Change]:
    """What a watch says that is told of these times in these batches."""
    watch, changes, watermark_ms = Watch(), list[Change](), 0
    for batch in batches:
        watch.hear(batch)
        changes += watch.advance(watermark_ms, LIMITS)
        watermark_ms = max([watermark_ms, *(time_ms - DELAY_MS for time_ms in batch)])
    return changes + watch.advance(end_ms, LIMITS)


def oracle(times_ms: list[int], end_ms: int) -> list[Change]:
    changes = []
    times_ms = sorted(times_ms)
    for last, following in zip(times_ms, [*times_ms[1:], None], strict=True):
        until = end_ms if following is None else following
        if until - last > 100:
            changes.append(Change("silent", last, last + 100))
            if until - last > 1000:
                changes.append(Change("forgotten", last, last + 1000))
            elif following is not None:
                changes.append(Change("back", last, following))
    return changes


def test_a_silence_at_the_limit_is_none_and_beyond_it_is_one_alert_and_one_all_clear() -> None:
    assert watched([[1000], [1100]], end_ms=1150) == []
    assert watched([[1000], [1101]], end_ms=1150) == [
        Change("silent", 1000, 1100),
        Change("back", 1000, 1101),
    ]


def test_a_time_that_was_overtaken_still_counts() -> None:
    assert watched([[1000, 1120], [1090]], end_ms=1150) == []


def test_who_stays_away_is_forgotten_and_new_when_it_comes_back() -> None:
    assert watched([[1000], [3000]], end_ms=3050) == [
        Change("silent", 1000, 1100),
        Change("forgotten", 1000, 2000),
    ]


@given(
    st.lists(
        st.tuples(st.integers(1, 1500), st.integers(0, DELAY_MS - 1)), min_size=1, max_size=12
    ),
    st.lists(st.integers(1, 4), min_size=12, max_size=12),
    st.integers(0, 1500),
)
def test_batches_make_no_difference(
    steps: list[tuple[int, int]], sizes: list[int], after_ms: int
) -> None:
    """Times that arrive in any order that the delay allows, in batches of any size."""
    heard, arriving = 1000, []
    for step_ms, late_ms in steps:
        heard += step_ms
        arriving.append((heard + late_ms, heard))
    times_ms = [time_ms for _, time_ms in sorted(arriving)]
    batches, left = [], list(times_ms)
    for size in sizes:
        batches.append(left[:size])
        left = left[size:]
    end_ms = max(times_ms) + after_ms

    assert watched(batches, end_ms) == oracle(times_ms, end_ms)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12))
def test_a_watch_that_wakes_only_when_it_wants_to_says_the_same(times_ms: list[int]) -> None:
    """Timers are enough: what they say between times is all there is to say."""
    watch, changes = Watch(), list[Change]()
    watch.hear(times_ms)
    while watch.ahead_ms or watch.last_ms is not None:
        changes += watch.advance(watch.wakes_ms(LIMITS), LIMITS)

    assert changes == oracle(list(set(times_ms)), end_ms=10_000)
