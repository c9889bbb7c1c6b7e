"""What all traffic has: flows that publish, readings that collect, and somebody who waits.

Whoever waits, waits for something that must happen, and fails at a deadline, or as soon as one
of the tasks that would bring it about has failed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType

from quorate.client import Consumer, Producer

PATIENCE_S = 30.0


class Flows:
    """Some producers and consumers in this process, and the tasks that use them.

    Clients are entered into the `_stack`; whatever changes what somebody may wait for sets
    `_changed`.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._stack = AsyncExitStack()
        self._flows: list[asyncio.Task[None]] = []
        self._readings: list[asyncio.Task[None]] = []

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = (*self._flows, *self._readings)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for producer in self._all_producers():
            await producer.close(flush=kind is None)
        await self._stack.aclose()

    def reports(self) -> Counter[str]:
        """What all clients say about replicas, as 'r1: forgery'."""
        total: Counter[str] = Counter()
        for client in (*self._all_producers(), *self._all_consumers()):
            total.update(client.reports)
        return total

    def _all_producers(self) -> Iterable[Producer]:
        raise NotImplementedError

    def _all_consumers(self) -> Iterable[Consumer]:
        raise NotImplementedError

    async def _end_flows(self) -> None:
        for flow in self._flows:
            flow.cancel()
        await asyncio.gather(*self._flows, return_exceptions=True)

    async def _within(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._until(condition)
        except TimeoutError:
            raise AssertionError(f"nothing of the kind within {PATIENCE_S:g} s: {self}") from None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._fail_early()
            self._changed.clear()
            await self._changed.wait()

    def _fail_early(self) -> None:
        """A flow that has failed will bring nothing about."""
        raise_failures(self._flows)


def raise_failures(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
