"""The store outside, as a replica process has it: opened, attached to its machine, and watched.

A replica whose store is Kafka according to the cluster file deposits there; one whose file says so
no more still knows which of its payloads are there, and that it cannot have them.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from quorate.core.cluster import Cluster
from quorate.core.errors import ConfigError
from quorate.core.ids import NodeId, topic_id
from quorate.protocol.broker import Broker
from quorate.protocol.ordering.records import Deposit, Deposited
from quorate.runtime.driver import Driver
from quorate.runtime.metrics import Sample
from quorate.storage.kafka import KafkaPayloads
from quorate.storage.kafka_client import Listener
from quorate.storage.outside import OutsideStore, PayloadStore
from quorate.storage.pointers import Pointers
from quorate.storage.store import DiskStore


class Outside:
    """What a replica keeps outside, if anything."""

    def __init__(self) -> None:
        self.payloads: PayloadStore | None = None
        self._driver: Driver | None = None
        self._broker: Broker | None = None
        self._report: Callable[[str], None] | None = None

    def open(self, cluster: Cluster, me: NodeId, data: Path) -> DiskStore:
        """The store in this directory, with whatever it has outside."""
        kafka = cluster.stores.get(cluster.name_of(me))
        if kafka is None and not Pointers.are_in(data):
            return DiskStore(data, fsync=cluster.fsync)  # type: ignore[arg-type]
        data.mkdir(parents=True, exist_ok=True)
        pointers = Pointers(data)
        if kafka is not None:
            listener = Listener(_poster(), self._deposited, self._fetched, self._reported)
            try:
                self.payloads = KafkaPayloads(kafka, pointers, listener)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    "its store is Kafka, and the Python package confluent-kafka is not installed; "
                    "install it with: pip install 'quorate[kafka]'"
                ) from error
            self.adopt(cluster)
        return OutsideStore(data, pointers, self.payloads, fsync=cluster.fsync)  # type: ignore[arg-type]

    def attach(self, driver: Driver, broker: Broker, report: Callable[[str], None]) -> None:
        """From now on the machine hears what becomes of things."""
        self._driver, self._broker, self._report = driver, broker, report

    def adopt(self, cluster: Cluster) -> None:
        if self.payloads is not None:
            names = {
                topic_id(name): (name, contract.partitions)
                for name, contract in cluster.topics.items()
                if contract.validated
            }
            self.payloads.adopt(names)

    def deposit(self, deposits: list[Deposit]) -> None:
        if self.payloads is not None:
            self.payloads.write(deposits)

    @property
    def trouble(self) -> str:
        """What is wrong with it at the moment."""
        return "" if self.payloads is None else str(self.payloads.status()["trouble"])

    def status(self) -> dict[str, object]:
        return {"kind": "embedded"} if self.payloads is None else self.payloads.status()

    def samples(self) -> Iterator[Sample]:
        if self.payloads is None:
            return
        status = self.payloads.status()
        yield "store_in_trouble", {}, bool(status["trouble"])
        for name in ("written", "refused", "fetched", "lost"):
            count = status[name]
            assert isinstance(count, int)
            yield f"store_{name}_total", {}, count

    # What is heard from outside

    def _deposited(self, results: list[Deposited]) -> None:
        ordering = None if self._broker is None else self._broker.ordering
        if self._driver is not None and ordering is not None:
            self._driver.tell(partial(ordering.deposited, results))

    def _fetched(self) -> None:
        ordering = None if self._broker is None else self._broker.ordering
        if self._driver is not None and ordering is not None:
            self._driver.tell(ordering.fetched)

    def _reported(self, sentence: str) -> None:
        if self._report is not None:
            self._report(sentence)


def _poster() -> Callable[[Callable[[], None]], None]:
    loop = asyncio.get_running_loop()

    def post(word: Callable[[], None]) -> None:
        # The loop may have ended before its threads have.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(word)

    return post
