"""The driver takes turns for its machine, and never forgets to wake it."""

import asyncio
import time
from contextlib import suppress
from threading import Event
from typing import cast

import msgspec
import pytest

from quorate.core.codec import Frame
from quorate.core.ids import Lane, NodeId
from quorate.core.limits import FRAME_BYTES_MAX
from quorate.core.messages import Message, StatusQuery, StatusReport, Taken
from quorate.core.ordering import Append, Partition
from quorate.protocol.machine import Outcome, Ready, Trimmed
from quorate.protocol.ordering.records import Held, Record, Voted
from quorate.runtime.driver import PEER_BYTES_MAX, QUESTIONS_MAX, Driver, now_us
from quorate.runtime.transport import Transport
from quorate.storage.errors import DiskFullError, RefusedRecordError

PATIENCE_S = 10.0


class Clockwork:
    """A machine that does something at its times only, and asks for the next time only then."""

    every_us = 20_000

    def __init__(self) -> None:
        self.strokes = 0
        self.turned = asyncio.Event()
        self._next_us = 0
        self._ready = Ready()

    def tick(self, now_us: int) -> None:
        self.turned.set()
        if now_us >= self._next_us:
            self.strokes += 1
            self._next_us = now_us + self.every_us
            self._ready.timers.append(self._next_us)

    def ask_for(self, early_us: int, next_us: int) -> None:
        self._next_us = next_us
        self._ready.timers += [early_us, next_us]

    def step(self, sender: NodeId, message: Message) -> None: ...

    def connected(self, peer: NodeId) -> None: ...

    def disconnected(self, peer: NodeId) -> None: ...

    def writable(self, peer: NodeId, writable: bool) -> None: ...

    def take(self) -> Ready:
        ready, self._ready = self._ready, Ready()
        return ready


async def strokes(machine: Clockwork, wanted: int) -> int:
    """How often the machine did something, once it did so often or stood still for long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while machine.strokes < wanted:
                machine.turned.clear()
                await machine.turned.wait()
    return machine.strokes


def test_a_timer_that_goes_off_early_is_not_the_machine_s_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> int:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later
        monkeypatch.setattr(loop, "call_later", lambda delay, *call: call_later(delay / 2, *call))
        machine = Clockwork()
        owner = Driver(machine)
        owner.wake()
        seen = await strokes(machine, 5)
        owner.stop()
        return seen

    assert asyncio.run(story()) == 5


def test_a_turn_that_comes_before_the_timer_that_is_due_does_not_end_all_timers() -> None:
    async def story() -> int:
        machine = Clockwork()
        owner = Driver(machine)
        owner.wake()
        await machine.turned.wait()
        # A message wakes the machine when its time has come, and the timer goes off only then.
        owner.wake()
        time.sleep(2 * machine.every_us / 1e6)  # noqa: ASYNC251 -- the loop is busy
        seen = await strokes(machine, 5)
        owner.stop()
        return seen

    assert asyncio.run(story()) == 5


def test_every_time_that_a_machine_asks_for_counts() -> None:
    async def story() -> int:
        machine = Clockwork()
        owner = Driver(machine)
        # Woken at the first of two times it has nothing to do, and asks for nothing.
        machine.ask_for(now_us() + 1_000, now_us() + machine.every_us)
        owner.wake()
        seen = await strokes(machine, 1)
        owner.stop()
        return seen

    assert asyncio.run(story()) == 1


def test_a_question_about_the_process_is_answered_when_its_turn_is_over() -> None:
    """A replica that was held up has much to step at once, and all of it would seem to wait."""

    class Queue(Clockwork):
        def __init__(self) -> None:
            super().__init__()
            self.waiting = 0

        def step(self, sender: NodeId, message: Message) -> None:
            self.waiting += 1

        def take(self) -> Ready:
            self.waiting = 0
            return super().take()

    async def story() -> list[int]:
        machine, seen = Queue(), list[int]()
        answered = asyncio.Event()

        def answer(peer: NodeId, query: StatusQuery) -> None:
            seen.append(machine.waiting)
            answered.set()

        owner = Driver(machine, handlers={StatusQuery: answer})
        owner.received(NodeId(1), [Taken(7, 1, Lane.EVENTS, number) for number in range(200)])
        owner.received(NodeId(2), [StatusQuery(1)])
        async with asyncio.timeout(PATIENCE_S):
            await answered.wait()
        owner.stop()
        return seen

    assert asyncio.run(story()) == [0]


class Clerk(Clockwork):
    """A machine that wants what it was told to want, turn by turn."""

    def want(self, first: int, *, sync: bool) -> None:
        self._ready.persist.append(Held(1000, 1, 0, first, [b"x"]))
        self._ready.sync = sync
        self._ready.deliver.append(Trimmed(Partition(1, 0), first, 1))

    def say(self, peer: NodeId, message: Message) -> None:
        self._ready.send.append((peer, message))


class Book:
    """A disk that notes what happens to it, among other things that happen."""

    syncs = True

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.has_room = True
        self._news = asyncio.Event()

    def append(self, records: list[Record]) -> None:
        for record in records:
            assert isinstance(record, Held)
            if not self.has_room:
                raise DiskFullError("there is no room in this test")
            self.happened.append(f"{record.first} is written")
            self._news.set()

    def sync(self) -> None:
        self.happened.append("synced")

    def left(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            assert isinstance(outcome, Trimmed)
            self.happened.append(f"{outcome.offset} leaves")
            self._news.set()

    async def until(self, event: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while event not in self.happened:
                self._news.clear()
                await self._news.wait()


async def turns(*syncs: bool, until: str) -> list[str]:
    """What happens when each turn wants one record, synced or not, and something that leaves."""
    machine, book = Clerk(), Book()
    owner = Driver(machine, disk=book, on_outcomes=book.left)
    for first, sync in enumerate(syncs, 1):
        machine.want(first, sync=sync)
        owner._turn()
    await book.until(until)
    owner.stop()
    return book.happened


def test_what_rests_on_a_record_leaves_when_that_is_synced() -> None:
    happened = asyncio.run(turns(True, until="1 leaves"))
    assert happened == ["1 is written", "synced", "1 leaves"]


def test_records_that_may_be_lost_hold_nothing_up() -> None:
    assert asyncio.run(turns(False, until="1 is written")) == ["1 leaves", "1 is written"]


def test_nothing_overtakes_what_waits_for_a_sync() -> None:
    happened = asyncio.run(turns(True, False, until="2 leaves"))
    order = [event for event in happened if event != "synced"]
    assert order == ["1 is written", "2 is written", "1 leaves", "2 leaves"]


@pytest.mark.parametrize("sync", [True, False])
def test_records_that_found_no_room_are_written_before_those_of_later_turns(sync: bool) -> None:
    async def story() -> list[str]:
        machine, book = Clerk(), Book()
        owner = Driver(machine, disk=book, on_outcomes=book.left)
        book.has_room = False
        machine.want(1, sync=sync)
        owner._turn()
        assert owner.disk_full == "there is no room in this test"
        machine.want(2, sync=False)
        owner._turn()
        book.has_room = True
        await book.until("2 is written")
        owner.stop()
        assert not owner.disk_full
        return [event for event in book.happened if event.endswith("written")]

    assert asyncio.run(story()) == ["1 is written", "2 is written"]


class Wire:
    """A transport that takes everything, and knows how much."""

    def __init__(self) -> None:
        self.frames = 0

    def buffered_bytes(self, peer: NodeId) -> int:
        return 0

    def send(self, peer: NodeId, frames: list[Frame]) -> bool:
        self.frames += len(frames)
        return True


class Clogged(Wire):
    """Whoever is at its other end reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def buffered_bytes(self, peer: NodeId) -> int:
        return self.bytes

    def send(self, peer: NodeId, frames: list[Frame]) -> bool:
        self.bytes += sum(map(len, frames))
        return super().send(peer, frames)


def test_whoever_asks_how_we_are_and_does_not_listen_is_told_within_bounds() -> None:
    async def story() -> Clogged:
        machine, wire = Clockwork(), Clogged()
        report = msgspec.Raw(msgspec.msgpack.encode(bytes(500_000)))

        def answer(peer: NodeId, query: StatusQuery) -> None:
            owner.send(peer, StatusReport(query.number, report))

        owner = Driver(machine, handlers={StatusQuery: answer})
        owner.start(cast(Transport, wire))
        for _ in range(20):
            machine.turned.clear()
            owner.received(NodeId(1000), [StatusQuery(number) for number in range(100)])
            await machine.turned.wait()
        owner.stop()
        return wire

    wire = asyncio.run(story())
    assert QUESTIONS_MAX < wire.frames < 3 * QUESTIONS_MAX
    assert wire.bytes < 2 * PEER_BYTES_MAX


def test_a_message_that_cannot_be_sent_takes_nothing_else_of_its_turn_with_it() -> None:
    async def story() -> tuple[list[str], int, int]:
        machine, book, wire = Clerk(), Book(), Wire()
        owner = Driver(machine, disk=book, on_outcomes=book.left)
        machine.want(1, sync=False)
        too_large = Append(1, 0, 1, [bytes(FRAME_BYTES_MAX)])
        for message in (too_large, Taken(1000, 1, Lane.EVENTS, 1)):
            machine.say(2, message)
        owner.start(cast(Transport, wire))
        await book.until("1 is written")
        owner.stop()
        return book.happened, wire.frames, owner.counters["internal_errors"]

    assert asyncio.run(story()) == (["1 leaves", "1 is written"], 1, 1)


def test_records_are_written_whatever_becomes_of_what_leaves() -> None:
    async def story() -> list[str]:
        machine, book = Clerk(), Book()

        def fail(_: list[Outcome]) -> None:
            raise RuntimeError("nobody takes what leaves in this test")

        owner = Driver(machine, disk=book, on_outcomes=fail)
        machine.want(1, sync=False)
        with pytest.raises(RuntimeError):
            owner._turn()
        owner.stop()
        return book.happened

    assert asyncio.run(story()) == ["1 is written"]


class Slow(Book):
    """A disk whose syncs end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = Event()

    def sync(self) -> None:
        assert self.may_end.wait(PATIENCE_S)
        super().sync()


class Librarian(Clerk):
    """A machine that answers as long as it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writable: list[bool] = []

    def writable(self, peer: NodeId, writable: bool) -> None:
        self.is_writable.append(writable)

    def answer(self, peer: NodeId, content: bytes) -> None:
        self.say(peer, Append(1, 0, 1, [content]))
        self._ready.answered[peer] = len(content)


def test_answers_that_wait_for_a_sync_are_bounded_and_the_machine_is_told() -> None:
    async def story() -> tuple[list[bool], int]:
        machine, book, wire = Librarian(), Slow(), Wire()
        owner = Driver(machine, disk=book, on_outcomes=book.left)
        owner.start(cast(Transport, wire))
        machine.want(1, sync=True)
        owner._turn()
        for _ in range(100):
            machine.answer(1000, bytes(1 << 20))
            machine.say(1001, Taken(1000, 1, Lane.EVENTS, 1))
            owner._turn()
        assert machine.is_writable[0] is False
        machine.want(2, sync=False)
        owner._turn()
        book.may_end.set()
        await book.until("2 leaves")
        owner.stop()
        return machine.is_writable, wire.frames

    is_writable, frames = asyncio.run(story())
    assert is_writable[-1] is True
    assert frames == 100 + PEER_BYTES_MAX // (1 << 20)


def test_whoever_reads_nothing_is_not_writable_because_a_sync_has_ended() -> None:
    async def story() -> list[bool]:
        machine, book = Librarian(), Slow()
        owner = Driver(machine, disk=book, on_outcomes=book.left)
        owner.writable(1000, False)
        machine.want(1, sync=True)
        owner._turn()
        for _ in range(20):
            machine.answer(1000, bytes(1 << 20))
            owner._turn()
        book.may_end.set()
        await book.until("1 leaves")
        owner.stop()
        return machine.is_writable

    assert True not in asyncio.run(story())


class Wary(Book):
    """A disk on which a vote of group 0 does not follow on what is there."""

    def append(self, records: list[Record]) -> None:
        if any(isinstance(record, Voted) for record in records):
            raise RefusedRecordError(0, "slot 5 is decided, but 4 is next")
        super().append(records)


def test_a_group_whose_record_is_refused_stops_and_the_others_go_on() -> None:
    async def story() -> tuple[list[str], list[tuple[int, str]]]:
        machine, book, stopped = Clerk(), Wary(), list[tuple[int, str]]()
        owner = Driver(
            machine, disk=book, on_outcomes=book.left, on_refused=lambda *why: stopped.append(why)
        )
        for first in (1, 2):
            machine.want(first, sync=True)
            if first == 1:
                machine._ready.persist.append(Voted(0, 1, 5, 0, b"", {}, []))
            owner._turn()
        await book.until("2 leaves")
        owner.stop()
        return book.happened, stopped

    happened, stopped = asyncio.run(story())
    assert stopped == [(0, "slot 5 is decided, but 4 is next")]
    # What may rest on the record of that group stays.
    assert [event for event in happened if event != "synced"] == [
        "1 is written", "2 is written", "2 leaves",
    ]  # fmt: skip


def test_a_mistake_while_a_turn_is_made_up_is_not_the_last_turn() -> None:
    class Mistaken(Clerk):
        fails = True

        def take(self) -> Ready:
            if self.fails:
                self.fails = False
                raise RuntimeError("a mistake of ours")
            return super().take()

    async def story() -> int:
        machine, book = Mistaken(), Book()
        owner = Driver(machine, disk=book, on_outcomes=book.left)
        machine.want(1, sync=False)
        owner._turn()
        await book.until("1 is written")
        owner.stop()
        return owner.counters["internal_errors"]

    assert asyncio.run(story()) == 1
