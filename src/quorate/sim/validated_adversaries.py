"""Who attacks validated topics, by name: producers that sign wrongly, and replicas that help them.

A producer's machine is as any other, and what leaves it is forged: each attack takes a batch as it
was sealed and makes another of it. Most of what comes out, no correct replica may take. Some of it
is signed as it should be, and still a lie: another batch under the same number, another number of
events, a payload that nobody is given.

Among replicas, some do not look at seals, vouch for whatever they are given and propose it. Others
order as agreed, and give readers something else than was ordered, or nothing. One signs for what
it stores in a way that does not hold.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from random import Random
from typing import Any, TypeAlias, TypeGuard

import msgspec

from quorate.core.header import (
    HEADER_BYTES,
    NO_ROOT,
    SALT_BYTES,
    SEAL_BYTES,
    Header,
    columns_at,
    is_signed,
)
from quorate.core.ids import NodeId, Sequence, member_of
from quorate.core.messages import Message
from quorate.core.ordering import (
    Announce,
    AnnounceSealed,
    Append,
    Entries,
    Line,
    Received,
    Retrieved,
    Stored,
)
from quorate.crypto.digests import batch_digest, descriptor, digest
from quorate.crypto.identity import SIGNATURE_BYTES
from quorate.crypto.sids import Place, Seal, body_of, signed
from quorate.protocol.machine import Ready
from quorate.protocol.misbehaviour import Parts, behave
from quorate.protocol.ordering.rules import Byzantine
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.topic import Topic
from quorate.sim.adversaries import Retold, some
from quorate.sim.hosts import Rewrite
from quorate.sim.order_adversaries import FalseLog, absent, false_header, with_payloads
from quorate.sim.sealing import CLUSTER, Sealed, public_key, signing_key

# The order of the group in which Ed25519 counts: S and S + this say the same.
_ED25519_ORDER = 2**252 + 27742317777372353535851937790883648493
_STRANGER = 7


class Pen:
    """What a producer that lies has in hand: its key, all that was sealed, and chance."""

    def __init__(self, me: NodeId, topic: Topic, sealed: Sealed, draw: Random) -> None:
        self.me, self.topic, self.sealed, self.draw = me, topic, sealed, draw

    def get(self, partition: int, sequence: Sequence) -> bytes | None:
        """What was sealed there; None if that batch is a basic one."""
        return self.sealed.get(self.me, self.topic.name, partition, sequence)

    def signed(
        self,
        partition: int,
        sequence: Sequence,
        payload: bytes,
        *,
        place: Mapping[str, Any] | None = None,
        key: int = 0,
        body: bytes | None = None,
        **fields: Any,
    ) -> bytes:
        """The same batch with something changed, and a signature over that."""
        body = body_of(payload) if body is None else body
        where = Place.of(CLUSTER, self.topic.name, partition, self.me)._replace(**place or {})
        seal = Seal.decode(payload)._replace(
            digest=digest(body), public_key=public_key(member_of(self.me), key)
        )
        seal = seal._replace(**fields)
        signature = signing_key(member_of(self.me), key).sign(signed(where, sequence, seal))
        return seal._replace(signature=signature).encode() + body

    def other_body(self, payload: bytes) -> bytes:
        """Another body that is a batch as well: the last bytes of one are values."""
        body = body_of(payload)
        return body[:-1] + bytes([body[-1] ^ (1 + self.draw.randrange(255))])


# From a batch as it was sealed, its partition and number: what is sent in its place.
Forge: TypeAlias = Callable[[Pen, int, Sequence, bytes], bytes]


def _flipped_signature(pen: Pen, _: int, __: Sequence, payload: bytes) -> bytes:
    at = SEAL_BYTES - 1 - pen.draw.randrange(64)
    return payload[:at] + bytes([payload[at] ^ 1 << pen.draw.randrange(8)]) + payload[at + 1 :]


def _malleable_signature(_: Pen, __: int, ___: Sequence, payload: bytes) -> bytes:
    """A second signature, from the first, that lax libraries take."""
    at = SEAL_BYTES - 32
    number = int.from_bytes(payload[at:SEAL_BYTES], "little") + _ED25519_ORDER
    return payload[:at] + number.to_bytes(32, "little") + payload[SEAL_BYTES:]


def _elsewhere(**place: Any) -> Forge:
    def forge(pen: Pen, partition: int, sequence: Sequence, payload: bytes) -> bytes:
        known = Place.of(CLUSTER, pen.topic.name, partition, pen.me)
        changed = {
            name: getattr(known, name) + change if isinstance(change, int) else change
            for name, change in place.items()
        }
        return pen.signed(partition, sequence, payload, place=changed)

    return forge


def _replayed(pen: Pen, partition: int, sequence: Sequence, payload: bytes) -> bytes:
    """A batch that we sealed under an earlier number."""
    before = pen.get(partition, pen.draw.randrange(1, sequence + 1))
    return payload if before is None else before


def _stolen(pen: Pen, _: int, __: Sequence, payload: bytes) -> bytes:
    """What somebody else sealed, as it is."""
    others = pen.sealed.by_others(pen.me)
    return pen.draw.choice(others) if others else payload


def _other_count(pen: Pen, partition: int, sequence: Sequence, payload: bytes) -> bytes:
    header = Seal.decode(payload).header
    events = header.events + pen.draw.choice((1, 2, 1 << 20))
    return pen.signed(partition, sequence, payload, header=header._replace(events=events))


def _no_batch(pen: Pen, partition: int, sequence: Sequence, payload: bytes) -> bytes:
    """Signed as it should be, and nothing that anybody could read."""
    body = pen.draw.randbytes(pen.draw.choice((0, 1, SALT_BYTES, len(body_of(payload)))))
    return pen.signed(partition, sequence, payload, body=body)


def _other_tree(pen: Pen, partition: int, sequence: Sequence, payload: bytes) -> bytes:
    """A tree of events where there is to be none, or the other way round."""
    if Seal.decode(payload).root == NO_ROOT:
        body = pen.draw.randbytes(SALT_BYTES) + body_of(payload)
        return pen.signed(partition, sequence, payload, root=pen.draw.randbytes(32), body=body)
    return pen.signed(
        partition, sequence, payload, root=NO_ROOT, body=payload[columns_at(payload) :]
    )


def _truncated(pen: Pen, _: int, __: Sequence, payload: bytes) -> bytes:
    sizes = (HEADER_BYTES, SEAL_BYTES - 1, SEAL_BYTES, len(payload) - 1)
    return payload[: pen.draw.choice(sizes)]


def _bare(_: Pen, __: int, ___: Sequence, payload: bytes) -> bytes:
    """A signed batch that says it is a basic one: that is one, whatever is in it."""
    header = Header.of(*Seal.decode(payload).header[3:])
    return header.encode() + payload[columns_at(payload) :]


FORGERIES: Mapping[str, Forge] = {
    "flipped-signature": _flipped_signature,
    "malleable-signature": _malleable_signature,
    "strange-key": lambda pen, *batch: pen.signed(*batch, key=_STRANGER),
    # Somebody else's key in the seal, and our signature.
    "key-of-another": lambda pen, *batch: pen.signed(
        *batch, public_key=public_key(member_of(pen.me) + 1)
    ),
    "name-of-another": _elsewhere(producer=1),
    "other-session": _elsewhere(session=1),
    "other-partition": _elsewhere(partition=1),
    "other-topic": _elsewhere(topic="other"),
    "other-cluster": _elsewhere(cluster="other"),
    "later-number": lambda pen, at, number, payload: pen.signed(at, number + 1, payload),
    "earlier-number": lambda pen, at, number, payload: pen.signed(at, max(0, number - 1), payload),
    "replayed": _replayed,
    "stolen": _stolen,
    "other-count": _other_count,
    "swapped-body": lambda pen, _, __, payload: payload[:SEAL_BYTES] + pen.other_body(payload),
    "no-batch": _no_batch,
    "other-tree": _other_tree,
    "truncated": _truncated,
    # Another count or size than was signed, or no word of a signature.
    "false-header": lambda pen, _, __, payload: false_header(pen.draw, payload),
    "bare": _bare,
}


def _other_batch(pen: Pen, partition: int, sequence: Sequence, payload: bytes) -> bytes:
    """A second batch under the same number, signed as well as the first."""
    return pen.signed(partition, sequence, payload, body=pen.other_body(payload))


class Forger(Retold):
    """Forge some batches, each in one way, or in another one whenever it is sent.

    Numbers are shifted and runs turned round now and then.
    """

    def __init__(
        self, pen: Pen, kinds: Collection[str], share: float, *, is_stubborn: bool
    ) -> None:
        self._pen, self._kinds = pen, tuple(kinds)
        self._share, self._is_stubborn = share, is_stubborn
        self._forged: dict[tuple[int, Sequence], bytes] = {}

    def _told(self, node: NodeId, message: Message) -> Message:
        if not _is_request(message, self._pen.topic):
            return message
        payloads = [self._batch(message.partition, *each) for each in _numbered(message)]
        draw = self._pen.draw
        if not self._is_stubborn and draw.random() < self._share / 4:
            payloads.reverse()
        moved = message
        if not self._is_stubborn and draw.random() < self._share / 4:
            moved = msgspec.structs.replace(message, first=message.first + draw.choice((1, 2, 9)))
        return _with_payloads(moved, payloads)

    def _batch(self, partition: int, sequence: Sequence, given: bytes) -> bytes:
        place = partition, sequence
        if place in self._forged:
            return self._forged[place]
        pen = self._pen
        sealed = pen.get(partition, sequence)
        payload = given if sealed is None else sealed
        if sealed is not None and pen.draw.random() < self._share:
            kind = pen.draw.choice(self._kinds)
            payload = FORGERIES[kind](pen, partition, sequence, sealed)
        if self._is_stubborn:
            self._forged[place] = payload
        return payload


class TwoStories(Retold):
    """Seal two batches under one number, and give each to some of the replicas."""

    def __init__(self, pen: Pen, others: Collection[NodeId]) -> None:
        self._pen, self._others = pen, frozenset(others)
        self._second: dict[tuple[int, Sequence], bytes] = {}

    def _told(self, node: NodeId, message: Message) -> Message:
        if node not in self._others or not _is_request(message, self._pen.topic):
            return message
        return _with_payloads(
            message, [self._batch(message.partition, *each) for each in _numbered(message)]
        )

    def _batch(self, partition: int, sequence: Sequence, given: bytes) -> bytes:
        place, pen = (partition, sequence), self._pen
        if place not in self._second:
            sealed = pen.get(partition, sequence)
            if sealed is None:
                self._second[place] = given[:-1] + bytes([given[-1] ^ 1])
            else:
                self._second[place] = _other_batch(pen, partition, sequence, sealed)
        return self._second[place]


class Unstored(Retold):
    """Announce all batches to everybody, and give them to too few, or to nobody."""

    def __init__(self, pen: Pen, stores: Collection[NodeId]) -> None:
        self._pen, self._stores = pen, frozenset(stores)

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if node in self._stores or not _is_append(message, self._pen.topic):
            return [(node, message)]
        return [(node, told) for told in _announcements(message)]


class Miscount(Retold):
    """Sign another number of events than there are, and announce that before the payload comes.

    Seals alone do not show it.
    """

    def __init__(self, pen: Pen, share: float) -> None:
        self._pen = pen
        self._forger = Forger(pen, ("other-count", "no-batch"), share, is_stubborn=True)

    def __call__(self, ready: Ready, now_us: int) -> Parts:
        ((_, forged),) = self._forger(ready, now_us)
        return super().__call__(forged, now_us)

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if not _is_append(message, self._pen.topic):
            return [(node, message)]
        return [(node, told) for told in (*_announcements(message), message)]


def _is_append(message: Message, topic: Topic) -> TypeGuard[Append]:
    return isinstance(message, Append) and message.topic == topic.id


def _is_request(message: Message, topic: Topic) -> TypeGuard[Append | AnnounceSealed]:
    return isinstance(message, Append | AnnounceSealed) and message.topic == topic.id


def _numbered(message: Append | AnnounceSealed) -> Iterator[tuple[Sequence, bytes]]:
    """Batches, or their seals, with their numbers."""
    return enumerate(
        message.payloads if isinstance(message, Append) else message.seals, message.first
    )


def _with_payloads(message: Append | AnnounceSealed, payloads: list[bytes]) -> Message:
    """The same message with these batches. What it says of them is true to itself."""
    if isinstance(message, AnnounceSealed):
        return msgspec.structs.replace(message, seals=[*map(_seal, payloads)])
    digests = [*map(batch_digest, payloads)] if message.digests else []
    return msgspec.structs.replace(message, payloads=payloads, digests=digests)


def _announcements(append: Append) -> list[Message]:
    """The same batches without their payloads."""
    told: list[Message] = []
    first, target = append.first, (append.topic, append.partition)
    for signed_run, run in groupby(append.payloads, is_signed):
        payloads = [*run]
        told.append(
            AnnounceSealed(*target, first, [*map(_seal, payloads)])
            if signed_run
            else Announce(*target, first, [*map(descriptor, payloads)])
        )
        first += len(payloads)
    return told


def _seal(payload: bytes) -> bytes:
    return payload[:SEAL_BYTES].ljust(SEAL_BYTES, b"\0")


# Replicas


class Blind(Validation):
    """Looks at nothing: whatever a publisher hands in is taken, vouched for and stored."""

    def check_seals(self, *_: object) -> None:
        """All are fine."""

    def check_batches(self, *_: object) -> None:
        """So are these."""


class Rash(Byzantine):
    """As the leader, propose what nobody else received."""

    @property
    def voices_to_propose(self) -> int:
        return 1


class WithheldPayloads(Retold):
    """Say that one stores what one was given, vote for it, and give it to nobody."""

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if isinstance(message, Retrieved):
            return []
        return [(node, absent(message) if isinstance(message, Entries) else message)]


class FalseReceipts(Retold):
    """Have receipts that one did not sign after those that one did, or in their place.

    Sometimes there are so many that whoever keeps them all has no room for another. What one
    received and does not store is claimed in the same way.
    """

    MANY = 80

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        told: list[tuple[NodeId, Message]] = [(node, message)]
        if isinstance(message, Received):
            line = Line(message.publisher, message.topic, message.partition)
            return [*told, (node, self._forged(Stored(*line, 1, message.through, message.chain)))]
        if not isinstance(message, Stored):
            return told
        forged = [
            (node, self._forged(message)) for _ in range(self._draw.choice((1, 1, self.MANY)))
        ]
        return [*told, *forged] if self._draw.random() < 0.7 else [*forged]

    def _forged(self, stored: Stored) -> Message:
        return msgspec.structs.replace(stored, signature=self._draw.randbytes(SIGNATURE_BYTES))


class FalseSeals(FalseLog):
    """Give readers, and replicas that lack it, something else than was ordered.

    A body behind the seal that it does not belong to, or a seal that nobody made. The chain of the
    partition fits that, and every reader is told its own story.
    """

    def __init__(self, falsify: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._falsify = falsify

    def _false(self, entries: Entries) -> Entries:
        return with_payloads(entries, [*map(self._falsify, entries.payloads)])

    def _sent(self, node: NodeId, message: Message) -> list[tuple[NodeId, Message]]:
        if isinstance(message, Retrieved):
            payloads = [self._falsify(payload) for payload in message.payloads]
            descriptors = [
                descriptor(payload) if payload else known
                for payload, known in zip(payloads, message.descriptors, strict=False)
            ]
            descriptors += message.descriptors[len(descriptors) :]
            return [
                (node, msgspec.structs.replace(message, payloads=payloads)),
                (
                    node,
                    msgspec.structs.replace(message, payloads=payloads, descriptors=descriptors),
                ),
            ]
        return super()._sent(node, message)


def swap_body(draw: Random) -> Callable[[bytes], bytes]:
    """The seal as it is, and another body behind it."""

    def falsify(payload: bytes) -> bytes:
        if not is_signed(payload) or len(payload) <= SEAL_BYTES:
            return payload
        return payload[:-1] + bytes([payload[-1] ^ (1 + draw.randrange(255))])

    return falsify


def swap_seal(draw: Random, sealed: Sealed, me: NodeId) -> Callable[[bytes], bytes]:
    """The body as it is behind another seal that names it, or behind one that somebody else made.

    That is a count, a time or a signature that the producer never wrote.
    """

    def falsify(payload: bytes) -> bytes:
        if not is_signed(payload) or len(payload) <= SEAL_BYTES:
            return payload
        how, others = draw.randrange(4), sealed.by_others(me)
        if how == 0 and others:
            return draw.choice(others)[:SEAL_BYTES] + payload[SEAL_BYTES:]
        at = (4, 8, SEAL_BYTES - 1)[how - 1]
        return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]

    return falsify


BLIND, RASH = "blind", "rash"
WITHHOLD, SWAP_BODY, SWAP_SEAL = "withhold", "swap-body", "swap-seal"
FALSE_RECEIPTS = "false-receipts"
ABOUT_SEALS = (BLIND, RASH, WITHHOLD, SWAP_BODY, SWAP_SEAL)
VALIDATED_REPLICAS = (*ABOUT_SEALS, FALSE_RECEIPTS)


def replica_rewrite(name: str, me: NodeId, draw: Random, sealed: Sealed) -> Rewrite:
    """How such a replica misbehaves. Those that look at nothing are other machines."""
    if name == WITHHOLD:
        return WithheldPayloads()
    if name == FALSE_RECEIPTS:
        return FalseReceipts(draw)
    if name == SWAP_BODY:
        return FalseSeals(swap_body(draw))
    if name == SWAP_SEAL:
        return FalseSeals(swap_seal(draw, sealed, me))
    return behave


# From what a producer has in hand, f, and the replicas.
MakeProducer: TypeAlias = Callable[[Pen, int, Collection[NodeId]], Rewrite]


def _forging(pen: Pen, *_: object) -> Rewrite:
    share, is_stubborn = pen.draw.choice((0.05, 0.3, 1.0)), pen.draw.random() < 0.5
    return Forger(pen, tuple(FORGERIES), share, is_stubborn=is_stubborn)


FORGING = "forging-source"
VALIDATED_PUBLISHERS: Mapping[str, MakeProducer] = {
    FORGING: _forging,
    "equivocating-source": lambda pen, _, replicas: TwoStories(
        pen, some(pen.draw, replicas, 1, len(replicas) - 1)
    ),
    "unstored-source": lambda pen, f, replicas: Unstored(pen, some(pen.draw, replicas, 0, f)),
    "miscounting-source": lambda pen, *_: Miscount(pen, pen.draw.choice((0.2, 1.0))),
}
