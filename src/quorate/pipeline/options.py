"""The options of the source and the sink, as a person writes them in a program or a notebook.

Spark hands them over as text. They are read once, where a query is planned, so that a wrong one is
named before anything runs.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from quorate.core.errors import ConfigError, LocalProtocolError

# Where reading begins or ends: an end of the log, an offset for all partitions, one for each, or
# a time in microseconds.
Start: TypeAlias = "Literal['begin', 'end'] | Offsets | Time"

# Spark adds these itself, whatever is read or written.
_SPARKS = frozenset(("path", "checkpointlocation", "queryname"))


_ENDS: dict[str, Literal["begin", "end"]] = {"begin": "begin", "end": "end"}

OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


class Offsets(msgspec.Struct, frozen=True, tag="offsets"):
    """By topic and partition; a partition that is not named begins at the beginning."""

    by_topic: dict[str, dict[int, int]]


class Time(msgspec.Struct, frozen=True, tag="time"):
    """The first event that was ordered then or later."""

    time_us: int


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is read, on whose behalf, and what becomes of what cannot be verified."""

    cluster: str
    identity: str
    topics: Annotated[tuple[str, ...], Meta(min_length=1)]
    start: str = "begin"
    until: str = "end"
    # A stream reads no more than so many events at a time; 0 stands for all that are there.
    max_rows: Annotated[int, Meta(ge=0)] = 0
    # A stretch of more events than this is divided, so that several tasks share a partition.
    rows_per_task: Annotated[int, Meta(ge=1)] = 250_000
    # Of validated topics, whether only those events are read that their producers signed.
    validate: bool = True
    verification: Literal["on", "off"] = "on"
    on_unverified: Literal["fail", "drop", "quarantine"] = "fail"
    # A directory, or another place that Arrow can write to.
    quarantine: str = ""
    patience_s: Annotated[float, Meta(gt=0)] = 10.0
    # What an archive needs to prove a row later stands in the first row of each batch. Batches are
    # not cut then: they belong to the stretch that has their last event.
    proofs: bool = False


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where rows are published, on whose behalf, and where they wait for that."""

    cluster: str
    identity: str
    # For frames without a column `topic`.
    topic: str = ""
    # A directory that the driver and all executors share.
    staging: str
    # Whoever writes a frame twice under one name has published it once.
    name: str = ""
    # Of several frames under one name: the number of this one.
    batch: Annotated[int, Meta(ge=0)] = 0
    compression: Literal["none", "zstd", "lz4"] = "none"
    batch_rows: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    timeout_s: Annotated[float, Meta(gt=0)] = 30.0


def source_options(given: Mapping[str, str]) -> SourceOptions:
    options = _read(given, SourceOptions, "reading from")
    if options.on_unverified == "quarantine" and not options.quarantine:
        raise ConfigError(
            "option 'on_unverified' is 'quarantine': option 'quarantine' has to name a directory "
            "for what could not be verified"
        )
    read_start("start", options.start)
    read_start("until", options.until)
    return options


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    given = {key.lower(): value for key, value in given.items()}
    checkpoint = given.get("checkpointlocation")
    if "staging" not in given and checkpoint:
        given["staging"] = f"{checkpoint.rstrip('/')}/quorate-staging"
    if "staging" not in given:
        raise ConfigError(
            "option 'staging' is missing: a directory that the driver and all executors share, "
            "where rows wait until they are published (a stream with a 'checkpointLocation' has "
            "one there)"
        )
    return _read(given, SinkOptions, "publishing through")


def read_start(option: str, text: str) -> Start:
    """What `start` or `until` says; an error names the option."""
    if text in _ENDS:
        return _ENDS[text]
    if text.lstrip().startswith("{"):
        try:
            return Offsets(msgspec.json.decode(text, type=dict[str, dict[int, int]]))
        except msgspec.MsgspecError as error:
            raise _bad_start(option, text, str(error)) from None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _bad_start(option, text) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return Time(round(time.timestamp() * 1_000_000))


def _bad_start(option: str, text: str, why: str = "") -> LocalProtocolError:
    return LocalProtocolError(
        f"option '{option}' is {text!r}; allowed are 'begin', 'end', a time such as "
        f'\'2026-11-16T12:00:00Z\', or offsets such as {{"topic": {{"0": 17}}}}'
        + (f" ({why})" if why else "")
    )


def _read(given: Mapping[str, str], kind: type[OptionsT], doing: str) -> OptionsT:
    """These options, which have this kind; Spark does not tell capital letters apart."""
    given = {key.lower(): value for key, value in given.items() if key.lower() not in _SPARKS}
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name in given:
        if name not in fields:
            raise ConfigError(
                f"there is no option '{name}' for {doing} a topic; allowed are {', '.join(fields)}"
            )
    for name, field in fields.items():
        if field.required and name not in given:
            raise ConfigError(f"option '{name}' is missing for {doing} a topic")
    values: dict[str, object] = dict(given)
    if "topics" in values:
        values["topics"] = [name.strip() for name in given["topics"].split(",") if name.strip()]
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the options for {doing} a topic do not do: {error}") from None
