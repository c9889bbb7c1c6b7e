"""Progress over time: how much happened in each small piece of it, and where nothing did."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Gap(NamedTuple):
    """A time in which nothing happened."""

    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e9


def longest_gap(times_ns: Sequence[int], began_ns: int, ended_ns: int) -> Gap:
    """The longest time without any of these that begins in here, even if it ends later.

    The beginning counts as one of them, and so does the end if nothing came after it.
    """
    later = [at for at in times_ns if at > began_ns]
    beginnings = [began_ns, *(at for at in later if at < ended_ns)]
    behind = next((at for at in later if at >= ended_ns), ended_ns)
    return max(
        (Gap(*pair) for pair in pairwise([*beginnings, behind])), key=lambda gap: gap.seconds
    )


def binned(times_ns: Sequence[int], began_ns: int, ended_ns: int, bin_ns: int) -> list[int]:
    """How many of these times are in each bin; the last one may be shorter."""
    counts = [0] * max(1, -(-(ended_ns - began_ns) // bin_ns))
    for at in times_ns:
        if began_ns <= at < ended_ns:
            counts[(at - began_ns) // bin_ns] += 1
    return counts
