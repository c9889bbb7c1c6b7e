"""A digest stands for one content."""

from blake3 import blake3
from hypothesis import assume, given
from hypothesis import strategies as st

from quorate.core.batch import encode_values
from quorate.core.header import DESCRIPTOR_BYTES, count_of, header_of
from quorate.core.ids import DIGEST_BYTES
from quorate.crypto.digests import batch_digest, cut, descriptor, digest, digest_of

# The first published test vector of BLAKE3: the empty input.
EMPTY = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
PAYLOADS = st.binary(max_size=200) | st.builds(
    lambda start, rest: start + rest, st.sampled_from([b"\2\0", b"\2\1"]), st.binary(max_size=400)
)


def test_the_digest_of_bytes_is_blake3_with_256_bits() -> None:
    assert digest(b"").hex() == EMPTY
    assert len(batch_digest(b"payload")) == DIGEST_BYTES


def test_the_digest_of_a_batch_is_over_its_header_and_the_hash_of_what_follows() -> None:
    payload = encode_values([b"one", b"two"], 7)
    described = descriptor(payload)

    assert described == payload[:16] + blake3(payload[16:]).digest()
    context = "quorate 2026-11-19 the digest of a batch"
    assert batch_digest(payload) == blake3(described, derive_key_context=context).digest()
    assert batch_digest(payload) == digest_of(described)


def test_a_descriptor_tells_what_its_payload_tells() -> None:
    payloads = [encode_values([b""] * count, 7) for count in (1, 2, 300)]
    descriptors = cut(b"".join(map(descriptor, payloads)))

    assert list(map(header_of, descriptors)) == list(map(header_of, payloads))
    assert list(map(count_of, descriptors)) == [1, 2, 300]
    assert list(map(digest_of, descriptors)) == list(map(batch_digest, payloads))


@given(PAYLOADS, PAYLOADS)
def test_no_two_payloads_have_one_digest_whatever_they_are(one: bytes, other: bytes) -> None:
    """Also those that are too short for a header, or are nothing but zeros."""
    assume(one != other)
    assert len(descriptor(one)) == DESCRIPTOR_BYTES
    assert batch_digest(one) != batch_digest(other)


def test_zeros_of_every_length_have_digests_of_their_own() -> None:
    assert len({batch_digest(bytes(length)) for length in range(400)}) == 400


@given(PAYLOADS)
def test_bytes_and_a_view_of_them_have_the_same_digest(payload: bytes) -> None:
    assert batch_digest(memoryview(payload)) == batch_digest(payload)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_changing_any_bit_changes_the_digest(payload: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(payload) * 8 - 1))
    changed = bytearray(payload)
    changed[position // 8] ^= 1 << position % 8
    assert batch_digest(bytes(changed)) != batch_digest(payload)
