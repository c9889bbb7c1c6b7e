"""The books of the demo: what was published, what became of it, and what should have been found.

Every value that arrives, at a subscriber or in the archive, is compared with what was published, so
that "lost", "forged" and "duplicates" are counted and not claimed. Who is found to scan or to be
silent is compared with what the generators know to be true.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.client import Receipt
from quorate.core.contract import Contract
from quorate.core.errors import QuorateError
from quorate.pipeline.data.found import Found
from quorate.pipeline.running import Progress

LATENCIES_KEPT = 2000
NEWS_KEPT = 1000
# What a promise of precision is worth to whoever looks at a blacklist.
PRECISION_MIN = 0.95


@dataclass(slots=True)
class Line:
    """One topic as the audience sees it."""

    name: str
    contract: Contract
    published: Counter[bytes] = field(default_factory=Counter)
    delivered: Counter[bytes] = field(default_factory=Counter)
    # None as long as nobody has looked, and for topics that nobody archives.
    archived: Counter[bytes] | None = None
    receipted: int = 0
    # When the values were sent that are on their way, and how long those took that arrived.
    sent_s: dict[bytes, float] = field(default_factory=dict)
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))

    @property
    def tolerates_lies(self) -> bool:
        return self.contract.protection == "byzantine"

    @property
    def lost(self) -> int:
        return sum((self.published - each).total() for each in self._arrived)

    @property
    def forged(self) -> int:
        """How many arrived that nobody published."""
        return sum(
            count
            for each in self._arrived
            for value, count in each.items()
            if value not in self.published
        )

    @property
    def duplicates(self) -> int:
        return sum((each - self.published).total() for each in self._arrived) - self.forged

    @property
    def _arrived(self) -> Iterable[Counter[bytes]]:
        return (self.delivered,) if self.archived is None else (self.delivered, self.archived)

    def on_sent(self, value: bytes) -> None:
        self.published[value] += 1
        self.sent_s[value] = time.monotonic()

    def on_delivered(self, value: bytes) -> None:
        self.delivered[value] += 1
        sent_s = self.sent_s.pop(value, None)
        if sent_s is not None:
            self.latencies_ms.append(1000 * (time.monotonic() - sent_s))

    def percentile_ms(self, share: float) -> float:
        return percentile(self.latencies_ms, share)

    def result(self) -> dict[str, object]:
        return {
            "topic": self.name,
            "protection": self.contract.protection,
            "protocol": self.contract.protocol,
            "validated": self.contract.validated,
            "published": self.published.total(),
            "receipted": self.receipted,
            "delivered": self.delivered.total(),
            "archived": None if self.archived is None else self.archived.total(),
            "duplicates": self.duplicates,
            "lost": self.lost,
            "forged": self.forged,
            "promised": self.tolerates_lies,
            "p50_ms": round(self.percentile_ms(0.5), 2),
            "p99_ms": round(self.percentile_ms(0.99), 2),
        }


@dataclass(slots=True)
class Order:
    """Where events stand, and what becomes of that when the leader is killed."""

    leader: str = ""
    successor: str = ""
    # The longest time without a receipt after that.
    gap_s: float = 0.0
    last_receipt_s: float = 0.0
    # Topic, offset and value, as publishers were told, and as a subscriber and the archive have it.
    told: set[tuple[str, int, bytes]] = field(default_factory=set)
    read: set[tuple[str, int, bytes]] = field(default_factory=set)
    archived: set[tuple[str, int, bytes]] = field(default_factory=set)
    # Checkpoints that verified: how many batches they cover, and who signed them.
    checkpoints: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    def note(self, topic: str, value: bytes, receipt: Receipt) -> None:
        if receipt.offset is None:
            return
        now_s = time.monotonic()
        self.told.add((topic, receipt.offset, value))
        if self.leader and self.last_receipt_s:
            self.gap_s = max(self.gap_s, now_s - self.last_receipt_s)
        self.last_receipt_s = now_s

    def misplaced(self) -> int:
        """How many events stand elsewhere than their publishers were told."""
        return len(self.told - self.read) + len(self.told - self.archived)

    def result(self) -> dict[str, object]:
        return {
            "leader_killed": self.leader,
            "next_leader": self.successor,
            "gap_s": round(self.gap_s, 2),
            "positions": len(self.told),
            "misplaced": self.misplaced(),
            "checkpoints": [
                {"batches": batches, "signed_by": list(names)}
                for batches, names in self.checkpoints
            ],
        }


@dataclass(slots=True)
class Shown:
    """One archived event, and how it was proved when no replica was left to ask."""

    topic: str = ""
    offset: int = 0
    source: str = ""
    value: bytes = b""
    proof_bytes: int = 0
    published_by: str = ""
    vouched_for_by: tuple[str, ...] = ()
    # Of so many changes of one byte, so many were noticed.
    changed: int = 0
    refused: int = 0

    def result(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "offset": self.offset,
            "event": self.value.decode(),
            "proof_bytes": self.proof_bytes,
            "published_by": self.published_by,
            "vouched_for_by": list(self.vouched_for_by),
            "changed": self.changed,
            "refused": self.refused,
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals at one moment."""

    at_s: float
    published: int
    delivered: int
    archived: int


@dataclass(slots=True)
class Scene:
    """Everything that happens, for whoever watches."""

    seconds: float
    lines: dict[str, Line]
    liar: str
    scanners: Found
    silences: Found
    # When that was by the clock on the wall.
    began_s: float = field(default_factory=time.time)
    started_s: float = field(default_factory=time.monotonic)
    act: str = ""
    replicas: dict[str, str] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    order: Order = field(default_factory=Order)
    shown: Shown = field(default_factory=Shown)
    queries: list[Progress] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    # What happened, and when; and what subscribers print.
    acts: list[tuple[float, str]] = field(default_factory=list)
    news: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=NEWS_KEPT))

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.started_s

    def begin(self, act: str) -> None:
        self.began_s, self.started_s = time.time(), time.monotonic()
        self.samples.clear()
        self.play(act)

    def play(self, act: str) -> None:
        self.act = act
        self.acts.append((self.passed_s, act))

    def tell(self, words: str) -> None:
        self.news.append((self.passed_s, words))

    def result(self) -> dict[str, Any]:
        """The summary. Lost, forged and doubled are totalled where the contract promises none."""
        promised = [line for line in self.lines.values() if line.tolerates_lies]
        findings = (self.scanners, self.silences)
        told, truth = _total(findings, lambda f: f.told), _total(findings, lambda f: f.truth)
        rightly = sum(len(f.told.keys() & f.truth.keys()) for f in findings)
        return {
            "published": sum(line.published.total() for line in self.lines.values()),
            "delivered": sum(line.delivered.total() for line in self.lines.values()),
            "archived": sum(line.archived.total() for line in promised if line.archived),
            "lost": sum(line.lost for line in promised),
            "forged": sum(line.forged for line in promised),
            "duplicates": sum(line.duplicates for line in promised),
            "precision": rightly / told if told else 1.0,
            "recall": _total(findings, lambda f: f.known) / truth if truth else 1.0,
            "scanners": self.scanners.result(),
            "silences": self.silences.result(),
            "rejected": sum(self.rejected.values()),
            "rejected_from": dict(self.rejected),
            "order": self.order.result(),
            "proof": self.shown.result(),
            "topics": [line.result() for line in self.lines.values()],
        }


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def verdict(result: Mapping[str, Any]) -> None:
    """Raise if a promise was broken."""
    if result["lost"] or result["forged"] or result["duplicates"]:
        raise QuorateError(
            f"{result['lost']} events were lost, {result['forged']} forged and "
            f"{result['duplicates']} delivered twice where the contract promises none"
        )
    if result["order"]["misplaced"]:
        raise QuorateError(
            f"{result['order']['misplaced']} events do not stand where their publishers were told"
        )
    if result["recall"] < 1 or result["precision"] < PRECISION_MIN:
        missed = [*result["scanners"]["missed"], *result["silences"]["missed"]]
        wrong = [*result["scanners"]["wrong"], *result["silences"]["wrong"]]
        raise QuorateError(
            f"of scanners and silent hosts, {_names(missed)} were missed and {_names(wrong)} "
            f"wrongly reported"
        )
    proof = result["proof"]
    if not proof["changed"] or proof["refused"] != proof["changed"] or not proof["vouched_for_by"]:
        raise QuorateError(
            f"of {proof['changed']} proofs with a changed byte, {proof['refused']} were refused"
        )
    sizes = [checkpoint["batches"] for checkpoint in result["order"]["checkpoints"]]
    if len(sizes) < 2 or sizes[0] >= sizes[-1]:
        raise QuorateError(f"the log's checkpoints did not grow: they cover {sizes} batches")


def _total(findings: Iterable[Found], of: Callable[[Found], Collection[str]]) -> int:
    return sum(len(of(each)) for each in findings)


def _names(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
