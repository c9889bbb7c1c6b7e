"""Patterns: matches are those of a naive matcher, and one order makes consumers agree."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession

from event_sequences import Network, draw
from naive_matching import Match, matches_told_naively
from quorate.core.errors import ConfigError
from quorate.pipeline.jobs.matching import Pattern, Run, Runs, Seen
from quorate.pipeline.jobs.patterns import (
    EXAMPLE,
    JOB,
    Order,
    agreement,
    matches,
    published,
)
from quorate.pipeline.jobs.settings import read_settings
from streams import Directory, Sink, run

S = 1_000_000
COLUMNS = (
    "consumer string, arrival bigint, topic string, key binary, value binary, "
    "timestamp timestamp, offset bigint, index int, position bigint"
)
TOPICS = Pattern(name="topics", of="topic", steps=("topic-0", "topic-1"), within="400ms")
TWICE = Pattern(name="twice", steps=("e", "e", "e'"), within="2s")
PATTERNS = (EXAMPLE, TOPICS, TWICE)
NETWORK = Network(seed=4, keys=3, seconds=30)


def told(table: pyarrow.Table, by: str) -> set[Match]:
    rows = table.to_pylist()
    return {match for pattern in PATTERNS for match in matches_told_naively(rows, pattern, by)}


def found_in(rows: list[Row]) -> list[Match]:
    return [(row.consumer, bytes(row.key), row.pattern, tuple(row.events)) for row in rows]


def frame_of(spark: SparkSession, table: pyarrow.Table, directory: Path) -> DataFrame:
    Directory(directory, COLUMNS).add(table, 1)
    return spark.read.schema(COLUMNS).parquet(str(directory))


@pytest.mark.parametrize(("order", "by"), [("arrival", "arrival"), ("log", "position")])
def test_matches_of_a_frame_are_those_of_the_naive_matcher(
    spark: SparkSession, tmp_path: Path, order: Order, by: str
) -> None:
    table = draw(NETWORK, ordered=order == "log")

    found = found_in(matches(frame_of(spark, table, tmp_path), PATTERNS, order=order).collect())

    wanted = told(table, by)
    assert {pattern for _, _, pattern, _ in wanted} == {"example", "topics", "twice"}
    assert set(found) == wanted
    assert len(found) == len(wanted)


@pytest.mark.parametrize("batches", [4])
def test_a_stream_has_the_matches_of_the_frame_in_any_split_and_after_a_restart(
    spark: SparkSession, tmp_path: Path, batches: int
) -> None:
    table = draw(replace(NETWORK, seconds=15), ordered=True)
    # Rows in the order of time, as two partitions of one order log may bring them.
    table = table.sort_by("timestamp")
    directory = Directory(tmp_path / "events", COLUMNS)
    directory.add(table.slice(0, table.num_rows // 2), batches // 2)
    sink = Sink()
    frame = matches(directory.stream(spark), PATTERNS, order="log", lateness="3s")
    run(frame, sink, tmp_path / "checkpoint")
    before = len(sink.rows)

    directory.add(table.slice(table.num_rows // 2), batches // 2)
    directory.add(far_later(table), 1)
    run(frame, sink, tmp_path / "checkpoint")

    found = found_in(sink.rows)
    assert 0 < before < len(found)
    assert set(found) == told(table, "position")
    assert len(found) == len(set(found))


def far_later(table: pyarrow.Table) -> pyarrow.Table:
    """An event of another key, a minute after all others: whoever waits need not any longer."""
    row = table.to_pylist()[-1]
    row["key"], row["value"] = b"clock", b'{"type":"e"}'
    row["position"] = row["arrival"] = 10**9
    row["timestamp"] = max(table["timestamp"].to_pylist()) + (
        pyarrow.scalar(60 * S, pyarrow.duration("us")).as_py()
    )
    return pyarrow.Table.from_pylist([row], schema=table.schema)


def test_consumers_of_one_order_agree_on_everything_and_of_none_on_little(
    spark: SparkSession, tmp_path: Path
) -> None:
    shares = {}
    for ordered in (True, False):
        table = draw(Network(seed=1, seconds=60), ordered=ordered)
        frame = frame_of(spark, table, tmp_path / str(ordered))
        order: Order = "log" if ordered else "arrival"
        (row,) = agreement(matches(frame, (EXAMPLE,), order=order)).collect()
        assert row.found > 100
        shares[ordered] = row.share

    assert shares[True] == 1.0
    assert shares[False] < 0.5


def test_a_consumer_that_finds_nothing_agrees_on_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = draw(Network(seconds=10), ordered=True)
    mine = table.filter(pyarrow.compute.field("consumer") == "consumer-0")
    frame = frame_of(spark, mine, tmp_path)

    (row,) = agreement(matches(frame, (EXAMPLE,), order="log")).collect()

    assert (row.agreed, row.share) == (0, 0.0)


def test_a_match_is_published_under_its_key_at_the_time_of_its_latest_event(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = draw(Network(seconds=5), ordered=True)
    found = matches(frame_of(spark, table, tmp_path), (EXAMPLE,), order="log")

    rows = published(found).collect()

    value = json.loads(bytes(rows[0].value))
    assert rows[0].asDict().keys() == {"key", "value", "timestamp"}
    assert value.keys() == {"pattern", "consumer", "events", "first", "last"}
    assert len(value["events"]) == 3
    assert all(bytes(row.key) == b"key-0" for row in rows)


def test_a_seed_draws_the_same_arrivals_and_both_ways_have_the_same_events() -> None:
    network = Network(seed=9, seconds=10)
    loose, ordered = draw(network, ordered=False), draw(network, ordered=True)

    assert loose.equals(draw(network, ordered=False))
    assert not loose.equals(draw(replace(network, seed=10), ordered=False))
    names = ["consumer", "topic", "offset", "value", "timestamp"]
    keys = [(name, "ascending") for name in names]
    assert loose.select(names).sort_by(keys).equals(ordered.select(names).sort_by(keys))
    assert loose["position"].null_count == loose.num_rows


@settings(max_examples=80)
@given(
    events=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8)), max_size=14),
    steps=st.lists(st.sampled_from("abc"), min_size=2, max_size=4),
    within=st.integers(1, 9),
    cut=st.integers(0, 14),
)
def test_runs_find_what_the_naive_matcher_finds_wherever_they_are_cut(
    events: list[tuple[str, int]], steps: list[str], within: int, cut: int
) -> None:
    pattern = Pattern(name="p", of="topic", steps=tuple(steps), within=f"{within}s")
    seen = [Seen(n, 0, at * S, str(n), name, None) for n, (name, at) in enumerate(events)]
    runs, found = Runs(), []
    # Nothing is released before all has arrived: here only the cut into two is of interest.
    for part, until_us in ((seen[:cut], -1), (seen[cut:], 8 * S)):
        runs.hear(part)
        found += runs.advance((pattern,), until_us)

    wanted = []
    for begin, first in enumerate(seen):
        taken: list[Seen] = []
        for each in seen[begin:]:
            if len(taken) < len(steps) and each.topic == steps[len(taken)]:
                taken.append(each)
            elif not taken:
                break
        times = [each.at_us for each in taken]
        if len(taken) == len(steps) and max(times) - min(times) <= within * S:
            wanted.append(("p", Run(tuple(e.event for e in taken), min(times), max(times))))
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_runs_that_cannot_end_in_time_are_forgotten() -> None:
    runs = Runs()
    for second in range(500):
        runs.hear([Seen(second, 0, second * S, str(second), "t", "e")])
        runs.advance((EXAMPLE,), second * S - 2 * S)
        assert len(runs.waiting) + len(runs.open.get("example", [[]])[0]) <= 8
    runs.advance((EXAMPLE,), 1000 * S)

    assert runs.next_us((EXAMPLE,)) is None


GOOD = 'name="p"\nsteps=["a","b"]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD.replace(',"b"', ""), "pattern 'p': it has 1 steps, but a sequence has 2 to 16"),
        (GOOD.replace('"b"', '""'), "pattern 'p': one of its steps names no type"),
        (GOOD + 'within="0s"', "pattern 'p': within is '0s', but it must be from 1us to 1d"),
        (GOOD + 'within="long"', "pattern 'p': within: 'long' is not a duration"),
        (
            GOOD + 'of="colour"',
            r"patterns\[0\].of of the job patterns: invalid enum value",
        ),
        (GOOD + "[[patterns]]\n" + GOOD, "two patterns are named 'p'"),
    ],
)
def test_a_bad_pattern_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "patterns.toml"
    file.write_text("[[patterns]]\n" + text)

    with pytest.raises(ConfigError, match=sentence):
        read_settings(JOB, file)
