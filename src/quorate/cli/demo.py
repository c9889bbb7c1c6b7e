"""`quorate demo`: watch a cluster survive a lying replica, and the loss of its leader."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from quorate.cli.demo_story import CHANGES, LOG, VOTES, Line, Scene, play, verdict
from quorate.core.errors import LocalProtocolError
from quorate.runtime.loop import run

SECONDS_MIN, SECONDS_MAX = 5.0, 3600.0
WIDTH_WITHOUT_TERMINAL = 120
app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the story takes.")] = 50.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Four replicas, one of which lies and then dies; then a leader dies. Events flow all the same.

    Nothing is left behind: the cluster lives in a temporary directory and is stopped.
    """
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise LocalProtocolError(
            f"a demo of {seconds:g} seconds; allowed are {SECONDS_MIN:g} to {SECONDS_MAX:g}"
        )
    console = Console(file=sys.stderr)
    console.print("Starting four replicas, each a process of its own, with mutual TLS ...")
    with tempfile.TemporaryDirectory(prefix="quorate-demo-") as directory:
        scene = _play(Path(directory) / "cluster", seconds, console)
    result = scene.result()
    if as_json:
        typer.echo(json.dumps(result))
    else:
        wide = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
        Console(width=wide).print(_summary(scene, result))
    verdict(result)


def _play(directory: Path, seconds: float, console: Console) -> Scene:
    if not console.is_terminal:
        told: list[str] = []

        def tell(scene: Scene) -> None:
            if told[-1:] != [scene.act]:
                told.append(scene.act)
                console.print(f"{scene.share * scene.seconds:5.1f} s  {scene.act}")

        return run(play(directory, seconds, tell))
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        return run(play(directory, seconds, lambda scene: live.update(_view(scene))))


def _view(scene: Scene) -> Group:
    passed = min(scene.share, 1.0)
    title = f"{scene.act}   {passed * scene.seconds:.0f} of {scene.seconds:.0f} s"
    return Group(Panel(title, style="bold"), _replicas(scene), _topics(scene, final=False))


def _replicas(scene: Scene) -> Text:
    words = Text("Replicas:  ")
    for name, state in sorted(scene.replicas.items()):
        colour = {"ok": "green", "down": "red"}.get(state, "yellow")
        words.append(f"{name} ", style="bold")
        words.append(f"{state}   ", style=colour)
    return words


def _topics(scene: Scene, *, final: bool) -> Table:
    table = Table(title=None, expand=False)
    for name in ("topic", "contract", "published", "delivered"):
        table.add_column(name, justify="left" if name in ("topic", "contract") else "right")
    for name in ("events/s", "p50 ms", "p99 ms", "lost", "forged"):
        table.add_column(name, justify="right")
    elapsed = max(scene.share * scene.seconds, 0.001)
    for line in scene.lines.values():
        table.add_row(*_cells(line, elapsed, final=final))
    return table


def _cells(line: Line, elapsed: float, *, final: bool) -> list[str | Text]:
    contract = f"{line.contract.protection}: {line.contract.protocol}"
    if line.contract.validated:
        contract += ", validated"
    if line.contract.history_every:
        contract += f" + history/{line.contract.history_every}"
    forged_colour = "green" if not line.forged else "red" if line.tolerates_lies else "yellow"
    lost = str(line.lost) if final else "..."
    return [
        line.name,
        contract,
        f"{line.published:,}",
        f"{line.delivered:,}",
        f"{line.delivered / elapsed:,.0f}",
        f"{line.percentile_ms(0.5):.1f}",
        f"{line.percentile_ms(0.99):.1f}",
        Text(lost, style="green" if line.lost == 0 else "red" if line.tolerates_lies else "yellow"),
        Text(str(line.forged), style=forged_colour),
    ]


def _log_words(scene: Scene) -> str:
    ledger = scene.ledger
    signed = [f"{batches:,} batches" for batches, _ in ledger.checkpoints]
    names = ", ".join(ledger.checkpoints[-1][1]) if ledger.checkpoints else "nobody"
    return (
        f"'{LOG}' went on {ledger.gap_s:.1f} s after its leader was killed, with "
        f"{ledger.successor} as the next. Both subscribers read its {len(ledger.positions):,} "
        f"events in one order, {ledger.misplaced()} of them elsewhere than their receipts say. "
        f"Checkpoints of {' and then '.join(signed)} verified; {names} signed the last one."
    )


def _proof_words(scene: Scene) -> str:
    shown = scene.shown
    names = ", ".join(shown.vouched_for_by)
    return (
        f"A vote at offset {shown.offset:,} of '{VOTES}' was proved in {shown.proof_bytes:,} bytes "
        f"and without its neighbours: the keys alone show that {shown.published_by} published it "
        f"there, and that {names} vouch for it. Of {CHANGES} changes of one byte, {shown.refused} "
        f"were noticed."
    )


def _summary(scene: Scene, result: dict[str, object]) -> Group:
    rejected = ", ".join(f"{who} x {count}" for who, count in scene.rejected.most_common(6))
    words = [
        f"Every event went to two subscribers. {scene.liar} lied, died, and came back; "
        f"{scene.ledger.leader} led the log, died, and came back.",
        f"Topics that promise to stand a liar lost {result['lost']} events, and delivered "
        f"{result['forged']} forged ones and {result['duplicates']} twice.",
        f"Subscribers caught and rejected {result['rejected']} wrong messages"
        + (f" ({rejected})." if rejected else "."),
    ]
    words += [_log_words(scene), _proof_words(scene)]
    weak = [line for line in scene.lines.values() if not line.tolerates_lies]
    words += [weak_words(line, scene.liar) for line in weak if line.lost or line.forged]
    return Group(_topics(scene, final=True), *words)


def weak_words(line: Line, liar: str) -> str:
    """Why a topic may lose events, and believe what was never published."""
    return (
        f"'{line.name}' promises to stand crashes only, and {liar} lied: that {line.lost} "
        f"events were lost and {line.forged} forged, its contract allows. The other topics promise "
        f"more, and take more replicas for it."
    )
