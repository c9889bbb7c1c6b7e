"""The replica of a cluster as one machine: topics, channels, and a protocol for each.

It checks who may say what before a protocol sees it: sources must be registered and on the
access list, votes must come from a replica of the topic, everything must be about a topic
that this replica serves. Whatever else comes is reported under the name of its sender and
dropped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from quorate.core.cluster import CLIENT_NUMBER_MIN, Cluster
from quorate.core.errors import LocalProtocolError
from quorate.core.filter import Filter
from quorate.core.header import are_basic
from quorate.core.ids import Lane, MemberId, NodeId, Stream, TopicId, member_of
from quorate.core.limits import WINDOWS
from quorate.core.messages import (
    Ack,
    Echo,
    Fetch,
    Link,
    Message,
    Operation,
    Publish,
    ReadyVote,
    Reply,
    Request,
    Status,
    Supply,
    Taken,
    Vouch,
)
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol.broadcast import chain, forwarding, history, reliable
from quorate.protocol.broadcast.scope import BroadcastReplica, Scope
from quorate.protocol.channel import Channel
from quorate.protocol.machine import Ready, Topology
from quorate.protocol.ordering.replica import HANDLERS as ORDERING
from quorate.protocol.ordering.replica import Ordering
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import GIVING_BACK, other_terms
from quorate.protocol.retention import Retention
from quorate.protocol.topic import Topic, by_id, topics_of

FRONTIER_EVERY_US = 500_000
TICK_EVERY_US = 50_000
DEPARTED_KEPT_US = 60_000_000
# Of each member.
DEPARTED_MAX = 256
# As long as something of them waits for a subscriber, they are not forgotten; so long at most. A
# member with so many of them has to wait before it begins another.
WAITED_FOR_KEPT_US = 600_000_000
WAITED_FOR_MAX = 1024
DISMISSED_MAX = 65_536
WAITED_FOR = f"{WAITED_FOR_MAX} of your sessions are gone, and their events wait for subscribers"
DISMISSED = f"more than {DEPARTED_MAX} of your sessions are gone, and this is one; begin another"


class Served:
    """One topic that this replica serves, with the protocol that its contract names."""

    def __init__(self, scope: Scope) -> None:
        contract = scope.topic.contract
        self.scope = scope
        self.histories = history.Replica(scope) if contract.history_every else None
        self.replica: BroadcastReplica
        if contract.protocol == "reliable":
            self.replica = reliable.Replica(scope)
        elif contract.protocol == "chain":
            self.replica = chain.Replica(scope, self.histories)
        else:
            self.replica = forwarding.Replica(scope, self.histories)

    def broadcast(self, lane: Lane) -> reliable.Replica | None:
        """Where votes of this lane go, if it has any."""
        if lane is Lane.HISTORIES:
            return self.histories.broadcast if self.histories else None
        return self.replica if isinstance(self.replica, reliable.Replica) else None

    def flush(self) -> bool:
        """Carry out what this turn asks for. True if some of it is left for the next turn."""
        self.replica.flush()
        if self.histories is not None:
            self.histories.flush()
            # Go on with what waited for a history that is delivered now.
            for sender, run in self.histories.take_unblocked():
                self.replica.on_publish(sender, run)
        has_more = self.scope.channel.drain()
        self.scope.flush_acks()
        return has_more

    def forget(self, publisher: NodeId) -> None:
        self.replica.forget(publisher)
        if self.histories is not None:
            self.histories.forget(publisher)
        self.scope.forget(publisher)

    def tick(self) -> None:
        self.replica.tick()
        if self.histories is not None:
            self.histories.tick()


class Broker:
    """One replica. `names` gives the client names that access lists use."""

    def __init__(
        self,
        me: NodeId,
        topics: Iterable[Topic],
        names: Mapping[MemberId, str],
        macs: PairwiseMacs,
        make_ordering: Callable[[Outbox], Ordering] | None = None,
    ) -> None:
        self.me = me
        self.counters: Counter[str] = Counter()
        self._outbox = Outbox()
        self.ordering = make_ordering(self._outbox) if make_ordering is not None else None
        self._names = dict(names)
        self._macs = macs
        topics = list(topics)
        widest = max((topic.windows.span for topic in topics), default=WINDOWS.span)
        self._retention = Retention(batches_max=widest)
        self._all_topics: dict[TopicId, Topic] = {}
        self.topics: dict[TopicId, Served] = {}
        if self.ordering is not None and self.ordering.steward is not None:
            # The cluster file says how it began; commands may have changed it since.
            cluster = self.ordering.steward.control.cluster
            topics = topics_of(cluster)
            self._name_clients(cluster)
            self.ordering.on_topology = self._adopt
        self._serve(topics)
        self._dirty: dict[TopicId, None] = {}
        # Clients whose link is down, since when: they may come back with the same session.
        self._departed: dict[NodeId, int] = {}
        # Those that we have forgotten before their time. They must not come back meanwhile: they
        # could say something else under the same numbers.
        self._dismissed: dict[NodeId, int] = {}
        self._next_frontier_us = 0
        self._next_tick_us = 0

    # Machine

    def step(self, sender: NodeId, message: Message) -> None:
        if handler := _ON_TOPICS.get(type(message)):
            said: Any = message
            served = self._served_for(sender, said.topic)
            if served is not None:
                handler(self, served, sender, said)
        elif isinstance(message, Request):
            self._on_request(sender, message)
        elif self.ordering is not None and type(message) in ORDERING:
            self.ordering.step(sender, message)
        else:
            self._refuse(sender, f"{type(message).__name__} is not for a replica")

    def tick(self, now_us: int) -> None:
        self._outbox.now_us = now_us
        if self.ordering is not None:
            self.ordering.tick(now_us)
        if now_us < self._next_tick_us:
            return
        self._next_tick_us = now_us + TICK_EVERY_US
        self._outbox.wake_at(self._next_tick_us)
        announce = now_us >= self._next_frontier_us
        if announce:
            self._next_frontier_us = now_us + FRONTIER_EVERY_US
            self._forget_departed(now_us)
        for topic, served in self.topics.items():
            served.tick()
            if announce:
                served.scope.channel.announce_frontiers()
            self._dirty[topic] = None

    def connected(self, peer: NodeId) -> None:
        """Clients register again by themselves; replicas keep no session."""
        self._departed.pop(peer, None)

    def disconnected(self, peer: NodeId) -> None:
        for served in self.topics.values():
            served.scope.channel.gone(peer)
        if self.ordering is not None:
            self.ordering.disconnected(peer)
        if member_of(peer) >= CLIENT_NUMBER_MIN:
            self._departed[peer] = self._outbox.now_us

    def writable(self, peer: NodeId, writable: bool) -> None:
        """The link to this peer takes more, or has its buffers full."""
        for topic, served in self.topics.items():
            outlet = served.scope.channel.outlets.get(peer)
            if outlet is not None:
                outlet.open = writable
                self._dirty[topic] = None
        if self.ordering is not None:
            self.ordering.writable(peer, writable)

    def take(self) -> Ready:
        self._dirty = {topic: None for topic in self._dirty if self.topics[topic].flush()}
        has_more = self.ordering is not None and self.ordering.flush()
        if self._dirty or has_more:
            self._outbox.wake_at(self._outbox.now_us)
        return self._outbox.take()

    # Topics

    def _serve(self, topics: Iterable[Topic]) -> None:
        self._all_topics = by_id(topics)
        for topic in self._all_topics.values():
            if self.me not in topic.index or topic.contract.is_log:
                continue
            served = self.topics.get(topic.id)
            if served is not None:
                served.scope.change_terms(topic)
                continue
            channel = Channel(topic, self._names, self._outbox)
            scope = Scope(self.me, topic, channel, self._retention, self._outbox, self._macs)
            self.topics[topic.id] = Served(scope)

    def _adopt(self, cluster: Cluster) -> None:
        """A command has changed topics, replicas or clients."""
        self._name_clients(cluster)
        self._serve(topics_of(cluster))
        self._outbox.deliver(Topology(cluster))

    def _name_clients(self, cluster: Cluster) -> None:
        """Channels look at the same names."""
        self._names.clear()
        self._names.update({client.number: client.name for client in cluster.clients})

    def _forget_departed(self, now_us: int) -> None:
        """Streams of sessions that stay away are forgotten, at once when a member has many.

        Not before subscribers were sent what they published, which has its receipt.
        """
        gone = Counter(map(member_of, self._departed))
        for client, since_us in list(self._departed.items()):
            away_us = now_us - since_us
            is_long_gone = away_us > DEPARTED_KEPT_US
            if not is_long_gone and gone[member_of(client)] <= DEPARTED_MAX:
                continue
            if away_us > WAITED_FOR_KEPT_US or not self._is_waited_for(client):
                del self._departed[client]
                gone[member_of(client)] -= 1
                for served in self.topics.values():
                    served.forget(client)
                if not is_long_gone:
                    self._dismissed[client] = since_us
        for client, since_us in list(self._dismissed.items()):
            if now_us - since_us > DEPARTED_KEPT_US or len(self._dismissed) > DISMISSED_MAX:
                del self._dismissed[client]

    def _is_waited_for(self, publisher: NodeId) -> bool:
        return any(served.scope.channel.holds(publisher) for served in self.topics.values())

    def _register(self, channel: Channel, client: NodeId) -> str:
        if client in self._dismissed:
            return DISMISSED
        gone = sum(member_of(other) == member_of(client) for other in self._departed)
        return WAITED_FOR if gone >= WAITED_FOR_MAX else channel.register(client)

    # Messages

    def _on_publish(self, served: Served, sender: NodeId, publish: Publish) -> None:
        if not served.scope.channel.may_publish(sender):
            self._refuse(sender, f"is not registered to publish on '{served.scope.topic.name}'")
            return
        if publish.lane is Lane.EVENTS and not are_basic(publish.payloads):
            self._outbox.report(sender, "bad-batch", f"a header in the run at {publish.first}")
            return
        self.counters["batches_in"] += len(publish.payloads)
        if publish.lane is Lane.HISTORIES and served.histories is not None:
            served.histories.broadcast.on_publish(sender, publish)
        elif publish.lane is Lane.EVENTS and served.replica.takes is Publish:
            served.replica.on_publish(sender, publish)
        else:
            self._refuse(sender, f"sent a {publish.lane.name} run that its topic does not take")

    def _on_link(self, served: Served, sender: NodeId, link: Link) -> None:
        if served.replica.takes is not Link or not served.scope.channel.may_publish(link.publisher):
            self._refuse(sender, "sent a chain's run to a topic or for a publisher without one")
            return
        if not are_basic(link.payloads):
            self._outbox.report(link.publisher, "bad-batch", f"a header in the run at {link.first}")
            return
        self.counters["batches_in"] += len(link.payloads)
        served.replica.on_publish(sender, link)

    def _on_vote(self, served: Served, sender: NodeId, vote: Echo | ReadyVote | Vouch) -> None:
        broadcast = served.broadcast(vote.lane)
        known = member_of(vote.publisher) in self._names
        if broadcast is None or sender not in served.scope.topic.index or not known:
            self._refuse(sender, f"{type(vote).__name__} from outside its topic")
        elif isinstance(vote, Echo):
            broadcast.on_echo(sender, vote)
        else:
            broadcast.on_ready(sender, vote)

    def _on_fetch(self, served: Served, sender: NodeId, fetch: Fetch) -> None:
        served.scope.answer(sender, fetch)
        if sender not in served.scope.channel.outlets:
            return
        stream = Stream(fetch.publisher, fetch.topic, fetch.lane)
        broadcast = served.broadcast(fetch.lane)
        if broadcast is not None and not fetch.payload:
            broadcast.inquire(stream, fetch.sequences)
        if (
            served.replica.takes is Link
            and fetch.payload
            and fetch.lane is Lane.EVENTS
            and stream in served.scope.intakes
        ):
            # A subscriber comes to us for what the chain should have brought: tell its source
            # which, since it may have left that chain already.
            repair = Ack(stream.topic, stream.lane, Status.REPAIR, max(fetch.sequences))
            self._outbox.send(stream.publisher, repair)

    def _on_taken(self, served: Served, sender: NodeId, taken: Taken) -> None:
        served.scope.channel.on_taken(sender, taken)

    def _on_supply(self, served: Served, sender: NodeId, supply: Supply) -> None:
        if supply.lane is Lane.EVENTS and not are_basic(supply.payloads):
            self._outbox.report(sender, "bad-batch", "a header in what it supplied")
            return
        if supply.lane is Lane.EVENTS and served.histories is not None:
            for late in served.histories.on_supply(sender, supply):
                served.replica.accept_late(*late)
        broadcast = served.broadcast(supply.lane)
        if broadcast is not None and sender in served.scope.topic.index:
            broadcast.on_supply(supply)

    def _on_request(self, sender: NodeId, request: Request) -> None:
        named = next((s for s in self.topics.values() if s.scope.topic.name == request.topic), None)
        log = self.ordering.topic(request.topic) if self.ordering is not None else None
        if log is not None and self.ordering is not None:
            sentence = self.ordering.admit(sender, log, request)
        elif named is None:
            # The same words from every replica, or no quorum of them would agree.
            known = ", ".join(sorted(topic.name for topic in self._all_topics.values()))
            sentence = f"there is no topic '{request.topic}' here; the topics are {known}"
        else:
            sentence = self._carry_out(named.scope, sender, request)
            self._dirty[named.scope.topic.id] = None
        self._outbox.send(sender, Reply(request.number, sentence))
        if sentence:
            self._outbox.report(sender, "refused", sentence)

    def _carry_out(self, scope: Scope, sender: NodeId, request: Request) -> str:
        channel, terms = scope.channel, scope.topic.contract.terms
        if request.operation not in GIVING_BACK and request.terms != terms:
            return other_terms(scope.topic)
        if request.operation is Operation.REGISTER:
            return self._register(channel, sender)
        if request.operation is Operation.SUBSCRIBE:
            return self._subscribe(scope, sender, request)
        if request.operation is Operation.UNREGISTER:
            channel.unregister(sender)
        else:
            channel.unsubscribe(sender)
        return ""

    def _subscribe(self, scope: Scope, sender: NodeId, request: Request) -> str:
        try:
            wanted = Filter(request.key_prefix, request.headers)
        except LocalProtocolError as error:
            return str(error)
        is_here = sender in scope.channel.outlets
        sentence = scope.channel.subscribe(sender, request.lead, wanted, number=request.number)
        if not sentence and not is_here:
            scope.introduce(sender)
        return sentence

    # Guards

    def _served_for(self, sender: NodeId, topic: TopicId) -> Served | None:
        served = self.topics.get(topic)
        if served is None:
            known = self._all_topics.get(topic)
            what = f"topic '{known.name}'" if known else f"unknown topic {topic}"
            self._refuse(sender, f"sent something about {what}, which this replica does not serve")
            return None
        self._dirty[topic] = None
        return served

    def _refuse(self, sender: NodeId, sentence: str) -> None:
        self.counters["rejected"] += 1
        self._outbox.report(sender, "rejected", sentence)


_ON_TOPICS: dict[type, Callable[[Broker, Served, NodeId, Any], None]] = {
    Publish: Broker._on_publish,
    Link: Broker._on_link,
    Echo: Broker._on_vote,
    ReadyVote: Broker._on_vote,
    Vouch: Broker._on_vote,
    Fetch: Broker._on_fetch,
    Supply: Broker._on_supply,
    Taken: Broker._on_taken,
}
