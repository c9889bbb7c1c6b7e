"""What other systems reached, to stand beside what we measure.

Nothing here was measured in the same run, and the source of each figure says so.
"""

from dataclasses import dataclass

from quorate.bench.theses import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another system's result, from the lowest to the highest."""

    name: str
    events_per_s: tuple[float, float]
    p50_ms: tuple[float, float]
    source: str


PEERS: dict[Case, Peer] = {
    Case("ordering"): Peer(
        name="BFT-SMaRt 2.0",
        events_per_s=(1_300, 2_500),
        p50_ms=(54, 74),
        source="4 replicas, 100 clients, 256-byte requests; "
        "design notes, same machine, not this run",
    ),
}


def peer_for(case: Case) -> Peer | None:
    return PEERS.get(case)
