"""Events as the leaves of a tree, so that one of them is proved without its neighbours.

Source: RFC 6962, section 2.1; DESIGN section 6 (proof).

A batch of a topic with `event_proofs` has a tree over its events, whose root its producer signs
(`sids.py`). A leaf is the event in one way to write it, behind a salt of its own: whoever sees the
hashes on the way to the root cannot try out what the neighbours might have been. The salts follow
from one salt of the batch, which stands in front of the batch, and so is seen by those only who may
see all of it.
"""

from collections.abc import Iterable
from struct import Struct

from blake3 import blake3

from quorate.core.batch import Batch
from quorate.core.errors import RemoteProtocolError
from quorate.core.event import Event
from quorate.core.header import SALT_BYTES, is_signed
from quorate.crypto.merkle import Hash, Tree, leaf_hash
from quorate.crypto.sids import Seal, body_of

_HEAD = Struct("<qB")
_LENGTH = Struct("<I")
_URGENT, _KEYED = 1, 2


def event_bytes(event: Event) -> bytes:
    """The one way to write an event."""
    flags = _URGENT * event.urgent | _KEYED * (event.key is not None)
    parts = [event.key or b"", event.value]
    for name, value in event.headers:
        parts += [name.encode(), value]
    return _HEAD.pack(event.timestamp_us, flags) + b"".join(
        [_LENGTH.pack(len(part)) + part for part in parts]
    )


def event_salt(salt: bytes, index: int) -> bytes:
    """The salt of one event, which tells nothing of the others'."""
    return blake3(_LENGTH.pack(index), key=salt).digest()


def event_leaf(salt: bytes, event: Event) -> Hash:
    """The leaf of an event with its own salt."""
    return leaf_hash(salt + event_bytes(event))


def event_leaves(salt: bytes, events: Iterable[Event]) -> list[Hash]:
    """The leaves of all events of a batch with this salt."""
    return [event_leaf(event_salt(salt, index), event) for index, event in enumerate(events)]


def events_root(salt: bytes, events: Iterable[Event]) -> Hash:
    """What the producer of this batch signs."""
    tree = Tree()
    for leaf in event_leaves(salt, events):
        tree.append(leaf)
    return tree.root()


def check_events(payload: bytes) -> int:
    """How many events a batch has, or `RemoteProtocolError` if it is malformed.

    In a signed batch the tree of events is the one in its seal, too. Who signed the seal, and
    whether the body is the one that it names, the caller knows.
    """
    batch = Batch(payload)
    seal = Seal.decode(payload) if is_signed(payload) else None
    if seal is not None and seal.has_event_proofs:
        salt = body_of(payload)[:SALT_BYTES]
        if events_root(salt, batch.events()) != seal.root:
            raise RemoteProtocolError("a batch whose tree of events is not the one in its seal")
    return batch.count
