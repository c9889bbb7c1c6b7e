"""What heartbeats and syslog lines say about hosts and brokers, as frames over windows.

Source: the messaging-gateway thesis, sections 3.3.2 to 3.3.5.

`observed` turns events into what was seen: which host, over which broker, when, and what kind of
message. The other functions are programs over that. All of it runs in Spark's own engine.

Time is when a broker took a message (its header `received`), since brokers are few and keep time,
while the clock of a single host that is wrong by an hour would close all windows. Who has no such
header is taken by its own time, and nobody is believed to be ahead of us: the latest time that is
claimed closes windows, and who claims a time to come would close those of all others. What differs
by more than numbers can say is not known: a host that claims such times or numbers has no figures,
and ends no query.

A host is called by who published for it and by its key: nobody speaks for the hosts of others.

State is bounded by what is seen within one window and `delay_s`: for rates, one row per topic,
broker, host and signature; for heartbeats, the numbers that each host sent in that time; for
unknown lines, one row per template. Messages later than `delay_s` are not counted.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from quorate.pipeline.signatures import UNKNOWN, Pattern, signature_of, template_of

HEARTBEAT: Final = "HEARTBEAT"

_VALUE: Final = "boot bigint, number bigint, line string"
_QUANTILES: Final = (0.5, 0.9, 0.99)
# With so many, the quantiles of what one host sends in a window are exact.
_QUANTILE_ACCURACY: Final = 10_000


class Topics(NamedTuple):
    """Where hosts publish."""

    heartbeats: str
    syslog: str


def observed(
    events: DataFrame, topics: Topics, patterns: Sequence[Pattern], delay_s: float
) -> DataFrame:
    """What was seen: which topic, host and broker, when, and what.

    What a program does not ask for costs nothing: of heartbeats, nobody looks for a signature.
    """
    received = F.timestamp_micros(_header("received").try_cast("bigint"))
    content = F.from_json(F.col("value").cast("string"), _VALUE)
    return (
        events.select(
            "topic",
            F.concat_ws("/", "producer", F.col("key").cast("string")).alias("host"),
            _header("broker").alias("broker"),
            F.coalesce(received, "timestamp").alias("taken"),
            "timestamp",
            F.octet_length("value").alias("bytes"),
            content.alias("content"),
            (F.col("topic") == topics.heartbeats).alias("is_heartbeat"),
        )
        .select(
            "topic",
            "host",
            "broker",
            _believed("taken").alias("heard"),
            "is_heartbeat",
            F.when(F.col("is_heartbeat"), F.lit(HEARTBEAT))
            .otherwise(signature_of(F.col("content.line"), patterns))
            .alias("signature"),
            "bytes",
            "content.boot",
            "content.number",
            "content.line",
            # What a message took on its way, and how much the clocks differ: both in one.
            F.try_subtract(F.unix_micros("taken"), F.unix_micros("timestamp")).alias("lag_us"),
        )
        .withWatermark("heard", f"{round(delay_s * 1000)} milliseconds")
    )


def rates(seen: DataFrame, window_s: float) -> DataFrame:
    """Messages and bytes of each window: of all, and by topic, broker, host and signature."""
    groups = [_group("all", F.lit("all"))]
    groups += [_group(each, F.col(each)) for each in ("topic", "broker", "host", "signature")]
    counted = (
        seen.select("heard", "bytes", F.explode(F.array(*groups)).alias("group"))
        .where("group.name is not null")
        .groupBy(
            _window(window_s), F.col("group.by").alias("by"), F.col("group.name").alias("name")
        )
        .agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
    )
    return counted.select(
        *_bounds(),
        "by",
        "name",
        "messages",
        "bytes",
        (F.col("messages") / window_s).alias("messages_per_s"),
        (F.col("bytes") / window_s).alias("bytes_per_s"),
    )


def balance(seen: DataFrame, brokers: Sequence[str], window_s: float) -> DataFrame:
    """How evenly brokers share the load of each window, by messages and by bytes.

    `fairness` is Jain's index: 1 if all have the same load, 1/n if one of n has it all. `peak` is
    the load of the busiest one as a multiple of the mean. Of brokers that are named, those count
    that took nothing too, and no others do.
    """
    broker = F.col("broker")
    taken = _where(seen, broker.isin(*brokers) if brokers else broker.isNotNull())
    loads = taken.groupBy(_window(window_s), "broker").agg(
        F.count("*").alias("messages"), F.sum("bytes").alias("bytes")
    )
    count = F.greatest(F.count("*"), F.lit(len(brokers)))
    return loads.groupBy("window").agg(
        count.alias("brokers"),
        F.map_from_entries(F.collect_list(F.struct("broker", "messages"))).alias("messages"),
        *(figure for load in ("messages", "bytes") for figure in _evenness(load, count)),
    ).select(
        *_bounds(), "brokers", "messages",
        "messages_fairness", "messages_peak", "bytes_fairness", "bytes_peak",
    )  # fmt: skip


def heartbeats(seen: DataFrame, limit_periods: int, window_s: float) -> DataFrame:
    """Delay and loss of the heartbeats of each host and window.

    Delays are those beyond the fastest message of the same host and window: a constant difference
    of clocks is in all of them, and falls out. `clock_us` is what falls out, the difference of
    clocks and the least delay.

    Loss is told by gaps in the numbers. `expected` is how many should have come after the first of
    a window up to its last one, and `lost` how many of them did not, so that `lost / expected` is
    the most likely probability of loss. What is missing before the first and after the last is not
    known (section 3.3.5). Where `limit_periods` or more are missing in a row, the host was cut off:
    that is an outage, of which there is an alert, and no loss.
    """
    is_numbered = F.col("number").isNotNull() & F.col("boot").isNotNull()
    numbers = F.array_sort(F.collect_set(F.struct("boot", "number")))
    counted = (
        _where(seen, F.col("is_heartbeat") & is_numbered)
        .groupBy(_window(window_s), "host")
        .agg(
            numbers.alias("numbers"),
            F.min("lag_us").alias("clock_us"),
            F.max("lag_us").alias("max_us"),
            F.percentile_approx("lag_us", _QUANTILES, _QUANTILE_ACCURACY).alias("quantiles"),
        )
        .withColumn("gaps", _gaps(F.col("numbers"), limit_periods))
    )
    expected = F.aggregate("gaps", F.lit(0).cast("bigint"), lambda total, gap: total + gap)
    delays = [
        F.try_subtract(F.col("quantiles")[place], F.col("clock_us")).alias(
            f"delay_us_p{round(100 * share)}"
        )
        for place, share in enumerate(_QUANTILES)
    ]
    return counted.select(
        *_bounds(),
        "host",
        F.size("numbers").alias("heard"),
        expected.alias("expected"),
        (expected - F.size("gaps")).alias("lost"),
        "clock_us",
        *delays,
        F.try_subtract(F.col("max_us"), F.col("clock_us")).alias("delay_us_max"),
    )


def unknown_lines(seen: DataFrame, window_s: float) -> DataFrame:
    """The templates of lines that no pattern fits, how many there were, and one of them."""
    return (
        _where(seen, (F.col("signature") == UNKNOWN) & F.col("line").isNotNull())
        .withColumn("template", template_of(F.col("line")))
        .groupBy(_window(window_s), "template")
        .agg(
            F.count("*").alias("lines"),
            F.approx_count_distinct("host").alias("hosts"),
            F.min("line").alias("example"),
        )
        .select(*_bounds(), "template", "lines", "hosts", "example")
    )


def _header(name: str) -> Column:
    """The first header of this name; an event may have several, or none."""
    named = F.filter("headers", lambda header: header["name"] == name)
    return F.get(named, F.lit(0))["value"].cast("string")


def _believed(time: str) -> Column:
    """Neither later than now, nor from before 1970, where windows cannot be computed any more."""
    now, begin = F.current_timestamp(), F.timestamp_micros(F.lit(0))
    return F.when(F.col(time) > now, now).when(F.col(time) < begin, begin).otherwise(F.col(time))


def _where(seen: DataFrame, condition: Column) -> DataFrame:
    """Only these rows are counted, but the others move time on too.

    Spark would put a filter before the watermark, and windows of what is rare would stay open
    until there is more of it; a filter that needs the time, which may be null for all Spark knows,
    stays behind.
    """
    return seen.where(F.when(condition, F.col("heard")).isNotNull())


def _window(window_s: float) -> Column:
    return F.window("heard", f"{round(window_s * 1000)} milliseconds")


def _bounds() -> tuple[Column, Column]:
    start, end = F.unix_micros("window.start"), F.unix_micros("window.end")
    return start.alias("start_us"), end.alias("end_us")


def _group(by: str, name: Column) -> Column:
    return F.struct(F.lit(by).alias("by"), name.alias("name"))


def _evenness(load: str, count: Column) -> tuple[Column, Column]:
    total = F.sum(load).cast("double")
    squares = F.sum(F.col(load).cast("double") * F.col(load))
    return (
        (total * total / (count * squares)).alias(f"{load}_fairness"),
        (F.max(load) * count / total).alias(f"{load}_peak"),
    )


def _gaps(numbers: Column, limit_periods: int) -> Column:
    """From each heartbeat to the next of the same boot: 1 if none is missing between them."""
    nexts = F.slice(numbers, F.lit(2), F.greatest(F.size(numbers) - 1, F.lit(0)))
    steps = F.zip_with(
        nexts,
        F.slice(numbers, F.lit(1), F.greatest(F.size(numbers) - 1, F.lit(0))),
        lambda after, before: F.when(
            after["boot"] == before["boot"], F.try_subtract(after["number"], before["number"])
        ),
    )
    return F.filter(steps, lambda step: step.isNotNull() & (step <= limit_periods))
