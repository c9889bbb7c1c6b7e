"""`quorate status`: what replicas say of themselves, and what becomes of nonsense."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from signal import SIGSTOP

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from clusters import TestCluster, quorate, running_cluster, until
from quorate.cli.tables import (
    GroupReport,
    LogReport,
    Report,
    Standing,
    log_tables,
    remarks,
    replica_table,
    standings,
    topic_table,
)
from quorate.core.batch import encode_values
from quorate.core.cluster import Cluster
from quorate.crypto.evidence import TwoSeals, render
from quorate.crypto.sids import Place, Seal
from quorate.runtime.local import make_local_cluster
from seals import sealed

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def shared() -> Iterator[TestCluster]:
    with running_cluster() as made:
        yield made


@pytest.fixture
def cluster(shared: TestCluster) -> Iterator[TestCluster]:
    yield shared
    shared.revive()


def test_when_all_are_up_the_exit_code_is_0(cluster: TestCluster) -> None:
    outcome = quorate("status", cluster.directory)

    assert outcome.code == 0, outcome.err
    for name in (*cluster.names, *cluster.launcher.cluster.topics):
        assert name in outcome.out
    assert "is down" not in outcome.out


def test_a_replica_that_is_down_is_named_with_the_reason(cluster: TestCluster) -> None:
    cluster.launcher.stop("r1", kill=True)
    cluster.launcher.signal("r2", SIGSTOP)
    until(lambda: cluster.launcher.is_paused("r2"))

    outcome = quorate("status", cluster.directory)

    assert outcome.code == 1
    assert "2 replicas are not well, and this cluster tolerates 1" in outcome.out
    assert "r1 is down: its process does not run" in outcome.out
    assert "r2 is down: its process is paused" in outcome.out
    assert "r0 is down" not in outcome.out


def test_json_tells_machines_the_same(cluster: TestCluster) -> None:
    cluster.launcher.stop("r3")

    outcome = quorate("status", cluster.directory, "--json")

    told = json.loads(outcome.out)
    assert outcome.code == 1
    assert told["all_up"] is False
    rows = {row["name"]: row for row in told["replicas"]}
    assert rows["r3"]["why"] == "its process does not run"
    assert {name: rows[name]["health"] for name in ("r0", "r1", "r2", "r3")} == {
        "r0": "ok",
        "r1": "ok",
        "r2": "ok",
        "r3": "down",
    }
    assert rows["r0"]["topics"]["audit"]["queued_events"] == 0
    assert rows["r0"]["regency"] == 1
    assert rows["r0"]["log"]["groups"]["byzantine"]["leader"] == "r0"
    assert (rows["r0"]["log"]["fsync"], rows["r0"]["log"]["gives_up"]) == ("always", "")


def test_without_any_client_keys_nobody_can_ask() -> None:
    with running_cluster(start=False) as other:
        for name in ("alice", "bob", "operator"):
            (other.directory / "keys" / f"{name}.key").unlink()

        outcome = quorate("status", other.directory)

    assert outcome.code == 2
    assert "its clients are alice, bob, operator" in outcome.err


NONSENSE: list[dict[str, object]] = [
    {},
    {"health": "splendid"},
    {"health": "ok", "links": "many"},
    {"health": "ok", "topics": {"audit": 7}},
    {"health": "ok", "rates": {"batches_in_per_s": None}},
]


@pytest.mark.parametrize("said", NONSENSE)
def test_a_report_that_makes_no_sense_counts_as_none(
    cluster: TestCluster, said: dict[str, object]
) -> None:
    found = standings(cluster.launcher, {"r0": said})[0]

    assert not found.is_up
    assert "its report makes no sense" in found.health


def test_a_report_cannot_reach_the_terminal_itself(cluster: TestCluster) -> None:
    said = {
        "health": "misbehaving",
        "misbehaviour": "\x1b[2J" + "x" * 10_000,
        "offenders": ["r1\x07: [red]1 x lie[/red]"],
    }

    found = standings(cluster.launcher, {"r0": said})[:1]

    shown = printed(cluster.launcher.cluster, found)
    assert "\\x1b[2J" in shown
    assert "\x1b" not in shown
    assert "r0 rejected: r1\\x07: [red]1 x lie[/red]" in shown
    assert len(shown) < 1000


def test_where_replicas_differ_each_ones_queue_is_shown(cluster: TestCluster) -> None:
    reports = {
        name: {"health": "ok", "topics": {"audit": {"queued_events": depth, "subscribers": 2}}}
        for name, depth in (("r0", 5), ("r1", 7000))
    }

    found = standings(cluster.launcher, reports)

    out = StringIO()
    table = topic_table(cluster.launcher.cluster, found, width=200)
    Console(file=out, width=200).print(table)
    row = next(row for row in out.getvalue().splitlines() if row.startswith("audit"))
    assert "r0:5 r1:7,000" in row
    assert row.split()[7] == "2"


LONG_NAMES = ("alice-replica", "bob-replica", "carol-replica", "dave-replica")


def long_names() -> Cluster:
    local = make_local_cluster().cluster
    named = zip(local.replicas, LONG_NAMES, strict=True)
    return replace(local, replicas=tuple(replace(each, name=name) for each, name in named))


def log_report(leader: str) -> dict[str, object]:
    group = {
        "leader": leader, "regency": 12, "slot": 1_234_567, "batches": 12_345_678,
        "root": "0123456789abcdef" * 4,
    }  # fmt: skip
    return {"fsync": "always", "gives_up": "", "groups": {"byzantine": group}}


def test_at_80_columns_names_are_whole_and_a_hash_that_is_short_says_so() -> None:
    cluster = long_names()
    said = {
        "health": "misbehaving", "memory_mb": 1234.0, "links": 40, "regency": 12,
        "rates": {"batches_in_per_s": 54_321.0, "events_out_per_s": 654_321.0},
        "log": log_report(LONG_NAMES[0]),
    }  # fmt: skip
    found = [Standing(each, msgspec.convert(said, Report)) for each in cluster.replicas]

    (logs,) = log_tables(found, width=80)
    replicas = at_80_columns(replica_table(cluster, found, width=80))
    topics = at_80_columns(topic_table(cluster, found, width=80))
    log = at_80_columns(logs)

    for name in LONG_NAMES:
        assert re.search(rf"^{name} +misbehaving ", replicas, re.MULTILINE)
        assert re.search(rf"^{name} .* 01234567…", log, re.MULTILINE)
    assert "led by alice-replica" in log
    assert "654,321" in replicas
    assert "12,345,678" in log
    assert "authenticated" in topics
    assert "…" not in replicas + topics


def test_while_replicas_do_not_agree_who_leads_each_ones_word_is_shown() -> None:
    cluster = long_names()
    found = [
        Standing(each, msgspec.convert({"health": "ok", "log": log_report(leader)}, Report))
        for each, leader in zip(cluster.replicas, ("bob-replica", "[/red]", "x", "x"), strict=True)
    ]

    (logs,) = log_tables(found, width=80)
    shown = at_80_columns(logs)

    assert "led by" not in shown
    assert re.search(r"^alice-replica .* bob-replica", shown, re.MULTILINE)
    assert re.search(r"^bob-replica .* \[/red\]", shown, re.MULTILINE)


def test_a_clock_that_is_wrong_is_named_by_those_who_notice(cluster: TestCluster) -> None:
    ordered = quorate("replica", "r1", "clock", "--ahead-s", 3600, "-d", cluster.directory)
    assert ordered.code == 0, ordered.err

    def remarked() -> str:
        said = quorate("status", cluster.directory).out
        return said if "r0 finds the clock of r1" in said else ""

    said = until(remarked)

    # What it says was on its way for a moment.
    assert re.search(r"r0 finds the clock of r1 3,[56]\d\d s ahead", said)
    assert "finds the clock of r0" not in said
    quorate("replica", "r1", "behave", "-d", cluster.directory)
    until(lambda: "finds the clock" not in quorate("status", cluster.directory).out)


def test_what_is_proved_is_said_once_and_what_proves_nothing_is_not_said() -> None:
    """Replicas may hand out anything as evidence: it is looked at here."""
    local = make_local_cluster()
    place = Place(local.cluster.full_name, "orders", 0, local.cluster.clients[0].number, 7)
    identity = local.identities[local.cluster.clients[0].name]
    seals = [
        Seal.decode(
            sealed(
                place, 3, encode_values([value], 0), time_us=0,
                public_key=identity.public.sign_key, sign=identity.sign,
            )
        )
        for value in (b"one", b"other")
    ]  # fmt: skip
    proof = render(TwoSeals.of(place, 3, *seals))
    forged = render(TwoSeals.of(place, 3, seals[0], seals[1]._replace(signature=bytes(64))))
    group = GroupReport("r0", 1, 1, 1, "", evidence=[proof, forged, "nonsense", "{}"])
    report = Report("ok", log=LogReport("always", "", {"byzantine": group}))

    shown = printed(local.cluster, [Standing(each, report) for each in local.cluster.replicas])

    name = local.cluster.clients[0].name
    assert shown.count("proved:") == 1
    assert f"proved: {name} signed two different batches as number 3 of session 7" in shown


def at_80_columns(table: Table) -> str:
    out = StringIO()
    Console(file=out, width=80).print(table)
    assert all(len(row) <= 80 for row in out.getvalue().splitlines())
    return out.getvalue()


def printed(cluster: Cluster, found: list[Standing]) -> str:
    out = StringIO()
    Console(file=out, width=200, force_terminal=False).print(
        remarks(cluster, found), soft_wrap=True
    )
    return out.getvalue()
