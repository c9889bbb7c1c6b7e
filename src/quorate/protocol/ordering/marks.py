"""The client's question where validated batches stand in a companion (`marking.py`).

Whoever changes from validated to basic goes on behind a validated batch. The answer of one replica
is enough: these are guarantees under crash faults.
"""

from quorate.core.ids import NodeId
from quorate.core.ordering import Mark, Marked, Partition
from quorate.protocol.machine import Answered
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import Requests
from quorate.protocol.topic import Topic

ASK_AGAIN_US = 100_000


class Marks:
    """What one client has asked, by request number."""

    def __init__(self, outbox: Outbox, requests: Requests) -> None:
        self._outbox, self._requests = outbox, requests
        self._asked: dict[int, tuple[Topic, Mark]] = {}
        self._found: dict[int, Marked] = {}
        self._asked_us = 0

    def ask(self, companion: Topic, partition: int, offset: int) -> int:
        """Have the validated batches before this offset placed; the number comes back in an
        `Answered`, and `take` has what was said then."""
        number = self._requests.take_number()
        mark = Mark(companion.id, partition, number, offset)
        self._asked[number] = companion, mark
        self._outbox.send_all(companion.members, mark)
        return number

    def take(self, number: int) -> Marked | None:
        """The answer, if there is one. Nothing is asked any more."""
        self._asked.pop(number, None)
        return self._found.pop(number, None)

    def on_marked(self, sender: NodeId, marked: Marked) -> None:
        companion, mark = self._asked.get(marked.number, (None, None))
        if companion is None or mark is None or sender not in companion.index:
            return
        is_of = Partition(marked.topic, marked.partition) == Partition(mark.topic, mark.partition)
        if is_of and marked.marked >= mark.offset:
            del self._asked[marked.number]
            self._found[marked.number] = marked
            self._outbox.deliver(Answered(marked.number, ""))

    def tick(self) -> None:
        if self._asked and self._outbox.now_us - self._asked_us >= ASK_AGAIN_US:
            self._asked_us = self._outbox.now_us
            for companion, mark in self._asked.values():
                self._outbox.send_all(companion.members, mark)
