"""The commands of `quorate bench` that look at one thing about log topics each."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from quorate.bench import growth as growth_run
from quorate.bench import history as history_run
from quorate.bench import leader_crash as leader_crash_run
from quorate.bench import time_plots
from quorate.bench.experiments import Experiment
from quorate.bench.ordering import growth_plan, history_plan, leader_crash_plan
from quorate.cli.bench_options import (
    AsJson,
    LogProtocol,
    OnlyLog,
    Plot,
    Quick,
    Seconds,
    print_rows,
    print_table,
    refuse_what_cannot_be_done,
    say_written,
    told_steps,
    until_done,
)

_Found = TypeVar("_Found")
_Tell = Callable[[str], None]


def leader_crash(
    quick: Quick = False,
    only: OnlyLog = None,
    kills: Annotated[
        int | None, typer.Option(min=1, help="How often the leader is killed.")
    ] = None,
    as_json: AsJson = False,
    output: Plot = None,
) -> None:
    """Kill the leader under load: how long nothing moves, and whether anything is lost.

    Exit code 1 says that something with a receipt was lost, doubled or misplaced, or that two
    readers found different orders.
    """
    refuse_what_cannot_be_done(None, output)
    wanted = kills or (leader_crash_run.KILLS_QUICK if quick else leader_crash_run.KILLS)
    found = _measured(
        leader_crash_plan(),
        only,
        lambda experiment, tell: leader_crash_run.crash_leaders(experiment, wanted, tell),
    )
    if output is not None:
        say_written(time_plots.write_leader_crashes(output, found))
    if as_json:
        print_rows([each.json() for each in found])
    else:
        print_table(leader_crash_run.table_of(found))
    if not all(each.is_sound for each in found):
        raise typer.Exit(1)


def history(
    quick: Quick = False,
    only: OnlyLog = None,
    megabytes: Annotated[
        float | None, typer.Option(min=1, help="How long the log is that is read.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="How often it is read; print medians and spreads.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a log from the beginning, while nothing else happens.

    Exit code 1 says that batches were missing, or were not those that were published.
    """
    wanted = megabytes or (history_run.MEGABYTES_QUICK if quick else history_run.MEGABYTES)
    readings = repeat or (history_run.READINGS_QUICK if quick else history_run.READINGS)
    found = _measured(
        history_plan(),
        only,
        lambda experiment, tell: history_run.read_history(experiment, wanted, readings, tell),
    )
    if as_json:
        print_rows([each.json() for each in found])
    else:
        print_table(history_run.table_of(found))
    if not all(each.is_sound for each in found):
        raise typer.Exit(1)


def growth(
    quick: Quick = False,
    only: OnlyLog = None,
    seconds: Seconds = None,
    as_json: AsJson = False,
    output: Plot = None,
) -> None:
    """Let a log grow: the memory of the replicas, and the time that one takes to start.

    Exit code 1 says that batches stayed without a receipt, or are not in the log.
    """
    refuse_what_cannot_be_done(seconds, output)
    wanted = seconds or (growth_run.SECONDS_QUICK if quick else growth_run.SECONDS)
    legs = growth_run.LEGS_QUICK if quick else growth_run.LEGS
    found = _measured(
        growth_plan(),
        only,
        lambda experiment, tell: growth_run.grow(experiment, wanted, legs, tell),
    )
    if output is not None:
        say_written(time_plots.write_growth(output, found))
    if as_json:
        print_rows([each.json() for each in found])
    else:
        print_table(growth_run.table_of(found))
    if not all(each.is_sound for each in found):
        raise typer.Exit(1)


def _measured(
    plan: list[Experiment],
    only: list[LogProtocol] | None,
    measure: Callable[[Experiment, _Tell], Awaitable[_Found]],
) -> list[_Found]:
    """What each experiment of the plan found, if it was asked for."""
    chosen = [each for each in plan if not only or each.protocol in only]

    async def all_of_them(tell: _Tell) -> list[_Found]:
        return [await measure(experiment, tell) for experiment in chosen]

    with told_steps() as tell:
        return until_done(all_of_them(tell))
