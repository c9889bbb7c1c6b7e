"""Log topics whose replicas are killed, stopped, paused, lie, or have no room left.

Whatever happens to replicas, two producers and two consumers see one log: `logs.faults` compares
what they were told with what is there.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import Signals
from typing import Any, TypeAlias

import pytest

from clusters import TestCluster, running_cluster
from logs import LogTraffic, agreed, batches, caught_up, groups, leader
from quorate.client import Admin
from quorate.runtime.files import cluster_file, data_directory
from quorate.runtime.founding import read_mark, write_mark
from quorate.runtime.local import OPERATOR
from traffic import eventually, status_of

pytestmark = pytest.mark.xdist_group("processes")

PROTECTIONS = ("byzantine", "crash")
CLIENTS = ("alice", "bob", "carol", "dave")
TOPICS = {
    protection: {"order": "total", "protection": protection, "partitions": 2}
    for protection in PROTECTIONS
}
# Room for the reserve of a store, for what it writes in a test, and not much more.
DISK_MB = 16
FILLING = "filling"
# How often to look before it is clear that nothing moves.
LOOKS = 20
LOOKS_MAX = 100

Flows: TypeAlias = Mapping[str, LogTraffic]


@pytest.fixture(scope="module")
def shared() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS, clients=CLIENTS) as running:
        yield running


@pytest.fixture
def cluster(shared: TestCluster) -> TestCluster:
    shared.revive()
    return shared


@asynccontextmanager
async def books_checked(
    cluster: TestCluster, protections: Iterable[str] = PROTECTIONS
) -> AsyncIterator[tuple[Flows, Admin]]:
    """Traffic on log topics that flows while the block does something to replicas.

    In the end everything is acknowledged and read, by a consumer that comes later too, and all
    replicas have the same log.
    """
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(cluster.directory, OPERATOR))
        flows = {
            protection: await stack.enter_async_context(LogTraffic(cluster.directory, protection))
            for protection in protections
        }
        for traffic in flows.values():
            traffic.flow()
        await passed(flows, 20)
        yield flows, admin
        await passed(flows, 20)
        for protection, traffic in flows.items():
            await traffic.settled()
            await traffic.read_again("alice")
            await agreed(admin, protection, protection)
            traffic.check()


async def passed(flows: Flows, count: int) -> None:
    """So many more events were acknowledged on each topic, and read by everybody."""
    await asyncio.gather(*(traffic.passed(count) for traffic in flows.values()))


async def kill(cluster: TestCluster, replica: str) -> None:
    cluster.launcher.signal(replica, Signals.SIGKILL)
    await eventually(lambda: have_ended(cluster, [replica]))


async def have_ended(cluster: TestCluster, replicas: list[str]) -> bool:
    return not any(map(cluster.launcher.pid, replicas))


async def start(cluster: TestCluster, replica: str) -> None:
    cluster.launcher.start(replica)
    await asyncio.to_thread(cluster.launcher.wait_until_up, replica)


async def follower(admin: Admin, protection: str) -> str:
    leads = await leader(admin, protection)
    return next(name for name in await groups(admin, protection) if name != leads)


# All replicas


def test_everything_is_still_there_when_all_replicas_were_stopped_and_started(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with books_checked(cluster):
            # Given producers and consumers that stay, and events under way,
            await asyncio.to_thread(cluster.launcher.stop_all)
            # when replicas come back, the log goes on where it was.
            await asyncio.to_thread(cluster.launcher.start_all)

    asyncio.run(story())


def test_nothing_acknowledged_is_lost_when_all_replicas_are_killed_at_once(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with books_checked(cluster):
            for name in cluster.names:
                cluster.launcher.signal(name, Signals.SIGKILL)
            await eventually(lambda: have_ended(cluster, cluster.names))
            await asyncio.to_thread(cluster.launcher.start_all)

    asyncio.run(story())


# One replica after the other


VICTIMS = ((leader, "byzantine"), (leader, "crash"), (follower, "byzantine"))


def test_one_order_survives_while_leaders_and_followers_are_killed(cluster: TestCluster) -> None:
    async def story() -> None:
        async with books_checked(cluster) as (flows, admin):
            for choose, protection in VICTIMS:
                victim = await choose(admin, protection)
                await kill(cluster, victim)
                await passed(flows, 20)
                await start(cluster, victim)
                # One more may only fail once this one is of use again.
                await caught_up(admin, victim, PROTECTIONS)

    asyncio.run(story())


def test_another_replica_leads_while_the_leader_is_paused_and_it_follows_afterwards(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with books_checked(cluster) as (flows, admin):
            for protection in PROTECTIONS:
                sleeper = await leader(admin, protection)
                cluster.launcher.signal(sleeper, Signals.SIGSTOP)
                await deposed(admin, protection, sleeper)
                await passed(flows, 20)
                cluster.launcher.signal(sleeper, Signals.SIGCONT)
                await caught_up(admin, sleeper, PROTECTIONS)
                await deposed(admin, protection, sleeper, even_itself=True)

    asyncio.run(story())


async def deposed(admin: Admin, protection: str, former: str, *, even_itself: bool = False) -> None:
    """Those who answer take another replica for the leader, all of them; the former one too."""

    def is_deposed(seen: dict[str, dict[str, Any]]) -> bool:
        others = {each["leader"] for each in seen.values()}
        return bool(others) and former not in others and (not even_itself or former in seen)

    await eventually(lambda: groups(admin, protection), is_deposed)


# Leaders that lie


@pytest.mark.parametrize(
    ("behaviour", "details"),
    [
        ("lie", {"percent": 100.0}),
        ("silent", {}),
        ("slow", {"delay_ms": 2000.0}),
        ("equivocate", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_order_goes_on_with_a_leader_that_misbehaves(
    cluster: TestCluster, behaviour: str, details: dict[str, Any]
) -> None:
    async def story() -> None:
        async with books_checked(cluster, ["byzantine"]) as (flows, admin):
            liar = await leader(admin, "byzantine")
            await admin.misbehave(liar, behaviour, **details)
            try:
                await passed(flows, 40)
            finally:
                await admin.misbehave(liar, "behave")

    asyncio.run(story())


# Disks without room


@pytest.fixture(scope="module")
def cramped() -> Iterator[TestCluster]:
    """A cluster whose replicas have a small disk each."""
    with (
        running_cluster(topics=TOPICS, clients=CLIENTS, start=False) as running,
        contextlib.ExitStack() as stack,
    ):
        for name in running.names:
            stack.enter_context(small_disk(data_directory(running.directory, name)))
        stack.callback(running.launcher.stop_all)
        running.launcher.start_all()
        yield running


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    mark = read_mark(directory)
    assert mark is not None
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(directory)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a small disk takes the right to mount one")
    try:
        write_mark(directory, mark.founding)
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(cluster: TestCluster, replica: str) -> None:
    """Leave no room at all on a replica's disk."""
    path = data_directory(cluster.directory, replica) / FILLING
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (1024 * 1024, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def make_room(cluster: TestCluster, replica: str) -> None:
    (data_directory(cluster.directory, replica) / FILLING).unlink()


async def says(admin: Admin, replica: str, health: str) -> dict[str, Any]:
    """What a replica reports, once it is in this state."""

    async def look() -> dict[str, Any]:
        return (await admin.status())[replica]

    report: dict[str, Any] = await eventually(look, lambda seen: seen["health"] == health)
    return report


def test_a_cluster_goes_on_with_a_replica_whose_disk_is_full_and_that_catches_up_by_itself(
    cramped: TestCluster,
) -> None:
    async def story() -> None:
        async with books_checked(cramped) as (flows, admin):
            leads = await leader(admin, "byzantine")
            for victim in (leads, await follower(admin, "byzantine")):
                fill(cramped, victim)
                report = await says(admin, victim, "disk full")
                assert "there is no room" in report["disk"]
                await passed(flows, 20)
                make_room(cramped, victim)
                await says(admin, victim, "ok")
                await caught_up(admin, victim, PROTECTIONS)

    asyncio.run(story())


def test_nothing_is_acknowledged_or_lost_while_more_than_f_disks_are_full(
    cramped: TestCluster,
) -> None:
    async def story() -> None:
        async with books_checked(cramped) as (flows, admin):
            # Given f + 1 replicas of both topics that cannot write,
            victims = list(await groups(admin, "crash"))[:2]
            for victim in victims:
                fill(cramped, victim)
            for victim in victims:
                await says(admin, victim, "disk full")
            # then nothing is decided, and what is handed in waits,
            for traffic in flows.values():
                await traffic.stalled()
            await nothing_moves(flows, admin)
            # and all of it is when there is room.
            for victim in victims:
                make_room(cramped, victim)
            for victim in victims:
                await says(admin, victim, "ok")

    asyncio.run(story())


async def nothing_moves(flows: Flows, admin: Admin) -> None:
    """Look for a while, once what was under way has arrived."""

    async def look() -> list[tuple[int, dict[str, int]]]:
        return [
            (traffic.acknowledged, await batches(admin, protection))
            for protection, traffic in flows.items()
        ]

    looks = [await look()]
    while looks[-1:] * 3 != looks[-3:]:
        assert len(looks) < LOOKS_MAX, looks
        looks.append(await look())
    for _ in range(LOOKS):
        assert await look() == looks[-1]


# What a policy gives up


def test_a_replica_that_syncs_always_gives_up_nothing(cluster: TestCluster) -> None:
    log = asyncio.run(status_of(cluster.directory, "r0"))["log"]
    assert (log["fsync"], log["gives_up"]) == ("always", "")


@pytest.mark.parametrize(
    ("policy", "gives_up"),
    [
        ("interval", "since the last sync is lost if the machine loses power"),
        ("never", "the operating system has not written of its own accord is lost"),
    ],
    ids=["interval", "never"],
)
def test_a_replica_says_what_it_gives_up_by_syncing_less(policy: str, gives_up: str) -> None:
    topics = {"log": {"order": "total", "protection": "none"}}
    with running_cluster(topics=topics, replicas=1, f=0, start=False) as cluster:
        set_fsync(cluster, policy)
        cluster.launcher.start_all()

        async def story() -> dict[str, Any]:
            async with LogTraffic(
                cluster.directory, "log", publishers=["alice"], readers=["bob"]
            ) as traffic:
                traffic.flow()
                await traffic.passed(20)
                # A process that crashes loses nothing all the same.
                await kill(cluster, "r0")
                await start(cluster, "r0")
                await traffic.passed(20)
                await traffic.settled()
                traffic.check()
            return await status_of(cluster.directory, "r0")

        log = asyncio.run(story())["log"]
        assert log["fsync"] == policy
        assert gives_up in log["gives_up"]
        assert "not if only the process crashes" in log["gives_up"]


def set_fsync(cluster: TestCluster, policy: str) -> None:
    file = cluster_file(cluster.directory)
    text, usual = file.read_text(), 'fsync = "always"'
    assert text.count(usual) == 1
    file.write_text(text.replace(usual, f'fsync = "{policy}"'))
