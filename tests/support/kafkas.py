"""Real Kafka clusters for tests, and what a plain Kafka client sees in them."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorate.bench.kafka import QUICK_START, KafkaBroker, KafkaUnavailableError, running
from quorate.runtime.ports import free_base_port

PATIENCE_S = 15.0
USER, PASSWORD = "quorate", "only-a-test"


class Message(NamedTuple):
    """A record of Kafka, and whose batch its headers say that it is."""

    partition: int
    offset: int
    producer: int
    session: int
    sequence: int
    value: bytes


@contextlib.contextmanager
def running_kafkas(count: int) -> Iterator[list[KafkaBroker]]:
    """So many independent clusters, the last of which asks who is there; a skip with the reason
    where there can be none."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-")))
        base = free_base_port()
        ports = [base + 2 * number for number in range(count)]
        brokers = [
            KafkaBroker(directory / str(port), port, port + 1, say=print, java_options=QUICK_START)
            for port in ports[:-1]
        ]
        brokers.append(_guarded(directory / "guarded", ports[-1]))
        try:
            stack.enter_context(running(brokers))
        except KafkaUnavailableError as error:
            pytest.skip(str(error))
        yield brokers


def _guarded(directory: Path, port: int) -> KafkaBroker:
    """A broker that lets in whoever has the password (SASL/PLAIN)."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    users = f'username="admin" password="admin" user_admin="admin" user_{USER}="{PASSWORD}"'
    return KafkaBroker(
        directory,
        port,
        port + 1,
        say=print,
        java_options=QUICK_START,
        settings={
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
        },
        client_settings={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        },
    )


def messages_in(broker: KafkaBroker, topic: str) -> list[Message]:
    """Everything in a topic, as any consumer of Kafka gets it."""
    consumer = Consumer(
        {
            **client_of(broker),
            "group.id": "plain",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: list[Message] = []
    try:
        partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        open_partitions = set(partitions)
        while open_partitions:
            message: Any = consumer.poll(PATIENCE_S)
            assert message is not None, f"{topic} at {broker.bootstrap} cannot be read"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                open_partitions.discard(message.partition())
                continue
            headers = dict(message.headers())
            names = ("producer", "session", "sequence")
            producer, session, sequence = (int(headers[f"quorate-{name}"]) for name in names)
            assert message.key() == b"%d.%d.%d" % (producer, session, sequence)
            place = message.partition(), message.offset()
            found.append(Message(*place, producer, session, sequence, message.value()))
    finally:
        consumer.close()
    return found


def client_of(broker: KafkaBroker) -> dict[str, Any]:
    """What any client of this cluster has to say."""
    return {"bootstrap.servers": broker.bootstrap, **broker.client_settings}


def delete_topic(broker: KafkaBroker, topic: str) -> None:
    admin = AdminClient(client_of(broker))
    admin.delete_topics([topic])[topic].result(PATIENCE_S)


def make_topic(broker: KafkaBroker, topic: str, partitions: int) -> None:
    admin = AdminClient(client_of(broker))
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    admin.create_topics([wanted])[topic].result(PATIENCE_S)
