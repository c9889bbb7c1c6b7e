"""Price ticks of a market, drawn from a seed, with jumps that are planted and known.

    ticks = draw(Market(seed=7, seconds=300))
    await producer.send_table("prices", ticks.table)

An instrument stays within `noise_percent` of its own base price, but for the jumps: for
`jump_seconds`, its price is `jump_percent` higher, or lower. Who compares prices with the average
of the last 30 seconds must find each jump once, and nothing beside it. That holds with the
defaults; with longer jumps, the average catches up with them, and after them the old price is
itself far from it.

What is published is what a wide-area feed would bring: some ticks are missing, some come late and
so out of order, and a few so late that nobody waits for them. The table has the order of arrival,
and `arrivals_us` says when each row arrives. The truth are the jumps. Which orders a rule makes of
them is for whoever reads them to say, and for tests to say once more in another way.
"""

from dataclasses import dataclass

import numpy
import pyarrow
import pyarrow.compute

# Prices are whole numbers of this part of a unit of money, so that all arithmetic is exact.
PRICE_UNIT = 10_000
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """What is drawn; the same settings draw the same ticks."""

    seed: int = 1
    instruments: tuple[str, ...] = ("IBM", "MSFT", "ORCL", "SAP")
    # Instruments are dealt to topics in turn.
    topics: tuple[str, ...] = ("prices",)
    begin_us: int = 1_700_000_000 * _SECOND_US
    seconds: int = 300
    # Between two ticks of an instrument, on average; the gaps vary by half of it.
    interval_ms: int = 250
    noise_percent: float = 0.04
    jump_percent: float = 1.0
    jump_seconds: int = 8
    # From one jump of an instrument to its next, at least; the first comes after a calm time.
    jump_every_seconds: int = 80
    missing: float = 0.02
    late: float = 0.05
    late_ms_max: int = 1500
    too_late: float = 0.002
    too_late_ms: int = 20_000


@dataclass(frozen=True, slots=True)
class Jump:
    """For how long a price was far from where it is else: `direction` is 1 or -1."""

    instrument: str
    direction: int
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class Ticks:
    """Ticks in the order of arrival (key, value, timestamp), and what was planted in them."""

    market: Market
    table: pyarrow.Table
    arrivals_us: "numpy.typing.NDArray[numpy.int64]"
    jumps: tuple[Jump, ...]

    def of_topic(self, topic: str) -> pyarrow.Table:
        """The ticks of the instruments that are dealt to this topic."""
        topics = self.market.topics
        names = self.market.instruments[topics.index(topic) :: len(topics)]
        wanted = pyarrow.array([name.encode() for name in names], pyarrow.binary())
        return self.table.filter(pyarrow.compute.is_in(self.table["key"], value_set=wanted))


def draw(market: Market) -> Ticks:
    """The ticks of a market."""
    parts = [_instrument(market, number) for number in range(len(market.instruments))]
    times_us = numpy.concatenate([part.times_us for part in parts])
    arrivals_us = numpy.concatenate([part.arrivals_us for part in parts])
    prices = numpy.concatenate([part.prices for part in parts])
    numbers = numpy.concatenate([part.numbers for part in parts])
    owners = numpy.repeat(numpy.arange(len(parts)), [len(part.prices) for part in parts])
    # Who arrives in the same microsecond stands in the order of the instruments.
    order = numpy.argsort(arrivals_us, kind="stable")
    keys = pyarrow.array([name.encode() for name in market.instruments], pyarrow.binary())
    values = [
        b'{"price":%.4f,"number":%d}' % (price / PRICE_UNIT, number)
        for price, number in zip(prices[order].tolist(), numbers[order].tolist(), strict=True)
    ]
    table = pyarrow.table(
        {
            "key": keys.take(pyarrow.array(owners[order])),
            "value": pyarrow.array(values, pyarrow.binary()),
            "timestamp": pyarrow.array(times_us[order], pyarrow.timestamp("us", "UTC")),
        }
    )
    jumps = tuple(jump for part in parts for jump in part.jumps)
    return Ticks(market, table, arrivals_us[order], jumps)


@dataclass(frozen=True, slots=True)
class _Part:
    times_us: "numpy.typing.NDArray[numpy.int64]"
    arrivals_us: "numpy.typing.NDArray[numpy.int64]"
    prices: "numpy.typing.NDArray[numpy.int64]"
    numbers: "numpy.typing.NDArray[numpy.int64]"
    jumps: list[Jump]


def _instrument(market: Market, number: int) -> _Part:
    """One instrument has a random source of its own: others beside it change nothing."""
    random = numpy.random.default_rng([market.seed, number])
    mean_us = market.interval_ms * 1000
    count = market.seconds * _SECOND_US // mean_us
    gaps_us = random.integers(mean_us // 2, mean_us + mean_us // 2, count)
    times_us = market.begin_us + numpy.cumsum(gaps_us)
    base = int(random.integers(50, 500)) * PRICE_UNIT
    noise = market.noise_percent / 100
    factors = 1 + random.uniform(-noise, noise, count)
    jumps = _jumps(market, number, random)
    for jump in jumps:
        inside = (times_us >= jump.start_us) & (times_us < jump.end_us)
        factors[inside] += jump.direction * market.jump_percent / 100
    delays_us = _delays(market, random, count)
    kept = random.random(count) >= market.missing
    return _Part(
        times_us[kept],
        (times_us + delays_us)[kept],
        numpy.rint(base * factors).astype(numpy.int64)[kept],
        numpy.arange(count)[kept],
        jumps,
    )


def _jumps(market: Market, number: int, random: numpy.random.Generator) -> list[Jump]:
    jumps: list[Jump] = []
    slack_us = (market.jump_every_seconds // 4) * _SECOND_US
    start_us = market.begin_us + market.jump_every_seconds * _SECOND_US // 2
    last_us = market.begin_us + (market.seconds - 2 * market.jump_seconds) * _SECOND_US
    while (start_us := start_us + int(random.integers(0, slack_us))) < last_us:
        direction = 1 if random.random() < 0.5 else -1
        end_us = start_us + market.jump_seconds * _SECOND_US
        jumps.append(Jump(market.instruments[number], direction, start_us, end_us))
        start_us += market.jump_every_seconds * _SECOND_US
    return jumps


def _delays(
    market: Market, random: numpy.random.Generator, count: int
) -> "numpy.typing.NDArray[numpy.int64]":
    """Most ticks come within a few milliseconds, some late, and a few when nobody waits."""
    delays_us = random.integers(1000, 10_000, count)
    late = random.random(count) < market.late
    delays_us[late] += random.integers(0, market.late_ms_max * 1000, int(late.sum()))
    too_late = random.random(count) < market.too_late
    delays_us[too_late] = market.too_late_ms * 1000
    return delays_us
