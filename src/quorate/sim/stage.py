"""A live topic's scenario performed: its world is built, lived through and looked at.

The slowest repair: sources and replicas repeat with a back-off of up to three seconds,
destinations give up after fifteen.
"""

from collections.abc import Collection
from functools import cache, partial
from random import Random

from quorate.core.ids import NodeId
from quorate.crypto.macs import DirectedMac, PairwiseMacs, derive_key
from quorate.protocol.broadcast.broken import CarelessDestination
from quorate.protocol.broker import Broker
from quorate.protocol.destination import Destination
from quorate.protocol.machine import Delivery, Receipt, Room
from quorate.protocol.source import Source
from quorate.sim.adversaries import PINNED, REPLICAS, SOURCES
from quorate.sim.checkers import LIVENESS, SAFETY, BatchId, Record, Violation, check
from quorate.sim.disks import SimDisk
from quorate.sim.hosts import Rewrite
from quorate.sim.scenarios import PlannedBatch, Scenario, SourcePart
from quorate.sim.theatre import Theatre
from quorate.sim.twins import Side

LATE_AFTER_US = 30_000_000
# What a Byzantine source began may be completed at one destination first.
LINGER_US = 4_000_000


class Stage(Theatre[Scenario, PlannedBatch, Violation]):
    """The world of one scenario of a live topic."""

    record: Record
    late_after_us = LATE_AFTER_US
    arrivals = Delivery | Receipt
    room = Receipt | Room

    def _build(self) -> None:
        scenario = self.scenario
        self.record = Record(
            {part.node: part.conduct for part in scenario.sources}, scenario.destinations
        )
        self._add_replicas()
        for part in scenario.sources:
            self._add_source(part)
        self._add_destinations()
        for cut in scenario.cuts:
            self.world.cut(cut.sender, cut.target, from_us=cut.from_us, until_us=cut.until_us)
        self._plan_faults()
        for planned in scenario.batches:
            self._plan(planned)

    @property
    def published(self) -> int:
        return len(self.record.published)

    @property
    def delivered(self) -> int:
        return sum(map(len, self.record.deliveries.values()))

    @property
    def _linger_us(self) -> int:
        return LINGER_US if self.scenario.has_byzantine_source else 0

    def _wrong(self) -> list[Violation]:
        return check(self.record, self.scenario.promises, SAFETY)

    def _missing(self) -> list[Violation]:
        return check(self.record, self.scenario.promises, LIVENESS)

    # Building

    def _replica(self, replica: NodeId, _: SimDisk) -> Broker:
        scenario = self.scenario
        names = {node: f"client-{node}" for node in scenario.everybody}
        macs = simulated_macs(replica, scenario.everybody)
        return Broker(replica, [scenario.topic], names, macs)

    def _add_source(self, part: SourcePart) -> None:
        topic, macs = self.scenario.topic, simulated_macs(part.node, self.scenario.everybody)
        self._add_publishing(part, partial(Source, part.node, [topic], macs, session=1))

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

    def _rewrite(
        self, node: NodeId, adversary: str, random: Random, victims: Collection[NodeId]
    ) -> Rewrite:
        make = {**REPLICAS, **PINNED, **SOURCES}[adversary]
        return make(random, self.scenario.setting.f, victims)

    def _publish(self, node: NodeId, side: Side, source: Source) -> None:
        name, waiting = self.scenario.topic.name, self._waiting[node][side]
        while waiting and source.has_room(name):
            planned = waiting.popleft()
            payload = planned.payload if side is Side.A else planned.twin_payload
            assert payload is not None
            stream = source.publish(name, payload, urgent=planned.urgent)
            number = BatchId(stream.publisher, stream.topic, source.last_sequence(name))
            self.record.published[number] = payload
        self.record.unpublished[node] = sum(map(len, self._waiting[node].values()))


@cache
def simulated_macs(node: NodeId, everybody: tuple[NodeId, ...]) -> PairwiseMacs:
    others = [other for other in everybody if other != node]
    return PairwiseMacs(
        {other: DirectedMac(_key(node, other), _key(other, node)) for other in others}
    )


@cache
def _key(maker: NodeId, reader: NodeId) -> bytes:
    """The simulated world has no secrets: what matters is that each direction has its own."""
    parts = (maker.to_bytes(8, "little"), reader.to_bytes(8, "little"))
    return derive_key(b"", "quorate simulated authenticators", *parts)
