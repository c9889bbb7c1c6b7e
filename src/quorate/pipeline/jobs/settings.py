"""The settings of a job, from a file and from a command line.

A file is TOML with the fields of the job's `Config` as its keys. On a command line a setting is
`key=value`: the value is a text that becomes what the field asks for (`window_s=30`), or, where it
begins with a bracket, a brace or a quote, TOML (`ports=[22, 23]`). The command line goes first.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from quorate.core.errors import ConfigError
from quorate.pipeline.jobs.job import ConfigT, Program

_PLACE: Final = re.compile(r"^(?P<words>.*?)(?: - at `\$\.?(?P<place>.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>\w+)`")
_NO_ARRAY: Final = re.compile(r"Expected `array`, got `\w+`")


def read_settings(
    job: Program[ConfigT], file: Path | None = None, assignments: Sequence[str] = ()
) -> ConfigT:
    """The settings of a job; what nobody names is as the job has it."""
    named = {**(_from_file(file) if file else {}), **dict(map(_assigned, assignments))}
    known = [field.name for field in msgspec.structs.fields(job.config)]
    for key in named:
        if key not in known:
            there = ", ".join(known) or "none"
            raise ConfigError(f"the job {job.name} has no setting {key!r}; it has {there}")
    try:
        return msgspec.convert(named, job.config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_sentence(job.name, str(error))) from None


def described(job: Program[Any]) -> dict[str, str]:
    """Each setting with its default as TOML has it; one that must be named has no text."""
    return {field.name: _default(field) for field in msgspec.structs.fields(job.config)}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings in {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _assigned(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"--set {text!r} is not of the form KEY=VALUE")
    if not value.lstrip().startswith(("[", "{", '"', "'")):
        return key, value
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except ValueError as error:
        raise ConfigError(f"--set {key}: {value} is not valid TOML: {error}") from None


def _sentence(job: str, said: str) -> str:
    found = _PLACE.match(said)
    words, place = (found["words"], found["place"]) if found else (said, None)
    if not place and (missing := _MISSING.fullmatch(words)):
        return f"the job {job} needs the setting {missing['name']}; give it with --set or --config"
    if place and _NO_ARRAY.fullmatch(words):
        return f'setting {place} of the job {job} is a list, such as --set \'{place}=["a", "b"]\''
    where = f" {place}" if place else ""
    return f"setting{where} of the job {job}: {words[:1].lower()}{words[1:]}".replace("`", "")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return _shown(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return _shown(field.default_factory())
    return ""


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()
