"""A replica that was away for longer than the others keep anything starts over at a snapshot."""

import asyncio
import shutil
from collections.abc import Iterator
from signal import Signals
from typing import Any

import pytest

from clusters import TestCluster, running_cluster
from logs import LogTraffic, agreed, follows, groups
from quorate.client import Admin
from quorate.runtime.files import cluster_file, data_directory
from quorate.runtime.local import OPERATOR
from traffic import eventually

pytestmark = pytest.mark.xdist_group("processes")

PROTECTIONS = ("byzantine", "crash")
# A topic for each test, since what an earlier one published is gone soon.
TOPICS = {
    # What is kept for longer than this can be told slot by slot.
    f"{protection}-{loses_disk}": {
        "order": "total",
        "protection": protection,
        "partitions": 2,
        "retention": "2s",
    }
    for protection in PROTECTIONS
    for loses_disk in (True, False)
}
# A member of both groups.
VICTIM = "r2"
SNAPSHOT_EVERY, SLOTS_KEPT = 8, 16


@pytest.fixture(scope="module")
def shared() -> Iterator[TestCluster]:
    clients = ("alice", "bob", "carol", "dave")
    with running_cluster(topics=TOPICS, clients=clients, start=False) as cluster:
        shorten_memories(cluster)
        cluster.launcher.start_all()
        yield cluster


def shorten_memories(cluster: TestCluster) -> None:
    file = cluster_file(cluster.directory)
    text, before = file.read_text(), 'fsync = "always"\n'
    assert text.count(before) == 1
    memory = f"snapshot_every = {SNAPSHOT_EVERY}\nslots_kept = {SLOTS_KEPT}\n"
    file.write_text(text.replace(before, before + memory))


@pytest.mark.parametrize(
    ("protection", "loses_disk"),
    # Where replicas only crash, one that forgets what it said is more than can be borne.
    [("byzantine", True), ("byzantine", False), ("crash", False)],
    ids=["byzantine, without its disk", "byzantine", "crash"],
)
def test_a_replica_that_was_away_for_long_starts_over_and_has_the_same_log(
    shared: TestCluster, protection: str, loses_disk: bool
) -> None:
    topic = f"{protection}-{loses_disk}"

    async def story() -> None:
        async with (
            Admin(shared.directory, OPERATOR) as admin,
            LogTraffic(shared.directory, topic) as traffic,
        ):
            traffic.flow()
            await traffic.passed(20)
            # Given a replica that is down,
            before = (await groups(admin, protection))[VICTIM]
            shared.launcher.signal(VICTIM, Signals.SIGKILL)
            await eventually(lambda: has_ended(shared))
            if loses_disk:
                shutil.rmtree(data_directory(shared.directory, VICTIM))
            # and others that no longer keep the slots that it lacks,
            await eventually(
                lambda: groups(admin, protection),
                lambda seen: have_forgotten(seen, before["slot"]),
            )
            await traffic.passed(20)
            # when it comes back,
            if loses_disk:
                await asyncio.to_thread(shared.launcher.found, VICTIM, restores=True)
            shared.launcher.start(VICTIM)
            await asyncio.to_thread(shared.launcher.wait_until_up, VICTIM)
            # then it starts over, and follows,
            await follows(admin, protection, VICTIM)
            after = (await groups(admin, protection))[VICTIM]
            assert after["started_over"] >= 1
            assert after["snapshot"] > before["slot"]
            await traffic.passed(20)
            # and has what the others have.
            await traffic.settled()
            await agreed(admin, protection, topic)
            traffic.check()

    asyncio.run(story())


async def has_ended(cluster: TestCluster) -> bool:
    return cluster.launcher.pid(VICTIM) is None


def have_forgotten(seen: dict[str, dict[str, Any]], slot: int) -> bool:
    return len(seen) >= 2 and all(group["oldest_slot"] > slot for group in seen.values())
