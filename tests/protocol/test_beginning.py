"""Where a stream begins for a subscriber: with whatever is published once it has its answer."""

from dataclasses import replace

import pytest
from msgspec import structs

from quorate.core.ids import Lane, node_of, topic_id
from quorate.core.limits import Windows
from quorate.core.messages import Forward, Frontier, Link, Reply, Request, Supply, Vouch
from quorate.protocol.incoming import ASK_AFTER_US, DOUBT_US
from quorate.protocol.subscription import STREAMS_MAX
from stage import D1, R1, S1, SECOND_US, Stage, topic

BYZANTINE = ("vote", "authenticated", "reliable", "chain")
# What a subscriber counts, or asked for.
VOICES = (Forward, Vouch, Link, Supply)
# Of so many batches nobody retains the first ones, where windows are so narrow.
LONG_AGO = 100
NARROW = Windows.of(32)


class Arrival:
    """A subscriber whose requests arrive one by one, while its source publishes."""

    def __init__(self, broadcast: str, order: str, f: int = 1, before: int = 0) -> None:
        each = replace(topic({"broadcast": broadcast, "order": order}, f=f), windows=NARROW)
        self.replicas = each.members
        self.stage = Stage(each, opened=False)
        self.stage.sources[S1].register("t")
        self.stage.settle()
        for number in range(before):
            self.publish(b"before %d" % number)
        self._requests = {r: self.stage.hold(Request, receiver=r) for r in self.replicas}
        self.stage.subscribe(D1)
        self.stage.settle()

    def publish(self, value: bytes) -> None:
        self.stage.publish(S1, value)
        self.stage.settle()

    def until_answered(self, *first: int) -> None:
        """Requests arrive at these replicas, and at others until there is an answer."""
        for replica in (*first, *(r for r in self.replicas if r not in first)):
            if self.stage.answers(D1):
                return
            self.stage.release(self._requests[replica])
            self.stage.settle()

    def arrive(self) -> None:
        for rule in self._requests.values():
            self.stage.release(rule)
        self.stage.settle()

    def lie(self, replica: int, lowest: int) -> None:
        """It says that streams begin there, and nothing else."""
        said = lambda frontier: structs.replace(frontier, lowest=lowest)  # noqa: E731
        self.stage.alter(said, Frontier, sender=replica, receiver=D1)
        self.stage.drop(VOICES, sender=replica, receiver=D1)


@pytest.mark.parametrize("order", ["none", "fifo"])
@pytest.mark.parametrize("lowest", [None, 1, 1000])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("f", [1, 2])
@pytest.mark.parametrize("broadcast", BYZANTINE)
def test_what_is_published_after_the_answer_is_delivered_whoever_hears_of_us_later(
    broadcast: str, f: int, before: int, lowest: int | None, order: str
) -> None:
    arrival = Arrival(broadcast, order, f, before)
    stage = arrival.stage
    if lowest is not None:
        for liar in range(f):
            arrival.lie(liar, lowest)
    arrival.until_answered()

    # Those that hear of us now have it already, and are the first to speak of the stream.
    quick = [r for r in arrival.replicas if not stage.messages(Reply, sender=r, receiver=D1)]
    slow = [stage.hold(sender=r, receiver=D1) for r in arrival.replicas if r not in quick]
    arrival.publish(b"after")
    arrival.arrive()
    for rule in slow:
        stage.release(rule)
    arrival.publish(b"later")
    stage.pass_time((DOUBT_US + SECOND_US) / SECOND_US)

    delivered = [value for value in stage.values() if not value.startswith(b"before")]
    assert sorted(delivered) == [b"after", b"later"]
    assert order == "none" or delivered == [b"after", b"later"]
    assert not stage.skipped()


@pytest.mark.parametrize("first", [(0, 3, 1), (0, 1, 2), (0, 2, 3)])
@pytest.mark.parametrize("f", [1, 2])
@pytest.mark.parametrize("broadcast", BYZANTINE)
def test_a_replica_that_lets_a_stream_begin_too_early_holds_nobody_up_for_long(
    broadcast: str, f: int, first: tuple[int, ...]
) -> None:
    arrival = Arrival(broadcast, "fifo", f, LONG_AGO)
    stage = arrival.stage
    for liar in range(f):
        arrival.lie(liar, 1)
    arrival.until_answered(*(r for r in first if r in arrival.replicas))
    arrival.arrive()

    arrival.publish(b"after")
    stage.pass_time((DOUBT_US + 2 * ASK_AFTER_US) / SECOND_US)

    assert stage.values()[-1:] == [b"after"]
    assert not stage.skipped()


def test_what_is_in_doubt_and_stays_out_is_reported_if_anybody_spoke_of_it() -> None:
    arrival = Arrival("vote", "fifo", before=2)
    stage = arrival.stage
    arrival.lie(R1, 1000)
    arrival.until_answered()
    arrival.publish(b"after")
    stage.drop(Vouch, sender=2, receiver=D1)
    arrival.arrive()
    stage.pass_time((DOUBT_US + SECOND_US) / SECOND_US)

    assert [(skipped.first, skipped.count) for skipped in stage.skipped()] == [(3, 1)]


def test_a_stream_of_which_one_replica_alone_speaks_after_the_answer_is_hearsay() -> None:
    stage = Stage(topic({"broadcast": "authenticated"}))
    for session in range(STREAMS_MAX + 10):
        made_up = Frontier(node_of(S1, session), topic_id("t"), Lane.EVENTS, 1, 5)
        stage.say(R1, D1, made_up)
    stage.settle()

    assert len(stage.destinations[D1]._subscriptions[topic_id("t")].streams) <= STREAMS_MAX
