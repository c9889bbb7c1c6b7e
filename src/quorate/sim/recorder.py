"""A digest of what happened in the whole run.

The digest is how two runs are compared: one 64-bit word per message (who to whom), one per
instant, and the content of every outcome, write and fault. Two runs with equal digests took
the same way through the protocol.
"""

from array import array
from hashlib import blake2b

import msgspec

_WORDS_MAX = 1 << 16
# No message has this word: it would be from the highest number to itself.
_NOTE = 2**64 - 1


class Trace:
    """A running digest. Its value does not depend on when it is asked for."""

    __slots__ = ("_hash", "words")

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.words = array("Q")

    def note(self, *content: object) -> None:
        """Something rarer than a message. Anything that msgpack can express."""
        encoded = msgspec.msgpack.encode(content)
        self.words.extend((_NOTE, len(encoded)))
        self.flush()
        self._hash.update(encoded)

    def flush(self) -> None:
        self._hash.update(self.words)
        del self.words[:]

    def flush_when_long(self) -> None:
        if len(self.words) >= _WORDS_MAX:
            self.flush()

    def digest(self) -> str:
        self.flush()
        return self._hash.hexdigest()
