"""The job `audit` finds in archives and at replicas what `quorate audit` finds, and who did it."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow
import pytest
import typer
from pyarrow import parquet

from altering import alter_payloads, flipped, signed_again
from clusters import TestCluster, quorate, running_cluster
from logs import until_signed
from quorate.cli.pipeline import _run as run_job
from quorate.client import Admin, Producer
from quorate.core.errors import ConfigError, LocalProtocolError
from quorate.core.event import Event
from quorate.core.ids import topic_id
from quorate.crypto.evidence import Keys, verify_evidence
from quorate.crypto.identity import Identity
from quorate.pipeline.archive import Archive
from quorate.pipeline.auditing import ARCHIVE, FileAudit, KeyRing, follow_on
from quorate.pipeline.jobs import archive
from quorate.pipeline.jobs.archive import ArchiveConfig
from quorate.pipeline.jobs.audit import JOB, AuditConfig, audit
from quorate.pipeline.jobs.job import Pipes
from quorate.pipeline.reports import AuditReport
from quorate.protocol.auditing.findings import Findings
from quorate.runtime.files import key_file, read_cluster, read_identity
from quorate.runtime.founding import write_mark
from quorate.runtime.local import OPERATOR
from quorate.storage.heads import HeldHead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG: dict[str, object] = {"order": "total", "protection": "byzantine"}
TOPICS: dict[str, dict[str, object]] = {
    "sealed": {**LOG, "validated": True, "partitions": 2},
    "proved": {**LOG, "validated": True, "event_proofs": True},
    "plain": LOG,
    "crash": {"order": "total", "protection": "crash"},
}
PLACES = (("sealed", 0), ("sealed", 1), ("proved", 0), ("plain", 0), ("crash", 0))
BATCHES, EVENTS_EACH = 8, 3
# Its bytes do not follow from its rows.
COMPRESSED = 4
MARK = b"a value that nobody else has"


async def fill(cluster: TestCluster) -> None:
    async with (
        Producer(cluster.directory, "alice") as plain,
        Producer(cluster.directory, "alice", compression="zstd") as compressing,
    ):
        for topic, partition in PLACES:
            for number in range(BATCHES):
                values = [b"%s %d %d" % (MARK, number, each) for each in range(EVENTS_EACH)]
                producer = compressing if number == COMPRESSED else plain
                events = [Event(b"key", value * 4, (), 1_700_000_000_000_000) for value in values]
                await producer.send_batch(topic, events, partition=partition)


@dataclass(frozen=True)
class Audited:
    """A cluster, an archive of all that is in it, and a Spark to audit both with."""

    spark: "SparkSession"
    cluster: TestCluster
    archive: Path

    def pipes(self, identity: str = OPERATOR, checkpoint: str = "") -> Pipes:
        return Pipes(
            spark=self.spark,
            cluster=str(self.cluster.directory),
            identity=identity,
            checkpoint=checkpoint,
            available_now=True,
        )


@pytest.fixture(scope="module")
def audited(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audits")
    with running_cluster(topics=TOPICS) as cluster:
        asyncio.run(fill(cluster))
        found = Audited(spark, cluster, folder / "archive")
        config = ArchiveConfig(topics=tuple(TOPICS), directory=str(found.archive), compaction=False)
        (query,) = archive.JOB.start(found.pipes("bob", str(folder / "checkpoint")), config)
        query.awaitTermination()
        yield found


def kinds(findings: Findings) -> dict[tuple[str, str], list[tuple[str, int | None]]]:
    """Who did what, and where."""
    return {
        (pile.examples[0].kind, pile.examples[0].who): [
            (each.where.topic, each.where.offset) for each in pile.examples
        ]
        for pile in findings
    }


# Archives


def audit_of(audited: Audited, directory: Path, *topics: str) -> AuditReport:
    return audit(audited.pipes(), AuditConfig(archive=str(directory), topics=topics))


def test_an_archive_of_a_sound_history_is_found_clean(audited: Audited) -> None:
    report = audit_of(audited, audited.archive)

    assert kinds(report.findings) == {}
    assert (report.code, report.is_finished) == (0, True)
    count = BATCHES * len(PLACES)
    assert (report.parties[ARCHIVE].batches, report.parties["alice"].batches) == (count, count)
    assert report.lines()[-1].startswith("All is well with the archive")
    assert report.notes == (
        "'crash' has batches that lead to no checkpoint: only their numbers and signatures can be "
        "checked",
    )


def rewrite(directory: Path, topic: str, change: Callable[[pyarrow.Table], pyarrow.Table]) -> None:
    """Somebody writes the first file of partition 0 of a topic again."""
    file = min((directory / f"topic={topic}").rglob("0-*.parquet"))
    parquet.write_table(change(parquet.ParquetFile(file).read()), file)


def with_column(name: str, other: Callable[[int, int, Any], Any]) -> Any:
    """Another value in this column, by number of the batch and index."""

    def change(table: pyarrow.Table) -> pyarrow.Table:
        values = [
            other(*batch_and_index(offset, index), value)
            for offset, index, value in zip(
                *(table[each].to_pylist() for each in ("offset", "index", name)), strict=True
            )
        ]
        at, field = table.schema.get_field_index(name), table.schema.field(name)
        return table.set_column(at, field, pyarrow.array(values, field.type))

    return change


def without(is_gone: Callable[[int, int], bool]) -> Any:
    """Some rows are removed, by number of the batch and index."""

    def change(table: pyarrow.Table) -> pyarrow.Table:
        places = zip(table["offset"].to_pylist(), table["index"].to_pylist(), strict=True)
        kept = [not is_gone(*batch_and_index(*place)) for place in places]
        return table.filter(pyarrow.array(kept))

    return change


def batch_and_index(offset: int, index: int) -> tuple[int, int]:
    return (offset - index) // EVENTS_EACH, index


def exchanged(number: int, index: int, _: Any) -> int:
    """Batches 1 and 2 in each other's place."""
    return first_of({1: 2, 2: 1}.get(number, number)) + index


def first_of(number: int) -> int:
    """The offset of the first event of a batch."""
    return number * EVENTS_EACH


def other_proof(at: int, **fields: Any) -> Any:
    return with_column(
        "proof",
        lambda number, _, proof: {**proof, **fields} if number == at and proof else proof,
    )


@pytest.mark.parametrize(
    ("topic", "change", "found"),
    [
        pytest.param(
            "sealed",
            with_column("value", lambda at, index, value: b"!" if (at, index) == (1, 2) else value),
            {"altered-payload": [1]},
            id="value",
        ),
        pytest.param(
            "sealed",
            with_column("value", lambda at, _, value: value[1:] if at == COMPRESSED else value),
            {"altered-payload": [COMPRESSED]},
            id="compressed",
        ),
        pytest.param(
            "plain",
            with_column("urgent", lambda at, _, value: not value if at == 3 else value),
            {"altered-payload": [3]},
            id="unsigned",
        ),
        pytest.param("proved", without(lambda at, index: (at, index) == (2, 1)),
                     {"altered-payload": [2]}, id="row"),
        pytest.param("sealed", without(lambda at, _: at == 5), {"gap": [5]}, id="batch"),
        pytest.param("sealed", without(lambda at, _: at == BATCHES - 1),
                     {"gap": [BATCHES - 1]}, id="last"),
        pytest.param(
            "sealed", with_column("offset", exchanged), {"wrong-position": [2, 1]}, id="exchanged"
        ),
        pytest.param(
            "sealed",
            with_column("producer", lambda at, _, value: "bob" if at == 2 else value),
            {"altered-payload": [2]},
            id="producer",
        ),
        pytest.param(
            "sealed",
            with_column("position", lambda at, _, value: value + 1 if at == 2 else value),
            {"wrong-position": [2]},
            id="position",
        ),
        pytest.param("sealed", other_proof(3, sequence=9), {"altered-payload": [3]}, id="number"),
        pytest.param(
            "sealed", other_proof(3, seal=bytes(288)), {"altered-payload": [3]}, id="seal"
        ),
        pytest.param("sealed", other_proof(3, range=99), {"wrong-position": [3]}, id="range"),
        pytest.param("sealed", other_proof(0, note="none"), {"bad-checkpoint": [0]}, id="note"),
    ],
)  # fmt: skip
def test_what_was_changed_in_an_archive_is_found_where_it_is(
    audited: Audited, tmp_path: Path, topic: str, change: Any, found: dict[str, list[int]]
) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(audited.archive, copy)
    rewrite(copy, topic, change)

    findings = look_into(audited, copy, topic)

    assert kinds(findings) == {
        (kind, ARCHIVE): [(topic, first_of(number)) for number in numbers]
        for kind, numbers in found.items()
    }


def look_into(audited: Audited, directory: Path, topic: str) -> Findings:
    """What there is to find in partition 0 of a topic, without Spark."""
    keys = KeyRing([read_cluster(audited.cluster.directory / "cluster.toml")])
    findings, archive = Findings(), Archive(str(directory))
    looker = FileAudit(archive, keys, findings)
    files = sorted(
        (file for file in archive.view().files if (file.topic, file.partition) == (topic, 0)),
        key=lambda file: file.first,
    )
    follow_on([looker.look(file) for file in files], keys.cluster.name_of, findings)
    return findings


def test_a_file_that_is_missing_is_a_gap(audited: Audited, tmp_path: Path) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(audited.archive, copy)
    for file in (copy / "topic=proved").rglob("0-*.parquet"):
        file.unlink()

    findings = look_into(audited, copy, "proved")

    assert kinds(findings) == {("gap", ARCHIVE): [("proved", 0)]}


def test_an_archive_that_is_not_sound_ends_the_command_with_1(
    audited: Audited, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(audited.archive, copy)
    rewrite(copy, "sealed", without(lambda at, _: at == 5))

    with pytest.raises(typer.Exit) as ended:
        run_job(JOB, audited.pipes(), AuditConfig(archive=str(copy), topics=("sealed",)))

    assert ended.value.exit_code == 1
    assert capsys.readouterr().out.startswith("the archive (archive): gap on sealed; ")


def test_an_archive_in_which_much_was_changed_is_reported_party_by_party(
    audited: Audited, tmp_path: Path
) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(audited.archive, copy)
    rewrite(copy, "sealed", with_column("offset", exchanged))
    rewrite(copy, "plain", with_column("value", lambda at, _, value: value[at % 2 :]))
    rewrite(copy, "proved", without(lambda at, _: at == 5))
    config = AuditConfig(
        archive=str(copy),
        keys=(str(audited.cluster.directory),),
        report=str(tmp_path / "report"),
        format="json",
    )

    ended = JOB.run(audited.pipes(), config)

    assert ended.code == 1
    of_archive, of_alice, note, verdict = ended.lines
    assert of_archive.startswith(
        "the archive (archive): altered-payload 4 times on plain, gap on proved, wrong-position 2 "
        "times on sealed; the archive has other bytes than were agreed on at offset 3 of"
    )
    assert of_alice.startswith("alice (client): nothing found in ")
    assert note.startswith("Note: 'crash' has batches that lead to no checkpoint")
    assert verdict == f"Something is wrong with the archive {copy}: the archive."
    (file,) = (tmp_path / "report").glob("*.json")
    rows = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    assert [(row["party"], row["role"], row["clean"]) for row in rows] == [
        (ARCHIVE, "archive", False),
        ("alice", "client", True),
    ]
    assert [(each["kind"], each["count"]) for each in rows[0]["findings"]] == [
        ("altered-payload", 4),
        ("gap", 1),
        ("wrong-position", 2),
    ]
    assert rows[0]["findings"][0]["examples"][0]["offset"] == first_of(1)


# Replicas


def audit_replicas(audited: Audited) -> AuditReport:
    """In parts that are so small that there are many."""
    return audit(audited.pipes(), AuditConfig(slots_per_range=7, events_per_stretch=3))


def said_by_command(audited: Audited, code: int) -> dict[tuple[str, str], set[str]]:
    """What `quorate audit` finds: who did what, and in which sentences."""
    said = quorate("audit", audited.cluster.directory, "--json")
    assert said.code == code, said.out + said.err
    found: dict[tuple[str, str], set[str]] = {}
    for pile in msgspec.json.decode(said.out)["findings"]:
        for each in pile["examples"]:
            found.setdefault((each["kind"], each["who"] or ""), set()).add(each["sentence"])
    return found


def sentences(report: AuditReport) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for pile in report.findings:
        for each in pile.examples:
            found.setdefault((each.kind, each.who), set()).add(each.sentence)
    return found


def test_replicas_of_a_sound_history_are_found_clean(audited: Audited) -> None:
    report = audit_replicas(audited)

    assert sentences(report) == said_by_command(audited, 0) == {}
    assert (report.code, report.is_finished, report.silent) == (0, True, {})
    checked = {name: report.parties[name].batches for name in (*audited.cluster.names, "alice")}
    # Her commands count as well; and r3 is no member of the group that stands crashes only.
    assert checked["alice"] > BATCHES * len(PLACES)
    assert min(checked.values()) >= BATCHES * (len(PLACES) - 1)
    *_, byzantine, crash, verdict = report.lines()
    assert byzantine.startswith("Order of the byzantine group: ")
    assert byzantine.endswith(" 4 of 4 replicas tell it: r0, r1, r2, r3.")
    assert crash.endswith(" 3 of 3 replicas tell it: r0, r1, r2.")
    assert verdict == "All is well with cluster local."


def test_a_replica_that_is_down_is_named_and_the_others_are_enough(
    audited: Audited, capsys: pytest.CaptureFixture[str]
) -> None:
    audited.cluster.launcher.stop("r1")
    try:
        run_job(JOB, audited.pipes(), AuditConfig(topics=("sealed",)))
    finally:
        audited.cluster.revive()

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("r0 (replica): nothing found in ")
    assert lines[1].startswith("r1 (replica): did not answer: ")
    assert lines[-1] == "All is well with cluster local."


def test_with_too_few_replicas_the_audit_cannot_be_finished(audited: Audited) -> None:
    for name in ("r1", "r2"):
        audited.cluster.launcher.stop(name)
    try:
        ended = JOB.run(audited.pipes(), AuditConfig(topics=("sealed",)))
    finally:
        audited.cluster.revive()

    assert ended.code == 3
    of_replicas = [line for line in ended.lines if "did not answer" in line]
    assert [line.split()[0] for line in of_replicas] == ["r1", "r2"]
    assert not any("All is well" in line for line in ended.lines)


def test_a_store_that_was_altered_and_a_producer_that_signed_twice_are_named(
    audited: Audited,
) -> None:
    cluster = audited.cluster
    cluster.launcher.stop("r3")
    alice = read_identity(key_file(cluster.directory, "alice"))
    data = cluster.directory / "data" / "r3"
    # Batch 7 of all that it has; where that is signed, alice signed another one.
    again = partial(altered, alice, cluster.launcher.cluster.full_name)
    assert alter_payloads(data, MARK + b" 7 0", again) == len(PLACES) - 1
    cluster.launcher.start("r3")
    cluster.launcher.wait_until_up("r3")

    report = audit_replicas(audited)

    found = sentences(report)
    assert found == said_by_command(audited, 1)
    assert {*found} == {("altered-payload", "r3"), ("two-seals", "alice")}
    assert report.code == 1
    keys = Keys.of(cluster.launcher.cluster)
    # One for each partition.
    evidence = [each.evidence for pile in report.against("alice") for each in pile.examples]
    assert len(evidence) == 2
    for each in evidence:
        assert each is not None
        assert verify_evidence(each, keys).name == "alice"


def altered(alice: Identity, cluster: str, held: HeldHead, number: int, payload: bytes) -> bytes:
    if held.topic == topic_id("sealed"):
        return signed_again(alice, cluster, "sealed", MARK, held, number, payload)
    return flipped(held, number, payload)


def test_replicas_that_signed_two_histories_are_proved_to_have(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Three went back to the beginning and decided otherwise, while the fourth was not looking."""
    with running_cluster(topics={"plain": LOG}) as cluster:
        launcher = cluster.launcher
        *turncoats, witness = cluster.names
        asyncio.run(decide(cluster, b"one", by=4))
        launcher.signal(witness, SIGSTOP)
        launcher.stop_all(turncoats)
        for name in turncoats:
            shutil.rmtree(cluster.directory / "data" / name)
            # They lie about this as well.
            write_mark(cluster.directory / "data" / name, launcher.cluster)
            launcher.start(name)
        asyncio.run(decide(cluster, b"other", by=3))
        launcher.signal(witness, SIGCONT)
        audited = Audited(spark, cluster, tmp_path)

        report = audit_replicas(audited)

        # Of many alike, a few are examples, and not the same ones.
        assert {*sentences(report)} == {*said_by_command(audited, 1)}
    proofs = [
        each.evidence
        for pile in report.findings
        for each in pile.examples
        if each.kind == "two-heads"
    ]
    keys = Keys.of(launcher.cluster)
    proved = [verify_evidence(each, keys).name for each in proofs if each is not None]
    # Two quorums of three have two in common.
    assert len(proofs) == len(proved) == len({*proved}) >= 2
    assert {*proved} <= {*turncoats}
    assert ("other-history", witness) in sentences(report)


async def decide(cluster: TestCluster, value: bytes, *, by: int) -> None:
    """As many batches every time, and a quorum signs them."""
    async with Producer(cluster.directory, "alice") as producer:
        for number in range(BATCHES):
            await producer.send_batch("plain", [Event(b"key", b"%s %d" % (value, number), (), 1)])
    async with Admin(cluster.directory, OPERATOR) as admin:
        await until_signed(admin, "byzantine", replicas=by)


async def misbehave(cluster: TestCluster, replica: str, behaviour: str, **how: Any) -> None:
    async with Admin(cluster.directory, OPERATOR) as admin:
        await admin.misbehave(replica, behaviour, **how)


def test_a_replica_that_lies_is_named_and_nobody_else(audited: Audited) -> None:
    asyncio.run(misbehave(audited.cluster, "r2", "lie", fields=["content"]))

    report = audit_replicas(audited)

    said = said_by_command(audited, 1)
    of_r2 = {kind for kind, who in sentences(report) if who == "r2"}
    assert of_r2 == {kind for kind, who in said if who == "r2"}
    assert {"altered-payload", "broken-history"} <= of_r2
    assert {who for _, who in sentences(report)} == {who for _, who in said}


# Settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"archive": "/nowhere"}, "there is no archive in /nowhere"),
        (
            {"keys": ("cluster.toml",)},
            "setting keys of the job audit goes with the setting archive",
        ),
        ({"topics": ("nowhere",)}, "nowhere"),
    ],
)
def test_a_bad_setting_is_named_in_a_sentence(
    audited: Audited, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ConfigError, LocalProtocolError), match=sentence):
        audit(audited.pipes(), AuditConfig(**settings))


def test_settings_are_checked_before_spark_is_started(audited: Audited) -> None:
    command = ("pipeline", "run", "audit", "-d", audited.cluster.directory, "--set")

    wrong = quorate(*command, "format=xml")
    unknown = quorate(*command, "archives=a")

    assert (wrong.code, unknown.code) == (2, 2)
    assert wrong.err == "setting format of the job audit: invalid enum value 'xml'\n"
    assert "the job audit has no setting 'archives'; it has archive, keys, topics," in unknown.err
