"""What a client asked for holds until it is taken back."""

from quorate.core.filter import Filter
from quorate.core.messages import Operation, Reply, Request
from quorate.protocol.machine import Answered
from quorate.protocol.requests import REPEAT_AFTER_US, Requests
from stage import R1, R2, R3, R4, Outlook, topic

VOTE = topic({"broadcast": "vote"})
CRASH = topic({"protection": "crash"})
BYZANTINE = topic({"protection": "byzantine", "order": "total"})
LIVE = topic({"broadcast": "authenticated"})


def asked(outlook: Outlook) -> list[tuple[int, Operation, int]]:
    """To whom, what, under which number."""
    return [
        (node, message.operation, message.number)
        for node, message in outlook.take().send
        if isinstance(message, Request)
    ]


def answered(outlook: Outlook) -> list[Answered]:
    return [outcome for outcome in outlook.take().deliver if isinstance(outcome, Answered)]


def test_a_request_goes_to_every_replica_and_only_the_lead_is_asked_to_lead() -> None:
    outlook = Outlook()
    wanted = Filter(b"k", {"level": b"high"})

    standing = Requests(outlook.outbox).ask(VOTE, Operation.SUBSCRIBE, wanted=wanted, lead=R2)

    sent = dict(outlook.take().send)
    assert sent == {
        replica: Request(
            *(standing.number, Operation.SUBSCRIBE, "t", VOTE.contract.terms),
            *(replica == R2, b"k", {"level": b"high"}),
        )
        for replica in (R1, R2, R3)
    }


def test_a_replica_that_refused_what_the_others_granted_is_asked_again() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    standing = requests.ask(VOTE, Operation.REGISTER)
    for replica, sentence in ((R1, "no place is free"), (R2, ""), (R3, "")):
        requests.on_reply(replica, Reply(standing.number, sentence))
    assert [a.sentence for a in answered(outlook)] == [""]

    outlook.at(REPEAT_AFTER_US)
    requests.tick()
    assert [replica for replica, _ in outlook.take().send] == [R1]
    requests.on_reply(R1, Reply(standing.number, ""))
    outlook.at(2 * REPEAT_AFTER_US)
    requests.tick()

    assert outlook.take().send == []
    assert requests.replies(standing.number) == {R1: "", R2: "", R3: ""}


def test_under_crashes_the_first_answer_wins_and_under_lies_f_plus_one() -> None:
    for each, needed in ((CRASH, 1), (VOTE, 2)):
        outlook = Outlook()
        requests = Requests(outlook.outbox)
        number = requests.ask(each, Operation.REGISTER).number
        for replica in range(needed - 1):
            requests.on_reply(replica, Reply(number))
        assert answered(outlook) == []

        requests.on_reply(needed - 1, Reply(number))
        assert answered(outlook) == [Answered(number, "")]


def test_one_replica_that_lags_behind_does_not_refuse_for_all() -> None:
    """It has yet to hear of a topic that was just created; the other one knows it."""
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    number = requests.ask(CRASH, Operation.REGISTER).number
    requests.on_reply(R1, Reply(number, "there is no such topic here"))
    assert answered(outlook) == []
    requests.on_reply(R2, Reply(number))
    assert answered(outlook) == [Answered(number, "")]


def test_one_that_lies_and_one_that_lags_behind_do_not_refuse_for_all() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    number = requests.ask(BYZANTINE, Operation.SUBSCRIBE).number
    for replica in (R1, R2):
        requests.on_reply(replica, Reply(number, "there is no such topic here"))
    for replica in (R3, R4):
        assert answered(outlook) == []
        requests.on_reply(replica, Reply(number))
    assert answered(outlook) == [Answered(number, "")]


def test_a_subscription_to_a_live_topic_holds_when_n_minus_f_have_granted_it() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    standing = requests.ask(LIVE, Operation.SUBSCRIBE)
    for replica in (R1, R2, R3):
        assert answered(outlook) == []
        requests.on_reply(replica, Reply(standing.number))
    assert answered(outlook) == [Answered(standing.number, "")]
    assert standing.granted_by == (R1, R2, R3)


def test_what_one_that_lies_and_one_that_lags_behind_refuse_both_are_asked_for_again() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    number = requests.ask(LIVE, Operation.SUBSCRIBE).number
    for replica in (R1, R2):
        requests.on_reply(replica, Reply(number, "there is no such topic here"))
    for replica in (R3, R4):
        requests.on_reply(replica, Reply(number))
    assert answered(outlook) == []

    outlook.at(REPEAT_AFTER_US)
    requests.tick()
    assert [replica for replica, _, _ in asked(outlook)] == [R1, R2]
    requests.on_reply(R1, Reply(number, "there is no such topic here"))
    requests.on_reply(R2, Reply(number))
    assert answered(outlook) == [Answered(number, "")]


def test_a_refusal_of_f_plus_1_counts_when_too_few_are_left_to_grant_it_or_stay_silent() -> None:
    for others, at_us in ((["none"], 0), ([], REPEAT_AFTER_US), ([""], REPEAT_AFTER_US)):
        outlook = Outlook()
        requests = Requests(outlook.outbox)
        number = requests.ask(BYZANTINE, Operation.SUBSCRIBE).number
        for replica, sentence in enumerate(["no room", "no room", *others]):
            assert answered(outlook) == []
            requests.on_reply(replica, Reply(number, sentence))
        outlook.at(at_us)
        requests.tick()
        assert answered(outlook) == [Answered(number, "no room")]


def test_a_refusal_counts_when_all_have_refused_or_the_others_stay_silent() -> None:
    for others, at_us in (((R2,), 0), ((), REPEAT_AFTER_US)):
        outlook = Outlook()
        requests = Requests(outlook.outbox)
        number = requests.ask(CRASH, Operation.REGISTER).number
        for replica in (R1, *others):
            requests.on_reply(replica, Reply(number, "no room"))
        outlook.at(at_us)
        requests.tick()
        assert answered(outlook) == [Answered(number, "no room")]


def test_it_is_repeated_to_those_who_have_not_answered() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    number = requests.ask(VOTE, Operation.REGISTER).number
    requests.on_reply(R1, Reply(number))
    requests.on_reply(R2, Reply(number))
    outlook.take()

    outlook.at(REPEAT_AFTER_US - 1)
    requests.tick()
    assert asked(outlook) == []

    outlook.at(REPEAT_AFTER_US)
    requests.tick()
    requests.tick()
    assert asked(outlook) == [(R3, Operation.REGISTER, number)]


def test_a_replica_that_comes_back_is_told_again_what_holds() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    number = requests.ask(VOTE, Operation.REGISTER).number
    for replica in (R1, R2, R3):
        requests.on_reply(replica, Reply(number))
    outlook.take()

    requests.connected(R2)
    requests.connected(9)

    assert asked(outlook) == [(R2, Operation.REGISTER, number)]


def test_what_was_refused_does_not_hold() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    standing = requests.ask(VOTE, Operation.REGISTER)
    for replica in (R1, R2):
        requests.on_reply(replica, Reply(standing.number, "no room"))
    assert answered(outlook) == [Answered(standing.number, "no room")]

    requests.connected(R1)
    outlook.at(10 * REPEAT_AFTER_US)
    requests.tick()

    assert asked(outlook) == []
    assert standing.refused


def test_what_was_withdrawn_does_not_hold() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    standing = requests.ask(VOTE, Operation.SUBSCRIBE)
    requests.withdraw(standing)
    outlook.take()

    requests.connected(R1)
    for replica in (R1, R2):
        requests.on_reply(replica, Reply(standing.number))

    ready = outlook.take()
    assert not ready.send
    assert not ready.deliver


def test_a_request_that_a_later_one_overtook_is_never_repeated_after_it() -> None:
    """A replica that hears "unsubscribe" again after "subscribe" would leave us out for good."""
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    requests.withdraw(requests.ask(VOTE, Operation.SUBSCRIBE))
    requests.ask(VOTE, Operation.UNSUBSCRIBE)
    outlook.at(REPEAT_AFTER_US // 2)
    again = requests.ask(VOTE, Operation.SUBSCRIBE)
    outlook.take()

    outlook.at(2 * REPEAT_AFTER_US)
    requests.tick()
    requests.connected(R1)

    assert {(operation, number) for _, operation, number in asked(outlook)} == {
        (Operation.SUBSCRIBE, again.number)
    }


def test_a_request_about_something_else_overtakes_nothing() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    requests.ask(VOTE, Operation.REGISTER)
    requests.ask(VOTE, Operation.SUBSCRIBE)
    requests.ask(topic({"broadcast": "vote"}, "u"), Operation.UNREGISTER)
    outlook.take()

    outlook.at(REPEAT_AFTER_US)
    requests.tick()

    operations = {operation for _, operation, _ in asked(outlook)}
    assert operations == {Operation.REGISTER, Operation.SUBSCRIBE, Operation.UNREGISTER}


def test_what_was_given_back_leaves_nothing_behind() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    for _ in range(100):
        standing = requests.ask(VOTE, Operation.SUBSCRIBE)
        requests.withdraw(standing)
        number = requests.ask(VOTE, Operation.UNSUBSCRIBE).number
        for replica in (R1, R2, R3):
            requests.on_reply(replica, Reply(number))
    outlook.take()

    requests.connected(R1)

    assert asked(outlook) == []


def test_what_each_replica_said_can_be_looked_up() -> None:
    requests = Requests(Outlook().outbox)
    number = requests.ask(VOTE, Operation.REGISTER).number
    requests.on_reply(R1, Reply(number, "no"))

    assert requests.replies(number) == {R1: "no"}
    assert requests.replies(99) == {}


def test_a_replica_that_cuts_us_off_again_and_again_is_not_asked_in_a_loop() -> None:
    outlook = Outlook()
    requests = Requests(outlook.outbox)
    standing = requests.ask(VOTE, Operation.SUBSCRIBE)
    requests.on_reply(R1, Reply(standing.number))
    outlook.take()

    for _ in range(100):
        requests.on_reply(R1, Reply(standing.number, "no"))

    assert len(outlook.sent(Request)) == 1
