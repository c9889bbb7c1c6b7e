"""Checkpoints: a head that a quorum signed, as others can check it."""

from collections.abc import Mapping

import pytest

from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import NodeId
from quorate.core.ordering import Cosign
from quorate.crypto.checkpoint import read
from quorate.protocol.ordering.cosigning import HEADS_MAX, Cosigning
from quorate.sim.order_stage import SimNotary
from stage import Outlook

MEMBERS = (0, 1, 2, 3)
ROOT, OTHER = b"r" * 32, b"o" * 32
COSIGNERS = list(SimNotary(0, MEMBERS).cosigners.values())


class Member:
    """One replica that signs."""

    def __init__(
        self, node: NodeId, quorum: int = 3, keys: Mapping[NodeId, int] | None = None
    ) -> None:
        self.node = node
        self.look = Outlook()
        self.notary = SimNotary(node, MEMBERS, keys)
        self.cosigning = Cosigning(node, 1, quorum, self.notary, self.look.outbox)

    def seal(self, size: int, root: bytes = ROOT) -> Cosign:
        others = tuple(member for member in MEMBERS if member != self.node)
        self.cosigning.seal(others, size, root, 7_000_000)
        (told, *_) = [m for _, m in self.look.take().send if isinstance(m, Cosign)]
        return told


def test_a_quorum_of_signatures_makes_a_checkpoint_that_anybody_can_read() -> None:
    mine, second, third = Member(0), Member(1), Member(2)
    mine.seal(5)
    mine.cosigning.on_cosign(1, second.seal(5))
    assert mine.cosigning.checkpoint == ""
    mine.cosigning.on_cosign(2, third.seal(5))

    found = read(mine.cosigning.checkpoint, COSIGNERS, 3)

    assert (found.head.size, found.head.root) == (5, ROOT)
    assert [(each.name, each.time_s) for each in found.cosignatures] == [
        ("r0", 7), ("r1", 7), ("r2", 7),
    ]  # fmt: skip


def test_signatures_may_come_before_we_have_come_so_far_ourselves() -> None:
    mine = Member(0)
    for other in (1, 2):
        mine.cosigning.on_cosign(other, Member(other).seal(9))
    mine.seal(9)
    assert read(mine.cosigning.checkpoint, COSIGNERS, 3).head.size == 9


def test_a_signature_on_another_head_does_not_count_and_is_reported() -> None:
    mine = Member(0)
    mine.seal(5)
    mine.cosigning.on_cosign(1, Member(1).seal(5, OTHER))
    mine.cosigning.on_cosign(2, Member(2).seal(5))
    assert mine.cosigning.checkpoint == ""
    assert [report.node for report in mine.look.take().reports] == [1]
    mine.cosigning.on_cosign(3, Member(3).seal(5))
    assert len(read(mine.cosigning.checkpoint, COSIGNERS, 3).cosignatures) == 3


def test_one_replica_cannot_sign_for_another() -> None:
    mine, second = Member(0), Member(1)
    mine.seal(5)
    signed = second.seal(5)
    mine.cosigning.on_cosign(1, signed)
    mine.cosigning.on_cosign(2, signed)
    assert mine.cosigning.checkpoint == ""


def test_the_last_checkpoint_holds_and_older_ones_are_not_waited_for() -> None:
    mine, second, third = Member(0), Member(1), Member(2)
    for size in (5, 6):
        mine.seal(size)
    for size in (6, 5):
        mine.cosigning.on_cosign(1, second.seal(size))
        mine.cosigning.on_cosign(2, third.seal(size))
    assert mine.cosigning.size == 6
    assert not mine.cosigning._said
    assert not mine.cosigning._heads


def test_a_replica_that_signs_sizes_without_end_keeps_no_one_from_the_others() -> None:
    mine = Member(0)
    flood = Member(3)
    for size in range(1000, 1000 + 5 * HEADS_MAX):
        mine.cosigning.on_cosign(3, flood.seal(size))
    assert len(mine.cosigning._said) <= HEADS_MAX
    mine.seal(5)
    for other in (1, 2):
        mine.cosigning.on_cosign(other, Member(other).seal(5))
    assert mine.cosigning.size == 5


def test_a_checkpoint_that_was_changed_is_refused() -> None:
    mine = Member(0)
    mine.seal(5)
    for other in (1, 2):
        mine.cosigning.on_cosign(other, Member(other).seal(5))
    with pytest.raises(RemoteProtocolError):
        read(mine.cosigning.checkpoint.replace("\n5\n", "\n6\n"), COSIGNERS, 3)


# Keys that change


def test_what_was_signed_with_a_former_key_counts_no_more_and_nobody_is_blamed() -> None:
    mine, former = Member(0), Member(1)
    mine.seal(5)
    mine.cosigning.on_cosign(1, former.seal(5))
    mine.notary.keys[1] = 1

    mine.cosigning.on_cosign(2, Member(2).seal(5))

    assert mine.cosigning.checkpoint == ""
    mine.cosigning.on_cosign(3, Member(3).seal(5))
    found = read(mine.cosigning.checkpoint, mine.notary.cosigners.values(), 3)
    assert [each.name for each in found.cosignatures] == ["r0", "r2", "r3"]
    assert mine.look.take().reports == []


def test_a_signature_with_the_new_key_takes_the_place_of_one_with_the_former_key() -> None:
    mine = Member(0)
    mine.seal(5)
    mine.cosigning.on_cosign(1, Member(1).seal(5))
    mine.notary.keys[1] = 1
    mine.cosigning.on_cosign(1, Member(1, keys={1: 1}).seal(5))
    mine.cosigning.on_cosign(2, Member(2).seal(5))
    assert len(read(mine.cosigning.checkpoint, mine.notary.cosigners.values(), 3).cosignatures) == 3


def test_a_signature_with_no_key_that_the_replica_ever_had_is_reported() -> None:
    mine = Member(0)
    mine.notary.keys[1] = 1
    mine.seal(5)
    mine.cosigning.on_cosign(1, Member(3).seal(5))
    mine.cosigning.on_cosign(2, Member(2).seal(5))
    assert [(r.node, r.kind) for r in mine.look.take().reports] == [(1, "bad-cosignature")]


def test_a_replica_whose_key_was_replaced_signs_no_more() -> None:
    mine = Member(0)
    mine.notary.keys[0] = 1
    mine.cosigning.seal((1, 2, 3), 5, ROOT, 7_000_000)
    for other in (1, 2):
        mine.cosigning.on_cosign(other, Member(other).seal(5))
    assert (mine.look.take().send, mine.cosigning.checkpoint) == ([], "")
