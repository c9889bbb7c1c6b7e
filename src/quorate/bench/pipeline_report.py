"""What was found about topics in Spark, for people and for programs, held against its targets."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quorate.bench import machine, targets
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
    Spread,
    Way,
)
from quorate.bench.rows import Row, as_json, setting
from quorate.bench.targets import Target

RATIO_TO_PARQUET_MIN = 0.4
COST_OF_VERIFICATION_MAX = 0.3
MEMORY_FACTOR_MAX = 1.25
BLACKLISTED_S_MAX = 5.0
PRECISION_MIN = 0.95


def table_of(found: Pipeline) -> Group:
    parts = [
        _reads_table(found.reads),
        _latency_table(found.alerted),
        _memory_table(found.memory),
        _scans_table(found.scanned),
        targets.table_of(targets_of(found)),
    ]
    return Group(*parts, Text(machine.sentence(), "dim"))


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


def _reads_table(reads: list[Read]) -> Table:
    table = Table(title="Rows into a sink that drops them, with the raw pipe of the same run")
    table.add_column("events", ratio=1)
    headings = ("read from", "rows/s", "lowest..highest", "MB/s", "pipe\nMB/s", "ratio",
                "over Parquet\nwith as many cores", "lowest..highest",
                "processor,\nµs per row", "over Parquet\nby that")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for read in reads:
        title = f"{read.published:,} of {read.experiment.event_bytes:,} B"
        for way in WAYS:
            rates, over = read.rows_per_s(way), read.ratio(way, _parquet_for(way))
            over_by_processor = read.ratio_by_processor(way, _parquet_for(way))
            table.add_row(
                title if way is WAYS[0] else "",
                _words(read, way),
                f"{rates.middle:,.0f}",
                f"{rates.lowest:,.0f}..{rates.highest:,.0f}",
                f"{_mb_per_s(read, rates.middle):,.0f}",
                f"{read.pipe.mb_per_s:,.0f}",
                f"{_mb_per_s(read, rates.middle) / read.pipe.mb_per_s:.3f}",
                f"{over.middle:.2f}",
                f"{over.lowest:.2f}..{over.highest:.2f}",
                f"{read.processor_us_per_row(way).middle:.2f}",
                f"{over_by_processor.middle:.2f}",
                style="" if read.is_sound else "red",
            )
    return table


def _latency_table(alerted: list[Alerted]) -> Table:
    table = Table(title="From publishing an event to the arrival of its alert")
    headings = ("alerts", "arrived", "wrong", "p50\nms", "p99\nms", "mean ± dev\nms",
                "pipe's round trip\nms")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for each in alerted:
        heard, took = each.heard, each.heard.latencies
        table.add_row(
            f"{heard.published:,}",
            f"{heard.arrived:,}",
            str(heard.wrong),
            f"{took.p50_ms:,.0f}",
            f"{took.p99_ms:,.0f}",
            f"{took.mean_ms:,.0f} ± {took.deviation_ms:,.0f}",
            f"{each.round_trip_ms:.3f}",
            style="" if each.is_sound else "red",
        )
    return table


def _memory_table(found: list[Memory]) -> Table:
    table = Table(title="The largest of Python's workers while a stream is read")
    for heading in ("events", "MB"):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(f"{each.events:,}", f"{each.mb_max:,.0f}")
    return table


def _scans_table(found: list[Scanned]) -> Table:
    table = Table(
        title="Scanners at four sites, from the probe that betrays them to every blacklist"
    )
    headings = ("packets", "scanners", "found", "others\nlisted", "p50\ns", "p99\ns",
                "mean ± dev\ns")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for listed in (each.listed for each in found):
        took = listed.latencies
        table.add_row(
            f"{listed.packets:,}",
            str(listed.scanners),
            str(listed.found),
            str(listed.wrong),
            f"{took.p50_ms / 1e3:.1f}",
            f"{took.p99_ms / 1e3:.1f}",
            f"{took.mean_ms / 1e3:.1f} ± {took.deviation_ms / 1e3:.1f}",
        )
    return table


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
            _in_words(ratio, ".2f"),
            ratio.middle >= RATIO_TO_PARQUET_MIN,
        ),
        Target(
            f"{size}: cost of verification (of processor time: {by_processor.middle:.0%})",
            f"≤ {COST_OF_VERIFICATION_MAX:.0%}",
            _in_words(cost, ".0%"),
            cost.middle <= COST_OF_VERIFICATION_MAX,
        ),
        Target(
            f"{size}: verified, two cores over one (Parquet: {scaling_of_parquet.middle:.2f})",
            "> 1",
            _in_words(scaling, ".2f"),
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


def _json_of_way(read: Read, way: Way) -> dict[str, Any]:
    rates, over = read.rows_per_s(way), read.ratio(way, _parquet_for(way))
    mb_per_s = _mb_per_s(read, rates.middle)
    row = Row(
        **setting(read.experiment),
        events_per_s=rates.middle,
        mb_per_s=mb_per_s,
        pipe_frames_per_s=read.pipe.frames_per_s,
        pipe_mb_per_s=read.pipe.mb_per_s,
        ratio_to_pipe=mb_per_s / read.pipe.mb_per_s,
        frame_bytes=read.pipe.frame_bytes,
        seconds=read.published / rates.middle,
        published=read.published,
        delivered=read.from_topic[0],
        lost=max(0, read.published - read.from_topic[0]),
        runs=len(read.rounds),
        spread=(rates.lowest, rates.highest),
    )
    return {
        **as_json(row),
        "read": way.words,
        "master": way.master,
        "is_same_as_parquet": read.from_topic == read.from_parquet,
        "ratio_to_parquet": _figures(over),
        "processor_us_per_row": _figures(read.processor_us_per_row(way)),
        "ratio_to_parquet_by_processor": _figures(read.ratio_by_processor(way, _parquet_for(way))),
        "cost_of_verification": _figures(read.cost_of_verification),
        "cost_of_verification_by_processor": _figures(read.cost_of_verification_by_processor),
        "start_s": _figures(read.start_s(way)),
        "rounds": [read.published / each.seconds[way] for each in read.rounds],
    }


def _json_of_memory(memory: Memory) -> dict[str, Any]:
    row = Row(**setting(memory.experiment), memory_mb_max=memory.mb_max, published=memory.events)
    return as_json(row)


def _json_of_alerts(alerted: Alerted) -> dict[str, Any]:
    heard, took = alerted.heard, alerted.heard.latencies
    row = Row(
        **setting(alerted.experiment),
        p50_ms=took.p50_ms,
        p99_ms=took.p99_ms,
        mean_ms=took.mean_ms,
        deviation_ms=took.deviation_ms,
        pipe_round_trip_ms=alerted.round_trip_ms,
        published=heard.published,
        delivered=heard.arrived,
        lost=heard.published - heard.arrived,
        forged=heard.wrong,
    )
    return as_json(row)


def _json_of_scans(scanned: Scanned) -> dict[str, Any]:
    listed, took = scanned.listed, scanned.listed.latencies
    row = Row(
        **setting(scanned.experiment),
        p50_ms=took.p50_ms,
        p99_ms=took.p99_ms,
        mean_ms=took.mean_ms,
        deviation_ms=took.deviation_ms,
        published=listed.packets,
    )
    return {
        **as_json(row),
        "scanners": listed.scanners,
        "found": listed.found,
        "wrong": listed.wrong,
        "precision": listed.precision,
        "recall": listed.recall,
    }


def _words(read: Read, way: Way) -> str:
    start_s = read.start_s(way).middle
    return f"{way.words}, started in {start_s:.1f} s" if start_s else way.words


def _parquet_for(way: Way) -> Way:
    return PARQUET if way.master == PARQUET.master else PARQUET_ONE_CORE


def _mb_per_s(read: Read, rows_per_s: float) -> float:
    return rows_per_s / read.experiment.events_per_batch * read.pipe.frame_bytes / 1e6


def _in_words(spread: Spread, form: str) -> str:
    return f"{spread.middle:{form}} ({spread.lowest:{form}}..{spread.highest:{form}})"


def _figures(spread: Spread) -> dict[str, float]:
    return {"median": spread.middle, "lowest": spread.lowest, "highest": spread.highest}
