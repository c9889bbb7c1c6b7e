"""The names that a cluster file may use.

The name of a member or a cluster stands in file names, in certificates, in metrics and in
logs, and it is bound into keys. So it is short, and looks the same everywhere.
"""

import re

from quorate.core.errors import ConfigError

MAC_ALGORITHMS = ("aes-gmac", "blake3", "hmac-sha256", "hmac-sha512")
NAME_RULE = (
    "1 to 63 characters: small letters a to z, digits, '.', '_' and '-', "
    "the first of them a letter or a digit"
)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)


def check_name(what: str, name: object) -> str:
    """The name itself, or a sentence that says what is wrong with `what`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{what} is {name!a}, but a name has {NAME_RULE}")
    return name
