"""SIDs: what a producer signs for one batch of a validated topic.

Source: Kabis 2023, sections 3.1.2 and 3.3.1; DESIGN sections 3 and 4.

A SID, a secure identifier, names a cluster, a topic, a partition, a producer (by its number, which
is its own for ever) and its session, the number of the batch in that producer's line, its digest,
how many events it has, and when it was signed. Kabis signs a concatenation that two different
events may share, without a number; this one has a single way to be written, and a number that
replicas take once and in order.

A batch begins with its *seal*, 288 bytes: the header that every batch has (`core/header.py`), which
says how many events there are, and a signature block with all of the SID that does not follow from
where the batch stands:

    header (16), i64 time, digest (32), root (32), u8 size of its sheaf, u8 leaf, zeros (6),
    path (96), public key (32), signature (64)

A SID is written in one way (little-endian, names in UTF-8):

    "quorate sid v2", newline,
    u16 length of the cluster's name, that name, u16 length of the topic's name, that name,
    u16 partition, u32 producer, u32 session, u64 number of the batch in the producer's line,
    header (16), i64 time in microseconds, digest (32), root (32), public key (32)

A signature covers a *sheaf*: up to eight batches that a producer publishes at the same moment, on
whatever lines. Their SIDs are the leaves of a Merkle tree (RFC 6962), and what is signed is

    "quorate sheaf v1", newline, u8 size, root of that tree (32)

The path of each batch is in its seal, filled up with zeros, so that every seal stands for itself:
whoever has one learns of the others of its sheaf that they were there. Whoever checks the seals of
several at once has one signature to check for all of them (`Checked`).

Behind the seal is the *body*: the batch, and before it a salt of 32 bytes if the topic has event
proofs (`crypto/events.py`). The digest is over the body; the root is that of the salted tree over
its events, or zeros. Replicas compare the key with the one that is pinned for the producer when
they order the batch; since it stands in the seal, the signature can still be checked when the
producer has another key, or is gone.

Whoever has no need of the payload has the seal only, and knows what the sealed batch hashes to
(`digests.digest`).

Rules:
- all names have their lengths before them, all numbers fixed widths: no two SIDs share their bytes;
- the size of a sheaf is signed, the leaf follows from the way up, and zeros fill block and path:
  nobody but the producer can make a second seal out of one;
- one library decides on signatures, for all who must agree on that. It refuses keys and signatures
  that are not canonical (docs/decisions/0017-sids.md);
- a seal says nothing about who may publish, or which number is next: the order log does.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from nacl.bindings import crypto_sign_open
from nacl.exceptions import CryptoError

from quorate.core.errors import RemoteProtocolError
from quorate.core.header import (
    HEADER_BYTES,
    NO_ROOT,
    SEAL_BYTES,
    SIGNED,
    Header,
    header_of,
)
from quorate.core.ids import Digest, MemberId, NodeId, Sequence, member_of, session_of
from quorate.crypto.digests import digest
from quorate.crypto.merkle import HASH_BYTES, Tree, inclusion_proof, leaf_hash, node_hash, way_up

# So many batches share one signature at most: a path of three hashes.
SHEAF_MAX = 8
NO_PATH = bytes(3 * HASH_BYTES)
# So many signatures are remembered: those of what is under way at the same time.
CHECKED_MAX = 1024

_CONTEXT = b"quorate sid v2\n"
_SHEAF_CONTEXT = b"quorate sheaf v1\n"
_BLOCK = Struct("<q32s32sBB6s96s32s64s")
_ZEROS = bytes(6)
# partition, producer, session, sequence, header, time, digest, root, public key
_NUMBERS = Struct(f"<HIIQ{HEADER_BYTES}sq32s32s32s")
_LENGTH = Struct("<H")

_WAYS = {
    (size, index): way_up(index, size) for size in range(1, SHEAF_MAX + 1) for index in range(size)
}

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

    header: Header
    time_us: int
    digest: Digest
    root: bytes
    public_key: bytes
    signature: bytes = b""
    # How many batches the signature covers, which of them this one is, and its path to their root.
    sheaf: int = 1
    leaf: int = 0
    path: bytes = NO_PATH

    @property
    def events(self) -> int:
        return self.header.events

    @property
    def has_event_proofs(self) -> bool:
        return self.root != NO_ROOT

    def encode(self) -> bytes:
        return self.header.encode() + _BLOCK.pack(
            self.time_us, self.digest, self.root,
            self.sheaf, self.leaf, _ZEROS, self.path, self.public_key, self.signature,
        )  # fmt: skip

    @staticmethod
    def decode(data: bytes) -> "Seal":
        """The seal that these bytes begin with."""
        header = header_of(data)
        if len(data) < SEAL_BYTES or not header.is_signed:
            raise RemoteProtocolError("a batch without a seal, where a signed one is due")
        time_us, digest, root, sheaf, leaf, zeros, path, public_key, signature = _BLOCK.unpack_from(
            data, HEADER_BYTES
        )
        if zeros != _ZEROS:
            raise RemoteProtocolError("a seal whose reserved bytes are not zero")
        return Seal(header, time_us, digest, root, public_key, signature, sheaf, leaf, path)


def unsealed(batch: bytes, salt: bytes, *, time_us: int, root: bytes, public_key: bytes) -> Seal:
    """The seal of this basic batch before it is signed; `salt` goes between both."""
    body = digest(salt + batch[HEADER_BYTES:])
    header = header_of(batch)._replace(kind=SIGNED)
    return Seal(header, time_us, body, root, public_key)


def sid(place: Place, sequence: Sequence, seal: Seal) -> bytes:
    """What a producer says: the one way to write all of it."""
    cluster, topic, partition, producer, session = place
    header, time_us, content, root, public_key, *_ = seal
    numbers = _NUMBERS.pack(
        partition, producer, session, sequence, header.encode(), time_us, content, root, public_key
    )
    return _CONTEXT + named(cluster, topic) + numbers


@lru_cache(maxsize=1024)
def named(cluster: str, topic: str) -> bytes:
    """Both names, with their lengths before them. Every batch of a topic has the same."""
    names = [name.encode() for name in (cluster, topic)]
    return b"".join([_LENGTH.pack(len(name)) + name for name in names])


def signed(place: Place, sequence: Sequence, seal: Seal) -> bytes:
    """What the signature of this seal is over, or `RemoteProtocolError` if nothing can be."""
    way = _WAYS.get((seal.sheaf, seal.leaf))
    if way is None:
        raise RemoteProtocolError(
            f"batch {sequence} of client {place.producer} on '{place.topic}' is number "
            f"{seal.leaf} of {seal.sheaf} that are signed together; allowed are 1 to {SHEAF_MAX}"
        )
    path, at, node = seal.path, 0, leaf_hash(sid(place, sequence, seal))
    for is_left in way:
        sibling = path[at : at + HASH_BYTES]
        node = node_hash(sibling, node) if is_left else node_hash(node, sibling)
        at += HASH_BYTES
    if path[at:] != NO_PATH[at:]:
        raise RemoteProtocolError(
            f"batch {sequence} of client {place.producer} on '{place.topic}' has more of a path "
            "than leads to what is signed"
        )
    return _signed(seal.sheaf, node)


def sign_together(batches: Seq[tuple[Place, Sequence, Seal]], sign: Sign) -> list[Seal]:
    """The seals of up to `SHEAF_MAX` batches, under one signature."""
    nodes: dict[tuple[int, int], bytes] = {}
    tree = Tree(on_node=lambda level, number, node: nodes.update({(level, number): node}))
    for batch in batches:
        tree.append(leaf_hash(sid(*batch)))
    size, signature = tree.size, sign(_signed(tree.size, tree.root()))
    paths = [
        b"".join(inclusion_proof(lambda level, number: nodes[level, number], index, size))
        for index in range(size)
    ]
    return [
        seal._replace(
            signature=signature, sheaf=size, leaf=index, path=path.ljust(len(NO_PATH), b"\0")
        )
        for index, ((_, _, seal), path) in enumerate(zip(batches, paths, strict=True))
    ]


class Checked:
    """Signatures that were found right lately: one is checked once for all of its sheaf."""

    __slots__ = ("_right",)

    def __init__(self) -> None:
        # From the oldest on.
        self._right: dict[tuple[bytes, bytes, bytes], None] = {}

    def __len__(self) -> int:
        return len(self._right)

    def check(self, public_key: bytes, signature: bytes, message: bytes) -> None:
        """Raises `CryptoError` or `ValueError` if it is not right."""
        key = public_key, signature, message
        if key in self._right:
            return
        crypto_sign_open(signature + message, public_key)
        if len(self._right) >= CHECKED_MAX:
            del self._right[next(iter(self._right))]
        self._right[key] = None


def check_seal(
    place: Place, sequence: Sequence, seal: Seal, checked: Checked | None = None
) -> None:
    """The owner of the key in the seal signed this batch for this place, or `RemoteProtocolError`.

    Whose key that is, the caller knows.
    """
    message = signed(place, sequence, seal)
    try:
        (Checked() if checked is None else checked).check(seal.public_key, seal.signature, message)
    except (CryptoError, ValueError):
        raise RemoteProtocolError(
            f"batch {sequence} of client {place.producer} on '{place.topic}' is not signed by the "
            "key that it names"
        ) from None


def _signed(size: int, root: bytes) -> bytes:
    return _SHEAF_CONTEXT + bytes((size,)) + root


def body_of(payload: bytes) -> bytes:
    """What is behind the seal."""
    return payload[SEAL_BYTES:]
