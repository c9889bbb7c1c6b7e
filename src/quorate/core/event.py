"""Events: what users publish and receive.

An event has a value, perhaps a key, headers, a time and an urgent flag (FIT-Broker 2013,
section 3.3.3; F11). Times are microseconds since the epoch and come from the caller, since
nothing in `core` reads a clock. An event is plain data: `core/batch.py` says how events
travel, and refuses those whose fields are not what their types say.
"""

import msgspec


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event. Header names may repeat, and their order is kept."""

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_us: int = 0
    urgent: bool = False
