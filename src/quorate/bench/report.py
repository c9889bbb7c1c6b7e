"""What was found as people read it: tables on the screen, Parquet on disk."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quorate.bench import machine
from quorate.bench.rows import Row, TrialRow
from quorate.bench.trials import PRODUCERS, TOPICS

_Line = TypeVar("_Line")
# What stands above a column, and in it.
Columns: TypeAlias = Sequence[tuple[str, Callable[[_Line], str]]]

MEMORY_LINES = 20


def table(
    title: str,
    columns: Columns[_Line],
    lines: Iterable[_Line],
    is_sound: Callable[[_Line], bool] = lambda _: True,
) -> Table:
    """A line for each; the first column has words, and the others figures."""
    made = Table(title=title)
    for at, (heading, _) in enumerate(columns):
        made.add_column(heading, justify="right" if at else "left", no_wrap=at > 0)
    for line in lines:
        style = "" if is_sound(line) else "red"
        made.add_row(*(text(line) for _, text in columns), style=style)
    return made


def verdict(words: str, *, is_sound: bool) -> Text:
    return Text(words, "" if is_sound else "red")


def on_this_machine(*parts: RenderableType) -> Group:
    return Group(*parts, Text(machine.sentence(), "dim"))


def optional(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


# Rows


def table_of(rows: Sequence[Row], subject: str = "Broadcast") -> Group:
    """Our figure, the raw pipe, the ratio of the two, the thesis and a peer, in one line each.

    A column is shown when it says something about at least one row.
    """
    title = f"{subject}, with the raw pipe of the same run"
    columns = [each for each in _COLUMNS if any(each[1](row) for row in rows)]
    return _of_rows(title, columns, rows, _peers(rows))


def table_of_trials(rows: Sequence[TrialRow]) -> Group:
    """Producers and consumer, and the raw pipe with frames as long as a full batch.

    The processor time that an event costs all processes together is less moved by others who use
    the machine.
    """
    title = f"{PRODUCERS} producers and a consumer on {TOPICS} topics"
    return _of_rows(f"{title}, with the raw pipe of the same run", _TRIAL_COLUMNS, rows, [])


def write_parquet(directory: Path, rows: Sequence[Row], subject: str = "Broadcast") -> Path:
    """All columns of all rows, with the machine in the file's own metadata."""
    import pyarrow
    import pyarrow.parquet

    directory.mkdir(parents=True, exist_ok=True)
    written = pyarrow.Table.from_pylist([asdict(row) for row in rows])
    written = written.replace_schema_metadata(machine.describe())
    path = directory / f"{subject.lower()}.parquet"
    pyarrow.parquet.write_table(written, path)
    return path


_COLUMNS: Columns[Row] = (
    ("experiment", lambda row: row.title),
    ("events/s", lambda row: f"{row.events_per_s:,.0f}"),
    ("lowest..highest", lambda row: "" if row.runs == 1 else _range(row.spread)),
    ("MB/s", lambda row: f"{row.mb_per_s:,.1f}"),
    ("pipe\nframes/s", lambda row: f"{row.pipe_frames_per_s:,.0f}"),
    ("pipe\nMB/s", lambda row: f"{row.pipe_mb_per_s:,.0f}"),
    ("ratio", lambda row: optional(row.ratio_to_pipe, ".3f")),
    ("thesis\nevents/s", lambda row: optional(row.thesis, ",.0f")),
    ("peer\nevents/s", lambda row: _range(row.peer_events_per_s)),
    ("cost of\nfault", lambda row: optional(row.cost_of_fault, ".0%")),
    ("mean ± dev\nms", lambda row: f"{row.mean_ms:.1f} ± {row.deviation_ms:.1f}"),
    ("p50\nms", lambda row: f"{row.p50_ms:.2f}"),
    ("p99\nms", lambda row: f"{row.p99_ms:.2f}"),
    ("p50, in\ntrips", lambda row: optional(row.p50_round_trips, ".1f")),
    ("µs/event", lambda row: f"{row.processor_us_per_event:.1f}"),
    ("lost", lambda row: str(row.lost)),
    ("forged", lambda row: str(row.forged)),
    ("without\nreceipt", lambda row: str(row.unacknowledged or "")),
)

_TRIAL_COLUMNS: Columns[TrialRow] = (
    ("trial", lambda row: row.trial.curve),
    ("bytes", lambda row: f"{row.event_bytes:,}"),
    ("produced\nevents/s", lambda row: _rate(row, row.produced_per_s, row.produced_spread)),
    ("MB/s", lambda row: f"{row.produced_mb_per_s:,.1f}"),
    ("of\npipe", lambda row: optional(row.produced_ratio_to_pipe, ".3f")),
    ("consumed\nevents/s", lambda row: _rate(row, row.events_per_s, row.spread)),
    ("MB/s", lambda row: f"{row.mb_per_s:,.1f}"),
    ("of\npipe", lambda row: optional(row.ratio_to_pipe, ".3f")),
    ("pipe\nMB/s", lambda row: f"{row.pipe_mb_per_s:,.0f}"),
    ("events\na batch", lambda row: optional(row.events_per_batch, ",.0f")),
    ("µs/event", lambda row: f"{row.processor_us_per_event:.1f}"),
    ("signed receipt\np50 ms", lambda row: optional(row.signed_receipt_p50_ms, ",.1f")),
    ("basic receipt\np50 ms", lambda row: optional(row.basic_receipt_p50_ms, ",.1f")),
    ("p50\nms", lambda row: f"{row.p50_ms:,.0f}"),
    ("lost or\nwrong", lambda row: str(row.wrong)),
)


def _of_rows(title: str, columns: Columns[Any], rows: Sequence[Row], notes: list[Text]) -> Group:
    problems = [Text(f"{row.title}: {row.problem}", "red") for row in rows if row.problem]
    shown = table(title, columns, rows, lambda row: row.is_sound)
    return on_this_machine(shown, *problems, *notes)


def _rate(row: Row, rate: float, spread: tuple[float, float]) -> str:
    """With the lowest and the highest below it, if there were several runs."""
    return f"{rate:,.0f}" if row.runs == 1 else f"{rate:,.0f}\n{_range(spread)}"


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


# Memory


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the replicas: how much was counted by then, and what memory each takes."""

    seconds: float
    count: int
    memory_mb: dict[str, float]

    def json(self, counted: str) -> dict[str, Any]:
        return {"seconds": round(self.seconds, 1), counted: self.count, **self.memory_mb}


def memory_table(title: str, counted: str, samples: Sequence[Sample]) -> Table:
    """Some of these samples, the last one among them."""

    def size_of(name: str) -> Callable[[Sample], str]:
        return lambda sample: f"{sample.memory_mb.get(name, 0.0):.0f}"

    step = max(1, len(samples) // MEMORY_LINES)
    columns: Columns[Sample] = (
        ("seconds", lambda sample: f"{sample.seconds:.0f}"),
        (counted, lambda sample: f"{sample.count:,}"),
        *(
            (f"{name}, MB", size_of(name))
            for name in sorted({name for sample in samples for name in sample.memory_mb})
        ),
    )
    return table(title, columns, [*samples[:-1:step], samples[-1]])
