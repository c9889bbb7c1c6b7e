"""A companion and its validated log as one: what comes when (docs/decisions/0021)."""

from collections.abc import Iterable

from chamber import BASIC_PARTITION, COMPANION, TOPIC, VALIDATED
from council import A, B
from quorate.core.ids import MARKER
from quorate.core.ordering import SEAL_BYTES, Allow, Partition
from quorate.protocol.machine import Entry, Outcome, Turned
from quorate.protocol.ordering.merging import AHEAD_BATCHES_MAX, AHEAD_BYTES_MAX, Merging
from quorate.protocol.ordering.reading import Reading
from quorate.protocol.outbox import Outbox
from quorate.protocol.topic import Topic
from stage import topic

VALIDATED_TOPIC = topic(VALIDATED, TOPIC)
COMPANION_TOPIC = Topic(COMPANION, VALIDATED_TOPIC.contract.companion, (0, 1, 2), 1)
VALIDATED_PARTITION = Partition(VALIDATED_TOPIC.id, 0)


class Merged:
    """A merging whose two logs a test hands in."""

    def __init__(self, first: range | None = None) -> None:
        self.outbox = Outbox()
        self.opened: list[int] = []
        self.merging = Merging(BASIC_PARTITION, self._read_validated, self.outbox, first=first)
        self.companion = self.merging.companion = Reading(
            COMPANION_TOPIC, BASIC_PARTITION, 0, self.outbox, hand_out=self.merging.on_companion
        )

    def _read_validated(self, offset: int) -> Reading:
        self.opened.append(offset)
        return Reading(
            VALIDATED_TOPIC, VALIDATED_PARTITION, offset, self.outbox,
            hand_out=self.merging.on_validated,
        )  # fmt: skip

    def basic(self, offset: int, payload: bytes = b"basic") -> None:
        """What somebody published without validation stands here in the companion."""
        entry = Entry(BASIC_PARTITION, offset, B, offset + 1, 0, payload, (0,))
        self.merging.on_companion([entry])

    def mark(self, offset: int, of: int) -> None:
        """The mark of this validated batch stands here in the companion."""
        self.merging.on_companion(
            [Entry(BASIC_PARTITION, offset, MARKER, of + 1, 0, b"mark", (0,))]
        )

    def validated(self, *offsets: int, size: int = 1) -> None:
        reading = self.merging.validated
        assert reading is not None
        reading.position = offsets[-1] + 1
        self.merging.on_validated(
            [
                Entry(VALIDATED_PARTITION, at, A, at + 1, 0, bytes(SEAL_BYTES) + b"v" * size, (1,))
                for at in offsets
            ]
        )

    def taken(self) -> list[Outcome]:
        return self.outbox.take().deliver


def places(outcomes: Iterable[Outcome]) -> list[tuple[int, int | None]]:
    """Where each batch stands, and in the validated log."""
    return [(each.offset, each.origin) for each in outcomes if isinstance(each, Entry)]


def test_a_validated_batch_comes_where_its_mark_stands_whichever_arrives_first() -> None:
    merged = Merged()
    merged.basic(0)
    merged.mark(1, of=0)
    merged.basic(2)
    # Given a mark, what is behind it waits for its batch
    assert places(merged.taken()) == [(0, None)]
    assert merged.opened == [0]
    merged.validated(0, 1)
    assert places(merged.taken()) == [(1, 0), (2, None)]
    # and a batch waits for its mark.
    merged.basic(3)
    merged.mark(4, of=1)
    assert places(merged.taken()) == [(3, None), (4, 1)]


def test_who_begins_in_the_middle_reads_the_validated_log_from_its_first_mark_on() -> None:
    merged = Merged()
    merged.mark(70, of=41)
    assert merged.opened == [41]


def test_what_is_to_come_first_comes_first_and_is_not_repeated() -> None:
    # Given that batches 5 and 6 have their marks before where the companion is read from
    merged = Merged(first=range(5, 7))
    merged.basic(20)
    assert places(merged.taken()) == []
    merged.validated(5, 6)
    first, second, third = merged.taken()
    assert [each.partition for each in (first, second) if isinstance(each, Entry)] == [
        VALIDATED_PARTITION, VALIDATED_PARTITION,
    ]  # fmt: skip
    assert places([first, second, third]) == [(5, 5), (6, 6), (20, None)]
    # When marks come of what was delivered, they are passed over.
    merged.mark(21, of=6)
    merged.basic(22)
    assert places(merged.taken()) == [(22, None)]


def test_a_batch_that_retention_took_is_passed_over() -> None:
    merged = Merged()
    merged.mark(0, of=3)
    merged.mark(1, of=4)
    merged.basic(2)
    merged.validated(4)
    assert places(merged.taken()) == [(1, 4), (2, None)]


def test_batches_whose_marks_retention_took_are_not_read_for_nothing() -> None:
    merged = Merged()
    merged.mark(0, of=3)
    merged.validated(3, 4, 5)
    merged.taken()
    # When the companion goes on with the mark of a batch far ahead, that is read next
    merged.mark(500, of=400)
    assert merged.opened == [3, 400]
    merged.validated(400)
    assert places(merged.taken()) == [(500, 400)]


def test_so_much_of_either_log_is_read_ahead_of_the_other() -> None:
    merged = Merged()
    merged.mark(0, of=0)
    assert merged.companion.may_go_on
    for offset in range(1, AHEAD_BATCHES_MAX + 2):
        merged.basic(offset)
    # Given that much waits for a validated batch, no more is asked for
    assert not merged.companion.may_go_on
    merged.companion.position = merged.companion._limit
    merged.outbox.take()
    merged.validated(0)
    # and when that has come, more is.
    ready = merged.outbox.take()
    assert merged.companion.may_go_on
    assert len(ready.deliver) == AHEAD_BATCHES_MAX + 2
    assert any(isinstance(message, Allow) for _, message in ready.send)
    # The same with validated batches that have no marks yet.
    assert merged.merging.validated is not None
    merged.validated(1, size=AHEAD_BYTES_MAX)
    assert not merged.merging.validated.may_go_on
    merged.mark(5000, of=1)
    assert merged.merging.validated.may_go_on


def test_who_turns_to_what_is_validated_hears_with_which_batch_to_go_on() -> None:
    merged = Merged()
    merged.mark(0, of=7)
    merged.validated(7)
    merged.taken()
    merged.merging.turn()
    merged.merging.go_on()
    assert merged.taken() == [Turned(BASIC_PARTITION, 8)]
    # Then nothing more is delivered, and it is not to be had back.
    merged.basic(1)
    assert merged.taken() == []
    assert not merged.merging.turn_back()


def test_who_has_read_nothing_validated_waits_for_the_first_mark_or_goes_on_after_all() -> None:
    merged = Merged()
    merged.basic(0)
    merged.taken()
    merged.merging.turn()
    merged.basic(1)
    assert merged.taken() == []
    assert merged.merging.turn_back()
    # What came meanwhile is past.
    merged.basic(2)
    assert places(merged.taken()) == [(2, None)]
    merged.merging.turn()
    merged.basic(3)
    merged.mark(4, of=9)
    assert merged.taken() == [Turned(BASIC_PARTITION, 9)]


def test_a_validated_batch_that_is_none_reaches_the_program_as_what_it_is() -> None:
    merged = Merged()
    merged.mark(0, of=0)
    assert merged.merging.validated is not None
    merged.merging.on_validated([Entry(VALIDATED_PARTITION, 0, A, 1, 0, b"short", (1,))])
    (entry,) = merged.taken()
    assert isinstance(entry, Entry)
    assert entry.payload == b""
