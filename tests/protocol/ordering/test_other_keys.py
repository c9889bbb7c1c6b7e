"""A replica that got another key, and what was signed in a change of leaders before that."""

import msgspec
import pytest

from council import BYZANTINE, CRASH, A, Council, Flight
from quorate.core.ordering import Signed, StopData, Sync
from quorate.sim.disks import SimDisk
from quorate.sim.order_stage import SimSigner

BOTH = pytest.mark.parametrize("table", [BYZANTINE, CRASH], ids=["byzantine", "crash"])
RENEWED = 1


def with_a_second_leader(table: dict[str, object]) -> Council:
    """The first leader was away when a batch waited; everybody has been heard in the change."""
    council = Council(table)
    council.publish(A, 1, to=[each for each in council.members if each])
    council.run(8, lambda flight: 0 not in (flight.sender, flight.receiver))
    council.run(4)
    assert regencies(council) == {2}
    (first, *_) = council.messages(Sync)
    assert RENEWED in [signed.replica for signed in first.states]
    council.sent.clear()
    return council


def regencies(council: Council) -> set[int]:
    found = [council.group(replica).consensus for replica in council.seats]
    assert all(consensus.is_synced for consensus in found)
    return {consensus.regency for consensus in found}


def renew(council: Council, *, knowing: list[int]) -> None:
    """One replica goes on with another key and an empty disk."""
    council.crash(RENEWED)
    council.rekey(RENEWED, knowing=knowing)
    council.restart(RENEWED, SimDisk())


@BOTH
def test_a_replica_with_another_key_comes_into_the_regency_that_its_former_key_helped_to_begin(
    table: dict[str, object],
) -> None:
    council = with_a_second_leader(table)
    renew(council, knowing=[each for each in council.members if each != RENEWED])

    council.run(5, lambda flight: not isinstance(flight.message, StopData))

    assert council.messages(Sync, receiver=RENEWED)
    assert regencies(council) == {2}
    assert council.reports() == []


def test_one_replica_alone_is_not_believed_what_was_signed_with_former_keys() -> None:
    council = with_a_second_leader(BYZANTINE)
    renew(council, knowing=[0, 2, 3])

    def from_one(flight: Flight) -> bool:
        is_other = flight.receiver == RENEWED and flight.sender != 0
        return not (is_other and isinstance(flight.message, Sync))

    council.run(5, from_one)

    assert council.messages(Sync, sender=0, receiver=RENEWED)
    assert not council.group(RENEWED).consensus.is_synced
    assert council.reports() == []


def test_what_nobody_signed_is_reported_whatever_keys_there_were() -> None:
    council = with_a_second_leader(BYZANTINE)
    council.crash(3)
    council.restart(3, SimDisk())
    council.run(0.2, lambda flight: 3 not in (flight.sender, flight.receiver))
    council.rekey(RENEWED, knowing=[3])
    sync = council.group(0).change._sync
    assert sync is not None
    states = [
        Signed(each.replica, each.state, SimSigner(0).sign(b"another"))
        if each.replica == RENEWED
        else each
        for each in sync.states
    ]
    # So that it speaks of no slot which is not here yet.
    council.group(3).consensus.jump(5, b"")
    council.say(0, [3], msgspec.structs.replace(sync, states=states))
    assert [(r.node, r.kind) for r in council.reports(by=3)] == [(0, "bad-sync")]


def test_a_leader_drops_what_a_former_key_signed_and_takes_what_the_new_one_signs() -> None:
    council = Council()
    council.publish(A, 1, to=[1, 2, 3])
    council.run(
        8,
        lambda flight: (
            0 not in (flight.sender, flight.receiver)
            and not (isinstance(flight.message, StopData) and flight.sender == 3)
        ),
    )
    council.rekey(2, knowing=[0, 1, 3])
    assert 2 not in council.group(1).change._states
    council.seats[2].disk.sync()
    council.reboot(2)
    council.run(10)
    assert len(regencies(council)) == 1
    assert {council.group(each).consensus.slot for each in council.seats} == {2}
    assert council.reports() == []
