"""The last batches that a replica vouched for, kept for those who missed them.

Bounded twice, in batches per stream and in bytes altogether; the oldest go first. The bytes are
shared between publishing members, and each member's part between its streams, so that nobody
pushes out what others published by opening sessions. Live topics promise no more: who lags
further behind than this has missed something.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from quorate.core.ids import Digest, MemberId, NodeId, Sequence, Stream, TopicId, member_of
from quorate.core.limits import WINDOW_BATCHES

RETAINED_BYTES_MAX = 64 * 1024 * 1024
# One stream alone may not use more than half of the bytes, so that others find room.
_STREAMS_MIN = 2


class Held(NamedTuple):
    digest: Digest
    payload: bytes


@dataclass(slots=True, eq=False)
class Shelf:
    """One stream's batches, and the runs in which they came."""

    batches: dict[Sequence, tuple[Digest, bytes]] = field(default_factory=dict)
    runs: deque[tuple[Sequence, int]] = field(default_factory=deque)
    bytes: int = 0

    def drop_oldest_run(self) -> int:
        """Returns how many bytes that frees."""
        first, count = self.runs.popleft()
        before = self.bytes
        for sequence in range(first, first + count):
            gone = self.batches.pop(sequence, None)
            if gone is not None:
                self.bytes -= len(gone[1])
        return before - self.bytes


class Retention:
    """One per replica, shared by its topics."""

    def __init__(
        self, bytes_max: int = RETAINED_BYTES_MAX, *, batches_max: int = WINDOW_BATCHES
    ) -> None:
        self._bytes_max = bytes_max
        # Of each stream.
        self._batches_max = batches_max
        self._shelves: dict[Stream, Shelf] = {}
        # How many shelves each member has.
        self._members: Counter[MemberId] = Counter()
        self.held_bytes = 0

    def keep(
        self, stream: Stream, first: Sequence, digests: list[Digest], payloads: list[bytes]
    ) -> None:
        """Keep a run, at the expense of the oldest runs of its stream."""
        shelf = self._shelves.get(stream)
        if shelf is None:
            shelf = self._shelves[stream] = Shelf()
            self._members[member_of(stream.publisher)] += 1
        batches = shelf.batches
        if not batches.keys().isdisjoint(range(first, first + len(digests))):
            # Kept before, at least in part: what is here already stays as it is.
            again = [i for i in range(len(digests)) if first + i not in batches]
            for i in again:
                self.keep(stream, first + i, [digests[i]], [payloads[i]])
            return
        batches.update(
            zip(
                range(first, first + len(digests)), zip(digests, payloads, strict=True), strict=True
            )
        )
        shelf.runs.append((first, len(digests)))
        size = sum(map(len, payloads))
        shelf.bytes += size
        self.held_bytes += size
        shelves = len(self._members) * self._members[member_of(stream.publisher)]
        share = self._bytes_max // max(_STREAMS_MIN, shelves)
        while len(batches) > self._batches_max or (shelf.bytes > share and len(shelf.runs) > 1):
            self.held_bytes -= shelf.drop_oldest_run()
        while self.held_bytes > self._bytes_max:
            # Many streams with a large run each: the largest of them gives way.
            largest = max(self._shelves.values(), key=lambda shelf: shelf.bytes)
            self.held_bytes -= largest.drop_oldest_run()

    def get(self, stream: Stream, sequence: Sequence) -> Held | None:
        shelf = self._shelves.get(stream)
        found = shelf.batches.get(sequence) if shelf else None
        return Held(*found) if found else None

    def highest(self, stream: Stream) -> Sequence:
        """The highest number that is kept, or 0."""
        shelf = self._shelves.get(stream)
        return max(shelf.batches, default=0) if shelf else 0

    def forget(self, publisher: NodeId, topic: TopicId) -> None:
        for stream in [s for s in self._shelves if s[:2] == (publisher, topic)]:
            self.held_bytes -= self._shelves.pop(stream).bytes
            self._members[member_of(publisher)] -= 1
        # Whoever has none left takes no part in the sharing.
        self._members = +self._members
