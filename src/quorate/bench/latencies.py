"""What many latencies, or a few figures, come to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

QUANTILES = 100


@dataclass(frozen=True, slots=True)
class Latencies:
    """Mean, standard deviation and percentiles; all of them 0 when nothing was measured.

    `quantiles_ms` are the percentiles 0 to 100, which is the whole distribution for a plot.
    """

    mean_ms: float
    deviation_ms: float
    p50_ms: float
    p99_ms: float
    quantiles_ms: list[float]

    @property
    def figures(self) -> dict[str, Any]:
        """All but the distribution, as rows have them."""
        names = ("p50_ms", "p99_ms", "mean_ms", "deviation_ms")
        return {name: getattr(self, name) for name in names}


def summarise(samples_ns: Sequence[int]) -> Latencies:
    if not samples_ns:
        return Latencies(0.0, 0.0, 0.0, 0.0, [])
    ordered = sorted(samples_ns)
    mean = fmean(ordered)
    quantiles = [percentile(ordered, q) / 1e6 for q in range(QUANTILES + 1)]
    return Latencies(
        mean_ms=mean / 1e6,
        deviation_ms=math.sqrt(fmean((sample - mean) ** 2 for sample in ordered)) / 1e6,
        p50_ms=quantiles[50],
        p99_ms=quantiles[99],
        quantiles_ms=quantiles,
    )


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest sample that at least so many per cent of all samples do not exceed."""
    if not ordered:
        return 0
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, the lowest and the highest."""

    middle: float
    lowest: float
    highest: float

    @staticmethod
    def of(figures: list[float]) -> "Spread":
        return Spread(median(figures), min(figures), max(figures))

    def __format__(self, form: str) -> str:
        return f"{self.middle:{form}} ({self.range(form)})"

    def range(self, form: str) -> str:
        return f"{self.lowest:{form}}..{self.highest:{form}}"

    def json(self) -> dict[str, float]:
        return {"median": self.middle, "lowest": self.lowest, "highest": self.highest}

    @property
    def lowered(self) -> "Spread":
        """By how much something lowers a figure, if these are ratios: 0.2 is a fifth."""
        return Spread(1 - self.middle, 1 - self.highest, 1 - self.lowest)
