"""Whatever anybody commands: replicas stay equal, and what must never happen does not."""

import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import (
    ACME,
    ANNA,
    BEN,
    BOLT,
    CARL,
    LOG,
    SECOND_US,
    Commander,
    add_replica,
    cluster,
    encoded,
    pins,
    rebuilt,
)
from quorate.core.control import (
    KEEP_US,
    AlterGroup,
    AlterTopic,
    Command,
    Commit,
    CreateTopic,
    DeleteGroup,
    Join,
    Leave,
    PutClient,
    Register,
    RemoveClient,
    Renew,
    ReplaceReplica,
    ResetGroup,
    Unregister,
    encode_command,
)
from quorate.core.ids import NodeId, node_of
from quorate.protocol.control.machine import Control

GENESIS = cluster(
    {
        "a": {**LOG, "partitions": 3, "publishers_max": 2},
        "b": {**LOG, "partitions": 2},
        "c": {"protection": "crash", "order": "total", "subscribe": ["anna", "ben"]},
        "live": {},
    }
)

nodes = st.sampled_from(
    [
        ACME,
        BOLT,
        ANNA,
        BEN,
        CARL,
        *(1 << 32 | n for n in (ANNA, BEN)),
        node_of(1),
        node_of(1005),
        node_of(9999),
    ]
)
topics = st.sampled_from(["a", "b", "c", "live", "new", "nothing", "quorate.x"])
names = st.sampled_from(["crew/g", "crew/h", "acme/g", "a b", "g"])
keeps = st.sampled_from([SECOND_US, 7 * SECOND_US, KEEP_US])
modes = st.sampled_from(["", "", "basic", "validated"])
leases = st.sampled_from([SECOND_US, 5 * SECOND_US, 60 * SECOND_US, 1])
lists = st.sampled_from([["*"], ["anna"], ["anna", "ben"], ["nobody"], []])
settings_of_topics = st.fixed_dictionaries(
    {},
    optional={
        "partitions": st.integers(0, 6),
        "publish": lists,
        "subscribe": lists,
        "retention": st.sampled_from(["1d", None, "x"]),
        "order": st.sampled_from(["total", "none"]),
    },
)
offsets = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "new"]), st.integers(0, 4), st.integers(0, 99)),
    max_size=3,
)


def _replacement(seed: int, name: str) -> ReplaceReplica:
    wanted = msgspec.structs.asdict(add_replica(seed))
    return ReplaceReplica(**{k: v for k, v in wanted.items() if k != "party"} | {"name": name})


commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Register, topics, leases, st.integers(0, 2)),
    st.builds(Unregister, topics, st.integers(0, 2)),
    st.builds(Join, names, st.lists(topics, max_size=3), leases, keeps, modes),
    st.builds(AlterGroup, names, st.sampled_from([[], ["anna"], ["*"], ["nobody"]])),
    st.builds(ResetGroup, names, offsets),
    st.builds(DeleteGroup, names),
    st.builds(Join, st.just("crew/g"), st.sampled_from([["a"], ["a", "b"], ["b"]]), leases),
    st.builds(Leave, names),
    st.builds(Commit, names, st.integers(0, 12), offsets),
    st.builds(
        lambda name, epoch, offset, note: Commit(name, epoch, [offset], [note]),
        names,
        st.integers(0, 12),
        st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 99)),
        st.tuples(st.integers(-1, 3), st.sampled_from(["", "x", "y" * 4096])),
    ),
    st.builds(Renew, st.integers(0, 2)),
    st.builds(CreateTopic, topics, settings_of_topics),
    st.builds(AlterTopic, topics, settings_of_topics),
    st.builds(add_replica, st.integers(3, 6)),
    st.builds(
        lambda name, seed, party, operator: PutClient(name, party, **pins(seed), operator=operator),
        st.sampled_from(["dora", "acme-op", "anna"]),
        st.integers(150, 152),
        st.sampled_from(["acme", "bolt"]),
        st.booleans(),
    ),
    st.builds(RemoveClient, st.sampled_from(["dora", "anna", "acme-op"])),
    st.builds(_replacement, st.integers(40, 42), st.sampled_from(["r0", "r1", "r4"])),
)


def _altered(value: bytes, at: int, gone: int, put: bytes) -> bytes:
    return value[:at] + put + value[at + gone :]


values = st.one_of(
    st.builds(encode_command, commands),
    st.binary(max_size=12),
    st.builds(
        _altered,
        st.builds(encode_command, commands),
        st.integers(0, 60),
        st.integers(0, 3),
        st.binary(max_size=3),
    ),
)
delays_us = st.sampled_from([0, 0, 0, SECOND_US // 2, SECOND_US, 7 * SECOND_US])
steps = st.lists(st.tuples(nodes, values, delays_us, st.booleans()), max_size=40)


@given(steps)
def test_a_machine_made_from_a_state_goes_on_like_the_one_it_was_taken_from(
    script: list[tuple[NodeId, bytes, int, bool]],
) -> None:
    one, other = Control(GENESIS), Control(GENESIS)
    now_us = 0
    for sequence, (node, value, delay_us, is_rebuilt) in enumerate(script):
        now_us += delay_us
        if is_rebuilt:
            other = rebuilt(other, GENESIS)
            one.take_changes()
        assert one.apply(node, sequence, value, now_us) == other.apply(
            node, sequence, value, now_us
        )
        assert one.take_changes() == other.take_changes()
        assert one.cluster == other.cluster
        assert encoded(one) == encoded(other)
        assert one.result(node, sequence) == other.result(node, sequence)


@given(steps)
def test_a_refused_command_changes_no_more_than_its_answer(
    script: list[tuple[NodeId, bytes, int, bool]],
) -> None:
    control = Control(GENESIS)
    now_us = 0
    for sequence, (node, value, delay_us, _) in enumerate(script):
        now_us += delay_us
        # What has ended is dropped by any command, so let somebody unknown do it.
        control.apply(node_of(9999), 0, b"", now_us)
        control.take_changes()
        before = _without_sessions(control)
        held = _held(control)
        sentence = control.apply(node, sequence, value, now_us)
        if sentence and not sentence.startswith("not yet: "):
            assert _without_sessions(control) == before
            assert _held(control) == held
            assert control.take_changes() == (False, {}, [])


def _without_sessions(control: Control) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(control.state, sessions={}, resting={}))


def _held(control: Control) -> dict[NodeId, Any]:
    sessions = control.state.sessions.items()
    return {
        node: (list(session.topics), list(session.groups), session.lease_us)
        for node, session in sessions
        if session.topics or session.groups
    }


@given(steps)
def test_sessions_and_groups_agree_on_who_is_where(
    script: list[tuple[NodeId, bytes, int, bool]],
) -> None:
    control = Control(GENESIS)
    now_us = 0
    for sequence, (node, value, delay_us, _) in enumerate(script):
        now_us += delay_us
        control.apply(node, sequence, value, now_us)
        state = control.state
        members = {(name, n) for name, group in state.groups.items() for n in group.members}
        assert members == {(g, n) for n, session in state.sessions.items() for g in session.groups}
        for known, session in state.sessions.items():
            assert session.expires_us > now_us
            for topic in control.cluster.topics:
                assert control.may_publish(known, topic) == (topic in session.topics)
                assert topic not in session.topics or control.cluster.topics[topic].is_log
        assert Control(GENESIS, state).cluster == control.cluster
        assert state.topics == {n: c.table() for n, c in control.cluster.topics.items()}


READERS = [session << 32 | node for node in (ANNA, BEN, CARL) for session in range(2)]
events = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "leave", "commit", "commit", "wait", "grow"]),
        st.sampled_from(READERS),
        st.sampled_from([["a"], ["b"], ["a", "b"]]),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(events)
def test_no_two_members_read_one_partition_whatever_they_have_heard(
    script: list[tuple[str, NodeId, list[str], int]],
) -> None:
    """Members hear of assignments late, and go on reading what they knew until then.

    The reader of a partition is then whoever last heard that it may; the machine must let nobody
    else begin before that one has given it up, left, or lost its lease.
    """
    commander = Commander(
        cluster(
            {"a": {**LOG, "partitions": 3}, "b": {**LOG, "partitions": 2}}, clients=GENESIS.clients
        )
    )
    control = commander.control
    # What each member knows: an epoch, and what it reads by it.
    known: dict[NodeId, tuple[int, set[tuple[str, int]]]] = {}
    committed: dict[tuple[str, int], int] = {}
    for what, node, subscription, choice in script:
        if what == "join":
            commander.ok(node, Join("crew/g", subscription))
            known.setdefault(node, (0, set()))
        elif what == "leave":
            commander.ok(node, Leave("crew/g"))
            known.pop(node, None)
        elif what == "wait":
            commander.wait(4)
        elif what == "grow":
            partitions = control.cluster.topics["a"].partitions
            group = commander.state.groups.get("crew/g")
            if group is not None and "a" in group.places and partitions < 6:
                committed["a", partitions] = 0
            commander.ok(ACME, AlterTopic("a", {"partitions": min(partitions + 1, 6)}))
        elif node in known:
            _commit(commander, node, known, committed, choice)
        for gone in [each for each in known if commander.assignment("crew/g", each) is None]:
            del known[gone]
        _check(commander, known, committed)


def _commit(
    commander: Commander,
    node: NodeId,
    known: dict[NodeId, tuple[int, set[tuple[str, int]]]],
    committed: dict[tuple[str, int], int],
    choice: int,
) -> None:
    """The member hears the news, or not, and says how far it is with what it read so far."""
    epoch, reading = known[node]
    assignment = commander.assignment("crew/g", node)
    news = None if assignment is None else {part[:2] for part in assignment.partitions}
    if choice and assignment is not None and news is not None:
        epoch = assignment.epoch
    offsets = [(topic, number, commander.sequence) for topic, number in sorted(reading)]
    sentence = commander.does(node, Commit("crew/g", epoch, offsets))
    if commander.assignment("crew/g", node) is None:
        assert "is not in group" in sentence
        return
    # Nobody took from it what it did not give up.
    assert sentence == ""
    committed.update({(topic, number): offset for topic, number, offset in offsets})
    if choice and news is not None:
        known[node] = (epoch, news)


def _check(
    commander: Commander,
    known: dict[NodeId, tuple[int, set[tuple[str, int]]]],
    committed: dict[tuple[str, int], int],
) -> None:
    group = commander.state.groups.get("crew/g")
    if group is None:
        return
    reading = Counter(part for _, parts in known.values() for part in parts)
    told = Counter(part for node in group.members for part in commander.reads(node))
    assert not reading or max(reading.values()) == 1
    assert not told or max(told.values()) == 1
    for node in group.members:
        for other, (_, parts) in known.items():
            assert node == other or not parts & set(commander.reads(node))
    for topic, places in group.places.items():
        assert len(places) == commander.control.cluster.topics[topic].partitions
        subscribed = [node for node, member in group.members.items() if topic in member.topics]
        for number, place in enumerate(places):
            assert (place.owner in subscribed) if subscribed else place.owner is None
            assert place.holder is None or place.holder in group.members
            assert bool(place.asked) == (place.holder != place.owner)
            assert place.offset == committed.get((topic, number))
    places = [place for row in group.places.values() for place in row]
    assert group.moving == sum(place.holder != place.owner for place in places)
    _check_even(commander)


def _check_even(commander: Commander) -> None:
    group = commander.state.groups["crew/g"]
    shares = Counter(place.owner for places in group.places.values() for place in places)
    for one, member in group.members.items():
        for other, peer in group.members.items():
            assert member.topics != peer.topics or abs(shares[one] - shares[other]) <= 1


def _state_after(seed: int) -> str:
    """Many commands of many sessions, and what they come to."""
    random, control, now_us, content = Random(seed), Control(GENESIS), 0, sha256()
    for sequence in range(600):
        topics_of = [random.choice("abc") for _ in range(random.randrange(1, 4))]
        offset = (random.choice("abc"), random.randrange(4), random.randrange(99))
        choices: list[Command] = [
            Register(random.choice("abc"), 5 * SECOND_US),
            Join(random.choice("gh"), topics_of, random.choice([1, 60]) * SECOND_US),
            Leave(random.choice("gh")),
            Commit(random.choice("gh"), random.randrange(9), [offset]),
            AlterTopic(random.choice("abc"), {"partitions": random.randrange(1, 9)}),
            AlterTopic(random.choice("ab"), {"subscribe": random.choice([["*"], ["anna"]])}),
            AlterTopic(random.choice("ab"), {"publish": random.choice([["*"], ["ben"]])}),
        ]
        now_us += random.choice([0, 0, SECOND_US])
        node = random.choice([ACME, *READERS])
        sentence = control.apply(node, sequence, encode_command(random.choice(choices)), now_us)
        changes = control.take_changes()
        content.update(repr((sentence, changes)).encode() + encoded(control))
    return content.hexdigest()


def test_the_state_does_not_depend_on_how_a_process_hashes() -> None:
    """Python orders sets of texts differently each time it starts."""
    script = "import test_replay; print(test_replay._state_after(7))"
    states = []
    for seed in ("0", "1", "2"):
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        settings_of = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=settings_of, capture_output=True, text=True, check=True)
        states.append(done.stdout.strip())
    assert states == [_state_after(7)] * 3
