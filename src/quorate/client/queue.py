"""What has arrived at a consumer and was not read yet.

It is bounded, in events and in bytes, by whoever fills it: `is_full` says when to stop, and that
there is room again once half of it is empty.
"""

from collections import deque
from typing import TypeAlias

from quorate.core.errors import RemoteProtocolError
from quorate.core.header import count_of
from quorate.core.ids import NodeId
from quorate.core.ordering import Partition
from quorate.protocol.machine import Delivery, Entry, Passed

QUEUE_EVENTS = 100_000
QUEUE_BYTES = 8 * 1024 * 1024

# What a machine delivers: a batch of a live topic, or one of a log topic.
Arrival: TypeAlias = Delivery | Entry


class Queue:
    """Arrivals of one consumer, in the order in which they came."""

    def __init__(self, events_max: int) -> None:
        self.is_full = False
        self.bytes = 0
        self._events = 0
        self._events_max = events_max
        # With the events and bytes of each. Between them, what comes of a partition is said to be
        # further on.
        self._arrivals: deque[tuple[Arrival | Passed, int, int]] = deque()

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def publisher(self) -> NodeId:
        """Whose batch is the next one."""
        arrival = self._arrivals[0][0]
        assert not isinstance(arrival, Passed)
        return arrival.publisher if isinstance(arrival, Entry) else arrival.stream.publisher

    def put(self, arrival: Arrival | Passed) -> None:
        if isinstance(arrival, Entry):
            self._add((arrival, arrival.end - arrival.offset, len(arrival.payload)))
        elif isinstance(arrival, Passed):
            self._add((arrival, 1, 0))
        else:
            self._add((arrival, _count(arrival.payload), len(arrival.payload)))

    def _add(self, weighed: tuple[Arrival | Passed, int, int]) -> None:
        self._arrivals.append(weighed)
        self._events += weighed[1]
        self.bytes += weighed[2]
        if self._events > self._events_max or self.bytes > QUEUE_BYTES:
            self.is_full = True

    def take(self) -> Arrival:
        arrival = self._take_next()
        assert not isinstance(arrival, Passed)
        return arrival

    def passed(self) -> Passed | None:
        """Take what comes next, if that is only the word that a partition goes on further on."""
        if not self._arrivals or not isinstance(self._arrivals[0][0], Passed):
            return None
        passed = self._take_next()
        assert isinstance(passed, Passed)
        return passed

    def take_many(self, events_max: int) -> list[Arrival | Passed]:
        """What comes next, until that is as many events."""
        ends_at, taken = self._events - events_max, list[Arrival | Passed]()
        while self._arrivals and self._events > ends_at:
            taken.append(self._take_next())
        return taken

    def _take_next(self) -> Arrival | Passed:
        arrival, events, size_bytes = self._arrivals.popleft()
        self._events -= events
        self.bytes -= size_bytes
        if self.is_full:
            self._see_room()
        return arrival

    def put_back(self, entry: Entry) -> None:
        """The program has yet to get some of what was taken last."""
        self._arrivals.appendleft((entry, 0, len(entry.payload)))
        self.bytes += len(entry.payload)

    def drop(self, partition: Partition) -> None:
        """Nobody wants to read this partition of a log from here any more."""
        self._arrivals = deque(
            each
            for each in self._arrivals
            if isinstance(each[0], Delivery) or each[0].partition != partition
        )
        self._events = sum(events for _, events, _ in self._arrivals)
        self.bytes = sum(size_bytes for _, _, size_bytes in self._arrivals)
        self._see_room()

    def _see_room(self) -> None:
        if self._events <= self._events_max // 2 and self.bytes <= QUEUE_BYTES // 2:
            self.is_full = False


def _count(payload: bytes) -> int:
    try:
        return count_of(payload)
    except RemoteProtocolError:
        return 1
