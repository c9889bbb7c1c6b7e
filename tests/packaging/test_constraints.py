"""What is installed is pinned, and the pins say nothing about where it comes from."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][0-9a-z.]*")


def pin_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pins() -> dict[str, str]:
    return dict(line.split("==") for line in pin_lines())


def project() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return settings


def requirements() -> Iterator[Requirement]:
    extras = project()["optional-dependencies"].values()
    for line in (*project()["dependencies"], *(line for extra in extras for line in extra)):
        requirement = Requirement(line)
        if requirement.name != "quorate":
            yield requirement


def test_every_pin_is_a_name_and_a_version_and_nothing_else() -> None:
    assert [line for line in pin_lines() if not PIN.fullmatch(line)] == []


def test_no_package_is_pinned_twice() -> None:
    assert len(pins()) == len(pin_lines())


@pytest.mark.parametrize("requirement", list(requirements()), ids=str)
def test_a_requirement_is_pinned_to_a_version_that_it_allows(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_all_brings_every_extra() -> None:
    extras = dict(project()["optional-dependencies"])
    (everything,) = extras.pop("all")

    assert Requirement(everything).extras == set(extras)


def test_what_decides_the_installation_stands_above_the_settings_of_tools() -> None:
    text = (ROOT / "pyproject.toml").read_text()

    above = tomllib.loads(text.partition("\n[tool.")[0])

    # The wrapper compares only this part, so nothing of it may stand further down.
    whole = tomllib.loads(text)
    del whole["tool"]
    assert above == whole
