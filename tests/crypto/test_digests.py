"""A digest stands for one content."""

from hypothesis import given
from hypothesis import strategies as st

from quorate.crypto.digests import DIGEST_BYTES, digest

# The first published test vector of BLAKE3: the empty input.
EMPTY = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_the_digest_is_blake3_with_256_bits() -> None:
    assert digest(b"").hex() == EMPTY
    assert len(digest(b"payload")) == DIGEST_BYTES


@given(st.binary(max_size=200))
def test_bytes_and_a_view_of_them_have_the_same_digest(payload: bytes) -> None:
    assert digest(memoryview(payload)) == digest(payload)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_changing_any_bit_changes_the_digest(payload: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(payload) * 8 - 1))
    changed = bytearray(payload)
    changed[position // 8] ^= 1 << position % 8
    assert digest(bytes(changed)) != digest(payload)
