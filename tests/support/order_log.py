"""An order log in a test's own hands: real keys, seals, leaves and checkpoints, and no cluster.

    log = OrderLog()
    log.publish("payments", [event(b"one"), event(b"two")])
    proof = log.proof(0)

All keys follow from names, and clocks stand still, so that the same calls give the same bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from quorate.core import batch
from quorate.core.cluster import Client, Cluster, Former, Replica
from quorate.core.contract import Contract
from quorate.core.event import Event
from quorate.core.header import HEADER_BYTES, NO_ROOT, count_of, header_of
from quorate.core.ids import node_of, topic_id
from quorate.core.ordering import Line
from quorate.crypto.checkpoint import Cosignature, Cosigner, Head, cosigned_bytes, render
from quorate.crypto.digests import descriptor
from quorate.crypto.events import events_root
from quorate.crypto.identity import Identity, _unsigned
from quorate.crypto.merkle import Tree, inclusion_proof
from quorate.crypto.proofs import EventProof, Keys, Proof
from quorate.crypto.sids import Place, sign_together, unsealed
from quorate.protocol.ordering.value import leaves_of

REPLICAS = ("r0", "r1", "r2", "r3")
SESSION = 77
TIME_US = 1_700_000_000_000_000
TIME_S = TIME_US // 1_000_000 + 60
PLAIN, SALTED = "payments", "votes"
BASE: dict[str, object] = {"protection": "byzantine", "order": "total", "validated": True}
TOPICS = {PLAIN: {**BASE, "partitions": 2}, SALTED: {**BASE, "event_proofs": True}}


@cache
def identity(name: str, generation: int = 0) -> Identity:
    """Always the same keys, and the same certificate, for the same name."""
    signing = Ed25519PrivateKey.from_private_bytes(_seed("sign", name, generation))
    agreement = X25519PrivateKey.from_private_bytes(_seed("mac", name, generation))
    serial = int.from_bytes(_seed("serial", name, generation)[:8], "big") | 1
    certificate = _unsigned(name, signing.public_key(), serial).sign(signing, None)
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    return Identity(signing, agreement, pem, name)


def cluster(
    name: str = "bank", replicas: Sequence[str] = REPLICAS, nonce: bytes = bytes(16)
) -> Cluster:
    """Four replicas; alice and bob publish, and carol did once."""
    return Cluster(
        name=name,
        f=1,
        nonce=nonce,
        replicas=tuple(
            Replica.of(identity(each).public, number=number, host="127.0.0.1", port=7400 + number)
            for number, each in enumerate(replicas)
        ),
        clients=tuple(
            Client.of(identity(each).public, index=index)
            for index, each in enumerate(("alice", "bob"))
        ),
        formers=(Former(number=1002, name="carol", party="carol"),),
        topics={topic: Contract.parse(topic, table) for topic, table in TOPICS.items()},
    )


NUMBERS = {"alice": 1000, "bob": 1001, "carol": 1002, "dan": 1003}


def event(
    value: bytes, key: bytes | None = None, *, urgent: bool = False, **headers: bytes
) -> Event:
    return Event(key, value, tuple(headers.items()), TIME_US, urgent)


@dataclass(frozen=True, slots=True)
class Published:
    """A batch as it stands in the log."""

    topic: str
    partition: int
    offset: int
    publisher: int
    sequence: int
    time_us: int
    payload: bytes


class OrderLog:
    """Batches in one order, and checkpoints of that."""

    def __init__(self, name: str = "bank", nonce: bytes = bytes(16)) -> None:
        self.cluster = cluster(name, nonce=nonce)
        self.keys = Keys.of(self.cluster)
        self.published: list[Published] = []
        self._nodes: dict[tuple[int, int], bytes] = {}
        self._tree = Tree(on_node=self._keep)

    def publish(
        self,
        topic: str,
        events: Sequence[Event],
        *,
        by: str = "alice",
        generation: int = 0,
        partition: int = 0,
        count: int | None = None,
        root: bytes | None = None,
        sheaf: int = 1,
        signed: bool = True,
    ) -> Published:
        """The next batch; a producer that lies may say another count or root.

        It is the last of so many that are signed together; the others are not ordered.
        """
        publisher = node_of(NUMBERS[by], SESSION)
        before = [
            each for each in self.published if (each.topic, each.partition) == (topic, partition)
        ]
        mine = [each for each in before if each.publisher == publisher]
        keys, payload = identity(by, generation), batch.encode(events)
        sequence, salt, real_root = 1 + len(mine), b"", NO_ROOT
        if count is not None:
            header = header_of(payload)._replace(events=count)
            payload = header.encode() + payload[HEADER_BYTES:]
        if topic == SALTED:
            salt = _seed("salt", by, len(self.published))
            real_root = events_root(salt, events)
        if signed:
            seal = unsealed(
                payload, salt, time_us=TIME_US - 1000, root=real_root if root is None else root,
                public_key=keys.public.sign_key,
            )  # fmt: skip
            place = Place.of(self.cluster.full_name, topic, partition, publisher)
            others = [(place, sequence + number, seal) for number in range(1, sheaf)]
            seals = sign_together([*others, (place, sequence, seal)], keys.sign)
            payload = seals[-1].encode() + salt + payload[HEADER_BYTES:]
        time_us = TIME_US + 1000 * len(self.published)
        offset = sum(count_of(each.payload) for each in before)
        return self.add(Published(topic, partition, offset, publisher, sequence, time_us, payload))

    def add(self, published: Published) -> Published:
        """Order this batch, whatever it is."""
        line = Line(published.publisher, topic_id(published.topic), published.partition)
        (leaf,) = leaves_of(
            line, published.sequence, published.offset, published.time_us,
            [descriptor(published.payload)],
        )  # fmt: skip
        self._tree.append(leaf)
        self.published.append(published)
        return published

    def checkpoint(
        self,
        signers: Iterable[str] = REPLICAS[:3],
        *,
        extensions: tuple[str, ...] = (),
        origin: str | None = None,
    ) -> str:
        """The head of the log, signed by these, who may be nobody that anybody knows."""
        signers = list(signers)
        origin = self.keys.origin if origin is None else origin
        head = Head(origin, self._tree.size, self._tree.root(), extensions)
        cosigners = [Cosigner(name, identity(name).public.sign_key) for name in signers]
        return render(head, [cosignature(head, name) for name in signers], cosigners)

    def proof(
        self, number: int, *, event: int | None = None, checkpoint: str | None = None
    ) -> Proof:
        """Of the batch with this leaf, as of now."""
        found, size = self.published[number], self._tree.size
        proof = Proof.of(
            Place.of(self.cluster.full_name, found.topic, found.partition, found.publisher),
            found.offset,
            found.sequence,
            found.time_us,
            found.payload,
            leaf=number,
            tree_size=size,
            path=inclusion_proof(lambda level, at: self._nodes[level, at], number, size),
            checkpoint=self.checkpoint() if checkpoint is None else checkpoint,
        )
        if event is None:
            return proof
        shown = EventProof.of(found.payload, event)
        return msgspec.structs.replace(proof, body=None, event=shown)

    def _keep(self, level: int, number: int, node: bytes) -> None:
        self._nodes[level, number] = node


def cosignature(head: Head, name: str) -> Cosignature:
    return Cosignature(name, TIME_S, identity(name).sign(cosigned_bytes(head, TIME_S)))


def with_replica(keys: Keys, name: str, generation: int) -> Keys:
    """The same keys, but this replica has got another one."""
    other = Cosigner(name, identity(name, generation).public.sign_key)
    cosigners = tuple(other if each.name == name else each for each in keys.cosigners)
    return replace(keys, cosigners=cosigners)


def _seed(*what: object) -> bytes:
    return sha256(repr(what).encode()).digest()
