"""Where there can be no Kafka, one sentence says why; and no broker outlives whoever started it."""

import subprocess
import sys
from pathlib import Path

import pytest

from clusters import until
from quorate.bench.kafka import KafkaUnavailableError, kafka_class_path
from quorate.runtime import launcher


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that is on the PATH, on a machine that has never seen Kafka."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return directory


def add(programs: Path, name: str, script: str = "exit 0") -> None:
    program = programs / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.usefixtures("programs")
def test_without_java_there_is_no_kafka() -> None:
    with pytest.raises(KafkaUnavailableError, match="needs Java 17 or later, and there is no java"):
        kafka_class_path()


def test_without_maven_there_is_no_kafka(programs: Path) -> None:
    add(programs, "java")

    with pytest.raises(KafkaUnavailableError, match="needs Maven, and there is no mvn on the PATH"):
        kafka_class_path()


def test_what_maven_complains_about_is_the_reason(programs: Path) -> None:
    add(programs, "java")
    add(programs, "mvn", "echo '[ERROR] no such host'; echo '[ERROR] help'; exit 1")

    with pytest.raises(KafkaUnavailableError, match="could not resolve Kafka: no such host$"):
        kafka_class_path()


def test_maven_is_asked_once_as_long_as_the_jars_are_there(programs: Path, tmp_path: Path) -> None:
    jars = [tmp_path / "kafka.jar", tmp_path / "scala.jar"]
    for jar in jars:
        jar.touch()
    joined = ":".join(map(str, jars))
    add(programs, "java")
    # What it is asked to write is the last but one of its arguments.
    add(programs, "mvn", f'echo {joined} >"${{5#*=}}"; echo asked >>"{tmp_path}/calls"')
    said: list[str] = []

    assert kafka_class_path(said.append) == joined
    assert kafka_class_path(said.append) == joined

    assert (tmp_path / "calls").read_text() == "asked\n"
    assert len(said) == 1

    jars[0].unlink()
    kafka_class_path()

    assert (tmp_path / "calls").read_text() == "asked\nasked\n"


OUTLIVED = """
import subprocess, sys
from quorate.bench.kafka import watched

process = subprocess.Popen(["sleep", "600"])
watched(process.pid)
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_a_broker_ends_when_whoever_started_it_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", OUTLIVED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not launcher._has_ended(child)

        parent.kill()

        assert until(lambda: launcher._has_ended(child))
