"""Messages about log topics: what is true of them beyond what `test_codec.py` says of all."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declared import messages
from frames import (
    check_refused_for_next_to_nothing,
    decode,
    frame_of,
    handed_on,
    is_refusal,
    message_or_error,
    with_flipped_bits,
)
from quorate.core import codec
from quorate.core.errors import LocalProtocolError
from quorate.core.header import DESCRIPTOR_BYTES, HEADER_BYTES, SEAL_BYTES
from quorate.core.limits import FRAME_BYTES_MAX, RUN_BATCHES_MAX, SEALED_BYTES_MAX
from quorate.core.ordering import (
    CHECKPOINT_CHARACTERS_MAX,
    PART_BYTES_MAX,
    STATE_BYTES_MAX,
    VALUE_BYTES_MAX,
    Accept,
    Announce,
    AnnounceSealed,
    Append,
    AskPart,
    Entries,
    OfferSnapshot,
    OrderMessage,
    Propose,
    Received,
    Retrieved,
    SnapshotPart,
    Stop,
    StopData,
    Sync,
    Write,
)

MESSAGES = messages(get_args(OrderMessage))
EVERY_KIND = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
# There are many kinds, each with a few fields.
OF_EACH = settings(max_examples=50)
ORDER = codec.encode(Stop(1, 2))[codec.LENGTH.size]
D = bytes(32)
DESCRIPTOR, PAYLOAD = bytes(DESCRIPTOR_BYTES), bytes(HEADER_BYTES)


@EVERY_KIND
@OF_EACH
@given(st.data())
def test_all_of_them_are_frames_of_one_kind(kind: type, data: st.DataObject) -> None:
    assert frame_of(data.draw(MESSAGES[kind]))[0] == ORDER


@EVERY_KIND
@OF_EACH
@given(st.data())
def test_what_flipped_bits_make_of_them_goes_on_as_it_is(kind: type, data: st.DataObject) -> None:
    found = message_or_error(with_flipped_bits(data.draw(MESSAGES[kind]), data))
    assert is_refusal(found) or handed_on(found) == found


@given(st.binary(max_size=200))
def test_random_bytes_make_a_message_or_a_protocol_error(body: bytes) -> None:
    found = message_or_error(bytes([ORDER]) + body)
    assert is_refusal(found) or handed_on(found) == found


@EVERY_KIND
@OF_EACH
@given(st.data(), st.binary(max_size=60))
def test_a_message_that_goes_on_with_random_bytes_is_one_or_a_protocol_error(
    kind: type, data: st.DataObject, tail: bytes
) -> None:
    frame = frame_of(data.draw(MESSAGES[kind]))
    found = message_or_error(frame[: data.draw(st.integers(1, len(frame)))] + tail)
    assert is_refusal(found) or handed_on(found) == found


# Digests


def with_digest(digest: bytes) -> list[Any]:
    return [
        Received(1, 2, 0, 1, digest),
        Write(1, 1, 1, digest),
        Accept(1, 1, 1, digest),
        Entries(1, 2, 0, 0, 1, 0, digest, digest, [PAYLOAD]),
    ]


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_digests_have_their_length(length: int) -> None:
    for message in with_digest(bytes(length)):
        assert is_refusal(message_or_error(frame_of(message)))
    for message in with_digest(D):
        assert decode(frame_of(message)) == message


@pytest.mark.parametrize("length", [0, 16, 32, 47, 49])
def test_descriptors_have_their_length(length: int) -> None:
    for message in (
        Announce(2, 0, 1, [DESCRIPTOR, bytes(length)]),
        Retrieved(1, 2, 0, 1, [bytes(length)], [PAYLOAD]),
    ):
        assert is_refusal(message_or_error(frame_of(message)))


# Bounds


OVER: dict[str, Any] = {
    "no payloads": Append(1, 0, 1, []),
    "no descriptors": Announce(1, 0, 1, []),
    "no seals": AnnounceSealed(1, 0, 1, []),
    "a short seal": AnnounceSealed(1, 0, 1, [bytes(SEAL_BYTES - 1)]),
    "too many seals": AnnounceSealed(1, 0, 1, [bytes(SEAL_BYTES)] * (RUN_BATCHES_MAX + 1)),
    "a payload without a header": Append(1, 0, 1, [PAYLOAD[:-1]]),
    "an entry without a header": Entries(1, 1, 0, 0, 1, 0, D, D, [PAYLOAD[:-1]]),
    "too many payloads": Append(1, 0, 1, [PAYLOAD] * (RUN_BATCHES_MAX + 1)),
    "too many descriptors": Announce(1, 0, 1, [DESCRIPTOR] * (RUN_BATCHES_MAX + 1)),
    "too many entries": Entries(1, 1, 0, 0, 1, 0, D, D, [PAYLOAD] * (RUN_BATCHES_MAX + 1)),
    "a payload over its bound": Append(1, 0, 1, [bytes(SEALED_BYTES_MAX + 1)]),
    "an entry over its bound": Entries(1, 1, 0, 0, 1, 0, D, D, [bytes(SEALED_BYTES_MAX + 1)]),
    "a value over its bound": Propose(1, 1, 1, bytes(VALUE_BYTES_MAX + 1)),
    "a state over its bound": StopData(1, 1, bytes(STATE_BYTES_MAX + 1), b"", []),
    "a signature over its bound": StopData(1, 1, b"", bytes(65), []),
    "too many values": Sync(1, 1, [], [b""] * 4097),
    "a checkpoint over its bound": OfferSnapshot(1, 8, "x" * (CHECKPOINT_CHARACTERS_MAX + 1)),
    "a checkpoint that is no text": OfferSnapshot(1, 8, b"x"),  # type: ignore[arg-type]
    "a part over its bound": SnapshotPart(1, 8, 0, bytes(PART_BYTES_MAX + 1)),
    "a part of nothing": SnapshotPart(1, 8, 0, b""),
    "a part from a negative byte on": AskPart(1, 8, -1),
    "a negative number": Append(-1, 0, 1, [b""]),
    "a number that is none": Append("1", 0, 1, [b""]),  # type: ignore[arg-type]
    "a payload that is text": Append(1, 0, 1, ["x"]),  # type: ignore[list-item]
}


@pytest.mark.parametrize("message", OVER.values(), ids=OVER)
def test_what_is_over_its_bound_is_refused(message: Any) -> None:
    assert is_refusal(message_or_error(frame_of(message)))


def test_what_is_just_within_its_bound_is_taken() -> None:
    for message in (
        Append(1, 0, 1, [PAYLOAD] * RUN_BATCHES_MAX),
        Announce(1, 0, 1, [DESCRIPTOR] * RUN_BATCHES_MAX),
        Append(1, 0, 1, [bytes(SEALED_BYTES_MAX)]),
        Propose(1, 1, 1, bytes(VALUE_BYTES_MAX)),
        StopData(1, 1, bytes(STATE_BYTES_MAX), bytes(64), []),
        OfferSnapshot(1, 8, "x" * CHECKPOINT_CHARACTERS_MAX),
        SnapshotPart(1, 8, 0, bytes(PART_BYTES_MAX)),
    ):
        assert decode(frame_of(message)) == message


def test_a_frame_over_the_bound_is_refused_on_both_sides() -> None:
    half = bytes(SEALED_BYTES_MAX)
    with pytest.raises(LocalProtocolError, match="is over"):
        codec.encode(Append(1, 0, 1, [half, half]))
    assert is_refusal(message_or_error(bytes([ORDER]) + bytes(FRAME_BYTES_MAX)))


def forged(message: Any, old: bytes, new: bytes) -> bytes:
    frame = frame_of(message)
    assert old in frame
    return frame.replace(old, new, 1)


MARK = b"\xc4\x04mark"
FORGED = {
    "bytes of four gigabytes": forged(Propose(1, 1, 1, b"mark"), MARK, b"\xc6\xff\xff\xff\xff"),
    "a list of four billion": forged(
        Append(1, 0, 1, [b"mark"]), b"\x91" + MARK, b"\xdd\xff\xff\xff\xff"
    ),
    "nested without end": forged(Propose(1, 1, 1, b"mark"), MARK, b"\x91" * 100_000),
    "fields that nobody knows, nested without end": (
        bytes([ORDER]) + b"\x94\x0d\x01\x02" + b"\x91" * 100_000 + b"\xc0"
    ),
    "no kind": bytes([ORDER]) + msgspec.msgpack.encode([]),
    "an unknown kind": bytes([ORDER]) + msgspec.msgpack.encode([200, 1, 1]),
    "a map": bytes([ORDER]) + msgspec.msgpack.encode({"type": 13}),
    "two messages in one frame": frame_of(Stop(1, 2)) + frame_of(Stop(1, 2))[1:],
    "nothing": bytes([ORDER]),
}


@pytest.mark.parametrize("frame", FORGED.values(), ids=FORGED)
def test_forged_frames_are_refused_and_allocate_next_to_nothing(frame: bytes) -> None:
    check_refused_for_next_to_nothing(frame, 400_000)
