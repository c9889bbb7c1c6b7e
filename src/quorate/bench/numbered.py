"""Values that are numbered one by one, however short they are.

    number (8 bytes) | body ...

The body is the same for all events of a run and known to both ends. The number says which producer
made the event, for which topic, and which of its events there it is, so that one that is changed,
missing, doubled or misplaced shows, and so does one on another topic.
"""

from collections.abc import Sequence
from struct import Struct, pack, unpack

from blake3 import blake3

from quorate.bench.processes import BenchError

_NUMBER = Struct("<Q")
_COUNTER_BITS = 48
_TOPIC_BITS = 8
TOPICS_MAX = 1 << _TOPIC_BITS
VALUE_BYTES_MIN = _NUMBER.size
# Values up to this length are compared all at once; longer ones cost more to put together.
_TOGETHER_BYTES_MAX = 1024


class Numbered:
    """Makes and checks the values of one run."""

    def __init__(self, event_bytes: int, run: str) -> None:
        if event_bytes < VALUE_BYTES_MIN:
            raise BenchError(
                f"events of {event_bytes} bytes; at least {VALUE_BYTES_MIN} are needed"
            )
        self.event_bytes = event_bytes
        self.body = blake3(run.encode()).digest(length=event_bytes - _NUMBER.size)
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
