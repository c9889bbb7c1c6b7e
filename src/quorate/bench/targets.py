"""What validated topics shall reach, held against what was measured.

All of it is for one run on a machine with two cores, with the embedded store unless it says
otherwise, default batching and events of 1 kB where no size is named. A target whose trials were
not run is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from rich.table import Table

from quorate.bench import report
from quorate.bench.rows import Row, TrialRow
from quorate.bench.trials import KAFKA, KAFKA_STORES, SIZES, TARGET_SIZE, TOPICS, WHOLE, Trial

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


class Side(NamedTuple):
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
    def rate(**setting: Any) -> float | None:
        """Events per second of such a trial, if there was one."""
        row = known.get(Trial(**{"event_bytes": TARGET_SIZE, **setting}))
        return side.events_per_s(row) if row is not None else None

    def over(words: str, wanted: float, ours: float | None, theirs: float | None) -> list[Target]:
        if ours is None or theirs is None:
            return []
        return [_at_least(f"{side.name}: {words}", wanted, _over(ours, theirs))]

    everything, kafka = rate(validated=TOPICS), rate(system=KAFKA)
    on_kafka = rate(validated=TOPICS, store=KAFKA_STORES)
    curve = {size: each for size in SIZES if (each := rate(validated=TOPICS, event_bytes=size))}
    yield from over("all validated over none", ALL_OF_NONE_MIN, everything, rate())
    yield from _of_curve(side, curve)
    for size, ours in curve.items():
        words = f"all validated over whole payloads, {size:,} B"
        whole = rate(system=WHOLE, event_bytes=size)
        if size >= AHEAD_FROM_BYTES:
            yield from over(words, 1.0, ours, whole)
    some, nothing = known.get(Trial(validated=SOME)), known.get(Trial())
    if some is not None and nothing is not None:
        alone = side.basic_per_s(nothing) * (TOPICS - SOME) / TOPICS
        words = f"{TOPICS - SOME} basic topics beside {SOME} validated, over without"
        yield from over(words, BASIC_BESIDE_SOME_MIN, side.basic_per_s(some), alone)
    yield from over("all validated over plain Kafka", KAFKA_MIN, everything, kafka)
    words = "all validated with Kafka stores over plain Kafka"
    yield from over(words, KAFKA_STORES_MIN, on_kafka, kafka)


def _of_curve(side: Side, curve: dict[int, float]) -> Iterator[Target]:
    """Events per second stay up to a kilobyte, and megabytes grow from there on."""
    small = {size: rate for size, rate in curve.items() if size <= TARGET_SIZE}
    if len(small) > 1:
        factor = _over(max(small.values()), min(small.values()))
        words = f"{side.name}: events/s from {min(small)} B to {max(small):,} B, highest to lowest"
        is_flat = factor <= FLAT_FACTOR_MAX
        yield Target(words, f"≤ {FLAT_FACTOR_MAX:g}", f"{factor:.2f}", is_flat)
    large = {size: rate * size / 1e6 for size, rate in curve.items() if size >= TARGET_SIZE}
    if len(large) > 1:
        grows = all(after > before for before, after in pairwise(large.values()))
        words = f"{side.name}: MB/s at {', '.join(f'{size:,}' for size in large)} B"
        yield Target(words, "growing", ", ".join(f"{rate:.0f}" for rate in large.values()), grows)


def _at_least(words: str, wanted: float, seen: float) -> Target:
    return Target(words, f"≥ {wanted:g}", f"{seen:.3g}", seen >= wanted)


def _over(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else float("inf")
