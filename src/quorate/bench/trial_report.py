"""Trials of validated topics as people read them: a table, and pictures like those of Kabis.

Its figures 4.1 and 4.3 show the throughput of consumer and producers over the size of an event, one
curve for each number of validated topics; 4.2 and 4.4 show some of these again, on a linear scale:
with validation beside the ordering of whole payloads, and without it beside plain Kafka.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quorate.bench import machine
from quorate.bench.drawing import (
    COLOURS,
    INK,
    legend_below,
    panels_for,
    require_matplotlib,
    saved,
)
from quorate.bench.targets import SIDES, Side
from quorate.bench.trial_rows import TrialRow
from quorate.bench.trials import KAFKA, PRODUCERS, QUORATE, TOPICS, WHOLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEADINGS = (
    "bytes", "produced\nevents/s", "MB/s", "of\npipe", "consumed\nevents/s", "MB/s", "of\npipe",
    "pipe\nMB/s", "events\na batch", "µs/event",
    "signed receipt\np50 ms", "basic receipt\np50 ms", "p50\nms", "lost or\nwrong",
)  # fmt: skip


def table_of(rows: Sequence[TrialRow]) -> Group:
    """Producers and consumer, and the raw pipe with frames as long as a full batch.

    The processor time that an event costs all processes together is less moved by others who use
    the machine.
    """
    title = f"{PRODUCERS} producers and a consumer on {TOPICS} topics"
    table = Table(title=f"{title}, with the raw pipe of the same run")
    table.add_column("trial", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.trial.curve, *_cells(row), style="" if row.is_sound else "red")
    problems = [Text(f"{row.trial.title}: {row.problem}", "red") for row in rows if row.problem]
    return Group(table, *problems, Text(machine.sentence(), "dim"))


def _cells(row: TrialRow) -> list[str]:
    wrong = row.lost + row.unacknowledged + row.forged + row.duplicated
    return [
        f"{row.event_bytes:,}",
        _rate(row.produced_per_s, row.runs, row.produced_spread),
        f"{row.produced_mb_per_s:,.1f}",
        _optional(row.produced_ratio_to_pipe, ".3f"),
        _rate(row.events_per_s, row.runs, row.spread),
        f"{row.mb_per_s:,.1f}",
        _optional(row.ratio_to_pipe, ".3f"),
        f"{row.pipe_mb_per_s:,.0f}",
        f"{row.events_per_batch:,.0f}" if row.events_per_batch else "",
        f"{row.processor_us_per_event:.1f}",
        _optional(row.signed_receipt_p50_ms, ",.1f"),
        _optional(row.basic_receipt_p50_ms, ",.1f"),
        f"{row.p50_ms:,.0f}",
        str(wrong),
    ]


def _rate(rate: float, runs: int, spread: tuple[float, float]) -> str:
    """With the lowest and the highest below it, if there were several runs."""
    return f"{rate:,.0f}" if runs == 1 else f"{rate:,.0f}\n{spread[0]:,.0f}..{spread[1]:,.0f}"


def _optional(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


# Pictures


def write_plots(directory: Path, rows: Sequence[TrialRow]) -> list[Path]:
    """Draw what the rows are enough for."""
    require_matplotlib()
    good = [row for row in rows if not row.problem]
    drawn: dict[str, Figure | None] = {}
    for side in SIDES:
        drawn[f"validated-{side.name}.png"] = _overview(good, side)
        drawn[f"validated-{side.name}-details.png"] = _details(good, side)
    return saved(directory, drawn)


def _overview(rows: Sequence[TrialRow], side: Side) -> "Figure | None":
    """All curves (figures 4.1 and 4.3)."""
    if not rows:
        return None
    figure, (axes,) = panels_for(1, f"Throughput by the size of an event: {side.name}")
    for number, curve in enumerate(_curves(rows)):
        _draw(axes, rows, side, curve, number)
    axes.set_yscale("log")
    _label(axes)
    legend_below(figure, axes)
    return figure


def _details(rows: Sequence[TrialRow], side: Side) -> "Figure | None":
    """With validation and without it, each beside what it competes with (figures 4.2 and 4.4)."""
    curves = _curves(rows)
    with_validation = [
        curve for curve in curves if _is(rows, curve, WHOLE) or _validates(rows, curve)
    ]
    without = [curve for curve in curves if curve not in with_validation]
    panels = [
        (title, some)
        for title, some in (("with validation", with_validation), ("without", without))
        if some
    ]
    if not panels:
        return None
    figure, drawn = panels_for(len(panels), f"Throughput in detail: {side.name}")
    for axes, (title, some) in zip(drawn, panels, strict=True):
        for curve in some:
            _draw(axes, rows, side, curve, curves.index(curve))
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        _label(axes)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _curves(rows: Sequence[TrialRow]) -> list[str]:
    return list(dict.fromkeys(row.trial.curve for row in rows))


def _draw(axes: "Axes", rows: Sequence[TrialRow], side: Side, curve: str, number: int) -> None:
    points = sorted(
        (row.event_bytes, side.events_per_s(row)) for row in rows if row.trial.curve == curve
    )
    is_ours = not (_is(rows, curve, KAFKA) or _is(rows, curve, WHOLE))
    axes.plot(
        [size for size, _ in points],
        [rate for _, rate in points],
        "o-" if is_ours else "s--",
        color=INK if _is(rows, curve, KAFKA) else COLOURS[number % len(COLOURS)],
        markersize=4,
        label=curve,
    )


def _label(axes: "Axes") -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("bytes of an event")
    axes.set_ylabel("events per second")


def _is(rows: Sequence[TrialRow], curve: str, system: str) -> bool:
    return any(row.trial.curve == curve and row.protocol == system for row in rows)


def _validates(rows: Sequence[TrialRow], curve: str) -> bool:
    return any(
        row.trial.curve == curve and row.protocol == QUORATE and row.validated for row in rows
    )
