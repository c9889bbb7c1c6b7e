"""Batches: events in Arrow's columnar layout, behind a small fixed header.

A batch is the unit of transport, signing, ordering and storage. It is written once by its
producer, and replicas read no more of it than its header (`core/header.py`). `core/columns.py` has
the format, and `core/table.py` the way to Arrow's tables and back.

`Batch` alone decides whether a payload, basic or signed, is what its header says. It checks that
before anything is wrapped or built, and raises `RemoteProtocolError` if the payload is malformed.
What a caller of the encoders got wrong raises `LocalProtocolError`. Arrow itself is imported only
when a table or compression is asked for, since it alone would double the memory of a replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, repeat
from struct import Struct, pack
from typing import TYPE_CHECKING, TypeAlias

from quorate.core import table
from quorate.core.columns import (
    KEYS,
    MISUSES,
    URGENT,
    Columns,
    Parts,
    bitmap,
    booleans,
    checked_head,
    counted,
    is_even,
    packed,
    packed_headers,
    read,
    seal,
    slices,
    too_large,
)
from quorate.core.errors import LocalProtocolError
from quorate.core.event import Event
from quorate.core.header import VERSION, Payload
from quorate.core.limits import BATCH_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow

# The header and the offsets of a single event, without and with a key.
_ONE = Struct("<BBHIIIBBHqIIIii")
_ONE_KEYED = Struct("<BBHIIIBBHqIIIiiii")

# Keys, values, headers, times, and whether it is urgent.
EventColumns: TypeAlias = tuple[
    Iterable[bytes | None],
    list[bytes],
    Iterable[tuple[tuple[str, bytes], ...]],
    Iterable[int],
    Iterable[bool],
]


def encode(events: Sequence[Event], *, compression: str = "none") -> bytes:
    """The payload that carries these events."""
    try:
        return _encode(
            [event.value for event in events],
            [event.timestamp_us for event in events],
            [event.key for event in events],
            [event.headers for event in events],
            [event.urgent for event in events],
            compression,
        )
    except MISUSES as error:
        raise LocalProtocolError(_misuse(events, error)) from None


def encode_one(
    key: bytes | None,
    value: bytes,
    headers: tuple[tuple[str, bytes], ...],
    timestamp_us: int,
    urgent: bool,
) -> bytes:
    """The same bytes as `encode` of this one event, in one step where it has no headers."""
    if headers:
        return encode([Event(key, value, headers, timestamp_us, urgent)])
    try:
        payload = _pack_one(key, value, timestamp_us, URGENT if urgent else 0)
    except MISUSES as error:
        event = Event(key, value, headers, timestamp_us, urgent)
        raise LocalProtocolError(_misuse([event], error)) from None
    if len(payload) > BATCH_BYTES_MAX:
        raise too_large(len(payload))
    return payload


def encode_values(
    values: Sequence[bytes], timestamp_us: int, *, compression: str = "none"
) -> bytes:
    """The payload of events that have a value and nothing else, all of the same time."""
    try:
        columns = Columns(timestamp_us, False, packed(values))
        return seal(columns, counted(len(values)), compression)
    except MISUSES as error:
        events = [Event(None, value, (), timestamp_us) for value in values]
        raise LocalProtocolError(_misuse(events, error)) from None


class Gathering:
    """Events on their way into one batch, none of them urgent.

    They are kept as the columns that they become: an object for each event would only be taken
    apart again.
    """

    __slots__ = ("_headers", "_keys", "times", "values")

    def __init__(self) -> None:
        # Whoever adds an event that has nothing else appends to these two.
        self.values: list[bytes] = []
        self.times: list[int] = []
        # Of those events that have any, by their place.
        self._keys: dict[int, bytes] = {}
        self._headers: dict[int, tuple[tuple[str, bytes], ...]] = {}

    def add(
        self,
        value: bytes,
        timestamp_us: int,
        key: bytes | None,
        headers: tuple[tuple[str, bytes], ...],
    ) -> None:
        if key is not None:
            self._keys[len(self.values)] = key
        if headers:
            self._headers[len(self.values)] = headers
        self.values.append(value)
        self.times.append(timestamp_us)

    def encode(self, compression: str) -> bytes:
        """The same bytes as `encode` of these events."""
        places = range(len(self.values))
        keys = [self._keys.get(place) for place in places] if self._keys else ()
        headers = [self._headers.get(place, ()) for place in places] if self._headers else ()
        try:
            return _encode(self.values, self.times, keys, headers, (), compression)
        except MISUSES as error:
            raise LocalProtocolError(_misuse(self._events(), error)) from None

    def _events(self) -> Iterable[Event]:
        for place, (value, time) in enumerate(zip(self.values, self.times, strict=True)):
            yield Event(self._keys.get(place), value, self._headers.get(place, ()), time)


class Batch:
    """A payload that has been checked, and whose events are built only when asked for."""

    __slots__ = ("_head", "_known", "count", "oldest_us", "payload", "urgent")

    def __init__(self, payload: Payload) -> None:
        self._head = head = checked_head(payload)
        self.payload = payload
        self.count = head.events
        self.oldest_us = head.oldest_us
        self.urgent = head.flags & URGENT != 0
        self._known = None if is_even(payload, head) else read(payload, head)

    def events(self) -> list[Event]:
        values, _, keys, _, headers, _ = self._parts
        if self.count == 1 and headers is None and keys is None:
            return [Event(None, bytes(values.data), (), self.oldest_us, self.urgent)]
        return list(map(Event, *self.columns()))

    def columns(self) -> EventColumns:
        """The fields of all events, in the order in which `Event` has them.

        Only the values are as many as there are events: what is the same of all has no end.
        """
        times, mixed = self._parts.times, self._parts.mixed
        return (
            self._key_list(),
            self.values(),
            self._header_list(),
            repeat(self.oldest_us) if times is None else times.tolist(),
            repeat(self.urgent) if mixed is None else booleans(mixed),
        )

    def values(self) -> list[bytes]:
        return slices(self._parts.values)

    def record_batch(self) -> pyarrow.RecordBatch:
        """The same batch as Arrow knows it, on the same memory (see `table.schema`)."""
        return table.record_batch(self._parts, self.count, self.oldest_us, self.urgent)

    @property
    def _parts(self) -> Parts:
        if self._known is None:
            self._known = read(self.payload, self._head)
        return self._known

    def _key_list(self) -> Iterable[bytes | None]:
        if self._parts.keys is None:
            return repeat(None)
        keys = slices(self._parts.keys)
        if self._parts.validity is None:
            return keys
        valid = booleans(self._parts.validity)
        return [key if known else None for key, known in zip(keys, valid, strict=False)]

    def _header_list(self) -> Iterable[tuple[tuple[str, bytes], ...]]:
        headers = self._parts.headers
        if headers is None:
            return repeat(())
        names = map(bytes.decode, slices(headers.names))
        pairs = tuple(zip(names, slices(headers.values), strict=True))
        return [pairs[start:end] for start, end in pairwise(headers.lists)]


def _pack_one(key: bytes | None, value: bytes, time: int, flags: int) -> bytes:
    size = len(value)
    # fmt: off
    if key is None:
        return _ONE.pack(
            VERSION, 0, 0, 1, 0, size + 8, flags, 0, 0, time, 0, 0, 0, 0, size
        ) + value
    flags |= KEYS
    keyed = len(key)
    return _ONE_KEYED.pack(
        VERSION, 0, 0, 1, 0, keyed + size + 16, flags, 0, 0, time, keyed, 0, 0, 0, keyed, 0, size
    ) + key + value
    # fmt: on


def _encode(
    values: Sequence[bytes],
    times: Sequence[int],
    keys: Sequence[bytes | None],
    headers: Sequence[tuple[tuple[str, bytes], ...]],
    urgent: Sequence[bool],
    compression: str,
) -> bytes:
    """Keys, headers and urgent flags may be left out, if no event has any."""
    count = counted(len(values))
    oldest_us, some_urgent, some_keys = min(times), any(urgent), keys.count(None) < len(keys)
    # In most batches the last event is not the oldest, and that is seen at once.
    is_one_time = times[-1] == oldest_us and times.count(oldest_us) == count
    columns = Columns(
        oldest_us,
        some_urgent,
        packed(values),
        b"" if is_one_time else pack(f"<{count}q", *times),
        packed([b"" if key is None else key for key in keys]) if some_keys else None,
        bitmap(key is not None for key in keys) if some_keys and None in keys else b"",
        packed_headers(headers) if any(headers) else None,
        bitmap(map(bool, urgent)) if some_urgent and not all(urgent) else b"",
    )
    return seal(columns, count, compression)


def _misuse(events: Iterable[object], error: Exception) -> str:
    """Which event cannot travel, and why. Only asked after encoding failed."""
    for number, event in enumerate(events):
        if not isinstance(event, Event):
            return f"event {number} is {type(event).__name__}; allowed is Event"
        why = _field_misuse(event.key, event.value, event.headers, event.timestamp_us)
        if why:
            return f"event {number}: {why}"
    return f"these events cannot become a batch: {error}"


def _field_misuse(key: object, value: object, headers: object, time: object) -> str:
    if not isinstance(value, bytes):
        return f"the value is {type(value).__name__}; allowed is bytes"
    if not isinstance(key, bytes | None):
        return f"the key is {type(key).__name__}; allowed is bytes or None"
    if not isinstance(time, int) or not -(2**63) <= time < 2**63:
        return f"the time {time!r} is not a 64-bit number of microseconds"
    if not _are_headers(headers):
        return "headers are a tuple of pairs of a name (UTF-8 text) and a value (bytes)"
    return ""


def _are_headers(headers: object) -> bool:
    try:
        return isinstance(headers, tuple) and all(
            isinstance(value, bytes) and isinstance(name.encode(), bytes) for name, value in headers
        )
    except (TypeError, ValueError, AttributeError):
        return False
