"""Members of a group are killed in the middle of batches: the next one goes on to the event."""

import asyncio
import random
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import TestCluster, running_cluster
from flows import PATIENCE_S
from quorate.client import Producer
from quorate.core.batch import encode_values
from traffic import eventually, status_of

pytestmark = pytest.mark.xdist_group("processes")

BATCHES, BATCH_EVENTS = 12, 25
KILLS = 8

# Commits after every so many events, and tells what it does before and after.
MEMBER = """
import asyncio, sys
from quorate.client import Consumer

async def main(directory, topic, every):
    async with Consumer(directory, "carol", group="g", auto_commit_s=None, lease_s=1.0) as consumer:
        consumer.subscribe([topic], start="begin")
        count = 0
        async for record in consumer:
            print("read", record.offset, flush=True)
            count += 1
            if count % every == 0:
                print("commits", record.offset + 1, flush=True)
                await consumer.commit()
                print("committed", record.offset + 1, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    topics = {"plain": {"protection": "crash", "order": "total"}, "votes": {"order": "total"}}
    topics["votes"]["validated"] = True  # type: ignore[assignment]
    topics["counted"] = {"order": "total"}
    with running_cluster(topics=topics, clients=("alice", "carol")) as running:
        yield running


async def published(directory: Path, topic: str) -> list[int]:
    """The offsets of what is for a member; every third batch of a validated topic is not."""
    offsets: list[int] = []
    async with Producer(directory, "alice") as producer:
        for number in range(BATCHES):
            is_basic = topic == "votes" and number % 3 == 1
            await producer.update_topology([] if is_basic or topic == "plain" else [topic])
            receipt = await producer.send_values(topic, [b"%d" % number] * BATCH_EVENTS)
            assert receipt.offset == number * BATCH_EVENTS
            if not is_basic:
                offsets += range(receipt.offset, receipt.offset + BATCH_EVENTS)
    return offsets


async def said(
    directory: Path, topic: str, every: int, lines: int, last: int
) -> list[tuple[str, int]]:
    """What a member says until it has said so much, or has read the last event, and is killed."""
    member = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEMBER, str(directory), topic, str(every), stdout=PIPE
    )
    assert member.stdout is not None
    found: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < lines and b"read %d\n" % last not in found:
                line = await member.stdout.readline()
                assert line, "the member ended by itself"
                found.append(line)
    finally:
        member.kill()
    found += (await member.stdout.read()).splitlines(keepends=True)
    await member.wait()
    # The last line may be torn: it was killed while it said that.
    whole = [line.decode().split() for line in found if line.endswith(b"\n")]
    return [(word, int(at)) for word, at in whole]


@pytest.mark.parametrize(("topic", "every"), [("plain", 7), ("votes", 10)])
def test_whoever_goes_on_skips_nothing_and_repeats_only_what_was_not_committed(
    cluster: TestCluster, topic: str, every: int
) -> None:
    draw = random.Random(7)

    async def story() -> None:
        expected = await published(cluster.directory, topic)
        # Where the next member may begin: what was said to be committed, or was about to be.
        begins = {0}
        for kill in range(KILLS + 1):
            lines = draw.randrange(5, 60) if kill < KILLS else 10 * len(expected)
            words = await said(cluster.directory, topic, every, lines, expected[-1])
            read = [at for word, at in words if word == "read"]
            first = expected.index(read[0])
            assert read[0] in {next(at for at in expected if at >= begin) for begin in begins}
            assert read == expected[first : first + len(read)]
            if read[-1] == expected[-1]:
                return
            for word, at in words:
                if word == "commits":
                    begins |= {at}
                elif word == "committed":
                    begins = {at}
        raise AssertionError("the last event was not read")

    asyncio.run(story())


def test_a_replica_tells_how_many_batches_and_events_a_topic_has_had(cluster: TestCluster) -> None:
    async def counted() -> tuple[int, int, int]:
        report = await status_of(cluster.directory, "r1")
        row = report["log"]["topics"].get("counted", {})
        return row.get("batches", 0), row.get("events", 0), row.get("kept", 0)

    async def story() -> None:
        async with Producer(cluster.directory, "alice") as producer:
            for _ in range(2):
                await producer.submit_payload("counted", encode_values([b"x"] * 3, 0), 3)
            await producer.flush("counted")
        assert await eventually(counted, lambda seen: seen >= (2, 6, 6)) == (2, 6, 6)

    asyncio.run(story())
