"""What a member of a group makes of it when it is told which partitions are its own."""

import asyncio
from collections.abc import Sequence

from quorate.client import Consumer
from quorate.core.batch import encode
from quorate.core.contract import Contract
from quorate.core.event import Event
from quorate.core.ids import node_of, topic_id
from quorate.core.ordering import Partition
from quorate.protocol.machine import Begun, Entry, Outcome, Shared
from quorate.runtime.local import make_local_cluster

CONTRACT = Contract.parse("orders", {"protection": "crash", "order": "total", "partitions": 2})
# Nobody listens at the ports of its replicas.
LOCAL = make_local_cluster(base_port=1, topics={"orders": CONTRACT})
ALICE = node_of(next(each.number for each in LOCAL.cluster.clients if each.name == "alice"))


def shared(epoch: int, *partitions: tuple[int, int | None]) -> Shared:
    return Shared("g", epoch, tuple(("orders", number, at) for number, at in partitions))


def entry(partition: int, offset: int) -> Entry:
    payload = encode([Event(None, b"%d/%d" % (partition, offset))])
    place = Partition(topic_id("orders"), partition)
    return Entry(place, offset, ALICE, offset + 1, 5, payload, (0,))


def begun(partition: int, offset: int) -> Begun:
    return Begun(Partition(topic_id("orders"), partition), offset)


def member(*rounds: Sequence[Outcome]) -> tuple[list[bytes], dict[int, int | None]]:
    """What a member reads that hears these things, and how far it then is with each partition."""

    async def story() -> tuple[list[bytes], dict[int, int | None]]:
        async with Consumer(LOCAL.cluster, LOCAL.identities["bob"], group="g") as consumer:
            consumer.subscribe(["orders"], start="end")
            read = []
            for outcomes in rounds:
                consumer._on_outcomes([*outcomes])
                while consumer._queue:
                    consumer._unpack()
                    read.append(consumer._next_record().value)
                consumer._progress.come_back()
            return read, {number: consumer.position("orders", number) for number in range(2)}

    return asyncio.run(story())


def test_what_comes_with_the_news_that_it_is_another_s_is_not_read() -> None:
    read, far = member(
        [shared(1, (0, 3), (1, 5)), entry(0, 3), entry(1, 5)],
        [shared(2, (0, 3)), entry(0, 4), entry(1, 6)],
    )
    assert read == [b"0/3", b"1/5", b"0/4"]
    assert far[0] == 5


def test_a_member_goes_on_where_it_was_with_what_comes_back_before_another_had_it() -> None:
    _, far = member(
        [shared(1, (0, 3), (1, 5)), entry(1, 5), entry(1, 6)],
        [shared(2, (0, 3))],
        [shared(3, (0, 3), (1, 5))],
    )
    assert far[1] == 7


def test_a_member_goes_on_where_another_was_with_what_comes_back_later() -> None:
    read, far = member(
        [shared(1, (0, 3), (1, 5)), entry(1, 5), entry(1, 6)],
        [shared(2, (0, 3))],
        [shared(3, (0, 3), (1, 6))],
        [entry(1, 6)],
    )
    assert read == [b"1/5", b"1/6", b"1/6"]
    assert far[1] == 7


def test_where_a_member_begins_with_what_nobody_read_is_how_far_the_group_is() -> None:
    _, far = member([shared(1, (0, None), (1, 5))], [begun(0, 8), begun(1, 5)])
    assert far == {0: 8, 1: None}


def test_where_it_would_have_begun_with_what_it_lost_says_nothing() -> None:
    _, far = member([shared(1, (0, None), (1, 5))], [shared(2, (1, 5)), begun(0, 8)])
    assert far[0] is None
