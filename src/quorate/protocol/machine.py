"""What a machine is: inputs step by step, and one `Ready` with everything it wants.

A machine never acts. It is told what arrived and what time it is, and whoever drives it (the
asyncio driver or the simulator) takes a `Ready` and carries it out. That is why one and the
same object runs in both worlds, and why an adversary is a function that rewrites a `Ready`.
"""

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from quorate.core.cluster import Cluster
from quorate.core.ids import Digest, NodeId, Sequence, Stream
from quorate.core.messages import Message
from quorate.core.ordering import Line, Partition
from quorate.protocol.ordering.records import Deposit, Record


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A destination's machine hands one batch to its application.

    `vouchers` are the replicas on whose word it was accepted, `repaired` says that a history
    brought it rather than its own broadcast.
    """

    stream: Stream
    sequence: Sequence
    digest: Digest
    payload: bytes
    vouchers: tuple[NodeId, ...]
    repaired: bool = False


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A source's machine tells its application that the contract is fulfilled.

    `replicas` acknowledged the batches from `first` to `last`; `guarantee` says in words what
    follows from that.
    """

    stream: Stream
    first: Sequence
    last: Sequence
    replicas: tuple[NodeId, ...]
    guarantee: str


class Room(msgspec.Struct, frozen=True, gc=False):
    """A source's machine takes batches again, though none has got its receipt."""

    stream: Stream


class Skipped(msgspec.Struct, frozen=True, gc=False):
    """A destination gave up on batches of a stream: they were lost as its contract allows."""

    stream: Stream
    first: Sequence
    count: int
    why: str


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """A publisher's batches have their positions: each begins at one of `offsets`, and the last
    one ends before the last of these.

    `replicas` said so, and `guarantee` says in words what follows from that.
    """

    line: Line
    first: Sequence
    count: int
    offsets: list[int]
    time_us: int
    replicas: tuple[NodeId, ...]
    guarantee: str


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A reader's machine hands the next batch of a partition to its application.

    `offset` is that of the first of its events, and `end` the one after the last. The first `skip`
    of them come before what is wanted.
    """

    partition: Partition
    offset: int
    end: int
    publisher: NodeId
    sequence: Sequence
    time_us: int
    payload: bytes
    vouchers: tuple[NodeId, ...]
    skip: int = 0


class Passed(msgspec.Struct, frozen=True, gc=False):
    """What comes before `offset` in a partition, and was not handed out, is not for this reader."""

    partition: Partition
    offset: int


class Trimmed(msgspec.Struct, frozen=True, gc=False):
    """A reader's machine skips events of a partition that are not kept any more."""

    partition: Partition
    offset: int
    count: int


class Begun(msgspec.Struct, frozen=True, gc=False):
    """A reader's machine knows where a partition begins for it."""

    partition: Partition
    offset: int


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Batches of this line from `first` on will not be ordered, nor any after them."""

    line: Line
    first: Sequence
    sentence: str


class Clamped(msgspec.Struct, frozen=True, gc=False):
    """A group committed an offset that is beyond the end; the partition is read from the end."""

    partition: Partition
    offset: int
    end: int


class Topology(msgspec.Struct, frozen=True, gc=False):
    """A replica's or client's machine knows of other topics, or replicas, than before."""

    cluster: Cluster


class Shared(msgspec.Struct, frozen=True, gc=False):
    """A member of a consumer group hears what it reads from now on, and from where.

    `partitions` are topics, their partitions, and what was committed last, if anything was.
    """

    group: str
    epoch: int
    partitions: tuple[tuple[str, int, int | None], ...]
    # Of those whose commit said more: topic, partition, epoch of the leader or -1, metadata.
    notes: tuple[tuple[str, int, int, str], ...] = ()


class Answered(msgspec.Struct, frozen=True, gc=False):
    """A request of this client has the answer that its contract asks for."""

    number: int
    sentence: str


Outcome: TypeAlias = (
    Delivery
    | Receipt
    | Recorded
    | Begun
    | Passed
    | Clamped
    | Refused
    | Entry
    | Trimmed
    | Room
    | Skipped
    | Answered
    | Topology
    | Shared
)


class Report(msgspec.Struct, frozen=True, gc=False):
    """Something about `node` that a person should hear of: `kind` is a metric's label."""

    node: NodeId
    kind: str
    detail: str


@dataclass(slots=True)
class Ready:
    """Everything a machine wants done, in the order in which it must happen."""

    # To be written, in this order.
    persist: list[Record] = field(default_factory=list)
    # Whether they must be on disk BEFORE anything in `send` or `deliver` leaves. Otherwise the
    # next sync takes them along.
    sync: bool = False
    # To the store outside, if there is one. The machine hears what became of each; nothing waits.
    deposit: list[Deposit] = field(default_factory=list)
    # To each node in the order of the list; between nodes in any order.
    send: list[tuple[NodeId, Message]] = field(default_factory=list)
    # To the application of this node.
    deliver: list[Outcome] = field(default_factory=list)
    # Call `tick` no later than at these times.
    timers: list[int] = field(default_factory=list)
    # For logs and metrics. May be dropped.
    reports: list[Report] = field(default_factory=list)
    # About how many bytes of `send` each node gets because it asked.
    answered: dict[NodeId, int] = field(default_factory=dict)

    def report(self, node: NodeId, kind: str, detail: str) -> None:
        self.reports.append(Report(node, kind, detail))

    def __bool__(self) -> bool:
        wants = self.persist or self.deposit or self.send or self.deliver
        return bool(wants or self.timers or self.reports)


class Machine(Protocol):
    """What every driver may call. Times are microseconds of one monotonic clock."""

    def step(self, sender: NodeId, message: Message) -> None:
        """A message arrived, and its sender is authenticated."""

    def tick(self, now_us: int) -> None:
        """The time is now. Called at least once before the first step."""

    def connected(self, peer: NodeId) -> None:
        """A link to this peer is up, perhaps again: what was sent before may be lost."""

    def disconnected(self, peer: NodeId) -> None:
        """The link to this peer is down."""

    def take(self) -> Ready:
        """Everything wanted since the last call."""
