"""A stretch of a partition is read from one replica, which may lie."""

from itertools import count

from quorate.core.ordering import Absent, Entries, Follow, Partition
from quorate.crypto.digests import descriptor
from quorate.protocol.ordering.ranges import (
    AGAIN_AFTER_US,
    CREDIT_BYTES,
    PATIENCE_US,
    RangeReading,
    Settled,
    Unsettled,
)
from stage import Outlook, event, events, topic

VALIDATED: dict[str, object] = {"protection": "byzantine", "order": "total", "validated": True}
CRASH: dict[str, object] = {"protection": "crash", "order": "total"}


class Desk:
    """Who reads a stretch, and the replicas that it can reach."""

    def __init__(self, table: dict[str, object], stretch: range) -> None:
        self.look = Outlook()
        self.topic = topic(table)
        self.partition = Partition(self.topic.id, 0)
        self.connected = set(self.topic.members)
        self.said: list[list[Settled] | Unsettled] = []
        self.reports: list[tuple[int, str]] = []
        self.reading = RangeReading(
            self.topic,
            self.partition,
            stretch,
            self.look.outbox,
            self.connected,
            count(1),
            None,
            self._take,
        )
        self.reading.taken(stretch.start)

    def _take(self, said: list[Settled] | Unsettled) -> None:
        self.said.append(said)
        if isinstance(said, list):
            self.reading.taken(said[-1].end)

    def asked(self) -> list[tuple[int, Follow]]:
        """Who is asked for batches since the last look, which forgets everything."""
        ready = self.look.take()
        self.reports += [(each.node, each.kind) for each in ready.reports]
        return [(to, each) for to, each in ready.send if isinstance(each, Follow)]

    def entries(self, offset: int, *payloads: bytes, bare: list[int]) -> Entries:
        return Entries(1000, *self.partition, offset, 1, 0, bytes(32), bytes(32), [*payloads], bare)


def test_a_lead_that_says_of_what_it_did_not_send_that_it_is_a_descriptor_gives_way() -> None:
    desk = Desk(VALIDATED, range(3))
    ((lead, _),) = desk.asked()
    said = desk.entries(0, descriptor(event(b"1")), bare=[0, 7])

    desk.reading.on_entries(lead, said)

    ((other, _),) = desk.asked()
    assert other != lead
    assert desk.reports == [(lead, "bad-lead")]


def test_a_lead_may_send_as_far_ahead_as_memory_allows_however_much_came_together() -> None:
    """Of more than the credit together, one event was allowed."""
    desk = Desk(CRASH, range(1000))
    ((lead, _),) = desk.asked()
    large = event(bytes(CREDIT_BYTES * 3 // 10))
    said = desk.entries(0, *[large] * 4, bare=[])

    desk.reading.on_entries(lead, said)

    assert desk.reading._credit == 3


def test_what_nobody_gives_as_it_should_be_is_given_up_by_the_batch() -> None:
    """It was given up event by event, and each took as long as the first."""
    desk = Desk(CRASH, range(9))
    wrong = desk.entries(0, descriptor(events(b"1", b"2", b"3")), bare=[0])
    while not desk.said and desk.look.outbox.now_us < 2 * PATIENCE_US:
        for lead, _ in desk.asked():
            desk.reading.on_entries(lead, wrong)
        desk.look.at(desk.look.outbox.now_us + AGAIN_AFTER_US)
        desk.reading.tick()

    (given_up,) = desk.said
    assert isinstance(given_up, Unsettled)
    assert (given_up.offset, given_up.end) == (0, 3)


def test_one_that_lies_gives_up_no_more_than_it_must_while_the_others_are_silent() -> None:
    desk = Desk(VALIDATED, range(9))
    liar = desk.topic.members[0]
    while not desk.said and desk.look.outbox.now_us < 2 * PATIENCE_US:
        for lead, follow in desk.asked():
            if lead == liar:
                absent = Absent(*desk.partition, follow.offset, 9)
                desk.reading.on_absent(lead, absent)
        desk.look.at(desk.look.outbox.now_us + AGAIN_AFTER_US)
        desk.reading.tick()

    (given_up,) = desk.said
    assert isinstance(given_up, Unsettled)
    assert (given_up.offset, given_up.end) == (0, 1)
