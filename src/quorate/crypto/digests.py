"""The digest of a batch: 32 bytes that stand for its content.

BLAKE3 is collision resistant, so whoever vouches for a digest vouches for one content; that is
why a digest counts as a copy, and why payloads travel once.

A sealed batch (`sids.py`) names the digest of its body in its seal. Its own digest is that of the
seal, if the body is what the seal names: so whoever has the seal alone knows what the whole hashes
to. Any other payload is hashed as it is. Both together are one collision-resistant function: seals
are hashed in a mode of BLAKE3 that shares no digests with the plain one, and two sealed batches
with one digest have one seal, and so one body.
"""

from blake3 import blake3

from quorate.core.ids import Digest
from quorate.core.ordering import SEAL_BYTES

DIGEST_BYTES = 32
SEAL_MAGIC = b"qsd2"
_SEAL_CONTEXT = "quorate 2026-11-16 the seal of a batch"
# Where a seal has the digest of the body.
_NAMED = slice(16, 16 + DIGEST_BYTES)


def digest(payload: bytes | memoryview) -> Digest:
    """What stands for this payload, sealed or not."""
    if payload[:4] == SEAL_MAGIC and len(payload) >= SEAL_BYTES:
        seal = bytes(payload[:SEAL_BYTES])
        if payload_digest(memoryview(payload)[SEAL_BYTES:]) == seal[_NAMED]:
            return seal_digest(seal)
    return blake3(payload).digest()


def payload_digest(payload: bytes | memoryview) -> Digest:
    """The digest of these bytes, whatever they begin with."""
    return blake3(payload).digest()


def seal_digest(seal: bytes) -> Digest:
    """What a batch behind this seal hashes to."""
    return blake3(seal, derive_key_context=_SEAL_CONTEXT).digest()


def link(before: Digest, content: Digest) -> Digest:
    """The chain behind what hashes to `content`: one hash for it and for all that came before."""
    return blake3(before + content).digest()
