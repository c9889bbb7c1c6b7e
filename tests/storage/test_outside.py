"""Payloads that are kept outside: the journal has pointers, and reading follows them."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from quorate.core.ids import TopicId
from quorate.core.ordering import Partition
from quorate.crypto.digests import batch_digest
from quorate.protocol.ordering.records import Decided, Deposit, Held, Placed
from quorate.storage.errors import StorageError
from quorate.storage.outside import OutsideError, OutsideStore
from quorate.storage.pointers import POINTER_BYTES, Pointer, Pointers
from stores import batch, described

TOPIC, PARTITION = 7, Partition(7, 0)
PUBLISHER = 1000


class Shelf:
    """A store outside in memory: records by offset, which come when the test says so."""

    def __init__(self, records: Iterable[bytes] = (), *, answers: bool = True) -> None:
        self.records = list(records)
        self.answers = answers
        self.asked: list[int] = []
        self._here: dict[int, bytes] = {}

    def come(self) -> None:
        for offset in self.asked:
            self._here[offset] = self.records[offset]
        self.asked.clear()

    def found(self, partition: Partition, pointer: Pointer) -> bytes | None:
        return self._here.get(pointer.offset)

    def fetch(self, partition: Partition, pointers: list[Pointer]) -> None:
        wanted = (pointer.offset for pointer in pointers)
        self.asked += [each for each in wanted if each not in (*self._here, *self.asked)]

    def is_fetching(self, partition: Partition, pointer: Pointer) -> bool:
        return pointer.offset in self.asked

    def is_lost(self, partition: Partition, pointer: Pointer) -> bool:
        return batch_digest(self.records[pointer.offset]) != pointer.digest

    def fetch_now(self, partition: Partition, pointers: list[Pointer]) -> list[bytes | None]:
        if not self.answers:
            raise OutsideError("nobody answers")
        records = [(self.records[pointer.offset], pointer.digest) for pointer in pointers]
        return [record if batch_digest(record) == content else None for record, content in records]

    def write(self, deposits: list[Deposit]) -> None:
        raise AssertionError("the machine has payloads written, not the store")

    def adopt(self, names: dict[TopicId, tuple[str, int]]) -> None:
        raise AssertionError("nobody has other topics here")

    def status(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        self.asked.clear()


def pointer_to(shelf: Shelf, offset: int) -> Pointer:
    record = shelf.records[offset]
    return Pointer(offset, len(record), batch_digest(record))


def decided(slot: int, first: int, *events: int) -> Decided:
    """The next batches, with so many events each, of which no more matters here."""
    marks = b"".join(bytes([first + at]) * 32 for at in range(len(events)))
    descriptors = b"".join(described(each) for each in events)
    placed = Placed(PUBLISHER, TOPIC, 0, first, 0, 0, descriptors, marks, marks)
    return Decided(0, slot, slot, b"value", [placed])


def held(first: int, *payloads: bytes) -> Held:
    return Held(PUBLISHER, TOPIC, 0, first, list(payloads))


def opened(directory: Path, shelf: Shelf | None) -> OutsideStore:
    pointers = Pointers(directory)
    pointers.name(TOPIC, "quorate.orders")
    return OutsideStore(directory, pointers, shelf)


def payloads_from(store: OutsideStore, offset: int, bytes_max: int = 1 << 20) -> list[bytes]:
    stretches = store.read(PARTITION, offset, bytes_max)
    return [payload for stretch in stretches for payload in stretch.payloads]


def test_what_stands_outside_is_read_as_soon_as_it_has_come(tmp_path: Path) -> None:
    small, *large, last = (
        batch(text, events)
        for text, events in ((b"small", 2), (b"large one", 3), (b"large two", 2), (b"last", 1))
    )
    shelf = Shelf(large)
    pointers = Pointers(tmp_path)
    both = [pointers.encode(pointer_to(shelf, number)) for number in (0, 1)]
    store = opened(tmp_path, shelf)
    store.append([held(1, small, *both, last), decided(1, 1, 2, 3, 2, 1)])

    assert payloads_from(store, 1) == [small]
    assert payloads_from(store, 2) == []
    for asked in (store.is_fetching, store.may_come):
        assert [asked(PARTITION, offset) for offset in range(9)] == [
            False, False, True, True, True, True, True, False, False,
        ]  # fmt: skip

    shelf.come()

    assert payloads_from(store, 0) == [small, *large, last]
    assert not store.is_fetching(PARTITION, 3)
    (stretch,) = store.read(PARTITION, 6, 1 << 20)
    assert (stretch.offset, stretch.first, stretch.before) == (5, 3, bytes([2]) * 32)
    assert (stretch.payloads, stretch.offsets) == ([large[1], last], [5, 7, 8])
    assert stretch.chains == bytes([3]) * 32 + bytes([4]) * 32
    store.close()


def test_a_reader_gets_as_many_bytes_as_it_asked_for_and_not_as_many_pointers(
    tmp_path: Path,
) -> None:
    shelf = Shelf([bytes([number]) * 1000 for number in range(10)])
    pointers = Pointers(tmp_path)
    store = opened(tmp_path, shelf)
    encoded = [pointers.encode(pointer_to(shelf, offset)) for offset in range(10)]
    store.append([held(1, *encoded), decided(1, 1, *[2] * 10)])
    payloads_from(store, 0)
    shelf.come()

    assert payloads_from(store, 0, 3500) == shelf.records[:3]
    assert payloads_from(store, 9, 1) == shelf.records[4:5]
    store.close()


def test_what_was_kept_outside_once_is_absent_when_it_cannot_be_had_any_more(
    tmp_path: Path,
) -> None:
    shelf = Shelf([b"large"])
    pointer = Pointers(tmp_path).encode(pointer_to(shelf, 0))
    store = opened(tmp_path, shelf)
    store.append([held(1, b"small", pointer), decided(1, 1, 1, 3)])
    store.close()

    store = opened(tmp_path, None)

    assert payloads_from(store, 0) == [b"small"]
    assert payloads_from(store, 1) == []
    assert not store.is_fetching(PARTITION, 3)
    assert not store.may_come(PARTITION, 3)
    store.close()


def test_after_a_restart_the_machine_goes_on_with_payloads_and_without_those_that_are_lost(
    tmp_path: Path,
) -> None:
    shelf = Shelf([b"large one", b"large two", b"large three"])
    pointers = Pointers(tmp_path)
    encoded = [pointers.encode(pointer_to(shelf, offset)) for offset in range(3)]
    store = opened(tmp_path, shelf)
    store.append([held(1, encoded[0], b"small", encoded[1], encoded[2])])
    store.close()
    shelf.records[1] = b"something else"

    store = opened(tmp_path, shelf)

    assert list(store.recover().records) == [
        held(1, b"large one", b"small"),
        held(4, b"large three"),
    ]
    store.close()


def test_nothing_goes_on_while_nobody_can_say_what_is_outside(tmp_path: Path) -> None:
    shelf = Shelf([b"large"], answers=False)
    store = opened(tmp_path, shelf)
    store.append([held(1, Pointers(tmp_path).encode(pointer_to(shelf, 0)))])
    store.close()

    store = opened(tmp_path, shelf)

    with pytest.raises(OutsideError):
        list(store.recover().records)
    store.close()


# Pointers


def test_no_payload_passes_for_a_pointer(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    pointer = Pointer(5, 8_000_000, bytes(32))

    assert Pointers(mine).decode(Pointers(mine).encode(pointer)) == pointer
    assert Pointers(mine).decode(Pointers(other).encode(pointer)) is None
    assert Pointers(mine).decode(bytes(POINTER_BYTES)) is None
    assert Pointers(mine).decode(Pointers(mine).encode(pointer) + b"x") is None


def test_a_topic_is_called_outside_as_it_was_at_first(tmp_path: Path) -> None:
    assert not Pointers.are_in(tmp_path)
    assert Pointers(tmp_path).name(TOPIC, "quorate.orders") == "quorate.orders"

    again = Pointers(tmp_path)

    assert Pointers.are_in(tmp_path)
    assert again.name(TOPIC, "other.orders") == "quorate.orders"
    assert again.name(8, "other.alerts") == "other.alerts"


def test_a_damaged_file_of_pointers_is_an_error_that_names_it(tmp_path: Path) -> None:
    Pointers(tmp_path)
    path = tmp_path / "outside"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))

    with pytest.raises(StorageError, match="outside"):
        Pointers(tmp_path)
