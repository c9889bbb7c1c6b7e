"""`quorate up`: starting a whole cluster, watching it, and ending it."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import (
    TestCluster,
    line_with,
    quorate,
    quorate_process,
    running_cluster,
    until,
)
from quorate.runtime.ports import is_listening

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    """A cluster that nobody has started yet; whatever a test starts is ended."""
    with running_cluster(start=False) as made:
        yield made


def test_without_a_cluster_it_says_how_to_make_one(tmp_path: Path) -> None:
    outcome = quorate("up", tmp_path / "nowhere")

    assert outcome.code == 2
    assert f"make one with 'quorate init {tmp_path / 'nowhere'}'" in outcome.err


def test_what_is_said_to_make_a_cluster_can_be_copied(tmp_path: Path) -> None:
    outcome = quorate("up", tmp_path / "my cluster")

    assert f"make one with quorate init '{tmp_path / 'my cluster'}', or name" in outcome.err


def test_a_file_is_no_cluster_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()

    outcome = quorate("status", "-d", tmp_path / "README.md")

    assert outcome.code == 2
    assert f"there is no cluster in {tmp_path / 'README.md'} (no file cluster.toml)" in outcome.err


def test_for_some_seconds_it_runs_all_replicas_and_then_none(cluster: TestCluster) -> None:
    outcome = quorate("up", cluster.directory, "--seconds", 0.1)

    assert outcome.code == 0, outcome.err
    assert [row.split()[::2] for row in outcome.out.splitlines()] == [
        [name, "ok"] for name in cluster.names
    ]
    assert "Stopped: r0, r1, r2, r3" in outcome.err
    assert running(cluster) == []


def test_control_c_ends_every_replica_even_one_that_was_started_again_by_others(
    cluster: TestCluster,
) -> None:
    with quorate_process("up", cluster.directory) as process:
        for name in cluster.names:
            line_with(process.stdout, name, "ok")
        cluster.launcher.stop("r1", kill=True)
        line_with(process.stdout, "r1", "down: its process does not run")
        cluster.launcher.start("r1")
        line_with(process.stdout, "r1", "ok")

        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert until(lambda: running(cluster) == [])


def test_detached_replicas_go_on_until_they_are_stopped(cluster: TestCluster) -> None:
    outcome = quorate("up", cluster.directory, "--detach")
    assert outcome.code == 0, outcome.err
    assert "quorate replica all stop" in outcome.err
    assert running(cluster) == cluster.names

    again = quorate("up", cluster.directory, "--detach")
    assert "Running already: r0, r1, r2, r3" in again.err

    assert quorate("replica", "all", "stop", "-d", cluster.directory).code == 0
    assert running(cluster) == []


def test_its_directory_may_be_given_as_to_every_other_command(cluster: TestCluster) -> None:
    started = quorate("up", "--detach", "--directory", cluster.directory)
    assert started.code == 0, started.err
    assert quorate("status", "-d", cluster.directory).code == 0
    assert quorate("status", cluster.directory).code == 0


def test_who_finds_replicas_running_shows_them_and_leaves_them_alone(cluster: TestCluster) -> None:
    for name in ("r1", "r2"):
        cluster.launcher.start(name)
        # For a moment after its start, a process has no command line to know it by.
        cluster.launcher.wait_until_up(name)

    rest = quorate("up", cluster.directory, "--seconds", 1)

    assert rest.code == 0, rest.err
    assert "Stopped: r0, r3" in rest.err
    assert running(cluster) == ["r1", "r2"]

    assert quorate("up", cluster.directory, "--detach").code == 0
    view = quorate("up", cluster.directory, "--seconds", 1)

    assert view.code == 0, view.err
    assert "This only shows them" in view.err
    assert "Stopped" not in view.err
    assert running(cluster) == cluster.names


def test_if_one_replica_cannot_start_none_is_left_running(cluster: TestCluster) -> None:
    with socket.socket() as taken:
        last = cluster.launcher.cluster.replicas[-1]
        taken.bind((last.host, last.port))
        taken.listen()

        outcome = quorate("up", cluster.directory)

    assert outcome.code == 2
    assert f"r3 cannot start: another program listens on port {last.port}" in outcome.err
    assert running(cluster) == []


def test_a_replica_whose_process_could_not_be_noted_is_not_started(cluster: TestCluster) -> None:
    noted = cluster.directory / "run" / "r0.pid"
    noted.mkdir(parents=True)

    outcome = quorate("up", cluster.directory)

    assert outcome.code == 2
    assert outcome.err == f"r0 cannot start: {noted.resolve()} cannot be written: Is a directory\n"
    first = cluster.launcher.cluster.replicas[0]
    assert not is_listening(first.host, first.port)


@pytest.mark.parametrize("options", [("--seconds", 5, "--detach"), ("--seconds", -1)])
def test_seconds_that_make_no_sense_are_refused(
    cluster: TestCluster, options: tuple[object, ...]
) -> None:
    outcome = quorate("up", cluster.directory, *options)

    assert outcome.code == 2
    assert "--seconds takes a number above 0, and does not go with --detach" in outcome.err


def test_a_directory_without_replica_keys_starts_nothing(cluster: TestCluster) -> None:
    for name in cluster.names:
        (cluster.directory / "keys" / f"{name}.key").unlink()

    outcome = quorate("up", cluster.directory)

    assert outcome.code == 2
    assert "holds the keys of no replica" in outcome.err


def running(cluster: TestCluster) -> list[str]:
    return [name for name in cluster.names if cluster.launcher.pid(name) is not None]
