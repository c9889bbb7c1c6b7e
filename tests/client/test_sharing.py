"""What a member of a group makes of it when it is told which partitions are its own."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

import pytest

from quorate.client import Consumer
from quorate.client.sharing import OFFSETS_PER_COMMIT, Member, Place, Progress, Reader
from quorate.core.batch import encode, encode_values
from quorate.core.contract import Contract
from quorate.core.control import Command, Commit, GroupMode, Join, Leave
from quorate.core.errors import QuorumError, RefusedError
from quorate.core.event import Event
from quorate.core.ids import node_of, topic_id
from quorate.core.ordering import Partition
from quorate.protocol.control.groups import Groups
from quorate.protocol.control.state import ControlState
from quorate.protocol.machine import Begun, Entry, Outcome, Passed, Shared
from quorate.runtime.local import make_local_cluster

CONTRACT = Contract.parse("orders", {"protection": "crash", "order": "total", "partitions": 2})
# Nobody listens at the ports of its replicas.
LOCAL = make_local_cluster(base_port=1, topics={"orders": CONTRACT})
BOB = next(each for each in LOCAL.cluster.clients if each.name == "bob")
ALICE = node_of(next(each.number for each in LOCAL.cluster.clients if each.name == "alice"))


def shared(epoch: int, *partitions: tuple[int, int | None]) -> Shared:
    return Shared("bob/g", epoch, tuple(("orders", number, at) for number, at in partitions))


def entry(partition: int, offset: int) -> Entry:
    payload = encode([Event(None, b"%d/%d" % (partition, offset))])
    place = Partition(topic_id("orders"), partition)
    return Entry(place, offset, offset + 1, ALICE, offset + 1, 5, payload, (0,))


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

    def mode(self, topics: Collection[str]) -> GroupMode:
        return ""

    async def learn_topology(self, *, patiently: bool) -> object:
        await asyncio.sleep(0)
        self.meanwhile.pop(0)()
        return None

    async def command(self, command: Command) -> None:
        self.commanded.append(command)


def told(*news: Shared, meanwhile: Sequence[Callable[[Told, Member], None]] = ()) -> Told:
    """What a member does that hears this."""

    async def story() -> Told:
        reader = Told()
        member = Member("bob/g", reader, Progress(), lease_us=1, commits_by_itself=True)
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
    assert reader.commanded == [Commit("bob/g", 3, [])]


def test_a_member_asks_again_about_what_it_is_to_read_and_does_not_know() -> None:
    reader = told(shared(2, (2, 7)), meanwhile=[nobody_answers, knows_three])
    assert reader.reads == {("orders", 2): 7}


def what_it_reads(groups: Groups, node: int) -> Shared:
    assigned = groups.assignments("bob/g", [node])[node]
    partitions = tuple(
        (topic, number, None if offset < 0 else offset)
        for topic, number, offset in assigned.partitions
    )
    return Shared("bob/g", assigned.epoch, partitions)


class Cluster(Told):
    """Carries out what one member of a group commands."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions
        table = {"protection": "crash", "order": "total", "partitions": partitions}
        contracts = {"orders": Contract.parse("orders", table)}
        self.groups = Groups(ControlState(), contracts)

    def join(self, node: int) -> None:
        self.groups.join(Join("bob/g", ["orders"]), node, BOB)

    def shared(self, node: int) -> Shared:
        return what_it_reads(self.groups, node)

    async def command(self, command: Command) -> None:
        assert isinstance(command, Commit)
        self.groups.commit(command, 1, "one")


def test_who_comes_after_begins_where_a_member_was_however_much_it_gives_up() -> None:
    async def story() -> dict[int, int | None]:
        # Given a member that is through with something of each of many partitions
        cluster, progress = Cluster(4 * OFFSETS_PER_COMMIT), Progress()
        member = Member("bob/g", cluster, progress, lease_us=1, commits_by_itself=True)
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


# What nobody has read yet


def test_what_is_back_before_anybody_heard_where_it_began_does_not_begin_later() -> None:
    async def story() -> dict[Place, int | None]:
        reader = Told()
        member = Member("bob/g", reader, Progress(), lease_us=1, commits_by_itself=True)
        member.on_shared(shared(1, (0, None)))
        member.on_begun(("orders", 0), 8)
        member.on_shared(shared(2))
        member.on_shared(shared(3, (0, None)))
        return reader.reads

    assert asyncio.run(story()) == {("orders", 0): 8}


class Group(Reader):
    """A cluster with one log topic of two partitions, as members of one group see it."""

    def __init__(self) -> None:
        self.ends = [8, 8]
        self.groups = Groups(ControlState(), {"orders": CONTRACT})
        self.members: dict[int, Member] = {}
        self.begun: dict[Place, int] = {}
        self.commander = 0

    def add(self, node: int) -> Member:
        """A member that commits what its program says, and nothing else."""
        member = Member("bob/g", self, Progress(), lease_us=1, commits_by_itself=False)
        self.members[node] = member
        self.groups.join(Join("bob/g", ["orders"]), node, BOB)
        return member

    async def tell(self) -> None:
        """All hear what is theirs, and do what follows, until there is nothing new."""
        while self.groups.changed:
            self.groups.changed = {}
            for node, member in self.members.items():
                self.commander, self.begun = node, {}
                member.on_shared(what_it_reads(self.groups, node))
                for place, offset in self.begun.items():
                    member.on_begun(place, offset)
                await asyncio.gather(*member._tasks)

    def has(self, place: Place) -> bool:
        return True

    def begin(self, place: Place, offset: int | None) -> None:
        self.begun[place] = self.ends[place[1]] if offset is None else offset

    def end(self, place: Place) -> None: ...

    async def learn_topology(self, *, patiently: bool) -> object: ...

    def mode(self, topics: Collection[str]) -> GroupMode:
        return ""

    async def command(self, command: Command) -> None:
        if isinstance(command, Commit):
            self.groups.commit(command, self.commander, "one")


def test_whoever_comes_after_begins_where_the_group_began_though_only_the_program_commits() -> None:
    async def story() -> list[tuple[str, int, int | None]]:
        # Given a member that begins at the end of what nobody has read
        group = Group()
        group.add(1)
        await group.tell()
        # When events come, and half of it becomes another's before the program has said anything
        group.ends = [20, 20]
        group.add(2)
        await group.tell()
        return list(what_it_reads(group.groups, 2).partitions)

    # Then none of them is left out.
    assert asyncio.run(story()) == [("orders", 1, 8)]


def consumer_story(
    monkeypatch: pytest.MonkeyPatch,
    story: Callable[[Consumer], Awaitable[None]],
    answers: Sequence[BaseException | None] = (),
    *,
    auto_commit_s: float | None = None,
) -> list[Command]:
    """What a member commands meanwhile, if it is answered like this, and then with yes."""
    commanded: list[Command] = []
    left = list(answers)

    async def command(_: Consumer, command: Command) -> None:
        commanded.append(command)
        await asyncio.sleep(0)
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    async def granted(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(Consumer, "command", command)
    monkeypatch.setattr(Consumer, "_answer", granted)

    async def whole() -> None:
        keys = LOCAL.identities["bob"]
        made = Consumer(LOCAL.cluster, keys, group="bob/g", auto_commit_s=auto_commit_s)
        async with made as consumer:
            consumer._is_current = True
            consumer.subscribe(["orders"])
            await story(consumer)

    asyncio.run(whole())
    return commanded


def test_the_program_gets_nothing_of_what_nobody_read_before_the_cluster_knows_where_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []

    async def story(consumer: Consumer) -> None:
        await consumer.subscribed()
        consumer._on_outcomes([shared(1, (0, None)), begun(0, 3), entry(0, 3)])
        member = consumer._membership
        assert member is not None
        record = await consumer.poll()
        assert record is not None
        seen.append(member._committed == {("orders", 0): 3})

    commanded = consumer_story(monkeypatch, story)
    assert seen == [True]
    assert Commit("bob/g", 1, [("orders", 0, 3)]) in commanded


def test_a_member_that_nobody_answered_asks_to_join_again_when_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        with pytest.raises(QuorumError):
            await consumer.poll(0.01)
        assert consumer._lease is None
        assert await consumer.poll(0.01) is None
        assert consumer._lease is not None

    commanded = consumer_story(monkeypatch, story, [QuorumError("nobody answered", {})])
    assert [type(each) for each in commanded] == [Join, Join, Leave]


def test_a_program_that_gives_up_waiting_while_it_joins_is_a_member_when_it_reads_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await consumer.poll()
        assert await consumer.poll(0.01) is None
        assert consumer._lease is not None

    commanded = consumer_story(monkeypatch, story, [asyncio.CancelledError()])
    assert [type(each) for each in commanded] == [Join, Join, Leave]


def test_a_member_leaves_though_what_it_says_last_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        await consumer.subscribed()
        consumer._on_outcomes([shared(1, (0, None)), begun(0, 3)])

    refusals = [None, *[RefusedError("not yours")] * 9]
    commanded = consumer_story(monkeypatch, story, refusals, auto_commit_s=60.0)
    assert Leave("bob/g") in commanded


def test_a_topic_that_was_given_back_is_read_again_when_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        for epoch in (1, 3):
            await consumer.subscribed()
            consumer._on_outcomes([shared(epoch, (0, 5), (1, 5))])
            consumer._destination.read("orders", 0, 5)
            assert consumer._destination.reading("orders", 0) is not None
            await consumer.unsubscribe("orders")
            assert consumer.assignment() == []
            assert consumer._destination.reading("orders", 0) is None
            consumer.subscribe(["orders"])

    consumer_story(monkeypatch, story)


def test_a_member_commits_inside_a_batch_and_gives_it_up_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ten = Entry(
        Partition(topic_id("orders"), 0), 0, 10, ALICE, 1, 5, encode_values([b"x"] * 10, 0), (0,)
    )

    async def story(consumer: Consumer) -> None:
        member = consumer._membership
        assert member is not None
        await consumer.subscribed()
        consumer._on_outcomes([shared(1, (0, 0)), begun(0, 0), ten])
        # What was handed out counts when the program says so,
        for _ in range(3):
            await consumer.poll()
        await consumer.commit()
        assert member._committed == {("orders", 0): 3}
        # or when it comes back.
        await consumer.poll_many(4)
        await member.commit_quietly()
        assert member._committed == {("orders", 0): 3}
        await consumer.poll()
        await member.commit_quietly()
        assert member._committed == {("orders", 0): 7}
        await consumer.poll()
        consumer._on_outcomes([shared(2)])
        assert not consumer._records

    commanded = consumer_story(monkeypatch, story, auto_commit_s=60.0)
    commits = [each for each in commanded if isinstance(each, Commit)]
    assert [each.offsets[0][2] for each in commits if each.offsets] == [3, 7, 8]


def test_a_member_commits_that_it_is_past_what_is_not_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(consumer: Consumer) -> None:
        await consumer.subscribed()
        place = Partition(topic_id("orders"), 0)
        consumer._on_outcomes([shared(1, (0, 5)), begun(0, 5), entry(0, 5), Passed(place, 90)])
        await consumer.poll()
        await consumer.commit()

    commanded = consumer_story(monkeypatch, story)
    assert Commit("bob/g", 1, [("orders", 0, 90)]) in commanded
