"""The digest of a batch: 32 bytes that stand for its content.

BLAKE3 is collision resistant, so whoever vouches for a digest vouches for one content; that is
why a digest counts as a copy, and why payloads travel once.
"""

from blake3 import blake3

from quorate.core.ids import Digest

DIGEST_BYTES = 32


def digest(payload: bytes | memoryview) -> Digest:
    return blake3(payload).digest()
