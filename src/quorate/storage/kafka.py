"""Payloads in Apache Kafka, through confluent-kafka.

Source: Kabis 2023, sections 3.1.1, 3.3.1 and 3.3.2; DESIGN section 3 (a Kafka cluster is a store).

The payloads of a topic go to the Kafka topic of that name behind a prefix, to the same partition:
the sealed batch as the value, and whose it is as the key and in headers. Kafka's order means
nothing: the order log says what stands where, and the pointer in the journal where that is here.

Which Kafka topic that is stays the same for good: pointers do not follow a prefix that changes.

Rules:
- a payload counts as taken when all in-sync replicas of the Kafka cluster have it (`acks=all`, with
  an idempotent producer). What is not acknowledged in time is not taken;
- a record whose digest is not that of its pointer is as one that is gone: both are reported, since
  this replica has vouched for them;
- a Kafka that does not answer is left alone for a moment, and what is there counts as absent for
  so long.

`KafkaPayloads` is used by one thread, the event loop's. Deliveries are awaited in one thread of
ours, records are fetched in another, topics made in a third, and what comes of it is handed back
through `post`. Everything that waits is bounded in bytes.
"""

import time

from quorate.core.ids import TopicId
from quorate.core.ordering import Partition
from quorate.core.stores import KafkaStore
from quorate.protocol.ordering.records import Deposit
from quorate.storage.kafka_client import POLL_S, Listener, Place, Trouble, settings_of
from quorate.storage.kafka_reading import Reader
from quorate.storage.kafka_writing import Writer
from quorate.storage.outside import OutsideError
from quorate.storage.pointers import Pointer, Pointers

# A replica that starts waits so long for what it must have.
RECOVERY_SECONDS_MAX = 15.0


class KafkaPayloads:
    """The `PayloadStore` of a replica that keeps its payloads in a Kafka cluster."""

    def __init__(self, store: KafkaStore, pointers: Pointers, listener: Listener) -> None:
        """Nothing has to be reachable; `ConfigError` if the settings make no sense."""
        self._store = store
        self._listener = listener
        self._pointers = pointers
        self._trouble = Trouble(store.bootstrap)
        settings = settings_of(store)
        self._reader = Reader(settings, listener, self._trouble)
        keep = self._reader.keep_written
        self._writer = Writer(settings, pointers, listener, self._trouble, keep)

    def adopt(self, names: dict[TopicId, tuple[str, int]]) -> None:
        for topic, (name, partitions) in names.items():
            kafka_topic = self._pointers.name(topic, self._store.topic_prefix + name)
            self._writer.prepare(kafka_topic, partitions)

    def write(self, deposits: list[Deposit]) -> None:
        for deposit in deposits:
            self._writer.write(self._pointers.names.get(deposit.topic), deposit)

    def found(self, partition: Partition, pointer: Pointer) -> bytes | None:
        place = self._place(partition, pointer)
        return None if place is None else self._reader.found(place)

    def fetch(self, partition: Partition, pointers: list[Pointer]) -> None:
        for pointer in pointers:
            place = self._place(partition, pointer)
            if place is not None:
                self._reader.fetch(place, pointer)

    def is_fetching(self, partition: Partition, pointer: Pointer) -> bool:
        place = self._place(partition, pointer)
        return place is not None and self._reader.is_fetching(place)

    def is_lost(self, partition: Partition, pointer: Pointer) -> bool:
        place = self._place(partition, pointer)
        return place is None or self._reader.is_lost(place)

    def fetch_now(self, partition: Partition, pointers: list[Pointer]) -> list[bytes | None]:
        self.fetch(partition, pointers)
        return [self._fetch_one_now(partition, pointer) for pointer in pointers]

    def status(self) -> dict[str, object]:
        return {
            "kind": "kafka",
            "bootstrap": self._store.bootstrap,
            "trouble": self._trouble.sentence,
            "written": self._writer.written,
            "refused": self._writer.refused,
            "fetched": self._reader.fetched,
            "lost": self._reader.lost,
        }

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    def _place(self, partition: Partition, pointer: Pointer) -> Place | None:
        name = self._pointers.names.get(partition.topic)
        return None if name is None else Place(name, partition.number, pointer.offset)

    def _fetch_one_now(self, partition: Partition, pointer: Pointer) -> bytes | None:
        place = self._place(partition, pointer)
        if place is None:
            return None
        deadline = time.monotonic() + RECOVERY_SECONDS_MAX
        while True:
            self._reader.fetch(place, pointer)
            self._reader.wait_for(place, POLL_S)
            found = self._reader.found(place)
            if found is not None or self._reader.is_lost(place):
                return found
            if not self._reader.is_fetching(place):
                time.sleep(POLL_S)
            if time.monotonic() > deadline:
                raise OutsideError(
                    f"the Kafka at {self._store.bootstrap} does not answer, and it has payloads "
                    f"that this replica has promised to store ({self._trouble.sentence or place})"
                )
