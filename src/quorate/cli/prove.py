"""`quorate prove`: what stands in a Byzantine log topic, as a file that convinces others."""

from pathlib import Path
from typing import Annotated

import typer

from quorate.cli.directory import (
    DEFAULT,
    ClientName,
    DirectoryOption,
    hint_if_unreached,
    on_shell,
    opened,
    patience_s,
    subscriber,
)
from quorate.cli.subscribe import suspicions_on_stderr
from quorate.cli.tables import on_stderr
from quorate.client.blocking import BlockingProver
from quorate.client.session import ANSWER_TIMEOUT_S
from quorate.core.errors import ConfigError
from quorate.crypto.proofs import Keys, Proof, ProofError, verify
from quorate.runtime.files import cluster_file, read_cluster

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def prove(
    topic: Annotated[str, typer.Argument(help="A log topic under Byzantine protection.")],
    partition: Annotated[int, typer.Argument(min=0, help="Of that topic.")],
    offset: Annotated[
        int, typer.Argument(min=0, help="Of an event, as receipts and records have it.")
    ],
    whole: Annotated[
        bool, typer.Option("--whole", help="Prove the whole batch, though events have proofs.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="Give up if no replica can prove it for so long.")
    ] = ANSWER_TIMEOUT_S,
    archive: Annotated[
        str | None,
        typer.Option(
            help="Prove what an archive has (`quorate pipeline run archive`), without the cluster.",
            show_default=False,
        ),
    ] = None,
    cluster_key: Annotated[
        Path | None,
        typer.Option(
            help="With `--archive`: the cluster file with the keys, if there is no directory of "
            "the cluster.",
            show_default=False,
        ),
    ] = None,
    name: ClientName = None,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Print a proof of what was published, by whom, and where it stands.

    `quorate prove TOPIC PARTITION OFFSET > proof.json` makes a file that `quorate verify` checks
    anywhere, without the cluster. It has the batch that the event is in; where the topic has
    `event_proofs`, the event and nothing of the others.

    The exit code is 1 if trying again later may help, and 2 if there is nothing to be proved.
    """
    if not seconds > 0:
        raise ConfigError(f"--seconds is {seconds:g}, but it must be above 0")
    if archive is not None:
        keys = Keys.of(read_cluster(cluster_file(cluster_key or directory)))
        proof = _from_archive(archive, keys, topic, partition, offset, whole=whole)
        typer.echo(proof.render().decode(), nl=False)
        return
    if cluster_key is not None:
        raise ConfigError("--cluster-key goes with --archive; a cluster has its keys itself")
    launcher = opened(directory)
    pinned = launcher.cluster
    who = subscriber(launcher, [topic], name)
    with (
        hint_if_unreached(launcher),
        suspicions_on_stderr(),
        BlockingProver(launcher.directory, who) as prover,
        on_stderr().status("Asking the replicas ..."),
    ):
        prover.reach(patience_s(launcher))
        proof = prover.prove(topic, partition, offset, whole=whole, timeout_s=seconds)
    typer.echo(proof.render().decode(), nl=False)
    try:
        verify(proof, Keys.of(pinned))
    except ProofError as error:
        _tell_of_other_keys(cluster_file(launcher.directory), error)


def _from_archive(
    archive: str,
    keys: Keys,
    topic: str,
    partition: int,
    offset: int,
    *,
    whole: bool,
) -> Proof:
    try:
        from quorate.pipeline.archive import Archive, prove_archived
    except ImportError as error:
        raise ConfigError(
            f"archives need {error.name}, which is not installed; pip install 'quorate[spark]'"
        ) from None
    return prove_archived(Archive(archive), keys, topic, partition, offset, whole=whole)


def _tell_of_other_keys(file: Path, error: ProofError) -> None:
    on_stderr().print(
        f"This proof does not verify with {file}, which is older than the cluster is now: {error}. "
        f"{on_shell('quorate', 'cluster', 'current')} prints a cluster file that does.",
        markup=False,
    )
