"""Power cuts for real replicas: what one had not synced when it was killed is gone.

    with running_cluster(topics=..., launcher=Mains) as cluster:
        cluster.launcher.stop("r1", kill=True)
        lost_bytes = cut_power(cluster.launcher, "r1", Random(1))
        cluster.launcher.start("r1")

A killed process loses nothing that it has written, because the operating system still has it; a
machine that loses power does. `Mains` therefore starts replicas through this very file, as a
program, which keeps a record of what they sync: so many bytes of a file. Beyond that, `cut_power`
leaves as much as it likes, and rubbish behind it. Entries of an index that were overwritten in
place are not undone; tests of the store do that (`tests/storage`).
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from quorate.runtime.files import data_directory
from quorate.runtime.launcher import Launcher
from quorate.runtime.replica import main

# A disk that takes its time leaves more for a power cut to take.
SYNC_TAKES_S = 0.02


class Mains(Launcher):
    """Starts replicas whose power can be cut."""

    def record(self, name: str) -> Path:
        return self.directory / "run" / f"{name}.synced"

    def _command(self, name: str) -> list[str]:
        python, _, *rest = super()._command(name)
        return [python, "-P", __file__, str(self.record(name)), *rest]


def cut_power(mains: Mains, name: str, chance: Random) -> int:
    """Undo what a replica that was killed had not synced. Says how many bytes of its journal."""
    synced = _last_sizes(mains.record(name))
    lost = 0
    for path in sorted(data_directory(mains.directory, name).rglob("*")):
        if path.is_file():
            found = path.stat()
            safe = min(synced.get(found.st_ino, 0), found.st_size)
            if path.name.startswith("journal-"):
                lost += found.st_size - safe
            _damage(path, safe, found.st_size, chance)
    return lost


def _damage(path: Path, safe: int, size: int, chance: Random) -> None:
    """A file system may keep any part of what was not synced, and the length of all of it."""
    kept = chance.randint(safe, size)
    rubbish = chance.choice([b"", bytes(size - kept), chance.randbytes(size - kept)])
    os.truncate(path, kept)
    with path.open("ab") as file:
        file.write(rubbish)


def _last_sizes(record: Path) -> dict[int, int]:
    """How much of each file was synced, by inode, since files are renamed."""
    sizes: dict[int, int] = {}
    for line in record.read_text().splitlines():
        inode, size = map(int, line.split())
        sizes[inode] = size
    return sizes


# The program


def _recorded(sync: Callable[[int], None], record: int) -> Callable[[int], None]:
    def sync_and_note(descriptor: int) -> None:
        # What is written while this goes on may or may not be safe.
        found = os.fstat(descriptor)
        time.sleep(SYNC_TAKES_S)
        sync(descriptor)
        os.write(record, b"%d %d\n" % (found.st_ino, found.st_size))

    return sync_and_note


def _run(record: str, arguments: list[str]) -> int:
    descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.fsync = _recorded(os.fsync, descriptor)  # type: ignore[assignment]
    os.fdatasync = _recorded(os.fdatasync, descriptor)  # type: ignore[assignment]
    return main(arguments)


if __name__ == "__main__":
    # As in `python -m quorate.runtime.replica ARGUMENTS`.
    _, its_record, _, _, *its_arguments = sys.argv
    sys.exit(_run(its_record, its_arguments))
