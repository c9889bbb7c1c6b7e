"""The order log as a Merkle tree: roots, and proofs that leaves are in it.

Source: RFC 6962, section 2.1; what is checked is what RFC 9162 checks in section 2.1.3.2.

A tree of n leaves splits at the largest power of two below n, so that its left half is perfect
and never changes again. What grows is the right edge: a list of perfect trees, from large to
small, one for each bit of n. `Tree` keeps that edge in memory and hands every perfect tree that
is complete to whoever keeps them (`on_node`); proofs read them back (`Nodes`). Memory is
therefore logarithmic in the length of the log.

A node is named by its level (0 for leaves) and its number among the nodes of that level.

Rules:
- leaves and nodes are hashed behind different first bytes, so that no node passes for a leaf;
- every hash has 32 bytes, which the checks insist on, so that a node divides in one way only;
- a proof binds a leaf to a root, and only the checkpoint binds that root to its size: where the
  way up is the same, the proof for leaf 0 of 3 also holds for leaf 0 of 4 under the root of 3.
  Size and root are taken from one checkpoint, never from whoever sends the proof.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TypeAlias

from quorate.core.errors import LocalProtocolError, RemoteProtocolError

HASH_BYTES = 32
EMPTY_ROOT = sha256().digest()

Hash: TypeAlias = bytes
Nodes: TypeAlias = Callable[[int, int], Hash]
OnNode: TypeAlias = Callable[[int, int, Hash], None]


def leaf_hash(data: bytes) -> Hash:
    return sha256(b"\x00" + data).digest()


def node_hash(left: Hash, right: Hash) -> Hash:
    return sha256(b"\x01" + left + right).digest()


class Tree:
    """A tree that grows at its right edge."""

    __slots__ = ("_on_node", "edge", "size")

    def __init__(
        self, size: int = 0, edge: Iterable[Hash] = (), on_node: OnNode | None = None
    ) -> None:
        self.size = size
        # The perfect trees of the right edge, from large to small.
        self.edge = list(edge)
        self._on_node = on_node
        if size < 0 or len(self.edge) != size.bit_count():
            raise LocalProtocolError(
                f"a tree of {size} leaves with an edge of {len(self.edge)} nodes"
            )

    def append(self, leaf: Hash) -> None:
        """Add the hash of a leaf, and join what becomes perfect by it."""
        if len(leaf) != HASH_BYTES:
            raise LocalProtocolError(f"a tree takes the leaf_hash of data, not {len(leaf)} bytes")
        level, number, node, on_node = 0, self.size, leaf, self._on_node
        if on_node is not None:
            on_node(0, number, node)
        while number & 1:
            node = node_hash(self.edge.pop(), node)
            level, number = level + 1, number >> 1
            if on_node is not None:
                on_node(level, number, node)
        self.edge.append(node)
        self.size += 1

    def root(self) -> Hash:
        return _joined(self.edge) if self.edge else EMPTY_ROOT


def edge_of(nodes: Nodes, size: int) -> list[Hash]:
    """The right edge of the first `size` leaves: with it, a tree can go on from there."""
    return [nodes(level, number) for level, number in _perfect_trees(0, size)]


def inclusion_proof(nodes: Nodes, index: int, size: int) -> list[Hash]:
    """The hashes that lead from a leaf to the root of the first `size` leaves."""
    if not 0 <= index < size:
        raise LocalProtocolError(f"leaf {index} of a tree of {size} leaves")
    return [_subtree(nodes, start, end) for start, end in _siblings(index, 0, size)]


def way_up(index: int, size: int) -> tuple[bool, ...]:
    """Of each hash that leads from a leaf to the root, whether it lies to the left."""
    return tuple(start < index for start, _ in _siblings(index, 0, size))


def runs_proof(nodes: Nodes, runs: Sequence[range], size: int) -> list[Hash]:
    """The hashes that lead from runs of leaves, in their order, to the root of `size` leaves.

    It has what lies beside the runs, from left to right, and so a hash or two for each of them
    however long it is. Of a single leaf it has the hashes of an inclusion proof, in another order.
    """
    if not _are_runs(runs, size):
        raise LocalProtocolError(f"a proof of {len(runs)} runs that are not leaves of {size}")
    return [_subtree(nodes, start, end) for start, end in _beside(runs, 0, size)]


def check_inclusion(leaf: Hash, index: int, size: int, path: Sequence[Hash], root: Hash) -> None:
    """The leaf is number `index` of the `size` under this root, or `RemoteProtocolError`."""
    if not 0 <= index < size:
        raise RemoteProtocolError(f"a proof for leaf {index} of a tree of {size} leaves")
    _check_hashes((leaf, *path))
    node, way = leaf, way_up(index, size)
    if len(path) != len(way):
        kind = "long" if len(path) > len(way) else "short"
        raise RemoteProtocolError(f"an inclusion proof that is too {kind}")
    for is_left, sibling in zip(way, path, strict=True):
        node = node_hash(sibling, node) if is_left else node_hash(node, sibling)
    if node != root:
        raise RemoteProtocolError(f"an inclusion proof of leaf {index} that leads to another root")


def check_runs(
    leaves: Sequence[Hash], runs: Sequence[range], size: int, path: Sequence[Hash], root: Hash
) -> None:
    """The leaves are those of these runs, of `size` under this root, or `RemoteProtocolError`."""
    if not _are_runs(runs, size) or sum(map(len, runs)) != len(leaves):
        raise RemoteProtocolError(f"a proof of {len(runs)} runs that are not leaves of {size}")
    _check_hashes((*leaves, *path))
    beside, leaf = iter(path), iter(leaves)
    try:
        found = _joined_runs(runs, 0, size, beside, leaf)
    except StopIteration:
        raise RemoteProtocolError("a proof of runs that is too short") from None
    if next(beside, None) is not None:
        raise RemoteProtocolError("a proof of runs that is too long")
    if found != root:
        raise RemoteProtocolError("a proof of runs that leads to another root")


def nodes_of_runs(
    leaves: Sequence[Hash], runs: Sequence[range], size: int, path: Sequence[Hash], on_node: OnNode
) -> None:
    """Tell all perfect trees that a proof of runs, which was checked, has or leads to.

    A perfect tree never changes again. So two proofs that have different ones at one place are of
    trees of which neither is the start of the other.
    """
    _joined_runs(runs, 0, size, iter(path), iter(leaves), on_node)


def inclusion_in_runs(
    index: int, leaves: Sequence[Hash], runs: Sequence[range], size: int, path: Sequence[Hash]
) -> list[Hash]:
    """The inclusion proof of one leaf, out of a proof of runs that has it among its leaves.

    What lies beside the way up is either in the runs, or beside them, or made of both. Whether it
    leads to a root, whoever gets the inclusion proof looks.
    """
    if not _are_runs(runs, size) or sum(map(len, runs)) != len(leaves):
        raise RemoteProtocolError(f"a proof of {len(runs)} runs that are not leaves of {size}")
    if not any(index in run for run in runs):
        raise LocalProtocolError(f"leaf {index} is in none of {len(runs)} runs")
    found: list[Hash] = []
    try:
        _climb_runs(index, runs, 0, size, iter(path), iter(leaves), found)
    except StopIteration:
        raise RemoteProtocolError("a proof of runs that is too short") from None
    return found


def _check_hashes(hashes: Iterable[Hash]) -> None:
    for one in hashes:
        if len(one) != HASH_BYTES:
            raise RemoteProtocolError(f"a proof with a hash of {len(one)} bytes, not {HASH_BYTES}")


def _split(start: int, end: int) -> int:
    """Where a tree of these leaves divides: after the largest power of two that is not all."""
    return start + (1 << (end - start - 1).bit_length() - 1)


def _siblings(index: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges beside the way from a leaf to the root, from the leaf on (RFC 6962, PATH)."""
    if end - start == 1:
        return
    middle = _split(start, end)
    if index < middle:
        yield from _siblings(index, start, middle)
        yield middle, end
    else:
        yield from _siblings(index, middle, end)
        yield start, middle


def _are_runs(runs: Sequence[range], size: int) -> bool:
    """Whether there are any, all of them have leaves, and each begins behind the one before."""
    ends = [0, *(run.stop for run in runs)]
    return (
        bool(runs)
        and ends[-1] <= size
        and all(
            end <= run.start < run.stop and run.step == 1
            for end, run in zip(ends, runs, strict=False)
        )
    )


def _beside(runs: Sequence[range], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges that have no leaf of any run, as large as they can be, from left to right."""
    runs = _within(runs, start, end)
    if not runs:
        yield start, end
    elif not _covers(runs[0], start, end):
        middle = _split(start, end)
        yield from _beside(runs, start, middle)
        yield from _beside(runs, middle, end)


def _joined_runs(
    runs: Sequence[range],
    start: int,
    end: int,
    beside: Iterator[Hash],
    leaf: Iterator[Hash],
    on_node: OnNode | None = None,
) -> Hash:
    """The root of a range, of which the runs have their leaves, and the rest comes `beside`."""
    runs = _within(runs, start, end)
    if not runs:
        root = next(beside)
    elif end - start == 1:
        root = next(leaf)
    elif _covers(runs[0], start, end):
        return _joined_leaves(start, end, leaf, on_node)
    else:
        middle = _split(start, end)
        left = _joined_runs(runs, start, middle, beside, leaf, on_node)
        root = node_hash(left, _joined_runs(runs, middle, end, beside, leaf, on_node))
    level = (end - start).bit_length() - 1
    if on_node is not None and end - start == 1 << level:
        on_node(level, start >> level, root)
    return root


def _joined_leaves(start: int, end: int, leaf: Iterator[Hash], on_node: OnNode | None) -> Hash:
    """The root of a range of which all leaves are there."""
    here: OnNode | None = None
    if on_node is not None:
        # A range that a tree divides into starts at a multiple of every tree in it.
        def here(level: int, number: int, node: Hash) -> None:
            on_node(level, (start >> level) + number, node)

    tree = Tree(on_node=here)
    for _ in range(start, end):
        tree.append(next(leaf))
    return tree.root()


def _climb_runs(
    index: int,
    runs: Sequence[range],
    start: int,
    end: int,
    beside: Iterator[Hash],
    leaf: Iterator[Hash],
    found: list[Hash],
) -> None:
    """Add what lies beside the way from a leaf to the root of a range, from the leaf on.

    Hashes and leaves are taken from left to right, as `_joined_runs` takes them.
    """
    if end - start == 1:
        next(leaf)
        return
    middle = _split(start, end)
    if index < middle:
        _climb_runs(index, runs, start, middle, beside, leaf, found)
        found.append(_joined_runs(runs, middle, end, beside, leaf))
    else:
        left = _joined_runs(runs, start, middle, beside, leaf)
        _climb_runs(index, runs, middle, end, beside, leaf, found)
        found.append(left)


def _within(runs: Sequence[range], start: int, end: int) -> Sequence[range]:
    """Those of the runs that have leaves of this range."""
    first = bisect_right(runs, start, key=lambda run: run.stop)
    return runs[first : bisect_left(runs, end, lo=first, key=lambda run: run.start)]


def _covers(run: range, start: int, end: int) -> bool:
    return run.start <= start and end <= run.stop


def _subtree(nodes: Nodes, start: int, end: int) -> Hash:
    """The root of a range that a proof asks for."""
    return _joined([nodes(level, number) for level, number in _perfect_trees(start, end)])


def _joined(trees: Sequence[Hash]) -> Hash:
    """The root over perfect trees from large to small: they are joined from the right."""
    *rest, root = trees
    for tree in reversed(rest):
        root = node_hash(tree, root)
    return root


def _perfect_trees(start: int, end: int) -> Iterator[tuple[int, int]]:
    """A range as perfect trees from large to small; it starts at a multiple of the largest."""
    while start < end:
        level = (end - start).bit_length() - 1
        yield level, start >> level
        start += 1 << level
