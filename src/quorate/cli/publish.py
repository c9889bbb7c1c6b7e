"""`quorate publish`: events from the command line, a file or a pipe; receipts on stdout."""

import json
import os
import sys
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import msgspec
import typer

from quorate.cli.directory import (
    DEFAULT,
    ClientName,
    DirectoryOption,
    hint_if_unreached,
    opened,
    patience_s,
    publisher,
)
from quorate.cli.tables import on_stderr
from quorate.client.blocking import BlockingProducer
from quorate.client.producer import BATCH_EVENTS, Receipt
from quorate.core.cluster import Cluster
from quorate.core.errors import ConfigError
from quorate.core.event import Event
from quorate.core.limits import BATCH_BYTES_MAX

READ_BYTES = 256 * 1024
# A batch holds a line that was read in pieces, and what came with its end.
LINE_BYTES_MAX = BATCH_BYTES_MAX // 2
BASIC_HELP = "Only who reads it with --basic gets it."
WAITING = "Waiting for the replicas ..."

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def publish(
    topic: Annotated[str, typer.Argument(help="Where to publish.")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE", help="An event each.")
    ] = None,
    name: ClientName = None,
    key: Annotated[str | None, typer.Option(help="The key of every event.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every event.")
    ] = None,
    urgent: Annotated[
        bool, typer.Option("--urgent", help="On a live topic: overtake what waits in queues.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Of a log topic; if left out, by the key, or in turn.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Publish the content of this file as one event.")
    ] = None,
    basic: Annotated[
        bool,
        typer.Option("--basic", help="On a validated topic: without validation. " + BASIC_HELP),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no receipts.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each receipt as one line of JSON.")
    ] = False,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Publish events on a topic, and print what the replicas guarantee.

    Without VALUE and `--file`, every line of the standard input is an event.
    """
    launcher = opened(directory)
    who = publisher(launcher, topic, name)
    if basic:
        refuse_basic(launcher.cluster, [topic])
    encoded = None if key is None else os.fsencode(key)
    template = Event(encoded, b"", headers_of(header), 0, urgent)
    batches = _batches(values or [], file)
    count = 0
    with hint_if_unreached(launcher), BlockingProducer(launcher.directory, who) as producer:
        with on_stderr().status(WAITING):
            producer.reach(patience_s(launcher))
            if basic:
                producer.update_topology([])
            producer.register(topic)
        placement = Placement(partition, producer.cluster.contract(topic).partitions)
        for values_at_once in batches:
            with on_stderr().status(WAITING):
                receipts = list(_send(producer, topic, template, values_at_once, placement))
            for receipt in receipts:
                count += receipt.events
                if not quiet:
                    typer.echo(_as_json(receipt) if as_json else _as_words(receipt, who))
    if not count:
        on_stderr().print("Nothing came in, so nothing was published.")


def refuse_basic(cluster: Cluster, topics: list[str]) -> None:
    """Unless a topic can be validated, and so can be not."""
    for topic in topics:
        if not cluster.contract(topic).validated:
            raise ConfigError(
                f"--basic is for validated topics, and '{topic}' is none; leave --basic out"
            )


class Placement(NamedTuple):
    """Which partition of a topic the events go to, and of how many."""

    partition: int | None
    partitions: int

    def is_by_key(self, key: bytes | None) -> bool:
        return self.partition is None and self.partitions > 1 and key is not None


def headers_of(given: list[str] | None) -> tuple[tuple[str, bytes], ...]:
    """Headers as they stand on a command line."""
    headers = []
    for text in given or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"--header {text!r} does not have the form NAME=VALUE")
        headers.append((name, os.fsencode(value)))
    return tuple(headers)


def _send(
    producer: BlockingProducer,
    topic: str,
    template: Event,
    values: list[bytes],
    placement: Placement,
) -> Iterator[Receipt]:
    now_us = time.time_ns() // 1000
    events = [msgspec.structs.replace(template, value=v, timestamp_us=now_us) for v in values]
    if not template.urgent and not placement.is_by_key(template.key):
        yield producer.send_batch(topic, events, partition=placement.partition)
        return
    for event in events:
        yield producer.send(
            topic,
            event.value,
            key=event.key,
            headers=event.headers,
            urgent=event.urgent,
            timestamp_us=event.timestamp_us,
            partition=placement.partition,
        )


def _batches(values: list[str], file: Path | None) -> Iterator[list[bytes]]:
    """What to publish, in batches: from exactly one of the three places it can come from."""
    if values and file is not None:
        raise ConfigError("give either values or --file, not both")
    if file is not None:
        return iter([[_content(file)]])
    if values:
        return iter([[os.fsencode(value) for value in values]])
    # Python has no standard input where the shell closed it.
    if sys.stdin is None:
        return iter(())
    if sys.stdin.isatty():
        on_stderr().print("Every line is an event. Ctrl-D ends.")
    return _lines(cast(BufferedReader, sys.stdin.buffer))


def _lines(stream: BufferedReader) -> Iterator[list[bytes]]:
    """The lines that are here by now, again and again: a slow pipe makes small batches."""
    rest = b""
    while chunk := stream.read1(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ConfigError(
                f"a line of the input is longer than {LINE_BYTES_MAX} bytes; shorten it, or "
                f"publish it with --file, which takes a little less than {BATCH_BYTES_MAX}"
            )
        for start in range(0, len(lines), BATCH_EVENTS):
            yield lines[start : start + BATCH_EVENTS]
    if rest:
        yield [rest]


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(BATCH_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"--file {file} cannot be read: {error.strerror}") from error
    if len(content) > BATCH_BYTES_MAX:
        raise ConfigError(
            f"--file {file} is larger than one event may be, which is a little less than "
            f"{BATCH_BYTES_MAX} bytes"
        )
    return content


def _as_words(receipt: Receipt, publisher: str) -> str:
    events = "1 event" if receipt.events == 1 else f"{receipt.events} events"
    if receipt.offset is not None:
        last = receipt.offset + receipt.events - 1
        offsets = f"offset {last}" if receipt.events == 1 else f"offsets {receipt.offset} to {last}"
        return (
            f"{receipt.topic}: {events} from {publisher} at {offsets} of partition "
            f"{receipt.partition}, say {', '.join(receipt.replicas)}: {receipt.guarantee}"
        )
    return (
        f"{receipt.topic}: {events} from {publisher}, batch {receipt.sequence}, taken by "
        f"{', '.join(receipt.replicas)}: {receipt.guarantee}"
    )


def _as_json(receipt: Receipt) -> str:
    return json.dumps(msgspec.to_builtins(receipt))
