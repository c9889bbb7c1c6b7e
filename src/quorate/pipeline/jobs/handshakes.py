"""What becomes of the handshakes of one source, and when it has left too many of them incomplete.

Source: the thesis on quality of service, section 1.2.1, after the CoMiFin project.

A stealthy scan leaves incomplete connections: SYN, SYN-ACK, and then RST, or nothing until a
time-out. What counts is not connections but what was probed, which is a destination and a port at
a site: to try one of them again, or to send a SYN again, makes nobody more of a scanner. A source
is found when so many things that it probed within the forgetting time, at so many sites, make the
threshold. No site alone need have seen much of it, and that is the point. On the other hand, at
least one probe has to have been seen by another site than the rest, if two are asked for: a site
that lies makes no scanner of a source that has left nothing incomplete elsewhere.

Time is that of the packets. The clock of a source is a watermark: the latest time that is known,
less the delay by which packets may come late. What its own packets show of the time counts at once,
so that the verdict does not hang on how the packets were cut into batches; but what they claim of a
time to come moves the clock to now and no further.

- An ACK or a reset from before the SYN-ACK says nothing: whoever sends one to seem harmless is
  none the less a scanner.
- A reset is believed at once. An ACK from before it that comes later takes it back.
- Silence is believed when the clock has passed the time-out.

Invariants:
- a source is found once, until it has been silent for the forgetting time;
- it follows at most `connections_max` connections, none for longer than the time-out and the delay;
- it remembers at most `threshold` probes per site, none for longer than the forgetting time;
- of a source that was found, and of one that was silent for the forgetting time, it remembers
  nothing but that, and nothing at all.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

SYN: Final = "SYN"
SYN_ACK: Final = "SYN-ACK"
ACK: Final = "ACK"
RST: Final = "RST"
# In the order in which they are taken that have the same time.
KINDS: Final = (SYN, SYN_ACK, ACK, RST)

NEVER_US: Final = -(2**63)
FOREVER_US: Final = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Who is a scanner, and what is remembered for how long."""

    threshold: int
    sites_min: int
    timeout_us: int
    forget_us: int
    delay_us: int
    connections_max: int


class Packet(NamedTuple):
    """One packet of a handshake. Both ends are named as in its SYN, whoever sent this one."""

    at_us: int
    # The place in `KINDS`, so that packets have an order.
    kind: int
    site: str
    destination: str
    destination_port: int
    source_port: int


class Probe(NamedTuple):
    """What was left incomplete."""

    site: str
    destination: str
    port: int


class Found(NamedTuple):
    """A source was found to scan: by how much, where, and which moment made it one.

    That is as known then: a reset counts before a silence of up to the delay before it does.
    """

    incomplete: int
    sites: list[str]
    crossed_at_us: int


# A connection as its source knows it: where it leads, and the ports of both ends.
Name = tuple[str, str, int, int]


class Connection(msgspec.Struct, array_like=True):
    """When the first packet of each kind was sent, and since when it counts as incomplete.

    The first ACK and the first reset are those that are not from before the SYN-ACK.
    """

    times_us: list[int | None]
    incomplete_us: int | None = None

    def note(self, packet: Packet) -> None:
        """A packet that is sent again is no other packet."""
        known_us = self.times_us[packet.kind]
        if known_us is None or self._rank(packet) < self._rank(packet._replace(at_us=known_us)):
            self.times_us[packet.kind] = packet.at_us

    def end_us(self, timeout_us: int) -> int:
        """From then on, no packet belongs to it."""
        answered_us = self.times_us[1]
        if answered_us is not None:
            return answered_us + timeout_us
        return min(time for time in self.times_us if time is not None) + timeout_us

    def verdict_us(self, timeout_us: int, *, is_over: bool) -> int | None:
        """Since when it is incomplete; None if it is not, or not yet."""
        sent_us, answered_us, completed_us, reset_us = self.times_us
        if sent_us is None or answered_us is None or sent_us > answered_us:
            return None
        end_us = answered_us + timeout_us
        is_reset = reset_us is not None and answered_us <= reset_us < end_us
        last_us = reset_us if reset_us is not None and is_reset else end_us
        if completed_us is not None and answered_us <= completed_us <= last_us:
            return None
        return last_us if is_reset or is_over else None

    def _rank(self, packet: Packet) -> tuple[bool, int]:
        """Which of two packets of a kind says more: one that counts, and then the first."""
        answered_us = self.times_us[1]
        follows = KINDS[packet.kind] in (ACK, RST)
        is_early = follows and answered_us is not None and packet.at_us < answered_us
        return is_early, packet.at_us


class Handshakes(msgspec.Struct, array_like=True):
    """The handshakes of one source: what is kept of it between two batches."""

    connections: dict[Name, Connection] = {}
    probes: dict[Probe, int] = {}
    latest_us: int = NEVER_US
    # No connection ends before this.
    due_us: int = FOREVER_US
    was_found: bool = False

    def on_packets(
        self, packets: Iterable[Packet], rules: Rules, *, now_us: int = FOREVER_US
    ) -> list[Found]:
        """Packets of one batch, which may come in any order and span any time."""
        found = []
        for packet in sorted(packets):
            known_us = min(packet.at_us, now_us)
            if self.was_found:
                # In a batch that spans more than the forgetting time, nobody wakes us.
                self._forget(known_us - rules.delay_us, rules)
            self.latest_us = max(self.latest_us, known_us)
            if not self.was_found:
                found.append(self._settle(NEVER_US, rules) or self._follow(packet, rules))
        return [each for each in found if each is not None]

    def on_clock(self, clock_us: int, rules: Rules) -> Found | None:
        """So late it is by the packets of all sources."""
        found = self._settle(clock_us, rules)
        self._forget(clock_us, rules)
        return found

    def wake_us(self, rules: Rules) -> int | None:
        """When `on_clock` has something to do; None if there is nothing that we remember."""
        if self.was_found:
            return self.latest_us + rules.forget_us
        if self.connections:
            return self.due_us
        return max(self.probes.values()) + rules.forget_us if self.probes else None

    # Parts

    def _follow(self, packet: Packet, rules: Rules) -> Found | None:
        name = (packet.site, packet.destination, packet.destination_port, packet.source_port)
        connection = self.connections.get(name)
        if connection is not None and packet.at_us >= connection.end_us(rules.timeout_us):
            # Its ports are in use again. What it was is known, but for packets that are late.
            found = self._end(name, connection, rules)
            if found is not None:
                return found
            connection = None
        if connection is None:
            if len(self.connections) >= rules.connections_max:
                return None
            connection = self.connections[name] = Connection([None] * len(KINDS))
        connection.note(packet)
        self.due_us = min(self.due_us, connection.end_us(rules.timeout_us))
        return self._judge(name, connection, rules, is_over=False)

    def _settle(self, clock_us: int, rules: Rules) -> Found | None:
        """Connections whose time is over are judged and forgotten, in the order of their ends."""
        clock_us = max(clock_us, self.latest_us - rules.delay_us)
        if clock_us < self.due_us:
            return None
        ends = sorted(
            (each.end_us(rules.timeout_us), name) for name, each in self.connections.items()
        )
        for end_us, name in ends:
            if end_us > clock_us:
                self.due_us = end_us
                return None
            found = self._end(name, self.connections[name], rules)
            if found is not None:
                return found
        self.due_us = FOREVER_US
        return None

    def _end(self, name: Name, connection: Connection, rules: Rules) -> Found | None:
        del self.connections[name]
        return self._judge(name, connection, rules, is_over=True)

    def _judge(
        self, name: Name, connection: Connection, rules: Rules, *, is_over: bool
    ) -> Found | None:
        """Count a connection as incomplete, or no longer, if what is known of it says so."""
        probe = Probe(*name[:3])
        known_us = connection.incomplete_us
        incomplete_us = connection.verdict_us(rules.timeout_us, is_over=is_over)
        if incomplete_us == known_us:
            return None
        connection.incomplete_us = incomplete_us
        if known_us is not None and self.probes.get(probe) == known_us:
            del self.probes[probe]
        if incomplete_us is None:
            return None
        self._count(probe, incomplete_us, rules)
        return self._crossing(rules)

    def _count(self, probe: Probe, incomplete_us: int, rules: Rules) -> None:
        self.probes[probe] = max(incomplete_us, self.probes.get(probe, NEVER_US))
        of_site = [each for each in self.probes if each.site == probe.site]
        if len(of_site) > rules.threshold:
            # More of them do not make the site say more, and the latest count for longest.
            del self.probes[min(of_site, key=self.probes.__getitem__)]

    def _crossing(self, rules: Rules) -> Found | None:
        """The first moment at which enough probes lie within the forgetting time."""
        if len(self.probes) < rules.threshold:
            return None
        probes = sorted((time_us, probe.site) for probe, time_us in self.probes.items())
        sites: Counter[str] = Counter()
        first = 0
        for last, (time_us, site) in enumerate(probes):
            sites[site] += 1
            while probes[first][0] <= time_us - rules.forget_us:
                sites[probes[first][1]] -= 1
                first += 1
            count, seen_at = last + 1 - first, sorted(+sites)
            if count >= rules.threshold and len(seen_at) >= rules.sites_min:
                self._be_found()
                return Found(count, seen_at, time_us)
        return None

    def _be_found(self) -> None:
        self.was_found = True
        self.connections.clear()
        self.probes.clear()
        self.due_us = FOREVER_US

    def _forget(self, clock_us: int, rules: Rules) -> None:
        over_us = clock_us - rules.forget_us
        self.probes = {probe: time for probe, time in self.probes.items() if time > over_us}
        if self.latest_us <= over_us:
            self.was_found = False
