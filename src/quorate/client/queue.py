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
        # Between them, what comes of a partition is said to be further on.
        self._arrivals: deque[tuple[Arrival | Passed, int]] = deque()

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def publisher(self) -> NodeId:
        """Whose batch is the next one."""
        arrival, _ = self._arrivals[0]
        assert not isinstance(arrival, Passed)
        return arrival.publisher if isinstance(arrival, Entry) else arrival.stream.publisher

    def put(self, arrival: Arrival | Passed) -> None:
        count = _count(arrival)
        self._arrivals.append((arrival, count))
        self._events += count
        self.bytes += _size(arrival)
        self._weigh()

    def take(self) -> Arrival:
        arrival, count = self._arrivals.popleft()
        assert not isinstance(arrival, Passed)
        self._events -= count
        self.bytes -= len(arrival.payload)
        self._weigh()
        return arrival

    def passed(self) -> Passed | None:
        """Take what comes next, if that is only the word that a partition goes on further on."""
        if not self._arrivals or not isinstance(self._arrivals[0][0], Passed):
            return None
        passed, count = self._arrivals.popleft()
        self._events -= count
        self._weigh()
        assert isinstance(passed, Passed)
        return passed

    def put_back(self, arrival: Arrival) -> None:
        """The program has yet to get some of what was taken last."""
        self._arrivals.appendleft((arrival, 0))
        self.bytes += len(arrival.payload)

    def drop(self, partition: Partition) -> None:
        """Nobody wants to read this partition of a log from here any more."""
        kept = [
            (arrival, count)
            for arrival, count in self._arrivals
            if isinstance(arrival, Delivery) or arrival.partition != partition
        ]
        self._arrivals = deque(kept)
        self._events = sum(count for _, count in kept)
        self.bytes = sum(_size(arrival) for arrival, _ in kept)
        self._weigh()

    def _weigh(self) -> None:
        part = 2 if self.is_full else 1
        self.is_full = self._events > self._events_max // part or self.bytes > QUEUE_BYTES // part


def _count(arrival: Arrival | Passed) -> int:
    if isinstance(arrival, Passed):
        return 1
    try:
        return count_of(arrival.payload)
    except RemoteProtocolError:
        return 1


def _size(arrival: Arrival | Passed) -> int:
    return 0 if isinstance(arrival, Passed) else len(arrival.payload)
