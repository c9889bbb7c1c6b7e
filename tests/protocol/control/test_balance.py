"""Shares are even, nothing moves without need, and the same arguments give the same shares."""

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from quorate.core.ids import NodeId
from quorate.protocol.control.balance import Owners, balance

Before = dict[str, list[NodeId | None]]

TOPICS = ("a", "b", "c")
members = st.lists(st.integers(1, 9), max_size=5, unique=True)


@st.composite
def groups(draw: st.DrawFn, *, partitions_max: int = 7) -> tuple[dict[NodeId, list[str]], Before]:
    """Members with subscriptions of their own, and what everybody, or somebody gone, had."""
    topics = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3, unique=True)
    subscriptions = {node: draw(topics) for node in draw(members)}
    owner = st.none() | st.integers(1, 9)
    before = {topic: draw(st.lists(owner, min_size=1, max_size=partitions_max)) for topic in TOPICS}
    return subscriptions, before


def loads(owners: Owners) -> Counter[NodeId | None]:
    return Counter(owner for row in owners.values() for owner in row)


def moved(before: Before, after: Owners) -> int:
    pairs = ((b, a) for topic in before for b, a in zip(before[topic], after[topic], strict=True))
    return sum(b is not None and b != a for b, a in pairs)


@given(groups())
def test_every_partition_goes_to_one_member_that_subscribed(
    group: tuple[dict[NodeId, list[str]], Before],
) -> None:
    subscriptions, before = group
    after = balance(subscriptions, before)

    for topic, owners in after.items():
        allowed = [node for node, topics in subscriptions.items() if topic in topics]
        assert len(owners) == len(before[topic])
        assert all(owner in allowed if allowed else owner is None for owner in owners)


@given(groups())
def test_members_with_equal_subscriptions_differ_by_one_at_most(
    group: tuple[dict[NodeId, list[str]], Before],
) -> None:
    subscriptions, before = group
    shares = loads(balance(subscriptions, before))

    for one, other in product(subscriptions, repeat=2):
        if set(subscriptions[one]) == set(subscriptions[other]):
            assert abs(shares[one] - shares[other]) <= 1


@given(groups(partitions_max=2))
def test_shares_are_as_even_as_subscriptions_allow(
    group: tuple[dict[NodeId, list[str]], Before],
) -> None:
    subscriptions, before = group
    shares = loads(balance(subscriptions, before))
    del shares[None]

    # The oracle tries everything.
    allowed = [
        [node for node, topics in subscriptions.items() if topic in topics]
        for topic, owners in before.items()
        for _ in owners
    ]
    choices = product(*(nodes for nodes in allowed if nodes))
    least = min(sum(n * n for n in Counter(choice).values()) for choice in choices)
    assert sum(n * n for n in shares.values()) == least


@given(members.filter(bool), st.data())
def test_no_even_assignment_moves_less_where_subscriptions_are_equal(
    nodes: list[NodeId], data: st.DataObject
) -> None:
    row = data.draw(st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=5))
    before: Before = {"a": row}
    after = balance(dict.fromkeys(nodes, ("a",)), before)

    def is_even(owners: tuple[NodeId, ...]) -> bool:
        shares = Counter(owners)
        return max(shares[node] for node in nodes) - min(shares[node] for node in nodes) <= 1

    even = (owners for owners in product(nodes, repeat=len(row)) if is_even(owners))
    assert moved(before, after) == min(moved(before, {"a": list(owners)}) for owners in even)


@given(groups())
def test_what_is_balanced_stays_as_it_is(group: tuple[dict[NodeId, list[str]], Before]) -> None:
    subscriptions, before = group
    after = balance(subscriptions, before)
    assert balance(subscriptions, after) == after


def test_a_partition_is_passed_on_along_a_chain() -> None:
    # One has all of a, two shares a with one and has b, three shares b with two and has nothing.
    subscriptions = {1: ["a"], 2: ["a", "b"], 3: ["b"]}
    after = balance(subscriptions, {"a": [1, 1, 1], "b": [2, 2, 2]})
    assert [loads(after)[node] for node in (1, 2, 3)] == [2, 2, 2]


def test_two_of_the_largest_groups_are_balanced_by_counting() -> None:
    nodes = range(256)
    owners = balance(dict.fromkeys(nodes, ("a", "b")), {"a": [0] * 4096, "b": [None] * 4096})
    assert set(loads(owners).values()) == {32}
