"""MACs with a choice of hash (B5): bound to their key, their direction and their peer."""

import hashlib
import hmac

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.errors import ConfigError, LocalProtocolError
from quorate.core.names import MAC_ALGORITHMS
from quorate.crypto.identity import Identity
from quorate.crypto.macs import (
    TAG_BYTES,
    DirectedMac,
    Mac,
    PairwiseMacs,
    derive_key,
    numbered_mac,
)

KEY = bytes(range(32))
MEMBERS = {0: Identity.generate("r0"), 1: Identity.generate("r1"), 1000: Identity.generate("alice")}
PUBLIC = {number: identity.public for number, identity in MEMBERS.items()}

algorithms = pytest.mark.parametrize("algorithm", MAC_ALGORITHMS)


def test_the_tags_are_those_of_the_named_hash() -> None:
    assert Mac(KEY, "blake3").tag(b"x") == blake3(b"x", key=KEY).digest()[:16]
    assert Mac(KEY, "hmac-sha256").tag(b"x") == hmac.digest(KEY, b"x", hashlib.sha256)[:16]
    assert Mac(KEY, "hmac-sha512").tag(b"x") == hmac.digest(KEY, b"x", hashlib.sha512)[:16]


def test_an_unknown_hash_is_refused_and_the_known_ones_are_named() -> None:
    known = "aes-gmac, blake3, hmac-sha256, hmac-sha512"
    for make in (Mac, numbered_mac):
        with pytest.raises(ConfigError, match=f"'md5'; choose one of {known}"):
            make(KEY, "md5")


def test_a_numbered_message_is_tagged_by_aes_in_gcm_with_the_number_as_its_nonce() -> None:
    tag = AESGCM(KEY).encrypt((7).to_bytes(12, "little"), b"", b"message")
    assert numbered_mac(KEY, "aes-gmac").tag(7, b"message") == tag


@algorithms
@given(message=st.binary(max_size=50), number=st.integers(0, 2**64), data=st.data())
def test_a_numbered_tag_holds_for_its_number_and_message_only(
    algorithm: str, message: bytes, number: int, data: st.DataObject
) -> None:
    mac = numbered_mac(KEY, algorithm)
    tag = mac.tag(number, message)
    other = data.draw(st.integers(0, 2**64).filter(lambda n: n != number))
    flipped = bytearray(tag)
    flipped[data.draw(st.integers(0, TAG_BYTES - 1))] ^= 1

    assert len(tag) == TAG_BYTES
    assert mac.verify(number, memoryview(tag), memoryview(message))
    assert not mac.verify(other, tag, message)
    assert not mac.verify(number, tag, message + b"x")
    assert not mac.verify(number, flipped, message)
    assert not numbered_mac(bytes(32), algorithm).verify(number, tag, message)


@algorithms
def test_a_key_for_numbered_messages_has_the_right_length(algorithm: str) -> None:
    with pytest.raises(LocalProtocolError, match="32 bytes, this one has 16"):
        numbered_mac(bytes(16), algorithm)


@algorithms
@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_key_of_another_length_is_refused(algorithm: str, length: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"32 bytes, this one has {length}"):
        Mac(bytes(length), algorithm)


@algorithms
@given(parts=st.lists(st.binary(max_size=50), max_size=5))
def test_parts_are_tagged_as_if_laid_end_to_end(algorithm: str, parts: list[bytes]) -> None:
    mac = Mac(KEY, algorithm)
    tag = mac.tag(*parts)

    assert len(tag) == TAG_BYTES
    assert tag == mac.tag(b"".join(parts))
    assert mac.verify(memoryview(tag), *(memoryview(part) for part in parts))


@algorithms
@given(data=st.binary(min_size=1, max_size=50), draw=st.data())
def test_no_bit_of_data_or_tag_can_change(algorithm: str, data: bytes, draw: st.DataObject) -> None:
    mac = Mac(KEY, algorithm)
    tag = mac.tag(data)
    position = draw.draw(st.integers(0, (len(data) + TAG_BYTES) * 8 - 1))
    changed = bytearray(data + tag)
    changed[position // 8] ^= 1 << position % 8

    assert mac.verify(tag, data)
    assert not mac.verify(changed[-TAG_BYTES:], changed[:-TAG_BYTES])


@algorithms
@pytest.mark.parametrize("length", [*range(TAG_BYTES), TAG_BYTES + 1])
def test_a_tag_of_another_length_never_verifies(algorithm: str, length: int) -> None:
    mac = Mac(KEY, algorithm)
    tag = (mac.tag(b"data") + b"\0")[:length]
    assert not mac.verify(tag, b"data")


def test_another_key_or_another_hash_gives_another_tag() -> None:
    keys = (KEY, bytes(32))
    tags = {numbered_mac(key, name).tag(0, b"data") for key in keys for name in MAC_ALGORITHMS}
    assert len(tags) == 2 * len(MAC_ALGORITHMS)


def test_derived_keys_differ_in_secret_context_and_parts() -> None:
    keys = {
        derive_key(b"secret", "purpose", b"ab", b"c"),
        derive_key(b"secret", "purpose", b"a", b"bc"),
        derive_key(b"secret", "purpose", b"abc"),
        derive_key(b"secret", "purpose", b"ab", b"c", b""),
        derive_key(b"secretab", "purpose", b"c"),
        derive_key(b"secret", "another", b"ab", b"c"),
        derive_key(b"another", "purpose", b"ab", b"c"),
    }
    assert len(keys) == 7
    assert {len(key) for key in keys} == {32}


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_no_two_lists_of_parts_derive_the_same_key(one: list[bytes], two: list[bytes]) -> None:
    same = derive_key(b"secret", "purpose", *one) == derive_key(b"secret", "purpose", *two)
    assert same == (one == two)


@algorithms
def test_a_peer_verifies_what_was_tagged_for_it(algorithm: str) -> None:
    tag = macs_of(0, algorithm).tag(1, b"data")

    assert macs_of(1, algorithm).verify(0, b"data", tag)
    assert not macs_of(1, algorithm).verify(0, b"other", tag)


@algorithms
def test_a_tag_never_verifies_as_made_in_the_other_direction(algorithm: str) -> None:
    # Given what replica 0 made for replica 1, when it is reflected to replica 0, then replica
    # 0 does not take it for the word of replica 1.
    tag = macs_of(0, algorithm).tag(1, b"data")
    assert not macs_of(0, algorithm).verify(1, b"data", tag)


@algorithms
def test_a_tag_for_one_peer_never_verifies_at_another(algorithm: str) -> None:
    tag = macs_of(0, algorithm).tag(1, b"data")

    assert not macs_of(1000, algorithm).verify(0, b"data", tag)
    assert not macs_of(1, algorithm).verify(1000, b"data", tag)


def test_a_tag_never_verifies_in_another_cluster_or_under_another_hash() -> None:
    tag = macs_of(0, "blake3").tag(1, b"data")
    elsewhere = PairwiseMacs.between(MEMBERS[1], PUBLIC, "blake3", cluster="elsewhere")

    assert not elsewhere.verify(0, b"data", tag)
    assert not macs_of(1, "hmac-sha256").verify(0, b"data", tag)


def test_there_is_no_key_with_oneself_or_with_a_stranger() -> None:
    macs = macs_of(0, "blake3")

    for stranger in (0, 7):
        assert not macs.verify(stranger, b"data", bytes(TAG_BYTES))
        with pytest.raises(LocalProtocolError, match=f"no key shared with node {stranger}"):
            macs.tag(stranger, b"data")


def test_a_directed_mac_does_not_verify_its_own_tags() -> None:
    here, there = DirectedMac(KEY, bytes(32)), DirectedMac(bytes(32), KEY)
    tag = here.tag(b"data")

    assert there.verify(tag, b"data")
    assert not here.verify(tag, b"data")


def macs_of(number: int, algorithm: str) -> PairwiseMacs:
    return PairwiseMacs.between(MEMBERS[number], PUBLIC, algorithm, cluster="test")
