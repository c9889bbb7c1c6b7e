"""`quorate status`: what each replica says of itself, and who says nothing."""

import contextlib
import json
from typing import Annotated

import typer
from rich.console import Console

from quorate.cli.directory import (
    DEFAULT,
    Directory,
    SameDirectoryOption,
    asked,
    observer,
    opened,
)
from quorate.cli.tables import (
    Reports,
    Standing,
    log_tables,
    remarks,
    replica_table,
    standings,
    topic_table,
)
from quorate.client.admin import Admin
from quorate.core.errors import QuorumError, UnreachedError
from quorate.runtime.launcher import Launcher
from quorate.runtime.loop import run

TOPOLOGY_S_MAX = 1.5

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def status(
    named: Directory = None,
    directory: SameDirectoryOption = DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell the health, rates and queues of each replica.

    The exit code is 0 if all replicas are up, and 1 if one is not. A replica that misbehaves on
    purpose is up. Where none can be reached, one sentence says so.
    """
    directory = named or directory
    launcher = opened(directory)
    reports = _ask(launcher, observer(launcher), as_json=as_json)
    found = standings(launcher, reports)
    if as_json:
        typer.echo(json.dumps(_as_json(launcher, found, reports), indent=2))
    else:
        _print(launcher, found)
    if not all(standing.is_up for standing in found):
        raise typer.Exit(1)


def _ask(launcher: Launcher, name: str, *, as_json: bool) -> Reports:
    async def ask(admin: Admin) -> Reports:
        if launcher.cluster.control is not None:
            # Topics and replicas may have come since the file was written.
            with contextlib.suppress(QuorumError):
                launcher.cluster = await admin.learn_topology(TOPOLOGY_S_MAX)
        return await admin.status()

    try:
        return run(asked(launcher, name, ask))
    except UnreachedError as error:
        if not as_json:
            raise
        return {who: {"health": "down", "why": why} for who, why in error.causes.items()}


def _print(launcher: Launcher, found: list[Standing]) -> None:
    console = Console()
    console.print(replica_table(launcher.cluster, found, width=console.width))
    if any(standing.is_up for standing in found):
        console.print()
        console.print(topic_table(launcher.cluster, found, width=console.width))
        for logs in log_tables(found, width=console.width):
            console.print()
            console.print(logs)
    console.print(remarks(launcher.cluster, found), soft_wrap=True)


def _as_json(launcher: Launcher, found: list[Standing], reports: Reports) -> dict[str, object]:
    return {
        "cluster": launcher.cluster.name,
        "f": launcher.cluster.f,
        "all_up": all(standing.is_up for standing in found),
        "replicas": [
            {
                **reports.get(standing.name, {}),
                "name": standing.name,
                "party": standing.replica.party,
                "address": f"{standing.replica.host}:{standing.replica.port}",
                "health": standing.report.health,
                "why": standing.report.why,
            }
            for standing in found
        ],
    }
