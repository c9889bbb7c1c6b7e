"""Values of one run, which tell whether anybody touched them.

Where a batch has one value many times, a value tells when it was published:

    body ... | counter | stamp ^ guard | stamp

The counter goes up by one with each batch of a topic, and the stamp is the time of publishing on
the clock that all processes of a machine share. A changed byte anywhere shows, and so does a whole
value in another's place, because counters go up with the sequence numbers of their batches.

Where every event counts, values are numbered one by one, however short they are:

    number (8 bytes) | body ...

The number says which producer made the event, for which topic, and which of its events there it is,
so that one that is changed, missing, doubled or misplaced shows, and so does one on another topic.
The body is the same for all events of a run and known to both ends.
"""

from collections.abc import Sequence
from struct import Struct, pack, unpack

from blake3 import blake3

from quorate.bench.processes import BenchError

_TAIL = Struct("<QQQ")
_unpack_tail = _TAIL.unpack_from
EVENT_BYTES_MIN = _TAIL.size
_NUMBER = Struct("<Q")
_COUNTER_BITS = 48
_TOPIC_BITS = 8
TOPICS_MAX = 1 << _TOPIC_BITS
VALUE_BYTES_MIN = _NUMBER.size
# Values up to this length are compared all at once; longer ones cost more to put together.
_TOGETHER_BYTES_MAX = 1024


class Values:
    """Makes and checks the values of one run."""

    def __init__(self, event_bytes: int, run: str) -> None:
        self.event_bytes = event_bytes
        self._body = _body(run, event_bytes, _TAIL.size)
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


class Numbered:
    """Makes and checks the values of one run."""

    def __init__(self, event_bytes: int, run: str) -> None:
        self.event_bytes = event_bytes
        self.body = _body(run, event_bytes, _NUMBER.size)
        # Values that follow each other, of which only the numbers are still to be put in.
        self._run = bytearray()

    def numbers_of(self, values: Sequence[bytes]) -> Sequence[int] | None:
        """The numbers of these values, or None if one of them is none of this run."""
        if self.event_bytes <= _TOGETHER_BYTES_MAX:
            numbers = self._run_of(values)
            if numbers is not None:
                return numbers
        body, size = self.body, self.event_bytes
        if sum(map(len, values)) != size * len(values):
            return None
        are_ours = [value.startswith(body, _NUMBER.size) for value in values]
        if not all(are_ours):
            return None
        heads = b"".join([value[: _NUMBER.size] for value in values])
        return unpack(f"<{len(values)}Q", heads)

    def _run_of(self, values: Sequence[bytes]) -> range | None:
        """Their numbers, if all of these values are of this run and each follows the one before."""
        size, count = self.event_bytes, len(values)
        if list(map(len, values)).count(size) < count:
            return None
        first: int = _NUMBER.unpack_from(values[0])[0]
        numbers = range(first, first + count)
        if numbers[-1] >> 64:
            return None
        expected = self._run
        if len(expected) != count * size:
            expected = self._run = bytearray((bytes(_NUMBER.size) + self.body) * count)
        heads = pack(f"<{count}Q", *numbers)
        for at in range(_NUMBER.size):
            expected[at::size] = heads[at :: _NUMBER.size]
        return numbers if b"".join(values) == expected else None


# A number as it stands at the beginning of a value.
pack_number = _NUMBER.pack


def first_number(producer: int, topic: int) -> int:
    """The number of a producer's first event for a topic; those of the others follow."""
    return (producer << _TOPIC_BITS | topic) << _COUNTER_BITS


def topic_of(number: int) -> int:
    """Which topic an event with this number was made for."""
    return number >> _COUNTER_BITS & TOPICS_MAX - 1


class Order:
    """Which events have come so far: of each producer on each topic all up to a number."""

    def __init__(self) -> None:
        self.taken = 0
        # Events that came again, and gaps before events that came.
        self.doubled = 0
        self.gaps = 0
        self._next: dict[int, int] = {}

    def take(self, numbers: Sequence[int]) -> None:
        """These came, in this order."""
        first, end = numbers[0], numbers[0] + len(numbers)
        if isinstance(numbers, range) or tuple(numbers) == (*range(first, end),):
            self._take_run(first, end)
            return
        for number in numbers:
            self._take_run(number, number + 1)

    def _take_run(self, first: int, end: int) -> None:
        line = first >> _COUNTER_BITS
        expected = self._next.get(line, line << _COUNTER_BITS)
        if first < expected:
            again = min(end, expected) - first
            self.doubled += again
            first += again
        self.gaps += first > expected
        self.taken += end - first
        self._next[line] = max(expected, end)


def _body(run: str, event_bytes: int, others_bytes: int) -> bytes:
    """What all values of a run have in common."""
    if event_bytes < others_bytes:
        raise BenchError(f"events of {event_bytes} bytes; at least {others_bytes} are needed")
    return blake3(run.encode()).digest(length=event_bytes - others_bytes)
