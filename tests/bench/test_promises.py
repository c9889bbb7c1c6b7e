"""Receipts and readings are held against each other."""

from pathlib import Path

import pytest

from quorate.bench.promises import Broken, Notes, Place, broken

ALICE, BOB = 1000, 1001


def notes(*batches: tuple[int, int, int]) -> Notes:
    """Offset, publisher and counter of each."""
    found = Notes()
    for number, batch in enumerate(batches):
        found.add(Place(*batch, number))
    return found


WHOLE = ((0, ALICE, 0), (1, BOB, 0), (2, ALICE, 1), (3, ALICE, 2))


def test_what_was_written_down_can_be_read_again(tmp_path: Path) -> None:
    notes(*WHOLE).write(tmp_path / "notes")

    found = Notes.read(tmp_path / "notes")

    assert len(found) == 4
    assert list(found)[2] == Place(offset=2, publisher=ALICE, counter=1, at_ns=2)


def test_nothing_is_broken_if_every_reader_found_everything_in_its_place() -> None:
    assert broken(notes(*WHOLE), [notes(*WHOLE), notes(*WHOLE)]) == Broken()


def test_a_batch_without_a_receipt_may_stand_anywhere() -> None:
    receipts = notes(*WHOLE[:3])

    assert broken(receipts, [notes(*WHOLE)]) == Broken()
    assert broken(receipts, [notes(*WHOLE[:3])]) == Broken()


@pytest.mark.parametrize(
    ("reading", "found"),
    [
        (WHOLE[:3], Broken(lost=1)),
        ((*WHOLE, (4, ALICE, 2)), Broken(doubled=1, misplaced=1, disordered=1)),
        ((*WHOLE[:2], (2, BOB, 1), (3, ALICE, 1), (4, ALICE, 2)), Broken(misplaced=2)),
        ((*WHOLE[:2], (3, ALICE, 2)), Broken(lost=1, disordered=1)),
        (((0, ALICE, 1), (1, BOB, 0), (2, ALICE, 0), (3, ALICE, 2)),
         Broken(misplaced=2, disordered=1)),
    ],
    ids=["lost", "doubled", "misplaced", "left out", "out of order"],
)  # fmt: skip
def test_each_broken_promise_counts(
    reading: tuple[tuple[int, int, int], ...], found: Broken
) -> None:
    assert broken(notes(*WHOLE), [notes(*reading)]) == found


def test_two_readers_may_not_find_different_batches_at_one_offset() -> None:
    other = ((0, BOB, 0), (1, ALICE, 0))

    assert broken(notes(), [notes(*WHOLE[:2]), notes(*other)]) == Broken(disputed=2)
