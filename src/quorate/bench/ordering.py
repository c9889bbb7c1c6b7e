"""Which experiments there are with log topics (the ordered half of F14).

FIT-Broker's tables 5.3 to 5.7 for its ordered channels, and the crash-ordered cases that its
future work asks for: 1 to 10 publishers on each of 10 topics, f = 1 and 2, a replica that crashes
and recovers, one that lies, batches of 1, 100 and 1000; each in memory and with every decision
synced to disk. The thesis' own channels were kept in memory. Three more have a command each: the
leader is killed, a consumer reads history, a log grows.
"""

from collections.abc import Iterable
from dataclasses import replace

from quorate.bench import growth, history, leader_crash
from quorate.bench.experiments import (
    ALTERING,
    CRASH,
    CRASH_ORDERING,
    LOG_PROTOCOLS,
    ONE_IN_FLIGHT,
    ORDERING,
    Experiment,
)

CHANNELS = 10
PUBLISHERS = (1, 2, 5, 10)
IN_MEMORY, SYNCED = "never", "always"


def quick_plan() -> list[Experiment]:
    """The figures that matter most, in one to three minutes."""
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


def full_plan() -> list[Experiment]:
    return [*_matrix(), *_one_in_flight()]


def leader_crash_plan() -> list[Experiment]:
    """Several publishers, so that there is an order to agree on."""
    killed = Experiment(
        name=leader_crash.LEADER_CRASH,
        protocol=ORDERING,
        fault=leader_crash.FAULT,
        fsync=SYNCED,
        publishers=leader_crash.PUBLISHERS,
    )
    return [killed, _crash(killed)]


def history_plan() -> list[Experiment]:
    read = Experiment(
        name=history.HISTORY,
        protocol=ORDERING,
        events_per_batch=history.EVENTS_PER_BATCH,
        fsync=SYNCED,
    )
    return [read, _crash(read)]


def growth_plan() -> list[Experiment]:
    grown = Experiment(name=growth.GROWTH, protocol=ORDERING, fsync=SYNCED)
    return [grown, _crash(grown)]


def _matrix() -> Iterable[Experiment]:
    for fsync in (IN_MEMORY, SYNCED):
        for count in (1, 100, 1000):
            for plain in _plain(fsync, count):
                yield plain
                if plain.f == 1 and plain.protocol == ORDERING:
                    yield replace(plain, fault=ALTERING)
                if plain.f == 1:
                    yield replace(plain, fault=CRASH)


def _plain(fsync: str, count: int) -> Iterable[Experiment]:
    """Every number of publishers for single events, and one for the rest."""
    one = Experiment(protocol=ORDERING, fsync=fsync, events_per_batch=count)
    yield one
    yield _crash(one)
    ten = replace(one, topics=CHANNELS)
    for publishers in PUBLISHERS if count == 1 else (1,):
        many = replace(ten, publishers=publishers)
        yield many
        yield _crash(many)
    yield replace(ten, replicas=7)
    yield replace(_crash(ten), replicas=5)


def _one_in_flight() -> Iterable[Experiment]:
    for protocol in LOG_PROTOCOLS:
        for fsync in (IN_MEMORY, SYNCED):
            one = Experiment(name=ONE_IN_FLIGHT, protocol=ORDERING, fsync=fsync)
            yield _crash(one) if protocol == CRASH_ORDERING else one


def _crash(experiment: Experiment) -> Experiment:
    """The same where replicas only crash: fewer of them are needed."""
    return replace(experiment, protocol=CRASH_ORDERING, replicas=3)
