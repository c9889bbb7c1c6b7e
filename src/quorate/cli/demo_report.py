"""What happened in a demo, as one HTML file with its plots in it."""

import html
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.bench.drawing import COLOURS, INK, panels_for, require_matplotlib
from quorate.cli.demo_books import Scene
from quorate.cli.demo_words import sentences
from quorate.pipeline.data.found import Found

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PUBLISHED, DELIVERED, ARCHIVED, LATE = COLOURS[:4]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
svg { max-width: 100%; height: auto; }
code { word-break: break-all; }
"""


def write_report(path: Path, scene: Scene, result: dict[str, Any]) -> None:
    require_matplotlib()
    parts = [
        "<h1>Four sites, one liar, a dead leader</h1>",
        *(f"<p>{html.escape(sentence)}</p>" for sentence in sentences(scene, result)[:-1]),
        "<h2>Events</h2>",
        _drawn(scene, "Events in the cluster and in the archive", _draw_events),
        _topics(result),
        "<h2>Who was found</h2>",
        _drawn(scene, "From when somebody could be found until everybody knew", _draw_found),
        "<h2>What subscribers printed</h2>",
        _listed(scene.news),
        "<h2>The proof</h2>",
        _proof(result["proof"]),
    ]
    path.write_text(_page("\n".join(parts)), encoding="utf-8")


def _page(body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f"<title>Quorate: a demo</title>\n<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _topics(result: dict[str, Any]) -> str:
    names = ("topic", "protection", "published", "delivered", "archived", "lost", "forged")
    head = "".join(f"<th>{name}</th>" for name in (*names, "p50 ms", "p99 ms"))
    lines = []
    for topic in result["topics"]:
        cells = [topic[name] for name in (*names, "p50_ms", "p99_ms")]
        lines.append("".join(f"<td>{_cell(cell)}</td>" for cell in cells))
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else html.escape(str(value))


def _listed(news: Iterable[tuple[float, str]]) -> str:
    lines = "".join(f"<tr><td>{at_s:.1f} s</td><td>{html.escape(w)}</td></tr>" for at_s, w in news)
    return f"<table>{lines}</table>"


def _proof(proof: dict[str, Any]) -> str:
    names = html.escape(", ".join(proof["vouched_for_by"]))
    return (
        f"<p>At offset {proof['offset']:,} of <b>{html.escape(proof['topic'])}</b>, published by "
        f"{html.escape(proof['published_by'])} and vouched for by {names}:</p>"
        f"<p><code>{html.escape(proof['event'])}</code></p>"
    )


def _drawn(scene: Scene, title: str, draw: "Callable[[Axes, Scene], None]") -> str:
    """A plot as SVG, in a page like any other element."""
    from matplotlib import pyplot

    figure, (axes,) = panels_for(1, title, height=3.0)
    draw(axes, scene)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    pyplot.close(figure)
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _draw_events(axes: "Axes", scene: Scene) -> None:
    samples = scene.samples
    times = [sample.at_s for sample in samples]
    for name, colour, counts in (
        ("published", PUBLISHED, [sample.published for sample in samples]),
        ("delivered to the watch", DELIVERED, [sample.delivered for sample in samples]),
        ("archived", ARCHIVED, [sample.archived for sample in samples]),
    ):
        axes.plot(times, counts, label=name, color=colour)
    for at_s, act in scene.acts[1:-1]:
        axes.axvline(at_s, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(
            act.split(":")[0].split(";")[0].rstrip("."),
            (at_s, 0.98), xycoords=("data", "axes fraction"),
            xytext=(-3, 0), textcoords="offset points",
            fontsize=7, rotation=90, ha="right", va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    axes.set_xlabel("seconds")
    axes.set_ylabel("events")
    axes.legend(loc="lower right", frameon=False, fontsize=8)


def _draw_found(axes: "Axes", scene: Scene) -> None:
    names: list[str] = []
    for found, colour, label in (
        (scene.scanners, PUBLISHED, "a scanner"),
        (scene.silences, LATE, "a silent host"),
    ):
        names += _draw_spans(axes, scene, found, colour, label, len(names))
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds")
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8)


def _draw_spans(
    axes: "Axes", scene: Scene, found: Found, colour: str, label: str, first: int
) -> list[str]:
    """For each of them, a bar from when it could be known until all knew; without one, a cross."""
    known = sorted(found.known, key=lambda name: found.truth[name])
    begins = [found.truth[name] - scene.began_s for name in known]
    axes.barh(
        range(first, first + len(known)), [found.after_s(name) for name in known], left=begins,
        color=colour, label=label, height=0.6,
    )  # fmt: skip
    missed = sorted(found.truth.keys() - found.known)
    for number, name in enumerate(missed, first + len(known)):
        axes.plot(found.truth[name] - scene.began_s, number, "x", color=INK)
    return [*known, *missed]
