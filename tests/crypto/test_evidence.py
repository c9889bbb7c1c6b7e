"""Evidence proves what it says to whoever has the keys, and nothing once anything is changed."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from hashlib import sha256

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.batch import encode_one
from quorate.core.errors import RemoteProtocolError
from quorate.core.event import Event
from quorate.core.ordering import EVIDENCE_CHARACTERS_MAX
from quorate.crypto.checkpoint import Checkpoint, Cosignature, Head, cosigned_bytes
from quorate.crypto.digests import digest, link
from quorate.crypto.events import events_root
from quorate.crypto.evidence import (
    BODY_BYTES_MAX,
    Evidence,
    FalseReceipt,
    FalseSeal,
    Keys,
    SignedHead,
    TwoHeads,
    TwoSeals,
    heads_in_conflict,
    parse,
    render,
    verify_evidence,
)
from quorate.crypto.identity import is_signed
from quorate.crypto.receipts import Receipt, Refusal
from quorate.crypto.sids import NO_ROOT, Place, Seal, sealed

ALICE, STORE, OTHER = 1000, 2, 3
SECRETS = {
    number: Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    for seed, number in enumerate((ALICE, STORE, OTHER), 1)
}
KEYS = Keys(
    "demo",
    {ALICE: "alice", STORE: "r2", OTHER: "r3"},
    {number: (secret.public_key().public_bytes_raw(),) for number, secret in SECRETS.items()},
)
PLACE = Place("demo", "orders", 3, ALICE, 7)
ORIGIN = "quorate/demo/byzantine"
CONTENTS = [digest(b"batch %d" % number) for number in range(5)]


def seal_of(body: bytes, place: Place = PLACE, sequence: int = 9, time_us: int = 5) -> Seal:
    secret = SECRETS[ALICE]
    payload = sealed(
        place, sequence, body, events=1, time_us=time_us,
        public_key=secret.public_key().public_bytes_raw(), sign=secret.sign,
    )  # fmt: skip
    return Seal.decode(payload)


def two_seals() -> TwoSeals:
    return TwoSeals.of(PLACE, 9, seal_of(b"one"), seal_of(b"other"))


def head_of(root: bytes, size: int = 12, extensions: tuple[str, ...] = ()) -> Head:
    return Head(ORIGIN, size, sha256(root).digest(), extensions)


def checkpoint_of(head: Head, signers: tuple[int, ...] = (STORE,)) -> Checkpoint:
    cosignatures = [
        Cosignature(KEYS.names[signer], 77, SECRETS[signer].sign(cosigned_bytes(head, 77)))
        for signer in signers
    ]
    return Checkpoint(head, tuple(cosignatures))


def two_heads() -> TwoHeads:
    one, other = checkpoint_of(head_of(b"one")), checkpoint_of(head_of(b"other", 12, ("line",)))
    (evidence,) = heads_in_conflict("demo", one, other, {"r2": STORE})
    return evidence


def chain_of(contents: list[bytes], before: bytes = bytes(32)) -> bytes:
    return reduce(link, contents, before)


def false_receipt(
    receipt: Receipt | None = None, refusal: Refusal | None = None, signer: int = STORE
) -> FalseReceipt:
    """A store receipts batches 4 to 8 and refuses batch 6."""
    if receipt is None:
        receipt = Receipt(PLACE, 4, 5, chain_of(CONTENTS))
    if refusal is None:
        refusal = Refusal(PLACE, 6, CONTENTS[2], offset=40, start=30, time_us=99)
    return FalseReceipt.of(
        STORE,
        receipt,
        SECRETS[signer].sign(receipt.encode()),
        refusal,
        SECRETS[signer].sign(refusal.encode()),
        chain_of(CONTENTS[:2]),
        tuple(CONTENTS[3:]),
    )


def false_seal(events: int = 2, *, salted: str = "") -> FalseSeal:
    """A batch of one event, signed as one of so many, or with the tree of another."""
    body, root, secret = encode_one(None, b"one", (), 5, False), NO_ROOT, SECRETS[ALICE]
    if salted:
        salt = bytes(range(32))
        root = events_root(salt, [Event(None, salted.encode(), timestamp_us=5)])
        body = salt + body
    payload = sealed(
        PLACE, 9, body, events=events, time_us=5, root=root,
        public_key=secret.public_key().public_bytes_raw(), sign=secret.sign,
    )  # fmt: skip
    evidence = FalseSeal.of(PLACE, 9, payload)
    assert evidence is not None
    return evidence


EVIDENCE: dict[str, Callable[[], Evidence]] = {
    "two-seals": two_seals,
    "false-seal": false_seal,
    "two-heads": two_heads,
    "false-receipt": false_receipt,
}
kinds = pytest.mark.parametrize("kind", EVIDENCE)


@kinds
def test_evidence_is_read_back_as_it_was_written_and_names_who_did_it(kind: str) -> None:
    evidence = EVIDENCE[kind]()

    assert parse(render(evidence)) == evidence
    proved = verify_evidence(parse(render(evidence)), KEYS)

    assert proved.kind == kind
    assert proved.name in proved.sentence
    assert proved.name == ("alice" if "seal" in kind else "r2")


@kinds
@given(data=st.data())
def test_evidence_with_any_byte_changed_proves_nothing(kind: str, data: st.DataObject) -> None:
    """Everything in it is either signed, or leads to what is signed. The time of day counts too."""
    text = render(EVIDENCE[kind]())
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda drawn: drawn != text[at]))

    with pytest.raises(RemoteProtocolError):
        verify_evidence(parse(text[:at] + other + text[at + 1 :]), KEYS)


@kinds
def test_evidence_with_any_field_changed_proves_nothing(kind: str) -> None:
    table = json.loads(render(EVIDENCE[kind]()))
    for field, value in table.items():
        changed = {**table, field: _changed(value)}
        text = msgspec.json.format(msgspec.json.encode(changed), indent=2).decode() + "\n"
        with pytest.raises(RemoteProtocolError):
            verify_evidence(parse(text), KEYS)


def _changed(value: object) -> object:
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return ("B" if value[0] == "A" else "A") + value[1:]
    if isinstance(value, list):
        return value[1:]
    assert isinstance(value, dict)
    return {**value, "time_s": value["time_s"] + 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.rstrip("\n"),
        lambda text: text + " ",
        lambda text: text.replace("  ", "    "),
        lambda text: json.dumps(json.loads(text)),
        lambda text: text.replace("{", '{"more": 1,', 1),
        lambda text: text.replace('"demo"', '"\\u0064emo"'),
        lambda text: text.replace('"demo"', '"\\ud800"'),
        lambda text: text.replace('"demo"', '"\ud800"'),
        lambda text: "[" * 100_000,
        lambda text: " " * (EVIDENCE_CHARACTERS_MAX + 1),
        lambda text: "",
    ],
)
@kinds
def test_evidence_that_is_written_in_another_way_is_refused(
    kind: str, change: Callable[[str], str]
) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(change(render(EVIDENCE[kind]())))


@kinds
def test_evidence_about_another_cluster_is_refused(kind: str) -> None:
    elsewhere = replace(KEYS, cluster="else")

    with pytest.raises(RemoteProtocolError, match="the cluster 'demo'"):
        verify_evidence(EVIDENCE[kind](), elsewhere)


@kinds
def test_evidence_against_somebody_whose_key_is_not_known_is_refused(kind: str) -> None:
    swapped = replace(KEYS, keys={ALICE: KEYS.keys[OTHER], STORE: KEYS.keys[OTHER], OTHER: ()})

    with pytest.raises(RemoteProtocolError, match="key"):
        verify_evidence(EVIDENCE[kind](), swapped)


@kinds
def test_evidence_holds_with_a_key_that_its_signer_had_before(kind: str) -> None:
    """Whoever gets another key does not get rid of what it signed."""
    since = {number: (b"\x01" * 32, *known) for number, known in KEYS.keys.items()}

    assert verify_evidence(EVIDENCE[kind](), replace(KEYS, keys=since)).kind == kind


def test_a_seal_with_the_tree_of_other_events_is_a_lie() -> None:
    proved = verify_evidence(false_seal(1, salted="another"), KEYS)

    assert (proved.kind, proved.name) == ("false-seal", "alice")
    assert "tree of events" in proved.sentence


@pytest.mark.parametrize("salted", ["", "one"])
def test_a_seal_that_is_true_is_no_lie(salted: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no lie"):
        verify_evidence(false_seal(1, salted=salted), KEYS)


def test_a_body_that_the_seal_does_not_name_proves_nothing() -> None:
    other = msgspec.structs.replace(false_seal(), body=b"something else")

    with pytest.raises(RemoteProtocolError, match="not the one that it names"):
        verify_evidence(other, KEYS)


def test_bytes_that_are_no_batch_were_signed_as_one() -> None:
    secret = SECRETS[ALICE]
    payload = sealed(
        PLACE, 9, b"junk", events=1, time_us=5,
        public_key=secret.public_key().public_bytes_raw(), sign=secret.sign,
    )  # fmt: skip
    evidence = FalseSeal.of(PLACE, 9, payload)
    assert evidence is not None

    assert verify_evidence(parse(render(evidence)), KEYS).kind == "false-seal"


@pytest.mark.parametrize(("size", "fits"), [(BODY_BYTES_MAX, True), (BODY_BYTES_MAX + 1, False)])
def test_evidence_has_room_for_batches_up_to_a_size(size: int, fits: bool) -> None:
    secret = SECRETS[ALICE]
    payload = sealed(
        PLACE, 9, bytes(size), events=1, time_us=5,
        public_key=secret.public_key().public_bytes_raw(), sign=secret.sign,
    )  # fmt: skip

    evidence = FalseSeal.of(PLACE, 9, payload)

    assert (evidence is not None) is fits
    if evidence is not None:
        assert len(render(evidence)) <= EVIDENCE_CHARACTERS_MAX
        assert verify_evidence(parse(render(evidence)), KEYS).kind == "false-seal"


def test_the_same_batch_signed_twice_is_no_lie() -> None:
    """Ed25519 lets whoever has the key sign the same in several ways."""
    one = seal_of(b"one")
    other = one._replace(signature=bytes(64))

    with pytest.raises(RemoteProtocolError, match="no lie"):
        verify_evidence(TwoSeals.of(PLACE, 9, one, other), KEYS)


def test_two_seals_of_two_places_are_no_evidence() -> None:
    elsewhere = seal_of(b"other", PLACE._replace(session=8))

    with pytest.raises(RemoteProtocolError, match="not signed by the key"):
        verify_evidence(TwoSeals.of(PLACE, 9, seal_of(b"one"), elsewhere), KEYS)


def test_seals_or_roots_out_of_order_are_refused() -> None:
    seals, heads = two_seals(), two_heads()

    with pytest.raises(RemoteProtocolError, match="in order"):
        verify_evidence(msgspec.structs.replace(seals, one=seals.other, other=seals.one), KEYS)
    with pytest.raises(RemoteProtocolError, match="in order"):
        verify_evidence(msgspec.structs.replace(heads, one=heads.other, other=heads.one), KEYS)


def test_two_heads_name_all_who_signed_both_and_nobody_else() -> None:
    one = checkpoint_of(head_of(b"one"), (STORE, OTHER))
    other = checkpoint_of(head_of(b"other"), (OTHER,))

    found = heads_in_conflict("demo", one, other, {"r2": STORE, "r3": OTHER})

    assert [verify_evidence(evidence, KEYS).name for evidence in found] == ["r3"]


@pytest.mark.parametrize(
    "other", [head_of(b"one", 12, ("a line",)), head_of(b"other", 13)], ids=["root", "size"]
)
def test_heads_of_one_root_or_of_two_sizes_are_no_conflict(other: Head) -> None:
    one = checkpoint_of(head_of(b"one"))

    assert heads_in_conflict("demo", one, checkpoint_of(other), {"r2": STORE}) == []


def test_heads_of_another_clusters_log_are_no_evidence() -> None:
    heads = msgspec.structs.replace(two_heads(), origin="quorate/else/byzantine")

    with pytest.raises(RemoteProtocolError, match="none of the cluster 'demo'"):
        verify_evidence(heads, KEYS)


def test_a_head_with_a_line_that_no_head_has_is_refused() -> None:
    heads = two_heads()
    one = SignedHead(heads.one.root, ("a\nb",), heads.one.time_s, heads.one.signature)

    with pytest.raises(RemoteProtocolError, match="control characters"):
        verify_evidence(msgspec.structs.replace(heads, one=one), KEYS)


def test_a_receipt_of_another_content_is_contradicted_by_no_refusal() -> None:
    """A producer that sends stores different batches must not get them blamed."""
    receipt = Receipt(PLACE, 4, 5, chain_of([*CONTENTS[:2], digest(b"else"), *CONTENTS[3:]]))

    with pytest.raises(RemoteProtocolError, match="a receipt of another batch 6"):
        verify_evidence(false_receipt(receipt), KEYS)


@pytest.mark.parametrize("sequence", [3, 9])
def test_a_receipt_says_nothing_of_batches_that_it_does_not_cover(sequence: int) -> None:
    refusal = Refusal(PLACE, sequence, CONTENTS[2], offset=40, start=30, time_us=99)

    with pytest.raises(RemoteProtocolError, match="a receipt of batches 4 to 8"):
        verify_evidence(false_receipt(refusal=refusal), KEYS)


def test_a_refusal_of_what_retention_has_taken_is_no_fault() -> None:
    refusal = Refusal(PLACE, 6, CONTENTS[2], offset=40, start=41, time_us=99)

    with pytest.raises(RemoteProtocolError, match="retention has taken"):
        verify_evidence(false_receipt(refusal=refusal), KEYS)


def test_a_refusal_of_another_line_is_no_evidence() -> None:
    refusal = Refusal(PLACE._replace(session=8), 6, CONTENTS[2], offset=40, start=30, time_us=99)

    with pytest.raises(RemoteProtocolError, match="a refusal that replica 2 did not sign"):
        verify_evidence(false_receipt(refusal=refusal), KEYS)


def test_what_another_store_signed_is_no_evidence_against_this_one() -> None:
    with pytest.raises(RemoteProtocolError, match="a receipt that replica 2 did not sign"):
        verify_evidence(false_receipt(signer=OTHER), KEYS)


def test_no_receipt_can_be_taken_for_a_refusal_or_for_one_of_another_place() -> None:
    receipt = Receipt(PLACE, 4, 5, chain_of(CONTENTS))
    refusal = Refusal(PLACE, 6, CONTENTS[2], offset=40, start=30, time_us=99)
    shifted = Place("demoo", "rders", 3, ALICE, 7)
    said = {receipt.encode(), refusal.encode(), receipt._replace(place=shifted).encode()}

    assert len(said) == 3
    assert not any(one != other and one.startswith(other) for one in said for other in said)


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65)])
def test_what_is_no_signature_signs_nothing(signature: bytes) -> None:
    assert not is_signed(KEYS.keys[STORE][0], b"data", signature)


def test_a_signature_of_something_longer_does_not_sign_its_end() -> None:
    signature = SECRETS[STORE].sign(b"in front of data")

    assert is_signed(KEYS.keys[STORE][0], b"in front of data", signature)
    assert not is_signed(KEYS.keys[STORE][0], b"data", signature + b"in front of ")


def test_heads_of_a_log_that_tolerates_crashes_only_are_no_evidence() -> None:
    """One liar makes correct replicas sign them."""
    crash = "quorate/demo/crash"
    one, other = (checkpoint_of(Head(crash, 12, digest(root))) for root in (b"one", b"other"))
    heads = msgspec.structs.replace(two_heads(), origin=crash)

    assert heads_in_conflict("demo", one, other, {"r2": STORE}) == []
    with pytest.raises(RemoteProtocolError, match="tolerates crashes only"):
        verify_evidence(heads, KEYS)
