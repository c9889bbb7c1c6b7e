"""Settings of Kafka: secrets are looked up where the file says, and mistakes are sentences."""

from pathlib import Path

import pytest

from quorate.core.errors import ConfigError
from quorate.core.stores import KafkaStore
from quorate.storage.kafka_client import Trouble, settings_of


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
