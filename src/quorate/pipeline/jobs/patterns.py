"""Sequences of events across topics, and on how many of them two consumers agree.

Source: QoS over wide-area networks, section 3.5 with figure 3.21: two subscribers that look for
e, then e', then e'' agree on 35 % of what they find if each sees events as they arrive, and on all
of it if they see one order. What a pattern is and how it is matched is in `matching.py`.

Which order a consumer has is the caller's to say:
- `arrival`: its own, by the column `arrival`, which counts what it received. On unordered topics
  there is no other.
- `log`: that of the topics, by `position` (the place of the batch in the order log, which all
  validated topics share) or, where there is none, `offset`; and then `index`. Without positions
  this is an order only within one partition of one topic, so the job then reads one such.

Agreement is the thesis' percentage of sequence detection: "the ratio between the number of event
sequences correctly detected by all subscribers and the number of event sequences occurred (despite
how many subscribers detected them)". A sequence that nobody detected in the order in which it saw
events did not occur for anybody, so that is what all found, divided by what at least one found. A
sequence is its pattern, its key and its very events.

Frames that are there are matched by window functions, streams by a state per consumer and key.
Both have the columns consumer, topic, key, value, timestamp, offset, index, and arrival or
position as the order asks. Events are told apart by topic, offset and index, and by `partition` and
`producer` too if the frame has them. A live topic has no offsets: there, `offset` is the batch's
sequence number, which counts for each producer.

No event moves time beyond now (`clocks.py`): whoever claims a time to come would else move the
watermark beyond the events of all others, which Spark then passes over.
"""

from functools import reduce
from typing import TYPE_CHECKING, Literal

import pandas
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from quorate.core.durations import parse
from quorate.core.errors import ConfigError
from quorate.pipeline.jobs.checks import check_lateness, check_names
from quorate.pipeline.jobs.clocks import happened_us, moves_time
from quorate.pipeline.jobs.job import Config, Job, Pipes
from quorate.pipeline.jobs.matching import Pattern, Run, Runs, Seen
from quorate.pipeline.jobs.waking import Waking

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Order = Literal["arrival", "log"]
EXAMPLE = Pattern(name="example", of="type", steps=("e", "e'", "e''"), within="5s")
MATCHES = (
    "consumer string, key binary, pattern string, events array<string>, first bigint, last bigint"
)
_IDENTITY = ("topic", "partition", "producer", "offset", "index")


class PatternsConfig(Config, frozen=True, kw_only=True):
    """Where events come from, where matches go, and what is looked for."""

    topics: tuple[str, ...] = ("ledger",)
    matches: str = "alerts"
    patterns: tuple[Pattern, ...] = (EXAMPLE,)
    # How long an event may be under way, at most.
    lateness: str = "2s"

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("there is no topic to look for patterns in; name at least one")
        if self.matches in self.topics:
            raise ConfigError(f"'{self.matches}' cannot have the events and the matches both")
        if not self.patterns:
            raise ConfigError("there are no patterns; name at least one")
        check_names("patterns", [pattern.name for pattern in self.patterns])
        check_lateness(self.lateness)


def matches(
    frame: DataFrame, patterns: tuple[Pattern, ...], *, order: Order, lateness: str = "2s"
) -> DataFrame:
    """What each consumer finds, as `MATCHES` has it.

    Clocks may be ahead of ours by `lateness`; and in a stream, events may be late by it.
    """
    seen = _seen(frame, patterns, order, parse(lateness))
    if frame.isStreaming:
        return _streamed(seen, patterns, lateness)
    return reduce(DataFrame.union, [_windowed(seen, pattern) for pattern in patterns])


def agreement(found: DataFrame, *, consumers: int = 2) -> DataFrame:
    """For each pattern, how many sequences all of so many consumers found, and how many anyone.

    A pattern that nobody found has no row: nothing was there to agree on.
    """
    sequences = found.groupBy("pattern", "key", "events").agg(
        F.countDistinct("consumer").alias("by")
    )
    counted = sequences.groupBy("pattern").agg(
        F.count_if(F.col("by") == consumers).alias("agreed"), F.count("*").alias("found")
    )
    return counted.withColumn("share", F.col("agreed") / F.col("found"))


def published(found: DataFrame) -> DataFrame:
    """Matches as events: of their key, and of the time of their latest event."""
    described = F.struct("pattern", "consumer", "events", "first", "last")
    return found.select(
        "key",
        F.to_json(described).cast("binary").alias("value"),
        F.timestamp_micros("last").alias("timestamp"),
    )


def _seen(
    frame: DataFrame, patterns: tuple[Pattern, ...], order: Order, lateness_us: int
) -> DataFrame:
    """Of the events, what matching asks for; those of no step are passed over here."""
    kind = F.from_json(F.col("value").cast("string"), "type string")["type"]
    identity = [F.col(name).cast("string") for name in _IDENTITY if name in frame.columns]
    seen = frame.select(
        "consumer",
        "key",
        moves_time(F.col("timestamp")).alias("timestamp"),
        happened_us(F.unix_micros("timestamp"), lateness_us).alias("at_us"),
        _major(frame, order).alias("major"),
        F.col("index").alias("minor"),
        F.concat_ws("/", *identity).alias("event"),
        "topic",
        kind.alias("type"),
    )
    steps = [F.col(pattern.of).isin(*pattern.steps) for pattern in patterns]
    return seen.where(reduce(Column.__or__, steps))


def _major(frame: DataFrame, order: Order) -> Column:
    if order == "arrival":
        return F.col("arrival")
    if "position" in frame.columns:
        return F.coalesce("position", "offset")
    return F.col("offset")


def _windowed(seen: DataFrame, pattern: Pattern) -> DataFrame:
    """From the last step to the first: each event is put before the nearest match of the rest.

    The nearest event of the next step always has a match of the rest if a later one has, so the
    nearest that has one is the nearest of all. Windows run backwards, because Spark sums up what
    is before a row as it goes, while it would look at all that is behind it again for each row.
    """
    nearest = (
        Window.partitionBy("consumer", "key")
        .orderBy(F.desc("major"), F.desc("minor"))
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    name, own, at_us = F.col(pattern.of), F.array("event"), F.col("at_us")
    alone = F.struct(own.alias("events"), at_us.alias("first"), at_us.alias("last"))
    rows = seen.withColumn("match", F.when(name == pattern.steps[-1], alone))
    for step in reversed(pattern.steps[:-1]):
        rows = rows.withColumn("rest", F.last("match", ignorenulls=True).over(nearest))
        rest = F.col("rest")
        longer = F.struct(
            F.concat(own, rest["events"]).alias("events"),
            F.least(at_us, rest["first"]).alias("first"),
            F.greatest(at_us, rest["last"]).alias("last"),
        )
        rows = rows.withColumn("match", F.when((name == step) & rest.isNotNull(), longer))
    found = rows.where(F.col("match").isNotNull()).select(
        "consumer", "key", F.lit(pattern.name).alias("pattern"), "match.*"
    )
    return found.where(F.col("last") - F.col("first") <= pattern.within_us)


def _streamed(seen: DataFrame, patterns: tuple[Pattern, ...], lateness: str) -> DataFrame:
    return (
        seen.withWatermark("timestamp", f"{parse(lateness) // 1000} milliseconds")
        .groupBy("consumer", "key")
        .transformWithStateInPandas(
            Matcher(patterns), outputStructType=MATCHES, outputMode="Append", timeMode="EventTime"
        )
    )


class Matcher(Waking[Runs]):
    """Keeps the `Runs` of each consumer and key, and wakes up when events need not wait longer."""

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        super().__init__("runs", Runs)
        self._patterns = patterns

    def go_on(
        self, key: tuple[str, bytes], runs: Runs, rows: pandas.DataFrame | None, until_us: int
    ) -> tuple[list[dict[str, object]], int | None]:
        if rows is not None:
            columns = (rows[name].tolist() for name in Seen.__struct_fields__)
            runs.hear([Seen(*row) for row in zip(*columns, strict=True)])
        found = runs.advance(self._patterns, until_us)
        return [_row(key, *each) for each in found], runs.next_us(self._patterns)


def _row(key: tuple[str, bytes], pattern: str, run: Run) -> dict[str, object]:
    return {
        "consumer": key[0],
        "key": key[1],
        "pattern": pattern,
        "events": list(run.events),
        "first": run.first_us,
        "last": run.last_us,
    }


def start(pipes: Pipes, config: PatternsConfig) -> "list[StreamingQuery]":
    """Read topics, publish matches."""
    events = pipes.events(*config.topics).withColumn("consumer", F.lit(pipes.identity))
    found = matches(events, config.patterns, order="log", lateness=config.lateness)
    return [pipes.publish("patterns", published(found), config.matches)]


JOB = Job(
    "patterns", "Sequences of events across topics are found and published.", PatternsConfig, start
)
