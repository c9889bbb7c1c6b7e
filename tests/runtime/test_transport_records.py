"""Records without a socket: tags, segmentation, and the receive buffer's bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.codec import LENGTH
from quorate.core.errors import AuthenticationError, RemoteProtocolError
from quorate.core.names import MAC_ALGORITHMS
from quorate.crypto.macs import numbered_mac
from quorate.runtime.records import (
    DESK_BYTES,
    LONG_RECORD_BYTES,
    RECORD_BYTES_MAX,
    RECORD_BYTES_USUAL,
    Inbox,
    TaggedRecords,
    desk,
    grouped,
)

ONE, OTHER = b"1" * 32, b"2" * 32


def a_pair(algorithm: str = MAC_ALGORITHMS[0]) -> tuple[TaggedRecords, TaggedRecords]:
    return (
        TaggedRecords(
            outbound=numbered_mac(ONE, algorithm), inbound=numbered_mac(OTHER, algorithm)
        ),
        TaggedRecords(
            outbound=numbered_mac(OTHER, algorithm), inbound=numbered_mac(ONE, algorithm)
        ),
    )


def sealed(records: TaggedRecords, *frames: bytes) -> memoryview:
    """A record as `open` takes it: without its length."""
    return memoryview(b"".join(records.seal(frames, sum(map(len, frames)))))[LENGTH.size :]


@pytest.mark.parametrize("algorithm", MAC_ALGORITHMS)
def test_records_open_in_the_order_in_which_they_were_sealed(algorithm: str) -> None:
    here, there = a_pair(algorithm)
    assert bytes(there.open(sealed(here, b"first", b"second"))) == b"firstsecond"
    assert bytes(there.open(sealed(here, b"third"))) == b"third"
    assert bytes(here.open(sealed(there, b"answer"))) == b"answer"


def test_a_record_opens_once() -> None:
    here, there = a_pair()
    record = sealed(here, b"pay me")
    there.open(record)
    with pytest.raises(AuthenticationError, match="replayed"):
        there.open(record)


def test_a_record_that_overtakes_another_is_refused() -> None:
    here, there = a_pair()
    sealed(here, b"lost on the way")
    with pytest.raises(AuthenticationError, match="record 0"):
        there.open(sealed(here, b"second"))


def test_a_record_is_refused_by_its_own_maker() -> None:
    here, _ = a_pair()
    with pytest.raises(AuthenticationError):
        here.open(sealed(here, b"reflected"))


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_record_with_any_bit_flipped_is_refused(body: bytes, data: st.DataObject) -> None:
    here, there = a_pair()
    record = bytearray(sealed(here, body))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    with pytest.raises(AuthenticationError):
        there.open(memoryview(record))


RECORDS = st.lists(st.integers(1, 3 * LONG_RECORD_BYTES) | st.integers(1, 3000), max_size=20)


@given(RECORDS, RECORDS, st.integers(0, 2**32))
def test_links_that_share_a_desk_get_their_own_records_whatever_the_segments(
    here: list[int], there: list[int], seed: int
) -> None:
    dice, shared = random.Random(seed), desk()
    readers = [Reader(shared, sizes, dice) for sizes in (here, there)]
    while waiting := [reader for reader in readers if reader.wire]:
        dice.choice(waiting).turn()
    for reader in readers:
        assert reader.found == reader.bodies
        assert reader.inbox.held_bytes == 0


class Reader:
    """One link's end: records of random content, arriving in random pieces."""

    def __init__(self, shared: memoryview, sizes: list[int], dice: random.Random) -> None:
        self.bodies = [dice.randbytes(size) for size in sizes]
        self.wire = b"".join(LENGTH.pack(len(body)) + body for body in self.bodies)
        self.inbox = Inbox(shared)
        self.found: list[bytes] = []
        self._dice = dice

    def turn(self) -> None:
        space = self.inbox.space()
        pieces = self._dice.choice((1, 5, 4000, len(self.wire)))
        count = min(self._dice.randint(1, pieces), len(space), len(self.wire))
        space[:count] = self.wire[:count]
        self.wire = self.wire[count:]
        self.inbox.filled(count)
        while (record := self.inbox.take(0)) is not None:
            self.found.append(bytes(record))
        self.inbox.clear()


def test_an_inbox_holds_just_the_long_record_that_is_under_way_and_then_nothing() -> None:
    inbox, body = Inbox(desk()), bytes(3 * DESK_BYTES)
    wire = memoryview(LENGTH.pack(len(body)) + body)
    largest = 0
    while wire:
        space = inbox.space()
        count = min(len(space), len(wire))
        space[:count] = wire[:count]
        wire = wire[count:]
        inbox.filled(count)
        record = inbox.take(0)
        inbox.clear()
        largest = max(largest, inbox.held_bytes)
    assert record is not None
    assert len(record) == len(body)
    assert largest == len(body) + LENGTH.size
    assert inbox.held_bytes == 0


@pytest.mark.parametrize("length", [0, RECORD_BYTES_MAX + 1, 2**32 - 1])
def test_a_record_outside_the_bounds_is_refused_at_its_length(length: int) -> None:
    inbox = Inbox(desk())
    inbox.space()[: LENGTH.size] = LENGTH.pack(length)
    inbox.filled(LENGTH.size)
    with pytest.raises(RemoteProtocolError, match=f"record of {length} bytes"):
        inbox.take(16)


@given(st.lists(st.integers(1, 2 * RECORD_BYTES_USUAL), max_size=12))
def test_frames_are_grouped_in_order_into_records_of_usual_size(sizes: list[int]) -> None:
    frames = [bytes(size) for size in sizes]
    groups = list(grouped(frames))
    assert [frame for group, _ in groups for frame in group] == frames
    for group, group_bytes in groups:
        assert group_bytes == sum(map(len, group))
        assert group_bytes <= RECORD_BYTES_USUAL or len(group) == 1
