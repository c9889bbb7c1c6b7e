"""A processor with one state for each key, and one timer that wakes that up."""

from abc import abstractmethod
from collections.abc import Iterator
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


class Waking(StatefulProcessor, Generic[StateT]):
    """Goes on with the state of a key when there are rows for it, and when its time has come.

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

    def handleInputRows(  # noqa: N802
        self,
        key: tuple[Any, ...],
        rows: Iterator[pandas.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pandas.DataFrame]:
        return self._go_on(key, pandas.concat(list(rows)), timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: tuple[Any, ...],
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[pandas.DataFrame]:
        return self._go_on(key, None, timerValues)

    def close(self) -> None:
        pass

    def _go_on(
        self, key: tuple[Any, ...], rows: pandas.DataFrame | None, time: TimerValues
    ) -> Iterator[pandas.DataFrame]:
        kept = self._kept.get()
        state, timer_ms = self._kind(), None
        if kept is not None:
            state, timer_ms = msgspec.msgpack.decode(kept[0], type=self._kind), kept[1]
        found, next_us = self.go_on(key, state, rows, time.getCurrentWatermarkInMs() * 1000)
        self._write(state, next_us, timer_ms)
        if found:
            yield pandas.DataFrame(found)

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
