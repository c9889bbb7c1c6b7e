"""A private key file is its owner's alone, from its first moment on."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate.core.errors import ConfigError
from quorate.crypto.identity import Identity
from quorate.runtime.files import read_identity, read_public, write_identity, write_public

ALICE = Identity.generate("alice")


def test_a_key_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "alice.key"
    with_umask(0o000, lambda: write_identity(path, ALICE))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_identity(path).public == ALICE.public


def test_a_key_file_never_exists_with_a_wider_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[int, int]] = []
    original = os.open

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append((flags, mode))
        return original(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    write_identity(tmp_path / "alice.key", ALICE)

    # Created, exclusively, with its final mode: there is no moment in between.
    [(flags, mode)] = opened
    assert flags & os.O_CREAT
    assert flags & os.O_EXCL
    assert mode == 0o600


def test_a_key_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "alice.key"
    write_identity(path, ALICE)

    with pytest.raises(ConfigError, match=r"alice\.key exists already, and is not written over"):
        write_identity(path, Identity.generate("alice"))

    assert read_identity(path).public == ALICE.public


def test_a_key_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "alice.key").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="exists already"):
        write_identity(tmp_path / "alice.key", ALICE)

    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610, 0o601, 0o777])
def test_a_key_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "alice.key"
    write_identity(path, ALICE)
    path.chmod(mode)

    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 600 {path}"):
        read_identity(path)


def test_a_key_file_that_its_owner_may_only_read_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "alice.key"
    write_identity(path, ALICE)
    path.chmod(0o400)

    assert read_identity(path).public == ALICE.public


def test_a_public_file_is_for_everybody_and_holds_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "alice.pub"
    with_umask(0o022, lambda: write_public(path, ALICE.public))

    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert "PRIVATE" not in path.read_text()
    assert read_public(path) == ALICE.public


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "junk.key").touch(mode=0o600)
    (tmp_path / "junk.key").write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match=r"missing\.key cannot be read: No such file"):
        read_identity(tmp_path / "missing.key")
    with pytest.raises(ConfigError, match=r"junk\.key is not a text file"):
        read_identity(tmp_path / "junk.key")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_public(tmp_path)


def test_a_file_whose_content_is_wrong_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "alice.pub"
    path.write_text("name = = 1")
    with pytest.raises(ConfigError, match=r"alice\.pub: a public identity is not valid TOML"):
        read_public(path)


def with_umask(mask: int, act: Callable[[], None]) -> None:
    before = os.umask(mask)
    try:
        act()
    finally:
        os.umask(before)
