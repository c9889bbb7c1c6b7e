"""Payloads that are held, but whose batches have no offset yet.

They are kept as runs of consecutive sequence numbers with their places packed, so that deciding a
run moves its places without looking at each.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, TypeVar

from quorate.storage.places import ABSENT, PLACE_BYTES

# A `Line`, or a plain tuple, which is cheaper to make and equal to it.
Source: TypeAlias = tuple[int, int, int]


class Run(NamedTuple):
    first: int
    end: int
    places: bytes

    def part(self, first: int, end: int) -> "Run":
        low, high = first - self.first, end - self.first
        return Run(first, end, self.places[low * PLACE_BYTES : high * PLACE_BYTES])


class Gap(NamedTuple):
    """Sequence numbers `first` to `end` are consecutive batches of a partition from `number` on."""

    first: int
    end: int
    number: int

    def part(self, first: int, end: int) -> "Gap":
        return Gap(first, end, self.number + first - self.first)


_Part = TypeVar("_Part", Run, Gap)


class Pending:
    """Runs by publisher, topic and partition; those of one source are in order and disjoint."""

    def __init__(self) -> None:
        self._runs: dict[Source, list[Run]] = {}

    def __iter__(self) -> Iterator[tuple[Source, Run]]:
        for source, runs in self._runs.items():
            for run in runs:
                yield source, run

    def hold(self, source: Source, first: int, places: bytes) -> bytes:
        """Add payloads; says where those stood that they replace.

        The later one is right: a publisher may have sent something else before.
        """
        run = Run(first, first + len(places) // PLACE_BYTES, places)
        runs = self._runs.get(source)
        if runs is None:
            self._runs[source] = [run]
            return b""
        if runs[-1].end <= first:
            runs.append(run)
            return b""
        replaced = self.take(source, first, run.end - first)
        runs = self._runs.setdefault(source, [])
        runs.insert(bisect_left(runs, first, key=lambda run: run.first), run)
        return replaced

    def take(self, source: Source, first: int, count: int) -> bytes:
        """Remove so many; says where they stand, nowhere for those that are not held."""
        runs = self._runs.get(source)
        if runs is None:
            return ABSENT * count
        end = first + count
        if runs[0].first == first and runs[0].end == end:
            places = runs.pop(0).places
        else:
            at, pieces = first, list[bytes]()
            for part in cut_out(runs, first, end):
                pieces += (ABSENT * (part.first - at), part.places)
                at = part.end
            places = b"".join(pieces) + ABSENT * (end - at)
        if not runs:
            del self._runs[source]
        return places

    def take_before(self, source: Source, end: int) -> bytes:
        """Remove all before this sequence number; says where they stand."""
        runs = self._runs.get(source)
        if not runs or runs[0].first >= end:
            return b""
        return self.take(source, runs[0].first, min(end, runs[-1].end) - runs[0].first)


def cut_out(runs: list[_Part], first: int, end: int) -> list[_Part]:
    """Remove what lies between these numbers from runs that are in order; says what that was."""
    low = bisect_right(runs, first, key=lambda run: run.end)
    high = bisect_left(runs, end, key=lambda run: run.first)
    parts: list[_Part] = []
    rest: list[_Part] = []
    for run in runs[low:high]:
        start, stop = max(run.first, first), min(run.end, end)
        parts.append(run.part(start, stop))
        if run.first < start:
            rest.append(run.part(run.first, start))
        if run.end > stop:
            rest.append(run.part(stop, run.end))
    runs[low:high] = rest
    return parts
