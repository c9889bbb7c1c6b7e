"""Batches that have their place in a partition while their payload is not here.

A payload that comes late finds its number in the partition here. A replica that is not the store
of a topic misses most payloads and never gets them, so only the most recent ones are remembered.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from quorate.storage.pending import Source

ABSENTS_MAX = 65_536


class Gap(NamedTuple):
    """Sequence numbers `first` to `end` are consecutive batches of a partition from `number` on."""

    first: int
    end: int
    number: int


class Absents:
    """Gaps by publisher, topic and partition; those of one source are in order and disjoint."""

    def __init__(self, runs_max: int = ABSENTS_MAX) -> None:
        self._gaps: OrderedDict[Source, list[Gap]] = OrderedDict()
        self._runs_max = runs_max
        self._runs = 0

    def __len__(self) -> int:
        return self._runs

    def __iter__(self) -> Iterator[tuple[Source, Gap]]:
        """In the order in which they would be forgotten."""
        for source, gaps in self._gaps.items():
            for gap in gaps:
                yield source, gap

    def add(self, source: Source, gap: Gap) -> None:
        gaps = self._gaps.setdefault(source, [])
        self._gaps.move_to_end(source)
        if gaps and gaps[-1].end == gap.first and _next_number(gaps[-1]) == gap.number:
            gaps[-1] = Gap(gaps[-1].first, gap.end, gaps[-1].number)
            return
        insort(gaps, gap)
        self._runs += 1
        if self._runs > self._runs_max:
            self._forget_one()

    def claim(self, source: Source, first: int, end: int) -> list[Gap]:
        """Where those of these batches stand that were missed; they no longer are."""
        gaps = self._gaps.get(source)
        if gaps is None or gaps[-1].end <= first:
            return []
        low = bisect_right(gaps, first, key=_end)
        high = bisect_left(gaps, end, key=_first)
        claimed: list[Gap] = []
        rest: list[Gap] = []
        for gap in gaps[low:high]:
            start, stop = max(gap.first, first), min(gap.end, end)
            claimed.append(_part(gap, start, stop))
            rest += (_part(gap, gap.first, start), _part(gap, stop, gap.end))
        rest = [gap for gap in rest if gap.first < gap.end]
        gaps[low:high] = rest
        self._runs += len(rest) - (high - low)
        if not gaps:
            del self._gaps[source]
        return claimed

    def forget(self, topic: int, partition: int) -> None:
        """What is missing of a partition is no longer of interest."""
        for source in [each for each in self._gaps if each[1:] == (topic, partition)]:
            self._runs -= len(self._gaps.pop(source))

    def _forget_one(self) -> None:
        source, gaps = next(iter(self._gaps.items()))
        del gaps[0]
        self._runs -= 1
        if not gaps:
            del self._gaps[source]


def _first(gap: Gap) -> int:
    return gap.first


def _end(gap: Gap) -> int:
    return gap.end


def _next_number(gap: Gap) -> int:
    return gap.number + gap.end - gap.first


def _part(gap: Gap, first: int, end: int) -> Gap:
    return Gap(first, end, gap.number + first - gap.first)
