"""`quorate group`: list consumer groups, let others in, reset and delete them."""

import json
import re
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from quorate.cli.directory import (
    DEFAULT,
    DirectoryOption,
    OperatorName,
    as_observer,
    as_operator,
    opened,
)
from quorate.cli.text import printable
from quorate.core.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="Which group: PARTY/NAME, or NAME for one of the operator's party.")
]
_OFFSET = re.compile(r"(.+):(\d+)@(\d+)")


@app.callback()
def group() -> None:
    """List consumer groups, let clients of other parties in, reset and delete groups.

    A group belongs to the party that its name begins with. Only operators of that party change it.
    """


@app.command("list")
def list_groups(
    directory: DirectoryOption = DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List groups and how far they are, as f + 1 replicas describe them alike."""
    groups = as_observer(opened(directory), lambda admin: admin.groups())
    if as_json:
        typer.echo(json.dumps(groups, indent=2))
        return
    table = Table("group", "mode", "members", "also lets in", "committed")
    for name, found in groups.items():
        members, access = _names(found["members"]), _names(found["access"])
        table.add_row(
            printable(name), str(found["mode"]), members, access, _offsets(found["partitions"])
        )
    Console().print(table)


@app.command()
def allow(
    name: Name,
    clients: Annotated[
        list[str] | None, typer.Argument(help="Clients of other parties; `*` for all, or none.")
    ] = None,
    operator: OperatorName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Let these clients of other parties be in a group, and no others."""
    others, does = clients or [], "lets others into a group"
    as_operator(directory, operator, does, lambda admin: admin.let_in(name, others))
    typer.echo(f"Group {name} lets in its own party and {', '.join(others) or 'no others'}.")


@app.command()
def reset(
    name: Name,
    offsets: Annotated[
        list[str] | None, typer.Option("--offset", help="Go on there: `TOPIC:PARTITION@OFFSET`.")
    ] = None,
    operator: OperatorName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Forget what a group without members has read, or have it go on elsewhere."""
    to = [_offset(text) for text in offsets or []]
    as_operator(directory, operator, "resets a group", lambda admin: admin.reset_group(name, to))
    typer.echo(f"Reset group {name}.")


@app.command()
def delete(name: Name, operator: OperatorName = None, directory: DirectoryOption = DEFAULT) -> None:
    """Delete a group without members, and its offsets."""
    as_operator(directory, operator, "deletes a group", lambda admin: admin.delete_group(name))
    typer.echo(f"Deleted group {name}.")


def _offset(text: str) -> tuple[str, int, int]:
    found = _OFFSET.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is not TOPIC:PARTITION@OFFSET, such as trades:0@17")
    return found[1], int(found[2]), int(found[3])


def _names(found: object) -> str:
    items = found if isinstance(found, list) else []
    return printable(
        " ".join(str(each["name"] if isinstance(each, dict) else each) for each in items)
    )


def _offsets(found: object) -> str:
    places = (
        [each for each in found if each["offset"] is not None] if isinstance(found, list) else []
    )
    return printable(" ".join(f"{p['topic']}:{p['partition']}@{p['offset']}" for p in places))
