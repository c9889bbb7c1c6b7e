"""How many replicas it takes.

With n replicas of which at most f are faulty, each threshold below says what hearing from
that many distinct replicas proves. `tests/core/test_quorum.py` holds every formula against
a naive oracle that enumerates all fault sets.
"""

from dataclasses import dataclass

from quorate.core.errors import ContractError


@dataclass(frozen=True, slots=True)
class Quorum:
    """The thresholds of a group of n replicas that tolerates f faulty ones."""

    n: int
    f: int

    def __post_init__(self) -> None:
        if self.f < 0 or self.n < 1:
            raise ContractError(f"a group of {self.n} replicas with f = {self.f} cannot exist")

    @property
    def one_correct(self) -> int:
        """f + 1: at least one of them is correct."""
        return self.f + 1

    @property
    def reachable(self) -> int:
        """n - f: as many as one may wait for, since f may never answer."""
        return self.n - self.f

    @property
    def majority_correct(self) -> int:
        """2f + 1: at least f + 1 of them are correct."""
        return 2 * self.f + 1

    @property
    def intersecting(self) -> int:
        """⌈(n + f + 1) / 2⌉: any two such sets share a correct replica."""
        return (self.n + self.f + 2) // 2
