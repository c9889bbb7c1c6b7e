"""Trading rules once more, as slowly and plainly as they can be said; shares nothing with the job.

Averages are computed from all ticks, in fractions, at every moment at which there is something to
look at: a tick, or an order that may be due.
"""

import json
from collections import defaultdict
from fractions import Fraction

import pyarrow

from quorate.pipeline.jobs.rules import Rule

# When, by which rule, since when, the number in the episode, and the price.
Given = tuple[int, str, int, int, Fraction]


def by_instrument(table: pyarrow.Table) -> dict[str, list[tuple[int, float, int]]]:
    """The time, price and number of the ticks of each instrument, as they arrived."""
    found: dict[str, list[tuple[int, float, int]]] = defaultdict(list)
    times = table["timestamp"].cast(pyarrow.int64()).to_pylist()
    for key, value, at_us in zip(
        table["key"].to_pylist(), table["value"].to_pylist(), times, strict=True
    ):
        tick = json.loads(value)
        found[key.decode()].append((at_us, tick["price"], tick["number"]))
    return found


def orders_of(
    table: pyarrow.Table, rules: tuple[Rule, ...], lateness_us: int
) -> set[tuple[object, ...]]:
    """Rule, instrument, time, since when, number and price of all orders for a stream of ticks."""
    found: set[tuple[object, ...]] = set()
    latest_us = max(table["timestamp"].cast(pyarrow.int64()).to_pylist())
    # Up to there a stream is complete that ended with these ticks.
    until_us = int(latest_us) // 1000 * 1000 - lateness_us
    for instrument, rows in by_instrument(table).items():
        heard = [(at_us, Fraction(str(price))) for at_us, price, _ in rows]
        for rule in rules:
            if rule.instrument in ("any", instrument):
                for at_us, name, since_us, number, price in orders_told_naively(
                    heard, rule, lateness_us, until_us
                ):
                    found.add((name, instrument, at_us, since_us, number, float(price)))
    return found


def orders_told_naively(
    ticks: list[tuple[int, Fraction]], rule: Rule, lateness_us: int, until_us: int
) -> list[Given]:
    """The orders of one rule for the ticks of one instrument, in the order of arrival."""
    heard = _in_time(ticks, lateness_us)
    # When, whether an order is due, and which tick it is or of which episode.
    moments = [(at_us, False, number) for number, (at_us, _) in enumerate(heard)]
    found: list[Given] = []
    since_us: int | None = None
    known = 0
    while moments:
        moments.sort()
        at_us, is_due, number = moments.pop(0)
        if at_us > until_us:
            break
        if is_due and number != since_us:
            continue
        known = known if is_due else number + 1
        if not _holds(heard[:known], rule, at_us):
            since_us = None
        elif is_due or since_us is None:
            since_us = at_us if since_us is None else since_us
            count = sum(1 for _, _, since, *_ in found if since == since_us)
            found.append((at_us, rule.name, since_us, count, heard[known - 1][1]))
            moments.append((at_us + rule.every_us, True, since_us))
    return found


def _in_time(ticks: list[tuple[int, Fraction]], lateness_us: int) -> list[tuple[int, Fraction]]:
    heard = []
    for arrival, (at_us, price) in enumerate(ticks):
        latest_ms = max([earlier // 1000 for earlier, _ in ticks[:arrival]], default=-(10**15))
        if at_us > latest_ms * 1000 - lateness_us:
            heard.append((at_us, arrival, price))
    return [(at_us, price) for at_us, _, price in sorted(heard)]


def _holds(known: list[tuple[int, Fraction]], rule: Rule, at_us: int) -> bool:
    inside = [price for time_us, price in known if time_us > at_us - rule.average_us]
    if not inside:
        return False
    average = sum(inside, Fraction(0)) / len(inside)
    share = Fraction(str(rule.percent)) / 100
    if rule.when == "above":
        return inside[-1] >= average * (1 + share)
    return inside[-1] <= average * (1 - share)
