"""What waits of a line: taken without gaps, held against its chain, and counted by who has it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.header import DESCRIPTOR_BYTES
from quorate.core.ordering import Line, Received, Stored
from quorate.crypto.digests import descriptor
from quorate.protocol.ordering import lines
from quorate.protocol.ordering.lines import Former, Waiting
from quorate.protocol.ordering.room import BATCH_COST, EVENT_COST, LINE_COST
from quorate.protocol.ordering.value import CHAIN_START, Span, chain_of
from stage import event

LINE = Line(1000, 7, 0)
ME = 0
# What a batch of one byte takes.
COST = BATCH_COST + EVENT_COST + len(event(b"1"))


def contents(*numbers: int, mark: str = "") -> list[bytes]:
    return [event(f"{mark}{number}".encode()) for number in numbers]


def descriptors_of(payloads: Sequence[bytes]) -> list[bytes]:
    return [*map(descriptor, payloads)]


def take(waiting: Waiting, first: int, payloads: list[bytes]) -> bool:
    return waiting.extend(first, descriptors_of(payloads), payloads)


def announced(waiting: Waiting, first: int, payloads: list[bytes]) -> bool:
    return waiting.extend(first, descriptors_of(payloads), [None] * len(payloads))


def line_with(*numbers: int) -> Waiting:
    waiting = Waiting(LINE)
    assert not take(waiting, 1, contents(*numbers))
    return waiting


def chain(*payloads: bytes) -> bytes:
    return chain_of(CHAIN_START, descriptors_of(payloads))[-1]


def span(first: int, payloads: list[bytes], before: bytes = CHAIN_START) -> Span:
    return Span(*LINE, first, len(payloads), chain_of(before, descriptors_of(payloads))[-1])


# Taking


def test_a_line_is_taken_in_its_order() -> None:
    waiting = line_with(1, 2)
    take(waiting, 3, contents(3))

    assert (waiting.next, waiting.end) == (1, 4)
    assert waiting.payloads == contents(1, 2, 3)
    assert waiting.chain_at(3) == chain(*contents(1, 2, 3))
    assert waiting.chain_at(0) == CHAIN_START
    assert waiting.chain_at(4) is None


def test_what_comes_behind_a_gap_is_not_taken() -> None:
    waiting = line_with(1)
    assert not take(waiting, 3, contents(3))
    assert waiting.end == 2


def test_what_is_known_already_is_not_taken_twice() -> None:
    waiting = line_with(1, 2)
    assert not take(waiting, 1, contents(1, 2, 3))
    assert waiting.payloads == contents(1, 2, 3)
    assert not take(waiting, 2, contents(2))
    assert waiting.end == 4


def test_a_publisher_that_contradicts_itself_is_noticed_and_changes_nothing() -> None:
    waiting = line_with(1, 2)
    assert take(waiting, 2, contents(9, 3))
    assert waiting.payloads == contents(1, 2)


def test_a_payload_that_comes_later_completes_its_digest() -> None:
    waiting = Waiting(LINE)
    announced(waiting, 1, contents(1, 2))
    assert waiting.payloads == [None, None]

    assert not take(waiting, 1, contents(1))

    assert waiting.payloads == [*contents(1), None]
    assert waiting.waiting_bytes == len(*contents(1))


def test_a_line_has_room_for_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WAITING_BATCHES_MAX", 2)
    waiting = line_with(1, 2)
    take(waiting, 3, contents(3))
    assert not waiting.has_room
    assert waiting.end == 3

    waiting.advance(1)
    take(waiting, 3, contents(3))
    assert waiting.end == 4


def test_a_line_has_room_for_so_many_bytes() -> None:
    waiting, room = line_with(1), 2 * COST - 1
    assert not waiting.extend(2, descriptors_of(contents(2, 3)), contents(2, 3), room)
    assert waiting.end == 3
    assert waiting.cost_bytes == LINE_COST + 2 * COST


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), max_size=12))
def test_however_runs_overlap_a_line_is_what_came_without_gaps(
    runs: list[tuple[int, int]],
) -> None:
    waiting, end = Waiting(LINE), 1
    for first, count in runs:
        assert not take(waiting, first, contents(*range(first, first + count)))
        if first <= end:
            end = max(end, first + count)
    assert waiting.payloads == contents(*range(1, end))
    assert waiting.chains == chain_of(CHAIN_START, descriptors_of(contents(*range(1, end))))


# Replacing


def test_what_others_vouch_for_takes_the_place_of_what_we_have() -> None:
    waiting = line_with(1, 2, 3)
    waiting.direct = 3
    other = contents(1, 2, mark="x")

    assert waiting.replace(span(1, other), descriptors_of(other), [other[0], None])

    assert waiting.descriptors == descriptors_of(other)
    assert waiting.payloads == [*contents(1, mark="x"), None]
    # What stood there was not this, so nobody gave us this ourselves.
    assert waiting.direct == 0
    assert waiting.waiting_bytes == len(*contents(1, mark="x"))


def test_what_lost_its_place_is_kept_until_its_numbers_are_decided() -> None:
    waiting = line_with(1, 2, 3)
    mine, other = contents(1, 2, 3), contents(1, mark="x")
    for _ in range(2):
        assert waiting.replace(span(1, other), descriptors_of(other), [None])
        assert waiting.former_of(span(1, mine)) == (descriptors_of(mine), mine)
        assert waiting.replace(span(1, mine), descriptors_of(mine), [None] * 3)
        assert waiting.payloads == mine
    assert len(waiting.former) == 2

    waiting.advance(1)
    assert waiting.former_of(span(2, mine[1:], before=chain(mine[0]))) is not None
    waiting.advance(2)
    assert (waiting.former, waiting.former_bytes) == ([], 0)


def test_what_loses_its_place_again_and_again_is_kept_once() -> None:
    """Of two that differ in their last batch only, while one batch after the other is decided."""
    mine = contents(*range(1, 10))
    other = [*mine[:-1], b"x"]
    waiting, before = line_with(*range(1, 10)), CHAIN_START
    for at in range(8):
        for each in (other[at:], mine[at:]):
            assert waiting.replace(
                span(at + 1, each, before), descriptors_of(each), [None] * len(each)
            )
            assert waiting.payloads[:-1] == mine[at:-1]
        waiting.advance(1)
        before = waiting.base
        assert len(waiting.former) == 2


@pytest.mark.parametrize(
    ("first", "numbers", "stays"),
    [(1, (1, 2, 3), True), (1, (9, 2, 3), False), (1, (1, 2), False), (2, (2, 3), True),
     (2, (9, 3), False), (3, (3,), True), (5, (5, 6, 7, 8), True)],
)  # fmt: skip
def test_what_lost_its_place_stays_if_it_may_follow_on_what_was_decided(
    first: int, numbers: tuple[int, ...], stays: bool
) -> None:
    """After a restart there may be parts of it only."""
    waiting, payloads = line_with(1, 2, 3), contents(*numbers)
    waiting.put_aside(Former(first, descriptors_of(payloads), [*payloads]))
    waiting.advance(2)
    assert bool(waiting.former) is stays


def test_what_lost_its_place_takes_up_room() -> None:
    waiting, other = line_with(1, 2), contents(1, mark="x")
    waiting.replace(span(1, other), descriptors_of(other), other)
    lost = 2 * (COST + DESCRIPTOR_BYTES)
    assert waiting.cost_bytes == LINE_COST + BATCH_COST + EVENT_COST + len(other[0]) + lost
    # That is room which the line does not have for more.
    assert not waiting.extend(2, descriptors_of(contents(2)), contents(2), BATCH_COST)
    assert waiting.end == 2


def test_what_is_there_already_stays_and_gets_its_payloads() -> None:
    waiting = Waiting(LINE)
    announced(waiting, 1, contents(1, 2, 3))
    waiting.direct = 3

    assert waiting.replace(
        span(1, contents(1, 2)), descriptors_of(contents(1, 2)), [*contents(1), None]
    )

    assert waiting.payloads == [*contents(1), None, None]
    assert waiting.direct == 3


@pytest.mark.parametrize(
    ("first", "offered"),
    [(2, contents(1, 2)), (1, contents(1)), (1, contents(1, 9))],
    ids=["another place", "too little", "another chain"],
)
def test_what_a_span_does_not_name_replaces_nothing(first: int, offered: list[bytes]) -> None:
    waiting = line_with(7)
    wanted = span(1, contents(1, 2))._replace(first=first)
    assert not waiting.replace(wanted, descriptors_of(offered), [None] * len(offered))
    assert waiting.payloads == contents(7)


def test_rubbish_behind_what_a_span_names_is_cut_off() -> None:
    waiting = Waiting(LINE)
    offered = contents(1, 2, 3)
    assert waiting.replace(span(1, contents(1, 2)), descriptors_of(offered), [*offered])
    assert waiting.payloads == contents(1, 2)


# Advancing


def test_what_was_decided_waits_no_more() -> None:
    waiting = line_with(1, 2, 3)
    waiting.advance(2)

    assert (waiting.next, waiting.end) == (3, 4)
    assert waiting.base == chain(*contents(1, 2))
    assert waiting.payloads == contents(3)
    assert waiting.waiting_bytes == len(*contents(1))
    assert (waiting.direct, waiting.held) == (2, 2)
    assert waiting.chain_at(3) == chain(*contents(1, 2, 3))


def test_a_span_fits_where_the_line_goes_on() -> None:
    waiting = line_with(1, 2, 3)
    waiting.advance(1)
    assert waiting.matches(span(2, contents(2, 3), waiting.base))
    assert not waiting.matches(span(1, contents(1)))
    assert not waiting.matches(span(2, contents(2, 9), waiting.base))
    assert not waiting.matches(span(2, contents(2, 3, 4), waiting.base))


# Who has it


def received(through: int, *payloads: bytes) -> Received:
    return Received(*LINE, through, chain(*payloads))


def test_voices_count_where_they_speak_of_the_line_that_we_know() -> None:
    waiting = line_with(1, 2, 3)
    waiting.direct = 2
    waiting.heard = {
        1: received(3, *contents(1, 2, 3)),
        2: received(2, *contents(1, 2)),
        3: received(3, *contents(1, 2, 9)),
    }
    assert waiting.believed_by(1, ME) == 3
    assert waiting.believed_by(2, ME) == 3
    assert waiting.believed_by(3, ME) == 1


def test_a_leader_proposes_what_enough_received_itself_among_them() -> None:
    waiting = line_with(1, 2, 3)
    waiting.direct = 2
    waiting.heard = {1: received(3, *contents(1, 2, 3)), 2: received(1, *contents(1))}
    assert waiting.received_through(1) == 2
    assert waiting.received_through(2) == 2
    assert waiting.received_through(3) == 1
    assert waiting.received_through(4) == 0


def word_of(first: int, payloads: list[bytes]) -> Stored:
    """A store's word for a line from its beginning on, of these batches from this number on."""
    return Stored(*LINE, first, len(payloads) - first + 1, chain(*payloads))


def test_a_batch_is_available_where_it_is_here_or_enough_others_hold_it() -> None:
    waiting = Waiting(LINE)
    announced(waiting, 1, contents(1, 2, 3))
    take(waiting, 1, contents(1))
    assert waiting.available_through(3, 2) == 1

    word = word_of(2, contents(1, 2))
    for replica in (1, 2):
        assert waiting.hear(replica, word)
        waiting.count(replica, word)

    assert waiting.available_through(3, 2) == 2
    assert waiting.available_through(3, 3) == 1
    assert waiting.words == {}


def test_what_stores_say_is_a_claim_until_somebody_looked_at_it() -> None:
    waiting = Waiting(LINE)
    announced(waiting, 1, contents(1, 2, 3))
    waiting.hear(1, word_of(1, contents(1, 2, 3)))
    waiting.hear(2, word_of(1, contents(1, 2)))

    assert waiting.available_through(3, 1) == 0
    assert [waiting.claimed_through(3, needed) for needed in (1, 2, 3)] == [3, 2, 0]


@given(
    words=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(1, 8)), max_size=12),
    here=st.sets(st.integers(1, 8)),
    looked_at=st.sets(st.integers(0, 11)),
    needed=st.integers(1, 4),
)
def test_what_is_claimed_is_what_would_be_available_if_all_words_counted(
    words: list[tuple[int, int, int]], here: set[int], looked_at: set[int], needed: int
) -> None:
    waiting, everything = Waiting(LINE), contents(*range(1, 9))
    announced(waiting, 1, everything)
    for number in here:
        waiting.complete(number, descriptors_of(contents(number)), contents(number))
    said: dict[int, set[int]] = {number: set() for number in range(1, 9)}
    for at, (store, first, last) in enumerate(words):
        word = word_of(first, everything[: max(first, last)])
        for number in range(first, max(first, last) + 1):
            said[number].add(store)
        if waiting.hear(store, word) and at in looked_at:
            waiting.count(store, word)

    unavailable = [n for n in range(1, 9) if n not in here and len(said[n]) < needed]

    assert waiting.claimed_through(8, needed) == min(unavailable, default=9) - 1


def test_a_store_that_speaks_of_another_content_claims_nothing() -> None:
    waiting = Waiting(LINE)
    announced(waiting, 1, contents(1))
    waiting.hear(1, word_of(1, contents(1, mark="other")))
    assert waiting.claims(1) == {}
    assert waiting.claimed_through(1, 1) == 0


def test_a_store_that_speaks_twice_is_one_store() -> None:
    waiting = Waiting(LINE)
    announced(waiting, 1, contents(1))
    for _ in range(2):
        waiting.hear(1, word_of(1, contents(1)))
    assert waiting.claimed_through(1, 2) == 0


def test_what_stores_say_too_early_is_a_claim_once_the_line_has_come_so_far() -> None:
    waiting = Waiting(LINE)
    waiting.hear(1, word_of(1, contents(1, 2)))
    announced(waiting, 1, contents(1))
    assert waiting.claims(1) == {}

    announced(waiting, 2, contents(2))

    assert waiting.claims(1) == waiting.claims(2) == {1: word_of(1, contents(1, 2))}


def test_the_last_word_of_a_store_is_its_claim_and_does_for_those_that_it_covers() -> None:
    waiting = Waiting(LINE)
    announced(waiting, 1, contents(1, 2, 3))
    first, second = word_of(1, contents(1, 2)), word_of(2, contents(1, 2))
    third = word_of(2, contents(1, 2, 3))
    for word in (first, second, third):
        waiting.hear(1, word)
    assert waiting.claims(2) == {1: third}

    waiting.count(1, third)

    assert waiting.words == {1: [first]}


def test_what_nobody_needs_to_know_is_not_kept() -> None:
    waiting = line_with(1, 2)
    assert not waiting.hear(1, word_of(1, contents(1, 2)))
    announced(waiting, 3, contents(3, 4))
    assert waiting.hear(1, word_of(1, contents(1, 2, 3)))
    assert waiting.hear(1, word_of(1, contents(1, 2, 3, 4)))

    waiting.advance(3)

    assert waiting.words == {1: [word_of(1, contents(1, 2, 3, 4))]}
    assert not waiting.hear(2, word_of(1, contents(1, 2, 3)))


# Saying what we store


def test_what_is_stored_is_said_in_one_stretch_with_what_was_said_before() -> None:
    waiting = line_with(1, 2, 3, 4, 5, 6)
    waiting.note_stored(1, 1)
    waiting.note_stored(2, 3)
    assert waiting.take_unreceipted(0) == [range(1, 4)]

    waiting.note_stored(4, 4)
    waiting.note_stored(6, 6)
    assert waiting.take_unreceipted(0) == [range(1, 5), range(6, 7)]
    assert waiting.take_unreceipted(0) == []


def test_what_is_said_again_ends_where_it_was_asked_for() -> None:
    """Whoever waits for it may not have heard of more."""
    waiting = line_with(1, 2, 3, 4)
    waiting.note_stored(1, 3)
    waiting.take_unreceipted(0)

    waiting.note_stored(2, 2)
    assert waiting.take_unreceipted(0) == [range(1, 3)]
    waiting.note_stored(4, 4)
    assert waiting.take_unreceipted(0) == [range(1, 5)]


def test_what_is_decided_is_not_said_to_be_stored() -> None:
    waiting = line_with(1, 2, 3, 4)
    waiting.note_stored(1, 3)
    waiting.take_unreceipted(0)
    waiting.advance(2)
    waiting.note_stored(4, 4)
    assert waiting.take_unreceipted(0) == [range(3, 5)]

    waiting.note_stored(3, 4)
    waiting.advance(2)
    assert waiting.take_unreceipted(0) == []


def test_what_something_else_took_the_place_of_is_not_said_to_be_stored() -> None:
    waiting = line_with(1, 2, 3)
    waiting.note_stored(1, 2)
    waiting.take_unreceipted(0)
    waiting.note_stored(3, 3)
    others = contents(1, 2, mark="other")

    assert waiting.replace(span(1, others), descriptors_of(others), [None] * 2)
    assert waiting.take_unreceipted(0) == []
    take(waiting, 3, contents(3))
    waiting.note_stored(3, 3)
    assert waiting.take_unreceipted(0) == [range(3, 4)]


def test_what_is_written_down_are_the_payloads_that_are_not_on_disk_yet() -> None:
    waiting = Waiting(LINE)
    announced(waiting, 1, contents(1, 2, 3, 4))
    for number in (1, 2, 4):
        take(waiting, number, contents(number))

    assert list(waiting.unheld_runs(4)) == [(1, contents(1, 2)), (4, contents(4))]
    assert list(waiting.unheld_runs(4)) == []

    take(waiting, 3, contents(3))
    # Behind a payload that came late, none is written again, and none is left out.
    assert list(waiting.unheld_runs(4)) == [(3, contents(3))]
