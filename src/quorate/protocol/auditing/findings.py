"""What an audit finds: who did what, where, and whether it can be proved.

A replica that lies does so thousands of times. So findings of one kind against one member at one
place are counted, and the first few of them kept as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from quorate.crypto.evidence import Evidence

EXAMPLES_MAX = 3


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the history, as far as it has a name."""

    group: str = ""
    slot: int | None = None
    topic: str = ""
    partition: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        named = (
            ("", self.topic),
            ("partition ", self.partition),
            ("offset ", self.offset),
            ("group ", self.group if not self.topic else ""),
            ("slot ", self.slot),
        )
        return ", ".join(f"{what}{name}" for what, name in named if name not in ("", None))

    def fields(self) -> dict[str, str | int | None]:
        """By name, with None for what has none."""
        return {
            "group": self.group or None,
            "slot": self.slot,
            "topic": self.topic or None,
            "partition": self.partition,
            "offset": self.offset,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that no correct member does. `who` is empty where nobody can be named.

    Evidence convinces anybody who has the cluster's keys. Without it, a finding is the word of
    whoever audits.
    """

    kind: str
    who: str
    where: Where
    sentence: str
    evidence: Evidence | None = None

    @property
    def is_provable(self) -> bool:
        return self.evidence is not None


@dataclass(slots=True)
class Pile:
    """Findings of one kind, about one member and one partition or group."""

    count: int = 0
    examples: list[Finding] = field(default_factory=list)


class Findings:
    """All that was found, in the order in which it was found first."""

    def __init__(self) -> None:
        self._piles: dict[tuple[str, str, str, int | None], Pile] = {}

    def add(self, finding: Finding) -> None:
        self.add_pile(Pile(1, [finding]))

    def add_pile(self, pile: Pile) -> None:
        """What somebody else found, who looked at another part of the history."""
        first = pile.examples[0]
        where = first.where
        key = first.kind, first.who, where.topic or where.group, where.partition
        known = self._piles.setdefault(key, Pile())
        known.count += pile.count
        known.examples += pile.examples[: EXAMPLES_MAX - len(known.examples)]

    def __iter__(self) -> Iterator[Pile]:
        return iter(self._piles.values())

    def __bool__(self) -> bool:
        return bool(self._piles)

    @property
    def named(self) -> list[str]:
        """Who is named, in the order in which that happened."""
        who = (finding.who for pile in self for finding in pile.examples)
        return list(dict.fromkeys(name for name in who if name))
