"""Watches hosts and brokers: rates, load balance, content, heartbeats, silence.

Source: the messaging-gateway thesis, section 3.3 (G12) and section 3.2.1 (G13).

Reads heartbeats (`{"boot": 0, "number": 17}`) and syslog lines (`{"line": "sshd[411]: ..."}`), each
with the host as its key, and which broker took it and when (microseconds) in the headers `broker`
and `received`. Publishes, as JSON objects:

- on the metrics topic, `rate`, `balance` and `heartbeats` of each window that is over;
- on the topic of unknown lines, the templates of lines that no pattern fits;
- on the alerts topic, hosts that fall silent and come back, urgently;
- on the heartbeats topic, a heartbeat of its own, so that time goes on when nobody else is heard.

What each figure means stands with the functions in `pipeline/observing.py`, and when a host is
silent in `pipeline/silence.py`. Partitions have to be read about evenly: what is further behind the
others than `delay_s` is too late to count.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from msgspec import Meta
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from quorate.pipeline import observing
from quorate.pipeline.jobs.job import Config, Job, Pipes
from quorate.pipeline.observing import Topics, observed
from quorate.pipeline.signatures import read_patterns
from quorate.pipeline.silence import CHANGES, Limits, Silences

# The name of the job's own heartbeats.
MONITOR: Final = "monitor"

_Seconds = Annotated[float, Meta(gt=0, le=7 * 86400)]
_Program = Literal["silences", "rates", "balance", "heartbeats", "unknown"]


class MonitorConfig(Config, frozen=True, kw_only=True):
    """What to watch, and where to say what was seen."""

    heartbeats: str = "heartbeats"
    syslog: str = "syslog"
    metrics: str = "metrics"
    alerts: str = "alerts"
    unknown: str = "unknown-lines"
    # Hosts send a heartbeat so often, and are silent after so many of them are missing.
    period_s: _Seconds = 5.0
    limit_periods: Annotated[int, Meta(ge=2, le=1000)] = 5
    window_s: _Seconds = 60.0
    # Delay and loss need more heartbeats than rates do.
    heartbeats_window_s: _Seconds = 300.0
    # By how much messages may overtake each other between brokers and partitions.
    delay_s: _Seconds = 10.0
    # After so long, a host that is silent is no longer waited for.
    forget_s: Annotated[float, Meta(gt=0, le=366 * 86400)] = 7 * 86400.0
    # The brokers between which load is to be balanced; none: those that are seen.
    brokers: tuple[str, ...] = ()
    # A pattern library instead of the one that comes with the package.
    patterns: str | None = None
    # What is watched; each is a query of its own, and costs as much.
    programs: Annotated[tuple[_Program, ...], Meta(min_length=1)] = get_args(_Program)

    @property
    def limits(self) -> Limits:
        silent_ms = round(self.limit_periods * self.period_s * 1000)
        return Limits(silent_ms, silent_ms + round(self.forget_s * 1000))


def seen(events: DataFrame, config: MonitorConfig) -> DataFrame:
    """What events of both topics say, as `observed` has it."""
    patterns = read_patterns(None if config.patterns is None else Path(config.patterns))
    topics = Topics(config.heartbeats, config.syslog)
    return observed(events, topics, patterns, config.delay_s)


def rates(events: DataFrame, config: MonitorConfig) -> DataFrame:
    found = observing.rates(seen(events, config), config.window_s)
    return _published("rate", found, F.concat_ws(":", "by", "name"))


def balance(events: DataFrame, config: MonitorConfig) -> DataFrame:
    found = observing.balance(seen(events, config), config.brokers, config.window_s)
    return _published("balance", found, F.lit("balance"))


def heartbeats(events: DataFrame, config: MonitorConfig) -> DataFrame:
    found = observing.heartbeats(
        seen(events, config), config.limit_periods, config.heartbeats_window_s
    )
    return _published("heartbeats", found, F.col("host"))


def unknown_lines(events: DataFrame, config: MonitorConfig) -> DataFrame:
    found = observing.unknown_lines(seen(events, config), config.window_s)
    return _published("unknown", found, F.col("template"))


def silences(events: DataFrame, config: MonitorConfig, *, own: str | None = None) -> DataFrame:
    """Alerts and all-clears: `silent`, `back` and `forgotten`.

    `own` is the host as which this job is heard itself. Its heartbeats move time on, and come late
    when the job is slow, which is nothing to be alarmed about.
    """
    heard = (
        seen(events, config)
        .where("is_heartbeat")
        .select("host", "heard", F.unix_millis("heard").alias("heard_ms"))
    )
    changes = heard.groupBy("host").transformWithState(
        statefulProcessor=Silences(config.limits),
        outputStructType=CHANGES,
        outputMode="Append",
        timeMode="EventTime",
    )
    if own is not None:
        changes = changes.where(F.col("host") != own)
    value = F.to_json(F.struct("kind", "host", "since_ms", "at_ms"))
    return changes.select(
        F.col("host").cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        F.lit(True).alias("urgent"),
    )


def ticks(spark: SparkSession, config: MonitorConfig) -> DataFrame:
    """The job's own heartbeats, one every period (or every second, if periods are shorter)."""
    every = max(1, round(config.period_s))
    seconds = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    number = F.expr(f"value div {every}")
    received = F.unix_micros("timestamp").cast("string").cast("binary")
    return seconds.where(F.col("value") % every == 0).select(
        F.lit(MONITOR).cast("binary").alias("key"),
        F.to_json(F.struct(F.lit(0).alias("boot"), number.alias("number")))
        .cast("binary")
        .alias("value"),
        F.array(F.struct(F.lit("received").alias("name"), received.alias("value"))).alias(
            "headers"
        ),
        "timestamp",
    )


def start(pipes: Pipes, config: MonitorConfig) -> list[StreamingQuery]:
    both = (config.heartbeats, config.syslog)
    beats = config.heartbeats
    own = f"{pipes.identity}/{MONITOR}"
    programs = (
        ("silences", partial(silences, own=own), (beats,), config.alerts),
        ("rates", rates, both, config.metrics),
        ("balance", balance, both, config.metrics),
        ("heartbeats", heartbeats, (beats,), config.metrics),
        ("unknown", unknown_lines, both, config.unknown),
    )
    queries = [
        pipes.publish(f"{MONITOR}-{name}", program(pipes.events(*topics), config), destination)
        for name, program, topics, destination in programs
        if name in config.programs
    ]
    if not pipes.available_now:
        # Who reads only what is there has no time to pass.
        paced = replace(pipes, every=f"{max(1, round(config.period_s))} seconds")
        queries.append(paced.publish(f"{MONITOR}-ticks", ticks(pipes.spark, config), beats))
    return queries


def _published(kind: str, found: DataFrame, key: Column) -> DataFrame:
    value = F.to_json(F.struct(F.lit(kind).alias("kind"), *found.columns))
    return found.select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))


JOB: Final = Job(
    MONITOR,
    "Watches hosts and brokers: rates, load balance, content, heartbeats, and who falls silent.",
    MonitorConfig,
    start,
)
