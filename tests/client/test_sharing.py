"""What a member of a group makes of it when it is told which partitions are its own."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from quorate.client import Consumer
from quorate.client.sharing import OFFSETS_PER_COMMIT, Member, Place, Progress, Reader
from quorate.core.batch import encode
from quorate.core.contract import Contract
from quorate.core.control import Command, Commit
from quorate.core.errors import QuorumError
from quorate.core.event import Event
from quorate.core.ids import node_of, topic_id
from quorate.core.ordering import Partition
from quorate.protocol.control.groups import Groups
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


# What takes more than one command, or has to be asked for


class Told(Reader):
    """A reader without a cluster: it notes what it reads, and what is commanded."""

    def __init__(self) -> None:
        self.partitions = 2
        self.reads: dict[Place, int | None] = {}
        self.commanded: list[Command] = []
        # What happens while the topology is asked for.
        self.meanwhile: list[Callable[[], None]] = []

    def has(self, place: Place) -> bool:
        return place[1] < self.partitions

    def begin(self, place: Place, offset: int | None) -> None:
        self.reads[place] = offset

    def end(self, place: Place) -> None:
        del self.reads[place]

    async def update_topology(self) -> object:
        await asyncio.sleep(0)
        self.meanwhile.pop(0)()
        return None

    async def command(self, command: Command) -> None:
        self.commanded.append(command)


def told(*news: Shared, meanwhile: Sequence[Callable[[Told, Member], None]] = ()) -> Told:
    """What a member does that hears this."""

    async def story() -> Told:
        reader = Told()
        member = Member("g", reader, Progress(), lease_us=1, commits_by_itself=True)
        reader.meanwhile = [partial(each, reader, member) for each in meanwhile]
        for each in news:
            member.on_shared(each)
        while member._tasks:
            await asyncio.gather(*member._tasks, return_exceptions=True)
        return reader

    return asyncio.run(story())


def knows_three(reader: Told, _: Member) -> None:
    reader.partitions = 3


def nobody_answers(_: Told, __: Member) -> None:
    raise QuorumError("nobody answered", {})


def test_what_a_member_had_to_ask_about_does_not_come_after_what_it_heard_later() -> None:
    def hears_more(reader: Told, member: Member) -> None:
        knows_three(reader, member)
        member.on_shared(shared(3, (0, 5)))

    reader = told(shared(2, (0, 5), (2, 0)), meanwhile=[hears_more])

    assert reader.reads == {("orders", 0): 5}
    assert reader.commanded == [Commit("g", 3, [])]


def test_a_member_asks_again_about_what_it_is_to_read_and_does_not_know() -> None:
    reader = told(shared(2, (2, 7)), meanwhile=[nobody_answers, knows_three])
    assert reader.reads == {("orders", 2): 7}


class Cluster(Told):
    """Carries out what one member of a group commands."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions
        table = {"protection": "crash", "order": "total", "partitions": partitions}
        self.contracts = {"orders": Contract.parse("orders", table)}
        self.groups = Groups({})

    def join(self, node: int) -> None:
        self.groups.join("g", node, ["orders"], self.contracts, 0)

    def shared(self, node: int) -> Shared:
        assigned = self.groups.assignment("g", node)
        assert assigned is not None
        return Shared("g", assigned.epoch, tuple(assigned.partitions))

    async def command(self, command: Command) -> None:
        assert isinstance(command, Commit)
        self.groups.commit("g", 1, command.epoch, command.offsets, "one", 0)


def test_who_comes_after_begins_where_a_member_was_however_much_it_gives_up() -> None:
    async def story() -> dict[int, int | None]:
        # Given a member that is through with something of each of many partitions
        cluster, progress = Cluster(4 * OFFSETS_PER_COMMIT), Progress()
        member = Member("g", cluster, progress, lease_us=1, commits_by_itself=True)
        cluster.join(1)
        member.on_shared(cluster.shared(1))
        await asyncio.gather(*member._tasks)
        progress.done = {place: 100 + place[1] for place in member.held}

        # When half of them become another's
        cluster.join(2)
        member.on_shared(cluster.shared(1))
        await asyncio.gather(*member._tasks)
        return {number: offset for _, number, offset in cluster.shared(2).partitions}

    begins = asyncio.run(story())
    assert len(begins) == 2 * OFFSETS_PER_COMMIT
    assert begins == {number: 100 + number for number in begins}
