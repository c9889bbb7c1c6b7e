"""Trading: the orders are those of the rules, each once, however the stream is cut."""

from fractions import Fraction
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from market_ticks import Market, Ticks, draw
from naive_trading import orders_of, orders_told_naively
from quorate.core.errors import ConfigError
from quorate.pipeline.jobs.rules import Rule, Watch
from quorate.pipeline.jobs.settings import read_settings
from quorate.pipeline.jobs.trading import JOB, TradingConfig, orders, published
from streams import Directory, Sink, as_events, run

S = 1_000_000
UP = Rule(name="up", when="above", percent=0.5, side="buy", quantity=10)
DOWN = Rule(name="down", when="below", percent=0.5, side="sell", quantity=20, trade="GOLD")
QUICK = Rule(
    name="quick", instrument="IBM", when="above", percent=0.02, side="buy", quantity=1,
    average="2s", every="100ms",
)  # fmt: skip
CONFIG = TradingConfig(rules=(UP, DOWN, QUICK))
LATENESS_US = 2 * S


def given_by(sink: Sink) -> list[tuple[object, ...]]:
    return [(r.rule, r.watched, r.at, r.since, r.number, r.price) for r in sink.rows]


@pytest.fixture(scope="module")
def market() -> Ticks:
    return draw(Market(seed=3, seconds=110, interval_ms=400, late=0.1, too_late=0.01))


@pytest.fixture(scope="module")
def wanted(market: Ticks) -> set[tuple[object, ...]]:
    return orders_of(market.table, CONFIG.rules, LATENESS_US)


@pytest.mark.parametrize("batches", [5])
def test_orders_are_those_of_the_naive_interpreter_in_any_split(
    spark: SparkSession,
    tmp_path: Path,
    market: Ticks,
    wanted: set[tuple[object, ...]],
    batches: int,
) -> None:
    directory = Directory(tmp_path / "events")
    directory.add(as_events(market.table, "prices"), batches)
    sink = Sink()

    run(orders(directory.stream(spark), CONFIG), sink, tmp_path / "checkpoint")

    given = given_by(sink)
    assert {name for name, *_ in wanted} == {"up", "down", "quick"}
    assert set(given) == wanted
    assert len(given) == len(wanted)
    assert len({row.id for row in sink.rows}) == len(given)


def test_a_tick_that_claims_a_time_to_come_makes_no_other_too_late() -> None:
    watch = Watch()
    watch.hear([(10 * S, 1)], lateness_us=LATENESS_US, now_us=5 * S)
    watch.hear([(3 * S, 1), (4 * S, 1)], lateness_us=LATENESS_US, now_us=5 * S)

    assert watch.waiting == [(4 * S, 1), (10 * S, 1)]


def test_each_jump_is_found_once_and_nothing_else(
    market: Ticks, wanted: set[tuple[object, ...]]
) -> None:
    found = {order for order in wanted if order[0] != "quick"}

    episodes = {(name, instrument, since) for name, instrument, _, since, *_ in found}
    assert len(episodes) == len(market.jumps)
    for jump in market.jumps:
        name = "up" if jump.direction > 0 else "down"
        assert any(
            (name, jump.instrument) == (rule, instrument)
            and jump.start_us <= int(str(since)) < jump.end_us
            for rule, instrument, since in episodes
        )


def test_a_batch_that_is_done_again_after_a_crash_has_the_same_orders(
    spark: SparkSession, tmp_path: Path, market: Ticks, wanted: set[tuple[object, ...]]
) -> None:
    directory = Directory(tmp_path / "events")
    directory.add(as_events(market.table, "prices"), 3)
    sink = Sink(fails_at=2)

    with pytest.raises(StreamingQueryException, match="the sink fails"):
        run(orders(directory.stream(spark), CONFIG), sink, tmp_path / "checkpoint")
    assert max(sink.batches) == 2
    run(orders(directory.stream(spark), CONFIG), sink, tmp_path / "checkpoint")

    assert sink.before[2]
    assert sink.before[2] == sink.batches[2]
    given = given_by(sink)
    assert set(given) == wanted
    assert len(given) == len(wanted)


def test_orders_are_given_between_sparse_ticks_and_published_under_what_is_traded(
    spark: SparkSession, tmp_path: Path
) -> None:
    begin_us = 1_700_000_000 * S
    # IBM jumps and is silent; only the other instrument tells that time goes on.
    heard = [(0, "IBM", 100), (1, "IBM", 110), *((at, "SAP", 50) for at in range(2, 60))]
    table = pyarrow.table(
        {
            "key": pyarrow.array([name.encode() for _, name, _ in heard], pyarrow.binary()),
            "value": pyarrow.array([b'{"price":%d}' % price for *_, price in heard]),
            "timestamp": pyarrow.array(
                [begin_us + at * S for at, *_ in heard], pyarrow.timestamp("us", "UTC")
            ),
        }
    )
    directory = Directory(tmp_path / "events")
    directory.add(as_events(table, "prices"), 3)
    rule = Rule(
        name="r", instrument="IBM", when="above", percent=2, side="buy", quantity=7, trade="MSFT"
    )
    sink = Sink()
    frame = published(orders(directory.stream(spark), TradingConfig(rules=(rule,))))

    run(frame, sink, tmp_path / "checkpoint")

    # From 30 s on the tick of 100 has left the average, which is then the price itself.
    assert [(row.timestamp.second - 20) for row in sink.rows] == [*range(1, 30, 3)]
    assert {bytes(row.key) for row in sink.rows} == {b"MSFT"}
    assert bytes(sink.rows[1].value).decode() == (
        f'{{"id":"r/IBM/{begin_us + S}/1","rule":"r","watched":"IBM","instrument":"MSFT",'
        f'"side":"buy","quantity":7,"price":110.0,"at":{begin_us + 4 * S},'
        f'"since":{begin_us + S},"number":1}}'
    )


@settings(max_examples=60)
@given(
    ticks=st.lists(
        st.tuples(st.integers(0, 40).map(lambda n: n * 250_000), st.integers(98, 102)), max_size=30
    ),
    cuts=st.lists(st.integers(0, 30), max_size=3),
    lateness_s=st.integers(0, 4),
)
def test_however_ticks_are_cut_an_instrument_has_the_orders_of_the_naive_interpreter(
    ticks: list[tuple[int, int]], cuts: list[int], lateness_s: int
) -> None:
    rules = (
        Rule(
            name="a", when="above", percent=1, side="buy", quantity=1, average="2s", every="500ms"
        ),
        Rule(
            name="b", when="below", percent=0.5, side="sell", quantity=1, average="5s", every="1s"
        ),
    )
    watch, given, until_us = Watch(), [], -1
    ends = sorted({*(cut for cut in cuts if cut < len(ticks)), len(ticks)})
    for begin, end in zip([0, *ends], ends, strict=False):
        watch.hear(ticks[begin:end], lateness_us=lateness_s * S)
        until_us = max([until_us, *(at_us - lateness_s * S for at_us, _ in ticks[:end])])
        given += watch.advance("X", rules, until_us)

    wanted = [
        order
        for rule in rules
        for order in orders_told_naively(
            [(at_us, Fraction(price)) for at_us, price in ticks], rule, lateness_s * S, until_us
        )
    ]
    found = [(o.at_us, o.rule, o.since_us, o.number, Fraction(o.price)) for o in given]
    assert sorted(found) == sorted(wanted)


def test_a_tick_comes_before_an_order_that_is_due_at_the_same_time() -> None:
    watch = Watch()
    watch.hear([(0, 100), (S, 110), (4 * S, 100)], lateness_us=LATENESS_US)

    assert [order.at_us for order in watch.advance("X", (UP,), 10 * S)] == [S]


def test_a_tick_counts_until_it_is_as_old_as_the_average_is_long() -> None:
    rule = Rule(name="r", when="above", percent=0.4, side="buy", quantity=1, average="2s")
    given = {}
    for at_us in (2 * S + 9, 2 * S + 10):
        watch = Watch()
        watch.hear([(10, 100)], lateness_us=LATENESS_US)
        assert watch.advance("X", (rule,), 2 * S + 8) == []
        watch.hear([(at_us, 101)], lateness_us=LATENESS_US)
        given[at_us] = [order.at_us for order in watch.advance("X", (rule,), at_us)]

    assert given == {2 * S + 9: [2 * S + 9], 2 * S + 10: []}


def test_what_is_remembered_is_bounded_by_the_longest_average() -> None:
    watch = Watch()
    for second in range(1000):
        watch.hear([(second * S, 100)], lateness_us=LATENESS_US)
        watch.advance("X", (UP,), second * S - LATENESS_US)
        assert len(watch.times) + len(watch.waiting) <= 33
    watch.advance("X", (UP,), 2000 * S)

    assert watch.next_us((UP,)) is None


GOOD = 'name="r"\nwhen="above"\npercent=0.5\nside="buy"\nquantity=1\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD.replace("0.5", "0"), "rule 'r': percent is 0, but it must be from"),
        (GOOD.replace("above", "below").replace("0.5", "100"), "no price is 100 % below"),
        (GOOD.replace("=1", "=0"), "rule 'r': quantity is 0, but it must be from 1 to"),
        (GOOD + 'every="soon"', "rule 'r': every: 'soon' is not a duration; allowed are"),
        (GOOD + 'every="0s"', "rule 'r': every is '0s', but it must be 1ms or more"),
        (GOOD + 'average="2h"', "rule 'r': average is '2h', but it must be from 1us to 1h"),
        (GOOD + 'instrument=""', "rule 'r': an instrument has no name"),
        (GOOD.replace('"r"', '""'), "a rule is named ''; its name must have 1 to 100"),
        (
            GOOD.replace("buy", "keep"),
            r"setting rules\[0\].side of the job trading: invalid enum value 'keep'",
        ),
        (
            GOOD.replace("=1", '="all"'),
            r"setting rules\[0\].quantity of the job trading: expected int, got str",
        ),
        (GOOD.replace('when="above"\n', ""), "object missing required field when"),
        (GOOD + "until=1", "object contains unknown field until"),
        (GOOD + "[[rules]]\n" + GOOD, "two rules are named 'r'; each needs a name of its own"),
        (GOOD + "when=", "rules.toml is not valid TOML"),
    ],
)
def test_a_bad_rule_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text("[[rules]]\n" + text)

    with pytest.raises(ConfigError, match=sentence):
        read_settings(JOB, file)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("lateness=1us", "lateness is '1us', but it must be"),
        ("orders=prices", "'prices' cannot have the prices and the orders both"),
        ("prices=[]", "prices"),
        ("rules=[]", "rules"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_settings(JOB, assignments=[wrong])


def test_good_rules_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text("[[rules]]\n" + GOOD)

    assert read_settings(JOB, file).rules[0].quantity == 1
