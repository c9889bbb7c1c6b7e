"""Those who lag behind come forward slot by slot, we as well as others.

Now and then, and more often when nothing moves, a replica says where it stands. Whoever is further
tells it the slots that it lacks, with the descriptors of their batches, and repeats what it has
said in the slot that both are in. A replica that sees others far ahead asks in the same way, at
once.

A slot is decided as so many replicas say that one of them is correct; what a value names proves
itself. A replica that follows a group hears of everything in this way. Slots that peers do not keep
any more cannot be told: for those there is `transfer.py`.

What is kept is bounded: of each replica one word per slot, some slots ahead, and so many bytes in
all of those.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.header import DESCRIPTOR_BYTES, are_possible, plain_bytes_of
from quorate.core.ids import NodeId
from quorate.core.ordering import AskPart, Decision, Standing
from quorate.crypto.digests import cut, descriptor
from quorate.protocol.ordering.backlog import Backlog
from quorate.protocol.ordering.clocks import Clocks
from quorate.protocol.ordering.commands import Commands
from quorate.protocol.ordering.consensus import Consensus
from quorate.protocol.ordering.leader_change import LeaderChange
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.pace import Pace
from quorate.protocol.ordering.placement import Roster
from quorate.protocol.ordering.records import Store
from quorate.protocol.ordering.territory import SLOT_BYTES_MAX, TOO_MUCH, Territory
from quorate.protocol.ordering.transfer import Transfer
from quorate.protocol.ordering.value import Value, value_digest
from quorate.protocol.outbox import Outbox

# For what a peer is helped with; it says where it stands once in a turn, if it is correct.
HELP_BYTES = 128 * 1024
# Slots that a replica which lags behind is told at a time, and how far ahead it listens.
DECISIONS_BYTES_MAX = 512 * 1024
DECISIONS_AHEAD_MAX = 256
EARLY_VALUE_BYTES_MAX = 16 * 1024
# Of what one replica says of slots ahead: what a correct one tells at a time, and as much again.
EARLY_BYTES_MAX = 2 * DECISIONS_BYTES_MAX


class CatchingUp:
    """What one replica hears from those ahead of it, and tells those behind."""

    def __init__(
        self,
        roster: Roster,
        consensus: Consensus,
        change: LeaderChange,
        *,
        backlog: Backlog,
        commands: Commands,
        clocks: Clocks,
        transfer: Transfer | None,
        store: Store,
        outbox: Outbox,
        pace: Pace,
        territory: Territory,
        stop: Callable[[str], None],
    ) -> None:
        # What others say was decided, by slot.
        self.said: dict[int, dict[NodeId, Decision]] = {}
        # Who says that the current slot has a value which this group never decides.
        self._refused: tuple[int, dict[NodeId, bytes]] = (0, {})
        self._territory, self._stop = territory, stop
        self._roster, self._others = roster, roster.others
        self._consensus, self._change = consensus, change
        self._backlog, self._commands, self._clocks = backlog, commands, clocks
        self._transfer, self._store = transfer, store
        self._outbox, self._pace = outbox, pace
        # Up to which slot each replica was told decisions, and when.
        self._told: dict[NodeId, tuple[int, int]] = {}
        self._standing_us = 0
        self._asked_us = 0

    # Where we stand

    def tick(self, *, is_stuck: bool) -> None:
        now_us, pace = self._outbox.now_us, self._pace
        if now_us - self._standing_us >= (pace.standing_us if is_stuck else pace.standing_idle_us):
            self._standing_us = now_us
            self.say_standing(self._others)
            if self._commands.await_snapshot:
                self._outbox.send_all(self._others, AskPart(self._roster.number, 0, 0))

    def notice(self, sender: NodeId, slot: int) -> None:
        """Somebody takes part in a slot that is far from ours: ask how it came there."""
        now_us = self._outbox.now_us
        if slot > self._consensus.slot and now_us - self._asked_us >= self._pace.behind_us:
            self._asked_us = now_us
            self.say_standing((sender,))

    def say_standing(self, peers: tuple[NodeId, ...]) -> None:
        consensus = self._consensus
        standing = Standing(
            self._roster.number,
            consensus.regency,
            consensus.slot,
            consensus.is_synced,
            self._clocks.own_us(),
        )
        self._outbox.send_all(peers, standing)

    # Others behind us

    def on_standing(self, sender: NodeId, standing: Standing) -> None:
        """A peer is stuck, or says hello: help it along."""
        consensus = self._consensus
        is_member = sender in self._roster.members
        is_peer = consensus.takes_part and is_member
        if is_member:
            self._clocks.hear(sender, standing.clock_us)
        if not self._outbox.may_answer(sender):
            return
        self._outbox.charge(sender, HELP_BYTES)
        if is_peer:
            self._change.repeat(sender, standing.regency, standing.is_synced)
        if standing.slot < consensus.slot and self._may_tell(sender, standing.slot):
            self._tell_decisions(sender, standing.slot)
        if is_peer and standing.regency == consensus.regency:
            consensus.repeat(sender, standing.slot)
        self.notice(sender, standing.slot - 1)

    def _may_tell(self, peer: NodeId, slot: int) -> bool:
        """Go on at once with a peer that has taken what it was told; repeat it now and then only.

        A peer that lies about where it is gets everything once, and then no more than that.
        """
        told_before, told_us = self._told.get(peer, (0, -self._pace.standing_us))
        return slot >= told_before or self._outbox.now_us - told_us >= self._pace.standing_us

    def _tell_decisions(self, peer: NodeId, slot: int) -> None:
        number = self._roster.number
        first, _ = self._store.slots(number)
        if slot < first and self._transfer is not None:
            self._transfer.offer(peer, slot)
        for decided in self._store.decided(number, slot, DECISIONS_BYTES_MAX):
            commands = self._commands.of(decided)
            self._told[peer] = decided.slot + 1, self._outbox.now_us
            descriptors = b"".join([placed.descriptors for placed in decided.placed])
            decision = Decision(number, decided.slot, decided.value, descriptors, commands)
            self._outbox.send(peer, decision)

    # Others ahead of us

    def on_decision(self, sender: NodeId, decision: Decision) -> None:
        slot = self._consensus.slot
        if self._commands.await_snapshot:
            return
        if not slot <= decision.slot < slot + DECISIONS_AHEAD_MAX:
            return
        if refusal := self._refusal(decision):
            self._refuse(sender, decision, refusal)
            return
        if decision.slot > slot and not self._may_wait(sender, decision):
            return
        self.said.setdefault(decision.slot, {})[sender] = decision
        bound = self._consensus.bound.get(slot)
        if decision.slot == slot and value_digest(decision.value) == bound:
            # That it is the value is beyond doubt, and the descriptors prove themselves.
            self._learn(decision)
        while self._take_decision():
            pass
        if self._consensus.slot > slot and not self.said:
            self.say_standing(self._others)

    def _refusal(self, decision: Decision) -> str:
        """Why no correct replica says this; empty if one may."""
        if refusal := self._territory.refusal(decision.value):
            return refusal
        spans = Value.decode(decision.value).spans
        batches = sum(span.batches for span in spans)
        commands = sum(span.batches for span in spans if span.topic == CONTROL_TOPIC_ID)
        are_too_many = len(decision.commands) > commands
        is_too_large = any(len(each) > INLINE_BYTES_MAX for each in decision.commands)
        if len(decision.descriptors) != batches * DESCRIPTOR_BYTES or are_too_many or is_too_large:
            return f"{batches} batches, with other descriptors or commands"
        descriptors = cut(decision.descriptors)
        if not are_possible(descriptors):
            return "headers of batches that cannot be true"
        return TOO_MUCH if sum(plain_bytes_of(descriptors)) > SLOT_BYTES_MAX else ""

    def _refuse(self, sender: NodeId, decision: Decision, refusal: str) -> None:
        """One voice is reported; of f + 1 that say the same one is correct, and it is so."""
        self._outbox.report(sender, "bad-decision", refusal)
        slot = self._consensus.slot
        if decision.slot != slot or sender not in self._roster.members:
            return
        if self._refused[0] != slot:
            self._refused = slot, {}
        said = self._refused[1]
        said[sender] = decision.value
        if list(said.values()).count(decision.value) >= self._roster.one_correct:
            self._stop(f"slot {slot} was decided with {refusal}")

    def _may_wait(self, sender: NodeId, decision: Decision) -> bool:
        """Whether there is room for what is said of a slot ahead; if not, it is said again."""
        if len(decision.value) > EARLY_VALUE_BYTES_MAX:
            return False
        waiting = [
            _bytes_of(said[sender])
            for slot, said in self.said.items()
            if sender in said and slot not in (self._consensus.slot, decision.slot)
        ]
        return sum(waiting) + _bytes_of(decision) <= EARLY_BYTES_MAX

    def _take_decision(self) -> bool:
        """Decide the current slot if enough replicas say how it was decided."""
        slot = self._consensus.slot
        said = Counter(decision.value for decision in self.said.get(slot, {}).values())
        for value, count in said.items():
            if count >= self._roster.rules.voices_to_believe:
                for decision in list(self.said[slot].values()):
                    # The descriptors are one replica's word each: any that fit will do.
                    if decision.value == value:
                        self._learn(decision)
                self._consensus.decided_elsewhere(value)
                if self._consensus.slot > slot:
                    return True
        return False

    def _learn(self, decision: Decision) -> None:
        """Take the contents of a decided value from whoever told us of it."""
        descriptors, at = cut(decision.descriptors), 0
        commands = iter(decision.commands)
        spans = Value.decode(decision.value).spans
        if not self._territory.knows(span.line.target for span in spans):
            return
        for span in spans:
            waiting = self._backlog.line(span.line)
            contents = descriptors[at : at + span.batches]
            payloads: list[bytes | None] = [None] * span.batches
            if span.topic == CONTROL_TOPIC_ID:
                payloads = _matching(contents, commands)
            if not waiting.matches(span):
                waiting.replace(span, contents, payloads)
            elif span.topic == CONTROL_TOPIC_ID:
                waiting.complete(span.first, contents, payloads)
            self._backlog.charge(waiting)
            at += span.batches


def _bytes_of(decision: Decision) -> int:
    return len(decision.value) + len(decision.descriptors) + sum(map(len, decision.commands))


def _matching(descriptors: list[bytes], payloads: Iterator[bytes]) -> list[bytes | None]:
    """The payloads that these descriptors are of, as far as they were given."""
    given = [next(payloads, b"") for _ in descriptors]
    pairs = zip(descriptors, given, strict=True)
    return [payload if descriptor(payload) == described else None for described, payload in pairs]
