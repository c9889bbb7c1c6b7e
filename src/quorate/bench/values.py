"""Values that tell when they were published, and whether anybody touched them.

    body ... | counter | stamp ^ guard | stamp

The body is the same for all events of a run and known to both ends, the counter goes up by one
with each batch of a topic, and the stamp is the time of publishing on the clock that all
processes of a machine share. A changed byte anywhere shows, and so does a whole value in
another's place, because counters go up with the sequence numbers of their batches.
"""

from struct import Struct

from blake3 import blake3

from quorate.bench.processes import BenchError

_TAIL = Struct("<QQQ")
_unpack_tail = _TAIL.unpack_from
EVENT_BYTES_MIN = _TAIL.size


class Values:
    """Makes and checks the values of one run."""

    def __init__(self, event_bytes: int, run: str) -> None:
        if event_bytes < EVENT_BYTES_MIN:
            raise BenchError(
                f"events of {event_bytes} bytes; at least {EVENT_BYTES_MIN} are needed"
            )
        self.event_bytes = event_bytes
        self._body = blake3(run.encode()).digest(length=event_bytes - _TAIL.size)
        self._guard = int.from_bytes(self._body[:8].ljust(8, b"\xa5"), "little")

    def make(self, counter: int, stamp_ns: int) -> bytes:
        return self._body + _TAIL.pack(counter, stamp_ns ^ self._guard, stamp_ns)

    def read(self, payload: bytes | memoryview, events: int) -> tuple[int, int] | None:
        """Counter and stamp of a batch of equal values, or None if it is none of this run."""
        size = self.event_bytes
        start = len(payload) - size
        if start < 0 or payload[start : start + len(self._body)] != self._body:
            return None
        counter, guarded, stamp_ns = _unpack_tail(payload, len(payload) - _TAIL.size)
        if guarded ^ self._guard != stamp_ns:
            return None
        if events > 1 and bytes(payload[-size * events :]) != bytes(payload[start:]) * events:
            return None
        return counter, stamp_ns
