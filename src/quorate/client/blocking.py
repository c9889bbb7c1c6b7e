"""Producer and consumer for programs without an event loop: scripts, notebooks, threads.

    with BlockingProducer("cluster", "alice") as producer:
        receipt = producer.send("alerts", b"disk full", key=b"host-7")

    with BlockingConsumer("cluster", "bob") as consumer:
        consumer.subscribe(["alerts"])
        for record in consumer:
            print(record.value)

Each connects as soon as it is made, and has an event loop of its own in a thread of its own, so
that links are served while the program does something else. It therefore works where a loop
runs already, as in Jupyter, and may be used from several threads. The thread ends with `close`,
or with the program. Ctrl-C ends the call that waits, and leaves the client as usable as before.
"""

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from quorate.client.consumer import AUTO_COMMIT_S, Committed, Consumer, Record, Start
from quorate.client.producer import Producer, Receipt
from quorate.client.proving import Prover
from quorate.client.queue import QUEUE_EVENTS
from quorate.client.session import ClusterLike, IdentityLike, Session
from quorate.core.cluster import Cluster
from quorate.core.errors import ClosedError
from quorate.core.event import Event
from quorate.runtime.loop import loop_factory

READ_AHEAD = 1000

_Client = TypeVar("_Client", bound=Session)
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


def _blocking(
    method: Callable[Concatenate[Any, _Arguments], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate["_Blocking[Any]", _Arguments], _Result]:
    """A method of a client for programs without an event loop: it returns when that one is done."""

    @wraps(method)
    def call(
        self: "_Blocking[Any]", /, *given: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Result:
        return self._call(method(self._client, *given, **named))

    return call


class _Blocking(Generic[_Client]):
    """A client, the thread in which it lives, and the way to call it from outside."""

    def __init__(self, make: Callable[[], _Client]) -> None:
        self._thread = _LoopThread(f"quorate {type(self).__name__}")
        self._closed = False
        try:
            self._client = self._thread.call(_started(make))
        except BaseException:
            self._thread.stop()
            raise

    @property
    def cluster(self) -> Cluster:
        return self._client.cluster

    reach = _blocking(Session.reach)

    def close(self) -> None:
        """Disconnect and end the thread. Whoever still waits in another thread is told."""
        self._close(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            closing.close()
            return
        self._closed = True
        try:
            self._thread.call(closing)
        finally:
            self._thread.stop()

    def _call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        if self._closed:
            coroutine.close()
            raise ClosedError(f"this {type(self).__name__} is closed")
        try:
            return self._thread.call(coroutine)
        except concurrent.futures.CancelledError:
            raise ClosedError(f"this {type(self).__name__} was closed by another thread") from None


class BlockingProducer(_Blocking[Producer]):
    """Publishes to any number of topics of one cluster, and waits for each receipt."""

    def __init__(
        self,
        cluster: ClusterLike,
        identity: IdentityLike,
        *,
        compression: str = "none",
        timeout_s: float = 30.0,
    ) -> None:
        super().__init__(
            lambda: Producer(cluster, identity, compression=compression, timeout_s=timeout_s)
        )

    register = _blocking(Producer.register)
    unregister = _blocking(Producer.unregister)
    update_topology = _blocking(Producer.update_topology)
    send = _blocking(Producer.send)
    send_values = _blocking(Producer.send_values)
    send_table = _blocking(Producer.send_table)
    flush = _blocking(Producer.flush)

    def send_batch(
        self, topic: str, events: Iterable[Event], *, partition: int | None = None
    ) -> Receipt:
        """Publish these events as one batch, which is far quicker than one by one."""
        return self._call(self._client.send_batch(topic, list(events), partition=partition))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whoever presses Ctrl-C has waited long enough for the receipts that are missing.
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._close(self._client.close(flush=not interrupted))


class BlockingConsumer(_Blocking[Consumer]):
    """Subscribes to any number of topics of one cluster.

    `poll`, `poll_many` and iteration read a little ahead and share what they read;
    `poll_table` does not see that, so use either the ones or the other. What was read ahead when
    `update_topology` is called comes first, as it was read: `Record.validated` says how.
    """

    def __init__(
        self,
        cluster: ClusterLike,
        identity: IdentityLike,
        *,
        group: str | None = None,
        auto_commit_s: float | None = AUTO_COMMIT_S,
        queue_events: int = QUEUE_EVENTS,
    ) -> None:
        self._ahead: deque[Record] = deque()
        # What a group's member has read ahead would count as read.
        self._read_ahead_events = READ_AHEAD if group is None else 1
        super().__init__(
            lambda: Consumer(
                cluster,
                identity,
                group=group,
                auto_commit_s=auto_commit_s,
                queue_events=queue_events,
            )
        )

    unsubscribe = _blocking(Consumer.unsubscribe)
    update_topology = _blocking(Consumer.update_topology)
    commit = _blocking(Consumer.commit)
    poll_table = _blocking(Consumer.poll_table)

    def subscribe(
        self,
        topics: Iterable[str],
        *,
        key_prefix: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        start: Start = "end",
    ) -> None:
        """Subscribe, and wait until it is in force: what is published from now on will come.

        Log topics are read from `start` on: "begin", "end", an offset, or a time.
        """
        self._call(self._subscribe(topics, key_prefix, headers, start))

    def seek(self, topic: str, partition: int, start: Start) -> None:
        """Go on with a partition of a log topic from there. What was read ahead is dropped."""
        kept = [r for r in self._ahead if (r.topic, r.partition) != (topic, partition)]
        self._ahead = deque(kept)
        self._call(self._seek(topic, partition, start))

    def committed(self, topic: str, partition: int) -> Committed | None:
        """What was committed last of a partition of this member, if anything was."""
        return self._client.committed(topic, partition)

    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are this member's of its group now."""
        return self._client.assignment()

    def poll(self, timeout_s: float | None = None) -> Record | None:
        """The next record, or None if there is none within the time."""
        return next(iter(self.poll_many(1, timeout_s)), None)

    def poll_many(self, count: int, timeout_s: float | None = None) -> list[Record]:
        """Up to so many records: those that are here, or the first to come."""
        if not self._ahead:
            self._call(self._read_ahead(count, timeout_s))
        found: list[Record] = []
        while self._ahead and len(found) < count:
            found.append(self._ahead.popleft())
        return found

    def __iter__(self) -> Iterator[Record]:
        while True:
            # A time-out would say that there is no record; without one, there is.
            yield from self.poll_many(1)

    async def _subscribe(
        self,
        topics: Iterable[str],
        key_prefix: bytes,
        headers: Mapping[str, bytes] | None,
        start: Start,
    ) -> None:
        self._client.subscribe(topics, key_prefix=key_prefix, headers=headers, start=start)
        await self._client.subscribed()

    async def _seek(self, topic: str, partition: int, start: Start) -> None:
        self._client.seek(topic, partition, start)
        await self._client.subscribed()

    async def _read_ahead(self, count: int, timeout_s: float | None) -> None:
        # The records are put where the next call finds them. If they were returned, those that
        # arrive in the moment of a Ctrl-C would be lost.
        self._ahead.extend(
            await self._client.poll_many(max(count, self._read_ahead_events), timeout_s)
        )


class BlockingProver(_Blocking[Prover]):
    """Makes proofs of what stands in Byzantine log topics of one cluster."""

    def __init__(self, cluster: ClusterLike, identity: IdentityLike) -> None:
        super().__init__(lambda: Prover(cluster, identity))

    prove = _blocking(Prover.prove)


class _LoopThread:
    """An event loop that runs in a thread of its own until it is stopped."""

    def __init__(self, name: str) -> None:
        make = loop_factory() or asyncio.new_event_loop
        self._loop: asyncio.AbstractEventLoop = make()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            # On Ctrl-C nobody waits any longer; if it is done, this does nothing.
            future.cancel()
            raise

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _started(make: Callable[[], _Client]) -> _Client:
    client = make()
    await client.start()
    return client


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
