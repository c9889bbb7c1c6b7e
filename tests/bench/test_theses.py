"""The figures that stand beside ours are those of the theses."""

import pytest

from quorate.bench.experiments import FAULTS, ONE_IN_FLIGHT, PROTOCOLS, Experiment
from quorate.bench.theses import FIGURES


@pytest.mark.parametrize(
    ("experiment", "events_per_s"),
    [
        # Freeman 2016, sections 7.3.1 and 7.3.2
        (Experiment(protocol="authenticated"), 11_000),
        (Experiment(protocol="authenticated", replicas=7), 7_400),
        (Experiment(protocol="reliable"), 850),
        (Experiment(protocol="chain"), 1_750),
        # FIT-Broker, tables 5.3 to 5.7
        (Experiment(protocol="first-answer"), 12_269),
        (Experiment(protocol="vote"), 10_362),
        (Experiment(protocol="vote", topics=4), 10_362),
        (Experiment(protocol="vote", events_per_batch=100), 641_436),
        (Experiment(protocol="vote", fault="altering"), 10_218),
        (Experiment(protocol="vote", fault="crash and recovery"), 10_416),
        (Experiment(protocol="vote", replicas=7), 6_688),
    ],
)
def test_an_experiment_of_a_thesis_has_its_figure(
    experiment: Experiment, events_per_s: float
) -> None:
    assert experiment.thesis is not None
    assert experiment.thesis.events_per_s == events_per_s


@pytest.mark.parametrize(
    "experiment",
    [
        Experiment(protocol="authenticated", topics=4),
        Experiment(protocol="reliable", replicas=7),
        Experiment(protocol="first-answer", events_per_batch=100),
        Experiment(protocol="vote", replicas=7, fault="altering"),
        Experiment(name=ONE_IN_FLIGHT, protocol="authenticated"),
    ],
)
def test_an_experiment_of_no_thesis_has_no_figure(experiment: Experiment) -> None:
    assert experiment.thesis is None


def test_freeman_also_gives_latencies() -> None:
    with_history = Experiment(protocol="authenticated", history_every=10).thesis

    assert with_history is not None
    assert (with_history.events_per_s, with_history.mean_ms, with_history.p99_ms) == (
        None,
        2.3,
        33.9,
    )


def test_every_case_can_be_met_by_an_experiment() -> None:
    for case, figure in FIGURES.items():
        assert case.protocol in PROTOCOLS
        assert case.fault is None or case.fault in FAULTS
        assert figure.source.startswith(("Freeman 2016, 7.3", "FIT-Broker, table 5"))
