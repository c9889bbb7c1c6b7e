"""Batches that have their place in a partition while their payload is not here.

A payload that comes late finds its number in the partition here. A replica that is not the store
of a topic misses most payloads and never gets them, so only the most recent ones are remembered.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator

from quorate.storage.pending import Gap, Source, cut_out

ABSENTS_MAX = 65_536


class Absents:
    """Gaps by publisher, topic and partition; those of one source are in order and disjoint."""

    def __init__(self, runs_max: int = ABSENTS_MAX) -> None:
        self._gaps: OrderedDict[Source, list[Gap]] = OrderedDict()
        self._runs_max = runs_max
        self._runs = 0

    def __iter__(self) -> Iterator[tuple[Source, Gap]]:
        """In the order in which they would be forgotten."""
        for source, gaps in self._gaps.items():
            for gap in gaps:
                yield source, gap

    def add(self, source: Source, gap: Gap) -> None:
        gaps = self._gaps.setdefault(source, [])
        self._gaps.move_to_end(source)
        if gaps and gaps[-1].end == gap.first:
            last = gaps[-1]
            if last.number + last.end - last.first == gap.number:
                gaps[-1] = Gap(last.first, gap.end, last.number)
                return
        insort(gaps, gap)
        self._runs += 1
        if self._runs > self._runs_max:
            # The oldest is forgotten.
            source, gaps = next(iter(self._gaps.items()))
            del gaps[0]
            self._runs -= 1
            if not gaps:
                del self._gaps[source]

    def claim(self, source: Source, first: int, end: int) -> list[Gap]:
        """Where those of these batches stand that were missed; they no longer are."""
        gaps = self._gaps.get(source)
        if gaps is None or gaps[-1].end <= first:
            return []
        before = len(gaps)
        claimed = cut_out(gaps, first, end)
        self._runs += len(gaps) - before
        if not gaps:
            del self._gaps[source]
        return claimed

    def forget(self, topic: int, partition: int) -> None:
        """What is missing of a partition is no longer of interest."""
        for source in [each for each in self._gaps if each[1:] == (topic, partition)]:
            self._runs -= len(self._gaps.pop(source))
