"""What nodes say to each other.

Batches of one stream travel as *runs*: consecutive sequence numbers in one message, as many
as one turn of the event loop brought. A run costs one dispatch whatever its length, which is
what makes single events affordable. A run of votes carries digests, a run of copies carries
payloads.

Imperatives ask for something, nouns and past tenses state something. Who sent a message is
not in it: the link authenticates its peer, and the machine is told.
"""

from enum import IntEnum
from typing import TypeAlias

import msgspec

from quorate.core.ids import Digest, Lane, NodeId, Sequence, TopicId
from quorate.core.ordering import OrderMessage


class OfStream(msgspec.Struct, frozen=True, gc=False):
    """What messages about one stream begin with."""

    publisher: NodeId
    topic: TopicId
    lane: Lane


class Votes(OfStream, frozen=True):
    """What one replica says of a run of batches."""

    first: Sequence
    digests: list[Digest]


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Source to replica: disseminate these batches.

    Everything below `settled` needs no more work: it has its receipt, or was given up.
    """

    topic: TopicId
    lane: Lane
    urgent: bool
    first: Sequence
    settled: Sequence
    payloads: list[bytes]


class Forward(OfStream, frozen=True):
    """Replica to destination: copies of batches. Counts as this replica's voice for each."""

    urgent: bool
    first: Sequence
    payloads: list[bytes]


class Vouch(Votes, frozen=True):
    """Replica to destination: as `Forward`, but with digests in place of payloads."""


class Echo(Votes, frozen=True):
    """Replica to replica: Bracha's ECHO for each batch of the run."""


class ReadyVote(Votes, frozen=True):
    """Replica to replica: Bracha's READY for each batch of the run."""


class Authenticator(msgspec.Struct, frozen=True, gc=False):
    """A MAC that `maker` made over a run of the chain, for `reader` further down."""

    maker: NodeId
    reader: NodeId
    tag: bytes


class Link(msgspec.Struct, frozen=True, gc=False):
    """One hop of the chain: from the source, a replica, or the tail to a destination."""

    publisher: NodeId
    topic: TopicId
    urgent: bool
    first: Sequence
    settled: Sequence
    chain: int
    payloads: list[bytes]
    authenticators: list[Authenticator]


class Fetch(OfStream, frozen=True):
    """Give me again what you have of these batches: payloads, or only your votes."""

    payload: bool
    sequences: list[Sequence]


class Supply(OfStream, frozen=True):
    """The payloads asked for. They prove nothing by themselves: their digests must match."""

    sequences: list[Sequence]
    payloads: list[bytes]


class Frontier(OfStream, frozen=True):
    """Replica to destination, now and then: I have vouched from here to here on this stream."""

    lowest: Sequence
    highest: Sequence


class Taken(OfStream, frozen=True):
    """Destination to replica: up to `through` I need nothing more of this stream.

    A replica sends only so far beyond this. Replicas that send digests would otherwise run
    ahead of the one that sends payloads, and nobody would slow the source.
    """

    through: Sequence


class Omitted(OfStream, frozen=True):
    """Replica to destination: I shall not send you these, by your filter or your queue's bound."""

    first: Sequence
    count: int


class Status(IntEnum):
    """What a replica tells a source with its acknowledgement (Freeman 2016, section 6.2).

    `RESUME` ends a `WAIT` in which batches were refused: what came after `through` is to come
    again.
    """

    OK = 0
    WAIT = 1
    HISTORY = 2
    BLOCKED = 3
    REPAIR = 4
    RESUME = 5


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Replica to source: all batches up to and including `through` are in my hands."""

    topic: TopicId
    lane: Lane
    status: Status
    through: Sequence


class Operation(IntEnum):
    """What a client may ask of every replica (FIT-Broker 2013, appendix D)."""

    REGISTER = 0
    UNREGISTER = 1
    SUBSCRIBE = 2
    UNSUBSCRIBE = 3


class Request(msgspec.Struct, frozen=True, tag="request"):
    """Client to replica. `lead` asks this replica for payloads, the others for digests.

    `terms` is what the client takes the topic's contract to be.
    """

    number: int
    operation: Operation
    topic: str
    terms: str
    lead: bool = False
    key_prefix: bytes = b""
    headers: dict[str, bytes] = {}


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """Replica to client. `sentence` is empty when the request was carried out."""

    number: int
    sentence: str = ""


class StatusQuery(msgspec.Struct, frozen=True, tag="status?"):
    """Anyone in the cluster file to a replica: how are you?"""

    number: int


class StatusReport(msgspec.Struct, frozen=True, tag="status"):
    """A replica's answer, as msgpack of its own that only whoever asked takes apart."""

    number: int
    report: msgspec.Raw


class Misbehave(msgspec.Struct, frozen=True, tag="misbehave"):
    """Operator to replica: do this on purpose from now on (B8, F13)."""

    number: int
    behaviour: str
    percent: float = 100.0
    fields: list[str] = []
    delay_ms: float = 0.0
    towards: list[str] = []
    ahead_s: float = 0.0


Control: TypeAlias = Request | Reply | StatusQuery | StatusReport | Misbehave
Message: TypeAlias = (
    Publish
    | Forward
    | Vouch
    | Echo
    | ReadyVote
    | Link
    | Fetch
    | Supply
    | Frontier
    | Taken
    | Omitted
    | Ack
    | Control
    | OrderMessage
)
