"""Connections that outlive a task: Spark starts thousands of tasks in a few Python processes.

To connect takes longer than to read a small stretch, so a process keeps what it has connected
to, and tasks that run in it one after the other share that.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from quorate.client.ranges import RangeReader
from quorate.runtime.loop import loop_factory

_Result = TypeVar("_Result")


class Connection:
    """A reader of one cluster, and the thread in which it lives."""

    def __init__(self, cluster: str, identity: str) -> None:
        make = loop_factory() or asyncio.new_event_loop
        self._loop: asyncio.AbstractEventLoop = make()
        thread = threading.Thread(target=self._loop.run_forever, name="quorate reader", daemon=True)
        thread.start()
        self.reader = self.call(_started(cluster, identity))

    def call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[_Result]) -> Iterator[_Result]:
        """What this brings, one by one; whoever stops early ends it."""
        try:
            while True:
                try:
                    yield self.call(anext(items))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            self.call(_ended(items))

    def close(self) -> None:
        self.call(self.reader.close())


async def _started(cluster: str, identity: str) -> RangeReader:
    reader = RangeReader(cluster, identity)
    await reader.start()
    return reader


async def _ended(items: AsyncIterator[Any]) -> None:
    await items.aclose()  # type: ignore[attr-defined]


_connections: dict[tuple[int, str, str], Connection] = {}


def connection(cluster: str, identity: str) -> Connection:
    """The one of this process. A process that was forked has none of its parent's."""
    key = os.getpid(), cluster, identity
    known = _connections.get(key)
    if known is None:
        known = _connections[key] = Connection(cluster, identity)
        atexit.register(known.close)
    return known
