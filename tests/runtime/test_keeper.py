"""What a replica process does for its log topics beside the machine: what is old goes."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from quorate.core.contract import Contract
from quorate.core.ids import topic_id
from quorate.core.ordering import Partition, Standing
from quorate.crypto.digests import descriptor
from quorate.protocol.broker import Broker
from quorate.protocol.ordering.placement import GroupKind, stores_of
from quorate.protocol.ordering.records import Decided, Held, Placed
from quorate.runtime.keeper import ABSENT_BYTES, LogKeeper
from quorate.runtime.local import make_local_cluster
from quorate.runtime.topics import client_names, macs_of, topics_of
from stage import event

HOUR_US = 3_600_000_000
PARTITION = Partition(topic_id("log"), 0)


@contextmanager
def kept(
    data: Path, table: Mapping[str, object] | None = None, replica: int = 0
) -> Iterator[tuple[LogKeeper, Broker]]:
    """One of four replicas, whose log keeps what is less than an hour old, or as the table says."""
    table = {"retention": "1h"} if table is None else table
    contract = Contract.parse("log", {"order": "total", **table})
    local = make_local_cluster(topics={"log": contract})
    cluster, identity = local.cluster, local.identities[f"r{replica}"]
    topics = topics_of(cluster)
    keeper = LogKeeper(cluster, cluster, replica, identity, topics, data)
    with closing(keeper):
        macs = macs_of(cluster, identity)
        yield keeper, Broker(replica, topics, client_names(cluster), macs, keeper.make_ordering)


def decide(keeper: LogKeeper, *ages_us: int) -> None:
    """Batches that were decided so long ago."""
    for number, age_us in enumerate(ages_us):
        payload = event(b"%d" % number)
        decided = decided_at(now_us() - age_us, number, payload)
        keeper.store.append([Held(3, *PARTITION, number + 1, [payload]), decided])


def decided_at(time_us: int, number: int, payload: bytes, *lacking: int) -> Decided:
    each = number.to_bytes(32, "big")
    placed = Placed(
        3, *PARTITION, number + 1, number, number, descriptor(payload), each, each, [*lacking]
    )
    return Decided(GroupKind.BYZANTINE, number + 1, time_us, b"value", [placed])


def hear_clocks(broker: Broker, *ahead_us: int) -> None:
    broker.tick(0)
    for replica, ahead in enumerate(ahead_us, 1):
        broker.step(replica, Standing(GroupKind.BYZANTINE, 1, 1, True, now_us() + ahead))


def now_us() -> int:
    return time.time_ns() // 1000


def test_what_is_older_than_its_topic_keeps_goes(tmp_path: Path) -> None:
    with kept(tmp_path) as (keeper, broker):
        decide(keeper, 3 * HOUR_US, 2 * HOUR_US, HOUR_US // 2)
        hear_clocks(broker, 0, 0, 0)
        keeper._trim(broker)
        assert keeper.store.bounds(PARTITION) == (2, 3)


def test_a_clock_that_is_ahead_makes_nothing_look_old(tmp_path: Path) -> None:
    with kept(tmp_path) as (keeper, broker):
        decide(keeper, HOUR_US // 2, 0)
        keeper.clock_ahead_us = 1000 * HOUR_US
        # Neither when it is the only clock that we know of,
        keeper._trim(broker)
        assert keeper.store.bounds(PARTITION) == (0, 2)
        # nor when we have heard of others.
        hear_clocks(broker, 0, 0, 0)
        keeper._trim(broker)
        assert keeper.store.bounds(PARTITION) == (0, 2)


def test_a_clock_that_is_behind_keeps_nothing_for_longer(tmp_path: Path) -> None:
    with kept(tmp_path) as (keeper, broker):
        decide(keeper, 2 * HOUR_US, 0)
        keeper.clock_ahead_us = -1000 * HOUR_US
        hear_clocks(broker, 0, 0, 0)
        keeper._trim(broker)
        assert keeper.store.bounds(PARTITION) == (1, 2)


# Large batches, which are with few replicas

STORE, *_, ELSEWHERE = stores_of((0, 1, 2, 3), PARTITION)
LARGE = event(bytes(5000))
LIMIT = 100 * ABSENT_BYTES


def decide_large(keeper: LogKeeper, batches: int, *, held: bool) -> None:
    for number in range(batches):
        decided = decided_at(number, number, LARGE, *([] if held else [0]))
        payloads = [Held(3, *PARTITION, number + 1, [LARGE])] if held else []
        keeper.store.append([*payloads, decided])


def test_a_replica_without_the_payloads_gives_up_what_they_are_of_after_those_who_have_them(
    tmp_path: Path,
) -> None:
    starts = []
    for replica, held in ((STORE, True), (ELSEWHERE, False)):
        directory = tmp_path / str(replica)
        with kept(directory, {"retention_bytes": LIMIT}, replica) as (keeper, broker):
            decide_large(keeper, 300, held=held)
            keeper._trim(broker)
            starts.append(keeper.store.bounds(PARTITION)[0])
    assert starts == [300 - LIMIT // len(LARGE), 200]


def test_what_is_missing_and_may_yet_come_is_kept_a_place(tmp_path: Path) -> None:
    """It may be small, and then there is room for it."""
    with kept(tmp_path, {"retention_bytes": LIMIT}, ELSEWHERE) as (keeper, broker):
        decide_large(keeper, 300, held=False)
        assert broker.ordering is not None
        broker.ordering.groups[GroupKind.BYZANTINE].filling.miss(PARTITION, 50, 100)
        keeper._trim(broker)
        assert keeper.store.bounds(PARTITION) == (50, 300)


def test_a_store_that_lacks_payloads_keeps_a_place_for_them(tmp_path: Path) -> None:
    with kept(tmp_path, {"retention_bytes": LIMIT}, STORE) as (keeper, broker):
        decide_large(keeper, 300, held=False)
        keeper._trim(broker)
        assert keeper.store.bounds(PARTITION) == (0, 300)
