"""A history that is audited in ranges gives what it gives to one who walks it in one go."""

from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histories import ALICE, BOB, Scribe, batch, orderers
from quorate.core.header import HEADER_BYTES, header_of
from quorate.core.ids import NodeId
from quorate.core.ordering import Slot
from quorate.protocol.auditing.findings import Findings
from quorate.protocol.auditing.history import History, accusation
from quorate.protocol.auditing.ranges import (
    Assembly,
    Extract,
    LinePiece,
    Whole,
    broken_lines,
    extracts,
    judge,
    line_pieces,
)

SLOTS = 6

Tales = Mapping[NodeId, Scribe]


def batches(number: int, second: str = "A{}") -> dict[NodeId, list[bytes]]:
    of_alice = [batch(b"a%d" % number, 2), batch(second.format(number).encode())]
    return {ALICE: of_alice, BOB: [batch(b"b%d" % number)]}


def scribe(slots: int = SLOTS) -> Scribe:
    made = Scribe()
    for number in range(slots):
        made.slot(
            {
                ALICE: [batch(b"a%d" % number, 2), batch(b"A%d" % number)],
                BOB: [batch(b"b%d" % number)],
            }
        )
    return made


def found_in(findings: Findings) -> set[tuple[str, str, int | None, str]]:
    return {
        (each.kind, each.who, each.where.slot, each.sentence)
        for pile in findings
        for each in pile.examples
    }


def in_one_go(tales: Tales, checkpoints: list[str], start: int = 1) -> Findings:
    findings = Findings()
    history = History(orderers(), findings)
    for replica, tale in tales.items():
        history.begin(replica, tale.walked(start, checkpoints=checkpoints))
    judge(history)
    return findings


def in_ranges(
    tales: Tales, checkpoints: list[str], size: int, start: int = 1
) -> tuple[Findings, Whole]:
    """Each range is walked by somebody who knows the checkpoints, and nothing of other ranges."""
    findings = Findings()
    shown = History(orderers(), Findings())
    for replica in tales:
        shown.show(replica, checkpoints)
    heads = [signed.checkpoint.head for signed in shown.signed]
    end = max(len(tale.slots) for tale in tales.values()) + 1
    left: list[Extract] = []
    pieces: dict[int, list[LinePiece]] = {}
    for first in range(start, end, size):
        history = History(orderers(), findings)
        for replica, tale in tales.items():
            if first <= len(tale.slots):
                history.begin(replica, tale.walked(first), first + size)
        left += extracts(history, first, heads)
        for member, piece in line_pieces(history, first):
            pieces.setdefault(member, []).append(piece)
    assembly = Assembly(orderers(), left, shown.signed)
    whole = assembly.judge(findings)
    paths = {node: [each.id for each in assembly.path(node)] for node in assembly.nodes}
    for of_member in pieces.values():
        for node, fault in broken_lines(of_member, paths, is_whole=assembly.is_whole):
            findings.add(accusation(orderers(), node, "broken-history", *fault))
    return findings, whole


def altered(tale: Scribe, at: int, change: Callable[[Slot], Slot]) -> Scribe:
    tale.slots[at - 1] = change(tale.slots[at - 1])
    return tale


def with_wrong_digest(slot: Slot) -> Slot:
    wrong = slot.descriptors[:-1] + bytes([slot.descriptors[-1] ^ 1])
    return msgspec.structs.replace(slot, descriptors=wrong)


def with_wrong_count(slot: Slot) -> Slot:
    header = header_of(slot.descriptors)._replace(events=1).encode()
    return msgspec.structs.replace(slot, descriptors=header + slot.descriptors[HEADER_BYTES:])


def with_wrong_offset(slot: Slot) -> Slot:
    return msgspec.structs.replace(slot, offsets=[each + 1 for each in slot.offsets])


def forked(at: int) -> Scribe:
    """Another history from this slot on, which is sound in itself."""
    made = scribe(at - 1)
    for number in range(at - 1, SLOTS):
        made.slot(
            {ALICE: [batch(b"a%d" % number, 2), batch(b"other")], BOB: [batch(b"b%d" % number)]}
        )
    return made


def without_slot(at: int) -> Scribe:
    """One slot is left out, and the rest told as if nothing were missing."""
    made = scribe(SLOTS + 1)
    del made.slots[at - 1], made.trees[at - 1]
    return made


def with_early_slot(at: int) -> Scribe:
    made = scribe(at - 1)
    made.slot({ALICE: [batch(b"early")]}, time_us=5)
    while len(made.slots) < SLOTS:
        made.slot({ALICE: [batch(b"late")]}, time_us=5)
    return made


LIES: dict[str, Callable[[int], Scribe]] = {
    "nothing": lambda _: scribe(),
    "digest": lambda at: altered(scribe(), at, with_wrong_digest),
    "count": lambda at: altered(scribe(), at, with_wrong_count),
    "fork": forked,
    "behind": scribe,
}


@pytest.mark.parametrize("size", [1, 2, 4, SLOTS])
@pytest.mark.parametrize("lie", LIES)
@given(at=st.integers(1, SLOTS), liar=st.integers(0, 3), is_signed=st.booleans())
@settings(max_examples=20, deadline=None)
def test_whoever_lies_is_named_with_the_same_words(
    size: int, lie: str, at: int, liar: int, is_signed: bool
) -> None:
    tales = {replica: scribe() for replica in range(4)} | {liar: LIES[lie](at)}
    checkpoints = [scribe().checkpoint()] if is_signed else []

    findings, whole = in_ranges(tales, checkpoints, size)

    assert found_in(findings) == found_in(in_one_go(tales, checkpoints))
    assert (whole.batches, whole.signed) == (3 * SLOTS, 3 * SLOTS if is_signed else 0)
    is_right = lie in ("nothing", "behind")
    assert whole.agreeing == tuple(node for node in range(4) if is_right or node != liar)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_was_signed_last_says_what_was_right_at_first_against_all_others(size: int) -> None:
    """Three of four tell another slot 2, and later ones as they are."""
    wrong = altered(scribe(), 2, with_wrong_digest)
    tales = {0: scribe(), 1: wrong, 2: wrong, 3: wrong}
    signed = [scribe().checkpoint()]

    findings, whole = in_ranges(tales, signed, size)

    assert found_in(findings) == found_in(in_one_go(tales, signed))
    assert whole.agreeing == (0,)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_fork_in_halves_without_signatures_names_nobody_in_ranges_too(size: int) -> None:
    tales = {0: scribe(), 1: scribe(), 2: forked(3), 3: forked(3)}

    findings, _ = in_ranges(tales, [], size)

    assert found_in(findings) == found_in(in_one_go(tales, []))
    assert {(kind, who, slot) for kind, who, slot, _ in found_in(findings)} == {("fork", "", 3)}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: without_slot(3),
        lambda: with_early_slot(4),
        lambda: altered(scribe(), 4, with_wrong_offset),
    ],
    ids=["left-out", "early", "offset"],
)
def test_what_does_not_follow_is_found_across_ranges(make: Callable[[], Scribe], size: int) -> None:
    """All tell the same, so that nobody is of another history."""
    tales = dict.fromkeys(range(4), make())

    findings, _ = in_ranges(tales, [], size)

    in_ranges_too = {(kind, who) for kind, who, _, _ in found_in(findings)}
    assert in_ranges_too == {(kind, who) for kind, who, _, _ in found_in(in_one_go(tales, []))}
    assert in_ranges_too == {("broken-history", f"r{replica}") for replica in range(4)}


def test_a_history_without_its_beginning_is_sound_in_ranges_too() -> None:
    tales = dict.fromkeys(range(4), scribe())

    findings, whole = in_ranges(tales, [scribe().checkpoint()], 2, start=3)

    assert found_in(findings) == set()
    assert whole.signed == 3 * SLOTS


def test_a_root_that_a_quorum_signed_and_nobody_tells_is_found_in_ranges_too() -> None:
    tales = dict.fromkeys(range(4), scribe())
    signed = [scribe().checkpoint(root=bytes(32))]

    findings, whole = in_ranges(tales, signed, 2)

    assert found_in(findings) == found_in(in_one_go(tales, signed))
    assert {kind for kind, *_ in found_in(findings)} == {"unserved-checkpoint"}
    assert whole.signed == 0


def test_what_stands_where_is_the_same_in_ranges() -> None:
    history = History(orderers(), Findings())
    history.begin(0, scribe().walked())
    (ledger,) = history.branches[0].ledgers().values()

    runs = [*history.branches[0].runs()]

    assert [run for _, run, _ in runs] == ledger.runs
    assert b"".join(descriptors for *_, descriptors in runs) == ledger.descriptors
