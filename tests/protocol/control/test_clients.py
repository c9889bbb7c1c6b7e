"""Clients come, change and go by commands, so that all replicas know the same ones."""

import ssl
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from commands import ACME, ANNA, BOLT, LOG, Commander, cluster, pins
from quorate.core.cluster import Client, Cluster, Member
from quorate.core.control import (
    LEASE_US,
    AlterTopic,
    CreateTopic,
    PutClient,
    Register,
    RemoveClient,
)
from quorate.core.errors import ConfigError
from quorate.core.ids import node_of
from quorate.crypto.identity import Identity, check_keys
from quorate.protocol.control import topology
from quorate.protocol.control.machine import Control

NEW = node_of(1005)


def put(name: str = "dora", seed: int = 150, party: str = "acme", **changes: Any) -> PutClient:
    return PutClient(name=name, party=party, **pins(seed) | changes)


def client(commander: Commander, name: str) -> Client:
    found = commander.control.cluster.named(name)
    assert isinstance(found, Client)
    return found


def test_a_client_that_is_added_has_the_next_number_and_may_what_is_open_to_all() -> None:
    commander = Commander()
    assert commander.does(NEW, Register("orders")) == f"node {NEW} is no client of this cluster"
    commander.ok(ACME, put())
    commander.ok(NEW, Register("orders"))

    assert commander.control.may_publish(NEW, "orders")
    assert commander.control.take_changes().topology_changed
    dora = client(commander, "dora")
    assert (dora.number, dora.party, dora.operator) == (1005, "acme", False)


def test_a_client_that_is_there_gets_other_keys_and_rights_and_keeps_its_number() -> None:
    commander = Commander()
    commander.ok(ACME, put())
    commander.ok(ACME, put(seed=151, operator=True))

    dora = client(commander, "dora")
    assert (dora.number, dora.sign_key, dora.operator) == (1005, pins(151)["sign_key"], True)
    commander.ok(NEW, CreateTopic("mine", {}))


def test_who_is_a_client_does_not_depend_on_the_file_that_a_replica_starts_with() -> None:
    """Files are changed on one replica after the other; commands reach all of them alike."""
    commander = Commander()
    commander.ok(ACME, put())
    edited = replace(
        commander.genesis,
        clients=(
            *commander.genesis.clients[:-1],
            Client(number=1077, name="zoe", party="acme", operator=True, **pins(177)),
        ),
    )
    replicas = [commander.control, Control(edited, commander.state)]
    answers = [
        [replica.apply(node, 9, b'{"do": "create-topic", "topic": "t", "contract": {}}', 10**9)
         for node in (node_of(1077), NEW, BOLT)]
        for replica in replicas
    ]  # fmt: skip
    assert answers[0] == answers[1]
    assert [answer == "" for answer in answers[0]] == [False, False, True]


def test_only_operators_of_its_own_party_put_or_remove_a_client() -> None:
    commander = Commander()
    commander.ok(BOLT, put(party="bolt"))
    for command in (put(party="bolt", seed=152), put(party="acme"), RemoveClient("dora")):
        assert commander.does(ACME, command) == (
            "dora is of bolt, and acme-op is of acme; only operators of its own party add, change "
            "or remove a client"
        )
    assert "is of crew" in commander.does(ACME, RemoveClient("anna"))
    assert "only operators change" in commander.does(ANNA, put(name="other", party="anna"))
    assert client(commander, "dora").party == "bolt"


def test_of_two_foreign_parties_every_replica_names_the_same() -> None:
    """A set of names has another order in each process."""
    commander = Commander()
    commander.ok(BOLT, put(party="bolt"))
    for number in range(20):
        sentence = commander.does(ACME, put(party=f"party{number}"))
        assert sentence.startswith("dora is of bolt, and acme-op is of acme;")


def test_where_one_party_has_operators_it_speaks_for_those_that_have_none() -> None:
    made = cluster()
    alone = tuple(each for each in made.clients if each.party != "bolt")
    commander = Commander(cluster(clients=alone))
    commander.ok(ACME, put(party="somebody"))
    commander.ok(ACME, RemoveClient("anna"))
    assert [each.name for each in commander.control.cluster.clients] == [
        "acme-op", "ben", "carl", "dora",
    ]  # fmt: skip


def test_a_client_that_is_removed_commands_no_more_and_what_it_held_ends_with_its_lease() -> None:
    commander = Commander()
    commander.ok(ACME, put())
    commander.join(NEW, group="acme/g")
    commander.ok(ACME, RemoveClient("dora"))

    assert commander.does(NEW, Register("orders")) == "dora is no client of this cluster"
    commander.wait(LEASE_US / 1e6 + 1)
    commander.join(ACME, group="acme/g")
    assert commander.reads(NEW, "acme/g") == []
    assert len(commander.reads(ACME, "acme/g")) == 4


def test_nobody_else_gets_the_name_or_the_number_of_one_who_was_there_before() -> None:
    commander = Commander()
    commander.ok(ACME, put())
    commander.ok(ACME, RemoveClient("dora"))
    assert commander.control.cluster.name_of(NEW) == "dora"
    assert "dora is of acme" in commander.does(BOLT, put(party="bolt"))
    commander.ok(BOLT, put("eva", seed=151, party="bolt"))
    assert client(commander, "eva").number == 1006
    assert Cluster.parse(commander.control.cluster.render()) == commander.control.cluster

    commander.ok(ACME, put(seed=152))
    assert client(commander, "dora").number == 1005
    assert commander.control.cluster.formers == ()


def test_whoever_is_on_an_access_list_stays_until_it_is_taken_off() -> None:
    commander = Commander()
    commander.ok(ACME, put())
    commander.ok(ACME, AlterTopic("orders", {"publish": ["dora"]}))
    assert commander.does(ACME, RemoveClient("dora")) == (
        "dora is on an access list of topic 'orders'; "
        "alter the topic first, and then remove the client"
    )

    commander.ok(ACME, AlterTopic("orders", {"publish": ["*"]}))
    commander.ok(ACME, RemoveClient("dora"))


def test_one_operator_stays() -> None:
    made = cluster({"orders": LOG})
    alone = tuple(each for each in made.clients if each.party != "bolt")
    commander = Commander(cluster({"orders": LOG}, clients=alone))
    for command in (RemoveClient("acme-op"), put("acme-op", seed=160)):
        assert commander.does(ACME, command) == (
            "without an operator nobody could change the cluster any more"
        )


def test_a_client_that_is_not_there_cannot_be_removed() -> None:
    assert Commander().does(ACME, RemoveClient("nobody")) == (
        "there is no client named 'nobody'; there are acme-op, bolt-op, anna, ben, carl"
    )


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (put("r0"), "r0 and r0 share the name r0"),
        (put(seed=100), "acme-op and dora share the sign_key"),
        (put(sign_key=b"short"), "the keys of dora must have 32 bytes each"),
        (put("a b"), "the name of member 1005"),
    ],
)
def test_a_client_that_does_not_fit_is_refused(command: PutClient, sentence: str) -> None:
    commander = Commander()
    assert sentence in commander.does(ACME, command)
    assert commander.control.cluster == commander.genesis


def test_a_client_whose_certificate_is_another_s_is_refused() -> None:
    def refuse(member: Member) -> None:
        raise ConfigError(f"the certificate of {member.name} is not its own")

    commander = Commander()
    commander.control = Control(commander.genesis, check_member=refuse)
    assert commander.does(ACME, put()) == "the certificate of dora is not its own"
    assert commander.control.cluster == commander.genesis


def with_another_kind_of_key(certificate: str) -> str:
    """The parser raises what is no `QuorateError` when it is asked for that key."""
    der = ssl.PEM_cert_to_DER_cert(certificate)
    ed25519, unknown = b"\x06\x03\x2b\x65\x70\x03", b"\x06\x03\x2b\x65\x7f\x03"
    return ssl.DER_cert_to_PEM_cert(der.replace(ed25519, unknown))


@pytest.mark.parametrize("wrong", ["the kind of key", "the layout", "the mac_key"])
def test_keys_that_would_stop_every_replica_are_refused(wrong: str) -> None:
    """One operator of one party is enough to hand them in, and nobody could start again."""
    dora = Identity.generate("dora").public
    commander = Commander()
    commander.control = Control(commander.genesis, check_member=check_keys)
    command = PutClient("dora", "acme", dora.sign_key, dora.mac_key, dora.certificate)
    changes: dict[str, dict[str, Any]] = {
        "the kind of key": {"certificate": with_another_kind_of_key(dora.certificate)},
        "the layout": {"certificate": dora.certificate.replace("\n", "\n\n", 1)},
        "the mac_key": {"mac_key": bytes(32)},
    }
    sentence = commander.does(ACME, msgspec.structs.replace(command, **changes[wrong]))

    assert "the keys and the certificate of dora are not those of an identity" in sentence
    assert commander.control.cluster == commander.genesis
    commander.ok(ACME, command)


def test_there_is_a_bound_on_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "CLIENTS_MAX", 6)
    commander = Commander()
    commander.ok(ACME, put())
    commander.ok(ACME, put(operator=True))
    assert commander.does(ACME, put("eva", seed=151)) == (
        "there are, or were, 6 clients, and no room for another"
    )
