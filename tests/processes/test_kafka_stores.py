"""Replicas whose payloads are in Kafka: real brokers, real processes, and what goes wrong there.

Three replicas have a Kafka cluster each, the last of which asks for a password; the fourth replica
keeps payloads itself. A large batch is with two of the four.
"""

import asyncio
from collections.abc import Iterator
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest
from confluent_kafka import Producer as PlainProducer

from clusters import TestCluster, running_cluster
from kafkas import PASSWORD, Message, delete_topic, make_topic, messages_in, running_kafkas
from logs import LARGE_EVERY, LogTraffic
from quorate.bench.kafka import KafkaBroker
from quorate.client import Admin
from quorate.core.batch import Batch
from quorate.core.header import SEAL_BYTES
from quorate.core.stores import KafkaStore
from quorate.crypto.digests import batch_digest, seal_digest
from quorate.crypto.sids import Place, Seal, check_seal
from quorate.runtime.launcher import LaunchError
from quorate.runtime.local import OPERATOR
from traffic import eventually, offences

pytestmark = pytest.mark.xdist_group("processes")

PARTITIONS = 4
VALIDATED = {
    "order": "total", "protection": "byzantine", "validated": True, "partitions": PARTITIONS,
}  # fmt: skip
TOPICS = ("kept", "proven", "killed", "paused", "restarted", "deleted", "altered")
CLIENTS = ("alice", "bob", "carol", "dave")


@pytest.fixture(scope="module")
def kafkas() -> Iterator[list[KafkaBroker]]:
    with running_kafkas(3) as brokers:
        yield brokers


@pytest.fixture(scope="module")
def shared(kafkas: list[KafkaBroker]) -> Iterator[TestCluster]:
    topics = {name: {**VALIDATED, "event_proofs": name == "proven"} for name in TOPICS}
    stores = [
        KafkaStore(bootstrap=broker.bootstrap, settings=settings_for(broker)) for broker in kafkas
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KAFKA_PASSWORD", PASSWORD)
        with running_cluster(topics=topics, clients=CLIENTS, kafkas=stores) as running:
            yield running


def settings_for(broker: KafkaBroker) -> dict[str, str]:
    """What the cluster file says of a Kafka, where no secret may stand."""
    secret = {"sasl.password": "env:KAFKA_PASSWORD"} if broker.client_settings else {}
    return {**broker.client_settings, **secret}


@pytest.fixture
def cluster(shared: TestCluster) -> TestCluster:
    shared.revive()
    return shared


async def store_of(cluster: TestCluster, replica: str) -> dict[str, Any]:
    """What a replica says of its store, as soon as it answers."""
    async with Admin(cluster.directory, OPERATOR) as admin:

        async def look() -> dict[str, Any]:
            report: Any = (await admin.status(timeout_s=0.5))[replica]
            return dict((report.get("log") or {}).get("store", {}))

        return dict(await eventually(look))


async def accusations(cluster: TestCluster, replica: str) -> set[str]:
    """What the other replicas hold against this one."""
    others = [name for name in cluster.names if name != replica]
    found = [await offences(cluster.launcher.cluster, name) for name in others]
    return {kind for counts in found for who, kind in counts if who == replica}


def restart(cluster: TestCluster, names: list[str]) -> None:
    """Whatever these had in memory is gone."""
    for name in names:
        cluster.launcher.stop(name, kill=True)
    cluster.launcher.start_all()


def large_values(traffic: LogTraffic) -> set[bytes]:
    handed_in = traffic.books.handed_in.items()
    return {value for value, known in handed_in if known.number % LARGE_EVERY == LARGE_EVERY - 1}


def is_in(value: bytes, messages: list[Message]) -> bool:
    return any(value in message.value for message in messages)


# Where payloads are


@pytest.mark.parametrize("topic", ["kept", "proven"])
def test_large_batches_are_in_kafka_as_their_producers_signed_them(
    cluster: TestCluster, kafkas: list[KafkaBroker], topic: str
) -> None:
    async def story() -> LogTraffic:
        async with LogTraffic(cluster.directory, topic) as traffic:
            traffic.flow()
            await traffic.passed(100)
            await traffic.settled()
            traffic.check()
            return traffic

    traffic = asyncio.run(story())

    found = [messages_in(broker, f"quorate.{topic}") for broker in kafkas]
    # Where the fourth replica is one of the two stores, there may be one copy in Kafka only.
    copies = [sum(is_in(value, each) for each in found) for value in sorted(large_values(traffic))]
    assert len(copies) >= 10
    assert min(copies) >= 1
    assert max(copies) >= 2
    for message in (message for each in found for message in each):
        seal = Seal.decode(message.value)
        place = Place(
            cluster.launcher.cluster.full_name,
            topic, message.partition, message.producer, message.session,
        )  # fmt: skip
        check_seal(place, message.sequence, seal)
        assert batch_digest(message.value) == seal_digest(message.value[:SEAL_BYTES])
        assert seal.has_event_proofs == (topic == "proven")
        assert Batch(message.value).count == 1
        assert len(message.value) > 4000


def test_what_is_in_kafka_is_read_from_there_when_memory_has_it_no_more(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with LogTraffic(cluster.directory, "restarted") as traffic:
            traffic.flow()
            await traffic.passed(60)
            # Its journal has pointers to what it promised to store and is not decided yet.
            restart(cluster, ["r1"])
            await traffic.passed(60)
            await traffic.settled()
            restart(cluster, cluster.names)
            await traffic.read_again("dave")
            traffic.check()
        fetched = [(await store_of(cluster, name))["fetched"] for name in ("r0", "r1", "r2")]
        assert sum(fetched) > 0
        assert await store_of(cluster, "r3") == {"kind": "embedded"}

    asyncio.run(story())


# A Kafka that fails


def test_when_a_kafka_dies_publishing_goes_on_with_the_next_store(
    cluster: TestCluster, kafkas: list[KafkaBroker]
) -> None:
    async def story() -> None:
        async with LogTraffic(cluster.directory, "killed") as traffic:
            traffic.flow()
            await traffic.passed(50)
            kafkas[0].stop(kill=True)
            await traffic.passed(100)
            await eventually(lambda: store_of(cluster, "r0"), lambda seen: seen["trouble"])
            async with Admin(cluster.directory, OPERATOR) as admin:
                report = (await admin.status())["r0"]
                assert (report["health"], bool(report["store"])) == ("store in trouble", True)
                assert (await offences(admin.cluster, "r0"))["r0", "store"] >= 1
            await traffic.settled()
            kafkas[0].start()
            await asyncio.to_thread(kafkas[0].wait_until_up)
            before = (await store_of(cluster, "r0"))["written"]
            traffic.flow()
            await eventually(
                lambda: store_of(cluster, "r0"),
                lambda seen: not seen["trouble"] and seen["written"] > before,
            )
            await traffic.settled()
            traffic.check()

    asyncio.run(story())


def test_a_kafka_that_stands_still_holds_up_nobody(
    cluster: TestCluster, kafkas: list[KafkaBroker]
) -> None:
    async def story() -> None:
        async with LogTraffic(cluster.directory, "paused") as traffic:
            traffic.flow()
            await traffic.passed(20)
            kafkas[1].signal(SIGSTOP)
            try:
                await traffic.passed(100)
                seen = await store_of(cluster, "r1")
            finally:
                kafkas[1].signal(SIGCONT)
            # Its replica is there and answers, whatever its Kafka does.
            assert seen["kind"] == "kafka"
            await traffic.settled()
            traffic.check()

    asyncio.run(story())


def test_a_kafka_that_is_not_there_when_its_replica_starts_is_named_and_tried_again() -> None:
    nowhere = KafkaStore(bootstrap="127.0.0.1:1")
    with running_cluster(topics={"log": VALIDATED}, clients=CLIENTS, kafkas=[nowhere]) as cluster:

        async def story() -> None:
            async with LogTraffic(cluster.directory, "log") as traffic:
                traffic.flow()
                await traffic.passed(50)
                await traffic.settled()
                traffic.check()
            seen = await eventually(lambda: store_of(cluster, "r0"), lambda seen: seen["trouble"])
            assert seen["written"] == 0

        asyncio.run(story())
        log = (cluster.directory / "run" / "r0.log").read_text()
        assert "the Kafka at 127.0.0.1:1" in log


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"no.such.setting": "1"}, 'No such configuration property: "no.such.setting"'),
        ({"security.protocol": "magic"}, 'Invalid value "magic" for configuration property'),
        ({"sasl.password": "env:QUORATE_UNSET"}, "variable QUORATE_UNSET of the environment"),
    ],
)
def test_settings_that_make_no_sense_keep_a_replica_from_starting(
    settings: dict[str, str], sentence: str
) -> None:
    kafka = KafkaStore(bootstrap="127.0.0.1:1", settings=settings)
    with running_cluster(topics={"log": VALIDATED}, kafkas=[kafka], start=False) as cluster:
        cluster.launcher.start("r0")

        with pytest.raises(LaunchError) as error:
            cluster.launcher.wait_until_up("r0")

        assert sentence in str(error.value)


# A Kafka that forgets or lies


def forget(broker: KafkaBroker, topic: str) -> None:
    delete_topic(broker, topic)


def lie(broker: KafkaBroker, topic: str) -> None:
    """The same offsets, with something else in them."""
    messages = messages_in(broker, topic)
    delete_topic(broker, topic)
    make_topic(broker, topic, PARTITIONS)
    producer = PlainProducer({"bootstrap.servers": broker.bootstrap})
    for message in messages:
        other = message.value[:-1] + bytes([message.value[-1] ^ 1])
        producer.produce(topic, other, partition=message.partition)
    assert producer.flush(15) == 0


@pytest.mark.parametrize(
    ("topic", "spoil", "words"),
    [
        ("deleted", forget, "is lost"),
        ("altered", lie, "it is not what was written there"),
    ],
)
def test_what_one_kafka_lost_comes_from_the_others_and_its_replica_reports_it(
    cluster: TestCluster, kafkas: list[KafkaBroker], topic: str, spoil: Any, words: str
) -> None:
    async def story() -> None:
        async with LogTraffic(cluster.directory, topic) as traffic:
            traffic.flow()
            await traffic.passed(100)
            await traffic.settled()
            await asyncio.to_thread(spoil, kafkas[0], f"quorate.{topic}")
            restart(cluster, cluster.names)
            # With one of the others away, some of what r0 stores is nowhere else.
            cluster.launcher.stop("r3")
            reading = asyncio.create_task(traffic.read_again("dave"))
            await eventually(lambda: store_of(cluster, "r0"), lambda seen: seen["lost"] > 0)
            cluster.launcher.start("r3")
            await reading
            traffic.check()
            await asyncio.to_thread(cluster.launcher.wait_until_up, "r3")
            # It signed that it stores what its Kafka lost, and now that it does not have it.
            await eventually(
                lambda: accusations(cluster, "r0"), lambda kinds: "false-receipt" in kinds
            )
        log = (cluster.directory / "run" / "r0.log").read_text()
        assert any(words in line and f"quorate.{topic}" in line for line in log.splitlines())
        for name in ("r1", "r2"):
            assert (await store_of(cluster, name))["lost"] == 0

    asyncio.run(story())
