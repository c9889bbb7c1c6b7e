"""The jobs by their names. A job is imported when somebody asks for it, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from quorate.core.errors import ConfigError
from quorate.pipeline.jobs.job import Program

NAMES: Final = ("archive", "audit", "monitor", "portscan", "trading", "patterns")


def known() -> Iterator[str]:
    """The names of the jobs that this installation has."""
    for name in NAMES:
        if find_spec(_module(name)) is not None:
            yield name


def load(name: str) -> Program[Any]:
    """The job of this name, or a sentence with those that there are."""
    names = list(known())
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        there = ", ".join(names) or "none"
        raise ConfigError(f"there is no job {name!r}; there are {there}{hint}")
    job: Program[Any] = import_module(_module(name)).JOB
    return job


def _module(name: str) -> str:
    return f"{__name__.rpartition('.')[0]}.{name}"
