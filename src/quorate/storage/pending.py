"""Payloads that are held, but whose batches have no offset yet.

They are kept as runs of consecutive sequence numbers with their places packed, so that deciding a
run moves its places without looking at each.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from quorate.storage.places import ABSENT, PLACE_BYTES

# A `Line`, or a plain tuple, which is cheaper to make and equal to it.
Source: TypeAlias = tuple[int, int, int]


class Run(NamedTuple):
    first: int
    end: int
    places: bytes

    def part(self, first: int, end: int) -> "Run":
        return Run(first, end, self._places(first, end))

    def _places(self, first: int, end: int) -> bytes:
        return self.places[(first - self.first) * PLACE_BYTES : (end - self.first) * PLACE_BYTES]


class Pending:
    """Runs by publisher, topic and partition; those of one source are in order and disjoint."""

    def __init__(self) -> None:
        self._runs: dict[Source, list[Run]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

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
        runs.insert(bisect_left(runs, first, key=_first), run)
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
            places = _cut_out(runs, first, end)
        if not runs:
            del self._runs[source]
        return places

    def take_before(self, source: Source, end: int) -> bytes:
        """Remove all before this sequence number; says where they stand."""
        runs = self._runs.get(source)
        if not runs or runs[0].first >= end:
            return b""
        return self.take(source, runs[0].first, min(end, runs[-1].end) - runs[0].first)


def _first(run: Run) -> int:
    return run.first


def _end(run: Run) -> int:
    return run.end


def _cut_out(runs: list[Run], first: int, end: int) -> bytes:
    low = bisect_right(runs, first, key=_end)
    high = bisect_left(runs, end, key=_first)
    pieces: list[bytes] = []
    rest: list[Run] = []
    at = first
    for run in runs[low:high]:
        start, stop = max(run.first, first), min(run.end, end)
        pieces += (ABSENT * (start - at), run.part(start, stop).places)
        at = stop
        if run.first < first:
            rest.append(run.part(run.first, first))
        if run.end > end:
            rest.append(run.part(end, run.end))
    runs[low:high] = rest
    return b"".join(pieces) + ABSENT * (end - at)
