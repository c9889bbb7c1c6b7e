"""What the theses and another system measured, to stand beside what we measure.

Freeman (2016, chapter 7): events of 56 bytes, each broker on a machine of its own, and as many
publishers as it took to reach the highest figure. FIT-Broker (section 5.2): events of 253 bytes,
ten channels, and again the best number of publishers. Their machines and ours differ, so these
are figures to know, not figures to divide by, and no figure here was measured in the same run.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A thesis' own result for an experiment like ours; latencies where it gives them."""

    events_per_s: float | None = None
    mean_ms: float | None = None
    p99_ms: float | None = None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another system's result, from the lowest to the highest."""

    name: str
    events_per_s: tuple[float, float]
    p50_ms: tuple[float, float]
    source: str


@dataclass(frozen=True, slots=True)
class Case:
    """What an experiment must have in common with a thesis' to stand beside it."""

    protocol: str
    history_every: int = 0
    f: int = 1
    events_per_batch: int = 1
    fault: str | None = None


def _freeman(section: str, events_per_s: float | None, *latencies_ms: float) -> Figure:
    mean_ms, p99_ms = latencies_ms or (None, None)
    source = f"Freeman 2016, {section}"
    return Figure(events_per_s=events_per_s, mean_ms=mean_ms, p99_ms=p99_ms, source=source)


def _fit_broker(table: str, events_per_s: float) -> Figure:
    return Figure(events_per_s=events_per_s, source=f"FIT-Broker, table {table}")


FIGURES: dict[Case, Figure] = {
    Case("authenticated"): _freeman("7.3.1", 11_000, 0.7, 2.4),
    Case("authenticated", 10): _freeman("7.3.1", None, 2.3, 33.9),
    Case("authenticated", f=2): _freeman("7.3.2", 7_400),
    Case("reliable"): _freeman("7.3.1", 850, 29.5, 64.1),
    Case("chain"): _freeman("7.3.1", 1_750, 1.7, 3.4),
    Case("chain", 10): _freeman("7.3.1", None, 2.4, 5.8),
    Case("first-answer"): _fit_broker("5.3", 12_269),
    Case("vote"): _fit_broker("5.3", 10_362),
    Case("vote", fault="crash and recovery"): _fit_broker("5.4", 10_416),
    Case("vote", fault="altering"): _fit_broker("5.5", 10_218),
    Case("vote", f=2): _fit_broker("5.6", 6_688),
    Case("vote", events_per_batch=100): _fit_broker("5.7", 641_436),
}


# FIT-Broker's tables of ordered channels, for 1 to 10 publishers on each of ten.
_ORDERED: dict[Case, tuple[str, tuple[int, ...]]] = {
    Case("ordering"):
        ("5.3", (4201, 3120, 2936, 2770, 2808, 2962, 3095, 3007, 2867, 2797)),
    Case("crash-ordering"):
        ("5.3", (3081, 3114, 4357, 4424, 4535, 4555, 4439, 4415, 4364, 4185)),
    Case("ordering", fault="crash and recovery"):
        ("5.4", (3960, 3472, 2994, 3257, 2923, 3110, 3255, 3338, 3676, 3387)),
    Case("ordering", fault="altering"):
        ("5.5", (4032, 3016, 2812, 3039, 2822, 3189, 2985, 2657, 2594, 2566)),
    Case("ordering", f=2):
        ("5.6", (2525, 2547, 2577, 2604, 2612, 2624, 2667, 2645, 2636, 2603)),
    Case("ordering", events_per_batch=100):
        ("5.7", (225225, 267379, 268817, 271739, 268817, 274725, 276243, 282485, 292397, 267737)),
}  # fmt: skip


PEERS: dict[Case, Peer] = {
    Case("ordering"): Peer(
        name="BFT-SMaRt 2.0",
        events_per_s=(1_300, 2_500),
        p50_ms=(54, 74),
        source="4 replicas, 100 clients, 256-byte requests; "
        "design notes, same machine, not this run",
    )
}


def figure_for(case: Case, topics: int, publishers: int = 1) -> Figure | None:
    """The thesis' figure for this case, if it has one.

    Freeman gives numbers for one topic, and a plot for four; FIT-Broker always had ten channels.
    """
    if case in _ORDERED:
        table, events_per_s = _ORDERED[case]
        at = publishers - 1
        return _fit_broker(table, events_per_s[at]) if at < len(events_per_s) else None
    figure = FIGURES.get(case)
    if figure is not None and topics > 1 and figure.source.startswith("Freeman"):
        return None
    return figure
