"""What processes spend of processor time, also those that end while it is measured."""

import subprocess
import sys

import pytest

from quorate.bench.processor import ENDED, processor_s, spent_since

BUSY_S = 0.3
WORK = f"""
import time
print("ready", flush=True)
input()
while time.process_time() < {BUSY_S}:
    pass
print(time.process_time(), flush=True)
input()
"""


def started() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def told_to_work(process: subprocess.Popen[str]) -> float:
    """What it has spent by its own account when it has worked."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def test_a_process_is_charged_what_it_spent_and_another_one_is_not() -> None:
    with started() as worker, started() as idle:
        before_s = processor_s()

        told_s = told_to_work(worker)

        spent_s = spent_since(before_s)
        assert spent_s[worker.pid] == pytest.approx(told_s - before_s[worker.pid], abs=0.02)
        assert spent_s[idle.pid] < 0.02
        for process in (worker, idle):
            process.kill()


def test_what_a_process_spent_that_has_ended_is_in_the_sum() -> None:
    with started() as worker:
        before_s = processor_s()
        told_s = told_to_work(worker)
        worker.kill()
        worker.wait()

        spent_s = spent_since(before_s)

    # Other children of the tests may be at work as well.
    found_s = spent_s[ENDED] + spent_s[worker.pid]
    assert found_s == pytest.approx(told_s - before_s[worker.pid], abs=0.02)
    assert spent_s[ENDED] > BUSY_S / 2
