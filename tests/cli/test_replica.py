"""`quorate replica`: one process under control, and misbehaviour on purpose (B8, F13)."""

import json
from collections.abc import Iterator

import pytest

from clusters import Outcome, TestCluster, quorate, quorate_process, running_cluster, until
from quorate.runtime.files import CLUSTER_FILE
from quorate.runtime.ports import is_listening

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def shared() -> Iterator[TestCluster]:
    with running_cluster() as made:
        yield made


@pytest.fixture
def cluster(shared: TestCluster) -> Iterator[TestCluster]:
    yield shared
    shared.revive()


def replica(cluster: TestCluster, *arguments: object) -> Outcome:
    return quorate("replica", *arguments, "--directory", cluster.directory)


def misbehaviour(cluster: TestCluster, name: str) -> object:
    told = json.loads(quorate("status", cluster.directory, "--json").out)
    return next(row["misbehaviour"] for row in told["replicas"] if row["name"] == name)


def test_a_replica_can_be_stopped_and_started(cluster: TestCluster) -> None:
    assert replica(cluster, "r1", "stop").out == "r1 is stopped\n"
    assert cluster.launcher.pid("r1") is None

    started = replica(cluster, "r1", "start")

    assert started.out == f"r1 is up, as process {cluster.launcher.pid('r1')}\n"
    assert cluster.launcher.pid("r1") is not None


def test_a_replica_can_be_killed_though_it_is_paused(cluster: TestCluster) -> None:
    assert replica(cluster, "r1", "pause").code == 0
    until(lambda: cluster.launcher.is_paused("r1"))
    refused = replica(cluster, "r1", "lie")
    assert "r1 is paused; let it go on with: quorate replica r1 resume" in refused.err

    assert replica(cluster, "r1", "resume").out == "r1 goes on\n"
    until(lambda: not cluster.launcher.is_paused("r1"))
    assert replica(cluster, "r1", "pause").code == 0
    assert replica(cluster, "r1", "kill").out == "r1 was killed\n"

    assert cluster.launcher.pid("r1") is None
    for action in ("stop", "kill", "pause", "resume"):
        assert "r1 is not running here" in replica(cluster, "r1", action).err
    assert "start it with: quorate replica r1 start" in replica(cluster, "r1", "slow").err


def test_a_replica_runs_in_the_foreground_until_it_is_stopped(cluster: TestCluster) -> None:
    cluster.launcher.stop("r3")
    address = cluster.launcher.replica("r3")
    with quorate_process("replica", "r3", "run", "-d", cluster.directory) as process:
        until(lambda: is_listening(address.host, address.port))
        assert cluster.launcher.pid("r3") == process.pid

        assert replica(cluster, "r3", "stop").code == 0

        assert process.wait() == 0


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (("slow",), "slow by 200 ms"),
        (("slow", "--delay-ms", 5), "slow by 5 ms"),
        (("lie", "--percent", 30, "--fields", "content,sequence"), "lies in 30 %"),
        (("drop", "--percent", 12.5), "drops 12.5 %"),
        (("replay",), "replays after 100 %"),
        (("silent", "--towards", "r1, alice"), "silent towards r1, alice"),
        (("silent",), "silent towards f replicas and all clients"),
        (("equivocate", "--towards", "bob"), "tells lies to bob"),
        (("clock",), "has a clock that is 3600 s ahead"),
        (("forget",), "signs for large batches, and does not write them"),
        (("clock", "--ahead-s", -5), "has a clock that is -5 s ahead"),
    ],
)
def test_a_replica_misbehaves_until_it_is_told_to_behave(
    cluster: TestCluster, order: tuple[object, ...], words: str
) -> None:
    told = replica(cluster, "r2", *order)
    assert told.code == 0, told.err
    assert words in told.out
    assert words in str(misbehaviour(cluster, "r2"))

    assert replica(cluster, "r2", "behave").out == "r2 behaves again\n"
    assert misbehaviour(cluster, "r2") == "none"


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (("r9", "stop"), "there is no replica 'r9'; this cluster has r0, r1, r2, r3"),
        (("alice", "stop"), "there is no replica 'alice'; this cluster has r0, r1, r2, r3"),
        (("r1", "dance"), "a replica cannot 'dance'; it can run, start, stop"),
        (("r1", "equivoke"), "did you mean equivocate?"),
        (("r1", "lie", "--percent", 200), "200.0 percent; allowed are 0 to 100"),
        (("r1", "lie", "--percent", "nan"), "allowed are 0 to 100"),
        (("r1", "lie", "--fields", "colour"), "cannot alter colour; fields to alter: sequence"),
        (("r1", "slow", "--delay-ms", -1), "a delay of -1.0 ms; allowed are 0 to 60000"),
        (("r1", "clock", "--ahead-s", 1e9), "1000000000.0 s ahead; allowed are -315360000 to"),
        (("r1", "silent", "--towards", "carol"), "no member named 'carol'; it has r0, r1, r2, r3"),
        (("r1", "slow", "--percent", 5), "--percent means nothing to slow; it takes --delay-ms"),
        (("r1", "stop", "--towards", "r2"), "--towards means nothing to stop"),
        (("r1", "start"), "r1 is running already, as process"),
        (("all", "start"), "there is nothing to start: every replica runs already here"),
        (("all", "run"), "only one replica can run in the foreground"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence_that_names_what_is_allowed(
    cluster: TestCluster, order: tuple[object, ...], sentence: str
) -> None:
    outcome = replica(cluster, *order)

    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_cluster_that_does_not_allow_misbehaviour_says_so() -> None:
    with running_cluster(start=False) as other:
        file = other.directory / CLUSTER_FILE
        file.write_text(file.read_text().replace("allow_misbehaviour = true", ""))

        outcome = replica(other, "r1", "lie")

    assert outcome.code == 2
    assert "that takes allow_misbehaviour = true in cluster.toml" in outcome.err


def test_only_an_operator_makes_replicas_misbehave(cluster: TestCluster) -> None:
    key = cluster.directory / "keys" / "operator.key"
    key.rename(cluster.directory / "operator.away")
    try:
        outcome = replica(cluster, "r1", "lie")
    finally:
        (cluster.directory / "operator.away").rename(key)

    assert outcome.code == 2
    assert "the operators of this cluster are operator" in outcome.err


def test_a_replica_whose_keys_are_elsewhere_cannot_be_started_here(cluster: TestCluster) -> None:
    cluster.launcher.stop("r0")
    key = cluster.directory / "keys" / "r0.key"
    key.rename(cluster.directory / "r0.away")
    try:
        outcome = replica(cluster, "r0", "start")
    finally:
        (cluster.directory / "r0.away").rename(key)

    assert outcome.code == 2
    assert f"r0 cannot run here: its private keys would be in {key.resolve()}" in outcome.err
