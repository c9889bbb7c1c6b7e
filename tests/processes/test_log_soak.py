"""Everything happens to log topics that may happen to f replicas at a time.

Leaders and followers are killed, lose power in the middle of a write, have no room on their disks,
have clocks that jump, and are paused, in turns and in any order, while two producers and two
consumers go on with a Byzantine and a crash topic; now and then the power fails everywhere. The
consumers' record is compared with the producers'.

Everything happens once, which takes most of a minute, and then goes on in another order until
QUORATE_SOAK_S seconds are over. QUORATE_SOAK_SEED picks the order of events; a failure says which
it was.
"""

import asyncio
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from signal import Signals
from typing import TypeAlias

import pytest

from clusters import TestCluster, running_cluster
from logs import LogTraffic, agreed, caught_up, groups, leader
from power import Mains, cut_power
from quorate.client import Admin
from quorate.crypto.checkpoint import Cosigner, read
from quorate.runtime.files import data_directory
from quorate.runtime.local import OPERATOR
from traffic import eventually

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(sys.platform != "linux", reason="fills disks as only Linux lets us"),
]

SOAK_S = float(os.environ.get("QUORATE_SOAK_S", "0"))
SEED = int(os.environ.get("QUORATE_SOAK_SEED", random.randrange(10**6)))
TOPICS = {
    protection: {"order": "total", "protection": protection, "partitions": 2}
    for protection in ("byzantine", "crash")
}
CLIENTS = ("alice", "bob", "carol", "dave")
HOUR_S = 3600.0
# A clock that is not wrong on purpose is nearer to the others than this.
CLOCK_S = 60.0
# So many events of each topic are acknowledged and read while something is wrong.
EVENTS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS, clients=CLIENTS, launcher=Mains) as running:
        yield running


@dataclass
class Soak:
    """The cluster, its traffic, and what was seen of it so far."""

    cluster: TestCluster
    admin: Admin
    flows: dict[str, LogTraffic]
    chance: random.Random
    happened: Counter[str] = field(default_factory=Counter)
    lost_bytes: int = 0
    # By topic: the size of the last checkpoint; by topic and replica: the time of the log.
    signed: Counter[str] = field(default_factory=Counter)
    times_us: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def mains(self) -> Mains:
        assert isinstance(self.cluster.launcher, Mains)
        return self.cluster.launcher

    async def passed(self) -> None:
        await asyncio.gather(*(traffic.passed(EVENTS) for traffic in self.flows.values()))

    async def restart(self, *names: str) -> None:
        for name in names:
            self.mains.start(name)
        for name in names:
            await asyncio.to_thread(self.mains.wait_until_up, name)

    async def kill(self, *names: str) -> None:
        for name in names:
            self.mains.signal(name, Signals.SIGKILL)
        await eventually(lambda: self._have_ended(names))

    async def _have_ended(self, names: Iterable[str]) -> bool:
        return not any(map(self.mains.pid, names))

    def cut_power(self, name: str) -> None:
        self.lost_bytes += cut_power(self.mains, name, self.chance)

    async def look(self) -> None:
        """The time of a log never goes back or ahead of us, and its checkpoints grow."""
        await asyncio.gather(*map(self._look_at, TOPICS))

    async def _look_at(self, topic: str) -> None:
        for replica, seen in (await groups(self.admin, topic)).items():
            before_us = self.times_us.get((topic, replica), 0)
            assert before_us <= seen["time_us"] <= time.time_ns() // 1000, (topic, replica)
            self.times_us[topic, replica] = seen["time_us"]
        self.signed[topic] = await eventually(
            lambda: self._signed(topic), lambda size: size > self.signed[topic]
        )

    async def _signed(self, topic: str) -> int:
        """How much of a log a quorum has signed, as anybody can check."""
        cluster = self.admin.cluster
        members = [cluster.replicas[number] for number in cluster.placement(topic)]
        cosigners = [Cosigner(replica.name, replica.sign_key) for replica in members]
        quorum = (len(members) + cluster.f + 2) // 2 if topic == "byzantine" else cluster.f + 1
        notes = [seen["checkpoint"] for seen in (await groups(self.admin, topic)).values()]
        return max([read(note, cosigners, quorum).head.size for note in notes if note], default=0)

    def __str__(self) -> str:
        return (
            f"QUORATE_SOAK_SEED={SEED}: {dict(self.happened)}, {self.lost_bytes} bytes lost to "
            f"power cuts, {dict(self.signed)} signed, {[str(each) for each in self.flows.values()]}"
        )


# What happens to one replica, and is over at the end of the block


@asynccontextmanager
async def killed(soak: Soak, victim: str) -> AsyncIterator[None]:
    await soak.kill(victim)
    yield
    await soak.restart(victim)


@asynccontextmanager
async def without_power(soak: Soak, victim: str) -> AsyncIterator[None]:
    await soak.kill(victim)
    soak.cut_power(victim)
    yield
    await soak.restart(victim)


@asynccontextmanager
async def without_room(soak: Soak, victim: str) -> AsyncIterator[None]:
    """Its files may not grow any more, which to its process is a full disk."""
    pid = soak.mains.pid(victim)
    assert pid is not None
    journal = max(data_directory(soak.cluster.directory, victim).glob("journal-*"))
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (journal.stat().st_size, before[1]))
    await eventually(lambda: _health(soak, victim), lambda health: health == "disk full")
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    await eventually(lambda: _health(soak, victim), lambda health: health == "ok")


async def _health(soak: Soak, replica: str) -> object:
    return (await soak.admin.status())[replica]["health"]


@asynccontextmanager
async def with_clock_ahead(soak: Soak, victim: str) -> AsyncIterator[None]:
    async with _with_clock(soak, victim, HOUR_S):
        yield


@asynccontextmanager
async def with_clock_behind(soak: Soak, victim: str) -> AsyncIterator[None]:
    async with _with_clock(soak, victim, -HOUR_S):
        yield


@asynccontextmanager
async def _with_clock(soak: Soak, victim: str, ahead_s: float) -> AsyncIterator[None]:
    await soak.admin.misbehave(victim, "clock", ahead_s=ahead_s)
    await eventually(lambda: _wrong_clocks(soak), lambda wrong: wrong == {victim})
    yield
    await soak.admin.misbehave(victim, "behave")
    # The next one may only be wrong when nobody takes this one for wrong any more.
    await eventually(lambda: _wrong_clocks(soak), lambda wrong: not wrong)


async def _wrong_clocks(soak: Soak) -> set[str]:
    """Whose clock anybody finds wrong."""
    return {
        name
        for topic in TOPICS
        for seen in (await groups(soak.admin, topic)).values()
        for name, ahead_s in seen["clocks_ahead_s"].items()
        if abs(ahead_s) > CLOCK_S
    }


@asynccontextmanager
async def paused(soak: Soak, victim: str) -> AsyncIterator[None]:
    soak.mains.signal(victim, Signals.SIGSTOP)
    yield
    soak.mains.signal(victim, Signals.SIGCONT)


# Whom it happens to


async def a_leader(soak: Soak) -> str:
    return await leader(soak.admin, soak.chance.choice(list(TOPICS)))


async def a_follower(soak: Soak) -> str:
    leaders = [await leader(soak.admin, topic) for topic in TOPICS]
    return soak.chance.choice([name for name in soak.cluster.names if name not in leaders])


Fault: TypeAlias = Callable[[Soak, str], AbstractAsyncContextManager[None]]
Choice: TypeAlias = Callable[[Soak], Awaitable[str]]
Event: TypeAlias = Callable[[Soak], Awaitable[None]]
FAULTS: tuple[Fault, ...] = (
    killed, without_power, without_room, with_clock_ahead, with_clock_behind, paused,
)  # fmt: skip
CHOICES: tuple[Choice, ...] = (a_leader, a_follower)


async def one_is_faulty(soak: Soak, fault: Fault, choice: Choice) -> None:
    victim = await choice(soak)
    async with fault(soak, victim):
        await soak.passed()
    # One more may only fail once this one is of use again.
    await caught_up(soak.admin, victim, TOPICS)
    soak.happened[f"{choice.__name__} {fault.__name__}"] += 1


async def power_fails_everywhere(soak: Soak) -> None:
    """Nobody is faulty: all that was acknowledged had been synced by enough of them."""
    names = soak.cluster.names
    await soak.kill(*names)
    for name in names:
        soak.cut_power(name)
    await soak.restart(*names)
    await soak.passed()
    for name in names:
        await caught_up(soak.admin, name, TOPICS)
    soak.happened["power fails everywhere"] += 1


def rounds(chance: random.Random) -> Iterator[list[Event]]:
    """Everything there is, in another order each time."""
    one = [
        partial(one_is_faulty, fault=fault, choice=choice) for fault in FAULTS for choice in CHOICES
    ]
    while True:
        events: list[Event] = [*one, power_fails_everywhere, power_fails_everywhere]
        chance.shuffle(events)
        yield events


async def disturb(soak: Soak) -> None:
    """One thing after the other until the time is over, but all of them."""
    began_s = time.monotonic()
    for number, events in enumerate(rounds(soak.chance)):
        for event in events:
            if number and time.monotonic() - began_s >= SOAK_S:
                return
            await event(soak)
            await soak.look()


def test_one_order_survives_everything_that_may_happen_to_f_replicas_at_a_time(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(cluster.directory, OPERATOR))
            flows = {
                topic: await stack.enter_async_context(LogTraffic(cluster.directory, topic))
                for topic in TOPICS
            }
            soak = Soak(cluster, admin, flows, random.Random(SEED))
            for traffic in flows.values():
                traffic.flow()
            await soak.passed()
            try:
                await disturb(soak)
                for topic, traffic in flows.items():
                    await traffic.settled()
                    await traffic.read_again("alice")
                    await agreed(admin, topic, topic)
                    traffic.check()
            finally:
                print(soak)

    asyncio.run(story())
