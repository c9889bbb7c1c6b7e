"""What settings of several jobs have to be, with a sentence about those that are not."""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from quorate.core.durations import parse
from quorate.core.errors import ConfigError, ContractError

LATENESS_US_MAX = 3_600_000_000
_NAME_LENGTH_MAX: Final = 100


class Named(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several things of a kind in the settings, such as a rule, which its name tells."""

    kind: ClassVar[str]

    name: str

    def check_name(self) -> None:
        if not 1 <= len(self.name) <= _NAME_LENGTH_MAX:
            raise ConfigError(
                f"a {self.kind} is named {self.name[:40]!r}; its name must have 1 to "
                f"{_NAME_LENGTH_MAX} characters"
            )

    def duration(self, key: str, text: str) -> int:
        try:
            return parse(text)
        except ContractError as error:
            raise self.refusal(f"{key}: {error}") from None

    def refusal(self, sentence: str) -> ConfigError:
        return ConfigError(f"{self.kind} '{self.name}': {sentence}")


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
