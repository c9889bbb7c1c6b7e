"""Jobs on a Spark cluster of several processes, none of which lives to see the end.

Workers have no package of their own: it is sent to them.
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

import msgspec
import pyarrow
import pytest

from clusters import TestCluster, running_cluster, until
from naive_trading import orders_of
from quorate.client import Producer
from quorate.pipeline.archive import Archive
from quorate.pipeline.data.ticks import Market, draw
from quorate.pipeline.jobs.rules import Rule
from reading import everything_on, wait_for
from standalone import PATIENCE_S, StandaloneCluster, standalone_cluster

pytestmark = pytest.mark.xdist_group("spark")

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

# Runs both jobs until it is told to end, and then says where executors have the package from.
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
pipes = Pipes(
    spark=spark, cluster=given["cluster"], identity="bob", checkpoint=given["checkpoint"]
)
queries = []
for job in (archive.JOB, trading.JOB):
    queries += job.start(pipes, msgspec.convert(given[job.name], job.config))
stopping = threading.Event()

def listen():
    sys.stdin.read()
    stopping.set()

threading.Thread(target=listen, daemon=True).start()
follow(queries, stopping, lambda progress: None)
tasks = spark.sparkContext.parallelize(range(4), 4)
print(json.dumps(tasks.map(lambda _: quorate.__file__).distinct().collect()))
"""


@pytest.fixture(scope="module")
def workers() -> Iterator[StandaloneCluster]:
    with standalone_cluster(workers=2, cores=1) as made:
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        yield running


@dataclass
class Driver:
    """The driver while it runs, and how many ticks were published for its jobs."""

    cluster: TestCluster
    directory: Path
    process: "subprocess.Popen[str]"
    published: int = 0

    def publish(self, ticks: pyarrow.Table) -> None:
        asyncio.run(_publish(self.cluster, ticks, self.published))
        self.published += ticks.num_rows

    def until(self, condition: Callable[[], bool]) -> None:
        until(lambda: condition() or self.process.poll() is not None, seconds=PATIENCE_S)
        assert self.process.poll() is None, "the driver did not live to see it"

    def until_archived(self) -> None:
        """All ticks, and the lines beside them."""
        archive = Archive(str(self.directory / "archive"))
        self.until(lambda: sum(file.rows for file in archive.view().files) >= 2 * self.published)

    def is_at_work(self, query: str) -> bool:
        """Whether a batch of a query has begun and has not ended."""
        checkpoint = self.directory / "checkpoint" / query
        begun, ended = (
            {path.name for path in (checkpoint / log).glob("[0-9]*")}
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


def test_archives_and_orders_have_each_row_once_though_workers_are_killed(
    workers: StandaloneCluster, cluster: TestCluster, tmp_path: Path
) -> None:
    market = draw(Market(seed=3, seconds=110, interval_ms=400, late=0.1, too_late=0.01)).table
    size = -(-market.num_rows // 3)
    wanted = orders_of(market, RULES, LATENESS_US)

    with driven(workers, cluster, tmp_path) as driver:
        driver.publish(market.slice(0, size))
        driver.until_archived()
        for number, query in enumerate(("archive", "trading"), 1):
            driver.publish(market.slice(number * size, size))
            driver.until(partial(driver.is_at_work, query))
            killed = workers.workers[number - 1]
            killed.kill()
            driver.until_archived()
            killed.start()
            driver.until(lambda: workers.alive() == 2)
        wait_for(cluster.directory, ORDERS, len(wanted))
        out, _ = driver.process.communicate(timeout=PATIENCE_S)

    assert driver.process.returncode == 0
    # Executors have the package that was sent to them, and not one that happened to be there.
    assert all(".zip/quorate/" in package for package in json.loads(out))
    lines = [b"line %d" % number for number in range(market.num_rows)]
    rows = Archive(str(tmp_path / "archive")).table(columns=["value"])
    assert Counter(rows["value"].to_pylist()) == Counter([*market["value"].to_pylist(), *lines])
    names = ("rule", "watched", "at", "since", "number", "price")
    given = (json.loads(record.value) for record in everything_on(cluster.directory, ORDERS))
    assert Counter(tuple(each[name] for name in names) for each in given) == Counter(wanted)


@contextmanager
def driven(workers: StandaloneCluster, cluster: TestCluster, directory: Path) -> Iterator[Driver]:
    archive = {"topics": [PRICES, LINES], "directory": str(directory / "archive")}
    given = {
        "master": workers.url,
        "settings": workers.settings,
        "cluster": str(cluster.directory),
        "checkpoint": str(directory / "checkpoint"),
        "archive": {**archive, "rows_at_once": 400},
        "trading": {"rules": msgspec.to_builtins(RULES)},
    }
    command = [sys.executable, "-c", DRIVER, json.dumps(given)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Driver(cluster, directory, process)
        finally:
            process.kill()
