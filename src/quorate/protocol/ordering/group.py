"""One replica's part in one group: requests in, an order out.

`consensus.py` and `leader_change.py` agree on values and know nothing of what is in them. Here is
what a value means: which batches wait (`lines.py`), what may be proposed and accepted, what a
decision does (`log.py`), and what the publishers, the readers and slower replicas hear of it.

A replica that was added to the cluster later is no member of any group. It follows the one that
orders commands, slot by slot, on the words of its members, and keeps what that orders.

One group of a cluster also orders its commands (`protocol/control`). They are carried out in the
slot that decides them, alike on every replica, and so no replica goes on behind that slot before
it has their payloads: digests are not enough.

When to doubt the leader. A batch that waits is told to all replicas after a while, so that all
come to have it. From then on the leader owes it an order; when that stays out for too long, it is
time for the next leader. A client that tells too few replicas does not get so far, and neither
does a replica that makes something up. So it takes f + 1 correct replicas with a reason, or one
with a reason and f that lie, to change the leader.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.limits import RUN_BATCHES_MAX, SNAPSHOT_EVERY
from quorate.core.ordering import (
    Accept,
    Announce,
    Append,
    AskPart,
    Cosign,
    Decision,
    Fill,
    Line,
    OfferSnapshot,
    Ordered,
    Partition,
    Propose,
    Received,
    Retrieve,
    Retrieved,
    SnapshotPart,
    Standing,
    Stored,
    Write,
)
from quorate.crypto.digests import digest
from quorate.protocol.control.replica import Steward
from quorate.protocol.ordering.consensus import Consensus
from quorate.protocol.ordering.cosigning import Cosigning, Notary
from quorate.protocol.ordering.filling import FILL_BYTES_MAX, Filling, answer
from quorate.protocol.ordering.leader_change import LeaderChange, Signer
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX, Waiting
from quorate.protocol.ordering.log import SEAL_EVERY_US, Content, LogState, OrderLog
from quorate.protocol.ordering.pace import PACE, Pace
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.readers import Readers
from quorate.protocol.ordering.records import (
    DIGEST_BYTES,
    Certified,
    Decided,
    Held,
    Installed,
    Placed,
    Record,
    Snapshot,
    Store,
    Voted,
)
from quorate.protocol.ordering.rules import Rules
from quorate.protocol.ordering.transfer import Transfer
from quorate.protocol.ordering.value import SPANS_MAX, Span, Value, value_digest
from quorate.protocol.outbox import Outbox

RETRIEVED_BYTES_MAX = 1024 * 1024
# A slot orders up to so much.
SLOT_BATCHES_MAX = 4096
SLOT_BYTES_MAX = 16 * 1024 * 1024
# A snapshot is written after so many batches at most: a slot may order thousands, and all that came
# after the last one are replayed.
SNAPSHOT_BATCHES = 131_072
# Slots that a replica which lags behind is told at a time, and how far ahead it listens.
DECISIONS_BYTES_MAX = 512 * 1024
DECISIONS_AHEAD_MAX = 256
EARLY_VALUE_BYTES_MAX = 16 * 1024
# Lines that others may speak of before their publishers do.
HEARSAY_MAX = 1024
# A value's time may be so far ahead of what we take for the time of day.
CLOCK_AHEAD_US_MAX = 60_000_000

_CONTROL = Partition(CONTROL_TOPIC_ID, 0)

# The time of day in microseconds, at this time of the machine's clock.
WallClock = Callable[[int], int]
# Whether a line may exist: its publisher may write there.
MayAppend = Callable[[Line], bool]


class Group:
    """One replica's part in one group of replicas that order together."""

    def __init__(
        self,
        me: NodeId,
        number: int,
        members: tuple[NodeId, ...],
        rules: Rules,
        *,
        holders_needed: int,
        signer: Signer,
        notary: Notary | None = None,
        store: Store,
        may_append: MayAppend,
        wall_us: WallClock,
        outbox: Outbox,
        state: LogState | None = None,
        steward: Steward | None = None,
        regency: int = 1,
        pace: Pace = PACE,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        self.me, self.number, self.members, self.rules = me, number, members, rules
        self.counters: Counter[str] = Counter()
        self.log = OrderLog(number, state, snapshot_every)
        # Who carries commands out, if this group orders them.
        self.steward = steward
        if steward is not None:
            self.log.state.control = steward.control.state
        # Commands from here on are in no snapshot that is safely on disk.
        self.commands_needed_from = self.log.partition(_CONTROL).end
        self._snapshot_end = self.commands_needed_from
        self.consensus = Consensus(
            me, number, members, rules, self, outbox,
            slot=self.log.state.slot + 1, last=self.log.state.last,
        )  # fmt: skip
        self._snapshot_regency = regency
        self.change = LeaderChange(self.consensus, signer, outbox, pace)
        self._pace = pace
        # To write it takes a while, so that replicas had better not do so at the same time: one
        # waits for all of the batches, and each of the others for a few less than the one before.
        rank = members.index(me) if me in members else 0
        sooner = SNAPSHOT_BATCHES * rank // (2 * len(members))
        self._snapshot_batches = SNAPSHOT_BATCHES - sooner
        # How many batches the last snapshot covers.
        self._snapshot_size = self.log.tree.size
        self.readers = Readers(self.log, store, outbox)
        self.cosigning = (
            Cosigning(me, number, rules.quorum, notary, outbox) if notary is not None else None
        )
        self._others = tuple(member for member in members if member != me)
        self.transfer: Transfer | None = None
        if notary is not None and self.cosigning is not None:
            self.transfer = Transfer(
                number, members, self._others, quorum=rules.quorum,
                offers_needed=rules.voices_to_believe, notary=notary, cosigning=self.cosigning,
                store=store, outbox=outbox, undecided=lambda: self.consensus.slot,
                install=self._install,
            )  # fmt: skip
            self.transfer.resume(self.log, signs=self.takes_part)
        self.filling = Filling(self._others, self._is_store, store, outbox)
        self._holders_needed = holders_needed
        self._store = store
        self._may_append = may_append
        self._wall_us = wall_us
        self._outbox = outbox
        self._lines: dict[Line, Waiting] = {}
        # Lines with undecided batches, in the order in which the leader serves them.
        self._active: dict[Line, Waiting] = {}
        # Lines whose progress the leader has yet to hear of.
        self._unsaid: dict[Line, Waiting] = {}
        # Spans that we would need to know, since when, and what we were given for them.
        self._wanted: dict[Line, tuple[Span, int]] = {}
        self._offers: dict[Line, tuple[list[Digest], list[bytes | None]]] = {}
        # What others say was decided, by slot.
        self._decisions: dict[int, dict[NodeId, Decision]] = {}
        # Lines of which we know no more than that a replica spoke of them.
        self._hearsay: dict[Line, None] = {}
        # Up to which slot each replica was told decisions, and when.
        self._told: dict[NodeId, tuple[int, int]] = {}
        # How far each replica's time of day is from our machine's clock.
        self._clocks: dict[NodeId, int] = {}
        self._has_news = False
        self._progress_us = 0
        # How many batches the last slot ordered.
        self._last_batches = 0
        self._standing_us = 0
        self._asked_us = 0

    # Recovery

    def restore(self, records: "list[Record]") -> None:
        """What the disk has from before, behind the snapshot, in the order of writing."""
        for record in records:
            if isinstance(record, Decided) and record.group == self.number:
                self._replay(record)
        self.consensus = Consensus(
            self.me, self.number, self.members, self.rules, self, self._outbox,
            slot=self.log.state.slot + 1, last=self.log.state.last,
        )  # fmt: skip
        self.change = LeaderChange(self.consensus, self.change.signer, self._outbox, self._pace)
        self.consensus.enter(self._snapshot_regency)
        for record in records:
            if isinstance(record, Voted) and record.group == self.number:
                self.consensus.restore(record)
            elif isinstance(record, Held):
                self._restore_held(record)
        self.consensus.resume()
        self.change.resume()
        for partition, offset, batches in self._store.absent():
            if partition in self.log.state.partitions:
                self.filling.miss(partition, offset, batches)

    def _replay(self, decided: Decided) -> None:
        value = Value.decode(decided.value)
        contents = [Content(_cut(placed.digests), placed.lacking) for placed in decided.placed]
        self.log.apply(decided.slot, value_digest(decided.value), decided.value, value, contents)
        if self.steward is not None:
            for placed in decided.placed:
                if placed.topic == CONTROL_TOPIC_ID:
                    payloads = self._commands_at(placed.offset, placed.count)
                    self._carry_out(placed, payloads, value.time_us)
        # It was signed then, if it was due.
        self.log.is_seal_due()

    def _restore_held(self, held: Held) -> None:
        line = Line(held.publisher, held.topic, held.partition)
        if not self._may_append(line):
            return
        waiting = self._line(line)
        waiting.extend(held.first, [*map(digest, held.payloads)], held.payloads)
        for sequence, payload in enumerate(held.payloads, held.first):
            if sequence >= waiting.end:
                waiting.spare[sequence] = payload
        waiting.direct = waiting.end - 1
        if waiting.held == held.first - 1:
            waiting.held = min(waiting.end, held.first + len(held.payloads)) - 1
        self._activate(waiting)

    # Machine

    def tick(self) -> None:
        now_us = self._outbox.now_us
        self._retrieve(now_us)
        if self.takes_part:
            self.change.tick()
            self._tell_what_waits(now_us)
            self._doubt_leader(now_us)
            self._seal_when_idle(now_us)
        self.filling.tick()
        if self.transfer is not None:
            self.transfer.tick()
        is_stuck = self._is_busy and now_us - self._progress_us >= self._pace.standing_us
        if now_us - self._standing_us >= (
            self._pace.standing_us if is_stuck else self._pace.standing_idle_us
        ):
            self._standing_us = now_us
            self._say_standing(self._others)
            if self._awaits_snapshot:
                self._outbox.send_all(self._others, AskPart(self.number, 0, 0))
        self._has_news = True

    def flush(self) -> bool:
        """Do what this turn calls for. True if some of it is left for the next turn."""
        self._say_received()
        if self._has_news:
            self._has_news = False
            self.consensus.reconsider()
        self.consensus.flush()
        return self.readers.flush()

    def _seal_when_idle(self, now_us: int) -> None:
        """What came last is signed too, when nothing follows that would bring it about."""
        tree, cosigning = self.log.tree, self.cosigning
        if cosigning is None or tree.size == cosigning.signed:
            return
        if now_us - self._progress_us >= SEAL_EVERY_US:
            self._seal(self._snapshot_if_due())

    def _snapshot_if_due(self) -> Snapshot | None:
        return self.log.snapshot(self.consensus.regency) if self.log.is_snapshot_due else None

    def _seal(self, snapshot: Snapshot | None) -> None:
        """Sign the head of the log, where a snapshot is due together with that: one per size."""
        log = self.log
        if not self.takes_part:
            return
        if snapshot is not None and self.transfer is not None:
            self.transfer.sign(snapshot, log)
        elif self.cosigning is not None:
            self.cosigning.seal(self._others, log.tree.size, log.tree.root(), log.state.time_us)

    @property
    def takes_part(self) -> bool:
        """Whether we order with the others, or follow what they order."""
        return self.consensus.takes_part

    @property
    def _is_busy(self) -> bool:
        return bool(self._active) or self.change.is_changing

    # Requests

    def on_append(self, sender: NodeId, append: Append) -> None:
        line = Line(sender, append.topic, append.partition)
        if append.topic == CONTROL_TOPIC_ID and max(map(len, append.payloads)) > INLINE_BYTES_MAX:
            self._outbox.report(sender, "rejected", "a command that is too large")
            return
        digests = [*map(digest, append.payloads)]
        if append.digests and append.digests != digests:
            self._outbox.report(sender, "altered", f"batches from {append.first} on")
            return
        self.counters["batches_in"] += len(digests)
        waiting = self._take(line, append.first, digests, append.payloads)
        large = [len(payload) > INLINE_BYTES_MAX for payload in append.payloads]
        if any(large) and waiting is not None:
            self._keep_and_tell(waiting, append, large)

    def on_announce(self, sender: NodeId, announce: Announce) -> None:
        line = Line(sender, announce.topic, announce.partition)
        if announce.topic == CONTROL_TOPIC_ID:
            self._outbox.report(sender, "rejected", "a command without its payload")
            return
        self._take(line, announce.first, announce.digests, [None] * len(announce.digests))

    def on_received(self, sender: NodeId, received: Received) -> None:
        line = Line(received.publisher, received.topic, received.partition)
        waiting = self._known_line(sender, line)
        if waiting is None or received.through < waiting.next:
            return
        waiting.heard[sender] = received
        self._has_news = True
        if received.through >= waiting.end:
            self._want_what_others_have(waiting, received)

    def on_stored(self, sender: NodeId, stored: Stored) -> None:
        line = Line(stored.publisher, stored.topic, stored.partition)
        waiting = self._known_line(sender, line)
        if waiting is None:
            return
        if waiting.on_stored(sender, stored):
            self._has_news = True
        else:
            waiting.keep_early(sender, stored)

    def on_retrieve(self, sender: NodeId, retrieve: Retrieve) -> None:
        line = Line(retrieve.publisher, retrieve.topic, retrieve.partition)
        waiting = self._lines.get(line)
        last = retrieve.first + retrieve.count - 1
        is_known = waiting is not None and waiting.next <= retrieve.first <= last < waiting.end
        if retrieve.count <= RUN_BATCHES_MAX and retrieve.first < self.log.line(line).next:
            self._retrieve_decided(sender, line, retrieve)
        if waiting is None or not is_known or retrieve.count > RUN_BATCHES_MAX:
            return
        start, end = retrieve.first - waiting.next, last + 1 - waiting.next
        payloads: list[bytes] = []
        room = RETRIEVED_BYTES_MAX
        for payload in waiting.payloads[start:end]:
            # At least one goes, however large.
            fits = payload is not None and (len(payload) <= room or room == RETRIEVED_BYTES_MAX)
            payloads.append(payload if payload is not None and fits else b"")
            room -= len(payloads[-1])
        digests = waiting.digests[start:end]
        self._outbox.send(sender, Retrieved(*line, retrieve.first, digests, payloads))
        chain = waiting.chain_at(last)
        if waiting.direct >= last and chain is not None:
            self._outbox.send(sender, Received(*line, last, chain))

    def _retrieve_decided(self, sender: NodeId, line: Line, retrieve: Retrieve) -> None:
        """A peer lacks what we have decided: if a power cut took it from all others, it is ours
        to give."""
        for position in self.log.line(line).recent:
            at = retrieve.first - position.first
            if not 0 <= at < position.batches:
                continue
            payloads: list[bytes] = []
            offset = position.offset + at
            for stretch in self.readers.read(line.target, offset, RETRIEVED_BYTES_MAX):
                payloads += stretch.payloads
            payloads = payloads[: min(position.batches - at, retrieve.count)]
            if payloads:
                digests = [*map(digest, payloads)]
                self._outbox.send(sender, Retrieved(*line, retrieve.first, digests, payloads))

    def on_retrieved(self, sender: NodeId, retrieved: Retrieved) -> None:
        line = Line(retrieved.publisher, retrieved.topic, retrieved.partition)
        wanted = self._wanted.get(line)
        if wanted is None:
            return
        payloads: list[bytes | None] = [
            payload if payload and digest(payload) == content else None
            for payload, content in zip(retrieved.payloads, retrieved.digests, strict=False)
        ]
        payloads += [None] * (len(retrieved.digests) - len(payloads))
        waiting, span = self._line(line), wanted[0]
        if waiting.matches(span):
            waiting.complete(retrieved.first, retrieved.digests, payloads)
        elif retrieved.first == span.first and waiting.is_named_by(span, retrieved.digests):
            self._offers[line] = retrieved.digests, payloads
        self._has_news = True

    # Agreement

    def on_propose(self, sender: NodeId, propose: Propose) -> None:
        self._notice(sender, propose.slot)
        self.consensus.on_propose(sender, propose)

    def on_write(self, sender: NodeId, write: Write) -> None:
        self._notice(sender, write.slot)
        self.consensus.on_write(sender, write)

    def on_accept(self, sender: NodeId, accept: Accept) -> None:
        self._notice(sender, accept.slot)
        self.consensus.on_accept(sender, accept)

    def on_cosign(self, sender: NodeId, cosign: Cosign) -> None:
        if self.cosigning is not None:
            self.cosigning.on_cosign(sender, cosign)
        if self.transfer is not None:
            self.transfer.on_cosign(sender, cosign)

    def on_offer(self, sender: NodeId, offer: OfferSnapshot) -> None:
        if self.transfer is not None:
            self.transfer.on_offer(sender, offer)

    def on_ask(self, sender: NodeId, ask: AskPart) -> None:
        if self.transfer is not None:
            self.transfer.on_ask(sender, ask)

    def on_part(self, sender: NodeId, part: SnapshotPart) -> None:
        if self.transfer is not None:
            self.transfer.on_part(sender, part)

    def on_fill(self, sender: NodeId, fill: Fill) -> None:
        partition = Partition(fill.topic, fill.partition)
        stretches = self.readers.read(partition, fill.offset, FILL_BYTES_MAX)
        self._outbox.send(sender, answer(fill, stretches))

    def on_standing(self, sender: NodeId, standing: Standing) -> None:
        """A peer is stuck, or says hello: help it along."""
        is_peer = self.takes_part and sender in self.members
        if sender in self.members:
            self._clocks[sender] = standing.clock_us - self._outbox.now_us
        if is_peer:
            self.change.repeat(sender, standing.regency, standing.is_synced)
        if standing.slot < self.consensus.slot and self._may_tell(sender, standing.slot):
            self._tell_decisions(sender, standing.slot)
        if is_peer and standing.regency == self.consensus.regency:
            self.consensus.repeat(sender, standing.slot)
        self._notice(sender, standing.slot - 1)

    def on_decision(self, sender: NodeId, decision: Decision) -> None:
        slot = self.consensus.slot
        if self._awaits_snapshot:
            return
        if not slot <= decision.slot < slot + DECISIONS_AHEAD_MAX:
            return
        if decision.slot > slot and len(decision.value) > EARLY_VALUE_BYTES_MAX:
            return
        self._decisions.setdefault(decision.slot, {})[sender] = decision
        before = slot
        if decision.slot == slot and value_digest(decision.value) == self.consensus.bound.get(slot):
            # That it is the value is beyond doubt, and the digests prove themselves.
            self._learn(decision)
        while self._take_decision():
            pass
        if self.consensus.slot > before and not self._decisions:
            self._say_standing(self._others)

    def _take_decision(self) -> bool:
        """Decide the current slot if enough replicas say how it was decided."""
        slot = self.consensus.slot
        said = Counter(decision.value for decision in self._decisions.get(slot, {}).values())
        for value, count in said.items():
            if count >= self.rules.voices_to_believe:
                for decision in list(self._decisions[slot].values()):
                    # The digests are one replica's word each: any that fit will do.
                    if decision.value == value:
                        self._learn(decision)
                self.consensus.decided_elsewhere(value)
                break
        return self.consensus.slot > slot

    def _learn(self, decision: Decision) -> None:
        """Take the contents of a decided value from whoever told us of it."""
        digests, at = _cut(decision.digests), 0
        commands = iter(decision.commands)
        for span in Value.decode(decision.value).spans:
            waiting = self._line(span.line)
            contents = digests[at : at + span.batches]
            payloads: list[bytes | None] = [None] * span.batches
            if span.topic == CONTROL_TOPIC_ID:
                payloads = _matching(contents, commands)
            if not waiting.matches(span):
                waiting.replace(span, contents, payloads)
            elif span.topic == CONTROL_TOPIC_ID:
                waiting.complete(span.first, contents, payloads)
            at += span.batches

    # Application (see `consensus.py`)

    def next_value(self) -> bytes | None:
        """As much as waits and may be proposed, fair to all lines."""
        spans: list[Span] = []
        ready = [
            (waiting, last)
            for waiting in self._active.values()
            if (last := self._proposable(waiting)) >= waiting.next
        ][:SPANS_MAX]
        if not ready or self._is_gathering(ready):
            return None
        batches, size = max(1, SLOT_BATCHES_MAX // len(ready)), SLOT_BYTES_MAX // len(ready)
        for waiting, last in ready:
            span = _span(waiting, last, batches, size)
            spans.append(span)
            # Whoever was served goes to the end.
            self._active[waiting.line] = self._active.pop(waiting.line)
        time_us = max(self.log.state.time_us, self._time_to_propose_us())
        return Value(time_us, tuple(spans)).encode()

    def _is_gathering(self, ready: "list[tuple[Waiting, Sequence]]") -> bool:
        """Whether more is about to come: after a slot with many batches, their publishers go on.

        Whoever publishes one batch after the other never waits for this.
        """
        waiting = sum(last - line.next + 1 for line, last in ready)
        until_us = self._progress_us + self._pace.gather_us
        if 2 * waiting >= self._last_batches or self._outbox.now_us >= until_us:
            return False
        self._outbox.wake_at(until_us)
        return True

    def is_acceptable(self, value: bytes) -> bool:
        try:
            decoded = Value.decode(value)
        except RemoteProtocolError as error:
            self._outbox.report(self.consensus.leader, "bad-proposal", str(error))
            return False
        # The log's time may always stand still, whatever became of our clocks.
        earliest_us = self.log.state.time_us
        latest_us = max(earliest_us, self.time_of_day_us() + CLOCK_AHEAD_US_MAX)
        if not earliest_us <= decoded.time_us <= latest_us:
            self._outbox.report(self.consensus.leader, "bad-clock", f"time {decoded.time_us}")
            return False
        # Of each span, so that all that is missing is asked for.
        acceptable = [self._is_span_acceptable(span) for span in decoded.spans]
        return all(acceptable)

    def is_available(self, value: bytes) -> bool:
        available = [self._is_span_available(span) for span in Value.decode(value).spans]
        return all(available)

    def can_apply(self, value: bytes) -> bool:
        spans = Value.decode(value).spans
        for span in spans:
            if not self._is_applicable(span):
                self._want(span)
                self._use_offer(span, is_certain=True)
        return all(self._is_applicable(span) for span in spans)

    def _is_applicable(self, span: Span) -> bool:
        """Whether we know what it names, and have it if we must carry it out."""
        waiting = self._line(span.line)
        if not waiting.matches(span):
            return False
        return not self._is_command(span.line) or not waiting.lacks(span, self._holders(span.line))

    def hold(self, value: bytes) -> None:
        for span in Value.decode(value).spans:
            waiting = self._line(span.line)
            # What a slot was bound to before we came to it, others hold.
            if waiting.matches(span):
                self._hold(waiting, span.batches, sync=True)

    def apply(self, slot: int, value: bytes) -> None:
        decoded = Value.decode(value)
        lines = [self._line(span.line) for span in decoded.spans]
        contents = []
        for span, waiting in zip(decoded.spans, lines, strict=True):
            self._hold(waiting, span.batches, sync=False)
            contents.append(waiting.content(span.batches))
        chains = {span.line.target: b"" for span in decoded.spans}
        for target in chains:
            chains[target] = self.log.partition(target).chain
        decided = self.log.apply(slot, value_digest(value), value, decoded, contents)
        self._outbox.persist(decided, sync=False)
        for placed, waiting in zip(decided.placed, lines, strict=True):
            before, chains[waiting.line.target] = (
                chains[waiting.line.target],
                placed.chains[-DIGEST_BYTES:],
            )
            payloads = waiting.payloads[: placed.count]
            self.readers.placed(placed, decoded.time_us, before, payloads)
            if self.steward is not None and self._is_command(waiting.line):
                commands = [payload for payload in payloads if payload is not None]
                self._carry_out(placed, commands, decoded.time_us)
            self._note_missing(placed, waiting)
            waiting.advance(placed.count)
            self._after_decision(waiting)
            self._outbox.send(
                placed.publisher,
                Ordered(
                    placed.topic, placed.partition, placed.first, placed.count, placed.offset,
                    decoded.time_us,
                ),
            )  # fmt: skip
            self.counters["batches_ordered"] += placed.count
        is_sealed, snapshot = self.log.is_seal_due(), self._snapshot_if_due()
        if snapshot is not None or self._has_much_to_replay():
            self._write_snapshot(snapshot or self.log.snapshot(self.consensus.regency))
        if is_sealed:
            self._seal(snapshot)
        self._progress_us = self._outbox.now_us
        self._last_batches = sum(span.batches for span in decoded.spans)
        self.change.progressed()
        self._decisions.pop(slot, None)
        while self.log.forgotten:
            self._forget(self.log.forgotten.pop())

    def _has_much_to_replay(self) -> bool:
        return self.log.tree.size - self._snapshot_size >= self._snapshot_batches

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot_size = self.log.tree.size
        self._outbox.persist(snapshot, sync=False)
        # The one before this is on disk for certain: what came after it may be needed.
        self.commands_needed_from = self._snapshot_end
        self._snapshot_end = self.log.partition(_CONTROL).end

    def time_of_day_us(self) -> int:
        """What at least one correct replica takes for the time of day, or less.

        A clock that is wrong, ours or another's, does no harm: of f + 1 clocks that are furthest
        ahead, one belongs to a correct replica.
        """
        now_us = self._outbox.now_us
        clocks = [self._wall_us(now_us), *(now_us + offset for offset in self._clocks.values())]
        clocks.sort(reverse=True)
        return clocks[min(self._holders_needed, len(clocks)) - 1]

    def _time_to_propose_us(self) -> int:
        """After a restart we know no clock but our own, which may be wrong: the log's time stands
        still until we have heard of others. Only a log that has no time yet takes any."""
        is_wise = self.is_sure_of_time or not self.log.state.time_us
        return self.time_of_day_us() if is_wise else self.log.state.time_us

    def clocks_ahead_us(self) -> dict[NodeId, int]:
        """By how much our clock, and those that we heard of, differ from that."""
        now_us, time_us = self._outbox.now_us, self.time_of_day_us()
        heard = {node: now_us + offset - time_us for node, offset in self._clocks.items()}
        return {self.me: self._wall_us(now_us) - time_us, **heard}

    @property
    def is_sure_of_time(self) -> bool:
        """Whether we have heard of so many clocks that one of them is a correct replica's."""
        return len(self._clocks) + 1 >= self._holders_needed

    def _note_missing(self, placed: Placed, waiting: Waiting) -> None:
        """What should be here and is not is to be had from others."""
        payloads = waiting.payloads[: placed.count]
        if None not in payloads:
            return
        partition = Partition(placed.topic, placed.partition)
        is_store = self._is_store(partition)
        for at, payload in enumerate(payloads):
            # What was announced to us as stored elsewhere is large, and not for everybody.
            is_elsewhere = len(waiting.holders[at]) >= self._holders_needed
            if payload is None and (is_store or not is_elsewhere):
                self.filling.miss(partition, placed.offset + at, 1)

    def _is_store(self, partition: Partition) -> bool:
        """Whether large payloads belong here. Whoever follows keeps everything."""
        if not self.takes_part:
            return True
        return self.me in stores_of(self.members, partition)[: self._holders_needed]

    # Requests in their lines

    def _take(
        self,
        line: Line,
        first: Sequence,
        digests: list[Digest],
        payloads: "list[bytes] | list[None]",
    ) -> Waiting | None:
        """Batches that a publisher gave us itself."""
        waiting = self._line(line)
        if first < waiting.next:
            self._tell_positions(line, first, min(first + len(digests), waiting.next))
        if waiting.extend(first, digests, payloads):
            self._outbox.report(line.publisher, "contradiction", f"in its line at {first}")
            return None
        if first <= waiting.direct + 1:
            waiting.direct = max(waiting.direct, min(first + len(digests), waiting.end) - 1)
            self._unsaid[line] = waiting
        if waiting.early:
            waiting.use_early()
        self._activate(waiting)
        self._has_news = True
        return waiting

    def _activate(self, waiting: Waiting) -> None:
        if waiting.digests and waiting.line not in self._active:
            self._active[waiting.line] = waiting
            self._hearsay.pop(waiting.line, None)
            waiting.since_us = waiting.told_us = self._outbox.now_us

    def _after_decision(self, waiting: Waiting) -> None:
        waiting.since_us = waiting.told_us = self._outbox.now_us
        if not waiting.digests:
            self._active.pop(waiting.line, None)
        wanted = self._wanted.get(waiting.line)
        if wanted is not None and wanted[0].end <= waiting.next:
            del self._wanted[waiting.line]
            self._offers.pop(waiting.line, None)

    def _line(self, line: Line) -> Waiting:
        waiting = self._lines.get(line)
        if waiting is None:
            state = self.log.line(line)
            waiting = self._lines[line] = Waiting(line, state.next, state.chain)
            if line not in self.log.state.lines:
                self._hearsay[line] = None
                if len(self._hearsay) > HEARSAY_MAX:
                    self._forget(next(iter(self._hearsay)))
        return waiting

    def _forget(self, line: Line) -> None:
        for known in (self._hearsay, self._lines, self._active, self._unsaid, self._wanted):
            known.pop(line, None)
        self._offers.pop(line, None)

    def _known_line(self, sender: NodeId, line: Line) -> Waiting | None:
        if sender not in self.members or not self._may_append(line):
            self._outbox.report(sender, "rejected", f"spoke of a line of {line.publisher}")
            return None
        return self._line(line)

    def _keep_and_tell(self, waiting: Waiting, append: Append, large: list[bool]) -> None:
        """Large payloads are on disk before we say that we store them."""
        run_start: int | None = None
        for at, is_large in enumerate([*large, False]):
            if is_large and run_start is None:
                run_start = at
            elif not is_large and run_start is not None:
                self._store_run(waiting, append, run_start, at)
                run_start = None

    def _store_run(self, waiting: Waiting, append: Append, start: int, end: int) -> None:
        first, last = append.first + start, append.first + end - 1
        chain = waiting.chain_at(last)
        if chain is None or first < waiting.next:
            return
        if waiting.held < last:
            self._outbox.persist(Held(*waiting.line, first, append.payloads[start:end]))
            if waiting.held == first - 1:
                waiting.held = last
        self._outbox.send_all(self._others, Stored(*waiting.line, first, end - start, chain))

    def _hold(self, waiting: Waiting, count: int, *, sync: bool) -> None:
        for first, payloads in waiting.unheld_runs(count):
            self._outbox.persist(Held(*waiting.line, first, payloads), sync=sync)

    def _say_received(self) -> None:
        """Tell the leader how far we have come; it proposes what enough of us have."""
        if not self._unsaid:
            return
        unsaid, self._unsaid = self._unsaid, {}
        if self.consensus.is_leader or self.rules.voices_to_propose == 1 or not self.takes_part:
            return
        for line, waiting in unsaid.items():
            chain = waiting.chain_at(waiting.direct)
            if chain is not None and waiting.direct >= waiting.next:
                self._outbox.send(self.consensus.leader, Received(*line, waiting.direct, chain))

    def _tell_positions(self, line: Line, first: Sequence, end: Sequence) -> None:
        """A publisher asks again about what was decided: it missed its receipts."""
        for position in self.log.line(line).recent:
            if position.first < end and first < position.first + position.batches:
                self._outbox.send(line.publisher, Ordered(line.topic, line.partition, *position))

    # What waits too long

    def _tell_what_waits(self, now_us: int) -> None:
        for line, waiting in self._active.items():
            if now_us - waiting.told_us >= self._pace.slow_us:
                waiting.told_us = now_us
                chain = waiting.chain_at(waiting.direct)
                if chain is not None and waiting.direct >= waiting.next:
                    self._outbox.send_all(self._others, Received(*line, waiting.direct, chain))

    def _doubt_leader(self, now_us: int) -> None:
        if self.change.is_changing:
            return
        for waiting in self._active.values():
            owed_us = max(waiting.since_us + self._pace.slow_us, self.change.since_us)
            if now_us - owed_us >= self.change.patience_us and self._is_owed(waiting):
                self.change.complain()
                return

    def _is_owed(self, waiting: Waiting) -> bool:
        """Can every correct replica find the next batch of this line authentic and available?"""
        return self._proposable(waiting) >= waiting.next

    def _proposable(self, waiting: Waiting) -> Sequence:
        last = waiting.received_through(self.rules.voices_to_propose)
        return waiting.available_through(last, self._holders(waiting.line))

    def _want_what_others_have(self, waiting: Waiting, received: Received) -> None:
        """So many say they received more than we have that one of them is correct."""
        same = sum(
            (other.through, other.chain) == (received.through, received.chain)
            for other in waiting.heard.values()
        )
        if same >= self.rules.voices_to_believe:
            count = received.through + 1 - waiting.next
            self._want(Span(*waiting.line, waiting.next, count, received.chain))

    def _want(self, span: Span) -> None:
        wanted = self._wanted.get(span.line)
        if wanted is None or wanted[0] != span:
            self._wanted[span.line] = span, self._outbox.now_us
            self._offers.pop(span.line, None)

    def _retrieve(self, now_us: int) -> None:
        for line, (span, since_us) in list(self._wanted.items()):
            self._use_offer(span, is_certain=False)
            waiting = self._line(line)
            needed = self._holders(line)
            is_known = waiting.matches(span) and not waiting.lacks(span, needed)
            if span.end <= waiting.next or (is_known and self._is_authentic(waiting, span)):
                del self._wanted[line]
                self._offers.pop(line, None)
            elif now_us - since_us >= self._pace.retrieve_us:
                again_us = now_us - self._pace.retrieve_us + self._pace.retrieve_again_us
                self._wanted[line] = span, again_us
                first = waiting.first_lacking(span, needed)
                retrieve = Retrieve(*line, first, span.end - first)
                self._outbox.send_all(self._others, retrieve)

    def _use_offer(self, span: Span, *, is_certain: bool) -> None:
        """Replace what we have of a line by what we were given, if enough vouch for that."""
        offer = self._offers.get(span.line)
        waiting = self._line(span.line)
        if offer is None or not (is_certain or self._is_vouched_for(waiting, span)):
            return
        if waiting.replace(span, *offer):
            waiting.direct = max(waiting.direct, span.end - 1)
            self._unsaid[span.line] = waiting
            self._activate(waiting)
            self._has_news = True

    def _is_vouched_for(self, waiting: Waiting, span: Span) -> bool:
        said = sum(
            (received.through, received.chain) == (span.end - 1, span.chain)
            for received in waiting.heard.values()
        )
        return said >= self.rules.voices_to_believe

    def _is_authentic(self, waiting: Waiting, span: Span) -> bool:
        if waiting.direct >= span.end - 1:
            return True
        return waiting.believed_by(span.end - 1, self.me) >= self.rules.voices_to_believe

    def _is_span_acceptable(self, span: Span) -> bool:
        if not self._may_append(span.line):
            self._outbox.report(self.consensus.leader, "bad-proposal", "of a line that may not be")
            return False
        waiting = self._line(span.line)
        if span.first != waiting.next:
            return False
        is_known = waiting.matches(span) and not waiting.lacks(span, self._holders(span.line))
        if is_known and self._is_authentic(waiting, span):
            return True
        self._want(span)
        return False

    def _is_span_available(self, span: Span) -> bool:
        """As acceptable, but that it is authentic is beyond doubt already."""
        waiting = self._line(span.line)
        self._use_offer(span, is_certain=True)
        if waiting.matches(span) and not waiting.lacks(span, self._holders(span.line)):
            return True
        self._want(span)
        return False

    # Commands

    @property
    def _awaits_snapshot(self) -> bool:
        """We know how the cluster is now and not how it began: commands would mislead us."""
        is_late = self.steward is not None and self.steward.control.genesis.revision > 0
        return is_late and self.log.state.slot == 0

    def _carry_out(self, placed: Placed, payloads: list[bytes], time_us: int) -> None:
        assert self.steward is not None
        if self.steward.carry_out(placed.publisher, placed.first, payloads, time_us):
            # A replica that is new here begins with this.
            self.log.want_snapshot()

    def _is_command(self, line: Line) -> bool:
        return line.topic == CONTROL_TOPIC_ID and self.steward is not None

    def _holders(self, line: Line) -> int:
        """How many others that hold a payload are as good as ourselves; of commands, none are."""
        return len(self.members) + 1 if self._is_command(line) else self._holders_needed

    def _commands_at(self, offset: int, count: int) -> list[bytes]:
        """Commands that were carried out, from the disk; fewer if they are not kept any more."""
        payloads: list[bytes] = []
        while len(payloads) < count:
            stretches = self._store.read(_CONTROL, offset + len(payloads), RETRIEVED_BYTES_MAX)
            if not stretches:
                break
            for stretch in stretches:
                payloads += stretch.payloads
        return payloads[:count]

    def pass_over_what_may_not_be(self) -> None:
        """Access was taken from somebody: what waits of them is not proposed any more.

        It is kept, since a slot may be bound to some of it already.
        """
        for line in [line for line in self._active if not self._may_append(line)]:
            del self._active[line]
            self._unsaid.pop(line, None)

    # Those who lag behind

    def _notice(self, sender: NodeId, slot: int) -> None:
        """Somebody takes part in a slot that is far from ours: ask how it came there."""
        now_us = self._outbox.now_us
        if slot > self.consensus.slot and now_us - self._asked_us >= self._pace.behind_us:
            self._asked_us = now_us
            self._say_standing((sender,))

    def _say_standing(self, peers: "tuple[NodeId, ...]") -> None:
        consensus, clock_us = self.consensus, self._wall_us(self._outbox.now_us)
        standing = Standing(
            self.number, consensus.regency, consensus.slot, consensus.is_synced, clock_us
        )
        self._outbox.send_all(peers, standing)

    def _may_tell(self, peer: NodeId, slot: int) -> bool:
        """Go on at once with a peer that has taken what it was told; repeat it now and then only.

        A peer that lies about where it is gets everything once, and then no more than that.
        """
        told_before, told_us = self._told.get(peer, (0, -self._pace.standing_us))
        return slot >= told_before or self._outbox.now_us - told_us >= self._pace.standing_us

    def _tell_decisions(self, peer: NodeId, slot: int) -> None:
        first, _ = self._store.slots(self.number)
        if slot < first and self.transfer is not None:
            self.transfer.offer(peer, slot)
        for decided in self._store.decided(self.number, slot, DECISIONS_BYTES_MAX):
            commands: list[bytes] = []
            for placed in decided.placed:
                if self.steward is not None and placed.topic == CONTROL_TOPIC_ID:
                    commands += self._commands_at(placed.offset, placed.count)
            self._told[peer] = decided.slot + 1, self._outbox.now_us
            digests = b"".join([placed.digests for placed in decided.placed])
            decision = Decision(self.number, decided.slot, decided.value, digests, commands)
            self._outbox.send(peer, decision)

    def _install(self, certified: Certified, state: LogState) -> None:
        """Start over with this state, which is ahead of ours (`transfer.py`)."""
        installed = Installed(self.number, certified.slot, certified.state, self.consensus.regency)
        self._outbox.persist(installed)
        self.log.start_from(state)
        if self.steward is not None and state.control is not None:
            self.steward.start_over(state.control)
        self._snapshot_size = state.size
        self.commands_needed_from = self._snapshot_end = self.log.partition(_CONTROL).end
        self.consensus.jump(state.slot + 1, state.last)
        for line, waiting in list(self._lines.items()):
            now = self.log.line(line)
            if waiting.chain_at(now.next - 1) != now.chain:
                # What we have of it is not what was decided, or ends before that.
                self._forget(line)
            elif now.next > waiting.next:
                waiting.advance(now.next - waiting.next)
                self._after_decision(waiting)
        self.readers.start_over()
        self.filling.start_over()
        self._decisions.clear()
        self._progress_us, self._has_news = self._outbox.now_us, True
        self.change.progressed()
        self._say_standing(self._others)


def _span(waiting: Waiting, last: Sequence, batches_max: int, bytes_max: int) -> Span:
    """The next batches of a line up to `last`, within bounds, and at least one."""
    count = size = 0
    for payload in waiting.payloads[: min(last - waiting.next + 1, batches_max)]:
        size += len(payload) if payload else 0
        if count and size > bytes_max:
            break
        count += 1
    chain = waiting.chains[count - 1]
    return Span(*waiting.line, waiting.next, count, chain)


def _matching(digests: list[Digest], payloads: Iterator[bytes]) -> list[bytes | None]:
    """The payloads that these digests are of, as far as they were given."""
    given = [next(payloads, b"") for _ in digests]
    pairs = zip(digests, given, strict=True)
    return [payload if digest(payload) == content else None for content, payload in pairs]


def _cut(digests: bytes) -> list[Digest]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
