"""Replicas tell how they decided their slots, and from that all else can be computed again."""

import pytest

from council import BYZANTINE, CRASH, READER, A, B, Council, T, span_of, value_of
from quorate.core.ids import NodeId
from quorate.core.ordering import Partition, Walk, Walked
from quorate.protocol.auditing.findings import Findings
from quorate.protocol.auditing.history import History, Orderers
from quorate.protocol.auditing.ranges import judge
from quorate.protocol.ordering import walking as module
from quorate.protocol.ordering.log import Content, OrderLog
from quorate.protocol.ordering.value import Value, value_digest
from quorate.protocol.outbox import ANSWERS_BYTES_MAX
from quorate.sim.disks import SimDisk
from quorate.sim.order_stage import SimNotary
from quorate.sim.stores import SimStore
from stage import Outlook, described

LIMITED = {**BYZANTINE, "subscribe": ["reader"]}


def order(council: Council, first: int, last: int, publisher: NodeId = A) -> None:
    """So many slots, of one batch each."""
    for number in range(first, last + 1):
        council.publish(publisher, number)
        council.settle()


def walk(council: Council, replica: NodeId, slot: int = 0, sender: NodeId = READER) -> list[Walked]:
    """What this replica answers."""
    council.sent.clear()
    council.say(sender, [replica], Walk(council.number, 7, slot))
    return council.messages(Walked, sender=replica, receiver=sender)


def history_of(council: Council, findings: Findings) -> History:
    """All replicas, walked to their ends."""
    rules, notary = council.group(0).roster.rules, SimNotary(0, council.members)
    orderers = Orderers(
        "simulated", council.number, "simulated", council.members, rules.quorum,
        council.topic.quorum.one_correct, notary.origin, notary.cosigners, "r{}".format,
        council.topic.quorum.reachable,
    )  # fmt: skip
    history = History(orderers, findings)
    firsts = [(replica, walk(council, replica)[0]) for replica in council.seats]
    for replica, first in sorted(firsts, key=lambda each: each[1].slot):
        history.begin(replica, first)
        walker = history.walkers[replica]
        while not walker.is_done:
            before = walker.slot
            history.take(replica, walk(council, replica, walker.slot)[0])
            assert walker.slot > before
    return history


@pytest.mark.parametrize("table", [BYZANTINE, CRASH], ids=["byzantine", "crash"])
def test_what_replicas_tell_leads_to_the_root_that_they_signed(table: dict[str, object]) -> None:
    council, findings = Council(table, signs=True), Findings()
    order(council, 1, 5)
    order(council, 1, 4, B)
    council.run(1.0)

    judgement = judge(history_of(council, findings))

    assert not findings
    assert judgement.trusted is not None
    assert judgement.trusted.tree.root() == council.group(0).log.tree.root()
    assert (judgement.signed, judgement.agreeing) == (9, council.members)


def test_slots_are_told_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WALK_BYTES_MAX", 1)
    council, findings = Council(signs=True), Findings()
    order(council, 1, 6)
    council.run(1.0)

    assert len(walk(council, 0)[0].slots) == 1
    assert judge(history_of(council, findings)).signed == 6
    assert not findings


def test_a_replica_that_keeps_few_slots_tells_the_tree_before_them() -> None:
    council = Council(snapshot_every=4, slots_kept=4, signs=True)
    findings = Findings()
    order(council, 1, 13)
    council.run(1.0)

    first = walk(council, 0)[0]
    judgement = judge(history_of(council, findings))

    assert first.slot == first.start > 1
    assert judgement.trusted is not None
    assert judgement.signed == 13
    assert judgement.trusted.ledgers()[Partition(T, 0)].first == first.slot - 1
    assert not findings


def test_a_replica_that_started_over_tells_the_tree_of_its_snapshot() -> None:
    council, findings = Council(snapshot_every=4, slots_kept=4, signs=True), Findings()
    order(council, 1, 2)
    council.seats[2].disk.sync()
    disk = council.seats[2].disk
    council.crash(2)
    order(council, 3, 13)
    council.restart(2, disk)
    council.run(5.0)
    order(council, 14, 16)
    council.run(1.0)
    transfer = council.group(2).transfer
    assert transfer is not None
    assert transfer.count == 1

    judgement = judge(history_of(council, findings))

    assert not findings
    assert set(judgement.agreeing) == set(council.members)
    assert judgement.signed == 16


def test_a_replica_that_has_nothing_says_so() -> None:
    council = Council()

    (walked,) = walk(council, 0)

    assert (walked.slots, walked.start, walked.end, walked.size, walked.edge) == ([], 0, 0, 0, [])


def test_slots_are_for_those_who_may_read_all_that_they_order() -> None:
    council = Council(LIMITED)
    order(council, 1, 1)

    assert walk(council, 0, sender=READER)
    for stranger in (A, 4711):
        assert not walk(council, 0, sender=stranger)
    assert [report.kind for report in council.reports(by=0)][-2:] == ["rejected", "rejected"]


def test_nobody_walks_a_group_that_is_not_here() -> None:
    council = Council()

    council.say(READER, [0], Walk(council.number + 1, 7, 0))

    assert [report.kind for report in council.reports(by=0)] == ["rejected"]


def test_whoever_asks_a_thousand_times_in_a_turn_gets_so_much() -> None:
    council = Council()
    order(council, 1, 50)
    council.sent.clear()

    for _ in range(5000):
        council.step(READER, 0, Walk(council.number, 7, 0))
    council.collect()

    answers = council.messages(Walked, sender=0, receiver=READER)
    told = sum(
        len(slot.value) + len(slot.descriptors) for walked in answers for slot in walked.slots
    )
    assert 0 < told <= ANSWERS_BYTES_MAX + 1024 * 1024
    assert len(answers) < 5000


def test_what_is_decided_and_not_on_disk_yet_is_told_later() -> None:
    """In the turn of a decision the tree is ahead of the slots that can be told."""
    log, disk, look = OrderLog(1), SimDisk(), Outlook()
    walking = module.Walking(log, SimStore(disk), None, look.outbox)
    span, content = span_of(A, 1, b"x"), Content([described(b"x")], [])
    value = value_of(span)
    decided = log.apply(1, value_digest(value), value, Value.decode(value), [content])

    walking.on_walk(READER, Walk(1, 7, 0))
    assert look.sent(Walked) == []
    disk.append([decided])
    walking.on_walk(READER, Walk(1, 7, 0))

    (walked,) = look.sent(Walked)
    assert (walked.slot, walked.size, len(walked.slots)) == (1, 0, 1)
