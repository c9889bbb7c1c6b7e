"""What all clients of a Kafka cluster have in common: settings, topics, and words about trouble."""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from quorate.core.errors import ConfigError
from quorate.core.limits import SEALED_BYTES_MAX
from quorate.core.stores import FROM_ENVIRONMENT, FROM_FILE, KafkaStore
from quorate.protocol.ordering.records import Deposited

# A Kafka that is in trouble is left alone for so long.
REST_SECONDS = 2.0
REQUEST_SECONDS_MAX = 5.0
POLL_S = 0.2
CLOSE_SECONDS_MAX = 1.0
# The largest sealed batch, and what Kafka writes around it.
MESSAGE_BYTES_MAX = SEALED_BYTES_MAX + 64 * 1024
_SECRET_BYTES_MAX = 64 * 1024
_KEEPS_ALL = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
}

_log = logging.getLogger("quorate.kafka")

# Have this done by the event loop's thread.
Post: TypeAlias = Callable[[Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears what becomes of things, in the event loop's thread."""

    post: Post
    deposited: Callable[[list[Deposited]], None]
    fetched: Callable[[], None]
    report: Callable[[str], None]


class Trouble:
    """What is wrong with a Kafka at the moment, said once and not with every attempt."""

    def __init__(self, bootstrap: str) -> None:
        self.sentence = ""
        self._bootstrap = bootstrap
        self._lock = threading.Lock()

    def is_news(self, words: str) -> bool:
        with self._lock:
            before, self.sentence = self.sentence, words
        if words and not before:
            _log.warning("the Kafka at %s: %s; it is tried again", self._bootstrap, words)
        return bool(words) and not before

    def is_over(self) -> None:
        with self._lock:
            before, self.sentence = self.sentence, ""
        if before:
            _log.info("the Kafka at %s answers again", self._bootstrap)


class Place(NamedTuple):
    """A record of Kafka."""

    topic: str
    partition: int
    offset: int


class Memory:
    """The payloads of Kafka that were put here or asked for last, bounded in bytes.

    Whoever uses it from threads locks.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._payloads: OrderedDict[Place, bytes] = OrderedDict()
        self._bytes = 0

    def __contains__(self, place: Place) -> bool:
        return place in self._payloads

    def get(self, place: Place) -> bytes | None:
        payload = self._payloads.get(place)
        if payload is not None:
            self._payloads.move_to_end(place)
        return payload

    def put(self, place: Place, payload: bytes) -> None:
        self.pop(place)
        self._payloads[place] = payload
        self._bytes += len(payload)
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._payloads.popitem(last=False)[1])

    def pop(self, place: Place) -> bytes | None:
        payload = self._payloads.pop(place, None)
        if payload is not None:
            self._bytes -= len(payload)
        return payload


def settings_of(store: KafkaStore) -> dict[str, Any]:
    """What all clients of this Kafka have in common."""
    return {
        "client.id": "quorate",
        "log_level": 2,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.propagation.max.ms": 1000,
        **{key: _value(key, value) for key, value in store.settings.items()},
        "bootstrap.servers": store.bootstrap,
    }


def _value(key: str, value: str) -> str:
    """A setting as it is meant: what stands elsewhere is looked up there."""
    if value.startswith(FROM_ENVIRONMENT):
        name = value.removeprefix(FROM_ENVIRONMENT)
        found = os.environ.get(name)
        if found is None:
            raise ConfigError(f"{key} is in the variable {name} of the environment, which is unset")
        return found
    if value.startswith(FROM_FILE):
        path = Path(value.removeprefix(FROM_FILE))
        try:
            with path.open("rb") as file:
                return file.read(_SECRET_BYTES_MAX).decode().rstrip("\n")
        except OSError as error:
            raise ConfigError(
                f"{key} is in {path}, which cannot be read: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise ConfigError(f"{key} is in {path}, which is not a text file (UTF-8)") from None
    return value


def made(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    try:
        return kind(settings)
    except kafka_exception() as error:
        # The sentence of librdkafka names the setting, and never its value if that is a secret.
        words = error.args[0].str() if error.args else str(error)
        raise ConfigError(f"Kafka's client library refuses its settings: {words}") from None


def make_topics(settings: dict[str, Any], wanted: Mapping[str, int]) -> dict[str, str]:
    """Topics that keep what they get, unless there are such that the operator made.

    All are asked for at once. Says why those were not made that could not be.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions, NewTopic

    admin = AdminClient(settings)
    try:
        # All that there are: asking for one by name would have some brokers make it, as they see
        # fit.
        known = admin.list_topics(timeout=REQUEST_SECONDS_MAX).topics
    except KafkaException as error:
        return dict.fromkeys(wanted, str(error))
    new = [
        NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=_KEEPS_ALL)
        for topic, partitions in wanted.items()
        if topic not in known
    ]
    narrow = [
        NewPartitions(topic, partitions)
        for topic, partitions in wanted.items()
        if topic in known and len(known[topic].partitions) < partitions
    ]
    made: dict[str, Future[None]] = {}
    if new:
        made |= admin.create_topics(new, request_timeout=REQUEST_SECONDS_MAX)
    if narrow:
        made |= admin.create_partitions(narrow, request_timeout=REQUEST_SECONDS_MAX)
    failed = {topic: _failure(future) for topic, future in made.items()}
    return {topic: words for topic, words in failed.items() if words}


def _failure(made: "Future[None]") -> str:
    from confluent_kafka import KafkaException

    try:
        made.result(2 * REQUEST_SECONDS_MAX)
    except KafkaException as error:
        return "" if error.args[0].name() == "TOPIC_ALREADY_EXISTS" else str(error)
    except TimeoutError:
        return "nobody answered"
    return ""


def kafka_exception() -> type[Exception]:
    from confluent_kafka import KafkaException

    return KafkaException
