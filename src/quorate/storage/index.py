"""A partition's index: where each payload stands, whose it is, its offset, and the chain behind it.

Batches go by their *number* in the partition here (0, 1, 2 and so on), since a column has an entry
for each; readers know them by the offsets of their events. Of four columns `places` has where the
payload of each batch stands, `offsets` the offset after it, `chains` the partition's chain after
it, and `runs` what consecutive batches of one decision have in common, so that deciding hundreds of
batches writes hundreds of entries without looking at any.

Whoever looks for an offset finds its run first, and then its batch within that run. So one search
has both, and reading on begins where the last reading ended.

The index is derived from the journal. What was appended since the last checkpoint is thrown away
when a replica starts, and applied again. Changes of earlier entries wait in memory (`_patches`)
for the next checkpoint, which has them, and go to the files behind it. In the files before, they
would outlive a crash that the checkpoint's counts do not know of: what is then replayed would be
taken for something that was there before, and the segment that has it for one that nobody needs.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import itemgetter
from struct import Struct
from typing import TypeAlias

import msgspec

from quorate.core.ids import DIGEST_BYTES, Digest, NodeId, Sequence
from quorate.core.ordering import Partition
from quorate.protocol.ordering.records import Placed
from quorate.protocol.ordering.value import CHAIN_START
from quorate.storage.columns import Column, Extent
from quorate.storage.files import Files
from quorate.storage.places import (
    PLACE_BYTES,
    Numbers,
    absent_count,
    events_of,
    little_endian,
    payload_bytes,
)

_OFFSET_BYTES = 8
_RUN = Struct("<QQQqQQ")
# A search looks at every so many, and reads as many at last.
_RUNS_READ = 64
_ENDS_READ = 512
_EMPTY = Extent(0, 0, 0)

# Consecutive batches of one publisher that were decided together: the first one's number in the
# partition, sequence number, publisher, time, and the first one's leaf and offset. A plain tuple,
# as it is made for every one that is read.
Run: TypeAlias = tuple[int, Sequence, NodeId, int, int, int]
_NUMBER: Callable[[Run], int] = itemgetter(0)
_TIME: Callable[[Run], int] = itemgetter(3)
_OFFSET: Callable[[Run], int] = itemgetter(5)


class IndexState(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint says about an index."""

    topic: int
    number: int
    # The group that writes here, and after which of its slots it began to.
    group: int
    since: int
    # The first batch that is kept, its offset, and the offset after the last one.
    start: int = 0
    start_offset: int = 0
    end_offset: int = 0
    bytes_held: int = 0
    places: Extent = _EMPTY
    offsets: Extent = _EMPTY
    chains: Extent = _EMPTY
    runs: Extent = _EMPTY
    # Of how many batches the payload is not here.
    absent: int = 0
    # Where payloads stand by number, whatever the files say.
    patches: dict[int, bytes] = {}
    # Where the replica started over; nothing that came before was ever here.
    begun: int = 0


class Index:
    """Batches `start` to `end` of one partition, by their numbers."""

    def __init__(self, files: Files, directory: str, state: IndexState, chunk_entries: int) -> None:
        self.partition = Partition(state.topic, state.number)
        self.group, self.since = state.group, state.since
        self.start, self._begun = state.start, state.begun
        self.start_offset, self.end_offset = state.start_offset, state.end_offset
        self.bytes_held, self.absent = state.bytes_held, state.absent
        stem = f"{directory}/partition-{state.topic}-{state.number}"
        self._places = Column(files, f"{stem}-places", PLACE_BYTES, state.places, chunk_entries)
        self._offsets = Column(
            files, f"{stem}-offsets", _OFFSET_BYTES, state.offsets, chunk_entries
        )
        self._chains = Column(files, f"{stem}-chains", DIGEST_BYTES, state.chains, chunk_entries)
        self._runs = Column(files, f"{stem}-runs", _RUN.size, state.runs, chunk_entries)
        self._patches = dict(state.patches)
        # The run that was read last; and a batch with its offset: whoever reads on begins there.
        self._hint = 0
        self._known = (state.start, state.start_offset)

    def begin_with(self, chain: Digest) -> None:
        """The chain before the first batch, which is not batch 0; nothing was appended yet."""
        self._chains.append(chain)

    def state_behind(self, number: int, offset: int) -> IndexState:
        """What an index of this partition looks like that begins later, with this batch."""
        places, chains, runs = (
            Extent(at, at, at) for at in (number, max(number - 1, 0), self._runs.end)
        )
        return IndexState(
            *self.partition,
            self.group,
            self.since,
            start=number,
            start_offset=offset,
            end_offset=offset,
            places=places,
            offsets=places,
            chains=chains,
            runs=runs,
            begun=number,
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._places, self._offsets, self._chains, self._runs

    @property
    def state(self) -> IndexState:
        places, offsets, chains, runs = (column.extent for column in self.columns)
        patches = {at: place for at, place in self._patches.items() if at >= self.start}
        return IndexState(
            *self.partition,
            self.group,
            self.since,
            self.start,
            self.start_offset,
            self.end_offset,
            self.bytes_held,
            places,
            offsets,
            chains,
            runs,
            self.absent,
            patches,
            self._begun,
        )

    @property
    def taken(self) -> int:
        """Before this offset there is nothing because retention took it.

        Of what came before it started over a replica knows nothing, until retention goes on from
        there: what is older went then too.
        """
        return self.start_offset if self.start > self._begun else 0

    @property
    def end(self) -> int:
        return self._places.end

    def append(self, time_us: int, batches: Iterable[tuple[Placed, bytes]]) -> None:
        """What was decided next, and where its payloads stand."""
        placed, places = zip(*batches, strict=True)
        runs, number = [], self.end
        for run, stand in zip(placed, places, strict=True):
            runs.append(_RUN.pack(number, run.first, run.publisher, time_us, run.leaf, run.offset))
            number += len(stand) // PLACE_BYTES
        self._runs.append(b"".join(runs))
        self._chains.append(b"".join([run.chains for run in placed]))
        events = events_of(b"".join([run.descriptors for run in placed]))
        ends = array("Q", accumulate(events, initial=self.end_offset))
        self.end_offset = ends[-1]
        self._offsets.append(little_endian(ends[1:]).tobytes())
        stand = b"".join(places)
        self._places.append(stand)
        self.bytes_held += payload_bytes(stand)
        self.absent += absent_count(stand)

    def number_of(self, offset: int) -> int:
        """The batch that has this offset, which is kept; the one behind the last, at the end."""
        known, its_offset = self._known
        if offset == its_offset:
            return known
        if offset == self.end_offset:
            return self.end
        self._hint, (run, *following) = self._find(_OFFSET, offset)
        low, high = max(run[0], self.start), following[0][0] if following else self.end
        if high - low > 1:
            low = _last(range(low, high, _ENDS_READ), lambda at: self.ends(at - 1, 1)[0], offset)
            low += bisect_right(self.ends(low, min(_ENDS_READ, high - low)), offset)
        return low

    def offset_of(self, number: int) -> int:
        """The first offset of this batch, which is between `start` and `end`."""
        known, offset = self._known
        if number == known:
            return offset
        if number == self.start:
            return self.start_offset
        offset = self.ends(number - 1, 1)[0]
        self._known = number, offset
        return offset

    def ends(self, number: int, count: int) -> Numbers:
        """The offset after each of so many batches."""
        return little_endian(array("Q", self._offsets.read(number, count)))

    def places(self, number: int, count: int) -> bytes:
        """Where the payloads of so many batches stand, end to end."""
        found = self._places.read(number, count)
        if not self._patches:
            return found
        patched = bytearray(found)
        for at in range(count):
            patch = self._patches.get(number + at)
            if patch is not None:
                patched[at * PLACE_BYTES : (at + 1) * PLACE_BYTES] = patch
        return bytes(patched)

    def move(self, number: int, places: bytes) -> bytes:
        """From now on, these payloads stand there; says where they stood."""
        count = len(places) // PLACE_BYTES
        before = self.places(number, count)
        for at in range(count):
            self._patches[number + at] = places[at * PLACE_BYTES : (at + 1) * PLACE_BYTES]
        self.bytes_held += payload_bytes(places) - payload_bytes(before)
        self._found(absent_count(before) - absent_count(places))
        return before

    def chains(self, number: int, count: int) -> bytes:
        """The chain before each of so many batches, end to end."""
        if number == 0:
            return CHAIN_START + self._chains.read(0, count - 1)
        return self._chains.read(number - 1, count)

    def runs_from(self, number: int) -> Iterator[Run]:
        """The run that has this batch, and those behind it."""
        at, runs = self._find(_NUMBER, number)
        while runs:
            # Whoever reads on begins in what was read last.
            self._hint = at
            yield from runs
            at += len(runs)
            runs = self._block(at)

    def offset_at(self, time_us: int) -> int:
        """The first offset that was decided then or later; times never decrease."""
        runs = range(self._runs.start, self._runs.end)
        at = bisect_left(runs, time_us, key=lambda at: _TIME(self._run(at)))
        if at == len(runs):
            return self.end_offset
        return max(self.start_offset, _OFFSET(self._run(runs[at])))

    @property
    def first_time_us(self) -> int | None:
        """When the first batch that is kept was decided, if there is one."""
        return _TIME(next(self.runs_from(self.start))) if self.start < self.end else None

    def trim(self, number: int, places: bytes) -> None:
        """Give up the payloads before this batch, which stood there."""
        self.bytes_held -= payload_bytes(places)
        self._found(absent_count(places))
        self.start, self.start_offset = number, self.offset_of(number)
        self._places.trim(number)
        self._offsets.trim(number)
        # Reading from here on begins with the chain before it.
        self._chains.trim(number - 1)
        self._runs.trim(self._find(_NUMBER, number)[0])

    def settle(self) -> None:
        """Write the patches into the files. A checkpoint must have them until these are synced."""
        for number, place in sorted(self._patches.items()):
            if number >= self.start:
                self._places.overwrite(number, place)
        self._patches.clear()

    def restore(self) -> None:
        self._places.restore(checked=False)
        for column in (self._offsets, self._chains, self._runs):
            column.restore()

    def _found(self, payloads: int) -> None:
        """So many are no longer absent; a checkpoint need not have said how many were."""
        self.absent = max(0, self.absent - payloads)

    def _find(self, key: Callable[[Run], int], wanted: int) -> tuple[int, list[Run]]:
        """Where the run that has this number or offset stands; and it, the next one, and some more.

        A block ends with the first run of the next one, so that only the last of all has no next.
        """
        at = max(self._hint, self._runs.start)
        runs = self._block(at)
        is_last = at + len(runs) == self._runs.end
        if not runs or wanted < key(runs[0]) or not (is_last or wanted < key(runs[-1])):
            blocks = range(self._runs.start, self._runs.end, _RUNS_READ - 1)
            at = _last(blocks, lambda at: key(self._run(at)), wanted)
            runs = self._block(at)
        skipped = bisect_right(runs, wanted, key=key) - 1
        return at + skipped, runs[skipped:]

    def _block(self, at: int) -> list[Run]:
        count = max(0, min(_RUNS_READ, self._runs.end - at))
        return list(_RUN.iter_unpack(self._runs.read(at, count)))

    def _run(self, at: int) -> Run:
        return _RUN.unpack(self._runs.read(at))


def _last(numbers: range, key: Callable[[int], int], wanted: int) -> int:
    """The last of these with no more than is wanted. The first one is known to have no more."""
    return numbers[bisect_right(numbers, wanted, lo=1, key=key) - 1]
