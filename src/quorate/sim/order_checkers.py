"""What must hold of a log, whatever the protocol did to bring it about.

As in `checkers.py`, nothing here knows of slots, votes or leaders. A run is what publishers were
told to publish, the positions they were given, what readers read, and what the disks of correct
replicas hold in the end:

- agreement: no two readers read different batches at one offset, and no two correct replicas have
  different batches there.
- one state: whatever correct replicas write down as their state after a slot is the same.
- total order: a reader reads a partition without gaps, from its beginning, and the batches of a
  publisher in the order of their numbers.
- integrity: what is read from a publisher that is not Byzantine, it was told to publish.
- no duplicate: a publisher's batch stands at one offset.
- no loss: at the position that a publisher was given, every reader finds that batch.
- true answers: no client believes what a lying replica says became of its command.
- catching up: whoever was away comes to where the others are.
- validity and progress: what a correct publisher was told to publish has a position, and is read
  by every reader, once the network is calm.

All but the last two hold at any time; that readers find what has a position is about the end.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.ordering import Partition
from quorate.crypto.digests import digest, seal_digest
from quorate.protocol.machine import Answered, Entry, Outcome, Recorded
from quorate.protocol.misbehaviour import MADE_UP
from quorate.sim.checkers import Conduct


def content_of(entry: Entry) -> Digest:
    """What stands for it in the log."""
    return seal_digest(entry.seal) if entry.seal else digest(entry.payload)


class LogBatch(NamedTuple):
    """A batch, by its publisher's number."""

    publisher: NodeId
    partition: Partition
    sequence: Sequence


class Content(NamedTuple):
    """What stands at an offset."""

    publisher: NodeId
    sequence: Sequence
    digest: bytes


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
    read: dict[NodeId, dict[Partition, list[Entry]]] = field(default_factory=dict)
    positions: dict[LogBatch, int] = field(default_factory=dict)
    # What correct replicas have on disk, looked at now and then.
    logs: dict[NodeId, dict[Partition, dict[int, Content]]] = field(default_factory=dict)
    # How far those have come that are there in the end, by the number of their last decision.
    ends: dict[NodeId, int] = field(default_factory=dict)
    # Their snapshots, by slot.
    states: dict[NodeId, dict[int, set[bytes]]] = field(default_factory=dict)
    # What clients commanded, and what was answered, by their own numbers.
    commands: dict[NodeId, set[int]] = field(default_factory=dict)
    answers: dict[NodeId, dict[int, str]] = field(default_factory=dict)
    # Positions that contradict an earlier one.
    moved: list[tuple[LogBatch, int, int]] = field(default_factory=list)

    def on_outcome(self, node: NodeId, outcome: Outcome) -> None:
        if isinstance(outcome, Entry) and node in self.readers:
            partitions = self.read.setdefault(node, {})
            partitions.setdefault(outcome.partition, []).append(outcome)
        elif isinstance(outcome, Answered):
            self.answers.setdefault(node, {})[outcome.number] = outcome.sentence
        elif isinstance(outcome, Recorded) and outcome.line.topic == CONTROL_TOPIC_ID:
            # Of a command, its answer counts.
            return
        elif isinstance(outcome, Recorded) and node in self.conducts:
            for at in range(outcome.count):
                batch = LogBatch(node, outcome.line.target, outcome.first + at)
                offset = self.positions.setdefault(batch, outcome.offset + at)
                if offset != outcome.offset + at:
                    self.moved.append((batch, offset, outcome.offset + at))

    @property
    def entries_read(self) -> int:
        return sum(len(read) for each in self.read.values() for read in each.values())

    def correct(self) -> Iterator[LogBatch]:
        for batch in self.published:
            if self.conducts[batch.publisher] is Conduct.CORRECT:
                yield batch

    def contents(self) -> Iterator[tuple[str, Partition, int, Content]]:
        """Everything that anybody who is correct says stands somewhere."""
        for reader, partitions in self.read.items():
            for partition, entries in partitions.items():
                for entry in entries:
                    content = Content(entry.publisher, entry.sequence, content_of(entry))
                    yield f"reader {reader}", partition, entry.offset, content
        for replica, logs in self.logs.items():
            for partition, log in logs.items():
                for offset, content in log.items():
                    yield f"replica {replica}", partition, offset, content


LogChecker: TypeAlias = Callable[[LogRecord], Iterator[LogViolation]]


def check_log(record: LogRecord, checkers: Iterable[LogChecker]) -> list[LogViolation]:
    return [violation for checker in checkers for violation in checker(record)]


# At any time


def agreement(record: LogRecord) -> Iterator[LogViolation]:
    seen: dict[tuple[Partition, int], tuple[str, Content]] = {}
    for who, partition, offset, content in record.contents():
        first, known = seen.setdefault((partition, offset), (who, content))
        if known != content:
            batch = LogBatch(content.publisher, partition, content.sequence)
            sentence = (
                f"{who} has batch {content.sequence} of {content.publisher} at offset {offset} of "
                f"partition {partition.number}, {first} has batch {known.sequence} of "
                f"{known.publisher}"
            )
            yield LogViolation("agreement", sentence, batch)


def one_state(record: LogRecord) -> Iterator[LogViolation]:
    seen: dict[int, tuple[NodeId, bytes]] = {}
    for replica, slots in record.states.items():
        for slot, states in slots.items():
            for state in states:
                first, known = seen.setdefault(slot, (replica, state))
                if known != state:
                    sentence = f"replicas {first} and {replica} differ in their state after {slot}"
                    yield LogViolation("one state", sentence)


def total_order(record: LogRecord) -> Iterator[LogViolation]:
    for reader, partitions in record.read.items():
        for partition, entries in partitions.items():
            last: dict[NodeId, Sequence] = {}
            for expected, entry in enumerate(entries):
                batch = LogBatch(entry.publisher, partition, entry.sequence)
                if entry.offset != expected:
                    sentence = f"reader {reader} read offset {entry.offset} instead of {expected}"
                    yield LogViolation("total order", sentence, batch)
                    return
                if entry.sequence != last.get(entry.publisher, 0) + 1:
                    before = last.get(entry.publisher, 0)
                    sentence = f"reader {reader} read batch {entry.sequence} after batch {before}"
                    yield LogViolation("total order", sentence, batch)
                last[entry.publisher] = entry.sequence


def integrity(record: LogRecord) -> Iterator[LogViolation]:
    for reader, partitions in record.read.items():
        for partition, entries in partitions.items():
            for entry in entries:
                batch = LogBatch(entry.publisher, partition, entry.sequence)
                conduct = record.conducts.get(entry.publisher)
                if conduct is Conduct.BYZANTINE:
                    continue
                if record.published.get(batch) != entry.payload:
                    sentence = f"reader {reader} read batch {entry.sequence} of {entry.publisher} "
                    yield LogViolation("integrity", sentence + "as nobody published it", batch)


def no_duplicate(record: LogRecord) -> Iterator[LogViolation]:
    places: dict[LogBatch, int] = {}
    for who, partition, offset, content in record.contents():
        batch = LogBatch(content.publisher, partition, content.sequence)
        known = places.setdefault(batch, offset)
        if known != offset:
            sentence = f"{who} has batch {batch.sequence} of {batch.publisher} at offset {offset}"
            yield LogViolation("no duplicate", f"{sentence}, and it stands at {known}", batch)


def positions(record: LogRecord) -> Iterator[LogViolation]:
    """What stands where a publisher was told that its batch stands, is its batch."""
    for batch, before, after in record.moved:
        sentence = f"batch {batch.sequence} of {batch.publisher} moved from {before} to {after}"
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
            if offset >= len(record.read.get(reader, {}).get(batch.partition, ())):
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
            sentence = f"batch {batch.sequence} of {batch.publisher} never got a position"
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
            sentence = f"reader {reader} never read batch {batch.sequence} of {batch.publisher}"
            yield LogViolation("validity", sentence, batch)


def true_answers(record: LogRecord) -> Iterator[LogViolation]:
    for client, given in record.answers.items():
        for number, sentence in given.items():
            if sentence.startswith(MADE_UP):
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
    furthest = max(record.ends.values(), default=0)
    for replica, end in record.ends.items():
        if end < furthest:
            sentence = f"replica {replica} came to {end}, others to {furthest}"
            yield LogViolation("catching up", sentence)


LOG_SAFETY: tuple[LogChecker, ...] = (
    agreement, one_state, total_order, integrity, no_duplicate, positions, true_answers,
)  # fmt: skip
LOG_LIVENESS: tuple[LogChecker, ...] = (no_loss, progress, validity, answers, catching_up)
