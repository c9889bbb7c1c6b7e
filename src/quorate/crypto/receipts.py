"""What stores sign: that they keep batches, and that they do not have one.

Source: DESIGN section 3 (data plane); Kabis 2023, section 3.3.

A *receipt* of a store says that it has the payloads of consecutive batches of one line on disk. It
names them by the chain of the last of them, so that one signature does for as many as came
together, and once more for those before them. A *refusal* says that it does not have the payload of
one batch that was ordered, and from which offset on it keeps the partition. The offset of a batch
is that of its first event. Both say where they belong in the same words as a SID does (`sids.py`),
and in one way only.

A store that follows the protocol signs a receipt when the payloads are on disk and before their
order is decided, and refuses only what was decided and it does not have. So it never signs a
receipt and a refusal of the same batch, unless retention took that: then the offset lies before
what it keeps. `evidence.py` has what follows from both.

Rules:
- every kind of statement begins with a line of its own, so that none can be taken for another;
- receipts name contents: one for another content of the same number contradicts nothing.
"""

from struct import Struct
from typing import NamedTuple

from quorate.core.ids import Digest, Sequence
from quorate.crypto.sids import Place, named

_RECEIPT_CONTEXT = b"quorate receipt v2\n"
_REFUSAL_CONTEXT = b"quorate refusal v2\n"
# partition, producer, session
_PLACE = Struct("<HII")
# first, batches, chain
_RECEIPT = Struct("<QI32s")
# sequence, digest, offset, start, time
_REFUSAL = Struct("<Q32sQQq")


class Receipt(NamedTuple):
    """A store keeps the payloads of these batches; the chain is that of the last of them."""

    place: Place
    first: Sequence
    batches: int
    chain: Digest

    def encode(self) -> bytes:
        """What is signed."""
        numbers = _RECEIPT.pack(self.first, self.batches, self.chain)
        return _RECEIPT_CONTEXT + _encoded(self.place) + numbers


class Refusal(NamedTuple):
    """A store does not have the batch of this number and digest, which begins at this offset.

    It keeps the partition from `start` on, and says so at this time of its day.
    """

    place: Place
    sequence: Sequence
    digest: Digest
    offset: int
    start: int
    time_us: int

    def encode(self) -> bytes:
        """What is signed."""
        return _REFUSAL_CONTEXT + _encoded(self.place) + _REFUSAL.pack(*self[1:])


def _encoded(place: Place) -> bytes:
    numbers = _PLACE.pack(place.partition, place.producer, place.session)
    return named(place.cluster, place.topic) + numbers
