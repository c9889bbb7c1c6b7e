"""What an audit found, as a report per party: for a person, for files, and for an exit code.

A party is a member of the cluster, or whoever keeps an archive. Each has a row, also where nothing
was found against it: then the row says how much of what it has, or published, was checked. What
nobody can be blamed for is in a row without a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from quorate.crypto.evidence import render
from quorate.protocol.auditing.findings import Finding, Findings, Pile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of `quorate audit` and of the job.
EXIT_MISBEHAVIOUR: Final = 1
EXIT_UNFINISHED: Final = 3

PARTIES: Final = (
    "party string, role string, batches bigint, bytes bigint, clean boolean, silent string, "
    "findings array<struct<kind: string, count: bigint, provable: boolean, "
    "examples: array<struct<sentence: string, group: string, slot: bigint, topic: string, "
    "partition: int, offset: bigint, evidence: string>>>>"
)


@dataclass(frozen=True, slots=True)
class Checked:
    """How much of a party was checked: batches that it has, or that it published."""

    role: str
    batches: int = 0
    payload_bytes: int = 0

    def __add__(self, other: Checked) -> Checked:
        return Checked(
            self.role, self.batches + other.batches, self.payload_bytes + other.payload_bytes
        )


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit on Spark."""

    # What was audited, for a person.
    subject: str
    parties: Mapping[str, Checked]
    findings: Findings
    notes: tuple[str, ...]
    # Who did not answer, and why.
    silent: Mapping[str, str]
    # Whether all could be judged.
    is_finished: bool
    # What was found of the order itself, in sentences.
    order: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        if self.findings:
            return EXIT_MISBEHAVIOUR
        return 0 if self.is_finished else EXIT_UNFINISHED

    def against(self, party: str) -> list[Pile]:
        return [pile for pile in self.findings if pile.examples[0].who == party]

    @property
    def named(self) -> list[str]:
        """All parties, and an empty name where something is found that nobody is blamed for."""
        blamed = [pile.examples[0].who for pile in self.findings]
        return [*dict.fromkeys([*self.parties, *self.silent, *sorted(blamed)])]

    def lines(self) -> list[str]:
        """One for each party, and what holds of all of them."""
        lines = [self._line(party) for party in self.named]
        lines += self.order
        lines += [f"Note: {note}." for note in self.notes]
        return [*lines, self._verdict()]

    def frame(self, spark: SparkSession) -> DataFrame:
        """A row for each party, with what was found against it."""
        return spark.createDataFrame([self._row(party) for party in self.named], PARTIES)

    def _line(self, party: str) -> str:
        piles = self.against(party)
        checked = self.parties.get(party, Checked("nobody" if not party else "member"))
        who = f"{party} ({checked.role})" if party else "nobody can be named"
        if piles:
            found = ", ".join(_told(pile) for pile in piles)
            return f"{who}: {found}; {piles[0].examples[0].sentence}"
        if party in self.silent:
            return f"{who}: did not answer: {self.silent[party]}"
        return f"{who}: nothing found in {checked.batches:,} batches"

    def _verdict(self) -> str:
        if self.findings:
            named = ", ".join(sorted(self.findings.named)) or "nobody can be named"
            return f"Something is wrong with {self.subject}: {named}."
        if not self.is_finished:
            return f"The audit of {self.subject} could not be finished."
        return f"All is well with {self.subject}."

    def _row(self, party: str) -> dict[str, Any]:
        checked = self.parties.get(party, Checked("nobody" if not party else "member"))
        piles = self.against(party)
        return {
            "party": party,
            "role": checked.role,
            "batches": checked.batches,
            "bytes": checked.payload_bytes,
            "clean": not piles,
            "silent": self.silent.get(party),
            "findings": [
                {
                    "kind": pile.examples[0].kind,
                    "count": pile.count,
                    "provable": pile.examples[0].is_provable,
                    "examples": [_example(finding) for finding in pile.examples],
                }
                for pile in piles
            ],
        }


def summed(parts: Iterable[tuple[str, Checked]]) -> dict[str, Checked]:
    """What was checked of each party, of all parts together."""
    found: dict[str, Checked] = {}
    for party, checked in parts:
        found[party] = found[party] + checked if party in found else checked
    return found


def _told(pile: Pile) -> str:
    first = pile.examples[0]
    times = "" if pile.count == 1 else f" {pile.count:,} times"
    where = f" on {first.where.topic}" if first.where.topic else ""
    return f"{first.kind}{times}{where}" + (" with evidence" if first.is_provable else "")


def _example(finding: Finding) -> dict[str, Any]:
    return {
        "sentence": finding.sentence,
        **finding.where.fields(),
        "evidence": None if finding.evidence is None else render(finding.evidence),
    }
