"""Sealed batches for tests, right ones and wrong ones, with the keys of the simulator."""

from collections.abc import Mapping
from typing import Any

from quorate.core import batch
from quorate.core.ids import NodeId, Sequence
from quorate.crypto.digests import payload_digest
from quorate.crypto.sids import NO_ROOT, Place, Seal, signed
from quorate.sim.sealing import CLUSTER, public_key, signing_key


def batch_of_values(*values: bytes) -> bytes:
    return batch.encode_values(list(values) or [b"value"], 0)


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
    signature = signing_key(publisher, key).sign(signed(where, number, seal))
    return seal._replace(signature=signature).encode() + body
