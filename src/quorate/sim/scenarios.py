"""What one seed has in store for a protocol.

A seed draws everything: how many sources and destinations, what is published and when, the
network, what breaks, and who attacks. Everything stays within what the protocol is built to
bear:

- At most f replicas are hostile or lose their memory, over the whole run: on a live topic a
  replica keeps nothing on disk, so one that restarts is as good as one that forgets on purpose.
- Where only crashes are borne (first-answer), crashes *wander* in every other seed: f replicas are
  down at a time, any of them, and the others have time to hand on what they hold before the next
  one goes. In such a seed nothing else keeps a subscriber from getting it: none of them is out of
  reach, no link is cut, and nobody is slow.
- Pauses, partitions and lost messages can strike everybody: they end, and nobody forgets.
- In some seeds the windows are so narrow that streams reach their edges. Whoever falls behind
  further than that has missed something: in such a seed the same f replicas are struck by
  whatever strikes, and clients are never out of reach, though they may sleep.

A run begins in peace, so that subscriptions hold everywhere before the first batch, goes
through a storm, and ends in calm. `stage.py` performs it.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from quorate.core import batch
from quorate.core.contract import Contract
from quorate.core.errors import ConfigError
from quorate.core.ids import NodeId
from quorate.core.limits import WINDOWS, Windows
from quorate.protocol.topic import Topic
from quorate.sim.adversaries import (
    HARMLESS,
    PINNED,
    REPLICAS,
    SOURCES,
    TWIN_SOURCE,
)
from quorate.sim.checkers import Conduct, Promises
from quorate.sim.faults import Fault, FaultKind, FaultPlan
from quorate.sim.links import (
    BurstLoss,
    Exponential,
    IndependentLoss,
    Latency,
    LogNormal,
    Loss,
    Mode,
    Network,
    Uniform,
)
from quorate.sim.order_adversaries import LOG_PUBLISHERS, LOG_REPLICA_NAMES
from quorate.sim.validated_adversaries import VALIDATED_PUBLISHERS, VALIDATED_REPLICAS

BEGIN_US = 400_000
STORM_US = (1_000_000, 3_000_000)
# Where crashes wander, the others get so long to catch up after each fault.
BREATH_US = 1_500_000
FIRST_CLIENT = 1000
# One seed in so many has narrow windows.
NARROW_EVERY = 4
NARROW_SPANS = (32, 64)

_CONTRACTS: dict[str, dict[str, object]] = {
    "first-answer": {"protection": "crash"},
    "vote": {"protection": "byzantine", "broadcast": "vote"},
    "authenticated": {"protection": "byzantine", "broadcast": "authenticated"},
    "reliable": {"protection": "byzantine", "broadcast": "reliable"},
    "chain": {"protection": "byzantine", "broadcast": "chain"},
    "broken": {"protection": "byzantine", "broadcast": "authenticated", "history_every": 0},
}
_BEARS_BYZANTINE_SOURCES = ("authenticated", "reliable", "chain")
_MAY_HAVE_HISTORIES = ("authenticated", "chain")
_LIES_FOR_THE_BROKEN = ("lie-content", "equivocate")

LIVE_PROTOCOLS = tuple(_CONTRACTS)
VALIDATED = "validated"
LOG_PROTOCOLS = ("ordering", "crash-ordering", VALIDATED, "broken-ordering")
PROTOCOLS = LIVE_PROTOCOLS + LOG_PROTOCOLS
FAULTS_BORNE = (1, 2)


@dataclass(frozen=True, slots=True)
class Setting:
    """What all seeds of a campaign share. Without an adversary, each seed draws its own."""

    protocol: str
    f: int = 1
    adversary: str | None = None

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ConfigError(
                f"there is no protocol {self.protocol!r}; choose one of {', '.join(PROTOCOLS)}"
            )
        if self.f not in FAULTS_BORNE:
            raise ConfigError(f"f is {self.f}, but the simulated clusters have f = 1 or f = 2")
        allowed = adversaries_of(self.protocol)
        if self.adversary is not None and self.adversary not in allowed:
            raise ConfigError(
                f"{self.protocol} does not meet the adversary {self.adversary!r}; "
                f"choose one of {', '.join(allowed)}"
            )


def adversaries_of(protocol: str) -> tuple[str, ...]:
    """Who a protocol is built to bear; under `none` there are only accidents."""
    if protocol == "first-answer":
        return ("none", *HARMLESS)
    if protocol in LOG_PROTOCOLS:
        hostile = (*LOG_REPLICA_NAMES, *LOG_PUBLISHERS)
        if protocol == VALIDATED:
            return ("none", *hostile, *VALIDATED_REPLICAS, *VALIDATED_PUBLISHERS)
        return ("none", *(hostile if protocol == "ordering" else ()))
    if protocol == "broken":
        return _LIES_FOR_THE_BROKEN
    sources = tuple(SOURCES) if protocol in _BEARS_BYZANTINE_SOURCES else ()
    return ("none", *REPLICAS, *PINNED, *sources)


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One source, and how it behaves."""

    node: NodeId
    conduct: Conduct
    adversary: str | None = None
    crash_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """What a source is told to publish. A source with a twin has something else to say there."""

    at_us: int
    source: NodeId
    payload: bytes
    twin_payload: bytes | None


@dataclass(frozen=True, slots=True)
class PlannedBatch(Planned):
    urgent: bool


@dataclass(frozen=True, slots=True)
class PlannedCut:
    sender: NodeId
    target: NodeId
    from_us: int
    until_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm(FaultPlan):
    """A plan that begins after the peace.

    With a `breath_us`, the next fault waits until the last one has been over for so long.
    """

    breath_us: int = 0

    def schedule(self, random: Random) -> Iterator[Fault]:
        free_us = 0
        for fault in FaultPlan.schedule(self, random):
            if fault.from_us >= BEGIN_US and fault.from_us >= free_us:
                yield fault
                if self.breath_us:
                    free_us = fault.until_us + self.breath_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(ABC):
    """What is drawn for every protocol."""

    setting: Setting
    seed: int
    topic: Topic
    network: Network
    hostile: Mapping[NodeId, str]
    # Replicas that crash for good, and when.
    dying: Mapping[NodeId, int]
    storms: tuple[Storm, ...]
    calm_us: int

    @property
    @abstractmethod
    def everybody(self) -> tuple[NodeId, ...]:
        """Replicas first, then who publishes, then who reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Drawn):
    """Everything that was drawn for a live topic."""

    # Whether crashes strike one replica and then another.
    crashes_wander: bool
    sources: tuple[SourcePart, ...]
    destinations: tuple[NodeId, ...]
    cuts: tuple[PlannedCut, ...]
    batches: tuple[PlannedBatch, ...]

    @property
    def everybody(self) -> tuple[NodeId, ...]:
        sources = (part.node for part in self.sources)
        return (*self.topic.members, *sources, *self.destinations)

    @property
    def has_byzantine_source(self) -> bool:
        return any(part.conduct is Conduct.BYZANTINE for part in self.sources)

    @property
    def promises(self) -> Promises:
        """What the protocol owes in this run (see the module of each)."""
        protocol, contract = self.setting.protocol, self.topic.contract
        return Promises(
            agreement_for_byzantine_sources=protocol in _BEARS_BYZANTINE_SOURCES,
            totality_for_all=protocol == "reliable",
            receipts_survive_their_source=protocol == "reliable",
            # A hostile replica or a broken link stops a chain, and only histories repair it.
            liveness=protocol != "chain" or contract.history_every > 0,
            fifo=contract.order == "fifo",
        )


def draw_network(random: Random, is_stream: bool) -> Network:
    latency: Latency = random.choice(
        (
            Uniform(200, 1_000),
            Uniform(1_000, 20_000),
            LogNormal(800, 0.8),
            Exponential(300, 3_000),
        )
    )
    if is_stream:
        return Network(latency=latency, mode=Mode.STREAM)
    doubling = random.choice((0.0, 0.05))
    return Network(latency=latency, mode=Mode.DATAGRAM, duplication=doubling)


def draw_loss(random: Random) -> Loss:
    rate = random.choice((0.02, 0.1, 0.25))
    losses: tuple[Loss, ...] = (IndependentLoss(rate), BurstLoss(rate, 4.0))
    return random.choice(losses)


def draw_moment(random: Random, calm_us: int) -> int:
    """Some time in the storm."""
    return random.randint(BEGIN_US, calm_us)


def draw_parts(
    random: Random, setting: Setting, attacks: Collection[str], bears: bool, calm_us: int
) -> tuple[SourcePart, ...]:
    """One to three sources, of which one is Byzantine, if that is borne, or crashes in some seeds.

    A Byzantine one does what the setting pins, or one of these attacks.
    """
    pinned = setting.adversary
    byzantine = bears and pinned is None and random.random() < 0.4
    special = [Conduct.BYZANTINE] * (byzantine or pinned in attacks)
    special += [Conduct.CRASHED] * (random.random() < 0.15)
    conducts = (*special, *[Conduct.CORRECT] * random.randint(1, 3 - len(special)))
    parts = []
    for node, conduct in enumerate(conducts, FIRST_CLIENT):
        adversary = crash_at_us = None
        if conduct is Conduct.CRASHED:
            crash_at_us = draw_moment(random, calm_us)
        elif conduct is Conduct.BYZANTINE:
            adversary = pinned or random.choice(tuple(attacks))
        parts.append(SourcePart(node, conduct, adversary, crash_at_us))
    return tuple(parts)


def draw(setting: Setting, seed: int) -> Scenario:
    """The scenario of this seed: always the same one."""
    return _Drawing(setting, seed).scenario()


class _Drawing:
    """Draws in a fixed order."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._seed = seed
        self._random = Random(f"{seed}:scenario")
        self._is_narrow = Random(f"{seed}:windows").random() < 1 / NARROW_EVERY
        may_wander = self._crashes_only and not self._is_narrow and not setting.adversary
        self._crashes_wander = may_wander and Random(f"{seed}:crashes").random() < 0.5
        self._is_stream = self._random.random() < 0.75 or self._is_narrow
        # Breaths between faults take time.
        times = 2 if self._crashes_only else 1
        self._calm_us = BEGIN_US + self._random.randint(*STORM_US) * times
        self._topic = self._draw_topic()
        self._hostile = self._draw_hostile()
        self._forgetful = self._draw_forgetful()
        self._dying = self._draw_dying()
        bears = setting.protocol in _BEARS_BYZANTINE_SOURCES
        self._sources = draw_parts(self._random, setting, SOURCES, bears, self._calm_us)
        first = FIRST_CLIENT + len(self._sources)
        self._destinations = tuple(range(first, first + self._random.randint(1, 3)))

    def scenario(self) -> Scenario:
        return Scenario(
            setting=self._setting,
            seed=self._seed,
            topic=self._topic,
            network=draw_network(self._random, self._is_stream),
            hostile=self._hostile,
            dying=self._dying,
            crashes_wander=self._crashes_wander,
            sources=self._sources,
            destinations=self._destinations,
            storms=tuple(self._draw_storms()),
            cuts=tuple(self._draw_cuts()),
            batches=tuple(self._draw_batches()),
            calm_us=self._calm_us,
        )

    @property
    def _crashes_only(self) -> bool:
        return self._setting.protocol == "first-answer"

    @property
    def _struck(self) -> tuple[NodeId, ...]:
        """Replicas that may be out of reach for a while."""
        return (*self._hostile, *self._forgetful) if self._is_narrow else self._topic.members

    def _draw_topic(self) -> Topic:
        protocol, f = self._setting.protocol, self._setting.f
        table = dict(_CONTRACTS[protocol])
        if protocol in _MAY_HAVE_HISTORIES:
            table["history_every"] = self._random.choice((0, 0, 4, 8, 16, 64))
        if self._random.random() < 0.3:
            table["order"] = "fifo"
        windows = WINDOWS
        if self._is_narrow:
            windows = Windows.of(self._random.choice(NARROW_SPANS))
            table["queue_events_max"] = self._random.choice((8, 64, 1024))
            if "history_every" in table:
                table["history_every"] = self._random.choice((0, 4, 8, windows.span // 4))
        contract = Contract.parse("events", table)
        return Topic("events", contract, tuple(range(contract.replicas(f))), f, windows)

    def _draw_hostile(self) -> dict[NodeId, str]:
        """Hostile replicas and what they do."""
        pinned, f = self._setting.adversary, self._setting.f
        allowed = [name for name in adversaries_of(self._setting.protocol) if name in REPLICAS]
        if pinned is not None:
            allowed = [name for name in (*allowed, *PINNED) if name == pinned]
        certain = pinned is not None or self._setting.protocol == "broken"
        count = f if certain else self._random.choice((0, 1, f, f))
        if self._crashes_wander:
            allowed = []
        replicas = self._random.sample(self._topic.members, count if allowed else 0)
        return {replica: self._random.choice(allowed) for replica in replicas}

    def _draw_forgetful(self) -> tuple[NodeId, ...]:
        """Replicas that may crash: with the hostile ones at most f, where those could lie."""
        members = self._topic.members
        if self._crashes_wander:
            return members
        if self._crashes_only and not self._is_narrow:
            return tuple(self._random.sample(members, self._setting.f))
        innocent = [replica for replica in members if replica not in self._hostile]
        return tuple(self._random.sample(innocent, self._setting.f - len(self._hostile)))

    def _draw_dying(self) -> dict[NodeId, int]:
        """Some of those that may crash do so for good."""
        most = self._setting.f - 1 if self._crashes_wander else len(self._forgetful)
        count = self._random.randint(0, most)
        dying = self._random.sample(self._forgetful, count)
        return {replica: self._moment() for replica in dying}

    def _draw_storms(self) -> Iterator[Storm]:
        living = [replica for replica in self._struck if replica not in self._dying]
        crashable = [replica for replica in self._forgetful if replica in living]
        dead = len(self._dying) if self._crashes_wander else 0
        # Loss strikes everybody, and the last retransmission may take longer than a window lasts.
        ends = (FaultKind.CRASH, FaultKind.PAUSE, FaultKind.PARTITION)
        yield Storm(
            purpose="faults of replicas",
            group=living,
            faulty_max=min(self._setting.f - dead, len(living)),
            kinds=ends if self._is_narrow else tuple(FaultKind),
            calm_after_us=self._calm_us,
            # Without connections, nobody tells clients to register again after a restart.
            crashable=crashable if self._is_stream else (),
            breath_us=BREATH_US if self._crashes_wander else 0,
            loss=draw_loss(self._random),
        )
        sources = tuple(part.node for part in self._sources)
        struck = sources if self._crashes_wander else (*sources, *self._destinations)
        yield Storm(
            purpose="faults of clients",
            group=struck,
            faulty_max=len(struck),
            calm_after_us=self._calm_us,
            kinds=(FaultKind.PAUSE,) if self._is_narrow else (FaultKind.PAUSE, FaultKind.PARTITION),
            between_mean_us=300_000 if self._is_narrow else 1_000_000,
        )

    def _draw_cuts(self) -> Iterator[PlannedCut]:
        nodes = (*self._topic.members, *self._destinations)
        is_spared = self._crashes_wander or not self._struck
        for _ in range(0 if is_spared else self._random.randint(0, 3)):
            sender, target = self._random.choice(self._struck), self._random.choice(nodes)
            from_us, until_us = sorted((self._moment(), self._moment()))
            if sender != target:
                yield PlannedCut(sender, target, from_us, until_us)

    def _draw_batches(self) -> Iterator[PlannedBatch]:
        """In bursts: what is published at one instant travels as one run."""
        count = self._random.randint(20, 120) * (2 if self._is_narrow else 1)
        while count > 0:
            burst = min(count, self._random.choice((1, 1, 4, 12)))
            count -= burst
            source, at_us = self._random.choice(self._sources), self._moment()
            for _ in range(burst):
                yield self._draw_batch(source, at_us)

    def _draw_batch(self, source: SourcePart, at_us: int) -> PlannedBatch:
        urgent = self._random.random() < 0.1
        payload = self._draw_payload(at_us, urgent)
        twin = self._draw_payload(at_us, urgent) if source.adversary == TWIN_SOURCE else None
        return PlannedBatch(at_us, source.node, payload, twin, urgent)

    def _draw_payload(self, at_us: int, urgent: bool) -> bytes:
        size = self._random.choice((0, 1, 20, 253, 253, 1_000, 4_000))
        return batch.encode_one(None, self._random.randbytes(size), (), at_us, urgent)

    def _moment(self) -> int:
        return draw_moment(self._random, self._calm_us)
