"""Columns hold entries by number, across chunks, buffers and restarts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.crypto.merkle import node_hash
from quorate.storage.columns import Column, Extent
from quorate.storage.files import Files
from quorate.storage.tiles import Tiles

WIDTH, CHUNK = 3, 4


def entry(number: int) -> bytes:
    return number.to_bytes(WIDTH, "big")


def entries(first: int, end: int) -> bytes:
    return b"".join(map(entry, range(first, end)))


def column(directory: Path, extent: Extent) -> Column:
    return Column(Files(2), f"{directory}/column", WIDTH, extent, CHUNK)


steps = st.lists(
    st.tuples(st.sampled_from(["append", "flush", "sync", "trim", "reopen"]), st.integers(0, 9)),
    max_size=20,
)


@given(st.integers(0, 9), steps)
def test_a_column_is_a_list_whose_beginning_may_go(
    tmp_path_factory: pytest.TempPathFactory, origin: int, steps: list[tuple[str, int]]
) -> None:
    directory = tmp_path_factory.mktemp("column")
    files = Files(2)
    stem = f"{directory}/column"
    this = Column(files, stem, WIDTH, Extent(origin, origin, origin), CHUNK)
    saved, saved_end = this.extent, origin
    for step, number in steps:
        if step == "append":
            this.append(entries(this.end, this.end + number))
        elif step == "flush":
            this.flush()
        elif step == "trim":
            this.trim(this.start + number)
        elif step == "sync":
            this.flush()
            this.sync()
            saved, saved_end = this.extent, this.end
            this.drop()
        else:
            this = Column(files, stem, WIDTH, saved, CHUNK)
            this.restore()
            assert this.end == saved_end
        assert this.read(this.start, this.end - this.start) == entries(this.start, this.end)
        for at in range(this.start, this.end):
            assert this.read(at) == entry(at)
    files.close()


def test_an_entry_that_is_stored_can_be_changed(tmp_path: Path) -> None:
    this = column(tmp_path, Extent(0, 0, 0))
    this.append(entries(0, 10))
    this.flush()
    this.overwrite(5, b"!!")
    assert this.read(4, 3) == entry(4) + b"!!" + entry(5)[2:] + entry(6)


def test_a_node_is_the_hash_of_the_leaves_below_it(tmp_path: Path) -> None:
    files = Files(3)
    leaves = [number.to_bytes(32, "big") for number in range(70_000)]
    tiles = Tiles(files, f"{tmp_path}/tree", (), CHUNK * 1000)
    for first in range(0, len(leaves), 777):
        tiles.append(b"".join(leaves[first : first + 777]))
    assert tiles.leaves == len(leaves)
    assert [column.end for column in tiles.columns] == [70_000, 273, 1]
    level, nodes = 0, leaves
    while nodes:
        for number in {0, len(nodes) // 2, len(nodes) - 1}:
            assert tiles.node(level, number) == nodes[number]
        whole = len(nodes) // 2 * 2
        nodes = [node_hash(nodes[at], nodes[at + 1]) for at in range(0, whole, 2)]
        level += 1
    assert level == 17
    files.close()
