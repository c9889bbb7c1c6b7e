"""What was found about topics in Spark, for people and for programs, held against its targets."""

from typing import Any

from rich.console import Group

from quorate.bench import report, targets
from quorate.bench.latencies import Latencies
from quorate.bench.pipeline import (
    PARQUET,
    PARQUET_ONE_CORE,
    VERIFIED,
    VERIFIED_ONE_CORE,
    WAYS,
    Alerted,
    Memory,
    Pipeline,
    Read,
    Scanned,
    Way,
)
from quorate.bench.rows import Row, beside, setting
from quorate.bench.targets import Target

RATIO_TO_PARQUET_MIN = 0.4
COST_OF_VERIFICATION_MAX = 0.3
MEMORY_FACTOR_MAX = 1.25
BLACKLISTED_S_MAX = 5.0
PRECISION_MIN = 0.95


def table_of(found: Pipeline) -> Group:
    ways = [(read, way) for read in found.reads for way in WAYS]
    return report.on_this_machine(
        report.table(
            "Rows into a sink that drops them, with the raw pipe of the same run",
            _READS,
            ways,
            lambda each: each[0].is_sound,
        ),
        report.table(
            "From publishing an event to the arrival of its alert",
            _ALERTS,
            found.alerted,
            lambda each: each.is_sound,
        ),
        report.table(
            "The largest of Python's workers while a stream is read", _MEMORY, found.memory
        ),
        report.table(
            "Scanners at four sites, from the probe that betrays them to every blacklist",
            _SCANS,
            found.scanned,
        ),
        targets.table_of(targets_of(found)),
    )


def targets_of(found: Pipeline) -> list[Target]:
    return [
        *(target for read in found.reads for target in _of_read(read)),
        *_of_memory(found.memory),
        *(target for scanned in found.scanned for target in _of_scans(scanned)),
    ]


def json_of(found: Pipeline) -> list[dict[str, Any]]:
    """A row for each way to read, each length of a stream, the alerts, and the scans."""
    return [
        *(_json_of_way(read, way) for read in found.reads for way in WAYS),
        *(_json_of_memory(memory) for memory in found.memory),
        *(_json_of_alerts(alerted) for alerted in found.alerted),
        *(_json_of_scans(scanned) for scanned in found.scanned),
    ]


# Tables


def _parquet_for(way: Way) -> Way:
    return PARQUET if way.master == PARQUET.master else PARQUET_ONE_CORE


def _source(read: Read, way: Way) -> str:
    start_s = read.start_s(way).middle
    return f"{way.words}, started in {start_s:.1f} s" if start_s else way.words


def _rate(read: Read, way: Way) -> dict[str, Any]:
    """Its columns beside the pipe."""
    row_bytes = read.pipe.frame_bytes / read.experiment.events_per_batch
    return beside(read.pipe, read.rows_per_s(way).middle, row_bytes)


def _deviating(took: Latencies, unit_ms: float, form: str) -> str:
    return f"{took.mean_ms / unit_ms:{form}} ± {took.deviation_ms / unit_ms:{form}}"


_READS: report.Columns[tuple[Read, Way]] = (
    ("events", lambda it: (
        f"{it[0].published:,} of {it[0].experiment.event_bytes:,} B" if it[1] is WAYS[0] else "")),
    ("read from", lambda it: _source(*it)),
    ("rows/s", lambda it: f"{it[0].rows_per_s(it[1]).middle:,.0f}"),
    ("lowest..highest", lambda it: it[0].rows_per_s(it[1]).range(",.0f")),
    ("MB/s", lambda it: f"{_rate(*it)['mb_per_s']:,.0f}"),
    ("pipe\nMB/s", lambda it: f"{it[0].pipe.mb_per_s:,.0f}"),
    ("ratio", lambda it: f"{_rate(*it)['ratio_to_pipe']:.3f}"),
    ("over Parquet\nwith as many cores",
     lambda it: f"{it[0].ratio(it[1], _parquet_for(it[1])).middle:.2f}"),
    ("lowest..highest", lambda it: it[0].ratio(it[1], _parquet_for(it[1])).range(".2f")),
    ("processor,\nµs per row", lambda it: f"{it[0].processor_us_per_row(it[1]).middle:.2f}"),
    ("over Parquet\nby that",
     lambda it: f"{it[0].ratio_by_processor(it[1], _parquet_for(it[1])).middle:.2f}"),
)  # fmt: skip

_ALERTS: report.Columns[Alerted] = (
    ("alerts", lambda each: f"{each.heard.published:,}"),
    ("arrived", lambda each: f"{each.heard.arrived:,}"),
    ("wrong", lambda each: str(each.heard.wrong)),
    ("p50\nms", lambda each: f"{each.heard.latencies.p50_ms:,.0f}"),
    ("p99\nms", lambda each: f"{each.heard.latencies.p99_ms:,.0f}"),
    ("mean ± dev\nms", lambda each: _deviating(each.heard.latencies, 1, ",.0f")),
    ("pipe's round trip\nms", lambda each: f"{each.round_trip_ms:.3f}"),
)

_MEMORY: report.Columns[Memory] = (
    ("events", lambda each: f"{each.events:,}"),
    ("MB", lambda each: f"{each.mb_max:,.0f}"),
)

_SCANS: report.Columns[Scanned] = (
    ("packets", lambda each: f"{each.listed.packets:,}"),
    ("scanners", lambda each: str(each.listed.scanners)),
    ("found", lambda each: str(each.listed.found)),
    ("others\nlisted", lambda each: str(each.listed.wrong)),
    ("p50\ns", lambda each: f"{each.listed.latencies.p50_ms / 1e3:.1f}"),
    ("p99\ns", lambda each: f"{each.listed.latencies.p99_ms / 1e3:.1f}"),
    ("mean ± dev\ns", lambda each: _deviating(each.listed.latencies, 1e3, ".1f")),
)


# Targets


def _of_read(read: Read) -> list[Target]:
    size = f"{read.experiment.event_bytes:,} B"
    ratio = read.ratio(VERIFIED, PARQUET)
    cost, by_processor = read.cost_of_verification, read.cost_of_verification_by_processor
    scaling = read.ratio(VERIFIED, VERIFIED_ONE_CORE)
    scaling_of_parquet = read.ratio(PARQUET, PARQUET_ONE_CORE)
    return [
        Target(
            f"{size}: verified rows/s over Parquet",
            f"≥ {RATIO_TO_PARQUET_MIN:g}",
            f"{ratio:.2f}",
            ratio.middle >= RATIO_TO_PARQUET_MIN,
        ),
        Target(
            f"{size}: cost of verification (of processor time: {by_processor.middle:.0%})",
            f"≤ {COST_OF_VERIFICATION_MAX:.0%}",
            f"{cost:.0%}",
            cost.middle <= COST_OF_VERIFICATION_MAX,
        ),
        Target(
            f"{size}: verified, two cores over one (Parquet: {scaling_of_parquet.middle:.2f})",
            "> 1",
            f"{scaling:.2f}",
            scaling.middle > 1,
        ),
    ]


def _of_memory(found: list[Memory]) -> list[Target]:
    if len(found) < 2 or not found[0].mb_max:
        return []
    first, last = found[0], found[-1]
    factor = last.mb_max / first.mb_max
    words = f"memory of a worker, a stream {last.events / first.events:.1f} times as long"
    return [Target(words, f"≤ {MEMORY_FACTOR_MAX:g}", f"{factor:.2f}", factor <= MEMORY_FACTOR_MAX)]


def _of_scans(scanned: Scanned) -> list[Target]:
    listed, p50_s = scanned.listed, scanned.listed.latencies.p50_ms / 1e3
    return [
        Target("port scans: recall", "1", f"{listed.recall:.2f}", listed.recall == 1),
        Target(
            "port scans: precision",
            f"≥ {PRECISION_MIN:g}",
            f"{listed.precision:.2f}",
            listed.precision >= PRECISION_MIN,
        ),
        Target(
            "port scans: blacklist at all sites, p50",
            f"≤ {BLACKLISTED_S_MAX:g} s",
            f"{p50_s:.1f} s",
            listed.found > 0 and p50_s <= BLACKLISTED_S_MAX,
        ),
    ]


# Rows


def _json_of_way(read: Read, way: Way) -> dict[str, Any]:
    rates = read.rows_per_s(way)
    row = Row(
        **setting(read.experiment),
        **_rate(read, way),
        seconds=read.published / rates.middle,
        published=read.published,
        delivered=read.from_topic[0],
        lost=max(0, read.published - read.from_topic[0]),
        runs=len(read.rounds),
        spread=(rates.lowest, rates.highest),
    )
    spreads = {
        "ratio_to_parquet": read.ratio(way, _parquet_for(way)),
        "processor_us_per_row": read.processor_us_per_row(way),
        "ratio_to_parquet_by_processor": read.ratio_by_processor(way, _parquet_for(way)),
        "cost_of_verification": read.cost_of_verification,
        "cost_of_verification_by_processor": read.cost_of_verification_by_processor,
        "start_s": read.start_s(way),
    }
    return {
        **row.json(),
        "read": way.words,
        "master": way.master,
        "is_same_as_parquet": read.from_topic == read.from_parquet,
        **{name: spread.json() for name, spread in spreads.items()},
        "rounds": [read.published / each.seconds[way] for each in read.rounds],
    }


def _json_of_memory(memory: Memory) -> dict[str, Any]:
    known = setting(memory.experiment)
    return Row(**known, memory_mb_max=memory.mb_max, published=memory.events).json()


def _json_of_alerts(alerted: Alerted) -> dict[str, Any]:
    heard = alerted.heard
    row = Row(
        **setting(alerted.experiment),
        **heard.latencies.figures,
        pipe_round_trip_ms=alerted.round_trip_ms,
        published=heard.published,
        delivered=heard.arrived,
        lost=heard.published - heard.arrived,
        forged=heard.wrong,
    )
    return row.json()


def _json_of_scans(scanned: Scanned) -> dict[str, Any]:
    listed, known = scanned.listed, setting(scanned.experiment)
    names = ("scanners", "found", "wrong", "precision", "recall")
    row = Row(**known, **listed.latencies.figures, published=listed.packets)
    return {**row.json(), **{name: getattr(listed, name) for name in names}}
