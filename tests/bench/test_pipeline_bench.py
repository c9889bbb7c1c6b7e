"""What is made of the figures of topics in Spark; `tests/pipeline/test_bench_jobs.py` runs it."""

import pytest

from quorate.bench import pipeline
from quorate.bench.latencies import Spread, summarise
from quorate.bench.pipe import PipeRate
from quorate.bench.pipeline import WAYS, Memory, Pipeline, Plan, Read, Round, Scanned
from quorate.bench.pipeline_clients import Listed
from quorate.bench.pipeline_report import json_of, targets_of

TINY = Plan(
    sizes=(100,), megabytes=0.2, rounds=1, alert_s=0.5, alert_warm_up_s=0.1, events_per_batch=100
)


def read_of(*rounds: dict[pipeline.Way, float], rows: int = 1000) -> Read:
    return Read(
        experiment=pipeline.experiment(pipeline.PIPELINE, 1000, 100),
        published=1000,
        from_topic=(rows, 7),
        from_parquet=(1000, 7),
        rounds=[
            Round(seconds, seconds, dict.fromkeys(WAYS, 0.0), PipeRate(100_000, 1000.0))
            for seconds in rounds
        ],
    )


def test_ways_are_compared_within_their_round() -> None:
    """A slow round slows all of them down, and says nothing of any."""
    fast = dict.fromkeys(WAYS, 1.0) | {pipeline.PARQUET: 0.5, pipeline.UNVERIFIED: 0.8}
    slow = {way: 10 * seconds for way, seconds in fast.items()}

    read = read_of(fast, slow)

    assert read.ratio(pipeline.VERIFIED, pipeline.PARQUET) == Spread(0.5, 0.5, 0.5)
    assert read.cost_of_verification.middle == pytest.approx(0.2)
    assert read.cost_of_verification_by_processor.middle == pytest.approx(0.2)
    assert read.rows_per_s(pipeline.VERIFIED) == Spread(550.0, 100.0, 1000.0)
    assert [target.is_reached for target in targets_of(Pipeline([read]))] == [True, True, False]


def test_figures_mean_nothing_where_rows_are_missing() -> None:
    seconds = dict.fromkeys(WAYS, 1.0)

    assert Pipeline([read_of(seconds)]).is_sound
    assert not Pipeline([read_of(seconds, rows=999)]).is_sound


def test_memory_that_grows_with_a_stream_misses_its_target() -> None:
    experiment = pipeline.experiment(pipeline.MEMORY, 1000, 100)
    flat = [Memory(experiment, 100, 200.0), Memory(experiment, 400, 210.0)]
    growing = [Memory(experiment, 100, 200.0), Memory(experiment, 400, 800.0)]

    assert [target.is_reached for target in targets_of(Pipeline(memory=flat))] == [True]
    assert [target.is_reached for target in targets_of(Pipeline(memory=growing))] == [False]


def test_a_blacklist_must_be_right_and_soon() -> None:
    def reached(*, found: int = 20, wrong: int = 0, took_s: int = 3) -> list[bool]:
        listed = Listed(
            packets=1000, scanners=20, found=found, wrong=wrong, precision=found / (found + wrong),
            recall=found / 20, latencies=summarise([took_s * 10**9]),
        )  # fmt: skip
        scanned = Scanned(pipeline.experiment(pipeline.SCANS, 1, 100), listed)
        return [target.is_reached for target in targets_of(Pipeline(scanned=[scanned]))]

    assert reached() == [True, True, True]
    assert reached(found=19) == [False, True, True]
    assert reached(wrong=2) == [True, False, True]
    assert reached(took_s=6) == [True, True, False]


def test_all_rows_of_a_report_have_the_keys_of_every_benchmark() -> None:
    experiment = pipeline.experiment(pipeline.MEMORY, 1000, 100)
    found = Pipeline([read_of(dict.fromkeys(WAYS, 1.0))], [Memory(experiment, 100, 200.0)])

    *ways, memory = json_of(found)

    assert [row["read"] for row in ways] == [way.words for way in WAYS]
    assert all(memory.keys() <= row.keys() for row in ways)
    assert (memory["experiment"], memory["memory_mb_max"]) == (pipeline.MEMORY, 200.0)


def test_a_plan_has_as_many_batches_on_each_partition() -> None:
    assert [Plan().batches(size) for size in pipeline.SIZES] == [2000, 200]
    assert TINY.batches(100) == 20
