"""Offsets count events: whatever offset somebody asks for, there is a batch that covers it."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.core.batch import Batch
from quorate.core.ordering import Partition
from quorate.protocol.ordering.records import Decided, Held, Placed
from quorate.storage.files import Files
from quorate.storage.index import Index, IndexState
from quorate.storage.places import PLACE_BYTES, events_of, pack_run
from quorate.storage.store import DiskStore
from stores import batch, described, hashed, text_of

PUBLISHER, PARTITION = 3, Partition(7, 0)
MILLION = 1_000_000

# Events of batches that are decided together; or a restart; or a part that retention takes.
steps = st.lists(
    st.one_of(
        st.lists(st.integers(1, 5), min_size=1, max_size=6), st.just("restart"), st.floats(0, 1)
    ),
    min_size=1,
    max_size=12,
)


def opened(directory: Path) -> DiskStore:
    return DiskStore(directory, fsync="never", chunk_entries=8, segment_bytes=1000, reserve_bytes=0)


@pytest.mark.usefixtures("no_waiting")
@given(steps)
@settings(max_examples=60)
def test_every_offset_that_is_kept_is_read_with_the_batch_that_covers_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[int] | str | float]
) -> None:
    directory = tmp_path_factory.mktemp("store")
    store, offsets, start, slots = opened(directory), [0], 0, 0
    for step in steps:
        if isinstance(step, list):
            slots += 1
            store.append(decided_next(slots, offsets, step))
            offsets += list(accumulate(step, initial=offsets[-1]))[1:]
        elif isinstance(step, float):
            offset = round(step * offsets[-1])
            start = max(start, *(each for each in offsets if each <= offset))
            store.trim(PARTITION, offset)
            store.clean()
        else:
            store.close()
            store = opened(directory)
        assert store.bounds(PARTITION) == (start, offsets[-1])
        for offset in range(offsets[-1] + 1):
            number = max(at for at, each in enumerate(offsets) if each <= offset)
            stretches = store.read(PARTITION, offset, 1)
            if not start <= offset < offsets[-1]:
                assert stretches == []
                continue
            (stretch,) = stretches
            assert [stretch.offset, stretch.end] == offsets[number : number + 2]
            assert stretch.first == number + 1
            assert text_of(stretch.payloads[0]) == b"%d" % number
    store.close()


def decided_next(slot: int, offsets: list[int], events: list[int]) -> list[Held | Decided]:
    """The next batches, each with the number that it has in the partition as its text."""
    numbers = range(len(offsets) - 1, len(offsets) - 1 + len(events))
    chains = b"".join(hashed("chain", number) for number in numbers)
    descriptors = b"".join(map(described, events))
    payloads = [batch(b"%d" % number, each) for number, each in zip(numbers, events, strict=True)]
    assert [Batch(payload).count for payload in payloads] == events
    line = (PUBLISHER, *PARTITION, numbers.start + 1)
    placed = Placed(*line, offsets[-1], numbers.start, descriptors, chains, chains)
    return [Held(*line, payloads), Decided(0, slot, 1000 + slot, b"value", [placed])]


@given(st.integers(0, 2**40), st.lists(st.integers(1, 2**20), min_size=1))
def test_events_are_counted_as_the_protocol_counts_them(offset: int, events: list[int]) -> None:
    descriptors = b"".join(map(described, events))
    placed = Placed(PUBLISHER, *PARTITION, 1, offset, 0, descriptors, b"", b"")
    assert list(events_of(descriptors)) == events
    assert list(accumulate(events, initial=offset)) == placed.offsets


# What a search costs


@pytest.fixture(scope="module", params=[1, 4096])
def large(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[DiskStore]:
    """A million batches of three events, so many of which were decided together."""
    directory = tmp_path_factory.mktemp("large")
    store = DiskStore(directory, reserve_bytes=0)
    (frame,) = store._journal.append([Held(PUBLISHER, *PARTITION, 1, [batch(b"each", 3)])])
    assert frame.end > frame.payloads_at
    place = pack_run(frame.payloads_at, [frame.end - frame.payloads_at])
    index = store._derived.indexes[PARTITION] = Index(
        store._files, f"{directory}/index", IndexState(*PARTITION, group=0, since=0), 65_536
    )
    together: int = request.param
    places, descriptors, hashes = (each * together for each in (place, described(3), bytes(32)))
    for first in range(0, MILLION, 4096):
        placed = [
            Placed(PUBLISHER, *PARTITION, at + 1, 3 * at, at, descriptors, hashes, hashes)
            for at in range(first, first + 4096, together)
        ]
        index.append(first, [(each, places) for each in placed])
    for column in index.columns:
        column.flush()
    assert len(index.places(0, 1)) == PLACE_BYTES
    yield store
    store.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all reads of files."""
    lengths, really = list[int](), Files.read

    def noted(files: Files, path: str, length: int, at: int) -> bytes:
        lengths.append(length)
        return really(files, path, length, at)

    monkeypatch.setattr(Files, "read", noted)
    return lengths


# They are far apart, so that nothing is known from what was asked before.
FAR_APART = (2_000_000, 7, 3 * MILLION, 1_234_567, 65_536 * 3 - 1, 2_999_999, 0)
QUESTIONS: list[Callable[[DiskStore, int], object]] = [
    lambda store, offset: store.read(PARTITION, offset, 1),
    lambda store, offset: store.spot(PARTITION, offset),
    lambda store, offset: store.chain(PARTITION, offset),
    lambda store, offset: store.behind(PARTITION, offset, -1000),
    lambda store, offset: store.offset_at(PARTITION, offset // 3),
]


@pytest.mark.parametrize("ask", QUESTIONS, ids=["read", "spot", "chain", "behind", "offset_at"])
def test_finding_one_of_a_million_batches_takes_few_reads(
    large: DiskStore, reads: list[int], ask: Callable[[DiskStore, int], object]
) -> None:
    for offset in FAR_APART:
        reads.clear()
        ask(large, offset)
        # One of them is that of the payload itself.
        assert len(reads) <= 25 + 1
        assert sum(reads) < 32 * 1024


def test_one_of_a_million_batches_is_found_where_it_is(large: DiskStore) -> None:
    for offset in FAR_APART:
        number = offset // 3
        (stretch,) = large.read(PARTITION, offset, 1)
        assert (stretch.offset, stretch.first) == (3 * number, number + 1)
        assert large.behind(PARTITION, offset, -1000) == max(0, 3 * (number - 1000))
        spot = large.spot(PARTITION, offset)
        assert spot is not None
        assert (spot.sequence, spot.offset, spot.end) == (number + 1, 3 * number, 3 * number + 3)


def test_reading_on_does_not_search(large: DiskStore, reads: list[int]) -> None:
    for at in (1_500_000, 3 * MILLION):
        assert large.read(PARTITION, at, 1)
        for offset in range(at + 3, at + 300, 3):
            reads.clear()
            assert large.read(PARTITION, offset, 1)[0].offset == offset
            assert len(reads) <= 7
