"""What can be picked from the experiments, and what is said of what is not there."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quorate.bench import trials
from quorate.bench.broadcast import Timing
from quorate.bench.experiments import ALTERING, CRASH, Experiment, chosen, full_log_plan, full_plan
from quorate.bench.trials import Trial
from quorate.cli import bench
from quorate.cli.bench import Fault, LogFault, fault_names
from quorate.core.errors import ConfigError


@pytest.mark.parametrize(
    ("choice", "attribute", "value"),
    [
        ({"publishers": [5]}, "publishers", 5),
        ({"events_per_batch": [1000]}, "events_per_batch", 1000),
        ({"fsync": ["always"]}, "fsync", "always"),
        ({"f": [2]}, "f", 2),
    ],
    ids=["publishers", "batches", "fsync", "f"],
)
def test_a_person_picks_what_is_measured_of_logs(
    choice: dict[str, Any], attribute: str, value: object
) -> None:
    plan = full_log_plan()
    picked = chosen(plan, **choice)
    assert picked == [each for each in plan if getattr(each, attribute) == value]
    assert 0 < len(picked) < len(plan)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """What would be measured, and is not."""
    plans: list[Experiment] = []

    def note(plan: list[Experiment], _: float, __: int) -> list[Any]:
        plans.extend(plan)
        return []

    monkeypatch.setattr(bench, "_measured", note)
    return plans


def test_options_are_joined(measured: list[Experiment]) -> None:
    words = "ordering --only ordering --publishers 1 --batch 100 --fsync always --f 1 --topics 10"
    assert CliRunner().invoke(bench.app, [*words.split(), "--fault", "crash"]).exit_code == 0
    ten = Experiment(
        protocol="ordering", topics=10, events_per_batch=100, fsync="always", publishers=1
    )
    assert [(each.fault, each.f, each.topics) for each in measured] == [
        (None, 1, 10), (CRASH, 1, 10),
    ]  # fmt: skip
    assert measured[0] == ten


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("ordering --publishers 3", "--publishers is 3, but it must be 1, 2, 5 or 10"),
        ("ordering --batch 7", "--batch is 7, but it must be 1, 100 or 1000"),
        ("ordering --f 0", "--f is 0, but it must be 1 or 2"),
        ("ordering --topics 4", "--topics is 4, but it must be 1 or 10"),
        ("ordering --quick --f 2", "--f is 2, but with --quick it must be 1"),
        (
            "ordering --quick --fault crash",
            "--fault is crash, but with --quick there are no faults",
        ),
        ("broadcast --replicas 5", "--replicas is 5, but it must be 4 or 7"),
        ("broadcast --topics 10", "--topics is 10, but it must be 1 or 4"),
    ],
)
def test_what_no_experiment_has_is_refused_with_what_there_is(
    measured: list[Experiment], words: str, sentence: str
) -> None:
    result = CliRunner().invoke(bench.app, words.split())
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == sentence
    assert measured == []


@pytest.mark.parametrize(
    ("option", "allowed"),
    [("--fault dropping", ("altering", "crash")), ("--fsync interval", ("never", "always"))],
)
def test_what_is_no_word_of_an_option_is_refused_with_those_that_are(
    measured: list[Experiment], option: str, allowed: tuple[str, ...]
) -> None:
    result = CliRunner().invoke(bench.app, ["ordering", *option.split()])
    assert result.exit_code == 2
    assert all(f"'{word}'" in result.output for word in allowed)
    assert measured == []


def test_where_nothing_can_be_written_nothing_is_measured(
    measured: list[Experiment], tmp_path: Path
) -> None:
    (tmp_path / "plots").touch()
    result = CliRunner().invoke(bench.app, ["ordering", "--output", str(tmp_path / "plots")])
    assert isinstance(result.exception, ConfigError)
    assert f"--output {tmp_path / 'plots'} is no directory" in str(result.exception)
    assert measured == []


def test_every_fault_that_is_offered_is_measured() -> None:
    of_logs = {each.fault for each in full_log_plan() if each.fault}
    assert set(fault_names([*LogFault])) == of_logs == {ALTERING, CRASH}
    assert set(fault_names([*Fault])) == {each.fault for each in full_plan() if each.fault}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Trial | Experiment]:
    """Which trials of validated topics would be measured, and are not."""
    plans: list[Trial | Experiment] = []

    def note(plan: list[Trial], headlines: list[Experiment], _: Timing, __: int) -> Any:
        plans.extend((*plan, *headlines))
        return [], []

    monkeypatch.setattr(bench, "_tried", note)
    return plans


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("", [*trials.full_plan(), *trials.headline_plan()]),
        ("--quick", [*trials.quick_plan(), *trials.headline_plan()]),
        ("--only headline", trials.headline_plan()),
        ("--only whole --size 16", [Trial(system=trials.WHOLE, event_bytes=16)]),
        ("--only embedded --validated 7 --size 256", [Trial(validated=7, event_bytes=256)]),
    ],
)
def test_a_person_picks_what_is_measured_of_validated_topics(
    tried: list[Trial | Experiment], words: str, plan: list[Trial | Experiment]
) -> None:
    result = CliRunner().invoke(bench.app, ["validated", *words.split()])
    assert result.exit_code == 0
    assert tried == plan


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--quick --size 64", "--size is 64, but it must be 16, 256, 1024 or 16384"),
        ("--validated 3", "--validated is 3, but it must be 0, 2, 5, 7 or 10"),
    ],
)
def test_what_no_trial_has_is_refused_with_what_there_is(
    tried: list[Trial | Experiment], words: str, sentence: str
) -> None:
    result = CliRunner().invoke(bench.app, ["validated", *words.split()])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == sentence
    assert tried == []
