"""Getting rid of old segments.

A segment goes when nothing in it is needed: no payload that an index or a pending run points to,
no slot that must be served, nothing that starting replays. One that holds little is emptied
first: what is live in it is copied to the end of the journal. Copies carry the number in the
partition (`Moved`) or in the line (`Held`) with them, so that a replay finds them as it finds
everything else. Until they are synced, the old segment stays.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from quorate.protocol.ordering.records import Held
from quorate.storage.heads import Moved
from quorate.storage.index import Index
from quorate.storage.pending import Pending
from quorate.storage.places import NOWHERE, unpack
from quorate.storage.reading import gather
from quorate.storage.segments import Segments
from quorate.storage.usage import Usage

# A segment is emptied if less than this part of it is live.
_SPARSE = 1 / 4
_SCAN_ENTRIES = 4096
_COPY_ENTRIES = 256


class Cleaned(NamedTuple):
    segments_deleted: int
    bytes_copied: int


class _Found(NamedTuple):
    """A live payload in a segment that shall go; `number` is that in the partition or a
    sequence number."""

    number: int
    position: int
    length: int


class Cleaner:
    """One round of cleaning, right after a checkpoint."""

    def __init__(
        self, segments: Segments, usage: Usage, floor: int, kept_slots: Mapping[int, int]
    ) -> None:
        self._segments = segments
        self._usage = usage
        self._floor = floor
        self._kept_slots = kept_slots

    def delete_dead(self) -> int:
        """Delete every segment in which nothing is needed; says how many."""
        dead = [first for first in self._free() if self._usage.of(first).live_bytes == 0]
        for first in dead:
            self._segments.remove(first)
            self._usage.forget(first)
        return len(dead)

    def sparse(self) -> list[int]:
        """Segments that are worth emptying, the oldest first."""
        return [
            first
            for first in self._free()
            if 0 < self._usage.of(first).live_bytes < self._segments.size(first) * _SPARSE
        ]

    def copies(
        self, doomed: Collection[int], pending: Pending, indexes: Iterable[Index]
    ) -> Iterator[Held | Moved]:
        """Everything that is live in these segments, to be appended as it comes."""
        if not doomed:
            return
        for first in doomed:
            # A copy gets a checksum of its own, which must not cover up that it is a bad copy.
            for _ in self._segments.frames(first):
                pass
        for source, run in list(pending):
            for found in self._within(doomed, run.first, run.places):
                yield Held(*source, found[0].number, self._payloads(found))
        for index in indexes:
            for number in range(index.start, index.end, _SCAN_ENTRIES):
                places = index.places(number, min(_SCAN_ENTRIES, index.end - number))
                for found in self._within(doomed, number, places):
                    yield Moved(*index.partition, found[0].number, self._payloads(found))

    def _free(self) -> list[int]:
        """Segments that are needed for payloads only, if for anything."""
        return [
            first
            for first in self._segments.firsts[:-1]
            if first + self._segments.size(first) <= self._floor
            and all(
                slot < self._kept_slots.get(group, 0)
                for group, slot in self._usage.of(first).last_slots.items()
            )
        ]

    def _within(self, doomed: Collection[int], first: int, places: bytes) -> Iterator[list[_Found]]:
        """Those of the places that are in these segments: consecutive numbers, in pieces that are
        not too large to write at once."""
        positions, lengths = unpack(places)
        ends = [start + self._segments.size(start) for start in doomed]
        # Most stretches have nothing there, and a minimum is found much faster than a match.
        if min(positions) >= max(ends):
            return
        run: list[_Found] = []
        for number, (position, length) in enumerate(zip(positions, lengths, strict=True), first):
            if position == NOWHERE or self._segments.containing(position) not in doomed:
                continue
            if run and (number != run[-1].number + 1 or len(run) == _COPY_ENTRIES):
                yield run
                run = []
            run.append(_Found(number, position, length))
        if run:
            yield run

    def _payloads(self, run: list[_Found]) -> list[bytes]:
        return gather(
            self._segments, [found.position for found in run], [found.length for found in run]
        )
