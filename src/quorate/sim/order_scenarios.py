"""What one seed has in store for a log topic.

As in `scenarios.py`, a seed draws everything, within what the protocol is built to bear. What
differs is that replicas have disks:

- At most f replicas are hostile, or come back with an empty disk, over the whole run.
- Any other replica may crash, at any time, and comes back with what it had synced. In most seeds
  at most f are away at a time (with the hostile ones), so that the log goes on; in some all of
  them may be, or the power fails everywhere at one moment, and only what was acknowledged must be
  there afterwards.
- Clocks of replicas differ, and jump in some seeds.
- Half of the seeds are restless: replicas lose their patience within milliseconds, so that leaders
  change in the middle of everything.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from quorate.core import batch
from quorate.core.contract import Contract
from quorate.core.ids import NodeId
from quorate.core.limits import Windows
from quorate.protocol.ordering.pace import PACE, Pace
from quorate.protocol.topic import Topic
from quorate.sim.adversaries import LOG_PUBLISHERS, LOG_REPLICA_NAMES, TWIN_SOURCE
from quorate.sim.checkers import Conduct
from quorate.sim.faults import FaultKind
from quorate.sim.links import Network
from quorate.sim.scenarios import (
    BEGIN_US,
    FIRST_CLIENT,
    Setting,
    SourcePart,
    Storm,
    draw_loss,
    draw_network,
)

STORM_US = (1_000_000, 4_000_000)
# How long it is on average from one fault to the next, and how long a fault lasts.
_WEATHER = ((300_000, 400_000), (100_000, 200_000), (30_000, 40_000))
_CONTRACTS: dict[str, dict[str, object]] = {
    "ordering": {"protection": "byzantine", "order": "total"},
    "crash-ordering": {"protection": "crash", "order": "total"},
    "broken-ordering": {"protection": "crash", "order": "total"},
}


@dataclass(frozen=True, slots=True)
class PlannedAppend:
    """What a publisher is told to publish."""

    at_us: int
    publisher: NodeId
    partition: int
    payload: bytes
    twin_payload: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderScenario:
    """Everything that was drawn."""

    setting: Setting
    seed: int
    topic: Topic
    network: Network
    hostile: Mapping[NodeId, str]
    dying: Mapping[NodeId, int]
    publishers: tuple[SourcePart, ...]
    readers: tuple[NodeId, ...]
    storms: tuple[Storm, ...]
    appends: tuple[PlannedAppend, ...]
    # By how much each replica's clock is wrong, and by how much it jumps at which time.
    skews_us: Mapping[NodeId, int]
    jumps_us: Mapping[NodeId, tuple[int, int]]
    calm_us: int
    pace: Pace
    snapshot_every: int
    # When the power fails everywhere at once, for a moment.
    blackouts_us: tuple[int, ...]

    @property
    def everybody(self) -> tuple[NodeId, ...]:
        return (*self.topic.members, *(part.node for part in self.publishers), *self.readers)


def draw_order(setting: Setting, seed: int) -> OrderScenario:
    """The scenario of this seed: always the same one."""
    return _Drawing(setting, seed).scenario()


class _Drawing:
    """Draws in a fixed order."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._seed = seed
        self._random = Random(f"{seed}:order scenario")
        self._byzantine = setting.protocol == "ordering"
        self._is_broken = setting.protocol == "broken-ordering"
        self._is_restless = self._random.random() < 0.5 or self._is_broken
        self._is_stream = self._random.random() < 0.75
        self._calm_us = BEGIN_US + self._random.randint(*STORM_US)
        self._topic = self._draw_topic()
        self._hostile = self._draw_hostile()
        self._forgetful = self._draw_forgetful()
        self._dying = self._draw_dying()
        self._publishers = self._draw_publishers()
        readers = FIRST_CLIENT + len(self._publishers)
        self._readers = tuple(range(readers, readers + self._random.randint(1, 2)))

    def scenario(self) -> OrderScenario:
        return OrderScenario(
            setting=self._setting,
            seed=self._seed,
            topic=self._topic,
            network=draw_network(self._random, self._is_stream),
            hostile=self._hostile,
            dying=self._dying,
            publishers=self._publishers,
            readers=self._readers,
            storms=tuple(self._draw_storms()),
            appends=tuple(self._draw_appends()),
            skews_us={node: self._random.randint(-2_000_000, 2_000_000) for node in self._members},
            jumps_us=dict(self._draw_jumps()),
            calm_us=self._calm_us,
            pace=self._draw_pace(),
            snapshot_every=self._random.choice((4, 16, 4096)),
            blackouts_us=tuple(self._draw_blackouts()),
        )

    def _draw_blackouts(self) -> Iterator[int]:
        if self._random.random() < 0.3 or self._is_broken:
            for _ in range(self._random.randint(1, 8)):
                yield self._moment()

    def _draw_pace(self) -> Pace:
        if not self._is_restless:
            return PACE
        return Pace.restless(self._random.choice((20_000, 50_000, 100_000)))

    @property
    def _members(self) -> tuple[NodeId, ...]:
        return self._topic.members

    def _draw_topic(self) -> Topic:
        f = self._setting.f
        table = dict(_CONTRACTS[self._setting.protocol])
        table["partitions"] = self._random.choice((1, 1, 2, 3))
        contract = Contract.parse("events", table)
        windows = Windows.of(self._random.choice((64, 256, 4096)))
        return Topic("events", contract, tuple(range(contract.replicas(f))), f, windows)

    def _draw_hostile(self) -> dict[NodeId, str]:
        pinned, f = self._setting.adversary, self._setting.f
        if not self._byzantine or pinned in LOG_PUBLISHERS or pinned == "none":
            return {}
        allowed = LOG_REPLICA_NAMES if pinned is None else (pinned,)
        count = f if pinned is not None else self._random.choice((0, 1, f, f))
        replicas = self._random.sample(self._members, count)
        return {replica: self._random.choice(allowed) for replica in replicas}

    def _draw_forgetful(self) -> tuple[NodeId, ...]:
        """Those that may lose their disk: as bad as hostile, where lying is to be expected."""
        if not self._byzantine:
            return ()
        innocent = [replica for replica in self._members if replica not in self._hostile]
        most = self._setting.f - len(self._hostile)
        return tuple(self._random.sample(innocent, self._random.randint(0, most)))

    def _draw_dying(self) -> dict[NodeId, int]:
        """Some crash for good; with the hostile and the forgetful ones at most f."""
        bad = {*self._hostile, *self._forgetful}
        innocent = [replica for replica in self._members if replica not in bad]
        count = self._random.randint(0, self._setting.f - len(bad))
        return {replica: self._moment() for replica in self._random.sample(innocent, count)}

    def _draw_publishers(self) -> tuple[SourcePart, ...]:
        pinned = self._setting.adversary
        byzantine = self._byzantine and pinned is None and self._random.random() < 0.4
        special = [Conduct.BYZANTINE] * (byzantine or pinned in LOG_PUBLISHERS)
        special += [Conduct.CRASHED] * (self._random.random() < 0.15)
        conducts = (*special, *[Conduct.CORRECT] * self._random.randint(1, 3 - len(special)))
        return tuple(
            self._draw_publisher(FIRST_CLIENT + at, conduct) for at, conduct in enumerate(conducts)
        )

    def _draw_publisher(self, node: NodeId, conduct: Conduct) -> SourcePart:
        if conduct is Conduct.CRASHED:
            return SourcePart(node, conduct, crash_at_us=self._moment())
        if conduct is Conduct.CORRECT:
            return SourcePart(node, conduct)
        pinned = self._setting.adversary
        return SourcePart(node, conduct, pinned or self._random.choice(tuple(LOG_PUBLISHERS)))

    def _draw_storms(self) -> Iterator[Storm]:
        bad = {*self._hostile, *self._forgetful, *self._dying}
        others = [replica for replica in self._members if replica not in self._dying]
        spare = self._setting.f - len(bad)
        power_cuts = self._random.random() < 0.25
        between_us, length_us = self._random.choice(_WEATHER)
        if self._is_broken:
            # What is wrong with it shows when a replica forgets what it decided, which takes a
            # crash between a decision and the sync that takes it along.
            power_cuts, (between_us, length_us) = True, _WEATHER[-1]
        crashable = [replica for replica in others if replica not in self._hostile]
        yield Storm(
            purpose="faults of replicas",
            group=others,
            faulty_max=len(others) if power_cuts else max(spare, 1),
            calm_after_us=self._calm_us,
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
        bursts = (1,) if self._is_restless else (1, 1, 4, 12)
        while count > 0:
            burst = min(count, self._random.choice(bursts))
            count -= burst
            publisher, at_us = self._random.choice(self._publishers), self._moment()
            partition = self._random.randrange(self._topic.contract.partitions)
            for _ in range(burst):
                twin = self._draw_payload(at_us) if publisher.adversary == TWIN_SOURCE else None
                payload = self._draw_payload(at_us)
                yield PlannedAppend(at_us, publisher.node, partition, payload, twin)

    def _draw_payload(self, at_us: int) -> bytes:
        size = self._random.choice((0, 1, 20, 253, 253, 1_000, 5_000, 9_000))
        return batch.encode_one(None, self._random.randbytes(size), (), at_us, False)

    def _moment(self) -> int:
        return self._random.randint(BEGIN_US, self._calm_us)
