"""What replicas take in on a validated topic, what they order, and what readers deliver."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from commands import ACME, cluster
from council import BYZANTINE, VALIDATED, A, B, Council, T
from desk import EVERYBODY, KEYS, Desk
from quorate.core import batch
from quorate.core.cluster import Client
from quorate.core.control import (
    CONTROL_TOPIC_ID,
    LEASE_US_MAX,
    Command,
    PutClient,
    Register,
    encode_command,
)
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.header import HEADER_BYTES, SALT_BYTES, SEAL_BYTES
from quorate.core.ids import NodeId, Sequence, node_of
from quorate.core.ordering import (
    Announce,
    AnnounceSealed,
    Append,
    Line,
    Partition,
    Received,
)
from quorate.crypto.digests import batch_digest, descriptor, digest
from quorate.crypto.identity import Identity
from quorate.crypto.sids import Place, Seal
from quorate.protocol.ordering.group import Group
from quorate.protocol.ordering.lines import INLINE_BYTES_MAX
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.publisher import LineOutgoing
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.ordering.value import CHAIN_START, chain_of
from quorate.sim.sealing import CLUSTER, public_key
from seals import batch_of_values, sealed, sealed_batch
from stage import Outlook, topic

WITH_PROOFS = {**VALIDATED, "event_proofs": True}
SALT = bytes(range(SALT_BYTES))
ROOT = b"r" * 32


def logs(council: Council) -> list[list[bytes]]:
    return [council.log(replica) for replica in council.seats]


def bad_sids(council: Council) -> set[NodeId]:
    return {report.node for report in council.reports() if report.kind == "bad-sid"}


def large_batch(sequence: Sequence, **changes: Any) -> bytes:
    return sealed_batch(A, sequence, batch_of_values(bytes(INLINE_BYTES_MAX)), **changes)


def announced(*payloads: bytes, first: Sequence = 1) -> AnnounceSealed:
    return AnnounceSealed(T, 0, first, [payload[:SEAL_BYTES] for payload in payloads])


# Handing in


def test_what_its_producer_sealed_is_ordered_as_it_is() -> None:
    council = Council(VALIDATED)
    payload = sealed_batch(A, 1)

    council.publish(A, 1, payload)
    council.settle()

    assert logs(council) == 4 * [[payload]]
    assert council.reports() == []


def test_of_a_large_batch_stores_have_the_payload_and_the_others_its_seal() -> None:
    council = Council(VALIDATED)
    payload = large_batch(1)

    council.say(A, (1, 2), Append(T, 0, 1, [payload], [batch_digest(payload)]))
    council.say(A, (0, 3), announced(payload))
    council.settle()

    ends = [council.group(each).log.partition(Partition(T, 0)).end for each in council.seats]
    assert ends == [1, 1, 1, 1]
    assert council.log(1) == council.log(2) == [payload]


def flip(payload: bytes, at: int) -> bytes:
    return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]


def recounted(payload: bytes) -> bytes:
    """Its header says two events, for which it has the bytes."""
    return payload[:4] + b"\2" + payload[5:]


# What each is, and what the producer of A's first batch hands in.
WRONG: dict[str, Callable[[], bytes]] = {
    "half a seal": lambda: sealed_batch(A, 1)[: SEAL_BYTES - 1],
    "a seal with no body": lambda: sealed_batch(A, 1)[:SEAL_BYTES],
    "a seal and half a body": lambda: sealed_batch(A, 1)[:-1],
    "a forged signature": lambda: flip(sealed_batch(A, 1), SEAL_BYTES - 1),
    "another time than was signed": lambda: flip(sealed_batch(A, 1), HEADER_BYTES),
    "reserved bytes that are not zero": lambda: flip(sealed_batch(A, 1), HEADER_BYTES + 74),
    "another count than was signed": lambda: recounted(sealed_batch(A, 1)),
    "another size than was signed": lambda: flip(sealed_batch(A, 1), 12),
    "a key that is not pinned": lambda: sealed_batch(A, 1, key=1),
    "somebody else's key": lambda: sealed_batch(A, 1, public_key=public_key(B)),
    "somebody else's batch": lambda: sealed_batch(B, 1),
    "signed for another producer": lambda: sealed_batch(A, 1, place={"producer": B}),
    "signed for another session": lambda: sealed_batch(A, 1, place={"session": 1}),
    "signed for another partition": lambda: sealed_batch(A, 1, place={"partition": 1}),
    "signed for another topic": lambda: sealed_batch(A, 1, place={"topic": "u"}),
    "signed for another cluster": lambda: sealed_batch(A, 1, place={"cluster": "other"}),
    "signed for another number": lambda: sealed_batch(A, 1, signed_as=2),
    "another body": lambda: flip(sealed_batch(A, 1), -1 % len(sealed_batch(A, 1))),
    "a tree of events that nobody asked for": lambda: sealed_batch(A, 1, root=ROOT),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_its_producer_did_not_sign_for_this_place_is_never_ordered(what: str) -> None:
    council = Council(VALIDATED)
    payload = WRONG[what]()

    council.publish(A, 1, payload)
    council.publish(B, 1, sealed_batch(B, 1))
    council.run(5)

    # Nobody else waits for it, and its producer goes on when it does as it should.
    assert logs(council) == 4 * [[sealed_batch(B, 1)]]
    assert bad_sids(council) == {A}
    council.publish(A, 1, sealed_batch(A, 1))
    council.run(1)
    assert logs(council) == 4 * [[sealed_batch(B, 1), sealed_batch(A, 1)]]


@pytest.mark.parametrize("what", [name for name in WRONG if "tree" not in name])
def test_the_same_holds_where_events_are_proved_one_by_one(what: str) -> None:
    council = Council(WITH_PROOFS)
    right = sealed_batch(A, 1, batch_of_values(b"1"), salt=SALT, root=ROOT)

    council.publish(A, 1, WRONG[what]())
    council.run(1)
    assert logs(council) == 4 * [[]]
    assert bad_sids(council) == {A}

    council.publish(A, 1, right)
    council.run(1)
    assert logs(council) == 4 * [[right]]


def test_a_signed_batch_that_is_malformed_keeps_its_offsets_and_delivers_nothing() -> None:
    """Nobody looks behind its seal before it is read, and its header says how many it has."""
    council, desk = Council(VALIDATED), Desk()
    malformed = sealed_batch(A, 1, batch_of_values(b"1234"), events=2)

    council.publish(A, 1, malformed, sealed_batch(A, 2))
    council.settle()

    assert logs(council) == 4 * [[malformed, sealed_batch(A, 2)]]
    assert {council.group(each).log.partition(Partition(T, 0)).end for each in EVERYBODY} == {3}
    with pytest.raises(RemoteProtocolError):
        batch.Batch(malformed)
    desk.say(malformed, sealed_batch(A, 2))
    assert [entry.offset for entry in desk.take()[0]] == [0, 2]


# Validated and basic


def test_basic_batches_stand_between_signed_ones_in_one_sequence_of_offsets() -> None:
    council = Council(VALIDATED)
    basic = batch_of_values(b"2", b"3")
    council.publish(A, 1, sealed_batch(A, 1), basic, sealed_batch(A, 3))
    council.settle()

    assert council.reports() == []
    assert {council.group(each).log.partition(Partition(T, 0)).end for each in EVERYBODY} == {4}
    assert [len(council.group(each).readers.read(Partition(T, 0), 1, 1)) for each in EVERYBODY] == [
        1, 1, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize("validates", [True, False])
def test_who_validates_passes_over_basic_batches_and_others_are_given_all(validates: bool) -> None:
    desk = Desk(validates=validates)
    first, basic, third = sealed_batch(A, 1), batch_of_values(b"2", b"3"), sealed_batch(A, 3)
    last = batch_of_values(b"5")

    desk.say(first, basic, third, last)
    entries, reports = desk.take()

    expected = [(0, first), (3, third)] if validates else [
        (0, first), (1, basic), (3, third), (4, last),
    ]  # fmt: skip
    assert [(entry.offset, entry.payload) for entry in entries] == expected
    assert reports == []
    assert desk.reader.position == 5
    assert desk.passed == ([5] if validates else [])


def test_a_lead_that_sends_the_descriptor_of_a_signed_batch_alone_is_replaced() -> None:
    desk = Desk()
    lead, entries = desk.lead, desk.entries(sealed_batch(A, 1))
    held_back = msgspec.structs.replace(
        entries, payloads=[descriptor(sealed_batch(A, 1))], bare=[0]
    )
    desk.reader.on_entries(lead, held_back, EVERYBODY)
    assert desk.take() == ([], ["bad-lead"])
    assert desk.lead != lead


def test_a_batch_is_taken_under_its_number_once() -> None:
    council = Council(VALIDATED)
    first, second = sealed_batch(A, 1), sealed_batch(A, 2)
    council.publish(A, 1, first)
    council.settle()

    council.publish(A, 2, first)
    council.publish(A, 1, first)
    council.run(1)
    assert logs(council) == 4 * [[first]]

    council.publish(A, 2, second)
    council.settle()
    assert logs(council) == 4 * [[first, second]]


def test_batches_that_leave_a_number_out_or_come_the_wrong_way_round_wait_or_are_refused() -> None:
    council = Council(VALIDATED)
    first, second, third = (sealed_batch(A, number) for number in (1, 2, 3))

    council.publish(A, 1, second, first)
    council.publish(A, 2, second, third)
    council.run(1)
    assert logs(council) == 4 * [[]]

    council.publish(A, 1, first)
    council.publish(A, 2, second, third)
    council.settle()
    assert logs(council) == 4 * [[first, second, third]]


def test_two_batches_that_a_producer_signs_under_one_number_are_not_both_ordered() -> None:
    council = Council(VALIDATED)
    one, other = sealed_batch(A, 1), sealed_batch(A, 1, batch_of_values(b"other"))

    council.publish(A, 1, one, to=(0, 1))
    council.publish(A, 1, other, to=(2, 3))
    council.publish(B, 1, sealed_batch(B, 1))
    council.run(5)
    for payload in (one, other):
        council.publish(A, 1, payload)
    council.run(5)

    (log,) = {tuple(log) for log in logs(council)}
    assert log[0] == sealed_batch(B, 1)
    assert log[1:] in [(), (one,), (other,)]
    assert {report.kind for report in council.reports()} == {"contradiction", "two-seals"}


def test_a_run_with_one_wrong_batch_is_refused_as_a_whole_and_what_is_known_of_it_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    council = Council(VALIDATED)
    first, second = sealed_batch(A, 1), sealed_batch(A, 2)
    council.publish(A, 1, first, flip(second, SEAL_BYTES - 1), to=[0])
    assert council.group(0).backlog.line(Line(A, T, 0)).descriptors == []

    council.publish(A, 1, first, to=[0])
    looked_at: list[tuple[Sequence, int]] = []
    check = Validation.check_seals

    def noted(self: Validation, line: Line, number: Sequence, seals: list[bytes]) -> None:
        looked_at.append((number, len(seals)))
        check(self, line, number, seals)

    monkeypatch.setattr(Validation, "check_seals", noted)
    council.publish(A, 1, first, second, to=[0])
    assert looked_at == [(2, 1)]
    assert council.group(0).backlog.line(Line(A, T, 0)).descriptors == [
        descriptor(first), descriptor(second),
    ]  # fmt: skip


def test_one_that_says_it_stores_a_batch_is_not_enough_for_its_order() -> None:
    """A seal whose payload nobody has: it waits, and nobody waits for it."""
    council = Council(VALIDATED, byzantine=(3,))
    payload = large_batch(1)
    chain = chain_of(CHAIN_START, [descriptor(payload)])[-1]

    council.say(A, council.seats, announced(payload))
    council.say(3, council.seats, Received(A, T, 0, 1, chain))
    council.say(3, council.seats, council.receipt(3, A, chain))
    council.publish(B, 1, sealed_batch(B, 1))
    council.run(5)

    assert logs(council) == 3 * [[sealed_batch(B, 1)]]
    assert {council.group(each).consensus.regency for each in council.seats} == {1}


# Restarts and keys


def test_a_sealed_batch_that_waits_is_there_after_a_restart() -> None:
    council = Council(VALIDATED)
    payload = large_batch(1)
    council.say(A, (1, 2), Append(T, 0, 1, [payload], [batch_digest(payload)]))
    for replica in (1, 2):
        council.reboot(replica)

    council.say(A, (0, 3), announced(payload))
    council.run(5)

    assert council.log(1) == council.log(2) == [payload]


def test_a_replica_that_missed_a_sealed_batch_gets_it_from_the_others() -> None:
    council = Council(VALIDATED)
    payload = sealed_batch(A, 1)
    council.publish(A, 1, payload, to=(0, 1, 2))
    council.run(5)
    assert logs(council) == 4 * [[payload]]


def renew_key(council: Council, replicas: set[NodeId]) -> None:
    """These have come to the slot in which A got another key."""
    for replica in replicas:
        validation = council.seats[replica].ordering._validation
        validation._keys[A] = public_key(A, 1)


def test_what_was_signed_before_a_key_changed_is_ordered_if_it_was_handed_in_before() -> None:
    council = Council(VALIDATED)
    payload = sealed_batch(A, 1)
    renew_key(council, {3})

    council.publish(A, 1, payload)
    council.run(5)

    assert logs(council) == 4 * [[payload]]
    assert {report.node for report in council.reports(by=3)} == {A}


def test_what_is_signed_with_a_former_key_is_not_taken() -> None:
    council = Council(VALIDATED)
    renew_key(council, EVERYBODY)

    council.publish(A, 1, sealed_batch(A, 1))
    council.run(1)
    assert logs(council) == 4 * [[]]

    council.publish(A, 1, sealed_batch(A, 1, key=1))
    council.settle()
    assert logs(council) == 4 * [[sealed_batch(A, 1, key=1)]]


def test_topics_that_are_not_validated_take_no_batch_that_says_it_is_signed() -> None:
    council = Council(BYZANTINE)
    council.publish(A, 1, sealed_batch(A, 1))
    council.publish(B, 1, b"anything")
    council.settle()
    assert logs(council) == 4 * [[b"anything"]]
    assert bad_sids(council) == {A}


def test_a_header_that_cannot_be_true_is_refused_with_its_payload_and_without() -> None:
    council = Council(VALIDATED)
    right = batch_of_values(b"1")
    for at, value in ((0, 9), (1, 2), (2, 1), (4, 0), (4, 3), (7, 1)):
        wrong = right[:at] + bytes([value]) + right[at + 1 :]
        council.say(A, council.seats, Append(T, 0, 1, [wrong]))
        council.say(A, council.seats, Announce(T, 0, 1, [descriptor(wrong)]))
    council.run(1)
    assert logs(council) == 4 * [[]]
    assert {(report.node, report.kind) for report in council.reports()} <= {
        (A, "bad-batch"), (A, "bad-sid"),
    }  # fmt: skip
    assert council.group(0).backlog.line(Line(A, T, 0)).descriptors == []


def test_descriptors_do_not_announce_a_signed_batch() -> None:
    council = Council(VALIDATED)
    payload = large_batch(1)
    council.say(A, council.seats, Announce(T, 0, 1, [descriptor(payload)]))
    assert council.group(0).backlog.line(Line(A, T, 0)).descriptors == []


# Publishing


def test_who_has_no_key_does_not_publish_signed_batches() -> None:
    line = LineOutgoing(topic(VALIDATED), Line(A, T, 0), Outlook().outbox)
    with pytest.raises(LocalProtocolError, match="a batch on 't' that nobody here can sign"):
        line.add(batch_of_values(b"1"), 1, sign=True)


# Reading


def test_a_reader_delivers_the_batch_and_what_its_producer_signed() -> None:
    payloads = sealed_batch(A, 1), sealed_batch(A, 2)
    desk = Desk()
    desk.say(*payloads)

    entries, reports = desk.take()

    assert [entry.payload for entry in entries] == [*payloads]
    assert reports == []


def test_a_reader_takes_what_a_former_key_signed_since_it_was_ordered_then() -> None:
    desk = Desk(keys={A: public_key(A, 5)})
    desk.say(sealed_batch(A, 1))
    entries, reports = desk.take()
    assert (len(entries), reports) == (1, [])


@pytest.mark.parametrize("what", ["a forged signature", "signed for another number"])
def test_whatever_replicas_agree_on_a_reader_delivers_nothing_that_nobody_signed(what: str) -> None:
    """More than f of them lie then."""
    desk = Desk()
    desk.say(WRONG[what](), sealed_batch(A, 2))

    entries, reports = desk.take()

    assert [entry.sequence for entry in entries] == [2]
    assert reports == ["bad-sid"]


# What it looks at


def test_seals_are_held_against_the_keys_and_topics_of_the_cluster() -> None:
    validated, plain = topic(VALIDATED), topic(BYZANTINE, name="u")
    validation = Validation(CLUSTER, [validated, plain], KEYS)
    assert validation.covers(validated.id)
    assert not validation.covers(plain.id)
    line = Line(node_of(A, 3), T, 0)
    assert validation.place(line) == (CLUSTER, "t", 0, A, 3)
    seal = sealed_batch(A, 1, place={"session": 3})[:SEAL_BYTES]
    validation.check_seals(line, 1, [seal])
    with pytest.raises(RemoteProtocolError, match="another key than client 4711"):
        validation.check_seals(Line(4711, T, 0), 1, [seal])


def test_the_batch_is_behind_the_salt_if_there_is_a_tree() -> None:
    bare = batch_of_values(b"1")
    salted = sealed_batch(A, 1, bare, salt=SALT, root=ROOT)
    assert batch.Batch(salted).events() == batch.Batch(sealed_batch(A, 1, bare)).events()
    assert Seal.decode(salted).digest == digest(SALT + bare[HEADER_BYTES:])


class Office(Council):
    """A cluster with a control plane, in which dora publishes on the validated topic 't'."""

    def __init__(self) -> None:
        self.old, self.new = Identity.generate("dora"), Identity.generate("dora")
        made = cluster({"t": VALIDATED}, name=CLUSTER)
        public = self.old.public
        dora = Client(
            number=DORA, name="dora", party="acme", sign_key=public.sign_key,
            mac_key=public.mac_key, certificate=public.certificate,
        )  # fmt: skip
        self.given: Counter[NodeId] = Counter()
        super().__init__(cluster=replace(made, clients=(*made.clients, dora)))

    def group(self, replica: NodeId) -> Group:
        return self.seats[replica].ordering.groups[GroupKind.BYZANTINE]

    def command(self, node: NodeId, given: Command) -> None:
        self.given[node] += 1
        payload = batch.encode_one(None, encode_command(given), (), 0, False)
        append = Append(CONTROL_TOPIC_ID, 0, self.given[node], [payload])
        self.say(node, self.seats, append)
        # Nobody hears meanwhile how far others received what dora published.
        self.run(1, lambda f: not (isinstance(f.message, Received) and f.message.topic == T))

    def publish_as(self, node: NodeId, identity: Identity, to: Iterable[NodeId]) -> bytes:
        place = Place.of(CLUSTER, "t", 0, node)
        payload = sealed(
            place, 1, batch_of_values(b"1"), time_us=0,
            public_key=identity.public.sign_key, sign=identity.sign,
        )  # fmt: skip
        self.say(node, to, Append(T, 0, 1, [payload]))
        return payload

    def renew(self) -> None:
        public = self.new.public
        keys = public.sign_key, public.mac_key, public.certificate
        self.command(ACME, PutClient("dora", "acme", *keys))


DORA = 1900
SESSIONS = [node_of(DORA, session) for session in (1, 2, 3)]


def test_a_command_that_gives_a_client_another_key_ends_what_the_former_one_can_sign() -> None:
    office = Office()
    before, late, after = SESSIONS
    for session in SESSIONS:
        office.command(session, Register("t", LEASE_US_MAX))
    first = office.publish_as(before, office.old, office.seats)
    office.run(1)
    office.renew()

    office.publish_as(late, office.old, office.seats)
    last = office.publish_as(after, office.new, office.seats)
    office.run(1)

    assert logs(office) == 4 * [[first, last]]
    assert bad_sids(office) == {late}


def test_what_f_plus_1_took_before_a_key_changed_is_ordered_after_that() -> None:
    """The others refuse it, and take it on the word of those who looked when it held."""
    office = Office()
    session = SESSIONS[0]
    office.command(session, Register("t", LEASE_US_MAX))
    payload = office.publish_as(session, office.old, (1, 2))
    office.drop()
    office.renew()
    assert logs(office) == 4 * [[]]
    office.publish_as(session, office.old, (0, 3))
    assert bad_sids(office) == {session}

    office.run(5)

    assert logs(office) == 4 * [[payload]]
