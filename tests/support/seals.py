"""Sealed batches for tests, right ones and wrong ones, with the keys of a council."""

from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from council import CLUSTER, secret_of
from quorate.core import batch
from quorate.core.ids import NodeId, Sequence
from quorate.crypto.digests import payload_digest
from quorate.crypto.sids import NO_ROOT, Place, Seal, sid
from quorate.sim.sealing import signing_key


def batch_of_values(*values: bytes) -> bytes:
    return batch.encode_values(list(values) or [b"value"], 0)


def key_of(publisher: NodeId, number: int = 0) -> Ed25519PrivateKey:
    """The key that is pinned for a publisher, or another one."""
    return signing_key(publisher, number) if number else secret_of(publisher)


def public_key(publisher: NodeId, number: int = 0) -> bytes:
    return key_of(publisher, number).public_key().public_bytes_raw()


def sealed_batch(
    publisher: NodeId,
    sequence: Sequence,
    body: bytes | None = None,
    *,
    topic: str = "t",
    partition: int = 0,
    key: int = 0,
    place: Mapping[str, Any] | None = None,
    signed_as: Sequence | None = None,
    **fields: Any,
) -> bytes:
    """A batch behind its seal.

    `place`, `signed_as` and `fields` are what the producer signs in place of what is so; of several
    keys, the one that is pinned has the number 0.
    """
    body = batch_of_values(b"%d" % sequence) if body is None else body
    where = Place.of(CLUSTER, topic, partition, publisher)._replace(**place or {})
    seal = Seal(1, 0, payload_digest(body), NO_ROOT, public_key(publisher, key), b"")
    seal = seal._replace(**fields)
    number = sequence if signed_as is None else signed_as
    signature = key_of(publisher, key).sign(sid(where, number, seal))
    return seal._replace(signature=signature).encode() + body
