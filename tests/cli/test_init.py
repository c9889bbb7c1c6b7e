"""Making clusters: on one machine with `init`, between parties with `identity` and `cluster`."""

import json
import os
import re
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from quorate.cli import main
from quorate.core.cluster import Cluster
from quorate.core.contract import HISTORY_EVERY
from quorate.crypto.identity import Identity, public_of
from quorate.crypto.macs import PairwiseMacs
from quorate.runtime.files import read_cluster, read_identity

NAMES = ("r0", "r1", "r2", "r3", "alice", "bob", "operator")


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


class Shell:
    """Runs `quorate` commands as a user would, in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def run(self, *arguments: object) -> Outcome:
        self._patch.setattr("sys.argv", ["quorate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        captured = self._capture.readouterr()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    def succeed(self, *arguments: object) -> str:
        outcome = self.run(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out

    def fail(self, *arguments: object) -> str:
        outcome = self.run(*arguments)
        assert outcome.code == 2, outcome
        return " ".join(outcome.err.split())


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def port() -> int:
    return free_base_port()


def test_init_writes_a_cluster_that_can_be_read(shell: Shell, tmp_path: Path, port: int) -> None:
    directory = tmp_path / "cluster"
    said = shell.succeed("init", directory, "--base-port", port)

    cluster = read_cluster(directory / "cluster.toml")
    assert tuple(member.name for member in cluster.members) == NAMES
    assert cluster.f == 1
    assert cluster.link_security == "tls"
    assert cluster.allow_misbehaviour
    assert [client.name for client in cluster.clients if client.operator] == ["operator"]
    assert [replica.port for replica in cluster.replicas] == [port, port + 1, port + 2, port + 3]
    assert f"quorate up {directory}" in said


def test_the_sample_topics_have_histories_as_often_as_any_topic(
    shell: Shell, tmp_path: Path, port: int
) -> None:
    shell.succeed("init", tmp_path / "c", "--base-port", port)

    topics = read_cluster(tmp_path / "c" / "cluster.toml").topics

    assert {topics[name].history_every for name in ("orders", "prices")} == {HISTORY_EVERY}


def test_init_declares_a_topic_of_each_kind(shell: Shell, tmp_path: Path, port: int) -> None:
    shell.succeed("init", tmp_path / "c", "--base-port", port)

    tables = [
        contract.table() for contract in read_cluster(tmp_path / "c/cluster.toml").topics.values()
    ]
    assert {table.get("broadcast") for table in tables} >= {
        "vote",
        "authenticated",
        "reliable",
        "chain",
    }
    assert any(table.get("protection") == "crash" for table in tables)
    assert any(table.get("history_every") for table in tables)


def test_init_gives_each_member_its_own_key_file(shell: Shell, tmp_path: Path, port: int) -> None:
    shell.succeed("init", tmp_path / "c", "--base-port", port)

    cluster = read_cluster(tmp_path / "c" / "cluster.toml")
    for name in NAMES:
        path = tmp_path / "c" / "keys" / f"{name}.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert read_identity(path).public == public_of(cluster.named(name))
        certificate = (tmp_path / "c" / "certificates" / f"{name}.pem").read_text()
        assert certificate == cluster.named(name).certificate


def test_init_explains_the_file_to_whoever_opens_it(
    shell: Shell, tmp_path: Path, port: int
) -> None:
    shell.succeed("init", tmp_path / "c", "--base-port", port)

    text = (tmp_path / "c" / "cluster.toml").read_text()
    assert len(re.findall(r"^# ", text, re.MULTILINE)) > 10
    assert "PRIVATE" not in text


def test_init_takes_other_sizes_names_and_links(shell: Shell, tmp_path: Path, port: int) -> None:
    options = ("--replicas", 7, "--f", 2, "--clients", "sensor-1, sensor-2")
    shell.succeed("init", tmp_path / "c", *options, "--link-security", "mac", "--base-port", port)

    cluster = read_cluster(tmp_path / "c" / "cluster.toml")
    assert (len(cluster.replicas), cluster.f, cluster.link_security) == (7, 2, "mac")
    assert [each.name for each in cluster.clients] == ["sensor-1", "sensor-2", "operator"]


def test_init_gives_replicas_a_kafka_each_and_a_topic_whose_payloads_go_there(
    shell: Shell, tmp_path: Path, port: int
) -> None:
    options = ("--store", "kafka", "--kafka", "one:9092, two:9093", "--base-port", port)
    said = shell.succeed("init", tmp_path / "c", *options)

    cluster = read_cluster(tmp_path / "c" / "cluster.toml")
    found = {name: store.bootstrap for name, store in cluster.stores.items()}
    assert found == {"r0": "one:9092", "r1": "two:9093"}
    assert any(contract.validated for contract in cluster.topics.values())
    assert "Kafka      r0 at one:9092, r1 at two:9093" in said


def test_init_looks_for_kafka_on_this_machine_if_nothing_is_said(
    shell: Shell, tmp_path: Path, port: int
) -> None:
    shell.succeed("init", tmp_path / "c", "--store", "kafka", "--base-port", port)

    stores = read_cluster(tmp_path / "c" / "cluster.toml").stores
    assert [store.bootstrap for store in stores.values()] == [
        "127.0.0.1:9092",
        "127.0.0.1:9192",
        "127.0.0.1:9292",
        "127.0.0.1:9392",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--kafka", "one:9092"), "--kafka names Kafka clusters, so --store must be kafka"),
        (("--store", "kafka", "--kafka", "a:1,b:1,c:1,d:1,e:1"), "each has one at most"),
        (("--store", "kafka", "--kafka", "a:1,a:1"), "share the Kafka at a:1"),
        (("--store", "kafka", "--kafka", "nowhere"), "bootstrap has 'nowhere'"),
    ],
)
def test_init_refuses_kafkas_that_cannot_be(
    shell: Shell, tmp_path: Path, port: int, options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in shell.fail("init", tmp_path / "c", *options, "--base-port", port)
    assert not (tmp_path / "c").exists()


def test_init_twice_leaves_the_first_cluster_alone(shell: Shell, tmp_path: Path, port: int) -> None:
    directory = tmp_path / "cluster"
    shell.succeed("init", directory, "--base-port", port)
    before = contents(directory)

    said = shell.fail("init", directory, "--base-port", port)

    assert "there is a cluster in" in said
    assert "choose another directory" in said
    assert contents(directory) == before


def test_init_where_the_cluster_runs_speaks_of_that_and_not_of_ports(
    shell: Shell, tmp_path: Path, port: int
) -> None:
    shell.succeed("init", tmp_path / "c", "--base-port", port)
    with socket.socket() as replica:
        replica.bind(("127.0.0.1", port))
        replica.listen()

        assert "there is a cluster in" in shell.fail("init", tmp_path / "c", "--base-port", port)


def test_init_says_what_to_do_next_so_that_it_can_be_copied(
    shell: Shell, tmp_path: Path, port: int
) -> None:
    directory = tmp_path / "my cluster"
    said = shell.succeed("init", directory, "--base-port", port, "--replicas", 1, "--f", 0)

    assert said.startswith("A cluster of one replica; f = 0")
    assert f"Replicas   r0, on port {port}\n" in said
    assert said.endswith(f"Next       quorate up '{directory}'\n")


def test_init_refuses_a_directory_with_keys_and_no_cluster_file(
    shell: Shell, tmp_path: Path, port: int
) -> None:
    (tmp_path / "keys").mkdir()
    assert "keys exists" in shell.fail("init", tmp_path, "--base-port", port)


def test_init_refuses_a_port_that_is_taken(shell: Shell, tmp_path: Path, port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 2))
        taken.listen()
        said = shell.fail("init", tmp_path / "c", "--base-port", port)

    assert f"port {port + 2}, which r2 would use, is taken" in said
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--replicas", 3), "takes at least 4 of them (3f + 1), but --replicas is 3"),
        (("--f", 2), "takes at least 7 of them (3f + 1), but --replicas is 4"),
        (("--f", -1), "--f is -1, but it must be 0 or more"),
        (("--replicas", 0, "--f", 0), "--replicas is 0, but it must be 1 or more"),
        (("--replicas", 101), "a local cluster has 1 to 100 replicas, not 101"),
        (("--clients", "Alice"), "a name in --clients is 'Alice', but a name has 1 to 63"),
        (("--clients", "a,a"), "a and a share the name a"),
        (("--clients", "r1"), "r1 and r1 share the name r1"),
        (("--clients", "operator"), "every local cluster has anyway"),
        (("--base-port", 65500), "metrics_port of r0 is 65600, but it must be from 1 to 65535"),
        (("--link-security", "none"), "'none' is not one of 'tls', 'mac'"),
    ],
)
def test_init_refuses_what_cannot_be(
    shell: Shell, tmp_path: Path, options: tuple[object, ...], sentence: str
) -> None:
    said = shell.fail("init", tmp_path / "c", *options)

    assert sentence in re.sub(r"[│╭╮╰╯─ ]+", " ", said)
    assert not (tmp_path / "c").exists()


def test_a_new_identity_is_one_private_and_one_public_file(shell: Shell, tmp_path: Path) -> None:
    shell.succeed("identity", "new", "acme-1", "--directory", tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["acme-1.key", "acme-1.pub"]
    assert stat.S_IMODE((tmp_path / "acme-1.key").stat().st_mode) == 0o600
    assert read_identity(tmp_path / "acme-1.key").public.name == "acme-1"


def test_a_new_identity_never_replaces_another(shell: Shell, tmp_path: Path) -> None:
    shell.succeed("identity", "new", "acme", "--directory", tmp_path)
    before = contents(tmp_path)

    assert "acme.key exists already" in shell.fail(
        "identity", "new", "acme", "--directory", tmp_path
    )
    assert "a name has 1 to 63" in shell.fail("identity", "new", "../x", "--directory", tmp_path)
    assert contents(tmp_path) == before


class Parties:
    """Organisations with a machine each, and one folder through which they share files."""

    def __init__(self, shell: Shell, root: Path, names: tuple[str, ...]) -> None:
        self.machines = {name: root / f"machine-of-{name}" for name in names}
        self.shared = root / "shared"
        self.shared.mkdir()
        for name, machine in self.machines.items():
            shell.succeed("identity", "new", name, "--directory", machine)
            shutil.copy(machine / f"{name}.pub", self.shared)

    def public(self, name: str) -> Path:
        return self.shared / f"{name}.pub"

    def replicas(self, *names: str) -> list[object]:
        options: list[object] = []
        for number, name in enumerate(names):
            options += ["--replica", f"{self.public(name)}@{name}.example.org:{7400 + number}"]
        return options


@pytest.fixture
def parties(shell: Shell, tmp_path: Path) -> Parties:
    return Parties(shell, tmp_path, ("acme", "bolt", "cora", "dyne", "erin"))


def test_parties_on_different_machines_share_public_parts_only(
    shell: Shell, parties: Parties
) -> None:
    # Given four parties and a client, each with its keys on its own machine,
    file = parties.shared / "cluster.toml"
    replicas = parties.replicas("acme", "bolt", "cora", "dyne")
    client = ("--client", f"{parties.public('erin')},operator,party=acme")

    # when somebody assembles the cluster from what was shared,
    shell.succeed("cluster", "assemble", "--name", "market", *replicas, *client, "-o", file)

    # then every machine finds itself pinned with its own keys,
    cluster = read_cluster(file)
    owned = {name: key_of(parties, name) for name in parties.machines}
    for name, identity in owned.items():
        assert public_of(cluster.named(name)) == identity.public
    # any two of them can authenticate to each other,
    maker = macs_of(cluster, owned["acme"])
    reader = macs_of(cluster, owned["erin"])
    tag = maker.tag(cluster.named("erin").number, b"data")
    assert reader.verify(cluster.named("acme").number, b"data", tag)
    # and no private key is among what was shared.
    for path in parties.shared.iterdir():
        assert "PRIVATE" not in path.read_text()
        for identity in owned.values():
            for line in secret_lines(identity):
                assert line not in path.read_text()


def test_assembling_takes_ports_parties_and_topics(shell: Shell, parties: Parties) -> None:
    topics = parties.shared / "topics.toml"
    topics.write_text('[topics.trades]\nprotection = "crash"\n')
    shell.succeed(
        "cluster",
        "assemble",
        *("--name", "pair", "--link-security", "mac", "--topics", topics),
        *("--replica", f"{parties.public('acme')}@[::1]:7400,metrics=7500,party=acme-corp"),
        *("--replica", f"{parties.public('bolt')}@10.0.0.2:7400"),
        *("--client", parties.public("erin")),
        *("-o", parties.shared / "cluster.toml"),
    )

    cluster = read_cluster(parties.shared / "cluster.toml")
    first, second = cluster.replicas
    assert (first.host, first.port, first.metrics_port) == ("::1", 7400, 7500)
    assert (first.party, second.party, second.metrics_port) == ("acme-corp", "bolt", None)
    assert list(cluster.topics) == ["trades"]
    assert not cluster.allow_misbehaviour
    assert not cluster.clients[0].operator


def test_assembling_refuses_a_private_key(shell: Shell, parties: Parties) -> None:
    private = parties.machines["acme"] / "acme.key"
    said = assemble_badly(shell, parties, "--replica", f"{private}@h:7400")
    assert "holds a private key, which must stay with its owner" in said


def test_assembling_refuses_too_few_replicas(shell: Shell, parties: Parties) -> None:
    said = assemble_badly(shell, parties, *parties.replicas("acme", "bolt", "cora"))
    assert "4" in said
    assert "replicas" in said


def test_assembling_refuses_one_identity_twice(shell: Shell, parties: Parties) -> None:
    said = assemble_badly(shell, parties, *parties.replicas("acme", "bolt", "cora", "acme"))
    assert "acme and acme share the name acme" in said


def test_assembling_refuses_a_public_file_that_was_tampered_with(
    shell: Shell, parties: Parties
) -> None:
    # Given a shared folder in which somebody exchanged acme's signing key for bolt's,
    keys = [
        re.findall(r'sign_key = "(.+)"', parties.public(name).read_text())[0]
        for name in ("acme", "bolt")
    ]
    tampered = parties.public("acme").read_text().replace(keys[0], keys[1])
    parties.public("acme").write_text(tampered)

    said = assemble_badly(shell, parties, *parties.replicas("acme", "bolt", "cora", "dyne"))

    assert "certificate of acme belongs to another sign_key" in said


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("", "does not have the form FILE.pub@HOST:PORT"),
        ("@host", "does not have the form FILE.pub@HOST:PORT"),
        ("@host:0", "'0' in"),
        ("@host:65536", "is no port; allowed are 1 to 65535"),
        ("@host:x", "'x' in"),
        ("@host:7400,metrics=x", "'x' in"),
        ("@host:7400,metric=7500", "'metric=7500' in"),
        ("@host:7400,party=", "'party=' in"),
        ("@host:7400,party=a,party=b", "'party=b' in"),
        ("@bad host:7400", "host of acme is 'bad host'"),
    ],
)
def test_assembling_refuses_a_replica_it_cannot_place(
    shell: Shell, parties: Parties, place: str, sentence: str
) -> None:
    said = assemble_badly(shell, parties, "--replica", f"{parties.public('acme')}{place}")
    assert sentence in said


def test_assembling_refuses_to_write_over_a_file(shell: Shell, parties: Parties) -> None:
    file = parties.shared / "cluster.toml"
    file.write_text("mine")
    replicas = parties.replicas("acme", "bolt", "cora", "dyne")

    said = shell.fail("cluster", "assemble", "--name", "market", *replicas, "-o", file)

    assert "cluster.toml exists already" in said
    assert file.read_text() == "mine"


def test_show_prints_members_and_topics(shell: Shell, tmp_path: Path, port: int) -> None:
    shell.succeed("init", tmp_path / "c", "--base-port", port)

    said = shell.succeed("cluster", "show", tmp_path / "c")

    for word in (*NAMES, "metrics", "alerts", "orders", "audit", "prices", "Digest"):
        assert word in said


def test_show_as_json_is_one_object(shell: Shell, tmp_path: Path, port: int) -> None:
    shell.succeed("init", tmp_path / "c", "--base-port", port)

    shown = json.loads(shell.succeed("cluster", "show", tmp_path / "c" / "cluster.toml", "--json"))

    assert [replica["name"] for replica in shown["replicas"]] == ["r0", "r1", "r2", "r3"]
    assert shown["f"] == 1
    assert len(shown["digest"]) == 64


def test_the_digest_ignores_comments_and_notices_changes(
    shell: Shell, tmp_path: Path, port: int
) -> None:
    shell.succeed("init", tmp_path, "--base-port", port)
    file = tmp_path / "cluster.toml"

    def shown_digest() -> str:
        return str(json.loads(shell.succeed("cluster", "show", file, "--json"))["digest"])

    first = shown_digest()
    file.write_text("# a remark\n" + file.read_text())
    assert shown_digest() == first
    file.write_text(file.read_text().replace(f"port = {port}\n", "port = 1\n"))
    assert shown_digest() != first


def test_show_names_the_file_and_the_line_of_a_mistake(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text('[cluster]\nname = "x"\nf = = 1\n')
    said = shell.fail("cluster", "show", tmp_path)
    assert "cluster.toml: the cluster file is not valid TOML" in said
    assert "line 3" in said


def assemble_badly(shell: Shell, parties: Parties, *options: object) -> str:
    file = parties.shared / "cluster.toml"
    said = shell.fail("cluster", "assemble", "--name", "market", *options, "-o", file)
    assert not file.exists()
    return said


def key_of(parties: Parties, name: str) -> Identity:
    return read_identity(parties.machines[name] / f"{name}.key")


def secret_lines(identity: Identity) -> list[str]:
    private = identity.private_pem().removeprefix(identity.public.certificate)
    return [line for line in private.splitlines() if not line.startswith("-----")]


def macs_of(cluster: Cluster, identity: Identity) -> PairwiseMacs:
    members = {member.number: public_of(member) for member in cluster.members}
    return PairwiseMacs.between(identity, members, cluster.mac, cluster=cluster.full_name)


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def free_base_port() -> int:
    """A port that is free now, with free ones where the replicas and their metrics go.

    It lies below the ports that systems hand out by themselves, and each process that runs
    tests begins elsewhere, so that nobody takes it in the meantime.
    """
    for attempt in range(50):
        base = 20_000 + 211 * ((os.getpid() + attempt) % 50)
        if all(is_free(base + offset) for offset in (*range(7), *range(100, 107))):
            return base
    raise AssertionError("no free ports")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
