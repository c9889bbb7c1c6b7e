"""Whoever claims a time to come does not take the time of others away.

The watermark of a stream is the latest time that anybody claimed, less a delay, and what is older
is passed over: one event that is dated a year ahead would end a job for all others. For the
monitor, this is in `test_monitor.py`.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from estates import HEADERS
from quorate.pipeline import schema
from quorate.pipeline.jobs import monitor, patterns, portscan, trading
from quorate.pipeline.jobs.monitor import MonitorConfig
from quorate.pipeline.jobs.portscan import PortscanConfig
from quorate.pipeline.jobs.trading import TradingConfig
from streams import Directory, as_events

YEAR_US = 366 * 86_400_000_000
EARLIEST_US, LATEST_US = -(2**63), 2**63 - 1
WAIT_S = 240


def sequences(events: DataFrame) -> DataFrame:
    mine = events.withColumn("consumer", F.lit("one"))
    return patterns.matches(mine, (patterns.EXAMPLE,), order="log")


PROGRAMS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "trading": lambda events: trading.orders(events, TradingConfig()),
    "patterns": sequences,
    "portscan": lambda events: portscan.blacklist(events, PortscanConfig(topics=("events",))),
}


def test_no_event_moves_the_time_of_a_job_beyond_now(spark: SparkSession, tmp_path: Path) -> None:
    ahead_us = round(time.time() * 1e6) + YEAR_US
    times_us = [ahead_us, EARLIEST_US, LATEST_US]
    # A tick, an event of a pattern and a packet in one.
    values = [
        b'{"price":100,"type":"e","kind":"SYN","source":"a","destination":"b",'
        b'"destination_port":1,"source_port":2,"time":%d}' % time_us
        for time_us in times_us
    ]
    table = pyarrow.table(
        {
            "key": pyarrow.array([b"IBM"] * 3, pyarrow.binary()),
            "value": pyarrow.array(values, pyarrow.binary()),
            "timestamp": pyarrow.array(times_us, pyarrow.timestamp("us", "UTC")),
        }
    )
    directory = Directory(tmp_path / "events")
    directory.add(as_events(table, "events"), 1)
    for job, program in PROGRAMS.items():
        frame = program(directory.stream(spark))
        query = frame.writeStream.format("noop").trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S), job

        marks = [each["eventTime"].get("watermark") for each in query.recentProgress]
        latest = max(datetime.fromisoformat(mark) for mark in marks if mark)
        assert datetime.fromtimestamp(0, UTC) < latest <= datetime.now(UTC), job


def test_events_of_a_clock_that_is_ahead_keep_their_times_as_far_as_they_may_be_late(
    spark: SparkSession,
) -> None:
    """Cut off at now, which is another moment in each batch, they would change places."""
    lateness_us = 3_600_000_000
    now_us = round(time.time() * 1e6)
    ahead_us = [now_us + lateness_us // 2 + number for number in range(3)]
    kinds = ["e", "e'", "e''"]
    table = pyarrow.table(
        {
            "key": pyarrow.array([b"IBM"] * 3, pyarrow.binary()),
            "value": [b'{"price":100,"type":"%s"}' % kind.encode() for kind in kinds],
            "timestamp": pyarrow.array(ahead_us, pyarrow.timestamp("us", "UTC")),
        }
    )
    frame = spark.createDataFrame(as_events(table, "events"))

    ticks = trading.ticks(frame, lateness_us)
    assert sorted(row.at_us for row in ticks.collect()) == ahead_us
    assert all(row.timestamp.timestamp() <= time.time() for row in ticks.collect())

    mine = frame.withColumn("consumer", F.lit("one"))
    (match,) = patterns.matches(
        mine, (patterns.EXAMPLE,), order="log", lateness=f"{lateness_us}us"
    ).collect()
    assert (match["first"], match["last"]) == (ahead_us[0], ahead_us[-1])


def test_a_host_that_claims_what_cannot_be_ends_no_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark ends a query where a difference is too large for its type."""
    claims = [EARLIEST_US, 0, LATEST_US]
    rows = [
        (number, sent_us, heard_us)
        for number in claims
        for sent_us in claims
        for heard_us in claims
    ]
    table = pyarrow.table(
        {
            "key": pyarrow.array([b"host"] * len(rows), pyarrow.binary()),
            "value": [b'{"boot":0,"number":%d}' % number for number, _, _ in rows],
            "timestamp": pyarrow.array(
                [sent_us for _, sent_us, _ in rows], pyarrow.timestamp("us", "UTC")
            ),
        }
    )
    headers = [[{"name": "received", "value": b"%d" % heard_us}] for *_, heard_us in rows]
    events = as_events(table, "heartbeats").append_column(
        "headers", pyarrow.array(headers, HEADERS)
    )
    Directory(tmp_path / "events").add(events, 1)
    frame = spark.read.schema(schema.EVENTS).parquet(str(tmp_path / "events"))

    assert monitor.heartbeats(frame, MonitorConfig()).collect()
    assert monitor.rates(frame, MonitorConfig()).collect()
