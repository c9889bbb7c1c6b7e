"""One replica's part in one group: requests in, an order out.

`consensus.py` and `leader_change.py` agree on values and know nothing of what is in them. Here is
what a value means, from top to bottom: what publishers and other replicas say of what waits
(`backlog.py`), what is proposed, what is accepted (`retrieval.py` has what we lack for that), what
a decision does (`log.py`), and when the leader is to be doubted.

A replica that was added to the cluster later is no member of any group. It follows the one that
orders commands (`commands.py`), slot by slot, on the words of its members (`catching_up.py`), and
keeps what that orders.

When to doubt the leader. A batch that waits is told to all replicas after a while, so that all
come to have it. From then on the leader owes it an order; when that stays out for too long, it is
time for the next leader. A client that tells too few replicas does not get so far, and neither
does a replica that makes something up. So it takes f + 1 correct replicas with a reason, or one
with a reason and f that lie, to change the leader.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate, islice

from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.errors import RemoteProtocolError
from quorate.core.header import (
    SEAL_BYTES,
    are_possible,
    are_signed,
    is_signed,
    plain_bytes_of,
)
from quorate.core.ids import DIGEST_BYTES, Digest, NodeId, Sequence, member_of, session_of
from quorate.core.limits import SNAPSHOT_EVERY
from quorate.core.ordering import (
    Absent,
    Accept,
    Announce,
    AnnounceSealed,
    Append,
    AskPart,
    Cosign,
    Entries,
    Fill,
    Line,
    OfferSnapshot,
    Ordered,
    Partition,
    Propose,
    Received,
    SnapshotPart,
    Unordered,
    Write,
)
from quorate.crypto.digests import cut, descriptor, digest_of, seal_descriptor
from quorate.protocol.control.replica import Steward
from quorate.protocol.ordering.backlog import Backlog, HasEnded, IsOpen, MayAppend
from quorate.protocol.ordering.catching_up import CatchingUp
from quorate.protocol.ordering.challenges import Challenges
from quorate.protocol.ordering.clocks import Clocks, WallClock
from quorate.protocol.ordering.commands import Commands
from quorate.protocol.ordering.consensus import Consensus
from quorate.protocol.ordering.cosigning import Cosigning, Notary
from quorate.protocol.ordering.filling import FILL_BYTES_MAX, Filling, answer
from quorate.protocol.ordering.leader_change import LeaderChange, Signer
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX, Waiting, inline_max
from quorate.protocol.ordering.log import (
    COMMAND_LINES_PER_MEMBER_MAX,
    LINES_PER_MEMBER_MAX,
    SEAL_EVERY_US,
    Content,
    LogState,
    OrderLog,
)
from quorate.protocol.ordering.pace import PACE, Pace
from quorate.protocol.ordering.placement import GroupKind, Roster
from quorate.protocol.ordering.proving import Proving
from quorate.protocol.ordering.readers import Readers
from quorate.protocol.ordering.receipts import Receipting
from quorate.protocol.ordering.records import (
    Certified,
    Decided,
    Disowned,
    Held,
    Installed,
    Named,
    Placed,
    Record,
    Store,
    Voted,
)
from quorate.protocol.ordering.retrieval import Retrieval
from quorate.protocol.ordering.room import ROOMS, Rooms
from quorate.protocol.ordering.snapshots import Snapshots
from quorate.protocol.ordering.territory import (
    SLOT_BATCHES_MAX,
    SLOT_BYTES_MAX,
    SLOT_COMMANDS_MAX,
    TOO_MUCH,
    Territory,
    TopicOf,
)
from quorate.protocol.ordering.transfer import Transfer
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.ordering.value import ENDED_MAX, SPANS_MAX, Span, Value, value_digest
from quorate.protocol.ordering.walking import Walking
from quorate.protocol.outbox import Outbox


class Group:
    """One replica's part in one group of replicas that order together."""

    def __init__(
        self,
        roster: Roster,
        *,
        signer: Signer,
        notary: Notary | None,
        store: Store,
        may_append: MayAppend,
        is_open: IsOpen,
        topic_of: TopicOf,
        has_ended: HasEnded,
        wall_us: WallClock,
        outbox: Outbox,
        validation: Validation,
        state: LogState | None = None,
        steward: Steward | None = None,
        regency: int = 1,
        signs_above: int = 0,
        pace: Pace = PACE,
        rooms: Rooms = ROOMS,
        snapshot_every: int = SNAPSHOT_EVERY,
        deposits: bool = False,
    ) -> None:
        """`deposits`: large payloads of validated topics go to a store outside."""
        self.members = roster.members
        self.counters: Counter[str] = Counter()
        # Why this group is silent until a restart; empty if it is not.
        self.stopped = ""
        self.territory = Territory(GroupKind(roster.number), topic_of)
        self.roster, self._others = roster, roster.others
        self._store, self._outbox, self._pace = store, outbox, pace
        self._validation = validation
        self._deposits = deposits
        self.log = log = OrderLog(roster.number, state, snapshot_every)
        self.commands = Commands(steward, log, store)
        self.clocks = Clocks(roster.me, roster.one_correct, wall_us, outbox)
        self.consensus = Consensus(
            roster.me, roster.number, roster.members, roster.rules, self, outbox,
            slot=log.state.slot + 1, last=log.state.last,
        )  # fmt: skip
        self.consensus.enter(regency)
        self.change = LeaderChange(self.consensus, signer, outbox, pace)
        self.readers = Readers(log, store, outbox)
        self.filling = Filling(self._others, roster.stores, store, outbox)
        self.receipts = Receipting(validation, signer, roster.one_correct, outbox)
        self.challenges = Challenges(
            roster, validation=validation, signer=signer, store=store, readers=self.readers,
            filling=self.filling, wall_us=wall_us, outbox=outbox,
        )  # fmt: skip
        self.backlog = Backlog(
            roster, log, self.commands, may_append, self.consensus.keep_displaced, outbox,
            is_open=is_open, has_ended=has_ended, named=self._named, receipts=self.receipts,
            rooms=rooms,
            gather_us=pace.gather_us,
        )  # fmt: skip
        self.retrieval = Retrieval(
            roster, log, self.backlog, self.commands, self.readers, outbox, pace
        )
        self._hand_on(notary, signs_above)
        # When a slot was decided last, and how many batches that ordered.
        self._progress_us = 0
        self._last_batches = 0
        # The slot that is being voted on, and since when.
        self._voted_slot, self._voted_since_us = 0, 0

    def _hand_on(self, notary: Notary | None, signs_above: int) -> None:
        """The parts that sign, write down and tell what was decided."""
        roster, log, store, outbox = self.roster, self.log, self._store, self._outbox
        self.cosigning: Cosigning | None = None
        self.transfer: Transfer | None = None
        if notary is not None:
            quorum, believed = roster.rules.quorum, roster.rules.voices_to_believe
            self.cosigning = Cosigning(
                roster.me, roster.number, quorum, notary, outbox, signs_above
            )
            self.transfer = Transfer(
                roster.number, roster.members, self._others, quorum=quorum,
                offers_needed=believed, notary=notary, cosigning=self.cosigning, store=store,
                outbox=outbox, undecided=lambda: self.consensus.slot, may_install=self._may_install,
                install=self._install,
            )  # fmt: skip
            self.transfer.resume(log, signs=roster.takes_part)
        self.proving = Proving(roster.number, log, store, self.cosigning, outbox)
        self.snapshots = Snapshots(
            roster, log, self.commands, self.consensus, self.backlog, self.cosigning,
            self.transfer, outbox,
        )  # fmt: skip
        self.walking = Walking(log, store, self.cosigning, outbox)
        self.catching_up = CatchingUp(
            roster, self.consensus, self.change, backlog=self.backlog, commands=self.commands,
            clocks=self.clocks, transfer=self.transfer, store=store, outbox=outbox,
            pace=self._pace, territory=self.territory, stop=self.stop,
        )  # fmt: skip

    # Recovery

    def restore(self, records: list[Record]) -> None:
        """What the disk has from before, behind the snapshot, in the order of writing."""
        self._replay_decided(records)
        if self.stopped:
            return
        if self.log.state.slot >= self.consensus.slot:
            self.consensus.jump(self.log.state.slot + 1, self.log.state.last)
        for record in records:
            if isinstance(record, Voted) and record.group == self.roster.number:
                self.consensus.restore(record)
                self.backlog.restore_voted(record)
            elif isinstance(record, Held):
                self.backlog.restore(record)
        self.log.forgotten.clear()
        self._note_ended()
        self.backlog.drop_ended()
        self.consensus.resume()
        self.change.resume()
        for partition, offset, batches in self._store.absent():
            if partition in self.log.state.partitions:
                self.filling.miss(partition, offset, self._store.behind(partition, offset, batches))

    def _replay_decided(self, records: list[Record]) -> None:
        if refusal := self.territory.refusal_of_state(self.log.state):
            self._stop_at_disk(f"its state on disk has {refusal}", self.log.state.partitions)
        for record in records:
            if not isinstance(record, Decided) or record.group != self.roster.number:
                continue
            if refusal := self.territory.refusal(record.value):
                targets = [Partition(each.topic, each.partition) for each in record.placed]
                self._stop_at_disk(f"slot {record.slot} on disk has {refusal}", targets)
            if self.stopped:
                return
            self._replay(record)

    def _replay(self, decided: Decided) -> None:
        value = Value.decode(decided.value)
        contents = [Content(cut(placed.descriptors), placed.lacking) for placed in decided.placed]
        self.log.apply(decided.slot, value_digest(decided.value), decided.value, value, contents)
        self.commands.replay(decided)
        # It was signed then, if it was due.
        self.log.is_seal_due()

    def stop(self, reason: str) -> None:
        """Be silent from now on: what was decided cannot be applied. A restart tries again."""
        if not self.stopped:
            self.stopped = reason
            self._outbox.report(self.roster.me, "stopped", reason)

    def _stop_at_disk(self, reason: str, partitions: Iterable[Partition]) -> None:
        """What the disk has of this group cannot be, and does not stand in the way of others."""
        self.stop(reason)
        for each in self.territory.foreign(partitions):
            self._outbox.persist(Disowned(self.roster.number, *each), sync=False)

    def _may_install(self, sender: NodeId, state: LogState) -> bool:
        """Whether our log may come to this state, as far as the control log has told us."""
        topic_of = self.commands.topic_of_in(state.control)
        if refusal := self.territory.refusal_of_state(state, topic_of):
            self._outbox.report(sender, "forgery", f"a state with {refusal}")
            return False
        return self.territory.knows(state.partitions, topic_of)

    def _install(self, certified: Certified, state: LogState) -> None:
        """Start over with this state, which is ahead of ours (`transfer.py`)."""
        regency = self.consensus.regency
        assert self.cosigning is not None
        self.cosigning.start_over(self.log.tree.size)
        installed = Installed(
            certified.group, certified.slot, certified.state, regency, self.cosigning.signs_above
        )
        if displaced := self.backlog.displaced():
            self.consensus.keep_displaced(displaced, certified.slot + 1)
        self._outbox.persist(installed)
        self.log.start_from(state)
        self.commands.start_over(state.control)
        self._note_ended()
        self.snapshots.start_over()
        self.consensus.jump(state.slot + 1, state.last)
        self.backlog.start_over()
        self.backlog.drop_ended()
        self.readers.start_over()
        self.filling.start_over()
        self.catching_up.said.clear()
        self._progress_us = self._outbox.now_us
        self.change.progressed()
        self.catching_up.say_standing(self._others)

    def end_sessions(self, nodes: Iterable[NodeId]) -> None:
        """These have ended for good: the next value says so, and their lines are forgotten."""
        self.log.ending.update((node, None) for node in nodes if node in self.log.sessions)
        self.backlog.has_news = True

    def _note_ended(self) -> None:
        self.end_sessions([node for node in self.log.sessions if self.backlog.has_ended(node)])

    def keys_changed(self) -> None:
        """Replicas may have other keys; what they signed with the former ones counts no more."""
        self.change.keys_changed()
        if self.transfer is not None:
            self.transfer.keys_changed()

    # Machine

    def tick(self) -> None:
        now_us = self._outbox.now_us
        self.retrieval.tick()
        if self.consensus.takes_part:
            self.change.tick()
            self._tell_what_waits(now_us)
            self._doubt_leader(now_us)
            if now_us - self._progress_us >= SEAL_EVERY_US:
                self.snapshots.seal_last()
                if self.cosigning is not None:
                    self.cosigning.ask_again(self._others)
        self.filling.tick()
        self.challenges.tick()
        if self.transfer is not None:
            self.transfer.tick()
        is_busy = bool(self.backlog.active) or self.change.is_changing
        is_still = now_us - self._progress_us >= self._pace.standing_us
        self.catching_up.tick(is_stuck=is_busy and is_still)
        self.backlog.has_news = True

    def flush(self) -> bool:
        """Do what this turn calls for. True if some of it is left for the next turn."""
        self.backlog.tell_stored()
        self._say_received()
        if self.backlog.has_news:
            self.backlog.has_news = False
            self.consensus.reconsider()
        self.consensus.flush()
        return self.readers.flush()

    # Requests

    def on_append(self, sender: NodeId, append: Append) -> None:
        line = Line(sender, append.topic, append.partition)
        inline_bytes = inline_max(append.topic)
        large = [len(payload) > inline_bytes for payload in append.payloads]
        if append.topic == CONTROL_TOPIC_ID and any(large):
            self._outbox.report(sender, "rejected", "a command that is too large")
            return
        descriptors = [*map(descriptor, append.payloads)]
        if append.digests and append.digests != [*map(digest_of, descriptors)]:
            self._outbox.report(sender, "altered", f"batches from {append.first} on")
            return
        if self._refuses(line, append.first) or not self._are_valid(line, append, descriptors):
            return
        self.counters["batches_in"] += len(descriptors)
        if self._deposits and any(large) and self._validation.covers(append.topic):
            self._deposit(line, append, descriptors)
            return
        waiting = self.backlog.take(line, append.first, descriptors, append.payloads)
        if waiting is None:
            self._note_contradiction(line, append.first, append.payloads)
        elif any(large):
            self.backlog.keep_and_tell(waiting, append, large)

    def _deposit(self, line: Line, append: Append, descriptors: list[bytes]) -> None:
        """Of large batches we know no more than descriptors, until their payloads are outside."""
        payloads = [each if len(each) <= INLINE_BYTES_MAX else None for each in append.payloads]
        waiting = self.backlog.take(line, append.first, descriptors, payloads)
        if waiting is None:
            self._note_contradiction(line, append.first, append.payloads)
        else:
            self.backlog.deposit(waiting, append, descriptors)

    def on_announce(self, sender: NodeId, announce: Announce) -> None:
        line = Line(sender, announce.topic, announce.partition)
        if announce.topic == CONTROL_TOPIC_ID:
            self._outbox.report(sender, "rejected", "a command without its payload")
        elif any(map(is_signed, announce.descriptors)):
            self._outbox.report(sender, "bad-sid", f"no seals of batches from {announce.first} on")
        elif not self._refuses(line, announce.first) and self._are_valid(
            line, announce, announce.descriptors
        ):
            unknown = [None] * len(announce.descriptors)
            self.backlog.take(line, announce.first, announce.descriptors, unknown)

    def on_announce_sealed(self, sender: NodeId, announce: AnnounceSealed) -> None:
        line = Line(sender, announce.topic, announce.partition)
        descriptors = [*map(seal_descriptor, announce.seals)]
        if not self._validation.covers(announce.topic):
            self._outbox.report(sender, "rejected", "seals, on a topic that is not validated")
        elif not self._refuses(line, announce.first) and self._are_valid(
            line, announce, descriptors
        ):
            unknown = [None] * len(descriptors)
            if self.backlog.take(line, announce.first, descriptors, unknown) is None:
                self._note_contradiction(line, announce.first, announce.seals)

    def _refuses(self, line: Line, first: Sequence) -> bool:
        """Whether nothing of this line will be ordered; its publisher is told why."""
        log = self.log
        if self.backlog.has_ended(line.publisher):
            self.refuse_ended(line, first)
            return True
        if line in log.state.lines:
            return False
        if log.beyond([line], log.ending):
            streams = f"{LINES_PER_MEMBER_MAX} streams"
            if self.commands.are_on(line):
                streams = f"{COMMAND_LINES_PER_MEMBER_MAX} sessions that give commands"
            self._tell_why(
                line, first,
                f"client {member_of(line.publisher)} has {streams} here already; one of its "
                f"sessions has to end before another stream can begin",
            )  # fmt: skip
            return True
        if first > self.backlog.line(line).end:
            # Or we lag behind: so it is taken all the same.
            self.refuse_ended(line, first)
        return False

    def refuse_ended(self, line: Line, first: Sequence) -> None:
        """Nothing is known of what this session published before."""
        node = line.publisher
        self._tell_why(
            line, first,
            f"session {session_of(node)} of client {member_of(node)} has ended, and what it "
            f"published before is not remembered: begin a new session",
        )  # fmt: skip

    def _tell_why(self, line: Line, first: Sequence, sentence: str) -> None:
        if self._outbox.may_answer(line.publisher):
            unordered = Unordered(line.topic, line.partition, first, sentence)
            self._outbox.answer(line.publisher, unordered, len(sentence))

    def _note_contradiction(self, line: Line, first: Sequence, given: list[bytes]) -> None:
        """Of signed batches we may have both seals, if we have what came before."""
        waiting = self.backlog.line(line)
        for sequence in range(max(first, waiting.next), min(first + len(given), waiting.end)):
            mine = waiting.payloads[sequence - waiting.next] or b""
            one, other = mine[:SEAL_BYTES], given[sequence - first][:SEAL_BYTES]
            if one != other and is_signed(one) and is_signed(other):
                self.challenges.on_contradiction(line, sequence, one, other)
                return

    def _are_valid(
        self, line: Line, message: Append | Announce | AnnounceSealed, descriptors: list[bytes]
    ) -> bool:
        """Whether headers may be true, and the publisher signed what says that it is signed.

        What we know, we looked at.
        """
        first = message.first
        known = self.backlog.line(line).known_of(first, descriptors)
        given = message.payloads if isinstance(message, Append) else descriptors
        if not are_possible(descriptors[known:]):
            self._outbox.report(line.publisher, "bad-batch", f"a header in the run at {first}")
            return False
        if not are_signed(descriptors[known:]):
            return True
        try:
            if isinstance(message, AnnounceSealed):
                self._validation.check_seals(line, first + known, message.seals[known:])
            else:
                self._validation.check_batches(
                    line, first + known, given[known:], descriptors[known:]
                )
        except RemoteProtocolError as error:
            self._outbox.report(line.publisher, "bad-sid", str(error))
            return False
        return True

    def _say_received(self) -> None:
        """Tell the leader how far we have come; it proposes what enough of us have."""
        unsaid = self.backlog.unsaid
        if not unsaid:
            return
        self.backlog.unsaid = {}
        consensus, rules = self.consensus, self.roster.rules
        if consensus.is_leader or not consensus.takes_part:
            return
        for line, waiting in unsaid.items():
            if rules.voices_to_propose == 1:
                # Its publisher gave it to the leader, too.
                continue
            chain = waiting.chain_at(waiting.direct)
            if chain is not None and waiting.direct >= waiting.next:
                self._outbox.send(consensus.leader, Received(*line, waiting.direct, chain))

    def on_received(self, sender: NodeId, received: Received) -> None:
        line = Line(received.publisher, received.topic, received.partition)
        waiting = self.backlog.line_heard_of(sender, line)
        if waiting is None:
            return
        if received.through < waiting.next:
            # Its last word counts, and it may have forgotten what it said before a restart.
            waiting.heard.pop(sender, None)
            return
        waiting.heard[sender] = received
        self.backlog.has_news = True
        self.retrieval.on_received(sender, waiting, received)
        if sender == self.consensus.leader:
            self._confirm_less(sender, waiting, received)

    def _confirm_less(self, leader: NodeId, waiting: Waiting, received: Received) -> None:
        """The leader cannot tell from what we say of more that we have as much as it has."""
        is_less = waiting.next <= received.through < waiting.direct
        if is_less and waiting.chain_at(received.through) == received.chain:
            self._outbox.send(leader, received)

    # Agreement

    def on_propose(self, sender: NodeId, propose: Propose) -> None:
        self.catching_up.notice(sender, propose.slot)
        self.consensus.on_propose(sender, propose)

    def on_write(self, sender: NodeId, write: Write) -> None:
        self.catching_up.notice(sender, write.slot)
        self.consensus.on_write(sender, write)

    def on_accept(self, sender: NodeId, accept: Accept) -> None:
        self.catching_up.notice(sender, accept.slot)
        self.consensus.on_accept(sender, accept)

    # Application (see `consensus.py`)

    def next_value(self) -> bytes | None:
        """As much as waits and may be proposed, fair to all lines."""
        spans: list[Span] = []
        backlog = self.backlog
        claimed = [
            (waiting, last)
            for waiting in backlog.active.values()
            if (last := backlog.claimed(waiting)) >= waiting.next
        ]
        if not claimed or self._is_gathering(claimed[:SPANS_MAX]):
            return None
        # Receipts are looked at now that it matters.
        found = ((waiting, backlog.proposable(waiting)) for waiting, _ in claimed)
        ready = [*islice((each for each in found if each[1] >= each[0].next), SPANS_MAX)]
        ended = tuple(islice(self.log.ending, ENDED_MAX))
        beyond = {*self.log.beyond((waiting.line for waiting, _ in ready), ended)}
        ready = [each for each in ready if each[0].line not in beyond]
        if not ready:
            return None
        batches, share = max(1, SLOT_BATCHES_MAX // len(ready)), SLOT_BYTES_MAX // len(ready)
        room_bytes, commands = SLOT_BYTES_MAX, SLOT_COMMANDS_MAX
        for waiting, last in ready:
            are_commands = self.commands.are_on(waiting.line)
            count_max = min(batches, commands) if are_commands else batches
            count, size = _fitting(waiting, last, count_max, share)
            if not count or size > room_bytes:
                continue
            room_bytes -= size
            commands -= count if are_commands else 0
            spans.append(Span(*waiting.line, waiting.next, count, waiting.chains[count - 1]))
            # Whoever was served goes to the end.
            backlog.active[waiting.line] = backlog.active.pop(waiting.line)
        return Value(self.clocks.next_us(self.log.state.time_us), tuple(spans), ended).encode()

    def _is_gathering(self, ready: list[tuple[Waiting, Sequence]]) -> bool:
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
        if not self.clocks.allow(decoded.time_us, self.log.state.time_us):
            self._outbox.report(self.consensus.leader, "bad-clock", f"time {decoded.time_us}")
            return False
        if self._is_refused(value):
            return False
        if not self._may_end(decoded.ended):
            return False
        if self.log.beyond((span.line for span in decoded.spans), decoded.ended):
            self._outbox.report(self.consensus.leader, "bad-proposal", "of more lines than may be")
            return False
        # Each span is looked at, so that all that is missing is asked for.
        acceptable = [self._is_span_acceptable(span) for span in decoded.spans]
        if not all(acceptable):
            return False
        if self._is_too_much(decoded.spans):
            self._outbox.report(self.consensus.leader, "bad-proposal", TOO_MUCH)
            return False
        return True

    def _is_refused(self, value: bytes) -> bool:
        refusal = self.territory.refusal(value)
        if refusal:
            self._outbox.report(self.consensus.leader, "bad-proposal", refusal)
        return bool(refusal)

    def _is_too_much(self, spans: Iterable[Span]) -> bool:
        """Whether these batches, all of which we know, have more bytes than a slot orders."""
        lines = ((self.backlog.line(span.line), span.batches) for span in spans)
        sizes = (plain_bytes_of(waiting.descriptors[:count]) for waiting, count in lines)
        return sum(map(sum, sizes)) > SLOT_BYTES_MAX

    def _is_known(self, spans: Iterable[Span]) -> bool:
        return self.territory.knows(span.line.target for span in spans)

    def _may_end(self, ended: tuple[NodeId, ...]) -> bool:
        """Whether all these sessions have ended, as far as we know of commands."""
        log, has_ended = self.log, self.backlog.has_ended
        return all(node in log.sessions and has_ended(node) for node in ended)

    def _is_span_acceptable(self, span: Span) -> bool:
        has_ended = self.backlog.has_ended(span.publisher)
        if self.backlog.may_append(span.line) and self.backlog.is_open(span.line) and not has_ended:
            return self.retrieval.is_acceptable(span)
        if self._is_known([span]):
            self._outbox.report(self.consensus.leader, "bad-proposal", "of a line that may not be")
        return False

    def is_available(self, value: bytes) -> bool:
        if self._is_refused(value):
            return False
        spans = Value.decode(value).spans
        if not self._is_known(spans):
            return False
        available = [self.retrieval.is_available(span) for span in spans]
        return all(available) and not self._is_too_much(spans)

    def can_apply(self, value: bytes) -> bool:
        if refusal := self.territory.refusal(value):
            self.stop(f"slot {self.consensus.slot} was decided with {refusal}")
            return False
        spans = Value.decode(value).spans
        if not self._is_known(spans):
            return False
        for span in spans:
            if not self.retrieval.is_applicable(span):
                self.retrieval.want(span)
                self.retrieval.use_offer(span, is_certain=True)
        if not all(self.retrieval.is_applicable(span) for span in spans):
            return False
        if self._is_too_much(spans):
            self.stop(f"slot {self.consensus.slot} was decided with {TOO_MUCH}")
            return False
        return True

    def hold(self, value: bytes) -> None:
        for span in Value.decode(value).spans:
            waiting = self.backlog.line(span.line)
            # What a slot was bound to before we came to it, others hold.
            if waiting.matches(span):
                self.backlog.hold(waiting, span.batches, sync=True)

    def named(self, value: bytes) -> list[Named]:
        spans = Value.decode(value).spans
        lines = [(span, self.backlog.line(span.line)) for span in spans]
        return [
            Named(*span.line, span.first, b"".join(waiting.descriptors[: span.batches]))
            for span, waiting in lines
            if waiting.matches(span) and None in waiting.payloads[: span.batches]
        ]

    def refusal(self, value: bytes) -> str:
        return self.territory.refusal(value)

    def apply(self, slot: int, value: bytes) -> None:
        try:
            self._apply(slot, value)
        except Exception as error:
            # Some of it may have taken effect, and nothing must take effect twice.
            self.stop(f"slot {slot} cannot be applied: {error!r}")
            raise

    def _apply(self, slot: int, value: bytes) -> None:
        decoded = Value.decode(value)
        lines = [self.backlog.line(span.line) for span in decoded.spans]
        contents = []
        for span, waiting in zip(decoded.spans, lines, strict=True):
            self.backlog.hold(waiting, span.batches, sync=False)
            contents.append(self.receipts.content(waiting, span.batches))
        targets = [waiting.line.target for waiting in lines]
        chains = {target: self.log.partition(target).chain for target in targets}
        decided = self.log.apply(slot, value_digest(value), value, decoded, contents)
        self._outbox.persist(decided, sync=False)
        for placed, waiting, target in zip(decided.placed, lines, targets, strict=True):
            self._carry_out(placed, waiting, decoded.time_us, chains[target])
            chains[target] = placed.chains[-DIGEST_BYTES:]
        self.snapshots.after_slot()
        self._progress_us = self._outbox.now_us
        self._last_batches = sum(span.batches for span in decoded.spans)
        self.change.progressed()
        self.catching_up.said.pop(slot, None)
        while self.log.forgotten:
            self.backlog.drop(self.log.forgotten.pop())
        if any(map(self.commands.are_on, (span.line for span in decoded.spans))):
            self.backlog.drop_ended()

    def _named(self) -> list[Line]:
        """Lines named by values that an open slot may be bound to."""
        named: list[Line] = []
        for value in self.consensus.open_values():
            # A leader may propose anything.
            with suppress(RemoteProtocolError):
                named += [span.line for span in Value.decode(value).spans]
        return named

    def _carry_out(self, placed: Placed, waiting: Waiting, time_us: int, before: Digest) -> None:
        """The next batches of a line have their place: all who wait for that hear of it."""
        payloads = waiting.payloads[: placed.count]
        self.readers.placed(placed, time_us, before, payloads)
        if self.commands.are_on(waiting.line):
            self.commands.carry_out(placed, payloads, time_us)
        if None in payloads:
            self._note_missing(placed, waiting, payloads)
        self.backlog.advance(waiting, placed.count)
        self._outbox.send(
            placed.publisher,
            Ordered(
                placed.topic, placed.partition, placed.first, placed.count, placed.offset, time_us
            ),
        )
        self.counters["batches_ordered"] += placed.count

    def _note_missing(self, placed: Placed, waiting: Waiting, payloads: list[bytes | None]) -> None:
        """What should be here and is not is to be had from others."""
        partition = Partition(placed.topic, placed.partition)
        is_store, offsets = self.roster.stores(partition), placed.offsets
        for at, payload in enumerate(payloads):
            # What was announced to us as stored elsewhere is large, and not for everybody.
            is_elsewhere = len(waiting.holders[at]) >= self.roster.one_correct
            if payload is None and (is_store or not is_elsewhere):
                self.filling.miss(partition, offsets[at], offsets[at + 1])

    # What waits too long

    def _tell_what_waits(self, now_us: int) -> None:
        for line, waiting in self.backlog.active.items():
            if now_us - waiting.told_us >= self._pace.slow_us:
                waiting.told_us = now_us
                chain = waiting.chain_at(waiting.direct)
                if chain is not None and waiting.direct >= waiting.next:
                    self._outbox.send_all(self._others, Received(*line, waiting.direct, chain))

    def _doubt_leader(self, now_us: int) -> None:
        if self.change.is_changing:
            return
        if self._is_slot_late(now_us):
            self.change.complain()
            return
        for waiting in self.backlog.active.values():
            owed_us = max(waiting.since_us + self._pace.slow_us, self.change.since_us)
            is_late = now_us - owed_us >= self.change.patience_us
            if is_late and self.backlog.proposable(waiting) >= waiting.next:
                self.change.complain()
                return

    def _is_slot_late(self, now_us: int) -> bool:
        """Whether there were votes, and no decision follows, though nothing may be waiting here.

        Those who had what a slot orders may be gone or have decided it, and those who are left have
        too few votes to do so, and nothing that they could propose. A next leader lets them vote.
        """
        slot = self.consensus.slot if self.consensus.is_undecided else 0
        if slot != self._voted_slot:
            self._voted_slot, self._voted_since_us = slot, now_us
        owed_us = max(self._voted_since_us + self._pace.slow_us, self.change.since_us)
        return slot > 0 and now_us - owed_us >= self.change.patience_us

    # The head of the log, the state as a whole, payloads that were missed

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
        if not self._outbox.may_answer(sender):
            return
        partition = Partition(fill.topic, fill.partition)
        stretches = self.readers.read(partition, fill.offset, FILL_BYTES_MAX)
        if not stretches and self._store.is_fetching(partition, fill.offset):
            # Whoever asks again finds it here.
            return
        read_bytes = sum(len(payload) for each in stretches for payload in each.payloads)
        self._outbox.answer(sender, answer(fill, stretches), read_bytes)

    def on_entries(self, sender: NodeId, entries: Entries) -> None:
        self.filling.on_entries(sender, entries)
        self.challenges.on_entries(sender, entries)

    def on_absent(self, sender: NodeId, absent: Absent) -> None:
        if self.filling.on_absent(sender, absent):
            partition = Partition(absent.topic, absent.partition)
            self.challenges.doubt(sender, partition, absent.offset)


def _fitting(waiting: Waiting, last: Sequence, batches_max: int, bytes_max: int) -> tuple[int, int]:
    """How many of the next batches of a line, up to `last`, are within bounds, and their bytes.

    One may be larger than that.
    """
    next_ones = waiting.descriptors[: min(last - waiting.next + 1, batches_max)]
    sizes = list(accumulate(plain_bytes_of(next_ones)))
    count = max(1, bisect_right(sizes, bytes_max))
    return (count, sizes[count - 1]) if sizes else (0, 0)
