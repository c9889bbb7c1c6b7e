"""Records without a socket: tags, segmentation, and the receive buffer's bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.codec import LENGTH
from quorate.core.errors import AuthenticationError, RemoteProtocolError
from quorate.core.names import MAC_ALGORITHMS
from quorate.crypto.macs import Mac
from quorate.runtime.records import (
    INBOX_BYTES_USUAL,
    RECORD_BYTES_MAX,
    RECORD_BYTES_USUAL,
    Inbox,
    TaggedRecords,
    grouped,
)

ONE, OTHER = b"1" * 32, b"2" * 32


def a_pair(algorithm: str = "blake3") -> tuple[TaggedRecords, TaggedRecords]:
    return (
        TaggedRecords(outbound=Mac(ONE, algorithm), inbound=Mac(OTHER, algorithm)),
        TaggedRecords(outbound=Mac(OTHER, algorithm), inbound=Mac(ONE, algorithm)),
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


@given(st.lists(st.binary(min_size=1, max_size=3000), max_size=30), st.integers(0, 2**32))
def test_an_inbox_hands_out_whole_records_whatever_the_segments(
    bodies: list[bytes], seed: int
) -> None:
    wire = b"".join(LENGTH.pack(len(body)) + body for body in bodies)
    assert read_back(wire, random.Random(seed)) == bodies


def read_back(wire: bytes, dice: random.Random, segment_bytes_max: int = 4000) -> list[bytes]:
    inbox, found, at = Inbox(), [], 0
    while at < len(wire):
        space = inbox.space()
        count = min(dice.randint(1, segment_bytes_max), len(space), len(wire) - at)
        space[:count] = wire[at : at + count]
        inbox.filled(count)
        at += count
        while (record := inbox.take(0)) is not None:
            found.append(bytes(record))
        inbox.rewind()
    return found


def test_an_inbox_grows_for_a_long_record_and_shrinks_after_it() -> None:
    inbox, body = Inbox(), bytes(3 * INBOX_BYTES_USUAL)
    wire = memoryview(LENGTH.pack(len(body)) + body)
    largest = 0
    while wire:
        space = inbox.space()
        largest = max(largest, len(space))
        count = min(len(space), len(wire))
        space[:count] = wire[:count]
        wire = wire[count:]
        inbox.filled(count)
        record = inbox.take(0)
        inbox.rewind()
    assert record is not None
    assert len(record) == len(body)
    assert largest <= len(body) + LENGTH.size
    assert len(inbox.space()) == INBOX_BYTES_USUAL


@pytest.mark.parametrize("length", [0, RECORD_BYTES_MAX + 1, 2**32 - 1])
def test_a_record_outside_the_bounds_is_refused_at_its_length(length: int) -> None:
    inbox = Inbox()
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
