"""How many replicas it takes to order, and what a new leader may propose.

Source: Cachin, Guerraoui and Rodrigues 2011, sections 5.6.3 and 5.6.4 (Byzantine epoch consensus)
and 5.3 (read/write epoch consensus); DESIGN on FIT-Broker 2013, sections 4.4.2 and 4.4.3.

A regency is an epoch. Before the leader of a new one proposes, at least n - f replicas tell it
the `State` that they carry into it: what they said in their current slot and in the one before.
From these, whatever may have been decided in a slot must follow.

`resolve` looks at one slot. Of a state it takes what that replica said in the slot: nothing at
all if the replica has not come so far; unknown, and counted for nothing, if it is further.

Byzantine: a value (ts, v) *binds* if more than (n + f) / 2 states have accepted nothing later
(they accepted before ts, or exactly this), and more than f have written v at ts or later, one of
them correct. A slot is *free* if more than (n + f) / 2 have accepted nothing at all. Whatever was
decided was accepted by a quorum, which any other meets in a correct replica, so that a slot with
a decision can neither be free nor bind another value.

Crash: whatever was decided was accepted by a majority, so that among the states of a majority the
value accepted last is the only one that may have been decided.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from quorate.core.ids import Digest, NodeId
from quorate.core.ordering import Promised, State
from quorate.core.quorum import Quorum


class Free(Enum):
    """Nothing can have been decided in this slot: the leader may propose what it likes."""

    FREE = "free"


FREE = Free.FREE
# A digest that the leader must propose, FREE, or None if more states are needed to tell.
Resolution: TypeAlias = Digest | Free | None


class Rules(Protocol):
    """What differs between the two fault models."""

    @property
    def quorum(self) -> int:
        """How many votes decide."""

    @property
    def has_write_phase(self) -> bool:
        """Whether ACCEPT needs a quorum of WRITEs first."""

    @property
    def liars(self) -> int:
        """How many states may claim what is not so."""

    @property
    def voices_to_believe(self) -> int:
        """So many that say that they received something: one of them is correct."""

    @property
    def voices_to_propose(self) -> int:
        """So many: then every correct replica will come to believe it."""

    @property
    def states_needed(self) -> int:
        """How many replicas stop before a regency ends."""

    @property
    def stops_to_join(self) -> int:
        """How many want the next regency before those join who see no need."""

    def resolve(self, slot: int, states: Iterable[State]) -> Resolution:
        """What these states say of a slot."""


@dataclass(frozen=True, slots=True)
class Byzantine:
    """n >= 3f + 1 replicas, of which f may do anything."""

    group: Quorum
    has_write_phase: bool = True

    @property
    def quorum(self) -> int:
        return self.group.intersecting

    @property
    def liars(self) -> int:
        return self.group.f

    @property
    def voices_to_believe(self) -> int:
        return self.group.one_correct

    @property
    def voices_to_propose(self) -> int:
        return self.group.majority_correct

    @property
    def states_needed(self) -> int:
        return self.group.reachable

    @property
    def stops_to_join(self) -> int:
        return self.group.one_correct

    def resolve(self, slot: int, states: Iterable[State]) -> Resolution:
        said = _said_in(slot, states)
        if sum(promised.accepted_in == 0 for promised in said) >= self.quorum:
            return FREE
        for ts, value in sorted({(p.accepted_in, p.accepted) for p in said if p.accepted_in}):
            not_later = sum(
                p.accepted_in < ts or (p.accepted_in, p.accepted) == (ts, value) for p in said
            )
            certified = sum(p.written.get(value, 0) >= ts for p in said)
            if not_later >= self.quorum and certified >= self.group.one_correct:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Crash:
    """n >= 2f + 1 replicas, of which f may stop, and come back with what they had on disk."""

    group: Quorum
    has_write_phase: bool = False

    @property
    def quorum(self) -> int:
        return self.group.n // 2 + 1

    @property
    def liars(self) -> int:
        return 0

    @property
    def voices_to_believe(self) -> int:
        return 1

    @property
    def voices_to_propose(self) -> int:
        return 1

    @property
    def states_needed(self) -> int:
        return self.quorum

    @property
    def stops_to_join(self) -> int:
        return self.quorum

    def resolve(self, slot: int, states: Iterable[State]) -> Resolution:
        said = _said_in(slot, states)
        if len(said) < self.quorum:
            return None
        last = max(said, key=lambda promised: promised.accepted_in)
        return last.accepted if last.accepted_in else FREE


class Unsynchronised(Crash):
    """FIT-Broker's appendix B: the next leader is elected by counting, and asks nobody.

    Kept to show that the checkers bite: it loses decided orders.
    """

    def resolve(self, slot: int, states: Iterable[State]) -> Resolution:
        return FREE


@dataclass(frozen=True, slots=True)
class Choice:
    """What follows from the states of a regency.

    Slots up to `free_from` are bound to values, or were decided by enough correct replicas that
    whoever lacks one can ask for it; from `free_from` on the leader is free. A choice that is not
    `complete` is as safe, but more states might help those who are behind.
    """

    bound: Mapping[int, Digest]
    free_from: int
    complete: bool


def choose(rules: Rules, states: Sequence[State], members: int) -> Choice | None:
    """What the leader may do after these states; None if they are not enough to tell.

    Where at most f replicas claim more than they have, one of the f + 1 that say they are
    furthest is correct. So one correct replica at least has come to the least of these slots, and
    has decided the one before. That may be the only one which has, and then nobody could take its
    word for it: the slot before is voted on again, bound to what was decided. Further back, a
    quorum had to decide before anybody could come so far.

    No correct replica takes part in a slot before it has decided the one before: beyond the first
    free slot there is nothing to find.
    """
    if len(states) < rules.states_needed:
        return None
    slots = sorted((state.slot for state in states), reverse=True)
    slot = slots[rules.liars]
    bound: dict[int, Digest] = {}
    before = rules.resolve(slot - 1, states)
    if isinstance(before, bytes):
        bound[slot - 1] = before
    complete = slot == 1 or before is not None or len(states) == members
    # Nobody has said anything two slots beyond the furthest.
    while slot <= slots[0] + 1:
        resolution = rules.resolve(slot, states)
        if resolution is FREE:
            return Choice(bound, slot, complete)
        if resolution is None:
            return None
        assert isinstance(resolution, bytes)
        bound[slot] = resolution
        slot += 1
    return None


def leader_of(members: Sequence[NodeId], regency: int) -> NodeId:
    """Regencies begin with 1, and every member has its turn."""
    return members[(regency - 1) % len(members)]


def _said_in(slot: int, states: Iterable[State]) -> list[Promised]:
    """What each replica said in a slot, as far as its state tells."""
    said = []
    for state in states:
        if slot > state.slot:
            said.append(Promised(slot, 0, b"", {}))
        else:
            said.extend(promised for promised in state.promised if promised.slot == slot)
    return said
