"""Auditing: the whole history of a cluster, from every replica, computed again and compared.

An auditor is a client. First it walks the slots of each group at each replica on its own, which
gives the order (`protocol/auditing/history.py`). Then it reads the payloads of each partition, also
from every replica that has them (`protocol/auditing/payloads.py`). What replicas say is compared
with what a quorum signed and with each other, and never believed.

What is audited is what was decided when the audit began. Whoever does not answer is named, and
misses in the result; as long as n - f replicas of a group tell their history, that is enough.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from quorate.client.session import ClusterLike, IdentityLike, Session
from quorate.core.cluster import Client, Cluster
from quorate.core.contract import EVERYONE
from quorate.core.control import CONTROL_TOPIC
from quorate.core.errors import ConfigError, QuorumError
from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.core.ordering import (
    BEGIN_US,
    END_US,
    Absent,
    AskReceipts,
    Chained,
    Entries,
    Follow,
    Locate,
    Located,
    Partition,
    Receipts,
    Refusal,
    Walk,
    Walked,
    Wants,
)
from quorate.crypto.checkpoint import Cosigner
from quorate.protocol.auditing.findings import Findings
from quorate.protocol.auditing.history import History, Ledger, Orderers, credible_end
from quorate.protocol.auditing.payloads import Holding, KnownKeys, Missing, PartitionAudit
from quorate.protocol.auditing.ranges import Judgement, judge
from quorate.protocol.listener import Listener
from quorate.protocol.ordering.placement import GroupKind, group_of, rules_of
from quorate.protocol.topic import Topic
from quorate.runtime.signing import origin_of
from quorate.runtime.topics import topics_of

# Nobody was at the address of a replica for so long: it is down.
UNREACHED_S = 1.0
LOOK_EVERY_S = 0.1
ASK_AGAIN_S = 2.0
# A replica that brings nothing new for so long does not answer.
SILENT_S = 15.0
# Nobody may have a receipt, and whoever is about to get a batch from others does not refuse it.
RECEIPTS_S = 2.0
# So many partitions are read from a replica at a time.
PARTITIONS_AT_ONCE = 4


@dataclass(slots=True)
class Progress:
    """How far an audit is. Totals grow while it is found out what there is."""

    doing: str = "connecting"
    slots: int = 0
    slots_total: int = 0
    offsets: int = 0
    offsets_total: int = 0
    checked_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What was found of one group's order."""

    name: str
    replicas: tuple[str, ...]
    agreeing: tuple[str, ...]
    # Those whose slots were walked to the end.
    walked: tuple[str, ...]
    # Whether these are as many as it takes.
    is_finished: bool
    first_slot: int
    last_slot: int
    batches: int
    signed: int
    checkpoints: int


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What was found of one partition's payloads; none were read where we may not."""

    topic: str
    partition: int
    validated: bool
    is_read: bool
    # From which offset on its order is known, and from which one payloads were seen. Batches and
    # events are those that were seen.
    first: int
    end: int
    audited_from: int | None
    batches: int
    events: int
    # Of these, those that their producers signed.
    signed_events: int
    payload_bytes: int
    producers: tuple[str, ...]
    # By replica: how many batches it brought, and how many it does not have.
    brought: Mapping[str, int]
    lacking: Mapping[str, int]
    undecided: tuple[Missing, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an audit."""

    cluster: str
    groups: tuple[GroupReport, ...]
    partitions: tuple[PartitionReport, ...]
    findings: Findings
    # Who did not answer, or not to the end, and why.
    silent: Mapping[str, str]
    notes: tuple[str, ...]
    checked_bytes: int
    seconds: float
    processor_s: float

    @property
    def payload_bytes(self) -> int:
        return sum(partition.payload_bytes for partition in self.partitions)

    @property
    def is_finished(self) -> bool:
        """Whether enough replicas told their history, and all payloads could be judged."""
        is_judged = not any(partition.undecided for partition in self.partitions)
        return is_judged and all(group.is_finished for group in self.groups)


@dataclass(slots=True)
class _Reading:
    """A partition that is read from one replica now."""

    audit: PartitionAudit
    holding: Holding
    # Up to where the replica has come, it says. It may be about to come further.
    decided: int
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    moved_s: float = field(default_factory=time.monotonic)


class _Waiting:
    """A batch whose receipts are asked for, and then the store that does not have it."""

    def __init__(self, asked: Iterable[NodeId], is_wanted: Callable[[Receipts], bool]) -> None:
        loop = asyncio.get_running_loop()
        self.store: NodeId | None = None
        # None when all have answered, and nobody has what is wanted.
        self.receipts: asyncio.Future[Receipts | None] = loop.create_future()
        self.refusal: asyncio.Future[Refusal] = loop.create_future()
        self._asked = set(asked)
        self._is_wanted = is_wanted

    def hear(self, sender: NodeId, message: Receipts | Refusal) -> None:
        if isinstance(message, Refusal):
            if sender == self.store and not self.refusal.done():
                self.refusal.set_result(message)
            return
        self._asked.discard(sender)
        is_wanted = self._is_wanted(message)
        if not self.receipts.done() and (is_wanted or not self._asked):
            self.receipts.set_result(message if is_wanted else None)


class Auditor(Session):
    """Audits a cluster.

    Slots are told to operators, and to whoever may read all topics of their group; payloads to
    those only who may subscribe to the topic.
    """

    def __init__(
        self,
        cluster: ClusterLike,
        identity: IdentityLike,
        *,
        topics: Iterable[str] = (),
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        """All log topics are audited, or those that are named."""
        super().__init__(cluster, identity)
        self._wanted = tuple(topics)
        self._on_progress = on_progress
        self._progress = Progress()
        self._findings = Findings()
        self._notes: dict[str, None] = {}
        self._silent: dict[NodeId, str] = {}
        self._numbers = count(1)
        self._words: dict[tuple[NodeId, int], asyncio.Future[Walked | Located]] = {}
        self._readings: dict[tuple[NodeId, Partition], _Reading] = {}
        self._waiting: dict[tuple[Partition, int], _Waiting] = {}
        control = next((t for t in topics_of(self.cluster) if t.name == CONTROL_TOPIC), None)
        self._machine = Listener(self.node, control, self._hear)

    async def audit(self) -> Report:
        """Walk, read and judge all of it."""
        began_s, spent_s = time.monotonic(), time.process_time()
        founding = await self.prepare()
        topics = self.audited()
        keys = KnownKeys.of(self.cluster, *founding)
        groups: list[GroupReport] = []
        ledgers: dict[Partition, Ledger] = {}
        for orderers in self.groups(topics):
            history = History(orderers, self._findings)
            await self.walk(history)
            judgement = judge(history)
            groups.append(self._group_report(history, judgement))
            if judgement.trusted is not None:
                ledgers |= judgement.trusted.ledgers()
        audits = [
            self.partition_audit(topic, ledgers[partition], keys, self._findings)
            for topic in topics
            for number in range(topic.contract.partitions)
            if (partition := Partition(topic.id, number)) in ledgers
        ]
        # Commands first: they tell whose key is whose.
        for is_control in (True, False):
            part = [each for each in audits if (each.topic.name == CONTROL_TOPIC) is is_control]
            await self.read([each for each in part if self.may_read(each.topic)])
            if founding and is_control and any(each.is_whole for each in part):
                keys.are_all = True
        return Report(
            self.cluster.name,
            tuple(groups),
            tuple(map(self._partition_report, audits)),
            self._findings,
            self.silent,
            tuple(self._notes),
            sum(audit.checked_bytes for audit in audits),
            time.monotonic() - began_s,
            time.process_time() - spent_s,
        )

    # Parts, for those who share an audit

    async def prepare(self) -> list[Cluster]:
        """Learn what the cluster is, and connect to all who are there; how it began, if known."""
        founding = await self._learn_the_cluster()
        # What cannot be audited is said before anybody is waited for.
        self.audited()
        await self._connect()
        return founding

    @property
    def silent(self) -> dict[str, str]:
        """Who did not answer, or not to the end, and why."""
        return {self.cluster.name_of(node): why for node, why in self._silent.items()}

    @property
    def notes(self) -> list[str]:
        return [*self._notes]

    async def survey(self, orderers: Orderers) -> dict[NodeId, Walked]:
        """The first word of each replica of a group that answers, those that begin earliest first.

        It says which slots there are, and has the last checkpoints.
        """
        return dict(await self._first_words(orderers, 0))

    async def walk(self, history: History, slots: range | None = None) -> None:
        """The slots of each replica of a group, or some of them."""
        self._tell("walking the order")
        orderers = history.orderers
        firsts = await self._first_words(orderers, 0 if slots is None else slots.start)
        if slots is None:
            ends = [walked.end for node, walked in firsts if node in orderers.members]
            end = credible_end(ends, orderers.one_correct)
        else:
            end = slots.stop
            # Some have forgotten these slots, and some have yet to hear of them.
            firsts = [each for each in firsts if each[1].slot < min(each[1].end, end)]
        self._progress.slots_total += sum(len(range(w.slot, min(w.end, end))) for _, w in firsts)
        for node, walked in firsts:
            history.begin(node, walked, end)
            await self._walk_on(history, node)

    async def read(self, audits: list[PartitionAudit]) -> None:
        """All payloads of these, from every replica; and stores are held to their receipts."""
        self._tell("reading payloads")
        nodes = dict.fromkeys(node for audit in audits for node in audit.sources)
        await asyncio.gather(*(self._read_from(node, audits) for node in nodes))
        # Whoever signed for a batch and did not give it shall sign that, too.
        self._tell("asking for receipts")
        await asyncio.gather(*map(self._challenge_stores, audits))

    # What there is

    async def _learn_the_cluster(self) -> list[Cluster]:
        """What the cluster is now, and how it began, if replicas say so."""
        if self.cluster.control is None:
            return []
        try:
            await self.learn_topology()
            return [await self.founding()]
        except QuorumError as error:
            self._notes[f"the cluster is taken to be what its file says: {error}"] = None
            return []

    def audited(self) -> list[Topic]:
        """The topics that are audited; commands too, which say whose key is whose."""
        logs = {topic.name: topic for topic in topics_of(self.cluster) if topic.contract.is_log}
        for name in self._wanted:
            if name not in logs:
                self.cluster.contract(name)
                known = ", ".join(each for each in logs if each != CONTROL_TOPIC) or "none"
                raise ConfigError(
                    f"'{name}' is no log topic, and has no history; log topics are {known}"
                )
        chosen = [logs[name] for name in dict.fromkeys(self._wanted)] or list(logs.values())
        control = logs.get(CONTROL_TOPIC)
        needs_keys = any(topic.contract.validated for topic in chosen)
        if control is not None and needs_keys and control not in chosen:
            chosen.append(control)
        for topic in chosen:
            if not self.may_read(topic):
                self._notes[
                    f"the payloads of '{topic.name}' were not read: {self.member.name} may not "
                    f"subscribe to it"
                ] = None
        return chosen

    def may_read(self, topic: Topic) -> bool:
        allowed = topic.contract.subscribe
        return allowed == EVERYONE or self.member.name in allowed

    def groups(self, topics: Iterable[Topic]) -> list[Orderers]:
        """The groups that order these topics."""
        found: dict[GroupKind, Orderers] = {}
        for topic in topics:
            kind = group_of(topic.contract)
            if kind not in found:
                self._refuse_if_not_told(kind)
                replicas = self.cluster.replicas
                found[kind] = Orderers(
                    self.cluster.full_name,
                    kind,
                    kind.name.lower(),
                    topic.members,
                    rules_of(kind, topic.quorum).quorum,
                    topic.quorum.one_correct,
                    origin_of(self.cluster, kind),
                    {each.number: Cosigner(each.name, each.sign_key) for each in replicas},
                    self.cluster.name_of,
                    topic.quorum.reachable,
                    self._followers(kind),
                )
        return list(found.values())

    def _followers(self, kind: GroupKind) -> tuple[NodeId, ...]:
        """Replicas that were added later follow the group that orders commands."""
        control = self.cluster.control
        if control is None or group_of(control) is not kind:
            return ()
        return tuple(range(self.cluster.orderers, len(self.cluster.replicas)))

    def _refuse_if_not_told(self, kind: GroupKind) -> None:
        """Replicas would not answer, and nobody would know why."""
        ordered = [t for t in topics_of(self.cluster) if t.contract.is_log]
        closed = [t for t in ordered if group_of(t.contract) is kind and not self.may_read(t)]
        member = self.cluster.named(self.member.name)
        if closed and not (isinstance(member, Client) and member.operator):
            raise ConfigError(
                f"{member.name} may not audit the {kind.name.lower()} group, which orders "
                f"'{closed[0].name}': that is for operators, and for those who may subscribe to "
                f"all of its topics"
            )

    def partition_audit(
        self, topic: Topic, ledger: Ledger, keys: KnownKeys, findings: Findings
    ) -> PartitionAudit:
        followers = self._followers(group_of(topic.contract))
        return PartitionAudit(topic, ledger, keys, findings, self.cluster.name_of, followers)

    async def _connect(self) -> None:
        """Wait for all replicas; for one that nobody finds at its address, a little only."""
        self._tell("connecting")
        nodes = [replica.number for replica in self.cluster.replicas]
        links = {asyncio.ensure_future(self.driver.until_connected(node)): node for node in nodes}
        pending = set(links)
        began_s = time.monotonic()
        while pending and (waited_s := time.monotonic() - began_s) < SILENT_S:
            is_in_vain = all(self.transport.why_unreached(links[link]) for link in pending)
            if is_in_vain and waited_s >= UNREACHED_S:
                break
            _, pending = await asyncio.wait(pending, timeout=LOOK_EVERY_S)
        for link, node in links.items():
            if link in pending:
                link.cancel()
                self._give_up(node, self.transport.why_down(node) or "it cannot be reached")

    # Walking

    async def _first_words(self, orderers: Orderers, slot: int) -> list[tuple[NodeId, Walked]]:
        """Those first that begin earliest: others join their branch."""
        everybody = (*orderers.members, *orderers.followers)
        there = [node for node in everybody if node not in self._silent]
        asked = await asyncio.gather(*(self._walk(node, orderers.group, slot) for node in there))
        firsts = [
            (node, walked)
            for node, walked in zip(there, asked, strict=True)
            if isinstance(walked, Walked)
        ]
        return sorted(firsts, key=lambda each: each[1].slot)

    async def _walk_on(self, history: History, node: NodeId) -> None:
        walker = history.walkers.get(node)
        while walker is not None and not walker.is_done:
            slot = walker.slot
            walked = await self._walk(node, history.orderers.group, slot)
            if not isinstance(walked, Walked):
                return
            history.take(node, walked)
            self._progress.slots += walker.slot - slot
            self._on_progress(self._progress)
            if walker.slot == slot and not walker.is_broken:
                self._give_up(node, f"it does not tell slot {slot}, though it has come further")
                return

    async def _walk(self, node: NodeId, group: int, slot: int) -> Walked | Located | None:
        number = next(self._numbers)
        return await self._ask(node, Walk(group, number, slot), number)

    async def _ask(self, node: NodeId, question: Message, number: int) -> Walked | Located | None:
        """The answer, if one comes; whoever does not answer is not asked again."""
        future = asyncio.get_running_loop().create_future()
        self._words[node, number] = future
        try:
            async with asyncio.timeout(SILENT_S):
                while node not in self._silent:
                    await self.driver.until_connected(node)
                    self.driver.send(node, question)
                    with suppress(TimeoutError):
                        return await asyncio.wait_for(asyncio.shield(future), ASK_AGAIN_S)
        except TimeoutError:
            why = self.transport.why_down(node) or f"no answer within {SILENT_S:g} s"
            self._give_up(node, why)
        finally:
            del self._words[node, number]
        return None

    def _group_report(self, history: History, judgement: Judgement) -> GroupReport:
        orderers, trusted = history.orderers, judgement.trusted
        self._notes |= dict.fromkeys(judgement.notes)
        walked = [node for node, walker in history.walkers.items() if walker.is_done]
        return GroupReport(
            orderers.name,
            self._names((*orderers.members, *orderers.followers)),
            self._names(sorted(judgement.agreeing)),
            self._names(sorted(walked)),
            sum(node in orderers.members for node in walked) >= orderers.needed,
            0 if trusted is None else trusted.start,
            0 if trusted is None else trusted.end - 1,
            0 if trusted is None else trusted.tree.size,
            judgement.signed,
            judgement.checkpoints,
        )

    # Reading

    async def _read_from(self, node: NodeId, audits: list[PartitionAudit]) -> None:
        waiting = iter([audit for audit in audits if node in audit.sources])

        async def read_some() -> None:
            for audit in waiting:
                if node not in self._silent:
                    await self._read(node, audit)

        await asyncio.gather(*(read_some() for _ in range(PARTITIONS_AT_ONCE)))

    async def _read(self, node: NodeId, audit: PartitionAudit) -> None:
        ledger = audit.ledger
        begin = await self._locate(node, ledger.partition, BEGIN_US)
        end = None if begin is None else await self._locate(node, ledger.partition, END_US)
        if begin is None or end is None:
            return
        holding = audit.begin(node, begin)
        self._progress.offsets_total += holding.end - holding.start
        reading = self._readings[node, ledger.partition] = _Reading(audit, holding, end)
        try:
            while not holding.is_done and node not in self._silent:
                await self._follow(node, reading)
        finally:
            del self._readings[node, ledger.partition]

    async def _follow(self, node: NodeId, reading: _Reading) -> None:
        """Ask for what comes next, and wait until there is something to ask again for."""
        holding, partition = reading.holding, reading.audit.ledger.partition
        number = next(self._numbers)
        reading.moved.clear()
        self.driver.send(node, Follow(*partition, number, holding.cursor, holding.end, Wants.ALL))
        while not reading.moved.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(reading.moved.wait(), ASK_AGAIN_S)
            still_s = time.monotonic() - reading.moved_s
            if still_s >= ASK_AGAIN_S and holding.cursor >= reading.decided:
                # It lags behind, and what it has was read.
                holding.end = holding.cursor
                return
            if still_s >= SILENT_S:
                why = self.transport.why_down(node)
                at = f"offset {holding.cursor} of partition {partition.number} of"
                self._give_up(node, why or f"it does not send {at} '{reading.audit.topic.name}'")
                return
            if still_s >= ASK_AGAIN_S:
                return

    async def _locate(self, node: NodeId, partition: Partition, time_us: int) -> int | None:
        number = next(self._numbers)
        located = await self._ask(node, Locate(*partition, number, time_us), number)
        return located.offset if isinstance(located, Located) else None

    # Holding stores to their receipts

    async def _challenge_stores(self, audit: PartitionAudit) -> None:
        proved: set[NodeId] = set()
        for store, offset in audit.suspects():
            is_needed = store not in self._silent and store not in proved
            if is_needed and await self._has_refused(audit, store, offset):
                proved.add(store)

    async def _has_refused(self, audit: PartitionAudit, store: NodeId, offset: int) -> bool:
        """One that is about to get the batch from others says nothing, and is left alone."""
        place = audit.ledger.partition, offset
        witnesses = [n for n in audit.witnesses(offset) if n not in (store, *self._silent)]
        waiting = self._waiting[place] = _Waiting(
            witnesses, lambda said: audit.has_signed(store, said)
        )
        try:
            async with asyncio.timeout(RECEIPTS_S):
                for node in witnesses:
                    self.driver.send(node, AskReceipts(*audit.ledger.partition, offset))
                receipts = await waiting.receipts if witnesses else None
                if receipts is None:
                    return False
                waiting.store = store
                self.driver.send(store, audit.challenge(offset))
                audit.refused(store, receipts, await waiting.refusal)
                return True
        except TimeoutError:
            return False
        finally:
            del self._waiting[place]

    # What replicas say

    def _hear(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, Walked | Located):
            future = self._words.get((sender, message.number))
            if future is not None and not future.done():
                future.set_result(message)
        elif isinstance(message, Receipts | Refusal):
            place = message.partition_of, message.offset
            if place in self._waiting:
                self._waiting[place].hear(sender, message)
        elif isinstance(message, Entries | Absent | Chained):
            partition = message.partition_of
            reading = self._readings.get((sender, partition))
            if reading is not None:
                self._hear_of(sender, message, reading)

    def _hear_of(
        self, sender: NodeId, message: Entries | Absent | Chained, reading: _Reading
    ) -> None:
        audit, holding, before = reading.audit, reading.holding, reading.holding.cursor
        if isinstance(message, Chained):
            holding.kept_from = max(holding.kept_from, audit.ledger.floor(message.start))
            return
        if isinstance(message, Entries):
            audit.check(sender, message)
        elif message.offset == before and not holding.is_done:
            audit.lack(sender, message)
        if holding.cursor == before:
            # Said twice, since we asked twice.
            return
        if isinstance(message, Entries):
            self._progress.checked_bytes += sum(map(len, message.payloads))
        self._progress.offsets += holding.cursor - before
        reading.moved_s = time.monotonic()
        if holding.is_done or isinstance(message, Absent):
            reading.moved.set()
        self._on_progress(self._progress)

    def _give_up(self, node: NodeId, why: str) -> None:
        self._silent.setdefault(node, why)

    def _partition_report(self, audit: PartitionAudit) -> PartitionReport:
        topic, ledger, is_read = audit.topic, audit.ledger, self.may_read(audit.topic)
        silent = sum(node not in audit.holdings for node in topic.members)
        undecided = audit.judge(silent) if is_read else []
        self._notes |= audit.notes
        held = {self.cluster.name_of(node): each for node, each in audit.holdings.items()}
        return PartitionReport(
            topic.name,
            ledger.partition.number,
            topic.contract.validated,
            is_read,
            ledger.first,
            ledger.end,
            audit.audited_from,
            audit.batches,
            audit.events,
            audit.signed_events,
            audit.payload_bytes,
            self._names(audit.producers),
            {name: holding.batches for name, holding in held.items()},
            {name: holding.lacking for name, holding in held.items()},
            tuple(undecided),
        )

    def _names(self, nodes: Iterable[NodeId]) -> tuple[str, ...]:
        return tuple(map(self.cluster.name_of, nodes))

    def _tell(self, doing: str) -> None:
        self._progress.doing = doing
        self._on_progress(self._progress)
