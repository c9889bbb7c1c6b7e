"""Consensus on one slot after another: propose, write, accept (F7, F8).

Source: FIT-Broker 2013, section 4.4.2 (VP-Consensus); Sousa and Bessani 2012 (Mod-SMaRt); the
epoch consensus of Cachin, Guerraoui and Rodrigues 2011, algorithms 5.17 and 5.18.
Fault model: n = 3f + 1 replicas or more, at most f Byzantine; or 2f + 1 of which f crash
(`rules.py`). Channels authenticate their sender.

A *regency* is the time of one leader. In it, the leader PROPOSEs a value for the current slot;
a replica that finds the value acceptable WRITEs its digest to all; on a quorum of WRITEs for one
digest it ACCEPTs it, to all; on a quorum of ACCEPTs the slot is decided, and the next one begins.
Where replicas only crash, a leader says one thing to everybody, and there is no WRITE.

The thesis decides on f + 1 STRONG messages, its name for ACCEPT: two leaders could then have two
values decided. Here a quorum is ⌈(n + f + 1) / 2⌉, for both.

Votes carry MACs, as all links do, and no signatures. What a replica votes for is on disk before
the vote leaves, so that it says the same after a crash. Slots of an earlier regency are settled
by `leader_change.py`: it says to what a slot is bound, and from which one on the leader is free.

Invariants:
- in one slot and regency a correct replica WRITEs one digest, and ACCEPTs one;
- a correct leader votes for what it proposes, in the same turn;
- two correct replicas never decide different values for a slot, in whatever regencies;
- a correct replica takes part in a slot only when it has decided the one before;
- what is kept is bounded: votes for three slots and two regencies, one of each replica.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from quorate.core.ids import Digest, NodeId
from quorate.core.ordering import Accept, Promised, Propose, Write
from quorate.protocol.ordering.records import Held, Named, Voted
from quorate.protocol.ordering.rules import Rules, leader_of
from quorate.protocol.ordering.value import value_digest
from quorate.protocol.outbox import Outbox


class Application(Protocol):
    """What is ordered. Consensus itself does not look into values."""

    def next_value(self) -> bytes | None:
        """What to propose as the leader, or None if nothing waits."""

    def is_acceptable(self, value: bytes) -> bool:
        """Could this replica carry it out as far as it knows now?"""

    def is_available(self, value: bytes) -> bool:
        """Is all of it where f replicas cannot take it away? Asked of what others found acceptable
        in an earlier regency."""

    def hold(self, value: bytes) -> None:
        """Have on disk what this replica is to keep of it."""

    def named(self, value: bytes) -> list[Named]:
        """Batches of it that others keep."""

    def can_apply(self, value: bytes) -> bool:
        """Does this replica have what it takes to carry a decision out?"""

    def refusal(self, value: bytes) -> str:
        """Why this value is never decided here; empty if it may be."""

    def apply(self, slot: int, value: bytes) -> None:
        """This value is decided, and it is this slot's turn."""


class Promise:
    """What this replica has said in one slot. It survives a crash."""

    __slots__ = ("accepted", "accepted_in", "slot", "values", "written")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        # The regency and the digest of the last ACCEPT.
        self.accepted_in = 0
        self.accepted: Digest = b""
        # Every digest with the last regency of a WRITE for it.
        self.written: dict[Digest, int] = {}
        self.values: dict[Digest, bytes] = {}

    def speaks_in(self, regency: int) -> bool:
        """Whether anything was said in this slot in a regency."""
        return self.accepted_in == regency or regency in self.written.values()

    def promised(self) -> Promised:
        return Promised(self.slot, self.accepted_in, self.accepted, dict(self.written))

    def restore(self, voted: Voted) -> None:
        self.accepted_in, self.accepted = voted.accepted_in, voted.accepted
        self.written = dict(voted.written)
        self.values |= {value_digest(value): value for value in voted.values}


class Tally:
    """One kind of vote in one slot and regency; a replica has one, and its first one counts."""

    __slots__ = ("by",)

    def __init__(self) -> None:
        self.by: dict[NodeId, Digest] = {}

    def won(self, quorum: int) -> Digest | None:
        """What a quorum voted for, which is more than half."""
        if len(self.by) < quorum:
            return None
        votes = list(self.by.values())
        for digest in votes:
            if votes.count(digest) >= quorum:
                return digest
        return None


class Ballot:
    """What was heard of one slot in one regency."""

    __slots__ = ("accepts", "proposal", "writes")

    def __init__(self) -> None:
        self.proposal: bytes | None = None
        self.writes = Tally()
        self.accepts = Tally()


class Consensus:
    """One replica's part in the slots of one group."""

    def __init__(
        self,
        me: NodeId,
        group: int,
        members: tuple[NodeId, ...],
        rules: Rules,
        application: Application,
        outbox: Outbox,
        *,
        slot: int = 1,
        last: Digest = b"",
    ) -> None:
        self.me, self.group, self.members, self.rules = me, group, members, rules
        self.regency = 1
        self.leader = leader_of(members, 1)
        self.slot = slot
        # From this slot on the leader is free; None until it has shown what it may do.
        self.free_from: int | None = 1
        self.bound: Mapping[int, Digest] = {}
        # Of the current slot and of the one before, which others may still have to decide.
        self.promises = {each: Promise(each) for each in (slot - 1, slot) if each > 0}
        self._decided = {slot - 1: last}
        self._ballots: dict[tuple[int, int], Ballot] = {}
        self._application = application
        self._outbox = outbox
        self._others = tuple(member for member in members if member != me)
        # It is asked for with every vote.
        self._quorum = rules.quorum
        # Whoever is no member follows: it decides what others tell it, and votes for nothing.
        self.takes_part = me in members

    @property
    def is_leader(self) -> bool:
        return self.leader == self.me

    @property
    def is_synced(self) -> bool:
        return self.free_from is not None

    @property
    def is_undecided(self) -> bool:
        """Whether we, or so many that one of them is correct, have voted in the current slot, and
        what a quorum of them decides is not known."""
        ballots = [ballot for (slot, _), ballot in self._ballots.items() if slot == self.slot]
        if any(ballot.accepts.won(self._quorum) is not None for ballot in ballots):
            return False
        promise = self.promises[self.slot]
        voters = {voter for each in ballots for voter in (*each.writes.by, *each.accepts.by)}
        is_ours = bool(promise.accepted_in or promise.written)
        return is_ours or len(voters) >= self.rules.voices_to_believe

    def restore(self, voted: Voted) -> None:
        """A record from before the crash; they come in the order of writing."""
        self.enter(voted.regency)
        if voted.slot in (self.slot - 1, self.slot):
            self._promise(voted.slot).restore(voted)

    def enter(self, regency: int) -> None:
        """We were in this regency before the crash."""
        if regency > self.regency:
            # Whatever its leader showed then, it has to show again.
            self._move_to(regency)

    def resume(self) -> None:
        """All records are restored: what we said before the crash counts again."""
        for slot, promise in self.promises.items():
            for digest, regency in promise.written.items():
                if regency == self.regency:
                    self._ballot(slot).writes.by[self.me] = digest
            if promise.accepted_in and self._is_recent(promise.accepted_in):
                ballot = self._ballot(slot, promise.accepted_in)
                ballot.accepts.by[self.me] = promise.accepted

    def begin(self, regency: int) -> None:
        """Leave the old regency: from now on nothing is said in it any more."""
        self._move_to(regency)
        self.bound = {}
        self._persist(self.promises[self.slot], [])

    def refusal(self, values: Iterable[bytes]) -> str:
        """Why one of these values is never decided in this group; empty if all may be."""
        return next(filter(None, map(self._application.refusal, values)), "")

    def synchronise(self, bound: Mapping[int, Digest], free_from: int, values: list[bytes]) -> None:
        """The leader of this regency has shown what it may do."""
        self.bound, self.free_from = bound, free_from
        for value in values:
            self._learn(value)
        self.reconsider()

    def flush(self) -> None:
        """As the leader, propose what is due: what is bound first, then what waits."""
        if not self.is_leader or self.free_from is None:
            return
        for slot in (self.slot - 1, self.slot):
            if slot not in self.promises or self._ballot(slot).proposal is not None:
                continue
            value = self._due(slot)
            if value is not None and self._stands_by(slot, value):
                self._outbox.send_all(self._others, Propose(self.group, self.regency, slot, value))
                self._propose(slot, value)

    def open_values(self) -> Iterator[bytes]:
        """What slots may be bound to that others or we have yet to decide, as far as we know."""
        for promise in self.promises.values():
            yield from promise.values.values()
        yield from self._proposals()

    # Messages

    def on_propose(self, sender: NodeId, propose: Propose) -> None:
        if sender != leader_of(self.members, propose.regency):
            self._outbox.report(sender, "usurper", f"proposed in regency {propose.regency}")
            return
        if propose.regency == self.regency and self._is_near(propose.slot):
            self._propose(propose.slot, propose.value)

    def on_write(self, sender: NodeId, write: Write) -> None:
        if not self._is_near(write.slot) or not self._is_recent(write.regency):
            return
        ballot = self._ballot(write.slot, write.regency)
        self._vote(sender, ballot.writes, write.digest, write.slot)
        self._accept_if_written(write.slot)

    def on_accept(self, sender: NodeId, accept: Accept) -> None:
        if not self._is_near(accept.slot) or not self._is_recent(accept.regency):
            return
        ballot = self._ballot(accept.slot, accept.regency)
        self._vote(sender, ballot.accepts, accept.digest, accept.slot)
        if accept.slot == self.slot:
            self._decide_what_is_accepted()

    def reconsider(self) -> None:
        """Something has changed that may make a value acceptable, or let it be carried out."""
        for slot in (self.slot - 1, self.slot):
            self._write_if_acceptable(slot)
        self._decide_what_is_accepted()

    def decided_elsewhere(self, value: bytes) -> None:
        """Enough replicas say that the current slot was decided so."""
        if self._application.can_apply(value):
            self._decide(value_digest(value), value)
            self._decide_what_is_accepted()

    def jump(self, slot: int, last: Digest) -> None:
        """All slots before this one are decided, the last of them with this digest.

        What we said in a slot that others may still have to decide stays said.
        """
        self.promises = {at: self.promises.get(at) or Promise(at) for at in (slot - 1, slot)}
        self._decided = {slot - 1: last}
        self._ballots = {key: b for key, b in self._ballots.items() if key[0] >= slot - 1}
        self.slot = slot

    def keep_displaced(self, displaced: list[Held], slot: int | None = None) -> None:
        """Have this on disk, with what we have said in a slot that no snapshot covers."""
        slot = self.slot if slot is None else slot
        self._persist(self.promises.get(slot) or Promise(slot), [], displaced)

    def repeat(self, peer: NodeId, slot: int) -> None:
        """Say again to a peer what we have said in a slot in this regency."""
        promise = self.promises.get(slot)
        if promise is None:
            return
        proposal = self._ballot(slot).proposal
        if self.is_leader and proposal is not None:
            self._outbox.send(peer, Propose(self.group, self.regency, slot, proposal))
        for digest, regency in promise.written.items():
            if regency == self.regency and self.rules.has_write_phase:
                self._outbox.send(peer, Write(self.group, regency, slot, digest))
        if promise.accepted_in:
            self._outbox.send(peer, Accept(self.group, promise.accepted_in, slot, promise.accepted))

    # Steps

    def _propose(self, slot: int, value: bytes) -> None:
        ballot = self._ballot(slot)
        if ballot.proposal is None:
            ballot.proposal = value
            self._write_if_acceptable(slot)
            if slot == self.slot:
                self._decide_what_is_accepted()
        elif ballot.proposal != value:
            self._outbox.report(self.leader, "equivocation", f"two proposals in slot {slot}")

    def _write_if_acceptable(self, slot: int) -> None:
        promise = self.promises.get(slot)
        value = self._ballot(slot).proposal
        if promise is None or value is None or self.free_from is None or not self.takes_part:
            return
        if promise.speaks_in(self.regency):
            return
        digest = value_digest(value)
        if not self._may_write(slot, digest, value):
            return
        promise.values[digest] = value
        self._application.hold(value)
        if not self.rules.has_write_phase:
            self._accept(promise, digest)
            return
        promise.written[digest] = self.regency
        self._persist(promise, [value], named=self._application.named(value))
        self._outbox.send_all(self._others, Write(self.group, self.regency, slot, digest))
        self._ballot(slot).writes.by[self.me] = digest
        self._accept_if_written(slot)

    def _may_write(self, slot: int, digest: Digest, value: bytes) -> bool:
        if slot < self.slot:
            return self._decided.get(slot) == digest
        assert self.free_from is not None
        if slot < self.free_from:
            return self.bound.get(slot) == digest and self._application.is_available(value)
        return self._application.is_acceptable(value)

    def _accept_if_written(self, slot: int) -> None:
        promise = self.promises.get(slot)
        if promise is None or promise.accepted_in == self.regency or self.free_from is None:
            return
        if not self.takes_part:
            return
        digest = self._ballot(slot).writes.won(self._quorum)
        if digest is not None:
            self._accept(promise, digest)

    def _accept(self, promise: Promise, digest: Digest) -> None:
        promise.accepted_in, promise.accepted = self.regency, digest
        known = promise.values.get(digest)
        if known is not None and not self.rules.has_write_phase:
            self._persist(promise, [known], named=self._application.named(known))
        else:
            self._persist(promise, [])
        accept = Accept(self.group, self.regency, promise.slot, digest)
        self._outbox.send_all(self._others, accept)
        self._ballot(promise.slot).accepts.by[self.me] = digest
        if promise.slot == self.slot:
            self._decide_what_is_accepted()

    def _decide_what_is_accepted(self) -> None:
        """Slot after slot, as far as quorums go; what came early may have completed the next."""
        while (found := self._accepted_by_quorum()) is not None:
            digest, value = found
            if not self._application.can_apply(value):
                return
            self._decide(digest, value)

    def _accepted_by_quorum(self) -> tuple[Digest, bytes] | None:
        for (slot, _), ballot in self._ballots.items():
            digest = ballot.accepts.won(self._quorum) if slot == self.slot else None
            value = self._value_of(digest) if digest is not None else None
            if digest is not None and value is not None:
                return digest, value
        return None

    def _decide(self, digest: Digest, value: bytes) -> None:
        slot = self.slot
        self.promises[slot].values[digest] = value
        self._application.apply(slot, value)
        self._decided = {slot: digest}
        self.slot += 1
        self.promises = {slot: self.promises[slot], self.slot: Promise(self.slot)}
        self._ballots = {key: b for key, b in self._ballots.items() if key[0] >= slot}
        self._write_if_acceptable(self.slot)
        self._accept_if_written(self.slot)

    # Parts

    def _move_to(self, regency: int) -> None:
        self.regency, self.leader = regency, leader_of(self.members, regency)
        self.free_from = None

    def _due(self, slot: int) -> bytes | None:
        """What the leader has to propose in a slot, or may."""
        promise = self.promises[slot]
        for digest, regency in promise.written.items():
            if regency == self.regency:
                # Said before a crash: it is said again, and nothing else.
                return promise.values.get(digest)
        if promise.accepted_in == self.regency:
            return promise.values.get(promise.accepted)
        assert self.free_from is not None
        if slot < self.free_from:
            return promise.values.get(self.bound.get(slot, b""))
        return self._application.next_value() if slot == self.slot else None

    def _stands_by(self, slot: int, value: bytes) -> bool:
        """Whether we vote for it together with the proposal, or did so before a crash.

        A leader that does not is free to propose something else when it restarts, and where there
        is no WRITE, two values would be accepted in one regency. What we make ourselves we vote
        for; what a slot is bound to we may have to get first.
        """
        assert self.free_from is not None
        if slot >= self.free_from or self.promises[slot].speaks_in(self.regency):
            return True
        return self._may_write(slot, value_digest(value), value)

    def _vote(self, sender: NodeId, tally: Tally, digest: Digest, slot: int) -> None:
        if tally.by.setdefault(sender, digest) != digest:
            self._outbox.report(sender, "equivocation", f"two votes in slot {slot}")

    def _learn(self, value: bytes) -> None:
        digest = value_digest(value)
        for slot, bound in self.bound.items():
            if bound == digest and slot in self.promises:
                self.promises[slot].values[digest] = value

    def _value_of(self, digest: Digest) -> bytes | None:
        """A value of the current slot, if we have seen it anywhere."""
        value = self.promises[self.slot].values.get(digest)
        if value is not None:
            return value
        for proposal in self._proposals():
            if value_digest(proposal) == digest:
                return proposal
        return None

    def _proposals(self) -> Iterator[bytes]:
        for (slot, _), ballot in self._ballots.items():
            if slot == self.slot and ballot.proposal is not None:
                yield ballot.proposal

    def _ballot(self, slot: int, regency: int | None = None) -> Ballot:
        key = slot, self.regency if regency is None else regency
        ballot = self._ballots.get(key)
        if ballot is None:
            ballot = self._ballots[key] = Ballot()
            self._forget_old_regencies()
        return ballot

    def _forget_old_regencies(self) -> None:
        for key in [key for key in self._ballots if not self._is_recent(key[1])]:
            del self._ballots[key]

    def _promise(self, slot: int) -> Promise:
        return self.promises.setdefault(slot, Promise(slot))

    def _is_near(self, slot: int) -> bool:
        return self.slot - 1 <= slot <= self.slot + 1

    def _is_recent(self, regency: int) -> bool:
        return self.regency - 1 <= regency <= self.regency + 1

    def _persist(
        self,
        promise: Promise,
        values: list[bytes],
        displaced: Sequence[Held] = (),
        named: Sequence[Named] = (),
    ) -> None:
        self._outbox.persist(
            Voted(
                self.group,
                self.regency,
                promise.slot,
                promise.accepted_in,
                promise.accepted,
                dict(promise.written),
                values,
                list(displaced),
                list(named),
            )
        )
