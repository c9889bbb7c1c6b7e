"""Where payloads stand in the journal: position and length, packed many at a time.

A packed place has two unsigned 64-bit numbers, little-endian, so that many of them are one array
and no Python runs per payload. A payload that this replica does not have stands nowhere: all ones
as its position, and no length.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from struct import Struct
from typing import TypeAlias

from quorate.core.header import DESCRIPTOR_BYTES

PLACE_BYTES = 16
# Which of the 32-bit words of descriptors that are laid end to end say how many events there are.
_EVENTS = slice(1, None, DESCRIPTOR_BYTES // 4)
NOWHERE = 2**64 - 1
_PLACE = Struct("<QQ")
ABSENT = _PLACE.pack(NOWHERE, 0)
_NOWHERE = ABSENT[:8]

if sys.version_info >= (3, 12):
    Numbers: TypeAlias = array[int]
else:
    Numbers: TypeAlias = "array[int]"


def pack_run(position: int, lengths: Sequence[int]) -> bytes:
    """Payloads that stand back to back, the first one here."""
    if len(lengths) == 1:
        return _PLACE.pack(position, lengths[0])
    both = array("Q", bytes(PLACE_BYTES * len(lengths)))
    both[0::2] = array("Q", list(accumulate(lengths, initial=position))[:-1])
    both[1::2] = array("Q", lengths)
    return little_endian(both).tobytes()


def unpack(places: bytes) -> tuple[Numbers, Numbers]:
    """Positions and lengths."""
    both = array("Q", places)
    little_endian(both)
    return both[0::2], both[1::2]


def events_of(descriptors: bytes) -> Numbers:
    """How many events each of these batches has, by their descriptors."""
    return little_endian(array("I", descriptors)[_EVENTS])


def present(places: bytes) -> Iterable[tuple[int, int]]:
    """Position and length of each payload that is here."""
    positions, lengths = unpack(places)
    pairs = zip(positions, lengths, strict=True)
    if NOWHERE not in positions:
        return pairs
    return [pair for pair in pairs if pair[0] != NOWHERE]


def payload_bytes(places: bytes) -> int:
    if len(places) == PLACE_BYTES:
        return _PLACE.unpack(places)[1]  # type: ignore[no-any-return]
    return sum(unpack(places)[1])


def absent_count(places: bytes) -> int:
    """How many of the payloads are not here."""
    return unpack(places)[0].count(NOWHERE) if _NOWHERE in places else 0


def is_absent(places: bytes) -> bool:
    """Whether none of the payloads is here."""
    return places == ABSENT * (len(places) // PLACE_BYTES)


def absent_runs(places: bytes) -> list[tuple[int, int]]:
    """Which of the places are nowhere, as ranges of their numbers."""
    runs: list[tuple[int, int]] = []
    if _NOWHERE not in places:
        return runs
    if is_absent(places):
        return [(0, len(places) // PLACE_BYTES)]
    for number, position in enumerate(unpack(places)[0]):
        if position != NOWHERE:
            continue
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs


def little_endian(numbers: Numbers) -> Numbers:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
