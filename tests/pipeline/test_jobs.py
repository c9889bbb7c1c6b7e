"""Jobs over topics of a real cluster: what they publish is what is true of what they read."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import event_sequences as sequences
from clusters import TestCluster, running_cluster
from estates import broker_of, host_of, rates_by_hand, returns
from market_ticks import Market, draw
from naive_matching import matches_told_naively
from naive_trading import orders_of
from quorate.client import Consumer, Producer
from quorate.pipeline.data.hosts import HEARTBEATS, SYSLOG, Estate, Message, Recording
from quorate.pipeline.data.sites import HARD, Packet, Traffic
from quorate.pipeline.jobs import monitor, patterns, portscan, trading
from quorate.pipeline.jobs.job import ConfigT, Job, Pipes
from quorate.pipeline.jobs.matching import Pattern
from quorate.pipeline.jobs.rules import Rule
from reading import everything_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG: dict[str, object] = {"order": "total"}
VALIDATED: dict[str, object] = {**LOG, "validated": True}
DIVIDED: dict[str, object] = {**VALIDATED, "partitions": 2}
ESTATE = Estate(seed=5, duration_s=40, period_s=1, outage_periods=(8, 15), lines_per_s=0.4)
WATCHED = tuple(f"topic-{number}" for number in range(3))
TOPICS: dict[str, dict[str, object]] = {
    **dict.fromkeys(HARD.sites, DIVIDED),
    **dict.fromkeys((*WATCHED, HEARTBEATS, "prices"), VALIDATED),
    **dict.fromkeys((SYSLOG, "metrics", "unknown-lines", "matches"), LOG),
    **dict.fromkeys(("orders", "blacklist", "alerts"), VALIDATED),
}
SECOND_US = 1_000_000
WINDOW_US = 10 * SECOND_US
# Far more than it takes, even on a machine that is busy with other things.
PATIENCE_S = 240
# Where the monitor publishes, and what there is to compare of each kind of what it says.
SAID = ("metrics", "alerts", "unknown-lines")
FACTS = {
    "rate": ("by", "name", "messages", "bytes"),
    "balance": ("messages",),
    "heartbeats": ("host", "heard"),
    "unknown": ("template", "lines"),
}
Fact = tuple[Any, ...]


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS, clients=("alice", "bob", *ESTATE.parties)) as running:
        yield running


def pipes(spark: "SparkSession", at: TestCluster, checkpoint: Path, *, live: bool = False) -> Pipes:
    return Pipes(
        spark=spark,
        cluster=str(at.directory),
        identity="bob",
        checkpoint=str(checkpoint),
        available_now=not live,
    )


def run(job: Job[ConfigT], config: ConfigT, over: Pipes) -> None:
    """To the end of what is there."""
    for query in job.start(over, config):
        assert query.awaitTermination(PATIENCE_S), f"{query.name} did not end"


def published_on(at: TestCluster, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in everything_on(at.directory, topic)]


def test_portscan_publishes_each_scanner_once_though_it_is_stopped_and_goes_on(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    traffic = Traffic(HARD, seed=1, duration_s=80, connections_per_s=10)
    packets = list(traffic)
    config = portscan.PortscanConfig(
        topics=HARD.sites, threshold=HARD.threshold, timeout_s=HARD.timeout_s,
        forget_s=HARD.forget_s, buckets=8,
    )  # fmt: skip
    found = []

    for part in (packets[: len(packets) * 3 // 4], packets[len(packets) * 3 // 4 :]):
        asyncio.run(publish_packets(cluster, part))
        run(portscan.JOB, config, pipes(spark, cluster, tmp_path))
        found.append(published_on(cluster, "blacklist"))

    assert 0 < len(found[0]) < len(found[1])
    assert sorted(each["source"] for each in found[1]) == sorted(traffic.crossings)
    for each in found[1]:
        crossed_us = traffic.crossings[each["source"]].time_us
        assert 0 <= each["crossed_at"] - crossed_us <= config.rules.delay_us
        assert (each["incomplete"], each["sites"]) == (HARD.threshold, sorted(HARD.sites))


async def publish_packets(at: TestCluster, packets: Sequence[Packet]) -> None:
    async with Producer(at.directory, "alice", batch_events=100) as producer:
        for packet in packets:
            await producer.submit(packet.site, packet.value, key=packet.key)
        await producer.flush()


def test_trading_publishes_the_orders_of_the_naive_interpreter(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    market = draw(Market(seed=3, seconds=110, interval_ms=400, late=0.1, too_late=0.01))
    rules = (
        Rule(name="up", when="above", percent=0.5, side="buy", quantity=10),
        Rule(name="down", when="below", percent=0.5, side="sell", quantity=20, trade="GOLD"),
    )

    async def publish() -> None:
        async with Producer(cluster.directory, "alice") as producer:
            await producer.send_table("prices", market.table, rows_max=100)

    asyncio.run(publish())
    run(trading.JOB, trading.TradingConfig(rules=rules), pipes(spark, cluster, tmp_path))

    records = everything_on(cluster.directory, "orders")
    given = [json.loads(record.value) for record in records]
    names = ("rule", "watched", "at", "since", "number", "price")
    wanted = orders_of(market.table, rules, 2 * SECOND_US)
    assert {name for name, *_ in wanted} == {"up", "down"}
    assert Counter(tuple(each[name] for name in names) for each in given) == Counter(wanted)
    for record, each in zip(records, given, strict=True):
        assert record.validated
        assert (record.publisher, record.timestamp_us) == ("bob", each["at"])
        assert record.key == each["instrument"].encode()


def test_patterns_across_topics_follow_the_order_of_the_log(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    network = sequences.Network(seed=4, keys=3, seconds=8, publishers=len(WATCHED), consumers=1)
    events = sequences.draw(network, ordered=True).sort_by("position").to_pylist()
    topics = Pattern(name="topics", of="topic", steps=WATCHED[:2], within="400ms")
    looked_for = (patterns.EXAMPLE, topics)

    async def publish() -> None:
        """One after the other, so that the log has the order that was drawn."""
        async with Producer(cluster.directory, "alice") as producer:
            for event in events:
                await send(producer, event)
            # Long after: whoever waits need not any longer.
            await send(producer, {**events[-1], "key": b"clock"}, later_us=60 * SECOND_US)

    async def send(producer: Producer, event: dict[str, Any], later_us: int = 0) -> None:
        time_us = round(event["timestamp"].timestamp() * SECOND_US) + later_us
        await producer.send(event["topic"], event["value"], key=event["key"], timestamp_us=time_us)

    asyncio.run(publish())
    config = patterns.PatternsConfig(
        topics=WATCHED, matches="matches", patterns=looked_for, lateness="3s"
    )
    run(patterns.JOB, config, pipes(spark, cluster, tmp_path))

    rows = [{**event, "consumer": "bob", "partition": 0, "producer": "alice"} for event in events]
    wanted = [
        match for each in looked_for for match in matches_told_naively(rows, each, "position")
    ]
    assert {pattern for _, _, pattern, _ in wanted} == {"example", "topics"}
    found = [
        (value["consumer"], record.key, value["pattern"], tuple(value["events"]))
        for record in everything_on(cluster.directory, "matches")
        for value in [json.loads(record.value)]
    ]
    assert Counter(found) == Counter(wanted)


def test_the_monitor_says_what_is_true_and_is_heard_itself_when_nobody_else_is(
    spark: "SparkSession", cluster: TestCluster, tmp_path: Path
) -> None:
    """All that is recorded is over when the job starts: its own heartbeats move time on."""
    now_us = time.time_ns() // 1000
    end_us = now_us - now_us % WINDOW_US
    lasts_us = round(ESTATE.duration_s * SECOND_US)
    recording = replace(ESTATE, start_us=end_us - lasts_us - WINDOW_US).record()
    asyncio.run(publish_messages(cluster, recording.messages))
    config = monitor.MonitorConfig(
        period_s=1, limit_periods=5, delay_s=2, window_s=WINDOW_US / SECOND_US,
        heartbeats_window_s=WINDOW_US / SECOND_US, brokers=ESTATE.brokers,
    )  # fmt: skip
    wanted = Counter(truth(recording, config.limits.silent_ms * 1000))

    queries = monitor.JOB.start(pipes(spark, cluster, tmp_path, live=True), config)
    try:
        asyncio.run(until_said(cluster, wanted.total(), end_us))
    finally:
        for query in queries:
            query.stop()

    assert [query.exception() for query in queries] == [None] * 6
    rows = [row for topic in SAID for row in published_on(cluster, topic)]
    assert Counter(facts(rows, end_us)) == wanted
    assert {kind for kind, *_ in wanted} == {
        "rate", "balance", "heartbeats", "unknown", "silent", "back",
    }  # fmt: skip


async def publish_messages(at: TestCluster, messages: Iterable[Message]) -> None:
    async with AsyncExitStack() as stack:
        producers = {
            party: await stack.enter_async_context(Producer(at.directory, party))
            for party in ESTATE.parties
        }
        for message in messages:
            await producers[message.party].submit(
                message.topic, message.value, key=message.key, headers=message.headers,
                timestamp_us=message.timestamp_us,
            )  # fmt: skip
        for producer in producers.values():
            await producer.flush()


async def until_said(at: TestCluster, count: int, end_us: int) -> None:
    """Wait until so many facts are published that are about the time before this.

    If it is in vain, what is missing shows when they are compared.
    """
    async with Consumer(at.directory, "alice") as consumer:
        consumer.subscribe(SAID, start="begin")
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while count > 0:
                    records = await consumer.poll_many(1000)
                    rows = (json.loads(each.value) for each in records)
                    count -= len(list(facts(rows, end_us)))


def facts(rows: Iterable[dict[str, Any]], end_us: int) -> Iterator[Fact]:
    """What rows say, but for windows in which the monitor heard itself."""
    for row in rows:
        kind = row["kind"]
        if kind in ("silent", "back"):
            yield kind, row["host"]
        elif row["end_us"] <= end_us:
            yield kind, row["start_us"], *(_plain(row[name]) for name in FACTS[kind])


def _plain(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def truth(recording: Recording, limit_us: int) -> Iterator[Fact]:
    """The same, counted by hand; when all is over, whoever is there falls silent."""
    messages = recording.messages
    counts, sizes = rates_by_hand(messages, WINDOW_US)
    for (start_us, by, name), count in counts.items():
        yield "rate", start_us, by, name, count, sizes[start_us, by, name]
    loads = {start_us: Counter[str]() for start_us, *_ in counts}
    beats, unknown = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for message in messages:
        start_us = message.arrives_us - message.arrives_us % WINDOW_US
        loads[start_us][broker_of(message)] += 1
        beats[start_us, host_of(message)] += message.topic == HEARTBEATS
        if message.template is not None:
            unknown[start_us, message.template] += 1
    yield from (("balance", start_us, _plain(load)) for start_us, load in loads.items())
    yield from (("heartbeats", *place, count) for place, count in beats.items() if count)
    yield from (("unknown", *place, count) for place, count in unknown.items())
    silent, back = recording.silences(limit_us), returns(recording, limit_us)
    for host in recording.hosts:
        name = f"{host.party}/{host.name}"
        gone = host.name in silent and host.name not in back
        yield from [("silent", name)] * ((host.name in silent) + (not gone))
        yield from [("back", name)] * (host.name in back)
