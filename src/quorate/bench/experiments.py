"""Which experiments there are (B9, F14).

Live topics: protocols x {4, 7} replicas x {1, 4} topics x {single events, batches of 100} x faults.
Freeman's combinations with histories stand beside the plain protocols. Three things are left
out because they would measure nothing: altering where the contract covers crashes only, faults
of a chain without histories, which stops by design until one repairs it (Freeman 2016, section
5.8), and TLS with faults or more replicas, because what it costs does not depend on them.

Log topics: FIT-Broker's tables 5.3 to 5.7 for its ordered channels, and the crash-ordered cases
that its future work asks for: 1 to 10 publishers on each of 10 topics, f = 1 and 2, a replica that
crashes and recovers, one that lies, batches of 1, 100 and 1000; each in memory, as in the thesis,
and with every decision synced to disk. Three more have a command each: the leader is killed, a
consumer reads history, a log grows.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, TypeAlias, TypeVar

from quorate.bench.theses import PEERS, Case, Figure, Peer, figure_for
from quorate.core.contract import Contract

PROTOCOLS = ("first-answer", "vote", "authenticated", "reliable", "chain")
ORDERING, CRASH_ORDERING = "ordering", "crash-ordering"
LOG_PROTOCOLS = (ORDERING, CRASH_ORDERING)
REPLICAS = (4, 7)
TOPICS = (1, 4)
BATCHES = (1, 100)
DROPPING, ALTERING, CRASH = "dropping", "altering", "crash and recovery"
FAULTS = (DROPPING, ALTERING, CRASH)
EVENT_BYTES = 253

LEADER_KILLED = "leader killed"
IN_MEMORY, SYNCED = "never", "always"
CHANNELS = 10
PUBLISHERS = (1, 2, 5, 10)

THROUGHPUT, ONE_IN_FLIGHT = "throughput", "one in flight"
LEADER_CRASH, HISTORY, GROWTH = "leader crash", "history", "growth"

Security: TypeAlias = Literal["tls", "mac"]
_Planned = TypeVar("_Planned")

_HISTORIES = {"authenticated": (0, 10, 100), "chain": (0, 10, 100)}
_IN_FLIGHT = {1: 512, 100: 256, 1000: 64}
# A source keeps no more in flight than a quarter of its topic's queue. A longer queue would only
# be where events spend their time.
_QUEUE_PER_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One measurement, and everything that decides it."""

    name: str = THROUGHPUT
    protocol: str
    history_every: int = 0
    replicas: int = 4
    topics: int = 1
    events_per_batch: int = 1
    event_bytes: int = EVENT_BYTES
    fault: str | None = None
    link_security: Security = "mac"
    # Of log topics: when they are synced to disk, and how many publishers each topic has.
    fsync: str = ""
    publishers: int = 1
    # Whether producers sign every batch, and replicas and consumers check that.
    validated: bool = False

    @property
    def f(self) -> int:
        return (self.replicas - 1) // (2 if self.protocol == CRASH_ORDERING else 3)

    @property
    def in_flight(self) -> int:
        """How many batches may wait for their receipts.

        Never fewer than a publisher may send without a history: one that waits for its receipts
        before that would wait for ever when only a history can bring them.
        """
        if self.name == ONE_IN_FLIGHT:
            return 1
        return max(_IN_FLIGHT[self.events_per_batch], 2 * self.history_every)

    @property
    def title(self) -> str:
        history = f" with a history every {self.history_every}" if self.history_every else ""
        topics = "1 topic" if self.topics == 1 else f"{self.topics} topics"
        batches = "" if self.events_per_batch == 1 else f", batches of {self.events_per_batch}"
        one = f", {ONE_IN_FLIGHT}" if self.name == ONE_IN_FLIGHT else ""
        tls = ", TLS" if self.link_security == "tls" else ""
        fault = f", {self.fault}" if self.fault else ""
        if self.publishers > 1:
            topics += f" with {self.publishers} publishers each"
        if self.protocol in LOG_PROTOCOLS:
            topics += f", {disk_words(self.fsync)}"
        if self.validated:
            topics += ", validated"
        return f"{self.protocol}{history}, {self.replicas} replicas, {topics}" + (
            f"{batches}{one}{tls}{fault}"
        )

    @property
    def thesis(self) -> Figure | None:
        """What a thesis measured in such a case, if one did. All of them did so under load."""
        if self.name != THROUGHPUT:
            return None
        return figure_for(self._case, self.topics, self.publishers)

    @property
    def peer(self) -> Peer | None:
        """What another system reached in such a case, if we know of one."""
        return PEERS.get(self._case) if self.name == THROUGHPUT else None

    @property
    def _case(self) -> Case:
        return Case(self.protocol, self.history_every, self.f, self.events_per_batch, self.fault)

    def contracts(self) -> dict[str, Contract]:
        """The topics of this experiment, by name."""
        names = [f"topic-{number}" for number in range(self.topics)]
        if self.protocol in LOG_PROTOCOLS:
            protection = "crash" if self.protocol == CRASH_ORDERING else "byzantine"
            log = {"protection": protection, "order": "total", "validated": self.validated}
            return {name: Contract.parse(name, log) for name in names}
        queue_events = _QUEUE_PER_IN_FLIGHT * self.in_flight * self.events_per_batch
        table: dict[str, object] = {"queue_events_max": queue_events}
        if self.protocol == "first-answer":
            table["protection"] = "crash"
        else:
            table["broadcast"] = self.protocol
            table["history_every"] = self.history_every
        return {name: Contract.parse(name, table) for name in names}


def disk_words(fsync: str) -> str:
    """What happens before a receipt, in short."""
    return "fsync" if fsync == "always" else "in memory"


def quick_plan() -> list[Experiment]:
    """The figures of live topics that matter most, in one to three minutes."""
    return [
        *(Experiment(protocol=protocol) for protocol in PROTOCOLS),
        *(Experiment(protocol="vote", events_per_batch=100, topics=topics) for topics in (1, 4)),
        Experiment(name=ONE_IN_FLIGHT, protocol="authenticated"),
    ]


def full_plan() -> list[Experiment]:
    matrix = [*_matrix()]
    plain = [each for each in matrix if each.f == 1 and not each.fault]
    encrypted = [replace(each, link_security="tls") for each in plain]
    return [*matrix, *encrypted, Experiment(name=ONE_IN_FLIGHT, protocol="authenticated")]


def quick_log_plan() -> list[Experiment]:
    """The same of log topics."""
    plain = Experiment(protocol=ORDERING, fsync=IN_MEMORY)
    return [
        plain,
        replace(plain, fsync=SYNCED),
        replace(plain, events_per_batch=100),
        replace(plain, events_per_batch=100, fsync=SYNCED),
        _crash(plain),
        _crash(replace(plain, events_per_batch=100)),
        replace(plain, name=ONE_IN_FLIGHT),
    ]


def full_log_plan() -> list[Experiment]:
    one = Experiment(protocol=ORDERING, name=ONE_IN_FLIGHT)
    syncs = [replace(one, fsync=fsync) for fsync in (IN_MEMORY, SYNCED)]
    return [*_log_matrix(), *syncs, *map(_crash, syncs)]


def leader_crash_plan() -> list[Experiment]:
    """Several publishers, so that there is an order to agree on."""
    killed = Experiment(
        name=LEADER_CRASH, protocol=ORDERING, fault=LEADER_KILLED, fsync=SYNCED, publishers=2
    )
    return [killed, _crash(killed)]


def history_plan() -> list[Experiment]:
    read = Experiment(name=HISTORY, protocol=ORDERING, events_per_batch=100, fsync=SYNCED)
    return [read, _crash(read)]


def growth_plan() -> list[Experiment]:
    grown = Experiment(name=GROWTH, protocol=ORDERING, fsync=SYNCED)
    return [grown, _crash(grown)]


def chosen(plan: Iterable[_Planned], **wanted: Collection[object] | None) -> list[_Planned]:
    """Those whose attributes are among what is wanted of each; no wish means all.

    What has none of an attribute stays: without a fault, it is the baseline of those with one.
    """
    return [
        each
        for each in plan
        if all(
            not values or getattr(each, attribute) is None or getattr(each, attribute) in values
            for attribute, values in wanted.items()
        )
    ]


def _matrix() -> Iterable[Experiment]:
    for replicas, topics, count, protocol in product(REPLICAS, TOPICS, BATCHES, PROTOCOLS):
        for history_every in _HISTORIES.get(protocol, (0,)):
            plain = Experiment(
                protocol=protocol,
                history_every=history_every,
                replicas=replicas,
                topics=topics,
                events_per_batch=count,
            )
            yield plain
            yield from (replace(plain, fault=fault) for fault in FAULTS if _tolerates(plain, fault))


def _tolerates(experiment: Experiment, fault: str) -> bool:
    if experiment.protocol == "first-answer":
        return fault != ALTERING
    return experiment.protocol != "chain" or experiment.history_every > 0


def _log_matrix() -> Iterable[Experiment]:
    for fsync, count in product((IN_MEMORY, SYNCED), (1, 100, 1000)):
        for plain in _plain_logs(fsync, count):
            yield plain
            if plain.f == 1 and plain.protocol == ORDERING:
                yield replace(plain, fault=ALTERING)
            if plain.f == 1:
                yield replace(plain, fault=CRASH)


def _plain_logs(fsync: str, count: int) -> Iterable[Experiment]:
    """Every number of publishers for single events, and one for the rest."""
    one = Experiment(protocol=ORDERING, fsync=fsync, events_per_batch=count)
    ten = replace(one, topics=CHANNELS)
    many = [replace(ten, publishers=each) for each in (PUBLISHERS if count == 1 else (1,))]
    for plain in (one, *many):
        yield plain
        yield _crash(plain)
    yield replace(ten, replicas=7)
    yield replace(_crash(ten), replicas=5)


def _crash(experiment: Experiment) -> Experiment:
    """The same where replicas only crash: fewer of them are needed."""
    return replace(experiment, protocol=CRASH_ORDERING, replicas=3)
