"""A store that signs for batches and does not keep them is proved faulty, by its own signatures."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from clusters import TestCluster, quorate, running_cluster
from logs import group_in, next_records
from quorate.client import Admin, Consumer, Producer
from quorate.core.ids import topic_id
from quorate.core.ordering import Partition
from quorate.crypto.evidence import Keys, parse, verify_evidence
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.readers import TAIL_BYTES_MAX
from quorate.runtime.local import OPERATOR
from traffic import eventually, offences

pytestmark = pytest.mark.xdist_group("processes")

TOPIC = "deeds"
EVENT_BYTES = 128 * 1024
# More than replicas have in memory for those who read along.
EVENTS = TAIL_BYTES_MAX // EVENT_BYTES + 16


@pytest.fixture
def cluster() -> Iterator[TestCluster]:
    contract = {"order": "total", "protection": "byzantine", "validated": True}
    with running_cluster(topics={TOPIC: contract}) as running:
        yield running


def value_of(number: int) -> bytes:
    return b"%08d" % number * (EVENT_BYTES // 8)


def test_a_store_that_forgets_is_proved_faulty_while_consumers_get_everything(
    cluster: TestCluster,
) -> None:
    parties = cluster.launcher.cluster
    members = tuple(replica.number for replica in parties.replicas)
    first, *_ = stores_of(members, Partition(topic_id(TOPIC), 0))
    forgetful = parties.replicas[first].name

    async def story() -> None:
        async with Admin(cluster.directory, OPERATOR) as admin:
            await admin.misbehave(forgetful, "forget")
            async with Producer(cluster.directory, "alice", batch_events=1) as producer:
                for number in range(EVENTS):
                    await producer.send(TOPIC, value_of(number))

            async def look() -> list[tuple[str, str]]:
                """Whoever lacks a batch has the receipts, and comes to have the evidence.

                A consumer to whom another store was connected first never asks this one.
                """
                async with Consumer(cluster.directory, "bob") as consumer:
                    consumer.subscribe([TOPIC], start="begin")
                    records = await next_records(consumer, EVENTS)
                assert [record.value for record in records] == [*map(value_of, range(EVENTS))]
                reports: Any = await admin.status()
                return [
                    (name, text)
                    for name, report in reports.items()
                    for text in (group_in(report, "byzantine") or {}).get("evidence", ())
                ]

            found = await eventually(look)
            proved = [verify_evidence(parse(text), Keys.of(parties)) for _, text in found]
            assert {(each.kind, each.name) for each in proved} == {("false-receipt", forgetful)}
            witness, _ = found[0]
        counted = await offences(parties, witness)
        assert counted[forgetful, "false-receipt"] == 1
        assert not any(kind == "false-receipt" for member, kind in counted if member != forgetful)

    asyncio.run(story())
    shown = quorate("status", cluster.directory)
    assert f"proved: {forgetful} signed that it stores batch" in " ".join(shown.out.split())
