"""`quorate subscribe`: the events of topics, one line each, as they are delivered."""

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated

import typer

from quorate.cli.directory import (
    DEFAULT,
    ClientName,
    DirectoryOption,
    hint_if_unreached,
    opened,
    patience_s,
    subscriber,
)
from quorate.cli.publish import WAITING, headers_of, refuse_basic
from quorate.cli.tables import on_stderr
from quorate.cli.text import as_object, printable, shown
from quorate.client.blocking import BlockingConsumer
from quorate.client.consumer import Record, Start
from quorate.core.errors import ConfigError

RECORDS_AT_ONCE = 1000
# Some screens full; a value may have megabytes.
TERMINAL_VALUE_MAX = 4096

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def subscribe(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="What to listen to.")],
    name: ClientName = None,
    count: Annotated[int | None, typer.Option(help="End after so many events.")] = None,
    seconds: Annotated[float | None, typer.Option(help="End after so many seconds.")] = None,
    key_prefix: Annotated[str, typer.Option(help="Only events whose key begins like this.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only events with this header.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="begin|end|OFFSET|TIME",
            help="Where to begin with a log topic. A time is such as 2026-11-15T08:00; an offset "
            "that is not there yet is waited for.",
        ),
    ] = "end",
    basic: Annotated[
        bool,
        typer.Option(
            "--basic",
            help="Of validated topics: all events, whoever published them, and without checks.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each event as one line of JSON.")
    ] = False,
    directory: DirectoryOption = DEFAULT,
) -> None:
    """Print the events of topics as they are delivered, until Ctrl-C.

    Each comes with who published it and the replicas that vouch for it. A value that is not
    UTF-8 text is shown in hexadecimal digits, in JSON as `{"hex": "..."}`. What replicas
    do that they should not, a lie above all, is said on standard error.

    The exit code is 1 if fewer events than `--count` came within `--seconds`.
    """
    _check_limits(count, seconds)
    begin = start_of(start)
    launcher = opened(directory)
    who = subscriber(launcher, topics, name)
    if basic:
        refuse_basic(launcher.cluster, topics)
    headers = dict(headers_of(header))
    with (
        hint_if_unreached(launcher),
        suspicions_on_stderr(),
        BlockingConsumer(launcher.directory, who) as consumer,
    ):
        with on_stderr().status(WAITING):
            consumer.reach(patience_s(launcher))
            if basic:
                consumer.update_topology([])
            consumer.subscribe(
                topics, key_prefix=os.fsencode(key_prefix), headers=headers, start=begin
            )
        on_stderr().print(f"{who} listens to {', '.join(topics)}; Ctrl-C ends.")
        if begin != "end":
            _warn_of_live([t for t in topics if not launcher.cluster.contract(t).is_log])
        printed = _print(consumer, _as_json if as_json else as_words, count, seconds)
    if count is not None and printed < count:
        raise typer.Exit(1)


def _check_limits(count: int | None, seconds: float | None) -> None:
    for option, value in (("--count", count), ("--seconds", seconds)):
        if value is not None and not value > 0:
            raise ConfigError(f"{option} is {value:g}, but it must be above 0")


def _warn_of_live(topics: list[str]) -> None:
    """Whoever named a beginning may think that it holds for these as well."""
    if topics:
        on_stderr().print(
            f"--from is for log topics: of {', '.join(topics)} nothing is kept, and only what "
            f"is published from now on comes."
        )


def start_of(text: str) -> Start:
    """Where to begin, as it stands on a command line."""
    if text == "begin":
        return "begin"
    if text == "end":
        return "end"
    if text.isdecimal():
        return int(text)
    try:
        # Without a time zone, the one of this machine is meant.
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ConfigError(
            f"--from {text!r} is neither begin, end, an offset, nor a time such as 2026-11-15T08:00"
        ) from None


@contextlib.contextmanager
def suspicions_on_stderr() -> Iterator[None]:
    """Show there what our client holds against whom, once each, and what it warns of."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # What the client sees of others is less than a warning about what we wait for.
            noticed = "" if record.levelno >= logging.WARNING else "Noticed "
            on_stderr().print(f"{noticed}{printable(record.getMessage())}", markup=False)

    log, handler = logging.getLogger("quorate.client"), Shown()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _print(
    consumer: BlockingConsumer,
    as_line: Callable[[Record], str],
    count: int | None,
    seconds: float | None,
) -> int:
    """Print records as they come, up to so many and for so long; says how many there were."""
    printed = 0
    try:
        for records in _arrivals(consumer, count, seconds):
            typer.echo("\n".join(map(as_line, records)))
            printed += len(records)
    except KeyboardInterrupt:
        # Without a count this is the way to end, and nothing went wrong.
        if count is not None:
            raise
    return printed


def _arrivals(
    consumer: BlockingConsumer, count: int | None, seconds: float | None
) -> Iterator[list[Record]]:
    ends_at = None if seconds is None else time.monotonic() + seconds
    while count is None or count > 0:
        timeout_s = None if ends_at is None else ends_at - time.monotonic()
        if timeout_s is not None and timeout_s <= 0:
            return
        wanted = RECORDS_AT_ONCE if count is None else min(count, RECORDS_AT_ONCE)
        records = consumer.poll_many(wanted, timeout_s)
        if records:
            yield records
        if count is not None:
            count -= len(records)


def as_words(record: Record) -> str:
    """One line about a record; on a terminal, what would fill it many times over is cut."""
    notes = [
        *([] if record.key is None else [f"key {shown(record.key)}"]),
        *(f"{printable(name)}={shown(value)}" for name, value in record.headers),
        *(["urgent"] if record.urgent else []),
        *(["validated"] if record.validated else []),
        f"vouched by {', '.join(record.vouchers)}",
    ]
    where = f"{record.topic} {record.publisher}#{record.sequence}.{record.index}"
    if record.offset is not None:
        where = f"{record.topic} {record.partition}@{record.offset} {record.publisher}"
    value = shown(record.value)
    if len(value) > TERMINAL_VALUE_MAX and sys.stdout.isatty():
        value = f"{value[:TERMINAL_VALUE_MAX]}…"
        notes.insert(0, f"{len(record.value):,} bytes, whole with --json or in a file")
    return f"{where}  {value}  ({'; '.join(notes)})"


def _as_json(record: Record) -> str:
    return json.dumps(
        {
            "topic": record.topic,
            "publisher": record.publisher,
            "sequence": record.sequence,
            "index": record.index,
            **as_object(record),
            "vouchers": record.vouchers,
            "partition": record.partition,
            "offset": record.offset,
            "validated": record.validated,
        }
    )
