"""A random but reproducible plan of what goes wrong, and when.

A plan keeps a budget: at no time are more than `faulty_max` nodes of the group crashed, paused
or cut off, which is what a protocol is built to bear. A spell of loss is nobody's fault and is
not counted. At `calm_after_us` everything is mended, so that a checker may ask for progress
after it. The schedule is drawn before anything happens: it depends on the plan and the seed,
and on nothing that the protocol does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random

from quorate.core.errors import ConfigError
from quorate.core.ids import NodeId
from quorate.sim.links import BurstLoss, Loss
from quorate.sim.world import World

HEAVY_LOSS = BurstLoss(0.2, 3.0)


class FaultKind(Enum):
    CRASH = "crash"
    PAUSE = "pause"
    PARTITION = "partition"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. `nodes` is empty when it is about the whole network."""

    kind: FaultKind
    from_us: int
    until_us: int
    nodes: tuple[NodeId, ...] = ()
    amnesia: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What may go wrong in a group of nodes.

    Only nodes in `crashable` crash, by default all of the group; those in `amnesiacs` come back
    with an empty disk every other time. Times between and of faults are exponential.
    """

    group: Sequence[NodeId]
    faulty_max: int
    calm_after_us: int
    kinds: Sequence[FaultKind] = tuple(FaultKind)
    crashable: Sequence[NodeId] | None = None
    amnesiacs: Sequence[NodeId] = ()
    between_mean_us: int = 300_000
    length_mean_us: int = 400_000
    loss: Loss = HEAVY_LOSS
    # For what the world's seed holds the numbers of this plan.
    purpose: str = "faults"

    def __post_init__(self) -> None:
        if not 0 <= self.faulty_max <= len(self.group):
            raise ConfigError(
                f"{self.faulty_max} faulty nodes at a time in a group of {len(self.group)}; "
                "allowed are 0 up to the size of the group"
            )
        strangers = {*(self.crashable or ()), *self.amnesiacs} - {*self.group}
        if strangers:
            raise ConfigError(f"nodes {sorted(strangers)} are to fail but are not in the group")

    def schedule(self, random: Random) -> Iterator[Fault]:
        """The faults in the order of their beginning. All end by the time of calm."""
        until_us = dict.fromkeys(self.group, 0)
        at_us = 0
        while (at_us := at_us + self._draw(random, self.between_mean_us)) < self.calm_after_us:
            end_us = min(at_us + self._draw(random, self.length_mean_us), self.calm_after_us)
            well = [node for node in self.group if until_us[node] < at_us]
            budget = self.faulty_max - (len(self.group) - len(well))
            fault = self._one(random, at_us, end_us, well, budget)
            if fault is not None:
                until_us.update(dict.fromkeys(fault.nodes, end_us))
                yield fault

    def apply(self, world: World) -> list[Fault]:
        """Put this plan into a world, and say what it is. `world.faults` will count it."""
        faults = list(self.schedule(world.random(self.purpose)))
        for fault in faults:
            self._put(world, fault)
        return faults

    def _one(
        self, random: Random, at_us: int, end_us: int, well: list[NodeId], budget: int
    ) -> Fault | None:
        """One fault, or None when the kind that was drawn finds nobody left to fail."""
        kind = random.choice(self.kinds)
        if kind is FaultKind.LOSS:
            return Fault(kind, at_us, end_us)
        if kind is FaultKind.CRASH and self.crashable is not None:
            well = [node for node in well if node in self.crashable]
        most = min(budget, len(well))
        if most < 1:
            return None
        # Only a partition strikes several nodes at once.
        count = random.randint(1, most) if kind is FaultKind.PARTITION else 1
        nodes = tuple(random.sample(well, count))
        forgets = kind is FaultKind.CRASH and nodes[0] in self.amnesiacs and random.random() < 0.5
        return Fault(kind, at_us, end_us, nodes, forgets)

    def _put(self, world: World, fault: Fault) -> None:
        if fault.kind is FaultKind.LOSS:
            world.disturb(self.loss, from_us=fault.from_us, until_us=fault.until_us)
        elif fault.kind is FaultKind.PARTITION:
            world.partition([fault.nodes], from_us=fault.from_us, until_us=fault.until_us)
        elif fault.kind is FaultKind.PAUSE:
            (node,) = fault.nodes
            world.inject(fault.from_us, partial(world.pause, node))
            world.inject(fault.until_us, partial(world.resume, node))
        else:
            (node,) = fault.nodes
            world.inject(fault.from_us, partial(world.crash, node))
            restart = partial(world.restart, node, amnesia=fault.amnesia)
            world.inject(fault.until_us, restart)

    @staticmethod
    def _draw(random: Random, mean_us: int) -> int:
        return 1 + int(random.expovariate(1 / mean_us))
