"""Hosts of several parties that publish heartbeats and syslog lines, and what is true of them.

    recording = Estate(seed=7).record()
    recording.messages      # what arrives, in the order in which it does
    recording.hosts         # what is true of each host: skew, loss, outage
    recording.heartbeats    # each heartbeat that was sent, lost ones too

After the messaging-gateway thesis: hosts send a numbered heartbeat every period and a line now and
then, over one of several brokers that they choose at random and choose again after some minutes
(section 4.2.5). A message carries the name of the broker that took it and when that was, in its
headers `broker` and `received`; its own time is that of the host, whose clock is wrong by some
skew. Brokers keep time. Some heartbeats get lost, each on its own, with a probability that each
host has for itself.

Some hosts fall silent for long, some of them for good, and others for less than anybody should
care about. A host falls silent in one of three ways, which differ in the numbers of its
heartbeats: it is cut off, and numbers go on while nobody hears them; it stands still, and so do its
numbers; it crashes, and begins again with number 0 of another boot.

What happens depends on the seed alone. Each host has randomness of its own, so that it does the
same whatever others do.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from random import Random
from typing import Final, Literal, NamedTuple

import msgspec

from quorate.core.errors import LocalProtocolError
from quorate.pipeline.data.lines import Line, known_line, unknown_line

HEARTBEATS: Final = "heartbeats"
SYSLOG: Final = "syslog"

# 1 January 2026, so that recordings of a seed are the same bytes on every day.
START_US: Final = 1_767_225_600_000_000
SECOND_US: Final = 1_000_000

Kind = Literal["cut", "crash", "stall"]

_ROLES: Final = ("web", "mail", "proxy", "store")


@dataclass(frozen=True, slots=True)
class Outage:
    """From when to when a host is silent; without an end, it is silent for good."""

    kind: Kind
    from_us: int
    until_us: int | None

    def covers(self, time_us: int) -> bool:
        return self.from_us <= time_us and (self.until_us is None or time_us < self.until_us)


@dataclass(frozen=True, slots=True)
class Host:
    """What is true of one host."""

    party: str
    name: str
    # What the host's clock shows beyond the true time.
    skew_us: int
    loss: float
    # No message of this host takes less time than that.
    delay_us_min: int
    outage: Outage | None


class Heartbeat(NamedTuple):
    """A heartbeat that was sent outside of outages; a lost one never arrives. Times are true."""

    host: str
    boot: int
    number: int
    sent_us: int
    arrives_us: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """What a broker takes and publishes; the last two are for those who check."""

    topic: str
    party: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    # The host's own time, as events have it, and the true time when a broker takes it.
    timestamp_us: int
    arrives_us: int
    signature: str | None = None
    template: str | None = None


@dataclass(frozen=True, kw_only=True)
class Estate:
    """What is to be watched, and how badly it behaves."""

    seed: int
    duration_s: float = 1800.0
    start_us: int = START_US
    parties: tuple[str, ...] = ("acme", "globex", "initech")
    hosts_per_party: int = 4
    brokers: tuple[str, ...] = ("north", "south", "west")
    # After how long a host chooses its broker anew; None: never, as in section 3.3.2.
    reconnect_s: tuple[float, float] | None = (60.0, 300.0)
    period_s: float = 5.0
    jitter_s: float = 0.25
    # Lines per second and host, and which share of them is of a kind that no pattern knows.
    lines_per_s: float = 0.1
    unknown_log: float = 0.1
    loss_max: float = 0.05
    skew_s_max: float = 120.0
    # How many hosts fall silent for long and come back, for good, and only briefly.
    outages: int = 3
    departures: int = 2
    stumbles: int = 3
    outage_periods: tuple[float, float] = (10.0, 40.0)
    stumble_periods: tuple[float, float] = (0.5, 1.5)

    def __post_init__(self) -> None:
        hosts = len(self.parties) * self.hosts_per_party
        wanted = self.outages + self.departures + self.stumbles
        if wanted > hosts:
            raise LocalProtocolError(f"{wanted} hosts are to fall silent, but there are {hosts}")
        needed_s = 2 * self.outage_periods[1] * self.period_s
        if self.outages and self.duration_s < needed_s:
            raise LocalProtocolError(
                f"duration_s is {self.duration_s:g}, but must be {needed_s:g} at least, so that "
                f"outages of up to {self.outage_periods[1]:g} periods are seen from both sides"
            )

    @property
    def period_us(self) -> int:
        return round(self.period_s * SECOND_US)

    @property
    def end_us(self) -> int:
        return self.start_us + round(self.duration_s * SECOND_US)

    def record(self) -> "Recording":
        hosts = self._hosts()
        heartbeats: list[Heartbeat] = []
        messages: list[Message] = []
        for host in hosts:
            life = _Life(self, host)
            sent = list(life.heartbeats())
            heartbeats += sent
            messages += life.published(sent)
            messages += life.lines()
        messages.sort(key=lambda each: (each.arrives_us, each.key, each.topic))
        return Recording(self, tuple(hosts), tuple(heartbeats), tuple(messages))

    def _hosts(self) -> list[Host]:
        random = Random(f"hosts {self.seed}")
        named = [
            (party, f"{_ROLES[number % len(_ROLES)]}-{number}.{party}")
            for party in self.parties
            for number in range(self.hosts_per_party)
        ]
        fates = ["outage"] * self.outages + ["departure"] * self.departures
        fates += ["stumble"] * self.stumbles
        fates += ["none"] * (len(named) - len(fates))
        random.shuffle(fates)
        return [
            Host(
                party,
                name,
                skew_us=round(random.uniform(-self.skew_s_max, self.skew_s_max) * SECOND_US),
                loss=random.uniform(0, self.loss_max),
                delay_us_min=random.randrange(5_000, 80_000),
                outage=self._outage(fate, random),
            )
            for (party, name), fate in zip(named, fates, strict=True)
        ]

    def _outage(self, fate: str, random: Random) -> Outage | None:
        if fate == "none":
            return None
        from_us = self.start_us + round(random.uniform(0.15, 0.4) * self.duration_s * SECOND_US)
        if fate == "departure":
            return Outage("cut", from_us, None)
        # A host that is cut off briefly cannot be told from one that loses heartbeats.
        kinds: tuple[Kind, ...] = ("cut", "crash", "stall")
        kind = random.choice(kinds if fate == "outage" else kinds[1:])
        shortest, longest = self.outage_periods if fate == "outage" else self.stumble_periods
        length_us = round(random.uniform(shortest, longest) * self.period_us)
        return Outage(kind, from_us, from_us + length_us)


@dataclass(frozen=True)
class Recording:
    """What happened in an estate, and what could be heard of it."""

    estate: Estate
    hosts: tuple[Host, ...]
    heartbeats: tuple[Heartbeat, ...]
    # In the order in which they arrive.
    messages: tuple[Message, ...]

    @cached_property
    def by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    def silences(self, limit_us: int) -> set[str]:
        """The hosts that are silent for longer than this before all is over."""
        return {host.name for host in self.hosts if self._silence_us(host) > limit_us}

    def _silence_us(self, host: Host) -> int:
        if host.outage is None:
            return 0
        until_us = host.outage.until_us
        return (self.estate.end_us if until_us is None else until_us) - host.outage.from_us


class _Life:
    """What one host does from the beginning to the end."""

    def __init__(self, estate: Estate, host: Host) -> None:
        self._estate = estate
        self._host = host
        self._random = Random(f"life {estate.seed} {host.name}")
        self._connected = list(self._connections())

    def heartbeats(self) -> Iterator[Heartbeat]:
        random, host, period_us = self._random, self._host, self._estate.period_us
        jitter_us = round(self._estate.jitter_s * SECOND_US)
        boot = number = 0
        is_down = False
        first_us = self._estate.start_us + jitter_us + random.randrange(period_us)
        for due_us in range(first_us, self._estate.end_us, period_us):
            sent_us = due_us + random.randint(-jitter_us, jitter_us)
            if host.outage is not None and host.outage.covers(sent_us):
                is_down = True
                number += host.outage.kind == "cut"
                continue
            if is_down and host.outage is not None and host.outage.kind == "crash":
                boot, number = boot + 1, 0
            is_down = False
            is_lost = random.random() < host.loss
            arrives_us = None if is_lost else sent_us + self._delay_us()
            yield Heartbeat(host.name, boot, number, sent_us, arrives_us)
            number += 1

    def published(self, sent: Iterable[Heartbeat]) -> Iterator[Message]:
        for _, boot, number, sent_us, arrives_us in sent:
            if arrives_us is not None:
                value = msgspec.json.encode({"boot": boot, "number": number})
                yield self._message(HEARTBEATS, value, sent_us, arrives_us)

    def lines(self) -> Iterator[Message]:
        outage = self._host.outage
        for sent_us in takewhile(lambda time_us: time_us < self._estate.end_us, self._line_times()):
            if outage is not None and outage.covers(sent_us):
                continue
            line = self._line()
            value = msgspec.json.encode({"line": line.text})
            arrives_us = sent_us + self._delay_us()
            yield self._message(SYSLOG, value, sent_us, arrives_us, line.signature, line.template)

    def _line_times(self) -> Iterator[int]:
        if not self._estate.lines_per_s:
            return
        time_us = self._estate.start_us
        while True:
            time_us += round(self._random.expovariate(self._estate.lines_per_s) * SECOND_US)
            yield time_us

    def _line(self) -> Line:
        is_unknown = self._random.random() < self._estate.unknown_log
        return unknown_line(self._random) if is_unknown else known_line(self._random)

    def _delay_us(self) -> int:
        """Mostly some ten milliseconds beyond the least possible, now and then up to seconds."""
        delay_us = self._host.delay_us_min + round(15_000 * self._random.lognormvariate(0, 0.8))
        if self._random.random() < 0.01:
            delay_us += self._random.randrange(200_000, 1_500_000)
        return delay_us

    def _message(
        self,
        topic: str,
        value: bytes,
        sent_us: int,
        arrives_us: int,
        signature: str | None = None,
        template: str | None = None,
    ) -> Message:
        broker = self._broker_at(sent_us)
        return Message(
            topic,
            self._host.party,
            self._host.name.encode(),
            value,
            (("broker", broker.encode()), ("received", b"%d" % arrives_us)),
            sent_us + self._host.skew_us,
            arrives_us,
            signature,
            template,
        )

    def _connections(self) -> Iterator[tuple[int, str]]:
        time_us = self._estate.start_us
        while time_us < self._estate.end_us:
            yield time_us, self._random.choice(self._estate.brokers)
            if self._estate.reconnect_s is None:
                return
            time_us += round(self._random.uniform(*self._estate.reconnect_s) * SECOND_US)

    def _broker_at(self, time_us: int) -> str:
        place = bisect_right(self._connected, time_us, key=lambda connection: connection[0])
        return self._connected[max(0, place - 1)][1]
