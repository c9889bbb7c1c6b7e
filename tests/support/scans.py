"""Who scans, in the plainest words: what the job and the generator are both held against."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from quorate.pipeline.data.sites import Packet, Seen


class Sighting(NamedTuple):
    time_us: int
    kind: str
    site: str
    source: str
    destination: str
    port: int
    source_port: int


class Finding(NamedTuple):
    time_us: int
    site: str
    destination: str
    port: int


def sighting(packet: Packet) -> Sighting:
    seen = msgspec.json.decode(packet.value, type=Seen)
    return Sighting(
        seen.time, seen.kind, packet.site, seen.source, seen.destination, seen.destination_port,
        seen.source_port,
    )  # fmt: skip


def scanners(
    sightings: Iterable[Sighting], *, threshold: int, sites: int, timeout_us: int, forget_us: int
) -> dict[str, int]:
    """Each scanner, and the time at which it became one."""
    connections = defaultdict(list)
    for each in sorted(sightings):
        connections[each[2:]].append(each)
    findings = defaultdict(list)
    for (_, source, *_), packets in connections.items():
        for attempt in attempts(packets, timeout_us):
            found = incomplete(attempt, timeout_us)
            if found is not None:
                findings[source].append(found)
    return {
        source: moment
        for source, found in findings.items()
        if (moment := crossing(found, threshold, sites, forget_us)) is not None
    }


def attempts(packets: list[Sighting], timeout_us: int) -> list[list[Sighting]]:
    """Handshakes that used the same ports one after the other."""
    result: list[list[Sighting]] = []
    for packet in packets:
        if result:
            answers = [each.time_us for each in result[-1] if each.kind == "SYN-ACK"]
            begin_us = min(answers) if answers else result[-1][0].time_us
            if packet.time_us < begin_us + timeout_us:
                result[-1].append(packet)
                continue
        result.append([packet])
    return result


def incomplete(attempt: list[Sighting], timeout_us: int) -> Finding | None:
    def first(kind: str, from_us: int) -> int | None:
        times = (each.time_us for each in attempt if each.kind == kind and each.time_us >= from_us)
        return min(times, default=None)

    begin_us = attempt[0].time_us
    sent_us, answered_us = first("SYN", begin_us), first("SYN-ACK", begin_us)
    if sent_us is None or answered_us is None or sent_us > answered_us:
        return None
    reset_us = first("RST", answered_us)
    last_us = answered_us + timeout_us if reset_us is None else reset_us
    completed_us = first("ACK", answered_us)
    if completed_us is not None and completed_us <= last_us:
        return None
    return Finding(last_us, attempt[0].site, attempt[0].destination, attempt[0].port)


def crossing(findings: list[Finding], threshold: int, sites_min: int, forget_us: int) -> int | None:
    for moment in sorted(each.time_us for each in findings):
        recent = {each[1:] for each in findings if moment - forget_us < each.time_us <= moment}
        if len(recent) >= threshold and len({site for site, *_ in recent}) >= sites_min:
            return moment
    return None
