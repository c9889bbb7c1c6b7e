"""The ordered half of a replica: its groups, and who may say what to them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quorate.core.contract import EVERYONE
from quorate.core.ids import MemberId, NodeId, TopicId, member_of, topic_id
from quorate.core.messages import Message, Operation, Request
from quorate.core.ordering import (
    Absent,
    Accept,
    Allow,
    Announce,
    Append,
    Cosign,
    Decision,
    Entries,
    Fill,
    Follow,
    Line,
    Locate,
    Propose,
    Received,
    Retrieve,
    Retrieved,
    Standing,
    Stop,
    StopData,
    Stored,
    Sync,
    Write,
)
from quorate.protocol.ordering.cosigning import Notary
from quorate.protocol.ordering.group import SNAPSHOT_EVERY, Group, WallClock
from quorate.protocol.ordering.leader_change import Signer
from quorate.protocol.ordering.log import LogState
from quorate.protocol.ordering.pace import PACE, Pace
from quorate.protocol.ordering.placement import GroupKind, group_of, rules_of
from quorate.protocol.ordering.records import Record, Snapshot, Store
from quorate.protocol.ordering.rules import Rules
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import GIVING_BACK, other_terms
from quorate.protocol.topic import Topic


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
        rules: Callable[[GroupKind, Any], Rules] = rules_of,
        pace: Pace = PACE,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        self.me = me
        self.topics = {topic.id: topic for topic in topics if topic.contract.is_log}
        self.groups: dict[int, Group] = {}
        self._names = names
        self._outbox = outbox
        self._pace = pace
        self._next_tick_us = 0
        states = {
            group: msgspec.msgpack.decode(snapshot.state, type=LogState)
            for group, snapshot in found.snapshots.items()
        }
        for topic in self.topics.values():
            kind = group_of(topic.contract)
            if me not in topic.index or kind in self.groups:
                continue
            group = self.groups[kind] = Group(
                me,
                kind,
                topic.members,
                rules(kind, topic.quorum),
                holders_needed=topic.quorum.one_correct,
                signer=signer,
                notary=(notaries or {}).get(kind),
                store=store,
                may_append=self.may_append,
                wall_us=wall_us,
                outbox=outbox,
                state=states.get(kind),
                regency=found.snapshots[kind].regency if kind in found.snapshots else 1,
                pace=pace,
                snapshot_every=snapshot_every,
            )
            group.restore([record for record in found.records if self._is_for(kind, record)])

    def tick(self, now_us: int) -> None:
        if now_us >= self._next_tick_us:
            self._next_tick_us = now_us + self._pace.tick_us
            self._outbox.wake_at(self._next_tick_us)
            for group in self.groups.values():
                group.tick()

    def step(self, sender: NodeId, message: Message) -> None:
        handler = HANDLERS[type(message)]
        handler(self, sender, message)

    def connected(self, peer: NodeId) -> None:
        """Whoever was away says itself where it stands."""

    def disconnected(self, peer: NodeId) -> None:
        for group in self.groups.values():
            group.readers.gone(peer)

    def writable(self, peer: NodeId, writable: bool) -> None:
        for group in self.groups.values():
            group.readers.writable(peer, writable)

    def flush(self) -> bool:
        """True if something is left for the next turn."""
        left = [group.flush() for group in self.groups.values()]
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
        return f"{name} may not {'publish on' if publishes else 'subscribe to'} '{topic.name}'"

    def may_append(self, line: Line) -> bool:
        """May this publisher write there? Asked of what replicas speak of as well."""
        topic, name = self.topics.get(line.topic), self._names.get(member_of(line.publisher))
        if topic is None or name is None or not 0 <= line.partition < topic.contract.partitions:
            return False
        allowed = topic.contract.publish
        return allowed == EVERYONE or name in allowed

    # Messages

    def _on_request(self, sender: NodeId, message: Append | Announce) -> None:
        line = Line(sender, message.topic, message.partition)
        group = self._group_of(message.topic)
        if group is None or not self.may_append(line):
            self._refuse(sender, f"may not publish on topic {message.topic}")
        elif isinstance(message, Append):
            group.on_append(sender, message)
        else:
            group.on_announce(sender, message)

    def _on_word(self, sender: NodeId, message: Any) -> None:
        group = self._group_of(message.topic)
        if group is None or sender not in group.members:
            self._refuse(sender, f"{type(message).__name__} from outside its group")
            return
        _WORDS[type(message)](group, sender, message)

    def _on_agreement(self, sender: NodeId, message: Any) -> None:
        group = self.groups.get(message.group)
        if group is None or sender not in group.members:
            self._refuse(sender, f"{type(message).__name__} from outside its group")
            return
        _AGREEMENT[type(message)](group, sender, message)

    def _on_reading(self, sender: NodeId, message: Locate | Follow | Allow) -> None:
        topic, group = self.topics.get(message.topic), self._group_of(message.topic)
        if topic is None or group is None or not self._may_read(sender, topic):
            self._refuse(sender, f"may not read topic {message.topic}")
        elif message.partition >= topic.contract.partitions:
            self._refuse(sender, f"asked for partition {message.partition} of '{topic.name}'")
        elif isinstance(message, Locate):
            group.readers.on_locate(sender, message)
        elif isinstance(message, Follow):
            group.readers.on_follow(sender, message)
        else:
            group.readers.on_allow(sender, message)

    # Guards

    def _may_read(self, sender: NodeId, topic: Topic) -> bool:
        name, allowed = self._names.get(member_of(sender)), topic.contract.subscribe
        is_client = name is not None and (allowed == EVERYONE or name in allowed)
        return is_client or sender in topic.index

    def _group_of(self, topic: TopicId) -> Group | None:
        known = self.topics.get(topic)
        return None if known is None else self.groups.get(group_of(known.contract))

    def _is_for(self, kind: GroupKind, record: Record) -> bool:
        group = getattr(record, "group", None)
        if group is None:
            topic = self.topics.get(getattr(record, "topic", 0))
            return topic is not None and group_of(topic.contract) is kind
        return bool(group == kind)

    def _refuse(self, sender: NodeId, sentence: str) -> None:
        self._outbox.report(sender, "rejected", sentence)


_WORDS: dict[type, Callable[[Group, NodeId, Any], None]] = {
    Received: Group.on_received,
    Stored: Group.on_stored,
    Retrieve: Group.on_retrieve,
    Retrieved: Group.on_retrieved,
    Fill: Group.on_fill,
    Entries: lambda group, sender, entries: group.filling.on_entries(sender, entries),
    Absent: lambda group, sender, absent: group.filling.on_absent(sender, absent),
}
_AGREEMENT: dict[type, Callable[[Group, NodeId, Any], None]] = {
    Propose: Group.on_propose,
    Write: Group.on_write,
    Accept: Group.on_accept,
    Standing: Group.on_standing,
    Cosign: Group.on_cosign,
    Decision: Group.on_decision,
    Stop: lambda group, sender, stop: group.change.on_stop(sender, stop),
    StopData: lambda group, sender, data: group.change.on_stop_data(sender, data),
    Sync: lambda group, sender, sync: group.change.on_sync(sender, sync),
}
HANDLERS: dict[type, Callable[[Ordering, NodeId, Any], None]] = {
    Append: Ordering._on_request,
    Announce: Ordering._on_request,
    **dict.fromkeys(_WORDS, Ordering._on_word),
    **dict.fromkeys(_AGREEMENT, Ordering._on_agreement),
    Locate: Ordering._on_reading,
    Follow: Ordering._on_reading,
    Allow: Ordering._on_reading,
}
