"""Signed receipts of stores: who has the payloads of a validated topic, by its own word.

Source: DESIGN section 3 (data plane); Kabis 2023, section 3.3.

On a validated topic a store signs that it keeps batches, once for as many as came together
(`crypto/receipts.py`). Other replicas count its word towards availability only if that holds. On
other topics nothing is signed, and nothing is looked at.

A signature is looked at only where it matters: of a batch that we lack, whose content is the one
that the receipt names, and which fewer than f + 1 are known to hold. What was not looked at does
not count, and is not kept (docs/decisions/0020-receipts-and-evidence.md).

Whoever decides batches whose payloads it lacks keeps the receipts that it counted on, in the record
of the decision: so they are on disk for as long as the batches are kept, and whoever asks for one
that was receipted and does not get it can hold the store to its word (`challenges.py`).

A replica may get another key. What was signed with a former one does not count, and nobody is
blamed for it: the publisher hands its batches in again, and stores sign anew.
"""

from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.limits import RUN_BATCHES_MAX
from quorate.core.ordering import Line, Stored
from quorate.crypto.receipts import Receipt
from quorate.protocol.ordering.leader_change import Signer
from quorate.protocol.ordering.lines import Waiting
from quorate.protocol.ordering.log import Content
from quorate.protocol.ordering.records import Receipted
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.outbox import Outbox

# Kept of what one slot takes of one line. Stores sign as many batches at once as they were given.
KEPT_MAX = 1024


class Receipting:
    """Signs what one replica stores, and looks at what the others signed."""

    def __init__(
        self, validation: Validation, signer: Signer, holders_needed: int, outbox: Outbox
    ) -> None:
        self._validation = validation
        self._signer = signer
        self._holders_needed = holders_needed
        self._outbox = outbox

    def signed(self, line: Line, first: Sequence, count: int, chain: Digest) -> bytes:
        """Our signature under these payloads being on disk; empty where none is asked for."""
        if not self._validation.covers(line.topic):
            return b""
        return self._signer.attest(self._receipt(line, first, count, chain))

    def counts(self, waiting: Waiting, store: NodeId, stored: Stored) -> bool:
        """Whether a store's word about the line as we know it counts."""
        if not self._validation.covers(stored.topic):
            return True
        if not waiting.is_news(store, stored, self._holders_needed):
            return False
        if stored.count <= RUN_BATCHES_MAX and len(stored.signature) > 0:
            data = self._receipt(waiting.line, stored.first, stored.count, stored.chain)
            if self._signer.is_attested_by(store, data, stored.signature):
                return True
            if self._signer.was_attested_by(store, data, stored.signature):
                return False
        what = "without its signature" if not stored.signature else "that it did not sign"
        self._outbox.report(store, "bad-receipt", f"a receipt of batch {stored.first} {what}")
        return False

    def content(self, waiting: Waiting, count: int) -> Content:
        """The next batches of a line, with the receipts for those that we lack."""
        content = waiting.content(count)
        if not content.lacking or not self._validation.covers(waiting.line.topic):
            return content
        end = waiting.next + count
        words = {
            (store, stored.first, stored.count): stored
            for at in content.lacking
            for store, stored in waiting.holders[at].items()
        }
        receipts = [
            Receipted(
                store, word.first, word.count, word.chain, word.signature,
                b"".join(waiting.digests[count : max(word.first + word.count - end, 0) + count]),
            )
            for (store, *_), word in words.items()
        ]  # fmt: skip
        return content._replace(before=waiting.base, receipts=tuple(receipts[:KEPT_MAX]))

    def _receipt(self, line: Line, first: Sequence, count: int, chain: Digest) -> bytes:
        return Receipt(self._validation.place(line), first, count, chain).encode()
