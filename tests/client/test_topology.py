"""What clients make of it when they are told which topics and replicas there are."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from quorate.client import Admin, Consumer, Producer
from quorate.client.session import Session
from quorate.core.cluster import Cluster
from quorate.core.contract import Contract
from quorate.core.control import Renew
from quorate.protocol.machine import Answered, Topology
from quorate.runtime.local import OPERATOR, make_local_cluster
from traffic import until

LOG = {"protection": "crash", "order": "total"}
# Nobody listens at the ports of its replicas.
LOCAL = make_local_cluster(base_port=1, topics={"orders": Contract.parse("orders", LOG)})
FOUNDING, KEYS = LOCAL.cluster, LOCAL.identities


def grown(partitions: int, revision: int) -> Cluster:
    contract = Contract.parse("orders", {**LOG, "partitions": partitions})
    return replace(FOUNDING, topics={"orders": contract}, revision=revision)


def test_a_client_does_not_go_back_to_what_the_cluster_was() -> None:
    """A replica that lags behind answers as well, and where nobody lies its word is enough."""
    kinds: list[Callable[[], Session]] = [
        lambda: Consumer(FOUNDING, KEYS["bob"]),
        lambda: Producer(FOUNDING, KEYS["bob"]),
        lambda: Admin(FOUNDING, KEYS[OPERATOR]),
    ]

    async def story(make: Callable[[], Session]) -> Cluster:
        async with make() as client:
            client._on_outcomes([Topology(grown(3, revision=2)), Topology(grown(2, revision=1))])
            return client.cluster

    for make in kinds:
        assert asyncio.run(story(make)) == grown(3, revision=2)


def test_a_topic_of_which_a_liar_and_a_laggard_know_nothing_is_found_all_the_same() -> None:
    with_new = replace(
        FOUNDING, topics={**FOUNDING.topics, "new": Contract.parse("new", LOG)}, revision=1
    )

    async def story() -> set[str]:
        async with Producer(FOUNDING, KEYS["bob"]) as producer:
            asked = asyncio.create_task(producer._know(["new"]))
            answered: set[int] = set()
            for known in (FOUNDING, with_new):
                await until(lambda: producer._answers.keys() - answered)
                (number,) = producer._answers.keys() - answered
                producer._on_outcomes([Topology(known), Answered(number, "")])
                answered.add(number)
            await asked
            return set(producer.cluster.topics)

    assert asyncio.run(story()) == {"orders", "new"}


def test_a_consumer_reads_a_new_partition_once_whatever_replicas_that_lag_behind_say() -> None:
    async def story() -> tuple[int, int]:
        async with Consumer(FOUNDING, KEYS["bob"]) as consumer:
            consumer.subscribe(["orders"], start=0)
            consumer._on_outcomes([Topology(grown(2, revision=1))])
            reading = consumer._destination.read("orders", 1, 7)
            consumer._on_outcomes([Topology(FOUNDING), Topology(grown(2, revision=1))])
            assert consumer._destination.reading("orders", 1) is reading
            return consumer.cluster.topics["orders"].partitions, reading.position

    assert asyncio.run(story()) == (2, 7)


def test_clients_that_ask_now_and_then_keep_nothing_of_what_was_answered() -> None:
    async def story() -> int:
        async with Consumer(FOUNDING, KEYS["bob"]) as consumer:
            for question in (consumer.learn_topology(), consumer.command(Renew())):
                asked = asyncio.create_task(question)
                await until(lambda: consumer._answers)
                (number,) = consumer._answers
                consumer._on_outcomes([Answered(number, "")])
                await asked
            return len(consumer._answers)

    assert asyncio.run(story()) == 0


def test_a_subscription_to_a_topic_that_is_not_known_yet_outlasts_who_gives_up_waiting() -> None:
    log = Contract.parse("new", LOG)
    with_new = replace(FOUNDING, topics={**FOUNDING.topics, "new": log}, revision=1)

    async def story() -> set[str]:
        async with Consumer(FOUNDING, KEYS["bob"]) as consumer:
            consumer.subscribe(["new"])
            for known in (FOUNDING, with_new):
                consumer._on_outcomes([Topology(known)])
                polling = asyncio.create_task(consumer.poll())
                # One turn of the loop, in which it begins to wait; no time passes.
                await asyncio.sleep(0)
                assert not polling.done()
                polling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await polling
            return set(consumer._wanted)

    assert asyncio.run(story()) == {"new"}
