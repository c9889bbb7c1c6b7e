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

from quorate.bench.kafka import KafkaBroker, KafkaUnavailableError, running_brokers
from quorate.runtime.ports import free_base_port

PATIENCE_S = 15.0


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
    """So many independent clusters; a skip with the reason where there can be none."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-")))
        base = free_base_port()
        ports = [base + 2 * number for number in range(count)]
        try:
            brokers = stack.enter_context(running_brokers(directory, ports, quick_start=True))
        except KafkaUnavailableError as error:
            pytest.skip(str(error))
        yield brokers


def messages_in(broker: KafkaBroker, topic: str) -> list[Message]:
    """Everything in a topic, as any consumer of Kafka gets it."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
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


def delete_topic(broker: KafkaBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)


def make_topic(broker: KafkaBroker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    admin.create_topics([wanted])[topic].result(PATIENCE_S)
