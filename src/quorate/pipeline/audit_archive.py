"""The audit of an archive on Spark, with nothing but the cluster file and the archive.

Tasks look into files (`auditing.py`). What files say of each other is brought together by partition
(do they follow on each other), by place in the order log (is there one tree at each) and by the
size of checkpoints (is there one root for each). All of that goes from task to task, and never to
the driver, which gets findings and sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel

from quorate.core.cluster import Cluster
from quorate.core.errors import LocalProtocolError
from quorate.pipeline.archive import Archive, File
from quorate.pipeline.archiving import whole_path
from quorate.pipeline.auditing import (
    ARCHIVE,
    FileAudit,
    KeyRing,
    Looked,
    Node,
    follow_on,
    two_heads,
    two_trees,
)
from quorate.pipeline.piles import gathered, only
from quorate.pipeline.reports import AuditReport, Checked, summed
from quorate.protocol.auditing.findings import Findings, Pile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Files of one task, so that many small ones do not make as many tasks.
FILES_PER_TASK: Final = 16


def audit_archive(
    spark: SparkSession, directory: str, clusters: Sequence[Cluster], topics: Sequence[str] = ()
) -> AuditReport:
    """The audit of an archive with the keys of these cluster files."""
    keys = KeyRing(clusters)
    directory, texts = whole_path(directory), [cluster.render() for cluster in clusters]
    files = _files(Archive(directory), topics)

    def look(part: Iterable[File]) -> Iterator[tuple[str, Any]]:
        findings, tally = Findings(), _Tally()
        ring = KeyRing(map(Cluster.parse, texts))
        audit = FileAudit(Archive(directory), ring, findings)
        for file in part:
            looked = audit.look(file)
            yield from (("node", (each[:2], (each,))) for each in looked.nodes)
            yield from (("head", (size, {root: note})) for size, root, note in looked.heads)
            looked.nodes, looked.heads = [], []
            tally.add(looked)
            yield "file", ((file.topic, file.partition), looked)
        tally.notes = audit.notes
        yield "tally", tally
        yield from (("pile", pile) for pile in findings)

    def compare(files: tuple[Any, Iterable[Looked]]) -> list[Pile]:
        findings, name_of = Findings(), Cluster.parse(texts[0]).name_of
        follow_on(sorted(files[1], key=lambda looked: looked.first), name_of, findings)
        return [*findings]

    context = spark.sparkContext
    tasks = max(-(-len(files) // FILES_PER_TASK), min(len(files), context.defaultParallelism))
    seen = context.parallelize(files, tasks)
    facts = seen.mapPartitions(look).persist(StorageLevel.DISK_ONLY)
    try:
        piles = context.union(
            [
                only(facts, "pile"),
                only(facts, "file").groupByKey().flatMap(compare),
                only(facts, "node").reduceByKey(_two_at_most).flatMap(_forks),
            ]
        )
        findings = gathered(piles)
        heads = only(facts, "head").reduceByKey(_both).filter(lambda each: len(each[1]) > 1)
        for _, notes in heads.collect():
            for finding in two_heads(keys, notes.values()):
                findings.add(finding)
        tallies = only(facts, "tally").collect()
    finally:
        facts.unpersist()
    notes = sorted({note for tally in tallies for note in tally.notes})
    unproved = sum(tally.unproved for tally in tallies)
    if unproved:
        notes.append(f"the position of {unproved:,} batches cannot be checked with these keys")
    return AuditReport(
        f"the archive {directory}",
        summed(each for tally in tallies for each in tally.parties.items()),
        findings,
        tuple(notes),
        {},
        is_finished=not unproved,
    )


@dataclass(slots=True)
class _Tally:
    """What one task has checked."""

    parties: dict[str, Checked] = field(default_factory=lambda: {ARCHIVE: Checked("archive")})
    unproved: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, looked: Looked) -> None:
        self.unproved += looked.unproved
        producers = [(who, Checked("client", count)) for who, count in looked.by_producer.items()]
        archive = ARCHIVE, Checked("archive", looked.batches, looked.payload_bytes)
        self.parties = summed([*self.parties.items(), archive, *producers])


def _files(archive: Archive, topics: Sequence[str]) -> list[File]:
    view = archive.view()
    if not view.entries:
        raise LocalProtocolError(f"there is no archive in {archive.directory}")
    there = sorted({file.topic for file in view.files})
    for topic in topics:
        if topic not in there:
            raise LocalProtocolError(
                f"the archive {archive.directory} has no rows of '{topic}'; it has "
                f"{', '.join(there)}"
            )
    files = [file for file in view.files if not topics or file.topic in topics]
    return sorted(files, key=lambda file: (file.topic, file.partition, file.first))


def _two_at_most(some: tuple[Node, ...], more: tuple[Node, ...]) -> tuple[Node, ...]:
    """What is known of one perfect tree, as far as it shows whether it is one."""
    by_root = {each.root: each for each in sorted((*some, *more), reverse=True)}
    return tuple(sorted(by_root.values())[:2])


def _forks(of: tuple[tuple[int, int], tuple[Node, ...]]) -> list[Pile]:
    fork = two_trees(of[1])
    return [] if fork is None else [Pile(1, [fork])]


def _both(some: dict[bytes, str], more: dict[bytes, str]) -> dict[bytes, str]:
    return dict(sorted({**some, **more}.items())[:2])
