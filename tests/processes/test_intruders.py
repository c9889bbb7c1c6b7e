"""Strangers, impostors and vandals at the door of a live cluster.

Whatever they do, the members' traffic goes on, and whoever can be named is named.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from clusters import TestCluster, running_cluster
from net import Proxy
from quorate.client import Producer
from quorate.core.cluster import Client, Cluster
from quorate.crypto.identity import Identity
from quorate.runtime.files import cluster_file, key_file, read_cluster, read_identity
from quorate.runtime.links import STRANGERS_PER_HOST_MAX
from quorate.runtime.records import RECORD_BYTES_MAX
from traffic import Traffic, eventually, offences

pytestmark = pytest.mark.xdist_group("processes")

TOPICS: Mapping[str, Mapping[str, object]] = {
    "vote": {"broadcast": "vote"},
    "reliable": {"broadcast": "reliable"},
}
ASIDE: Mapping[str, Mapping[str, object]] = {"aside": {"broadcast": "authenticated"}}
HALF_OPEN = 200


@pytest.fixture(scope="module", params=["mac", "tls"])
def cluster(request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    with running_cluster(topics={**TOPICS, **ASIDE}, link_security=request.param) as running:
        yield running


@contextlib.asynccontextmanager
async def undisturbed(cluster: TestCluster) -> AsyncIterator[Traffic]:
    """Traffic during which something happens that must not matter to it."""
    async with Traffic(cluster.directory, TOPICS) as traffic:
        traffic.flow()
        await traffic.passed(20)
        yield traffic
        await traffic.passed(50)
        await traffic.settled()
        traffic.check()


async def until_named(cluster: TestCluster, member: str, *words: str) -> None:
    """r0 counts an offence of this member, and its log says what it was."""

    async def look() -> bool:
        counted = await offences(cluster.launcher.cluster, "r0")
        return any(who == member for who, _ in counted) and said(cluster, *words)

    await eventually(look)


def said(cluster: TestCluster, *words: str) -> bool:
    log = Path(cluster.directory, "run", "r0.log").read_text()
    return any(all(word in line for word in words) for line in log.splitlines())


def with_port(cluster: Cluster, port: int) -> Cluster:
    """The same cluster, but whoever dials r0 goes to this port."""
    first, *others = cluster.replicas
    return replace(cluster, replicas=(replace(first, port=port), *others))


def test_a_client_with_the_right_name_and_other_keys_is_refused_and_named(
    cluster: TestCluster,
) -> None:
    file = read_cluster(cluster_file(cluster.directory))
    forged = Identity.generate("alice")
    alice, *others = file.clients
    posing = Client.of(forged.public, index=0, party=alice.party)
    believed = replace(file, clients=(posing, *others))

    async def story() -> None:
        async with undisturbed(cluster):
            impostor = Producer(believed, forged)
            await impostor.start()
            words = {
                "mac": ("claims to be alice", "cannot prove it"),
                "tls": ("certificate that the cluster file does not pin",),
            }
            await until_named(cluster, "stranger", *words[file.link_security])
            assert not impostor.driver.connected_peers
            await impostor.close(flush=False)

    asyncio.run(story())


def test_bytes_that_somebody_recorded_and_sends_again_end_the_link_and_are_counted(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        target = cluster.launcher.replica("r0").port
        async with undisturbed(cluster), Proxy(target) as proxy:
            file = with_port(read_cluster(cluster_file(cluster.directory)), proxy.port)
            alice = read_identity(key_file(cluster.directory, "alice"))
            async with Producer(file, alice, batch_events=1) as producer:
                await producer.driver.until_connected(0)
                before = len(proxy.sent)
                await producer.send("aside", b"to be recorded")
                recorded = bytes(proxy.sent[before:])
                assert recorded
                proxy.inject(recorded)
                await until_named(cluster, "alice")
                # The link is made anew, and the same producer goes on.
                await producer.driver.until_connected(0)
                receipt = await producer.send("aside", b"after the attack")
                assert receipt.sequence == 2

    asyncio.run(story())


@pytest.mark.parametrize(
    "vandalism",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
        (RECORD_BYTES_MAX + 1).to_bytes(4, "little") + bytes(100),
        b"\xff" * 100_000,
        b"QRTE" + b"\xff" * 73,
    ],
    ids=["another protocol", "zeros", "an oversized length", "ones", "a broken hello"],
)
def test_garbage_from_a_stranger_is_counted_and_disturbs_nobody(
    cluster: TestCluster, vandalism: bytes
) -> None:
    async def story() -> None:
        replica = cluster.launcher.replica("r0")
        before = await offences(cluster.launcher.cluster, "r0")
        async with undisturbed(cluster):
            reader, writer = await asyncio.open_connection(replica.host, replica.port)
            writer.write(vandalism)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 10)
            writer.close()

            async def counted() -> bool:
                now = await offences(cluster.launcher.cluster, "r0")
                return now["stranger", "offence"] > before["stranger", "offence"]

            await eventually(counted)

    asyncio.run(story())


def test_a_member_that_sends_garbage_inside_its_link_is_named(cluster: TestCluster) -> None:
    async def story() -> None:
        async with (
            undisturbed(cluster),
            Producer(cluster.directory, "bob", batch_events=1) as vandal,
        ):
            await vandal.driver.until_connected(0)
            vandal.transport.send(0, [(1 << 30).to_bytes(4, "little") + b"garbage"])
            await until_named(cluster, "bob")
            # It may come back, and behave.
            await vandal.driver.until_connected(0)
            assert (await vandal.send("aside", b"sorry")).sequence == 1

    asyncio.run(story())


@pytest.mark.parametrize("cluster", ["mac"], indirect=True)
def test_hundreds_of_connections_that_say_nothing_keep_no_member_out(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        replica = cluster.launcher.replica("r0")
        async with undisturbed(cluster) as traffic:
            opened = await asyncio.gather(
                *(asyncio.open_connection(replica.host, replica.port) for _ in range(HALF_OPEN))
            )
            await until_named(cluster, "stranger", "connections that have not proven who they are")
            assert said(cluster, f"{STRANGERS_PER_HOST_MAX} per host")
            await traffic.passed(50)
            # Once the silent ones have had their time, others get in again.
            async with Producer(cluster.directory, "bob", batch_events=1) as late:
                await asyncio.wait_for(late.driver.until_connected(0), 30)
                await late.send("aside", b"in at last")
            for _, writer in opened:
                writer.close()

    asyncio.run(story())
