"""The monitor job, held against what is true of the recording that it reads."""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from estates import broker_of, host_of, rates_by_hand, returns, table_of
from quorate.core.errors import ConfigError
from quorate.pipeline.data.hosts import HEARTBEATS, SYSLOG, Estate, Message, Recording
from quorate.pipeline.jobs import monitor
from quorate.pipeline.jobs.job import Pipes
from quorate.pipeline.jobs.monitor import JOB, MonitorConfig
from quorate.pipeline.schema import EVENTS, PUBLISHED
from quorate.pipeline.signatures import parse_patterns, read_patterns

Program = Callable[[DataFrame, MonitorConfig], DataFrame]

SECOND_US = 1_000_000
CONFIG = MonitorConfig(brokers=Estate(seed=0).brokers)
# Far more than it takes, even on a machine that is busy with other things.
WAIT_S = 240
LIMIT_US = CONFIG.limits.silent_ms * 1000


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Estate(seed=5).record()


@pytest.fixture(scope="module")
def events(
    spark: SparkSession, recording: Recording, tmp_path_factory: pytest.TempPathFactory
) -> DataFrame:
    directory = tmp_path_factory.mktemp("events")
    write(directory, table_of(recording), files=1)
    return spark.read.schema(EVENTS).parquet(str(directory))


@pytest.fixture(scope="module")
def beats(events: DataFrame) -> list[dict[str, Any]]:
    return said(monitor.heartbeats(events, CONFIG))


def write(directory: Path, table: pa.Table, *, files: int) -> None:
    """A table cut into files, which a stream reads in this order."""
    rows = -(-len(table) // files)
    for number in range(files):
        path = directory / f"{number}.parquet"
        pq.write_table(table.slice(number * rows, rows), path)
        os.utime(path, (number + 1, number + 1))


def said(frame: DataFrame) -> list[dict[str, Any]]:
    assert set(frame.columns) <= set(PUBLISHED)
    return [json.loads(row.value) for row in frame.collect()]


def said_by(stream: DataFrame, name: str) -> list[dict[str, Any]]:
    """What a stream says of all that is there."""
    writer = stream.writeStream.format("memory").queryName(name)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)
    return said(stream.sparkSession.table(name))


@dataclass(frozen=True, kw_only=True)
class Directories(Pipes):
    """Topics that are directories of Parquet files: real streams, without a cluster."""

    def events(self, *topics: str, **options: str) -> DataFrame:
        paths = f"{self.cluster}/{{{','.join(topics)}}}"
        stream = self.spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        return stream.parquet(paths).where(F.col("topic").isin(*topics))

    def publish(self, name: str, frame: DataFrame, topic: str) -> StreamingQuery:
        writer = frame.writeStream.queryName(name).foreachBatch(partial(self._append, name, topic))
        writer = writer.option("checkpointLocation", f"{self.checkpoint}/{name}")
        if self.available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=self.every or "0 seconds").start()

    def said_on(self, topic: str) -> list[dict[str, Any]]:
        """What was published on a topic so far."""
        if not list(Path(self.cluster, topic).glob("*.parquet")):
            return []
        return said(self.spark.read.parquet(f"{self.cluster}/{topic}"))

    def _append(self, name: str, topic: str, batch: DataFrame, number: int) -> None:
        rows = batch.withColumn("topic", F.lit(topic)).toArrow()
        directory = Path(self.cluster, topic)
        directory.mkdir(exist_ok=True)
        # Whoever reads the directory sees the whole file or none of it.
        unfinished = directory / f".{name}-{number}"
        pq.write_table(rows, unfinished)
        unfinished.rename(directory / f"{name}-{number}.parquet")


@pytest.fixture(scope="module")
def job_said(
    spark: SparkSession, recording: Recording, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """What the whole job publishes, by topic, over a stream of several micro-batches."""
    root = tmp_path_factory.mktemp("job")
    # Both topics are in the same files, so that none of them runs ahead of the other.
    (root / "topics" / HEARTBEATS).mkdir(parents=True)
    write(root / "topics" / HEARTBEATS, table_of(recording), files=3)
    pipes = Directories(
        spark=spark,
        cluster=str(root / "topics"),
        identity="monitor",
        checkpoint=str(root / "state"),
        available_now=True,
    )
    for query in JOB.start(pipes, CONFIG):
        assert query.awaitTermination(WAIT_S)
    return {topic: pipes.said_on(topic) for topic in ("metrics", "alerts", "unknown-lines")}


def window_of(message: Message, window_s: float) -> int:
    return message.arrives_us - message.arrives_us % round(window_s * SECOND_US)


def test_rates_are_those_that_are_counted_by_hand(events: DataFrame, recording: Recording) -> None:
    expected, sizes = rates_by_hand(recording.messages, 60 * SECOND_US)

    found = said(monitor.rates(events, CONFIG))

    assert {(r["start_us"], r["by"], r["name"]): r["messages"] for r in found} == expected
    assert {(r["start_us"], r["by"], r["name"]): r["bytes"] for r in found} == sizes
    assert len(found) == len(expected)
    for row in found:
        assert row["end_us"] - row["start_us"] == 60 * SECOND_US
        assert row["messages_per_s"] == pytest.approx(row["messages"] / 60)
        assert row["bytes_per_s"] == pytest.approx(row["bytes"] / 60)


def test_every_pattern_that_lines_were_made_for_was_met(recording: Recording) -> None:
    """So that the counts by signature above say something about each of them."""
    met = {message.signature for message in recording.messages if message.signature}
    assert len(met) == 19
    assert met <= {pattern.signature for pattern in read_patterns()}


def test_balance_is_fair_if_loads_are_equal_and_says_how_far_they_are_not(
    events: DataFrame, recording: Recording
) -> None:
    loads: defaultdict[int, Counter[str]] = defaultdict(Counter)
    sizes: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for message in recording.messages:
        loads[window_of(message, 60)][broker_of(message)] += 1
        sizes[window_of(message, 60)][broker_of(message)] += len(message.value)

    found = said(monitor.balance(events, CONFIG))

    assert {row["start_us"] for row in found} == set(loads)
    for row in found:
        for what, amounts in (("messages", loads), ("bytes", sizes)):
            shares = [amounts[row["start_us"]][broker] for broker in CONFIG.brokers]
            fairness = sum(shares) ** 2 / (3 * sum(share**2 for share in shares))
            assert row[f"{what}_fairness"] == pytest.approx(fairness)
            assert row[f"{what}_peak"] == pytest.approx(3 * max(shares) / sum(shares))
        assert row["messages"] == loads[row["start_us"]]


def test_a_broker_that_took_nothing_counts_if_it_was_named(
    events: DataFrame, recording: Recording
) -> None:
    only = events.where("array_contains(headers.value, cast('north' as binary))")

    (all_named, *_) = said(monitor.balance(only, CONFIG))
    (none_named, *_) = said(monitor.balance(only, MonitorConfig()))

    assert all_named["messages_fairness"] == pytest.approx(1 / 3)
    assert all_named["messages_peak"] == pytest.approx(3)
    assert none_named["messages_fairness"] == 1


def test_unknown_lines_are_kept_as_templates(events: DataFrame, recording: Recording) -> None:
    expected: Counter[tuple[int, str]] = Counter()
    lines = {json.loads(m.value)["line"] for m in recording.messages if m.topic == SYSLOG}
    for message in recording.messages:
        if message.template is not None:
            expected[window_of(message, 60), message.template] += 1

    found = said(monitor.unknown_lines(events, CONFIG))

    assert {(row["start_us"], row["template"]): row["lines"] for row in found} == expected
    assert len({template for _, template in expected}) == 5
    assert all(row["example"] in lines and row["hosts"] >= 1 for row in found)


def test_loss_is_what_is_missing_between_the_first_and_the_last_of_a_window(
    beats: list[dict[str, Any]], recording: Recording
) -> None:
    places: defaultdict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for message in recording.messages:
        if message.topic == HEARTBEATS:
            content = json.loads(message.value)
            place = (window_of(message, 300), host_of(message))
            places[place].append((content["boot"], content["number"]))

    assert {(row["start_us"], row["host"]) for row in beats} == set(places)
    for row in beats:
        numbers = sorted(places[row["start_us"], row["host"]])
        steps = [b[1] - a[1] for a, b in pairwise(numbers) if a[0] == b[0]]
        steps = [step for step in steps if step <= CONFIG.limit_periods]
        assert row["heard"] == len(numbers)
        assert row["expected"] == sum(steps)
        assert row["lost"] == sum(steps) - len(steps)


def test_loss_is_estimated_as_it_is_whatever_outages_there_are(
    beats: list[dict[str, Any]], recording: Recording
) -> None:
    """Within four standard deviations for each host, and with the losses that happened.

    Windows miss what is lost at their borders: of 60 heartbeats one, so that counts are compared
    with room for three standard deviations of that.
    """
    lost: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for row in beats:
        lost[row["host"]] += row["lost"]
        expected[row["host"]] += row["expected"]

    for host in recording.hosts:
        name = f"{host.party}/{host.name}"
        sigma = sqrt(host.loss * (1 - host.loss) / expected[name])
        assert abs(lost[name] / expected[name] - host.loss) <= 4 * sigma
        sent = [each for each in recording.heartbeats if each.host == host.name]
        really = sum(each.arrives_us is None for each in sent)
        at_borders = (len(sent) - expected[name]) * host.loss
        assert really - at_borders - 3 * sqrt(at_borders) - 1 <= lost[name] <= really
    assert sum(lost.values()) > 50


def test_delays_are_the_true_ones_beyond_the_least_whatever_clocks_show(
    beats: list[dict[str, Any]], recording: Recording
) -> None:
    delays: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    parties = {host.name: host.party for host in recording.hosts}
    for sent in recording.heartbeats:
        if sent.arrives_us is not None:
            window_us = sent.arrives_us - sent.arrives_us % (300 * SECOND_US)
            place = (window_us, f"{parties[sent.host]}/{sent.host}")
            delays[place].append(sent.arrives_us - sent.sent_us)

    for row in beats:
        true = sorted(delays[row["start_us"], row["host"]])
        for percent in (50, 90, 99):
            quantile = true[ceil(percent / 100 * len(true)) - 1]
            assert row[f"delay_us_p{percent}"] == quantile - true[0]
        assert row["delay_us_max"] == true[-1] - true[0]
        skew_us = recording.by_name[row["host"].split("/")[1]].skew_us
        assert row["clock_us"] == true[0] - skew_us


def test_silence_is_reported_once_for_long_outages_only(
    recording: Recording, job_said: dict[str, list[dict[str, Any]]]
) -> None:
    alerts = job_said["alerts"]
    silent = [row["host"].split("/")[1] for row in alerts if row["kind"] == "silent"]
    back = [row["host"].split("/")[1] for row in alerts if row["kind"] == "back"]

    assert sorted(silent) == sorted(recording.silences(LIMIT_US))
    assert sorted(back) == sorted(returns(recording, LIMIT_US))
    assert len(silent) == 5
    assert len(back) == 3
    for row in alerts:
        outage = recording.by_name[row["host"].split("/")[1]].outage
        assert outage is not None
        assert row["since_ms"] * 1000 <= outage.from_us + 2 * SECOND_US
        assert row["at_ms"] - row["since_ms"] >= CONFIG.limits.silent_ms


def test_alerts_are_the_same_if_all_comes_at_once(
    spark: SparkSession,
    recording: Recording,
    job_said: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    write(tmp_path, table_of(recording), files=1)
    stream = spark.readStream.schema(EVENTS).parquet(str(tmp_path))

    alerts = said_by(monitor.silences(stream, CONFIG), "alerts")

    assert sorted(map(_line, alerts)) == sorted(map(_line, job_said["alerts"]))


def test_a_job_that_was_slow_does_not_report_itself(
    spark: SparkSession,
    recording: Recording,
    job_said: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """One of the hosts that fall silent is taken to be the job itself."""
    own = next(row["host"] for row in job_said["alerts"] if row["kind"] == "back")
    write(tmp_path, table_of(recording), files=1)
    stream = spark.readStream.schema(EVENTS).parquet(str(tmp_path))

    alerts = said_by(monitor.silences(stream, CONFIG, own=own), "others")

    others = [row for row in job_said["alerts"] if row["host"] != own]
    assert sorted(map(_line, alerts)) == sorted(map(_line, others))


def test_windows_of_a_stream_are_those_of_all_at_once_but_for_what_is_not_over(
    events: DataFrame, recording: Recording, job_said: dict[str, list[dict[str, Any]]]
) -> None:
    over_us = recording.messages[-1].arrives_us - round(CONFIG.delay_s * SECOND_US)

    def over(*programs: Program) -> list[str]:
        rows = [row for program in programs for row in said(program(events, CONFIG))]
        return sorted(_line(row) for row in rows if row["end_us"] <= over_us)

    metrics = over(monitor.rates, monitor.balance, monitor.heartbeats)
    assert sorted(map(_line, job_said["metrics"])) == metrics
    assert sorted(map(_line, job_said["unknown-lines"])) == over(monitor.unknown_lines)


def test_a_window_of_lines_is_over_when_time_goes_on_though_no_line_follows(
    spark: SparkSession, recording: Recording, tmp_path: Path
) -> None:
    table = table_of(recording)
    (place, first) = next((i, m) for i, m in enumerate(recording.messages) if m.template)
    beats = table.filter(pc.equal(table["topic"], HEARTBEATS))
    write(tmp_path, pa.concat_tables([table.slice(place, 1), beats]), files=1)
    stream = spark.readStream.schema(EVENTS).parquet(str(tmp_path))

    unknown = said_by(monitor.unknown_lines(stream, CONFIG), "rare")

    assert [row["template"] for row in unknown] == [first.template]


def _line(row: dict[str, Any]) -> str:
    """Sums of floating point numbers depend on their order in the last place."""
    rounded = {k: round(v, 9) if isinstance(v, float) else v for k, v in row.items()}
    return json.dumps(rounded, sort_keys=True)


def test_events_that_make_no_sense_are_counted_and_break_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    good = table_of(Estate(seed=1, duration_s=20, outages=0).record()).slice(0, 1)
    headers = [
        [{"name": "broker", "value": b"north"}, {"name": "broker", "value": b"south"}],
        [{"name": "received", "value": b"9" * 18}, {"name": "received", "value": b"1"}],
        [{"name": "received", "value": b"yesterday"}],
        None,
    ]
    values = [b"", b"{", b'{"number": "x", "line": 3}', b"\xff\xfe"]
    bad = pa.table(
        {
            **{name: good[name].take(pa.array([0] * 4)) for name in ("key", "timestamp")},
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers, good["headers"].type),
            "topic": pa.array([HEARTBEATS, SYSLOG] * 2),
        }
    )
    write(tmp_path, bad, files=1)
    events = spark.read.schema(EVENTS).parquet(str(tmp_path))

    rows = said(monitor.rates(events, CONFIG))
    assert sum(row["messages"] for row in rows if row["by"] == "all") == 4
    assert all(row["start_us"] <= time.time() * SECOND_US for row in rows), "nobody is ahead of us"
    assert {row["name"] for row in rows if row["by"] == "broker"} == {"north"}
    assert said(monitor.heartbeats(events, CONFIG)) == []


def test_a_library_of_ones_own_takes_the_place_of_the_default_one(
    events: DataFrame, tmp_path: Path
) -> None:
    library = tmp_path / "own.toml"
    library.write_text("[[pattern]]\nsignature = 'RRD:TIME'\nregex = '^rrdtool.*illegal attempt'\n")
    config = MonitorConfig(patterns=str(library), window_s=7200)

    names = {r["name"] for r in said(monitor.rates(events, config)) if r["by"] == "signature"}
    assert names == {"HEARTBEAT", "RRD:TIME", "UNKNOWN"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no \\[\\[pattern\\]\\]"),
        ("[[pattern]]\nsignature = 'A'\nregex = '('", "the regex of A is not valid"),
        ("[[pattern]]\nsignature = 'UNKNOWN'\nregex = 'a'", "signature is 'UNKNOWN'"),
        ("[[pattern]]\nsignature = 'A'\nregexp = 'a'", "needs the key 'regex'"),
    ],
)
def test_a_library_that_cannot_be_used_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_patterns("own.toml", text)
