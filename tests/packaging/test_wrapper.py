"""The ./quorate wrapper, where it does not need the network."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("sh", "sed", "cat", "cksum", "dirname", "readlink")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the wrapper looks at, in a directory with a space in its name."""
    root = tmp_path / "a checkout"
    root.mkdir()
    for name in ("quorate", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    return root


def call(wrapper: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [wrapper, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def only_tools(directory: Path) -> str:
    """A PATH on which the wrapper finds what every system has, and no Python."""
    directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (directory / tool).symlink_to(found)
    return str(directory)


def test_without_python_the_wrapper_says_so_in_one_sentence(checkout: Path) -> None:
    result = call(checkout / "quorate", "--version", PATH=only_tools(checkout / "bin"))

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("Quorate needs Python 3.11 or later")
    assert result.stderr.count("\n") == 1


def test_a_python_that_does_not_start_is_passed_over(checkout: Path) -> None:
    path = only_tools(checkout / "bin")
    shim = Path(path, "python3")
    shim.write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    shim.chmod(0o755)

    result = call(checkout / "quorate", "--version", PATH=path)

    assert result.stderr.startswith("Quorate needs Python 3.11 or later")


def test_an_environment_that_somebody_else_made_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "pyvenv.cfg").write_text("home = elsewhere\n")

    result = call(checkout / "quorate", "--version")

    assert (result.returncode, result.stdout) == (1, "")
    assert "that quorate did not make" in result.stderr
    assert (checkout / ".venv" / "pyvenv.cfg").read_text() == "home = elsewhere\n"


def test_a_set_up_that_fails_says_why_and_leaves_nothing_behind(checkout: Path) -> None:
    before = sorted(checkout.iterdir())
    link = checkout.parent / "link"
    link.symlink_to("a checkout/quorate")

    # Through a relative link, and with nowhere to get packages from.
    result = call(link, "--version", PIP_NO_INDEX="1", PIP_FIND_LINKS="")

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("Setting up Quorate in .venv")
    assert "No matching distribution found" in result.stderr
    assert sorted(checkout.iterdir()) == before


@pytest.mark.skipif(not (ROOT / ".venv/quorate-stamp").exists(), reason="needs to be set up")
def test_what_python_compiles_is_kept_even_where_it_should_not_be_kept_beside_sources(
    tmp_path: Path,
) -> None:
    told = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path)}

    result = call(ROOT / "quorate", "--version", **told)

    assert result.returncode == 0, result.stderr
    assert [*tmp_path.rglob("src/quorate/cli/main.*.pyc")]
