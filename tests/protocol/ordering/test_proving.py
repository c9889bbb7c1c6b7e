"""What replicas say of where a batch stands: it can be checked, and asking is bounded."""

import pytest

from council import BYZANTINE, CRASH, READER, A, B, Council, Flight, T
from quorate.core.ids import NodeId, topic_id
from quorate.core.ordering import Cosign, Line, Partition, ProvenRange, ProveRange
from quorate.crypto.checkpoint import read
from quorate.crypto.merkle import check_runs
from quorate.protocol.ordering.value import leaves_of
from quorate.protocol.outbox import ANSWERS_BYTES_MAX
from quorate.sim.order_stage import SimNotary
from stage import described

STRANGER = 1700


def ask(council: Council, offset: int, *, of: NodeId = 0, by: NodeId = READER) -> list[ProvenRange]:
    """What one replica answers."""
    council.sent.clear()
    council.say(by, [of], ProveRange(T, 0, 7, offset, 1))
    return council.messages(ProvenRange, sender=of, receiver=by)


def filled(batches: int = 5) -> Council:
    council = Council(signs=True)
    for number in range(1, batches + 1):
        council.publish((A, B)[number % 2], (number + 1) // 2)
        council.settle()
    council.run(0.2)
    return council


def check(council: Council, proven: ProvenRange) -> None:
    """The batch that this replica reads to others stands where it says."""
    payload = council.log(0)[proven.offset]
    (run,) = proven.runs
    line = Line(run.publisher, T, 0)
    leaves = leaves_of(line, run.first, proven.offset, run.time_us, [described(payload)])
    cosigners = SimNotary(0, council.members).cosigners.values()
    head = read(proven.checkpoint, cosigners, 3).head
    assert run.count == 1
    check_runs(leaves, [range(run.leaf, run.leaf + 1)], head.size, proven.path, head.root)


def test_every_replica_shows_where_each_batch_stands() -> None:
    council = filled(9)

    for replica in council.seats:
        for offset in range(9):
            (proven,) = ask(council, offset, of=replica)
            assert (proven.sentence, proven.number, proven.offset) == ("", 7, offset)
            check(council, proven)


def is_no_signature(flight: Flight) -> bool:
    return not isinstance(flight.message, Cosign)


def test_what_is_not_covered_by_a_checkpoint_yet_is_put_off() -> None:
    council = Council(signs=True)
    council.publish(A, 1)
    council.settle(is_no_signature)

    (early,) = ask(council, 0)

    assert (early.sentence, early.is_final) == ("no checkpoint covers this offset yet", False)
    assert early.checkpoint == ""


def test_signatures_that_were_lost_are_said_again_though_nothing_follows() -> None:
    council = Council(signs=True)
    council.publish(A, 1)
    council.run(0.3, is_no_signature)

    council.run(1)

    for replica in council.seats:
        (proven,) = ask(council, 0, of=replica)
        check(council, proven)


def test_a_replica_that_was_restarted_has_a_checkpoint_of_an_idle_log_again() -> None:
    council = filled(3)
    council.reboot(2)

    council.run(1)

    (proven,) = ask(council, 1, of=2)
    check(council, proven)


def test_an_idle_log_is_silent_about_signatures_once_all_have_its_checkpoint() -> None:
    council = filled(3)
    council.run(1)
    council.sent.clear()

    council.run(5)

    assert council.messages(Cosign) == []


def test_an_offset_that_is_not_there_is_refused_for_good() -> None:
    (proven,) = ask(filled(3), 3)

    assert proven.is_final
    assert proven.sentence == "offset 3 is not there yet; the partition ends at 3"


def test_what_came_before_a_snapshot_with_which_a_replica_started_over_is_refused() -> None:
    council = Council(signs=True, snapshot_every=4, slots_kept=2)
    council.publish(A, 1)
    council.settle()
    absent = council.seats.pop(3)
    for number in range(2, 20):
        council.publish(A, number)
        council.run(0.05)
    council.restart(3, absent.disk)
    council.run(3)
    start, end = council.seats[3].store.bounds(Partition(T, 0))
    assert 0 < start < end, "it started over"

    (gone,) = ask(council, 0, of=3)
    council.publish(A, 20)
    council.run(0.5)

    assert gone.is_final
    assert gone.sentence == f"offset 0 is not kept here any more; offset {start} is"
    for offset in range(start, 20):
        (proven,) = ask(council, offset, of=3)
        check(council, proven)


def test_where_nobody_signs_nothing_is_proved() -> None:
    council = Council()
    council.publish(A, 1)
    council.settle()

    (proven,) = ask(council, 0)

    assert (proven.sentence, proven.is_final) == ("nobody signs the heads of this log", True)


LIMITED = {**BYZANTINE, "subscribe": ["reader"]}


def test_only_those_who_may_read_a_topic_are_told_and_the_others_hear_why() -> None:
    council = Council(LIMITED, signs=True)
    council.publish(A, 1)
    council.run(0.2)

    (allowed,) = ask(council, 0)
    (refused,) = ask(council, 0, by=A)
    (unknown,) = ask(council, 0, by=STRANGER)

    assert allowed.sentence == ""
    assert (refused.sentence, refused.is_final) == ("a may not subscribe to 't'; reader may", True)
    assert "may not subscribe" in unknown.sentence
    assert [refused.path, refused.checkpoint, unknown.path, unknown.checkpoint] == [[], "", [], ""]


@pytest.mark.parametrize(
    ("topic", "partition", "sentence"),
    [(topic_id("u"), 0, "there is no such log topic here"), (T, 1, "there is no partition 1")],
)
def test_what_does_not_exist_is_refused(topic: int, partition: int, sentence: str) -> None:
    council = filled(1)
    council.sent.clear()
    council.say(READER, [0], ProveRange(topic, partition, 7, 0, 1))

    (proven,) = council.messages(ProvenRange, sender=0)
    assert (proven.sentence, proven.is_final) == (sentence, True)


def test_whoever_asks_a_thousand_times_at_once_gets_a_few_answers() -> None:
    council = filled(3)
    council.sent.clear()
    for number in range(1000):
        council.step(READER, 0, ProveRange(T, 0, number, number % 5, 1))
    council.collect()

    answers = council.messages(ProvenRange, sender=0)

    assert 0 < len(answers) < ANSWERS_BYTES_MAX / (100 * 1024)


def test_a_log_under_crash_faults_has_positions_too() -> None:
    council = Council(CRASH, signs=True)
    council.publish(A, 1)
    council.run(0.2)

    (proven,) = ask(council, 0)

    assert proven.sentence == ""
    assert [run.leaf for run in proven.runs] == [0]
