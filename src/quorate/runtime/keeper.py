"""What a replica process does for its log topics: the store, its upkeep, and what it tells.

Retention, the deletion of what nobody needs, and syncing at intervals are not the machine's
business: they change nothing that was agreed.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from quorate.core.cluster import Cluster
from quorate.core.control import CONTROL_TOPIC_ID, owner_of
from quorate.core.ids import NodeId
from quorate.core.ordering import Partition
from quorate.crypto.digests import digest
from quorate.crypto.evidence import render
from quorate.crypto.identity import Identity
from quorate.protocol.broker import Broker
from quorate.protocol.control.machine import Control
from quorate.protocol.ordering.group import Group
from quorate.protocol.ordering.placement import GroupKind, group_of
from quorate.protocol.ordering.replica import Found, Ordering
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.outbox import Outbox
from quorate.protocol.topic import Topic
from quorate.runtime.metrics import Sample
from quorate.runtime.outside import Outside
from quorate.runtime.signing import ClusterNotary, ClusterSigner
from quorate.runtime.topics import client_names
from quorate.storage.errors import DiskFullError

TRIM_EVERY_S = 5.0
CLEAN_EVERY_S = 30.0
SYNC_EVERY_S = 0.1
# What the index and the decision take of a batch whose payload is with other replicas.
ABSENT_BYTES = 512
GROUPS_SHOWN = 100
TOPICS_SHOWN = 1000
EVIDENCE_CHARACTERS_SHOWN = 256 * 1024

_log = logging.getLogger("quorate.keeper")


class LogKeeper:
    """The store of one replica, and what has to be done with it now and then."""

    def __init__(
        self,
        cluster: Cluster,
        founding: Cluster,
        me: NodeId,
        identity: Identity,
        topics: list[Topic],
        data: Path,
    ) -> None:
        self.outside = Outside()
        self.store = self.outside.open(cluster, me, data)
        # By how much the time of day is wrong on purpose.
        self.clock_ahead_us = 0
        self._cluster = cluster
        self._founding = founding
        self._me = me
        self._topics = topics
        self._signer = ClusterSigner(cluster, identity)
        self._notaries = {kind: ClusterNotary(cluster, identity, kind) for kind in GroupKind}
        self._signer.adopt(founding)
        for notary in self._notaries.values():
            notary.adopt(founding)

    @staticmethod
    def is_needed(cluster: Cluster, me: NodeId, topics: list[Topic]) -> bool:
        """Whether this replica has log topics or commands to keep."""
        keeps = any(topic.contract.is_log and me in topic.index for topic in topics)
        return keeps or cluster.control is not None

    def make_ordering(self, outbox: Outbox) -> Ordering:
        recovered = self.store.recover()
        began = time.monotonic()
        found = Found(recovered.snapshots, list(recovered.records))
        ordering = Ordering(
            self._me,
            self._topics,
            client_names(self._cluster),
            signer=self._signer,
            notaries=self._notaries,
            store=self.store,
            found=found,
            wall_us=self._wall_us,
            outbox=outbox,
            cluster=self._founding,
            validation=Validation.of(self._cluster, self._topics),
            snapshot_every=self._cluster.snapshot_every,
            deposits=self.outside.payloads is not None,
        )
        for group, sentence in recovered.skipped.items():
            _log.error(
                "the log %s goes on before this: %s", GroupKind(group).name.lower(), sentence
            )
        if recovered.replayed:
            took_ms = (time.monotonic() - began) * 1000
            _log.info("%s records replayed in %.0f ms", recovered.replayed, took_ms)
        return ordering

    def adopt(self, cluster: Cluster) -> None:
        """The cluster has changed."""
        self._cluster = cluster
        self.outside.adopt(cluster)

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
        groups = _groups(broker)
        return {
            "fsync": self._cluster.fsync,
            "gives_up": self.store.gives_up,
            "store": self.outside.status(),
            "groups": {
                GroupKind(number).name.lower(): {
                    "leader": self._cluster.name_of(group.consensus.leader),
                    "regency": group.consensus.regency,
                    "slot": group.consensus.slot,
                    "batches": group.log.tree.size,
                    "root": group.log.tree.root().hex(),
                    "time_us": group.log.state.time_us,
                    "clocks_ahead_s": {
                        self._cluster.name_of(node): round(ahead_us / 1e6, 3)
                        for node, ahead_us in sorted(group.clocks.ahead_us().items())
                    },
                    "readers": group.readers.count,
                    "missing": group.filling.count,
                    "checkpoint": group.cosigning.checkpoint if group.cosigning else "",
                    "oldest_slot": self.store.slots(number)[0],
                    "snapshot": group.transfer.covered if group.transfer else 0,
                    "started_over": group.transfer.count if group.transfer else 0,
                    "evidence": _evidence(group),
                    "stopped": group.stopped,
                }
                for number, group in groups.items()
            },
            "topics": self._topic_status(broker),
            "control": self._control_status(broker),
        }

    def _topic_status(self, broker: Broker) -> dict[str, dict[str, int]]:
        """How much each log topic has had, and how many of its events are kept here."""
        topics = broker.ordering.topics if broker.ordering is not None else {}
        found: dict[str, dict[str, int]] = {}
        for partition in self.store.partitions():
            topic = topics.get(partition.topic)
            if topic is None or (topic.name not in found and len(found) >= TOPICS_SHOWN):
                continue
            row = found.setdefault(topic.name, {"batches": 0, "events": 0, "kept": 0, "bytes": 0})
            start, end = self.store.bounds(partition)
            logs = (group.log for group in _groups(broker).values())
            row["batches"] += sum(log.partition(partition).batches for log in logs)
            row["events"] += end
            row["kept"] += end - start
            row["bytes"] += self.store.bytes_held(partition)
        return found

    def _control_status(self, broker: Broker) -> dict[str, object] | None:
        """Of the cluster's own state; replicas that carried out the same say the same."""
        steward = broker.ordering.steward if broker.ordering is not None else None
        if steward is None:
            return None
        state = steward.control.state
        return {
            "revision": state.revision,
            "digest": digest(msgspec.msgpack.encode(state)).hex(),
            "sessions": len(state.sessions),
            "groups": {
                name: msgspec.to_builtins(steward.control.describe_group(name))
                for name in _shown_groups(steward.control)
            },
        }

    def samples(self, broker: Broker) -> Iterator[Sample]:
        """The same for Prometheus."""
        for number, group in _groups(broker).items():
            log = {"log": GroupKind(number).name.lower()}
            yield "log_batches", log, group.log.tree.size
            yield "log_signed_batches", log, group.cosigning.size if group.cosigning else 0
            yield "log_missing_events", log, group.filling.count
            yield "log_regency", log, group.consensus.regency
            yield "log_stopped", log, bool(group.stopped)
        yield from self.outside.samples()

    def _trim(self, broker: Broker) -> None:
        """Drop what is beyond its topic's retention."""
        ordering, groups = broker.ordering, _groups(broker)
        if ordering is None:
            return
        missing = {
            partition: offset
            for group in groups.values()
            for partition, offset in group.filling.missing_from().items()
        }
        for partition in self.store.partitions():
            topic = ordering.topics.get(partition.topic)
            if topic is not None:
                group = groups.get(group_of(topic.contract))
                offset = self._keep_from(topic, partition, group, missing.get(partition))
                self.store.trim(partition, offset)
        for number, group in groups.items():
            self.store.keep_slots_from(number, self._keep_slots_from(number, group, ordering))

    def _keep_slots_from(self, number: int, group: Group, ordering: Ordering) -> int:
        """Whoever lacks a slot that goes can be given the state behind it, and starts over there.

        Nothing must be lost by that. So slots are kept as long as anything that they put in order;
        commands are in the state.
        """
        covered = group.transfer.covered if group.transfer is not None else 0
        oldest = min(group.consensus.slot - self._cluster.slots_kept, covered + 1)
        if oldest <= self.store.slots(number)[0]:
            return max(1, oldest)
        times = [
            self.store.first_time_us(partition)
            for partition in self.store.partitions()
            if (topic := ordering.topics.get(partition.topic)) is not None
            and topic.id != CONTROL_TOPIC_ID
            and group_of(topic.contract) == number
        ]
        kept = [time_us for time_us in times if time_us is not None]
        return min(oldest, self.store.slot_at(number, min(kept))) if kept else oldest

    def _keep_from(
        self, topic: Topic, partition: Partition, group: Group | None, missing: int | None
    ) -> int:
        contract = topic.contract
        offset, _ = self.store.bounds(partition)
        # A clock that is wrong must not make anything look old: f + 1 of them have to say so.
        if contract.retention_us and group is not None and group.clocks.is_sure:
            oldest_us = group.clocks.time_of_day_us() - contract.retention_us
            offset = max(offset, self.store.offset_at(partition, oldest_us))
        if contract.retention_bytes:
            bytes_max = contract.retention_bytes
            offset = max(offset, self._surplus(partition, bytes_max, group, missing))
        if topic.id == CONTROL_TOPIC_ID and group is not None:
            # A restart carries out again what the last snapshot does not have.
            offset = min(offset, group.commands.needed_from)
        return offset

    def _surplus(
        self, partition: Partition, bytes_max: int, group: Group | None, missing: int | None
    ) -> int:
        """Up to where a partition goes that is limited in bytes.

        Large batches are with few replicas. To the others they count for what they take there,
        which is less: so they go later than where they are, but they go. What is missing and may
        yet come is not taken for such a batch.
        """
        held = self.store.surplus(partition, bytes_max)
        if group is None or group.roster.stores(partition):
            return held
        all_of_it = self.store.surplus(partition, bytes_max, absent_bytes=ABSENT_BYTES)
        return max(held, all_of_it if missing is None else min(all_of_it, missing))

    def _clean(self) -> None:
        try:
            cleaned = self.store.clean()
        except DiskFullError as error:
            _log.warning("nothing can be cleaned: %s", error)
            return
        if cleaned.segments_deleted:
            _log.info("%s segments deleted", cleaned.segments_deleted)

    def _wall_us(self, _: int) -> int:
        return time.time_ns() // 1000 + self.clock_ahead_us


def _evidence(group: Group) -> list[str]:
    """What is proved of stores and producers, as much of it as fits."""
    shown: list[str] = []
    stores, producers = group.challenges.evidence, group.challenges.contradictions
    for text in (*map(render, stores.values()), *map(render, producers.values())):
        if sum(map(len, shown)) + len(text) <= EVIDENCE_CHARACTERS_SHOWN:
            shown.append(text)
    return shown


def _shown_groups(control: Control) -> list[str]:
    """At most `GROUPS_SHOWN`, of each party as many."""
    parties = sorted({owner_of(name) for name in control.state.groups})
    each = GROUPS_SHOWN // len(parties) if parties else 0
    return [name for party in parties for name in control.groups.of_party(party)[: max(1, each)]]


def _groups(broker: Broker) -> Mapping[int, Group]:
    return broker.ordering.groups if broker.ordering is not None else {}
