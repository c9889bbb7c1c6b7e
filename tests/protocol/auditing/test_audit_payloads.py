"""Payloads from every replica are held against what was agreed, and what is missing is found."""

from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
import pytest

from histories import (
    ALICE,
    HERE,
    TOPIC,
    Scribe,
    batch,
    entries_of,
    name_of,
    orderers,
    public_of,
    secret_of,
)
from quorate.core.batch import encode_one
from quorate.core.control import PutClient, encode_command
from quorate.core.event import Event
from quorate.core.header import HEADER_BYTES, header_of
from quorate.core.ordering import Absent, Entries, Receipts, Refusal, SignedReceipt
from quorate.crypto import receipts as signing
from quorate.crypto.digests import batch_digest, descriptor
from quorate.crypto.events import events_root
from quorate.crypto.evidence import Keys, parse, render, verify_evidence
from quorate.crypto.sids import Place
from quorate.protocol.auditing.findings import Finding, Findings
from quorate.protocol.auditing.history import History
from quorate.protocol.auditing.payloads import Holding, KnownKeys, Missing, PartitionAudit
from quorate.protocol.auditing.ranges import judge
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.value import CHAIN_START, chained
from seals import sealed
from stage import topic

KEYS = Keys("demo", {1000: "alice", 1001: "bob"}, {m: (public_of(m),) for m in (1000, 1001)})
PLAIN: dict[str, object] = {"order": "total", "protection": "byzantine"}
SEALED = {**PLAIN, "validated": True}
PROVED = {**SEALED, "event_proofs": True}


def bare(text: str, events: int = 1) -> bytes:
    return batch(text.encode(), events)


def with_header(payload: bytes, **fields: int) -> bytes:
    """The same bytes under a header that says something else."""
    return header_of(payload)._replace(**fields).encode() + payload[HEADER_BYTES:]


def signed(
    text: str, sequence: int, *, member: int = 1000, partition: int = 0, events: int = 1
) -> bytes:
    """A batch that alice signed, or somebody in her name."""
    return signed_payload(bare(text, events), sequence, member=member, partition=partition)


def signed_payload(
    payload: bytes, sequence: int, *, member: int = 1000, partition: int = 0
) -> bytes:
    return sealed(
        Place.of("demo", TOPIC, partition, ALICE), sequence, payload, time_us=7,
        public_key=public_of(member), sign=secret_of(member).sign,
    )  # fmt: skip


def proved(text: str, sequence: int, *, of: str | None = None) -> bytes:
    """The same with a tree of events, perhaps that of another event."""
    salt = sha256(text.encode()).digest()
    root = events_root(salt, [Event(None, (of or text).encode(), timestamp_us=5)])
    return sealed(
        Place.of("demo", TOPIC, 0, ALICE), sequence, bare(text), salt=salt, time_us=7,
        root=root, public_key=public_of(1000), sign=secret_of(1000).sign,
    )  # fmt: skip


@dataclass
class Shelf:
    """One partition as it was agreed on, and replicas that bring what they have of it."""

    payloads: list[bytes]
    contract: dict[str, object] = field(default_factory=lambda: dict(PLAIN))
    keys: KnownKeys = field(default_factory=lambda: KnownKeys(KEYS, {"alice": 1000, "bob": 1001}))

    def __post_init__(self) -> None:
        self.findings = Findings()
        history = History(orderers(), self.findings)
        truth = Scribe().slot({ALICE: self.payloads})
        history.begin(0, truth.walked(checkpoints=[truth.checkpoint()]))
        trusted = judge(history).trusted
        assert trusted is not None
        self.audit = PartitionAudit(
            topic(self.contract, TOPIC), trusted.ledgers()[HERE], self.keys, self.findings, name_of
        )

    def holds(self, replica: int, start: int = 0) -> Holding:
        return self.audit.begin(replica, start)

    def lacks(self, replica: int, events: int) -> Holding:
        """It does not have the batches of the next events."""
        holding = self.audit.holdings.get(replica) or self.holds(replica)
        self.audit.lack(replica, Absent(*HERE, holding.cursor, holding.cursor + events))
        return holding

    def brings(self, replica: int, entries: Entries | None = None) -> None:
        if replica not in self.audit.holdings:
            self.holds(replica)
        self.audit.check(replica, entries_of(self.payloads) if entries is None else entries)

    @property
    def found(self) -> list[Finding]:
        return [finding for pile in self.findings for finding in pile.examples]

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(finding.kind, finding.who) for finding in self.found]


def test_what_all_replicas_bring_is_counted_once_and_checked_each_time() -> None:
    shelf = Shelf([bare("one"), bare("two", 3)])

    for replica in (0, 1, 2, 3):
        shelf.brings(replica)

    size = sum(map(len, shelf.payloads))
    audit = shelf.audit
    assert shelf.kinds == []
    assert (audit.batches, audit.events, audit.payload_bytes) == (2, 4, size)
    assert audit.checked_bytes == 4 * size
    assert audit.producers == [1000]
    assert audit.judge(silent=0) == []


def test_a_replica_that_sends_other_bytes_is_named_and_nobody_else() -> None:
    shelf = Shelf([bare("one", 3), bare("two"), bare("three", 2)])

    shelf.brings(0)
    shelf.brings(1, entries_of([shelf.payloads[0], bare("TWO"), shelf.payloads[2]]))
    shelf.brings(2)

    assert shelf.kinds == [("altered-payload", "r1")]
    assert shelf.found[0].where.offset == 3
    assert "its disk or its link" not in shelf.found[0].sentence


@pytest.mark.parametrize(
    "header", [{"events": 1}, {"headers": 1}, {"plain_bytes": 99}, {"kind": 1}], ids=str
)
def test_a_replica_that_serves_a_changed_header_is_named(header: dict[str, int]) -> None:
    shelf = Shelf([bare("one", 3), bare("two"), bare("three", 2)])

    shelf.brings(0, entries_of([with_header(shelf.payloads[0], **header), *shelf.payloads[1:]]))

    assert shelf.kinds == [("altered-payload", "r0")]
    assert shelf.found[0].where.offset == 0
    assert shelf.audit.holdings[0].is_done
    assert (shelf.audit.batches, shelf.audit.events) == (2, 3)


@pytest.mark.parametrize("offset", [0, 2, 4])
def test_a_replica_that_serves_shifted_offsets_is_named(offset: int) -> None:
    """Whether another batch begins there or none."""
    shelf = Shelf([bare("one", 3), bare("two", 2)])
    shelf.brings(1, entries_of(shelf.payloads[:1]))

    shelf.audit.check(1, entries_of(shelf.payloads[1:], first=2, offset=offset))

    assert shelf.kinds == [("wrong-position", "r1")]
    assert shelf.found[0].where.offset == offset


def test_a_replica_that_begins_with_another_batch_is_named() -> None:
    shelf = Shelf([bare("one", 2), bare("two", 2)])

    shelf.brings(1, entries_of(shelf.payloads[1:], first=2))

    assert shelf.kinds == [("wrong-position", "r1")]


def test_a_replica_that_sends_more_than_was_agreed_on_is_named() -> None:
    shelf = Shelf([bare("one", 2)])

    shelf.brings(1, entries_of([*shelf.payloads, bare("more")]))

    assert shelf.kinds == [("wrong-position", "r1")]
    assert shelf.audit.holdings[1].is_done


def test_what_comes_twice_is_counted_once_and_is_no_finding() -> None:
    shelf = Shelf([bare("one", 2), bare("two", 3)])

    for _ in range(2):
        shelf.brings(0)

    assert shelf.kinds == []
    assert shelf.audit.holdings[0].batches == 2


def test_bytes_that_do_not_fit_their_own_message_are_told_apart() -> None:
    shelf = Shelf([bare("one"), bare("two")])
    honest = entries_of(shelf.payloads)

    damaged = msgspec.structs.replace(honest, payloads=[bare("one"), bare("TWO")])
    shelf.brings(3, damaged)

    assert shelf.kinds == [("altered-payload", "r3")]
    assert "its disk or its link alters them" in shelf.found[0].sentence


def test_the_right_one_of_two_payloads_still_counts() -> None:
    shelf = Shelf([bare("one", 4), bare("two")])

    shelf.brings(1, entries_of([bare("ONE", 4), bare("two")]))

    assert (shelf.audit.batches, shelf.audit.audited_from) == (1, 4)


@pytest.mark.parametrize("wrong", [{"publisher": ALICE + 1}, {"first": 2}, {"time_us": 9}], ids=str)
def test_a_replica_that_says_another_line_stands_there_is_named(wrong: dict[str, int]) -> None:
    shelf = Shelf([bare("one")])

    shelf.brings(2, entries_of(shelf.payloads, **wrong))  # type: ignore[arg-type]

    assert shelf.kinds == [("wrong-position", "r2")]


def test_where_crashes_only_are_tolerated_what_fits_its_own_message_is_held_against_nobody() -> (
    None
):
    """A liar may have told it so. What its disk alters does not fit what it says itself."""
    shelf = Shelf([bare("one")], contract={"order": "total", "protection": "crash"})
    damaged = msgspec.structs.replace(entries_of(shelf.payloads), payloads=[bare("ONE")])

    shelf.brings(0, entries_of([bare("ONE")]))
    shelf.brings(1, entries_of(shelf.payloads, first=2))
    shelf.brings(2, damaged)

    assert shelf.kinds == [
        ("altered-payload", ""), ("wrong-position", ""), ("altered-payload", "r2"),
    ]  # fmt: skip


def test_a_thousand_lies_are_one_row_with_a_few_examples() -> None:
    payloads = [bare(f"{number}") for number in range(1000)]
    shelf = Shelf(payloads)

    shelf.brings(1, entries_of([bare("wrong")] * 1000))

    (pile,) = shelf.findings
    assert (pile.count, len(pile.examples)) == (1000, 3)
    assert shelf.findings.named == ["r1"]


def test_a_basic_batch_that_is_malformed_is_a_note_and_nobodys_lie() -> None:
    for contract in (PLAIN, SEALED):
        shelf = Shelf([with_header(bare("one", 2), events=3), bare("two", 2)], contract)

        shelf.brings(0)

        assert shelf.kinds == []
        assert [*shelf.audit.notes] == ["'t' has basic batches that are malformed"]
        assert (shelf.audit.batches, shelf.audit.events) == (2, 2)


def test_a_signed_batch_on_a_topic_where_nobody_signs_is_found() -> None:
    shelf = Shelf([signed("one", 1)])

    shelf.brings(0)

    assert shelf.kinds == [("bad-seal", "")]


# Validated topics


def test_signed_and_basic_batches_are_counted_by_their_events() -> None:
    shelf = Shelf([signed("one", 1, events=3), bare("two", 2), signed("three", 3)], SEALED)

    shelf.brings(0)

    assert shelf.kinds == []
    assert (shelf.audit.batches, shelf.audit.events, shelf.audit.signed_events) == (3, 6, 4)


@pytest.mark.parametrize(
    "payload",
    [
        with_header(bare("one"), kind=1),
        signed("one", 2),
        signed("one", 1, partition=1),
        signed("one", 1)[:180] + bytes(56) + bare("one"),
    ],
    ids=["no seal", "another number", "another partition", "no signature"],
)
def test_a_batch_in_the_log_that_its_producer_did_not_sign_is_found(payload: bytes) -> None:
    shelf = Shelf([payload], SEALED)

    shelf.brings(0)

    assert shelf.kinds == [("bad-seal", "")]


@pytest.mark.parametrize("fields", [{"events": 2}, {"headers": 1}, {"plain_bytes": 64}], ids=str)
def test_a_signed_batch_that_is_malformed_is_evidence_against_its_producer(
    fields: dict[str, int],
) -> None:
    shelf = Shelf([signed_payload(with_header(bare("one"), **fields), 1), bare("two", 3)], SEALED)

    shelf.brings(0)

    assert shelf.kinds == [("malformed", "alice")]
    assert (shelf.audit.batches, shelf.audit.events, shelf.audit.signed_events) == (2, 3, 0)
    evidence = shelf.found[0].evidence
    assert evidence is not None
    assert verify_evidence(parse(render(evidence)), KEYS).name == "alice"


def test_a_tree_of_events_that_is_right_is_no_finding() -> None:
    shelf = Shelf([proved("one", 1)], PROVED)

    shelf.brings(0)

    assert shelf.kinds == []
    assert shelf.audit.events == 1


def test_a_tree_of_other_events_is_held_against_the_producer_who_signed_it() -> None:
    shelf = Shelf([proved("one", 1, of="another")], PROVED)

    shelf.brings(0)

    assert shelf.kinds == [("malformed", "alice")]
    evidence = shelf.found[0].evidence
    assert evidence is not None
    assert verify_evidence(parse(render(evidence)), KEYS).name == "alice"


def test_a_tree_where_none_is_due_is_no_seal_that_replicas_let_pass() -> None:
    for payload, contract in ((proved("one", 1), SEALED), (signed("one", 1), PROVED)):
        shelf = Shelf([payload], contract)

        shelf.brings(0)

        assert shelf.kinds == [("bad-seal", "")]


@pytest.mark.parametrize("is_liar_first", [True, False])
def test_who_signed_two_batches_under_one_number_is_named_with_both_seals(
    is_liar_first: bool,
) -> None:
    shelf = Shelf([signed("one", 1), signed("two", 2)], SEALED)
    other = entries_of([shelf.payloads[0], signed("TWO", 2)])

    for is_liar in (is_liar_first, not is_liar_first):
        shelf.brings(1 if is_liar else 0, other if is_liar else None)
    shelf.audit.judge(silent=0)

    assert shelf.kinds == [("altered-payload", "r1"), ("two-seals", "alice")]
    evidence = shelf.found[1].evidence
    assert evidence is not None
    assert verify_evidence(parse(render(evidence)), KEYS).name == "alice"


def test_who_spoils_what_is_behind_a_seal_does_not_hide_that_another_one_was_signed() -> None:
    right = signed("one", 1)
    shelf = Shelf([right], SEALED)

    shelf.brings(0, entries_of([right[:-1] + bytes([right[-1] ^ 1])]))
    shelf.brings(1, entries_of([signed("ONE", 1)]))
    shelf.brings(2)
    shelf.audit.judge(silent=0)

    assert shelf.kinds == [
        ("altered-payload", "r0"),
        ("altered-payload", "r1"),
        ("two-seals", "alice"),
    ]


def test_a_seal_that_somebody_else_made_in_her_name_proves_nothing_against_a_producer() -> None:
    shelf = Shelf([signed("one", 1)], SEALED)

    shelf.brings(0)
    shelf.brings(1, entries_of([signed("ONE", 1, member=1001)]))
    shelf.audit.judge(silent=0)

    assert shelf.kinds == [("altered-payload", "r1")]


def test_a_key_that_nobody_ever_asked_for_is_found_once_all_commands_are_known() -> None:
    shelf = Shelf([signed("one", 1, member=1001)], SEALED)
    shelf.keys.are_all = True

    shelf.brings(0)

    assert shelf.kinds == [("unknown-key", "")]


@pytest.mark.parametrize("are_all", [True, False])
def test_a_key_that_a_producer_may_have_had_is_a_note(are_all: bool) -> None:
    shelf = Shelf([signed("one", 1, member=1001)], SEALED)
    shelf.keys.are_all = are_all
    if are_all:
        command = PutClient("alice", "acme", public_of(1001), bytes(32), "")
        shelf.keys.learn(encode_one(None, encode_command(command), (), 5, False))

    shelf.brings(0)

    assert shelf.kinds == []
    assert len(shelf.audit.notes) == 1


# What is missing


def test_a_payload_that_one_store_has_is_not_missing() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    for replica in (0, 1, 2):
        shelf.lacks(replica, 2)
    shelf.brings(3)

    assert shelf.audit.judge(silent=0) == []
    assert shelf.kinds == []
    assert shelf.audit.holdings[0].lacking == 2


def test_a_payload_that_nobody_has_is_a_gap() -> None:
    shelf = Shelf([bare("one", 2), bare("two", 3), bare("three")])

    for replica in (0, 1, 2, 3):
        shelf.brings(replica, entries_of(shelf.payloads[:1]))
        shelf.lacks(replica, 3)
        before = entries_of(shelf.payloads[:2]).after
        shelf.audit.check(replica, entries_of(shelf.payloads[2:], first=3, offset=5, before=before))

    assert shelf.audit.judge(silent=0) == []
    assert shelf.kinds == [("gap", "")]
    assert shelf.found[0].where.offset == 2
    assert "offsets 2 to 4 of partition 0" in shelf.found[0].sentence
    assert (shelf.audit.holdings[0].batches, shelf.audit.holdings[0].lacking) == (2, 1)


@pytest.mark.parametrize(("end", "cursor"), [(0, 2), (1, 2), (2, 2), (3, 5), (5, 5), (99, 6)])
def test_what_a_replica_does_not_have_is_whole_batches(end: int, cursor: int) -> None:
    """Whatever it says where they end."""
    shelf = Shelf([bare("one", 2), bare("two", 3), bare("three")])

    holding = shelf.lacks(0, end)

    assert (holding.cursor, holding.absent) == (cursor, [(0, cursor)])
    assert holding.lacking == {2: 1, 5: 2, 6: 3}[cursor]


@pytest.mark.parametrize(("begin", "start"), [(0, 0), (1, 0), (2, 2), (4, 2), (6, 6), (99, 6)])
def test_a_replica_is_read_from_the_batch_that_has_its_first_offset(begin: int, start: int) -> None:
    shelf = Shelf([bare("one", 2), bare("two", 3), bare("three")])

    assert shelf.holds(0, begin).cursor == start


def test_what_the_retention_of_enough_stores_took_is_no_gap() -> None:
    shelf = Shelf([bare("one", 2), bare("two")])

    for replica, start in ((0, 2), (1, 2), (2, 0), (3, 0)):
        shelf.holds(replica, start)
        if not start:
            shelf.lacks(replica, 2)
        before = entries_of(shelf.payloads[:1]).after
        shelf.audit.check(replica, entries_of(shelf.payloads[1:], first=2, offset=2, before=before))

    assert shelf.audit.judge(silent=0) == []
    assert shelf.kinds == []
    assert shelf.audit.audited_from == 2


def test_what_one_alone_says_its_retention_took_is_a_gap() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    shelf.holds(0, 2)
    for replica in (1, 2, 3):
        shelf.lacks(replica, 2)
    shelf.audit.judge(silent=0)

    assert shelf.kinds == [("gap", "")]


def test_what_somebody_silent_may_have_is_left_open() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    for replica in (0, 1, 2):
        shelf.lacks(replica, 2)

    assert shelf.audit.judge(silent=1) == [Missing(0, 2, gone=0, silent=1)]
    assert shelf.kinds == []


def test_what_somebody_did_not_send_to_the_end_is_left_open() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    shelf.holds(0)
    shelf.audit.check(0, entries_of(shelf.payloads[:1]))
    for replica in (1, 2, 3):
        shelf.lacks(replica, 2)

    assert shelf.audit.judge(silent=0) == [Missing(1, 2, gone=0, silent=1)]


# Receipts


STORES = stores_of((0, 1, 2, 3), HERE)
FIRST, SECOND, THIRD, LAST = STORES


def receipts_of(shelf: Shelf, store: int, *, signed_by: int | None = None) -> Receipts:
    """That this store keeps both batches, as a replica tells it that has neither."""
    challenge = shelf.audit.challenge(0)
    contents = [*map(batch_digest, shelf.payloads)]
    chain = chained(CHAIN_START, contents)[-1]
    statement = signing.Receipt(Place.of("demo", TOPIC, 0, ALICE), 1, 2, chain)
    signature = secret_of((store if signed_by is None else signed_by) + 1).sign(statement.encode())
    receipt = SignedReceipt(store, 1, 2, chain, signature, contents[1])
    return Receipts(ALICE, *HERE, 0, 1, challenge.time_us, contents[0], CHAIN_START, [receipt], [])


def refusal_of(shelf: Shelf, store: int, *, start: int = 0) -> Refusal:
    content = batch_digest(shelf.payloads[0])
    statement = signing.Refusal(Place.of("demo", TOPIC, 0, ALICE), 1, content, 0, start, 9)
    signature = secret_of(store + 1).sign(statement.encode())
    return Refusal(ALICE, *HERE, 0, 1, content, start, 9, signature)


def store_shelf() -> Shelf:
    """Two batches, and keys of replicas beside those of clients."""
    numbers = {f"r{replica}": replica for replica in STORES}
    names = {**KEYS.names, **{number: name for name, number in numbers.items()}}
    public = {number: (public_of(number + 1),) for number in STORES}
    keys = KnownKeys(Keys("demo", names, {**KEYS.keys, **public}), {"alice": 1000, **numbers})
    return Shelf([signed("one", 1, events=3), signed("two", 2)], SEALED, keys)


def test_stores_are_suspected_of_what_belongs_to_them_and_they_do_not_have() -> None:
    shelf = store_shelf()

    shelf.lacks(FIRST, 1)
    shelf.brings(SECOND)
    shelf.brings(THIRD)
    shelf.lacks(LAST, 4)

    assert shelf.audit.suspects() == [(FIRST, 0)]


def test_all_are_suspected_of_what_fewer_have_than_signed_for_it() -> None:
    shelf = store_shelf()

    shelf.brings(FIRST)
    for replica in (SECOND, THIRD, LAST):
        shelf.lacks(replica, 4)

    suspected = shelf.audit.suspects()
    assert suspected == [(r, at) for r in sorted((SECOND, THIRD, LAST)) for at in (0, 3)]
    assert shelf.audit.witnesses(0) == [SECOND, THIRD, LAST]


def test_whoever_is_silent_may_be_the_one_who_signed() -> None:
    shelf = store_shelf()

    shelf.brings(FIRST)
    for replica in (THIRD, LAST):
        shelf.lacks(replica, 4)

    assert shelf.audit.suspects() == []


def test_a_follower_signs_for_nothing_and_is_held_to_nothing() -> None:
    shelf = store_shelf()

    for replica in STORES:
        shelf.brings(replica)
    shelf.lacks(4, 4)

    assert shelf.audit.suspects() == []
    assert shelf.audit.judge(silent=0) == []


def test_nobody_is_suspected_of_what_retention_took() -> None:
    shelf = store_shelf()

    for replica in STORES:
        shelf.lacks(replica, 4).kept_from = 4

    assert shelf.audit.suspects() == []


def test_a_receipt_and_a_refusal_prove_what_a_store_did() -> None:
    shelf = store_shelf()
    receipts = receipts_of(shelf, FIRST)
    assert shelf.audit.has_signed(FIRST, receipts)
    assert not shelf.audit.has_signed(SECOND, receipts)

    shelf.audit.refused(FIRST, receipts, refusal_of(shelf, FIRST))

    assert shelf.kinds == [("false-receipt", f"r{FIRST}")]
    evidence = shelf.found[0].evidence
    assert evidence is not None
    assert verify_evidence(parse(render(evidence)), shelf.keys.certain).number == FIRST


def test_a_store_is_asked_for_a_batch_by_any_of_its_offsets() -> None:
    shelf = store_shelf()

    asked = [shelf.audit.challenge(offset) for offset in range(4)]

    assert [(each.offset, each.sequence) for each in asked] == [(0, 1)] * 3 + [(3, 2)]
    assert [each.descriptor for each in asked[2:]] == [*map(descriptor, shelf.payloads)]


def test_a_receipt_that_a_store_did_not_sign_proves_nothing() -> None:
    shelf = store_shelf()

    forged = receipts_of(shelf, FIRST, signed_by=SECOND)
    shelf.audit.refused(FIRST, forged, refusal_of(shelf, FIRST))

    assert shelf.kinds == []


def test_a_refusal_of_what_retention_took_proves_nothing() -> None:
    shelf = store_shelf()

    shelf.audit.refused(FIRST, receipts_of(shelf, FIRST), refusal_of(shelf, FIRST, start=1))

    assert shelf.kinds == []


def test_receipts_of_another_batch_are_not_those_that_were_asked_for() -> None:
    shelf = store_shelf()

    other = msgspec.structs.replace(receipts_of(shelf, FIRST), digest=bytes(32))

    assert not shelf.audit.has_signed(FIRST, other)


def test_commands_teach_keys() -> None:
    keys = KnownKeys(KEYS, {"alice": 1000}, are_all=True)
    command = PutClient("alice", "acme", b"k" * 32, bytes(32), "")

    keys.learn(encode_one(None, encode_command(command), (), 5, False))

    assert not keys.has(1000, b"k" * 32)
    assert keys.may_have_had(1000, b"k" * 32)
    assert not keys.may_have_had(1001, b"k" * 32)
