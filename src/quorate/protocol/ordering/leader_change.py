"""Leader change: leave a regency, say what was said in it, and bind the next leader to that (F9).

Source: FIT-Broker 2013, section 4.4.3 and appendices A and B; Sousa and Bessani 2012 (Mod-SMaRt's
synchronisation phase); Cachin, Guerraoui and Rodrigues 2011, algorithms 5.17 and 5.18.
Fault model: as in `rules.py`.

A replica that sees no progress asks for the next regency with STOP. It also joins when so many
ask that one of them is correct (or, where nobody lies, a majority), and n - f STOPs end the
regency: f faulty replicas alone can neither force a change nor prevent one. From then on a
replica votes no more in the old regency. It sends the new leader its signed state: its slot, and
what it has said there and in the slot before.

With enough states the new leader sends them all to all, as SYNC. What follows from them (`choose`
in `rules.py`) every replica computes itself, so that a leader has nothing to claim: it must
propose what some slots are bound to, and is free after those. A SYNC proves itself, and whoever
has it hands it to those who missed it.

A replica may get another key meanwhile. Then a SYNC proves itself to those only who know the key of
that time. Others take it when so many hand them the same one that one of them is correct, and blame
nobody for it.

Appendix B of the thesis elects by counting and asks nobody for states, and so can lose what was
decided. `rules.Unsynchronised` keeps that.

Invariants:
- a correct replica that sent its state into a regency votes in no earlier one;
- whatever was decided in a slot, every later SYNC binds the slot to that, or says that it is known.
"""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from quorate.core.cluster import Cluster
from quorate.core.ids import Digest, NodeId
from quorate.core.limits import FRAME_BYTES_MAX
from quorate.core.ordering import Signed, State, Stop, StopData, Sync
from quorate.crypto.digests import digest
from quorate.protocol.ordering.consensus import Consensus
from quorate.protocol.ordering.pace import PACE, Pace
from quorate.protocol.ordering.rules import Choice, choose, leader_of
from quorate.protocol.ordering.value import value_digest
from quorate.protocol.outbox import Outbox

# The states of those who lie, in one SYNC: values and the states of others have to fit as well.
FALSE_STATES_BYTES_MAX = FRAME_BYTES_MAX * 3 // 4

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State)


class Signer(Protocol):
    """Signatures that other replicas can check. Where nobody lies, they are empty."""

    def sign(self, data: bytes) -> bytes: ...

    def is_signed_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool: ...

    def was_signed_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        """Whether it is signed with a key that this replica had before, as far as we know."""

    def attest(self, data: bytes) -> bytes:
        """A signature over these bytes as they are, for anybody who has our key.

        What they are, and of which cluster, has to be readable from them.
        """

    def is_attested_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool: ...

    def was_attested_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        """The same with a key that this replica had before, as far as we know."""

    def adopt(self, cluster: Cluster) -> None:
        """Replicas may have other keys from now on."""


class LeaderChange:
    """One replica's part in choosing who leads its group."""

    def __init__(
        self, consensus: Consensus, signer: Signer, outbox: Outbox, pace: Pace = PACE
    ) -> None:
        self.patience_us = pace.patience_us
        self._signer = signer
        # Since when the leader of this regency could have proposed something.
        self.since_us = 0
        self._pace = pace
        self._consensus = consensus
        self._outbox = outbox
        # The highest regency that each replica asked for.
        self._stops: dict[NodeId, int] = {}
        self._states: dict[NodeId, StopData] = {}
        self._sync: Sync | None = None
        # What each replica handed us that is signed with keys which we do not know.
        self._handed: dict[NodeId, Digest] = {}
        # Until when the leader of this regency has to show what it may do.
        self._sync_due_us: int | None = None
        self._began_us = 0

    @property
    def asked_for(self) -> int:
        """The regency that we want, if it is later than the one that we are in."""
        return self._stops.get(self._consensus.me, 0)

    @property
    def is_changing(self) -> bool:
        return self.asked_for > self._consensus.regency or not self._consensus.is_synced

    def resume(self) -> None:
        """After a crash: whoever is in a regency has asked for it, and waits for its leader."""
        self._stops[self._consensus.me] = self._consensus.regency

    def keys_changed(self) -> None:
        """States that were signed with former keys make room: they are said again."""
        self._states = {
            sender: data
            for sender, data in self._states.items()
            if self._signer.is_signed_by(sender, data.state, data.signature)
        }

    def progressed(self) -> None:
        """A slot was decided: the leader is as good as any."""
        self.patience_us = self._pace.patience_us

    def complain(self) -> None:
        """What this leader owes does not come: ask for the next one."""
        if self.asked_for <= self._consensus.regency:
            self._ask(self._consensus.regency + 1)

    def tick(self) -> None:
        if self._consensus.is_synced:
            return
        self._synchronise_others()
        if self._sync_due_us is None:
            self._sync_due_us = self._outbox.now_us + self.patience_us
        elif self._outbox.now_us >= self._sync_due_us:
            self._sync_due_us = None
            self.complain()

    def repeat(self, peer: NodeId, regency: int, is_synced: bool) -> None:
        """Help a peer that is in this regency, and say again what it may have missed."""
        consensus = self._consensus
        if self.asked_for > regency:
            self._outbox.send(peer, Stop(consensus.group, self.asked_for))
        behind = regency < consensus.regency or (regency == consensus.regency and not is_synced)
        if behind and self._sync is not None and self._sync.regency == consensus.regency:
            self._outbox.send(peer, self._sync)
        elif not consensus.is_synced and peer == consensus.leader:
            self._send_state()

    # Messages

    def on_stop(self, sender: NodeId, stop: Stop) -> None:
        if stop.regency > self._stops.get(sender, 0):
            self._stops[sender] = stop.regency
            self._count_stops()

    def on_stop_data(self, sender: NodeId, data: StopData) -> None:
        consensus = self._consensus
        is_mine = leader_of(consensus.members, data.regency) == consensus.me
        if not is_mine or data.regency < consensus.regency or not self._is_sound(sender, data):
            return
        if refusal := consensus.refusal(data.values):
            # Others would be bound to it, on the word of this one.
            self._outbox.report(sender, "bad-state", refusal)
            return
        earlier = self._states.get(sender)
        if earlier is None or earlier.regency < data.regency:
            self._states[sender] = data
        self._synchronise_others()

    def on_sync(self, sender: NodeId, sync: Sync) -> None:
        consensus = self._consensus
        if sync.regency < consensus.regency:
            return
        if sync.regency == consensus.regency and consensus.is_synced:
            return
        choice = self._choice(sync)
        if choice is None and (choice := self._choice_of_other_keys(sync)) is not None:
            self._handed[sender] = digest(_encoder.encode(sync))
            alike = list(self._handed.values()).count(self._handed[sender])
            if alike < consensus.rules.voices_to_believe:
                return
        if choice is None:
            self._outbox.report(sender, "bad-sync", f"for regency {sync.regency}")
            return
        if sync.regency > consensus.regency:
            self._begin(sync.regency)
        self._adopt(sync, choice)

    # Steps

    def _ask(self, regency: int) -> None:
        consensus = self._consensus
        self._stops[consensus.me] = regency
        self.patience_us = min(2 * self.patience_us, self._pace.patience_us_max)
        self._outbox.send_all(self._others(), Stop(consensus.group, regency))
        self._count_stops()

    def _count_stops(self) -> None:
        consensus = self._consensus
        joining = self._wanted_by(consensus.rules.stops_to_join)
        if joining > max(consensus.regency, self.asked_for):
            self._ask(joining)
            return
        wanted = self._wanted_by(consensus.rules.states_needed)
        if wanted > consensus.regency:
            self._begin(wanted)
            self._send_state()

    def _wanted_by(self, count: int) -> int:
        """The latest regency that so many replicas ask for."""
        regencies = sorted(self._stops.values(), reverse=True)
        return regencies[count - 1] if len(regencies) >= count else 0

    def _begin(self, regency: int) -> None:
        self._consensus.begin(regency)
        self._stops[self._consensus.me] = max(self.asked_for, regency)
        self._sync = None
        self._began_us = self._outbox.now_us
        self._sync_due_us = self._outbox.now_us + self.patience_us
        self._outbox.wake_at(self._sync_due_us)
        self._states = {
            sender: data for sender, data in self._states.items() if data.regency >= regency
        }

    def _send_state(self) -> None:
        consensus = self._consensus
        promises = [consensus.promises[slot] for slot in sorted(consensus.promises)]
        if any(promise.speaks_in(consensus.regency) for promise in promises):
            # We have restarted in a regency that had begun. Its leader needs no states any more.
            return
        state = _encoder.encode(
            State(
                consensus.group,
                consensus.regency,
                consensus.slot,
                [promise.promised() for promise in promises],
            )
        )
        values = [value for promise in promises for value in promise.values.values()]
        signature = self._signer.sign(state)
        data = StopData(consensus.group, consensus.regency, state, signature, values)
        if consensus.is_leader:
            self.on_stop_data(consensus.me, data)
        else:
            self._outbox.send(consensus.leader, data)

    def _synchronise_others(self) -> None:
        consensus = self._consensus
        if consensus.is_synced or not consensus.is_leader:
            return
        heard = {s: data for s, data in self._states.items() if data.regency == consensus.regency}
        states = [Signed(s, data.state, data.signature) for s, data in heard.items()]
        choice = self._choice(Sync(consensus.group, consensus.regency, states, []))
        if choice is not None and (choice.complete or self._has_waited):
            # No others are needed, and with all that somebody sends us, nobody might read it.
            bound = frozenset(choice.bound.values())
            told = dict.fromkeys(value for data in heard.values() for value in data.values)
            values = [value for value in told if value_digest(value) in bound]
            sync = Sync(consensus.group, consensus.regency, states, values)
            self._outbox.send_all(self._others(), sync)
            self._adopt(sync, choice)

    @property
    def _has_waited(self) -> bool:
        """Have we given everybody some time to tell its state?"""
        return self._outbox.now_us - self._began_us >= self.patience_us // 4

    def _adopt(self, sync: Sync, choice: Choice) -> None:
        self._sync, self._sync_due_us, self._states = sync, None, {}
        self._handed.clear()
        self.since_us = self._outbox.now_us
        self._consensus.synchronise(choice.bound, choice.free_from, sync.values)

    # Checks

    def _choice(self, sync: Sync) -> Choice | None:
        """What follows from the states in a SYNC, if all of them are what they should be."""
        if not all(map(self._is_signed, sync.states)):
            return None
        return self._followed(sync)

    def _choice_of_other_keys(self, sync: Sync) -> Choice | None:
        """What follows from a SYNC if keys that we do not know are those of its time.

        They are former ones; or, if it speaks of slots that we have yet to come to, later ones.
        """
        choice = self._followed(sync)
        if choice is None:
            return None
        slot = max(state.slot for state in self._states_in(sync))
        may_be_later = not self._consensus.rules.liars or slot > self._consensus.slot
        unknown = [signed for signed in sync.states if not self._is_signed(signed)]
        return choice if may_be_later or all(map(self._was_signed, unknown)) else None

    def _followed(self, sync: Sync) -> Choice | None:
        """What follows from the states in a SYNC, whoever signed them."""
        signers = {signed.replica for signed in sync.states}
        states = [*self._states_in(sync)]
        if not len(signers) == len(states) == len(sync.states):
            return None
        return choose(self._consensus.rules, states, len(self._consensus.members))

    def _states_in(self, sync: Sync) -> Iterator[State]:
        for signed in sync.states:
            state = self._read(signed, sync.regency)
            if state is not None:
                yield state

    def _is_sound(self, sender: NodeId, data: StopData) -> bool:
        signed = Signed(sender, data.state, data.signature)
        if self._read(signed, data.regency) is not None and self._is_signed(signed):
            return True
        if not self._was_signed(signed):
            self._outbox.report(sender, "bad-state", f"for regency {data.regency}")
        return False

    def _is_signed(self, signed: Signed) -> bool:
        return self._signer.is_signed_by(signed.replica, signed.state, signed.signature)

    def _was_signed(self, signed: Signed) -> bool:
        return self._signer.was_signed_by(signed.replica, signed.state, signed.signature)

    def _read(self, signed: Signed, regency: int) -> State | None:
        """The state, if it is of a member, for this regency, and can be true."""
        state_bytes_max = FALSE_STATES_BYTES_MAX // max(self._consensus.rules.liars, 1)
        if signed.replica not in self._consensus.members or len(signed.state) > state_bytes_max:
            return None
        try:
            state = _decoder.decode(signed.state)
        except (msgspec.MsgspecError, RecursionError):
            return None
        if (state.group, state.regency) != (self._consensus.group, regency):
            return None
        slots = [promised.slot for promised in state.promised]
        allowed = ([state.slot], [state.slot - 1, state.slot])
        is_early = all(
            regency > promised.accepted_in >= 0
            and all(regency > written > 0 for written in promised.written.values())
            for promised in state.promised
        )
        return state if slots in allowed and is_early else None

    def _others(self) -> list[NodeId]:
        return [member for member in self._consensus.members if member != self._consensus.me]
