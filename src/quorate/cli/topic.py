"""`quorate topic`: create and alter topics of a running cluster, list and describe them."""

import json
from pathlib import Path
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
from quorate.client.admin import Admin
from quorate.core.cluster import Cluster
from quorate.core.contract import KEYS, Contract
from quorate.core.control import CONTROL_TOPIC, Setting
from quorate.core.errors import ConfigError
from quorate.protocol.control.topology import FIXED_KEYS

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)

_LISTS = ("publish", "subscribe")

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="What its contract says, such as `order=total partitions=4 publish=alice,bob`; the "
        f"keys are {', '.join(KEYS)}.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="What to change, such as `retention=7d partitions=8 publish=alice,bob`.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def topic() -> None:
    """Create and alter topics of a running cluster, list and describe them.

    What an operator asks for is ordered like events: all replicas carry it out alike, or none does.
    """


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    settings: Settings = None,
    operator_name: OperatorName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Create a topic. What is left out of its contract has a safe default."""
    contract = settings_of(settings)

    async def work(admin: Admin) -> Cluster:
        await admin.create_topic(name, contract)
        return await admin.learn_topology()

    created = as_operator(directory, operator_name, "creates topics", work)
    typer.echo(f"{name} is there: {created.topics[name].terms}, {_served_by(created, name)}")


@app.command()
def alter(
    name: Annotated[str, typer.Argument(help="Which topic.")],
    settings: Changes = None,
    operator_name: OperatorName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Alter a topic: its limits, its retention, who may do what, more partitions.

    What its events were promised (protection, order, broadcast) stays; that takes a new topic.
    """
    changes = settings_of(settings)
    if name == CONTROL_TOPIC:
        raise ConfigError(
            f"{name} is the cluster's own and cannot be altered; "
            f"'quorate topic describe {name}' shows what it promises"
        )
    altered = as_operator(
        directory, operator_name, "alters topics", lambda admin: _alter(admin, name, changes)
    )
    table = altered.topics[name].table()
    words = ", ".join(f"{key} is {_shown(table.get(key, 'without limit'))}" for key in changes)
    typer.echo(f"{name} is altered: {words}")


@app.command("list")
def list_topics(directory: DirectoryOption = DEFAULT, as_json: AsJson = False) -> None:
    """List the topics that the cluster has now."""
    cluster = _current(directory)
    if as_json:
        typer.echo(json.dumps({name: c.table() for name, c in cluster.topics.items()}, indent=2))
        return
    table = Table("topic", "protection", "order", "protocol", "partitions", "replicas")
    for name, contract in cluster.topics.items():
        partitions = str(contract.partitions) if contract.is_log else ""
        served = " ".join(cluster.name_of(number) for number in cluster.placement(name))
        table.add_row(
            name, contract.protection, contract.order, contract.protocol, partitions, served
        )
    Console().print(table)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(help="Which topic.")],
    directory: DirectoryOption = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Describe one topic: its whole contract, and the replicas that serve it."""
    cluster = _current(directory)
    contract = cluster.contract(name)
    replicas = [cluster.name_of(number) for number in cluster.placement(name)]
    if as_json:
        described = {"topic": name, "contract": contract.table(), "replicas": replicas}
        typer.echo(json.dumps(described, indent=2))
        return
    table = Table("key", "value", title=f"Topic {printable(name)}", title_justify="left")
    for key, value in contract.table().items():
        table.add_row(key, _shown(value))
    table.add_row("served by", " ".join(replicas))
    table.add_row("tolerates", _tolerates(cluster, contract))
    Console().print(table)


def settings_of(given: list[str] | None) -> dict[str, Setting]:
    """Contract keys and values as they stand on a command line."""
    settings: dict[str, Setting] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"{text!r} does not have the form KEY=VALUE, such as order=total")
        if key in settings:
            raise ConfigError(f"{key} is given twice")
        settings[key] = _value(key, value)
    return settings


def _value(key: str, text: str) -> Setting:
    if key in _LISTS:
        return [name for name in text.split(",") if name]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() else text


async def _alter(admin: Admin, name: str, changes: dict[str, Setting]) -> Cluster:
    contract = (await admin.learn_topology()).contract(name)
    if not changes:
        keys = ", ".join(key for key in contract.keys if key not in FIXED_KEYS)
        raise ConfigError(f"say what to alter of {name}, as KEY=VALUE; the keys are {keys}")
    await admin.alter_topic(name, changes)
    return await admin.learn_topology()


def _current(directory: Path) -> Cluster:
    return as_observer(opened(directory), lambda admin: admin.learn_topology())


def _served_by(cluster: Cluster, name: str) -> str:
    return "served by " + " ".join(cluster.name_of(number) for number in cluster.placement(name))


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nobody"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tolerates(cluster: Cluster, contract: Contract) -> str:
    if contract.protection == "none" or not cluster.f:
        return "no faulty replica"
    word = "crashed" if contract.protection == "crash" else "lying"
    return f"{cluster.f} {word} replica{'s' if cluster.f > 1 else ''}"
