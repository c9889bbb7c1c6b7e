"""A checkpoint has one way to be written, and counts only cosigners that are known."""

import base64
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.crypto.checkpoint import (
    NOTE_BYTES_MAX,
    SIGNATURES_MAX,
    SIZE_MAX,
    TIME_S_MAX,
    Checkpoint,
    Cosignature,
    Cosigner,
    Head,
    cosigned_bytes,
    read,
    render,
    verify_cosignature,
)

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed in (1, 2, 3, 4)]
COSIGNERS = [
    Cosigner(f"quorate.example/r{number}", key.public_key().public_bytes_raw())
    for number, key in enumerate(KEYS)
]
TIME_S = 1700000000
ROOT = sha256(b"\x00root").digest()
HEAD = Head("quorate.example/orders", 1234, ROOT)

# What the keys above sign, at TIME_S and the two seconds after it. A change of any byte here is a
# change of the format.
BODY = b"quorate.example/orders\n1234\nPAb5plclr2BSYfY2ZyyWINQJcx2JpFHXRV/pxK4WeCk=\n"
LINES = [
    "— quorate.example/r0 "
    "7JoHUgAAAABlU/EAHH1EPCHa0bxNBHbzwpFn9g0jJrq9yTa6vTvEbw16TCQeL1UC6FsF71V23xURshIjyvwpX78QF6Wk"
    "UhcbVAUCDw==\n",
    "— quorate.example/r1 "
    "tpJkFQAAAABlU/EB8h0OIuAWuAE7N3E4RIKWFZHXPPDzFLUjEagD4N80+39YKdlmtuj+RglIfMucvr7RllqWuu7XBPPO"
    "7BOX0HJhAQ==\n",
    "— quorate.example/r2 "
    "71s5YgAAAABlU/ECqycAfqXcysohZsocZHS6fKmiumnXjwR4Vp2obT1teYcfxDW3KP0/NMCQNcA13kIe1d1pZSXuZopu"
    "oigHE20LDw==\n",
]
NOTE = BODY.decode() + "\n" + "".join(LINES)
ROOT_LINE = BODY.decode().split("\n")[2]

# A checkpoint that a public log and public witnesses signed, none of them with our code. Its
# first two lines are by the log, in other types of signature; the last witness is not known here.
PUBLISHED = """\
arche2025h1.staging.ct.transparency.dev
1432088532
U7WM79jrzyhGZ5/GUBTpM7NzwdyfFx61t3RovgcC4Ro=

— arche2025h1.staging.ct.transparency.dev zTM8sQAAAZ5W0WdjBAMARjBEAiBjW5IQf9pvsYLfQFX6hoGREPMH\
bdQ3urbllzalApkptQIgIpwtEroeW2BXaHAI4kJXFbon5Ch9MNL5zRNZ55lvGt0=
— arche2025h1.staging.ct.transparency.dev ui8GwCF1+kWqZrxGdhj4aX3gcw7XUlXQQabg/27lefwhUkzbC3Ny\
gNI75MdhL1bfTW9g8Ei59RA23oHP7Ry1k3ZFWwQ=
— transparency.dev/DEV:witness-little-garden 2AQqhwAAAABqEiEgzgFIqqhbUoDwjMWE6UP8nd8/KYTzwZ2rh\
IgcqoXHAwVkjZr4AscylP3v7sEodkRAErumC2q44vdgJY096st5BQ==
— witness1.smartit.nu/witness1 pIyCDwAAAABqEiEghIp82KWebrw7/oHQwlTAm3g2RKS4+eebl8eO0WH+/iEcxZ7\
5W3u5hNI7TOQtmJbqmNWVuE0tgh0XwzdZsDsUAQ==
— remora.n621.de 2net5wAAAABqEiEgPlfF3V06o0Y+fHM+J5J9s27wgxxcOVSpZ/2g/KSiXCg9DEZI+aVCIobWX9sXT\
ynk5XeU/zZ0WBxtqB0DrAWfBw==
— witness.stagemole.eu Z/euoAAAAABqEiEgw0i+7g2ENfDAWHmtRzCfKTHSDwYDJA2NmKeGi9Y8FtEyOUvVr+AJmIY\
/2TUFucgKi7lI7cUiOvKFYe/TmN9DAg==
"""
# Name, key identifier, and the type of the key with the key itself, as the witnesses publish them.
PUBLISHED_KEYS = [
    "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
    "transparency.dev/DEV:witness-little-garden+d8042a87+"
    "BCtusOxINQNUTN5Oj8HObRkh2yHf/MwYaGX4CPdiVEPM",
    "witness1.smartit.nu/witness1+a48c820f+BPSFWg9G6KPiO7QPryYO5Xq4oYJJ+kAvLKLSimDhoxMO",
]

lines_of_text = st.text(
    st.characters(exclude_categories=["Cs"], min_codepoint=0x20), min_size=1, max_size=20
)
heads = st.builds(
    Head,
    origin=lines_of_text,
    size=st.integers(0, SIZE_MAX),
    root=st.binary(min_size=32, max_size=32),
    extensions=st.lists(lines_of_text, max_size=3).map(tuple),
)


def cosign(number: int, head: Head = HEAD, time_s: int = TIME_S) -> Cosignature:
    signature = KEYS[number].sign(cosigned_bytes(head, time_s))
    return Cosignature(COSIGNERS[number].name, time_s, signature)


def signature_line(name: str, blob: bytes) -> str:
    return f"— {name} {base64.b64encode(blob).decode()}\n"


def cosignature_line(number: int, time: bytes, signature: bytes) -> str:
    cosigner = COSIGNERS[number]
    return signature_line(cosigner.name, cosigner.key_id + time + signature)


def published_cosigner(verifier_key: str) -> tuple[Cosigner, str]:
    name, key_id, typed_key = verifier_key.split("+", 2)
    return Cosigner(name, base64.b64decode(typed_key)[1:]), key_id


def names(checkpoint: Checkpoint) -> list[str]:
    return [cosignature.name for cosignature in checkpoint.cosignatures]


def test_the_body_is_origin_size_and_root_each_on_its_line() -> None:
    assert HEAD.body() == BODY
    assert Head.parse(BODY) == HEAD


def test_what_is_signed_is_a_header_the_time_and_the_body() -> None:
    assert cosigned_bytes(HEAD, TIME_S) == b"cosignature/v1\ntime 1700000000\n" + BODY
    assert cosigned_bytes(HEAD, 0).startswith(b"cosignature/v1\ntime 0\n")


def test_the_key_identifier_hashes_the_name_the_type_and_the_key() -> None:
    assert [cosigner.key_id.hex() for cosigner in COSIGNERS] == [
        "ec9a0752",
        "b6926415",
        "ef5b3962",
        "5d368d48",
    ]
    named = b"quorate.example/r0\n\x04" + COSIGNERS[0].public_key
    assert COSIGNERS[0].key_id == sha256(named).digest()[:4]


def test_a_checkpoint_is_written_as_it_always_was() -> None:
    cosignatures = [cosign(number, time_s=TIME_S + number) for number in range(3)]
    assert render(HEAD, cosignatures, COSIGNERS) == NOTE


def test_a_checkpoint_is_read_as_it_always_was() -> None:
    cosignatures = tuple(cosign(number, time_s=TIME_S + number) for number in range(3))
    assert read(NOTE, COSIGNERS, 3) == Checkpoint(HEAD, cosignatures)


@pytest.mark.parametrize("verifier_key", PUBLISHED_KEYS)
def test_the_key_identifiers_are_those_that_public_witnesses_have(verifier_key: str) -> None:
    cosigner, key_id = published_cosigner(verifier_key)
    assert cosigner.key_id.hex() == key_id


def test_a_checkpoint_that_public_witnesses_cosigned_is_accepted() -> None:
    witnesses = [published_cosigner(key)[0] for key in PUBLISHED_KEYS]

    checkpoint = read(PUBLISHED, witnesses, 3)

    assert checkpoint.head.origin == "arche2025h1.staging.ct.transparency.dev"
    assert checkpoint.head.size == 1432088532
    assert names(checkpoint) == [witness.name for witness in witnesses]
    assert {cosignature.time_s for cosignature in checkpoint.cosignatures} == {0x6A122120}


def test_a_checkpoint_that_public_witnesses_cosigned_is_refused_with_another_size() -> None:
    witnesses = [published_cosigner(key)[0] for key in PUBLISHED_KEYS]
    with pytest.raises(RemoteProtocolError, match="not of this checkpoint"):
        read(PUBLISHED.replace("\n1432088532\n", "\n1432088533\n"), witnesses, 3)


@given(heads)
def test_a_head_survives_being_written_and_read(head: Head) -> None:
    assert Head.parse(head.body()) == head


@given(heads, st.sets(st.integers(0, 3), min_size=1), st.integers(0, TIME_S_MAX))
def test_a_checkpoint_survives_being_written_and_read(
    head: Head, signers: set[int], time_s: int
) -> None:
    cosignatures = [cosign(number, head, time_s) for number in sorted(signers)]

    note = render(head, cosignatures, COSIGNERS)
    checkpoint = read(note, COSIGNERS, len(signers))

    assert checkpoint == Checkpoint(head, tuple(cosignatures))
    assert render(checkpoint.head, checkpoint.cosignatures, COSIGNERS) == note


@given(st.permutations(range(4)), st.permutations(COSIGNERS))
def test_the_order_of_what_is_rendered_does_not_show(
    order: list[int], cosigners: list[Cosigner]
) -> None:
    in_order = render(HEAD, [cosign(number) for number in range(4)], COSIGNERS)
    assert render(HEAD, [cosign(number) for number in order], cosigners) == in_order


@given(st.permutations(LINES), st.permutations(COSIGNERS))
def test_the_order_of_signature_lines_does_not_matter_to_a_reader(
    lines: list[str], cosigners: list[Cosigner]
) -> None:
    note = BODY.decode() + "\n" + "".join(lines)
    assert read(note, cosigners, 3) == read(NOTE, COSIGNERS, 3)


@given(st.text(max_size=200))
def test_whatever_is_read_is_a_checkpoint_or_refused(junk: str) -> None:
    for text in (junk, BODY.decode() + junk, NOTE + junk, BODY.decode() + "\n" + junk):
        try:
            read(text, COSIGNERS, 1)
        except RemoteProtocolError:
            continue
        assert text.startswith(NOTE)


@given(st.integers(0, len(NOTE) - 1), st.characters())
def test_no_character_of_a_checkpoint_can_be_changed(position: int, character: str) -> None:
    changed = NOTE[:position] + character + NOTE[position + 1 :]
    if changed == NOTE:
        return
    # A changed name or identifier makes a line unknown, so that one cosigner is missing.
    with pytest.raises(RemoteProtocolError):
        read(changed, COSIGNERS, 3)


def test_a_checkpoint_needs_as_many_cosigners_as_it_is_asked_for() -> None:
    assert names(read(NOTE, COSIGNERS, 1)) == [cosigner.name for cosigner in COSIGNERS[:3]]
    found = "3 known cosigners .quorate.example/r0, quorate.example/r1, quorate.example/r2."
    with pytest.raises(RemoteProtocolError, match=f"{found}, where 4 are needed"):
        read(NOTE, COSIGNERS, 4)


def test_cosigners_that_are_not_known_do_not_count() -> None:
    assert names(read(NOTE, COSIGNERS[2:], 1)) == ["quorate.example/r2"]
    with pytest.raises(RemoteProtocolError, match="1 known cosigners .quorate.example/r2., where"):
        read(NOTE, COSIGNERS[2:], 2)
    with pytest.raises(RemoteProtocolError, match="0 known cosigners .none., where 1 are needed"):
        read(NOTE, COSIGNERS[3:], 1)


def test_a_cosigner_that_signed_twice_counts_once() -> None:
    twice = BODY.decode() + "\n" + LINES[0] + LINES[0]
    with pytest.raises(RemoteProtocolError, match="1 known cosigners .quorate.example/r0., where"):
        read(twice, COSIGNERS, 2)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_several_times_of_a_cosigner_the_last_is_reported(order: tuple[int, ...]) -> None:
    notes = [render(HEAD, [cosign(0, time_s=TIME_S + later)], COSIGNERS) for later in order]
    lines = [note.split("\n\n")[1] for note in notes]

    checkpoint = read(BODY.decode() + "\n" + "".join(lines), COSIGNERS, 1)

    assert checkpoint.cosignatures == (cosign(0, time_s=TIME_S + 2),)


def test_a_bad_second_signature_of_a_cosigner_is_not_overlooked() -> None:
    bad = cosignature_line(0, bytes(8), bytes(64))
    with pytest.raises(RemoteProtocolError, match="not by quorate.example/r0, or not of this"):
        read(NOTE + bad, COSIGNERS, 3)


@pytest.mark.parametrize(
    "line",
    [
        signature_line("someone.example", bytes(4 + 64)),
        signature_line("someone.example", bytes(5)),
        signature_line("someone.example", bytes(4 + 2420)),
        # The name of a known cosigner with another identifier, and the other way round.
        signature_line(COSIGNERS[3].name, bytes(4 + 72)),
        signature_line("someone.example", COSIGNERS[3].key_id + bytes(72)),
        signature_line("κάποιος.example/λ", bytes(4 + 64)),
    ],
)
def test_signatures_of_unknown_keys_are_ignored(line: str) -> None:
    first = NOTE.replace("\n\n", "\n\n" + line)

    assert read(NOTE + line, COSIGNERS, 3) == read(NOTE, COSIGNERS, 3)
    assert read(first, COSIGNERS, 3) == read(NOTE, COSIGNERS, 3)


def test_a_signature_of_the_note_itself_by_a_key_that_cosigns_is_another_key() -> None:
    # Type 1 is a plain signature of the body: the same key, but not the same identifier.
    cosigner, key = COSIGNERS[3], KEYS[3]
    key_id = sha256(cosigner.name.encode() + b"\n\x01" + cosigner.public_key).digest()[:4]
    note = NOTE + signature_line(cosigner.name, key_id + key.sign(BODY))

    with pytest.raises(RemoteProtocolError, match="3 known cosigners"):
        read(note, COSIGNERS, 4)


def test_extension_lines_are_kept_and_signed() -> None:
    head = replace(HEAD, extensions=("an extension", "— another one"))
    note = render(head, [cosign(0, head)], COSIGNERS)

    assert note.startswith(BODY.decode() + "an extension\n— another one\n\n— quorate.example/r0 ")
    assert read(note, COSIGNERS, 1).head == head
    with pytest.raises(RemoteProtocolError, match="not of this checkpoint"):
        read(note.replace("an extension", "no extension"), COSIGNERS, 1)


def test_as_many_signatures_as_are_allowed_are_read() -> None:
    line = signature_line("s", bytes(5))
    full = NOTE + line * (SIGNATURES_MAX - 3)

    assert read(full, COSIGNERS, 3) == read(NOTE, COSIGNERS, 3)
    with pytest.raises(RemoteProtocolError, match="with 1025 signatures; allowed are 1024"):
        read(full + line, COSIGNERS, 3)


def test_sixteen_signatures_of_the_largest_kind_are_read() -> None:
    large = signature_line("post-quantum.example", bytes(4 + 5000))
    assert read(NOTE + large * 16, COSIGNERS, 3) == read(NOTE, COSIGNERS, 3)


@pytest.mark.parametrize("filler", ["x", "é"])
def test_a_note_is_read_up_to_its_largest_length_in_bytes(filler: str) -> None:
    width = len(filler.encode())

    def note(extension_bytes: int) -> str:
        head = replace(HEAD, extensions=(filler * (extension_bytes // width),))
        line = cosignature_line(0, TIME_S.to_bytes(8, "big"), cosign(0, head).signature)
        return head.body().decode() + "\n" + line

    room = NOTE_BYTES_MAX - len(note(width).encode()) + width
    room -= room % width
    assert read(note(room), COSIGNERS, 1).head.size == 1234
    with pytest.raises(RemoteProtocolError, match=f"a note of more than {NOTE_BYTES_MAX} bytes"):
        read(note(room + width), COSIGNERS, 1)


# What is refused: how a note is changed, and the sentence that says so.

DECIMAL = "which is no decimal number of up to 19 digits without leading zeros"
DASH = "it is a dash, a name and base64"
THREE_LINES = "without its three lines"
BAD_ROOT = "the root of a checkpoint is not in canonical base64"
BAD_SIGNATURE = "a signature of a note is not in canonical base64"


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(note: str) -> str:
        assert old in note
        return note.replace(old, new, 1)

    return change


MALFORMED: dict[str, tuple[Callable[[str], str], str]] = {
    "nothing": (lambda note: "", "without an empty line before its signatures"),
    "no signatures": (lambda note: BODY.decode(), "without an empty line before its signatures"),
    "no empty line": (replaced("\n\n", "\n"), "without an empty line before its signatures"),
    "an empty line only": (lambda note: "\n\n", "does not end with a whole signature line"),
    "no signature line": (lambda note: BODY.decode() + "\n", "does not end with a whole signature"),
    "no newline at the end": (lambda note: note[:-1], "does not end with a whole signature line"),
    "an empty line at the end": (lambda note: note + "\n", "does not end with a whole signature"),
    "an empty line between signatures": (replaced("==\n", "==\n\n"), "a head with the line ''"),
    "text after the signatures": (lambda note: note + "x\n", DASH),
    "carriage returns": (lambda note: note.replace("\n", "\r\n"), "without an empty line before"),
    "no body": (lambda note: "\n\n" + LINES[0], THREE_LINES),
    "no origin": (replaced("quorate.example/orders\n", ""), THREE_LINES),
    "an empty origin": (replaced("quorate.example/orders\n", "\n"), "a head with the line ''"),
    "a control character in the origin": (replaced("/orders", "/ord\ters"), r"line '.*\\t.*', but"),
    "half a character in the origin": (replaced("/orders", "/\ud800"), "a note with surrogates"),
    "no size": (replaced("1234\n", ""), THREE_LINES),
    "an empty size": (replaced("1234\n", "\n"), f"size '', {DECIMAL}"),
    "a size with a leading zero": (replaced("1234", "01234"), f"size '01234', {DECIMAL}"),
    "a size of two zeros": (replaced("1234", "00"), DECIMAL),
    "a size with a sign": (replaced("1234", "+1234"), DECIMAL),
    "a negative size": (replaced("1234", "-1"), DECIMAL),
    "a size with spaces": (replaced("1234", " 1234"), DECIMAL),
    "a size with underscores": (replaced("1234", "1_234"), DECIMAL),
    "a size in other digits": (replaced("1234", "١٢٣٤"), DECIMAL),
    "a size in hexadecimal": (replaced("1234", "0x4d2"), DECIMAL),
    "a size of 20 digits": (replaced("1234", "1" * 20), DECIMAL),
    "a size of very many digits": (replaced("1234", "1" * 10000), DECIMAL),
    "a size of 64 bits": (replaced("1234", str(2**63)), f"allowed are 0 to {2**63 - 1}"),
    "no root": (replaced(f"{ROOT_LINE}\n", ""), THREE_LINES),
    "an empty root": (replaced(ROOT_LINE, ""), "a root of 0 bytes, not 32"),
    "a root of 31 bytes": (
        replaced(ROOT_LINE, base64.b64encode(ROOT[:31]).decode()),
        "a root of 31 bytes, not 32",
    ),
    "a root of 33 bytes": (
        replaced(ROOT_LINE, base64.b64encode(ROOT + b"x").decode()),
        "a root of 33 bytes, not 32",
    ),
    "a root without padding": (replaced(ROOT_LINE, ROOT_LINE[:-1]), BAD_ROOT),
    "a root with more padding": (replaced(ROOT_LINE, ROOT_LINE + "="), BAD_ROOT),
    "a root with stray bits": (replaced("WeCk=", "WeCl="), BAD_ROOT),
    "a root for URLs": (replaced("RV/px", "RV_px"), BAD_ROOT),
    "a root with a space": (replaced("RV/px", "RV/px "), BAD_ROOT),
    "a root that is not ASCII": (replaced("RV/px", "RV/pé"), BAD_ROOT),
    "an empty extension line": (
        replaced(f"{ROOT_LINE}\n", f"{ROOT_LINE}\n\n"),
        "a head with the line ''",
    ),
    "a control character in an extension": (
        replaced(f"{ROOT_LINE}\n", f"{ROOT_LINE}\nx\x00\n"),
        r"a head with the line 'x\\x00', but a line is not empty",
    ),
    "a hyphen for the dash": (replaced("— ", "- "), DASH),
    "no dash": (replaced("— ", ""), DASH),
    "no space after the dash": (replaced("— ", "—"), DASH),
    "two spaces after the dash": (replaced("— ", "—  "), DASH),
    "no name": (replaced("— quorate.example/r0 ", "— "), DASH),
    "no base64": (lambda note: note + "— someone.example\n", DASH),
    "empty base64": (lambda note: note + "— someone.example \n", "without a signature"),
    "a name with a plus": (replaced("example/r0", "example+r0"), "no spaces and no '\\+'"),
    "a name with a wide space": (replaced("example/r0", "example\u2003r0"), "no spaces and no"),
    "a name with a control character": (replaced("example/r0", "example\x01r0"), DASH),
    "two spaces before the base64": (replaced("/r0 ", "/r0  "), BAD_SIGNATURE),
    "a space at the end of the line": (replaced("==\n", "== \n"), BAD_SIGNATURE),
    "a third column": (replaced("==\n", "== x\n"), BAD_SIGNATURE),
    "a signature without padding": (replaced("==\n", "\n"), BAD_SIGNATURE),
    "a signature with more padding": (replaced("==\n", "===\n"), BAD_SIGNATURE),
    "a signature with stray bits": (replaced("CDw==\n", "CDx==\n"), BAD_SIGNATURE),
    "a signature for URLs": (replaced("BlU/EA", "BlU_EA"), BAD_SIGNATURE),
    "an unknown signature with stray bits": (
        lambda note: note + "— someone.example AAAAAAB=\n",
        BAD_SIGNATURE,
    ),
    "a key identifier and no signature": (
        lambda note: note + signature_line("someone.example", bytes(4)),
        "a signature line of 'someone.example' without a signature",
    ),
    "less than a key identifier": (
        lambda note: note + signature_line("someone.example", bytes(3)),
        "a signature line of 'someone.example' without a signature",
    ),
    "a cosignature without a time": (
        lambda note: note + cosignature_line(3, b"", bytes(64)),
        "a cosignature of quorate.example/r3 of 64 bytes, not 72",
    ),
    "a cosignature that is too long": (
        lambda note: note + cosignature_line(3, bytes(8), bytes(65)),
        "a cosignature of quorate.example/r3 of 73 bytes, not 72",
    ),
    "a time that no clock has": (
        lambda note: note + cosignature_line(3, b"\x80" + bytes(7), bytes(64)),
        f"quorate.example/r3 with time {2**63}; allowed are 0 to {2**63 - 1}",
    ),
    "a cosignature of another time": (
        lambda note: note + cosignature_line(3, bytes(8), cosign(3).signature),
        "not by quorate.example/r3, or not of this checkpoint",
    ),
    "a cosignature by another key": (
        lambda note: note + cosignature_line(3, TIME_S.to_bytes(8, "big"), cosign(2).signature),
        "not by quorate.example/r3, or not of this checkpoint",
    ),
    "a signature of the body only": (
        lambda note: note + cosignature_line(3, TIME_S.to_bytes(8, "big"), KEYS[3].sign(BODY)),
        "not by quorate.example/r3, or not of this checkpoint",
    ),
    "another origin": (replaced("/orders", "/others"), "not of this checkpoint"),
    "another size": (replaced("1234", "1235"), "not of this checkpoint"),
    "another root": (
        replaced(ROOT_LINE, base64.b64encode(bytes(32)).decode()),
        "not of this checkpoint",
    ),
    "an extension that nobody signed": (
        replaced(f"{ROOT_LINE}\n", f"{ROOT_LINE}\nextension\n"),
        "not of this checkpoint",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_checkpoint_is_refused(what: str) -> None:
    change, sentence = MALFORMED[what]
    with pytest.raises(RemoteProtocolError, match=sentence) as refusal:
        read(change(NOTE), COSIGNERS, 1)
    # An attacker does not get to write our log.
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", THREE_LINES),
        (BODY[:-1], THREE_LINES),
        (b"origin\n0\n", THREE_LINES),
        (BODY + b"\n", "a head with the line ''"),
        (BODY + b"x", THREE_LINES),
        (BODY.replace(b"orders", b"\xff"), "not valid UTF-8"),
        (BODY.replace(b"orders", b"\xed\xa0\x80"), "not valid UTF-8"),
        (BODY + b"x" * NOTE_BYTES_MAX + b"\n", f"of more than {NOTE_BYTES_MAX} bytes"),
    ],
)
def test_a_malformed_body_is_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        Head.parse(body)


def test_a_cosignature_verifies_for_its_cosigner_head_and_time() -> None:
    verify_cosignature(HEAD, COSIGNERS[0], cosign(0))
    verify_cosignature(HEAD, COSIGNERS[0], cosign(0, time_s=TIME_S_MAX))


@pytest.mark.parametrize(
    ("head", "cosigner", "cosignature"),
    [
        (replace(HEAD, origin="quorate.example/others"), COSIGNERS[0], cosign(0)),
        (replace(HEAD, size=1235), COSIGNERS[0], cosign(0)),
        (replace(HEAD, root=bytes(32)), COSIGNERS[0], cosign(0)),
        (replace(HEAD, extensions=("x",)), COSIGNERS[0], cosign(0)),
        (HEAD, replace(COSIGNERS[0], public_key=COSIGNERS[1].public_key), cosign(0)),
        (HEAD, COSIGNERS[0], replace(cosign(0), time_s=TIME_S + 1)),
        (HEAD, COSIGNERS[0], replace(cosign(1), name=COSIGNERS[0].name)),
        (HEAD, COSIGNERS[0], replace(cosign(0), signature=b"")),
        (HEAD, COSIGNERS[0], replace(cosign(0), signature=bytes(64))),
        (HEAD, COSIGNERS[0], replace(cosign(0), signature=cosign(0).signature + b"x")),
    ],
)
def test_a_cosignature_holds_for_nothing_else(
    head: Head, cosigner: Cosigner, cosignature: Cosignature
) -> None:
    with pytest.raises(RemoteProtocolError, match="not by quorate.example/r0, or not of this"):
        verify_cosignature(head, cosigner, cosignature)


def test_a_cosignature_in_another_name_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="of 'quorate.example/r1', not of quorate.exam"):
        verify_cosignature(HEAD, COSIGNERS[0], cosign(1))


@pytest.mark.parametrize("time_s", [-1, 2**63])
def test_a_cosignature_of_a_time_that_no_clock_has_is_refused(time_s: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"with time {time_s}; allowed are 0 to"):
        verify_cosignature(HEAD, COSIGNERS[0], replace(cosign(0), time_s=time_s))
    with pytest.raises(LocalProtocolError, match=f"of time {time_s}; allowed are 0 to"):
        cosigned_bytes(HEAD, time_s)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\tb", "a\u00a0b", "a\x00b", "\ud800"])
def test_a_cosigner_has_a_name_that_a_line_can_hold(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="the name of a cosigner is .*, but a name is not"):
        Cosigner(name, bytes(32))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_cosigner_has_a_key_of_the_right_length(length: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"cosigner r0 has {length} bytes, not 32"):
        Cosigner("r0", bytes(length))


@pytest.mark.parametrize("line", ["", "a\nb", "a\tb", "a\x00", "\ud800"])
def test_a_head_has_lines_that_a_note_can_hold(line: str) -> None:
    with pytest.raises(LocalProtocolError, match="a head with the line .*, but a line is not"):
        replace(HEAD, origin=line)
    with pytest.raises(LocalProtocolError, match="a head with the line .*, but a line is not"):
        replace(HEAD, extensions=("x", line))


@pytest.mark.parametrize("size", [-1, SIZE_MAX + 1])
def test_a_head_has_a_size_that_readers_understand(size: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"a head of {size} leaves; allowed are 0 to"):
        replace(HEAD, size=size)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_head_has_a_root_of_the_right_length(length: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"a root of {length} bytes, not 32"):
        replace(HEAD, root=bytes(length))


@pytest.mark.parametrize("needed", [-1, 0, 5])
def test_a_reader_asks_for_at_least_one_cosigner_and_for_no_more_than_there_are(
    needed: int,
) -> None:
    with pytest.raises(LocalProtocolError, match=f"{needed} cosignatures are needed, of 4 cosign"):
        read(NOTE, COSIGNERS, needed)


@pytest.mark.parametrize(
    "twin",
    [COSIGNERS[0], replace(COSIGNERS[0], name="twin"), Cosigner(COSIGNERS[0].name, bytes(32))],
)
def test_two_cosigners_never_share_a_name_or_a_key(twin: Cosigner) -> None:
    cosigners = [*COSIGNERS, twin]
    with pytest.raises(LocalProtocolError, match="two cosigners with one name or one key"):
        read(NOTE, cosigners, 1)
    with pytest.raises(LocalProtocolError, match="two cosigners with one name or one key"):
        render(HEAD, [cosign(0)], cosigners)


@pytest.mark.parametrize(
    ("cosignatures", "sentence"),
    [
        ([], "a checkpoint with 0 cosignatures; allowed are 1 to 1024"),
        ([cosign(0)] * 1025, "a checkpoint with 1025 cosignatures; allowed are 1 to 1024"),
        ([cosign(0), cosign(0, time_s=TIME_S + 1)], "two cosignatures of one cosigner"),
        ([replace(cosign(0), name="r9")], "a cosignature of 'r9', who is no cosigner"),
        ([replace(cosign(0), time_s=-1)], "r0 with time -1 and 64 bytes"),
        ([replace(cosign(0), time_s=2**63)], f"r0 with time {2**63} and 64 bytes"),
        ([replace(cosign(0), signature=bytes(63))], f"with time {TIME_S} and 63 bytes, not 64"),
    ],
)
def test_a_checkpoint_is_not_rendered_so_that_nobody_can_read_it(
    cosignatures: list[Cosignature], sentence: str
) -> None:
    with pytest.raises(LocalProtocolError, match=sentence):
        render(HEAD, cosignatures, COSIGNERS)


def test_a_checkpoint_that_is_too_long_to_be_read_is_not_rendered() -> None:
    head = replace(HEAD, extensions=("x" * NOTE_BYTES_MAX,))
    with pytest.raises(LocalProtocolError, match=f"of more than {NOTE_BYTES_MAX} bytes"):
        render(head, [cosign(0, head)], COSIGNERS)
