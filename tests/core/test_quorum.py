"""Quorum arithmetic next to an oracle that enumerates all fault sets."""

from collections.abc import Callable
from itertools import combinations

import pytest

from quorate.core.errors import ContractError
from quorate.core.quorum import Quorum

GROUPS = [(n, f) for n in range(1, 11) for f in range(n)]
WHOLE_GROUPS = pytest.mark.parametrize(("n", "f"), GROUPS)


def sets(n: int, size: int) -> list[frozenset[int]]:
    return [frozenset(chosen) for chosen in combinations(range(n), size)]


def fault_sets(n: int, f: int) -> list[frozenset[int]]:
    """Every way in which at most f of n replicas are faulty."""
    return [faulty for size in range(f + 1) for faulty in sets(n, size)]


def smallest(n: int, proves: Callable[[frozenset[int]], bool]) -> int | None:
    """How many replicas it takes until what they say proves something, whoever they are.

    Renaming replicas changes nothing, so one set of each size stands for all of that size as
    long as all fault sets are tried against it.
    """
    sizes = (size for size in range(1, n + 1) if proves(frozenset(range(size))))
    return next(sizes, None)


@WHOLE_GROUPS
def test_one_correct_is_the_least_that_always_holds_a_correct_replica(n: int, f: int) -> None:
    faults = fault_sets(n, f)

    assert Quorum(n, f).one_correct == smallest(n, lambda who: all(who - bad for bad in faults))


@WHOLE_GROUPS
def test_reachable_is_what_is_left_whatever_fails(n: int, f: int) -> None:
    everyone = frozenset(range(n))

    assert Quorum(n, f).reachable == min(len(everyone - bad) for bad in fault_sets(n, f))


@WHOLE_GROUPS
def test_majority_correct_is_the_least_that_always_holds_more_correct_than_faulty(
    n: int, f: int
) -> None:
    faults = fault_sets(n, f)
    least = smallest(n, lambda who: all(len(who - bad) > len(who & bad) for bad in faults))

    # Where the group is too small for it, the threshold cannot be met.
    threshold = Quorum(n, f).majority_correct
    assert threshold == least if least is not None else threshold > n


@WHOLE_GROUPS
def test_intersecting_is_the_least_of_which_any_two_share_a_correct_replica(n: int, f: int) -> None:
    faults = sets(n, f)

    def proves(who: frozenset[int]) -> bool:
        # The worst fault sets are the largest, and every other set meets `who` in some way.
        others = sets(n, len(who))
        return all((who & other) - bad for other in others for bad in faults)

    assert Quorum(n, f).intersecting == smallest(n, proves)


@WHOLE_GROUPS
def test_a_group_of_3f_plus_1_can_always_reach_its_quorums(n: int, f: int) -> None:
    quorum = Quorum(n, f)

    assert (quorum.reachable >= quorum.intersecting) == (n >= 3 * f + 1)
    assert (quorum.reachable >= quorum.majority_correct) == (n >= 3 * f + 1)
    assert (quorum.reachable >= quorum.one_correct) == (n >= 2 * f + 1)


@pytest.mark.parametrize(("n", "f"), [(0, 0), (-1, 0), (4, -1)])
def test_a_group_that_cannot_exist_is_refused(n: int, f: int) -> None:
    with pytest.raises(ContractError, match="cannot exist"):
        Quorum(n, f)
