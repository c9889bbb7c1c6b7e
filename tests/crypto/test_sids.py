"""Seals and SIDs: one way to write them, and nothing about them can be changed unnoticed."""

from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from nacl.bindings import crypto_sign_open

from quorate.core.batch import Batch, encode_values
from quorate.core.errors import RemoteProtocolError
from quorate.core.header import (
    HEADER_BYTES,
    KINDS,
    NO_ROOT,
    SALT_BYTES,
    SEAL_BYTES,
    SIGNED,
    Header,
    header_of,
)
from quorate.core.ids import MEMBER_ID_MAX, SEQUENCE_MAX, SESSION_MAX, node_of
from quorate.core.limits import BATCH_EVENTS_MAX
from quorate.crypto import sids
from quorate.crypto.digests import batch_digest, descriptor, digest, seal_descriptor, seal_digest
from quorate.crypto.sids import (
    CHECKED_MAX,
    SHEAF_MAX,
    Checked,
    Place,
    Seal,
    body_of,
    check_seal,
    sid,
    sign_together,
    unsealed,
)
from quorate.sim.sealing import public_key, signing_key
from seals import sealed

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
HEADERS = st.builds(
    Header.of,
    events=st.integers(1, BATCH_EVENTS_MAX),
    headers=st.integers(0, 2**32 - 1),
    plain_bytes=st.integers(4 * BATCH_EVENTS_MAX, 2**25),
    kind=st.just(SIGNED),
)
SEALS = st.builds(
    Seal,
    header=HEADERS,
    time_us=st.integers(-(2**63), 2**63 - 1),
    digest=HASHES,
    root=HASHES,
    public_key=HASHES,
    signature=st.binary(min_size=64, max_size=64),
    sheaf=st.integers(0, 255),
    leaf=st.integers(0, 255),
    path=st.binary(min_size=96, max_size=96),
)
# Of a seal, what is part of the SID.
SAID = ("header", "time_us", "digest", "root", "public_key")
BATCHES = st.lists(st.binary(max_size=40), min_size=1, max_size=5).map(
    lambda values: encode_values(values, 0)
)
SOME = encode_values([b"some", b"values"], 0)
EMPTY = Seal(Header.of(1, 0, 8, SIGNED), 0, NO_ROOT, NO_ROOT, NO_ROOT, bytes(64))
HERE = Place("cluster", "topic", 1, 1000, 2)


def make(
    basic: bytes,
    place: Place = HERE,
    sequence: int = 5,
    root: bytes = NO_ROOT,
    salt: bytes = b"",
) -> bytes:
    return sealed(
        place, sequence, basic, time_us=7, root=root, salt=salt, public_key=PUBLIC, sign=KEY.sign
    )


def holds(place: Place, sequence: int, payload: bytes) -> bool:
    """As a replica looks at it that knows whose key is pinned."""
    try:
        seal = Seal.decode(payload)
        assert seal.public_key == PUBLIC
        check_seal(place, sequence, seal)
        assert batch_digest(payload) == seal_digest(payload[:SEAL_BYTES])
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
    Place("ab", "c", 0, 0, 0), 0, EMPTY,
    Place("a", "bc", 0, 0, 0), 0, EMPTY,
)  # fmt: skip
def test_no_two_sids_are_written_alike(
    place: Place, number: int, seal: Seal, other: Place, other_number: int, other_seal: Seal
) -> None:
    """Kabis 3.3.1 signs names and values one after the other, which others share."""
    is_same = (place, number, seal[:5]) == (other, other_number, other_seal[:5])
    assert (sid(place, number, seal) == sid(other, other_number, other_seal)) is is_same


@given(PLACES, SEQUENCES, SEALS, st.data())
def test_a_sid_with_one_part_changed_is_written_differently(
    place: Place, number: int, seal: Seal, data: st.DataObject
) -> None:
    changed_place, changed_number, changed_seal = place, number, seal
    part = data.draw(st.sampled_from([*place._fields, "sequence", *SAID]))
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


@given(BATCHES, st.sampled_from([NO_ROOT, b"r" * 32]))
def test_what_was_sealed_holds_where_it_was_sealed_for(basic: bytes, root: bytes) -> None:
    salt = b"s" * SALT_BYTES if any(root) else b""
    payload = make(basic, root=root, salt=salt)
    seal = Seal.decode(payload)

    assert holds(HERE, 5, payload)
    assert body_of(payload) == salt + basic[HEADER_BYTES:]
    assert seal.digest == digest(salt + basic[HEADER_BYTES:])
    assert seal.header == header_of(basic)._replace(kind=SIGNED)
    assert Batch(payload).events() == Batch(basic).events()


@given(BATCHES, st.integers(0, 8 * (SEAL_BYTES + 40) - 1))
def test_a_bit_that_is_changed_anywhere_is_found(basic: bytes, bit: int) -> None:
    payload = bytearray(make(basic))
    assume(bit < 8 * len(payload))
    payload[bit // 8] ^= 1 << bit % 8
    assert not holds(HERE, 5, bytes(payload))


def test_every_bit_of_a_seal_counts() -> None:
    payload = make(SOME)
    for bit in range(8 * len(payload)):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        assert not holds(HERE, 5, bytes(changed))


@given(BATCHES, st.integers(0, SEAL_BYTES + 39))
def test_a_batch_that_is_cut_off_anywhere_is_found(basic: bytes, length: int) -> None:
    payload = make(basic)
    assume(length < len(payload))
    assert not holds(HERE, 5, payload[:length])


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 1}, {"kind": 0}, {"kind": 2}, {"zero": 1}, {"events": 0},
        {"events": BATCH_EVENTS_MAX + 1, "plain_bytes": 2**25}, {"plain_bytes": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_seal_with_a_header_that_cannot_be_true_is_refused(wrong: dict[str, int]) -> None:
    seal = Seal.decode(make(SOME))
    with pytest.raises(RemoteProtocolError):
        Seal.decode(seal._replace(header=seal.header._replace(**wrong)).encode())


@given(PLACES, SEQUENCES)
def test_a_seal_holds_nowhere_else(place: Place, sequence: int) -> None:
    assume((place, sequence) != (HERE, 5))
    assert not holds(place, sequence, make(SOME))


def test_a_place_is_that_of_one_session_of_a_client() -> None:
    assert Place.of("c", "t", 1, node_of(1000, 2)) == Place("c", "t", 1, 1000, 2)


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), b"\xff" * 32])
def test_keys_that_sign_everything_sign_nothing(key: bytes) -> None:
    """A key of small order, with a signature that lax libraries take for any message."""
    seal = Seal.decode(make(SOME))._replace(public_key=key, signature=b"\1" + bytes(31) + bytes(32))
    with pytest.raises(RemoteProtocolError, match="is not signed by the key that it names"):
        check_seal(HERE, 5, seal)


# One signature for several batches


def sheaf(count: int) -> list[tuple[Place, int, Seal]]:
    """Batches of several lines that are signed together."""
    seal = unsealed(SOME, b"", time_us=0, root=NO_ROOT, public_key=PUBLIC)
    told = [(HERE._replace(partition=number % 3), number, seal) for number in range(1, count + 1)]
    seals = sign_together(told, KEY.sign)
    return [(place, number, seal) for (place, number, _), seal in zip(told, seals, strict=True)]


@pytest.mark.parametrize("count", range(1, SHEAF_MAX + 1))
def test_each_batch_of_a_sheaf_stands_for_itself(count: int) -> None:
    seals = sheaf(count)
    assert len({seal.signature for _, _, seal in seals}) == 1
    for place, number, seal in seals:
        check_seal(place, number, Seal.decode(seal.encode()))


@pytest.mark.parametrize("count", range(2, SHEAF_MAX + 1))
def test_no_batch_of_a_sheaf_passes_for_another(count: int) -> None:
    seals = sheaf(count)
    for (place, number, seal), (_, _, other) in pairwise([*seals, seals[0]]):
        on_its_way = seal._replace(sheaf=other.sheaf, leaf=other.leaf, path=other.path)
        for wrong in (other, on_its_way, other._replace(leaf=seal.leaf)):
            with pytest.raises(RemoteProtocolError):
                check_seal(place, number, wrong)


def test_every_bit_of_a_seal_counts_that_shares_its_signature() -> None:
    """So nobody but the producer makes a second seal out of one, to accuse it of two."""
    for place, number, seal in sheaf(5):
        encoded = seal.encode()
        for bit in range(8 * 88, 8 * 192):
            changed = bytearray(encoded)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(RemoteProtocolError):
                check_seal(place, number, Seal.decode(bytes(changed)))


def test_the_signature_of_a_sheaf_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bytes] = []

    def look(signed: bytes, key: bytes) -> bytes:
        looks.append(signed)
        return crypto_sign_open(signed, key)

    monkeypatch.setattr(sids, "crypto_sign_open", look)
    checked = Checked()
    for each in (*sheaf(8), *sheaf(3), *sheaf(8)):
        check_seal(*each, checked)
    assert len(looks) == 2


def test_a_signature_that_is_wrong_is_never_remembered_as_right() -> None:
    place, number, seal = sheaf(2)[0]
    checked = Checked()
    wrong = seal._replace(signature=bytes(64))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="is not signed by the key that it names"):
            check_seal(place, number, wrong, checked)
    check_seal(place, number, seal, checked)
    with pytest.raises(RemoteProtocolError, match="is not signed by the key that it names"):
        check_seal(place, number + 1, seal, checked)


def test_only_so_many_signatures_are_remembered() -> None:
    """Old ones are looked at again, and nothing grows."""
    checked = Checked()
    for time_us in range(CHECKED_MAX + 8):
        unsigned = unsealed(SOME, b"", time_us=time_us, root=NO_ROOT, public_key=PUBLIC)
        (seal,) = sign_together([(HERE, 1, unsigned)], KEY.sign)
        check_seal(HERE, 1, seal, checked)
    assert len(checked) == CHECKED_MAX


# What stands for a batch


@given(st.binary(max_size=300))
def test_a_payload_without_a_seal_is_never_taken_for_a_sealed_one(payload: bytes) -> None:
    assume(payload[1:2] != bytes([SIGNED]))
    assert batch_digest(payload) != seal_digest(payload[:SEAL_BYTES])


@given(BATCHES)
def test_whoever_has_the_seal_knows_what_the_batch_hashes_to(basic: bytes) -> None:
    payload = make(basic)
    seal = payload[:SEAL_BYTES]
    assert batch_digest(payload) == batch_digest(memoryview(payload)) == seal_digest(seal)
    assert descriptor(payload) == seal_descriptor(seal)
    assert header_of(descriptor(payload)) == header_of(payload)


@given(BATCHES, BATCHES)
def test_another_body_behind_a_seal_is_another_batch(basic: bytes, other: bytes) -> None:
    assume(basic[HEADER_BYTES:] != other[HEADER_BYTES:])
    swapped = make(basic)[:SEAL_BYTES] + other[HEADER_BYTES:]
    assert batch_digest(swapped) not in (batch_digest(make(basic)), batch_digest(make(other)))
    assert header_of(descriptor(swapped)) == header_of(swapped)
    assert batch_digest(swapped) != seal_digest(swapped[:SEAL_BYTES])


def test_no_plain_payload_stands_for_a_sealed_batch() -> None:
    """A seal that somebody publishes as a payload is not the batch behind it, nor its hash."""
    payload = make(SOME)
    seal, block, body = payload[:SEAL_BYTES], payload[HEADER_BYTES:SEAL_BYTES], body_of(payload)
    basic = header_of(payload)._replace(kind=KINDS.index("basic")).encode()
    for plain in (
        seal, payload[1:], body, batch_digest(payload), descriptor(payload), basic + block,
        basic + body, basic + block + body, SOME, basic + descriptor(payload)[HEADER_BYTES:],
    ):  # fmt: skip
        assert batch_digest(plain) != batch_digest(payload)


@given(SEALS)
def test_two_seals_over_one_body_are_two_batches(seal: Seal) -> None:
    payload = make(SOME)
    body = body_of(payload)
    other = seal._replace(digest=digest(body)).encode() + body
    assert (batch_digest(other) == batch_digest(payload)) is (other == payload)
