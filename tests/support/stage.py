"""A stage for machines: real brokers, sources and destinations, and no network but the test's.

Messages lie in flight until the test lets a round pass. Rules, which the test lays down by
sender, receiver and kind of message, drop, hold back or alter what is sent. Time is virtual and
passes only when the test says so. Everything that was sent, delivered, receipted or reported is
on record.

Replicas are numbered from 0, as everywhere; `S1`, `S2` are sources and `D1`, `D2` destinations.
The theses count their replicas from 1: `R1` is replica 0.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from quorate.core import batch
from quorate.core.batch import Batch
from quorate.core.contract import Contract
from quorate.core.filter import Filter
from quorate.core.header import are_possible
from quorate.core.ids import NodeId, Sequence, Stream, topic_id
from quorate.core.messages import Message
from quorate.crypto.digests import descriptor
from quorate.crypto.macs import DirectedMac, PairwiseMacs, derive_key
from quorate.protocol.broker import Broker
from quorate.protocol.destination import Destination
from quorate.protocol.machine import (
    Answered,
    Delivery,
    Outcome,
    Ready,
    Receipt,
    Report,
    Skipped,
)
from quorate.protocol.misbehaviour import Rewrite, behave
from quorate.protocol.outbox import Outbox
from quorate.protocol.source import Source
from quorate.protocol.topic import Topic

R1, R2, R3, R4 = 0, 1, 2, 3
S1, S2, S3 = 1000, 1001, 1002
D1, D2, D3 = 1500, 1501, 1502

ROUND_US = 1_000
ROUNDS_MAX = 400
TURN_US = 50_000
SECOND_US = 1_000_000

_M = TypeVar("_M", bound=Message)
_O = TypeVar("_O", bound=Outcome)


def event(value: bytes, *, key: bytes | None = None, **headers: bytes) -> bytes:
    """A batch of one event."""
    return batch.encode_one(key, value, tuple(headers.items()), 0, False)


def framed(payload: bytes) -> bytes:
    """A batch of one event with this value; what has the header of a batch is one."""
    return payload if are_possible([payload]) else event(payload)


def described(payload: bytes) -> bytes:
    """The descriptor of a batch, or of one event with this value."""
    return descriptor(framed(payload))


def opened(payload: bytes) -> bytes:
    """The value of a batch of one event."""
    (value,) = Batch(payload).values()
    return value


def events(*values: bytes) -> bytes:
    """A batch of several."""
    return batch.encode_values(list(values), 0)


def topic(table: Mapping[str, object], name: str = "t", *, f: int = 1) -> Topic:
    """A topic with just as many replicas as its contract needs."""
    contract = Contract.parse(name, table)
    return Topic(name, contract, tuple(range(contract.replicas(f))), f)


@dataclass(slots=True)
class Outlook:
    """An outbox on its own, for parts that are tested without their machine."""

    outbox: Outbox = field(default_factory=Outbox)

    def at(self, now_us: int) -> None:
        self.outbox.now_us = now_us

    def sent(self, kind: type[_M]) -> list[_M]:
        """What has been sent of this kind since the last look, which forgets everything."""
        return [message for _, message in self.take().send if isinstance(message, kind)]

    def take(self) -> Ready:
        return self.outbox.take()


@dataclass(slots=True)
class Rule:
    """What happens to messages that match. It holds until it is lifted."""

    sender: NodeId | None
    receiver: NodeId | None
    kind: type | tuple[type, ...]
    change: Callable[[Message], Message | None] | None
    held: list[tuple[NodeId, NodeId, Message]] = field(default_factory=list)
    lifted: bool = False
    hits: int = 0

    def matches(self, sender: NodeId, receiver: NodeId, message: Message) -> bool:
        return (
            not self.lifted
            and self.sender in (None, sender)
            and self.receiver in (None, receiver)
            and isinstance(message, self.kind)
        )


class Stage:
    """Machines of one cluster, wired together by hand."""

    def __init__(
        self,
        *topics: Topic,
        sources: Collection[NodeId] = (S1,),
        destinations: Collection[NodeId] = (D1,),
        destination: type[Destination] = Destination,
        mac: str = "blake3",
        opened: bool = True,
    ) -> None:
        self.topics = topics
        self.now_us = 0
        self.sources = {node: Source(node, topics, self._macs(node, mac), session=1)
                        for node in sources}  # fmt: skip
        self.destinations = {
            node: destination(node, topics, self._macs(node, mac), sources) for node in destinations
        }
        self._names = {node: name_of(node) for node in (*sources, *destinations)}
        self._mac = mac
        replicas = sorted({member for topic in topics for member in topic.members})
        self.brokers = {node: self._broker(node) for node in replicas}
        self.sent: list[tuple[NodeId, NodeId, Message]] = []
        self.outcomes: list[tuple[NodeId, Outcome]] = []
        self.reports: list[tuple[NodeId, Report]] = []
        self.rules: list[Rule] = []
        self._rewrites: dict[NodeId, Rewrite] = {}
        self._flying: list[tuple[NodeId, NodeId, Message]] = []
        self._late: list[tuple[int, NodeId, NodeId, Message]] = []
        self._links: set[frozenset[NodeId]] = set()
        for node in self._machines():
            self.machine(node).tick(0)
        for client in (*self.sources, *self.destinations):
            for replica in self.brokers:
                self.connect(client, replica)
        for first in self.brokers:
            for second in self.brokers:
                if first < second:
                    self.connect(first, second)
        if opened:
            self.open()

    def open(self) -> None:
        """Everybody takes part in every topic."""
        for each in self.topics:
            for source in self.sources.values():
                source.register(each.name)
            for destination in self.destinations.values():
                destination.subscribe(each.name)
        self.settle()

    # What applications do

    def publish(
        self, source: NodeId, *values: bytes, to: str = "t", urgent: bool = False
    ) -> Sequence:
        """Publish each value as a batch of its own; the number of the last one."""
        for value in values:
            self.sources[source].publish(to, event(value), urgent=urgent)
        return self.sources[source].last_sequence(to)

    def publish_batch(self, source: NodeId, payload: bytes, to: str = "t") -> None:
        self.sources[source].publish(to, payload)

    def subscribe(self, destination: NodeId, to: str = "t", wanted: Filter | None = None) -> int:
        return self.destinations[destination].subscribe(to, wanted)

    def stream(self, source: NodeId = S1, name: str = "t") -> Stream:
        return Stream(source, topic_id(name))

    # Rules

    def drop(
        self,
        kind: type | tuple[type, ...] = object,
        *,
        sender: NodeId | None = None,
        receiver: NodeId | None = None,
    ) -> Rule:
        return self.alter(lambda _: None, kind, sender=sender, receiver=receiver)

    def hold(
        self,
        kind: type | tuple[type, ...] = object,
        *,
        sender: NodeId | None = None,
        receiver: NodeId | None = None,
    ) -> Rule:
        """Keep back what matches, until it is released."""
        return self._rule(kind, sender, receiver, None)

    def alter(
        self,
        change: Callable[[Any], Message | None],
        kind: type | tuple[type, ...] = object,
        *,
        sender: NodeId | None = None,
        receiver: NodeId | None = None,
    ) -> Rule:
        """Put another message in the place of what matches, or none at all."""
        return self._rule(kind, sender, receiver, change)

    def release(self, rule: Rule) -> None:
        """Lift a rule, and let go what it held back."""
        rule.lifted = True
        self._flying += rule.held
        rule.held = []

    def misbehave(self, node: NodeId, rewrite: Rewrite) -> None:
        self._rewrites[node] = rewrite

    def say(self, sender: NodeId, receiver: NodeId, message: Message) -> None:
        """A message that the sender's machine would not send."""
        self._flying.append((sender, receiver, message))

    # Links and crashes

    def connect(self, first: NodeId, second: NodeId) -> None:
        self._links.add(frozenset((first, second)))
        self.machine(first).connected(second)
        self.machine(second).connected(first)

    def disconnect(self, first: NodeId, second: NodeId) -> None:
        """The link breaks, with everything on it."""
        pair = frozenset((first, second))
        self._links.discard(pair)
        self._flying = [f for f in self._flying if frozenset(f[:2]) != pair]
        self.machine(first).disconnected(second)
        self.machine(second).disconnected(first)

    def crash(self, replica: NodeId) -> None:
        self._collect()
        for pair in [pair for pair in self._links if replica in pair]:
            self.disconnect(*pair)

    def restart(self, replica: NodeId) -> None:
        """With an empty memory, and connected to everybody again."""
        self.brokers[replica] = self._broker(replica)
        self.machine(replica).tick(self.now_us)
        for node in self._machines():
            if node != replica:
                self.connect(replica, node)

    # Time

    def round(self) -> None:
        """Everything in flight arrives; what the machines want in return is in flight then."""
        self.now_us += ROUND_US
        self._collect()
        flying, self._flying = self._flying, []
        for node in self._machines():
            self.machine(node).tick(self.now_us)
        for sender, receiver, message in flying:
            self.machine(receiver).step(sender, message)
        self._collect()

    def settle(self) -> None:
        """Rounds until nothing is in flight."""
        for _ in range(ROUNDS_MAX):
            self.round()
            if not self._flying:
                return
        raise AssertionError(f"still {len(self._flying)} messages in flight: {self._flying[:3]}")

    def pass_time(self, seconds: float, *, turn_us: int = TURN_US) -> None:
        end_us = self.now_us + int(seconds * SECOND_US)
        while self.now_us < end_us:
            self.now_us = max(self.now_us, min(self.now_us + turn_us, end_us) - ROUND_US)
            self.settle()

    # On record

    def machine(self, node: NodeId) -> Any:
        return self.brokers.get(node) or self.sources.get(node) or self.destinations[node]

    def messages(
        self,
        kind: type[_M],
        *,
        sender: NodeId | None = None,
        receiver: NodeId | None = None,
    ) -> list[_M]:
        """What was sent of this kind, whether or not it arrived."""
        return [
            message
            for s, r, message in self.sent
            if sender in (None, s) and receiver in (None, r) and isinstance(message, kind)
        ]

    def outcomes_of(self, node: NodeId, kind: type[_O]) -> list[_O]:
        return [o for n, o in self.outcomes if n == node and isinstance(o, kind)]

    def deliveries(self, destination: NodeId = D1) -> list[Delivery]:
        return self.outcomes_of(destination, Delivery)

    def values(self, destination: NodeId = D1, topic: str | None = None) -> list[bytes]:
        """The values of all events that were delivered, in that order."""
        return [
            value
            for delivery in self.deliveries(destination)
            if topic is None or delivery.stream.topic == topic_id(topic)
            for value in Batch(delivery.payload).values()
        ]

    def receipted(self, source: NodeId = S1) -> list[Sequence]:
        return [
            sequence
            for receipt in self.outcomes_of(source, Receipt)
            for sequence in range(receipt.first, receipt.last + 1)
        ]

    def skipped(self, destination: NodeId = D1) -> list[Skipped]:
        return self.outcomes_of(destination, Skipped)

    def answers(self, client: NodeId) -> dict[int, str]:
        return {answer.number: answer.sentence for answer in self.outcomes_of(client, Answered)}

    def reported(self, kind: str, *, by: NodeId | None = None) -> list[NodeId]:
        """Who was reported for this, in the order of the reports."""
        return [r.node for n, r in self.reports if r.kind == kind and by in (None, n)]

    # Inside

    def _machines(self) -> Iterable[NodeId]:
        return (*self.brokers, *self.sources, *self.destinations)

    def _broker(self, node: NodeId) -> Broker:
        return Broker(node, self.topics, self._names, self._macs(node, self._mac))

    def _rule(
        self,
        kind: type | tuple[type, ...],
        sender: NodeId | None,
        receiver: NodeId | None,
        change: Callable[[Message], Message | None] | None,
    ) -> Rule:
        rule = Rule(sender, receiver, kind, change)
        self.rules.append(rule)
        return rule

    def _collect(self) -> None:
        for node in self._machines():
            rewrite = self._rewrites.get(node, behave)
            for delay_us, ready in rewrite(self.machine(node).take(), self.now_us):
                self._carry_out(node, ready, delay_us)
        due = [entry for entry in self._late if entry[0] <= self.now_us]
        self._late = [entry for entry in self._late if entry[0] > self.now_us]
        for _, sender, receiver, message in due:
            self._send(sender, receiver, message)

    def _carry_out(self, node: NodeId, ready: Ready, delay_us: int) -> None:
        assert not ready.persist
        self.outcomes += [(node, outcome) for outcome in ready.deliver]
        self.reports += [(node, report) for report in ready.reports]
        for receiver, message in ready.send:
            if delay_us:
                self._late.append((self.now_us + delay_us, node, receiver, message))
            else:
                self._send(node, receiver, message)

    def _send(self, sender: NodeId, receiver: NodeId, message: Message) -> None:
        self.sent.append((sender, receiver, message))
        if frozenset((sender, receiver)) not in self._links:
            return
        for rule in self.rules:
            if rule.matches(sender, receiver, message):
                rule.hits += 1
                if rule.change is None:
                    rule.held.append((sender, receiver, message))
                    return
                changed = rule.change(message)
                if changed is None:
                    return
                message = changed
        self._flying.append((sender, receiver, message))

    @staticmethod
    def _macs(node: NodeId, algorithm: str) -> PairwiseMacs:
        return pairwise_macs(node, algorithm)


def name_of(client: NodeId) -> str:
    """The name under which access lists know this client: s1, s2 and d1, d2."""
    return f"s{client - S1 + 1}" if client < D1 else f"d{client - D1 + 1}"


@cache
def pairwise_macs(node: NodeId, algorithm: str = "blake3") -> PairwiseMacs:
    """The MACs of one node, as two X25519 identities would give them."""
    others = [*range(10), S1, S2, S3, D1, D2, D3]
    return PairwiseMacs(
        {
            other: DirectedMac(_key(node, other), _key(other, node), algorithm)
            for other in others
            if other != node
        }
    )


@cache
def _key(maker: NodeId, reader: NodeId) -> bytes:
    parts = (maker.to_bytes(4, "little"), reader.to_bytes(4, "little"))
    return derive_key(b"", "quorate authenticators in tests", *parts)
