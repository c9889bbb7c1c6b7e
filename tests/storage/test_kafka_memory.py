"""What is in memory of Kafka's records: so many bytes, and those that were used last."""

from pathlib import Path

from quorate.core.ids import topic_id
from quorate.core.ordering import Partition
from quorate.core.stores import KafkaStore
from quorate.crypto.digests import batch_digest
from quorate.storage.kafka import KafkaPayloads
from quorate.storage.kafka_client import Listener
from quorate.storage.kafka_memory import Memory, Place
from quorate.storage.pointers import Pointer, Pointers


def at(offset: int) -> Place:
    return Place("topic", 0, offset)


def test_what_was_not_used_for_longest_makes_room() -> None:
    memory = Memory(30)
    for offset in range(3):
        memory.put(at(offset), b"ten bytes.")
    assert memory.get(at(0)) == b"ten bytes."

    memory.put(at(3), b"ten more..")

    assert [offset for offset in range(4) if at(offset) in memory] == [0, 2, 3]


def test_what_is_put_twice_or_taken_out_counts_once_or_not_at_all() -> None:
    memory = Memory(30)
    memory.put(at(0), b"ten bytes.")
    memory.put(at(0), b"other ten.")
    memory.put(at(1), b"ten bytes.")
    assert memory.pop(at(1)) == b"ten bytes."
    assert memory.pop(at(1)) is None

    memory.put(at(2), b"twenty bytes, twenty")

    assert memory.get(at(0)) == b"other ten."
    assert memory.get(at(2)) == b"twenty bytes, twenty"


def test_what_is_larger_than_all_of_it_is_not_kept() -> None:
    memory = Memory(30)

    memory.put(at(0), bytes(31))

    assert at(0) not in memory


def test_what_was_just_written_needs_no_kafka_to_be_read(tmp_path: Path) -> None:
    """Whoever is up to date costs Kafka nothing, and does not wait for one that is down."""
    payload, topic = b"a sealed batch", topic_id("log")
    pointers = Pointers(tmp_path)
    listener = Listener(lambda word: None, lambda results: None, lambda: None, lambda words: None)
    payloads = KafkaPayloads(KafkaStore(bootstrap="127.0.0.1:1"), pointers, listener)
    try:
        payloads.adopt({topic: ("log", 1)})
        pointer = Pointer(5, len(payload), batch_digest(payload))

        payloads._reader.keep_written(Place("quorate.log", 0, 5), payload)
        payloads.fetch(Partition(topic, 0), [pointer])

        assert payloads.found(Partition(topic, 0), pointer) == payload
        assert not payloads.is_fetching(Partition(topic, 0), pointer)
        assert payloads.status()["fetched"] == 0
    finally:
        payloads.close()
