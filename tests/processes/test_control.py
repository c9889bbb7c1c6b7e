"""The control plane as people use it: topics of a running cluster, registrations, groups."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from clusters import TestCluster, quorate, running_cluster
from logs import leader, next_records
from quorate.client import Admin, BlockingConsumer, Consumer, Producer, Record, session
from quorate.client import queue as queue_module
from quorate.client.consumer import Committed
from quorate.client.resuming import ResumingProducer
from quorate.core.control import CONTROL_TOPIC
from quorate.core.errors import ConfigError, LocalProtocolError, QuorumError, RefusedError
from quorate.runtime.local import OPERATOR
from traffic import eventually

pytestmark = pytest.mark.xdist_group("processes")

PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    topics: dict[str, Mapping[str, object]] = {
        "shared": {"order": "total", "partitions": PARTITIONS},
        "seats": {"order": "total", "publishers_max": 1},
        "narrow": {"order": "total"},
        "one": {"order": "total"},
        "other": {"order": "total"},
        "keyed": {"order": "total"},
        "live": {"broadcast": "vote"},
    }
    clients = ("alice", "bob", "carol")
    with running_cluster(topics=topics, clients=clients) as running:
        yield running


async def created(cluster: TestCluster, topic: str, **contract: Any) -> None:
    async with Admin(cluster.directory, OPERATOR) as admin:
        await admin.create_topic(topic, contract)


async def control(admin: Admin) -> list[dict[str, Any]]:
    """What each replica that answers says of the cluster's own state."""
    reports = await admin.status(timeout_s=1.0)
    logs: list[Any] = [report.get("log") for report in reports.values()]
    return [log["control"] for log in logs if log]


async def alike(admin: Admin, replicas: int) -> dict[str, Any]:
    """All replicas have carried out the same commands, and are where those lead to."""
    seen: list[dict[str, Any]] = await eventually(
        lambda: control(admin),
        lambda said: len(said) == replicas and len({each["digest"] for each in said}) == 1,
    )
    return seen[0]


# Topics


@pytest.mark.parametrize(
    "contract",
    [
        {"order": "total", "partitions": 2},
        {"order": "total", "protection": "crash"},
        {"broadcast": "reliable", "order": "fifo"},
        {"protection": "none", "order": "fifo"},
    ],
    ids=["byzantine log", "crash log", "reliable", "none"],
)
def test_a_topic_can_be_used_as_soon_as_it_is_created(
    cluster: TestCluster, contract: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    topic = f"new-{request.node.callspec.id}".replace(" ", "-")

    async def story() -> list[Record]:
        await created(cluster, topic, **contract)
        async with (
            Consumer(cluster.directory, "bob") as consumer,
            Producer(cluster.directory, "alice") as producer,
        ):
            # Neither of them finds the topic in its cluster file.
            consumer.subscribe([topic])
            await consumer.subscribed()
            for number in range(5):
                await producer.send(topic, b"%d" % number, key=b"one")
            return await next_records(consumer, 5)

    assert [int(record.value) for record in asyncio.run(story())] == [0, 1, 2, 3, 4]


def test_a_command_without_an_answer_may_still_be_carried_out_and_the_error_says_so(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 1.0)
    sentence = "no quorum answered to 'create-topic late', which may still be carried out"

    async def story() -> None:
        for name in ("r2", "r3"):
            cluster.launcher.stop(name)
        async with Admin(cluster.directory, OPERATOR) as admin:
            with pytest.raises(QuorumError, match=sentence):
                await admin.create_topic("late", {"order": "total"})

    try:
        asyncio.run(story())
    finally:
        cluster.revive()


def test_clients_whose_file_is_older_than_the_partitions_of_a_log_know_them_from_the_first_event_on(
    cluster: TestCluster,
) -> None:
    async def story() -> tuple[list[Record], list[Record]]:
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.alter_topic("narrow", {"partitions": 3})
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer(cluster.directory, "alice"))
            for number in range(3):
                receipt = await producer.send("narrow", b"old", partition=number)
                assert receipt.partition == number
            first = await stack.enter_async_context(Consumer(cluster.directory, "bob"))
            first.subscribe(["narrow"], start="begin")
            old = await next_records(first, 3)
            last = await stack.enter_async_context(Consumer(cluster.directory, "carol"))
            last.subscribe(["narrow"], start="end")
            await last.subscribed()
            await last.learn_topology()
            for number in range(3):
                await producer.send("narrow", b"new", partition=number)
            return old, await next_records(last, 3)

    old, new = asyncio.run(story())
    assert sorted((record.partition, record.value) for record in old) == [
        (0, b"old"),
        (1, b"old"),
        (2, b"old"),
    ]
    assert sorted((record.partition, record.value) for record in new) == [
        (0, b"new"),
        (1, b"new"),
        (2, b"new"),
    ]


def test_a_key_has_one_partition_on_the_command_line_and_elsewhere_also_with_an_old_file(
    cluster: TestCluster,
) -> None:
    keys = [b"key %d" % number for number in range(4)]

    async def story() -> list[int]:
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.alter_topic("keyed", {"partitions": 64})
        async with Producer(cluster.directory, "alice") as producer:
            return [(await producer.send("keyed", b"x", key=key)).partition for key in keys]

    def published(key: bytes) -> int:
        options = ("--key", key.decode(), "--json", "-d", cluster.directory)
        outcome = quorate("publish", "keyed", "x", *options)
        partition: int = json.loads(outcome.out)["partition"]
        return partition

    partitions = asyncio.run(story())
    assert len(set(partitions)) > 1
    assert partitions == [published(key) for key in keys]


def test_each_topic_of_a_group_s_member_begins_where_it_was_asked_for(
    cluster: TestCluster,
) -> None:
    async def story() -> list[Record]:
        async with (
            Producer(cluster.directory, "alice") as producer,
            Consumer(cluster.directory, "bob", group="starts") as consumer,
        ):
            for topic in ("one", "other"):
                await producer.send(topic, b"old")
            consumer.subscribe(["one"], start="begin")
            consumer.subscribe(["other"], start="end")
            await consumer.subscribed()
            await eventually(
                lambda: asyncio.sleep(0, consumer.assignment()), lambda held: len(held) == 2
            )
            # Where a partition begins is known when this is through.
            await consumer.subscribed()
            await producer.send("other", b"new")
            return await next_records(consumer, 2)

    records = asyncio.run(story())
    assert sorted((record.topic, record.value) for record in records) == [
        ("one", b"old"),
        ("other", b"new"),
    ]


def test_nobody_publishes_on_the_cluster_s_own_log(cluster: TestCluster) -> None:
    async def story() -> None:
        async with Producer(cluster.directory, "alice") as producer:
            with pytest.raises(LocalProtocolError, match="is the cluster's own log"):
                await producer.send(CONTROL_TOPIC, b"let there be a topic")

    asyncio.run(story())


def test_whoever_seeks_too_early_is_told_what_to_do_first(cluster: TestCluster) -> None:
    async def story() -> None:
        await created(cluster, "sought", order="total")
        async with Consumer(cluster.directory, "bob") as consumer:
            with pytest.raises(LocalProtocolError, match="subscribe to topic 'sought' before"):
                consumer.seek("sought", 0, 0)
            consumer.subscribe(["sought"])
            with pytest.raises(LocalProtocolError, match=r"await subscribed\(\) before seeking"):
                consumer.seek("sought", 0, 0)
            await consumer.subscribed()
            consumer.seek("sought", 0, 0)

    asyncio.run(story())


def test_clients_find_partitions_that_come_about_while_they_run(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a group, and wherever the consumer began: all that is new there is read."""
    monkeypatch.setattr(session, "TOPOLOGY_EVERY_S", 0.2)

    async def story() -> list[tuple[int, bytes]]:
        await created(cluster, "growing", order="total")
        async with AsyncExitStack() as stack:
            consumer = await stack.enter_async_context(Consumer(cluster.directory, "bob"))
            producer = await stack.enter_async_context(Producer(cluster.directory, "alice"))
            consumer.subscribe(["growing"], start="end")
            await consumer.subscribed()
            await producer.send("growing", b"before")
            async with Admin(cluster.directory, OPERATOR) as admin:
                await admin.alter_topic("growing", {"partitions": 3})
            await eventually(
                lambda: asyncio.sleep(0, producer.cluster.topics["growing"].partitions),
                lambda partitions: partitions == 3,
            )
            for partition in range(3):
                await producer.send("growing", b"after", partition=partition)
            found = await next_records(consumer, 4)
            return sorted((record.partition, record.value) for record in found)

    assert asyncio.run(story()) == [(0, b"after"), (0, b"before"), (1, b"after"), (2, b"after")]


def test_a_consumer_whose_queue_is_full_still_hears_answers(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops reading from replicas then, and what they answer comes the same way."""
    monkeypatch.setattr(queue_module, "QUEUE_BYTES", 1)

    async def story() -> list[int]:
        await created(cluster, "full", order="total")
        async with Producer(cluster.directory, "alice", batch_events=1) as producer:
            for number in range(30):
                await producer.send("full", b"%d" % number)
        async with Consumer(cluster.directory, "bob", group="full", auto_commit_s=None) as consumer:
            consumer.subscribe(["full"], start="begin")
            found = []
            for _ in range(30):
                found += await next_records(consumer, 1)
                await consumer.commit()
                await consumer.learn_topology()
            return [int(record.value) for record in found]

    assert asyncio.run(story()) == [*range(30)]


def test_what_was_created_and_altered_is_there_after_all_replicas_were_killed() -> None:
    async def story(cluster: TestCluster) -> None:
        await created(cluster, "kept", order="total")
        async with Producer(cluster.directory, "alice") as producer:
            await producer.send("kept", b"before")
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.alter_topic("kept", {"partitions": 3, "publish": ["alice"]})
            before = await alike(admin, 4)
        for name in cluster.names:
            cluster.launcher.stop(name, kill=True)
        cluster.launcher.start_all()
        async with Admin(cluster.directory, OPERATOR) as admin:
            after = await alike(admin, 4)
            assert after["revision"] == before["revision"] == 2
            contract = (await admin.learn_topology()).topics["kept"]
            assert (contract.partitions, contract.publish) == (3, ("alice",))
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe(["kept"], start="begin")
            assert [each.value for each in await next_records(consumer, 1)] == [b"before"]

    with running_cluster(topics={}) as cluster:
        asyncio.run(story(cluster))


def test_what_cannot_be_is_refused_alike_by_every_replica_and_changes_nothing(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with (
            Admin(cluster.directory, OPERATOR) as operator,
            Admin(cluster.directory, "alice") as alice,
        ):
            before = (await operator.learn_topology()).topics
            for work, words in (
                (operator.create_topic("shared", {}), "there is a topic 'shared' already"),
                (operator.create_topic("new", {"ordr": "total"}), "did you mean 'order'"),
                (operator.create_topic("new", {"publish": ["eve"]}), "'eve', which is no client"),
                (operator.create_topic("quorate.x", {}), "reserved"),
                (operator.create_topic("new", {"validated": True}), "validated"),
                (operator.alter_topic("none", {"partitions": 2}), "there is no topic 'none'"),
                (operator.alter_topic("shared", {"partitions": 1}), "can only grow"),
                (operator.alter_topic("shared", {"protection": "crash"}), "protection"),
                (operator.alter_topic("shared", {}), "nothing to change"),
                (alice.create_topic("new", {}), "alice is not an operator"),
            ):
                # The answer is the one of f + 1 replicas, so those said the same words.
                with pytest.raises(RefusedError, match=words):
                    await work
            assert (await operator.learn_topology()).topics == before
            await alike(operator, 4)

    asyncio.run(story())


def test_somebody_taken_off_a_list_publishes_and_reads_no_more(cluster: TestCluster) -> None:
    async def story() -> None:
        await created(cluster, "club", order="total")
        async with (
            Admin(cluster.directory, OPERATOR) as admin,
            Producer(cluster.directory, "alice", timeout_s=2.0) as producer,
        ):
            await producer.send("club", b"in")
            await admin.alter_topic("club", {"publish": ["bob"], "subscribe": ["bob"]})
            with pytest.raises(Exception, match="no receipt"):
                await producer.send("club", b"out")
        async with Producer(cluster.directory, "alice") as again:
            with pytest.raises(RefusedError, match="alice may not publish on 'club'"):
                await again.send("club", b"out")
        async with (
            Producer(cluster.directory, "bob") as producer,
            Consumer(cluster.directory, "bob") as consumer,
        ):
            await producer.send("club", b"mine")
            consumer.subscribe(["club"], start="begin")
            assert [each.value for each in await next_records(consumer, 2)] == [b"in", b"mine"]

    asyncio.run(story())


def test_topics_are_created_altered_listed_and_described_on_the_command_line(
    cluster: TestCluster,
) -> None:
    here = ("-d", cluster.directory)
    made = quorate("topic", "create", "cli", "order=total", "partitions=2", "publish=bob", *here)
    assert made.out.startswith("cli is there: byzantine, ordering, order total")
    altered = quorate("topic", "alter", "cli", "retention=7d", *here)
    assert altered.out == "cli is altered: retention is 7d\n"
    listed = json.loads(quorate("topic", "list", "--json", *here).out)
    assert listed["cli"]["partitions"] == 2
    described = json.loads(quorate("topic", "describe", "cli", "--json", *here).out)
    assert described["contract"]["retention"] == "7d"
    assert described["replicas"] == cluster.names
    assert "cli" in quorate("topic", "list", *here).out
    assert "retention" in quorate("topic", "describe", "cli", *here).out
    assert "cli" in quorate("status", cluster.directory).out
    # As in the cluster file, so at run time: the first client that may is taken.
    assert "from bob" in quorate("publish", "cli", "hello", *here).out

    again = quorate("topic", "create", "cli", *here)
    assert (again.code, again.err.strip()) == (2, "there is a topic 'cli' already")
    wrong = quorate("topic", "alter", "cli", "retention", *here)
    assert wrong.code == 2
    assert "does not have the form KEY=VALUE" in wrong.err
    assert "has no topic 'nowhere'" in quorate("topic", "describe", "nowhere", *here).err


def test_whoever_alters_a_topic_is_told_which_topics_there_are_and_what_can_change(
    cluster: TestCluster,
) -> None:
    here = ("-d", cluster.directory)
    assert quorate("topic", "create", "altered", "order=total", *here).code == 0
    assert quorate("topic", "create", "lively", *here).code == 0

    nowhere = quorate("topic", "alter", "nowhere", "retention=7d", *here)
    log, live = (
        quorate("topic", "alter", "altered", *here),
        quorate("topic", "alter", "lively", *here),
    )

    assert (nowhere.code, log.code, live.code) == (2, 2, 2)
    assert nowhere.err.startswith("cluster local has no topic 'nowhere'; it has ")
    assert "altered, lively" in nowhere.err
    assert log.err == (
        "say what to alter of altered, as KEY=VALUE; the keys are partitions, retention, "
        "retention_bytes, publishers_max, subscribers_max, publish, subscribe\n"
    )
    assert live.err == (
        "say what to alter of lively, as KEY=VALUE; the keys are queue_events_max, discard, "
        "expires_after, publishers_max, subscribers_max, publish, subscribe\n"
    )


def test_the_cluster_s_own_log_is_described_and_not_altered(cluster: TestCluster) -> None:
    here = ("-d", cluster.directory)
    described = quorate("topic", "describe", CONTROL_TOPIC, "--json", *here)
    altered = quorate("topic", "alter", CONTROL_TOPIC, "retention=7d", *here)

    # What README.md says that it keeps.
    assert json.loads(described.out)["contract"]["retention_bytes"] == 256 * 1024 * 1024
    assert (altered.code, altered.err) == (
        2,
        "quorate.control is the cluster's own and cannot be altered; 'quorate topic describe "
        "quorate.control' shows what it promises\n",
    )


def test_anybody_can_read_who_commanded_what(cluster: TestCluster) -> None:
    async def story() -> list[Record]:
        await created(cluster, "written-down")
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe([CONTROL_TOPIC], start="begin")
            records: list[Record] = []
            while not any(b"written-down" in record.value for record in records):
                records += await next_records(consumer, 1)
            return records

    last = asyncio.run(story())[-1]
    assert last.publisher == OPERATOR
    assert json.loads(last.value) == {
        "do": "create-topic",
        "topic": "written-down",
        "contract": {},
    }


def test_a_cluster_too_small_to_agree_has_no_control_plane_and_says_so() -> None:
    async def story(cluster: TestCluster) -> None:
        async with Admin(cluster.directory, OPERATOR) as admin:
            with pytest.raises(LocalProtocolError, match="no control plane"):
                await admin.create_topic("new", {})
        async with Producer(cluster.directory, "alice") as producer:
            with pytest.raises(ConfigError, match="has no topic 'new'"):
                await producer.send("new", b"")
            await producer.send("alerts", b"still works")

    topics = {"alerts": {"protection": "crash"}}
    with running_cluster(topics=topics, replicas=2) as cluster:
        asyncio.run(story(cluster))


# Registrations


def test_a_log_topic_has_no_more_publishers_than_its_contract_allows(cluster: TestCluster) -> None:
    async def story() -> None:
        async with Producer(cluster.directory, "alice") as first:
            await first.send("seats", b"mine")
            async with Producer(cluster.directory, "bob") as second:
                with pytest.raises(RefusedError, match="already has its 1 publishers"):
                    await second.send("seats", b"mine")
        # Whoever goes gives the place back.
        async with Producer(cluster.directory, "bob") as third:
            await third.send("seats", b"mine now")

    asyncio.run(story())


# Groups


async def read_on(consumer: Consumer, into: list[Record], enough: asyncio.Event) -> None:
    while not enough.is_set():
        record = await consumer.poll(0.05)
        if record is not None:
            into.append(record)


async def publish(cluster: TestCluster, topic: str, first: int, count: int) -> None:
    async with Producer(cluster.directory, "alice", batch_events=1) as producer:
        for number in range(first, first + count):
            await producer.send(topic, b"%d" % number)


def numbers(records: list[Record]) -> list[int]:
    return sorted(int(record.value) for record in records)


async def until(condition: Callable[[], bool]) -> None:
    async def look() -> bool:
        return condition()

    await eventually(look, lambda is_so: is_so)


def test_members_of_a_group_share_the_partitions_and_each_event_is_read_once(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        await created(cluster, "split", order="total", partitions=PARTITIONS)
        enough = asyncio.Event()
        read: list[list[Record]] = [[], [], []]
        members = [Consumer(cluster.directory, "bob", group="split") for _ in read]
        async with members[0], members[1], asyncio.TaskGroup() as tasks:
            for member, into in zip(members[:2], read, strict=False):
                member.subscribe(["split"], start="begin")
                tasks.create_task(read_on(member, into, enough))
            await until(lambda: [len(m.assignment()) for m in members[:2]] == [3, 3])
            await publish(cluster, "split", 0, 60)
            async with members[2]:
                # A third one comes while events flow.
                members[2].subscribe(["split"], start="begin")
                last = tasks.create_task(read_on(members[2], read[2], enough))
                await publish(cluster, "split", 60, 60)
                await until(lambda: [len(m.assignment()) for m in members] == [2, 2, 2])
                await publish(cluster, "split", 120, 60)
                await until(lambda: sum(map(len, read)) >= 180)
                enough.set()
                await last
        every = [record for part in read for record in part]
        assert numbers(every) == list(range(180))
        assert all(read)
        for part in (0, 1, 2):
            assert len({record.partition for record in read[part]}) >= 2

    asyncio.run(story())


def test_the_partitions_of_a_member_that_dies_go_to_the_others_when_its_lease_ends(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        await created(cluster, "orphans", order="total", partitions=4)
        enough = asyncio.Event()
        read: list[Record] = []
        survivor = Consumer(cluster.directory, "bob", group="orphans", lease_s=1.0)
        dead = Consumer(cluster.directory, "bob", group="orphans", lease_s=1.0)
        async with survivor, asyncio.TaskGroup() as tasks:
            survivor.subscribe(["orphans"], start="begin")
            tasks.create_task(read_on(survivor, read, enough))
            await dead.start()
            dead.subscribe(["orphans"], start="begin")
            await dead.subscribed()
            await until(lambda: len(dead.assignment()) == len(survivor.assignment()) == 2)
            # It says no more, not even that it leaves.
            dead._membership = None
            await dead.close()
            await publish(cluster, "orphans", 0, 40)
            await until(lambda: len(survivor.assignment()) == 4)
            await until(lambda: len(read) >= 40)
            enough.set()
        assert numbers(read) == list(range(40))

    asyncio.run(story())


def test_a_group_goes_on_where_it_committed_even_if_the_leader_is_killed(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        await publish(cluster, "shared", 0, 30)
        async with Admin(cluster.directory, OPERATOR) as admin:
            async with Consumer(cluster.directory, "bob", group="late") as consumer:
                consumer.subscribe(["shared"], start="begin")
                first = await next_records(consumer, 12)
                await consumer.commit()
            leading = await leader(admin, "byzantine")
            cluster.launcher.stop(leading, kill=True)
            async with Consumer(cluster.directory, "bob", group="late") as consumer:
                consumer.subscribe(["shared"], start="begin")
                second = await next_records(consumer, 18)
                await consumer.commit()
            cluster.launcher.start(leading)
            cluster.launcher.wait_until_up(leading)
            state = await alike(admin, 4)
        assert numbers(first + second) == list(range(30))
        offsets = [each["offset"] for each in state["groups"]["bob/late"]["partitions"]]
        ends = Counter(record.partition for record in first + second)
        assert offsets == [ends[number] for number in range(PARTITIONS)]

    asyncio.run(story())


def test_a_group_that_begins_at_the_end_misses_nothing_that_comes_while_nobody_reads(
    cluster: TestCluster,
) -> None:
    async def story() -> list[bytes]:
        await created(cluster, "absent", order="total")
        async with Producer(cluster.directory, "alice") as producer:
            await producer.send("absent", b"before")
            async with Consumer(cluster.directory, "bob", group="absent") as consumer:
                consumer.subscribe(["absent"], start="end")
                await consumer.subscribed()
                await until(lambda: consumer.position("absent", 0) is not None)
            await producer.send("absent", b"after")
        async with Consumer(cluster.directory, "bob", group="absent") as consumer:
            consumer.subscribe(["absent"], start="end")
            return [record.value for record in await next_records(consumer, 1)]

    assert asyncio.run(story()) == [b"after"]


@pytest.mark.parametrize(
    ("behaviour", "details"),
    [
        ("lie", {"percent": 100.0, "fields": ["content"]}),
        ("equivocate", {}),
        ("silent", {}),
    ],
    ids=["lie", "equivocate", "silent"],
)
def test_a_group_shares_commits_and_seeks_though_the_leader_misbehaves(
    cluster: TestCluster, behaviour: str, details: dict[str, Any]
) -> None:
    topic = group = f"among-{behaviour}"

    async def share() -> list[Record]:
        """Two members, of which one comes later, read all there is, and commit that."""
        enough = asyncio.Event()
        read: list[list[Record]] = [[], []]
        members = [Consumer(cluster.directory, "bob", group=group) for _ in read]
        async with members[0], members[1], asyncio.TaskGroup() as tasks:
            for member, into in zip(members, read, strict=True):
                member.subscribe([topic], start="begin")
                tasks.create_task(read_on(member, into, enough))
                await publish(cluster, topic, 20 * members.index(member), 20)
            await until(lambda: [len(member.assignment()) for member in members] == [2, 2])
            await publish(cluster, topic, 40, 20)
            await until(lambda: sum(map(len, read)) >= 60)
            enough.set()
        return [record for part in read for record in part]

    async def story() -> None:
        await created(cluster, topic, order="total", partitions=4)
        async with Admin(cluster.directory, OPERATOR) as admin:
            liar = await leader(admin, "byzantine")
            await admin.misbehave(liar, behaviour, **details)
            try:
                assert numbers(await share()) == list(range(60))
                # Whoever comes next goes on behind that, or where it wants to.
                await publish(cluster, topic, 60, 1)
                async with Consumer(cluster.directory, "bob", group=group) as consumer:
                    consumer.subscribe([topic], start="begin")
                    (last,) = await next_records(consumer, 1)
                    assert last.value == b"60"
                    consumer.seek(topic, last.partition, 0)
                    again = await next_records(consumer, 2)
                    assert [record.offset for record in again] == [0, 1]
                    await consumer.commit()
            finally:
                await admin.misbehave(liar, "behave")
            state = await alike(admin, 4)
        offsets = [each["offset"] for each in state["groups"][f"bob/{group}"]["partitions"]]
        assert offsets[last.partition] == 2

    asyncio.run(story())


@pytest.mark.parametrize("field", ["content", "sequence", "topic", "reply"])
def test_members_and_operators_do_as_usual_while_a_replica_lies_about_the_control_plane(
    cluster: TestCluster, field: str
) -> None:
    topic = group = f"despite-{field}"

    async def story() -> None:
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.misbehave("r1", "lie", percent=100.0, fields=[field])
            try:
                # A command is answered with what became of it, and so is one that is refused.
                await admin.create_topic(topic, {"order": "total", "partitions": 2})
                with pytest.raises(RefusedError, match=f"there is a topic '{topic}' already"):
                    await admin.create_topic(topic, {"order": "total"})
                await admin.alter_topic(topic, {"partitions": 4})
                known = await admin.learn_topology()
                assert known.topics[topic].partitions == 4
                # A member reads all that is its own, and nothing else is.
                await publish(cluster, topic, 0, 20)
                async with Consumer(cluster.directory, "bob", group=group) as consumer:
                    consumer.subscribe([topic], start="begin")
                    assert numbers(await next_records(consumer, 20)) == list(range(20))
                    assert sorted(consumer.assignment()) == [(topic, number) for number in range(4)]
                    await consumer.commit()
                # Whoever comes next goes on behind that.
                await publish(cluster, topic, 20, 1)
                async with Consumer(cluster.directory, "bob", group=group) as consumer:
                    consumer.subscribe([topic], start="begin")
                    assert numbers(await next_records(consumer, 1)) == [20]
            finally:
                await admin.misbehave("r1", "behave")

    asyncio.run(story())


def test_what_a_program_is_busy_with_comes_again_if_it_never_asked_for_more(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        await created(cluster, "busy", order="total")
        await publish(cluster, "busy", 0, 4)
        async with Consumer(cluster.directory, "bob", group="busy") as consumer:
            consumer.subscribe(["busy"], start="begin")
            first = [await consumer.poll(10), await consumer.poll(10)]
        # The second record was handed out, and nobody came back for another one.
        assert [each and each.value for each in first] == [b"0", b"1"]
        async with Consumer(cluster.directory, "bob", group="busy") as consumer:
            consumer.subscribe(["busy"], start="begin")
            assert [each.value for each in await next_records(consumer, 3)] == [b"1", b"2", b"3"]

    asyncio.run(story())


def test_without_auto_commit_nothing_is_committed_but_by_the_program(cluster: TestCluster) -> None:
    async def story() -> None:
        await created(cluster, "by-hand", order="total")
        await publish(cluster, "by-hand", 0, 4)
        for _ in range(2):
            async with Consumer(
                cluster.directory, "bob", group="by-hand", auto_commit_s=None
            ) as consumer:
                consumer.subscribe(["by-hand"], start="begin")
                found = await next_records(consumer, 4)
                assert [each.value for each in found] == [b"0", b"1", b"2", b"3"]
        async with Consumer(
            cluster.directory, "bob", group="by-hand", auto_commit_s=None
        ) as consumer:
            consumer.subscribe(["by-hand"], start="begin")
            await next_records(consumer, 2)
            consumer.seek("by-hand", 0, 3)
            await consumer.commit()
        async with Consumer(cluster.directory, "bob", group="by-hand") as consumer:
            consumer.subscribe(["by-hand"], start="begin")
            assert [each.value for each in await next_records(consumer, 1)] == [b"3"]

    asyncio.run(story())


def test_groups_are_for_log_topics_and_commits_for_groups(cluster: TestCluster) -> None:
    async def story() -> None:
        async with Consumer(cluster.directory, "bob", group="ops") as consumer:
            with pytest.raises(LocalProtocolError, match="groups are for log topics"):
                consumer.subscribe(["live"])
        async with Consumer(cluster.directory, "bob") as consumer:
            with pytest.raises(LocalProtocolError, match="only a member of a group commits"):
                await consumer.commit()

    asyncio.run(story())


def test_a_script_without_an_event_loop_is_a_member_of_a_group_too(cluster: TestCluster) -> None:
    asyncio.run(created(cluster, "script", order="total"))
    asyncio.run(publish(cluster, "script", 0, 3))
    with BlockingConsumer(cluster.directory, "bob", group="script") as consumer:
        consumer.subscribe(["script"], start="begin")
        first = [consumer.poll(10), consumer.poll(10)]
        consumer.commit()
    assert [each and each.value for each in first] == [b"0", b"1"]
    with BlockingConsumer(cluster.directory, "bob", group="script") as consumer:
        consumer.subscribe(["script"], start="begin")
        last = consumer.poll(10)
    assert last is not None
    assert last.value == b"2"


def test_a_group_is_its_partys_which_lets_others_in_and_resets_it(cluster: TestCluster) -> None:
    async def story() -> None:
        await created(cluster, "owned", order="total")
        await publish(cluster, "owned", 0, 4)
        async with Consumer(cluster.directory, "bob", group="owned", auto_commit_s=None) as mine:
            mine.subscribe(["owned"], start="begin")
            await next_records(mine, 2)
            await mine.commit(metadata="half", epoch=3)
        async with Admin(cluster.directory, OPERATOR) as admin:
            async with Consumer(cluster.directory, "carol", group="bob/owned") as other:
                other.subscribe(["owned"], start="begin")
                with pytest.raises(RefusedError, match="not on its access list"):
                    await other.subscribed()
            await admin.let_in("bob/owned", ["carol"])
            async with Consumer(cluster.directory, "carol", group="bob/owned") as other:
                other.subscribe(["owned"], start="begin")
                (record,) = await next_records(other, 1)
                committed = other.committed("owned", 0)
                assert committed == Committed(record.offset or 0, 3, "half")
            described = (await admin.groups())["bob/owned"]
            assert described["access"] == ["carol"]

            # Nobody checks a commit against the end of the log but the member that begins there.
            await admin.reset_group("bob/owned", [("owned", 0, 10**12)])
            async with Consumer(cluster.directory, "bob", group="owned") as mine:
                mine.subscribe(["owned"], start="begin")
                await mine.subscribed()
                await publish(cluster, "owned", 4, 1)
                assert numbers(await next_records(mine, 1)) == [4]
                assert mine.counters["clamped"] == 1
            await admin.delete_group("bob/owned")
            assert "bob/owned" not in await admin.groups()

    asyncio.run(story())


def test_groups_are_listed_shared_reset_and_deleted_on_the_command_line(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        await created(cluster, "listed", order="total")
        async with Consumer(cluster.directory, "bob", group="listed") as consumer:
            consumer.subscribe(["listed"], start="begin")
            await consumer.subscribed()

    asyncio.run(story())
    where = ("--directory", cluster.directory)
    allowed = quorate("group", "allow", "bob/listed", "carol", *where)
    assert allowed.out == "Group bob/listed lets in its own party and carol.\n"
    quorate("group", "reset", "bob/listed", "--offset", "listed:0@17", *where)
    found = json.loads(quorate("group", "list", "--json", *where).out)["bob/listed"]
    assert (found["access"], found["partitions"][0]["offset"]) == (["carol"], 17)
    assert "listed:0@17" in quorate("group", "list", *where).out
    assert quorate("group", "reset", "bob/listed", "--offset", "17", *where).code == 2
    assert quorate("group", "delete", "bob/listed", *where).out == "Deleted group bob/listed.\n"
    again = quorate("group", "delete", "bob/listed", *where)
    assert "there is no group 'bob/listed'" in again.err


def test_a_producer_raises_what_replicas_say_to_a_stream_that_nobody_remembers(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        await created(cluster, "resumed", order="total")
        async with ResumingProducer(
            cluster.directory, "alice", session=77, secret=bytes(32)
        ) as producer:
            await producer.go_on_with("resumed", 0, 7)
            for _ in range(2):
                with pytest.raises(RefusedError, match="session 77 of client .* has ended"):
                    await producer.send("resumed", b"late")
        await publish(cluster, "resumed", 0, 1)

    asyncio.run(story())
