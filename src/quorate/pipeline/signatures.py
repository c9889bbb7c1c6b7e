"""What syslog lines are: a library of patterns, and templates of the lines that none of them fits.

Source: the messaging-gateway thesis, section 3.2.1 (the filter and its pattern library) and 3.3.4
(content by signature).

A pattern is a regular expression with a signature, which is the name that a line has from then on.
It may say that such lines are dropped where they are written (`filtering.py`), and what else is
known about them.

Lines that no pattern fits are not thrown away: those of them that differ in their variable parts
only (numbers, addresses, identifiers, paths) are one template, so that a person sees few of them,
with how many lines each stands for, and can write the pattern that was missing.

In a job, both are expressions that Spark evaluates in its own engine, without Python for any row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from quorate.core.errors import ConfigError
from quorate.core.toml import Table

if TYPE_CHECKING:
    from pyspark.sql import Column

UNKNOWN: Final = "UNKNOWN"

# What stands behind this many characters of a line does not say what kind of line it is, and
# should not cost anything.
LINE_CHARACTERS_MAX: Final = 1024
TEMPLATE_CHARACTERS_MAX: Final = 240

_DEFAULT: Final = "patterns.toml"

# In this order: a time of day has the form of some addresses, an address that of some numbers.
_VARIABLE_PARTS: Final = (
    (r'"[^"]*"', '"<text>"'),
    (r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<uuid>"),
    (r"\b[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}\b", "<mac>"),
    (r"\b\d{1,2}:\d{2}:\d{2}(\.\d+)?\b", "<time>"),
    (r"\b\d{1,3}(\.\d{1,3}){3}\b", "<address>"),
    (r"(?<![\w:])([0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}(?![\w:])", "<address>"),
    (r"(?<![\w<>])/[\w.+@-]+(/[\w.+@-]+)*", "<path>"),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    # A decimal number of many digits is a number, even where hexadecimal ones stand beside it.
    (r"\b(?=\w*[a-fA-F])[0-9a-fA-F]{12,}\b", "<hex>"),
    (r"\d+(\.\d+)*", "<number>"),
)


class Pattern(NamedTuple):
    """The lines in which the expression is found have this signature."""

    signature: str
    regex: str
    # Whether a filter leaves such lines out.
    drop: bool = False
    # What else is known about them, as names with texts.
    about: tuple[tuple[str, str], ...] = ()


def read_patterns(path: Path | None = None) -> tuple[Pattern, ...]:
    """The patterns of a file, or those that come with the package."""
    if path is None:
        return parse_patterns(_DEFAULT, (files("quorate.pipeline") / _DEFAULT).read_text("utf-8"))
    try:
        return parse_patterns(str(path), path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the pattern library {path} cannot be read: {error}") from error


def parse_patterns(name: str, text: str) -> tuple[Pattern, ...]:
    top = Table.read(f"the pattern library {name}", text)
    patterns = tuple(_pattern(entry) for entry in top.tables("pattern"))
    top.end()
    if not patterns:
        raise ConfigError(f"{top.where} has no [[pattern]]; it needs one at least")
    return patterns


def signature_of(line: Column, patterns: Sequence[Pattern]) -> Column:
    """The signature of the first pattern that is found in a line, or `UNKNOWN`."""
    from pyspark.sql import functions as F

    head = F.substring(line, 1, LINE_CHARACTERS_MAX)
    found = F.when(F.lit(False), F.lit(UNKNOWN))
    for pattern in patterns:
        found = found.when(head.rlike(pattern.regex), F.lit(pattern.signature))
    return found.otherwise(F.lit(UNKNOWN))


def template_of(line: Column) -> Column:
    """A line with its variable parts replaced by what they are."""
    from pyspark.sql import functions as F

    template = F.substring(line, 1, LINE_CHARACTERS_MAX)
    for regex, name in _VARIABLE_PARTS:
        template = F.regexp_replace(template, regex, name)
    return F.substring(template, 1, TEMPLATE_CHARACTERS_MAX)


def _pattern(entry: Table) -> Pattern:
    pattern = Pattern(
        entry.text("signature"), entry.text("regex"), entry.flag("drop", False), _about(entry)
    )
    entry.end()
    if not pattern.signature or pattern.signature == UNKNOWN:
        raise entry.refusal("signature", pattern.signature, f'a name other than "{UNKNOWN}"')
    try:
        re.compile(pattern.regex)
    except re.error as error:
        raise ConfigError(
            f"{entry.where}: the regex of {pattern.signature} is not valid: {error}"
        ) from error
    return pattern


def _about(entry: Table) -> tuple[tuple[str, str], ...]:
    if not entry.has("about"):
        return ()
    names = entry.table("about").rest()
    for name, text in names.items():
        if not isinstance(text, str):
            raise entry.refusal(f"about.{name}", text, "a text in quotes")
    return tuple((name, str(text)) for name, text in names.items())
