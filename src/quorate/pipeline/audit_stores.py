"""The audit of every replica of a cluster on Spark: what `quorate audit` does, shared by many.

The driver asks replicas how far they have come, and for their checkpoints. Then, in two passes:

1. Each task walks some ranges of slots at all replicas, one replica after the other, and compares
   them (`client/audit.py`, `protocol/auditing/history.py`). What is left of a range is small, and
   the driver puts it together (`protocol/auditing/ranges.py`): which history is right, and who
   tells another one. Lines of producers are followed from range to range, by producer.
2. What the right history says of partitions is brought together in stretches. Each task reads some
   of them from every replica on its own, and holds each copy against what was agreed
   (`protocol/auditing/payloads.py`). The commands of the cluster come first: they tell whose key is
   whose.

Descriptors, spans and payloads stay with the tasks, and go from the first pass to the second
through Spark. A task holds one range, or one stretch, at a time, so that memory does not grow with
the history; the driver has a few hundred bytes for each range and each replica in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import StorageLevel

from quorate.client.audit import Auditor
from quorate.core.cluster import Cluster
from quorate.core.control import CONTROL_TOPIC, CONTROL_TOPIC_ID
from quorate.core.ids import NodeId
from quorate.core.ordering import Partition
from quorate.crypto.checkpoint import Head
from quorate.pipeline.piles import gathered, only
from quorate.pipeline.reports import AuditReport, Checked, summed
from quorate.protocol.auditing.findings import Findings
from quorate.protocol.auditing.history import (
    FAULTS_MAX,
    FIRST_SLOT,
    Fault,
    History,
    Ledger,
    Run,
    accusation,
    credible_end,
)
from quorate.protocol.auditing.payloads import KnownKeys, PartitionAudit
from quorate.protocol.auditing.ranges import (
    Assembly,
    BranchId,
    LinePiece,
    Whole,
    broken_lines,
    extracts,
    line_pieces,
)
from quorate.runtime.loop import loop_factory

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

# So long nobody may be there at any address.
REACH_S: Final = 5.0
# So many ranges or stretches share a task, and the connections that it makes.
PER_TASK: Final = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """What is audited, as whom, and in which parts."""

    cluster: str
    identity: str
    topics: tuple[str, ...] = ()
    slots_per_range: int = 16_384
    events_per_stretch: int = 65_536


class Slots(NamedTuple):
    """One range of the slots of one group."""

    group: int
    start: int
    stop: int


class Stretch(NamedTuple):
    """The batches of a partition that begin in some of its offsets, which are read together."""

    topic: int
    partition: int
    number: int


@dataclass(slots=True)
class _Tally:
    """What one task has checked, and whom it could not ask."""

    parties: dict[str, Checked] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    undecided: int = 0
    # Of commands: how many offsets their batches cover that were read, and the keys that they
    # asked for.
    commands: int = 0
    keys: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class _Survey:
    """What the driver knows before anything is walked."""

    cluster: Cluster
    founding: list[Cluster]
    # By group: the checkpoints that were shown, the slots that there are, and who said so.
    histories: dict[int, History]
    slots: dict[int, range]
    answered: dict[int, list[NodeId]]
    topics: set[int]
    notes: list[str]
    silent: dict[str, str]

    def ranges(self, size: int) -> list[Slots]:
        return [
            Slots(group, start, min(start + size, slots.stop))
            for group, slots in self.slots.items()
            for start in slots[::size]
        ]

    def heads(self) -> dict[int, list[Head]]:
        return {
            group: [signed.checkpoint.head for signed in history.signed]
            for group, history in self.histories.items()
        }


def audit_stores(spark: SparkSession, extent: Extent) -> AuditReport:
    """The audit of every replica of a cluster."""
    found = Findings()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        survey = runner.run(_surveyed(extent, found))
    context = spark.sparkContext
    ranges, heads = survey.ranges(extent.slots_per_range), survey.heads()
    parts = context.parallelize(ranges, _tasks(len(ranges), context.defaultParallelism))
    facts = parts.mapPartitions(lambda part: _walk(extent, heads, part))
    facts = facts.persist(StorageLevel.DISK_ONLY)
    try:
        order = _Order(survey, facts)
        order.judge(found)
        tallies: list[_Tally] = only(facts, "tally").collect()
        keys = KnownKeys.of(survey.cluster, *survey.founding)
        commands = survey.topics & {CONTROL_TOPIC_ID}
        for topics in (commands, survey.topics - commands):
            stretches = order.stretches(topics, extent.events_per_stretch)
            looked = stretches.mapPartitions(partial(_read, extent, keys))
            tallies += _taken(looked, found)
            keys = _learned(keys, survey, tallies, order.commands_end)
    finally:
        facts.unpersist()
    return _report(survey, order, found, tallies)


# On the driver


async def _surveyed(extent: Extent, findings: Findings) -> _Survey:
    async with Auditor(extent.cluster, extent.identity, topics=extent.topics) as auditor:
        await auditor.reach(REACH_S)
        founding = await auditor.prepare()
        topics = auditor.audited()
        histories: dict[int, History] = {}
        slots: dict[int, range] = {}
        answered: dict[int, list[NodeId]] = {}
        for orderers in auditor.groups(topics):
            history = histories[orderers.group] = History(orderers, findings)
            words = await auditor.survey(orderers)
            answered[orderers.group] = [*words]
            for node, walked in words.items():
                history.show(node, walked.checkpoints)
            ends = [each.end for node, each in words.items() if node in orderers.members]
            start = min((each.slot for each in words.values()), default=FIRST_SLOT)
            end = credible_end(ends, orderers.one_correct)
            slots[orderers.group] = range(max(start, FIRST_SLOT), end)
        return _Survey(
            auditor.cluster, founding, histories, slots, answered, {topic.id for topic in topics},
            auditor.notes, auditor.silent,
        )  # fmt: skip


class _Order:
    """The order of all groups, put together from what is left of their ranges."""

    def __init__(self, survey: _Survey, facts: RDD[tuple[str, Any]]) -> None:
        self._survey, self._facts = survey, facts
        left = only(facts, "extract").collect()
        self._assemblies = {
            group: Assembly(
                history.orderers, [each for each in left if each.id.group == group], history.signed
            )
            for group, history in survey.histories.items()
        }
        self.wholes: dict[int, Whole] = {}

    def judge(self, findings: Findings) -> None:
        """Which branches are right, and all that was found about the others."""
        for pile in gathered(only(self._facts, "pile")):
            findings.add_pile(pile)
        shown = only(self._facts, "shown").distinct().collect()
        for group, text, node in sorted(shown):
            self._survey.histories[group].show(node, [text])
        for group, history in self._survey.histories.items():
            history.find_two_heads()
            self.wholes[group] = self._assemblies[group].judge(findings)
        for (group, node), faults in sorted(self._broken_lines().items()):
            orderers = self._survey.histories[group].orderers
            for slot, sentence in faults:
                findings.add(accusation(orderers, node, "broken-history", slot, sentence))

    def stretches(self, topics: Iterable[int], size: int) -> RDD[tuple[Stretch, Any]]:
        """What the right history says of these topics, in stretches of so many offsets."""
        trusted = {each.id for whole in self.wholes.values() for each in whole.trusted}
        wanted = frozenset(topics)

        def in_stretch(of: tuple[BranchId, Partition, Run, bytes]) -> tuple[Stretch, Any]:
            _, partition, run, descriptors = of
            return Stretch(*partition, run.offset // size), (run, descriptors)

        runs = only(self._facts, "run")
        runs = runs.filter(lambda run: run[0] in trusted and run[1].topic in wanted)
        return runs.map(in_stretch).groupByKey()

    @property
    def commands_end(self) -> int | None:
        """The offset after the last command, if the batches of all are known."""
        bounds = [
            each.bounds[partition]
            for whole in self.wholes.values()
            for each in whole.trusted
            for partition in each.bounds
            if partition.topic == CONTROL_TOPIC_ID
        ]
        return bounds[-1][1] if bounds and bounds[0][0] == 0 else None

    def is_finished(self, silent: Iterable[str]) -> bool:
        """Whether as many as it takes have told their history to the end."""
        gone = {*silent}
        for group, history in self._survey.histories.items():
            orderers = history.orderers
            told = [n for n in self._survey.answered[group] if orderers.name_of(n) not in gone]
            if orderers.voices(told) < orderers.needed:
                return False
        return True

    def sentences(self) -> tuple[str, ...]:
        """How much of each order there is, up to where a quorum signed it, and who tells it."""
        found = []
        for group, whole in self.wholes.items():
            orderers = self._survey.histories[group].orderers
            everybody = (*orderers.members, *orderers.followers)
            if whole.trusted:
                found.append(
                    f"Order of the {orderers.name} group: {whole.batches:,} batches, a quorum "
                    f"signed {whole.signed:,}. {len(whole.agreeing)} of {len(everybody)} replicas "
                    f"tell it: {orderers.names(whole.agreeing)}."
                )
        return tuple(found)

    def _broken_lines(self) -> dict[tuple[int, NodeId], list[Fault]]:
        paths = {
            group: {node: [each.id for each in found.path(node)] for node in found.nodes}
            for group, found in self._assemblies.items()
        }
        wholes = {group: found.is_whole for group, found in self._assemblies.items()}

        def follow(of: tuple[tuple[int, int], Iterable[LinePiece]]) -> Iterator[Any]:
            group, pieces = of[0][0], sorted(of[1])
            for node, fault in broken_lines(pieces, paths[group], is_whole=wholes[group]):
                yield (group, node), [fault]

        pieces = only(self._facts, "lines").groupByKey()
        found = pieces.flatMap(follow)
        return dict(found.reduceByKey(lambda a, b: sorted(a + b)[:FAULTS_MAX]).collect())


def _taken(looked: RDD[tuple[str, Any]], findings: Findings) -> list[_Tally]:
    """What a pass over payloads found, and what it checked."""
    looked = looked.persist(StorageLevel.DISK_ONLY)
    try:
        for pile in gathered(only(looked, "pile")):
            findings.add_pile(pile)
        return only(looked, "tally").collect()
    finally:
        looked.unpersist()


def _learned(
    keys: KnownKeys, survey: _Survey, tallies: Iterable[_Tally], commands_end: int | None
) -> KnownKeys:
    """The keys that are known after the commands were read."""
    tallies = [*tallies]
    asked_for: dict[int, list[bytes]] = {}
    for member, key in (each for tally in tallies for each in tally.keys):
        asked_for.setdefault(member, []).append(key)
    commands = sum(tally.commands for tally in tallies)
    are_all = bool(survey.founding) and commands == commands_end
    return replace(keys, asked_for=asked_for, are_all=are_all)


def _report(
    survey: _Survey, order: _Order, findings: Findings, tallies: list[_Tally]
) -> AuditReport:
    silent = dict(survey.silent)
    notes = dict.fromkeys(survey.notes)
    for group, whole in order.wholes.items():
        notes |= dict.fromkeys([*survey.histories[group].notes, *whole.notes])
    for tally in tallies:
        silent |= tally.silent
        notes |= tally.notes
    replicas = {each.name: Checked("replica") for each in survey.cluster.replicas}
    producers = summed(each for tally in tallies for each in tally.parties.items())
    return AuditReport(
        f"cluster {survey.cluster.name}",
        summed([*replicas.items(), *sorted(producers.items())]),
        findings,
        tuple(notes),
        silent,
        is_finished=order.is_finished(silent) and not any(tally.undecided for tally in tallies),
        order=order.sentences(),
    )


def _tasks(parts: int, cores: int) -> int:
    return max(1, -(-parts // PER_TASK), min(parts, cores))


# On executors


def _walk(
    extent: Extent, heads: Mapping[int, list[Head]], part: Iterable[Slots]
) -> Iterator[tuple[str, Any]]:
    """What is left of some ranges, and all that the second pass needs of them."""
    tally, findings = _Tally(), Findings()
    with _auditing(extent) as (runner, auditor):
        groups = {each.group: each for each in auditor.groups(auditor.audited())}
        for group, start, stop in part:
            history = History(groups[group], findings)
            runner.run(auditor.walk(history, range(start, stop)))
            yield from (("extract", each) for each in extracts(history, start, heads[group]))
            for member, piece in line_pieces(history, start):
                yield "lines", ((group, member), piece)
            for number, branch in enumerate(history.branches):
                branch_id = BranchId(group, start, number)
                yield from (("run", (branch_id, *each)) for each in branch.runs())
            for text, nodes in history.shown.items():
                yield from (("shown", (group, text, node)) for node in nodes)
        tally.silent, tally.notes = auditor.silent, dict.fromkeys(auditor.notes)
    yield "tally", tally
    yield from (("pile", pile) for pile in findings)


def _read(
    extent: Extent,
    keys: KnownKeys,
    part: Iterable[tuple[Stretch, Iterable[tuple[Run, bytes]]]],
) -> Iterator[tuple[str, Any]]:
    """What every replica has of some stretches, against what was agreed."""
    tally, findings = _Tally(), Findings()
    ledgers = map(_ledger, part)
    first = next(ledgers, None)
    if first is None:
        # Nobody is asked for nothing.
        return
    with _auditing(extent) as (runner, auditor):
        topics = {topic.id: topic for topic in auditor.audited()}
        for ledger in chain([first], ledgers):
            topic = topics[ledger.partition.topic]
            if not auditor.may_read(topic):
                continue
            audit = auditor.partition_audit(topic, ledger, keys, findings)
            runner.run(auditor.read([audit]))
            _count(tally, audit, auditor.cluster)
        tally.silent = auditor.silent
        tally.notes |= dict.fromkeys(auditor.notes)
    tally.keys = [(who, key) for who, asked in keys.asked_for.items() for key in asked]
    yield "tally", tally
    yield from (("pile", pile) for pile in findings)


def _ledger(of: tuple[Stretch, Iterable[tuple[Run, bytes]]]) -> Ledger:
    """What was agreed to stand in one stretch."""
    (topic, partition, _), found = of
    runs = sorted(found)
    ledger = Ledger(Partition(topic, partition), runs[0][0].offset)
    for run, descriptors in runs:
        if run.offset == ledger.end:
            ledger.add(run, descriptors)
    return ledger


def _count(tally: _Tally, audit: PartitionAudit, cluster: Cluster) -> None:
    """Judge a stretch that was read, and count what was checked in it."""
    name_of, topic = cluster.name_of, audit.topic
    tally.undecided += len(audit.judge(sum(n not in audit.holdings for n in topic.members)))
    tally.notes |= audit.notes
    if topic.name == CONTROL_TOPIC and audit.batches == audit.ledger.batches:
        tally.commands += audit.ledger.end - audit.ledger.first
    held = [
        (name_of(node), Checked("replica", each.batches, each.payload_bytes))
        for node, each in audit.holdings.items()
    ]
    published = [
        (name_of(run.publisher), Checked("client", run.batches)) for run in audit.ledger.runs
    ]
    tally.parties = summed([*tally.parties.items(), *held, *published])


@contextmanager
def _auditing(extent: Extent) -> Iterator[tuple[asyncio.Runner, Auditor]]:
    """An auditor that is connected, and the loop in which it lives."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        auditor = Auditor(extent.cluster, extent.identity, topics=extent.topics)
        runner.run(auditor.start())
        try:
            runner.run(auditor.prepare())
            yield runner, auditor
        finally:
            runner.run(auditor.close())
