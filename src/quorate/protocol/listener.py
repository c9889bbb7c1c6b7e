"""The machine of a client that asks replicas one by one, and believes only what verifies.

It knows which cluster this is, as every client does, and passes everything else on: what replicas
answer is judged by whoever asked.
"""

from collections.abc import Callable, Mapping
from typing import Any

from quorate.core.ids import NodeId
from quorate.core.messages import Message, Reply
from quorate.core.ordering import Assigned, Concluded, Ordered, TopologyReport, Unordered
from quorate.protocol.control.client import Commands
from quorate.protocol.machine import Ready
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import Requests
from quorate.protocol.topic import Topic

TICK_EVERY_US = 50_000


class Listener:
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
        self.outbox = Outbox()
        self.connected_peers: set[NodeId] = set()
        self.requests = Requests(self.outbox)
        self._hear = hear
        self._on_tick = on_tick
        self._tick_every_us = tick_every_us
        self._next_tick_us = 0
        self.commands = Commands(me, control, self.outbox, self.requests)

    def replies(self, number: int) -> Mapping[NodeId, str]:
        """Who has answered a request so far, and what."""
        return self.requests.replies(number)

    def step(self, sender: NodeId, message: Message) -> None:
        handler = _CONTROL.get(type(message))
        if handler is not None:
            handler(self, sender, message)
        else:
            self._hear(sender, message)

    def tick(self, now_us: int) -> None:
        self.outbox.now_us = now_us
        if now_us >= self._next_tick_us:
            self._next_tick_us = now_us + self._tick_every_us
            self.outbox.wake_at(self._next_tick_us)
            self.requests.tick()
            self.commands.tick()
            if self._on_tick is not None:
                self._on_tick()

    def connected(self, peer: NodeId) -> None:
        self.connected_peers.add(peer)
        self.requests.connected(peer)
        self.commands.connected(peer)

    def disconnected(self, peer: NodeId) -> None:
        self.connected_peers.discard(peer)

    def writable(self, peer: NodeId, writable: bool) -> None:
        """What such a client sends is little."""

    def take(self) -> Ready:
        self.commands.flush(self.connected_peers.__contains__)
        return self.outbox.take()

    def on_reply(self, sender: NodeId, reply: Reply) -> None:
        self.requests.on_reply(sender, reply)


_CONTROL: dict[type, Callable[[Listener, NodeId, Any], None]] = {
    Reply: Listener.on_reply,
    Ordered: lambda listener, sender, said: listener.commands.on_ordered(sender, said),
    Concluded: lambda listener, sender, said: listener.commands.on_concluded(sender, said),
    Unordered: lambda listener, sender, said: listener.commands.on_unordered(sender, said),
    Assigned: lambda listener, sender, said: listener.commands.on_assigned(sender, said),
    TopologyReport: lambda listener, sender, said: listener.commands.on_report(sender, said),
}
