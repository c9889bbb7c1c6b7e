"""Sequence patterns once more, as plainly as they can be said; shares nothing with the job."""

import json
from typing import Any

from quorate.pipeline.jobs.matching import Pattern

S = 1_000_000

# A match: who, which key, which pattern, and its events.
Match = tuple[str, bytes, str, tuple[str, ...]]


def matches_told_naively(rows: list[dict[str, Any]], pattern: Pattern, by: str) -> set[Match]:
    """For each event, look along the list for the next one of each further step."""
    found: set[Match] = set()
    for consumer, key in {(str(row["consumer"]), row["key"]) for row in rows}:
        mine = [row for row in rows if (row["consumer"], row["key"]) == (consumer, key)]
        mine.sort(key=lambda row: int(str(row[by])))
        for begin in range(len(mine)):
            taken: list[dict[str, Any]] = []
            for row in mine[begin:]:
                name = row["topic"]
                if pattern.of == "type":
                    name = json.loads(bytes(row["value"]))["type"]
                if name == pattern.steps[len(taken)]:
                    taken.append(row)
                elif not taken:
                    break
                if len(taken) == len(pattern.steps):
                    times = [row["timestamp"].timestamp() for row in taken]
                    if round((max(times) - min(times)) * S) <= pattern.within_us:
                        names = tuple(map(_name_of, taken))
                        found.add((consumer, bytes(key), pattern.name, names))
                    break
    return found


def _name_of(row: dict[str, Any]) -> str:
    named = ("topic", "partition", "producer", "offset", "index")
    return "/".join(str(row[name]) for name in named if name in row)
