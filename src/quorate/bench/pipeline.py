"""Topics in Spark: how fast rows come in, what checking them costs, and how soon alerts go out.

A validated topic is filled, and Spark writes its rows to Parquet once. From then on, in rounds,
Spark reads the same rows with the same columns into a sink that drops them: from the topic, with
and without verification, as a stream, with one core instead of two, and from Parquet. Figures are
compared within their round, since all of a round see the same weather. The processor time of all
processes stands beside them, and the raw pipe with frames of the batches' size runs before and
after each round. A round that nobody counts comes first; Python's workers live on from there, so
that they know most signatures of producers already. A stream is timed from its first batch on: to
start one takes seconds however long it is, and what it takes is said beside it.

Alerts are timed on topics of their own: a query filters and maps what is published at a small
steady rate, and a consumer gets what it publishes. The memory of Python's workers is looked at
while a stream is read, and one that is eight times as long, by a session of its own each.

Then sites look for scanners together, as the job `portscan` does it, over the hard setting of its
generator. What counts is how long it takes from the moment on at which a source has left too many
handshakes incomplete until every site has it on its blacklist.
"""

import json
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from quorate.bench.broadcast import Yardstick
from quorate.bench.clusters import made, running
from quorate.bench.experiments import ORDERING, Experiment
from quorate.bench.latencies import Spread
from quorate.bench.pipe import PipeRate, measure_round_trip_ms
from quorate.bench.pipeline_clients import AlertTask, FillTask, Heard, Listed, SitesTask
from quorate.bench.processes import Worker, ready, started
from quorate.bench.processor import processor_s, spent_since
from quorate.bench.spark_jobs import Did, Job, Kind, SparkTask
from quorate.bench.workload import PUBLISHER, READER, frame_bytes
from quorate.core.contract import Contract
from quorate.pipeline.data.sites import HARD
from quorate.runtime.local import LocalCluster

PIPELINE, LATENCY, MEMORY = "pipeline", "pipeline latency", "pipeline memory"
SCANS = "pipeline port scans"
EVENTS, TICKS, ALERTS, BLACKLIST = "events", "ticks", "alerts", "blacklist"
PARTITIONS: Final = 2
EVENTS_PER_BATCH: Final = 1000
SIZES: Final = (100, 1000)
ALERT_EVENTS_PER_S: Final = 20.0
SCANNERS: Final = 20
PIPE_SECONDS: Final = 1.0
# Of two streams whose memory is compared, the shorter one is what was read, and this one so long.
LONGER: Final = 8
CLIENTS = "quorate.bench.pipeline_clients"
ONE_CORE, TWO_CORES = "local[1]", "local[2]"

FILL_SECONDS_MAX: Final = 600.0
JOB_SECONDS_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to read the rows."""

    words: str
    kind: Kind
    master: str = TWO_CORES


VERIFIED: Final = Way("topic, verified", "verified")
UNVERIFIED: Final = Way("topic, not verified", "unverified")
PARQUET: Final = Way("Parquet", "parquet")
STREAM: Final = Way("topic as a stream, verified", "stream")
VERIFIED_ONE_CORE: Final = Way("topic, verified, one core", "verified", ONE_CORE)
PARQUET_ONE_CORE: Final = Way("Parquet, one core", "parquet", ONE_CORE)
WAYS: Final = (VERIFIED, PARQUET, UNVERIFIED, STREAM, VERIFIED_ONE_CORE, PARQUET_ONE_CORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is read, how often, and for how long alerts are timed."""

    sizes: tuple[int, ...] = SIZES
    megabytes: float = 200.0
    rounds: int = 5
    alert_s: float = 30.0
    alert_warm_up_s: float = 4.0
    # Scanners take up to 51 seconds for their probes if they have the time.
    scan_s: float = 120.0
    events_per_batch: int = EVENTS_PER_BATCH

    def batches(self, event_bytes: int) -> int:
        """Of one topic, as many on each partition."""
        each = self.megabytes * 1e6 / (event_bytes * self.events_per_batch * PARTITIONS)
        return PARTITIONS * max(1, round(each))


def experiment(name: str, events_per_batch: int, event_bytes: int) -> Experiment:
    return Experiment(
        name=name,
        protocol=ORDERING,
        events_per_batch=events_per_batch,
        event_bytes=event_bytes,
        fsync="always",
        validated=True,
    )


QUICK: Final = Plan(sizes=(100,), megabytes=40.0, rounds=3, alert_s=8.0, scan_s=25.0)


@dataclass(frozen=True, slots=True)
class Round:
    """How many seconds each way took, also of processors, and the pipe around them."""

    seconds: dict[Way, float]
    processor_s: dict[Way, float]
    start_s: dict[Way, float]
    pipe: PipeRate


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """All rounds with events of one size."""

    experiment: Experiment
    published: int
    # How many rows there are in both places, and the sums of their hashes.
    from_topic: tuple[int, int]
    from_parquet: tuple[int, int]
    rounds: list[Round]

    @property
    def is_sound(self) -> bool:
        return self.published == self.from_topic[0] and self.from_topic == self.from_parquet

    def rows_per_s(self, way: Way) -> Spread:
        return Spread.of([self.published / each.seconds[way] for each in self.rounds])

    def ratio(self, way: Way, other: Way) -> Spread:
        """How many times as fast one way is as another, within each round."""
        return Spread.of([each.seconds[other] / each.seconds[way] for each in self.rounds])

    def processor_us_per_row(self, way: Way) -> Spread:
        return Spread.of([1e6 * each.processor_s[way] / self.published for each in self.rounds])

    def ratio_by_processor(self, way: Way, other: Way) -> Spread:
        """The same for rows per second of processor time, which others move less."""
        return Spread.of([each.processor_s[other] / each.processor_s[way] for each in self.rounds])

    def start_s(self, way: Way) -> Spread:
        return Spread.of([each.start_s[way] for each in self.rounds])

    @property
    def cost_of_verification(self) -> Spread:
        """By how much it lowers the rows per second: 0.2 is a fifth."""
        return self.ratio(VERIFIED, UNVERIFIED).lowered

    @property
    def cost_of_verification_by_processor(self) -> Spread:
        return self.ratio_by_processor(VERIFIED, UNVERIFIED).lowered

    @property
    def pipe(self) -> PipeRate:
        return PipeRate.median_of([each.pipe for each in self.rounds])


@dataclass(frozen=True, slots=True)
class Memory:
    """What the largest of Python's workers took for a stream of so many events."""

    experiment: Experiment
    events: int
    mb_max: float


@dataclass(frozen=True, slots=True)
class Alerted:
    """How long alerts took, and a round trip of the raw pipe."""

    experiment: Experiment
    heard: Heard
    round_trip_ms: float

    @property
    def is_sound(self) -> bool:
        return self.heard.arrived == self.heard.published and not self.heard.wrong


@dataclass(frozen=True, slots=True)
class Scanned:
    """What became of those who scanned all sites."""

    experiment: Experiment
    listed: Listed


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything that was found."""

    reads: list[Read] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    alerted: list[Alerted] = field(default_factory=list)
    scanned: list[Scanned] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        are_read = all(read.is_sound for read in self.reads)
        return are_read and all(alerted.is_sound for alerted in self.alerted)


async def measure(plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Pipeline:
    """Everything that the plan says, with a fresh cluster for each size of events."""
    found = Pipeline()
    for event_bytes in plan.sizes:
        is_first = event_bytes == plan.sizes[0]
        async with AsyncExitStack() as stack:
            launcher = await stack.enter_async_context(running(_cluster()))
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="quorate-bench-"))
            here = _Here(plan, event_bytes, str(launcher.directory), directory, tell)
            await here.fill()
            found.reads.append(await here.read())
            if is_first:
                found.memory.extend(await here.memory())
                driver = await here.driver(stack, TWO_CORES)
                found.alerted.append(await here.alerts(driver))
                found.scanned.append(await here.scans(driver))
    return found


def _cluster() -> LocalCluster:
    table = {"order": "total", "validated": True}
    topics = {
        EVENTS: Contract.parse(EVENTS, {**table, "partitions": PARTITIONS}),
        TICKS: Contract.parse(TICKS, table),
        **{name: Contract.parse(name, table) for name in (ALERTS, BLACKLIST, *HARD.sites)},
    }
    return made(topics=topics, clients=(PUBLISHER, READER, *HARD.sites))


@dataclass(slots=True)
class _Here:
    """One cluster, and what is measured with it."""

    plan: Plan
    event_bytes: int
    cluster: str
    directory: str
    tell_all: Callable[[str], None]
    # How many batches are published.
    batches: int = 0

    @property
    def batch(self) -> tuple[int, int]:
        """How many events are in a batch, and how long each is."""
        return self.plan.events_per_batch, self.event_bytes

    async def fill(self, times: int = 1) -> None:
        """Have so many times on the topic what a round reads."""
        batches = times * self.plan.batches(self.event_bytes) - self.batches
        self.tell(f"publishing {batches * self.plan.events_per_batch:,} events")
        task = FillTask(
            cluster=self.cluster,
            topic=EVENTS,
            partitions=PARTITIONS,
            batches=batches,
            events_per_batch=self.plan.events_per_batch,
            event_bytes=self.event_bytes,
        )
        self.batches += batches
        async with AsyncExitStack() as stack:
            filler = await started(stack, CLIENTS, "fill", task)
            await filler.hear(FILL_SECONDS_MAX)

    async def read(self) -> Read:
        frame = frame_bytes(*self.batch)
        yardstick, rounds = Yardstick(PIPE_SECONDS), list[Round]()
        async with AsyncExitStack() as stack:
            self.tell("starting Spark")
            drivers = {name: await self.driver(stack, name) for name in (TWO_CORES, ONE_CORE)}
            self.tell("keeping the rows as Parquet")
            kept = await _done(drivers[TWO_CORES], Job(kind="keep", topic=EVENTS))
            self.tell("warming up")
            await _one_round(drivers, WAYS)
            for number in range(self.plan.rounds):
                self.tell(f"round {number + 1} of {self.plan.rounds}")
                # Whoever comes first in one round comes last in the next.
                ways = WAYS[:: -1 if number % 2 else 1]
                spent, pipe = await yardstick.around(frame, partial(_one_round, drivers, ways))
                rounds.append(Round(*spent, pipe))
        assert kept.from_topic is not None
        assert kept.from_parquet is not None
        return Read(
            experiment=experiment(PIPELINE, *self.batch),
            published=self.plan.batches(self.event_bytes) * self.plan.events_per_batch,
            from_topic=kept.from_topic,
            from_parquet=kept.from_parquet,
            rounds=rounds,
        )

    async def memory(self) -> list[Memory]:
        found = []
        await self.fill(LONGER)
        each = self.batches // PARTITIONS * self.plan.events_per_batch
        for start in (each - each // LONGER, 0):
            events = PARTITIONS * (each - start)
            self.tell(f"looking at the memory, {events:,} events")
            offsets = json.dumps({EVENTS: dict.fromkeys(range(PARTITIONS), start)})
            job = Job(kind="stream", topic=EVENTS, start=offsets, is_watched=True)
            async with AsyncExitStack() as stack:
                driver = await self.driver(stack, TWO_CORES)
                did = await _done(driver, job)
            found.append(Memory(experiment(MEMORY, *self.batch), events, did.memory_mb_max))
        return found

    async def alerts(self, driver: Worker) -> Alerted:
        self.tell("timing alerts")
        task = AlertTask(
            cluster=self.cluster,
            topic=TICKS,
            alerts=ALERTS,
            event_bytes=self.event_bytes,
            events_per_s=ALERT_EVENTS_PER_S,
            warm_up_s=self.plan.alert_warm_up_s,
            seconds=self.plan.alert_s,
        )
        async with AsyncExitStack() as stack:
            await _done(driver, Job(kind="relay", topic=TICKS, alerts=ALERTS))
            client = await started(stack, CLIENTS, "alert", task)
            heard: Heard = await client.hear(JOB_SECONDS_MAX, Heard)
            await _done(driver, Job(kind="rest", topic=TICKS))
        frame = frame_bytes(1, self.event_bytes)
        round_trip_ms = await measure_round_trip_ms(frame, PIPE_SECONDS)
        return Alerted(experiment(LATENCY, 1, self.event_bytes), heard, round_trip_ms)

    async def scans(self, driver: Worker) -> Scanned:
        seconds = self.plan.scan_s
        self.tell(f"looking for scanners, for {seconds:.0f} s")
        task = SitesTask(
            cluster=self.cluster, blacklist=BLACKLIST, scanners=SCANNERS, seconds=seconds
        )
        async with AsyncExitStack() as stack:
            (sites,) = await ready(stack, CLIENTS, ("sites", task))
            job = Job(kind="portscan", topic=",".join(HARD.sites), alerts=BLACKLIST)
            await _done(driver, job)
            sites.say("go")
            listed: Listed = await sites.hear(seconds + JOB_SECONDS_MAX, Listed)
            await _done(driver, Job(kind="rest", topic=BLACKLIST))
        return Scanned(experiment(SCANS, 1, self.event_bytes), listed)

    async def driver(self, stack: AsyncExitStack, master: str) -> Worker:
        task = SparkTask(master=master, cluster=self.cluster, directory=self.directory)
        (driver,) = await ready(stack, "quorate.bench.spark_jobs", ("drive", task))
        return driver

    def tell(self, words: str) -> None:
        self.tell_all(f"events of {self.event_bytes} B: {words}")


async def _one_round(
    drivers: dict[str, Worker], ways: tuple[Way, ...]
) -> tuple[dict[Way, float], dict[Way, float], dict[Way, float]]:
    """The seconds of each way, those of processors, and those that it took to start."""
    seconds, spent_s, start_s = {}, {}, {}
    for way in ways:
        before_s = processor_s()
        did = await _done(drivers[way.master], Job(kind=way.kind, topic=EVENTS))
        seconds[way], spent_s[way] = did.seconds, sum(spent_since(before_s).values())
        start_s[way] = did.start_s
    return seconds, spent_s, start_s


async def _done(driver: Worker, job: Job) -> Did:
    driver.say(job)
    did: Did = await driver.hear(JOB_SECONDS_MAX, Did)
    return did
