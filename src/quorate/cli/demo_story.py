"""What the demo does: real replicas, real traffic, one liar, two deaths.

Four replicas run as processes of their own. One publisher and two subscribers work on topics
of different contracts. After a quiet start one replica lies in everything it sends; later it
is killed, and comes back. Then the leader of the log topic is killed, and comes back before the
end. Every value that arrives is compared with what was published, so that "lost", "forged" and
"duplicates" are counted and not claimed; of the log, both subscribers' orders are compared with
each other and with the positions that the publisher was given, and the replicas' signatures under
it are verified. At the end one vote of a validated topic is proved, and the proof verified with
nothing but the keys, as it is and with bytes changed.
"""

import asyncio
import contextlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

from quorate.client import Admin, Consumer, Producer, Receipt, prove
from quorate.core.cluster import Cluster
from quorate.core.contract import Contract
from quorate.core.errors import QuorateError, RemoteProtocolError
from quorate.core.quorum import Quorum
from quorate.crypto.checkpoint import Cosigner
from quorate.crypto.checkpoint import read as read_checkpoint
from quorate.crypto.proofs import Keys, verify_bytes
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import OPERATOR, make_local_cluster, write_local_cluster
from quorate.runtime.ports import free_base_port

LOG = "ledger"
VOTES = "votes"
PUBLISHER, SUBSCRIBERS = "alice", ("bob", "carol")
LATENCIES_KEPT = 2000
EVENTS_PER_TURN = 10
TURN_S = 0.02
CATCH_UP_S = 20.0

TOPICS: dict[str, dict[str, object]] = {
    "metrics": {"protection": "crash"},
    "alerts": {"broadcast": "vote"},
    "orders": {"broadcast": "authenticated", "history_every": 64},
    "prices": {"broadcast": "chain", "history_every": 64},
    "audit": {"broadcast": "reliable", "order": "fifo"},
    LOG: {"order": "total"},
    VOTES: {"order": "total", "validated": True, "event_proofs": True},
}
# A changed proof is tried so many times, each with another byte.
CHANGES = 64
# Shares of the whole time at which the story moves on.
LIES_AT, DIES_AT, RETURNS_AT, BEHEADED_AT, HEALED_AT, ENDS_AT = 0.15, 0.35, 0.5, 0.6, 0.8, 0.9


@dataclass(slots=True)
class Line:
    """One topic as the audience sees it."""

    name: str
    contract: Contract
    published: int = 0
    receipted: int = 0
    delivered: int = 0
    duplicates: int = 0
    forged: int = 0
    lost: int = 0
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))

    @property
    def tolerates_lies(self) -> bool:
        return self.contract.protection == "byzantine"

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class Ledger:
    """What becomes of the log topic, whose leader is killed."""

    leader: str = ""
    successor: str = ""
    # The longest time without a receipt after that.
    gap_s: float = 0.0
    # Where the publisher was told that its events stand, and where each subscriber read them.
    positions: dict[bytes, int] = field(default_factory=dict)
    orders: list[list[tuple[int, bytes]]] = field(default_factory=list)
    # Checkpoints that verified: how many batches they cover, and who signed them.
    checkpoints: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    last_receipt: float = 0.0

    def note(self, value: bytes, receipt: Receipt) -> None:
        now = time.monotonic()
        if receipt.offset is not None:
            self.positions[value] = receipt.offset
        if self.leader and self.last_receipt:
            self.gap_s = max(self.gap_s, now - self.last_receipt)
        self.last_receipt = now

    def misplaced(self) -> int:
        """How many events stand elsewhere than their publisher, or the other reader, has them."""
        first, *others = self.orders or [[]]
        differing = sum(
            mine != theirs
            for other in others
            for mine, theirs in zip_longest(first, other, fillvalue=None)
        )
        read = {value: offset for offset, value in first}
        wrong = sum(read.get(value) != offset for value, offset in self.positions.items())
        return differing + wrong

    def result(self) -> dict[str, object]:
        return {
            "leader_killed": self.leader,
            "next_leader": self.successor,
            "gap_s": round(self.gap_s, 2),
            "positions": len(self.positions),
            "misplaced": self.misplaced(),
            "checkpoints": [
                {"batches": batches, "signed_by": list(names)}
                for batches, names in self.checkpoints
            ],
        }


@dataclass(slots=True)
class Shown:
    """One vote, and how it was proved."""

    vote: bytes = b""
    partition: int = 0
    offset: int = 0
    index: int = 0
    proof_bytes: int = 0
    published_by: str = ""
    vouched_for_by: tuple[str, ...] = ()
    # With so many of its bytes changed, one at a time, it did not hold.
    refused: int = 0

    def result(self) -> dict[str, object]:
        return {
            "vote": self.vote.decode(),
            "offset": self.offset,
            "proof_bytes": self.proof_bytes,
            "published_by": self.published_by,
            "vouched_for_by": list(self.vouched_for_by),
            "changed": CHANGES,
            "refused": self.refused,
        }


@dataclass(slots=True)
class Scene:
    """Everything that happens, for whoever watches."""

    seconds: float
    lines: dict[str, Line]
    liar: str
    started: float = field(default_factory=time.monotonic)
    act: str = "All four replicas behave."
    replicas: dict[str, str] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    values: dict[str, set[bytes]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    shown: Shown = field(default_factory=Shown)

    @property
    def share(self) -> float:
        return (time.monotonic() - self.started) / self.seconds

    def result(self) -> dict[str, object]:
        """The summary. Lost, forged and doubled are totalled where the contract promises none."""
        rows = [self._row(line) for line in self.lines.values()]
        promised = [line for line in self.lines.values() if line.tolerates_lies]
        return {
            "published": sum(line.published for line in self.lines.values()),
            "delivered": sum(line.delivered for line in self.lines.values()),
            "lost": sum(line.lost for line in promised),
            "forged": sum(line.forged for line in promised),
            "duplicates": sum(line.duplicates for line in promised),
            "rejected": sum(self.rejected.values()),
            "rejected_from": dict(self.rejected),
            "ledger": self.ledger.result(),
            "proof": self.shown.result(),
            "topics": rows,
        }

    def _row(self, line: Line) -> dict[str, object]:
        return {
            "topic": line.name,
            "protection": line.contract.protection,
            "protocol": line.contract.protocol,
            "validated": line.contract.validated,
            "history_every": line.contract.history_every,
            "published": line.published,
            "receipted": line.receipted,
            "delivered": line.delivered,
            "duplicates": line.duplicates,
            "lost": line.lost,
            "forged": line.forged,
            "promised": line.tolerates_lies,
            "p50_ms": round(line.percentile_ms(0.5), 2),
            "p99_ms": round(line.percentile_ms(0.99), 2),
        }


async def play(directory: Path, seconds: float, watch: Callable[[Scene], None]) -> Scene:
    """Run the whole story in a directory of its own; `watch` is called a few times a second."""
    contracts = {name: Contract.parse(name, table) for name, table in TOPICS.items()}
    local = make_local_cluster(
        clients=(PUBLISHER, *SUBSCRIBERS), topics=contracts, base_port=free_base_port()
    )
    write_local_cluster(directory, local)
    launcher = Launcher(directory, tied=True)
    try:
        launcher.start_all()
        return await _perform(launcher, seconds, watch)
    finally:
        launcher.stop_all()


async def _perform(launcher: Launcher, seconds: float, watch: Callable[[Scene], None]) -> Scene:
    directory, cluster = launcher.directory, launcher.cluster
    # The liar serves every topic of the weakest contract, so that its lies matter.
    liar = cluster.member(cluster.placement("metrics")[0]).name
    lines = {name: Line(name, contract) for name, contract in cluster.topics.items()}
    scene = Scene(seconds, lines, liar, values={name: set() for name in lines})
    async with (
        Admin(directory, OPERATOR) as admin,
        Producer(directory, PUBLISHER, linger_ms=2) as producer,
        Consumer(directory, SUBSCRIBERS[0]) as first,
        Consumer(directory, SUBSCRIBERS[1]) as second,
    ):
        consumers = (first, second)
        for consumer in consumers:
            consumer.subscribe(list(lines))
            await consumer.subscribed()
        scene.started = time.monotonic()
        seen: list[Counter[bytes]] = [Counter(), Counter()]
        scene.ledger.orders = [[], []]
        tasks = [
            asyncio.create_task(_watch(scene, watch)),
            asyncio.create_task(_look_after(scene, admin)),
            *(
                asyncio.create_task(_read(scene, *each))
                for each in zip(consumers, seen, scene.ledger.orders, strict=True)
            ),
        ]
        try:
            await asyncio.gather(
                _direct(scene, launcher, admin), *(_publish(scene, producer, n) for n in lines)
            )
            await producer.flush()
            await _catch_up(scene, seen)
            await _look_at_ledger(scene, admin)
            await _prove(scene.shown, directory, cluster)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _settle(scene, seen, consumers)
        watch(scene)
    return scene


async def _direct(scene: Scene, launcher: Launcher, admin: Admin) -> None:
    """The story itself."""
    await _until(scene, LIES_AT)
    scene.act = f"{scene.liar} lies: it alters everything that it sends."
    await admin.misbehave(scene.liar, "lie", percent=100)
    await _until(scene, DIES_AT)
    scene.act = f"{scene.liar} is killed (kill -9)."
    launcher.stop(scene.liar, kill=True)
    await _until(scene, RETURNS_AT)
    scene.act = f"{scene.liar} is back, and honest."
    launcher.start(scene.liar)
    await _until(scene, BEHEADED_AT)
    await _look_at_ledger(scene, admin)
    leader = await _leader(admin)
    scene.act = f"{leader}, the leader of the log '{LOG}', is killed (kill -9)."
    scene.ledger.leader = leader
    launcher.stop(leader, kill=True)
    await _until(scene, HEALED_AT)
    scene.ledger.successor = await _leader(admin)
    scene.act = f"{leader} is back, and {scene.ledger.successor} leads."
    launcher.start(leader)


async def _leader(admin: Admin) -> str:
    """Who orders the log, in the words of most replicas."""
    groups = await _groups(admin)
    return Counter(str(group["leader"]) for group in groups).most_common(1)[0][0]


async def _groups(admin: Admin) -> list[dict[str, Any]]:
    reports: list[Any] = list((await admin.status(timeout_s=1.0)).values())
    return [report["log"]["groups"]["byzantine"] for report in reports if report.get("log")]


async def _look_at_ledger(scene: Scene, admin: Admin) -> None:
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
        scene.ledger.checkpoints.append(max(found))


async def _prove(shown: Shown, directory: Path, cluster: Cluster) -> None:
    """Prove a vote, and see what becomes of the proof when a byte of it is changed."""
    place = VOTES, shown.partition, shown.offset
    proof = (await prove(directory, SUBSCRIBERS[0], *place, event=shown.index)).render()
    keys = Keys.of(cluster)
    held = verify_bytes(proof, keys)
    if held.event is None or held.event.value != shown.vote:
        raise QuorateError(f"the proof of a vote at offset {shown.offset} shows another one")
    shown.proof_bytes, shown.published_by = len(proof), held.producer_name
    shown.vouched_for_by = tuple(voucher.name for voucher in held.vouchers)
    for _ in range(CHANGES):
        at = secrets.randbelow(len(proof))
        changed = bytes([proof[at] ^ 1 + secrets.randbelow(255)])
        try:
            verify_bytes(proof[:at] + changed + proof[at + 1 :], keys)
        except QuorateError:
            shown.refused += 1


async def _until(scene: Scene, share: float) -> None:
    await asyncio.sleep(max(0.0, scene.started + share * scene.seconds - time.monotonic()))


async def _publish(scene: Scene, producer: Producer, topic: str) -> None:
    """A steady stream of values that nobody could make up."""
    line, values = scene.lines[topic], scene.values[topic]

    def receipted(value: bytes, done: "asyncio.Future[Receipt]") -> None:
        if not done.cancelled() and done.exception() is None:
            line.receipted += 1
            if topic == LOG:
                scene.ledger.note(value, done.result())

    while scene.share < ENDS_AT:
        for _ in range(EVENTS_PER_TURN):
            value = f"{topic} {line.published} {secrets.token_hex(16)}".encode()
            values.add(value)
            future = await producer.submit(topic, value)
            future.add_done_callback(partial(receipted, value))
            line.published += 1
        await asyncio.sleep(TURN_S)


async def _read(
    scene: Scene, consumer: Consumer, seen: Counter[bytes], order: list[tuple[int, bytes]]
) -> None:
    async for record in consumer:
        line = scene.lines[record.topic]
        if record.topic == LOG and record.offset is not None:
            order.append((record.offset, record.value))
        if record.topic == VOTES and record.offset is not None:
            shown = scene.shown
            shown.vote, shown.partition = record.value, record.partition
            shown.offset, shown.index = record.offset, record.index
        if record.value not in scene.values[record.topic]:
            line.forged += 1
            continue
        seen[record.value] += 1
        if seen[record.value] > 1:
            line.duplicates += 1
            continue
        line.delivered += 1
        line.latencies_ms.append(time.time() * 1000 - record.timestamp_us / 1000)


async def _catch_up(scene: Scene, seen: list[Counter[bytes]]) -> None:
    """Give what is under way a bounded time to arrive where the contract promises it."""
    wanted = [
        value
        for name, line in scene.lines.items()
        if line.tolerates_lies
        for value in scene.values[name]
    ]
    deadline = time.monotonic() + CATCH_UP_S
    while time.monotonic() < deadline:
        if all(value in arrived for arrived in seen for value in wanted):
            return
        await asyncio.sleep(0.1)


def _settle(scene: Scene, seen: list[Counter[bytes]], consumers: tuple[Consumer, ...]) -> None:
    for name, line in scene.lines.items():
        line.lost = sum(v not in arrived for arrived in seen for v in scene.values[name])
    for consumer in consumers:
        for who_and_what, count in consumer.reports.items():
            if not who_and_what.endswith((": disagreement", ": late")):
                scene.rejected[who_and_what] += count


async def _look_after(scene: Scene, admin: Admin) -> None:
    """Ask the replicas how they are, once a second."""
    while True:
        for name, status in (await admin.status(timeout_s=0.5)).items():
            scene.replicas[name] = _word(status)
        await asyncio.sleep(1.0)


def _word(status: dict[str, object]) -> str:
    if status.get("health") == "down":
        return "down"
    return "ok" if status.get("misbehaviour") == "none" else str(status.get("misbehaviour"))


async def _watch(scene: Scene, watch: Callable[[Scene], None]) -> None:
    while True:
        watch(scene)
        await asyncio.sleep(0.25)


def verdict(result: dict[str, object]) -> None:
    """Raise if a promise was broken."""
    if result["lost"] or result["forged"] or result["duplicates"]:
        raise QuorateError(
            f"{result['lost']} events were lost, {result['forged']} forged and "
            f"{result['duplicates']} delivered twice where the contract promises none"
        )
    ledger = cast(dict[str, Any], result["ledger"])
    if ledger["misplaced"]:
        raise QuorateError(
            f"{ledger['misplaced']} events of the log do not stand where they should"
        )
    proof = cast(dict[str, Any], result["proof"])
    if proof["refused"] != proof["changed"] or not proof["vouched_for_by"]:
        raise QuorateError(
            f"of {proof['changed']} proofs with a changed byte, {proof['refused']} were refused"
        )
    sizes = [checkpoint["batches"] for checkpoint in ledger["checkpoints"]]
    if len(sizes) < 2 or sizes[0] >= sizes[-1]:
        raise QuorateError(f"the log's checkpoints did not grow: they cover {sizes} batches")
