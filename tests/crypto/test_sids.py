"""Seals and SIDs: one way to write them, and nothing about them can be changed unnoticed."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import MEMBER_ID_MAX, SEQUENCE_MAX, SESSION_MAX, node_of
from quorate.core.ordering import SEAL_BYTES
from quorate.crypto.digests import digest, payload_digest, seal_digest
from quorate.crypto.sids import (
    NO_ROOT,
    Place,
    Seal,
    body_of,
    check_body,
    check_seal,
    is_sealed,
    sealed,
    sid,
)
from quorate.sim.sealing import public_key, signing_key

KEY, PUBLIC = signing_key(1), public_key(1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
HASHES = st.binary(min_size=32, max_size=32)
PLACES = st.builds(
    Place,
    cluster=NAMES,
    topic=NAMES,
    partition=st.integers(0, 2**16 - 1),
    producer=st.integers(0, MEMBER_ID_MAX),
    session=st.integers(0, SESSION_MAX),
)
SEQUENCES = st.integers(0, SEQUENCE_MAX)
SEALS = st.builds(
    Seal,
    events=st.integers(0, 2**32 - 1),
    time_us=st.integers(-(2**63), 2**63 - 1),
    digest=HASHES,
    root=HASHES,
    public_key=HASHES,
    signature=st.binary(min_size=64, max_size=64),
)
HERE = Place("cluster", "topic", 1, 1000, 2)


def make(body: bytes, place: Place = HERE, sequence: int = 5, root: bytes = NO_ROOT) -> bytes:
    return sealed(
        place, sequence, body, events=3, time_us=7, root=root, public_key=PUBLIC, sign=KEY.sign
    )


def holds(place: Place, sequence: int, payload: bytes) -> bool:
    """As a replica looks at it that knows whose key is pinned."""
    try:
        seal = Seal.decode(payload)
        assert seal.public_key == PUBLIC
        check_seal(place, sequence, seal)
        check_body(payload, digest(payload))
    except (RemoteProtocolError, AssertionError):
        return False
    return True


# One way to write it


@given(SEALS)
def test_a_seal_is_read_as_it_was_written(seal: Seal) -> None:
    assert len(seal.encode()) == SEAL_BYTES
    assert Seal.decode(seal.encode() + b"body") == seal


@given(PLACES, SEQUENCES, SEALS, PLACES, SEQUENCES, SEALS)
@example(
    Place("ab", "c", 0, 0, 0), 0, Seal(0, 0, NO_ROOT, NO_ROOT, NO_ROOT, bytes(64)),
    Place("a", "bc", 0, 0, 0), 0, Seal(0, 0, NO_ROOT, NO_ROOT, NO_ROOT, bytes(64)),
)  # fmt: skip
def test_no_two_sids_are_written_alike(
    place: Place, number: int, seal: Seal, other: Place, other_number: int, other_seal: Seal
) -> None:
    """Kabis 3.3.1 signs names and values one after the other, which others share."""
    is_same = (place, number, seal[:-1]) == (other, other_number, other_seal[:-1])
    assert (sid(place, number, seal) == sid(other, other_number, other_seal)) is is_same


@given(PLACES, SEQUENCES, SEALS, st.data())
def test_a_sid_with_one_part_changed_is_written_differently(
    place: Place, number: int, seal: Seal, data: st.DataObject
) -> None:
    changed_place, changed_number, changed_seal = place, number, seal
    part = data.draw(st.sampled_from([*place._fields, "sequence", *seal._fields[:-1]]))
    if part == "sequence":
        changed_number = data.draw(SEQUENCES.filter(lambda each: each != number))
    elif part in place._fields:
        drawn = data.draw(PLACES.map(lambda each: getattr(each, part)))
        assume(drawn != getattr(place, part))
        changed_place = place._replace(**{part: drawn})
    else:
        drawn = data.draw(SEALS.map(lambda each: getattr(each, part)))
        assume(drawn != getattr(seal, part))
        changed_seal = seal._replace(**{part: drawn})
    assert sid(place, number, seal) != sid(changed_place, changed_number, changed_seal)


# Nothing can be changed


@given(st.binary(max_size=200))
def test_what_was_sealed_holds_where_it_was_sealed_for(body: bytes) -> None:
    payload = make(body)
    assert holds(HERE, 5, payload)
    assert body_of(payload) == body
    assert Seal.decode(payload).digest == payload_digest(body)


@given(st.binary(max_size=40), st.integers(0, 8 * (SEAL_BYTES + 40) - 1))
def test_a_bit_that_is_changed_anywhere_is_found(body: bytes, bit: int) -> None:
    payload = bytearray(make(body))
    assume(bit < 8 * len(payload))
    payload[bit // 8] ^= 1 << bit % 8
    assert not holds(HERE, 5, bytes(payload))


def test_every_bit_of_a_seal_counts() -> None:
    payload = make(b"body")
    for bit in range(8 * len(payload)):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        assert not holds(HERE, 5, bytes(changed))


@given(st.binary(max_size=40), st.integers(0, SEAL_BYTES + 39))
def test_a_batch_that_is_cut_off_anywhere_is_found(body: bytes, length: int) -> None:
    payload = make(body)
    assume(length < len(payload))
    assert not holds(HERE, 5, payload[:length])


@given(PLACES, SEQUENCES)
def test_a_seal_holds_nowhere_else(place: Place, sequence: int) -> None:
    assume((place, sequence) != (HERE, 5))
    assert not holds(place, sequence, make(b"body"))


def test_a_place_is_that_of_one_session_of_a_client() -> None:
    assert Place.of("c", "t", 1, node_of(1000, 2)) == Place("c", "t", 1, 1000, 2)


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), b"\xff" * 32])
def test_keys_that_sign_everything_sign_nothing(key: bytes) -> None:
    """A key of small order, with a signature that lax libraries take for any message."""
    seal = Seal.decode(make(b"body"))._replace(
        public_key=key, signature=b"\1" + bytes(31) + bytes(32)
    )
    with pytest.raises(RemoteProtocolError, match="is not signed by the key that it names"):
        check_seal(HERE, 5, seal)


# What stands for a batch


@given(st.binary(max_size=300))
def test_a_payload_without_a_seal_is_hashed_as_it_is(payload: bytes) -> None:
    assume(payload[:4] != b"qsd1")
    assert digest(payload) == payload_digest(payload)
    assert not is_sealed(payload, digest(payload))


@given(st.binary(max_size=100))
def test_whoever_has_the_seal_knows_what_the_batch_hashes_to(body: bytes) -> None:
    payload = make(body)
    assert digest(payload) == digest(memoryview(payload)) == seal_digest(payload[:SEAL_BYTES])
    assert is_sealed(payload, digest(payload))


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_another_body_behind_a_seal_is_another_batch(body: bytes, other: bytes) -> None:
    assume(body != other)
    swapped = make(body)[:SEAL_BYTES] + other
    assert digest(swapped) == payload_digest(swapped)
    assert digest(swapped) not in (digest(make(body)), digest(make(other)))
    assert not is_sealed(swapped, digest(swapped))


def test_no_plain_payload_stands_for_a_sealed_batch() -> None:
    """A seal that somebody publishes as a payload is not the batch behind it, nor its hash."""
    payload = make(b"body")
    seal = payload[:SEAL_BYTES]
    for plain in (seal, payload[1:], body_of(payload), digest(payload), seal_digest(seal)):
        assert digest(plain) != digest(payload)
    # An empty body behind a seal that names it is a batch of its own, and not its plain hash.
    empty = make(b"")
    assert digest(empty) == seal_digest(empty) != payload_digest(empty)


@given(SEALS)
def test_two_seals_over_one_body_are_two_batches(seal: Seal) -> None:
    payload = make(b"body")
    other = seal._replace(digest=payload_digest(b"body")).encode() + b"body"
    assert (digest(other) == digest(payload)) is (other == payload)
