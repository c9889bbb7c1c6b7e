"""Topics and replicas change by ordered commands, of those who may, and never to something bad."""

from collections import Counter
from typing import Any

import pytest

from commands import (
    ACME,
    ANNA,
    BEN,
    BOLT,
    LOG,
    Commander,
    add_replica,
    cluster,
    encoded,
    pins,
    rebuilt,
    replica,
)
from quorate.core.contract import Contract
from quorate.core.control import (
    CONTROL_TOPIC,
    AlterTopic,
    CreateTopic,
    PutClient,
    Register,
    RemoveClient,
    ReplaceReplica,
)
from quorate.core.errors import ConfigError
from quorate.core.ids import node_of
from quorate.core.ordering import TopologyQuery, TopologyReport
from quorate.protocol.control import topology
from quorate.protocol.control.machine import NOT_YET, Control
from quorate.protocol.control.replica import Steward
from quorate.protocol.outbox import ANSWERS_BYTES_MAX, Outbox


def replacement(name: str, seed: int, port: int = 7999, **changes: Any) -> ReplaceReplica:
    fields: dict[str, Any] = {"name": name, "host": "127.0.0.1", "port": port, **pins(seed)}
    return ReplaceReplica(**fields | changes)


def test_an_operator_creates_a_topic() -> None:
    commander = Commander()
    commander.ok(ACME, CreateTopic("trades", {"order": "total", "partitions": 3}))

    made = Contract.parse("trades", {"order": "total", "partitions": 3})
    assert commander.control.cluster.topics["trades"] == made
    assert commander.state.topics["trades"] == made.table()
    assert list(commander.state.topics) == ["orders", "news", "trades"]
    assert commander.state.revision == 1
    assert commander.control.take_changes().topology_changed
    assert not commander.control.take_changes().topology_changed


@pytest.mark.parametrize(
    ("topic", "contract", "sentence"),
    [
        ("orders", {}, "there is a topic 'orders' already"),
        ("quorate.control", LOG, "the topic name 'quorate.control' is reserved for the cluster"),
        ("quorate.more", {}, "the topic name 'quorate.more' is reserved for the cluster"),
        ("a b", {}, "topic 'a b' is not a name"),
        ("t", {"partition": 2}, "did you mean 'partitions'?"),
        ("t", {"partitions": 2.5}, "partitions is 2.5; allowed are 1 to 4096"),
        ("t", {"publish": ["nobody"]}, "publish names 'nobody', which is no client"),
        ("t", {**LOG, "event_proofs": True}, "event_proofs proves one event without its"),
        ("t", {**LOG, "order_group": "x"}, "topic 't' asks for order_group, which this version of"),
        ("t", {"placed_over": 3}, "a contract has no key 'placed_over'"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    topic: str, contract: dict[str, Any], sentence: str
) -> None:
    commander = Commander()
    assert sentence in commander.does(ACME, CreateTopic(topic, contract))
    assert list(commander.state.topics) == ["orders", "news"]
    assert commander.state.revision == 0


def test_a_cluster_too_small_for_a_contract_does_not_make_the_topic() -> None:
    small = cluster({}, replicas=tuple(replica(number) for number in range(3)))
    sentence = Commander(small).does(ACME, CreateTopic("t", LOG))
    assert sentence == (
        "topic 't' needs 4 replicas for f = 1 under byzantine/total; this cluster has 3"
    )


def test_there_is_a_bound_on_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "TOPICS_MAX", 3)
    commander = Commander()
    commander.ok(ACME, CreateTopic("third", {}))
    assert commander.does(ACME, CreateTopic("fourth", {})) == (
        "there are 3 topics already, and no room for another"
    )


@pytest.mark.parametrize(
    "command",
    [
        CreateTopic("t", {}),
        AlterTopic("orders", {"partitions": 8}),
        replacement("r0", 50),
        add_replica(),
        PutClient("dora", "anna", **pins(150)),
        RemoveClient("anna"),
    ],
)
def test_only_operators_change_topics_replicas_and_clients(command: Any) -> None:
    commander = Commander()
    sentence = commander.does(ANNA, command)
    assert sentence == (
        "anna is not an operator, and only operators change topics, replicas and clients"
    )
    assert commander.control.cluster == commander.genesis
    assert commander.control.result(ANNA, 1) == sentence


def test_an_operator_alters_what_may_change() -> None:
    commander = Commander()
    changes: dict[str, Any] = {
        "retention": "7d",
        "retention_bytes": 1 << 30,
        "partitions": 8,
        "publish": ["anna"],
        "subscribe": ["ben", "carl"],
        "publishers_max": 7,
        "subscribers_max": 9,
    }
    commander.ok(ACME, AlterTopic("orders", changes))
    commander.ok(
        ACME,
        AlterTopic("news", {"queue_events_max": 5, "discard": "oldest", "expires_after": "1s"}),
    )

    assert commander.state.topics["orders"].items() >= changes.items()
    assert commander.control.cluster.topics["news"].discard == "oldest"
    assert commander.state.revision == 2


def test_a_key_that_is_null_is_back_at_its_default() -> None:
    commander = Commander()
    commander.ok(ACME, AlterTopic("orders", {"retention": "7d"}))
    commander.ok(ACME, AlterTopic("orders", {"retention": None}))
    assert commander.control.cluster.topics == commander.genesis.topics
    assert commander.state.revision == 2


def test_an_alter_that_changes_nothing_makes_no_revision() -> None:
    commander = Commander()
    commander.ok(ACME, AlterTopic("orders", {"partitions": 4}))
    assert commander.state.revision == 0
    assert not commander.control.take_changes().topology_changed


@pytest.mark.parametrize(
    "key",
    [
        "protection", "order", "broadcast", "history_every", "validated", "event_proofs",
        "order_group",
    ],
)  # fmt: skip
def test_what_events_were_promised_does_not_change(key: str) -> None:
    sentence = Commander().does(ACME, AlterTopic("orders", {key: "crash"}))
    assert sentence == (
        f"the {key} of topic 'orders' cannot change, because its events were promised otherwise; "
        f"a new topic is needed"
    )


@pytest.mark.parametrize(
    ("topic", "changes", "sentence"),
    [
        ("nothing", {"partitions": 2}, "there is no topic 'nothing'"),
        ("orders", {}, "nothing to change on topic 'orders'"),
        ("orders", {"partitions": 3}, "the partitions of topic 'orders' can only grow; there are"),
        ("orders", {"partitions": None}, "the partitions of topic 'orders' can only grow"),
        ("orders", {"colour": "red"}, "topic 'orders': a contract has no key 'colour'"),
        ("orders", {"discard": "oldest"}, "a log topic discards nothing before its retention"),
        ("news", {"partitions": 2}, "a live topic has one partition"),
        ("orders", {"publish": ["nobody"]}, "publish names 'nobody', which is no client"),
    ],
)
def test_an_alter_that_cannot_be_is_refused(
    topic: str, changes: dict[str, Any], sentence: str
) -> None:
    commander = Commander()
    assert sentence in commander.does(ACME, AlterTopic(topic, changes))
    assert commander.control.cluster == commander.genesis


def test_who_is_taken_off_the_publish_list_publishes_no_more() -> None:
    commander = Commander()
    for node in (ANNA, BEN):
        commander.ok(node, Register("orders"))
    commander.ok(ACME, AlterTopic("orders", {"publish": ["ben"]}))

    assert not commander.control.may_publish(ANNA, "orders")
    assert commander.control.may_publish(BEN, "orders")
    assert commander.state.sessions[ANNA].topics == []


def test_the_own_party_replaces_a_replica() -> None:
    commander = Commander()
    commander.ok(ACME, replacement("r2", 50, port=8000, metrics_port=8001))

    made = commander.control.cluster.replicas[2]
    expected = replica(2, port=8000, metrics_port=8001, **pins(50))
    assert made == expected
    assert commander.state.replicas[2] == expected
    assert commander.state.revision == 1


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (replacement("r1", 50), "r1 is run by bolt, and acme-op is of acme; only operators of"),
        (replacement("r9", 50), "there is no replica named 'r9'; there are r0, r1, r2, r3"),
        (replacement("anna", 50), "there is no replica named 'anna'"),
        (replacement("r0", 1), "r0 and r1 share the sign_key, but each must have its own"),
        (replacement("r0", 100), "r0 and acme-op share the sign_key"),
        (replacement("r0", 50, port=7401), "r0 and r1 share an address 127.0.0.1:7401"),
        (replacement("r0", 50, mac_key=b"short"), "the keys of r0 must have 32 bytes each"),
        (replacement("r0", 50, host="a b"), "the host of r0 is 'a b'"),
        (replacement("r0", 50, certificate="x"), "the certificate of r0 must be one PEM"),
    ],
)
def test_a_replacement_that_cannot_be_is_refused(command: ReplaceReplica, sentence: str) -> None:
    commander = Commander()
    assert sentence in commander.does(ACME, command)
    assert commander.control.cluster == commander.genesis


def test_a_certificate_can_be_checked_by_whoever_knows_cryptography() -> None:
    def refuse(made: object) -> None:
        raise ConfigError("the certificate has another key")

    commander = Commander()
    commander.control = Control(commander.genesis, check_member=refuse)
    assert commander.does(ACME, replacement("r0", 50)) == "the certificate has another key"
    assert commander.does(ACME, add_replica()) == "the certificate has another key"
    assert commander.control.cluster == commander.genesis
    assert commander.state.proposals == []


def test_a_replica_is_added_when_enough_parties_ask_for_the_same() -> None:
    commander = Commander()
    sentence = commander.does(ACME, add_replica())
    assert sentence == (
        f"{NOT_YET}1 of 2 parties asked for exactly this replica 'r4' (acme); operators of "
        f"others have to ask for the same"
    )
    assert len(commander.control.cluster.replicas) == 4
    assert [proposal.request for proposal in commander.state.proposals] == [add_replica()]

    commander.ok(BOLT, add_replica())
    assert commander.control.cluster.replicas[-1] == replica(4)
    assert commander.state.proposals == []
    assert commander.state.revision == 1


def test_one_party_does_not_add_a_replica_by_asking_twice() -> None:
    made = cluster()
    second = made.clients[2]
    twins = [*made.clients]
    twins[2] = type(second)(
        number=second.number, name="anna", party="acme", operator=True, **pins(102)
    )
    commander = Commander(cluster(clients=tuple(twins)))
    for node in (ACME, ANNA, ACME):
        assert commander.does(node, add_replica()).startswith(NOT_YET)
    assert len(commander.state.proposals) == 1


def test_parties_that_ask_for_different_replicas_of_one_name_wait() -> None:
    commander = Commander()
    commander.does(ACME, add_replica())
    assert commander.does(BOLT, add_replica(port=9000)).startswith(NOT_YET)
    assert len(commander.control.cluster.replicas) == 4

    # A party that changes its mind has one wish.
    commander.ok(BOLT, add_replica())
    assert commander.control.cluster.replicas[-1].port == 7404
    assert commander.state.proposals == []


def test_all_parties_with_operators_suffice_if_they_are_fewer_than_may_lie() -> None:
    made = cluster({})
    alone = tuple(client for client in made.clients if client.party != "bolt")
    commander = Commander(cluster({}, clients=alone))
    commander.ok(ACME, add_replica())
    assert len(commander.control.cluster.replicas) == 5


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (add_replica(name="r1"), "r1 and r1 share the name"),
        (add_replica(name="R"), "a name has 1 to 63 characters"),
        (add_replica(party="A B"), "the party of r4 is 'A B'"),
        (add_replica(port=7400), "r0 and r4 share an address"),
        (add_replica(**pins(2)), "r2 and r4 share the sign_key"),
    ],
)
def test_a_replica_that_cannot_be_is_not_even_proposed(command: Any, sentence: str) -> None:
    commander = Commander()
    assert sentence in commander.does(ACME, command)
    assert commander.state.proposals == []


def test_a_party_has_so_many_proposals_and_pushes_out_its_own_only() -> None:
    commander = Commander()
    commander.does(BOLT, add_replica(4))
    for seed in range(5, 25):
        assert commander.does(ACME, add_replica(seed)).startswith(NOT_YET)

    names = [(each.party, each.request.name) for each in commander.state.proposals]
    assert names == [("bolt", "r4"), *(("acme", f"r{seed}") for seed in range(9, 25))]


def test_topics_stay_where_they_are_when_a_replica_is_added() -> None:
    topics: dict[str, dict[str, Any]] = {f"t{i}": {"protection": "crash"} for i in range(50)}
    commander = Commander(cluster({**topics, "log": LOG}))
    names = list(topics)
    before = [commander.genesis.placement(name) for name in names]
    for seed in (4, 5):
        commander.does(ACME, add_replica(seed))
        commander.ok(BOLT, add_replica(seed))
        now = commander.control.cluster
        assert [now.placement(name) for name in names] == before
        assert now.placement("log") == now.placement(CONTROL_TOPIC) == (0, 1, 2, 3)
    again = rebuilt(commander.control, commander.genesis)
    assert again.cluster == commander.control.cluster
    assert type(again.cluster).parse(again.cluster.render()) == again.cluster

    # New live topics use all of them, new logs are ordered by those who order.
    for i in range(30):
        commander.ok(ACME, CreateTopic(f"new{i}", {"protection": "crash"}))
    commander.ok(ACME, CreateTopic("log2", LOG))
    now = commander.control.cluster
    assert {number for i in range(30) for number in now.placement(f"new{i}")} == set(range(6))
    assert now.placement("log2") == now.placement("log") == (0, 1, 2, 3)
    assert rebuilt(commander.control, commander.genesis).cluster == now


@pytest.mark.parametrize("node", [node_of(2), node_of(5000), node_of(7, 3)])
def test_nobody_but_clients_commands_anything(node: int) -> None:
    commander = Commander()
    before = encoded(commander.control)
    commander.now_us = 0
    assert "is no client of this cluster" in commander.does(node, CreateTopic("t", {}))
    assert encoded(commander.control) == before
    assert commander.control.result(node, 1) is None


@pytest.mark.parametrize(
    "own", [{"fsync": "interval"}, {"slots_kept": 10}, {"allow_misbehaviour": True}]
)
def test_what_a_replica_chooses_for_itself_is_in_no_state(own: dict[str, Any]) -> None:
    """It changes at one replica after the other, and their states must be the same throughout."""
    one, another = Control(cluster()), Control(cluster(**own))
    assert encoded(one) == encoded(another)
    answers = []
    for control in (one, another):
        outbox = Outbox()
        for founding in (False, True):
            Steward(control, outbox).on_query(ANNA, TopologyQuery(1, True, founding))
        answers.append(outbox.take().send)
    assert answers[0] == answers[1]


def test_whoever_asks_a_thousand_times_at_once_is_answered_within_bounds() -> None:
    """A query has ten bytes, and a cluster file many thousand."""
    outbox = Outbox()
    steward = Steward(Control(cluster()), outbox)
    for number in range(1000):
        steward.on_query(ANNA, TopologyQuery(number, whole=True))
        steward.on_query(BEN, TopologyQuery(number, whole=False))
    sent = outbox.take().send
    answered = Counter(node for node, _ in sent)
    texts_bytes = sum(len(each.text) for _, each in sent if isinstance(each, TopologyReport))
    assert ANSWERS_BYTES_MAX // 2 < texts_bytes < 2 * ANSWERS_BYTES_MAX
    assert answered[BEN] == 1000

    steward.on_query(ANNA, TopologyQuery(1000, whole=True))
    assert len(outbox.take().send) == 1
