"""A filter for syslog lines, in front of whatever carries them away (G13).

Source: the messaging-gateway thesis, section 3.2.1.

    syslog | quorate pipeline filter | quorate publish syslog --key web-1.example.com

A line that fits a pattern has its signature from then on, and what the library says about such
lines goes with it, unless the library says that they are dropped. A line that no pattern fits is
not dropped: it goes on as unknown, so that somebody can write the pattern that was missing.

This runs where lines are written, with Python alone. The job `monitor` looks lines up once more, in
the library of the centre: it need not believe what hosts call their lines.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from quorate.pipeline.signatures import LINE_CHARACTERS_MAX, UNKNOWN, Pattern


class Filtered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line that goes on: the value of an event, as JSON."""

    line: str
    signature: str
    about: Mapping[str, str] = {}


class Filter:
    """Looks lines up in a pattern library, in its order."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        # As in Java, a letter or a digit is one of ASCII.
        self._patterns = [
            _Compiled(re.compile(pattern.regex, re.ASCII), pattern, dict(pattern.about))
            for pattern in patterns
        ]

    def take(self, line: str) -> Filtered | None:
        """What goes on of a line; None if it is dropped."""
        head = line[:LINE_CHARACTERS_MAX]
        for regex, pattern, about in self._patterns:
            if regex.search(head):
                return None if pattern.drop else Filtered(line, pattern.signature, about)
        return Filtered(line, UNKNOWN)

    def values(self, lines: Iterable[str]) -> Iterator[bytes]:
        """The values of events for the lines that go on; empty lines say nothing."""
        for line in lines:
            filtered = self.take(line) if line else None
            if filtered is not None:
                yield msgspec.json.encode(filtered)


class _Compiled(NamedTuple):
    regex: re.Pattern[str]
    pattern: Pattern
    about: Mapping[str, str]
