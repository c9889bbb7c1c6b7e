"""Processors that Spark wakes up, and one with one state and one timer for each key."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
import pandas
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

StateT = TypeVar("StateT")


class Woken(StatefulProcessor):
    """Goes on with a key when there are rows for it, and when its time has come."""

    @abstractmethod
    def on_turn(
        self, key: tuple[Any, ...], rows: Iterator[Any] | None, time: TimerValues
    ) -> Iterable[Any]:
        """What comes out; without rows, a timer is due."""

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[Any, ...],
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Any]:
        return iter(self.on_turn(key, rows, timerValues))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[Any, ...],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        return iter(self.on_turn(key, None, timerValues))

    def close(self) -> None:
        """There is nothing to release."""


class Waking(Woken, Generic[StateT]):
    """Keeps one state for each key, and wakes up when that has something to do by itself.

    State and timer are one value, since each read and write is a round trip to the JVM. A state
    that waits for nothing is new again, so it is not kept.
    """

    def __init__(self, name: str, kind: type[StateT]) -> None:
        self._name, self._kind = name, kind

    @abstractmethod
    def go_on(
        self, key: tuple[Any, ...], state: StateT, rows: pandas.DataFrame | None, until_us: int
    ) -> tuple[list[dict[str, object]], int | None]:
        """What comes out now that nothing is to come up to this time, and when to wake up next."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._kept = handle.getValueState(self._name, f"{self._name} binary, timer bigint")

    def on_turn(
        self, key: tuple[Any, ...], rows: Iterator[Any] | None, time: TimerValues
    ) -> Iterable[Any]:
        kept = self._kept.get()
        state, timer_ms = self._kind(), None
        if kept is not None:
            state, timer_ms = msgspec.msgpack.decode(kept[0], type=self._kind), kept[1]
        together = None if rows is None else pandas.concat(list(rows))
        found, next_us = self.go_on(key, state, together, time.getCurrentWatermarkInMs() * 1000)
        self._write(state, next_us, timer_ms)
        return [pandas.DataFrame(found)] if found else []

    def _write(self, state: StateT, next_us: int | None, old_timer_ms: int | None) -> None:
        """Keep a state that waits until then, if it waits for anything."""
        # A timer is due when the watermark is beyond it, and not when it is there.
        timer_ms = None if next_us is None else -(-next_us // 1000) - 1
        if timer_ms != old_timer_ms:
            if old_timer_ms is not None:
                self._handle.deleteTimer(old_timer_ms)
            if timer_ms is not None:
                self._handle.registerTimer(timer_ms)
        if timer_ms is None:
            self._kept.clear()
        else:
            self._kept.update((msgspec.msgpack.encode(state), timer_ms))
