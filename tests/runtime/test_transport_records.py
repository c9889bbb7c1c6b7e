"""Records without a socket: tags, segmentation, and the receive buffer's bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.bulk import Bulk, decode_bulk, encode_bulk
from quorate.core.codec import LENGTH, Frame
from quorate.core.errors import AuthenticationError, RemoteProtocolError
from quorate.core.header import HEADER_BYTES
from quorate.core.names import MAC_ALGORITHMS
from quorate.core.ordering import Append
from quorate.crypto.digests import digest
from quorate.crypto.macs import TAG_BYTES, numbered_mac
from quorate.runtime.records import (
    DESK_BYTES,
    LONG_RECORD_BYTES,
    RECORD_BYTES_MAX,
    RECORD_BYTES_USUAL,
    BareRecords,
    Desk,
    Inbox,
    TaggedRecords,
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
    dice, shared = random.Random(seed), Desk()
    readers = [Reader(shared, sizes, dice) for sizes in (here, there)]
    while waiting := [reader for reader in readers if reader.wire]:
        dice.choice(waiting).turn()
    for reader in readers:
        assert reader.found == reader.bodies
        assert reader.inbox.held_bytes == 0


class Reader:
    """One link's end: records of random content, arriving in random pieces."""

    def __init__(self, shared: Desk, sizes: list[int], dice: random.Random) -> None:
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
        while (taken := self.inbox.take(0)) is not None:
            record, is_bulk = taken
            assert not is_bulk
            self.found.append(bytes(record))
        self.inbox.clear()


def test_an_inbox_holds_just_the_long_record_that_is_under_way_and_then_nothing() -> None:
    inbox, body = Inbox(Desk()), bytes(3 * DESK_BYTES)
    wire = memoryview(LENGTH.pack(len(body)) + body)
    largest = 0
    while wire:
        space = inbox.space()
        count = min(len(space), len(wire))
        space[:count] = wire[:count]
        wire = wire[count:]
        inbox.filled(count)
        taken = inbox.take(0)
        inbox.clear()
        largest = max(largest, inbox.held_bytes)
    assert taken is not None
    assert len(taken[0]) == len(body)
    assert largest == len(body) + LENGTH.size
    assert inbox.held_bytes == 0


@pytest.mark.parametrize("length", [0, RECORD_BYTES_MAX + 1, 2**31 - 1, 2**32 - 1])
def test_a_record_outside_the_bounds_is_refused_at_its_length(length: int) -> None:
    inbox = Inbox(Desk())
    inbox.space()[: LENGTH.size] = LENGTH.pack(length)
    inbox.filled(LENGTH.size)
    with pytest.raises(RemoteProtocolError, match=f"record of {length % 2**31} bytes"):
        inbox.take(16)


# Sizes of frames, and True for a message that is bulk.
SENT = st.lists(st.integers(1, 2 * RECORD_BYTES_USUAL) | st.just(True), max_size=12)


@given(SENT)
def test_frames_are_grouped_in_order_into_records_of_usual_size(sent: list[int | bool]) -> None:
    frames = [a_bulk() if size is True else bytes(size) for size in sent]
    found: list[Frame] = []
    for group in grouped(frames):
        if isinstance(group, Bulk):
            found.append(group)
            continue
        some, some_bytes = group
        found += some
        assert some_bytes == sum(map(len, some))
        assert some_bytes <= RECORD_BYTES_USUAL or len(some) == 1
    assert found == frames


# Large payloads


def a_bulk(*payloads: bytes) -> Bulk:
    given = [each.ljust(HEADER_BYTES) for each in payloads or (b"payload",)]
    return encode_bulk(Append(1, 0, 1, given, [*map(digest, given)]))


def sealed_bulk(records: TaggedRecords, bulk: Bulk) -> bytearray:
    """A bulk record as `open_bulk` takes it: without its length."""
    return bytearray(b"".join(records.seal_bulk(bulk)))[LENGTH.size :]


@pytest.mark.parametrize("algorithm", MAC_ALGORITHMS)
def test_bulk_records_and_others_open_in_the_order_in_which_they_were_sealed(
    algorithm: str,
) -> None:
    here, there = a_pair(algorithm)
    bulk = a_bulk(b"one", b"two")
    wires = [sealed(here, b"first"), memoryview(sealed_bulk(here, bulk)), sealed(here, b"third")]

    assert bytes(there.open(wires[0])) == b"first"
    assert bytes(there.open_bulk(wires[1])) == bulk.head + b"".join(bulk.payloads)
    assert bytes(there.open(wires[2])) == b"third"


def test_a_bulk_record_opens_once() -> None:
    here, there = a_pair()
    record = memoryview(sealed_bulk(here, a_bulk()))
    there.open_bulk(record)
    with pytest.raises(AuthenticationError, match="replayed"):
        there.open_bulk(record)


def test_every_byte_of_a_head_is_under_the_tag() -> None:
    here, _ = a_pair()
    bulk = a_bulk()
    good = sealed_bulk(here, bulk)
    for at in range(len(bulk.head)):
        altered = bytearray(good)
        altered[at] ^= 1
        _, fresh = a_pair()
        with pytest.raises((AuthenticationError, RemoteProtocolError)):
            fresh.open_bulk(memoryview(altered))


def test_payloads_are_not_under_the_tag_since_they_prove_themselves() -> None:
    here, there = a_pair()
    bulk = a_bulk(b"payload")
    altered = sealed_bulk(here, bulk)
    altered[len(bulk.head)] ^= 1

    message = decode_bulk(there.open_bulk(memoryview(altered)))

    assert isinstance(message, Append)
    assert message.digests != [*map(digest, message.payloads)]


def test_one_kind_of_record_is_never_taken_for_the_other() -> None:
    # A frame that says what the head of a bulk record says, and the other way round.
    bulk = a_bulk()
    here, there = a_pair()
    with pytest.raises(AuthenticationError):
        there.open_bulk(sealed(here, bulk.head))
    here, there = a_pair()
    record = sealed_bulk(here, bulk)
    with pytest.raises(AuthenticationError):
        there.open(memoryview(record[: len(bulk.head)] + record[-TAG_BYTES:]))


def test_the_mark_of_a_bulk_record_is_in_its_length() -> None:
    for records in (BareRecords(), a_pair()[0]):
        inbox, bulk = Inbox(Desk()), a_bulk(bytes(5000))
        wire = b"".join(records.seal_bulk(bulk))
        inbox.space()[: len(wire)] = wire
        inbox.filled(len(wire))

        taken = inbox.take(records.trailer_bytes)

        assert taken is not None
        record, is_bulk = taken
        assert is_bulk
        assert bytes(record[: len(bulk)]) == bulk.head + bytes(5000)
