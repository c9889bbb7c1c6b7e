"""Room that members share: whoever fills up its own part takes nothing from the others."""

from hypothesis import given
from hypothesis import strategies as st

from quorate.core.ids import node_of
from quorate.protocol.budget import Budget

ALICE, MALLORY = node_of(1000, 1), node_of(1001, 1)


def test_one_member_alone_leaves_room_for_another() -> None:
    budget = Budget(100)
    while budget.has_room(MALLORY, 10):
        budget.take(MALLORY, 10)

    assert budget.held_by(MALLORY) == 50
    assert budget.has_room(ALICE, 50)


def test_sessions_of_one_member_share_its_part() -> None:
    budget = Budget(100)
    for session in range(64):
        each = node_of(1001, session)
        if budget.has_room(each, 10):
            budget.take(each, 10)

    assert budget.held_bytes == 50


def test_what_is_larger_than_a_part_has_room_alone() -> None:
    budget = Budget(100)
    assert budget.has_room(ALICE, 80)
    budget.take(ALICE, 80)
    assert not budget.has_room(ALICE, 1)


def test_parts_shrink_with_every_member_that_holds_something_and_grow_again() -> None:
    budget = Budget(120)
    for member in range(1000, 1004):
        budget.take(node_of(member, 7), 1)
    assert budget.part_bytes == 30

    budget.give_back(node_of(1000, 7), 1)
    assert budget.part_bytes == 40


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=60))
def test_members_that_ask_first_never_hold_more_than_a_part_and_one_last_piece(
    asks: list[tuple[int, int]],
) -> None:
    budget, held = Budget(100), [0] * 4
    for member, size in asks:
        if budget.has_room(member, size):
            budget.take(member, size)
            held[member] += size
        else:
            budget.give_back(member, held[member])
            held[member] = 0

    assert budget.held_bytes == sum(held)
    assert all(budget.held_by(member) == each <= 50 for member, each in enumerate(held))
