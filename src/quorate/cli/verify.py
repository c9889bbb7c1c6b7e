"""`quorate verify`: what a proof proves, offline, to whoever has the cluster's file.

It imports nothing that talks to a cluster, so that it takes about as long as a Python program that
reads two files.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from quorate.cli.text import as_object, printable, shown
from quorate.core.batch import Batch
from quorate.core.errors import ConfigError, RemoteProtocolError
from quorate.core.event import Event
from quorate.crypto.proofs import PROOF_BYTES_MAX, Keys, ProofError, Verdict, verify_bytes
from quorate.runtime.files import cluster_file, read_cluster

EVENTS_SHOWN = 20
VALUE_CHARACTERS_MAX = 400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def verify(
    proof: Annotated[Path, typer.Argument(help="A file that `quorate prove` made.")],
    cluster_key: Annotated[
        Path,
        typer.Option(
            help="The cluster file, `cluster.toml`, with the keys to trust; from whoever you have "
            "it, but not from who gave you the proof.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print what is proved as JSON.")] = False,
) -> None:
    """Say what a proof proves: who published what, when, in which position, and who vouches for it.

    No cluster is needed. The exit code is 1 if the proof does not hold, which is then said on
    standard output too.
    """
    keys = Keys.of(read_cluster(cluster_file(cluster_key)))
    data = _content(proof)
    try:
        verdict = verify_bytes(data, keys)
    except ProofError as error:
        sentence = str(error)
        refusal = {"holds": False, "step": error.step, "why": sentence}
        typer.echo(json.dumps(refusal) if as_json else f"This proves nothing: {sentence}.")
        raise typer.Exit(1) from None
    typer.echo(json.dumps(_as_json(verdict)) if as_json else "\n".join(_as_words(verdict)))


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            # One byte more is seen to be too many.
            return stream.read(PROOF_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"the proof {file} cannot be read: {error.strerror}") from error


def _as_words(verdict: Verdict) -> list[str]:
    who = verdict.producer_name or f"client {verdict.producer}"
    what = "1 event" if verdict.events == 1 else f"{verdict.events} events"
    if verdict.event is not None and verdict.events > 1:
        what = f"1 event of a batch of {verdict.events}"
    vouchers = ", ".join(
        f"{printable(each.name)} at {_seconds(each.time_s)}" for each in verdict.vouchers
    )
    name, _, identity = verdict.cluster.partition("/")
    return [
        f"{printable(who)} published {what} on topic {printable(verdict.topic)} of cluster "
        f"{printable(name)}.",
        f"  identity  {printable(identity)}",
        *_signature_in_words(verdict),
        f"  ordered   {_micros(verdict.ordered_us)} as batch {verdict.sequence} of session "
        f"{verdict.session} of client {verdict.producer}",
        f"  position  {_offsets(verdict)} of partition {verdict.partition}; leaf {verdict.leaf} of "
        f"an order log of {verdict.tree_size}",
        f"  vouched   by {vouchers}",
        *_events_in_words(verdict),
        *(f"  note      {printable(remark)}" for remark in verdict.remarks),
    ]


def _signature_in_words(verdict: Verdict) -> list[str]:
    if verdict.signed_us is None or verdict.public_key is None:
        return ["  signed    by nobody: that it is the producer's, the vouchers say"]
    key = "the key that is pinned for it" if verdict.is_key_pinned else "a key that is not pinned"
    return [
        f"  signed    {_micros(verdict.signed_us)} by the producer's clock, with {key}",
        f"            {verdict.public_key.hex()}",
    ]


def _offsets(verdict: Verdict) -> str:
    if verdict.event is not None or verdict.events == 1:
        return f"offset {verdict.offset}"
    return f"offsets {verdict.offset} to {verdict.offset + verdict.events - 1}"


def _events_in_words(verdict: Verdict) -> list[str]:
    if verdict.event is not None:
        return [f"  event     {verdict.offset}: {_event_in_words(verdict.event)}"]
    try:
        events = _events(verdict)
    except RemoteProtocolError as error:
        return [f"  events    cannot be read: {printable(str(error))}"]
    lines = [
        f"  event     {offset}: {_event_in_words(event)}"
        for offset, event in enumerate(events[:EVENTS_SHOWN], verdict.offset)
    ]
    if len(events) > EVENTS_SHOWN:
        lines.append(f"            and {len(events) - EVENTS_SHOWN} more, which --json has")
    return lines


def _event_in_words(event: Event) -> str:
    notes = [
        *([] if event.key is None else [f"key {_data(event.key)}"]),
        *(f"{printable(name)}={_data(value)}" for name, value in event.headers),
        *(["urgent"] if event.urgent else []),
        f"of {_micros(event.timestamp_us)}",
    ]
    return f"{_data(event.value)}  ({'; '.join(notes)})"


def _as_json(verdict: Verdict) -> dict[str, Any]:
    found: dict[str, Any] = {"holds": True, **msgspec.to_builtins(verdict)}
    del found["batch"], found["event"], found["event_index"]
    found["root"] = verdict.root.hex()
    if verdict.public_key is not None:
        found["public_key"] = verdict.public_key.hex()
    if verdict.event is not None:
        events = [verdict.event]
    else:
        try:
            events = _events(verdict)
        except RemoteProtocolError as error:
            events = []
            found["remarks"] = [*found["remarks"], f"the events cannot be read: {error}"]
    found["shown"] = [
        {"offset": offset, **as_object(event)}
        for offset, event in enumerate(events, verdict.offset)
    ]
    return found


def _events(verdict: Verdict) -> list[Event]:
    assert verdict.batch is not None
    return Batch(verdict.batch).events()


def _data(data: bytes) -> str:
    text = shown(data)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text
    return f"{text[:VALUE_CHARACTERS_MAX]}… ({len(data):,} bytes, whole with --json)"


def _micros(time_us: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).isoformat(" ", "microseconds")
    except OverflowError:
        return f"{time_us} µs after 1970"


def _seconds(time_s: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=time_s)).isoformat(" ", "seconds")
    except OverflowError:
        return f"{time_s} s after 1970"
