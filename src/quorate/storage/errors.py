"""What can go wrong with a disk."""

import errno
from os import PathLike

from quorate.core.errors import LocalProtocolError, QuorateError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StorageError(QuorateError):
    """A file of the store is damaged, missing, or cannot be used."""


class DiskFullError(StorageError):
    """There is no room. Nothing half-written stays, and writing works again when there is some."""

    retriable = True


class RefusedRecordError(LocalProtocolError):
    """A record that does not follow on what its group has on disk, or takes what others have.

    Nothing was written. The store goes on, and that group cannot.
    """

    def __init__(self, group: int, sentence: str) -> None:
        super().__init__(sentence)
        self.group = group


def explained(error: OSError, path: str | PathLike[str], deed: str) -> StorageError:
    """What the operating system said, as a sentence that names the file."""
    if error.errno in _NO_ROOM:
        return DiskFullError(f"{path} cannot be {deed}, as there is no room: {error.strerror}")
    return StorageError(f"{path} cannot be {deed}: {error.strerror or error}")
