"""What tasks of an audit hand on: facts of several kinds, and findings in piles.

Findings are piled up where they are found, and then all piles of one kind, about one party and one
place, together. Of each the first few are shown. So what comes to the driver does not grow with the
history, whatever somebody has done to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.protocol.auditing.findings import EXAMPLES_MAX, Finding, Findings, Pile

if TYPE_CHECKING:
    from pyspark import RDD


def only(facts: RDD[tuple[str, Any]], kind: str) -> RDD[Any]:
    """The facts of one kind, without its name."""
    return facts.filter(lambda fact: fact[0] == kind).map(lambda fact: fact[1])


def gathered(piles: RDD[Pile]) -> Findings:
    """All that was found, in an order that does not depend on which task was first."""
    found = piles.map(lambda pile: (_key(pile), pile)).reduceByKey(_together).collect()
    findings = Findings()
    for _, pile in sorted(found, key=lambda each: each[0]):
        findings.add_pile(pile)
    return findings


def _key(pile: Pile) -> tuple[str, str, str, int]:
    first = pile.examples[0]
    where = first.where
    number = -1 if where.partition is None else where.partition
    return first.who, first.kind, where.topic or where.group, number


def _together(one: Pile, other: Pile) -> Pile:
    examples = sorted([*one.examples, *other.examples], key=_place)
    return Pile(one.count + other.count, examples[:EXAMPLES_MAX])


def _place(finding: Finding) -> tuple[int, int, str]:
    where = finding.where
    slot = -1 if where.slot is None else where.slot
    return slot, -1 if where.offset is None else where.offset, finding.sentence
