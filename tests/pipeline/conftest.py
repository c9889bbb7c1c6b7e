"""One Spark for all tests of the pipeline: to start it takes longer than most of them.

It is a standalone cluster of several processes, so that every job and both ends of a topic are
tried on one. What runs on a local master is what the command line, the demo and the tests of Java
start.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from standalone import StandaloneCluster

# What runs for seconds gains nothing from what the better compiler takes time for. Drivers that are
# processes of their own and what runs a Spark cluster have it from here.
QUICK_TO_START = "-XX:TieredStopAtLevel=1"
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_TO_START)
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", QUICK_TO_START)


@pytest.hookimpl(tryfirst=True)  # before xdist looks who belongs together
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses it runs on the worker that has it.

    Workers are killed first of all, while nobody else has executors there that start again.
    """
    for item in items:
        if {"spark", "standalone"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item.path.name != "test_standalone.py")


@pytest.fixture(scope="session")
def standalone() -> Iterator["StandaloneCluster"]:
    """Two workers, with room for a driver beside the one that all tests share."""
    from standalone import standalone_cluster

    with standalone_cluster(workers=2, drivers=2) as made:
        yield made


@pytest.fixture(scope="session")
def spark(
    standalone: "StandaloneCluster", tmp_path_factory: pytest.TempPathFactory
) -> Iterator["SparkSession"]:
    from quorate.pipeline.session import session

    before = dict(os.environ)
    made = session(
        standalone.url,
        app_name="tests",
        settings={
            **standalone.settings,
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            # Queries of a few rows are over before what is compiled for them pays.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
        log_directory=tmp_path_factory.mktemp("spark-logs"),
    )
    yield made
    made.stop()
    os.environ.clear()
    os.environ.update(before)
