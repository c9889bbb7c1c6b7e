"""A scenario performed: its world is built, lived through and looked at.

A run ends early once nothing is left to wait for. When something stays out, it goes on as long
as anything arrives, and then for as long as the slowest repair could take (sources and replicas
repeat with a back-off of up to three seconds, destinations give up after fifteen). Only then is
it a violation.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection
from functools import cache, partial
from random import Random
from typing import Any, TypeAlias

from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.crypto.macs import DirectedMac, PairwiseMacs, derive_key
from quorate.protocol.broadcast.broken import CarelessDestination
from quorate.protocol.broker import Broker
from quorate.protocol.destination import Destination
from quorate.protocol.machine import Delivery, Machine, Outcome, Receipt, Room
from quorate.protocol.source import Source
from quorate.sim.adversaries import REPLICAS, SOURCES, TWIN_SOURCE, TWINS
from quorate.sim.checkers import LIVENESS, SAFETY, BatchId, Record, Violation, check
from quorate.sim.faults import Fault
from quorate.sim.hosts import Rewrite
from quorate.sim.scenarios import PlannedBatch, Scenario, SourcePart
from quorate.sim.twins import Side, Split
from quorate.sim.world import OnOutcome, World

LOOK_EVERY_US = 1_000_000
LATE_AFTER_US = 30_000_000
# What a Byzantine source began may be completed at one destination first.
LINGER_US = 4_000_000

# When, from whom, to whom, what.
Overhear: TypeAlias = Callable[[int, NodeId, NodeId, Message], object]


class Stage:
    """The world of one scenario.

    `overhear` is told every message that reaches a machine, for a readable trace. That changes
    nothing in the run.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        overhear: Overhear | None = None,
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self.scenario = scenario
        self.record = Record(
            {part.node: part.conduct for part in scenario.sources}, scenario.destinations
        )
        self.world = World(scenario.seed, network=scenario.network, on_outcome=self._outcome)
        # What the storms will do.
        self.planned: list[Fault] = []
        self._overhear = overhear
        self._on_outcome = on_outcome
        self._adversaries: Counter[str] = Counter()
        self._arrived_us = 0
        # What each source, or each of two twins, has yet to publish.
        self._waiting: defaultdict[NodeId, dict[Side, deque[PlannedBatch]]] = defaultdict(dict)
        self._add_replicas()
        for part in scenario.sources:
            self._add_source(part)
        self._add_destinations()
        self._plan_faults()
        for planned in scenario.batches:
            self._plan(planned)

    def perform(self) -> list[Violation]:
        """Through the storm, and on until everything that is due has come, or is late."""
        scenario, world = self.scenario, self.world
        world.run(scenario.calm_us)
        linger_us = LINGER_US if scenario.has_byzantine_source else 0
        while True:
            world.run(world.now_us + LOOK_EVERY_US)
            violations = self._look(SAFETY)
            waited_us = world.now_us - max(scenario.calm_us, self._arrived_us)
            if violations or waited_us > LATE_AFTER_US:
                return violations or self._look(LIVENESS)
            if world.now_us > scenario.calm_us + linger_us and not self._look(LIVENESS):
                return []

    @property
    def published(self) -> int:
        return len(self.record.published)

    @property
    def delivered(self) -> int:
        return sum(map(len, self.record.deliveries.values()))

    @property
    def faults(self) -> Counter[str]:
        """Everything that was done to this world, by kind."""
        lost = Counter({kind: self.world.traffic[kind] for kind in ("lost", "doubled")})
        return self.world.faults + self._adversaries + lost

    def _look(self, checkers: Collection[Any]) -> list[Violation]:
        return check(self.record, self.scenario.promises, checkers)

    # Building

    def _add_replicas(self) -> None:
        scenario = self.scenario
        topics, everybody = [scenario.topic], scenario.everybody
        names = {node: f"client-{node}" for node in everybody}
        for replica in scenario.topic.members:
            make = partial(Broker, replica, topics, names, simulated_macs(replica, everybody))
            adversary = scenario.hostile.get(replica)
            others = [node for node in everybody if node != replica]
            self._add(replica, make, adversary, others, scenario.topic.members[:replica])

    def _add_source(self, part: SourcePart) -> None:
        topic, macs = self.scenario.topic, simulated_macs(part.node, self.scenario.everybody)
        make = partial(Source, part.node, [topic], macs, session=1)
        self._add(part.node, make, part.adversary, topic.members, topic.members)
        self.world.call(0, part.node, lambda source: source.register(topic.name))
        if part.crash_at_us is not None:
            self.world.inject(part.crash_at_us, partial(self.world.crash, part.node))

    def _add_destinations(self) -> None:
        scenario, topic = self.scenario, self.scenario.topic
        kind = CarelessDestination if scenario.setting.protocol == "broken" else Destination
        publishers = [part.node for part in scenario.sources]
        for node in scenario.destinations:
            make = partial(
                kind, node, [topic], simulated_macs(node, scenario.everybody), publishers
            )
            self._add(node, make, None, (), topic.members)
            self.world.call(0, node, lambda destination: destination.subscribe(topic.name))

    def _add(
        self,
        node: NodeId,
        make: Callable[[], Machine],
        adversary: str | None,
        victims: Collection[NodeId],
        peers: Collection[NodeId],
    ) -> None:
        if self._overhear is not None:
            make = partial(Overheard, make, partial(self._hear, node))
        random = Random(f"{self.scenario.seed}:adversary {node}")
        rewrite: Rewrite | None = None
        if adversary is not None:
            self._adversaries[adversary] += 1
            rewrite = _MAKERS[adversary](random, self.scenario.setting.f, victims)
        self.world.add(node, make, peers=peers, rewrite=rewrite)
        if adversary in (TWINS, TWIN_SOURCE):
            self.world.add_twin(node, make, split=Split.by_lot(random, victims))

    def _plan_faults(self) -> None:
        scenario, world = self.scenario, self.world
        for storm in scenario.storms:
            self.planned += storm.apply(world)
        for cut in scenario.cuts:
            world.cut(cut.sender, cut.target, from_us=cut.from_us, until_us=cut.until_us)
        for replica, at_us in scenario.dying.items():
            world.inject(at_us, partial(world.crash, replica))
        world.inject(scenario.calm_us, world.heal)

    def _plan(self, planned: PlannedBatch) -> None:
        sides = (Side.A,) if planned.twin_payload is None else (Side.A, Side.B)
        for side in sides:
            take = partial(self._take, planned, side)
            self.world.call(planned.at_us, planned.source, take, side=side)

    def _take(self, planned: PlannedBatch, side: Side, source: Source) -> None:
        self._waiting[planned.source].setdefault(side, deque()).append(planned)
        self._publish(planned.source, side, source)

    def _publish(self, node: NodeId, side: Side, source: Source) -> None:
        """As much as there is room for: a program that uses a source waits for it, too."""
        name, waiting = self.scenario.topic.name, self._waiting[node][side]
        while waiting and source.has_room(name):
            planned = waiting.popleft()
            payload = planned.payload if side is Side.A else planned.twin_payload
            assert payload is not None
            stream = source.publish(name, payload, urgent=planned.urgent)
            number = BatchId(stream.publisher, stream.topic, source.last_sequence(name))
            self.record.published[number] = payload
        self.record.unpublished[node] = sum(map(len, self._waiting[node].values()))

    def _outcome(self, node: NodeId, outcome: Outcome, now_us: int) -> None:
        self.record.on_outcome(node, outcome, now_us)
        if isinstance(outcome, Delivery | Receipt):
            self._arrived_us = now_us
        if isinstance(outcome, Receipt | Room):
            for side, waiting in self._waiting[node].items():
                if waiting:
                    self.world.call(now_us, node, partial(self._publish, node, side), side=side)
        if self._on_outcome is not None:
            self._on_outcome(node, outcome, now_us)

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


_MAKERS = {**REPLICAS, **SOURCES}


@cache
def simulated_macs(node: NodeId, everybody: tuple[NodeId, ...]) -> PairwiseMacs:
    others = [other for other in everybody if other != node]
    return PairwiseMacs(
        {other: DirectedMac(_key(node, other), _key(other, node)) for other in others}
    )


@cache
def _key(maker: NodeId, reader: NodeId) -> bytes:
    """The simulated world has no secrets: what matters is that each direction has its own."""
    parts = (maker.to_bytes(4, "little"), reader.to_bytes(4, "little"))
    return derive_key(b"", "quorate simulated authenticators", *parts)
