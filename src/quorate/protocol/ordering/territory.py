"""What a group may decide: the partitions that are its own, and how much one slot may name.

Log topics with the same protection are one group's own, with the partitions that the control log
gave them. What a group decides takes effect there only, whatever path a value arrives on, since a
group that tolerates crashes believes any single voice. Access lists do not enter: replicas learn of
a change to them in different slots, and of the group of a topic for good.
"""

from collections.abc import Callable, Iterable

from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.errors import RemoteProtocolError
from quorate.core.header import PLAIN_BYTES_MAX
from quorate.core.ids import TopicId
from quorate.core.ordering import Partition
from quorate.protocol.ordering.log import LogState
from quorate.protocol.ordering.placement import GroupKind, group_of
from quorate.protocol.ordering.value import Value
from quorate.protocol.topic import Topic

# A slot orders up to so much.
SLOT_BATCHES_MAX = 4096
# In bytes before compression, since all replicas know those; any one batch fits.
SLOT_BYTES_MAX = PLAIN_BYTES_MAX
# Of commands fewer: whoever lags behind is told them all in one message.
SLOT_COMMANDS_MAX = 1024
TOO_MUCH = "a value of more than a slot orders"

TopicOf = Callable[[TopicId], Topic | None]


class Territory:
    """The partitions of one group, as far as the control log has told of them."""

    def __init__(self, kind: GroupKind, topic_of: TopicOf) -> None:
        self._kind, self._topic_of = kind, topic_of

    def refusal(self, value: bytes) -> str:
        """Why this group never decides this value; empty if it may."""
        try:
            spans = Value.decode(value).spans
        except RemoteProtocolError as error:
            return str(error)
        commands = sum(span.batches for span in spans if span.topic == CONTROL_TOPIC_ID)
        if sum(span.batches for span in spans) > SLOT_BATCHES_MAX or commands > SLOT_COMMANDS_MAX:
            return TOO_MUCH
        return self._foreign((span.topic for span in spans), self._topic_of)

    def refusal_of_state(self, state: LogState, topic_of: TopicOf | None = None) -> str:
        """Why this group's log never comes to this state; empty if it may."""
        topics = {each.topic for each in state.partitions} | {each.topic for each in state.lines}
        return self._foreign(sorted(topics), topic_of or self._topic_of)

    def knows(self, partitions: Iterable[Partition], topic_of: TopicOf | None = None) -> bool:
        """Whether the control log has told of all of these; if not, the group waits for that."""
        find = topic_of or self._topic_of
        known = ((find(each.topic), each.number) for each in partitions)
        return all(topic is not None and n < topic.contract.partitions for topic, n in known)

    def foreign(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Those of these that are another group's."""
        return [each for each in partitions if self._foreign([each.topic], self._topic_of)]

    def _foreign(self, topics: Iterable[TopicId], topic_of: TopicOf) -> str:
        for number in topics:
            topic = topic_of(number)
            if topic is not None and group_of(topic.contract) is not self._kind:
                return f"batches of topic '{topic.name}', which another group orders"
        return ""
