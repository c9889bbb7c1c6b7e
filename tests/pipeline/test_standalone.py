"""Jobs on a Spark cluster of several processes, none of which lives to see the end.

A driver is a process of its own, and sends the package to its executors. When all workers and then
the driver were killed, the Spark that the tests share goes on with what is in the checkpoints.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow
import pytest

from clusters import TestCluster, running_cluster, until
from market_ticks import Market, draw
from naive_trading import orders_of
from quorate.client import Producer
from quorate.pipeline.archive import Archive
from quorate.pipeline.jobs import archive, trading
from quorate.pipeline.jobs.archive import ArchiveConfig
from quorate.pipeline.jobs.job import Pipes
from quorate.pipeline.jobs.rules import Rule
from quorate.pipeline.jobs.trading import TradingConfig
from reading import everything_on, wait_for
from standalone import PATIENCE_S, StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRICES, LINES, ORDERS = "prices", "lines", "orders"
TOPICS: dict[str, dict[str, object]] = {
    PRICES: {"order": "total", "validated": True},
    LINES: {"order": "total", "partitions": 4},
    ORDERS: {"order": "total", "validated": True},
}
RULES = (
    Rule(name="up", when="above", percent=0.5, side="buy", quantity=10),
    Rule(name="down", when="below", percent=0.5, side="sell", quantity=20, trade="GOLD"),
)
LATENESS_US = 2_000_000

# Says where executors have the package from, and then runs both jobs for as long as it lives.
DRIVER = """
import json, sys, threading

import msgspec

import quorate
from quorate.pipeline.jobs import archive, trading
from quorate.pipeline.jobs.job import Pipes
from quorate.pipeline.running import follow
from quorate.pipeline.session import session

given = json.loads(sys.argv[1])
spark = session(given["master"], settings=given["settings"], ship_package=True)
tasks = spark.sparkContext.parallelize(range(4), 4)
print(json.dumps(tasks.map(lambda _: quorate.__file__).distinct().collect()), flush=True)
pipes = Pipes(
    spark=spark, cluster=given["cluster"], identity="bob", checkpoint=given["checkpoint"]
)
queries = []
for job in (archive.JOB, trading.JOB):
    queries += job.start(pipes, msgspec.convert(given[job.name], job.config))
follow(queries, threading.Event(), lambda progress: None)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        yield running


@dataclass(frozen=True)
class Task:
    """What the jobs are told, whoever runs them."""

    cluster: TestCluster
    directory: Path

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def archive(self) -> ArchiveConfig:
        directory = str(self.directory / "archive")
        return ArchiveConfig(topics=(PRICES, LINES), directory=directory, rows_at_once=400)

    @property
    def trading(self) -> TradingConfig:
        return TradingConfig(rules=RULES)


@dataclass
class Driver:
    """The driver while it runs, and how many ticks were published for its jobs."""

    task: Task
    process: "subprocess.Popen[str]"
    published: int = 0

    def publish(self, ticks: pyarrow.Table) -> None:
        asyncio.run(_publish(self.task.cluster, ticks, self.published))
        self.published += ticks.num_rows

    def until(self, condition: Callable[[], bool]) -> None:
        until(lambda: condition() or self.process.poll() is not None, seconds=PATIENCE_S)
        assert self.process.poll() is None, "the driver did not live to see it"

    def until_archived(self) -> None:
        """All ticks, and the lines beside them."""
        archive = Archive(self.task.archive.directory)
        self.until(lambda: sum(file.rows for file in archive.view().files) >= 2 * self.published)

    def is_at_work(self, query: str) -> bool:
        """Whether a batch of a query has begun and has not ended."""
        begun, ended = (
            {path.name for path in (self.task.checkpoint / query / log).glob("[0-9]*")}
            for log in ("offsets", "commits")
        )
        return len(begun) > len(ended)


async def _publish(cluster: TestCluster, ticks: pyarrow.Table, first: int) -> None:
    """Ticks, and a line beside each of them, so that archiving has several tasks."""
    times = ticks["timestamp"].cast(pyarrow.int64()).to_pylist()
    async with Producer(cluster.directory, "alice", batch_events=20) as producer:
        for number, row in enumerate(ticks.select(["key", "value"]).to_pylist()):
            await producer.submit(PRICES, **row, timestamp_us=times[number])
            await producer.submit(LINES, b"line %d" % (first + number), key=b"%d" % number)
        await producer.flush()


def test_archives_and_orders_have_each_row_once_though_workers_and_the_driver_are_killed(
    standalone: StandaloneCluster,
    cluster: TestCluster,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    market = draw(Market(seed=3, seconds=110, interval_ms=400, late=0.1, too_late=0.01)).table
    size = -(-market.num_rows // 4)
    wanted = orders_of(market, RULES, LATENESS_US)
    task = Task(cluster, tmp_path)
    others = standalone.drivers()

    with driven(standalone, task) as driver:
        assert driver.process.stdout is not None
        # Executors have the package that was sent to them, and not one that happened to be there.
        packages = json.loads(driver.process.stdout.readline())
        assert packages
        assert all(".zip/quorate/" in package for package in packages)
        for number, query in enumerate(("archive", "trading")):
            driver.publish(market.slice(number * size, size))
            driver.until(partial(driver.is_at_work, query))
            killed = standalone.workers[number]
            killed.kill()
            driver.until_archived()
            killed.start()
            driver.until(lambda: standalone.alive() == 2)
        known = len(everything_on(cluster.directory, ORDERS))
        driver.publish(market.slice(2 * size, size))
        # Most likely, Spark does not know yet that what is published now is done.
        wait_for(cluster.directory, ORDERS, known + 1)
        assert driver.process.poll() is None, "it ended before it could be killed"
        driver.process.kill()
        driver.publish(market.slice(3 * size))
    until(lambda: standalone.drivers() == others, seconds=PATIENCE_S)
    go_on(request.getfixturevalue("spark"), task)

    lines = [b"line %d" % number for number in range(market.num_rows)]
    rows = Archive(task.archive.directory).table(columns=["value"])
    assert Counter(rows["value"].to_pylist()) == Counter([*market["value"].to_pylist(), *lines])
    names = ("rule", "watched", "at", "since", "number", "price")
    given = (json.loads(record.value) for record in everything_on(cluster.directory, ORDERS))
    assert Counter(tuple(each[name] for name in names) for each in given) == Counter(wanted)


@contextmanager
def driven(standalone: StandaloneCluster, task: Task) -> Iterator[Driver]:
    given = {
        "master": standalone.url,
        "settings": standalone.settings,
        "cluster": str(task.cluster.directory),
        "checkpoint": str(task.checkpoint),
        "archive": msgspec.to_builtins(task.archive),
        "trading": msgspec.to_builtins(task.trading),
    }
    command = [sys.executable, "-c", DRIVER, json.dumps(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Driver(task, process)
        finally:
            process.kill()


def go_on(spark: "SparkSession", task: Task) -> None:
    """Do what is left."""
    pipes = Pipes(
        spark=spark,
        cluster=str(task.cluster.directory),
        identity="bob",
        checkpoint=str(task.checkpoint),
        available_now=True,
    )
    for query in (*archive.JOB.start(pipes, task.archive), *trading.JOB.start(pipes, task.trading)):
        assert query.awaitTermination(round(PATIENCE_S)), f"{query.name} did not end"
