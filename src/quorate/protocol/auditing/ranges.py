"""A history that is audited in ranges of slots, by many who know nothing of each other.

Source: RFC 6962; DESIGN sections 3 and 6 (audit).

Each range is walked at all replicas and becomes branches (`history.py`) that begin with the tree
before its first slot, as replicas tell it. What is left of a branch then is an `Extract`: the trees
before and after it, who tells it, what in it does not follow, and which checkpoints it has the root
of. That is a few hundred bytes, however long the range is.

Extracts are put together from the last range to the first. A checkpoint that a quorum signed says
which branch is right in the range that it is in. The tree before that branch is part of the tree
under the checkpoint, so it is signed as well; and the branch of the range before is right that ends
with this tree. So one signature confirms all ranges before it, as it does for one who walks them in
one go.

Lines of producers go on from range to range. What a branch cannot say alone of a line (`Opening`)
is looked at where the ranges before are known, by producer (`LinePieces`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from quorate.core.ids import Digest, MemberId, NodeId, member_of
from quorate.core.ordering import Line, Partition
from quorate.crypto.checkpoint import Head
from quorate.protocol.auditing.findings import Finding, Findings, Where
from quorate.protocol.auditing.history import (
    CRASHES_ONLY,
    FAULTS_MAX,
    FIRST_SLOT,
    Branch,
    Fault,
    History,
    Opening,
    Orderers,
    Signed,
    accusation,
    back_in_time,
    broken_line,
    fork_of,
    wrong_offset,
)


class BranchId(NamedTuple):
    """A branch of one range of a group: the slot at which the range begins, and a number."""

    group: int
    slot: int
    number: int


class TreeAt(NamedTuple):
    """The tree at one moment."""

    size: int
    root: Digest


@dataclass(frozen=True, slots=True)
class Extract:
    """What is left of one branch of one range."""

    id: BranchId
    start: int
    end: int
    before: TreeAt
    after: TreeAt
    # Who tells it, and the slot that each has come to.
    tellers: Mapping[NodeId, int]
    faults: tuple[Fault, ...]
    times_us: tuple[int, int] | None
    bounds: Mapping[Partition, tuple[int, int]]
    # Sizes of signed checkpoints whose root it has, and of those that have another one at a slot.
    agrees: tuple[Head, ...]
    differs: tuple[tuple[Head, int], ...]
    # By the number of another branch of the range: the first slot in which they differ, and the
    # size of the other one after it.
    forks: Mapping[int, tuple[int, int | None]]


class LinePiece(NamedTuple):
    """What one branch has of the lines of one producer."""

    id: BranchId
    openings: tuple[Opening, ...]
    # What is known of each line after it.
    ends: Mapping[Line, tuple[int, Digest]]
    # The sessions of the producer that it ends.
    ended: frozenset[NodeId] = frozenset()


# In ranges


def extracts(history: History, slot: int, heads: Sequence[Head]) -> list[Extract]:
    """What is left of the branches of a range that begins with this slot."""
    group = history.orderers.group
    return [
        Extract(
            BranchId(group, slot, number),
            branch.start,
            branch.end,
            TreeAt(branch.sizes[0], branch.roots[branch.sizes[0]]),
            TreeAt(branch.tree.size, branch.roots[branch.tree.size]),
            {
                node: walker.slot
                for node, walker in history.walkers.items()
                if walker.branch is branch
            },
            tuple(branch.faults),
            branch.times_us,
            branch.bounds,
            tuple(head for head in heads if branch.roots.get(head.size) == head.root),
            tuple(_differing(branch, heads)),
            dict(_forks(history.branches, branch)),
        )
        for number, branch in enumerate(history.branches)
    ]


def line_pieces(history: History, slot: int) -> Iterator[tuple[MemberId, LinePiece]]:
    """What the branches of a range have of the lines of each producer."""
    for number, branch in enumerate(history.branches):
        openings: dict[MemberId, list[Opening]] = {}
        ends: dict[MemberId, dict[Line, tuple[int, Digest]]] = {}
        for opening in branch.openings:
            openings.setdefault(member_of(opening.span.publisher), []).append(opening)
        for line, end in branch.lines.items():
            ends.setdefault(member_of(line.publisher), {})[line] = end
        branch_id = BranchId(history.orderers.group, slot, number)
        ended: dict[MemberId, set[NodeId]] = {}
        for node in branch.ended:
            ended.setdefault(member_of(node), set()).add(node)
        for member in {**ends, **ended}:
            yield (
                member,
                LinePiece(
                    branch_id,
                    tuple(openings.get(member, ())),
                    ends.get(member, {}),
                    frozenset(ended.get(member, ())),
                ),
            )


def _differing(branch: Branch, heads: Iterable[Head]) -> Iterator[tuple[Head, int]]:
    for head in heads:
        is_in = branch.sizes[0] <= head.size <= branch.tree.size
        if is_in and branch.roots.get(head.size) != head.root:
            yield head, branch.slot_of(head.size)


def _forks(
    branches: Sequence[Branch], branch: Branch
) -> Iterator[tuple[int, tuple[int, int | None]]]:
    for number, other in enumerate(branches):
        fork = None if other is branch else fork_of(branch, other)
        if fork is not None:
            before = other.before(fork + 1)
            yield number, (fork, None if before is None else before[0])


# Together


@dataclass(frozen=True, slots=True)
class Whole:
    """What holds of a group, whose history was audited in ranges."""

    # The branches that are right, one of each range, from the first on.
    trusted: tuple[Extract, ...]
    signed: int
    agreeing: tuple[NodeId, ...]
    notes: tuple[str, ...]

    @property
    def batches(self) -> int:
        return self.trusted[-1].after.size if self.trusted else 0


class Judgement(NamedTuple):
    """What holds of a group whose history was walked in one go."""

    # The history that is right, and up to where a quorum signed it.
    trusted: Branch | None
    signed: int
    checkpoints: int
    # The replicas that tell this history, as far as they go.
    agreeing: tuple[NodeId, ...]
    notes: tuple[str, ...]


def judge(history: History) -> Judgement:
    """Which history is right, and who tells another one, where all slots are one range."""
    history.find_two_heads()
    heads = [signed.checkpoint.head for signed in history.signed]
    found = extracts(history, FIRST_SLOT, heads)
    whole = Assembly(history.orderers, found, history.signed).judge(history.findings)
    trusted = history.branches[whole.trusted[0].id.number] if whole.trusted else None
    agreeing = [node for node, walker in history.walkers.items() if walker.branch is trusted]
    notes = (*history.notes, *whole.notes)
    return Judgement(trusted, whole.signed, len(heads), tuple(agreeing), notes)


class Assembly:
    """Puts the ranges of one group together."""

    def __init__(
        self, orderers: Orderers, found: Iterable[Extract], signed: Iterable[Signed]
    ) -> None:
        self._orderers, self._signed = orderers, tuple(signed)
        by_slot: dict[int, list[Extract]] = {}
        for extract in sorted(found, key=lambda each: each.id):
            by_slot.setdefault(extract.id.slot, []).append(extract)
        self.ranges = [by_slot[slot] for slot in sorted(by_slot)]
        self._notes: dict[str, None] = {}

    def judge(self, findings: Findings) -> Whole:
        """Which branches are right, and who tells others."""
        trusted, confirmed = self._choose()
        signed = max(confirmed, default=0)
        self._find_unserved(findings)
        self._find_faults(findings)
        accused: set[NodeId] = set()
        for branches, right, size in zip(self.ranges, trusted, confirmed, strict=True):
            for extract in branches:
                if extract is not right:
                    self._compare(extract, right, signed if size else 0, accused, findings)
        self._compare_ranges(trusted)
        others = {
            node
            for branches, right in zip(self.ranges, trusted, strict=True)
            for each in branches
            if each is not right
            for node in each.tellers
        }
        agreeing = tuple(node for node in self.nodes if node not in others)
        return Whole(tuple(trusted), signed, agreeing, tuple(self._notes))

    def path(self, node: NodeId) -> tuple[Extract, ...]:
        """The branches that one replica tells, from the first range on."""
        return tuple(each for branches in self.ranges for each in branches if node in each.tellers)

    @property
    def nodes(self) -> list[NodeId]:
        """Who tells anything."""
        return sorted(
            {node for branches in self.ranges for each in branches for node in each.tellers}
        )

    @property
    def is_whole(self) -> bool:
        """Whether it begins with the first slot that there ever was."""
        return bool(self.ranges) and all(
            each.start == FIRST_SLOT and each.before.size == 0 for each in self.ranges[0]
        )

    def _choose(self) -> tuple[list[Extract], list[int]]:
        """The right branch of each range, and up to which size a quorum signed it."""
        trusted: list[Extract] = []
        confirmed: list[int] = []
        for branches in reversed(self.ranges):
            pool = branches
            if trusted:
                linked = [each for each in branches if _leads_to(each, trusted[-1])]
                pool = linked or branches
            right = max(pool, key=self._weight)
            size = max([head.size for head in right.agrees], default=0)
            if trusted and confirmed[-1] and _leads_to(right, trusted[-1]):
                size = max(size, confirmed[-1])
            trusted.append(right)
            confirmed.append(size)
        return trusted[::-1], confirmed[::-1]

    def _weight(self, extract: Extract) -> tuple[int, int, int]:
        confirmed = max([head.size for head in extract.agrees], default=0)
        return confirmed, self._orderers.voices(extract.tellers), extract.after.size

    def _compare(
        self,
        extract: Extract,
        right: Extract,
        confirmed: int,
        accused: set[NodeId],
        findings: Findings,
    ) -> None:
        """Name those who tell another history, if signatures or enough others speak against it.

        Each is named once, at the first slot that differs.
        """
        orderers, others = self._orderers, list(right.tellers)
        tellers = [node for node in extract.tellers if node not in accused]
        if not tellers:
            return
        fork, after = extract.forks.get(right.id.number, (None, None))
        contradiction = min(((head.size, slot) for head, slot in extract.differs), default=None)
        at, why = fork, ""
        if contradiction is not None:
            size, slot = contradiction
            why, at = f"that a quorum signed, with {size} batches", fork or slot
        elif after is not None and after <= confirmed:
            why = f"that a quorum signed, with {confirmed} batches"
        elif fork is None:
            self._notes[
                f"what {orderers.names(tellers)} told of slots {extract.start} to "
                f"{extract.end - 1} has nothing in common with what others did"
            ] = None
            return
        elif orderers.voices(others) >= orderers.one_correct > orderers.voices(tellers):
            why = f"that {orderers.names(others)} tell"
        accused.update(tellers)
        if not why or orderers.may_be_deceived:
            what = CRASHES_ONLY if orderers.may_be_deceived else "nothing signed tells who is right"
            sentence = (
                f"{orderers.names(others)} and {orderers.names(tellers)} decided slot {at} "
                f"differently, and {what}"
            )
            findings.add(Finding("fork", "", Where(orderers.name, at), sentence))
            return
        for node in tellers:
            what = f"is not of the history {why}"
            findings.add(accusation(orderers, node, "other-history", at, what))

    def _compare_ranges(self, trusted: Sequence[Extract]) -> None:
        """The right branches lead to each other, or nobody tells a whole history."""
        for one, other in pairwise(trusted):
            if not _leads_to(one, other):
                self._notes[
                    f"what replicas of the {self._orderers.name} group tell of the slots before "
                    f"{other.start} does not lead to what they tell of it"
                ] = None

    def _find_unserved(self, findings: Findings) -> None:
        """What a quorum signed must be the history of somebody, if anybody goes so far."""
        everywhere = [each for branches in self.ranges for each in branches]
        for signed in self._signed:
            head = signed.checkpoint.head
            if any(head in each.agrees for each in everywhere):
                continue
            if any(head == differing for each in everywhere for differing, _ in each.differs):
                sentence = (
                    f"a quorum signed a history of {head.size} batches that no replica tells "
                    f"(shown by {self._orderers.names(signed.shown_by)})"
                )
                where = Where(self._orderers.name)
                findings.add(Finding("unserved-checkpoint", "", where, sentence))

    def _find_faults(self, findings: Findings) -> None:
        for node in self.nodes:
            faults = [
                fault
                for extract in self.path(node)
                for fault in extract.faults
                if fault.slot < extract.tellers[node]
            ]
            faults += _between(self.path(node), is_whole=self.is_whole)
            for fault in sorted(faults)[:FAULTS_MAX]:
                findings.add(
                    accusation(self._orderers, node, "broken-history", fault.slot, fault.sentence)
                )


def broken_lines(
    pieces: Iterable[LinePiece],
    paths: Mapping[NodeId, Sequence[BranchId]],
    *,
    is_whole: bool,
) -> Iterator[tuple[NodeId, Fault]]:
    """What in the lines of one producer does not follow on the ranges before, and who tells it.

    A path has the branches that a replica tells, from the first range on.
    """
    by_branch = {piece.id: piece for piece in pieces}
    told: dict[tuple[BranchId, ...], list[NodeId]] = {}
    for node, path in paths.items():
        told.setdefault(tuple(each for each in path if each in by_branch), []).append(node)
    for path, nodes in told.items():
        faults = [*_faults_of([by_branch[each] for each in path], is_whole=is_whole)]
        yield from ((node, fault) for node in nodes for fault in faults[:FAULTS_MAX])


def _faults_of(pieces: Sequence[LinePiece], *, is_whole: bool) -> Iterator[Fault]:
    known: dict[Line, tuple[int, Digest]] = {}
    for piece in pieces:
        for slot, span, digests, due in piece.openings:
            before = known.get(span.line) if due is None else (due, b"")
            may_begin_anew = not is_whole or span.publisher in piece.ended
            if span.first == 1 and (before is None or may_begin_anew):
                # Its digests were looked at in its range.
                continue
            sentence = broken_line(
                span,
                digests,
                before,
                may_begin_late=not is_whole,
                may_begin_anew=may_begin_anew,
            )
            if sentence:
                yield Fault(slot, sentence)
        known = {line: end for line, end in known.items() if line.publisher not in piece.ended}
        known |= piece.ends


def _between(path: Sequence[Extract], *, is_whole: bool) -> Iterator[Fault]:
    """What does not follow from range to range, in what one replica tells."""
    last_us: int | None = None
    ends: dict[Partition, int] = {}
    for extract in path:
        if extract.times_us is not None:
            first_us, end_us = extract.times_us
            if last_us is not None and first_us < last_us:
                yield Fault(extract.start, back_in_time(last_us, first_us))
            last_us = end_us
        for partition, (first, end) in extract.bounds.items():
            # The first range has looked at this itself.
            due = ends.get(partition, 0 if is_whole and extract is not path[0] else first)
            if first != due:
                yield Fault(extract.start, wrong_offset(partition, first, due))
            ends[partition] = end


def _leads_to(one: Extract, other: Extract) -> bool:
    return (one.end, one.after) == (other.start, other.before)
