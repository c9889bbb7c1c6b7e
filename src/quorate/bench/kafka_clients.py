"""The same trial through plain Kafka: clients as confluent-kafka's users write them.

Every producer asks for `acks=all` and is told of each event's delivery; batching, queues and all
else are librdkafka's own. The consumer reads every topic from its beginning, and looks at every
value. What is said between parent and child is as in `workload.py`.

confluent-kafka comes with the extra `kafka` and is imported only here.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import count, groupby
from typing import TYPE_CHECKING, TypeAlias

from quorate.bench.latencies import summarise
from quorate.bench.processes import BenchError, Parent, play
from quorate.bench.values import Numbered, first_number, pack_number
from quorate.bench.workload import EventTally, Meter, Produced, Task, Window, say_found

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message
    from confluent_kafka.admin import AdminClient

FLUSH_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
MESSAGES_MAX = 1000

# How another thread has the loop call something.
Tell: TypeAlias = Callable[[Callable[[], None]], object]


def require_kafka() -> None:
    """Say that it is missing before anything is measured rather than after it."""
    import confluent_kafka  # noqa: F401


def make_topics(bootstrap: str, topics: list[str]) -> None:
    """Topics of one partition each."""
    from confluent_kafka.cimpl import NewTopic

    # It ends what it was asked for when nothing refers to it any more.
    admin = _admin(bootstrap)
    wanted = [NewTopic(topic, num_partitions=1, replication_factor=1) for topic in topics]
    for future in admin.create_topics(wanted).values():
        future.result()


def remove_topics(bootstrap: str, prefix: str) -> None:
    """All topics whose names begin like this.

    What a trial wrote is of no use to the next one, and takes its place on the disk.
    """
    admin = _admin(bootstrap)
    known = admin.list_topics(timeout=FLUSH_SECONDS_MAX).topics
    topics = [topic for topic in known if topic.startswith(prefix)]
    for future in admin.delete_topics(topics).values() if topics else ():
        future.result()


def _admin(bootstrap: str) -> "AdminClient":
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


# Producing


class KafkaProducer:
    """Produces on all topics in turn, event by event, as fast as librdkafka takes them."""

    def __init__(self, task: Task) -> None:
        from confluent_kafka import Producer

        self.submitted = 0
        self.stopped = threading.Event()
        self.meter = Meter()
        self._task = task
        self._body = Numbered(task.event_bytes, task.run).body
        self._producer = Producer({"bootstrap.servers": task.cluster, "acks": "all"})
        # It finds the broker and its topics before anything is measured.
        self._producer.list_topics(timeout=FLUSH_SECONDS_MAX)
        # Told one by one, counted together: which moment it is, is looked up once for each poll.
        self._acknowledged = 0

    def produce(self) -> None:
        """Until it is stopped, and all that was taken has been delivered."""
        topics, producer, task = self._task.topics, self._producer, self._task
        firsts = [first_number(task.producer, at) for at in range(len(topics))]
        body, told = self._body, self._on_delivery
        for counter in count():
            if self.stopped.is_set():
                break
            for topic, first in zip(topics, firsts, strict=True):
                value = pack_number(first + counter) + body
                while True:
                    try:
                        producer.produce(topic, value, on_delivery=told)
                        break
                    except BufferError:
                        self._poll(POLL_SECONDS)
            self.submitted += len(topics)
            self._poll(0)
        until_s = time.monotonic() + FLUSH_SECONDS_MAX
        while len(producer) and time.monotonic() < until_s:
            self._poll(POLL_SECONDS)

    def _poll(self, seconds: float) -> None:
        self._producer.poll(seconds)
        if self._acknowledged:
            self.meter.add(time.monotonic_ns(), False, self._acknowledged)
            self._acknowledged = 0

    def _on_delivery(self, error: "KafkaError | None", message: "Message") -> None:
        if error is None:
            self._acknowledged += 1


async def produce(parent: Parent, task: Task) -> None:
    producer = await asyncio.to_thread(KafkaProducer, task)
    parent.say("ready")
    window = await parent.hear(Window)
    producing = asyncio.create_task(asyncio.to_thread(producer.produce))
    await parent.hear()
    producer.stopped.set()
    await producing
    # Of batches and receipts librdkafka does not tell.
    unknown = summarise([])
    found = Produced(
        **producer.meter.counted(window),
        submitted=producer.submitted,
        acknowledged=producer.meter.events,
        batches=0,
        receipt=unknown,
        signed_receipt=unknown,
        basic_receipt=unknown,
    )
    parent.say(found)
    await parent.hear()


# Consuming


def read_into(tally: EventTally, task: Task, stopped: threading.Event, tell: Tell) -> None:
    """Read all topics from their beginnings, until it is stopped."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"bootstrap.servers": task.cluster, "group.id": task.run}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(each, 0, OFFSET_BEGINNING) for each in task.topics])
    while not stopped.is_set():
        arrived = consumer.consume(MESSAGES_MAX, POLL_SECONDS)
        now_ns, now_ms = time.monotonic_ns(), time.time() * 1000
        for topic, messages in groupby(arrived, _topic):
            some = list(messages)
            age_ns = int(1e6 * (now_ms - some[0].timestamp()[1]))
            tally.add(now_ns, topic, [_value(each) for each in some], age_ns)
        if arrived:
            tell(tally.news.set)
    consumer.close()


def _topic(message: "Message") -> str:
    error = message.error()
    if error is not None:
        raise BenchError(f"Kafka's consumer says: {error}")
    topic = message.topic()
    assert topic is not None
    return topic


def _value(message: "Message") -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


async def consume(parent: Parent, task: Task) -> None:
    tally, stopped = EventTally(task), threading.Event()
    tell = asyncio.get_running_loop().call_soon_threadsafe
    consuming = asyncio.create_task(asyncio.to_thread(read_into, tally, task, stopped, tell))
    parent.say("ready")
    await say_found(parent, tally)
    stopped.set()
    await consuming
    await parent.hear()


if __name__ == "__main__":
    play(Task, produce=produce, consume=consume)
