"""What time it is, where clocks may be wrong and replicas may lie about theirs.

A decision carries a time, which becomes the time of its batches. Replicas tell each other what
their clocks say. Of f + 1 clocks that are furthest ahead, one belongs to a correct replica: a clock
that is wrong, ours or another's, moves the log no further than that.
"""

from collections.abc import Callable

from quorate.core.ids import NodeId
from quorate.protocol.outbox import Outbox

# A value's time may be so far ahead of what we take for the time of day.
CLOCK_AHEAD_US_MAX = 60_000_000

# The time of day in microseconds, at this time of the machine's clock.
WallClock = Callable[[int], int]


class Clocks:
    """Our clock, and those of the others as far as we heard of them."""

    def __init__(self, me: NodeId, one_correct: int, wall_us: WallClock, outbox: Outbox) -> None:
        self._me = me
        self._one_correct = one_correct
        self._wall_us = wall_us
        self._outbox = outbox
        # How far each replica's time of day is from our machine's clock.
        self._heard: dict[NodeId, int] = {}

    def hear(self, replica: NodeId, clock_us: int) -> None:
        self._heard[replica] = clock_us - self._outbox.now_us

    def own_us(self) -> int:
        """What our own clock says."""
        return self._wall_us(self._outbox.now_us)

    @property
    def is_sure(self) -> bool:
        """Whether we have heard of so many clocks that one of them is a correct replica's."""
        return len(self._heard) + 1 >= self._one_correct

    def time_of_day_us(self) -> int:
        """What at least one correct replica takes for the time of day, or less."""
        now_us = self._outbox.now_us
        clocks = [self._wall_us(now_us), *(now_us + offset for offset in self._heard.values())]
        clocks.sort(reverse=True)
        return clocks[min(self._one_correct, len(clocks)) - 1]

    def ahead_us(self) -> dict[NodeId, int]:
        """By how much our clock, and those that we heard of, differ from that."""
        now_us, time_us = self._outbox.now_us, self.time_of_day_us()
        heard = {node: now_us + offset - time_us for node, offset in self._heard.items()}
        return {self._me: self._wall_us(now_us) - time_us, **heard}

    def next_us(self, log_us: int) -> int:
        """The time to propose, in a log that has come to this time; it does not go back.

        After a restart we know no clock but our own, which may be wrong: the log's time stands
        still until we have heard of others. Only a log that has no time yet takes any.
        """
        is_wise = self.is_sure or not log_us
        return max(log_us, self.time_of_day_us()) if is_wise else log_us

    def allow(self, time_us: int, log_us: int) -> bool:
        """Whether a log that has come to one time may go on at another.

        Its time may always stand still, whatever became of our clocks.
        """
        return log_us <= time_us <= max(log_us, self.time_of_day_us() + CLOCK_AHEAD_US_MAX)
