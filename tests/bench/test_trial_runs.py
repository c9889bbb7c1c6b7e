"""Trials of validated topics with real processes, for a moment each."""

import json
import subprocess
import sys

import pytest

from quorate.bench.broadcast import Timing
from quorate.bench.kafka import QUICK_START, KafkaUnavailableError, kafka_class_path
from quorate.bench.trials import KAFKA, KAFKA_STORES, WHOLE, Trial
from quorate.bench.validated import run_trials
from quorate.runtime.loop import run

pytestmark = pytest.mark.xdist_group("benchmarks")

MOMENT = Timing(warm_up_s=0.1, window_s=0.5, pipe_s=0.1)


@pytest.mark.parametrize(
    "trial",
    [Trial(validated=2, event_bytes=16), Trial(system=WHOLE, event_bytes=16_384)],
    ids=["some validated", "whole payloads"],
)
def test_everything_that_was_acknowledged_is_consumed_in_order(trial: Trial) -> None:
    (row,) = run(run_trials([trial], MOMENT))

    assert row.problem is None
    assert (row.lost, row.forged, row.duplicated, row.unacknowledged) == (0, 0, 0, 0)
    assert row.delivered == row.published > 0
    assert row.processor_us_per_event == pytest.approx(sum(row.processor_us_by_process.values()))
    assert (row.signed_receipt_p50_ms is not None) is bool(trial.validated)
    assert row.basic_receipt_p50_ms is not None
    assert set(row.processor_us_by_process) == {
        "producer 0", "producer 1", "producer 2", "consumer", "r0", "r1", "r2", "r3",
    }  # fmt: skip


def test_brokers_carry_the_same_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers stay for a whole run: what carries plain Kafka is a store later."""
    pytest.importorskip("confluent_kafka")
    try:
        kafka_class_path()
    except KafkaUnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.setattr("quorate.bench.validated.BROKER_WARM_UP_S", 0.1)
    # Nothing is measured here, and they are up sooner without the better compiler.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(QUICK_START))

    trials = [Trial(system=KAFKA), Trial(store=KAFKA_STORES, validated=10)]

    rows = run(run_trials(trials, MOMENT))

    for row, brokers in zip(rows, (1, 4), strict=True):
        assert row.problem is None
        assert (row.lost, row.forged, row.duplicated, row.unacknowledged) == (0, 0, 0, 0)
        assert row.delivered == row.published > 0
        spent = {name: us for name, us in row.processor_us_by_process.items() if "broker" in name}
        assert len(spent) == brokers
        assert min(spent.values()) > 0


def test_the_headline_runs_by_itself() -> None:
    command = ["bench", "validated", "--only", "headline", "--seconds", "0.3", "--json"]

    result = subprocess.run(
        [sys.executable, "-m", "quorate", *command], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    one, ten = json.loads(result.stdout)
    assert (one["topics"], ten["topics"]) == (1, 10)
    for row in (one, ten):
        assert row["validated"] is True
        assert (row["events_per_batch"], row["event_bytes"]) == (1000, 253)
        assert (row["lost"], row["forged"], row["duplicated"]) == (0, 0, 0)
        assert row["delivered"] == row["published"] > 0
