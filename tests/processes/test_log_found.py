"""What the tests of log topics have found wrong, each in the smallest case that shows it.

A test leaves this file for the one that it belongs to when what it shows is put right.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clusters import TestCluster, running_cluster, until
from council import READER, A, Council
from logs import LogTraffic, next_records
from quorate.client import Admin, Consumer, Producer
from quorate.client.consumer import Start
from quorate.core.errors import LocalProtocolError, QuorateError
from quorate.core.ids import NodeId, topic_id
from quorate.core.messages import Message
from quorate.core.ordering import BEGIN_US, Decision, Locate, Located, Standing
from quorate.protocol.destination import Destination
from quorate.protocol.machine import Ready
from quorate.protocol.ordering.records import Record as DiskRecord
from quorate.protocol.ordering.records import Voted
from quorate.runtime import launcher
from quorate.runtime.driver import Driver
from quorate.runtime.local import OPERATOR
from quorate.storage.columns import Column, Extent
from quorate.storage.errors import DiskFullError
from quorate.storage.files import Files
from stage import pairwise_macs, topic
from traffic import eventually

pytestmark = pytest.mark.xdist_group("processes")

TOPICS = {
    "log": {"order": "total", "protection": "byzantine"},
    "other": {"order": "total", "protection": "byzantine"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    clients = ("alice", "bob", "carol", "dave")
    with running_cluster(topics=TOPICS, clients=clients) as running:
        asyncio.run(publish(running, "log", 20))
        yield running


async def publish(cluster: TestCluster, topic: str, count: int) -> None:
    async with Producer(cluster.directory, "alice", batch_events=1) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number)


def offsets(records: Iterable[object]) -> list[object]:
    return [getattr(record, "offset", None) for record in records]


# A disk that is full


def test_a_column_can_be_flushed_again_while_it_is_handled_that_there_was_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`DiskStore.clean` does this: it gives back the reserve and tries again.

    A slice of the buffer is still exported then, by the frame that the error holds.
    """
    column = Column(Files(4), str(tmp_path / "column"), 8, Extent(0, 0, 0))
    column.append(bytes(8))
    with monkeypatch.context() as patched:
        patched.setattr(Files, "write", _no_room)
        with pytest.raises(DiskFullError) as error:
            column.flush()
    assert error.value.retriable
    column.append(bytes(8))
    column.flush()
    assert column.read(0, 2) == bytes(16)


def _no_room(*_: object) -> None:
    raise DiskFullError("there is no room, on purpose")


class Talkative:
    """A machine that says where it is whenever it is ticked, and writes once."""

    def __init__(self) -> None:
        self.ready = Ready(persist=[Voted(1, 1, 1, 0, b"", {}, [])])

    def step(self, sender: NodeId, message: Message) -> None: ...

    def tick(self, now_us: int) -> None:
        self.ready.send.append((1, Standing(1, 1, 1, True, 0)))

    def connected(self, peer: NodeId) -> None: ...

    def disconnected(self, peer: NodeId) -> None: ...

    def writable(self, peer: NodeId, writable: bool) -> None: ...

    def take(self) -> Ready:
        ready, self.ready = self.ready, Ready()
        return ready


class Full:
    """A disk without room, until there is some."""

    syncs = False

    def __init__(self) -> None:
        self.is_full = True

    def append(self, records: list[DiskRecord]) -> None:
        if self.is_full:
            raise DiskFullError("there is no room, on purpose")

    def sync(self) -> None: ...


class Wire:
    """Counts what is sent."""

    def __init__(self) -> None:
        self.sent = 0

    def buffered_bytes(self, peer: NodeId) -> int:
        return 0

    def send(self, peer: NodeId, frames: list[bytes]) -> None:
        self.sent += len(frames)


def test_what_a_machine_says_while_the_disk_is_full_does_not_pile_up() -> None:
    """About 75 messages a second do, and every `Standing` among them is then answered with half a
    megabyte of decisions by every other replica: after 12 s of a full disk, nobody decides anything
    for 4 s.
    """

    async def story() -> int:
        machine, disk, wire = Talkative(), Full(), Wire()
        driver = Driver(machine, disk=disk)
        driver.start(wire)  # type: ignore[arg-type]
        for _ in range(1000):
            driver.wake()
            await asyncio.sleep(0)
        assert driver.disk_full
        disk.is_full = False

        async def has_room() -> bool:
            return not driver.disk_full

        await eventually(has_room)
        driver.stop()
        return wire.sent

    assert asyncio.run(story()) < 20


def test_a_replica_that_says_a_hundred_times_where_it_is_is_not_told_everything_as_often() -> None:
    # Given five decided slots, of which replica 3 says that it knows none,
    council = Council(byzantine={3})
    for sequence in range(1, 6):
        council.publish(A, sequence)
        council.settle()
    assert not council.messages(Decision, receiver=3)
    # when it says so over and over, in no time at all,
    for _ in range(100):
        council.say(3, [0], Standing(council.number, 1, 1, True, 0))
    # then once is often enough to answer. A slot may have up to a megabyte.
    assert len(council.messages(Decision, sender=0, receiver=3)) <= 10


# Reading


@pytest.mark.parametrize("start", ["begin", datetime(1990, 1, 1, tzinfo=UTC)])
def test_after_a_seek_nothing_comes_from_where_the_consumer_was_before(
    cluster: TestCluster, start: Start
) -> None:
    async def story() -> None:
        async with LogTraffic(cluster.directory, "other", readers=["carol"]) as traffic:
            traffic.flow()
            await traffic.passed(20)
            async with Consumer(cluster.directory, "dave") as consumer:
                consumer.subscribe(["other"], start="begin")
                await next_records(consumer, 20)
                for _ in range(10):
                    consumer.seek("other", 0, start)
                    # Until the replicas have said where that is, the old reading goes on.
                    found = offsets(await next_records(consumer, 15))
                    assert found == list(range(15))

    asyncio.run(story())


@pytest.mark.parametrize("offset", [-1, True, 2**64])
def test_an_offset_that_cannot_be_is_refused_with_a_sentence(
    cluster: TestCluster, offset: int
) -> None:
    """Now replicas take -1 and True for an offence and close the link, and 2**64 kills the turn in
    which it was to be sent."""

    async def story() -> None:
        async with Consumer(cluster.directory, "bob") as consumer:
            with pytest.raises(LocalProtocolError, match="allowed are 'begin', 'end', an offset"):
                consumer.subscribe(["log"], start=offset)

    asyncio.run(story())


@pytest.mark.parametrize(("partition", "start"), [(7, 0), (0, "now")])
def test_a_consumer_goes_on_after_a_seek_that_was_refused(
    cluster: TestCluster, partition: int, start: Start
) -> None:
    """Now it waits for the first offset of a partition that nobody asked for."""

    async def story() -> None:
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe(["log"], start="begin")
            before = await next_records(consumer, 3)
            with pytest.raises(LocalProtocolError):
                consumer.seek("log", partition, start)
            after = await next_records(consumer, 3)
            assert offsets(before + after) == [0, 1, 2, 3, 4, 5]

    asyncio.run(story())


def test_a_consumer_reads_another_topic_after_giving_back_one_that_had_not_begun(
    cluster: TestCluster,
) -> None:
    async def story() -> None:
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe(["other"], start="begin")
            await consumer.unsubscribe("other")
            consumer.subscribe(["log"], start="begin")
            assert {record.topic for record in await next_records(consumer, 3)} == {"log"}

    asyncio.run(story())


@pytest.mark.parametrize("gives_back", [True, False])
def test_who_subscribes_again_from_somewhere_else_reads_from_there(
    cluster: TestCluster, gives_back: bool
) -> None:
    """Now what is queued comes first: 3 and 4 from the old place, and 10 and on twice."""

    async def story() -> None:
        async with Consumer(cluster.directory, "bob") as consumer:
            consumer.subscribe(["log"], start="begin")
            await next_records(consumer, 3)
            if gives_back:
                await consumer.unsubscribe("log")
            consumer.subscribe(["log"], start=10)
            assert offsets(await next_records(consumer, 5)) == [10, 11, 12, 13, 14]

    asyncio.run(story())


def test_a_reader_asks_a_replica_where_to_begin_as_soon_as_there_is_a_link() -> None:
    """It asks at its first tick, before any link is up, and then not for 400 ms: so long does every
    consumer take to begin that names no offset."""
    log = topic({"protection": "byzantine", "order": "total"})
    reader = Destination(READER, [log], pairwise_macs(READER), [A])
    reader.read_from_time(log.name, 0, BEGIN_US)
    reader.tick(0)
    reader.take()
    for replica in log.members:
        reader.connected(replica)
    asked = {node for node, message in reader.take().send if isinstance(message, Locate)}
    assert asked == set(log.members)


class Surveyor(Admin):
    """Asks each replica by itself which offset is the first that it keeps."""

    async def start(self) -> None:
        self.starts: dict[NodeId, int] = {}
        self._handlers |= {Located: self._on_located}
        await super().start()

    def _on_located(self, sender: NodeId, located: Located) -> None:
        self.starts[sender] = located.offset

    async def survey(self, topic: str) -> dict[NodeId, int]:
        for replica in self.cluster.placement(topic):
            await self.driver.until_connected(replica)
            self.driver.send(replica, Locate(topic_id(topic), 0, 0, BEGIN_US))
        return self.starts


def test_a_consumer_that_wants_what_is_not_kept_any_more_is_not_left_waiting() -> None:
    """All replicas say that they do not have it, and it asks one after the other for ever. So does
    a slow consumer that retention overtakes."""
    short = {"log": {"order": "total", "protection": "byzantine", "retention_bytes": 5000}}
    with running_cluster(topics=short) as cluster:

        async def fill() -> None:
            async with Producer(cluster.directory, "alice", batch_events=1) as producer:
                for _ in range(20):
                    await producer.send("log", bytes(1000))
            async with Surveyor(cluster.directory, OPERATOR) as surveyor:
                await eventually(
                    lambda: surveyor.survey("log"),
                    lambda starts: len(starts) == 4 and all(starts.values()),
                )

        async def read() -> None:
            async with Consumer(cluster.directory, "bob") as consumer:
                consumer.subscribe(["log"], start=0)
                # A sentence would do as well.
                with contextlib.suppress(QuorateError):
                    record = await consumer.poll(timeout_s=10)
                    assert record is not None, dict(consumer.reports)

        asyncio.run(fill())
        # Replicas that have just started have nothing left in memory, either.
        cluster.launcher.stop_all()
        cluster.launcher.start_all()
        asyncio.run(read())


# Processes

# Its first thread ends, and another one goes on, as when a process with threads is killed.
HALF_GONE = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this looks at /proc")
def test_a_process_has_ended_when_all_its_threads_have() -> None:
    """`Launcher.stop` returns too early otherwise, and the next `start` says that the replica is
    running already, or finds its directory locked."""
    process = subprocess.Popen([sys.executable, "-c", HALF_GONE])
    try:
        until(lambda: _state(process.pid) == "Z")
        assert process.poll() is None
        assert not launcher._has_ended(process.pid)
    finally:
        process.kill()
        process.wait()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
