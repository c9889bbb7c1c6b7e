"""Core, crypto and protocols touch no clock, random source, event loop, disk or thread.

A linter says the same, but a linter can be told to look away.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorate

SOURCE = Path(quorate.__file__).parent
PURE = ("core", "crypto", "protocol")
BANNED = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "os",
    "random",
    "secrets",
    "selectors",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uvloop",
}


def imported(source: str) -> Iterator[str]:
    """The top-level packages that a module imports, wherever it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_imports_nothing_that_acts(package: str) -> None:
    modules = sorted((SOURCE / package).rglob("*.py"))
    assert modules

    offences = {
        str(module.relative_to(SOURCE)): sorted(banned)
        for module in modules
        if (banned := BANNED.intersection(imported(module.read_text())))
    }

    assert offences == {}


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path as p",
        "from random import Random",
        "def f():\n    import asyncio",
    ],
)
def test_an_import_is_found_in_every_form(source: str) -> None:
    assert BANNED.intersection(imported(source))
