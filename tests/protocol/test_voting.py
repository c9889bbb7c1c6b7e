"""Voices count once per replica, and together per content."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from quorate.core.limits import WINDOW_BATCHES
from quorate.protocol.voting import REPEATED, TWO_FACED, Ballot, ReplyVoter

REPLICAS = 7
VOICES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, REPLICAS - 1), st.sampled_from([b"a", b"b", b"c"]))
)


@given(VOICES)
def test_a_ballot_counts_as_one_would_by_hand(voices: list[tuple[int, int, bytes]]) -> None:
    ballot = Ballot(REPLICAS)
    said: dict[tuple[int, int], bytes] = {}
    for sequence, replica, content in voices:
        equal = ballot.vote(sequence, replica, content, 0)
        before = said.setdefault((sequence, replica), content)
        if before != content:
            assert equal == TWO_FACED
        elif equal != REPEATED:
            agreed = [c for (s, _), c in said.items() if s == sequence and c == content]
            assert equal == len(agreed)

    for sequence, tally in ballot.open.items():
        for content in (b"a", b"b", b"c"):
            bits = {r for (s, r), c in said.items() if s == sequence and c == content}
            assert tally.votes_for(content) == sum(1 << replica for replica in bits)


def test_a_replica_that_repeats_itself_counts_once() -> None:
    ballot = Ballot(REPLICAS)

    assert ballot.vote(1, 0, b"a", 0) == 1
    assert ballot.vote(1, 0, b"a", 0) == REPEATED
    assert ballot.vote(1, 1, b"a", 0) == 2


def test_a_replica_that_says_two_things_is_counted_for_the_first() -> None:
    ballot = Ballot(REPLICAS)
    ballot.vote(1, 0, b"a", 0)

    assert ballot.vote(1, 0, b"b", 0) == TWO_FACED
    assert ballot.vote(1, 1, b"b", 0) == 1
    assert ballot.vote(1, 1, b"a", 0) == TWO_FACED


def test_a_replica_that_invents_numbers_fills_its_own_share_and_nothing_else() -> None:
    ballot = Ballot(REPLICAS)
    for sequence in range(10_000, 10_000 + 3 * WINDOW_BATCHES):
        ballot.vote(sequence, 6, b"invented", 0)
    assert len(ballot.open) == WINDOW_BATCHES

    assert ballot.vote(1, 0, b"a", 0) == 1
    assert ballot.vote(1, 6, b"a", 0) == 2, "it still counts where others opened"


def test_a_closed_tally_gives_its_place_back() -> None:
    ballot = Ballot(REPLICAS)
    for sequence in range(WINDOW_BATCHES):
        ballot.vote(sequence, 0, b"a", 0)
    assert ballot.vote(WINDOW_BATCHES, 0, b"a", 0) == REPEATED

    ballot.close(0)
    ballot.close(0)

    assert ballot.vote(WINDOW_BATCHES, 0, b"a", 0) == 1
    assert ballot.vote(WINDOW_BATCHES + 1, 0, b"a", 0) == REPEATED


def answers(voter: ReplyVoter, replies: Iterable[tuple[int, str]]) -> list[str | None]:
    return [voter.add(replica, sentence) for replica, sentence in replies]


def test_an_answer_needs_equal_replies_of_different_replicas() -> None:
    voter = ReplyVoter([0, 1, 2], 2)

    assert answers(voter, [(0, "yes"), (0, "yes"), (1, "no"), (2, "yes")]) == [
        None,
        None,
        None,
        "yes",
    ]


def test_a_request_is_answered_once() -> None:
    voter = ReplyVoter([0, 1, 2], 1)

    assert answers(voter, [(0, ""), (1, ""), (2, "")]) == ["", None, None]


def test_a_replica_that_changes_its_mind_is_counted_for_its_first_reply() -> None:
    voter = ReplyVoter([0, 1, 2], 2)

    assert answers(voter, [(0, "yes"), (0, "no"), (1, "no")]) == [None, None, None]
    assert voter.replies == {0: "yes", 1: "no"}


def test_a_reply_from_outside_does_not_count() -> None:
    voter = ReplyVoter([0, 1, 2], 1)

    assert voter.add(3, "yes") is None
    assert voter.replies == {}
