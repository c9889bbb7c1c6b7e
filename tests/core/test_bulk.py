"""Messages with large payloads travel in two parts, and nothing that arrives breaks anybody."""

from struct import Struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.bulk import Bulk, Bulky, decode_bulk, encode_bulk, is_bulky
from quorate.core.codec import for_link
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.header import DESCRIPTOR_BYTES, HEADER_BYTES
from quorate.core.limits import RUN_BATCHES_MAX, SEALED_BYTES_MAX
from quorate.core.ordering import Announce, Append, Entries
from quorate.crypto.digests import digest

D = b"d" * 32
DESCRIPTOR = b"d" * DESCRIPTOR_BYTES
LARGE = bytes(5000)
PAYLOADS = st.lists(st.binary(min_size=HEADER_BYTES, max_size=100), min_size=1, max_size=20)


def append(*payloads: bytes) -> Append:
    return Append(7, 1, 3, [*payloads], [*map(digest, payloads)])


def entries(*payloads: bytes) -> Entries:
    return Entries(1000, 7, 1, 40, 3, 12, D, bytes(32), [*payloads])


def wire(bulk: Bulk) -> memoryview:
    return memoryview(bulk.head + b"".join(bulk.payloads))


@given(PAYLOADS)
def test_what_was_sent_is_what_arrives(payloads: list[bytes]) -> None:
    for message in (append(*payloads), entries(*payloads)):
        bulk = encode_bulk(message)
        assert len(bulk) == len(wire(bulk))
        assert decode_bulk(wire(bulk)) == message


def test_payloads_are_not_copied_on_their_way_out() -> None:
    (payload,) = encode_bulk(append(LARGE)).payloads
    assert payload is LARGE


def test_only_what_proves_its_payloads_and_is_large_travels_in_two_parts() -> None:
    assert is_bulky(append(LARGE))
    assert is_bulky(entries(LARGE))
    assert not is_bulky(Append(7, 1, 3, [LARGE]))
    assert not is_bulky(entries(b"small"))
    assert not is_bulky(Announce(7, 1, 3, [DESCRIPTOR]))
    assert isinstance(for_link(append(LARGE)), Bulk)
    assert isinstance(for_link(Append(7, 1, 3, [LARGE])), bytes)


def test_more_than_a_frame_may_hold_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="a message of"):
        encode_bulk(append(*[bytes(SEALED_BYTES_MAX)] * 2))


def headed(message: Bulky, lengths: list[bytes], data: bytes = b"") -> memoryview:
    """A message whose head has these bytes where the lengths of its payloads belong."""
    head = msgspec.msgpack.encode(msgspec.structs.replace(message, payloads=lengths))
    return memoryview(Struct("<I").pack(len(head)) + head + data)


def packed(*lengths: int) -> bytes:
    return Struct(f"<{len(lengths)}I").pack(*lengths).ljust(HEADER_BYTES, b"\0")


SMALL = b"abc" * 7
ONE = append(SMALL)
REFUSED = {
    "nothing": memoryview(b""),
    "a head that is longer than all of it": memoryview(Struct("<I").pack(9) + b"x"),
    "an empty head": memoryview(Struct("<I").pack(0) + b"x"),
    "a head that is no message": memoryview(Struct("<I").pack(1) + b"\xc1"),
    "another message": memoryview(
        Struct("<I").pack(len(msgspec.msgpack.encode(Announce(7, 1, 3, [DESCRIPTOR]))))
        + msgspec.msgpack.encode(Announce(7, 1, 3, [DESCRIPTOR]))
    ),
    "a head that is nested without end": memoryview(Struct("<I").pack(100_000) + b"\x91" * 100_000),
    "lengths twice": headed(ONE, [packed(21), packed(21)], SMALL),
    "no length": headed(ONE, [b""], SMALL),
    "nothing but zeros": headed(ONE, [bytes(HEADER_BYTES)], SMALL),
    "a length of zero": headed(ONE, [packed(0, 21)], SMALL),
    "half a length": headed(ONE, [packed(21) + b"\x03\x00"], SMALL),
    "too little data": headed(ONE, [packed(21)], SMALL[:-1]),
    "too much data": headed(ONE, [packed(21)], SMALL + b"d"),
    "fewer digests than payloads": headed(ONE, [packed(21, 21)], SMALL * 2),
    "no digests": headed(Append(7, 1, 3, [SMALL]), [packed(21)], SMALL),
    "a payload without a header": headed(ONE, [packed(15)], SMALL[:15]),
    "too many payloads": headed(
        entries(b""), [packed(*[16] * (RUN_BATCHES_MAX + 1))], bytes(16 * (RUN_BATCHES_MAX + 1))
    ),
    "a payload over its bound": headed(
        entries(b""), [packed(SEALED_BYTES_MAX + 1)], bytes(SEALED_BYTES_MAX + 1)
    ),
}


def test_the_messages_that_the_refused_ones_are_made_of_are_taken() -> None:
    assert decode_bulk(headed(ONE, [packed(21)], SMALL)) == ONE
    many = [bytes(HEADER_BYTES)] * RUN_BATCHES_MAX
    assert decode_bulk(wire(encode_bulk(entries(*many)))) == entries(*many)
    long = [bytes(2**16), bytes(2**8)]
    assert decode_bulk(wire(encode_bulk(entries(*long)))) == entries(*long)


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_what_makes_no_sense_is_refused(body: memoryview) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_bulk(body)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_whatever_arrives_is_a_message_or_refused(noise: bytes, at: int) -> None:
    good = bytes(wire(encode_bulk(append(SMALL, b"de" * 9))))
    try:
        message = decode_bulk(memoryview(good[:at] + noise + good[at + len(noise) :]))
    except RemoteProtocolError:
        return
    assert isinstance(message, Append | Entries)
    assert message.payloads
