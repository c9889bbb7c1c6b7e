"""Auditing an archive: what its files have, against what producers and a quorum of replicas signed.

Source: DESIGN section 6 (audit); Kabis 2023, sections 3.3 and 3.4 (K8).

Nothing that an archive says is believed. Each of its files is looked into on its own, batch by
batch, so that many can be at the same time (`FileAudit`):

1. the rows of a batch are there, each once and in order, and are of the partition of their file;
2. what leads from batches to a checkpoint leads there, and a quorum signed the checkpoint;
3. the leaf that follows from the rows, from who published them as which number and when, is the
   one that leads there. So rows and position are what was ordered, or they are not;
4. the seal holds, its key is the producer's, and it has the events that it says (`SealAudit`).

What files say of each other is compared when all of them have been looked into (`follow_on`): that
nothing is missing between them, and that the lines of producers have no gaps. All that leads to
checkpoints is compared as well (`two_trees`): a perfect tree never changes, so that of two signed
checkpoints that have different ones neither extends the other. So far as the archive has batches,
that is all there is to see; it has those of its topics, and not of others.

Whoever keeps an archive is a party, which is called `ARCHIVE` in findings: what is not what was
ordered, the archive alters. What a quorum signed and cannot be right, more than f replicas did, and
nobody can be named.

Topics that stand crashes only have no signatures. There, numbers can be checked, and nothing else:
a note says so. Of a batch without rows nobody knows from an archive whether it ever had any; the
log of the archive says how many rows a file has, so that rows are missed if there are fewer. Where
files meet, a gap is one if no leaf says that a batch was read there.

Nothing here needs Spark, and nothing a cluster but its file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from struct import error as StructError
from typing import Any, NamedTuple

import pyarrow
from pyarrow import compute

from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.errors import ConfigError, QuorateError, RemoteProtocolError
from quorate.core.header import SEAL_BYTES, is_signed
from quorate.core.ids import NodeId, member_of, node_of, topic_id
from quorate.core.ordering import Line
from quorate.crypto.checkpoint import Checkpoint, OtherKeysError
from quorate.crypto.checkpoint import read as read_checkpoint
from quorate.crypto.digests import descriptor, seal_descriptor
from quorate.crypto.evidence import heads_in_conflict
from quorate.crypto.merkle import Hash, check_runs, nodes_of_runs
from quorate.crypto.proofs import Keys
from quorate.crypto.sids import Place, Seal, check_seal
from quorate.pipeline.archive import Archive, File, hashes_in, time_us_of
from quorate.pipeline.proofs import SIGNED_DIGEST, payload_of, written
from quorate.protocol.auditing.findings import Finding, Findings, Where
from quorate.protocol.auditing.payloads import KnownKeys, SealAudit
from quorate.protocol.control.state import ENDED_PER_MEMBER_MAX
from quorate.protocol.ordering.value import leaves_of

# Who keeps an archive, in findings. No member is called so: names have no spaces.
ARCHIVE = "the archive"
# So many ways to a checkpoint are kept in memory; batches need the one before them.
WAYS_KEPT = 4

# What numbers and columns raise that somebody has altered.
_BAD_VALUES = (pyarrow.ArrowException, KeyError, TypeError, ValueError, OverflowError, StructError)


class KeyRing:
    """The keys of a cluster, from its file, and from files of other times."""

    def __init__(self, clusters: Iterable[Cluster]) -> None:
        """The first file is that of today."""
        self.clusters = tuple(clusters)
        self.cluster = self.clusters[0]
        for other in self.clusters:
            if other.identity != self.cluster.identity:
                raise ConfigError(
                    f"keys of two clusters, {self.cluster.full_name} and {other.full_name}; an "
                    "archive is that of one"
                )
        self.known = KnownKeys.of(self.cluster, *self.clusters[1:])
        self._pinned = [_keys_or_none(cluster) for cluster in self.clusters]

    def knows(self, publisher: NodeId) -> bool:
        return self.cluster.knows(publisher)

    def signs(self, topic: str) -> bool:
        """Whether the order of this topic is signed, as far as that is known."""
        contracts = [each.topics.get(topic) for each in self.clusters]
        return any(each is not None and each.protection == "byzantine" for each in contracts)

    def read(self, note: str) -> Checkpoint:
        """A checkpoint of the log that orders Byzantine topics, or `RemoteProtocolError`."""
        first: RemoteProtocolError | None = None
        for keys in self._pinned:
            if keys is None:
                continue
            try:
                checkpoint = read_checkpoint(note, keys.cosigners, keys.needed)
            except RemoteProtocolError as error:
                first = first or error
                continue
            if checkpoint.head.origin != keys.origin:
                raise RemoteProtocolError(
                    f"a checkpoint of {checkpoint.head.origin!a}, not of {keys.origin!a}"
                )
            return checkpoint
        raise first or RemoteProtocolError("a checkpoint of a cluster that has none")


class Node(NamedTuple):
    """A perfect tree under a signed checkpoint, and the batch from which on that is archived."""

    level: int
    number: int
    root: Hash
    topic: str
    partition: int
    offset: int


class Piece(NamedTuple):
    """Consecutive batches of a line in one file: both ends, by offset and by number."""

    first_offset: int
    first: int
    last_offset: int
    last: int


@dataclass(slots=True)
class Looked:
    """What was seen in one file, for those who compare files with each other."""

    topic: str
    partition: int
    # As the log of the archive has it.
    first: int
    last: int
    batches: int = 0
    events: int = 0
    payload_bytes: int = 0
    # Batches whose position nothing that was signed by known keys tells.
    unproved: int = 0
    # Offsets of which there are no rows, or wrong ones, from one to before another.
    lost: list[tuple[int, int]] = field(default_factory=list)
    lines: dict[NodeId, Piece] = field(default_factory=dict)
    # What was proved with the first batch, up to its own leaf, and with the last one, behind it.
    leading: list[Hash] = field(default_factory=list)
    trailing: list[Hash] = field(default_factory=list)
    by_producer: dict[str, int] = field(default_factory=dict)
    # Of the order log, what leads to checkpoints.
    nodes: list[Node] = field(default_factory=list)
    # Checkpoints that a quorum signed: size, root, and the text.
    heads: list[tuple[int, Hash, str]] = field(default_factory=list)


class _Way(NamedTuple):
    """How batches that were proved together lead to a checkpoint."""

    leaves: list[Hash]
    positions: list[int]
    size: int

    def at(self, number: int | None) -> tuple[int, Hash] | None:
        if number is None or not 0 <= number < len(self.leaves):
            return None
        return self.positions[number], self.leaves[number]


class _Batch(NamedTuple):
    """A batch as its rows have it, and what they say of where it belongs."""

    place: Place
    publisher: NodeId
    sequence: int
    time_us: int
    payload: bytes
    descriptor: bytes

    @property
    def is_as_signed(self) -> bool:
        """Whether what is behind the seal is what the seal names."""
        return seal_descriptor(self.payload[:SEAL_BYTES]) == self.descriptor

    def leaf(self, offset: int) -> Hash:
        line = Line(self.publisher, topic_id(self.place.topic), self.place.partition)
        (leaf,) = leaves_of(line, self.sequence, offset, self.time_us, [self.descriptor])
        return leaf


class FileAudit:
    """Looks into the files of an archive, one after the other."""

    def __init__(self, archive: Archive, keys: KeyRing, findings: Findings) -> None:
        self._archive, self._keys, self._findings = archive, keys, findings
        self._name_of = keys.cluster.name_of
        self._seals = SealAudit(keys.known, findings, self._name_of)
        self._ways: dict[tuple[str, int, int], _Way | None] = {}
        self._heads: dict[str, Checkpoint | None] = {}
        self._other_notes: dict[str, None] = {}
        self._nodes: list[Node] = []
        # How the last batch leads to a checkpoint, and its number there.
        self._last: tuple[_Way, int] | None = None

    @property
    def notes(self) -> list[str]:
        return [*self._seals.notes, *self._other_notes]

    def look(self, file: File) -> Looked:
        """Everything that can be said of one file."""
        looked = Looked(file.topic, file.partition, file.first, file.last)
        self._heads.clear()
        self._last = None
        try:
            self._look_into(file, looked)
        except FileNotFoundError:
            self._accuse("gap", file, file.first, f"lacks its file {file.path}, which was")
            looked.lost = [(file.first, file.last + 1)]
        except (pyarrow.ArrowException, OSError) as error:
            what = f"has a file {file.path} that cannot be read ({error}) with what stands"
            self._accuse("altered-payload", file, file.first, what)
            looked.lost = [(file.first, file.last + 1)]
        looked.heads = [
            (found.head.size, found.head.root, note)
            for note, found in self._heads.items()
            if found is not None
        ]
        looked.nodes, self._nodes = self._nodes, []
        if self._last is not None:
            way, number = self._last
            looked.trailing = way.leaves[number + 1 :]
        return looked

    def _look_into(self, file: File, looked: Looked) -> None:
        rows, due, misplaced = 0, file.first, False
        missing: list[tuple[int, int]] = []
        for offset, batch in _batches(self._archive.record_batches(file)):
            rows += batch.num_rows
            if not _is_of(file, batch) or not due <= offset <= file.last:
                self._accuse("wrong-position", file, offset, "has rows that do not belong there")
                misplaced = True
                continue
            if offset > due:
                missing.append((due, offset))
                looked.lost.append((due, offset))
            due = offset + batch["index"][-1].as_py() + 1
            if not self._is_right(file, offset, batch, looked):
                looked.lost.append((offset, due))
        if due <= file.last:
            missing.append((due, file.last + 1))
            looked.lost.append((due, file.last + 1))
        if rows < file.rows:
            # The log of the archive knows of more.
            for start, _ in missing:
                self._accuse("gap", file, start, "lacks rows that it says it has")
        elif missing and not misplaced:
            self._other_notes[
                f"partition {file.partition} of '{file.topic}' has batches without rows from "
                f"offset {missing[0][0]} on: they hold no events"
            ] = None

    # One batch

    def _is_right(self, file: File, offset: int, rows: pyarrow.Table, looked: Looked) -> bool:
        """Whether this is the batch that was ordered here, as far as anybody can tell."""
        looked.batches += 1
        looked.events += rows.num_rows
        kept: dict[str, Any] | None = rows["proof"][0].as_py()
        if rows["index"].to_pylist() != [*range(rows.num_rows)] or kept is None:
            what = "has rows of which some are missing, or there twice,"
            self._accuse("altered-payload", file, offset, what)
            return False
        try:
            batch = _batch_of(self._keys.cluster.full_name, file, rows, kept)
            leaf = batch.leaf(offset)
        except (QuorateError, *_BAD_VALUES) as error:
            self._accuse("altered-payload", file, offset, f"has rows that are no batch ({error})")
            return False
        looked.payload_bytes += len(batch.payload)
        way = self._way(file, offset, kept)
        stands = None if way is None else way.at(kept["number"])
        if way is not None and (stands is None or stands[1] != leaf):
            self._accuse_of(file, offset, batch)
            return False
        is_to_be_proved = is_signed(batch.payload) or self._keys.signs(file.topic)
        if way is None and is_to_be_proved:
            looked.unproved += 1
        position = None
        if way is not None and stands is not None:
            position = stands[0], way.size
            self._last = way, kept["number"]
            if looked.batches == 1:
                looked.leading = way.leaves[: kept["number"] + 1]
        self._check_columns(file, offset, rows, batch, position)
        self._note(looked, batch, offset)
        if not is_signed(batch.payload):
            return True
        if not batch.is_as_signed:
            self._accuse("altered-payload", file, offset, "has other bytes than were signed")
            return False
        self._seals.look(batch.place, batch.sequence, offset, batch.payload)
        return True

    def _accuse_of(self, file: File, offset: int, batch: "_Batch") -> None:
        """This is not what was ordered here: other bytes, or a batch from elsewhere."""
        try:
            check_seal(batch.place, batch.sequence, Seal.decode(batch.payload), self._seals.checked)
            is_genuine = batch.is_as_signed
        except RemoteProtocolError:
            is_genuine = False
        if is_genuine:
            self._accuse("wrong-position", file, offset, "has another batch than the one")
        else:
            self._accuse("altered-payload", file, offset, "has other bytes than were agreed on")

    def _check_columns(
        self,
        file: File,
        offset: int,
        rows: pyarrow.Table,
        batch: "_Batch",
        position: tuple[int, int] | None,
    ) -> None:
        """What rows say beside the events follows from what was just found to be so."""
        expected: dict[str, object] = {
            "producer": self._name_of(batch.publisher),
            "digest": batch.payload[SIGNED_DIGEST] if is_signed(batch.payload) else None,
        }
        if position is not None:
            expected["position"], expected["checkpoint"] = position
        if not self._keys.knows(batch.publisher):
            del expected["producer"]
        wrong = [
            name for name, value in expected.items() if rows[name].unique().to_pylist() != [value]
        ]
        if wrong:
            kind = "wrong-position" if "position" in wrong else "altered-payload"
            self._accuse(kind, file, offset, f"has another {' and '.join(wrong)}")

    def _note(self, looked: Looked, batch: "_Batch", offset: int) -> None:
        who = self._name_of(batch.publisher)
        looked.by_producer[who] = looked.by_producer.get(who, 0) + 1
        publisher, sequence = batch.publisher, batch.sequence
        known = looked.lines.get(publisher)
        if known is None:
            looked.lines[publisher] = Piece(offset, sequence, offset, sequence)
            return
        if not _goes_on(known, offset, sequence, looked.lost):
            self._findings.add(broken_line(looked, who, known.last, offset, sequence))
        looked.lines[publisher] = known._replace(last_offset=offset, last=sequence)

    # Ways to checkpoints

    def _way(self, file: File, offset: int, kept: Mapping[str, Any]) -> "_Way | None":
        """How this batch and those around it lead to a checkpoint, if they do."""
        if kept["range"] is None:
            self._other_notes[
                f"'{file.topic}' has batches that lead to no checkpoint: only their numbers and "
                "signatures can be checked"
            ] = None
            return None
        key = file.topic, file.partition, kept["range"]
        if key not in self._ways:
            if len(self._ways) >= WAYS_KEPT:
                del self._ways[next(iter(self._ways))]
            self._ways[key] = self._read_way(file, offset, kept)
        return self._ways[key]

    def _read_way(self, file: File, offset: int, kept: Mapping[str, Any]) -> _Way | None:
        kept_by: int = kept["range"]
        try:
            if kept["note"] is None:
                # It is in another batch, and that perhaps in another file.
                rows = self._archive.batch(file.topic, file.partition, kept_by, ["index", "proof"])
                kept = rows["proof"][0].as_py() or {}
            if kept.get("note") is None:
                raise RemoteProtocolError("what they name has none")
            checkpoint = self._head(file, kept["note"], offset)
            if checkpoint is None:
                return None
            runs = [range(run["leaf"], run["leaf"] + run["count"]) for run in kept["runs"]]
            leaves = hashes_in(kept["leaves"])
            head = checkpoint.head
            path = hashes_in(kept["path"])
            check_runs(leaves, runs, head.size, path, head.root)
        except (QuorateError, *_BAD_VALUES) as error:
            what = f"has batches that do not lead to their checkpoint ({error})"
            self._accuse("wrong-position", file, offset, what)
            return None
        nodes_of_runs(leaves, runs, head.size, path, partial(self._know, file, kept_by))
        return _Way(leaves, [*chain.from_iterable(runs)], head.size)

    def _know(self, file: File, offset: int, level: int, number: int, root: Hash) -> None:
        self._nodes.append(Node(level, number, root, file.topic, file.partition, offset))

    def _head(self, file: File, note: str, offset: int) -> Checkpoint | None:
        """The checkpoint in a note; None if it is not one, or one of other keys."""
        if note not in self._heads:
            self._heads[note] = None
            try:
                self._heads[note] = self._keys.read(note)
            except OtherKeysError as error:
                self._other_notes[f"{ARCHIVE} shows {error}: of keys of another time"] = None
            except RemoteProtocolError as error:
                self._accuse("bad-checkpoint", file, offset, f"shows {error}")
        return self._heads[note]

    def _accuse(self, kind: str, file: File, offset: int, what: str) -> None:
        where = Where(topic=file.topic, partition=file.partition, offset=offset)
        sentence = (
            f"{ARCHIVE} {what} at offset {offset} of partition {file.partition} of '{file.topic}'"
        )
        self._findings.add(Finding(kind, ARCHIVE, where, sentence))


# What files say of each other


def follow_on(
    files: Iterable[Looked], name_of: Callable[[NodeId], str], findings: Findings
) -> None:
    """Whether the files of one partition, in their order, follow on each other, and their lines."""
    lines: dict[NodeId, Piece] = {}
    lost: list[tuple[int, int]] = []
    before: Looked | None = None
    for looked in files:
        lost += ([] if before is None else _gap(before, looked, findings)) + looked.lost
        for publisher, piece in looked.lines.items():
            known = lines.get(publisher)
            lines[publisher] = piece
            if known is None or _goes_on(known, piece.first_offset, piece.first, lost):
                continue
            if not _may_begin_anew(lines, publisher, piece):
                who, offset = name_of(publisher), piece.first_offset
                findings.add(broken_line(looked, who, known.last, offset, piece.first))
        before = looked


def broken_line(looked: Looked, who: str, last: int, offset: int, sequence: int) -> Finding:
    """A quorum signed it, or nobody did: whoever is to blame, it cannot be told from here."""
    where = Where(topic=looked.topic, partition=looked.partition, offset=offset)
    return Finding(
        "broken-history", "", where,
        f"offset {offset} of partition {looked.partition} of '{looked.topic}' has batch {sequence} "
        f"of {who} where {last + 1} is the next",
    )  # fmt: skip


def two_trees(nodes: Iterable[Node]) -> Finding | None:
    """Of what is known of one perfect tree: whether it is one."""
    one, *others = sorted(set(nodes))
    other = next((each for each in others if each.root != one.root), None)
    if other is None:
        return None
    first, last = one.number << one.level, ((one.number + 1) << one.level) - 1
    where = Where(topic=other.topic, partition=other.partition, offset=other.offset)
    return Finding(
        "fork", "", where,
        f"two checkpoints were signed of which neither extends the other: positions {first} to "
        f"{last} are not the same under that of offset {one.offset} of partition {one.partition} "
        f"of '{one.topic}' and under that of offset {other.offset} of partition {other.partition} "
        f"of '{other.topic}'",
    )  # fmt: skip


def two_heads(keys: KeyRing, notes: Iterable[str]) -> Iterator[Finding]:
    """Who signed two of these checkpoints, which are of one size."""
    checkpoints = [keys.read(note) for note in notes]
    numbers = {replica.name: replica.number for replica in keys.cluster.replicas}
    for at, one in enumerate(checkpoints):
        for other in checkpoints[at + 1 :]:
            for evidence in heads_in_conflict(keys.cluster.full_name, one, other, numbers):
                who = keys.cluster.name_of(evidence.replica)
                sentence = f"{who} signed two heads with {evidence.size} batches"
                yield Finding("two-heads", who, Where("byzantine"), sentence, evidence)


# Helpers


def _gap(before: Looked, looked: Looked, findings: Findings) -> list[tuple[int, int]]:
    due, last = before.last + 1, looked.first - 1
    if last < due:
        return []
    if {*before.trailing, *looked.leading} - {*looked.leading[-1:]}:
        # There were batches in between that the archive read, and that hold no events.
        return [(due, looked.first)]
    offsets = f"offset {last}" if due == last else f"offsets {due} to {last}"
    sentence = (
        f"{ARCHIVE} has no file with {offsets} of partition {looked.partition} of '{looked.topic}'"
    )
    where = Where(topic=looked.topic, partition=looked.partition, offset=due)
    findings.add(Finding("gap", ARCHIVE, where, sentence))
    return [(due, looked.first)]


def _goes_on(known: Piece, offset: int, sequence: int, lost: list[tuple[int, int]]) -> bool:
    """Whether a number may come next: no number may be left out but with batches that are lost,
    which have an event at least."""
    between = sum(max(0, min(end, offset) - max(start, known.last_offset)) for start, end in lost)
    return 0 < sequence - known.last <= 1 + between


def _may_begin_anew(lines: Mapping[NodeId, object], publisher: NodeId, piece: Piece) -> bool:
    """A client that has had so many sessions may have used the number of one of them again."""
    member = member_of(publisher)
    count = sum(member_of(each) == member for each in lines)
    return piece.first == 1 and count > ENDED_PER_MEMBER_MAX


def _is_of(file: File, rows: pyarrow.Table) -> bool:
    """Whether all of these rows say that they are of the partition of this file."""
    return [rows[name].unique().to_pylist() for name in ("topic", "partition")] == [
        [file.topic],
        [file.partition],
    ]


def _batches(parts: Iterable[pyarrow.RecordBatch]) -> Iterator[tuple[int, pyarrow.Table]]:
    """Where each batch of a file begins, and its rows, wherever they are divided."""
    waiting: list[pyarrow.RecordBatch] = []
    first = 0
    for part in parts:
        if not part.num_rows:
            continue
        begins = compute.subtract(part["offset"], part["index"])
        changes = compute.not_equal(begins[1:], begins[:-1]).to_numpy(zero_copy_only=False)
        bounds = [0, *(changes.nonzero()[0] + 1).tolist(), part.num_rows]
        for start, end in pairwise(bounds):
            begin = begins[start].as_py()
            if waiting and begin != first:
                yield first, pyarrow.Table.from_batches(waiting)
                waiting = []
            first = begin
            waiting.append(part.slice(start, end - start))
    if waiting:
        yield first, pyarrow.Table.from_batches(waiting)


def _batch_of(cluster: str, file: File, rows: pyarrow.Table, kept: Mapping[str, Any]) -> _Batch:
    publisher = node_of(kept["client"], kept["session"])
    body = kept["body"]
    if body is not None and written(Batch(body).record_batch()) != written(rows):
        raise RemoteProtocolError("rows that are not those of the batch beside them")
    payload = payload_of(kept, rows)
    place = Place.of(cluster, file.topic, file.partition, publisher)
    time_us, described = time_us_of(rows), descriptor(payload)
    return _Batch(place, publisher, kept["sequence"], time_us, payload, described)


def _keys_or_none(cluster: Cluster) -> Keys | None:
    try:
        return Keys.of(cluster)
    except ConfigError:
        # It is too small for topics that stand liars.
        return None
