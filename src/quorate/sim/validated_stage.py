"""A validated topic's scenario performed: as any log topic's, with producers that sign."""

from collections.abc import Callable, Collection
from random import Random

from quorate.core.ids import NodeId, member_of, topic_id
from quorate.core.ordering import Partition
from quorate.core.quorum import Quorum
from quorate.crypto.digests import cut, digest_of
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.records import Held, Placed
from quorate.protocol.ordering.rules import Rules
from quorate.protocol.ordering.validation import Sealer, Validation
from quorate.protocol.topic import Topic
from quorate.sim.checkers import Conduct
from quorate.sim.hosts import Rewrite
from quorate.sim.order_checkers import LogBatch, LogRecord, LogViolation, check_log
from quorate.sim.order_scenarios import OrderScenario
from quorate.sim.order_stage import EPOCH_US, OrderStage, cosigner_of
from quorate.sim.scenarios import VALIDATED
from quorate.sim.sealing import CLUSTER, Sealed, SimSealer, public_key
from quorate.sim.theatre import Overhear
from quorate.sim.validated_adversaries import (
    BLIND,
    RASH,
    VALIDATED_PUBLISHERS,
    VALIDATED_REPLICAS,
    Blind,
    Pen,
    Rash,
    replica_rewrite,
)
from quorate.sim.validated_checkers import (
    VALIDATED_LIVENESS,
    VALIDATED_SAFETY,
    KeptReceipt,
    ValidatedRecord,
)
from quorate.sim.world import OnOutcome


class ValidatedStage(OrderStage):
    """The world of one scenario of a validated topic."""

    def __init__(
        self,
        scenario: OrderScenario,
        *,
        overhear: Overhear | None = None,
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self.sealed = Sealed()
        self._keys = {node: public_key(node) for node in map(member_of, scenario.everybody)}
        super().__init__(scenario, overhear=overhear, on_outcome=on_outcome)

    def _new_record(self) -> LogRecord:
        scenario, validated = self.scenario, self._validated
        return ValidatedRecord(
            *self._cast,
            unpromised=scenario.unpromised,
            validated=frozenset(topic.id for topic in validated),
            validating=scenario.validating,
            cluster=CLUSTER,
            names={topic.id: topic.name for topic in validated},
            with_event_proofs=frozenset(
                topic.id for topic in validated if topic.contract.event_proofs
            ),
            keys={part.node: self._keys[member_of(part.node)] for part in scenario.publishers},
        )

    @property
    def _validated(self) -> list[Topic]:
        return [topic for topic in self.scenario.topics if topic.contract.validated]

    def _validation(self, node: NodeId) -> Validation:
        kind = Blind if self.scenario.hostile.get(node) in (BLIND, RASH) else Validation
        return kind(CLUSTER, self._validated, self._keys)

    def _sealer(self, node: NodeId) -> Sealer:
        return SimSealer(
            node,
            wall_us=lambda: EPOCH_US + self.world.now_us,
            salts=Random(f"{self.scenario.seed}:salts {node}"),
            sealed=self.sealed,
        )

    def _rules(self, replica: NodeId) -> Callable[[GroupKind, Quorum], Rules]:
        if self.scenario.hostile.get(replica) == RASH:
            return lambda _, quorum: Rash(quorum)
        return super()._rules(replica)

    def _rewrite(
        self, node: NodeId, adversary: str, random: Random, victims: Collection[NodeId]
    ) -> Rewrite:
        topic = self.scenario.topic
        if adversary in VALIDATED_REPLICAS:
            return replica_rewrite(adversary, node, random, self.sealed)
        if adversary in VALIDATED_PUBLISHERS:
            pen = Pen(node, topic, self.sealed, random)
            return VALIDATED_PUBLISHERS[adversary](pen, topic.f, topic.members)
        return super()._rewrite(node, adversary, random, victims)

    @property
    def _validated_record(self) -> ValidatedRecord:
        assert isinstance(self.record, ValidatedRecord)
        return self.record

    # Looking

    def _wrong(self) -> list[LogViolation]:
        self._look_at_disks()
        self._look_at_seals()
        return check_log(self.record, VALIDATED_SAFETY)

    def _missing(self) -> list[LogViolation]:
        self._look_at_seals()
        return check_log(self.record, VALIDATED_LIVENESS)

    def _look_at_seals(self) -> None:
        """What correct producers sealed."""
        record = self._validated_record
        for part in self.scenario.publishers:
            if record.conducts[part.node] is Conduct.BYZANTINE:
                continue
            for (name, number, sequence), payload in self.sealed.by(part.node).items():
                batch = LogBatch(part.node, Partition(topic_id(name), number), sequence)
                record.sealed[batch] = payload

    def _look_at_receipts(self, replica: NodeId, placed: Placed) -> None:
        partition = Partition(placed.topic, placed.partition)
        for kept in placed.receipts:
            key = cosigner_of(kept.store, 0).public_key
            described = cut(placed.descriptors)[: kept.first + kept.count - placed.first]
            decided = b"".join(map(digest_of, described))
            receipt = KeptReceipt(
                key, LogBatch(placed.publisher, partition, kept.first), kept.count, kept.chain,
                kept.signature, placed.before, decided + kept.behind,
            )  # fmt: skip
            self._validated_record.receipts[replica, kept.store, receipt] = None

    def _look_at_payloads(self, held: Held) -> None:
        for payload in held.payloads:
            self._validated_record.store(payload)


def log_stage(
    scenario: OrderScenario,
    *,
    overhear: Overhear | None = None,
    on_outcome: OnOutcome | None = None,
) -> OrderStage:
    """The world of this scenario, whatever log topic it is about."""
    kind = ValidatedStage if scenario.setting.protocol == VALIDATED else OrderStage
    return kind(scenario, overhear=overhear, on_outcome=on_outcome)
