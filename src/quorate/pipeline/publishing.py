"""Publishing what is staged: the driver's part of the sink, which may be killed at any point.

A batch of a query is published from its manifest (`staging.py`), in one order, with numbers that
follow from it. Whoever comes after a crash hands in again what has no receipt on record, and
replicas recognise what they have. Between two notes of how far it is, no more batches are under way
than replicas remember the positions of.
"""

import asyncio
import time

import msgspec
import pyarrow

from quorate.client.producer import Receipt, await_future
from quorate.client.resuming import ResumingProducer
from quorate.client.session import resolve
from quorate.core.errors import QuorumError
from quorate.core.table import from_table
from quorate.pipeline.options import SinkOptions
from quorate.pipeline.staging import Manifest, Numbers, Progress, Staging, State
from quorate.runtime.loop import loop_factory

# So many batches are published between two notes of how far it is.
NOTE_EVERY = 256
FIRST_NUMBER = 1


def publish(options: SinkOptions, staging: Staging, batch: int, files: list[str]) -> None:
    """Have a batch published that has these files, unless it is published, or known as another."""
    if not files and staging.manifest(batch) is None:
        # Most batches of a query that looks for something rare: nobody need be connected with.
        return
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_Publishing(options, staging).publish(batch, files))


class _Publishing:
    """One batch of a query on its way to its topics."""

    def __init__(self, options: SinkOptions, staging: Staging) -> None:
        self._options = options
        self._staging = staging

    async def publish(self, batch: int, files: list[str]) -> None:
        """Have this batch published, whether or not somebody began to."""
        at = self._options.cluster, self._options.identity
        state = self._staging.state(resolve(*at)[0].full_name)
        if batch <= state.batch:
            # It is, and tasks ran again because nobody knew.
            self._staging.collect(state.batch)
            return
        manifest = self._manifest(state, batch, files)
        async with ResumingProducer(
            *at, session=state.session, secret=state.secret, timeout_s=self._options.timeout_s
        ) as producer:
            producer.time_us = manifest.time_us
            try:
                numbers = await self._send(producer, manifest)
            except QuorumError:
                # Perhaps there is more to say than that nobody answers.
                await producer.require_permission()
                raise
        self._staging.end(msgspec.structs.replace(state, batch=batch, next=numbers))

    def _manifest(self, state: State, batch: int, files: list[str]) -> Manifest:
        known = self._staging.manifest(batch)
        if known is not None:
            return known
        now_us = time.time_ns() // 1000
        return self._staging.begin(
            Manifest(batch=batch, time_us=now_us, files=files, next=state.next)
        )

    async def _send(self, producer: ResumingProducer, manifest: Manifest) -> Numbers:
        """Hand in what has no receipt on record; says which numbers come next."""
        progress = self._staging.progress(manifest.batch) or Progress(next=manifest.next)
        numbers = {topic: dict(each) for topic, each in progress.next.items()}
        begun: set[tuple[str, int]] = set()
        under_way: list[asyncio.Future[Receipt]] = []
        for done, part in enumerate(self._staging.parts(manifest), 1):
            if done <= progress.done:
                continue
            topic, partition = part.column("topic")[0].as_py(), part.column("partition")[0].as_py()
            of_topic = numbers.setdefault(topic, {})
            number = of_topic.get(partition, FIRST_NUMBER)
            if (topic, partition) not in begun:
                await producer.go_on_with(topic, partition, number)
                begun.add((topic, partition))
            of_topic[partition] = number + 1
            under_way.append(
                await producer.submit_payload(
                    topic, self._payload(part, manifest), part.num_rows, partition=partition
                )
            )
            if len(under_way) >= NOTE_EVERY:
                await _receipts(under_way)
                self._staging.note(manifest.batch, Progress(done=done, next=numbers))
        await _receipts(under_way)
        return numbers

    def _payload(self, part: pyarrow.RecordBatch, manifest: Manifest) -> bytes:
        return from_table(
            part.drop_columns(["topic", "partition"]),
            timestamp_us=manifest.time_us,
            compression=self._options.compression,
        )


async def _receipts(under_way: list[asyncio.Future[Receipt]]) -> None:
    for future in under_way:
        await await_future(future)
    under_way.clear()
