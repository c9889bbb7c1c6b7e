"""`quorate demo`: what its summary says of what a contract allows, and what its verdict is."""

import pytest

from quorate.cli.demo import weak_words
from quorate.cli.demo_story import CHANGES, TOPICS, Ledger, Line, Scene, Shown, verdict
from quorate.core.contract import Contract
from quorate.core.errors import QuorateError


def test_what_a_weak_topic_lost_is_said_to_be_within_its_contract() -> None:
    contract = Contract.parse("metrics", TOPICS["metrics"])
    line = Line("metrics", contract, lost=60, forged=7)

    words = weak_words(line, "r2")

    assert not line.tolerates_lies
    assert words.startswith("'metrics' promises to stand crashes only, and r2 lied: ")
    assert "that 60 events were lost and 7 forged, its contract allows." in words


def played() -> Scene:
    """A demo after which every promise was kept."""
    lines = {name: Line(name, Contract.parse(name, table)) for name, table in TOPICS.items()}
    ledger = Ledger(checkpoints=[(10, ("r0", "r1", "r2")), (20, ("r0", "r1", "r2"))])
    shown = Shown(vouched_for_by=("r0", "r1", "r2"), refused=CHANGES)
    return Scene(50.0, lines, "r2", ledger=ledger, shown=shown)


def complaint(scene: Scene) -> str:
    """What the demo says at its end, if anything was wrong."""
    try:
        verdict(scene.result())
    except QuorateError as error:
        return str(error)
    return ""


def test_where_every_promise_was_kept_there_is_nothing_to_say() -> None:
    assert complaint(played()) == ""


@pytest.mark.parametrize(
    ("counter", "sentence"),
    [
        ("lost", "3 events were lost, 0 forged and 0 delivered twice where the contract"),
        ("forged", "0 events were lost, 3 forged and 0 delivered twice where the contract"),
        ("duplicates", "0 events were lost, 0 forged and 3 delivered twice where the contract"),
    ],
)
@pytest.mark.parametrize("topic", [name for name in TOPICS if name != "metrics"])
def test_a_broken_promise_is_one_wherever_it_was_given(
    topic: str, counter: str, sentence: str
) -> None:
    scene = played()
    setattr(scene.lines[topic], counter, 3)
    assert sentence in complaint(scene)


@pytest.mark.parametrize("counter", ["lost", "forged", "duplicates"])
def test_what_was_not_promised_is_not_held_against_a_topic(counter: str) -> None:
    scene = played()
    setattr(scene.lines["metrics"], counter, 3)
    assert complaint(scene) == ""


def test_a_proof_that_holds_with_a_byte_changed_is_no_proof() -> None:
    scene = played()
    scene.shown.refused -= 1
    assert complaint(scene) == "of 64 proofs with a changed byte, 63 were refused"
