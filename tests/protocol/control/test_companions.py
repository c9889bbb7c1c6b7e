"""The companion of a validated topic follows its topic, and groups share it as a log of its own."""

import pytest

from commands import ACME, ANNA, BEN, LOG, Commander, cluster
from quorate.core.cluster import Cluster
from quorate.core.contract import EVERYONE, companion_name
from quorate.core.control import AlterTopic, Commit, CreateTopic, Join, Register
from quorate.core.errors import ConfigError
from quorate.protocol.topic import topics_of

VALIDATED = {**LOG, "validated": True, "partitions": 2, "retention": "7d"}
COMPANION = companion_name("trades")


def trading(**changes: object) -> Cluster:
    return cluster({"trades": {**VALIDATED, **changes}, "news": {}, "plain": dict(LOG)})


def test_a_validated_topic_has_a_companion_with_its_partitions_lists_and_retention() -> None:
    made = trading(publish=["anna"], subscribe=["ben"])
    of = {topic.name: topic for topic in topics_of(made)}
    topic, companion = of["trades"], of[COMPANION]
    assert [name for name in of if "~" in name] == [COMPANION]
    assert companion.companion_of == "trades"
    assert (companion.contract.protection, companion.contract.order) == ("crash", "total")
    assert not companion.contract.validated
    for key in ("partitions", "publish", "subscribe", "retention_us", "retention_bytes"):
        assert getattr(companion.contract, key) == getattr(topic.contract, key)
    # The replicas that order what bears crashes order it.
    assert (topic.members, companion.members) == ((0, 1, 2, 3), (0, 1, 2))


def test_a_companion_is_a_topic_for_nobody() -> None:
    made = trading()
    assert COMPANION not in made.topics
    assert COMPANION not in made.render()
    with pytest.raises(ConfigError, match="has no topic"):
        made.contract(COMPANION)
    commander = Commander(made)
    for command in (
        CreateTopic(COMPANION, {"order": "total"}),
        AlterTopic(COMPANION, {"partitions": 3}),
        Register(COMPANION),
    ):
        assert commander.does(ACME, command) != ""
    assert commander.control.cluster == made


def test_what_is_altered_of_a_topic_is_altered_of_its_companion() -> None:
    commander = Commander(trading())
    commander.ok(ACME, AlterTopic("trades", {"partitions": 3, "retention": "1d"}))
    altered = commander.control.cluster.all_topics
    assert altered[COMPANION] == altered["trades"].companion
    assert altered[COMPANION].partitions == 3
    # A topic that is created later has one as well.
    commander.ok(ACME, CreateTopic("later", dict(VALIDATED)))
    assert companion_name("later") in commander.control.cluster.all_topics


def test_two_topics_whose_numbers_are_those_of_a_companion_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate.core.cluster.topic_id", len)
    with pytest.raises(ConfigError, match="share the topic number"):
        cluster({"trades": dict(VALIDATED), "x" * len(COMPANION): dict(LOG)})


def test_who_reads_with_validation_and_who_reads_without_share_separately() -> None:
    commander = Commander(trading())
    commander.join(ANNA, "trades")
    commander.join(BEN, COMPANION)
    assert commander.reads(ANNA) == [("trades", 0), ("trades", 1)]
    assert commander.reads(BEN) == [(COMPANION, 0), (COMPANION, 1)]
    # Each keeps its own offsets.
    commander.commit(ANNA, ("trades", 0, 5))
    commander.commit(BEN, (COMPANION, 0, 9))
    # When Ben goes over, the two share, and where the group was in either log stays.
    commander.join(BEN, "trades")
    commander.commit(ANNA)
    commander.commit(BEN)
    assert sorted([*commander.reads(ANNA), *commander.reads(BEN)]) == [("trades", 0), ("trades", 1)]
    commander.join(BEN, COMPANION)
    commander.commit(ANNA)
    assignment = commander.control.assignment("crew/g", BEN)
    assert assignment is not None
    assert assignment.partitions == [(COMPANION, 0, 9), (COMPANION, 1, None)]


def test_more_partitions_and_fewer_readers_hold_for_both_logs() -> None:
    commander = Commander(trading())
    commander.join(ANNA, "trades")
    commander.join(BEN, COMPANION)
    commander.ok(ACME, AlterTopic("trades", {"partitions": 3}))
    assert [len(commander.reads(node)) for node in (ANNA, BEN)] == [3, 3]
    commander.ok(ACME, AlterTopic("trades", {"subscribe": ["anna"]}))
    assert [len(commander.reads(node)) for node in (ANNA, BEN)] == [3, 0]
    refused = commander.does(BEN, Join("crew/g", [COMPANION]))
    assert refused == "ben may not subscribe to 'trades'; anna may"
    assert "not in group" in commander.does(BEN, Commit("crew/g", 1, [(COMPANION, 0, 1)]))


def test_a_topic_that_is_not_validated_has_no_companion_to_join() -> None:
    commander = Commander(trading(publish=list(EVERYONE)))
    for name in ("plain", "news"):
        assert commander.does(ANNA, Join("crew/g", [companion_name(name)])) == (
            f"there is no topic '{companion_name(name)}'"
        )
