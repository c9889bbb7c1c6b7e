"""What is on a topic, as a plain consumer has it: nothing of the pipeline reads it."""

import asyncio
import secrets
from pathlib import Path

from quorate.client import Consumer, Producer
from quorate.client.consumer import Record

PATIENCE_S = 120.0
MARKED = (("mark", b""),)


def everything_on(cluster: Path, topic: str, *, identity: str = "alice") -> list[Record]:
    """All records of a log topic that has one partition, in their order."""
    return asyncio.run(_everything_on(cluster, topic, identity))


def wait_for(
    cluster: Path, topic: str, count: int, *, identity: str = "alice", seconds: float = PATIENCE_S
) -> None:
    """Until so many records are on a topic."""

    async def wait() -> None:
        async with Consumer(cluster, identity) as consumer, asyncio.timeout(seconds):
            consumer.subscribe([topic], start="begin")
            there = 0
            while there < count:
                records = await consumer.poll_many(1000)
                there += sum(record.headers != MARKED for record in records)

    asyncio.run(wait())


async def _everything_on(cluster: Path, topic: str, identity: str) -> list[Record]:
    """What comes before a mark that is published now, but for the marks of before."""
    mark = secrets.token_bytes(16)
    found: list[Record] = []
    async with Producer(cluster, identity) as producer, asyncio.timeout(PATIENCE_S):
        await producer.send(topic, mark, headers=MARKED)
        async with Consumer(cluster, identity) as consumer:
            consumer.subscribe([topic], start="begin")
            async for record in consumer:
                if record.value == mark:
                    break
                found.append(record)
    return [record for record in found if record.headers != MARKED]
