"""A replica that was away for longer than slots are kept starts over at a snapshot."""

from collections.abc import Callable

import msgspec
import pytest

from council import BYZANTINE, CRASH, A, B, Council, Flight, T, payload_of, records
from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import NodeId
from quorate.core.ordering import (
    AskPart,
    Cosign,
    Decision,
    Follow,
    Line,
    Located,
    OfferSnapshot,
    SnapshotPart,
    Wants,
)
from quorate.crypto import checkpoint as notes
from quorate.protocol.ordering import transfer as module
from quorate.protocol.ordering.log import LogState
from quorate.protocol.ordering.records import Certified, Installed, Snapshot
from quorate.protocol.ordering.transfer import Certificate
from quorate.sim.disks import SimDisk
from quorate.sim.order_stage import SimNotary
from stage import event

BOTH = pytest.mark.parametrize("table", [BYZANTINE, CRASH], ids=["byzantine", "crash"])
LATE = 2


def council_of(table: dict[str, object] | None = None) -> Council:
    return Council(table or BYZANTINE, snapshot_every=4, slots_kept=4, signs=True)


def without(replica: NodeId) -> Callable[[Flight], bool]:
    return lambda flight: replica not in (flight.sender, flight.receiver)


def order(council: Council, first: int, last: int, publisher: NodeId = A) -> None:
    """So many slots, of one batch each."""
    for number in range(first, last + 1):
        council.publish(publisher, number)
        council.settle()


def roots(council: Council) -> set[tuple[int, bytes]]:
    trees = [council.group(replica).log.tree for replica in council.seats]
    return {(tree.size, tree.root()) for tree in trees}


def transfer(council: Council, replica: NodeId) -> module.Transfer:
    found = council.group(replica).transfer
    assert found is not None
    return found


def left_behind(table: dict[str, object] | None = None, *, disk: SimDisk | None = None) -> Council:
    """One replica knows two slots when the others have thirteen, and comes back."""
    council = council_of(table)
    order(council, 1, 2)
    council.seats[LATE].disk.sync()
    found = council.seats[LATE].disk
    council.crash(LATE)
    order(council, 3, 13)
    council.sent.clear()
    council.restart(LATE, found if disk is None else disk)
    return council


# Certificates


@BOTH
def test_snapshots_are_the_same_bytes_everywhere_and_signed_by_a_quorum(
    table: dict[str, object],
) -> None:
    council = council_of(table)
    order(council, 1, 5)
    order(council, 1, 4, B)
    states = {(each.slot, each.state) for each in records(council.turns, Snapshot)}
    assert sorted(slot for slot, _ in states) == [4, 8]
    signed = {(each.slot, each.state) for each in records(council.turns, Certified)}
    assert signed == states
    assert len(records(council.turns, Certified)) == 2 * len(council.members)


def test_a_certificate_names_the_slot_and_the_digest_of_the_state() -> None:
    council = council_of()
    order(council, 1, 4)
    certified = records(council.turns, Certified)[0]
    assert "\nstate 4 " in certified.checkpoint
    notary, rules = SimNotary(0, council.members), council.group(0).roster.rules
    found = Certificate.read(certified.checkpoint, notary, council.members, rules.quorum)
    tree = council.group(0).log.tree
    assert found[:2] == (4, len(certified.state))
    assert (found.size, found.root) == (tree.size, tree.root())


@pytest.mark.parametrize(
    ("old", "new"),
    [("state 4 ", "state 5 "), ("simulated\n", "another\n"), ("\nstate", "\nstatement")],
    ids=["slot", "origin", "kind"],
)
def test_a_certificate_that_was_altered_is_refused(old: str, new: str) -> None:
    council = council_of()
    order(council, 1, 4)
    text = records(council.turns, Certified)[0].checkpoint
    assert text.count(old) == 1
    with pytest.raises(RemoteProtocolError):
        Certificate.read(text.replace(old, new), SimNotary(0, council.members), (0, 1, 2, 3), 3)


def test_a_checkpoint_without_a_state_is_no_certificate() -> None:
    council = council_of()
    order(council, 1, 3)
    council.run(1)
    cosigning = council.group(0).cosigning
    assert cosigning is not None
    with pytest.raises(RemoteProtocolError, match="names 0 states"):
        Certificate.read(cosigning.checkpoint, SimNotary(0, council.members), (0, 1, 2, 3), 3)


def test_too_few_signatures_make_no_certificate() -> None:
    council = council_of()
    order(council, 1, 4)
    text = records(council.turns, Certified)[0].checkpoint
    notary = SimNotary(0, council.members)
    cosigners = list(notary.cosigners.values())
    whole = notes.read(text, cosigners, 3)
    fewer = notes.render(whole.head, whole.cosignatures[:2], cosigners)
    with pytest.raises(RemoteProtocolError, match="where 3 are needed"):
        Certificate.read(fewer, notary, council.members, 3)


def test_a_replica_signs_one_head_per_size_also_after_a_restart_at_a_snapshot() -> None:
    council = council_of()
    order(council, 1, 4)
    council.run(1)
    for replica in council.members:
        council.seats[replica].disk.sync()
        council.reboot(replica)
    council.run(3)
    signatures = {
        (flight.sender, flight.message.size, flight.message.signature)
        for flight in council.sent
        if isinstance(flight.message, Cosign)
    }
    sizes = [(sender, size) for sender, size, _ in signatures]
    assert len(sizes) == len(set(sizes))
    assert (0, 4) in sizes


def test_signatures_that_were_lost_are_said_again() -> None:
    council = council_of()
    order(council, 1, 3)
    council.publish(A, 4)
    council.settle(lambda flight: not isinstance(flight.message, Cosign))
    assert records(council.turns, Certified) == []
    council.run(2)
    assert [transfer(council, replica).covered for replica in council.members] == [4] * 4


def test_whoever_missed_the_signatures_is_given_the_certificate() -> None:
    council = council_of()
    order(council, 1, 3)
    council.publish(A, 4)
    kinds = (Cosign, OfferSnapshot)
    council.settle(lambda f: not (isinstance(f.message, kinds) and f.receiver == LATE))
    # Later heads have checkpoints already, at this replica too.
    order(council, 5, 6)
    council.run(0.3)
    cosigning = council.group(LATE).cosigning
    assert cosigning is not None
    assert (cosigning.size, transfer(council, LATE).covered) == (6, 0)
    council.run(2)
    assert transfer(council, LATE).covered == 4


def test_a_snapshot_that_was_written_before_a_crash_is_signed_after_it() -> None:
    council = council_of()
    order(council, 1, 3)
    council.publish(A, 4)
    council.settle(lambda flight: not isinstance(flight.message, Cosign))
    for replica in council.members:
        council.seats[replica].disk.sync()
        council.reboot(replica)
    council.run(2)
    assert [transfer(council, replica).covered for replica in council.members] == [4] * 4


def test_a_certificate_can_be_served_after_a_restart() -> None:
    council = left_behind()
    for replica in (0, 1, 3):
        council.seats[replica].disk.sync()
        council.reboot(replica)
    council.run(3)
    assert len(records(council.turns, Installed)) == 1
    assert len(roots(council)) == 1


# Starting over


@BOTH
def test_a_replica_that_was_away_too_long_starts_over_and_follows(table: dict[str, object]) -> None:
    council = left_behind(table)
    council.run(2)
    (installed,) = records(council.turns, Installed)
    assert installed.slot == 12
    # What came behind the snapshot it heard slot by slot.
    assert {decision.slot for decision in council.messages(Decision, receiver=LATE)} == {13}
    order(council, 14, 16)
    assert len(roots(council)) == 1
    assert council.seats[LATE].store.bounds(Line(A, T, 0).target) == (12, 16)


@BOTH
def test_a_replica_that_lost_its_disk_starts_over_too(table: dict[str, object]) -> None:
    council = left_behind(table, disk=SimDisk())
    council.run(2)
    assert len(roots(council)) == 1
    assert transfer(council, LATE).count == 1


def test_slots_that_are_kept_are_told_one_by_one() -> None:
    council = council_of()
    order(council, 1, 9)
    council.seats[LATE].disk.sync()
    disk = council.seats[LATE].disk
    council.crash(LATE)
    order(council, 10, 13)
    council.restart(LATE, disk)
    council.run(2)
    assert records(council.turns, Installed) == []
    assert len(roots(council)) == 1


def test_it_comes_up_where_it_started_over_after_another_crash() -> None:
    council = left_behind()
    council.run(2)
    council.reboot(LATE)
    council.run(1)
    order(council, 14, 20)
    assert len(roots(council)) == 1
    assert len(records(council.turns, Installed)) == 1


def test_it_keeps_its_regency() -> None:
    council = left_behind()
    group = council.group(LATE)
    group.consensus.begin(5)
    council.run(2, without(3))
    (installed,) = records(council.turns, Installed)
    assert installed.regency >= 5
    council.crash(LATE)
    council.restart(LATE, SimDisk())
    assert group.consensus.regency >= 5


def test_what_was_decided_meanwhile_no_longer_waits_and_the_rest_still_does() -> None:
    council = council_of()
    order(council, 1, 2)
    # Given batches that wait at a replica which hears nothing of the others,
    for number in range(3, 15):
        council.publish(A, number, to=[LATE])
        council.publish(A, number, to=[0, 1, 3]) if number < 14 else None
        council.settle(without(LATE))
    waiting = council.group(LATE).backlog.lines[Line(A, T, 0)]
    assert waiting.next == 3
    # when it starts over, those are left that nobody has decided.
    council.run(2)
    waiting = council.group(LATE).backlog.lines[Line(A, T, 0)]
    assert (waiting.next, waiting.end) == (14, 15)
    assert waiting.payloads == [event(payload_of(A, 14))]
    council.publish(A, 14)
    council.settle()
    assert len(roots(council)) == 1


def test_signatures_that_come_after_it_started_over_are_not_needed() -> None:
    """What a liar holds back, it can send whenever it likes."""
    # Given a replica that signed a state, and got no signatures of others,
    council = council_of()
    for number in range(1, 5):
        council.publish(A, number)
        council.settle(lambda f: not isinstance(f.message, Cosign) or without(LATE)(f))
    late = [flight for flight in council.sent if flight.receiver == LATE]
    # and that started over with a later one.
    for number in range(5, 14):
        council.publish(A, number, to=[0, 1, 3])
        council.settle(without(LATE))
    council.run(1)
    assert len(records(council.turns, Installed)) == 1

    # When they come in the end, then nothing is raised, and the later certificate holds.
    for flight in late:
        if isinstance(flight.message, Cosign):
            council.say(flight.sender, [LATE], flight.message)
    certificate = transfer(council, LATE).certificate
    assert certificate is not None
    assert certificate.slot == 12


def test_those_who_read_from_it_are_told_where_it_begins() -> None:
    council = left_behind()
    council.run(2)
    council.sent.clear()
    council.say(1500, [LATE], Follow(T, 0, 1, 0, 4096, Wants.ALL))
    council.settle()
    said = [flight.message for flight in council.sent if flight.receiver == 1500]
    assert [type(message).__name__ for message in said] == ["Absent", "Chained"]
    assert not any(isinstance(message, Located) for message in said)
    assert said[1].start == 12  # type: ignore[union-attr]


# Offers


def offers_of(council: Council) -> list[OfferSnapshot]:
    return council.messages(OfferSnapshot, receiver=LATE)


def test_one_offer_makes_nobody_drop_what_it_has() -> None:
    """Where replicas lie, one of them could else make others forget whenever they lag a little."""
    council = left_behind()
    council.run(2, lambda f: LATE not in (f.sender, f.receiver) or 1 in (f.sender, f.receiver))
    assert offers_of(council)
    assert council.messages(AskPart) == []
    assert council.group(LATE).log.state.slot == 2


def test_an_offer_that_nobody_signed_is_reported() -> None:
    council = left_behind()
    council.say(1, [LATE], OfferSnapshot(council.number, 12, "state of affairs"))
    assert [(r.node, r.kind) for r in council.reports(by=LATE)] == [(1, "forgery")]


def test_an_offer_for_another_slot_than_it_proves_is_reported() -> None:
    council = left_behind()
    council.run(0.3, without(LATE))
    text = records(council.turns, Certified)[-1].checkpoint
    council.say(1, [LATE], OfferSnapshot(council.number, 4096, text))
    assert (1, "forgery") in [(r.node, r.kind) for r in council.reports(by=LATE)]


def test_what_is_behind_us_is_not_taken() -> None:
    council = council_of()
    order(council, 1, 9)
    text = next(each for each in records(council.turns, Certified) if each.slot == 4).checkpoint
    for sender in (0, 1, 3):
        council.say(sender, [LATE], OfferSnapshot(council.number, 4, text))
    council.settle()
    assert council.messages(AskPart) == []


# Parts


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES_MAX", 40)


def test_a_state_travels_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)
    council = left_behind()
    council.run(2)
    parts = council.messages(SnapshotPart, receiver=LATE)
    assert len(parts) > 5
    state = msgspec.msgpack.decode(b"".join(part.data for part in parts), type=LogState)
    assert state.slot == 12
    assert len(roots(council)) == 1


def test_a_peer_that_sends_a_wrong_part_is_reported_and_another_one_asked() -> None:
    council = left_behind()
    liars: set[NodeId] = set()

    def falsify() -> None:
        for flight in council.flying:
            if isinstance(flight.message, SnapshotPart) and not liars - {flight.sender}:
                liars.add(flight.sender)
                data = bytes(len(flight.message.data))
                flight.message = msgspec.structs.replace(flight.message, data=data)

    for _ in range(200):
        falsify()
        if not council.deliver():
            council.now_us += council.pace.tick_us
            council.tick()
    (liar,) = liars
    assert (liar, "forgery") in [(r.node, r.kind) for r in council.reports(by=LATE)]
    assert {r.node for r in council.reports(by=LATE)} == {liar}
    assert len(records(council.turns, Installed)) == 1
    assert len(roots(council)) == 1


def test_a_peer_that_sends_too_much_is_reported() -> None:
    council = left_behind()
    council.run(1.2, lambda flight: not isinstance(flight.message, AskPart))
    fetch = transfer(council, LATE)._fetch
    assert fetch is not None
    much = SnapshotPart(council.number, 12, 0, bytes(fetch.certificate.state_bytes + 1))
    council.say(fetch.peer, [LATE], much)
    assert (fetch.peer, "forgery") in [(r.node, r.kind) for r in council.reports(by=LATE)]
    assert council.group(LATE).log.state.slot == 2


def test_a_peer_that_falls_silent_is_replaced() -> None:
    council = left_behind()
    silent: set[NodeId] = set()

    def is_heard(flight: Flight) -> bool:
        if isinstance(flight.message, AskPart) and not silent:
            silent.add(flight.receiver)
        return not (isinstance(flight.message, SnapshotPart) and flight.sender in silent)

    council.run(4, is_heard)
    assert {flight.receiver for flight in council.sent if isinstance(flight.message, AskPart)}
    assert len(roots(council)) == 1


def test_parts_from_others_than_the_one_that_was_asked_are_not_taken() -> None:
    council = left_behind()
    council.run(1.2, lambda flight: not isinstance(flight.message, AskPart))
    fetch = transfer(council, LATE)._fetch
    assert fetch is not None
    other = next(each for each in (0, 1, 3) if each != fetch.peer)
    council.say(other, [LATE], SnapshotPart(council.number, 12, 0, b"x"))
    council.say(fetch.peer, [LATE], SnapshotPart(council.number, 8, 0, b"x"))
    council.say(fetch.peer, [LATE], SnapshotPart(council.number, 12, 5, b"x"))
    assert len(fetch.state) == 0


def test_whoever_asks_for_a_state_that_is_gone_is_offered_the_last_one() -> None:
    council = left_behind()
    council.run(1.2, lambda flight: not isinstance(flight.message, AskPart))
    order_without = without(LATE)
    for number in range(14, 18):
        council.publish(A, number, to=[0, 1, 3])
        council.settle(order_without)
    council.run(3)
    assert [installed.slot for installed in records(council.turns, Installed)] == [16]
    assert len(roots(council)) == 1


def test_a_state_is_in_memory_only_while_somebody_asks_for_it() -> None:
    council = left_behind()
    council.run(2)
    assert any(transfer(council, replica)._served for replica in (0, 1, 3))
    council.run(11)
    assert not any(transfer(council, replica)._served for replica in (0, 1, 3))


def test_a_state_over_the_limit_is_not_named_and_its_head_is_signed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_BYTES_MAX", 10)
    council = council_of()
    order(council, 1, 4)
    assert records(council.turns, Certified) == []
    cosigning = council.group(0).cosigning
    assert cosigning is not None
    assert cosigning.size == 4
    assert "state" not in cosigning.checkpoint


# Keys that change


def test_a_certificate_with_a_former_key_is_held_against_nobody_and_signed_again() -> None:
    """It is true, and proves nothing to whoever knows the later key only."""
    council = left_behind()
    signed = [each for each in records(council.turns, Certified) if each.slot == 12]
    worthless = next(name for name in (1, 3) if all(f"r{name} " in c.checkpoint for c in signed))
    council.rekey(worthless, knowing=[LATE])
    council.run(2)
    assert offers_of(council)
    assert (council.reports(), council.messages(AskPart)) == ([], [])

    council.seats[worthless].disk.sync()
    council.reboot(worthless)
    for each in {0, 1, 3} - {worthless}:
        council.learn_keys(each)
    council.run(5)

    assert council.reports() == []
    assert council.group(LATE).log.state.slot == 13
    assert transfer(council, LATE).count == 1
    assert len(roots(council)) == 1


def test_a_certificate_with_a_key_that_we_have_yet_to_hear_of_is_held_against_nobody() -> None:
    council = council_of()
    order(council, 1, 2)
    council.seats[LATE].disk.sync()
    disk = council.seats[LATE].disk
    council.crash(LATE)
    known = dict(council.keys)
    council.seats[1].disk.sync()
    council.rekey(1, knowing=[0, 3])
    council.reboot(1)
    order(council, 3, 13)
    later, council.keys = council.keys, known
    council.restart(LATE, disk)
    # Nobody has a link to somebody whose key it does not know.
    council.run(3, lambda flight: {flight.sender, flight.receiver} != {1, LATE})
    assert offers_of(council)
    assert (council.reports(), council.group(LATE).log.state.slot) == ([], 2)

    council.keys = later
    council.learn_keys(LATE)
    council.run(3)
    assert council.reports() == []
    assert len(roots(council)) == 1


def test_a_certificate_that_lacks_signatures_whatever_the_keys_is_reported() -> None:
    council = left_behind()
    council.run(0.3, without(LATE))
    council.rekey(1, knowing=[LATE])
    text = records(council.turns, Certified)[-1].checkpoint
    head, _, lines = text.rpartition("\n\n")
    fewer = head + "\n\n" + "\n".join(lines.splitlines()[:2]) + "\n"
    council.say(0, [LATE], OfferSnapshot(council.number, 12, fewer))
    assert (0, "forgery") in [(r.node, r.kind) for r in council.reports(by=LATE)]


def test_a_certificate_is_signed_again_after_a_restart_with_other_keys() -> None:
    council = council_of()
    order(council, 1, 5)
    council.run(1)
    council.rekey(1, knowing=[])
    for replica in council.members:
        council.seats[replica].disk.sync()
        council.reboot(replica)
    council.run(2)
    assert council.reports() == []
    for replica in council.members:
        assert transfer(council, replica).covered == 4
        certified = council.seats[replica].store.certified(council.number)
        assert certified is not None
        notary = SimNotary(0, council.members, council.keys)
        Certificate.read(certified.checkpoint, notary, council.members, 3)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_key_with_the_identifier_of_the_former_one_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """An identifier has 32 bits: a party finds such a key for its replica in a day."""
    identifier = property(lambda cosigner: cosigner.name.encode().rjust(4)[-4:])
    monkeypatch.setattr(notes.Cosigner, "key_id", identifier)
    council = council_of()
    order(council, 1, 5)
    council.run(1)
    council.rekey(1, knowing=[] if restarts else [0, 2, 3])
    for replica in council.members if restarts else (1,):
        council.seats[replica].disk.sync()
        council.reboot(replica)
    council.run(2)
    order(council, 6, 13)
    for replica in council.members:
        certified = council.seats[replica].store.certified(council.number)
        assert certified is not None
        notary = SimNotary(0, council.members, council.keys)
        assert Certificate.read(certified.checkpoint, notary, council.members, 3).slot == 12
