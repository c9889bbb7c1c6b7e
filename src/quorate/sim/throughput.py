"""How fast the simulator is: rumours that flood ten thousand nodes.

Every node passes each rumour on to all its peers the first time it hears of it. That is the
least that a dissemination protocol does, so the figure is that of the engine.
"""

from time import perf_counter

from quorate.core.ids import NodeId
from quorate.core.messages import Message, StatusQuery
from quorate.protocol.machine import Ready
from quorate.sim.links import Network, Uniform
from quorate.sim.world import World

WIDE_AREA = Network(latency=Uniform(500, 50_000))

_NOTHING = Ready()


class Flooder:
    """Passes on what it did not know. A rumour is a number, and higher numbers are newer."""

    __slots__ = ("_peers", "_ready", "newest")

    def __init__(self) -> None:
        self.newest = 0
        self._peers: dict[NodeId, None] = {}
        self._ready = _NOTHING

    def start(self, number: int) -> None:
        """A rumour begins here."""
        self._pass_on(StatusQuery(number), None)

    def step(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, StatusQuery) and message.number > self.newest:
            self._pass_on(message, sender)

    def tick(self, now_us: int) -> None:
        pass

    def connected(self, peer: NodeId) -> None:
        self._peers[peer] = None

    def disconnected(self, peer: NodeId) -> None:
        self._peers.pop(peer, None)

    def take(self) -> Ready:
        ready, self._ready = self._ready, _NOTHING
        return ready

    def _pass_on(self, message: StatusQuery, sender: NodeId | None) -> None:
        self.newest = message.number
        send: list[tuple[NodeId, Message]] = [
            (peer, message) for peer in self._peers if peer != sender
        ]
        if self._ready is _NOTHING:
            self._ready = Ready(send=send)
        else:
            self._ready.send += send


def measure(*, nodes: int = 10_000, seconds: float = 3.0, peers: int = 8, seed: int = 0) -> float:
    """Deliveries per second of real time, with about so many peers for each node."""
    world = flooding_world(seed, nodes=nodes, peers=peers)
    origins = world.random("origins")
    # The first flood also pays for the introductions, so it does not count.
    _flood(world, origins.randrange(nodes), 1)
    deliveries, began_s, number = world.deliveries, perf_counter(), 1
    while (elapsed_s := perf_counter() - began_s) < seconds or number == 1:
        number += 1
        _flood(world, origins.randrange(nodes), number)
    return (world.deliveries - deliveries) / elapsed_s


def flooding_world(seed: int, *, nodes: int, peers: int, network: Network = WIDE_AREA) -> World:
    """Each node has a link to its predecessor and to some that it draws from those before it."""
    world = World(seed, network=network)
    draw = world.random("topology")
    for node in range(nodes):
        known = {max(0, node - 1), *(draw.randrange(node or 1) for _ in range(peers // 2 - 1))}
        world.add(node, Flooder, peers=sorted(known - {node}))
    return world


def _flood(world: World, origin: NodeId, number: int) -> None:
    world.call(world.now_us, origin, lambda flooder: flooder.start(number))
    world.run()
