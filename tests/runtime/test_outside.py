"""The store outside, as a replica process opens it."""

import asyncio
import sys
from pathlib import Path

import pytest

from quorate.core.contract import Contract
from quorate.core.errors import ConfigError
from quorate.core.stores import KafkaStore
from quorate.runtime.local import make_local_cluster
from quorate.runtime.outside import Outside
from quorate.storage.outside import OutsideStore
from quorate.storage.pointers import Pointers
from quorate.storage.store import DiskStore

VALIDATED = {"order": "total", "protection": "byzantine", "validated": True}
KAFKA = KafkaStore(bootstrap="127.0.0.1:1")
CLUSTER = make_local_cluster(
    topics={"log": Contract.parse("log", VALIDATED)}, kafkas=[KAFKA]
).cluster


def test_without_its_package_a_replica_with_kafka_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    async def story() -> None:
        with pytest.raises(ConfigError, match=r"pip install 'quorate\[kafka\]'"):
            Outside().open(CLUSTER, 0, tmp_path)

    asyncio.run(story())


def test_a_replica_without_kafka_has_a_store_of_its_own(tmp_path: Path) -> None:
    outside = Outside()

    store = outside.open(CLUSTER, 1, tmp_path)

    assert type(store) is DiskStore
    assert (outside.payloads, outside.trouble) == (None, "")
    assert outside.status() == {"kind": "embedded"}
    store.close()


def test_a_replica_that_had_kafka_once_still_tells_pointers_from_payloads(tmp_path: Path) -> None:
    Pointers(tmp_path)
    outside = Outside()

    store = outside.open(CLUSTER, 1, tmp_path)

    assert isinstance(store, OutsideStore)
    assert outside.payloads is None
    store.close()
