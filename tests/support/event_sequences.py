"""What two consumers see of concurrent publishers, with and without one order.

Source: QoS over wide-area networks, sections 3.1 and 3.5 with figure 3.21. Its test has five
publishers, each with a topic of its own, which publish one of three kinds of events, drawn at
random, at a rate of five events a second; two subscribers; and Scribe over Pastry with 100 nodes,
whose links keep the order of what crosses them (section 3.2) and are fast (80 %, normal with mean
21 ms and deviation 10.85 ms) or slow (20 %, mean 240 ms, deviation 129.27 ms). All this is taken
over.

Where the thesis can be read in several ways, other sentences of it decide:
- The five events a second are those of all publishers together. "Each publisher publishes [...] at
  a rate of 5 events/sec" can mean each of them, but section 3.5.1 defines the event rate as the
  "number of events published per second", and all its other tests use it so.
- Which kind a link is, is drawn anew for each event that crosses one. Were it drawn once for a run,
  runs would differ as much as slow links happen to lie, by half of the mean; but the thesis' runs
  differ by 5 % of it at most.
- An event crosses one link or two on its way from its publisher to the node that has the topic, and
  as many from there to each subscriber, drawn once for each way. Pastry's leaf sets have 24 of the
  other 99 nodes; to the rest there is one link more, unless the node that has the first digit (16
  of them, for 100 nodes) is the right one. That makes two links on 62 % of the ways, and hardly
  ever more.

What remains open does not matter much: gaps between events are exponential, so that publishers are
not in step, and no latency is less than 1 ms.

So two consumers agree on 33 % of the patterns, where the thesis has 35 % (seeds 0 to 19, each of
half an hour: 29 to 38 %, deviation 2.3). With five events a second of each publisher, it is 7 %. We
came to this reading after we had measured others: it is what the thesis says, but nobody should
take the closeness of the two figures for a proof of it.

Without order, a consumer sees events as they arrive at it. With one, events take their `position`
where they arrive first, at a log, and all consumers read that. No result is put in: how often
consumers agree comes out of the latencies.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
import pyarrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("e", "e'", "e''")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The latency of a kind of link, in milliseconds."""

    mean_ms: float
    deviation_ms: float


FAST = Link(mean_ms=21, deviation_ms=10.85)
SLOW = Link(mean_ms=240, deviation_ms=129.27)
_LATENCY_MS_MIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Who publishes what, and through what; the same settings draw the same events."""

    seed: int = 1
    publishers: int = 5
    consumers: int = 2
    kinds: tuple[str, ...] = KINDS
    keys: int = 1
    # Of all publishers together.
    events_per_second: float = 5.0
    seconds: int = 60
    begin_us: int = 1_700_000_000_000_000
    # The share of slow links, and of ways that cross two links.
    slow: float = 0.2
    long_ways: float = 0.62


def draw(network: Network, *, ordered: bool) -> pyarrow.Table:
    """What each consumer sees, one after the other, in the order of arrival.

    The columns are consumer, arrival, topic, key, value, timestamp, offset, index and position;
    without order there is no position. Both ways have the same events.
    """
    random = numpy.random.default_rng(network.seed)
    events = _publish(network, random)
    at_topic = _travel(network, random, events.topics, events.times)
    order = _ranks(at_topic)
    tables = []
    for consumer in range(network.consumers):
        arrivals = order
        if not ordered:
            arrivals = _ranks(_travel(network, random, events.topics, at_topic))
        positions = order if ordered else None
        tables.append(_seen(network, events, f"consumer-{consumer}", arrivals, positions))
    return pyarrow.concat_tables(tables)


@dataclass(frozen=True, slots=True)
class _Events:
    """By the topic, and for each topic in the order in which they were published."""

    topics: "NDArray[numpy.int64]"
    numbers: "NDArray[numpy.int64]"
    times: "NDArray[numpy.float64]"
    kinds: "NDArray[numpy.int64]"
    keys: "NDArray[numpy.int64]"


def _publish(network: Network, random: numpy.random.Generator) -> _Events:
    per_second = network.events_per_second / network.publishers
    count = round(per_second * network.seconds)
    size = network.publishers * count
    gaps_s = random.exponential(1 / per_second, (network.publishers, count))
    return _Events(
        numpy.repeat(numpy.arange(network.publishers), count),
        numpy.tile(numpy.arange(count), network.publishers),
        numpy.cumsum(gaps_s, axis=1).ravel() * 1000,
        random.integers(0, len(network.kinds), size),
        random.integers(0, network.keys, size),
    )


def _travel(
    network: Network,
    random: numpy.random.Generator,
    topics: "NDArray[numpy.int64]",
    times_ms: "NDArray[numpy.float64]",
) -> "NDArray[numpy.float64]":
    """When events arrive at one place, to which each topic has a way of its own."""
    arrived_ms = times_ms.copy()
    for topic in range(network.publishers):
        mine = topics == topic
        for _ in range(2 if random.random() < network.long_ways else 1):
            after_ms = arrived_ms[mine] + _latencies_ms(network, random, int(mine.sum()))
            # Nothing overtakes what is on the same link.
            arrived_ms[mine] = numpy.maximum.accumulate(after_ms)
    return arrived_ms


def _latencies_ms(
    network: Network, random: numpy.random.Generator, count: int
) -> "NDArray[numpy.float64]":
    is_slow = random.random(count) < network.slow
    means = numpy.where(is_slow, SLOW.mean_ms, FAST.mean_ms)
    deviations = numpy.where(is_slow, SLOW.deviation_ms, FAST.deviation_ms)
    return numpy.maximum(random.normal(means, deviations), _LATENCY_MS_MIN)


def _ranks(times_ms: "NDArray[numpy.float64]") -> "NDArray[numpy.int64]":
    """Who comes first has 0; of one topic at one time, the one published first."""
    ranks = numpy.empty(len(times_ms), numpy.int64)
    ranks[numpy.argsort(times_ms, kind="stable")] = numpy.arange(len(times_ms))
    return ranks


def _seen(
    network: Network,
    events: _Events,
    consumer: str,
    arrivals: "NDArray[numpy.int64]",
    positions: "NDArray[numpy.int64] | None",
) -> pyarrow.Table:
    rows = numpy.argsort(arrivals)
    count = len(rows)
    values = [
        json.dumps({"type": network.kinds[kind], "number": number}).encode()
        for kind, number in zip(
            events.kinds[rows].tolist(), events.numbers[rows].tolist(), strict=True
        )
    ]
    times_us = network.begin_us + numpy.rint(events.times * 1000).astype(numpy.int64)
    position = pyarrow.nulls(count, pyarrow.int64()) if positions is None else positions[rows]
    return pyarrow.table(
        {
            "consumer": [consumer] * count,
            "arrival": pyarrow.array(arrivals[rows], pyarrow.int64()),
            "topic": [f"topic-{topic}" for topic in events.topics[rows].tolist()],
            "key": [b"key-%d" % key for key in events.keys[rows].tolist()],
            "value": values,
            "timestamp": pyarrow.array(times_us[rows], pyarrow.timestamp("us", "UTC")),
            "offset": pyarrow.array(events.numbers[rows], pyarrow.int64()),
            "index": pyarrow.array([0] * count, pyarrow.int32()),
            "position": pyarrow.array(position, pyarrow.int64()),
        }
    )
