"""One topic as one subscriber sees it: the replicas, its lead among them, and the streams.

Payloads come from one replica per topic, the lead, and the others send digests. A lead that lied
or fell silent is replaced, and whoever was caught out is heard last for a while.
"""

from collections import Counter
from typing import TYPE_CHECKING

from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import Lane, MemberId, NodeId, Sequence, Stream, member_of
from quorate.protocol.broadcast.history import History
from quorate.protocol.budget import Budget, gives_way
from quorate.protocol.incoming import PATIENCE_US, Incoming
from quorate.protocol.machine import Delivery
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import Standing
from quorate.protocol.topic import Topic

if TYPE_CHECKING:
    from quorate.protocol.destination import Destination

EARLY_BYTES_MAX = 32 * 1024 * 1024
# So many streams may one replica speak of while the others know nothing of them.
STREAMS_MAX = 256
# A lead that is late with so many decided batches, on balance, is replaced.
LATE_BATCHES_MAX = 64
# Whoever was caught out is heard last for a while: mostly a quorum is there without it by then,
# and what it says does not make others be counted batch by batch. Whoever was only outvoted, about
# the same publisher alone: a publisher that lies can have everybody outvoted in turn.
DISTRUST_US = 10_000_000
# Publishers come and go: a stream on which nothing moves for so long is forgotten.
IDLE_STREAM_US = 120_000_000
PAST_STREAMS_MAX = 16_384


class Subscription:
    """One topic: its lead, and the streams of its publishers."""

    def __init__(
        self, topic: Topic, outbox: Outbox, destination: "Destination", standing: Standing
    ) -> None:
        self.topic = topic
        self.outbox = outbox
        self.standing = standing
        self.streams: dict[Stream, Incoming] = {}
        # Payloads that are here before their content is decided.
        self.early = Budget(EARLY_BYTES_MAX)
        self.delivered = 0
        self.left_out = 0
        self.blames: Counter[NodeId] = Counter()
        self.late: Counter[NodeId] = Counter()
        # How many batches our lead is late with, on balance.
        self.overdue = 0
        self.lead_since_us = outbox.now_us
        # Until when to hear these replicas last, about whom; None stands for everybody.
        self._distrusted: dict[tuple[NodeId, MemberId | None], int] = {}
        # Until when not to blame these replicas again for what may be this publisher's lie.
        self._blamed: dict[tuple[NodeId, MemberId], int] = {}
        # Where streams that were forgotten would go on.
        self._past: dict[Stream, Sequence] = {}
        self._destination = destination
        # Something is missing that nobody will send by himself: ask at the end of this turn.
        self.hurry = destination.hurry

    def incoming_from(self, replica: NodeId, publisher: NodeId, lane: Lane) -> Incoming | None:
        """The stream that a replica speaks of, unless it has made up too many already."""
        if Stream(publisher, self.topic.id, lane) not in self.streams:
            mine = [i for i in self.streams.values() if i.opened_by == replica and i.is_hearsay]
            if len(mine) >= STREAMS_MAX and not self._make_room(mine, member_of(publisher)):
                return None
            self.incoming(publisher, lane).opened_by = replica
        return self.incoming(publisher, lane)

    def _make_room(self, hearsay: list[Incoming], member: MemberId) -> bool:
        """Forget a stream of the member that has most of these, unless it is this one.

        A publisher can tell each of its sessions to one replica alone: that must not keep others
        from being heard of.
        """
        largest = gives_way((incoming.stream.publisher for incoming in hearsay), member)
        if largest is None:
            return False
        oldest = next(i for i in hearsay if member_of(i.stream.publisher) == largest)
        oldest.drop_payloads()
        del self.streams[oldest.stream]
        return True

    def incoming(self, publisher: NodeId, lane: Lane) -> Incoming:
        stream = Stream(publisher, self.topic.id, lane)
        incoming = self.streams.get(stream)
        if incoming is None:
            incoming = self.streams[stream] = self._destination.make_incoming(stream, self)
            incoming.moved_at_us = self.outbox.now_us
            incoming.resume(self._past.pop(stream, None))
        return incoming

    def forget_idle_streams(self, now_us: int) -> None:
        for stream, incoming in list(self.streams.items()):
            limit_us = PATIENCE_US if incoming.is_hearsay else IDLE_STREAM_US
            if incoming.is_idle and now_us - incoming.moved_at_us > limit_us:
                del self.streams[stream]
                if incoming.is_hearsay:
                    continue
                # Replicas may go on to speak of it: nothing may be delivered a second time.
                self._past[stream] = max(incoming.low or 0, incoming.highest + 1)
                if len(self._past) > PAST_STREAMS_MAX:
                    del self._past[next(iter(self._past))]

    def deliver(self, delivery: Delivery) -> None:
        if delivery.stream.lane is Lane.EVENTS:
            self.delivered += 1
            self.outbox.deliver(delivery)
            return
        try:
            history = History.decode(delivery.payload)
        except RemoteProtocolError as error:
            self.outbox.report(delivery.stream.publisher, "malformed", str(error))
            return
        events = self.incoming(delivery.stream.publisher, Lane.EVENTS)
        events.on_history(history, delivery.vouchers)

    def deliver_all(self, deliveries: list[Delivery]) -> None:
        if deliveries[0].stream.lane is Lane.EVENTS:
            self.delivered += len(deliveries)
            self.outbox.deliver_all(deliveries)
        else:
            for delivery in deliveries:
                self.deliver(delivery)

    def is_granted_by(self, replica: NodeId) -> bool:
        """Has this replica told us what it knew, and sends us what it accepts from then on?"""
        return self.standing.voter.replies.get(replica) == ""

    def find_starts(self) -> None:
        """One more replica has answered."""
        for incoming in list(self.streams.values()):
            incoming.find_start()

    def note_in_time(self, replica: NodeId, batches: int) -> None:
        """The lead sent these before we had to ask for them."""
        if replica == self.standing.lead:
            self.overdue = max(0, self.overdue - batches)

    def note_late(self, batches: int) -> None:
        """The quorum is ahead of what our lead sends: after a while, take another lead.

        Late ones count twice, so that a lead which leaves out every other batch is found out.
        """
        self.overdue += 2 * batches
        lead = self.standing.lead
        if lead is not None and self.overdue > LATE_BATCHES_MAX:
            self.overdue = 0
            self.late[lead] += 1
            self.outbox.report(lead, "late", f"as the lead of a subscriber of {self.topic.name}")
            self._destination.choose_lead(self, avoid=lead)

    def distrust(self, replica: NodeId, about: MemberId | None = None) -> None:
        self._distrusted[replica, about] = self.outbox.now_us + DISTRUST_US

    def is_distrusted(self, replica: NodeId, about: MemberId) -> bool:
        if not self._distrusted:
            return False
        until_us = self._distrusted.get((replica, None), 0)
        return self.outbox.now_us < max(until_us, self._distrusted.get((replica, about), 0))

    def blame(self, replica: NodeId, what: str, about: MemberId | None = None) -> None:
        """This replica did what no correct one does. It does not stay our lead.

        Unless the publisher that this is about may have lied to it: that costs each replica its
        lead once in a while, and not with every batch.
        """
        now_us = self.outbox.now_us
        self.distrust(replica, about)
        # Where nobody is assumed to lie, nobody can tell which of two voices is wrong.
        lies = self.topic.contract.protection == "byzantine"
        self.outbox.report(replica, "forgery" if lies else "disagreement", what)
        if about is not None and now_us < self._blamed.get((replica, about), 0):
            return
        if about is not None:
            self._blamed[replica, about] = now_us + DISTRUST_US
        self.blames[replica] += 1
        if replica == self.standing.lead:
            self._destination.choose_lead(self, avoid=replica)
