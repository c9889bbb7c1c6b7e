"""Histories made by hand: slots as correct replicas decide them, and checkpoints over them.

scribe = Scribe()
scribe.slot({ALICE: [batch(b"one"), batch(b"two", events=3)]})
history.begin(0, scribe.walked(checkpoints=[scribe.checkpoint()]))
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quorate.core.batch import encode_values
from quorate.core.ids import NodeId, topic_id
from quorate.core.ordering import Entries, Line, Partition, Slot, Walked
from quorate.crypto.checkpoint import Cosignature, Cosigner, Head, cosigned_bytes, render
from quorate.crypto.digests import descriptor
from quorate.protocol.auditing.history import Orderers
from quorate.protocol.ordering.log import Content, OrderLog
from quorate.protocol.ordering.value import (
    CHAIN_START,
    Span,
    Value,
    chain_of,
    chained,
    leaves_of,
    value_digest,
)

CLUSTER, TOPIC, GROUP = "demo", "t", 1
HERE = Partition(topic_id(TOPIC), 0)
ALICE, BOB = 1 << 32 | 1000, 1 << 32 | 1001
REPLICAS = (0, 1, 2, 3)
ORIGIN = "quorate/demo/byzantine"
BEGIN_US = 1_000_000


def batch(value: bytes, events: int = 1) -> bytes:
    """A basic batch of so many events that are alike."""
    return encode_values([value] * events, 5)


def secret_of(member: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(member.to_bytes(32, "big"))


def public_of(member: int) -> bytes:
    return secret_of(member).public_key().public_bytes_raw()


COSIGNERS = {replica: Cosigner(f"r{replica}", public_of(replica + 1)) for replica in REPLICAS}


def name_of(node: NodeId) -> str:
    return {1000: "alice", 1001: "bob"}.get(node & 0xFFFFFFFF, f"r{node}")


def orderers() -> Orderers:
    """Four replicas, of which one may lie."""
    return Orderers(CLUSTER, GROUP, "byzantine", REPLICAS, 3, 2, ORIGIN, COSIGNERS, name_of, 3)


@dataclass
class Scribe:
    """Decides slots, and remembers where each begins."""

    log: OrderLog = field(default_factory=lambda: OrderLog(GROUP))
    slots: list[Slot] = field(default_factory=list)
    trees: list[tuple[int, list[bytes]]] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def slot(self, batches: Mapping[NodeId, list[bytes]], time_us: int | None = None) -> "Scribe":
        """One slot with the next batches of these publishers."""
        self.trees.append((self.log.tree.size, list(self.log.tree.edge)))
        spans, contents = [], []
        for publisher, payloads in batches.items():
            line = Line(publisher, *HERE)
            state, content = self.log.line(line), [*map(descriptor, payloads)]
            chain = chain_of(state.chain, content)[-1]
            spans.append(Span(*line, state.next, len(payloads), chain))
            contents.append(Content(content, []))
            self.payloads += payloads
        number = len(self.slots) + 1
        value = Value(BEGIN_US + number if time_us is None else time_us, tuple(spans))
        encoded = value.encode()
        decided = self.log.apply(number, value_digest(encoded), encoded, value, contents)
        descriptors = b"".join(placed.descriptors for placed in decided.placed)
        offsets = [placed.offset for placed in decided.placed]
        self.slots.append(Slot(encoded, descriptors, offsets))
        return self

    def walked(
        self, start: int = 1, end: int | None = None, checkpoints: Iterable[str] = ()
    ) -> Walked:
        """What a replica tells that keeps the slots from `start` to before `end`."""
        end = len(self.slots) + 1 if end is None else end
        here = (self.log.tree.size, list(self.log.tree.edge))
        size, edge = [*self.trees, here][start - 1]
        slots = self.slots[start - 1 : end - 1]
        return Walked(GROUP, 1, start, slots, start, end, size, edge, list(checkpoints))

    def checkpoint(
        self, signers: Iterable[NodeId] = (0, 1, 2), *, origin: str = ORIGIN, root: bytes = b""
    ) -> str:
        """The head of the log, signed by these."""
        tree = self.log.tree
        head = Head(origin, tree.size, root or tree.root())
        data = cosigned_bytes(head, 5)
        signatures = [
            Cosignature(f"r{replica}", 5, secret_of(replica + 1).sign(data)) for replica in signers
        ]
        return render(head, signatures, COSIGNERS.values())


def entries_of(
    payloads: list[bytes],
    *,
    publisher: NodeId = ALICE,
    first: int = 1,
    offset: int = 0,
    time_us: int = BEGIN_US + 1,
    before: bytes = CHAIN_START,
) -> Entries:
    """These batches as a replica sends them, in a message that fits itself."""
    line = Line(publisher, *HERE)
    leaves = leaves_of(line, first, offset, time_us, [*map(descriptor, payloads)])
    after = chained(before, leaves)[-1]
    return Entries(publisher, *HERE, offset, first, time_us, before, after, payloads)
