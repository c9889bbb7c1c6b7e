"""Algorithmic trading: rules watch prices, and their orders are published.

Source: QoS over wide-area networks, section 1.2.2. What a rule is, and which orders it gives, is in
`rules.py`; here that runs on a stream, with one state per instrument.

A tick is an event whose key is the instrument and whose value is a JSON object with a `price`; its
timestamp is the event's own. What is none is passed over. All ticks of an instrument come in one
partition, as events of one key do, so their order of arrival is that of (`offset`, `index`).

Ticks wait in the state until the watermark has passed them, `lateness` behind the latest tick of
all instruments. Then they are looked at by time, and what is due by then is ordered: by the batch
that brings the next ticks, or by a timer where an instrument has none. So an order is given about
`lateness` after its time, and in exchange no tick that is less late than that is missed. If clocks
of instruments are further apart than `lateness`, Spark passes over ticks of the one behind. So no
tick moves time beyond now (`clocks.py`): whoever claims a time to come could else end the time of
all others.

An order is found once: state and batch are committed together. Should a batch be done once more
after a crash, it has the same orders with the same ids, so whoever reads them can tell.
"""

from typing import TYPE_CHECKING

import pandas
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from quorate.core.durations import parse
from quorate.core.errors import ConfigError
from quorate.pipeline.jobs.checks import check_lateness, check_names
from quorate.pipeline.jobs.clocks import happened_us, moves_time, now_us
from quorate.pipeline.jobs.job import Config, Job, Pipes
from quorate.pipeline.jobs.rules import PRICE_UNIT, Order, Rule, Watch
from quorate.pipeline.jobs.waking import Waking

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

EXAMPLE = Rule(
    name="example",
    instrument="IBM",
    when="above",
    percent=0.5,
    average="30s",
    trade="MSFT",
    side="buy",
    quantity=10_000,
    every="3s",
)
ORDERS = (
    "id string, rule string, watched string, instrument string, side string, quantity bigint, "
    "price double, at bigint, since bigint, number bigint"
)


class TradingConfig(Config, frozen=True, kw_only=True):
    """Where prices come from, where orders go, and by which rules."""

    prices: tuple[str, ...] = ("prices",)
    orders: str = "orders"
    rules: tuple[Rule, ...] = (EXAMPLE,)
    # How long a tick may be under way, at most.
    lateness: str = "2s"

    def __post_init__(self) -> None:
        if not self.prices:
            raise ConfigError("there is no topic with prices; name at least one")
        if self.orders in self.prices:
            raise ConfigError(f"'{self.orders}' cannot have the prices and the orders both")
        if not self.rules:
            raise ConfigError("there are no rules; trading needs at least one")
        check_names("rules", [rule.name for rule in self.rules])
        check_lateness(self.lateness)


def ticks(events: DataFrame, lateness_us: int) -> DataFrame:
    """Events as ticks; the price in millionths."""
    value = F.from_json(F.col("value").cast("string"), "price decimal(18, 6)")
    return (
        events.select(
            F.col("key").cast("string").alias("instrument"),
            moves_time(F.col("timestamp")).alias("timestamp"),
            happened_us(F.unix_micros("timestamp"), lateness_us).alias("at_us"),
            now_us().alias("now_us"),
            (value["price"] * PRICE_UNIT).cast("bigint").alias("price"),
            "topic",
            "partition",
            "offset",
            "index",
        )
        .where("instrument is not null")
        .where("price > 0")
    )


def orders(events: DataFrame, config: TradingConfig) -> DataFrame:
    """The orders that the rules give for these events, as `ORDERS` has them."""
    lateness_us = parse(config.lateness)
    return (
        ticks(events, lateness_us)
        .withWatermark("timestamp", f"{lateness_us // 1000} milliseconds")
        .groupBy("instrument")
        .transformWithStateInPandas(
            Trader(config.rules, lateness_us),
            outputStructType=ORDERS,
            outputMode="Append",
            timeMode="EventTime",
        )
    )


def published(found: DataFrame) -> DataFrame:
    """Orders as events: of their instrument, and of the time at which they are given."""
    return found.select(
        F.col("instrument").cast("binary").alias("key"),
        F.to_json(F.struct(*(name for name in found.columns))).cast("binary").alias("value"),
        F.timestamp_micros("at").alias("timestamp"),
    )


class Trader(Waking[Watch]):
    """Keeps one `Watch` per instrument, and wakes up when the next order is due."""

    def __init__(self, rules: tuple[Rule, ...], lateness_us: int) -> None:
        super().__init__("watch", Watch)
        self._rules = rules
        self._lateness_us = lateness_us

    def go_on(
        self, key: tuple[str], watch: Watch, rows: pandas.DataFrame | None, until_us: int
    ) -> tuple[list[dict[str, object]], int | None]:
        if rows is not None:
            # A batch has no order of its own after the shuffle.
            rows = rows.sort_values(["topic", "partition", "offset", "index"])
            ticks = list(zip(rows["at_us"].tolist(), rows["price"].tolist(), strict=True))
            now_us = int(rows["now_us"].iloc[0])
            watch.hear(ticks, lateness_us=self._lateness_us, now_us=now_us)
        found = watch.advance(key[0], self._rules, until_us)
        return [_row(order) for order in found], watch.next_us(self._rules)


def _row(order: Order) -> dict[str, object]:
    return {
        "id": order.id,
        "rule": order.rule,
        "watched": order.watched,
        "instrument": order.instrument,
        "side": order.side,
        "quantity": order.quantity,
        "price": order.price / PRICE_UNIT,
        "at": order.at_us,
        "since": order.since_us,
        "number": order.number,
    }


def start(pipes: Pipes, config: TradingConfig) -> "list[StreamingQuery]":
    """Read prices, publish orders."""
    found = orders(pipes.events(*config.prices), config)
    return [pipes.publish("trading", published(found), config.orders)]


JOB = Job("trading", "Rules watch prices and publish orders.", TradingConfig, start)
