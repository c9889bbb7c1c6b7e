"""Real processes, for a moment each: what comes out has the right form and nothing is lost."""

import json
import subprocess
import sys

import pytest

from quorate.bench.broadcast import Timing, run_all
from quorate.bench.experiments import ALTERING, CRASH, Experiment
from quorate.bench.pipe import measure_rate, measure_round_trip_ms
from quorate.runtime.loop import run

pytestmark = pytest.mark.xdist_group("benchmarks")

MOMENT = Timing(warm_up_s=0.1, window_s=0.3, pipe_s=0.1)


@pytest.mark.parametrize("kind", ["coalesced", "plain"])
def test_a_pipe_carries_frames_of_any_size(kind: str) -> None:
    for frame_bytes in (1, 300_000):
        rate = run(measure_rate(frame_bytes, 0.1, kind))

        assert rate.frame_bytes == frame_bytes
        assert rate.mb_per_s == rate.frames_per_s * frame_bytes / 1e6 > 0


def test_a_ping_comes_back() -> None:
    assert run(measure_round_trip_ms(253, 0.1)) > 0


def test_the_command_prints_a_list_of_rows_and_nothing_else() -> None:
    command = ["bench", "broadcast", "--quick", "--only", "authenticated", "--seconds", "0.3"]

    result = subprocess.run(
        [sys.executable, "-m", "quorate", *command, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    throughput, one_in_flight = json.loads(result.stdout)
    assert (throughput["protocol"], throughput["fault"]) == ("authenticated", None)
    assert throughput["ratio_to_pipe"] == pytest.approx(
        throughput["events_per_s"] / throughput["pipe_frames_per_s"]
    )
    assert one_in_flight["p50_round_trips"] == pytest.approx(
        one_in_flight["p50_ms"] / one_in_flight["pipe_round_trip_ms"]
    )
    for row in (throughput, one_in_flight):
        assert (row["lost"], row["forged"], row["duplicated"]) == (0, 0, 0)
        assert row["processor_us_per_event"] > 0
        assert row["delivered"] == row["published"] > 0


def test_batches_on_several_topics_arrive_whole_while_a_replica_alters_them() -> None:
    experiment = Experiment(protocol="vote", topics=4, events_per_batch=100, fault=ALTERING)

    (row,) = run(run_all([experiment], MOMENT))

    assert row.problem is None
    assert (row.lost, row.forged, row.duplicated) == (0, 0, 0)
    assert row.published % 100 == 0
    assert row.delivered == row.published > 0


def test_nothing_is_lost_while_a_replica_crashes_and_recovers() -> None:
    (row,) = run(run_all([Experiment(protocol="authenticated", fault=CRASH)], MOMENT))

    assert row.problem is None
    assert (row.lost, row.forged, row.duplicated) == (0, 0, 0)
    assert row.delivered == row.published > 0
