"""Batches whose payload is not here are remembered, as long as they are not too many."""

from hypothesis import given
from hypothesis import strategies as st

from quorate.storage.absents import Absents
from quorate.storage.pending import Gap

SOURCE, OTHER = (1, 7, 0), (2, 7, 0)


def claimed(absents: Absents, first: int, end: int) -> dict[int, int]:
    """Numbers in the partition by sequence number."""
    return {
        sequence: gap.number + sequence - gap.first
        for gap in absents.claim(SOURCE, first, end)
        for sequence in range(gap.first, gap.end)
    }


gaps = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2)), max_size=8)
claims = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 8)), max_size=8)


@given(gaps, claims)
def test_each_absent_batch_is_claimed_once_and_with_its_number(
    gaps: list[tuple[int, int, int]], claims: list[tuple[int, int]]
) -> None:
    absents, model = Absents(), dict[int, int]()
    sequence = place = 0
    for skipped, count, elsewhere in gaps:
        sequence, place = sequence + skipped, place + skipped + elsewhere
        absents.add(SOURCE, Gap(sequence, sequence + count, place))
        model |= {sequence + number: place + number for number in range(count)}
        sequence, place = sequence + count, place + count
    for first, count in claims:
        expected = {
            number: model.pop(number) for number in range(first, first + count) if number in model
        }
        assert claimed(absents, first, first + count) == expected
    assert claimed(absents, 0, 10**6) == model
    assert list(absents) == []


def test_the_oldest_are_forgotten_when_there_are_too_many() -> None:
    absents = Absents(runs_max=3)
    absents.add(OTHER, Gap(1, 2, 1))
    for sequence in (10, 20, 30):
        absents.add(SOURCE, Gap(sequence, sequence + 1, sequence))
    assert len(list(absents)) == 3
    assert absents.claim(OTHER, 0, 100) == []
    absents.add(SOURCE, Gap(40, 41, 40))
    assert [gap.first for _, gap in absents] == [20, 30, 40]


def test_batches_that_follow_each_other_in_both_numbers_are_one_gap() -> None:
    absents = Absents()
    absents.add(SOURCE, Gap(1, 5, 11))
    absents.add(SOURCE, Gap(5, 7, 15))
    absents.add(SOURCE, Gap(7, 8, 18))
    assert list(absents) == [(SOURCE, Gap(1, 7, 11)), (SOURCE, Gap(7, 8, 18))]
