"""The blocking clients, against real replicas: from scripts, threads and running event loops."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pyarrow
import pytest

from clusters import TestCluster, running_cluster
from quorate.client import BlockingConsumer, BlockingProducer, Record
from quorate.core.errors import ClosedError, ConfigError, LocalProtocolError, RefusedError
from quorate.core.event import Event

pytestmark = pytest.mark.xdist_group("processes")

TOPICS: dict[str, dict[str, object]] = {
    "news": {"protection": "byzantine", "broadcast": "vote", "order": "fifo"},
    "private": {"protection": "crash", "publish": ["bob"], "subscribe": ["bob"]},
}
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as made:
        yield made


@pytest.fixture
def producer(cluster: TestCluster) -> Iterator[BlockingProducer]:
    with BlockingProducer(cluster.directory, "alice") as made:
        yield made


@pytest.fixture
def consumer(cluster: TestCluster) -> Iterator[BlockingConsumer]:
    with BlockingConsumer(cluster.directory, "bob") as made:
        yield made


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]


def take(consumer: BlockingConsumer, count: int) -> list[Record]:
    """So many records, one by one."""
    records = [consumer.poll(PATIENCE_S) for _ in range(count)]
    return [record for record in records if record is not None]


def test_what_one_sends_the_other_polls(
    producer: BlockingProducer, consumer: BlockingConsumer
) -> None:
    consumer.subscribe(["news"])

    receipt = producer.send("news", b"hello", key=b"k", headers=[("level", b"high")])

    record = consumer.poll(PATIENCE_S)
    assert record is not None
    assert (record.value, record.key, record.headers) == (b"hello", b"k", (("level", b"high"),))
    assert (receipt.topic, receipt.events) == ("news", 1)
    assert len(receipt.replicas) >= 2
    assert consumer.poll(0.01) is None


def test_batches_and_values_arrive_in_their_order(
    producer: BlockingProducer, consumer: BlockingConsumer
) -> None:
    consumer.subscribe(["news"])
    assert producer.send_batch("news", (Event(None, b"%d" % i) for i in range(3))).events == 3
    assert producer.send_values("news", [b"3", b"4"]).events == 2
    producer.flush()

    first = consumer.poll_many(2, PATIENCE_S)
    rest = take(consumer, 5 - len(first))

    assert 1 <= len(first) <= 2
    assert values([*first, *rest]) == [b"0", b"1", b"2", b"3", b"4"]


def test_iteration_goes_on_for_as_long_as_records_come(
    producer: BlockingProducer, consumer: BlockingConsumer
) -> None:
    consumer.subscribe(["news"])
    producer.send_values("news", [b"a", b"b"])
    producer.send("news", b"c")

    found = [record for _, record in zip(range(3), consumer, strict=False)]

    assert values(found) == [b"a", b"b", b"c"]


def test_a_table_goes_in_and_comes_out(
    producer: BlockingProducer, consumer: BlockingConsumer
) -> None:
    consumer.subscribe(["news"])
    table = pyarrow.table({"value": pyarrow.array([b"x", b"y", b"z"], pyarrow.binary())})

    receipts = producer.send_table("news", table, rows_max=2)

    assert [receipt.events for receipt in receipts] == [2, 1]
    rows: list[bytes] = []
    while len(rows) < 3:
        found = consumer.poll_table(PATIENCE_S)
        assert found is not None
        rows += found["value"].to_pylist()
    assert rows == [b"x", b"y", b"z"]


def test_only_what_passes_the_filter_comes(
    producer: BlockingProducer, consumer: BlockingConsumer
) -> None:
    consumer.subscribe(["news"], key_prefix=b"host-")

    producer.send("news", b"no", key=b"router-1")
    producer.send("news", b"yes", key=b"host-1")

    assert values(take(consumer, 1)) == [b"yes"]


def test_a_refusal_is_raised_where_it_is_asked_for(
    producer: BlockingProducer, cluster: TestCluster
) -> None:
    with pytest.raises(RefusedError):
        producer.register("private")
    with BlockingConsumer(cluster.directory, "alice") as other, pytest.raises(RefusedError):
        other.subscribe(["private"])


def test_misuse_is_told_in_the_callers_thread(
    consumer: BlockingConsumer, cluster: TestCluster
) -> None:
    with pytest.raises(ConfigError, match="no topic 'nosuch'"):
        consumer.subscribe(["nosuch"])
    with pytest.raises(LocalProtocolError, match="subscribe to a topic before reading"):
        consumer.poll(0.01)
    before = loop_threads()
    with pytest.raises(ConfigError, match="no member named 'carol'"):
        BlockingProducer(cluster.directory, "carol")
    assert loop_threads() == before


def test_it_works_where_an_event_loop_runs_already(cluster: TestCluster) -> None:
    async def cell_of_a_notebook() -> Record | None:
        with (
            BlockingConsumer(cluster.directory, "bob") as consumer,
            BlockingProducer(cluster.directory, "alice") as producer,
        ):
            consumer.subscribe(["news"])
            producer.send("news", b"from a notebook")
            return consumer.poll(PATIENCE_S)

    record = asyncio.run(cell_of_a_notebook())

    assert record is not None
    assert record.value == b"from a notebook"


def test_several_threads_may_use_one_producer(
    producer: BlockingProducer, consumer: BlockingConsumer
) -> None:
    consumer.subscribe(["news"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: producer.send("news", b"%d" % i), range(20)))

    assert sorted(values(take(consumer, 20)), key=int) == [b"%d" % i for i in range(20)]


def test_control_c_ends_the_wait_and_nothing_else(
    producer: BlockingProducer, consumer: BlockingConsumer
) -> None:
    consumer.subscribe(["news"])

    with pytest.raises(KeyboardInterrupt), control_c_soon():
        consumer.poll(PATIENCE_S)

    producer.send("news", b"after all")
    assert values(take(consumer, 1)) == [b"after all"]


def test_control_c_does_not_wait_for_receipts_that_cannot_come(cluster: TestCluster) -> None:
    before = loop_threads()
    with pytest.raises(KeyboardInterrupt):
        send_to_nobody(cluster)
    assert loop_threads() == before


def test_after_close_every_call_says_so_and_the_thread_is_gone(cluster: TestCluster) -> None:
    before = loop_threads()
    producer = BlockingProducer(cluster.directory, "alice")
    assert loop_threads() != before

    producer.register("news")
    producer.close()
    producer.close()

    assert loop_threads() == before
    with pytest.raises(ClosedError, match="this BlockingProducer is closed"):
        producer.send("news", b"late")


def test_it_can_be_closed_before_it_has_connected(cluster: TestCluster) -> None:
    before = loop_threads()

    BlockingConsumer(cluster.directory, "bob").close()

    assert loop_threads() == before


def test_whoever_waits_in_another_thread_hears_of_the_close(cluster: TestCluster) -> None:
    consumer = BlockingConsumer(cluster.directory, "bob")
    consumer.subscribe(["news"])
    waiting = threading.Event()

    def wait() -> Record | None:
        waiting.set()
        return consumer.poll()

    with ThreadPoolExecutor(1) as pool:
        polled = pool.submit(wait)
        waiting.wait(PATIENCE_S)
        consumer.close()

        with pytest.raises(ClosedError):
            polled.result(PATIENCE_S)


def send_to_nobody(cluster: TestCluster) -> None:
    with BlockingProducer(cluster.directory, "alice") as producer:
        producer.register("news")
        for name in cluster.names:
            cluster.launcher.stop(name, kill=True)
        try:
            with control_c_soon():
                producer.send("news", b"to nobody")
        finally:
            cluster.revive()


def loop_threads() -> set[int | None]:
    threads = threading.enumerate()
    return {thread.ident for thread in threads if thread.name.startswith("quorate")}


class control_c_soon:  # noqa: N801
    """Raises KeyboardInterrupt in the main thread, wherever in the block that is by then."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    @staticmethod
    def _interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt
