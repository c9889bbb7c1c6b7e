"""What validated topics shall reach, held against what was measured.

All of it is for one run on a machine with two cores, with the embedded store unless it says
otherwise, default batching and events of 1 kB where no size is named. A target whose trials were
not run is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from rich.table import Table

from quorate.bench import report
from quorate.bench.rows import Row, TrialRow
from quorate.bench.trials import KAFKA, KAFKA_STORES, TARGET_SIZE, TOPICS, WHOLE, Trial

SOME = 2
AHEAD_FROM_BYTES = 256
ALL_OF_NONE_MIN = 0.5
FLAT_FACTOR_MAX = 2.0
BASIC_BESIDE_SOME_MIN = 0.8
KAFKA_MIN = 1.0
KAFKA_STORES_MIN = 0.4
HEADLINE_MIN = 0.12


class Target(NamedTuple):
    """One target; `seen` is the figure that it is about."""

    words: str
    wanted: str
    seen: str
    is_reached: bool


@dataclass(frozen=True, slots=True)
class Side:
    """Producers, or the consumer: whose figures a target is about."""

    name: str
    events_per_s: Callable[[TrialRow], float]
    basic_per_s: Callable[[TrialRow], float]


SIDES = (
    Side("producers", lambda row: row.produced_per_s, lambda row: row.basic_produced_per_s),
    Side("consumer", lambda row: row.events_per_s, lambda row: row.basic_per_s),
)

_Known: TypeAlias = dict[Trial, TrialRow]


def targets_of(rows: Sequence[TrialRow], headlines: Sequence[Row]) -> list[Target]:
    known = {row.trial: row for row in rows if not row.problem}
    found = [target for side in SIDES for target in _of_side(known, side)]
    for row in headlines:
        if row.ratio_to_pipe is not None:
            topics = "1 topic" if row.topics == 1 else f"{row.topics} topics"
            words = f"headline, {topics}: {row.events_per_s:,.0f} events/s, over the pipe"
            found.append(_at_least(words, HEADLINE_MIN, row.ratio_to_pipe))
    return found


def table_of(targets: Sequence[Target]) -> Table:
    columns: report.Columns[Target] = (
        ("target", lambda each: each.words),
        ("wanted", lambda each: each.wanted),
        ("seen", lambda each: each.seen),
        ("", lambda each: "reached" if each.is_reached else "missed"),
    )
    return report.table("Targets", columns, targets)


def _of_side(known: _Known, side: Side) -> Iterator[Target]:
    rate = side.events_per_s
    everything, nothing = (
        Trial(validated=TOPICS, event_bytes=TARGET_SIZE),
        Trial(event_bytes=TARGET_SIZE),
    )
    yield from _ratio(
        known, rate, f"{side.name}: all validated over none", ALL_OF_NONE_MIN, everything, nothing
    )
    yield from _flat(known, side)
    yield from _growing(known, side)
    yield from _ahead_of_whole(known, side)
    some = Trial(validated=SOME, event_bytes=TARGET_SIZE)
    if some in known and nothing in known:
        alone = side.basic_per_s(known[nothing]) * (TOPICS - SOME) / TOPICS
        words = f"{side.name}: {TOPICS - SOME} basic topics beside {SOME} validated, over without"
        yield _at_least(words, BASIC_BESIDE_SOME_MIN, _over(side.basic_per_s(known[some]), alone))
    kafka = Trial(system=KAFKA, event_bytes=TARGET_SIZE)
    yield from _ratio(
        known, rate, f"{side.name}: all validated over plain Kafka", KAFKA_MIN, everything, kafka
    )
    on_kafka = Trial(validated=TOPICS, store=KAFKA_STORES, event_bytes=TARGET_SIZE)
    yield from _ratio(
        known, rate, f"{side.name}: all validated with Kafka stores over plain Kafka",
        KAFKA_STORES_MIN, on_kafka, kafka,
    )  # fmt: skip


def _flat(known: _Known, side: Side) -> Iterator[Target]:
    rates = {size: rate for size, rate in _curve(known, side).items() if size <= TARGET_SIZE}
    if len(rates) > 1:
        factor = _over(max(rates.values()), min(rates.values()))
        words = f"{side.name}: events/s from {min(rates)} B to {max(rates):,} B, highest to lowest"
        is_flat = factor <= FLAT_FACTOR_MAX
        yield Target(words, f"≤ {FLAT_FACTOR_MAX:g}", f"{factor:.2f}", is_flat)


def _growing(known: _Known, side: Side) -> Iterator[Target]:
    sizes = [size for size in _curve(known, side) if size >= TARGET_SIZE]
    if len(sizes) > 1:
        rates = [_curve(known, side)[size] * size / 1e6 for size in sizes]
        grows = all(after > before for before, after in pairwise(rates))
        words = f"{side.name}: MB/s at {', '.join(f'{size:,}' for size in sizes)} B"
        yield Target(words, "growing", ", ".join(f"{rate:.0f}" for rate in rates), grows)


def _ahead_of_whole(known: _Known, side: Side) -> Iterator[Target]:
    for size, rate in _curve(known, side).items():
        whole = known.get(Trial(system=WHOLE, event_bytes=size))
        if whole is not None and size >= AHEAD_FROM_BYTES:
            words = f"{side.name}: all validated over whole payloads, {size:,} B"
            yield _at_least(words, 1.0, _over(rate, side.events_per_s(whole)))


def _curve(known: _Known, side: Side) -> dict[int, float]:
    """Events per second by size, with all topics validated."""
    everything = {
        trial.event_bytes: side.events_per_s(row)
        for trial, row in known.items()
        if trial == Trial(validated=TOPICS, event_bytes=trial.event_bytes)
    }
    return dict(sorted(everything.items()))


def _ratio(
    known: _Known,
    rate: Callable[[TrialRow], float],
    words: str,
    wanted: float,
    ours: Trial,
    theirs: Trial,
) -> Iterator[Target]:
    if ours in known and theirs in known:
        yield _at_least(words, wanted, _over(rate(known[ours]), rate(known[theirs])))


def _at_least(words: str, wanted: float, seen: float) -> Target:
    return Target(words, f"≥ {wanted:g}", f"{seen:.3g}", seen >= wanted)


def _over(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else float("inf")
