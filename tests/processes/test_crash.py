"""Replicas that die without a word, and come back with nothing (kill -9)."""

import asyncio
from collections.abc import Iterator

import pytest

from clusters import TestCluster, running_cluster
from quorate.client import Admin
from quorate.runtime.local import OPERATOR
from traffic import EVERY_KIND, Traffic, serving

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module", params=["mac", "tls"])
def secured(request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    with running_cluster(topics=EVERY_KIND, link_security=request.param) as running:
        yield running


@pytest.fixture
def cluster(secured: TestCluster) -> TestCluster:
    secured.revive()
    return secured


def test_nothing_is_lost_forged_or_doubled_while_one_replica_after_the_other_is_killed(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with Traffic(cluster.directory, EVERY_KIND) as traffic:
            traffic.flow()
            await traffic.passed(100)
            async with Admin(cluster.directory, OPERATOR) as admin:
                for victim in cluster.names[:2]:
                    await asyncio.to_thread(cluster.launcher.stop, victim, kill=True)
                    await traffic.passed(100)
                    # The next one may die as soon as this one knows its clients again (F10).
                    cluster.launcher.start(victim)
                    await serving(traffic, admin, victim)
            await traffic.passed(100)
            await traffic.settled()
            traffic.check()

    asyncio.run(story())


@pytest.mark.parametrize("secured", ["mac"], indirect=True)
def test_clients_that_come_while_a_replica_is_down_are_served_by_it_when_it_is_back(
    cluster: TestCluster,
) -> None:
    cluster.launcher.stop("r1", kill=True)

    async def story() -> None:
        async with Traffic(cluster.directory, EVERY_KIND) as traffic:
            traffic.flow()
            await traffic.passed(100)
            cluster.launcher.start("r1")
            async with Admin(cluster.directory, OPERATOR) as admin:
                await serving(traffic, admin, "r1")
            # Were r1 not up to date, too few would be left now.
            await asyncio.to_thread(cluster.launcher.stop, "r2", kill=True)
            await traffic.passed(100)
            await traffic.settled()
            traffic.check()

    asyncio.run(story())
