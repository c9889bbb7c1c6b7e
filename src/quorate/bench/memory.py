"""The memory of the replicas, looked at now and then while something is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

TABLE_LINES = 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the replicas: how much there was by then, and what each of them takes."""

    seconds: float
    count: int
    memory_mb: dict[str, float]


def memory_table(title: str, counted: str, samples: Sequence[Sample]) -> Table:
    """Some of these samples, the last one among them, for people."""
    table = Table(title=title)
    names = sorted({name for sample in samples for name in sample.memory_mb})
    for heading in ("seconds", counted, *(f"{name}, MB" for name in names)):
        table.add_column(heading, justify="right")
    step = max(1, len(samples) // TABLE_LINES)
    for sample in [*samples[:-1:step], samples[-1]]:
        sizes = (f"{sample.memory_mb.get(name, 0.0):.0f}" for name in names)
        table.add_row(f"{sample.seconds:.0f}", f"{sample.count:,}", *sizes)
    return table


def memory_json(counted: str, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """All of them, for programs."""
    return [
        {"seconds": round(each.seconds, 1), counted: each.count, **each.memory_mb}
        for each in samples
    ]
