"""Contracts: the guarantees that one topic gives, and what they cost in replicas.

A contract is only made by `Contract.parse`, from the table of a topic in the cluster file. It
fills in safe defaults and refuses, with one sentence that says why and what is allowed, every
key it does not know, every value out of range and every combination that cannot be kept: the
parties of a cluster must never believe in a guarantee that is not there.

Defaults. A topic that says nothing tolerates Byzantine replicas, disseminates its events live
by authenticated broadcast, and loses none to a slow subscriber (`discard = "never"` pushes
back on producers instead). `authenticated` and `chain` come with a history every 64 batches:
without one, an authenticated topic has no totality, and a chain stops for good when one
replica fails (Freeman 2016, section 5.8). A key that does not apply to a topic has its
neutral value: no broadcast, an empty queue, no limit in time.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias

from quorate.core import durations
from quorate.core.errors import ContractError
from quorate.core.limits import WINDOW_BATCHES

PROTECTIONS = ("none", "crash", "byzantine")
ORDERS = ("none", "fifo", "total")
BROADCASTS = ("vote", "authenticated", "reliable", "chain")
DISCARDS = ("oldest", "newest", "never")
EVERYONE = ("*",)

HISTORY_EVERY = 64
# A publisher without a history is stopped at 2 alpha, which must come before its window ends.
HISTORY_EVERY_MAX = WINDOW_BATCHES // 2
QUEUE_EVENTS = 65_536
QUEUE_EVENTS_MAX = 16_777_216
PARTITIONS_MAX = 4096
RETENTION_BYTES_MAX = 2**50
CLIENTS = 1024
CLIENTS_MAX = 1_000_000
# Keys that a contract may have and that no replica keeps yet, so that nobody is offered them.
NOT_YET = ("order_group",)
NAME_CHARACTERS_MAX = 200
NAMES_SHOWN_MAX = 8

_WITH_HISTORY = ("authenticated", "chain")
_LATER = "this version of Quorate does not have that yet"
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What one topic promises. Durations and sizes of 0 mean that there is no such limit.

    `retention_bytes` is for each partition, at each replica.
    """

    protection: str
    order: str
    broadcast: str
    history_every: int
    validated: bool
    event_proofs: bool
    order_group: str
    partitions: int
    queue_events_max: int
    discard: str
    expires_after_us: int
    retention_us: int
    retention_bytes: int
    publishers_max: int
    subscribers_max: int
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    @classmethod
    def parse(cls, name: str, table: Mapping[str, object]) -> "Contract":
        """The contract that the table of topic `name` asks for."""
        check_topic_name("topic", name)
        try:
            given = {key: _read(key, value) for key, value in table.items()}
            settings = _with_defaults(given)
            _check_combination(given, settings)
        except ContractError as error:
            raise ContractError(f"topic {name!r}: {error}") from None
        return cls(**{_FIELDS.get(key, key): value for key, value in settings.items()})

    @property
    def is_log(self) -> bool:
        """Whether events are ordered and kept, rather than disseminated live."""
        return self.order == "total"

    @property
    def protocol(self) -> str:
        """Which protocol carries this topic's batches."""
        if self.is_log:
            return "ordering"
        return self.broadcast or "first-answer"

    @property
    def terms(self) -> str:
        """What a client and the replicas must agree on before they can talk of a topic."""
        history = f", a history every {self.history_every}" if self.history_every else ""
        proofs = ", with a proof of each event" if self.event_proofs else ""
        validated = f", validated{proofs}" if self.validated else ""
        return f"{self.protection}, {self.protocol}, order {self.order}{history}{validated}"

    def replicas(self, f: int) -> int:
        """How many replicas it takes to keep this contract with f of them faulty."""
        if self.protection == "none":
            return 1
        if self.protection == "crash":
            return 2 * f + 1 if self.is_log else f + 1
        return 2 * f + 1 if self.broadcast == "vote" else 3 * f + 1

    def check(self, name: str, n: int, f: int) -> None:
        """Refuse a cluster of n replicas that is too small for this contract."""
        needed = self.replicas(f)
        if n >= needed:
            return
        kind = "total" if self.is_log else self.broadcast or "unordered"
        raise ContractError(
            f"topic {name!r} needs {needed} replica{'s' if needed > 1 else ''} for f = {f} "
            f"under {self.protection}/{kind}; this cluster has {n}"
        )

    def check_available(self, name: str) -> None:
        """Refuse what this version cannot do: a guarantee that is not kept must not be
        believed in."""
        for key in NOT_YET:
            if getattr(self, key):
                raise ContractError(
                    f"topic '{name}' asks for {key}, which this version of Quorate does not have "
                    f"yet; leave it out"
                )

    @property
    def keys(self) -> list[str]:
        """Every key that means something to such a topic."""
        settings = self._settings
        senseless = {rule.key for rule in _RULES if not rule.holds(settings)}
        return [key for key in KEYS if key not in senseless]

    def table(self) -> dict[str, Any]:
        """Every key that applies, as `parse` reads it: a contract stays what it is when a
        later release changes a default."""
        return {
            key: _RENDERERS[key](value) if key in _RENDERERS else value
            for key, value in self._settings.items()
            if key not in _NEUTRAL or value != _NEUTRAL[key]
        }

    @property
    def _settings(self) -> "_Settings":
        return {key: getattr(self, _FIELDS.get(key, key)) for key in _READERS}


# Reading one key

_Reader: TypeAlias = Callable[[str, object], object]


def _read(key: str, value: object) -> object:
    reader = _READERS.get(key)
    if reader is None:
        shown = key[:60]
        near = get_close_matches(shown, KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed are {', '.join(KEYS)}"
        raise ContractError(f"a contract has no key {shown!a}; {hint}")
    return reader(key, value)


def _choice(allowed: tuple[str, ...]) -> _Reader:
    def read(key: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ContractError(f"{key} is {_shown(value)}; allowed are {', '.join(allowed)}")
        return value

    return read


def _number(least: int, most: int) -> _Reader:
    def read(key: str, value: object) -> int:
        # True is a number to Python, but not to the person who wrote it.
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ContractError(f"{key} is {_shown(value)}; allowed are {least} to {most}")
        return value

    return read


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ContractError(f"{key} is {_shown(value)}; allowed are true and false")
    return value


def _duration(key: str, value: object) -> int:
    if not isinstance(value, str):
        raise ContractError(f"{key} is {_shown(value)}; allowed is a duration such as '30s'")
    try:
        duration_us = durations.parse(value)
    except ContractError as error:
        raise ContractError(f"{key}: {error}") from None
    if duration_us == 0:
        raise ContractError(f"{key} is {value!r}; leave it out if there is no limit")
    return duration_us


def _group(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ContractError(f"{key} is {_shown(value)}; allowed is a name")
    check_topic_name(key, value)
    return value


def _clients(key: str, value: object) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, list | tuple) else None
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise ContractError(
            f"{key} is {_shown(value)}; allowed is a list of client names, or ['*'] for everyone"
        )
    if len(set(names)) < len(names) or ("*" in names and names != EVERYONE):
        raise ContractError(f"{key} names a client twice; '*' is everyone and stands alone")
    return names


def not_listed(client: str, action: str, topic: str, allowed: tuple[str, ...]) -> str:
    """What a client is told that is not on an access list, such as `publish on` one.

    Who is on it, everybody may know: it stands in the cluster file.
    """
    may = ", ".join(allowed) if len(allowed) <= NAMES_SHOWN_MAX else f"{len(allowed)} others"
    return f"{client} may not {action} '{topic}'; {may or 'nobody'} may"


def check_topic_name(what: str, name: str) -> None:
    """The names of topics, and of what topics belong to."""
    if not _NAME.fullmatch(name):
        raise ContractError(
            f"{what} {_shown(name)} is not a name; allowed are 1 to {NAME_CHARACTERS_MAX} "
            "letters, digits and . _ -, not starting with . or -"
        )


def _shown(value: object) -> str:
    try:
        # Refusals are a part of the state that replicas agree on, and what `repr` takes for
        # printable is not the same in all releases of Python.
        text = ascii(value)
    except ValueError:
        # Python refuses to write out a number of more than a few thousand digits.
        return "a value too long to show"
    return text if len(text) <= 60 else f"{text[:60]}..."


_READERS: dict[str, _Reader] = {
    "protection": _choice(PROTECTIONS),
    "order": _choice(ORDERS),
    "broadcast": _choice(BROADCASTS),
    "history_every": _number(0, HISTORY_EVERY_MAX),
    "validated": _flag,
    "event_proofs": _flag,
    "order_group": _group,
    "partitions": _number(1, PARTITIONS_MAX),
    "queue_events_max": _number(1, QUEUE_EVENTS_MAX),
    "discard": _choice(DISCARDS),
    "expires_after": _duration,
    "retention": _duration,
    "retention_bytes": _number(0, RETENTION_BYTES_MAX),
    "publishers_max": _number(1, CLIENTS_MAX),
    "subscribers_max": _number(1, CLIENTS_MAX),
    "publish": _clients,
    "subscribe": _clients,
}

# What whoever writes a contract is offered.
KEYS = tuple(key for key in _READERS if key not in NOT_YET)

# The fields whose names say their unit.
_FIELDS = {"expires_after": "expires_after_us", "retention": "retention_us"}


# Keys together

_Settings: TypeAlias = dict[str, Any]


def _with_defaults(given: Mapping[str, object]) -> _Settings:
    protection, order = given.get("protection", "byzantine"), given.get("order", "none")
    is_live = order != "total"
    has_broadcast = protection == "byzantine" and is_live
    broadcast = given.get("broadcast", "authenticated" if has_broadcast else "")
    return {
        "protection": protection,
        "order": order,
        "broadcast": broadcast,
        "history_every": HISTORY_EVERY if broadcast in _WITH_HISTORY else 0,
        "validated": False,
        "event_proofs": False,
        "order_group": "",
        "partitions": 1,
        "queue_events_max": QUEUE_EVENTS if is_live else 0,
        "discard": "never" if is_live else "",
        "expires_after": 0,
        "retention": 0,
        "retention_bytes": 0,
        "publishers_max": CLIENTS,
        "subscribers_max": CLIENTS,
        "publish": EVERYONE,
        "subscribe": EVERYONE,
        **given,
    }


class _Rule(NamedTuple):
    """A key that needs others, and what to tell whoever gives it without them."""

    key: str
    holds: Callable[[_Settings], bool]
    why: str


def _is_log(settings: _Settings) -> bool:
    return bool(settings["order"] == "total")


def _is_live(settings: _Settings) -> bool:
    return not _is_log(settings)


_RULES = (
    _Rule(
        "broadcast",
        lambda settings: _is_live(settings) and settings["protection"] == "byzantine",
        "broadcast says how an unordered byzantine topic reaches its subscribers; leave it "
        "out, or set protection to 'byzantine' and order to 'none' or 'fifo'",
    ),
    _Rule(
        "history_every",
        lambda settings: settings["broadcast"] in _WITH_HISTORY,
        "histories repair what authenticated broadcast and chain may lose; set history_every "
        "to 0, or broadcast to 'authenticated' or 'chain'",
    ),
    _Rule(
        "validated",
        lambda settings: _is_log(settings) and settings["protection"] == "byzantine",
        "a validated topic proves to others what was published in which position, which takes "
        "replicas that bear liars, in total order; leave validated out, or set protection to "
        "'byzantine' and order to 'total'",
    ),
    _Rule(
        "event_proofs",
        lambda settings: bool(settings["validated"]),
        "event_proofs proves one event without its neighbours, on a validated topic; leave it "
        "out, or set validated to true",
    ),
    _Rule(
        "order_group",
        _is_log,
        "an order group gives several topics one order, so each needs one, and "
        f"{_LATER}; leave order_group out",
    ),
    _Rule(
        "partitions",
        _is_log,
        "a live topic has one partition; set partitions to 1, or order to 'total'",
    ),
    _Rule(
        "queue_events_max",
        _is_live,
        "a log topic is read from disk and has no queue; leave queue_events_max out, or set "
        "order to 'none' or 'fifo'",
    ),
    _Rule(
        "discard",
        _is_live,
        "a log topic discards nothing before its retention; leave discard out, or set order "
        "to 'none' or 'fifo'",
    ),
    _Rule(
        "expires_after",
        _is_live,
        "expires_after is for live events; use retention, or set order to 'none' or 'fifo'",
    ),
    _Rule(
        "retention",
        _is_log,
        "a live topic keeps nothing for later; use expires_after, or set order to 'total'",
    ),
    _Rule(
        "retention_bytes",
        _is_log,
        "a live topic keeps nothing for later; use queue_events_max, or set order to 'total'",
    ),
)

# What a key is when it does not apply or asks for nothing: saying so is always allowed.
_NEUTRAL: dict[str, object] = {
    "broadcast": "",
    "validated": False,
    "event_proofs": False,
    "order_group": "",
    "partitions": 1,
    "queue_events_max": 0,
    "discard": "",
    "expires_after": 0,
    "retention": 0,
    "retention_bytes": 0,
}


def _check_combination(given: Mapping[str, object], settings: _Settings) -> None:
    for rule in _RULES:
        asked = rule.key in given and given[rule.key] != _NEUTRAL.get(rule.key, 0)
        if asked and not rule.holds(settings):
            raise ContractError(rule.why)


# Writing

_RENDERERS: dict[str, Callable[[Any], object]] = {
    "expires_after": durations.render,
    "retention": durations.render,
    "publish": list,
    "subscribe": list,
}
