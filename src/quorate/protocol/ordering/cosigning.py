"""Checkpoints: the size and root of the order log, signed by a quorum of its replicas.

Source: RFC 6962; C2SP tlog-checkpoint and tlog-cosignature; DESIGN section 3.

Every few tens of milliseconds of the log's own time, after a slot that all replicas agree on, each
replica signs the head of its tree and tells the others. A signature so costs per checkpoint and
not per batch. Heads of correct replicas after a slot are equal, so a quorum of signatures on
another one cannot come about, and whoever holds a checkpoint can prove to anybody what stands in
the log, offline.

Signatures may be lost with a link, or with a replica that crashes. While the last head that it
signed has no checkpoint, a replica says so now and then, and the others say their signatures again:
an idle log comes to its checkpoint too, at replicas that were restarted as well.

Where a snapshot is due, the head carries a line about the state as a whole (`transfer.py`). Such
a head is waited for until the next one, even when later heads have their checkpoints already.

A replica may get another key. What counts is a signature with the last key that we know of,
whatever the age of the head. What was signed with a former key is dropped, and nobody is blamed for
it: replicas sign, and hear of such a change, at different times.

Invariants:
- a correct replica signs one head per size: whether it carries a line follows from its slot, and
  after it started over it signs no size that its log had before, whatever the log is now;
- a checkpoint that is made here has no signature of a key that was known to be replaced;
- what is kept is bounded: a few heads that lack signatures, and the last checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from quorate.core.cluster import Cluster
from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import NodeId
from quorate.core.ordering import Cosign
from quorate.crypto.checkpoint import (
    Cosignature,
    Cosigner,
    Head,
    cosigned_bytes,
    render,
    verify_cosignature,
)
from quorate.protocol.outbox import Outbox

# Heads that wait for signatures, and words about heads that we have yet to come to.
HEADS_MAX = 64
# How often those are asked again whose signatures of the last head are missing.
ASK_AGAIN_US = 500_000
SECOND_US = 1_000_000


class Notary(Protocol):
    """What a group's checkpoints are called, and who signs them."""

    @property
    def origin(self) -> str: ...

    @property
    def cosigners(self) -> Mapping[NodeId, Cosigner]: ...

    @property
    def former(self) -> Mapping[NodeId, Sequence[Cosigner]]:
        """The same with the keys that replicas had before, as far as we know."""

    @property
    def is_replaced(self) -> bool:
        """Whether our own key is one of those."""

    def adopt(self, cluster: Cluster) -> None:
        """Replicas may have other keys from now on."""

    def sign_note(self, data: bytes) -> bytes: ...


class Cosigning:
    """One replica's part in signing the heads of its group's log."""

    def __init__(
        self,
        me: NodeId,
        group: int,
        quorum: int,
        notary: Notary,
        outbox: Outbox,
        signs_above: int = 0,
    ) -> None:
        # The last checkpoint, as others may read it.
        self.checkpoint = ""
        self.size = 0
        # The size of the last head that we signed.
        self.signed = 0
        # Heads of this size or less were signed before this replica started over, if at all.
        self.signs_above = signs_above
        self._me, self._group, self._quorum = me, group, quorum
        self._notary = notary
        self._outbox = outbox
        # What we said of the last head that we signed, and when.
        self._mine: Cosign | None = None
        self._said_us = 0
        self._heads: dict[int, Head] = {}
        # By size: what each replica signed, as it was said.
        self._said: dict[int, dict[NodeId, Cosign]] = {}
        # The size of the head that is waited for, and who wants its checkpoint.
        self._awaited = 0
        self._on_awaited: Callable[[str], None] | None = None

    def seal(
        self,
        others: tuple[NodeId, ...],
        size: int,
        root: bytes,
        time_us: int,
        *,
        line: str = "",
        then: Callable[[str], None] | None = None,
    ) -> None:
        """Sign the head of our log, and tell the others.

        With a line about the state, `then` gets the checkpoint, however long that takes.
        """
        if line:
            self._awaited, self._on_awaited = size, then
        self.signed = max(self.signed, size)
        if self._notary.is_replaced or size <= self.signs_above:
            return
        head = Head(self._notary.origin, size, root, (line,) if line else ())
        time_s = max(0, time_us // SECOND_US)
        cosign = Cosign(
            self._group, size, time_s, self._notary.sign_note(cosigned_bytes(head, time_s))
        )
        self._heads[size] = head
        self._mine, self._said_us = cosign, self._outbox.now_us
        self._outbox.send_all(others, cosign)
        self._said.setdefault(size, {})[self._me] = cosign
        self._forget_old()
        self._complete(size)

    def repeat(self, others: tuple[NodeId, ...]) -> None:
        """Tell the others again that we signed the head that is waited for."""
        mine = self._said.get(self._awaited, {}).get(self._me)
        if mine is not None:
            self._outbox.send_all(others, mine)

    def ask_again(self, others: tuple[NodeId, ...]) -> None:
        """Ask for what may have been lost, if the last head has waited for it for a while."""
        now_us, mine = self._outbox.now_us, self._mine
        if mine is None or mine.size <= self.size or now_us - self._said_us < ASK_AGAIN_US:
            return
        self._said_us = now_us
        self._outbox.send_all(others, msgspec.structs.replace(mine, asks=True))

    def adopt(self, size: int, checkpoint: str) -> None:
        """A checkpoint that others made of a head which is also ours."""
        if size == self._awaited:
            self._awaited = 0
        if size > self.size:
            self.checkpoint, self.size = checkpoint, size
        # A quorum has signed it: nobody needs our signature.
        self.signed = max(self.signed, size)
        self._forget_old()

    def start_over(self, size: int) -> None:
        """Our log, which had so many batches, goes on from a state that others signed."""
        self.signs_above = max(self.signs_above, size)
        self.signed, self._mine = self.size, None
        self._heads.clear()
        self._said.clear()

    def stop_waiting(self) -> None:
        """Nobody wants the checkpoint any more of the head that is waited for."""
        self._awaited, self._on_awaited = 0, None

    def on_cosign(self, sender: NodeId, cosign: Cosign) -> None:
        if cosign.asks and self._mine is not None and self._mine.size == cosign.size:
            self._outbox.send(sender, self._mine)
        if not self._is_open(cosign.size) or sender not in self._notary.cosigners:
            return
        if sum(sender in said for said in self._said.values()) >= HEADS_MAX:
            return
        self._said.setdefault(cosign.size, {})[sender] = cosign
        self._complete(cosign.size)

    def _complete(self, size: int) -> None:
        """Make a checkpoint of a head that enough replicas have signed."""
        head, said = self._heads.get(size), self._said.get(size, {})
        if head is None or not self._is_open(size) or len(said) < self._quorum:
            return
        cosigners = self._notary.cosigners
        good: list[Cosignature] = []
        for replica, cosign in list(said.items()):
            cosignature = Cosignature(cosigners[replica].name, cosign.time_s, cosign.signature)
            try:
                # Our own is right: the head is ours too.
                if replica != self._me:
                    verify_cosignature(head, cosigners[replica], cosignature)
            except RemoteProtocolError as error:
                if not self._is_by(self._notary.former.get(replica, ()), head, cosign):
                    self._outbox.report(replica, "bad-cosignature", str(error))
                del said[replica]
            else:
                good.append(cosignature)
        if len(good) >= self._quorum:
            checkpoint = render(head, good, list(cosigners.values()))
            is_awaited = size == self._awaited
            self.adopt(size, checkpoint)
            if is_awaited and self._on_awaited is not None:
                self._on_awaited(checkpoint)

    def _is_by(self, cosigners: Sequence[Cosigner], head: Head, cosign: Cosign) -> bool:
        for cosigner in cosigners:
            cosignature = Cosignature(cosigner.name, cosign.time_s, cosign.signature)
            with suppress(RemoteProtocolError):
                verify_cosignature(head, cosigner, cosignature)
                return True
        return False

    def _is_open(self, size: int) -> bool:
        """Whether a head of this size has yet to get its checkpoint."""
        return size > self.size or size == self._awaited

    def _forget_old(self) -> None:
        for known in (self._heads, self._said):
            for size in [size for size in known if not self._is_open(size)]:
                del known[size]
        while len(self._heads) > HEADS_MAX:
            oldest = min(size for size in self._heads if size != self._awaited)
            del self._heads[oldest]
            self._said.pop(oldest, None)
