"""The order of one group, as its replicas tell it: computed again, compared, and judged.

Source: RFC 6962; DESIGN sections 3 and 6 (audit); Kabis 2023, section 3.4.

Each replica is walked on its own (`ordering/walking.py`). What it tells becomes a *branch*: from
values, descriptors and offsets all else is computed as replicas do it, and nothing is taken on
their word. In a branch lines have no gaps, their chains lead to what values name, partitions have
no gaps either, and time does not go back. Replicas that tell the same share a branch; one that
differs in a slot gets a branch of its own, which is a fork.

A checkpoint that a quorum signed says which branch is right: the one whose tree has its root at
its size. Where nothing signed tells, so many replicas do that one of them is correct (`ranges.py`).

A history may begin late, since old slots are not kept for ever. Then the tree before the first
slot is a replica's word, which a later checkpoint confirms or does not.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.header import DESCRIPTOR_BYTES, count_of
from quorate.core.ids import Digest, NodeId, Sequence, member_of
from quorate.core.ordering import Line, Partition, Slot, Walked
from quorate.crypto.checkpoint import Checkpoint, Cosigner, OtherKeysError
from quorate.crypto.checkpoint import read as read_checkpoint
from quorate.crypto.digests import cut, digest_of
from quorate.crypto.evidence import heads_in_conflict
from quorate.crypto.merkle import Tree
from quorate.protocol.auditing.findings import Finding, Findings, Where
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.value import (
    CHAIN_START,
    Span,
    Value,
    chained,
    leaves_of,
    offsets_of,
)

FIRST_SLOT = 1
CRASHES_ONLY = "this log tolerates crashes only, and somebody lied"
# Of a branch that makes no sense at all, so much is told.
FAULTS_MAX = 16


@dataclass(frozen=True, slots=True)
class Orderers:
    """The replicas of one group, and what it takes to believe them."""

    cluster: str
    group: int
    name: str
    members: tuple[NodeId, ...]
    # So many signatures make a checkpoint, and of so many members one is correct.
    quorum: int
    one_correct: int
    origin: str
    cosigners: Mapping[NodeId, Cosigner]
    name_of: Callable[[NodeId], str]
    # So many of them tell their history, whoever fails.
    needed: int
    # Replicas that were added later have the same history, and no voice.
    followers: tuple[NodeId, ...] = ()

    @property
    def may_be_deceived(self) -> bool:
        """Whether one of these that lies makes correct ones tell, and sign, what it says."""
        return self.group == GroupKind.CRASH

    def voices(self, replicas: Iterable[NodeId]) -> int:
        return sum(replica in self.members for replica in replicas)

    def names(self, replicas: Iterable[NodeId]) -> str:
        return ", ".join(map(self.name_of, replicas)) or "nobody"


class Fault(NamedTuple):
    """Something in a branch that does not follow from what came before."""

    slot: int
    sentence: str


class Opening(NamedTuple):
    """A span about which a branch cannot say alone whether it follows on what came before."""

    slot: int
    span: Span
    digests: tuple[Digest, ...]
    # The number that would be next, if the line was seen before.
    due: Sequence | None


class Run(NamedTuple):
    """Consecutive batches of a line, as one slot put them into a partition.

    The offset is that of the first event.
    """

    offset: int
    publisher: NodeId
    first: Sequence
    batches: int
    time_us: int


class Ledger:
    """What was agreed to stand in one partition, from the first offset that is known.

    Its batches are numbered from 0; each covers the offsets of its events.
    """

    __slots__ = ("_numbers", "descriptors", "offsets", "partition", "runs")

    def __init__(self, partition: Partition, first: int) -> None:
        self.partition = partition
        self.descriptors = bytearray()
        # Where each batch begins, and the offset after the last.
        self.offsets = array("Q", [first])
        self.runs: list[Run] = []
        # The first batch of each run.
        self._numbers: list[int] = []

    @property
    def first(self) -> int:
        return self.offsets[0]

    @property
    def end(self) -> int:
        return self.offsets[-1]

    @property
    def batches(self) -> int:
        return len(self.offsets) - 1

    def add(self, run: Run, descriptors: bytes) -> None:
        self._numbers.append(self.batches)
        self.runs.append(run)
        self.descriptors += descriptors
        self.offsets.extend(offsets_of(run.offset, cut(descriptors))[1:])

    def at(self, offset: int) -> int:
        """Which batch has this offset; the first or the last if none has."""
        return min(max(bisect_right(self.offsets, offset), 1), self.batches) - 1

    def floor(self, offset: int) -> int:
        """Where the batch begins that has this offset; no further than the end."""
        return self.end if offset >= self.end else self.offsets[self.at(offset)]

    def descriptors_of(self, number: int, batches: int = 1) -> bytes:
        at = number * DESCRIPTOR_BYTES
        return bytes(self.descriptors[at : at + batches * DESCRIPTOR_BYTES])

    def run_of(self, number: int) -> tuple[Run, int]:
        """The run that a batch is of, and the number of its first batch."""
        at = bisect_right(self._numbers, number) - 1
        return self.runs[at], self._numbers[at]


class Branch:
    """One history: what slots add up to, if they were decided like this."""

    def __init__(self, start: int, size: int, edge: Iterable[Digest]) -> None:
        self.start, self._edge = start, tuple(edge)
        self.slots: list[Slot] = []
        self.faults: list[Fault] = []
        # Of a branch that begins late, for those who know what came before.
        self.openings: list[Opening] = []
        self.tree = Tree(size, self._edge)
        # The size of the tree before each slot, and after the last; and its root at those.
        self.sizes = [size]
        self.roots = {size: self.tree.root()}
        self.times_us: tuple[int, int] | None = None
        self.lines: dict[Line, tuple[Sequence, Digest]] = {}
        # Sessions whose lines are forgotten in it, and begin with their first batch again.
        self.ended: set[NodeId] = set()
        # Of each partition the first offset that is known, and the one after the last.
        self.bounds: dict[Partition, tuple[int, int]] = {}

    @property
    def end(self) -> int:
        return self.start + len(self.slots)

    @property
    def is_whole(self) -> bool:
        """Whether it begins with the first slot that there ever was."""
        return self.start == FIRST_SLOT and self.sizes[0] == 0

    def has(self, slot: int) -> bool:
        return self.start <= slot < self.end

    def at(self, slot: int) -> Slot:
        return self.slots[slot - self.start]

    def before(self, slot: int) -> tuple[int, Digest] | None:
        """The size and root of the tree before this slot, if that is known here."""
        if not self.start <= slot <= self.end:
            return None
        size = self.sizes[slot - self.start]
        return size, self.roots[size]

    def slot_of(self, size: int) -> int:
        """The slot after which the tree has at least so many leaves."""
        return self.start - 1 + next(i for i, each in enumerate(self.sizes) if each >= size)

    def forked(self, slot: int) -> "Branch":
        """The same history up to, and without, this slot."""
        branch = Branch(self.start, self.sizes[0], self._edge)
        for each in self.slots[: slot - self.start]:
            branch.append(each)
        return branch

    def append(self, slot: Slot) -> None:
        """Go on with this; `RemoteProtocolError` if it cannot be a slot, and none can follow."""
        number, value = self.end, Value.decode(slot.value)
        batches = sum(span.batches for span in value.spans)
        lengths = len(slot.descriptors), len(slot.offsets)
        if lengths != (batches * DESCRIPTOR_BYTES, len(value.spans)):
            raise RemoteProtocolError(
                f"{batches} batches in {len(value.spans)} spans, with {lengths[0]} bytes of "
                f"descriptors and {lengths[1]} offsets"
            )
        contents = cut(slot.descriptors)
        for descriptor in contents:
            count_of(descriptor)
        first_us, last_us = self.times_us or (value.time_us, value.time_us)
        if value.time_us < last_us:
            self._fault(number, back_in_time(last_us, value.time_us))
        self.times_us = first_us, value.time_us
        if value.ended:
            self._end_sessions(value.ended)
        at = 0
        for span, offset in zip(value.spans, slot.offsets, strict=True):
            descriptors = contents[at : at + span.batches]
            at += span.batches
            self._go_on_with_line(number, span, [*map(digest_of, descriptors)])
            self._go_on_with_partition(number, span, offset, offsets_of(offset, descriptors)[-1])
            for leaf in leaves_of(span.line, span.first, offset, value.time_us, descriptors):
                self.tree.append(leaf)
        self.slots.append(slot)
        self.sizes.append(self.tree.size)
        self.roots[self.tree.size] = self.tree.root()

    def ledgers(self) -> dict[Partition, Ledger]:
        """What stands where."""
        found: dict[Partition, Ledger] = {}
        for partition, run, descriptors in self.runs():
            ledger = found.setdefault(partition, Ledger(partition, run.offset))
            if run.offset == ledger.end:
                ledger.add(run, descriptors)
        return found

    def runs(self) -> Iterator[tuple[Partition, Run, bytes]]:
        """What it puts where, with the descriptors."""
        for slot in self.slots:
            value, at = Value.decode(slot.value), 0
            for span, offset in zip(value.spans, slot.offsets, strict=True):
                size = span.batches * DESCRIPTOR_BYTES
                run = Run(offset, span.publisher, span.first, span.batches, value.time_us)
                yield span.line.target, run, slot.descriptors[at : at + size]
                at += size

    def _end_sessions(self, ended: tuple[NodeId, ...]) -> None:
        self.ended.update(ended)
        for line in self.lines:
            if line.publisher in ended:
                self.lines[line] = 1, CHAIN_START

    def _go_on_with_line(self, slot: int, span: Span, digests: list[Digest]) -> None:
        known = self.lines.get(span.line)
        due = None if known is None else known[0]
        if not self.is_whole and (due is None or span.first == 1 != due):
            self.openings.append(Opening(slot, span, tuple(digests), due))
        is_late = not self.is_whole
        fault = broken_line(span, digests, known, may_begin_late=is_late, may_begin_anew=is_late)
        if fault:
            self._fault(slot, fault)
        self.lines[span.line] = span.end, span.chain

    def _go_on_with_partition(self, slot: int, span: Span, offset: int, end: int) -> None:
        partition = span.line.target
        first, due = self.bounds.get(partition, (offset, 0 if self.is_whole else offset))
        if offset != due:
            self._fault(slot, wrong_offset(partition, offset, due))
        self.bounds[partition] = first, end

    def _fault(self, slot: int, sentence: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(Fault(slot, sentence))


def broken_line(
    span: Span,
    digests: Iterable[Digest],
    known: tuple[Sequence, Digest] | None,
    *,
    may_begin_late: bool,
    may_begin_anew: bool,
) -> str:
    """Why these batches do not follow on what is known of their line; empty if they do.

    A line begins anew only after a slot that ended its session.
    """
    before = CHAIN_START if span.first == 1 else None
    fault = ""
    if known is None:
        if before is None and not may_begin_late:
            fault = f"begins {_named(span.line)} with batch {span.first}"
    elif known[0] == span.first:
        before = known[1]
    elif before is None or not may_begin_anew:
        fault = f"orders batch {span.first} of {_named(span.line)} where {known[0]} is the next"
        before = None
    if before is not None and chained(before, digests)[-1] != span.chain:
        fault = f"has descriptors of {_named(span.line)} that do not lead to what its value names"
    return fault


def wrong_offset(partition: Partition, offset: int, due: int) -> str:
    return (
        f"puts batches at offset {offset} of partition {partition.number} of topic "
        f"{partition.topic} where {due} is the next"
    )


def back_in_time(before_us: int, time_us: int) -> str:
    return f"goes back in time from {before_us} to {time_us}"


@dataclass(slots=True)
class Walker:
    """How far one replica has been walked, and in which branch."""

    branch: Branch
    slot: int
    # The slot after the last, as it said when it was asked first.
    end: int
    is_broken: bool = False

    @property
    def is_done(self) -> bool:
        return self.is_broken or self.slot >= self.end


@dataclass(slots=True)
class Signed:
    """A checkpoint that a quorum signed, and who showed it."""

    checkpoint: Checkpoint
    shown_by: list[NodeId] = field(default_factory=list)


class History:
    """What the replicas of one group tell of its slots."""

    def __init__(self, orderers: Orderers, findings: Findings) -> None:
        self.orderers = orderers
        self.branches: list[Branch] = []
        self.walkers: dict[NodeId, Walker] = {}
        self.findings = findings
        # By their texts, so that none is verified twice; and those that count for nothing.
        self._signed: dict[str, Signed] = {}
        self._notes: dict[str, None] = {}

    # Walking

    def begin(self, replica: NodeId, walked: Walked, end: int | None = None) -> None:
        """The first word of a replica: where its slots begin, and on which tree.

        It is walked to its end, or up to an earlier one.
        """
        start = max(walked.slot, FIRST_SLOT)
        try:
            branch = Branch(start, walked.size, walked.edge)
        except LocalProtocolError as error:
            self._accuse(replica, "broken-history", start, f"tells of {error}")
            return
        for known in self.branches:
            if known.before(start) == branch.before(start):
                branch = known
                break
        else:
            self.branches.append(branch)
        last = walked.end if end is None else min(walked.end, end)
        self.walkers[replica] = Walker(branch, start, max(start, last))
        self.take(replica, walked)

    def take(self, replica: NodeId, walked: Walked) -> None:
        """What a replica tells next. Anything but the slot that is due brings nothing."""
        self.show(replica, walked.checkpoints)
        walker = self.walkers[replica]
        if max(walked.slot, FIRST_SLOT) != walker.slot:
            return
        for slot in walked.slots:
            if walker.is_done:
                return
            try:
                self._step(walker, slot)
            except RemoteProtocolError as error:
                walker.is_broken = True
                self._accuse(replica, "broken-history", walker.slot, f"has {error}")

    def _step(self, walker: Walker, slot: Slot) -> None:
        branch = walker.branch
        if branch.has(walker.slot) and branch.at(walker.slot) != slot:
            branch = self._other(branch, walker.slot, slot)
        if not branch.has(walker.slot):
            branch.append(slot)
        walker.branch = branch
        walker.slot += 1

    def _other(self, branch: Branch, number: int, slot: Slot) -> Branch:
        """The branch that goes on with this slot instead; there may be one already."""
        for known in self.branches:
            same = known.has(number) and known.before(number) == branch.before(number)
            if same and known.at(number) == slot:
                return known
        forked = branch.forked(number)
        forked.append(slot)
        self.branches.append(forked)
        return forked

    # Checkpoints

    def show(self, replica: NodeId, texts: Iterable[str]) -> None:
        """A replica has these checkpoints."""
        for text in texts:
            known = self._signed.get(text) or self._read(replica, text)
            if known is not None and replica not in known.shown_by:
                known.shown_by.append(replica)

    def _read(self, replica: NodeId, text: str) -> Signed | None:
        orderers = self.orderers
        cosigners = [orderers.cosigners[member] for member in orderers.members]
        try:
            checkpoint = read_checkpoint(text, cosigners, orderers.quorum)
            if checkpoint.head.origin != orderers.origin:
                raise RemoteProtocolError(
                    f"a checkpoint of {checkpoint.head.origin!a}, not of {orderers.origin!a}"
                )
        except OtherKeysError as error:
            self._notes[f"{orderers.name_of(replica)} shows {error}: of keys of another time"] = (
                None
            )
            return None
        except RemoteProtocolError as error:
            self._accuse(replica, "bad-checkpoint", None, f"shows {error}")
            return None
        self._signed[text] = Signed(checkpoint)
        return self._signed[text]

    # What is known of all checkpoints

    @property
    def signed(self) -> list[Signed]:
        """The checkpoints that count."""
        return [*self._signed.values()]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    @property
    def shown(self) -> dict[str, list[NodeId]]:
        """Their texts, and who showed each."""
        return {text: signed.shown_by for text, signed in self._signed.items()}

    def find_two_heads(self) -> None:
        """Who signed two checkpoints that contradict each other."""
        orderers = self.orderers
        numbers = {orderers.cosigners[member].name: member for member in orderers.members}
        signed = [each.checkpoint for each in self._signed.values()]
        for at, one in enumerate(signed):
            for other in signed[at + 1 :]:
                # Those who signed them are not to blame where they may be deceived.
                is_fork = one.head.size == other.head.size and one.head.root != other.head.root
                if is_fork and orderers.may_be_deceived:
                    sentence = (
                        f"two heads with {one.head.size} batches were signed, and {CRASHES_ONLY}"
                    )
                    self.findings.add(Finding("fork", "", Where(orderers.name), sentence))
                for evidence in heads_in_conflict(orderers.cluster, one, other, numbers):
                    who = orderers.name_of(evidence.replica)
                    sentence = f"{who} signed two heads with {evidence.size} batches"
                    where = Where(orderers.name)
                    self.findings.add(Finding("two-heads", who, where, sentence, evidence))

    def _accuse(self, replica: NodeId, kind: str, slot: int | None, what: str) -> None:
        self.findings.add(accusation(self.orderers, replica, kind, slot, what))


def accusation(
    orderers: Orderers, replica: NodeId, kind: str, slot: int | None, what: str
) -> Finding:
    who = orderers.name_of(replica)
    subject = who if slot is None else f"slot {slot} of {who}"
    named = "" if orderers.may_be_deceived else who
    return Finding(kind, named, Where(orderers.name, slot), f"{subject} {what}")


def credible_end(ends: Iterable[int], one_correct: int) -> int:
    """Up to where to walk, of what replicas say that they have decided.

    Whoever lies has decided for ever. Of so many that say they are furthest one is correct, and has
    come to the least of these slots.
    """
    furthest = sorted(ends, reverse=True)[:one_correct]
    return furthest[-1] if furthest else FIRST_SLOT


def fork_of(one: Branch, other: Branch) -> int | None:
    """The first slot that both have, and in which they differ."""
    start, end = max(one.start, other.start), min(one.end, other.end)
    if start <= end and one.before(start) != other.before(start):
        return start
    return next((slot for slot in range(start, end) if one.at(slot) != other.at(slot)), None)


def _named(line: Line) -> str:
    return f"client {member_of(line.publisher)} on partition {line.partition} of topic {line.topic}"
