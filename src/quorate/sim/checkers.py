"""What must hold of a run, whatever the protocol did to bring it about.

A checker reads a `Record`: what sources were told to publish, and what came out at the
destinations. It knows nothing of votes, chains or histories and shares no code with the
protocols, so that a mistake in a protocol cannot hide in its checker.

Who is faulty owes nothing and is owed nothing: only correct destinations are in a record, and
what holds for a batch depends on the `Conduct` of its source. Which of the properties hold at
all is a matter of the protocol, and `Promises` says it:

- integrity: what a destination delivers from a source that is not Byzantine, that source was
  told to publish under that number. Holds for every protocol.
- no duplication: a destination delivers a number of a stream at most once. Always holds.
- agreement: no two destinations deliver different contents under one number. For sources that
  are not Byzantine it follows from integrity; `authenticated`, `reliable` and `chain` promise it
  for all sources.
- order: under `fifo` a destination delivers the numbers of a stream in rising order.
- validity: what a correct source was told to publish, every destination delivers, once the
  network is calm.
- totality: what one destination delivers, all do. `reliable` promises it for all sources. A
  history is broadcast reliably, so that what one destination repaired from a history, all
  deliver. Other batches of Byzantine sources may reach some and not others.
- receipts: what a source that crashed had a receipt for, every destination delivers. Only
  `reliable` promises it, where a receipt means that a correct replica delivered.
- progress: a correct source finds room for all that it was told to publish, and has a receipt
  for it, once the network is calm. A chain without histories promises neither this nor
  validity: one silent replica stops it.

The first four hold at any time; the others are about the end of a run.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from quorate.core.ids import Lane, NodeId, Sequence, TopicId
from quorate.protocol.machine import Delivery, Outcome, Receipt


class BatchId(NamedTuple):
    publisher: NodeId
    topic: TopicId
    sequence: Sequence

    def __str__(self) -> str:
        return f"batch {self.sequence} of {self.publisher}"


class Conduct(Enum):
    """How a source behaves."""

    CORRECT = "correct"
    CRASHED = "crashed"
    BYZANTINE = "byzantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Which properties this run must have, beside integrity and no duplication."""

    agreement_for_byzantine_sources: bool
    totality_for_all: bool
    receipts_survive_their_source: bool
    # Validity and progress.
    liveness: bool = True
    fifo: bool = False


@dataclass(slots=True)
class Record:
    """A run from the outside, as it happened."""

    conducts: dict[NodeId, Conduct]
    destinations: tuple[NodeId, ...]
    published: dict[BatchId, bytes] = field(default_factory=dict)
    # How many batches each source has yet to find room for.
    unpublished: dict[NodeId, int] = field(default_factory=dict)
    # In the order of delivery.
    deliveries: dict[NodeId, list[Delivery]] = field(default_factory=dict)
    receipts: dict[NodeId, list[Receipt]] = field(default_factory=dict)

    def on_outcome(self, node: NodeId, outcome: Outcome) -> None:
        """Outcomes of nodes that are not on record do not count."""
        if isinstance(outcome, Delivery) and node in self.destinations:
            self.deliveries.setdefault(node, []).append(outcome)
        elif isinstance(outcome, Receipt) and node in self.conducts:
            self.receipts.setdefault(node, []).append(outcome)

    def delivered(self, destination: NodeId) -> Iterator[tuple[BatchId, Delivery]]:
        for delivery in self.deliveries.get(destination, ()):
            stream = delivery.stream
            yield BatchId(stream.publisher, stream.topic, delivery.sequence), delivery

    def published_by(self, conduct: Conduct) -> Iterator[BatchId]:
        for batch in self.published:
            if self.conducts[batch.publisher] is conduct:
                yield batch

    def receipted(self, source: NodeId) -> set[BatchId]:
        return {
            BatchId(source, receipt.stream.topic, sequence)
            for receipt in self.receipts.get(source, ())
            if receipt.stream.lane is Lane.EVENTS
            for sequence in range(receipt.first, receipt.last + 1)
        }


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that does not hold, with the batch that shows it."""

    checker: str
    sentence: str
    batch: BatchId


Checker: TypeAlias = Callable[[Record, Promises], Iterator[Violation]]


def check(record: Record, promises: Promises, checkers: Iterable[Checker]) -> list[Violation]:
    """Everything that these checkers find."""
    return [violation for checker in checkers for violation in checker(record, promises)]


# At any time


def integrity(record: Record, _: Promises) -> Iterator[Violation]:
    """What is delivered from a source that does not lie, it was told to publish."""
    for destination in record.destinations:
        for batch, delivery in record.delivered(destination):
            conduct = record.conducts.get(batch.publisher)
            if conduct is Conduct.BYZANTINE:
                continue
            if conduct is None or batch not in record.published:
                sentence = f"{destination} delivered {batch}, which was never published"
                yield Violation("integrity", sentence, batch)
            elif record.published[batch] != delivery.payload:
                sentence = f"{destination} delivered {batch} with forged content"
                yield Violation("integrity", sentence, batch)


def no_duplication(record: Record, _: Promises) -> Iterator[Violation]:
    """A destination delivers each batch at most once."""
    for destination in record.destinations:
        seen: set[BatchId] = set()
        for batch, _delivery in record.delivered(destination):
            if batch in seen:
                sentence = f"{destination} delivered {batch} twice"
                yield Violation("no duplication", sentence, batch)
            seen.add(batch)


def agreement(record: Record, promises: Promises) -> Iterator[Violation]:
    """No two destinations deliver different contents of one batch."""
    first: dict[BatchId, tuple[NodeId, bytes]] = {}
    for destination in record.destinations:
        for batch, delivery in record.delivered(destination):
            lies = record.conducts.get(batch.publisher) is Conduct.BYZANTINE
            if lies and not promises.agreement_for_byzantine_sources:
                continue
            other, payload = first.setdefault(batch, (destination, delivery.payload))
            if payload != delivery.payload:
                sentence = f"{other} and {destination} delivered {batch} differently"
                yield Violation("agreement", sentence, batch)


def order(record: Record, promises: Promises) -> Iterator[Violation]:
    """Under fifo, the numbers of a stream rise."""
    for destination in record.destinations if promises.fifo else ():
        last: dict[tuple[NodeId, TopicId], Sequence] = {}
        for batch, _delivery in record.delivered(destination):
            stream = batch.publisher, batch.topic
            if batch.sequence <= last.get(stream, -1):
                sentence = f"{destination} delivered {batch} after {last[stream]}"
                yield Violation("order", sentence, batch)
            last[stream] = batch.sequence


# At the end of a run


def validity(record: Record, promises: Promises) -> Iterator[Violation]:
    """What a correct source published, every destination delivers."""
    if promises.liveness:
        due = list(record.published_by(Conduct.CORRECT))
        yield from _undelivered(record, "validity", due, "a correct source published it")


def totality(record: Record, promises: Promises) -> Iterator[Violation]:
    """What one destination delivers, or repairs from a history, all deliver."""
    due: dict[BatchId, None] = {}
    for destination in record.destinations:
        for batch, delivery in record.delivered(destination):
            if promises.totality_for_all or delivery.repaired:
                due[batch] = None
    yield from _undelivered(record, "totality", due, "another destination delivered it")


def receipts(record: Record, promises: Promises) -> Iterator[Violation]:
    """What a crashed source had a receipt for, every destination delivers."""
    if promises.receipts_survive_their_source:
        due = [
            batch
            for source, conduct in record.conducts.items()
            if conduct is Conduct.CRASHED
            for batch in sorted(record.receipted(source))
        ]
        yield from _undelivered(record, "receipts", due, "its source had a receipt for it")


def progress(record: Record, promises: Promises) -> Iterator[Violation]:
    """A correct source has a receipt for everything."""
    if not promises.liveness:
        return
    receipted = {source: record.receipted(source) for source in record.conducts}
    for batch in record.published_by(Conduct.CORRECT):
        if batch not in receipted[batch.publisher]:
            sentence = f"{batch.publisher} never got a receipt for {batch}"
            yield Violation("progress", sentence, batch)
    for source, count in record.unpublished.items():
        if count and record.conducts[source] is Conduct.CORRECT:
            mine = (batch for batch in record.published if batch.publisher == source)
            last = max(mine, default=BatchId(source, 0, 0))
            sentence = f"{source} never found room for {count} batches after {last}"
            yield Violation("progress", sentence, last)


SAFETY: tuple[Checker, ...] = (integrity, no_duplication, agreement, order)
LIVENESS: tuple[Checker, ...] = (validity, totality, receipts, progress)


def _undelivered(
    record: Record, checker: str, due: Iterable[BatchId], because: str
) -> Iterator[Violation]:
    due = list(due)
    for destination in record.destinations:
        here = {batch for batch, _ in record.delivered(destination)}
        for batch in due:
            if batch not in here:
                sentence = f"{destination} never delivered {batch}, and {because}"
                yield Violation(checker, sentence, batch)
