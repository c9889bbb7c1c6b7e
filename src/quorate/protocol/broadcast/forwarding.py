"""Forward once: the replica's half of first-answer, voting and authenticated broadcast.

Source: FIT-Broker 2013, section 4.4.1 (replicas); Freeman 2016, algorithm 2 and listing 6.3.

The three protocols differ in how many replicas there are and in how many equal copies their
destinations ask for; what a replica does is the same. It forwards the first content that it
gets under a sequence number and never a second one. Where the topic has histories, a source
that owes one is blocked.

Invariant: a correct replica vouches for at most one content per stream and sequence number.
"""

from msgspec import structs

from quorate.core.ids import NodeId, Sequence, Stream
from quorate.core.messages import Publish, Status
from quorate.crypto.digests import digest
from quorate.protocol.broadcast import history
from quorate.protocol.broadcast.scope import BroadcastReplica, Scope


class Replica(BroadcastReplica):
    """Forwards each batch once, to every subscriber."""

    def __init__(self, scope: Scope, histories: history.Replica | None = None) -> None:
        self._scope = scope
        self._histories = histories

    def on_publish(self, publisher: NodeId, publish: Publish) -> None:
        scope = self._scope
        stream = Stream(publisher, publish.topic, publish.lane)
        intake = scope.intake(stream, publish.settled)
        if scope.channel.is_full(stream):
            scope.refuse(stream)
            return
        count = len(publish.payloads)
        if self._histories is not None:
            count = min(count, self._histories.room(stream, publish.first))
            if count < len(publish.payloads):
                rest = structs.replace(
                    publish, first=publish.first + count, payloads=publish.payloads[count:]
                )
                self._histories.hold_back(stream, publisher, rest)
        fresh = intake.accept(publish.first, count)
        if len(fresh) == count:
            self._forward(stream, publish.urgent, publish.first, publish.payloads[:count])
        else:
            for sequence in fresh:
                payload = publish.payloads[sequence - publish.first]
                self._forward(stream, publish.urgent, sequence, [payload])
        status = self._histories.status(stream) if self._histories else Status.OK
        scope.acknowledge(stream, status)

    def accept_late(self, stream: Stream, sequence: Sequence, payload: bytes) -> None:
        """A batch that a history named, sent by its source when we asked for it."""
        self._scope.intake(stream, 0).accept_late(sequence)
        self._forward(stream, False, sequence, [payload])

    def _forward(
        self, stream: Stream, urgent: bool, first: Sequence, payloads: list[bytes]
    ) -> None:
        if not payloads:
            return
        digests = [digest(payload) for payload in payloads]
        if self._histories is not None:
            self._histories.accepted(stream, first, digests)
        self._scope.vouch(stream, urgent, first, payloads, digests)
