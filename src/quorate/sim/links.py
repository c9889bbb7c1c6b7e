"""What the network does to one message.

Source of the burst model: the QoS thesis, section 5.1 (Q12). A link is a Gilbert-Elliott
channel: a Markov chain with a Good state, in which no message is lost, and a Bad state, in
which all are. From the loss rate PLR and the mean burst length ABL follow the probabilities of
leaving a state at each message: Q = 1 / ABL leaves Bad, P = PLR * Q / (1 - PLR) leaves Good.
How long such a chain stays in a state is geometrically distributed, so one draw per stay
replaces one per message, and the losses are the same.

A `Network` is what a scenario asks for and never changes. A `Fabric` is the network at work:
it also knows which obstacles (partitions, cuts, spells of loss) are in the way right now.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from math import log
from random import Random
from typing import Protocol

import msgspec

from quorate.core.bulk import is_bulky
from quorate.core.errors import ConfigError
from quorate.core.ids import NodeId
from quorate.core.messages import Message

# A sender that is never answered gives up at some point, and so does our loop.
_RETRANSMISSIONS_MAX = 8


class Latency(Protocol):
    """A distribution of delays in microseconds."""

    def samples(self, random: Random) -> Iterator[int]:
        """One delay after the other, without end."""


@dataclass(frozen=True, slots=True)
class Constant:
    us: int

    def samples(self, random: Random) -> Iterator[int]:
        return repeat(self.us)


@dataclass(frozen=True, slots=True)
class Uniform:
    low_us: int
    high_us: int

    def samples(self, random: Random) -> Iterator[int]:
        low, span, draw = self.low_us, self.high_us - self.low_us + 1, random.random
        while True:
            yield low + int(draw() * span)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Half of the delays are below the median; `sigma` is that of the logarithm."""

    median_us: int
    sigma: float

    def samples(self, random: Random) -> Iterator[int]:
        mu, sigma, draw = log(self.median_us), self.sigma, random.lognormvariate
        while True:
            yield int(draw(mu, sigma))


@dataclass(frozen=True, slots=True)
class Exponential:
    """At least the floor, and a tail with this mean on top of it."""

    floor_us: int
    tail_mean_us: int

    def samples(self, random: Random) -> Iterator[int]:
        floor, rate, draw = self.floor_us, 1 / self.tail_mean_us, random.expovariate
        while True:
            yield floor + int(draw(rate))


class Channel(Protocol):
    """The memory of one link about its losses."""

    def loses(self) -> bool:
        """Whether the next message is lost."""


class Loss(Protocol):
    """How links lose messages."""

    def channel(self, random: Random) -> Channel:
        """A new link's channel, in equilibrium."""


@dataclass(frozen=True, slots=True)
class IndependentLoss:
    """Every message is lost with this probability, whatever happened before."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate("loss rate", self.rate)

    def channel(self, random: Random) -> Channel:
        return _Coin(random, self.rate)


@dataclass(frozen=True, slots=True)
class BurstLoss:
    """Gilbert-Elliott: this share of messages is lost, in bursts of this mean length."""

    rate: float
    burst_mean: float

    def __post_init__(self) -> None:
        _check_rate("loss rate", self.rate)
        if self.burst_mean < 1 or self.rate * (self.burst_mean + 1) > self.burst_mean:
            raise ConfigError(
                f"no channel loses {self.rate:g} of its messages in bursts of mean length "
                f"{self.burst_mean:g}: the length must be at least 1 and the rate at most "
                "length / (length + 1)"
            )

    @property
    def good_to_bad(self) -> float:
        return self.rate * self.bad_to_good / (1 - self.rate)

    @property
    def bad_to_good(self) -> float:
        return 1 / self.burst_mean

    def channel(self, random: Random) -> Channel:
        return _TwoStates(random, self)


class Mode(Enum):
    """What a link promises."""

    # Messages can be lost, doubled and overtaken.
    DATAGRAM = "datagram"
    # As TCP: in order and without loss while the connection stands, all lost when it breaks.
    STREAM = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network as a scenario asks for it. From `retransmit_after_us` on, all is about streams."""

    latency: Latency = Uniform(200, 1_000)
    mode: Mode = Mode.DATAGRAM
    loss: Loss | None = None
    duplication: float = 0.0
    # Of the messages whose payloads no tag covers (`core/bulk.py`), so many are altered.
    alteration: float = 0.0
    # How long a lost segment takes to be sent again; doubles each time.
    retransmit_after_us: int = 20_000
    # A connection that is blocked for so long breaks.
    break_after_us: int = 500_000
    # From the moment at which two nodes can reach each other until they are connected.
    reconnect: Latency = Uniform(1_000, 50_000)

    def __post_init__(self) -> None:
        _check_rate("duplication", self.duplication)
        _check_rate("alteration", self.alteration)


@dataclass(slots=True, eq=False)
class Link:
    """One direction between two nodes: what its next message depends on."""

    sender: NodeId
    target: NodeId
    loss: Loss | None = None
    channel: Channel | None = None
    # When the latest message of a connection arrives.
    arrives_us: int = 0


class Obstacle(Protocol):
    """Something in the way."""

    def blocks(self, sender: NodeId, target: NodeId) -> bool:
        """Whether nothing gets through from one to the other."""


class Partition:
    """Nodes of different groups do not reach each other. Those not named are one more group."""

    def __init__(self, groups: Collection[Collection[NodeId]]) -> None:
        self._group = {node: number for number, group in enumerate(groups) for node in group}
        if len(self._group) != sum(map(len, groups)):
            raise ConfigError("a node is in two groups of one partition; it can be in one")

    def blocks(self, sender: NodeId, target: NodeId) -> bool:
        return self._group.get(sender) != self._group.get(target)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Nothing gets through from one node to another; the way back is free."""

    sender: NodeId
    target: NodeId

    def blocks(self, sender: NodeId, target: NodeId) -> bool:
        return sender == self.sender and target == self.target


class Fabric:
    """The network at work."""

    def __init__(self, network: Network, stream: Callable[[str], Random]) -> None:
        self._network = network
        self._loss_random = stream("loss")
        self._duplication_random = stream("duplication")
        self._alteration_random = stream("alteration")
        self.next_latency_us = iter(network.latency.samples(stream("latency"))).__next__
        self.next_reconnect_us = iter(network.reconnect.samples(stream("reconnect"))).__next__
        self._obstacles: list[Obstacle] = []
        self._spells: list[Loss] = []
        self._loss = network.loss
        # In a plain network a message arrives once, after its latency, and that is all.
        self.is_plain = False
        self._look_again()

    def carried(self, message: Message) -> Message:
        """What becomes of a message on its way: it arrives as it is, or with another payload."""
        random, rate = self._alteration_random, self._network.alteration
        if not rate or not is_bulky(message) or random.random() >= rate:
            return message
        payloads, at = list(message.payloads), random.randrange(len(message.payloads))
        last = payloads[at][-1:] or b"\0"
        payloads[at] = payloads[at][:-1] + bytes([last[0] ^ 1])
        return msgspec.structs.replace(message, payloads=payloads)

    def put(self, obstacle: Obstacle) -> None:
        self._obstacles.append(obstacle)
        self._look_again()

    def remove(self, obstacle: Obstacle) -> None:
        """Out of the way, if it still is in the way."""
        if obstacle in self._obstacles:
            self._obstacles.remove(obstacle)
            self._look_again()

    def begin(self, spell: Loss) -> None:
        """Links lose messages like this, until the spell ends. The latest spell counts."""
        self._spells.append(spell)
        self._look_again()

    def end(self, spell: Loss) -> None:
        if spell in self._spells:
            self._spells.remove(spell)
            self._look_again()

    def clear(self) -> None:
        """No obstacle and no spell: the network as it was asked for."""
        self._obstacles.clear()
        self._spells.clear()
        self._look_again()

    def blocks(self, sender: NodeId, target: NodeId) -> bool:
        return any(obstacle.blocks(sender, target) for obstacle in self._obstacles)

    def arrivals(self, link: Link, now_us: int) -> tuple[int, ...]:
        """When a datagram arrives: never, once or twice."""
        if self._obstacles and self.blocks(link.sender, link.target):
            return ()
        if self._loss is not None and self._loses(link, self._loss):
            return ()
        at_us, doubling = now_us + self.next_latency_us(), self._network.duplication
        if doubling and self._duplication_random.random() < doubling:
            return at_us, now_us + self.next_latency_us()
        return (at_us,)

    def stream_arrival(self, link: Link, now_us: int) -> int:
        """When the next message of a connection arrives: a loss shows as a delay."""
        at_us = now_us
        if self._loss is not None:
            again_us = self._network.retransmit_after_us
            for _ in range(_RETRANSMISSIONS_MAX):
                if not self._loses(link, self._loss):
                    break
                at_us += again_us
                again_us *= 2
        link.arrives_us = max(at_us + self.next_latency_us(), link.arrives_us)
        return link.arrives_us

    def _loses(self, link: Link, loss: Loss) -> bool:
        if link.channel is None or link.loss is not loss:
            link.loss, link.channel = loss, loss.channel(self._loss_random)
        return link.channel.loses()

    def _look_again(self) -> None:
        network = self._network
        self._loss = self._spells[-1] if self._spells else network.loss
        self.is_plain = (
            network.mode is Mode.DATAGRAM
            and self._loss is None
            and not self._obstacles
            and not network.duplication
            and not network.alteration
        )


class _Coin:
    __slots__ = ("_draw", "_rate")

    def __init__(self, random: Random, rate: float) -> None:
        self._draw = random.random
        self._rate = rate

    def loses(self) -> bool:
        return self._draw() < self._rate


class _TwoStates:
    """The Gilbert-Elliott chain, from stay to stay."""

    __slots__ = ("_bad", "_left", "_loss", "_random")

    def __init__(self, random: Random, loss: BurstLoss) -> None:
        self._random = random
        self._loss = loss
        self._bad = random.random() < loss.rate
        self._left = self._stay()

    def loses(self) -> bool:
        if not self._left:
            self._bad = not self._bad
            self._left = self._stay()
        self._left -= 1
        return self._bad

    def _stay(self) -> int:
        """How many messages this state sees before it changes."""
        leave = self._loss.bad_to_good if self._bad else self._loss.good_to_bad
        if leave >= 1:
            return 1
        if leave <= 0:
            # A rate of zero never leaves Good; this outlasts any run.
            return 1 << 62
        return 1 + int(log(1 - self._random.random()) / log(1 - leave))


def _check_rate(name: str, rate: float) -> None:
    if not 0 <= rate < 1:
        raise ConfigError(f"a {name} of {rate:g}; allowed are 0 up to but not including 1")
