"""Who has fallen silent: an alert when a host was not heard from for too long, and an all-clear.

Source: the messaging-gateway thesis, section 4.2.5: "We can detect the failure of either a host or
just its messaging gateway by the absence of messages, especially of those that are to arrive
regularly."

A host is silent when nothing was heard from it for longer than a limit of some periods. When it was
heard is told by the brokers' clocks and never by its own, so that a wrong clock on a host raises no
alarm, and a limit of several periods is why single lost heartbeats raise none.

Time is event time: the watermark, which trails the latest time that was heard by what messages may
overtake each other. Processing time would not do. Whoever reads a backlog (after a restart, or over
a day that is archived) would measure how fast it reads, would miss outages and would make up
others; here, what comes out depends on what was published alone, however it is cut into
micro-batches. But a watermark stands still when nothing arrives, which is when alerts matter most:
so the job is a host too: it publishes a heartbeat of its own on the same topic (`ticks` in
`jobs/monitor.py`), which moves time on when all others are silent. Should not even that get
through, then no alert could either, for it goes by the same replicas.

Heartbeats that the watermark has not reached are kept aside, since one before them may yet come; in
the order of their times they are judged when it has. A state has one row per host that was heard
within `forget_ms`, and in it the times between the watermark and the latest one. Who was never
heard is not missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pyspark.sql import Row

from quorate.pipeline.jobs.waking import Woken

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

CHANGES: Final = "host string, kind string, since_ms bigint, at_ms bigint"
_STATE: Final = "last_ms bigint, is_silent boolean, timer_ms bigint, ahead_ms array<bigint>"


class Limits(NamedTuple):
    """After how long without a word a host counts as silent, and after how long it is forgotten."""

    silent_ms: int
    forget_ms: int


class Change(NamedTuple):
    """What became of a host that was last heard at `since_ms`.

    `silent`: the limit passed at `at_ms`. `back`: it was heard again then. `forgotten`: it stays
    silent, there will be no all-clear, and should it come back it is a new host.
    """

    kind: Literal["silent", "back", "forgotten"]
    since_ms: int
    at_ms: int


@dataclass(slots=True)
class Watch:
    """What is known of one host."""

    # When it was last heard, as far as the watermark has come.
    last_ms: int | None = None
    is_silent: bool = False
    # When it was heard beyond the watermark.
    ahead_ms: list[int] = field(default_factory=list)

    def hear(self, times_ms: Iterable[int]) -> None:
        self.ahead_ms = sorted({*self.ahead_ms, *times_ms})

    def advance(self, watermark_ms: int, limits: Limits) -> list[Change]:
        """Nothing before the watermark can come any more: what does that say?"""
        changes: list[Change] = []
        while self.ahead_ms and self.ahead_ms[0] <= watermark_ms:
            heard_ms = self.ahead_ms.pop(0)
            changes += self._judge(heard_ms, limits)
            if self.is_silent and self.last_ms is not None:
                self.is_silent = False
                changes.append(Change("back", self.last_ms, heard_ms))
            self.last_ms = heard_ms
        return changes + self._judge(watermark_ms, limits)

    def wakes_ms(self, limits: Limits) -> int:
        """The watermark at which there is something to say, if nothing is heard until then."""
        if self.last_ms is None or (self.is_silent and self.ahead_ms):
            return self.ahead_ms[0]
        return self.last_ms + (limits.forget_ms if self.is_silent else limits.silent_ms) + 1

    def _judge(self, now_ms: int, limits: Limits) -> list[Change]:
        """Nothing was heard between the last time and now."""
        changes: list[Change] = []
        if self.last_ms is None:
            return changes
        silence_ms = now_ms - self.last_ms
        if not self.is_silent and silence_ms > limits.silent_ms:
            self.is_silent = True
            at_ms = self.last_ms + limits.silent_ms
            changes.append(Change("silent", self.last_ms, at_ms))
        if self.is_silent and silence_ms > limits.forget_ms:
            self.is_silent = False
            at_ms = self.last_ms + limits.forget_ms
            changes.append(Change("forgotten", self.last_ms, at_ms))
            self.last_ms = None
        return changes


class Silences(Woken):
    """From the times when each host was heard (`heard_ms`) to what becomes of it (`CHANGES`)."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("watch", _STATE)

    def on_turn(self, key: Any, rows: Iterator[Row] | None, time: TimerValues) -> list[Row]:
        watch, timer_ms = self._load()
        if rows is None:
            timer_ms = None
        else:
            watch.hear(row.heard_ms for row in rows)
        changes = watch.advance(time.getCurrentWatermarkInMs(), self._limits)
        self._keep(watch, timer_ms)
        return [Row(host=key[0], **change._asdict()) for change in changes]

    def _load(self) -> tuple[Watch, int | None]:
        state = self._state.get()
        if state is None:
            return Watch(), None
        last_ms, is_silent, timer_ms, ahead_ms = state
        return Watch(last_ms, is_silent, list(ahead_ms)), timer_ms

    def _keep(self, watch: Watch, timer_ms: int | None) -> None:
        if watch.last_ms is None and not watch.ahead_ms:
            self._state.clear()
            return
        wakes_ms = watch.wakes_ms(self._limits)
        # A timer that is too early finds nothing to say and sets the next one, which costs less
        # than to set it anew with every heartbeat.
        if timer_ms is None or wakes_ms < timer_ms:
            if timer_ms is not None:
                self._handle.deleteTimer(timer_ms)
            self._handle.registerTimer(wakes_ms)
            timer_ms = wakes_ms
        self._state.update((watch.last_ms, watch.is_silent, timer_ms, watch.ahead_ms))
