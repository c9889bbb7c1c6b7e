"""A log topic's scenario performed: its world is built, lived through and looked at.

On validated topics, producers sign, and what they signed is looked at as well.

The slowest repair: leaders change with a patience that doubles, up to sixteen seconds.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from random import Random

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quorate.core.cluster import Cluster
from quorate.core.control import CONTROL_TOPIC
from quorate.core.header import count_of
from quorate.core.ids import NodeId, member_of, topic_id
from quorate.core.ordering import Partition
from quorate.core.quorum import Quorum
from quorate.crypto.checkpoint import Cosigner
from quorate.crypto.digests import cut, digest_of
from quorate.crypto.identity import is_signed
from quorate.protocol.broker import Broker
from quorate.protocol.destination import Destination
from quorate.protocol.machine import Entry, Passed, Recorded, Report
from quorate.protocol.ordering.placement import GroupKind, group_of, rules_of
from quorate.protocol.ordering.records import (
    Certified,
    Decided,
    Held,
    Installed,
    Placed,
    Snapshot,
)
from quorate.protocol.ordering.replica import Ordering
from quorate.protocol.ordering.rules import Rules, Unsynchronised
from quorate.protocol.ordering.validation import Sealer, Validation
from quorate.protocol.outbox import Outbox
from quorate.protocol.source import Source
from quorate.protocol.topic import Topic, topics_of
from quorate.sim.checkers import Conduct
from quorate.sim.disks import SimDisk
from quorate.sim.hosts import Rewrite
from quorate.sim.order_adversaries import (
    BOAST,
    DENY,
    LOG_PUBLISHERS,
    LOG_REPLICAS,
    TWO_FACED,
    Deny,
    TwoFaced,
)
from quorate.sim.order_checkers import (
    LOG_LIVENESS,
    LOG_SAFETY,
    Content,
    LogBatch,
    LogViolation,
    check_log,
)
from quorate.sim.order_commands import PlannedCommand
from quorate.sim.order_scenarios import OrderScenario, PlannedAppend
from quorate.sim.sealing import CLUSTER, Sealed, SimSealer, public_key
from quorate.sim.stage import simulated_macs
from quorate.sim.stores import SimStore
from quorate.sim.theatre import Theatre
from quorate.sim.twins import Side
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

LATE_AFTER_US = 60_000_000
BLACKOUT_US = 20_000
# The time of day when the world begins.
EPOCH_US = 1_700_000_000_000_000


class _Keys:
    """The keys of replicas; `keys` says of whom it is known how many times they got another."""

    def __init__(self, me: NodeId, keys: Mapping[NodeId, int] | None = None) -> None:
        self.keys = dict(keys or {})
        self._me, self._mine = me, self.keys.get(me, 0)

    def adopt(self, cluster: Cluster) -> None:
        """No simulated command changes keys."""


class SimSigner(_Keys):
    """Signatures of a world without secrets: nobody in it signs for another."""

    def sign(self, data: bytes) -> bytes:
        return _signature(self._me, self._mine, data)

    def is_signed_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        return signature == _signature(replica, self.keys.get(replica, 0), data)

    def was_signed_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        former = range(self.keys.get(replica, 0))
        return any(signature == _signature(replica, number, data) for number in former)

    def attest(self, data: bytes) -> bytes:
        """With a real key: whoever sees it has no more than the cluster's keys."""
        return _private_key(self._me, self._mine).sign(data)

    def is_attested_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        number = self.keys.get(replica, 0)
        return is_signed(cosigner_of(replica, number).public_key, data, signature)

    def was_attested_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        former = range(self.keys.get(replica, 0))
        keys = [cosigner_of(replica, number).public_key for number in former]
        return any(is_signed(key, data, signature) for key in keys)


@cache
def _key(replica: NodeId, number: int) -> bytes:
    name = b"simulated signer %d" % replica
    return blake3(name + b", key %d" % number if number else name).digest()


def _signature(replica: NodeId, number: int, data: bytes) -> bytes:
    return blake3(data, key=_key(replica, number)).digest()


class SimNotary(_Keys):
    """Checkpoints of a simulated group, with real keys: they must verify."""

    origin = "simulated"

    def __init__(
        self, me: NodeId, members: tuple[NodeId, ...], keys: Mapping[NodeId, int] | None = None
    ) -> None:
        super().__init__(me, keys)
        self._members = members

    @property
    def cosigners(self) -> dict[NodeId, Cosigner]:
        return {node: cosigner_of(node, self.keys.get(node, 0)) for node in self._members}

    @property
    def former(self) -> dict[NodeId, list[Cosigner]]:
        return {
            node: [cosigner_of(node, number) for number in range(last)]
            for node, last in self.keys.items()
        }

    @property
    def is_replaced(self) -> bool:
        return self._mine != self.keys.get(self._me, 0)

    def sign_note(self, data: bytes) -> bytes:
        return _private_key(self._me, self._mine).sign(data)


def notaries_of(
    replica: NodeId, members: tuple[NodeId, ...], keys: Mapping[NodeId, int] | None = None
) -> dict[GroupKind, SimNotary]:
    return {kind: SimNotary(replica, members, keys) for kind in GroupKind}


@cache
def _private_key(node: NodeId, number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(_key(node, number))


@cache
def cosigner_of(node: NodeId, number: int) -> Cosigner:
    public_key = _private_key(node, number).public_key().public_bytes_raw()
    return Cosigner(f"r{node}", public_key)


class OrderStage(Theatre[OrderScenario, PlannedAppend, LogViolation]):
    """The world of one scenario of a log topic."""

    record: ValidatedRecord
    late_after_us = LATE_AFTER_US
    arrivals = Entry | Passed | Recorded
    room = Recorded

    def _build(self) -> None:
        scenario = self.scenario
        self.sealed = Sealed()
        self._validated = [topic for topic in scenario.topics if topic.contract.validated]
        self._keys = {node: public_key(node) for node in map(member_of, scenario.everybody)}
        self.record = ValidatedRecord(
            {part.node: part.conduct for part in scenario.publishers},
            scenario.readers,
            unpromised=scenario.unpromised,
            validated=frozenset(topic.id for topic in self._validated),
            validating=scenario.validating,
            cluster=CLUSTER,
            names={topic.id: topic.name for topic in self._validated},
            with_event_proofs=frozenset(
                topic.id for topic in self._validated if topic.contract.event_proofs
            ),
            keys={part.node: self._keys[member_of(part.node)] for part in scenario.publishers},
        )
        # Who started over, and with the state after which slot.
        self._installed: set[tuple[NodeId, int]] = set()
        # Those whose disks others keep slots for, as they are now.
        self._steady: dict[NodeId, SimStore] = {}
        self._add_replicas()
        for part in scenario.publishers:
            self._add_publishing(part, partial(self._source, part.node))
        self._add_readers()
        for absence in scenario.absences:
            self.world.inject(absence.from_us, partial(self.world.crash, absence.replica))
            again = partial(self.world.restart, absence.replica, amnesia=absence.amnesia)
            self.world.inject(absence.until_us, again)
        for at_us in scenario.blackouts_us:
            self.world.inject(at_us, self._black_out)
        self._plan_faults()
        for planned in scenario.appends:
            self._plan(planned)
        for command in scenario.commands:
            self.world.call(command.at_us, command.node, partial(self._command, command))

    @property
    def _topics(self) -> list[Topic]:
        """All topics, and the one of commands if there are any."""
        cluster = self.scenario.cluster
        others = () if cluster is None else topics_of(cluster)
        return [*self.scenario.topics, *(each for each in others if each.name == CONTROL_TOPIC)]

    def _register(self, name: str, machine: Source) -> int:
        number = super()._register(name, machine)
        if topic_id(name) in self.scenario.unpromised:
            self.record.unanswerable.add((machine.me, number))
        return number

    def _command(self, planned: PlannedCommand, machine: Source | Destination) -> None:
        number = machine.commands.give(planned.command, self.world.now_us)
        self.record.commands.setdefault(planned.node, set()).add(number)

    @property
    def faults(self) -> Counter[str]:
        return super().faults + Counter({"started over": len(self._installed)})

    @property
    def published(self) -> int:
        return len(self.record.published)

    @property
    def delivered(self) -> int:
        return self.record.entries_read

    @property
    def _names(self) -> list[str]:
        return [topic.name for topic in self.scenario.topics]

    def _validation(self, node: NodeId) -> Validation | None:
        """What a replica or a reader looks at seals with."""
        if not self._validated:
            return None
        kind = Blind if self.scenario.hostile.get(node) in (BLIND, RASH) else Validation
        return kind(CLUSTER, self._validated, self._keys)

    def _sealer(self, node: NodeId) -> Sealer | None:
        """What a publisher signs with."""
        if not self._validated:
            return None
        return SimSealer(
            node,
            wall_us=lambda: EPOCH_US + self.world.now_us,
            salts=Random(f"{self.scenario.seed}:salts {node}"),
            sealed=self.sealed,
        )

    def _rules(self, replica: NodeId) -> Callable[[GroupKind, Quorum], Rules]:
        if self.scenario.setting.protocol == "broken-ordering":
            return lambda _, quorum: Unsynchronised(quorum)
        if self.scenario.hostile.get(replica) == RASH:
            return lambda _, quorum: Rash(quorum)
        return rules_of

    # Building

    def _replica(self, replica: NodeId, disk: SimDisk) -> Broker:
        scenario = self.scenario
        names = {member: f"client-{member}" for member in map(member_of, scenario.everybody)}
        store = SimStore(disk, scenario.slots_kept, self._steady.values())
        if replica in scenario.steady:
            self._steady[replica] = store

        def ordering(outbox: Outbox) -> Ordering:
            return Ordering(
                replica,
                self._topics,
                names,
                cluster=scenario.cluster,
                signer=SimSigner(replica),
                notaries=notaries_of(replica, scenario.topic.members),
                store=store,
                found=store.found(),
                wall_us=partial(self._wall_us, replica),
                outbox=outbox,
                validation=self._validation(replica),
                rules=self._rules(replica),
                pace=scenario.pace,
                rooms=scenario.rooms,
                snapshot_every=scenario.snapshot_every,
            )

        macs = simulated_macs(replica, scenario.everybody)
        return Broker(replica, [], names, macs, ordering)

    def _wall_us(self, replica: NodeId, now_us: int) -> int:
        at_us, jump_us = self.scenario.jumps_us.get(replica, (0, 0))
        jumped_us = jump_us if now_us >= at_us else 0
        return EPOCH_US + now_us + self.scenario.skews_us[replica] + jumped_us

    def _source(self, node: NodeId) -> Source:
        return Source(
            node, self._topics, simulated_macs(node, self.scenario.everybody),
            session=1, rooms=self.scenario.rooms, sealer=self._sealer(node),
        )  # fmt: skip

    def _add_readers(self) -> None:
        for node in self.scenario.readers:
            self._add(node, partial(self._destination, node), None, (), self.scenario.topic.members)
        for begins in self.scenario.beginnings:
            read = partial(
                Destination.read, name=begins.topic, partition=begins.partition,
                offset=begins.offset, validate=begins.validate,
            )  # fmt: skip
            self.world.call(begins.at_us, begins.reader, read)

    def _destination(self, node: NodeId) -> Destination:
        macs = simulated_macs(node, self.scenario.everybody)
        publishers = [part.node for part in self.scenario.publishers]
        return Destination(node, self._topics, macs, publishers, self._validation(node))

    def _rewrite(
        self, node: NodeId, adversary: str, random: Random, victims: Collection[NodeId]
    ) -> Rewrite:
        topic = self.scenario.topic
        if adversary in VALIDATED_REPLICAS:
            return replica_rewrite(adversary, node, random, self.sealed)
        if adversary in VALIDATED_PUBLISHERS:
            pen = Pen(node, topic, self.sealed, random)
            return VALIDATED_PUBLISHERS[adversary](pen, topic.f, topic.members)
        if adversary == DENY:
            return Deny(SimSigner(node).sign)
        peers = [member for member in topic.members if member != node]
        if adversary == TWO_FACED:
            half = random.sample(peers, len(peers) // 2)
            return TwoFaced(node, half, SimSigner(node).sign)
        if adversary in ("impatient", BOAST):
            victims = peers
        if adversary == "censor":
            victims = [part.node for part in self.scenario.publishers]
        return {**LOG_REPLICAS, **LOG_PUBLISHERS}[adversary](
            random, self.scenario.setting.f, victims
        )

    def _black_out(self) -> None:
        """Every replica that can crash does so now, and is back a little later."""
        for replica in self.scenario.topic.members:
            if replica not in self.scenario.hostile:
                self.world.crash(replica)
                if not self._is_dead(replica):
                    again = partial(self.world.restart, replica)
                    self.world.inject(self.world.now_us + BLACKOUT_US, again)

    def _is_dead(self, replica: NodeId) -> bool:
        dies_us = self.scenario.dying.get(replica)
        return dies_us is not None and dies_us <= self.world.now_us + BLACKOUT_US

    def _publish(self, node: NodeId, side: Side, source: Source) -> None:
        waiting, unpromised = self._waiting[node][side], self.scenario.unpromised
        while waiting:
            line = source.line(waiting[0].topic, waiting[0].partition)
            if not line.has_room:
                break
            planned = waiting.popleft()
            payload = planned.payload if side is Side.A else planned.twin_payload
            assert payload is not None
            sequence = line.add(payload, count_of(payload), sign=planned.sign)
            if line.topic.id not in unpromised:
                self.record.published[LogBatch(node, line.line.target, sequence)] = payload
        self.record.unpublished[node] = sum(
            topic_id(each.topic) not in unpromised
            for left in self._waiting[node].values()
            for each in left
        )

    # Looking

    def _wrong(self) -> list[LogViolation]:
        for replica in self.scenario.topic.members:
            if replica not in self.scenario.hostile:
                self._look_at_disk(replica)
        self._look_at_seals()
        return check_log(self.record, VALIDATED_SAFETY if self._validated else LOG_SAFETY)

    def _missing(self) -> list[LogViolation]:
        self._look_at_seals()
        return check_log(self.record, VALIDATED_LIVENESS if self._validated else LOG_LIVENESS)

    def _report(self, node: NodeId, report: Report, now_us: int) -> None:
        """What links altered may look like a lie of who sent it."""
        conduct = self.record.conducts.get(node, Conduct.CORRECT)
        is_honest = node not in self.scenario.hostile and conduct is Conduct.CORRECT
        if is_honest and not self.scenario.network.alteration:
            self.record.on_report(node, report.node, report.kind)

    def _look_at_disk(self, replica: NodeId) -> None:
        """What the disk of a correct replica says stands where."""
        logs: dict[Partition, dict[int, Content]] = {}
        groups = self._groups(replica)
        ends = dict.fromkeys(groups, 0)
        states = self.record.states[replica] = {}
        for record in self.world.disk(replica).read():
            if isinstance(record, Held):
                # Decided or not.
                for payload in record.payloads if self._validated else ():
                    self.record.store(payload)
                continue
            group = getattr(record, "group", None)
            if group not in groups:
                # Slots of other groups have their own numbers.
                continue
            if isinstance(record, Installed):
                self._installed.add((replica, record.slot))
            if isinstance(record, Decided | Installed):
                ends[group] = record.slot
            if isinstance(record, Snapshot | Certified | Installed):
                states.setdefault((group, record.slot), set()).add(record.state)
            for placed in record.placed if isinstance(record, Decided) else ():
                partition = Partition(placed.topic, placed.partition)
                self._look_at_receipts(replica, partition, placed)
                logs.setdefault(partition, {}).update(_contents(placed))
        self.record.logs[replica] = logs
        if replica not in self.scenario.dying:
            self.record.ends[replica] = ends

    def _groups(self, replica: NodeId) -> set[int]:
        """The groups that a replica is in, of those that promise something."""
        return {
            group_of(topic.contract)
            for topic in self.scenario.topics
            if replica in topic.members and topic.id not in self.scenario.unpromised
        }

    def _look_at_receipts(self, replica: NodeId, partition: Partition, placed: Placed) -> None:
        """What a correct replica keeps of those that store what it lacks."""
        for kept in placed.receipts:
            key = cosigner_of(kept.store, 0).public_key
            described = cut(placed.descriptors)[: kept.first + kept.count - placed.first]
            decided = b"".join(map(digest_of, described))
            receipt = KeptReceipt(
                key, LogBatch(placed.publisher, partition, kept.first), kept.count, kept.chain,
                kept.signature, placed.before, decided + kept.behind,
            )  # fmt: skip
            self.record.receipts[replica, kept.store, receipt] = None

    def _look_at_seals(self) -> None:
        """What correct producers sealed."""
        for node, conduct in self.record.conducts.items():
            if conduct is Conduct.BYZANTINE:
                continue
            for (name, number, sequence), payload in self.sealed.by(node).items():
                batch = LogBatch(node, Partition(topic_id(name), number), sequence)
                self.record.sealed[batch] = payload


def _contents(placed: Placed) -> Iterator[tuple[int, Content]]:
    """What stands at which offset."""
    for at, described in enumerate(cut(placed.descriptors)):
        yield placed.offsets[at], Content(placed.publisher, placed.first + at, described)
