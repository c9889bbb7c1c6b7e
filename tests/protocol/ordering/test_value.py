"""What a slot decides, byte by byte: replicas and readers of all versions must agree on it."""

from hashlib import sha256
from struct import pack

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.errors import RemoteProtocolError
from quorate.core.header import Header
from quorate.core.ordering import Line
from quorate.crypto.merkle import leaf_hash
from quorate.protocol.ordering.value import (
    CHAIN_START,
    SPAN_BATCHES_MAX,
    SPANS_MAX,
    Span,
    Value,
    chained,
    leaves_of,
    offsets_of,
    value_digest,
)

SPANS = st.builds(
    Span,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(1, SPAN_BATCHES_MAX),
    st.binary(min_size=32, max_size=32),
)
VALUES = st.builds(
    Value,
    st.integers(-(2**63), 2**63 - 1),
    st.lists(SPANS, min_size=1, max_size=5, unique_by=lambda span: span[:3]).map(tuple),
    st.lists(st.integers(0, 2**64 - 1), max_size=3, unique=True).map(tuple),
).filter(lambda value: not {span.publisher for span in value.spans} & {*value.ended})
SPAN = Span(1000, 7, 2, 5, 3, bytes(range(32)))


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: Value) -> None:
    assert Value.decode(value.encode()) == value


@given(VALUES, st.data())
def test_no_part_of_a_value_passes_for_a_value(value: Value, data: st.DataObject) -> None:
    encoded = value.encode()
    length = data.draw(st.integers(0, len(encoded) - 1))
    for wrong in (encoded[:length], encoded + b"\x00"):
        with pytest.raises(RemoteProtocolError):
            Value.decode(wrong)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_value_or_a_protocol_error(data: bytes) -> None:
    try:
        value = Value.decode(data)
    except RemoteProtocolError as error:
        assert str(error)
    else:
        assert value.encode() == data


def test_the_layout_of_a_value_is_fixed() -> None:
    assert Value(-1, (SPAN,)).encode() == (
        pack("<qH", -1, 1) + pack("<QIHQH", 1000, 7, 2, 5, 3) + bytes(range(32))
    )
    assert len(Value(0, (SPAN,)).encode()) == 10 + 56
    assert Value(0, (SPAN,), (7, 8)).encode()[66:] == pack("<HQQ", 2, 7, 8)


MANY = tuple(SPAN._replace(publisher=number) for number in range(SPANS_MAX + 1))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"", "0 bytes"),
        (Value(0, ()).encode(), "0 spans"),
        (Value(0, MANY).encode(), "4097 spans"),
        (Value(0, (SPAN,)).encode() + bytes(56), "1 spans in 122 bytes"),
        (Value(0, (SPAN._replace(batches=0),)).encode(), "no or over"),
        (Value(0, (SPAN._replace(batches=SPAN_BATCHES_MAX + 1),)).encode(), "no or over"),
        (Value(0, (SPAN, SPAN._replace(first=8))).encode(), "two spans of one line"),
    ],
)
def test_a_malformed_value_is_refused_in_a_sentence(value: bytes, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        Value.decode(value)


def test_as_many_spans_as_are_allowed_fit() -> None:
    assert len(Value.decode(Value(0, MANY[:-1]).encode()).spans) == SPANS_MAX


def test_a_span_knows_its_line_and_its_end() -> None:
    assert SPAN.line == Line(1000, 7, 2)
    assert SPAN.end == 8


def test_the_digest_of_a_value_is_blake3() -> None:
    assert value_digest(b"value") == blake3(b"value").digest()


# Vectors: whoever changes these changes what every reader computes.


def test_a_chain_links_hash_to_hash() -> None:
    one, two = blake3(b"one").digest(), blake3(b"two").digest()

    first, second = chained(CHAIN_START, [one, two])

    assert first == blake3(bytes(32) + one).digest()
    assert second == blake3(first + two).digest()
    assert first.hex() == CHAIN_OF_ONE
    assert second.hex() == CHAIN_OF_TWO
    assert chained(first, [two]) == [second]
    assert chained(first, []) == []


def leaf_data(offset: int, sequence: int, time_us: int, content: bytes) -> bytes:
    """Version, topic, partition, offset, publisher, sequence, time and digest of a batch."""
    return b"qbl2" + pack(">IHQQQq", 7, 2, offset, 1000, sequence, time_us) + content


def test_the_leaf_of_a_batch_says_what_it_is_and_where_it_stands() -> None:
    described = Header.of(3, 0, 12).encode() + blake3(b"one").digest()
    content = blake3(described, derive_key_context=BATCH).digest()
    data = leaf_data(40, 5, 1_700_000_000_000_000, content)

    (leaf,) = leaves_of(Line(1000, 7, 2), 5, 40, 1_700_000_000_000_000, [described])
    assert leaf == leaf_hash(data) == sha256(b"\x00" + data).digest()
    assert leaf.hex() == LEAF


def test_consecutive_batches_have_consecutive_numbers_and_offsets() -> None:
    descriptors = [Header.of(count, 0, 12).encode() + bytes(32) for count in (2, 3, 1)]
    contents = [blake3(each, derive_key_context=BATCH).digest() for each in descriptors]
    leaves = leaves_of(Line(1000, 7, 2), 5, 40, 9, descriptors)
    offsets = offsets_of(40, descriptors)
    assert offsets == [40, 42, 45, 46]
    assert leaves == [
        leaf_hash(leaf_data(offset, sequence, 9, content))
        for offset, sequence, content in zip(offsets, (5, 6, 7), contents, strict=False)
    ]


BATCH = "quorate 2026-11-19 the digest of a batch"
CHAIN_OF_ONE = "cbb53a7dbde27829e717bae6623a37026d19058b77c7e07bfdb971b58d849735"
CHAIN_OF_TWO = "2593daee1293144bfbff5f99ed3bc8d0a517f50c1532cbbe70a35b45ff096a2b"
LEAF = "70c799535a4788a1efb3be42b3b210f906f36331c360c7f39314efce8c8535ed"
