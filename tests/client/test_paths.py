"""What a client is told that was given paths at which there is nothing of ours."""

from pathlib import Path

import pytest

from quorate.client import Consumer
from quorate.core.errors import ConfigError
from quorate.runtime.local import make_local_cluster, write_local_cluster

EXPECTED = (
    "expected is a directory with a cluster.toml, as 'quorate init' writes one, or that file itself"
)


def test_a_path_without_a_cluster_is_named_with_what_is_expected_there(tmp_path: Path) -> None:
    nowhere = tmp_path / "clusters"
    with pytest.raises(ConfigError) as missing:
        Consumer(nowhere, "bob")
    with pytest.raises(ConfigError) as empty:
        Consumer(tmp_path, "bob")

    assert str(missing.value) == f"there is no cluster at {nowhere} (no file {nowhere}); {EXPECTED}"
    assert str(empty.value) == (
        f"there is no cluster at {tmp_path} (no file {tmp_path}/cluster.toml); {EXPECTED}"
    )


def test_keys_that_are_not_there_are_named_with_what_is_expected(tmp_path: Path) -> None:
    write_local_cluster(tmp_path / "c", make_local_cluster())
    keys = tmp_path / "c" / "keys" / "bob.key"
    keys.unlink()

    with pytest.raises(ConfigError) as missing:
        Consumer(tmp_path / "c", "bob")

    assert str(missing.value) == (
        f"there are no private keys at {keys}; expected is the name of a member whose keys are in "
        f"the cluster's directory, or a file that 'quorate identity new' wrote"
    )
