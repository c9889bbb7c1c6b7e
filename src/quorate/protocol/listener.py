"""What the machines of all clients have in common, and the machine of one that only asks.

A client knows which topics and replicas there are, and may have a control plane to ask or to
command. What replicas answer to a `Listener` is judged by whoever asked, and believed only if it
verifies.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from quorate.core.control import CONTROL_TOPIC
from quorate.core.errors import LocalProtocolError
from quorate.core.ids import NodeId
from quorate.core.messages import Message, Reply
from quorate.core.ordering import Assigned, Concluded, Ordered, Partition, TopologyReport, Unordered
from quorate.protocol.control.client import Commands
from quorate.protocol.machine import Ready
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import Requests
from quorate.protocol.topic import Topic, by_id

TICK_EVERY_US = 50_000


class ClientMachine:
    """Requests, commands and connections of one client."""

    def __init__(
        self, me: NodeId, topics: Iterable[Topic], *, tick_every_us: int = TICK_EVERY_US
    ) -> None:
        self.me = me
        self.outbox = Outbox()
        self.connected_peers: set[NodeId] = set()
        self.requests = Requests(self.outbox)
        self._topics: dict[str, Topic] = {}
        self._by_id = by_id(())
        self._know(topics)
        self.commands = Commands(me, self._topics.get(CONTROL_TOPIC), self.outbox, self.requests)
        self._tick_every_us = tick_every_us
        self._next_tick_us = 0

    def replies(self, number: int) -> Mapping[NodeId, str]:
        """Who has answered a request so far, and what."""
        return self.requests.replies(number)

    def tick(self, now_us: int) -> None:
        self.outbox.now_us = now_us
        if now_us >= self._next_tick_us:
            late_us = now_us - self._next_tick_us
            self._next_tick_us = now_us + self._tick_every_us
            self.outbox.wake_at(self._next_tick_us)
            self.requests.tick()
            self._tick(late_us)
            self.commands.tick()

    def connected(self, peer: NodeId) -> None:
        self.connected_peers.add(peer)
        self.requests.connected(peer)
        self.commands.connected(peer)

    def disconnected(self, peer: NodeId) -> None:
        self.connected_peers.discard(peer)

    def writable(self, peer: NodeId, writable: bool) -> None:
        """What most clients send is little and may be lost."""

    def take(self) -> Ready:
        self.commands.flush(self._can_send)
        return self.outbox.take()

    # Parts

    def _tick(self, late_us: int) -> None:
        """The time has moved on; this tick comes so late."""

    def _can_send(self, replica: NodeId) -> bool:
        return replica in self.connected_peers

    def _know(self, topics: Iterable[Topic]) -> None:
        """These are the topics now."""
        self._topics = self._topics | {topic.name: topic for topic in topics}
        self._by_id = by_id(self._topics.values())

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            known = ", ".join(sorted(self._topics)) or "none"
            raise LocalProtocolError(f"there is no topic '{name}'; known topics: {known}")
        return topic

    def _partition(self, name: str, number: int) -> tuple[Topic, Partition]:
        topic = self._topic(name)
        if not topic.contract.is_log or not 0 <= number < topic.contract.partitions:
            has = f"partitions 0 to {topic.contract.partitions - 1}"
            raise LocalProtocolError(f"topic '{name}' has no partition {number}; it has {has}")
        return topic, Partition(topic.id, number)


class Listener(ClientMachine):
    """Hears what is not about the cluster itself through `hear`, and is told the time."""

    def __init__(
        self,
        me: NodeId,
        control: Topic | None,
        hear: Callable[[NodeId, Message], None],
        *,
        on_tick: Callable[[], None] | None = None,
        tick_every_us: int = TICK_EVERY_US,
    ) -> None:
        super().__init__(me, () if control is None else (control,), tick_every_us=tick_every_us)
        self._hear = hear
        self._on_tick = on_tick

    def step(self, sender: NodeId, message: Message) -> None:
        handler = ABOUT_THE_CLUSTER.get(type(message))
        if handler is not None:
            handler(self, sender, message)
        else:
            self._hear(sender, message)

    def _tick(self, late_us: int) -> None:
        if self._on_tick is not None:
            self._on_tick()


# What every client hears.
ABOUT_THE_CLUSTER: dict[type, Callable[[Any, NodeId, Any], None]] = {
    Reply: lambda client, sender, said: client.requests.on_reply(sender, said),
    Ordered: lambda client, sender, said: client.commands.on_ordered(sender, said),
    Concluded: lambda client, sender, said: client.commands.on_concluded(sender, said),
    Unordered: lambda client, sender, said: client.commands.on_unordered(sender, said),
    Assigned: lambda client, sender, said: client.commands.on_assigned(sender, said),
    TopologyReport: lambda client, sender, said: client.commands.on_report(sender, said),
}
