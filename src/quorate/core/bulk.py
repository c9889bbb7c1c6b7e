"""Large payloads on the wire, outside of what a tag covers.

A batch of 26 kB is hashed by whoever takes it in, and that hash decides what becomes of it. A tag
over the same bytes proves nothing more and costs half as much again at both ends. So messages that
name what their payloads hash to travel in two parts: a head, which is the message with the lengths
of its payloads in their place, and then the payloads as they are. Links put their tag on the head.

    u32 length of the head, head, payloads back to back

What arrives is as good as its head says only after its payloads have been held against it. Both
who handle such messages do that first: a replica compares `Append.digests`, a reader
`Entries.after`.
"""

from itertools import accumulate, pairwise
from struct import Struct
from typing import TypeAlias, TypeGuard

import msgspec

from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.header import HEADER_BYTES
from quorate.core.limits import FRAME_BYTES_MAX, RUN_BATCHES_MAX, SEALED_BYTES_MAX
from quorate.core.ordering import Append, Entries

# Below this the second part costs more than the tag that it saves.
_LARGE_BYTES = 2048
_LENGTH = Struct("<I")
_U32_BYTES = 4

Bulky: TypeAlias = Append | Entries

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Bulky)


class Bulk:
    """A message in two parts, ready to be written."""

    __slots__ = ("_size", "head", "payloads")

    def __init__(self, head: bytes, payloads: list[bytes]) -> None:
        self.head = _LENGTH.pack(len(head)) + head
        self.payloads = payloads
        self._size = len(self.head) + sum(map(len, payloads))

    def __len__(self) -> int:
        return self._size


def is_bulky(message: object) -> TypeGuard[Bulky]:
    """Whether a message proves its payloads, and they are large enough to profit from that."""
    if isinstance(message, Append):
        return bool(message.digests)
    if isinstance(message, Entries):
        return sum(map(len, message.payloads)) > _LARGE_BYTES * len(message.payloads)
    return False


def encode_bulk(message: Bulky) -> Bulk:
    lengths = Struct(f"<{len(message.payloads)}I").pack(*map(len, message.payloads))
    # It stands where a payload does, and no payload is shorter.
    lengths = lengths.ljust(HEADER_BYTES, b"\0")
    bulk = Bulk(
        _encoder.encode(msgspec.structs.replace(message, payloads=[lengths])), message.payloads
    )
    if len(bulk) > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"a message of {len(bulk)} bytes is over {FRAME_BYTES_MAX}")
    return bulk


def head_of(body: memoryview) -> memoryview:
    """What the tag is over: the head behind its length."""
    if len(body) < _U32_BYTES:
        raise RemoteProtocolError("a bulk message without a head")
    (head_bytes,) = _LENGTH.unpack_from(body)
    if not 0 < head_bytes <= len(body) - _U32_BYTES:
        raise RemoteProtocolError(f"a head of {head_bytes} bytes in a message of {len(body)}")
    return body[: _U32_BYTES + head_bytes]


def decode_bulk(body: memoryview) -> Bulky:
    """The message in both parts. It keeps nothing of the buffer."""
    head = head_of(body)
    try:
        message = _decoder.decode(head[_U32_BYTES:])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteProtocolError(f"a malformed head of a bulk message: {error}") from None
    payloads = _payloads(message.payloads, body[len(head) :])
    if isinstance(message, Append) and len(message.digests) != len(payloads):
        raise RemoteProtocolError(f"{len(payloads)} payloads with {len(message.digests)} digests")
    whole: Bulky = msgspec.structs.replace(message, payloads=payloads)
    return whole


def _payloads(packed: list[bytes], data: memoryview) -> list[bytes]:
    # No length is 0: what follows the last one fills up.
    count = -(-len(packed[0].rstrip(b"\0")) // _U32_BYTES)
    if len(packed) != 1 or not count or len(packed[0]) % _U32_BYTES:
        raise RemoteProtocolError("a bulk message without the lengths of its payloads")
    if count > RUN_BATCHES_MAX:
        raise RemoteProtocolError(f"a run of {count} batches; allowed are 1 to {RUN_BATCHES_MAX}")
    lengths = Struct(f"<{count}I").unpack_from(packed[0])
    if min(lengths) < HEADER_BYTES or max(lengths) > SEALED_BYTES_MAX:
        raise RemoteProtocolError(
            f"batches of {min(lengths)} to {max(lengths)} bytes; allowed are {HEADER_BYTES} to "
            f"{SEALED_BYTES_MAX}"
        )
    if sum(lengths) != len(data):
        raise RemoteProtocolError(f"payloads of {sum(lengths)} bytes in {len(data)} bytes")
    return [bytes(data[start:end]) for start, end in pairwise(accumulate(lengths, initial=0))]
