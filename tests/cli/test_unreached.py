"""What a person reads when replicas are not there: one sentence, soon, and what to do."""

import json
from collections.abc import Iterator

import pytest

from clusters import TestCluster, quorate, running_cluster
from quorate.client import session

pytestmark = pytest.mark.xdist_group("processes")

TOPICS: dict[str, dict[str, object]] = {
    "news": {"protection": "crash"},
    "ledger": {"order": "total"},
}


@pytest.fixture(scope="module")
def asleep() -> Iterator[TestCluster]:
    """A cluster that nobody has started."""
    with running_cluster(topics=TOPICS, start=False) as made:
        yield made


def places(cluster: TestCluster) -> str:
    replicas = cluster.launcher.cluster.replicas
    return ", ".join(f"{each.name} at {each.host}:{each.port}" for each in replicas)


COMMANDS: list[tuple[object, ...]] = [
    ("status",),
    ("publish", "news", "x"),
    ("publish", "ledger", "x"),
    ("publish", "a-topic-that-may-be-there-by-now", "x"),
    ("subscribe", "news"),
    ("topic", "list"),
    ("cluster", "current"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_cluster_that_is_not_started_is_said_to_be_so_with_what_starts_it(
    asleep: TestCluster, command: tuple[object, ...]
) -> None:
    outcome = quorate(*command, "--directory", asleep.directory)

    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        f"no replica of cluster local can be reached ({places(asleep)}: connection refused); "
        f"are they running? 'quorate up {asleep.directory}' starts them\n"
    )


def test_scripts_still_get_the_status_of_each_replica_that_is_not_there(
    asleep: TestCluster,
) -> None:
    outcome = quorate("status", asleep.directory, "--json")

    told = json.loads(outcome.out)
    assert (outcome.code, told["all_up"]) == (1, False)
    assert {row["health"] for row in told["replicas"]} == {"down"}
    assert [row["name"] for row in told["replicas"]] == asleep.names


def test_whoever_has_no_replica_here_is_not_told_to_start_one() -> None:
    with running_cluster(topics=TOPICS, start=False) as remote:
        for name in remote.names:
            (remote.directory / "keys" / f"{name}.key").unlink()

        outcome = quorate("publish", "news", "x", "-d", remote.directory)

    assert outcome.err.endswith("connection refused); are they running?\n")


def test_with_too_few_replicas_the_sentence_says_how_many_are_there_and_how_many_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 2.0)
    with running_cluster(topics=TOPICS, start=False) as cluster:
        cluster.launcher.start("r0")
        cluster.launcher.wait_until_up("r0")

        asked = quorate("publish", "ledger", "x", "-d", cluster.directory)
        # What changes something takes as many as it takes to order it.
        ordered = quorate("topic", "create", "late", "-d", cluster.directory)

        r1 = cluster.launcher.replica("r1")

    assert (asked.code, ordered.code) == (1, 1)
    assert asked.err.startswith(
        "no quorum answered which topics there are: 1 of 4 replicas is connected, and it takes 2 ("
    )
    assert f"r1: cannot be reached at {r1.host}:{r1.port}: connection refused" in asked.err
    assert "carried out: 1 of 4 replicas is connected, and it takes 3 (" in ordered.err
