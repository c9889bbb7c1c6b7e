"""Histories: every alpha batches, what was sent, by reliable broadcast (B4, B6).

Source: Freeman 2016, sections 4.1, 5.8 and 6.2; Jehl and Meling 2013.
Fault model: n = 3f + 1 replicas, at most f Byzantine; sources may be Byzantine too.

Authenticated broadcast and the chain are fast and may leave a destination out. So a source
sends, for each topic by itself, a history of its last alpha batches by reliable broadcast; a
destination that missed some of them learns which, and fetches them. A replica asks for the
history at alpha batches and blocks the source at 2 alpha until a history is delivered.

The thesis repeats the batches in the history. Ours carries digests, and whoever misses a
payload asks for it, so that repair costs what was lost and nothing otherwise. For this to be
safe, a replica ECHOes a history only when

- it holds every batch that the history names, or fetched it from the source, so that a
  delivered history can always be followed: an ECHO quorum has f + 1 correct replicas;
- the history does not contradict what it accepted before. What a destination delivered by
  authenticated broadcast or by the chain, f + 1 correct replicas accepted; they refuse a
  history with another content, and the other 2f replicas are too few for an ECHO quorum. A
  history therefore never disagrees with a delivery, nor with an earlier history.

A replica that lacks payloads first waits whether the others complete the history without it,
and only then asks the source: in the chain, f replicas never see the payloads, and need not.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from struct import error as StructError

from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import DIGEST_BYTES, SEQUENCE_MAX, Digest, Lane, NodeId, Sequence, Stream
from quorate.core.limits import WINDOW_BATCHES
from quorate.core.messages import Fetch, Link, Publish, Status, Supply
from quorate.crypto.digests import digest
from quorate.protocol.broadcast import reliable
from quorate.protocol.broadcast.scope import Scope

ASK_SOURCE_AFTER_US = 200_000
HELD_BACK_BYTES_MAX = 16 * 1024 * 1024
_HEAD = Struct("<QI")


@dataclass(frozen=True, slots=True)
class History:
    """Consecutive batches of one stream, by their digests."""

    first: Sequence
    digests: tuple[Digest, ...]

    @property
    def end(self) -> Sequence:
        return self.first + len(self.digests)

    def encode(self) -> bytes:
        return _HEAD.pack(self.first, len(self.digests)) + b"".join(self.digests)

    @staticmethod
    def decode(payload: bytes) -> "History":
        try:
            first, count = _HEAD.unpack_from(payload)
        except StructError:
            raise RemoteProtocolError("a history that is too short for its head") from None
        if not 0 < count <= WINDOW_BATCHES or len(payload) != _HEAD.size + DIGEST_BYTES * count:
            raise RemoteProtocolError(f"a history of {count} batches in {len(payload)} bytes")
        if first + count > SEQUENCE_MAX:
            raise RemoteProtocolError(f"a history of {count} from sequence {first} leaves 64 bits")
        body = payload[_HEAD.size :]
        cut = range(0, len(body), DIGEST_BYTES)
        return History(first, tuple(body[i : i + DIGEST_BYTES] for i in cut))


@dataclass(slots=True)
class Ledger:
    """What a replica accepted of one stream, as far back as a history may reach."""

    accepted: dict[Sequence, Digest] = field(default_factory=dict)
    # Below this we no longer know what we accepted, and follow no history.
    forgotten_below: Sequence = 0
    # The first batch that no delivered history has named.
    open_from: Sequence = 0
    # Batches that a history names and that we lack, with the time of asking for them.
    missing: dict[Sequence, Digest] = field(default_factory=dict)
    ask_at_us: int = 0

    def forget_oldest(self, count: int) -> None:
        forgotten = list(islice(self.accepted, count))
        self.accepted = dict(islice(self.accepted.items(), count, None))
        self.forgotten_below = max(self.forgotten_below, max(forgotten) + 1)


class Replica:
    """A replica's part in the histories of one topic."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._span = scope.topic.windows.span
        self._alpha = scope.topic.contract.history_every
        self._ledgers = defaultdict[Stream, Ledger](Ledger)
        # Streams for which the last missing batch came in this turn.
        self._complete: dict[Stream, None] = {}
        # Streams whose source a history unblocked in this turn, and what waits for that.
        self._unblocked: dict[Stream, None] = {}
        self._antechamber: dict[Stream, list[tuple[NodeId, Publish | Link]]] = {}
        self.broadcast = reliable.Replica(scope, admits=self._admits, on_closed=self._on_delivered)

    def room(self, stream: Stream, first: Sequence) -> int:
        """How many batches from `first` on the source may send before its next history."""
        ledger = self._ledgers[stream]
        open_from = ledger.open_from or first
        room: int = open_from + 2 * self._alpha - first
        return max(0, room)

    def hold_back(self, stream: Stream, sender: NodeId, run: Publish | Link) -> None:
        """Keep a run of a blocked source until its history is delivered.

        A source goes on when f + 1 replicas have delivered a history, and the others may be a
        little behind. It never sends more than 2 alpha batches ahead; what is more is dropped.
        """
        waiting = self._antechamber.setdefault(stream, [])
        batches = sum(len(held.payloads) for _, held in waiting) + len(run.payloads)
        size = sum(len(p) for _, held in waiting for p in held.payloads)
        if batches <= 2 * self._alpha and size <= HELD_BACK_BYTES_MAX:
            waiting.append((sender, run))

    def take_unblocked(self) -> list[tuple[NodeId, Publish | Link]]:
        """The runs that need to wait no longer."""
        unblocked, self._unblocked = self._unblocked, {}
        return [held for stream in unblocked for held in self._antechamber.pop(stream, [])]

    def accepted(self, stream: Stream, first: Sequence, contents: Iterable[Digest]) -> None:
        """Batches were accepted on their own way: the histories to come must agree with them."""
        ledger = self._ledgers[stream]
        if not ledger.open_from:
            ledger.open_from = first
        for sequence, content in enumerate(contents, first):
            ledger.accepted[sequence] = content
            if sequence in ledger.missing:
                del ledger.missing[sequence]
                if not ledger.missing:
                    self._complete[stream] = None
            if len(ledger.accepted) >= 2 * self._span:
                ledger.forget_oldest(self._span)

    def content_of(self, stream: Stream, sequence: Sequence) -> Digest | None:
        return self._ledgers[stream].accepted.get(sequence)

    def status(self, stream: Stream) -> Status:
        """What to tell the source with an acknowledgement (Freeman, listing 6.3)."""
        ledger = self._ledgers[stream]
        intake = self._scope.intakes.get(stream)
        if intake is None or not ledger.open_from:
            return Status.OK
        count = intake.floor - ledger.open_from
        if count >= 2 * self._alpha:
            return Status.BLOCKED
        return Status.HISTORY if count >= self._alpha else Status.OK

    def on_supply(self, sender: NodeId, supply: Supply) -> list[tuple[Stream, Sequence, bytes]]:
        """Payloads that a history named and the source delivers late: accept them now."""
        stream = Stream(supply.publisher, supply.topic, Lane.EVENTS)
        ledger = self._ledgers.get(stream)
        if ledger is None or sender != stream.publisher:
            return []
        return [
            (stream, sequence, payload)
            for sequence, payload in zip(supply.sequences, supply.payloads, strict=True)
            if ledger.missing.get(sequence) == digest(payload)
        ]

    def tick(self) -> None:
        now_us = self._scope.outbox.now_us
        for stream, ledger in self._ledgers.items():
            if ledger.missing and ledger.ask_at_us <= now_us:
                ledger.ask_at_us = now_us + ASK_SOURCE_AFTER_US
                fetch = Fetch(*stream, payload=True, sequences=sorted(ledger.missing))
                self._scope.outbox.send(stream.publisher, fetch)
        self.broadcast.tick()

    def flush(self) -> None:
        """ECHO the histories for which nothing is missing any more, and send all votes."""
        for stream in self._complete:
            self.broadcast.reconsider(stream._replace(lane=Lane.HISTORIES))
        self._complete.clear()
        self.broadcast.flush()

    def forget(self, publisher: NodeId) -> None:
        """This publisher is gone for good."""
        for stream in [s for s in self._ledgers if s.publisher == publisher]:
            del self._ledgers[stream]
            self._complete.pop(stream, None)
            self._unblocked.pop(stream, None)
            self._antechamber.pop(stream, None)
        self.broadcast.forget(publisher)

    def _admits(self, lane: Stream, _: Sequence, payload: bytes) -> bool:
        """May this history be ECHOed? Only if we hold all of it and contradict none of it."""
        stream = lane._replace(lane=Lane.EVENTS)
        try:
            history = History.decode(payload)
        except RemoteProtocolError as error:
            self._scope.outbox.report(stream.publisher, "malformed", str(error))
            return False
        ledger = self._ledgers[stream]
        if history.first < ledger.forgotten_below:
            return False
        missing = {}
        for offset, content in enumerate(history.digests):
            known = ledger.accepted.get(history.first + offset)
            if known is None:
                missing[history.first + offset] = content
            elif known != content:
                self._scope.outbox.report(
                    stream.publisher,
                    "equivocation",
                    f"its history names another content for batch {history.first + offset} than "
                    "it sent",
                )
                return False
        # Remember what to ask the source for, unless it comes by itself.
        if missing and not ledger.missing:
            ledger.ask_at_us = self._scope.outbox.now_us + ASK_SOURCE_AFTER_US
        for sequence, content in missing.items():
            if len(ledger.missing) < self._span:
                ledger.missing.setdefault(sequence, content)
        return not missing

    def _on_delivered(self, lane: Stream, _: Sequence, payload: bytes) -> None:
        """The history is delivered: the source may go on."""
        stream = lane._replace(lane=Lane.EVENTS)
        ledger = self._ledgers[stream]
        history = History.decode(payload)
        end = history.end
        ledger.open_from = max(ledger.open_from, end)
        self._scope.channel.name(stream, history.first, end - 1)
        if stream in self._antechamber:
            self._unblocked[stream] = None
        ledger.missing = {s: content for s, content in ledger.missing.items() if s >= end}
        if stream in self._scope.intakes:
            self._scope.acknowledge(stream, self.status(stream))
