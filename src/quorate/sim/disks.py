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

from quorate.protocol.machine import Record

# checksum of what follows, length of the key, length of the value
_FRAME = Struct("<III")
_LENGTHS = Struct("<II")


class SimDisk:
    """What one node has written. It outlives the node's machines."""

    __slots__ = ("_bytes", "_synced")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._synced = 0

    @property
    def written_bytes(self) -> int:
        return len(self._bytes)

    @property
    def synced_bytes(self) -> int:
        return self._synced

    def append(self, records: Iterable[Record]) -> None:
        for record in records:
            self._bytes += _frame(record)

    def sync(self, through: int | None = None) -> None:
        """Everything up to `through` bytes is safe from now on; by default, all of it.

        A sync covers what was written when it began, not what came while it ran.
        """
        self._synced = max(self._synced, self.written_bytes if through is None else through)

    def crash(self, random: Random) -> str:
        """Lose what was not synced, or some of it, or nothing; says which happened.

        The answer is "", "kept", "torn" or "lost", where "" means that nothing was at stake.
        """
        at_stake = self.written_bytes - self._synced
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
        self._synced = 0

    def read(self) -> list[Record]:
        """Every whole record, in the order of writing."""
        return [record for record, _ in self._frames()]

    def _truncate_to_whole_frames(self) -> None:
        # What comes next must follow the last good frame, or nobody would ever read it.
        end = 0
        for _, end in self._frames():
            pass
        del self._bytes[end:]
        self._synced = end

    def _frames(self) -> Iterator[tuple[Record, int]]:
        data, at = bytes(self._bytes), 0
        while at + _FRAME.size <= len(data):
            checksum, key_bytes, value_bytes = _FRAME.unpack_from(data, at)
            start = at + _FRAME.size
            middle, at = start + key_bytes, start + key_bytes + value_bytes
            if at > len(data) or crc32(data[start - _LENGTHS.size : at]) != checksum:
                return
            yield Record(data[start:middle].decode(), data[middle:at]), at


def _frame(record: Record) -> bytes:
    key = record.key.encode()
    body = _LENGTHS.pack(len(key), len(record.value)) + key + record.value
    return crc32(body).to_bytes(4, "little") + body
