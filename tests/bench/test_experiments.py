"""The plan covers what the evaluation chapters cover, and nothing that means nothing."""

from itertools import product

from quorate.bench.experiments import (
    ALTERING,
    BATCHES,
    FAULTS,
    ONE_IN_FLIGHT,
    PROTOCOLS,
    REPLICAS,
    TOPICS,
    chosen,
    full_plan,
    quick_plan,
)


def test_the_full_plan_has_every_protocol_in_every_setting() -> None:
    found = {
        (e.protocol, e.replicas, e.topics, e.events_per_batch)
        for e in full_plan()
        if not e.fault and e.link_security == "mac"
    }

    assert found == set(product(PROTOCOLS, REPLICAS, TOPICS, BATCHES))


def test_every_protocol_meets_every_fault_that_its_contract_covers() -> None:
    found = {(e.protocol, e.fault) for e in full_plan() if e.fault}

    assert found == set(product(PROTOCOLS, FAULTS)) - {("first-answer", ALTERING)}


def test_a_chain_meets_faults_only_with_histories_to_repair_it() -> None:
    assert all(e.history_every for e in full_plan() if e.protocol == "chain" and e.fault)


def test_rows_with_tls_stand_beside_those_without_faults_and_with_four_replicas() -> None:
    plan = full_plan()
    plain = [e for e in plan if not e.fault and e.f == 1 and e.name != ONE_IN_FLIGHT]

    encrypted = [e for e in plain if e.link_security == "tls"]

    assert len(encrypted) == len(plain) / 2


def test_no_experiment_is_planned_twice() -> None:
    assert len(set(full_plan())) == len(full_plan())


def test_the_quick_plan_has_single_events_of_all_protocols_and_batches_of_votes() -> None:
    found = {(e.protocol, e.events_per_batch) for e in quick_plan()}

    assert found == {*((protocol, 1) for protocol in PROTOCOLS), ("vote", 100)}
    assert any(e.name == ONE_IN_FLIGHT and e.in_flight == 1 for e in quick_plan())


def test_the_contracts_of_every_experiment_fit_its_cluster() -> None:
    for experiment in full_plan():
        contracts = experiment.contracts()

        assert len(contracts) == experiment.topics
        for name, contract in contracts.items():
            contract.check(name, experiment.replicas, experiment.f)
            assert contract.protocol == experiment.protocol
            assert contract.history_every == experiment.history_every
            assert contract.discard == "never"


def test_a_choice_keeps_what_was_asked_for_and_the_baseline_of_faults() -> None:
    found = chosen(full_plan(), protocol=["vote"], replicas=[4], topics=[1], fault=[ALTERING])

    assert {e.protocol for e in found} == {"vote"}
    assert {e.replicas for e in found} == {4}
    assert {e.fault for e in found} == {None, ALTERING}
