"""What a replica's machines get back when they start."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quorate.protocol.ordering.records import Decided, Held, Snapshot, Voted
from quorate.storage.pending import Run, Source
from quorate.storage.places import unpack
from quorate.storage.reading import gather
from quorate.storage.segments import Segments

Replayed: TypeAlias = Held | Voted | Decided


@dataclass(frozen=True, slots=True)
class Recovered:
    """The newest snapshot of each group that has one, and what came after.

    `records` has the payloads that are held and not decided, then what was voted and decided
    behind the snapshots, in the order of writing. It reads from the journal as it goes, so it
    must be used up before the store is cleaned. `replayed` says how many records of the journal
    were read again.
    """

    snapshots: dict[int, Snapshot]
    records: Iterator[Replayed]
    replayed: int
    # Why the first record that was skipped of a group does not fit, by group.
    skipped: dict[int, str]


def recovered_records(
    segments: Segments,
    pending: Sequence[tuple[Source, Run]],
    positions: Sequence[int],
    is_needed: Callable[[Voted | Decided], bool],
) -> Iterator[Replayed]:
    for source, run in pending:
        yield Held(*source, run.first, gather(segments, *unpack(run.places)))
    for position in positions:
        head = segments.frame(position).head
        # A snapshot that was installed later may have made it void.
        if isinstance(head, Voted | Decided) and is_needed(head):
            yield head
