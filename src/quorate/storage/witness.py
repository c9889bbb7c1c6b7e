"""What stands beside a journal, and tells of it what it could not say were it damaged.

`mark` is in every record that says how far the journal was synced. Nobody else knows it, so that
these records can be found behind damage of any kind, and no payload passes for one. `last` is a
segment that was there: a journal that ends before it has lost one.
"""

import os
from pathlib import Path

import msgspec

from quorate.storage.errors import StorageError
from quorate.storage.files import read_checked, replace_file

_MARK_BYTES = 16
_NAME = "witness"


class Witness(msgspec.Struct, frozen=True):
    mark: bytes
    last: int


def load_witness(directory: Path) -> Witness | None:
    data = read_checked(directory / _NAME)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=Witness)
    except msgspec.DecodeError as error:
        raise StorageError(
            f"{directory / _NAME} is not one that this version can read: {error}"
        ) from error


def save_witness(directory: Path, mark: bytes, last: int) -> None:
    replace_file(directory / _NAME, msgspec.msgpack.encode(Witness(mark, last)))


def new_mark() -> bytes:
    return os.urandom(_MARK_BYTES)
