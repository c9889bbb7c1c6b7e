"""An intake accepts each number once, in constant space."""

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from quorate.core.limits import WINDOW_BATCHES
from quorate.protocol.intake import Intake

Step: TypeAlias = tuple[str, int, int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["accept", "accept", "accept", "settle"]),
        st.integers(1, 60),
        st.integers(0, 8),
    ),
    max_size=40,
)


class NaiveIntake:
    """The same with a set that only ever grows."""

    def __init__(self, floor: int) -> None:
        self.settled = max(floor, 1)
        self.accepted: set[int] = set()

    @property
    def floor(self) -> int:
        floor = self.settled
        while floor in self.accepted:
            floor += 1
        return floor

    def accept(self, first: int, count: int) -> list[int]:
        end = self.floor + WINDOW_BATCHES
        fresh = [
            number
            for number in range(first, first + count)
            if self.settled <= number < end and number not in self.accepted
        ]
        self.accepted.update(fresh)
        return fresh

    def settle(self, settled: int) -> None:
        self.settled = max(self.settled, settled)


@given(st.integers(0, 20), STEPS)
def test_an_intake_agrees_with_a_set_of_everything_accepted(floor: int, steps: list[Step]) -> None:
    intake, naive = Intake(floor), NaiveIntake(floor)
    for what, first, count in steps:
        if what == "accept":
            assert list(intake.accept(first, count)) == naive.accept(first, count)
        else:
            intake.settle(first)
            naive.settle(first)
        assert intake.floor == naive.floor
        assert intake.through == naive.floor - 1


def test_numbers_start_at_one() -> None:
    intake = Intake(0)

    assert (intake.floor, intake.through) == (1, 0)
    assert not intake.is_new(0)
    assert intake.is_new(1)


def test_a_number_beyond_the_window_is_not_accepted_until_the_floor_moves() -> None:
    intake = Intake(1)
    edge = 1 + WINDOW_BATCHES

    assert list(intake.accept(edge, 1)) == []
    assert list(intake.accept(edge - 1, 1)) == [edge - 1]
    assert list(intake.accept(1, 1)) == [1]
    assert list(intake.accept(edge, 1)) == [edge]


def test_what_is_accepted_late_is_not_new_wherever_it_lies() -> None:
    for late in (1, 5, WINDOW_BATCHES, 3 * WINDOW_BATCHES):
        intake = Intake(3)
        intake.accept_late(late)
        assert not intake.is_new(late)

        intake.settle(late)
        assert not intake.is_new(late)


def test_a_source_that_leaves_the_first_out_cannot_fill_it_beyond_the_window() -> None:
    intake = Intake(1)

    accepted = sum(len(intake.accept(first, 64)) for first in range(2, 10 * WINDOW_BATCHES, 64))

    assert accepted == WINDOW_BATCHES - 1
    assert intake.through == 0


def test_settling_gives_up_what_is_below_and_keeps_what_is_above() -> None:
    intake = Intake(1)
    intake.accept(3, 1)
    intake.accept(6, 2)

    intake.settle(5)
    assert intake.floor == 5
    assert list(intake.accept(3, 1)) == []

    intake.accept(5, 1)
    assert intake.floor == 8


def test_settling_backwards_does_nothing() -> None:
    intake = Intake(1)
    intake.accept(1, 5)

    intake.settle(2)

    assert intake.floor == 6
