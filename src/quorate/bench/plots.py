"""What was found as pictures: of rows, of trials as Kabis draws them, and over time.

Kabis' figures 4.1 and 4.3 show the throughput of consumer and producers over the size of an event,
one curve for each number of validated topics; 4.2 and 4.4 show some of these again, on a linear
scale: with validation beside the ordering of whole payloads, and without it beside plain Kafka.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.bench.drawing import COLOURS, INK, legend_below, panels_for, saved
from quorate.bench.experiments import FAULTS, THROUGHPUT, disk_words
from quorate.bench.growth import Growth
from quorate.bench.latencies import QUANTILES
from quorate.bench.leader_crash import BIN_SECONDS, Kill, LeaderCrashes
from quorate.bench.rows import Row, TrialRow
from quorate.bench.targets import SIDES, Side
from quorate.bench.trials import KAFKA, QUORATE, WHOLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COST_MAX = 0.2
_ACKNOWLEDGED, _READ, _RETURN, _KILL = COLOURS[:4]
# Room above the highest bin for words.
_HEADROOM = 1.3


def write_plots(directory: Path, rows: Sequence[Row]) -> list[Path]:
    """Draw what the rows are enough for."""
    good = [row for row in rows if row.link_security == "mac" and not row.problem]
    drawn = {
        "throughput.png": _throughput([row for row in good if row.experiment == THROUGHPUT]),
        "latency.png": _latency(good),
        "faults.png": _faults(good),
    }
    return saved(directory, drawn)


def write_trials(directory: Path, rows: Sequence[TrialRow]) -> list[Path]:
    """Draw what the rows are enough for."""
    good = [row for row in rows if not row.problem]
    drawn: dict[str, Figure | None] = {}
    for side in SIDES:
        drawn[f"validated-{side.name}.png"] = _overview(good, side)
        drawn[f"validated-{side.name}-details.png"] = _details(good, side)
    return saved(directory, drawn)


def write_leader_crashes(directory: Path, found: Sequence[LeaderCrashes]) -> list[Path]:
    return saved(directory, {"leader-crash.png": _leader_crashes(found)})


def write_growth(directory: Path, found: Sequence[Growth]) -> list[Path]:
    return saved(directory, {"growth.png": _growth(found)})


# Throughput


def _throughput(rows: Sequence[Row]) -> "Figure | None":
    """A panel for single events and one for batches; bars by protocol, one per cluster size."""
    rows = [row for row in rows if not row.fault and row.topics == 1]
    counts = sorted({row.events_per_batch or 1 for row in rows})
    if not counts:
        return None
    figure, panels = panels_for(len(counts), "Throughput, delivered to one subscriber")
    for axes, count in zip(panels, counts, strict=True):
        _bars_by_replicas(axes, [row for row in rows if row.events_per_batch == count])
        axes.set_title(_batches(count))
        axes.set_ylabel("events per second")
        axes.yaxis.set_major_formatter("{x:,.0f}")
    panels[0].plot([], [], color=INK, linewidth=2, label="thesis, on its machines")
    panels[0].plot([], [], " ", label="above a bar: ratio to the raw pipe")
    legend_below(figure, panels[0])
    return figure


def _bars_by_replicas(axes: "Axes", rows: Sequence[Row]) -> None:
    sizes = sorted({row.replicas for row in rows})
    groups = {f"{size} replicas": [row for row in rows if row.replicas == size] for size in sizes}
    for row, place, width in _bars(axes, rows, groups, lambda row: row.events_per_s):
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
        if row.thesis:
            half = width * 0.46
            axes.hlines(row.thesis, place - half, place + half, color=INK, linewidth=2)
    axes.margins(y=0.1)


def _bars(
    axes: "Axes", rows: Sequence[Row], groups: dict[str, list[Row]], height: Callable[[Row], float]
) -> list[tuple[Row, float, float]]:
    """Bars of a colour for each group, by protocol: which row's bar is where, and how wide."""
    names = [*dict.fromkeys(map(_label, rows))]
    width, drawn = 0.8 / len(groups), []
    for number, (group, chosen) in enumerate(groups.items()):
        places = [names.index(_label(row)) + (number + 0.5) * width - 0.4 for row in chosen]
        axes.bar(places, [*map(height, chosen)], width * 0.92, color=COLOURS[number], label=group)
        drawn += [(row, place, width) for row, place in zip(chosen, places, strict=True)]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    return drawn


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
        one = "one in flight" if row.in_flight == 1 else f"{row.in_flight} in flight"
        label = f"{_label(row)}, {one}: {row.mean_ms:.1f} ± {row.deviation_ms:.1f} ms"
        shares = range(len(row.latency_quantiles_ms))
        axes.plot(row.latency_quantiles_ms, shares, style, color=colour, label=label)
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


# Faults


def _faults(rows: Sequence[Row]) -> "Figure | None":
    """How much of the throughput each fault takes, by protocol."""
    rows = [row for row in rows if row.cost_of_fault is not None and row.topics == 1]
    panels_wanted = sorted({(row.replicas, row.events_per_batch or 1) for row in rows})
    if not panels_wanted:
        return None
    figure, panels = panels_for(len(panels_wanted), "What faults cost, with f faulty replicas")
    for axes, (replicas, count) in zip(panels, panels_wanted, strict=True):
        here = [row for row in rows if (row.replicas, row.events_per_batch) == (replicas, count)]
        groups = {fault: [row for row in here if row.fault == fault] for fault in FAULTS}
        _bars(axes, here, groups, lambda row: 100 * (row.cost_of_fault or 0.0))
        axes.axhline(100 * _COST_MAX, color=INK, linestyle="--", linewidth=1)
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.set_title(f"{replicas} replicas, {_batches(count)}")
        axes.set_ylabel("throughput lost, per cent")
    panels[0].plot([], [], "--", color=INK, linewidth=1, label="a fifth: no more than this")
    legend_below(figure, panels[0])
    return figure


def _batches(count: float) -> str:
    return "single events" if count == 1 else f"batches of {count:g}"


def _label(row: Row) -> str:
    name = f"{row.protocol}, α {row.history_every}" if row.history_every else row.protocol
    return f"{name}, {disk_words(row.fsync)}" if row.fsync else name


# Trials


def _overview(rows: Sequence[TrialRow], side: Side) -> "Figure | None":
    """All curves (figures 4.1 and 4.3)."""
    if not rows:
        return None
    figure, (axes,) = panels_for(1, f"Throughput by the size of an event: {side.name}")
    for number, curve in enumerate(_curves(rows)):
        _draw(axes, rows, side, curve, number)
    axes.set_yscale("log")
    _label_sizes(axes)
    legend_below(figure, axes)
    return figure


def _details(rows: Sequence[TrialRow], side: Side) -> "Figure | None":
    """With validation and without it, each beside what it competes with (figures 4.2 and 4.4)."""
    curves = _curves(rows)
    validated = _curves(
        [
            row
            for row in rows
            if row.protocol == WHOLE or (row.protocol == QUORATE and row.validated)
        ]
    )
    others = [curve for curve in curves if curve not in validated]
    panels = {"with validation": validated, "without": others}
    wanted = {title: some for title, some in panels.items() if some}
    if not wanted:
        return None
    figure, drawn = panels_for(len(wanted), f"Throughput in detail: {side.name}")
    for axes, (title, some) in zip(drawn, wanted.items(), strict=True):
        for curve in some:
            _draw(axes, rows, side, curve, curves.index(curve))
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        _label_sizes(axes)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _curves(rows: Sequence[TrialRow]) -> list[str]:
    return [*dict.fromkeys(row.trial.curve for row in rows)]


def _draw(axes: "Axes", rows: Sequence[TrialRow], side: Side, curve: str, number: int) -> None:
    here = sorted(
        (row for row in rows if row.trial.curve == curve), key=lambda row: row.event_bytes
    )
    system = here[0].protocol
    axes.plot(
        [row.event_bytes for row in here],
        [side.events_per_s(row) for row in here],
        "o-" if system == QUORATE else "s--",
        color=INK if system == KAFKA else COLOURS[number % len(COLOURS)],
        markersize=4,
        label=curve,
    )


def _label_sizes(axes: "Axes") -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("bytes of an event")
    axes.set_ylabel("events per second")


# Leaders


def _leader_crashes(found: Sequence[LeaderCrashes]) -> "Figure":
    """A panel for each experiment: events per second, and who was killed when."""
    title = "The leader is killed under load: events per second, and times without progress"
    figure, panels = panels_for(len(found), title, columns_max=1, height=3.4)
    for axes, crashes in zip(panels, found, strict=True):
        top = _HEADROOM * max(*crashes.acknowledged, *crashes.read, 1) / BIN_SECONDS
        _progress(axes, crashes)
        for number, kill in enumerate(crashes.kills):
            _draw_kill(axes, crashes, kill, top, named=number == 0)
        axes.set_title(crashes.experiment.title, fontsize=10, loc="left")
        axes.set_ylabel("events per second")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylim(0, top)
        axes.set_xlim(0, crashes.seconds_at(crashes.window.ended_ns))
    panels[-1].set_xlabel(f"seconds, in pieces of {BIN_SECONDS:g} s")
    legend_below(figure, panels[0], columns=5)
    return figure


def _progress(axes: "Axes", crashes: LeaderCrashes) -> None:
    edges = [number * BIN_SECONDS for number in range(len(crashes.acknowledged) + 1)]
    acknowledged = [count / BIN_SECONDS for count in crashes.acknowledged]
    read = [count / BIN_SECONDS for count in crashes.read]
    axes.stairs(
        acknowledged, edges, fill=True, color=_ACKNOWLEDGED, alpha=0.55, label="with a receipt"
    )
    centres = [edge + BIN_SECONDS / 2 for edge in edges[:-1]]
    axes.plot(centres, read, color=_READ, linewidth=0.7, alpha=0.8, label="read by a consumer")


def _draw_kill(
    axes: "Axes", crashes: LeaderCrashes, kill: Kill, top: float, *, named: bool
) -> None:
    """Where the leader was killed, where nothing moved, and where it was back."""
    gap = kill.gap
    killed, back, whole = map(
        crashes.seconds_at, (kill.killed_ns, kill.started_ns, kill.caught_up_ns)
    )
    began, ended = crashes.seconds_at(gap.began_ns), crashes.seconds_at(gap.ended_ns)
    label = "no receipt" if named else None
    axes.axvspan(began, ended, color=_KILL, alpha=0.22, linewidth=0, label=label)
    axes.axvline(killed, color=_KILL, linewidth=1.4, label="leader killed" if named else None)
    label = "started again, until it has caught up" if named else None
    axes.plot([back, whole], [0, 0], color=_RETURN, linewidth=5, solid_capstyle="butt", label=label,
              clip_on=False)  # fmt: skip
    axes.annotate(
        f"{kill.leader} killed:\n{gap.seconds:.2f} s without a receipt",
        (ended, top),
        textcoords="offset points",
        xytext=(4, -3),
        va="top",
        fontsize=8.5,
        color=_KILL,
    )


# Growth


def _growth(found: Sequence[Growth]) -> "Figure":
    """For each run, the memory of every replica and the starts of one over the log's length."""
    figure, panels = panels_for(2 * len(found), "A log grows: memory, and the time to start")
    for number, growth in enumerate(found):
        _memory(panels[2 * number], growth)
        _starts(panels[2 * number + 1], growth)
    for axes in panels:
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batches in the log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
    legend_below(figure, panels[1])
    return figure


def _memory(axes: "Axes", growth: Growth) -> None:
    for number, name in enumerate(sorted(growth.samples[0].memory_mb)):
        there = [each for each in growth.samples if name in each.memory_mb]
        restarted = name == growth.restarted
        axes.plot(
            [each.count for each in there],
            [each.memory_mb[name] for each in there],
            "--" if restarted else "-",
            color=COLOURS[number],
            linewidth=1.4,
            label=f"{name}, killed now and then" if restarted else name,
        )
    axes.set_title(f"{growth.experiment.title}: memory", fontsize=10, loc="left")
    axes.set_ylabel("MB")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _starts(axes: "Axes", growth: Growth) -> None:
    batches = [start.batches for start in growth.starts]
    listening = [start.listening_s for start in growth.starts]
    caught_up = [start.caught_up_s for start in growth.starts]
    axes.plot(batches, caught_up, "s--", color=COLOURS[1], label="until it has caught up")
    axes.plot(batches, listening, "o-", color=COLOURS[0], label="until it listens")
    axes.axhline(listening[0], color=INK, linestyle=":", linewidth=1, label="with an empty log")
    axes.set_title(f"starts of {growth.restarted} after a kill", fontsize=10, loc="left")
    axes.set_ylabel("seconds")
