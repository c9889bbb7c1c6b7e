"""What every stage has: a world, who attacks in it, what is yet to be published, and an end.

A run ends early once nothing is left to wait for. When something stays out, it goes on as long
as anything arrives, and then for as long as the slowest repair could take. Only then is it a
violation.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection
from functools import partial
from random import Random
from types import UnionType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.protocol.machine import Machine, Outcome, Report
from quorate.protocol.source import Source
from quorate.sim.adversaries import TWIN_SOURCE, TWINS
from quorate.sim.disks import SimDisk
from quorate.sim.faults import Fault
from quorate.sim.hosts import Rewrite
from quorate.sim.scenarios import Drawn, Planned, SourcePart
from quorate.sim.twins import Side, Split
from quorate.sim.world import OnOutcome, World

LOOK_EVERY_US = 1_000_000

# When, from whom, to whom, what.
Overhear: TypeAlias = Callable[[int, NodeId, NodeId, Message], object]

_S = TypeVar("_S", bound=Drawn)
_P = TypeVar("_P", bound=Planned)
_V = TypeVar("_V")


class _Record(Protocol):
    def on_outcome(self, node: NodeId, outcome: Outcome) -> None: ...


class Theatre(ABC, Generic[_S, _P, _V]):
    """The world of one scenario, what is planned in it, and the violations that are found.

    `overhear` is told every message that reaches a machine, for a readable trace. That changes
    nothing in the run.
    """

    # What happened, for the checkers.
    record: _Record
    # When nothing has arrived for so long, nothing will.
    late_after_us: int
    # What counts as having arrived, and what says that a source may have room again.
    arrivals: UnionType
    room: type[Outcome] | UnionType

    def __init__(
        self,
        scenario: _S,
        *,
        overhear: Overhear | None = None,
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self.scenario = scenario
        self.world = World(
            scenario.seed,
            network=scenario.network,
            on_outcome=self._on_any_outcome,
            on_report=self._report,
        )
        # What the storms will do.
        self.planned: list[Fault] = []
        self._overhear = overhear
        self._on_outcome = on_outcome
        self._adversaries: Counter[str] = Counter()
        self._arrived_us = 0
        # What each source, or each of two twins, has yet to publish.
        self._waiting: defaultdict[NodeId, dict[Side, deque[_P]]] = defaultdict(dict)
        self._build()

    def perform(self) -> list[_V]:
        """Through the storm, and on until everything that is due has come, or is late."""
        scenario, world = self.scenario, self.world
        world.run(scenario.calm_us)
        while True:
            world.run(world.now_us + LOOK_EVERY_US)
            violations = self._wrong()
            waited_us = world.now_us - max(scenario.calm_us, self._arrived_us)
            if violations or waited_us > self.late_after_us:
                return violations or self._missing()
            if world.now_us > scenario.calm_us + self._linger_us and not self._missing():
                return []

    @property
    def faults(self) -> Counter[str]:
        """Everything that was done to this world, by kind."""
        lost = Counter({kind: self.world.traffic[kind] for kind in ("lost", "doubled", "altered")})
        return self.world.faults + self._adversaries + lost

    @property
    def _names(self) -> list[str]:
        """The topics that are published on."""
        return [self.scenario.topic.name]

    def _on_any_outcome(self, node: NodeId, outcome: Outcome, now_us: int) -> None:
        self.record.on_outcome(node, outcome)
        if isinstance(outcome, self.arrivals):
            self._arrived_us = now_us
        if isinstance(outcome, self.room):
            for side, waiting in self._waiting[node].items():
                if waiting:
                    self.world.call(now_us, node, partial(self._publish, node, side), side=side)
        if self._on_outcome is not None:
            self._on_outcome(node, outcome, now_us)

    # What a stage adds

    @abstractmethod
    def _build(self) -> None:
        """Put everybody and everything that is planned into the world."""

    @property
    def _linger_us(self) -> int:
        """How long after the storm there may be more to see although nothing is missing."""
        return 0

    @abstractmethod
    def _wrong(self) -> list[_V]:
        """What must never be."""

    @abstractmethod
    def _missing(self) -> list[_V]:
        """What must be in the end."""

    @abstractmethod
    def _rewrite(
        self, node: NodeId, adversary: str, random: Random, victims: Collection[NodeId]
    ) -> Rewrite:
        """How a node of this kind misbehaves."""

    @abstractmethod
    def _replica(self, replica: NodeId, disk: SimDisk) -> Machine:
        """The machine of a replica that begins with what is on this disk."""

    @abstractmethod
    def _publish(self, node: NodeId, side: Side, source: Source) -> None:
        """As much as there is room for: a program that uses a source waits for it, too."""

    def _report(self, node: NodeId, report: Report, now_us: int) -> None:
        """Note what a machine reported."""

    # Building

    def _add(
        self,
        node: NodeId,
        make: Callable[[], Machine],
        adversary: str | None,
        victims: Collection[NodeId],
        peers: Collection[NodeId],
        disk: SimDisk | None = None,
    ) -> None:
        random = Random(f"{self.scenario.seed}:adversary {node}")
        rewrite: Rewrite | None = None
        if adversary is not None:
            self._adversaries[adversary] += 1
            rewrite = self._rewrite(node, adversary, random, victims)
        self.world.add(node, self._heard(node, make), peers=peers, rewrite=rewrite, disk=disk)
        if adversary in (TWINS, TWIN_SOURCE):
            disk = SimDisk()
            if node in self.scenario.topic.members:
                make = partial(self._replica, node, disk)
            split = Split.by_lot(random, victims)
            self.world.add_twin(node, self._heard(node, make), split=split, disk=disk)

    def _heard(self, node: NodeId, make: Callable[[], Machine]) -> Callable[[], Machine]:
        """How to make this machine, with somebody listening if anybody wants to."""
        if self._overhear is None:
            return make
        return partial(Overheard, make, partial(self._hear, node))

    def _add_replicas(self) -> None:
        scenario = self.scenario
        for replica in scenario.topic.members:
            disk = SimDisk()
            others = [node for node in scenario.everybody if node != replica]
            peers, adversary = scenario.topic.members[:replica], scenario.hostile.get(replica)
            self._add(
                replica, partial(self._replica, replica, disk), adversary, others, peers, disk
            )

    def _add_publishing(self, part: SourcePart, make: Callable[[], Machine]) -> None:
        topic = self.scenario.topic
        self._add(part.node, make, part.adversary, topic.members, topic.members)
        for name in self._names:
            self.world.call(0, part.node, partial(self._register, name))
        if part.crash_at_us is not None:
            self.world.inject(part.crash_at_us, partial(self.world.crash, part.node))

    def _register(self, name: str, machine: Source) -> int:
        return machine.register(name)

    def _plan_faults(self) -> None:
        for storm in self.scenario.storms:
            self.planned += storm.apply(self.world)
        for replica, at_us in self.scenario.dying.items():
            self.world.inject(at_us, partial(self.world.crash, replica))
        self.world.inject(self.scenario.calm_us, self.world.heal)

    # Publishing

    def _plan(self, planned: _P) -> None:
        sides = (Side.A,) if planned.twin_payload is None else (Side.A, Side.B)
        for side in sides:
            take = partial(self._take, planned, side)
            self.world.call(planned.at_us, planned.source, take, side=side)

    def _take(self, planned: _P, side: Side, source: Source) -> None:
        self._waiting[planned.source].setdefault(side, deque()).append(planned)
        self._publish(planned.source, side, source)

    def _hear(self, receiver: NodeId, sender: NodeId, message: Message) -> None:
        if self._overhear is not None:
            self._overhear(self.world.now_us, sender, receiver, message)


class Overheard:
    """A machine whose incoming messages somebody else reads too."""

    def __init__(
        self, make: Callable[[], Machine], hear: Callable[[NodeId, Message], object]
    ) -> None:
        self._machine = make()
        self._hear = hear

    def step(self, sender: NodeId, message: Message) -> None:
        self._hear(sender, message)
        self._machine.step(sender, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)
