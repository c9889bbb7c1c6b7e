"""Disks that keep what was synced and gamble with the rest.

A disk is one append-only file of checksummed frames. A crash keeps every synced byte; of the
bytes after that it keeps all, none, or a part that ends anywhere, perhaps inside a frame,
perhaps followed by zeros where the file had grown before its content came. Reading back stops
at the first frame that does not check, as a real log does: a torn record is never seen as a
record, and neither is anything behind it.
"""

from collections.abc import Iterable, Iterator
from random import Random
from struct import Struct
from zlib import crc32

import msgspec

from quorate.protocol.ordering.records import Record

# checksum and length of what follows
_FRAME = Struct("<II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


class SimDisk:
    """What one node has written. It outlives the node's machines."""

    __slots__ = ("_bytes", "synced_bytes")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.synced_bytes = 0

    @property
    def written_bytes(self) -> int:
        return len(self._bytes)

    def append(self, records: Iterable[Record]) -> None:
        for record in records:
            self._bytes += _frame(record)

    def sync(self, through: int | None = None) -> None:
        """Everything up to `through` bytes is safe from now on; by default, all of it.

        A sync covers what was written when it began, not what came while it ran.
        """
        self.synced_bytes = max(
            self.synced_bytes, self.written_bytes if through is None else through
        )

    def crash(self, random: Random) -> str:
        """Lose what was not synced, or some of it, or nothing; says which happened.

        The answer is "", "kept", "torn" or "lost", where "" means that nothing was at stake.
        """
        at_stake = self.written_bytes - self.synced_bytes
        if not at_stake:
            return ""
        fate = random.choice(("kept", "torn", "lost"))
        if fate != "kept":
            cut = random.randrange(1, at_stake + 1) if fate == "torn" else at_stake
            del self._bytes[self.written_bytes - cut :]
            if fate == "torn" and random.random() < 0.5:
                self._bytes += bytes(cut)
        self._truncate_to_whole_frames()
        return fate

    def wipe(self) -> None:
        """Amnesia: the node comes back with an empty disk."""
        self._bytes.clear()
        self.synced_bytes = 0

    def read(self) -> list[Record]:
        """Every whole record, in the order of writing."""
        return [record for record, _ in self._frames()]

    def read_from(self, start: int) -> tuple[list[Record], int]:
        """The records behind this many bytes, and how many bytes that makes."""
        if start == self.written_bytes:
            return [], start
        found = list(self._frames(start))
        return [record for record, _ in found], found[-1][1] if found else start

    def _truncate_to_whole_frames(self) -> None:
        # What comes next must follow the last good frame, or nobody would ever read it.
        end = 0
        for _, end in self._frames():
            pass
        del self._bytes[end:]
        self.synced_bytes = end

    def _frames(self, start: int = 0) -> Iterator[tuple[Record, int]]:
        data, at = memoryview(bytes(self._bytes[start:])), 0
        while at + _FRAME.size <= len(data):
            checksum, length = _FRAME.unpack_from(data, at)
            body = at + _FRAME.size
            at = body + length
            # Zeros would be a whole frame of nothing.
            if not length or at > len(data) or crc32(data[body:at]) != checksum:
                return
            yield _decoder.decode(data[body:at]), start + at


def _frame(record: Record) -> bytes:
    body = _encoder.encode(record)
    return _FRAME.pack(crc32(body), len(body)) + body
