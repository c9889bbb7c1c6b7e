"""A session holds registrations and memberships until it gives them up or its lease ends."""

import pytest

from commands import (
    ACME,
    ANNA,
    BEN,
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
    COMMAND_BYTES_MAX,
    LEASE_US,
    LEASE_US_MAX,
    LEASE_US_MIN,
    Command,
    Commit,
    CreateTopic,
    Join,
    PutClient,
    Register,
    Renew,
    Unregister,
    encode_command,
)
from quorate.core.ids import member_of, node_of
from quorate.protocol.control import machine
from quorate.protocol.control.state import (
    PUBLISHERS_PER_MEMBER_MAX,
    REST_US,
    SENTENCE_CHARACTERS_MAX,
    SESSIONS_PER_MEMBER_MAX,
)


def session_of(node: int, session: int) -> int:
    return node_of(member_of(node), session)


def test_a_registered_session_may_publish_until_it_unregisters() -> None:
    commander = Commander()
    assert not commander.control.may_publish(ANNA, "orders")
    commander.ok(ANNA, Register("orders"))
    assert commander.control.may_publish(ANNA, "orders")
    assert not commander.control.may_publish(session_of(ANNA, 1), "orders")
    commander.ok(ANNA, Register("orders"))
    assert commander.state.sessions[ANNA].topics == ["orders"]
    commander.ok(ANNA, Unregister("orders"))
    assert not commander.control.may_publish(ANNA, "orders")
    commander.ok(ANNA, Unregister("orders"))


def test_a_session_has_another_one_of_its_client_registered_and_renewed() -> None:
    """One that goes on where a former one was gives no commands itself."""
    commander, other = Commander(), session_of(ANNA, 7)
    commander.ok(ANNA, Register("orders", SECOND_US, session=7))
    assert commander.control.may_publish(other, "orders")
    assert not commander.control.may_publish(ANNA, "orders")
    for _ in range(3):
        commander.wait(0.9)
        commander.ok(ANNA, Renew(session=7))
        assert commander.control.may_publish(other, "orders")
    # To be renewed oneself is of no use to the other one.
    commander.wait(1)
    commander.sends(ANNA, encode_command(Renew()))
    assert not commander.control.may_publish(other, "orders")
    assert commander.does(ANNA, Renew(session=7)).startswith("this session of anna holds nothing")

    commander.ok(ANNA, Register("orders", session=7))
    commander.ok(ANNA, Unregister("orders", session=7))
    assert not commander.control.may_publish(other, "orders")
    # Of others, nobody registers anything.
    commander.ok(BEN, Register("orders", session=7))
    assert not commander.control.may_publish(other, "orders")


def test_sessions_for_others_count_as_sessions() -> None:
    commander = Commander()
    for session in range(SESSIONS_PER_MEMBER_MAX):
        commander.ok(BEN, Unregister("orders", session + 1))
        commander.does(BEN, Renew())
    assert member_of(BEN) in commander.state.ended
    assert len(commander.state.sessions) == SESSIONS_PER_MEMBER_MAX


def test_registering_needs_the_list_a_log_and_a_lease_within_bounds() -> None:
    commander = Commander(cluster({"orders": {**LOG, "publish": ["ben"]}, "news": {}}))
    assert commander.does(ANNA, Register("orders")) == "anna may not publish on 'orders'; ben may"
    assert commander.does(BEN, Register("nothing")) == "there is no topic 'nothing'"
    assert commander.does(BEN, Register("news")).startswith("topic 'news' is not a log topic")
    for lease_us in (LEASE_US_MIN - 1, LEASE_US_MAX + 1):
        assert commander.does(BEN, Register("orders", lease_us)) == (
            f"a lease of {lease_us} microseconds; allowed are {LEASE_US_MIN} to {LEASE_US_MAX}"
        )
    assert not any(session.topics for session in commander.state.sessions.values())


def test_a_topic_has_so_many_publishers_and_those_whose_lease_ended_do_not_count() -> None:
    commander = Commander(cluster({"orders": {**LOG, "publishers_max": 2}}))
    commander.ok(ANNA, Register("orders", SECOND_US))
    commander.ok(BEN, Register("orders", 5 * SECOND_US))
    full = "topic 'orders' already has its 2 publishers"
    assert commander.does(CARL, Register("orders")) == full
    commander.ok(BEN, Register("orders", 5 * SECOND_US))

    commander.wait(1)
    commander.ok(CARL, Register("orders"))
    assert not commander.control.may_publish(ANNA, "orders")
    assert commander.does(ANNA, Register("orders")) == full


def test_sessions_of_a_client_register_on_so_many_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "REGISTRATIONS_PER_MEMBER_MAX", 2)
    commander = Commander(cluster(dict.fromkeys("abc", LOG)))
    commander.ok(ANNA, Register("a"))
    commander.ok(session_of(ANNA, 1), Register("a"))
    assert commander.does(ANNA, Register("c")) == (
        "the sessions of anna publish on 2 topics already, each topic counted for every session"
    )
    commander.ok(BEN, Register("c"))


def test_a_session_is_in_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GROUPS_PER_SESSION_MAX", 1)
    commander = Commander()
    commander.join(ANNA, group="crew/g")
    commander.join(ANNA, group="crew/g")
    assert commander.does(ANNA, Join("h", ["orders"])) == (
        "this session of anna is in 1 groups already"
    )


def test_a_lease_ends_by_the_time_of_the_log_whoever_the_next_command_is_from() -> None:
    for somebody in (BEN, node_of(5000), node_of(0)):
        commander = Commander()
        commander.ok(ANNA, Register("orders", 2 * SECOND_US))
        commander.join(ANNA, group="crew/g")
        # Joining asked for the usual lease, which is longer.
        commander.wait(LEASE_US / SECOND_US - 0.001)
        commander.sends(somebody, b"nonsense")
        assert commander.control.may_publish(ANNA, "orders")
        commander.wait(0.001)
        commander.sends(somebody, b"nonsense")
        assert not commander.control.may_publish(ANNA, "orders")
        assert ANNA not in commander.state.sessions
        assert commander.assignment("crew/g", ANNA) is None
        assert commander.control.take_changes().groups == {"crew/g": [ANNA]}


@pytest.mark.parametrize("value", [encode_command(Renew()), b"nonsense"])
def test_every_command_of_a_session_renews_it(value: bytes) -> None:
    commander = Commander()
    commander.ok(ANNA, Register("orders", SECOND_US))
    for _ in range(5):
        commander.wait(0.9)
        commander.sends(ANNA, value)
        assert commander.control.may_publish(ANNA, "orders")
    commander.wait(1)
    commander.ok(BEN, Register("orders"))
    assert not commander.control.may_publish(ANNA, "orders")


def test_a_lease_never_gets_shorter_than_it_was_granted() -> None:
    commander = Commander()
    commander.ok(ANNA, Register("orders", 60 * SECOND_US))
    commander.ok(ANNA, Register("orders", SECOND_US))
    assert commander.state.sessions[ANNA].expires_us == 1_060 * SECOND_US
    commander.wait(59)
    commander.ok(BEN, Unregister("orders"))
    assert commander.control.may_publish(ANNA, "orders")
    commander.wait(1)
    commander.ok(BEN, Unregister("orders"))
    assert not commander.control.may_publish(ANNA, "orders")


@pytest.mark.parametrize(
    "grant", [Join("crew/g", ["orders"], SECOND_US), Register("orders", SECOND_US)]
)
def test_who_comes_back_after_its_lease_ended_has_the_lease_that_it_asks_for(
    grant: Join | Register,
) -> None:
    """Its first word is refused, and the session that this makes would last longer."""
    commander = Commander()
    commander.ok(ANNA, grant)
    commander.wait(2)
    assert commander.does(ANNA, Renew()).startswith("this session of anna holds nothing")
    commander.ok(ANNA, grant)
    again = rebuilt(commander.control, commander.genesis)
    # Then it dies.
    for seconds, is_there in ((0.9, True), (0.2, False)):
        commander.wait(seconds)
        for control in (commander.control, again):
            control.apply(BEN, commander.sequence, encode_command(Renew()), commander.now_us)
            assert (ANNA in control.state.sessions) == is_there
    assert encoded(again) == encoded(commander.control)


def test_nothing_grows_with_a_session_that_takes_and_gives_back() -> None:
    commander = Commander()
    for _ in range(machine.ENDS_SPARE):
        commander.ok(ANNA, Register("orders", LEASE_US_MAX))
        commander.ok(ANNA, Unregister("orders"))
        commander.ok(ANNA, Register("orders", LEASE_US_MIN))
        commander.ok(ANNA, Unregister("orders"))
    assert len(commander.control._ends) <= machine.ENDS_SPARE + 2


def test_leases_end_in_their_order_however_long_ago_the_machine_was_made() -> None:
    commander = Commander()
    for node in (ANNA, BEN):
        commander.ok(node, Join("crew/g", ["orders"], SECOND_US))
    commander.wait(0.5)
    commander.ok(ANNA, Renew())
    commander.control.take_changes()
    later = rebuilt(commander.control, commander.genesis)
    commander.wait(5)
    for control in (commander.control, later):
        control.apply(CARL, 9, b"", commander.now_us)
        assert control.take_changes().groups == {"crew/g": [BEN, ANNA]}


def test_the_time_never_goes_back() -> None:
    commander = Commander()
    commander.ok(ANNA, Register("orders", SECOND_US))
    commander.wait(-500)
    commander.ok(ANNA, Renew())
    assert commander.state.time_us == 1_000 * SECOND_US
    assert commander.state.sessions[ANNA].expires_us == 1_001 * SECOND_US


def test_a_session_whose_lease_has_ended_is_told_so() -> None:
    commander = Commander()
    commander.join(ANNA)
    commander.wait(LEASE_US / SECOND_US)
    assert commander.does(ANNA, Renew()) == (
        "this session of anna holds nothing: its lease has ended, or it gave up all it had; "
        "register or join again"
    )
    assert commander.does(ANNA, Commit("crew/g", 1)) == (
        "anna is not in group 'crew/g': its lease has ended, or it left; join again"
    )
    # Having been told does not make it a session that holds something.
    assert commander.does(ANNA, Renew()) != ""
    commander.join(ANNA)
    commander.ok(ANNA, Renew())


def test_a_session_knows_what_came_of_its_last_command() -> None:
    commander = Commander()
    commander.ok(ANNA, Register("orders"))
    refused = commander.does(ANNA, CreateTopic("t", {}))
    assert commander.control.result(ANNA, 2) == refused != ""
    assert commander.control.result(ANNA, 1) is None
    assert commander.control.result(BEN, 2) is None
    again = rebuilt(commander.control, commander.genesis)
    assert again.result(ANNA, 2) == refused


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"do":"dance"}',
        b'{"do":"register"}',
        b'{"do":"renew","more":1}',
        b'{"do":"renew\xff"}',
        b'{"do":"renew","more\xff":1}',
        b'{"do":"register","topic":"orders\xff"}',
        b'{"do":"register","topic":"\\ud800"}',
        b'{"do":"join","group":"g","topics":["\xed\xa0\x80"]}',
        b'{"do":"create-topic","topic":"t","contract":{"\xff":1}}',
        b'{"do":"register","topic":"orders","lease_us":-1}',
        b'{"do":"create-topic","topic":"t","contract":{"publish":[["anna"]]}}',
        b'{"more":' + b"[" * 1500 + b"]" * 1500 + b',"do":"renew"}',
        b'{"do":"create-topic","topic":"t","contract":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"do":"renew"}' + b" " * COMMAND_BYTES_MAX,
    ],
)
def test_what_is_no_command_is_refused_in_the_same_words_everywhere(value: bytes) -> None:
    commander = Commander()
    commander.ok(ACME, Register("orders"))
    state = commander.state
    before = (state.revision, dict(state.topics), list(state.sessions[ACME].topics))
    sentence = commander.sends(ACME, value)
    assert sentence == "this is not a command of the control plane, or exceeds what one may hold"
    assert commander.control.result(ACME, 2) == sentence
    assert (state.revision, state.topics, state.sessions[ACME].topics) == before


@pytest.mark.parametrize(
    "command",
    [
        CreateTopic("\N{SNOWMAN}", {}),
        CreateTopic("t", {"\N{SNOWMAN}": 1}),
        CreateTopic("t", {"order": "\N{SNOWMAN}"}),
        CreateTopic("t", {"publish": ["\N{SNOWMAN}"]}),
        CreateTopic("t", {"expires_after": "\N{SNOWMAN}"}),
        PutClient("\N{SNOWMAN}", "acme", **pins(150)),
        add_replica(party="\N{SNOWMAN}"),
        add_replica(host="\N{SNOWMAN}"),
        Join("\N{SNOWMAN}", ["orders"]),
    ],
)
def test_how_a_refusal_shows_what_it_names_does_not_depend_on_which_characters_there_are(
    command: Command,
) -> None:
    """Python learns of more with every release, and replicas agree on their answers."""
    assert r"'\u2603'" in Commander().does(ACME, command)


def test_a_member_has_so_many_sessions_and_those_that_ended_make_room() -> None:
    commander = Commander()
    for session in range(SESSIONS_PER_MEMBER_MAX):
        commander.ok(session_of(ANNA, session), Register("orders", SECOND_US))
        commander.ok(session_of(ANNA, session), Unregister("orders"))
    one_more = session_of(ANNA, SESSIONS_PER_MEMBER_MAX)
    assert commander.does(one_more, Renew()) == (
        f"anna has {SESSIONS_PER_MEMBER_MAX} sessions already; one of them has to end before "
        f"another can begin"
    )
    commander.ok(BEN, Unregister("orders"))

    # Now they rest, and the first of them gives its place to another.
    commander.wait(1)
    another = session_of(ANNA, SESSIONS_PER_MEMBER_MAX + 1)
    commander.ok(another, Unregister("orders"))
    assert list(commander.state.sessions) == [BEN, another]
    assert [*map(commander.control.has_ended, (one_more, ANNA, session_of(ANNA, 1)))] == [
        True,
        True,
        False,
    ]
    assert commander.control.take_changes().ended == [one_more, session_of(ANNA, 0)]


def test_a_session_that_rests_goes_on_and_one_that_ended_does_not() -> None:
    commander = Commander()
    commander.ok(ANNA, Register("orders"))
    commander.wait(REST_US / SECOND_US)
    commander.ok(ANNA, Register("orders"))
    assert commander.control.may_publish(ANNA, "orders")

    commander.wait((REST_US + LEASE_US) / SECOND_US)
    refusal = "session 0 of anna has ended, and its number is not used again; begin a new session"
    assert commander.does(ANNA, Register("orders")) == refusal
    commander.control = rebuilt(commander.control, commander.genesis)
    assert commander.does(ANNA, Register("orders")) == refusal
    assert commander.does(session_of(ANNA, 1), Register("orders")) == ""


def test_the_streams_of_a_client_are_bounded_where_it_registers() -> None:
    topics = {name: {**LOG, "partitions": 2048} for name in "abc"}
    commander = Commander(cluster(topics))
    commander.ok(ANNA, Register("a", SECOND_US))
    commander.ok(session_of(ANNA, 1), Register("a"))
    commander.ok(session_of(ANNA, 1), Register("a"))
    for name in "ab":
        assert commander.does(session_of(ANNA, 2), Register(name)) == (
            "the sessions of anna would have 6144 streams, one for each partition of each topic; "
            "allowed are 4096 until one of the sessions ends"
        )
    commander.ok(BEN, Register("b"))
    commander.ok(ANNA, Unregister("a"))
    assert "6144 streams" in commander.does(session_of(ANNA, 2), Register("b"))
    assert commander.control.take_changes().ended == []

    # What rests gives way to what lives.
    commander.wait(1)
    commander.ok(session_of(ANNA, 2), Register("b"))
    assert commander.control.take_changes().ended == [ANNA]
    assert commander.control.has_ended(ANNA)


def publish_all(commander: Commander) -> None:
    for session in range(PUBLISHERS_PER_MEMBER_MAX):
        commander.ok(session_of(ANNA, session), Register("orders", SECOND_US))


@pytest.mark.parametrize("restarted", [False, True])
def test_so_many_sessions_of_a_member_publish_and_others_of_it_have_to_wait(
    restarted: bool,
) -> None:
    commander = Commander()
    publish_all(commander)
    if restarted:
        commander.control = rebuilt(commander.control, commander.genesis)
    one_more = session_of(ANNA, PUBLISHERS_PER_MEMBER_MAX)

    assert commander.does(one_more, Register("orders")) == (
        f"anna publishes on log topics in {PUBLISHERS_PER_MEMBER_MAX} sessions already; one of "
        f"them has to end before another can begin"
    )
    # It may do anything else, one that publishes may register again, and so may other members.
    commander.ok(one_more, Join("crew/g", ["orders"]))
    commander.ok(session_of(ANNA, 0), Register("orders", SECOND_US))
    commander.ok(BEN, Register("orders"))


@pytest.mark.parametrize("end", ["unregistered", "lease ended"])
def test_a_session_that_ends_leaves_its_place_to_another_that_publishes(end: str) -> None:
    commander = Commander()
    publish_all(commander)
    if end == "unregistered":
        commander.ok(session_of(ANNA, 7), Unregister("orders"))
    else:
        commander.wait(1)
    one_more = session_of(ANNA, PUBLISHERS_PER_MEMBER_MAX)
    assert commander.does(one_more, Register("orders")) == ""
    assert commander.state.sessions[one_more].topics == ["orders"]


def test_a_sentence_is_not_longer_than_what_a_session_keeps() -> None:
    commander = Commander()
    sentence = commander.does(ACME, CreateTopic("t", {"publish": ["y" * 900]}))
    assert sentence.startswith("topic 't': publish names 'yyy")
    assert len(sentence) == SENTENCE_CHARACTERS_MAX
    assert commander.control.result(ACME, 1) == sentence
