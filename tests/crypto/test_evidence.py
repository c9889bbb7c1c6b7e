"""Evidence proves what it says to whoever has the keys, and nothing once anything is changed."""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.batch import encode_one, encode_values
from quorate.core.cluster import Cluster
from quorate.core.errors import RemoteProtocolError
from quorate.core.event import Event
from quorate.core.header import HEADER_BYTES, NO_ROOT, SEAL_BYTES, Header, header_of
from quorate.core.ordering import EVIDENCE_CHARACTERS_MAX
from quorate.crypto.checkpoint import Checkpoint, Cosignature, Head, cosigned_bytes
from quorate.crypto.digests import batch_digest, link
from quorate.crypto.events import events_root
from quorate.crypto.evidence import (
    BODY_BYTES_MAX,
    Evidence,
    FalseReceipt,
    Keys,
    Malformed,
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
from quorate.crypto.sids import Place, Seal
from seals import sealed

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
CONTENTS = [batch_digest(b"batch %d" % number) for number in range(5)]


def signed(
    batch: bytes,
    *,
    place: Place = PLACE,
    sequence: int = 9,
    time_us: int = 5,
    salt: bytes = b"",
    root: bytes = NO_ROOT,
) -> bytes:
    secret = SECRETS[ALICE]
    return sealed(
        place, sequence, batch, time_us=time_us, salt=salt, root=root,
        public_key=secret.public_key().public_bytes_raw(), sign=secret.sign,
    )  # fmt: skip


def seal_of(value: bytes, place: Place = PLACE) -> Seal:
    return Seal.decode(signed(encode_values([value], 5), place=place))


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


def malformed_payload(events: int = 2, *, salted: str = "") -> bytes:
    """A batch of one event, signed as one of so many, or with the tree of another."""
    batch, salt, root = encode_one(None, b"one", (), 5, False), b"", NO_ROOT
    header = header_of(batch)._replace(events=events)
    if salted:
        salt = bytes(range(32))
        root = events_root(salt, [Event(None, salted.encode(), timestamp_us=5)])
    return signed(header.encode() + batch[HEADER_BYTES:], salt=salt, root=root)


def malformed(events: int = 2, *, salted: str = "") -> Malformed:
    evidence = Malformed.of(PLACE, 9, malformed_payload(events, salted=salted))
    assert evidence is not None
    return evidence


EVIDENCE: dict[str, Callable[[], Evidence]] = {
    "two-seals": two_seals,
    "malformed": malformed,
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
    assert proved.name == ("alice" if kind in ("two-seals", "malformed") else "r2")


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

    with pytest.raises(RemoteProtocolError, match="evidence of cluster 'demo'"):
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
    proved = verify_evidence(malformed(1, salted="another"), KEYS)

    assert (proved.kind, proved.name) == ("malformed", "alice")
    assert "tree of events" in proved.sentence


def test_a_malformed_body_is_found_whether_or_not_its_tree_is_right() -> None:
    proved = verify_evidence(malformed(2, salted="one"), KEYS)

    assert "alice signed a batch whose columns take 1 bytes more" in proved.sentence


@pytest.mark.parametrize("salted", ["", "one"])
def test_a_seal_that_is_true_is_no_lie(salted: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no lie"):
        verify_evidence(malformed(1, salted=salted), KEYS)


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_a_compressed_batch_is_malformed_by_its_columns_alone(compression: str) -> None:
    batch = encode_values([b"x" * 1000] * 9, 5, compression=compression)
    header = header_of(batch)
    for changed, is_right in (
        (header, True),
        (header._replace(events=8), False),
        (header._replace(headers=1), False),
        (header._replace(plain_bytes=header.plain_bytes - 1), False),
    ):
        evidence = Malformed.of(PLACE, 9, signed(changed.encode() + batch[HEADER_BYTES:]))
        assert evidence is not None
        if is_right:
            with pytest.raises(RemoteProtocolError, match="no lie"):
                verify_evidence(evidence, KEYS)
        else:
            assert verify_evidence(evidence, KEYS).kind == "malformed"


def test_nobody_is_convicted_of_a_basic_batch() -> None:
    basic = header_of(encode_values([b"one"], 5))._replace(events=2).encode() + bytes(300)

    assert Malformed.of(PLACE, 9, basic) is None
    as_evidence = msgspec.structs.replace(malformed(), seal=basic[:SEAL_BYTES], body=b"")
    with pytest.raises(RemoteProtocolError, match="a batch without a seal"):
        verify_evidence(as_evidence, KEYS)


@pytest.mark.parametrize("change", [{"kind": 0}, {"events": 1}, {"plain_bytes": 12}, {"kind": 2}])
def test_a_header_that_was_not_signed_like_that_proves_nothing(change: dict[str, int]) -> None:
    """Or whoever relays a batch could convict its producer."""
    evidence = malformed()
    header = header_of(evidence.seal)._replace(**change).encode()
    changed = msgspec.structs.replace(evidence, seal=header + evidence.seal[HEADER_BYTES:])

    with pytest.raises(RemoteProtocolError):
        verify_evidence(changed, KEYS)


def test_two_headers_for_one_number_are_two_seals() -> None:
    one, other = (Seal.decode(malformed_payload(events)) for events in (1, 2))
    assert one.digest == other.digest

    assert verify_evidence(TwoSeals.of(PLACE, 9, one, other), KEYS).name == "alice"


def test_a_body_that_the_seal_does_not_name_proves_nothing() -> None:
    other = msgspec.structs.replace(malformed(), body=b"something else")

    with pytest.raises(RemoteProtocolError, match="not the one that it names"):
        verify_evidence(other, KEYS)


def test_bytes_that_are_no_batch_were_signed_as_one() -> None:
    evidence = Malformed.of(PLACE, 9, signed(Header.of(1, 0, 4).encode() + b"junk"))
    assert evidence is not None

    assert verify_evidence(parse(render(evidence)), KEYS).kind == "malformed"


@pytest.mark.parametrize(("size", "fits"), [(BODY_BYTES_MAX, True), (BODY_BYTES_MAX + 1, False)])
def test_evidence_has_room_for_batches_up_to_a_size(size: int, fits: bool) -> None:
    evidence = Malformed.of(PLACE, 9, signed(Header.of(1, 0, size).encode() + bytes(size)))

    assert (evidence is not None) is fits
    if evidence is not None:
        assert len(render(evidence)) <= EVIDENCE_CHARACTERS_MAX
        assert verify_evidence(parse(render(evidence)), KEYS).kind == "malformed"


@kinds
@pytest.mark.parametrize("version", [1, 3])
def test_evidence_of_another_version_is_refused_with_a_sentence(kind: str, version: int) -> None:
    first = "evidence" if version == 1 else f"quorate evidence v{version}"
    text = render(EVIDENCE[kind]()).replace("quorate evidence v2", first)

    with pytest.raises(RemoteProtocolError, match=f"evidence of version {version}, .* version 2"):
        parse(text)


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
    receipt = Receipt(PLACE, 4, 5, chain_of([*CONTENTS[:2], batch_digest(b"else"), *CONTENTS[3:]]))

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
    one, other = (checkpoint_of(Head(crash, 12, batch_digest(root))) for root in (b"one", b"other"))
    heads = msgspec.structs.replace(two_heads(), origin=crash)

    assert heads_in_conflict("demo", one, other, {"r2": STORE}) == []
    with pytest.raises(RemoteProtocolError, match="tolerates crashes only"):
        verify_evidence(heads, KEYS)


# Vectors

VECTORS = Path(__file__).parent.parent / "vectors"
EXPECTED: dict[str, dict[str, Any]] = json.loads(
    (VECTORS / "evidence" / "expected.json").read_text()
)
BANK = Keys.of(Cluster.parse((VECTORS / "proofs" / "cluster.toml").read_text()))


def test_the_generator_makes_the_vectors_that_are_checked_in_to_the_byte() -> None:
    generator = VECTORS / "generate_evidence.py"
    spec = importlib.util.spec_from_file_location("generate_evidence", generator)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, bytes] = module.made()

    assert made == {path.name: path.read_bytes() for path in (VECTORS / "evidence").iterdir()}


@pytest.mark.parametrize("name", EXPECTED["good"])
def test_a_good_vector_proves_what_is_expected(name: str) -> None:
    evidence = parse((VECTORS / "evidence" / f"good-{name}.json").read_text())

    assert msgspec.to_builtins(verify_evidence(evidence, BANK)) == EXPECTED["good"][name]


@pytest.mark.parametrize("name", EXPECTED["bad"])
def test_a_bad_vector_is_refused_with_its_sentence(name: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        verify_evidence(parse((VECTORS / "evidence" / f"bad-{name}.json").read_text()), BANK)

    assert str(refused.value) == EXPECTED["bad"][name]
