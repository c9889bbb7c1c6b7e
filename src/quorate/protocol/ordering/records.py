"""What a replica of the order log has on disk, record by record.

A replica writes records into one journal, in the order in which its machine asks for them. After
a crash it reads back a prefix of them that has at least everything that was synced. So whatever a
record rests on stands before it: a `Decided` after the `Held` of its batches, say.

`Held` and `Voted` are synced before anything leaves that rests on them. `Decided` need not be: a
quorum has the votes that led to it on disk, and they lead to it again.
"""

from itertools import accumulate
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from quorate.core.header import DESCRIPTOR_BYTES, counts_in, counts_of, is_signed
from quorate.core.ids import DIGEST_BYTES, Digest, NodeId, Sequence, TopicId
from quorate.core.ordering import Entries, Partition, Wants
from quorate.crypto.digests import descriptor
from quorate.protocol.ordering.value import offsets_of


class Held(msgspec.Struct, frozen=True, gc=False, tag="held"):
    """Payloads that this replica stores: consecutive batches of one publisher.

    What is kept outside (`Deposit`) has its pointer here.
    """

    publisher: NodeId
    topic: TopicId
    partition: int
    first: Sequence
    payloads: list[bytes]


class Deposit(msgspec.Struct, frozen=True, gc=False):
    """A payload for the store outside, which keeps it in place of this replica's own disk."""

    publisher: NodeId
    topic: TopicId
    partition: int
    sequence: Sequence
    digest: Digest
    payload: bytes


class Deposited(msgspec.Struct, frozen=True, gc=False):
    """What became of a deposit: `pointer` is what is held in its place, from now on and for good.

    It is empty if the store outside did not take the payload, or not in time.
    """

    publisher: NodeId
    topic: TopicId
    partition: int
    sequence: Sequence
    pointer: bytes


class Dropped(msgspec.Struct, frozen=True, gc=False, tag="dropped"):
    """What is held of this line and undecided will not be decided: it is given up.

    It need not be synced: whoever still has it after a crash drops it again.
    """

    publisher: NodeId
    topic: TopicId
    partition: int


class Disowned(msgspec.Struct, frozen=True, gc=False, tag="disowned"):
    """What this group wrote of this partition was never its to write, and is void."""

    group: int
    topic: TopicId
    partition: int


class Named(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Consecutive batches of one publisher, by their descriptors, which are laid end to end."""

    publisher: NodeId
    topic: TopicId
    partition: int
    first: Sequence
    descriptors: bytes


class Voted(msgspec.Struct, frozen=True, gc=False, tag="voted"):
    """What this replica has said in a slot; later records of a slot replace earlier ones.

    `accepted_in` and `accepted` are the regency and the digest of its last ACCEPT (0 and nothing
    before the first), `written` has the last regency in which it sent WRITE for a digest. `values`
    are those of these values that no earlier record of the slot has. `displaced` are payloads in
    whose place others are held from now on, and which may yet be decided. They are written again
    with every snapshot, since that covers the votes before it. `named` are batches of these values
    that others store: a value has one hash for many, and nobody might know the others any more.
    """

    group: int
    regency: int
    slot: int
    accepted_in: int
    accepted: Digest
    written: dict[Digest, int]
    values: list[bytes]
    displaced: list[Held] = []
    named: list[Named] = []


class Receipted(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A store signed that it keeps batches; the chain is that of the last of them.

    `behind` has the digests of those that come after what was decided with the others.
    """

    store: NodeId
    first: Sequence
    count: int
    chain: Digest
    signature: bytes
    behind: bytes = b""


class Placed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Consecutive batches of one publisher got consecutive offsets, and leaves in the order log.

    `offset` is that of the first event. Descriptors, hashes of leaves, and the partition's chain
    after each batch are laid end to end.
    """

    publisher: NodeId
    topic: TopicId
    partition: int
    first: Sequence
    offset: int
    leaf: int
    descriptors: bytes
    leaves: bytes
    chains: bytes
    # Which of them, from 0, this replica does not have the payloads of, whatever it holds.
    lacking: list[int] = []
    # Who signed that they keep those, on validated topics, and the line's chain before the first.
    before: Digest = b""
    receipts: list[Receipted] = []

    @property
    def count(self) -> int:
        """How many batches these are."""
        return len(self.descriptors) // DESCRIPTOR_BYTES

    @property
    def offsets(self) -> list[int]:
        """The first offset of each batch, and the one after the last."""
        return list(accumulate(counts_in(self.descriptors), initial=self.offset))

    @property
    def end(self) -> int:
        return self.offset + sum(counts_in(self.descriptors))


class Decided(msgspec.Struct, frozen=True, gc=False, tag="decided"):
    """A slot's value, and where it puts its batches."""

    group: int
    slot: int
    time_us: int
    value: bytes
    placed: list[Placed]


class Snapshot(msgspec.Struct, frozen=True, gc=False, tag="snapshot"):
    """The whole state of a group's machine after this slot: nothing before it need be replayed."""

    group: int
    slot: int
    state: bytes
    # In which regency this replica was: it must not go back behind that.
    regency: int = 1
    # It signs no head of so many batches or fewer: it may have signed others of these sizes.
    signs_above: int = 0


class Certified(msgspec.Struct, frozen=True, gc=False, tag="certified"):
    """A state that a quorum signed (`transfer.py`): any replica can be shown that it is right.

    The last one of a group is kept, and need not be synced: whoever lacks it waits for the next.
    """

    group: int
    slot: int
    state: bytes
    checkpoint: str


class Installed(msgspec.Struct, frozen=True, gc=False, tag="installed"):
    """The group starts over with this state, after this slot; what it had before is void.

    That includes slots, votes in earlier ones, and the entries of its partitions. It is synced
    before anything leaves that rests on it.
    """

    group: int
    slot: int
    state: bytes
    regency: int
    signs_above: int = 0

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.group, self.slot, self.state, self.regency, self.signs_above)


Record: TypeAlias = Held | Dropped | Disowned | Voted | Decided | Snapshot | Certified | Installed


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """Consecutive batches of one publisher as they stand in a partition.

    `offset` is that of the first event of the first batch, `before` the partition's chain before
    it, and `chains` has those behind each.
    """

    publisher: NodeId
    offset: int
    first: Sequence
    time_us: int
    before: Digest
    chains: bytes
    payloads: list[bytes]

    @property
    def offsets(self) -> list[int]:
        """The first offset of each batch, and the one after the last."""
        return offsets_of(self.offset, self.payloads)

    @property
    def end(self) -> int:
        return self.offset + sum(counts_of(self.payloads))

    def entries(self, partition: Partition, batches: int, wants: Wants = Wants.ALL) -> Entries:
        """The first of them, as readers get them."""
        payloads, bare = self.payloads[:batches], list[int]()
        after = self.chains[(len(payloads) - 1) * DIGEST_BYTES : len(payloads) * DIGEST_BYTES]
        if wants is Wants.SIGNED:
            bare = [at for at, payload in enumerate(payloads) if not is_signed(payload)]
            for at in bare:
                payloads[at] = descriptor(payloads[at])
        return Entries(
            self.publisher, *partition, self.offset, self.first, self.time_us, self.before, after,
            payloads, bare,
        )  # fmt: skip


class Spot(NamedTuple):
    """The batch that has an offset: whose it is, when it was decided, its leaf in the order log,
    and the offsets of its first event and after its last."""

    publisher: NodeId
    sequence: Sequence
    time_us: int
    leaf: int
    offset: int
    end: int


class Store(Protocol):
    """What a machine may ask of the disk. Its records take effect here when they are written.

    Offsets are those of events. Where one lies inside a batch, that batch is meant.
    """

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        """What stands there, from the batch of this offset on: at least one batch if it is here, up
        to about so many bytes. It ends before the first batch whose payload this replica lacks.
        """

    def is_fetching(self, partition: Partition, offset: int) -> bool:
        """Whether the payload there is on its way from outside: `read` has it before long."""

    def may_come(self, partition: Partition, offset: int) -> bool:
        """Whether the payload there is kept outside, and not known to be lost: it may yet be had,
        be it that nobody answers there for now."""

    def chain(self, partition: Partition, offset: int) -> tuple[int, Digest] | None:
        """Where the batch of this offset begins, and the partition's chain before it, if that is
        still known. At the end there is a chain as well."""

    def behind(self, partition: Partition, offset: int, batches: int) -> int:
        """The offset after so many batches from that of this offset on, or so many before it if the
        number is negative; no further than what is kept."""

    def runs(self, partition: Partition, offset: int, batches: int) -> list[tuple[int, Spot]]:
        """Where so many batches stand from that of this offset on, as far as they are kept: how
        many have consecutive numbers and leaves, and the spot of the first of them."""

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """The first offset that is kept, and the one after the last."""

    def taken(self, partition: Partition) -> int:
        """Before this offset retention took everything, for all that this replica knows."""

    def offset_at(self, partition: Partition, time_us: int) -> int:
        """The first offset that was decided at this time or later; the end if there is none."""

    def absent(self) -> list[tuple[Partition, int, int]]:
        """Offsets, and how many batches from each on, whose payloads are not here."""

    def placed_at(self, group: int, partition: Partition, offset: int) -> tuple[int, Placed] | None:
        """When this offset was decided, and what was put there together, if it is still known."""

    def decided(self, group: int, slot: int, bytes_max: int) -> list[Decided]:
        """Slots from this one on, up to about so many bytes of records."""

    def slots(self, group: int) -> tuple[int, int]:
        """The first slot that can still be told of, and the one after the last."""

    def certified(self, group: int) -> Certified | None:
        """The last snapshot that a quorum signed."""

    def node(self, group: int, level: int, number: int) -> bytes:
        """A perfect tree's hash in the order log of a group; level 0 has the leaves.

        Of the leaves before a snapshot that the group started over with, only those nodes are
        known that later leaves need for their proofs; asking for another one is an error.
        """
