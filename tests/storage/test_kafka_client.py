"""Settings of Kafka: secrets are looked up where the file says, and mistakes are sentences.

And what is in memory of its records: so many bytes, and those that were used last.
"""

from pathlib import Path

import pytest

from quorate.core.errors import ConfigError
from quorate.core.ids import topic_id
from quorate.core.ordering import Partition
from quorate.core.stores import KafkaStore
from quorate.crypto.digests import digest
from quorate.storage.kafka import KafkaPayloads
from quorate.storage.kafka_client import Listener, Memory, Place, Trouble, settings_of
from quorate.storage.pointers import Pointer, Pointers


def store(**settings: str) -> KafkaStore:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return KafkaStore(bootstrap="localhost:9092", settings=named)


def test_secrets_come_from_the_environment_or_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter3")

    found = settings_of(
        store(
            sasl_password="env:KAFKA_PASSWORD",
            ssl_key_password=f"file:{tmp_path / 'secret'}",
            sasl_username="alice",
        )
    )

    assert found["sasl.password"] == "hunter3"
    assert found["ssl.key.password"] == "hunter2"
    assert found["sasl.username"] == "alice"
    assert found["bootstrap.servers"] == "localhost:9092"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("env:QUORATE_NO_SUCH_VARIABLE", "variable QUORATE_NO_SUCH_VARIABLE .* is unset"),
        ("file:/no/such/file", "is in /no/such/file, which cannot be read: No such file"),
    ],
)
def test_a_secret_that_is_not_there_is_named(value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"sasl.password is in .*{sentence}|{sentence}"):
        settings_of(store(sasl_password=value))


def test_trouble_is_news_once_until_it_is_over() -> None:
    trouble = Trouble("localhost:9092")

    assert trouble.is_news("it is down")
    assert not trouble.is_news("it is still down")
    assert trouble.sentence == "it is still down"
    trouble.is_over()
    assert trouble.sentence == ""
    assert trouble.is_news("it is down again")


# What is in memory of Kafka's records


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
        pointer = Pointer(5, len(payload), digest(payload))

        payloads._reader.keep_written(Place("quorate.log", 0, 5), payload)
        payloads.fetch(Partition(topic, 0), [pointer])

        assert payloads.found(Partition(topic, 0), pointer) == payload
        assert not payloads.is_fetching(Partition(topic, 0), pointer)
        assert payloads.status()["fetched"] == 0
    finally:
        payloads.close()
