"""Durations as people write them: a whole number and a unit, such as `500ms` or `7d`.

Inside the program a duration is a number of microseconds. `render` picks the largest unit
that loses nothing, so that `parse(render(d)) == d` for every duration.
"""

import re

from quorate.core.errors import ContractError

_UNITS_US = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_FORM = re.compile(r"([0-9]{1,18})(us|ms|s|m|h|d)")

# A century: adding it to any time of our days stays far inside 64 bits.
DURATION_US_MAX = 36_525 * _UNITS_US["d"]


def parse(text: str) -> int:
    """Microseconds of a duration such as `500ms`, `30s`, `5m`, `2h` or `7d`."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ContractError(
            f"{text[:40]!a} is not a duration; allowed are a whole number and one of "
            "us, ms, s, m, h, d, such as '500ms' or '7d'"
        )
    duration_us = int(found[1]) * _UNITS_US[found[2]]
    if duration_us > DURATION_US_MAX:
        raise ContractError(f"{text!r} is too long; allowed is up to {render(DURATION_US_MAX)}")
    return duration_us


def render(duration_us: int) -> str:
    """The shortest exact way to write a duration."""
    if not 0 <= duration_us <= DURATION_US_MAX:
        raise ContractError(
            f"{duration_us} microseconds is not a duration; allowed are 0 to {DURATION_US_MAX}"
        )
    if duration_us == 0:
        return "0s"
    unit = next(unit for unit, size_us in _UNITS_US.items() if duration_us % size_us == 0)
    return f"{duration_us // _UNITS_US[unit]}{unit}"
