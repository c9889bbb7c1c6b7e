"""State transfer: a replica that was away for too long starts over at a snapshot (F10).

Source: DESIGN section 4 (the state is checked against a checkpoint that a quorum signed, so that
one sender is enough, honest or not); the stable checkpoints of Castro and Liskov 1999, section 4.3;
C2SP tlog-checkpoint, which allows for lines behind the root.

All that the decided slots add up to is one `LogState`, the same bytes at every correct replica.
After every slot at which a snapshot is due, replicas sign these bytes together with the head of
the tree: the head carries the line `state SLOT BYTES DIGEST`. A quorum of signatures makes a
*certificate*. Whoever has the certificate can be given the state by anybody.

A replica that asks for a slot which its peers no longer keep is offered their certificates. It
takes the state from one peer, part by part, and compares the digest of the whole. When that is
wrong, or a part stays out, it begins again with another peer. Nobody waits for it meanwhile.

Rules:
- starting over drops what a replica has of its partitions. So it takes as many offers as make sure
  that one is from a correct replica, which offers only what it cannot tell slot by slot;
- offers count for the slot that we wait for: whoever gets on by itself needs none;
- all parts come from one peer, so that a wrong digest is the fault of exactly that one;
- a signature that was lost on the way is said again, and whoever has the certificate hands it on;
- when a replica has got another key, a certificate with its former one is signed again. Until then
  it counts for nobody who knows, and is held against nobody.

Invariants:
- only a state with the digest that a quorum signed is installed, and only one that is ahead;
- the state of a certificate that was made here is on disk, and can be served after a restart;
- what is kept is bounded: one transfer at a time, states of limited size, one offer per peer, and
  two states for those who ask for them.
"""

import base64
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from quorate.core.errors import QuorateError, RemoteProtocolError
from quorate.core.ids import Digest, NodeId
from quorate.core.ordering import PART_BYTES_MAX, AskPart, Cosign, OfferSnapshot, SnapshotPart
from quorate.crypto.checkpoint import OtherKeysError, head_of
from quorate.crypto.checkpoint import read as read_checkpoint
from quorate.crypto.digests import digest
from quorate.protocol.ordering.cosigning import Cosigning, Notary
from quorate.protocol.ordering.log import LogState, OrderLog
from quorate.protocol.ordering.records import Certified, Snapshot, Store
from quorate.protocol.outbox import Outbox

# A larger state is not named in its head, by anybody: nobody could take it.
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
# A peer that does not send the next part for so long is replaced.
PART_US_MAX = 1_000_000
# How often a signature that others may have missed is said again, and an offer repeated.
REPEAT_US = 1_000_000
OFFER_US = 100_000
# States are in memory while somebody asks for their parts.
SERVED_MAX = 2
SERVED_US = 10_000_000

_LINE = re.compile(r"state ([1-9][0-9]{0,18}) ([1-9][0-9]{0,18}) ([A-Za-z0-9+/]{43}=)")


class Certificate(NamedTuple):
    """What a quorum signed: after this slot, the state has this digest."""

    slot: int
    state_bytes: int
    state_digest: Digest
    # Of the tree after that slot.
    size: int
    root: bytes
    checkpoint: str

    @staticmethod
    def read(text: str, notary: Notary, members: tuple[NodeId, ...], quorum: int) -> "Certificate":
        """The certificate in this text, or an error that says what is wrong with it."""
        cosigners = [notary.cosigners[member] for member in members]
        head = read_checkpoint(text, cosigners, quorum).head
        if head.origin != notary.origin:
            raise RemoteProtocolError(f"a checkpoint of {head.origin!r}, not of {notary.origin!r}")
        found = [match for line in head.extensions if (match := _LINE.fullmatch(line))]
        if len(found) != 1:
            raise RemoteProtocolError(f"a checkpoint that names {len(found)} states")
        slot, state_bytes, encoded = found[0].groups()
        state_digest = base64.b64decode(encoded)
        return Certificate(int(slot), int(state_bytes), state_digest, head.size, head.root, text)


def state_line(slot: int, state: bytes) -> str:
    """What the head of the tree says about the state after a slot."""
    return f"state {slot} {len(state)} {base64.b64encode(digest(state)).decode()}"


class Fetch:
    """The transfer that is under way."""

    __slots__ = ("asked_us", "certificate", "peer", "state")

    def __init__(self, peer: NodeId, certificate: Certificate) -> None:
        self.peer = peer
        self.certificate = certificate
        self.state = bytearray()
        self.asked_us = 0


class Served:
    """A state that somebody asks for."""

    __slots__ = ("asked_us", "state")

    def __init__(self, state: bytes) -> None:
        self.state = state
        self.asked_us = 0


class Transfer:
    """One replica's part in handing on and taking over the state of its group."""

    def __init__(
        self,
        group: int,
        members: tuple[NodeId, ...],
        others: tuple[NodeId, ...],
        *,
        quorum: int,
        offers_needed: int,
        notary: Notary,
        cosigning: Cosigning,
        store: Store,
        outbox: Outbox,
        undecided: Callable[[], int],
        may_install: Callable[[NodeId, LogState], bool],
        install: Callable[[Certified, LogState], None],
    ) -> None:
        # The last one of our own; its state is in the store.
        self.certificate: Certificate | None = None
        self.count = 0
        self._group, self._members, self._others = group, members, others
        self._quorum, self._offers_needed = quorum, offers_needed
        self._notary, self._cosigning = notary, cosigning
        self._store, self._outbox = store, outbox
        # The slot that is to be decided next, and how to begin behind another one.
        self._undecided, self._install = undecided, install
        self._may_install = may_install
        # Signed by us, and not yet by a quorum.
        self._snapshot: Snapshot | None = None
        self._repeated_us = 0
        # Whether we sign at all, and whether our certificate lacks signatures by the present keys.
        self._signs = True
        self._is_outdated = False
        self._offered_us: dict[NodeId, int] = {}
        self._served: dict[int, Served] = {}
        # What peers offer for the slot that we wait for.
        self._offers: dict[NodeId, Certificate] = {}
        self._offers_for = 0
        self._fetch: Fetch | None = None
        self._blames: Counter[NodeId] = Counter()

    @property
    def covered(self) -> int:
        """Whoever lacks slots up to this one can be given the state instead."""
        return 0 if self.certificate is None else self.certificate.slot

    def resume(self, log: OrderLog, *, signs: bool = True) -> None:
        """After a restart, at our last snapshot: what of it, or of one before, a quorum signed."""
        self._signs = signs
        certified = self._store.certified(self._group)
        if certified is not None:
            try:
                self.certificate = self._read(certified.checkpoint)
                self._cosigning.adopt(self.certificate.size, certified.checkpoint)
            except RemoteProtocolError:
                self._is_outdated = True
        if signs and log.is_snapshot_due and log.state.slot > self.covered:
            self.sign(log.snapshot(), log)

    def keys_changed(self) -> None:
        """Replicas may have other keys: see whether our certificate is still worth something.

        It was right once. A key that somebody made to have the identifier of its former one makes
        it look wrong, and must not do more harm than any other.
        """
        if self.certificate is not None:
            try:
                self._read(self.certificate.checkpoint)
            except RemoteProtocolError:
                self._is_outdated = True

    def tick(self) -> None:
        now_us = self._outbox.now_us
        if self._is_outdated and self._snapshot is None:
            self._sign_again()
        if self._snapshot is not None and now_us - self._repeated_us >= REPEAT_US:
            self._repeated_us = now_us
            self._cosigning.repeat(self._others)
        for slot, served in list(self._served.items()):
            if now_us - served.asked_us >= SERVED_US:
                del self._served[slot]
        self._void_offers()
        fetch = self._fetch
        if fetch is not None and now_us - fetch.asked_us >= PART_US_MAX:
            self._give_up(fetch)

    # Certificates

    def sign(self, snapshot: Snapshot, log: OrderLog) -> None:
        """A snapshot was taken: sign it together with the head of the tree."""
        line = ""
        if len(snapshot.state) <= SNAPSHOT_BYTES_MAX:
            line = state_line(snapshot.slot, snapshot.state)
            self._snapshot = snapshot
        self._repeated_us = self._outbox.now_us
        self._cosigning.seal(
            self._others,
            log.tree.size,
            log.tree.root(),
            log.state.time_us,
            line=line,
            then=self._on_checkpoint,
        )

    def _sign_again(self) -> None:
        """Sign the state of our certificate with the key that we have, as the others do."""
        self._is_outdated = False
        certified = self._store.certified(self._group)
        if certified is None or not self._signs:
            return
        head = head_of(certified.checkpoint)
        time_us = msgspec.msgpack.decode(certified.state, type=LogState).time_us
        self._snapshot = Snapshot(self._group, certified.slot, certified.state)
        self._repeated_us = self._outbox.now_us
        self._cosigning.seal(
            self._others,
            head.size,
            head.root,
            time_us,
            line=state_line(certified.slot, certified.state),
            then=self._on_checkpoint,
        )

    def on_cosign(self, sender: NodeId, cosign: Cosign) -> None:
        """Whoever still gathers signatures is helped by the certificate."""
        if self.certificate is not None and cosign.size == self.certificate.size:
            self._offer(sender)

    def _on_checkpoint(self, checkpoint: str) -> None:
        self._certify(self._read(checkpoint))

    def _certify(self, certificate: Certificate) -> None:
        snapshot = self._snapshot
        assert snapshot is not None
        self._snapshot, self.certificate, self._is_outdated = None, certificate, False
        self._outbox.persist(
            Certified(self._group, snapshot.slot, snapshot.state, certificate.checkpoint),
            sync=False,
        )

    # Handing on

    def offer(self, peer: NodeId, slot: int) -> None:
        """A peer waits for a slot that we do not keep any more."""
        if self.covered >= slot:
            self._offer(peer)

    def on_ask(self, sender: NodeId, ask: AskPart) -> None:
        """Whoever asks for a slot that we have no state of is offered the one that we have."""
        state = self._state_of(ask.slot)
        if state is None:
            self.offer(sender, ask.slot)
            return
        data = state[ask.at : ask.at + PART_BYTES_MAX]
        if data and self._outbox.may_answer(sender):
            part = SnapshotPart(self._group, ask.slot, ask.at, data)
            self._outbox.answer(sender, part, len(data))

    def _offer(self, peer: NodeId) -> None:
        certificate, now_us = self.certificate, self._outbox.now_us
        if certificate is None or now_us - self._offered_us.get(peer, -OFFER_US) < OFFER_US:
            return
        self._offered_us[peer] = now_us
        offer = OfferSnapshot(self._group, certificate.slot, certificate.checkpoint)
        self._outbox.send(peer, offer)

    def _state_of(self, slot: int) -> bytes | None:
        """The state after this slot, if it is our last one, or one that is still asked for."""
        served = self._served.get(slot)
        if served is None:
            certified = self._store.certified(self._group) if slot == self.covered else None
            if certified is None or certified.slot != slot:
                return None
            served = self._served[slot] = Served(certified.state)
        served.asked_us = self._outbox.now_us
        if len(self._served) > SERVED_MAX:
            del self._served[min(self._served, key=lambda each: self._served[each].asked_us)]
        return served.state

    # Taking over

    def on_offer(self, sender: NodeId, offer: OfferSnapshot) -> None:
        self._void_offers()
        is_ours = self._snapshot is not None and offer.slot == self._snapshot.slot
        is_ahead = offer.slot >= self._undecided()
        known = self._offers.get(sender)
        if not (is_ours or is_ahead) or (known is not None and known.slot >= offer.slot):
            return
        certificate = self._checked(sender, offer)
        if certificate is None:
            return
        if is_ours:
            self._adopt(certificate)
        if is_ahead:
            self._offers[sender] = certificate
            self._begin_or_follow(sender, certificate)

    def on_part(self, sender: NodeId, part: SnapshotPart) -> None:
        self._void_offers()
        fetch = self._fetch
        if fetch is None or (sender, part.slot) != (fetch.peer, fetch.certificate.slot):
            return
        if part.at != len(fetch.state):
            # Said twice, on a link that repeats.
            return
        fetch.state += part.data
        if len(fetch.state) < fetch.certificate.state_bytes:
            self._ask(fetch)
        else:
            self._finish(fetch)

    def _begin_or_follow(self, sender: NodeId, certificate: Certificate) -> None:
        if self._fetch is None:
            self._begin()
        elif sender == self._fetch.peer and certificate.slot > self._fetch.certificate.slot:
            # It no longer has what we ask for.
            self._fetch_from(sender)

    def _begin(self) -> None:
        """Take the state from the peer that was least at fault, and has the latest."""
        if len(self._offers) < self._offers_needed:
            return
        offers = self._offers
        self._fetch_from(min(offers, key=lambda peer: (self._blames[peer], -offers[peer].slot)))

    def _fetch_from(self, peer: NodeId) -> None:
        self._fetch = Fetch(peer, self._offers[peer])
        self._ask(self._fetch)

    def _ask(self, fetch: Fetch) -> None:
        fetch.asked_us = self._outbox.now_us
        ask = AskPart(self._group, fetch.certificate.slot, len(fetch.state))
        self._outbox.send(fetch.peer, ask)

    def _finish(self, fetch: Fetch) -> None:
        certificate, encoded = fetch.certificate, bytes(fetch.state)
        is_whole = len(encoded) == certificate.state_bytes
        if not is_whole or digest(encoded) != certificate.state_digest:
            sentence = f"a state after slot {certificate.slot} that nobody signed"
            self._outbox.report(fetch.peer, "forgery", sentence)
            self._give_up(fetch)
            return
        try:
            state = msgspec.msgpack.decode(encoded, type=LogState)
            may_install = self._may_install(fetch.peer, state)
        except (msgspec.MsgspecError, QuorateError) as error:
            # Where one voice is believed, the others sign what it made up.
            self._outbox.report(fetch.peer, "forgery", f"a state that cannot be: {error}")
            may_install = False
        if not may_install:
            # Whoever offers one again does so when we say again where we stand.
            self._fetch = None
            self._offers.clear()
            return
        self._fetch, self._snapshot = None, None
        self._offers.clear()
        self._blames.clear()
        self.certificate, self._is_outdated = certificate, False
        self._cosigning.stop_waiting()
        self._cosigning.adopt(certificate.size, certificate.checkpoint)
        self.count += 1
        certified = Certified(self._group, certificate.slot, encoded, certificate.checkpoint)
        self._install(certified, state)
        self._outbox.persist(certified, sync=False)

    def _give_up(self, fetch: Fetch) -> None:
        """Go on with another peer, if there is one; each offers again what it has."""
        self._blames[fetch.peer] += 1
        self._fetch = None
        others = [peer for peer in self._offers if peer != fetch.peer]
        if others:
            self._begin()
        else:
            self._offers.pop(fetch.peer, None)

    def _void_offers(self) -> None:
        """We got on by ourselves: what was offered before is not needed."""
        if self._offers_for != self._undecided():
            self._offers_for = self._undecided()
            self._offers.clear()
            self._fetch = None

    def _adopt(self, certificate: Certificate) -> None:
        """Others have what our snapshot lacks."""
        snapshot = self._snapshot
        assert snapshot is not None
        if digest(snapshot.state) == certificate.state_digest:
            self._cosigning.adopt(certificate.size, certificate.checkpoint)
            self._certify(certificate)

    def _checked(self, sender: NodeId, offer: OfferSnapshot) -> Certificate | None:
        for known in self._offers.values():
            if known.checkpoint == offer.checkpoint and known.slot == offer.slot:
                return known
        try:
            certificate = self._read(offer.checkpoint)
        except OtherKeysError:
            # It may be of before a change of keys, or of after one that we have yet to come to.
            return None
        except RemoteProtocolError as error:
            self._outbox.report(sender, "forgery", str(error))
            return None
        if certificate.slot != offer.slot or certificate.state_bytes > SNAPSHOT_BYTES_MAX:
            self._outbox.report(sender, "forgery", f"an offer of slot {offer.slot}")
            return None
        return certificate

    def _read(self, checkpoint: str) -> Certificate:
        return Certificate.read(checkpoint, self._notary, self._members, self._quorum)
