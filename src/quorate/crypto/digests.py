"""Digests: 32 bytes that stand for a content.

BLAKE3 is collision resistant, so whoever vouches for a digest vouches for one content; that is
why a digest counts as a copy, and why payloads travel once. On live topics it is the hash of the
whole payload (`digest`).

In a log it is a hash, in a mode of BLAKE3 of its own, over the batch's *descriptor*: its header
(`core/header.py`) and the digest of what follows (`batch_digest`). Of a basic batch that is the
body as it is; of a signed one it is the signature block, which names the digest of the body behind
it (`sids.py`). So a descriptor says how many events a batch has without its payload, and a seal
(header and signature block) leads to the descriptor of the whole. The header says which of both a
batch is, and signature blocks are hashed in a mode of their own, so no batch of one kind has the
digest of the other.
"""

from functools import lru_cache

from blake3 import blake3

from quorate.core.header import DESCRIPTOR_BYTES, HEADER_BYTES, SEAL_BYTES, SIGNED
from quorate.core.ids import DIGEST_BYTES, Digest

# A descriptor is hashed when its batch comes in, and looked up when that gets its place.
DIGESTS_KEPT = 8192
# Copying a hasher takes half as long as setting one up in its mode.
_BATCH = blake3(derive_key_context="quorate 2026-11-19 the digest of a batch")
_SIGNATURE = blake3(derive_key_context="quorate 2026-11-19 the signature block of a batch")
_OTHER = blake3(derive_key_context="quorate 2026-11-19 a signed batch with another body")
# Where a seal has the digest of the body.
_NAMED = slice(HEADER_BYTES + 8, HEADER_BYTES + 8 + DIGEST_BYTES)


def digest(data: bytes | memoryview) -> Digest:
    """The digest of these bytes, whatever they are."""
    return blake3(data).digest()


def batch_digest(payload: bytes | memoryview) -> Digest:
    """What stands for this batch in a log."""
    return digest_of(descriptor(payload))


@lru_cache(maxsize=DIGESTS_KEPT)
def digest_of(described: bytes) -> Digest:
    """What stands for the batch with this descriptor."""
    hasher = _BATCH.copy()
    hasher.update(described)
    return hasher.digest()


def descriptor(payload: bytes | memoryview) -> bytes:
    """The header of this batch and the digest of what follows it.

    A signed batch whose body is not what its signature block names gets one that no seal leads to,
    and so does what is shorter than a header.
    """
    header = bytes(payload[:HEADER_BYTES])
    if len(header) == HEADER_BYTES:
        if header[1] != SIGNED:
            return header + blake3(memoryview(payload)[HEADER_BYTES:]).digest()
        seal = bytes(payload[:SEAL_BYTES])
        if digest(memoryview(payload)[SEAL_BYTES:]) == seal[_NAMED]:
            return seal_descriptor(seal)
    return header.ljust(HEADER_BYTES, b"\0") + _hashed(_OTHER, payload)


def seal_descriptor(seal: bytes) -> bytes:
    """The descriptor of the batch behind this seal."""
    return seal[:HEADER_BYTES] + _hashed(_SIGNATURE, seal[HEADER_BYTES:])


def seal_digest(seal: bytes) -> Digest:
    """What the batch behind this seal hashes to."""
    return digest_of(seal_descriptor(seal))


def cut(descriptors: bytes) -> list[bytes]:
    """Descriptors that are laid end to end, one by one."""
    size = DESCRIPTOR_BYTES
    return [descriptors[at : at + size] for at in range(0, len(descriptors), size)]


def link(before: Digest, content: Digest) -> Digest:
    """The chain behind what hashes to `content`: one hash for it and for all that came before."""
    return blake3(before + content).digest()


def _hashed(mode: blake3, data: bytes | memoryview) -> Digest:
    hasher = mode.copy()
    hasher.update(data)
    return hasher.digest()
