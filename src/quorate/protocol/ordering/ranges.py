"""A stretch of a partition, with proof: for whoever reads from here to there, and may read again.

Source: DESIGN sections 3 and 6; RFC 6962, section 2.1.

A `Reading` follows a partition for as long as somebody listens, and believes what f + 1 replicas
say of its chain. Here both ends are known, and any number of readers share the work, each with
a stretch of its own. So one replica is asked, the *lead*, for the batches and for where they stand:
their leaves have to lead to the root of a checkpoint that a quorum signed, and then it does not
matter who sent them. If they do not, or the lead does not have them or says nothing, the next
replica is asked.

Both ends are offsets of events, and may lie inside a batch: whoever reads gets all of that batch
and leaves out what is outside. With validation, basic batches come without their payloads, which
are not asked for: their leaves are proved like all others.

Logs that nobody signs (those that stand crashes only) are taken from the lead as they are, if each
batch follows on the one before.

Invariants:
- batches are handed out in the order of their offsets, each once, none left out without a word;
- no batch is handed out that the checks did not let pass;
- what is held is bounded: a lead may send as far ahead as it is allowed, and no further.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import msgspec

from quorate.core.errors import RemoteProtocolError
from quorate.core.header import are_possible, is_signed
from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.ordering import (
    PROVEN_BATCHES_MAX,
    Absent,
    Allow,
    Entries,
    Follow,
    Line,
    Partition,
    ProvenRange,
    ProveRange,
    Wants,
)
from quorate.crypto.checkpoint import read as read_checkpoint
from quorate.crypto.digests import descriptor, digest_of
from quorate.crypto.merkle import Hash, check_runs
from quorate.crypto.proofs import Keys, enough_of
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.ordering.value import CHAIN_START, chained, leaves_of
from quorate.protocol.outbox import Outbox
from quorate.protocol.topic import Topic

# How far a lead may send ahead of what was handed out and taken: so much, as batches are now.
CREDIT_BYTES = 16 * 1024 * 1024
CREDIT_BATCHES = 4096
FIRST_CREDIT_EVENTS = 64
# A lead that brings nothing for so long is replaced by the next one.
LATE_AFTER_US = 1_000_000
# A head is signed within some tens of milliseconds, and replicas answer so much in a turn.
ASK_AGAIN_US = 40_000
# When all were asked in vain, they are asked again after so long, and given up on after this.
AGAIN_AFTER_US = 300_000
PATIENCE_US = 10_000_000
CHECKPOINTS_KEPT = 64


class RangeProof(msgspec.Struct, frozen=True, gc=False):
    """How batches that follow on each other lead together to a checkpoint's root.

    Whoever keeps it can prove each of them later (`crypto.merkle.inclusion_in_runs`). The
    checkpoint has just as many cosignatures as a proof has (`crypto.proofs.enough_of`).
    """

    size: int
    runs: list[range]
    leaves: list[Hash]
    path: list[Hash]
    checkpoint: str


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A batch that was checked. A basic one has no payload where only signed ones are wanted.

    `offset` and `end` are those of its events, also where the stretch begins or ends inside. `leaf`
    is its place in the order log and `size` that of the checkpoint which covers it, where there is
    one. The first of those that were proved together has their `proof`.
    """

    offset: int
    end: int
    publisher: NodeId
    sequence: Sequence
    time_us: int
    payload: bytes | None
    digest: Digest
    leaf: int | None = None
    size: int | None = None
    proof: RangeProof | None = None


class Unsettled(msgspec.Struct, frozen=True, gc=False):
    """No replica could give what stands from this offset on so that it passed the checks: what each
    of them did, and what was sent in its place. It has no event at or after `end`, as far as those
    say who were asked."""

    offset: int
    end: int
    causes: dict[NodeId, str]
    sent: dict[NodeId, bytes]


class Checks:
    """What has to hold of the batches of one cluster, and what was found to hold lately."""

    def __init__(self, keys: Keys | None, validation: Validation) -> None:
        """Without `keys` nobody signs heads in this cluster."""
        self.validation = validation
        self._keys = keys
        self._heads: dict[str, tuple[int, Hash, str]] = {}

    def head(self, checkpoint: str) -> tuple[int, Hash, str]:
        """The size and root that a quorum signed, and the checkpoint with as many cosignatures as
        it takes, or `RemoteProtocolError`."""
        known = self._heads.get(checkpoint)
        if known is None:
            if self._keys is None:
                raise RemoteProtocolError("a checkpoint of a cluster that has none")
            # Says whether it is that of the right log.
            enough, _ = enough_of(checkpoint, self._keys)
            head = read_checkpoint(checkpoint, self._keys.cosigners, self._keys.needed).head
            if len(self._heads) >= CHECKPOINTS_KEPT:
                del self._heads[next(iter(self._heads))]
            known = self._heads[checkpoint] = head.size, head.root, enough
        return known


@dataclass(slots=True)
class _Lead:
    """Who is asked now, how far it has come, and what we wait for."""

    replica: NodeId
    # The offset after the last batch that it sent.
    received: int
    # The chain there, if it was told.
    chain: Digest | None
    # What it sent: nothing is known of that but what it says itself.
    batches: list[Settled] = field(default_factory=list)
    leaves: list[Hash] = field(default_factory=list)
    # Whether it has yet to send something.
    is_new: bool = True
    # Where it says that it has nothing more.
    absent: int | None = None
    # What was asked last about positions, since when, and whether an answer is due.
    number: int = 0
    asked_us: int = 0
    is_asked: bool = False
    # Of so many batches the positions are asked for at a time; fewer, where something is wrong.
    batches_at_once: int = PROVEN_BATCHES_MAX
    moved_us: int = 0


class RangeReading:
    """The reader's end of one stretch."""

    def __init__(
        self,
        topic: Topic,
        partition: Partition,
        stretch: range,
        outbox: Outbox,
        connected: Collection[NodeId],
        numbers: Iterator[int],
        checks: Checks | None,
        hand_out: Callable[[list[Settled] | Unsettled], None],
        *,
        validate: bool = True,
        patience_us: int = PATIENCE_US,
    ) -> None:
        """`connected` are the replicas that can be asked, now and whenever it changes.

        Without `checks`, what the lead sends is taken as it is, and nothing is known of it.

        On a validated topic, `validate` asks for signed batches, and looks at their seals.
        """
        self.topic, self.partition = topic, partition
        # The next event to hand out, and where the stretch ends.
        self.position, self.end = stretch.start, stretch.stop
        self._outbox = outbox
        self._connected = connected
        self._numbers = numbers
        self._checks = checks
        self._hand_out = hand_out
        self._patience_us = patience_us
        self._order = stores_of(topic.members, partition)
        self._validates = validate and topic.contract.validated
        self._signed = topic.contract.protection == "byzantine"
        self._lead: _Lead | None = None
        self._credit = FIRST_CREDIT_EVENTS
        # Up to where the application has taken what was handed out, and what a lead may send.
        self._taken = stretch.start
        self._limit = stretch.start
        # Why those are of no help who were asked for what is next, and what they sent instead.
        self._tried: dict[NodeId, str] = {}
        self._sent: dict[NodeId, bytes] = {}
        # Up to where those say that they lack it who do.
        self._absent_until: dict[NodeId, int] = {}
        self._stuck_us = outbox.now_us
        self._again_us: int | None = None
        # Whether the application has yet to say what becomes of a batch that nobody has.
        self._is_given_up = False

    @property
    def is_done(self) -> bool:
        return self.position >= self.end

    def taken(self, through: int) -> None:
        """The application has taken what was handed out before this offset."""
        self._taken = through
        if self._lead is None:
            self._choose_lead()
        elif 2 * (self._limit - self._taken) < self._credit and self._limit < self.end:
            self._limit = self._new_limit()
            self._outbox.send(self._lead.replica, Allow(*self.partition, self._limit))

    def skip(self) -> None:
        """Go on behind what was given up on."""
        self._is_given_up = False
        self.position = self._given_up_until()
        self._taken = max(self._taken, self.position)
        self._moved()
        self._choose_lead()

    def stop(self) -> None:
        """Nobody need send us anything any more."""
        if self._lead is not None:
            number = next(self._numbers)
            follow = Follow(*self.partition, number, self.position, 0, Wants.CHAIN)
            self._outbox.send(self._lead.replica, follow)

    # Messages

    def on_entries(self, sender: NodeId, entries: Entries) -> None:
        lead = self._lead
        if lead is None or sender != lead.replica:
            return
        offsets = entries.offsets
        # The first batch may begin before what is wanted.
        begins = lead.is_new and entries.offset <= lead.received < offsets[1]
        if not (begins or entries.offset == lead.received) or offsets[-2] >= self._limit:
            return
        lead.moved_us, lead.is_new = self._outbox.now_us, False
        try:
            batches, leaves = self._batches(entries, offsets)
            self._check_chain(lead, entries, leaves)
        except RemoteProtocolError as error:
            self._lacks(sender, lead.batches[0].end if lead.batches else offsets[1])
            self._give_way(str(error), sent=entries.payloads[0])
            return
        lead.batches += batches
        lead.leaves += leaves
        lead.received = offsets[-1]
        if self._checks is None or not self._signed:
            self._settle(lead, len(lead.batches), None)
        elif not lead.is_asked:
            self._ask_positions(lead)

    def on_absent(self, sender: NodeId, absent: Absent) -> None:
        lead = self._lead
        if lead is not None and sender == lead.replica and absent.offset == lead.received:
            lead.absent = absent.offset
            self._lacks(sender, absent.end)
            self._pass_on(lead)

    def on_proven(self, sender: NodeId, proven: ProvenRange) -> None:
        lead = self._lead
        if lead is None or sender != lead.replica or not lead.is_asked:
            return
        if proven.number != lead.number or proven.offset != self.position:
            return
        if proven.sentence:
            if proven.is_final:
                self._give_way(f"says that {proven.sentence}")
            # Otherwise it is asked again before long.
            return
        lead.is_asked = False
        lead.moved_us = self._outbox.now_us
        try:
            proof = self._proof(lead, proven)
        except RemoteProtocolError as error:
            self._look_closer(lead, proven, str(error))
            return
        lead.batches_at_once = min(PROVEN_BATCHES_MAX, 2 * lead.batches_at_once)
        self._settle(lead, len(proof.leaves), proof)

    def tick(self) -> None:
        now_us, lead = self._outbox.now_us, self._lead
        if self.is_done or self._is_given_up:
            return
        if lead is None:
            if self._again_us is None or now_us >= self._again_us:
                self._again_us = None
                self._tried.clear()
                self._choose_lead()
        elif lead.replica not in self._connected:
            self._give_way("its link went down")
        elif not (lead.batches or lead.received < self._limit):
            # The application has enough for now, and nobody is late.
            lead.moved_us = self._stuck_us = now_us
        elif now_us - lead.moved_us >= LATE_AFTER_US:
            self._give_way(f"brought nothing for {LATE_AFTER_US / 1e6:g} s")
        elif lead.is_asked and now_us - lead.asked_us >= ASK_AGAIN_US:
            self._ask_positions(lead)

    # Checking

    def _batches(self, entries: Entries, offsets: list[int]) -> tuple[list[Settled], list[Hash]]:
        publisher, first, time_us = entries.publisher, entries.first, entries.time_us
        bare = frozenset(entries.bare)
        if bare and (not self._validates or max(bare) >= len(entries.payloads)):
            raise RemoteProtocolError("sent descriptors that were not asked for")
        line = Line(publisher, *self.partition)
        descriptors = [
            payload if at in bare else descriptor(payload)
            for at, payload in enumerate(entries.payloads)
        ]
        if not are_possible(descriptors):
            raise RemoteProtocolError("sent a batch whose header cannot be true")
        if any(is_signed(descriptors[at]) for at in bare):
            raise RemoteProtocolError("sent the descriptor of a signed batch in place of it")
        is_checked = self._checks is not None
        leaves = (
            leaves_of(line, first, entries.offset, time_us, descriptors)
            if is_checked
            else [b""] * len(descriptors)
        )
        batches = [
            Settled(
                offsets[at], offsets[at + 1], publisher, first + at, time_us,
                None if at in bare else payload,
                digest_of(descriptors[at]) if is_checked else b"",
            )
            for at, payload in enumerate(entries.payloads)
        ]  # fmt: skip
        return batches, leaves

    def _check_chain(self, lead: _Lead, entries: Entries, leaves: list[Hash]) -> None:
        """Where nobody signs, batches at least follow on each other as the lead says they do."""
        if self._checks is None or self._signed:
            return
        before = CHAIN_START if entries.offset == 0 else lead.chain
        if before not in (None, entries.before):
            raise RemoteProtocolError("sent batches that do not follow on each other")
        lead.chain = chained(entries.before, leaves)[-1]
        if lead.chain != entries.after:
            raise RemoteProtocolError("sent batches that are not what it says they are")

    def _proof(self, lead: _Lead, proven: ProvenRange) -> RangeProof:
        """What holds of the first batches, or `RemoteProtocolError`."""
        assert self._checks is not None
        count = sum(run.count for run in proven.runs)
        if not 0 < count <= len(lead.batches):
            raise RemoteProtocolError(f"told of {count} batches, and sent {len(lead.batches)}")
        size, root, checkpoint = self._checks.head(proven.checkpoint)
        runs = [range(run.leaf, run.leaf + run.count) for run in proven.runs]
        leaves = lead.leaves[:count]
        check_runs(leaves, runs, size, proven.path, root)
        if self._validates:
            for batch in lead.batches[:count]:
                if batch.payload is not None:
                    line = Line(batch.publisher, *self.partition)
                    self._checks.validation.check_ordered(line, batch.sequence, batch.payload)
        return RangeProof(size, runs, leaves, proven.path, checkpoint)

    def _look_closer(self, lead: _Lead, proven: ProvenRange, why: str) -> None:
        """One of these batches is not what was ordered: find out which is the first."""
        count = sum(run.count for run in proven.runs)
        if 1 < count <= len(lead.batches):
            lead.batches_at_once = count // 2
            self._ask_positions(lead)
        else:
            self._lacks(lead.replica, lead.batches[0].end)
            self._give_way(f"sent {why}", sent=lead.batches[0].payload or b"")

    def _settle(self, lead: _Lead, count: int, proof: RangeProof | None) -> None:
        """So many batches are what they should be."""
        settled = lead.batches[:count]
        if proof is not None:
            places = (leaf for run in proof.runs for leaf in run)
            settled = [
                msgspec.structs.replace(
                    batch, leaf=leaf, size=proof.size, proof=None if at else proof
                )
                for at, (batch, leaf) in enumerate(zip(settled, places, strict=True))
            ]
        del lead.batches[:count], lead.leaves[:count]
        self.position = min(settled[-1].end, self.end)
        events = settled[-1].end - settled[0].offset
        size_bytes = sum(len(each.payload or each.digest) for each in settled) or 1
        credit = min(CREDIT_BATCHES * events // count, CREDIT_BYTES * events // size_bytes)
        self._credit = max(1, credit)
        self._moved()
        self._hand_out(settled)
        if lead.batches:
            self._ask_positions(lead)
        else:
            self._pass_on(lead)

    # Who is asked

    def _moved(self) -> None:
        self._tried.clear()
        self._sent.clear()
        self._absent_until.clear()
        self._again_us = None
        self._stuck_us = self._outbox.now_us

    def _new_limit(self) -> int:
        return min(self.end, self._taken + self._credit)

    def _choose_lead(self) -> None:
        there = [replica for replica in self._order if replica in self._connected]
        replica = next((each for each in there if each not in self._tried), None)
        if self.is_done or replica is None:
            self._wait_or_give_up()
            return
        now_us = self._outbox.now_us
        self._lead = _Lead(replica, self.position, None, moved_us=now_us)
        self._limit = self._new_limit()
        number = next(self._numbers)
        wants = Wants.SIGNED if self._validates else Wants.ALL
        follow = Follow(*self.partition, number, self.position, self._limit, wants)
        self._outbox.send(replica, follow)

    def _wait_or_give_up(self) -> None:
        """Everybody who is there was asked; some may have it later, or come back."""
        if self.is_done:
            return
        now_us = self._outbox.now_us
        if now_us - self._stuck_us < self._patience_us:
            self._again_us = now_us + AGAIN_AFTER_US
            return
        self._is_given_up = True
        until = self._given_up_until()
        self._hand_out(Unsettled(self.position, until, dict(self._tried), dict(self._sent)))

    def _lacks(self, replica: NodeId, until: int) -> None:
        """This replica says where the batch ends that it does not give as it should be."""
        self._absent_until[replica] = max(until, self.position + 1)

    def _given_up_until(self) -> int:
        """Up to where all say that they lack it who say so; what comes after, somebody may have.

        Of those who say so one has to be correct.
        """
        said = self._absent_until.values()
        is_known = len(said) > (self.topic.f if self._signed else 0)
        return min(min(said) if is_known else self.position + 1, self.end)

    def _ask_positions(self, lead: _Lead) -> None:
        lead.number, lead.asked_us = next(self._numbers), self._outbox.now_us
        lead.is_asked = True
        count = min(len(lead.batches), lead.batches_at_once)
        prove = ProveRange(*self.partition, lead.number, self.position, count)
        self._outbox.send(lead.replica, prove)

    def _pass_on(self, lead: _Lead) -> None:
        """Large batches are not everywhere: go on from here with the next replica."""
        if lead.absent is not None and lead.absent == self.position:
            self._give_way("does not have it")

    def _give_way(self, why: str, *, sent: bytes | None = None) -> None:
        lead = self._lead
        assert lead is not None
        if sent is not None:
            self._outbox.report(lead.replica, "bad-lead", why)
            self._sent[lead.replica] = sent
        self._tried[lead.replica] = why
        self._lead = None
        self._choose_lead()
