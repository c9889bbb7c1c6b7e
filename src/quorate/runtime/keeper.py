"""What a replica process does for its log topics: the store, its upkeep, and what it tells.

Retention, the deletion of what nobody needs, and syncing at intervals are not the machine's
business: they change nothing that was agreed.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from quorate.core.cluster import Cluster
from quorate.core.ids import NodeId
from quorate.core.ordering import Partition
from quorate.crypto.identity import Identity
from quorate.protocol.broker import Broker
from quorate.protocol.ordering.group import SNAPSHOT_EVERY
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.replica import Found, Ordering
from quorate.protocol.outbox import Outbox
from quorate.protocol.topic import Topic
from quorate.runtime.signing import ClusterNotary, ClusterSigner
from quorate.runtime.topics import client_names
from quorate.storage.errors import DiskFullError
from quorate.storage.store import DiskStore

# Slots that replicas which were away for a while can still be told of, one by one.
SLOTS_KEPT = 16 * SNAPSHOT_EVERY
TRIM_EVERY_S = 5.0
CLEAN_EVERY_S = 30.0
SYNC_EVERY_S = 0.1

_log = logging.getLogger("quorate.keeper")


class LogKeeper:
    """The store of one replica, and what has to be done with it now and then."""

    def __init__(
        self,
        cluster: Cluster,
        me: NodeId,
        identity: Identity,
        topics: Iterable[Topic],
        store: DiskStore,
    ) -> None:
        self.store = store
        self._cluster = cluster
        self._me = me
        self._signer = ClusterSigner(cluster, identity)
        self._notaries = {kind: ClusterNotary(cluster, identity, kind) for kind in GroupKind}
        self._topics = {topic.id: topic for topic in topics if topic.contract.is_log}

    @staticmethod
    def open(
        cluster: Cluster, me: NodeId, identity: Identity, topics: Iterable[Topic], data: Path
    ) -> "LogKeeper | None":
        """The store in this directory, if this replica has log topics to keep."""
        topics = list(topics)
        if not any(topic.contract.is_log and me in topic.index for topic in topics):
            return None
        store = DiskStore(data, fsync=cluster.fsync)  # type: ignore[arg-type]
        return LogKeeper(cluster, me, identity, topics, store)

    def make_ordering(self, outbox: Outbox) -> Ordering:
        recovered = self.store.recover()
        began = time.monotonic()
        found = Found(recovered.snapshots, list(recovered.records))
        ordering = Ordering(
            self._me,
            self._topics.values(),
            client_names(self._cluster),
            signer=self._signer,
            notaries=self._notaries,
            store=self.store,
            found=found,
            wall_us=_wall_us,
            outbox=outbox,
        )
        if recovered.replayed:
            took_ms = (time.monotonic() - began) * 1000
            _log.info("%s records replayed in %.0f ms", recovered.replayed, took_ms)
        return ordering

    async def keep(self, broker: Broker) -> None:
        """Until cancelled: sync at intervals, if that is the policy, and throw away what is old."""
        trim_at = clean_at = time.monotonic()
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            if not self.store.syncs and self.store.gives_up and self._cluster.fsync == "interval":
                await asyncio.to_thread(self.store.sync_now)
            now = time.monotonic()
            if now >= trim_at:
                trim_at = now + TRIM_EVERY_S
                self._trim(broker)
            if now >= clean_at + CLEAN_EVERY_S:
                clean_at = now
                self._clean()

    def close(self) -> None:
        self.store.close()

    def status(self, broker: Broker) -> dict[str, object]:
        """What `quorate status` shows of the log."""
        groups = broker.ordering.groups if broker.ordering is not None else {}
        return {
            "fsync": self._cluster.fsync,
            "gives_up": self.store.gives_up,
            "groups": {
                GroupKind(number).name.lower(): {
                    "leader": self._cluster.name_of(group.consensus.leader),
                    "regency": group.consensus.regency,
                    "slot": group.consensus.slot,
                    "batches": group.log.tree.size,
                    "root": group.log.tree.root().hex(),
                    "readers": group.readers.count,
                    "missing": group.filling.count,
                    "checkpoint": group.cosigning.checkpoint if group.cosigning else "",
                }
                for number, group in groups.items()
            },
        }

    def _trim(self, broker: Broker) -> None:
        """Drop what is beyond its topic's retention."""
        for partition in self.store.partitions():
            topic = self._topics.get(partition.topic)
            if topic is not None:
                self.store.trim(partition, self._keep_from(topic, partition))
        groups = broker.ordering.groups if broker.ordering is not None else {}
        for number, group in groups.items():
            self.store.keep_slots_from(number, max(1, group.consensus.slot - SLOTS_KEPT))

    def _keep_from(self, topic: Topic, partition: Partition) -> int:
        contract = topic.contract
        offset, _ = self.store.bounds(partition)
        if contract.retention_us:
            oldest_us = time.time_ns() // 1000 - contract.retention_us
            offset = max(offset, self.store.expired(partition, oldest_us))
        if contract.retention_bytes:
            offset = max(offset, self.store.surplus(partition, contract.retention_bytes))
        return offset

    def _clean(self) -> None:
        try:
            cleaned = self.store.clean()
        except DiskFullError as error:
            _log.warning("nothing can be cleaned: %s", error)
            return
        if cleaned.segments_deleted:
            _log.info("%s segments deleted", cleaned.segments_deleted)


def _wall_us(_: int) -> int:
    return time.time_ns() // 1000
