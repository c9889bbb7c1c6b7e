"""Subscribing: records out, one by one, many at a time, or as Arrow tables.

A consumer's own queue is bounded. When the program takes too little out of it, the consumer
stops reading from the replicas; their queues fill, and the topic's contract says what happens
then: producers are slowed, or the oldest or newest events of this subscriber are discarded.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from quorate.client.session import ClusterLike, IdentityLike, Session
from quorate.core import batch
from quorate.core.batch import Batch
from quorate.core.errors import ClosedError, LocalProtocolError, RemoteProtocolError
from quorate.core.event import Event
from quorate.core.filter import Filter
from quorate.core.ids import NodeId, TopicId, topic_id
from quorate.protocol.destination import Destination
from quorate.protocol.machine import Answered, Delivery, Outcome, Skipped
from quorate.runtime.topics import client_names, macs_of, topics_of

if TYPE_CHECKING:
    import pyarrow

QUEUE_EVENTS = 100_000
QUEUE_BYTES = 64 * 1024 * 1024


class Record(msgspec.Struct, frozen=True, gc=False):
    """One delivered event, who published it, and on whose word it was accepted."""

    topic: str
    publisher: str
    sequence: int
    index: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp_us: int
    urgent: bool
    vouchers: tuple[str, ...]


class Consumer(Session):
    """Subscribes to any number of topics of one cluster.

    Live topics have no consumer groups, because nothing is kept for a group to share; a
    `group` is for log topics.
    """

    def __init__(
        self,
        cluster: ClusterLike,
        identity: IdentityLike,
        *,
        group: str | None = None,
        queue_events: int = QUEUE_EVENTS,
    ) -> None:
        super().__init__(cluster, identity)
        if queue_events < 1:
            raise LocalProtocolError(f"a queue of {queue_events} events; at least 1 is needed")
        if group is not None:
            raise LocalProtocolError(
                f"group '{group}': consumer groups are for log topics, and this version of "
                f"Quorate has live topics only"
            )
        self.counters: Counter[str] = Counter()
        self._queue_events = queue_events
        self._destination = Destination(
            self.node,
            topics_of(self.cluster),
            macs_of(self.cluster, self._identity),
            client_names(self.cluster),
        )
        self._wanted: dict[str, Filter] = {}
        self._asked: dict[str, int] = {}
        self._refused: dict[str, Exception] = {}
        self._names: dict[TopicId, str] = {}
        self._deliveries: deque[tuple[Delivery, int]] = deque()
        self._events = 0
        self._bytes = 0
        self._records: deque[Record] = deque()
        self._arrived = asyncio.Event()
        self._paused = False

    # Subscriptions

    def subscribe(
        self,
        topics: Iterable[str],
        *,
        key_prefix: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Ask for topics, perhaps only for events with such a key and such headers.

        `await subscribed()` waits until the replicas agreed; reading does so by itself.
        """
        if isinstance(topics, str):
            raise LocalProtocolError(f"subscribe takes a list of topics: [{topics!r}]")
        wanted = Filter(key_prefix, dict(headers or {}))
        for topic in topics:
            self.cluster.placement(topic)
            self._wanted[topic] = wanted
            self._names[topic_id(topic)] = topic
            self._asked[topic] = self._destination.subscribe(topic, wanted)
        if self._driver is not None:
            self._driver.wake()

    async def subscribed(self) -> None:
        """Wait until every subscription is in force; raise if one is refused."""
        for topic, number in list(self._asked.items()):
            await self._answer(number, self.cluster.placement(topic), f"to subscribe to '{topic}'")
            self._asked.pop(topic, None)

    async def unsubscribe(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        number = self._destination.unsubscribe(topic)
        self.driver.wake()
        await self._answer(number, self.cluster.placement(topic), f"to unsubscribe from '{topic}'")

    # Reading

    async def poll(self, timeout_s: float | None = None) -> Record | None:
        """The next record, or None if there is none within the time."""
        while not self._records:
            if not await self._more(timeout_s):
                return None
            self._unpack()
        return self._records.popleft()

    async def poll_many(self, count: int, timeout_s: float | None = None) -> list[Record]:
        """Up to so many records: those that are here, or the first to come."""
        first = await self.poll(timeout_s)
        found = [] if first is None else [first]
        while found and len(found) < count:
            if not self._records:
                if not self._deliveries:
                    break
                self._unpack()
                continue
            found.append(self._records.popleft())
        return found

    async def poll_table(
        self, timeout_s: float | None = None, *, events_max: int = 1_000_000
    ) -> "pyarrow.Table | None":
        """Everything that is here as one table, with no Python per event."""
        import pyarrow

        deliveries = await self.poll_batches(timeout_s, events_max=events_max)
        tables = [pyarrow.Table.from_batches([b.record_batch()]) for _, b in deliveries]
        return pyarrow.concat_tables(tables) if tables else None

    async def poll_batches(
        self, timeout_s: float | None = None, *, events_max: int = 1_000_000
    ) -> list[tuple[Delivery, Batch]]:
        """Everything that is here as checked batches, with where each comes from."""
        if not await self._more(timeout_s):
            return []
        found: list[tuple[Delivery, Batch]] = []
        while self._deliveries and events_max > 0:
            delivery = self._take()
            opened = self._opened(delivery)
            if opened is not None:
                found.append((delivery, opened))
                events_max -= opened.count
        return found

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        record = await self.poll()
        if record is None:
            raise StopAsyncIteration
        return record

    async def close(self) -> None:
        await super().close()
        self._arrived.set()

    # Machine

    def _machine(self) -> Destination:
        return self._destination

    def _replies(self, number: int) -> Mapping[NodeId, str]:
        return self._destination.replies(number)

    def _on_outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Delivery):
                count = _count(outcome)
                self._deliveries.append((outcome, count))
                self._events += count
                self._bytes += len(outcome.payload)
            elif isinstance(outcome, Answered):
                self._on_answered(outcome)
            elif isinstance(outcome, Skipped):
                self.counters["skipped"] += outcome.count
        if self._deliveries:
            self._arrived.set()
        if self._events > self._queue_events or self._bytes > QUEUE_BYTES:
            self._pause(True)

    # Parts

    async def _more(self, timeout_s: float | None) -> bool:
        """Wait for a delivery; False when the time is up."""
        if self._asked:
            await self.subscribed()
        if not self._wanted:
            raise LocalProtocolError("subscribe to a topic before reading from it")
        while not self._deliveries:
            if self._closed:
                raise ClosedError("the consumer is closed")
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), timeout_s)
            except TimeoutError:
                return False
        return True

    def _take(self) -> Delivery:
        delivery, count = self._deliveries.popleft()
        self._events -= count
        self._bytes -= len(delivery.payload)
        is_short = self._events <= self._queue_events // 2 and self._bytes <= QUEUE_BYTES // 2
        if self._paused and is_short:
            self._pause(False)
        return delivery

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        for replica in self.cluster.replicas:
            if paused:
                self.transport.pause_reading(replica.number)
            else:
                self.transport.resume_reading(replica.number)

    def _opened(self, delivery: Delivery) -> Batch | None:
        """The batch, unless its publisher published something that is none."""
        try:
            return Batch(delivery.payload)
        except RemoteProtocolError:
            self.counters["malformed"] += 1
            return None

    def _unpack(self) -> None:
        """Turn the next batch into records."""
        if not self._deliveries:
            return
        delivery = self._take()
        opened = self._opened(delivery)
        if opened is None:
            return
        topic = self._names[delivery.stream.topic]
        publisher = self.cluster.name_of(delivery.stream.publisher)
        vouchers = self._voucher_names(delivery.vouchers)
        wanted = self._wanted.get(topic)
        for index, event in enumerate(opened.events()):
            if wanted is None or wanted.is_empty or wanted.matches(event):
                self._records.append(
                    Record(topic, publisher, delivery.sequence, index, *_fields(event), vouchers)
                )

    def _voucher_names(self, vouchers: tuple[NodeId, ...]) -> tuple[str, ...]:
        return tuple(self.cluster.member(replica).name for replica in vouchers)


def _fields(
    event: Event,
) -> tuple[bytes | None, bytes, tuple[tuple[str, bytes], ...], int, bool]:
    return event.key, event.value, event.headers, event.timestamp_us, event.urgent


def _count(delivery: Delivery) -> int:
    try:
        return batch.count_of(delivery.payload)
    except RemoteProtocolError:
        return 1
