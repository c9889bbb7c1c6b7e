"""Which batches of a stream a replica has accepted, in constant space.

A source numbers its batches without gaps and names the first one that it still cares about,
so everything below a floor is known to be done with, and only the few that arrived out of
order are kept one by one.
"""

from quorate.core.ids import Sequence
from quorate.core.limits import WINDOW_BATCHES


class Intake:
    """Accepts each sequence number once, within a window above the floor."""

    __slots__ = ("_early", "_span", "floor")

    def __init__(self, floor: Sequence, span: int = WINDOW_BATCHES) -> None:
        self._span = span
        # Everything below the floor was accepted, or given up by the source.
        self.floor = max(floor, 1)
        self._early: set[Sequence] = set()

    @property
    def through(self) -> Sequence:
        """The last of the unbroken row; numbers start at 1, so 0 says that there is none."""
        return self.floor - 1

    def settle(self, settled: Sequence) -> None:
        """The source will not send anything below `settled` again."""
        if settled > self.floor:
            self.floor = settled
            self._early = {sequence for sequence in self._early if sequence >= settled}
            self._close_up()

    def accept(self, first: Sequence, count: int) -> range | list[Sequence]:
        """Those of this run that are new, all of which count as accepted from now on."""
        if first == self.floor and not self._early:
            self.floor += count
            return range(first, first + count)
        if count == 1 and self.is_new(first):
            self._early.add(first)
            self._close_up()
            return range(first, first + 1)
        fresh = [sequence for sequence in range(first, first + count) if self.is_new(sequence)]
        self._early.update(fresh)
        self._close_up()
        return fresh

    def accept_late(self, sequence: Sequence) -> None:
        """Accept a number wherever it lies: whatever comes under it later is not new.

        What is a window below it, no correct source will send again.
        """
        self.settle(sequence + 1 - self._span)
        self.accept(sequence, 1)

    def is_new(self, sequence: Sequence) -> bool:
        return self.floor <= sequence < self.floor + self._span and sequence not in self._early

    def _close_up(self) -> None:
        while self.floor in self._early:
            self._early.remove(self.floor)
            self.floor += 1
