"""`quorate audit` is content where nothing is wrong, and otherwise names who is."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from altering import alter_payloads, signed_again
from clusters import TestCluster, quorate, running_cluster
from logs import LogTraffic, batches, until_signed
from quorate.client import Admin, Producer
from quorate.core.event import Event
from quorate.core.ids import topic_id
from quorate.core.ordering import Partition
from quorate.crypto.evidence import Keys, parse, verify_evidence
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.readers import TAIL_BYTES_MAX
from quorate.runtime.files import key_file, read_identity
from quorate.runtime.local import OPERATOR
from traffic import eventually

pytestmark = pytest.mark.xdist_group("processes")

LOG: dict[str, object] = {"order": "total", "protection": "byzantine"}
TOPICS: dict[str, dict[str, object]] = {
    "sealed": {**LOG, "validated": True},
    "proved": {**LOG, "validated": True, "event_proofs": True},
    "plain": {**LOG, "partitions": 2},
    "crash": {"order": "total", "protection": "crash"},
    "none": {"order": "total", "protection": "none"},
}
BYZANTINE_TOPICS = ("sealed", "proved", "plain")
SMALL, LARGE = 12, 3
MARK = b"a value that nobody else has"


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        yield running


@pytest.fixture(scope="module")
def sound() -> Iterator[TestCluster]:
    """A cluster without faults whose topics were filled; one more topic is for whoever goes on."""
    with running_cluster(topics={**TOPICS, "growing": {**LOG, "partitions": 2}}) as running:
        asyncio.run(fill(running, *TOPICS))
        asyncio.run(until_all_is_signed(running))
        yield running


async def fill(cluster: TestCluster, *topics: str) -> None:
    """Small batches, which all replicas have, and large ones, which few have."""
    async with Producer(cluster.directory, "alice", batch_events=1) as producer:
        for topic in topics:
            for number in range(SMALL):
                await producer.send(topic, b"%s %d" % (MARK, number), key=b"%d" % number)
            for _ in range(LARGE):
                await producer.send(topic, bytes(10_000), key=b"large")


async def until_all_is_signed(cluster: TestCluster) -> None:
    async with Admin(cluster.directory, OPERATOR) as admin:
        for protection in ("byzantine", "crash", "none"):
            await until_signed(admin, protection)


async def until_all_have(cluster: TestCluster, protection: str, count: int) -> None:
    async with Admin(cluster.directory, OPERATOR) as admin:
        await eventually(
            lambda: batches(admin, protection),
            lambda seen: len(seen) == 4 and min(seen.values()) >= count,
        )


def audit(cluster: TestCluster, *options: object, code: int) -> dict[str, Any]:
    said = quorate("audit", cluster.directory, "--json", *options)
    assert said.code == code, said.out + said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def kinds(report: dict[str, Any]) -> set[tuple[str, str | None]]:
    return {
        (example["kind"], example["who"])
        for pile in report["findings"]
        for example in pile["examples"]
    }


async def misbehave(cluster: TestCluster, replica: str, behaviour: str, **how: Any) -> None:
    async with Admin(cluster.directory, OPERATOR) as admin:
        await admin.misbehave(replica, behaviour, **how)


def test_a_cluster_without_faults_is_found_clean_and_counted_right(sound: TestCluster) -> None:
    report = audit(sound, code=0)

    assert (report["clean"], report["finished"], report["named"]) == (True, True, [])
    assert report["silent"] == {}
    rows = {(row["topic"], row["partition"]): row for row in report["partitions"]}
    for topic in ("sealed", "proved", "crash", "none"):
        row = rows[topic, 0]
        assert (row["batches"], row["events"]) == (SMALL + LARGE, SMALL + LARGE)
        assert (row["first_offset"], row["audited_from"]) == (0, 0)
        assert row["producers"] == ["alice"]
        assert row["signed_events"] == (row["events"] if row["validated"] else 0)
    assert sum(rows["plain", number]["events"] for number in (0, 1)) == SMALL + LARGE
    # Small batches are with all four, large ones with two of them at least.
    brought = [each["batches"] for each in rows["sealed", 0]["replicas"].values()]
    assert sum(brought) >= 4 * SMALL + 2 * LARGE
    groups = {group["name"]: group for group in report["groups"]}
    assert groups["byzantine"]["agreeing"] == ["r0", "r1", "r2", "r3"]
    # What came last, the commands of whoever was there, may be signed a moment later.
    published = sum(row["batches"] for row in rows.values() if row["topic"] in BYZANTINE_TOPICS)
    assert published <= groups["byzantine"]["signed_batches"] <= groups["byzantine"]["batches"]
    assert all(group["checkpoints"] for group in groups.values())


def test_words_say_the_same(sound: TestCluster) -> None:
    said = quorate("audit", sound.directory, "--topic", "sealed")

    assert said.code == 0, said.out + said.err
    assert "sealed" in said.out
    assert "4 of 4 replicas tell it" in said.out
    assert "All is well." in said.out


def test_a_history_that_grows_meanwhile_is_audited_as_far_as_it_was(sound: TestCluster) -> None:
    async def under_traffic() -> dict[str, Any]:
        async with LogTraffic(
            sound.directory, "growing", publishers=["alice"], readers=["bob"]
        ) as traffic:
            traffic.flow()
            await traffic.passed(20)
            report = await asyncio.to_thread(lambda: audit(sound, code=0))
            await traffic.settled()
            traffic.check()
            return report

    report = asyncio.run(under_traffic())

    assert report["clean"]
    assert sum(row["batches"] for row in report["partitions"] if row["topic"] == "growing") >= 20


def test_one_replica_that_is_down_is_named_and_the_others_are_enough(cluster: TestCluster) -> None:
    asyncio.run(fill(cluster, "sealed", "plain"))
    cluster.launcher.stop("r1", kill=True)

    report = audit(cluster, "--topic", "sealed", "--topic", "plain", code=0)

    assert list(report["silent"]) == ["r1"]
    assert (report["clean"], report["finished"]) == (True, True)
    (group,) = report["groups"]
    assert group["agreeing"] == ["r0", "r2", "r3"]
    said = quorate("audit", cluster.directory, "--topic", "sealed")
    assert "r1 did not answer" in said.out


def test_with_too_few_replicas_the_audit_cannot_be_finished(cluster: TestCluster) -> None:
    asyncio.run(fill(cluster, "sealed"))
    for name in ("r1", "r2"):
        cluster.launcher.stop(name, kill=True)

    report = audit(cluster, "--topic", "sealed", code=3)

    assert sorted(report["silent"]) == ["r1", "r2"]
    assert (report["clean"], report["finished"]) == (True, False)

    cluster.launcher.stop_all()
    said = quorate("audit", cluster.directory)
    assert said.code == 3
    assert "are they running?" in said.err


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["publisher"], {("wrong-position", "r2")}),
        (["content"], {("altered-payload", "r2"), ("broken-history", "r2")}),
    ],
    ids=["positions", "contents"],
)
def test_a_replica_that_lies_is_named_and_nobody_else(
    cluster: TestCluster, fields: list[str], expected: set[tuple[str, str]]
) -> None:
    asyncio.run(fill(cluster, "sealed", "plain"))
    asyncio.run(until_all_have(cluster, "byzantine", 2 * (SMALL + LARGE)))
    asyncio.run(misbehave(cluster, "r2", "lie", fields=fields))

    report = audit(cluster, code=1)

    assert report["named"] == ["r2"]
    assert expected <= kinds(report)
    assert report["finished"]
    assert "r2" in quorate("audit", cluster.directory).out


def test_a_replica_whose_disk_was_altered_is_named_and_nobody_else(cluster: TestCluster) -> None:
    asyncio.run(fill(cluster, "sealed", "plain"))
    asyncio.run(until_all_have(cluster, "byzantine", 2 * (SMALL + LARGE)))
    cluster.launcher.stop("r3")
    changed = alter_payloads(cluster.directory / "data" / "r3", MARK + b" 7")
    assert changed == 2
    cluster.launcher.start("r3")
    cluster.launcher.wait_until_up("r3")

    report = audit(cluster, code=1)

    assert report["named"] == ["r3"]
    assert kinds(report) == {("altered-payload", "r3")}
    places = [example for pile in report["findings"] for example in pile["examples"]]
    assert sorted(place["topic"] for place in places) == ["plain", "sealed"]
    # The others have it as it was agreed.
    assert report["finished"]
    rows = [row for row in report["partitions"] if row["topic"] == "sealed"]
    assert rows[0]["events"] == SMALL + LARGE


def test_a_producer_that_signed_twice_is_named_with_evidence_that_verifies(
    cluster: TestCluster, tmp_path: Path
) -> None:
    asyncio.run(fill(cluster, "sealed"))
    asyncio.run(until_all_have(cluster, "byzantine", SMALL + LARGE))
    cluster.launcher.stop("r3")
    # One store has another batch of hers, which she signed for the same place and number.
    alice = read_identity(key_file(cluster.directory, "alice"))
    again = partial(signed_again, alice, cluster.launcher.cluster.full_name, "sealed", MARK)
    assert alter_payloads(cluster.directory / "data" / "r3", MARK + b" 7", again) == 1
    cluster.launcher.start("r3")
    cluster.launcher.wait_until_up("r3")

    report = audit(cluster, "--evidence-dir", tmp_path / "evidence", code=1)

    assert kinds(report) == {("altered-payload", "r3"), ("two-seals", "alice")}
    (file,) = (tmp_path / "evidence").iterdir()
    keys = Keys.of(cluster.launcher.cluster)
    proved = verify_evidence(parse(file.read_text()), keys)
    assert (proved.kind, proved.name) == ("two-seals", "alice")
    (example,) = [
        each for pile in report["findings"] for each in pile["examples"] if each["provable"]
    ]
    assert example["evidence_file"] == str(file)
    assert json.loads(file.read_text()) == example["evidence"]


def test_basic_batches_of_a_validated_topic_are_audited_and_counted_apart(
    cluster: TestCluster,
) -> None:
    async def publish(values: list[bytes], validated: tuple[str, ...]) -> None:
        async with Producer(cluster.directory, "alice") as producer:
            await producer.update_topology(validated)
            events = [Event(None, value, (), 1_000_000) for value in values]
            await producer.send_batch("sealed", events)

    for validated, count in ((("sealed",), 3), ((), 4), (("sealed",), 1)):
        asyncio.run(publish([b"value"] * count, validated))

    report = audit(cluster, "--topic", "sealed", code=0)

    (row,) = [row for row in report["partitions"] if row["topic"] == "sealed"]
    assert (row["first_offset"], row["end_offset"], row["batches"]) == (0, 8, 3)
    assert (row["events"], row["signed_events"]) == (8, 4)
    assert report["findings"] == []


def test_payloads_are_read_by_those_only_who_may_subscribe() -> None:
    closed = {"closed": {**LOG, "subscribe": ["bob"]}, "open": LOG}
    with running_cluster(topics=closed) as cluster:
        asyncio.run(fill(cluster, "closed", "open"))

        report = audit(cluster, code=0)

        rows = {row["topic"]: row for row in report["partitions"]}
        assert (rows["closed"]["read"], rows["closed"]["events"]) == (False, 0)
        assert rows["closed"]["end_offset"] == SMALL + LARGE
        assert rows["open"]["events"] == SMALL + LARGE
        assert any("'closed' were not read" in note for note in report["notes"])
        as_bob = audit(cluster, "--as", "bob", code=0)
        assert {row["topic"]: row["read"] for row in as_bob["partitions"]}["closed"]
        refused = quorate("audit", cluster.directory, "--as", "alice")
        assert refused.code == 2
        assert "alice may not audit the byzantine group" in refused.err


def test_what_retention_took_is_no_gap_and_the_report_says_where_it_begins() -> None:
    short = {"short": {**LOG, "validated": True, "retention_bytes": 100_000}}
    with running_cluster(topics=short) as cluster:
        asyncio.run(publish_each(cluster, "short", count=60, size=3000))
        asyncio.run(until_trimmed(cluster, "short"))

        report = audit(cluster, code=0)

        (row,) = [row for row in report["partitions"] if row["topic"] == "short"]
        assert (row["first_offset"], row["end_offset"]) == (0, 60)
        assert row["audited_from"] > 0
        assert row["events"] == row["batches"] == 60 - row["audited_from"]


async def publish_each(cluster: TestCluster, topic: str, *, count: int, size: int) -> None:
    async with Producer(cluster.directory, "alice", batch_events=1) as producer:
        for _ in range(count):
            await producer.send(topic, bytes(size))


async def until_trimmed(cluster: TestCluster, topic: str) -> None:
    """Retention has taken what is too much, at every replica."""

    async def held_bytes(admin: Admin) -> list[int]:
        reports: dict[str, Any] = dict(await admin.status(timeout_s=1.0))
        return [each["log"]["topics"][topic]["bytes"] for each in reports.values()]

    async with Admin(cluster.directory, OPERATOR) as admin:
        await eventually(lambda: held_bytes(admin), lambda seen: 0 < max(seen) <= 100_000)


def test_a_topic_without_a_history_is_refused(sound: TestCluster) -> None:
    unknown = quorate("audit", sound.directory, "--topic", "nowhere")

    assert unknown.code == 2
    assert "nowhere" in unknown.err


def test_a_store_that_signed_for_what_it_does_not_keep_is_named_with_evidence_that_verifies(
    cluster: TestCluster,
) -> None:
    partition = Partition(topic_id("sealed"), 0)
    store = cluster.names[stores_of((0, 1, 2, 3), partition)[0]]
    asyncio.run(misbehave(cluster, store, "forget"))
    # What came last is served from memory: so much must come after what is asked for.
    asyncio.run(publish_much(cluster, "sealed", TAIL_BYTES_MAX + 2**22))

    report = audit(cluster, "--topic", "sealed", code=1)

    assert kinds(report) == {("false-receipt", store)}
    evidence = report["findings"][0]["examples"][0]["evidence"]
    text = json.dumps(evidence, indent=2, ensure_ascii=False) + "\n"
    proved = verify_evidence(parse(text), Keys.of(cluster.launcher.cluster))
    assert (proved.party, proved.name) == ("store", store)


async def publish_much(cluster: TestCluster, topic: str, size: int) -> None:
    async with Producer(cluster.directory, "alice") as producer:
        await asyncio.gather(
            *[await producer.submit(topic, bytes(2**18)) for _ in range(size // 2**18)]
        )
