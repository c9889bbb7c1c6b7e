"""What programs import from `quorate.client` is there, and comes only when it is asked for."""

import subprocess
import sys

import pytest

import quorate.client


@pytest.mark.parametrize("name", quorate.client.__all__)
def test_each_name_is_found(name: str) -> None:
    assert getattr(quorate.client, name).__name__ == name
    assert name in dir(quorate.client)


def test_a_name_that_is_not_there_is_an_error_like_any_other() -> None:
    with pytest.raises(AttributeError, match=r"'quorate\.client' has no attribute 'Broker'"):
        _ = quorate.client.Broker  # type: ignore[attr-defined]


def test_a_replica_starts_without_what_consumers_and_auditors_need() -> None:
    code = "import sys, quorate.cli.replica; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "quorate.client.admin" in found
    assert not {"quorate.client.consumer", "quorate.client.audit"} & set(found)
