"""Reading stretches of log topics, with proof: from here to there, again and again the same.

    async with RangeReader("cluster", "bob") as reader:
        begin, end = await reader.bounds("payments", 0)
        async for batches in reader.read("payments", 0, begin, end):
            ...

A consumer follows a topic; this reads the events between two offsets, and is what data pipelines
are made of: any number of them share a partition, and whoever reads a stretch again gets the same
bytes. Batches come whole: the first and the last one may have events outside of the stretch.
Nothing that replicas say is believed: batches of topics that stand liars lead to a checkpoint that
a quorum signed, or another replica is asked (`protocol/ordering/ranges.py`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

from quorate.client.session import (
    ANSWER_TIMEOUT_S,
    ClusterLike,
    IdentityLike,
    Session,
    check_partition,
)
from quorate.core.cluster import Cluster
from quorate.core.contract import Contract
from quorate.core.control import CONTROL_TOPIC
from quorate.core.errors import ConfigError, LocalProtocolError, QuorateError
from quorate.core.ids import NodeId
from quorate.core.messages import Message, Operation
from quorate.core.ordering import (
    BEGIN_US,
    END_US,
    Absent,
    Entries,
    Located,
    Partition,
    ProvenRange,
)
from quorate.crypto.proofs import Keys
from quorate.protocol.listener import Listener
from quorate.protocol.ordering.ranges import Checks, RangeReading, Settled, Unsettled
from quorate.protocol.ordering.reading import Search
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.topic import topics_of

TICK_EVERY_US = 20_000
# Who hears nothing for so long may not be allowed to read any more.
DOUBT_AFTER_S = 1.0


class UnverifiedError(QuorateError):
    """No replica could give what stands at an offset so that it passed the checks.

    `topic`, `partition` and `offset` say where; it has no event at or after `end`, as far as
    replicas say that. `sent` is what they sent in its place, by their names.
    """

    def __init__(
        self,
        sentence: str,
        topic: str,
        partition: int,
        offset: int,
        end: int,
        sent: dict[str, bytes],
    ) -> None:
        super().__init__(sentence)
        self.topic, self.partition, self.offset, self.end = topic, partition, offset, end
        self.sent = sent


class RangeReader(Session):
    """Reads any number of stretches, one of each partition at a time."""

    def __init__(self, cluster: ClusterLike, identity: IdentityLike) -> None:
        super().__init__(cluster, identity)
        self._topics = {topic.name: topic for topic in topics_of(self.cluster)}
        self._validation = Validation.of(self.cluster, self._topics.values())
        self._listener = self._machine = Listener(
            self.node, self._topics.get(CONTROL_TOPIC), self._hear,
            on_tick=self._tick, tick_every_us=TICK_EVERY_US,
        )  # fmt: skip
        self._checks = self._make_checks()
        self._numbers = count(1)
        self._allowed: set[str] = set()
        self._searches: dict[int, tuple[Search, asyncio.Future[int]]] = {}
        self._stretches: dict[Partition, _Stretch] = {}

    # What there is

    async def contract(self, topic: str) -> Contract:
        """What a topic promises; raises if there is none, or if it cannot be read like this."""
        await self._know([topic])
        contract = _log(topic, self.cluster.contract(topic))
        if topic not in self._allowed:
            await self._require_permission(topic)
        return contract

    async def partitions(self, topic: str) -> int:
        """How many partitions a log topic has, also for those who may not read it."""
        await self._know([topic])
        return _log(topic, self.cluster.contract(topic)).partitions

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset that is kept, and the one after the last."""
        begin = await self.offset_at(topic, partition, BEGIN_US)
        return begin, await self.end(topic, partition)

    async def end(self, topic: str, partition: int) -> int:
        """The offset after the last."""
        return await self.offset_at(topic, partition, END_US)

    async def offset_at(self, topic: str, partition: int, time_us: int) -> int:
        """The first offset that was decided at this time or later."""
        check_partition(topic, await self.contract(topic), partition)
        number = next(self._numbers)
        known = self._topics[topic]
        search = Search(
            known, Partition(known.id, partition), time_us, self._listener.outbox, number
        )
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._searches[number] = search, future
        search.ask(known.members)
        self.driver.wake()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while True:
                    with contextlib.suppress(TimeoutError):
                        return await asyncio.wait_for(asyncio.shield(future), DOUBT_AFTER_S)
                    # While nothing is answered, find out whether we are still answered at all.
                    await self._require_permission(topic)
        except TimeoutError:
            raise self._too_few(
                f"too few replicas say where partition {partition} of '{topic}' begins or ends",
                topic,
                needed=known.quorum.reachable,
            ) from None
        finally:
            del self._searches[number]

    # Reading

    async def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        validate: bool = True,
        is_checked: bool = True,
        patience_s: float = 10.0,
        on_unverified: "Callable[[UnverifiedError], None] | None" = None,
    ) -> AsyncIterator[list[Settled]]:
        """The batches that have the events from one offset up to another, a few at a time.

        On a validated topic they come with their signatures checked, and basic ones without their
        payloads; without `validate` all come, and no signature is looked at. A batch that nobody
        can give raises `UnverifiedError` after `patience_s`, or is handed to `on_unverified` as one
        and left out. Without `is_checked` the first replica is believed.
        """
        await self.contract(topic)
        checks = self._checks if is_checked else None
        stretch = range(start, end)
        with self._opened(
            topic, partition, stretch, checks, validate=validate, patience_s=patience_s
        ) as opened:
            while (found := await opened.next()) is not None:
                if isinstance(found, Unsettled):
                    members = self.cluster.placement(topic)
                    if self._is_nobody_there(members):
                        raise self._unreached(f"no replica that serves '{topic}'", members)
                    await self._require_permission(topic)
                    error = self._unverified(topic, partition, found)
                    if on_unverified is None:
                        raise error
                    on_unverified(error)
                    opened.reading.skip()
                else:
                    yield found
                    opened.reading.taken(found[-1].end)
                self.driver.wake()

    # Parts

    @contextlib.contextmanager
    def _opened(
        self,
        topic: str,
        partition: int,
        stretch: range,
        checks: Checks | None,
        *,
        validate: bool,
        patience_s: float,
    ) -> "Iterator[_Stretch]":
        """A stretch that is being read."""
        target = Partition(self._topics[topic].id, partition)
        if target in self._stretches:
            raise LocalProtocolError(
                f"partition {partition} of '{topic}' is being read by this client already"
            )
        opened = self._stretches[target] = _Stretch()
        opened.reading = RangeReading(
            self._topics[topic], target, stretch, self._listener.outbox,
            self._listener.connected_peers, self._numbers, checks, opened.put,
            validate=validate, patience_us=int(patience_s * 1e6),
        )  # fmt: skip
        try:
            opened.reading.taken(stretch.start)
            self.driver.wake()
            yield opened
        finally:
            del self._stretches[target]
            if not self._closed:
                opened.reading.stop()
                self.driver.wake()

    def _make_checks(self) -> Checks:
        try:
            keys: Keys | None = Keys.of(self.cluster)
        except ConfigError:
            # It is too small for topics that stand liars.
            keys = None
        return Checks(keys, self._validation)

    async def _require_permission(self, topic: str) -> None:
        """Ask whether we may read a topic; raise what is refused.

        Replicas that let us read no more say nothing to whatever else we ask.
        """
        standing = self._listener.requests.ask(self._topics[topic], Operation.SUBSCRIBE)
        try:
            await self._answer(standing.number, topic, f"to read '{topic}'")
        finally:
            self._listener.requests.withdraw(standing)
            self._answers.pop(standing.number, None)
        self._allowed.add(topic)

    def _unverified(self, topic: str, partition: int, found: Unsettled) -> UnverifiedError:
        names = {self.cluster.name_of(each): why for each, why in found.causes.items()}
        causes = "; ".join(f"{name} {why}" for name, why in names.items()) or "nobody was there"
        return UnverifiedError(
            f"no replica gives the batch at offset {found.offset} of partition {partition} of "
            f"'{topic}' so that it can be verified ({causes})",
            topic,
            partition,
            found.offset,
            found.end,
            {self.cluster.name_of(each): sent for each, sent in found.sent.items()},
        )

    # Session

    def _tick(self) -> None:
        for search, _ in list(self._searches.values()):
            search.tick()
        for stretch in list(self._stretches.values()):
            stretch.reading.tick()

    def _hear(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, Located):
            self._on_located(sender, message)
        elif isinstance(message, Entries | Absent | ProvenRange):
            stretch = self._stretches.get(message.partition_of)
            if stretch is None:
                return
            if isinstance(message, Entries):
                stretch.reading.on_entries(sender, message)
            elif isinstance(message, Absent):
                stretch.reading.on_absent(sender, message)
            else:
                stretch.reading.on_proven(sender, message)

    def _on_located(self, sender: NodeId, located: Located) -> None:
        search, future = self._searches.get(located.number, (None, None))
        if search is None or future is None:
            return
        offset = search.on_located(sender, located)
        if offset is not None and not future.done():
            future.set_result(offset)

    def _adopt(self, cluster: Cluster) -> bool:
        is_news = super()._adopt(cluster)
        if is_news:
            self._topics |= {topic.name: topic for topic in topics_of(self.cluster)}
            self._validation.adopt(self.cluster, self._topics.values())
            self._checks = self._make_checks()
        return is_news


def _log(topic: str, contract: Contract) -> Contract:
    if not contract.is_log:
        raise LocalProtocolError(
            f"topic '{topic}' is live: nothing of it is kept, and there is nothing to read again; "
            f'log topics have order = "total"'
        )
    return contract


class _Stretch:
    """What was read of one stretch and not taken yet."""

    reading: RangeReading

    def __init__(self) -> None:
        self._found: deque[list[Settled] | Unsettled] = deque()
        self._news = asyncio.Event()

    def put(self, found: list[Settled] | Unsettled) -> None:
        self._found.append(found)
        self._news.set()

    async def next(self) -> list[Settled] | Unsettled | None:
        """All that is here up to the next batch that nobody has, or None at the end."""
        while not self._found:
            if self.reading.is_done:
                return None
            self._news.clear()
            await self._news.wait()
        first = self._found.popleft()
        if isinstance(first, Unsettled):
            return first
        # Whoever is slower than the network takes a few large lists rather than many small ones.
        together = list(first)
        while self._found and not isinstance(more := self._found[0], Unsettled):
            together += more
            self._found.popleft()
        return together
