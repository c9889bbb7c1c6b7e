"""Where validated batches stand among those that nobody validates.

Source: Kabis 2023, section 2.1 (table 2.1: whoever does not validate gets the events of both kinds
of producers, in one order); docs/decisions/0021.

A validated topic has a second log, its *companion*: what is published without validation goes
there, through the group that bears crashes. Each partition of it also has a line of its own,
`MARKER`'s, whose batches are *marks*. The mark with number k + 1 stands for the validated batch at
offset k of the same partition. All marks are the same bytes, so that nobody has to send them:
whoever knows how many there are knows the line, with its chain. It is ordered as any other line,
and so

- a validated batch has exactly one place among the others, and marks are in the order of offsets,
  whoever leads;
- one offset of the companion says how far somebody is with both kinds;
- nothing waits for a mark that is not there: only what the Byzantine group has decided is marked.

A replica marks what its own part of the Byzantine group has decided: at once if somebody reads the
companion here, or asks (`Mark`), and otherwise now and then, for a mark is needed only by those who
read. Whoever asks where a companion ends hears of it when all is marked that was decided here by
then: it wants nothing of that. A replica tells the leader how far it is, who takes its word for it.
These are guarantees under crash faults: a replica that lies can mark what is not there.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quorate.core.ids import MARKER, NodeId, topic_id
from quorate.core.ordering import Follow, Line, Locate, Mark, Marked, Partition
from quorate.protocol.outbox import Outbox
from quorate.protocol.topic import Topic

if TYPE_CHECKING:
    from quorate.protocol.ordering.group import Group

# Where nobody reads a companion, marks are made so often.
MARK_EVERY_US = 1_000_000
# So many questions may wait for marks. What is asked beyond is answered at once if it can be, and
# asked again if not.
WAITING_MAX = 256


class Marking:
    """What one replica does so that validated batches get their places in companions."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        # Validated partitions that have companions, and the companions' own.
        self._companions: dict[Partition, Partition] = {}
        # Those of which more is to be marked at once than there was room for.
        self._behind: dict[Partition, None] = {}
        # What was asked about a companion, and how many marks it has to have before the answer.
        self._waiting: dict[tuple[NodeId, Partition, type], tuple[Locate | Mark, int]] = {}
        self._marked_us = -MARK_EVERY_US

    def adopt(self, topics: Iterable[Topic]) -> None:
        """These are the topics from now on."""
        self._companions = {
            Partition(topic_id(topic.companion_of), number): Partition(topic.id, number)
            for topic in topics
            if topic.companion_of
            for number in range(topic.contract.partitions)
        }

    def flush(self, validated: "Group", basic: "Group") -> None:
        """Mark what was decided in this turn, where somebody waits for it."""
        for partition in list(self._behind):
            self._mark(partition, validated, basic)
        for partition in validated.take_grown():
            companion = self._companions.get(partition)
            if companion is not None and basic.readers.are_on(companion):
                self._mark(partition, validated, basic)

    def tick(self, validated: "Group", basic: "Group") -> None:
        """Now and then, all of it: also what was decided before we started."""
        if self._outbox.now_us - self._marked_us >= MARK_EVERY_US:
            self._marked_us = self._outbox.now_us
            for partition in self._companions:
                self._mark(partition, validated, basic)

    def on_mark(
        self, sender: NodeId, mark: Mark, validated_topic: Topic, validated: "Group", basic: "Group"
    ) -> None:
        """Somebody wants to go on behind a validated batch."""
        companion = Partition(mark.topic, mark.partition)
        if _marked(basic, companion) >= mark.offset:
            self._tell(sender, mark, basic)
            return
        if len(self._waiting) < WAITING_MAX:
            self._waiting[sender, companion, Mark] = mark, mark.offset
        self._mark(Partition(validated_topic.id, mark.partition), validated, basic)

    def on_follow(
        self, follow: Follow, validated_topic: Topic, validated: "Group", basic: "Group"
    ) -> None:
        """Somebody begins to read a companion, and wants all that is decided."""
        self._mark(Partition(validated_topic.id, follow.partition), validated, basic)

    def on_locate(
        self, sender: NodeId, locate: Locate, validated_topic: Topic, validated: "Group",
        basic: "Group",
    ) -> None:  # fmt: skip
        """Somebody wants to know where a companion ends."""
        companion = Partition(locate.topic, locate.partition)
        partition = Partition(validated_topic.id, locate.partition)
        asked, needed = self._waiting.get((sender, companion, Locate), (None, 0))
        if asked is None or asked.number != locate.number:
            needed = validated.log.partition(partition).end
        if _marked(basic, companion) >= needed or len(self._waiting) >= WAITING_MAX:
            self._waiting.pop((sender, companion, Locate), None)
            self._tell(sender, locate, basic)
        else:
            self._waiting[sender, companion, Locate] = locate, needed
            self._mark(partition, validated, basic)

    def answer(self, basic: "Group") -> None:
        """Tell those who waited for marks that are there now."""
        for key, (asked, needed) in list(self._waiting.items()):
            sender, companion, _ = key
            if _marked(basic, companion) >= needed:
                del self._waiting[key]
                self._tell(sender, asked, basic)

    def gone(self, node: NodeId) -> None:
        for key in [key for key in self._waiting if key[0] == node]:
            del self._waiting[key]

    def _tell(self, node: NodeId, asked: Locate | Mark, basic: "Group") -> None:
        if isinstance(asked, Locate):
            basic.readers.on_locate(node, asked)
            return
        companion = Partition(asked.topic, asked.partition)
        end, marked = basic.log.partition(companion).end, _marked(basic, companion)
        self._outbox.answer(node, Marked(*companion, asked.number, end, marked), 0)

    def _mark(self, partition: Partition, validated: "Group", basic: "Group") -> None:
        end, companion = validated.log.partition(partition).end, self._companions[partition]
        if _marked(basic, companion) >= end or basic.mark(Line(MARKER, *companion), end):
            self._behind.pop(partition, None)
        else:
            # There is no room for so many at once.
            self._behind[partition] = None


def _marked(basic: "Group", companion: Partition) -> int:
    """How many validated batches have their places in a companion."""
    return basic.log.line(Line(MARKER, *companion)).next - 1
