"""`quorate pipeline`: jobs by their names, with settings, from beginning to end."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorate.pipeline.jobs as jobs
from clusters import Outcome, TestCluster, line_with, quorate, running_cluster
from quorate.pipeline.jobs import registry

pytestmark = pytest.mark.xdist_group("spark")

PATIENCE_S = 120.0

# A job without a topic, so that it needs no replicas: what is tried here is how jobs are run.
COUNTED = """
from typing import Annotated

import msgspec

from quorate.core.errors import ConfigError
from quorate.pipeline.jobs.job import Config, Job

class Settings(Config):
    rows: Annotated[int, msgspec.Meta(ge=1)] = 5
    bad: bool = False
    names: list[str] = []

def start(pipes, settings):
    rows = pipes.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", settings.rows)

    def each(batch, number):
        with open(f"{pipes.checkpoint}/seen", "a") as seen:
            seen.write(f"{number}\\n")
        assert batch.count() == settings.rows
        if settings.bad:
            raise ConfigError(f"what {pipes.identity} reads is bad; write something better")

    writer = rows.load().writeStream.queryName("numbers").foreachBatch(each)
    writer = writer.option("checkpointLocation", f"{pipes.checkpoint}/numbers")
    return [writer.trigger(processingTime=pipes.every).start()]

JOB = Job("counted", "Counts rows.", Settings, start)
"""

WITH_THAT_JOB = """
import sys
import quorate.pipeline.jobs as jobs
from quorate.cli.main import main
from quorate.pipeline.jobs import registry

jobs.__path__.append(sys.argv.pop(1))
registry.NAMES = ("counted",)
main()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(start=False) as made:
        yield made


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only job that there is."""
    directory = tmp_path / "jobs"
    directory.mkdir()
    (directory / "counted.py").write_text(COUNTED)
    monkeypatch.setattr(jobs, "__path__", [*jobs.__path__, str(directory)])
    monkeypatch.setattr(registry, "NAMES", ("counted", "missing"))
    yield directory
    sys.modules.pop("quorate.pipeline.jobs.counted", None)


def run(cluster: TestCluster, tmp_path: Path, *options: object, job: str = "counted") -> Outcome:
    where = ("-d", cluster.directory, "--checkpoint", tmp_path / "checkpoint")
    return quorate("pipeline", "run", job, *where, *options)


@pytest.mark.usefixtures("counted")
def test_jobs_are_listed_with_their_settings() -> None:
    outcome = quorate("pipeline", "list", "--json")

    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == [
        {
            "name": "counted",
            "summary": "Counts rows.",
            "settings": {"rows": "5", "bad": "false", "names": "[]"},
        }
    ]
    assert "Counts rows." in quorate("pipeline", "list").out


@pytest.mark.usefixtures("counted")
def test_a_job_that_is_not_there_gets_a_suggestion(cluster: TestCluster, tmp_path: Path) -> None:
    outcome = run(cluster, tmp_path, job="count")

    assert outcome.code == 2
    assert outcome.err == "there is no job 'count'; there are counted; did you mean counted?\n"


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "rows=0"], "setting rows of the job counted: expected int >= 1"),
        (["--set", "rows=many"], "setting rows of the job counted: expected int, got str"),
        (
            ["--set", "names=a"],
            "setting names of the job counted is a list, such as --set 'names=[",
        ),
        (["--set", 'names=["a", 1]'], "setting names[1] of the job counted: expected str, got int"),
        (["--set", "rows"], "--set 'rows' is not of the form KEY=VALUE"),
        (["--set", "names=[1"], "--set names: [1 is not valid TOML"),
        (["--set", "row=1"], "the job counted has no setting 'row'; it has rows, bad, names"),
        (["--every", "1 fortnight"], "--every is '1 fortnight', but it must be such as '1 second'"),
        (["--every", "1 second", "--available-now"], "--every and --available-now exclude"),
        (["--spark", "memory=1g"], "--spark 'memory=1g' is not of the form spark.KEY=VALUE"),
        (["--master", "mesos"], "the master is 'mesos', but it must be local,"),
        (["--config", "/nonexistent"], "the settings in /nonexistent cannot be read: No such file"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    cluster: TestCluster, tmp_path: Path, options: list[str], sentence: str
) -> None:
    outcome = run(cluster, tmp_path, *options)

    assert outcome.code == 2
    assert outcome.err.startswith(sentence)
    assert outcome.err.count("\n") == 1


@pytest.mark.usefixtures("counted")
def test_the_command_line_goes_before_the_file(cluster: TestCluster, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('rows = 0\nnames = ["a"]\n')

    # The file is read, and refused for what it says.
    outcome = run(cluster, tmp_path, "--config", file)
    assert "rows of the job counted: expected int >= 1" in outcome.err

    outcome = run(cluster, tmp_path, "--config", file, "--set", "rows=7", "--master", "nowhere")
    assert outcome.err.startswith("the master is 'nowhere'")


@pytest.mark.usefixtures("counted")
def test_without_spark_it_says_what_to_install(
    cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    outcome = run(cluster, tmp_path)

    assert outcome.code == 2
    assert "pip install 'quorate[spark]'" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.usefixtures("counted")
def test_a_job_that_goes_on_and_on_has_to_remember_how_far_it_is(cluster: TestCluster) -> None:
    outcome = quorate("pipeline", "run", "counted", "-d", cluster.directory)

    assert outcome.code == 2
    assert outcome.err == (
        "the job counted needs a directory where it remembers how far it is; name one with "
        "--checkpoint\n"
    )


def test_without_a_cluster_it_says_how_to_make_one(tmp_path: Path) -> None:
    outcome = quorate("pipeline", "run", "archive", "-d", tmp_path, "--checkpoint", tmp_path / "c")

    assert outcome.code == 2
    assert outcome.err.startswith(f"there is no cluster in {tmp_path}")


def test_a_job_runs_until_control_c_goes_on_later_and_fails_in_one_sentence(
    cluster: TestCluster, counted: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    command = [
        *(sys.executable, "-c", WITH_THAT_JOB, counted, "pipeline", "run", "counted"),
        *("-d", cluster.directory, "--as", "bob", "--checkpoint", checkpoint),
        *("--master", "local[1]", "--every", "100 milliseconds", "--set", "rows=3"),
        *("--spark", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    ]

    with started(command) as first:
        line_with(first.stderr, "Java ", " from ")
        line_with(first.stderr, "counted runs as bob; Ctrl-C ends it.")
        line = line_with(first.stderr, "numbers: batch ", " rows/s")
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0, said
    assert said.endswith(f" rows; the same command goes on from {checkpoint}.\n")
    before = seen(checkpoint)
    batch, rows = re.findall(r"batch (\d+), (\d+) rows", line)[0]
    assert int(rows) == 3 * (int(batch) + 1)

    with started([*command, "--set", "bad=true"]) as second:
        out, said = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, out) == (1, "")
    assert said.splitlines()[-1] == (
        f"counted failed: what bob reads is bad; write something better; the same command goes on "
        f"from {checkpoint}"
    )
    assert "Traceback" not in said
    # A batch that was under way when the first was stopped comes again, and none is left out.
    after = seen(checkpoint)[len(before) :]
    assert after[0] in (before[-1], before[-1] + 1)


def started(command: list[object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def seen(checkpoint: Path) -> list[int]:
    """The numbers of the batches that the job was given."""
    return [int(line) for line in (checkpoint / "seen").read_text().split()]
