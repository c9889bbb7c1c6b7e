"""What the journal has in place of a payload that is kept outside: where that is, and its digest.

A pointer begins with a mark that was drawn at random when this replica first kept something
outside. It stands in a file beside the journal, and nobody else knows it: no payload that a
publisher makes up passes for a pointer. The same file says what each topic is called outside, so
that pointers can be followed before anything else is known.
"""

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec

from quorate.core.ids import Digest, TopicId
from quorate.storage.errors import StorageError
from quorate.storage.formats import Format

_MARK_BYTES = 16
_NAME = "outside"
# mark, offset outside, length, digest
_POINTER = Struct(f"<{_MARK_BYTES}sQI32s")
POINTER_BYTES = _POINTER.size


class Pointer(NamedTuple):
    """A payload of this length and digest, at this offset of where the partition is outside."""

    offset: int
    length: int
    digest: Digest


class _Saved(msgspec.Struct, frozen=True):
    mark: bytes
    names: dict[TopicId, str]


# Of the pointers in the journal as well.
POINTERS = Format("outside", {1: msgspec.msgpack.Decoder(_Saved).decode})


class Pointers:
    """Pointers as bytes, and where they lead, of one replica."""

    def __init__(self, directory: Path) -> None:
        """Those in this directory; new ones, if nothing was kept outside yet."""
        self._path = directory / _NAME
        saved = _load(self._path)
        self._mark = os.urandom(_MARK_BYTES) if saved is None else saved.mark
        self.names: dict[TopicId, str] = {} if saved is None else saved.names
        if saved is None:
            self._save()

    @staticmethod
    def are_in(directory: Path) -> bool:
        """Whether a replica that keeps its data here has ever kept anything outside."""
        return (directory / _NAME).exists()

    def name(self, topic: TopicId, wanted: str) -> str:
        """What this topic is called outside: as ever, or as wanted if it is new."""
        if topic not in self.names:
            self.names[topic] = wanted
            self._save()
        return self.names[topic]

    def encode(self, pointer: Pointer) -> bytes:
        return _POINTER.pack(self._mark, *pointer)

    def decode(self, payload: bytes) -> Pointer | None:
        """The pointer that stands for a payload; None if this is the payload itself."""
        if len(payload) != POINTER_BYTES or payload[:_MARK_BYTES] != self._mark:
            return None
        return Pointer(*_POINTER.unpack(payload)[1:])

    def _save(self) -> None:
        POINTERS.save(self._path, _Saved(self._mark, self.names))


def _load(path: Path) -> _Saved | None:
    saved = POINTERS.load(path)
    if saved is not None and len(saved.mark) != _MARK_BYTES:
        raise StorageError(f"{path} is not one that this version can read: it has a wrong mark")
    return saved
