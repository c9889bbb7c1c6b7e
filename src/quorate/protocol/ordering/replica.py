"""The ordered half of a replica: its groups, and who may say what to them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from quorate.core.cluster import Cluster
from quorate.core.contract import EVERYONE, not_listed
from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.ids import MemberId, NodeId, TopicId, member_of, topic_id
from quorate.core.limits import SNAPSHOT_EVERY
from quorate.core.messages import Message, Operation, Request
from quorate.core.ordering import (
    Absent,
    Accept,
    Allow,
    Announce,
    AnnounceSealed,
    Append,
    AskPart,
    AskReceipts,
    Challenge,
    Cosign,
    Decision,
    Entries,
    Fill,
    Follow,
    Line,
    Locate,
    OfferSnapshot,
    Propose,
    ProveRange,
    Recall,
    Received,
    Refusal,
    Retrieve,
    Retrieved,
    SnapshotPart,
    Standing,
    Stop,
    StopData,
    Stored,
    Sync,
    TopologyQuery,
    Walk,
    Write,
)
from quorate.crypto.identity import check_keys
from quorate.protocol.control.machine import Control
from quorate.protocol.control.replica import Steward
from quorate.protocol.ordering.clocks import WallClock
from quorate.protocol.ordering.cosigning import Notary
from quorate.protocol.ordering.group import Group
from quorate.protocol.ordering.leader_change import Signer
from quorate.protocol.ordering.log import LogState
from quorate.protocol.ordering.pace import PACE, Pace
from quorate.protocol.ordering.placement import GroupKind, Roster, group_of, rules_of
from quorate.protocol.ordering.proving import refuse
from quorate.protocol.ordering.records import Deposited, Record, Snapshot, Store
from quorate.protocol.ordering.room import ROOMS, Rooms
from quorate.protocol.ordering.rules import Rules
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import GIVING_BACK, other_terms
from quorate.protocol.topic import Topic, topics_of


@dataclass(frozen=True, slots=True)
class Found:
    """What a replica found on its disk: the last snapshots, and what was written after them."""

    snapshots: Mapping[int, Snapshot]
    records: Sequence[Record]


class Ordering:
    """All groups that this replica takes part in."""

    def __init__(
        self,
        me: NodeId,
        topics: Iterable[Topic],
        names: Mapping[MemberId, str],
        *,
        signer: Signer,
        notaries: Mapping[GroupKind, Notary] | None = None,
        store: Store,
        found: Found,
        wall_us: WallClock,
        outbox: Outbox,
        cluster: Cluster | None = None,
        validation: Validation | None = None,
        rules: Callable[[GroupKind, Any], Rules] = rules_of,
        pace: Pace = PACE,
        rooms: Rooms = ROOMS,
        snapshot_every: int = SNAPSHOT_EVERY,
        deposits: bool = False,
    ) -> None:
        """`cluster` is what the cluster was when it began, if it has a control plane.

        Validated topics need a `validation`. With `deposits`, their large payloads go to a store
        outside, and `deposited` is called with what became of each.
        """
        self.me = me
        self.topics = {topic.id: topic for topic in topics if topic.contract.is_log}
        self.groups: dict[int, Group] = {}
        self.steward: Steward | None = None
        # Told when topics, replicas or clients have changed.
        self.on_topology: Callable[[Cluster], None] | None = None
        self._names = names
        self._operators = _operators_of(cluster)
        self._validation = Validation("", (), {}) if validation is None else validation
        self._signer = signer
        self._notaries = notaries or {}
        self._store = store
        self._wall_us = wall_us
        self._outbox = outbox
        self._rules = rules
        self._pace = pace
        self._rooms = rooms
        self._snapshot_every = snapshot_every
        self._deposits = deposits
        self._next_tick_us = 0
        states = {
            group: msgspec.msgpack.decode(snapshot.state, type=LogState)
            for group, snapshot in found.snapshots.items()
        }
        if cluster is not None and cluster.control is not None:
            state = states.get(group_of(cluster.control))
            before = state.control if state is not None else None
            control = Control(cluster, before, check_member=check_keys)
            self.steward = Steward(control, outbox)
            self.steward.on_topology = self._adopt
            self.steward.on_ended = self._end_sessions
            self._adopt(control.cluster)
            # Commands say which other groups there are.
            self._add_group(self.topics[CONTROL_TOPIC_ID], states, found)
        self._add_groups(states, found)

    def _add_groups(self, states: Mapping[int, LogState], found: Found) -> None:
        for topic in self.topics.values():
            if self.me in topic.index and group_of(topic.contract) not in self.groups:
                self._add_group(topic, states, found)

    def _add_group(self, topic: Topic, states: Mapping[int, LogState], found: Found) -> None:
        kind = group_of(topic.contract)
        rules, snapshot = self._rules(kind, topic.quorum), found.snapshots.get(kind)
        group = self.groups[kind] = Group(
            Roster(self.me, kind, topic.members, rules, topic.quorum.one_correct),
            signer=self._signer,
            notary=self._notaries.get(kind),
            store=self._store,
            may_append=partial(self._may_append_in, kind),
            is_open=self._is_open if topic.id == CONTROL_TOPIC_ID else _always,
            topic_of=self._topic_of,
            has_ended=self._has_ended,
            wall_us=self._wall_us,
            outbox=self._outbox,
            validation=self._validation,
            state=states.get(kind),
            steward=self.steward if topic.id == CONTROL_TOPIC_ID else None,
            regency=1 if snapshot is None else snapshot.regency,
            signs_above=0 if snapshot is None else snapshot.signs_above,
            pace=self._pace,
            rooms=self._rooms,
            snapshot_every=self._snapshot_every,
            deposits=self._deposits,
        )
        group.restore(list(found.records))
        is_founder = self.steward is not None and not self.steward.control.genesis.revision
        if topic.id == CONTROL_TOPIC_ID and is_founder and snapshot is None:
            # How the cluster began is on record from now on, whatever becomes of its file.
            self._outbox.persist(group.log.snapshot(group.consensus.regency), sync=False)

    def _adopt(self, cluster: Cluster) -> None:
        """These are the topics, replicas and clients from now on."""
        self._names = {client.number: client.name for client in cluster.clients}
        self._operators = _operators_of(cluster)
        self.topics = {topic.id: topic for topic in topics_of(cluster) if topic.contract.is_log}
        self._signer.adopt(cluster)
        self._validation.adopt(cluster, self.topics.values())
        for notary in self._notaries.values():
            notary.adopt(cluster)
        for group in self.groups.values():
            group.backlog.pass_over_what_may_not_be()
            group.keys_changed()
        if self.on_topology is not None:
            # Nothing is on disk of a group that has no topics yet.
            self._add_groups({}, Found({}, ()))
            self.on_topology(cluster)

    def tick(self, now_us: int) -> None:
        if now_us >= self._next_tick_us:
            self._next_tick_us = now_us + self._pace.tick_us
            self._outbox.wake_at(self._next_tick_us)
            for group in self._running():
                group.tick()

    def step(self, sender: NodeId, message: Message) -> None:
        for group in self.groups.values():
            if group.stopped and self._is_for(group, message):
                return
        HANDLERS[type(message)](self, sender, message)

    def connected(self, peer: NodeId) -> None:
        """Whoever was away says itself where it stands."""

    def disconnected(self, peer: NodeId) -> None:
        for group in self.groups.values():
            group.readers.gone(peer)

    def writable(self, peer: NodeId, writable: bool) -> None:
        for group in self.groups.values():
            group.readers.writable(peer, writable)

    def deposited(self, results: Iterable[Deposited]) -> None:
        """The store outside has these payloads, or will not have them."""
        lines: dict[Line, list[Deposited]] = {}
        for result in results:
            line = Line(result.publisher, result.topic, result.partition)
            lines.setdefault(line, []).append(result)
        for line, of_line in lines.items():
            group = self._group_of(line.topic)
            if group is not None and not group.stopped:
                group.backlog.deposited(line, of_line)

    def fetched(self) -> None:
        """Payloads came from outside, or will not come: whoever waited for them is served."""
        for group in self._running():
            group.readers.fetched()

    def flush(self) -> bool:
        """True if something is left for the next turn."""
        left = [group.flush() for group in self._running()]
        return any(left)

    def topic(self, name: str) -> Topic | None:
        """The log topic of this name, if this replica serves it."""
        topic = self.topics.get(topic_id(name))
        return topic if topic is not None and self.me in topic.index else None

    def admit(self, sender: NodeId, topic: Topic, request: Request) -> str:
        """Why this client may not publish or read here; empty if it may."""
        if request.operation in GIVING_BACK:
            return ""
        if request.terms != topic.contract.terms:
            return other_terms(topic)
        publishes = request.operation is Operation.REGISTER
        allowed = topic.contract.publish if publishes else topic.contract.subscribe
        name = self._names.get(member_of(sender))
        if allowed == EVERYONE or name in allowed:
            return ""
        action = "publish on" if publishes else "subscribe to"
        return not_listed(name or f"client {sender}", action, topic.name, allowed)

    def may_append(self, line: Line) -> bool:
        """May this publisher write there? Asked of what replicas speak of as well."""
        topic = self.topics.get(line.topic)
        if topic is None or not 0 <= line.partition < topic.contract.partitions:
            return False
        return self._may_publish(line.publisher, topic)

    def _may_append_in(self, kind: GroupKind, line: Line) -> bool:
        topic = self.topics.get(line.topic)
        return topic is not None and group_of(topic.contract) is kind and self.may_append(line)

    def _has_ended(self, node: NodeId) -> bool:
        return self.steward is not None and self.steward.control.has_ended(node)

    def _end_sessions(self, nodes: list[NodeId]) -> None:
        for group in self.groups.values():
            group.end_sessions(nodes)

    def _is_open(self, line: Line) -> bool:
        """May what this publisher handed in there still be ordered? The same at all replicas that
        have come to the same slot of the group that orders commands."""
        return self.may_append(line) and self._is_registered(line)

    # Messages

    def _on_request(self, sender: NodeId, message: Append | Announce | AnnounceSealed) -> None:
        line = Line(sender, message.topic, message.partition)
        group = self._group_of(message.topic)
        if group is None or not self.may_append(line):
            self._refuse(sender, f"may not publish on topic {message.topic}")
        elif not self._is_registered(line):
            # It may be so that we have yet to come to that command. It is said again.
            group.counters["unregistered"] += 1
            knows = self.steward is None or self.steward.control.is_known(sender)
            # What is new may have given its first command, and nobody ordered that yet.
            if self._has_ended(sender) or (not knows and message.first > 1):
                group.refuse_ended(line, message.first)
        elif isinstance(message, Append):
            group.on_append(sender, message)
        elif isinstance(message, AnnounceSealed):
            group.on_announce_sealed(sender, message)
        else:
            group.on_announce(sender, message)

    def _on_word(self, sender: NodeId, message: Any) -> None:
        group = self._group_of(message.topic)
        if group is None or not self._may_say(sender, message, group):
            self._refuse(sender, f"{type(message).__name__} from outside its group")
            return
        _WORDS[type(message)](group, sender, message)

    def _on_agreement(self, sender: NodeId, message: Any) -> None:
        group = self.groups.get(message.group)
        if group is None or not self._may_say(sender, message, group):
            self._refuse(sender, f"{type(message).__name__} from outside its group")
            return
        _AGREEMENT[type(message)](group, sender, message)

    def _on_reading(
        self, sender: NodeId, message: Locate | Follow | Allow | Challenge | AskReceipts
    ) -> None:
        topic, group = self.topics.get(message.topic), self._group_of(message.topic)
        if topic is None or group is None or not self._may_read(sender, topic):
            self._refuse(sender, f"may not read topic {message.topic}")
        elif message.partition >= topic.contract.partitions:
            self._refuse(sender, f"asked for partition {message.partition} of '{topic.name}'")
        else:
            _READING[type(message)](group, sender, message)

    def _on_prove(self, sender: NodeId, prove: ProveRange) -> None:
        """Whoever may not know hears so: it waits for an answer, and not for a stream."""
        topic, group = self.topics.get(prove.topic), self._group_of(prove.topic)
        if topic is None or group is None:
            refuse(sender, prove, "there is no such log topic here", self._outbox)
        elif not self._may_read(sender, topic):
            name = self._names.get(member_of(sender)) or f"client {sender}"
            refusal = not_listed(name, "subscribe to", topic.name, topic.contract.subscribe)
            self._refuse(sender, f"may not read topic {prove.topic}")
            refuse(sender, prove, refusal, self._outbox)
        elif prove.partition >= topic.contract.partitions:
            refuse(sender, prove, f"there is no partition {prove.partition}", self._outbox)
        else:
            group.proving.on_prove(sender, prove)

    def _on_control(self, sender: NodeId, message: Recall | TopologyQuery) -> None:
        if self.steward is None or member_of(sender) not in self._names:
            self._refuse(sender, f"{type(message).__name__} where there is no control plane")
        elif isinstance(message, Recall):
            self.steward.on_recall(sender, message)
        else:
            self.steward.on_query(sender, message)

    def _on_walk(self, sender: NodeId, walk: Walk) -> None:
        group = self.groups.get(walk.group)
        if group is None or not self._may_walk(sender, walk.group):
            self._refuse(sender, f"may not walk the slots of group {walk.group}")
            return
        group.walking.on_walk(sender, walk)

    # Guards

    def _may_say(self, sender: NodeId, message: Message, group: Group) -> bool:
        """Members of a group say anything; replicas that follow it ask for what they lack."""
        if sender in group.members:
            return True
        return isinstance(message, _FOLLOWERS_SAY) and self._follows(sender)

    def _follows(self, node: NodeId) -> bool:
        cluster = self.steward.control.cluster if self.steward is not None else None
        return cluster is not None and cluster.orderers <= node < len(cluster.replicas)

    def _is_registered(self, line: Line) -> bool:
        """Commands need no registration: they are how one registers."""
        if self.steward is None or line.topic == CONTROL_TOPIC_ID:
            return True
        return self.steward.control.may_publish(line.publisher, self.topics[line.topic].name)

    def _may_publish(self, node: NodeId, topic: Topic) -> bool:
        name, allowed = self._names.get(member_of(node)), topic.contract.publish
        return name is not None and (allowed == EVERYONE or name in allowed)

    def _may_read(self, sender: NodeId, topic: Topic) -> bool:
        name, allowed = self._names.get(member_of(sender)), topic.contract.subscribe
        is_client = name is not None and (allowed == EVERYONE or name in allowed)
        return is_client or sender in topic.index

    def _may_walk(self, sender: NodeId, kind: int) -> bool:
        """Slots tell who published how much and when, on all topics of a group.

        So operators may walk them, and whoever may read all of these topics anyway.
        """
        member = member_of(sender)
        ordered = [topic for topic in self.topics.values() if group_of(topic.contract) == kind]
        is_reader = member in self._names and all(self._may_read(sender, each) for each in ordered)
        return is_reader or (member in self._operators and member in self._names)

    def _running(self) -> list[Group]:
        return [group for group in self.groups.values() if not group.stopped]

    def _is_for(self, group: Group, message: Any) -> bool:
        if hasattr(message, "topic"):
            return group is self._group_of(message.topic)
        return group.roster.number == getattr(message, "group", None)

    def _topic_of(self, number: TopicId) -> Topic | None:
        return self.topics.get(number)

    def _group_of(self, topic: TopicId) -> Group | None:
        known = self.topics.get(topic)
        return None if known is None else self.groups.get(group_of(known.contract))

    def _refuse(self, sender: NodeId, sentence: str) -> None:
        self._outbox.report(sender, "rejected", sentence)


def _always(_: Line) -> bool:
    return True


def _operators_of(cluster: Cluster | None) -> frozenset[MemberId]:
    clients = () if cluster is None else cluster.clients
    return frozenset(client.number for client in clients if client.operator)


_FOLLOWERS_SAY = (Standing, Fill, Retrieve, AskPart)
_WORDS: dict[type, Callable[[Group, NodeId, Any], None]] = {
    Received: Group.on_received,
    Stored: lambda group, sender, stored: group.backlog.on_stored(sender, stored),
    Retrieve: lambda group, sender, ask: group.retrieval.on_retrieve(sender, ask),
    Retrieved: lambda group, sender, given: group.retrieval.on_retrieved(sender, given),
    Fill: Group.on_fill,
    Entries: Group.on_entries,
    Absent: Group.on_absent,
    Refusal: lambda group, sender, refusal: group.challenges.on_refusal(sender, refusal),
}
_AGREEMENT: dict[type, Callable[[Group, NodeId, Any], None]] = {
    Propose: Group.on_propose,
    Write: Group.on_write,
    Accept: Group.on_accept,
    Standing: lambda group, sender, standing: group.catching_up.on_standing(sender, standing),
    Cosign: Group.on_cosign,
    Decision: lambda group, sender, decision: group.catching_up.on_decision(sender, decision),
    OfferSnapshot: Group.on_offer,
    AskPart: Group.on_ask,
    SnapshotPart: Group.on_part,
    Stop: lambda group, sender, stop: group.change.on_stop(sender, stop),
    StopData: lambda group, sender, data: group.change.on_stop_data(sender, data),
    Sync: lambda group, sender, sync: group.change.on_sync(sender, sync),
}
_READING: dict[type, Callable[[Group, NodeId, Any], None]] = {
    Locate: lambda group, sender, locate: group.readers.on_locate(sender, locate),
    Follow: lambda group, sender, follow: group.readers.on_follow(sender, follow),
    Allow: lambda group, sender, allow: group.readers.on_allow(sender, allow),
    Challenge: lambda group, sender, challenge: group.challenges.on_challenge(sender, challenge),
    AskReceipts: lambda group, sender, ask: group.challenges.on_ask(sender, ask),
}
HANDLERS: dict[type, Callable[[Ordering, NodeId, Any], None]] = {
    Append: Ordering._on_request,
    Announce: Ordering._on_request,
    AnnounceSealed: Ordering._on_request,
    **dict.fromkeys(_WORDS, Ordering._on_word),
    **dict.fromkeys(_AGREEMENT, Ordering._on_agreement),
    **dict.fromkeys(_READING, Ordering._on_reading),
    ProveRange: Ordering._on_prove,
    Recall: Ordering._on_control,
    TopologyQuery: Ordering._on_control,
    Walk: Ordering._on_walk,
}
