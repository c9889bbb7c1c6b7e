"""The hashes of a group's order log, as a Merkle tree in files.

Only the levels 0, 8, 16, ... are stored; a hash of level 8 stands for 256 leaves and is there as
soon as they are. Any other node is folded from at most 128 stored hashes. That keeps the tree
within 33 bytes a leaf, and everything append-only.
"""

from collections.abc import Sequence

from quorate.core.errors import LocalProtocolError
from quorate.crypto.merkle import HASH_BYTES, node_hash
from quorate.storage.columns import Column, Extent
from quorate.storage.files import Files

_HEIGHT = 8
_TILE = 1 << _HEIGHT
_EMPTY = Extent(0, 0, 0)


class Tiles:
    """A tree that grows, and whose complete nodes can be had."""

    def __init__(
        self, files: Files, stem: str, extents: Sequence[Extent], chunk_entries: int
    ) -> None:
        self._files = files
        self._stem = stem
        self._chunk_entries = chunk_entries
        self._levels: list[Column] = []
        for extent in extents or (_EMPTY,):
            self._add_level(extent)

    @property
    def columns(self) -> Sequence[Column]:
        return self._levels

    @property
    def leaves(self) -> int:
        return self._levels[0].end

    def append(self, leaves: bytes) -> None:
        """Add leaf hashes, laid end to end."""
        self._levels[0].append(leaves)
        number = 0
        while number < len(self._levels) and self._complete_tiles(number):
            number += 1

    def node(self, level: int, number: int) -> bytes:
        """The hash of a perfect tree, all of whose leaves must be here."""
        stored, above = divmod(level, _HEIGHT)
        count = 1 << above
        if min(level, number) < 0 or (number + 1) << level > self.leaves:
            raise LocalProtocolError(
                f"node {number} of level {level} is not complete: the tree has {self.leaves} leaves"
            )
        return _fold(self._levels[stored].read(number * count, count))

    def _complete_tiles(self, number: int) -> bool:
        """Fold the tiles of a level that are full by now; says whether there were any."""
        below = self._levels[number]
        full = below.end // _TILE
        if not full:
            return False
        if number + 1 == len(self._levels):
            self._add_level(_EMPTY)
        above = self._levels[number + 1]
        if above.end == full:
            return False
        for tile in range(above.end, full):
            above.append(_fold(below.read(tile * _TILE, _TILE)))
        return True

    def _add_level(self, extent: Extent) -> None:
        stem = f"{self._stem}-level-{len(self._levels) * _HEIGHT}"
        self._levels.append(Column(self._files, stem, HASH_BYTES, extent, self._chunk_entries))


def _fold(hashes: bytes) -> bytes:
    nodes = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    while len(nodes) > 1:
        nodes = list(map(node_hash, nodes[::2], nodes[1::2]))
    return nodes[0]
