"""What one seed has in store for a log topic.

As in `scenarios.py`, a seed draws everything, within what the protocol is built to bear. What
differs is that replicas have disks:

- At most f replicas are hostile, or come back with an empty disk, over the whole run.
- Any other replica may crash, at any time, and comes back with what it had synced. In most seeds
  at most f are away at a time (with the hostile ones), so that the log goes on; in some all of
  them may be, or the power fails everywhere at one moment, and only what was acknowledged must be
  there afterwards.
- In some seeds replicas have a short memory: they keep so few slots that whoever was away starts
  over at a snapshot, and lacks what was there before. What fewer than f + 1 correct replicas have
  (or one, where nobody lies) no reader can be sure of. So at most n - f - 1 are struck by faults
  or hostile, one after the other is away for long, and nobody dies.
- Clocks of replicas differ, and jump in some seeds.
- In half of the seeds there is so little room for what is undecided that a few batches fill it.
- A quarter of the seeds have a control plane: publishers register, and clients give commands.
- Half of the seeds have other topics beside the one that they are about: one that the same group
  orders, or one that another group in the same processes does. Of a group that bears no liars
  nothing is promised where there are some, but that it holds up nobody else.
- Some publishers leave or crash, and their next session goes on.
- Some readers begin later, and at any offset, be it inside a batch.
- Half of the seeds are restless: replicas lose their patience within milliseconds, so that leaders
  change in the middle of everything.

On a validated topic any number of producers may be hostile beside the replicas. Signed and basic
batches mix there, and some readers validate. Who signs what is drawn apart, so that everything else
is as on other topics.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from quorate.core import batch
from quorate.core.cluster import Cluster
from quorate.core.contract import Contract
from quorate.core.ids import NodeId, TopicId, member_of, node_of
from quorate.core.limits import Windows
from quorate.protocol.ordering.pace import PACE, Pace
from quorate.protocol.ordering.room import ROOMS, Rooms
from quorate.protocol.topic import Topic
from quorate.sim.adversaries import TWIN_SOURCE
from quorate.sim.checkers import Conduct
from quorate.sim.faults import FaultKind
from quorate.sim.links import Network
from quorate.sim.order_adversaries import (
    BOAST,
    FALSE_STATE,
    HOLLOW,
    LIE_REPLY,
    LOG_PUBLISHERS,
    LOG_REPLICA_NAMES,
    TWO_FACED,
)
from quorate.sim.order_commands import PlannedCommand, draw_commands, simulated_cluster
from quorate.sim.scenarios import (
    BEGIN_US,
    FIRST_CLIENT,
    VALIDATED,
    Drawn,
    Planned,
    Setting,
    SourcePart,
    Storm,
    draw_loss,
    draw_moment,
    draw_network,
    draw_parts,
)
from quorate.sim.sealing import public_key
from quorate.sim.validated_adversaries import (
    ABOUT_SEALS,
    FALSE_RECEIPTS,
    VALIDATED_PUBLISHERS,
)

# How many seeds have a control plane.
WITH_COMMANDS = 0.25
STORM_US = (1_000_000, 4_000_000)
# How long it is on average from one fault to the next, and how long a fault lasts.
_WEATHER = ((300_000, 400_000), (100_000, 200_000), (30_000, 40_000))
_NO_CRASHES = (FaultKind.PAUSE, FaultKind.PARTITION, FaultKind.LOSS)
# How many seeds have a short memory, and how short it is: after how many slots there is a
# snapshot, and how many are kept.
SHORT_MEMORIES = 0.3
_MEMORIES = ((2, 4), (4, 8), (8, 16))
# How many seeds have little room for what is undecided, and how much a session has then.
NARROW = 0.5
ROOM_BYTES = 48 * 1024
_CONTRACTS: dict[str, dict[str, object]] = {
    "ordering": {"protection": "byzantine", "order": "total"},
    "crash-ordering": {"protection": "crash", "order": "total"},
    "broken-ordering": {"protection": "crash", "order": "total"},
    VALIDATED: {"protection": "byzantine", "order": "total", "validated": True},
}
# Of validated topics: how many have proofs of single events, how many replicas that are hostile
# attack what is new there, how much a publisher signs, and how many readers validate.
WITH_EVENT_PROOFS = 0.3
ATTACKING_SEALS = 0.6
# Of those, so many give false receipts instead.
ATTACKING_RECEIPTS = 0.2
_SIGNED = (0.2, 0.6, 1.0)
VALIDATING = 0.6
# How many events a batch has.
_EVENTS = (1, 1, 2, 3, 5)
# How many seeds have other topics, and how much is published there; how many publishers have a
# second session.
WITH_OTHERS = 0.5
ELSEWHERE = 0.4
WITH_SUCCESSORS = 0.3

_NOT_REPLICAS = ("none", *LOG_PUBLISHERS, *VALIDATED_PUBLISHERS)


@dataclass(frozen=True, slots=True)
class PlannedAppend(Planned):
    topic: str
    partition: int
    sign: bool


class Beginning(NamedTuple):
    """Where a reader begins with a partition, and when."""

    reader: NodeId
    at_us: int
    topic: str
    partition: int
    offset: int
    validate: bool


class Absence(NamedTuple):
    replica: NodeId
    from_us: int
    until_us: int
    amnesia: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderScenario(Drawn):
    """Everything that was drawn for a log topic."""

    # Other topics, beside the one that this is about.
    others: tuple[Topic, ...]
    publishers: tuple[SourcePart, ...]
    readers: tuple[NodeId, ...]
    beginnings: tuple[Beginning, ...]
    appends: tuple[PlannedAppend, ...]
    # By how much each replica's clock is wrong, and by how much it jumps at which time.
    skews_us: Mapping[NodeId, int]
    jumps_us: Mapping[NodeId, tuple[int, int]]
    pace: Pace
    rooms: Rooms
    snapshot_every: int
    slots_kept: int
    # Who is away for long: from when to when, and whether its disk is empty then.
    absences: tuple[Absence, ...]
    # When the power fails everywhere at once, for a moment.
    blackouts_us: tuple[int, ...]
    # What the cluster is at the beginning, and what its clients command; None without commands.
    cluster: Cluster | None
    commands: tuple[PlannedCommand, ...]

    @property
    def topics(self) -> tuple[Topic, ...]:
        return (self.topic, *self.others)

    @property
    def unpromised(self) -> frozenset[TopicId]:
        """Of these nothing is promised: some lie, or forget, and their group bears crashes only."""
        forgetful = any(absence.amnesia for absence in self.absences)
        are_liars = bool(self.hostile) or forgetful or any(s.amnesiacs for s in self.storms)
        protection = self.topic.contract.protection
        others = [each for each in self.others if each.contract.protection != protection]
        return frozenset(each.id for each in others if are_liars)

    @property
    def validating(self) -> frozenset[NodeId]:
        return frozenset(each.reader for each in self.beginnings if each.validate)

    @property
    def everybody(self) -> tuple[NodeId, ...]:
        return (*self.topic.members, *(part.node for part in self.publishers), *self.readers)

    @property
    def steady(self) -> frozenset[NodeId]:
        """Those that never start over, however little others remember.

        Real replicas give up a slot only when retention has taken what it put in order; so whoever
        took part in it starts over only behind what is gone. Simulated ones retain everything and
        give up slots nevertheless. If any of them could start over, more than n - f - 1 might lack
        what is retained, which real ones cannot (decision 11).
        """
        unsteady = {*self.hostile, *(absence.replica for absence in self.absences)}
        return frozenset(self.topic.members) - unsteady


def draw_order(setting: Setting, seed: int) -> OrderScenario:
    """The scenario of this seed: always the same one."""
    return _Drawing(setting, seed).scenario()


class _Drawing:
    """Draws in a fixed order."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._seed = seed
        self._random = Random(f"{seed}:order scenario")
        # Drawn apart, so that all other seeds are as they would be without.
        self._memory = Random(f"{seed}:memory")
        share = 1 if setting.adversary in (FALSE_STATE, HOLLOW) else SHORT_MEMORIES
        self._is_short = setting.protocol != "broken-ordering" and self._memory.random() < share
        self._snapshot_every, self._slots_kept = self._memory.choice(_MEMORIES)
        self._is_validated = setting.protocol == VALIDATED
        self._seals = Random(f"{seed}:seals")
        # This attack came later: all other draws are as they would be without.
        self._receipts = Random(f"{seed}:receipts")
        self._byzantine = setting.protocol == "ordering" or self._is_validated
        self._is_broken = setting.protocol == "broken-ordering"
        self._is_restless = self._random.random() < 0.5 or self._is_broken
        self._is_stream = self._random.random() < 0.75
        self._calm_us = BEGIN_US + self._random.randint(*STORM_US)
        self._topic = self._draw_topic()
        self._hostile = self._draw_hostile()
        self._forgetful = self._draw_forgetful()
        self._dying = self._draw_dying()
        self._laggards = self._draw_laggards()
        bears = self._byzantine
        publishing = self._with_accomplice(setting)
        attacks = tuple(LOG_PUBLISHERS)
        if setting.adversary in VALIDATED_PUBLISHERS:
            attacks += tuple(VALIDATED_PUBLISHERS)
        parts = draw_parts(self._random, publishing, attacks, bears, self._calm_us)
        # What came later is drawn apart.
        self._mix = Random(f"{seed}:mix")
        self._publishers = (*parts, *self._draw_forgers(FIRST_CLIENT + len(parts)))
        readers = FIRST_CLIENT + len(self._publishers)
        self._first_readers = self._random.randint(1, 2)
        count = self._first_readers + self._mix.choice((0, 1, 2))
        self._readers = tuple(range(readers, readers + count))
        self._others = tuple(self._draw_others())
        # When the next session of a publisher begins.
        self._successors = dict(self._draw_successors())
        # Who publishes where another group orders: what is stuck there holds up nothing here.
        self._elsewhere = SourcePart(readers + count, Conduct.CORRECT)
        # How much each signs.
        self._signs = {part.node: self._mix.choice(_SIGNED) for part in self._publishers}

    def scenario(self) -> OrderScenario:
        return OrderScenario(
            setting=self._setting,
            seed=self._seed,
            topic=self._topic,
            network=self._draw_network(),
            hostile=self._hostile,
            dying=self._dying,
            others=self._others,
            publishers=self._everybody_who_publishes,
            readers=self._readers,
            beginnings=tuple(self._draw_beginnings()),
            storms=tuple(self._draw_storms()),
            appends=tuple(self._draw_appends()),
            skews_us={node: self._random.randint(-2_000_000, 2_000_000) for node in self._members},
            jumps_us=dict(self._draw_jumps()),
            calm_us=self._calm_us,
            pace=self._draw_pace(),
            rooms=self._draw_rooms(),
            snapshot_every=self._draw_snapshot_every(),
            slots_kept=self._slots_kept if self._is_short else 1 << 62,
            absences=tuple(self._draw_absences()),
            blackouts_us=tuple(self._draw_blackouts()),
            **self._draw_control(),
        )

    def _draw_control(self) -> dict[str, Any]:
        # Drawn apart, so that all other seeds are as they would be without.
        random = Random(f"{self._seed}:commands")
        if self._is_broken or random.random() >= WITH_COMMANDS:
            return {"cluster": None, "commands": ()}
        publishers = tuple(part.node for part in self._everybody_who_publishes)
        clients = tuple(dict.fromkeys(map(member_of, (*publishers, *self._readers))))
        keys = {node: public_key(node) for node in clients if self._is_validated}
        topics = (self._topic, *self._others)
        return {
            "cluster": simulated_cluster(topics, clients, keys),
            "commands": tuple(
                draw_commands(random, topics, publishers, self._readers, self._calm_us)
            ),
        }

    @property
    def _everybody_who_publishes(self) -> tuple[SourcePart, ...]:
        has_other_group = any(self._is_of_another_group(each) for each in self._others)
        successors = (part for part, _ in self._successors.values())
        return (*self._publishers, *successors, *([self._elsewhere] if has_other_group else ()))

    def _is_of_another_group(self, topic: Topic) -> bool:
        return topic.contract.protection != self._topic.contract.protection

    def _draw_others(self) -> Iterator[Topic]:
        if self._is_broken or self._mix.random() >= WITH_OTHERS:
            return
        kinds = ["more"] if not self._byzantine or self._is_short else ["more", "crash"]
        for name in self._mix.sample(kinds, self._mix.randint(1, len(kinds))):
            table: dict[str, object] = {"order": "total", "partitions": self._mix.choice((1, 2))}
            table["protection"] = self._topic.contract.protection if name == "more" else "crash"
            if self._is_validated and name == "more":
                table["validated"] = self._mix.random() < 0.5
            contract = Contract.parse(name, table)
            f, members = self._setting.f, tuple(range(contract.replicas(self._setting.f)))
            yield Topic(name, contract, members, f, self._topic.windows)

    def _draw_successors(self) -> Iterator[tuple[NodeId, tuple[SourcePart, int]]]:
        for part in self._publishers:
            if self._is_broken or self._mix.random() >= WITH_SUCCESSORS:
                continue
            from_us = part.crash_at_us or self._mix.randint(BEGIN_US, self._calm_us)
            conduct = Conduct.BYZANTINE if part.conduct is Conduct.BYZANTINE else Conduct.CORRECT
            node = node_of(part.node, 1)
            yield part.node, (SourcePart(node, conduct, part.adversary), from_us)

    def _draw_beginnings(self) -> Iterator[Beginning]:
        for at, reader in enumerate(self._readers):
            validate = self._is_validated and self._mix.random() < VALIDATING
            at_us, share = 0, 0.0
            if at >= self._first_readers:
                at_us, share = self._mix.choice((0, draw_moment(self._mix, self._calm_us))), 0.8
            for topic in (self._topic, *self._others):
                for number in range(topic.contract.partitions):
                    offset = 0
                    if self._mix.random() < share:
                        offset = self._mix.randrange(self._mix.choice((20, 60, 200)))
                    yield Beginning(reader, at_us, topic.name, number, offset, validate)

    def _draw_absences(self) -> Iterator[Absence]:
        """One after the other, so that the log goes on meanwhile."""
        away = (*self._laggards, *self._forgetful)
        share_us = (self._calm_us - BEGIN_US) // max(1, len(away))
        for at, replica in enumerate(away):
            begin_us = BEGIN_US + at * share_us
            from_us = begin_us + self._memory.randrange(share_us // 4)
            until_us = begin_us + self._memory.randrange(share_us // 2, share_us)
            yield Absence(replica, from_us, until_us, replica in self._forgetful)

    def _draw_snapshot_every(self) -> int:
        drawn = self._random.choice((4, 16, 4096))
        return self._snapshot_every if self._is_short else drawn

    def _draw_laggards(self) -> tuple[NodeId, ...]:
        """With a short memory: who may be away so long that it starts over."""
        if not self._is_short:
            return ()
        bad = {*self._hostile, *self._forgetful}
        innocent = [replica for replica in self._members if replica not in bad]
        most = len(self._members) - self._setting.f - 1 - len(bad)
        return tuple(self._memory.sample(innocent, most))

    def _draw_blackouts(self) -> Iterator[int]:
        if self._random.random() < 0.3 or self._is_broken:
            for _ in range(self._random.randint(1, 8)):
                yield self._moment()

    def _draw_pace(self) -> Pace:
        if not self._is_restless:
            return PACE
        patience_us = self._random.choice((20_000, 50_000, 100_000))
        # What hostile producers leave hanging is spoken of again and again.
        return Pace.restless(max(50_000, patience_us) if self._is_validated else patience_us)

    def _draw_rooms(self) -> Rooms:
        # Drawn apart, so that everything else is as it would be without.
        random = Random(f"{self._seed}:rooms")
        return Rooms.of(ROOM_BYTES) if random.random() < NARROW else ROOMS

    @property
    def _members(self) -> tuple[NodeId, ...]:
        return self._topic.members

    def _draw_topic(self) -> Topic:
        f = self._setting.f
        table = dict(_CONTRACTS[self._setting.protocol])
        table["partitions"] = self._random.choice((1, 1, 2, 3))
        if self._is_validated:
            table["event_proofs"] = self._seals.random() < WITH_EVENT_PROOFS
        contract = Contract.parse("events", table)
        windows = Windows.of(self._random.choice((64, 256, 4096)))
        return Topic("events", contract, tuple(range(contract.replicas(f))), f, windows)

    def _draw_hostile(self) -> dict[NodeId, str]:
        pinned, f = self._setting.adversary, self._setting.f
        if not self._byzantine or pinned in _NOT_REPLICAS:
            return {}
        # A false state is told only where somebody needs one. One that lies in its replies only
        # does nothing to the order, and whoever lies in everything does that too. That all is gone
        # is believed, if at all, where somebody started over. The others came later: all seeds are
        # as they would be without.
        special = (FALSE_STATE, LIE_REPLY, HOLLOW, BOAST, TWO_FACED)
        usual = tuple(name for name in LOG_REPLICA_NAMES if name not in special)
        allowed = usual if pinned is None else (pinned,)
        count = f if pinned is not None else self._random.choice((0, 1, f, f))
        replicas = self._random.sample(self._members, count)
        hostile = {replica: self._random.choice(allowed) for replica in replicas}
        if self._is_short and pinned is None and self._memory.random() < 0.5:
            hostile = dict.fromkeys(hostile, FALSE_STATE)
        if self._is_validated and pinned is None:
            return {replica: self._attacking_seals(usual) for replica, usual in hostile.items()}
        return hostile

    def _attacking_seals(self, usual: str) -> str:
        if self._seals.random() >= ATTACKING_SEALS:
            return usual
        chosen = self._seals.choice(ABOUT_SEALS)
        return FALSE_RECEIPTS if self._receipts.random() < ATTACKING_RECEIPTS else chosen

    def _draw_forgers(self, first: NodeId) -> Iterator[SourcePart]:
        """Producers that sign wrongly, beside all others."""
        pinned = self._setting.adversary
        if not self._is_validated or pinned in _NOT_REPLICAS:
            return
        # Replicas that look at nothing do no harm but together with such a one.
        count = self._seals.choice((0, 1, 1, 2)) if pinned is None else 1
        for node in range(first, first + count):
            attack = self._seals.choice(tuple(VALIDATED_PUBLISHERS))
            yield SourcePart(node, Conduct.BYZANTINE, attack)

    def _with_accomplice(self, setting: Setting) -> Setting:
        """Whoever boasts does no harm but together with a publisher that lies."""
        if setting.adversary != BOAST:
            return setting
        return replace(setting, adversary=self._random.choice(tuple(LOG_PUBLISHERS)))

    def _draw_forgetful(self) -> tuple[NodeId, ...]:
        """Those that may lose their disk: as bad as hostile, where lying is to be expected."""
        if not self._byzantine:
            return ()
        innocent = [replica for replica in self._members if replica not in self._hostile]
        most = self._setting.f - len(self._hostile)
        return tuple(self._random.sample(innocent, self._random.randint(0, most)))

    def _draw_dying(self) -> dict[NodeId, int]:
        """Some crash for good; with the hostile and the forgetful ones at most f."""
        if self._is_short:
            return {}
        bad = {*self._hostile, *self._forgetful}
        innocent = [replica for replica in self._members if replica not in bad]
        count = self._random.randint(0, self._setting.f - len(bad))
        return {replica: self._moment() for replica in self._random.sample(innocent, count)}

    def _draw_storms(self) -> Iterator[Storm]:
        bad = {*self._hostile, *self._forgetful, *self._dying}
        others = [replica for replica in self._members if replica not in self._dying]
        spare = self._setting.f - len(bad)
        power_cuts = self._random.random() < 0.25
        between_us, length_us = self._random.choice(_WEATHER)
        if self._is_short:
            others = [each for each in others if each in (*self._laggards, *self._forgetful)]
            power_cuts = False
        if self._is_broken:
            # What is wrong with it shows when a replica forgets what it decided, which takes a
            # crash between a decision and the sync that takes it along.
            power_cuts, (between_us, length_us) = True, _WEATHER[-1]
        crashable = [replica for replica in others if replica not in self._hostile]
        yield Storm(
            purpose="faults of replicas",
            group=others,
            faulty_max=len(others) if power_cuts else min(len(others), max(spare, 1)),
            calm_after_us=self._calm_us,
            # Whoever is away for long is not to be brought back before its time.
            kinds=_NO_CRASHES if self._is_short else tuple(FaultKind),
            crashable=crashable,
            amnesiacs=self._forgetful,
            between_mean_us=between_us,
            length_mean_us=length_us,
            loss=draw_loss(self._random),
        )
        clients = (*(part.node for part in self._publishers), *self._readers)
        yield Storm(
            purpose="faults of clients",
            group=clients,
            faulty_max=len(clients),
            calm_after_us=self._calm_us,
            kinds=(FaultKind.PAUSE, FaultKind.PARTITION),
            between_mean_us=1_000_000,
        )

    def _draw_jumps(self) -> Iterator[tuple[NodeId, tuple[int, int]]]:
        if self._random.random() < 0.2:
            hours = self._random.choice((-3, -1, 1, 3))
            yield self._random.choice(self._members), (self._moment(), hours * 3_600_000_000)

    def _draw_appends(self) -> Iterator[PlannedAppend]:
        """In bursts: what is published at one instant travels as one run."""
        count = self._random.randint(20, 120) * (2 if self._is_restless else 1)
        count += 200 if self._is_short else 0
        if self._is_validated:
            count //= 2
        bursts = (1,) if self._is_restless or self._is_short else (1, 1, 4, 12)
        while count > 0:
            burst = min(count, self._random.choice(bursts))
            count -= burst
            publisher, at_us = self._random.choice(self._publishers), self._moment()
            partition = self._random.randrange(self._topic.contract.partitions)
            topic = self._topic
            if self._others and self._mix.random() < ELSEWHERE:
                topic = self._mix.choice(self._others)
                partition = self._mix.randrange(topic.contract.partitions)
            share = self._signs[publisher.node] if topic.contract.validated else 0.0
            if self._is_of_another_group(topic):
                publisher = self._elsewhere
            successor, from_us = self._successors.get(publisher.node, (publisher, at_us + 1))
            if at_us >= from_us:
                publisher = successor
            for _ in range(burst):
                twin = self._draw_payload(at_us) if publisher.adversary == TWIN_SOURCE else None
                yield PlannedAppend(
                    at_us, publisher.node, self._draw_payload(at_us), twin,
                    topic.name, partition, self._mix.random() < share,
                )  # fmt: skip

    def _draw_network(self) -> Network:
        network = draw_network(self._random, self._is_stream)
        # Drawn apart, as above.
        apart = Random(f"{self._seed}:altered payloads")
        rate = apart.choice((0.02, 0.1)) if apart.random() < 0.25 else 0.0
        return replace(network, alteration=rate)

    def _draw_payload(self, at_us: int) -> bytes:
        size = self._random.choice((0, 1, 20, 253, 253, 1_000, 5_000, 9_000))
        if self._is_short:
            # What only f + 1 replicas store is lost when all of them start over. Real ones do so
            # only when nothing is retained any more that they would lose.
            size = min(size, 1_000)
        count = self._mix.choice(_EVENTS)
        values = [self._random.randbytes(size // count) for _ in range(count)]
        return batch.encode_values(values, at_us)

    def _moment(self) -> int:
        return draw_moment(self._random, self._calm_us)
