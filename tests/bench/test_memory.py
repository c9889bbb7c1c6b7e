"""How the memory of replicas is shown."""

import pytest
from rich.console import Console

from quorate.bench.report import MEMORY_LINES, Sample, memory_table


@pytest.mark.parametrize("looks", [1, 2, MEMORY_LINES, MEMORY_LINES + 1, 10 * MEMORY_LINES])
def test_the_last_look_is_shown_whatever_their_number(looks: int) -> None:
    samples = [Sample(float(at), 1000 * at, {"r0": 50.0}) for at in range(1, looks + 1)]
    console = Console(width=100)
    with console.capture() as captured:
        console.print(memory_table("memory", "events", samples))
    lines = [line for line in captured.get().splitlines() if "50" in line]
    assert f" {1000 * looks:,} " in lines[-1]
    assert len(lines) <= 2 * MEMORY_LINES


def test_a_replica_that_was_down_at_first_has_its_column() -> None:
    samples = [Sample(1.0, 5, {"r0": 50.0}), Sample(2.0, 9, {"r0": 60.0, "r1": 40.0})]
    headings = [column.header for column in memory_table("memory", "events", samples).columns]
    assert headings == ["seconds", "events", "r0, MB", "r1, MB"]


def test_programs_get_every_look() -> None:
    samples = [Sample(1.04, 5, {"r0": 50.0}), Sample(2.0, 9, {"r0": 60.0})]
    assert [sample.json("batches") for sample in samples] == [
        {"seconds": 1.0, "batches": 5, "r0": 50.0},
        {"seconds": 2.0, "batches": 9, "r0": 60.0},
    ]
