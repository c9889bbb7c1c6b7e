"""The tree is that of RFC 6962, and no proof holds for anything but what it was made for."""

from collections import Counter
from collections.abc import Callable
from typing import ParamSpec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.crypto.merkle import (
    EMPTY_ROOT,
    Hash,
    Tree,
    check_inclusion,
    check_runs,
    edge_of,
    inclusion_in_runs,
    inclusion_proof,
    leaf_hash,
    node_hash,
    nodes_of_runs,
    runs_proof,
)

# The leaves, roots and proofs of the reference implementation of certificate transparency.
REFERENCE = [
    bytes.fromhex(data)
    for data in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
REFERENCE_ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}
REFERENCE_INCLUSION = {
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
P = ParamSpec("P")

SIZE_MAX = 40
OTHER = leaf_hash(b"another leaf")


class Grown:
    """A tree with everything that was kept of it, and its root at every size."""

    def __init__(self, data: list[bytes]) -> None:
        self.data = data
        self.kept: dict[tuple[int, int], Hash] = {}
        self.calls: Counter[tuple[int, int]] = Counter()
        self.tree = Tree(on_node=self._keep)
        self.roots = [self.tree.root()]
        for one in data:
            self.tree.append(leaf_hash(one))
            self.roots.append(self.tree.root())

    def _keep(self, level: int, number: int, node: Hash) -> None:
        self.kept[level, number] = node
        self.calls[level, number] += 1

    def nodes(self, level: int, number: int) -> Hash:
        return self.kept[level, number]

    def inclusion(self, index: int, size: int) -> list[Hash]:
        return inclusion_proof(self.nodes, index, size)

    def check_inclusion(self, index: int, size: int, path: list[Hash]) -> None:
        check_inclusion(self.kept[0, index], index, size, path, self.roots[size])


REFERENCE_TREE = Grown(REFERENCE)
TREE = Grown([b"leaf %d" % number for number in range(SIZE_MAX)])
PLACES = [(index, size) for size in range(1, SIZE_MAX + 1) for index in range(size)]


# The definitions of RFC 6962, section 2.1, word for word: slow, and plainly right.


def split(n: int) -> int:
    return max(1 << bit for bit in range(n.bit_length()) if 1 << bit < n)


def mth(data: list[bytes]) -> Hash:
    if not data:
        return EMPTY_ROOT
    if len(data) == 1:
        return leaf_hash(data[0])
    k = split(len(data))
    return node_hash(mth(data[:k]), mth(data[k:]))


def audit_path(m: int, data: list[bytes]) -> list[Hash]:
    if len(data) == 1:
        return []
    k = split(len(data))
    if m < k:
        return [*audit_path(m, data[:k]), mth(data[k:])]
    return [*audit_path(m - k, data[k:]), mth(data[:k])]


def damaged(path: list[Hash]) -> list[list[Hash]]:
    """Every path that differs in one hash, in the order of two, or by one hash too few or many."""
    places = range(len(path))
    altered = [[*path[:i], flipped(path[i]), *path[i + 1 :]] for i in places]
    swapped = [swap(path, i, j) for i in places for j in range(i)]
    missing = [[*path[:i], *path[i + 1 :]] for i in places]
    added = [
        [*path[:i], extra, *path[i:]] for i in (*places, len(path)) for extra in (OTHER, *path)
    ]
    return [*altered, *swapped, *missing, *added]


def flipped(node: Hash) -> Hash:
    return bytes([node[0] ^ 1]) + node[1:]


def swap(path: list[Hash], i: int, j: int) -> list[Hash]:
    swapped = list(path)
    swapped[i], swapped[j] = path[j], path[i]
    return swapped


def refused(check: Callable[P, None], *args: P.args, **options: P.kwargs) -> bool:
    try:
        check(*args, **options)
    except RemoteProtocolError:
        return True
    return False


def root_of(grown: Grown, size: int) -> Hash:
    """That of a tree which goes on from the edge of another."""
    return Tree(size, edge_of(grown.nodes, size)).root()


def unhex(path: list[str]) -> list[Hash]:
    return [bytes.fromhex(node) for node in path]


@pytest.mark.parametrize("size", REFERENCE_ROOTS)
def test_the_roots_are_those_of_the_reference(size: int) -> None:
    assert REFERENCE_TREE.roots[size].hex() == REFERENCE_ROOTS[size]
    assert root_of(REFERENCE_TREE, size).hex() == REFERENCE_ROOTS[size]


@pytest.mark.parametrize(("index", "size"), REFERENCE_INCLUSION)
def test_the_inclusion_proofs_are_those_of_the_reference(index: int, size: int) -> None:
    path = unhex(REFERENCE_INCLUSION[index, size])

    assert REFERENCE_TREE.inclusion(index, size) == path
    REFERENCE_TREE.check_inclusion(index, size, path)


def test_roots_and_proofs_are_those_of_the_text_of_the_rfc() -> None:
    for size in range(SIZE_MAX + 1):
        assert root_of(TREE, size) == TREE.roots[size] == mth(TREE.data[:size])
    for index, size in PLACES:
        assert TREE.inclusion(index, size) == audit_path(index, TREE.data[:size])


@pytest.mark.parametrize("size", [63, 64, 65, 127, 128, 129, 130])
def test_they_are_so_around_larger_powers_of_two(size: int) -> None:
    grown = Grown([b"leaf %d" % number for number in range(130)])
    data = grown.data[:size]
    assert grown.roots[size] == mth(data)
    for at in range(size):
        inclusion = grown.inclusion(at, size)
        assert inclusion == audit_path(at, data)
        grown.check_inclusion(at, size, inclusion)


@given(data=st.lists(st.binary(max_size=5), min_size=1, max_size=300), draw=st.data())
def test_what_a_tree_proves_holds(data: list[bytes], draw: st.DataObject) -> None:
    grown = Grown(data)
    size = draw.draw(st.integers(1, len(data)))
    index = draw.draw(st.integers(0, size - 1))

    assert grown.roots[size] == mth(data[:size])
    grown.check_inclusion(index, size, grown.inclusion(index, size))


def test_every_inclusion_proof_holds_and_no_damaged_one_does() -> None:
    for index, size in PLACES:
        path = TREE.inclusion(index, size)
        TREE.check_inclusion(index, size, path)
        for bad in damaged(path):
            assert refused(TREE.check_inclusion, index, size, bad), (index, size)


def test_an_inclusion_proof_holds_for_no_other_leaf_index_or_root() -> None:
    for index, size in PLACES:
        leaf, path, root = TREE.kept[0, index], TREE.inclusion(index, size), TREE.roots[size]
        assert refused(check_inclusion, OTHER, index, size, path, root)
        for other in {*range(-1, size + 1)} - {index}:
            assert refused(check_inclusion, leaf, other, size, path, root), (index, size)
        for other_root in {OTHER, *TREE.roots} - {root}:
            assert refused(check_inclusion, leaf, index, size, path, other_root)


def test_an_inclusion_proof_does_not_hold_for_the_tree_of_another_size() -> None:
    for index, size in PLACES:
        path = TREE.inclusion(index, size)
        for other in {*range(index + 1, SIZE_MAX + 1)} - {size}:
            assert refused(TREE.check_inclusion, index, other, path), (index, size, other)


def test_a_root_under_a_size_that_is_not_its_own_is_for_the_checkpoint_to_refuse() -> None:
    # The way from leaf 0 is the same in trees of 3 and of 4 leaves, so the proof cannot tell.
    path = TREE.inclusion(0, 3)

    check_inclusion(TREE.kept[0, 0], 0, 4, path, TREE.roots[3])
    assert refused(check_inclusion, TREE.kept[0, 0], 0, 5, path, TREE.roots[3])


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_hash_of_another_length_is_refused_wherever_it_stands(length: int) -> None:
    odd = bytes(length)
    leaf, path = TREE.kept[0, 2], TREE.inclusion(2, 7)

    with pytest.raises(RemoteProtocolError, match=f"a hash of {length} bytes, not 32"):
        check_inclusion(odd, 2, 7, path, TREE.roots[7])
    with pytest.raises(RemoteProtocolError, match=f"a hash of {length} bytes, not 32"):
        check_inclusion(leaf, 2, 7, [*path[:-1], odd], TREE.roots[7])


def test_a_leaf_and_its_sibling_divide_in_one_way_only() -> None:
    # Without the check of lengths, 33 and 31 bytes would hash to the same node as 32 and 32.
    left, right = TREE.kept[0, 0], TREE.kept[0, 1]

    assert node_hash(left + right[:1], right[1:]) == TREE.roots[2]
    assert refused(check_inclusion, left + right[:1], 0, 2, [right[1:]], TREE.roots[2])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda path: path[:-1], "an inclusion proof that is too short"),
        (lambda path: [*path, OTHER], "an inclusion proof that is too long"),
        (lambda path: path[::-1], "an inclusion proof of leaf 2 that leads to another root"),
    ],
)
def test_what_is_wrong_with_an_inclusion_proof_is_said(
    change: Callable[[list[Hash]], list[Hash]], sentence: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        TREE.check_inclusion(2, 7, change(TREE.inclusion(2, 7)))


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0), (0, -1)])
def test_there_is_no_proof_for_a_leaf_that_is_not_in_the_tree(index: int, size: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"leaf {index} of a tree of {size} leaves"):
        TREE.inclusion(index, size)
    with pytest.raises(RemoteProtocolError, match=f"leaf {index} of a tree of {size} leaves"):
        check_inclusion(OTHER, index, size, [], OTHER)


@pytest.mark.parametrize("size", range(SIZE_MAX + 1))
def test_a_tree_resumed_from_its_edge_goes_on_equally(size: int) -> None:
    kept: dict[tuple[int, int], Hash] = {}

    def keep(level: int, number: int, node: Hash) -> None:
        kept[level, number] = node

    resumed = Tree(size, edge_of(TREE.nodes, size), keep)
    assert resumed.root() == TREE.roots[size]
    for data, root in zip(TREE.data[size:], TREE.roots[size + 1 :], strict=True):
        resumed.append(leaf_hash(data))
        assert resumed.root() == root

    assert (resumed.size, resumed.edge) == (TREE.tree.size, TREE.tree.edge)
    later = {place for place in TREE.kept if (place[1] + 1) << place[0] > size}
    assert kept == {place: TREE.kept[place] for place in later}


@pytest.mark.parametrize("size", range(SIZE_MAX + 1))
def test_every_perfect_tree_is_handed_over_exactly_once(size: int) -> None:
    grown = Grown(TREE.data[:size])
    perfect = [(level, number) for level in range(7) for number in range(size >> level)]

    assert grown.calls == Counter(perfect)
    for level, number in perfect:
        leaves = TREE.data[number << level : (number + 1) << level]
        assert grown.kept[level, number] == mth(leaves)


def test_a_tree_keeps_one_node_for_each_bit_of_its_size() -> None:
    tree = Tree()
    for size in range(1, 1000):
        tree.append(OTHER)
        assert len(tree.edge) == size.bit_count()


@pytest.mark.parametrize(("size", "edge"), [(0, 1), (1, 0), (3, 1), (4, 2), (-1, 1)])
def test_a_tree_does_not_resume_from_an_edge_that_is_not_of_its_size(size: int, edge: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"{size} leaves with an edge of {edge} nodes"):
        Tree(size, [OTHER] * edge)


@pytest.mark.parametrize("data", [b"", b"the data itself", bytes(33)])
def test_a_tree_takes_hashes_and_not_data(data: bytes) -> None:
    tree = Tree()
    with pytest.raises(LocalProtocolError, match=f"leaf_hash of data, not {len(data)} bytes"):
        tree.append(data)
    assert tree.root() == EMPTY_ROOT


def test_no_node_passes_for_a_leaf() -> None:
    left, right = TREE.kept[0, 0], TREE.kept[0, 1]
    assert leaf_hash(left + right) != node_hash(left, right)


@st.composite
def some_runs(draw: st.DrawFn) -> tuple[int, list[range]]:
    """A size, and runs of leaves of such a tree."""
    size = draw(st.integers(1, 70))
    cuts = sorted(draw(st.sets(st.integers(0, size), min_size=2, max_size=9)))
    runs = [range(start, end) for start, end in zip(cuts[::2], cuts[1::2], strict=False)]
    return size, runs


def leaves_in(runs: list[range]) -> list[Hash]:
    return [leaf_hash(bytes([index])) for run in runs for index in run]


@given(some_runs())
def test_runs_of_leaves_lead_to_the_root(case: tuple[int, list[range]]) -> None:
    size, runs = case
    nodes, root = grown(size)

    check_runs(leaves_in(runs), runs, size, runs_proof(nodes, runs, size), root)


@given(some_runs())
def test_a_proof_of_runs_tells_perfect_trees_as_they_are(case: tuple[int, list[range]]) -> None:
    size, runs = case
    nodes, _ = grown(size)
    told: dict[tuple[int, int], Hash] = {}

    nodes_of_runs(
        leaves_in(runs), runs, size, runs_proof(nodes, runs, size),
        lambda level, number, node: told.update({(level, number): node}),
    )  # fmt: skip

    assert told == {place: nodes(*place) for place in told}
    assert {(0, index) for run in runs for index in run} <= told.keys()


@given(some_runs(), st.data())
def test_a_proof_of_runs_holds_for_nothing_else(
    case: tuple[int, list[range]], data: st.DataObject
) -> None:
    size, runs = case
    nodes, root = grown(size)
    leaves, path = leaves_in(runs), runs_proof(nodes, runs, size)
    hashes = leaves + path
    at = data.draw(st.integers(0, len(hashes) - 1))
    changed = [*hashes[:at], leaf_hash(b"another"), *hashes[at + 1 :]]

    with pytest.raises(RemoteProtocolError):
        check_runs(changed[: len(leaves)], runs, size, changed[len(leaves) :], root)
    with pytest.raises(RemoteProtocolError):
        check_runs(leaves, runs, size, [*path, path[0] if path else root], root)
    if path:
        with pytest.raises(RemoteProtocolError):
            check_runs(leaves, runs, size, path[:-1], root)


@given(st.integers(1, 70), st.data())
def test_a_run_of_one_leaf_has_the_hashes_of_its_inclusion_proof(
    size: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, size - 1))
    nodes, _ = grown(size)

    proof = runs_proof(nodes, [range(index, index + 1)], size)

    assert sorted(proof) == sorted(inclusion_proof(nodes, index, size))


@given(some_runs(), st.data())
def test_each_leaf_of_runs_has_its_inclusion_proof_out_of_theirs(
    case: tuple[int, list[range]], data: st.DataObject
) -> None:
    size, runs = case
    nodes, root = grown(size)
    index = data.draw(st.sampled_from([leaf for run in runs for leaf in run]))

    path = inclusion_in_runs(index, leaves_in(runs), runs, size, runs_proof(nodes, runs, size))

    assert path == inclusion_proof(nodes, index, size)
    check_inclusion(leaf_hash(bytes([index])), index, size, path, root)


def test_a_leaf_outside_of_runs_has_no_inclusion_proof_out_of_theirs() -> None:
    nodes, _ = grown(8)
    runs = [range(1, 3), range(5, 6)]
    path = runs_proof(nodes, runs, 8)

    with pytest.raises(LocalProtocolError, match="leaf 4 is in none of 2 runs"):
        inclusion_in_runs(4, leaves_in(runs), runs, 8, path)
    with pytest.raises(RemoteProtocolError, match="too short"):
        inclusion_in_runs(5, leaves_in(runs), runs, 8, path[:1])
    with pytest.raises(RemoteProtocolError, match="that are not leaves of 5"):
        inclusion_in_runs(1, leaves_in(runs), runs, 5, path)


@pytest.mark.parametrize(
    "runs",
    [[], [range(3, 3)], [range(5, 9)], [range(4, 6), range(2, 3)], [range(1, 4), range(3, 5)]],
)
def test_what_are_no_runs_of_the_tree_is_refused(runs: list[range]) -> None:
    nodes, root = grown(8)

    with pytest.raises(LocalProtocolError, match="that are not leaves of 8"):
        runs_proof(nodes, runs, 8)
    with pytest.raises(RemoteProtocolError, match="that are not leaves of 8"):
        check_runs(leaves_in(runs), runs, 8, [], root)


def grown(size: int) -> tuple[Callable[[int, int], Hash], Hash]:
    """A tree of so many leaves: its nodes, and its root."""
    kept: dict[tuple[int, int], Hash] = {}
    tree = Tree(on_node=lambda level, number, node: kept.update({(level, number): node}))
    for index in range(size):
        tree.append(leaf_hash(bytes([index])))
    return lambda level, number: kept[level, number], tree.root()
