"""The last batches that a replica vouched for, kept for those who missed them.

Bounded twice, in batches per stream and in bytes altogether; the oldest go first. Live
topics promise no more: who lags further behind than this has missed something.
"""

from collections import deque
from typing import NamedTuple

from quorate.core.ids import Digest, NodeId, Sequence, Stream, TopicId
from quorate.core.limits import WINDOW_BATCHES

RETAINED_BYTES_MAX = 64 * 1024 * 1024


class Held(NamedTuple):
    digest: Digest
    payload: bytes


class Retention:
    """One per replica, shared by its topics."""

    def __init__(self, bytes_max: int = RETAINED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._streams: dict[Stream, dict[Sequence, Held]] = {}
        self._arrivals: deque[tuple[Stream, Sequence]] = deque()
        self.bytes = 0

    def keep(self, stream: Stream, sequence: Sequence, digest: Digest, payload: bytes) -> None:
        held = self._streams.get(stream)
        if held is None:
            held = self._streams[stream] = {}
        if sequence in held:
            return
        held[sequence] = Held(digest, payload)
        self._arrivals.append((stream, sequence))
        self.bytes += len(payload)
        if len(held) > WINDOW_BATCHES:
            self._forget(stream, next(iter(held)))
        while self.bytes > self._bytes_max:
            self._forget(*self._arrivals.popleft())
        # Batches that the window pushed out leave their arrival behind.
        if len(self._arrivals) > 2 * WINDOW_BATCHES * len(self._streams):
            self._arrivals = deque(a for a in self._arrivals if a[1] in self._streams[a[0]])

    def get(self, stream: Stream, sequence: Sequence) -> Held | None:
        held = self._streams.get(stream)
        return held.get(sequence) if held else None

    def forget(self, publisher: NodeId, topic: TopicId) -> None:
        for stream in [s for s in self._streams if s[:2] == (publisher, topic)]:
            for sequence in list(self._streams[stream]):
                self._forget(stream, sequence)
            del self._streams[stream]
        self._arrivals = deque(a for a in self._arrivals if a[0] in self._streams)

    def _forget(self, stream: Stream, sequence: Sequence) -> None:
        gone = self._streams[stream].pop(sequence, None)
        if gone is not None:
            self.bytes -= len(gone.payload)
