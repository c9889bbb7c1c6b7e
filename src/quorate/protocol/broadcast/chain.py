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

from msgspec import structs

from quorate.core.ids import Digest, NodeId, Sequence, Stream
from quorate.core.messages import Authenticator, Link, Status
from quorate.crypto.digests import digest
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast import history
from quorate.protocol.broadcast.scope import BroadcastReplica, Rules, Scope
from quorate.protocol.outlet import Run, events_in
from quorate.protocol.topic import Topic

RULES = Rules(
    guarantee="the last f + 1 replicas of the chain have it, so all its correct ones do",
    # Replicas that are asked say what they accepted, and 2f + 1 equal voices decide too: f + 1 of
    # them are correct, as many as a chain's end to end acceptance has at least.
    copies_to_deliver=lambda quorum: quorum.majority_correct,
    # The last f + 1 of the chain.
    replicas_to_settle=lambda quorum: quorum.one_correct,
)

_HEAD = Struct("<QIBQQBI")


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


class Replica(BroadcastReplica):
    """One replica of the chain, whichever position a run's chain gives it."""

    takes = Link

    def __init__(self, scope: Scope, histories: history.Replica | None) -> None:
        self._scope = scope
        self._histories = histories
        # How many nodes ahead a node authenticates for, and how many behind it verifies.
        self._reach = scope.topic.quorum.one_correct

    def on_publish(self, sender: NodeId, link: Link) -> None:
        """Algorithm 8: a run that comes from the node before us, and goes on to the next."""
        scope = self._scope
        path = (link.publisher, *scope.topic.chain(link.chain))
        position = path.index(scope.me) if scope.me in path else 0
        if not position or sender != path[position - 1]:
            scope.outbox.report(sender, "misrouted", f"a run of chain {link.chain} is not its")
            return
        digests = [digest(payload) for payload in link.payloads]
        covered = authenticated_bytes(link, digests)
        makers = path[max(0, position - self._reach) : position]
        if not are_authentic(link, covered, makers, scope.me, scope.macs):
            scope.outbox.report(sender, "bad-authenticator", f"run at {link.first} was altered")
            return
        stream, histories = Stream(link.publisher, link.topic), self._histories
        intake = scope.intake(stream, link.settled)
        if scope.channel.is_full(stream):
            scope.refuse(stream)
            return
        if histories is not None and histories.room(stream, link.first) < len(digests):
            histories.hold_back(stream, sender, link)
        elif not self._contradicts(stream, link.first, digests):
            intake.accept(link.first, len(digests))
            self._note(stream, link.first, link.payloads, digests)
            self._pass_on(stream, link, digests, covered, path[position + 1 :])
        scope.acknowledge(stream, histories.status(stream) if histories else Status.OK)

    def accept_late(self, stream: Stream, sequence: Sequence, payload: bytes) -> None:
        """A batch that a history named, sent by its source when we asked for it."""
        self._scope.intake(stream, 0).accept_late(sequence)
        content = digest(payload)
        self._note(stream, sequence, [payload], [content])
        self._scope.channel.note(stream, sequence, [payload], [content])

    def _pass_on(
        self,
        stream: Stream,
        link: Link,
        digests: list[Digest],
        covered: bytes,
        further: tuple[NodeId, ...],
    ) -> None:
        """Add our authenticators for the next f + 1 nodes, prune the others, hand on."""
        scope, subscribers = self._scope, tuple(self._scope.channel.outlets)
        readers = further[: self._reach]
        if len(readers) < self._reach:
            readers += subscribers
        still_to_read = {*further, *subscribers}
        kept = [each for each in link.authenticators if each.reader in still_to_read]
        kept += [
            Authenticator(scope.me, reader, scope.macs.tag(reader, covered)) for reader in readers
        ]
        if further:
            scope.outbox.send(further[0], structs.replace(link, authenticators=kept))
            scope.channel.note(stream, link.first, link.payloads, digests)
            return
        # We are the tail: every subscriber gets the run with the authenticators meant for it.
        by_reader: dict[NodeId, list[Authenticator]] = {}
        for authenticator in kept:
            by_reader.setdefault(authenticator.reader, []).append(authenticator)
        run = Run(
            stream, link.urgent, link.first, link.payloads, digests,
            list(map(events_in, link.payloads)), scope.outbox.now_us,
            link.settled, link.chain, by_reader,
        )  # fmt: skip
        scope.channel.offer(run)

    def _note(
        self, stream: Stream, first: Sequence, payloads: list[bytes], digests: list[Digest]
    ) -> None:
        """Remember what we accepted, so that a second content is refused."""
        self._scope.retention.keep(stream, first, digests, payloads)
        if self._histories is not None:
            self._histories.accepted(stream, first, digests)

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
