"""Messages to bytes and back, with hard bounds.

Frame: u32 length of what follows, u8 kind, body. The messages of the data plane share one
fixed head and are packed with `struct`; the rest is msgpack through msgspec, those about log
topics with the bounds that `ordering` states. Every count and length is checked against `limits`
and against the bytes that are really there before anything is allocated, and whatever is wrong
raises `RemoteProtocolError`.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import Struct
from struct import error as StructError
from typing import TypeAlias, TypeVar, get_args

import msgspec

from quorate.core.bulk import Bulk, encode_bulk, is_bulky
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.ids import DIGEST_BYTES, Lane
from quorate.core.limits import (
    AUTHENTICATORS_MAX,
    BATCH_BYTES_MAX,
    CONTROL_BYTES_MAX,
    FRAME_BYTES_MAX,
    RUN_BATCHES_MAX,
)
from quorate.core.messages import (
    Ack,
    Authenticator,
    Control,
    Echo,
    Fetch,
    Forward,
    Frontier,
    Link,
    Message,
    Omitted,
    Publish,
    ReadyVote,
    Status,
    Supply,
    Taken,
    Votes,
    Vouch,
)
from quorate.core.ordering import OrderMessage

TAG_BYTES = 16
LENGTH = Struct("<I")

# publisher, topic, lane, flag, count, first, settled
_HEAD = Struct("<QIBBHQQ")
_FRAME = Struct("<IB")
# Where the part behind kind and head begins in a frame without its length.
_BODY = 1 + _HEAD.size
_COPY_TWICE_BYTES_MAX = 64 * 1024
# chain, count of authenticators
_CHAIN = Struct("<BH")
_AUTHENTICATOR = Struct(f"<QQ{TAG_BYTES}s")

(
    _PUBLISH, _FORWARD, _VOUCH, _ECHO, _READY, _LINK, _FETCH, _SUPPLY, _FRONTIER, _TAKEN, _OMITTED,
    _ACK, _CONTROL, _ORDER,
) = range(1, 15)  # fmt: skip
# What the libraries raise for bytes that make no sense; nesting without end is one way.
_MALFORMED = (
    StructError,
    IndexError,
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
)
_LANES = (Lane.EVENTS, Lane.HISTORIES)
_STATUSES = tuple(Status)

_control_encoder = msgspec.msgpack.Encoder()
_control_decoder = msgspec.msgpack.Decoder(Control)
_order_decoder = msgspec.msgpack.Decoder(OrderMessage)


# What is handed to a link: a frame, or a message in two parts.
Frame: TypeAlias = bytes | Bulk


def for_link(message: Message) -> Frame:
    """One message as links send it."""
    return encode_bulk(message) if is_bulky(message) else encode(message)


def encode(message: Message) -> bytes:
    """One message in one frame."""
    kind = type(message)
    if kind in _ORDER_TYPES:
        return _frame(_ORDER, _control_encoder.encode(message))
    encoder = _ENCODERS.get(kind)
    if encoder is None:
        body = _control_encoder.encode(message)
        if len(body) > CONTROL_BYTES_MAX:
            raise LocalProtocolError(
                f"a control message of {len(body)} bytes is over the bound of {CONTROL_BYTES_MAX}"
            )
        return _FRAME.pack(len(body) + 1, _CONTROL) + body
    try:
        return encoder(message)
    except StructError as error:
        raise LocalProtocolError(f"a {kind.__name__} that cannot be packed: {error}") from None


def frames(buffer: memoryview) -> list[memoryview]:
    """The frames that stand back to back in a buffer that was received whole."""
    found: list[memoryview] = []
    at, end = 0, len(buffer)
    while at < end:
        if end - at < LENGTH.size:
            raise RemoteProtocolError("the frames end inside a length")
        (length,) = LENGTH.unpack_from(buffer, at)
        at += LENGTH.size
        if not 0 < length <= end - at:
            raise RemoteProtocolError(f"a frame of {length} bytes where {end - at} are left")
        found.append(buffer[at : at + length])
        at += length
    return found


def decode(frame: memoryview) -> Message:
    """The message in one frame (without its length). It keeps nothing of the buffer."""
    if not 0 < len(frame) <= FRAME_BYTES_MAX:
        raise RemoteProtocolError(
            f"a frame of {len(frame)} bytes; allowed are 1 to {FRAME_BYTES_MAX}"
        )
    decoder = _DECODERS.get(frame[0])
    if decoder is None:
        raise RemoteProtocolError(f"unknown message kind {frame[0]}")
    try:
        return decoder(frame)
    except _MALFORMED as error:
        raise RemoteProtocolError(f"malformed message of kind {frame[0]}: {error}") from None


# Encoding


@lru_cache(maxsize=RUN_BATCHES_MAX)
def _u32s(count: int) -> Struct:
    return Struct(f"<{count}I")


@lru_cache(maxsize=RUN_BATCHES_MAX)
def _u64s(count: int) -> Struct:
    return Struct(f"<{count}Q")


def _frame(kind: int, *parts: bytes) -> bytes:
    length = sum(map(len, parts)) + 1
    if length > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"a frame of {length} bytes is over {FRAME_BYTES_MAX}")
    return b"".join((_FRAME.pack(length, kind), *parts))


def _pack_payloads(payloads: list[bytes]) -> bytes:
    return _u32s(len(payloads)).pack(*map(len, payloads))


def _encode_publish(m: Publish) -> bytes:
    head = _HEAD.pack(0, m.topic, m.lane, m.urgent, len(m.payloads), m.first, m.settled)
    return _frame(_PUBLISH, head, _pack_payloads(m.payloads), *m.payloads)


def _encode_forward(m: Forward) -> bytes:
    head = _HEAD.pack(m.publisher, m.topic, m.lane, m.urgent, len(m.payloads), m.first, 0)
    return _frame(_FORWARD, head, _pack_payloads(m.payloads), *m.payloads)


def _vote_encoder(kind: int) -> Callable[[Votes], bytes]:
    def encode_votes(m: Votes) -> bytes:
        head = _HEAD.pack(m.publisher, m.topic, m.lane, 0, len(m.digests), m.first, 0)
        return _frame(kind, head, *m.digests)

    return encode_votes


def _encode_link(m: Link) -> bytes:
    head = _HEAD.pack(m.publisher, m.topic, 0, m.urgent, len(m.payloads), m.first, m.settled)
    chain = _CHAIN.pack(m.chain, len(m.authenticators))
    tags = [_AUTHENTICATOR.pack(a.maker, a.reader, a.tag) for a in m.authenticators]
    return _frame(_LINK, head, chain, *tags, _pack_payloads(m.payloads), *m.payloads)


def _encode_fetch(m: Fetch) -> bytes:
    head = _HEAD.pack(m.publisher, m.topic, m.lane, m.payload, len(m.sequences), 0, 0)
    return _frame(_FETCH, head, _u64s(len(m.sequences)).pack(*m.sequences))


def _encode_supply(m: Supply) -> bytes:
    head = _HEAD.pack(m.publisher, m.topic, m.lane, 0, len(m.sequences), 0, 0)
    sequences = _u64s(len(m.sequences)).pack(*m.sequences)
    return _frame(_SUPPLY, head, sequences, _pack_payloads(m.payloads), *m.payloads)


def _encode_frontier(m: Frontier) -> bytes:
    return _frame(_FRONTIER, _HEAD.pack(m.publisher, m.topic, m.lane, 0, 0, m.lowest, m.highest))


def _encode_taken(m: Taken) -> bytes:
    return _frame(_TAKEN, _HEAD.pack(m.publisher, m.topic, m.lane, 0, 0, m.through, 0))


def _encode_omitted(m: Omitted) -> bytes:
    return _frame(_OMITTED, _HEAD.pack(m.publisher, m.topic, m.lane, 0, m.count, m.first, 0))


def _encode_ack(m: Ack) -> bytes:
    return _frame(_ACK, _HEAD.pack(0, m.topic, m.lane, m.status, 0, m.through, 0))


_ORDER_TYPES = frozenset(get_args(OrderMessage))
_ENCODERS: dict[type, Callable[..., bytes]] = {
    Publish: _encode_publish,
    Forward: _encode_forward,
    Vouch: _vote_encoder(_VOUCH),
    Echo: _vote_encoder(_ECHO),
    ReadyVote: _vote_encoder(_READY),
    Link: _encode_link,
    Fetch: _encode_fetch,
    Supply: _encode_supply,
    Frontier: _encode_frontier,
    Taken: _encode_taken,
    Omitted: _encode_omitted,
    Ack: _encode_ack,
}


# Decoding


def _count(count: int) -> int:
    if not 0 < count <= RUN_BATCHES_MAX:
        raise RemoteProtocolError(f"a run of {count} batches; allowed are 1 to {RUN_BATCHES_MAX}")
    return count


def _last(first: int, count: int) -> int:
    if first + count > 2**64:
        raise RemoteProtocolError(f"a run of {count} from sequence {first} leaves 64 bits")
    return first


def _payloads(frame: memoryview, at: int, count: int) -> list[bytes]:
    """The payloads that fill the rest of a frame, behind their lengths."""
    lengths = _u32s(count).unpack_from(frame, at)
    at += 4 * count
    longest = max(lengths) if count > 1 else lengths[0]
    if longest > BATCH_BYTES_MAX:
        raise RemoteProtocolError(
            f"a batch of {longest} bytes; allowed are up to {BATCH_BYTES_MAX}"
        )
    body = frame[at:]
    total = sum(lengths)
    if total != len(body):
        raise RemoteProtocolError(f"payloads of {total} bytes in {len(body)} bytes")
    if count == 1:
        return [bytes(body)]
    if total <= _COPY_TWICE_BYTES_MAX:
        # Slicing bytes is so much faster than slicing views that the second copy pays.
        whole = bytes(body)
        return [whole[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
    return [bytes(body[start:end]) for start, end in pairwise(accumulate(lengths, initial=0))]


def _digests(frame: memoryview, count: int) -> list[bytes]:
    whole = bytes(frame[_BODY:])
    if len(whole) != DIGEST_BYTES * count:
        raise RemoteProtocolError(f"{count} digests in {len(whole)} bytes")
    return [whole[i : i + DIGEST_BYTES] for i in range(0, len(whole), DIGEST_BYTES)]


def _decode_publish(frame: memoryview) -> Publish:
    _, topic, lane, urgent, count, first, settled = _HEAD.unpack_from(frame, 1)
    payloads = _payloads(frame, _BODY, _count(count))
    return Publish(topic, _LANES[lane], bool(urgent), _last(first, count), settled, payloads)


def _decode_forward(frame: memoryview) -> Forward:
    publisher, topic, lane, urgent, count, first, _ = _HEAD.unpack_from(frame, 1)
    payloads = _payloads(frame, _BODY, _count(count))
    return Forward(publisher, topic, _LANES[lane], bool(urgent), _last(first, count), payloads)


_Vote = TypeVar("_Vote", Vouch, Echo, ReadyVote)


def _vote_decoder(make: type[_Vote]) -> Callable[[memoryview], _Vote]:
    def decode_votes(frame: memoryview) -> _Vote:
        publisher, topic, lane, _, count, first, _ = _HEAD.unpack_from(frame, 1)
        digests = _digests(frame, _count(count))
        return make(publisher, topic, _LANES[lane], _last(first, count), digests)

    return decode_votes


def _decode_link(frame: memoryview) -> Link:
    publisher, topic, _, urgent, count, first, settled = _HEAD.unpack_from(frame, 1)
    chain, tags = _CHAIN.unpack_from(frame, _BODY)
    if tags > AUTHENTICATORS_MAX:
        raise RemoteProtocolError(f"{tags} authenticators; allowed are {AUTHENTICATORS_MAX}")
    start = _BODY + _CHAIN.size
    end = start + tags * _AUTHENTICATOR.size
    if end > len(frame):
        raise RemoteProtocolError(f"{tags} authenticators in {len(frame) - start} bytes")
    found = [Authenticator(*fields) for fields in _AUTHENTICATOR.iter_unpack(frame[start:end])]
    payloads = _payloads(frame, end, _count(count))
    return Link(
        publisher, topic, bool(urgent), _last(first, count), settled, chain, payloads, found
    )


def _decode_fetch(frame: memoryview) -> Fetch:
    publisher, topic, lane, payload, count, _, _ = _HEAD.unpack_from(frame, 1)
    if len(frame) != _BODY + 8 * _count(count):
        raise RemoteProtocolError(f"{count} sequences in {len(frame) - _BODY} bytes")
    sequences = list(_u64s(count).unpack_from(frame, _BODY))
    return Fetch(publisher, topic, _LANES[lane], bool(payload), sequences)


def _decode_supply(frame: memoryview) -> Supply:
    publisher, topic, lane, _, count, _, _ = _HEAD.unpack_from(frame, 1)
    sequences = list(_u64s(_count(count)).unpack_from(frame, _BODY))
    payloads = _payloads(frame, _BODY + 8 * count, count)
    return Supply(publisher, topic, _LANES[lane], sequences, payloads)


def _decode_frontier(frame: memoryview) -> Frontier:
    publisher, topic, lane, _, _, lowest, highest = _exact_head(frame)
    return Frontier(publisher, topic, _LANES[lane], lowest, highest)


def _decode_taken(frame: memoryview) -> Taken:
    publisher, topic, lane, _, _, through, _ = _exact_head(frame)
    return Taken(publisher, topic, _LANES[lane], through)


def _decode_omitted(frame: memoryview) -> Omitted:
    publisher, topic, lane, _, count, first, _ = _exact_head(frame)
    return Omitted(publisher, topic, _LANES[lane], _last(first, count), _count(count))


def _decode_ack(frame: memoryview) -> Ack:
    _, topic, lane, status, _, through, _ = _exact_head(frame)
    return Ack(topic, _LANES[lane], _STATUSES[status], through)


def _exact_head(frame: memoryview) -> tuple[int, int, int, int, int, int, int]:
    if len(frame) != _BODY:
        raise RemoteProtocolError(f"a message of {len(frame)} bytes where {_BODY} are due")
    fields: tuple[int, int, int, int, int, int, int] = _HEAD.unpack_from(frame, 1)
    return fields


def _decode_control(frame: memoryview) -> Control:
    if len(frame) > CONTROL_BYTES_MAX + 1:
        raise RemoteProtocolError(
            f"a control message of {len(frame)} bytes; allowed are up to {CONTROL_BYTES_MAX}"
        )
    # What it leaves undecoded points into what it was given, so that has to be ours to keep.
    message: Control = _control_decoder.decode(bytes(frame[1:]))
    return message


def _decode_order(frame: memoryview) -> Message:
    message: OrderMessage = _order_decoder.decode(frame[1:])
    return message


_DECODERS: dict[int, Callable[[memoryview], Message]] = {
    _PUBLISH: _decode_publish,
    _FORWARD: _decode_forward,
    _VOUCH: _vote_decoder(Vouch),
    _ECHO: _vote_decoder(Echo),
    _READY: _vote_decoder(ReadyVote),
    _LINK: _decode_link,
    _FETCH: _decode_fetch,
    _SUPPLY: _decode_supply,
    _FRONTIER: _decode_frontier,
    _TAKEN: _decode_taken,
    _OMITTED: _decode_omitted,
    _ACK: _decode_ack,
    _CONTROL: _decode_control,
    _ORDER: _decode_order,
}
