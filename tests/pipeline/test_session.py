"""A Spark session: where it runs, what it was told, and how it says that it cannot."""

import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from net import free_ports
from quorate.core.errors import ConfigError
from quorate.pipeline.session import (
    ROCKSDB,
    SPARK_LOG,
    Master,
    SparkStartError,
    packed,
    session,
)
from standalone import StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize(
    ("url", "is_loopback", "cores", "addresses"),
    [
        ("local", True, 1, ()),
        ("local[3]", True, 3, ()),
        ("local[3,2]", True, 3, ()),
        ("spark://127.0.0.1:7077", True, None, (("127.0.0.1", 7077),)),
        ("spark://a:7077,b:7078", False, None, (("a", 7077), ("b", 7078))),
        ("yarn", False, None, ()),
        ("k8s://https://k.example:6443", False, None, (("k.example", 6443),)),
        ("k8s://https://k.example", False, None, (("k.example", 443),)),
    ],
)
def test_a_master_is_known_by_its_form(
    url: str, is_loopback: bool, cores: int | None, addresses: tuple[tuple[str, int], ...]
) -> None:
    assert Master.parse(url) == Master(url, is_loopback, cores, addresses)


@pytest.mark.parametrize(
    "url", ["", "locale", "local[0]", "spark://host", "k8s://host", "mesos://a:1"]
)
def test_another_form_is_refused_with_those_that_there_are(url: str) -> None:
    with pytest.raises(ConfigError, match="it must be local, local.N., .*, or k8s://"):
        Master.parse(url)


def test_a_master_that_does_not_answer_is_named() -> None:
    (port,) = free_ports(1)

    with pytest.raises(
        SparkStartError, match=f"nobody answers at the master .*:{port}: "
    ) as refused:
        Master.parse(f"spark://127.0.0.1:{port}").require_answer()

    assert refused.value.retriable


def test_of_several_masters_one_is_enough() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = listening.getsockname()[1]
        listening.settimeout(10)

        Master.parse(f"spark://127.0.0.1:{port},127.0.0.1:{there}").require_answer()

        # It is the second one that was asked last, and found.
        link, _ = listening.accept()
        assert link.getsockname()[1] == there
        link.close()


def test_yarn_needs_to_know_where_its_configuration_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)

    with pytest.raises(ConfigError, match="set HADOOP_CONF_DIR or YARN_CONF_DIR"):
        Master.parse("yarn").require_answer()


def test_spark_is_told_what_it_would_guess_wrongly(spark: "SparkSession") -> None:
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.ui.enabled": "false",
    }

    assert {key: spark.conf.get(key) for key in settings} == settings
    assert spark.sparkContext.pythonExec == sys.executable


def test_topics_are_a_format_of_any_session(spark: "SparkSession") -> None:
    """It is found, and only lacks options; another is not."""
    for each in (spark, spark.newSession()):
        assert "DATA_SOURCE_NOT_FOUND" in refusal(each, "quorates")
        assert "option 'cluster' is missing" in refusal(each, "quorate")


def refusal(spark: "SparkSession", name: str) -> str:
    try:
        spark.readStream.format(name).load()
    except (Py4JError, PySparkException) as error:
        return str(error)
    return ""


def test_its_messages_are_in_a_file_and_not_on_the_terminal(
    spark: "SparkSession",
    capfd: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    java: Any = spark.sparkContext._jvm

    java.org.apache.logging.log4j.LogManager.getLogger("a.Test").error("something is amiss")

    file = tmp_path_factory.getbasetemp() / "spark-logs0" / SPARK_LOG
    assert "ERROR Test: something is amiss" in file.read_text()
    assert capfd.readouterr() == ("", "")


def test_the_session_that_runs_is_handed_out_again(
    spark: "SparkSession", standalone: StandaloneCluster
) -> None:
    assert session(standalone.url).sparkContext is spark.sparkContext


@pytest.mark.usefixtures("spark")
def test_a_second_session_elsewhere_is_refused(standalone: StandaloneCluster) -> None:
    with pytest.raises(ConfigError, match=f"has a Spark session on {standalone.url} already"):
        session("local[1]")


def test_the_package_can_be_sent_along(tmp_path: Path) -> None:
    with zipfile.ZipFile(packed(tmp_path)) as archive:
        names = set(archive.namelist())

    wanted = {"quorate/__init__.py", "quorate/core/codec.py", "quorate/pipeline/patterns.toml"}
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.parametrize("is_same_python", [True, False])
def test_what_is_sent_along_is_compiled_for_those_who_have_the_same_python(
    tmp_path: Path, is_same_python: bool
) -> None:
    """A worker with another Python has other first bytes in what it compiles, and reads sources."""
    package = packed(tmp_path)
    other = (
        "" if is_same_python else "import _frozen_importlib_external as e\ne.MAGIC_NUMBER = b'-'"
    )
    code = f"""{other}
import builtins, sys
compile, compiled = builtins.compile, []
def counted(source, name, *rest, **options):
    compiled.append(name)
    return compile(source, name, *rest, **options)
builtins.compile = counted
sys.path.insert(0, sys.argv[1])
import quorate.core.cluster
assert ".zip/quorate/" in quorate.__file__
print(len([name for name in compiled if ".zip/quorate/" in name]))
"""
    found = subprocess.run(
        [sys.executable, "-P", "-c", code, package], capture_output=True, text=True, check=True
    )
    assert (int(found.stdout) == 0) is is_same_python
