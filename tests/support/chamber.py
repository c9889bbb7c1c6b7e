"""A council that orders a validated topic, with those who publish and read.

Replicas 0 to 3 order what is signed and what is not, in one log. Clients are the real machines;
messages between all of them lie in flight as on a `Council`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from council import NAMES, READER, VALIDATED, WALL_US, Council, Flight, T
from quorate.core.header import events_in
from quorate.core.ids import NodeId
from quorate.core.messages import Request
from quorate.core.ordering import Partition
from quorate.protocol.destination import Destination
from quorate.protocol.machine import Entry, Outcome
from quorate.protocol.ordering.publisher import LineOutgoing
from quorate.protocol.ordering.validation import Sealer
from quorate.protocol.source import Source
from quorate.sim.disks import SimDisk
from quorate.sim.sealing import CLUSTER, public_key, signing_key
from stage import pairwise_macs

OTHER = 1501
PARTITION = Partition(T, 0)


@dataclass
class Chamber(Council):
    """The replicas, and any number of clients."""

    clients: dict[NodeId, Source | Destination] = field(default_factory=dict)
    delivered: dict[NodeId, list[Outcome]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = VALIDATED
        self.names = {**NAMES, OTHER: "other"}
        super().__post_init__()

    # Clients

    def publish_as(self, node: NodeId, *batches: bytes, sign: bool) -> None:
        """A publisher hands in these batches, signed or not, and what comes of that arrives."""
        line = self.line(node)
        for payload in batches:
            line.add(payload, events_in(payload), sign=sign)
        self.collect()
        self.settle()
        self.run(1)

    def line(self, node: NodeId) -> LineOutgoing:
        source = self.clients.get(node)
        if source is None:
            sealer = Sealer(
                CLUSTER,
                public_key(node),
                signing_key(node).sign,
                wall_us=lambda: WALL_US,
                salt=lambda _, __: bytes(32),
            )
            source = Source(node, [self.topic], pairwise_macs(node), session=1, sealer=sealer)
            source.register("t")
            self._join(node, source)
        assert isinstance(source, Source)
        return source.line("t", 0)

    def reader(self, node: NodeId = READER, offset: int = 0, *, validate: bool) -> Destination:
        """Somebody who reads the topic; again, from another offset or in another mode."""
        destination = self.clients.get(node)
        if destination is None:
            macs, names = pairwise_macs(node), self.names
            destination = Destination(node, [self.topic], macs, names, self._validation())
            self._join(node, destination)
        assert isinstance(destination, Destination)
        destination.read("t", 0, offset, validate=validate)
        self.collect()
        self.settle()
        self.run(1)
        return destination

    def read(self, node: NodeId = READER) -> list[Entry]:
        return [each for each in self.delivered[node] if isinstance(each, Entry)]

    def _join(self, node: NodeId, client: Source | Destination) -> None:
        self.clients[node], self.delivered[node] = client, []
        client.tick(self.now_us)
        for replica in self.seats:
            client.connected(replica)

    # As on a council

    def crash(self, replica: NodeId) -> None:
        super().crash(replica)
        for client in self.clients.values():
            client.disconnected(replica)

    def restart(self, replica: NodeId, disk: SimDisk) -> None:
        super().restart(replica, disk)
        for client in self.clients.values():
            client.connected(replica)

    def deliver(self, choose: Callable[[Flight], bool] = lambda _: True) -> int:
        mine = [f for f in self.flying if f.receiver in self.clients and choose(f)]
        self.flying = [f for f in self.flying if not (f.receiver in self.clients and choose(f))]
        for flight in mine:
            self.clients[flight.receiver].step(flight.sender, flight.message)
        # Replicas grant requests elsewhere.
        self.drop(lambda flight: isinstance(flight.message, Request))
        return len(mine) + super().deliver(choose)

    def tick(self) -> None:
        for client in self.clients.values():
            client.tick(self.now_us)
        super().tick()

    def collect(self) -> None:
        super().collect()
        for node, client in self.clients.items():
            ready = client.take()
            self.delivered[node] += ready.deliver
            flights = [Flight(node, receiver, message) for receiver, message in ready.send]
            self.sent += flights
            self.flying += flights
