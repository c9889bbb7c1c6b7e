"""Stores that signed a receipt and do not deliver are held to their word.

Source: DESIGN sections 3 and 6; Kabis 2023, section 3.4.

That a store says `Absent` proves nothing, since nobody else heard it. So whoever has a receipt of
that store for that batch (`receipts.py`) challenges it: give me the batch, or sign that you do not
have it. A receipt and a refusal are evidence, which anybody can check (`crypto/evidence.py`). It is
reported, and kept for whoever asks.

A replica hears of a missing batch when it asks a store for it itself (`filling.py`), or from a
reader that was not given it. One challenge is under way to a store at a time, and of a store of
which there is evidence no more is needed.

Who is not to blame:
- whom retention took the batch from: its refusal says from where on it keeps the partition;
- who has the batch after all, and gives it. What it gives must fit the partition's chain;
- who lost its disk and is about to fill up: as long as somebody may yet give it what it lacks, it
  does not answer. When everybody was asked in vain it signs, and the evidence says what is so:
  that it does not have what it signed for;
- whose store outside does not answer for now. When that has lost the batch, the replica signs: it
  has vouched for it.

Who stays silent is suspected, and reported as such after a while. That proves nothing: it may be
slow, cut off, or filling up.

A producer that hands us two batches under one number of a line has signed both, and that is
evidence as it is: nobody need be asked.

Invariants:
- a correct replica that keeps its disk never signs a receipt and a refusal of one batch;
- what is reported as "false-receipt" has evidence that verifies.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from typing import NamedTuple

from quorate.core.errors import RemoteProtocolError
from quorate.core.header import events_in
from quorate.core.ids import DIGEST_BYTES, Digest, MemberId, NodeId, Sequence, member_of
from quorate.core.ordering import (
    RECEIPTS_MAX,
    AskReceipts,
    Challenge,
    Entries,
    Line,
    Partition,
    Receipts,
    Refusal,
    SignedReceipt,
)
from quorate.crypto import receipts as signing
from quorate.crypto.digests import cut, descriptor, digest_of, link
from quorate.crypto.evidence import FalseReceipt, TwoSeals, render
from quorate.crypto.sids import Place, Seal, check_seal
from quorate.protocol.ordering.clocks import WallClock
from quorate.protocol.ordering.filling import Filling
from quorate.protocol.ordering.leader_change import Signer
from quorate.protocol.ordering.placement import Roster
from quorate.protocol.ordering.readers import Readers
from quorate.protocol.ordering.records import Placed, Store
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.ordering.value import chained, leaves_of
from quorate.protocol.outbox import Outbox

ANSWER_US_MAX = 5_000_000
# A store that fills up has a minute for that.
ASKED_MAX = 12
# After an answer that proves nothing, a store is left alone for so long.
PAUSE_US = 1_000_000
# A signature takes as long as handing out so much, and so does finding a decision on disk.
SIGNATURE_BYTES = 8 * 1024
SEARCH_BYTES = 16 * 1024


class Found(NamedTuple):
    """A batch that was ordered, and who signed that they store it."""

    place: Place
    line: Line
    offset: int
    sequence: int
    time_us: int
    descriptor: bytes
    # The chain of the line before the batch.
    before: Digest
    receipts: list[SignedReceipt]

    @property
    def digest(self) -> Digest:
        return digest_of(self.descriptor)

    def receipt_of(self, store: NodeId) -> SignedReceipt | None:
        return next((receipt for receipt in self.receipts if receipt.store == store), None)


class Open:
    """A challenge that has no answer yet."""

    __slots__ = ("asked", "asked_us", "found")

    def __init__(self, found: Found, now_us: int) -> None:
        self.found = found
        self.asked = 1
        self.asked_us = now_us


class Challenges:
    """What one replica knows of stores that do not keep their word, and what it answers to that."""

    def __init__(
        self,
        roster: Roster,
        *,
        validation: Validation,
        signer: Signer,
        store: Store,
        readers: Readers,
        filling: Filling,
        wall_us: WallClock,
        outbox: Outbox,
    ) -> None:
        # By store: the first of it is enough.
        self.evidence: dict[NodeId, FalseReceipt] = {}
        # By producer, in the same way.
        self.contradictions: dict[MemberId, TwoSeals] = {}
        self._group, self._members, self._me = roster.number, roster.members, roster.me
        self._validation = validation
        self._signer = signer
        self._store = store
        self._readers = readers
        self._filling = filling
        self._wall_us = wall_us
        self._outbox = outbox
        self._open: dict[NodeId, Open] = {}
        self._not_before_us: dict[NodeId, int] = {}
        # Who was reported as silent, and has not answered since.
        self._silent: set[NodeId] = set()

    # Who does not deliver

    def doubt(self, store: NodeId, partition: Partition, offset: int) -> None:
        """This store does not give a batch, they say. If it signed for it, it shall say so."""
        now_us = self._outbox.now_us
        is_pausing = now_us < self._not_before_us.get(store, now_us)
        if store == self._me or store not in self._members or is_pausing:
            return
        if store in self.evidence or store in self._open:
            return
        self._not_before_us[store] = now_us + PAUSE_US
        found = self._find(partition, offset)
        if found is not None and found.receipt_of(store) is not None:
            self._open[store] = Open(found, now_us)
            self._challenge(store, found)

    def on_refusal(self, sender: NodeId, refusal: Refusal) -> None:
        opened = self._open.get(sender)
        if opened is None or not _is_of(refusal, opened.found):
            return
        found = opened.found
        statement = signing.Refusal(
            found.place, found.sequence, found.digest, found.offset, refusal.start, refusal.time_us
        )
        if not self._signer.is_attested_by(sender, statement.encode(), refusal.signature):
            # Perhaps it has another key since. It is asked again, as one that is silent.
            if not self._signer.was_attested_by(sender, statement.encode(), refusal.signature):
                self._outbox.report(sender, "bad-refusal", "a refusal that it did not sign")
            return
        self._close(sender)
        receipt = found.receipt_of(sender)
        if refusal.start > found.offset or receipt is None:
            return
        evidence = self.evidence[sender] = FalseReceipt.of(
            sender,
            signing.Receipt(statement.place, receipt.first, receipt.count, receipt.chain),
            receipt.signature,
            statement,
            refusal.signature,
            found.before,
            _cut(receipt.behind),
        )
        self._outbox.report(
            sender,
            "false-receipt",
            f"signed that it stores batch {evidence.sequence} of client {evidence.producer} on "
            f"'{evidence.topic}', and that it does not have it, at offset {evidence.offset}",
        )

    def on_entries(self, sender: NodeId, entries: Entries) -> None:
        """A store gives what it was challenged for: then there is nothing to blame it for."""
        opened = self._open.get(sender)
        if opened is None or len(entries.payloads) != 1:
            return
        found = opened.found
        is_it = (entries.partition_of, entries.offset) == (found.line.target, found.offset)
        if is_it and descriptor(entries.payloads[0]) == found.descriptor:
            self._close(sender)

    def tick(self) -> None:
        now_us = self._outbox.now_us
        for store, opened in list(self._open.items()):
            if now_us - opened.asked_us < ANSWER_US_MAX:
                continue
            if opened.asked < ASKED_MAX:
                opened.asked += 1
                opened.asked_us = now_us
                self._challenge(store, opened.found)
                continue
            del self._open[store]
            if store not in self._silent:
                self._silent.add(store)
                self._outbox.report(
                    store,
                    "suspected-store",
                    f"signed that it stores the batch at offset {opened.found.offset} of "
                    f"'{opened.found.place.topic}', and neither gives it nor says that it does "
                    "not have it: suspected, and not proved",
                )

    def on_contradiction(self, line: Line, sequence: Sequence, one: bytes, other: bytes) -> None:
        """A producer says two things under one number. Whether it signed both, we look again."""
        producer = member_of(line.publisher)
        if producer in self.contradictions or not self._validation.covers(line.topic):
            return
        place = self._validation.place(line)
        with suppress(RemoteProtocolError):
            seals = Seal.decode(one), Seal.decode(other)
            for seal in seals:
                check_seal(place, sequence, seal)
            self.contradictions[producer] = TwoSeals.of(place, sequence, *seals)
            self._outbox.report(
                line.publisher, "two-seals", f"signed two batches as number {sequence} of its line"
            )

    # What we are asked

    def on_challenge(self, sender: NodeId, challenge: Challenge) -> None:
        """Give what we have, and sign what we do not have and will not get."""
        if not self._outbox.may_answer(sender) or not self._validation.covers(challenge.topic):
            return
        line = Line(challenge.publisher, challenge.topic, challenge.partition)
        partition, offset = line.target, challenge.offset
        stretches = self._readers.read(partition, offset, 1)
        if stretches:
            entries = stretches[0].entries(partition, 1)
            self._outbox.answer(sender, entries, len(entries.payloads[0]))
            return
        start, _ = self._store.bounds(partition)
        is_there = offset < start or self._stands_there(line, challenge)
        if not is_there or self._filling.may_come(partition, offset):
            return
        if self._store.may_come(partition, offset):
            return
        now_us = self._wall_us(self._outbox.now_us)
        place, content = self._validation.place(line), digest_of(challenge.descriptor)
        statement = signing.Refusal(place, challenge.sequence, content, offset, start, now_us)
        signature = self._signer.attest(statement.encode())
        refusal = Refusal(*line, offset, challenge.sequence, content, start, now_us, signature)
        self._outbox.answer(sender, refusal, SIGNATURE_BYTES)

    def on_ask(self, sender: NodeId, ask: AskReceipts) -> None:
        """Somebody wants the receipts of a batch, or says that a store does not give it."""
        if not self._outbox.may_answer(sender):
            return
        partition = Partition(ask.topic, ask.partition)
        self._outbox.charge(sender, SEARCH_BYTES)
        if ask.store is not None:
            self.doubt(ask.store, partition, ask.offset)
            return
        found = self._find(partition, ask.offset)
        if found is None or not found.receipts:
            return
        stores = [receipt.store for receipt in found.receipts]
        evidence = [render(self.evidence[store]) for store in stores if store in self.evidence]
        answer = Receipts(
            *found.line, found.offset, found.sequence, found.time_us, found.digest, found.before,
            found.receipts, evidence,
        )  # fmt: skip
        size = sum(len(receipt.behind) for receipt in found.receipts) + sum(map(len, evidence))
        self._outbox.answer(sender, answer, size)

    # Parts

    def _find(self, partition: Partition, offset: int) -> Found | None:
        """The batch at this offset, if it is one of a validated topic whose decision is here."""
        if not self._validation.covers(partition.topic):
            return None
        placed_at = self._store.placed_at(self._group, partition, offset)
        if placed_at is None:
            return None
        time_us, placed = placed_at
        line, offsets = Line(placed.publisher, *partition), placed.offsets
        at = bisect_right(offsets, offset, hi=placed.count) - 1
        descriptors = cut(placed.descriptors)
        digests = [*map(digest_of, descriptors)]
        before = reduce(link, digests[:at], placed.before) if placed.before else b""
        receipts = [*_receipts_of(placed, digests, at)]
        return Found(
            self._validation.place(line), line, offsets[at], placed.first + at, time_us,
            descriptors[at], before, receipts[:RECEIPTS_MAX],
        )  # fmt: skip

    def _challenge(self, store: NodeId, found: Found) -> None:
        challenge = Challenge(
            *found.line, found.offset, found.sequence, found.time_us, found.descriptor
        )
        self._outbox.send(store, challenge)

    def _close(self, store: NodeId) -> None:
        del self._open[store]
        self._silent.discard(store)
        self._not_before_us[store] = self._outbox.now_us + PAUSE_US

    def _stands_there(self, line: Line, challenge: Challenge) -> bool:
        """Whether this is the batch that the partition's chain has at this offset."""
        end = challenge.offset + events_in(challenge.descriptor)
        before = self._store.chain(line.target, challenge.offset)
        leaves = leaves_of(
            line, challenge.sequence, challenge.offset, challenge.time_us, [challenge.descriptor]
        )
        if before is None or before[0] != challenge.offset:
            return False
        return (end, chained(before[1], leaves)[0]) == self._store.chain(line.target, end)


def _receipts_of(placed: Placed, digests: list[Digest], at: int) -> Iterator[SignedReceipt]:
    """Those that cover one of these batches."""
    for receipt in placed.receipts:
        end = receipt.first + receipt.count - placed.first
        if receipt.first <= placed.first + at and at < end:
            behind = b"".join(digests[at + 1 : end]) + receipt.behind
            said = (receipt.store, receipt.first, receipt.count, receipt.chain, receipt.signature)
            yield SignedReceipt(*said, behind)


def _cut(digests: bytes) -> tuple[Digest, ...]:
    size = DIGEST_BYTES
    return tuple([digests[at : at + size] for at in range(0, len(digests), size)])


def _is_of(refusal: Refusal, found: Found) -> bool:
    line = Line(refusal.publisher, refusal.topic, refusal.partition)
    named = (line, refusal.offset, refusal.sequence, refusal.digest)
    return named == (found.line, found.offset, found.sequence, found.digest)
