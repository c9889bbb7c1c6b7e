"""Payloads out of the journal, with as few reads as their places allow."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from quorate.protocol.ordering.records import DIGEST_BYTES, Spot, Stretch
from quorate.storage.index import Index, Run
from quorate.storage.places import NOWHERE
from quorate.storage.segments import Segments

# A read is worth a copy of what stands between two payloads (heads of frames, say) up to here.
_BETWEEN_BYTES_MAX = 4096
# Slicing a stretch that fits into a processor's cache is faster than reading more at once.
_STRETCH_BYTES_MAX = 512 * 1024
# Places of so many batches are looked up at a time.
_PLACES_READ_MIN, _PLACES_READ = 16, 1024


def payloads_from(segments: Segments, index: Index, offset: int, bytes_max: int) -> list[bytes]:
    """At least one payload if it is here, and as many as fit into so many bytes."""
    payloads: list[bytes] = []
    while offset < index.end:
        count = min(_likely_count(index, bytes_max), index.end - offset)
        positions, lengths = index.located(offset, count)
        here = positions.index(NOWHERE) if NOWHERE in positions else count
        fitting = bisect_right(list(accumulate(lengths[:here])), bytes_max)
        taken = min(here, max(fitting, 0 if payloads else 1))
        payloads += gather(segments, positions[:taken], lengths[:taken])
        if taken < count:
            break
        offset, bytes_max = offset + taken, bytes_max - sum(lengths)
    return payloads


def stretches(index: Index, offset: int, payloads: list[bytes]) -> list[Stretch]:
    """The payloads from this offset on, run by run."""
    found: list[Stretch] = []
    if not payloads:
        return found
    end = offset + len(payloads)
    chains = index.chains(offset, len(payloads) + 1)
    for (start, first, publisher, time_us, _), run_end in _bounded(index.runs_from(offset), end):
        at = max(start, offset)
        low, high = at - offset, run_end - offset
        before = chains[low * DIGEST_BYTES : (low + 1) * DIGEST_BYTES]
        after = chains[(low + 1) * DIGEST_BYTES : (high + 1) * DIGEST_BYTES]
        sequence = first + at - start
        found.append(Stretch(publisher, at, sequence, time_us, before, after, payloads[low:high]))
    return found


def spots(index: Index, offset: int, end: int) -> list[tuple[int, Spot]]:
    """Whose batches stand there, run by run: how many, and the spot of the first of them."""
    found: list[tuple[int, Spot]] = []
    for (start, first, publisher, time_us, leaf), run_end in _bounded(index.runs_from(offset), end):
        at = max(start, offset)
        spot = Spot(publisher, first + at - start, time_us, leaf + at - start)
        found.append((run_end - at, spot))
    return found


def surplus_end(index: Index, bytes_max: int, absent_bytes: int = 0) -> int:
    """Up to where payloads must go if no more than so many bytes shall stay.

    Those that are not here count for so many bytes each.
    """
    held = index.bytes_held + index.absent * absent_bytes
    offset, excess = index.start, held - bytes_max
    while excess > 0 and offset < index.end:
        places = index.located(offset, min(_PLACES_READ, index.end - offset))
        for position, length in zip(*places, strict=True):
            if excess > 0:
                offset += 1
                excess -= absent_bytes if position == NOWHERE else length
    return offset


def gather(segments: Segments, positions: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """The payloads at these positions; neighbours are read together and sliced."""
    payloads: list[bytes] = []
    for low, high in _stretches(segments, positions, lengths):
        start = positions[low]
        data = segments.read(start, positions[high - 1] + lengths[high - 1] - start)
        for at, length in zip(positions[low:high], lengths[low:high], strict=True):
            payloads.append(data[at - start : at - start + length])
    return payloads


def _likely_count(index: Index, bytes_max: int) -> int:
    """How many batches might fit, going by their average size."""
    average = index.bytes_held // (index.end - index.start) + 1
    return max(_PLACES_READ_MIN, min(bytes_max // average + 1, _PLACES_READ))


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
    """The runs before this offset, and their ends: each ends where the next one begins."""
    last = next(runs)
    for run in runs:
        if run[0] >= end:
            break
        yield last, run[0]
        last = run
    yield last, end
