"""What the demo does: real replicas, real traffic, real Spark, one liar, two deaths.

Four replicas run as processes of their own. Sites and hosts publish (`demo_plot`), and Spark reads
what they do and publishes whom it found (`demo_spark`). After a quiet start one replica lies in
everything it sends; later it is killed, and comes back. Then the leader, who orders all of this, is
killed, and comes back before the end. `demo_books` has what was published and what became of it. At
the end, when no replica runs any more, an event of the archive is proved, and the proof verified
with nothing but the keys, as it is and with bytes changed.
"""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from pyarrow import compute

from quorate.cli.demo_books import Line, Sample, Scene, Shown
from quorate.cli.demo_plot import ALERTS, BLACKLIST, Plan, now_us
from quorate.cli.demo_spark import Jobs, running_jobs, running_session
from quorate.client import Admin, Consumer, Producer, Receipt, Record
from quorate.core.errors import QuorateError, RemoteProtocolError
from quorate.core.quorum import Quorum
from quorate.crypto.checkpoint import Cosigner
from quorate.crypto.checkpoint import read as read_checkpoint
from quorate.crypto.proofs import Keys, verify_bytes
from quorate.pipeline.archive import Archive, prove_archived
from quorate.pipeline.data.found import Found
from quorate.pipeline.data.hosts import SYSLOG
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import OPERATOR, make_local_cluster, write_local_cluster
from quorate.runtime.ports import free_base_port

Watch = Callable[[Scene], None]

LINGER_MS = 100
LOOK_EVERY_S = 0.25
# What is under way at the end has so much time to arrive and to be found.
CATCH_UP_S = 60.0
# A changed proof is tried so many times, each with another byte.
CHANGES = 64
# What replicas do without meaning any harm.
TOLERABLE = (": disagreement", ": late", ": cut-off")
# Shares of the whole time at which the story moves on.
LIES_AT, DIES_AT, RETURNS_AT, BEHEADED_AT, HEALED_AT = 0.12, 0.4, 0.5, 0.62, 0.85


async def play(directory: Path, seconds: float, seed: int | None, watch: Watch) -> Scene:
    """Run the whole story in a directory of its own; `watch` is called a few times a second."""
    plan = Plan(seconds) if seed is None else Plan(seconds, seed)
    home, archive = directory / "cluster", directory / "archive"
    local = make_local_cluster(
        clients=plan.clients(), topics=plan.contracts(), base_port=free_base_port()
    )
    write_local_cluster(home, local)
    launcher = Launcher(home, tied=True)
    scene = _scene(launcher, plan)
    try:
        await asyncio.to_thread(launcher.start_all)
        async with _watched(scene, watch):
            await _perform(scene, plan, launcher, archive)
            scene.play("All replicas are stopped; an archived event is proved all the same.")
            await asyncio.to_thread(launcher.stop_all)
            await asyncio.to_thread(_settle, scene, plan, Archive(str(archive)))
            await asyncio.to_thread(_prove, scene, Archive(str(archive)), Keys.of(local.cluster))
    finally:
        launcher.stop_all()
    return scene


def _scene(launcher: Launcher, plan: Plan) -> Scene:
    cluster = launcher.cluster
    # The liar serves the topic of the weakest contract, so that its lies matter.
    liar = cluster.member(cluster.placement(SYSLOG)[0]).name
    lines = {
        name: Line(name, contract)
        for name, contract in cluster.topics.items()
        if name not in (BLACKLIST, ALERTS)
    }
    scene = Scene(plan.seconds, lines, liar, Found(plan.sites), Found((plan.watch,)))
    scene.act = "Replicas are starting."
    return scene


@asynccontextmanager
async def _watched(scene: Scene, watch: Watch) -> AsyncIterator[None]:
    async def look() -> None:
        while True:
            watch(scene)
            await asyncio.sleep(LOOK_EVERY_S)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        await _ended([looking])
        watch(scene)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


async def _perform(scene: Scene, plan: Plan, launcher: Launcher, archive: Path) -> None:
    directory = launcher.directory
    scene.act = "Replicas are there; Spark is starting."
    async with running_session(archive.parent) as spark, AsyncExitStack() as stack:
        cast = await _Cast.assemble(stack, directory, plan)
        tasks = [
            asyncio.create_task(_look_after(scene, cast.admin, Archive(str(archive)))),
            asyncio.create_task(_read(scene, plan, cast.watch)),
            *(asyncio.create_task(_block(scene, *each)) for each in cast.guards.items()),
        ]
        try:
            await cast.say_hello(scene)
            show = partial(setattr, scene, "queries")
            scene.act = "Spark is there; its jobs read their first events."
            async with running_jobs(spark, directory, plan, archive, show) as jobs:
                await _go(scene, plan, launcher, cast)
                await _catch_up(scene, plan, Archive(str(archive)), jobs)
            await _look_at_checkpoint(scene, cast.admin)
        finally:
            await _ended(tasks)
        _count_rejected(scene, cast.consumers)


async def _go(scene: Scene, plan: Plan, launcher: Launcher, cast: "_Cast") -> None:
    start_us = _begin(scene, plan)
    await asyncio.gather(
        _direct(scene, launcher, cast.admin),
        _publish_packets(scene, plan, cast, start_us),
        _publish_beats(scene, plan, cast, start_us),
    )
    scene.play("Everything is published; what is under way arrives.")
    for producer in cast.producers.values():
        await producer.flush()


def _begin(scene: Scene, plan: Plan) -> int:
    """The story begins now; what is true of it is known from then on."""
    scene.begin("All four replicas behave.")
    start_us = now_us()
    crossings = plan.traffic(start_us).crossings
    scene.scanners.truth = {name: each.published_us / 1e6 for name, each in crossings.items()}
    hosts = plan.hosts(start_us)
    for name in hosts.silences(round(plan.silent_after_s * 1e6)):
        host = hosts.by_name[name]
        if host.outage is not None:
            silent_s = host.outage.from_us / 1e6 + plan.silent_after_s
            scene.silences.truth[f"{host.party}/{host.name}"] = silent_s
    return start_us


@dataclass(frozen=True)
class _Cast:
    """Everybody who is connected with the cluster, but for Spark."""

    admin: Admin
    producers: dict[str, Producer]
    watch: Consumer
    guards: dict[str, Consumer]

    @classmethod
    async def assemble(cls, stack: AsyncExitStack, directory: Path, plan: Plan) -> "_Cast":
        producers = {
            name: Producer(directory, name, linger_ms=LINGER_MS)
            for name in (*plan.sites, *plan.parties)
        }
        cast = cls(
            Admin(directory, OPERATOR),
            producers,
            Consumer(directory, plan.watch),
            {site: Consumer(directory, site) for site in plan.sites},
        )
        for each in (cast.admin, *producers.values(), *cast.consumers):
            await stack.enter_async_context(each)
        cast.watch.subscribe([*plan.archived, SYSLOG, ALERTS], start="begin")
        for guard in cast.guards.values():
            guard.subscribe([BLACKLIST], start="begin")
        for consumer in cast.consumers:
            await consumer.subscribed()
        return cast

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        return (self.watch, *self.guards.values())

    async def say_hello(self, scene: Scene) -> None:
        """The first events, which are no packets, but give Spark some work."""
        for site in self.guards:
            producer = self.producers[site]
            await self.publish(scene, producer, site, f"{site} is here".encode(), key=b"hello")
            await producer.flush()

    async def publish(
        self, scene: Scene, producer: Producer, topic: str, value: bytes, **options: Any
    ) -> None:
        line, mark = scene.lines[topic], _mark(options["key"], value)

        def receipted(done: "asyncio.Future[Receipt]") -> None:
            if not done.cancelled() and done.exception() is None:
                line.receipted += 1
                scene.order.note(topic, mark, done.result().of_event(place))

        line.on_sent(mark)
        future = await producer.submit(topic, value, **options)
        place = producer.place
        future.add_done_callback(receipted)


def _mark(key: bytes | None, value: bytes) -> bytes:
    """What tells an event from all others of its topic."""
    return (key or b"") + b" " + value


async def _publish_packets(scene: Scene, plan: Plan, cast: _Cast, start_us: int) -> None:
    for packet in plan.traffic(start_us):
        await _due(packet.published_us)
        producer = cast.producers[packet.site]
        options = {"key": packet.key, "timestamp_us": packet.time_us}
        await cast.publish(scene, producer, packet.site, packet.value, **options)


async def _publish_beats(scene: Scene, plan: Plan, cast: _Cast, start_us: int) -> None:
    for number, message in enumerate(plan.hosts(start_us).messages):
        await _due(message.arrives_us)
        value = message.value
        if message.topic == SYSLOG:
            # A host may write the same line twice, and what arrives twice is counted.
            value = msgspec.json.encode({**msgspec.json.decode(value), "number": number})
        options = {"key": message.key, "headers": list(message.headers)}
        await cast.publish(
            scene, cast.producers[message.party], message.topic, value,
            timestamp_us=message.timestamp_us, **options,
        )  # fmt: skip


async def _due(time_us: int) -> None:
    wait_s = (time_us - now_us()) / 1e6
    if wait_s > 0:
        await asyncio.sleep(wait_s)


# Subscribers


async def _read(scene: Scene, plan: Plan, consumer: Consumer) -> None:
    """What the watch sees: everything that sites and hosts publish, and the alerts."""
    async for record in consumer:
        if record.topic == ALERTS:
            _on_alert(scene, plan, record)
        elif record.publisher != plan.analyst:
            mark = _mark(record.key, record.value)
            scene.lines[record.topic].on_delivered(mark)
            if record.offset is not None:
                scene.order.read.add((record.topic, record.offset, mark))


def _on_alert(scene: Scene, plan: Plan, record: Record) -> None:
    alert = msgspec.json.decode(record.value)
    host = str(alert["host"])
    if alert["kind"] == "silent":
        if scene.silences.on_told(plan.watch, host):
            scene.tell(f"{host} is silent")
    elif alert["kind"] == "back":
        scene.tell(f"{host} is back")


async def _block(scene: Scene, site: str, consumer: Consumer) -> None:
    """What a site does with the blacklist."""
    async for record in consumer:
        entry = msgspec.json.decode(record.value)
        source = str(entry["source"])
        if scene.scanners.on_told(site, source):
            count, sites = entry["incomplete"], len(entry["sites"])
            scene.tell(f"all sites block {source}: {count} probes at {sites} sites")


# The story


async def _direct(scene: Scene, launcher: Launcher, admin: Admin) -> None:
    await _until(scene, LIES_AT)
    scene.play(f"{scene.liar} lies: it alters everything that it sends.")
    await admin.misbehave(scene.liar, "lie", percent=100)
    await _until(scene, DIES_AT)
    scene.play(f"{scene.liar} is killed (kill -9).")
    launcher.stop(scene.liar, kill=True)
    await _until(scene, RETURNS_AT)
    scene.play(f"{scene.liar} is back, and honest.")
    await asyncio.to_thread(launcher.start, scene.liar)
    await _until(scene, BEHEADED_AT)
    await _look_at_checkpoint(scene, admin)
    leader = scene.order.leader = await _leader(admin)
    scene.play(f"{leader}, who orders everything, is killed (kill -9).")
    launcher.stop(leader, kill=True)
    await _until(scene, HEALED_AT)
    successor = scene.order.successor = await _leader(admin)
    scene.play(f"{leader} is back, and {successor} leads.")
    await asyncio.to_thread(launcher.start, leader)


async def _until(scene: Scene, share: float) -> None:
    await asyncio.sleep(max(0.0, share * scene.seconds - scene.passed_s))


async def _leader(admin: Admin) -> str:
    """Who orders the log, in the words of most replicas."""
    groups = await _groups(admin)
    return Counter(str(group["leader"]) for group in groups).most_common(1)[0][0]


async def _groups(admin: Admin) -> list[dict[str, Any]]:
    reports: list[Any] = list((await admin.status(timeout_s=1.0)).values())
    return [report["log"]["groups"]["byzantine"] for report in reports if report.get("log")]


async def _look_at_checkpoint(scene: Scene, admin: Admin) -> None:
    """Take the latest checkpoint, and believe it if a quorum of the pinned keys signed it."""
    cluster = admin.cluster
    cosigners = [Cosigner(replica.name, replica.sign_key) for replica in cluster.replicas]
    quorum = Quorum(cluster.orderers, cluster.f).intersecting
    found: list[tuple[int, tuple[str, ...]]] = []
    for group in await _groups(admin):
        with contextlib.suppress(RemoteProtocolError):
            checkpoint = read_checkpoint(str(group["checkpoint"]), cosigners, quorum)
            names = tuple(each.name for each in checkpoint.cosignatures)
            found.append((checkpoint.head.size, names))
    if found:
        scene.order.checkpoints.append(max(found))


async def _look_after(scene: Scene, admin: Admin, archive: Archive) -> None:
    """Ask the replicas how they are, and count, once a second."""
    while True:
        for name, status in (await admin.status(timeout_s=0.5)).items():
            scene.replicas[name] = _word(status)
        files = (await asyncio.to_thread(archive.view)).files
        scene.samples.append(
            Sample(
                scene.passed_s,
                sum(line.published.total() for line in scene.lines.values()),
                sum(line.delivered.total() for line in scene.lines.values()),
                sum(file.rows for file in files),
            )
        )
        await asyncio.sleep(1.0)


def _word(status: dict[str, object]) -> str:
    if status.get("health") == "down":
        return "down"
    return "ok" if status.get("misbehaviour") == "none" else str(status.get("misbehaviour"))


# The end


async def _catch_up(scene: Scene, plan: Plan, archive: Archive, jobs: Jobs) -> None:
    """Give what is under way a bounded time to arrive where that is promised, and to be found."""
    promised = [line for line in scene.lines.values() if line.tolerates_lies]
    deadline_s = time.monotonic() + CATCH_UP_S
    while time.monotonic() < deadline_s:
        jobs.require_alive()
        is_read = not any((line.published - line.delivered).total() for line in promised)
        is_found = all(f.known == f.truth.keys() for f in (scene.scanners, scene.silences))
        if is_read and is_found and await asyncio.to_thread(_is_archived, scene, plan, archive):
            return
        await asyncio.sleep(LOOK_EVERY_S)


def _is_archived(scene: Scene, plan: Plan, archive: Archive) -> bool:
    """Whether the archive has come to where publishers were told that their last events are."""
    next_offsets = archive.view().next
    ends = dict.fromkeys(plan.archived, 0)
    for topic, offset, _ in scene.order.told:
        ends[topic] = max(ends[topic], offset)
    return all(next_offsets.get(topic, {}).get(0, 0) > end for topic, end in ends.items())


def _settle(scene: Scene, plan: Plan, archive: Archive) -> None:
    """Compare the archive with what was published."""
    for topic in plan.archived:
        line = scene.lines[topic]
        line.archived = Counter()
        rows = archive.table(topic, columns=["key", "value", "producer", "offset"])
        columns = (rows[name].to_pylist() for name in rows.column_names)
        for key, value, producer, offset in zip(*columns, strict=True):
            if producer != plan.analyst:
                line.archived[_mark(key, value)] += 1
                scene.order.archived.add((topic, offset, _mark(key, value)))


def _prove(scene: Scene, archive: Archive, keys: Keys) -> None:
    """Prove a packet of somebody who is blacklisted, and change bytes of the proof."""
    source = min(scene.scanners.known, default="", key=scene.scanners.after_s)
    shown = scene.shown = _packet_of(source, archive, scene.scanners.subscribers)
    proof = prove_archived(archive, keys, shown.topic, 0, shown.offset).render()
    held = verify_bytes(proof, keys)
    if held.event is None or held.event.value != shown.value:
        raise QuorateError(f"the proof of what is at offset {shown.offset} shows something else")
    shown.proof_bytes, shown.published_by = len(proof), held.producer_name
    shown.vouched_for_by = tuple(voucher.name for voucher in held.vouchers)
    for _ in range(CHANGES):
        at = secrets.randbelow(len(proof))
        changed = bytes([proof[at] ^ 1 + secrets.randbelow(255)])
        shown.changed += 1
        try:
            verify_bytes(proof[:at] + changed + proof[at + 1 :], keys)
        except QuorateError:
            shown.refused += 1


def _packet_of(source: str, archive: Archive, sites: tuple[str, ...]) -> Shown:
    """The last packet that any site has of this source."""
    found = [
        (row["timestamp"], Shown(site, row["offset"], source, row["value"]))
        for site in sites
        for row in archive.table(
            site,
            columns=["timestamp", "offset", "value"],
            where=compute.field("key") == source.encode(),
        ).to_pylist()
    ]
    if not found:
        raise QuorateError(f"the archive has no packet of the scanner '{source}'")
    return max(found, key=lambda each: (each[0], each[1].offset))[1]


def _count_rejected(scene: Scene, consumers: tuple[Consumer, ...]) -> None:
    for consumer in consumers:
        for who_and_what, count in consumer.reports.items():
            if not who_and_what.endswith(TOLERABLE):
                scene.rejected[who_and_what] += count
