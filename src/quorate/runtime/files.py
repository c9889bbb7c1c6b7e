"""Cluster and identity files on disk.

A cluster directory looks like this:

    cluster.toml              what everybody may read
    certificates/NAME.pem     the pinned certificates once more, for other tools
    keys/NAME.key             private keys, each readable by its owner only (mode 0600)
    data/NAME/                what a replica keeps of log topics

A private key file never exists with a wider mode, not even for a moment, and is never
written over. One that others can read is refused, because its secret may be out already.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from quorate.core.cluster import Cluster
from quorate.core.errors import ConfigError, QuorateError
from quorate.crypto.identity import (
    Identity,
    PublicIdentity,
    parse_public,
    public_of,
    render_public,
)

CLUSTER_FILE = "cluster.toml"
# Beside a file that commands have changed: how the cluster began.
FOUNDING_FILE = "founding.toml"
FILE_BYTES_MAX = 64 * 1024 * 1024

_Parsed = TypeVar("_Parsed")


def cluster_file(path: Path) -> Path:
    """The cluster file that is meant: the path itself, or the one in that directory."""
    return path / CLUSTER_FILE if path.is_dir() else path


def key_file(directory: Path, name: str) -> Path:
    """Where a cluster directory keeps the private keys of this member.

    `quorate init` makes a folder for them; those of `quorate identity new` may lie beside the
    cluster file.
    """
    beside, usual = directory / f"{name}.key", directory / "keys" / f"{name}.key"
    return beside if beside.exists() and not usual.exists() else usual


def data_directory(directory: Path, name: str) -> Path:
    """Where a cluster directory keeps what this replica stores."""
    return directory / "data" / name


def certificate_file(directory: Path, name: str) -> Path:
    return directory / "certificates" / f"{name}.pem"


def write_identity(path: Path, identity: Identity) -> None:
    """Write the private keys to a new file that only its owner can read."""
    _write_new(path, identity.private_pem(), mode=0o600)


def read_identity(path: Path) -> Identity:
    """Read private keys, unless somebody else could have read them too."""
    return _parsed(path, Identity.from_pem, private=True)


def write_public(path: Path, public: PublicIdentity) -> None:
    _write_new(path, render_public(public), mode=0o644)


def read_public(path: Path) -> PublicIdentity:
    return _parsed(path, parse_public)


def write_certificate(path: Path, public: PublicIdentity) -> None:
    _write_new(path, public.certificate, mode=0o644)


def write_cluster(path: Path, cluster: Cluster) -> None:
    _write_new(path, cluster.render(), mode=0o644)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file, and check that every certificate belongs to its member."""
    return _parsed(path, _parse_cluster)


def read_founding(path: Path, cluster: Cluster) -> Cluster:
    """How the cluster of this file began, as far as that is known here."""
    founding = path.parent / FOUNDING_FILE
    return read_cluster(founding) if cluster.revision and founding.exists() else cluster


def read_text(path: Path) -> str:
    """A text file of ours, or a sentence that says why not."""
    return _parsed(path, str)


def _parse_cluster(text: str) -> Cluster:
    cluster = Cluster.parse(text)
    for member in cluster.members:
        public_of(member)
    return cluster


def _parsed(path: Path, parse: Callable[[str], _Parsed], *, private: bool = False) -> _Parsed:
    text = _read(path, private=private)
    try:
        return parse(text)
    except QuorateError as error:
        # The same kind of error, so that whoever handles it can tell; but it names the file.
        raise type(error)(f"{path}: {error}") from error


def _read(path: Path, *, private: bool) -> str:
    try:
        # Looking at the open file, not at the path, leaves no gap between check and use.
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if private:
                _refuse_shared(path, status)
            if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
                raise ConfigError(f"{path} is not a file of at most {FILE_BYTES_MAX} bytes")
            return file.read().decode()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file (UTF-8)") from error


def _refuse_shared(path: Path, status: os.stat_result) -> None:
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path} holds private keys, but others on this machine may use it (mode "
            f"{stat.S_IMODE(status.st_mode):04o}); make it yours alone with: chmod 600 {path}"
        )


def _write_new(path: Path, text: str, *, mode: int) -> None:
    """Create the file with its mode in one step; whatever stands there already, stays."""
    _make_directory(path.parent)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already, and is not written over") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        path.unlink()
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the directory {path} cannot be made: {error.strerror}") from error
