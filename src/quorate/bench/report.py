"""Rows as people and programs read them: a table on the screen, Parquet on disk."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quorate.bench import machine
from quorate.bench.experiments import Experiment
from quorate.bench.rows import Row, as_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def json_of(rows: Sequence[Row]) -> str:
    return json.dumps([as_json(row) for row in rows], indent=1)


def table_of(rows: Sequence[Row], subject: str = "Broadcast") -> Group:
    """Our figure, the raw pipe, the ratio of the two, the thesis and a peer, in one line each."""
    columns = [column for column in _COLUMNS if any(column.text(row) for row in rows)]
    table = Table(title=f"{subject}, with the raw pipe of the same run", expand=False)
    table.add_column("experiment", ratio=1)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [column.text(row) for column in columns]
        table.add_row(_title(row), *cells, style="" if row.is_sound else "red")
    problems = [Text(f"{_title(row)}: {row.problem}", "red") for row in rows if row.problem]
    return Group(table, *problems, *_peers(rows), Text(machine.sentence(), "dim"))


def write_parquet(
    directory: Path, rows: "Sequence[DataclassInstance]", subject: str = "Broadcast"
) -> Path:
    """All columns of all rows, with the machine in the file's own metadata."""
    import pyarrow
    import pyarrow.parquet

    directory.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist([asdict(row) for row in rows])
    table = table.replace_schema_metadata(machine.describe())
    path = directory / f"{subject.lower()}.parquet"
    pyarrow.parquet.write_table(table, path)
    return path


class _Column(NamedTuple):
    """A column is shown when it says something about at least one row."""

    heading: str
    text: Callable[[Row], str]


_COLUMNS = (
    _Column("events/s", lambda row: f"{row.events_per_s:,.0f}"),
    _Column("lowest..highest", lambda row: _spread(row.runs, row.spread)),
    _Column("MB/s", lambda row: f"{row.mb_per_s:,.1f}"),
    _Column("pipe\nframes/s", lambda row: f"{row.pipe_frames_per_s:,.0f}"),
    _Column("pipe\nMB/s", lambda row: f"{row.pipe_mb_per_s:,.0f}"),
    _Column("ratio", lambda row: _optional(row.ratio_to_pipe, ".3f")),
    _Column("thesis\nevents/s", lambda row: _optional(row.thesis, ",.0f")),
    _Column("peer\nevents/s", lambda row: _range(row.peer_events_per_s)),
    _Column("cost of\nfault", lambda row: _optional(row.cost_of_fault, ".0%")),
    _Column("mean ± dev\nms", lambda row: f"{row.mean_ms:.1f} ± {row.deviation_ms:.1f}"),
    _Column("p50\nms", lambda row: f"{row.p50_ms:.2f}"),
    _Column("p99\nms", lambda row: f"{row.p99_ms:.2f}"),
    _Column("p50, in\ntrips", lambda row: _optional(row.p50_round_trips, ".1f")),
    _Column("µs/event", lambda row: f"{row.processor_us_per_event:.1f}"),
    _Column("lost", lambda row: str(row.lost)),
    _Column("forged", lambda row: str(row.forged)),
    _Column("without\nreceipt", lambda row: str(row.unacknowledged or "")),
)


def _optional(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


def _spread(runs: int, spread: tuple[float, float]) -> str:
    return "" if runs == 1 else _range(spread)


def _range(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{bounds[0]:,.0f}..{bounds[1]:,.0f}"


def _peers(rows: Sequence[Row]) -> list[Text]:
    """Who the peers are: their figures come from elsewhere, and that must be plain."""
    sentences = (
        f"peer: {row.peer}, p50 {_range(row.peer_p50_ms)} ms ({row.peer_source})"
        for row in rows
        if row.peer
    )
    return [Text(sentence, "dim") for sentence in dict.fromkeys(sentences)]


def _title(row: Row) -> str:
    """The experiment in words, as the progress bar has it."""
    return Experiment(
        name=row.experiment,
        protocol=row.protocol,
        history_every=row.history_every,
        replicas=row.replicas,
        topics=row.topics,
        events_per_batch=row.events_per_batch,
        event_bytes=row.event_bytes,
        fault=row.fault,
        link_security="tls" if row.link_security == "tls" else "mac",
        fsync=row.fsync,
        publishers=row.publishers,
        validated=row.validated,
    ).title
