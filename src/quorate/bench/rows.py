"""What one experiment found, as one row of a report.

The first keys are the same in every benchmark of this project. `fault` is null when there was
none, and a figure is null where it does not apply.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from quorate.bench.experiments import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    experiment: str
    protocol: str
    replicas: int
    topics: int
    events_per_batch: int
    event_bytes: int
    fault: str | None
    events_per_s: float = 0.0
    mb_per_s: float = 0.0
    pipe_frames_per_s: float = 0.0
    pipe_mb_per_s: float = 0.0
    ratio_to_pipe: float | None = None
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    thesis: float | None

    # Whose figure that is, and the latencies that go with it.
    thesis_source: str | None
    thesis_mean_ms: float | None
    thesis_p99_ms: float | None
    # Another system, how far it got (lowest, highest), and where that was measured.
    peer: str | None = None
    peer_events_per_s: tuple[float, float] | None = None
    peer_p50_ms: tuple[float, float] | None = None
    peer_source: str | None = None
    # How the experiment was set up.
    history_every: int
    link_security: str
    in_flight: int
    fsync: str = ""
    publishers: int = 1
    validated: bool = False
    frame_bytes: int = 0
    seconds: float = 0.0
    # More of what it found.
    mean_ms: float = 0.0
    deviation_ms: float = 0.0
    receipt_p50_ms: float = 0.0
    best_pipe_frames_per_s: float = 0.0
    pipe_round_trip_ms: float | None = None
    # The p50 of one event in flight, in round trips of the pipe.
    p50_round_trips: float | None = None
    memory_mb_max: float = 0.0
    # Processor time, user and system, of all replicas and clients together.
    processor_us_per_event: float = 0.0
    # Of the whole run, warm-up included, in events.
    published: int = 0
    delivered: int = 0
    lost: int = 0
    forged: int = 0
    duplicated: int = 0
    # Published, and without a receipt when the time for one was over.
    unacknowledged: int = 0
    # By how much the fault lowered events_per_s, within each round: 0.2 is a fifth.
    cost_of_fault: float | None = None
    # Of how many runs the figures are the medians, and their lowest and highest events_per_s.
    runs: int = 1
    spread: tuple[float, float] = (0.0, 0.0)
    # Why there are no figures, if there are none.
    problem: str | None = None
    # The percentiles 0 to 100, for plots.
    latency_quantiles_ms: list[float] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether the contract was kept: figures of a cluster that loses events mean nothing."""
        wrong = self.lost or self.forged or self.duplicated or self.unacknowledged
        return not (wrong or self.problem)


def as_json(row: Row) -> dict[str, Any]:
    """The row for `--json`: everything but the raw material of plots."""
    known = asdict(row)
    del known["latency_quantiles_ms"]
    return known


def failed_row(experiment: Experiment, problem: str) -> Row:
    """The row of an experiment that found nothing."""
    return Row(**setting(experiment), problem=problem)


def setting(experiment: Experiment) -> dict[str, Any]:
    """The columns that are known before anything has run."""
    thesis, peer = experiment.thesis, experiment.peer
    return {
        "experiment": experiment.name,
        "protocol": experiment.protocol,
        "replicas": experiment.replicas,
        "topics": experiment.topics,
        "events_per_batch": experiment.events_per_batch,
        "event_bytes": experiment.event_bytes,
        "fault": experiment.fault,
        "history_every": experiment.history_every,
        "link_security": experiment.link_security,
        "in_flight": experiment.in_flight,
        "fsync": experiment.fsync,
        "publishers": experiment.publishers,
        "validated": experiment.validated,
        "thesis": thesis and thesis.events_per_s,
        "thesis_source": thesis and thesis.source,
        "thesis_mean_ms": thesis and thesis.mean_ms,
        "thesis_p99_ms": thesis and thesis.p99_ms,
        "peer": peer and peer.name,
        "peer_events_per_s": peer and peer.events_per_s,
        "peer_p50_ms": peer and peer.p50_ms,
        "peer_source": peer and peer.source,
    }


def merged(rows: Sequence[Row]) -> Row:
    """One row for several runs of one experiment: the median of each figure, and the spread.

    What must not happen is added up instead, so that no run hides the fault of another.
    """
    good = [row for row in rows if not row.problem]
    if not good:
        return rows[0]
    middle: dict[str, Any] = {
        name: _median([getattr(row, name) for row in good]) for name in _FIGURES
    }
    totals = {name: sum(getattr(row, name) for row in good) for name in _TOTALS}
    rates = [row.events_per_s for row in good]
    return replace(
        good[0], **middle, **totals,
        runs=len(good), spread=(min(rates), max(rates)),
        problem=next((row.problem for row in rows if row.problem), None),
        latency_quantiles_ms=_middle_quantiles(good),
    )  # fmt: skip


def with_costs(rows: Iterable[Row]) -> list[Row]:
    """The rows of one round, those with a fault compared to the ones without.

    By events per second, since both were measured next to each other: the pipe swings more
    between two experiments than they do, and so does the machine between two rounds.
    """
    rows = list(rows)
    rates = {_setting_but_fault(row): row.events_per_s for row in rows if not row.fault}
    return [_with_cost(row, rates.get(_setting_but_fault(row))) for row in rows]


_FIGURES = (
    "events_per_s", "mb_per_s", "pipe_frames_per_s", "pipe_mb_per_s", "ratio_to_pipe",
    "p50_ms", "p99_ms", "mean_ms", "deviation_ms", "receipt_p50_ms", "best_pipe_frames_per_s",
    "pipe_round_trip_ms", "p50_round_trips", "memory_mb_max",
    "processor_us_per_event", "cost_of_fault",
)  # fmt: skip
_TOTALS = ("published", "delivered", "lost", "forged", "duplicated", "unacknowledged")


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _middle_quantiles(rows: Sequence[Row]) -> list[float]:
    measured = [row.latency_quantiles_ms for row in rows if row.latency_quantiles_ms]
    return [median(column) for column in zip(*measured, strict=True)]


def _setting_but_fault(row: Row) -> tuple[object, ...]:
    return (
        row.experiment, row.protocol, row.history_every, row.replicas, row.topics,
        row.events_per_batch, row.event_bytes, row.link_security, row.fsync, row.publishers,
        row.validated,
    )  # fmt: skip


def _with_cost(row: Row, without_fault: float | None) -> Row:
    if not row.fault or not without_fault or row.problem:
        return row
    return replace(row, cost_of_fault=1 - row.events_per_s / without_fault)
