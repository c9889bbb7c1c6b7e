"""Pictures with time or the length of a log along the bottom."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.bench.drawing import COLOURS, INK, legend_below, panels_for, require_matplotlib, saved
from quorate.bench.growth import Growth
from quorate.bench.leader_crash import BIN_SECONDS, LeaderCrashes, Standstill

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACKNOWLEDGED, _READ, _RETURN, _KILL = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3]
# Room above the highest bin for words.
_HEADROOM = 1.3


def write_leader_crashes(directory: Path, found: Sequence[LeaderCrashes]) -> list[Path]:
    require_matplotlib()
    return saved(directory, {"leader-crash.png": _leader_crashes(found)})


def write_growth(directory: Path, found: Sequence[Growth]) -> list[Path]:
    require_matplotlib()
    return saved(directory, {"growth.png": _growth(found)})


# Leaders


def _leader_crashes(found: Sequence[LeaderCrashes]) -> "Figure":
    """A panel for each experiment: events per second, and who was killed when."""
    title = "The leader is killed under load: events per second, and times without progress"
    figure, panels = panels_for(len(found), title, columns_max=1, height=3.4)
    for axes, crashes in zip(panels, found, strict=True):
        top = _HEADROOM * max(*crashes.acknowledged, *crashes.read, 1) / BIN_SECONDS
        _progress(axes, crashes)
        for number, standstill in enumerate(crashes.standstills):
            _standstill(axes, crashes, standstill, top, named=number == 0)
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


def _standstill(
    axes: "Axes", crashes: LeaderCrashes, standstill: Standstill, top: float, *, named: bool
) -> None:
    """Where the leader was killed, where nothing moved, and where it was back."""
    kill, gap = standstill.kill, standstill.gap
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
    _along_the_log(axes)


def _starts(axes: "Axes", growth: Growth) -> None:
    batches = [start.batches for start in growth.starts]
    listening = [start.listening_s for start in growth.starts]
    caught_up = [start.caught_up_s for start in growth.starts]
    axes.plot(batches, caught_up, "s--", color=COLOURS[1], label="until it has caught up")
    axes.plot(batches, listening, "o-", color=COLOURS[0], label="until it listens")
    axes.axhline(listening[0], color=INK, linestyle=":", linewidth=1, label="with an empty log")
    axes.set_title(f"starts of {growth.restarted} after a kill", fontsize=10, loc="left")
    axes.set_ylabel("seconds")
    _along_the_log(axes)


def _along_the_log(axes: "Axes") -> None:
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batches in the log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
