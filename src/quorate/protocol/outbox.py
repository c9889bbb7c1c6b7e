"""Where a machine and its parts put what they want, until the driver takes it."""

from collections.abc import Iterable

from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.protocol.machine import Outcome, Ready
from quorate.protocol.ordering.records import Record

# So much a node is told in one turn because it asked. A request has a few bytes and its answer may
# have a million, so that whoever asks thousands of times at once would fill our memory.
ANSWERS_BYTES_MAX = 2 * 1024 * 1024
_ANSWER_BYTES = 128


class Outbox:
    """One per machine; its parts hold on to it while the `Ready` inside comes and goes."""

    def __init__(self) -> None:
        self.ready = Ready()
        self.now_us = 0

    def persist(self, record: Record, *, sync: bool = True) -> None:
        """Have this on disk, before anything else of this turn leaves if it must be synced."""
        self.ready.persist.append(record)
        self.ready.sync |= sync

    def send(self, node: NodeId, message: Message) -> None:
        self.ready.send.append((node, message))

    def send_all(self, nodes: Iterable[NodeId], message: Message) -> None:
        self.ready.send.extend([(node, message) for node in nodes])

    def may_answer(self, node: NodeId) -> bool:
        """Whether this node may have another answer in this turn; if not, it asks again."""
        return self.ready.answered.get(node, 0) < ANSWERS_BYTES_MAX

    def answer(self, node: NodeId, message: Message, content_bytes: int) -> None:
        self.charge(node, content_bytes + _ANSWER_BYTES)
        self.send(node, message)

    def charge(self, node: NodeId, answer_bytes: int) -> None:
        """This node is told so much because it asked."""
        answered = self.ready.answered
        answered[node] = answered.get(node, 0) + answer_bytes

    def deliver(self, outcome: Outcome) -> None:
        self.ready.deliver.append(outcome)

    def deliver_all(self, outcomes: Iterable[Outcome]) -> None:
        self.ready.deliver.extend(outcomes)

    def report(self, node: NodeId, kind: str, detail: str) -> None:
        self.ready.report(node, kind, detail)

    def wake_at(self, at_us: int) -> None:
        self.ready.timers.append(at_us)

    def take(self) -> Ready:
        ready, self.ready = self.ready, Ready()
        return ready
