"""Bracha's reliable broadcast (B2).

Source: Freeman 2016, section 3.2, algorithms 4 to 6; Bracha 1987.
Fault model: n = 3f + 1 replicas, at most f Byzantine; sources may be Byzantine too.

A source sends to all replicas. A replica ECHOes the first content it gets to all replicas;
on ⌈(n + f + 1) / 2⌉ ECHOes for one content, or on f + 1 READYs for it, it sends READY for
that content, to the replicas and to its subscribers. A destination delivers on 2f + 1 READYs,
and so does a replica, which then acknowledges to the source.

ECHO and READY carry digests. They are counted per distinct replica and per distinct content;
a replica that votes for two contents is counted once and reported. A replica that is to stand
up for a batch that it never got asks those that vouched for it: a quorum of ECHOes contains a
correct replica that holds the payload.

Channels may lose messages when links break, so a replica repeats its votes for what stays
open, and asks those it has not heard from for theirs; a replica that has closed a batch
answers from what it retains.

Invariants:
- no two correct replicas send READY for different contents under one sequence number, since
  two ECHO quorums share a correct replica, which ECHOes once;
- totality: if one correct destination delivers, f + 1 correct replicas sent READY, so that
  all correct replicas do, and every correct destination delivers;
- what is kept is bounded: per stream, the source and each replica open at most
  a window of instances, and as many closed ones are remembered by their digests, and as many that
  were ECHOed and never completed; all sessions of a member together open at most
  `OPEN_BATCHES_MAX`, whose payloads take at most `OPEN_BYTES_MAX`; each replica opens about as
  many, which publishing members share; and a replica may speak of `STREAMS_MAX` streams of which
  nobody else does.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

import msgspec

from quorate.core.ids import Digest, MemberId, NodeId, Sequence, Stream, member_of
from quorate.core.limits import WINDOW_BATCHES
from quorate.core.messages import Echo, Fetch, Publish, ReadyVote, Supply, Vouch
from quorate.crypto.digests import digest
from quorate.protocol.broadcast.scope import BroadcastReplica, Rules, Scope
from quorate.protocol.budget import gives_way
from quorate.protocol.runs import consecutive
from quorate.protocol.voting import TWO_FACED, Votes

REPEAT_AFTER_US = 300_000
REPEAT_AFTER_US_MAX = 3_000_000
PAYLOAD_PATIENCE_US = 100_000
# A lone batch that nobody ever completes is forgotten after this.
ABANDON_AFTER_US = 60_000_000
REPEAT_BATCHES_MAX = 256
OPEN_BYTES_MAX = 32 * 1024 * 1024
OPEN_BATCHES_MAX = 4 * WINDOW_BATCHES
STREAMS_MAX = 256

# Who opened an instance or a stream: a replica by its position, or the source.
_SOURCE = -1

Vote: TypeAlias = Echo | ReadyVote | Vouch


RULES = Rules(
    guarantee="a correct replica delivered it, so every correct subscriber will",
    copies_to_deliver=lambda quorum: quorum.majority_correct,
    # One of f + 1 is correct, and totality does the rest.
    replicas_to_settle=lambda quorum: quorum.one_correct,
)


class Instance(msgspec.Struct, eq=False, gc=False):
    """The broadcast of one batch, as one replica sees it."""

    sequence: Sequence
    opened_by: int
    since_us: int
    repeat_at_us: int
    repeat_us: int = REPEAT_AFTER_US
    # What we voted for, and what all did.
    echoed: Digest | None = None
    readied: Digest | None = None
    echoes: Votes = msgspec.field(default_factory=Votes)
    readies: Votes = msgspec.field(default_factory=Votes)
    # The payload that is here, and its digest.
    payload: bytes | None = None
    content: Digest | None = None
    urgent: bool = False
    vouched: bool = False
    asked: int = 0


@dataclass(slots=True)
class Share:
    """What all sessions of one member together have open."""

    batches: int = 0
    bytes: int = 0


@dataclass(slots=True, eq=False)
class Progress:
    """All instances of one stream, open and recently closed."""

    stream: Stream
    # A replica, as long as the source has not spoken and no quorum either.
    opened_by: int
    member: MemberId
    share: Share
    open: dict[Sequence, Instance] = field(default_factory=dict)
    closed: dict[Sequence, Digest] = field(default_factory=dict)
    # What we ECHOed of batches that nobody completed: we never ECHO anything else.
    abandoned: dict[Sequence, Digest] = field(default_factory=dict)
    # Below this we no longer know what we ECHOed, and ECHO nothing.
    mute_below: Sequence = 0
    # How many open instances the source (-1) and each replica opened.
    opened: Counter[int] = field(default_factory=Counter)
    # What this turn has to say.
    echo: list[tuple[Sequence, Digest]] = field(default_factory=list)
    ready: list[tuple[Sequence, Digest]] = field(default_factory=list)
    vouch: list[tuple[Sequence, Instance]] = field(default_factory=list)
    ask: dict[NodeId, list[Sequence]] = field(default_factory=dict)
    # Who voted for something else than what was closed, on which batches.
    outvoted: dict[NodeId, list[Sequence]] = field(default_factory=dict)

    @property
    def has_our_voice(self) -> bool:
        """Did we vote on anything of this?"""
        voted = (i.echoed is not None or i.readied is not None for i in self.open.values())
        return bool(self.abandoned) or any(voted)


class Replica(BroadcastReplica):
    """One replica's half, for one lane of one topic.

    `admits` lets a history add its own condition before it is echoed; it is asked again when
    the source or a tick comes back to the batch.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        admits: Callable[[Stream, Sequence, bytes], bool] | None = None,
        on_closed: Callable[[Stream, Sequence, bytes], None] | None = None,
    ) -> None:
        self._scope = scope
        self._span = scope.topic.windows.span
        quorum = scope.topic.quorum
        self._echoes_to_ready = quorum.intersecting
        self._readies_to_ready = quorum.one_correct
        self._readies_to_close = quorum.majority_correct
        self._index = scope.topic.index
        self._mine = 1 << self._index[scope.me]
        self._admits = admits
        self._on_closed = on_closed
        self._streams: dict[Stream, Progress] = {}
        self._shares: dict[MemberId, Share] = {}
        # How many instances each replica opened, on all streams of each member together.
        self._opened = [Counter[MemberId]() for _ in scope.topic.members]
        self._touched: dict[Progress, None] = {}

    def on_publish(self, publisher: NodeId, publish: Publish) -> None:
        scope = self._scope
        stream = Stream(publisher, publish.topic, publish.lane)
        intake = scope.intake(stream, publish.settled)
        if scope.channel.is_full(stream):
            scope.refuse(stream)
            return
        progress = self._progress(stream, _SOURCE)
        progress.opened_by = _SOURCE
        for offset, payload in enumerate(publish.payloads):
            sequence = publish.first + offset
            if sequence in progress.closed or not intake.is_new(sequence):
                intake.accept(sequence, 1)
                scope.acknowledge(stream)
                continue
            instance = self._instance(progress, sequence, _SOURCE)
            room = progress.share.bytes + len(payload) <= OPEN_BYTES_MAX
            if instance is not None and instance.payload is None and room:
                instance.urgent = publish.urgent
                self._hold(progress, instance, payload, digest(payload))
                self._take_in(progress, instance)

    def on_echo(self, replica: NodeId, echo: Echo) -> None:
        self._count(replica, echo, are_echoes=True)

    def on_ready(self, replica: NodeId, vote: ReadyVote | Vouch) -> None:
        """READY, as it is first sent or, as a `Vouch`, repeated because we asked."""
        self._count(replica, vote, are_echoes=False)

    def _count(self, replica: NodeId, vote: Vote, *, are_echoes: bool) -> None:
        """Count each vote of a replica once."""
        position = self._index[replica]
        progress = self._votes_for(vote, position)
        if progress is None:
            return
        bit = 1 << position
        needed = self._echoes_to_ready if are_echoes else self._readies_to_ready
        for sequence, content in enumerate(vote.digests, vote.first):
            known = progress.open.get(sequence)
            instance = known or self._instance(progress, sequence, position)
            if instance is None:
                continue
            equal = (instance.echoes if are_echoes else instance.readies).add(bit, content)
            if equal == TWO_FACED:
                self._scope.outbox.report(
                    replica,
                    "equivocation",
                    f"voted for two contents of batch {sequence} of publisher {vote.publisher}",
                )
            elif equal < needed:
                continue
            elif not are_echoes:
                self._weigh_readies(progress, instance, content, equal)
            elif instance.readied is None:
                self._get_ready(progress, instance, content)

    def on_supply(self, supply: Supply) -> None:
        """A payload that we asked for. Only its digest makes it the right one."""
        stream = Stream(supply.publisher, supply.topic, supply.lane)
        progress = self._streams.get(stream)
        if progress is None:
            return
        for sequence, payload in zip(supply.sequences, supply.payloads, strict=True):
            instance = progress.open.get(sequence)
            if instance is None or instance.vouched or instance.readied != digest(payload):
                continue
            self._hold(progress, instance, payload, instance.readied)
            self._take_in(progress, instance)

    def inquire(self, stream: Stream, sequences: list[Sequence]) -> None:
        """A subscriber asks about batches that we never heard of: ask the others in turn.

        They may have closed them while we were out of reach, and repeat nothing unasked.
        """
        progress = self._streams.get(stream)
        known = progress.open.keys() | progress.closed.keys() if progress else ()
        unknown = [s for s in sequences[:REPEAT_BATCHES_MAX] if s not in known]
        if unknown:
            ask = Fetch(*stream, payload=False, sequences=unknown)
            self._scope.outbox.send_all(self._scope.others, ask)

    def forget(self, publisher: NodeId) -> None:
        """This publisher is gone for good."""
        for stream in [s for s in self._streams if s.publisher == publisher]:
            self._drop(stream)

    def reconsider(self, stream: Stream) -> None:
        """What `admits` refused for now may be admitted by now."""
        progress = self._streams.get(stream)
        for instance in list(progress.open.values()) if progress else ():
            if progress and instance.payload is not None and instance.echoed is None:
                self._take_in(progress, instance)

    def tick(self) -> None:
        """Repeat what stays open, forget what nobody will ever complete."""
        now_us = self._scope.outbox.now_us
        for stream, progress in list(self._streams.items()):
            if progress.opened_by != _SOURCE and not progress.open and not progress.abandoned:
                del self._streams[stream]
                self._touched.pop(progress, None)
            due = [i for i in progress.open.values() if i.repeat_at_us <= now_us]
            for instance in due[:REPEAT_BATCHES_MAX]:
                if now_us - instance.since_us > ABANDON_AFTER_US:
                    self._abandon(progress, instance)
                else:
                    self._repeat(progress, instance)

    def flush(self) -> None:
        """Send this turn's votes as runs, and stand up for what became ready."""
        outbox = self._scope.outbox
        for progress in self._touched:
            stream, others = progress.stream, self._scope.others
            for first, digests in consecutive(progress.echo):
                outbox.send_all(others, Echo(*stream, first, digests))
            for first, digests in consecutive(progress.ready):
                outbox.send_all(others, ReadyVote(*stream, first, digests))
            for first, instances in consecutive(progress.vouch):
                payloads = [i.payload for i in instances if i.payload is not None]
                digests = [i.readied for i in instances if i.readied is not None]
                urgent = any(instance.urgent for instance in instances)
                self._scope.vouch(stream, urgent, first, payloads, digests)
            for replica, sequences in progress.ask.items():
                outbox.send(replica, Fetch(*stream, payload=True, sequences=sequences))
            # Once a turn, however many there are: to hear of lies must not cost more than lying.
            for replica, sequences in progress.outvoted.items():
                what = f"voted for another content of batch {sequences[0]}"
                if len(sequences) > 1:
                    what += f" and {len(sequences) - 1} more"
                outbox.report(replica, "outvoted", f"{what} of publisher {stream.publisher}")
            progress.echo, progress.ready, progress.vouch = [], [], []
            progress.ask, progress.outvoted = {}, {}
        self._touched.clear()

    # The rules

    def _take_in(self, progress: Progress, instance: Instance) -> None:
        """The payload is here: ECHO it, unless we have ECHOed or must not."""
        sequence, payload, content = instance.sequence, instance.payload, instance.content
        assert payload is not None
        assert content is not None
        if instance.readied is not None and instance.readied != content:
            # The others are past the ECHOes, and for something else: fetch that instead.
            self._drop_payload(progress, instance)
            return
        may_echo = instance.echoed is None and sequence >= progress.mute_below
        if may_echo and (self._admits is None or self._admits(progress.stream, sequence, payload)):
            instance.echoed = content
            equal = instance.echoes.add(self._mine, content)
            progress.echo.append((sequence, content))
            self._touched[progress] = None
            if instance.readied is None and equal >= self._echoes_to_ready:
                self._get_ready(progress, instance, content)
        if instance.readied == content:
            self._vouch(progress, instance)
            count = instance.readies.votes_for(content).bit_count()
            self._weigh_readies(progress, instance, content, count)

    def _get_ready(self, progress: Progress, instance: Instance, content: Digest) -> None:
        instance.readied = content
        count = instance.readies.add(self._mine, content)
        progress.ready.append((instance.sequence, content))
        self._touched[progress] = None
        if instance.content == content:
            self._vouch(progress, instance)
        else:
            # It is probably on its way from the source; if not, `tick` asks for it.
            self._drop_payload(progress, instance)
            due_us = self._scope.outbox.now_us + PAYLOAD_PATIENCE_US
            instance.repeat_at_us = min(instance.repeat_at_us, due_us)
        self._weigh_readies(progress, instance, content, count)

    def _weigh_readies(
        self, progress: Progress, instance: Instance, content: Digest, count: int
    ) -> None:
        if instance.readied is None and count >= self._readies_to_ready:
            self._get_ready(progress, instance, content)
        elif count >= self._readies_to_close and instance.vouched:
            self._close(progress, instance, content)

    def _close(self, progress: Progress, instance: Instance, content: Digest) -> None:
        stream, sequence = progress.stream, instance.sequence
        if sequence not in progress.open:
            return
        echoes, readies = instance.echoes, instance.readies
        if echoes.votes != echoes.voters or readies.votes != readies.voters:
            # Those who voted for something else lied, or the source lied to them.
            outvoted = echoes.others_than(content) | readies.others_than(content)
            for replica in self._replicas(outvoted & ~self._mine):
                progress.outvoted.setdefault(replica, []).append(sequence)
            self._touched[progress] = None
        self._forget(progress, instance)
        progress.opened_by = _SOURCE
        progress.closed[sequence] = content
        if len(progress.closed) >= 2 * self._span:
            progress.closed = dict(islice(progress.closed.items(), self._span, None))
        self._scope.intake(stream, 0).accept(sequence, 1)
        self._scope.acknowledge(stream)
        if self._on_closed is not None and instance.payload is not None:
            self._on_closed(stream, sequence, instance.payload)

    def _vouch(self, progress: Progress, instance: Instance) -> None:
        if not instance.vouched:
            instance.vouched = True
            progress.vouch.append((instance.sequence, instance))
            self._touched[progress] = None

    # Bookkeeping

    def _progress(self, stream: Stream, opener: int) -> Progress:
        progress = self._streams.get(stream)
        if progress is None:
            member = member_of(stream.publisher)
            share = self._shares.setdefault(member, Share())
            progress = self._streams[stream] = Progress(stream, opener, member, share)
        return progress

    def _votes_for(self, vote: Vote, position: int) -> Progress | None:
        """The stream that a replica votes on, unless it has made up too many already."""
        stream = Stream(vote.publisher, vote.topic, vote.lane)
        if stream not in self._streams:
            alone = [s for s, progress in self._streams.items() if progress.opened_by == position]
            if len(alone) >= STREAMS_MAX and not self._make_room(alone, member_of(vote.publisher)):
                return None
        return self._progress(stream, position)

    def _make_room(self, alone: list[Stream], member: MemberId) -> bool:
        """Forget a stream of the member that has most of these, unless it is this one."""
        idle = [stream for stream in alone if not self._streams[stream].has_our_voice]
        largest = gives_way((stream.publisher for stream in idle), member)
        if largest is None:
            return False
        oldest = next(stream for stream in idle if member_of(stream.publisher) == largest)
        self._drop(oldest)
        return True

    def _drop(self, stream: Stream) -> None:
        progress = self._streams.pop(stream)
        self._touched.pop(progress, None)
        for instance in list(progress.open.values()):
            self._forget(progress, instance)

    def _instance(self, progress: Progress, sequence: Sequence, opener: int) -> Instance | None:
        """The open instance, or a new one as long as its opener has few others open."""
        instance = progress.open.get(sequence)
        if instance is not None:
            return instance
        if sequence in progress.closed or progress.opened[opener] >= self._span:
            return None
        if opener == _SOURCE:
            if progress.share.batches >= OPEN_BATCHES_MAX:
                return None
            progress.share.batches += 1
        else:
            opened, member = self._opened[opener], progress.member
            # Whoever has none open may begin, however many others have.
            if opened[member] and opened[member] >= OPEN_BATCHES_MAX // len(opened):
                return None
            opened[member] += 1
        progress.opened[opener] += 1
        now_us = self._scope.outbox.now_us
        instance = Instance(sequence, opener, now_us, now_us + REPEAT_AFTER_US)
        progress.open[sequence] = instance
        echoed = progress.abandoned.pop(sequence, None) if progress.abandoned else None
        if echoed is not None:
            instance.echoed = echoed
            instance.echoes.add(self._mine, echoed)
        return instance

    def _abandon(self, progress: Progress, instance: Instance) -> None:
        """Nobody will ever complete this, or its source comes back to it: with the same content."""
        self._forget(progress, instance)
        if instance.echoed is not None:
            progress.abandoned[instance.sequence] = instance.echoed
        if len(progress.abandoned) >= 2 * self._span:
            forgotten = list(islice(progress.abandoned, self._span))
            progress.abandoned = dict(islice(progress.abandoned.items(), self._span, None))
            progress.mute_below = max(progress.mute_below, max(forgotten) + 1)

    def _forget(self, progress: Progress, instance: Instance) -> None:
        opener = instance.opened_by
        progress.opened[opener] -= 1
        if opener == _SOURCE:
            progress.share.batches -= 1
        else:
            opened = self._opened[opener]
            opened[progress.member] -= 1
            if not opened[progress.member]:
                del opened[progress.member]
        progress.share.bytes -= len(instance.payload or b"")
        del progress.open[instance.sequence]

    def _hold(
        self, progress: Progress, instance: Instance, payload: bytes, content: Digest
    ) -> None:
        progress.share.bytes += len(payload) - len(instance.payload or b"")
        instance.payload, instance.content = payload, content

    def _drop_payload(self, progress: Progress, instance: Instance) -> None:
        progress.share.bytes -= len(instance.payload or b"")
        instance.payload = instance.content = None

    def _repeat(self, progress: Progress, instance: Instance) -> None:
        sequence = instance.sequence
        instance.repeat_us = min(2 * instance.repeat_us, REPEAT_AFTER_US_MAX)
        instance.repeat_at_us = self._scope.outbox.now_us + instance.repeat_us
        if instance.payload is not None and instance.echoed is None:
            self._take_in(progress, instance)
        elif instance.echoed is not None:
            progress.echo.append((sequence, instance.echoed))
        if instance.readied is not None:
            progress.ready.append((sequence, instance.readied))
            if instance.payload is None:
                self._ask_for_payload(progress, instance, instance.readied)
        silent = ~(instance.readies.voters | self._mine)
        ask = Fetch(*progress.stream, payload=False, sequences=[sequence])
        self._scope.outbox.send_all(self._replicas(silent), ask)
        self._touched[progress] = None

    def _ask_for_payload(self, progress: Progress, instance: Instance, content: Digest) -> None:
        """Ask one of those that vouched, and each time the next."""
        votes = instance.echoes.votes_for(content) | instance.readies.votes_for(content)
        vouchers = list(self._replicas(votes & ~self._mine))
        if vouchers:
            replica = vouchers[instance.asked % len(vouchers)]
            instance.asked += 1
            progress.ask.setdefault(replica, []).append(instance.sequence)

    def _replicas(self, votes: int) -> Iterable[NodeId]:
        return (node for node, position in self._index.items() if votes >> position & 1)
