"""A group shares partitions out, hands them over without two readers, and keeps its offsets."""

from collections.abc import Iterator

import pytest

from commands import ACME, ANNA, BEN, BOLT, CARL, LOG, SECOND_US, Commander, cluster
from quorate.core.batch import encode_one
from quorate.core.control import (
    LEASE_US,
    AlterGroup,
    AlterTopic,
    Commit,
    DeleteGroup,
    Join,
    Leave,
    Renew,
    ResetGroup,
    encode_command,
)
from quorate.core.ids import NodeId, member_of, node_of
from quorate.core.ordering import Assigned
from quorate.protocol.control import groups
from quorate.protocol.control.machine import Control
from quorate.protocol.control.replica import Steward
from quorate.protocol.control.state import (
    MEMBERS_PER_GROUP_MAX,
    TOPICS_PER_MEMBER_MAX,
    Group,
    Place,
)
from quorate.protocol.outbox import Outbox


def orders(*partitions: int) -> list[tuple[str, int]]:
    return [("orders", partition) for partition in partitions]


def begun(node: NodeId, *, commander: Commander) -> dict[tuple[str, int], int | None]:
    assignment = commander.assignment("crew/g", node)
    assert assignment is not None
    return {
        (topic, partition): None if offset < 0 else offset
        for topic, partition, offset in assignment.partitions
    }


def handed_over() -> Commander:
    """Anna had everything, and Ben has come."""
    commander = Commander()
    commander.join(ANNA)
    commander.commit(ANNA, ("orders", 3, 30))
    commander.join(BEN)
    return commander


def test_the_first_member_reads_everything() -> None:
    commander = Commander()
    commander.join(ANNA)
    assert commander.assignment("crew/g", ANNA) == Assigned(
        "crew/g", 1, 4, [("orders", partition, -1) for partition in range(4)]
    )
    assert commander.control.take_changes().groups == {"crew/g": [ANNA]}
    assert commander.assignment("crew/g", BEN) is None
    assert commander.assignment("h", ANNA) is None


def test_a_partition_is_handed_over_only_when_its_holder_gives_it_up() -> None:
    commander = handed_over()
    assert commander.reads(ANNA) == orders(0, 1)
    assert commander.reads(BEN) == []
    commander.control.take_changes()

    # A commit of the old epoch, and a sign of life, give nothing up.
    commander.ok(ANNA, Commit("crew/g", 1, [("orders", 3, 31)]))
    commander.ok(ANNA, Renew())
    assert commander.reads(BEN) == []
    assert commander.control.take_changes().groups == {}

    commander.ok(ANNA, Commit("crew/g", 2, [("orders", 3, 33), ("orders", 0, 5)]))
    assert begun(BEN, commander=commander) == {("orders", 2): None, ("orders", 3): 33}
    assert begun(ANNA, commander=commander) == {("orders", 0): 5, ("orders", 1): None}
    assert commander.control.take_changes().groups == {"crew/g": [BEN]}


def test_a_member_that_leaves_gives_up_all() -> None:
    commander = handed_over()
    commander.ok(ANNA, Leave("crew/g"))
    assert commander.reads(BEN) == orders(0, 1, 2, 3)
    assert begun(BEN, commander=commander)["orders", 3] == 30
    assert commander.assignment("crew/g", ANNA) is None
    commander.ok(ANNA, Leave("crew/g"))
    assert commander.state.sessions[ANNA].groups == []


def test_a_member_whose_lease_ends_gives_up_all() -> None:
    commander = handed_over()
    commander.wait(LEASE_US / SECOND_US - 1)
    commander.ok(BEN, Renew())
    commander.wait(1)
    commander.ok(BEN, Renew())
    assert commander.reads(BEN) == orders(0, 1, 2, 3)
    assert commander.state.groups["crew/g"].epoch == 3


def test_what_comes_back_before_it_was_given_up_was_never_away() -> None:
    commander = handed_over()
    before = commander.assignment("crew/g", ANNA)
    commander.ok(BEN, Leave("crew/g"))
    after = commander.assignment("crew/g", ANNA)
    assert before is not None
    assert after is not None
    assert commander.reads(ANNA) == orders(0, 1, 2, 3)
    assert after.revision > before.revision

    # It was asked to give up in epoch 2, and in epoch 3 it was not: this commit came too late.
    commander.ok(ANNA, Commit("crew/g", 2, [("orders", 3, 40)]))
    assert commander.reads(ANNA) == orders(0, 1, 2, 3)
    commander.join(CARL)
    commander.ok(ANNA, Commit("crew/g", 3))
    assert commander.reads(CARL) == []
    commander.ok(ANNA, Commit("crew/g", 4))
    assert len(commander.reads(CARL)) == 2


def test_what_was_to_be_handed_over_goes_back_to_whoever_still_holds_it() -> None:
    commander = Commander(cluster({name: {**LOG, "partitions": 3} for name in "ab"}))
    commander.join(ANNA, "b")
    commander.join(CARL, "a", "b")
    commander.join(ANNA, "a", "b")
    before = {node: commander.reads(node) for node in (ANNA, CARL)}
    commander.join(BEN, "a", "b")
    assert [len(commander.reads(node)) for node in (ANNA, CARL, BEN)] == [2, 2, 0]
    commander.ok(BEN, Leave("crew/g"))
    assert {node: commander.reads(node) for node in (ANNA, CARL)} == before


def test_an_epoch_in_between_does_not_hold_a_handover_up() -> None:
    commander = handed_over()
    commander.join(CARL)
    # Anna knows of epoch 2 only, in which it had to do without partitions 2 and 3.
    commander.ok(ANNA, Commit("crew/g", 2))
    assert commander.reads(BEN) == orders(2, 3)
    # Partition 1 was asked for in epoch 3, of which it has not heard.
    assert commander.reads(CARL) == []
    commander.ok(ANNA, Commit("crew/g", 3))
    assert commander.reads(CARL) == orders(1)


def test_a_commit_names_what_the_member_holds() -> None:
    commander = handed_over()
    commander.ok(ANNA, Commit("crew/g", 2))
    before = [[place.offset for place in places] for places in _places(commander)]
    assert commander.does(ANNA, Commit("crew/g", 1, [("orders", 0, 9), ("orders", 2, 9)])) == (
        "anna does not hold partition 2 of topic 'orders' in group 'crew/g' "
        "(it commits in epoch 1, and the group is in 2)"
    )
    assert "does not hold partition 0" in commander.does(
        BEN, Commit("crew/g", 2, [("orders", 0, 9)])
    )
    assert commander.does(ANNA, Commit("crew/g", 2, [("nothing", 0, 9)])) == (
        "there is no topic 'nothing'"
    )
    assert commander.does(ANNA, Commit("crew/g", 2, [("orders", 4, 9)])) == (
        "group 'crew/g' has no partition 4 of topic 'orders'"
    )
    assert "has no partition 0 of topic 'news'" in commander.does(
        ANNA, Commit("crew/g", 2, [("news", 0, 9)])
    )
    assert (
        commander.does(ANNA, Commit("crew/g", 3))
        == "group 'crew/g' is in epoch 2, and has not been in 3"
    )
    assert "is not in group 'crew/g'" in commander.does(CARL, Commit("crew/g", 2))
    assert "is not in group 'h'" in commander.does(ANNA, Commit("h", 0))
    assert [[place.offset for place in places] for places in _places(commander)] == before
    # What it still holds, it may commit with whatever epoch it knows.
    commander.ok(ANNA, Commit("crew/g", 1, [("orders", 0, 9)]))


def _places(commander: Commander) -> list[list[Place]]:
    return list(commander.state.groups["crew/g"].places.values())


def test_offsets_may_go_back() -> None:
    commander = Commander()
    commander.join(ANNA)
    commander.commit(ANNA, ("orders", 0, 50))
    commander.commit(ANNA, ("orders", 0, 20))
    assert begun(ANNA, commander=commander)["orders", 0] == 20


def test_a_group_without_members_keeps_its_offsets() -> None:
    commander = Commander()
    commander.join(ANNA)
    commander.commit(ANNA, ("orders", 1, 77))
    commander.ok(ANNA, Leave("crew/g"))
    assert commander.state.groups["crew/g"].members == {}
    commander.join(BEN)
    assert begun(BEN, commander=commander)["orders", 1] == 77


def test_joining_again_with_other_topics_changes_the_subscription() -> None:
    commander = Commander(cluster({"a": LOG, "b": LOG}))
    commander.join(ANNA, "a")
    commander.join(ANNA, "a")
    assert commander.state.groups["crew/g"].epoch == 1
    commander.join(ANNA, "b", "a")
    assert commander.reads(ANNA) == [("a", 0), ("b", 0)]
    commander.join(ANNA, "b")
    assert commander.reads(ANNA) == [("b", 0)]
    # It still holds what it gave no word about, and may say how far it came.
    commander.commit(ANNA, ("a", 0, 5))
    commander.join(BEN, "a")
    assert begun(BEN, commander=commander) == {("a", 0): 5}


def test_topics_that_nobody_reads_or_committed_are_forgotten() -> None:
    commander = Commander(cluster({"a": LOG, "b": LOG}))
    commander.join(ANNA, "a")
    commander.join(ANNA, "b")
    assert list(commander.state.groups["crew/g"].places) == ["a", "b"]
    commander.commit(ANNA)
    assert list(commander.state.groups["crew/g"].places) == ["b"]


def test_more_partitions_begin_a_new_epoch_in_which_nothing_moves() -> None:
    commander = handed_over()
    commander.commit(ANNA)
    before = {node: commander.reads(node) for node in (ANNA, BEN)}
    commander.control.take_changes()
    commander.ok(ACME, AlterTopic("orders", {"partitions": 7}))

    assert commander.state.groups["crew/g"].epoch == 3
    after = {node: commander.reads(node) for node in (ANNA, BEN)}
    assert all(set(before[node]) <= set(after[node]) for node in after)
    assert sorted(len(parts) for parts in after.values()) == [3, 4]
    assert commander.control.take_changes() == (True, {"crew/g": [ANNA, BEN]}, [])


def test_what_a_topic_gets_later_is_read_from_its_beginning_even_if_nobody_is_there() -> None:
    commander = handed_over()
    for node in (ANNA, BEN):
        commander.ok(node, Leave("crew/g"))
    commander.ok(ACME, AlterTopic("orders", {"partitions": 6}))
    commander.join(ANNA)

    offsets = [place.offset for place in commander.state.groups["crew/g"].places["orders"]]
    assert offsets == [None, None, None, 30, 0, 0]


def test_another_change_of_a_topic_leaves_its_groups_alone() -> None:
    commander = handed_over()
    before = commander.state.groups["crew/g"].epoch
    commander.ok(ACME, AlterTopic("orders", {"retention": "1d"}))
    assert commander.state.groups["crew/g"].epoch == before


def test_who_is_taken_off_the_subscribe_list_reads_no_more() -> None:
    commander = Commander(cluster({"a": LOG, "b": LOG}))
    commander.join(ANNA, "a", "b")
    commander.join(BEN, "a", "b")
    commander.commit(ANNA)
    commander.control.take_changes()
    commander.ok(ACME, AlterTopic("a", {"subscribe": ["ben"]}))
    # Nothing of it is handed over: Anna may not read it even now.
    assert not any(topic == "a" for topic, _ in commander.reads(ANNA))
    assert ("a", 0) in commander.reads(BEN)
    assert set(commander.control.take_changes().groups["crew/g"]) == {ANNA, BEN}

    commander.ok(ACME, AlterTopic("b", {"subscribe": ["ben"]}))
    assert commander.assignment("crew/g", ANNA) is None
    assert commander.state.sessions[ANNA].groups == []
    assert ANNA in commander.control.take_changes().groups["crew/g"]
    assert commander.reads(BEN) == [("a", 0), ("b", 0)]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (Join("a b", ["orders"]), "group 'a b' is not a name; allowed are 1 to 200"),
        (Join("crew/g", []), "a member of a group reads 0 topics; allowed are 1 to 64"),
        (Join("crew/g", ["nothing"]), "there is no topic 'nothing'"),
        (Join("crew/g", ["news"]), "topic 'news' is not a log topic"),
        (Join("crew/g", ["orders", "mine"]), "anna may not subscribe to 'mine'; ben may"),
        (Join("crew/g", ["orders"], 1), "a lease of 1 microseconds; allowed are"),
    ],
)
def test_a_join_that_cannot_be_is_refused(command: Join, sentence: str) -> None:
    commander = Commander(
        cluster({"orders": LOG, "mine": {**LOG, "subscribe": ["ben"]}, "news": {}})
    )
    assert sentence in commander.does(ANNA, command)
    assert commander.state.groups == {}
    assert commander.state.sessions[ANNA].groups == []


def test_a_member_reads_so_many_topics() -> None:
    names = [f"t{i}" for i in range(TOPICS_PER_MEMBER_MAX + 1)]
    commander = Commander(cluster(dict.fromkeys(names, LOG)))
    assert "reads 65 topics; allowed are 1 to 64" in commander.does(ANNA, Join("crew/g", names))
    commander.join(ANNA, *names[1:])


def test_a_group_has_so_many_members() -> None:
    commander = Commander()
    for session in range(MEMBERS_PER_GROUP_MAX):
        commander.join(session // 2 << 32 | (ANNA, CARL)[session % 2])
    assert commander.does(BEN, Join("crew/g", ["orders"])) == (
        "group 'crew/g' already has its 256 members"
    )
    commander.join(5 << 32 | ANNA)


def test_a_group_has_so_many_partitions() -> None:
    topics = {name: {**LOG, "partitions": 4096} for name in "abc"}
    commander = Commander(cluster(topics))
    commander.join(ANNA, "a")
    for group in ("crew/g", "crew/h"):
        assert commander.does(ANNA, Join(group, ["b"])) == (
            f"with group '{group}', the groups of crew would have 8192 partitions; allowed are 4096"
        )
    commander.join(BEN, "a")
    commander.ok(ACME, Join("acme/g", ["b"]))


def test_no_party_takes_the_groups_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS_PER_PARTY_MAX", 3)
    commander = Commander()
    commander.ok(ACME, Join("acme/g", ["orders"]))
    commander.ok(ACME, Commit("acme/g", 1, [("orders", 0, 500)]))
    commander.ok(ACME, Leave("acme/g"))
    for name in ("one", "two", "three"):
        commander.ok(CARL, Join(f"crew/{name}", ["orders"]))
        commander.ok(CARL, Leave(f"crew/{name}"))
    assert commander.does(CARL, Join("crew/four", ["orders"])) == (
        "crew has 3 groups already; an operator of it has to delete one"
    )
    commander.ok(ACME, Join("acme/g", ["orders"]))
    assert commander.state.groups["acme/g"].places["orders"][0].offset == 500


def test_a_client_of_another_party_is_not_in_a_group_that_did_not_let_it_in() -> None:
    commander = Commander()
    commander.ok(ACME, Join("acme/g", ["orders"]))
    commander.ok(ACME, Commit("acme/g", 1, [("orders", 0, 500)]))
    refusal = "group 'acme/g' is of acme, and carl is of crew and not on its access list"
    assert commander.does(CARL, Join("acme/g", ["orders"])) == refusal
    assert commander.does(CARL, Join("acme/new", ["orders"])) == refusal.replace("g'", "new'")
    assert "carl is not in group 'acme/g'" in commander.does(
        CARL, Commit("acme/g", 1, [("orders", 0, 10**12)])
    )
    assert "only operators of acme let others in" in commander.does(
        CARL, AlterGroup("acme/g", ["carl"])
    )
    assert "only operators of acme" in commander.does(BOLT, ResetGroup("acme/g"))
    assert commander.state.groups["acme/g"].places["orders"][0].offset == 500

    assert commander.does(ACME, AlterGroup("acme/g", ["karl"])) == "there is no client named 'karl'"
    commander.ok(ACME, AlterGroup("acme/g", ["carl"]))
    commander.ok(CARL, Join("acme/g", ["orders"]))
    assert commander.does(BEN, Join("acme/g", ["orders"])).endswith("not on its access list")
    commander.ok(ACME, AlterGroup("acme/g", []))
    assert list(commander.state.groups["acme/g"].members) == [ACME]
    assert commander.state.sessions[CARL].groups == []


def test_a_group_is_of_a_party() -> None:
    commander = Commander()
    assert commander.does(ANNA, Join("g", ["orders"])) == (
        "group 'g' is of no party; the name of a group is PARTY/NAME"
    )


def test_an_idle_group_ends_by_age() -> None:
    commander = Commander()
    commander.ok(ANNA, Join("crew/g", ["orders"], keep_us=60 * SECOND_US))
    commander.commit(ANNA, ("orders", 0, 5))
    commander.ok(ANNA, Leave("crew/g"))
    commander.wait(59)
    commander.ok(ANNA, Join("crew/g", ["orders"]))
    assert begun(ANNA, commander=commander)["orders", 0] == 5
    commander.ok(ANNA, Leave("crew/g"))
    commander.wait(60)
    commander.ok(ACME, Join("acme/g", ["orders"]))
    assert commander.control.groups.of_party("crew") == []
    commander.ok(ANNA, Join("crew/g", ["orders"]))
    assert begun(ANNA, commander=commander)["orders", 0] is None


def test_an_operator_of_its_party_resets_and_deletes_a_group() -> None:
    commander = Commander()
    commander.ok(ACME, Join("acme/g", ["orders"], mode="validated"))
    commander.ok(ACME, Commit("acme/g", 1, [("orders", 0, 5), ("orders", 1, 6)]))
    for command in (ResetGroup("acme/g"), DeleteGroup("acme/g")):
        assert commander.does(ACME, command) == (
            "group 'acme/g' has 1 members, which have to leave first"
        )
    commander.ok(ACME, Leave("acme/g"))
    assert "has no partition 4" in commander.does(ACME, ResetGroup("acme/g", [("orders", 4, 0)]))
    commander.ok(ACME, ResetGroup("acme/g", [("orders", 1, 2)]))
    commander.ok(ACME, Join("acme/g", ["orders"], mode="basic"))
    assignment = commander.assignment("acme/g", ACME)
    assert assignment is not None
    assert [offset for _, _, offset in assignment.partitions] == [-1, 2, -1, -1]
    commander.ok(ACME, Leave("acme/g"))
    commander.ok(ACME, DeleteGroup("acme/g"))
    assert commander.state.groups == {}
    assert commander.does(ACME, DeleteGroup("acme/g")) == "there is no group 'acme/g'"


def test_the_first_member_fixes_the_mode_of_a_group() -> None:
    commander = Commander()
    commander.join(ANNA)
    commander.ok(BEN, Join("crew/g", ["orders"], mode="validated"))
    assert commander.does(CARL, Join("crew/g", ["orders"], mode="basic")) == (
        "group 'crew/g' reads validated batches, and carl asks for basic ones; join another "
        "group, or have the owner reset this one"
    )
    commander.ok(CARL, Join("crew/g", ["orders"], mode="validated"))


def test_what_comes_with_a_commit_is_handed_to_the_next_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commander = Commander()
    commander.join(ANNA)
    offsets = [("orders", 0, 5), ("orders", 1, 6)]
    assert "with 1 notes" in commander.does(ANNA, Commit("crew/g", 1, offsets, [(7, "x")]))
    too_long = Commit("crew/g", 1, offsets[:1], [(7, "\u00e9" * 2049)])
    assert commander.does(ANNA, too_long) == "metadata of a commit has at most 4096 bytes"
    commander.ok(ANNA, Commit("crew/g", 1, offsets, [(7, "\u00e9" * 2048), (-1, "")]))
    commander.ok(ANNA, Leave("crew/g"))
    commander.join(BEN)
    assignment = commander.assignment("crew/g", BEN)
    assert assignment is not None
    assert assignment.notes == [("orders", 0, 7, "\u00e9" * 2048)]

    monkeypatch.setattr(groups, "METADATA_BYTES_PER_PARTY_MAX", 4100)
    more = Commit("crew/g", 3, [("orders", 1, 7)], [(-1, "12345")])
    assert commander.does(BEN, more) == (
        "the commits of the groups of crew would have 4101 bytes of metadata; allowed are 4100"
    )
    commander.ok(BEN, Commit("crew/g", 3, [("orders", 0, 6)]))
    commander.ok(BEN, more)
    assert commander.state.groups["crew/g"].places["orders"][1].metadata == "12345"


def test_a_client_reads_so_many_topics_in_all_its_groups() -> None:
    names = [f"t{i}" for i in range(64)]
    commander = Commander(cluster(dict.fromkeys(names, LOG)))
    for number in range(2):
        commander.join(ANNA, *names, group=f"crew/{number}")
    assert commander.does(ANNA, Join("crew/5", ["t0"])) == (
        "anna would read 129 topics in all its groups; allowed are 128"
    )
    commander.join(BEN, *names, group="crew/2")
    commander.join(BEN, *names, group="crew/3")
    assert commander.does(CARL, Join("crew/4", ["t0"])) == (
        "with group 'crew/4', the groups of crew would have 257 topics; allowed are 256"
    )


def test_a_group_is_described_for_people() -> None:
    commander = handed_over()
    described = commander.control.describe_group("crew/g")
    assert described is not None
    assert (described.name, described.epoch) == ("crew/g", 2)
    assert [(m.name, m.node, m.topics, m.partitions) for m in described.members] == [
        ("anna", ANNA, ["orders"], 2),
        ("ben", BEN, ["orders"], 0),
    ]
    assert [(p.partition, p.holder, p.owner, p.offset) for p in described.partitions] == [
        (0, "anna", "anna", None),
        (1, "anna", "anna", None),
        (2, "anna", "ben", None),
        (3, "anna", "ben", 30),
    ]
    assert commander.control.describe_group("h") is None


def test_a_group_is_gone_through_as_often_for_many_members_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All are told whenever one joins: whoever has many sessions could keep replicas busy."""
    walks = 0
    places = groups.places_of

    def counted(group: Group) -> Iterator[tuple[str, int, Place]]:
        nonlocal walks
        walks += 1
        return places(group)

    monkeypatch.setattr(groups, "places_of", counted)
    outbox = Outbox()
    steward = Steward(Control(cluster()), outbox)
    join = encode_one(None, encode_command(Join("crew/g", ["orders"])), (), 0, False)
    needed: list[int] = []
    for session in range(1, 9):
        walks = 0
        steward.carry_out(node_of(member_of(ANNA), session), 1, [join], SECOND_US)
        needed.append(walks)
        told = [each for _, each in outbox.take().send if isinstance(each, Assigned)]
        # Whoever joins hears it twice.
        assert len(told) == session + 1
    assert len(set(needed)) == 1
