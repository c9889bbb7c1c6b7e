"""Reading payloads from a real Kafka: back and forth between partitions, and what is set aside."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkas import messages_in, running_kafkas
from quorate.bench.kafka import KafkaBroker
from quorate.core.ids import topic_id
from quorate.core.ordering import Partition
from quorate.core.stores import KafkaStore
from quorate.crypto.digests import batch_digest
from quorate.protocol.ordering.records import Deposit, Deposited
from quorate.storage.kafka import KafkaPayloads
from quorate.storage.kafka_client import Listener
from quorate.storage.pointers import Pointer, Pointers
from traffic import until

pytestmark = pytest.mark.xdist_group("processes")

TOPIC, PARTITIONS, RECORDS = topic_id("log"), 3, 40


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaBroker]:
    with running_kafkas(2) as (broker, _):
        yield broker


class Outside:
    """The payloads of one replica, and what is said of them, in this thread or another."""

    def __init__(self, directory: Path, broker: KafkaBroker, prefix: str) -> None:
        self.results: list[Deposited] = []
        self.words: list[str] = []
        self.pointers = Pointers(directory)
        listener = Listener(
            lambda word: word(), self.results.extend, lambda: None, self.words.append
        )
        store = KafkaStore(bootstrap=broker.bootstrap, topic_prefix=prefix)
        self.payloads = KafkaPayloads(store, self.pointers, listener)
        self.payloads.adopt({TOPIC: ("log", PARTITIONS)})


def payload(partition: int, sequence: int) -> bytes:
    return b"%d/%d " % (partition, sequence) * 5000


async def written(directory: Path, broker: KafkaBroker, prefix: str) -> list[list[Pointer]]:
    """Pointers to payloads that a former process wrote, by partition."""
    outside = Outside(directory, broker, prefix)
    try:
        for sequence in range(RECORDS):
            for partition in range(PARTITIONS):
                one = payload(partition, sequence)
                deposit = Deposit(1000, TOPIC, partition, sequence, batch_digest(one), one)
                outside.payloads.write([deposit])
        await until(lambda: len(outside.results) == RECORDS * PARTITIONS)
    finally:
        outside.payloads.close()
    found: list[list[Pointer]] = [[] for _ in range(PARTITIONS)]
    for result in sorted(outside.results, key=lambda result: result.sequence):
        pointer = outside.pointers.decode(result.pointer)
        assert pointer is not None
        found[result.partition].append(pointer)
    return found


def test_readers_of_several_partitions_get_everything_step_by_step(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    async def story() -> None:
        pointers = await written(tmp_path, kafka, "steps.")
        outside = Outside(tmp_path, kafka, "steps.")
        try:
            for step in range(0, RECORDS, 4):
                for number in range(PARTITIONS):
                    partition, wanted = Partition(TOPIC, number), pointers[number][step : step + 4]
                    outside.payloads.fetch(partition, wanted)
                    for at, pointer in enumerate(wanted, step):
                        await until(
                            lambda: not outside.payloads.is_fetching(partition, pointer)  # noqa: B023
                        )
                        assert outside.payloads.found(partition, pointer) == payload(number, at)
            status = outside.payloads.status()
            assert (status["fetched"], status["lost"]) == (RECORDS * PARTITIONS, 0)
        finally:
            outside.payloads.close()

    asyncio.run(story())


def test_what_came_before_it_was_wanted_is_held_against_its_digest_all_the_same(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    async def story() -> None:
        pointers = await written(tmp_path, kafka, "ahead.")
        assert len(messages_in(kafka, "ahead.log")) == RECORDS * PARTITIONS
        outside, partition = Outside(tmp_path, kafka, "ahead."), Partition(TOPIC, 0)
        try:
            first, *others = pointers[0]
            (good,) = outside.payloads.fetch_now(partition, [first])
            assert good == payload(0, 0)
            lies = [each._replace(digest=batch_digest(b"something else")) for each in others]
            outside.payloads.fetch(partition, lies)

            await until(lambda: outside.payloads.status()["lost"] == len(lies))

            assert all(outside.payloads.found(partition, each) is None for each in lies)
            assert all(outside.payloads.is_lost(partition, each) for each in lies)
            assert len(outside.words) == len(lies)
            assert "is lost: it is not what was written there" in outside.words[0]
        finally:
            outside.payloads.close()

    asyncio.run(story())
