"""What all pictures have in common.

matplotlib comes with the extra `bench` and is imported only when a picture is drawn.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.bench import machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2f6f9f", "#e08a2c", "#4a9d6e", "#b5485d", "#7a68a6", "#8c6d4f", "#5b8fa8", "#9a9a9a")
# For what is not ours: theses, bounds.
INK = "#222222"


def require_matplotlib() -> None:
    """Say that it is missing before an hour of measuring rather than after it."""
    import matplotlib

    matplotlib.use("Agg")


def saved(directory: Path, figures: "Mapping[str, Figure | None]") -> list[Path]:
    """Write the figures that there are, by file name."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(directory / name, dpi=140)
            written.append(directory / name)
    return written


def panels_for(
    count: int, title: str, *, columns_max: int = 2, height: float = 4.4
) -> "tuple[Figure, list[Axes]]":
    """So many axes under one title, at most so many in a line."""
    require_matplotlib()
    from matplotlib import pyplot

    columns = min(count, columns_max)
    lines = -(-count // columns)
    figure, axes = pyplot.subplots(
        lines,
        columns,
        figsize=(7.5 * columns if columns > 1 else 9.5, 1.6 + height * lines),
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(title, fontsize=13)
    panels = list(axes.flat)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
    for unused in panels[count:]:
        unused.set_visible(False)
    return figure, panels[:count]


def legend_below(figure: "Figure", axes: "Axes", columns: int = 4) -> None:
    """What the colours mean, and on which machine it was."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        title=machine.sentence(),
        title_fontproperties={"size": 7},
    )
