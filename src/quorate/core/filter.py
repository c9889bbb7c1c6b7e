"""Content filters of a subscription (F12, B6): by the start of the key and by headers.

An event matches when its key starts with the prefix and, for every header of the filter, it
has a header of that name with exactly that value. Replicas hold a filter against whole
batches, since a batch is what they vouch for: a batch passes when any of its events matches,
and the subscriber drops the rest. Two correct replicas always agree, because nothing but the
payload decides.

A filter spares work, it guards nothing, so a replica never works hard for one: batches that
are compressed, malformed or very long pass unread, and the subscriber sees for itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quorate.core.batch import Batch
from quorate.core.columns import compression_of
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.header import count_of

# A replica holds every event of a batch against a filter, so a filter may not be long.
KEY_PREFIX_BYTES_MAX = 4096
FILTER_HEADERS_MAX = 64
# Longer batches would keep a replica from its other work for too long.
FILTER_EVENTS_MAX = 10_000


class Described(Protocol):
    """What a filter looks at: of an event, or of a record of one."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]: ...


@dataclass(frozen=True, slots=True)
class Filter:
    """What one subscription wants. The empty filter wants everything."""

    key_prefix: bytes = b""
    headers: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.key_prefix) > KEY_PREFIX_BYTES_MAX or len(self.headers) > FILTER_HEADERS_MAX:
            raise LocalProtocolError(
                f"a filter with a key prefix of {len(self.key_prefix)} bytes and "
                f"{len(self.headers)} headers; allowed are up to {KEY_PREFIX_BYTES_MAX} bytes "
                f"and {FILTER_HEADERS_MAX} headers"
            )

    @property
    def is_empty(self) -> bool:
        return not self.key_prefix and not self.headers

    def matches(self, event: Described) -> bool:
        if self.key_prefix and not (event.key or b"").startswith(self.key_prefix):
            return False
        return all(wanted in event.headers for wanted in self.headers.items())

    def passes(self, payload: bytes) -> bool:
        """Whether the subscriber must get this batch. Never raises, whatever the payload is."""
        try:
            if (
                self.is_empty
                or count_of(payload) > FILTER_EVENTS_MAX
                or compression_of(payload) != "none"
            ):
                return True
            return any(map(self.matches, Batch(payload).events()))
        except RemoteProtocolError:
            return True
