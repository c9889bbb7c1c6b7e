"""`quorate bench pipeline`: topics in Spark, beside Parquet with the same rows."""

from dataclasses import replace
from typing import Annotated

import typer

from quorate.bench import pipeline as pipeline_run
from quorate.bench import pipeline_report
from quorate.cli.bench_options import (
    AsJson,
    print_rows,
    print_table,
    told_steps,
    until_done,
)
from quorate.core.errors import ConfigError


def pipeline(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what matters most: about four minutes.")
    ] = False,
    size: Annotated[
        list[int] | None, typer.Option(help="Only events of so many bytes; may be repeated.")
    ] = None,
    megabytes: Annotated[
        float | None, typer.Option(min=1, help="How much is read at a time.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="How often it is read; print medians and spreads.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Spark reads a validated topic, verified and not, beside the same rows from Parquet.

    Then alerts are timed from publishing to arrival, the memory of Python's workers is looked at,
    and scanners are looked for at four sites. Exit code 1 says that rows were missing or not the
    same, or that alerts were; whether targets are reached is in a table.
    """
    plan = pipeline_run.QUICK if quick else pipeline_run.Plan()
    for each in size or ():
        if each not in pipeline_run.SIZES:
            allowed = " or ".join(map(str, pipeline_run.SIZES))
            raise ConfigError(f"--size is {each}, but it must be {allowed}")
    plan = replace(
        plan,
        sizes=tuple(size or plan.sizes),
        megabytes=megabytes or plan.megabytes,
        rounds=repeat or plan.rounds,
    )
    with told_steps() as tell:
        found = until_done(pipeline_run.measure(plan, tell))
    if as_json:
        print_rows(pipeline_report.json_of(found))
    else:
        print_table(pipeline_report.table_of(found))
    if not found.is_sound:
        raise typer.Exit(1)
