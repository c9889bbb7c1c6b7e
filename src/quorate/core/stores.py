"""Which replicas keep their payloads outside, and where: the `[store.NAME]` tables.

    [store.r0]
    kind = "kafka"
    bootstrap = "kafka.example.org:9093"

    [store.r0.settings]
    "security.protocol" = "SASL_SSL"
    "sasl.password" = "env:KAFKA_PASSWORD"

The settings go to librdkafka as they are, but for three kinds: what makes a Kafka cluster a store
(acknowledgements, say) is not for the file to say; a secret is named and not written, since
everybody reads the file; and nothing in it has programs run, or libraries loaded.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from quorate.core.errors import ConfigError
from quorate.core.toml import Table, render_key, render_pairs

STORE_KINDS = ("embedded", "kafka")
TOPIC_PREFIX = "quorate."
SETTINGS_MAX = 100
# How a setting says where its value is.
FROM_ENVIRONMENT, FROM_FILE = "env:", "file:"

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.%]{2,64}\]):([0-9]{1,5})", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,100}", re.ASCII)
_SETTING = re.compile(r"[a-z][a-z0-9.]{0,99}", re.ASCII)
_SECRET = re.compile(r"password|passphrase|secret|key\.pem$")
_PORT_MAX = 65535
# What Quorate says itself, and what would have librdkafka run programs or load libraries.
_OURS = frozenset({
    "acks", "request.required.acks", "enable.idempotence", "bootstrap.servers",
    "metadata.broker.list", "group.id", "enable.auto.commit", "enable.auto.offset.store",
    "auto.offset.reset", "enable.partition.eof", "isolation.level", "message.timeout.ms",
    "delivery.timeout.ms", "transactional.id", "check.crcs", "log.level",
})  # fmt: skip
_RUNS_PROGRAMS = frozenset({
    "plugin.library.paths", "ssl.engine.location", "ssl.providers", "sasl.kerberos.kinit.cmd",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStore:
    """A Kafka cluster in which a replica keeps payloads of validated topics."""

    bootstrap: str
    topic_prefix: str = TOPIC_PREFIX
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        return self.bootstrap.split(",")


def read_stores(top: Table) -> dict[str, KafkaStore]:
    """By the name of the replica; those of kind "embedded" are as if they were not there."""
    if not top.has("store"):
        return {}
    stores: dict[str, KafkaStore] = {}
    for name, content in top.table("store").rest().items():
        table = Table(f"[store.{name}]", content)
        if table.choice("kind", STORE_KINDS) == "kafka":
            settings = table.table("settings") if table.has("settings") else None
            stores[name] = KafkaStore(
                bootstrap=table.text("bootstrap"),
                topic_prefix=table.text("topic_prefix", TOPIC_PREFIX),
                settings={} if settings is None else dict(_settings(name, settings.rest())),
            )
        table.end()
    return stores


def render_stores(stores: Mapping[str, KafkaStore]) -> str:
    return "\n".join(_render(name, store) for name, store in stores.items())


def check_stores(stores: Mapping[str, KafkaStore], replicas: list[str]) -> None:
    owners: dict[str, str] = {}
    for name, store in stores.items():
        if name not in replicas:
            raise ConfigError(
                f"[store.{name}] is for no replica of this cluster; it has {', '.join(replicas)}"
            )
        _check(name, store)
        for address in store.addresses:
            if owners.setdefault(address, name) != name:
                raise ConfigError(
                    f"[store.{name}] and [store.{owners[address]}] share the Kafka at {address}, "
                    "but each store must be a Kafka cluster of its own: it counts once"
                )


def _check(name: str, store: KafkaStore) -> None:
    for address in store.addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 1 <= int(match[1]) <= _PORT_MAX:
            raise ConfigError(
                f"[store.{name}]: bootstrap has {address!a}, but it must be HOST:PORT, or several "
                "of them with commas between"
            )
    if not _PREFIX.fullmatch(store.topic_prefix):
        raise ConfigError(
            f"[store.{name}]: topic_prefix is {store.topic_prefix!a}, but it may have letters, "
            "digits, '.', '_' and '-' only, and at most 100 of them"
        )
    if len(store.settings) > SETTINGS_MAX:
        raise ConfigError(f"[store.{name}.settings] has more than {SETTINGS_MAX} settings")
    for key, value in store.settings.items():
        _check_setting(f"[store.{name}.settings]", key, value)


def _check_setting(where: str, key: str, value: str) -> None:
    if not _SETTING.fullmatch(key):
        raise ConfigError(f"{where} has {key!a}, which is no setting of librdkafka")
    if key in _OURS:
        raise ConfigError(f"{where} has {key!a}, which Quorate sets itself")
    if key in _RUNS_PROGRAMS:
        raise ConfigError(
            f"{where} has {key!a}, which can have programs run; a file that others write must not"
        )
    if _SECRET.search(key) and not value.startswith((FROM_ENVIRONMENT, FROM_FILE)):
        raise ConfigError(
            f"{where} has {key!a} in plain words, but everybody may read the cluster file; write "
            f'"{FROM_ENVIRONMENT}NAME" for a variable of the replica\'s environment, or '
            f'"{FROM_FILE}PATH" for a file that only the replica can read'
        )


def _settings(name: str, content: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in content.items():
        match value:
            case bool():
                yield key, "true" if value else "false"
            case int() | str():
                yield key, str(value)
            case _:
                raise ConfigError(
                    f"[store.{name}.settings]: {key!a} must be a text, a number, or true or false; "
                    "a key with dots in it is written in quotes"
                )


def _render(name: str, store: KafkaStore) -> str:
    heading = f"store.{render_key(name)}"
    pairs = {
        "kind": "kafka",
        "bootstrap": store.bootstrap,
        "topic_prefix": store.topic_prefix,
    }
    text = f"[{heading}]\n{render_pairs(pairs)}"
    if store.settings:
        text += f"\n[{heading}.settings]\n{render_pairs(store.settings)}"
    return text
