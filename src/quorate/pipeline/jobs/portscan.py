"""Sites find together who scans their ports, and tell each other.

Source: the thesis on quality of service, section 1.2.1 and figure 1.2 (Q15).

Each site publishes the packets of handshakes that it sees, on a topic of its own. A stealthy
scanner probes so little at each of them that none notices; the sum over all sites is what betrays
it (`handshakes.py`). Its address is published on a blacklist that all of them follow.

State is kept by `transformWithStateInPandas`. Each access to it crosses from Python to the JVM and
back, which costs more than all that is computed about a source, so sources are kept in buckets: a
bucket is one value, with one timer, that is read and written once per batch. The flavour for pandas
is the one that takes rows in columns; the other makes an object of each cell of each row.

Timers are in event time, and not in processing time, for two reasons. The verdict is then a matter
of the packets alone: whether a query keeps up, catches up or is run again over last week, it finds
the same. And a query over what is there comes to an end, whereas timers in processing time always
ask for another batch. The price is that silence is noticed only while somebody talks: a time-out is
over when packets of anybody, at any site, are later than it by the watermark delay. As long as
there is traffic at all that takes the delay and one or two triggers. A reset is not waited for: it
is counted in the batch that has it.

The watermark is the latest time that any site has claimed. A site that lies about the time could
end the time-outs of all others at once, so no packet moves time beyond now (`clocks.py`). Packets
of one connection are of one site, and are compared by the clock of that site. Spark drops nothing
as late here: a packet that comes after the watermark still counts for its connection, or begins
one, as far as it is of use.

Bounds: for each source from which a packet was seen within the forgetting time, at most
`connections_max` connections that are not decided, each for at most the time-out and the watermark
delay (twice the delay, if its site is ahead), and at most `threshold` probes for each site. A
source that was reported is one mark, and one that was silent for the forgetting time is nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pandas
from msgspec import Meta
from pyspark.sql import functions as F

from quorate.pipeline.jobs.clocks import happened_us, moves_time, now_us
from quorate.pipeline.jobs.handshakes import KINDS, Handshakes, Packet, Rules
from quorate.pipeline.jobs.job import Config, Job, Pipes
from quorate.pipeline.jobs.waking import Woken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

NAME: Final = "portscan"
SECOND_US: Final = 1_000_000
# The longest text of an address: IPv6 with an IPv4 address in it.
ADDRESS_CHARACTERS_MAX: Final = 45
# What a site says of a packet. Both ends are named as in the SYN, whoever sent this one.
SEEN: Final = (
    "kind string, source string, destination string, destination_port int, source_port int, "
    "time bigint"
)
# Columns in the order of the fields of `Packet`.
PACKET: Final = ("at_us", "kind", "site", "destination", "destination_port", "source_port")
FOUND: Final = "source string, incomplete int, sites array<string>, crossed_at bigint"
FOUND_COLUMNS: Final = ("source", "incomplete", "sites", "crossed_at")

# As `FOUND_COLUMNS` has it.
_Row = tuple[str, int, list[str], int]
_Topic = Annotated[str, Meta(min_length=1, max_length=256)]


class PortscanConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is a scanner, and where sites say what they see."""

    # One per site.
    topics: Annotated[tuple[_Topic, ...], Meta(min_length=1, max_length=1000)]
    blacklist: _Topic = "blacklist"
    # So many destinations and ports, over all sites, that were probed and left.
    threshold: Annotated[int, Meta(ge=1, le=10_000)] = 12
    # At so many sites at least: with two, nobody is blacklisted on the word of one.
    sites_min: Annotated[int, Meta(ge=1, le=1000)] = 2
    # How long a client may take to answer a SYN-ACK.
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 3.0
    # What lies back further than this no longer counts.
    forget_s: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 60.0
    # How much later than others a packet may come, and be in time: the clocks of sites differ by
    # this and packets take so long, both together.
    watermark_delay_s: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    # Of one source, at the same time.
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    # Into how many parts state is divided. With another number, what was kept is not found again.
    buckets: Annotated[int, Meta(ge=1, le=65_536)] = 64

    @property
    def rules(self) -> Rules:
        return Rules(
            threshold=self.threshold,
            sites_min=self.sites_min,
            timeout_us=round(self.timeout_s * SECOND_US),
            forget_us=round(self.forget_s * SECOND_US),
            delay_us=round(self.watermark_delay_s * SECOND_US),
            connections_max=self.connections_max,
        )


def blacklist(events: DataFrame, config: PortscanConfig) -> DataFrame:
    """Who is found to scan, as events for the blacklist."""
    delay_us = config.rules.delay_us
    packets = seen(events, delay_us).withWatermark("at", f"{delay_us} microseconds")
    bucket = F.pmod(F.xxhash64("source"), F.lit(config.buckets)).cast("int")
    found = (
        # Without the column of the watermark, Spark has nothing to drop late packets by.
        packets.select(bucket.alias("bucket"), "source", now_us().alias("now_us"), *PACKET)
        .groupBy("bucket")
        .transformWithStateInPandas(_Buckets(config.rules), FOUND, "append", "eventTime")
    )
    now = F.current_timestamp()
    report = F.struct("*", F.unix_micros(now).alias("detected_at"))
    return found.select(
        F.col("source").cast("binary").alias("key"),
        F.to_json(report).cast("binary").alias("value"),
        now.alias("timestamp"),
    )


def seen(events: DataFrame, delay_us: int) -> DataFrame:
    """The packets that sites have seen; what is none is left out."""
    said = F.from_json(F.col("value").cast("string"), SEEN).alias("said")
    kinds = F.array(*(F.lit(kind) for kind in KINDS))
    return (
        events.select(F.col("topic").alias("site"), said)
        .select("site", "said.*")
        .where(F.col("kind").isin(*KINDS) & _is_address("source") & _is_address("destination"))
        .where("destination_port is not null and source_port is not null and time is not null")
        .withColumn("kind", (F.array_position(kinds, F.col("kind")) - 1).cast("int"))
        .withColumn("at", moves_time(F.timestamp_micros("time")))
        .withColumn("at_us", happened_us(F.col("time"), delay_us))
    )


def _is_address(column: str) -> Any:
    return F.length(column).between(1, ADDRESS_CHARACTERS_MAX)


class _Bucket(msgspec.Struct, array_like=True):
    """Sources that are kept together."""

    sources: dict[str, Handshakes] = {}
    # When Spark wakes it; None: it does not.
    timer_ms: int | None = None


class _Buckets(Woken):
    """The handshakes of sources, as Spark keeps them and wakes them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("bucket", "packed binary")
        self._decoder = msgspec.msgpack.Decoder(_Bucket)

    def on_turn(
        self, key: tuple[int], rows: Iterator[pandas.DataFrame] | None, time: TimerValues
    ) -> Iterable[pandas.DataFrame]:
        bucket = self._load()
        if rows is None:
            bucket.timer_ms = None
            found = self._on_clock(bucket, time.getCurrentWatermarkInMs() * 1000)
        else:
            found = self._on_packets(bucket, rows)
        self._store(bucket)
        return [pandas.DataFrame(found, columns=FOUND_COLUMNS)] if found else []

    def _on_packets(self, bucket: _Bucket, rows: Iterator[pandas.DataFrame]) -> list[_Row]:
        packets: defaultdict[str, list[Packet]] = defaultdict(list)
        now_us = 0
        for frame in rows:
            now_us = int(frame["now_us"].iloc[0])
            columns = (frame[name].tolist() for name in PACKET)
            for source, packet in zip(frame["source"], map(Packet, *columns), strict=True):
                packets[source].append(packet)
        found: list[_Row] = []
        for source, of_source in packets.items():
            handshakes = bucket.sources.setdefault(source, Handshakes())
            crossings = handshakes.on_packets(of_source, self._rules, now_us=now_us)
            found += ((source, *each) for each in crossings)
        return found

    def _on_clock(self, bucket: _Bucket, clock_us: int) -> list[_Row]:
        return [
            (source, *each)
            for source, handshakes in bucket.sources.items()
            if (each := handshakes.on_clock(clock_us, self._rules)) is not None
        ]

    def _load(self) -> _Bucket:
        state = self._state.get()
        return _Bucket() if state is None else self._decoder.decode(state[0])

    def _store(self, bucket: _Bucket) -> None:
        wakes_us = {source: each.wake_us(self._rules) for source, each in bucket.sources.items()}
        for source, wake_us in wakes_us.items():
            if wake_us is None:
                del bucket.sources[source]
        next_us = min((each for each in wakes_us.values() if each is not None), default=None)
        if next_us is None:
            self._state.clear()
            return
        self._wake(bucket, -(-next_us // 1000))
        self._state.update((msgspec.msgpack.encode(bucket),))

    def _wake(self, bucket: _Bucket, at_ms: int) -> None:
        # A timer that is too early is left: when it fires, it is set to when it should.
        if bucket.timer_ms is not None:
            if bucket.timer_ms <= at_ms:
                return
            self._handle.deleteTimer(bucket.timer_ms)
        self._handle.registerTimer(at_ms)
        bucket.timer_ms = at_ms


def _start(pipes: Pipes, config: PortscanConfig) -> list[StreamingQuery]:
    found = blacklist(pipes.events(*config.topics), config)
    return [pipes.publish(NAME, found, config.blacklist)]


JOB: Final = Job(
    name=NAME,
    summary="Find sources that scan the ports of several sites, and publish a blacklist.",
    config=PortscanConfig,
    start=_start,
)
