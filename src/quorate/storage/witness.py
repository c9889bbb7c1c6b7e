"""What stands beside a journal, and tells of it what it could not say were it damaged.

`mark` is in every record that says how far the journal was synced. Nobody else knows it, so that
these records can be found behind damage of any kind, and no payload passes for one. `last` is a
segment that was there: a journal that ends before it has lost one.
"""

import os
from pathlib import Path

import msgspec

from quorate.storage.formats import Format

_MARK_BYTES = 16
_NAME = "witness"


class Witness(msgspec.Struct, frozen=True):
    mark: bytes
    last: int


WITNESSES = Format("witness", {1: msgspec.msgpack.Decoder(Witness).decode})


def load_witness(directory: Path) -> Witness | None:
    return WITNESSES.load(directory / _NAME)


def save_witness(directory: Path, mark: bytes, last: int) -> None:
    WITNESSES.save(directory / _NAME, Witness(mark, last))


def new_mark() -> bytes:
    return os.urandom(_MARK_BYTES)
