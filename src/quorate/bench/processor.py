"""Processor time, user and system together, of the processes that take part in an experiment."""

import resource
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psutil import Process

# Instead of a pid, for all that have ended.
ENDED = 0


def processor_s() -> dict[int, float]:
    """What each process that this one started, directly or not, has spent so far, by its pid."""
    import psutil

    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = {ENDED: ended.ru_utime + ended.ru_stime}
    for process in psutil.Process().children(recursive=True):
        # It may have ended since it was listed.
        with suppress(psutil.NoSuchProcess, OSError):
            spent_s[process.pid] = _spent_s(process)
    return spent_s


def spent_since(before_s: Mapping[int, float]) -> dict[int, float]:
    """What each has spent since then; the sum is right even if some of them ended meanwhile."""
    now_s = processor_s()
    pids = {*before_s, *now_s}
    return {pid: now_s.get(pid, 0.0) - before_s.get(pid, 0.0) for pid in pids}


def _spent_s(process: "Process") -> float:
    """Its own time, and that of all that it started and that have ended."""
    times = process.cpu_times()
    own_s = times.user + times.system
    if sys.platform == "linux":
        # Its own clock, as clock_getcpuclockid(3) finds it: /proc counts in steps of 10 ms.
        own_s = time.clock_gettime(~process.pid << 3 | 2)
    return float(own_s + times.children_user + times.children_system)
