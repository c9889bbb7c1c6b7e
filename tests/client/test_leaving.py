"""What clients leave behind that are closed, refused, or given up waiting for."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from quorate.client import Consumer, Producer
from quorate.core.contract import Contract
from quorate.core.control import Command, Register, Renew
from quorate.core.errors import ClosedError, RefusedError
from quorate.protocol.machine import Answered
from quorate.runtime.local import make_local_cluster
from traffic import until

LOG = Contract.parse("orders", {"protection": "crash", "order": "total"})
LIVE = Contract.parse("ticks", {"protection": "crash"})
# Nobody listens at the ports of its replicas.
LOCAL = make_local_cluster(base_port=1, topics={"orders": LOG, "ticks": LIVE})
SOON_S = 10.0


def publish(
    monkeypatch: pytest.MonkeyPatch,
    story: Callable[[Producer], Awaitable[None]],
    answers: Sequence[BaseException | None] = (),
) -> list[Command]:
    """What a producer commands meanwhile, if it is answered like this, and then with yes."""
    commanded: list[Command] = []
    left = list(answers)

    async def command(_: Producer, command: Command) -> None:
        commanded.append(command)
        await asyncio.sleep(0)
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    async def granted(producer: Producer, *_: object, **__: object) -> None:
        producer.driver.wake()
        await asyncio.sleep(0)

    monkeypatch.setattr(Producer, "command", command)
    monkeypatch.setattr(Producer, "_answer", granted)

    async def whole() -> None:
        producer = Producer(LOCAL.cluster, LOCAL.identities["alice"])
        await producer.start()
        producer._is_current = True
        try:
            await story(producer)
        finally:
            await producer.close(flush=False)

    asyncio.run(whole())
    return commanded


@pytest.mark.parametrize("topic", ["orders", "ticks"])
def test_whoever_publishes_after_the_close_is_told_so(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    async def story(producer: Producer) -> None:
        await producer.register(topic)
        await producer.close(flush=False)
        for is_urgent in (False, True):
            with pytest.raises(ClosedError):
                await asyncio.wait_for(producer.send(topic, b"late", urgent=is_urgent), SOON_S)
        with pytest.raises(ClosedError):
            await asyncio.wait_for(producer.send_values(topic, [b"late"]), SOON_S)

    publish(monkeypatch, story)


def test_whoever_waits_for_room_hears_of_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(producer: Producer) -> None:
        await producer.register("orders")
        (outlet,) = producer._outlets["orders"]
        outlet.is_full = True
        outlet.room.set()
        waiting = asyncio.create_task(producer.send("orders", b"late"))
        # It has seen that there is no room.
        await until(lambda: not outlet.room.is_set())
        await producer.close(flush=False)
        with pytest.raises(ClosedError):
            await asyncio.wait_for(waiting, SOON_S)

    publish(monkeypatch, story)


def test_all_who_wait_to_publish_on_a_topic_hear_that_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(producer: Producer) -> None:
        tasks = [asyncio.create_task(producer.send("orders", b"x")) for _ in range(3)]
        done, waiting = await asyncio.wait(tasks, timeout=SOON_S)
        assert not waiting
        assert [type(task.exception()) for task in done] == [RefusedError] * 3

    assert publish(monkeypatch, story, [RefusedError("no")]) == [Register("orders")]


def test_a_producer_that_was_given_up_while_it_registered_is_registered_when_it_publishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(producer: Producer) -> None:
        sending = asyncio.create_task(producer.send("orders", b"x"))
        # One turn of the loop, in which it asks; no time passes.
        await asyncio.sleep(0)
        assert producer._registering
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        await producer.submit("orders", b"y")

    assert publish(monkeypatch, story) == [Register("orders")]


def test_a_consumer_that_waits_for_where_to_begin_hears_of_the_close() -> None:
    async def story() -> None:
        async with Consumer(LOCAL.cluster, LOCAL.identities["bob"]) as consumer:
            consumer._is_current = True
            consumer.subscribe(["orders"])
            consumer._on_outcomes([Answered(consumer._asked["orders"], "")])
            waiting = asyncio.create_task(consumer.subscribed())
            # It has its answer, and listens for where the partition begins.
            await until(lambda: consumer._waiting and not consumer._asked)
            await consumer.close()
            with pytest.raises(ClosedError):
                await asyncio.wait_for(waiting, SOON_S)

    asyncio.run(story())


@pytest.mark.parametrize("sentence", ["", "no"])
@pytest.mark.parametrize("is_late", [False, True])
def test_nothing_is_kept_of_commands_that_were_answered(sentence: str, is_late: bool) -> None:
    async def story() -> int:
        async with Consumer(LOCAL.cluster, LOCAL.identities["bob"]) as consumer:
            asked = asyncio.create_task(consumer.command(Renew()))
            await until(lambda: consumer._answers)
            (number,) = consumer._answers
            if is_late:
                asked.cancel()
                await asyncio.wait([asked])
            consumer._on_outcomes([Answered(number, sentence)])
            await asyncio.wait([asked])
            with contextlib.suppress(RefusedError, asyncio.CancelledError):
                await asked
            return len(consumer._answers)

    assert asyncio.run(story()) == 0
