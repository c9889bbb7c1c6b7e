"""`quorate demo`: what its summary says of what a contract allows."""

from quorate.cli.demo import weak_words
from quorate.cli.demo_story import TOPICS, Line
from quorate.core.contract import Contract


def test_what_a_weak_topic_lost_is_said_to_be_within_its_contract() -> None:
    contract = Contract.parse("metrics", TOPICS["metrics"])
    line = Line("metrics", contract, lost=60, forged=7)

    words = weak_words(line, "r2")

    assert not line.tolerates_lies
    assert words.startswith("'metrics' promises to stand crashes only, and r2 lied: ")
    assert "that 60 events were lost and 7 forged, its contract allows." in words
