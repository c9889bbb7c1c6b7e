"""Payloads from every replica are held against what was agreed, and what is missing is found."""

from dataclasses import dataclass, field, replace
from hashlib import sha256

import msgspec
import pytest

from histories import (
    ALICE,
    HERE,
    TOPIC,
    Scribe,
    entries_of,
    name_of,
    orderers,
    public_of,
    secret_of,
)
from quorate.core.batch import encode_one
from quorate.core.control import PutClient, encode_command
from quorate.core.event import Event
from quorate.core.ordering import Entries, Receipts, Refusal, SignedReceipt
from quorate.crypto import receipts as signing
from quorate.crypto.digests import digest
from quorate.crypto.events import events_root
from quorate.crypto.evidence import Keys, parse, render, verify_evidence
from quorate.crypto.sids import Place, sealed
from quorate.protocol.auditing.findings import Finding, Findings
from quorate.protocol.auditing.history import History
from quorate.protocol.auditing.payloads import Holding, KnownKeys, Missing, PartitionAudit
from quorate.protocol.ordering.backlog import MARK
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.value import CHAIN_START, chained
from stage import topic

KEYS = Keys("demo", {1000: "alice", 1001: "bob"}, {m: (public_of(m),) for m in (1000, 1001)})
PLAIN = {"order": "total", "protection": "byzantine"}
SEALED = {**PLAIN, "validated": True}
PROVED = {**SEALED, "event_proofs": True}


def bare(text: str) -> bytes:
    return encode_one(None, text.encode(), (), 5, False)


def signed(
    text: str, sequence: int, *, member: int = 1000, partition: int = 0, events: int = 1
) -> bytes:
    """A batch of one event that alice signed, or somebody in her name."""
    return sealed(
        Place.of("demo", TOPIC, partition, ALICE), sequence, bare(text), events=events, time_us=7,
        public_key=public_of(member), sign=secret_of(member).sign,
    )  # fmt: skip


def proved(text: str, sequence: int, *, of: str | None = None) -> bytes:
    """The same with a tree of events, perhaps that of another event."""
    salt = sha256(text.encode()).digest()
    root = events_root(salt, [Event(None, (of or text).encode(), timestamp_us=5)])
    return sealed(
        Place.of("demo", TOPIC, 0, ALICE), sequence, salt + bare(text), events=1, time_us=7,
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
        trusted = history.judge().trusted
        assert trusted is not None
        self.audit = PartitionAudit(
            topic(self.contract, TOPIC), trusted.ledgers()[HERE], self.keys, self.findings, name_of
        )

    def holds(self, replica: int, start: int = 0, end: int | None = None) -> Holding:
        end = len(self.payloads) if end is None else end
        self.audit.holdings[replica] = Holding(start, start, end)
        return self.audit.holdings[replica]

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
    shelf = Shelf([bare("one"), bare("two")])

    for replica in (0, 1, 2, 3):
        shelf.brings(replica)

    size = sum(map(len, shelf.payloads))
    audit = shelf.audit
    assert shelf.kinds == []
    assert (audit.batches, audit.events, audit.payload_bytes) == (2, 2, size)
    assert audit.checked_bytes == 4 * size
    assert audit.producers == [1000]
    assert audit.judge(silent=0) == []


def test_a_replica_that_sends_other_bytes_is_named_and_nobody_else() -> None:
    shelf = Shelf([bare("one"), bare("two"), bare("three")])

    shelf.brings(0)
    shelf.brings(1, entries_of([shelf.payloads[0], bare("TWO"), shelf.payloads[2]]))
    shelf.brings(2)

    assert shelf.kinds == [("altered-payload", "r1")]
    assert shelf.found[0].where.offset == 1
    assert "its disk or its link" not in shelf.found[0].sentence


def test_bytes_that_do_not_fit_their_own_message_are_told_apart() -> None:
    shelf = Shelf([bare("one"), bare("two")])
    honest = entries_of(shelf.payloads)

    damaged = msgspec.structs.replace(honest, payloads=[bare("one"), bare("TWO")])
    shelf.brings(3, damaged)

    assert shelf.kinds == [("altered-payload", "r3")]
    assert "its disk or its link alters them" in shelf.found[0].sentence


def test_the_right_one_of_two_payloads_still_counts() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    shelf.brings(1, entries_of([bare("ONE"), bare("two")]))

    assert (shelf.audit.batches, shelf.audit.audited_from) == (1, 1)


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


def test_a_batch_that_holds_no_events_is_no_lie_where_nobody_looks() -> None:
    shelf = Shelf([b"junk"])

    shelf.brings(0)

    assert shelf.kinds == []
    assert (shelf.audit.opaque, shelf.audit.events) == (1, 0)


def test_marks_of_validated_batches_are_no_events_and_nobody_published_them() -> None:
    shelf = Shelf([MARK, bare("basic")])
    shelf.audit.topic = replace(shelf.audit.topic, companion_of="t")

    shelf.brings(0)

    assert (shelf.audit.opaque, shelf.audit.events, shelf.audit.batches) == (0, 1, 2)


# Validated topics


def test_seals_that_hold_are_counted_by_their_events() -> None:
    shelf = Shelf([signed("one", 1), signed("two", 2)], SEALED)

    shelf.brings(0)

    assert shelf.kinds == []
    assert shelf.audit.events == 2


@pytest.mark.parametrize(
    "payload",
    [
        bare("one"),
        signed("one", 2),
        signed("one", 1, partition=1),
        signed("one", 1)[:120] + bytes(56) + bare("one"),
    ],
    ids=["no seal", "another number", "another partition", "no signature"],
)
def test_a_batch_in_the_log_that_its_producer_did_not_sign_is_found(payload: bytes) -> None:
    shelf = Shelf([payload], SEALED)

    shelf.brings(0)

    assert shelf.kinds == [("bad-seal", "")]


def test_a_seal_that_lies_about_its_events_is_held_against_its_producer() -> None:
    shelf = Shelf([signed("one", 1, events=2)], SEALED)

    shelf.brings(0)

    assert shelf.kinds == [("false-seal", "alice")]


def test_a_tree_of_events_that_is_right_is_no_finding() -> None:
    shelf = Shelf([proved("one", 1)], PROVED)

    shelf.brings(0)

    assert shelf.kinds == []
    assert shelf.audit.events == 1


def test_a_tree_of_other_events_is_held_against_the_producer_who_signed_it() -> None:
    shelf = Shelf([proved("one", 1, of="another")], PROVED)

    shelf.brings(0)

    assert shelf.kinds == [("false-seal", "alice")]
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
        shelf.holds(replica).lack(2)
    shelf.brings(3)

    assert shelf.audit.judge(silent=0) == []
    assert shelf.kinds == []
    assert shelf.audit.holdings[0].lacking == 2


def test_a_payload_that_nobody_has_is_a_gap() -> None:
    shelf = Shelf([bare("one"), bare("two"), bare("three")])

    for replica in (0, 1, 2, 3):
        holding = shelf.holds(replica)
        shelf.audit.check(replica, entries_of(shelf.payloads[:1]))
        holding.lack(1)
        before = entries_of(shelf.payloads[:2]).after
        shelf.audit.check(replica, entries_of(shelf.payloads[2:], first=3, offset=2, before=before))

    assert shelf.audit.judge(silent=0) == []
    assert shelf.kinds == [("gap", "")]
    assert shelf.found[0].where.offset == 1
    assert "batch 1 of partition 0" in shelf.found[0].sentence


def test_what_the_retention_of_enough_stores_took_is_no_gap() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    for replica, start in ((0, 1), (1, 1), (2, 0), (3, 0)):
        holding = shelf.holds(replica, start)
        if not start:
            holding.lack(1)
        before = entries_of(shelf.payloads[:1]).after
        shelf.audit.check(replica, entries_of(shelf.payloads[1:], first=2, offset=1, before=before))

    assert shelf.audit.judge(silent=0) == []
    assert shelf.kinds == []
    assert shelf.audit.audited_from == 1


def test_what_one_alone_says_its_retention_took_is_a_gap() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    shelf.holds(0, 2)
    for replica in (1, 2, 3):
        shelf.holds(replica).lack(2)
    shelf.audit.judge(silent=0)

    assert shelf.kinds == [("gap", "")]


def test_what_somebody_silent_may_have_is_left_open() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    for replica in (0, 1, 2):
        shelf.holds(replica).lack(2)

    assert shelf.audit.judge(silent=1) == [Missing(0, 2, gone=0, silent=1)]
    assert shelf.kinds == []


def test_what_somebody_did_not_send_to_the_end_is_left_open() -> None:
    shelf = Shelf([bare("one"), bare("two")])

    shelf.holds(0)
    shelf.audit.check(0, entries_of(shelf.payloads[:1]))
    for replica in (1, 2, 3):
        shelf.holds(replica).lack(2)

    assert shelf.audit.judge(silent=0) == [Missing(1, 2, gone=0, silent=1)]


# Receipts


STORES = stores_of((0, 1, 2, 3), HERE)
FIRST, SECOND, THIRD, LAST = STORES


def receipts_of(shelf: Shelf, store: int, *, signed_by: int | None = None) -> Receipts:
    """That this store keeps both batches, as a replica tells it that has neither."""
    challenge = shelf.audit.challenge(0)
    contents = [*map(digest, shelf.payloads)]
    chain = chained(CHAIN_START, contents)[-1]
    statement = signing.Receipt(Place.of("demo", TOPIC, 0, ALICE), 1, 2, chain)
    signature = secret_of((store if signed_by is None else signed_by) + 1).sign(statement.encode())
    receipt = SignedReceipt(store, 1, 2, chain, signature, contents[1])
    return Receipts(
        ALICE, *HERE, 0, 1, challenge.time_us, challenge.digest, CHAIN_START, [receipt], []
    )


def refusal_of(shelf: Shelf, store: int, *, start: int = 0) -> Refusal:
    content = digest(shelf.payloads[0])
    statement = signing.Refusal(Place.of("demo", TOPIC, 0, ALICE), 1, content, 0, start, 9)
    signature = secret_of(store + 1).sign(statement.encode())
    return Refusal(ALICE, *HERE, 0, 1, content, start, 9, signature)


def store_shelf() -> Shelf:
    """Two batches, and keys of replicas beside those of clients."""
    numbers = {f"r{replica}": replica for replica in STORES}
    names = {**KEYS.names, **{number: name for name, number in numbers.items()}}
    public = {number: (public_of(number + 1),) for number in STORES}
    keys = KnownKeys(Keys("demo", names, {**KEYS.keys, **public}), {"alice": 1000, **numbers})
    return Shelf([signed("one", 1), signed("two", 2)], SEALED, keys)


def test_stores_are_suspected_of_what_belongs_to_them_and_they_do_not_have() -> None:
    shelf = store_shelf()

    shelf.holds(FIRST).lack(1)
    shelf.brings(SECOND)
    shelf.brings(THIRD)
    shelf.holds(LAST).lack(2)

    assert shelf.audit.suspects() == [(FIRST, 0)]


def test_all_are_suspected_of_what_fewer_have_than_signed_for_it() -> None:
    shelf = store_shelf()

    shelf.brings(FIRST)
    for replica in (SECOND, THIRD, LAST):
        shelf.holds(replica).lack(2)

    suspected = shelf.audit.suspects()
    assert suspected == [(r, at) for r in sorted((SECOND, THIRD, LAST)) for at in (0, 1)]
    assert shelf.audit.witnesses(0) == [SECOND, THIRD, LAST]


def test_whoever_is_silent_may_be_the_one_who_signed() -> None:
    shelf = store_shelf()

    shelf.brings(FIRST)
    for replica in (THIRD, LAST):
        shelf.holds(replica).lack(2)

    assert shelf.audit.suspects() == []


def test_a_follower_signs_for_nothing_and_is_held_to_nothing() -> None:
    shelf = store_shelf()

    for replica in STORES:
        shelf.brings(replica)
    shelf.holds(4).lack(2)

    assert shelf.audit.suspects() == []
    assert shelf.audit.judge(silent=0) == []


def test_nobody_is_suspected_of_what_retention_took() -> None:
    shelf = store_shelf()

    for replica in STORES:
        holding = shelf.holds(replica)
        holding.lack(2)
        holding.kept_from = 2

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
