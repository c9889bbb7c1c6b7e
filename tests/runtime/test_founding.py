"""Which cluster a disk belongs to, and what no two foundings of a cluster share."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from order_log import PLAIN, OrderLog, event
from quorate.core.cluster import Cluster, Replica
from quorate.core.contract import Contract
from quorate.core.errors import ConfigError
from quorate.core.header import Header
from quorate.crypto.digests import digest
from quorate.crypto.evidence import Keys as KnownKeys
from quorate.crypto.macs import PairwiseMacs
from quorate.crypto.proofs import Keys, ProofError, verify_bytes
from quorate.crypto.receipts import Receipt, Refusal
from quorate.crypto.sids import Place, Seal, sid, signed
from quorate.protocol.ordering.placement import GroupKind
from quorate.runtime.files import data_directory, read_cluster
from quorate.runtime.founding import (
    MARK_VERSION,
    LostDiskError,
    check_mark,
    check_preparation,
    check_restoration,
    read_mark,
    write_mark,
)
from quorate.runtime.handshake import cluster_digest
from quorate.runtime.local import make_local_cluster, write_local_cluster
from quorate.runtime.signing import ClusterSigner, origin_of
from quorate.runtime.topics import macs_of
from quorate.storage.errors import StorageError

LOCAL = make_local_cluster(base_port=7400)
ONE = LOCAL.cluster
# The same name, keys and topics, founded once more.
OTHER = ONE.founded_anew(b"another nonce...")
GOLDEN_MARK = "c2f14528c16c5e160e9f38753fdcfd775e9d1a42cd855f62becf46134904bee0"
CHANGED = {
    "another f": ("f = 1\n", "f = 0\n", "the cluster file has f = 0, and .* founded with f = 1"),
    "another party": ('party = "r2"', 'party = "p2"', "party or key of r2"),
    "another key": (None, None, "party or key of r1"),
    "fewer orderers": ("f = 1\n", "f = 1\norderers = 3\n", "has 3 founding replicas"),
}


def edited(what: str) -> Cluster:
    text = ONE.render()
    before, after, _ = CHANGED[what]
    if before is None or after is None:
        return replace(ONE, replicas=(ONE.replicas[0], with_other_keys(), *ONE.replicas[2:]),
                       founders=b"")  # fmt: skip
    assert text.count(before) == 1
    return Cluster.parse(text.replace(before, after))


def with_other_keys() -> Replica:
    other = make_local_cluster().cluster.replicas[1]
    return replace(other, port=ONE.replicas[1].port, metrics_port=ONE.replicas[1].metrics_port)


# What is signed


def test_two_foundings_of_one_name_and_one_set_of_keys_share_nothing_that_is_signed() -> None:
    """A6: the same operator resets a cluster, and keeps its keys."""
    alice, r0 = LOCAL.identities["alice"], LOCAL.identities["r0"]
    places = [Place.of(each.full_name, "t", 0, 1000) for each in (ONE, OTHER)]
    seal = Seal(Header.of(1, 0, 4), 7, bytes(32), bytes(32), alice.public.sign_key)
    said = [
        [
            origin_of(each, GroupKind.BYZANTINE).encode(),
            sid(place, 1, seal),
            signed(place, 1, seal),
            Receipt(place, 1, 1, bytes(32)).encode(),
            Refusal(place, 1, bytes(32), 0, 0, 7).encode(),
            ClusterSigner(each, r0).sign(b"the state of a replica"),
            cluster_digest(each),
            macs_of(each, r0).tag(1, b"data"),
        ]
        for each, place in zip((ONE, OTHER), places, strict=True)
    ]

    assert ONE.identity != OTHER.identity
    assert all(one != other for one, other in zip(*said, strict=True))


def test_a_state_of_a_leader_change_does_not_count_in_another_founding() -> None:
    state = ClusterSigner(ONE, LOCAL.identities["r0"]).sign(b"a state")

    assert ClusterSigner(ONE, LOCAL.identities["r1"]).is_signed_by(0, b"a state", state)
    assert not ClusterSigner(OTHER, LOCAL.identities["r1"]).is_signed_by(0, b"a state", state)


def test_a_mac_of_one_founding_does_not_verify_in_another() -> None:
    tag = macs_of(ONE, LOCAL.identities["r0"]).tag(1, b"data")
    readers: list[PairwiseMacs] = [macs_of(each, LOCAL.identities["r1"]) for each in (ONE, OTHER)]

    assert [reader.verify(0, b"data", tag) for reader in readers] == [True, False]


def test_the_keys_of_a_second_founding_refuse_a_proof_of_the_first() -> None:
    first, second = OrderLog(), OrderLog(nonce=b"n" * 16)
    first.publish(PLAIN, [event(b"one")])
    proof = first.proof(0).render()

    assert verify_bytes(proof, first.keys).offset == 0
    with pytest.raises(ProofError, match="a cluster that is founded again is another one"):
        verify_bytes(proof, second.keys)


def test_keys_of_two_foundings_are_not_put_together() -> None:
    with pytest.raises(Exception, match="the keys of two clusters"):
        KnownKeys.of(ONE, OTHER)


@pytest.mark.parametrize("what", CHANGED)
def test_a_file_with_an_edited_value_is_that_of_another_cluster(what: str) -> None:
    """B9."""
    assert edited(what).identity != ONE.identity


def test_commands_that_change_the_members_leave_the_identity() -> None:
    changed = replace(ONE, clients=ONE.clients[:1], revision=3)
    read = Cluster.parse(changed.render())

    assert read == changed
    assert read.identity == ONE.identity


def test_a_file_of_before_is_refused_with_what_to_do() -> None:
    old = ONE.render().replace("version = 2\n", "")

    with pytest.raises(ConfigError, match=r"no version, .* found a cluster with 'quorate init'"):
        Cluster.parse(old)
    with pytest.raises(ConfigError, match="needs the key 'nonce'"):
        Cluster.parse(ONE.render().replace("nonce = ", "# nonce = "))
    assert tomllib.loads(ONE.render())["cluster"]["nonce"] == ONE.nonce.hex()


def test_a_file_of_another_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="has version 3, and this program reads version 2; use"):
        Cluster.parse(ONE.render().replace("version = 2\n", "version = 3\n"))


# Disks


def ran(data: Path, founding: Cluster = ONE) -> Path:
    """The disk of a replica that has run."""
    write_mark(data, founding, has_run=True)
    (data / "journal-0.log").touch()
    return data


def test_a_local_cluster_is_founded_with_its_file(tmp_path: Path) -> None:
    write_local_cluster(tmp_path / "c", LOCAL)

    for replica in ONE.replicas:
        data = data_directory(tmp_path / "c", replica.name)
        assert check_mark(data, read_cluster(tmp_path / "c" / "cluster.toml"), replica.name)


@pytest.mark.parametrize("what", CHANGED)
def test_a_value_that_is_for_good_is_named(tmp_path: Path, what: str) -> None:
    with pytest.raises(ConfigError, match=CHANGED[what][2]):
        check_mark(ran(tmp_path), edited(what), "r0")


def test_the_disk_of_another_cluster_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"belongs to the cluster {OTHER.full_name}"):
        check_mark(ran(tmp_path, OTHER), ONE, "r0")


def test_a_disk_without_a_mark_or_without_its_journal_is_lost(tmp_path: Path) -> None:
    with pytest.raises(LostDiskError, match="quorate replica r0 restore.* 'quorate cluster found"):
        check_mark(tmp_path, ONE, "r0")
    write_mark(tmp_path, ONE, has_run=True)
    with pytest.raises(LostDiskError, match="has a founding mark and no journal"):
        check_mark(tmp_path, ONE, "r0")


def test_topics_and_addresses_may_be_edited_until_the_first_run(tmp_path: Path) -> None:
    moved = replace(ONE, topics={}, replicas=at_port(7499))
    write_mark(tmp_path, ONE)

    assert check_mark(tmp_path, moved, "r0")[1] == []


def test_an_address_that_was_edited_after_the_first_run_is_refused(tmp_path: Path) -> None:
    """B3."""
    moved = replace(ONE, replicas=at_port(7499))

    with pytest.raises(ConfigError, match=r"r0 at 127.0.0.1:7499.*knows it at 127.0.0.1:7400"):
        check_mark(ran(tmp_path), moved, "r1")


def test_topics_that_were_edited_after_the_first_run_are_reported(tmp_path: Path) -> None:
    """B10."""
    topics = {**ONE.topics, "late": Contract.parse("late", {}), "ledger": ONE.topics["orders"]}
    del topics["metrics"]

    ignored = check_mark(ran(tmp_path), replace(ONE, topics=topics), "r0")[1]

    assert [each.partition(" in the")[0] for each in ignored] == [
        "topic 'metrics' was removed",
        "topic 'ledger' was edited",
        "topic 'late' was added",
    ]
    assert ignored[-1].endswith("'quorate topic create late' creates it")


def test_a_mark_of_another_version_or_with_a_flipped_bit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.runtime.founding.MARK_VERSION", 2)
    write_mark(tmp_path, ONE)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="has version 2, and this program reads version 1"):
        read_mark(tmp_path)
    mark = tmp_path / "mark"
    mark.write_bytes(mark.read_bytes()[:-1] + b"!")
    with pytest.raises(StorageError, match="is damaged"):
        read_mark(tmp_path)


def test_the_bytes_of_a_mark_change_only_with_its_version(tmp_path: Path) -> None:
    write_mark(tmp_path, OrderLog().cluster, has_run=True)

    assert MARK_VERSION == 1
    assert digest((tmp_path / "mark").read_bytes()).hex() == GOLDEN_MARK


def test_who_prepares_and_who_restores_depends_on_f_plus_one_others() -> None:
    r3 = ONE.replicas[3]
    check_preparation(ONE, r3, ["r0"])
    with pytest.raises(ConfigError, match="r0, r1 have run under the identity of this"):
        check_preparation(ONE, r3, ["r0", "r1"])
    check_restoration(ONE, r3, ["r0", "r1"])
    with pytest.raises(ConfigError, match="takes 2 other replicas that run or .* and there are 1"):
        check_restoration(ONE, r3, ["r0"])


def at_port(port: int) -> tuple[Replica, ...]:
    return (replace(ONE.replicas[0], port=port), *ONE.replicas[1:])


def test_keys_are_those_of_the_founding() -> None:
    assert Keys.of(ONE).origin == f"quorate/local/{ONE.identity.hex()}/byzantine"


def test_where_there_are_no_commands_the_file_changes_clients_topics_and_addresses(
    tmp_path: Path,
) -> None:
    two = make_local_cluster(replicas=2, topics={}).cluster
    moved = replace(two, clients=two.clients[:1], founders=b"", replicas=two.replicas)

    assert two.control is None
    assert check_mark(ran(tmp_path, two), moved, "r0")[1] == []
