"""Rules of algorithmic trading, as data, and what they make of the ticks of one instrument.

Source: QoS over wide-area networks, section 1.2.2, whose example is

    [[rules]]
    name = "example"
    instrument = "IBM"
    when = "above"
    percent = 0.5
    average = "30s"
    trade = "MSFT"
    side = "buy"
    quantity = 10000
    every = "3s"

or "when the price of IBM is 0.5 % higher than its average price in the last 30 seconds, buy 10000
shares of Microsoft every 3 seconds unless the average price drops back".

All times are those of the ticks, never those of a clock:
- The average at a time t is the plain mean of the ticks in (t - `average`, t], that of t included.
  Ticks are not weighted by how long a price stood.
- The condition holds if the latest price is at least `percent` above (below) that average. Prices
  are whole millionths and sums are exact, so that no rounding decides.
- An episode begins with a tick at which the condition holds. Its first order, number 0, is of that
  time, and the next ones are due every `every` after it. When one is due, the condition is looked
  at again, with the average of then: older ticks have left it, also if no new one came.
- An episode ends at the first tick, or the first order due, at which the condition does not hold.
  A tick comes before an order that is due at the same time. Without any tick in the last `average`
  there is no average, and the condition does not hold.

Ticks are looked at in the order of their times, those of one time as they arrived. So they wait
until nothing older is to come. A tick is too late if it is `lateness` or more older than one of its
instrument that arrived before it (in whole milliseconds, as Spark counts its watermark), whether or
not it could still have been looked at: so the orders depend on the ticks and on their order of
arrival, and not on how they were split into micro-batches.

What is kept of an instrument: the ticks of the longest average, and those that wait.
"""

from bisect import bisect_right
from typing import ClassVar, Final, Literal

import msgspec

from quorate.pipeline.jobs.checks import Named

ANY: Final = "any"
PRICE_UNIT: Final = 1_000_000
FOREVER_US: Final = 2**63 - 1
_PARTS: Final = 1_000_000
_PERCENT_MIN: Final = 0.0001
_PERCENT_MAX: Final = 10_000
_QUANTITY_MAX: Final = 10**12
_AVERAGE_US_MAX: Final = 3_600_000_000
_EVERY_US_MIN: Final = 1000


class Rule(Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When an instrument's price is far from its average, orders are given until it is not."""

    kind: ClassVar[str] = "rule"

    when: Literal["above", "below"]
    percent: float
    side: Literal["buy", "sell"]
    quantity: int
    # Whose price is watched.
    instrument: str = ANY
    # What is bought or sold; None: what is watched.
    trade: str | None = None
    average: str = "30s"
    every: str = "3s"

    def __post_init__(self) -> None:
        self.check_name()
        if not self.instrument or self.trade == "":
            raise self.refusal("an instrument has no name; name one, or leave the key out")
        if not _PERCENT_MIN <= self.percent <= _PERCENT_MAX:
            raise self.refusal(
                f"percent is {self.percent:g}, but it must be from {_PERCENT_MIN:g} to "
                f"{_PERCENT_MAX}"
            )
        if self.when == "below" and self.percent >= 100:
            raise self.refusal(
                f"percent is {self.percent:g}, but no price is 100 % below its average; "
                f"it must be less than that"
            )
        if not 1 <= self.quantity <= _QUANTITY_MAX:
            raise self.refusal(
                f"quantity is {self.quantity}, but it must be from 1 to {_QUANTITY_MAX}"
            )
        if not 0 < self.average_us <= _AVERAGE_US_MAX:
            raise self.refusal(f"average is '{self.average}', but it must be from 1us to 1h")
        if self.every_us < _EVERY_US_MIN:
            raise self.refusal(f"every is '{self.every}', but it must be 1ms or more")

    @property
    def average_us(self) -> int:
        return self.duration("average", self.average)

    @property
    def every_us(self) -> int:
        return self.duration("every", self.every)

    def watches(self, instrument: str) -> bool:
        return self.instrument in (ANY, instrument)


class Order(msgspec.Struct, frozen=True):
    """One order; the price is that of the watched instrument, in millionths."""

    rule: str
    watched: str
    instrument: str
    side: str
    quantity: int
    price: int
    at_us: int
    # When its episode began, and which of its orders this is.
    since_us: int
    number: int

    @property
    def id(self) -> str:
        """The same whenever and wherever the order is found."""
        return f"{self.rule}/{self.watched}/{self.since_us}/{self.number}"


class Episode(msgspec.Struct, array_like=True):
    """While a condition holds: since when, and which order is due when."""

    since_us: int
    due_us: int
    number: int


class Watch(msgspec.Struct, array_like=True):
    """All that is remembered of one instrument; it can be written down at any time."""

    # Up to here everything was looked at.
    done_us: int = -1
    # The latest time of a tick that arrived, but not later than it arrived.
    latest_us: int = -1
    # Ticks that were looked at and count for averages, by time.
    times: list[int] = []
    prices: list[int] = []
    # Ticks that wait, as time and price, by time.
    waiting: list[tuple[int, int]] = []
    # By the rule's name.
    episodes: dict[str, Episode] = {}

    def hear(
        self, ticks: list[tuple[int, int]], *, lateness_us: int, now_us: int = FOREVER_US
    ) -> None:
        """Ticks as time and price, in the order of arrival; none makes another late before now."""
        for tick in ticks:
            at_us = tick[0]
            if at_us > max(self.done_us, self.latest_us // 1000 * 1000 - lateness_us):
                self.waiting.append(tick)
            self.latest_us = max(self.latest_us, min(at_us, now_us))
        # The sort is stable: ticks of one time stay as they arrived.
        self.waiting.sort(key=_time_of)

    def advance(self, instrument: str, rules: tuple[Rule, ...], until_us: int) -> list[Order]:
        """The orders up to this time, up to which nothing is to come any more."""
        if until_us <= self.done_us:
            return []
        ready = bisect_right(self.waiting, until_us, key=_time_of)
        looked_at = len(self.times)
        self.times.extend(at_us for at_us, _ in self.waiting[:ready])
        self.prices.extend(price for _, price in self.waiting[:ready])
        del self.waiting[:ready]
        orders: list[Order] = []
        for rule in rules:
            if rule.watches(instrument):
                _Look(self, instrument, rule, orders).follow(looked_at, until_us)
        self.done_us = until_us
        longest_us = max((rule.average_us for rule in rules), default=0)
        gone = bisect_right(self.times, until_us - longest_us)
        del self.times[:gone], self.prices[:gone]
        return orders

    def next_us(self, rules: tuple[Rule, ...]) -> int | None:
        """When there is something to do at the latest, if nothing else comes."""
        moments = [episode.due_us for episode in self.episodes.values()]
        if self.waiting:
            moments.append(self.waiting[0][0])
        if self.times:
            # The last tick leaves the longest average, and there is nothing to remember.
            moments.append(self.times[-1] + max(rule.average_us for rule in rules))
        return min(moments, default=None)


def _time_of(tick: tuple[int, int]) -> int:
    return tick[0]


class _Look:
    """One rule goes over the ticks of its instrument."""

    def __init__(self, watch: Watch, instrument: str, rule: Rule, orders: list[Order]) -> None:
        self._watch = watch
        self._instrument = instrument
        self._rule = rule
        self._orders = orders
        self._average_us, self._every_us = rule.average_us, rule.every_us
        self._is_above = rule.when == "above"
        parts = round(rule.percent * _PARTS / 100)
        self._threshold = _PARTS + parts if self._is_above else _PARTS - parts
        # The ticks of the average are those from `first` to before `end`.
        self._first = self._end = self._total = 0

    def follow(self, looked_at: int, until_us: int) -> None:
        times, prices = self._watch.times, self._watch.prices
        self._end, self._total = looked_at, sum(prices[:looked_at])
        episodes, name = self._watch.episodes, self._rule.name
        for index in range(looked_at, len(times)):
            at_us = times[index]
            self._give_due(at_us - 1)
            self._end = index + 1
            self._total += prices[index]
            if not self._holds(at_us):
                episodes.pop(name, None)
            elif name not in episodes:
                episodes[name] = Episode(at_us, at_us, 0)
                self._give(episodes[name])
        self._give_due(until_us)

    def _give_due(self, until_us: int) -> None:
        episodes, name = self._watch.episodes, self._rule.name
        while (episode := episodes.get(name)) is not None and episode.due_us <= until_us:
            if self._holds(episode.due_us):
                self._give(episode)
            else:
                del episodes[name]

    def _give(self, episode: Episode) -> None:
        rule = self._rule
        price = self._watch.prices[self._end - 1]
        self._orders.append(
            Order(
                rule.name,
                self._instrument,
                rule.trade or self._instrument,
                rule.side,
                rule.quantity,
                price,
                episode.due_us,
                episode.since_us,
                episode.number,
            )
        )
        episode.due_us += self._every_us
        episode.number += 1

    def _holds(self, at_us: int) -> bool:
        times, prices = self._watch.times, self._watch.prices
        first, end = self._first, self._end
        while first < end and times[first] <= at_us - self._average_us:
            self._total -= prices[first]
            first += 1
        self._first = first
        if first == end:
            return False
        price, average = prices[end - 1] * (end - first) * _PARTS, self._total * self._threshold
        return price >= average if self._is_above else price <= average
