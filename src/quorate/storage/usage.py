"""How much of each segment is still needed.

Live bytes are those of payloads that an index or a pending run points to. They are counted as
they come and go, so that nobody has to look for them.
"""

from collections.abc import Iterable

import msgspec

from quorate.storage.segments import Segments


class SegmentUse(msgspec.Struct, array_like=True):
    """What is needed of one segment: payload bytes, and slots up to which number by group."""

    first: int
    live_bytes: int = 0
    last_slots: dict[int, int] = {}


class Usage:
    """The use of every segment."""

    def __init__(self, segments: Segments, uses: Iterable[SegmentUse]) -> None:
        self._segments = segments
        self._uses = {use.first: use for use in uses}

    @property
    def uses(self) -> list[SegmentUse]:
        return list(self._uses.values())

    def of(self, first: int) -> SegmentUse:
        """The use of the segment that begins here."""
        use = self._uses.get(first)
        if use is None:
            use = self._uses[first] = SegmentUse(first)
        return use

    def add(self, position: int, payload_bytes: int) -> None:
        self.of(self._segments.containing(position)).live_bytes += payload_bytes

    def remove(self, places: Iterable[tuple[int, int]]) -> None:
        """Payloads at these positions, with these lengths, are not needed any more."""
        use, low, high = SegmentUse(0), 0, 0
        for position, length in places:
            # Neighbours mostly stand in one segment.
            if not low <= position < high:
                low = self._segments.containing(position)
                use, high = self.of(low), low + self._segments.size(low)
            use.live_bytes -= length

    def add_slot(self, position: int, group: int, slot: int) -> None:
        self.of(self._segments.containing(position)).last_slots[group] = slot

    def forget(self, first: int) -> None:
        """This segment was deleted."""
        self._uses.pop(first, None)
