"""A store on a disk of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stores import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.store.close()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a disk are made here by copying files, so that nothing has to reach it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
