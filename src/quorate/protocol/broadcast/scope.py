"""What a protocol's replica works with: its topic, its peers, its subscribers.

The pieces that every protocol needs on a replica stand here once: accepting each batch once,
acknowledging to the source, and answering those who missed something.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quorate.core.ids import SEQUENCE_MAX, Digest, NodeId, Sequence, Stream
from quorate.core.messages import Ack, Fetch, Link, Publish, Status, Supply, Vouch
from quorate.core.quorum import Quorum
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.channel import Channel
from quorate.protocol.intake import Intake
from quorate.protocol.outbox import Outbox
from quorate.protocol.outlet import run_of
from quorate.protocol.retention import Held, Retention
from quorate.protocol.runs import RUN_BYTES_MAX, by_size, consecutive
from quorate.protocol.topic import Topic

# A source that is pushed back hears so again, or it would take us for dead.
WAIT_AGAIN_US = 200_000
# Who asks for more than this in one turn asks again for the rest.
SUPPLY_BYTES_MAX = 2 * RUN_BYTES_MAX


@dataclass(slots=True)
class Scope:
    """One topic on one replica."""

    me: NodeId
    topic: Topic
    channel: Channel
    retention: Retention
    outbox: Outbox
    macs: PairwiseMacs
    intakes: dict[Stream, Intake] = field(default_factory=dict)
    # Streams whose source must hear from us, and the last word it has.
    ack_due: dict[Stream, Status] = field(default_factory=dict)
    # Those that are pushed back, and when they last heard it.
    withheld: dict[Stream, int] = field(default_factory=dict)
    # Streams of which we refused something, since there was no room for it.
    refused: dict[Stream, None] = field(default_factory=dict)
    # How many bytes of payload each asker has had in this turn.
    supplied: Counter[NodeId] = field(default_factory=Counter)

    @property
    def others(self) -> tuple[NodeId, ...]:
        return self.topic.others(self.me)

    def change_terms(self, topic: Topic) -> None:
        """The contract was altered: in what it allows to be, not in how batches travel."""
        if topic != self.topic:
            self.topic = topic
            self.channel.change_terms(topic)

    def intake(self, stream: Stream, settled: Sequence) -> Intake:
        intake = self.intakes.get(stream)
        if intake is None:
            intake = self.intakes[stream] = Intake(settled, self.topic.windows.span)
        else:
            intake.settle(settled)
        return intake

    def introduce(self, subscriber: NodeId) -> None:
        """A subscriber has come, perhaps again: say where each stream is by now."""
        outlet = self.channel.outlets[subscriber]
        for stream, intake in self.intakes.items():
            # Behind the last number there is none to begin with.
            lowest = min(intake.floor, SEQUENCE_MAX)
            outlet.introduce(stream, lowest, self.retention.highest(stream))

    def acknowledge(self, stream: Stream, status: Status = Status.OK) -> None:
        """Once per turn, and only while the channel has room (B7)."""
        self.ack_due[stream] = max(status, self.ack_due.get(stream, Status.OK))

    def refuse(self, stream: Stream) -> None:
        """There is no room for what just came. Its source hears when there is."""
        self.refused[stream] = None
        self.acknowledge(stream)

    def vouch(
        self,
        stream: Stream,
        urgent: bool,
        first: Sequence,
        payloads: list[bytes],
        digests: list[Digest],
    ) -> None:
        """Stand up for these batches: to every subscriber, and to whoever asks later."""
        self.retention.keep(stream, first, digests, payloads)
        now_us = self.outbox.now_us
        self.channel.offer(run_of(stream, urgent, first, payloads, digests, now_us))

    def answer(self, asker: NodeId, fetch: Fetch) -> None:
        """Repeat to a subscriber or a replica of this topic what we have vouched for."""
        if asker not in self.channel.outlets and asker not in self.topic.index:
            self.outbox.report(asker, "trespass", f"asked for batches of '{self.topic.name}'")
            return
        stream = Stream(fetch.publisher, fetch.topic, fetch.lane)
        held = self._find(asker, stream, dict.fromkeys(fetch.sequences))
        if not fetch.payload:
            for first, run in consecutive((sequence, h.digest) for sequence, h in held):
                self.outbox.send(asker, Vouch(*stream, first, run))
            return
        sequences = [sequence for sequence, _ in held]
        for at, payloads in by_size(0, [h.payload for _, h in held]) if held else ():
            if self.supplied[asker] >= SUPPLY_BYTES_MAX:
                return
            some = sequences[at : at + len(payloads)]
            self.supplied[asker] += sum(map(len, payloads))
            self.outbox.send(asker, Supply(*stream, some, payloads))

    def _find(
        self, asker: NodeId, stream: Stream, sequences: Iterable[Sequence]
    ) -> list[tuple[Sequence, Held]]:
        """What we retain of these, or have yet to see taken by this subscriber."""
        retained = {sequence: self.retention.get(stream, sequence) for sequence in sequences}
        outlet = self.channel.outlets.get(asker)
        if outlet is not None and None in retained.values():
            untaken = outlet.untaken(stream)
            retained = {s: found or untaken.get(s) for s, found in retained.items()}
        return [(sequence, found) for sequence, found in retained.items() if found is not None]

    def flush_acks(self) -> None:
        """Acknowledge to sources whose batches have room; push back on the others."""
        self.supplied.clear()
        for stream in self.withheld:
            self.ack_due.setdefault(stream, Status.OK)
        due, self.ack_due = self.ack_due, {}
        withheld, self.withheld = self.withheld, {}
        now_us = self.outbox.now_us
        for stream, status in due.items():
            through = self.intakes[stream].through
            if self.channel.is_busy(stream):
                said_us = withheld.get(stream)
                if said_us is not None and now_us - said_us < WAIT_AGAIN_US:
                    self.withheld[stream] = said_us
                    continue
                self.withheld[stream] = now_us
                status, through = Status.WAIT, 0
            elif stream in self.refused:
                del self.refused[stream]
                status = Status.RESUME
            self.outbox.send(stream.publisher, Ack(stream.topic, stream.lane, status, through))

    def forget(self, publisher: NodeId) -> None:
        """This publisher is gone for good: so is what we know of its streams."""
        for known in (self.intakes, self.ack_due, self.withheld, self.refused):
            for stream in [s for s in known if s.publisher == publisher]:
                del known[stream]
        self.channel.forget(publisher)
        self.retention.forget(publisher, self.topic.id)


class Rules(NamedTuple):
    """What each protocol says to sources and destinations."""

    # What a receipt promises, in words.
    guarantee: str
    # How many replicas must vouch for one content before it is delivered.
    copies_to_deliver: Callable[[Quorum], int]
    # How many replicas must have a batch before its receipt is due.
    replicas_to_settle: Callable[[Quorum], int]


class BroadcastReplica:
    """A replica's part in one protocol. What a protocol does not need does nothing."""

    # How its runs come: from their publisher, or through a chain.
    takes: type[Publish] | type[Link] = Publish

    def on_publish(self, sender: NodeId, run: Any) -> None:
        """A run that may be published here."""

    def accept_late(self, stream: Stream, sequence: Sequence, payload: bytes) -> None:
        """A batch that a history named, sent by its source when we asked for it."""

    def forget(self, publisher: NodeId) -> None:
        """This publisher is gone for good."""

    def tick(self) -> None: ...

    def flush(self) -> None: ...
