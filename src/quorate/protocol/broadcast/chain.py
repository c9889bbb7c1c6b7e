"""Chain (B3).

Source: Freeman 2016, section 3.3, algorithms 7 to 9, sections 5.6 and 6.4.3; Aublin et al.
Fault model: n = 3f + 1 replicas, at most f Byzantine, 2f + 1 of which form the chain;
sources may be Byzantine too.

A source sends to the head of the chain only, each replica passes on to the next, and the tail
sends to the destinations. Every node on the way authenticates the run towards the next f + 1
nodes, and accepts it only with the authenticators of the f + 1 nodes before it. Whatever
authenticators nobody further down will read are pruned.

One authenticator covers one run, that is, as many batches as the source sent in one turn.
Runs are passed on as they are: cutting one would invalidate its authenticators.

A silent or altering replica stops its chain. Three things repair that: histories name what
was sent, and whoever misses it fetches it; a source whose batches do not arrive moves to the
next chain; and a replica that subscribers come to for repairs tells the source to do so.

Invariants:
- what a destination delivers, every correct replica of the chain accepted: the last f + 1
  contain a correct one, and between two correct neighbours stand at most f others, so that
  each of them verified the one before;
- a replica accepts one content per sequence number, and any two chains share a correct
  replica, so no two destinations deliver different contents.
"""

from struct import Struct

from quorate.core.ids import Digest, NodeId, Sequence, Stream
from quorate.core.messages import Authenticator, Link, Status
from quorate.core.quorum import Quorum
from quorate.crypto.digests import digest
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast import history
from quorate.protocol.broadcast.scope import Scope
from quorate.protocol.outlet import Run, events_in
from quorate.protocol.topic import Topic

GUARANTEE = "the last f + 1 replicas of the chain have it, so all its correct ones do"

_HEAD = Struct("<QIBQQBI")


def copies_to_deliver(quorum: Quorum) -> int:
    """Replicas that are asked say what they accepted, and 2f + 1 equal voices decide too:
    f + 1 of them are correct, as many as a chain's end to end acceptance has at least."""
    return quorum.majority_correct


def replicas_to_settle(quorum: Quorum) -> int:
    """The last f + 1 of the chain."""
    return quorum.one_correct


def authenticated_bytes(link: Link, digests: list[Digest]) -> bytes:
    """What an authenticator covers: everything but the authenticators and the sender."""
    head = _HEAD.pack(
        link.publisher, link.topic, link.urgent, link.first, link.settled, link.chain, len(digests)
    )
    return head + b"".join(digests)


def are_authentic(
    link: Link, covered: bytes, makers: tuple[NodeId, ...], reader: NodeId, macs: PairwiseMacs
) -> bool:
    """Did each of these makers authenticate the run towards this reader?"""
    tags = {a.maker: a.tag for a in link.authenticators if a.reader == reader}
    return all(maker in tags and macs.verify(maker, covered, tags[maker]) for maker in makers)


def last_of(topic: Topic, chain: int) -> tuple[NodeId, ...]:
    """The f + 1 replicas whose word a destination needs."""
    return topic.chain(chain)[-topic.quorum.one_correct :]


def source_authenticators(
    link: Link, digests: list[Digest], topic: Topic, macs: PairwiseMacs
) -> list[Authenticator]:
    """A source authenticates towards the first f + 1 replicas of its chain."""
    covered = authenticated_bytes(link, digests)
    readers = topic.chain(link.chain)[: topic.quorum.one_correct]
    return [Authenticator(link.publisher, reader, macs.tag(reader, covered)) for reader in readers]


class Replica:
    """One replica of the chain, whichever position a run's chain gives it."""

    def __init__(self, scope: Scope, histories: history.Replica | None) -> None:
        self._scope = scope
        self._histories = histories
        # How many nodes ahead a node authenticates for, and how many behind it verifies.
        self._reach = scope.topic.quorum.one_correct

    def on_link(self, sender: NodeId, link: Link) -> None:
        scope = self._scope
        chain = scope.topic.chain(link.chain)
        path = (link.publisher, *chain)
        if scope.me not in chain or sender != path[chain.index(scope.me)]:
            scope.outbox.report(sender, "misrouted", f"a run of chain {link.chain} is not its")
            return
        digests = [digest(payload) for payload in link.payloads]
        covered = authenticated_bytes(link, digests)
        position = chain.index(scope.me) + 1
        makers = path[max(0, position - self._reach) : position]
        if not are_authentic(link, covered, makers, scope.me, scope.macs):
            scope.outbox.report(sender, "bad-authenticator", f"run at {link.first} was altered")
            return
        if not self._accept(link, digests, covered, path, position) and self._histories:
            self._histories.hold_back(Stream(link.publisher, link.topic), sender, link)

    def accept_late(self, stream: Stream, sequence: Sequence, payload: bytes) -> None:
        """A batch that a history named, sent by its source when we asked for it."""
        self._scope.intake(stream, 0).accept_late(sequence)
        content = digest(payload)
        self._note(stream, sequence, [payload], [content])
        self._scope.channel.note(stream, sequence, [payload], [content])

    def _accept(
        self,
        link: Link,
        digests: list[Digest],
        covered: bytes,
        path: tuple[NodeId, ...],
        position: int,
    ) -> bool:
        """Take a run that is authentic. False if its source owes us a history first."""
        scope = self._scope
        stream = Stream(link.publisher, link.topic)
        intake = scope.intake(stream, link.settled)
        count = len(digests)
        if scope.channel.is_full(stream):
            scope.refuse(stream)
            return True
        histories = self._histories
        is_blocked = histories is not None and histories.room(stream, link.first) < count
        if not is_blocked and not self._contradicts(stream, link.first, digests):
            intake.accept(link.first, count)
            self._note(stream, link.first, link.payloads, digests)
            self._pass_on(link, digests, covered, path, position)
        scope.acknowledge(stream, self._status(stream))
        return not is_blocked

    def _pass_on(
        self,
        link: Link,
        digests: list[Digest],
        covered: bytes,
        path: tuple[NodeId, ...],
        position: int,
    ) -> None:
        """Add our authenticators for the next f + 1 nodes, prune the others, hand on."""
        scope = self._scope
        ahead = path[position + 1 : position + 1 + self._reach]
        at_the_end = len(ahead) < self._reach
        readers = ahead + tuple(scope.channel.outlets) if at_the_end else ahead
        tag = scope.macs.tag
        still_to_read = {*path[position + 1 :], *scope.channel.outlets}
        kept = [a for a in link.authenticators if a.reader in still_to_read]
        kept += [Authenticator(scope.me, reader, tag(reader, covered)) for reader in readers]
        if ahead:
            onward = Link(
                link.publisher, link.topic, link.urgent, link.first, link.settled, link.chain,
                link.payloads, kept,
            )  # fmt: skip
            scope.outbox.send(ahead[0], onward)
            stream = Stream(link.publisher, link.topic)
            scope.channel.note(stream, link.first, link.payloads, digests)
        else:
            self._deliver(link, digests, kept)

    def _deliver(self, link: Link, digests: list[Digest], kept: list[Authenticator]) -> None:
        """We are the tail: every subscriber gets the run with the authenticators meant for it."""
        readers: dict[NodeId, list[Authenticator]] = {}
        for authenticator in kept:
            readers.setdefault(authenticator.reader, []).append(authenticator)
        stream = Stream(link.publisher, link.topic)
        events = list(map(events_in, link.payloads))
        now_us = self._scope.outbox.now_us
        run = Run(
            stream, link.urgent, link.first, link.payloads, digests, events, now_us,
            link.settled, link.chain, readers,
        )  # fmt: skip
        self._scope.channel.offer(run)

    def _note(
        self, stream: Stream, first: Sequence, payloads: list[bytes], digests: list[Digest]
    ) -> None:
        """Remember what we accepted, so that a second content is refused."""
        self._scope.retention.keep(stream, first, digests, payloads)
        if self._histories is not None:
            for offset, content in enumerate(digests):
                self._histories.accepted(stream, first + offset, content)

    def _contradicts(self, stream: Stream, first: Sequence, digests: list[Digest]) -> bool:
        """Did we accept something else before? What we passed on once, we may pass on again."""
        intake = self._scope.intakes[stream]
        for offset, content in enumerate(digests):
            sequence = first + offset
            if intake.is_new(sequence):
                continue
            known = self._known(stream, sequence)
            if known is not None and known != content:
                self._scope.outbox.report(
                    stream.publisher, "equivocation", f"two contents for batch {sequence}"
                )
            if known != content:
                # What we no longer know, we cannot vouch for either.
                return True
        return False

    def _known(self, stream: Stream, sequence: Sequence) -> Digest | None:
        if self._histories is not None:
            return self._histories.content_of(stream, sequence)
        held = self._scope.retention.get(stream, sequence)
        return held.digest if held else None

    def _status(self, stream: Stream) -> Status:
        return self._histories.status(stream) if self._histories else Status.OK
