"""Gathering what one turn produced into runs of consecutive sequence numbers."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from quorate.core.ids import Sequence
from quorate.core.limits import RUN_BATCHES_MAX

# A run is cut when its payloads reach this size, far below a frame's bound. Much smaller ones
# measured slower from end to end, larger ones no faster.
RUN_BYTES_MAX = 1024 * 1024

_Value = TypeVar("_Value")


def consecutive(
    items: Iterable[tuple[Sequence, _Value]],
) -> Iterator[tuple[Sequence, list[_Value]]]:
    """Cut (sequence, value) pairs, in the order given, into runs: first sequence and values."""
    first, values = 0, list[_Value]()
    for sequence, value in items:
        if values and (sequence != first + len(values) or len(values) >= RUN_BATCHES_MAX):
            yield first, values
            values = []
        if not values:
            first = sequence
        values.append(value)
    if values:
        yield first, values


def by_size(
    first: Sequence, payloads: list[bytes], bytes_max: int = RUN_BYTES_MAX
) -> Iterator[tuple[Sequence, list[bytes]]]:
    """Cut one run of payloads so that no part is larger than a frame comfortably takes."""
    if len(payloads) <= RUN_BATCHES_MAX and sum(map(len, payloads)) <= bytes_max:
        yield first, payloads
        return
    start, size = 0, 0
    for position, payload in enumerate(payloads):
        full = size + len(payload) > bytes_max or position - start >= RUN_BATCHES_MAX
        if full and position > start:
            yield first + start, payloads[start:position]
            start, size = position, 0
        size += len(payload)
    yield first + start, payloads[start:]
