"""Packets of handshakes at several sites, and the truth about who scans them.

    traffic = Traffic(HARD, seed=1, start_us=now_us, duration_s=60)
    for packet in traffic:
        ...  # wait until packet.published_us, and publish it on the topic of packet.site
    traffic.crossings  # who is to be found, and from when on

A site publishes what it sees of handshakes, each packet as an event: its key is the address of
whoever began the handshake, so that one source is always in the same partition of a topic.

Innocent sources are clients, gateways with many clients behind them, and monitors that call at
every host. Most handshakes complete, some of them slowly or after a SYN was sent again, and some
are reset when they have served. Ports are closed and hosts do not answer; that is no incomplete
connection. But clients also change their mind after the SYN-ACK, or are gone, which nobody can
tell from a probe. By construction, no innocent source does so to as many destinations within the
forgetting time as the threshold says; gateways in the hard setting come as close as one can.

Scanners probe a few ports at each site, fewer than make a site suspicious, at a pace that spreads
them over much of the forgetting time. Only all sites together see as many as the threshold says.

The clocks of sites differ, and packets are published late, by less than a second in all: a job
that waits for a second misses nothing. The same arguments give the same bytes.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from quorate.core.errors import LocalProtocolError

SECOND_US: Final = 1_000_000
# 2025-01-01, for whoever does not care.
START_US: Final = 1_735_689_600 * SECOND_US
# After the last probe and its time-out there is so much traffic still, from which one can tell that
# time has passed.
TAIL_S: Final = 5.0
PROBING_S_MIN: Final = 8.0

OPEN_PORTS: Final = (22, 25, 53, 80, 143, 443, 993, 1433, 3306, 5432, 8080, 8443)
CLOSED_PORTS: Final = (21, 23, 135, 139, 445, 1723, 3389, 5900)
HOSTS: Final = 40
# Clients are as many as there is traffic for: each opens a connection every few seconds.
CLIENTS_MIN: Final = 50
SECONDS_PER_CLIENT: Final = 4.0
# Shares of the handshakes of innocent sources.
REFUSED: Final = 0.04
UNANSWERED: Final = 0.02
CLIENT_FAILING: Final = 0.02
SLOW: Final = 0.05
RESET_AFTER_USE: Final = 0.05
# How long a SYN is waited for before it is sent again.
AGAIN_US: Final = SECOND_US


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How hard it is to tell scanners from others."""

    sites: tuple[str, ...] = ("north", "east", "south", "west")
    scanners: int = 6
    gateways: int = 4
    monitors: int = 3
    # How many incomplete connections make a scanner, over all sites, and for one site alone.
    threshold: int = 12
    local_threshold: int = 5
    timeout_s: float = 3.0
    forget_s: float = 60.0
    # By how many probes a scanner exceeds the threshold, and how much of the forgetting time it
    # takes for them.
    excess: tuple[int, int]
    pace: float
    # Shares: of handshakes at a gateway that are left incomplete as far as that is innocent, of
    # those that are begun again after that, of SYNs that are sent again, and of packets that are
    # published late.
    failing: float
    retried: float
    resent: float
    late: float
    late_s: float
    # How far the clock of a site is off, at most.
    skew_s: float
    # How long a slow client takes to answer a SYN-ACK, as a share of the time-out.
    slowness: float

    def __post_init__(self) -> None:
        unseen = len(self.sites) * (self.local_threshold - 1)
        if self.threshold + self.excess[1] > unseen:
            raise LocalProtocolError(
                f"{self.threshold + self.excess[1]} probes do not stay under a local threshold of "
                f"{self.local_threshold} at {len(self.sites)} sites; allowed are {unseen}"
            )


EASY: Final = Setting(
    excess=(4, 4),
    pace=0.3,
    failing=0.02,
    retried=0.0,
    resent=0.0,
    late=0.0,
    late_s=0.0,
    skew_s=0.0,
    slowness=0.1,
)
HARD: Final = Setting(
    excess=(0, 2),
    pace=0.85,
    failing=0.2,
    retried=0.3,
    resent=0.05,
    late=0.05,
    late_s=0.4,
    skew_s=0.2,
    slowness=0.8,
)
SETTINGS: Final = {"easy": EASY, "hard": HARD}


@dataclass(frozen=True, slots=True)
class Packet:
    """An event of a site."""

    # When the site publishes it, by a clock that is right; packets are in this order.
    published_us: int
    site: str
    key: bytes
    value: bytes
    # When the packet was seen, by the clock of the site.
    time_us: int


class Seen(msgspec.Struct, frozen=True):
    """The value of an event. Both ends are named as in the SYN, whoever sent this packet."""

    kind: str
    source: str
    destination: str
    destination_port: int
    source_port: int
    time: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """When the incomplete connections of a scanner become as many as the threshold says."""

    source: str
    # By the clock of the site where it happens, and by one that is right, when all of them are
    # published.
    time_us: int
    published_us: int
    # Whether that is a packet (RST) or the end of a time-out.
    by_reset: bool


class Traffic:
    """Packets in the order in which they are published, as often as one likes."""

    def __init__(
        self,
        setting: Setting = HARD,
        *,
        seed: int,
        start_us: int = START_US,
        duration_s: float = 150.0,
        connections_per_s: float = 50.0,
    ) -> None:
        self.setting = setting
        self._seed = seed
        self._start_us = start_us
        self._duration_s = duration_s
        self._connections_per_s = connections_per_s
        least_s = setting.timeout_s + TAIL_S + PROBING_S_MIN
        if duration_s < least_s:
            raise LocalProtocolError(
                f"{duration_s:g} s of traffic are too short for a scan; allowed are {least_s:g} s "
                f"and more"
            )
        clients = max(CLIENTS_MIN, round(connections_per_s * SECONDS_PER_CLIENT))
        self._everybody = _Everybody.of(setting, clients, random.Random(f"{seed} addresses"))
        self._wire = _Wire.of(setting, random.Random(f"{seed} clocks"))
        self._probes: list[_Session] = []
        self.crossings = {each: self._plan(each) for each in self._everybody.scanners}

    def __iter__(self) -> Iterator[Packet]:
        """Packets are made as they are asked for: it may go on for as long as one likes."""
        by_begin = attrgetter("begin_us")
        probes = sorted(self._probes, key=by_begin)
        return _in_order(heapq.merge(self._innocent(), probes, key=by_begin))

    # Scanners

    def _plan(self, source: str) -> Crossing:
        """Plan the probes of a scanner, and say which of them makes it one."""
        setting = self.setting
        rng = random.Random(f"{self._seed} {source}")
        probes = setting.threshold + rng.randint(*setting.excess)
        probing_s = self._duration_s - setting.timeout_s - TAIL_S
        span_s = min(setting.pace * setting.forget_s, 0.8 * probing_s)
        begin_s = rng.uniform(0, probing_s - span_s)
        # Nobody looks at the same thing twice, and each site sees as little as possible.
        targets = rng.sample([(host, port) for host in range(HOSTS) for port in OPEN_PORTS], probes)
        sites = cycle(rng.sample(range(len(setting.sites)), len(setting.sites)))
        findings = []
        for number, (host, port) in enumerate(targets):
            at_s = begin_s + (number + rng.uniform(0, 0.8)) * span_s / probes
            target = _Target(next(sites), host, port)
            begin_us = self._start_us + round(at_s * SECOND_US)
            findings.append(self._probe(rng, source, target, begin_us))
        findings.sort()
        crossing = findings[: setting.threshold]
        time_us, _, by_reset = crossing[-1]
        return Crossing(source, time_us, max(each[1] for each in crossing), by_reset)

    def _probe(
        self, rng: random.Random, source: str, target: "_Target", begin_us: int
    ) -> tuple[int, int, bool]:
        """When a probe is found incomplete, by the clock of its site and by one that is right."""
        if rng.random() < 0.5:
            # Most ports are closed, which is what a scanner is there to find out.
            closed = target._replace(port=rng.choice(CLOSED_PORTS))
            self._probes.append(self._session(rng, source, closed, begin_us, _refused(rng)))
        by_reset = rng.random() < 0.6
        steps = _reset(rng) if by_reset else _silent(rng)
        session = self._session(rng, source, target, begin_us, self._resent(rng, steps))
        self._probes.append(session)
        packets = session.packets
        if by_reset:
            return packets[-1].time_us, packets[-1].published_us, True
        # The last packet is the SYN-ACK for the second time; time runs from the first.
        timeout_us = round(self.setting.timeout_s * SECOND_US)
        return packets[-2].time_us + timeout_us, packets[-2].published_us + timeout_us, False

    # Everybody else

    def _innocent(self) -> Iterator["_Session"]:
        rng = random.Random(f"{self._seed} innocent")
        innocence = _Innocence(self.setting)
        at_s = rng.expovariate(self._connections_per_s)
        while at_s < self._duration_s:
            begin_us = self._start_us + round(at_s * SECOND_US)
            source, share = self._everybody.someone(rng)
            site, host = rng.randrange(len(self.setting.sites)), rng.randrange(HOSTS)
            if source in self._everybody.monitors:
                yield self._visit(rng, source, site, host, begin_us)
            else:
                target = _Target(site, host, rng.choice(OPEN_PORTS))
                yield self._use(rng, source, target, begin_us, share, innocence)
            at_s += rng.expovariate(self._connections_per_s)

    def _visit(
        self, rng: random.Random, source: str, site: int, host: int, begin_us: int
    ) -> "_Session":
        """A monitor looks whether what should be open is, and what should be closed."""
        if rng.random() < 0.7:
            target, steps = _Target(site, host, rng.choice(OPEN_PORTS)), self._completed(rng)
        else:
            target, steps = _Target(site, host, rng.choice(CLOSED_PORTS)), _refused(rng)
        return self._session(rng, source, target, begin_us, steps)

    def _session(
        self, rng: random.Random, source: str, target: "_Target", begin_us: int, steps: "_Steps"
    ) -> "_Session":
        return _Session(begin_us, self._wire.packets(rng, source, target, begin_us, steps))

    def _use(
        self,
        rng: random.Random,
        source: str,
        target: "_Target",
        begin_us: int,
        failing: float,
        innocence: "_Innocence",
    ) -> "_Session":
        draw = rng.random()
        if draw < REFUSED:
            closed = target._replace(port=rng.choice(CLOSED_PORTS))
            return self._session(rng, source, closed, begin_us, _refused(rng))
        if draw < REFUSED + UNANSWERED:
            steps = [("SYN", 0), ("SYN", AGAIN_US), ("SYN", 3 * AGAIN_US)]
            return self._session(rng, source, target, begin_us, steps)
        if rng.random() >= failing or not innocence.allows(source, target, begin_us):
            steps = self._resent(rng, self._completed(rng))
            return self._session(rng, source, target, begin_us, steps)
        steps = self._resent(rng, _reset(rng) if rng.random() < 0.5 else _silent(rng))
        session = self._session(rng, source, target, begin_us, steps)
        if rng.random() < self.setting.retried:
            # Twice the same thing is not two things.
            steps = _reset(rng) if rng.random() < 0.5 else self._completed(rng)
            again_us = begin_us + 2 * AGAIN_US
            session.packets.extend(self._wire.packets(rng, source, target, again_us, steps))
        return session

    def _completed(self, rng: random.Random) -> "_Steps":
        answered_us = _round_trip_us(rng)
        slow_us = round(self.setting.slowness * self.setting.timeout_s * SECOND_US)
        is_slow = rng.random() < SLOW
        completed_us = answered_us + (rng.randint(0, slow_us) if is_slow else _round_trip_us(rng))
        steps = [("SYN", 0), ("SYN-ACK", answered_us), ("ACK", completed_us)]
        if rng.random() < RESET_AFTER_USE:
            steps.append(("RST", completed_us + rng.randint(SECOND_US // 2, 3 * SECOND_US)))
        return steps

    def _resent(self, rng: random.Random, steps: "_Steps") -> "_Steps":
        """Perhaps the first SYN got lost behind the place where the site looks."""
        if rng.random() >= self.setting.resent:
            return steps
        return [("SYN", 0), *((kind, AGAIN_US + offset_us) for kind, offset_us in steps)]


# Kinds of packets of one handshake, and when each is sent after the first.
_Steps = list[tuple[str, int]]


class _Target(NamedTuple):
    site: int
    host: int
    port: int


class _Session(NamedTuple):
    """Packets that have to do with each other; none is published before the session begins."""

    begin_us: int
    packets: list[Packet]


@dataclass(frozen=True)
class _Everybody:
    """Addresses, from which nobody can tell who is what."""

    scanners: list[str]
    gateways: list[str]
    monitors: list[str]
    clients: list[str]
    failing: float

    @classmethod
    def of(cls, setting: Setting, clients: int, rng: random.Random) -> "_Everybody":
        groups = (setting.scanners, setting.gateways, setting.monitors, clients)
        # The range that is set aside for trials like this: 198.18.0.0/15.
        drawn = iter(rng.sample(range(2**17), sum(groups)))
        scanners, gateways, monitors, others = (
            [f"198.{18 + (n >> 16)}.{n >> 8 & 255}.{n & 255}" for n in islice(drawn, group)]
            for group in groups
        )
        return cls(scanners, gateways, monitors, others, setting.failing)

    def someone(self, rng: random.Random) -> tuple[str, float]:
        """Somebody innocent, and the share of handshakes that they leave incomplete."""
        draw = rng.random()
        if draw < 0.10:
            return rng.choice(self.monitors), 0.0
        if draw < 0.35:
            return rng.choice(self.gateways), self.failing
        return rng.choice(self.clients), CLIENT_FAILING


@dataclass(frozen=True)
class _Wire:
    """What sites see of a handshake, and when they say so."""

    setting: Setting
    skews_us: list[int]

    @classmethod
    def of(cls, setting: Setting, rng: random.Random) -> "_Wire":
        most_us = round(setting.skew_s * SECOND_US)
        return cls(setting, [rng.randint(-most_us, most_us) for _ in setting.sites])

    def packets(
        self, rng: random.Random, source: str, target: _Target, begin_us: int, steps: _Steps
    ) -> list[Packet]:
        source_port = rng.randint(32768, 60999)
        destination = f"10.{target.site}.0.{target.host}"
        packets = []
        for kind, offset_us in steps:
            sent_us = begin_us + offset_us
            seen_us = sent_us + self.skews_us[target.site]
            late_us = 0
            if rng.random() < self.setting.late:
                late_us = rng.randint(0, round(self.setting.late_s * SECOND_US))
            seen = Seen(kind, source, destination, target.port, source_port, seen_us)
            packets.append(
                Packet(
                    published_us=sent_us + late_us,
                    site=self.setting.sites[target.site],
                    key=source.encode(),
                    value=msgspec.json.encode(seen),
                    time_us=seen_us,
                )
            )
        return packets


class _Innocence:
    """Who may leave another handshake incomplete, and not be taken for a scanner."""

    def __init__(self, setting: Setting) -> None:
        self._most = setting.threshold - 1
        # Longer than the forgetting time, since a handshake is found incomplete some time after it
        # was begun, and may be begun again.
        self._window_us = round((setting.forget_s + 4 * setting.timeout_s) * SECOND_US)
        self._failures: dict[str, deque[tuple[int, _Target]]] = {}

    def allows(self, source: str, target: _Target, at_us: int) -> bool:
        failures = self._failures.setdefault(source, deque())
        while failures and failures[0][0] <= at_us - self._window_us:
            failures.popleft()
        if len({target, *(each for _, each in failures)}) > self._most:
            return False
        failures.append((at_us, target))
        return True


def _round_trip_us(rng: random.Random) -> int:
    return rng.randint(5_000, 150_000)


def _refused(rng: random.Random) -> _Steps:
    return [("SYN", 0), ("RST", _round_trip_us(rng))]


def _reset(rng: random.Random) -> _Steps:
    answered_us = _round_trip_us(rng)
    return [("SYN", 0), ("SYN-ACK", answered_us), ("RST", answered_us + _round_trip_us(rng))]


def _silent(rng: random.Random) -> _Steps:
    answered_us = _round_trip_us(rng)
    return [("SYN", 0), ("SYN-ACK", answered_us), ("SYN-ACK", answered_us + AGAIN_US)]


def _in_order(sessions: Iterable[_Session]) -> Iterator[Packet]:
    """Sessions overlap: a packet is due when no session can begin before it any more."""
    waiting: list[tuple[int, int, Packet]] = []
    numbers = count()
    for session in sessions:
        while waiting and waiting[0][0] < session.begin_us:
            yield heapq.heappop(waiting)[2]
        for packet in session.packets:
            heapq.heappush(waiting, (packet.published_us, next(numbers), packet))
    while waiting:
        yield heapq.heappop(waiting)[2]
