"""The same rows as pictures: throughput, latency, and what faults cost."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.bench.drawing import (
    COLOURS,
    INK,
    legend_below,
    panels_for,
    require_matplotlib,
    saved,
)
from quorate.bench.experiments import FAULTS, THROUGHPUT, disk_words
from quorate.bench.latencies import QUANTILES
from quorate.bench.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COST_MAX = 0.2


def write_plots(directory: Path, rows: Sequence[Row]) -> list[Path]:
    """Draw what the rows are enough for."""
    require_matplotlib()
    good = [row for row in rows if row.link_security == "mac" and not row.problem]
    drawn = {
        "throughput.png": _throughput([row for row in good if row.experiment == THROUGHPUT]),
        "latency.png": _latency(good),
        "faults.png": _faults(good),
    }
    return saved(directory, drawn)


# Throughput


def _throughput(rows: Sequence[Row]) -> "Figure | None":
    """A panel for single events and one for batches; bars by protocol, one per cluster size."""
    rows = [row for row in rows if not row.fault and row.topics == 1]
    counts = sorted({row.events_per_batch for row in rows})
    if not counts:
        return None
    figure, panels = panels_for(len(counts), "Throughput, delivered to one subscriber")
    for axes, count in zip(panels, counts, strict=True):
        _bars_by_replicas(axes, [row for row in rows if row.events_per_batch == count])
        axes.set_title("single events" if count == 1 else f"batches of {count}")
        axes.set_ylabel("events per second")
        axes.yaxis.set_major_formatter("{x:,.0f}")
    legend_below(figure, panels[0])
    return figure


def _bars_by_replicas(axes: "Axes", rows: Sequence[Row]) -> None:
    names = _in_order(map(_label, rows))
    sizes = sorted({row.replicas for row in rows})
    width = 0.8 / len(sizes)
    for number, replicas in enumerate(sizes):
        chosen = [row for row in rows if row.replicas == replicas]
        places = [names.index(_label(row)) + (number + 0.5) * width - 0.4 for row in chosen]
        heights = [row.events_per_s for row in chosen]
        axes.bar(places, heights, width * 0.92, color=COLOURS[number], label=f"{replicas} replicas")
        for place, row in zip(places, chosen, strict=True):
            _write_ratio(axes, place, row)
        _mark_theses(axes, places, chosen, width, named=number == 0)
    _name_bars(axes, names)
    axes.margins(y=0.1)


def _write_ratio(axes: "Axes", place: float, row: Row) -> None:
    if row.ratio_to_pipe is not None:
        axes.annotate(
            f"{row.ratio_to_pipe:.3f}",
            (place, row.events_per_s),
            textcoords="offset points",
            xytext=(0, 3),
            ha="center",
            fontsize=7,
            color="#555555",
        )


def _mark_theses(
    axes: "Axes", places: Sequence[float], rows: Sequence[Row], width: float, *, named: bool
) -> None:
    """A line across each bar at the height that a thesis reached."""
    for place, row in zip(places, rows, strict=True):
        if row.thesis:
            half = width * 0.46
            axes.hlines(row.thesis, place - half, place + half, color=INK, linewidth=2)
    if named:
        axes.plot([], [], color=INK, linewidth=2, label="thesis, on its machines")
        axes.plot([], [], " ", label="above a bar: ratio to the raw pipe")


# Latency


def _latency(rows: Sequence[Row]) -> "Figure | None":
    """For each protocol, which share of the events took how long."""
    chosen = [
        row
        for row in rows
        if row.latency_quantiles_ms and not row.fault and row.topics == 1
        and row.replicas == 4 and row.events_per_batch == 1
    ]  # fmt: skip
    if not chosen:
        return None
    figure, (axes,) = panels_for(
        1, "Latency of single events, 4 replicas, from publish to delivery"
    )
    for number, row in enumerate(chosen):
        colour = COLOURS[number % len(COLOURS)]
        style = "-" if number < len(COLOURS) else "--"
        shares = range(len(row.latency_quantiles_ms))
        axes.plot(row.latency_quantiles_ms, shares, style, color=colour, label=_measured(row))
        if row.thesis_p99_ms:
            axes.plot(row.thesis_p99_ms, 99, "d", color=colour, markersize=7)
    axes.plot([], [], "d", color=INK, label="99th percentile of the thesis")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("per cent of events")
    axes.set_ylim(0, QUANTILES + 2)
    legend_below(figure, axes, columns=2)
    return figure


def _measured(row: Row) -> str:
    one = "one in flight" if row.in_flight == 1 else f"{row.in_flight} in flight"
    return f"{_label(row)}, {one}: {row.mean_ms:.1f} ± {row.deviation_ms:.1f} ms"


# Faults


def _faults(rows: Sequence[Row]) -> "Figure | None":
    """How much of the throughput each fault takes, by protocol."""
    rows = [row for row in rows if row.cost_of_fault is not None and row.topics == 1]
    panels_wanted = sorted({(row.replicas, row.events_per_batch) for row in rows})
    if not panels_wanted:
        return None
    figure, panels = panels_for(len(panels_wanted), "What faults cost, with f faulty replicas")
    for axes, (replicas, count) in zip(panels, panels_wanted, strict=True):
        here = [row for row in rows if (row.replicas, row.events_per_batch) == (replicas, count)]
        _bars_by_fault(axes, here)
        batches = "single events" if count == 1 else f"batches of {count}"
        axes.set_title(f"{replicas} replicas, {batches}")
        axes.set_ylabel("throughput lost, per cent")
    panels[0].plot([], [], "--", color=INK, linewidth=1, label="a fifth: no more than this")
    legend_below(figure, panels[0])
    return figure


def _bars_by_fault(axes: "Axes", rows: Sequence[Row]) -> None:
    names = _in_order(map(_label, rows))
    width = 0.8 / len(FAULTS)
    for number, fault in enumerate(FAULTS):
        chosen = [row for row in rows if row.fault == fault]
        places = [names.index(_label(row)) + (number + 0.5) * width - 0.4 for row in chosen]
        costs = [100 * (row.cost_of_fault or 0.0) for row in chosen]
        axes.bar(places, costs, width * 0.92, color=COLOURS[number], label=fault)
    axes.axhline(100 * _COST_MAX, color=INK, linestyle="--", linewidth=1)
    axes.axhline(0, color="#999999", linewidth=0.8)
    _name_bars(axes, names)


# Shared


def _name_bars(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")


def _label(row: Row) -> str:
    name = f"{row.protocol}, α {row.history_every}" if row.history_every else row.protocol
    return f"{name}, {disk_words(row.fsync)}" if row.fsync else name


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
