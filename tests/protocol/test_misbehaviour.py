"""Wrappers that make a correct machine misbehave, and nothing more than they say."""

from random import Random

import pytest

import commands
from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.errors import LocalProtocolError
from quorate.core.ids import Lane
from quorate.core.messages import (
    Ack,
    Authenticator,
    Echo,
    Forward,
    Link,
    Message,
    Publish,
    ReadyVote,
    Reply,
    Status,
    Supply,
    Vouch,
)
from quorate.core.ordering import (
    Assigned,
    Concluded,
    Cosign,
    Located,
    Stored,
    TopologyReport,
)
from quorate.crypto.digests import digest
from quorate.protocol.machine import Ready, Report
from quorate.protocol.misbehaviour import (
    FIELDS,
    REPLAYED_MAX,
    Drop,
    Equivocate,
    Forget,
    Lie,
    Replay,
    Silence,
    Slow,
    alter,
    behave,
)
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.records import Dropped, Held
from stage import event

D = bytes(range(32))
VOUCH = Vouch(1000, 7, Lane.EVENTS, 5, [D])
EXAMPLES: list[Message] = [
    Publish(7, Lane.EVENTS, False, 5, 1, [event(b"x")]),
    Forward(1000, 7, Lane.EVENTS, False, 5, [event(b"x")]),
    VOUCH,
    Echo(1000, 7, Lane.EVENTS, 5, [D]),
    ReadyVote(1000, 7, Lane.EVENTS, 5, [D]),
    Supply(1000, 7, Lane.EVENTS, [5], [event(b"x")]),
    Link(1000, 7, False, 5, 1, 0, [event(b"x")], [Authenticator(0, 1, bytes(16))]),
    Ack(7, Lane.EVENTS, Status.OK, 5),
    Reply(3, ""),
    Reply(3, "refused"),
    Concluded(3, ""),
    Concluded(3, "refused"),
    Assigned("ops", 2, 9, [("orders", 0, -1), ("orders", 1, 12)]),
    Assigned("ops", 2, 9, []),
    TopologyReport(3, 1, D, ""),
    Located(7, 0, 3, 40),
    Cosign(0, 5, 60, bytes(64)),
]
# Which attribute of which message each field stands for; what is not here has no such field.
MEANS: dict[str, dict[type, str]] = {
    "sequence": {
        **dict.fromkeys((Publish, Forward, Vouch, Echo, ReadyVote, Link), "first"),
        Ack: "through",
        Concluded: "sequence",
        Assigned: "revision",
        Located: "offset",
        Cosign: "size",
    },
    "publisher": dict.fromkeys((Forward, Vouch, Echo, ReadyVote, Supply, Link), "publisher"),
    "topic": {
        **dict.fromkeys((Publish, Forward, Vouch, Echo, ReadyVote, Supply, Link, Ack), "topic"),
        Located: "topic",
        Assigned: "group",
    },
    "content": {
        **dict.fromkeys((Publish, Forward, Supply, Link), "payloads"),
        **dict.fromkeys((Vouch, Echo, ReadyVote), "digests"),
        Assigned: "partitions",
        TopologyReport: "digest",
        Cosign: "signature",
    },
    "authenticators": {Link: "authenticators"},
    "reply": dict.fromkeys((Reply, Concluded), "sentence"),
}


def ready(count: int = 1, to: int = 1000) -> Ready:
    return Ready(send=[(to, VOUCH)] * count)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("how", [0, 1, 254, 255])
def test_a_lie_changes_just_the_field_that_it_names(field: str, how: int) -> None:
    for message in EXAMPLES:
        lie = alter(message, field, how)
        name = MEANS[field].get(type(message))
        changed = [
            attribute
            for attribute in message.__struct_fields__
            if getattr(lie, attribute) != getattr(message, attribute)
        ]
        assert changed == ([name] if name else [])


def test_an_altered_batch_still_decodes() -> None:
    for how in range(256):
        forged = alter(EXAMPLES[1], "content", how)
        assert isinstance(forged, Forward)
        assert Batch(forged.payloads[0]).values() != [b"x"]


@pytest.mark.parametrize("how", [0, 1, 255])
def test_a_lie_about_the_cluster_is_one_that_a_client_can_read(how: int) -> None:
    text = commands.cluster().render()
    lie = alter(TopologyReport(3, 0, digest(text.encode()), text), "content", how)
    assert isinstance(lie, TopologyReport)
    assert lie.digest == digest(lie.text.encode())
    assert Cluster.parse(lie.text).topics == {}


def test_a_lie_tells_each_receiver_its_own() -> None:
    lie = Lie(Random(1), 100, ["content"])

    ((_, told),) = lie(Ready(send=[(node, VOUCH) for node in range(20)]), 0)

    contents = {m.digests[0] for _, m in told.send if isinstance(m, Vouch)}
    assert len(contents) > 1
    assert D not in contents
    assert lie.altered == 20


def test_nobody_lies_at_zero_percent() -> None:
    ((_, told),) = Lie(Random(1), 0)(ready(50), 0)

    assert told == ready(50)


def test_a_field_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(LocalProtocolError, match="cannot alter colour; fields to alter: sequence"):
        Lie(Random(1), 100, ["content", "colour"])


def test_an_equivocator_tells_some_the_truth_and_all_others_the_same_lie() -> None:
    ((_, told),) = Equivocate([1, 2])(Ready(send=[(node, VOUCH) for node in range(4)]), 0)

    said = dict(told.send)
    assert said[0] == said[3] == VOUCH
    assert said[1] == said[2] != VOUCH


def test_silence_is_towards_those_that_were_named_or_all() -> None:
    send: list[tuple[int, Message]] = [(1, VOUCH), (2, VOUCH)]

    ((_, some),) = Silence([1])(Ready(send=list(send)), 0)
    ((_, none),) = Silence()(Ready(send=list(send)), 0)

    assert some.send == [(2, VOUCH)]
    assert none.send == []


@pytest.mark.parametrize(("percent", "least", "most"), [(0, 500, 500), (40, 250, 350), (100, 0, 0)])
def test_a_percentage_is_dropped(percent: float, least: int, most: int) -> None:
    ((_, told),) = Drop(Random(1), percent)(ready(500), 0)

    assert least <= len(told.send) <= most


def test_a_slow_node_sends_late_and_does_everything_else_at_once() -> None:
    report = Report(1, "kind", "detail")
    parts = Slow(700)(Ready(send=[(1, VOUCH)], timers=[9], reports=[report]), 0)

    assert parts == [
        (0, Ready(timers=[9], reports=[report])),
        (700, Ready(send=[(1, VOUCH)])),
    ]


class Oldest:
    """A chance that always falls, and on the first of all."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int, /) -> int:
        return 0


def test_a_replay_repeats_only_what_was_sent_before_and_remembers_so_much() -> None:
    replay = Replay(Oldest(), 100)
    ((_, first),) = replay(ready(1, to=1), 0)
    assert first.send == [(1, VOUCH)]

    ((_, second),) = replay(ready(1, to=2), 0)
    assert second.send == [(2, VOUCH), (1, VOUCH)]

    replay(ready(REPLAYED_MAX, to=3), 0)
    ((_, last),) = replay(ready(1, to=4), 0)
    assert last.send == [(4, VOUCH), (3, VOUCH)]


def test_whoever_forgets_writes_no_large_batches_and_says_that_it_did() -> None:
    large, small = bytes(INLINE_BYTES_MAX + 1), b"small"
    stored = Stored(1000, 7, 0, 1, 3, D, b"signature")
    dropped = Dropped(1000, 7, 1)
    ready = Ready(
        persist=[Held(1000, 7, 0, 5, [large, small, large, small]), dropped],
        sync=True,
        send=[(1, stored)],
    )

    ((delay_us, left),) = Forget()(ready, 0)

    assert (delay_us, left.sync, left.send) == (0, True, [(1, stored)])
    assert left.persist == [
        Held(1000, 7, 0, 6, [small]),
        Held(1000, 7, 0, 8, [small]),
        dropped,
    ]


def test_behaving_changes_nothing() -> None:
    assert behave(ready(), 0) == [(0, ready())]
