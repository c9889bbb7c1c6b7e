"""The state of a key, and the one timer that wakes it up."""

from typing import Generic, TypeVar

import msgspec
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

StateT = TypeVar("StateT")


class Waking(Generic[StateT]):
    """What a stateful processor keeps of the key that it works on.

    State and timer are one value, since each read and write is a round trip to the JVM. A state
    that waits for nothing is new again, so it is not kept.
    """

    def __init__(self, handle: StatefulProcessorHandle, name: str, kind: type[StateT]) -> None:
        self._handle = handle
        self._kind = kind
        self._kept = handle.getValueState(name, f"{name} binary, timer bigint")

    def read(self) -> tuple[StateT, int | None]:
        """The state, and when its timer is due."""
        kept = self._kept.get()
        if kept is None:
            return self._kind(), None
        written, timer_ms = kept
        return msgspec.msgpack.decode(written, type=self._kind), timer_ms

    def write(self, state: StateT, next_us: int | None, old_timer_ms: int | None) -> None:
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
