"""A partition's index: where each payload stands, whose it is, and the chain at each offset.

Three columns. `places` has where the payload of each offset stands, `chains` the partition's chain
after it, and `runs` what consecutive batches of one decision have in common, so that deciding
hundreds of batches writes hundreds of entries without looking at any.

The index is derived from the journal. What was appended since the last checkpoint is thrown away
when a replica starts, and applied again. Changes of earlier entries wait in memory (`_patches`)
for the next checkpoint, which has them, and go to the files behind it. In the files before, they
would outlive a crash that the checkpoint's counts do not know of: what is then replayed would be
taken for something that was there before, and the segment that has it for one that nobody needs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from struct import Struct
from typing import TypeAlias

import msgspec

from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.ordering import Partition
from quorate.protocol.ordering.records import DIGEST_BYTES, Placed, Spot
from quorate.protocol.ordering.value import CHAIN_START
from quorate.storage.columns import Column, Extent
from quorate.storage.files import Files
from quorate.storage.places import PLACE_BYTES, Numbers, absent_count, payload_bytes, unpack

_RUN = Struct("<QQQqQ")
_OFFSET = itemgetter(0)
_RUNS_READ = 64
_EMPTY = Extent(0, 0, 0)

# Consecutive batches of one publisher that were decided together: the first one's offset and
# sequence number, publisher, time, and the first one's leaf. A plain tuple, as it is made for every
# one that is read.
Run: TypeAlias = tuple[int, Sequence, NodeId, int, int]


class IndexState(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint says about an index."""

    topic: int
    number: int
    # The group that writes here, and after which of its slots it began to.
    group: int
    since: int
    start: int = 0
    bytes_held: int = 0
    places: Extent = _EMPTY
    chains: Extent = _EMPTY
    runs: Extent = _EMPTY
    # Of how many offsets the payload is not here.
    absent: int = 0
    # Where payloads stand by offset, whatever the files say.
    patches: dict[int, bytes] = {}
    # Where the replica started over; nothing that came before was ever here.
    begun: int = 0


class Index:
    """Offsets `start` to `end` of one partition."""

    def __init__(self, files: Files, directory: str, state: IndexState, chunk_entries: int) -> None:
        self.partition = Partition(state.topic, state.number)
        self.group, self.since = state.group, state.since
        self.start, self._begun = state.start, state.begun
        self.bytes_held, self.absent = state.bytes_held, state.absent
        stem = f"{directory}/partition-{state.topic}-{state.number}"
        self._places = Column(files, f"{stem}-places", PLACE_BYTES, state.places, chunk_entries)
        self._chains = Column(files, f"{stem}-chains", DIGEST_BYTES, state.chains, chunk_entries)
        self._runs = Column(files, f"{stem}-runs", _RUN.size, state.runs, chunk_entries)
        self._patches = dict(state.patches)
        self._hint = 0

    def begin_with(self, chain: Digest) -> None:
        """The chain before the first offset, which is not 0; nothing was appended yet."""
        self._chains.append(chain)

    def state_behind(self, offset: int) -> IndexState:
        """What an index of this partition looks like that begins later, at this offset."""
        chains, runs = max(offset - 1, 0), self._runs.end
        return IndexState(
            *self.partition,
            self.group,
            self.since,
            start=offset,
            places=Extent(offset, offset, offset),
            chains=Extent(chains, chains, chains),
            runs=Extent(runs, runs, runs),
            begun=offset,
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._places, self._chains, self._runs

    @property
    def state(self) -> IndexState:
        places, chains, runs = (column.extent for column in self.columns)
        patches = {at: place for at, place in self._patches.items() if at >= self.start}
        return IndexState(
            *self.partition,
            self.group,
            self.since,
            self.start,
            self.bytes_held,
            places,
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
        return self.start if self.start > self._begun else 0

    @property
    def end(self) -> int:
        return self._places.end

    def append(self, time_us: int, batches: Iterable[tuple[Placed, bytes]]) -> None:
        """What was decided next, and where its payloads stand."""
        placed, places = zip(*batches, strict=True)
        pack = _RUN.pack
        self._runs.append(
            b"".join(
                [pack(run.offset, run.first, run.publisher, time_us, run.leaf) for run in placed]
            )
        )
        self._chains.append(b"".join([run.chains for run in placed]))
        stand = b"".join(places)
        self._places.append(stand)
        self.bytes_held += payload_bytes(stand)
        self.absent += absent_count(stand)

    def places(self, offset: int, count: int) -> bytes:
        """Where the payloads of so many batches stand, end to end."""
        found = self._places.read(offset, count)
        if not self._patches:
            return found
        patched = bytearray(found)
        for number in range(count):
            patch = self._patches.get(offset + number)
            if patch is not None:
                patched[number * PLACE_BYTES : (number + 1) * PLACE_BYTES] = patch
        return bytes(patched)

    def located(self, offset: int, count: int) -> tuple[Numbers, Numbers]:
        """Positions and lengths of so many payloads."""
        return unpack(self.places(offset, count))

    def move(self, offset: int, places: bytes) -> bytes:
        """From now on, these payloads stand there; says where they stood."""
        count = len(places) // PLACE_BYTES
        before = self.places(offset, count)
        for number in range(count):
            place = places[number * PLACE_BYTES : (number + 1) * PLACE_BYTES]
            self._patches[offset + number] = place
        self.bytes_held += payload_bytes(places) - payload_bytes(before)
        self._found(absent_count(before) - absent_count(places))
        return before

    def chain(self, offset: int) -> Digest:
        """The chain before this offset, which is between `start` and `end`."""
        return self.chains(offset, 1)

    def chains(self, offset: int, count: int) -> bytes:
        """The chain before each of so many offsets, end to end."""
        if offset == 0:
            return CHAIN_START + self._chains.read(0, count - 1)
        return self._chains.read(offset - 1, count)

    def runs_from(self, offset: int) -> Iterator[Run]:
        """The run that has this offset, and those behind it."""
        number, runs = self._find(offset)
        while runs:
            # Whoever reads on begins in what was read last.
            self._hint = number
            yield from runs
            number += len(runs)
            runs = self._block(number)

    def spot(self, offset: int) -> Spot:
        """Whose batch stands at this offset, which is kept, and its leaf in the order log."""
        _, (run, *_) = self._find(offset)
        start, first, publisher, time_us, leaf = run
        return Spot(publisher, first + offset - start, time_us, leaf + offset - start)

    def offset_at(self, time_us: int) -> int:
        """The first offset that was decided then or later; times never decrease."""
        numbers = range(self._runs.start, self._runs.end)
        number = bisect_left(numbers, time_us, key=lambda number: self._run(number)[3])
        if number == len(numbers):
            return self.end
        return max(self.start, self._run(numbers[number])[0])

    @property
    def first_time_us(self) -> int | None:
        """When the first batch that is kept was decided, if there is one."""
        return next(self.runs_from(self.start))[3] if self.start < self.end else None

    def trim(self, offset: int, places: bytes) -> None:
        """Give up the payloads before this offset, which stood there."""
        self.bytes_held -= payload_bytes(places)
        self._found(absent_count(places))
        self.start = offset
        self._places.trim(offset)
        # Reading from here on begins with the chain before it.
        self._chains.trim(offset - 1)
        self._runs.trim(self._find(offset)[0])

    def settle(self) -> None:
        """Write the patches into the files. A checkpoint must have them until these are synced."""
        for offset, place in sorted(self._patches.items()):
            if offset >= self.start:
                self._places.overwrite(offset, place)
        self._patches.clear()

    def restore(self) -> None:
        self._places.restore(checked=False)
        self._chains.restore()
        self._runs.restore()

    def _found(self, payloads: int) -> None:
        """So many are no longer absent; a checkpoint need not have said how many were."""
        self.absent = max(0, self.absent - payloads)

    def _find(self, offset: int) -> tuple[int, list[Run]]:
        """The number of the run that has this offset; and it, and some of those behind it."""
        number = max(self._hint, self._runs.start)
        runs = self._block(number)
        if not runs or not runs[0][0] <= offset < runs[-1][0]:
            numbers = range(self._runs.start, self._runs.end)
            behind = bisect_right(numbers, offset, key=lambda number: self._run(number)[0])
            number = numbers.start + behind - 1
            return number, self._block(number)
        skipped = bisect_right(runs, offset, key=_OFFSET) - 1
        return number + skipped, runs[skipped:]

    def _block(self, number: int) -> list[Run]:
        count = max(0, min(_RUNS_READ, self._runs.end - number))
        return list(_RUN.iter_unpack(self._runs.read(number, count)))

    def _run(self, number: int) -> Run:
        return _RUN.unpack(self._runs.read(number))
