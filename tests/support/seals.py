"""Sealed batches for tests, right ones and wrong ones, with the keys of the simulator."""

from collections.abc import Mapping
from typing import Any

from quorate.core import batch
from quorate.core.header import HEADER_BYTES, NO_ROOT
from quorate.core.ids import NodeId, Sequence
from quorate.crypto.sids import Place, Sign, sign_together, signed, unsealed
from quorate.sim.sealing import CLUSTER, public_key, signing_key


def batch_of_values(*values: bytes) -> bytes:
    return batch.encode_values(list(values) or [b"value"], 0)


def sealed_batch(
    publisher: NodeId,
    sequence: Sequence,
    basic: bytes | None = None,
    *,
    topic: str = "t",
    partition: int = 0,
    key: int = 0,
    place: Mapping[str, Any] | None = None,
    signed_as: Sequence | None = None,
    salt: bytes = b"",
    events: int | None = None,
    **fields: Any,
) -> bytes:
    """This basic batch, signed.

    `place`, `signed_as`, `events` (the count in the header) and `fields` are what the producer
    signs in place of what is so; of several keys, the one that is pinned has the number 0.
    """
    basic = batch_of_values(b"%d" % sequence) if basic is None else basic
    where = Place.of(CLUSTER, topic, partition, publisher)._replace(**place or {})
    pinned = public_key(publisher, key)
    seal = unsealed(basic, salt, time_us=0, root=NO_ROOT, public_key=pinned)
    header = seal.header if events is None else seal.header._replace(events=events)
    seal = seal._replace(header=header)._replace(**fields)
    number = sequence if signed_as is None else signed_as
    signature = signing_key(publisher, key).sign(signed(where, number, seal))
    return seal._replace(signature=signature).encode() + salt + basic[HEADER_BYTES:]


def sealed(
    place: Place,
    sequence: Sequence,
    batch: bytes,
    *,
    time_us: int,
    salt: bytes = b"",
    root: bytes = NO_ROOT,
    public_key: bytes,
    sign: Sign,
) -> bytes:
    """This basic batch signed by itself, as it travels and is stored."""
    unsigned = unsealed(batch, salt, time_us=time_us, root=root, public_key=public_key)
    (seal,) = sign_together([(place, sequence, unsigned)], sign)
    return seal.encode() + salt + batch[HEADER_BYTES:]
