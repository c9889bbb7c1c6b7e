"""What publishers were promised, held against what readers found.

A publisher writes down each receipt, a reader each batch, both as a `Place`: which batch of whom
stands at which offset, and when they learned of it. They write to files, since a run of a minute
has a million of them; afterwards `broken` looks for a promise that was not kept.
"""

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from quorate.core.ids import NodeId

# Unsigned, of eight bytes.
_NUMBERS = "Q"
# Files: what publishers noted, a reader who followed them, and one who came afterwards.
RECEIPTS, FOLLOWED, REREAD = "receipts", "followed", "reread"


class Place(NamedTuple):
    """Batch `counter` of a publisher begins at this offset; learned at this time."""

    offset: int
    publisher: NodeId
    counter: int
    at_ns: int


class Notes:
    """Places in the order in which somebody learned of them."""

    def __init__(self) -> None:
        self._numbers = array(_NUMBERS)

    def __len__(self) -> int:
        return len(self._numbers) // len(Place._fields)

    def __iter__(self) -> Iterator[Place]:
        numbers = iter(self._numbers)
        return map(Place._make, zip(*[numbers] * len(Place._fields), strict=True))

    def add(self, place: Place) -> None:
        self._numbers.extend(place)

    def write(self, path: Path) -> None:
        path.write_bytes(self._numbers.tobytes())

    @staticmethod
    def read(path: Path) -> "Notes":
        notes = Notes()
        notes._numbers.frombytes(path.read_bytes())
        return notes


class Broken(NamedTuple):
    """How many batches each promise was broken for; all zero if none was."""

    # A batch has a receipt, and a reader did not find it.
    lost: int = 0
    # A reader found a batch a second time.
    doubled: int = 0
    # A batch does not stand where its receipt says.
    misplaced: int = 0
    # Batches whose offsets do not follow on each other, or that are not in their publisher's order.
    disordered: int = 0
    # Two readers found different batches at one offset.
    disputed: int = 0


def broken(receipts: Notes, readings: Sequence[Notes], events: int = 1) -> Broken:
    """What a run broke, added up over its readers; each batch has so many events."""
    promised = {(place.publisher, place.counter): place.offset for place in receipts}
    lost = doubled = misplaced = disordered = disputed = 0
    agreed: dict[int, tuple[NodeId, int]] = {}
    for reading in readings:
        found: set[tuple[NodeId, int]] = set()
        last_of: dict[NodeId, int] = {}
        expected: int | None = None
        for place in reading:
            batch = place.publisher, place.counter
            doubled += batch in found
            misplaced += promised.get(batch, place.offset) != place.offset
            is_next = expected is None or place.offset == expected
            disordered += not is_next or last_of.get(place.publisher, -1) >= place.counter
            disputed += agreed.setdefault(place.offset, batch) != batch
            found.add(batch)
            last_of[place.publisher], expected = place.counter, place.offset + events
        lost += len(promised.keys() - found)
    return Broken(lost, doubled, misplaced, disordered, disputed)
