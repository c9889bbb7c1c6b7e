"""What replicas and clients say to each other about log topics.

Source: FIT-Broker 2013, sections 4.4.2 to 4.4.4; Mod-SMaRt (Sousa and Bessani 2012).

Four conversations: clients hand in batches and hear of their positions; replicas agree on an
order, slot by slot, and change their leader; whoever reads follows a partition; whoever audits
walks the slots.

A *line* is the batches of one publisher for one partition, numbered without gaps. Digests of a
line are chained (`chain` of a batch covers all batches before it), so that one hash says what a
replica has of a line, however long it is.

Where a batch travels without its payload it is its *descriptor* that does (`crypto/digests.py`),
which says how many events it has. Offsets are those of events.
"""

from enum import IntEnum
from itertools import accumulate
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from quorate.core.header import DESCRIPTOR_BYTES, HEADER_BYTES, SEAL_BYTES, counts_of
from quorate.core.ids import DIGEST_BYTES, NodeId, TopicId
from quorate.core.limits import RUN_BATCHES_MAX, SEALED_BYTES_MAX

SIGNATURE_BYTES_MAX = 64
VALUE_BYTES_MAX = 1024 * 1024
STATE_BYTES_MAX = 1024 * 1024
STATES_MAX = 1024
VALUES_MAX = 4096
# Commands that one slot orders.
COMMANDS_MAX = 4096
SENTENCE_CHARACTERS_MAX = 4096
TOPOLOGY_CHARACTERS_MAX = 4 * 1024 * 1024
# A checkpoint is a text with a signature of each replica; a snapshot travels in parts.
CHECKPOINT_CHARACTERS_MAX = 256 * 1024
PART_BYTES_MAX = 256 * 1024
# A tree of 2^63 leaves is so high.
PATH_HASHES_MAX = 63
# What an auditor is told of at a time: the order that slots decided, without what was in it.
WALKED_SLOTS_MAX = 16_384
SLOT_SPANS_MAX = 4096
SLOT_DESCRIPTORS_BYTES_MAX = 4096 * DESCRIPTOR_BYTES
EDGE_MAX = 63
# Whoever reads a stretch is shown at a time where so many batches stand, in so many runs; each has
# a few hashes beside it.
PROVEN_BATCHES_MAX = 4096
PROVEN_RUNS_MAX = 256
PROVEN_HASHES_MAX = 2 * PATH_HASHES_MAX * PROVEN_RUNS_MAX
# Of one batch, by different stores.
RECEIPTS_MAX = 64
# Of digests there are as many as one receipt covers.
EVIDENCE_CHARACTERS_MAX = 1024 * 1024

# Times that no event has.
BEGIN_US = -(2**63)
END_US = 2**63 - 1

# What decoding checks before it allocates anything.
_Node = Annotated[int, Meta(ge=0)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Topic = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_PartitionNumber = Annotated[int, Meta(ge=0, le=2**16 - 1)]
_Time = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_Value = Annotated[bytes, Meta(max_length=VALUE_BYTES_MAX)]
_Payload = Annotated[bytes, Meta(min_length=HEADER_BYTES, max_length=SEALED_BYTES_MAX)]
# Or nothing, where a payload is left out.
_Perhaps = Annotated[bytes, Meta(max_length=SEALED_BYTES_MAX)]
_Seal = Annotated[bytes, Meta(min_length=SEAL_BYTES, max_length=SEAL_BYTES)]
_Payloads = Annotated[list[_Payload], Meta(min_length=1, max_length=RUN_BATCHES_MAX)]
_Descriptor = Annotated[bytes, Meta(min_length=DESCRIPTOR_BYTES, max_length=DESCRIPTOR_BYTES)]
_Descriptors = Annotated[list[_Descriptor], Meta(min_length=1, max_length=RUN_BATCHES_MAX)]
_Values = Annotated[list[_Value], Meta(max_length=VALUES_MAX)]
_State = Annotated[bytes, Meta(max_length=STATE_BYTES_MAX)]
_Sentence = Annotated[str, Meta(max_length=SENTENCE_CHARACTERS_MAX)]
_Offset = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
_Signature = Annotated[bytes, Meta(max_length=SIGNATURE_BYTES_MAX)]
_Evidence = Annotated[str, Meta(max_length=EVIDENCE_CHARACTERS_MAX)]
_Checkpoint = Annotated[str, Meta(max_length=CHECKPOINT_CHARACTERS_MAX)]
_Part = Annotated[bytes, Meta(min_length=1, max_length=PART_BYTES_MAX)]


class Partition(NamedTuple):
    """One log of a topic: the scope of an offset."""

    topic: TopicId
    number: int


class Line(NamedTuple):
    """The batches of one publisher for one partition: the scope of a sequence number."""

    publisher: NodeId
    topic: TopicId
    partition: int

    @property
    def target(self) -> Partition:
        return Partition(self.topic, self.partition)


# What messages begin with


class OfPartition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    topic: _Topic
    partition: _PartitionNumber

    @property
    def partition_of(self) -> Partition:
        return Partition(self.topic, self.partition)


class OfLine(msgspec.Struct, frozen=True, gc=False, array_like=True):
    publisher: _Node
    topic: _Topic
    partition: _PartitionNumber

    @property
    def partition_of(self) -> Partition:
        return Partition(self.topic, self.partition)


class OfRegency(msgspec.Struct, frozen=True, gc=False, array_like=True):
    group: _Number
    regency: _Number


class OfSlot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    group: _Number
    slot: _Number


# Handing in


class Append(OfPartition, frozen=True, tag=1):
    """Publisher to replica: order these batches, and keep them.

    Large ones come with their digests, and prove themselves (`bulk.py`).
    """

    first: _Number
    payloads: _Payloads
    digests: Annotated[list[_Digest], Meta(max_length=RUN_BATCHES_MAX)] = []


class Announce(OfPartition, frozen=True, tag=2):
    """Publisher to replica: others keep these basic batches; help to order them."""

    first: _Number
    descriptors: _Descriptors


class AnnounceSealed(OfPartition, frozen=True, tag=49):
    """The same of signed batches: seals say what batches hash to, and who signed them."""

    first: _Number
    seals: Annotated[list[_Seal], Meta(min_length=1, max_length=RUN_BATCHES_MAX)]


class Received(OfLine, frozen=True, tag=3):
    """Replica to replica: the publisher itself gave me its line up to and including `through`.

    Whoever has decided it says the same, when asked: a quorum found it authentic.
    """

    through: _Number
    chain: _Digest


class Stored(OfLine, frozen=True, tag=4):
    """Replica to replica: I keep the payloads of these batches; the chain is that of the last.

    Of a validated topic it is signed (`crypto/receipts.py`).
    """

    first: _Number
    count: _Number
    chain: _Digest
    signature: _Signature = b""


class Retrieve(OfLine, frozen=True, tag=5):
    """Replica to replica: give me what you have of a line from here on."""

    first: _Number
    count: _Number


class Retrieved(OfLine, frozen=True, tag=6):
    """The answer; a payload that the sender would not or could not add is empty."""

    first: _Number
    descriptors: _Descriptors
    payloads: Annotated[list[_Perhaps], Meta(max_length=RUN_BATCHES_MAX)]


class Ordered(OfPartition, frozen=True, tag=7):
    """Replica to publisher: the events of these batches have the offsets from `offset` on."""

    first: _Number
    count: _Number
    offset: _Number
    time_us: _Time


class Unordered(OfPartition, frozen=True, tag=60):
    """Replica to publisher: this is why your batches from `first` on are not ordered."""

    first: _Number
    sentence: _Sentence


# Agreeing


class Propose(OfRegency, frozen=True, tag=8):
    """Leader to replica: let this be the value of the slot."""

    slot: _Number
    value: _Value


class Write(OfRegency, frozen=True, tag=9):
    """Replica to replica: I find this value acceptable."""

    slot: _Number
    digest: _Digest


class Accept(OfRegency, frozen=True, tag=10):
    """Replica to replica: a quorum finds this value acceptable."""

    slot: _Number
    digest: _Digest


class Standing(OfRegency, frozen=True, tag=11):
    """Replica to replica, now and then, and when nothing moves: this is how far I am.

    Whoever is further helps. `clock_us` is the sender's time of day.
    """

    slot: _Number
    is_synced: bool
    clock_us: _Time


class Decision(OfSlot, frozen=True, tag=12):
    """Replica to replica: this slot was decided so. `descriptors` are those of its batches.

    `commands` are the payloads of those that are commands of the control plane.
    """

    value: _Value
    descriptors: bytes
    commands: Annotated[list[_Payload], Meta(max_length=COMMANDS_MAX)] = []


class Cosign(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=23):
    """Replica to replica: I sign the head of our log at this size.

    With `asks`, I lack the signatures of others: say yours again.
    """

    group: _Number
    size: _Number
    time_s: _Number
    signature: _Signature
    asks: bool = False


# Starting over


class OfferSnapshot(OfSlot, frozen=True, tag=30):
    """Replica to replica: I keep no slots as early as yours, but the whole state after this one.

    The checkpoint proves what that state is.
    """

    checkpoint: _Checkpoint


class AskPart(OfSlot, frozen=True, tag=31):
    """Replica to replica: give me the state after this slot, from this byte on."""

    at: _Number


class SnapshotPart(OfSlot, frozen=True, tag=32):
    """The answer: the bytes of the state that begin there."""

    at: _Number
    data: _Part


# Changing the leader


class Stop(OfRegency, frozen=True, tag=13):
    """Replica to replica: I want this regency, since the one before does not get on."""


class Promised(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a replica has said in one slot: its last ACCEPT, and its WRITEs."""

    slot: _Number
    accepted_in: _Number
    accepted: bytes
    written: dict[bytes, int]


class State(OfRegency, frozen=True):
    """What a replica carries into a regency: its slot, and what it said there and before."""

    slot: _Number
    promised: list[Promised]


class StopData(OfRegency, frozen=True, tag=14):
    """Replica to the leader of a new regency: a signed `State`, and the values it speaks of."""

    state: _State
    signature: _Signature
    values: _Values


class Signed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A `State` with who signed it."""

    replica: _Node
    state: _State
    signature: _Signature


class Sync(OfRegency, frozen=True, tag=15):
    """The leader of a new regency to all: this is what I heard, and so this is what I may do."""

    states: Annotated[list[Signed], Meta(max_length=STATES_MAX)]
    values: _Values


# Reading


class Locate(OfPartition, frozen=True, tag=21):
    """Reader to replica: which is the first offset of this time or later?

    `BEGIN_US` asks for the first that is kept, `END_US` for the one after the last.
    """

    number: _Number
    time_us: _Time


class Located(OfPartition, frozen=True, tag=22):
    """Replica to reader: this one."""

    number: _Number
    offset: _Number


class Wants(IntEnum):
    """What a reader is sent: only how the chain goes on, all batches, or those that are signed and
    of the others no more than their descriptors."""

    CHAIN = 0
    ALL = 1
    SIGNED = 2


class Follow(OfPartition, frozen=True, tag=16):
    """Reader to replica: tell me of this partition, from the batch that has `offset` on, as far as
    batches begin before `limit`.

    Of several, the one with the highest number holds.
    """

    number: _Number
    offset: _Number
    limit: _Number
    wants: Wants


class Allow(OfPartition, frozen=True, tag=17):
    """Reader to replica: of what I follow, you may send what begins before this limit now."""

    limit: _Number


class Fill(OfPartition, frozen=True, tag=24):
    """Replica to replica: I should have the payloads from `offset` up to but without `end`; `large`
    says that I want large ones too.

    The answer is `Entries`, or `Absent`.
    """

    offset: _Number
    end: _Number
    large: bool


class Entries(OfLine, frozen=True, tag=18):
    """Replica to reader: consecutive batches of one line; the first begins at this offset.

    `before` is the partition's chain before the first of them, and `after` behind the last: they
    prove themselves (`bulk.py`). Of those that `bare` numbers, from 0, there is only the
    descriptor.
    """

    offset: _Number
    first: _Number
    time_us: _Time
    before: _Digest
    after: _Digest
    payloads: _Payloads
    bare: Annotated[list[_Number], Meta(max_length=RUN_BATCHES_MAX)] = []

    @property
    def offsets(self) -> list[int]:
        """Where each batch begins, by its header, and the offset after the last."""
        return list(accumulate(counts_of(self.payloads), initial=self.offset))


class Chained(OfPartition, frozen=True, tag=19):
    """Replica to reader: the partition's chain before the batch that begins at `offset`; below
    `start` nothing is here.

    Below `taken` that is so because retention took it. A replica that started over lacks more.
    """

    offset: _Number
    chain: _Digest
    start: _Number
    taken: _Number
    end: _Number


class Absent(OfPartition, frozen=True, tag=20):
    """Replica to reader: I do not have the payload of the batch that has this offset, or it is not
    for you. The same is true of all up to `end`."""

    offset: _Number
    end: _Number


# Holding stores to their receipts


class Challenge(OfLine, frozen=True, tag=41):
    """To a replica: you signed that you store this batch, and did not give it.

    The answer is `Entries`, or a `Refusal`.
    """

    offset: _Number
    sequence: _Number
    time_us: _Time
    descriptor: _Descriptor


class Refusal(OfLine, frozen=True, tag=42):
    """The answer: I do not have it, and keep the partition from `start` on. I sign that."""

    offset: _Number
    sequence: _Number
    digest: _Digest
    start: _Number
    time_us: _Time
    signature: _Signature


class AskReceipts(OfPartition, frozen=True, tag=43):
    """To a replica: who signed that they store the batch that has this offset?

    Whoever names a store says that it did not give it, and gets no answer: the replica sees to it.
    """

    offset: _Number
    store: _Node | None = None


class SignedReceipt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one store signed. `behind` are the digests of the batches after the one asked for."""

    store: _Node
    first: _Number
    count: _Number
    chain: _Digest
    signature: _Signature
    behind: Annotated[bytes, Meta(max_length=RUN_BATCHES_MAX * DIGEST_BYTES)]


class Receipts(OfLine, frozen=True, tag=44):
    """The answer: these did. `before` is the chain of the line before the batch.

    `evidence` is against those of them that were asked for it and refused (`crypto/evidence.py`).
    """

    offset: _Number
    sequence: _Number
    time_us: _Time
    digest: _Digest
    before: _Digest
    receipts: Annotated[list[SignedReceipt], Meta(max_length=RECEIPTS_MAX)]
    evidence: Annotated[list[_Evidence], Meta(max_length=RECEIPTS_MAX)]


# Proving


class ProveRange(OfPartition, frozen=True, tag=50):
    """Reader to replica: show me where the batches stand, from that of this offset on, up to so
    many."""

    number: _Number
    offset: _Number
    count: Annotated[int, Meta(ge=1, le=PROVEN_BATCHES_MAX)]


class ProvenRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Consecutive batches of one line that were decided together, the first of which has `leaf`."""

    count: Annotated[int, Meta(ge=1, le=PROVEN_BATCHES_MAX)]
    publisher: _Node
    first: _Number
    time_us: _Time
    leaf: _Number


class ProvenRange(OfPartition, frozen=True, tag=51):
    """Replica to reader: whose batches these are, in their order, and how their leaves lead
    together to a checkpoint's root. They may be fewer than were asked for.

    With a sentence it says why there are none; `is_final` then means that asking again does not
    help.
    """

    number: _Number
    offset: _Number
    runs: Annotated[list[ProvenRun], Meta(max_length=PROVEN_RUNS_MAX)]
    path: Annotated[list[_Digest], Meta(max_length=PROVEN_HASHES_MAX)]
    checkpoint: _Checkpoint
    sentence: _Sentence = ""
    is_final: bool = False


# Control


class Concluded(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=25):
    """Replica to client: this command of yours was carried out, or why it was not."""

    sequence: _Number
    sentence: _Sentence


class Recall(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=26):
    """Client to replica: what became of this command of mine? I missed it."""

    sequence: _Number


class Assigned(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=27):
    """Replica to a member of a consumer group: this is what you read now.

    `revision` grows with every change of it, `epoch` with every new assignment of the group.
    """

    group: _Sentence
    epoch: _Number
    revision: _Number
    # Topic, partition, and the offset that was committed last, or -1.
    partitions: Annotated[list[tuple[_Sentence, _PartitionNumber, _Offset]], Meta(max_length=65536)]
    # Of those whose commit said more: topic, partition, epoch of the leader or -1, metadata.
    notes: Annotated[
        list[tuple[_Sentence, _PartitionNumber, _Offset, _Sentence]], Meta(max_length=65536)
    ] = []


class TopologyQuery(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=28):
    """Client to replica: which topics and replicas are there? `whole` asks for the text too.

    With `founding`, which ones were there when the cluster began?
    """

    number: _Number
    whole: bool
    founding: bool = False


class TopologyReport(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=29):
    """Replica to client: the digest of what is, or was, the cluster file, and perhaps itself."""

    number: _Number
    revision: _Number
    digest: _Digest
    text: Annotated[str, Meta(max_length=TOPOLOGY_CHARACTERS_MAX)]


# Auditing


class Walk(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=37):
    """Client to replica: how did you decide the slots of this group, from this one on?

    Slot 0 asks for the first that is kept.
    """

    group: _Number
    number: _Number
    slot: _Number


class Slot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What one slot decided: its value, the descriptors of its batches, and the offset from which
    on each span has its events."""

    value: _Value
    descriptors: Annotated[bytes, Meta(max_length=SLOT_DESCRIPTORS_BYTES_MAX)]
    offsets: Annotated[list[_Number], Meta(max_length=SLOT_SPANS_MAX)]


class Walked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=38):
    """Replica to client: these slots, from `slot` on; `start` is the first that is kept, and `end`
    the one after the last.

    `size` and `edge` are the tree before the first of them, `checkpoints` the last ones that we
    have.
    """

    group: _Number
    number: _Number
    slot: _Number
    slots: Annotated[list[Slot], Meta(max_length=WALKED_SLOTS_MAX)]
    start: _Number
    end: _Number
    size: _Number
    edge: Annotated[list[_Digest], Meta(max_length=EDGE_MAX)]
    checkpoints: Annotated[list[_Checkpoint], Meta(max_length=2)]


OrderMessage: TypeAlias = (
    Append
    | Announce
    | AnnounceSealed
    | Received
    | Stored
    | Retrieve
    | Retrieved
    | Ordered
    | Propose
    | Write
    | Accept
    | Standing
    | Decision
    | Cosign
    | OfferSnapshot
    | AskPart
    | SnapshotPart
    | Stop
    | StopData
    | Sync
    | Locate
    | Located
    | Follow
    | Allow
    | Fill
    | Entries
    | Chained
    | Absent
    | ProveRange
    | ProvenRange
    | Challenge
    | Refusal
    | AskReceipts
    | Receipts
    | Concluded
    | Unordered
    | Recall
    | Assigned
    | TopologyQuery
    | TopologyReport
    | Walk
    | Walked
)
