"""The hashes of a group's order log, as a Merkle tree in files.

Only the levels 0, 8, 16, ... are stored; a hash of level 8 stands for 256 leaves and is there as
soon as they are. Any other node is folded from at most 128 stored hashes. That keeps the tree
within 33 bytes a leaf, and everything append-only.

A tree may begin with the right edge of one whose leaves are not here. Whatever later leaves need
for their proofs is then in the edge or behind it: a node that ends before the start, and whose
neighbour does not, is one of the edge. What lies further back is not known any more.
"""

from collections.abc import Sequence

from quorate.core.errors import LocalProtocolError
from quorate.crypto.merkle import HASH_BYTES, Tree, node_hash
from quorate.storage.columns import Column, Extent
from quorate.storage.files import Files

_HEIGHT = 8
_TILE = 1 << _HEIGHT
_EMPTY = Extent(0, 0, 0)


class Tiles:
    """A tree that grows, and whose complete nodes can be had."""

    def __init__(
        self,
        files: Files,
        stem: str,
        extents: Sequence[Extent],
        chunk_entries: int,
        edge: Sequence[bytes] = (),
    ) -> None:
        self.edge = list(edge)
        self._files = files
        self._stem = stem
        self._chunk_entries = chunk_entries
        self._levels: list[Column] = []
        for extent in extents or (_EMPTY,):
            self._add_level(extent)
        # The first leaf that is here, and the nodes of the edge before it by level.
        self.start = self._levels[0].origin
        bits = (bit for bit in reversed(range(self.start.bit_length())) if self.start >> bit & 1)
        self._edge = dict(zip(bits, self.edge, strict=True))

    @staticmethod
    def extents_from(size: int) -> list[Extent]:
        """Of a tree that begins behind so many leaves."""
        extents = [Extent(size, size, size)]
        while size := size >> _HEIGHT:
            extents.append(Extent(size, size, size))
        return extents

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
        if min(level, number) < 0 or (number + 1) << level > self.leaves:
            raise LocalProtocolError(
                f"node {number} of level {level} is not complete: the tree has {self.leaves} leaves"
            )
        stored, above = divmod(level, _HEIGHT)
        count = 1 << above
        if number << level >= self.start:
            return _fold(self._levels[stored].read(number * count, count))
        if (number + 1) << level > self.start:
            return node_hash(self.node(level - 1, 2 * number), self.node(level - 1, 2 * number + 1))
        # The edge has one node of a level, and all larger ones stand before it.
        if level in self._edge and number == (self.start >> level) - 1:
            return self._edge[level]
        raise LocalProtocolError(
            f"node {number} of level {level} lies before leaf {self.start}, where this log began "
            "with a snapshot"
        )

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
            above.append(self._tile(number, tile))
        return True

    def _tile(self, number: int, tile: int) -> bytes:
        """The hash over a tile that is full, of which the beginning may be in the edge only."""
        below, first = self._levels[number], tile * _TILE
        if first >= below.origin:
            return _fold(below.read(first, _TILE))
        low = number * _HEIGHT
        edge = [node for level, node in self._edge.items() if low <= level < low + _HEIGHT]
        tree = Tree(below.origin - first, edge)
        hashes = below.read(below.origin, first + _TILE - below.origin)
        for at in range(0, len(hashes), HASH_BYTES):
            tree.append(hashes[at : at + HASH_BYTES])
        return tree.root()

    def _add_level(self, extent: Extent) -> None:
        stem = f"{self._stem}-level-{len(self._levels) * _HEIGHT}"
        self._levels.append(Column(self._files, stem, HASH_BYTES, extent, self._chunk_entries))


def _fold(hashes: bytes) -> bytes:
    nodes = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    while len(nodes) > 1:
        nodes = list(map(node_hash, nodes[::2], nodes[1::2]))
    return nodes[0]
