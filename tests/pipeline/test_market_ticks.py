"""Ticks: drawn from a seed, as unruly as asked for, and with jumps that can be found."""

from dataclasses import replace

import pyarrow

from market_ticks import Market, draw
from naive_trading import by_instrument

CALM = Market(seconds=60, missing=0, late=0, too_late=0)


def test_a_seed_draws_the_same_ticks_again_and_another_seed_others() -> None:
    first, again = draw(Market(seed=5, seconds=60)), draw(Market(seed=5, seconds=60))

    assert first.table.equals(again.table)
    assert first.jumps == again.jumps
    assert not first.table.equals(draw(Market(seed=6, seconds=60)).table)


def test_another_instrument_beside_them_changes_nothing_for_the_others() -> None:
    market = Market(seconds=60)
    more = draw(replace(market, instruments=(*market.instruments, "HP")))

    found = by_instrument(more.table)
    del found["HP"]

    assert found == by_instrument(draw(market).table)


def test_ticks_are_missing_late_and_out_of_order_as_asked() -> None:
    calm = by_instrument(draw(CALM).table)
    assert all(ticks == sorted(ticks) for ticks in calm.values())
    assert all([n for _, _, n in ticks] == list(range(len(ticks))) for ticks in calm.values())

    wild = draw(replace(CALM, missing=0.1, late=0.2, too_late=0.02))

    delays_us = wild.arrivals_us - wild.table["timestamp"].cast(pyarrow.int64()).to_numpy()
    assert wild.table.num_rows < draw(CALM).table.num_rows
    assert list(wild.arrivals_us) == sorted(wild.arrivals_us)
    assert any(ticks != sorted(ticks) for ticks in by_instrument(wild.table).values())
    assert (delays_us == wild.market.too_late_ms * 1000).any()


def test_prices_leave_their_base_in_the_jumps_and_only_there() -> None:
    ticks = draw(replace(CALM, seconds=300))
    assert ticks.jumps

    for instrument, found in by_instrument(ticks.table).items():
        base = sorted(price for _, price, _ in found)[len(found) // 2]
        for at_us, price, _ in found:
            jumps = [
                jump.direction
                for jump in ticks.jumps
                if jump.instrument == instrument and jump.start_us <= at_us < jump.end_us
            ]
            assert round(price / base * 100 - 100) == sum(jumps)


def test_instruments_are_dealt_to_topics() -> None:
    ticks = draw(replace(CALM, topics=("a", "b")))

    assert set(by_instrument(ticks.of_topic("a"))) == {"IBM", "ORCL"}
    assert set(by_instrument(ticks.of_topic("b"))) == {"MSFT", "SAP"}
