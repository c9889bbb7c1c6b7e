"""What is staged is published once, though whoever publishes it is killed again and again."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow
import pytest

from clusters import TestCluster, quorate, running_cluster
from quorate.client.ranges import RangeReader
from quorate.core.batch import Batch
from quorate.core.errors import ConfigError, RefusedError
from quorate.pipeline.options import SinkOptions
from quorate.pipeline.publishing import NOTE_EVERY, publish
from quorate.pipeline.staging import Manifest, Staging

pytestmark = pytest.mark.xdist_group("processes")

PLAIN, PROVEN, CLOSED, LOST = "plain", "proven", "closed", "lost"
BOTH, EMPTY = "both", "empty"
TOPICS: dict[str, dict[str, object]] = {
    PLAIN: {"order": "total", "partitions": 2},
    PROVEN: {"order": "total", "validated": True, "event_proofs": True},
    CLOSED: {"order": "total", "publish": ["bob"]},
    LOST: {"order": "total"},
    BOTH: {"order": "total"},
    EMPTY: {"order": "total"},
}
QUERY = "query"
# More than are noted at a time, so that the notes matter.
PARTS, ROWS = 600, 3
CHILD = """
import sys
from quorate.pipeline.options import sink_options
from quorate.pipeline.publishing import publish
from quorate.pipeline.staging import Staging
cluster, staging, batch, *files = sys.argv[1:]
options = sink_options({"cluster": cluster, "identity": "alice", "staging": staging})
publish(options, Staging(staging, "query"), int(batch), files)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as running:
        yield running


def value_of(topic: str, number: int) -> bytes:
    """Large enough that batches are ordered a few at a time."""
    return f"{topic} {number}".encode().ljust(8192)


def part(topic: str, partition: int, start: int, rows: int = ROWS) -> pyarrow.RecordBatch:
    values = [value_of(topic, start + at) for at in range(rows)]
    return pyarrow.RecordBatch.from_pydict(
        {"value": values, "topic": [topic] * rows, "partition": [partition] * rows}
    )


def options(cluster: TestCluster, staging: Path) -> SinkOptions:
    return SinkOptions(cluster=str(cluster.directory), identity="alice", staging=str(staging))


def values_on(cluster: TestCluster, topic: str, partition: int = 0) -> list[bytes]:
    async def read() -> list[bytes]:
        async with RangeReader(cluster.directory, "bob") as reader:
            begin, end = await reader.bounds(topic, partition)
            return [
                value
                async for found in reader.read(topic, partition, begin, end)
                for batch in found
                for value in Batch(batch.payload or b"").values()
            ]

    return asyncio.run(read())


def test_a_publisher_that_is_killed_again_and_again_has_published_each_row_once(
    cluster: TestCluster, tmp_path: Path
) -> None:
    staging = Staging(str(tmp_path), QUERY)
    parts = [part(PROVEN, 0, number * ROWS) for number in range(PARTS)]
    files = [staging.write(7, iter(parts[:250])), staging.write(7, iter(parts[250:]))]
    command = [sys.executable, "-c", CHILD, str(cluster.directory), str(tmp_path), "7", *files]

    async def kill_at(through: int, reader: RangeReader) -> int:
        """Start it, and kill it when so many events are ordered; says how many were."""
        child = subprocess.Popen(command, stderr=subprocess.PIPE)  # noqa: ASYNC220
        try:
            while (ended := await reader.end(PROVEN, 0)) < through:
                assert child.poll() is None, "it ended before it could be killed"
            return ended
        finally:
            child.kill()
            child.communicate()

    async def kill_again_and_again() -> list[int]:
        async with RangeReader(cluster.directory, "bob") as reader, asyncio.timeout(60):
            return [
                await kill_at(through, reader)
                for through in (1, 100 * ROWS, 290 * ROWS, 530 * ROWS)
            ]

    killed_at = asyncio.run(kill_again_and_again())
    assert any(0 < events < PARTS * ROWS for events in killed_at)
    for _ in range(2):
        # Once to the end, and once more because nobody knows that it is there.
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    assert values_on(cluster, PROVEN) == [value_of(PROVEN, n) for n in range(PARTS * ROWS)]
    # Nothing waits any more, also of what others had staged.
    assert [path.name for path in (tmp_path / QUERY).iterdir()] == ["state.json"]


def test_a_batch_stays_what_it_was_when_it_was_first_committed(
    cluster: TestCluster, tmp_path: Path
) -> None:
    staging = Staging(str(tmp_path), QUERY)
    first = staging.write(0, iter([part(PLAIN, 1, 0), part(PLAIN, 0, 100)]))
    publish(options(cluster, tmp_path), staging, 0, [first])
    again = staging.write(0, iter([part(PLAIN, 1, 500)]))
    publish(options(cluster, tmp_path), staging, 0, [again])
    later = staging.write(1, iter([part(PLAIN, 1, 3)]))
    publish(options(cluster, tmp_path), staging, 1, [later])

    assert values_on(cluster, PLAIN, 1) == [value_of(PLAIN, n) for n in range(6)]
    assert values_on(cluster, PLAIN, 0) == [value_of(PLAIN, n) for n in range(100, 103)]


class Late(Staging):
    """Sees no manifest, as one who looked just before another driver wrote it."""

    def manifest(self, batch: int) -> Manifest | None:
        return None


def test_of_two_drivers_that_commit_at_the_same_time_both_publish_what_one_of_them_has(
    cluster: TestCluster, tmp_path: Path
) -> None:
    staging, late = Staging(str(tmp_path), QUERY), Late(str(tmp_path), QUERY)
    mine = staging.write(0, iter([part(BOTH, 0, 0)]))
    theirs = late.write(0, iter([part(BOTH, 0, 500)]))
    began = staging.begin(Manifest(batch=0, time_us=1, files=[mine], next={}))

    publish(options(cluster, tmp_path), late, 0, [theirs])

    assert began.files == [mine]
    assert values_on(cluster, BOTH) == [value_of(BOTH, n) for n in range(ROWS)]


def test_a_batch_without_rows_needs_no_cluster_but_what_was_begun_is_published(
    cluster: TestCluster, tmp_path: Path
) -> None:
    nowhere = SinkOptions(cluster="nowhere", identity="alice", staging=str(tmp_path))
    staging = Staging(str(tmp_path), QUERY)
    publish(nowhere, staging, 0, [])
    assert list(tmp_path.iterdir()) == []

    begun = staging.write(1, iter([part(EMPTY, 0, 0)]))
    staging.begin(Manifest(batch=1, time_us=1, files=[begun], next={}))
    publish(options(cluster, tmp_path), staging, 1, [])

    assert values_on(cluster, EMPTY) == [value_of(EMPTY, n) for n in range(ROWS)]


def test_who_a_query_is_stays_as_the_first_of_two_said(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as drivers:
        states = drivers.map(lambda _: Staging(str(tmp_path), QUERY).state("local"), range(32))

    assert len({state.session for state in states}) == 1
    assert [path.name for path in (tmp_path / QUERY).iterdir()] == ["state.json"]


def test_what_may_not_be_published_waits_until_it_may(cluster: TestCluster, tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), QUERY)
    name = staging.write(0, iter([part(CLOSED, 0, 0)]))

    with pytest.raises(RefusedError, match="alice may not publish on 'closed'"):
        publish(options(cluster, tmp_path), staging, 0, [name])

    assert staging.manifest(0) is not None
    assert (tmp_path / QUERY / name).exists()


class Interrupted(Staging):
    """Does something in the middle, when some of what is staged has its receipts."""

    def __init__(self, directory: str, do: Callable[[], object]) -> None:
        super().__init__(directory, QUERY)
        self._do = do

    def parts(self, manifest: Manifest) -> Iterator[pyarrow.RecordBatch]:
        for number, part in enumerate(super().parts(manifest)):
            if number == NOTE_EVERY + 1:
                with ThreadPoolExecutor(1) as other:
                    other.submit(self._do).result()
            yield part


def test_what_may_be_published_no_more_is_refused_and_goes_on_when_it_may(
    cluster: TestCluster, tmp_path: Path
) -> None:
    def allow(*names: str) -> object:
        return quorate(
            "topic", "alter", LOST, f"publish={','.join(names)}", "-d", cluster.directory
        )

    parts = [part(LOST, 0, number * ROWS) for number in range(NOTE_EVERY + 40)]
    name = Staging(str(tmp_path), QUERY).write(0, iter(parts))
    impatient = msgspec.structs.replace(options(cluster, tmp_path), timeout_s=1.0)

    with pytest.raises(RefusedError, match="alice may not publish on 'lost'; bob may"):
        publish(impatient, Interrupted(str(tmp_path), lambda: allow("bob")), 0, [name])
    assert NOTE_EVERY * ROWS <= len(values_on(cluster, LOST)) < len(parts) * ROWS
    allow("alice,bob")
    publish(options(cluster, tmp_path), Staging(str(tmp_path), QUERY), 0, [name])

    assert values_on(cluster, LOST) == [value_of(LOST, n) for n in range(len(parts) * ROWS)]


def test_a_query_stays_with_its_cluster(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), QUERY)
    staging.state("one")

    with pytest.raises(ConfigError, match="published on cluster one, and this is cluster other"):
        staging.state("other")
