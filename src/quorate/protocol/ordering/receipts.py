"""Signed receipts of stores: who has the payloads of a validated topic, by its own word.

Source: DESIGN section 3 (data plane); Kabis 2023, section 3.3.

On a validated topic a store signs that it keeps batches, once for as many as came together
(`crypto/receipts.py`). Other replicas count its word towards availability only if that holds. Where
all of them are basic, and on other topics, nothing is signed, and nothing is looked at.

A signature is looked at only where and when it matters: of a batch that we lack, whose content is
the one that the receipt names, which fewer than f + 1 are known to hold, and which we are about to
propose, to vote for, or to write down as decided. Stores say the same again with every receipt, as
long as it is undecided, so that the last one does for all before it. What was not looked at does
not count, and is not kept (docs/decisions/0020-receipts-and-evidence.md).

Rules:
- a receipt waits as it came until it is looked at, and none of a store gives way to a later one but
  to one that holds. So a false one costs its sender's former words nothing;
- nothing is looked at that would not do, together with all that was said.

Whoever decides batches whose payloads it lacks keeps the receipts that it counted on, in the record
of the decision: so they are on disk for as long as the batches are kept, and whoever asks for one
that was receipted and does not get it can hold the store to its word (`challenges.py`).

A replica may get another key. What was signed with a former one does not count, and nobody is
blamed for it: the publisher hands its batches in again, and stores sign anew.
"""

from quorate.core.header import are_signed, is_signed
from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.limits import RUN_BATCHES_MAX
from quorate.core.ordering import Line, Stored
from quorate.crypto.digests import digest_of
from quorate.crypto.receipts import Receipt
from quorate.protocol.ordering.leader_change import Signer
from quorate.protocol.ordering.lines import WORDS_MAX, Waiting, end_of
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

    def is_due(self, waiting: Waiting, first: Sequence, end: Sequence) -> bool:
        """Whether a store signs that it keeps these: its word for basic batches is enough."""
        if not self._validation.covers(waiting.line.topic):
            return False
        start = max(first - waiting.next, 0)
        return are_signed(waiting.descriptors[start : end - waiting.next])

    def signed(self, waiting: Waiting, first: Sequence, count: int, chain: Digest) -> bytes:
        """Our signature under these payloads being on disk; empty where none is asked for."""
        if not self.is_due(waiting, first, first + count):
            return b""
        return self._signer.attest(self._receipt(waiting.line, first, count, chain))

    def hear(self, waiting: Waiting, store: NodeId, word: Stored) -> bool:
        """A store keeps batches, it says. False if that is nothing to us."""
        if not waiting.hear(store, word):
            return False
        words = waiting.words[store]
        if len(words) > WORDS_MAX:
            fitting = next((each for each in reversed(words) if waiting.fits(each)), None)
            if fitting is None:
                # It is far ahead of us, and says all of it again.
                waiting.drop_word(store, words[0])
            else:
                self._look_at(waiting, store, fitting)
        return True

    def available_through(self, waiting: Waiting, last: Sequence, needed: int) -> Sequence:
        """The end of what is available, up to this batch, on words that count."""
        claimed = waiting.claimed_through(last, needed)
        while (found := waiting.available_through(claimed, needed)) < claimed:
            self._look_at(waiting, *_farthest(waiting.claims(found + 1)))
            claimed = waiting.claimed_through(claimed, needed)
        return found

    def _look_at(self, waiting: Waiting, store: NodeId, word: Stored) -> None:
        """Let this word count, if it does and is of use."""
        if not waiting.is_news(store, word, self._holders_needed):
            waiting.drop_covered(store, word)
        elif self._holds(waiting, store, word):
            waiting.count(store, word)
        else:
            waiting.drop_word(store, word)

    def _holds(self, waiting: Waiting, store: NodeId, word: Stored) -> bool:
        if not self.is_due(waiting, word.first, end_of(word)):
            return True
        if word.count <= RUN_BATCHES_MAX and len(word.signature) > 0:
            data = self._receipt(waiting.line, word.first, word.count, word.chain)
            if self._signer.is_attested_by(store, data, word.signature):
                return True
            if self._signer.was_attested_by(store, data, word.signature):
                return False
        what = "without its signature" if not word.signature else "that it did not sign"
        self._outbox.report(store, "bad-receipt", f"a receipt of batch {word.first} {what}")
        return False

    def content(self, waiting: Waiting, count: int) -> Content:
        """The next batches of a line, with the receipts for those that we lack."""
        content = waiting.content(count)
        for at in content.lacking:
            self._look_for(waiting, waiting.next + at)
        if not content.lacking or not self._validation.covers(waiting.line.topic):
            return content
        end = waiting.next + count
        words = {
            (store, stored.first, stored.count): stored
            for at in content.lacking
            if is_signed(waiting.descriptors[at])
            for store, stored in waiting.holders[at].items()
        }
        receipts = [
            Receipted(
                store, word.first, word.count, word.chain, word.signature,
                _digests(waiting.descriptors[count : count + max(end_of(word) - end, 0)]),
            )
            for (store, *_), word in words.items()
        ]  # fmt: skip
        if not receipts:
            return content
        return content._replace(before=waiting.base, receipts=tuple(receipts[:KEPT_MAX]))

    def _look_for(self, waiting: Waiting, sequence: Sequence) -> None:
        """Others found enough to decide this batch. We keep what we were told of it."""
        at = sequence - waiting.next
        while not waiting.is_available(at, self._holders_needed):
            claims = waiting.claims(sequence)
            if not claims:
                return
            self._look_at(waiting, *_farthest(claims))

    def _receipt(self, line: Line, first: Sequence, count: int, chain: Digest) -> bytes:
        return Receipt(self._validation.place(line), first, count, chain).encode()


def _digests(descriptors: list[bytes]) -> bytes:
    return b"".join(map(digest_of, descriptors))


def _farthest(claims: dict[NodeId, Stored]) -> tuple[NodeId, Stored]:
    """The word that does for most of what follows."""
    return max(claims.items(), key=lambda claim: end_of(claim[1]))
