"""What settings of several jobs have to be, with a sentence about those that are not."""

from collections.abc import Sequence

from quorate.core.durations import parse
from quorate.core.errors import ConfigError, ContractError

LATENESS_US_MAX = 3_600_000_000


def check_names(kind: str, names: Sequence[str]) -> None:
    """Of rules, say, no two have one name."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two {kind} are named '{name}'; each needs a name of its own")


def check_lateness(lateness: str) -> None:
    """How long an event may be under way: Spark counts that in milliseconds."""
    try:
        lateness_us = parse(lateness)
    except ContractError as error:
        raise ConfigError(f"lateness: {error}") from None
    if lateness_us > LATENESS_US_MAX or lateness_us % 1000:
        raise ConfigError(f"lateness is '{lateness}', but it must be whole milliseconds up to 1h")
