"""A client's end of the control plane: whose word it takes for what, and what it says again."""

from dataclasses import replace

import pytest

from commands import ANNA, cluster
from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.control import CONTROL_TOPIC, Command, Join, Leave, Renew, decode_command
from quorate.core.errors import LocalProtocolError
from quorate.core.messages import Message
from quorate.core.ordering import (
    Append,
    Assigned,
    Concluded,
    Ordered,
    Recall,
    TopologyQuery,
    TopologyReport,
)
from quorate.crypto.digests import digest
from quorate.protocol.control.client import ASK_AGAIN_US, FORGOTTEN_AFTER_US, Commands
from quorate.protocol.machine import Answered, Outcome, Recorded, Shared, Topology
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import Requests
from quorate.protocol.topic import topics_of

REPLICAS = (0, 1, 2, 3)


class Office:
    """Commands of one client of a cluster with four replicas, of which one may lie."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        topics = {topic.name: topic for topic in topics_of(cluster())}
        self.topic = topics[CONTROL_TOPIC]
        requests = Requests(self.outbox)
        self.commands = Commands(ANNA, self.topic, self.outbox, requests)

    def taken(self) -> tuple[list[tuple[int, Message]], list[Outcome]]:
        """What is sent and delivered by now."""
        self.commands.flush(lambda _: True)
        ready = self.outbox.take()
        news: list[Outcome] = [
            outcome for outcome in ready.deliver if not isinstance(outcome, Recorded)
        ]
        return ready.send, news

    def later(self, microseconds: int) -> tuple[list[tuple[int, Message]], list[Outcome]]:
        self.outbox.now_us += microseconds
        self.commands.tick()
        return self.taken()

    def ordered(self, sequence: int) -> None:
        for replica in (0, 1):
            self.commands.on_ordered(replica, Ordered(self.topic.id, 0, sequence, 1, 7, 0))


def commands_in(sent: list[tuple[int, Message]], replica: int) -> list[Command]:
    found: list[Command] = []
    for to, message in sent:
        if to == replica and isinstance(message, Append):
            events = [Batch(payload).events()[0] for payload in message.payloads]
            found += [decode_command(event.value) for event in events]
    return found


def test_a_command_goes_to_every_replica_and_two_equal_answers_are_one() -> None:
    office = Office()
    number = office.commands.give(Renew(), 0)
    sent, _ = office.taken()
    assert all(commands_in(sent, replica) == [Renew()] for replica in REPLICAS)

    office.commands.on_concluded(3, Concluded(1, "a lie"))
    office.commands.on_concluded(3, Concluded(1, "a lie"))
    office.commands.on_concluded(0, Concluded(1, "no"))
    assert office.taken()[1] == []
    office.commands.on_concluded(1, Concluded(1, "no"))
    assert office.taken()[1] == [Answered(number, "no")]
    office.commands.on_concluded(2, Concluded(1, "no"))
    assert office.taken()[1] == []


def test_one_command_follows_the_other_since_replicas_remember_only_the_last_answer() -> None:
    office = Office()
    first, second = office.commands.give(Renew(), 0), office.commands.give(Leave("ops"), 0)
    assert commands_in(office.taken()[0], 0) == [Renew()]
    office.ordered(1)
    for replica in (0, 1):
        office.commands.on_concluded(replica, Concluded(1, ""))
    sent, outcomes = office.taken()
    assert outcomes == [Answered(first, "")]
    assert commands_in(sent, 0) == [Leave("ops")]
    for replica in (2, 3):
        office.commands.on_concluded(replica, Concluded(2, ""))
    assert office.taken()[1] == [Answered(second, "")]


def test_an_answer_that_was_missed_is_asked_for_again_and_given_up_when_nobody_knows_it() -> None:
    office = Office()
    number = office.commands.give(Renew(), 0)
    office.taken()
    office.ordered(1)
    office.commands.on_concluded(2, Concluded(1, ""))
    sent, _ = office.later(ASK_AGAIN_US)
    assert [(to, message) for to, message in sent if isinstance(message, Recall)] == [
        (replica, Recall(1)) for replica in (0, 1, 3)
    ]
    _, outcomes = office.later(FORGOTTEN_AFTER_US)
    (answered,) = outcomes
    assert isinstance(answered, Answered)
    assert answered.number == number
    assert "nobody remembers" in answered.sentence


def test_a_command_that_is_not_ordered_yet_is_not_given_up() -> None:
    office = Office()
    office.commands.give(Renew(), 0)
    office.taken()
    sent, outcomes = office.later(2 * FORGOTTEN_AFTER_US)
    assert outcomes == []
    assert commands_in(sent, 0) == [Renew()]


def test_a_command_that_is_too_large_is_refused_before_it_is_sent() -> None:
    with pytest.raises(LocalProtocolError, match="bytes; allowed are 12288"):
        Office().commands.give(Leave("x" * 13000), 0)


def test_the_topology_is_believed_when_two_replicas_name_the_digest_of_one_text() -> None:
    office = Office()
    text = cluster().render()
    number = office.commands.ask_topology()
    sent, _ = office.taken()
    assert [message for _, message in sent] == [
        TopologyQuery(number, replica == 0) for replica in REPLICAS
    ]
    # The one that was asked for the text lies, in the text or in its digest.
    forged = cluster({}).render()
    office.commands.on_report(0, TopologyReport(number, 1, digest(forged.encode()), forged))
    office.commands.on_report(1, TopologyReport(number, 0, digest(text.encode()), ""))
    office.commands.on_report(2, TopologyReport(number, 0, digest(text.encode()), ""))
    assert office.taken()[1] == []
    # The next one is asked for it.
    sent, _ = office.later(ASK_AGAIN_US)
    assert (1, TopologyQuery(number, True)) in sent
    office.commands.on_report(1, TopologyReport(number, 0, digest(text.encode()), text + "#"))
    assert office.taken()[1] == []
    office.commands.on_report(1, TopologyReport(number, 0, digest(text.encode()), text))
    assert office.taken()[1] == [Topology(cluster()), Answered(number, "")]


def test_whoever_could_not_be_asked_for_the_topology_is_asked_as_soon_as_it_is_there() -> None:
    office = Office()
    text = cluster().render()
    number = office.commands.ask_topology()
    office.taken()
    for replica in (2, 3):
        office.commands.connected(replica)
        sent, _ = office.taken()
        assert sent == [(replica, TopologyQuery(number, whole=True))]
    for replica in (2, 3):
        office.commands.on_report(replica, TopologyReport(number, 0, digest(text.encode()), text))
    assert office.taken()[1] == [Topology(cluster()), Answered(number, "")]


def test_who_has_answered_is_not_asked_again_and_one_text_is_enough() -> None:
    office = Office()
    text = cluster().render()
    number = office.commands.ask_topology()
    office.commands.on_report(0, TopologyReport(number, 0, digest(text.encode()), text))
    office.taken()
    for replica in (0, 1):
        office.commands.connected(replica)
    assert office.taken()[0] == [(1, TopologyQuery(number, whole=False))]


NEW, OLD = (replace(cluster(), revision=revision).render() for revision in (2, 1))


def said(number: int, text: str) -> TopologyReport:
    return TopologyReport(number, Cluster.parse(text).revision, digest(text.encode()), text)


def test_whoever_asks_patiently_is_not_told_what_a_liar_and_a_laggard_say_first() -> None:
    office = Office()
    number = office.commands.ask_topology(patient=True)
    assert {message for _, message in office.taken()[0]} == {TopologyQuery(number, whole=True)}
    for replica, text in ((3, OLD), (2, OLD), (1, NEW)):
        office.commands.on_report(replica, said(number, text))
        assert office.taken()[1] == []
    office.commands.on_report(0, said(number, NEW))
    assert office.taken()[1] == [Topology(Cluster.parse(NEW)), Answered(number, "")]


def test_whoever_asks_patiently_waits_for_a_while_only() -> None:
    office = Office()
    number = office.commands.ask_topology(patient=True)
    for replica in (3, 2):
        office.commands.on_report(replica, said(number, OLD))
    assert office.later(ASK_AGAIN_US - 1)[1] == []
    assert office.later(1)[1] == [Topology(Cluster.parse(OLD)), Answered(number, "")]


def test_a_text_that_too_few_vouch_for_is_not_believed_though_it_is_newer() -> None:
    office = Office()
    number = office.commands.ask_topology(patient=True)
    for replica, text in ((3, NEW), (2, OLD), (1, OLD), (0, OLD)):
        office.commands.on_report(replica, said(number, text))
    assert office.taken()[1] == [Topology(Cluster.parse(OLD)), Answered(number, "")]


def test_how_a_cluster_began_and_what_it_is_now_can_be_asked_for_at_the_same_time() -> None:
    office = Office()
    text = cluster().render()
    numbers = office.commands.ask_founding(), office.commands.ask_topology()
    sent, _ = office.taken()
    assert {message for to, message in sent if to == 0} == {
        TopologyQuery(numbers[0], True, True),
        TopologyQuery(numbers[1], True, False),
    }
    for number in numbers:
        for replica in (0, 1):
            report = TopologyReport(number, 0, digest(text.encode()), text)
            office.commands.on_report(replica, report)
    assert office.commands.founding == cluster()
    assert office.taken()[1] == [
        Answered(numbers[0], ""), Topology(cluster()), Answered(numbers[1], ""),
    ]  # fmt: skip


def test_an_assignment_is_believed_on_two_equal_words_and_never_an_older_one() -> None:
    office = Office()
    office.commands.give(Join("ops", ["orders"]), 0)
    first = Assigned("ops", 1, 3, [("orders", 0, -1), ("orders", 1, 12)])
    second = Assigned("ops", 2, 4, [("orders", 1, 15)])
    office.commands.on_assigned(3, Assigned("ops", 9, 9, []))
    office.commands.on_assigned(0, first)
    assert office.taken()[1] == []
    office.commands.on_assigned(1, first)
    shared = Shared("ops", 1, (("orders", 0, None), ("orders", 1, 12)))
    assert office.taken()[1] == [shared]
    for replica in (0, 1, 2):
        office.commands.on_assigned(replica, second)
    assert office.taken()[1] == [Shared("ops", 2, (("orders", 1, 15),))]
    office.commands.on_assigned(0, first)
    office.commands.on_assigned(1, first)
    assert office.taken()[1] == []


def test_a_replica_that_makes_up_groups_does_not_hide_the_one_that_there_is() -> None:
    office = Office()
    for number in range(1000):
        office.commands.on_assigned(3, Assigned(f"made up {number}", 1, 1, []))
    office.commands.give(Join("ops", ["orders"]), 0)
    for number in range(1000):
        office.commands.on_assigned(3, Assigned(f"made up too {number}", 1, 1, []))
    for replica in (0, 1):
        office.commands.on_assigned(replica, Assigned("ops", 1, 1, [("orders", 0, -1)]))
    assert office.taken()[1] == [Shared("ops", 1, (("orders", 0, None),))]


def test_what_is_said_of_a_group_that_a_client_left_is_no_news() -> None:
    office = Office()
    office.commands.give(Join("ops", ["orders"]), 0)
    office.commands.leave("ops")
    late = Assigned("ops", 1, 1, [("orders", 0, -1)])
    for replica in (0, 1, 2):
        office.commands.on_assigned(replica, late)
    assert office.taken()[1] == []

    # Once it is a member again, it is.
    office.commands.give(Join("ops", ["orders"]), 0)
    for replica in (0, 1):
        office.commands.on_assigned(replica, late)
    assert office.taken()[1] == [Shared("ops", 1, (("orders", 0, None),))]


def test_what_a_member_had_before_its_lease_ended_does_not_come_back_by_a_liar_and_a_laggard() -> (
    None
):
    office = Office()
    old = Assigned("ops", 5, 8, [("orders", 0, 3), ("orders", 1, 12)])
    office.commands.give(Join("ops", ["orders"]), 0)
    for replica in (0, 1):
        office.commands.on_assigned(replica, old)
    office.taken()
    # Its lease ended, and it joins again.
    office.commands.leave("ops")
    office.commands.give(Join("ops", ["orders"]), 0)
    for replica in (3, 2):
        office.commands.on_assigned(replica, old)
    assert office.taken()[1] == []
    for replica in (0, 1):
        office.commands.on_assigned(replica, Assigned("ops", 7, 11, [("orders", 1, 15)]))
    assert office.taken()[1] == [Shared("ops", 7, (("orders", 1, 15),))]


def test_a_group_that_was_forgotten_meanwhile_is_believed_when_all_correct_replicas_say_so() -> (
    None
):
    office = Office()
    office.commands.give(Join("ops", ["orders"]), 0)
    for replica in (0, 1):
        office.commands.on_assigned(replica, Assigned("ops", 5, 8, []))
    office.taken()
    office.commands.leave("ops")
    office.commands.give(Join("ops", ["orders"]), 0)
    for replica in (0, 1, 2):
        assert office.taken()[1] == []
        office.commands.on_assigned(replica, Assigned("ops", 1, 1, [("orders", 0, -1)]))
    assert office.taken()[1] == [Shared("ops", 1, (("orders", 0, None),))]
    for replica in (0, 1):
        office.commands.on_assigned(replica, Assigned("ops", 2, 1, [("orders", 0, -1)]))
    assert office.taken()[1] == [Shared("ops", 2, (("orders", 0, None),))]


def test_a_stranger_s_word_counts_for_nothing() -> None:
    office = Office()
    number = office.commands.give(Join("ops", ["orders"]), 0)
    office.taken()
    for stranger in (4, ANNA):
        office.commands.on_concluded(stranger, Concluded(1, ""))
        office.commands.on_assigned(stranger, Assigned("ops", 1, 1, []))
    assert office.taken()[1] == []
    assert number


def test_where_too_few_replicas_agree_there_is_nobody_to_command() -> None:
    outbox = Outbox()
    commands = Commands(ANNA, None, outbox, Requests(outbox))
    with pytest.raises(LocalProtocolError, match="no control plane"):
        commands.give(Renew(), 0)
