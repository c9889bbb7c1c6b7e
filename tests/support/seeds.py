"""How many seeds of the simulator a test run has.

`QUORATE_CAMPAIGN=20 ./quorate test tests/sim` runs twenty times as many (CONTRIBUTING.md).
"""

import os
from collections.abc import Iterable

from quorate.sim.campaign import Summary, run_seeds
from quorate.sim.scenarios import Setting


def chunks(seeds: int, size: int) -> list[range]:
    """So many seeds, times `QUORATE_CAMPAIGN`, in chunks for the workers of a parallel run."""
    end = seeds * int(os.environ.get("QUORATE_CAMPAIGN", "1"))
    return [range(first, min(first + size, end)) for first in range(0, end, size)]


def campaign(setting: Setting, seeds: Iterable[int], *, jobs: int = 1) -> Summary:
    """What many seeds of one setting add up to."""
    summary = Summary(setting)
    for verdict in run_seeds(setting, seeds, jobs=jobs):
        summary.add(verdict)
    return summary
