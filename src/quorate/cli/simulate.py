"""`quorate simulate`: a protocol under many seeds, faults and adversaries."""

import json
import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from quorate.sim.campaign import Summary, Verdict, command, explain, run_seeds
from quorate.sim.scenarios import PROTOCOLS, Setting, adversaries_of

EXIT_VIOLATION = 1
# A protocol that is broken is broken in many seeds; a few of them are enough to read.
GUILTY_SHOWN = 5
# So few seeds are not worth starting processes for.
SEEDS_ALONE_MAX = 20

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_ADVERSARIES = dict.fromkeys(name for each in PROTOCOLS for name in adversaries_of(each))
_ADVERSARY_HELP = f"Who attacks; by default each seed draws its own: {', '.join(_ADVERSARIES)}."


@app.command()
def simulate(
    protocol: Annotated[str, typer.Option(help=f"One of {', '.join(PROTOCOLS)}.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many runs.")] = 100,
    first_seed: Annotated[int, typer.Option(min=0, help="The seed of the first run.")] = 0,
    f: Annotated[int, typer.Option("--f", min=1, max=2, help="How many replicas fail.")] = 1,
    adversary: Annotated[str | None, typer.Option(help=_ADVERSARY_HELP)] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many processes; one per core, if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a protocol under many seeds, faults and adversaries.

    Each seed is one run in virtual time, always the same one. Exits with 1 if a run violates
    what the protocol promises, and prints the command that shows it again.
    """
    setting = Setting(protocol, f, adversary)
    if jobs is None:
        jobs = 1 if seeds < SEEDS_ALONE_MAX else os.cpu_count() or 1
    summary = _watch(setting, range(first_seed, first_seed + seeds), jobs)
    if as_json:
        typer.echo(json.dumps(_as_object(summary, first_seed), indent=2))
    else:
        _tell(summary)
    if summary.guilty:
        raise typer.Exit(EXIT_VIOLATION)


def _watch(setting: Setting, seeds: range, jobs: int) -> Summary:
    summary = Summary(setting)
    columns = (
        TextColumn(f"{setting.protocol}, f = {setting.f}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[guilty]} guilty"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("seeds", total=len(seeds), guilty=0)
        for verdict in run_seeds(setting, seeds, jobs=jobs):
            summary.add(verdict)
            progress.update(task, advance=1, guilty=len(summary.guilty))
    return summary


def _tell(summary: Summary) -> None:
    setting = summary.setting
    attack = f", adversary {setting.adversary}" if setting.adversary else ""
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(summary.faults.items()))
    rows = {
        "protocol": f"{setting.protocol}, f = {setting.f}{attack}",
        "seeds": f"{summary.seeds}",
        "simulated": f"{summary.simulated_us / 1e6:,.1f} s",
        "messages": f"{summary.messages:,}",
        "published": f"{summary.published:,} batches, delivered {summary.delivered:,} times",
        "faults": faults or "none",
    }
    for name, value in rows.items():
        typer.echo(f"{name:<10} {value}")
    for verdict in summary.guilty[:GUILTY_SHOWN]:
        _accuse(setting, verdict)
    if summary.guilty:
        typer.echo("\n".join(["", *explain(setting, summary.guilty[0])]))
    typer.echo(_verdict(summary))


def _accuse(setting: Setting, verdict: Verdict) -> None:
    first, *others = verdict.violations
    more = f" (and {len(others)} more)" if others else ""
    typer.echo(f"\nseed {verdict.seed}: {first.checker} is violated: {first.sentence}{more}")
    typer.echo(f"  {command(setting, verdict.seed)}")


def _verdict(summary: Summary) -> str:
    """The closing sentence."""
    setting, faults = summary.setting, summary.faults.total()
    under = f"{setting.protocol} with f = {setting.f} under {summary.seeds} seeds"
    if not summary.guilty:
        return f"{under} and {faults:,} injected faults: 0 violations."
    first = command(setting, summary.guilty[0].seed)
    return (
        f"{under} and {faults:,} injected faults: {summary.violations} violations in "
        f"{len(summary.guilty)} seeds; to see the first again: {first}"
    )


def _as_object(summary: Summary, first_seed: int) -> dict[str, Any]:
    setting = summary.setting
    return {
        "protocol": setting.protocol,
        "f": setting.f,
        "adversary": setting.adversary,
        "seeds": summary.seeds,
        "first_seed": first_seed,
        "simulated_s": summary.simulated_us / 1e6,
        "messages": summary.messages,
        "published": summary.published,
        "delivered": summary.delivered,
        "faults": dict(sorted(summary.faults.items())),
        "violations": [
            {
                "seed": verdict.seed,
                "checker": violation.checker,
                "sentence": violation.sentence,
                "command": command(setting, verdict.seed),
            }
            for verdict in summary.guilty
            for violation in verdict.violations
        ],
    }
