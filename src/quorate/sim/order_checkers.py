"""What must hold of a log, whatever the protocol did to bring it about.

As in `checkers.py`, nothing here knows of slots, votes or leaders. A run is what publishers were
told to publish, the positions they were given, what readers read, and what the disks of correct
replicas hold in the end:

- agreement: no two readers read different batches at one offset, and no two correct replicas have
  different batches there.
- one state: whatever correct replicas write down as their state after a slot is the same.
- total order: a reader reads a partition without gaps, from where it began, be it inside a batch,
  and the batches of a publisher in the order of their numbers. A reader that validates passes over
  basic batches, and over nothing else.
- same events: of what two readers of one kind have come through, they had the same events at the
  same offsets. Who validates had of those what is signed.
- integrity: what is read from a publisher that is not Byzantine, it was told to publish.
- no duplicate: a publisher's batch stands at one offset.
- no loss: at the position that a publisher was given, every reader that wants it finds that batch.
- reports: nobody who is correct says of a correct publisher that it lied.
- true answers: no client believes what a lying replica says became of its command or request.
- catching up: whoever was away comes to where the others are.
- validity and progress: what a correct publisher was told to publish has a position, and is read
  by every reader, once the network is calm.

All but the last two hold at any time; that readers find what has a position is about the end.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple, TypeAlias, TypeVar

from quorate.core.batch import Batch
from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.errors import RemoteProtocolError
from quorate.core.header import events_in, is_signed
from quorate.core.ids import NodeId, Sequence, TopicId
from quorate.core.ordering import Partition
from quorate.crypto.digests import descriptor
from quorate.protocol.machine import Answered, Begun, Entry, Outcome, Passed, Recorded
from quorate.protocol.misbehaviour import MADE_UP
from quorate.sim.checkers import Conduct

# What is said of those who lie about their own batches.
_LIARS = frozenset(("bad-batch", "bad-sid", "contradiction", "false-batch"))
descriptor_of = lru_cache(maxsize=1 << 16)(descriptor)


@lru_cache(maxsize=1 << 16)
def events_of(payload: bytes) -> tuple[bytes, ...]:
    """The values that a batch brings; none if it is malformed."""
    try:
        return tuple(map(bytes, Batch(payload).values()))
    except RemoteProtocolError:
        return ()


class LogBatch(NamedTuple):
    """A batch, by its publisher's number."""

    publisher: NodeId
    partition: Partition
    sequence: Sequence

    def __str__(self) -> str:
        return f"batch {self.sequence} of {self.publisher}"


class Content(NamedTuple):
    """What stands from an offset on: a batch, and its descriptor."""

    publisher: NodeId
    sequence: Sequence
    descriptor: bytes

    def __str__(self) -> str:
        return f"batch {self.sequence} of {self.publisher}"


@dataclass(frozen=True, slots=True)
class LogViolation:
    """A property that does not hold, and where it shows."""

    checker: str
    sentence: str
    batch: LogBatch | None = None


@dataclass(slots=True)
class LogRecord:
    """A run from the outside, as it happened."""

    conducts: dict[NodeId, Conduct]
    readers: tuple[NodeId, ...]
    published: dict[LogBatch, bytes] = field(default_factory=dict)
    # How many batches each publisher has yet to find room for.
    unpublished: dict[NodeId, int] = field(default_factory=dict)
    # What correct producers signed, where that is what was published.
    sealed: dict[LogBatch, bytes] = field(default_factory=dict)
    # Topics on which readers may validate, and those that do.
    validated: frozenset[TopicId] = frozenset()
    validating: frozenset[NodeId] = frozenset()
    # Topics of which nothing is promised, since those lie who may only crash.
    unpromised: frozenset[TopicId] = frozenset()
    # Where readers begin, and what they hear from there on.
    begun: dict[NodeId, dict[Partition, int]] = field(default_factory=dict)
    read: dict[NodeId, dict[Partition, list[Entry]]] = field(default_factory=dict)
    # Where they are after those of the entries that came first.
    passed: dict[NodeId, dict[Partition, list[tuple[int, int]]]] = field(default_factory=dict)
    positions: dict[LogBatch, int] = field(default_factory=dict)
    # Who said what of whom, if that is a lie of a publisher.
    reports: set[tuple[NodeId, NodeId, str]] = field(default_factory=set)
    # What correct replicas have on disk, looked at now and then.
    logs: dict[NodeId, dict[Partition, dict[int, Content]]] = field(default_factory=dict)
    # How far those have come that are there in the end, by the number of their last decision in
    # each group.
    ends: dict[NodeId, dict[int, int]] = field(default_factory=dict)
    # Their snapshots, by group and slot.
    states: dict[NodeId, dict[tuple[int, int], set[bytes]]] = field(default_factory=dict)
    # What clients commanded, and what was answered, by their own numbers.
    commands: dict[NodeId, set[int]] = field(default_factory=dict)
    answers: dict[NodeId, dict[int, str]] = field(default_factory=dict)
    # Requests about topics of which nothing is promised.
    unanswerable: set[tuple[NodeId, int]] = field(default_factory=set)
    # Positions that contradict an earlier one.
    moved: list[tuple[LogBatch, int, int]] = field(default_factory=list)

    def on_outcome(self, node: NodeId, outcome: Outcome) -> None:
        if isinstance(outcome, Answered):
            self.answers.setdefault(node, {})[outcome.number] = outcome.sentence
        elif isinstance(outcome, Begun | Entry | Passed) and node in self.readers:
            if outcome.partition.topic not in self.unpromised:
                self._on_read(node, outcome)
        elif (
            isinstance(outcome, Recorded)
            and node in self.conducts
            # Of a command, its answer counts.
            and outcome.line.topic not in {CONTROL_TOPIC_ID, *self.unpromised}
        ):
            self._on_recorded(node, outcome)

    def _on_read(self, node: NodeId, outcome: Begun | Entry | Passed) -> None:
        partition = outcome.partition
        entries = self.read.setdefault(node, {}).setdefault(partition, [])
        if isinstance(outcome, Entry):
            entries.append(outcome)
        elif isinstance(outcome, Passed):
            passed = self.passed.setdefault(node, {}).setdefault(partition, [])
            passed.append((len(entries), outcome.offset))
        else:
            self.begun.setdefault(node, {})[partition] = outcome.offset

    def _on_recorded(self, node: NodeId, recorded: Recorded) -> None:
        # Who tells replicas another count than its own counts on from the first wrongly.
        is_byzantine = self.conducts[node] is Conduct.BYZANTINE
        for at in range(1 if is_byzantine else recorded.count):
            batch = LogBatch(node, recorded.line.target, recorded.first + at)
            offset = self.positions.setdefault(batch, recorded.offsets[at])
            if offset != recorded.offsets[at]:
                self.moved.append((batch, offset, recorded.offsets[at]))

    def on_report(self, node: NodeId, about: NodeId, kind: str) -> None:
        """Somebody who is correct said this."""
        if kind in _LIARS:
            self.reports.add((node, about, kind))

    def begins(self, reader: NodeId, partition: Partition) -> int | None:
        """Where a reader began; None if it does not read this."""
        return self.begun.get(reader, {}).get(partition)

    def end(self, reader: NodeId, partition: Partition) -> int:
        """How far a reader has come."""
        entries = self.read.get(reader, {}).get(partition, ())
        passed = self.passed.get(reader, {}).get(partition, ())
        begun = self.begins(reader, partition) or 0
        return max(begun, entries[-1].end if entries else 0, passed[-1][1] if passed else 0)

    def validates(self, reader: NodeId, partition: Partition) -> bool:
        return reader in self.validating and partition.topic in self.validated

    def made(self, batch: LogBatch) -> bytes | None:
        """What a correct publisher handed in under this number."""
        return self.sealed.get(batch) or self.published.get(batch)

    def is_wanted(self, reader: NodeId, batch: LogBatch) -> bool:
        return not self.validates(reader, batch.partition) or batch in self.sealed

    @property
    def entries_read(self) -> int:
        return sum(len(read) for each in self.read.values() for read in each.values())

    def entries(self) -> Iterator[tuple[NodeId, LogBatch, Entry]]:
        """Who read which batch as what."""
        for reader, partitions in self.read.items():
            for partition, entries in partitions.items():
                for entry in entries:
                    yield reader, LogBatch(entry.publisher, partition, entry.sequence), entry

    def correct(self) -> Iterator[LogBatch]:
        for batch in self.published:
            if self.conducts[batch.publisher] is Conduct.CORRECT:
                yield batch

    def contents(self) -> Iterator[tuple[str, Partition, int, Content]]:
        """Everything that anybody who is correct says stands somewhere."""
        for reader, batch, entry in self.entries():
            described = descriptor_of(entry.payload)
            content = Content(entry.publisher, entry.sequence, described)
            yield f"reader {reader}", batch.partition, entry.offset, content
        for replica, logs in self.logs.items():
            for partition, log in logs.items():
                for offset, content in log.items():
                    yield f"replica {replica}", partition, offset, content


LogChecker: TypeAlias = Callable[[LogRecord], Iterator[LogViolation]]

_Record = TypeVar("_Record", bound=LogRecord)


def check_log(
    record: _Record, checkers: Iterable[Callable[[_Record], Iterator[LogViolation]]]
) -> list[LogViolation]:
    return [violation for checker in checkers for violation in checker(record)]


# At any time


def agreement(record: LogRecord) -> Iterator[LogViolation]:
    seen: dict[tuple[Partition, int], tuple[str, Content]] = {}
    for who, partition, offset, content in record.contents():
        first, known = seen.setdefault((partition, offset), (who, content))
        if known != content:
            batch = LogBatch(content.publisher, partition, content.sequence)
            sentence = (
                f"{who} has {content} at offset {offset} of partition {partition.number}, "
                f"{first} has {known}"
            )
            yield LogViolation("agreement", sentence, batch)


def one_state(record: LogRecord) -> Iterator[LogViolation]:
    seen: dict[tuple[int, int], tuple[NodeId, bytes]] = {}
    for replica, slots in record.states.items():
        for place, states in slots.items():
            for state in states:
                first, known = seen.setdefault(place, (replica, state))
                if known != state:
                    slot = place[1]
                    sentence = f"replicas {first} and {replica} differ in their state after {slot}"
                    yield LogViolation("one state", sentence)


def total_order(record: LogRecord) -> Iterator[LogViolation]:
    signed = _signed_offsets(record)
    for reader, partitions in record.read.items():
        for partition in partitions:
            last: dict[NodeId, Sequence] = {}
            begun = record.begins(reader, partition)
            if begun is None:
                yield LogViolation("total order", f"reader {reader} read what it never began")
                continue
            validates = record.validates(reader, partition)
            for position, step in _steps(record, reader, partition):
                batch = None
                if isinstance(step, Entry):
                    batch = LogBatch(step.publisher, partition, step.sequence)
                at = step.offset + step.skip if isinstance(step, Entry) else step
                may_pass = validates and _are_basic(signed.get(partition, []), position, at)
                if not (at == position or may_pass):
                    sentence = f"reader {reader} came to offset {at} instead of {position}"
                    yield LogViolation("total order", sentence, batch)
                    return
                if batch is None:
                    continue
                before = last.get(batch.publisher, 0)
                # What is not for this reader may stand between.
                may_skip = validates or (before == 0 and begun > 0)
                is_later = batch.sequence > before if may_skip else batch.sequence == before + 1
                if not is_later:
                    sentence = f"reader {reader} read batch {batch.sequence} after batch {before}"
                    yield LogViolation("total order", sentence, batch)
                last[batch.publisher] = batch.sequence


def _are_basic(ends: list[int], start: int, end: int) -> bool:
    """Whether none of the signed batches ends between these offsets."""
    return start < end and bisect_left(ends, start) == bisect_left(ends, end)


def _steps(
    record: LogRecord, reader: NodeId, partition: Partition
) -> Iterator[tuple[int, Entry | int]]:
    """What a reader heard, one after the other, and where it was before."""
    position = record.begins(reader, partition) or 0
    passed = iter(record.passed.get(reader, {}).get(partition, ()))
    following = next(passed, None)
    for at, entry in enumerate([*record.read[reader][partition], None]):
        while following is not None and following[0] == at:
            yield position, following[1]
            position = following[1]
            following = next(passed, None)
        if entry is not None:
            yield position, entry
            position = entry.end


def _signed_offsets(record: LogRecord) -> dict[Partition, list[int]]:
    """The last offsets of signed batches, as far as anybody who is correct knows them."""
    found: dict[Partition, set[int]] = {}
    for _, partition, offset, content in record.contents() if record.validating else ():
        if partition.topic in record.validated and is_signed(content.descriptor):
            last = offset + events_in(content.descriptor) - 1
            found.setdefault(partition, set()).add(last)
    return {partition: sorted(ends) for partition, ends in found.items()}


def same_events(record: LogRecord) -> Iterator[LogViolation]:
    for one, other in combinations(record.readers, 2):
        for partition in record.begun.get(one, {}).keys() & record.begun.get(other, {}).keys():
            start = max(record.begun[each][partition] for each in (one, other))
            end = min(record.end(each, partition) for each in (one, other))
            first, second = (_events(record, each, partition, start, end) for each in (one, other))
            if record.validates(one, partition) is not record.validates(other, partition):
                # Of what both had, the signed part.
                first, second = _signed(first), _signed(second)
            if first != second:
                offset = min(at for at, _ in first.items() ^ second.items())
                sentence = f"readers {one} and {other} differ at offset {offset}"
                yield LogViolation("same events", f"{sentence} of partition {partition.number}")


def _events(
    record: LogRecord, reader: NodeId, partition: Partition, start: int, end: int
) -> dict[int, tuple[bytes, bool]]:
    """By offset, what a reader got, and whether that was signed."""
    return {
        offset: (value, is_signed(entry.payload))
        for entry in record.read.get(reader, {}).get(partition, ())
        for offset, value in enumerate(events_of(entry.payload), entry.offset)
        if start <= offset < end and offset >= entry.offset + entry.skip
    }


def _signed(events: dict[int, tuple[bytes, bool]]) -> dict[int, tuple[bytes, bool]]:
    return {offset: event for offset, event in events.items() if event[1]}


def integrity(record: LogRecord) -> Iterator[LogViolation]:
    for reader, batch, entry in record.entries():
        is_byzantine = record.conducts.get(batch.publisher) is Conduct.BYZANTINE
        if not is_byzantine and record.made(batch) != entry.payload:
            sentence = f"reader {reader} read {batch} as nobody published it"
            yield LogViolation("integrity", sentence, batch)


def no_duplicate(record: LogRecord) -> Iterator[LogViolation]:
    places: dict[LogBatch, int] = {}
    for who, partition, offset, content in record.contents():
        batch = LogBatch(content.publisher, partition, content.sequence)
        known = places.setdefault(batch, offset)
        if known != offset:
            sentence = f"{who} has {batch} at offset {offset}"
            yield LogViolation("no duplicate", f"{sentence}, and it stands at {known}", batch)


def positions(record: LogRecord) -> Iterator[LogViolation]:
    """What stands where a publisher was told that its batch stands, is its batch."""
    for batch, before, after in record.moved:
        sentence = f"{batch} moved from {before} to {after}"
        yield LogViolation("positions", sentence, batch)
    wanted = {
        (batch.partition, offset): batch
        for batch, offset in record.positions.items()
        if record.conducts[batch.publisher] is not Conduct.BYZANTINE
    }
    for who, partition, offset, content in record.contents():
        owner = wanted.get((partition, offset))
        if owner is not None and (owner.publisher, owner.sequence) != content[:2]:
            sentence = f"{who} has another batch at offset {offset}, which {owner.publisher} was "
            yield LogViolation("positions", f"{sentence}given for batch {owner.sequence}", owner)


# In the end


def no_loss(record: LogRecord) -> Iterator[LogViolation]:
    for batch, offset in record.positions.items():
        if record.conducts[batch.publisher] is Conduct.BYZANTINE:
            continue
        for reader in record.readers:
            begun = record.begins(reader, batch.partition)
            if begun is None or offset < begun:
                continue
            if record.end(reader, batch.partition) <= offset:
                sentence = (
                    f"reader {reader} never read offset {offset}, which {batch.publisher} was "
                    f"given for batch {batch.sequence}"
                )
                yield LogViolation("no loss", sentence, batch)


def progress(record: LogRecord) -> Iterator[LogViolation]:
    for publisher, count in record.unpublished.items():
        if count and record.conducts[publisher] is Conduct.CORRECT:
            yield LogViolation("progress", f"{publisher} found no room for {count} batches")
    for batch in record.correct():
        if batch not in record.positions:
            sentence = f"{batch} never got a position"
            yield LogViolation("progress", sentence, batch)


def validity(record: LogRecord) -> Iterator[LogViolation]:
    due = set(record.correct())
    for reader in record.readers:
        there = {
            LogBatch(entry.publisher, partition, entry.sequence)
            for partition, entries in record.read.get(reader, {}).items()
            for entry in entries
        }
        for batch in sorted(due - there):
            begun, offset = record.begins(reader, batch.partition), record.positions.get(batch)
            if begun is None or (begun and (offset is None or offset < begun)):
                continue
            if record.is_wanted(reader, batch):
                sentence = f"reader {reader} never read {batch}"
                yield LogViolation("validity", sentence, batch)


def reports(record: LogRecord) -> Iterator[LogViolation]:
    for node, about, kind in sorted(record.reports):
        if record.conducts.get(about, Conduct.BYZANTINE) is not Conduct.BYZANTINE:
            sentence = f"{node} says '{kind}' of {about}, which did nothing wrong"
            yield LogViolation("reports", sentence)


def true_answers(record: LogRecord) -> Iterator[LogViolation]:
    for client, given in record.answers.items():
        for number, sentence in given.items():
            if sentence.startswith(MADE_UP) and (client, number) not in record.unanswerable:
                said = f"client {client} believes of its command {number}: '{sentence}'"
                yield LogViolation("true answers", said)


def answers(record: LogRecord) -> Iterator[LogViolation]:
    """Every command of a correct client was carried out, or refused."""
    for client, numbers in record.commands.items():
        if record.conducts.get(client, Conduct.CORRECT) is not Conduct.CORRECT:
            continue
        given = record.answers.get(client, {})
        for number in sorted(numbers - set(given)):
            yield LogViolation("answers", f"command {number} of {client} was never answered")


def catching_up(record: LogRecord) -> Iterator[LogViolation]:
    furthest: dict[int, int] = {}
    for ends in record.ends.values():
        for group, end in ends.items():
            furthest[group] = max(end, furthest.get(group, 0))
    for replica, ends in record.ends.items():
        for group, end in ends.items():
            if end < furthest[group]:
                sentence = f"replica {replica} came to {end}, others to {furthest[group]}"
                yield LogViolation("catching up", sentence)


LOG_SAFETY: tuple[LogChecker, ...] = (
    agreement, one_state, total_order, same_events, integrity, no_duplicate, positions,
    true_answers, reports,
)  # fmt: skip
LOG_LIVENESS: tuple[LogChecker, ...] = (no_loss, progress, validity, answers, catching_up)
