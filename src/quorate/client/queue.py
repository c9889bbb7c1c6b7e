"""What has arrived at a consumer and was not read yet.

It is bounded, in events and in bytes, by whoever fills it: `is_full` says when to stop, and that
there is room again once half of it is empty.
"""

from collections import deque
from collections.abc import Collection
from typing import TypeAlias

from quorate.core import batch
from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import NodeId
from quorate.core.ordering import Partition
from quorate.protocol.machine import Delivery, Entry

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
        self._arrivals: deque[tuple[Arrival, int]] = deque()

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def publisher(self) -> NodeId:
        """Whose batch is the next one."""
        arrival, _ = self._arrivals[0]
        return arrival.publisher if isinstance(arrival, Entry) else arrival.stream.publisher

    def put(self, arrival: Arrival) -> None:
        count = _count(arrival)
        self._arrivals.append((arrival, count))
        self._events += count
        self.bytes += len(arrival.payload)
        self._weigh()

    def take(self) -> Arrival:
        arrival, count = self._arrivals.popleft()
        self._events -= count
        self.bytes -= len(arrival.payload)
        self._weigh()
        return arrival

    def drop(self, partition: Partition) -> None:
        """Nobody wants to read this partition of a log from here any more."""
        self._keep(
            [
                each
                for each in self._arrivals
                if not (isinstance(each[0], Entry) and each[0].partition == partition)
            ]
        )

    def drop_unvalidated(self, partitions: Collection[Partition]) -> int | None:
        """Nobody wants what was read of these without validation; says where in its validated log
        the first of that stands, if any of it is there."""
        origins: list[int] = []
        kept: list[tuple[Arrival, int]] = []
        for arrival, count in self._arrivals:
            is_of = isinstance(arrival, Entry) and arrival.partition in partitions
            if isinstance(arrival, Entry) and is_of and not arrival.seal:
                origins += [] if arrival.origin is None else [arrival.origin]
            else:
                kept.append((arrival, count))
        self._keep(kept)
        return origins[0] if origins else None

    def _keep(self, kept: list[tuple[Arrival, int]]) -> None:
        self._arrivals = deque(kept)
        self._events = sum(count for _, count in kept)
        self.bytes = sum(len(arrival.payload) for arrival, _ in kept)
        self._weigh()

    def _weigh(self) -> None:
        part = 2 if self.is_full else 1
        self.is_full = self._events > self._events_max // part or self.bytes > QUEUE_BYTES // part


def _count(arrival: Arrival) -> int:
    try:
        return batch.count_of(arrival.payload)
    except RemoteProtocolError:
        return 1
