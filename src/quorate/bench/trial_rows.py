"""What one trial of validated topics found, as one row of a report.

The first keys are those of every benchmark here; `events_per_s` and what follows it are the
consumer's, and the producers' stand beside them: what was acknowledged in the window.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from quorate.bench.clients import Window
from quorate.bench.latencies import Latencies
from quorate.bench.pipe import PipeRate
from quorate.bench.trial_clients import Consumed, Produced
from quorate.bench.trials import PRODUCERS, QUORATE, REPLICAS, TOPICS, WHOLE, Trial

VALIDATED_TOPICS = "validated"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    experiment: str = VALIDATED_TOPICS
    protocol: str
    replicas: int
    topics: int = TOPICS
    # The mean of what producers gathered; of Kafka it is not known.
    events_per_batch: float | None = None
    event_bytes: int
    fault: str | None = None
    events_per_s: float = 0.0
    mb_per_s: float = 0.0
    pipe_frames_per_s: float = 0.0
    pipe_mb_per_s: float = 0.0
    ratio_to_pipe: float | None = None
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    # Kabis shows curves and no figures.
    thesis: float | None = None

    # How the trial was set up.
    store: str
    validated: int
    producers: int = PRODUCERS
    frame_bytes: int = 0
    seconds: float = 0.0
    # The producers together: what was acknowledged.
    produced_per_s: float = 0.0
    produced_mb_per_s: float = 0.0
    produced_ratio_to_pipe: float | None = None
    receipt_p50_ms: float = 0.0
    # The same of topics that are validated, and of those that nobody validates.
    signed_receipt_p50_ms: float | None = None
    basic_receipt_p50_ms: float | None = None
    # The share of the topics that nobody validates.
    basic_per_s: float = 0.0
    basic_produced_per_s: float = 0.0
    # Processor time, user and system: of all processes together, and of each by name.
    processor_us_per_event: float = 0.0
    processor_us_by_process: dict[str, float] = field(default_factory=dict)
    # Of the whole run, warm-up included, in events.
    published: int = 0
    delivered: int = 0
    lost: int = 0
    forged: int = 0
    duplicated: int = 0
    unacknowledged: int = 0
    # Of how many runs the figures are the medians, and the lowest and highest of both rates.
    runs: int = 1
    spread: tuple[float, float] = (0.0, 0.0)
    produced_spread: tuple[float, float] = (0.0, 0.0)
    problem: str | None = None

    @property
    def trial(self) -> Trial:
        return Trial(
            system=self.protocol,
            store=self.store,
            validated=self.validated,
            event_bytes=self.event_bytes,
        )

    @property
    def is_sound(self) -> bool:
        wrong = self.lost or self.forged or self.duplicated or self.unacknowledged
        return not (wrong or self.problem)

    def json(self) -> dict[str, Any]:
        return asdict(self)


def failed_row(trial: Trial, problem: str) -> TrialRow:
    return TrialRow(**_setting(trial), problem=problem)


def row_of(
    trial: Trial,
    window: Window,
    produced: Sequence[Produced],
    consumed: Consumed,
    pipe: PipeRate,
    processor_s: dict[str, float],
) -> TrialRow:
    """What the clients of one run said, beside the pipe of the same run."""
    acknowledged = sum(each.acknowledged for each in produced)
    batches = sum(each.batches for each in produced)
    produced_per_s = sum(each.in_window.all for each in produced) / window.seconds
    basic_produced_per_s = sum(each.in_window.basic for each in produced) / window.seconds
    events_per_s = consumed.counted.all / consumed.seconds
    megabytes = trial.event_bytes / 1e6
    spent_us = {name: 1e6 * seconds / max(1, acknowledged) for name, seconds in processor_s.items()}
    return TrialRow(
        **_setting(trial),
        events_per_batch=acknowledged / batches if batches else None,
        events_per_s=events_per_s,
        mb_per_s=events_per_s * megabytes,
        pipe_frames_per_s=pipe.frames_per_s,
        pipe_mb_per_s=pipe.mb_per_s,
        ratio_to_pipe=events_per_s * megabytes / pipe.mb_per_s,
        p50_ms=consumed.latencies.p50_ms,
        p99_ms=consumed.latencies.p99_ms,
        frame_bytes=pipe.frame_bytes,
        seconds=window.seconds,
        produced_per_s=produced_per_s,
        produced_mb_per_s=produced_per_s * megabytes,
        produced_ratio_to_pipe=produced_per_s * megabytes / pipe.mb_per_s,
        receipt_p50_ms=median(each.receipt.p50_ms for each in produced),
        signed_receipt_p50_ms=_p50_ms([each.signed_receipt for each in produced]),
        basic_receipt_p50_ms=_p50_ms([each.basic_receipt for each in produced]),
        basic_per_s=consumed.counted.basic / consumed.seconds,
        basic_produced_per_s=basic_produced_per_s,
        processor_us_per_event=sum(spent_us.values()),
        processor_us_by_process=spent_us,
        published=acknowledged,
        unacknowledged=sum(each.submitted for each in produced) - acknowledged,
        delivered=consumed.taken,
        lost=max(0, acknowledged - consumed.taken) + consumed.gaps,
        forged=consumed.wrong,
        duplicated=consumed.doubled,
        spread=(events_per_s, events_per_s),
        produced_spread=(produced_per_s, produced_per_s),
    )


def _p50_ms(receipts: Sequence[Latencies]) -> float | None:
    """The median of the producers that have such receipts, if any has."""
    known = [each.p50_ms for each in receipts if each.quantiles_ms]
    return median(known) if known else None


def merged(rows: Sequence[TrialRow]) -> TrialRow:
    """One row for several runs of one trial: medians and spreads; what must not be is added up."""
    good = [row for row in rows if not row.problem]
    if not good:
        return rows[0]
    middle: dict[str, Any] = {
        name: median(getattr(row, name) or 0.0 for row in good) for name in _FIGURES
    }
    middle |= {name: None for name in _RECEIPTS if getattr(good[0], name) is None}
    totals = {name: sum(getattr(row, name) for row in good) for name in _TOTALS}
    rates, produced = (
        [getattr(row, name) for row in good] for name in ("events_per_s", "produced_per_s")
    )
    spent = {
        name: median(row.processor_us_by_process.get(name, 0.0) for row in good)
        for name in good[0].processor_us_by_process
    }
    return replace(
        good[0], **middle, **totals,
        processor_us_by_process=spent,
        runs=len(good), spread=(min(rates), max(rates)),
        produced_spread=(min(produced), max(produced)),
        problem=next((row.problem for row in rows if row.problem), None),
    )  # fmt: skip


_RECEIPTS = ("signed_receipt_p50_ms", "basic_receipt_p50_ms")
_FIGURES = (
    "events_per_s", "mb_per_s", "pipe_frames_per_s", "pipe_mb_per_s", "ratio_to_pipe", "p50_ms",
    "p99_ms", "produced_per_s", "produced_mb_per_s", "produced_ratio_to_pipe", "receipt_p50_ms",
    "basic_per_s", "basic_produced_per_s", "processor_us_per_event", *_RECEIPTS,
)  # fmt: skip
_TOTALS = ("published", "delivered", "lost", "forged", "duplicated", "unacknowledged")


def _setting(trial: Trial) -> dict[str, Any]:
    """The columns that are known before anything has run."""
    return {
        "protocol": trial.system,
        "replicas": REPLICAS if trial.system in (QUORATE, WHOLE) else 1,
        "event_bytes": trial.event_bytes,
        "store": trial.store,
        "validated": trial.validated,
    }
