"""`quorate cluster`: one cluster file out of everybody's public parts.

No private key is needed to write a cluster file, and none is accepted: each party makes its
keys with `quorate identity new` and hands out NAME.pub. Whoever assembles the file decides
whom the cluster trusts, so every party should look at it (`quorate cluster show`) and compare
its digest with the others' before using it.
"""

import json
import re
import secrets
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
    asked,
    opened,
    operator,
)
from quorate.cli.init import LinkSecurity
from quorate.cli.tables import on_stderr
from quorate.core.cluster import (
    NONCE_BYTES,
    PORT_MAX,
    Client,
    Cluster,
    Member,
    Replica,
    parse_topics,
)
from quorate.core.errors import ConfigError, RefusedError
from quorate.crypto.digests import digest
from quorate.protocol.control.machine import NOT_YET
from quorate.runtime.files import (
    CLUSTER_FILE,
    FOUNDING_FILE,
    cluster_file,
    read_cluster,
    read_public,
    read_text,
    write_cluster,
)
from quorate.runtime.local import starter_topics
from quorate.runtime.loop import run

REPLICA_FORM = "FILE.pub@HOST:PORT[,metrics=PORT][,party=NAME]"
CLIENT_FORM = "FILE.pub[,operator][,party=NAME]"
ReplicaArgument = Annotated[
    str, typer.Argument(metavar="REPLICA", help=f"Its keys and address, as `{REPLICA_FORM}`.")
]

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def cluster() -> None:
    """Build a cluster file from its parties' public parts; look at one; change who takes part."""


@app.command()
def assemble(
    name: Annotated[str, typer.Option(help="What the cluster is called.")],
    replica: Annotated[list[str], typer.Option(metavar=REPLICA_FORM, help="Once per replica.")],
    f: Annotated[int, typer.Option("--f", help="How many replicas may fail or lie.")] = 1,
    client: Annotated[
        list[str] | None, typer.Option(metavar=CLIENT_FORM, help="Once per client.")
    ] = None,
    topics: Annotated[
        Path | None,
        typer.Option(help=r"A TOML file with \[topics.NAME] tables; a few samples if left out."),
    ] = None,
    link_security: Annotated[
        LinkSecurity, typer.Option(help="tls: encrypted. mac: authenticated only.")
    ] = LinkSecurity.tls,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "cluster.toml"
    ),
) -> None:
    """Write a cluster file that pins the keys of these members."""
    assembled = Cluster(
        name=name,
        f=f,
        nonce=secrets.token_bytes(NONCE_BYTES),
        link_security=link_security.value,
        replicas=tuple(_replica(number, text) for number, text in enumerate(replica)),
        clients=tuple(_client(index, text) for index, text in enumerate(client or [])),
        topics=starter_topics() if topics is None else parse_topics(read_text(topics)),
    )
    write_cluster(output, assembled)
    typer.echo(
        f"  {output}   replicas: {len(assembled.replicas)}, clients: {len(assembled.clients)}, "
        f"topics: {len(assembled.topics)}\n"
        f"Identity {assembled.identity.hex()}\n"
        f"Digest   {_digest(assembled)}\n"
        f"Next     give every party a copy, and let each compare the digest: "
        f"quorate cluster show {output}\n"
        f"         each party then prepares its replicas: quorate replica NAME prepare"
    )


@app.command("found")
def found_anew(directory: DirectoryOption = DEFAULT) -> None:
    """Found a cluster whose disks are all gone anew, under another identity.

    Its members, topics and keys stay. To everybody it is another cluster: proofs and receipts of
    before hold with the file of before only, which is kept beside the new one.
    """
    launcher = opened(directory)
    before = launcher.found_anew()
    typer.echo(
        f"  {launcher.directory / CLUSTER_FILE}   another cluster with the same members\n"
        f"  {before}   the file of before, for proofs of before\n"
        f"Identity {launcher.cluster.identity.hex()}\n"
        f"Next     {', '.join(launcher.held) or 'no replica'} here can start; give every other "
        f"party a copy of the new file\n"
        f"         each of them then prepares its replicas: quorate replica NAME prepare"
    )


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A cluster file, or the directory it is in.")] = Path(
        "cluster"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a cluster file says."""
    shown = read_cluster(cluster_file(file))
    if as_json:
        typer.echo(json.dumps(_as_json(shown), indent=2))
        return
    console = Console()
    console.print(
        f"Cluster [bold]{shown.name}[/bold]: {len(shown.replicas)} replicas, f = {shown.f}, "
        f"links secured by {shown.link_security}, MACs with {shown.mac}"
        + (", [red]misbehaviour on purpose allowed[/red]" if shown.allow_misbehaviour else ""),
    )
    for table in (_replica_table(shown), _client_table(shown), _topic_table(shown)):
        console.print(table)
    console.print(f"Identity {shown.identity.hex()}", soft_wrap=True)
    console.print(f"Digest {_digest(shown)}", soft_wrap=True)


@app.command()
def current(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write, if not the terminal.")
    ] = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Write what the cluster file would be now, as enough replicas say alike.

    Commands may have changed topics, replicas and clients since the file in DIRECTORY was written.
    A replica that is added or replaced starts with this one, and with `founding.toml` beside it,
    which says how the cluster began: `--output` writes both.
    """
    launcher = opened(directory)
    found = as_observer(launcher, lambda admin: admin.learn_topology())
    if output is None:
        typer.echo(found.render(), nl=False)
        return
    founding = as_observer(launcher, lambda admin: admin.founding())
    write_cluster(output, found)
    write_cluster(output.parent / FOUNDING_FILE, founding)
    typer.echo(
        f"  {output}   revision {found.revision}\n"
        f"  {output.parent / FOUNDING_FILE}   how the cluster began\n"
        f"Digest   {_digest(found)}"
    )


@app.command()
def replace(
    replica: ReplicaArgument,
    operator_name: OperatorName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Give a replica other keys, or another address. Its name says which one it is.

    Only an operator of its own party can; where only one party has operators, they speak for those
    that have none. A process that runs with the old keys ends; start the new
    one with the file that `quorate cluster current` writes.
    """
    asked_for, does = _replica(0, replica), "replaces replicas"
    as_operator(directory, operator_name, does, lambda admin: admin.replace_replica(asked_for))
    typer.echo(f"{asked_for.name} is at {asked_for.host}:{asked_for.port} from now on")


@app.command()
def add(
    replica: ReplicaArgument,
    operator_name: OperatorName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Add a replica. It keeps the order logs too, and serves topics that are created later.

    Operators of f + 1 parties (or of all that have one) must ask for exactly the same. The exit
    code is 1 while others have yet to ask.
    """
    asked_for, does = _replica(0, replica), "adds replicas"
    try:
        as_operator(directory, operator_name, does, lambda admin: admin.add_replica(asked_for))
    except RefusedError as error:
        why = str(error)
        if not why.startswith(NOT_YET):
            raise
        # It was noted, and nobody did anything wrong.
        on_stderr().print(f"{asked_for.name} is no replica yet: {why.removeprefix(NOT_YET)}")
        raise typer.Exit(1) from None
    typer.echo(f"{asked_for.name} is a replica from now on; start it with the current cluster file")


@app.command("add-client")
def add_client(
    client: Annotated[
        str,
        typer.Argument(
            metavar="CLIENT",
            help=f"Its keys and rights, as `{CLIENT_FORM}`; your own party, if left out.",
        ),
    ],
    operator_name: OperatorName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Add a client, or give the one of this name other keys or rights.

    Only an operator of its own party can. Replicas let it in at once, with the file that `quorate
    cluster current` writes; an access list that does not say ["*"] has to name it.
    """
    launcher = opened(directory)
    who = operator_name or operator(launcher, "adds clients")
    asked_for = _client(0, client, party=launcher.cluster.named(who).party)
    run(asked(launcher, who, lambda admin: admin.put_client(asked_for)))
    typer.echo(
        f"{asked_for.name} is a client of {asked_for.party} from now on\n"
        f"Next     give it the file that 'quorate cluster current -o cluster.toml' writes"
    )


@app.command("remove-client")
def remove_client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which client.")],
    operator_name: OperatorName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Remove a client. Its links end; what it published stays.

    Only an operator of its own party can. Take it off all access lists first.
    """
    does = "removes clients"
    as_operator(directory, operator_name, does, lambda admin: admin.remove_client(name))
    typer.echo(f"{name} is no client any more")


def _replica(number: int, text: str) -> Replica:
    file, at, place = text.rpartition("@")
    address, *options = place.split(",")
    host, colon, port = address.rpartition(":")
    if not (at and colon):
        raise ConfigError(f"{text!r} does not have the form {REPLICA_FORM}")
    public = read_public(Path(file))
    chosen = _options(text, options, {"metrics", "party"}, REPLICA_FORM)
    return Replica.of(
        public,
        number=number,
        host=host.removeprefix("[").removesuffix("]"),
        port=_port(text, port),
        metrics_port=_port(text, chosen["metrics"]) if "metrics" in chosen else None,
        party=chosen.get("party"),
    )


def _client(index: int, text: str, *, party: str | None = None) -> Client:
    file, *options = text.split(",")
    public = read_public(Path(file))
    chosen = _options(text, options, {"operator", "party"}, CLIENT_FORM)
    party = chosen.get("party", party)
    return Client.of(public, index=index, operator="operator" in chosen, party=party)


def _options(text: str, options: list[str], allowed: set[str], form: str) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in allowed or key in chosen or (key == "operator") != (value == ""):
            raise ConfigError(f"{option!r} in {text!r} does not fit the form {form}")
        chosen[key] = value
    return chosen


def _port(text: str, port: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= PORT_MAX:
        raise ConfigError(f"{port!r} in {text!r} is no port; allowed are 1 to {PORT_MAX}")
    return int(port)


def _digest(shown: Cluster) -> str:
    """Comments and layout do not count: two files with one digest say the same."""
    return digest(shown.render().encode()).hex()


def _replica_table(shown: Cluster) -> Table:
    table = Table("number", "replica", "party", "address", "metrics", "key", title="Replicas")
    for replica in shown.replicas:
        metrics = "" if replica.metrics_port is None else str(replica.metrics_port)
        address = f"{replica.host}:{replica.port}"
        table.add_row(
            str(replica.number), replica.name, replica.party, address, metrics, _short(replica)
        )
    return table


def _client_table(shown: Cluster) -> Table:
    table = Table("number", "client", "party", "operator", "key", title="Clients")
    for client in shown.clients:
        operator = "yes" if client.operator else ""
        table.add_row(str(client.number), client.name, client.party, operator, _short(client))
    return table


def _topic_table(shown: Cluster) -> Table:
    table = Table("topic", "protection", "order", "protocol", "history", "replicas", title="Topics")
    for name, contract in shown.topics.items():
        history = f"every {contract.history_every}" if contract.history_every else ""
        served_by = ", ".join(shown.member(number).name for number in shown.placement(name))
        table.add_row(
            name, contract.protection, contract.order, contract.protocol, history, served_by
        )
    return table


def _short(member: Member) -> str:
    return digest(member.sign_key).hex()[:16]


def _as_json(shown: Cluster) -> dict[str, object]:
    return {
        "name": shown.name,
        "identity": shown.identity.hex(),
        "f": shown.f,
        "link_security": shown.link_security,
        "mac": shown.mac,
        "allow_misbehaviour": shown.allow_misbehaviour,
        "digest": _digest(shown),
        "replicas": [
            {
                "number": replica.number,
                "name": replica.name,
                "party": replica.party,
                "host": replica.host,
                "port": replica.port,
                "metrics_port": replica.metrics_port,
            }
            for replica in shown.replicas
        ],
        "clients": [
            {
                "number": client.number,
                "name": client.name,
                "party": client.party,
                "operator": client.operator,
            }
            for client in shown.clients
        ],
        "topics": {name: contract.table() for name, contract in shown.topics.items()},
    }
