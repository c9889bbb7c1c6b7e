"""`quorate doctor`: what it looks at, and when it says that something will not work."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters import TestCluster, quorate, running_cluster
from quorate.cli import doctor as command
from quorate.core.errors import ConfigError

SUBJECTS = ["Python", "Spark", "Java", "ports", "disk", "fsync", "memory", "clock", "formats"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(start=False) as made:
        yield made


def findings(*arguments: object) -> tuple[int, dict[str, dict[str, Any]]]:
    outcome = quorate("doctor", *arguments, "--json")
    told = json.loads(outcome.out)
    assert told["ok"] == (outcome.code == 0)
    return outcome.code, {row["subject"]: row for row in told["findings"]}


def test_without_a_cluster_it_looks_at_everything_a_local_one_would_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    _, found = findings()

    assert list(found) == SUBJECTS
    assert str(tmp_path) in found["fsync"]["words"]
    assert {row["level"] for row in found.values()} <= {"ok", "warning", "problem"}


def test_it_tells_the_version_of_each_format() -> None:
    _, found = findings()

    told = found["formats"]["words"].split(", ")
    assert all(re.fullmatch(r"[a-z ]+ [1-9][0-9]*", each) for each in told)
    kinds = {each.rpartition(" ")[0] for each in told}
    assert kinds >= {"protocol", "batch", "cluster file", "journal", "proof", "archive"}


def test_each_finding_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    outcome = quorate("doctor")

    lines = outcome.out.splitlines()
    assert [line[9:].partition(":")[0] for line in lines] == SUBJECTS


def test_a_cluster_that_was_named_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    outcome = quorate("doctor", "-d", tmp_path)

    assert outcome.code == 2
    assert outcome.err.startswith(f"there is no cluster in {tmp_path}")


def test_of_a_cluster_it_looks_at_the_ports_of_each_replica(cluster: TestCluster) -> None:
    _, found = findings(cluster.directory)

    levels = [found[f"ports of {name}"]["level"] for name in cluster.names]
    assert levels == ["ok"] * 4


def test_a_port_that_another_program_has_will_not_work(cluster: TestCluster) -> None:
    replica = cluster.launcher.replica("r1")
    with socket.create_server((replica.host, replica.port)):
        code, found = findings(cluster.directory)

    assert code == 1
    assert found["ports of r1"]["level"] == "problem"
    assert found["ports of r1"]["words"].startswith(f"{replica.port} cannot be had at")
    assert found["ports of r2"]["level"] == "ok"


def test_without_java_the_pipeline_will_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise ConfigError("Spark needs Java 17 or later, and there is none on the PATH")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "find_java", none)

    code, found = findings()

    assert code == 1
    assert found["Java"]["level"] == "problem"


def test_without_spark_there_is_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"pandas": "2.3.3", "pyarrow": "26.0.1"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_version", versions.get)

    _, found = findings()

    assert found["Spark"]["level"] == "warning"
    assert found["Spark"]["words"].startswith("pyspark, py4j, protobuf not installed")
    assert "Java" not in found


@pytest.mark.parametrize(
    ("version", "level"),
    [("2.1.9", "problem"), ("2.2", "ok"), ("2.10.1", "ok"), ("3.0.0", "problem")],
)
def test_a_companion_of_another_version_will_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, level: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_version", lambda _: "9.9")
    monkeypatch.setattr(command, "_SPARK", ("pandas",))
    monkeypatch.setattr(command, "_version", lambda _: version)

    _, found = findings()

    assert found["Spark"]["level"] == level


@pytest.mark.parametrize(
    ("free", "level"), [(10**8, "problem"), (5 * 10**9, "warning"), (10**11, "ok")]
)
def test_a_disk_that_is_full_or_nearly_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": free}))

    assert command._disk(tmp_path).level == level


@pytest.mark.parametrize(
    ("each_ms", "level"), [(0.001, "warning"), (1.0, "ok"), (200.0, "warning")]
)
def test_a_sync_that_takes_too_long_or_no_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each_ms: float, level: str
) -> None:
    monkeypatch.setattr(command, "_sync_ms", lambda _: each_ms)

    assert command._sync(tmp_path).level == level


def test_a_directory_that_cannot_be_written_into_will_not_work(tmp_path: Path) -> None:
    assert command._sync(tmp_path / "nowhere").level == "problem"
