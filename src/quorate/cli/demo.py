"""`quorate demo`: sites that do not trust each other find who scans them, while a replica lies."""

import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from quorate.core.errors import ConfigError, LocalProtocolError
from quorate.runtime.loop import run

if TYPE_CHECKING:
    from quorate.cli.demo_books import Line, Scene

SECONDS_MIN, SECONDS_MAX = 15.0, 900.0
WIDTH_WITHOUT_TERMINAL = 120
NEWS_SHOWN = 8
app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(help="How long sites and hosts publish. Spark needs some time before.")
    ] = 60.0,
    seed: Annotated[
        int | None, typer.Option(help="Tell the same story again; else it is another each time.")
    ] = None,
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to write what happened, with plots.")
    ] = Path("quorate-demo.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Sites find together who scans them, and hosts who falls silent, while a replica lies and the
    leader dies.

    Four replicas and Spark run on this machine for about two minutes. Then they are stopped, and an
    archived event is proved without them. Nothing is left behind but the report.
    """
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise LocalProtocolError(
            f"a demo of {seconds:g} seconds; allowed are {SECONDS_MIN:g} to {SECONDS_MAX:g}"
        )
    if not report.absolute().parent.is_dir():
        raise ConfigError(f"--report {report}: there is no directory {report.absolute().parent}")
    _require_extras()
    from quorate.cli.demo_books import verdict
    from quorate.cli.demo_report import write_report
    from quorate.cli.demo_words import sentences

    console = Console(file=sys.stderr)
    console.print("Starting four replicas, each a process of its own, and Spark ...")
    with tempfile.TemporaryDirectory(prefix="quorate-demo-") as directory:
        scene = _play(Path(directory), seconds, seed, console)
    result = {**scene.result(), "report": str(report)}
    write_report(report, scene, result)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        wide = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
        Console(width=wide).print(Group(_topics(scene, final=True), *sentences(scene, result)))
    verdict(result)


def _require_extras() -> None:
    for name in ("pyspark", "pandas", "matplotlib"):
        if find_spec(name) is None:
            raise ConfigError(
                f"the demo needs {name}, which is not installed; pip install 'quorate[spark,bench]'"
            )


def _play(directory: Path, seconds: float, seed: int | None, console: Console) -> "Scene":
    from quorate.cli.demo_story import play

    if not console.is_terminal:
        teller = _Teller(console)
        return run(play(directory, seconds, seed, teller.tell))
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        return run(play(directory, seconds, seed, lambda scene: live.update(_view(scene))))


class _Teller:
    """Says what is new, a line each, where there is no terminal to paint on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._acts = self._news = 0
        self._before = ""

    def tell(self, scene: "Scene") -> None:
        if not scene.acts and scene.act != self._before:
            self._before = scene.act
            self._console.print(f"         {scene.act}", markup=False, highlight=False)
        new = [*scene.acts[self._acts :], *list(scene.news)[self._news :]]
        self._acts, self._news = len(scene.acts), len(scene.news)
        for at_s, words in sorted(new):
            self._console.print(f"{at_s:5.1f} s  {words}", markup=False, highlight=False)


def _view(scene: "Scene") -> Group:
    has_begun = bool(scene.acts)
    passed_s = min(scene.passed_s, scene.seconds) if has_begun else scene.passed_s
    time = f"{passed_s:.0f} of {scene.seconds:.0f} s" if has_begun else f"{passed_s:.0f} s"
    news = [f"{at_s:5.1f} s  {words}" for at_s, words in scene.news][-NEWS_SHOWN:]
    return Group(
        Panel(f"{scene.act}   {time}", style="bold"),
        _replicas(scene),
        _queries(scene),
        _topics(scene, final=False),
        Text("\n".join(news)),
    )


def _replicas(scene: "Scene") -> Text:
    words = Text("Replicas:  ")
    for name, state in sorted(scene.replicas.items()):
        colour = {"ok": "green", "down": "red"}.get(state, "yellow")
        words.append(f"{name} ", style="bold")
        words.append(f"{state}   ", style=colour)
    return words


def _queries(scene: "Scene") -> Text:
    words = Text("Spark:     ")
    for query in scene.queries:
        words.append(f"{query.query} ", style="bold")
        words.append(f"{query.rows:,} rows   ")
    return words


def _topics(scene: "Scene", *, final: bool) -> Table:
    table = Table(title=None, expand=False)
    for name in ("topic", "contract"):
        table.add_column(name)
    for name in ("published", "delivered", "archived", "p50 ms", "p99 ms", "lost", "forged"):
        table.add_column(name, justify="right")
    for line in scene.lines.values():
        table.add_row(*_cells(line, final=final))
    return table


def _cells(line: "Line", *, final: bool) -> list[str | Text]:
    contract = f"{line.contract.protection}: {line.contract.protocol}"
    if line.contract.validated:
        contract += ", validated"
    cells: list[str | Text] = [
        line.name,
        contract,
        f"{line.published.total():,}",
        f"{line.delivered.total():,}",
        "" if line.archived is None else f"{line.archived.total():,}",
        f"{line.percentile_ms(0.5):.1f}",
        f"{line.percentile_ms(0.99):.1f}",
    ]
    if not final:
        return [*cells, "...", "..."]
    return [*cells, *(_judged(line, count) for count in (line.lost, line.forged))]


def _judged(line: "Line", count: int) -> Text:
    return Text(str(count), style="red" if count and line.tolerates_lies else "green")
