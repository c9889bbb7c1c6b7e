"""What one experiment found, as one row of a report.

The first keys are the same in every benchmark of this project. `fault` is null when there was
none, and a figure is null where it does not apply.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from statistics import median
from typing import Any, TypeVar

from quorate.bench.experiments import Experiment
from quorate.bench.pipe import PipeRate
from quorate.bench.trials import PRODUCERS, QUORATE, REPLICAS, TOPICS, WHOLE, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    experiment: str
    protocol: str
    replicas: int
    topics: int
    # Of trials the mean of what producers gathered; of Kafka it is not known.
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
    thesis: float | None = None

    # Whose figure that is, and the latencies that go with it.
    thesis_source: str | None = None
    thesis_mean_ms: float | None = None
    thesis_p99_ms: float | None = None
    # Another system, how far it got (lowest, highest), and where that was measured.
    peer: str | None = None
    peer_events_per_s: tuple[float, float] | None = None
    peer_p50_ms: tuple[float, float] | None = None
    peer_source: str | None = None
    # How the experiment was set up; of trials, how many topics are validated.
    history_every: int = 0
    link_security: str = "mac"
    in_flight: int = 0
    fsync: str = ""
    publishers: int = 1
    validated: int = False
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
    def wrong(self) -> int:
        return self.lost + self.forged + self.duplicated + self.unacknowledged

    @property
    def is_sound(self) -> bool:
        """Whether the contract was kept: figures of a cluster that loses events mean nothing."""
        return not (self.wrong or self.problem)

    @property
    def title(self) -> str:
        """The experiment in words, as the progress bar has it."""
        known = {name: getattr(self, name) for name in _SETTING}
        return Experiment(name=self.experiment, **known).title

    def json(self) -> dict[str, Any]:
        """The row for `--json`: everything but the raw material of plots."""
        known = asdict(self)
        del known["latency_quantiles_ms"]
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow(Row):
    """The same of a trial of validated topics: the figures above are the consumer's."""

    store: str
    producers: int = PRODUCERS
    # The producers together: what was acknowledged in the window.
    produced_per_s: float = 0.0
    produced_mb_per_s: float = 0.0
    produced_ratio_to_pipe: float | None = None
    produced_spread: tuple[float, float] = (0.0, 0.0)
    # Of topics that are validated, and of those that nobody validates.
    signed_receipt_p50_ms: float | None = None
    basic_receipt_p50_ms: float | None = None
    # The share of the topics that nobody validates.
    basic_per_s: float = 0.0
    basic_produced_per_s: float = 0.0
    # What each process spent on an event, by name.
    processor_us_by_process: dict[str, float] = field(default_factory=dict)

    @property
    def trial(self) -> Trial:
        return Trial(
            system=self.protocol,
            store=self.store,
            validated=self.validated,
            event_bytes=self.event_bytes,
        )

    @property
    def title(self) -> str:
        return self.trial.title


_Row = TypeVar("_Row", bound=Row)

# What a row has in common with its experiment, and with the same experiment without a fault.
_SETTING_BUT_FAULT = (
    "protocol", "history_every", "replicas", "topics", "events_per_batch", "event_bytes",
    "link_security", "fsync", "publishers", "validated",
)  # fmt: skip
_SETTING = (*_SETTING_BUT_FAULT, "fault")
_TOTALS = ("published", "delivered", "lost", "forged", "duplicated", "unacknowledged")
_SPREADS = {"spread": "events_per_s", "produced_spread": "produced_per_s"}


def setting(experiment: Experiment) -> dict[str, Any]:
    """The columns that are known before anything has run."""
    thesis, peer = experiment.thesis, experiment.peer
    return {
        "experiment": experiment.name,
        **{name: getattr(experiment, name) for name in (*_SETTING, "in_flight")},
        "thesis": thesis and thesis.events_per_s,
        "thesis_source": thesis and thesis.source,
        "thesis_mean_ms": thesis and thesis.mean_ms,
        "thesis_p99_ms": thesis and thesis.p99_ms,
        "peer": peer and peer.name,
        "peer_events_per_s": peer and peer.events_per_s,
        "peer_p50_ms": peer and peer.p50_ms,
        "peer_source": peer and peer.source,
    }


def setting_of_trial(trial: Trial) -> dict[str, Any]:
    return {
        "experiment": "validated",
        "protocol": trial.system,
        "replicas": REPLICAS if trial.system in (QUORATE, WHOLE) else 1,
        "topics": TOPICS,
        "event_bytes": trial.event_bytes,
        "store": trial.store,
        "validated": trial.validated,
    }


def beside(pipe: PipeRate, events_per_s: float, event_bytes: float) -> dict[str, Any]:
    """The columns of a rate beside a pipe.

    With the pipe's frames for batches, a ratio of megabytes is one of frames per second as well.
    """
    mb_per_s = events_per_s * event_bytes / 1e6
    return {
        "events_per_s": events_per_s,
        "mb_per_s": mb_per_s,
        "pipe_frames_per_s": pipe.frames_per_s,
        "pipe_mb_per_s": pipe.mb_per_s,
        "ratio_to_pipe": mb_per_s / pipe.mb_per_s,
        "frame_bytes": pipe.frame_bytes,
    }


def merged(rows: Sequence[_Row]) -> _Row:
    """One row for several runs of one experiment: the median of each figure, and the spread.

    What must not happen is added up instead, so that no run hides the fault of another.
    """
    good = [row for row in rows if not row.problem]
    if not good:
        return rows[0]
    known = {each.name: [getattr(row, each.name) for row in good] for each in fields(good[0])}
    together: dict[str, Any] = {name: _middle(values) for name, values in known.items()}
    together |= {name: sum(known[name]) for name in _TOTALS}
    for spread, rate in _SPREADS.items():
        if spread in known:
            together[spread] = min(known[rate]), max(known[rate])
    together["runs"] = len(good)
    together["problem"] = next((row.problem for row in rows if row.problem), None)
    return replace(good[0], **together)


def with_costs(rows: Iterable[Row]) -> list[Row]:
    """The rows of one round, those with a fault compared to the ones without.

    By events per second, since both were measured next to each other: the pipe swings more
    between two experiments than they do, and so does the machine between two rounds.
    """
    rows, same = list(rows), attrgetter("experiment", *_SETTING_BUT_FAULT)
    rates = {same(row): row.events_per_s for row in rows if not row.fault}
    return [
        replace(row, cost_of_fault=1 - row.events_per_s / rate)
        if row.fault and not row.problem and (rate := rates.get(same(row)))
        else row
        for row in rows
    ]


def _middle(values: list[Any]) -> Any:
    """The median of figures, each by itself where there are several; of all else the first."""
    known = [value for value in values if value is not None]
    match known:
        case [float(), *_]:
            return median(known)
        case [list(), *_]:
            return [median(column) for column in zip(*filter(None, known), strict=True)]
        case [dict(), *_]:
            return {name: median(each.get(name, 0.0) for each in known) for name in known[0]}
    return values[0]
