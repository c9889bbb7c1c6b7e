"""SIDs: what a producer signs for one batch of a validated topic.

Source: Kabis 2023, sections 3.1.2 and 3.3.1; DESIGN sections 3 and 4.

A SID, a secure identifier, names a cluster, a topic, a partition, a producer (by its number, which
is its own for ever) and its session, the number of the batch in that producer's line, its digest,
how many events it has, and when it was signed. Kabis signs a concatenation that two different
events may share, without a number; this one has a single way to be written, and a number that
replicas take once and in order.

A batch travels behind its *seal*, 176 bytes that have all of the SID which does not follow from
where the batch stands:

    "qsd1", u32 events, i64 time, digest (32), root (32), public key (32), signature (64)

What is signed is the SID, written in one way (little-endian, names in UTF-8):

    "quorate sid v1", newline,
    u16 length of the cluster's name, that name, u16 length of the topic's name, that name,
    u16 partition, u32 producer, u32 session, u64 number of the batch in the producer's line,
    u32 events, i64 time in microseconds, digest (32), root (32), public key (32)

What follows is the *body*: the batch, and before it a salt of 32 bytes if the topic has event
proofs (`crypto/events.py`). The digest is over the body; the root is that of the salted tree over
its events, or zeros. Replicas compare the key with the one that is pinned for the producer when
they order the batch; since it stands in the seal, the signature can still be checked when the
producer has another key, or is gone.

Whoever has no need of the payload has the seal only, and knows what the sealed batch hashes to
(`digests.digest`).

Rules:
- all names have their lengths before them, all numbers fixed widths: no two SIDs share their bytes;
- one library decides on signatures, for all who must agree on that. It refuses keys and signatures
  that are not canonical (docs/decisions/0017-sids.md);
- a seal says nothing about who may publish, or which number is next: the order log does.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError, CryptoError

from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import Digest, MemberId, NodeId, Sequence, member_of, session_of
from quorate.core.ordering import SEAL_BYTES
from quorate.crypto.digests import SEAL_MAGIC, payload_digest, seal_digest

NO_ROOT = bytes(32)
SALT_BYTES = 32

_CONTEXT = b"quorate sid v1\n"
_SEAL = Struct("<4sIq32s32s32s64s")
# partition, producer, session, sequence, events, time, digest, root, public key
_NUMBERS = Struct("<HIIQIq32s32s32s")
_LENGTH = Struct("<H")
_EVENTS = Struct("<I")

Sign = Callable[[bytes], bytes]


class Place(NamedTuple):
    """Where a line is, for whoever knows no more of the cluster than its file."""

    cluster: str
    topic: str
    partition: int
    producer: MemberId
    session: int

    @staticmethod
    def of(cluster: str, topic: str, partition: int, publisher: NodeId) -> "Place":
        return Place(cluster, topic, partition, member_of(publisher), session_of(publisher))


class Seal(NamedTuple):
    """What a producer says of a batch, and its signature."""

    events: int
    time_us: int
    digest: Digest
    root: bytes
    public_key: bytes
    signature: bytes

    @property
    def has_event_proofs(self) -> bool:
        return self.root != NO_ROOT

    def encode(self) -> bytes:
        return _SEAL.pack(SEAL_MAGIC, *self)

    @staticmethod
    def decode(data: bytes) -> "Seal":
        """The seal that these bytes begin with."""
        if len(data) < SEAL_BYTES or data[: len(SEAL_MAGIC)] != SEAL_MAGIC:
            raise RemoteProtocolError("a batch without a seal, on a validated topic")
        return Seal._make(_SEAL.unpack_from(data)[1:])


def sid(place: Place, sequence: Sequence, seal: Seal) -> bytes:
    """What is signed: the one way to write all of it."""
    cluster, topic, partition, producer, session = place
    events, time_us, content, root, public_key, _ = seal
    numbers = _NUMBERS.pack(
        partition, producer, session, sequence, events, time_us, content, root, public_key
    )
    return _CONTEXT + named(cluster, topic) + numbers


@lru_cache(maxsize=1024)
def named(cluster: str, topic: str) -> bytes:
    """Both names, with their lengths before them. Every batch of a topic has the same."""
    names = [name.encode() for name in (cluster, topic)]
    return b"".join([_LENGTH.pack(len(name)) + name for name in names])


def sealed(
    place: Place,
    sequence: Sequence,
    body: bytes,
    *,
    events: int,
    time_us: int,
    root: bytes = NO_ROOT,
    public_key: bytes,
    sign: Sign,
) -> bytes:
    """The body behind its seal, as it travels and is stored."""
    unsigned = Seal(events, time_us, payload_digest(body), root, public_key, b"")
    signature = sign(sid(place, sequence, unsigned))
    return unsigned._replace(signature=signature).encode() + body


def check_seal(place: Place, sequence: Sequence, seal: Seal) -> None:
    """The owner of the key in the seal signed this batch for this place, or `RemoteProtocolError`.

    Whose key that is, the caller knows.
    """
    try:
        crypto_sign_open(seal.signature + sid(place, sequence, seal), seal.public_key)
    except (BadSignatureError, CryptoError, ValueError):
        raise RemoteProtocolError(
            f"batch {sequence} of client {place.producer} on '{place.topic}' is not signed by the "
            "key that it names"
        ) from None


def events_of(payload: bytes) -> int:
    """How many events the seal says there are, of a batch that has one."""
    (events,) = _EVENTS.unpack_from(payload, len(SEAL_MAGIC))
    return int(events)


def body_of(payload: bytes) -> bytes:
    """What is behind the seal."""
    return payload[SEAL_BYTES:]


def batch_of(payload: bytes) -> memoryview:
    """The batch as its producer made it, on the same memory."""
    has_salt = payload[_ROOT_AT : _ROOT_AT + len(NO_ROOT)] != NO_ROOT
    return memoryview(payload)[SEAL_BYTES + SALT_BYTES if has_salt else SEAL_BYTES :]


def is_sealed(payload: bytes, content: Digest) -> bool:
    """Whether the body is the one that its seal names, given what the whole hashes to."""
    return content == seal_digest(payload[:SEAL_BYTES])


def check_body(payload: bytes, content: Digest) -> None:
    """The same, or `RemoteProtocolError`."""
    if not is_sealed(payload, content):
        raise RemoteProtocolError("a sealed batch whose body is not what its seal names")


_ROOT_AT = Struct("<4sIq32s").size
