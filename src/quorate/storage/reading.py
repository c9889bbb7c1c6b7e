"""Payloads out of the journal, with as few reads as their places allow."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from quorate.core.ids import DIGEST_BYTES
from quorate.protocol.ordering.records import Spot, Stretch
from quorate.storage.index import Index, Run
from quorate.storage.places import NOWHERE, unpack
from quorate.storage.segments import Segments

# A read is worth a copy of what stands between two payloads (heads of frames, say) up to here.
_BETWEEN_BYTES_MAX = 4096
# Slicing a stretch that fits into a processor's cache is faster than reading more at once.
_STRETCH_BYTES_MAX = 512 * 1024
# Places of so many batches are looked up at a time.
_PLACES_READ_MIN, _PLACES_READ = 16, 1024


def payloads_from(segments: Segments, index: Index, number: int, bytes_max: int) -> list[bytes]:
    """At least one payload if it is here, and as many as fit into so many bytes."""
    payloads: list[bytes] = []
    while number < index.end:
        # Of so many batches as might fit, going by their average size.
        average = index.bytes_held // (index.end - index.start) + 1
        likely = max(_PLACES_READ_MIN, min(bytes_max // average + 1, _PLACES_READ))
        count = min(likely, index.end - number)
        positions, lengths = unpack(index.places(number, count))
        here = positions.index(NOWHERE) if NOWHERE in positions else count
        fitting = bisect_right(list(accumulate(lengths[:here])), bytes_max)
        taken = min(here, max(fitting, 0 if payloads else 1))
        payloads += gather(segments, positions[:taken], lengths[:taken])
        if taken < count:
            break
        number, bytes_max = number + taken, bytes_max - sum(lengths)
    return payloads


def stretches(index: Index, number: int, payloads: list[bytes]) -> list[Stretch]:
    """The payloads from this batch on, run by run."""
    found: list[Stretch] = []
    if not payloads:
        return found
    end, offset = number + len(payloads), index.offset_of(number)
    chains = index.chains(number, len(payloads) + 1)
    for run, run_end in _bounded(index.runs_from(number), end):
        start, first, publisher, time_us, _, start_offset = run
        at = max(start, number)
        low, high = at - number, run_end - number
        before = chains[low * DIGEST_BYTES : (low + 1) * DIGEST_BYTES]
        after = chains[(low + 1) * DIGEST_BYTES : (high + 1) * DIGEST_BYTES]
        found.append(
            Stretch(
                publisher, max(start_offset, offset), first + at - start, time_us, before, after,
                payloads[low:high],
            )
        )  # fmt: skip
    # Whoever reads on begins there.
    index.offset_of(end)
    return found


def spots(index: Index, number: int, end: int) -> list[tuple[int, Spot]]:
    """Whose batches stand there, run by run: how many, and the spot of the first of them."""
    found: list[tuple[int, Spot]] = []
    offset, ends = index.offset_of(number), index.ends(number, end - number)
    for run, run_end in _bounded(index.runs_from(number), end):
        start, first, publisher, time_us, leaf, start_offset = run
        at = max(start, number)
        spot = Spot(
            publisher, first + at - start, time_us, leaf + at - start, max(start_offset, offset),
            ends[at - number],
        )  # fmt: skip
        found.append((run_end - at, spot))
    return found


def surplus_end(index: Index, bytes_max: int, absent_bytes: int = 0) -> int:
    """Up to which batch payloads must go if no more than so many bytes shall stay.

    Those that are not here count for so many bytes each.
    """
    held = index.bytes_held + index.absent * absent_bytes
    number, excess = index.start, held - bytes_max
    while excess > 0 and number < index.end:
        places = unpack(index.places(number, min(_PLACES_READ, index.end - number)))
        for position, length in zip(*places, strict=True):
            if excess > 0:
                number += 1
                excess -= absent_bytes if position == NOWHERE else length
    return number


def gather(segments: Segments, positions: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """The payloads at these positions; neighbours are read together and sliced."""
    payloads: list[bytes] = []
    for low, high in _stretches(segments, positions, lengths):
        start = positions[low]
        data = segments.read(start, positions[high - 1] + lengths[high - 1] - start)
        for at, length in zip(positions[low:high], lengths[low:high], strict=True):
            payloads.append(data[at - start : at - start + length])
    return payloads


def _stretches(
    segments: Segments, positions: Sequence[int], lengths: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Ranges of places that are near each other, in order, and in one segment."""
    low = 0
    start = end = segment_end = -1
    for number, (position, length) in enumerate(zip(positions, lengths, strict=True)):
        near = end <= position <= end + _BETWEEN_BYTES_MAX and position < segment_end
        if not near or position + length - start > _STRETCH_BYTES_MAX:
            if number > low:
                yield low, number
            low, start = number, position
            segment_end = segments.end_of(position)
        end = position + length
    if low < len(positions):
        yield low, len(positions)


def _bounded(runs: Iterator[Run], end: int) -> Iterator[tuple[Run, int]]:
    """The runs before this batch, and their ends: each ends where the next one begins."""
    last = next(runs)
    for run in runs:
        if run[0] >= end:
            break
        yield last, run[0]
        last = run
    yield last, end
