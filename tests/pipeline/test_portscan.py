"""The job over real streams: it finds the scanners and nobody else, however the packets come."""

import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from quorate.core.errors import ConfigError
from quorate.pipeline.data.sites import HARD, SECOND_US, START_US, Packet, Seen, Traffic
from quorate.pipeline.jobs.handshakes import KINDS
from quorate.pipeline.jobs.portscan import JOB, PortscanConfig, blacklist, seen
from quorate.pipeline.jobs.settings import read_settings
from quorate.pipeline.schema import EVENTS, PUBLISHED
from scans import scanners, sighting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = PortscanConfig(
    topics=HARD.sites,
    threshold=HARD.threshold,
    timeout_s=HARD.timeout_s,
    forget_s=HARD.forget_s,
    # Fewer than there are sources, so that they share them.
    buckets=8,
)


@dataclass(frozen=True)
class Run:
    """What a query published, and how many buckets it had in its state after each batch."""

    published: list[dict[str, Any]]
    kept: list[int]

    @property
    def sources(self) -> list[str]:
        return sorted(each["source"] for each in self.published)


def run(
    spark: "SparkSession",
    directory: Path,
    batches: Sequence[Sequence[Packet]],
    config: PortscanConfig = CONFIG,
) -> Run:
    """Run the program over batches, each of which is a file."""
    for number, batch in enumerate(batches):
        write(directory / "events" / f"{number:03}.parquet", batch, number)
    events = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    found = blacklist(
        events.parquet(str(directory / "events")).where(F.col("topic").isin(*config.topics)), config
    )
    assert set(found.columns) <= set(PUBLISHED)
    published: list[dict[str, Any]] = []

    def collect(frame: Any, _: int) -> None:
        for row in frame.collect():
            value = json.loads(row.value)
            assert bytes(row.key).decode() == value["source"]
            published.append(value)

    writer = found.writeStream.foreachBatch(collect).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        assert query.awaitTermination(120), "the query did not end within 120 s"
        kept = [each.stateOperators[0].numRowsTotal for each in query.recentProgress]
    finally:
        query.stop()
    return Run(published, kept)


def write(path: Path, packets: Sequence[Packet], number: int) -> None:
    path.parent.mkdir(exist_ok=True)
    table = pyarrow.table(
        {
            "key": [each.key for each in packets],
            "value": [each.value for each in packets],
            "topic": [each.site for each in packets],
        }
    )
    pyarrow.parquet.write_table(table, path)
    # Spark takes files in the order of their times.
    os.utime(path, (number, number))


def cut(packets: Sequence[Packet], rng: random.Random, batches: int) -> list[Sequence[Packet]]:
    """Packets in batches of different sizes, and up to some tenths of a second out of order."""
    shaken = sorted(packets, key=lambda each: each.published_us + rng.uniform(0, 0.15) * SECOND_US)
    cuts = sorted(rng.sample(range(1, len(shaken)), batches - 1))
    return [shaken[a:b] for a, b in zip([0, *cuts], [*cuts, len(shaken)], strict=True)]


def truth(packets: Sequence[Packet]) -> dict[str, int]:
    return scanners(
        map(sighting, packets),
        threshold=HARD.threshold,
        sites=CONFIG.sites_min,
        timeout_us=CONFIG.rules.timeout_us,
        forget_us=CONFIG.rules.forget_us,
    )


def packet(kind: str, at_s: float, *, source: str = "198.18.0.1", site: str = "north") -> Packet:
    time_us = START_US + round(at_s * SECOND_US)
    seen = Seen(kind, source, "10.0.0.1", 80, 40_000, time_us)
    return Packet(time_us, site, source.encode(), msgspec.json.encode(seen), time_us)


@pytest.mark.parametrize(("seed", "batches"), [(1, 1), (1, 6), (2, 3)])
def test_the_scanners_are_found_once_and_nobody_else_however_packets_come(
    spark: "SparkSession", tmp_path: Path, seed: int, batches: int
) -> None:
    traffic = Traffic(HARD, seed=seed, duration_s=100, connections_per_s=20)
    packets = list(traffic)

    found = run(spark, tmp_path, cut(packets, random.Random(seed), batches))

    assert found.sources == sorted(traffic.crossings) == sorted(truth(packets))
    for each in found.published:
        crossing = traffic.crossings[each["source"]]
        # A reset is taken before a silence that ended shortly before it is known.
        assert 0 <= each["crossed_at"] - crossing.time_us <= CONFIG.rules.delay_us
        assert each["incomplete"] == HARD.threshold
        assert each["sites"] == sorted(HARD.sites)
        assert each["detected_at"] > each["crossed_at"]


def test_a_site_alone_finds_none_of_the_scanners(spark: "SparkSession", tmp_path: Path) -> None:
    traffic = Traffic(HARD, seed=1, duration_s=100, connections_per_s=20)
    alone = msgspec.structs.replace(
        CONFIG, topics=HARD.sites[:1], sites_min=1, threshold=HARD.local_threshold
    )

    found = run(spark, tmp_path, [list(traffic)], alone)

    assert not set(found.sources) & traffic.crossings.keys()


def test_state_is_forgotten(spark: "SparkSession", tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, threshold=2)
    scan = [
        packet(kind, at_s, site=site)
        for site in ("north", "east")
        for at_s, kind in enumerate(["SYN", "SYN-ACK", "RST"])
    ]
    probe = [packet(kind, 1, source="198.18.0.2") for kind in ("SYN", "SYN-ACK", "RST")]
    long_after = [packet("SYN", 10 * config.forget_s, source="198.18.0.4")]

    found = run(spark, tmp_path, [scan + probe, long_after], config)

    assert found.sources == ["198.18.0.1"]
    assert found.kept[0] == 2
    assert found.kept[-1] == 1


def test_packets_of_a_site_whose_clock_is_ahead_keep_their_order_across_batches(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Smallest case of an innocent who was listed, and of a scanner who was not.

    All times were cut off at now, so that an ACK of one batch seemed to be from before the SYN-ACK
    of the next, and a reset too.
    """
    config = msgspec.structs.replace(
        CONFIG, threshold=2, timeout_s=3600.0, watermark_delay_s=3600.0
    )
    ahead_s = time.time() + 600 - START_US / SECOND_US

    def batch(source: str, **packets: float) -> list[Packet]:
        return [
            packet(kind.replace("_", "-"), ahead_s + at_s, source=source, site=site)
            for site in ("north", "east")
            for kind, at_s in packets.items()
        ]

    innocent, scanner = "198.18.0.1", "198.18.0.2"
    first = batch(innocent, SYN=0, ACK=0.02) + batch(scanner, SYN=0, RST=0.02)
    second = batch(innocent, SYN_ACK=0.01, RST=0.03) + batch(scanner, SYN_ACK=0.01)

    found = run(spark, tmp_path, [first, second], config)

    assert found.sources == [scanner]


def test_what_is_no_packet_is_left_out_and_no_packet_moves_time_beyond_now(
    spark: "SparkSession",
) -> None:
    now_us = time.time_ns() // 1000
    century_s = 100 * 365 * 86_400
    values = [
        b"", b"\xff", b"{}", b"[]", b'{"kind":"FIN"}', b'{"kind":"SYN","time":"yesterday"}',
        packet("SYN", 1, source="x" * 46).value,
        packet("FIN", 1).value,
        packet("SYN-ACK", 1).value,
        packet("RST", century_s).value,
    ]  # fmt: skip
    events = spark.createDataFrame(
        [("north", value) for value in values], "topic string, value binary"
    )

    packets = seen(events, SECOND_US).select("kind", "at", "at_us").collect()

    (kind, at, at_us), (late_kind, late, late_us) = packets
    assert (KINDS[kind], at_us) == ("SYN-ACK", START_US + SECOND_US)
    assert round(at.timestamp() * SECOND_US) == at_us
    assert KINDS[late_kind] == "RST"
    # It moves time no further than to now, and is remembered no longer than a delay would allow.
    assert now_us <= late.timestamp() * SECOND_US <= time.time() * SECOND_US
    assert round(late.timestamp() * SECOND_US) + SECOND_US == late_us


def test_the_job_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="the job portscan needs the setting topics; give it"):
        read_settings(JOB)
    with pytest.raises(ConfigError, match="setting threshold of the job portscan: expected int >="):
        read_settings(JOB, assignments=['topics=["north"]', "threshold=0"])
