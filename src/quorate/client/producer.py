"""Publishing: events in, receipts out.

Events of one topic gather into a batch until it is full or its linger is over; a batch has
one receipt, which all its events share. On a log topic with enough batches under way, the next one
goes on gathering until one of them has its receipt: to send it off would make more batches of the
same events, and each batch costs everybody a signature, a digest and a place in the order, whatever
its size.

A producer pushes back: `send` and `submit` wait while as much is in flight as the contract's
queues allow, so a slow topic slows its producers and fills no memory.

On a validated topic a producer signs its batches, unless `update_topology` says otherwise
(`modes.py`). Signed or not, they go the same way, in the order in which they were published.
"""

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec

from quorate.client.modes import Modes, checked_names
from quorate.client.session import ClusterLike, IdentityLike, Session, fail
from quorate.core import batch
from quorate.core.cluster import Cluster
from quorate.core.control import CONTROL_TOPIC, LEASE_US, Register, Unregister
from quorate.core.errors import (
    BusyError,
    ClosedError,
    LocalProtocolError,
    QuorumError,
    RefusedError,
    RemoteProtocolError,
)
from quorate.core.event import Event
from quorate.core.header import SALT_BYTES, count_of, is_signed
from quorate.core.ids import Lane, TopicId, topic_id
from quorate.core.limits import BATCH_BYTES_MAX
from quorate.core.messages import Status
from quorate.core.table import from_table
from quorate.crypto.digests import digest
from quorate.protocol import machine
from quorate.protocol.ordering.publisher import LineOutgoing
from quorate.protocol.ordering.validation import Sealer
from quorate.protocol.outgoing import Outgoing
from quorate.protocol.source import Source
from quorate.runtime.topics import topics_of

if TYPE_CHECKING:
    import pyarrow

BATCH_EVENTS = 1000
BATCH_BYTES = 256 * 1024
CLOSED_BATCHES_MAX = 8
# With so many batches of a line under way, the next one goes when it is full, or one has arrived.
UNDER_WAY_BATCHES = 2
# It does not wait longer for that.
OVERDUE_S_MAX = 1.0
CHECK_EVERY_S = 0.25
GIVE_BACK_S_MAX = 2.0
# Whoever leaves waits so long for replicas that are late, and looks so often.
LEAVE_S_MAX = 1.0
LOOK_EVERY_S = 0.01

# An event without headers has this one, which is the only empty tuple there is.
_NO_HEADERS: tuple[tuple[str, bytes], ...] = ()


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The contract of so many events is fulfilled; `guarantee` says what that means.

    They are of batch `sequence`. On a log topic the first of them has `offset` in a partition from
    now on, and the others follow.
    """

    topic: str
    sequence: int
    events: int
    replicas: tuple[str, ...]
    guarantee: str
    partition: int = 0
    offset: int | None = None

    def of_event(self, place: int) -> "Receipt":
        """The receipt of one event of this batch, counted from 0."""
        if self.events == 1:
            return self
        offset = None if self.offset is None else self.offset + place
        return msgspec.structs.replace(self, events=1, offset=offset)


@dataclass(slots=True, eq=False)
class Closed:
    """A batch that is complete and waits for its turn, or for its receipt."""

    payload: bytes
    events: int
    urgent: bool
    future: "asyncio.Future[Receipt]"
    deadline: float
    sign: bool


@dataclass(slots=True, eq=False)
class Outlet:
    """The producer's side of one topic, or of one partition of a log topic."""

    name: str
    stream: Outgoing | LineOutgoing
    partition: int = 0
    # Whether what is published from now on is signed.
    sign: bool = False
    open: batch.Gathering = field(default_factory=batch.Gathering)
    open_bytes: int = 0
    open_future: "asyncio.Future[Receipt] | None" = None
    linger: asyncio.Handle | None = None
    # Its linger is over since then, and it waits for its turn while it goes on gathering.
    is_overdue: bool = False
    overdue_since: float = 0.0
    closed: deque[Closed] = field(default_factory=deque)
    sent: dict[int, Closed] = field(default_factory=dict)
    is_full: bool = False
    room: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def takes_unfilled(self) -> bool:
        """Whether a batch that is not full gets anywhere sooner by being sent now."""
        stream = self.stream
        if isinstance(stream, LineOutgoing) and stream.in_flight >= UNDER_WAY_BATCHES:
            return False
        return not self.closed and stream.has_room

    def abandon(self) -> None:
        """Tell everybody who waits that nothing more will come."""
        if self.linger is not None:
            self.linger.cancel()
        if self.open_future is not None:
            self.open_future.cancel()
        for closed in (*self.closed, *self.sent.values()):
            closed.future.cancel()
        self.is_full = False
        self.room.set()


class Producer(Session):
    """Publishes to any number of topics of one cluster."""

    def __init__(
        self,
        cluster: ClusterLike,
        identity: IdentityLike,
        *,
        linger_ms: float = 0.0,
        batch_events: int = BATCH_EVENTS,
        batch_bytes: int = BATCH_BYTES,
        compression: str = "none",
        timeout_s: float = 30.0,
        stores: int | None = None,
    ) -> None:
        """Large batches of log topics go to so many `stores`: to f + 1, unless more are asked for.

        Each of the other replicas has the digest, and that is enough to order them.
        """
        super().__init__(cluster, identity)
        stores_min, stores_max = self.cluster.f + 1, len(self.cluster.replicas)
        if stores is not None and not stores_min <= stores <= stores_max:
            raise LocalProtocolError(
                f"{stores} stores for a batch; allowed are {stores_min} to {stores_max}"
            )
        if not 1 <= batch_events <= 1_000_000 or not 1 <= batch_bytes <= BATCH_BYTES_MAX // 2:
            raise LocalProtocolError(
                f"a batch holds 1 to 1000000 events and 1 to {BATCH_BYTES_MAX // 2} bytes, "
                f"not {batch_events} and {batch_bytes}"
            )
        self._linger_s = linger_ms / 1000
        self._batch_events = batch_events
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._timeout_s = timeout_s
        # One of each topic, and of a log topic one for each partition.
        self._outlets: dict[str, list[Outlet]] = {}
        self._by_id: dict[TopicId, list[Outlet]] = {}
        # Topics that we are asking to publish on.
        self._registering: dict[str, asyncio.Task[None]] = {}
        self._next_partition = 0
        self._modes = Modes()
        # Which one of its batch the event is that `submit` took last, from 0.
        self.place = 0
        self._source = self._machine = Source(
            self.node, topics_of(self.cluster), self._macs, session=1, sealer=self._make_sealer(),
            stores=stores,
        )  # fmt: skip
        self._outcomes |= {
            machine.Receipt: self._on_receipt,
            machine.Recorded: self._on_recorded,
            machine.Refused: self._on_refused,
            machine.Room: self._on_room,
        }
        self._checker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self._loop = asyncio.get_running_loop()
        if self._checker is None:
            self._checker = asyncio.create_task(self._check_deadlines())

    async def register(self, topic: str) -> None:
        """Ask to publish on a topic. `send` does it by itself; this shows a refusal early."""
        if topic == CONTROL_TOPIC:
            raise LocalProtocolError(
                f"'{topic}' is the cluster's own log, which anybody may read; commands such as "
                f"'quorate topic create' write it, and nobody publishes on it"
            )
        asking = self._registering.get(topic)
        if asking is None:
            asking = self._registering[topic] = asyncio.create_task(self._register(topic))
            asking.add_done_callback(lambda done: self._end_registering(topic, done))
        # Whoever gives up waiting does not end what others wait for.
        await asyncio.shield(asking)

    async def _register(self, topic: str) -> None:
        await self._know([topic])
        number = self._source.register(topic)
        await self._answer(number, topic, f"to register on '{topic}'")
        if self.cluster.topics[topic].is_log and self.cluster.control is not None:
            await self.command(Register(topic))
            self._keep_lease(LEASE_US)
        # Nobody publishes before it is granted: what is refused would wait for ever.
        if topic not in self._outlets:
            self._by_id[topic_id(topic)] = self._outlets[topic] = self._make_outlets(topic)

    def _end_registering(self, topic: str, done: "asyncio.Task[None]") -> None:
        del self._registering[topic]
        if not done.cancelled():
            # Nobody may be waiting any more, and that is fine.
            done.exception()

    def _make_outlets(self, topic: str, first: int = 0) -> list[Outlet]:
        """Those of a live topic, or of a log topic those of its partitions from `first` on."""
        contract = self.cluster.topics[topic]
        if not contract.is_log:
            return [Outlet(topic, self._source.stream(topic))]
        sign = self._modes.validates(self.cluster, topic)
        numbers = range(first, contract.partitions)
        return [Outlet(topic, self._source.line(topic, each), each, sign) for each in numbers]

    async def unregister(self, topic: str) -> None:
        """Stop publishing on a topic, after what is under way has its receipts."""
        await self.flush(topic)
        self._outlets.pop(topic, None)
        self._by_id.pop(topic_id(topic), None)
        number = self._source.unregister(topic)
        await self._answer(number, topic, f"to unregister from '{topic}'")
        if self.cluster.topics[topic].is_log and self.cluster.control is not None:
            await self.command(Unregister(topic))

    # Validated or basic

    async def update_topology(self, topics: Collection[str]) -> None:
        """From now on these topics are validated and all others are not (Kabis 2023, 2.1.3).

        What was published before is published as it was asked for then, and comes before.
        """
        topics = checked_names(topics)
        await self._know(topics)
        self._modes = Modes.of(self.cluster, topics)
        for outlet in self._all_outlets():
            sign = self._modes.validates(self.cluster, outlet.name)
            if outlet.sign is not sign:
                self._close_open(outlet)
                outlet.sign = sign

    async def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        urgent: bool = False,
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Publish one event and wait for its receipt.

        Events with the same key go to the same partition, unless one is named.
        """
        future = await self.submit(
            topic,
            value,
            key=key,
            headers=headers,
            urgent=urgent,
            timestamp_us=timestamp_us,
            partition=partition,
        )
        place = self.place
        return (await await_future(future)).of_event(place)

    async def submit(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        urgent: bool = False,
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> "asyncio.Future[Receipt]":
        """Publish one event as soon as there is room, and return the receipt to come of its batch.

        All events of a batch share it, since one for each would cost as much again as the rest of
        this. `place` is the event's own, until the next call, and `Receipt.of_event` makes the
        receipt of the one event from both.
        """
        outlets = self._outlets.get(topic) or await self._registered_outlets(topic)
        is_only = len(outlets) == 1 and partition is None
        outlet = outlets[0] if is_only else self._chosen(outlets, key, partition)
        if outlet.is_full:
            await self._wait_for_room(outlet)
        if timestamp_us is None:
            timestamp_us = time.time_ns() // 1000
        if urgent or self._batch_events == 1:
            self._close_open(outlet)
            self.place = 0
            payload = batch.encode_one(key, value, tuple(headers), timestamp_us, urgent)
            return self._enqueue(outlet, payload, 1, urgent)
        # From here on it is the same for every event, and written out: a call of its own for each
        # step would cost more than the step.
        size = outlet.open_bytes + len(value)
        opened = outlet.open
        if key is None and headers is _NO_HEADERS:
            opened.values.append(value)
            opened.times.append(timestamp_us)
        else:
            size += len(key or b"")
            opened.add(value, timestamp_us, key, tuple(headers))
        outlet.open_bytes = size
        future = outlet.open_future
        if future is None:
            future = self._begin_batch(outlet)
        events = len(opened.values)
        self.place = events - 1
        if size >= self._batch_bytes or events >= self._batch_events:
            self._close_open(outlet)
        return future

    async def send_batch(
        self, topic: str, events: Iterable[Event], *, partition: int | None = None
    ) -> Receipt:
        """Publish these events as one batch."""
        whole = list(events)
        payload = batch.encode(whole, compression=self._compression)
        future = await self.submit_payload(topic, payload, len(whole), partition=partition)
        return await await_future(future)

    async def send_values(
        self, topic: str, values: Sequence[bytes], *, partition: int | None = None
    ) -> Receipt:
        """Publish plain values as one batch, stamped with the time of now."""
        stamp = time.time_ns() // 1000
        payload = batch.encode_values(values, stamp, compression=self._compression)
        future = await self.submit_payload(topic, payload, len(values), partition=partition)
        return await await_future(future)

    async def send_table(
        self, topic: str, table: "pyarrow.Table", *, rows_max: int = 100_000
    ) -> list[Receipt]:
        """Publish a table, with no Python per event; large ones as several batches."""
        futures = []
        # Rows are cut so that a part of average rows fills half of what a batch may hold.
        rows_max = max(
            1, min(rows_max, BATCH_BYTES_MAX // 2 * table.num_rows // (table.nbytes + 1))
        )
        for start in range(0, table.num_rows, rows_max):
            part = table.slice(start, rows_max)
            payload = from_table(
                part, timestamp_us=time.time_ns() // 1000, compression=self._compression
            )
            futures.append(await self.submit_payload(topic, payload, part.num_rows))
        return [await await_future(future) for future in futures]

    async def submit_payload(
        self, topic: str, payload: bytes, events: int, *, partition: int | None = None
    ) -> "asyncio.Future[Receipt]":
        """Publish a batch that is encoded already."""
        outlets = self._outlets.get(topic) or await self._registered_outlets(topic)
        outlet = self._chosen(outlets, None, partition)
        _check_batch(outlet, payload, events)
        if outlet.is_full:
            await self._wait_for_room(outlet)
        self._close_open(outlet)
        return self._enqueue(outlet, payload, events, urgent=False)

    async def flush(self, topic: str | None = None) -> None:
        """Wait until everything published so far has its receipt."""
        for outlet in self._all_outlets(topic):
            self._close_open(outlet)
            waiting = [c.future for c in (*outlet.closed, *outlet.sent.values())]
            if waiting:
                await asyncio.wait(waiting)

    async def close(self, *, flush: bool = True) -> None:
        """Disconnect; without `flush`, what has no receipt yet gets none."""
        if self._closed:
            return
        if self._driver is not None and flush:
            await self.flush()
            if not self._closed:
                await self._take_leave()
        if self._checker is not None:
            self._checker.cancel()
        if self._driver is not None and flush:
            await self._give_back()
        for outlet in self._all_outlets():
            outlet.abandon()
        # Whoever publishes from now on has to register, and hears that we are closed.
        self._outlets.clear()
        await super().close()

    async def _take_leave(self) -> None:
        """Stay a moment for replicas that do not have yet what was published on live topics.

        Those that made its receipts may be too few for a subscriber to whom one of them lies.
        """
        self._source.conclude()
        self.driver.wake()
        for _ in range(round(LEAVE_S_MAX / LOOK_EVERY_S)):
            replicas = (replica.number for replica in self.cluster.replicas)
            there = {each for each in replicas if not self.transport.why_unreached(each)}
            if self._source.is_done(there):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _give_back(self) -> None:
        """Others need not wait for our lease to end before they take our place."""
        with contextlib.suppress(QuorumError, RefusedError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S_MAX):
                for topic in self._logs():
                    await self.command(Unregister(topic))

    def _logs(self) -> list[str]:
        """The log topics that we hold a lease for."""
        if self.cluster.control is None:
            return []
        return [topic for topic in self._outlets if self.cluster.topics[topic].is_log]

    def _all_outlets(self, topic: str | None = None) -> list[Outlet]:
        """Those of a topic, or of all."""
        if topic is not None:
            return list(self._outlets.get(topic, ()))
        return [outlet for outlets in self._outlets.values() for outlet in outlets]

    # Machine

    def _make_sealer(self) -> Sealer:
        return Sealer(
            self.cluster.full_name, self._identity.public.sign_key, self._identity.sign,
            wall_us=lambda: time.time_ns() // 1000,
            salt=lambda _, __: secrets.token_bytes(SALT_BYTES),
        )  # fmt: skip

    async def _take_again(self) -> None:
        for topic in self._logs():
            await self.command(Register(topic))

    def _adopt(self, cluster: Cluster) -> bool:
        is_news = super()._adopt(cluster)
        if is_news:
            self._source.adopt(cluster)
            # Topics that we publish on may have got more partitions.
            for topic, outlets in self._outlets.items():
                if self.cluster.topics[topic].is_log:
                    outlets += self._make_outlets(topic, len(outlets))
        return is_news

    def _on_receipt(self, receipt: machine.Receipt) -> None:
        outlets = self._by_id.get(receipt.stream.topic)
        if outlets is None or receipt.stream.lane is not Lane.EVENTS:
            return
        (outlet,) = outlets
        self._settle(outlet, range(receipt.first, receipt.last + 1), repeat(None), receipt)
        self._pump(outlet)

    def _on_recorded(self, recorded: machine.Recorded) -> None:
        outlets = self._by_id.get(recorded.line.topic)
        if outlets is None:
            return
        outlet = outlets[recorded.line.partition]
        sequences = range(recorded.first, recorded.first + recorded.count)
        self._settle(outlet, sequences, recorded.offsets, recorded)
        self._pump_lines(outlet)

    def _settle(
        self,
        outlet: Outlet,
        sequences: range,
        offsets: Iterable[int | None],
        said: machine.Receipt | machine.Recorded,
    ) -> None:
        names = tuple(self.cluster.member(replica).name for replica in said.replicas)
        for sequence, offset in zip(sequences, offsets, strict=False):
            closed = outlet.sent.pop(sequence, None)
            if closed is not None and not closed.future.done():
                closed.future.set_result(
                    Receipt(
                        outlet.name, sequence, closed.events, names, said.guarantee,
                        outlet.partition, offset,
                    )
                )  # fmt: skip

    def _on_refused(self, refused: machine.Refused) -> None:
        """Replicas will not order what this line has under way, nor what follows."""
        outlets = self._by_id.get(refused.line.topic)
        if outlets is None:
            return
        outlet = outlets[refused.line.partition]
        error = RefusedError(f"a batch on '{outlet.name}' is not ordered: {refused.sentence}")
        for closed in (*outlet.sent.values(), *outlet.closed):
            fail(closed.future, error)
        outlet.sent.clear()
        outlet.closed.clear()
        self._pump(outlet)

    def _pump_lines(self, served: Outlet) -> None:
        """Lines share what may be under way: if one was held up, the next in turn goes first."""
        if self._source.under_way.held_up:
            self._source.under_way.held_up = False
            outlets = self._all_outlets()
            after = outlets.index(served) + 1
            for outlet in (*outlets[after:], *outlets[: after - 1]):
                if outlet.closed or outlet.is_overdue:
                    self._pump(outlet)
        self._pump(served)

    def _on_room(self, room: machine.Room) -> None:
        for outlet in self._by_id.get(room.stream.topic, ()):
            self._pump(outlet)

    # Batches

    async def _registered_outlets(self, topic: str) -> list[Outlet]:
        await self.register(topic)
        return self._outlets[topic]

    def _chosen(self, outlets: list[Outlet], key: bytes | None, partition: int | None) -> Outlet:
        """The partition that was named, or that of the key, or the next one in turn."""
        count = len(outlets)
        if partition is not None:
            if not 0 <= partition < count:
                these = "only 0" if count == 1 else f"0 to {count - 1}"
                raise LocalProtocolError(
                    f"topic '{outlets[0].name}' has no partition {partition}; it has {these}"
                )
            return outlets[partition]
        if key is not None:
            return outlets[partition_of(key, count)]
        self._next_partition += 1
        return outlets[self._next_partition % count]

    def _begin_batch(self, outlet: Outlet) -> "asyncio.Future[Receipt]":
        """The receipt to come of what gathers from now on."""
        loop = asyncio.get_running_loop()
        outlet.open_future = loop.create_future()
        if self._linger_s:
            outlet.linger = loop.call_later(self._linger_s, self._end_linger, outlet)
        else:
            outlet.linger = loop.call_soon(self._end_linger, outlet)
        return outlet.open_future

    def _end_linger(self, outlet: Outlet) -> None:
        outlet.is_overdue = True
        outlet.overdue_since = time.monotonic()
        if outlet.takes_unfilled:
            self._close_open(outlet)

    def _close_open(self, outlet: Outlet) -> None:
        outlet.is_overdue = False
        if outlet.open_future is None:
            return
        if outlet.linger is not None:
            outlet.linger.cancel()
        opened, future = outlet.open, outlet.open_future
        outlet.open, outlet.open_bytes, outlet.open_future = batch.Gathering(), 0, None
        try:
            payload = opened.encode(self._compression)
        except LocalProtocolError as error:
            future.set_exception(error)
            return
        self._enqueue(outlet, payload, len(opened.values), urgent=False, future=future)

    def _enqueue(
        self,
        outlet: Outlet,
        payload: bytes,
        events: int,
        urgent: bool,
        future: "asyncio.Future[Receipt] | None" = None,
    ) -> "asyncio.Future[Receipt]":
        if future is None:
            future = self._loop.create_future()
        if isinstance(outlet.stream, LineOutgoing) and outlet.stream.refusal:
            refusal = outlet.stream.refusal
            fail(future, RefusedError(f"a batch on '{outlet.name}' is not ordered: {refusal}"))
            return future
        deadline = time.monotonic() + self._timeout_s
        outlet.closed.append(Closed(payload, events, urgent, future, deadline, outlet.sign))
        self._pump(outlet)
        return future

    def _pump(self, outlet: Outlet) -> None:
        """Hand closed batches to the machine while it has room for them."""
        waiting, stream, publish_on = outlet.closed, outlet.stream, self._source.publish_on
        while waiting and stream.has_room:
            closed = waiting.popleft()
            if isinstance(stream, LineOutgoing):
                sequence = stream.add(closed.payload, closed.events, sign=closed.sign)
            else:
                sequence = publish_on(stream, closed.payload, closed.urgent, closed.events)
            outlet.sent[sequence] = closed
        if outlet.is_overdue and outlet.takes_unfilled:
            self._close_open(outlet)
        outlet.is_full = len(waiting) >= CLOSED_BATCHES_MAX
        if not outlet.is_full:
            outlet.room.set()
        self.driver.wake()

    async def _wait_for_room(self, outlet: Outlet) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while outlet.is_full:
                    outlet.room.clear()
                    await outlet.room.wait()
        except TimeoutError:
            raise BusyError(
                f"topic '{outlet.name}' took nothing for {self._timeout_s:g} s",
                self._lags(outlet.name),
            ) from None
        # There is also room when we are closed, which this says.
        self.driver.wake()

    # Time-outs

    async def _check_deadlines(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self._expire_late(time.monotonic())

    def _expire_late(self, now: float) -> None:
        for outlet in self._all_outlets():
            if outlet.is_overdue and now - outlet.overdue_since >= OVERDUE_S_MAX:
                # Whoever waits for its receipt is told in time, even if it never has its turn.
                self._close_open(outlet)
            for closed in (*outlet.sent.values(), *outlet.closed):
                if closed.deadline > now:
                    break
                self._expire(outlet, closed)

    def _expire(self, outlet: Outlet, closed: Closed) -> None:
        if not closed.future.done():
            closed.future.set_exception(
                QuorumError(
                    f"a batch on '{outlet.name}' has no receipt after {self._timeout_s:g} s; "
                    f"it may still be delivered",
                    self._lags(outlet.name),
                )
            )

    def _lags(self, topic: str) -> dict[str, str]:
        if self.cluster.topics[topic].is_log:
            members = self.cluster.placement(topic)
            return {self.cluster.name_of(member): self._state(member, {}) for member in members}
        states = {}
        for replica, (connected, status, lag) in self._source.progress(topic).items():
            name = self.cluster.member(replica).name
            word = f"has yet to take {lag} of our batches" if lag else "has taken all our batches"
            if status is Status.WAIT:
                word = "busy"
            states[name] = word if connected else self.transport.why_down(replica)
        return states


def partition_of(key: bytes, partitions: int) -> int:
    """Where events with this key go, of so many partitions."""
    return int.from_bytes(digest(key)[:8], "little") % partitions


def _check_batch(outlet: Outlet, payload: bytes, events: int) -> None:
    """What is published is a batch that nobody signed yet, of so many events as it says."""
    try:
        # Of one with event proofs, each event is looked at.
        stream = outlet.stream
        is_whole = isinstance(stream, LineOutgoing) and stream.topic.contract.event_proofs
        count = count_of(payload)
        if is_signed(payload):
            raise RemoteProtocolError("it says that it is signed")
        if is_whole:
            batch.Batch(payload)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"no batch to publish on '{outlet.name}': {error}") from None
    if count != events:
        raise LocalProtocolError(
            f"a batch for '{outlet.name}' of {count} events, where {events} are said to be in it"
        )


async def await_future(future: "asyncio.Future[Receipt]") -> Receipt:
    """Wait without cancelling what others wait for too."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if future.cancelled():
            raise ClosedError("the producer was closed before the receipt came") from None
        raise
