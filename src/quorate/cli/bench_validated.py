"""`quorate bench validated`: validated topics beside basic ones, whole payloads, and Kafka."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Group

from quorate.bench import report, targets, trial_report
from quorate.bench.broadcast import Timing, run_all
from quorate.bench.experiments import Experiment
from quorate.bench.kafka_clients import require_kafka
from quorate.bench.rows import Row
from quorate.bench.rows import as_json as json_of
from quorate.bench.trial_rows import TrialRow
from quorate.bench.trials import (
    Trial,
    chosen,
    full_plan,
    headline_plan,
    quick_plan,
)
from quorate.bench.validated import run_trials
from quorate.cli.bench_options import (
    AsJson,
    Output,
    Repeat,
    Seconds,
    print_rows,
    print_table,
    print_unless_drawn,
    progress_bar,
    refuse_what_cannot_be_done,
    say_written,
    until_done,
)
from quorate.core.errors import ConfigError

QUICK_SECONDS = 2.0
SECONDS = 3.0
# A producer has up to 16 MB under way before the first receipt comes.
WARM_UP_SECONDS = 2.0


class Part(StrEnum):
    """What can be run by itself."""

    embedded = "embedded"
    kafka_stores = "kafka-stores"
    whole = "whole"
    kafka = "kafka"
    headline = "headline"


def validated(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what the targets need: about six minutes.")
    ] = False,
    only: Annotated[
        list[Part] | None, typer.Option(metavar="PART", help=f"Only one of {', '.join(Part)}.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(help="Only events of so many bytes; may be repeated.")
    ] = None,
    topics: Annotated[
        list[int] | None,
        typer.Option("--validated", help="Only with so many topics validated; may be repeated."),
    ] = None,
    seconds: Seconds = None,
    repeat: Repeat = 1,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Three producers and a consumer on ten topics, of which 0 to 10 are validated.

    Beside it, in the same run, whole payloads are ordered, and plain Kafka carries the same events.
    The headline is 253-byte events in batches of 1000, all validated. Exit code 1 says that a
    trial failed, or that events were lost, forged or doubled; whether targets are reached is in a
    table.
    """
    refuse_what_cannot_be_done(seconds, output)
    plan = quick_plan() if quick else full_plan()
    _refuse_what_is_not_planned(plan, size, topics)
    plan = chosen(plan, parts=only or (), sizes=size or (), validated=topics or ())
    is_all = not (only or size or topics)
    headlines = headline_plan() if is_all or Part.headline in (only or ()) else []
    if any(Part.kafka in trial.part for trial in plan):
        require_kafka()
    timing = Timing.of(seconds or (QUICK_SECONDS if quick else SECONDS))
    rows, headline_rows = _measured(plan, headlines, timing, repeat)
    if output is not None:
        written = [report.write_parquet(output, rows, "Validated")] if rows else []
        say_written([*written, *trial_report.write_plots(output, rows)])
    if as_json:
        print_rows([*(row.json() for row in rows), *map(json_of, headline_rows)])
    else:
        _print(rows, headline_rows)
    if not all([*(row.is_sound for row in rows), *(row.is_sound for row in headline_rows)]):
        raise typer.Exit(1)


def _refuse_what_is_not_planned(
    plan: list[Trial], sizes: list[int] | None, validated: list[int] | None
) -> None:
    """Whoever names what no trial has is told what there is."""
    for option, wanted, there in (
        ("--size", sizes, sorted({trial.event_bytes for trial in plan})),
        ("--validated", validated, sorted({trial.validated for trial in plan})),
    ):
        for value in wanted or ():
            if value not in there:
                allowed = " or ".join(", ".join(map(str, there)).rsplit(", ", 1))
                raise ConfigError(f"{option} is {value}, but it must be {allowed}")


def _measured(
    plan: list[Trial], headlines: list[Experiment], timing: Timing, repeat: int
) -> tuple[list[TrialRow], list[Row]]:
    if not plan and not headlines:
        raise ConfigError("no trial fits all these options; leave some of them out")
    total, begun = repeat * (len(plan) + len(headlines)), 0
    with progress_bar(total) as progress:
        (bar,) = progress.task_ids

        def tell(trial: Trial | Experiment) -> None:
            nonlocal begun
            progress.update(bar, description=trial.title, completed=begun)
            begun += 1
            print_unless_drawn(progress, f"{begun} of {total}: {trial.title}")

        async def both() -> tuple[list[TrialRow], list[Row]]:
            warm = replace(timing, warm_up_s=WARM_UP_SECONDS)
            rows = await run_trials(plan, warm, repeat=repeat, tell=tell)
            return rows, await run_all(headlines, timing, repeat=repeat, tell=tell)

        found = until_done(both())
        progress.update(bar, description="done", completed=begun)
    return found


def _print(rows: list[TrialRow], headlines: list[Row]) -> None:
    parts = [trial_report.table_of(rows)] if rows else []
    if headlines:
        parts.append(report.table_of(headlines, "Headline"))
    print_table(Group(*parts, targets.table_of(targets.targets_of(rows, headlines))))
