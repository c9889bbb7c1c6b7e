"""What a new leader may propose, held against worlds in which we know what was decided.

The oracle is naive. For one slot it walks through every order of events that the protocol allows
to a small group: who writes what, who accepts, who leaves which regency when, and which states the
next leader hears, with the faulty ones claiming whatever they like. A value is decided there when
a quorum accepted it, faulty ones included, whether or not anybody noticed. For several slots and
larger groups, hypothesis draws walks through the same events.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, combinations, product
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.ordering import Promised, State
from quorate.core.quorum import Quorum
from quorate.protocol.ordering.rules import (
    FREE,
    Byzantine,
    Choice,
    Crash,
    Resolution,
    Rules,
    Unsynchronised,
    choose,
    leader_of,
)

VALUES = (b"a", b"b")
FOUR, THREE = Byzantine(Quorum(4, 1)), Crash(Quorum(3, 1))


# What replicas say


def state(slot: int, *promised: Promised, regency: int = 9) -> State:
    return State(0, regency, slot, list(promised))


def said(slot: int = 1, accepted: bytes = b"", accepted_in: int = 0, **written: int) -> Promised:
    return Promised(slot, accepted_in, accepted, {k.encode(): ts for k, ts in written.items()})


NOTHING = state(1, said())


def accepted(value: str, ts: int = 1) -> State:
    """A replica that wrote and accepted a value."""
    return state(1, Promised(1, ts, value.encode(), {value.encode(): ts}))


def wrote(value: str, ts: int = 1) -> State:
    return state(1, Promised(1, 0, b"", {value.encode(): ts}))


# Single cases


def test_where_nothing_was_accepted_the_slot_is_free() -> None:
    assert FOUR.resolve(1, [NOTHING] * 3) is FREE
    assert FOUR.resolve(1, [wrote("a"), wrote("a"), wrote("b")]) is FREE
    assert THREE.resolve(1, [NOTHING] * 2) is FREE


def test_too_few_states_say_nothing() -> None:
    assert FOUR.resolve(1, [NOTHING] * 2) is None
    assert FOUR.resolve(1, [accepted("a")] * 2) is None
    assert THREE.resolve(1, [NOTHING]) is None


def test_one_replica_that_claims_an_accept_binds_nobody() -> None:
    """Whatever f replicas claim, f + 1 must have written it."""
    assert FOUR.resolve(1, [accepted("a"), NOTHING, NOTHING]) is None
    assert FOUR.resolve(1, [accepted("a"), NOTHING, NOTHING, NOTHING]) is FREE


def test_what_enough_have_written_binds_once_it_is_the_last_that_was_accepted() -> None:
    assert FOUR.resolve(1, [accepted("a"), wrote("a"), NOTHING]) == b"a"
    assert FOUR.resolve(1, [accepted("a", 1), wrote("a", 1), accepted("b", 2)]) is None
    both = [accepted("a", 1), accepted("b", 2), wrote("b", 2)]
    assert FOUR.resolve(1, both) == b"b"


def test_a_write_in_a_later_regency_vouches_for_an_earlier_accept() -> None:
    assert FOUR.resolve(1, [accepted("a", 1), wrote("a", 2), NOTHING]) == b"a"
    assert FOUR.resolve(1, [accepted("a", 2), wrote("a", 1), NOTHING]) is None


def test_a_replica_that_has_not_come_so_far_has_said_nothing() -> None:
    behind = state(1, said(1, b"x", 1, x=1))
    assert FOUR.resolve(2, [behind] * 3) is FREE


def test_a_replica_that_is_further_is_counted_for_nothing() -> None:
    ahead = state(5, said(4), said(5))
    assert FOUR.resolve(1, [NOTHING, NOTHING, ahead]) is None


def test_where_replicas_only_crash_the_last_accept_binds() -> None:
    states = [state(1, said(1, b"a", 1)), state(1, said(1, b"b", 2)), NOTHING]
    assert THREE.resolve(1, states) == b"b"
    assert THREE.resolve(1, states[::2]) == b"a"


def test_regencies_go_round() -> None:
    assert [leader_of((5, 6, 7), regency) for regency in (1, 2, 3, 4)] == [5, 6, 7, 5]


# Every world of one slot


# What one correct replica did: the regency it is in, and per regency its WRITE and its ACCEPT.
Votes: TypeAlias = tuple[bytes, ...]
Deeds: TypeAlias = tuple[int, Votes, Votes]
World: TypeAlias = tuple[Deeds, ...]


def state_into(regency: int, deeds: Deeds) -> State:
    """What a replica says when it leaves for this regency: all it did in earlier ones."""
    _, writes, accepts = deeds
    written = {writes[r - 1]: r for r in range(1, regency) if writes[r - 1]}
    last = max((r for r in range(1, regency) if accepts[r - 1]), default=0)
    return State(0, regency, 1, [Promised(1, last, accepts[last - 1] if last else b"", written)])


@cache
def lies_into(regency: int) -> list[State]:
    """What a faulty replica may claim, as far as it makes a difference."""
    accepts = [(0, b""), *product(range(1, regency), VALUES)]
    writes: list[dict[bytes, int]] = [{}]
    for values in ((b"a",), (b"b",), VALUES):
        writes += [dict.fromkeys(values, regency - 1)]
    return [
        State(0, regency, 1, [Promised(1, ts, value, written)])
        for (ts, value), written in product(accepts, writes)
    ]


def subsets(items: list[State], least: int) -> Iterator[tuple[State, ...]]:
    return chain.from_iterable(combinations(items, size) for size in range(least, len(items) + 1))


@dataclass
class ByzantineWorlds:
    """n = 4, f = 1: three correct replicas, and one that helps whoever does harm.

    It writes and accepts everything, leads every regency, shows everybody other states, and
    tells as many lies as it likes.
    """

    rules: Rules
    regencies: int = 2
    resolved: dict[tuple[int, tuple[Deeds, ...]], frozenset[Resolution]] = field(
        default_factory=dict
    )
    decisions: set[tuple[int, bytes]] = field(default_factory=set)

    def may_follow(self, regency: int, world: World) -> frozenset[Resolution]:
        """Everything that some set of states lets a leader do in this regency."""
        there = tuple(sorted(deeds for deeds in world if deeds[0] >= regency))
        known = self.resolved.get((regency, there))
        if known is None:
            states = [state_into(regency, deeds) for deeds in there]
            known = frozenset(
                self.rules.resolve(1, (*heard, *lie))
                for lie in [(), *((lie,) for lie in lies_into(regency))]
                for heard in subsets(states, max(self.rules.states_needed - len(lie), 0))
            ) - {None}
            self.resolved[regency, there] = known
        return known

    def decided(self, world: World) -> set[tuple[int, bytes]]:
        return {
            (regency, value)
            for regency, value in product(range(1, self.regencies + 1), VALUES)
            if 1 + sum(accepts[regency - 1] == value for _, _, accepts in world)
            >= self.rules.quorum
        }

    def steps(self, world: World) -> Iterator[World]:
        for at, (regency, writes, accepts) in enumerate(world):
            for deeds in self.deeds(world, regency, writes, accepts):
                # Replicas are alike.
                yield tuple(sorted((*world[:at], deeds, *world[at + 1 :])))

    def deeds(self, world: World, regency: int, writes: Votes, accepts: Votes) -> Iterator[Deeds]:
        if regency > self.regencies:
            return
        yield regency + 1, writes, accepts
        allowed = frozenset((FREE,)) if regency == 1 else self.may_follow(regency, world)
        for value in VALUES:
            if not writes[regency - 1] and (FREE in allowed or value in allowed):
                yield regency, with_vote(writes, regency, value), accepts
            voices = 1 + sum(others[regency - 1] == value for _, others, _ in world)
            if not accepts[regency - 1] and allowed and voices >= self.rules.quorum:
                yield regency, writes, with_vote(accepts, regency, value)

    def all(self) -> Iterator[World]:
        blank = (b"",) * self.regencies
        start: World = ((1, blank, blank),) * 3
        seen, left = {start}, [start]
        while left:
            current = left.pop()
            yield current
            for world in self.steps(current):
                if world not in seen:
                    seen.add(world)
                    left.append(world)

    def broken(self) -> Iterator[str]:
        """Where what was decided does not bind those who come later."""
        for world in self.all():
            decided = self.decided(world)
            self.decisions |= decided
            if len({value for _, value in decided}) > 1:
                yield f"two decisions: {world}"
            for (since, value), regency in product(decided, range(2, self.regencies + 2)):
                if regency > since and not self.may_follow(regency, world) <= {value}:
                    yield f"{value!r} was decided in {since}, and {regency} may differ: {world}"


def with_vote(votes: Votes, regency: int, value: bytes) -> Votes:
    return (*votes[: regency - 1], value, *votes[regency:])


def test_in_every_world_of_four_what_was_decided_binds() -> None:
    worlds = ByzantineWorlds(FOUR)

    assert list(worlds.broken()) == []

    # There are worlds with decisions in both regencies, and some that nothing binds.
    assert {regency for regency, _ in worlds.decisions} == {1, 2}
    assert frozenset({FREE}) in worlds.resolved.values()
    assert frozenset({b"a"}) in worlds.resolved.values()


@dataclass(frozen=True, slots=True)
class SmallQuorum(Byzantine):
    """f + 1 for everything, as the thesis has it for STRONG."""

    @property
    def quorum(self) -> int:
        return self.group.one_correct


@dataclass(frozen=True, slots=True)
class Uncertified(Byzantine):
    """Believe whoever says that it accepted something."""

    def resolve(self, slot: int, states: Iterable[State]) -> Resolution:
        said = [*map(as_if_written, states)]
        found = Byzantine.resolve(self, slot, said)
        last = max((p for each in said for p in each.promised if p.slot == slot),
                   key=lambda p: p.accepted_in, default=None)  # fmt: skip
        return last.accepted if found is None and last is not None else found


class Deaf(Byzantine):
    """Ask everybody, and listen to nobody."""

    def resolve(self, slot: int, states: Iterable[State]) -> Resolution:
        return FREE


def as_if_written(each: State) -> State:
    promised = [
        Promised(p.slot, p.accepted_in, p.accepted, {p.accepted: each.regency})
        for p in each.promised
    ]
    return State(each.group, each.regency, each.slot, promised)


@pytest.mark.parametrize("make", [SmallQuorum, Uncertified, Deaf])
def test_the_oracle_finds_worlds_in_which_other_rules_lose_a_decision(
    make: type[Byzantine],
) -> None:
    assert next(ByzantineWorlds(make(Quorum(4, 1))).broken(), "")


@dataclass
class CrashWorlds(ByzantineWorlds):
    """n = 3, f = 1: three replicas that say what is so; a leader proposes one value to all."""

    regencies: int = 3

    def may_follow(self, regency: int, world: World) -> frozenset[Resolution]:
        states = [state_into(regency, deeds) for deeds in world if deeds[0] >= regency]
        heard = subsets(states, self.rules.states_needed)
        return frozenset(self.rules.resolve(1, states) for states in heard) - {None}

    def decided(self, world: World) -> set[tuple[int, bytes]]:
        return {
            (regency, value)
            for regency, value in product(range(1, self.regencies + 1), VALUES)
            if sum(accepts[regency - 1] == value for _, _, accepts in world) >= self.rules.quorum
        }

    def deeds(self, world: World, regency: int, writes: Votes, accepts: Votes) -> Iterator[Deeds]:
        if regency > self.regencies:
            return
        yield regency + 1, writes, accepts
        if accepts[regency - 1]:
            return
        proposed = {others[regency - 1] for _, _, others in world} - {b""}
        allowed = frozenset((FREE,)) if regency == 1 else self.may_follow(regency, world)
        for value in proposed or VALUES:
            if proposed or FREE in allowed or value in allowed:
                yield regency, writes, with_vote(accepts, regency, value)


def test_in_every_world_of_three_what_was_decided_binds() -> None:
    worlds = CrashWorlds(THREE)
    assert list(worlds.broken()) == []
    assert {regency for regency, _ in worlds.decisions} == {1, 2, 3}


def test_a_leader_that_asks_nobody_loses_a_decision() -> None:
    """FIT-Broker's appendix B."""
    assert next(CrashWorlds(Unsynchronised(Quorum(3, 1))).broken(), "")


# Walks through several slots


@dataclass
class Walker:
    """A correct replica: where it is, and what it did by slot and regency."""

    regency: int = 1
    slot: int = 1
    writes: dict[tuple[int, int], bytes] = field(default_factory=dict)
    accepts: dict[tuple[int, int], bytes] = field(default_factory=dict)
    # Its state when it left for a regency.
    states: dict[int, State] = field(default_factory=dict)
    # What the leader of a regency showed it.
    choices: dict[int, Choice] = field(default_factory=dict)

    def leave_for(self, regency: int) -> None:
        self.regency = regency
        self.states[regency] = self.state()

    def state(self) -> State:
        slots = [slot for slot in (self.slot - 1, self.slot) if slot > 0]
        return State(0, self.regency, self.slot, [self.promised(slot) for slot in slots])

    def promised(self, slot: int) -> Promised:
        written = {v: r for (s, r), v in sorted(self.writes.items()) if s == slot}
        last = max((r for s, r in self.accepts if s == slot), default=0)
        return Promised(slot, last, self.accepts.get((slot, last), b""), written)


@dataclass
class Walk:
    """A group in which f replicas are faulty, and everything happens in some order."""

    rules: Rules
    n: int
    f: int
    random: Random
    decided: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_byzantine = isinstance(self.rules, Byzantine)
        # Faulty replicas have no memory to keep; where they only crash, they are just silent.
        self.walkers = [Walker() for _ in range(self.n - self.f)]
        self.liars = self.f if self.is_byzantine else 0
        self.proposed: dict[tuple[int, int], bytes] = {}
        self.chosen = 0

    def go(self, steps: int) -> None:
        for _ in range(steps):
            walker = self.random.choice(self.walkers)
            self.random.choice(
                (self.write, self.write, self.accept, self.accept, self.decide, self.leave)
            )(walker)

    # What a replica may do

    def leave(self, walker: Walker) -> None:
        if self.random.random() < 0.3:
            walker.leave_for(walker.regency + 1)

    def write(self, walker: Walker) -> None:
        choice = self.choice_of(walker)
        key = walker.slot, walker.regency
        if choice is None or key in walker.writes or key in walker.accepts:
            return
        value = self.proposal(walker, choice)
        if value is None:
            return
        if not self.is_byzantine:
            walker.accepts[key] = value
            return
        walker.writes[key] = value

    def accept(self, walker: Walker) -> None:
        key = walker.slot, walker.regency
        if not self.is_byzantine or self.choice_of(walker) is None or key in walker.accepts:
            return
        for value in VALUES:
            if self.voices(key, value, "writes") >= self.rules.quorum:
                walker.accepts[key] = value

    def decide(self, walker: Walker) -> None:
        for regency, value in product(range(1, 9), VALUES):
            if self.voices((walker.slot, regency), value, "accepts") >= self.rules.quorum:
                walker.slot += 1
                return

    # What there is

    def voices(self, key: tuple[int, int], value: bytes, kind: str) -> int:
        correct: int = sum(getattr(each, kind).get(key) == value for each in self.walkers)
        return correct + self.liars

    def proposal(self, walker: Walker, choice: Choice) -> bytes | None:
        if walker.slot < choice.free_from:
            return choice.bound.get(walker.slot)
        if self.is_byzantine:
            # Its leader may say something else to everybody.
            return self.random.choice(VALUES)
        key = walker.slot, walker.regency
        return self.proposed.setdefault(key, self.random.choice(VALUES))

    def choice_of(self, walker: Walker) -> Choice | None:
        if walker.regency == 1:
            return Choice({}, 1, True)
        if walker.regency in walker.choices:
            return walker.choices[walker.regency]
        if not self.is_byzantine:
            shown = [w.choices[walker.regency] for w in self.walkers if walker.regency in w.choices]
            if shown:
                return walker.choices.setdefault(walker.regency, shown[0])
        choice = choose(self.rules, self.heard(walker.regency), self.n)
        if choice is not None:
            self.chosen += 1
            self.check(choice, walker.regency)
            walker.choices[walker.regency] = choice
        return choice

    def heard(self, regency: int) -> list[State]:
        """Some states of correct replicas, and lies."""
        there = [each.states[regency] for each in self.walkers if regency in each.states]
        heard = self.random.sample(there, self.random.randint(0, len(there)))
        heard += [self.lie(regency) for _ in range(self.random.randint(0, self.liars))]
        self.random.shuffle(heard)
        return heard

    def lie(self, regency: int) -> State:
        slot = self.random.randint(1, max(each.slot for each in self.walkers) + 2)
        slots = [slot] if slot == 1 else [slot - 1, slot]
        return State(0, regency, slot, [self.lie_about(slot, regency) for slot in slots])

    def lie_about(self, slot: int, regency: int) -> Promised:
        ts = self.random.randint(0, regency - 1)
        written = {
            value: self.random.randint(1, regency - 1)
            for value in VALUES
            if regency > 1 and self.random.random() < 0.7
        }
        return Promised(slot, ts, self.random.choice(VALUES) if ts else b"", written)

    # What must hold

    def facts(self, before: int) -> dict[int, bytes]:
        """What may have been decided by somebody in a regency before this one."""
        return {
            slot: value
            for slot in range(1, max(each.slot for each in self.walkers) + 1)
            for regency, value in product(range(1, before), VALUES)
            if self.voices((slot, regency), value, "accepts") >= self.rules.quorum
            and any(each.accepts.get((slot, regency)) == value for each in self.walkers)
        }

    def check(self, choice: Choice, regency: int) -> None:
        for slot, value in self.facts(regency).items():
            assert slot < choice.free_from, "a slot with a decision was free"
            assert choice.bound.get(slot, value) == value, "a slot was bound to another value"
        if not choice.complete:
            return
        believed = 1 if not self.is_byzantine else self.f + 1
        for slot in range(1, choice.free_from):
            told = sum(each.slot > slot for each in self.walkers)
            assert slot in choice.bound or told >= believed, "a slot is neither bound nor known"

    def check_agreement(self) -> None:
        for slot in range(1, max(each.slot for each in self.walkers)):
            values = {
                value
                for regency, value in product(range(1, 40), VALUES)
                if self.voices((slot, regency), value, "accepts") >= self.rules.quorum
                and any(each.accepts.get((slot, regency)) == value for each in self.walkers)
            }
            assert len(values) == 1

    def check_liveness(self) -> None:
        """All correct replicas leave: what they say is enough, whatever the others claim."""
        regency = max(each.regency for each in self.walkers) + 1
        for walker in self.walkers:
            walker.leave_for(regency)
        truth = [walker.states[regency] for walker in self.walkers]
        for count in range(self.liars + 1):
            choice = choose(self.rules, truth + [self.lie(regency) for _ in range(count)], self.n)
            assert choice is not None
            self.check(choice, regency)


def walk(rules: Rules, n: int, f: int, seed: int) -> Walk:
    walked = Walk(rules, n, f, Random(seed))
    walked.go(150)
    walked.check_agreement()
    return walked


SEEDS = st.integers(0, 2**64)


@pytest.mark.parametrize(("n", "f"), [(4, 1), (5, 1), (6, 1), (7, 2), (8, 2), (10, 3)])
@given(SEEDS)
def test_wherever_a_walk_leads_what_was_decided_binds_and_all_correct_states_suffice(
    n: int, f: int, seed: int
) -> None:
    walk(Byzantine(Quorum(n, f)), n, f, seed).check_liveness()


@pytest.mark.parametrize(("n", "f"), [(3, 1), (4, 1), (5, 2), (7, 3)])
@given(SEEDS)
def test_wherever_a_walk_leads_among_crashes_the_last_accept_binds(
    n: int, f: int, seed: int
) -> None:
    walk(Crash(Quorum(n, f)), n, f, seed).check_liveness()


def test_walks_change_leaders_and_decide_slots() -> None:
    walks = [walk(FOUR, 4, 1, seed) for seed in range(100)]
    assert sum(each.chosen for each in walks) > 100
    assert sum(max(walker.slot for walker in each.walkers) - 1 for each in walks) > 100


@pytest.mark.parametrize("broken", [SmallQuorum(Quorum(4, 1)), Uncertified(Quorum(4, 1))])
def test_walks_find_rules_that_lose_a_decision(broken: Rules) -> None:
    def holds(seed: int) -> bool:
        try:
            walk(broken, 4, 1, seed)
        except AssertionError:
            return False
        return True

    assert not all(holds(seed) for seed in range(300))


# Choices over several slots


def test_from_fresh_replicas_a_leader_is_free_from_the_first_slot_on() -> None:
    assert choose(FOUR, [NOTHING] * 3, 4) == Choice({}, 1, True)


def test_too_few_states_are_no_choice() -> None:
    assert choose(FOUR, [NOTHING] * 2, 4) is None
    assert choose(THREE, [NOTHING], 3) is None


def test_the_slot_before_is_voted_on_again_since_one_replica_alone_may_have_decided_it() -> None:
    """0 has decided slot 1 on three ACCEPTs, and goes on to slot 2; nobody else has decided."""
    first = said(1, b"a", 1, a=1)
    states = [state(2, first, said(2)), state(1, first), state(1, first)]

    assert choose(FOUR, states, 4) == Choice({1: b"a"}, 2, True)


def test_one_liar_that_claims_to_be_far_ahead_changes_nothing() -> None:
    first = said(1, b"a", 1, a=1)
    far = state(1000, said(999, b"x", 8, x=8), said(1000, b"x", 8, x=8))
    states = [far, state(1, first), state(1, first), state(1, said(1, a=1))]

    assert choose(FOUR, states, 4) == Choice({1: b"a"}, 2, True)
    assert choose(FOUR, states[:3], 4) is None


def test_what_a_quorum_left_behind_long_ago_can_be_asked_for() -> None:
    """Two correct replicas at slot 7 have decided slot 5: whoever lacks it believes the two."""
    ahead = state(7, said(6, b"f", 1, f=1), said(7))
    behind = state(3, said(2), said(3))

    assert choose(FOUR, [ahead, ahead, behind], 4) == Choice({6: b"f"}, 7, True)


def test_a_choice_that_leaves_the_slot_before_open_waits_for_more_states() -> None:
    """0 decided slot 1 and 3 says so too, but 3 denies what it said there: 2 would help 1."""
    first = said(1, b"a", 1, a=1)
    decided, denied = state(2, first, said(2)), state(2, said(1), said(2))
    others = [state(1, said(1, a=1)), state(1, first)]

    assert choose(FOUR, [decided, denied, *others[:1]], 4) == Choice({1: b"a"}, 2, True)
    later = state(2, said(1, b"x", 8, x=8), said(2))
    assert choose(FOUR, [decided, later, *others[:1]], 4) == Choice({}, 2, False)
    assert choose(FOUR, [decided, later, *others], 4) == Choice({1: b"a"}, 2, True)
