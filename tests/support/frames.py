"""What must hold for the frames of every kind of message, whatever it is about."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import strategies as st

from quorate.core import codec
from quorate.core.errors import RemoteProtocolError
from quorate.core.messages import Message


def frame_of(message: Message) -> bytes:
    """What the transport hands to `decode`: the frame without its length."""
    return codec.encode(message)[codec.LENGTH.size :]


def decode(frame: bytes | bytearray) -> Any:
    return codec.decode(memoryview(frame))


def refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(frame)
    assert str(caught.value)


def message_or_error(frame: bytes) -> Any:
    """What comes of a frame: a message, or the one error that a peer may cause."""
    try:
        return decode(frame)
    except RemoteProtocolError as error:
        return error


def is_refusal(found: object) -> bool:
    """Whether it is that error, with a sentence that says what is wrong."""
    return isinstance(found, RemoteProtocolError) and bool(str(found))


def handed_on(message: Message) -> Any:
    """The message as whoever comes next gets it."""
    return decode(frame_of(message))


def check_comes_back(message: Message) -> None:
    (frame,) = codec.frames(memoryview(codec.encode(message)))
    assert codec.decode(frame) == message


def check_outlives_its_buffer(message: Message) -> None:
    buffer = bytearray(frame_of(message))
    decoded = decode(buffer)
    buffer[:] = bytes(len(buffer))
    assert decoded == message


def check_no_part_passes(message: Message) -> None:
    frame = frame_of(message)
    for length in range(len(frame)):
        refused(frame[:length])
    refused(frame + b"\x00")


def with_flipped_bits(message: Message, data: st.DataObject) -> bytes:
    frame = bytearray(frame_of(message))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(frame) * 8 - 1))
        frame[at // 8] ^= 1 << at % 8
    return bytes(frame)


def check_refused_for_next_to_nothing(frame: bytes, bytes_max: int) -> None:
    # The first refusal fills caches; the second is measured.
    refused(frame)
    tracemalloc.start()
    try:
        refused(frame)
        assert tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()
