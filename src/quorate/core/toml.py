"""TOML for people: files that say why a key is there, and errors that say what is allowed.

Python reads TOML but does not write it, and the packages that do cannot write comments. What
we write is a handful of keys under commented headings, so this module renders values, and
whoever knows the file lays them out.

Reading goes through `Table`, which hands out one key at a time, checked, and at the end
complains about keys that nobody asked for: a misspelt key must not pass as a default.
"""

import base64
import binascii
import json
import re
import tomllib
from collections.abc import Mapping

from quorate.core.errors import ConfigError

# What needs no escapes: printable ASCII but for quotes and backslashes, and ends of lines.
_PLAIN = re.compile(r"[\n -!#-\[\]-~]*")


class Table:
    """One TOML table on its way into a value; `where` is how sentences call it."""

    def __init__(self, where: str, content: object) -> None:
        if not isinstance(content, dict):
            raise ConfigError(f"{where} must be a table, but it is {_kind(content)}")
        self.where = where
        self._left: dict[str, object] = dict(content)
        self._asked: list[str] = []

    @staticmethod
    def read(what: str, text: str) -> "Table":
        """The top of a file."""
        try:
            return Table(what, tomllib.loads(text))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{what} is not valid TOML: {error}") from error

    def text(self, key: str, default: str | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.refusal(key, value, "a text in quotes")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.refusal(key, value, "one of " + ", ".join(f'"{word}"' for word in allowed))
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, value, "true or false")
        return value

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._take(key, default)
        # In Python a truth value is a number, in TOML it is not.
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refusal(key, value, f"a whole number from {low} to {high}")
        return value

    def key_bytes(self, key: str, length: int) -> bytes:
        """A key in base64."""
        value = self.text(key)
        try:
            decoded = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            decoded = b""
        if len(decoded) != length:
            raise self.refusal(key, value, f"{length} bytes in base64")
        return decoded

    def hex_bytes(self, key: str, length: int) -> bytes:
        """Bytes in hexadecimal, two small digits each."""
        value = self.text(key)
        decoded = bytes.fromhex(value) if re.fullmatch("(?:[0-9a-f]{2})*", value) else b""
        if len(decoded) != length:
            raise self.refusal(key, value, f"{length} bytes in hexadecimal")
        return decoded

    def tables(self, key: str) -> list["Table"]:
        """An array of tables, `[[key]]` in the file; none at all is an empty one."""
        value = self._take(key, [])
        if not isinstance(value, list):
            raise self.refusal(key, value, f"an array of tables, each under [[{key}]]")
        return [Table(f"[[{key}]] number {i + 1}", item) for i, item in enumerate(value)]

    def table(self, key: str) -> "Table":
        return Table(f"[{key}]", self._take(key, None))

    def rest(self) -> dict[str, object]:
        """All that is left, for a table whose keys are names."""
        left, self._left = self._left, {}
        return left

    def has(self, key: str) -> bool:
        return key in self._left

    def end(self) -> None:
        """Refuse the keys that nobody asked for."""
        for key in self._left:
            allowed = ", ".join(self._asked)
            raise ConfigError(f"{self.where} does not know the key {key!r}; it knows {allowed}")

    def refusal(self, key: str, value: object, allowed: str) -> ConfigError:
        shown = repr(value) if len(repr(value)) <= 80 else _kind(value)
        return ConfigError(f"{self.where}: {key} is {shown}, but it must be {allowed}")

    def _take(self, key: str, default: object) -> object:
        self._asked.append(key)
        value = self._left.pop(key, default)
        if value is None:
            raise ConfigError(f"{self.where} needs the key {key!r}")
        return value


def render_value(value: object) -> str:
    """One value as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case bytes():
            return f'"{base64.b64encode(value).decode()}"'
        case str():
            return _render_text(value)
        case list() | tuple():
            return "[" + ", ".join(render_value(item) for item in value) + "]"
        case Mapping():
            pairs = (f"{render_key(key)} = {render_value(item)}" for key, item in value.items())
            return "{ " + ", ".join(pairs) + " }"
        case _:
            raise TypeError(f"TOML has no {type(value).__name__}")


def render_key(key: str) -> str:
    """A key as TOML: bare where it may be, else quoted (a dot would make it a path)."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _render_text(key)


def render_pairs(pairs: Mapping[str, object]) -> str:
    """`key = value` lines; a text of many lines keeps its lines."""
    return "".join(f"{render_key(key)} = {_render_long(value)}\n" for key, value in pairs.items())


def _render_long(value: object) -> str:
    if isinstance(value, str) and "\n" in value and _PLAIN.fullmatch(value):
        return f'"""\n{value}"""'
    return render_value(value)


def _render_text(text: str) -> str:
    # JSON and TOML escape alike, but for DEL, which JSON lets through.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
