"""A council that orders a validated topic and its companion, with those who publish and read.

Replicas 0 to 3 order what is validated, and 0 to 2 what is not. Clients are the real machines;
messages between all of them lie in flight as on a `Council`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from council import BYZANTINE, NAMES, READER, Council, Flight
from net import identity
from quorate.core.contract import companion_name
from quorate.core.ids import MARKER, NodeId, topic_id
from quorate.core.messages import Request
from quorate.core.ordering import Line, Partition
from quorate.crypto.identity import Identity
from quorate.protocol.destination import Destination
from quorate.protocol.machine import Entry, Outcome
from quorate.protocol.ordering.group import Group
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.publisher import LineOutgoing
from quorate.protocol.ordering.validation import Sealer, Validation
from quorate.protocol.source import Source
from quorate.protocol.topic import Topic
from quorate.sim.disks import SimDisk
from stage import pairwise_macs

OTHER = 1501
TOPIC, COMPANION = "t", companion_name("t")
VALIDATED = {**BYZANTINE, "validated": True}
BASIC_PARTITION = Partition(topic_id(COMPANION), 0)
MARKS = Line(MARKER, *BASIC_PARTITION)
CLUSTER = "chamber"


@dataclass
class Chamber(Council):
    """The replicas, and any number of clients."""

    clients: dict[NodeId, Source | Destination] = field(default_factory=dict)
    delivered: dict[NodeId, list[Outcome]] = field(default_factory=dict)
    payloads: dict[NodeId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = VALIDATED
        self.names = {**NAMES, OTHER: "other"}
        super().__post_init__()

    def basic(self, replica: NodeId) -> Group:
        return self.seats[replica].ordering.groups[GroupKind.CRASH]

    def validated(self, replica: NodeId) -> Group:
        return self.seats[replica].ordering.groups[GroupKind.BYZANTINE]

    def marked(self, replica: NodeId) -> int:
        """How many validated batches have a place in the companion, as this replica knows."""
        return self.basic(replica).log.line(MARKS).next - 1

    # Clients

    def publisher(self, node: NodeId, name: str) -> LineOutgoing:
        """A publisher's line on one of the two logs."""
        source = self.clients.get(node)
        if source is None:
            key = keys_of(node)
            sealer = Sealer(
                CLUSTER,
                key.public.sign_key,
                key.sign,
                wall_us=lambda: 0,
                salt=lambda _, __: bytes(32),
            )
            macs = pairwise_macs(node)
            source = Source(node, self._topics(), macs, session=1, sealer=sealer)
            self._join(node, source)
        assert isinstance(source, Source)
        source.register(name)
        return source.line(name, 0)

    def reader(self, node: NodeId = READER, offset: int = 0) -> Destination:
        """Somebody who reads the companion, with the validated batches where they belong."""
        topics = self._topics()
        destination = Destination(node, topics, pairwise_macs(node), self.names, self._validation())
        self._join(node, destination)
        destination.read(COMPANION, 0, offset)
        self.collect()
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

    def _topics(self) -> list[Topic]:
        companion = Topic(
            COMPANION, self.topic.contract.companion, self.members[:3], 1, companion_of=TOPIC
        )
        return [self.topic, companion]

    def _validation(self) -> Validation:
        keys = {node: keys_of(node).public.sign_key for node in NAMES}
        return Validation(CLUSTER, self._topics(), keys)


@cache
def keys_of(node: NodeId) -> Identity:
    return identity(NAMES[node])
