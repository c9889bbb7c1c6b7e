"""What must hold of a validated topic, beside what holds of every log (`order_checkers.py`).

Nothing here is shared with the protocol: what a producer signs is written from the text of
`crypto/sids.py`, and signatures are checked by another library (`cryptography`, where replicas and
readers have libsodium).

- non-repudiation (K8): whatever a correct reader that validates delivers, and whatever stands in
  the log of a correct replica that somebody correct has the payload of and says that it is signed,
  has a seal with a signature by that producer's key for just this cluster, topic, partition,
  producer, session, number, header and body. Of a correct producer it is the very seal that it
  made, and what it did not sign stands there as a basic batch.
- producers' order (K9): in the log of every correct replica, the batches of a producer stand in the
  order of their numbers, and none is left out. That readers read the same is `total_order` and
  `agreement`.
- receipts: what a correct replica keeps of a store's receipts, that store signed, for just this
  place, and it is about the batches that were decided.
- no blocking (K7): whatever was ordered is read by every reader, once the network is calm, whoever
  published it and whoever stores it.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from struct import pack, unpack
from typing import NamedTuple, TypeAlias

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from quorate.core.ids import NodeId, TopicId
from quorate.core.ordering import Partition
from quorate.sim.checkers import Conduct
from quorate.sim.order_checkers import (
    LOG_LIVENESS,
    LOG_SAFETY,
    LogBatch,
    LogRecord,
    LogViolation,
)

_HEADER = 16
_SEAL = 288
_SIGNATURE_CONTEXT = "quorate 2026-11-19 the signature block of a batch"


class KeptReceipt(NamedTuple):
    """A receipt on a correct replica's disk: the store's key, the first batch that it is for, and
    what leads from the chain before the decided ones to the chain that it names."""

    key: bytes
    first: LogBatch
    batches: int
    chain: bytes
    signature: bytes
    before: bytes
    digests: bytes


@dataclass(slots=True)
class ValidatedRecord(LogRecord):
    """A run on a validated topic from the outside."""

    cluster: str = ""
    names: dict[TopicId, str] = field(default_factory=dict)
    with_event_proofs: frozenset[TopicId] = frozenset()
    # The keys that are pinned for producers.
    keys: dict[NodeId, bytes] = field(default_factory=dict)
    # Payloads on the disks of correct replicas, by what stands for them in a log.
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    # Who keeps which receipts of whom.
    receipts: dict[tuple[NodeId, NodeId, KeptReceipt], None] = field(default_factory=dict)

    def store(self, payload: bytes) -> None:
        """A correct replica has this on its disk."""
        self.payloads[described(payload)] = payload


@lru_cache(maxsize=1 << 16)
def described(payload: bytes) -> bytes:
    """What stands for a payload in a log: its header, and a hash of what follows.

    Of a signed one that is its signature block, if that names the body.
    """
    header, rest = payload[:_HEADER], payload[_HEADER:]
    if header[1:2] == b"\1" and blake3(payload[_SEAL:]).digest() == payload[24:56]:
        block = payload[_HEADER:_SEAL]
        return header + blake3(block, derive_key_context=_SIGNATURE_CONTEXT).digest()
    return header + blake3(rest).digest()


def non_repudiation(record: ValidatedRecord) -> Iterator[LogViolation]:
    for reader, batch, entry in record.entries():
        why = _wrong(record, batch, entry.payload)
        if not _is_signed(entry.payload) and record.validates(reader, batch.partition):
            why = "which has no seal"
        if why:
            yield _repudiable(f"reader {reader} delivered", batch, why)
    for replica, logs in record.logs.items():
        for partition, log in logs.items():
            for content in log.values():
                batch = LogBatch(content.publisher, partition, content.sequence)
                payload = record.payloads.get(content.descriptor)
                if payload is not None and (why := _wrong(record, batch, payload)):
                    yield _repudiable(f"replica {replica} ordered", batch, why)


def producers_order(record: ValidatedRecord) -> Iterator[LogViolation]:
    for replica, logs in record.logs.items():
        for partition, log in logs.items():
            if partition.topic not in record.names:
                continue
            last: dict[NodeId, int] = {}
            before, is_whole = 0, True
            for offset in sorted(log):
                if offset != before:
                    # It started over, and lacks what is between.
                    last, is_whole = {}, False
                publisher, sequence, content = log[offset]
                expected = last.get(publisher, 0 if is_whole else sequence - 1) + 1
                if sequence != expected:
                    batch = LogBatch(publisher, partition, sequence)
                    sentence = f"replica {replica} has {batch} at offset {offset}"
                    yield LogViolation(
                        "producers order", f"{sentence}, where {expected} is next", batch
                    )
                last[publisher], before = sequence, offset + _count(content)


def receipts_hold(record: ValidatedRecord) -> Iterator[LogViolation]:
    for replica, store, kept in record.receipts:
        topic = record.names[kept.first.partition.topic]
        if why := _wrong_receipt(record.cluster, topic, kept):
            sentence = f"replica {replica} keeps a receipt of {store} for {kept.batches} batches"
            yield LogViolation("receipts", f"{sentence}, {why}", kept.first)


def no_blocking(record: ValidatedRecord) -> Iterator[LogViolation]:
    ends: dict[Partition, int] = {}
    for logs in record.logs.values():
        for partition, log in logs.items():
            if partition.topic in record.names and log:
                last = max(log)
                end = last + _count(log[last].descriptor)
                ends[partition] = max(ends.get(partition, 0), end)
    for reader in record.readers:
        for partition, end in ends.items():
            come_to = record.end(reader, partition)
            if record.begins(reader, partition) is not None and come_to < end:
                sentence = f"reader {reader} came to offset {come_to} of {end}"
                yield LogViolation("no blocking", f"{sentence} in partition {partition.number}")


def _repudiable(who: str, batch: LogBatch, why: str) -> LogViolation:
    return LogViolation("non repudiation", f"{who} {batch}, {why}", batch)


def _is_signed(payload: bytes) -> bool:
    return payload[1:2] == b"\1"


def _count(described: bytes) -> int:
    count: int = unpack("<I", described[4:8])[0]
    return count


def _wrong(record: ValidatedRecord, batch: LogBatch, payload: bytes) -> str:
    """Why nobody can be held to what says that it is signed; empty if its producer can."""
    topic = record.names.get(batch.partition.topic)
    if topic is None:
        # Commands are not sealed, and neither is what other topics have.
        return "which is sealed, on a topic that is not validated" if _is_signed(payload) else ""
    key, made = record.keys.get(batch.publisher), record.sealed.get(batch)
    if key is None:
        return "which nobody's key is pinned for"
    is_correct = record.conducts.get(batch.publisher) is Conduct.CORRECT
    if is_correct and made is not None and made != payload:
        return "which is not what that producer sealed"
    if not _is_signed(payload):
        return ""
    has_salt = batch.partition.topic in record.with_event_proofs
    why = _wrong_seal(record.cluster, topic, batch, key, payload, has_salt=has_salt)
    if not why and is_correct and made is None:
        return "which that producer did not seal"
    return why


@lru_cache(maxsize=1 << 16)
def _wrong_seal(
    cluster: str, topic: str, batch: LogBatch, key: bytes, payload: bytes, *, has_salt: bool
) -> str:
    """Why this seal does not hold, from the text of `crypto/sids.py` alone."""
    if len(payload) < _SEAL:
        return "which has no seal"
    header, body = payload[:_HEADER], payload[_SEAL:]
    time_us, named, root, size, leaf, zeros, path, public, signature = unpack(
        "<q32s32sBB6s96s32s64s", payload[_HEADER:_SEAL]
    )
    if public != key:
        return "which another key signed"
    if named != blake3(body).digest():
        return "whose body is not what its seal names"
    if (root != bytes(32)) is not has_salt:
        return "which has a tree of events where there is to be none, or none"
    if any(zeros):
        return "whose seal has more than its producer signed"
    signed = b"quorate sid v2\n"
    for name in (cluster.encode(), topic.encode()):
        signed += pack("<H", len(name)) + name
    signed += pack("<H", batch.partition.number)
    signed += pack("<I", batch.publisher & 0xFFFFFFFF) + pack("<I", batch.publisher >> 32)
    signed += pack("<Q", batch.sequence) + header + pack("<q", time_us)
    signed += named + root + public
    top = _top(hashlib.sha256(b"\0" + signed).digest(), size, leaf, path)
    if not top:
        return "which has no path to what its producer signed"
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(
            signature, b"quorate sheaf v1\n" + bytes([size]) + top
        )
    except InvalidSignature:
        return "which its producer did not sign for that place"
    return ""


def _top(node: bytes, size: int, leaf: int, path: bytes) -> bytes:
    """The root over the batches of a sheaf (RFC 9162, section 2.1.3.2), or nothing."""
    if not leaf < size <= 8:
        return b""
    last = size - 1
    while last:
        if leaf & 1 or leaf == last:
            node = hashlib.sha256(b"\1" + path[:32] + node).digest()
            while leaf and not leaf & 1:
                leaf, last = leaf >> 1, last >> 1
        else:
            node = hashlib.sha256(b"\1" + node + path[:32]).digest()
        path, leaf, last = path[32:], leaf >> 1, last >> 1
    return b"" if any(path) else node


@lru_cache(maxsize=1 << 16)
def _wrong_receipt(cluster: str, topic: str, kept: KeptReceipt) -> str:
    """Why this receipt does not hold, from the text of `crypto/receipts.py` alone."""
    chain = kept.before
    for at in range(0, len(kept.digests), 32):
        chain = blake3(chain + kept.digests[at : at + 32]).digest()
    if chain != kept.chain:
        return "which is not about what was decided"
    signed = b"quorate receipt v2\n"
    for name in (cluster.encode(), topic.encode()):
        signed += pack("<H", len(name)) + name
    publisher, partition, first = kept.first
    signed += pack("<HII", partition.number, publisher & 0xFFFFFFFF, publisher >> 32)
    signed += pack("<QI", first, kept.batches) + kept.chain
    try:
        Ed25519PublicKey.from_public_bytes(kept.key).verify(kept.signature, signed)
    except InvalidSignature:
        return "which that store did not sign"
    return ""


ValidatedChecker: TypeAlias = Callable[[ValidatedRecord], Iterator[LogViolation]]
VALIDATED_SAFETY: tuple[ValidatedChecker, ...] = (
    *LOG_SAFETY, non_repudiation, producers_order, receipts_hold,
)  # fmt: skip
VALIDATED_LIVENESS: tuple[ValidatedChecker, ...] = (*LOG_LIVENESS, no_blocking)
