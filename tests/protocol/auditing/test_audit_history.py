"""The order that replicas tell is computed again, and whoever tells another one is named."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from histories import ALICE, BOB, COSIGNERS, ORIGIN, Scribe, batch, orderers
from quorate.core.header import HEADER_BYTES, SIGNED, header_of
from quorate.core.ids import NodeId
from quorate.core.ordering import Slot
from quorate.crypto.evidence import Keys, parse, render, verify_evidence
from quorate.protocol.auditing.findings import Finding, Findings
from quorate.protocol.auditing.history import History, credible_end
from quorate.protocol.auditing.ranges import Judgement, judge
from quorate.protocol.ordering.value import Value


def batches(number: int, second: str = "A{}") -> dict[NodeId, list[bytes]]:
    """Three batches with two, one and three events."""
    of_alice = [batch(b"a%d" % number, 2), batch(second.format(number).encode())]
    return {ALICE: of_alice, BOB: [batch(b"b%d" % number, 3)]}


def scribe(slots: int = 5) -> Scribe:
    made = Scribe()
    for number in range(slots):
        made.slot(
            {
                ALICE: [batch(b"a%d" % number, 2), batch(b"A%d" % number)],
                BOB: [batch(b"b%d" % number, 3)],
            }
        )
    return made


class Walks:
    """What replicas tell, one after the other, and what comes of it."""

    def __init__(self) -> None:
        self.findings = Findings()
        self.history = History(orderers(), self.findings)

    def tell(self, *replicas: NodeId, by: Scribe, start: int = 1, signed: bool = True) -> None:
        checkpoints = [by.checkpoint()] if signed else []
        for replica in replicas:
            self.history.begin(replica, by.walked(start, checkpoints=checkpoints))

    def judge(self) -> Judgement:
        return judge(self.history)

    @property
    def found(self) -> list[Finding]:
        return [finding for pile in self.findings for finding in pile.examples]

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(finding.kind, finding.who) for finding in self.found]


def altered(slot: Slot, change: Callable[[Value], Value]) -> Slot:
    return msgspec.structs.replace(slot, value=change(Value.decode(slot.value)).encode())


def test_replicas_that_tell_the_same_are_believed_up_to_what_they_signed() -> None:
    walks, truth = Walks(), scribe()

    walks.tell(0, 1, 2, 3, by=truth)
    judgement = walks.judge()

    assert walks.kinds == []
    assert judgement.trusted is not None
    assert judgement.trusted.tree.root() == truth.log.tree.root()
    assert (judgement.signed, judgement.checkpoints) == (15, 1)
    assert judgement.agreeing == (0, 1, 2, 3)


def test_what_stands_where_follows_from_the_slots() -> None:
    walks, truth = Walks(), scribe(2)

    walks.tell(0, by=truth)
    trusted = walks.judge().trusted
    assert trusted is not None
    (ledger,) = trusted.ledgers().values()

    assert (ledger.first, ledger.end, ledger.batches) == (0, 12, 6)
    assert [*ledger.offsets] == [0, 2, 3, 6, 8, 9, 12]
    assert [(run.offset, run.publisher, run.first, run.batches) for run in ledger.runs] == [
        (0, ALICE, 1, 2),
        (3, BOB, 1, 1),
        (6, ALICE, 3, 2),
        (9, BOB, 2, 1),
    ]


def test_an_offset_inside_a_batch_leads_to_that_batch() -> None:
    walks, truth = Walks(), scribe(2)

    walks.tell(0, by=truth)
    trusted = walks.judge().trusted
    assert trusted is not None
    (ledger,) = trusted.ledgers().values()

    assert [ledger.at(offset) for offset in range(13)] == [0, 0, 1, 2, 2, 2, 3, 3, 4, 5, 5, 5, 5]
    assert [ledger.floor(offset) for offset in (0, 1, 5, 11, 12, 99)] == [0, 0, 3, 9, 12, 12]
    assert ledger.run_of(4) == (ledger.runs[2], 3)


def test_a_replica_that_lags_behind_agrees_as_far_as_it_is() -> None:
    walks, truth = Walks(), scribe()
    behind = Scribe()
    for slot in range(2):
        behind.slot(
            {ALICE: [batch(b"a%d" % slot, 2), batch(b"A%d" % slot)], BOB: [batch(b"b%d" % slot, 3)]}
        )

    walks.tell(3, by=behind)
    walks.tell(0, 1, 2, by=truth)

    assert walks.judge().agreeing == (3, 0, 1, 2)
    assert walks.kinds == []


def test_a_replica_that_keeps_later_slots_only_is_compared_from_there() -> None:
    walks, truth = Walks(), scribe()

    walks.tell(0, 1, by=truth)
    walks.tell(2, 3, by=truth, start=4)
    judgement = walks.judge()

    assert judgement.agreeing == (0, 1, 2, 3)
    assert len(walks.history.branches) == 1
    assert walks.kinds == []


def test_a_history_without_its_beginning_is_confirmed_by_what_was_signed_later() -> None:
    walks, truth = Walks(), scribe()

    walks.tell(0, 1, 2, 3, by=truth, start=3)
    judgement = walks.judge()

    assert judgement.signed == 15
    assert judgement.trusted is not None
    (ledger,) = judgement.trusted.ledgers().values()
    assert (ledger.first, ledger.end, ledger.batches) == (12, 30, 9)
    assert walks.kinds == []


def test_a_fork_is_found_at_its_slot_and_who_contradicts_a_checkpoint_is_named() -> None:
    walks, truth, forked = Walks(), scribe(), scribe(2)
    for number in range(2, 5):
        forked.slot(
            {ALICE: [batch(b"a%d" % number, 2), batch(b"other")], BOB: [batch(b"b%d" % number, 3)]}
        )

    # The liar is asked first: what it says must not become the measure for others.
    walks.tell(3, by=forked, signed=False)
    walks.tell(0, 1, 2, by=truth)
    judgement = walks.judge()

    assert walks.kinds == [("other-history", "r3")]
    assert walks.found[0].where.slot == 3
    assert "a quorum signed" in walks.found[0].sentence
    assert judgement.agreeing == (0, 1, 2)


def test_a_fork_behind_the_last_checkpoint_is_laid_on_the_fewer() -> None:
    walks, truth, forked = Walks(), scribe(3), scribe(3)
    signed = truth.checkpoint()
    truth.slot({ALICE: [batch(b"right")]})
    forked.slot({ALICE: [batch(b"wrong")]})

    for replica, tells in ((0, truth), (1, forked), (2, truth), (3, truth)):
        walks.history.begin(replica, tells.walked(checkpoints=[signed]))
    judgement = walks.judge()

    assert walks.kinds == [("other-history", "r1")]
    assert "r0, r2, r3 tell" in walks.found[0].sentence
    assert judgement.agreeing == (0, 2, 3)


def test_a_fork_in_halves_without_signatures_names_nobody_and_is_found() -> None:
    walks, truth, forked = Walks(), scribe(3), scribe(3)
    truth.slot({ALICE: [batch(b"right")]})
    forked.slot({ALICE: [batch(b"wrong")]})

    walks.tell(0, 1, by=truth, signed=False)
    walks.tell(2, 3, by=forked, signed=False)
    walks.judge()

    assert walks.kinds == [("fork", "")]
    assert walks.found[0].where.slot == 4


def test_followers_have_no_voice_in_what_is_right() -> None:
    walks, truth, forked = Walks(), scribe(3), scribe(3)
    truth.slot({ALICE: [batch(b"right")]})
    forked.slot({ALICE: [batch(b"wrong")]})

    walks.tell(4, 5, 6, by=forked, signed=False)
    walks.tell(0, 1, by=truth, signed=False)
    judgement = walks.judge()

    assert judgement.agreeing == (0, 1)
    assert walks.kinds == [("other-history", f"r{follower}") for follower in (4, 5, 6)]


def test_two_replicas_with_one_lie_share_a_branch() -> None:
    walks, truth, forked = Walks(), scribe(3), scribe(2)
    forked.slot({ALICE: [batch(b"wrong")]})

    walks.tell(0, by=truth)
    walks.tell(1, 2, by=forked, signed=False)
    walks.judge()

    assert len(walks.history.branches) == 2
    assert walks.kinds == [("other-history", "r1"), ("other-history", "r2")]


def test_a_line_with_a_gap_is_found() -> None:
    walks, truth = Walks(), scribe(3)
    # Slot 2 is left out, and the rest is told as if nothing were missing.
    truth.slots[1:2] = []
    truth.trees[1:2] = []

    walks.history.begin(0, truth.walked())
    walks.judge()

    sentences = [finding.sentence for finding in walks.found]
    assert ("broken-history", "r0") in walks.kinds
    assert any("orders batch 5 of client 1000" in sentence for sentence in sentences)
    assert any("offset 12" in sentence and "6 is the next" in sentence for sentence in sentences)


def test_a_line_that_goes_back_is_found() -> None:
    walks, truth = Walks(), scribe(2)

    truth.slots.append(truth.slots[0])
    walks.history.begin(0, truth.walked())
    walks.judge()

    assert any("orders batch 1 of client 1000" in finding.sentence for finding in walks.found)


def test_a_line_does_not_begin_in_the_middle() -> None:
    walks, truth = Walks(), Scribe().slot({ALICE: [batch(b"one")]})
    later = altered(truth.slots[0], lambda v: v._replace(spans=(v.spans[0]._replace(first=7),)))
    truth.slots[0] = later

    walks.history.begin(0, truth.walked())
    walks.judge()

    assert "begins client 1000" in walks.found[0].sentence


def shifted(slot: Slot) -> Slot:
    return msgspec.structs.replace(slot, offsets=[offset + 1 for offset in slot.offsets])


def with_header(slot: Slot, **fields: int) -> Slot:
    """The same, but the header of its first batch says something else."""
    header = header_of(slot.descriptors)._replace(**fields).encode()
    return msgspec.structs.replace(slot, descriptors=header + slot.descriptors[HEADER_BYTES:])


def with_content(slot: Slot) -> Slot:
    wrong = slot.descriptors[:-1] + bytes([slot.descriptors[-1] ^ 1])
    return msgspec.structs.replace(slot, descriptors=wrong)


@pytest.mark.parametrize(
    "change",
    [
        with_content,
        lambda slot: with_header(slot, events=1),
        lambda slot: with_header(slot, kind=SIGNED),
        lambda slot: with_header(slot, plain_bytes=64),
        lambda slot: with_header(slot, headers=1),
    ],
    ids=["digest", "count", "kind", "size", "headers"],
)
def test_descriptors_that_are_not_those_of_the_value_are_found(
    change: Callable[[Slot], Slot],
) -> None:
    walks, truth = Walks(), scribe(3)
    signed = truth.checkpoint()
    right, truth.slots[1] = truth.slots[1], change(truth.slots[1])
    walks.history.begin(0, truth.walked(checkpoints=[signed]))
    truth.slots[1] = right
    for replica in (1, 2, 3):
        walks.history.begin(replica, truth.walked(checkpoints=[signed]))

    judgement = walks.judge()

    assert {*walks.kinds} == {("broken-history", "r0"), ("other-history", "r0")}
    assert "do not lead to what its value names" in walks.found[0].sentence
    assert judgement.agreeing == (1, 2, 3)


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_replica_that_tells_shifted_offsets_is_named(is_signed: bool) -> None:
    walks, truth = Walks(), scribe(3)
    signed = [truth.checkpoint()] if is_signed else []
    right, truth.slots[1] = truth.slots[1], shifted(truth.slots[1])
    walks.history.begin(0, truth.walked(checkpoints=signed))
    truth.slots[1] = right
    for replica in (1, 2, 3):
        walks.history.begin(replica, truth.walked(checkpoints=signed))

    judgement = walks.judge()

    assert {*walks.kinds} == {("broken-history", "r0"), ("other-history", "r0")}
    assert "puts batches at offset 7" in walks.found[0].sentence
    assert "where 6 is the next" in walks.found[0].sentence
    assert judgement.agreeing == (1, 2, 3)


def test_time_that_goes_back_is_found() -> None:
    walks, truth = Walks(), scribe(2)
    truth.slot({ALICE: [batch(b"early")]}, time_us=5)

    walks.tell(0, by=truth)
    walks.judge()

    assert "goes back in time" in walks.found[0].sentence
    assert walks.found[0].where.slot == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda slot: msgspec.structs.replace(slot, value=b"nonsense"),
        lambda slot: msgspec.structs.replace(slot, descriptors=slot.descriptors[:-48]),
        lambda slot: msgspec.structs.replace(slot, offsets=[]),
        lambda slot: with_header(slot, events=0),
        lambda slot: with_header(slot, version=1),
        lambda slot: with_header(slot, plain_bytes=1),
    ],
    ids=["value", "descriptors", "offsets", "no events", "version", "no room for its events"],
)
def test_a_slot_that_cannot_be_one_ends_the_walk_of_whoever_told_it(
    change: Callable[[Slot], Slot],
) -> None:
    walks, truth = Walks(), scribe()
    right, truth.slots[2] = truth.slots[2], change(truth.slots[2])
    walks.history.begin(0, truth.walked(checkpoints=[truth.checkpoint()]))
    truth.slots[2] = right

    walks.tell(1, 2, 3, by=truth)
    judgement = walks.judge()

    assert walks.kinds == [("broken-history", "r0")]
    assert walks.found[0].where.slot == 3
    assert judgement.signed == 15


def test_a_tree_before_the_first_slot_that_is_not_the_signed_one_is_found() -> None:
    walks, truth = Walks(), scribe()
    false_start = truth.walked(4)
    false_start.edge[0] = bytes(32)

    walks.tell(0, 1, 2, by=truth)
    walks.history.begin(3, false_start)
    walks.judge()

    assert walks.kinds == [("other-history", "r3")]


def test_a_tree_that_cannot_be_is_found() -> None:
    walks, truth = Walks(), scribe()
    false_start = msgspec.structs.replace(truth.walked(4), edge=[])

    walks.history.begin(3, false_start)

    assert walks.kinds == [("broken-history", "r3")]


def test_a_slot_that_was_not_asked_for_brings_nothing() -> None:
    walks, truth = Walks(), scribe()
    whole = truth.walked()
    walks.history.begin(0, msgspec.structs.replace(whole, slots=whole.slots[:2]))

    walks.history.take(0, msgspec.structs.replace(whole, slots=whole.slots[3:], slot=4))

    assert walks.history.walkers[0].slot == 3
    assert not walks.history.walkers[0].is_done


@pytest.mark.parametrize(
    ("ends", "end"), [([9, 9, 9, 1 << 60], 9), ([7, 8, 9, 9], 9), ([3, 9], 3), ([], 1)]
)
def test_nobody_is_walked_further_than_a_correct_replica_can_be(ends: list[int], end: int) -> None:
    assert credible_end(ends, 2) == end


def test_a_replica_is_walked_up_to_the_slot_that_was_agreed_on() -> None:
    walks, truth = Walks(), scribe()

    walks.history.begin(0, truth.walked(), 4)

    assert walks.history.walkers[0].is_done
    assert walks.history.branches[0].end == 4


# Checkpoints


def test_a_root_that_a_quorum_signed_and_nobody_tells_is_found() -> None:
    walks, truth = Walks(), scribe()
    signed = truth.checkpoint(root=bytes(32))

    for replica in (0, 1, 2, 3):
        walks.history.begin(replica, truth.walked(checkpoints=[signed]))
    judgement = walks.judge()

    assert ("unserved-checkpoint", "") in walks.kinds
    assert judgement.signed == 0


def test_a_checkpoint_between_two_slots_is_nobodys_history() -> None:
    walks, truth = Walks(), scribe(2)
    middle = Scribe().slot({ALICE: [batch(b"a0", 2), batch(b"A0")]})

    walks.history.begin(0, truth.walked(checkpoints=[middle.checkpoint()]))
    walks.judge()

    assert ("unserved-checkpoint", "") in walks.kinds


@pytest.mark.parametrize("signers", [(0,), (0, 1)])
def test_a_checkpoint_with_too_few_cosigners_counts_for_nothing(signers: tuple[int, ...]) -> None:
    walks, truth = Walks(), scribe()

    walks.history.begin(2, truth.walked(checkpoints=[truth.checkpoint(signers)]))
    judgement = walks.judge()

    assert walks.kinds == [("bad-checkpoint", "r2")]
    assert judgement.signed == 0


def test_a_checkpoint_with_one_signature_twice_counts_it_once() -> None:
    walks, truth = Walks(), scribe()
    text = truth.checkpoint((0, 1))
    twice = text + text.splitlines()[-1] + "\n"

    walks.history.begin(2, truth.walked(checkpoints=[twice]))

    assert walks.kinds == [("bad-checkpoint", "r2")]


def test_a_checkpoint_of_another_log_is_found() -> None:
    walks, truth = Walks(), scribe()
    other = truth.checkpoint(origin=ORIGIN.replace("byzantine", "crash"))

    walks.history.begin(1, truth.walked(checkpoints=[other]))

    assert walks.kinds == [("bad-checkpoint", "r1")]
    assert "quorate/demo/crash" in walks.found[0].sentence


def test_who_signed_two_heads_of_one_size_is_named_with_evidence_that_verifies() -> None:
    walks, truth, forked = Walks(), scribe(2), scribe(1)
    forked.slot({ALICE: [batch(b"other"), batch(b"others")], BOB: [batch(b"another")]})

    walks.history.begin(0, truth.walked(checkpoints=[truth.checkpoint((0, 1, 2))]))
    walks.history.begin(3, forked.walked(checkpoints=[forked.checkpoint((1, 2, 3))]))
    walks.judge()

    named = [finding for finding in walks.found if finding.kind == "two-heads"]
    assert [finding.who for finding in named] == ["r1", "r2"]
    keys = Keys(
        "demo",
        {replica: f"r{replica}" for replica in COSIGNERS},
        {replica: (cosigner.public_key,) for replica, cosigner in COSIGNERS.items()},
    )
    for finding in named:
        assert finding.evidence is not None
        proved = verify_evidence(parse(render(finding.evidence)), keys)
        assert proved.name == finding.who


# Where crashes only are tolerated, one liar makes correct replicas tell what it says (N3)


def crash_walks() -> Walks:
    walks = Walks()
    origin = ORIGIN.replace("byzantine", "crash")
    walks.history = History(
        replace(orderers(), group=0, name="crash", members=(0, 1, 2), quorum=2, origin=origin),
        walks.findings,
    )
    return walks


def test_a_fork_of_a_log_that_tolerates_crashes_is_found_and_nobody_is_named() -> None:
    walks, truth, deceived = crash_walks(), scribe(2), scribe(1)
    deceived.slot({ALICE: [batch(b"told to r1 alone")]})

    walks.tell(0, 2, by=truth, signed=False)
    walks.tell(1, by=deceived, signed=False)
    walks.judge()

    assert walks.kinds == [("fork", "")]
    assert "tolerates crashes only" in walks.found[0].sentence


def test_what_a_liar_and_whom_it_deceived_signed_names_nobody_either() -> None:
    walks, truth, deceived = crash_walks(), scribe(2), scribe(1)
    deceived.slot({ALICE: [batch(b"other"), batch(b"others")], BOB: [batch(b"another")]})
    origin = walks.history.orderers.origin

    walks.history.begin(2, truth.walked(checkpoints=[truth.checkpoint((0, 2), origin=origin)]))
    shown = [deceived.checkpoint((0, 1), origin=origin)]
    walks.history.begin(1, deceived.walked(checkpoints=shown))
    walks.judge()

    assert {(finding.kind, finding.who) for finding in walks.found} == {("fork", "")}
    assert all(finding.evidence is None for finding in walks.found)
