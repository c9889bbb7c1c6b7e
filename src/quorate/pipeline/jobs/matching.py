"""Sequence patterns, as data, and how the events of one key are matched one after the other.

Source: QoS over wide-area networks, sections 3.1 and 3.5: "event e precedes e', that in turn
precedes e''".

    [[patterns]]
    name = "example"
    of = "type"
    steps = ["e", "e'", "e''"]
    within = "5s"

What precedes what is the order in which the consumer sees events, and nothing else. Matching skips
till the next match: each event of the first step begins a run; a run takes the next event of its
next step, passes over all others, and is a match when it has all steps. So each event begins at
most one match, while an event may take part in several. A match counts if its earliest and its
latest event are at most `within` apart by their own timestamps. A run whose next event is too far
away does not wait for a nearer one.

On a stream, events wait until the watermark has passed them and all before them in the order, so
that neither partitions that are read at different speeds nor the split into micro-batches change
the order. An event that comes after one was matched that is behind it in the order is passed over.
What is kept of a key: the events that wait, and the runs that are younger than `within`.
"""

from typing import ClassVar, Final, Literal

import msgspec

from quorate.pipeline.jobs.checks import Named

_STEPS_MAX: Final = 16
_WITHIN_US_MAX: Final = 86_400_000_000


class Pattern(Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of topics, or of types of events (`type` in the value), in their order."""

    kind: ClassVar[str] = "pattern"

    steps: tuple[str, ...]
    of: Literal["type", "topic"] = "type"
    within: str = "5s"

    def __post_init__(self) -> None:
        self.check_name()
        if not 2 <= len(self.steps) <= _STEPS_MAX:
            raise self.refusal(
                f"it has {len(self.steps)} steps, but a sequence has 2 to {_STEPS_MAX}"
            )
        if "" in self.steps:
            raise self.refusal(f"one of its steps names no {self.of}")
        if not 0 < self.within_us <= _WITHIN_US_MAX:
            raise self.refusal(f"within is '{self.within}', but it must be from 1us to 1d")

    @property
    def within_us(self) -> int:
        return self.duration("within", self.within)


class Seen(msgspec.Struct, frozen=True, array_like=True, order=True):
    """An event at its place in the consumer's order; `event` says which one it is."""

    major: int
    minor: int
    at_us: int
    event: str
    topic: str
    type: str | None


class Run(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a match, or all of it, with its earliest and latest time."""

    events: tuple[str, ...]
    first_us: int
    last_us: int

    def then(self, seen: Seen) -> "Run":
        return Run(
            (*self.events, seen.event),
            min(self.first_us, seen.at_us),
            max(self.last_us, seen.at_us),
        )


class Runs(msgspec.Struct, array_like=True):
    """All that is remembered of one key; it can be written down at any time."""

    # Where in the order the last event was that was matched.
    done: tuple[int, int] = (-1, -1)
    waiting: list[Seen] = []
    # By the pattern's name: for each step but the first, the runs that wait for it.
    open: dict[str, list[list[Run]]] = {}

    def hear(self, seen: list[Seen]) -> None:
        self.waiting.extend(each for each in seen if (each.major, each.minor) > self.done)
        self.waiting.sort()

    def advance(self, patterns: tuple[Pattern, ...], until_us: int) -> list[tuple[str, Run]]:
        """The matches among the events before which nothing is to come any more."""
        ready = 0
        while ready < len(self.waiting) and self.waiting[ready].at_us <= until_us:
            ready += 1
        found: list[tuple[str, Run]] = []
        for seen in self.waiting[:ready]:
            for pattern in patterns:
                run = self._take(pattern, seen)
                found.extend((pattern.name, each) for each in run)
            self.done = (seen.major, seen.minor)
        del self.waiting[:ready]
        self._forget(patterns, until_us)
        return found

    def next_us(self, patterns: tuple[Pattern, ...]) -> int | None:
        """When there is something to do at the latest, if nothing else comes."""
        if self.waiting:
            return self.waiting[0].at_us
        ends = [
            run.first_us + pattern.within_us + 1
            for pattern in patterns
            for runs in self.open.get(pattern.name, [])
            for run in runs
        ]
        return min(ends, default=None)

    def _take(self, pattern: Pattern, seen: Seen) -> list[Run]:
        name = seen.topic if pattern.of == "topic" else seen.type
        if name not in pattern.steps:
            return []
        steps = len(pattern.steps)
        waiting = self.open.setdefault(pattern.name, [[] for _ in range(steps - 1)])
        complete: list[Run] = []
        # From the last step to the first, so that one event takes a run one step and not two.
        for step in range(steps - 1, 0, -1):
            if pattern.steps[step] == name:
                moved = [run.then(seen) for run in waiting[step - 1]]
                waiting[step - 1] = []
                if step == steps - 1:
                    complete = moved
                else:
                    waiting[step].extend(moved)
        if pattern.steps[0] == name:
            waiting[0].append(Run((seen.event,), seen.at_us, seen.at_us))
        return [run for run in complete if run.last_us - run.first_us <= pattern.within_us]

    def _forget(self, patterns: tuple[Pattern, ...], until_us: int) -> None:
        """Runs that no event can complete in time, be it one that waits or one to come."""
        earliest_us = min((seen.at_us for seen in self.waiting), default=until_us)
        for pattern in patterns:
            kept = [
                [
                    run
                    for run in runs
                    if max(run.last_us, min(earliest_us, until_us)) - run.first_us
                    <= pattern.within_us
                ]
                for runs in self.open.get(pattern.name, [])
            ]
            self.open.pop(pattern.name, None)
            if any(kept):
                self.open[pattern.name] = kept
